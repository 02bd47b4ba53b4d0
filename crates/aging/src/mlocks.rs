//! Pages kept off the kernel's lists: files mapped by programs, mapped and mlocked by masu as well.
//!
//! `policy` decides the amount. This module executes the decision, and measures the result at the page frames.

mod files;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::time::Duration;

use linux::kpagecgroup::GroupTable;
use linux::kpageflags::FrameTable;
use linux::mounts::{self, Mounts};
use linux::pagemap::Pagemap;
use linux::path_descriptor::PathDescriptor;
use linux::pinned_file::PinnedFile;
use linux::{Error, KernelFiles, Pid, map_files, map_limit, open_files};
use units::{Bytes, Fraction, Pages, cast};

use crate::class::Class;
use crate::left_out::{Cause, Tally};
use crate::levels::{ByClass, Levels};
use crate::mapped::{FileKey, Mapped, MappedFile};
use crate::policy::{self, Candidate};
use crate::ranges::Ranges;
use crate::scan::{Scan, Source};
use crate::shares::{Claim, Owner, Owners, Pieces, divide};
use files::{Refusals, Wanted, has_a_claim, is_of_file};

/// Classes that can be mlocked: pages mapped from files or shared memory.
pub const CLASSES: [Class; 3] = [Class::Code, Class::ReadOnly, Class::Shared];

/// Mlocked pages of masu.
#[derive(Debug)]
pub struct Mlocks {
    files: BTreeMap<FileKey, MlockedFile>,
    /// Files that could not be mlocked.
    refused: Refusals,
    /// Number of files that may be held, at most `most`.
    limit: u64,
    most: u64,
    /// Owners, as last seen.
    owners: Owners,
    /// Fraction of each file charged to each control group (by inode), as last seen; kept without mlocked pages.
    shares: BTreeMap<FileKey, BTreeMap<u64, f64>>,
    frames: FrameTable,
    groups: Option<GroupTable>,
    /// Page tables of masu.
    pagemap: Pagemap,
    /// File measured last, of the unchanged files.
    last_measured: Option<FileKey>,
}

/// One file, mapped by masu.
#[derive(Debug)]
pub struct MlockedFile {
    mapping: PinnedFile,
    owners: Vec<Owner>,
    is_swap_backed: bool,
    /// Mlocked pages by class.
    pages: ByClass<u64>,
    ranges: BTreeMap<Class, Ranges>,
    /// Fraction of the pages that the kernel holds as unevictable, as measured.
    held: f64,
    /// Pages charged to each control group, by its inode.
    charged: BTreeMap<u64, u64>,
}

/// Headroom of a domain for mlocks charged to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MlockHeadroom {
    /// Control groups, by inode, whose pages count; `None`: all.
    pub groups: Option<BTreeSet<u64>>,
    /// Number of additional pages that may be mlocked.
    pub more: Pages,
}

/// Limits of the mlocked amount, in all and by domain.
#[derive(Clone, Copy, Debug)]
pub struct MlockBounds<'a> {
    /// Limit of all mlocked bytes.
    pub all: Bytes,
    /// Additional bytes in one step.
    pub more: Bytes,
    /// Limit of each domain; the first is the host.
    pub domains: &'a [MlockHeadroom],
}

/// Changes of a refresh.
#[derive(Debug, Default)]
pub struct Refreshed {
    /// Newly mlocked bytes.
    pub mlocked: Bytes,
    /// Unlocked bytes: their class has no claim now, or their owner no share.
    pub unlocked: Bytes,
    /// Wanted bytes in memory, not mlocked for lack of budget or headroom.
    pub without: Bytes,
    /// Part of `without` charged to a domain without headroom, by the domain's number.
    pub without_in: Vec<Bytes>,
    /// Bytes of `without`, by owner.
    pub left_out: Tally,
    /// Files that the kernel refused in this call.
    pub refused: Tally,
}

/// Files to open, and the remaining files with their causes.
#[derive(Debug, Default)]
pub struct Admitted {
    /// Files to [open](open_all), and then to [take](Mlocks::take).
    pub missing: Vec<FileKey>,
    /// Unlocked bytes: no process maps the file any more, or its owners have their share.
    pub unlocked: Bytes,
    /// Files that are not held, by cause.
    pub left_out: Tally,
}

