//! Applies steps through `linux::resctrl`, and reads back the kernel's result.
//!
//! Every step is one write or one directory, except the one for a process: its threads are moved until all of them
//! are in the group. Each write is read back. The journal has each change before it is made, so the next masu of any
//! kind undoes the remains of a crash.
//! [`writes`] prints the same without doing it: `path <- value`, one line for each write.

use std::collections::BTreeMap;
use std::fmt;

use linux::journal::HostSettings;
use linux::resctrl::info::IoAlloc;
use linux::resctrl::schemata::Difference;
use linux::resctrl::{Changes, Failed, Group, Info, Mode, OwnGroup, PREFIX, Patience, Resctrl, Resource, Schemata};
use linux::{KernelFiles, Lock};
use rustix::io::Errno;
use units::cast::index;
use units::{Bytes, WayMask};

use super::allocatable_ways::{Hardware, UnmanagedGroup};
use super::layout::Masks;
use super::steps::{Observed, ObservedGroup, Step};

/// The resctrl file system, its capabilities, and masu's own groups in it.
#[derive(Debug)]
pub struct Mount<'f, F: KernelFiles> {
    files: &'f F,
    resctrl: Resctrl<'f, F>,
    info: Info,
    resources: Vec<Resource>,
    own: BTreeMap<String, OwnGroup>,
}

/// Result of a step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Done {
    /// Moved threads.
    pub threads: usize,
    /// Threads, or a process, that ended before the move.
    pub ended: usize,
    /// The process creates threads faster than they can be moved: some are still outside.
    pub unsettled: bool,
    /// Differences between the requested and the actual state.
    pub differences: Vec<Difference>,
}

/// Reason why the cache cannot be partitioned on this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unusable {
    /// Only monitoring is possible, or only other caches can be divided.
    NoCache,
    /// A call failed.
    Failed(Failed),
}

impl fmt::Display for Unusable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unusable::NoCache => f.write_str("cannot partition the cache: resctrl here divides no L3 cache (info/L3)"),
            Unusable::Failed(failed) => failed.fmt(f),
        }
    }
}

impl std::error::Error for Unusable {}

impl From<Failed> for Unusable {
    fn from(failed: Failed) -> Unusable {
        Unusable::Failed(failed)
    }
}

