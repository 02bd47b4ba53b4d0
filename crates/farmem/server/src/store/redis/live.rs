//! Set of blocks that were put and not forgotten: they are deleted at the end, and their lease is renewed until then.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use units::cast::index;

use super::blocks::Block;

/// A bit for each block, in chunks of 4096: 256 MiB of pages take 512 bytes.
#[derive(Default)]
pub struct Live {
    chunks: Mutex<BTreeMap<(u32, u64), [u64; 64]>>,
}

fn place(block: Block) -> ((u32, u64), usize, u64) {
    let within = index(block.number % 4096);
    ((block.layer, block.number / 4096), within / 64, 1 << (within % 64))
}

impl Live {
    /// Marks blocks that have pages from now on.
    pub fn mark(&self, blocks: impl Iterator<Item = Block>) {
        let mut chunks = self.chunks.lock().unwrap_or_else(PoisonError::into_inner);
        for block in blocks {
            let (chunk, word, bit) = place(block);
            chunks.entry(chunk).or_insert([0; 64])[word] |= bit;
        }
    }

    /// Clears blocks that have no pages any more.
    pub fn clear(&self, blocks: impl Iterator<Item = Block>) {
        let mut chunks = self.chunks.lock().unwrap_or_else(PoisonError::into_inner);
        for block in blocks {
            let (chunk, word, bit) = place(block);
            if let Some(words) = chunks.get_mut(&chunk) {
                words[word] &= !bit;
                if *words == [0; 64] {
                    chunks.remove(&chunk);
                }
            }
        }
    }

    /// Blocks of one chunk after `last`, in order; chunk by chunk, so that the lock is never held for long. Returns the
    /// chunk's name, for the next call.
    pub fn next(&self, last: Option<(u32, u64)>) -> Option<((u32, u64), Vec<Block>)> {
        use std::ops::Bound::{Excluded, Unbounded};
        let chunks = self.chunks.lock().unwrap_or_else(PoisonError::into_inner);
        let after = last.map_or(Unbounded, Excluded);
        let (&chunk, words) = chunks.range((after, Unbounded)).next()?;
        let bits = words.iter().zip(0u64..).flat_map(|(&word, number)| {
            (0..64u64).filter(move |bit| word >> bit & 1 == 1).map(move |bit| number * 64 + bit)
        });
        let block = |within| Block { layer: chunk.0, number: chunk.1 * 4096 + within };
        Some((chunk, bits.map(block).collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(layer: u32, number: u64) -> Block {
        Block { layer, number }
    }

    fn all(live: &Live) -> Vec<Block> {
        let (mut found, mut last) = (Vec::new(), None);
        while let Some((chunk, blocks)) = live.next(last) {
            last = Some(chunk);
            found.extend(blocks);
        }
        found
    }

    #[test]
    fn blocks_are_known_until_they_are_forgotten() {
        let live = Live::default();
        let blocks = [block(0, 0), block(0, 4095), block(0, 4096), block(2, 1 << 36)];
        live.mark(blocks.into_iter());
        live.mark(blocks.into_iter());
        assert_eq!(all(&live), blocks);
        live.clear([block(0, 4095), block(7, 7)].into_iter());
        assert_eq!(all(&live), [block(0, 0), block(0, 4096), block(2, 1 << 36)]);
        live.clear(blocks.into_iter());
        assert!(live.chunks.lock().unwrap().is_empty());
    }
}
