//! A file system by a program (FUSE) that stops answering, and masu's treatment of the processes that use its files.

use std::fs::{File, Permissions};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicU8;
use std::sync::atomic::Ordering::SeqCst;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use contract::track::terms::{Terms, USUAL};
use contract::track::wire::{Answer, MOST_BYTES, Refused, Request, SHORT_BYTES};
use linux::message_socket::Connection;
use linux::{Pid, Rooted, stat};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use rustix::process::Signal;
use units::cast::{fits, index};

use super::Outcome;
use super::programs::{Running, Said, TIME_LIMIT};
use super::redis::wait_until;
use super::run::{Folder, Result, own};
use super::track::Tracker;
use crate::host::{Host, LiveTest, tests};
use crate::program;

/// Tests of this file, and their requirements.
pub(crate) const TESTS: &[LiveTest] = tests! {
    silent_server requires [Root, Fuse, MasuCommand, PageTableWalk, RemoteCollapse, HugePageModes];
    a_process_whose_program_is_on_a_silent_server_is_served_and_its_file_is_passed_over [PageFrames];
    so_is_one_whose_server_is_for_its_user_alone [PageFrames];
    a_process_whose_mmap_lock_does_not_come_is_passed_over [PageFrames];
    a_process_whose_mmap_lock_is_taken_later_is_let_go_and_the_others_go_on;
    a_client_of_the_tracker_whose_mmap_lock_does_not_come_keeps_nobody_out;
    a_client_of_the_tracker_on_a_silent_server_keeps_nobody_waiting;
};

/// Time limit of a command, with a second of watching in it.
const DEADLINE: Duration = Duration::from_secs(20);
/// An arbitrary user id.
const USER: u32 = 4001;
const ANSWERS: u8 = 0;
const SILENT: u8 = 1;
const OVER: u8 = 2;
const NO_ANSWER: &str = "no answer in time (ETIMEDOUT)";

/// The server: one file, which is this program. Dropping it ends the connection, with an error for each waiting
/// process.
struct Server {
    state: Arc<AtomicU8>,
    thread: Option<JoinHandle<()>>,
    folder: Folder,
    /// Dropped after the end of the server: until then their own end may wait for it.
    users: Vec<Running>,
}

impl Server {
    fn start(options: &str) -> Result<Server> {
        let folder = Folder::make("silent")?;
        std::fs::set_permissions(&folder.0, Permissions::from_mode(0o755))?;
        let point = folder.0.join("mount");
        std::fs::create_dir(&point)?;
        let device = File::options().read(true).write(true).custom_flags(libc::O_NONBLOCK).open("/dev/fuse")?;
        let data = format!("fd={},rootmode=40755,user_id={USER},group_id={USER}{options}\0", device.as_raw_fd());
        let data = std::ffi::CStr::from_bytes_with_nul(data.as_bytes())?;
        mount("silent", &point, "fuse.silent", MountFlags::NODEV | MountFlags::NOSUID, Some(data))?;
        let state = Arc::new(AtomicU8::new(ANSWERS));
        let (ours, program) = (Arc::clone(&state), File::open(own()?)?);
        let thread = std::thread::spawn(move || serve(&device, &program, &ours));
        Ok(Server { state, thread: Some(thread), folder, users: Vec::new() })
    }

    fn file(&self) -> PathBuf {
        self.folder.0.join("mount/program")
    }

    fn fall_silent(&self) {
        self.state.store(SILENT, SeqCst);
    }

    /// Closes the device: the kernel answers for the server from now on.
    fn end(&mut self) {
        self.state.store(OVER, SeqCst);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        let _ = unmount(self.folder.0.join("mount"), UnmountFlags::DETACH);
    }

    /// A process whose program lies on the server, and which maps a file of it as code.
    fn user(&mut self) -> Result<i32> {
        let mut command = Command::new(self.file());
        command.args([program::FLAG, "held"]).arg(self.file()).uid(USER).gid(USER);
        let mut running = Running(command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?);
        let mut line = String::new();
        BufReader::new(running.0.stdout.take().ok_or("no output")?).read_line(&mut line)?;
        assert!(line.starts_with("held="), "{line:?}");
        let pid = running.pid();
        self.users.push(running);
        Ok(pid)
    }

