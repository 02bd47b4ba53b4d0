//! `masu aging --cache`: second passes, mapped streams, processes that outlive the command, and the account at the end.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use linux::Rooted;
use linux::meminfo::meminfo;
use linux::page_cache::resident;
use serde_json::Value;
use units::{Bytes, Pages};

use super::Outcome;
use super::aging::Aging;
use super::command::masu;
use super::disk_file::DiskFile;
use super::programs::{self, Running, TIME_LIMIT};
use super::run::Folder;
use crate::group::Group;
use crate::host::{Host, LiveTest, tests};

/// Tests of this file, and their requirements.
pub(crate) const TESTS: &[LiveTest] = tests! {
    aging_passes requires [Root, PageTableWalk, DiskFiles, Shell, MasuCommand];
    a_second_pass_of_a_command_reads_no_disk_and_leaves_nothing;
    what_a_service_reads_again_and_again_stays [MemoryGroups];
    a_server_of_files_warms_up [MemoryGroups, Python];
    a_mapped_stream_leaves_while_it_runs_and_when_it_ends [CCompiler];
    small_files_that_a_stream_keeps_mapped_leave_when_it_is_further_on [Python];
    a_file_that_is_mapped_and_read_at_random_is_read_once [Python];
    a_file_that_is_mapped_and_read_in_order_twice_is_read_once [Python];
    a_process_that_outlives_the_command_is_followed_to_its_end;
};

const LENGTH: Pages = Bytes::mib(64).pages();

fn pages(of: &DiskFile) -> Result<u64, libtest_mimic::Failed> {
    Ok(resident(&of.file, 0..u64::MAX)?.iter().map(|run| run.end - run.start).sum())
}

/// `masu aging --cache 0 -- COMMAND`, with its report.
fn aging_of(report: &Path, command: &[&str]) -> Result<Command, libtest_mimic::Failed> {
    let mut aging = masu()?;
    aging.args(["aging", "--cache", "0", "--json", "--report"]).arg(report).arg("--").args(command);
    Ok(aging)
}

fn lines(report: &Path) -> Result<Vec<Value>, libtest_mimic::Failed> {
    Ok(fs::read_to_string(report)?.lines().map(serde_json::from_str).collect::<Result<_, _>>()?)
}

/// The last line; its amounts add up.
fn end_of(report: &Path) -> Result<Value, libtest_mimic::Failed> {
    let end = lines(report)?.pop().ok_or("no lines")?;
    assert_adds_up(&end);
    Ok(end)
}

fn assert_adds_up(end: &Value) {
    let amount = |name: &str| end[name].as_u64().unwrap_or_default();
    assert_eq!(amount("brought_in_bytes"), amount("dropped_bytes") + amount("left_bytes"), "{end}");
    let left: u64 = end["left"].as_array().into_iter().flatten().filter_map(|left| left["bytes"].as_u64()).sum();
    assert_eq!(left, amount("left_bytes"), "{end}");
}

fn a_second_pass_of_a_command_reads_no_disk_and_leaves_nothing(_: &Host) -> Outcome {
    let (of, folder) = (DiskFile::make("aging-passes", LENGTH)?, Folder::make("aging-passes-lines")?);
    let report = folder.0.join("lines");
    let script = format!("cat {0} > /dev/null; sleep 1; cat {0} > /dev/null", of.path().display());
    let memory = meminfo(&Rooted::host())?;
    let said = Running::start(&mut aging_of(&report, &["/bin/sh", "-c", &script])?)?.said()?;
    assert_eq!((said.code(), said.err.as_str()), (0, ""));
    let end = end_of(&report)?;
    // Only free memory is used for that.
    if memory.free > memory.total.scaled(0.25) {
        assert!(end["brought_in_bytes"].as_u64() < Some(LENGTH.bytes().0 / 4 * 5), "{end}");
    }
    assert!(pages(&of)? * 100 <= LENGTH.0, "{} pages are left", pages(&of)?);
    Ok(())
}

