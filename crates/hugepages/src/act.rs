//! Promoting, probing and demoting one window: check, advise, check again.
//!
//! The kernel often answers success and does nothing, so the result is taken from the second check. The first one
//! re-validates the observation, which takes no lock and is only a hint.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use access::PageSet;
use access::frames::PartialBlock;
use access::residency::WindowState;
use linux::Error;
use linux::process_madvise::Advice;
use rustix::io::Errno;
use units::{AddressRange, Bytes, PAGES_PER_WINDOW, PageSize, Pages, Window};

use crate::Refusal;
use crate::policy::cost;
use crate::program::Program;

/// Result of a promotion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Promoted {
    /// Huge now.
    Yes {
        /// Resident pages just before the call, without those that reclaim could take (MADV_FREE).
        resident_before: Pages,
    },
    /// Huge already: the kernel's own daemon, or the program, was faster.
    Already,
    /// Not huge, for this reason.
    No(Refusal),
    /// The program replaced its address space (exec) after the measurement. Anything that the call may have made huge
    /// in the new one was split again: it was decided for another program, and its cost is unknown.
    Astray(Demoted),
}

/// Pages of a window written since they were freed lazily ([`access::Observer::written`]); `None` if that is not known.
pub type Written<'a> = &'a dyn Fn(Window) -> Option<PageSet>;

/// For callers without an observer: any page that was freed lazily counts as free.
pub const NOT_KNOWN: Written<'static> = &|_| None;

/// Resident pages of a window that reclaim may take, because the program freed them lazily.
///
/// # Errors
/// `Gone` when the process ended.
pub fn lazily_freed(program: &dyn Program, window: Window, written: Written<'_>) -> Result<Pages, Error> {
    let freed = program.lazily_freed(window)?;
    if freed == PageSet::EMPTY {
        return Ok(Pages(0));
    }
    // Read after the frames: a page that the program takes into use between the two is its own.
    let left = freed.without(&written(window).unwrap_or_default());
    Ok(Pages(u64::from(left.count())))
}

/// Makes `window` huge if that adds at most `budget_left`. A lazily freed page counts as added: reclaim could take it,
/// and the copy in the huge page stays.
///
/// # Errors
/// `Gone` when the process ended; every other obstacle is a counted refusal.
pub fn promote(
    program: &dyn Program,
    window: Window,
    budget_left: Bytes,
    written: Written<'_>,
) -> Result<Promoted, Error> {
    let before = program.state(window)?.unwrap_or_default();
    if before.huge {
        return Ok(Promoted::Already);
    }
    if let Some(why) = obstacle(before, budget_left, program.cgroup_headroom()) {
        return Ok(Promoted::No(why));
    }
    let kept = kept(before, lazily_freed(program, window, written)?);
    if cost(kept) > budget_left {
        return Ok(Promoted::No(Refusal::LazilyFreed));
    }
    match program.advise(window.range(), Advice::Collapse) {
        Ok(()) => {}
        Err(Errno::SRCH) => return Err(gone(window)),
        Err(errno) => return Ok(Promoted::No(Refusal::of_collapse(errno))),
    }
    let Some(after) = program.state(window)? else {
        program.renew()?;
        return Ok(Promoted::Astray(demote(program, window)?));
    };
    Ok(if after.huge { Promoted::Yes { resident_before: kept } } else { Promoted::No(Refusal::NotHugeAfterwards) })
}

/// Obstacle to promoting `window` as it is now. Changes nothing. Failures of the call itself (no huge page available)
/// are not foreseen.
///
/// # Errors
/// `Gone` when the process ended.
pub fn foresee(program: &dyn Program, window: Window) -> Result<Option<Refusal>, Error> {
    let state = program.state(window)?.unwrap_or_default();
    if state.huge {
        return Ok(None);
    }
    let obstacle = obstacle(state, PageSize::Huge.bytes(), program.cgroup_headroom());
    Ok(obstacle.or_else(|| program.forbids(window).then_some(Refusal::Forbidden)))
}

/// Resident pages that reclaim may not take.
fn kept(state: WindowState, lazily_freed: Pages) -> Pages {
    Pages(state.resident.0.saturating_sub(lazily_freed.0))
}

