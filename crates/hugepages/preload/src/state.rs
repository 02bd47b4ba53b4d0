//! State of the hooks: a few words, set once at the start and read without a lock. Zeros mean: pass everything
//! through.

use core::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU32, AtomicUsize, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};

use contract::image::LeftOut;
use contract::placement::{self, Size, Sizes};
use contract::status_page::{Kind, ProcessSlot, StatusPage, Switches, WORDS};

use crate::kernel;

/// The only instance.
pub static STATE: State = State {
    kib: AtomicU32::new(0),
    align: AtomicBool::new(false),
    stack: AtomicBool::new(false),
    status_page: AtomicPtr::new(core::ptr::null_mut()),
    slot: AtomicUsize::new(NO_SLOT),
    process: AtomicU32::new(NO_PROCESS),
    forked: AtomicBool::new(false),
};

const NO_SLOT: usize = usize::MAX;
const NO_PROCESS: u32 = 0;

/// See [`STATE`].
#[derive(Debug)]
pub struct State {
    /// Available sizes: the sum of their KiB, each a power of two. Zero without a request.
    kib: AtomicU32,
    /// Alignment while there is no slot with a switch.
    align: AtomicBool,
    stack: AtomicBool,
    status_page: AtomicPtr<AtomicU32>,
    slot: AtomicUsize,
    /// Owner of the slot: this process's own id.
    process: AtomicU32,
    /// Set in a forked child of the process that began the program.
    forked: AtomicBool,
}

impl State {
    /// Begins: hooks act from here on.
    pub fn begin(&self, sizes: Sizes, align: bool, stack: bool) {
        self.align.store(align, Relaxed);
        self.stack.store(stack, Relaxed);
        self.kib.store(sizes.iter().map(Size::kib).sum(), Release);
    }

    /// Ends: hooks pass everything through, and nothing is done at the exit.
    pub fn stop(&self) {
        self.kib.store(0, Release);
        self.stack.store(false, Relaxed);
        self.slot.store(NO_SLOT, Relaxed);
    }

    /// True from the beginning to the end: not before the start, and not in a sandboxed program.
    pub fn is_acting(&self) -> bool {
        self.kib.load(Acquire) != 0
    }

    /// Available sizes; none before the start, or without a request.
    pub fn sizes(&self) -> Sizes {
        let mut left = self.kib.load(Acquire);
        let mut sizes = Sizes::NONE;
        while left != 0 {
            let kib = 1 << left.trailing_zeros();
            left &= !kib;
            if let Some(size) = Size::of_kib(kib) {
                sizes = sizes.with(size);
            }
        }
        sizes
    }

    /// Whether mappings are aligned now.
    pub fn align(&self) -> bool {
        match self.slot() {
            Some(slot) => slot.switches().align(),
            None => self.align.load(Relaxed),
        }
    }

    /// Whether stacks are advised.
    pub fn stack(&self) -> bool {
        self.stack.load(Relaxed)
    }

    /// Uses the status page at `start`, and takes a slot on it under masu's id for this process.
    ///
    /// # Safety
    /// `status_page::BYTES` are mapped there, shared and writable, for as long as the process lives.
    pub unsafe fn use_status_page(&self, start: usize, process: u32) {
        self.status_page.store(core::ptr::with_exposed_provenance_mut(start), Release);
        self.take_slot(process);
    }

    /// Takes a slot for this process: at the start, and in a child after fork, which must not count in its parent's.
    pub fn take_slot(&self, process: u32) {
        let Some(status_page) = self.status_page() else { return };
        let align = self.align();
        self.align.store(align, Relaxed);
        self.process.store(kernel::process().unwrap_or(NO_PROCESS), Relaxed);
        self.slot.store(status_page.take_slot(process, Switches::new(align)).unwrap_or(NO_SLOT), Relaxed);
    }

    /// Notes in a forked child that the program was begun by another process.
    pub fn is_forked(&self) {
        self.forked.store(true, Relaxed);
    }

    /// Counts this program as left out from now on. A forked child is a program of its own then: its parent goes on.
    pub fn count_left_out(&self, why: LeftOut) {
        let Some(page) = self.status_page() else { return };
        if self.forked.load(Relaxed) {
            page.count_program();
        }
        page.count_left_out(why);
    }

    /// True in the process that took the slot; false in a child created without the C library.
    pub fn owns_slot(&self) -> bool {
        kernel::process() == Some(self.process.load(Relaxed))
    }

    /// Status page, if there is one.
    pub fn status_page(&self) -> Option<StatusPage<'static>> {
        let words = self.status_page.load(Acquire);
        if words.is_null() {
            return None;
        }
        // SAFETY: set by `use_status_page`, whose caller guarantees this number of words for the life of the process;
        // atomics may be shared with other processes.
        StatusPage::of(unsafe { core::slice::from_raw_parts(words, WORDS) })
    }

    /// Slot of this process.
    pub fn slot(&self) -> Option<ProcessSlot<'static>> {
        self.status_page()?.slot(self.slot.load(Relaxed))
    }

    /// Asks for huge pages, as far as the range's windows fit in the limit of the run (the memory of its control group),
    /// and counts the windows reserved.
    pub fn advise(&self, start: usize, bytes: usize, kind: Kind) {
        let wanted = placement::whole_pages(start, bytes, Size::HUGE);
        let fitting = self.status_page().map_or(wanted, |page| page.take_windows(wanted));
        let bytes = match fitting {
            all if all == wanted => bytes,
            0 => return,
            some => start.next_multiple_of(Size::HUGE.bytes()) + some * Size::HUGE.bytes() - start,
        };
        if kernel::advise(start, bytes, libc::MADV_HUGEPAGE) {
            self.count_reserved(kind, fitting);
        }
    }

    /// Counts reserved windows.
    pub fn count_reserved(&self, kind: Kind, windows: usize) {
        if let Some(slot) = self.slot().filter(|_| windows > 0) {
            slot.add_reserved(kind, windows);
        }
    }

    /// Counts a mapping moved to a multiple of a superpage.
    pub fn count_aligned(&self) {
        if let Some(slot) = self.slot() {
            slot.add_aligned();
        }
    }
}
