//! Swapping of data: the kernel's weight of anonymous memory beside files, changed while masu runs.
//!
//! A control group of version 1 created meanwhile inherits masu's weight from its parent, so it is restored, too. A
//! group that was given the same value by its owner looks the same, and is also restored. A group that is removed and
//! created again is another group: the setting of a restarted service is written again.

use std::collections::BTreeMap;

use linux::cgroup::group::{self, Group};
use linux::cgroup::limited;
use linux::journal::{HostSettings, Mark};
use linux::{Error, KernelFiles, vmstat};
use rustix::io::Errno;

use crate::backend::{self, Capabilities, SwapSetting};
use crate::class::Class;
use crate::levels::{Level, Levels};
use crate::policy;
use crate::report::Event;
use crate::scope::Scope;

/// The setting, and its original value.
#[derive(Debug)]
pub struct Swap {
    setting: Setting,
    level: Level,
    gently: bool,
    scope: Scope,
    /// Inode of the control group, if the scope is one; another inode after it was created again.
    inode: Option<u64>,
    before: Option<u64>,
    /// Child control groups, by directory.
    below: BTreeMap<String, Below>,
}

/// Child of a control group with a changed weight.
#[derive(Clone, Copy, Debug)]
struct Below {
    inode: u64,
    /// It inherited masu's weight at its creation.
    inherits: bool,
}

/// Reason for no change without swap.
pub const NO_SWAP: &str = "there is no swap, so data is not aged at all";

/// Path relative to the root.
#[derive(Debug)]
enum Setting {
    /// Weight, and its original value.
    Weight { path: String, normal: u32 },
    /// Control groups of version 2 have no weight, only a limit of swap.
    Most { path: String },
}

impl Swap {
    /// Writes the setting if data has a level; reports if there is nothing to write. `gently`: swapping stays possible
    /// even at 100.
    ///
    /// # Errors
    /// `Denied` without root; `Unsupported` where the level has no effect: for single processes, and between 0 and 100
    /// for a group of version 2.
    pub fn begin<F: KernelFiles>(
        files: &F,
        scope: &Scope,
        group: Option<&Group>,
        levels: &Levels,
        gently: bool,
        host_settings: &mut HostSettings<'_, F>,
        events: &mut Vec<Event>,
    ) -> Result<Option<Swap>, Error> {
        let Some(level) = levels.get(Class::Data) else { return Ok(None) };
        if !has_swap(files) {
            events.push(Event::Nothing { class: Class::Data, why: NO_SWAP.to_owned() });
            return Ok(None);
        }
        let setting = find(files, scope, group)?;
        // Existing groups have weights from elsewhere.
        let others = |inode| Below { inode, inherits: false };
        let below = setting.groups_below(files)?.into_iter().map(|(path, inode)| (path, others(inode))).collect();
        let (scope, inode) = (scope.clone(), inode_of(files, group));
        let mut swap = Swap { setting, level, gently, scope, inode, before: None, below };
        swap.refaults(files)?;
        swap.write(level, host_settings, events)?;
        Ok(Some(swap))
    }

    /// Writes the setting for the level.
    ///
    /// # Errors
    /// As [`Swap::begin`].
    pub fn write<F: KernelFiles>(
        &mut self,
        level: Level,
        host_settings: &mut HostSettings<'_, F>,
        events: &mut Vec<Event>,
    ) -> Result<(), Error> {
        let (path, value) = self.setting.at(level, self.gently)?;
        host_settings.set(path, &value)?;
        self.level = level;
        events.push(Event::Written { path: format!("/{path}"), value, class: Class::Data });
        Ok(())
    }

