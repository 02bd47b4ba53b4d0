//! Why none of the selected processes has a merged page: their offered memory, KSM's pace, and the reasons.
//!
//! KSM merges private anonymous memory that was offered (`mg` in smaps). The kernel ignores an offer of shared memory
//! and of hugetlb pages: it sets no flag, so such an offer is invisible. The amounts of that memory are listed instead.
//!
//! A page merges at KSM's second visit at the earliest: the first one takes its checksum (`cmp_and_merge_page` in
//! mm/ksm.c). A pass over all offered memory takes `sleep_millisecs` for every `pages_to_scan` pages.
//!
//! Cost: `smaps` of the processes that offer memory, which walks their page tables; `status` of the others.

use std::collections::BTreeSet;
use std::time::Duration;

use linux::ksm::{self, Host, Reported, Run};
use linux::processes::processes;
use linux::smaps::{self, Detail, VmFlag};
use linux::{Error, KernelFiles, Pid, status};
use serde::{Deserialize, Serialize};
use units::{Bytes, Pages};

/// Offered memory of the selected processes, and what KSM can do with it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Offers {
    /// Selected processes.
    pub processes: usize,
    /// Processes of them that offer memory.
    pub offering: usize,
    /// Offered memory that is present and private: what KSM can merge, huge pages included.
    pub private_bytes: Bytes,
    /// Part of it on huge pages. KSM splits one when it finds an equal page.
    pub huge_bytes: Bytes,
    /// Pages of it that KSM has visited, by its own count.
    pub visited_pages: Pages,
    /// Empty pages of the processes that KSM replaced by the zero page.
    pub zero_pages: Pages,
    /// Present shared memory of the processes, offered or not: never merged.
    pub shared_bytes: Bytes,
    /// Hugetlb pages of the processes, offered or not: never merged.
    pub hugetlb_bytes: Bytes,
    /// Offered memory of all processes of the host, as `private_bytes`: the length of a pass.
    pub host_bytes: Bytes,
}

/// One reason why nothing is merged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// KSM is off.
    Off,
    /// KSM has separated all merged pages, and is off.
    Unmerged,
    /// No selected process offers memory.
    NothingOffered,
    /// The offered memory is not present.
    NothingPresent,
    /// Much memory is shared, which KSM does not merge.
    Shared,
    /// Much memory lies in hugetlb pages, which KSM does not merge.
    Hugetlb,
    /// KSM has not visited all offered pages.
    NotVisited,
    /// Empty pages became the zero page, which is no merged frame.
    ZeroPages,
    /// Offered memory lies on huge pages.
    HugePages,
    /// KSM has visited the pages, and no two were equal and unchanged.
    NothingEqual,
}

/// Least amount of memory worth a reason.
const NAMED_MIN: Bytes = Bytes::mib(4);

impl Offers {
    /// Reads the offers of the processes in `of`, or of all for `None`. Processes in `left_out` do not count.
    ///
    /// # Errors
    /// When there is no list of processes. A process that cannot be read counts as offering nothing.
    pub fn read(
        files: &impl KernelFiles,
        of: Option<&BTreeSet<Pid>>,
        left_out: &BTreeSet<Pid>,
    ) -> Result<Offers, Error> {
        let mut offers = Offers::default();
        for pid in processes(files)?.into_iter().filter(|pid| !left_out.contains(pid)) {
            offers.add(files, pid, of.is_none_or(|of| of.contains(&pid)));
        }
        Ok(offers)
    }

    /// Adds one process. Errors are those of a process that ended or is not ours to read.
    fn add(&mut self, files: &impl KernelFiles, pid: Pid, is_selected: bool) {
        let Ok(Some(counters)) = ksm::of_process(files, pid) else { return };
        let is_offering = counters.mergeable != Reported::Value(false);
        if is_selected {
            self.processes += 1;
            self.zero_pages.0 += counters.zero_pages.value().unwrap_or_default().0;
            if let Ok(status) = status::status(files, pid) {
                self.shared_bytes += status.rss_shmem;
                self.hugetlb_bytes += status.hugetlb;
            }
        }
        if !is_offering {
            return;
        }
        let Ok(details) = smaps::details(files, pid) else { return };
        let (private, huge) = offered(&details);
        self.host_bytes += private;
        if is_selected && details.iter().any(|detail| detail.flags.contains(VmFlag::Mergeable)) {
            self.offering += 1;
            self.private_bytes += private;
            self.huge_bytes += huge;
            self.visited_pages.0 += counters.rmap_items.value().unwrap_or_default();
        }
    }

