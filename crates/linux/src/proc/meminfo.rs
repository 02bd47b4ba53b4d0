//! `/proc/meminfo`: total and free memory of the host.
//!
//! A memory cgroup may allow less: `cgroup.rs`. Counters of reclaim, compaction and huge pages are in `vmstat.rs`.
//!
//! Cost: sums per-CPU counters, some 15 µs. Side effects: none. A gauge: the next reading may differ.
//!
//! Since: always; `MemAvailable` Linux 3.14, `AnonHugePages` 2.6.38 with CONFIG_TRANSPARENT_HUGEPAGE.
//!
//! Truth: proc_meminfo(5); fs/proc/meminfo.c.

use units::Bytes;

use crate::key_lines::{amount, required, split};
use crate::{Error, KernelFiles};

/// Fields in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemInfo {
    /// All memory that the kernel manages.
    pub total: Bytes,
    /// Unused memory.
    pub free: Bytes,
    /// Memory available to programs without swapping, by the kernel's estimate.
    pub available: Bytes,
    /// Anonymous memory on huge pages; `None` for a kernel without huge pages.
    pub anon_huge_pages: Option<Bytes>,
}

/// Reads the file.
///
/// # Errors
/// `Malformed` if a line that every kernel prints is missing or is no amount of memory.
pub fn meminfo(files: &impl KernelFiles) -> Result<MemInfo, Error> {
    const OBJECT: &str = "/proc/meminfo";
    let text = files.read("proc/meminfo").map_err(|errno| Error::of_host("read", OBJECT, errno))?;
    let (mut total, mut free, mut available, mut anon_huge_pages) = (None, None, None, None);
    for (key, value) in text.lines().filter_map(split) {
        let slot = match key {
            "MemTotal" => &mut total,
            "MemFree" => &mut free,
            "MemAvailable" => &mut available,
            "AnonHugePages" => &mut anon_huge_pages,
            _ => continue,
        };
        *slot = Some(amount(OBJECT, key, value)?);
    }
    Ok(MemInfo {
        total: required(OBJECT, "MemTotal", total)?,
        free: required(OBJECT, "MemFree", free)?,
        available: required(OBJECT, "MemAvailable", available)?,
        anon_huge_pages,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::Rooted;
    use crate::fake::FakeKernel;

    const RECORDED: &str = include_str!("../../tests/recorded/6.18/meminfo");

    fn of(text: &str) -> Result<MemInfo, Error> {
        meminfo(&FakeKernel::new().file("proc/meminfo", text))
    }

    #[test]
    fn the_recorded_amounts_are_read() {
        let info = of(RECORDED).unwrap();
        assert_eq!(info.total, Bytes::kib(24_684_096));
        assert!(info.free <= info.total && info.available <= info.total);
        assert!(info.anon_huge_pages >= Some(Bytes::mib(8)));
    }

    #[test]
    fn older_kernels_are_understood() {
        for recorded in
            [include_str!("../../tests/recorded/6.1/meminfo"), include_str!("../../tests/recorded/6.12/meminfo")]
        {
            assert!(of(recorded).unwrap().anon_huge_pages >= Some(Bytes::mib(2)));
        }
    }

    #[test]
    fn a_kernel_without_huge_pages_does_not_say() {
        let info = of("MemTotal: 3 kB\nMemFree: 1 kB\nMemAvailable: 2 kB\n").unwrap();
        let (total, free, available) = (Bytes::kib(3), Bytes::kib(1), Bytes::kib(2));
        assert_eq!(info, MemInfo { total, free, available, anon_huge_pages: None });
    }

    #[test]
    fn a_missing_file_is_unsupported_and_a_missing_line_malformed() {
        assert!(matches!(meminfo(&FakeKernel::new()), Err(Error::Unsupported(_))));
        let error = of("MemTotal: 3 kB\n").unwrap_err();
        assert_eq!(error.to_string(), "cannot understand /proc/meminfo: no line \"MemFree\"");
    }

    #[test]
    fn a_malformed_amount_is_named() {
        let error = of("MemTotal: lots\n").unwrap_err();
        let expected = "cannot understand /proc/meminfo, MemTotal: \"lots\", expected a number of kB";
        assert_eq!(error.to_string(), expected);
    }

    #[test]
    fn lines_of_a_newer_kernel_are_left_out() {
        assert_eq!(of(&format!("New: 1 page\nno colon\n{RECORDED}")), of(RECORDED));
    }

    #[test]
    fn this_host_has_the_memory_that_sysinfo_says() {
        let info = meminfo(&Rooted::host()).unwrap();
        let system = rustix::system::sysinfo();
        let total = system.totalram * u64::from(system.mem_unit);
        assert_eq!(info.total, Bytes(total));
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused_without_a_panic(text in "(?s).{0,100}", value in ".{0,20}") {
            let _ = of(&format!("{text}\nMemTotal:{value}\n"));
        }
    }
}
