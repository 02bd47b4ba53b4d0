//! `/proc/sys/vm/max_map_count`: maximum number of mappings of a process.
//!
//! The maximum number of open files is in `open_files.rs`; the mappings themselves are in `maps.rs`.
//!
//! Cost: one read. Side effects: none.
//!
//! Since: Linux 2.6.
//!
//! Truth: Documentation/admin-guide/sysctl/vm.rst; mm/mmap.c.

use crate::{Error, KernelFiles};

const PATH: &str = "proc/sys/vm/max_map_count";

/// Maximum number of mappings of a process.
///
/// # Errors
/// `Unsupported` if there is no such file, `Malformed` for anything but a number.
pub fn max_map_count(files: &impl KernelFiles) -> Result<u64, Error> {
    let text = files.read(PATH).map_err(|errno| Error::of_host("read", format_args!("/{PATH}"), errno))?;
    let bad = |_| Error::malformed(format_args!("/{PATH}"), format_args!("{:?}, expected a number", text.trim()));
    text.trim().parse().map_err(bad)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Rooted;
    use crate::fake::FakeKernel;

    #[test]
    fn it_is_a_number_or_it_is_said_why_not() {
        let of = |text: &str| max_map_count(&FakeKernel::new().file(PATH, text));
        assert_eq!(of("65530\n"), Ok(65530));
        assert!(matches!(of("many\n"), Err(Error::Malformed { .. })));
        assert!(matches!(max_map_count(&FakeKernel::new()), Err(Error::Unsupported(_))));
    }

    #[test]
    fn this_host_allows_some() {
        assert!(max_map_count(&Rooted::host()).unwrap() > 0);
    }
}
