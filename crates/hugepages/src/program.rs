//! One running program as the loop sees it: its mappings, its windows, and advice on them.
//!
//! A trait, so that the loop runs in tests over a model whose advice fails, whose windows split by themselves and
//! whose process ends half-way.

mod lazily_freed;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use access::PageSet;
use access::frames::WindowFrames;
use access::residency::{Viewer, WindowState};
use linux::halted::{Halted, Looks};
use linux::maps::Mapping;
use linux::preallocated_page;
use linux::process_madvise::{Advice, advise};
use linux::smaps::{VmFlag, VmFlags};
use linux::{Error, KernelFiles, Pid, cgroup, maps, smaps, status, thp_stats, vmstat};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use units::{Address, AddressRange, Bytes, Pages, Window};

use crate::count;
use crate::refusal::Traits;

pub use lazily_freed::LazilyFreed;

/// The loop's interface to a program.
pub trait Program {
    /// Its mappings, in order of address.
    ///
    /// # Errors
    /// `Gone` when it ended.
    fn mappings(&self) -> Result<Vec<Mapping>, Error>;

    /// Makes [`Program::state`] refer to the address space that the program has now. True when that is another one
    /// than before (exec).
    ///
    /// # Errors
    /// `Gone` when it ended.
    fn renew(&self) -> Result<bool, Error>;

    /// Contents of one window, now, in the address space of the last [`Program::renew`], as the kernel reports them
    /// under its lock; `None` when the program has another address space since (exec). Advice acts on that other one.
    ///
    /// # Errors
    /// `Gone` when it ended.
    fn state(&self, window: Window) -> Result<Option<WindowState>, Error>;

    /// Preallocates the next promotion's huge page: found, and backed by the host, so that the program need not wait
    /// for that. May be slow; after a failure the promotion itself has to find the page.
    fn preallocate(&self);

    /// Frees an unused preallocated page.
    fn free_preallocated(&self);

    /// Gives advice about a part of its memory.
    ///
    /// # Errors
    /// The kernel's answer.
    fn advise(&self, range: AddressRange, advice: Advice) -> Result<(), Errno>;

    /// Its resident memory, quickly; the kernel's counters may lag by a few pages a processor.
    ///
    /// # Errors
    /// `Gone` when it ended.
    fn resident(&self) -> Result<Bytes, Error>;

    /// Its resident memory, counted page by page.
    ///
    /// # Errors
    /// `Gone` when it ended.
    fn resident_exact(&self) -> Result<Bytes, Error>;

    /// Headroom below the limit of its memory cgroup; `None` without a limit.
    fn cgroup_headroom(&self) -> Option<Bytes>;

    /// Whether the program used MADV_NOHUGEPAGE on the mapping around this window. Asked after a refusal, and in a
    /// dry run.
    fn forbids(&self, window: Window) -> bool;

    /// Properties of the mapping around this window. Asked after a refusal.
    fn traits(&self, window: Window) -> Traits {
        Traits { forbidden: self.forbids(window), ..Traits::default() }
    }

    /// Cause for which it cannot run at present, and so touches nothing.
    fn halted(&self) -> Option<Halted> {
        None
    }

    /// Frames of a window; `None` where they are hidden, or after an exec.
    ///
    /// # Errors
    /// `Gone` when it ended.
    fn frames(&self, window: Window) -> Result<Option<WindowFrames>, Error> {
        let _ = window;
        Ok(None)
    }

    /// First frame of a huge window; `None` where frames are hidden, or after an exec.
    ///
    /// # Errors
    /// `Gone` when it ended.
    fn first_frame(&self, window: Window) -> Result<Option<u64>, Error> {
        let _ = window;
        Ok(None)
    }

    /// Addresses of the huge pages with these first frames, by frame: of those that are huge pages still, and that the
    /// program maps, by one entry or page by page. Empty where frames are hidden.
    ///
    /// # Errors
    /// `Gone` when it ended.
    fn find_huge_pages(&self, frames: &BTreeSet<u64>) -> Result<BTreeMap<u64, Address>, Error> {
        let _ = frames;
        Ok(BTreeMap::new())
    }

    /// Resident pages in a range, without the zero page; `None` after an exec.
    ///
    /// # Errors
    /// `Gone` when it ended.
    fn resident_in(&self, range: AddressRange) -> Result<Option<Pages>, Error> {
        let _ = range;
        Ok(None)
    }

