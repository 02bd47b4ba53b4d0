//! `masu llc shared` beside the kernel's own tables, read word by word; and a scan unmerges no page.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use linux::processes::processes;
use linux::{Pid, Rooted, process_vm, smaps};
use llc::shared::domain::By;
use llc::shared::index::Index;
use llc::shared::observe::Observer;
use rustix::process::Signal;
use serde_json::Value;
use units::Address;
use units::spread::Random;

use super::command::{json, masu, said, start};
use super::programs::{Running, TIME_LIMIT};
use super::{Outcome, no_automatic_huge_pages};
use crate::group::Group;
use crate::host::{Host, LiveTest, tests};
use crate::setting::Setting;
use crate::target_process::{Backing, Mapping, Part, TargetProcess};

/// Tests of this file, and their requirements.
pub(crate) const TESTS: &[LiveTest] = tests! {
    llc_shared requires [Root, PageFrames, Ksm];
    merged_frames_are_found_with_all_who_have_them [MergedFlag, MasuCommand];
    looking_parts_nothing [MasuCommand];
    process_vm_readv_parts_what_it_reads [MasuCommand, RealProcessor];
    pages_shared_by_fork_are_not_taken_for_merged_ones [MasuCommand];
    look_after_look_finds_what_a_first_look_and_the_tables_find [MergedFlag];
    frames_shared_across_groups_and_users_are_counted_and_warned_of [MemoryGroups, MasuCommand];
    watching_goes_through_forks_and_execs_and_ends_with_the_process [MasuCommand];
    what_cannot_be_looked_at_and_what_is_not_there_is_said [MasuCommand];
    each_cause_of_no_merge_is_told_apart [MasuCommand];
};

const KSM: &str = "/sys/kernel/mm/ksm";
const PAGE: u64 = 4096;
/// User id of nobody, which owns nothing.
const NOBODY_UID: u32 = 65534;

type Checked<T> = Result<T, libtest_mimic::Failed>;

/// KSM at full speed. Dropping it restores the settings; merged pages stay merged.
///
/// `smart_scan` (since 6.7) is off: it looks at a page that does not merge in every ninth scan only, and two equal
/// pages whose scans do not coincide are never merged. Seen on 6.12: no page in 8,085 full scans.
pub(super) struct Merging {
    _settings: Vec<Setting>,
}

impl Merging {
    pub(super) fn start() -> Checked<Merging> {
        let settings = [("smart_scan", "0"), ("sleep_millisecs", "2"), ("pages_to_scan", "20000"), ("run", "1")];
        let offered = settings.map(|(name, value)| (format!("{KSM}/{name}"), value)).into_iter();
        let offered = offered.filter(|(path, _)| !path.ends_with("smart_scan") || Path::new(path).exists());
        Ok(Merging { _settings: offered.map(|(path, value)| Setting::set(path, value)).collect::<Result<_, _>>()? })
    }
}

/// Words of pagemap for the pages from `start` to `end`, read by this test's own code.
fn words(pid: Pid, start: u64, end: u64) -> Checked<Vec<u64>> {
    let mut bytes = vec![0; usize::try_from((end - start) / PAGE * 8)?];
    let filled = File::open(format!("/proc/{pid}/pagemap"))?.read_at(&mut bytes, start / PAGE * 8)?;
    Ok(bytes[..filled].as_chunks::<8>().0.iter().map(|word| u64::from_ne_bytes(*word)).collect())
}

/// The frame behind a word, if it is one of KSM's.
fn merged_frame(flags: &File, word: u64) -> Checked<Option<u64>> {
    let frame = word & ((1 << 55) - 1);
    if word >> 63 == 0 || frame == 0 {
        return Ok(None);
    }
    let mut bytes = [0; 8];
    flags.read_exact_at(&mut bytes, frame * 8)?;
    Ok((u64::from_ne_bytes(bytes) & 1 << 21 != 0).then_some(frame))
}

/// The frames behind these pages, where they are KSM's.
fn frames_of(pid: Pid, part: Part) -> Checked<Vec<Option<u64>>> {
    let flags = File::open("/proc/kpageflags")?;
    let range = part.range();
    words(pid, range.start().0, range.end().0)?.into_iter().map(|word| merged_frame(&flags, word)).collect()
}

