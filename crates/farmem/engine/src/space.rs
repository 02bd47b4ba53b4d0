//! Map from addresses to pages: the address space in chunks of 32 MiB.
//!
//! A program's paged memory lies anywhere in 47 bits of addresses. The pager's data for each page must be dense,
//! because a page's number is also its place in the store. So a directory tells for every chunk of addresses whether it
//! is paged, and which pages belong to it: chunks get their pages in the order of their first touch.
//!
//! A chunk keeps its pages for ever. A program that maps and unmaps ever new addresses uses up numbers, not memory;
//! when there are none left, memory is not paged any more, and this is reported.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use crate::PAGE_BYTES;
use crate::cast::{fits, index};

/// Pages of a chunk.
pub const CHUNK_PAGES: u64 = 1 << 13;

const CHUNK_SHIFT: u32 = 25;

/// Words of the directory: one for every chunk of a 47-bit address space.
pub const DIRECTORY_WORDS: usize = 1 << (47 - CHUNK_SHIFT);

/// The chunk may be paged and has no pages yet.
const MARKED: u32 = 1;
/// Words from here on are a chunk's number and this offset.
const FIRST: u32 = 2;

/// Number of a paged page: its index in all tables, and in the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Page(pub u32);

impl Page {
    /// Page with a number higher by `pages`, in the same chunk or the next one.
    #[must_use]
    pub const fn plus(self, pages: u32) -> Page {
        Page(self.0.wrapping_add(pages))
    }

    /// Whether the `pages` pages from this one on are consecutive in memory, as their numbers are: pages of different
    /// chunks need not be.
    pub const fn is_in_a_row(self, pages: u32) -> bool {
        self.0 as u64 % CHUNK_PAGES + pages as u64 <= CHUNK_PAGES
    }
}

/// Directory, and the map from chunks to addresses.
#[derive(Clone, Copy, Debug)]
pub struct Space<'a> {
    directory: &'a [AtomicU32],
    /// The address of each numbered chunk; the first word counts them.
    bases: &'a [AtomicU64],
}

impl<'a> Space<'a> {
    /// Map over words of the shared segment. The limit of chunks is the number of bases, less the first word.
    pub const fn new(directory: &'a [AtomicU32], bases: &'a [AtomicU64]) -> Space<'a> {
        Space { directory, bases }
    }

    fn word(&self, address: u64) -> Option<&'a AtomicU32> {
        self.directory.get(index(address >> CHUNK_SHIFT))
    }

    /// Whether memory near this address is paged.
    pub fn may_be_paged(&self, address: u64) -> bool {
        self.word(address).is_some_and(|word| word.load(Relaxed) != 0)
    }

    /// Whether memory in a range is paged. The range may reach beyond all memory.
    pub fn some_may_be_paged(&self, start: u64, bytes: u64) -> bool {
        let chunk = |address: u64| index(address >> CHUNK_SHIFT).min(DIRECTORY_WORDS);
        let end = chunk(start.saturating_add(bytes.saturating_sub(1))).saturating_add(1).min(self.directory.len());
        let words = self.directory.get(chunk(start)..end).unwrap_or_default();
        bytes > 0 && words.iter().any(|word| word.load(Relaxed) != 0)
    }

    /// Whether addresses up to `end` can be paged.
    pub const fn reaches(&self, end: u64) -> bool {
        end <= 1 << 47
    }

    /// Marks memory as paged from now on.
    pub fn mark(&self, start: u64, bytes: u64) {
        let mut address = start;
        let end = start.saturating_add(bytes);
        while address < end {
            let Some(word) = self.word(address) else { return };
            let _ = word.compare_exchange(0, MARKED, Relaxed, Relaxed);
            address = (address | ((1 << CHUNK_SHIFT) - 1)).saturating_add(1);
        }
    }

    /// Page at this address, if its chunk has pages.
    pub fn page(&self, address: u64) -> Option<Page> {
        Space::page_of_word(self.word(address)?.load(Relaxed), address)
    }

    /// Index of the directory's word for an address; `None` beyond the directory.
    pub fn directory_index(address: u64) -> Option<u64> {
        Some(address >> CHUNK_SHIFT).filter(|index| *index < DIRECTORY_WORDS as u64)
    }

    /// Page at an address whose directory word is `word`; `None` if its chunk has no pages.
    pub fn page_of_word(word: u32, address: u64) -> Option<Page> {
        Some(page_of(word.checked_sub(FIRST)?, address))
    }

    /// Page at this address; its chunk gets pages if it has none. `None` when it is not paged, or no chunk is left.
    ///
    /// Callers must be serialized.
    pub fn page_at_last(&self, address: u64) -> Option<Page> {
        let word = self.word(address)?;
        match word.load(Relaxed) {
            0 => None,
            MARKED => {
                let count = self.bases.first()?.load(Relaxed);
                let number = u32::try_from(count).ok()?;
                let base = self.bases.get(number as usize + 1)?;
                base.store(address >> CHUNK_SHIFT << CHUNK_SHIFT, Relaxed);
                self.bases.first()?.store(count + 1, Relaxed);
                word.store(number + FIRST, Relaxed);
                Some(page_of(number, address))
            }
            number => Some(page_of(number - FIRST, address)),
        }
    }

    /// Address of a page.
    pub fn address(&self, page: Page) -> u64 {
        let (chunk, within) = (u64::from(page.0) / CHUNK_PAGES, u64::from(page.0) % CHUNK_PAGES);
        let base = self.bases.get(index(chunk) + 1);
        base.map_or(0, |base| base.load(Relaxed)) + within * PAGE_BYTES
    }

    /// Number of numbered pages. The program can write any count; chunks beyond the table do not exist.
    pub fn pages(&self) -> u64 {
        let chunks = self.bases.first().map_or(0, |count| count.load(Relaxed));
        chunks.min(self.bases.len().saturating_sub(1) as u64) * CHUNK_PAGES
    }

    /// Calls `run` for a range of addresses, chunk by chunk, with the first page and the number of pages, for chunks
    /// that have pages. The range may reach beyond all memory.
    pub fn each_run(&self, start: u64, bytes: u64, mut run: impl FnMut(Page, u32)) {
        let end = start.saturating_add(bytes).min((self.directory.len() as u64) << CHUNK_SHIFT);
        let mut address = start;
        while address < end {
            let next = (address | ((1 << CHUNK_SHIFT) - 1)).saturating_add(1).min(end);
            if let Some(page) = self.page(address) {
                let pages = (next - address).div_ceil(PAGE_BYTES);
                run(page, fits(pages));
            }
            address = next;
        }
    }
}

