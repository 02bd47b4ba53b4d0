//! `clock_gettime(2)`: processor time of masu, including that of its proxies (`proxy.rs`).
//!
//! Cost: one system call. Side effects: none.
//!
//! Since: Linux 2.6.12. Truth: clock_gettime(2).

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds that proxies ran for this masu.
static PROXIES: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// Nanoseconds that proxies ran for this thread.
    static OF_THREAD: Cell<u64> = const { Cell::new(0) };
}

/// Processor time of the calling thread, including that of its calls in proxies.
pub fn of_thread() -> Duration {
    clock(ClockId::ThreadCPUTime) + Duration::from_nanos(OF_THREAD.get())
}

/// Processor time of this process, including that of its calls in proxies.
pub fn of_process() -> Duration {
    clock(ClockId::ProcessCPUTime) + Duration::from_nanos(PROXIES.load(Relaxed))
}

/// Adds processor time of a proxy for the calling thread.
pub(crate) fn add(nanoseconds: u64) {
    PROXIES.fetch_add(nanoseconds, Relaxed);
    OF_THREAD.set(OF_THREAD.get() + nanoseconds);
}

fn clock(id: ClockId) -> Duration {
    let time = clock_gettime(id);
    Duration::from_secs(time.tv_sec.unsigned_abs()) + Duration::from_nanos(time.tv_nsec.unsigned_abs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_proxy_ran_counts_for_the_thread_that_called_and_for_the_process() {
        let (process, thread) = (of_process(), of_thread());
        add(5_000_000_000);
        assert!(of_process() - process >= Duration::from_secs(5));
        assert!(of_thread() - thread >= Duration::from_secs(5));
        let other = std::thread::spawn(of_thread).join().unwrap();
        assert!(other < Duration::from_secs(5), "{other:?}");
    }
}
