//! Census of all control groups, in one pass over the frames.
//!
//! Each group is counted with its descendants. A frame is charged to one group, and counts for it and all above it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use linux::cgroup::charges::Charges;
use linux::cgroup::limited::{self, Limited};
use linux::halted::{HaltedProcess, halted_among};
use linux::kpagecgroup::GroupTable;
use linux::processes::processes;
use linux::{Error, KernelFiles, Untrusted};
use serde::{Deserialize, Serialize};
use units::{Bytes, cast};

use super::memory::Memory;
use super::processes::HostFrames;
use super::tally::{ByLruState, GroupTally, fraction};
use super::{Closeness, OfClass, code, frame_table, not_counted, why_no_lists};
use crate::class::Class;

/// Result of a census of all groups.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct Groups {
    /// Groups with memory, largest first.
    pub groups: Vec<OfGroup>,
    /// Number of groups without memory.
    pub empty_groups: u64,
    /// Fraction of the frames that was read.
    pub sampled_fraction: f64,
    /// Processes of the host that are frozen or stopped: until they run, inactive memory is no sign of idle memory.
    #[serde(default)]
    pub halted: Vec<HaltedProcess>,
    /// Duration of the census.
    pub cost_us: u64,
}

/// One group with its descendants.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct OfGroup {
    /// Directory of the group: `/sys/fs/cgroup/backup.slice`.
    pub group: Untrusted,
    /// The kernel's own count; `None` where it has none, as at the top of version 2.
    pub of_kernel: Option<Charges>,
    /// Memory that the kernel ages.
    pub classes: Vec<OfClass>,
    /// 95 % confidence bound of each amount.
    pub error_bound_bytes: Bytes,
}

impl OfGroup {
    /// Memory of all classes.
    pub fn bytes(&self) -> Bytes {
        self.classes.iter().map(|of| of.bytes).sum()
    }

    fn size(&self) -> Bytes {
        self.of_kernel.as_ref().map_or(self.bytes(), |kernel| kernel.usage_bytes)
    }
}

/// Census of all groups of the host.
///
/// # Errors
/// `Denied` without CAP_SYS_ADMIN; `Unsupported` on a kernel that does not show the charged group.
pub fn of_all(files: &impl KernelFiles, closeness: Closeness) -> Result<Groups, Error> {
    let begin = Instant::now();
    let table = frame_table(files)?;
    let memory = Memory::of(files)?;
    let host = HostFrames { table: &table, memory: &memory };
    let code = code::of_host(files, host)?;
    let all = limited::groups(files)?;
    let tally = GroupTally::of(host, &code, &GroupTable::open()?, &counted_for(&all), closeness)?;
    let no_lists = why_no_lists(files)?;
    let mut groups = Vec::new();
    let mut empty_groups = 0;
    for (index, group) in all.iter().enumerate() {
        let of_kernel = group.charges(files)?;
        let of = of_group(group, of_kernel, tally.of_group(index), no_lists);
        if of.size() == Bytes(0) { empty_groups += 1 } else { groups.push(of) }
    }
    groups.sort_by(|a, b| b.size().cmp(&a.size()).then_with(|| a.group.cmp(&b.group)));
    Ok(Groups {
        groups,
        empty_groups,
        sampled_fraction: fraction(tally.frames_read, tally.frames),
        halted: halted_among(files, processes(files)?),
        cost_us: cast::saturated(begin.elapsed().as_micros()),
    })
}

/// Groups that a frame counts for, by the inode of the group that it is charged to.
fn counted_for(groups: &[Limited]) -> BTreeMap<u64, BTreeSet<usize>> {
    let mut found: BTreeMap<u64, BTreeSet<usize>> = BTreeMap::new();
    for (index, group) in groups.iter().enumerate() {
        for inode in &group.inodes {
            found.entry(*inode).or_default().insert(index);
        }
    }
    found
}

fn of_group(
    group: &Limited,
    of_kernel: Option<Charges>,
    sums: Option<&[ByLruState; Class::ALL.len()]>,
    no_lists: Option<&str>,
) -> OfGroup {
    let nothing = [ByLruState::default(); Class::ALL.len()];
    let sums = sums.unwrap_or(&nothing);
    let classes: Vec<OfClass> =
        Class::ALL.iter().zip(sums).map(|(class, sum)| sum.of_class(*class, no_lists, not_counted(*class))).collect();
    let error_bound_bytes = classes.iter().map(|of| of.error_bound_bytes).max().unwrap_or_default();
    OfGroup { group: format!("/{}", group.directory).into(), of_kernel, classes, error_bound_bytes }
}

#[cfg(test)]
mod tests {
    use linux::fake::FakeKernel;

    use super::*;

    #[test]
    fn a_frame_counts_for_its_group_and_all_above() {
        let kernel = FakeKernel::new()
            .file("proc/self/mountinfo", "30 20 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n")
            .file("sys/fs/cgroup/web/cgroup.procs", "")
            .file("sys/fs/cgroup/web/a/cgroup.procs", "")
            .file("sys/fs/cgroup/db/cgroup.procs", "");
        let groups = limited::groups(&kernel).unwrap();
        let counted = counted_for(&groups);
        let names = |path: &str| {
            let indices = &counted[&kernel.inode(path).unwrap()];
            indices.iter().map(|index| groups[*index].directory.as_str()).collect::<BTreeSet<_>>()
        };
        let expected = ["sys/fs/cgroup", "sys/fs/cgroup/web", "sys/fs/cgroup/web/a"];
        assert_eq!(names("sys/fs/cgroup/web/a"), expected.into());
        assert_eq!(names("sys/fs/cgroup/db"), ["sys/fs/cgroup", "sys/fs/cgroup/db"].into());
    }
}
