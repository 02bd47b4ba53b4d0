//! Child process that does nothing, so that two readings of it are equal.

use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};

use crate::Pid;

/// A `cat` that waits for input. It is killed when dropped.
pub(crate) struct QuietProcess(Child);

impl QuietProcess {
    /// Starts it and waits until it is idle.
    pub(crate) fn start() -> QuietProcess {
        let mut child = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        child.stdin.as_mut().unwrap().write_all(b"x").unwrap();
        child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        let quiet = QuietProcess(child);
        // The echo comes shortly before `cat` goes back to sleep.
        while crate::stat::stat(&crate::Rooted::host(), quiet.pid()).unwrap().state != 'S' {
            std::thread::yield_now();
        }
        quiet
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid(i32::try_from(self.0.id()).unwrap())
    }
}

impl Drop for QuietProcess {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}
