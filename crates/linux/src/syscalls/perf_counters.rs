//! `perf_event_open(2)`: instructions, cycles and cache misses of a thread.
//!
//! Each counter is a file descriptor of one thread, on any processor. With more counters than the processor has, the
//! kernel multiplexes them. A count since the last read is then scaled by the fraction of time that the counter was
//! active; it is unknown if the counter was never active. Threads that the thread starts are not counted: open them as
//! well.
//!
//! Cost: a system call to open each counter and one to read it; thread switches take longer. Side effects: none.
//! Descriptors: one for each event and thread.
//!
//! Since: Linux 2.6.31; needs CONFIG_PERF_EVENTS, a processor with counters (virtual machines often have none: ENOENT,
//! EOPNOTSUPP), and for others' threads CAP_PERFMON (Linux 5.8) or CAP_SYS_ADMIN, unless
//! `/proc/sys/kernel/perf_event_paranoid` is low.
//!
//! Truth: perf_event_open(2); include/uapi/linux/perf_event.h; kernel/events/core.c.

use std::fs::File;
use std::io::Read;
use std::os::fd::{FromRawFd, OwnedFd};

use rustix::io::Errno;

use units::cast;

use crate::proxy::{self, Call};
use crate::{Error, Pid, error};

/// `struct perf_event_attr` in its first version (PERF_ATTR_SIZE_VER0), which every kernel accepts.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Attributes {
    /// Type of event.
    pub kind: u32,
    /// Bytes of this structure.
    pub size: u32,
    /// Event number within the type.
    pub config: u64,
    /// 0: no samples.
    pub sample_period: u64,
    /// 0.
    pub sample_type: u64,
    /// Format of a read, `PERF_FORMAT_*` bits.
    pub read_format: u64,
    /// Flag bits.
    pub flags: u64,
    /// 0.
    pub wakeup_events: u32,
    /// 0.
    pub bp_type: u32,
    /// 0.
    pub bp_addr: u64,
}

/// Numbers of `linux/perf_event.h`.
pub mod numbers {
    /// Generic events of the processor.
    pub const PERF_TYPE_HARDWARE: u32 = 0;
    /// Events of the kernel.
    pub const PERF_TYPE_SOFTWARE: u32 = 1;
    /// Cycles while the thread runs.
    pub const PERF_COUNT_HW_CPU_CYCLES: u64 = 0;
    /// Retired instructions.
    pub const PERF_COUNT_HW_INSTRUCTIONS: u64 = 1;
    /// Misses of the last-level cache, on most processors.
    pub const PERF_COUNT_HW_CACHE_MISSES: u64 = 3;
    /// Cycles stalled for want of data, on processors that count them.
    pub const PERF_COUNT_HW_STALLED_CYCLES_BACKEND: u64 = 8;
    /// Time that the thread ran, in nanoseconds.
    pub const PERF_COUNT_SW_TASK_CLOCK: u64 = 1;
    /// Read format with the time enabled.
    pub const PERF_FORMAT_TOTAL_TIME_ENABLED: u64 = 1;
    /// Read format with the time counting.
    pub const PERF_FORMAT_TOTAL_TIME_RUNNING: u64 = 2;
    /// Closed on exec.
    pub const PERF_FLAG_FD_CLOEXEC: u64 = 8;
}
use numbers as n;

/// Counted event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Event {
    /// Retired instructions.
    Instructions,
    /// Cycles while the thread runs.
    Cycles,
    /// Misses of the last-level cache.
    Misses,
    /// Cycles stalled for want of data.
    Stalled,
    /// Time that the thread ran, in nanoseconds; the kernel's own counter, present on every host.
    Time,
}

