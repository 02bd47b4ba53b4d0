//! `unix(7)`: messages of a few words with descriptors in them, between masu and a library inside a program.
//!
//! A listener for programs that masu starts is hidden: a socket under a random name, in a folder that others may pass
//! and not list. The kernel shows the name in bind(2) to everybody (/proc/net/unix), so the socket is bound to another
//! name and then renamed. A process that does not know the name cannot connect, and cannot fill its queue. A second
//! listener has a name in the abstract namespace, visible to everybody: a chrooted program finds it all the same (not
//! so in another network namespace). A listener for programs that connect by themselves is a file at a known path; a
//! leftover of an ended one is removed. Messages are whole (SOCK_SEQPACKET). The end of a connection means that the
//! other side has ended.
//!
//! Cost: a few system calls for each program. Side effects: none.
//!
//! Since: always.
//!
//! Truth: unix(7), cmsg(3), socket(7) on SO_PEERCRED; `unix_seq_show` in net/unix/af_unix.c on the name that is shown;
//! `sk_getsockopt` in net/core/sock.c on SO_PEERPIDFD.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, FlockOperation, Mode, OFlags, chmod, flock, fstat, open};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect, listen, recv, recvmsg, sendmsg,
    socket_with,
};
use rustix::process::geteuid;
use rustix::rand::{GetRandomFlags, getrandom};
use units::cast;

use crate::{Pid, error};

/// Maximum number of descriptors in a message.
const MOST_FDS: usize = 4;

/// Prefix of the names of folders with hidden sockets.
const HIDDEN: &str = "programs-";

/// A socket that accepts programs.
#[derive(Debug)]
pub struct Listener {
    socket: OwnedFd,
    name: String,
    /// A folder of its own, removed with it, and the folder's lock.
    folder: Option<(PathBuf, OwnedFd)>,
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Some((folder, _lock)) = &self.folder {
            // A folder that cannot be removed now is removed by the next listener, see `sweep`.
            let _ = std::fs::remove_dir_all(folder);
        }
    }
}