impl Mlocks {
    /// Holds no file yet.
    ///
    /// # Errors
    /// `Denied` without CAP_SYS_ADMIN, which the frames' flags ask for.
    pub fn new(files: &impl KernelFiles) -> Result<Mlocks, Error> {
        /// The kernel's default of `vm.max_map_count`.
        const MAPPINGS: u64 = 65_530;
        let most = files::most(open_files::limit(), map_limit::max_map_count(files).unwrap_or(MAPPINGS));
        Ok(Mlocks {
            files: BTreeMap::new(),
            refused: Refusals::default(),
            limit: most,
            most,
            owners: Owners::default(),
            shares: BTreeMap::new(),
            frames: FrameTable::open()?,
            groups: GroupTable::open().ok(),
            pagemap: Pagemap::open(Pid::own())?,
            last_measured: None,
        })
    }

    /// Mlocked bytes of a class, as measured at the frames.
    pub fn bytes_of(&self, class: Class) -> Bytes {
        let held = |file: &MlockedFile| Pages(file.pages.get(class)).bytes().scaled(file.held);
        self.files.values().map(held).sum()
    }

    /// Bytes requested to be mlocked: the amount to unlock when headroom runs short, however much of it the kernel
    /// holds.
    pub fn asked(&self) -> Bytes {
        self.files.values().map(|file| Pages(file.total()).bytes()).sum()
    }

    /// Mlocked bytes.
    pub fn bytes(&self) -> Bytes {
        CLASSES.into_iter().map(|class| self.bytes_of(class)).sum()
    }

    /// Number of files with mlocked pages.
    pub fn files(&self) -> usize {
        self.files.values().filter(|file| file.total() > 0).count()
    }

    /// Mlocked bytes charged to one of these control groups.
    pub fn charged_to(&self, groups: &BTreeSet<u64>) -> Bytes {
        self.files.values().map(|file| file.charged_to(groups)).sum()
    }

    /// Inodes of all control groups charged with pages that are or were mlocked, as long as the file is mapped.
    pub fn known_groups(&self) -> BTreeSet<u64> {
        self.shares.values().flat_map(|shares| shares.keys().copied()).collect()
    }

    /// Inodes of all control groups charged with mlocked pages.
    pub fn charged(&self) -> BTreeSet<u64> {
        self.files.values().flat_map(|file| file.charged.keys().copied()).collect()
    }

    /// Chooses the files to hold, each owner within its share. Releases all others, and also files replaced by another
    /// file of the same name. The result includes the mappings left out while they were read.
    pub fn admit(&mut self, mapped: &mut Mapped, levels: &Levels, now: Duration) -> Admitted {
        let mut admitted = Admitted { left_out: std::mem::take(&mut mapped.left_out), ..Admitted::default() };
        self.refused.count(mapped, now, &mut admitted.left_out);
        let is_mlocked = |key| self.files.get(key).is_some_and(|file| file.total() > 0);
        let wanted = mapped.files.iter().filter(|(key, of)| has_a_claim(of, levels) && !self.refused.has(**key, now));
        let wanted = wanted.map(|(key, _)| Wanted { key: *key, is_mlocked: is_mlocked(key) }).collect();
        let chosen = files::choose(mapped, wanted, self.limit, &mut admitted.left_out);
        let held: BTreeSet<FileKey> = chosen.iter().copied().collect();
        self.files.retain(|key, file| {
            let stays = held.contains(key);
            if !stays {
                admitted.unlocked += Pages(file.total()).bytes();
            }
            stays
        });
        self.shares.retain(|key, _| mapped.files.contains_key(key));
        self.owners = mapped.owners.clone();
        for (key, file) in &mut self.files {
            file.owners = mapped.files.get(key).map_or_else(Vec::new, MappedFile::owners);
        }
        let is_missing = |key: &FileKey| {
            let window = mapped.files.get(key).map(MappedFile::window).unwrap_or_default();
            let ours = self.files.get(key).map(|file| file.mapping.pages());
            ours.is_none_or(|ours| window.start < ours.start || window.end > ours.end)
        };
        admitted.missing = chosen.into_iter().filter(is_missing).collect();
        admitted
    }

