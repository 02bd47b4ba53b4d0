//! masu is killed (SIGKILL) at random moments: the next start of any command restores everything, and no program is
//! harmed.
//!
//! `LIVE_KILLS` sets the number of kills in each test, `LIVE_SEED` their moments: the seed is printed.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use contract::track::SOCKET;
use contract::track::terms::{Terms, USUAL};
use contract::track::wire::{Answer, MOST_BYTES, Request, SHORT_BYTES};
use linux::message_socket::Connection;
use linux::thp;
use rustix::process::Signal;
use units::cast::fits;
use units::spread::Random;

use super::command::{masu, said};
use super::llc_run::{Place, by_pid, config, strings};
use super::programs::{Running, TIME_LIMIT};
use super::run::Result;
use super::track::Tracker;
use super::{Outcome, no_automatic_huge_pages};
use crate::group::Group;
use crate::host::{Host, LiveTest, tests};
use crate::swap::Swap;
use crate::target_process::{Backing, Mapping, TargetProcess};

/// Tests of this file, and their requirements.
pub(crate) const TESTS: &[LiveTest] = tests! {
    kill requires [Root, MasuCommand];
    partitions_of_a_killed_run_are_removed_by_the_next_start [Fuse, ResctrlEmulator];
    settings_of_a_killed_aging_are_restored_and_nothing_stays_pinned [PageFrames, MemoryGroups, Swap];
    a_program_of_a_killed_attach_is_unharmed [PageTableWalk, RemoteCollapse, HugePageModes];
    damon_of_a_killed_attach_is_taken_down [DamonVaddr, RemoteCollapse, HugePageModes];
    a_program_of_a_killed_set_goes_on [RemoteAdvice, RemoteCollapse, HugePageModes];
    a_client_of_a_killed_tracker_goes_on_and_is_served_by_the_next [PageTableWalk, RemoteCollapse, Shell];
};

/// Moments that differ from run to run, and can be had again.
struct Moments {
    seed: u64,
    random: Random,
    left: u64,
}

impl Moments {
    fn new(test: &str) -> Result<Moments> {
        let variable = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>()).transpose();
        let clock = SystemTime::now().duration_since(UNIX_EPOCH)?.subsec_nanos();
        let seed = variable("LIVE_SEED")?.unwrap_or(u64::from(clock));
        let left = variable("LIVE_KILLS")?.unwrap_or(6);
        println!("{test}: {left} kills, LIVE_SEED={seed}");
        Ok(Moments { seed, random: Random::seeded(seed), left })
    }

    /// Up to `most`.
    fn next_up_to(&mut self, most: Duration) -> Duration {
        Duration::from_nanos(self.random.number() % fits::<_, u64>(most.as_nanos()))
    }

    /// Starts the command again and again, and kills it within `most`. After each kill and a new start of masu, the
    /// state read by `restored` must be as before. Returns the number of kills that left a change.
    fn kill<T: PartialEq + std::fmt::Debug>(
        &mut self,
        most: Duration,
        mut start: impl FnMut() -> Result<Running>,
        mut look: impl FnMut() -> Result<T>,
    ) -> Result<u64> {
        let (before, mut changed) = (look()?, 0);
        for kill in 0..self.left {
            let running = start()?;
            let moment = self.next_up_to(most);
            std::thread::sleep(moment);
            running.signal(Signal::KILL)?;
            running.said()?;
            changed += u64::from(look()? != before);
            // The one that restores is killed, too, and the next one goes on.
            let mut restoring = Running::start(masu()?.args(NOBODY))?;
            std::thread::sleep(self.next_up_to(Duration::from_millis(25)));
            restoring.0.kill()?;
            restoring.said()?;
            let next = said(&NOBODY)?;
            let at = format!("LIVE_SEED={}, kill {kill} after {moment:?}: {}", self.seed, next.err);
            assert_eq!(look()?, before, "{at}");
            assert_eq!(journals()?, [] as [PathBuf; 0], "{at}");
        }
        println!("{} kills, {changed} left something changed, 0 not restored", self.left);
        Ok(changed)
    }
}

/// A command that restores, and then finds nothing to do.
const NOBODY: [&str; 2] = ["stat", "2147483647"];

/// All journals, wherever below its runtime directory masu keeps them.
fn journals() -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut folders = vec![Path::new(SOCKET).parent().ok_or("a socket without a folder")?.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).into_iter().flatten() {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "journal") {
                found.push(path);
            }
        }
    }
    Ok(found)
}

fn spawn(arguments: &[&str]) -> Result<Running> {
    Ok(Running::start(masu()?.args(arguments))?)
}

/// Partitions of the cache, on the emulator.
fn partitions_of_a_killed_run_are_removed_by_the_next_start(_: &Host) -> Outcome {
    let (one, two) = (TargetProcess::start()?, TargetProcess::start()?);
    let place = Place::make(&[])?;
    let root = place.emulator.root();
    fs::create_dir(root.join("tenant"))?;
    fs::write(root.join("tenant/schemata"), "L3:0=ff\n")?;
    fs::write(root.join("tenant/tasks"), format!("{}\n", two.pid()))?;
    let arguments = place.with(&config(&[("one", by_pid(&one)), ("two", by_pid(&two))]))?;
    let words = [&["llc", "run"][..], &strings(&arguments)].concat();
    let look = || place.state();
    Moments::new("llc run")?.kill(Duration::from_millis(400), || spawn(&words), look)?;
    Ok(())
}

