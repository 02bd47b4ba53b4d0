//! Who uses memory for what.
//!
//! The frames of the host, or of a control group, are asked what they are used for: all of them, or a sample with a bound on its error.
//! Only one thing is not to be seen at a frame, whether it is code: that is found out from the page tables of those who run it. Of
//! some processes the page tables say what there is, and the frames only where it stands.

mod code;
mod frame_set;
mod kind;
mod memory;
mod processes;
mod tally;

use std::collections::BTreeSet;
use std::time::Instant;

use access::refaults::Counts;
use linux::capabilities::{self, Capability};
use linux::cgroup::group::Group;
use linux::kpagecgroup::GroupTable;
use linux::kpageflags::FrameTable;
use linux::probe::Known;
use linux::{Error, KernelFiles, NotRead, Pid, Untrusted, lru_gen, pagemap, stat, status, vmstat};
use serde::Serialize;
use units::Bytes;

use crate::class::{Class, Rest};
use code::Code;
use frame_set::FrameSet;
use memory::Memory;
use processes::{Frames, HostFrames};
use tally::{Charged, Tally};

/// How closely to look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closeness {
    /// At some thousand blocks of frames, drawn by chance from this seed.
    Sampled {
        /// The same seed looks at the same frames: what two looks differ by has changed.
        seed: u64,
    },
    /// At every frame.
    Exact,
}

/// What was found.
#[derive(Clone, Debug, Serialize)]
pub struct Census {
    /// What the kernel ages. Pages that several have count once.
    pub classes: Vec<OfClass>,
    /// The rest of the memory; of processes what they map of it: huge pages of the pool, and buffers of the kernel and its drivers.
    pub rest: Vec<OfRest>,
    /// Pages of files that came back soon after they had gone, since boot, or since the control group was made; `None` where
    /// nobody counts them.
    pub file_refaults: Option<u64>,
    /// The same of data and shared memory, which come back from swap.
    pub swap_refaults: Option<u64>,
    /// Those with memory of their own, most first.
    pub processes: Vec<OfProcess>,
    /// Processes that could not be looked at.
    pub processes_not_read: u64,
    /// The same by reason.
    pub not_read: Vec<NotRead>,
    /// We are in a namespace of process ids: the processes outside of it are not seen, and their code counts as read-only data.
    pub in_pid_namespace: bool,
    /// The part of the frames that was looked at.
    pub sampled_fraction: f64,
    /// With 95 % certainty each amount is off by no more than this.
    pub error_bound_bytes: Bytes,
    /// The time that looking took.
    pub cost_us: u64,
}

/// What one class has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct OfClass {
    /// Which.
    pub class: Class,
    /// All of it.
    pub bytes: Bytes,
    /// On the active list; not known of a kernel that ages by generations.
    pub active_bytes: Known<Bytes>,
    /// On the inactive list: the next to go.
    pub idle_bytes: Known<Bytes>,
    /// On neither, since it may not be taken.
    pub locked_bytes: Bytes,
    /// With 95 % certainty each of these is off by no more than this.
    pub error_bound_bytes: Bytes,
    /// Pages that came back soon after they had gone, since somebody counts them by class ([`Census::counted`]).
    pub refaults: Known<u64>,
}

/// Memory that the kernel does not age.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct OfRest {
    /// What for.
    pub rest: Rest,
    /// How much.
    pub bytes: Bytes,
    /// With 95 % certainty it is off by no more than this.
    pub error_bound_bytes: Bytes,
}

/// What one process has in memory. Pages that several have count for each.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct OfProcess {
    /// Which.
    pub pid: Pid,
    /// Its command.
    pub name: Untrusted,
    /// Files that it runs.
    pub code_bytes: Bytes,
    /// Files that it maps otherwise.
    pub read_only_bytes: Bytes,
    /// Its own.
    pub data_bytes: Bytes,
    /// Memory between programs.
    pub shared_bytes: Bytes,
    /// How often it waited for a page to come from a disk.
    pub major_faults: u64,
}

impl OfProcess {
    /// All that it has in memory.
    pub fn resident(&self) -> Bytes {
        [self.code_bytes, self.read_only_bytes, self.data_bytes, self.shared_bytes].into_iter().sum()
    }
}

/// What takes the place of the two lists, if they are not what the kernel ages by.
fn why_no_lists(files: &impl KernelFiles) -> Result<Option<&'static str>, Error> {
    Ok(lru_gen::is_on(files)?
        .then_some("this kernel ages by generations (MGLRU), and does not show of which one a page is"))
}

