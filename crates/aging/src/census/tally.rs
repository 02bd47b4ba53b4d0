//! Counters of frames by use.

use std::collections::{BTreeMap, BTreeSet};

use linux::Error;
use linux::kpagecgroup::GroupTable;
use linux::kpageflags::{FrameFlags, FrameTable};
use linux::probe::Known;
use units::{Bytes, Pages, cast};

use super::code::Code;
use super::frame_set::FrameSet;
use super::processes::HostFrames;
use super::{Closeness, OfClass, OfRest};
use crate::class::{Class, LruState, Rest, Use, is_lazily_freed, lru_state_of, use_of};
use crate::sample::{Design, Pick, Sum, picks, picks_of_all};

/// Number of blocks in a sample, for a host of any size: about 20 ms.
const SAMPLED_BLOCKS: u64 = 8192;

/// Smaller number of blocks for scattered frames: each costs a system call.
const SAMPLED_BLOCKS_OF_SOME: u64 = 2048;

/// Growth of a sample that is too small for a group.
const GROWTH: u64 = 8;

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
    lazily_freed: Sum,
}

/// Frames of one class in a pick.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    by_state: [u64; 3],
    lazily_freed: u64,
}

impl Seen {
    /// Counts a frame that is on a list.
    pub fn count(&mut self, flags: FrameFlags) {
        self.by_state[lru_state_of(flags) as usize] += 1;
        self.lazily_freed += u64::from(is_lazily_freed(flags));
    }

    fn frames(&self) -> u64 {
        self.by_state.iter().sum()
    }
}

impl ByLruState {
    /// Adds the frames of a pick. Picks come in order.
    pub fn add(&mut self, pick: Pick, seen: Seen) {
        self.all.add(pick, seen.frames());
        self.by_state.iter_mut().zip(seen.by_state).for_each(|(sum, seen)| sum.add(pick, seen));
        self.lazily_freed.add(pick, seen.lazily_freed);
    }

    /// Estimated number of frames, and its 95 % confidence bound.
    fn frames(&self) -> (f64, f64) {
        (self.all.frames(), self.by_state.iter().map(Sum::bound).fold(self.all.bound(), f64::max))
    }

    /// Report of a class. `no_lists`: reason that the kernel has no active list.
    pub fn of_class(&self, class: Class, no_lists: Option<&str>, refaults: Known<u64>) -> OfClass {
        let amount = |lru_state: LruState| bytes(self.by_state[lru_state as usize].frames());
        let listed =
            |lru_state| no_lists.map_or_else(|| Known::Value(amount(lru_state)), |why| Known::Unknown(why.to_owned()));
        let (frames, bound) = self.frames();
        OfClass {
            class,
            bytes: bytes(frames),
            active_bytes: listed(LruState::Active),
            inactive_bytes: listed(LruState::Idle),
            idle_bytes: listed(LruState::Idle),
            locked_bytes: amount(LruState::Locked),
            lazily_freed_bytes: bytes(self.lazily_freed.frames()),
            error_bound_bytes: bytes(bound),
            refaults,
        }
    }
}

impl Tally {
    /// Counts the frames of the host.
    ///
    /// # Errors
    /// `Denied` without CAP_SYS_ADMIN.
    pub fn of_host(host: HostFrames<'_>, code: &Code, closeness: Closeness) -> Result<Tally, Error> {
        Tally::of(host, code, None, closeness, SAMPLED_BLOCKS)
    }

    /// Counts the frames charged to some groups. The sample grows until each class that matters is known well.
    ///
    /// # Errors
    /// `Denied` without CAP_SYS_ADMIN.
    pub fn of_groups(
        host: HostFrames<'_>,
        code: &Code,
        only: &Charged<'_>,
        closeness: Closeness,
    ) -> Result<Tally, Error> {
        let mut blocks = SAMPLED_BLOCKS;
        loop {
            let tally = Tally::of(host, code, Some(only), closeness, blocks)?;
            if tally.frames_read == tally.frames || is_near(&tally.classes.map(|class| class.frames())) {
                return Ok(tally);
            }
            blocks = blocks.saturating_mul(GROWTH);
        }
    }