    /// Takes opened files; returns the refused ones.
    pub fn take(&mut self, opened: Vec<Opened>, mapped: &Mapped, now: Duration) -> Tally {
        let (mut was_refused, mut left_out) = (false, Tally::default());
        for (key, answer) in opened {
            match answer {
                Ok(file) => {
                    self.files.insert(key, file);
                }
                // Not caused by the file: it is opened again in the next pass, with a lower limit of files.
                Err(NotMlocked::Cause(cause)) if cause.is_of_all() => was_refused = true,
                Err(NotMlocked::Cause(cause)) => self.refused.add_and_count(key, cause, mapped, now, &mut left_out),
                Err(NotMlocked::NeverEvicted) => self.refused.add(key, None, now),
            }
        }
        self.limit = files::adapted(self.limit, self.files.len() as u64, was_refused, self.most);
        left_out
    }

    /// Open files to scan.
    pub fn sources(&self) -> Vec<Source> {
        let source = |(key, file): (&FileKey, &MlockedFile)| Source {
            key: *key,
            file: file.mapping.file(),
            is_swap_backed: file.is_swap_backed,
        };
        self.files.iter().map(source).collect()
    }

    /// Mlocks the wanted pages: of `found`, the classes with a level that are `protected` now, within `bounds`.
    /// Completion may take several calls.
    ///
    /// # Errors
    /// `Denied` without the privilege to lock memory; `Unsupported` by a kernel before Linux 5.14.
    pub fn refresh(
        &mut self,
        scan: &Scan,
        levels: &Levels,
        protected: &ByClass<bool>,
        bounds: MlockBounds<'_>,
        now: Duration,
    ) -> Result<Refreshed, Error> {
        let mut done = Refreshed { without_in: vec![Bytes(0); bounds.domains.len()], ..Refreshed::default() };
        let wanted: Vec<_> = scan.found.iter().filter(|of| protected.get(of.class)).collect();
        let candidates: Vec<Candidate> = wanted
            .iter()
            .filter_map(|of| {
                let file = self.files.get(&of.key);
                let there = file.and_then(|file| file.ranges.get(&of.class));
                let mlocked = there.map_or(0, |there| there.and(&of.resident).pages());
                Some(Candidate {
                    class: of.class,
                    level: levels.get(of.class)?,
                    owners: file.map_or_else(Vec::new, |file| file.owners.clone()),
                    resident: Pages(of.resident.pages()),
                    mlocked: Pages(mlocked),
                    charged: self.charged_in(of.key, bounds.domains),
                })
            })
            .collect();
        let domains: Vec<Pages> = bounds.domains.iter().map(|domain| domain.more).collect();
        let bounds = policy::Bounds { all: bounds.all.pages(), more: bounds.more.pages(), domains: &domains };
        let chosen = policy::choose(&self.owners, &candidates, bounds);
        for (of, chosen) in candidates.iter().zip(&chosen) {
            let without = Pages(of.resident.0 - chosen.0).bytes();
            done.without += without;
            if let Some(owner) = of.owners.first().filter(|_| without > Bytes(0)) {
                done.left_out.add(Cause::Memory, *owner, without);
            }
            let full = of.charged.iter().flat_map(|shares| shares.iter().zip(&domains).enumerate());
            for (nth, (share, _)) in full.filter(|(_, (_, more))| **more == Pages(0)) {
                done.without_in[nth] += without.scaled(share.get());
            }
        }
        // Unlocks before it mlocks.
        let mut to_mlock = Vec::new();
        let mut kept: BTreeSet<(FileKey, Class)> = BTreeSet::new();
        for (wanted, pages) in wanted.iter().zip(chosen) {
            kept.insert((wanted.key, wanted.class));
            let Some(file) = self.files.get_mut(&wanted.key) else { continue };
            let now = file.ranges.get(&wanted.class).cloned().unwrap_or_default();
            // Of the chosen pages, mlocked ones stay first.
            let stays = now.and(&wanted.resident).first(pages.0);
            let more = wanted.resident.without(&now).first(pages.0 - stays.pages());
            done.unlocked += file.unlock(wanted.class, &now.without(&stays))?;
            if !more.is_empty() {
                to_mlock.push((wanted.key, wanted.class, more));
            }
        }
        for (key, file) in &mut self.files {
            for class in CLASSES.into_iter().filter(|class| !kept.contains(&(*key, *class))) {
                let now = file.ranges.get(&class).cloned().unwrap_or_default();
                done.unlocked += file.unlock(class, &now)?;
            }
        }
        let mut changed = BTreeSet::new();
        for (key, class, more) in to_mlock {
            let Some(file) = self.files.get_mut(&key) else { continue };
            match file.mlock(class, &more) {
                Ok(()) => {
                    done.mlocked += Pages(more.pages()).bytes();
                    self.refused.forget(key);
                    changed.insert(key);
                }
                // The file was truncated, or the kernel has no memory for it: it is skipped for a while.
                Err(error) if is_of_file(&error) => {
                    self.files.remove(&key);
                    self.refused.add_and_count(key, Cause::of(&error), &scan.mapped, now, &mut done.refused);
                }
                Err(error) => return Err(error),
            }
        }
        self.measure(changed)?;
        Ok(done)
    }

