//! One run of one program, alone or under a feature, in a folder and a process group of its own.

use std::fs::{self, File};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use rustix::process::{Pid as KernelPid, Signal, kill_process, kill_process_group};

use super::entry::{Entry, Feature};
use crate::process;
use crate::stop::Stop;

/// Time limit for one run; beyond it, the run has failed.
const PATIENCE: Duration = Duration::from_secs(150);
/// Time of `masu attach`.
const ATTACHED: &str = "6s";

/// Output and end of one run.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// Standard output of the program, or of its client; then that of the text afterwards.
    pub output: Vec<u8>,
    /// Exit status or signal, in words.
    pub ended: String,
    /// Exit status, if no signal ended it.
    pub code: Option<i32>,
    /// Last line of standard error.
    pub complaint: String,
    /// Time from the start to the end.
    pub seconds: f64,
    /// A masu that ran beside the program.
    pub masu: Beside,
}

/// End of a `masu attach` beside the program.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Beside {
    /// Its complaint, if it failed.
    pub complaint: Option<String>,
    /// Whether its process ended before it could begin.
    pub too_late: bool,
}

/// Folder of one program: its input, and the folder of the current run.
#[derive(Debug)]
pub struct Place {
    folder: tempfile::TempDir,
    port: u16,
}

impl Place {
    /// A new folder, with a free port.
    ///
    /// # Errors
    /// When the folder cannot be created.
    pub fn new(port: u16) -> Result<Place> {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = tempfile::Builder::new().prefix("masu-field-").tempdir().context("cannot create a folder")?;
        fs::create_dir(folder.path().join("in"))?;
        // A server's own user reads its input here.
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755))?;
        Ok(Place { folder, port })
    }

    fn input(&self) -> PathBuf {
        self.folder.path().join("in")
    }

    fn run(&self) -> PathBuf {
        self.folder.path().join("run")
    }

    fn fresh(&self) -> Result<()> {
        let run = self.run();
        if run.exists() {
            fs::remove_dir_all(&run).with_context(|| format!("cannot remove {}", run.display()))?;
        }
        fs::create_dir(&run).with_context(|| format!("cannot create {}", run.display()))
    }

    /// `text` with the folder of the input and the port in place of `$IN` and `$PORT`.
    pub fn fill(&self, text: &str) -> String {
        text.replace("$IN", &self.input().to_string_lossy()).replace("$PORT", &self.port.to_string())
    }

    /// `text` with `$IN` and `$HOME` in place of the folders of this run.
    pub fn unfill(&self, text: &str) -> String {
        let [input, home] =
            [self.input(), self.folder.path().to_owned()].map(|path| path.to_string_lossy().into_owned());
        text.replace(&input, "$IN").replace(&home, "$HOME")
    }

    /// Environment and folder for `command`; its output goes to the file `name` in the input's folder's parent.
    fn dress(&self, command: &mut Command, name: &str) -> Result<()> {
        let file = |end: &str| File::create(self.folder.path().join(format!("{name}.{end}")));
        let path = std::env::var("PATH").unwrap_or_default();
        command.current_dir(self.run()).env("PATH", format!("{path}:/usr/sbin:/sbin:/usr/local/go/bin"));
        command.envs([("LC_ALL", "C.UTF-8"), ("OMPI_ALLOW_RUN_AS_ROOT", "1"), ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")]);
        command.env("HOME", self.folder.path()).env("IN", self.input()).env("PORT", self.port.to_string());
        command.stdin(Stdio::null()).stdout(file("out")?).stderr(file("err")?).process_group(0);
        Ok(())
    }

    fn output(&self, name: &str) -> Vec<u8> {
        fs::read(self.folder.path().join(format!("{name}.out"))).unwrap_or_default()
    }

    /// Whether the command `name` has printed anything on standard output.
    fn printed(&self, name: &str) -> bool {
        !self.output(name).is_empty()
    }

    fn complaint(&self, name: &str) -> String {
        let said = fs::read(self.folder.path().join(format!("{name}.err"))).unwrap_or_default();
        let said = String::from_utf8_lossy(&said);
        let mut lines = said.lines().filter(|line| !line.trim().is_empty());
        let first_of_masu = said.lines().find(|line| line.starts_with("masu: "));
        first_of_masu.or_else(|| lines.next_back()).unwrap_or_default().trim().chars().take(300).collect()
    }

    /// Runs a shell text to its end; its output.
    ///
    /// # Errors
    /// When it fails, takes too long, or we are interrupted.
    pub fn shell(&self, text: &str, stop: &Stop) -> Result<Vec<u8>> {
        if text.is_empty() {
            return Ok(Vec::new());
        }
        let mut command = Command::new("bash");
        command.args(["-e", "-o", "pipefail", "-c", text]);
        fs::create_dir_all(self.run())?;
        self.dress(&mut command, "shell")?;
        let mut group = Group::start(command)?;
        let status = group.wait(PATIENCE, stop)?;
        let Some(status) = status else { bail!("did not end within {} s: {text}", PATIENCE.as_secs()) };
        if !status.success() {
            bail!("{}: {}", in_words(status), self.complaint("shell"));
        }
        Ok(self.output("shell"))
    }
}

/// A program and its descendants in one process group; dropped, all of them end.
struct Group {
    child: Child,
    done: Option<ExitStatus>,
}

impl Group {
    fn start(mut command: Command) -> Result<Group> {
        let name = command.get_program().to_string_lossy().into_owned();
        let child = command.spawn().with_context(|| format!("cannot start {name}"))?;
        Ok(Group { child, done: None })
    }

    fn ended(&mut self) -> Option<ExitStatus> {
        if self.done.is_none() {
            self.done = self.child.try_wait().ok().flatten();
        }
        self.done
    }

    /// Waits up to `limit`; `None` if it still runs.
    fn wait(&mut self, limit: Duration, stop: &Stop) -> Result<Option<ExitStatus>> {
        let end = Instant::now() + limit;
        loop {
            if let Some(status) = self.ended() {
                return Ok(Some(status));
            }
            if Instant::now() >= end {
                return Ok(None);
            }
            stop.sleep(Duration::from_millis(10))?;
        }
    }

    fn signal(&mut self, signal: Signal) {
        // Until we waited for it, the number cannot mean another process.
        if self.ended().is_none() {
            let _ = kill_process(KernelPid::from_child(&self.child), signal);
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if self.ended().is_some() {
            return;
        }
        let pid = KernelPid::from_child(&self.child);
        let _ = kill_process_group(pid, Signal::TERM);
        let end = Instant::now() + Duration::from_secs(5);
        while self.ended().is_none() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(10));
        }
        if self.ended().is_none() {
            let _ = kill_process_group(pid, Signal::KILL);
            let _ = self.child.wait();
        }
    }
}

