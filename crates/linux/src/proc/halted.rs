//! A process that cannot run: frozen by the freezer, stopped by a signal, or stopped by its tracer.
//!
//! Such a process touches no page, so an observation of its accesses shows idle memory. State and tracer are in `stat.rs`
//! and `status.rs`, the freezer in `cgroup/freezer.rs`.
//!
//! A tracer stops its tracee in passing, too (strace: twice in each call). A traced process counts as halted if all its
//! threads are in such a stop at two looks, and none was scheduled in between.
//!
//! Cost: one file for a process that runs; four for one that sleeps; two per thread for a traced one. Side effects: none.
//!
//! Since: always; the freezer as in `cgroup/freezer.rs`. Every user may read these files, unless /proc is mounted with
//! hidepid.
//!
//! Truth: proc_pid_stat(5), ptrace(2); `task_state_array` in fs/proc/array.c.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::key_lines::{lines, split};
use super::{stat, status};
use crate::cgroup::freezer;
use crate::{KernelFiles, Pid, Untrusted};

/// Cause for which no thread of a process can run.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(tag = "cause", rename_all = "kebab-case")]
pub enum Halted {
    /// Its control group is frozen.
    Frozen {
        /// Directory of the group.
        group: String,
    },
    /// A signal stopped it (SIGSTOP, Ctrl-Z).
    Stopped,
    /// Its tracer stopped it.
    Traced {
        /// The tracer; `None` outside of our PID namespace.
        tracer: Option<Pid>,
        /// Name of the tracer.
        tracer_name: Option<Untrusted>,
    },
}

impl fmt::Display for Halted {
    /// Words behind "is".
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Halted::Frozen { group } => write!(f, "frozen (control group {group})"),
            Halted::Stopped => f.write_str("stopped by a signal (SIGSTOP or Ctrl-Z)"),
            Halted::Traced { tracer: Some(pid), tracer_name: Some(name) } => {
                write!(f, "stopped by its tracer, process {pid} ({name})")
            }
            Halted::Traced { tracer: Some(pid), .. } => write!(f, "stopped by its tracer, process {pid}"),
            Halted::Traced { .. } => f.write_str("stopped by its tracer, a process outside of this container"),
        }
    }
}

impl Halted {
    /// Remedy, as one sentence.
    pub fn remedy(&self, pid: Pid) -> String {
        match self {
            Halted::Frozen { group } => {
                format!("Thaw the group: `docker unpause`, or freezer.state or cgroup.freeze in {group} and above.")
            }
            Halted::Stopped => format!("`kill -CONT {pid}` lets it go on."),
            Halted::Traced { tracer: Some(tracer), .. } => {
                format!("Have process {tracer} continue it, or let it go (detach).")
            }
            Halted::Traced { .. } => "Have the tracer continue it, or let it go (detach).".to_owned(),
        }
    }
}

/// Threads looked at of a traced process.
const THREADS_MAX: usize = 64;

/// Repeated looks at one process.
#[derive(Clone, Debug, Default)]
pub struct Looks {
    /// Sum of context switches, when all threads were last seen in a stop of the tracer's.
    switches: Option<u64>,
}

impl Looks {
    /// Looks at `pid`. `None` if it can run, and if it ended.
    pub fn look(&mut self, files: &impl KernelFiles, pid: Pid) -> Option<Halted> {
        let before = self.switches.take();
        let state = stat::stat(files, pid).ok()?.state;
        if state == 'R' {
            return None;
        }
        if let Some(group) = freezer::frozen_group(files, pid) {
            return Some(Halted::Frozen { group });
        }
        match state {
            'T' => Some(Halted::Stopped),
            't' => {
                self.switches = switches_in_stops(files, pid);
                if self.switches.is_none() || self.switches != before {
                    return None;
                }
                let tracer = status::status(files, pid).ok()?.tracer;
                let tracer_name = tracer.and_then(|tracer| Some(status::status(files, tracer).ok()?.name));
                Some(Halted::Traced { tracer, tracer_name })
            }
            _ => None,
        }
    }
}

/// Time between the two looks of [`halted`] at a traced process.
const BETWEEN_LOOKS: Duration = Duration::from_millis(50);

/// Looks at `pid` once, and at a traced process twice. `None` if it can run, and if it ended.
pub fn halted(files: &impl KernelFiles, pid: Pid) -> Option<Halted> {
    let mut looks = Looks::default();
    let found = looks.look(files, pid);
    if looks.switches.is_some() {
        std::thread::sleep(BETWEEN_LOOKS);
        return looks.look(files, pid);
    }
    found
}

/// A process that cannot run.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct HaltedProcess {
    /// Pid.
    pub pid: Pid,
    /// Command name.
    pub name: Untrusted,
    /// Cause.
    #[serde(flatten)]
    pub why: Halted,
}

/// Processes among these that cannot run.
pub fn halted_among(files: &impl KernelFiles, pids: impl IntoIterator<Item = Pid>) -> Vec<HaltedProcess> {
    let mut found = Vec::new();
    let mut add = |pid: Pid, why: Option<Halted>| {
        let name = || status::status(files, pid).map_or_else(|_| "ended".into(), |status| status.name);
        found.extend(why.map(|why| HaltedProcess { pid, name: name(), why }));
    };
    let mut traced = Vec::new();
    for pid in pids {
        let mut looks = Looks::default();
        let why = looks.look(files, pid);
        if looks.switches.is_some() {
            traced.push((pid, looks));
        } else {
            add(pid, why);
        }
    }
    if !traced.is_empty() {
        std::thread::sleep(BETWEEN_LOOKS);
    }
    traced.into_iter().for_each(|(pid, mut looks)| add(pid, looks.look(files, pid)));
    found.sort_by_key(|of| of.pid);
    found
}

