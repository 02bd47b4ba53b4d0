//! Memory of the control groups with processes, by the kernel's own count.
//!
//! No memory of a process is touched: a group costs five files, some 0.15 ms.

use std::time::{Duration, Instant};

use linux::cgroup::charges::Charges;
use linux::cgroup::tree::{Populated, tree};
use linux::{Error, KernelFiles, Untrusted, thp_stats};
use serde::{Deserialize, Serialize};
use units::{Bytes, PageSize};

/// Most groups that are looked at.
const GROUPS_MOST: usize = 20_000;
/// Shortest time between two measurements.
const EVERY: Duration = Duration::from_secs(10);
/// A measurement takes this part of the time at most.
const SHARE: u32 = 200;
/// Part of the usage without a class that is a lag of the kernel's counters: a processor charges 64 pages ahead
/// (`MEMCG_CHARGE_BATCH`), and the classes are summed up later.
const LAG: Bytes = Bytes::mib(2);
const LAG_OF_PROCESSOR: Bytes = Bytes::kib(256);

/// Memory of all groups.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Groups {
    /// Groups with processes, the largest first.
    pub groups: Vec<OfGroup>,
    /// Groups that could not be read, or are beyond the bound.
    pub left_out: u64,
    /// Duration of the measurement, in seconds.
    pub took_s: f64,
    /// Time from one measurement to the next, in seconds.
    pub every_s: f64,
}

/// Memory of one group, descendants included.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct OfGroup {
    /// Path from the mount point of its hierarchy.
    pub group: Untrusted,
    /// Number of its processes.
    pub processes: u64,
    /// The kernel's own count.
    #[serde(flatten)]
    pub charges: Charges,
    /// Memory that is charged and in no class, for no process maps it: the rest of torn huge pages. `None` where the
    /// kernel does not tell whether there are any.
    pub unmapped_bytes: Option<Bytes>,
    /// Time for which a task, and for which all tasks, waited for memory, in seconds since the group was made; `None`
    /// where it is not counted by group.
    pub pressure_s: Option<[f64; 2]>,
}

/// Measures all groups.
///
/// # Errors
/// The kernel's error for the list of groups.
pub fn measure(files: &impl KernelFiles) -> Result<Groups, Error> {
    let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    measure_on(files, processors as u64)
}

fn measure_on(files: &impl KernelFiles, processors: u64) -> Result<Groups, Error> {
    let begin = Instant::now();
    let tree = tree(files, GROUPS_MOST)?;
    let torn = thp_stats::partially_mapped(files).ok();
    let lag = LAG + Bytes(LAG_OF_PROCESSOR.0 * processors);
    let mut found = Groups { left_out: tree.left_out as u64, ..Groups::default() };
    for group in &tree.groups {
        match of_group(files, group, torn, lag) {
            Ok(Some(of)) => found.groups.push(of),
            // Gone since it was listed, or not accounted.
            Ok(None) => {}
            Err(error) => {
                tracing::debug!(group = %group.path, %error, "group not measured");
                found.left_out += 1;
            }
        }
    }
    found.groups.sort_by(|a, b| b.charges.usage_bytes.cmp(&a.charges.usage_bytes).then_with(|| a.group.cmp(&b.group)));
    let took = begin.elapsed();
    (found.took_s, found.every_s) = (took.as_secs_f64(), pause_after(took).as_secs_f64());
    Ok(found)
}

fn of_group(
    files: &impl KernelFiles,
    group: &Populated,
    torn: Option<u64>,
    lag: Bytes,
) -> Result<Option<OfGroup>, Error> {
    let Some(charges) = group.charges(files)? else { return Ok(None) };
    let unmapped_bytes = match torn {
        None => None,
        Some(0) => Some(Bytes(0)),
        Some(torn) => Some(unmapped(&charges, torn, lag)),
    };
    let pressure = group.pressure(files)?;
    let pressure_s = pressure.map(|pressure| [pressure.some, pressure.full].map(|stall| stall.total.as_secs_f64()));
    let processes = group.processes.len() as u64;
    Ok(Some(OfGroup { group: group.path.clone(), processes, charges, unmapped_bytes, pressure_s }))
}

/// Charged and in no class: at most the memory of the host's torn huge pages. The kernel counts the mapped pages of a
/// huge page as anonymous. Pages in the swap cache are counted twice, which hides as much.
fn unmapped(charges: &Charges, torn: u64, lag: Bytes) -> Bytes {
    let most = Bytes(PageSize::Huge.bytes().0.saturating_mul(torn));
    let rest = charges.unclassified_bytes;
    if rest < lag { Bytes(0) } else { rest.min(most) }
}

/// Time from the begin of one measurement to the next.
pub fn pause_after(took: Duration) -> Duration {
    EVERY.max(took.saturating_mul(SHARE))
}

impl Groups {
    /// The largest groups, and the sum of the others with their number.
    pub fn largest(&self, most: usize) -> (&[OfGroup], Option<(OfGroup, u64)>) {
        let (kept, rest) = self.groups.split_at(most.min(self.groups.len()));
        if rest.is_empty() {
            return (kept, None);
        }
        let mut sum = OfGroup { group: "other".into(), ..OfGroup::default() };
        for group in rest {
            sum.add(group);
        }
        (kept, Some((sum, rest.len() as u64)))
    }
}