fn in_words(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("status {code}"),
        (None, signal) => format!("signal {}", signal.unwrap_or_default()),
    }
}

/// The command of `entry`, under `feature`.
fn command(place: &Place, entry: &Entry, masu: &Path, feature: Option<Feature>) -> Command {
    let words = entry.command.iter().map(|word| place.fill(word));
    let options: &[&str] = match feature {
        None | Some(Feature::Attach) => &[],
        Some(Feature::Run) => &["run", "-q", "--"],
        Some(Feature::Hot) => &["run", "-q", "--huge", "hot", "--"],
        Some(Feature::Local) => &["run", "-q", "--local", entry.local, "--"],
        Some(Feature::Streams) => &["aging", "--cache", "0", "--"],
    };
    let mut all = options.iter().map(|word| (*word).to_owned()).chain(words);
    let mut command =
        if options.is_empty() { Command::new(all.next().unwrap_or_default()) } else { Command::new(masu) };
    command.args(all);
    command
}

/// Runs `entry` once.
///
/// # Errors
/// When it cannot be started, a step beside it fails, or we are interrupted.
pub fn run(place: &Place, entry: &Entry, masu: &Path, feature: Option<Feature>, stop: &Stop) -> Result<Outcome> {
    place.fresh()?;
    let mut command = command(place, entry, masu, feature);
    place.dress(&mut command, "run")?;
    let begun = Instant::now();
    let mut group = Group::start(command)?;
    let mut attached = None;
    if feature == Some(Feature::Attach) {
        attached = attach(place, masu, group.child.id(), stop)?;
    }
    let answers = match entry.client {
        Some(client) => {
            let said = place.shell(&place.fill(client), stop);
            group.signal(Signal::TERM);
            Some(said)
        }
        None => None,
    };
    let status = group.wait(PATIENCE, stop)?;
    let seconds = begun.elapsed().as_secs_f64();
    let masu = match attached {
        Some((target, mut attached)) => end_of_attach(place, target, &mut attached, stop)?,
        None => Beside::default(),
    };
    let Some(status) = status else {
        let said = place.complaint("run");
        let ended = format!("did not end within {} s", PATIENCE.as_secs());
        return Ok(Outcome { output: Vec::new(), ended, code: None, complaint: said, seconds, masu });
    };
    let mut output = if entry.client.is_some() { Vec::new() } else { place.output("run") };
    match answers {
        Some(Ok(said)) => output.extend(said),
        Some(Err(error)) => output.extend(format!("client: {error:#}").into_bytes()),
        None => {}
    }
    match place.shell(&place.fill(entry.then), stop) {
        Ok(said) => output.extend(said),
        Err(error) => output.extend(format!("afterwards: {error:#}").into_bytes()),
    }
    let (ended, complaint) = (in_words(status), place.complaint("run"));
    Ok(Outcome { output, ended, code: status.code(), complaint, seconds, masu })
}

