//! The emulator of resctrl, mounted for one test.

use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::cases::programs::{self, Running, Said, TIME_LIMIT};

/// A running emulator. Dropping it unmounts it and removes its directory.
#[derive(Debug)]
pub(crate) struct Emulator {
    running: Option<Running>,
    folder: PathBuf,
}

/// Number of emulators started by this process, for unique names.
static STARTED: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);

impl Emulator {
    /// Mounts one with these arguments: a machine, and its deviations.
    pub(crate) fn start(arguments: &[&str]) -> io::Result<Emulator> {
        Emulator::start_by(program()?, arguments)
    }

    /// The same by a command that ends in the program's name.
    pub(crate) fn start_by(mut command: Command, arguments: &[&str]) -> io::Result<Emulator> {
        let number = STARTED.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("masu-live-resctrl-{}-{number}", std::process::id()));
        let mut emulator = Emulator { running: None, folder };
        fs::create_dir_all(emulator.root())?;
        fs::set_permissions(&emulator.folder, fs::Permissions::from_mode(0o755))?;
        command.arg(emulator.root()).arg("--control").arg(emulator.socket()).args(arguments);
        emulator.running = Some(Running::start(&mut command)?);
        let deadline = Instant::now() + TIME_LIMIT;
        while !emulator.root().join("schemata").exists() {
            let ended = emulator.running.as_mut().map(|running| running.0.try_wait()).transpose()?.flatten();
            if ended.is_some() || Instant::now() > deadline {
                let said = emulator.running.take().map(Running::said).transpose()?;
                let why = said.map_or(String::new(), |said| said.err);
                return Err(io::Error::other(format!("the emulator did not mount: {why}")));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(emulator)
    }

    /// Mount point.
    pub(crate) fn root(&self) -> PathBuf {
        self.folder.join("resctrl")
    }

    /// Path of its socket.
    pub(crate) fn socket(&self) -> PathBuf {
        self.folder.join("control")
    }

    /// Sets the values of its counters, as `control.rs` there describes it: `occupancy GROUP CACHE VALUE`.
    pub(crate) fn tell(&self, line: &str) -> io::Result<()> {
        let mut stream = UnixStream::connect(self.socket())?;
        stream.write_all(format!("{line}\n").as_bytes())?;
        let mut answer = String::new();
        BufReader::new(stream).read_line(&mut answer)?;
        if answer == "ok\n" { Ok(()) } else { Err(io::Error::other(format!("{line}: {answer}"))) }
    }

    /// Process of the emulator.
    pub(crate) fn running(&self) -> Option<&Running> {
        self.running.as_ref()
    }

    /// Waits for its end.
    pub(crate) fn said(&mut self) -> io::Result<Said> {
        self.running.take().ok_or_else(|| io::Error::other("it has ended already"))?.said()
    }
}

impl Drop for Emulator {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(self.root(), rustix::mount::UnmountFlags::DETACH);
        // Its guard removes the rest.
        drop(self.running.take());
        let deadline = Instant::now() + TIME_LIMIT;
        while is_mounted(&self.root()) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(2));
        }
        let _ = fs::remove_file(self.socket());
        // The directory is empty by now; if it is still mounted, it is left alone.
        let _ = fs::remove_dir(self.root());
        let _ = fs::remove_dir(&self.folder);
    }
}

/// The program.
pub(crate) fn program() -> io::Result<Command> {
    programs::resctrl_emulator().map(Command::new).ok_or_else(|| io::Error::other("the emulator is not built"))
}

/// The mounts at a path: type and source.
pub(crate) fn mounts_at(path: &Path) -> io::Result<Vec<(String, String)>> {
    let text = fs::read_to_string("/proc/self/mounts")?;
    let lines = text.lines().filter_map(|line| {
        let mut fields = line.split(' ');
        let (source, at, kind) = (fields.next()?, fields.next()?, fields.next()?);
        (Path::new(at) == path).then(|| (kind.to_owned(), source.to_owned()))
    });
    Ok(lines.collect())
}

/// Whether a file system is mounted there.
pub(crate) fn is_mounted(path: &Path) -> bool {
    mounts_at(path).is_ok_and(|mounts| !mounts.is_empty())
}