/// Obstacle to promoting a window in this state.
fn obstacle(state: WindowState, budget_left: Bytes, cgroup_headroom: Option<Bytes>) -> Option<Refusal> {
    if state.resident == Pages(0) {
        return Some(Refusal::NotResident);
    }
    if state.file > Pages(0) {
        // Mapped there since the scan: a plan for the heap is not applied to a file or to shared memory.
        return Some(Refusal::NotAnonymous);
    }
    if state.guards > Pages(0) {
        return Some(Refusal::GuardPages);
    }
    if state.shared > Pages(0) {
        return Some(Refusal::Shared);
    }
    if state.swapped > Pages(0) {
        return Some(Refusal::Swapped);
    }
    if cost(state.resident) > budget_left {
        return Some(Refusal::OverBudget);
    }
    // For a moment the old pages and the huge one are both charged.
    cgroup_headroom.filter(|headroom| *headroom < PageSize::Huge.bytes()).map(|_| Refusal::CgroupLimit)
}

/// Clears the accessed bit of a huge window with a TLB flush, so that the next access is sure to set it.
///
/// # Errors
/// `Gone` when the process ended; any other refusal leaves the window as it was, and unprobed.
pub fn probe(program: &dyn Program, window: Window) -> Result<bool, Error> {
    match program.advise(window.range(), Advice::Cold) {
        Ok(()) => Ok(true),
        Err(Errno::SRCH) => Err(gone(window)),
        Err(_) => Ok(false),
    }
}

/// Result of a demotion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Demoted {
    /// Split now.
    Yes {
        /// Memory resident just before the call and not after it.
        returned: Bytes,
        /// Pages still resident.
        resident: Pages,
    },
    /// Small already: the kernel, or the program, was faster.
    Already {
        /// Resident pages.
        resident: Pages,
        /// How it ended as a huge window.
        end: End,
    },
    /// Still huge.
    No,
}

impl Demoted {
    /// Nothing of it is left.
    pub const GONE: Demoted = Demoted::Already { resident: Pages(0), end: End::Unmapped };
}

/// End of a huge window that masu did not split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The program gave back a part, at once or lazily.
    Torn,
    /// The program gave all of it back.
    Unmapped,
    /// The same, and it filled the window again.
    GivenBackAndFilled,
    /// Small, with all of its pages: a fork, reclaim, a change of protection.
    SplitByOthers,
}

impl End {
    /// End of a window that is in this state now, with the pages among the resident ones that were freed lazily. Some may
    /// be in use again. Such pages are a part: a window that is freed whole stays huge.
    fn of(now: WindowState, lazily_freed: Pages) -> End {
        match now {
            // Zero pages are memory that was read since.
            WindowState { resident: Pages(0), swapped: Pages(0), .. } => End::Unmapped,
            _ if is_torn(now) || lazily_freed > Pages(0) => End::Torn,
            _ => End::SplitByOthers,
        }
    }
}

/// End of a window that is in the state `now`, and not huge.
///
/// # Errors
/// `Gone` when the process ended.
pub fn end(program: &dyn Program, window: Window, now: WindowState) -> Result<End, Error> {
    // Pages that the program took into use again since tell who split the window, too.
    let freed = program.once_lazily_freed(window)?;
    Ok(End::of(now, Pages(u64::from(freed.count()))))
}

/// Splits a huge window by advising one of its pages cold; the kernel frees the pages that hold only zeros.
///
/// # Errors
/// `Gone` when the process ended.
pub fn demote(program: &dyn Program, window: Window) -> Result<Demoted, Error> {
    let before = program.state(window)?.unwrap_or_default();
    if !before.huge {
        return Ok(Demoted::Already { resident: before.resident, end: end(program, window, before)? });
    }
    match program.advise(window.first_page(), Advice::Cold) {
        Ok(()) => {}
        Err(Errno::SRCH) => return Err(gone(window)),
        Err(_) => return Ok(Demoted::No),
    }
    // After an exec the huge page went with its memory, and the split returned nothing.
    let Some(after) = program.state(window)? else { return Ok(Demoted::GONE) };
    if after.huge {
        return Ok(Demoted::No);
    }
    let returned = before.resident.bytes().saturating_sub(after.resident.bytes());
    Ok(Demoted::Yes { returned, resident: after.resident })
}

/// Result of splitting many windows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Split {
    /// Windows split: huge before, and not after.
    pub windows: u64,
    /// Windows that stayed huge, by reason.
    pub stayed: BTreeMap<Refusal, u64>,
    /// Memory resident in them before and not after.
    pub returned: Bytes,
}

