//! Forked processes without a process slot: those that a program made by another call than the C library's fork, and
//! those that have not taken a slot yet. They have the status page and the program's huge memory.

use std::collections::BTreeSet;

use linux::{KernelFiles, Pid, processes, same_memory, stat};

/// Search in `/proc` for processes that have the status page in their memory. A process is judged once: one that gets the
/// page later, by execve(2), takes a slot.
#[derive(Debug, Default)]
pub struct Search {
    /// Start of masu, in ticks. The processes of a run start later.
    begun: u64,
    judged: BTreeSet<Pid>,
}

impl Search {
    /// Begins.
    pub fn new(files: &impl KernelFiles) -> Search {
        let begun = stat::stat(files, Pid::own()).map_or(0, |stat| stat.start_ticks);
        Search { begun, judged: BTreeSet::new() }
    }

    /// Processes that were forked since masu's start and do what their parent's program does. `known` are left out, as are
    /// those of an earlier call.
    pub fn new_processes(&mut self, files: &impl KernelFiles, known: impl Fn(Pid) -> bool) -> Vec<Pid> {
        let all: BTreeSet<Pid> = processes::processes(files).unwrap_or_default().into_iter().collect();
        self.judged.retain(|pid| all.contains(pid));
        let new = all.into_iter().filter(|pid| !known(*pid) && self.judged.insert(*pid));
        let new: Vec<Pid> = new.collect();
        new.into_iter().filter(|pid| stat::stat(files, *pid).is_ok_and(|stat| self.is_forked(&stat))).collect()
    }

    fn is_forked(&self, stat: &stat::Stat) -> bool {
        // masu's own helpers have its mappings.
        let is_masus = stat.parent == Pid::own();
        stat.forked
            && stat.start_ticks >= self.begun
            && !stat.of_kernel
            && !is_masus
            && !matches!(stat.state, 'Z' | 'X')
    }
}

/// Whether a process has an address space of its own, and not that of one of `others` (vfork). In doubt it has not: memory
/// is not counted twice.
pub fn has_own_memory(pid: Pid, others: impl IntoIterator<Item = Pid>) -> bool {
    others.into_iter().all(|other| match same_memory::is_same(pid, other) {
        Ok(same) => !same,
        Err(error) => error.is_gone(),
    })
}

#[cfg(test)]
mod tests {
    use linux::fake::FakeKernel;

    use super::*;

    const FORKED: u64 = 0x40;
    const EXECUTED: u64 = 0;

    fn process(kernel: FakeKernel, pid: i32, state: char, parent: i32, flags: u64, start: u64) -> FakeKernel {
        let rest = format!("0 0 0 0 0 0 0 0 20 0 1 0 {start} 0 0 0");
        kernel.file(&format!("proc/{pid}/stat"), &format!("{pid} (x) {state} {parent} 1 1 0 -1 {flags} {rest}\n"))
    }

    #[test]
    fn processes_forked_since_the_start_are_found_once() {
        let own = Pid::own().0;
        let mut kernel = process(FakeKernel::new(), own, 'S', 1, EXECUTED, 100);
        kernel = process(kernel, own + 1, 'S', 1, FORKED, 100);
        kernel = process(kernel, own + 2, 'S', 1, FORKED, 99); // before masu
        kernel = process(kernel, own + 3, 'S', own, FORKED, 101); // masu's helper
        kernel = process(kernel, own + 4, 'S', 1, EXECUTED, 101);
        kernel = process(kernel, own + 5, 'Z', 1, FORKED, 101);
        kernel = process(kernel, own + 6, 'S', own + 1, FORKED, 102);
        let mut search = Search::new(&kernel);
        assert_eq!(search.new_processes(&kernel, |pid| pid == Pid(own + 6)), [Pid(own + 1)]);
        assert_eq!(search.new_processes(&kernel, |_| false), [Pid(own + 6)]);
    }
}