    /// Closes files without mlocked pages. An open file keeps its memory or disk space after all other processes have
    /// closed it, and our mapping keeps some pages around the unlocked ones.
    pub fn tidy(&mut self) {
        self.files.retain(|_, file| file.total() > 0);
    }

    /// Fraction of a file charged to each domain, if it was measured.
    fn charged_in(&self, key: FileKey, domains: &[MlockHeadroom]) -> Option<Vec<Fraction>> {
        let of_all = || domains.iter().map(|domain| Fraction::clamped(if domain.groups.is_none() { 1.0 } else { 0.0 }));
        if self.groups.is_none() {
            return Some(of_all().collect()); // Nothing tells the charged group.
        }
        let shares = self.shares.get(&key)?;
        let of = |domain: &MlockHeadroom| {
            let Some(groups) = &domain.groups else { return Fraction::clamped(1.0) };
            let ours = shares.iter().filter(|(group, _)| groups.contains(group));
            Fraction::clamped(ours.map(|(_, share)| share).sum())
        };
        Some(domains.iter().map(of).collect())
    }

    /// Asks the frames of changed files, and of some others in rotation: when a group is removed, its pages become charged
    /// to its parent.
    fn measure(&mut self, changed: BTreeSet<FileKey>) -> Result<(), Error> {
        /// Number of unchanged files measured per call.
        const OTHERS: usize = 16;
        let after = self.last_measured.map_or(std::ops::Bound::Unbounded, std::ops::Bound::Excluded);
        let others: Vec<FileKey> =
            self.files.range((after, std::ops::Bound::Unbounded)).take(OTHERS).map(|(key, _)| *key).collect();
        self.last_measured = others.last().filter(|_| others.len() == OTHERS).copied();
        for key in changed.into_iter().chain(others).collect::<BTreeSet<_>>() {
            let Some(file) = self.files.get_mut(&key).filter(|file| file.total() > 0) else { continue };
            let seen = file.measure(&self.pagemap, &self.frames, self.groups.as_ref())?;
            if seen > 0 {
                #[expect(clippy::cast_precision_loss, reason = "a share")]
                let share = |pages: u64| pages as f64 / seen as f64;
                // Pages charged to no group count for the host only.
                self.shares.insert(key, file.charged.iter().map(|(group, pages)| (*group, share(*pages))).collect());
            }
        }
        Ok(())
    }

