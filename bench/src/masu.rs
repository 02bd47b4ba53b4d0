//! The command under test, run as a user runs it, and its reports with `--json`.

mod sources;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::Signal;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::children::{OwnChild, describe};
use crate::place::{Place, Processors};
use crate::stop::Stop;

/// A built `masu`.
#[derive(Clone, Debug)]
pub struct Masu {
    path: PathBuf,
}

/// Final report of `masu attach --json`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct AttachReport {
    /// The process.
    pub pid: u32,
    /// The mechanism that watched it.
    #[serde(default)]
    pub backend: String,
    /// Whether masu settled before it ended.
    pub settled: bool,
    /// Time from attach to settled.
    #[serde(default)]
    pub settled_s: Option<f64>,
    /// Windows of 2 MiB seen.
    #[serde(default)]
    pub windows_seen: u64,
    /// Number of hot windows among them.
    #[serde(default)]
    pub windows_hot: u64,
    /// Windows put on huge pages.
    #[serde(default)]
    pub windows_promoted: u64,
    /// Windows given back.
    #[serde(default)]
    pub windows_demoted: u64,
    /// Windows that the kernel or the policy refused, by reason.
    #[serde(default)]
    pub windows_refused: BTreeMap<String, u64>,
    /// Resident memory before.
    #[serde(default)]
    pub rss_before_bytes: u64,
    /// Resident memory after.
    #[serde(default)]
    pub rss_after_bytes: u64,
    /// Growth of resident memory.
    #[serde(default)]
    pub extra_rss_fraction: f64,
    /// Cost of reading all accessed bits.
    #[serde(default)]
    pub scan_us_per_gib: Option<f64>,
    /// Cost of clearing all accessed bits.
    #[serde(default)]
    pub clear_us_per_gib: Option<f64>,
    /// Processor time that masu used.
    #[serde(default)]
    pub cpu_s: f64,
    /// Estimates for other settings.
    #[serde(default)]
    pub what_if: Vec<serde_json::Value>,
}

/// Report of `masu run --report FILE --json` after the program's end.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct RunReport {
    /// Requested way of getting huge pages.
    #[serde(default)]
    pub huge: String,
    /// Way that was actually used.
    #[serde(default)]
    pub served: String,
    /// Huge pages by the kind of memory: heap, mmap, bss, stack, code.
    #[serde(default)]
    pub superpages: BTreeMap<String, Superpages>,
    /// Huge pages split again because they were not used.
    #[serde(default)]
    pub demoted_windows: u64,
    /// Memory that this returned.
    #[serde(default)]
    pub returned_bytes: u64,
    /// Notes for the reader.
    #[serde(default)]
    pub notes: Vec<String>,
    /// Remaining fields of the report.
    #[serde(flatten)]
    pub rest: BTreeMap<String, serde_json::Value>,
}

/// Outcome for the windows of one kind of memory.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Superpages {
    /// Windows for which a huge page was wanted.
    pub reserved_windows: u64,
    /// Windows with a huge page.
    pub allocated_windows: u64,
    /// Windows refused by the kernel.
    pub failed_windows: u64,
    /// Windows that were huge and have been split since.
    pub downgraded_windows: u64,
}

/// Report of `masu run --local --report FILE --json` after the program's end.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct LocalReport {
    /// Time from the program's start to its end, in seconds.
    pub elapsed_s: f64,
    /// Part of this time during which its threads waited for memory.
    pub stall_s: f64,
    /// Budget of paged memory in bytes.
    pub local_bytes: u64,
    /// Total paged memory in bytes.
    pub paged_bytes: u64,
    /// Peak resident bytes, victim queue included.
    pub peak_resident_bytes: u64,
    /// Page faults that fetched something.
    pub faults: u64,
    /// Page faults whose page was still in memory.
    pub faults_staged: u64,
    /// First-touch page faults.
    pub faults_first: u64,
    /// Fetched.
    pub bytes_in: u64,
    /// Written back.
    pub bytes_out: u64,
    /// Median transfer size of faults; `None` without known sites.
    pub unit_bytes_median: Option<u64>,
    /// Remaining fields of the report: sites, estimates for other budgets, notes.
    #[serde(flatten)]
    pub rest: BTreeMap<String, serde_json::Value>,
}

/// Report of `masu pages --json`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PagesReport {
    /// The process.
    pub pid: u32,
    /// The mechanism that watched it.
    #[serde(default)]
    pub backend: String,
    /// Length of the observation, in seconds.
    pub observed_s: f64,
    /// Mappings of the process.
    pub mappings: Vec<PagesMapping>,
}

/// One mapping of a [`PagesReport`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PagesMapping {
    /// First address, `0x…`.
    pub start: String,
    /// First address after it, `0x…`.
    pub end: String,
    /// Runs of pages that were alike.
    pub runs: Vec<PagesRun>,
}

/// Pages next to each other that were accessed alike.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PagesRun {
    /// First address, `0x…`.
    pub start: String,
    /// Number of 4 KiB pages.
    pub pages: u64,
    /// Number of readings that found them accessed.
    pub accessed_reads: u64,
    /// Estimated accesses per second of one page.
    #[serde(default)]
    pub rate_per_s: f64,
}

