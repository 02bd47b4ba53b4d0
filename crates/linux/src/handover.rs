//! `unix(7)`: messages of a few words with descriptors in them, between masu and a library inside a program.
//!
//! The listener has a name in the abstract namespace: no file is left behind, and a program that is chrooted finds it all the
//! same (not so in another network namespace). Messages are whole (SOCK_SEQPACKET). The end of a connection says that the
//! other side is no more.
//!
//! Cost: a few system calls for each program. Side effects: none.
//!
//! Since: always.
//!
//! Truth: unix(7), cmsg(3), socket(7) on SO_PEERCRED.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect, listen, recvmsg, sendmsg,
    socket_with,
};

use crate::Pid;

/// At most so many descriptors come with a message.
const MOST_FDS: usize = 4;

/// Waits for programs.
#[derive(Debug)]
pub struct Listener {
    socket: OwnedFd,
    name: String,
}

impl Listener {
    /// Under a name that nobody else has.
    ///
    /// # Errors
    /// The kernel's answer when there is no descriptor left.
    pub fn open() -> Result<Listener, Errno> {
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        let own = Pid::own();
        let mut number = 0;
        loop {
            let name = format!("masu-{own}-{number}");
            match bind(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes())?) {
                Ok(()) => {
                    listen(&socket, 64)?;
                    return Ok(Listener { socket, name });
                }
                // A pid namespace of its own, in the same network namespace.
                Err(Errno::ADDRINUSE) => number += 1,
                Err(errno) => return Err(errno),
            }
        }
    }

    /// The name in the abstract namespace, without the zero before it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The next program, within so long; `None` when none came.
    ///
    /// # Errors
    /// The kernel's answer when there is no descriptor left.
    pub fn accept(&self, within: Duration) -> Result<Option<Connection>, Errno> {
        if !readable(self.socket.as_fd(), within)? {
            return Ok(None);
        }
        match accept_with(&self.socket, SocketFlags::CLOEXEC) {
            Ok(socket) => Ok(Some(Connection(socket))),
            Err(Errno::CONNABORTED | Errno::INTR | Errno::AGAIN) => Ok(None),
            Err(errno) => Err(errno),
        }
    }
}

/// Who is at the other side: as it was when it connected, and as the kernel says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its process; `None` when it is in a PID namespace that cannot be seen from here.
    pub pid: Option<Pid>,
    /// Its effective user.
    pub user: u32,
}

/// One program.
#[derive(Debug)]
pub struct Connection(OwnedFd);

impl Connection {
    /// To the listener with this name, as a program connects.
    ///
    /// # Errors
    /// The kernel's answer: ECONNREFUSED when nobody listens.
    pub fn to(name: &str) -> Result<Connection, Errno> {
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        connect(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes())?)?;
        Ok(Connection(socket))
    }

    /// Sends a message and descriptors.
    ///
    /// # Errors
    /// The kernel's answer: EPIPE when the other side is no more.
    pub fn send(&self, message: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), Errno> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_FDS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
            return Err(Errno::INVAL);
        }
        sendmsg(&self.0, &[IoSlice::new(message)], &mut control, SendFlags::NOSIGNAL).map(|_| ())
    }

    /// The next message, within so long: its length and the descriptors in it. `None` when none came or the other side is no more.
    ///
    /// # Errors
    /// The kernel's answer.
    pub fn receive(&self, message: &mut [u8], within: Duration) -> Result<Option<(usize, Vec<OwnedFd>)>, Errno> {
        if !readable(self.0.as_fd(), within)? {
            return Ok(None);
        }
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_FDS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let got = recvmsg(&self.0, &mut [IoSliceMut::new(message)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
        let mut fds = Vec::new();
        for part in control.drain() {
            if let RecvAncillaryMessage::ScmRights(these) = part {
                fds.extend(these);
            }
        }
        Ok((got.bytes > 0).then_some((got.bytes, fds)))
    }

    /// Who is at the other side.
    ///
    /// # Errors
    /// The kernel's answer.
    pub fn peer(&self) -> Result<Peer, Errno> {
        // Not through rustix, whose pid cannot be zero.
        let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
        let mut bytes = libc::socklen_t::try_from(size_of::<libc::ucred>()).map_err(|_| Errno::INVAL)?;
        let fd = self.0.as_raw_fd();
        // SAFETY: the descriptor is open for as long as `self` is borrowed; the kernel writes at most `bytes` bytes to
        // `peer`, which has as many and is made of numbers alone.
        let done = unsafe {
            libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_PEERCRED, (&raw mut peer).cast(), &raw mut bytes)
        };
        if done < 0 {
            return Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO));
        }
        Ok(Peer { pid: (peer.pid > 0).then_some(Pid(peer.pid)), user: peer.uid })
    }

    /// Whether the other side is no more.
    pub fn is_over(&self) -> bool {
        self.is_over_within(Duration::ZERO)
    }

    /// The same; it is waited for, for so long.
    pub fn is_over_within(&self, within: Duration) -> bool {
        let mut fds = [PollFd::new(&self.0, PollFlags::empty())];
        let timeout = Timespec::try_from(within).ok();
        poll(&mut fds, timeout.as_ref()).is_ok() && fds[0].revents().intersects(PollFlags::HUP | PollFlags::ERR)
    }
}

fn readable(fd: BorrowedFd<'_>, within: Duration) -> Result<bool, Errno> {
    let timeout = Timespec::try_from(within).map_err(|_| Errno::INVAL)?;
    match poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&timeout)) {
        Ok(ready) => Ok(ready > 0),
        Err(Errno::INTR) => Ok(false),
        Err(errno) => Err(errno),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Seek, Write};

    use super::*;

    const SOON: Duration = Duration::from_secs(5);

    #[test]
    fn messages_and_descriptors_come_as_they_were_sent_and_an_end_is_seen() {
        let listener = Listener::open().unwrap();
        assert!(Listener::open().unwrap().name() != listener.name());
        let theirs = Connection::to(listener.name()).unwrap();
        let ours = listener.accept(SOON).unwrap().unwrap();
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"home").unwrap();
        ours.send(b"two words", &[file.as_fd(), file.as_fd()]).unwrap();
        let mut message = [0; 64];
        let (bytes, fds) = theirs.receive(&mut message, SOON).unwrap().unwrap();
        assert_eq!((&message[..bytes], fds.len()), (&b"two words"[..], 2));
        let mut same = std::fs::File::from(fds.into_iter().next().unwrap());
        let mut text = String::new();
        same.rewind().unwrap();
        same.read_to_string(&mut text).unwrap();
        assert_eq!(text, "home");
        let user = rustix::process::geteuid().as_raw();
        assert_eq!(ours.peer(), Ok(Peer { pid: Some(Pid::own()), user }));
        assert!(!ours.is_over());
        drop(theirs);
        assert!(ours.is_over());
        assert!(ours.receive(&mut message, SOON).unwrap().is_none());
    }

    #[test]
    fn nobody_comes_and_the_waiting_ends() {
        let listener = Listener::open().unwrap();
        assert!(listener.accept(Duration::from_millis(10)).unwrap().is_none());
    }
}
