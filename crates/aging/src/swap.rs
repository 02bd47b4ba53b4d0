//! How eagerly data is swapped: the weight that the kernel gives it beside files, turned for as long as we run.
//!
//! A control group of version 1 that is made meanwhile has its weight from the one above, which is ours: it is put back, too.

use std::collections::BTreeSet;

use linux::cgroup::group::{self, Group};
use linux::cgroup::limited;
use linux::knobs::Knobs;
use linux::{Error, KernelFiles, vmstat};
use rustix::io::Errno;

use crate::class::Class;
use crate::dials::{Dial, Dials};
use crate::keep::Scope;
use crate::policy;
use crate::report::Event;

/// The knob, and what it was.
#[derive(Debug)]
pub struct Swap {
    knob: Knob,
    gently: bool,
    /// The control group, by name, for its refaults.
    group: Option<String>,
    before: Option<u64>,
    /// Directories of control groups that have their weight from somebody else, or have been seen to.
    known: BTreeSet<String>,
}

/// Why nothing is turned where there is none.
pub const NO_SWAP: &str = "there is no swap, so data is not aged at all";

/// Relative to the root.
#[derive(Debug)]
enum Knob {
    /// A weight, and what it was before us.
    Weight { path: String, normal: u32 },
    /// Version 2 of control groups has no weight, but the most that a group may have in swap.
    Most { path: String },
}

impl Swap {
    /// Turns the knob if data has a dial. Says so if there is nothing to turn. `gently`: swapping stays possible even at 100.
    ///
    /// # Errors
    /// `Denied` without root; `Unsupported` where the dial means nothing: for single processes, and between 0 and 100 for a
    /// group of version 2.
    pub fn begin<F: KernelFiles>(
        files: &F,
        scope: &Scope,
        group: Option<&Group>,
        dials: &Dials,
        gently: bool,
        knobs: &mut Knobs<'_, F>,
        events: &mut Vec<Event>,
    ) -> Result<Option<Swap>, Error> {
        let Some(dial) = dials.get(Class::Data) else { return Ok(None) };
        if !has_swap(files) {
            events.push(Event::Nothing { class: Class::Data, why: NO_SWAP.to_owned() });
            return Ok(None);
        }
        let knob = find(files, scope, group)?;
        let name = if let Scope::Group(name) = scope { Some(name.clone()) } else { None };
        let known = knob.groups_below(files)?;
        let mut swap = Swap { knob, gently, group: name, before: None, known };
        swap.refaults(files)?;
        swap.turn(dial, knobs, events)?;
        Ok(Some(swap))
    }

    /// Turns it to where the dial is.
    ///
    /// # Errors
    /// As [`Swap::begin`].
    pub fn turn<F: KernelFiles>(
        &mut self,
        dial: Dial,
        knobs: &mut Knobs<'_, F>,
        events: &mut Vec<Event>,
    ) -> Result<(), Error> {
        let (path, value) = self.knob.at(dial, self.gently)?;
        knobs.turn(path, &value)?;
        events.push(Event::Turned { path: format!("/{path}"), value, class: Class::Data });
        Ok(())
    }

    /// Looks for control groups that were made since, and have our weight by that: in the end they have what they would have had.
    ///
    /// # Errors
    /// When the journal cannot be written.
    pub fn adopt<F: KernelFiles>(&mut self, files: &F, knobs: &mut Knobs<'_, F>) -> Result<(), Error> {
        let Knob::Weight { path, normal } = &self.knob else { return Ok(()) };
        let ours = files.read(path).unwrap_or_default();
        for directory in self.knob.groups_below(files)? {
            let path = format!("{directory}/memory.swappiness");
            if !self.known.contains(&directory) && files.read(&path).is_ok_and(|theirs| theirs.trim() == ours.trim()) {
                knobs.promise(&path, &normal.to_string())?;
            }
            self.known.insert(directory);
        }
        Ok(())
    }

    /// Pages that came back from swap since the last call.
    ///
    /// # Errors
    /// `Malformed`.
    pub fn refaults(&mut self, files: &impl KernelFiles) -> Result<u64, Error> {
        let counted = match &self.group {
            None => vmstat::vmstat(files)?.get("workingset_refault_anon"),
            Some(name) => group::find(files, name).ok().and_then(|group| group.refaults[1]),
        };
        let since = counted.zip(self.before).map_or(0, |(now, before)| now.saturating_sub(before));
        self.before = counted;
        Ok(since)
    }
}

