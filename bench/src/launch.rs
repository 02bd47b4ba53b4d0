//! Starts a program with its memory on huge pages in one of several ways, and counts the huge pages that it got.
//!
//! | way | host's setting (THP) | how the program asks |
//! |---|---|---|
//! | `4k` | never | it cannot |
//! | `always` | always | it need not |
//! | `glibc` | madvise | `GLIBC_TUNABLES=glibc.malloc.hugetlb=1` |
//! | `jemalloc` | madvise | another allocator is preloaded, with `thp:always` |
//! | `touch` | madvise | `masu run --huge touch` |
//! | `touch-stack` | madvise | `masu run --huge touch --stack` |
//!
//! The setting is changed for one run and restored after it. Huge pages are counted on the whole host: counting those
//! of one process walks its page tables, and costs more the smaller its pages are.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use ::masu::reports::RunReport;
use anyhow::{Context, Result, bail, ensure};
use serde::Serialize;

use crate::children::{Ended, OwnChild, Usage, describe};
use crate::choices;
use crate::harness::Runs;
use crate::host::{VmCounters, huge_pages_in_use};
use crate::masu::{Masu, run_report};
use crate::place::Place;
use crate::session::Session;
use crate::thp::{Guard, Mode};
use crate::workload::Reply;

choices! {
    /// A way in which a program gets huge pages, or gets none.
    pub enum Policy {
        Small = "4k", "4k";
        Always = "always", "always";
        Glibc = "glibc", "glibc";
        Jemalloc = "jemalloc", "jemalloc";
        Touch = "touch", "touch";
        TouchStack = "touch-stack", "touch-stack";
    }
}

impl Policy {
    /// The host's switch while such a program runs.
    const fn mode(self) -> Mode {
        match self {
            Policy::Small => Mode::Never,
            Policy::Always => Mode::Always,
            Policy::Glibc | Policy::Jemalloc | Policy::Touch | Policy::TouchStack => Mode::Madvise,
        }
    }

    /// Arguments of `masu run`, for the ways that use masu.
    pub const fn of_masu(self) -> Option<&'static [&'static str]> {
        match self {
            Policy::Touch => Some(&["--huge", "touch"]),
            Policy::TouchStack => Some(&["--huge", "touch", "--stack"]),
            _ => None,
        }
    }
}

/// A program and its arguments.
#[derive(Clone, Debug)]
pub struct Program {
    /// Path, or a name on the PATH.
    pub path: PathBuf,
    /// Arguments.
    pub arguments: Vec<OsString>,
}

impl Program {
    /// The workload `name`, which lies beside this program.
    ///
    /// # Errors
    /// When it is not built.
    pub fn workload(name: &str, arguments: impl IntoIterator<Item = impl Into<OsString>>) -> Result<Program> {
        let path = std::env::current_exe()?.with_file_name(name);
        ensure!(path.exists(), "{} is not built. Run `cargo build --release -p bench` first.", path.display());
        Ok(Program::at(path, arguments))
    }

    /// The program at `path`.
    pub fn at(path: impl Into<PathBuf>, arguments: impl IntoIterator<Item = impl Into<OsString>>) -> Program {
        Program { path: path.into(), arguments: arguments.into_iter().map(Into::into).collect() }
    }

    /// Command that starts the program directly.
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.path);
        command.args(&self.arguments);
        command
    }

    /// Command that starts the program by `masu run`.
    pub fn under(&self, masu: &Masu, arguments: &[&str], report: Option<&Path>) -> Command {
        let mut command = masu.run(arguments, report);
        command.arg(&self.path).args(&self.arguments);
        command
    }
}

/// Starts programs in the ways that this host offers.
#[derive(Debug)]
pub struct Launcher {
    masu: Option<Masu>,
    jemalloc: Option<PathBuf>,
}

/// A program that was started in one of the ways. Dropped, it is ended first, and then the host's setting is restored.
#[derive(Debug)]
pub struct Launched {
    /// The program, or the `masu run` that watches over it.
    pub child: OwnChild,
    report: Option<tempfile::NamedTempFile>,
    guard: Guard,
}

/// The host's changed setting, and the file for masu's report. Dropping restores the one and removes the other.
#[derive(Debug)]
pub struct Held {
    _report: Option<tempfile::NamedTempFile>,
    _guard: Guard,
}

/// Measurements of one run of a program.
#[derive(Clone, Debug, Serialize)]
pub struct Run {
    /// Time from its start to its end, in seconds.
    pub run_s: f64,
    /// Resource usage.
    pub usage: Usage,
    /// Peak number of huge pages on the host during the run, beyond those before it.
    pub huge_pages_peak: u64,
    /// Page faults that got a huge page, on the whole host.
    pub huge_faults: u64,
    /// Page faults that wanted a huge page and got a small one, on the whole host.
    pub huge_faults_refused: u64,
    /// masu's report.
    pub report: Option<RunReport>,
    /// Time after the first touch of the memory, where the program reports it.
    pub work_s: Option<f64>,
    /// Lines of standard output.
    #[serde(skip)]
    pub lines: Vec<String>,
}

/// Paths of the library in Debian's libjemalloc2 and in other distributions.
const JEMALLOC: [&str; 3] =
    ["/usr/lib/x86_64-linux-gnu/libjemalloc.so.2", "/usr/lib64/libjemalloc.so.2", "/usr/lib/libjemalloc.so.2"];

/// Interval between counts of huge pages while a program runs.
const EVERY: Duration = Duration::from_millis(20);

