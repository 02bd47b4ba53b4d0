//! Lazily freed pages of a process (MADV_FREE), found cheaply: most programs have none.
//!
//! `LazyFree:` of smaps_rollup is exact, and costs a walk of all page tables. The host's counter `pglazyfree` rises with
//! every page that a program frees lazily. So while it stands still, a program without such pages has none, and while
//! it moves, the rollup is read again at most for a tenth of the time; until then the windows are examined one by one.

use std::cell::Cell;
use std::time::{Duration, Instant};

use linux::{Error, KernelFiles, Pid, smaps, vmstat};
use units::Bytes;

/// Validity of a reading of the host's counter. Pages are counted with a delay of this order anyway: the kernel marks
/// them in batches.
const COUNTER_GOOD_FOR: Duration = Duration::from_millis(10);

/// Shortest time between two rollups.
const ROLLUP_EVERY_MIN: Duration = Duration::from_secs(1);

/// Last answer, and the conditions under which it holds.
#[derive(Clone, Copy, Debug)]
struct Answer {
    may_have: bool,
    /// Such memory, by the rollup.
    bytes: Bytes,
    /// Host's counter just before the rollup; `None` where the kernel does not keep it.
    counter: Option<u64>,
    /// Time until which no other rollup is read.
    not_before: Instant,
    /// Time of the last look at the counter.
    looked: Instant,
}

/// Answers for one process, across the calls for its windows.
#[derive(Debug, Default)]
pub struct LazilyFreed(Cell<Option<Answer>>);

impl LazilyFreed {
    /// Whether the process may have lazily freed pages. False is sure, true is not.
    ///
    /// # Errors
    /// `Gone` when it ended.
    pub fn may_be(&self, files: &impl KernelFiles, pid: Pid) -> Result<bool, Error> {
        let last = self.0.get();
        if let Some(last) = last.filter(|last| last.looked.elapsed() < COUNTER_GOOD_FOR) {
            return Ok(last.may_have);
        }
        let counter = vmstat::vmstat(files).ok().and_then(|stat| stat.pglazyfree);
        let looked = Instant::now();
        if let Some(last) = last {
            let stands_still = counter.is_some() && counter == last.counter;
            if stands_still && !last.may_have || looked < last.not_before {
                let may_have = last.may_have || !stands_still;
                self.0.set(Some(Answer { may_have, looked, ..last }));
                return Ok(may_have);
            }
        }
        let rollup = smaps::rollup(files, pid)?;
        // A kernel without the line (before 4.12) has no process whose pages could be told.
        let bytes = rollup.lazy_free.unwrap_or_default();
        let may_have = bytes > Bytes(0);
        let not_before = Instant::now() + ROLLUP_EVERY_MIN.max(looked.elapsed() * 10);
        self.0.set(Some(Answer { may_have, bytes, counter, not_before, looked }));
        Ok(may_have)
    }

    /// Memory in such pages, as last read: at most some seconds ago.
    ///
    /// # Errors
    /// `Gone` when the process ended.
    pub fn bytes(&self, files: &impl KernelFiles, pid: Pid) -> Result<Bytes, Error> {
        self.may_be(files, pid)?;
        Ok(self.0.get().map_or(Bytes(0), |answer| answer.bytes))
    }

    /// Forgets everything: the process has another address space.
    pub fn clear(&self) {
        self.0.set(None);
    }
}

#[cfg(test)]
mod tests {
    use linux::fake::FakeKernel;

    use super::*;

    fn kernel(counter: &str, lazy_free: &str) -> FakeKernel {
        let rollup = format!(
            "55d0c0000000-7ffd00000000 ---p 00000000 00:00 0 [rollup]\nRss: 8 kB\nPss: 8 kB\nReferenced: 8 kB\n\
             Anonymous: 8 kB\nLazyFree: {lazy_free} kB\nAnonHugePages: 0 kB\nSwap: 0 kB\nLocked: 0 kB\n"
        );
        FakeKernel::new().file("proc/vmstat", counter).file("proc/42/smaps_rollup", &rollup)
    }

    #[test]
    fn a_program_without_such_pages_is_not_read_again_while_the_host_frees_none() {
        let lazily_freed = LazilyFreed::default();
        let ask = |kernel: &FakeKernel| {
            std::thread::sleep(COUNTER_GOOD_FOR);
            lazily_freed.may_be(kernel, Pid(42)).unwrap()
        };
        assert!(!ask(&kernel("pglazyfree 7\n", "0")));
        assert!(!ask(&kernel("pglazyfree 7\n", "4")), "not read again");
        assert!(ask(&kernel("pglazyfree 8\n", "4")), "some program freed a page");
        let fresh = LazilyFreed::default();
        assert_eq!(fresh.bytes(&kernel("pglazyfree 8\n", "4"), Pid(42)), Ok(Bytes::kib(4)));
        lazily_freed.clear();
        assert!(!ask(&kernel("pglazyfree 8\n", "0")));
    }

    #[test]
    fn without_the_counter_the_program_is_asked_and_between_two_questions_it_may_have_some() {
        let lazily_freed = LazilyFreed::default();
        let kernel = kernel("pgfault 7\n", "0");
        assert!(!lazily_freed.may_be(&kernel, Pid(42)).unwrap());
        std::thread::sleep(COUNTER_GOOD_FOR);
        assert!(lazily_freed.may_be(&kernel, Pid(42)).unwrap());
    }
}