    /// A process whose mmap lock is held from now on.
    fn locked(&mut self) -> Result<i32> {
        let mapper = self.mapper()?;
        self.lock(&mapper)?;
        Ok(mapper.0)
    }

    /// A process that maps a page of the file which is not in memory, and that page's address.
    fn mapper(&mut self) -> Result<(i32, String)> {
        let file = self.file();
        let mut mapper = as_user(&["last-page", file.to_str().ok_or("a path that is no text")?])?;
        let mut line = String::new();
        BufReader::new(mapper.0.stdout.take().ok_or("no output")?).read_line(&mut line)?;
        let at = line.trim().strip_prefix("at=").ok_or_else(|| line.clone())?;
        let pid = mapper.pid();
        self.users.push(mapper);
        Ok((pid, at.to_owned()))
    }

    /// Has another process hold its mmap lock, while it waits for that as a writer.
    fn lock(&mut self, (pid, at): &(i32, String)) -> Outcome {
        self.fall_silent();
        self.users.push(as_user(&["word-of", &pid.to_string(), at])?);
        // The reader waits for the server, and the mapper for the reader.
        let waits = || stat::stat(&Rooted::host(), Pid(*pid)).is_ok_and(|stat| stat.state == 'D');
        wait_until("the mapper waits", || {
            let waited = waits();
            std::thread::sleep(Duration::from_millis(100));
            waited && waits()
        })
    }

    /// Runs masu; a command that does not end within the deadline is set free by the server's end, and the test fails.
    fn masu(&mut self, arguments: &[&str]) -> Result<Said> {
        let [said] = self.masu_at_once([arguments])?;
        Ok(said)
    }

    /// The same of several commands that wait at the same time.
    fn masu_at_once<const COUNT: usize>(&mut self, commands: [&[&str]; COUNT]) -> Result<[Said; COUNT]> {
        let mut said = Vec::new();
        let running = commands.iter().map(|arguments| super::command::start(arguments)).collect::<Result<Vec<_>>>()?;
        let end = Instant::now() + DEADLINE;
        for (mut running, arguments) in running.into_iter().zip(commands) {
            while running.0.try_wait()?.is_none() {
                if Instant::now() > end {
                    self.end();
                    return Err(format!("masu {arguments:?} waits for the server").into());
                }
                std::thread::sleep(Duration::from_millis(10));
            }
            said.push(running.said()?);
        }
        Ok(said.try_into().map_err(|_| "a command without an end")?)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end();
    }
}

fn as_user(words: &[&str]) -> Result<Running> {
    let mut command = Command::new(own()?);
    command.arg(program::FLAG).args(words).uid(USER).gid(USER);
    Ok(Running(command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?))
}

/// The protocol of include/uapi/linux/fuse.h, as far as it takes to run a program.
fn serve(mut device: &File, program: &File, state: &AtomicU8) {
    let length = program.metadata().map_or(0, |about| about.len());
    let mut request = vec![0; 1 << 18];
    loop {
        let bytes = match device.read(&mut request) {
            Ok(bytes) => bytes,
            Err(_) if state.load(SeqCst) == OVER => return,
            Err(_) => {
                std::thread::sleep(Duration::from_millis(1));
                continue;
            }
        };
        let request = &request[..bytes];
        if state.load(SeqCst) != ANSWERS {
            continue;
        }
        let Some((error, body)) = answer(request, program, length) else { continue };
        let mut reply = fits::<_, u32>(16 + body.len()).to_ne_bytes().to_vec();
        reply.extend(error.to_ne_bytes());
        reply.extend(&request[8..16]);
        reply.extend(body);
        let _ = device.write(&reply);
    }
}

fn word(request: &[u8], at: usize) -> u64 {
    request.get(at..at + 8).and_then(|bytes| bytes.try_into().ok()).map_or(0, u64::from_ne_bytes)
}

