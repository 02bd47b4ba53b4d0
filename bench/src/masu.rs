//! The command under test, run as a user runs it, and its reports with `--json`.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use ::masu::reports::{PagesReport, RunReport};
use aging::census::Census;
use anyhow::{Context, Result, bail, ensure};
use farmem::report::Report as LocalReport;
use hugepages::report::Report as AttachReport;
use linux::Untrusted;
use llc::shared::report::Report as SharedReport;
use rustix::process::Signal;
use serde::de::DeserializeOwned;

use crate::children::{OwnChild, describe};
use crate::place::{Place, Processors};
use crate::stop::Stop;

/// A built `masu`.
#[derive(Clone, Debug)]
pub struct Masu {
    path: PathBuf,
}

impl Masu {
    /// The `masu` at `given`, or else the one that lies beside this program.
    ///
    /// # Errors
    /// When there is none.
    pub fn locate(given: Option<&Path>) -> Result<Masu> {
        let path = match given {
            Some(path) => path.to_owned(),
            None => std::env::current_exe()?.with_file_name("masu"),
        };
        ensure!(
            path.is_file(),
            "{}: no such file. Build masu first with `cargo build --release`, or name it with --masu PATH.",
            path.display()
        );
        Ok(Masu { path })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether this masu knows the command `run`.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn knows_run(&self) -> Result<bool> {
        let mut command = Command::new(&self.path);
        let output = command.args(["run", "--help"]).stdin(Stdio::null()).output();
        Ok(output.with_context(|| format!("cannot start {}", self.path.display()))?.status.success())
    }

    /// Whether its `run` knows `--local`.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn knows_local(&self) -> Result<bool> {
        let mut command = Command::new(&self.path);
        let output = command.args(["run", "--help"]).stdin(Stdio::null()).output();
        let output = output.with_context(|| format!("cannot start {}", self.path.display()))?;
        Ok(output.status.success() && String::from_utf8_lossy(&output.stdout).contains("--local"))
    }

    /// `masu aging`, to which options are to be added.
    pub fn aging(&self) -> Command {
        let mut command = Command::new(&self.path);
        command.arg("aging");
        command
    }

    /// `masu run` with further `arguments`; the caller adds the program and its arguments. With a `report`, masu writes
    /// its report there.
    pub fn run(&self, arguments: &[&str], report: Option<&Path>) -> Command {
        let mut command = Command::new(&self.path);
        command.arg("run").args(arguments);
        if let Some(report) = report {
            command.arg("--report").arg(report).arg("--json");
        }
        command.arg("--");
        command
    }

    /// Starts `masu attach PID --json` with further `arguments`.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn attach(&self, pid: u32, arguments: &[&str], processors: &Processors) -> Result<Attached> {
        let mut command = Command::new(&self.path);
        command.arg("attach").arg(pid.to_string()).args(arguments).arg("--json");
        let child = OwnChild::start(command, processors, Place::Anywhere)?;
        Ok(Attached { target: pid, begun: Instant::now(), child })
    }

    /// Starts `masu track --json --socket SOCKET` with `options` of the caller.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn track(&self, socket: &Path, options: &[&str], processors: &Processors) -> Result<OwnChild> {
        let mut command = Command::new(&self.path);
        command.arg("track").arg("--socket").arg(socket).arg("--json").args(options);
        OwnChild::start(command, processors, Place::Anywhere)
    }

    /// Attribution of memory to its users.
    ///
    /// # Errors
    /// When it cannot be started, fails, or prints something else.
    pub fn census(&self, options: &[&str], processors: &Processors, stop: &Stop) -> Result<Census> {
        let mut command = Command::new(&self.path);
        command.args(["census", "--json"]).args(options);
        let child = OwnChild::start(command, processors, Place::Anywhere)?;
        report_of(child, "masu census", 0, Duration::from_secs(600), stop)
    }

    /// Output of `masu llc simulate SCENARIO --json`; with `svg`, it draws a figure there.
    ///
    /// # Errors
    /// When it cannot be started, fails, takes longer than `patience`, or prints something else.
    pub fn simulate<T: DeserializeOwned>(
        &self,
        scenario: &Path,
        svg: Option<&Path>,
        patience: Duration,
        processors: &Processors,
        stop: &Stop,
    ) -> Result<T> {
        let mut command = Command::new(&self.path);
        command.args(["llc", "simulate", "--json"]).arg(scenario);
        if let Some(svg) = svg {
            command.arg("--svg").arg(svg);
        }
        let child = OwnChild::start(command, processors, Place::Anywhere)?;
        report_of(child, "masu llc simulate", 0, patience, stop)
    }

    /// Sharers of every merged page, from the last of `looks` consecutive scans.
    ///
    /// # Errors
    /// When it cannot be started, fails, or prints something else.
    pub fn shared(&self, looks: usize, processors: &Processors, stop: &Stop) -> Result<SharedReport> {
        let mut command = Command::new(&self.path);
        command.args(["llc", "shared", "--json"]);
        if looks > 1 {
            command.args(["--watch", "1ms"]);
        }
        let mut child = OwnChild::start(command, processors, Place::Anywhere)?;
        let mut line = String::new();
        for _ in 0..looks {
            line = child.line(Duration::from_secs(600), stop)?;
        }
        serde_json::from_str(&line).context("masu llc shared says something else")
    }

    /// The `libmasu.so` that belongs to it: beside it where it was built, or where `make install` puts it.
    ///
    /// # Errors
    /// When there is none.
    pub fn library(&self) -> Result<PathBuf> {
        let beside = self.path.with_file_name("libmasu.so");
        let installed = self.path.parent().and_then(Path::parent).map(|prefix| prefix.join("lib/libmasu.so"));
        let found = [Some(beside), installed].into_iter().flatten().find(|path| path.is_file());
        let found = found.map(|path| path.canonicalize().unwrap_or(path));
        found.with_context(|| {
            format!("{}: no libmasu.so beside it. Build masu with `cargo build --release`.", self.path.display())
        })
    }

    /// Runs `masu pages PID --for TIME --json`.
    ///
    /// # Errors
    /// When it fails or prints no report.
    pub fn pages(&self, pid: u32, time: Duration, processors: &Processors, stop: &Stop) -> Result<PagesReport> {
        let mut command = Command::new(&self.path);
        let time_text = format!("{}s", time.as_secs_f64());
        command.args(["pages", &pid.to_string(), "--for", &time_text, "--json"]);
        let child = OwnChild::start(command, processors, Place::Anywhere)?;
        report_of(child, "masu pages", pid, time + Duration::from_secs(60), stop)
    }
}