impl Event {
    const fn number(self) -> (u32, u64) {
        match self {
            Event::Instructions => (n::PERF_TYPE_HARDWARE, n::PERF_COUNT_HW_INSTRUCTIONS),
            Event::Cycles => (n::PERF_TYPE_HARDWARE, n::PERF_COUNT_HW_CPU_CYCLES),
            Event::Misses => (n::PERF_TYPE_HARDWARE, n::PERF_COUNT_HW_CACHE_MISSES),
            Event::Stalled => (n::PERF_TYPE_HARDWARE, n::PERF_COUNT_HW_STALLED_CYCLES_BACKEND),
            Event::Time => (n::PERF_TYPE_SOFTWARE, n::PERF_COUNT_SW_TASK_CLOCK),
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Event::Instructions => "instructions",
            Event::Cycles => "cycles",
            Event::Misses => "cache misses",
            Event::Stalled => "stalled cycles",
            Event::Time => "time",
        }
    }
}

/// One event of one thread. Dropping it ends the counting.
#[derive(Debug)]
pub struct Counter {
    file: File,
    object: String,
    last: Count,
}

/// The kernel's reading of a counter, all since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Count {
    count: u64,
    /// Time enabled, in nanoseconds.
    enabled: u64,
    /// Time counting, in nanoseconds.
    running: u64,
}

impl Count {
    fn decode(bytes: &[u8; 24]) -> Count {
        let words = bytes.as_chunks::<8>().0;
        let word = |nth: usize| words.get(nth).map_or(0, |word| u64::from_ne_bytes(*word));
        Count { count: word(0), enabled: word(1), running: word(2) }
    }

    /// Count since `before`, scaled; `None` when the counter was enabled but never active.
    fn since(self, before: Count) -> Option<u64> {
        let (count, enabled) = (self.count.saturating_sub(before.count), self.enabled.saturating_sub(before.enabled));
        let running = self.running.saturating_sub(before.running);
        if running >= enabled {
            return Some(count);
        }
        let scaled = (u128::from(count) * u128::from(enabled)).checked_div(u128::from(running))?;
        Some(cast::saturated(scaled))
    }
}

impl Counter {
    /// Counts `event` of the thread `thread` from now on, in user mode.
    ///
    /// # Errors
    /// `Gone` if the thread ended, `Denied` without the privilege, `Unsupported` where the processor or the kernel does
    /// not count it.
    pub fn open(thread: Pid, event: Event) -> Result<Counter, Error> {
        let object = format!("{} of thread {thread}", event.name());
        let (kind, config) = event.number();
        let number = u64::try_from(thread.0).map_err(|_| failed(&object, Errno::SRCH))?;
        // The kernel takes exec_update_lock of the process.
        let opened = proxy::about(thread, |proxy| proxy.call(open_here, [number, kind.into(), config, 0], None));
        let fd = opened.and_then(|answer| answer.opened.ok_or(Errno::IO)).map_err(|errno| failed(&object, errno))?;
        Ok(Counter { file: File::from(fd), object, last: Count::default() })
    }

    /// Count since the last call or since opening; `None` when the counter was never active while the thread ran.
    ///
    /// # Errors
    /// `Other` with EIO when the kernel returns anything but three numbers.
    pub fn since_last(&mut self) -> Result<Option<u64>, Error> {
        let now = self.read()?;
        Ok(now.since(std::mem::replace(&mut self.last, now)))
    }

    fn read(&self) -> Result<Count, Error> {
        let mut bytes = [0; 24];
        let failed = |errno| Error::of_host("count", &self.object, errno);
        let mut file = &self.file;
        match file.read(&mut bytes).map_err(|error| failed(error::errno(error)))? {
            24 => Ok(Count::decode(&bytes)),
            _ => Err(failed(Errno::IO)),
        }
    }
}

