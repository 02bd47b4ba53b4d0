//! Merged pages apart from pages shared by fork, where KPF_KSM does not tell (`linux::kpageflags`).
//!
//! There a page with several mappings has the flag in either case. A frame is merged for one of three reasons, the
//! cheapest first:
//!
//! 1. A process has it twice: fork copies each page to one address.
//! 2. Two of its sharers have executed programs of their own (no PF_FORKNOEXEC). Fork shares pages among one such
//!    process and its descendants only.
//! 3. `smaps` counts as many merged pages (`KSM:`) in one of its mappings as anonymous ones.
//!
//! It is not merged if the count of one of its mappings is 0. The count of any other mapping leaves it open: such a
//! frame is *undecided*, and the report counts it apart.
//!
//! Cost: `smaps` of each process that shares pages by fork, at each scan.

use std::collections::BTreeMap;

use linux::smaps::{Detail, details};
use linux::{KernelFiles, Pid};
use units::{Address, AddressRange, Pages};

use super::index::{Found, MergedPage};

/// A page of some process.
struct Mapped {
    page: MergedPage,
    /// Index of the process.
    process: usize,
    /// Index among the open pages of the process; `None` for a page that is known to be merged.
    open: Option<usize>,
}

/// State of a frame, as far as it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Merged,
    Forked,
    Undecided,
}

/// Drops the open pages that are not surely merged. Returns the number of undecided ones. `forked` tells whether a
/// process still runs the program that it was forked with.
pub(super) fn keep_merged(files: &impl KernelFiles, forked: impl Fn(Pid) -> bool, found: &mut [(Pid, Found)]) -> Pages {
    let mut mappings: BTreeMap<usize, Vec<(AddressRange, Verdict)>> = BTreeMap::new();
    let mut merged: Vec<Vec<bool>> = found.iter().map(|(_, of)| vec![false; of.open.len()]).collect();
    let mut undecided = Pages(0);
    let all = by_frame(found);
    for frame in all.chunk_by(|one, other| one.page.frame == other.page.frame) {
        let verdict = if is_surely_merged(frame, |process| forked(found[process].0)) {
            Verdict::Merged
        } else {
            let of_page = |mapped: &Mapped| {
                let of_process = mappings.entry(mapped.process).or_insert_with(|| read(files, found[mapped.process].0));
                verdict_at(of_process, mapped.page.address)
            };
            together(frame.iter().map(of_page))
        };
        for (process, nth) in frame.iter().filter_map(|mapped| Some((mapped.process, mapped.open?))) {
            merged[process][nth] = verdict == Verdict::Merged;
            undecided.0 += u64::from(verdict == Verdict::Undecided);
        }
    }
    for ((_, of), merged) in found.iter_mut().zip(merged) {
        let mut merged = merged.into_iter();
        of.open.retain(|_| merged.next() == Some(true));
    }
    undecided
}

/// All pages, by frame.
fn by_frame(found: &[(Pid, Found)]) -> Vec<Mapped> {
    let mut all = Vec::new();
    for (process, (_, of)) in found.iter().enumerate() {
        all.extend(of.known.iter().map(|page| Mapped { page: *page, process, open: None }));
        let open = of.open.iter().enumerate();
        all.extend(open.map(|(nth, page)| Mapped { page: *page, process, open: Some(nth) }));
    }
    all.sort_unstable_by_key(|mapped| (mapped.page.frame, mapped.process));
    all
}

/// Reasons 1 and 2, and a page that an earlier scan found merged. `frame` is sorted by process.
fn is_surely_merged(frame: &[Mapped], forked: impl Fn(usize) -> bool) -> bool {
    frame.iter().any(|mapped| mapped.open.is_none())
        || frame.windows(2).any(|pair| pair[0].process == pair[1].process)
        || frame.iter().filter(|mapped| !forked(mapped.process)).count() >= 2
}

/// Verdicts of the mappings of a process, by address; none if it cannot be read.
fn read(files: &impl KernelFiles, pid: Pid) -> Vec<(AddressRange, Verdict)> {
    let details = details(files, pid).unwrap_or_default();
    details.iter().map(|detail| (detail.mapping.range, verdict_of(detail))).collect()
}

fn verdict_of(detail: &Detail) -> Verdict {
    match detail.ksm {
        Some(ksm) if ksm.0 == 0 => Verdict::Forked,
        Some(ksm) if ksm >= detail.anonymous => Verdict::Merged,
        Some(_) | None => Verdict::Undecided,
    }
}

fn verdict_at(mappings: &[(AddressRange, Verdict)], address: Address) -> Verdict {
    let after = mappings.partition_point(|(range, _)| range.start() <= address);
    let mapping = after.checked_sub(1).map(|at| &mappings[at]).filter(|(range, _)| address < range.end());
    mapping.map_or(Verdict::Undecided, |(_, verdict)| *verdict)
}

/// One mapping that decides is enough. Two that contradict each other changed between two reads.
fn together(verdicts: impl Iterator<Item = Verdict>) -> Verdict {
    let mut all = Verdict::Undecided;
    for verdict in verdicts {
        all = match (all, verdict) {
            (all, Verdict::Undecided) => all,
            (Verdict::Undecided, verdict) => verdict,
            (all, verdict) if all == verdict => all,
            _ => return Verdict::Undecided,
        };
    }
    all
}

#[cfg(test)]
mod tests;
