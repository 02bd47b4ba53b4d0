//! The requested program: started, signalled and waited for, as if its parent had started it without masu.
//!
//! The program stays in masu's process group and on masu's terminal. A signal to the whole group (Ctrl-C, a shell's
//! `kill %1`) reaches it directly; a signal to masu alone is passed on. Stopping and continuing apply to the group.

use std::ffi::{OsStr, OsString};
use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Command, ExitCode, ExitStatus};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use linux::children_usage::{self, Usage};
use linux::halted::Looks;
use linux::signal_detector::SignalDetector;
use linux::{Pid, describe, describe_io, file_size, open_files, signals, status};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Signal, pidfd_send_signal};
use signal_hook::consts::{SIGALRM, SIGHUP, SIGINT, SIGIO, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGVTALRM, SIGWINCH};
use signal_hook::iterator::{Handle, Signals};
use units::Bytes;
use units::cast::fits;

use crate::HOST;
use crate::failure::Failure;
use crate::launch::command::{NOT_EXECUTABLE, NOT_FOUND, NOT_STARTED, NotStarted};
use crate::launch::environment::Change;
use crate::launch::starter::Starter;
use crate::terminal::print;

/// Signals that users and supervisors send to programs.
const PASSED_ON: [i32; 10] = [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGALRM, SIGVTALRM, SIGIO, SIGWINCH];

/// Longest delay between two members of a group that get the same signal.
const GROUP_TELLS_WITHIN: Duration = Duration::from_millis(20);

/// Time after the program's end in which a signal does not end masu, which reports.
const REPORTS_WITHIN: Duration = Duration::from_secs(5);

/// Interval of the looks whether the program can run.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// A started program.
#[derive(Debug)]
pub struct Child {
    process: std::process::Child,
    own_peak: Bytes,
    begun: Instant,
    signals: Handle,
    pub pid: Pid,
}

/// End of the program, and its resource usage with its children.
#[derive(Clone, Copy, Debug)]
pub struct Ended {
    pub status: ExitStatus,
    pub run: Duration,
    pub usage: Usage,
    /// Peak RSS of its largest process, if it is above masu's own at the start.
    pub rss_peak: Option<Bytes>,
}

/// Passes signals on to a program. Must be made before the first thread, and before capabilities are given up.
#[derive(Debug)]
pub struct Relay {
    detector: Option<SignalDetector>,
    signals: Signals,
    /// Which of them have come.
    come: Vec<(i32, Arc<AtomicBool>)>,
    /// A signal has its default action on masu: before the program starts, and some time after its end. masu may wait
    /// in a call then, for a seccomp supervisor that never answers.
    by_default: Arc<AtomicBool>,
    starter: Starter,
}

impl Relay {
    pub fn ready() -> Result<Relay, Failure> {
        let failed = |error: &std::io::Error| {
            let failure = Failure::new(format!("cannot pass on signals: {}", describe_io(error)));
            let is_limit = error.raw_os_error() == Some(rustix::io::Errno::MFILE.raw_os_error());
            if is_limit { failure.remedy(MORE_FILES) } else { failure }
        };
        let ignored =
            signals::ignored(&*HOST).map_err(|error| Failure::new(format!("cannot pass on signals: {error}")))?;
        let heard: Vec<i32> = PASSED_ON.into_iter().filter(|signal| !ignored.contains(*signal)).collect();
        // Without the process-group signal detector every signal is passed on, and some arrive twice.
        let detector = SignalDetector::start(&heard).ok();
        let mut come = Vec::new();
        let by_default = Arc::new(AtomicBool::new(true));
        for signal in &heard {
            signal_hook::flag::register_conditional_default(*signal, Arc::clone(&by_default))
                .map_err(|error| failed(&error))?;
            let flag = Arc::new(AtomicBool::new(false));
            signal_hook::flag::register(*signal, Arc::clone(&flag)).map_err(|error| failed(&error))?;
            come.push((*signal, flag));
        }
        let signals = Signals::new(&heard).map_err(|error| failed(&error))?;
        let starter = Starter::ready().map_err(|error| no_thread(&error))?;
        Ok(Relay { detector, signals, come, by_default, starter })
    }