impl<'f, F: KernelFiles> Mount<'f, F> {
    /// Reads the current state. Changes nothing.
    ///
    /// # Errors
    /// `NoCache` where no last-level cache can be divided.
    pub fn look(files: &'f F, resctrl: Resctrl<'f, F>) -> Result<Mount<'f, F>, Unusable> {
        let info = resctrl.info()?;
        let resources = info.l3_resources();
        if resources.is_empty() || info.classes_max < 2 {
            return Err(Unusable::NoCache);
        }
        Ok(Mount { files, resctrl, info, resources, own: BTreeMap::new() })
    }

    /// The file system.
    pub fn resctrl(&self) -> &Resctrl<'f, F> {
        &self.resctrl
    }

    /// Its capabilities.
    pub fn info(&self) -> &Info {
        &self.info
    }

    /// Ways and classes of the hardware.
    ///
    /// # Errors
    /// `Gone` when the file system is no longer mounted.
    pub fn hardware(&self) -> Result<Hardware, Failed> {
        let l3 = self
            .info
            .l3()
            .ok_or_else(|| linux::Error::of_host("find", "the L3 cache in info of resctrl", Errno::NOENT))?;
        let caches = self.resctrl.domains()?;
        let all = l3.rules.full;
        let sizes = self.resctrl.size(&Group::DEFAULT)?;
        let schemata = self.resctrl.schemata(&Group::DEFAULT)?;
        // The default group may have less than all: its capacity, divided by its ways.
        let way = self.resources.iter().find_map(|resource| {
            let (bytes, masks) = (sizes.get(resource)?, schemata.masks(resource)?);
            let (cache, mask) = masks.iter().find(|(_, mask)| !mask.is_empty())?;
            Some(Bytes(bytes.get(cache)?.0 / u64::from(mask.ways().0)))
        });
        let devices = match &l3.io_alloc {
            IoAlloc::Enabled(masks) => masks.values().fold(l3.shareable, |all, mask| all.or(*mask)),
            IoAlloc::Unsupported | IoAlloc::Disabled => l3.shareable,
        };
        // A class for devices, if enabled, is the highest.
        let taken = usize::from(matches!(l3.io_alloc, IoAlloc::Enabled(_)));
        let classes = index(self.info.classes_max.into()).saturating_sub(taken);
        let ways_min = l3.rules.ways_min;
        Ok(Hardware { all, ways_min, classes, shareable: devices, way_bytes: way.unwrap_or(Bytes(0)), caches })
    }

    /// All observed groups. masu groups left by a dead masu count as removed, and are named.
    ///
    /// # Errors
    /// `Gone` when the file system is no longer mounted.
    pub fn observed(&self) -> Result<(Observed, Vec<String>), Failed> {
        let mut observed = Observed::new();
        let mut left_behind = Vec::new();
        // During a change there may be a group that its maker does not hold yet: then none counts as left behind.
        let quiet = self.resctrl.lock_for_reading().ok();
        for group in [vec![Group::DEFAULT], self.resctrl.groups()?].concat() {
            let present = match self.present(&group) {
                Ok(present) => present,
                Err(failed) if failed.is_gone() && !group.is_default() => continue, // removed meanwhile
                Err(failed) => return Err(failed),
            };
            let label = group.label().map(str::to_owned);
            let own = label.as_ref().is_some_and(|label| self.own.contains_key(label));
            if label.is_some() && !own && quiet.is_some() && self.is_left_behind(&group) {
                left_behind.push(group.to_string());
                continue;
            }
            let name = match label.filter(|_| own) {
                Some(label) => label,
                None if group.is_default() => String::new(),
                None => group.to_string(),
            };
            observed.insert(name, ObservedGroup { ours: own, ..present });
        }
        Ok((observed, left_behind))
    }

    fn present(&self, group: &Group) -> Result<ObservedGroup, Failed> {
        let schemata = self.resctrl.schemata(group)?;
        let mut masks = Masks::new();
        for resource in &self.resources {
            for (cache, mask) in schemata.masks(resource).into_iter().flatten() {
                // Code and data may differ in unmanaged groups: the union of both.
                let known = masks.entry(*cache).or_insert(WayMask::NONE);
                *known = known.or(*mask);
            }
        }
        let mode = match self.resctrl.mode(group) {
            Ok(mode) => mode,
            Err(failed) if failed.is_gone() && self.resctrl.exists(group) => Mode::Shareable, // a kernel without modes
            Err(failed) => return Err(failed),
        };
        let threads = match self.resctrl.tasks(group) {
            Ok(threads) if !group.is_default() => threads,
            Ok(_) => Default::default(),
            // A pseudo-locked group has no such file.
            Err(failed) if failed.is_gone() && self.resctrl.exists(group) => Default::default(),
            Err(failed) => return Err(failed),
        };
        Ok(ObservedGroup { masks, exclusive: mode != Mode::Shareable, threads, ours: false })
    }

    /// Without a living holder and without members: such a group is removed ([`Mount::collect`]).
    fn is_left_behind(&self, group: &Group) -> bool {
        self.files.lock(&self.resctrl.directory(group), Lock::Exclusive).is_ok()
            && self.resctrl.is_empty(group).unwrap_or(false)
    }

    /// Unmanaged groups, for [`super::allocatable_ways::allocatable_ways`].
    pub fn unmanaged(observed: &Observed) -> Vec<UnmanagedGroup> {
        let others = observed.iter().filter(|(name, group)| !group.ours && !name.is_empty());
        let unmanaged = others.map(|(name, group)| {
            let mask = group.masks.values().fold(WayMask::NONE, |all, mask| all.or(*mask));
            UnmanagedGroup { name: name.clone(), mask, exclusive: group.exclusive }
        });
        unmanaged.collect()
    }

    /// Removes groups left by a dead masu, and names them.
    ///
    /// # Errors
    /// As [`Mount::apply`].
    pub fn collect(
        &mut self,
        host_settings: &mut HostSettings<'f, F>,
        patience: &mut Patience<'_>,
    ) -> Result<Vec<String>, Failed> {
        let collected = self.resctrl.change(host_settings, patience)?.collect()?;
        Ok(collected.iter().map(Group::to_string).collect())
    }

    /// Applies one step. A process or a thread that ended meanwhile is no error.
    ///
    /// # Errors
    /// The kernel's answer.
    pub fn apply(
        &mut self,
        step: &Step,
        host_settings: &mut HostSettings<'f, F>,
        patience: &mut Patience<'_>,
    ) -> Result<Done, Failed> {
        tracing::debug!(?step, "step");
        let mut changes = self.resctrl.change(host_settings, patience)?;
        match step {
            Step::Make(label) => {
                let made = changes.make(&group(label), patience)?;
                self.own.insert(label.clone(), made);
            }
            Step::Remove(label) => {
                if let Some(own) = self.own.remove(label) {
                    changes.remove(own)?;
                }
            }
            Step::Masks(label, masks) => {
                let lines = lines(&self.resources, masks);
                let found = changes.write(&group(label), &lines)?;
                return Ok(Done { differences: lines.differences(&found), ..Done::default() });
            }
            Step::Exclusive(label, exclusive) => {
                changes.set_mode(&group(label), if *exclusive { Mode::Exclusive } else { Mode::Shareable })?;
            }
            Step::Process(label, pid, _) => {
                return match changes.move_process(*pid, &group(label)) {
                    Ok(moved) => Ok(Done {
                        threads: moved.threads,
                        ended: moved.ended,
                        unsettled: !moved.settled,
                        ..Done::default()
                    }),
                    Err(failed) if failed.is_gone() && self.resctrl.exists(&group(label)) => {
                        Ok(Done { ended: 1, ..Done::default() })
                    }
                    Err(failed) => Err(failed),
                };
            }
            Step::Thread(label, thread) => {
                return move_thread(&mut changes, *thread, label, || self.resctrl.exists(&group(label)));
            }
            Step::WarmUp(..) => {} // joins as a thread, as soon as it exists
        }
        Ok(Done::default())
    }

    /// Existing masu groups.
    pub fn own(&self) -> impl Iterator<Item = &str> {
        self.own.keys().map(String::as_str)
    }
}

