//! One run of one program in one way with one budget: a cell of the tables.

use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use units::Bytes;

use super::need::Need;
use super::swap::{Area, Swapped};
use super::task::{Ready, Told};
use super::way::Way;
use crate::cgroup::MemoryCgroup;
use crate::children::{Ended, OwnChild};
use crate::launch::Program;
use crate::masu::{Masu, local_report};
use crate::place::Place;
use crate::session::Session;
use crate::workload::Reply;

/// Output of a program.
#[derive(Clone, Debug, PartialEq)]
pub struct Printed {
    /// Checksum; must be the same in all runs.
    pub checksum: String,
    /// Time of its main part, after its data was made, where the program reports it.
    pub main_s: Option<f64>,
}

/// A run that went well.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Run {
    /// Time of the main part; of the whole run, where the program does not report the part.
    pub main_s: f64,
    /// Time from start to end, in seconds.
    pub run_s: f64,
    /// Page faults that had to fetch something.
    pub faults: u64,
    /// Fetched.
    pub bytes_in: u64,
    /// Written back.
    pub bytes_out: u64,
    /// The most memory that was used: paged memory in the program under masu, all of it otherwise.
    pub peak_bytes: u64,
    /// The most memory that compressed pages took.
    pub compressed_bytes: Option<u64>,
    /// Number of times that it was found waiting because the kernel found nothing to reclaim.
    pub waits: u64,
    /// masu's report, kept as it was for the samples: `--join` also reads those of an older masu.
    pub report: Option<serde_json::Value>,
}

/// End of a run.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum End {
    /// Well.
    Well(Box<Run>),
    /// Ended by us, after this many times the run time with all memory.
    TooLong(f64),
    /// Failed, or printed a wrong result.
    Badly(String),
}

/// Inputs common to all runs of one program.
#[derive(Debug)]
pub struct Bench<'a> {
    pub session: &'a Session,
    /// The command under test, where it knows `--local`.
    pub masu: Option<&'a Masu>,
    /// Store for pages; masu's default if `None`.
    pub store: Option<&'a str>,
    /// Whether masu may move pages in the background.
    pub background: bool,
    /// Folder of site profiles of this program, for the way that uses them.
    pub profiles: &'a Path,
    pub ready: &'a Ready,
    pub need: &'a Need,
    /// Swap areas, as far as they are wanted.
    pub zram: Option<Area>,
    /// The same, on a file.
    pub swap_file: Option<Area>,
}