    fn of(
        host: HostFrames<'_>,
        code: &Code,
        only: Option<&Charged<'_>>,
        closeness: Closeness,
        blocks: u64,
    ) -> Result<Tally, Error> {
        let HostFrames { table, memory } = host;
        let mut tally = Tally::default();
        let (mut flags, mut groups) = (Vec::new(), Vec::new());
        for pick in picks_of_all(memory.ranges(), closeness.design(blocks, memory.frames())) {
            let count = cast::index(pick.count);
            flags.clear();
            if let Some(only) = only {
                groups.clear();
                only.table.read_into(pick.first, count, &mut groups)?;
            }
            if only.is_none_or(|only| groups.iter().any(|group| only.groups.contains(group))) {
                table.read_into(pick.first, count, &mut flags)?;
            }
            let is_meant = |index: usize| {
                only.is_none_or(|only| groups.get(index).is_some_and(|group| only.groups.contains(group)))
            };
            let meant = (pick.first..).zip(&flags).enumerate().filter(|(index, _)| is_meant(*index));
            let frames = meant.map(|(_, (frame, flags))| {
                let flags = of_its_block(table, frame, *flags)?;
                Ok((code.flags(frame, flags), code.frames.contains(frame)))
            });
            tally.add(pick, frames)?;
        }
        Ok(tally)
    }