/// What would be written for data's dial, as `path <- value`.
///
/// # Errors
/// As [`Swap::begin`].
pub fn would_write(
    files: &impl KernelFiles,
    scope: &Scope,
    group: Option<&Group>,
    dials: &Dials,
    gently: bool,
) -> Result<Option<String>, Error> {
    let Some(dial) = dials.get(Class::Data).filter(|_| has_swap(files)) else { return Ok(None) };
    let knob = find(files, scope, group)?;
    let (path, value) = knob.at(dial, gently)?;
    Ok(Some(format!("/{path} <- {value}")))
}

impl Knob {
    /// The directories of the control groups that take their weight from here when they are made.
    fn groups_below(&self, files: &impl KernelFiles) -> Result<BTreeSet<String>, Error> {
        let Knob::Weight { path, .. } = self else { return Ok(BTreeSet::new()) };
        let above = path.strip_suffix("/memory.swappiness");
        let is_below = |directory: &str| {
            above.is_none_or(|above| directory.strip_prefix(above).is_some_and(|below| below.starts_with('/')))
        };
        let all = limited::groups(files)?.into_iter().map(|group| group.directory);
        Ok(all.filter(|directory| is_below(directory)).collect())
    }

    /// The file, and what is to stand in it.
    fn at(&self, dial: Dial, gently: bool) -> Result<(&str, String), Error> {
        match self {
            Knob::Weight { path, normal } => Ok((path, policy::swappiness(dial, *normal, gently).to_string())),
            Knob::Most { path } if dial == Dial::NEVER && !gently => Ok((path, "0".to_owned())),
            Knob::Most { path } => {
                let object = format!(
                    "data at a dial of {dial}: a control group of version 2 can have it at 100 only, by /{path}"
                );
                Err(Error::of_host("age", object, Errno::OPNOTSUPP))
            }
        }
    }
}

/// The knob of whoever's pages are meant.
fn find(files: &impl KernelFiles, scope: &Scope, group: Option<&Group>) -> Result<Knob, Error> {
    match (scope, group) {
        (Scope::Host, _) => weight(files, "proc/sys/vm/swappiness".to_owned()),
        (_, Some(group)) => {
            let directory = group.path.trim_start_matches('/');
            let most = format!("{directory}/memory.swap.max");
            match weight(files, format!("{directory}/memory.swappiness")) {
                Err(Error::Unsupported(_)) if files.read(&most).is_ok() => Ok(Knob::Most { path: most }),
                answer => answer,
            }
        }
        (Scope::Group(_) | Scope::Processes(_), None) => {
            let object = "data of single processes: the kernel weighs it for the host and for control groups";
            Err(Error::of_host("age", object, Errno::OPNOTSUPP))
        }
    }
}

fn weight(files: &impl KernelFiles, path: String) -> Result<Knob, Error> {
    let text = files.read(&path).map_err(|errno| Error::of_host("read", format_args!("/{path}"), errno))?;
    let bad = |_| Error::malformed(format_args!("/{path}"), format_args!("{:?}, expected a number", text.trim()));
    let normal = text.trim().parse().map_err(bad)?;
    Ok(Knob::Weight { path, normal })
}