impl Bench<'_> {
    /// Runs the program with all memory.
    ///
    /// # Errors
    /// When it fails, or we are interrupted.
    pub fn all_local(&self, limit: Duration) -> Result<Run> {
        let ran = run_to_end(self.session, self.ready.program.command(), limit, EVERY, || Ok(()))?;
        self.judged(ran.with_context(|| format!("it did not end within {} s", limit.as_secs()))?)
    }

    /// Runs the program with `budget` for its data, and ends it when it takes too long compared with `all_local_s`, its
    /// time with all memory.
    ///
    /// # Errors
    /// When something other than the program fails, or we are interrupted.
    pub fn run_with(&self, way: Way, budget: Bytes, all_local_s: f64) -> Result<End> {
        let limit = Duration::from_secs_f64(all_local_s * self.ready.times_at_most);
        match way.of_masu() {
            Some(words) => self.under_masu(way, &words, budget, limit),
            None => self.under_kernel(way, budget, limit),
        }
    }

    fn under_masu(&self, way: Way, words: &[String], budget: Bytes, limit: Duration) -> Result<End> {
        let program = match way {
            Way::Marked => self.ready.marked.as_ref().context("this program has no marks")?,
            _ => &self.ready.program,
        };
        if way != Way::Known {
            // The profile of an earlier run is not visible to this one.
            let none = tempfile::tempdir().context("cannot make a folder")?;
            return self.paged(program, words, budget, limit, none.path());
        }
        let is_new = self.profiles.read_dir().context("cannot read a folder of ours")?.next().is_none();
        if is_new {
            self.paged(program, words, budget, limit, self.profiles)?;
        }
        self.paged(program, words, budget, limit, self.profiles)
    }

    fn paged(&self, program: &Program, words: &[String], budget: Bytes, limit: Duration, cache: &Path) -> Result<End> {
        let masu = self.masu.context("this masu does not know `run --local`")?;
        let file = tempfile::NamedTempFile::new().context("cannot make a file for masu's report")?;
        let local = budget.0.to_string();
        let mut arguments = vec!["--local", &local];
        arguments.extend(words.iter().map(String::as_str));
        if let Some(store) = self.store {
            arguments.extend(["--store", store]);
        }
        if !self.background {
            arguments.push("--no-background");
        }
        let mut command = program.under(masu, &arguments, Some(file.path()));
        command.env("XDG_CACHE_HOME", cache);
        let ran = run_to_end(self.session, command, limit, EVERY, || Ok(()))?;
        Ok(self.end_of(ran, |run| {
            let report = local_report(file.path())?;
            let peak = report.peak_resident_bytes;
            ensure!(peak <= budget, "over its budget: {peak} of {budget}");
            Ok(Run {
                faults: report.faults,
                bytes_in: report.bytes_in.0,
                bytes_out: report.bytes_out.0,
                peak_bytes: peak.0,
                report: Some(serde_json::to_value(report)?),
                ..run
            })
        }))
    }

    fn under_kernel(&self, way: Way, budget: Bytes, limit: Duration) -> Result<End> {
        let area = if way == Way::Zram { &self.zram } else { &self.swap_file };
        let area = area.as_ref().with_context(|| format!("there is no area for {way}"))?;
        let _on = area.on()?;
        let cgroup = MemoryCgroup::make()?;
        cgroup.limit(budget + self.need.rest_bytes)?;
        let (before, mut waits) = (Swapped::now()?, 0);
        let ran = run_to_end(self.session, cgroup.start(&self.ready.program), limit, EVERY, || {
            waits += u64::from(cgroup.refresh()?);
            Ok(())
        })?;
        let moved = Swapped::now()?.since(before);
        let compressed_bytes = area.memory_peak().map(|bytes| bytes.0);
        let (bytes_in, bytes_out) = (moved.bytes_in.0, moved.bytes_out.0);
        Ok(self.end_of(ran, |run| Ok(Run { bytes_in, bytes_out, compressed_bytes, waits, ..run })))
    }

    /// End of a run; `complete` adds the counters of the way, and may find fault with the run.
    fn end_of(&self, ran: Option<Ran>, complete: impl FnOnce(Run) -> Result<Run>) -> End {
        let Some(ran) = ran else { return End::TooLong(self.ready.times_at_most) };
        match self.judged(ran).and_then(complete) {
            Ok(run) => End::Well(Box::new(run)),
            Err(error) => End::Badly(format!("{error:#}")),
        }
    }

    /// Result of a program that has ended, or its fault.
    fn judged(&self, Ran { ended, run_s }: Ran) -> Result<Run> {
        ended.succeeded()?;
        let printed = Printed::of(&ended.lines, self.ready.result)?;
        let (found, expected) = (&printed.checksum, &self.need.checksum);
        ensure!(found == expected, "wrong result: {found} instead of {expected}");
        let usage = ended.usage.as_ref();
        Ok(Run {
            main_s: printed.main_s.unwrap_or(run_s),
            run_s,
            faults: usage.map_or(0, |usage| usage.major_faults),
            bytes_in: 0,
            bytes_out: 0,
            peak_bytes: usage.map_or(0, |usage| usage.rss_peak_bytes),
            compressed_bytes: None,
            waits: 0,
            report: None,
        })
    }
}

