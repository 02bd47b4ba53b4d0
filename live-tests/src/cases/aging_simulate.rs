//! The simulator of the kernel's page lists beside the kernel: the same traces, run for real in a cgroup with a limit.
//!
//! Residency is read with mincore(2) before each access. The fate of mapped pages is also read from the count of major
//! faults; neither depends on the simulator. Files are holes on a disk, so that no access waits for one; the kernel
//! keeps their pages as any others. Their read-ahead is off, since the simulator has none. Advice to the kernel
//! (MADV_RANDOM) would do it too, but then the uses of such mappings count for nothing when pages are aged (since Linux
//! 6.3).

use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::Command;

use rustix::fs::{Mode, OFlags};
use sim::reclaim::trace::Trace;
use sim::reclaim::{Aging, Machine, Outcome as Simulated, replay};
use units::{Bytes, Pages};

use super::Outcome;
use super::programs::Running;
use crate::group::Group;
use crate::host::{Host, LiveTest, tests};
use crate::setting::Setting;

/// Tests of this file, and their requirements.
pub(crate) const TESTS: &[LiveTest] = tests! {
    aging_simulate requires [Root, MemoryGroups, Shell];
    what_is_idle_beside_a_stream_goes_live_and_simulated;
    working_sets_find_as_much_of_themselves_as_simulated;
    what_is_mapped_is_found_as_often_as_simulated;
};

/// The limit of the groups.
const LIMIT: Bytes = Bytes::mib(64);
/// Bound on the difference between simulated and real misses, as a part of the accesses. The largest difference in ten
/// runs on Linux 6.18 was 0.9 %, and mostly it is below 0.2 %. The remaining causes: the cgroup's other memory goes up
/// and down, and other agents on the host, such as DAMON, isolate pages for a moment, which go back to the head of
/// their list then.
const BOUND: f64 = 0.02;
/// The same for a loop without hits: a page that was isolated when its turn came is hit once, becomes active, and is
/// hit from then on in each round. 3.4 % was seen in one run of ten rounds, mostly it is below 0.7 %; and here there
/// are three rounds.
const BOUND_OF_LOOPS: f64 = 0.05;

type Failed = libtest_mimic::Failed;

/// Hits and misses by phase and file, and the other output.
type Seen = BTreeMap<(String, String), (u64, u64)>;

/// Age of the cgroup's sums that the kernel decides by. The kernel adds them up every two seconds, at unknown times,
/// and when `memory.stat` is read.
#[derive(Clone, Copy)]
enum Sums {
    /// Read every few pages.
    New,
    /// Left to the kernel: for a run of less than two seconds they are mostly those of an empty cgroup.
    AsTheyAre,
}

/// A folder for the files.
struct Place(PathBuf);

impl Place {
    /// Makes the file on a disk: files in tmpfs are not evicted without swap.
    fn make(name: &str) -> Result<Place, Failed> {
        const TMPFS_MAGIC: u32 = 0x0102_1994;
        for folder in [std::env::temp_dir(), PathBuf::from("/var/tmp")] {
            if rustix::fs::statfs(&folder)?.f_type != rustix::fs::FsWord::from(TMPFS_MAGIC) {
                let own = folder.join(format!("masu-live-{name}-{}", std::process::id()));
                std::fs::create_dir(&own)?;
                return Ok(Place(own));
            }
        }
        Err("neither the folder for temporary files nor /var/tmp is on a disk".into())
    }

    /// The files of the trace, empty, opened without read-ahead.
    fn files(&self, trace: &Trace) -> Result<Vec<OwnedFd>, Failed> {
        let device = std::fs::metadata(&self.0)?.dev();
        let setting = format!("/sys/class/bdi/{}:{}/read_ahead_kb", libc::major(device), libc::minor(device));
        // A file takes it over as it is opened, and it is turned back at once.
        let _setting = Setting::set(setting, "0")?;
        let open = |file: &sim::reclaim::trace::File| -> Result<OwnedFd, Failed> {
            // Without CLOEXEC: the child has it too.
            let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
            let fd = rustix::fs::open(self.0.join(&file.name), flags, Mode::RUSR | Mode::WUSR)?;
            rustix::fs::ftruncate(&fd, file.pages.0 * 4096)?;
            Ok(fd)
        };
        trace.files().iter().map(open).collect()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            eprintln!("cannot remove {}: {error}", self.0.display());
        }
    }
}

