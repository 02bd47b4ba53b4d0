//! `memfd_create(2)` with seals: immutable bytes for another process.
//!
//! A process that maps them need not fear that they change or disappear. Memory that both sides write to is
//! `shared_memory.rs`.
//!
//! Cost: its pages, one copy, three system calls. Side effects: none; it lives while any process has it open or mapped.
//!
//! Since: memfd_create Linux 3.17.
//!
//! Truth: memfd_create(2), fcntl(2) on seals.

use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use rustix::io::Errno;

use crate::error;

/// Makes a sealed file of these bytes. `name` is seen in `/proc/PID/maps` as `/memfd:NAME (deleted)`.
///
/// # Errors
/// The kernel's answer when there is no memory or no descriptor left.
pub fn sealed(name: &str, bytes: &[u8]) -> Result<OwnedFd, Errno> {
    let mut file = File::from(memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?);
    file.write_all(bytes).map_err(error::errno)?;
    let file = OwnedFd::from(file);
    fcntl_add_seals(&file, SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Seek};

    use super::*;

    #[test]
    fn what_is_sealed_can_be_read_and_neither_written_nor_cut() {
        let mut file = File::from(sealed("masu-test", b"seven").unwrap());
        let mut text = String::new();
        file.rewind().unwrap();
        file.read_to_string(&mut text).unwrap();
        assert_eq!(text, "seven");
        file.rewind().unwrap();
        assert!(file.write_all(b"eight").is_err());
        assert!(file.set_len(2).is_err() && file.set_len(100).is_err());
    }
}
