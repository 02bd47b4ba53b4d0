//! Connections that have not sent the secret yet: a bounded number, without a thread.
//!
//! Programs connect by a hidden socket whose path only they get. Where the path is not visible (chroot), they use a
//! socket with a public name, and there unrelated processes connect as well. The kernel's report of the peer's user
//! separates the latter; they are never heard for long, and the oldest of them is dropped for the next. They cost
//! neither masu nor a program on the hidden socket more than that.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use farmem_engine::handshake::{FILTERED_ENDING, Identity, LEFT_OUT, Message, REJECTED};
use linux::message_socket::{Connection, Listener, Peer};
use linux::open_watch::OpenWatch;
use linux::runtime_directory;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::geteuid;

use super::{bytes_of, message_of};

/// Time for another user's program to identify itself.
const OTHER_USERS_DEADLINE: Duration = Duration::from_secs(10);

/// Connections heard at a time: of this user or by the hidden socket, and of others.
const MOST: [usize; 2] = [256, 64];

/// Connections accepted at a time by the public socket; then it pauses for `REST`.
const AT_A_TIME: usize = 64;

/// Pause after connections of other users. It limits their cost to some 30,000 system calls in a second.
const REST: Duration = Duration::from_millis(5);

/// Connection without the secret so far.
struct Unproven {
    connection: Connection,
    peer: Peer,
    /// Whether it belongs to another user, by the public socket.
    of_other_user: bool,
    since: Instant,
}

/// Program that has sent the secret.
pub struct Proven {
    /// Connection of its service.
    pub connection: Connection,
    /// The process at the other side.
    pub peer: Peer,
    /// Its first message.
    pub identity: Identity,
}

/// Both sockets, and their unproven connections.
pub struct Entrance {
    /// Hidden socket; `None` where no folder accepts it.
    hidden: Option<Listener>,
    seen: Listener,
    /// Watch of the file that programs behind a seccomp filter open.
    filtered: Option<OpenWatch>,
    secret: u64,
    unproven: Vec<Unproven>,
    rests_until: Instant,
    /// Descriptor that is given up for a program that masu has none for.
    spare: Option<OwnedFd>,
}

