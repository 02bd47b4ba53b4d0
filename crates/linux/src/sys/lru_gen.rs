//! `/sys/kernel/mm/lru_gen/enabled`: page aging by generations (MGLRU) instead of an active and an inactive list.
//!
//! With generations no frame is on an active list (`kpageflags.rs`), and the generation of a frame is not shown.
//!
//! Cost: one small file. Side effects: none.
//!
//! Since: Linux 6.1 with CONFIG_LRU_GEN; Debian 6.1 has it off, 6.12 on.
//!
//! Truth: Documentation/admin-guide/mm/multigen_lru.rst; `enabled_show` in mm/vmscan.c.

use rustix::io::Errno;

use crate::{Error, KernelFiles};

/// True if pages are aged by generations; false on a kernel without them.
///
/// # Errors
/// `Malformed` for anything but a number, `Denied` if the file is unreadable.
pub fn is_on(files: &impl KernelFiles) -> Result<bool, Error> {
    const PATH: &str = "sys/kernel/mm/lru_gen/enabled";
    let text = match files.read(PATH) {
        Err(Errno::NOENT) => return Ok(false),
        text => text.map_err(|errno| Error::of_host("read", format_args!("/{PATH}"), errno))?,
    };
    // Bit 0 is the switch; the others control the reading of page tables.
    let digits = text.trim().strip_prefix("0x").and_then(|digits| u32::from_str_radix(digits, 16).ok());
    let malformed =
        || Error::malformed(format_args!("/{PATH}"), format_args!("{text:?}, expected a number such as 0x0007"));
    Ok(digits.ok_or_else(malformed)? & 1 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::FakeKernel;

    fn of(text: &str) -> Result<bool, Error> {
        is_on(&FakeKernel::new().file("sys/kernel/mm/lru_gen/enabled", text))
    }

    #[test]
    fn the_first_bit_is_the_switch() {
        assert_eq!(
            (of("0x0007\n"), of("0x0001\n"), of("0x0006\n"), of("0x0000\n")),
            (Ok(true), Ok(true), Ok(false), Ok(false))
        );
        assert_eq!(is_on(&FakeKernel::new()), Ok(false));
    }

    #[test]
    fn anything_else_is_named() {
        let error = of("yes\n").unwrap_err();
        let expected = "cannot understand /sys/kernel/mm/lru_gen/enabled: \"yes\\n\", expected a number such as 0x0007";
        assert_eq!(error.to_string(), expected);
    }
}
