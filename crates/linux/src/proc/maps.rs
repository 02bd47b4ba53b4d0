//! `/proc/PID/maps`: mappings of a process.
//!
//! Resident memory and use per mapping are in `smaps.rs`, single pages in `pagemap.rs`.
//!
//! Cost: 0.3 µs per mapping in the kernel and as much here, measured once on Linux 6.18; under the mmap lock for
//! reading. The list is not a snapshot: a mapping that changes while it is read may turn up old, new or not at all.
//! Side effects: none.
//!
//! Since: always. Needs ptrace access to the process (PTRACE_MODE_READ).
//!
//! Truth: proc_pid_maps(5); `show_map_vma` in fs/proc/task_mmu.c.

use std::fmt;

use units::AddressRange;

use crate::key_lines::lines;
use crate::{Error, KernelFiles, Pid, Untrusted};

/// One mapping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// Address range.
    pub range: AddressRange,
    /// Permissions: `rw-p`.
    pub permissions: Permissions,
    /// Offset of its start in the file, in bytes.
    pub offset: u64,
    /// Device of the file: major and minor number. Zeros for memory without a file.
    pub device: (u32, u32),
    /// Inode of the file; zero for memory without one.
    pub inode: u64,
    /// Name as the kernel prints it: empty for plain anonymous memory, `[heap]`, `[stack]`, `[anon:name]`, or a file
    /// name. A file name has `\012` for a newline, and ends in ` (deleted)` if the file is gone.
    pub path: Untrusted,
}

impl Mapping {
    /// True for private memory of the process without a file: heap, stacks, anonymous mappings. False for the
    /// kernel's own mappings, such as `[vdso]`, `[vvar]`, `[vsyscall]` and `[uprobes]`.
    pub fn is_anonymous(&self) -> bool {
        let path = self.path.bytes();
        let named_like_memory =
            path.is_empty() || path == b"[heap]" || path.starts_with(b"[stack") || path.starts_with(b"[anon:");
        !self.permissions.shared && self.inode == 0 && named_like_memory
    }

    /// True for memory that the kernel itself cannot read (memfd_secret(2)). Its frames look like those of a file.
    pub fn is_secret(&self) -> bool {
        self.device.0 == 0 && self.path.bytes() == b"/secretmem (deleted)"
    }
}

/// Permissions of a mapping. Prints as the kernel writes it: `rw-p`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Permissions {
    /// Readable.
    pub read: bool,
    /// Writable.
    pub write: bool,
    /// Executable.
    pub execute: bool,
    /// True if writes reach the file or other processes that map it; false for private memory.
    pub shared: bool,
}

impl fmt::Display for Permissions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let letter = |is: bool, yes: char, no: char| if is { yes } else { no };
        let text: String = [
            letter(self.read, 'r', '-'),
            letter(self.write, 'w', '-'),
            letter(self.execute, 'x', '-'),
            letter(self.shared, 's', 'p'),
        ]
        .into_iter()
        .collect();
        f.pad(&text)
    }
}

/// All mappings of `pid`, by rising address. Empty for a process without memory: a kernel thread, a zombie, or one
/// that is just exiting.
///
/// # Errors
/// `Gone` if the process ended, `Denied` if it belongs to another user.
pub fn maps(files: &impl KernelFiles, pid: Pid) -> Result<Vec<Mapping>, Error> {
    let path = pid.file("maps");
    let object = format!("/{path}");
    let text = files.bytes(&path).map_err(|errno| Error::of_process("read", &object, errno))?;
    parse(&text, &object)
}

/// Parses the text of a `maps` file; `object` is the path for messages.
///
/// # Errors
/// `Malformed`, naming the line.
pub fn parse(text: &(impl AsRef<[u8]> + ?Sized), object: &str) -> Result<Vec<Mapping>, Error> {
    let text = text.as_ref();
    // A line without a path is about 50 bytes long, with one about 100.
    let mut mappings = Vec::with_capacity(text.len() / 64);
    for (index, line) in lines(text).enumerate() {
        mappings.push(parse_line(line).ok_or_else(|| not_a_mapping(object, index, line))?);
    }
    Ok(mappings)
}

/// Error for line `index` (from 0) of `object`.
pub(crate) fn not_a_mapping(object: &str, index: usize, line: &[u8]) -> Error {
    let line = Untrusted::new(line);
    Error::malformed(
        format_args!("{object} line {}", index + 1),
        format_args!("{line:?}, expected a mapping: start-end permissions offset device inode path"),
    )
}

/// Parses `55bb75674000-55bb7567a000 r-xp 00002000 fe:00 247278   /usr/bin/head`. `None` for any other text.
pub(crate) fn parse_line(line: &[u8]) -> Option<Mapping> {
    let mut fields = line.splitn(6, |byte| *byte == b' ');
    let mut field = || str::from_utf8(fields.next()?).ok();
    let (range, permissions, offset, device, inode) = (field()?, field()?, field()?, field()?, field()?);
    let path = fields.next().unwrap_or_default();
    let padding = path.iter().take_while(|byte| **byte == b' ').count();
    let (start, end) = range.split_once('-')?;
    let (major, minor) = device.split_once(':')?;
    Some(Mapping {
        range: AddressRange::new(hex(start)?, hex(end)?).ok()?,
        permissions: parse_permissions(permissions)?,
        offset: hex(offset)?,
        device: (u32::try_from(hex(major)?).ok()?, u32::try_from(hex(minor)?).ok()?),
        inode: inode.parse().ok()?,
        path: Untrusted::new(&path[padding..]),
    })
}

fn hex(digits: &str) -> Option<u64> {
    u64::from_str_radix(digits, 16).ok()
}

fn parse_permissions(text: &str) -> Option<Permissions> {
    let [r, w, x, s] = *text.as_bytes() else { return None };
    let flag = |byte: u8, yes: u8, no: u8| (byte == yes || byte == no).then_some(byte == yes);
    Some(Permissions {
        read: flag(r, b'r', b'-')?,
        write: flag(w, b'w', b'-')?,
        execute: flag(x, b'x', b'-')?,
        shared: flag(s, b's', b'p')?,
    })
}

#[cfg(test)]
mod tests;