/// Number of these pages in a KSM frame: at most as many as `smaps` counts, since some kernels set KPF_KSM for every
/// anonymous page. Linux 6.1 has no count.
pub(super) fn merged(pid: Pid, part: Part) -> Checked<usize> {
    let flagged = frames_of(pid, part)?.into_iter().flatten().count();
    let (start, end) = (part.range().start(), part.range().end());
    let details = smaps::details(&Rooted::host(), pid)?;
    let these = details.iter().filter(|of| of.mapping.range.start() < end && start < of.mapping.range.end());
    let counted: Option<u64> = these.map(|of| of.ksm.map(|ksm| ksm.0 / PAGE)).sum();
    Ok(counted.map_or(Ok(flagged), |counted| usize::try_from(counted).map(|counted| counted.min(flagged)))?)
}

/// Waits until KSM has come by; names its counters if it has not.
pub(super) fn until(what: &str, mut is_so: impl FnMut() -> Checked<bool>) -> Outcome {
    let start = Instant::now();
    while !is_so()? {
        assert!(start.elapsed() < TIME_LIMIT, "KSM did not get there: {what}; {}", counters());
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// The names and values of KSM's files.
fn counters() -> String {
    let files = fs::read_dir(KSM).into_iter().flatten().flatten();
    let lines = files.filter_map(|file| {
        let value = fs::read_to_string(file.path()).ok()?;
        Some(format!("{}={}", file.file_name().display(), value.trim()))
    });
    lines.collect::<Vec<_>>().join(" ")
}

/// Waits until these have no page in the first `pages` of their mappings that is not merged.
pub(super) fn until_merged(whose: &[(Pid, Part)]) -> Outcome {
    until("all pages merged", || {
        for (pid, part) in whose {
            if merged(*pid, *part)? < part.pages().count() {
                return Ok(false);
            }
        }
        Ok(true)
    })
}

/// A target process with `pages` pages of the content of `seed`, offered to KSM; others of the same seed have equal
/// pages.
pub(super) fn offering(seed: u64, pages: u64) -> Checked<(TargetProcess, Mapping)> {
    let mut process = TargetProcess::start()?;
    let heap = offer(&mut process, seed, pages)?;
    Ok((process, heap))
}

fn offer(process: &mut TargetProcess, seed: u64, pages: u64) -> Checked<Mapping> {
    let heap = process.map(Backing::Anonymous, pages.div_ceil(512))?;
    let part = heap.pages(0, pages);
    process.advise(part, libc::MADV_NOHUGEPAGE)?;
    process.write(part, seed)?;
    process.advise(part, libc::MADV_MERGEABLE)?;
    Ok(heap)
}

type Frames = BTreeMap<u64, BTreeSet<(i32, u64)>>;

/// All merged frames of these processes, with their users, word by word. A frame of a single page is not shared.
fn by_brute_force(pids: &[Pid]) -> Checked<Frames> {
    let flags = File::open("/proc/kpageflags")?;
    let mut frames = Frames::new();
    for pid in pids {
        for line in fs::read_to_string(format!("/proc/{pid}/maps"))?.lines() {
            let range = line.split(' ').next().and_then(|range| range.split_once('-')).ok_or("no range")?;
            let (start, end) = (u64::from_str_radix(range.0, 16)?, u64::from_str_radix(range.1, 16)?);
            if start >> 63 != 0 {
                continue; // [vsyscall]
            }
            for (nth, word) in words(*pid, start, end)?.into_iter().enumerate() {
                if let Some(frame) = merged_frame(&flags, word)? {
                    frames.entry(frame).or_default().insert((pid.0, start + nth as u64 * PAGE));
                }
            }
        }
    }
    frames.retain(|_, sharers| sharers.len() > 1);
    Ok(frames)
}

/// The same from the report of `masu llc shared --json`.
fn as_said(report: &Value) -> Checked<Frames> {
    let mut frames = Frames::new();
    for frame in report["frames"].as_array().ok_or("no frames")? {
        let mut sharers = BTreeSet::new();
        for sharer in frame["sharers"].as_array().ok_or("no sharers")? {
            let address =
                sharer["address"].as_str().and_then(|hex| hex.strip_prefix("0x")).ok_or("no hexadecimal string")?;
            let pid = i32::try_from(sharer["pid"].as_i64().ok_or("no pid")?)?;
            assert!(sharer["group"].is_string() && sharer["domain"].is_string(), "{sharer}");
            sharers.insert((pid, u64::from_str_radix(address, 16)?));
        }
        frames.insert(frame["pfn"].as_u64().ok_or("no frame number")?, sharers);
    }
    Ok(frames)
}

fn saved(frames: &Frames) -> u64 {
    frames.values().map(|sharers| (sharers.len() as u64 - 1) * PAGE).sum()
}

/// `masu` reports exactly the contents of the tables, for these processes and no others.
fn is_exact(pids: &[Pid], arguments: &[&str]) -> Checked<Value> {
    let expected = by_brute_force(pids)?;
    let report = json(&[&["llc", "shared", "--json"], arguments].concat())?;
    assert_eq!(as_said(&report)?, expected);
    assert_eq!(report["bytes_saved"], saved(&expected));
    Ok(report)
}

/// Two ways of offering, a page twice in one process, pages that were written again, a fork that wrote one, one that has ended.
fn merged_frames_are_found_with_all_who_have_them(_: &Host) -> Outcome {
    const PAGES: u64 = 600;
    let _quiet = no_automatic_huge_pages()?;
    let merging = Merging::start()?;
    let (mut a, in_a) = offering(1, PAGES)?;
    let (mut b, in_b) = offering(1, PAGES)?;
    let mut c = TargetProcess::start()?;
    // Linux 6.1 has one way of offering.
    let by_prctl = c.offer_all().is_ok();
    let in_c = c.map(Backing::Anonymous, 2)?;
    c.write(in_c.pages(0, PAGES), 1)?;
    if !by_prctl {
        c.advise(in_c.pages(0, PAGES), libc::MADV_MERGEABLE)?;
    }
    let again = offer(&mut a, 1, 8)?;
    let (mut d, in_d) = offering(1, PAGES)?;
    let parts = [(a.pid(), in_a), (b.pid(), in_b), (c.pid(), in_c), (d.pid(), in_d)];
    until_merged(&parts.map(|(pid, heap)| (pid, heap.pages(0, PAGES))))?;
    until_merged(&[(a.pid(), again.pages(0, 8))])?;
    let fork = a.fork()?;
    drop(merging);
    // KSM is idle: the programs' writes now change none of its counters.
    b.write(in_b.pages(100, 200), 2)?;
    a.write_in_fork(fork, in_a.pages(0, 5), 3)?;
    c.advise(in_c.pages(300, 310), libc::MADV_DONTNEED)?;
    d.kill();
    let pids = [a.pid(), b.pid(), c.pid(), fork.pid()];
    let report = is_exact(&pids, &[])?;
    assert!(report["merged_frames"].as_u64() >= Some(PAGES), "{}", report["merged_frames"]);
    assert_eq!(report["ksm"]["run"], "stopped");
    // For one process: all its pages shared with others, and nothing else.
    let of_b: Frames =
        by_brute_force(&pids)?.into_iter().filter(|(_, of)| of.iter().any(|(pid, _)| *pid == b.pid().0)).collect();
    let report = json(&["llc", "shared", "--json", "--pid", &b.pid().to_string()])?;
    assert_eq!(as_said(&report)?, of_b);
    assert_eq!(of_b.len(), usize::try_from(PAGES - 100)?);
    for (process, heap, seed) in [(&mut a, in_a, 1), (&mut c, in_c, 1)] {
        process.check(heap.pages(0, 100), seed)?;
    }
    Ok(())
}

/// Two target processes with the same sixteen pages, merged, and KSM idle.
fn sixteen_merged(seed: u64) -> Checked<[(TargetProcess, Part); 2]> {
    let merging = Merging::start()?;
    let targets = [offering(seed, 16)?, offering(seed, 16)?].map(|(process, heap)| (process, heap.pages(0, 16)));
    until_merged(&targets.each_ref().map(|(process, part)| (process.pid(), *part)))?;
    drop(merging);
    Ok(targets)
}

/// A parent and its fork share all their pages, and KSM is off.
fn pages_shared_by_fork_are_not_taken_for_merged_ones(_: &Host) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let (mut target, _) = offering(11, 64)?;
    let fork = target.fork()?;
    let pids = [target.pid(), fork.pid()].map(|pid| pid.to_string());
    let report = json(&["llc", "shared", "--json", "--pid", &pids[0], "--pid", &pids[1]])?;
    assert_eq!((&report["merged_frames"], &report["undecided_pages"]), (&0.into(), &0.into()), "{report}");
    target.end_fork(fork)?;
    Ok(())
}

/// Number of pages of both that are still merged.
fn still([(a, in_a), (b, in_b)]: &[(TargetProcess, Part); 2]) -> Checked<(usize, usize)> {
    Ok((merged(a.pid(), *in_a)?, merged(b.pid(), *in_b)?))
}

/// Looked at by masu in each way, and read through `/proc/PID/mem`.
fn looking_parts_nothing(_: &Host) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let targets = sixteen_merged(4)?;
    let (a, in_a) = &targets[0];
    for arguments in [&["--json"][..], &[], &["--domain", "uid"], &["--pid", &a.pid().to_string()]] {
        let text = said(&[&["llc", "shared"], arguments].concat())?;
        assert_eq!(text.code(), 0, "{}", text.err);
    }
    let mut watching = start(&["llc", "shared", "--json", "--watch", "20ms"])?;
    let mut lines = BufReader::new(watching.0.stdout.take().ok_or("no output")?).lines();
    assert_eq!(lines.by_ref().take(3).collect::<std::io::Result<Vec<String>>>()?.len(), 3, "looks");
    watching.signal(Signal::INT)?;
    watching.said()?;
    assert_eq!(still(&targets)?, (16, 16), "after masu's looks");
    let mut content = vec![0; 16 * 4096];
    linux::memory_file::MemoryFile::open(a.pid())?.read(in_a.range().start(), &mut content)?;
    assert_eq!(still(&targets)?, (16, 16), "after /proc/PID/mem");
    Ok(())
}