    /// First page of a window in memory, in the address space of the last [`Program::renew`].
    ///
    /// # Errors
    /// `Gone` when it ended.
    fn first_present(&self, window: Window) -> Result<Option<usize>, Error> {
        let _ = window;
        Ok(Some(0))
    }

    /// Windows of private anonymous memory that are resident in part and not huge, with their resident pages, by rising
    /// address: each may be the rest of a huge page.
    ///
    /// # Errors
    /// `Gone` when it ended.
    fn holed_windows(&self) -> Result<Vec<(Window, Pages)>, Error> {
        Ok(Vec::new())
    }

    /// Huge pages of the host with a part unmapped; `None` if the kernel does not count them (before Linux 6.12).
    fn torn_on_host(&self) -> Option<u64> {
        None
    }

    /// Huge pages of the host of which a part was unmapped, since boot; `None` if the kernel does not count them.
    fn torn_so_far(&self) -> Option<u64> {
        None
    }

    /// Huge pages split on the host since boot; `None` if the kernel does not count them.
    fn splits_of_host(&self) -> Option<u64> {
        None
    }

    /// Huge mappings split on the host since boot; `None` if the kernel does not count them. A mapping that is removed
    /// whole is not split.
    fn mapping_splits_of_host(&self) -> Option<u64> {
        None
    }

    /// Resident memory that was freed lazily (MADV_FREE), as last read: the kernel may take it at any time.
    ///
    /// # Errors
    /// `Gone` when the process ended.
    fn lazily_freed_bytes(&self) -> Result<Bytes, Error> {
        Ok(Bytes(0))
    }

    /// Resident pages of a window that were freed lazily (MADV_FREE), and those that may have been: some were written
    /// since and are the program's again.
    ///
    /// # Errors
    /// `Gone` when it ended.
    fn lazily_freed(&self, window: Window) -> Result<PageSet, Error> {
        let _ = window;
        Ok(PageSet::EMPTY)
    }

    /// Resident pages of a window that were freed lazily at some time since they came. All of them may be in use again.
    ///
    /// # Errors
    /// `Gone` when it ended.
    fn once_lazily_freed(&self, window: Window) -> Result<PageSet, Error> {
        let _ = window;
        Ok(PageSet::EMPTY)
    }
}

/// A process of this host.
#[derive(Debug)]
pub struct RunningProgram<F> {
    pid: Pid,
    files: F,
    pidfd: OwnedFd,
    viewer: RefCell<Viewer>,
    has_preallocated: Cell<bool>,
    /// Mappings that matter here, and the end of their validity.
    marked: RefCell<Option<(Instant, Vec<Marked>)>>,
    lazily_freed: LazilyFreed,
    /// Headroom of its memory cgroup, and the time of the reading.
    headroom: Cell<Option<(Instant, Option<Bytes>)>>,
    looks: RefCell<Looks>,
}

/// A mapping with a property that only smaps shows.
#[derive(Clone, Copy, Debug)]
struct Marked {
    range: AddressRange,
    /// MADV_NOHUGEPAGE.
    unwanted: bool,
    /// Some of its pages were freed lazily.
    lazily_freed: bool,
    traits: Traits,
}

fn traits_of(flags: VmFlags) -> Traits {
    let watched = [VmFlag::UffdMissing, VmFlag::UffdWriteProtect, VmFlag::UffdMinor];
    Traits {
        forbidden: flags.contains(VmFlag::NoHugePage),
        locked: flags.contains(VmFlag::Locked),
        user_faults: watched.into_iter().any(|flag| flags.contains(flag)),
        mergeable: flags.contains(VmFlag::Mergeable),
    }
}

/// Validity of one reading of a cgroup's headroom, if it found more than could be used up meanwhile. It takes a
/// dozen files, and windows come by the hundred in a second.
const READ_AGAIN_AFTER: Duration = Duration::from_secs(1);

/// A thousand windows; masu promotes half of that in a second.
const AMPLE: Bytes = Bytes::gib(2);