/// Error and body of an answer; `None` for requests without an answer.
fn answer(request: &[u8], program: &File, length: u64) -> Option<(i32, Vec<u8>)> {
    const HOUR: u64 = 3600;
    let words = |words: &[u64]| words.iter().flat_map(|word| word.to_ne_bytes()).collect::<Vec<u8>>();
    let about = |node: u64| attributes(node, length);
    let opcode = word(request, 0) >> 32;
    Some(match opcode {
        // FORGET, INTERRUPT, BATCH_FORGET
        2 | 36 | 42 => return None,
        // LOOKUP
        1 if request.get(40..48) == Some(&b"program\0"[..]) => (0, [words(&[2, 0, HOUR, HOUR, 0]), about(2)].concat()),
        1 => (-libc::ENOENT, Vec::new()),
        // GETATTR
        3 => (0, [words(&[HOUR, 0]), about(word(request, 16))].concat()),
        // OPEN, OPENDIR
        14 | 27 => (0, words(&[1, 0])),
        // READ
        15 => {
            let mut body = vec![0; index(word(request, 56) & 0xffff_ffff)];
            let filled = program.read_at(&mut body, word(request, 48)).unwrap_or(0);
            body.truncate(filled);
            (0, body)
        }
        // STATFS
        17 => (0, vec![0; 80]),
        // RELEASE, FLUSH, RELEASEDIR, ACCESS
        18 | 25 | 29 | 34 => (0, Vec::new()),
        // INIT: version 7.31, 128 KiB at a time
        26 => {
            let mut body: Vec<u8> =
                [7u32, 31, 1 << 17, 0, 0, 1 << 17].iter().flat_map(|word| word.to_ne_bytes()).collect();
            body.resize(64, 0);
            (0, body)
        }
        _ => (-libc::ENOSYS, Vec::new()),
    })
}

/// `struct fuse_attr`.
fn attributes(node: u64, length: u64) -> Vec<u8> {
    let (mode, size) = if node == 1 { (0o040_755u32, 4096) } else { (0o100_755, length) };
    let wide = [node, size, size / 512, 0, 0, 0].into_iter().flat_map(u64::to_ne_bytes);
    let narrow = [0, 0, 0, mode, 1, 0, 0, 0, 4096, 0].into_iter().flat_map(u32::to_ne_bytes);
    wide.chain(narrow).collect()
}

/// Every command that inspects the process ends, with its usual output. Those that judge by accesses say if it is stopped.
fn are_looked_at(server: &mut Server, pid: &str, is_stopped: bool) -> Outcome {
    for arguments in [
        &["stat", pid][..],
        &["census", pid],
        &["attach", "--dry-run", "--for", "200ms", pid],
        &["attach", "--for", "200ms", pid],
        &["pages", "--for", "200ms", pid],
    ] {
        let said = server.masu(arguments)?;
        if is_stopped && ["attach", "pages"].contains(&arguments[0]) {
            assert!(said.code() == 1 && said.err.contains("is stopped by a signal"), "{arguments:?}: {said:?}");
        } else {
            assert_eq!((said.code(), said.err.as_str()), (0, ""), "{arguments:?}");
        }
    }
    Ok(())
}

fn is_passed_over(options: &str) -> Outcome {
    let mut server = Server::start(options)?;
    let user = server.user()?;
    let pid = user.to_string();
    are_looked_at(&mut server, &pid, false)?; // The server answers.
    server.fall_silent();
    are_looked_at(&mut server, &pid, false)?;
    let is_line = |line: &str| {
        line.starts_with("left out 1, ")
            && line.ends_with(": passed over, on a file system whose server may not answer")
    };
    for arguments in
        [&["aging", "--mapped", "100", "--dry-run", "--pid", &pid][..], &["aging", "--mapped", "100", "--dry-run"]]
    {
        let said = server.masu(arguments)?;
        assert_eq!((said.code(), said.err.as_str()), (0, ""), "{arguments:?}");
        assert!(said.out.lines().any(is_line), "{}", said.out);
    }
    server.masu(&["llc", "shared"])?; // Without KSM it is refused; it ends.
    // Stopped by a signal it is looked at as well.
    server.users[0].signal(Signal::STOP)?;
    are_looked_at(&mut server, &pid, true)?;
    server.end();
    Ok(())
}

/// A process that only waits, with no file of a silent server.
fn idle() -> Result<Running> {
    let mut program = Command::new(own()?);
    program.args([program::FLAG, "held"]).arg(own()?).stdin(Stdio::null()).stdout(Stdio::null());
    Ok(Running(program.spawn()?))
}

