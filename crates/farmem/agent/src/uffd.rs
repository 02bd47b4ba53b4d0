//! userfaultfd(2): registration of paged memory, and moves of frames in and out of it.
//!
//! The file is made for faults of the program only (USER_MODE_ONLY), which takes no privilege, and in SIGBUS mode: the
//! faulting thread gets the signal and serves itself. UFFDIO_MOVE is Linux 6.8; where it is missing, pages are copied
//! under write protection (`exchange.rs`).

use farmem_engine::PAGE_BYTES;
use farmem_engine::backend::{Backend, Features};
use farmem_engine::handshake::Step;

use crate::kernel::{self, call, int};

const API: u64 = 0xaa;
const USER_MODE_ONLY: i32 = 1;

/// Largest number of attempts to put a page back.
const PATIENCE: u32 = 100_000;

const MODE_MISSING: u64 = 1;
const MODE_WP: u64 = 2;

/// Number of an ioctl: its direction, the size of its argument, and the number within userfaultfd.
const fn number(direction: u64, bytes: usize, number: u64) -> u64 {
    direction << 30 | (bytes as u64) << 16 | API << 8 | number
}

/// Direction of UFFDIO_UNREGISTER, as its number has it.
const READ: u64 = 2;
const READ_WRITE: u64 = 3;

#[repr(C)]
struct Api {
    api: u64,
    features: u64,
    ioctls: u64,
}

#[repr(C)]
struct Register {
    start: u64,
    bytes: u64,
    mode: u64,
    ioctls: u64,
}

#[repr(C)]
struct Copy {
    to: u64,
    from: u64,
    bytes: u64,
    mode: u64,
    done: i64,
}

#[repr(C)]
struct WriteProtect {
    start: u64,
    bytes: u64,
    mode: u64,
}

/// userfaultfd, and its backend.
#[derive(Clone, Copy)]
pub struct Uffd {
    pub fd: i32,
    pub backend: Backend,
    /// Address of an always empty page behind the victim queue's slots, with a page table; 0: none yet.
    pub spare_page: u64,
}

const COPY: u64 = number(READ_WRITE, size_of::<Copy>(), 3);
const MOVE: u64 = number(READ_WRITE, size_of::<Copy>(), 5);

const EEXIST: i64 = -(libc::EEXIST as i64);
const ENOENT: i64 = -(libc::ENOENT as i64);

impl Uffd {
    /// Opens one with the requested backend, or with the best; or returns the failed step with its reason.
    pub fn create(wanted: Option<Backend>) -> Result<Uffd, (Step, i64)> {
        let failed = |answer| (Step::Userfaultfd, answer);
        // Features can be queried once per file, and requested once, too.
        let (asked, offered) = open(Features(0)).map_err(failed)?;
        // SAFETY: our own.
        unsafe { call!(libc::SYS_close, asked) };
        let backend = Backend::choose(offered, wanted).ok_or((Step::Backend, -i64::from(libc::EOPNOTSUPP)))?;
        let (fd, _) = open(backend.needs()).map_err(failed)?;
        Ok(Uffd { fd, backend, spare_page: 0 })
    }

    /// Registers memory, which is paged from now on.
    pub fn register(self, start: u64, bytes: u64) -> bool {
        let mode = match self.backend {
            Backend::Move => MODE_MISSING,
            Backend::Copy => MODE_MISSING | MODE_WP,
        };
        self.register_as(start, bytes, mode)
    }

    /// Registers memory that is not paged itself, and may get frames by [`Uffd::move_frames`] and [`Uffd::copy`].
    pub fn register_slots(self, start: u64, bytes: u64) -> bool {
        self.register_as(start, bytes, MODE_WP)
    }

    /// Ends the registration of memory, whose pages are all present or untouched.
    pub fn unregister(self, start: u64, bytes: u64) {
        let mut range = [start, bytes];
        // SAFETY: reads `range`; changes only how faults are served.
        unsafe { ioctl(self.fd, number(READ, size_of::<[u64; 2]>(), 1), &raw mut range) };
    }

    fn register_as(self, start: u64, bytes: u64, mode: u64) -> bool {
        let mut register = Register { start, bytes, mode, ioctls: 0 };
        // SAFETY: reads and writes `register`; registration changes only how faults are served.
        unsafe { ioctl(self.fd, number(READ_WRITE, size_of::<Register>(), 0), &raw mut register) == 0 }
    }