    /// Passes signals on until `signals` is closed.
    fn pass_on(detector: Option<&SignalDetector>, signals: &mut Signals, to: Pid) {
        let pidfd = to.open().ok();
        for signal in signals.forever() {
            if detector.is_some_and(|detector| detector.saw(signal, GROUP_TELLS_WITHIN)) {
                continue;
            }
            if let (Some(signal), Some(pidfd)) = (Signal::from_named_raw(signal), &pidfd) {
                // The program may have ended by itself.
                let _ = pidfd_send_signal(pidfd, signal);
            }
        }
    }
}

impl Child {
    /// Starts `file` with the requested name as its first argument.
    pub fn start(file: &Path, command: &[OsString], changes: &[Change], relay: Relay) -> Result<Child, NotStarted> {
        let name = command.first().map_or(OsStr::new(""), OsString::as_os_str);
        let begun = Instant::now();
        let arguments = command.get(1..).unwrap_or_default();
        let Relay { detector, signals: mut heard, come, by_default, starter } = relay;
        let start = |mut program: Command| {
            for (name, value) in changes {
                match value {
                    Some(value) => program.env(name, value),
                    None => program.env_remove(name),
                };
            }
            signals::pass_on_broken_pipe(&mut program);
            open_files::pass_on(&mut program);
            file_size::pass_on(&mut program);
            signals::pass_on_early(&mut program, come.clone());
            starter.start(program)
        };
        let mut program = Command::new(file);
        program.arg0(name).args(arguments);
        let signals = heard.handle();
        // The thread is made first: a failure after the start would leave the program without masu.
        let (tell, told) = mpsc::channel();
        let afterwards = Arc::clone(&by_default);
        let relay = std::thread::Builder::new().spawn(move || {
            if let Ok(pid) = told.recv() {
                Relay::pass_on(detector.as_ref(), &mut heard, pid);
                std::thread::sleep(REPORTS_WITHIN);
                afterwards.store(true, Relaxed);
            }
        });
        relay.map_err(|error| no_thread(&error))?;
        let own_peak = status::status(&*HOST, Pid::own()).map_or(Bytes(0), |status| status.rss_peak);
        by_default.store(false, Relaxed);
        let process = start(program).or_else(|error| match error.raw_os_error() {
            // A file that the kernel cannot execute is run as a shell script, as in execvp(3).
            Some(number) if number == rustix::io::Errno::NOEXEC.raw_os_error() => {
                let mut shell = Command::new("/bin/sh");
                shell.arg(file).args(arguments);
                start(shell)
            }
            _ => Err(error),
        });
        let process = process.map_err(|error| {
            signals.close();
            not_started(name, &error)
        })?;
        let pid = Pid(process.id().cast_signed());
        // From here on nothing may fail: the program runs. A relay that has ended passes no signal on.
        let _ = tell.send(pid);
        Ok(Child { process, begun, signals, pid, own_peak })
    }

