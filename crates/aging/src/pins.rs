//! Pages that are kept off the kernel's lists: files that programs have mapped, mapped and locked by us as well.
//!
//! What is to be pinned is decided in `policy`; this does it, and measures at the page frames what became of it.

use std::collections::{BTreeMap, BTreeSet};

use linux::kpagecgroup::GroupTable;
use linux::kpageflags::FrameTable;
use linux::pagemap::Pagemap;
use linux::pinned_file::PinnedFile;
use linux::{Error, Pid, map_files};
use quantities::{Bytes, Fraction, Pages};

use crate::class::Class;
use crate::dials::{ByClass, Dials};
use crate::look::{Look, Source};
use crate::mapped::{FileKey, MappedFile};
use crate::policy::{self, Candidate};
use crate::ranges::Ranges;

/// The classes that can be pinned: those that are mapped from files or shared memory.
pub const CLASSES: [Class; 3] = [Class::Code, Class::ReadOnly, Class::Shared];

/// What we have pinned.
#[derive(Debug)]
pub struct Pins {
    files: BTreeMap<FileKey, Pinned>,
    /// Files that cannot be pinned, so that each is tried once.
    refused: BTreeSet<FileKey>,
    /// The part of each file that is charged to each control group, by its inode, as last seen; also while nothing of it is pinned.
    shares: BTreeMap<FileKey, BTreeMap<u64, f64>>,
    frames: FrameTable,
    groups: Option<GroupTable>,
    /// Our own page tables.
    pagemap: Pagemap,
    /// The file that was measured last, of those that take turns.
    turn: Option<FileKey>,
}

/// One file, mapped by us.
#[derive(Debug)]
pub struct Pinned {
    mapping: PinnedFile,
    is_swap_backed: bool,
    /// By class, what is pinned.
    pages: ByClass<u64>,
    ranges: BTreeMap<Class, Ranges>,
    /// The part of its pages that the kernel holds as unevictable, as measured.
    held: f64,
    /// Pages charged to each control group, by its inode.
    charged: BTreeMap<u64, u64>,
}

/// A room, as what is charged to it may be pinned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PinRoom {
    /// Whose pages count; `None`: everybody's.
    pub groups: Option<BTreeSet<u64>>,
    /// How many more may be pinned.
    pub more: Pages,
}

/// How much may be pinned, and where.
#[derive(Clone, Copy, Debug)]
pub struct PinBounds<'a> {
    /// In all.
    pub all: Bytes,
    /// More than is pinned now, at a time.
    pub more: Bytes,
    /// What is charged to each room; the first is the host's.
    pub rooms: &'a [PinRoom],
}

/// What was pinned and let go.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Refreshed {
    /// Newly pinned.
    pub pinned: Bytes,
    /// No longer pinned: its class has no claim to it now.
    pub let_go: Bytes,
    /// Wanted, in memory, and not pinned for want of room in the budget or in memory.
    pub without: Bytes,
    /// What of that is charged to a room that may have none of it, by the room's number.
    pub without_in: Vec<Bytes>,
    /// Files that could not be pinned, and why; each once.
    pub refused: Vec<(String, String)>,
}

/// What became of what is mapped.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Taken {
    /// No longer pinned: nobody maps it any more.
    pub let_go: Bytes,
    /// Files that could not be pinned, and why; each once.
    pub refused: Vec<(String, String)>,
}

impl Pins {
    /// None yet.
    ///
    /// # Errors
    /// `Denied` without CAP_SYS_ADMIN, which the frames' flags ask for.
    pub fn new() -> Result<Pins, Error> {
        let (files, refused, shares) = (BTreeMap::new(), BTreeSet::new(), BTreeMap::new());
        let (frames, groups, pagemap) = (FrameTable::open()?, GroupTable::open().ok(), Pagemap::open(Pid::own())?);
        Ok(Pins { files, refused, shares, frames, groups, pagemap, turn: None })
    }

