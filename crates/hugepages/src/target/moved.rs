//! Windows of masu's that the program moved (mremap): the old address is empty, and the huge page is in use elsewhere.
//!
//! The frame tells. At a multiple of 2 MiB the huge page is a window again. At any other address the kernel maps its
//! pages one by one and keeps all of them, also those that promotion added: they count until a split returns them.
//! Where frames are hidden, windows that became huge since the last scan are taken for the moved ones, in order of
//! address, so that no added memory is forgotten; a move to another address is not found there.

use std::collections::{BTreeMap, BTreeSet};

use access::residency::WindowState;
use linux::Error;
use linux::process_madvise::Advice;
use rustix::io::Errno;
use units::{Address, AddressRange, Bytes, PageSize, Window};

use super::Target;
use super::extra::MovedPage;
use crate::Refusal;
use crate::act;
use crate::observe::{Before, HugeWindow};
use crate::program::Program;

/// A window of masu's that is not at its address any more.
pub struct Lost {
    pub window: Window,
    pub huge: HugeWindow,
    pub before: Before,
    /// State at that address now.
    pub state: WindowState,
}

/// Place of its huge page now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// A window.
    Window(Window),
    /// Mapped page by page.
    Pages { frame: u64, first: Address },
    /// The program does not map it any more.
    Nowhere,
}

/// Whether a window in this state, which had this huge page, may be at another address now. A fork leaves it where it is.
///
/// # Errors
/// `Gone` when the process ended.
pub fn may_be_elsewhere(
    program: &dyn Program,
    window: Window,
    state: WindowState,
    frame: Option<u64>,
) -> Result<bool, Error> {
    if act::held(state) == 0 {
        return Ok(true);
    }
    let Some(frame) = frame.filter(|_| state.shared.0 == 0) else { return Ok(false) };
    Ok(program.first_frame(window)?.is_some_and(|now| now != frame))
}

/// Looks for the lost windows. `new`: windows that became huge without masu since the last scan.
///
/// # Errors
/// `Gone` when the process ended.
pub fn places(lost: &[Lost], new: &[Window], program: &dyn Program) -> Result<Vec<Place>, Error> {
    let frames: BTreeSet<u64> = lost.iter().filter_map(|one| one.huge.frame).collect();
    let found = if frames.is_empty() { BTreeMap::new() } else { program.find_huge_pages(&frames)? };
    let mut new = new.iter();
    let mut places = Vec::new();
    for one in lost {
        places.push(match one.huge.frame {
            Some(frame) => place(found.get(&frame).copied(), frame, program)?,
            None if act::held(one.state) == 0 => new.next().map_or(Place::Nowhere, |window| Place::Window(*window)),
            None => Place::Nowhere,
        });
    }
    Ok(places)
}

fn place(found: Option<Address>, frame: u64, program: &dyn Program) -> Result<Place, Error> {
    let Some(first) = found else { return Ok(Place::Nowhere) };
    let window = first.window();
    let is_window = window.start() == first && program.state(window)?.is_some_and(|state| state.huge);
    Ok(if is_window { Place::Window(window) } else { Place::Pages { frame, first } })
}

/// Addresses of a huge page from its first on.
pub fn pages_from(first: Address) -> Option<AddressRange> {
    AddressRange::new(first.0, first.0 + PageSize::Huge.bytes().0).ok()
}

impl Target {
    /// Splits huge pages that the program moved to an address where they cannot be huge: the kernel frees their pages
    /// that hold only zeros. `again`: also those that did not split before.
    ///
    /// # Errors
    /// `Gone` when the process ended.
    pub fn split_moved(&mut self, again: bool) -> Result<(), Error> {
        for MovedPage { first, .. } in self.huge.moved_to_split(again) {
            let page = AddressRange::new(first.0, first.0 + PageSize::Small.bytes().0);
            let (Ok(page), Some(all)) = (page, pages_from(first)) else { continue };
            let program = self.process.program();
            let before = program.resident_in(all)?.unwrap_or_default();
            if program.advise(page, Advice::Cold) == Err(Errno::SRCH) {
                return Err(act::gone(first.window()));
            }
            let after = program.resident_in(all)?.unwrap_or_default();
            self.totals.returned += Bytes(before.bytes().0.saturating_sub(after.bytes().0));
            self.huge.measure_moved(first, program)?;
        }
        Ok(())
    }

    /// Moved huge pages that did not split, by reason.
    ///
    /// # Errors
    /// `Gone` when the process ended.
    pub(super) fn moved_left(&self) -> Result<BTreeMap<Refusal, u64>, Error> {
        let all = self.huge.moved_to_split(true);
        let program = self.process.program();
        let found = program.find_huge_pages(&all.iter().map(|page| page.frame).collect())?;
        let mut left = BTreeMap::new();
        for first in found.into_values() {
            let locked = program.traits(first.window()).locked;
            *left.entry(if locked { Refusal::Locked } else { Refusal::Busy }).or_insert(0) += 1;
        }
        Ok(left)
    }
}