/// A running `masu attach`.
#[derive(Debug)]
pub struct Attached {
    target: u32,
    begun: Instant,
    child: OwnChild,
}

impl Attached {
    /// Process id of masu.
    pub fn pid(&self) -> u32 {
        self.child.pid()
    }

    /// True until it ends by itself.
    pub fn is_running(&mut self) -> bool {
        self.child.is_running()
    }

    /// Time since masu started its work.
    pub fn age(&self) -> Duration {
        self.begun.elapsed()
    }

    /// Sends it a signal.
    pub fn signal(&mut self, signal: Signal) {
        self.child.signal(signal);
    }

    /// Waits up to `limit` for masu to end by itself, then asks it to end, and returns its report.
    ///
    /// # Errors
    /// When it failed, printed no report, or we are interrupted.
    pub fn finish(self, limit: Duration, stop: &Stop) -> Result<AttachReport> {
        report_of(self.child, "masu attach", self.target, limit, stop)
    }

    /// Asks masu to end now and returns its report.
    ///
    /// # Errors
    /// As [`Attached::finish`].
    pub fn interrupt(mut self, stop: &Stop) -> Result<AttachReport> {
        self.child.signal(Signal::INT);
        self.finish(Duration::from_secs(60), stop)
    }
}

/// Waits for `child` and reads the last line of its output that is a report.
fn report_of<T: DeserializeOwned>(child: OwnChild, what: &str, pid: u32, limit: Duration, stop: &Stop) -> Result<T> {
    let ended = child.finish(limit, stop)?;
    // Status 1 is "done in part": some windows were refused, and the report counts them.
    if !matches!(ended.status.code(), Some(0 | 1)) {
        let complaint = ended.errors.iter().find(|line| !line.trim().is_empty());
        bail!("{what} {pid} {}: {}", describe(ended.status), complaint.map_or("no message", |line| line.trim()));
    }
    let text = ended.lines.join("\n");
    last_object(&text).with_context(|| format!("{what} {pid} printed no report"))
}

/// The last JSON object in `text`, whether it takes one line or many.
fn last_object<T: DeserializeOwned>(text: &str) -> Result<T> {
    let values = serde_json::Deserializer::from_str(text).into_iter::<serde_json::Value>();
    let last = values.collect::<Result<Vec<_>, _>>()?.pop().context("its output is empty")?;
    Ok(serde_json::from_value(last)?)
}

/// Reads the report that a `masu run` has left at `path`.
///
/// # Errors
/// When there is none.
pub fn run_report(path: &Path) -> Result<RunReport> {
    let mut report: RunReport = report_in(path)?;
    // The program's path depends on this machine; the benchmark names the program itself.
    report.command.clear();
    Ok(report)
}

/// Reads the report that a `masu run --local` has left at `path`. The source files in it are named as on every machine.
///
/// # Errors
/// When there is none.
pub fn local_report(path: &Path) -> Result<LocalReport> {
    let mut report: LocalReport = report_in(path)?;
    for file in report.sites.iter_mut().filter_map(|site| site.file.as_mut()) {
        *file = Untrusted::from(below_workloads(&file.text()));
    }
    Ok(report)
}

fn report_in<T: DeserializeOwned>(path: &Path) -> Result<T> {
    let text = std::fs::read_to_string(path).context("masu run left no report")?;
    last_object(&text).context("masu run left no report")
}