fn open_here(call: &mut Call<'_>) -> Result<u64, Errno> {
    /// Excludes the kernel and a hypervisor.
    const EXCLUDE_KERNEL: u64 = 1 << 5;
    const EXCLUDE_HV: u64 = 1 << 6;
    const NO_GROUP: libc::c_long = -1;
    const ANY_CPU: libc::c_long = -1;
    let [thread, kind, config, _] = call.numbers;
    let attributes = Attributes {
        kind: cast::fits(kind),
        size: cast::fits(size_of::<Attributes>()),
        config,
        read_format: n::PERF_FORMAT_TOTAL_TIME_ENABLED | n::PERF_FORMAT_TOTAL_TIME_RUNNING,
        flags: EXCLUDE_KERNEL | EXCLUDE_HV,
        ..Attributes::default()
    };
    // SAFETY: `attributes` lives during the call and says its own size, and the kernel reads no more; the rest are
    // numbers.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_perf_event_open,
            &raw const attributes,
            thread,
            ANY_CPU,
            NO_GROUP,
            n::PERF_FLAG_FD_CLOEXEC,
        )
    };
    let fd = libc::c_int::try_from(fd).ok().filter(|fd| *fd >= 0);
    let fd = fd.ok_or_else(|| error::errno(std::io::Error::last_os_error()))?;
    // SAFETY: the call made it; it has no other owner.
    call.opened = Some(unsafe { OwnedFd::from_raw_fd(fd) });
    Ok(0)
}

/// The error of opening a counter. A missing event is a missing feature, a missing thread has ended.
fn failed(object: &str, errno: Errno) -> Error {
    match errno {
        Errno::SRCH => Error::of_process("count", object, errno),
        // A processor without this event says ENOENT; some say EINVAL, and EOPNOTSUPP for an unknown type.
        Errno::INVAL => Error::of_host("count", object, Errno::OPNOTSUPP),
        errno => Error::of_host("count", object, errno),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(words: [u64; 3]) -> Count {
        let mut bytes = [0; 24];
        for (nth, word) in words.into_iter().enumerate() {
            bytes[8 * nth..8 * nth + 8].copy_from_slice(&word.to_ne_bytes());
        }
        Count::decode(&bytes)
    }

    #[test]
    fn what_was_counted_for_a_third_of_the_time_counts_three_times() {
        let since = |words: [u64; 3], before: [u64; 3]| count(words).since(count(before));
        assert_eq!(since([100, 30, 10], [0; 3]), Some(300));
        assert_eq!(since([100, 30, 30], [0; 3]), Some(100));
        assert_eq!(since([u64::MAX, u64::MAX, 1], [0; 3]), Some(u64::MAX));
        // Only the interval counts: all of it, then one with a third counted.
        assert_eq!(since([150, 60, 40], [100, 30, 10]), Some(50));
        assert_eq!(since([110, 60, 20], [100, 30, 10]), Some(30));
    }

    #[test]
    fn without_a_turn_nothing_is_known_and_of_a_thread_that_did_not_run_it_is_nothing() {
        assert_eq!(count([0, 30, 0]).since(Count::default()), None);
        assert_eq!(count([100, 60, 10]).since(count([100, 30, 10])), None);
        assert_eq!(count([100, 30, 10]).since(count([100, 30, 10])), Some(0));
    }

    #[test]
    fn time_passes_for_a_thread_that_works() {
        let own = Pid(rustix::thread::gettid().as_raw_nonzero().get());
        let mut counter = match Counter::open(own, Event::Time) {
            Err(error @ (Error::Denied(_) | Error::Unsupported(_))) => return println!("SKIP: {error}"),
            counter => counter.unwrap(),
        };
        // A millisecond of work, in any number of reads.
        let mut left = 1_000_000;
        assert!((0..10_000_000).any(|_| {
            left -= i64::try_from(counter.since_last().unwrap().unwrap()).unwrap();
            left <= 0
        }));
    }

    #[test]
    fn a_thread_that_is_gone_is_gone_and_an_event_that_is_not_there_is_unsupported() {
        let quiet = crate::quiet_process::QuietProcess::start();
        let gone = quiet.pid();
        drop(quiet);
        match Counter::open(gone, Event::Time) {
            Err(Error::Denied(why)) => println!("SKIP: {why}"),
            answer => assert!(answer.is_err_and(|error| error.is_gone())),
        }
        for errno in [Errno::NOENT, Errno::INVAL, Errno::OPNOTSUPP] {
            assert!(matches!(failed("instructions of thread 1", errno), Error::Unsupported(_)));
        }
        let said = failed("instructions of thread 1", Errno::NOENT).to_string();
        assert_eq!(said, "cannot count instructions of thread 1: no such file or directory (ENOENT)");
    }
}