/// The tracker's answer to a registration of `pid`, with the connection that keeps it; `server` ends if none comes.
fn register(server: &mut Server, tracker: &Tracker, pid: i32) -> Result<(Connection, Answer)> {
    let connection = Connection::at(&tracker.socket())?;
    let (mut message, mut answer) = ([0; MOST_BYTES], [0; SHORT_BYTES]);
    let bytes = Request::Register(Terms { pid, ..USUAL }).write(&mut message);
    connection.send(&message[..bytes], &[])?;
    let received = connection.receive(&mut answer, TIME_LIMIT);
    if !matches!(received, Ok(Some(_))) {
        server.end();
    }
    let (bytes, _) = received?.ok_or("it was cut off")?;
    let answer = Answer::read(&answer[..bytes]).map_err(|_| "no answer")?;
    Ok((connection, answer))
}

/// A program on a server that everybody may ask (allow_other).
fn a_process_whose_program_is_on_a_silent_server_is_served_and_its_file_is_passed_over(_: &Host) -> Outcome {
    is_passed_over(",allow_other")
}

/// A program on a server of one user.
fn so_is_one_whose_server_is_for_its_user_alone(_: &Host) -> Outcome {
    is_passed_over("")
}

/// One client's server does not hold up another client.
fn a_client_of_the_tracker_on_a_silent_server_keeps_nobody_waiting(_: &Host) -> Outcome {
    let mut server = Server::start(",allow_other")?;
    let user = server.user()?;
    let mut tracker = Tracker::start(&[])?;
    server.fall_silent();
    let other = idle()?;
    let mut connections = Vec::new();
    for pid in [user, other.pid()] {
        let (connection, answer) = register(&mut server, &tracker, pid)?;
        assert_eq!(answer, Answer::Welcome, "{pid}");
        connections.push(connection);
    }
    let said = tracker.end(Signal::TERM)?;
    assert_eq!((said.code(), said.err.as_str()), (0, ""));
    server.end();
    Ok(())
}

/// The command has failed with the reason, and has printed nothing else.
fn has_no_answer(said: &Said, arguments: &[&str]) {
    assert_eq!((said.code(), said.out.as_str()), (2, ""), "{arguments:?}: {}", said.err);
    assert!(said.err.contains(NO_ANSWER) && said.err.contains("/wchan"), "{arguments:?}: {}", said.err);
}

/// A process whose mmap lock never comes is passed over, and all other processes are served.
fn a_process_whose_mmap_lock_does_not_come_is_passed_over(_: &Host) -> Outcome {
    let mut server = Server::start(",allow_other")?;
    let user = server.locked()?;
    let pid = user.to_string();
    // A command about this process alone fails with the reason. Each of these but `stat` and `census` takes the process
    // for itself.
    for commands in [
        [&["attach", "--dry-run", "--for", "200ms", &pid][..], &["stat", &pid]],
        [&["attach", "--for", "200ms", &pid], &["census", &pid]],
    ] {
        for (said, arguments) in server.masu_at_once(commands)?.iter().zip(commands) {
            has_no_answer(said, arguments);
        }
    }
    for arguments in [&["pages", "--for", "200ms", &pid][..], &["set", "huge=on", &pid], &["set", "align=on", &pid]] {
        has_no_answer(&server.masu(arguments)?, arguments);
    }
    // A command about all processes reports it and reads the others.
    let not_read = format!("/proc/{pid}/");
    let commands = [&["census", "--json"][..], &["stat", "--json"]];
    for (said, arguments) in server.masu_at_once(commands)?.iter().zip(commands) {
        assert_eq!((said.code(), said.err.as_str()), (0, ""), "{arguments:?}");
        let found: serde_json::Value = serde_json::from_str(&said.out)?;
        let of_answer = found["not_read"]
            .as_array()
            .into_iter()
            .flatten()
            .find(|of| of["first"].as_str().is_some_and(|first| first.contains(&not_read)));
        let of_answer = of_answer.ok_or_else(|| said.out.clone())?;
        assert_eq!(of_answer["processes"], 1, "{arguments:?}");
        assert!(of_answer["first"].as_str().is_some_and(|first| first.ends_with(NO_ANSWER)), "{of_answer}");
    }
    let [said, shared] = server.masu_at_once([&["aging", "--mapped", "100", "--dry-run"], &["llc", "shared"]])?;
    assert_eq!((said.code(), said.err.as_str()), (0, ""));
    // From Linux 6.17 maps are read without the lock (CONFIG_PER_VMA_LOCK): then it is the file that is passed over.
    let causes = ["the mappings of its process in time; retried", "whose server may not answer"];
    let is_line = |line: &str| line.starts_with("left out 1, ") && causes.iter().any(|cause| line.ends_with(cause));
    assert!(said.out.lines().any(is_line), "{}", said.out);
    assert!(said.out.contains("code: would mlock "), "{}", said.out);
    assert!(shared.out.contains(&format!("not read: process {pid}: ")), "{}", shared.out);
    server.end();
    Ok(())
}

