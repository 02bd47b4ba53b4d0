//! Process ids, the kernel's files of each process, and `pidfd_open(2)`.
//!
//! Cost: one system call to open a process. Side effects: none. Since: pidfd_open Linux 5.3. Truth: pidfd_open(2).

use std::fmt;
use std::os::fd::OwnedFd;
use std::str::FromStr;

use rustix::io::Errno;
use rustix::process::{PidfdFlags, pidfd_open};
use serde::{Deserialize, Serialize};

use crate::Error;

/// Process (thread group) id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize, Serialize)]
#[serde(transparent)]
pub struct Pid(pub i32);

impl Pid {
    /// This process.
    pub fn own() -> Pid {
        Pid(rustix::process::getpid().as_raw_nonzero().get())
    }

    /// File of the process relative to the root: `proc/4121/clear_refs`.
    pub fn file(self, name: &str) -> String {
        format!("proc/{}/{name}", self.0)
    }

    /// Opens a descriptor for this process, never for a later one with the same number.
    ///
    /// # Errors
    /// `Gone` if there is no such process, `Unsupported` before Linux 5.3.
    pub fn open(self) -> Result<OwnedFd, Error> {
        let pid = rustix::process::Pid::from_raw(self.0).filter(|_| self.0 > 0);
        pid.ok_or(Errno::SRCH)
            .and_then(|pid| pidfd_open(pid, PidfdFlags::empty()))
            .map_err(|errno| Error::of_process("open", format!("process {self}"), errno))
    }
}

impl fmt::Display for Pid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for Pid {
    type Err = String;
    fn from_str(text: &str) -> Result<Pid, String> {
        match text.parse::<i32>() {
            Ok(number) if number > 0 => Ok(Pid(number)),
            _ => Err(format!("{text}: expected a process id, a whole number above 0")),
        }
    }
}