impl<F: KernelFiles> RunningProgram<F> {
    /// Opens it.
    ///
    /// # Errors
    /// `Gone`, or `Denied` without ptrace access.
    pub fn open(files: F, pid: Pid) -> Result<RunningProgram<F>, Error> {
        let viewer = RefCell::new(Viewer::open(pid)?);
        let pidfd = pid.open()?;
        Ok(RunningProgram {
            pid,
            files,
            pidfd,
            viewer,
            has_preallocated: Cell::default(),
            marked: RefCell::default(),
            lazily_freed: LazilyFreed::default(),
            headroom: Cell::default(),
            looks: RefCell::default(),
        })
    }

    fn read_marked(&self) -> Vec<Marked> {
        let details = smaps::details(&self.files, self.pid).unwrap_or_default().into_iter();
        let marked = details.map(|detail| Marked {
            range: detail.mapping.range,
            unwanted: detail.flags.contains(VmFlag::NoHugePage),
            lazily_freed: detail.lazy_free.is_some_and(|bytes| bytes > Bytes(0)),
            traits: traits_of(detail.flags),
        });
        marked.filter(|one| one.lazily_freed || one.traits != Traits::default()).collect()
    }

    /// Whether a mapping with this property overlaps a window.
    fn is_marked(&self, window: Window, property: impl Fn(&Marked) -> bool) -> bool {
        let mut read = self.marked.borrow_mut();
        if read.as_ref().is_none_or(|(until, _)| Instant::now() > *until) {
            // Reading smaps walks all page tables under the program's lock: a tenth of the time at most.
            let begun = Instant::now();
            let marked = self.read_marked();
            *read = Some((Instant::now() + READ_AGAIN_AFTER.max(begun.elapsed() * 10), marked));
        }
        let around = |one: &&Marked| one.range.intersection(window.range()).is_some();
        read.as_ref().is_some_and(|(_, marked)| marked.iter().filter(around).any(property))
    }

    fn has_ended(&self) -> bool {
        poll(&mut [PollFd::new(&self.pidfd, PollFlags::IN)], Some(&Timespec::default())).is_ok_and(|ended| ended > 0)
    }

    /// Becomes readable when the process ends.
    pub fn pidfd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }
}

impl<F: KernelFiles> Program for RunningProgram<F> {
    fn mappings(&self) -> Result<Vec<Mapping>, Error> {
        maps::maps(&self.files, self.pid)
    }

    fn renew(&self) -> Result<bool, Error> {
        if self.viewer.borrow().is_current()? {
            return Ok(false);
        }
        let viewer = Viewer::open(self.pid)?;
        // The number may belong to another process by now, and an ending process has no memory.
        if self.has_ended() || !viewer.is_current()? {
            return Err(Error::of_process("read", format!("the memory of process {}", self.pid), Errno::SRCH));
        }
        *self.viewer.borrow_mut() = viewer;
        self.lazily_freed.clear();
        Ok(true)
    }

    fn state(&self, window: Window) -> Result<Option<WindowState>, Error> {
        match self.viewer.borrow().window(window) {
            // The open file refers to the address space of its opening.
            Err(error) if error.is_gone() && !self.has_ended() => Ok(None),
            state => state.map(Some),
        }
    }

    fn preallocate(&self) {
        if !self.has_preallocated.get() {
            self.has_preallocated.set(preallocated_page::prepare(self.pid).is_ok());
        }
    }

    fn free_preallocated(&self) {
        if self.has_preallocated.replace(false) {
            preallocated_page::release(self.pid);
        }
    }

    fn advise(&self, range: AddressRange, advice: Advice) -> Result<(), Errno> {
        if advice == Advice::Collapse {
            self.has_preallocated.set(false);
        }
        let accepted = advise(self.pid, self.pidfd.as_fd(), &[range], advice)?;
        if accepted == range.bytes() { Ok(()) } else { Err(Errno::AGAIN) }
    }

    fn resident(&self) -> Result<Bytes, Error> {
        Ok(status::status(&self.files, self.pid)?.rss)
    }

    fn resident_exact(&self) -> Result<Bytes, Error> {
        Ok(smaps::rollup(&self.files, self.pid)?.rss)
    }

    fn cgroup_headroom(&self) -> Option<Bytes> {
        let ample = |headroom: Option<Bytes>| headroom.is_none_or(|headroom| headroom >= AMPLE);
        let last = self.headroom.get().filter(|(when, headroom)| when.elapsed() < READ_AGAIN_AFTER && ample(*headroom));
        if let Some((_, headroom)) = last {
            return headroom;
        }
        // A cgroup that cannot be read gives us no limit to respect; the kernel still enforces it.
        let headroom = cgroup::memory(&self.files, self.pid).ok().flatten().and_then(|memory| memory.headroom());
        self.headroom.set(Some((Instant::now(), headroom)));
        headroom
    }