/// Folders for hidden sockets: for root's programs, which may become other users', a folder of root's; else one of the
/// user's own.
fn places(variable: impl Fn(&str) -> Option<std::ffi::OsString>) -> Vec<PathBuf> {
    if geteuid().is_root() {
        // Where it cannot be created or belongs to another user, the next one may do.
        let own = runtime_directory::public(Path::new(runtime_directory::DIRECTORY)).ok();
        let own = own.map(|_| PathBuf::from(runtime_directory::DIRECTORY));
        return own.into_iter().chain([std::env::temp_dir()]).collect();
    }
    let own = variable("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_absolute());
    own.into_iter().chain([std::env::temp_dir()]).collect()
}

impl Entrance {
    /// Opens both sockets. `secret` is the half that programs send.
    ///
    /// # Errors
    /// The kernel's answer when there is no descriptor left.
    pub fn open(secret: u64, variable: impl Fn(&str) -> Option<std::ffi::OsString>) -> Result<Entrance, Errno> {
        let for_others = geteuid().is_root();
        let hide = |place: &PathBuf| Listener::hidden(place, for_others).ok();
        let hidden = places(variable).iter().find_map(hide);
        // In the listener's folder, which is removed with it. Without a watch these programs are not counted.
        let watch = |hidden: &Listener| {
            let path = format!("{}{FILTERED_ENDING}", hidden.name());
            OpenWatch::create(Path::new(&path), if for_others { 0o644 } else { 0o600 }).ok()
        };
        let filtered = hidden.as_ref().and_then(watch);
        Ok(Entrance {
            hidden,
            seen: Listener::open()?,
            filtered,
            secret,
            unproven: Vec::new(),
            rests_until: Instant::now(),
            spare: spare(),
        })
    }

    /// Public name.
    pub fn name(&self) -> &str {
        self.seen.name()
    }

    /// Hidden path.
    pub fn path(&self) -> Option<&str> {
        self.hidden.as_ref().map(Listener::name)
    }

    /// Tells the next waiting program on the hidden socket that it is left out, with the spare descriptor. Returns
    /// whether there was one.
    pub fn leave_one_out(&mut self) -> bool {
        let Some(hidden) = &self.hidden else { return false };
        drop(self.spare.take());
        let connection = hidden.accept(Duration::ZERO).ok().flatten();
        let mut bytes = [0; size_of::<Message>()];
        let told = connection.is_some_and(|one| {
            // The program would get ECONNRESET before the answer if the connection were closed with its message unread.
            let _ = one.receive_at_once(&mut bytes);
            one.send_at_once(&bytes_of(&LEFT_OUT), &[]).is_ok()
        });
        self.spare = spare();
        told
    }

    /// Number of programs since the last call that began behind a seccomp filter.
    pub fn filtered(&self) -> u64 {
        self.filtered.as_ref().map_or(0, OpenWatch::opened)
    }

    /// Waits for programs, at most `within`, and returns the ones that sent the secret.
    ///
    /// # Errors
    /// The kernel's answer when there is no descriptor left; earlier connections are kept, and `proven` has the
    /// programs heard.
    pub fn wait(&mut self, within: Duration, proven: &mut Vec<Proven>) -> Result<(), Errno> {
        let rests = self.rests_until.saturating_duration_since(Instant::now());
        let within = if rests.is_zero() { within } else { within.min(rests) };
        self.poll(within, rests.is_zero())?;
        let (secret, now) = (self.secret, Instant::now());
        let came = self.accept(now, rests.is_zero());
        for one in std::mem::take(&mut self.unproven) {
            match one.hear(secret, now) {
                Heard::Nothing(one) => self.unproven.push(one),
                Heard::Secret(program) => proven.push(program),
                Heard::Wrong => {}
            }
        }
        came
    }

    fn poll(&self, within: Duration, seen: bool) -> Result<(), Errno> {
        let listeners = self.hidden.iter().chain(Some(&self.seen).filter(|_| seen)).map(AsFd::as_fd);
        let listeners = listeners.chain(self.filtered.iter().map(AsFd::as_fd));
        let fds = listeners.chain(self.unproven.iter().map(|one| one.connection.as_fd()));
        let mut fds: Vec<PollFd<'_>> = fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        let timeout = Timespec::try_from(within).map_err(|_| Errno::INVAL)?;
        match poll(&mut fds, Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(errno),
        }
    }

    /// Accepts waiting connections.
    fn accept(&mut self, now: Instant, seen: bool) -> Result<(), Errno> {
        let own = geteuid().as_raw();
        for _ in 0..AT_A_TIME {
            let Some(connection) = self.hidden.as_ref().map_or(Ok(None), |hidden| hidden.accept(Duration::ZERO))?
            else {
                break;
            };
            self.take_in(connection, own, now, false);
        }
        for _ in 0..if seen { AT_A_TIME } else { 0 } {
            let Some(connection) = self.seen.accept(Duration::ZERO)? else { break };
            self.take_in(connection, own, now, true);
        }
        Ok(())
    }

    fn take_in(&mut self, connection: Connection, own: u32, now: Instant, seen: bool) {
        // Nothing is expected from an unknown peer.
        let Ok(peer) = connection.peer() else { return };
        let of_other_user = seen && peer.user != own;
        if of_other_user {
            self.rests_until = now + REST;
        }
        if is_served(peer.user, own) {
            self.drop_oldest(of_other_user);
            self.unproven.push(Unproven { connection, peer, of_other_user, since: now });
        }
    }

    /// Drops the oldest connection: a program identifies itself as soon as it has connected.
    fn drop_oldest(&mut self, of_other_user: bool) {
        let of_its_sort = |one: &Unproven| one.of_other_user == of_other_user;
        if self.unproven.iter().filter(|one| of_its_sort(one)).count() >= MOST[usize::from(of_other_user)]
            && let Some(oldest) = self.unproven.iter().position(of_its_sort)
        {
            self.unproven.remove(oldest);
        }
    }
}

fn spare() -> Option<OwnedFd> {
    std::fs::File::open("/").ok().map(OwnedFd::from)
}

/// Result of reading a connection.
enum Heard {
    /// No message yet.
    Nothing(Unproven),
    /// A program of this masu.
    Secret(Proven),
    /// Closed, wrong, or too late.
    Wrong,
}

impl Unproven {
    /// Reads a connection. A program of this user may be stopped before its message, for any time.
    fn hear(self, secret: u64, now: Instant) -> Heard {
        let mut bytes = [0; size_of::<Message>()];
        match self.connection.receive_at_once(&mut bytes) {
            Ok(Some(_)) => {}
            Ok(None) if self.peer.user == geteuid().as_raw() => return Heard::Nothing(self),
            Ok(None) if now.saturating_duration_since(self.since) <= OTHER_USERS_DEADLINE => {
                return Heard::Nothing(self);
            }
            Ok(None) | Err(_) => return Heard::Wrong,
        }
        match Identity::of(&message_of(&bytes)) {
            Some(identity) if identity.secret == secret => {
                Heard::Secret(Proven { connection: self.connection, peer: self.peer, identity })
            }
            // A program that outlives a masu of this name; or an unrelated process.
            Some(_) => {
                let _ = self.connection.send_at_once(&bytes_of(&REJECTED), &[]);
                Heard::Wrong
            }
            None => Heard::Wrong,
        }
    }
}

/// Whether a peer of this user is served. A program that masu started is another user's only if it was root's: any
/// program that would turn an ordinary user's process into another user's runs without the library.
pub fn is_served(peer: u32, own: u32) -> bool {
    peer == own || own == 0
}
