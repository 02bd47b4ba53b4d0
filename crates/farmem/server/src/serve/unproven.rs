//! Connections of which nobody knows yet who they are: a bounded number of them, without a thread, until they say the secret.
//!
//! Programs come by a hidden socket, of which only they were told. Where it is not seen (chroot), they come by one whose name
//! everybody sees, and there others come as well: those are told apart by the kernel's word for their user, never heard for long, and
//! the oldest of them gives way to the next. They cost neither a program that comes by the hidden socket nor masu more than that.

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use farmem_engine::greeting::{Hello, Message, STRANGER};
use linux::handover::{Connection, Listener, Peer};
use linux::runtime_directory;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::geteuid;

use super::{bytes_of, message_of};

/// In this time another user's program says who it is.
const STRANGERS_WORDS: Duration = Duration::from_secs(10);

/// Connections that are heard at a time: of this user's or by the hidden socket, and of others.
const MOST: [usize; 2] = [256, 64];

/// Connections that are accepted at a time by the socket that everybody sees; then it rests for `REST`.
const AT_A_TIME: usize = 64;

/// After others have come. So they cost at most some 30,000 system calls in a second.
const REST: Duration = Duration::from_millis(5);

/// One of them.
struct Unproven {
    connection: Connection,
    peer: Peer,
    /// Of another user, by the socket that everybody sees.
    stranger: bool,
    since: Instant,
}

/// A program that has said the secret.
pub struct Proven {
    /// By which it is served.
    pub connection: Connection,
    /// The process at the other side.
    pub peer: Peer,
    /// What it said.
    pub hello: Hello,
}

/// Both sockets, and who came by them.
pub struct Entrance {
    /// Missing where there is no place for it.
    hidden: Option<Listener>,
    seen: Listener,
    secret: u64,
    unproven: Vec<Unproven>,
    rests_until: Instant,
}

/// Where hidden sockets may be: for root's programs, which may become other users', a folder of root's; else one of the user's own.
fn places(variable: impl Fn(&str) -> Option<std::ffi::OsString>) -> Vec<PathBuf> {
    if geteuid().is_root() {
        // Where it cannot be made or is somebody else's, the next one may do.
        let own = runtime_directory::public(Path::new(runtime_directory::DIRECTORY)).ok();
        let own = own.map(|_| PathBuf::from(runtime_directory::DIRECTORY));
        return own.into_iter().chain([std::env::temp_dir()]).collect();
    }
    let own = variable("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_absolute());
    own.into_iter().chain([std::env::temp_dir()]).collect()
}

impl Entrance {
    /// Opens both. Programs say this half of the secret.
    ///
    /// # Errors
    /// The kernel's answer when there is no descriptor left.
    pub fn open(secret: u64, variable: impl Fn(&str) -> Option<std::ffi::OsString>) -> Result<Entrance, Errno> {
        let hide = |place: &PathBuf| Listener::hidden(place, geteuid().is_root()).ok();
        let hidden = places(variable).iter().find_map(hide);
        Ok(Entrance { hidden, seen: Listener::open()?, secret, unproven: Vec::new(), rests_until: Instant::now() })
    }

    /// The name that everybody sees.
    pub fn name(&self) -> &str {
        self.seen.name()
    }

    /// The path that nobody is told.
    pub fn path(&self) -> Option<&str> {
        self.hidden.as_ref().map(Listener::name)
    }

    /// Waits for programs, at most so long, and hands over those that said the secret.
    ///
    /// # Errors
    /// The kernel's answer when there is no descriptor left; who had come before is kept, and `proven` has who was heard.
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
        let fds = listeners.chain(self.unproven.iter().map(|one| one.connection.as_fd()));
        let mut fds: Vec<PollFd<'_>> = fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        let timeout = Timespec::try_from(within).map_err(|_| Errno::INVAL)?;
        match poll(&mut fds, Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(errno),
        }
    }

    /// Takes in who waits at the sockets.
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
        // Of who is not known nothing is expected.
        let Ok(peer) = connection.peer() else { return };
        let stranger = seen && peer.user != own;
        if stranger {
            self.rests_until = now + REST;
        }
        if is_served(peer.user, own) {
            self.make_room(stranger);
            self.unproven.push(Unproven { connection, peer, stranger, since: now });
        }
    }

    /// The oldest gives way: a program says who it is as soon as it has connected.
    fn make_room(&mut self, stranger: bool) {
        let of_its_sort = |one: &Unproven| one.stranger == stranger;
        if self.unproven.iter().filter(|one| of_its_sort(one)).count() >= MOST[usize::from(stranger)]
            && let Some(oldest) = self.unproven.iter().position(of_its_sort)
        {
            self.unproven.remove(oldest);
        }
    }
}

/// What one of them said.
enum Heard {
    /// It may still say it.
    Nothing(Unproven),
    /// It is ours.
    Secret(Proven),
    /// It is gone, not ours, or too late.
    Wrong,
}

impl Unproven {
    /// It may be stopped before it says anything, for however long, if it is of this user.
    fn hear(self, secret: u64, now: Instant) -> Heard {
        let mut bytes = [0; size_of::<Message>()];
        match self.connection.receive_at_once(&mut bytes) {
            Ok(Some(_)) => {}
            Ok(None) if self.peer.user == geteuid().as_raw() => return Heard::Nothing(self),
            Ok(None) if now.saturating_duration_since(self.since) <= STRANGERS_WORDS => return Heard::Nothing(self),
            Ok(None) | Err(_) => return Heard::Wrong,
        }
        match Hello::of(&message_of(&bytes)) {
            Some(hello) if hello.secret == secret => {
                Heard::Secret(Proven { connection: self.connection, peer: self.peer, hello })
            }
            // A program that outlives a masu of this name; or somebody else.
            Some(_) => {
                let _ = self.connection.send_at_once(&bytes_of(&STRANGER), &[]);
                Heard::Wrong
            }
            None => Heard::Wrong,
        }
    }
}

/// A program that masu started is another user's only if it was root's: what an ordinary user's program could become another user's
/// by runs without the library.
pub fn is_served(peer: u32, own: u32) -> bool {
    peer == own || own == 0
}