    /// Unlocks at least this much of the pages charged to these control groups (`None`: to any), and returns the
    /// amount. The owner with most pages unlocks first, its least wanted pages first.
    ///
    /// # Errors
    /// Error of the kernel.
    pub fn unlock(&mut self, least: Bytes, groups: Option<&BTreeSet<u64>>) -> Result<Bytes, Error> {
        let charged = |class, (key, file): (&FileKey, &MlockedFile)| {
            let share = groups.map_or(1.0, |groups| file.share_of(groups));
            (class, *key, Pages(file.pages.get(class)).bytes().scaled(share).pages(), file.owners.clone())
        };
        let all = CLASSES.into_iter().flat_map(|class| self.files.iter().map(move |file| charged(class, file)));
        let all: Vec<_> = all.filter(|(_, _, pages, _)| *pages > Pages(0)).collect();
        let sum: u64 = all.iter().map(|(_, _, pages, _)| pages.0).sum();
        let stays = sum.saturating_sub(least.0.div_ceil(4096));
        let claims: Vec<Claim> =
            all.iter().map(|(_, _, pages, owners)| Claim { owners: owners.clone(), size: pages.0 }).collect();
        let piece = Pieces::Of((stays / 256).max(1));
        let granted = divide(&self.owners, &claims, stays, piece, |_, wanted| wanted);
        let mut gone = Bytes(0);
        for ((class, key, pages, _), stays) in
            all.into_iter().zip(granted).filter(|((_, _, pages, _), stays)| *stays < pages.0)
        {
            let Some(file) = self.files.get_mut(&key) else { continue };
            let now = file.ranges.get(&class).cloned().unwrap_or_default();
            // Its pages are charged to the groups in this proportion.
            let stays = cast::fits(u128::from(now.pages()) * u128::from(stays) / u128::from(pages.0));
            let share = groups.map_or(1.0, |groups| file.share_of(groups));
            gone += file.unlock(class, &now.without(&now.first(stays)))?.scaled(share);
        }
        self.files.retain(|_, file| file.total() > 0);
        Ok(gone)
    }

    /// Releases all pages at once by unmapping, without regard to errors.
    pub fn forget(&mut self) {
        self.files.clear();
    }
}

/// Reason that a file is not mlocked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotMlocked {
    /// The kernel never evicts its pages: a device, a huge page of the pool, or kernel memory mapped by a program.
    NeverEvicted,
    /// Cause from the kernel or the limits.
    Cause(Cause),
}

/// An opened file, or the reason that it was not opened.
pub type Opened = (FileKey, Result<MlockedFile, NotMlocked>);

/// Opens each file through one of the processes that map it, and maps it. Files without a mapping are left out until
/// the next one. Files that are not local are neither opened nor queried: their server may never answer. Stops at the
/// first file that lacks a resource shared by all.
pub fn open_all(files: &impl KernelFiles, missing: &[FileKey], mapped: &Mapped) -> Vec<Opened> {
    /// Number of files held at a time, for one mount table.
    const AT_A_TIME: usize = 256;
    /// Number of processes through which one file is tried.
    const TRIES: usize = 8;
    let mut opened = Vec::new();
    for keys in missing.chunks(AT_A_TIME) {
        let mut tries: Vec<(FileKey, usize)> = keys.iter().map(|key| (*key, 0)).collect();
        for _ in 0..TRIES {
            match open_some(files, &tries, mapped, &mut opened) {
                Ok(unknown) => tries = unknown,
                Err(error) => {
                    opened.extend(tries.drain(..).map(|(key, _)| (key, Err(NotMlocked::Cause(Cause::of(&error))))));
                }
            }
            if tries.is_empty() {
                break;
            }
        }
        opened.extend(tries.into_iter().map(|(key, _)| (key, Err(NotMlocked::Cause(Cause::Unknown)))));
        if opened.iter().any(|(_, answer)| matches!(answer, Err(NotMlocked::Cause(cause)) if cause.is_of_all())) {
            break;
        }
    }
    opened
}

