//! userfaultfd(2): which memory is paged, and moving frames in and out of it.
//!
//! The file is made for faults of the program alone (USER_MODE_ONLY), which takes no privilege, and in SIGBUS mode: the
//! thread that faults gets the signal and serves itself. UFFDIO_MOVE is Linux 6.8; where it is missing, pages are copied
//! while they are protected against writes (`exchange.rs`).

use paging::greeting::Step;
use paging::rung::{Features, Rung};

use crate::kernel::call;

const API: u64 = 0xaa;
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

#[repr(C)]
struct WriteProtect {
    start: u64,
    bytes: u64,
    mode: u64,
}

/// A userfaultfd, and the rung on which it stands.
#[derive(Clone, Copy)]
pub struct Uffd {
    pub fd: i32,
    pub rung: Rung,
}

impl Uffd {
    /// Makes one that stands on the wanted rung, or on the best; or says which step failed and why.
    pub fn make(wanted: Option<Rung>) -> Result<Uffd, (Step, i64)> {
        let failed = |answer| (Step::Userfaultfd, answer);
        // What there is can be asked once of each file, and what is to be used be said once, too.
        let (asked, offered) = open(Features(0)).map_err(failed)?;
        // SAFETY: our own.
        unsafe { call!(libc::SYS_close, asked) };
        let rung = Rung::choose(offered, wanted).ok_or((Step::Rung, -i64::from(libc::EOPNOTSUPP)))?;
        let (fd, _) = open(rung.needs()).map_err(failed)?;
        Ok(Uffd { fd, rung })
    }

    /// Memory is paged from now on.
    pub fn register(self, start: u64, bytes: u64) -> bool {
        let mode = match self.rung {
            Rung::Move => MODE_MISSING,
            Rung::Copy => MODE_MISSING | MODE_WP,
        };
        self.register_as(start, bytes, mode)
    }

    /// Memory may get frames by [`Uffd::move_frames`] and [`Uffd::copy`], and is not paged itself.
    pub fn register_staging(self, start: u64, bytes: u64) -> bool {
        self.register_as(start, bytes, MODE_WP)
    }

    fn register_as(self, start: u64, bytes: u64, mode: u64) -> bool {
        let mut register = Register { start, bytes, mode, ioctls: 0 };
        // SAFETY: reads and writes `register`; memory that is registered changes in nothing but how faults are served.
        unsafe { ioctl(self.fd, number(READ_WRITE, size_of::<Register>(), 0), &raw mut register) == 0 }
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

    /// Writes to pages that are there raise SIGBUS from now on, or do no more. All threads know it when this returns.
    pub fn write_protect(self, start: u64, bytes: u64, protected: bool) -> i64 {
        let mut range = WriteProtect { start, bytes, mode: protected.into() };
        // SAFETY: reads `range`; changes in nothing but how writes are served.
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
            done += u64::try_from(copy.done).unwrap_or(0);
            let again = answer == -i64::from(libc::EAGAIN);
            if done >= bytes || !again {
                return (done.min(bytes), answer);
            }
        }
    }
}

/// A userfaultfd that has these features, and all that this kernel has.
fn open(features: Features) -> Result<(i32, Features), i64> {
    // SAFETY: makes a file.
    let fd = unsafe { call!(libc::SYS_userfaultfd, libc::O_CLOEXEC | USER_MODE_ONLY) };
    if fd < 0 {
        return Err(fd);
    }
    let mut api = Api { api: API, features: features.0, ioctls: 0 };
    // SAFETY: reads and writes `api`.
    let answer = unsafe { ioctl(fd as i32, number(READ_WRITE, size_of::<Api>(), 0x3f), &raw mut api) };
    if answer == 0 { Ok((fd as i32, Features(api.features))) } else { Err(answer) }
}

/// # Safety
/// `argument` is what the ioctl with this number reads and writes.
unsafe fn ioctl<T>(fd: i32, number: u64, argument: *mut T) -> i64 {
    // SAFETY: the caller's.
    unsafe { call!(libc::SYS_ioctl, fd, number, argument.expose_provenance()) }
}