/// The trace, done for real.
fn live_run(trace: &Trace, sums: Sums) -> Result<Seen, Failed> {
    let name = "simulate";
    let place = Place::make(name)?;
    let text = place.0.join("trace");
    std::fs::write(&text, trace.to_string())?;
    let group = Group::make(name)?;
    group.limit(LIMIT.0)?;
    let files = place.files(trace)?;
    let procs = group.procs();
    let mut command = Command::new(std::env::current_exe()?);
    command.args([crate::program::FLAG, "accesses"]).args([&text, &procs, &procs.with_file_name("memory.stat")]);
    let pages_between_sums = match sums {
        Sums::New => "32",
        Sums::AsTheyAre => "0",
    };
    command.arg(pages_between_sums).args(files.iter().map(|file| file.as_raw_fd().to_string()));
    let said = Running::start(&mut command)?.said()?;
    if said.code() != 0 {
        return Err(format!("{said:?}").into());
    }
    let line = |line: &str| {
        let words: Vec<&str> = line.split(' ').collect();
        let [phase, file, hits, misses] = words[..] else { return None };
        Some(((phase.to_owned(), file.to_owned()), (hits.parse().ok()?, misses.parse().ok()?)))
    };
    Ok(said.out.lines().filter_map(line).collect())
}

/// Memory of the cgroup for pages of files: its limit, without its other charges.
fn room(seen: &Seen) -> Result<Pages, Failed> {
    let of_group = |what: &str| seen.get(&("group".to_owned(), what.to_owned())).map(|(number, _)| *number);
    let cache = of_group("cache").or(of_group("file")).ok_or("the group does not say how much page cache it has")?;
    let usage = of_group("usage").ok_or("the group does not say how much it uses")?;
    Ok(Bytes(LIMIT.0.saturating_sub(usage.saturating_sub(cache))).pages())
}

/// Live and simulated, side by side: both are printed, with the error, and held to the bounds, as parts of the accesses.
fn compare(name: &str, text: &str, sums: Sums, bounds: &[(&str, &str, f64)]) -> Outcome {
    if linux::lru_gen::is_on(&linux::Rooted::host())? {
        println!("{name}: left out, since this kernel ages pages by generations, which are not simulated");
        return Ok(());
    }
    let trace = Trace::parse(text)?;
    let seen = live_run(&trace, sums)?;
    let sums_us = match sums {
        Sums::New => 0,
        Sums::AsTheyAre => 2_000_000,
    };
    let machine = Machine { memory: room(&seen)?, swap: Pages(0), swappiness: 60, miss_us: 0, sums_us };
    let simulated = replay(&trace, &machine, &Aging::KERNEL);
    println!("{name}, {} pages for files:", machine.memory.0);
    show(&seen, &simulated);
    for ((phase, what), (faults, missed)) in &seen {
        if what == "major" {
            // The program's own pages, which others may have evicted, are in no trace.
            assert!(faults.abs_diff(*missed) <= 16, "{phase}: {faults} major faults, mincore says {missed}");
        }
    }
    for (phase, file, bound) in bounds {
        let key = ((*phase).to_owned(), (*file).to_owned());
        let (hits, misses) = seen.get(&key).copied().ok_or(format!("nothing of {file} in {phase}"))?;
        let error = off(hits, misses, simulated.of(phase, file).misses());
        assert!(error <= *bound, "{name}: {file} in {phase} is off by {error}: {seen:?}, {simulated:?}");
    }
    Ok(())
}

/// Error of a number of misses, as a part of the accesses.
fn off(hits: u64, misses: u64, simulated: u64) -> f64 {
    misses.abs_diff(simulated) as f64 / (hits + misses).max(1) as f64
}

fn show(seen: &Seen, simulated: &Simulated) {
    for row in &simulated.rows {
        let Some((hits, misses)) = seen.get(&(row.phase.clone(), row.file.clone())) else { continue };
        let (of, ours) = (hits + misses, row.counts.misses());
        if of > 0 {
            let error = 100.0 * off(*hits, *misses, ours);
            let what = format!("{} in {}", row.file, row.phase);
            println!("  {what:<20} missed of {of:>6}: live {misses:>6}, simulated {ours:>6}, off by {error:.2} %");
        }
    }
}