    /// Moves frames to other addresses, without a copy. Returns the number of bytes, and the reason for the end.
    ///
    /// Linux 6.18, which moves pages in batches, may return EEXIST for pages that it has moved itself (seen on
    /// 6.18.44): pages that it had to try twice, because their entry in the page table changed just then, as by
    /// compaction. The second try moves them, and is followed by a third. So after EEXIST the caller checks whether the
    /// page is still at its old address.
    ///
    /// # Safety
    /// Nobody reads the remains at `from`. Each page there has a frame, wherever `to` has one already: else the page at
    /// `to` would be taken for it.
    pub unsafe fn move_frames(self, to: u64, from: u64, bytes: u64) -> (u64, i64) {
        let mut done = 0;
        while done < bytes {
            // SAFETY: the caller's.
            let (moved, why) = unsafe { self.transfer(MOVE, to + done, from + done, bytes - done) };
            done += moved;
            // SAFETY: the caller's: a thread that needs the page meanwhile waits.
            if done < bytes && (why != EEXIST || unsafe { self.is_there(from + done) }) {
                return (done, why);
            }
            if done < bytes {
                done += PAGE_BYTES;
            }
        }
        (done, 0)
    }

    /// Whether an address has a page, wherever its frame is (in swap, too): the page is moved aside, and back.
    ///
    /// # Safety
    /// Nobody reads it meanwhile.
    unsafe fn is_there(self, address: u64) -> bool {
        // Nothing was there before, and nobody else would bring it: EEXIST means that it has moved.
        let has_come = |(moved, why): (u64, i64)| moved > 0 || why == EEXIST;
        // SAFETY: the caller's.
        let aside = unsafe { self.transfer(MOVE, self.spare_page, address, PAGE_BYTES) };
        if !has_come(aside) {
            return aside.1 != ENOENT;
        }
        for _ in 0..PATIENCE {
            // SAFETY: as above.
            if has_come(unsafe { self.transfer(MOVE, address, self.spare_page, PAGE_BYTES) }) {
                return true;
            }
        }
        kernel::give_up(&[
            "the kernel does not put a page back that it has moved; the program is ended, since it cannot go on without it\n    ",
            "This should not happen; please report it.",
        ])
    }

    /// Maps new frames with a copy of the memory at `from`, where none are. Returns the number of bytes, and the reason
    /// for the end.
    ///
    /// # Safety
    /// `from` can be read.
    pub unsafe fn copy(self, to: u64, from: u64, bytes: u64) -> (u64, i64) {
        // SAFETY: the caller's.
        unsafe { self.transfer(COPY, to, from, bytes) }
    }

    /// Makes writes to present pages raise SIGBUS from now on, or allows them again. All threads see it when this
    /// returns.
    pub fn write_protect(self, start: u64, bytes: u64, protected: bool) -> i64 {
        let mut range = WriteProtect { start, bytes, mode: protected.into() };
        // SAFETY: reads `range`; changes only how writes are served.
        unsafe { ioctl(self.fd, number(READ_WRITE, size_of::<WriteProtect>(), 6), &raw mut range) }
    }

    /// # Safety
    /// That of the transfer.
    unsafe fn transfer(self, number: u64, to: u64, from: u64, bytes: u64) -> (u64, i64) {
        let mut done = 0;
        loop {
            let mut copy = Copy { to: to + done, from: from + done, bytes: bytes - done, mode: 0, done: 0 };
            // SAFETY: reads and writes `copy`; the caller's.
            let answer = unsafe { ioctl(self.fd, number, &raw mut copy) };
            // A negative number is the errno of an attempt that copied nothing.
            done += copy.done.max(0).cast_unsigned();
            let again = answer == -i64::from(libc::EAGAIN);
            if done >= bytes || !again {
                return (done.min(bytes), answer);
            }
        }
    }
}

/// Opens a userfaultfd with these features, and returns all features of this kernel.
fn open(features: Features) -> Result<(i32, Features), i64> {
    // SAFETY: makes a file.
    let fd = unsafe { call!(libc::SYS_userfaultfd, libc::O_CLOEXEC | USER_MODE_ONLY) };
    if fd < 0 {
        return Err(fd);
    }
    let mut api = Api { api: API, features: features.0, ioctls: 0 };
    // SAFETY: reads and writes `api`.
    let answer = unsafe { ioctl(int(fd.cast_unsigned()), number(READ_WRITE, size_of::<Api>(), 0x3f), &raw mut api) };
    if answer == 0 { Ok((int(fd.cast_unsigned()), Features(api.features))) } else { Err(answer) }
}

/// # Safety
/// `argument` points to the data that the ioctl with this number reads and writes.
unsafe fn ioctl<T>(fd: i32, number: u64, argument: *mut T) -> i64 {
    // SAFETY: the caller's.
    unsafe { call!(libc::SYS_ioctl, fd, number, argument.expose_provenance()) }
}
