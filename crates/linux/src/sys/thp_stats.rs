//! `/sys/kernel/mm/transparent_hugepage/hugepages-*kB/stats`: counters of huge pages on the host, by size.
//!
//! Sums for 2 MiB alone, with the counters of compaction, are in `vmstat.rs`; the policy for each size is in
//! `thp.rs`.
//!
//! Cost: one read a counter, each summed over the processors: some 15 µs a size and dozen counters. Side effects:
//! none. `nr_*` are gauges, all others only rise.
//!
//! Since: Linux 6.10, `split*` 6.11, `nr_anon*` 6.12; the set grows with each version. Before, there is no such
//! directory, and the answer is `Unsupported`, which is not "none".
//!
//! Truth: Documentation/admin-guide/mm/transhuge.rst; `mthp_stat_item` in include/linux/huge_mm.h.

use rustix::io::Errno;
use serde::Serialize;
use units::{Bytes, PageSize};

use crate::{Error, KernelFiles, thp};

macro_rules! counters {
    ($($(#[doc = $doc:literal])+ $name:ident,)+) => {
        /// Counters of one size in use, by the kernel's names, each `None` if this kernel does not keep it;
        /// [`SizeStats::get`] has all others.
        #[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
        pub struct SizeStats {
            /// Page size.
            pub page_bytes: Bytes,
            $($(#[doc = $doc])+ pub $name: Option<u64>,)+
            #[serde(skip)]
            all: Vec<(String, u64)>,
        }

        impl SizeStats {
            fn of(page_bytes: Bytes, all: Vec<(String, u64)>) -> SizeStats {
                let mut stats = SizeStats { page_bytes, all, ..SizeStats::default() };
                $(stats.$name = stats.get(stringify!($name));)+
                stats
            }
        }
    };
}

counters! {
    /// Pages given at the first touch.
    anon_fault_alloc,
    /// First touches that wanted a page of this size and got a smaller one.
    anon_fault_fallback,
    /// Fallbacks caused by the limit of the memory group.
    anon_fault_fallback_charge,
    /// Pages split into smaller ones.
    split,
    /// Pages that could not be split.
    split_failed,
    /// Pages put on the list of pages to split when memory is short.
    split_deferred,
    /// Anonymous pages of this size in use now.
    nr_anon,
    /// Anonymous pages of this size in use now, with a part unmapped.
    nr_anon_partially_mapped,
    /// Pages swapped out whole.
    swpout,
    /// Pages split for swapping out.
    swpout_fallback,
}

impl SizeStats {
    /// Counter of this name; `None` if this kernel does not keep it.
    pub fn get(&self, name: &str) -> Option<u64> {
        self.all.iter().find(|(key, _)| key == name).map(|(_, value)| *value)
    }
}

/// Reads the counters of all sizes, smallest first.
///
/// # Errors
/// `Unsupported` on a kernel that does not count by size.
pub fn stats(files: &impl KernelFiles) -> Result<Vec<SizeStats>, Error> {
    let mut found = Vec::new();
    for size in thp::sizes(files)? {
        let directory = format!("{}/hugepages-{}kB/stats", thp::ROOT, size.bytes.0 >> 10);
        let names = match files.list(&directory) {
            Ok(names) => names,
            Err(Errno::NOENT) => continue,
            Err(errno) => return Err(Error::of_host("list", format_args!("/{directory}"), errno)),
        };
        let counters: Result<Vec<_>, Error> = names.into_iter().map(|name| counter(files, &directory, name)).collect();
        found.push(SizeStats::of(size.bytes, counters?));
    }
    if found.is_empty() {
        let object = format_args!("/{}/hugepages-*kB/stats", thp::ROOT).to_string();
        return Err(Error::of_host("list", object, Errno::NOENT));
    }
    Ok(found)
}

/// Anonymous huge pages of 2 MiB on the host with a part unmapped, now.
///
/// # Errors
/// `Unsupported` before Linux 6.12.
pub fn partially_mapped(files: &impl KernelFiles) -> Result<u64, Error> {
    let directory = format!("{}/hugepages-{}kB/stats", thp::ROOT, PageSize::Huge.bytes().0 >> 10);
    Ok(counter(files, &directory, "nr_anon_partially_mapped".to_owned())?.1)
}

fn counter(files: &impl KernelFiles, directory: &str, name: String) -> Result<(String, u64), Error> {
    let path = format!("{directory}/{name}");
    let text = files.read(&path).map_err(|errno| Error::of_host("read", format_args!("/{path}"), errno))?;
    let value = text.trim();
    match value.parse() {
        Ok(count) => Ok((name, count)),
        Err(_) => Err(Error::malformed(format_args!("/{path}"), format_args!("{value:?}, expected a number"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Rooted;
    use crate::fake::FakeKernel;

    fn kernel() -> FakeKernel {
        let files = [
            ("hugepages-2048kB/enabled", "always [inherit] madvise never\n"),
            ("hugepages-2048kB/stats/anon_fault_alloc", "8679\n"),
            ("hugepages-2048kB/stats/anon_fault_fallback", "30\n"),
            ("hugepages-2048kB/stats/split_failed", "0\n"),
            ("hugepages-64kB/enabled", "always inherit madvise [never]\n"),
            ("hugepages-64kB/stats/anon_fault_alloc", "5\n"),
            ("hugepages-64kB/stats/split", "2\n"),
        ];
        files.iter().fold(FakeKernel::new(), |kernel, (name, text)| kernel.file(&format!("{}/{name}", thp::ROOT), text))
    }

    #[test]
    fn each_size_has_its_own_counters() {
        let found = stats(&kernel()).unwrap();
        assert_eq!(found.iter().map(|size| size.page_bytes).collect::<Vec<_>>(), [Bytes::kib(64), Bytes::mib(2)]);
        assert_eq!((found[0].anon_fault_alloc, found[0].split), (Some(5), Some(2)));
        assert_eq!((found[1].anon_fault_alloc, found[1].anon_fault_fallback), (Some(8679), Some(30)));
    }

    #[test]
    fn a_counter_that_this_kernel_does_not_keep_is_none_and_not_zero() {
        let found = stats(&kernel()).unwrap();
        assert_eq!((found[1].split, found[1].split_failed, found[1].nr_anon), (None, Some(0), None));
    }

    #[test]
    fn a_kernel_that_does_not_count_by_size_is_unsupported() {
        assert!(matches!(stats(&FakeKernel::new()), Err(Error::Unsupported(_))));
        let sizes_only =
            FakeKernel::new().file(&format!("{}/hugepages-64kB/enabled", thp::ROOT), "always [never] madvise\n");
        assert!(matches!(stats(&sizes_only), Err(Error::Unsupported(_))));
    }

    #[test]
    fn malformed_text_is_named() {
        let path = format!("{}/hugepages-64kB/stats/split", thp::ROOT);
        let error = stats(&kernel().file(&path, "many\n")).unwrap_err();
        assert_eq!(error.to_string(), format!("cannot understand /{path}: \"many\", expected a number"));
    }

    #[test]
    fn counters_of_a_newer_kernel_are_found_by_name() {
        let newer = kernel().file(&format!("{}/hugepages-64kB/stats/collapse", thp::ROOT), "7\n");
        assert_eq!(stats(&newer).unwrap()[0].get("collapse"), Some(7));
    }

    #[test]
    fn this_host_is_understood_if_it_counts_by_size() {
        match stats(&Rooted::host()) {
            Ok(found) => assert!(found.iter().all(|size| size.page_bytes.0 % 4096 == 0)),
            Err(error) => assert!(matches!(error, Error::Unsupported(_)), "{error}"),
        }
    }
}
