//! `linux::resctrl` on the file system: on the emulator of several machines, and on the kernel's own where it is
//! mounted.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use linux::journal::{self, HostSettings, Restored, Undone};
use linux::resctrl::{CacheId, Group, Mode, Reading, Resctrl, Resource, Schemata, UNDO, Why};
use linux::{Pid, Rooted};
use units::{Bytes, WayMask, Ways};

use super::Outcome;
use super::programs::TIME_LIMIT;
use super::resctrl::Emulator;
use super::resctrl_host;
use super::run::own;
use crate::host::{Host, LiveTest, tests};
use crate::program;
use crate::program::partition::{TAKEN, make};

/// Tests of this file, and their requirements.
pub(crate) const TESTS: &[LiveTest] = tests! {
    resctrl_backend requires [Root];
    a_partition_is_made_and_undone_on_each_machine [Fuse, ResctrlEmulator];
    what_a_killed_process_leaves_is_undone_by_the_next_start [Fuse, ResctrlEmulator];
    after_an_unmount_there_is_nothing_left_to_undo [Fuse, ResctrlEmulator];
    a_group_is_collected_once_its_maker_is_dead_and_not_before [Fuse, ResctrlEmulator];
    running_out_of_classes_and_waiting_for_numbers_are_told_apart [Fuse, ResctrlEmulator];
    ways_that_come_together_are_told [Fuse, ResctrlEmulator];
    code_and_data_and_several_caches_are_divided_apart [Fuse, ResctrlEmulator];
    all_threads_of_a_process_are_moved_while_they_come_and_go [Fuse, ResctrlEmulator];
    a_process_from_somebody_elses_group_goes_back_there [Fuse, ResctrlEmulator];
    counters_show_numbers_and_words [Fuse, ResctrlEmulator];
    on_the_kernels_own_file_system_it_is_the_same [Resctrl];
};

type Result<T> = std::result::Result<T, libtest_mimic::Failed>;

const MACHINES: [&[&str]; 6] = [
    &["--machine", "broadwell-20"],
    &["--machine", "haswell-20"],
    &["--machine", "skylake-11"],
    &["--machine", "amd-16"],
    &["--machine", "two-sockets", "--caches", "0,3"],
    &["--machine", "cdp"],
];

/// Undoes changes of dead processes, as each start of masu does.
fn replay(host: &Rooted, directory: &Path) -> Result<Vec<Restored>> {
    Ok(journal::replay(host, directory, &[UNDO])?.restored)
}

/// One test's file system, and a private folder for the journal.
struct Place {
    root: String,
    journal: PathBuf,
    emulator: Option<Emulator>,
}

impl Place {
    fn emulated(machine: &[&str]) -> Result<Place> {
        let emulator = Emulator::start(machine)?;
        let root = emulator.root();
        Place::at(root.to_str().ok_or("a path that is no text")?, Some(emulator))
    }

    fn at(root: &str, emulator: Option<Emulator>) -> Result<Place> {
        let name = format!("masu-live-journal-{}-{}", std::process::id(), root.replace('/', "-"));
        Ok(Place { root: root.to_owned(), journal: std::env::temp_dir().join(name), emulator })
    }

    fn tell(&self, line: &str) -> Result<()> {
        Ok(self.emulator.as_ref().ok_or("only an emulator can be told")?.tell(line)?)
    }

    /// All groups, with their masks and modes.
    fn state(&self, host: &Rooted) -> Result<BTreeMap<String, (Schemata, Mode)>> {
        let resctrl = Resctrl::at(host, &self.root)?;
        let mut state = BTreeMap::new();
        for group in resctrl.all_groups()?.into_iter().filter(|group| !group.is_monitor()) {
            state.insert(group.to_string(), (resctrl.schemata(&group)?, resctrl.mode(&group)?));
        }
        Ok(state)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.journal);
    }
}

