//! Connection to masu: its socket, and the messages of the handshake.

use core::ffi::c_char;

use farmem_engine::handshake::{self, Message};

use crate::clock;
use crate::kernel::{self, call, int, uint};

/// Deadline of a connection, and of each message at the start.
pub const DEADLINE_S: u64 = 15;

/// Exit status of a program that was not allowed to begin, as of `masu run` itself.
pub const NOT_BEGUN: i32 = 125;

/// Ends the program: there is a server, and it is silent. A masu that is only slow could still write to the shared
/// segment, so the program does not begin.
pub fn without_answer() -> ! {
    kernel::say(&[
        "masu: cannot begin this program: the masu that limits its memory has not answered for ",
        kernel::Decimal::of(DEADLINE_S).text(),
        " s\n    See whether it is stopped or frozen (`ps -C masu -o pid,stat,wchan`), let it go on, and start this program again.\n",
    ]);
    kernel::end(NOT_BEGUN)
}

/// Connects to masu's socket at this path, or with this name where the path does not exist; a negative errno on
/// failure.
pub fn reach(path: Option<&[u8]>, name: &[u8]) -> i32 {
    let socket = path.map_or(-libc::ENOENT, |path| connect(path, 0));
    // Gone, or not visible from here (chroot, a mount namespace, another user). For all other errors there is no
    // fallback.
    match -socket {
        libc::ENOENT | libc::ENOTDIR | libc::EACCES | libc::ECONNREFUSED | libc::EINVAL => connect(name, 1),
        _ => socket,
    }
}

/// Family of masu's socket, as an address has it.
#[expect(clippy::cast_possible_truncation, reason = "AF_UNIX is 1")]
const FAMILY: libc::sa_family_t = libc::AF_UNIX as libc::sa_family_t;

/// Connects to the socket at this path, or with this name behind a zero (`zeros`): in the abstract namespace. A
/// negative errno on failure.
fn connect(name: &[u8], zeros: usize) -> i32 {
    let mut address = libc::sockaddr_un { sun_family: FAMILY, sun_path: [0; 108] };
    if name.len() + 1 > address.sun_path.len() {
        return -libc::EINVAL;
    }
    for (place, byte) in address.sun_path[zeros..].iter_mut().zip(name) {
        *place = *byte as c_char;
    }
    // A path ends with a zero, a name does not.
    let bytes = core::mem::offset_of!(libc::sockaddr_un, sun_path) + 1 + name.len();
    // SAFETY: makes a socket, and reads our own address and our own time.
    unsafe {
        let fd = call!(libc::SYS_socket, libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0);
        if fd < 0 {
            return int(fd.cast_unsigned());
        }
        // A connection waits for space in the queue of the server as long as a message may take.
        let time = libc::timeval { tv_sec: DEADLINE_S as i64, tv_usec: 0 };
        let (place, room) = ((&raw const time).expose_provenance(), size_of::<libc::timeval>());
        for option in [libc::SO_RCVTIMEO, libc::SO_SNDTIMEO] {
            call!(libc::SYS_setsockopt, fd, libc::SOL_SOCKET, option, place, room);
        }
        let answer = match call!(libc::SYS_connect, fd, (&raw const address).expose_provenance(), bytes) {
            0 if !may_be_masu(int(fd.cast_unsigned())) => -i64::from(libc::ECONNREFUSED),
            answer => answer,
        };
        if answer < 0 {
            call!(libc::SYS_close, fd);
            return int(answer.cast_unsigned());
        }
        int(fd.cast_unsigned())
    }
}

/// Whether the listening process belongs to our own user, to root, or to a user without a name in our user namespace:
/// from any other user not even an answer is expected.
fn may_be_masu(socket: i32) -> bool {
    const NAMELESS: u32 = 65534;
    // SAFETY: asks.
    let own = uint(unsafe { call!(libc::SYS_geteuid) }.cast_unsigned());
    peer(socket).is_none_or(|peer| [own, 0, NAMELESS].contains(&peer.uid))
}

