//! `getrusage(2)` of the children: resources used by started programs that have ended.
//!
//! Cost: one system call. Side effects: none. Since: always; `maxrss` Linux 2.6.32.
//! Truth: getrusage(2); with several children the times and faults are sums and the memory is the largest.

use std::time::Duration;

use units::Bytes;

/// Resources used by the waited-for children and their descendants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Processor time in user mode.
    pub user: Duration,
    /// Processor time in the kernel.
    pub system: Duration,
    /// Largest resident size of any child.
    pub rss_peak: Bytes,
    /// Faults that needed no I/O.
    pub minor_faults: u64,
    /// Faults that waited for a disk.
    pub major_faults: u64,
}

/// Resources used by the children.
pub fn of_children() -> Usage {
    let mut raw = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: a variable of ours, of the type that the call fills; the call cannot fail with this argument.
    unsafe { libc::getrusage(libc::RUSAGE_CHILDREN, raw.as_mut_ptr()) };
    // SAFETY: filled, or zeros, which are valid numbers.
    let raw = unsafe { raw.assume_init() };
    let time = |time: libc::timeval| {
        Duration::from_secs(time.tv_sec.unsigned_abs()) + Duration::from_micros(time.tv_usec.unsigned_abs())
    };
    Usage {
        user: time(raw.ru_utime),
        system: time(raw.ru_stime),
        rss_peak: Bytes(raw.ru_maxrss.unsigned_abs() * 1024),
        minor_faults: raw.ru_minflt.unsigned_abs(),
        major_faults: raw.ru_majflt.unsigned_abs(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_that_ended_has_used_memory_and_faulted() {
        let before = of_children();
        assert!(std::process::Command::new("true").status().unwrap().success());
        let after = of_children();
        assert!(after.minor_faults > before.minor_faults);
        assert!(after.rss_peak >= Bytes::kib(100));
    }
}
