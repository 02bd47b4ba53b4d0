//! Programs of a run, one by one, and the local memory that would be enough for one.

use farmem_engine::PAGE_BYTES;
use farmem_engine::policy::what_if::WhatIf;
use linux::Untrusted;
use serde::{Deserialize, Serialize};
use units::Bytes;

use super::Counted;
use crate::unpaged::Unpaged;

/// Largest number of programs in a report.
pub const MOST: usize = 64;

/// Fewer faults on stored pages are no reason to change anything.
const FAULTS_MIN: u64 = 500;

/// A paged program.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct Program {
    /// Command name.
    pub program: Untrusted,
    /// PID in the program's own PID namespace.
    pub process: u32,
    /// Local memory that it might have.
    pub local_bytes: Bytes,
    /// Peak of the paged memory that it has touched.
    pub paged_bytes: Bytes,
    /// Peak of it in RAM.
    pub peak_resident_bytes: Bytes,
    /// Number of its faults on stored pages.
    pub faults_stored: u64,
    /// Time that its threads waited for pages.
    pub stall_s: f64,
    /// Peak of its memory that is not paged; `None` if it was not seen.
    pub not_paged: Option<Unpaged>,
    /// Local memory that would be enough; `None` for a program that does not go round in more than it has.
    pub working_set: Option<WorkingSet>,
}

/// Programs, the most faults on stored pages first, then the largest.
pub fn of(programs: &[Counted]) -> Vec<Program> {
    let mut sorted: Vec<&Counted> = programs.iter().collect();
    sorted.sort_by_key(|program| std::cmp::Reverse((program.faults_stored, program.paged.0)));
    let program = |of: &Counted| Program {
        program: of.name.clone(),
        process: of.process,
        local_bytes: of.local,
        paged_bytes: of.paged,
        peak_resident_bytes: of.peak_resident,
        faults_stored: of.faults_stored,
        stall_s: of.stall_s,
        not_paged: of.unpaged.clone(),
        working_set: of.working_set.clone(),
    };
    sorted.into_iter().take(MOST).map(program).collect()
}

/// Memory that a program goes round in, and local memory that holds it.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct WorkingSet {
    /// Command name of the program.
    pub program: Untrusted,
    /// PID in the program's own PID namespace.
    pub process: u32,
    /// Memory that it goes round in.
    pub bytes: Bytes,
    /// Local memory that holds it: a round number of MiB.
    pub local_bytes: Bytes,
    /// Predicted faults on stored pages with it.
    pub faults: u64,
    /// Faults on stored pages of this run.
    pub faults_now: u64,
}

impl WorkingSet {
    /// From the learned distances of returning pages. `None` without a gain.
    pub fn of(process: u32, program: &Untrusted, what_if: &WhatIf, local: Bytes, touched: Bytes) -> Option<WorkingSet> {
        let [budget, all] = [local, touched].map(|bytes| bytes.0 / PAGE_BYTES);
        let bytes = Bytes(what_if.working_set_pages(budget, all)?.saturating_mul(PAGE_BYTES));
        let local_bytes = round(bytes);
        let more = local_bytes.saturating_sub(local).0 / PAGE_BYTES;
        let faults = if local_bytes >= touched { 0 } else { what_if.with_more(more) };
        let faults_now = what_if.faults();
        let gains = faults_now >= FAULTS_MIN && faults <= faults_now / 2 && local_bytes > local;
        gains.then(|| WorkingSet { program: program.clone(), process, bytes, local_bytes, faults, faults_now })
    }

    /// The program's round and its cure, as the end of a sentence.
    pub fn text(&self) -> String {
        let WorkingSet { bytes, local_bytes, faults, faults_now, .. } = self;
        format!(
            "goes round in {bytes}; with --local {}MiB it would fault about {faults} times from the store instead of \
             {faults_now} times",
            local_bytes.0 >> 20
        )
    }
}

/// Predicted faults with `local` memory: never more than with less memory, by the figure of the working set. Counts of
/// returning pages miss those whose time of eviction is forgotten, which are most of them where a program thrashes.
pub fn at_most(faults: u64, local: Bytes, set: Option<&WorkingSet>) -> u64 {
    set.filter(|set| set.local_bytes <= local).map_or(faults, |set| faults.min(set.faults))
}

/// A size that holds `bytes` and a fiftieth more, in a number that is easy to say.
fn round(bytes: Bytes) -> Bytes {
    let least = Bytes(bytes.0.saturating_add(bytes.0 / 50));
    let step = match least {
        few if few < Bytes::mib(100) => Bytes::mib(1),
        some if some < Bytes::gib(1) => Bytes::mib(10),
        _ => Bytes::mib(100),
    };
    Bytes(least.0.div_ceil(step.0).saturating_mul(step.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_to_say_is_round_and_a_little_larger() {
        let said = [(310, 320), (64, 66), (99, 110), (1000, 1020), (1200, 1300)];
        for (needed, said) in said {
            assert_eq!(round(Bytes::mib(needed)), Bytes::mib(said), "{needed}");
        }
        assert!(round(Bytes(u64::MAX)) > Bytes::gib(1));
    }

    #[test]
    fn more_memory_is_never_said_to_fault_more() {
        let (program, local_bytes) = (Untrusted::from("duckdb"), Bytes::mib(120));
        let set =
            WorkingSet { program, process: 7, bytes: Bytes::mib(114), local_bytes, faults: 345, faults_now: 4611 };
        assert_eq!(at_most(1127, Bytes::mib(128), Some(&set)), 345);
        assert_eq!(at_most(120, Bytes::mib(128), Some(&set)), 120);
        assert_eq!(at_most(1127, Bytes::mib(100), Some(&set)), 1127);
        assert_eq!(at_most(1127, Bytes::mib(128), None), 1127);
    }

    #[test]
    fn programs_are_listed_by_their_faults_on_stored_pages() {
        let counted = |process, faults_stored, mib| Counted {
            process,
            faults_stored,
            paged: Bytes::mib(mib),
            ..Counted::default()
        };
        let listed = of(&[counted(1, 0, 5), counted(2, 9, 1), counted(3, 0, 7)]);
        assert_eq!(listed.iter().map(|program| program.process).collect::<Vec<_>>(), [2, 3, 1]);
    }
}