    /// How much is pinned of a class, as measured at the frames.
    pub fn bytes_of(&self, class: Class) -> Bytes {
        let held = |file: &Pinned| Pages(file.pages.get(class)).bytes().scaled(file.held);
        self.files.values().map(held).sum()
    }

    /// How much was asked to be pinned: what must be let go if room gets scarce, whatever part of it is held.
    pub fn asked(&self) -> Bytes {
        self.files.values().map(|file| Pages(file.total()).bytes()).sum()
    }

    /// How much is pinned.
    pub fn bytes(&self) -> Bytes {
        CLASSES.into_iter().map(|class| self.bytes_of(class)).sum()
    }

    /// How many files have pinned pages.
    pub fn files(&self) -> usize {
        self.files.values().filter(|file| file.total() > 0).count()
    }

    /// How much is pinned that is charged to one of these control groups.
    pub fn charged_to(&self, groups: &BTreeSet<u64>) -> Bytes {
        self.files.values().map(|file| file.charged_to(groups)).sum()
    }

    /// The inodes of all control groups that are charged with what is pinned or was, as far as it is mapped.
    pub fn known_groups(&self) -> BTreeSet<u64> {
        self.shares.values().flat_map(|shares| shares.keys().copied()).collect()
    }

    /// The inodes of all control groups that are charged with what is pinned.
    pub fn charged(&self) -> BTreeSet<u64> {
        self.files.values().flat_map(|file| file.charged.keys().copied()).collect()
    }

    /// The files of which something may be pinned and that are to be [opened](open) before they are [taken](Pins::take).
    pub fn missing(&self, mapped: &BTreeMap<FileKey, MappedFile>, dials: &Dials) -> Vec<FileKey> {
        let is_missing = |key: &FileKey, of: &MappedFile| {
            has_a_claim(of, dials)
                && !self.refused.contains(key)
                && self.files.get(key).is_none_or(|file| file.mapping.pages() < Pages(of.end()))
        };
        mapped.iter().filter(|(key, of)| is_missing(key, of)).map(|(key, _)| *key).collect()
    }

    /// Takes what was opened of what is `mapped`, and lets go of whatever is not any more: also of a file that was replaced by another
    /// under its name.
    pub fn take(
        &mut self,
        mapped: &BTreeMap<FileKey, MappedFile>,
        opened: Vec<(FileKey, Result<Pinned, NotPinned>)>,
    ) -> Taken {
        let mut taken = Taken::default();
        self.files.retain(|key, file| {
            let stays = mapped.contains_key(key);
            if !stays {
                taken.let_go += Pages(file.total()).bytes();
            }
            stays
        });
        self.refused.retain(|key| mapped.contains_key(key));
        self.shares.retain(|key, _| mapped.contains_key(key));
        for (key, answer) in opened {
            match answer {
                Ok(file) => {
                    self.files.insert(key, file);
                }
                Err(why) => {
                    self.refused.insert(key);
                    if let NotPinned::Because(why) = why {
                        let path = mapped.get(&key).map_or_else(String::new, |file| file.path.to_string());
                        taken.refused.push((path, why));
                    }
                }
            }
        }
        taken
    }

    /// The files that are open, to be looked at.
    pub fn sources(&self) -> Vec<Source> {
        let source = |(key, file): (&FileKey, &Pinned)| Source {
            key: *key,
            file: file.mapping.file(),
            is_swap_backed: file.is_swap_backed,
        };
        self.files.iter().map(source).collect()
    }

