//! A resctrl file system for trying rules, emulated or the kernel's.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use libtest_mimic::Failed;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use super::emulator::Emulator;

/// Whether the machine shows the rule.
#[derive(Debug)]
pub(crate) enum Shown {
    /// The machine has it, and keeps the rule.
    Kept,
    /// The machine lacks it, or the trial would disturb others.
    Not(String),
}

/// Outcome of trying a rule.
pub(crate) type Trial = Result<Shown, Failed>;

/// A rule that this machine cannot show.
pub(crate) fn not(why: impl Into<String>) -> Trial {
    Ok(Shown::Not(why.into()))
}

/// The file system, its `info`, and the state to restore.
#[derive(Debug)]
pub(crate) struct Mount {
    /// Mount point.
    pub(crate) root: PathBuf,
    /// The emulator; `None` of the kernel's own.
    pub(crate) emulator: Option<Emulator>,
    /// The lines of `schemata` that are about a cache.
    pub(crate) lines: Vec<String>,
    /// The caches' identities.
    pub(crate) caches: Vec<u32>,
    /// All ways.
    pub(crate) all: u64,
    /// Minimum number of ways in a mask.
    pub(crate) min_ways: u32,
    /// Masks may have holes.
    pub(crate) sparse: bool,
    /// Groups have counters.
    pub(crate) monitors: bool,
    prefix: String,
    /// Lock that keeps other programs out.
    _lock: File,
}

impl Mount {
    /// The emulator with these arguments.
    pub(crate) fn emulated(arguments: &[&str]) -> Result<Mount, Failed> {
        let emulator = Emulator::start(arguments)?;
        Mount::at(emulator.root(), Some(emulator), String::new())
    }

    /// The kernel's own, with groups of our own names.
    pub(crate) fn of_the_kernel(root: PathBuf) -> Result<Mount, Failed> {
        Mount::at(root, None, format!("masu-live-{}-", std::process::id()))
    }

    fn at(root: PathBuf, emulator: Option<Emulator>, prefix: String) -> Result<Mount, Failed> {
        let lock = File::open(&root)?;
        flock(&lock, FlockOperation::LockExclusive)?;
        let schemata = fs::read_to_string(root.join("schemata"))?;
        let lines: Vec<&str> = schemata.lines().map(str::trim).filter(|line| line.starts_with("L3")).collect();
        let first = lines.first().ok_or("no L3 in schemata")?;
        let (name, values) = first.split_once(':').ok_or("no values in schemata")?;
        let info = |file: &str| fs::read_to_string(root.join("info").join(name).join(file));
        let caches = values.split(';').filter_map(|value| value.split_once('=')?.0.parse().ok()).collect();
        Ok(Mount {
            emulator,
            lines: lines.iter().filter_map(|line| Some(line.split_once(':')?.0.to_owned())).collect(),
            caches,
            all: u64::from_str_radix(info("cbm_mask")?.trim(), 16)?,
            min_ways: info("min_cbm_bits")?.trim().parse()?,
            // Kernels before 6.6 have no such file, and no such masks but on AMD.
            sparse: info("sparse_masks").is_ok_and(|text| text.trim() == "1"),
            monitors: root.join("mon_groups").exists(),
            prefix,
            _lock: lock,
            root,
        })
    }

    /// The kernel's own?
    pub(crate) fn is_the_kernels(&self) -> bool {
        self.emulator.is_none()
    }

    /// The emulator, for its own commands.
    pub(crate) fn emulator(&self) -> Result<&Emulator, Failed> {
        Ok(self.emulator.as_ref().ok_or("this is no emulator")?)
    }

    /// The line that rules are tried on, and its first cache: `L3:0=`.
    pub(crate) fn first(&self) -> String {
        format!("{}:{}=", self.lines[0], self.caches[0])
    }

    /// A new control group.
    pub(crate) fn group(&self, name: &str) -> Result<OwnGroup, Failed> {
        OwnGroup::make(self.root.join(format!("{}{name}", self.prefix)))
    }

    /// One write(2); returns the kernel's answer.
    pub(crate) fn write(&self, path: &str, text: &str) -> Result<(), Errno> {
        write(&self.root.join(path), text)
    }

    /// Contents of a file.
    pub(crate) fn read(&self, path: &str) -> Result<String, Failed> {
        let path = self.root.join(path);
        fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()).into())
    }

    /// Status of the last command.
    pub(crate) fn status(&self) -> Result<String, Failed> {
        self.read("info/last_cmd_status")
    }

    /// A write is refused with this errno and these words. Old kernels began them with small letters.
    pub(crate) fn refuses(&self, path: &Path, text: &str, errno: Errno, words: &str) -> Result<(), Failed> {
        let outcome = write(path, text);
        self.said(&format!("{} <- {text:?}", path.display()), outcome, errno, words)
    }

    /// The same of anything else that was done.
    pub(crate) fn said(&self, what: &str, outcome: Result<(), Errno>, errno: Errno, words: &str) -> Result<(), Failed> {
        let status = self.status()?;
        let same = status.eq_ignore_ascii_case(words);
        if outcome == Err(errno) && same {
            return Ok(());
        }
        Err(format!("{what}: {outcome:?} and {status:?}, expected {errno:?} and {words:?}").into())
    }
}

