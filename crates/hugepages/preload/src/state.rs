//! What the hooks know: a few words, set once at the start and read without a lock. Zeros mean: pass everything through.

use core::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU32, AtomicUsize, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};

use contract::board::{Board, Kind, Seat, Switches, WORDS};
use contract::policy::{Size, Sizes};

use crate::kernel;

/// The one there is.
pub static STATE: State = State {
    kib: AtomicU32::new(0),
    align: AtomicBool::new(false),
    stack: AtomicBool::new(false),
    board: AtomicPtr::new(core::ptr::null_mut()),
    seat: AtomicUsize::new(NO_SEAT),
    process: AtomicU32::new(0),
};

const NO_SEAT: usize = usize::MAX;

/// See [`STATE`].
#[derive(Debug)]
pub struct State {
    /// The sizes that may be had: the sum of their KiB, each a power of two. Zero while nothing is asked.
    kib: AtomicU32,
    /// How alignment stands while there is no seat with a switch.
    align: AtomicBool,
    stack: AtomicBool,
    board: AtomicPtr<AtomicU32>,
    seat: AtomicUsize,
    /// Whose the seat is, as this process sees its own id.
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

    /// True from the beginning to the end: not before the start, and not in a program that has shut itself in.
    pub fn is_acting(&self) -> bool {
        self.kib.load(Acquire) != 0
    }

    /// The sizes that may be had; none before the start, or when nothing is asked.
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

    /// Takes the board that lies at `start`, and a seat on it under the id by which masu knows this process.
    ///
    /// # Safety
    /// `board::BYTES` are mapped there, shared and writable, for as long as the process lives.
    pub unsafe fn take_board(&self, start: usize, process: u32) {
        self.board.store(core::ptr::with_exposed_provenance_mut(start), Release);
        self.take_seat(process);
    }

    /// Takes a seat for this process: at the start, and in a child after fork, which must not count on its parent's.
    pub fn take_seat(&self, process: u32) {
        let Some(board) = self.board() else { return };
        let align = self.align();
        self.align.store(align, Relaxed);
        self.process.store(kernel::process(), Relaxed);
        self.seat.store(board.sit_down(process, Switches::new(align)).unwrap_or(NO_SEAT), Relaxed);
    }

    /// Takes none: masu would not know whose it is.
    pub fn stand(&self) {
        self.align.store(self.align(), Relaxed);
        self.seat.store(NO_SEAT, Relaxed);
    }

    /// True in the process that took the seat; false in a child that was made without the C library's knowledge.
    pub fn is_seated_here(&self) -> bool {
        self.process.load(Relaxed) == kernel::process()
    }

    /// The board, if there is one.
    pub fn board(&self) -> Option<Board<'static>> {
        let words = self.board.load(Acquire);
        if words.is_null() {
            return None;
        }
        // SAFETY: set by `take_board`, whose caller vouches for so many words for the life of the process; atomics may
        // be shared with whoever maps them too.
        Board::of(unsafe { core::slice::from_raw_parts(words, WORDS) })
    }

    /// This process's seat.
    pub fn seat(&self) -> Option<Seat<'static>> {
        self.board()?.seat(self.seat.load(Relaxed))
    }

    /// Counts windows that were reserved.
    pub fn count_reserved(&self, kind: Kind, windows: usize) {
        if let Some(seat) = self.seat().filter(|_| windows > 0) {
            seat.add_reserved(kind, windows);
        }
    }

    /// Counts a mapping that was moved to a multiple of a superpage.
    pub fn count_aligned(&self) {
        if let Some(seat) = self.seat() {
            seat.add_aligned();
        }
    }
}