    /// Adds the frames of `pick` by their flags, and whether they are code.
    fn add(
        &mut self,
        pick: Pick,
        frames: impl Iterator<Item = Result<(FrameFlags, bool), Error>>,
    ) -> Result<(), Error> {
        let mut classes = [Seen::default(); Class::ALL.len()];
        let mut rest = [0; Rest::ALL.len()];
        for found in frames {
            let (flags, is_code) = found?;
            match use_of(flags, is_code) {
                Use::Aged(class, _) => classes[class as usize].count(flags),
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

/// Sums of many groups during one scan.
#[derive(Debug, Default)]
pub struct GroupTally {
    /// By the index of the group.
    groups: BTreeMap<usize, [ByLruState; Class::ALL.len()]>,
    /// Groups of the last pick: a group that is in none of two neighbouring picks need not be added.
    before: BTreeSet<usize>,
    /// Number of frames read.
    pub frames_read: u64,
    /// Number of frames.
    pub frames: u64,
}

impl GroupTally {
    /// Counts the frames of the host for the groups in `counted_for`, by the inode that a frame is charged to.
    ///
    /// # Errors
    /// `Denied` without CAP_SYS_ADMIN.
    pub fn of(
        HostFrames { table, memory }: HostFrames<'_>,
        code: &Code,
        charged: &GroupTable,
        counted_for: &BTreeMap<u64, BTreeSet<usize>>,
        closeness: Closeness,
    ) -> Result<GroupTally, Error> {
        let mut tally = GroupTally::default();
        let (mut flags, mut inodes) = (Vec::new(), Vec::new());
        for pick in picks_of_all(memory.ranges(), closeness.design(SAMPLED_BLOCKS * GROWTH, memory.frames())) {
            let count = cast::index(pick.count);
            flags.clear();
            table.read_into(pick.first, count, &mut flags)?;
            inodes.clear();
            charged.read_into(pick.first, count, &mut inodes)?;
            let mut seen: BTreeMap<usize, [Seen; Class::ALL.len()]> = BTreeMap::new();
            for ((frame, flags), inode) in (pick.first..).zip(&flags).zip(&inodes) {
                let Some(groups) = counted_for.get(inode) else { continue };
                let flags = code.flags(frame, of_its_block(table, frame, *flags)?);
                if let Use::Aged(class, _) = use_of(flags, code.frames.contains(frame)) {
                    groups.iter().for_each(|group| seen.entry(*group).or_default()[class as usize].count(flags));
                }
            }
            tally.add(pick, &seen);
        }
        Ok(tally)
    }

    fn add(&mut self, pick: Pick, seen: &BTreeMap<usize, [Seen; Class::ALL.len()]>) {
        let now: BTreeSet<usize> = seen.keys().copied().collect();
        let nothing = [Seen::default(); Class::ALL.len()];
        for group in now.union(&self.before) {
            let is_late = self.frames_read > 0 && !self.groups.contains_key(group);
            let sums = self.groups.entry(*group).or_default();
            if is_late {
                // It was not in the pick before.
                sums.iter_mut().for_each(|sum| sum.add(pick, Seen::default()));
            }
            let seen = seen.get(group).unwrap_or(&nothing);
            sums.iter_mut().zip(seen).for_each(|(sum, seen)| sum.add(pick, *seen));
        }
        self.before = now;
        self.frames_read += pick.count;
        self.frames += pick.stands_for;
    }

    /// Sums of a group; `None` if no frame of it was seen.
    pub fn of_group(&self, group: usize) -> Option<&[ByLruState; Class::ALL.len()]> {
        self.groups.get(&group)
    }
}

/// Whether each class that makes up a sixteenth or more is known to an eighth. Frames and their 95 % bound, by class.
fn is_near(classes: &[(f64, f64)]) -> bool {
    let all: f64 = classes.iter().map(|(frames, _)| frames).sum();
    all > 0.0 && classes.iter().all(|(frames, bound)| *frames < all / 16.0 || *bound <= frames / 8.0)
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
        let mut seen = Seen::default();
        for frame in left.by_ref().skip(cast::index(pick.first - at)).take(cast::index(pick.count)) {
            let flags = of_its_block(table, frame, table.flags(frame)?)?;
            seen.count(flags);
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
    use proptest::prelude::*;

    use super::*;

    const PICK: Pick = Pick { first: 0, count: 8, stands_for: 80 };

    fn of(set: &[u32]) -> Result<(FrameFlags, bool), Error> {
        Ok((FrameFlags::of(set.iter().fold(0, |flags, bit| flags | 1 << bit)), false))
    }

    #[test]
    fn a_sample_is_too_small_while_a_class_that_matters_may_be_off_by_more_than_an_eighth() {
        assert!(is_near(&[(800.0, 100.0), (3200.0, 400.0)]));
        assert!(!is_near(&[(800.0, 101.0), (3200.0, 400.0)]));
        // A class of less than a sixteenth does not matter; no frame at all says nothing.
        assert!(is_near(&[(100.0, 1000.0), (3200.0, 400.0)]));
        assert!(!is_near(&[(0.0, 0.0), (0.0, 0.0)]));
    }

    proptest! {
        #[test]
        fn a_group_is_known_as_well_as_if_it_was_counted_alone(seen in prop::collection::vec(prop::option::of(1u64..8), 1..60)) {
            let (mut together, mut alone) = (GroupTally::default(), ByLruState::default());
            for (number, seen) in (0u64..).zip(&seen) {
                let pick = Pick { first: number * 80, ..PICK };
                let of = |frames| Seen { by_state: [frames, 0, 0], lazily_freed: 0 };
                let mut classes = [Seen::default(); Class::ALL.len()];
                classes[Class::Data as usize] = of(seen.unwrap_or(0));
                let groups = seen.map(|_| (7, classes)).into_iter().chain([(8, classes)]).collect();
                together.add(pick, &groups);
                alone.add(pick, of(seen.unwrap_or(0)));
            }
            let of = |group| together.of_group(group).map(|sums| sums[Class::Data as usize].frames());
            let expected = alone.frames();
            prop_assert_eq!(of(8), Some(expected));
            prop_assert_eq!(of(7).unwrap_or(expected), expected);
        }
    }

    #[test]
    fn lazily_freed_pages_are_data_and_counted_apart() {
        let mut tally = Tally::default();
        let seen = [of(&[bits::LRU, bits::ANON]), of(&[bits::LRU, bits::ANON, bits::SWAP_BACKED]), of(&[bits::LRU])];
        tally.add(PICK, seen.into_iter()).unwrap();
        let data = tally.class(Class::Data).of_class(Class::Data, None, Known::Value(0));
        assert_eq!((data.bytes, data.lazily_freed_bytes), (Pages(20).bytes(), Pages(10).bytes()));
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
