//! Pages that are kept off the kernel's lists: files that programs have mapped, mapped and locked by us as well.
//!
//! What is to be pinned is decided in `policy`; this does it, and measures at the page frames what became of it.

use std::collections::{BTreeMap, BTreeSet};

use linux::kpagecgroup::GroupTable;
use linux::kpageflags::FrameTable;
use linux::pinned_file::PinnedFile;
use linux::{Error, map_files};
use quantities::{Bytes, Pages};

use crate::class::Class;
use crate::dials::{ByClass, Dials};
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
    refused: BTreeMap<FileKey, String>,
    /// What of the classes that have a dial was in memory, also of files that are not mapped by us.
    seen: BTreeMap<(FileKey, Class), Seen>,
    frames: FrameTable,
    groups: Option<GroupTable>,
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

/// What is known of the pages of one class.
#[derive(Debug, Default)]
struct Seen {
    resident: Ranges,
    gone: Ranges,
}

impl Seen {
    /// Pages that had gone and are back.
    fn look(&mut self, resident: &Ranges) -> u64 {
        self.resident.without(resident).iter().for_each(|range| self.gone.insert(range));
        let back = self.gone.and(resident);
        back.iter().for_each(|range| self.gone.remove(&range));
        self.resident = resident.clone();
        back.pages()
    }
}

/// What a refresh did.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Refreshed {
    /// Newly pinned.
    pub pinned: Bytes,
    /// No longer pinned: nobody maps it any more, or its class has no claim to it now.
    pub let_go: Bytes,
    /// Wanted, in memory, and not pinned for want of room in the budget or in memory.
    pub without: Bytes,
    /// Pages that had been in memory, had gone, and are back, by class.
    pub refaults: ByClass<u64>,
    /// Files that could not be pinned, and why; each once.
    pub refused: Vec<(String, String)>,
}

