//! A program that maps a file as code and touches none of it.

use std::fs::File;
use std::io::Write;
use std::ptr::null_mut;

use rustix::mm::{MapFlags, ProtFlags, mmap};

use super::Wrong;

/// Maps the file, says so, and sleeps until it is ended.
pub(super) fn code(path: &str) -> Result<(), Wrong> {
    let file = File::open(path)?;
    // SAFETY: a new mapping at a place of the kernel's choice, which is never touched.
    unsafe { mmap(null_mut(), 1 << 16, ProtFlags::READ | ProtFlags::EXEC, MapFlags::PRIVATE, &file, 0)? };
    println!("held={path}");
    std::io::stdout().flush()?;
    loop {
        std::thread::park();
    }
}