fn move_thread<F: KernelFiles>(
    changes: &mut Changes<'_, '_, F>,
    thread: linux::Pid,
    label: &str,
    exists: impl Fn() -> bool,
) -> Result<Done, Failed> {
    match changes.move_thread(thread, &group(label)) {
        Ok(()) => Ok(Done { threads: 1, ..Done::default() }),
        // Without its group nothing says that the thread ended.
        Err(failed) if failed.is_gone() && exists() => Ok(Done { ended: 1, ..Done::default() }),
        Err(failed) => Err(failed),
    }
}

/// The group of this label; the default group for an empty one. Labels are checked by their sources.
pub fn group(label: &str) -> Group {
    if label.is_empty() { Group::DEFAULT } else { Group::own(label).unwrap_or(Group::DEFAULT) }
}

/// The same masks for L3, or for code and data in it.
fn lines(resources: &[Resource], masks: &Masks) -> Schemata {
    let lines = resources.iter().map(|resource| {
        let line = Schemata::of_masks(resource.clone(), masks.iter().map(|(cache, mask)| (*cache, *mask)));
        line.0
    });
    Schemata(lines.flatten().collect())
}

/// Writes of a step, as `path <- value`; a newline within a value is shown as `\n`.
pub fn writes<F: KernelFiles>(step: &Step, mount: &Mount<'_, F>) -> Vec<String> {
    let directory = |label: &str| format!("/{}", mount.resctrl.directory(&group(label)));
    let write = |label: &str, file: &str, value: &str| {
        vec![format!("{}/{file} <- {}", directory(label), value.trim_end().replace('\n', "\\n"))]
    };
    match step {
        Step::Make(label) => vec![format!("mkdir {}", directory(label))],
        Step::Remove(label) => vec![format!("rmdir {}", directory(label))],
        Step::Masks(label, masks) => write(label, "schemata", &lines(&mount.resources, masks).command()),
        Step::Exclusive(label, true) => write(label, "mode", Mode::Exclusive.word()),
        Step::Exclusive(label, false) => write(label, "mode", Mode::Shareable.word()),
        Step::Process(label, _, threads) => {
            threads.iter().flat_map(|thread| write(label, "tasks", &thread.to_string())).collect()
        }
        Step::Thread(label, thread) => write(label, "tasks", &thread.to_string()),
        Step::WarmUp(label, cache) => write(label, "tasks", &format!("(the thread that refills cache {})", cache.0)),
    }
}