/// Process at the other side, as it is seen from here: its number is 0 in another PID namespace.
pub fn peer(socket: i32) -> Option<libc::ucred> {
    let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
    #[expect(clippy::cast_possible_truncation, reason = "three numbers of 32 bits")]
    let mut bytes = size_of::<libc::ucred>() as libc::socklen_t;
    let (place, room) = ((&raw mut peer).expose_provenance(), (&raw mut bytes).expose_provenance());
    // SAFETY: writes our own variables, at most as many bytes as there are.
    let answer = unsafe { call!(libc::SYS_getsockopt, socket, libc::SOL_SOCKET, libc::SO_PEERCRED, place, room) };
    (answer >= 0).then_some(peer)
}

/// Control message with descriptors.
#[repr(C, align(8))]
struct Control {
    head: libc::cmsghdr,
    fds: [i32; FDS],
}

/// Most descriptors of a message: the shared segment's and the store's.
pub const FDS: usize = 2;

fn message_of(vector: &mut libc::iovec, control: &mut Control, fds: usize) -> libc::msghdr {
    let bytes = size_of::<libc::cmsghdr>() + fds * size_of::<i32>();
    control.head = libc::cmsghdr { cmsg_len: bytes, cmsg_level: libc::SOL_SOCKET, cmsg_type: libc::SCM_RIGHTS };
    // SAFETY: all zeros are a value of it.
    let mut message: libc::msghdr = unsafe { core::mem::zeroed() };
    message.msg_iov = vector;
    message.msg_iovlen = 1;
    if fds > 0 {
        message.msg_control = core::ptr::from_mut(control).cast();
        message.msg_controllen = bytes.next_multiple_of(8);
    }
    message
}

/// Sends a message.
pub fn send(socket: i32, message: &Message) {
    let (start, bytes) = (message.as_ptr().expose_provenance(), size_of::<Message>());
    // SAFETY: reads our own memory.
    unsafe { call!(libc::SYS_sendto, socket, start, bytes, libc::MSG_NOSIGNAL, 0, 0) };
}

/// Sends a message if the socket has room for it now; else it is lost.
pub fn send_at_once(socket: i32, message: &Message) {
    let (start, bytes) = (message.as_ptr().expose_provenance(), size_of::<Message>());
    // SAFETY: reads our own memory.
    unsafe { call!(libc::SYS_sendto, socket, start, bytes, libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT, 0, 0) };
}

/// Receives a message, with its descriptors. Without any within the deadline the program is ended.
pub fn receive(socket: i32, fds: &mut [i32; FDS]) -> Option<Message> {
    let mut message: Message = [0; handshake::WORDS];
    let mut vector = libc::iovec { iov_base: message.as_mut_ptr().cast(), iov_len: size_of::<Message>() };
    // SAFETY: all zeros are a value of it.
    let mut control: Control = unsafe { core::mem::zeroed() };
    let mut head = message_of(&mut vector, &mut control, FDS);
    control.head.cmsg_len = 0;
    const MOST_NS: u64 = DEADLINE_S * 1_000_000_000;
    let mut begun_ns = clock::clock_ns();
    let got = loop {
        let called_ns = clock::clock_ns();
        // SAFETY: writes our own memory.
        let got =
            unsafe { call!(libc::SYS_recvmsg, socket, (&raw mut head).expose_provenance(), libc::MSG_CMSG_CLOEXEC) };
        // A signal makes the kernel restart its timeout. A call that took longer than its timeout was stopped (Ctrl-Z),
        // perhaps with masu.
        let now_ns = clock::clock_ns();
        if now_ns.saturating_sub(called_ns) > MOST_NS + MOST_NS / 8 {
            begun_ns = now_ns;
        }
        let is_late = now_ns.saturating_sub(begun_ns) > MOST_NS;
        match int((-got).cast_unsigned()) {
            libc::EINTR if !is_late => {}
            libc::EINTR | libc::EAGAIN => without_answer(),
            _ => break got,
        }
    };
    let come = control.head.cmsg_len.saturating_sub(size_of::<libc::cmsghdr>()) / size_of::<i32>();
    for (place, fd) in fds.iter_mut().zip(control.fds).take(come) {
        *place = fd;
    }
    (got == size_of::<Message>() as i64).then_some(message)
}
