//! Census of memory by use.
//!
//! The census reads the frames of the host, or of a control group: all of them, or a sample with a bound on its error.
//! The frames show everything but code, which is found in the page tables of all processes. For a set of processes, the
//! page tables give the amounts, and the frames only the LRU list.

mod accessed;
mod code;
pub mod files;
mod frame_set;
pub mod groups;
mod kind;
mod memory;
mod processes;
mod tally;

use std::collections::BTreeSet;
use std::time::Instant;

use access::backend::Unavailable;
use access::refaults::Counts;
use linux::capabilities::{self, Capability};
use linux::cgroup::charges::Charges;
use linux::cgroup::group::Group;
use linux::halted::{HaltedProcess, halted_among};
use linux::kpagecgroup::GroupTable;
use linux::kpageflags::FrameTable;
use linux::probe::Known;
use linux::processes::some_are_hidden;
use linux::zoneinfo::{Zone, zoneinfo};
use linux::{Error, KernelFiles, NotRead, Pid, Untrusted, lru_gen, pagemap, stat, status, vmstat};
use serde::{Deserialize, Serialize};
use units::{Bytes, Pages, cast};

use crate::class::{Class, Rest};
use accessed::Accessed;
use code::Code;
use frame_set::FrameSet;
use memory::Memory;
use processes::{Frames, HostFrames};
use tally::{Charged, Tally};

/// Extent of the scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closeness {
    /// Some thousand blocks of frames, drawn at random from this seed.
    Sampled {
        /// The same seed reads the same frames, so a difference between two censuses is a change.
        seed: u64,
    },
    /// All frames.
    Exact,
}

/// Result of a census.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct Census {
    /// Memory that the kernel ages. Pages shared by several processes count once.
    pub classes: Vec<OfClass>,
    /// Other memory. For a set of processes, the part that they map: huge pages of the pool, and buffers of the kernel
    /// and its drivers.
    pub rest: Vec<OfRest>,
    /// The kernel's own count of a control group; `None` for others, and where the kernel has none.
    pub of_kernel: Option<Charges>,
    /// Memory that exists, and the part that the kernel hands out; `None` but for the host.
    pub managed: Option<Managed>,
    /// Refaults of file pages, since boot or since the creation of the control group; `None` without such a counter.
    pub file_refaults: Option<u64>,
    /// Refaults of data and shared memory, from swap.
    pub swap_refaults: Option<u64>,
    /// Processes with memory of their own, largest first.
    pub processes: Vec<OfProcess>,
    /// Number of processes that could not be read.
    pub processes_not_read: u64,
    /// Processes that could not be read, by reason.
    pub not_read: Vec<NotRead>,
    /// Processes too large to read their accessed bits: their memory counts as idle by the kernel's list alone.
    pub too_large: u64,
    /// Processes that are frozen or stopped: until they run, no access is no sign of idle memory.
    #[serde(default)]
    pub halted: Vec<HaltedProcess>,
    /// masu runs in a pid namespace: processes outside of it are invisible, and their code counts as read-only data.
    pub in_pid_namespace: bool,
    /// Fraction of the frames that was read.
    pub sampled_fraction: f64,
    /// 95 % confidence bound of each amount.
    pub error_bound_bytes: Bytes,
    /// Duration of the census.
    pub cost_us: u64,
}

/// Memory of the host. The difference is reserved at boot, or a balloon driver gave it to the hypervisor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct Managed {
    /// Memory that exists.
    pub present_bytes: Bytes,
    /// Memory that the kernel hands out.
    pub managed_bytes: Bytes,
}

impl Managed {
    fn of(zones: &[Zone]) -> Managed {
        let sum = |of: fn(&Zone) -> Pages| zones.iter().map(|zone| of(zone).bytes()).sum();
        Managed { present_bytes: sum(|zone| zone.present), managed_bytes: sum(|zone| zone.managed) }
    }
}