    /// Makes what is pinned what it should be: of what was found, the classes that have a dial and are `protected` now, within
    /// `bounds`. It may take several calls.
    ///
    /// # Errors
    /// `Denied` without the privilege to lock memory; `Unsupported` by a kernel before Linux 5.14.
    pub fn refresh(
        &mut self,
        look: &Look,
        dials: &Dials,
        protected: &ByClass<bool>,
        bounds: PinBounds<'_>,
    ) -> Result<Refreshed, Error> {
        let mut done = Refreshed { without_in: vec![Bytes(0); bounds.rooms.len()], ..Refreshed::default() };
        let wanted: Vec<_> = look.found.iter().filter(|of| protected.get(of.class)).collect();
        let candidates: Vec<Candidate> = wanted
            .iter()
            .filter_map(|of| {
                let now = self.files.get(&of.key).and_then(|file| file.ranges.get(&of.class));
                let pinned = now.map_or(0, |now| now.and(&of.resident).pages());
                Some(Candidate {
                    class: of.class,
                    dial: dials.get(of.class)?,
                    resident: Pages(of.resident.pages()),
                    pinned: Pages(pinned),
                    charged: self.charged_in(of.key, bounds.rooms),
                })
            })
            .collect();
        let rooms: Vec<Pages> = bounds.rooms.iter().map(|room| room.more).collect();
        let bounds = policy::Bounds { all: bounds.all.pages(), more: bounds.more.pages(), rooms: &rooms };
        let chosen = policy::choose(&candidates, bounds);
        for (of, chosen) in candidates.iter().zip(&chosen) {
            let without = Pages(of.resident.0 - chosen.0).bytes();
            done.without += without;
            let full = of.charged.iter().flat_map(|shares| shares.iter().zip(&rooms).enumerate());
            for (nth, (share, _)) in full.filter(|(_, (_, more))| **more == Pages(0)) {
                done.without_in[nth] += without.scaled(share.get());
            }
        }
        // First what makes room, then what takes it.
        let mut to_pin = Vec::new();
        let mut kept: BTreeSet<(FileKey, Class)> = BTreeSet::new();
        for (wanted, pages) in wanted.iter().zip(chosen) {
            kept.insert((wanted.key, wanted.class));
            let Some(file) = self.files.get_mut(&wanted.key) else { continue };
            let now = file.ranges.get(&wanted.class).cloned().unwrap_or_default();
            // Of what is chosen, what is pinned comes first.
            let stays = now.and(&wanted.resident).first(pages.0);
            let more = wanted.resident.without(&now).first(pages.0 - stays.pages());
            done.let_go += file.unpin(wanted.class, &now.without(&stays))?;
            if !more.is_empty() {
                to_pin.push((wanted.key, wanted.class, more));
            }
        }
        for (key, file) in &mut self.files {
            for class in CLASSES.into_iter().filter(|class| !kept.contains(&(*key, *class))) {
                let now = file.ranges.get(&class).cloned().unwrap_or_default();
                done.let_go += file.unpin(class, &now)?;
            }
        }
        let mut changed = BTreeSet::new();
        for (key, class, more) in to_pin {
            let Some(file) = self.files.get_mut(&key) else { continue };
            match file.pin(class, &more) {
                Ok(()) => {
                    done.pinned += Pages(more.pages()).bytes();
                    changed.insert(key);
                }
                // The file was cut short, or there are too many mappings: without it, then.
                Err(error @ Error::Other(_)) => {
                    let path = look.mapped.get(&key).map_or_else(String::new, |file| file.path.to_string());
                    done.refused.push((path, error.to_string()));
                    self.files.remove(&key);
                    self.refused.insert(key);
                }
                Err(error) => return Err(error),
            }
        }
        self.measure(changed)?;
        Ok(done)
    }

    /// Closes the files of which nothing is pinned: one that is open for nothing would keep its memory, or its space, when all others
    /// have closed it; and our mapping a little of what lay around what was pinned.
    pub fn tidy(&mut self) {
        self.files.retain(|_, file| file.total() > 0);
    }

    /// The part of a file that is charged to each room, if it was seen.
    fn charged_in(&self, key: FileKey, rooms: &[PinRoom]) -> Option<Vec<Fraction>> {
        let of_all = || rooms.iter().map(|room| Fraction::clamped(if room.groups.is_none() { 1.0 } else { 0.0 }));
        if self.groups.is_none() {
            return Some(of_all().collect()); // Nobody says who is charged.
        }
        let shares = self.shares.get(&key)?;
        let of = |room: &PinRoom| {
            let Some(groups) = &room.groups else { return Fraction::clamped(1.0) };
            let ours = shares.iter().filter(|(group, _)| groups.contains(group));
            Fraction::clamped(ours.map(|(_, share)| share).sum())
        };
        Some(rooms.iter().map(of).collect())
    }