impl Listener {
    /// Opens a listener under a unique abstract name.
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
                    return Ok(Listener { socket, name, folder: None });
                }
                // A masu with the same process id in another PID namespace, in the same network namespace.
                Err(Errno::ADDRINUSE) => number += 1,
                Err(errno) => return Err(errno),
            }
        }
    }

    /// Opens a listener at a known path, for all users. A socket with no listener any more is replaced.
    ///
    /// # Errors
    /// The kernel's answer: EADDRINUSE when another process listens there, or the file there is no socket; EINVAL for a
    /// path that is too long.
    pub fn at(path: &Path) -> Result<Listener, Errno> {
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        let address = SocketAddrUnix::new(path)?;
        match bind(&socket, &address) {
            Err(Errno::ADDRINUSE) if is_left_behind(path, &address)? => {
                std::fs::remove_file(path).map_err(error::errno)?;
                bind(&socket, &address)?;
            }
            other => other?,
        }
        open_to_all(path)?;
        listen(&socket, 1024)?;
        Ok(Listener { socket, name: path.display().to_string(), folder: None })
    }

    /// Opens a listener under a secret name in `place`; processes of other users can connect only if `for_others`.
    ///
    /// # Errors
    /// The kernel's answer; `EPERM` when another user may write to `place`, and could put another socket there.
    pub fn hidden(place: &Path, for_others: bool) -> Result<Listener, Errno> {
        is_safe(place)?;
        sweep(place);
        let mode = if for_others { 0o711 } else { 0o700 };
        let (folder, lock) = make_locked(place, mode)?;
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        let path = folder.join(random_name()?);
        let name = path.to_str().ok_or(Errno::INVAL)?.to_owned();
        // From here on the folder is removed when this fails.
        let listener = Listener { socket, name, folder: Some((folder.clone(), lock)) };
        chmod(&folder, Mode::from_raw_mode(mode))?;
        let shown = folder.join("socket");
        bind(&listener.socket, &SocketAddrUnix::new(&shown)?)?;
        // No connection is possible before the name changes.
        std::fs::rename(&shown, &path).map_err(error::errno)?;
        chmod(&path, Mode::from_raw_mode(if for_others { 0o666 } else { 0o600 }))?;
        listen(&listener.socket, 64)?;
        // A name too long for an address would be useless to programs.
        SocketAddrUnix::new(&path)?;
        Ok(listener)
    }

    /// Name in the abstract namespace, without the zero before it; or the path.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Accepts the next program; `None` when none connected within `within`.
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

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Sets the mode, regardless of the umask. Uses the descriptor of the socket: in another user's directory the name may
/// be another file by now.
fn open_to_all(path: &Path) -> Result<(), Errno> {
    let socket = open(path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    let about = fstat(&socket)?;
    if FileType::from_raw_mode(about.st_mode) != FileType::Socket || about.st_uid != geteuid().as_raw() {
        return Err(Errno::ADDRINUSE);
    }
    chmod(format!("/proc/self/fd/{}", socket.as_raw_fd()), Mode::from_raw_mode(0o666))
}

/// Errors when a user other than this one and root may add or rename files there.
fn is_safe(place: &Path) -> Result<(), Errno> {
    let about = std::fs::symlink_metadata(place).map_err(error::errno)?;
    let ours = [0, geteuid().as_raw()].contains(&about.uid());
    let shared = about.mode() & 0o022 != 0 && about.mode() & 0o1000 == 0;
    if about.is_dir() && ours && !shared { Ok(()) } else { Err(Errno::PERM) }
}

/// Makes a new folder in `place`, locked (flock(2)) while the descriptor is open.
fn make_locked(place: &Path, mode: u32) -> Result<(PathBuf, OwnedFd), Errno> {
    const TRIES: u32 = 100;
    for _ in 0..TRIES {
        let folder = place.join(format!("{HIDDEN}{}", random_name()?));
        // The umask only removes bits.
        std::fs::DirBuilder::new().mode(mode).create(&folder).map_err(error::errno)?;
        // Before it is locked, another process may sweep it.
        if let Some(lock) = lock_folder(&folder) {
            return Ok((folder, lock));
        }
    }
    Err(Errno::AGAIN)
}

/// Locks a folder of this user. `None` when another process holds the lock, or the folder does not exist (any more).
fn lock_folder(folder: &Path) -> Option<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let lock = open(folder, flags, Mode::empty()).ok()?;
    let about = fstat(&lock).ok().filter(|about| about.st_uid == geteuid().as_raw())?;
    flock(&lock, FlockOperation::NonBlockingLockExclusive).ok()?;
    // The previous holder of the lock may have removed the folder.
    let named = std::fs::symlink_metadata(folder).ok()?;
    ((named.dev(), named.ino()) == (about.st_dev, about.st_ino)).then_some(lock)
}