/// Memory of one class.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct OfClass {
    /// Class.
    pub class: Class,
    /// Total.
    pub bytes: Bytes,
    /// On the active list; unknown on a kernel that ages by generations.
    pub active_bytes: Known<Bytes>,
    /// On the inactive list.
    pub inactive_bytes: Known<Bytes>,
    /// The next to be evicted: on the inactive list, without the pages that the page tables show as accessed since the
    /// kernel last looked. The kernel would activate those.
    pub idle_bytes: Known<Bytes>,
    /// On neither list, because it is unevictable.
    pub locked_bytes: Bytes,
    /// Part of the total that was freed lazily (MADV_FREE): the kernel drops it first, and needs no swap.
    pub lazily_freed_bytes: Bytes,
    /// 95 % confidence bound of each of these amounts.
    pub error_bound_bytes: Bytes,
    /// Refaults since the start of counting by class ([`Census::counted`]).
    pub refaults: Known<u64>,
}

impl OfClass {
    /// Leaves out of the idle memory what the page tables show as accessed.
    fn without_accessed(self, accessed: Bytes) -> OfClass {
        let most = self.bytes.saturating_sub(accessed);
        let idle_bytes = match self.idle_bytes {
            Known::Value(idle) => Known::Value(idle.min(most)),
            unknown => unknown,
        };
        OfClass { idle_bytes, ..self }
    }
}

/// Memory that the kernel does not age.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct OfRest {
    /// Use.
    pub rest: Rest,
    /// Amount.
    pub bytes: Bytes,
    /// 95 % confidence bound.
    pub error_bound_bytes: Bytes,
}

/// Resident memory of one process. Pages shared by several processes count for each.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct OfProcess {
    /// Pid.
    pub pid: Pid,
    /// Command name.
    pub name: Untrusted,
    /// Executable file mappings.
    pub code_bytes: Bytes,
    /// Other file mappings.
    pub read_only_bytes: Bytes,
    /// Private memory.
    pub data_bytes: Bytes,
    /// Shared memory.
    pub shared_bytes: Bytes,
    /// Major faults: page faults that waited for a disk.
    pub major_faults: u64,
}

impl OfProcess {
    /// Resident memory in all.
    pub fn resident(&self) -> Bytes {
        [self.code_bytes, self.read_only_bytes, self.data_bytes, self.shared_bytes].into_iter().sum()
    }
}

/// Replacement of the two LRU lists, if the kernel ages by another mechanism.
fn why_no_lists(files: &impl KernelFiles) -> Result<Option<&'static str>, Error> {
    Ok(lru_gen::is_on(files)?
        .then_some("this kernel ages by generations (MGLRU), and does not show of which one a page is"))
}

/// Flags of the frames, if the kernel also shows the frame of a page.
///
/// User 0 can open the flags without any capability, but then reads zeros as frame numbers. A census from zeros would
/// be wrong and look right.
fn frame_table(files: &impl KernelFiles) -> Result<FrameTable, Error> {
    let table = FrameTable::open()?;
    capabilities::need(files, Capability::SysAdmin, "frame numbers")?;
    pagemap::need_frame_numbers()?;
    Ok(table)
}

/// Census of the whole host.
///
/// # Errors
/// `Denied` without CAP_SYS_ADMIN, which the frames' flags require; `Unsupported` on a kernel without them.
pub fn of_host(files: &impl KernelFiles, closeness: Closeness) -> Result<Census, Error> {
    let begin = Instant::now();
    let table = frame_table(files)?;
    let memory = Memory::of(files)?;
    let host = HostFrames { table: &table, memory: &memory };
    let code = code::of_host(files, host)?;
    let tally = Tally::of_host(host, &code, closeness)?;
    let counted = vmstat::vmstat(files)?;
    let refaults = ["workingset_refault_file", "workingset_refault_anon"].map(|name| counted.get(name));
    let census = of_tally(files, &tally, code, None, refaults, begin)?;
    Ok(Census { managed: Some(Managed::of(&zoneinfo(files)?)), ..census })
}