    /// Detects new control groups. The setting is written again for the group of the scope. Groups that inherited
    /// masu's weight at their creation get, at the end, the weight that they would have had.
    ///
    /// # Errors
    /// When the journal cannot be written; `Denied`.
    pub fn follow<F: KernelFiles>(
        &mut self,
        files: &F,
        host_settings: &mut HostSettings<'_, F>,
        events: &mut Vec<Event>,
    ) -> Result<(), Error> {
        if let Scope::Group(name) = &self.scope
            && let Ok(group) = group::find(files, name)
            && let now @ Some(_) = inode_of(files, Some(&group))
            && now != self.inode
            // The directory may exist before its files.
            && let Ok(setting) = find(files, &self.scope, Some(&group))
        {
            // The record of the old group does not apply to the new one.
            host_settings.release(self.setting.path())?;
            self.setting = setting;
            match self.write(self.level, host_settings, events) {
                // Gone again: the next group is another one.
                Err(Error::Unsupported(_) | Error::Gone(_)) => self.inode = None,
                answer => {
                    answer?;
                    self.inode = now;
                }
            }
        }
        self.adopt(files, host_settings)
    }

    fn adopt<F: KernelFiles>(&mut self, files: &F, host_settings: &mut HostSettings<'_, F>) -> Result<(), Error> {
        let Setting::Weight { path, normal } = &self.setting else { return Ok(()) };
        let ours = files.read(path).unwrap_or_default();
        let weight_of = |directory: &str| format!("{directory}/memory.swappiness");
        let now = self.setting.groups_below(files)?;
        for (directory, below) in &self.below {
            if below.inherits && now.get(directory) != Some(&below.inode) {
                host_settings.release(&weight_of(directory))?;
            }
        }
        self.below.retain(|directory, below| now.get(directory) == Some(&below.inode));
        // Parents come first.
        for (directory, inode) in now {
            if self.below.contains_key(&directory) {
                continue;
            }
            let above = directory.rsplit_once('/').and_then(|(above, _)| self.below.get(above));
            let path = weight_of(&directory);
            let inherits = above.is_none_or(|above| above.inherits)
                && files.read(&path).is_ok_and(|theirs| theirs.trim() == ours.trim());
            if inherits {
                // The group's owner may give it a weight of its own, which stays.
                let mark = Mark { path: path.clone(), value: ours.trim().to_owned() };
                host_settings.record_undo_if_marked(&path, &normal.to_string(), mark)?;
            }
            self.below.insert(directory, Below { inode, inherits });
        }
        Ok(())
    }

    /// Pages read back from swap since the last call.
    ///
    /// # Errors
    /// `Malformed`.
    pub fn refaults(&mut self, files: &impl KernelFiles) -> Result<u64, Error> {
        let counted = match &self.scope {
            Scope::Group(name) => group::find(files, name).ok().and_then(|group| group.refaults[1]),
            Scope::Host | Scope::Processes(_) => vmstat::vmstat(files)?.get("workingset_refault_anon"),
        };
        let since = counted.zip(self.before).map_or(0, |(now, before)| now.saturating_sub(before));
        self.before = counted;
        Ok(since)
    }
}

/// Values to write for data's level, as `path <- value`.
///
/// # Errors
/// As [`Swap::begin`].
pub fn would_write(
    files: &impl KernelFiles,
    scope: &Scope,
    group: Option<&Group>,
    levels: &Levels,
    gently: bool,
) -> Result<Option<String>, Error> {
    let Some(level) = levels.get(Class::Data).filter(|_| has_swap(files)) else { return Ok(None) };
    let setting = find(files, scope, group)?;
    let (path, value) = setting.at(level, gently)?;
    Ok(Some(format!("/{path} <- {value}")))
}

impl Setting {
    /// Path relative to the root.
    fn path(&self) -> &str {
        let (Setting::Weight { path, .. } | Setting::Most { path }) = self;
        path
    }

    /// Control groups that inherit from here at their creation: their directories, with inodes.
    fn groups_below(&self, files: &impl KernelFiles) -> Result<BTreeMap<String, u64>, Error> {
        let Setting::Weight { path, .. } = self else { return Ok(BTreeMap::new()) };
        let mut all: Vec<String> = limited::groups(files)?.into_iter().map(|group| group.directory).collect();
        all.sort();
        let topmost = all.first().cloned().unwrap_or_default();
        // The root group's weight is the host's own.
        let above = path.strip_suffix("/memory.swappiness").unwrap_or(&topmost);
        let is_below = |directory: &str| directory.strip_prefix(above).is_some_and(|below| below.starts_with('/'));
        // A group that is gone has no inode.
        let with_inode = |directory: String| Some((files.inode(&directory).ok()?, directory));
        let below = all.into_iter().filter(|directory| is_below(directory)).filter_map(with_inode);
        Ok(below.map(|(inode, directory)| (directory, inode)).collect())
    }