impl Launcher {
    /// Finds the `wanted` ways that this host offers, and notes the others in `runs`.
    ///
    /// # Errors
    /// When masu is wanted and is not built, or nothing is left.
    pub fn offering<S>(
        session: &Session,
        wanted: &[Policy],
        runs: &mut Runs<Policy, S>,
    ) -> Result<(Launcher, Vec<Policy>)> {
        let needs_masu = wanted.iter().any(|policy| policy.of_masu().is_some());
        let masu = if needs_masu { Some(session.masu()?) } else { None };
        let knows_run = masu.as_ref().map_or(Ok(false), Masu::knows_run)?;
        let jemalloc = JEMALLOC.iter().map(PathBuf::from).find(|path| path.exists());
        let (mut offered, mut obstacles) = (Vec::new(), Vec::new());
        for &policy in wanted {
            let obstacle = match policy {
                _ if offered.contains(&policy) => continue,
                Policy::Jemalloc if jemalloc.is_none() => "libjemalloc.so.2 is not installed (Debian: libjemalloc2)",
                Policy::Touch | Policy::TouchStack if !knows_run => "this masu does not know the command `run`",
                _ => {
                    offered.push(policy);
                    continue;
                }
            };
            runs.skip(policy, obstacle);
            obstacles.push(obstacle);
        }
        ensure!(!offered.is_empty(), "nothing to measure: {}", obstacles.join("; "));
        Ok((Launcher { masu, jemalloc }, offered))
    }

    /// Starts `program` in the way `policy`.
    ///
    /// # Errors
    /// When it cannot be started, or the host's switch cannot be turned.
    pub fn start(&self, session: &Session, policy: Policy, program: &Program) -> Result<Launched> {
        let guard = Guard::turn(policy.mode())?;
        let mut report = None;
        let mut command = match (policy.of_masu(), &self.masu) {
            (Some(arguments), Some(masu)) => {
                let file = tempfile::NamedTempFile::new().context("cannot make a file for masu's report")?;
                let command = program.under(masu, arguments, Some(file.path()));
                report = Some(file);
                command
            }
            (Some(_), None) => bail!("{policy} is not offered here"),
            (None, _) => program.command(),
        };
        // These variables of the caller's environment would make two ways alike.
        for name in ["GLIBC_TUNABLES", "LD_PRELOAD", "MALLOC_CONF"] {
            command.env_remove(name);
        }
        match (policy, &self.jemalloc) {
            (Policy::Glibc, _) => _ = command.env("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1"),
            (Policy::Jemalloc, Some(library)) => {
                command.env("LD_PRELOAD", library).env("MALLOC_CONF", "thp:always");
            }
            _ => {}
        }
        let child = OwnChild::start(command, &session.processors, Place::Anywhere)?;
        Ok(Launched { child, report, guard })
    }

    /// Runs `program` in the way `policy` to its end.
    ///
    /// # Errors
    /// When it cannot be started, fails, does not end within `limit`, or we are interrupted.
    pub fn run(&self, session: &Session, policy: Policy, program: &Program, limit: Duration) -> Result<Run> {
        let name = program.path.display();
        let (huge_before, before) = (huge_pages_in_use()?, VmCounters::now()?);
        let begun = Instant::now();
        let mut launched = self.start(session, policy, program)?;
        let (mut huge_peak, mut next) = (0, begun);
        while launched.child.is_running() {
            session.stop.check()?;
            ensure!(begun.elapsed() < limit, "{name} ({policy}) did not end within {} s", limit.as_secs());
            if Instant::now() >= next {
                huge_peak = huge_peak.max(huge_pages_in_use()?);
                next = Instant::now() + EVERY;
            }
            thread::sleep(Duration::from_millis(2));
        }
        let run_s = begun.elapsed().as_secs_f64();
        let counted = VmCounters::now()?.since(before);
        let (Ended { status, usage, lines, errors }, report) = launched.end(session)?;
        if !status.success() {
            let said = errors.into_iter().rfind(|line| !line.trim().is_empty()).unwrap_or_else(|| "no message".into());
            bail!("{name} ({policy}) {}: {said}", describe(status));
        }
        Ok(Run {
            run_s,
            usage: usage.with_context(|| format!("the kernel does not say what {name} used"))?,
            huge_pages_peak: huge_peak.saturating_sub(huge_before),
            huge_faults: counted.huge_faults,
            huge_faults_refused: counted.huge_faults_refused,
            report,
            work_s: lines.iter().rev().find_map(|line| Reply::of(line).number("work_s").ok()),
            lines,
        })
    }
}

impl Launched {
    /// The program, and the guards that must live until it has ended.
    pub fn split(self) -> (OwnChild, Held) {
        (self.child, Held { _report: self.report, _guard: self.guard })
    }

    /// Collects the results of a program that has ended: its status and output, and masu's report.
    ///
    /// # Errors
    /// When we are interrupted, or masu left no report although the program went well.
    fn end(self, session: &Session) -> Result<(Ended, Option<RunReport>)> {
        let Launched { child, report, guard: _guard } = self;
        let ended = child.finish(Duration::ZERO, &session.stop)?;
        let report = match report {
            Some(file) if ended.status.success() => Some(run_report(file.path())?),
            _ => None,
        };
        Ok((ended, report))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_masu_is_told_anything_before_the_program() {
        let program = Program::at("/bin/true", ["-x"]);
        let words = |command: &Command| -> Vec<String> {
            command.get_args().map(|word| word.to_string_lossy().into_owned()).collect()
        };
        assert_eq!(words(&program.command()), ["-x"]);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("masu");
        std::fs::write(&path, "").unwrap();
        let masu = Masu::locate(Some(&path)).unwrap();
        let command = program.under(&masu, Policy::TouchStack.of_masu().unwrap(), Some(Path::new("r")));
        let wanted = ["run", "--huge", "touch", "--stack", "--report", "r", "--json", "--", "/bin/true", "-x"];
        assert_eq!(words(&command), wanted);
    }
}