    fn forbids(&self, window: Window) -> bool {
        self.is_marked(window, |one| one.unwanted && one.range.covers(window.range()))
    }

    fn traits(&self, window: Window) -> Traits {
        let has = |property: &dyn Fn(&Traits) -> bool| self.is_marked(window, |one| property(&one.traits));
        Traits {
            forbidden: self.forbids(window),
            locked: has(&|traits| traits.locked),
            user_faults: has(&|traits| traits.user_faults),
            mergeable: has(&|traits| traits.mergeable),
        }
    }

    fn halted(&self) -> Option<Halted> {
        self.looks.borrow_mut().look(&self.files, self.pid)
    }

    fn frames(&self, window: Window) -> Result<Option<WindowFrames>, Error> {
        match self.viewer.borrow().frames(window) {
            Err(error) if error.is_gone() && !self.has_ended() => Ok(None),
            frames => frames,
        }
    }

    fn first_frame(&self, window: Window) -> Result<Option<u64>, Error> {
        match self.viewer.borrow().first_frame(window) {
            Err(error) if error.is_gone() && !self.has_ended() => Ok(None),
            frame => frame,
        }
    }

    fn find_huge_pages(&self, frames: &BTreeSet<u64>) -> Result<BTreeMap<u64, Address>, Error> {
        let viewer = self.viewer.borrow();
        let frames: BTreeSet<u64> = frames.iter().copied().filter(|frame| viewer.is_huge_page(*frame)).collect();
        let mut found = BTreeMap::new();
        if frames.is_empty() {
            return Ok(found);
        }
        for mapping in self.mappings()?.iter().filter(|mapping| mapping.is_anonymous()) {
            match viewer.find_frames(mapping.range, &frames) {
                Err(error) if error.is_gone() && !self.has_ended() => break,
                addresses => found.extend(addresses?),
            }
        }
        Ok(found)
    }

    fn resident_in(&self, range: AddressRange) -> Result<Option<Pages>, Error> {
        match self.viewer.borrow().resident_in(range) {
            Err(error) if error.is_gone() && !self.has_ended() => Ok(None),
            pages => pages.map(Some),
        }
    }

    fn first_present(&self, window: Window) -> Result<Option<usize>, Error> {
        match self.viewer.borrow().first_present(window) {
            Err(error) if error.is_gone() && !self.has_ended() => Ok(None),
            first => first,
        }
    }

    fn holed_windows(&self) -> Result<Vec<(Window, Pages)>, Error> {
        match count::holed_windows(&self.files, self.pid) {
            Err(error) if error.is_gone() && !self.has_ended() => Ok(Vec::new()),
            holed => holed,
        }
    }

    fn torn_on_host(&self) -> Option<u64> {
        thp_stats::partially_mapped(&self.files).ok()
    }

    fn torn_so_far(&self) -> Option<u64> {
        vmstat::vmstat(&self.files).ok()?.thp_deferred_split_page
    }

    fn splits_of_host(&self) -> Option<u64> {
        vmstat::vmstat(&self.files).ok()?.thp_split_page
    }

    fn mapping_splits_of_host(&self) -> Option<u64> {
        vmstat::vmstat(&self.files).ok()?.thp_split_pmd
    }

    fn lazily_freed_bytes(&self) -> Result<Bytes, Error> {
        self.lazily_freed.bytes(&self.files, self.pid)
    }

    fn lazily_freed(&self, window: Window) -> Result<PageSet, Error> {
        if !self.lazily_freed.may_be(&self.files, self.pid)? {
            return Ok(PageSet::EMPTY);
        }
        self.once_lazily_freed(window)
    }

    fn once_lazily_freed(&self, window: Window) -> Result<PageSet, Error> {
        if let Some(frames) = self.frames(window)? {
            return Ok(frames.lazily_freed);
        }
        // Hidden frames: the mapping has such pages, and any page may be one.
        let may_be = self.is_marked(window, |one| one.lazily_freed);
        Ok(if may_be { PageSet::FULL } else { PageSet::EMPTY })
    }
}
