//! userfaultfd(2): which memory is paged, and moving frames in and out of it.
//!
//! The file is made for faults of the program alone (USER_MODE_ONLY), which takes no privilege, and in SIGBUS mode: the
//! thread that faults gets the signal and serves itself. UFFDIO_MOVE is Linux 6.8.

use paging::greeting::Step;

use crate::kernel::call;

const API: u64 = 0xaa;
const FEATURE_SIGBUS: u64 = 1 << 7;
const FEATURE_MOVE: u64 = 1 << 16;
const USER_MODE_ONLY: i32 = 1;

const MODE_MISSING: u64 = 1;
const MODE_WP: u64 = 2;

/// An ioctl's number: what it reads and writes, the size of that, and the number within userfaultfd.
const fn number(direction: u64, bytes: usize, number: u64) -> u64 {
    direction << 30 | (bytes as u64) << 16 | API << 8 | number
}

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

/// A userfaultfd.
#[derive(Clone, Copy)]
pub struct Uffd(pub i32);

impl Uffd {
    /// Makes one, or says which step failed and why.
    pub fn make() -> Result<Uffd, (Step, i64)> {
        // SAFETY: makes a file.
        let fd = unsafe { call!(libc::SYS_userfaultfd, libc::O_CLOEXEC | USER_MODE_ONLY) };
        if fd < 0 {
            return Err((Step::Userfaultfd, fd));
        }
        let mut api = Api { api: API, features: FEATURE_SIGBUS | FEATURE_MOVE, ioctls: 0 };
        // SAFETY: reads and writes `api`.
        let answer = unsafe { ioctl(fd as i32, number(READ_WRITE, size_of::<Api>(), 0x3f), &raw mut api) };
        // SIGBUS is older than faults of the program alone: what is missing is the moving. Copying instead would lose what
        // another thread writes meanwhile.
        if answer == 0 { Ok(Uffd(fd as i32)) } else { Err((Step::Move, answer)) }
    }

    /// Memory is paged from now on.
    pub fn register(self, start: u64, bytes: u64) -> bool {
        self.register_as(start, bytes, MODE_MISSING)
    }

    /// Memory may get frames by [`Uffd::move_frames`], and is not paged itself.
    pub fn register_staging(self, start: u64, bytes: u64) -> bool {
        self.register_as(start, bytes, MODE_WP)
    }

    fn register_as(self, start: u64, bytes: u64, mode: u64) -> bool {
        let mut register = Register { start, bytes, mode, ioctls: 0 };
        // SAFETY: reads and writes `register`; memory that is registered changes in nothing but how faults are served.
        unsafe { ioctl(self.0, number(READ_WRITE, size_of::<Register>(), 0), &raw mut register) == 0 }
    }

    /// Frames change their address, without a copy. Says how many bytes did, and why no more.
    ///
    /// # Safety
    /// Nobody reads what is left at `from`.
    pub unsafe fn move_frames(self, to: u64, from: u64, bytes: u64) -> (u64, i64) {
        // SAFETY: the caller's.
        unsafe { self.transfer(number(READ_WRITE, size_of::<Copy>(), 5), to, from, bytes) }
    }

    /// New frames with a copy of what lies at `from`, where none are. Says how many bytes, and why no more.
    ///
    /// # Safety
    /// `from` can be read.
    pub unsafe fn copy(self, to: u64, from: u64, bytes: u64) -> (u64, i64) {
        // SAFETY: the caller's.
        unsafe { self.transfer(number(READ_WRITE, size_of::<Copy>(), 3), to, from, bytes) }
    }

    /// # Safety
    /// That of the transfer.
    unsafe fn transfer(self, number: u64, to: u64, from: u64, bytes: u64) -> (u64, i64) {
        let mut done = 0;
        loop {
            let mut copy = Copy { to: to + done, from: from + done, bytes: bytes - done, mode: 0, done: 0 };
            // SAFETY: reads and writes `copy`; the caller's.
            let answer = unsafe { ioctl(self.0, number, &raw mut copy) };
            done += u64::try_from(copy.done).unwrap_or(0);
            let again = answer == -i64::from(libc::EAGAIN);
            if done >= bytes || !again {
                return (done.min(bytes), answer);
            }
        }
    }
}

/// # Safety
/// `argument` is what the ioctl with this number reads and writes.
unsafe fn ioctl<T>(fd: i32, number: u64, argument: *mut T) -> i64 {
    // SAFETY: the caller's.
    unsafe { call!(libc::SYS_ioctl, fd, number, argument.expose_provenance()) }
}
