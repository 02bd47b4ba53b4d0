//! Counters of frames by use.

use std::collections::BTreeSet;

use linux::Error;
use linux::kpagecgroup::GroupTable;
use linux::kpageflags::{FrameFlags, FrameTable};
use linux::probe::Known;
use units::{Bytes, Pages, cast};

use super::frame_set::FrameSet;
use super::memory::Memory;
use super::{Closeness, OfClass, OfRest};
use crate::class::{Class, LruState, Rest, Use, lru_state_of, use_of};
use crate::sample::{Design, Pick, Sum, picks, picks_of_all};

/// Number of blocks in a sample, for a host of any size: about 20 ms.
const SAMPLED_BLOCKS: u64 = 8192;

/// Smaller number of blocks for scattered frames: each costs a system call.
const SAMPLED_BLOCKS_OF_SOME: u64 = 2048;

/// Filter for frames charged to some control groups.
#[derive(Debug)]
pub struct Charged<'a> {
    /// Charged group of each frame.
    pub table: GroupTable,
    /// Inodes of the groups.
    pub groups: &'a BTreeSet<u64>,
}

/// Sums during a scan.
#[derive(Debug, Default)]
pub struct Tally {
    classes: [ByLruState; Class::ALL.len()],
    rest: [Sum; Rest::ALL.len()],
    frames_read: u64,
    frames: u64,
}

/// Sums of one class.
#[derive(Clone, Copy, Debug, Default)]
pub struct ByLruState {
    all: Sum,
    by_state: [Sum; 3],
}

impl ByLruState {
    fn add(&mut self, pick: Pick, seen: [u64; 3]) {
        self.all.add(pick, seen.iter().sum());
        self.by_state.iter_mut().zip(seen).for_each(|(sum, seen)| sum.add(pick, seen));
    }

    /// Report of a class. `no_lists`: reason that the kernel has no active list.
    pub fn of_class(&self, class: Class, no_lists: Option<&str>, refaults: Known<u64>) -> OfClass {
        let amount = |lru_state: LruState| bytes(self.by_state[lru_state as usize].frames());
        let listed =
            |lru_state| no_lists.map_or_else(|| Known::Value(amount(lru_state)), |why| Known::Unknown(why.to_owned()));
        let bound = self.by_state.iter().map(Sum::bound).fold(self.all.bound(), f64::max);
        OfClass {
            class,
            bytes: bytes(self.all.frames()),
            active_bytes: listed(LruState::Active),
            idle_bytes: listed(LruState::Idle),
            locked_bytes: amount(LruState::Locked),
            error_bound_bytes: bytes(bound),
            refaults,
        }
    }
}

impl Tally {
    /// Counts the frames of the host, or of the groups in `only`.
    ///
    /// # Errors
    /// `Denied` without CAP_SYS_ADMIN.
    pub fn of(
        table: &FrameTable,
        memory: &Memory,
        code: &FrameSet,
        only: Option<&Charged<'_>>,
        closeness: Closeness,
    ) -> Result<Tally, Error> {
        let frames = memory.ranges().iter().map(|range| range.end - range.start).sum();
        let design = closeness.design(SAMPLED_BLOCKS, frames);
        let mut tally = Tally::default();
        let (mut flags, mut groups) = (Vec::new(), Vec::new());
        for pick in picks_of_all(memory.ranges(), design) {
            let count = cast::index(pick.count);
            flags.clear();
            table.read_into(pick.first, count, &mut flags)?;
            if let Some(only) = only {
                groups.clear();
                only.table.read_into(pick.first, count, &mut groups)?;
            }
            let is_meant = |index: usize| {
                only.is_none_or(|only| groups.get(index).is_some_and(|group| only.groups.contains(group)))
            };
            let meant = (pick.first..).zip(&flags).enumerate().filter(|(index, _)| is_meant(*index));
            let uses =
                meant.map(|(_, (frame, flags))| Ok(use_of(of_its_block(table, frame, *flags)?, code.contains(frame))));
            tally.add(pick, uses)?;
        }
        Ok(tally)
    }

    /// Adds the uses of the frames of `pick`.
    fn add(&mut self, pick: Pick, uses: impl Iterator<Item = Result<Use, Error>>) -> Result<(), Error> {
        let mut classes = [[0; 3]; Class::ALL.len()];
        let mut rest = [0; Rest::ALL.len()];
        for found in uses {
            match found? {
                Use::Aged(class, lru_state) => classes[class as usize][lru_state as usize] += 1,
                Use::Rest(kind) => rest[kind as usize] += 1,
                Use::Absent => {}
            }
        }
        self.classes.iter_mut().zip(classes).for_each(|(sums, seen)| sums.add(pick, seen));
        self.rest.iter_mut().zip(rest).for_each(|(sum, seen)| sum.add(pick, seen));
        self.frames_read += pick.count;
        self.frames += pick.stands_for;
        Ok(())
    }

