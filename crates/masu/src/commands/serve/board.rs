//! Socket of `masu status`: each connection gets the state of the service, as JSON. Only root may connect.

use std::io::{self, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::Duration;

use linux::runtime_directory::DIRECTORY;
use rustix::fs::Mode;
use serve::snapshot::Snapshot;
use units::Bytes;

/// Longest wait for the service, which looks at questions between two parts of its work.
const ANSWER_WITHIN: Duration = Duration::from_secs(20);
/// Longest wait for a client that does not read.
const READ_WITHIN: Duration = Duration::from_secs(2);
/// Longest answer.
const ANSWER_MOST: Bytes = Bytes::mib(256);

/// Path of the socket.
pub fn path() -> PathBuf {
    PathBuf::from(DIRECTORY).join("serve.sock")
}

/// The service's side.
pub struct Board {
    asked: Arc<AtomicBool>,
    answers: Sender<Snapshot>,
}

impl Board {
    /// Listens. The caller is the only service of this host, and has one thread so far.
    ///
    /// # Errors
    /// When the socket cannot be made.
    pub fn begin() -> io::Result<Board> {
        // Left by one that was killed.
        match std::fs::remove_file(path()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let before = rustix::process::umask(Mode::from_bits_truncate(0o177));
        let listener = UnixListener::bind(path());
        rustix::process::umask(before);
        let (listener, asked, (answers, ready)) = (listener?, Arc::new(AtomicBool::new(false)), mpsc::channel());
        let same = Arc::clone(&asked);
        let thread = std::thread::Builder::new().name("masu-status".to_owned());
        thread.spawn(move || answer_all(&listener, &same, &ready))?;
        Ok(Board { asked, answers })
    }

    /// Whether a client waits for an answer; asked once for each.
    pub fn is_asked(&self) -> bool {
        self.asked.swap(false, Relaxed)
    }

    /// Answers the client.
    pub fn answer(&self, snapshot: Snapshot) {
        // The thread lives as long as this process.
        let _ = self.answers.send(snapshot);
    }

    /// Removes the socket.
    pub fn end(self) {
        let _ = std::fs::remove_file(path());
    }
}

fn answer_all(listener: &UnixListener, asked: &AtomicBool, ready: &Receiver<Snapshot>) {
    loop {
        match listener.accept() {
            Ok((mut client, _)) => {
                // One for a client that has gone.
                ready.try_iter().for_each(drop);
                asked.store(true, Relaxed);
                let Ok(snapshot) = ready.recv_timeout(ANSWER_WITHIN) else { continue };
                let text = serde_json::to_string(&snapshot).unwrap_or_default();
                // A client that does not read, or has gone, loses the rest.
                let _ = client.set_write_timeout(Some(READ_WITHIN)).and_then(|()| client.write_all(text.as_bytes()));
            }
            // Descriptors are short.
            Err(_) => std::thread::sleep(READ_WITHIN),
        }
    }
}

/// State of the running service.
///
/// # Errors
/// Error of the socket: without a service there is none, or nobody listens.
pub fn ask() -> io::Result<Snapshot> {
    let mut service = UnixStream::connect(path())?;
    service.set_read_timeout(Some(ANSWER_WITHIN))?;
    let mut text = String::new();
    Read::by_ref(&mut service).take(ANSWER_MOST.0).read_to_string(&mut text)?;
    serde_json::from_str(&text).map_err(|_| io::ErrorKind::TimedOut.into())
}
