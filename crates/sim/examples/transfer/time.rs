//! Cost of one decision on this machine.

use std::hint::black_box;
use std::io::{self, Write};
use std::time::Instant;

use farmem_engine::policy::Run;
use farmem_engine::policy::site::{Fault, Kind, Limits, Sites};

use crate::programs::Sequence;

const AREA: Run = Run { first_page: 1 << 20, pages: 1 << 20 };

const LIMITS: Limits = Limits {
    budget_pages: 16_384,
    life_pages: 16_384,
    fault_ns: 5000,
    page_ns: 700,
    ahead_page_ns: 350,
    base_log2: 0,
    max_unit_log2: 8,
};

const FAULTS: u64 = 1_000_000;

/// Nanoseconds of [`Sites::on_fault`], for three sites with different fault patterns.
pub(super) fn decisions(out: &mut impl Write) -> io::Result<()> {
    writeln!(out, "{:<12}{:>12}", "faults", "ns a fault")?;
    let mut random = Sequence(0);
    decision("in order", |n| n, out)?;
    decision("in steps", |n| n * 1000, out)?;
    decision("all over", |_| u64::from(random.below(AREA.pages)), out)
}

fn decision(name: &str, mut way: impl FnMut(u64) -> u64, out: &mut impl Write) -> io::Result<()> {
    let mut sites = Box::new(Sites::UNKNOWN);
    let began = Instant::now();
    for n in 0..FAULTS {
        let page = AREA.first_page + way(n) % u64::from(AREA.pages);
        let fault = Fault { site: n % 3, page, area: AREA, distance: 0, mark: 0, kind: Kind::Stored };
        black_box(sites.on_fault(&fault, &LIMITS, |_| false));
    }
    writeln!(out, "{name:<12}{:>12}", began.elapsed().as_nanos() / u128::from(FAULTS))
}
