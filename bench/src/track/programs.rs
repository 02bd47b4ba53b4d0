//! The programs in C: one that registers itself to be watched, and one that works with libmasu and without.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::children::OwnChild;
use crate::masu::Masu;
use crate::place::Place;
use crate::session::Session;
use crate::tools::compile_c;
use crate::workload::{Reply, Workload};

const TRACKED: &str = include_str!("../../workloads/track/tracked.c");
const LINKED: &str = include_str!("../../workloads/track/linked.c");
const HEADER: &str = include_str!("../../../crates/hugepages/libmasu/include/masu.h");

/// The compiled programs.
#[derive(Debug)]
pub struct Programs {
    tracked: PathBuf,
    /// The same program in three ways, in the order of [`WAYS`].
    pub linked: [PathBuf; 3],
    /// Folder of libmasu for the dynamic linker.
    pub libraries: PathBuf,
}

/// Builds of the program that only works.
pub const WAYS: [&str; 3] = ["without libmasu", "linked", "asks for a tracker"];

impl Programs {
    /// Compiles them with the library that belongs to `masu`.
    ///
    /// # Errors
    /// When gcc or the library is missing, or one does not compile.
    pub fn compile(masu: &Masu) -> Result<Programs> {
        let library = masu.library()?;
        let folder = std::env::current_exe()?.with_file_name("track-workloads");
        let libraries = folder.join("lib");
        std::fs::create_dir_all(&libraries).with_context(|| format!("cannot create {}", libraries.display()))?;
        // By its soname, as an installed one has it.
        let link = libraries.join("libmasu.so.0");
        let _ = std::fs::remove_file(&link);
        std::os::unix::fs::symlink(&library, &link).with_context(|| format!("cannot make {}", link.display()))?;
        let include = [OsString::from("-I"), folder.clone().into_os_string()];
        let with = ["-Wl,--no-as-needed".into(), link.into_os_string()];
        let compile = |name: &str, source: (&str, &str), flags: &[&[OsString]]| -> Result<PathBuf> {
            let files = [source, ("masu.h", HEADER)];
            compile_c(&folder, name, &files, &flags.concat())?.map_err(|missing| anyhow::anyhow!("{missing}"))
        };
        let threads = [OsString::from("-pthread")];
        let asks = [OsString::from("-DASKS")];
        Ok(Programs {
            tracked: compile("tracked", ("tracked.c", TRACKED), &[&include, &threads, &with])?,
            linked: [
                compile("plain", ("linked.c", LINKED), &[])?,
                compile("linked", ("linked.c", LINKED), &[&with])?,
                compile("asks", ("linked.c", LINKED), &[&include, &asks, &with])?,
            ],
            libraries,
        })
    }

    /// Starts the program that registers itself to be watched, with `memory_mib` MiB, by the tracker at `socket`.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start_tracked(&self, session: &Session, socket: &Path, memory_mib: u64) -> Result<Tracked> {
        let mut command = Command::new(&self.tracked);
        command.arg(memory_mib.to_string()).env("MASU_TRACK", socket).env("LD_LIBRARY_PATH", &self.libraries);
        let child = OwnChild::start(command, &session.processors, Place::Only(1))?;
        Ok(Tracked { program: Workload::greet(child, "tracked", &session.stop)? })
    }

    /// The `nth` of [`WAYS`], without a tracker.
    pub fn linked(&self, nth: usize, before: &[&str], rounds: u64) -> Command {
        let program = self.linked[nth].as_os_str();
        let words: Vec<OsString> = before.iter().map(OsString::from).chain([program.to_owned()]).collect();
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).arg(rounds.to_string());
        command.env("LD_LIBRARY_PATH", &self.libraries).env("MASU_TRACK", "/nonexistent/track.sock");
        command
    }
}

/// A program that has itself watched.
#[derive(Debug)]
pub struct Tracked {
    program: Workload,
}

/// Time limit longer than any answer takes.
const LIMIT: Duration = Duration::from_secs(300);

impl Tracked {
    /// Asks it.
    ///
    /// # Errors
    /// When it has ended or does not answer, or we are interrupted.
    pub fn ask(&mut self, command: &str, session: &Session) -> Result<Reply> {
        self.program.ask(command, LIMIT, &session.stop)
    }

    /// Enables the watching, with a notification from `threshold_pages` pages on; observations begin at least
    /// `every_ms` apart.
    ///
    /// # Errors
    /// When the tracker refuses.
    pub fn enable(&mut self, threshold_pages: u64, (period_ms, every_ms): (u64, u64), session: &Session) -> Result<()> {
        let reply = self.ask(&format!("enable {threshold_pages} {period_ms} {every_ms}"), session)?;
        let result = reply.number("result")?;
        if result != 0.0 {
            bail!("the tracker does not watch a program: result {result}");
        }
        Ok(())
    }

    /// Observations so far.
    ///
    /// # Errors
    /// When it is not watched any more.
    pub fn rounds(&mut self, session: &Session) -> Result<u64> {
        self.ask("stats", session)?.whole("rounds")
    }

    /// Makes the program touch `pages` pages continuously.
    ///
    /// # Errors
    /// When it has ended.
    pub fn work(&mut self, pages: u64, session: &Session) -> Result<()> {
        let working = self.ask(&format!("work {pages}"), session)?.whole("working")?;
        ensure!(working == pages, "it touches {working} pages and not {pages}");
        Ok(())
    }
}