/// Whether one of the process's descriptors is of that file.
fn holds(process: &Running, file: &str) -> bool {
    let descriptors = std::fs::read_dir(format!("/proc/{}/fd", process.pid()));
    descriptors.into_iter().flatten().flatten().any(|fd| std::fs::read_link(fd.path()).is_ok_and(|of| of == *file))
}

/// A process whose lock is taken while masu works on it is dropped with the reason; the others are worked on to the
/// end.
fn a_process_whose_mmap_lock_is_taken_later_is_let_go_and_the_others_go_on(_: &Host) -> Outcome {
    let mut server = Server::start(",allow_other")?;
    let mapper = server.mapper()?;
    let other = idle()?;
    let (pid, other_pid) = (mapper.0.to_string(), other.pid().to_string());
    let masu = super::command::start(&["attach", "--json", "--for", "16s", &pid, &other_pid])?;
    // masu opens its processes in the order of their ids, so the mapper is open once it holds a file of the other.
    assert!(mapper.0 < other.pid(), "the ids have started again");
    wait_until("masu has opened both", || holds(&masu, &format!("/proc/{other_pid}/pagemap")))?;
    server.lock(&mapper)?;
    let said = masu.said()?;
    assert_eq!(said.code(), 1, "{}", said.err);
    assert!(said.err.contains(&format!("/proc/{pid}/")) && said.err.contains(NO_ANSWER), "{}", said.err);
    let reports: Vec<serde_json::Value> =
        said.out.lines().map(serde_json::from_str).collect::<std::result::Result<_, _>>()?;
    let of = |pid: &str| {
        reports.iter().find(|report| report["pid"].as_u64() == pid.parse().ok()).ok_or_else(|| said.out.clone())
    };
    let (locked, whole) = (of(&pid)?, of(&other_pid)?);
    assert_eq!((&locked["rss_after_bytes"], &locked["ended"]), (&serde_json::Value::Null, &false.into()));
    assert!(whole["rss_after_bytes"].as_u64() > Some(0) && whole["settled"] == true, "{whole}");
    server.end();
    Ok(())
}

/// A client whose lock is taken, before or after it comes, keeps no other client from the tracker.
fn a_client_of_the_tracker_whose_mmap_lock_does_not_come_keeps_nobody_out(_: &Host) -> Outcome {
    let mut server = Server::start(",allow_other")?;
    let (later, sooner) = (server.mapper()?, server.mapper()?);
    let mut tracker = Tracker::start(&[])?;
    let (_later, answer) = register(&mut server, &tracker, later.0)?;
    assert_eq!(answer, Answer::Welcome);
    server.lock(&sooner)?;
    let (_sooner, answer) = register(&mut server, &tracker, sooner.0)?;
    assert_eq!(answer, Answer::Refused(Refused::Unfit));
    server.lock(&later)?;
    std::thread::sleep(Duration::from_secs(2));
    let other = idle()?;
    let (_other, answer) = register(&mut server, &tracker, other.pid())?;
    assert_eq!(answer, Answer::Welcome);
    let said = tracker.end(Signal::TERM)?;
    assert_eq!(said.code(), 0, "{}", said.err);
    assert!(said.err.contains(&format!("/proc/{}/", sooner.0)) && said.err.contains(NO_ANSWER), "{}", said.err);
    server.end();
    Ok(())
}