/// The frames' flags, if the kernel also tells which frame a page is in.
///
/// User 0 may open the flags without any capability, and then reads zeros for the frames' numbers: a census of that would be wrong
/// and look right.
fn frame_table(files: &impl KernelFiles) -> Result<FrameTable, Error> {
    let table = FrameTable::open()?;
    capabilities::need(files, Capability::SysAdmin, "frame numbers")?;
    pagemap::need_frame_numbers()?;
    Ok(table)
}

/// Looks at the whole host.
///
/// # Errors
/// `Denied` without CAP_SYS_ADMIN, which the frames' flags ask for; `Unsupported` for a kernel that does not show them.
pub fn of_host(files: &impl KernelFiles, closeness: Closeness) -> Result<Census, Error> {
    let begin = Instant::now();
    let table = frame_table(files)?;
    let memory = Memory::of(files)?;
    let host = HostFrames { table: &table, memory: &memory };
    let code = code::of_host(files, host)?;
    let tally = Tally::of(&table, &memory, &code.frames, None, closeness)?;
    let counted = vmstat::vmstat(files)?;
    let refaults = ["workingset_refault_file", "workingset_refault_anon"].map(|name| counted.get(name));
    of_tally(files, &tally, code, None, refaults, begin)
}

/// Looks at what is charged to a control group and those below it, page cache included.
///
/// # Errors
/// `Denied` without CAP_SYS_ADMIN; `Unsupported` for a kernel that does not say who is charged.
pub fn of_group(files: &impl KernelFiles, group: &Group, closeness: Closeness) -> Result<Census, Error> {
    let begin = Instant::now();
    let table = frame_table(files)?;
    let memory = Memory::of(files)?;
    let host = HostFrames { table: &table, memory: &memory };
    let code = code::of_host(files, host)?;
    let charged = Charged { table: GroupTable::open()?, groups: &group.inodes };
    let tally = Tally::of(&table, &memory, &code.frames, Some(&charged), closeness)?;
    of_tally(files, &tally, code, Some(&group.processes), group.refaults, begin)
}

fn of_tally(
    files: &impl KernelFiles,
    tally: &Tally,
    code: Code,
    only: Option<&BTreeSet<Pid>>,
    [file_refaults, swap_refaults]: [Option<u64>; 2],
    begin: Instant,
) -> Result<Census, Error> {
    let no_lists = why_no_lists(files)?;
    let classes =
        Class::ALL.iter().map(|class| tally.class(*class).of_class(*class, no_lists, not_counted(*class))).collect();
    let runners = code.runners.into_iter().filter(|runner| only.is_none_or(|only| only.contains(&runner.pid)));
    let processes = runners.map(|runner| of_runner(files, runner)).collect();
    let census = Census {
        rest: Rest::ALL.iter().map(|rest| tally.rest(*rest)).collect(),
        file_refaults,
        swap_refaults,
        processes_not_read: code.not_read.len() as u64,
        not_read: NotRead::of(&code.not_read),
        in_pid_namespace: in_pid_namespace(files),
        sampled_fraction: tally.sampled_fraction(),
        ..Census::of(classes, processes)
    };
    Ok(census.took(begin))
}

/// By itself the kernel does not count by class.
fn not_counted(class: Class) -> Known<u64> {
    Known::Unknown(if class.is_of_files() {
        "the kernel counts those of files together; masu counts them apart while it watches".to_owned()
    } else {
        "the kernel counts those of data and shared memory together".to_owned()
    })
}

/// Looks at some processes. One that ends meanwhile has nothing.
///
/// # Errors
/// `Denied` without CAP_SYS_ADMIN, or without the right to look at one of them.
pub fn of_processes(files: &impl KernelFiles, pids: &BTreeSet<Pid>, closeness: Closeness) -> Result<Census, Error> {
    let begin = Instant::now();
    let table = frame_table(files)?;
    let memory = Memory::of(files)?;
    let host = HostFrames { table: &table, memory: &memory };
    let code = code::of_host(files, host)?;
    let (mut all, mut processes) = (Frames::default(), Vec::new());
    let mut unanswered = Vec::new();
    for pid in pids {
        let own = match frames_of(files, *pid, &code.frames, host) {
            Err(error) if error.is_gone() => continue,
            Err(error) if error.is_unanswered() => {
                unanswered.push(error);
                continue;
            }
            own => own?,
        };
        let Ok(status) = status::status(files, *pid) else { continue };
        processes.push(OfProcess {
            pid: *pid,
            name: status.name,
            code_bytes: own.bytes(Class::Code),
            read_only_bytes: own.bytes(Class::ReadOnly),
            data_bytes: own.bytes(Class::Data),
            shared_bytes: own.bytes(Class::Shared),
            major_faults: major_faults(files, *pid),
        });
        all.add_all(&own);
    }
    if let Some(error) = unanswered.first().filter(|_| processes.is_empty()) {
        return Err(error.clone());
    }
    let (classes, sampled_fraction) = all.by_class(&table, why_no_lists(files)?, closeness)?;
    let census = Census {
        rest: all.rest(),
        sampled_fraction,
        processes_not_read: unanswered.len() as u64,
        not_read: NotRead::of(&unanswered),
        in_pid_namespace: in_pid_namespace(files),
        ..Census::of(classes, processes)
    };
    Ok(census.took(begin))
}