fn what_a_service_reads_again_and_again_stays(_: &Host) -> Outcome {
    let (of, group) = (DiskFile::make("aging-service", LENGTH)?, Group::make("aging-service")?);
    let aging = Aging::start(&["--cache", "0", "--cgroup", &group.name()])?;
    let read = || -> Result<(), libtest_mimic::Failed> {
        let script = format!("echo 0 > {} && cat {} > /dev/null", group.procs().display(), of.path().display());
        let said = Running::start(Command::new("/bin/sh").args(["-c", &script]))?.said()?;
        if said.code() == 0 { Ok(()) } else { Err(format!("the reader failed: {said:?}").into()) }
    };
    for pass in ["first", "second"] {
        read()?;
        let deadline = Instant::now() + TIME_LIMIT;
        while pages(&of)? * 100 > LENGTH.0 {
            assert!(Instant::now() < deadline, "the {pass} pass is a stream, whose readers have ended");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
    read()?;
    // Longer than the time after which pages of the other passes went.
    std::thread::sleep(Duration::from_secs(3));
    let left = pages(&of)?;
    let end = aging.end()?;
    assert_adds_up(&end);
    assert!(left * 10 >= LENGTH.0 * 9, "{left} pages are left of the third pass: {end}");
    assert!(end["left"].as_array().is_some_and(|left| left.iter().any(|of| of["why"] == "read_again")), "{end}");
    Ok(())
}

/// A server as nginx: it runs on, sends parts of 1 MiB whole and in another order each round, and prints what each round
/// had to read from the disk.
const SERVER: &str = "
import os, random, sys
open(sys.argv[1], 'w').write('0')
file, out = os.open(sys.argv[2], os.O_RDONLY), os.open('/dev/null', os.O_WRONLY)
parts = list(range(os.fstat(file).st_size >> 20))
def read():
    return int(next(line for line in open('/proc/self/io') if line.startswith('read_bytes')).split()[1])
for line in sys.stdin:
    before = read()
    random.Random(line).shuffle(parts)
    for part in parts:
        sent = 0
        while sent < 1 << 20:
            sent += os.sendfile(out, file, (part << 20) + sent, (1 << 20) - sent)
    print(read() - before, flush=True)
";

fn a_server_of_files_warms_up(_: &Host) -> Outcome {
    let (of, group) = (DiskFile::make("aging-server", LENGTH)?, Group::make("aging-server")?);
    let aging = Aging::start(&["--cache", "0", "--cgroup", &group.name()])?;
    let mut command = Command::new(programs::python().ok_or("no python3")?);
    command.args(["-c", SERVER]).arg(group.procs()).arg(of.path()).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut server = Running(command.spawn()?);
    let (mut orders, answers) = (server.0.stdin.take().ok_or("no pipe")?, server.0.stdout.take().ok_or("no pipe")?);
    let mut answers = BufReader::new(answers).lines();
    let mut read = Vec::new();
    for round in 0..6 {
        writeln!(orders, "{round}")?;
        read.push(answers.next().ok_or("the server ended")??.parse::<u64>()?);
        // Longer than the time after which a stream's pages go.
        std::thread::sleep(Duration::from_secs(2));
    }
    assert!(read[0] * 10 >= LENGTH.bytes().0 * 9, "the file was cached: {read:?}");
    assert!(read[3..].iter().sum::<u64>() * 10 <= LENGTH.bytes().0, "from the fourth round on: {read:?}");
    drop(orders);
    assert_adds_up(&aging.end()?);
    Ok(())
}

/// The mapping is the stream's own; the program keeps it for a while after its end.
fn a_mapped_stream_leaves_while_it_runs_and_when_it_ends(_: &Host) -> Outcome {
    let length = Bytes::mib(160).pages();
    let (of, folder) = (DiskFile::make("aging-mapped", length)?, Folder::make("aging-mapped-program")?);
    let (source, program, report) = (folder.0.join("map.c"), folder.0.join("map"), folder.0.join("lines"));
    let (passed, over) = (folder.0.join("passed"), folder.0.join("over"));
    fs::write(
        &source,
        "#include <fcntl.h>\n#include <sys/mman.h>\n#include <unistd.h>\n\
         int main(int n, char **v) { int f = open(v[1], O_RDONLY); long size = 160L << 20, sum = 0;\n\
         volatile char *m = mmap(0, size, PROT_READ, MAP_PRIVATE, f, 0);\n\
         for (long at = 0; at < size; at += 4096) { sum += m[at]; if (at % (1 << 20) == 0) usleep(10000); }\n\
         close(creat(v[2], 0600)); for (int i = 0; i < 3000 && access(v[3], F_OK); i++) usleep(10000); return 0; }\n",
    )?;
    let built = Running::start(Command::new("cc").args(["-O1", "-o"]).arg(&program).arg(&source))?.said()?;
    assert_eq!(built.code(), 0, "{}", built.err);
    let words = [&program, &of.path(), &passed, &over].map(|path| path.display().to_string());
    let running = Running::start(&mut aging_of(&report, &words.each_ref().map(String::as_str))?)?;
    let deadline = Instant::now() + Duration::from_secs(25);
    // The last pages may be read yet, as far as masu knows: 34 MiB with a readahead of 8 MiB.
    while !passed.exists() || pages(&of)? * 2 > length.0 {
        assert!(Instant::now() < deadline, "{} pages are left in the mapping", pages(&of)?);
        std::thread::sleep(Duration::from_millis(50));
    }
    fs::write(&over, "")?;
    let said = running.said()?;
    assert_eq!((said.code(), said.err.as_str()), (0, ""));
    end_of(&report)?;
    assert!(pages(&of)? * 100 <= length.0, "{} pages are left", pages(&of)?);
    Ok(())
}

/// Maps files, reads each in order, keeps all of them mapped, and waits until the file of its first argument exists.
const MANY: &str = "
import mmap, os, sys, time
maps = []
for path in sys.argv[2:]:
    with open(path, 'rb') as file:
        maps.append(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))
    for place in range(0, len(maps[-1]), 4096): maps[-1][place]
while not os.path.exists(sys.argv[1]): time.sleep(0.05)
";

/// All but the last 64 MiB; before, the end of a file stayed for as long as it was mapped.
fn small_files_that_a_stream_keeps_mapped_leave_when_it_is_further_on(_: &Host) -> Outcome {
    let length = Bytes::mib(4).pages();
    let all: Vec<DiskFile> =
        (0..40).map(|n| DiskFile::make(&format!("aging-many-{n}"), length)).collect::<Result<_, _>>()?;
    let folder = Folder::make("aging-many-lines")?;
    let (report, over) = (folder.0.join("lines"), folder.0.join("over"));
    let python = programs::python().ok_or("no python3")?.display().to_string();
    let words = std::iter::once(over.clone()).chain(all.iter().map(DiskFile::path));
    let words: Vec<String> = words.map(|path| path.display().to_string()).collect();
    let mut command = vec![python.as_str(), "-c", MANY];
    command.extend(words.iter().map(String::as_str));
    let running = Running::start(&mut aging_of(&report, &command)?)?;
    let left = || all.iter().map(pages).sum::<Result<u64, _>>();
    let deadline = Instant::now() + Duration::from_secs(25);
    let mut most = 0;
    while most < 40 * length.0 / 2 || left()? > LENGTH.0 + length.0 {
        assert!(Instant::now() < deadline, "{} of at most {most} pages are left while they are mapped", left()?);
        most = most.max(left()?);
        std::thread::sleep(Duration::from_millis(50));
    }
    fs::write(&over, "")?;
    let said = running.said()?;
    assert_eq!((said.code(), said.err.as_str()), (0, ""));
    end_of(&report)?;
    assert!(left()? * 100 <= 40 * length.0, "{} pages are left", left()?);
    Ok(())
}

fn a_process_that_outlives_the_command_is_followed_to_its_end(_: &Host) -> Outcome {
    let (of, folder) = (DiskFile::make("aging-outlived", LENGTH)?, Folder::make("aging-outlived-lines")?);
    let report = folder.0.join("lines");
    let script = format!("(sleep 1; cat {} > /dev/null) > /dev/null 2>&1 & exit 7", of.path().display());
    let said = Running::start(&mut aging_of(&report, &["/bin/sh", "-c", &script])?)?.said()?;
    assert_eq!((said.code(), said.err.as_str()), (7, ""), "the command's own status");
    let end = end_of(&report)?;
    assert!(end["dropped_bytes"].as_u64() >= Some(LENGTH.bytes().0 / 100 * 98), "{end}");
    assert!(pages(&of)? * 100 <= LENGTH.0);
    let lines = lines(&report)?;
    let line = lines.iter().find(|line| line["event"] == "outlived").ok_or("no line says so")?;
    assert_eq!(
        (&line["followed"], line["processes"].as_array().is_some_and(|all| !all.is_empty())),
        (&true.into(), true)
    );
    Ok(())
}

/// Touches each page of a mapped file once, at random, and prints what that read from the disk.
const AT_RANDOM: &str = "
import mmap, random, sys, time
file = open(sys.argv[1], 'rb')
map = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
places = list(range(0, len(map), 4096))
random.Random(5).shuffle(places)
for n, place in enumerate(places):
    map[place]
    if n % 512 == 0: time.sleep(0.1)
print(next(line for line in open('/proc/self/io') if line.startswith('read_bytes')).split()[1])
";

/// The kernel reads around each fault: pages that no page table has yet.
fn a_file_that_is_mapped_and_read_at_random_is_read_once(_: &Host) -> Outcome {
    let (of, folder) = (DiskFile::make("aging-random", LENGTH)?, Folder::make("aging-random-lines")?);
    let report = folder.0.join("lines");
    let python = programs::python().ok_or("no python3")?.display().to_string();
    let command = [python.as_str(), "-c", AT_RANDOM, &of.path().display().to_string()];
    let said = Running::start(&mut aging_of(&report, &command)?)?.said()?;
    assert_eq!((said.code(), said.err.as_str()), (0, ""));
    let read: u64 = said.out.trim().parse()?;
    assert!(read * 4 <= LENGTH.bytes().0 * 5, "{read} bytes: {:?}", end_of(&report)?);
    assert!(pages(&of)? * 100 <= LENGTH.0, "{} pages are left", pages(&of)?);
    Ok(())
}

/// Maps a file, reads it in order, and unmaps it, twice; prints what that read from the disk.
const TWICE: &str = "
import mmap, sys
for turn in range(2):
    file = open(sys.argv[1], 'rb')
    map = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    for place in range(0, len(map), 4096): map[place]
    map.close()
    file.close()
print(next(line for line in open('/proc/self/io') if line.startswith('read_bytes')).split()[1])
";

/// Pages that it has passed stay for some seconds while memory is free.
fn a_file_that_is_mapped_and_read_in_order_twice_is_read_once(_: &Host) -> Outcome {
    let length = Bytes::mib(128).pages();
    let (of, folder) = (DiskFile::make("aging-twice", length)?, Folder::make("aging-twice-lines")?);
    let report = folder.0.join("lines");
    let python = programs::python().ok_or("no python3")?.display().to_string();
    let command = [python.as_str(), "-c", TWICE, &of.path().display().to_string()];
    let memory = meminfo(&Rooted::host())?;
    let said = Running::start(&mut aging_of(&report, &command)?)?.said()?;
    assert_eq!((said.code(), said.err.as_str()), (0, ""));
    let (read, end) = (said.out.trim().parse::<u64>()?, end_of(&report)?);
    if memory.free > memory.total.scaled(0.25) {
        assert!(read * 4 <= length.bytes().0 * 5, "{read} bytes: {end}");
    }
    assert!(pages(&of)? * 100 <= length.0, "{} pages are left", pages(&of)?);
    Ok(())
}
