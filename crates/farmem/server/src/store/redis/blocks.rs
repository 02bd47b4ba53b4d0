//! Layout of pages in Redis: 16 of them are a block, a block is a hash, a page is one of its fields.
//!
//! | key | field | value |
//! |---|---|---|
//! | `masu:RUN:LAYER:BLOCK` | `0` … `15` | the page's 4096 bytes, or 4112 if it is sealed |
//!
//! A hash, and not one string of 64 KiB: a missing page is told from a page of zeros; a single dirty page is written
//! without growing the bytes before it (`SETRANGE` fills holes with zeros, and doubles the string's space as it grows);
//! and a forgotten page frees its space. Both took the same time for 4 KiB and 64 KiB (measured). A block keeps the
//! number of keys and of requests small; all its pages are on one node of a Cluster.

use units::cast::index;

use std::ops::Range;

use crate::store::{Location, Span};

/// Pages of a block.
pub const BLOCK_PAGES: u64 = 16;

/// The name of each field, by page.
pub const FIELDS: [&[u8]; 16] =
    [b"0", b"1", b"2", b"3", b"4", b"5", b"6", b"7", b"8", b"9", b"10", b"11", b"12", b"13", b"14", b"15"];

/// Block of 16 pages of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Block {
    /// The layer.
    pub layer: u32,
    /// Number, counted from the layer's start.
    pub number: u64,
}

impl Block {
    /// Key of the block.
    pub fn key(self, run: u64) -> Vec<u8> {
        format!("masu:{run:016x}:{}:{}", self.layer, self.number).into_bytes()
    }

    /// Place of one of its pages.
    pub fn location(self, field: usize) -> Location {
        Location { layer: self.layer, page: self.number * BLOCK_PAGES + field as u64 }
    }
}

/// Part of a span in one block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// The block.
    pub block: Block,
    /// Range of its pages.
    pub fields: Range<usize>,
}

impl Part {
    /// Whether the part is the whole block.
    pub fn is_whole(&self) -> bool {
        self.fields == (0..FIELDS.len())
    }
}

/// Cuts a span at the ends of blocks.
pub fn cut(span: Span) -> impl Iterator<Item = Part> {
    let end = span.location.page + span.pages;
    let mut page = span.location.page;
    std::iter::from_fn(move || {
        if page >= end {
            return None;
        }
        let number = page / BLOCK_PAGES;
        let first = page % BLOCK_PAGES;
        let pages = (BLOCK_PAGES - first).min(end - page);
        page += pages;
        Some(Part { block: Block { layer: span.location.layer, number }, fields: index(first)..index(first + pages) })
    })
}

/// Slot of a key in a Cluster: CRC-16/XMODEM of it, modulo 16384. masu's keys have no `{…}`, which alone would be
/// hashed.
pub fn slot(key: &[u8]) -> u16 {
    let crc = key.iter().fold(0u16, |crc, &byte| (crc << 8) ^ CRC[usize::from((crc >> 8) ^ u16::from(byte))]);
    crc % super::topology::SLOTS
}

const CRC: [u16; 256] = {
    let mut table = [0u16; 256];
    let mut byte = 0u16;
    while byte < 256 {
        let mut crc = byte << 8;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 };
            bit += 1;
        }
        table[byte as usize] = crc;
        byte += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_slot_is_the_one_that_redis_computes() {
        // CRC-16/XMODEM's check value, and results of `CLUSTER KEYSLOT` of Redis 7.
        assert_eq!(slot(b"123456789"), 0x31c3);
        assert_eq!(slot(b"foo"), 12182);
        assert_eq!(slot(b""), 0);
    }

    #[test]
    fn a_key_names_run_layer_and_block() {
        assert_eq!(Block { layer: 3, number: 70 }.key(0xbeef), b"masu:000000000000beef:3:70");
    }

    #[test]
    fn a_span_is_cut_where_blocks_end() {
        let span = Span { location: Location { layer: 1, page: 14 }, pages: 20 };
        let parts: Vec<_> = cut(span).map(|part| (part.block.number, part.fields.clone(), part.is_whole())).collect();
        assert_eq!(parts, [(0, 14..16, false), (1, 0..16, true), (2, 0..2, false)]);
    }

    proptest! {
        #[test]
        fn the_parts_of_a_span_are_its_pages_in_order(page in 0u64..1 << 40, pages in 0u64..200) {
            let parts = cut(Span { location: Location { layer: 9, page }, pages });
            let locations: Vec<_> = parts.flat_map(|part| part.fields.map(move |field| part.block.location(field).page)).collect();
            prop_assert_eq!(locations, (page..page + pages).collect::<Vec<_>>());
        }
    }
}
