//! `masu aging --cache`: the pages of streams are dropped, and no others.

use std::fs::{self, File};
use std::ops::Range;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use access::insertions::Insertions;
use linux::cachestat::cachestat;
use linux::page_cache::{drop_clean, resident};
use units::{Bytes, Pages};

use super::Outcome;
use super::aging::Aging;
use super::command::{masu, said};
use super::disk_file::{DiskFile, content_of};
use super::programs::{Running, TIME_LIMIT};
use crate::group::Group;
use crate::host::{Host, LiveTest, tests};
use crate::swap::Swap;

/// Tests of this file, and their requirements.
pub(crate) const TESTS: &[LiveTest] = tests! {
    aging_streams requires [Root, PageTableWalk];
    what_comes_into_the_page_cache_is_told_once [Swap];
    a_reader_that_changes_processors_is_told_in_order [Swap];
    what_was_in_the_page_cache_is_there_afterwards_and_nothing_more [DiskFiles, Shell, MasuCommand];
    what_a_stream_writes_is_on_the_disk_and_not_in_the_page_cache [DiskFiles, Shell, MasuCommand];
    pages_still_being_read_count_until_they_are_dropped [MemoryGroups, CacheStat, DiskFiles, Shell, MasuCommand];
    a_groups_streams_go_and_those_of_others_stay [MemoryGroups, DiskFiles, Shell, MasuCommand];
    a_group_that_is_made_again_is_followed [MemoryGroups, DiskFiles, Shell, MasuCommand];
    a_stream_is_told_from_one_that_looks_things_up [DiskFiles, Shell, MasuCommand];
    a_static_program_is_followed_and_ends_as_it_would [DiskFiles, Shell, CCompiler, MasuCommand];
};

const LENGTH: Pages = Bytes::mib(64).pages();
const ALL: Range<u64> = 0..LENGTH.0;

/// Reads some scattered pages, one by one, and returns the cached ranges then.
fn partly_cached(of: &DiskFile) -> Result<Vec<Range<u64>>, libtest_mimic::Failed> {
    rustix::fs::fadvise(&of.file, 0, None, rustix::fs::Advice::Random)?;
    for page in (0..LENGTH.0).filter(|page| (page * 7919) % 100 < 40) {
        let mut byte = [0];
        of.file.read_exact_at(&mut byte, page * 4096)?;
    }
    let runs = resident(&of.file, ALL)?;
    assert!(runs.len() > 100, "{} runs", runs.len());
    Ok(runs)
}

fn pages(runs: &[Range<u64>]) -> u64 {
    runs.iter().map(|run| run.end - run.start).sum()
}

/// Number of pages in both.
fn common(a: &[Range<u64>], b: &[Range<u64>]) -> u64 {
    let inside = |page: &u64, runs: &[Range<u64>]| runs.iter().any(|run| run.contains(page));
    let (few, many) = if a.len() < b.len() { (b, a) } else { (a, b) };
    many.iter().flat_map(Clone::clone).filter(|page| inside(page, few)).count() as u64
}

