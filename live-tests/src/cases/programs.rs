//! Programs that some tests need: finding them, running them, and their ends.

use std::io::{self, Read};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Remedy for a missing program.
pub(crate) const HOW_TO_GET: &str = "build it (cargo build -p masu -p resctrl-emulator) or install it (`make deps-test` \
                                     installs all that are needed), or name it in MASU, RESCTRL_EMULATOR or REDIS_SERVER";

/// Time limit for a program to do its task.
pub(crate) const TIME_LIMIT: Duration = Duration::from_secs(120);

/// The command: from `MASU`, or from the same build as these tests.
pub(crate) fn masu() -> Option<PathBuf> {
    of_this_build("masu", "MASU")
}

/// The emulator of resctrl: from `RESCTRL_EMULATOR`, or from the same build as these tests.
pub(crate) fn resctrl_emulator() -> Option<PathBuf> {
    of_this_build("resctrl-emulator", "RESCTRL_EMULATOR")
}

fn of_this_build(name: &str, variable: &str) -> Option<PathBuf> {
    let named = std::env::var_os(variable).map(PathBuf::from);
    let own = std::env::current_exe().ok()?;
    let built = own.ancestors().skip(1).take(2).map(|folder| folder.join(name));
    named.into_iter().chain(built).find(|path| is_program(path))
}

/// Redis: from `REDIS_SERVER`, or Debian's. Its checking tools are the same program under other names.
pub(crate) fn redis_server() -> Option<PathBuf> {
    let named = std::env::var_os("REDIS_SERVER").map(PathBuf::from);
    let installed =
        ["/usr/bin/redis-server", "/usr/local/bin/redis-server", "/usr/bin/redis-check-rdb"].map(PathBuf::from);
    named.into_iter().chain(installed).find(|path| is_program(path))
}

/// The library that `masu run` preloads, at the command's own search path.
pub(crate) fn preload_library() -> Option<PathBuf> {
    // The library is loaded into these tests themselves, too, which have no loader in a virtual machine without other
    // files.
    library("libmasu-preload.so").filter(|_| !cfg!(target_feature = "crt-static"))
}

/// Library that pages a program under `masu run --local`.
pub(crate) fn pager_library() -> Option<PathBuf> {
    library("libmasu-pager.so")
}

/// The C library for cooperating programs.
pub(crate) fn libmasu() -> Option<PathBuf> {
    library("libmasu.a")
}

fn library(name: &str) -> Option<PathBuf> {
    let masu = masu()?;
    let folder = masu.parent()?;
    let places = ["", "../lib/masu"].map(|place| folder.join(place).join(name));
    places.into_iter().find(|place| place.is_file())?.canonicalize().ok()
}

/// A C program of the tests, prebuilt in a virtual machine.
pub(crate) fn c_program(name: &str) -> Option<PathBuf> {
    let own = std::env::current_exe().ok()?;
    Some(own.parent()?.join("programs").join(name)).filter(|path| is_program(path))
}

/// A program in one of the folders that everybody has.
pub(crate) fn installed(name: &str) -> Option<PathBuf> {
    let folders = ["/usr/bin", "/usr/local/bin", "/bin", "/usr/sbin"].map(Path::new);
    folders.into_iter().map(|folder| folder.join(name)).find(|path| is_program(path))
}

/// Python itself, and no script that starts one.
pub(crate) fn python() -> Option<PathBuf> {
    installed("python3")
}

/// NumPy of that Python.
pub(crate) fn numpy() -> Option<PathBuf> {
    Some(PathBuf::from("/usr/lib/python3/dist-packages/numpy")).filter(|folder| folder.is_dir() && python().is_some())
}

/// Allocators, as Debian installs them.
pub(crate) fn allocators() -> Vec<PathBuf> {
    let folder = Path::new("/usr/lib").join(format!("{}-linux-gnu", std::env::consts::ARCH));
    let names = ["libjemalloc.so.2", "libmimalloc.so.2.0", "libtcmalloc_minimal.so.4", "libtcmalloc.so.4"];
    names.into_iter().map(|name| folder.join(name)).filter(|path| path.exists()).collect()
}

fn is_program(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    std::fs::metadata(path).is_ok_and(|about| about.is_file() && about.permissions().mode() & 0o111 != 0)
}

/// Exit status and output of a command.
#[derive(Debug)]
pub(crate) struct Said {
    pub(crate) status: ExitStatus,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Said {
    /// First line of its error, without the remedy.
    pub(crate) fn first_line(&self) -> &str {
        self.err.lines().next().unwrap_or_default()
    }

    /// Standard error without masu's line about programs that run at the same time.
    pub(crate) fn own_errors(&self) -> String {
        self.err.split_inclusive('\n').filter(|line| !line.contains("programs at once may have")).collect()
    }

    /// Exit status; a signal counts as 128 and its number, as in shells.
    pub(crate) fn code(&self) -> i32 {
        self.status.code().unwrap_or_else(|| 128 + self.status.signal().unwrap_or(0))
    }
}

/// A child that is ended, and waited for, however the test ends.
#[derive(Debug)]
pub(crate) struct Running(pub(crate) Child);

impl Running {
    /// Starts a command whose output is kept.
    pub(crate) fn start(command: &mut Command) -> io::Result<Running> {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().map(Running)
    }

    /// Process id.
    pub(crate) fn pid(&self) -> i32 {
        self.0.id().cast_signed()
    }

    /// Sends it a signal.
    pub(crate) fn signal(&self, signal: rustix::process::Signal) -> io::Result<()> {
        let pid = rustix::process::Pid::from_raw(self.pid()).ok_or(io::ErrorKind::NotFound)?;
        Ok(rustix::process::kill_process(pid, signal)?)
    }

    /// Waits for the end, and returns the output, of any length.
    pub(crate) fn said(self) -> io::Result<Said> {
        self.said_while(|| {
            std::thread::sleep(Duration::from_millis(5));
            Ok(())
        })
    }

    /// The same, with something to do as long as it runs. Only a program that hangs reaches the limit, also where the
    /// processor is emulated and others use it, too.
    pub(crate) fn said_while(mut self, mut work: impl FnMut() -> io::Result<()>) -> io::Result<Said> {
        let (out, err) = (all_of(self.0.stdout.take()), all_of(self.0.stderr.take()));
        let limit = TIME_LIMIT * 4;
        let deadline = Instant::now() + limit;
        let status = loop {
            if let Some(status) = self.0.try_wait()? {
                break status;
            }
            if Instant::now() > deadline {
                return Err(io::Error::other(format!("process {} did not end within {limit:?}", self.pid())));
            }
            work()?;
        };
        let text = |reader: JoinHandle<String>| reader.join().unwrap_or_default();
        Ok(Said { status, out: text(out), err: text(err) })
    }
}

/// Reads a pipe to its end, in a thread of its own.
fn all_of(pipe: Option<impl Read + Send + 'static>) -> JoinHandle<String> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        // Bytes read before a failure are returned all the same.
        let _ = pipe.map(|mut pipe| pipe.read_to_end(&mut bytes));
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

impl Drop for Running {
    fn drop(&mut self) {
        // Both fail only when it has ended and was waited for.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