/// Control of the test above: `process_vm_readv` pins the pages it reads, and so un-merges them. On Debian's 6.12, which
/// sets KPF_KSM for every anonymous page, the flag alone showed all sixteen as merged.
fn process_vm_readv_parts_what_it_reads(_: &Host) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let targets = sixteen_merged(6)?;
    let [(a, in_a), (b, _)] = &targets;
    let mut content = vec![0; 16 * 4096];
    linux::memory_file::MemoryFile::open(a.pid())?.read(in_a.range().start(), &mut content)?;
    let places: Vec<Address> = in_a.pages().map(Address).collect();
    assert_eq!(process_vm::read(a.pid(), &places, 4096, <[u8]>::to_vec), Ok(content));
    assert_eq!(still(&targets)?.0, 0, "process_vm_readv pins what it reads");
    assert_eq!(is_exact(&[a.pid(), b.pid()], &[])?["merged_frames"], 0);
    Ok(())
}

fn index_of(observer: &Observer, pids: &[Pid]) -> Frames {
    let of = |index: &Index| -> Frames {
        let frames = index.frames();
        frames.map(|frame| (frame.number(), frame.sharers().map(|of| (of.pid.0, of.address.0)).collect())).collect()
    };
    let mut all = of(observer.index());
    all.retain(|_, sharers| sharers.iter().any(|(pid, _)| pids.iter().any(|ours| ours.0 == *pid)));
    all
}

