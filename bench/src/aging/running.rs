//! A running `masu aging`, its report with `--json`, and its use of resources as the kernel counts it.
//!
//! It prints a line with `"ready": true` when its protection levels are in force, and one with `"end": true` when all
//! settings are restored. Its processor time is read from `/proc/PID/stat`, not from its own report.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use aging::report::Summary;
use anyhow::{Context, Result, bail, ensure};
use rustix::process::Signal;
use serde::Serialize;
use serde_json::Value;

use crate::children::{OwnChild, describe};
use crate::launch::Program;
use crate::masu::Masu;
use crate::place::Place;
use crate::process::processor_time;
use crate::session::Session;

/// Time limit for getting ready, and for restoring all settings.
const LIMIT: Duration = Duration::from_secs(60);

/// Cost of a `masu aging`.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Cost {
    /// Use of one processor while masu was active, as the kernel counts it (in steps of 10 ms).
    pub core_fraction: f64,
    /// masu's own report.
    pub said: Summary,
}

/// A running `masu aging` beside other programs. Dropping it ends masu, which restores its settings.
#[derive(Debug)]
pub struct Running {
    child: OwnChild,
    begun: Instant,
    at_ready: Duration,
}

impl Running {
    /// Starts it with `options` and waits until it is ready.
    ///
    /// # Errors
    /// When this masu has no such command, it refuses its options, or we are interrupted.
    pub fn start(session: &Session, masu: &Masu, options: &[String]) -> Result<Running> {
        let mut command = masu.aging();
        command.arg("--json").args(options);
        let child = OwnChild::start(command, &session.processors, Place::Anywhere)?;
        Running::greet(child, session)
    }

    fn greet(mut child: OwnChild, session: &Session) -> Result<Running> {
        let line = child.line(LIMIT, &session.stop).context("masu aging is not ready")?;
        ensure!(is_ready(&line), "masu aging said `{line}` instead of that it is ready");
        // Processor time before the ready line is not part of the cost.
        Ok(Running { at_ready: processor_time(child.pid())?, begun: Instant::now(), child })
    }

    /// Asks masu to end, and returns its cost from the ready line to this request.
    ///
    /// # Errors
    /// When it has ended already, ends badly, reports nothing, or we are interrupted.
    pub fn end(mut self, session: &Session) -> Result<Cost> {
        let used = processor_time(self.child.pid()).context("masu aging has ended before it was asked to")?;
        let core_fraction = used.saturating_sub(self.at_ready).as_secs_f64() / self.begun.elapsed().as_secs_f64();
        self.child.signal(Signal::INT);
        let ended = self.child.finish(LIMIT, &session.stop)?;
        ensure!(ended.status.success(), "masu aging {}: {}", describe(ended.status), ended.errors.join(" "));
        Ok(Cost { core_fraction, said: last_report(&ended.lines.join("\n"))? })
    }
}

/// Time of a program that has ended.
#[derive(Clone, Copy, Debug)]
pub struct Used {
    /// From its start to its end.
    pub elapsed: Duration,
    processor: Duration,
}

/// Runs `command` to its end.
///
/// # Errors
/// When it fails or takes longer than `limit`, or we are interrupted.
pub fn finished(session: &Session, command: Command, limit: Duration) -> Result<Used> {
    let begun = Instant::now();
    let child = OwnChild::start(command, &session.processors, Place::Anywhere)?;
    child.await_end(limit, &session.stop)?;
    let used = Used { elapsed: begun.elapsed(), processor: processor_time(child.pid())? };
    let ended = child.finish(limit, &session.stop)?;
    let complaint = ended.errors.last().map_or("no message", String::as_str);
    ensure!(ended.status.success(), "it {}: {complaint}", describe(ended.status));
    Ok(used)
}

/// A program under a tool that spares the page cache, or under none.
#[derive(Debug)]
pub struct Spared {
    program: Program,
    /// File of masu's report.
    report: Option<PathBuf>,
}

impl Spared {
    /// `program` alone.
    pub const fn not(program: Program) -> Spared {
        Spared { program, report: None }
    }

    /// `nocache …`.
    pub fn by_nocache(program: &Program) -> Spared {
        Spared::not(Program::at("nocache", words(program)))
    }

    /// `masu aging --cache 0 -- …`, with its report in `folder`.
    pub fn by_masu(program: &Program, masu: &Masu, folder: &Path) -> Spared {
        let report = folder.join("masu-aging.json");
        let mut command = masu.aging();
        command.args(["--json", "--report"]).arg(&report).args(["--cache", "0", "--"]).args(words(program));
        Spared { program: Program::at(command.get_program(), command.get_args()), report: Some(report) }
    }

    /// The program to start.
    pub const fn program(&self) -> &Program {
        &self.program
    }

    /// Cost of masu, under masu.
    ///
    /// # Errors
    /// When it has left no report.
    pub fn cost(&self, used: Used) -> Result<Option<Cost>> {
        let Some(report) = &self.report else { return Ok(None) };
        let text = std::fs::read_to_string(report).context("masu aging left no report")?;
        let core_fraction = used.processor.as_secs_f64() / used.elapsed.as_secs_f64().max(1e-9);
        Ok(Some(Cost { core_fraction, said: last_report(&text)? }))
    }
}

fn words(program: &Program) -> Vec<OsString> {
    [program.path.clone().into_os_string()].into_iter().chain(program.arguments.iter().cloned()).collect()
}

fn is_ready(line: &str) -> bool {
    serde_json::from_str::<Value>(line).is_ok_and(|value| value["ready"] == true)
}

/// The report in the last line, the one with `"end": true`.
fn last_report(text: &str) -> Result<Summary> {
    let mut values = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    match values.rfind(|value| value["end"] == true) {
        Some(value) => serde_json::from_value(value).context("masu aging: its last line is not what it should be"),
        None => bail!("masu aging did not say what it has done"),
    }
}

#[cfg(test)]
mod tests {
    use units::Bytes;

    use super::*;

    #[test]
    fn the_first_line_says_that_it_is_ready() {
        assert!(is_ready(r#"{"ready": true, "backends": []}"#));
        assert!(!is_ready(r#"{"ready": false}"#) && !is_ready("masu: ready") && !is_ready(""));
    }

    #[test]
    fn the_last_line_counts_and_decisions_before_it_do_not() {
        let text = "{\"ready\":true}\n{\"decision\":\"pin\"}\nnoise\n\
                    {\"end\":true,\"cpu_us\":7,\"run_us\":1000,\"mlocked_bytes_max\":4096,\"dropped_bytes\":8192,\
                    \"left_bytes\":0,\"releases\":2,\"refaults\":[]}\n";
        let wanted = Summary {
            cpu_us: 7,
            run_us: 1000,
            mlocked_bytes_max: Bytes(4096),
            brought_in_bytes: Bytes(0),
            dropped_bytes: Bytes(8192),
            left: Vec::new(),
            releases: 2,
            ..Summary::default()
        };
        assert_eq!(last_report(text).unwrap(), wanted);
        let said = last_report("{\"ready\":true}\n").unwrap_err().to_string();
        assert_eq!(said, "masu aging did not say what it has done");
    }
}
