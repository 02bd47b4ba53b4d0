//! Page of the service: the thread that feeds its process, and the main function of that process.

use std::io::{self, Write};
use std::net::TcpListener;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use linux::confinement::confine;
use rustix::net::{AddressFamily, sockopt};
use serve::config::service::Listen;
use serve::page::{Frame, Listener, answer_until_end};
use units::Bytes;

use crate::failure::Failure;
use crate::terminal::print;
use crate::{Done, HOST};

/// User of the process, made by the package; without it, the user of processes without rights.
const USER: &str = "masu";
const NOBODY: (u32, u32) = (65534, 65534);
/// Time between two tries to listen, or to start the process.
const AGAIN_AFTER: Duration = Duration::from_secs(10);
/// Longest wait for the end of the process.
const END_WITHIN: Duration = Duration::from_secs(2);
/// Resources of the process.
const DESCRIPTORS: u64 = 256;
const MEMORY: Bytes = Bytes::gib(1);

/// News of the page.
#[derive(Debug)]
pub enum News {
    /// It answers at this address.
    Answers(String),
    /// It does not, for this reason; it is tried again.
    Failed(String),
}

/// The service's side.
#[derive(Debug)]
pub struct Page {
    listen: Listen,
    frames: Sender<Frame>,
    news: Receiver<News>,
}

impl Page {
    /// Starts the thread, which starts the process.
    ///
    /// # Errors
    /// When the system has no thread left.
    pub fn begin(listen: Listen) -> io::Result<Page> {
        let ((frames, framed), (tell, news)) = (mpsc::channel(), mpsc::channel());
        let thread = std::thread::Builder::new().name("masu-page".to_owned());
        let same = listen.clone();
        thread.spawn(move || feed_until_end(&same, &framed, &tell))?;
        Ok(Page { listen, frames, news })
    }

    /// Passes samples of the time before, or the state. The thread goes on until this is dropped.
    pub fn show(&self, frame: Frame) {
        let _ = self.frames.send(frame);
    }

    /// News since the last call.
    pub fn news(&self) -> Vec<News> {
        self.news.try_iter().collect()
    }