/// `/proc/swaps` has a line for each, after one of names.
pub fn has_swap(files: &impl KernelFiles) -> bool {
    files.read("proc/swaps").is_ok_and(|text| text.lines().count() > 1)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use linux::fake::FakeKernel;

    use super::*;
    use crate::dials::{Bounds, ByClass};

    const SWAPS: &str = "Filename Type Size Used Priority\n/dev/zram0 partition 1000 0 -2\n";

    fn kernel() -> FakeKernel {
        FakeKernel::new()
            .file("proc/swaps", SWAPS)
            .file("proc/sys/vm/swappiness", "60\n")
            .file("proc/self/mountinfo", "")
            .file("proc/vmstat", "workingset_refault_anon 5\n")
            .file(&format!("proc/{}/stat", linux::Pid::own()), &std::fs::read_to_string("/proc/self/stat").unwrap())
    }

    fn data(dial: u8) -> Dials {
        let mut dials = ByClass::default();
        dials.set(Class::Data, Some(Dial::clamped(dial)));
        dials
    }

    const V1: &str = "30 20 0:26 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n";
    const V2: &str = "30 20 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";

    /// Begins on `kernel`, and gives what was written and said.
    fn begun(
        kernel: &FakeKernel,
        scope: &Scope,
        group: Option<&Group>,
        dial: u8,
    ) -> Result<(Vec<String>, Vec<Event>), Error> {
        let folder = tempfile::tempdir().unwrap();
        let mut knobs = Knobs::open(kernel, folder.path())?;
        let mut events = Vec::new();
        let begun = Swap::begin(kernel, scope, group, &data(dial), false, &mut knobs, &mut events);
        let written = kernel.writes();
        knobs.put_back()?;
        begun.map(|_| (written, events))
    }

    #[test]
    fn the_hosts_weight_is_turned_and_put_back() {
        let kernel = kernel();
        let (written, events) = begun(&kernel, &Scope::Host, None, 75).unwrap();
        assert_eq!(written, ["proc/sys/vm/swappiness <- 15"]);
        assert_eq!(events[0].to_string(), "/proc/sys/vm/swappiness <- 15 (data)");
        assert_eq!(kernel.read("proc/sys/vm/swappiness").unwrap().trim(), "60");
    }

    #[test]
    fn a_group_of_version_2_can_be_told_to_swap_nothing_and_nothing_else() {
        let kernel = kernel().file("sys/fs/cgroup/a/memory.swap.max", "max\n").file("proc/self/mountinfo", V2);
        let (group, scope) = (group::find(&kernel, "a").unwrap(), Scope::Group("a".to_owned()));
        let (written, _) = begun(&kernel, &scope, Some(&group), 100).unwrap();
        assert_eq!(written, ["sys/fs/cgroup/a/memory.swap.max <- 0"]);
        assert_eq!(kernel.read("sys/fs/cgroup/a/memory.swap.max").unwrap().trim(), "max");
        let error = begun(&kernel, &scope, Some(&group), 50).unwrap_err().to_string();
        assert!(error.contains("at a dial of 50") && error.contains("at 100 only"), "{error}");
    }

    #[test]
    fn a_group_of_version_1_has_a_weight_of_its_own() {
        let kernel = kernel().file("sys/fs/cgroup/memory/a/memory.swappiness", "60\n").file("proc/self/mountinfo", V1);
        let (group, scope) = (group::find(&kernel, "a").unwrap(), Scope::Group("a".to_owned()));
        let (written, _) = begun(&kernel, &scope, Some(&group), 100).unwrap();
        assert_eq!(written, ["sys/fs/cgroup/memory/a/memory.swappiness <- 0"]);
    }

    #[test]
    fn a_group_that_was_made_meanwhile_has_its_own_weight_in_the_end() {
        let in_group = |name: &str| format!("sys/fs/cgroup/memory/{name}/memory.swappiness");
        let kernel = ["a", "a/old", "b"]
            .iter()
            .fold(kernel().file("proc/self/mountinfo", V1), |kernel, name| kernel.file(&in_group(name), "60\n"));
        let (group, scope) = (group::find(&kernel, "a").unwrap(), Scope::Group("a".to_owned()));
        let folder = tempfile::tempdir().unwrap();
        let mut knobs = Knobs::open(&kernel, folder.path()).unwrap();
        let mut swap = Swap::begin(&kernel, &scope, Some(&group), &data(100), false, &mut knobs, &mut Vec::new())
            .unwrap()
            .unwrap();
        let kernel_now = ["a/inherits", "a/has its own", "b/elsewhere"];
        for (name, value) in kernel_now.iter().zip(["0\n", "30\n", "0\n"]) {
            kernel.add(&in_group(name), value);
        }
        swap.adopt(&kernel, &mut knobs).unwrap();
        knobs.put_back().unwrap();
        let read = |name: &str| kernel.read(&in_group(name)).unwrap().trim().to_owned();
        assert_eq!(["a", "a/old", "a/inherits"].map(read), ["60", "60", "60"]);
        assert_eq!(["a/has its own", "b/elsewhere"].map(read), ["30", "0"]);
    }

    #[test]
    fn without_swap_there_is_nothing_to_do_and_single_processes_have_no_weight() {
        let kernel = kernel().file("proc/swaps", "Filename Type Size Used Priority\n");
        let (written, events) = begun(&kernel, &Scope::Host, None, 100).unwrap();
        assert_eq!((written.len(), events.len()), (0, 1));
        assert!(events[0].to_string().contains("there is no swap"));
        let error = begun(&self::kernel(), &Scope::Processes(BTreeSet::new()), None, 100).unwrap_err();
        assert!(matches!(error, Error::Unsupported(_)), "{error}");
        assert_eq!(Bounds::fixed(Dial::NEVER).low, Dial::NEVER);
    }
}
