//! Protocol between a test and its target process: one order per line, one answer per line, as JSON.

use serde::{Deserialize, Serialize};
use units::AddressRange;
use units::spread::spread;

/// Backing of a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Backing {
    /// Private memory, as `malloc` makes it.
    Anonymous,
    /// Shared memory without a name.
    SharedAnonymous,
    /// A private mapping of a temporary file: pages are copied when they are written.
    PrivateFile,
    /// A shared mapping of a temporary file.
    SharedFile,
    /// Private memory from the pool of reserved huge pages (hugetlb).
    ReservedHuge,
}

/// Access rights of a part of the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Protection {
    /// A fault at any access.
    None,
    /// Reading only.
    Read,
    /// Reading and writing.
    ReadWrite,
}

/// Pages of one mapping: from `start` on, every `step`th, before `end`.
///
/// The pattern written to a page depends on its distance from `origin`, the start of its mapping, so a page that was
/// moved with its mapping still checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    pub(crate) origin: u64,
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) step: u64,
}

impl Part {
    /// Range from its first page to its last, for any step.
    ///
    /// # Panics
    /// Never for a part that was made by this crate: those are aligned.
    pub fn range(self) -> AddressRange {
        AddressRange::new(self.start, self.end).expect("parts are made of whole pages")
    }

    /// The addresses of its pages, in order.
    pub fn pages(self) -> impl Iterator<Item = u64> + Clone {
        let pages = (self.end - self.start).div_ceil(self.step);
        (0..pages).map(move |i| self.start + i * self.step)
    }
}

/// A thing to do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Order {
    Map { backing: Backing, windows: u64 },
    MapAt { start: u64, windows: u64 },
    Write { part: Part, seed: u64 },
    WriteByte { part: Part, at: u64 },
    Read { part: Part },
    ReadPages { pages: Vec<u64>, threads: usize },
    Check { part: Part, seed: u64 },
    Protect { part: Part, protection: Protection },
    Unmap { part: Part },
    Move { part: Part, pages_off: u64 },
    Advise { part: Part, advice: i32 },
    Lock { part: Part },
    Unlock { part: Part },
    ForgetTranslations,
    ForbidHugePages,
    OfferAll,
    TimeLoads { part: Part },
    Spin { part: Part, threads: usize, writing: bool },
    Rest,
    Fork,
    Forked { index: usize, order: Box<Order> },
    EndFork { index: usize },
    Exec,
    Exit { status: i32 },
}

/// Answer to an order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Answer {
    Done,
    At {
        start: u64,
        end: u64,
    },
    Process {
        pid: i32,
    },
    Ticks {
        median: u64,
    },
    /// A page with other than the written contents: the first wrong word, its value and the expected one.
    Differs {
        address: u64,
        found: u64,
        expected: u64,
    },
    Refused {
        errno: i32,
    },
}

/// Value of the word at `address` after `Write`. Neighbouring words, pages and seeds give unrelated values.
pub(crate) fn pattern(part: Part, seed: u64, address: u64) -> u64 {
    spread((address - part.origin) ^ spread(seed))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PART: Part = Part { origin: 0x20_0000, start: 0x20_1000, end: 0x20_5000, step: 0x3000 };

    #[test]
    fn a_part_with_a_step_names_every_nth_page() {
        assert_eq!(PART.pages().collect::<Vec<_>>(), [0x20_1000, 0x20_4000]);
        assert_eq!(Part { step: 0x1000, ..PART }.pages().count(), 4);
    }

    #[test]
    fn an_order_survives_the_pipe_as_one_line() {
        let order = Order::Forked { index: 1, order: Box::new(Order::Write { part: PART, seed: u64::MAX }) };
        let line = serde_json::to_string(&order).unwrap();
        assert!(!line.contains('\n'));
        assert_eq!(serde_json::from_str::<Order>(&line).unwrap(), order);
    }

    #[test]
    fn the_pattern_follows_a_moved_mapping_and_tells_pages_and_seeds_apart() {
        let moved = Part { origin: 0x4000_0000, start: 0x4000_1000, end: 0x4000_5000, step: 0x1000 };
        assert_eq!(pattern(PART, 7, 0x20_1008), pattern(moved, 7, 0x4000_1008));
        assert_ne!(pattern(PART, 7, 0x20_1008), pattern(PART, 7, 0x20_2008));
        assert_ne!(pattern(PART, 7, 0x20_1008), pattern(PART, 8, 0x20_1008));
    }
}