    /// Ends the process, and frees its address.
    pub fn end(self) {
        drop(self.frames);
        let end = Instant::now() + END_WITHIN;
        while self.news.recv_timeout(end.saturating_duration_since(Instant::now())).is_ok() {}
        if let Listen::Unix(path) = &self.listen {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Starts the process, and another one when it ends. Nobody waits for this thread: the process ends with the pipe.
fn feed_until_end(listen: &Listen, frames: &Receiver<Frame>, tell: &Sender<News>) {
    let mut past = Vec::new();
    let mut now: Option<Frame> = None;
    let mut said = None;
    loop {
        let failed = match start(listen) {
            Ok((child, address)) => {
                said = None;
                let _ = tell.send(News::Answers(address));
                match feed(child, frames, &mut past, &mut now) {
                    None => return,
                    Some(error) => error,
                }
            }
            Err(why) => why.to_string(),
        };
        if said.as_ref() != Some(&failed) {
            let _ = tell.send(News::Failed(failed.clone()));
            said = Some(failed);
        }
        let end = Instant::now() + AGAIN_AFTER;
        loop {
            match frames.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok(frame) => keep(frame, &mut past, &mut now),
                Err(RecvTimeoutError::Timeout) => break,
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }
}

fn keep(frame: Frame, past: &mut Vec<Frame>, now: &mut Option<Frame>) {
    match frame {
        Frame::Past(_) => *past = vec![frame],
        Frame::Now(_) => *now = Some(frame),
    }
}

/// Writes frames until the process ends (the reason) or the service does (`None`). A process that reads slowly gets the
/// latest state.
fn feed(mut child: Child, frames: &Receiver<Frame>, past: &mut Vec<Frame>, now: &mut Option<Frame>) -> Option<String> {
    let mut pipe = child.stdin.take()?;
    let mut write = |frame: &Frame| {
        let mut line = serde_json::to_vec(frame).map_err(io::Error::from)?;
        line.push(b'\n');
        pipe.write_all(&line)
    };
    let mut outcome = past.iter().chain(now.iter()).try_for_each(&mut write);
    while outcome.is_ok() {
        let Ok(frame) = frames.recv() else {
            drop(pipe);
            let end = Instant::now() + END_WITHIN;
            while Instant::now() < end && matches!(child.try_wait(), Ok(None)) {
                std::thread::sleep(Duration::from_millis(5));
            }
            return None;
        };
        let mut is_past = matches!(frame, Frame::Past(_));
        keep(frame, past, now);
        for frame in frames.try_iter() {
            is_past |= matches!(frame, Frame::Past(_));
            keep(frame, past, now);
        }
        if is_past {
            outcome = past.iter().try_for_each(&mut write);
        }
        outcome = outcome.and_then(|()| now.iter().try_for_each(&mut write));
    }
    drop(pipe);
    let status = child.wait().map_or_else(|error| linux::describe_io(&error), |status| status.to_string());
    Some(format!("the process of the page has ended: {status}"))
}

/// Reason for which nobody answers.
#[derive(Debug)]
enum NotServed {
    /// The address cannot be had.
    Address(String, io::Error),
    /// The process cannot be started as this user.
    Process(u32, io::Error),
}

impl std::fmt::Display for NotServed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            NotServed::Address(at, error) => write!(f, "cannot listen at {at}: {}", linux::describe_io(error)),
            NotServed::Process(user, error) => {
                let why = linux::describe_io(error);
                write!(f, "cannot start its process as user {user}: {why}; that takes CAP_SETUID and CAP_SETGID")
            }
        }
    }
}

/// Listens, and starts the process.
fn start(listen: &Listen) -> Result<(Child, String), NotServed> {
    let (socket, address) = socket(listen)?;
    let (user, group) = user();
    // The program's file by its inode: an update may have replaced the one at its path.
    let mut command = Command::new("/proc/self/exe");
    command.args(["serve", "--answer-http"]).env_clear().current_dir("/");
    // With the user, std gives up the supplementary groups.
    command.gid(group).uid(user);
    command.stdin(Stdio::piped()).stdout(Stdio::from(socket)).stderr(Stdio::inherit());
    let child = command.spawn().map_err(|error| NotServed::Process(user, error))?;
    Ok((child, address))
}

fn socket(listen: &Listen) -> Result<(OwnedFd, String), NotServed> {
    match listen {
        Listen::Off => Err(NotServed::Address("no address".to_owned(), io::ErrorKind::AddrNotAvailable.into())),
        Listen::Tcp(address) => {
            let socket = TcpListener::bind(address).map_err(|error| NotServed::Address(address.to_string(), error))?;
            let bound = socket.local_addr().unwrap_or(*address);
            Ok((socket.into(), format!("http://{bound}/")))
        }
        Listen::Unix(path) => {
            let at = path.display().to_string();
            let socket = unix_socket(path).map_err(|error| NotServed::Address(at.clone(), error))?;
            Ok((socket.into(), format!("unix:{at}")))
        }
    }
}

/// Any user may connect, as by a network; the folder may say otherwise.
fn unix_socket(path: &Path) -> io::Result<UnixListener> {
    if path.symlink_metadata().is_ok_and(|found| std::os::unix::fs::FileTypeExt::is_socket(&found.file_type())) {
        std::fs::remove_file(path)?;
    }
    let socket = UnixListener::bind(path)?;
    std::fs::set_permissions(path, PermissionsExt::from_mode(0o666))?;
    Ok(socket)
}

/// User and group of the process.
fn user() -> (u32, u32) {
    let passwd = linux::KernelFiles::read(&*HOST, "etc/passwd").unwrap_or_default();
    let of_line = |line: &str| {
        let mut fields = line.split(':');
        let is_ours = fields.next() == Some(USER);
        let numbers = (fields.nth(1)?.parse().ok()?, fields.next()?.parse().ok()?);
        (is_ours && numbers.0 != 0).then_some(numbers)
    };
    passwd.lines().find_map(of_line).unwrap_or(NOBODY)
}

/// Main function of the process: answers on descriptor 1, with what it reads from descriptor 0, until that ends.
///
/// # Errors
/// When it cannot be confined, or was started by hand.
pub fn answer() -> Result<Done, Failure> {
    let failed = |error: io::Error| Failure::new(format!("the page is not served: {}", linux::describe_io(&error)));
    let by_hand = || Failure::new("--answer-http is for `masu serve` alone").remedy("Start `masu serve`.");
    let frames = io::stdin().as_fd().try_clone_to_owned().map_err(failed)?;
    let socket = print::descriptor().map_err(failed)?;
    let family = sockopt::socket_domain(&socket).map_err(|_| by_hand())?;
    let listener = match family {
        AddressFamily::UNIX => Listener::Unix(socket.into()),
        _ => Listener::Tcp(socket.into()),
    };
    // Signals of a terminal are for the service, which ends this process.
    answer_until_end(listener, frames, || confine(DESCRIPTORS, MEMORY)).map_err(failed)?;
    Ok(Done::Whole)
}