    /// File, and the value to write.
    fn at(&self, level: Level, gently: bool) -> Result<(&str, String), Error> {
        let swap_setting = Some(match self {
            Setting::Weight { .. } => SwapSetting::Weight,
            Setting::Most { .. } => SwapSetting::Most,
        });
        let capabilities = Capabilities { mlock: false, insertions: false, has_swap: true, swap_setting };
        match (backend::of(Class::Data, level, gently, capabilities), self) {
            (Ok(_), Setting::Weight { path, normal }) => {
                Ok((path, policy::swappiness(level, *normal, gently).to_string()))
            }
            (Ok(_), Setting::Most { path }) => Ok((path, "0".to_owned())),
            (Err(_), setting) => {
                let path = setting.path();
                let object = format!(
                    "data at a level of {level}: a control group of version 2 can have it at 100 only, by /{path}"
                );
                Err(Error::of_host("age", object, Errno::OPNOTSUPP))
            }
        }
    }
}

fn inode_of(files: &impl KernelFiles, group: Option<&Group>) -> Option<u64> {
    files.inode(group?.path.trim_start_matches('/')).ok()
}

/// Setting of the scope.
fn find(files: &impl KernelFiles, scope: &Scope, group: Option<&Group>) -> Result<Setting, Error> {
    match (scope, group) {
        (Scope::Host, _) => weight(files, "proc/sys/vm/swappiness".to_owned()),
        (_, Some(group)) => {
            let directory = group.path.trim_start_matches('/');
            let most = format!("{directory}/memory.swap.max");
            match weight(files, format!("{directory}/memory.swappiness")) {
                Err(Error::Unsupported(_)) if files.read(&most).is_ok() => Ok(Setting::Most { path: most }),
                answer => answer,
            }
        }
        (Scope::Group(_) | Scope::Processes(_), None) => {
            let object = "data of single processes: the kernel weighs it for the host and for control groups";
            Err(Error::of_host("age", object, Errno::OPNOTSUPP))
        }
    }
}

fn weight(files: &impl KernelFiles, path: String) -> Result<Setting, Error> {
    let text = files.read(&path).map_err(|errno| Error::of_host("read", format_args!("/{path}"), errno))?;
    let bad = |_| Error::malformed(format_args!("/{path}"), format_args!("{:?}, expected a number", text.trim()));
    let normal = text.trim().parse().map_err(bad)?;
    Ok(Setting::Weight { path, normal })
}

