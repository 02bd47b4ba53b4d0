//! Emulated machine with threads made up by a test, used by paths as a program uses files; and its invariants.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::io::Errno;
use units::WayMask;

use crate::group::{GroupId, Kind, Mode};
use crate::hardware::Hardware;
use crate::machine::Machine;
use crate::members::{Owner, Task, Tasks, Writer};
use crate::node::Node;
use crate::rules::masks;
use crate::schema::Schema;

/// Threads and their owners; clones are the same.
#[derive(Clone, Debug, Default)]
pub struct FakeTasks(Arc<Mutex<BTreeMap<u32, (Task, Owner)>>>);

impl FakeTasks {
    /// Starts thread `tid` of a process that is a child of `parent`, all of user `uid`.
    pub fn start(&self, tid: u32, process: u32, parent: u32, uid: u32) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let task = Task { tid, process, parent, began: u64::from(tid) };
        all.insert(tid, (task, Owner { uid, saved_uid: uid }));
    }

    /// Ends a thread.
    pub fn end(&self, tid: u32) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&tid);
    }
}

impl Tasks for FakeTasks {
    fn all(&self) -> Vec<Task> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).values().map(|(task, _)| *task).collect()
    }

    fn owner(&self, tid: u32) -> Option<Owner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&tid).map(|(_, owner)| *owner)
    }
}

/// Emulated machine whose files are used by their paths.
#[derive(Debug)]
pub struct Rig {
    /// The machine.
    pub machine: Machine,
    /// Its threads: 1, the first; 100 and 101, of process 100; 200, of user 1000.
    pub tasks: FakeTasks,
    /// The writing thread.
    pub writer: Writer,
}

impl Rig {
    /// Rig as just mounted.
    pub fn new(hardware: Hardware) -> Rig {
        let tasks = FakeTasks::default();
        tasks.start(1, 1, 0, 0);
        tasks.start(100, 100, 1, 0);
        tasks.start(101, 100, 1, 0);
        tasks.start(200, 200, 1, 1000);
        Rig { machine: Machine::new(hardware, tasks.clone()), tasks, writer: Writer { tid: 1, uid: 0 } }
    }

    /// Content of a file.
    ///
    /// # Errors
    /// As the kernel's.
    pub fn read(&mut self, path: &str) -> Result<String, Errno> {
        let node = self.machine.find(path)?;
        self.machine.read(node)
    }

    /// Writes once.
    ///
    /// # Errors
    /// As the kernel's.
    pub fn write(&mut self, path: &str, text: &str) -> Result<(), Errno> {
        let node = self.machine.find(path)?;
        self.machine.write(node, text.as_bytes(), self.writer)
    }

    /// Makes a group.
    ///
    /// # Errors
    /// As the kernel's.
    pub fn mkdir(&mut self, path: &str) -> Result<Node, Errno> {
        let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
        let parent = self.machine.find(parent)?;
        self.machine.mkdir(parent, name, (self.writer.uid, self.writer.uid))
    }

    /// Removes a group.
    ///
    /// # Errors
    /// As the kernel's.
    pub fn rmdir(&mut self, path: &str) -> Result<(), Errno> {
        let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
        let parent = self.machine.find(parent)?;
        self.machine.rmdir(parent, name)
    }

    /// Moves a group.
    ///
    /// # Errors
    /// As the kernel's.
    pub fn rename(&mut self, from: &str, to: &str) -> Result<(), Errno> {
        let (parent, name) = from.rsplit_once('/').unwrap_or(("", from));
        let (new_parent, new_name) = to.rsplit_once('/').unwrap_or(("", to));
        let (parent, new_parent) = (self.machine.find(parent)?, self.machine.find(new_parent)?);
        self.machine.rename(parent, name, new_parent, new_name)
    }

    /// Text of `info/last_cmd_status`.
    pub fn status(&self) -> String {
        self.machine.status.show()
    }

    /// All files and their content, except `info/last_cmd_status`.
    pub fn everything(&mut self) -> BTreeMap<String, Result<String, Errno>> {
        let mut all = BTreeMap::new();
        let mut open = vec![(String::new(), Node::Group(GroupId::ROOT))];
        let status = self.machine.status.clone();
        while let Some((path, node)) = open.pop() {
            if node == Node::LastCommand {
                continue;
            }
            match self.machine.list(node) {
                Ok(listed) => open.extend(listed.into_iter().map(|(name, node)| (format!("{path}/{name}"), node))),
                Err(_) => drop(all.insert(path, self.machine.read(node))),
            }
        }
        // Reading some files is a command as well.
        self.machine.status = status;
        all
    }