/// A file that is partly in the page cache is read as a whole: afterwards the same part is there.
fn what_was_in_the_page_cache_is_there_afterwards_and_nothing_more(_: &Host) -> Outcome {
    let of = DiskFile::make("aging-streams", LENGTH)?;
    partly_cached(&of)?;
    let path = of.path().display().to_string();
    let plain = Running::start(Command::new("cat").arg(&path).stdout(std::process::Stdio::null()))?.said()?;
    assert_eq!(plain.code(), 0);
    // Others may take some, such as a host that wants memory back.
    let left = pages(&resident(&of.file, ALL)?);
    assert!(left * 10 >= LENGTH.0 * 9, "the kernel alone keeps all of it, and not {left} pages");

    drop(of);
    let of = DiskFile::make("aging-streams", LENGTH)?;
    let before_masu = partly_cached(&of)?;
    // A file that is not read: its losses have another cause, such as a host that takes memory back.
    let untouched = DiskFile::make("aging-untouched", LENGTH)?;
    let before_untouched = partly_cached(&untouched)?;
    let path = of.path().display().to_string();
    let done = said(&["aging", "--cache", "0", "--", "/bin/sh", "-c", &format!("cat {path} > /dev/null")])?;
    assert_eq!((done.code(), done.err.as_str()), (0, ""));
    let after = resident(&of.file, ALL)?;
    let kept = common(&before_masu, &after);
    let share = |kept: u64, before: &[Range<u64>]| kept as f64 / pages(before) as f64;
    let (with, without) = (
        share(kept, &before_masu),
        share(common(&before_untouched, &resident(&untouched.file, ALL)?), &before_untouched),
    );
    assert!(with >= without - 0.01, "{with} of the pages are still there, of a file that nobody read {without}");
    let new = pages(&after) - kept;
    assert!(new * 100 <= LENGTH.0 - pages(&before_masu), "{new} pages were not there before");
    Ok(())
}

/// All writes of a stream reach the disk, and then its pages are dropped.
fn what_a_stream_writes_is_on_the_disk_and_not_in_the_page_cache(_: &Host) -> Outcome {
    let of = DiskFile::make("aging-streams", LENGTH)?;
    let (from, to) = (of.path(), of.path().with_extension("copy"));
    let mut command = masu()?;
    command.args(["aging", "--cache", "0", "--", "cp"]).arg(&from).arg(&to);
    let done = Running::start(&mut command)?.said()?;
    assert_eq!((done.code(), done.err.as_str()), (0, ""));
    let copy = File::open(&to)?;
    let left = pages(&resident(&copy, ALL)?) + pages(&resident(&of.file, ALL)?);
    assert!(left * 100 <= 2 * LENGTH.0, "{left} pages of both files are left");
    for page in ALL {
        let mut found = vec![0; content_of(page).len()];
        copy.read_exact_at(&mut found, page * 4096)?;
        assert!(found == content_of(page), "page {page} of the copy holds something else");
    }
    Ok(())
}

/// A reader follows a writer closely, and memory is short: masu drops while the kernel reads ahead. Pages whose read is
/// under way are neither dropped by the kernel nor shown by `mincore`.
fn pages_still_being_read_count_until_they_are_dropped(_: &Host) -> Outcome {
    const LARGE: Pages = Bytes::mib(96).pages();
    let group = Group::make("aging-reading")?;
    group.limit(LARGE.bytes().0)?;
    let of = DiskFile::make("aging-reading", LARGE)?;
    let (procs, path) = (group.procs().display().to_string(), of.path().display().to_string());
    let copies = [1, 2, 3, 4].map(|n| of.path().with_extension(n.to_string()));
    let copy = |to: &PathBuf| format!("cp {path} {0} && cat {0} > /dev/null || exit 1;", to.display());
    let script = format!("echo 0 > {procs} || exit 1; {}", copies.each_ref().map(copy).concat());
    let done = said(&["aging", "--cache", "0", "--report", "-", "--", "/bin/sh", "-c", &script])?;
    assert_eq!(done.code(), 0, "{}", done.err);
    for copy in copies {
        let left = cachestat(File::open(&copy)?.as_fd(), Bytes(0), Bytes(0))?.cached;
        assert!(left.0 * 100 <= LARGE.0, "{} pages of {} are left: {}", left.0, copy.display(), done.err);
    }
    Ok(())
}

/// Processes in a cgroup are followed, and no others.
fn a_groups_streams_go_and_those_of_others_stay(_: &Host) -> Outcome {
    let group = Group::make("aging-streams")?;
    let (inside, outside) = (DiskFile::make("aging-inside", LENGTH)?, DiskFile::make("aging-outside", LENGTH)?);
    let aging = Aging::start(&["--cache", "0", "--cgroup", &group.name()])?;
    inside.stream_through(&group, 1)?;
    outside.read(ALL)?;
    let end = aging.end()?;
    assert!(end["dropped_bytes"].as_u64() >= Some(LENGTH.bytes().0 / 100 * 98), "{end}");
    assert!(pages(&resident(&inside.file, ALL)?) * 100 <= LENGTH.0);
    assert_eq!(pages(&resident(&outside.file, ALL)?), LENGTH.0);
    Ok(())
}