/// Directory name of a group.
pub fn name_of(label: &str) -> String {
    if label.is_empty() { "the default group".to_owned() } else { format!("{PREFIX}{label}") }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use linux::Pid;
    use linux::fake::FakeKernel;
    use linux::resctrl::CacheId;

    use super::*;
    use crate::daemon::layout::{Desired, Group as DesiredGroup, Purpose};
    use crate::daemon::steps::{diff, undo};

    const STAT: &str = "S 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 100 0 0\n";

    /// 12 ways, two caches of 12 MiB, 8 classes; an unmanaged group; two processes.
    fn kernel() -> FakeKernel {
        let own = Pid::own();
        let kernel = FakeKernel::new()
            .file("proc/mounts", "resctrl /sys/fs/resctrl resctrl rw,relatime 0 0\n")
            .file(&own.file("stat"), &format!("{own} (masu) {STAT}"))
            .file("proc/sys/kernel/random/boot_id", "b\n")
            .file("sys/fs/resctrl/info/L3/num_closids", "8\n")
            .file("sys/fs/resctrl/info/L3/cbm_mask", "fff\n")
            .file("sys/fs/resctrl/info/L3/min_cbm_bits", "1\n")
            .file("sys/fs/resctrl/info/L3/shareable_bits", "0\n")
            .file("sys/fs/resctrl/info/last_cmd_status", "ok\n")
            .file("sys/fs/resctrl/schemata", "    L3:0=fff;1=fff\n")
            .file("sys/fs/resctrl/size", "    L3:0=12582912;1=12582912\n")
            .file("sys/fs/resctrl/mode", "shareable\n")
            .file("sys/fs/resctrl/tasks", "1\n7\n8\n9\n");
        let kernel = ["theirs"].into_iter().fold(kernel, |kernel, name| {
            kernel
                .file(&format!("sys/fs/resctrl/{name}/schemata"), "    L3:0=f00;1=f00\n")
                .file(&format!("sys/fs/resctrl/{name}/mode"), "shareable\n")
                .file(&format!("sys/fs/resctrl/{name}/tasks"), "99\n")
        });
        let kernel = [("schemata", "    L3:0=fff;1=fff\n"), ("mode", "shareable\n"), ("tasks", "")]
            .into_iter()
            .fold(kernel, |kernel, (name, content)| kernel.furnishing("sys/fs/resctrl", name, content));
        kernel.file("proc/7/stat", &format!("7 (web) {STAT}")).file("proc/7/task/7/children", "")
    }

    fn desired() -> Desired {
        let both = |mask| Masks::from([(CacheId(0), WayMask(mask)), (CacheId(1), WayMask(mask))]);
        let group = |label: &str, mask, exclusive, pids: &[i32]| DesiredGroup {
            label: label.to_owned(),
            masks: both(mask),
            exclusive,
            processes: pids.iter().map(|pid| (Pid(*pid), [Pid(7)].into())).collect(),
            warmed: BTreeSet::new(),
            purpose: Purpose::SharedPartition(0),
        };
        let groups = vec![group("web", 0xf, false, &[7]), group("shared.shop", 0x70, true, &[])];
        Desired { default_masks: both(0xc00), groups, notes: Vec::new() }
    }

    fn mount(kernel: &FakeKernel) -> Mount<'_, FakeKernel> {
        Mount::look(kernel, Resctrl::find(kernel).unwrap()).unwrap()
    }

    #[test]
    fn the_hardware_is_what_the_files_say() {
        let kernel = kernel();
        let hardware = mount(&kernel).hardware().unwrap();
        assert_eq!((hardware.all, hardware.classes, hardware.way_bytes), (WayMask(0xfff), 8, Bytes::mib(1)));
        assert_eq!(hardware.caches, [CacheId(0), CacheId(1)]);
        let (observed, left_behind) = mount(&kernel).observed().unwrap();
        assert_eq!(observed.keys().collect::<Vec<_>>(), ["", "theirs"]);
        assert!(left_behind.is_empty() && observed["theirs"].threads == [Pid(99)].into());
        let unmanaged = Mount::<FakeKernel>::unmanaged(&observed);
        assert_eq!(unmanaged, [UnmanagedGroup { name: "theirs".to_owned(), mask: WayMask(0xf00), exclusive: false }]);
    }

    #[test]
    fn a_group_that_nobody_holds_is_left_behind_unless_somebody_is_at_work() {
        let kernel = kernel().file("sys/fs/resctrl/masu-web/schemata", "    L3:0=f;1=f\n");
        kernel.add("sys/fs/resctrl/masu-web/mode", "shareable\n");
        kernel.add("sys/fs/resctrl/masu-web/tasks", "");
        let at_work = kernel.lock("sys/fs/resctrl", Lock::Exclusive).unwrap();
        let (observed, left_behind) = mount(&kernel).observed().unwrap();
        assert!(left_behind.is_empty() && !observed["masu-web"].ours);
        drop(at_work);
        let (observed, left_behind) = mount(&kernel).observed().unwrap();
        assert!(left_behind == ["masu-web"] && !observed.contains_key("masu-web"));
        // Another tool may use such names.
        kernel.add("sys/fs/resctrl/masu-web/tasks", "99\n");
        let (observed, left_behind) = mount(&kernel).observed().unwrap();
        assert!(left_behind.is_empty() && observed["masu-web"].threads == [Pid(99)].into());
    }

    #[test]
    fn where_nothing_is_mounted_any_more_nothing_stands() {
        let kernel = kernel();
        let mount = mount(&kernel);
        kernel.remove("sys/fs/resctrl");
        let failed = mount.observed().unwrap_err();
        assert!(failed.is_gone(), "{failed}");
        kernel.add("sys/fs/resctrl/schemata", "");
        kernel.remove("sys/fs/resctrl/schemata");
        let failed = mount.observed().unwrap_err();
        assert!(failed.is_gone(), "the directory alone is there still: {failed}");
    }

    #[test]
    fn a_dry_run_says_exactly_what_is_written_and_all_is_put_back() {
        let kernel = kernel();
        let journal = tempfile::tempdir().unwrap();
        let mut host_settings = HostSettings::open(&kernel, journal.path()).unwrap();
        let mut mount = mount(&kernel);
        let (observed, _) = mount.observed().unwrap();
        let steps = diff(&observed, &desired(), &BTreeMap::new(), units::Ways(1));
        let said: Vec<String> = steps.iter().flat_map(|step| writes(step, &mount)).collect();
        assert_eq!(said[0], "/sys/fs/resctrl/schemata <- L3:0=c00;1=c00");
        assert_eq!(said.last().unwrap(), "/sys/fs/resctrl/masu-web/tasks <- 7");
        assert_eq!(kernel.writes(), [""; 0], "saying writes nothing");
        for step in &steps {
            mount.apply(step, &mut host_settings, &mut |_| false).unwrap();
        }
        let done: Vec<String> = kernel.writes().iter().map(|line| shown(line)).collect();
        assert_eq!(said, done);
        let (observed, _) = mount.observed().unwrap();
        assert!(observed["web"].ours && observed["shared.shop"].exclusive);
        for step in undo(&observed, &observed[""].masks) {
            mount.apply(&step, &mut host_settings, &mut |_| false).unwrap();
        }
        host_settings.restore().unwrap();
        let undone: Vec<String> = kernel.writes()[done.len()..].iter().map(|line| shown(line)).collect();
        let expected = [
            "rmdir /sys/fs/resctrl/masu-shared.shop",
            "rmdir /sys/fs/resctrl/masu-web",
            "/sys/fs/resctrl/schemata <- L3:0=fff;1=fff",
        ];
        assert_eq!(undone, expected);
    }

    /// The recorder's words, as a dry run has them.
    fn shown(line: &str) -> String {
        let line = line.trim_end().replace('\n', "\\n");
        match line.split_once(' ') {
            Some((word @ ("mkdir" | "rmdir"), path)) => format!("{word} /{path}"),
            _ => format!("/{line}"),
        }
    }

    #[test]
    fn a_process_that_ended_is_no_error_and_a_name_that_is_taken_is() {
        let kernel = kernel();
        let journal = tempfile::tempdir().unwrap();
        let mut host_settings = HostSettings::open(&kernel, journal.path()).unwrap();
        let mut mount = mount(&kernel);
        let mut apply = |step: &Step| mount.apply(step, &mut host_settings, &mut |_| false);
        apply(&Step::Make("web".to_owned())).unwrap();
        let done = apply(&Step::Process("web".to_owned(), Pid(4121), [Pid(4121)].into())).unwrap();
        assert_eq!(done, Done { ended: 1, ..Done::default() });
        let taken = apply(&Step::Make("web".to_owned())).unwrap_err();
        assert_eq!(taken.to_string(), "cannot make /sys/fs/resctrl/masu-web: file exists (EEXIST)");
    }
}
