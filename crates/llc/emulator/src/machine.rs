//! State of the file system, as data. Its operations are in `rules`. Pure.

use std::collections::{BTreeMap, BTreeSet};

use rustix::io::Errno;
use units::{Bytes, WayMask};

use crate::counters::Counters;
use crate::group::{Group, GroupId, Kind, Mode};
use crate::hardware::Hardware;
use crate::members::{Members, Tasks};
use crate::schema::Schema;
use crate::status::LastCommand;

/// State of the machine.
pub struct Machine {
    pub(crate) hardware: Hardware,
    pub(crate) groups: BTreeMap<GroupId, Group>,
    pub(crate) last_id: u64,
    pub(crate) free_classes: BTreeSet<u32>,
    /// Devices have the highest class.
    pub(crate) io_alloc: bool,
    /// By line, cache (by position) and class. Unassigned values are absent.
    values: BTreeMap<(Schema, usize, u32), u64>,
    pub(crate) counters: Counters,
    pub(crate) status: LastCommand,
    pub(crate) members: Members,
    pub(crate) tasks: Box<dyn Tasks>,
}

impl std::fmt::Debug for Machine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Machine").field("groups", &self.groups).field("values", &self.values).finish_non_exhaustive()
    }
}

impl Machine {
    /// As just mounted: all threads, CPUs and ways are the default group's.
    pub fn new(hardware: Hardware, tasks: impl Tasks + 'static) -> Machine {
        let monitoring = hardware.monitoring;
        // The kernel's first threshold: as if all counters had an equal part of a cache.
        let threshold = monitoring.map_or(0, |monitoring| hardware.cache.0 / u64::from(monitoring.rmids.max(1)));
        let root =
            Group { class: Some(0), rmid: monitoring.map(|_| 0), cpus: hardware.online.clone(), ..Group::empty() };
        let mut machine = Machine {
            groups: BTreeMap::from([(GroupId::ROOT, root)]),
            last_id: 0,
            free_classes: (1..hardware.usable_classes()).collect(),
            io_alloc: false,
            values: BTreeMap::new(),
            counters: Counters::new(monitoring.map_or(0, |monitoring| monitoring.rmids), Bytes(threshold)),
            status: LastCommand::default(),
            members: Members::default(),
            tasks: Box::new(tasks),
            hardware,
        };
        for schema in machine.schemata() {
            for cache in 0..machine.hardware.cache_ids.len() {
                let all = machine.hardware.all_ways().0;
                let value = if schema.is_cache() { all } else { machine.most_bandwidth() };
                machine.set(schema, cache, 0, value);
            }
        }
        machine.look();
        machine
    }

    /// Hardware of the machine.
    pub fn hardware(&self) -> &Hardware {
        &self.hardware
    }

    /// Existing groups.
    pub fn groups(&self) -> impl Iterator<Item = (GroupId, &Group)> {
        self.groups.iter().map(|(id, group)| (*id, group))
    }

    /// An existing group.
    pub(crate) fn group(&self, id: GroupId) -> Result<&Group, Errno> {
        // kernfs gives this errno for an open file of a removed directory.
        self.groups.get(&id).ok_or(Errno::NODEV)
    }

    pub(crate) fn group_mut(&mut self, id: GroupId) -> Result<&mut Group, Errno> {
        self.groups.get_mut(&id).ok_or(Errno::NODEV)
    }

    /// Monitoring groups of a control group.
    pub(crate) fn children(&self, id: GroupId) -> Vec<GroupId> {
        let all = self.groups.iter().filter(|(_, group)| group.kind == Kind::Monitor { of: id });
        all.map(|(id, _)| *id).collect()
    }

    /// Control group of a group: itself, or the one that it monitors.
    pub(crate) fn control_of(&self, id: GroupId) -> GroupId {
        self.groups.get(&id).and_then(Group::parent).unwrap_or(id)
    }

    /// Scans the threads.
    pub(crate) fn look(&mut self) {
        let all = self.tasks.all();
        self.members.look(&all);
    }

    /// Lines of `schemata`, in its order.
    pub(crate) fn schemata(&self) -> Vec<Schema> {
        let caches: &[Schema] = if self.hardware.cdp { &[Schema::L3Data, Schema::L3Code] } else { &[Schema::L3] };
        let bandwidth = self.hardware.bandwidth.map(|_| Schema::Mb);
        bandwidth.into_iter().chain(caches.iter().copied()).collect()
    }

    /// Value of a class in a cache.
    pub(crate) fn value(&self, schema: Schema, cache: usize, class: u32) -> u64 {
        self.values.get(&(schema, cache, class)).copied().unwrap_or(0)
    }

    /// The same as a mask.
    pub(crate) fn mask(&self, schema: Schema, cache: usize, class: u32) -> WayMask {
        WayMask(self.value(schema, cache, class))
    }

    pub(crate) fn set(&mut self, schema: Schema, cache: usize, class: u32, value: u64) {
        self.values.insert((schema, cache, class), value);
    }

    /// Greatest bandwidth: no limit.
    pub(crate) fn most_bandwidth(&self) -> u64 {
        if self.hardware.bandwidth.is_some_and(|bandwidth| bandwidth.in_mib) { u64::from(u32::MAX) } else { 100 }
    }

    /// Classes in use.
    pub(crate) fn taken_classes(&self) -> impl Iterator<Item = u32> + use<> {
        let free = self.free_classes.clone();
        (0..self.hardware.usable_classes()).filter(move |class| !free.contains(class))
    }

    /// Mode of the group that has a class; `None` for the devices' class.
    pub(crate) fn mode_of_class(&self, class: u32) -> Option<Mode> {
        self.groups.values().find(|group| group.class == Some(class)).map(|group| group.mode)
    }
}
