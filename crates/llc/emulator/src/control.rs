//! Control socket beside the mount, to set the counters in tests: one line per command, answered by a line.
//!
//! ```text
//! occupancy GROUP CACHE VALUE   what llc_occupancy shows from now on; total and local likewise
//! want GROUP BYTES              occupancy is that many bytes in each cache, or as many as the group's ways hold
//! settle                        the lines of removed groups are gone: no RMID is in limbo any longer
//! ```
//!
//! GROUP is a path, `.` for the default group or `web/mon_groups/vm1`. CACHE is a cache's id, with `/` and a number
//! for one of its nodes. VALUE is a number of bytes or one of the words Error, Unavailable, Unassigned.

use std::fmt;
use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use units::Bytes;

use crate::counters::{Event, Value};
use crate::group::GroupId;
use crate::machine::Machine;
use crate::node::Node;

/// Command that was not executed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rejected {
    /// No command, or a word that is no value.
    Syntax {
        /// Text found.
        found: String,
        /// Text expected.
        expected: &'static str,
    },
    /// No such object now.
    Absent {
        /// Kind of the object.
        kind: &'static str,
        /// Its name.
        name: String,
    },
}

impl fmt::Display for Rejected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Rejected::Syntax { found, expected } => write!(f, "{found}: expected {expected}"),
            Rejected::Absent { kind, name } => write!(f, "{name}: no such {kind}"),
        }
    }
}

impl std::error::Error for Rejected {}

fn syntax(found: &str, expected: &'static str) -> Rejected {
    Rejected::Syntax { found: found.to_owned(), expected }
}

impl Machine {
    /// Executes one line.
    ///
    /// # Errors
    /// `Syntax` for a line that is no command, `Absent` for a group, cache or node that does not exist.
    pub fn tell(&mut self, line: &str) -> Result<(), Rejected> {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        match words[..] {
            ["occupancy", group, cache, value] => self.say(group, Event::Occupancy, cache, value),
            ["total", group, cache, value] => self.say(group, Event::Total, cache, value),
            ["local", group, cache, value] => self.say(group, Event::Local, cache, value),
            ["want", group, bytes] => {
                let id = self.named(group)?;
                let bytes = bytes.parse().map_err(|_| syntax(bytes, "a number of bytes"))?;
                self.counters.wanted.insert(id, Bytes(bytes));
                Ok(())
            }
            ["settle"] => {
                self.counters.settle();
                Ok(())
            }
            _ => Err(syntax(line, "occupancy, total or local GROUP CACHE VALUE, want GROUP BYTES, or settle")),
        }
    }

    fn named(&self, group: &str) -> Result<GroupId, Rejected> {
        match self.find(group) {
            Ok(Node::Group(id)) => Ok(id),
            _ => Err(Rejected::Absent { kind: "group", name: group.to_owned() }),
        }
    }

    fn say(&mut self, group: &str, event: Event, cache: &str, value: &str) -> Result<(), Rejected> {
        let id = self.named(group)?;
        let (number, node) = cache.split_once('/').map_or((cache, None), |(number, node)| (number, Some(node)));
        let unknown = || Rejected::Absent { kind: "cache or node", name: cache.to_owned() };
        let number: u32 = number.parse().map_err(|_| unknown())?;
        let position = self.hardware.cache_ids.iter().position(|id| *id == number).ok_or_else(unknown)?;
        let nodes = self.hardware.nodes_per_cache();
        let node = match node {
            None => 0,
            Some(node) => node.parse().ok().filter(|node| *node < nodes).ok_or_else(unknown)?,
        };
        let value = match value {
            "Error" => Value::Error,
            "Unavailable" => Value::Unavailable,
            "Unassigned" => Value::Unassigned,
            count => Value::Count(
                count.parse().map_err(|_| syntax(count, "a number of bytes, Error, Unavailable or Unassigned"))?,
            ),
        };
        self.counters.said.insert((id, event, position, node), value);
        Ok(())
    }
}

/// File of a socket. Dropping it removes the file, if it is still the same.
#[derive(Debug)]
pub struct Socket {
    path: PathBuf,
    identity: Option<(u64, u64)>,
}

impl Drop for Socket {
    fn drop(&mut self) {
        if self.identity.is_some() && identity(&self.path) == self.identity {
            // The file may have been removed already.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Device and inode.
fn identity(path: &Path) -> Option<(u64, u64)> {
    fs::symlink_metadata(path).ok().map(|about| (about.dev(), about.ino()))
}

/// Listens at `path` and executes the commands, in threads of its own. A socket without a listener is replaced.
///
/// # Errors
/// When the socket cannot be made; EADDRINUSE if another process listens, or something else is at `path`.
pub fn listen(path: &Path, machine: Arc<Mutex<Machine>>) -> io::Result<Socket> {
    let is_left = || UnixStream::connect(path).is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused);
    if fs::symlink_metadata(path).is_ok_and(|about| about.file_type().is_socket()) && is_left() {
        fs::remove_file(path)?;
    }
    let listener = UnixListener::bind(path)?;
    let socket = Socket { path: path.to_owned(), identity: identity(path) };
    std::thread::spawn(move || {
        for stream in listener.incoming().filter_map(Result::ok) {
            let machine = Arc::clone(&machine);
            std::thread::spawn(move || {
                // A closed connection needs no answer.
                let _ = serve(&stream, &machine);
            });
        }
    });
    Ok(socket)
}

fn serve(stream: &UnixStream, machine: &Mutex<Machine>) -> io::Result<()> {
    for line in BufReader::new(stream).lines() {
        let told = machine.lock().unwrap_or_else(PoisonError::into_inner).tell(line?.trim());
        let mut to = stream;
        match told {
            Ok(()) => to.write_all(b"ok\n")?,
            Err(why) => to.write_all(format!("error: {why}\n").as_bytes())?,
        }
    }
    Ok(())
}

/// Sends a line to the emulator that listens at `path`.
///
/// # Errors
/// Without a listener, or with its answer when the line was not understood.
pub fn send(path: &Path, line: &str) -> io::Result<()> {
    let mut stream = UnixStream::connect(path)?;
    stream.write_all(format!("{line}\n").as_bytes())?;
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer)?;
    match answer.trim_end() {
        "ok" => Ok(()),
        other => Err(io::Error::other(other.strip_prefix("error: ").unwrap_or("no answer").to_owned())),
    }
}
