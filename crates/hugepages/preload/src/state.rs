//! State of the hooks: a few words, set once at the start and read without a lock. Zeros mean: pass everything
//! through.

use core::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU32, AtomicUsize, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};

use contract::placement::{Size, Sizes};
use contract::status_page::{Kind, ProcessSlot, StatusPage, Switches, WORDS};

use crate::kernel;

/// The only instance.
pub static STATE: State = State {
    kib: AtomicU32::new(0),
    align: AtomicBool::new(false),
    stack: AtomicBool::new(false),
    board: AtomicPtr::new(core::ptr::null_mut()),
    seat: AtomicUsize::new(NO_SEAT),
    process: AtomicU32::new(NO_PROCESS),
};

const NO_SEAT: usize = usize::MAX;
const NO_PROCESS: u32 = 0;

/// See [`STATE`].
#[derive(Debug)]
pub struct State {
    /// Available sizes: the sum of their KiB, each a power of two. Zero without a request.
    kib: AtomicU32,
    /// Alignment while there is no slot with a switch.
    align: AtomicBool,
    stack: AtomicBool,
    board: AtomicPtr<AtomicU32>,
    seat: AtomicUsize,
    /// Owner of the slot: this process's own id.
    process: AtomicU32,
}

impl State {
    /// Begins: hooks act from here on.
    pub fn begin(&self, sizes: Sizes, align: bool, stack: bool) {
        self.align.store(align, Relaxed);
        self.stack.store(stack, Relaxed);
        self.kib.store(sizes.iter().map(Size::kib).sum(), Release);
    }

    /// Ends: hooks pass everything through, and nothing is done at the exit.
    pub fn rest(&self) {
        self.kib.store(0, Release);
        self.stack.store(false, Relaxed);
        self.seat.store(NO_SEAT, Relaxed);
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
        match self.seat() {
            Some(seat) => seat.switches().align(),
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
    pub unsafe fn take_board(&self, start: usize, process: u32) {
        self.board.store(core::ptr::with_exposed_provenance_mut(start), Release);
        self.take_seat(process);
    }

    /// Takes a slot for this process: at the start, and in a child after fork, which must not count in its parent's.
    pub fn take_seat(&self, process: u32) {
        let Some(board) = self.board() else { return };
        let align = self.align();
        self.align.store(align, Relaxed);
        self.process.store(kernel::process().unwrap_or(NO_PROCESS), Relaxed);
        self.seat.store(board.sit_down(process, Switches::new(align)).unwrap_or(NO_SEAT), Relaxed);
    }

    /// Takes no slot: masu could not tell its owner.
    pub fn stand(&self) {
        self.align.store(self.align(), Relaxed);
        self.seat.store(NO_SEAT, Relaxed);
    }

    /// True in the process that took the slot; false in a child created without the C library.
    pub fn is_seated_here(&self) -> bool {
        kernel::process() == Some(self.process.load(Relaxed))
    }

    /// Status page, if there is one.
    pub fn board(&self) -> Option<StatusPage<'static>> {
        let words = self.board.load(Acquire);
        if words.is_null() {
            return None;
        }
        // SAFETY: set by `take_board`, whose caller guarantees this number of words for the life of the process;
        // atomics may be shared with other processes.
        StatusPage::of(unsafe { core::slice::from_raw_parts(words, WORDS) })
    }

    /// Slot of this process.
    pub fn seat(&self) -> Option<ProcessSlot<'static>> {
        self.board()?.seat(self.seat.load(Relaxed))
    }

    /// Counts reserved windows.
    pub fn count_reserved(&self, kind: Kind, windows: usize) {
        if let Some(seat) = self.seat().filter(|_| windows > 0) {
            seat.add_reserved(kind, windows);
        }
    }

    /// Counts a mapping moved to a multiple of a superpage.
    pub fn count_aligned(&self) {
        if let Some(seat) = self.seat() {
            seat.add_aligned();
        }
    }
}
