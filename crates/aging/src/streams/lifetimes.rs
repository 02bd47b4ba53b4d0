//! Processes of streams: whether they still run, and the free memory of their control groups.

use std::collections::{BTreeMap, BTreeSet};

use linux::cgroup::limited;
use linux::meminfo::meminfo;
use linux::{KernelFiles, Pid, stat};
use units::Bytes;

use crate::policy::Headroom;

/// Start times of processes, which tell a process from a later one with the same pid.
#[derive(Debug, Default)]
pub struct Lifetimes(BTreeMap<Pid, Option<u64>>);

impl Lifetimes {
    /// Remembers a process as it runs now.
    pub fn note(&mut self, files: &impl KernelFiles, pid: Pid) {
        self.0.entry(pid).or_insert_with(|| start_of(files, pid));
    }

    /// Remembered processes that have ended; they are forgotten.
    pub fn ended(&mut self, files: &impl KernelFiles) -> BTreeSet<Pid> {
        let ended: BTreeSet<Pid> = self
            .0
            .iter()
            .filter(|(pid, start)| start.is_none() || start_of(files, **pid) != **start)
            .map(|(pid, _)| *pid)
            .collect();
        self.0.retain(|pid, _| !ended.contains(pid));
        ended
    }
}

/// `None` for a process that has ended; a zombie has.
fn start_of(files: &impl KernelFiles, pid: Pid) -> Option<u64> {
    stat::stat(files, pid).ok().filter(|stat| !matches!(stat.state, 'Z' | 'X')).map(|stat| stat.start_ticks)
}

/// Free memory of the host, and of the control groups of these processes that have a limit. Page cache is not free.
pub fn free_memory(files: &impl KernelFiles, processes: impl Iterator<Item = Pid>) -> Vec<Headroom> {
    /// Processes whose groups are read.
    const PROCESSES_MOST: usize = 16;
    let host = meminfo(files).map_or(Headroom { limit: Bytes(0), left: Bytes(0) }, |memory| Headroom {
        limit: memory.total,
        left: memory.free,
    });
    let of_group = |pid| limited::free_of(files, pid).ok().flatten();
    let groups = processes.take(PROCESSES_MOST).filter_map(of_group).map(|(left, limit)| Headroom { limit, left });
    std::iter::once(host).chain(groups).collect()
}

#[cfg(test)]
mod tests {
    use linux::fake::FakeKernel;

    use super::*;

    fn running(start: u64, state: char) -> FakeKernel {
        FakeKernel::new()
            .file("proc/7/stat", &format!("7 (a) {state} 1{} {start}{}\n", " 0".repeat(17), " 0".repeat(30)))
    }

    #[test]
    fn a_process_that_has_ended_is_told_from_one_with_its_pid() {
        let mut lifetimes = Lifetimes::default();
        lifetimes.note(&running(100, 'S'), Pid(7));
        assert_eq!(lifetimes.ended(&running(100, 'R')), [].into());
        assert_eq!(lifetimes.ended(&running(101, 'S')), [Pid(7)].into());
        lifetimes.note(&running(101, 'S'), Pid(7));
        assert_eq!(lifetimes.ended(&running(101, 'Z')), [Pid(7)].into());
        lifetimes.note(&FakeKernel::new(), Pid(9));
        assert_eq!(lifetimes.ended(&running(1, 'S')), [Pid(9)].into(), "it had ended before");
    }
}
