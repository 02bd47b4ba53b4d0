//! Programs of users who take what they can get, and call themselves what they like.

use std::fs::File;
use std::io::{Read, Write};

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap};

use super::Wrong;

const PAGE: usize = 4096;

/// Maps so many files of memory as code, each of so many pages, all of them in memory. Says `mapped=COUNT` and waits to be ended.
pub(super) fn maps(count: u64, pages: u64) -> Result<(), Wrong> {
    let bytes = usize::try_from(pages)? * PAGE;
    for _ in 0..count {
        let mut file = File::from(memfd_create("stranger", MemfdFlags::CLOEXEC)?);
        file.write_all(&vec![0xc3; bytes])?;
        let rights = ProtFlags::READ | ProtFlags::EXEC;
        // SAFETY: a new mapping at a place that the kernel chooses, which nobody runs or reads.
        unsafe { mmap(std::ptr::null_mut(), bytes, rights, MapFlags::SHARED | MapFlags::POPULATE, &file, 0)? };
    }
    println!("mapped={count}");
    wait()
}

/// Is called so from now on. Says `called=NAME` and waits to be ended.
pub(super) fn called(name: &str) -> Result<(), Wrong> {
    rustix::thread::set_name(&std::ffi::CString::new(name)?)?;
    println!("called={name}");
    wait()
}

/// Until the pipe's other end is closed, which also whoever dies does.
fn wait() -> Result<(), Wrong> {
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}