/// A group that is removed and made again is another one with the same name, and is followed like the first.
fn a_group_that_is_made_again_is_followed(_: &Host) -> Outcome {
    let group = Group::make("aging-again")?;
    let of = DiskFile::make("aging-again", LENGTH)?;
    let aging = Aging::start(&["--cache", "0", "--cgroup", &group.name()])?;
    drop(group);
    let group = Group::make("aging-again")?;
    // masu scans every five seconds; until then nothing of the stream is followed.
    let mut left = LENGTH.0;
    let end = Instant::now() + TIME_LIMIT;
    while left * 100 > LENGTH.0 && Instant::now() < end {
        of.stream_through(&group, 1)?;
        std::thread::sleep(Duration::from_secs(3));
        left = pages(&resident(&of.file, ALL)?);
        drop_clean(&of.file, ALL)?;
    }
    assert!(left * 100 <= LENGTH.0, "{left} pages are left");
    let end = aging.end()?;
    assert!(end["dropped_bytes"].as_u64() >= Some(LENGTH.bytes().0 / 100 * 98), "{end}");
    Ok(())
}

/// Without the owner's process: a reader that goes through much in order is a stream, and a reader with scattered
/// look-ups is none.
fn a_stream_is_told_from_one_that_looks_things_up(_: &Host) -> Outcome {
    let much = Bytes::mib(160).pages();
    let (streamed, looked_up) = (DiskFile::make("aging-streamed", much)?, DiskFile::make("aging-looked-up", much)?);
    let aging = Aging::start(&["--cache", "0"])?;
    rustix::fs::fadvise(&looked_up.file, 0, None, rustix::fs::Advice::Random)?;
    for page in (0..much.0).map(|n| n * 7919 % much.0) {
        let mut byte = [0];
        looked_up.file.read_exact_at(&mut byte, page * 4096)?;
    }
    let reader = Running::start(Command::new("cat").arg(streamed.path()).stdout(std::process::Stdio::null()))?;
    assert_eq!(reader.said()?.code(), 0);
    aging.wait_for(|line| line["event"] == "stream" && line["name"] == "cat")?;
    aging.end()?;
    let (gone, stayed) = (pages(&resident(&streamed.file, 0..much.0)?), pages(&resident(&looked_up.file, 0..much.0)?));
    assert!(gone * 100 <= much.0, "{gone} pages of the stream are left");
    // Others may take some, such as a host that wants memory back; a stream would have lost all.
    assert!(stayed * 10 >= much.0 * 9, "only {stayed} pages of the other are left");
    Ok(())
}

/// A program that loads no library is followed like any other; and its status and its signal are its own.
fn a_static_program_is_followed_and_ends_as_it_would(_: &Host) -> Outcome {
    let of = DiskFile::make("aging-streams", LENGTH)?;
    let folder = super::run::Folder::make("aging-static")?;
    let (source, program) = (folder.0.join("read.c"), folder.0.join("read"));
    fs::write(
        &source,
        "#include <fcntl.h>\n#include <unistd.h>\nstatic char b[65536];\nint main(int n, char **v) { int f = open(v[1], O_RDONLY); \
        while (read(f, b, sizeof b) > 0) {} return 7; }\n",
    )?;
    let built = Running::start(Command::new("cc").args(["-O1", "-static", "-o"]).arg(&program).arg(&source))?.said()?;
    assert_eq!(built.code(), 0, "{}", built.err);
    let mut command = masu()?;
    command.args(["aging", "--cache", "0", "--"]).arg(&program).arg(of.path());
    let done = Running::start(&mut command)?.said()?;
    assert_eq!((done.code(), done.err.as_str()), (7, ""));
    assert!(pages(&resident(&of.file, ALL)?) * 100 <= LENGTH.0);
    let killed = said(&["aging", "--cache", "0", "--", "/bin/sh", "-c", "kill -TERM $$"])?;
    assert_eq!(killed.code(), 128 + 15);
    Ok(())
}