/// Starts `masu attach` on the largest of the program and its descendants; `None` if it was over before.
fn attach(place: &Place, masu: &Path, pid: u32, stop: &Stop) -> Result<Option<(u32, Group)>> {
    stop.sleep(Duration::from_millis(600))?;
    let Some(largest) = largest(pid) else { return Ok(None) };
    let mut command = Command::new(masu);
    command.args(["attach", &largest.to_string(), "--for", ATTACHED, "--max-extra-rss", "20%", "--json"]);
    place.dress(&mut command, "attach")?;
    Ok(Some((largest, Group::start(command)?)))
}

/// Waits for `masu attach`, which ends with its program or after its time.
fn end_of_attach(place: &Place, target: u32, attached: &mut Group, stop: &Stop) -> Result<Beside> {
    let status = attached.wait(Duration::from_secs(60), stop)?;
    let complaint = match status.map(|status| (status.code(), in_words(status))) {
        None => Some("attach did not end within 60 s".to_owned()),
        // Status 1: some windows were refused, and the report says why.
        Some((Some(0 | 1), _)) => None,
        Some((_, words)) => Some(format!("attach: {words}: {}", place.complaint("attach"))),
    };
    let gone = !Path::new("/proc").join(target.to_string()).exists();
    let too_late = gone && status.and_then(|status| status.code()) == Some(2) && !place.printed("attach");
    Ok(Beside { complaint, too_late })
}

/// The process with the most resident memory among `pid` and its descendants.
fn largest(pid: u32) -> Option<u32> {
    let mut found = vec![pid];
    let mut at = 0;
    while let Some(parent) = found.get(at).copied() {
        found.extend(children(parent));
        at += 1;
    }
    found.into_iter().filter_map(|pid| Some((process::rss_counted(pid).ok()?, pid))).max().map(|(_, pid)| pid)
}

/// Children of all threads of `pid`.
fn children(pid: u32) -> Vec<u32> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let texts = threads.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    texts.flat_map(|text| text.split_whitespace().filter_map(|word| word.parse().ok()).collect::<Vec<u32>>()).collect()
}
