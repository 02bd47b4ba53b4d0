//! What is known of the program that this library is in: set up once by `start.rs`, before any of its code runs.

use core::cell::UnsafeCell;
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

use farmem_engine::field::{Bell, Errand};
use farmem_engine::greeting::Sections;
use farmem_engine::pager::Pager;
use farmem_engine::policy::what_if::Ghosts;
use farmem_engine::units::{Costs, Learned, Units};

use crate::lock::{self, Held, Lock};
use crate::uffd::Uffd;

/// The pager and what it works with.
pub struct Program {
    /// The tables.
    pub pager: Pager<'static>,
    /// Which memory is paged.
    pub uffd: Uffd,
    /// Where the staging's slots lie.
    pub staging: u64,
    /// A megabyte of zeros.
    pub zeros: u64,
    /// The store's file; -1 when masu has to be asked.
    pub store: i32,
    /// The connection to masu.
    pub socket: i32,
    /// What is asked of masu.
    pub errand: Errand<'static>,
    /// Pages on their way to and from masu.
    pub data: u64,
    /// The memory of flights.
    pub flown: u64,
    /// By what masu is woken for flights, and wakes.
    pub bell: Bell<'static>,
    /// Whether masu fetches ahead and writes home in the background.
    pub background: bool,
    /// What is learned of the program, and pages that went home: for whoever holds the lock.
    pub learned: *mut Learned,
    pub ghosts: (*mut u64, usize),
    /// How its parts are told apart, the unit when they are not, and the smallest one.
    pub sections: Sections,
    pub fixed_log2: u8,
    pub base_log2: u8,
    /// Mappings smaller than this are not paged.
    pub least_bytes: u64,
    /// Text of this library, from where calls are let through.
    pub text: (u64, u64),
    /// Its own process number.
    pub process: AtomicU32,
}

struct Place(UnsafeCell<MaybeUninit<Program>>);

// SAFETY: written once before READY is set, and only read after.
unsafe impl Sync for Place {}

static PLACE: Place = Place(UnsafeCell::new(MaybeUninit::uninit()));
static READY: AtomicBool = AtomicBool::new(false);

impl Program {
    /// What things cost.
    const fn costs(&self) -> Costs {
        match (self.store < 0, self.background) {
            (true, true) => Costs::SERVER,
            (true, false) => Costs::SERVER.alone(),
            (false, _) => Costs::FILE,
        }
    }

    /// The policies. There is one lock, and what stands under it is lent to who holds it.
    pub fn units<'a>(&self, _held: &'a Held<'_>) -> Units<'a> {
        // SAFETY: both lie in the field, apart from all else, for as long as the program runs; whoever holds the lock has them
        // alone, since the answer does not outlive it.
        let (learned, ghosts) =
            unsafe { (&mut *self.learned, core::slice::from_raw_parts_mut(self.ghosts.0, self.ghosts.1)) };
        // There is room for those of the whole machine, should the program grow to that. Fewer lie closer together.
        let frames = self.pager.budget().frames as usize;
        let used = ghosts.len().min(2 * frames.next_power_of_two());
        Units {
            learned,
            ghosts: Ghosts::over(&mut ghosts[..used]),
            sections: self.sections,
            fixed_log2: self.fixed_log2,
            base_log2: self.base_log2,
            costs: self.costs(),
        }
    }
}

/// The pager's lock.
pub static LOCK: Lock = lock::new();

/// Set once memory was seen that can be written and from which the kernel moves nothing (it can be run, too, or has a
/// protection key): then what cannot be moved cannot be copied safely either, for somebody may be writing to it.
pub static ODDLY_WRITABLE: AtomicBool = AtomicBool::new(false);

/// Where the heap ends.
pub static HEAP_END: AtomicU64 = AtomicU64::new(0);

/// The program, once there is something to know.
pub fn program() -> Option<&'static Program> {
    if !READY.load(Acquire) {
        return None;
    }
    // SAFETY: it was written before READY was set.
    Some(unsafe { (*PLACE.0.get()).assume_init_ref() })
}

/// Says what is known. Once.
pub fn begin(known: Program) {
    // SAFETY: READY is not set, and there is one thread.
    unsafe { (*PLACE.0.get()).write(known) };
    READY.store(true, Release);
}

/// Whether masu pages this process: not in a child that only a fork made.
pub static PAGED: AtomicBool = AtomicBool::new(true);

/// See [`PAGED`].
pub fn is_paged() -> bool {
    PAGED.load(Relaxed)
}
