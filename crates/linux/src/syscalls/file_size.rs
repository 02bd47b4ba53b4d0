//! `RLIMIT_FSIZE`: largest file that this process may write.
//!
//! A limit that a user sets for a program (`ulimit -f`) holds for masu's own files as well, since masu inherits it. masu
//! raises its own, and starts programs with the original one.
//!
//! Cost: some system calls. Side effects: the changed limit, until the process ends.
//!
//! Since: always.
//!
//! Truth: getrlimit(2); `inode_newsize_ok` in fs/attr.c.

use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::sync::OnceLock;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Original limit, if it was raised.
static FOUND: OnceLock<Rlimit> = OnceLock::new();

/// Raises the limit as far as allowed. Failures are ignored.
pub fn raise() {
    let found = getrlimit(Resource::Fsize);
    if found.current.is_none() {
        return;
    }
    let unlimited = Rlimit { current: None, maximum: None };
    let hard = Rlimit { current: found.maximum, ..found };
    if setrlimit(Resource::Fsize, unlimited).or_else(|_| setrlimit(Resource::Fsize, hard)).is_ok() {
        let _ = FOUND.set(found);
    }
}

/// Largest file that this process may write now; `None` for any.
pub fn limit() -> Option<u64> {
    getrlimit(Resource::Fsize).current
}

/// Makes `command` start with the original limit.
pub fn pass_on(command: &mut Command) {
    let Some(found) = FOUND.get().copied() else { return };
    let work = move || Ok(setrlimit(Resource::Fsize, found)?);
    // SAFETY: between fork and exec: one system call, no memory, no lock.
    unsafe { command.pre_exec(work) };
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The limit belongs to the process: only one test may change it. Other tests write nothing near a gigabyte.
    #[test]
    fn a_raised_limit_is_ours_alone() {
        let before = getrlimit(Resource::Fsize);
        if setrlimit(Resource::Fsize, Rlimit { current: Some(1 << 30), ..before }).is_err() {
            return;
        }
        raise();
        assert_eq!(getrlimit(Resource::Fsize).current, before.maximum);
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "ulimit -S -f"]);
        pass_on(&mut command);
        // In blocks of 512 bytes.
        assert_eq!(String::from_utf8(command.output().unwrap().stdout).unwrap(), "2097152\n");
        setrlimit(Resource::Fsize, before).unwrap();
    }
}