fn page_of(number: u32, address: u64) -> Page {
    let index = (address / PAGE_BYTES) % CHUNK_PAGES;
    Page(number.wrapping_shl(13) | index as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words() -> (Vec<AtomicU32>, Vec<AtomicU64>) {
        let directory = (0..DIRECTORY_WORDS).map(|_| AtomicU32::new(0)).collect();
        (directory, (0..4).map(|_| AtomicU64::new(0)).collect())
    }

    #[test]
    fn chunks_get_pages_in_the_order_of_their_first_touch_and_lead_back_to_their_address() {
        let (directory, bases) = words();
        let space = Space::new(&directory, &bases);
        let (far, near) = (0x7f12_3456_7000, 0x5555_0000_1000);
        assert_eq!(space.page_at_last(far), None, "nobody said that it is paged");
        space.mark(far, 1);
        space.mark(near, 64 << 20);
        assert_eq!(space.page(far), None, "and nobody has touched it");
        let page = space.page_at_last(far).unwrap();
        assert_eq!(u64::from(page.0), far / PAGE_BYTES % CHUNK_PAGES);
        assert_eq!(space.address(page), far);
        let other = space.page_at_last(near).unwrap();
        assert_eq!(u64::from(other.0), CHUNK_PAGES + near / PAGE_BYTES % CHUNK_PAGES);
        assert_eq!((space.address(other), space.pages()), (near, 2 * CHUNK_PAGES));
        assert_eq!(space.page_at_last(far + 4096), Some(page.plus(1)));
        let third = space.page_at_last(near + (40 << 20));
        assert!(third.is_some() && space.page_at_last(near + (64 << 20)).is_none(), "numbers run out");
    }

    #[test]
    fn a_range_is_paged_if_one_of_its_chunks_is_however_far_it_reaches() {
        let (directory, bases) = words();
        let space = Space::new(&directory, &bases);
        space.mark(64 << 20, 4096);
        assert!(space.some_may_be_paged(0x1000, 64 << 20) && !space.some_may_be_paged(0x1000, (64 << 20) - 0x1000));
        assert!(space.some_may_be_paged(95 << 20, 1) && !space.some_may_be_paged(96 << 20, u64::MAX));
        assert!(space.some_may_be_paged(0x1000, u64::MAX) && !space.some_may_be_paged(64 << 20, 0));
        assert!(!space.some_may_be_paged(u64::MAX - 1, u64::MAX));
    }

    #[test]
    fn a_range_is_gone_through_by_chunks_and_what_has_no_pages_is_left_out() {
        let (directory, bases) = words();
        let space = Space::new(&directory, &bases);
        let start = 0x1000_0000 - 8192;
        space.mark(start, 96 << 20);
        space.page_at_last(start).unwrap();
        space.page_at_last(start + (40 << 20)).unwrap();
        let mut runs = Vec::new();
        space.each_run(start, 96 << 20, |page, pages| runs.push((space.address(page), pages)));
        assert_eq!(runs, [(start, 2), (0x1000_0000 + (32 << 20), 8192)]);
    }

    #[test]
    fn a_range_beyond_all_memory_is_gone_through_as_far_as_memory_reaches() {
        let (directory, bases) = words();
        let space = Space::new(&directory, &bases);
        let last = (1 << 47) - 8192;
        space.mark(last, 8192);
        space.page_at_last(last).unwrap();
        let mut runs = Vec::new();
        // madvise(2) and mprotect(2) take any length; a loop over 2^39 chunks would hold the pager's lock for minutes.
        space.each_run(0x1000, u64::MAX, |page, pages| runs.push((space.address(page), pages)));
        assert_eq!(runs, [(last & !0x1ff_ffff, 8192)]);
        space.each_run(u64::MAX - 4096, u64::MAX, |_, _| panic!("no memory lies there"));
    }
}