/// Report of `masu census --json`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CensusReport {
    /// Memory by class.
    pub classes: Vec<ClassReport>,
    /// The part of the frames that was looked at.
    pub sampled_fraction: f64,
    /// The time that looking took.
    pub cost_us: f64,
}

/// One class of a [`CensusReport`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ClassReport {
    /// Name of the class.
    pub class: String,
    /// All of it.
    pub bytes: f64,
    /// 19 times of 20 `bytes` is off by no more than this.
    pub error_bound_bytes: f64,
}

/// Report of `masu llc shared --json`, without the frames.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SharedReport {
    /// Frames that are merged.
    pub merged_frames: u64,
    /// Pages that have one of them.
    pub merged_pages: u64,
    /// Properties of the scan.
    pub look: LookReport,
}

/// Properties of a scan of [`SharedReport`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LookReport {
    /// Pages whose entries were read.
    pub pages_read: f64,
    /// Frames whose flags were asked.
    pub frames_asked: u64,
    /// The processor time that it took.
    pub cpu_us: f64,
}

impl SharedReport {
    /// Cost of each of `pages` pages, in ns.
    pub fn ns_per_page(&self, pages: f64) -> f64 {
        self.look.cpu_us * 1e3 / pages
    }

    /// Cost of each page-table entry, in ns: more entries are read than there are pages, and of other processes too.
    pub fn ns_per_entry(&self) -> f64 {
        self.ns_per_page(self.look.pages_read)
    }
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
    pub fn census(&self, options: &[&str], processors: &Processors, stop: &Stop) -> Result<CensusReport> {
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
    let text = std::fs::read_to_string(path).context("masu run left no report")?;
    let mut report: RunReport = last_object(&text).context("masu run left no report")?;
    // The program's path depends on this machine; the benchmark names the program itself.
    report.rest.remove("command");
    Ok(report)
}

/// Reads the report that a `masu run --local` has left at `path`.
///
/// # Errors
/// When there is none.
pub fn local_report(path: &Path) -> Result<LocalReport> {
    let text = std::fs::read_to_string(path).context("masu run left no report")?;
    let mut report: LocalReport = last_object(&text).context("masu run left no report")?;
    report.rest.remove("command");
    report.rest.values_mut().for_each(sources::shorten);
    Ok(report)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_of_paging_is_read_as_far_as_it_goes() {
        let text = r#"{"elapsed_s":2.5,"local_bytes":4096,"faults":7,"bytes_in":8192,"unit_bytes_median":null,
            "command":["x"],"sites":[{"faults":7}]}"#;
        let report: LocalReport = last_object(text).unwrap();
        assert_eq!((report.faults, report.bytes_in, report.bytes_out), (7, 8192, 0));
        assert_eq!(report.rest["sites"][0]["faults"], 7);
    }

    #[test]
    fn a_masu_that_cannot_page_is_told_from_one_that_can() {
        assert!(!stand_in("echo '--huge'").1.knows_local().unwrap());
        assert!(!stand_in("echo '--local'; exit 2").1.knows_local().unwrap());
        assert!(stand_in("echo '  --local <SIZE>'").1.knows_local().unwrap());
    }

    #[test]
    fn a_report_of_a_run_keeps_what_it_does_not_know() {
        let text = r#"{"command":["true"],"huge":"touch","served":"hot","exit_status":0,"run_s":0.5,
            "superpages":{"heap":{"reserved_windows":3,"allocated_windows":2,"failed_windows":1,"downgraded_windows":0}},
            "notes":["static"]}"#;
        let report: RunReport = last_object(text).unwrap();
        assert_eq!((report.served.as_str(), report.superpages["heap"].failed_windows), ("hot", 1));
        assert_eq!(report.rest["run_s"], 0.5);
    }

    #[test]
    fn a_masu_without_the_command_run_is_told_from_one_with_it() {
        assert!(!stand_in("exit 2").1.knows_run().unwrap());
        assert!(stand_in("exit 0").1.knows_run().unwrap());
    }

    #[test]
    fn the_last_report_counts_and_unknown_fields_are_passed_over() {
        let text =
            "{\"pid\":1,\"settled\":false}\n{\n \"pid\": 2, \"settled\": true, \"settled_s\": 3.5,\n \"new\": [1]}\n";
        let report: AttachReport = last_object(text).unwrap();
        assert_eq!((report.pid, report.settled, report.settled_s), (2, true, Some(3.5)));
        assert_eq!(last_object::<AttachReport>("").unwrap_err().to_string(), "its output is empty");
        assert!(last_object::<AttachReport>("oops").is_err());
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
        let script =
            "trap 'echo {\\\"pid\\\":$2,\\\"settled\\\":false}; exit 0' INT; echo >&2; while :; do sleep 0.01; done";
        let (_folder, masu) = stand_in(script);
        let mut attached = masu.attach(7, &[], &Processors::ours().unwrap()).unwrap();
        std::thread::sleep(Duration::from_millis(500)); // the shell sets its trap
        assert!(attached.is_running());
        let report = attached.interrupt(&Stop::default()).unwrap();
        assert_eq!((report.pid, report.settled), (7, false));
    }
}