    /// Sums of a class.
    pub fn class(&self, class: Class) -> &ByLruState {
        &self.classes[class as usize]
    }

    /// Sum of other memory.
    pub fn rest(&self, rest: Rest) -> OfRest {
        let sum = self.rest[rest as usize];
        OfRest { rest, bytes: bytes(sum.frames()), error_bound_bytes: bytes(sum.bound()) }
    }

    /// Fraction of the frames that was read.
    pub fn sampled_fraction(&self) -> f64 {
        fraction(self.frames_read, self.frames)
    }
}

/// LRU lists of these frames, and the number of frames read.
///
/// # Errors
/// `Denied` without CAP_SYS_ADMIN.
pub fn lru_state(table: &FrameTable, frames: &FrameSet, closeness: Closeness) -> Result<(ByLruState, u64), Error> {
    let all = frames.len();
    let mut left = frames.iter();
    let (mut found, mut at, mut frames_read) = (ByLruState::default(), 0, 0);
    for pick in picks(0, all, closeness.design(SAMPLED_BLOCKS_OF_SOME, all)) {
        let mut seen = [0; 3];
        for frame in left.by_ref().skip(cast::index(pick.first - at)).take(cast::index(pick.count)) {
            let flags = of_its_block(table, frame, table.flags(frame)?)?;
            seen[lru_state_of(flags) as usize] += 1;
        }
        at = pick.first + pick.count;
        frames_read += pick.count;
        found.add(pick, seen);
    }
    Ok((found, frames_read))
}

/// Quotient of two counts; 1 if `all` is 0.
#[expect(clippy::cast_precision_loss, reason = "numbers of frames, far below 2^52")]
pub fn fraction(part: u64, all: u64) -> f64 {
    if all == 0 { 1.0 } else { part as f64 / all as f64 }
}

/// Flags of the block of a frame. A tail frame of a block may have only flags of its own; then the flags of the head
/// are read. The head lies at a multiple of the block's size, so it is the first head going down.
pub fn of_its_block(table: &FrameTable, frame: u64, flags: FrameFlags) -> Result<FrameFlags, Error> {
    /// Largest block of the kernel: 1 GiB.
    const LARGEST_ORDER: u32 = 18;
    if !flags.is_tail() || flags.is_listed() || flags.is_slab() || flags.is_of_huge_pool() {
        return Ok(flags);
    }
    for start in (1..=LARGEST_ORDER).map(|order| frame >> order << order).filter(|start| *start != frame) {
        let head = table.flags(start)?;
        if !head.is_tail() {
            return Ok(if head.is_head() { head } else { flags });
        }
    }
    Ok(flags)
}

/// Converts frames to bytes.
fn bytes(frames: f64) -> Bytes {
    Pages(1).bytes().scaled(frames.round())
}

impl Closeness {
    fn design(self, blocks: u64, frames: u64) -> Design {
        match self {
            Closeness::Exact => Design::WHOLE,
            Closeness::Sampled { seed } => Design::of_at_most(blocks, frames, seed),
        }
    }
}

#[cfg(test)]
mod tests {
    use linux::kpageflags::bits;

    use super::*;

    const PICK: Pick = Pick { first: 0, count: 8, stands_for: 80 };

    fn of(set: &[u32]) -> Result<Use, Error> {
        Ok(use_of(FrameFlags::of(set.iter().fold(0, |flags, bit| flags | 1 << bit)), false))
    }

    #[test]
    fn a_picked_frame_stands_for_as_many_as_it_was_drawn_from() {
        let mut tally = Tally::default();
        let seen = [of(&[bits::LRU]), of(&[bits::LRU, bits::ACTIVE]), of(&[bits::BUDDY]), of(&[bits::NO_PAGE])];
        tally.add(PICK, seen.into_iter()).unwrap();
        let cache = tally.class(Class::Cache).of_class(Class::Cache, None, Known::Value(0));
        let pages = |n: u64| Pages(n).bytes();
        let (active, idle) = (Known::Value(pages(10)), Known::Value(pages(10)));
        assert_eq!((cache.bytes, cache.active_bytes, cache.idle_bytes), (pages(20), active, idle));
        assert_eq!(tally.rest(Rest::Free).bytes, pages(10));
        assert_eq!(tally.rest(Rest::Slab).bytes, pages(0));
        assert!((tally.sampled_fraction() - 0.1).abs() < 1e-9);
    }
}
