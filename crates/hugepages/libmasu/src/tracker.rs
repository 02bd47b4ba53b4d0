//! Connection to the tracker: one socket, one request and its answer at a time.
//!
//! Any failure (the tracker ended, does not answer, or sends a malformed answer) closes the connection, and with it
//! ends the tracking. The program goes on.

use core::ffi::{CStr, c_char};
use core::mem::{MaybeUninit, size_of};
use core::sync::atomic::{AtomicBool, Ordering::SeqCst};

use contract::track::wire::{Answer, Refused, Request, SHORT_BYTES};
use contract::track::{SOCKET, SOCKET_PATH_BYTES, SOCKET_VARIABLE};

use crate::kernel::Descriptor;

/// Time without an answer after which a tracker is given up. It may have much memory to scan, which takes its time.
const ANSWER_WITHIN_S: libc::time_t = 10;

/// Verdicts sent at once: the stack of a signal handler is small.
pub const VERDICTS_AT_ONCE: usize = 1024;

/// An open connection.
pub struct Tracker {
    socket: Descriptor,
    /// Closed from here, since an answer was late or malformed: a later answer would be taken for that to another
    /// request.
    given_up: AtomicBool,
}

/// Reason for which there is no answer.
#[derive(Clone, Copy)]
pub enum Failed {
    /// There is no tracker, or not any more.
    NoTracker,
    /// It belongs neither to root nor to the caller's user.
    Untrusted,
    /// It refused.
    Refused(Refused),
}

impl Tracker {
    /// Connects to the tracker at the environment's path, or else at the default one.
    pub fn find() -> Result<Tracker, Failed> {
        let (address, bytes) = address().ok_or(Failed::NoTracker)?;
        // SAFETY: a new socket.
        let socket = unsafe { libc::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0) };
        let socket = Descriptor::of(socket).ok_or(Failed::NoTracker)?;
        // Before connecting: with many clients at once, connecting waits, too.
        for option in [libc::SO_RCVTIMEO, libc::SO_SNDTIMEO] {
            let time = libc::timeval { tv_sec: ANSWER_WITHIN_S, tv_usec: 0 };
            set(&socket, option, &time);
        }
        let at = (&raw const address).cast::<libc::sockaddr>();
        // SAFETY: the address is of the length given, and lives as long as the call.
        if unsafe { libc::connect(socket.number(), at, bytes) } != 0 {
            return Err(Failed::NoTracker);
        }
        let tracker = Tracker { socket, given_up: AtomicBool::new(false) };
        // SAFETY: asks.
        let own = unsafe { libc::geteuid() };
        match tracker.user() {
            Some(user) if user == 0 || user == own => Ok(tracker),
            _ => Err(Failed::Untrusted),
        }
    }

    fn user(&self) -> Option<libc::uid_t> {
        let mut peer = libc::ucred { pid: 0, uid: libc::uid_t::MAX, gid: 0 };
        let mut bytes = size_in_calls::<libc::ucred>();
        let (fd, into) = (self.socket.number(), (&raw mut peer).cast());
        // SAFETY: the kernel writes at most `bytes` bytes, which the variable has.
        let done = unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_PEERCRED, into, &raw mut bytes) };
        (done == 0).then_some(peer.uid)
    }

    /// Descriptor number, to wait for its end.
    pub fn number(&self) -> i32 {
        self.socket.number()
    }

    /// Whether the tracker has closed this connection, or ended: then it sends no signal any more. That is unknown
    /// for a connection closed from here.
    pub fn has_ended(&self) -> bool {
        !self.given_up.load(SeqCst) && self.is_over()
    }

    /// Whether the connection is unusable.
    pub fn is_over(&self) -> bool {
        let mut fds = [libc::pollfd { fd: self.socket.number(), events: 0, revents: 0 }];
        // SAFETY: one entry, which lives as long as the call.
        unsafe { libc::poll(fds.as_mut_ptr(), 1, 0) > 0 && fds[0].revents & (libc::POLLHUP | libc::POLLERR) != 0 }
    }

    /// Closes the connection from here, after a malformed answer.
    pub fn give_up(&self) -> Failed {
        if !self.is_over() {
            self.given_up.store(true, SeqCst);
            // SAFETY: a descriptor of our own; the other side sees the end, and so does a waiting thread.
            unsafe { libc::shutdown(self.socket.number(), libc::SHUT_RDWR) };
        }
        Failed::NoTracker
    }

    /// Sends a request without an answer.
    pub fn tell(&self, request: &Request<'_>) -> Result<(), Failed> {
        let mut message = [0; SHORT_BYTES + VERDICTS_AT_ONCE];
        let bytes = request.write(&mut message);
        loop {
            // SAFETY: the message is of that length at least, and lives as long as the call.
            let sent = unsafe { libc::send(self.socket.number(), message.as_ptr().cast(), bytes, libc::MSG_NOSIGNAL) };
            if sent == bytes as isize {
                return Ok(());
            }
            if crate::kernel::errno() != libc::EINTR {
                return Err(self.give_up());
            }
        }
    }

    /// Sends a request, and waits for the answer and the descriptor with it.
    pub fn ask(&self, request: &Request<'_>) -> Result<(Answer, Option<Descriptor>), Failed> {
        self.tell(request)?;
        let mut message = [0; SHORT_BYTES];
        let mut file = None;
        let bytes = receive(&self.socket, &mut message, &mut file).ok_or_else(|| self.give_up())?;
        match Answer::read(&message[..bytes]) {
            Ok(Answer::Refused(why)) => Err(Failed::Refused(why)),
            Ok(answer) => Ok((answer, file)),
            Err(_) => Err(self.give_up()),
        }
    }
}

