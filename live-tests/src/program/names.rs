//! A program that gives all its objects names of its choice, which would control a terminal or forge a line.

use std::ffi::{OsStr, c_void};
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

use super::Wrong;
use super::memory::{HUGE, MIB, Memory, PRIVATE, READ_WRITE};

/// Name of the process.
pub(crate) const COMM: &[u8] = b"\x1b]0;own\x07\nPID\xff\\";
/// Names of a file of code, a file of data, one that is removed, and shared memory.
pub(crate) const CODE: &[u8] = b"lib\x1b]0;pwned\x07\x1b[31mRED\nPID 1 root: forged line\r.so";
pub(crate) const DATA: &[u8] = b"data\xff\xfe\xc2\x9b31m\xe2\x80\xae\x1b[2J\x7f.bin";
const REMOVED: &[u8] = b"gone\x1b[2J\nforged";
const MEMFD: &std::ffi::CStr = c"mfd\x1b]0;pwned\x07\nforged";

/// Size of each file.
const FILE: usize = 4 * MIB;
/// Size of the memory offered to KSM, and of the window advised to be huge.
const MERGEABLE: usize = 2 * MIB;

/// Maps files in `folder`, reports that it is ready, and uses all of it until it is killed: `spin` without a sleep, so
/// without a system call. With `once` it ends.
pub(super) fn names(folder: &str, how: &str) -> Result<(), Wrong> {
    let mut name = [0u8; 16];
    name[..COMM.len()].copy_from_slice(COMM);
    // SAFETY: the call reads a name that ends in a zero.
    if unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr()) } != 0 {
        return Err(std::io::Error::last_os_error().into());
    }
    let folder = Path::new(folder);
    let mut mapped = vec![
        mapped(&file(folder, CODE)?, libc::PROT_READ | libc::PROT_EXEC)?,
        mapped(&file(folder, DATA)?, READ_WRITE)?,
        mapped(&file(folder, REMOVED)?, READ_WRITE)?,
    ];
    std::fs::remove_file(folder.join(OsStr::from_bytes(REMOVED)))?;
    // SAFETY: the call reads a name that ends in a zero; it returns a descriptor that no other code has.
    let memory = unsafe { File::from_raw_fd(libc::memfd_create(MEMFD.as_ptr(), libc::MFD_CLOEXEC)) };
    memory.set_len(FILE as u64)?;
    mapped.push(self::mapped(&memory, READ_WRITE)?);
    let huge = Memory::map(2 * HUGE, READ_WRITE, PRIVATE)?;
    let mergeable = Memory::map(MERGEABLE, READ_WRITE, PRIVATE)?;
    for (memory, advice) in [(huge, libc::MADV_HUGEPAGE), (mergeable, libc::MADV_MERGEABLE)] {
        // SAFETY: advice about memory of our own, which changes nothing that is in it.
        if unsafe { libc::madvise(pointer(memory.start), memory.bytes, advice) } != 0 {
            return Err(std::io::Error::last_os_error().into());
        }
    }
    mergeable.fill(7, 1);
    huge.fill(9, 1);
    println!("ready");
    std::io::stdout().flush()?;
    if how == "once" {
        return Ok(());
    }
    loop {
        for start in &mapped {
            for page in 0..FILE / 4096 {
                // SAFETY: within a mapping of ours that stays, of a file that is never truncated.
                unsafe { pointer(start + page * 4096).cast::<u8>().read_volatile() };
            }
        }
        huge.check(9, 1)?;
        if how != "spin" {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

fn pointer(address: usize) -> *mut c_void {
    std::ptr::with_exposed_provenance_mut(address)
}

/// A file that is full.
fn file(folder: &Path, name: &[u8]) -> Result<File, Wrong> {
    let path = folder.join(OsStr::from_bytes(name));
    if !path.exists() {
        std::fs::write(&path, vec![0x90; FILE])?;
    }
    Ok(File::options().read(true).write(true).open(path)?)
}

fn mapped(file: &File, protection: i32) -> Result<usize, Wrong> {
    // SAFETY: new memory, at a place that the kernel chooses.
    let start = unsafe { libc::mmap(pointer(0), FILE, protection, libc::MAP_SHARED, file.as_raw_fd(), 0) };
    if start == libc::MAP_FAILED {
        return Err(std::io::Error::last_os_error().into());
    }
    Ok(start.expose_provenance())
}
