//! `/proc/vmstat`: memory events of the host since boot, one counter a line.
//!
//! Present amounts of memory are in `meminfo.rs`.
//!
//! Cost: sums per-CPU counters, some 30 µs. Side effects: none. Counters only rise; take the difference of two
//! readings.
//!
//! Since: Linux 2.6; the lines differ by version and configuration, so each may be missing.
//!
//! Truth: `vmstat_text` in mm/vmstat.c; Documentation/admin-guide/mm/transhuge.rst for `thp_*`.

use crate::{Error, KernelFiles};

macro_rules! counters {
    ($($(#[doc = $doc:literal])+ $name:ident,)+) => {
        /// Counters in use, by the kernel's names, each `None` if this kernel does not keep it; [`VmStat::get`] has
        /// all others.
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub struct VmStat {
            $($(#[doc = $doc])+ pub $name: Option<u64>,)+
            all: Vec<(String, u64)>,
        }

        impl VmStat {
            fn of(all: Vec<(String, u64)>) -> VmStat {
                let mut stat = VmStat { all, ..VmStat::default() };
                $(stat.$name = stat.get(stringify!($name));)+
                stat
            }
        }
    };
}

counters! {
    /// Huge pages given at the first touch.
    thp_fault_alloc,
    /// First touches that wanted a huge page and got small ones.
    thp_fault_fallback,
    /// Windows collapsed by khugepaged or `MADV_COLLAPSE`.
    thp_collapse_alloc,
    /// Collapses without a free huge page.
    thp_collapse_alloc_failed,
    /// Huge pages split into small ones.
    thp_split_page,
    /// Huge pages that could not be split.
    thp_split_page_failed,
    /// Huge pages put on the list of those to split when memory is short.
    thp_deferred_split_page,
    /// Huge pages split because most of them was never touched; since Linux 6.12.
    thp_underused_split_page,
    /// Huge mappings split, with their pages left whole.
    thp_split_pmd,
    /// Huge pages of zeros made.
    thp_zero_page_alloc,
    /// Huge pages swapped out whole.
    thp_swpout,
    /// Huge pages split for swapping out.
    thp_swpout_fallback,
    /// Pages freed lazily (MADV_FREE).
    pglazyfree,
    /// Waits for compaction.
    compact_stall,
    /// Waits for compaction that failed.
    compact_fail,
    /// Waits for compaction that succeeded.
    compact_success,
    /// Pages examined for moving.
    compact_migrate_scanned,
    /// Pages examined as a destination.
    compact_free_scanned,
    /// Pages taken off their lists for compaction.
    compact_isolated,
    /// Wake-ups of the compaction daemon.
    compact_daemon_wake,
}

impl VmStat {
    /// Counter of this name; `None` if this kernel does not keep it.
    pub fn get(&self, name: &str) -> Option<u64> {
        self.all.iter().find(|(key, _)| key == name).map(|(_, value)| *value)
    }
}

/// Reads all counters.
///
/// # Errors
/// `Unsupported` if there is no `/proc/vmstat`, `Malformed` for a line that is not a name and a number.
pub fn vmstat(files: &impl KernelFiles) -> Result<VmStat, Error> {
    let text = files.read("proc/vmstat").map_err(|errno| Error::of_host("read", "/proc/vmstat", errno))?;
    parse(&text)
}

fn parse(text: &str) -> Result<VmStat, Error> {
    let mut all = Vec::with_capacity(200);
    for line in text.lines() {
        let pair = line.split_once(' ').and_then(|(name, value)| Some((name.to_owned(), value.trim().parse().ok()?)));
        let malformed = || Error::malformed("/proc/vmstat", format_args!("{line:?}, expected a name and a number"));
        all.push(pair.ok_or_else(malformed)?);
    }
    Ok(VmStat::of(all))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::Rooted;
    use crate::fake::FakeKernel;

    const RECORDED: &str = include_str!("../../tests/recorded/6.18/vmstat");

    #[test]
    fn the_recorded_counters_are_found_by_field_and_by_name() {
        let stat = vmstat(&FakeKernel::new().file("proc/vmstat", RECORDED)).unwrap();
        assert!(stat.thp_fault_alloc.is_some() && stat.thp_underused_split_page.is_some());
        assert!(stat.compact_stall.is_some() && stat.compact_daemon_wake.is_some());
        assert_eq!(stat.get("thp_fault_alloc"), stat.thp_fault_alloc);
        assert!(stat.get("pgfault").is_some_and(|faults| faults > 0));
    }

    #[test]
    fn older_kernels_keep_fewer_counters() {
        let older = parse(include_str!("../../tests/recorded/6.1/vmstat")).unwrap();
        assert!(older.thp_split_page.is_some() && older.thp_underused_split_page.is_none());
        let newer = parse(include_str!("../../tests/recorded/6.12/vmstat")).unwrap();
        assert!(newer.thp_split_page.is_some() && newer.thp_underused_split_page.is_some());
    }

    #[test]
    fn a_counter_that_is_not_kept_is_none_and_not_zero() {
        let stat = parse("pgfault 12\nthp_split_pmd 0\n").unwrap();
        assert_eq!((stat.thp_split_pmd, stat.thp_fault_alloc, stat.get("thp_new")), (Some(0), None, None));
        assert_eq!(stat.get("pgfault"), Some(12));
    }

    #[test]
    fn a_missing_file_is_unsupported() {
        assert!(matches!(vmstat(&FakeKernel::new()), Err(Error::Unsupported(_))));
    }

    #[test]
    fn a_malformed_line_is_named() {
        let error = parse("pgfault many\n").unwrap_err();
        let expected = "cannot understand /proc/vmstat: \"pgfault many\", expected a name and a number";
        assert_eq!(error.to_string(), expected);
    }

    #[test]
    fn counters_of_a_newer_kernel_are_found_by_name() {
        let newer = parse(&format!("{RECORDED}thp_new_counter 7\n")).unwrap();
        assert_eq!(newer.get("thp_new_counter"), Some(7));
        assert_eq!(newer.thp_split_page, parse(RECORDED).unwrap().thp_split_page);
    }

    #[test]
    fn page_faults_of_this_host_rise() {
        let before = vmstat(&Rooted::host()).unwrap().get("pgfault");
        drop(crate::quiet_process::QuietProcess::start());
        assert!(before < vmstat(&Rooted::host()).unwrap().get("pgfault"));
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused_without_a_panic(text in "(?s).{0,100}") {
            let _ = parse(&text);
        }
    }
}