/// 40 % of the memory is mapped and idle, and four times the memory is read three times.
const IDLE: &str = "\
file service rodata 6400
file stream cache 65536
touch service 0 6400
phase stream
repeat 3
  read stream 0 65536
end
phase wake-up
touch service 0 6400
";

/// Two thirds of memory are used again and again; then twice the memory streams by, once.
const FITS: &str = "\
file work cache 10000
file stream cache 32768
repeat 3
  read work 0 10000
end
phase stream
read stream 0 32768
phase again
repeat 3
  read work 0 10000
end
";

/// The same with a working set that just fits.
const JUST_FITS: &str = "\
file work cache 15000
file stream cache 32768
repeat 3
  read work 0 15000
end
phase stream
read stream 0 32768
phase again
repeat 3
  read work 0 15000
end
";

/// A new working set replaces an older one, which is not used any more.
const SHIFT: &str = "\
file old cache 12000
file new cache 9000
repeat 2
  read old 0 12000
end
phase shift
repeat 10
  read new 0 9000
end
phase back
read old 0 12000
";

/// A loop larger than memory, by reads.
const LOOP: &str = "\
file loop cache 20000
repeat 3
  read loop 0 20000
end
";

/// The same by a mapping, of code.
const MAPPED_LOOP: &str = "\
file loop code 20000
repeat 3
  touch loop 0 20000
end
";

/// Code and other mapped files, used now and then while a stream goes by.
fn beside_a_stream() -> String {
    let mut text = "file code code 3000\nfile data rodata 3000\nfile stream cache 180000\n".to_owned();
    for round in 0..12 {
        text += &format!("touch code 0 3000\ntouch data 0 3000\nread stream {} 15000\n", round * 15_000);
    }
    text
}

/// Pages chosen at random, some far more often than others, by reads and by a mapping.
fn at_random() -> String {
    let mut text = "file read cache 40000\nfile mapped rodata 40000\n".to_owned();
    let mut state = 1_u64;
    let mut chance = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as f64 / (1_u64 << 31) as f64
    };
    for _ in 0..150_000 {
        let (page, which) = ((chance().powi(4) * 40_000.0).min(39_999.0), chance());
        text += &format!("{} {page:.0} 1\n", if which < 0.5 { "read read" } else { "touch mapped" });
    }
    text
}

/// An idle mapping beside a stream: all of it is evicted, and the simulator agrees, at every age of the kernel's sums.
fn what_is_idle_beside_a_stream_goes_live_and_simulated(_: &Host) -> Outcome {
    let bounds = [("stream", "stream", BOUND), ("wake-up", "service", BOUND)];
    compare("idle", IDLE, Sums::New, &bounds)?;
    compare("idle, as it is", IDLE, Sums::AsTheyAre, &bounds)
}

/// Working sets that fit, that just fit, that change, and that are too large, by reads.
fn working_sets_find_as_much_of_themselves_as_simulated(_: &Host) -> Outcome {
    compare("fits", FITS, Sums::New, &[("stream", "stream", BOUND), ("again", "work", BOUND)])?;
    compare("just fits", JUST_FITS, Sums::New, &[("stream", "stream", BOUND), ("again", "work", BOUND)])?;
    compare("shift", SHIFT, Sums::New, &[("shift", "new", BOUND), ("back", "old", BOUND)])?;
    compare("loop", LOOP, Sums::New, &[("start", "loop", BOUND_OF_LOOPS)])?;
    // Not held to: it depends on whether the kernel adds up in the middle of it, as it does every two seconds.
    compare("shift, as it is", SHIFT, Sums::AsTheyAre, &[])
}

/// Code and other mapped files, whose uses the kernel sees late.
fn what_is_mapped_is_found_as_often_as_simulated(_: &Host) -> Outcome {
    compare("mapped loop", MAPPED_LOOP, Sums::New, &[("start", "loop", BOUND_OF_LOOPS)])?;
    let beside = [("start", "code", BOUND), ("start", "data", BOUND), ("start", "stream", BOUND)];
    compare("beside", &beside_a_stream(), Sums::New, &beside)?;
    compare("random", &at_random(), Sums::New, &[("start", "read", BOUND), ("start", "mapped", BOUND)])
}
