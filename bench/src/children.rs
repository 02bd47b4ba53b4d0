//! Programs started by a benchmark. Each is ended by its own process id when the benchmark ends, on every path.

use std::io::{self, BufRead, BufReader, Read};
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process, kill_process_group, set_parent_process_death_signal};
use units::cast::fits;

use crate::place::{Place, Processors};
use crate::stop::Stop;

/// Time limit for a program that was asked to end, before it is killed.
const GRACE: Duration = Duration::from_secs(10);

/// A program of ours. Dropped, it is asked to end (SIGTERM), then killed, and waited for.
#[derive(Debug)]
pub struct OwnChild {
    name: String,
    child: Child,
    usage: Option<Usage>,
    lines: Receiver<String>,
    errors: Receiver<String>,
}

impl OwnChild {
    /// Starts `command` on `place`. Its standard input is a pipe, its output is read line by line. Should we die without a
    /// chance to clean up, the kernel sends it SIGTERM.
    ///
    /// It leads a process group of its own, so that a Ctrl-C on the terminal reaches us first and we end it in order.
    /// Call this from the main thread: the kernel's signal comes when the thread that started the program ends.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start(mut command: Command, processors: &Processors, place: Place) -> Result<OwnChild> {
        let name = command.get_program().to_string_lossy().into_owned();
        let set = processors.set(place);
        let ready = move || {
            rustix::thread::sched_setaffinity(None, &set)?;
            set_parent_process_death_signal(Some(Signal::TERM))?;
            hear_interrupts();
            Ok(())
        };
        // SAFETY: between fork and exec the closure makes three system calls and nothing else; it allocates nothing, takes no
        // lock, and `set` is a copy of its own.
        unsafe { command.pre_exec(ready) };
        command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().with_context(|| format!("cannot start {name}"))?;
        let lines = lines_of(child.stdout.take());
        let errors = lines_of(child.stderr.take());
        Ok(OwnChild { name, child, usage: None, lines, errors })
    }

    /// Process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends it a signal. A program that has ended already is no error.
    pub fn signal(&mut self, signal: Signal) {
        // Until we waited for it, the number cannot mean another process.
        if self.is_running() {
            let _ = kill_process(Pid::from_child(&self.child), signal);
        }
    }

    /// True until it has ended.
    pub fn is_running(&mut self) -> bool {
        matches!(self.ended(), Ok(None))
    }

    /// Exit status after the end; records the usage before the kernel forgets it.
    fn ended(&mut self) -> io::Result<Option<ExitStatus>> {
        if self.usage.is_none() {
            match usage_at_end(self.child.id()) {
                Ok(None) => return Ok(None),
                Ok(usage) => self.usage = usage,
                Err(_) => {} // it was waited for already
            }
        }
        self.child.try_wait()
    }

    /// Writes one line to its standard input.
    ///
    /// # Errors
    /// When it has ended or closed its input.
    pub fn tell(&mut self, line: &str) -> io::Result<()> {
        use io::Write as _;
        match &mut self.child.stdin {
            Some(input) => writeln!(input, "{line}").and_then(|()| input.flush()),
            None => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }

    /// Closes its standard input, at which a workload ends by itself.
    pub fn close_input(&mut self) {
        self.child.stdin = None;
    }

    /// The next line that it prints.
    ///
    /// # Errors
    /// When it ends, says nothing for `limit`, or we are interrupted.
    pub fn line(&mut self, limit: Duration, stop: &Stop) -> Result<String> {
        let end = Instant::now() + limit;
        loop {
            stop.check()?;
            match self.lines.recv_timeout(Duration::from_millis(50)) {
                Ok(line) => return Ok(line),
                Err(RecvTimeoutError::Timeout) if Instant::now() < end => {}
                Err(RecvTimeoutError::Timeout) => bail!("{} said nothing for {} s", self.name, limit.as_secs()),
                Err(RecvTimeoutError::Disconnected) => {
                    let words = self.last_words();
                    bail!("{} {words}", self.name)
                }
            }
        }
    }

    /// Waits until `answers` returns true, for ten seconds.
    ///
    /// # Errors
    /// When it does not answer, or has ended, with its last words; or we are interrupted.
    pub fn await_answer(&mut self, stop: &Stop, mut answers: impl FnMut() -> bool) -> Result<()> {
        for _ in 0..400 {
            stop.sleep(Duration::from_millis(25))?;
            if answers() {
                return Ok(());
            }
            if !self.is_running() {
                let words = self.last_words();
                bail!("{} {words}", self.name);
            }
        }
        bail!("{} does not answer", self.name)
    }

    /// Hands the further output to another reader: [`OwnChild::line`] finds nothing any more.
    pub fn take_lines(&mut self) -> Receiver<String> {
        std::mem::replace(&mut self.lines, channel().1)
    }

    /// Waits until it ends by itself, up to `limit`, and leaves it to be waited for with [`OwnChild::finish`]: until
    /// then `/proc` still shows its usage.
    ///
    /// # Errors
    /// When it does not end, or we are interrupted.
    pub fn await_end(&self, limit: Duration, stop: &Stop) -> Result<()> {
        let ends = Instant::now() + limit;
        while self.usage.is_none() && usage_at_end(self.child.id())?.is_none() {
            stop.check()?;
            if Instant::now() >= ends {
                bail!("{} did not end within {} s", self.name, limit.as_secs());
            }
            thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// Waits until it ends by itself, up to `limit`; then asks it to (SIGINT), then kills it. All that it printed and that
    /// was not read before comes back with its status.
    ///
    /// # Errors
    /// When we are interrupted, or it had to be killed.
    pub fn finish(mut self, limit: Duration, stop: &Stop) -> Result<Ended> {
        let mut ends = Instant::now() + limit;
        let mut asked = false;
        let status = loop {
            stop.check()?;
            if let Some(status) = self.ended()? {
                break status;
            }
            if Instant::now() >= ends {
                if asked {
                    bail!("{} did not end within {} s of SIGINT and was killed", self.name, GRACE.as_secs());
                }
                self.signal(Signal::INT);
                (asked, ends) = (true, Instant::now() + GRACE);
            }
            thread::sleep(Duration::from_millis(5));
        };
        Ok(Ended { status, usage: self.usage, lines: rest(&self.lines), errors: rest(&self.errors) })
    }

    /// Exit status, and the last line on standard error.
    fn last_words(&mut self) -> String {
        let status = self.child.wait().map_or_else(|error| error.to_string(), describe);
        match rest(&self.errors).into_iter().rfind(|line| !line.trim().is_empty()) {
            Some(complaint) => format!("{status}: {complaint}"),
            None => status,
        }
    }
}

/// A shell's `&` starts a program with SIGINT ignored, and all its children inherit this: the child could not be asked
/// to end.
fn hear_interrupts() {
    // SAFETY: the default action of a signal is no code of ours.
    unsafe { libc::signal(libc::SIGINT, libc::SIG_DFL) };
}

impl OwnChild {
    /// Sends a signal to it and to all that it started, as long as it has not been waited for: until then, the number of its
    /// group cannot mean another one.
    fn signal_all(&mut self, signal: Signal) {
        if self.is_running() {
            let _ = kill_process_group(Pid::from_child(&self.child), signal);
        }
    }
}

impl Drop for OwnChild {
    fn drop(&mut self) {
        self.signal_all(Signal::TERM);
        self.signal_all(Signal::CONT); // one that was stopped hears nothing before this
        let end = Instant::now() + GRACE;
        while self.is_running() && Instant::now() < end {
            thread::sleep(Duration::from_millis(2));
        }
        self.signal_all(Signal::KILL);
        let _ = self.child.wait();
    }
}

/// End of a program, and its output before.
#[derive(Debug)]
pub struct Ended {
    /// Exit status.
    pub status: ExitStatus,
    /// Resource usage; `None` when the kernel did not report it.
    pub usage: Option<Usage>,
    /// Lines of its standard output.
    pub lines: Vec<String>,
    /// Lines of its standard error.
    pub errors: Vec<String>,
}

impl Ended {
    /// Checks that it succeeded.
    ///
    /// # Errors
    /// Its end and its last message, when it failed.
    pub fn succeeded(&self) -> Result<()> {
        let said = self.errors.iter().rfind(|line| !line.trim().is_empty()).map_or("no message", String::as_str);
        ensure!(self.status.success(), "it {}: {said}", describe(self.status));
        Ok(())
    }
}

/// Total usage of a program and the programs that it waited for; the memory is that of the largest.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct Usage {
    /// Processor time in the program.
    pub user_s: f64,
    /// Processor time in the kernel.
    pub system_s: f64,
    /// The most memory that was resident.
    pub rss_peak_bytes: u64,
    /// Page faults served from memory.
    pub minor_faults: u64,
    /// Page faults that waited for a disk.
    pub major_faults: u64,
}

/// Usage of our child `pid`; `None` while it runs.
///
/// # Errors
/// When it was waited for already.
fn usage_at_end(pid: u32) -> io::Result<Option<Usage>> {
    // SAFETY: both structs are plain numbers, for which zero bytes are a value.
    let (mut info, mut usage): (libc::siginfo_t, libc::rusage) = unsafe { std::mem::zeroed() };
    // The wrapper of the C library has no place for the usage; the system call has. WNOWAIT leaves the child to be waited for.
    // SAFETY: the two pointers are valid for writing and outlive the call, which writes one `siginfo_t` and one `rusage`.
    let done = unsafe {
        libc::syscall(
            libc::SYS_waitid,
            libc::P_PID,
            pid,
            &raw mut info,
            libc::WEXITED | libc::WNOHANG | libc::WNOWAIT,
            &raw mut usage,
        )
    };
    if done != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call has succeeded, so the record describes a child that ended, or is as zero as it was.
    if unsafe { info.si_pid() } == 0 {
        return Ok(None);
    }
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    let count = |number: libc::c_long| fits::<_, u64>(number);
    Ok(Some(Usage {
        user_s: seconds(usage.ru_utime),
        system_s: seconds(usage.ru_stime),
        rss_peak_bytes: count(usage.ru_maxrss) << 10,
        minor_faults: count(usage.ru_minflt),
        major_faults: count(usage.ru_majflt),
    }))
}

/// "ended with status 2", "was ended by signal 9".
pub fn describe(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("ended with status {code}"),
        (None, Some(signal)) => format!("was ended by signal {signal}"),
        (None, None) => "ended".into(),
    }
}