/// Any change between two scans, with KSM and without it.
fn look_after_look_finds_what_a_first_look_and_the_tables_find(_: &Host) -> Outcome {
    const PAGES: u64 = 96;
    const ROUNDS: u64 = 40;
    let _quiet = no_automatic_huge_pages()?;
    let files = Rooted::host();
    let mut merging = Some(Merging::start()?);
    let mut targets = Vec::new();
    for _ in 0..3 {
        targets.push(offering(5, PAGES)?);
    }
    let whose: Vec<_> = targets.iter().map(|(process, heap)| (process.pid(), heap.pages(0, PAGES))).collect();
    until_merged(&whose)?;
    let new = || Observer::new(By::Uid, BTreeSet::new());
    let mut observer = new()?;
    let mut forks = Vec::new();
    let mut random = Random::seeded(0x5eed);
    let mut unchanged = 0;
    for round in 0..ROUNDS {
        let which = random.below(3);
        let first = random.number() % (PAGES - 8);
        let (process, heap) = &mut targets[which];
        let part = heap.pages(first, first + 8);
        match random.below(9) {
            0 => process.write(part, 6 + round)?,
            1 => process.write(part, 5)?, // to be merged again
            2 => process.advise(part, libc::MADV_DONTNEED)?,
            3 if forks.len() < 4 => forks.push((which, process.fork()?, *heap)),
            4 => {
                if let Some((parent, fork, _)) = forks.pop() {
                    targets[parent].0.end_fork(fork)?;
                }
            }
            5 => {
                if let Some((parent, fork, heap)) = forks.last().copied() {
                    targets[parent].0.write_in_fork(fork, heap.pages(first, first + 8), 5)?;
                }
            }
            6 => {
                // A fresh program under the same number, with the same pages.
                if !forks.iter().any(|(parent, _, _)| *parent == which) {
                    process.exec()?;
                    *heap = offer(process, 5, PAGES)?;
                }
            }
            7 => merging = if merging.is_some() { None } else { Some(Merging::start()?) },
            _ => unchanged += 1,
        }
        if merging.is_some() {
            std::thread::sleep(Duration::from_millis(40));
        }
        // KSM must not change anything during three scans.
        let running = merging.take().is_some();
        std::thread::sleep(Duration::from_millis(10));
        let pids: Vec<Pid> = targets
            .iter()
            .map(|(process, _)| process.pid())
            .chain(forks.iter().map(|(_, fork, _)| fork.pid()))
            .collect();
        // This process and its proxies share memory by fork.
        let others: BTreeSet<Pid> = processes(&files)?.into_iter().filter(|pid| !pids.contains(pid)).collect();
        observer.leave_out(others.clone());
        observer.scan(&files)?;
        let mut first_scan = new()?;
        first_scan.leave_out(others);
        first_scan.scan(&files)?;
        let (step_by_step, at_once) = (index_of(&observer, &pids), index_of(&first_scan, &pids));
        assert_eq!(step_by_step, at_once, "round {round}");
        let expected = by_brute_force(&pids)?;
        assert_eq!(at_once, expected, "round {round}");
        // A scan without changes asks for nothing known.
        let idle = observer.scan(&files)?;
        let merged: usize = expected.len();
        if !idle.anew {
            assert_eq!((idle.changed.added, idle.changed.removed), (0, 0), "round {round}");
            // Except for pages shared by fork and not merged by KSM.
            let asked = idle.frames_asked;
            assert!(
                !forks.is_empty() || merged == 0 || asked < 16,
                "round {round}: {asked} frames asked beside {merged}"
            );
        }
        if running {
            merging = Some(Merging::start()?);
        }
    }
    assert!(unchanged > 0 && observer.index().mapped().0 > 0);
    Ok(())
}