/// Census of the memory charged to a control group and its descendants, page cache included.
///
/// # Errors
/// `Denied` without CAP_SYS_ADMIN; `Unsupported` on a kernel that does not show the charged group.
pub fn of_group(files: &impl KernelFiles, group: &Group, closeness: Closeness) -> Result<Census, Error> {
    let begin = Instant::now();
    let table = frame_table(files)?;
    let memory = Memory::of(files)?;
    let host = HostFrames { table: &table, memory: &memory };
    let code = code::of_host(files, host)?;
    let charged = Charged { table: GroupTable::open()?, groups: &group.inodes };
    let tally = Tally::of_groups(host, &code, &charged, closeness)?;
    let census = of_tally(files, &tally, code, Some(&group.processes), group.refaults, begin)?;
    Ok(Census { of_kernel: group.charges(files)?, ..census })
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
    let processes: Vec<OfProcess> = runners.map(|runner| of_runner(files, runner)).collect();
    let accessed = Accessed::of(files, &processes);
    let census = Census {
        too_large: accessed.too_large,
        halted: halted_among(files, processes.iter().map(|process| process.pid)),
        rest: Rest::ALL.iter().map(|rest| tally.rest(*rest)).collect(),
        file_refaults,
        swap_refaults,
        processes_not_read: code.not_read.len() as u64,
        not_read: NotRead::of(&code.not_read),
        in_pid_namespace: some_are_hidden(files),
        sampled_fraction: tally.sampled_fraction(),
        ..Census::of(accessed.leave_out(classes), processes)
    };
    Ok(census.took(begin))
}

/// Reason that refaults are unknown: the kernel alone does not count by class.
fn not_counted(class: Class) -> Known<u64> {
    Known::Unknown(if class.is_of_files() {
        "the kernel counts those of files together; masu counts them apart while it watches".to_owned()
    } else {
        "the kernel counts those of data and shared memory together".to_owned()
    })
}

/// Census of some processes. A process that ends meanwhile counts as empty.
///
/// # Errors
/// `Denied` without CAP_SYS_ADMIN, or without permission to read one of the processes.
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
    let accessed = Accessed::of(files, &processes);
    let census = Census {
        too_large: accessed.too_large,
        halted: halted_among(files, processes.iter().map(|process| process.pid)),
        rest: all.rest(),
        sampled_fraction,
        processes_not_read: unanswered.len() as u64,
        not_read: NotRead::of(&unanswered),
        in_pid_namespace: some_are_hidden(files),
        ..Census::of(accessed.leave_out(classes), processes)
    };
    Ok(census.took(begin))
}

/// Frames of a process. An execve during the scan replaces its memory; the process is then read again.
fn frames_of(files: &impl KernelFiles, pid: Pid, code: &FrameSet, host: HostFrames<'_>) -> Result<Frames, Error> {
    let own = || Frames::of(files, pid, code, host);
    let again = |error: Error| if error.is_gone() { own() } else { Err(error) };
    own().or_else(again).or_else(again)
}

impl Census {
    fn of(classes: Vec<OfClass>, mut processes: Vec<OfProcess>) -> Census {
        processes.sort_by_key(|process| (std::cmp::Reverse(process.resident()), process.pid));
        Census {
            classes,
            rest: Vec::new(),
            of_kernel: None,
            managed: None,
            file_refaults: None,
            swap_refaults: None,
            processes,
            processes_not_read: 0,
            not_read: Vec::new(),
            too_large: 0,
            halted: Vec::new(),
            in_pid_namespace: false,
            sampled_fraction: 1.0,
            error_bound_bytes: Bytes(0),
            cost_us: 0,
        }
    }