    /// Waits for the program's end, for at most `time`.
    pub fn wait_at_most(&mut self, time: Duration) -> Result<Option<Ended>, Failure> {
        let timeout = Timespec::try_from(time).ok();
        // Without a descriptor, or after an interruption, the wait has no time limit, which is always right.
        let over = |pidfd: OwnedFd| poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], timeout.as_ref());
        let over = self.pid.open().is_ok_and(|pidfd| over(pidfd).is_ok_and(|ended| ended > 0));
        if over { self.wait().map(Some) } else { Ok(None) }
    }

    /// Waits for the program's end, and says meanwhile, unless `quiet`, when the program cannot run: masu waits then,
    /// and a signal passed on has no effect.
    pub fn wait_and_look(&mut self, name: &OsStr, quiet: bool) -> Result<Ended, Failure> {
        let mut looks = Looks::default();
        let mut before = None;
        loop {
            // Without a descriptor there is no wait with a time limit.
            if quiet || self.pid.open().is_err() {
                return self.wait();
            }
            if let Some(ended) = self.wait_at_most(LOOK_EVERY)? {
                return Ok(ended);
            }
            let now = looks.look(&*HOST, self.pid);
            match &now {
                Some(halted) if before != now => print::failure(
                    &Failure::new(format!("process {} ({}) is {halted}; masu waits", self.pid, name.display()))
                        .remedy(halted.remedy(self.pid)),
                ),
                _ => {}
            }
            before = now;
        }
    }

    /// Waits for the program's end.
    pub fn wait(&mut self) -> Result<Ended, Failure> {
        let status =
            self.process.wait().map_err(|error| Failure::new(format!("cannot wait for the program: {error}")))?;
        // Before the wait for the signal detector, which is a child too.
        let usage = children_usage::of_children();
        self.signals.close();
        // The kernel counts the memory that a program was started from as the program's.
        let rss_peak = Some(usage.rss_peak).filter(|peak| *peak > self.own_peak);
        Ok(Ended { status, run: self.begun.elapsed(), usage, rss_peak })
    }
}

/// Remedy where masu has no descriptor left.
pub const MORE_FILES: &str = "Raise the limit of open files: `ulimit -n 256`.";

/// Refuses a start for which masu's limit of open files is too low, before anything is done. `needed` are the files of
/// the start of one program.
pub fn check_open_files(needed: usize) -> Result<(), Failure> {
    open_files::has_free(needed).map_err(|(free, errno)| {
        let remedy = match errno {
            rustix::io::Errno::NFILE => "The machine has no descriptor left (fs.file-max).",
            _ => MORE_FILES,
        };
        let files = if free == 1 { "file" } else { "files" };
        let line = format!(
            "cannot start a program: masu needs {needed} open files for it, and can open {free} more {files}: {}",
            describe(errno)
        );
        Failure::new(line).remedy(remedy)
    })
}

fn no_thread(error: &std::io::Error) -> Failure {
    Failure::new(format!("cannot start a thread: {error}")).remedy("See `ulimit -u`.")
}

fn not_started(name: &OsStr, error: &std::io::Error) -> NotStarted {
    let errno = rustix::io::Errno::from_io_error(error).unwrap_or(rustix::io::Errno::IO);
    let of_ours = matches!(errno, rustix::io::Errno::MFILE | rustix::io::Errno::NFILE);
    let status = match error.kind() {
        ErrorKind::NotFound => NOT_FOUND,
        ErrorKind::OutOfMemory | ErrorKind::WouldBlock => NOT_STARTED,
        _ if of_ours => NOT_STARTED,
        _ => NOT_EXECUTABLE,
    };
    let failure = Failure::new(format!("cannot run {}: {}", name.display(), describe(errno)));
    // The file was found before: the missing file is its interpreter or loader.
    let remedy = match status {
        NOT_FOUND => "The interpreter or the loader that its file names is not there.",
        NOT_STARTED => match errno {
            rustix::io::Errno::MFILE => MORE_FILES,
            rustix::io::Errno::NFILE => "The machine has no descriptor left (fs.file-max).",
            rustix::io::Errno::AGAIN => {
                "There are too many processes or threads (`ulimit -u`, pids.max of the control group)."
            }
            _ => "There is not enough memory.",
        },
        _ => "The file is no program that this machine can run.",
    };
    NotStarted { failure: failure.remedy(remedy), status }
}

/// Ends this process in the same way as the program: with its status, or by its signal.
pub fn end_as(status: ExitStatus) -> ExitCode {
    if let Some(signal) = status.signal() {
        // Only the program dumps core: a core file of masu would mislead.
        let _ = rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable);
        let _ = signal_hook::low_level::emulate_default_handler(signal);
        // signal-hook knows the named signals only. Other signals end a process too, and masu catches none of them.
        signals::raise(signal);
        // If that fails, the status is that of a shell: 128 plus the signal.
        return ExitCode::from(128u8.saturating_add(fits(signal)));
    }
    ExitCode::from(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(NOT_STARTED))
}