/// True if `/proc/swaps` has a line after its header.
pub fn has_swap(files: &impl KernelFiles) -> bool {
    files.read("proc/swaps").is_ok_and(|text| text.lines().count() > 1)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use linux::fake::FakeKernel;

    use super::*;
    use crate::levels::{Bounds, ByClass};

    const SWAPS: &str = "Filename Type Size Used Priority\n/dev/zram0 partition 1000 0 -2\n";

    fn kernel() -> FakeKernel {
        FakeKernel::new()
            .file("proc/swaps", SWAPS)
            .file("proc/sys/vm/swappiness", "60\n")
            .file("proc/self/mountinfo", "")
            .file("proc/vmstat", "workingset_refault_anon 5\n")
            .file(&format!("proc/{}/stat", linux::Pid::own()), &std::fs::read_to_string("/proc/self/stat").unwrap())
    }

    fn data(level: u8) -> Levels {
        let mut levels = ByClass::default();
        levels.set(Class::Data, Some(Level::clamped(level)));
        levels
    }

    const V1: &str = "30 20 0:26 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n";
    const V2: &str = "30 20 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";

    /// Begins on `kernel`, and returns the writes and the events.
    fn begun(
        kernel: &FakeKernel,
        scope: &Scope,
        group: Option<&Group>,
        level: u8,
    ) -> Result<(Vec<String>, Vec<Event>), Error> {
        let folder = tempfile::tempdir().unwrap();
        let mut host_settings = HostSettings::open(kernel, folder.path())?;
        let mut events = Vec::new();
        let begun = Swap::begin(kernel, scope, group, &data(level), false, &mut host_settings, &mut events);
        let written = kernel.writes();
        host_settings.restore()?;
        begun.map(|_| (written, events))
    }

    #[test]
    fn the_hosts_weight_is_written_and_restored() {
        let kernel = kernel();
        let (written, events) = begun(&kernel, &Scope::Host, None, 75).unwrap();
        assert_eq!(written, ["proc/sys/vm/swappiness <- 15"]);
        assert_eq!(events[0].to_string(), "/proc/sys/vm/swappiness <- 15 (data)");
        assert_eq!(kernel.read("proc/sys/vm/swappiness").unwrap().trim(), "60");
    }

    #[test]
    fn a_weight_that_another_program_wrote_meanwhile_stays_and_is_told() {
        let kernel = kernel();
        let folder = tempfile::tempdir().unwrap();
        let mut host_settings = HostSettings::open(&kernel, folder.path()).unwrap();
        let mut events = Vec::new();
        Swap::begin(&kernel, &Scope::Host, None, &data(75), false, &mut host_settings, &mut events).unwrap();
        kernel.add("proc/sys/vm/swappiness", "1\n");
        host_settings.restore().unwrap();
        assert_eq!(kernel.read("proc/sys/vm/swappiness").unwrap().trim(), "1");
        let line = "/proc/sys/vm/swappiness is 1, which another program has written (60 before)";
        assert_eq!(host_settings.left_alone()[0].to_string(), line);
    }

    #[test]
    fn a_version_2_group_can_swap_nothing_at_level_100_only() {
        let kernel = kernel().file("sys/fs/cgroup/a/memory.swap.max", "max\n").file("proc/self/mountinfo", V2);
        let (group, scope) = (group::find(&kernel, "a").unwrap(), Scope::Group("a".to_owned()));
        let (written, _) = begun(&kernel, &scope, Some(&group), 100).unwrap();
        assert_eq!(written, ["sys/fs/cgroup/a/memory.swap.max <- 0"]);
        assert_eq!(kernel.read("sys/fs/cgroup/a/memory.swap.max").unwrap().trim(), "max");
        let error = begun(&kernel, &scope, Some(&group), 50).unwrap_err().to_string();
        assert!(error.contains("at a level of 50") && error.contains("at 100 only"), "{error}");
    }

    #[test]
    fn a_version_1_group_has_its_own_weight() {
        let kernel = kernel().file("sys/fs/cgroup/memory/a/memory.swappiness", "60\n").file("proc/self/mountinfo", V1);
        let (group, scope) = (group::find(&kernel, "a").unwrap(), Scope::Group("a".to_owned()));
        let (written, _) = begun(&kernel, &scope, Some(&group), 100).unwrap();
        assert_eq!(written, ["sys/fs/cgroup/memory/a/memory.swappiness <- 0"]);
    }

    #[test]
    fn a_group_created_meanwhile_has_its_own_weight_at_the_end() {
        let in_group = |name: &str| format!("sys/fs/cgroup/memory/{name}/memory.swappiness");
        let kernel = ["a", "a/old", "b"]
            .iter()
            .fold(kernel().file("proc/self/mountinfo", V1), |kernel, name| kernel.file(&in_group(name), "60\n"));
        let (group, scope) = (group::find(&kernel, "a").unwrap(), Scope::Group("a".to_owned()));
        let folder = tempfile::tempdir().unwrap();
        let mut host_settings = HostSettings::open(&kernel, folder.path()).unwrap();
        let mut swap =
            Swap::begin(&kernel, &scope, Some(&group), &data(100), false, &mut host_settings, &mut Vec::new())
                .unwrap()
                .unwrap();
        let kernel_now = ["a/inherits", "a/has its own", "b/elsewhere"];
        for (name, value) in kernel_now.iter().zip(["0\n", "30\n", "0\n"]) {
            kernel.add(&in_group(name), value);
        }
        swap.follow(&kernel, &mut host_settings, &mut Vec::new()).unwrap();
        host_settings.restore().unwrap();
        let read = |name: &str| kernel.read(&in_group(name)).unwrap().trim().to_owned();
        assert_eq!(["a", "a/old", "a/inherits"].map(read), ["60", "60", "60"]);
        assert_eq!(["a/has its own", "b/elsewhere"].map(read), ["30", "0"]);
    }

    #[test]
    fn a_group_created_again_has_none_of_our_weights_at_the_end() {
        let in_group = |name: &str| format!("sys/fs/cgroup/memory/{name}/memory.swappiness");
        let kernel = ["a", "a/own"]
            .iter()
            .fold(kernel().file("proc/self/mountinfo", V1), |kernel, name| kernel.file(&in_group(name), "60\n"));
        let (group, scope) = (group::find(&kernel, "a").unwrap(), Scope::Group("a".to_owned()));
        let folder = tempfile::tempdir().unwrap();
        let mut host_settings = HostSettings::open(&kernel, folder.path()).unwrap();
        let mut events = Vec::new();
        let begun = Swap::begin(&kernel, &scope, Some(&group), &data(100), false, &mut host_settings, &mut events);
        let mut swap = begun.unwrap().unwrap();
        let again = |name: &str, value: &str| {
            kernel.remove(&format!("sys/fs/cgroup/memory/{name}"));
            kernel.add(&in_group(name), value);
        };
        // A group with its own weight inherits masu's when it is created again; a child that chose its own does not.
        again("a/own", "0\n");
        kernel.add(&in_group("a/own/below"), "0\n");
        kernel.add(&in_group("a/chose"), "30\n");
        kernel.add(&in_group("a/chose/below"), "0\n");
        swap.follow(&kernel, &mut host_settings, &mut events).unwrap();
        // Created again with its own weight, which it keeps.
        again("a/own", "45\n");
        swap.follow(&kernel, &mut host_settings, &mut events).unwrap();
        host_settings.restore().unwrap();
        let read = |name: &str| kernel.read(&in_group(name)).unwrap().trim().to_owned();
        assert_eq!(["a", "a/own", "a/chose", "a/chose/below"].map(read), ["60", "45", "30", "0"]);
    }

    #[test]
    fn a_restarted_service_has_its_level_again() {
        let most = "sys/fs/cgroup/a/memory.swap.max";
        let kernel = kernel().file(most, "max\n").file("proc/self/mountinfo", V2);
        let (group, scope) = (group::find(&kernel, "a").unwrap(), Scope::Group("a".to_owned()));
        let folder = tempfile::tempdir().unwrap();
        let mut host_settings = HostSettings::open(&kernel, folder.path()).unwrap();
        let mut events = Vec::new();
        let begun = Swap::begin(&kernel, &scope, Some(&group), &data(100), false, &mut host_settings, &mut events);
        let mut swap = begun.unwrap().unwrap();
        kernel.remove("sys/fs/cgroup/a");
        swap.follow(&kernel, &mut host_settings, &mut events).unwrap();
        kernel.add(most, "4096\n");
        swap.follow(&kernel, &mut host_settings, &mut events).unwrap();
        swap.follow(&kernel, &mut host_settings, &mut events).unwrap();
        assert_eq!((kernel.read(most).unwrap().trim(), events.len()), ("0", 2), "{events:?}");
        host_settings.restore().unwrap();
        assert_eq!(kernel.read(most).unwrap().trim(), "4096", "not what the group before it had");
    }

    #[test]
    fn without_swap_there_is_nothing_to_do_and_single_processes_have_no_weight() {
        let kernel = kernel().file("proc/swaps", "Filename Type Size Used Priority\n");
        let (written, events) = begun(&kernel, &Scope::Host, None, 100).unwrap();
        assert_eq!((written.len(), events.len()), (0, 1));
        assert!(events[0].to_string().contains("there is no swap"));
        let error = begun(&self::kernel(), &Scope::Processes(BTreeSet::new()), None, 100).unwrap_err();
        assert!(matches!(error, Error::Unsupported(_)), "{error}");
        assert_eq!(Bounds::fixed(Level::NEVER).low, Level::NEVER);
    }
}