    /// Checks the invariants that hold after any writes, creations and removals.
    ///
    /// # Errors
    /// The violated invariant.
    pub fn check(&mut self) -> Result<(), Violation> {
        self.machine.look();
        check_identities(&self.machine)?;
        check_masks(&self.machine)?;
        check_cpus(&self.machine)?;
        let all: BTreeSet<u32> = self.tasks.all().iter().map(|task| task.tid).collect();
        let mut seen = BTreeSet::new();
        for (id, group) in self.machine.groups.clone() {
            let threads = self.machine.threads_of(id);
            if group.kind == Kind::Control && !threads.iter().all(|tid| seen.insert(*tid)) {
                return Err(Violation(format!("group {} has threads of another: {threads:?}", group.name)));
            }
        }
        if seen != all { Err(Violation(format!("threads {all:?}, in groups {seen:?}"))) } else { Ok(()) }
    }
}

/// Invariant that does not hold, in words for the output of a test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation(String);

impl std::fmt::Display for Violation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// Checks that classes and counters belong to one group, or are free, and that groups have a parent.
fn check_identities(machine: &Machine) -> Result<(), Violation> {
    let classes: Vec<u32> = machine.groups.values().filter_map(|group| group.class).collect();
    let of_devices = u32::from(machine.io_alloc);
    let distinct: BTreeSet<u32> = classes.iter().chain(&machine.free_classes).copied().collect();
    let usable = machine.hardware.usable_classes() - of_devices;
    if distinct.len() != classes.len() + machine.free_classes.len() || u32::try_from(distinct.len()) != Ok(usable) {
        return Err(Violation(format!(
            "classes {classes:?} are taken, {:?} are free, of {usable}",
            machine.free_classes
        )));
    }
    let rmids: Vec<u32> = machine.groups.values().filter_map(|group| group.rmid).collect();
    let distinct: BTreeSet<&u32> = rmids.iter().collect();
    let of_all = machine.hardware.monitoring.map_or(0, |monitoring| monitoring.rmids);
    let counted = u32::try_from(rmids.len() + machine.counters.idle());
    if distinct.len() != rmids.len() || counted != Ok(of_all) {
        return Err(Violation(format!("RMIDs {rmids:?} are taken, {} are not, of {of_all}", machine.counters.idle())));
    }
    for group in machine.groups.values() {
        let parent = group.parent().map(|parent| machine.groups.get(&parent).map(|parent| parent.kind));
        if parent.is_some_and(|kind| kind != Some(Kind::Control)) {
            return Err(Violation(format!("group {} is of no control group", group.name)));
        }
    }
    Ok(())
}

/// Checks that every class has a mask that could be written, without ways of an exclusive group or of the locked
/// region; a cache has at most one such region.
fn check_masks(machine: &Machine) -> Result<(), Violation> {
    for schema in machine.schemata().into_iter().filter(|schema| schema.is_cache()) {
        for cache in 0..machine.hardware.cache_ids.len() {
            for class in machine.taken_classes() {
                let mask = machine.mask(schema, cache, class);
                let violation =
                    |what: &str| Violation(format!("class {class}, {} of cache {cache}: {mask} {what}", schema.name()));
                masks::validated(&machine.hardware, &mask.to_string())
                    .map_err(|invalid| violation(&invalid.to_string()))?;
                let alone = machine.mode_of_class(class) == Some(Mode::Exclusive);
                if alone && mask.overlaps(of_others(machine, schema, cache, class)) {
                    return Err(violation("is exclusive and not alone"));
                }
                let set_up = machine.mode_of_class(class) == Some(Mode::PseudoLocksetup);
                if !set_up && machine.overlaps_locked(cache, mask) {
                    return Err(violation("overlaps a locked region"));
                }
            }
            if machine.locked_regions(cache).count() > 1 {
                return Err(Violation(format!("cache {cache} has more than one locked region")));
            }
        }
    }
    Ok(())
}

/// Ways of all others in a cache: other classes, for code or data, and devices.
fn of_others(machine: &Machine, schema: Schema, cache: usize, class: u32) -> WayMask {
    let is_set_up = |other: u32| machine.mode_of_class(other) == Some(Mode::PseudoLocksetup);
    let others = machine.taken_classes().filter(|other| *other != class && !is_set_up(*other));
    let all = others.flat_map(|other| schema.with_peer().map(move |schema| (schema, other)));
    all.fold(machine.hardware.shareable, |ways, (schema, other)| ways.or(machine.mask(schema, cache, other)))
}

/// Checks that a CPU is in one control group, and in at most one monitoring group, of that control group.
fn check_cpus(machine: &Machine) -> Result<(), Violation> {
    let mut of_control = BTreeSet::new();
    let mut of_monitor = BTreeSet::new();
    for group in machine.groups.values() {
        let seen = if group.kind == Kind::Control { &mut of_control } else { &mut of_monitor };
        if !group.cpus.0.iter().all(|cpu| seen.insert(*cpu)) {
            return Err(Violation(format!("group {} has CPUs of another", group.name)));
        }
        if let Some(parent) = group.parent().and_then(|parent| machine.groups.get(&parent))
            && !group.cpus.without(&parent.cpus).is_empty()
        {
            return Err(Violation(format!("group {} monitors CPUs of another control group", group.name)));
        }
    }
    if of_control != machine.hardware.online.0 { Err(Violation("a CPU is in no group".to_owned())) } else { Ok(()) }
}