/// One of the programs of `program.rs` that has reported the end of its first step. Dropping kills it.
struct Helper {
    child: Child,
    _input: Option<ChildStdin>,
}

impl Helper {
    fn start(arguments: &[&str]) -> Result<Helper> {
        let mut command = Command::new(own()?);
        command.arg(program::FLAG).args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn()?;
        let (input, output) = (child.stdin.take(), child.stdout.take());
        let helper = Helper { child, _input: input };
        let mut line = String::new();
        BufReader::new(output.ok_or("no output")?).read_line(&mut line)?;
        if line == "done=1\n" { Ok(helper) } else { Err(format!("{arguments:?} says {line:?}").into()) }
    }

    fn pid(&self) -> Pid {
        Pid(self.child.id().cast_signed())
    }

    fn kill(&mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        let _ = self.kill();
    }
}

/// A partition is made, used and undone; nothing is left of it.
fn life_cycle(place: &Place, host: &Rooted) -> Outcome {
    let before = place.state(host)?;
    let resctrl = Resctrl::at(host, &place.root)?;
    let mut settings = HostSettings::open(host, &place.journal)?;
    let mut changes = resctrl.change(&mut settings, &mut |_| false)?;
    let web = make(&mut changes).map_err(|error| error.to_string())?;
    changes.set_mode(&web, Mode::Exclusive)?;
    let helper = Helper::start(&["comers", "1"])?;
    assert!(changes.move_process(helper.pid(), &web)?.settled);
    let overlap = Schemata::uniform(&resctrl.info()?.l3_resources(), &resctrl.domains()?, TAKEN);
    let refused = changes.write(&Group::DEFAULT, &overlap).err().ok_or("an overlap was taken")?;
    assert_eq!(refused.why, Why::Refused);
    drop(changes);
    let masks = resctrl.schemata(&web)?;
    for resource in resctrl.info()?.l3_resources() {
        assert!(masks.masks(&resource).is_some_and(|masks| masks.values().all(|mask| *mask == TAKEN)), "{masks:?}");
    }
    assert_eq!((resctrl.mode(&web)?, resctrl.group_of(helper.pid())?), (Mode::Exclusive, Group::own("web")?));
    assert!(resctrl.size(&web)?.values().flat_map(BTreeMap::values).all(|bytes| *bytes > Bytes(0)));
    settings.restore()?;
    assert_eq!(place.state(host)?, before);
    assert_eq!(resctrl.group_of(helper.pid())?, Group::DEFAULT);
    assert_eq!(replay(host, &place.journal)?, []);
    Ok(())
}

/// A process is killed in the middle, and the next start undoes its changes.
fn crash(place: &Place, host: &Rooted) -> Outcome {
    let before = place.state(host)?;
    let mut killed = Helper::start(&["partition", &place.root, place.journal.to_str().ok_or("no text")?])?;
    assert_ne!(place.state(host)?, before);
    assert_eq!(replay(host, &place.journal)?, [], "it lives");
    killed.kill()?;
    let restored = replay(host, &place.journal)?;
    assert!(restored.iter().all(|one| one.failure.is_none()), "{restored:?}");
    assert_eq!(restored.first().map(|one| one.undone), Some(Undone::Removed), "{restored:?}");
    assert_eq!(place.state(host)?, before);
    assert_eq!(replay(host, &place.journal)?, []);
    Ok(())
}

fn on_each(test: fn(&Place, &Rooted) -> Outcome, host: &Rooted) -> Outcome {
    for machine in MACHINES {
        test(&Place::emulated(machine)?, host)
            .map_err(|failed| format!("{machine:?}: {}", failed.message().unwrap_or("failed")))?;
    }
    Ok(())
}

/// Shrinking the default group, a group, its masks, exclusive, tasks; and all of it back.
fn a_partition_is_made_and_undone_on_each_machine(host: &Host) -> Outcome {
    on_each(life_cycle, host.files())
}