/// What a process has. One that becomes another program meanwhile (execve) loses its memory under our hands, and has other: it is asked
/// again.
fn frames_of(files: &impl KernelFiles, pid: Pid, code: &FrameSet, host: HostFrames<'_>) -> Result<Frames, Error> {
    let own = || Frames::of(files, pid, code, host);
    let again = |error: Error| if error.is_gone() { own() } else { Err(error) };
    own().or_else(again).or_else(again)
}

/// True where processes are hidden from us, because they are outside of our namespace of process ids.
fn in_pid_namespace(files: &impl KernelFiles) -> bool {
    /// That of the first namespace: PROC_PID_INIT_INO in include/linux/proc_ns.h.
    const INITIAL: u64 = 0xEFFF_FFFC;
    files.inode("proc/self/ns/pid").is_ok_and(|inode| inode != INITIAL)
}

impl Census {
    fn of(classes: Vec<OfClass>, mut processes: Vec<OfProcess>) -> Census {
        processes.sort_by_key(|process| (std::cmp::Reverse(process.resident()), process.pid));
        Census {
            classes,
            rest: Vec::new(),
            file_refaults: None,
            swap_refaults: None,
            processes,
            processes_not_read: 0,
            not_read: Vec::new(),
            in_pid_namespace: false,
            sampled_fraction: 1.0,
            error_bound_bytes: Bytes(0),
            cost_us: 0,
        }
    }

    /// With what came back of files since somebody counts it by class; or with why nobody can.
    #[must_use]
    pub fn counted(mut self, counts: &Result<Counts, String>) -> Census {
        for of in self.classes.iter_mut().filter(|of| of.class.is_of_files()) {
            of.refaults = Known::from(counts.as_ref().map(|counts| match of.class {
                Class::Code => counts.code.0,
                Class::ReadOnly => counts.read_only.0,
                Class::Cache | Class::Data | Class::Shared => counts.cache.0,
            }));
        }
        self
    }

    /// With all that follows from what was found.
    fn took(mut self, begin: Instant) -> Census {
        let of_classes = self.classes.iter().map(|of| of.error_bound_bytes);
        let bounds = of_classes.chain(self.rest.iter().map(|of| of.error_bound_bytes));
        self.error_bound_bytes = bounds.max().unwrap_or_default();
        self.cost_us = u64::try_from(begin.elapsed().as_micros()).unwrap_or(u64::MAX);
        self
    }
}

fn of_runner(files: &impl KernelFiles, runner: code::Runner) -> OfProcess {
    let code = runner.code.bytes();
    let status = runner.status;
    OfProcess {
        pid: runner.pid,
        name: status.name,
        code_bytes: code,
        // The kernel counts for each processor apart, and adds up now and then: the sum may lag behind the page tables.
        read_only_bytes: status.rss_file.saturating_sub(code),
        data_bytes: status.rss_anon,
        shared_bytes: status.rss_shmem,
        major_faults: major_faults(files, runner.pid),
    }
}

/// None of a process that has just ended.
fn major_faults(files: &impl KernelFiles, pid: Pid) -> u64 {
    stat::stat(files, pid).map_or(0, |stat| stat.major_faults)
}

#[cfg(test)]
mod tests {
    use linux::fake::FakeKernel;

    use super::*;

    #[test]
    fn only_the_first_namespace_of_process_ids_has_all_of_them() {
        assert!(in_pid_namespace(&FakeKernel::new().file("proc/self/ns/pid", "")));
        // A kernel without namespaces.
        assert!(!in_pid_namespace(&FakeKernel::new()));
    }
}