/// A program that has ended.
#[derive(Debug)]
pub struct Ran {
    pub ended: Ended,
    /// Time from start to end, too long by the interval of the checks at most.
    pub run_s: f64,
}

/// Interval of the checks for a program's end, and of updates of the kernel's counters.
pub const EVERY: Duration = Duration::from_millis(2);

/// Runs `command` to its end and calls `meanwhile` at intervals of `every`. `None` when it was killed after `limit`.
///
/// The caller's settings of locales and libraries are removed: they would make two runs differ, or two hosts.
///
/// # Errors
/// When it cannot be started, `meanwhile` fails, or we are interrupted.
pub fn run_to_end(
    session: &Session,
    mut command: Command,
    limit: Duration,
    every: Duration,
    mut meanwhile: impl FnMut() -> Result<()>,
) -> Result<Option<Ran>> {
    command.env("LC_ALL", "C");
    for name in ["GLIBC_TUNABLES", "LD_PRELOAD", "MALLOC_CONF"] {
        command.env_remove(name);
    }
    let begun = Instant::now();
    let mut child = OwnChild::start(command, &session.processors, Place::Anywhere)?;
    while child.is_running() {
        session.stop.check()?;
        if begun.elapsed() > limit {
            return Ok(None); // dropped, it is ended
        }
        meanwhile()?;
        thread::sleep(every);
    }
    let run_s = begun.elapsed().as_secs_f64();
    Ok(Some(Ran { ended: child.finish(Duration::ZERO, &session.stop)?, run_s }))
}

impl Printed {
    /// Parses `lines`.
    ///
    /// # Errors
    /// When they hold no result.
    pub fn of(lines: &[String], told: Told) -> Result<Printed> {
        if told == Told::ByOutput {
            ensure!(!lines.is_empty(), "it printed no result");
            let checksum = format!("{:016x}-{}", checksum_of(lines), lines.len());
            return Ok(Printed { checksum, main_s: None });
        }
        let values: Vec<&str> = lines.iter().filter_map(|line| line.strip_prefix("checksum=")).collect();
        let elapsed = lines.iter().find(|line| line.starts_with("elapsed_s="));
        let main_s = elapsed.and_then(|line| Reply::of(line).number("elapsed_s").ok());
        ensure!(!values.is_empty(), "it printed no result");
        Ok(Printed { checksum: values.join(" "), main_s })
    }
}

/// FNV-1a, 64 bits: tells two texts apart unless a collision is made on purpose.
fn checksum_of(lines: &[String]) -> u64 {
    let bytes = lines.iter().flat_map(|line| line.bytes().chain([b'\n']));
    bytes.fold(0xcbf2_9ce4_8422_2325, |sum, byte| (sum ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<String> {
        text.lines().map(str::to_owned).collect()
    }

    #[test]
    fn a_result_is_what_the_program_says_or_all_that_it_prints() {
        let printed =
            Printed::of(&lines("hello\nchecksum=a1\nchecksum=b2\nelapsed_s=1.5\n"), Told::ByChecksum).unwrap();
        assert_eq!(printed, Printed { checksum: "a1 b2".into(), main_s: Some(1.5) });
        assert!(Printed::of(&lines("elapsed_s=1.5\n"), Told::ByChecksum).is_err());
        let of = |text: &str| Printed::of(&lines(text), Told::ByOutput).map(|printed| printed.checksum).ok();
        assert_eq!(of(""), None);
        assert_eq!(of("a\nb\n"), of("a\nb\n"));
        assert!(of("a\nb\n") != of("b\na\n") && of("ab\n") != of("a\nb\n"));
    }

    #[test]
    fn the_checksum_of_a_text_is_the_published_one() {
        // FNV-1a of "a\n", computed by hand from the definition.
        let expected = [b'a', b'\n']
            .iter()
            .fold(0xcbf2_9ce4_8422_2325u64, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(1_099_511_628_211));
        assert_eq!(checksum_of(&lines("a\n")), expected);
    }
}