/// Reason for which a window did not split, from its mapping and its pages.
///
/// # Errors
/// `Gone` when the process ended.
pub fn why_not_split(program: &dyn Program, window: Window) -> Result<Refusal, Error> {
    if program.traits(window).locked {
        return Ok(Refusal::Locked);
    }
    let state = program.state(window)?.unwrap_or_default();
    Ok(if state.shared > Pages(0) { Refusal::Shared } else { Refusal::Busy })
}

/// Splits all these windows, one after the other.
///
/// # Errors
/// `Gone` when the process ended.
pub fn demote_all(program: &dyn Program, windows: &[Window]) -> Result<Split, Error> {
    let mut split = Split::default();
    for window in windows {
        match demote(program, *window)? {
            Demoted::Yes { returned, .. } => {
                split.windows += 1;
                split.returned += returned;
            }
            Demoted::Already { .. } => {}
            Demoted::No => *split.stayed.entry(why_not_split(program, *window)?).or_insert(0) += 1,
        }
    }
    Ok(split)
}

/// Outcome of [`split_torn`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TornBlock {
    /// There is none.
    None,
    /// Split, which freed this memory: the kernel had kept and charged it.
    Split(Bytes),
    /// The kernel did not split it, and keeps this memory: a page is locked or in use.
    Stays(Bytes),
    /// The kernel does not split it, and keeps this memory: another process maps it, after a fork.
    Shared(Bytes),
}

/// Splits the block of a window that the program gave back in part. The advice goes to one of its pages. Where frames are
/// hidden, that is the first page in memory: beside such a block the advice has no effect but that page's age, and no
/// block is seen to stay.
///
/// # Errors
/// `Gone` when the process ended.
pub fn split_torn(program: &dyn Program, window: Window) -> Result<TornBlock, Error> {
    let torn_before = program.torn_on_host();
    if torn_before == Some(0) {
        return Ok(TornBlock::None);
    }
    // Since the caller's look the window may have become huge, and the advice would split it.
    let Some(state) = program.state(window)?.filter(|state| is_torn(*state)) else { return Ok(TornBlock::None) };
    let whole = Pages(PAGES_PER_WINDOW as u64);
    let frames = program.frames(window)?;
    let is_seen = frames.is_some();
    let block = match frames {
        Some(frames) => {
            let unmapped = |block: &PartialBlock| Pages(block.pages.0.saturating_sub(block.mapped.0));
            let is_whole = |block: &&PartialBlock| block.pages == whole;
            // The other process may map the rest, unless the kernel counts pages with a part that nobody maps.
            let shared = frames.shared_partial.iter().find(is_whole).filter(|_| torn_before.is_some());
            if let Some(block) = shared {
                return Ok(TornBlock::Shared(unmapped(block).bytes()));
            }
            frames.partial.iter().find(is_whole).map(|block| (block.first, unmapped(block)))
        }
        None => program.first_present(window)?.map(|page| (page, Pages(whole.0.saturating_sub(held(state))))),
    };
    let Some((first, unmapped)) = block else { return Ok(TornBlock::None) };
    let start = window.page(first).0;
    let Ok(page) = AddressRange::new(start, start + PageSize::Small.bytes().0) else { return Ok(TornBlock::None) };
    let before = program.splits_of_host();
    if program.advise(page, Advice::Cold) == Err(Errno::SRCH) {
        return Err(gone(window));
    }
    // Others split pages, too: the host has one torn page less, where the kernel counts them.
    let is_split = before.zip(program.splits_of_host()).is_some_and(|(before, after)| after > before)
        && torn_before.zip(program.torn_on_host()).is_none_or(|(before, after)| after < before);
    Ok(match (is_split, is_seen) {
        (true, _) => TornBlock::Split(unmapped.bytes()),
        (false, true) => TornBlock::Stays(unmapped.bytes()),
        (false, false) => TornBlock::None,
    })
}

/// Pages of a window that the program has: in memory, zero pages, in swap.
pub(crate) fn held(now: WindowState) -> u64 {
    now.resident.0 + now.zero.0 + now.swapped.0
}

/// Whether a window lacks a part, so that its pages may be the rest of a huge page.
pub(crate) fn is_torn(now: WindowState) -> bool {
    !now.huge && now.resident > Pages(0) && held(now) < PAGES_PER_WINDOW as u64
}

