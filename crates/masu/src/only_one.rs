//! A lock that one masu on the host holds at a time, while the file is open.

use std::fmt::Display;
use std::fs::File;
use std::io::{Read, Seek, Write};

use linux::Pid;
use rustix::fs::{FlockOperation, Mode, OFlags, flock, open};

use crate::failure::Failure;
use crate::runtime;

/// A task that only one masu does at a time.
pub struct Sole {
    /// Name of the lock file.
    pub file: &'static str,
    /// The refused operation, for the message.
    pub cannot: &'static str,
    /// Command of the holder, for the message.
    pub command: &'static str,
    /// Remedy, for the message.
    pub remedy: &'static str,
}

/// Locks the file. Dropping the file releases the lock.
pub fn only_one(of: &Sole) -> Result<File, Failure> {
    let path = runtime::private_of_host(of.cannot)?.join(of.file);
    let failed = |why: &dyn Display| {
        let what = format!("cannot {}: cannot lock {}: {why}", of.cannot, path.display());
        Failure::new(what).remedy("Run as root.")
    };
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let opened = open(&path, flags, Mode::RUSR | Mode::WUSR).map_err(|errno| failed(&linux::describe(errno)))?;
    let mut file = File::from(opened);
    if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
        let mut holder = String::new();
        let _ = file.read_to_string(&mut holder); // Only for the message.
        let (cannot, command) = (of.cannot, of.command);
        let line = format!("cannot {cannot}: another {command} is at work (process {})", holder.trim());
        return Err(Failure::new(line).remedy(of.remedy).by_another_masu());
    }
    file.set_len(0)
        .and_then(|()| file.rewind())
        .and_then(|()| writeln!(file, "{}", Pid::own()))
        .map_err(|error| failed(&linux::describe_io(&error)))?;
    Ok(file)
}