    /// Duration of one pass of KSM over all offered memory, without the time that it works. `None` if it never ends.
    pub fn pass(&self, ksm: &Host) -> Option<Duration> {
        let batches = self.host_bytes.pages().0.div_ceil(ksm.pages_to_scan.max(1));
        let pass = Duration::from_millis(batches.saturating_mul(ksm.sleep_millisecs));
        (ksm.pages_to_scan > 0).then_some(pass)
    }

    /// Reasons why nothing is merged, the most important one first; never empty.
    pub fn reasons(&self, ksm: &Host) -> Vec<Reason> {
        let mut reasons = Vec::new();
        match ksm.run {
            Run::Stopped => reasons.push(Reason::Off),
            Run::Unmerging => reasons.push(Reason::Unmerged),
            Run::Merging => {}
        }
        if self.offering == 0 {
            reasons.push(Reason::NothingOffered);
        } else if self.private_bytes == Bytes(0) {
            // The zero page is not present memory of the process.
            if self.zero_pages == Pages(0) {
                reasons.push(Reason::NothingPresent);
            }
        } else if ksm.run == Run::Merging {
            reasons.push(if self.is_visited() { Reason::NothingEqual } else { Reason::NotVisited });
        }
        if self.huge_bytes >= NAMED_MIN {
            reasons.push(Reason::HugePages);
        }
        if self.zero_pages > Pages(0) {
            reasons.push(Reason::ZeroPages);
        }
        if self.shared_bytes >= NAMED_MIN {
            reasons.push(Reason::Shared);
        }
        if self.hugetlb_bytes > Bytes(0) {
            reasons.push(Reason::Hugetlb);
        }
        reasons
    }

    /// KSM knows nearly all offered pages. The kernel counts no pages for a child that has its parent's.
    fn is_visited(&self) -> bool {
        self.visited_pages.0.saturating_mul(10) >= self.private_bytes.pages().0.saturating_mul(9)
    }
}

/// Offered private memory of these mappings, and the part on huge pages.
fn offered(details: &[Detail]) -> (Bytes, Bytes) {
    let offered = details.iter().filter(|detail| detail.flags.contains(VmFlag::Mergeable));
    offered.fold((Bytes(0), Bytes(0)), |(private, huge), detail| {
        (private + detail.anonymous, huge + detail.anon_huge_pages)
    })
}

#[cfg(test)]
mod tests {
    use linux::fake::FakeKernel;

    use super::*;

    fn ksm(run: Run) -> Host {
        Host {
            run,
            pages_shared: Pages(0),
            pages_sharing: Pages(0),
            pages_unshared: Pages(0),
            pages_volatile: Pages(0),
            full_scans: 1,
            pages_to_scan: 100,
            sleep_millisecs: 20,
            max_page_sharing: Reported::Value(256),
            use_zero_pages: Reported::Value(false),
            zero_pages: Reported::NotReported,
            general_profit_bytes: Reported::NotReported,
            smart_scan: Reported::Value(true),
            pages_skipped: Reported::Value(0),
        }
    }

    /// 64 MiB are offered by one of two processes, and visited.
    fn visited() -> Offers {
        let private = Bytes::mib(64);
        Offers {
            processes: 2,
            offering: 1,
            private_bytes: private,
            host_bytes: private,
            visited_pages: private.pages(),
            ..Offers::default()
        }
    }

