//! Hostile programs of other users: they take all the resources that they can get, and choose their own names.

use std::fs::File;
use std::io::{Read, Write};

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap};

use super::Wrong;

const PAGE: usize = 4096;

/// Maps `count` files of memory as code, each of `pages` pages, all of them in memory. Prints `mapped=COUNT` and waits
/// to be ended.
pub(super) fn maps(count: u64, pages: u64) -> Result<(), Wrong> {
    let bytes = usize::try_from(pages)? * PAGE;
    for _ in 0..count {
        let mut file = File::from(memfd_create("other-user", MemfdFlags::CLOEXEC)?);
        file.write_all(&vec![0xc3; bytes])?;
        let rights = ProtFlags::READ | ProtFlags::EXEC;
        // SAFETY: a new mapping at an address that the kernel chooses, which no code runs or reads.
        unsafe { mmap(std::ptr::null_mut(), bytes, rights, MapFlags::SHARED | MapFlags::POPULATE, &file, 0)? };
    }
    println!("mapped={count}");
    wait()
}

/// Takes this name from now on. Prints `called=NAME` and waits to be ended.
pub(super) fn called(name: &str) -> Result<(), Wrong> {
    rustix::thread::set_name(&std::ffi::CString::new(name)?)?;
    println!("called={name}");
    wait()
}

/// Waits until the pipe's other end is closed, which the death of its owner does as well.
fn wait() -> Result<(), Wrong> {
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}