/// Two cgroups and two users: the trust relations are as requested.
fn frames_shared_across_groups_and_users_are_counted_and_warned_of(_: &Host) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let (one, other) = (Group::make("llc-a")?, Group::make("llc-b")?);
    let merging = Merging::start()?;
    let (a, in_a) = offering(7, 20)?;
    let (b, in_b) = offering(7, 20)?;
    let mut command = Command::new("/proc/self/exe");
    command.uid(NOBODY_UID);
    let mut c = TargetProcess::start_by(command)?;
    let in_c = offer(&mut c, 7, 12)?;
    one.take_in(a.pid())?;
    one.take_in(b.pid())?;
    other.take_in(c.pid())?;
    until_merged(&[(a.pid(), in_a.pages(0, 20)), (b.pid(), in_b.pages(0, 20)), (c.pid(), in_c.pages(0, 12))])?;
    drop(merging);
    let pids = [a.pid(), b.pid(), c.pid()];
    for by in ["cgroup", "uid"] {
        let report = is_exact(&pids, &["--domain", by])?;
        assert_eq!((&report["merged_frames"], &report["cross_domain_frames"]), (&20.into(), &12.into()), "{by}");
        let sharer = |frame: &Value, pid: Pid| {
            let sharers = frame["sharers"].as_array().into_iter().flatten();
            sharers.into_iter().find(|sharer| sharer["pid"] == pid.0).cloned()
        };
        let shared = report["frames"].as_array().into_iter().flatten().find(|frame| sharer(frame, c.pid()).is_some());
        let shared = shared.ok_or("no frame of the third")?;
        let (of_a, of_c) = (sharer(shared, a.pid()).ok_or("not a's")?, sharer(shared, c.pid()).ok_or("not c's")?);
        assert_eq!((&of_a["group"], &of_c["group"]), (&one.path().into(), &other.path().into()));
        let domains =
            if by == "uid" { ["uid 0".to_owned(), "uid 65534".to_owned()] } else { [one.path(), other.path()] };
        assert_eq!([&of_a["domain"], &of_c["domain"]], domains.each_ref().map(|domain| domain.as_str()));
        let text = said(&["llc", "shared", "--domain", by])?;
        assert!(text.out.contains("warning: 12 frames are shared across"), "{}", text.out);
        assert!(text.out.contains("MADV_UNMERGEABLE") && text.out.contains("run"), "{}", text.out);
    }
    // For one cgroup alone: its frames with all their users.
    let report = json(&["llc", "shared", "--json", "--cgroup", &other.name()])?;
    assert_eq!((as_said(&report)?.len(), &report["cross_domain_frames"]), (12, &12.into()));
    drop(c);
    let report = is_exact(&pids[..2], &[])?;
    assert_eq!((&report["merged_frames"], &report["cross_domain_frames"]), (&20.into(), &0.into()));
    assert!(!said(&["llc", "shared"])?.out.contains("warning"));
    drop((a, b));
    Ok(())
}

