//! `/proc/PID/stat`: state, parent, start, CPU time and page faults of a process, in one line.
//!
//! Its name, owner and memory are in `status.rs`.
//!
//! Cost: some 15 µs. Side effects: none.
//!
//! Since: always. Anyone may read it, unless /proc is mounted with hidepid.
//!
//! Truth: proc_pid_stat(5); `do_task_stat` in fs/proc/array.c.

use std::time::Duration;

use crate::{Error, KernelFiles, Pid};

/// What `stat` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    /// `R` running, `S` sleeping, `D` waiting for a disk, `T` stopped, `Z` zombie, …
    pub state: char,
    /// The process that started it, or whoever took it over when that one ended. 0 for the first process and for one whose
    /// parent is outside of our process namespace.
    pub parent: Pid,
    /// When it started, in clock ticks since boot: with the pid, names this process and no later one.
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
    let path = pid.file("stat");
    let object = format!("/{path}");
    let text = files.read(&path).map_err(|errno| Error::of_process("read", &object, errno))?;
    parse(&text, rustix::param::clock_ticks_per_second()).ok_or_else(|| {
        Error::malformed(&object, format_args!("{text:?}, expected pid (name) state and 19 numbers or more"))
    })
}

/// The numbers after the name. The name may hold spaces and parentheses: it ends at the last one.
fn parse(text: &str, ticks_per_second: u64) -> Option<Stat> {
    let after_name = &text[text.rfind(')')? + 1..];
    // The manual counts fields from 1; the state is field 3.
    let fields: Vec<&str> = after_name.split_ascii_whitespace().take(20).collect();
    let number = |manual: usize| fields.get(manual - 3)?.parse::<u64>().ok();
    let time = |manual: usize| number(manual).and_then(|ticks| ticks_to_time(ticks, ticks_per_second));
    let mut state = fields.first()?.chars();
    Some(Stat {
        parent: Pid(fields.get(4 - 3)?.parse().ok()?),
        state: state.next().filter(|_| state.next().is_none())?,
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