/// The journal after SIGKILL.
fn what_a_killed_process_leaves_is_undone_by_the_next_start(host: &Host) -> Outcome {
    on_each(crash, host.files())
}

/// The same on the kernel's own file system.
fn on_the_kernels_own_file_system_it_is_the_same(host: &Host) -> Outcome {
    let root = resctrl_host::mounted().ok_or("it is not mounted")?;
    let place = Place::at(root.to_str().ok_or("no text")?, None)?;
    life_cycle(&place, host.files())?;
    crash(&place, host.files())
}

/// The emulator ends, and with it all groups; the journal of the killed process is only removed.
fn after_an_unmount_there_is_nothing_left_to_undo(host: &Host) -> Outcome {
    let mut place = Place::emulated(&[])?;
    let journal = place.journal.to_str().ok_or("no text")?.to_owned();
    Helper::start(&["partition", &place.root, &journal])?.kill()?;
    drop(place.emulator.take());
    assert_eq!(replay(host.files(), &place.journal)?, []);
    let left: Vec<_> =
        fs::read_dir(place.journal.join("private"))?.filter_map(|entry| Some(entry.ok()?.file_name())).collect();
    assert_eq!(left, ["lock"]);
    let absent = Resctrl::at(host.files(), &place.root).err().map(|absent| absent.to_string());
    assert_eq!(absent, Some(format!("cannot use {}: no resctrl file system is mounted there", place.root)));
    Ok(())
}

/// A group's maker holds its directory open; after its death no process does.
fn a_group_is_collected_once_its_maker_is_dead_and_not_before(host: &Host) -> Outcome {
    let place = Place::emulated(&[])?;
    let elsewhere = place.journal.join("of-another");
    let mut maker = Helper::start(&["partition", &place.root, elsewhere.to_str().ok_or("no text")?])?;
    let resctrl = Resctrl::at(host.files(), &place.root)?;
    let mut settings = HostSettings::open(host.files(), &place.journal)?;
    let mut changes = resctrl.change(&mut settings, &mut |_| false)?;
    assert_eq!(changes.collect()?, []);
    let taken = changes.make(&Group::own("web")?, &mut |_| false).err().ok_or("the name was free")?;
    assert_eq!(taken.why, Why::NameTaken);
    maker.kill()?;
    assert_eq!(changes.collect()?, [Group::own("web")?]);
    assert_eq!(resctrl.groups()?, []);
    Ok(())
}

/// `ENOSPC` is final, `EBUSY` is not: when the lines of the removed group are gone, its number is free.
fn running_out_of_classes_and_waiting_for_numbers_are_told_apart(host: &Host) -> Outcome {
    let few = Place::emulated(&["--classes", "3"])?;
    let resctrl = Resctrl::at(host.files(), &few.root)?;
    assert_eq!(resctrl.info()?.classes_max, 3);
    let mut settings = HostSettings::open(host.files(), &few.journal)?;
    let mut changes = resctrl.change(&mut settings, &mut |_| false)?;
    let never = &mut |_| panic!("there is nothing to wait for");
    let _two = [changes.make(&Group::own("a")?, never)?, changes.make(&Group::own("b")?, never)?];
    let full = changes.make(&Group::own("c")?, never).err().ok_or("there was room")?;
    assert_eq!((full.why, full.status.as_deref()), (Why::Full, Some("Out of CLOSIDs")));

    let busy = Place::emulated(&["--rmids", "2", "--limbo", "600000"])?;
    let resctrl = Resctrl::at(host.files(), &busy.root)?;
    let mut settings = HostSettings::open(host.files(), &busy.journal)?;
    let mut changes = resctrl.change(&mut settings, &mut |_| false)?;
    let first = changes.make(&Group::own("a")?, &mut |_| false)?;
    changes.remove(first)?;
    let limbo = changes.make(&Group::own("b")?, &mut |_| false).err().ok_or("a number was free")?;
    assert_eq!(limbo.why, Why::Busy, "{limbo}");
    let mut waits = 0;
    let patient = changes.make(&Group::own("b")?, &mut |_| {
        waits += 1;
        waits < 3 || busy.tell("settle").is_ok()
    });
    assert!(patient.is_ok() && waits == 3, "{waits}");
    Ok(())
}