    /// Asks the frames of what has changed, and of some others in turns: whom they are charged to changes when a group is removed, to
    /// the one above.
    fn measure(&mut self, changed: BTreeSet<FileKey>) -> Result<(), Error> {
        /// Files that take turns at a time.
        const TURNS: usize = 16;
        let after = self.turn.map_or(std::ops::Bound::Unbounded, std::ops::Bound::Excluded);
        let turns: Vec<FileKey> =
            self.files.range((after, std::ops::Bound::Unbounded)).take(TURNS).map(|(key, _)| *key).collect();
        self.turn = turns.last().filter(|_| turns.len() == TURNS).copied();
        for key in changed.into_iter().chain(turns).collect::<BTreeSet<_>>() {
            let Some(file) = self.files.get_mut(&key).filter(|file| file.total() > 0) else { continue };
            let seen = file.measure(&self.pagemap, &self.frames, self.groups.as_ref())?;
            if seen > 0 {
                #[expect(clippy::cast_precision_loss, reason = "a share")]
                let share = |pages: u64| pages as f64 / seen as f64;
                // What is charged to nobody is the host's alone.
                self.shares.insert(key, file.charged.iter().map(|(group, pages)| (*group, share(*pages))).collect());
            }
        }
        Ok(())
    }

    /// Lets go of at least so much of what is charged to these control groups (`None`: to anybody), least wanted first, and says
    /// how much it was.
    ///
    /// # Errors
    /// The kernel's answer.
    pub fn let_go(&mut self, least: Bytes, groups: Option<&BTreeSet<u64>>) -> Result<Bytes, Error> {
        let mut gone = Bytes(0);
        for class in CLASSES.into_iter().rev() {
            for file in self.files.values_mut() {
                let share = groups.map_or(1.0, |groups| file.share_of(groups));
                let now = file.ranges.get(&class).cloned().unwrap_or_default();
                if gone >= least || share <= 0.0 || now.is_empty() {
                    continue;
                }
                gone += file.unpin(class, &now)?.scaled(share);
            }
        }
        self.files.retain(|_, file| file.total() > 0);
        Ok(gone)
    }

    /// Lets all go at once, whatever the kernel says: with the mappings.
    pub fn forget(&mut self) {
        self.files.clear();
    }
}

/// Why a file is not pinned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotPinned {
    /// The kernel never takes its pages: a device, a huge page of the pool, memory of the kernel that a program has mapped.
    NeverTaken,
    /// For people.
    Because(String),
}

/// Opens a file through one of those who have it mapped, and maps it, too; `None` when they have ended meanwhile. This may wait for
/// whoever serves the file. Nothing else here does, for a file that is served is not pinned: to look at it may mean to wait as
/// well, and whoever waits cannot let go.
///
/// # Errors
/// Why it is not pinned.
pub fn open(mapped: &MappedFile) -> Result<Option<Pinned>, NotPinned> {
    let mut answer = Ok(None);
    for (pid, range) in &mapped.through {
        match map_files::open(*pid, *range) {
            Ok(found) if found.is_served => {
                let why = "it comes from a server, and masu would wait with it if that does not answer";
                return Err(NotPinned::Because(why.to_owned()));
            }
            Ok(found) => {
                // To its end: of a large folio that is mapped in part the kernel holds nothing.
                let length = found.file.metadata().map_or(0, |file| file.len().div_ceil(4096));
                let mapping = PinnedFile::map(&found.file, Pages(mapped.end().max(length)));
                return Ok(Some(Pinned {
                    mapping: mapping.map_err(|error| NotPinned::Because(error.to_string()))?,
                    is_swap_backed: found.is_swap_backed,
                    pages: ByClass::default(),
                    ranges: BTreeMap::new(),
                    held: 1.0,
                    charged: BTreeMap::new(),
                }));
            }
            Err(Error::Gone(_)) => {}
            Err(Error::Unsupported(_)) => return Err(NotPinned::NeverTaken),
            Err(error) => answer = Err(NotPinned::Because(error.to_string())),
        }
    }
    answer
}

