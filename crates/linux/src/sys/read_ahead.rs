//! `/sys/class/bdi/MAJOR:MINOR/read_ahead_kb`: readahead distance of the kernel for a sequential reader.
//!
//! It doubles for a file opened for sequential reads (posix_fadvise(2), `POSIX_FADV_SEQUENTIAL`, as cat and cp do),
//! and the next stretch is begun before the last one is read through. So up to four times the distance lies before a
//! reader.
//!
//! Cost: one small file. Side effects: none.
//!
//! Since: Linux 2.6.26.
//!
//! Truth: Documentation/ABI/testing/sysfs-class-bdi; mm/readahead.c.

use units::{Bytes, Pages};

use crate::{Error, KernelFiles};

/// Readahead distance for files on this device.
///
/// # Errors
/// `Unsupported` for a device without this file, `Malformed`.
pub fn read_ahead(files: &impl KernelFiles, (major, minor): (u32, u32)) -> Result<Pages, Error> {
    let path = format!("sys/class/bdi/{major}:{minor}/read_ahead_kb");
    let object = format!("/{path}");
    let text = files.read(&path).map_err(|errno| Error::of_host("read", &object, errno))?;
    let kib: u64 = text
        .trim()
        .parse()
        .map_err(|_| Error::malformed(&object, format_args!("{:?}, expected a number", text.trim())))?;
    Ok(Bytes(kib.saturating_mul(1024)).pages())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::FakeKernel;

    #[test]
    fn kib_become_pages() {
        let kernel = FakeKernel::new().file("sys/class/bdi/254:0/read_ahead_kb", "8192\n");
        assert_eq!(read_ahead(&kernel, (254, 0)), Ok(Pages(2048)));
        assert!(matches!(read_ahead(&kernel, (254, 1)), Err(Error::Unsupported(_))));
    }

    #[test]
    fn nonsense_is_said() {
        let kernel = FakeKernel::new().file("sys/class/bdi/8:0/read_ahead_kb", "x\n");
        assert!(matches!(read_ahead(&kernel, (8, 0)), Err(Error::Malformed { .. })));
    }
}