    /// Adds the refaults of file pages since the start of counting by class, or the reason that they are unknown.
    #[must_use]
    pub fn counted(mut self, counts: &Result<Counts, Unavailable>) -> Census {
        for of in self.classes.iter_mut().filter(|of| of.class.is_of_files()) {
            of.refaults = Known::from(counts.as_ref().map_err(|why| &why.reason).map(|counts| match of.class {
                Class::Code => counts.code.0,
                Class::ReadOnly => counts.read_only.0,
                Class::Cache | Class::Data | Class::Shared => counts.cache.0,
            }));
        }
        self
    }

    /// Completes the census with derived values.
    fn took(mut self, begin: Instant) -> Census {
        let of_classes = self.classes.iter().map(|of| of.error_bound_bytes);
        let bounds = of_classes.chain(self.rest.iter().map(|of| of.error_bound_bytes));
        self.error_bound_bytes = bounds.max().unwrap_or_default();
        self.cost_us = cast::saturated(begin.elapsed().as_micros());
        self
    }
}

fn of_runner(files: &impl KernelFiles, runner: code::Runner) -> OfProcess {
    let (code, secret) = (runner.code.bytes(), runner.secret.bytes());
    let status = runner.status;
    OfProcess {
        pid: runner.pid,
        name: status.name,
        code_bytes: code,
        // The kernel counts per processor and adds up now and then, so the sum may lag behind the page tables.
        read_only_bytes: status.rss_file.saturating_sub(code + secret),
        data_bytes: status.rss_anon,
        shared_bytes: status.rss_shmem + secret,
        major_faults: major_faults(files, runner.pid),
    }
}

/// Major faults; 0 for a process that has just ended.
fn major_faults(files: &impl KernelFiles, pid: Pid) -> u64 {
    stat::stat(files, pid).map_or(0, |stat| stat.major_faults)
}

#[cfg(test)]
mod tests {
    use linux::fake::FakeKernel;
    use linux::halted::Halted;

    use super::*;

    #[test]
    fn only_the_first_namespace_of_process_ids_has_all_of_them() {
        assert!(some_are_hidden(&FakeKernel::new().file("proc/self/ns/pid", "")));
        // Kernel without namespaces.
        assert!(!some_are_hidden(&FakeKernel::new()));
    }

    #[test]
    fn a_census_is_read_back_as_it_was_written() {
        let class = |class, idle_bytes, refaults| OfClass {
            class,
            bytes: Bytes(9),
            active_bytes: Known::Value(Bytes(4)),
            inactive_bytes: Known::Value(Bytes(4)),
            idle_bytes,
            locked_bytes: Bytes(1),
            lazily_freed_bytes: Bytes(1),
            error_bound_bytes: Bytes(2),
            refaults,
        };
        let report = Census {
            classes: vec![
                class(Class::ReadOnly, Known::Value(Bytes(4)), Known::Value(3)),
                class(Class::Cache, Known::Unknown("a".to_owned()), Known::Unknown("b".to_owned())),
            ],
            rest: vec![OfRest { rest: Rest::PageTables, bytes: Bytes(5), error_bound_bytes: Bytes(6) }],
            of_kernel: Some(Charges { usage_bytes: Bytes(12), ..Charges::default() }),
            managed: Some(Managed { present_bytes: Bytes(14), managed_bytes: Bytes(13) }),
            file_refaults: Some(7),
            swap_refaults: None,
            processes: vec![OfProcess {
                pid: Pid(8),
                name: "x".into(),
                code_bytes: Bytes(1),
                read_only_bytes: Bytes(2),
                data_bytes: Bytes(3),
                shared_bytes: Bytes(4),
                major_faults: 5,
            }],
            processes_not_read: 1,
            not_read: vec![NotRead { processes: 1, first: "gone".to_owned() }],
            too_large: 1,
            halted: vec![HaltedProcess { pid: Pid(8), name: "x".into(), why: Halted::Stopped }],
            in_pid_namespace: true,
            sampled_fraction: 0.25,
            error_bound_bytes: Bytes(10),
            cost_us: 11,
        };
        let text = serde_json::to_string(&report).unwrap();
        assert_eq!(serde_json::from_str::<Census>(&text).unwrap(), report);
    }
}
