//! One run of one program in one way with one budget: a cell of the tables.

use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use units::Bytes;

use super::need::Need;
use super::swap::{Area, Swapped};
use super::task::{Ready, Told};
use super::way::Way;
use crate::cgroup::MemoryCgroup;
use crate::children::{Ended, OwnChild, describe};
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
    /// The host, and a way to end early.
    pub session: &'a Session,
    /// The command under test, where it knows `--local`.
    pub masu: Option<&'a Masu>,
    /// Store for pages; masu's default if `None`.
    pub store: Option<&'a str>,
    /// Whether masu may move pages in the background.
    pub background: bool,
    /// Folder of site profiles of this program, for the way that uses them.
    pub profiles: &'a Path,
    /// The program.
    pub ready: &'a Ready,
    /// Memory need of the program.
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
        match self.run(self.ready.program.command(), None, None, limit)? {
            Some(ran) => self.judged(&ran).map_err(anyhow::Error::msg),
            None => bail!("{} did not end within {} s", self.ready.program.path.display(), limit.as_secs()),
        }
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
        let command = program.under(masu, &arguments, Some(file.path()));
        let Some(ran) = self.run(command, Some(cache), None, limit)? else {
            return Ok(End::TooLong(self.ready.times_at_most));
        };
        let mut run = match self.judged(&ran) {
            Ok(run) => run,
            Err(complaint) => return Ok(End::Badly(complaint)),
        };
        let report = match local_report(file.path()) {
            Ok(report) => report,
            Err(error) => return Ok(End::Badly(format!("{error:#}"))),
        };
        if report.peak_resident_bytes > budget {
            let (had, may) = (report.peak_resident_bytes, budget);
            return Ok(End::Badly(format!("over its budget: {had} of {may}")));
        }
        (run.faults, run.bytes_in, run.bytes_out) = (report.faults, report.bytes_in.0, report.bytes_out.0);
        run.peak_bytes = report.peak_resident_bytes.0;
        run.report = Some(serde_json::to_value(report)?);
        Ok(End::Well(Box::new(run)))
    }

    fn under_kernel(&self, way: Way, budget: Bytes, limit: Duration) -> Result<End> {
        let area = if way == Way::Zram { &self.zram } else { &self.swap_file };
        let area = area.as_ref().with_context(|| format!("there is no area for {way}"))?;
        let _on = area.on()?;
        let cgroup = MemoryCgroup::make()?;
        cgroup.limit(budget + self.need.rest_bytes)?;
        let before = Swapped::now()?;
        let ran = self.run(cgroup.start(&self.ready.program), None, Some(&cgroup), limit)?;
        let Some(ran) = ran else { return Ok(End::TooLong(self.ready.times_at_most)) };
        let moved = Swapped::now()?.since(before);
        let mut run = match self.judged(&ran) {
            Ok(run) => run,
            Err(complaint) => return Ok(End::Badly(complaint)),
        };
        (run.bytes_in, run.bytes_out) = (moved.bytes_in.0, moved.bytes_out.0);
        run.compressed_bytes = area.memory_peak().map(|bytes| bytes.0);
        Ok(End::Well(Box::new(run)))
    }

    /// Runs `command` to its end; no end when it took longer than `limit`.
    fn run(
        &self,
        mut command: Command,
        cache: Option<&Path>,
        cgroup: Option<&MemoryCgroup>,
        limit: Duration,
    ) -> Result<Option<Ran>> {
        same_environment(&mut command);
        if let Some(cache) = cache {
            command.env("XDG_CACHE_HOME", cache);
        }
        let (begun, mut woken) = (Instant::now(), 0);
        let mut child = OwnChild::start(command, &self.session.processors, Place::Anywhere)?;
        while child.is_running() {
            self.session.stop.check()?;
            if begun.elapsed() > limit {
                return Ok(None); // dropped, it is ended
            }
            if let Some(cgroup) = cgroup {
                woken += u64::from(cgroup.refresh()?);
            }
            thread::sleep(EVERY);
        }
        let run_s = begun.elapsed().as_secs_f64();
        Ok(Some(Ran { ended: child.finish(Duration::ZERO, &self.session.stop)?, run_s, woken }))
    }

    /// Result of a program that has ended, or its fault.
    fn judged(&self, ran: &Ran) -> std::result::Result<Run, String> {
        let Ran { ended, run_s, woken } = ran;
        if !ended.status.success() {
            let said = ended.errors.iter().rfind(|line| !line.trim().is_empty()).map_or("no message", String::as_str);
            return Err(format!("it {}: {said}", describe(ended.status)));
        }
        let printed = Printed::of(&ended.lines, self.ready.result).ok_or("it told no result")?;
        if printed.checksum != self.need.checksum {
            return Err(format!("wrong result: {} instead of {}", printed.checksum, self.need.checksum));
        }
        let usage = ended.usage.as_ref();
        Ok(Run {
            main_s: printed.main_s.unwrap_or(*run_s),
            run_s: *run_s,
            faults: usage.map_or(0, |usage| usage.major_faults),
            bytes_in: 0,
            bytes_out: 0,
            peak_bytes: usage.map_or(0, |usage| usage.rss_peak_bytes),
            compressed_bytes: None,
            waits: *woken,
            report: None,
        })
    }
}

/// A program that has ended.
struct Ran {
    ended: Ended,
    run_s: f64,
    woken: u64,
}

/// Interval between looks at a program; its end is noticed at most this much too late.
const EVERY: Duration = Duration::from_millis(2);

/// Removes the caller's settings of locales and libraries: they would make two runs differ, or two hosts.
pub fn same_environment(command: &mut Command) {
    command.env("LC_ALL", "C");
    for name in ["GLIBC_TUNABLES", "LD_PRELOAD", "MALLOC_CONF"] {
        command.env_remove(name);
    }
}

impl Printed {
    /// Parses `lines`; `None` when they hold no result.
    pub fn of(lines: &[String], told: Told) -> Option<Printed> {
        if told == Told::ByOutput {
            let checksum = format!("{:016x}-{}", checksum_of(lines), lines.len());
            return (!lines.is_empty()).then_some(Printed { checksum, main_s: None });
        }
        let values: Vec<&str> = lines.iter().filter_map(|line| line.strip_prefix("checksum=")).collect();
        let elapsed = lines.iter().find(|line| line.starts_with("elapsed_s="));
        let main_s = elapsed.and_then(|line| Reply::of(line).number("elapsed_s").ok());
        (!values.is_empty()).then(|| Printed { checksum: values.join(" "), main_s })
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
        assert_eq!(Printed::of(&lines("elapsed_s=1.5\n"), Told::ByChecksum), None);
        let of = |text: &str| Printed::of(&lines(text), Told::ByOutput).map(|printed| printed.checksum);
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
