//! State of the program with this library: set up once by `start.rs`, before the program's first instruction.

use core::cell::UnsafeCell;
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

use farmem_engine::handshake::Sections;
use farmem_engine::pager::Pager;
use farmem_engine::segment::{Doorbell, StoreRequest};
use farmem_engine::units::Learned;

use crate::kernel::call;
use crate::uffd::Uffd;

/// Pager, and its resources.
pub struct Program {
    /// Tables of the pager.
    pub pager: Pager<'static>,
    /// userfaultfd of the paged memory.
    pub uffd: Uffd,
    /// Address of the victim queue's slots.
    pub slots: u64,
    /// A megabyte of zeros.
    pub zeros: u64,
    /// Descriptor of the store's file; -1 when masu accesses the store.
    pub store: i32,
    /// The connection to masu.
    pub socket: i32,
    /// Synchronous store request to masu.
    pub request: StoreRequest<'static>,
    /// Address of the pages in transfer to and from masu.
    pub data: u64,
    /// Address of the I/O batches' memory.
    pub batch_data: u64,
    /// Doorbells for I/O batches.
    pub doorbell: Doorbell<'static>,
    /// Whether masu fetches ahead and writes back in the background.
    pub background: bool,
    /// Learned state and evicted pages: for the holder of the lock.
    pub learned: *mut Learned,
    pub ghosts: (*mut u64, usize),
    /// Source of the program's sections, the transfer size without sections, and the smallest one.
    pub sections: Sections,
    pub fixed_log2: u8,
    pub base_log2: u8,
    /// Mappings smaller than this are not paged.
    pub least_bytes: u64,
    /// Text of this library, whose calls are not trapped.
    pub text: (u64, u64),
    /// PID of the process.
    pub process: AtomicU32,
}

struct Place(UnsafeCell<MaybeUninit<Program>>);

// SAFETY: written once before READY is set, and only read after.
unsafe impl Sync for Place {}

static PLACE: Place = Place(UnsafeCell::new(MaybeUninit::uninit()));
static READY: AtomicBool = AtomicBool::new(false);

/// Set once writable memory was seen from which the kernel moves nothing (it cannot be read, or has a protection key):
/// then memory that cannot be moved cannot be copied safely either, since a thread may be writing to it.
pub static HAS_WRITE_ONLY_MAPPING: AtomicBool = AtomicBool::new(false);

/// End of the heap.
pub static HEAP_END: AtomicU64 = AtomicU64::new(0);

/// The program, after `begin`.
pub fn program() -> Option<&'static Program> {
    if !READY.load(Acquire) {
        return None;
    }
    // SAFETY: it was written before READY was set.
    Some(unsafe { (*PLACE.0.get()).assume_init_ref() })
}

/// Sets the program. Called once.
pub fn begin(known: Program) {
    // SAFETY: READY is not set, and there is one thread.
    unsafe { (*PLACE.0.get()).write(known) };
    READY.store(true, Release);
}

/// Whether masu pages this process: not in a child of a plain fork.
pub static PAGED: AtomicBool = AtomicBool::new(true);

/// See [`PAGED`].
pub fn is_paged() -> bool {
    PAGED.load(Relaxed)
}

/// Whether this process is the one that is paged, and no child that shares its memory until it calls exec.
pub fn is_own_process() -> bool {
    // SAFETY: asks.
    let process = unsafe { call!(libc::SYS_getpid) };
    program().is_some_and(|program| i64::from(program.process.load(Relaxed)) == process)
}

/// Whether this is the child of a vfork, with its parent's memory, and the parent has ended.
pub fn is_left_behind() -> bool {
    let Some(program) = program() else { return false };
    let process = program.process.load(Relaxed);
    // SAFETY: these ask.
    unsafe {
        // In a PID namespace of its own it sees no parent: then the answer is unknown.
        let parent = call!(libc::SYS_getppid);
        call!(libc::SYS_getpid) != i64::from(process)
            && ![0, i64::from(process)].contains(&parent)
            && call!(libc::SYS_kill, process, 0) == -i64::from(libc::ESRCH)
    }
}
