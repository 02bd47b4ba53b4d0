//! `RLIMIT_NOFILE`: maximum number of open files of this process.
//!
//! The soft limit is low for programs that use select(2); the administrator sets the hard one. A server of many
//! programs raises its own soft limit to the hard one, and starts others with the original soft limit.
//!
//! Cost: one system call each. Side effects: the changed limit, until the process ends.
//!
//! Since: always.
//!
//! Truth: getrlimit(2).

use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Original soft limit, if it was raised.
static FOUND: AtomicU64 = AtomicU64::new(NOT_RAISED);

/// Not a possible limit: a process with descriptors has a limit above 0.
const NOT_RAISED: u64 = 0;

/// Raises the soft limit to the hard one. Failures are ignored.
pub fn raise() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let Some(found) = current.filter(|_| current != maximum) else { return };
    if setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).is_ok() {
        FOUND.store(found, Relaxed);
    }
}

/// Maximum number of files that this process may have open now.
pub fn limit() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// Makes `command` start with the original limit.
pub fn pass_on(command: &mut Command) {
    let found = FOUND.load(Relaxed);
    if found == NOT_RAISED {
        return;
    }
    let work = move || {
        let now = getrlimit(Resource::Nofile);
        Ok(setrlimit(Resource::Nofile, Rlimit { current: Some(found), ..now })?)
    };
    // SAFETY: between fork and exec: two system calls, no memory, no lock.
    unsafe { command.pre_exec(work) };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn soft_limit_of_a_child() -> String {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "ulimit -S -n"]);
        pass_on(&mut command);
        String::from_utf8(command.output().unwrap().stdout).unwrap()
    }

    /// The limit belongs to the process: only one test may change it.
    #[test]
    fn a_raised_limit_is_ours_alone() {
        let before = getrlimit(Resource::Nofile);
        let low = Rlimit { current: Some(100), ..before };
        setrlimit(Resource::Nofile, low).unwrap();
        assert_eq!(limit(), 100);
        raise();
        assert_eq!(getrlimit(Resource::Nofile).current, before.maximum);
        assert_eq!(soft_limit_of_a_child(), "100\n");
        setrlimit(Resource::Nofile, before).unwrap();
    }
}
