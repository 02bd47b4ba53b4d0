//! State of one page: a word of 64 bits.
//!
//! | bits | |
//! |---|---|
//! | 0–1 | where the page is ([`Place`]) |
//! | 2 | the store holds the content that came from there, with a checksum; untouched: it held zeros when it left |
//! | 3 | it was prefetched and is not requested yet; at home: it stays unmapped when it comes |
//! | 4 | it is requested, and comes in the background; in the victim queue: it came so |
//! | 8–15 | number of pins: a pinned page stays where it is |
//! | 16–31 | the policy's own |
//! | 32–63 | its slot in the victim queue |
//!
//! A word of zeros is an untouched page.

use core::fmt;

/// Location of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Nowhere: untouched since it was allocated, or since it left with nothing but zeros. It reads as zeros.
    Untouched = 0,
    /// In the program.
    Resident = 1,
    /// In a slot of the victim queue, unmapped.
    Staged = 2,
    /// In the store only.
    Home = 3,
}

const PLACE: u64 = 3;
const KEPT: u64 = 1 << 2;
const EARLY: u64 = 1 << 3;
const ORDERED: u64 = 1 << 4;
const PINS_SHIFT: u32 = 8;
const PINS: u64 = 0xff << PINS_SHIFT;
const MARK_SHIFT: u32 = 16;
const MARK: u64 = 0xffff << MARK_SHIFT;
const SLOT_SHIFT: u32 = 32;

/// State word of one page.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Entry(pub u64);

impl Entry {
    /// Location.
    pub const fn place(self) -> Place {
        match self.0 & PLACE {
            0 => Place::Untouched,
            1 => Place::Resident,
            2 => Place::Staged,
            _ => Place::Home,
        }
    }

    /// The same page at another location; it is in no slot.
    #[must_use]
    pub const fn at(self, place: Place) -> Entry {
        Entry((self.0 & !PLACE & 0xffff_ffff) | place as u64)
    }

    /// The same page in a slot of the victim queue.
    #[must_use]
    pub const fn staged(self, slot: u32) -> Entry {
        let moved = self.at(Place::Staged);
        Entry(moved.0 | ((slot as u64) << SLOT_SHIFT))
    }

    /// Slot that holds the page, if it is in one.
    pub const fn slot(self) -> u32 {
        (self.0 >> SLOT_SHIFT) as u32
    }

    /// Whether the store holds the content that came from there.
    pub const fn is_kept(self) -> bool {
        self.0 & KEPT != 0
    }

    /// Sets or clears the bit of [`Entry::is_kept`].
    #[must_use]
    pub const fn kept(self, kept: bool) -> Entry {
        Entry(if kept { self.0 | KEPT } else { self.0 & !KEPT })
    }

    /// Whether the page was prefetched and is not requested yet.
    pub const fn is_early(self) -> bool {
        self.0 & EARLY != 0
    }

    /// Sets or clears the bit of [`Entry::is_early`].
    #[must_use]
    pub const fn early(self, early: bool) -> Entry {
        Entry(if early { self.0 | EARLY } else { self.0 & !EARLY })
    }

    /// Whether the page is requested in the background, or came so and is not touched yet.
    pub const fn is_ordered(self) -> bool {
        self.0 & ORDERED != 0
    }

    /// Sets or clears the bit of [`Entry::is_ordered`].
    #[must_use]
    pub const fn ordered(self, ordered: bool) -> Entry {
        Entry(if ordered { self.0 | ORDERED } else { self.0 & !ORDERED })
    }

    /// Number of pins.
    pub const fn pins(self) -> u8 {
        ((self.0 & PINS) >> PINS_SHIFT) as u8
    }

    /// Adds a pin. `None` when there are 255.
    pub const fn pinned(self) -> Option<Entry> {
        if self.pins() == u8::MAX { None } else { Some(Entry(self.0 + (1 << PINS_SHIFT))) }
    }

    /// Removes a pin; a page without pins stays as it is.
    #[must_use]
    pub const fn unpinned(self) -> Entry {
        if self.pins() == 0 { self } else { Entry(self.0 - (1 << PINS_SHIFT)) }
    }

    /// Only the pins: of a page that is forgotten during a call.
    #[must_use]
    pub const fn only_pins(self) -> Entry {
        Entry(self.0 & PINS)
    }

    /// Only the pins: of a page that held zeros when it left. Nothing of its content is kept.
    #[must_use]
    pub const fn of_zeros(self) -> Entry {
        Entry(self.0 & PINS | KEPT)
    }

    /// Whether the page held zeros when it left, and is untouched since.
    pub const fn is_of_zeros(self) -> bool {
        matches!(self.place(), Place::Untouched) && self.is_kept()
    }

    /// Whether the page was touched since it was allocated.
    pub const fn is_touched(self) -> bool {
        !matches!(self.place(), Place::Untouched) || self.is_kept()
    }

    /// Mark of the policy.
    pub const fn mark(self) -> u16 {
        ((self.0 & MARK) >> MARK_SHIFT) as u16
    }

    /// Replaces the mark of the policy.
    #[must_use]
    pub const fn marked(self, mark: u16) -> Entry {
        Entry((self.0 & !MARK) | ((mark as u64) << MARK_SHIFT))
    }
}

impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.place())?;
        if self.place() == Place::Staged {
            write!(f, " in {}", self.slot())?;
        }
        let (kept, early, ordered) = (self.is_kept(), self.is_early(), self.is_ordered());
        write!(f, " kept={kept} early={early} ordered={ordered} pins={}", self.pins())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn zeros_are_a_page_that_nobody_touched() {
        let entry = Entry::default();
        assert_eq!((entry.place(), entry.is_kept(), entry.pins(), entry.mark()), (Place::Untouched, false, 0, 0));
    }

    proptest! {
        #[test]
        fn what_is_said_of_one_thing_changes_no_other(word: u64, slot: u32, mark: u16, kept: bool, early: bool, ordered: bool) {
            let entry = Entry(word);
            let said = entry.staged(slot).marked(mark).kept(kept).early(early).ordered(ordered);
            prop_assert_eq!(said.place(), Place::Staged);
            prop_assert_eq!((said.slot(), said.mark(), said.is_kept(), said.is_early()), (slot, mark, kept, early));
            prop_assert_eq!(said.is_ordered(), ordered);
            prop_assert_eq!(said.pins(), entry.pins());
            prop_assert_eq!(said.at(Place::Home).slot(), 0);
        }

        #[test]
        fn of_a_page_of_zeros_nothing_is_left_but_that_it_was_touched(word: u64) {
            let zeros = Entry(word).of_zeros();
            prop_assert_eq!((zeros.place(), zeros.pins(), zeros.mark()), (Place::Untouched, Entry(word).pins(), 0));
            prop_assert!(zeros.is_of_zeros() && zeros.is_touched() && !zeros.is_early() && !zeros.is_ordered());
            prop_assert!(!zeros.only_pins().is_of_zeros() && !zeros.only_pins().is_touched());
            prop_assert_ne!(zeros, zeros.only_pins());
        }

        #[test]
        fn pins_are_counted_and_never_spill_over(word: u64) {
            let entry = Entry(word);
            match entry.pinned() {
                Some(pinned) => prop_assert_eq!(pinned.unpinned(), entry),
                None => prop_assert_eq!(entry.pins(), 255),
            }
        }
    }
}
