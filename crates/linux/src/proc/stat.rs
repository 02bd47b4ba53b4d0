//! `/proc/PID/stat`: state, parent, start, CPU time and page faults of a process, in one line.
//!
//! Its name, owner and memory are in `status.rs`.
//!
//! Cost: some 15 µs. Side effects: none.
//!
//! Since: always. Every user may read it, unless /proc is mounted with hidepid.
//!
//! Truth: proc_pid_stat(5); `do_task_stat` in fs/proc/array.c.

use std::time::Duration;

use crate::{Error, KernelFiles, Pid};

/// Fields in use of `stat`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    /// `R` running, `S` sleeping, `D` waiting for a disk, `T` stopped, `Z` zombie, …
    pub state: char,
    /// Parent process, or the one that took over after the parent's end. 0 for the first process, and for a parent
    /// outside of our PID namespace.
    pub parent: Pid,
    /// True if it still runs the program that it was forked with (no execve since).
    pub forked: bool,
    /// True for a kernel thread, which has no memory of its own.
    pub of_kernel: bool,
    /// Start, in clock ticks since boot: with the pid, identifies this process and no later one.
    pub start_ticks: u64,
    /// CPU time of all its threads in user mode.
    pub user: Duration,
    /// CPU time of all its threads in the kernel.
    pub system: Duration,
    /// Page faults that needed no disk.
    pub minor_faults: u64,
    /// Page faults that waited for a disk.
    pub major_faults: u64,
}

/// Reads the line of `pid`.
///
/// # Errors
/// `Gone` if the process ended.
pub fn stat(files: &impl KernelFiles, pid: Pid) -> Result<Stat, Error> {
    read(files, &pid.file("stat"))
}

/// Reads the line of one thread; start, times and faults are the thread's own.
///
/// # Errors
/// `Gone` if the thread ended.
pub fn of_thread(files: &impl KernelFiles, pid: Pid, thread: Pid) -> Result<Stat, Error> {
    read(files, &pid.file(&format!("task/{thread}/stat")))
}

/// Present time in the unit of [`Stat::start_ticks`] (`/proc/uptime`).
///
/// # Errors
/// `Malformed`.
pub fn now_ticks(files: &impl KernelFiles) -> Result<u64, Error> {
    const PATH: &str = "proc/uptime";
    let object = format!("/{PATH}");
    let text = files.read(PATH).map_err(|errno| Error::of_host("read", &object, errno))?;
    ticks_of(&text, rustix::param::clock_ticks_per_second())
        .ok_or_else(|| Error::malformed(&object, format_args!("{text:?}, expected seconds such as 350735.47")))
}

/// Parses `350735.47 234388.90`: the first number, with hundredths.
fn ticks_of(uptime: &str, ticks_per_second: u64) -> Option<u64> {
    let (seconds, hundredths) = uptime.split_ascii_whitespace().next()?.split_once('.')?;
    let hundredths = Some(hundredths).filter(|digits| digits.len() == 2)?.parse::<u64>().ok()?;
    let more = hundredths * ticks_per_second / 100;
    seconds.parse::<u64>().ok()?.checked_mul(ticks_per_second)?.checked_add(more)
}

fn read(files: &impl KernelFiles, path: &str) -> Result<Stat, Error> {
    let object = format!("/{path}");
    let text = files.read(path).map_err(|errno| Error::of_process("read", &object, errno))?;
    parse(&text, rustix::param::clock_ticks_per_second()).ok_or_else(|| {
        Error::malformed(&object, format_args!("{text:?}, expected pid (name) state and 19 numbers or more"))
    })
}

/// Parses the numbers after the name. The name may hold spaces and parentheses: it ends at the last one.
fn parse(text: &str, ticks_per_second: u64) -> Option<Stat> {
    /// PF_FORKNOEXEC in include/linux/sched.h.
    const FORKED: u64 = 0x40;
    /// PF_KTHREAD, in the same file.
    const OF_KERNEL: u64 = 0x0020_0000;
    let after_name = &text[text.rfind(')')? + 1..];
    // The manual counts fields from 1; the state is field 3.
    let fields: Vec<&str> = after_name.split_ascii_whitespace().take(20).collect();
    let number = |manual: usize| fields.get(manual - 3)?.parse::<u64>().ok();
    let time = |manual: usize| number(manual).and_then(|ticks| ticks_to_time(ticks, ticks_per_second));
    let mut state = fields.first()?.chars();
    Some(Stat {
        parent: Pid(fields.get(4 - 3)?.parse().ok()?),
        state: state.next().filter(|_| state.next().is_none())?,
        forked: number(9)? & FORKED != 0,
        of_kernel: number(9)? & OF_KERNEL != 0,
        start_ticks: number(22)?,
        user: time(14)?,
        system: time(15)?,
        minor_faults: number(10)?,
        major_faults: number(12)?,
    })
}

fn ticks_to_time(ticks: u64, ticks_per_second: u64) -> Option<Duration> {
    let rest = ticks.checked_rem(ticks_per_second)?;
    let nanos = rest.checked_mul(1_000_000_000)? / ticks_per_second;
    Some(Duration::from_secs(ticks / ticks_per_second) + Duration::from_nanos(nanos))
}

#[cfg(test)]
mod tests;
