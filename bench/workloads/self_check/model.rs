//! Expected contents of each page, as far as the program itself can know.

use units::spread::spread;

/// The content of one page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// Nothing but zeros: never written, or given back.
    Zero,
    /// The pattern that belongs to this number.
    Filled(u64),
    /// Given up with MADV_FREE: each word is still the pattern's, or already zero.
    Freed(u64),
}

impl Content {
    /// The `nth` word of the pattern.
    pub const fn pattern(number: u64, nth: usize) -> u64 {
        // Never zero in practice, and another value in every word, so that a shifted page shows.
        spread(number).wrapping_add((nth as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15))
    }

    /// Whether `found` is allowed in the `nth` word.
    pub const fn allows(self, nth: usize, found: u64) -> bool {
        match self {
            Content::Zero => found == 0,
            Content::Filled(number) => found == Content::pattern(number, nth),
            Content::Freed(number) => found == 0 || found == Content::pattern(number, nth),
        }
    }

    /// Contents after MADV_FREE.
    pub const fn freed(self) -> Content {
        match self {
            Content::Zero => Content::Zero,
            Content::Filled(number) | Content::Freed(number) => Content::Freed(number),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_word_from_another_place_or_page_is_noticed(number: u64, other: u64, nth in 0usize..512, elsewhere in 0usize..512) {
            let wanted = Content::pattern(number, nth);
            prop_assert!(Content::Filled(number).allows(nth, wanted));
            prop_assert!(!Content::Filled(number).allows(nth, wanted ^ 1));
            prop_assert!(nth == elsewhere || !Content::Filled(number).allows(elsewhere, wanted));
            prop_assert!(number == other || !Content::Filled(other).allows(nth, wanted));
        }

        #[test]
        fn a_freed_page_may_be_old_or_empty_and_nothing_else(number: u64, nth in 0usize..512, junk: u64) {
            let freed = Content::Filled(number).freed();
            prop_assert!(freed.allows(nth, 0) && freed.allows(nth, Content::pattern(number, nth)));
            prop_assert_eq!(freed.allows(nth, junk), junk == 0 || junk == Content::pattern(number, nth));
            prop_assert_eq!(freed.freed(), freed);
        }
    }

    #[test]
    fn what_was_empty_stays_empty_when_freed() {
        assert_eq!(Content::Zero.freed(), Content::Zero);
    }
}