/// Watching goes on while processes become others, fork and end, and ends with the one that it was asked for.
fn watching_goes_through_forks_and_execs_and_ends_with_the_process(_: &Host) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let merging = Merging::start()?;
    let (mut a, in_a) = offering(8, 64)?;
    let (mut b, in_b) = offering(8, 64)?;
    until_merged(&[(a.pid(), in_a.pages(0, 64)), (b.pid(), in_b.pages(0, 64))])?;
    let mut watching = start(&["llc", "shared", "--pid", &a.pid().to_string(), "--watch", "1ms", "--json"])?;
    let (sender, lines) = mpsc::channel();
    let stdout = watching.0.stdout.take().ok_or("no output")?;
    let reader =
        thread::spawn(move || BufReader::new(stdout).lines().try_for_each(|line| sender.send(line).map_err(drop)));
    let mut watched = Vec::new();
    let (begin, limit) = (Instant::now(), Duration::from_secs(60));
    // An emulated processor may need seconds for a look.
    while begin.elapsed() < Duration::from_secs(2) || (watched.len() < 2 && begin.elapsed() < limit) {
        let fork = a.fork()?;
        b.exec()?;
        let (c, _) = offering(8, 64)?;
        a.write_in_fork(fork, in_a.pages(0, 32), 9)?;
        a.end_fork(fork)?;
        drop(c);
        watched.extend(lines.try_iter());
    }
    a.kill();
    let ended = watching.said()?;
    assert_eq!((ended.code(), ended.err.as_str()), (0, ""));
    reader.join().map_err(|_| "the reader panicked")?.map_err(|()| "nobody listens")?;
    watched.extend(lines.try_iter());
    let watched: Vec<String> = watched.into_iter().collect::<Result<_, _>>()?;
    let looks: Vec<Value> = watched.iter().map(|line| serde_json::from_str(line)).collect::<Result<_, _>>()?;
    assert!(looks.len() > 1, "{} looks", looks.len());
    for look in &looks {
        let frames = as_said(look)?;
        assert!(frames.values().all(|sharers| sharers.iter().any(|(pid, _)| *pid == a.pid().0)));
        assert_eq!(look["bytes_saved"], saved(&frames));
    }
    drop((merging, b));
    Ok(())
}

