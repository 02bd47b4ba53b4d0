//! State of one page: a word of 64 bits.
//!
//! | bits | |
//! |---|---|
//! | 0–1 | where the page is ([`Place`]) |
//! | 2 | the store holds the content that came from there, with a checksum; untouched: it held zeros when it left |
//! | 3 | readahead marker: prefetched, and unmapped until its touch; in the store: it stays unmapped when it is fetched |
//! | 4 | requested in the background; in the victim queue: fetched that way |
//! | 5 | guard page (MADV_GUARD_INSTALL): untouched, and nothing is mapped there |
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
    Victim = 2,
    /// In the store only.
    Stored = 3,
}

const PLACE: u64 = 3;
const COPY: u64 = 1 << 2;
const MARKER: u64 = 1 << 3;
const REQUESTED: u64 = 1 << 4;
const GUARD: u64 = 1 << 5;
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
            2 => Place::Victim,
            _ => Place::Stored,
        }
    }

    /// The same page at another location; it is in no slot.
    #[must_use]
    pub const fn at(self, place: Place) -> Entry {
        Entry((self.0 & !PLACE & 0xffff_ffff) | place as u64)
    }

    /// The same page in a slot of the victim queue.
    #[must_use]
    pub const fn in_slot(self, slot: u32) -> Entry {
        let moved = self.at(Place::Victim);
        Entry(moved.0 | ((slot as u64) << SLOT_SHIFT))
    }

    /// Slot that holds the page, if it is in one.
    pub const fn slot(self) -> u32 {
        (self.0 >> SLOT_SHIFT) as u32
    }

    /// Whether the store holds the content that came from there.
    pub const fn has_copy(self) -> bool {
        self.0 & COPY != 0
    }

    /// Sets or clears the bit of [`Entry::has_copy`].
    #[must_use]
    pub const fn with_copy(self, copy: bool) -> Entry {
        Entry(if copy { self.0 | COPY } else { self.0 & !COPY })
    }

    /// Whether the page is a readahead marker: prefetched, and unmapped until its touch.
    pub const fn is_marker(self) -> bool {
        self.0 & MARKER != 0
    }

    /// Sets or clears the bit of [`Entry::is_marker`].
    #[must_use]
    pub const fn marker(self, marker: bool) -> Entry {
        Entry(if marker { self.0 | MARKER } else { self.0 & !MARKER })
    }

    /// Whether the page is requested in the background, or was fetched that way and is not touched yet.
    pub const fn is_requested(self) -> bool {
        self.0 & REQUESTED != 0
    }

    /// Sets or clears the bit of [`Entry::is_requested`].
    #[must_use]
    pub const fn requested(self, requested: bool) -> Entry {
        Entry(if requested { self.0 | REQUESTED } else { self.0 & !REQUESTED })
    }

    /// Whether the page is a guard page of the program.
    pub const fn is_guard(self) -> bool {
        self.0 & GUARD != 0
    }

    /// Sets or clears the bit of [`Entry::is_guard`].
    #[must_use]
    pub const fn guard(self, guard: bool) -> Entry {
        Entry(if guard { self.0 | GUARD } else { self.0 & !GUARD })
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

    /// Only the pins, and whether it is a guard page: of a page that the program emptied.
    #[must_use]
    pub const fn emptied(self) -> Entry {
        Entry(self.0 & (PINS | GUARD))
    }

    /// Only the pins: of a page that held zeros when it left. Nothing of its content is kept.
    #[must_use]
    pub const fn of_zeros(self) -> Entry {
        Entry(self.0 & PINS | COPY)
    }

    /// Whether the page held zeros when it left, and is untouched since.
    pub const fn is_of_zeros(self) -> bool {
        matches!(self.place(), Place::Untouched) && self.has_copy()
    }

    /// Whether the page was touched since it was allocated.
    pub const fn is_touched(self) -> bool {
        !matches!(self.place(), Place::Untouched) || self.has_copy()
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
        if self.place() == Place::Victim {
            write!(f, " in {}", self.slot())?;
        }
        let (copy, marker, requested) = (self.has_copy(), self.is_marker(), self.is_requested());
        let (guard, pins) = (self.is_guard(), self.pins());
        write!(f, " copy={copy} marker={marker} requested={requested} guard={guard} pins={pins}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn zeros_are_a_page_that_nobody_touched() {
        let entry = Entry::default();
        assert_eq!((entry.place(), entry.has_copy(), entry.pins(), entry.mark()), (Place::Untouched, false, 0, 0));
    }

    proptest! {
        #[test]
        fn what_is_said_of_one_thing_changes_no_other(word: u64, slot: u32, mark: u16, copy: bool, marker: bool, requested: bool) {
            let entry = Entry(word);
            let said = entry.in_slot(slot).marked(mark).with_copy(copy).marker(marker).requested(requested);
            prop_assert_eq!(said.place(), Place::Victim);
            prop_assert_eq!((said.slot(), said.mark(), said.has_copy(), said.is_marker()), (slot, mark, copy, marker));
            prop_assert_eq!(said.is_requested(), requested);
            prop_assert_eq!(said.pins(), entry.pins());
            prop_assert_eq!(said.at(Place::Stored).slot(), 0);
        }

        #[test]
        fn of_a_page_of_zeros_nothing_is_left_but_that_it_was_touched(word: u64) {
            let zeros = Entry(word).of_zeros();
            prop_assert_eq!((zeros.place(), zeros.pins(), zeros.mark()), (Place::Untouched, Entry(word).pins(), 0));
            prop_assert!(zeros.is_of_zeros() && zeros.is_touched() && !zeros.is_marker() && !zeros.is_requested());
            prop_assert!(!zeros.is_guard() && !zeros.only_pins().is_guard());
            prop_assert!(!zeros.only_pins().is_of_zeros() && !zeros.only_pins().is_touched());
            prop_assert_ne!(zeros, zeros.only_pins());
        }

        #[test]
        fn an_emptied_page_is_a_guard_page_still(word: u64) {
            let emptied = Entry(word).emptied();
            prop_assert_eq!((emptied.is_guard(), emptied.pins()), (Entry(word).is_guard(), Entry(word).pins()));
            prop_assert_eq!(emptied.guard(false), Entry(word).only_pins());
            prop_assert!(!emptied.guard(true).is_touched());
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
