//! Swap on compressed memory, for one test: a private zram device.

use std::ffi::CString;
use std::fs;
use std::io::{self, Write};

const CONTROL: &str = "/sys/class/zram-control";

/// Swap that is on. Dropping it turns it off and removes the device.
#[derive(Debug)]
pub(crate) struct Swap {
    number: u32,
    device: CString,
    on: bool,
}

impl Swap {
    /// Swap for `bytes` of memory.
    pub(crate) fn on(bytes: u64) -> io::Result<Swap> {
        let mut swap = Swap::off(bytes)?;
        let mut file = fs::OpenOptions::new().write(true).open(swap.path())?;
        file.write_all(&header(bytes / 4096))?;
        file.sync_all()?;
        drop(file);
        // SAFETY: the path is a string that ends in a zero and outlives the call.
        if unsafe { libc::swapon(swap.device.as_ptr(), 0) } != 0 {
            return Err(io::Error::last_os_error());
        }
        swap.on = true;
        Ok(swap)
    }

    /// Only the device, full of zeros.
    pub(crate) fn off(bytes: u64) -> io::Result<Swap> {
        // Reading this file makes a device, so no other user's is touched.
        let number = fs::read_to_string(format!("{CONTROL}/hot_add"))?;
        let number: u32 = number.trim().parse().map_err(io::Error::other)?;
        let path = format!("/dev/zram{number}");
        let swap = Swap { number, device: CString::new(path.clone()).map_err(io::Error::other)?, on: false };
        fs::write(format!("/sys/block/zram{number}/disksize"), bytes.to_string())?;
        swap.wait_for_device(&path)?;
        Ok(swap)
    }

    /// Path of the device.
    pub(crate) fn path(&self) -> String {
        format!("/dev/zram{}", self.number)
    }

    /// Where no daemon makes device files, as in a container, this does.
    fn wait_for_device(&self, path: &str) -> io::Result<()> {
        for _ in 0..50 {
            if fs::metadata(path).is_ok() {
                return Ok(());
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        Err(io::Error::other(format!("no {path} came after {CONTROL}/hot_add")))
    }
}

impl Drop for Swap {
    fn drop(&mut self) {
        // SAFETY: as in `on`.
        if self.on && unsafe { libc::swapoff(self.device.as_ptr()) } != 0 {
            eprintln!("cannot turn off {:?}: {}", self.device, io::Error::last_os_error());
        }
        for _ in 0..100 {
            // A program that scans new devices may hold it open for a moment.
            let _ = fs::write(format!("/sys/block/zram{}/reset", self.number), "1");
            match fs::write(format!("{CONTROL}/hot_remove"), self.number.to_string()) {
                Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
                    std::thread::sleep(std::time::Duration::from_millis(10));
                }
                Err(error) => return eprintln!("cannot remove zram{}: {error}", self.number),
                Ok(()) => return,
            }
        }
    }
}

/// The first page of a swap device: `union swap_header` in include/linux/swap.h.
fn header(pages: u64) -> Vec<u8> {
    let mut page = vec![0; 4096];
    page[1024..1028].copy_from_slice(&1u32.to_le_bytes()); // version
    let last = u32::try_from(pages - 1).expect("a device of some MiB");
    page[1028..1032].copy_from_slice(&last.to_le_bytes());
    page[4086..].copy_from_slice(b"SWAPSPACE2");
    page
}