/// A path from the workloads' folder on; outside of it, the name of the file.
fn below_workloads(path: &str) -> &str {
    const WORKLOADS: &str = "remote-workloads/";
    let below = path.rfind(&format!("/{WORKLOADS}")).map(|at| &path[at + 1..]);
    let below = below.or_else(|| path.starts_with(WORKLOADS).then_some(path));
    below.or_else(|| path.rsplit('/').next()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use hugepages::Refusal;
    use linux::Pid;

    use super::*;

    #[test]
    fn a_source_file_is_named_as_on_every_machine() {
        for (path, wanted) in [
            ("/home/me/target/release/remote-workloads/adi.c", "remote-workloads/adi.c"),
            ("/remote-workloads/old/remote-workloads/task.h", "remote-workloads/task.h"),
            ("remote-workloads/sort.c", "remote-workloads/sort.c"),
            ("/build/my-remote-workloads/x.c", "x.c"),
            ("../sysdeps/memset.S", "memset.S"),
        ] {
            assert_eq!(below_workloads(path), wanted);
        }
    }

    #[test]
    fn a_masu_that_cannot_page_is_told_from_one_that_can() {
        assert!(!stand_in("echo '--huge'").1.knows_local().unwrap());
        assert!(!stand_in("echo '--local'; exit 2").1.knows_local().unwrap());
        assert!(stand_in("echo '  --local <SIZE>'").1.knows_local().unwrap());
    }

    #[test]
    fn a_masu_without_the_command_run_is_told_from_one_with_it() {
        assert!(!stand_in("exit 2").1.knows_run().unwrap());
        assert!(stand_in("exit 0").1.knows_run().unwrap());
    }

    #[test]
    fn the_last_object_counts() {
        let text = "{\"pid\":1}\n{\n \"pid\": 2,\n \"new\": [1]}\n";
        assert_eq!(last_object::<serde_json::Value>(text).unwrap()["pid"], 2);
        assert_eq!(last_object::<serde_json::Value>("").unwrap_err().to_string(), "its output is empty");
        assert!(last_object::<serde_json::Value>("oops").is_err());
        assert!(last_object::<AttachReport>(text).is_err(), "a field is missing");
    }

    #[test]
    fn a_missing_masu_is_named_with_the_remedy() {
        let said = Masu::locate(Some(Path::new("/nowhere/masu"))).unwrap_err().to_string();
        assert_eq!(
            said,
            "/nowhere/masu: no such file. Build masu first with `cargo build --release`, or name it with --masu PATH."
        );
    }

    /// The program is written by a process of its own: while another test's child still holds our descriptor for writing, execve answers ETXTBSY.
    fn stand_in(script: &str) -> (tempfile::TempDir, Masu) {
        let folder = tempfile::tempdir().unwrap();
        let (text, path) = (folder.path().join("text"), folder.path().join("masu"));
        std::fs::write(&text, format!("#!/bin/sh\n{script}\n")).unwrap();
        let installed =
            std::process::Command::new("install").args(["-m", "755"]).args([&text, &path]).status().unwrap();
        assert!(installed.success());
        (folder, Masu { path })
    }

    #[test]
    fn a_failed_attach_passes_on_the_reason() {
        let (_folder, masu) = stand_in("echo 'masu: no such process: 7' >&2; exit 2");
        let attached = masu.attach(7, &[], &Processors::ours().unwrap()).unwrap();
        let said = attached.finish(Duration::from_secs(20), &Stop::default()).unwrap_err().to_string();
        assert_eq!(said, "masu attach 7 ended with status 2: masu: no such process: 7");
    }

    #[test]
    fn an_interrupted_attach_reports() {
        let report = r#"{"pid":7,"name":"x","backend":"bpf-walk","rung":"bpf-walk","dry_run":false,"ended":false,
            "settled":false,"settled_s":null,"windows_seen":0,"windows_hot":0,"windows_compactable":0,
            "windows_promoted":0,"windows_demoted":0,"windows_refused":{"busy":2},"rss_before_bytes":0,
            "rss_after_bytes":null,"extra_rss_bytes":0,"extra_rss_fraction":0.0,"returned_bytes":0,
            "scan_us_per_gib":null,"clear_us_per_gib":null,"cpu_s":0.5,"execs":0,"what_if":[]}"#;
        let (folder, masu) = stand_in(r#"trap 'cat "$0.json"; exit 0' INT; echo >&2; while :; do sleep 0.01; done"#);
        std::fs::write(folder.path().join("masu.json"), report).unwrap();
        let mut attached = masu.attach(7, &[], &Processors::ours().unwrap()).unwrap();
        std::thread::sleep(Duration::from_millis(500)); // the shell sets its trap
        assert!(attached.is_running());
        let report = attached.interrupt(&Stop::default()).unwrap();
        assert_eq!((report.pid, report.windows_refused[&Refusal::Busy]), (Pid(7), 2));
    }
}