/// Skylake's two upper ways.
fn ways_that_come_together_are_told(host: &Host) -> Outcome {
    let place = Place::emulated(&["--machine", "skylake-11"])?;
    let resctrl = Resctrl::at(host.files(), &place.root)?;
    let mut settings = HostSettings::open(host.files(), &place.journal)?;
    let mut changes = resctrl.change(&mut settings, &mut |_| false)?;
    let web = changes.make(&Group::own("web")?, &mut |_| false)?;
    let asked = Schemata::of_masks(Resource::L3, [(CacheId(0), WayMask(0x400))]);
    let found = changes.write(&web, &asked)?;
    let differences = asked.differences(&found);
    assert_eq!(differences.iter().map(|one| one.found.as_deref()).collect::<Vec<_>>(), [Some("600")]);
    Ok(())
}

/// A write for one cache, or for data, leaves the others unchanged.
fn code_and_data_and_several_caches_are_divided_apart(host: &Host) -> Outcome {
    let place = Place::emulated(&["--machine", "two-sockets", "--caches", "0,3", "-o", "cdp"])?;
    let resctrl = Resctrl::at(host.files(), &place.root)?;
    assert_eq!(resctrl.domains()?, [CacheId(0), CacheId(3)]);
    assert_eq!(resctrl.info()?.l3_resources(), [Resource::L3Code, Resource::L3Data]);
    let mut settings = HostSettings::open(host.files(), &place.journal)?;
    let mut changes = resctrl.change(&mut settings, &mut |_| false)?;
    let before = resctrl.schemata(&Group::DEFAULT)?;
    let data = Schemata::of_masks(Resource::L3Data, [(CacheId(3), WayMask(0xff))]);
    let after = changes.write(&Group::DEFAULT, &data)?;
    let full = WayMask::lowest(Ways(20));
    assert_eq!(after, Schemata::of_masks(Resource::L3Data, [(CacheId(0), full), (CacheId(3), WayMask(0xff))]));
    assert_eq!(resctrl.schemata(&Group::DEFAULT)?.masks(&Resource::L3Code), before.masks(&Resource::L3Code));
    let unknown = Schemata::of_masks(Resource::L3Data, [(CacheId(1), WayMask(0xff))]);
    let refused = changes.write(&Group::DEFAULT, &unknown).err().ok_or("cache 1 was there")?;
    assert_eq!((refused.why, refused.status), (Why::Refused, None));
    drop(changes);
    settings.restore()?;
    assert_eq!(resctrl.schemata(&Group::DEFAULT)?, before);
    Ok(())
}

/// A thread that was made by one in the group is in it; one that was made before is found by looking again.
fn all_threads_of_a_process_are_moved_while_they_come_and_go(host: &Host) -> Outcome {
    let place = Place::emulated(&[])?;
    let resctrl = Resctrl::at(host.files(), &place.root)?;
    let mut settings = HostSettings::open(host.files(), &place.journal)?;
    let helper = Helper::start(&["comers", "24"])?;
    let mut changes = resctrl.change(&mut settings, &mut |_| false)?;
    let web = changes.make(&Group::own("web")?, &mut |_| false)?;
    let moved = changes.move_process(helper.pid(), &web)?;
    assert!(moved.settled && moved.threads > 0, "{moved:?}");
    println!("{moved:?}");
    // From now on its threads are born there: no thread alive before and after a scan of the default group is in it.
    let threads = || -> Result<Vec<Pid>> {
        let listed = fs::read_dir(Path::new("/").join(helper.pid().file("task")))?;
        Ok(listed.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect())
    };
    let deadline = Instant::now() + TIME_LIMIT;
    for _ in 0..5 {
        let (before, default, after) = (threads()?, resctrl.tasks(&Group::DEFAULT)?, threads()?);
        let left: Vec<&Pid> =
            before.iter().filter(|thread| after.contains(thread) && default.contains(thread)).collect();
        assert!(left.is_empty(), "{left:?} of {} threads", before.len());
        assert!(Instant::now() < deadline);
        std::thread::sleep(Duration::from_millis(20));
    }
    drop(helper);
    let gone = changes.move_process(Pid(i32::MAX - 1), &web).err().ok_or("nobody was moved")?;
    assert!(gone.is_gone());
    Ok(())
}