/// Holds all files, then reads the mount table, then opens them: a held file stays on the mount that the table names.
/// Each file comes with the index of the first process to try. Returns the files without a mount in the table.
fn open_some(
    files: &impl KernelFiles,
    tries: &[(FileKey, usize)],
    mapped: &Mapped,
    opened: &mut Vec<Opened>,
) -> Result<Vec<(FileKey, usize)>, Error> {
    let mut mounts = Mounts::read(files)?;
    let mut held = Vec::new();
    for (key, first) in tries {
        match mapped.files.get(key).map(|of| hold(files, *key, of, *first, &mut mounts)) {
            Some(Ok(Some((nth, place)))) => held.push((*key, nth, place)),
            Some(Err(why)) => opened.push((*key, Err(why))),
            // No process is left; the mounts seen through the first ones were in no table.
            Some(Ok(None)) if *first > 0 => opened.push((*key, Err(NotMlocked::Cause(Cause::Unknown)))),
            Some(Ok(None)) | None => {}
        }
    }
    let mut unknown = Vec::new();
    let mut mounts = Mounts::read(files)?;
    for (key, nth, place) in held {
        let Some(of) = mapped.files.get(&key) else { continue };
        let answer = match map_files::open(files, place, &mut mounts) {
            Ok(map_files::MappedFile::Open { file, is_swap_backed }) => MlockedFile::map(&file, is_swap_backed, of),
            Ok(map_files::MappedFile::NotLocal(kind)) if kind == mounts::UNKNOWN => {
                unknown.push((key, nth + 1));
                continue;
            }
            Ok(map_files::MappedFile::NotLocal(_)) => Err(NotMlocked::Cause(Cause::Served)),
            Err(Error::Gone(_)) => continue,
            Err(Error::Unsupported(_)) => Err(NotMlocked::NeverEvicted),
            Err(error) => Err(NotMlocked::Cause(Cause::of(&error))),
        };
        opened.push((key, answer));
    }
    Ok(unknown)
}

/// Holds a file through one process that maps it, from the `first` on, and returns its index; `None` if all have ended.
fn hold(
    files: &impl KernelFiles,
    key: FileKey,
    mapped: &MappedFile,
    first: usize,
    mounts: &mut Mounts,
) -> Result<Option<(usize, PathDescriptor)>, NotMlocked> {
    if !mapped.path.bytes().starts_with(b"/") {
        return Err(NotMlocked::NeverEvicted); // anon_inode:[io_uring]
    }
    let mut answer = Ok(None);
    for (nth, (pid, range)) in mapped.through.iter().enumerate().skip(first) {
        match mounts.of_device(files, *pid, key.device) {
            Some(found) if !found.is_local => return Err(NotMlocked::Cause(Cause::Served)),
            _ => {}
        }
        match PathDescriptor::of_mapping(*pid, *range) {
            Ok(place) => return Ok(Some((nth, place))),
            Err(Error::Gone(_)) => {}
            Err(error) => answer = Err(NotMlocked::Cause(Cause::of(&error))),
        }
    }
    answer
}

impl MlockedFile {
    /// Maps a file to its end: the kernel does not mlock a large folio that is mapped in part.
    fn map(file: &File, is_swap_backed: bool, mapped: &MappedFile) -> Result<MlockedFile, NotMlocked> {
        let length = Pages(file.metadata().map_or(0, |file| file.len().div_ceil(4096)));
        let mapping = PinnedFile::map(file, files::window(mapped, length));
        Ok(MlockedFile {
            mapping: mapping.map_err(|error| NotMlocked::Cause(Cause::of(&error)))?,
            owners: mapped.owners(),
            is_swap_backed,
            pages: ByClass::default(),
            ranges: BTreeMap::new(),
            held: 1.0,
            charged: BTreeMap::new(),
        })
    }

    fn total(&self) -> u64 {
        CLASSES.into_iter().map(|class| self.pages.get(class)).sum()
    }

    fn mlock(&mut self, class: Class, ranges: &Ranges) -> Result<(), Error> {
        for range in ranges.iter() {
            self.mapping.pin(range.clone())?;
            self.ranges.entry(class).or_default().insert(range);
        }
        self.count(class);
        Ok(())
    }

    fn unlock(&mut self, class: Class, ranges: &Ranges) -> Result<Bytes, Error> {
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

    /// Reads the state and the charged group of some frames: some 2 µs each. Returns the number of pages that they
    /// represent.
    fn measure(&mut self, pagemap: &Pagemap, frames: &FrameTable, groups: Option<&GroupTable>) -> Result<u64, Error> {
        /// Frames read per file, and one more per this number of pages: no group's part of a large file is missed.
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
                held += u64::from(frames.flags(frame)?.is_locked());
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

    /// Fraction of it charged to these groups.
    fn share_of(&self, groups: &BTreeSet<u64>) -> f64 {
        let all = Pages(self.total()).bytes();
        if all == Bytes(0) { 0.0 } else { (1.0 + self.charged_to(groups).growth_over(all)).clamp(0.0, 1.0) }
    }
}