/// Remaining output in the pipe of a program that has ended.
fn rest(lines: &Receiver<String>) -> Vec<String> {
    // The reader hangs up at the end of the pipe; a grandchild that keeps it open does not keep us waiting.
    let mut all = Vec::new();
    while let Ok(line) = lines.recv_timeout(Duration::from_millis(500)) {
        all.push(line);
    }
    all
}

fn lines_of(pipe: Option<impl Read + Send + 'static>) -> Receiver<String> {
    let (to, from) = channel();
    if let Some(pipe) = pipe {
        thread::spawn(move || {
            for line in BufReader::new(pipe).split(b'\n').map_while(Result::ok) {
                if to.send(String::from_utf8_lossy(&line).into_owned()).is_err() {
                    break;
                }
            }
        });
    }
    from
}

/// A free port of the loopback, for a server of ours. The kernel hands ports out in turns, so no other process uses it
/// soon.
///
/// # Errors
/// When there is none.
pub fn free_port() -> Result<u16> {
    let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|listener| listener.local_addr());
    Ok(free.context("no port of the loopback is free")?.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> OwnChild {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        OwnChild::start(command, &Processors::ours().unwrap(), Place::Only(0)).unwrap()
    }

    fn exists(pid: u32) -> bool {
        std::path::Path::new(&format!("/proc/{pid}")).exists()
    }

    const SOON: Duration = Duration::from_secs(20);

    #[test]
    fn a_dropped_program_is_gone() {
        let mut child = shell("echo up; exec sleep 1000");
        assert_eq!(child.line(SOON, &Stop::default()).unwrap(), "up");
        let pid = child.pid();
        assert!(exists(pid));
        drop(child);
        assert!(!exists(pid));
    }

    #[test]
    fn what_a_dropped_program_started_is_gone_too() {
        let mut child = shell("sleep 1000 & echo $!; wait");
        let grandchild: u32 = child.line(SOON, &Stop::default()).unwrap().parse().unwrap();
        assert!(exists(grandchild));
        drop(child);
        // The adopting process waits for it in its own time.
        let state = || std::fs::read_to_string(format!("/proc/{grandchild}/stat")).unwrap_or_default();
        let is_gone = || state().is_empty() || state().contains(") Z ");
        let end = Instant::now() + SOON;
        while !is_gone() {
            assert!(Instant::now() < end, "{}", state());
            thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn a_program_answers_and_its_last_words_are_heard() {
        let mut child = shell("read line; echo got $line; echo oh no >&2; exit 3");
        child.tell("this").unwrap();
        assert_eq!(child.line(SOON, &Stop::default()).unwrap(), "got this");
        let said = child.line(SOON, &Stop::default()).unwrap_err().to_string();
        assert_eq!(said, "sh ended with status 3: oh no");
    }

    #[test]
    fn what_a_benchmark_in_the_background_starts_hears_an_interrupt() {
        // SAFETY: ignoring a signal is no code of ours.
        let before = unsafe { libc::signal(libc::SIGINT, libc::SIG_IGN) };
        let child = shell("grep SigIgn /proc/self/status");
        // SAFETY: the previous disposition, which in a test is a default action of the kernel's.
        unsafe { libc::signal(libc::SIGINT, before) };
        let ended = child.finish(SOON, &Stop::default()).unwrap();
        let ignored = u64::from_str_radix(ended.lines[0].split_whitespace().last().unwrap(), 16).unwrap();
        assert_eq!(ignored & 1 << (libc::SIGINT - 1), 0, "{ended:?}");
    }

    #[test]
    fn what_a_program_and_its_children_used_is_known_after_its_end() {
        let child = shell("head -c 64M /dev/zero | tail -c 64M >/dev/null; echo done");
        let ended = child.finish(SOON, &Stop::default()).unwrap();
        let usage = ended.usage.unwrap();
        // tail holds 64 MiB, and each of its pages was touched first.
        assert!(usage.rss_peak_bytes > 64 << 20 && usage.minor_faults > 100, "{usage:?}");
        assert!(usage.user_s + usage.system_s > 0.0 && usage.user_s + usage.system_s < 20.0, "{usage:?}");
    }

    #[test]
    fn what_a_program_used_can_be_read_between_its_end_and_its_last_word() {
        let child = shell("i=0; while [ $i -lt 50000 ]; do i=$((i+1)); done; echo done");
        child.await_end(SOON, &Stop::default()).unwrap();
        let used = crate::process::processor_time(child.pid()).unwrap();
        let ended = child.finish(SOON, &Stop::default()).unwrap();
        assert!(used > Duration::ZERO && used < SOON, "{used:?}");
        assert_eq!(ended.lines, ["done"]);
        let said = shell("sleep 60").await_end(Duration::from_millis(30), &Stop::default()).unwrap_err().to_string();
        assert_eq!(said, "sh did not end within 0 s");
    }

    #[test]
    fn a_program_that_runs_too_long_is_asked_to_end() {
        let child = shell("trap 'echo asked; exit 1' INT; while :; do sleep 0.01; done");
        // Long enough for the shell to set its trap.
        let ended = child.finish(Duration::from_millis(500), &Stop::default()).unwrap();
        assert_eq!((ended.status.code(), ended.lines), (Some(1), vec!["asked".to_owned()]));
    }
}
