//! Programs that map a file and touch none of it, and one that reads the memory of another.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::ptr::null_mut;
use std::time::Duration;

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use super::Wrong;

/// Maps the file, reports this, and sleeps until it is ended.
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

/// Maps the last page of the file, prints its address, and then changes its mappings for ever: it waits for its mmap
/// lock as a writer.
pub(super) fn last_page(path: &str) -> Result<(), Wrong> {
    let file = File::open(path)?;
    let page = (file.metadata()?.len() - 1) & !4095;
    // SAFETY: a new mapping at a place of the kernel's choice, which is never touched here.
    let start = unsafe { mmap(null_mut(), 4096, ProtFlags::READ, MapFlags::PRIVATE, &file, page)? };
    println!("at={}", start.addr());
    std::io::stdout().flush()?;
    loop {
        // SAFETY: a private mapping, which no other code knows.
        unsafe {
            let other = mmap(null_mut(), 4096, ProtFlags::READ, MapFlags::PRIVATE, &file, 0)?;
            munmap(other, 4096)?;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Reads a word of another process: the kernel holds the mmap lock of that one until the memory is there.
pub(super) fn word_of(pid: u64, at: u64) -> Result<(), Wrong> {
    File::open(format!("/proc/{pid}/mem"))?.read_exact_at(&mut [0; 8], at)?;
    println!("read=yes");
    Ok(())
}