unsafe extern "C" {
    fn secure_getenv(name: *const c_char) -> *const c_char;
}

/// Family of the tracker's socket, as an address has it.
#[expect(clippy::cast_possible_truncation, reason = "AF_UNIX is 1")]
const FAMILY: libc::sa_family_t = libc::AF_UNIX as libc::sa_family_t;

/// Address to connect to, and its length in bytes.
fn address() -> Option<(libc::sockaddr_un, libc::socklen_t)> {
    let mut name = [0u8; 32];
    name[..SOCKET_VARIABLE.len()].copy_from_slice(SOCKET_VARIABLE.as_bytes());
    // In a set-uid program the environment is foreign, and is ignored.
    // SAFETY: the name ends with a zero. The result lives until the environment is changed, which the program must
    // guard, as with any getenv(3); it is copied at once.
    let found = unsafe { secure_getenv(name.as_ptr().cast()) };
    let path = if found.is_null() {
        SOCKET.as_bytes()
    } else {
        // SAFETY: ends with a zero.
        unsafe { CStr::from_ptr(found) }.to_bytes()
    };
    if path.is_empty() || path.len() >= SOCKET_PATH_BYTES {
        return None;
    }
    // SAFETY: made of numbers alone; zeros are valid.
    let mut address = unsafe { MaybeUninit::<libc::sockaddr_un>::zeroed().assume_init() };
    address.sun_family = FAMILY;
    for (to, from) in address.sun_path.iter_mut().zip(path) {
        *to = *from as c_char;
    }
    let bytes = core::mem::offset_of!(libc::sockaddr_un, sun_path) + path.len() + 1;
    Some((address, libc::socklen_t::try_from(bytes).ok()?))
}

/// Size of a type, as the calls with sockets take it.
#[expect(clippy::cast_possible_truncation, reason = "checked when it is compiled")]
const fn size_in_calls<T>() -> libc::socklen_t {
    const { assert!(size_of::<T>() <= libc::socklen_t::MAX as usize) };
    size_of::<T>() as libc::socklen_t
}

fn set(socket: &Descriptor, option: i32, value: &libc::timeval) {
    let bytes = size_in_calls::<libc::timeval>();
    // SAFETY: the value is of that length, and lives as long as the call. Without it we would wait longer, no harm.
    unsafe { libc::setsockopt(socket.number(), libc::SOL_SOCKET, option, core::ptr::from_ref(value).cast(), bytes) };
}

/// Room for one descriptor beside a message. The length passed to the kernel has no room for a second one: the
/// padding, which could hold one, is left out.
#[repr(C, align(8))]
struct Beside([u8; 32]);

/// Next message, and the descriptor that came with it. `None` when none came in time, or never will.
fn receive(socket: &Descriptor, message: &mut [u8], file: &mut Option<Descriptor>) -> Option<usize> {
    let mut beside = Beside([0; 32]);
    let mut part = libc::iovec { iov_base: message.as_mut_ptr().cast(), iov_len: message.len() };
    // SAFETY: made of numbers and pointers; zeros are valid.
    let mut header = unsafe { MaybeUninit::<libc::msghdr>::zeroed().assume_init() };
    header.msg_iov = &raw mut part;
    header.msg_iovlen = 1;
    header.msg_control = (&raw mut beside).cast();
    // SAFETY: computes only.
    header.msg_controllen = unsafe { libc::CMSG_LEN(size_in_calls::<i32>()) } as _;
    let got = loop {
        // SAFETY: the header names memory of ours, of the given lengths, which lives as long as the call.
        let got = unsafe { libc::recvmsg(socket.number(), &raw mut header, libc::MSG_CMSG_CLOEXEC) };
        if got >= 0 || crate::kernel::errno() != libc::EINTR {
            break got;
        }
    };
    // SAFETY: the header is as the kernel left it.
    let first = unsafe { libc::CMSG_FIRSTHDR(&raw const header) };
    if got > 0 && !first.is_null() {
        // SAFETY: a control message that the kernel wrote into `beside`, which is aligned for it.
        let control = unsafe { &*first };
        if control.cmsg_level == libc::SOL_SOCKET && control.cmsg_type == libc::SCM_RIGHTS {
            // SAFETY: with it comes one descriptor, ours from now on: there was room for no second, and the kernel
            // closes descriptors without room.
            *file = Descriptor::of(unsafe { libc::CMSG_DATA(first).cast::<i32>().read_unaligned() });
        }
    }
    (got > 0 && header.msg_flags & (libc::MSG_TRUNC | libc::MSG_CTRUNC) == 0).then_some(got.cast_unsigned())
}