/// The program at the kernel's tracepoint loads here, and counts page-cache insertions completely.
fn what_comes_into_the_page_cache_is_told_once(_: &Host) -> Outcome {
    use access::insertions::{Filter, Membership};
    let mut arrivals = Insertions::of(Filter::Members)?;
    // A block device has a page cache of its own, independent of file systems.
    let device = Swap::off(Bytes::mib(16).0)?;
    arrivals.add_member(linux::Pid::own(), Membership::Whole)?;
    let read = fs::read(device.path())?;
    assert!(read.iter().all(|byte| *byte == 0));
    let mut seen: Vec<u64> = came_of(&device.path(), &mut arrivals)?.into_iter().flatten().collect();
    let all = seen.len();
    seen.sort_unstable();
    seen.dedup();
    assert_eq!((seen.len(), arrivals.lost()), (all, Pages(0)), "each page once");
    assert!(seen.len() as u64 >= Bytes::mib(16).pages().0, "{} pages were told", seen.len());
    assert_eq!(came_of(&device.path(), &mut arrivals)?, []);
    Ok(())
}

/// Insertions of this block device by us since the last call, and of no other file: dropped pages of our own program
/// come again at any moment.
fn came_of(device: &str, arrivals: &mut Insertions) -> Result<Vec<Range<u64>>, libtest_mimic::Failed> {
    // Its page cache is a kernel inode with the device's number (major and minor, in the kernel's format).
    let number = fs::metadata(device)?.rdev();
    let inode = u64::from(rustix::fs::major(number)) << 20 | u64::from(rustix::fs::minor(number));
    let came = arrivals.fetch().map_err(|why| why.reason)?.into_iter();
    let of_device = came.filter(|of| (of.process, of.file.device.0, of.file.inode) == (linux::Pid::own(), 0, inode));
    Ok(of_device.map(|of| of.pages).collect())
}

/// One reader that moves between processors is reported in the order of its reads, not processor by processor.
fn a_reader_that_changes_processors_is_told_in_order(_: &Host) -> Outcome {
    use access::insertions::{Filter, Membership};
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
    let all = sched_getaffinity(None)?;
    let mut processors = (0..CpuSet::MAX_CPU).filter(|processor| all.is_set(*processor));
    let first = processors.next().ok_or("no processor")?;
    // The first reports nothing more until it is asked; the other reports long runs by itself.
    let other = processors.next_back().unwrap_or(first);
    let device = Swap::off(Bytes::mib(16).0)?;
    let file = File::open(device.path())?;
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::Random)?;
    let mut arrivals = Insertions::of(Filter::Members)?;
    arrivals.add_member(linux::Pid::own(), Membership::Whole)?;
    let read = || -> Outcome {
        for turn in 0..256_u64 {
            let mut here = CpuSet::new();
            here.set(if turn == 0 { first } else { other });
            sched_setaffinity(None, &here)?;
            file.read_exact_at(&mut [0; 65536], turn * 65536)?;
        }
        Ok(())
    };
    let outcome = read();
    sched_setaffinity(None, &all)?;
    outcome?;
    let came = came_of(&device.path(), &mut arrivals)?;
    assert!(came.len() > 1, "{came:?}");
    assert!(came.is_sorted_by_key(|pages| pages.start), "{came:?}");
    assert_eq!(came.iter().map(|pages| pages.end - pages.start).sum::<u64>(), Bytes::mib(16).pages().0);
    Ok(())
}