/// Each in words of its own.
fn what_cannot_be_looked_at_and_what_is_not_there_is_said(_: &Host) -> Outcome {
    let refused = |arguments: &[&str], line: &str| -> Outcome {
        let text = said(&[&["llc", "shared"], arguments].concat())?;
        assert_eq!((text.code(), text.out.as_str()), (2, ""), "{arguments:?}");
        assert!(text.err.contains(line) && text.err.lines().count() == 2, "{arguments:?}: {}", text.err);
        Ok(())
    };
    let mut process = TargetProcess::start()?;
    let pid = process.pid().to_string();
    process.kill();
    refused(&["--pid", &pid], "no such process (ESRCH)")?;
    refused(&["--cgroup", "masu-live-of-nobody"], "cannot find control group masu-live-of-nobody")?;
    let unprivileged = Running::start(masu()?.args(["llc", "shared"]).uid(NOBODY_UID))?.said()?;
    assert_eq!(unprivileged.code(), 2);
    assert!(
        unprivileged.err.contains("(EPERM)\n") && unprivileged.err.contains("CAP_SYS_ADMIN"),
        "{}",
        unprivileged.err
    );

    let process = TargetProcess::start()?;
    let pid = process.pid().to_string();
    let text = said(&["llc", "shared", "--pid", &pid])?;
    assert!(text.code() == 0 && text.out.contains("KSM is off (/sys/kernel/mm/ksm/run is 0)"), "{}", text.out);
    let merging = Merging::start()?;
    let text = said(&["llc", "shared", "--pid", &pid])?;
    assert!(text.code() == 0 && text.out.starts_with("no pages of these processes are merged"), "{}", text.out);
    drop(merging);
    Ok(())
}

/// Nothing offered, shared memory, a slow KSM, and no equal pages.
fn each_cause_of_no_merge_is_told_apart(_: &Host) -> Outcome {
    let merging = Merging::start()?;
    let slow = [("pages_to_scan", "1"), ("sleep_millisecs", "1000")];
    let reasons = |pid: Pid| -> Checked<(Vec<String>, Value)> {
        let report = json(&["llc", "shared", "--json", "--pid", &pid.to_string()])?;
        let nothing = report["nothing_merged"].clone();
        Ok((serde_json::from_value(nothing["reasons"].clone())?, nothing))
    };
    let mut silent = TargetProcess::start()?;
    let (names, before) = reasons(silent.pid())?;
    assert_eq!(names, ["nothing_offered"]);
    let file = silent.map(Backing::SharedAnonymous, 4)?;
    silent.write(file.pages(0, 2048), 7)?;
    silent.advise(file.pages(0, 2048), libc::MADV_MERGEABLE)?; // without effect
    let (names, nothing) = reasons(silent.pid())?;
    assert_eq!(names, ["nothing_offered", "shared"]);
    let shared = |nothing: &Value| nothing["offers"]["shared_bytes"].as_u64().ok_or("no shared_bytes");
    // The program's own file may lie in tmpfs, and it uses more of it meanwhile.
    assert!(((8 << 20)..(12 << 20)).contains(&(shared(&nothing)? - shared(&before)?)), "{before} {nothing}");
    let text = said(&["llc", "shared", "--pid", &silent.pid().to_string()])?.out;
    assert!(text.contains("none of them has offered any") && text.contains(" MiB is shared memory"), "{text}");

    let pace = slow.map(|(name, value)| Setting::set(format!("{KSM}/{name}"), value));
    let pace = pace.into_iter().collect::<Result<Vec<_>, _>>()?;
    let (offering, _) = offering(11, 4096)?;
    let (names, nothing) = reasons(offering.pid())?;
    assert_eq!(names, ["not_visited"], "{nothing}");
    let pass_ms = nothing["pass_ms"].as_u64().ok_or("no pass_ms")?;
    assert!(pass_ms >= 4096 * 1000, "4,096 pages, one a second: {pass_ms} ms");
    let text = said(&["llc", "shared", "--pid", &offering.pid().to_string()])?.out;
    assert!(text.contains("with pages_to_scan 1 and sleep_millisecs 1000") && text.contains(" min"), "{text}");

    drop(pace); // full speed again
    until("all visited", || Ok(reasons(offering.pid())?.0 == ["nothing_equal"]))?;
    drop(merging);
    assert_eq!(reasons(offering.pid())?.0, ["off"]);
    Ok(())
}