impl Pins {
    /// None yet.
    ///
    /// # Errors
    /// `Denied` without CAP_SYS_ADMIN, which the frames' flags ask for.
    pub fn new() -> Result<Pins, Error> {
        let frames = FrameTable::open()?;
        let (files, refused, seen) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Ok(Pins { files, refused, seen, frames, groups: GroupTable::open().ok() })
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

    /// The inodes of all control groups that are charged with what is pinned.
    pub fn charged(&self) -> BTreeSet<u64> {
        self.files.values().flat_map(|file| file.charged.keys().copied()).collect()
    }

    /// The files of which something may be pinned and that are to be [opened](open) before the next [`Pins::refresh`].
    pub fn missing(&self, mapped: &BTreeMap<FileKey, MappedFile>, dials: &Dials) -> Vec<FileKey> {
        let is_missing = |key: &FileKey, of: &MappedFile| {
            has_a_claim(of, dials)
                && !self.refused.contains_key(key)
                && self.files.get(key).is_none_or(|file| file.mapping.pages() < Pages(of.end()))
        };
        mapped.iter().filter(|(key, of)| is_missing(key, of)).map(|(key, _)| *key).collect()
    }

    /// Makes what is pinned what it should be: of what is `mapped` and was `opened`, now or earlier, the classes that have a dial
    /// and are `protected` now, at most `most` in all. Those with a dial are watched in any case.
    ///
    /// # Errors
    /// `Denied` without the privilege to lock memory; `Unsupported` by a kernel before Linux 5.14.
    pub fn refresh(
        &mut self,
        mapped: &BTreeMap<FileKey, MappedFile>,
        opened: Vec<(FileKey, Result<Pinned, String>)>,
        dials: &Dials,
        protected: &ByClass<bool>,
        most: Bytes,
    ) -> Result<Refreshed, Error> {
        let mut done = Refreshed::default();
        // Whatever nobody maps any more is of no class of ours: also a file that was replaced by another under its name.
        self.files.retain(|key, file| {
            let stays = mapped.contains_key(key);
            if !stays {
                done.let_go += Pages(file.total()).bytes();
            }
            stays
        });
        self.refused.retain(|key, _| mapped.contains_key(key));
        self.seen.retain(|(key, _), _| mapped.contains_key(key));
        for (key, why) in self.take(opened) {
            done.refused.push((mapped.get(&key).map_or_else(String::new, |file| file.path.clone()), why));
        }
        let mut wanted = self.wanted(mapped, dials)?;
        for of in &wanted {
            let class = of.candidate.class;
            let back = self.seen.entry((of.key, class)).or_default().look(&of.resident);
            done.refaults.set(class, done.refaults.get(class) + back);
        }
        wanted.retain(|of| protected.get(of.candidate.class));
        let candidates: Vec<Candidate> = wanted.iter().map(|wanted| wanted.candidate).collect();
        let chosen = policy::choose(&candidates, Pages(most.0 / 4096));
        let all: u64 = candidates.iter().map(|of| of.resident.0).sum();
        done.without = Pages(all - chosen.iter().map(|pages| pages.0).sum::<u64>()).bytes();
        // First what makes room, then what takes it.
        let mut to_pin = Vec::new();
        let mut kept: BTreeSet<(FileKey, Class)> = BTreeSet::new();
        for (wanted, pages) in wanted.iter().zip(chosen) {
            kept.insert((wanted.key, wanted.candidate.class));
            let Some(file) = self.files.get_mut(&wanted.key) else { continue };
            let class = wanted.candidate.class;
            let now = file.ranges.get(&class).cloned().unwrap_or_default();
            // Of what is chosen, what is pinned comes first.
            let stays = now.and(&wanted.resident).first(pages.0);
            let more = wanted.resident.without(&now).first(pages.0 - stays.pages());
            done.let_go += file.unpin(class, &now.without(&stays))?;
            if !more.is_empty() {
                to_pin.push((wanted.key, class, more));
            }
        }
        for (key, file) in &mut self.files {
            for class in CLASSES.into_iter().filter(|class| !kept.contains(&(*key, *class))) {
                let now = file.ranges.get(&class).cloned().unwrap_or_default();
                done.let_go += file.unpin(class, &now)?;
            }
        }
        let pins_more: BTreeSet<FileKey> = to_pin.iter().map(|(key, ..)| *key).collect();
        // A file that is open for nothing would keep its memory, or its space, when all others have closed it; and our mapping a
        // little of what lay around what was pinned.
        self.files.retain(|key, file| file.total() > 0 || pins_more.contains(key));
        for (key, class, more) in to_pin {
            let Some(file) = self.files.get_mut(&key) else { continue };
            match file.pin(class, &more) {
                Ok(()) => {
                    done.pinned += Pages(more.pages()).bytes();
                }
                // The file was cut short, or there are too many mappings: without it, then.
                Err(error @ Error::Other(_)) => {
                    let path = mapped.get(&key).map_or_else(String::new, |file| file.path.clone());
                    done.refused.push((path, error.to_string()));
                    self.files.remove(&key);
                    self.refused.insert(key, error.to_string());
                }
                Err(error) => return Err(error),
            }
        }
        // Whom they are charged to changes when a group is removed: then it is the one above.
        for file in self.files.values_mut() {
            file.measure(&self.frames, self.groups.as_ref())?;
        }
        Ok(done)
    }

    /// How many pages of each class that has a dial are mapped and in memory. Nothing is pinned by this.
    ///
    /// # Errors
    /// As [`Pins::refresh`].
    pub fn resident(&mut self, mapped: &BTreeMap<FileKey, MappedFile>, dials: &Dials) -> Result<ByClass<u64>, Error> {
        self.take(open_all(&self.missing(mapped, dials), mapped));
        let mut found = ByClass::default();
        for Wanted { candidate: Candidate { class, resident, .. }, .. } in self.wanted(mapped, dials)? {
            found.set(class, found.get(class) + resident.0);
        }
        Ok(found)
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

    /// Those that could not be opened, and why.
    fn take(&mut self, opened: Vec<(FileKey, Result<Pinned, String>)>) -> Vec<(FileKey, String)> {
        let mut refused = Vec::new();
        for (key, answer) in opened {
            match answer {
                Ok(file) => {
                    self.files.insert(key, file);
                }
                Err(why) => {
                    self.refused.insert(key, why.clone());
                    refused.push((key, why));
                }
            }
        }
        refused
    }

    /// What of each file could be pinned, by class, and is in memory.
    fn wanted(&self, mapped: &BTreeMap<FileKey, MappedFile>, dials: &Dials) -> Result<Vec<Wanted>, Error> {
        let mut found = Vec::new();
        for (key, file) in &self.files {
            let Some(mapped) = mapped.get(key) else { continue };
            for (class, ranges) in by_class(mapped, file.is_swap_backed) {
                let Some(dial) = dials.get(class) else { continue };
                let mut resident = Ranges::default();
                for range in ranges.iter() {
                    // What cannot be told now is told at the next look.
                    let there = file.mapping.resident(range).unwrap_or_default();
                    there.into_iter().for_each(|run| resident.insert(run));
                }
                let pinned = file.ranges.get(&class).map_or(0, |now| now.and(&resident).pages());
                let candidate = Candidate { class, dial, resident: Pages(resident.pages()), pinned: Pages(pinned) };
                found.push(Wanted { key: *key, candidate, resident });
            }
        }
        Ok(found)
    }
}

/// Opens a file through one of those who have it mapped, and maps it, too; `None` when they have ended meanwhile. This may wait for
/// whoever serves the file. Nothing else here does, for a file that is served is not pinned: to look at it may mean to wait as
/// well, and whoever waits cannot let go.
///
/// # Errors
/// Why it cannot be pinned, for people.
pub fn open(mapped: &MappedFile) -> Result<Option<Pinned>, String> {
    let mut answer = Ok(None);
    for (pid, range) in &mapped.through {
        match map_files::open(*pid, *range) {
            Ok(found) if found.is_served => {
                return Err("it comes from a server, and masu would wait with it if that does not answer".to_owned());
            }
            Ok(found) => {
                // To its end: of a large folio that is mapped in part the kernel holds nothing.
                let length = found.file.metadata().map_or(0, |file| file.len().div_ceil(4096));
                let mapping = PinnedFile::map(&found.file, Pages(mapped.end().max(length)));
                return Ok(Some(Pinned {
                    mapping: mapping.map_err(|error| error.to_string())?,
                    is_swap_backed: found.is_swap_backed,
                    pages: ByClass::default(),
                    ranges: BTreeMap::new(),
                    held: 1.0,
                    charged: BTreeMap::new(),
                }));
            }
            Err(Error::Gone(_)) => {}
            Err(error) => answer = Err(error.to_string()),
        }
    }
    answer
}

/// Opens these. Those that nobody maps any more are left out, and asked for again if somebody does.
pub fn open_all(missing: &[FileKey], mapped: &BTreeMap<FileKey, MappedFile>) -> Vec<(FileKey, Result<Pinned, String>)> {
    let opened = |key: &FileKey| Some((*key, open(mapped.get(key)?).transpose()?));
    missing.iter().filter_map(opened).collect()
}

/// May something of the file be pinned, whatever it turns out to be?
fn has_a_claim(mapped: &MappedFile, dials: &Dials) -> bool {
    let has = |class| dials.get(class).is_some();
    (has(Class::Code) && !mapped.code.is_empty()) || has(Class::ReadOnly) || has(Class::Shared)
}

/// One class of one file.
#[derive(Debug)]
struct Wanted {
    key: FileKey,
    candidate: Candidate,
    resident: Ranges,
}

/// The pages of a file by class.
fn by_class(mapped: &MappedFile, is_swap_backed: bool) -> Vec<(Class, Ranges)> {
    if is_swap_backed {
        return vec![(Class::Shared, mapped.all.clone())];
    }
    vec![(Class::Code, mapped.code.clone()), (Class::ReadOnly, mapped.all.without(&mapped.code))]
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

    /// Asks some frames whether they are held, and whom they are charged to.
    fn measure(&mut self, frames: &FrameTable, groups: Option<&GroupTable>) -> Result<(), Error> {
        /// Frames that are asked of one file, whatever its size.
        const MOST: u64 = 512;
        let total = self.total();
        let step = total.div_ceil(MOST).max(1);
        let (mut nth, mut asked, mut held, mut charged) = (0u64, 0u64, 0u64, BTreeMap::<u64, u64>::new());
        for range in self.ranges.values().flat_map(Ranges::iter) {
            self.mapping.frames(range, |frame| {
                nth += 1;
                if nth % step != 0 {
                    return Ok(());
                }
                asked += 1;
                held += u64::from(frames.flags(frame)?.is_held());
                let mut group = Vec::new();
                if let Some(groups) = groups {
                    groups.read_into(frame, 1, &mut group)?;
                }
                group
                    .into_iter()
                    .filter(|group| *group != 0)
                    .for_each(|group| *charged.entry(group).or_default() += step);
                Ok(())
            })?;
        }
        #[expect(clippy::cast_precision_loss, reason = "at most some thousand")]
        let part = if asked == 0 { 0.0 } else { held as f64 / asked as f64 };
        (self.held, self.charged) = (part, charged);
        Ok(())
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

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init, reason = "one run is meant")]
mod tests {
    use super::*;

    #[test]
    fn a_page_that_had_gone_and_is_back_is_a_refault_and_a_new_one_is_not() {
        let mut seen = Seen::default();
        let look = |seen: &mut Seen, ranges: &[std::ops::Range<u64>]| seen.look(&ranges.iter().cloned().collect());
        assert_eq!(look(&mut seen, &[0..10]), 0);
        assert_eq!(look(&mut seen, &[0..4]), 0);
        assert_eq!(look(&mut seen, &[0..8, 20..30]), 4);
        assert_eq!(look(&mut seen, &[0..10, 20..30]), 2);
        assert_eq!(look(&mut seen, &[0..10, 20..30]), 0);
    }

    #[test]
    fn shared_memory_is_shared_memory_whoever_runs_it() {
        let mapped = MappedFile {
            path: String::new(),
            through: Vec::new(),
            code: std::iter::once(2..4).collect(),
            all: std::iter::once(0..8).collect(),
        };
        let of = |swap_backed| {
            by_class(&mapped, swap_backed)
                .into_iter()
                .map(|(class, ranges)| (class, ranges.pages()))
                .collect::<Vec<_>>()
        };
        assert_eq!(of(true), [(Class::Shared, 8)]);
        assert_eq!(of(false), [(Class::Code, 2), (Class::ReadOnly, 6)]);
    }
}