/// A group that is not ours is left as it is, and gets its tasks back.
fn a_process_from_somebody_elses_group_goes_back_there(host: &Host) -> Outcome {
    let place = Place::emulated(&[])?;
    let resctrl = Resctrl::at(host.files(), &place.root)?;
    let helper = Helper::start(&["comers", "2"])?;
    let batch = Path::new(&place.root).join("batch");
    fs::create_dir(&batch)?;
    fs::create_dir(batch.join("mon_groups/counted"))?;
    let mut settings = HostSettings::open(host.files(), &place.journal)?;
    fs::write(batch.join("tasks"), helper.pid().to_string())?;
    fs::write(batch.join("mon_groups/counted/tasks"), helper.pid().to_string())?;
    let origin = resctrl.group_of(helper.pid())?;
    assert_eq!(origin.to_string(), "batch/mon_groups/counted");
    let mut changes = resctrl.change(&mut settings, &mut |_| false)?;
    let web = changes.make(&Group::own("web")?, &mut |_| false)?;
    assert!(changes.move_process(helper.pid(), &web)?.settled);
    assert_eq!(resctrl.group_of(helper.pid())?, Group::own("web")?);
    let not_ours = changes.move_process(helper.pid(), &origin).err().ok_or("it was changed")?;
    assert_eq!(not_ours.why, Why::NotOurs);
    assert_eq!(changes.collect()?, []);
    drop(changes);
    settings.restore()?;
    assert_eq!(resctrl.group_of(helper.pid())?, origin);
    assert_eq!(resctrl.groups()?.iter().map(Group::to_string).collect::<Vec<_>>(), ["batch"]);
    Ok(())
}

/// Values that the emulator is told to show.
fn counters_show_numbers_and_words(host: &Host) -> Outcome {
    let place = Place::emulated(&["--machine", "snc-2"])?;
    let resctrl = Resctrl::at(host.files(), &place.root)?;
    let mut settings = HostSettings::open(host.files(), &place.journal)?;
    let mut changes = resctrl.change(&mut settings, &mut |_| false)?;
    let web = changes.make(&Group::own("web")?, &mut |_| false)?;
    for line in [
        "occupancy masu-web 0/0 1000",
        "occupancy masu-web 0/1 234",
        "total masu-web 1/0 Unavailable",
        "local masu-web 1/1 Error",
    ] {
        place.tell(line)?;
    }
    let readings = resctrl.readings(&web)?;
    let places: Vec<_> = readings.iter().map(|one| (one.domain.0, one.node)).collect();
    assert_eq!(places.iter().filter(|(_, node)| node.is_none()).count(), 2, "{places:?}");
    assert_eq!(places.len(), 6, "{places:?}");
    assert_eq!(resctrl.llc_occupancy(&web, CacheId(0))?, Reading::Value(Bytes(1234)));
    assert!(readings.iter().any(|one| one.domain == CacheId(1) && one.mbm_total_bytes == Reading::Unavailable));
    assert!(readings.iter().any(|one| one.domain == CacheId(1) && one.mbm_local_bytes == Reading::Error));
    Ok(())
}