/// Outcome of [`promote_full`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FullPromotions {
    /// Windows that are huge now.
    pub windows: u64,
    /// Windows that are not, by reason; without those that are no longer fully resident.
    pub refused: BTreeMap<Refusal, u64>,
    /// The program replaced its address space (exec) meanwhile: earlier promotions are gone, and the rest was not
    /// tried.
    pub is_another: bool,
}

/// Promotes the windows of `windows` that are fully resident, which adds no memory. After each call `rest` gets its
/// duration, and makes the pause.
///
/// # Errors
/// `Gone` when the process ended.
pub fn promote_full(
    program: &dyn Program,
    windows: &[Window],
    rest: &mut dyn FnMut(Duration),
) -> Result<FullPromotions, Error> {
    let mut made = FullPromotions::default();
    for window in windows {
        program.preallocate();
        let begun = Instant::now();
        let outcome = promote(program, *window, Bytes(0), NOT_KNOWN)?;
        match outcome {
            Promoted::Yes { .. } => made.windows += 1,
            Promoted::Already | Promoted::No(Refusal::NotResident | Refusal::OverBudget) => {}
            Promoted::No(why) => {
                let why = if program.forbids(*window) { Refusal::Forbidden } else { why };
                *made.refused.entry(why).or_default() += 1;
            }
            Promoted::Astray(split) => {
                let windows = u64::from(matches!(split, Demoted::No));
                made = FullPromotions { windows, is_another: true, ..FullPromotions::default() };
                break;
            }
        }
        rest(begun.elapsed());
    }
    program.free_preallocated();
    Ok(made)
}

pub(crate) fn gone(window: Window) -> Error {
    Error::of_process("advise on", format!("window {window}"), Errno::SRCH)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DENSE: WindowState = WindowState {
        resident: Pages(512),
        zero: Pages(0),
        swapped: Pages(0),
        shared: Pages(0),
        guards: Pages(0),
        file: Pages(0),
        huge: false,
    };

    #[test]
    fn each_obstacle_is_named() {
        let all = Bytes::mib(2);
        let check = |state| obstacle(state, all, None);
        assert_eq!(check(DENSE), None);
        assert_eq!(check(WindowState { resident: Pages(0), ..DENSE }), Some(Refusal::NotResident));
        assert_eq!(check(WindowState { guards: Pages(1), ..DENSE }), Some(Refusal::GuardPages));
        assert_eq!(check(WindowState { shared: Pages(1), ..DENSE }), Some(Refusal::Shared));
        assert_eq!(check(WindowState { file: Pages(1), ..DENSE }), Some(Refusal::NotAnonymous));
        assert_eq!(check(WindowState { swapped: Pages(1), ..DENSE }), Some(Refusal::Swapped));
    }

    #[test]
    fn the_budget_is_checked_against_what_is_resident_now() {
        let sparse = WindowState { resident: Pages(500), ..DENSE };
        assert_eq!(obstacle(sparse, Bytes::kib(48), None), None);
        assert_eq!(obstacle(sparse, Bytes::kib(44), None), Some(Refusal::OverBudget));
        assert_eq!(obstacle(DENSE, Bytes(0), None), None, "a full window is free");
    }

    #[test]
    fn an_end_is_told_by_the_pages_that_the_program_keeps() {
        let end = |resident, zero, swapped, lazily_freed| {
            let now = [resident, zero, swapped].map(Pages);
            End::of(WindowState { resident: now[0], zero: now[1], swapped: now[2], ..DENSE }, Pages(lazily_freed))
        };
        assert_eq!([end(0, 0, 0, 0), end(0, 512, 0, 0)], [End::Unmapped; 2]);
        assert_eq!([end(512, 0, 0, 0), end(400, 112, 0, 0), end(0, 0, 512, 0)], [End::SplitByOthers; 3]);
        assert_eq!([end(128, 0, 0, 0), end(1, 0, 9, 0)], [End::Torn; 2]);
        assert_eq!(end(512, 0, 0, 256), End::Torn, "a part freed lazily is given back, and in memory");
        assert_eq!(end(512, 0, 0, 512), End::Torn, "its pages may be in use again");
    }

    #[test]
    fn a_cgroup_must_have_headroom_for_the_copy() {
        assert_eq!(obstacle(DENSE, Bytes(0), Some(Bytes::mib(1))), Some(Refusal::CgroupLimit));
        assert_eq!(obstacle(DENSE, Bytes(0), Some(Bytes::mib(2))), None);
    }
}