/// Sum of the context switches of all threads; `None` if one of them is in no stop of a tracer's.
fn switches_in_stops(files: &impl KernelFiles, pid: Pid) -> Option<u64> {
    let threads = files.list(&pid.file("task")).ok()?;
    let mut sum = 0_u64;
    for thread in threads.iter().filter_map(|name| name.parse::<Pid>().ok()).take(THREADS_MAX) {
        if !matches!(stat::of_thread(files, pid, thread).ok()?.state, 't' | 'T') {
            return None;
        }
        let text = files.bytes(&pid.file(&format!("task/{thread}/status"))).ok()?;
        for line in lines(&text).filter_map(|line| std::str::from_utf8(line).ok()) {
            if let Some(("voluntary_ctxt_switches" | "nonvoluntary_ctxt_switches", value)) = split(line) {
                sum = sum.wrapping_add(value.parse().ok()?);
            }
        }
    }
    Some(sum)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::FakeKernel;

    fn stat_of(state: char) -> String {
        format!("42 (x) {state} 1 42 42 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 77 0 0\n")
    }

    fn status_of(name: &str, tracer: u32, switches: u32) -> String {
        format!(
            "Name:\t{name}\nState:\tt\nTgid:\t42\nTracerPid:\t{tracer}\nUid:\t0\t0\t0\t0\nVmSize:\t 4 kB\nThreads:\t1\n\
             CapEff:\t0\nvoluntary_ctxt_switches:\t{switches}\nnonvoluntary_ctxt_switches:\t2\n"
        )
    }

    fn traced(switches: u32) -> FakeKernel {
        let kernel =
            FakeKernel::new().file("proc/42/stat", &stat_of('t')).file("proc/42/status", &status_of("x", 9, 0));
        let kernel = kernel.file("proc/42/task/42/stat", &stat_of('t'));
        let kernel = kernel.file("proc/42/task/42/status", &status_of("x", 9, switches));
        kernel.file("proc/9/status", &status_of("gdb", 0, 0))
    }

    #[test]
    fn a_process_that_runs_or_sleeps_or_ended_is_not_halted() {
        for state in ['R', 'S', 'D', 'Z'] {
            assert_eq!(halted(&FakeKernel::new().file("proc/42/stat", &stat_of(state)), Pid(42)), None, "{state}");
        }
        assert_eq!(halted(&FakeKernel::new(), Pid(42)), None);
    }

    #[test]
    fn those_of_several_that_cannot_run_are_found_with_their_names() {
        let kernel = traced(7)
            .file("proc/43/stat", &stat_of('T'))
            .file("proc/43/status", &status_of("y", 0, 0))
            .file("proc/44/stat", &stat_of('S'));
        let found = halted_among(&kernel, [44, 43, 42, 41].map(Pid));
        let all: Vec<(Pid, String, String)> =
            found.iter().map(|of| (of.pid, of.name.to_string(), of.why.to_string())).collect();
        let tracer = "stopped by its tracer, process 9 (gdb)";
        let expected = [(42, "x", tracer), (43, "y", "stopped by a signal (SIGSTOP or Ctrl-Z)")];
        assert_eq!(all, expected.map(|(pid, name, why)| (Pid(pid), name.to_owned(), why.to_owned())));
        let json = serde_json::to_value(&found[1]).unwrap();
        assert_eq!(json, serde_json::json!({"pid": 43, "name": "y", "cause": "stopped"}));
    }

    #[test]
    fn a_stop_signal_and_the_freezer_are_told_apart() {
        let stopped = FakeKernel::new().file("proc/42/stat", &stat_of('T'));
        assert_eq!(halted(&stopped, Pid(42)), Some(Halted::Stopped));
        let frozen = stopped
            .file("proc/self/mountinfo", "35 31 0:32 / /sys/fs/cgroup/freezer rw - cgroup cgroup rw,freezer\n")
            .file("proc/42/cgroup", "7:freezer:/web\n")
            .file("sys/fs/cgroup/freezer/web/freezer.state", "FROZEN\n");
        let found = halted(&frozen, Pid(42)).unwrap();
        assert_eq!(found.to_string(), "frozen (control group /sys/fs/cgroup/freezer/web)");
        assert!(found.remedy(Pid(42)).contains("Thaw"));
    }

    #[test]
    fn a_stop_in_passing_is_no_halt() {
        let found = halted(&traced(3), Pid(42)).unwrap();
        assert_eq!(found, Halted::Traced { tracer: Some(Pid(9)), tracer_name: Some("gdb".into()) });
        assert_eq!(found.to_string(), "stopped by its tracer, process 9 (gdb)");
        let mut looks = Looks::default();
        assert_eq!(looks.look(&traced(3), Pid(42)), None, "one look");
        assert_eq!(looks.look(&traced(4), Pid(42)), None, "it was scheduled in between");
        assert!(looks.look(&traced(4), Pid(42)).is_some());
    }

    #[test]
    fn a_thread_that_runs_beside_a_stopped_one_runs() {
        let kernel = traced(3).file("proc/42/task/43/stat", &stat_of('S'));
        assert_eq!(halted(&kernel, Pid(42)), None);
    }
}