/// A group's mask in a cache, as a number: old kernels write zeros before it.
pub(crate) fn mask_of(group: &Path, line: &str, cache: u32) -> Result<u64, Failed> {
    let text = fs::read_to_string(group.join("schemata"))?;
    let values = text.lines().find_map(|other| other.trim().strip_prefix(&format!("{line}:")));
    let value = values.and_then(|values| values.split(';').find_map(|value| value.strip_prefix(&format!("{cache}="))));
    Ok(u64::from_str_radix(value.ok_or(format!("no {line} of cache {cache} in {text:?}"))?, 16)?)
}

/// One write(2) to an existing file.
pub(crate) fn write(path: &Path, text: &str) -> Result<(), Errno> {
    let opened = OpenOptions::new().write(true).open(path).map_err(|error| errno_of(&error))?;
    written(&opened, text.as_bytes())
}

/// One write(2) to an open file.
pub(crate) fn written(mut file: &File, bytes: &[u8]) -> Result<(), Errno> {
    let count = file.write(bytes).map_err(|error| errno_of(&error))?;
    // A part of a command is never taken.
    if count == bytes.len() { Ok(()) } else { Err(Errno::IO) }
}

/// Contents of an open file, from its beginning.
pub(crate) fn read_again(mut file: &File) -> Result<String, Errno> {
    use std::io::Seek;
    let mut text = String::new();
    file.rewind().and_then(|()| file.read_to_string(&mut text)).map_err(|error| errno_of(&error))?;
    Ok(text)
}

/// The kernel's answer.
pub(crate) fn errno_of(error: &io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

/// A group that is removed in the end.
#[derive(Debug)]
pub(crate) struct OwnGroup {
    /// Directory of the group.
    pub(crate) path: PathBuf,
}

impl OwnGroup {
    /// Makes it.
    pub(crate) fn make(path: PathBuf) -> Result<OwnGroup, Failed> {
        fs::create_dir(&path).map_err(|error| format!("cannot make {}: {error}", path.display()))?;
        Ok(OwnGroup { path })
    }

    /// A monitoring group in it.
    pub(crate) fn monitor(&self, name: &str) -> Result<OwnGroup, Failed> {
        OwnGroup::make(self.path.join("mon_groups").join(name))
    }

    /// A file of it.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Contents of one of its files.
    pub(crate) fn read(&self, name: &str) -> Result<String, Failed> {
        let path = self.file(name);
        fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()).into())
    }

    /// One write(2) to one of its files.
    pub(crate) fn write(&self, name: &str, text: &str) -> Result<(), Errno> {
        write(&self.file(name), text)
    }

    /// Whether this thread is in it.
    pub(crate) fn has(&self, tid: i32) -> Result<bool, Failed> {
        Ok(self.read("tasks")?.lines().any(|line| line.parse() == Ok(tid)))
    }
}

impl Drop for OwnGroup {
    fn drop(&mut self) {
        // The test may have removed it, and its parent may have gone with it.
        let _ = fs::remove_dir(&self.path);
    }
}

/// A process that waits, and starts another one on request.
#[derive(Debug)]
pub(crate) struct Shell(Child);

impl Shell {
    /// `user` 0 is root.
    pub(crate) fn start(user: u32) -> io::Result<Shell> {
        use std::os::unix::process::CommandExt;
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "while read word; do sleep 120 & echo $!; done; kill $! 2>/dev/null"]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).uid(user);
        command.spawn().map(Shell)
    }

    /// Process id.
    pub(crate) fn pid(&self) -> i32 {
        self.0.id().cast_signed()
    }

    /// Starts a child of it, and returns its id. There is one at a time.
    pub(crate) fn fork(&mut self) -> Result<i32, Failed> {
        self.0.stdin.as_mut().ok_or("no pipe")?.write_all(b"fork\n")?;
        let out = self.0.stdout.as_mut().ok_or("no pipe")?;
        let mut line = Vec::new();
        let mut byte = [0];
        while out.read(&mut byte)? == 1 && byte[0] != b'\n' {
            line.push(byte[0]);
        }
        Ok(String::from_utf8_lossy(&line).parse()?)
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        // At the end of its input it ends its child and itself.
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}
