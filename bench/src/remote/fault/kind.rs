//! Kinds of measured faults, and the check that a run had faults of its intended kind only.
//!
//! The program (`workloads/remote/touch.c`) does not know where its pages are. The ratio of its pages to its budget
//! settles that: with four times as many pages, each page has been stored long before its next touch. The counters of
//! masu and of the kernel must say the same.
//!
//! No run has faults from the victim queue alone: a program that fits never uses the queue, and of a program that does
//! not fit, some pages come from the store.

use anyhow::{Result, ensure};
use farmem::report::Report as LocalReport;
use serde::{Deserialize, Serialize};

use crate::choices;

choices! {
    /// Place of the touched page; a changed one has a dirty page to evict. Only `kernel` and `zram` are without masu.
    pub enum Kind {
        Kernel = "kernel", "first touch, no masu";
        First = "first", "first touch";
        File = "file", "from a file";
        FileChanged = "file-changed", "from a file, changed";
        RedisPlain = "redis-plain", "from Redis, not sealed";
        Redis = "redis", "from Redis";
        RedisPlainChanged = "redis-plain-changed", "from Redis, not sealed, changed";
        RedisChanged = "redis-changed", "from Redis, changed";
        Zram = "zram", "from zram, no masu";
    }
}

/// Numbers of pages and of touches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Pages of the program.
    pub pages: u64,
    /// Passes over them that are timed.
    pub passes: u64,
    /// Pages that it may have in memory.
    pub local_pages: u64,
}

/// Output of the program.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Touches {
    /// Timed touches.
    pub touches: u64,
    /// Touches that found their page in memory: they are not in the figures.
    pub there: u64,
    /// Half of the faults took no longer.
    pub p50_ns: f64,
    /// 99 of 100 faults took no longer.
    pub p99_ns: f64,
    /// Mean, including all other activity meanwhile.
    pub mean_ns: f64,
    /// Page faults that the kernel served from memory, in the timed passes.
    pub minor_faults: u64,
    /// Page faults that it had to fetch something for.
    pub major_faults: u64,
}

/// One fault in 200 may be of another kind: the 99th of 100 is still an intended one.
const ONE_IN: u64 = 200;

/// The kernel chooses the pages to swap by itself, and a page that is swapped in may bring another.
const ONE_IN_OF_KERNEL: u64 = 20;

/// Every page is passed over once before the timed passes, and once after them.
const UNTIMED_PASSES: u64 = 2;

impl Kind {
    /// Whether masu serves this fault.
    pub const fn is_of_masu(self) -> bool {
        !matches!(self, Kind::Kernel | Kind::Zram)
    }

    /// Whether Redis stores the pages.
    pub const fn is_of_redis(self) -> bool {
        matches!(self, Kind::Redis | Kind::RedisPlain | Kind::RedisPlainChanged | Kind::RedisChanged)
    }

    /// The same with sealed pages, if this one's are not.
    pub const fn sealed(self) -> Option<Kind> {
        match self {
            Kind::RedisPlain => Some(Kind::Redis),
            Kind::RedisPlainChanged => Some(Kind::RedisChanged),
            _ => None,
        }
    }

    /// Whether every touch changes its page.
    const fn changes(self) -> bool {
        matches!(self, Kind::FileChanged | Kind::RedisPlainChanged | Kind::RedisChanged)
    }

    /// Sizes for some `touches` timed touches of pages out of memory; the other kinds need `pages`.
    pub fn plan(self, pages: u64, passes: u64) -> Plan {
        let touches = pages * passes;
        let local_pages = pages / 4;
        match self {
            // Twice the touched memory: nothing has to be evicted.
            Kind::Kernel | Kind::First => Plan { pages: touches, passes: 1, local_pages: touches * 2 },
            _ => Plan { pages, passes, local_pages },
        }
    }

    /// Arguments of the program.
    pub fn words(self, plan: Plan) -> Vec<String> {
        match self {
            Kind::Kernel | Kind::First => vec!["first".into(), plan.pages.to_string()],
            _ => {
                let how = if self.changes() { "store" } else { "load" };
                vec![how.into(), plan.pages.to_string(), plan.passes.to_string()]
            }
        }
    }

    /// Checks that a run's faults were of this kind; `report` is masu's, for kinds that masu serves.
    ///
    /// # Errors
    /// The differing counters.
    pub fn verify(self, plan: Plan, told: &Touches, report: Option<&LocalReport>) -> Result<()> {
        let timed = plan.pages * plan.passes;
        ensure!(told.touches == timed, "{} timed touches instead of {timed}", told.touches);
        let faults = told.touches.saturating_sub(told.there);
        let Some(report) = report else {
            if self == Kind::Kernel {
                about("the kernel's faults from memory", told.minor_faults, timed, ONE_IN)?;
                return about("its other faults", told.major_faults, 0, ONE_IN);
            }
            about("the kernel's faults from swap", told.major_faults, faults, ONE_IN_OF_KERNEL)?;
            ensure!(faults >= timed / 2, "faults: {faults}, {} or more expected", timed / 2);
            return Ok(());
        };
        let others = |what, count, wanted| {
            ensure!(count <= wanted + timed / ONE_IN, "{count} faults {what}, {wanted} expected");
            Ok(())
        };
        let stored = report.faults.saturating_sub(report.faults_in_victim_queue).saturating_sub(report.faults_first);
        let all = plan.pages * (plan.passes + UNTIMED_PASSES);
        about("touches that found no page", faults, timed, ONE_IN)?;
        match self {
            Kind::First => {
                about("first touches", report.faults_first, timed, ONE_IN)?;
                others("from the victim queue", report.faults_in_victim_queue, 0)?;
                others("from the store", stored, 0)
            }
            _ => {
                about("faults from the store", stored, all, ONE_IN)?;
                others("of first touches", report.faults_first, plan.pages)?;
                others("from the victim queue", report.faults_in_victim_queue, 0)?;
                let written = report.bytes_out.pages().0;
                // The last pass changes nothing any more; pages that were changed before are written back while it
                // fetches.
                let changed = if self.changes() { plan.pages * (plan.passes + UNTIMED_PASSES) } else { plan.pages };
                about("pages written back", written, changed, ONE_IN)
            }
        }
    }
}

