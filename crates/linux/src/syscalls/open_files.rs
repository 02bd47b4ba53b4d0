//! `RLIMIT_NOFILE`: maximum number of open files of this process.
//!
//! The soft limit is low for programs that use select(2); the administrator sets the hard one. A server of many
//! programs raises its own soft limit to the hard one, and starts others with the original limits.
//!
//! Cost: one system call each. Side effects: the changed limit, until the process ends.
//!
//! Since: always.
//!
//! Truth: getrlimit(2).

use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::sync::OnceLock;

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Original limit, if it was raised.
static FOUND: OnceLock<Rlimit> = OnceLock::new();

/// Files that a server of many programs may need: below this the hard limit is raised, too, with CAP_SYS_RESOURCE.
const ENOUGH: u64 = 4096;

/// Raises the soft limit to the hard one, and a low hard limit where allowed. Failures are ignored.
pub fn raise() {
    let found = getrlimit(Resource::Nofile);
    let hard = Rlimit { current: found.maximum, ..found };
    let enough = Rlimit { current: Some(ENOUGH), maximum: Some(ENOUGH) };
    let is_low = found.maximum.is_some_and(|maximum| maximum < ENOUGH);
    let raised = is_low && setrlimit(Resource::Nofile, enough).is_ok()
        || found.current != found.maximum && setrlimit(Resource::Nofile, hard).is_ok();
    if raised {
        // The first one stays: masu raises it once.
        let _ = FOUND.set(found);
    }
}

/// Maximum number of files that this process may have open now.
pub fn limit() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// Checks that this process can open `count` more files, by opening and closing as many.
///
/// # Errors
/// The number that it can open, and the kernel's answer to the next: `EMFILE` at its limit, `ENFILE` at the machine's.
pub fn has_free(count: usize) -> Result<(), (usize, Errno)> {
    let mut files = Vec::with_capacity(count);
    while files.len() < count {
        match eventfd(0, EventfdFlags::CLOEXEC) {
            Ok(file) => files.push(file),
            Err(errno) => return Err((files.len(), errno)),
        }
    }
    Ok(())
}

/// Makes `command` start with the original limit.
pub fn pass_on(command: &mut Command) {
    let Some(found) = FOUND.get().copied() else { return };
    let work = move || Ok(setrlimit(Resource::Nofile, found)?);
    // SAFETY: between fork and exec: one system call, no memory, no lock.
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
        let (free, errno) = has_free(100).unwrap_err();
        assert!((1..100).contains(&free) && errno == Errno::MFILE, "{free} {errno}");
        assert_eq!(has_free(free / 2), Ok(()));
        raise();
        assert_eq!(getrlimit(Resource::Nofile).current, before.maximum);
        assert_eq!(soft_limit_of_a_child(), "100\n");
        setrlimit(Resource::Nofile, before).unwrap();
    }
}