impl OfGroup {
    /// Adds the memory of another group. Limits and times of waiting have no sum.
    fn add(&mut self, other: &OfGroup) {
        fn plus<T: Copy + std::ops::Add<Output = T>>(sum: &mut Option<T>, more: Option<T>) {
            *sum = match (*sum, more) {
                (Some(sum), Some(more)) => Some(sum + more),
                (sum, more) => sum.or(more),
            };
        }
        let (sum, more) = (&mut self.charges, &other.charges);
        self.processes += other.processes;
        sum.usage_bytes += more.usage_bytes;
        sum.anonymous_bytes += more.anonymous_bytes;
        sum.file_bytes += more.file_bytes;
        sum.shared_bytes += more.shared_bytes;
        sum.inactive_file_bytes += more.inactive_file_bytes;
        sum.working_set_bytes += more.working_set_bytes;
        sum.unclassified_bytes += more.unclassified_bytes;
        plus(&mut sum.kernel_bytes, more.kernel_bytes);
        plus(&mut sum.swap_bytes, more.swap_bytes);
        plus(&mut sum.huge_pool_bytes, more.huge_pool_bytes);
        plus(&mut sum.huge_bytes, more.huge_bytes);
        plus(&mut sum.file_refaults, more.file_refaults);
        plus(&mut sum.anonymous_refaults, more.anonymous_refaults);
        plus(&mut self.unmapped_bytes, other.unmapped_bytes);
    }
}

#[cfg(test)]
mod tests {
    use linux::fake::FakeKernel;

    use super::*;

    fn kernel(torn: &str) -> FakeKernel {
        let group = |kernel: FakeKernel, name: &str, anon: u64, procs: &str| {
            kernel
                .file(&format!("sys/fs/cgroup/{name}/cgroup.procs"), procs)
                .file(&format!("sys/fs/cgroup/{name}/memory.current"), &format!("{anon}\n"))
                .file(
                    &format!("sys/fs/cgroup/{name}/memory.stat"),
                    &format!("anon {anon}\nfile 0\nanon_thp 2097152\nworkingset_refault_file 5\n"),
                )
        };
        let kernel = FakeKernel::new()
            .file("proc/self/mountinfo", "35 31 0:32 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n")
            .file("sys/fs/cgroup/cgroup.procs", "")
            .file("sys/kernel/mm/transparent_hugepage/hugepages-2048kB/stats/nr_anon_partially_mapped", torn);
        let kernel = group(kernel, "small", 4 << 20, "8\n");
        group(kernel, "torn", 40 << 20, "7\n")
    }

    #[test]
    fn groups_have_their_charges_the_largest_first() {
        let found = measure_on(&kernel("0\n"), 2).unwrap();
        let names: Vec<String> = found.groups.iter().map(|group| group.group.to_string()).collect();
        assert_eq!((names, found.left_out), (vec!["/torn".to_owned(), "/small".to_owned()], 0));
        let torn = &found.groups[0];
        assert_eq!((torn.charges.anonymous_bytes, torn.charges.huge_bytes), (Bytes::mib(40), Some(Bytes::mib(2))));
        assert_eq!((torn.processes, torn.charges.file_refaults), (1, Some(5)));
        assert_eq!((torn.unmapped_bytes, torn.pressure_s), (Some(Bytes(0)), None), "no huge page is torn");
    }

    #[test]
    fn memory_that_no_process_maps_is_of_torn_huge_pages() {
        let unmapped = |torn: &str, mapped_mib: u64, processors| {
            let stat = format!("anon {}\n", mapped_mib << 20);
            let kernel = kernel(torn).file("sys/fs/cgroup/torn/memory.stat", &stat);
            measure_on(&kernel, processors).unwrap().groups[0].unmapped_bytes
        };
        assert_eq!(unmapped("100\n", 8, 2), Some(Bytes::mib(32)), "40 MiB charged, 8 MiB mapped");
        assert_eq!(unmapped("3\n", 8, 2), Some(Bytes::mib(6)), "not more than the torn huge pages have");
        assert_eq!(unmapped("100\n", 38, 2), Some(Bytes(0)), "2 MiB may be a lag of the counters");
        assert_eq!(unmapped("100\n", 8, 200), Some(Bytes(0)), "so may 32 MiB of 200 processors");
    }

    #[test]
    fn groups_beyond_the_bound_are_summed() {
        let found = measure_on(&kernel("0\n"), 2).unwrap();
        let (kept, other) = found.largest(1);
        let (other, number) = other.unwrap();
        assert_eq!((kept.len(), number, other.charges.anonymous_bytes), (1, 1, Bytes::mib(4)));
        assert_eq!((other.group.to_string(), other.charges.huge_bytes), ("other".to_owned(), Some(Bytes::mib(2))));
        assert_eq!(found.largest(2).1, None);
    }

    #[test]
    fn a_group_that_cannot_be_read_stops_no_other() {
        let kernel = kernel("0\n").file("sys/fs/cgroup/torn/memory.stat", "anon much\n");
        let found = measure_on(&kernel, 2).unwrap();
        assert_eq!((found.groups.len(), found.left_out), (1, 1));
    }

    #[test]
    fn measuring_takes_half_a_percent_of_the_time_at_most() {
        assert_eq!(pause_after(Duration::from_millis(3)), Duration::from_secs(10));
        assert_eq!(pause_after(Duration::from_millis(500)), Duration::from_secs(100));
    }
}
