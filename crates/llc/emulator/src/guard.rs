//! Unmounts the file system when the emulator is killed.
//!
//! A file system without its program answers ENOTCONN until it is unmounted. The guard is a second process of this
//! program. It holds the end of a pipe and receives the mount point over it; when the pipe ends without the final
//! message, it unmounts that mount point.

use std::io::{self, BufRead, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitCode, Stdio};

use rustix::mount::{UnmountFlags, unmount};

/// The argument that makes the program a guard.
pub const FLAG: &str = "--guard";

/// The emulator's end.
#[derive(Debug)]
pub struct Guard {
    child: Child,
    pipe: ChildStdin,
}

impl Guard {
    /// Starts a guard. Its process group is its own, so that Ctrl-C at the terminal reaches the emulator and not the
    /// guard.
    ///
    /// # Errors
    /// When the program cannot be started.
    pub fn start() -> io::Result<Guard> {
        let mut command = Command::new("/proc/self/exe");
        command.arg(FLAG).process_group(0).stdin(Stdio::piped()).stdout(Stdio::null());
        let mut child = command.spawn()?;
        let pipe = child.stdin.take().ok_or_else(|| io::Error::other("the guard has no pipe"))?;
        Ok(Guard { child, pipe })
    }

    /// Names the mount point to unmount.
    ///
    /// # Errors
    /// When nothing is mounted there, or the guard is gone.
    pub fn watch(&mut self, mounted: &Path) -> io::Result<()> {
        let device = device_at(mounted)?.ok_or_else(|| io::Error::other("nothing is mounted there"))?;
        let mut line = format!("{device} ").into_bytes();
        line.extend(mounted.as_os_str().as_bytes());
        line.push(b'\n');
        self.pipe.write_all(&line)
    }

    /// Tells the guard that the file system was unmounted.
    pub fn dismiss(mut self) {
        // A dead guard needs no message.
        let _ = self.pipe.write_all(b"done\n");
        drop(self.pipe);
        let _ = self.child.wait();
    }
}

/// Runs the guard.
pub fn stand() -> ExitCode {
    let mut watched: Option<(String, PathBuf)> = None;
    for line in io::stdin().lock().split(b'\n').map_while(Result::ok) {
        let mut words = line.splitn(2, |byte| *byte == b' ');
        let device = words.next().map(|word| String::from_utf8_lossy(word).into_owned());
        watched = match (device, words.next()) {
            (Some(device), Some(path)) => Some((device, PathBuf::from(std::ffi::OsString::from_vec(path.to_vec())))),
            _ => None,
        };
    }
    let Some((device, path)) = watched else { return ExitCode::SUCCESS };
    match device_at(&path) {
        // Another file system mounted there by now is not the emulator's.
        Ok(Some(now)) if now == device => match unmount(&path, UnmountFlags::DETACH) {
            Ok(()) => ExitCode::SUCCESS,
            Err(_) => ExitCode::FAILURE,
        },
        _ => ExitCode::SUCCESS,
    }
}

/// Device (`0:53`) of the uppermost mount at a path; a dead file system also has one.
///
/// # Errors
/// When the list of mounts cannot be read.
pub fn device_at(path: &Path) -> io::Result<Option<String>> {
    let mounts = std::fs::read("/proc/self/mountinfo")?;
    Ok(device_in(&mounts, path.as_os_str().as_bytes()))
}

fn device_in(mounts: &[u8], path: &[u8]) -> Option<String> {
    let mut lines = mounts.split(|byte| *byte == b'\n').filter_map(|line| {
        let mut fields = line.split(|byte| *byte == b' ');
        let device = fields.nth(2)?;
        (unescaped(fields.nth(1)?) == path).then(|| String::from_utf8_lossy(device).into_owned())
    });
    lines.next_back()
}

/// Decodes blanks and the like, written as `\040`: proc_pid_mountinfo(5).
fn unescaped(field: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut rest = field;
    while let Some((first, behind)) = rest.split_first() {
        let octal = behind.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        let escaped = octal.filter(|_| *first == b'\\').and_then(|digits| u8::from_str_radix(digits, 8).ok());
        bytes.push(escaped.unwrap_or(*first));
        rest = if escaped.is_some() { &behind[3..] } else { behind };
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_uppermost_mount_at_a_path_counts_and_blanks_are_written_as_numbers() {
        let mounts = b"22 1 0:20 / / rw - ext4 /dev/vda rw\n\
                       40 22 0:50 / /tmp/a\\040b rw - fuse.resctrl resctrl rw\n\
                       41 22 0:51 / /tmp/a\\040b rw - fuse.resctrl resctrl rw\n";
        assert_eq!(device_in(mounts, b"/tmp/a b").as_deref(), Some("0:51"));
        assert_eq!(device_in(mounts, b"/tmp"), None);
    }
}