/// Settings changed by a cgroup's protection levels, and locked pages.
fn settings_of_a_killed_aging_are_restored_and_nothing_stays_pinned(_: &Host) -> Outcome {
    let _swap = Swap::on(64 << 20)?; // without swap no protection level changes a weight
    let group = Group::make("kill")?;
    group.limit(256 << 20)?;
    let mut process = TargetProcess::start()?;
    group.take_in(process.pid())?;
    let shared = process.map(Backing::SharedAnonymous, 16)?;
    process.write(shared.all(), 7)?;
    let own = group.procs().with_file_name("memory.swappiness");
    let settings = [own, "/proc/sys/vm/swappiness".into(), "/sys/fs/cgroup/memory/memory.swappiness".into()];
    let look = || -> Result<(BTreeMap<PathBuf, String>, bool)> {
        let read = |path: &PathBuf| fs::read_to_string(path).ok().map(|text| (path.clone(), text));
        let pinned = fs::read_to_string("/proc/meminfo")?;
        let locked = pinned.lines().find_map(|line| line.strip_prefix("Mlocked:")).ok_or("no Mlocked")?;
        let kib: u64 = locked.trim().trim_end_matches(" kB").parse()?;
        Ok((settings.iter().filter_map(read).collect(), kib > 24 << 10))
    };
    let name = group.name();
    let words = ["aging", "--mapped", "100", "--cgroup", &name];
    Moments::new("aging")?.kill(Duration::from_millis(600), || spawn(&words), look)?;
    process.check(shared.all(), 7)?;
    Ok(())
}

/// A target process with eight fully resident windows, four of them in use.
fn busy() -> Result<(TargetProcess, Mapping)> {
    let mut process = TargetProcess::start()?;
    let heap = process.map(Backing::Anonymous, 8)?;
    process.write(heap.all(), 7)?;
    process.spin(heap.pages(0, 4 * 512), 1, false)?;
    Ok((process, heap))
}

/// State of the host that must be unchanged: the setting of huge pages, and DAMON.
fn host() -> Result<(String, Option<String>)> {
    let enabled = fs::read_to_string(Path::new("/").join(thp::ENABLED))?;
    let kdamonds = Path::new("/sys/kernel/mm/damon/admin/kdamonds");
    let damon = fs::read_to_string(kdamonds.join("nr_kdamonds")).ok();
    Ok((enabled, damon.map(|count| if is_unmarked(kdamonds) { "0\n".to_owned() } else { count })))
}

/// True for a tree that does nothing and does not bear masu's mark. A masu that is killed between making the tree and
/// marking it leaves one, and its owner cannot be told: a known limit (docs/security.md).
fn is_unmarked(kdamonds: &Path) -> bool {
    let read = |file: &str| fs::read_to_string(kdamonds.join(file)).unwrap_or_default();
    let update_us: u64 = read("0/contexts/0/monitoring_attrs/intervals/update_us").trim().parse().unwrap_or(0);
    let is_marked = (1_000_001..1_000_000 + (1 << 22)).contains(&update_us);
    read("0/state").trim() == "off" && !is_marked
}

fn attach_is_killed(test: &str, options: &[&str]) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let (mut process, heap) = busy()?;
    let pid = process.pid().to_string();
    let words = [&["attach", &pid], options].concat();
    Moments::new(test)?.kill(Duration::from_millis(1500), || spawn(&words), host)?;
    process.rest()?;
    // Huge pages that were made stay, and are memory like any other.
    process.check(heap.all(), 7)?;
    Ok(())
}

/// Huge pages that were promoted are not taken back: they are valid memory.
fn a_program_of_a_killed_attach_is_unharmed(_: &Host) -> Outcome {
    attach_is_killed("attach --undo", &["--undo", "--for", "1s"])
}

/// DAMON is taken down by the next start.
fn damon_of_a_killed_attach_is_taken_down(_: &Host) -> Outcome {
    attach_is_killed("attach by DAMON", &["--backend", "damon-vaddr"])
}

/// At any point of the injected call when masu died, the program goes on.
fn a_program_of_a_killed_set_goes_on(_: &Host) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let (mut process, heap) = busy()?;
    let pid = process.pid().to_string();
    let mut off = false;
    let start = || {
        off = !off;
        spawn(&["set", &pid, if off { "huge=off" } else { "huge=on" }])
    };
    Moments::new("set")?.kill(Duration::from_millis(30), start, host)?;
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    assert!(status.contains("TracerPid:\t0\n") && !status.contains("State:\tT"), "{status}");
    process.rest()?;
    process.check(heap.all(), 7)?;
    Ok(())
}

/// A client hears the end of the connection, is not killed by a signal, and the next tracker serves it.
fn a_client_of_a_killed_tracker_goes_on_and_is_served_by_the_next(_: &Host) -> Outcome {
    let mut moments = Moments::new("track")?;
    let mut client = Running(Command::new("sleep").arg("600").spawn()?);
    let mut tracker = Tracker::start(&[])?;
    for kill in 0..moments.left {
        let connection = Connection::at(&tracker.socket())?;
        let mut message = [0; MOST_BYTES];
        let bytes = Request::Register(Terms { pid: client.pid(), ..USUAL }).write(&mut message);
        connection.send(&message[..bytes], &[])?;
        let mut answer = [0; SHORT_BYTES];
        let (bytes, _) = connection.receive(&mut answer, TIME_LIMIT)?.ok_or("it was cut off")?;
        assert_eq!(Answer::read(&answer[..bytes]), Ok(Answer::Welcome), "kill {kill}");
        std::thread::sleep(moments.next_up_to(Duration::from_millis(200)));
        tracker.end(Signal::KILL)?;
        assert!(connection.is_over_within(TIME_LIMIT), "kill {kill}");
        assert_eq!(client.0.try_wait()?, None, "LIVE_SEED={}: the client ended", moments.seed);
        assert_eq!(journals()?, [] as [PathBuf; 0]);
        tracker.begin()?;
    }
    tracker.end(Signal::INT)?;
    Ok(())
}