fn about(what: &str, count: u64, wanted: u64, one_in: u64) -> Result<()> {
    // A program has a few pages of its own.
    ensure!(count.abs_diff(wanted) <= wanted / one_in + 16, "{what}: {count}, {wanted} expected");
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum as _;
    use units::Pages;

    use super::*;

    fn touches(plan: Plan) -> Touches {
        let touches = plan.pages * plan.passes;
        Touches { touches, there: 0, p50_ns: 1.0, p99_ns: 2.0, mean_ns: 1.0, minor_faults: 0, major_faults: 0 }
    }

    fn counted(stored: u64, in_victim_queue: u64, first: u64, pages_out: u64) -> LocalReport {
        LocalReport {
            faults: stored + in_victim_queue + first,
            faults_in_victim_queue: in_victim_queue,
            faults_first: first,
            bytes_out: Pages(pages_out).bytes(),
            ..LocalReport::of(0.0, &[])
        }
    }

    #[test]
    fn a_quarter_is_local_of_what_goes_to_a_store_and_all_of_what_does_not() {
        assert_eq!(Kind::File.plan(8192, 2), Plan { pages: 8192, passes: 2, local_pages: 2048 });
        assert_eq!(Kind::First.plan(8192, 2), Plan { pages: 16384, passes: 1, local_pages: 32768 });
    }

    #[test]
    fn as_many_touches_are_timed_of_each_kind() {
        for &kind in Kind::value_variants() {
            let plan = kind.plan(8192, 2);
            assert_eq!(plan.pages * plan.passes, 16384, "{kind}: {plan:?}");
        }
    }

    #[test]
    fn the_program_writes_where_pages_are_to_be_changed_and_reads_elsewhere() {
        let words = |kind: Kind| kind.words(kind.plan(8192, 2)).join(" ");
        assert_eq!(words(Kind::Kernel), "first 16384");
        assert_eq!(words(Kind::Redis), "load 8192 2");
        assert_eq!(words(Kind::FileChanged), "store 8192 2");
    }

    #[test]
    fn counters_of_the_kind_claimed_are_accepted() {
        // As real runs counted, with the program's own two pages.
        for (kind, report) in [
            (Kind::First, counted(0, 0, 16386, 0)),
            (Kind::File, counted(32768, 0, 8194, 8192)),
            (Kind::RedisChanged, counted(32768, 0, 8194, 32768)),
        ] {
            let plan = kind.plan(8192, 2);
            kind.verify(plan, &touches(plan), Some(&report)).unwrap();
        }
    }

    #[test]
    fn counters_of_another_kind_are_told() {
        let plan = Kind::File.plan(8192, 2);
        let said =
            |report: LocalReport| Kind::File.verify(plan, &touches(plan), Some(&report)).unwrap_err().to_string();
        assert_eq!(said(counted(30000, 2768, 8194, 8192)), "faults from the store: 30000, 32768 expected");
        assert_eq!(said(counted(32700, 500, 8194, 8192)), "500 faults from the victim queue, 0 expected");
        assert_eq!(said(counted(32768, 0, 8194, 32768)), "pages written back: 32768, 8192 expected");
    }

    #[test]
    fn touches_that_found_their_page_are_no_faults() {
        let plan = Kind::File.plan(8192, 2);
        let some = Touches { there: 4000, ..touches(plan) };
        let said = Kind::File.verify(plan, &some, Some(&counted(32768, 0, 8194, 8192))).unwrap_err().to_string();
        assert_eq!(said, "touches that found no page: 12384, 16384 expected");
        let less = Touches { touches: 7, ..some };
        assert_eq!(Kind::File.verify(plan, &less, None).unwrap_err().to_string(), "7 timed touches instead of 16384");
    }

    #[test]
    fn the_kernels_faults_are_held_against_its_own_counters() {
        let kernel = Kind::Kernel.plan(8192, 2);
        let told = Touches { minor_faults: 16390, ..touches(kernel) };
        Kind::Kernel.verify(kernel, &told, None).unwrap();
        let huge = Touches { minor_faults: 32, ..told };
        let said = Kind::Kernel.verify(kernel, &huge, None).unwrap_err().to_string();
        assert_eq!(said, "the kernel's faults from memory: 32, 16384 expected");
        let zram = Kind::Zram.plan(8192, 2);
        let told = Touches { there: 384, major_faults: 16100, ..touches(zram) };
        Kind::Zram.verify(zram, &told, None).unwrap();
        assert!(Kind::Zram.verify(zram, &Touches { major_faults: 9000, ..told }, None).is_err());
        assert!(Kind::Zram.verify(zram, &Touches { there: 10000, major_faults: 6384, ..told }, None).is_err());
    }
}