/// Removes folders in `place` whose lock is free: their owners have ended. A process id would not show this for an owner
/// in another PID namespace. Folders of other users stay.
fn sweep(place: &Path) {
    let Ok(entries) = std::fs::read_dir(place) else { return };
    for entry in entries.flatten().filter(|entry| entry.file_name().as_bytes().starts_with(HIDDEN.as_bytes())) {
        if let Some(_lock) = lock_folder(&entry.path()) {
            // As above.
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

/// 128 bits in hexadecimal digits.
fn random_name() -> Result<String, Errno> {
    let mut bytes = [0; 16];
    // The kernel fills requests of up to 256 bytes whole.
    getrandom(&mut bytes, GetRandomFlags::empty())?;
    Ok(format!("{:032x}", u128::from_ne_bytes(bytes)))
}

/// True for a socket with no listener.
fn is_left_behind(path: &Path, address: &SocketAddrUnix) -> Result<bool, Errno> {
    let is_socket = std::fs::symlink_metadata(path).map_err(error::errno)?.file_type().is_socket();
    // A listener that does not accept answers EAGAIN at once; without NONBLOCK this would wait for it.
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let probe = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    Ok(is_socket && connect(&probe, address) == Err(Errno::CONNREFUSED))
}

/// Credentials of the other side at the time it connected, from the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Process id; `None` when it is in a PID namespace that cannot be seen from here.
    pub pid: Option<Pid>,
    /// Effective user id.
    pub user: u32,
    /// Effective group id.
    pub group: u32,
}

/// Connection to one program.
#[derive(Debug)]
pub struct Connection(OwnedFd);

impl Connection {
    /// Connects to the listener with this name, as a program does.
    ///
    /// # Errors
    /// The kernel's answer: ECONNREFUSED without a listener.
    pub fn to(name: &str) -> Result<Connection, Errno> {
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        connect(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes())?)?;
        Ok(Connection(socket))
    }

    /// Connects to the listener at this path.
    ///
    /// # Errors
    /// The kernel's answer: ENOENT or ECONNREFUSED without a listener there.
    pub fn at(path: &Path) -> Result<Connection, Errno> {
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        connect(&socket, &SocketAddrUnix::new(path)?)?;
        Ok(Connection(socket))
    }

    /// Sends a message and descriptors.
    ///
    /// # Errors
    /// The kernel's answer: EPIPE when the other side has ended.
    pub fn send(&self, message: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), Errno> {
        self.send_with(message, fds, SendFlags::NOSIGNAL)
    }

    fn send_with(&self, message: &[u8], fds: &[BorrowedFd<'_>], flags: SendFlags) -> Result<(), Errno> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_FDS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
            return Err(Errno::INVAL);
        }
        sendmsg(&self.0, &[IoSlice::new(message)], &mut control, flags).map(|_| ())
    }

    /// Sends a message and descriptors without waiting for space in the queue.
    ///
    /// # Errors
    /// The kernel's answer: EAGAIN when the other side has not read earlier messages, EPIPE when it has ended.
    pub fn send_at_once(&self, message: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), Errno> {
        self.send_with(message, fds, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)
    }

    /// Receives the next message, if there is one.
    ///
    /// # Errors
    /// The kernel's answer, ECONNRESET when the other side has ended. Descriptors in it are closed.
    pub fn receive_at_once(&self, message: &mut [u8]) -> Result<Option<usize>, Errno> {
        // Without a buffer for them, the kernel closes descriptors that come with the message.
        match recv(&self.0, &mut *message, RecvFlags::DONTWAIT | RecvFlags::TRUNC) {
            Ok((_, 0)) => Err(Errno::CONNRESET),
            Ok((_, bytes)) if bytes > message.len() => Err(Errno::MSGSIZE),
            Ok((_, bytes)) => Ok(Some(bytes)),
            Err(Errno::AGAIN | Errno::INTR) => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    /// Receives the next message: its length and its descriptors. `None` when none came within `within`, or the other
    /// side has ended.
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

    /// Credentials of the other side.
    ///
    /// # Errors
    /// The kernel's answer.
    pub fn peer(&self) -> Result<Peer, Errno> {
        // Not through rustix, whose pid cannot be zero.
        let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
        let mut bytes = cast::fits::<_, libc::socklen_t>(size_of::<libc::ucred>());
        let fd = self.0.as_raw_fd();
        // SAFETY: the descriptor is open while `self` is borrowed; the kernel writes at most `bytes` bytes to `peer`,
        // which has as many and is made of numbers alone.
        let done = unsafe {
            libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_PEERCRED, (&raw mut peer).cast(), &raw mut bytes)
        };
        if done < 0 {
            return Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO));
        }
        Ok(Peer { pid: (peer.pid > 0).then_some(Pid(peer.pid)), user: peer.uid, group: peer.gid })
    }

    /// The process at the other side at the time it connected, and no later one with its number. On kernels without
    /// SO_PEERPIDFD (before 6.5) it is the process with that number now: ask at once after connecting to be sure.
    ///
    /// # Errors
    /// `ESRCH` when it has ended, or is in a PID namespace that cannot be seen from here.
    pub fn peer_process(&self) -> Result<OwnedFd, Errno> {
        const SO_PEERPIDFD: i32 = 77;
        let mut pidfd = -1i32;
        let mut bytes = cast::fits::<_, libc::socklen_t>(size_of::<i32>());
        let fd = self.0.as_raw_fd();
        // SAFETY: the descriptor is open while `self` is borrowed; the kernel writes at most `bytes` bytes to `pidfd`,
        // which has as many.
        let done =
            unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, SO_PEERPIDFD, (&raw mut pidfd).cast(), &raw mut bytes) };
        if done == 0 && pidfd >= 0 {
            // SAFETY: a new descriptor, ours from now on.
            return Ok(unsafe { OwnedFd::from_raw_fd(pidfd) });
        }
        match Errno::from_io_error(&std::io::Error::last_os_error()) {
            Some(Errno::NOPROTOOPT) => {
                let pid = self.peer()?.pid.ok_or(Errno::SRCH)?;
                pid.open().map_err(|_| Errno::SRCH)
            }
            Some(errno) => Err(errno),
            None => Err(Errno::IO),
        }
    }

    /// True if the other side has ended.
    pub fn is_over(&self) -> bool {
        self.is_over_within(Duration::ZERO)
    }

    /// Waits up to `within` for a message or the end.
    pub fn is_readable_within(&self, within: Duration) -> bool {
        readable(self.0.as_fd(), within).unwrap_or(true)
    }

    /// [`Connection::is_over`], waiting up to `within`.
    pub fn is_over_within(&self, within: Duration) -> bool {
        let mut fds = [PollFd::new(&self.0, PollFlags::empty())];
        let timeout = Timespec::try_from(within).ok();
        poll(&mut fds, timeout.as_ref()).is_ok() && fds[0].revents().intersects(PollFlags::HUP | PollFlags::ERR)
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
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
        let (user, group) = (geteuid().as_raw(), rustix::process::getegid().as_raw());
        assert_eq!(ours.peer(), Ok(Peer { pid: Some(Pid::own()), user, group }));
        let own = ours.peer_process().unwrap();
        assert!(!readable(own.as_fd(), Duration::ZERO).unwrap(), "it has not ended");
        assert!(!ours.is_over());
        drop(theirs);
        assert!(ours.is_over());
        assert!(ours.receive(&mut message, SOON).unwrap().is_none());
    }

    #[test]
    fn a_listener_takes_the_place_of_one_that_ended_and_of_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("track.sock");
        let listener = Listener::at(&path).unwrap();
        let theirs = Connection::at(&path).unwrap();
        assert!(listener.accept(SOON).unwrap().is_some());
        drop(theirs);
        assert_eq!(Listener::at(&path).unwrap_err(), Errno::ADDRINUSE);
        drop(listener);
        assert!(path.exists(), "as after a crash");
        Listener::at(&path).unwrap();
        let file = folder.path().join("file");
        std::fs::write(&file, "mine").unwrap();
        assert_eq!(Listener::at(&file).unwrap_err(), Errno::ADDRINUSE);
        assert_eq!(std::fs::read(&file).unwrap(), b"mine");
    }

    #[test]
    fn one_who_listens_and_accepts_nobody_is_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("track.sock");
        let listener = Listener::at(&path).unwrap();
        listen(&listener.socket, 0).unwrap();
        let _first = Connection::at(&path).unwrap(); // fills the queue
        assert_eq!(Listener::at(&path).unwrap_err(), Errno::ADDRINUSE);
    }

    #[test]
    fn a_hidden_listener_is_found_by_who_was_told_its_name_and_leaves_nothing() {
        let place = tempfile::tempdir().unwrap();
        let listener = Listener::hidden(place.path(), true).unwrap();
        let path = Path::new(listener.name());
        let folder = path.parent().unwrap();
        let mode = |path: &Path| std::fs::metadata(path).unwrap().mode() & 0o777;
        assert_eq!((mode(folder), mode(path)), (0o711, 0o666));
        let _theirs = Connection::at(path).unwrap();
        assert!(listener.accept(SOON).unwrap().is_some());
        let shown = std::fs::read_to_string("/proc/net/unix").unwrap();
        let secret = path.file_name().unwrap().to_str().unwrap();
        assert!(shown.contains(folder.to_str().unwrap()) && !shown.contains(secret));
        let alone = Listener::hidden(place.path(), false).unwrap();
        assert_eq!(mode(Path::new(alone.name()).parent().unwrap()), 0o700);
        drop((listener, alone));
        assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_folder_is_removed_once_nobody_holds_its_lock_whatever_process_its_name_has() {
        let place = tempfile::tempdir().unwrap();
        let [dead, living, file] =
            ["1-0", "4194999-0", "file"].map(|name| place.path().join(format!("{HIDDEN}{name}")));
        let others = place.path().join("others");
        for folder in [&dead, &living, &others] {
            std::fs::create_dir(folder).unwrap();
        }
        std::fs::write(&file, "mine").unwrap();
        // Like a masu in another PID namespace, whose number no process has here; the dead one's number is a living
        // process's.
        let lock = lock_folder(&living).unwrap();
        assert!(lock_folder(&living).is_none(), "locked");
        let first = Listener::hidden(place.path(), true).unwrap();
        assert_eq!([&dead, &living, &others, &file].map(|path| path.exists()), [false, true, true, true]);
        drop(lock);
        let second = Listener::hidden(place.path(), true).unwrap();
        assert_eq!([&living, &others, &file].map(|path| path.exists()), [false, true, true]);
        assert!(Connection::at(Path::new(first.name())).is_ok() && Connection::at(Path::new(second.name())).is_ok());
    }

    #[test]
    fn many_who_begin_at_once_do_not_sweep_each_other() {
        let place = tempfile::tempdir().unwrap();
        let one = || Listener::hidden(place.path(), true).unwrap();
        let all: Vec<Listener> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(|| (0..20).map(|_| one()).collect::<Vec<_>>())).collect();
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        });
        assert!(all.iter().all(|listener| Connection::at(Path::new(listener.name())).is_ok()));
        assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), all.len());
    }

    #[test]
    fn nothing_is_hidden_where_others_may_rename_it() {
        let place = tempfile::tempdir().unwrap();
        chmod(place.path(), Mode::from_raw_mode(0o777)).unwrap();
        assert_eq!(Listener::hidden(place.path(), true).unwrap_err(), Errno::PERM);
        chmod(place.path(), Mode::from_raw_mode(0o1777)).unwrap();
        Listener::hidden(place.path(), true).unwrap();
        assert_eq!(Listener::hidden(Path::new("/proc/self/exe"), true).unwrap_err(), Errno::PERM);
    }

    #[test]
    fn who_does_not_read_is_found_out_without_waiting_and_what_is_too_long_is_said() {
        let listener = Listener::open().unwrap();
        let theirs = Connection::to(listener.name()).unwrap();
        let ours = listener.accept(SOON).unwrap().unwrap();
        let mut message = [0; 16];
        assert_eq!(ours.receive_at_once(&mut message), Ok(None));
        theirs.send(b"seven", &[]).unwrap();
        assert_eq!(ours.receive_at_once(&mut message), Ok(Some(5)));
        theirs.send(&[1; 17], &[]).unwrap();
        assert_eq!(ours.receive_at_once(&mut message), Err(Errno::MSGSIZE));
        let full = (0..1_000_000).find_map(|_| ours.send_at_once(&[0; 1024], &[]).err());
        assert_eq!(full, Some(Errno::AGAIN));
        drop(theirs);
        assert_eq!(ours.receive_at_once(&mut message), Err(Errno::CONNRESET));
    }

    #[test]
    fn nobody_comes_and_the_waiting_ends() {
        let listener = Listener::open().unwrap();
        assert!(listener.accept(Duration::from_millis(10)).unwrap().is_none());
    }
}
