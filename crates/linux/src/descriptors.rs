//! `/proc/PID/fd` and `/proc/PID/fdinfo`: which files a process has open, and how far it has come in each.
//!
//! Only regular files: those have pages in the page cache (`page_cache.rs`, `cachestat.rs`). Files that are mapped and closed are in
//! `maps.rs`. The name of a file is not asked: it may have none any more, and the descriptor is a way to it all the same.
//!
//! Cost: some 4 µs for a descriptor of a regular file, 2 µs for another. Side effect: none; the offset is read, not moved.
//! Not a snapshot: a descriptor that is closed meanwhile is left out, and one that stands for another file by the time it is opened
//! is noticed ([`reopen`]). A file on a server that does not answer (NFS) makes the call wait for it. Offsets say nothing of programs that read by `pread`, `mmap` or io_uring.
//!
//! Since: `/proc/PID/fd` always, `fdinfo` Linux 2.6.22. Needs ptrace access to the process (PTRACE_MODE_READ).
//!
//! Truth: proc_pid_fd(5), proc_pid_fdinfo(5); `seq_show` in fs/proc/fd.c.

use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};

use quantities::Bytes;
use rustix::fs::{FileType, Mode, OFlags, Stat, fstat, major, minor, open, stat};
use rustix::io::Errno;

use crate::{Error, KernelFiles, Pid};

/// A regular file that a process has open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenFile {
    /// Its number in the process.
    pub descriptor: i32,
    /// The device that it lies on: major and minor, as `maps.rs` has it. On btrfs and overlayfs another than in `maps`.
    pub device: (u32, u32),
    /// Its inode there.
    pub inode: u64,
    /// Its length.
    pub length: Bytes,
    /// Where the next `read` or `write` begins.
    pub offset: Bytes,
    /// Open for reading.
    pub reads: bool,
    /// Open for writing.
    pub writes: bool,
    /// Past the page cache (O_DIRECT).
    pub direct: bool,
}

/// What `stat` says of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct About {
    device: (u32, u32),
    inode: u64,
    length: Bytes,
    is_regular: bool,
}

impl About {
    fn of(stat: &Stat) -> About {
        About {
            device: (major(stat.st_dev), minor(stat.st_dev)),
            inode: stat.st_ino,
            length: Bytes(u64::try_from(stat.st_size).unwrap_or(0)),
            is_regular: FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile,
        }
    }
}

/// The regular files that the process has open, by rising descriptor; one that is open twice is in the list twice. Files that are
/// open only as a place (O_PATH) are left out.
///
/// # Errors
/// `Gone` when it ended, `Denied` without ptrace access, `Malformed` for what does not read as a descriptor.
pub fn regular_files(files: &impl KernelFiles, pid: Pid) -> Result<Vec<OpenFile>, Error> {
    regular_files_by(files, pid, |descriptor| stat(link(pid, descriptor)).map(|stat| About::of(&stat)))
}

/// Where the kernel serves the file itself.
fn link(pid: Pid, descriptor: i32) -> String {
    format!("/{}", pid.file(&format!("fd/{descriptor}")))
}

fn regular_files_by(
    files: &impl KernelFiles,
    pid: Pid,
    about: impl Fn(i32) -> Result<About, Errno>,
) -> Result<Vec<OpenFile>, Error> {
    let directory = pid.file("fd");
    let names =
        files.list(&directory).map_err(|errno| Error::of_process("list", format_args!("/{directory}"), errno))?;
    let mut descriptors: Vec<i32> = names.iter().filter_map(|name| name.parse().ok()).collect();
    descriptors.sort_unstable();
    let mut found = Vec::new();
    for descriptor in descriptors {
        let about = match about(descriptor) {
            Ok(about) if about.is_regular => about,
            Err(errno @ Errno::SRCH) => return Err(Error::of_process("look at", link(pid, descriptor), errno)),
            // No regular file; closed meanwhile; or not shown to us by who serves it (FUSE), or by nobody any more (NFS).
            Ok(_) | Err(_) => continue,
        };
        let path = pid.file(&format!("fdinfo/{descriptor}"));
        let text = match files.read(&path) {
            Ok(text) => text,
            Err(Errno::NOENT) => continue,
            Err(errno) => return Err(Error::of_process("read", format_args!("/{path}"), errno)),
        };
        if let Some(file) = decode(descriptor, about, &text, &path)? {
            found.push(file);
        }
    }
    Ok(found)
}

/// `pos:` in decimal and `flags:` in octal, among other lines. `None` for a file that is open only as a place.
fn decode(descriptor: i32, about: About, text: &str, path: &str) -> Result<Option<OpenFile>, Error> {
    let value = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.map(str::trim).ok_or_else(|| Error::malformed(format_args!("/{path}"), format_args!("no line {name:?}")))
    };
    let bad = |name: &str, found: &str, expected: &str| {
        Error::malformed(format_args!("/{path}, {name}"), format_args!("{found:?}, expected {expected}"))
    };
    let (offset, flags) = (value("pos")?, value("flags")?);
    let offset = offset.parse().map(Bytes).map_err(|_| bad("pos", offset, "a number of bytes"))?;
    let flags = u32::from_str_radix(flags, 8).map_err(|_| bad("flags", flags, "flags in octal"))?;
    let flags = OFlags::from_bits_retain(flags);
    if flags.contains(OFlags::PATH) {
        return Ok(None);
    }
    let access = flags & OFlags::ACCMODE;
    Ok(Some(OpenFile {
        descriptor,
        device: about.device,
        inode: about.inode,
        length: about.length,
        offset,
        reads: access == OFlags::RDONLY || access == OFlags::RDWR,
        writes: access == OFlags::WRONLY || access == OFlags::RDWR,
        direct: flags.contains(OFlags::DIRECT),
    }))
}

/// Opens the same file again, for reading, with an offset of our own: also one that has no name any more.
///
/// What the number stands for by now is looked at before it is opened, so that no device and no pipe is opened by mistake.
///
/// # Errors
/// `Gone` when the process ended, closed it, or has another file there; `Denied` without ptrace access or for a file that we may not
/// read.
pub fn reopen(pid: Pid, file: &OpenFile) -> Result<File, Error> {
    let path = link(pid, file.descriptor);
    let failed = |errno| Error::of_process("open", &path, errno);
    let place: OwnedFd = open(&path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).map_err(failed)?;
    let about = About::of(&fstat(&place).map_err(failed)?);
    if !about.is_regular || (about.device, about.inode) != (file.device, file.inode) {
        return Err(failed(Errno::NOENT));
    }
    let own = link(Pid::own(), place.as_raw_fd());
    let opened = open(own, OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK, Mode::empty()).map_err(failed)?;
    Ok(File::from(opened))
}

#[cfg(test)]
mod tests;