    #[test]
    fn each_cause_has_its_own_reason() {
        let on = ksm(Run::Merging);
        let none = Offers { processes: 2, ..Offers::default() };
        assert_eq!(none.reasons(&on), [Reason::NothingOffered]);
        let shared = Offers { shared_bytes: Bytes::mib(128), ..none };
        assert_eq!(shared.reasons(&on), [Reason::NothingOffered, Reason::Shared]);
        assert_eq!(Offers { shared_bytes: Bytes::mib(3), ..none }.reasons(&on), [Reason::NothingOffered]);
        let hugetlb = Offers { hugetlb_bytes: Bytes::mib(2), ..none };
        assert_eq!(hugetlb.reasons(&on), [Reason::NothingOffered, Reason::Hugetlb]);
        assert_eq!(visited().reasons(&on), [Reason::NothingEqual]);
        assert_eq!(Offers { private_bytes: Bytes(0), ..visited() }.reasons(&on), [Reason::NothingPresent]);
        let zeros =
            Offers { private_bytes: Bytes(0), zero_pages: Pages(5120), shared_bytes: Bytes::mib(8), ..visited() };
        assert_eq!(zeros.reasons(&on), [Reason::ZeroPages, Reason::Shared], "all offered pages were empty");
        let late = Offers { visited_pages: Pages(14_745), ..visited() };
        assert_eq!(late.reasons(&on), [Reason::NotVisited], "less than nine tenths of 16,384 pages");
        assert_eq!(Offers { visited_pages: Pages(14_746), ..visited() }.reasons(&on), [Reason::NothingEqual]);
        let huge = Offers { huge_bytes: Bytes::mib(64), zero_pages: Pages(1), ..visited() };
        assert_eq!(huge.reasons(&on), [Reason::NothingEqual, Reason::HugePages, Reason::ZeroPages]);
        assert_eq!(visited().reasons(&ksm(Run::Stopped)), [Reason::Off]);
        assert_eq!(none.reasons(&ksm(Run::Unmerging)), [Reason::Unmerged, Reason::NothingOffered]);
    }

    #[test]
    fn a_pass_takes_the_sleeps_between_its_batches() {
        let slow = Host { pages_to_scan: 1, ..ksm(Run::Merging) };
        let offers = Offers { host_bytes: Bytes::mib(128), ..Offers::default() };
        assert_eq!(offers.pass(&slow), Some(Duration::from_millis(32_768 * 20)), "eleven minutes");
        assert_eq!(offers.pass(&ksm(Run::Merging)), Some(Duration::from_millis(328 * 20)));
        assert_eq!(offers.pass(&Host { pages_to_scan: 0, ..slow }), None);
        let endless = Offers { host_bytes: Bytes(u64::MAX), ..offers };
        assert!(endless.pass(&Host { sleep_millisecs: u64::MAX, ..slow }).is_some());
    }

    #[test]
    fn offers_are_read_and_those_of_others_lengthen_the_pass_only() {
        let smaps = |flags: &str| {
            format!(
                "10000000-10800000 rw-p 00000000 00:00 0\nSize: 8192 kB\nRss: 8192 kB\nAnonymous: 6144 kB\n\
                 AnonHugePages: 4096 kB\nSwap: 0 kB\nLocked: 0 kB\nTHPeligible: 1\nVmFlags: rd wr mr mw me ac {flags}\n"
            )
        };
        let status = |pid: i32| {
            format!(
                "Name:\tx\nState:\tS (sleeping)\nTgid:\t{pid}\nPid:\t{pid}\nTracerPid:\t0\nUid:\t0\t0\t0\t0\nThreads:\t1\n\
                 VmLck:\t0 kB\nVmHWM:\t10 kB\nVmRSS:\t10 kB\nRssAnon:\t0 kB\nRssFile:\t0 kB\nRssShmem:\t5120 kB\n\
                 HugetlbPages:\t2048 kB\nTHP_enabled:\t1\nSeccomp:\t0\nSeccomp_filters:\t0\nCapEff:\t0\n"
            )
        };
        let mut kernel = FakeKernel::new();
        for (pid, mergeable, flags) in [(7, "yes", "mg"), (8, "no", ""), (9, "yes", "mg")] {
            let counters = format!("ksm_rmap_items 11\nksm_zero_pages 3\nksm_mergeable: {mergeable}\n");
            kernel = kernel
                .file(&Pid(pid).file("ksm_stat"), &counters)
                .file(&Pid(pid).file("smaps"), &smaps(flags))
                .file(&Pid(pid).file("status"), &status(pid));
        }
        let of = Offers::read(&kernel, Some(&[Pid(7), Pid(8)].into()), &BTreeSet::new()).unwrap();
        let mib = Bytes::mib;
        assert_eq!((of.processes, of.offering, of.private_bytes, of.huge_bytes), (2, 1, mib(6), mib(4)));
        assert_eq!((of.visited_pages, of.zero_pages, of.host_bytes), (Pages(11), Pages(6), mib(12)));
        assert_eq!((of.shared_bytes, of.hugetlb_bytes), (mib(10), mib(4)));
        let alone = Offers::read(&kernel, None, &[Pid(9), Pid(8)].into()).unwrap();
        assert_eq!((alone.processes, alone.host_bytes), (1, mib(6)));
    }
}