/// Opens these. Those that nobody maps any more are left out, and asked for again if somebody does.
pub fn open_all(
    missing: &[FileKey],
    mapped: &BTreeMap<FileKey, MappedFile>,
) -> Vec<(FileKey, Result<Pinned, NotPinned>)> {
    let opened = |key: &FileKey| Some((*key, open(mapped.get(key)?).transpose()?));
    missing.iter().filter_map(opened).collect()
}

/// May something of the file be pinned, whatever it turns out to be?
fn has_a_claim(mapped: &MappedFile, dials: &Dials) -> bool {
    let has = |class| dials.get(class).is_some();
    (has(Class::Code) && !mapped.code.is_empty()) || has(Class::ReadOnly) || has(Class::Shared)
}

impl Pinned {
    fn total(&self) -> u64 {
        CLASSES.into_iter().map(|class| self.pages.get(class)).sum()
    }

    fn pin(&mut self, class: Class, ranges: &Ranges) -> Result<(), Error> {
        for range in ranges.iter() {
            self.mapping.pin(range.clone())?;
            self.ranges.entry(class).or_default().insert(range);
        }
        self.count(class);
        Ok(())
    }

    fn unpin(&mut self, class: Class, ranges: &Ranges) -> Result<Bytes, Error> {
        for range in ranges.iter() {
            self.mapping.unpin(range.clone())?;
            self.ranges.entry(class).or_default().remove(&range);
        }
        self.count(class);
        if self.total() == 0 && !ranges.is_empty() {
            self.charged.clear();
        }
        Ok(Pages(ranges.pages()).bytes())
    }

    fn count(&mut self, class: Class) {
        let pages = self.ranges.get(&class).map_or(0, Ranges::pages);
        self.pages.set(class, pages);
    }

    /// Asks some frames whether they are held, and whom they are charged to: some 2 µs each. Returns for how many pages they stand.
    fn measure(&mut self, pagemap: &Pagemap, frames: &FrameTable, groups: Option<&GroupTable>) -> Result<u64, Error> {
        /// Frames that are asked of any file, and one more for so many pages, so that no group's part of a large one is overlooked.
        const OF_EACH: u64 = 128;
        const ONE_MORE: u64 = 2048;
        let total = self.total();
        let step = total.div_ceil(OF_EACH + total / ONE_MORE).max(1);
        let (mut asked, mut held, mut charged, mut group) = (0u64, 0u64, BTreeMap::<u64, u64>::new(), Vec::new());
        let mut skip = step / 2;
        for range in self.ranges.values().flat_map(Ranges::iter) {
            let length = range.end - range.start;
            while skip < length {
                let frame = self.mapping.frame(pagemap, range.start + skip)?;
                skip += step;
                let Some(frame) = frame else { continue };
                asked += 1;
                held += u64::from(frames.flags(frame)?.is_held());
                group.clear();
                if let Some(groups) = groups {
                    groups.read_into(frame, 1, &mut group)?;
                }
                group.iter().filter(|group| **group != 0).for_each(|group| *charged.entry(*group).or_default() += step);
            }
            skip -= length;
        }
        #[expect(clippy::cast_precision_loss, reason = "at most some hundred")]
        let part = if asked == 0 { 0.0 } else { held as f64 / asked as f64 };
        (self.held, self.charged) = (part, charged);
        Ok(asked * step)
    }

    fn charged_to(&self, groups: &BTreeSet<u64>) -> Bytes {
        Pages(self.charged.iter().filter(|(group, _)| groups.contains(group)).map(|(_, pages)| *pages).sum()).bytes()
    }

    /// The part of it that is charged to these.
    fn share_of(&self, groups: &BTreeSet<u64>) -> f64 {
        let all = Pages(self.total()).bytes();
        if all == Bytes(0) { 0.0 } else { (1.0 + self.charged_to(groups).growth_over(all)).clamp(0.0, 1.0) }
    }
}
