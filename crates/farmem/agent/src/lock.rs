//! The pager's lock. Its holder runs no handler of the program, touches no paged memory, and waits for nothing but the
//! store.
//!
//! The algorithm is in `farmem_engine::lock`; this file has the waiting of threads (futex(2)), and hands the state of the
//! policies to the holder.

use core::sync::atomic::{AtomicU32, Ordering, Ordering::Relaxed};

use farmem_engine::lock;
use farmem_engine::policy::what_if::Ghosts;
use farmem_engine::units::{Costs, Units};

use crate::kernel::{self, call};
use crate::program::{self, Program};

pub type Lock = lock::Lock<Futex>;
pub type Guard<'a> = lock::Guard<'a, Futex>;

/// The pager's lock.
pub static LOCK: Lock = Lock::over(Futex::new(), Futex::new());

/// Does work with the pager's lock.
pub fn with_lock<T>(work: impl FnOnce() -> T) -> T {
    let _guard = LOCK.lock();
    work()
}

/// A word on which the kernel lets threads wait.
pub struct Futex(AtomicU32);

impl Futex {
    pub const fn new() -> Futex {
        Futex(AtomicU32::new(0))
    }
}

impl lock::Word for Futex {
    #[inline(always)]
    fn load(&self) -> u32 {
        self.0.load(Relaxed)
    }

    #[inline(always)]
    fn swap(&self, value: u32, order: Ordering) -> u32 {
        self.0.swap(value, order)
    }

    #[inline(always)]
    fn replace(&self, from: u32, to: u32, order: Ordering) -> bool {
        self.0.compare_exchange(from, to, order, Relaxed).is_ok()
    }

    fn add_one(&self) {
        self.0.fetch_add(1, Relaxed);
    }

    fn take_one(&self) {
        let _ = self.0.fetch_update(Relaxed, Relaxed, |value| value.checked_sub(1));
    }

    fn wait(&self, value: u32, most_ns: i64) -> bool {
        let most = libc::timespec { tv_sec: most_ns / 1_000_000_000, tv_nsec: most_ns % 1_000_000_000 };
        let most = (&raw const most).expose_provenance();
        // SAFETY: waits on our own word, and reads our own memory.
        let answer = unsafe {
            call!(libc::SYS_futex, self.0.as_ptr().addr(), libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG, value, most)
        };
        let timed_out = answer == -i64::from(libc::ETIMEDOUT);
        if timed_out && program::is_left_behind() {
            // The child of a vfork, whose parent was killed, maybe with the lock: it will never be released.
            kernel::end(128 + libc::SIGKILL);
        }
        timed_out
    }

    fn wake(&self, most: i32) {
        // SAFETY: wakes threads that wait on our own word.
        unsafe { call!(libc::SYS_futex, self.0.as_ptr().addr(), libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG, most) };
    }
}

impl Program {
    /// Costs of the store.
    const fn costs(&self) -> Costs {
        match (self.store < 0, self.background) {
            (true, true) => Costs::SERVER,
            (true, false) => Costs::SERVER.alone(),
            (false, _) => Costs::FILE,
        }
    }

    /// Policies. The borrow of the lock's guard protects their state.
    pub fn units<'a>(&self, _guard: &'a Guard<'_>) -> Units<'a> {
        // SAFETY: both lie in the segment, apart from all else, for as long as the program runs. The holder of the lock
        // has exclusive access, since the result does not outlive the guard.
        let (learned, ghosts) =
            unsafe { (&mut *self.learned, core::slice::from_raw_parts_mut(self.ghosts.0, self.ghosts.1)) };
        // The table has space for the pages of the whole machine, should the budget grow to that. Fewer lie closer
        // together.
        let frames = self.pager.budget().frames as usize;
        let used = ghosts.len().min(2 * frames.next_power_of_two());
        Units {
            learned,
            ghosts: Ghosts::over(&mut ghosts[..used]),
            sections: self.sections,
            fixed_log2: self.fixed_log2,
            base_log2: self.base_log2,
            costs: self.costs(),
        }
    }
}
