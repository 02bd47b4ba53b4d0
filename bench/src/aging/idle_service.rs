//! `masu-bench idle-service`: a service maps a file, reads it once and then idles, while a stream of several times the
//! memory of their common cgroup passes. Measures the part of the file that is still resident when the service wakes.
//!
//! Each run has its own cgroup, and the file is dropped from the page cache before it: pages are charged to the cgroup
//! that read them first.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use units::Bytes;

use super::residency::drop_all;
use super::running::{Cost, Running};
use crate::cgroup::MemoryCgroup;
use crate::children::OwnChild;
use crate::choices;
use crate::harness::{Column, Metric, Runs, median_of, or_dash};
use crate::launch::Program;
use crate::masu::Masu;
use crate::place::Place;
use crate::report::{Report, Target, Unit};
use crate::session::Session;
use crate::setting::Setting;
use crate::workload::Workload;

/// Arguments of `masu-bench idle-service`.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Memory mapped by the service
    #[arg(long, default_value = "400MiB")]
    pub mapped: Bytes,
    /// Memory of the group of service and stream
    #[arg(long, default_value = "1GiB")]
    pub group: Bytes,
    /// Bytes written by the stream
    #[arg(long, default_value = "4GiB")]
    pub stream: Bytes,
    /// Number of times that the stream reads them back
    #[arg(long, default_value_t = 3)]
    pub reads: u32,
    /// Runs in each way
    #[arg(long, default_value_t = 6)]
    pub pairs: usize,
    /// Ways to keep the service's pages
    #[arg(long, value_delimiter = ',', default_values_t = USUAL)]
    pub ways: Vec<Way>,
}

choices! {
    /// Protection of the service's pages.
    pub enum Way {
        Kernel = "kernel", "kernel alone";
        Masu100 = "masu-100", "masu --mapped 100";
        Masu80 = "masu-80", "masu --mapped 80";
        Vmtouch = "vmtouch", "vmtouch -l", needs "vmtouch";
        Swappiness0 = "swappiness-0", "swappiness 0";
        Swappiness200 = "swappiness-200", "swappiness 200";
    }
}

const USUAL: [Way; 4] = [Way::Kernel, Way::Masu100, Way::Masu80, Way::Vmtouch];

impl Way {
    /// Protection level of mapped pages, under masu.
    const fn level(self) -> Option<&'static str> {
        match self {
            Way::Masu100 => Some("100"),
            Way::Masu80 => Some("80"),
            _ => None,
        }
    }
}

#[derive(Clone, Debug, Serialize)]
struct Run {
    mapped_pages: u64,
    /// Major faults of the second read.
    major_faults: u64,
    /// Time of the second read.
    wake_s: f64,
    /// Bytes written and read by the stream, over its time.
    stream_mib_per_s: f64,
    /// Time of its writes.
    write_s: f64,
    masu: Option<Cost>,
}

impl Run {
    fn faulted_fraction(&self) -> f64 {
        self.major_faults as f64 / self.mapped_pages.max(1) as f64
    }
}

/// Time limit of a stream, and of a read of the pages.
const LIMIT: Duration = Duration::from_secs(600);

/// Runs the benchmark.
///
/// # Errors
/// When masu is missing, this host has no memory cgroups, a program fails, or we are interrupted.
pub fn run(session: &Session, options: &Options) -> Result<()> {
    ensure!(options.pairs > 0 && options.mapped.0 > 0, "expected --pairs and --mapped of 1 or more");
    ensure!(options.mapped < options.group, "--mapped {}: expected less than --group", options.mapped);
    let masu = super::masu(session, options.ways.iter().any(|way| way.level().is_some()))?;
    let mut runs = Runs::default();
    let ways = runs.available(&options.ways);
    session.warm_up_to(options.group.scaled(2.0))?;
    let folder = tempfile::tempdir_in(super::FOLDER).context("cannot make a folder for the files")?;
    let bench = Bench { session, options, masu, folder: folder.path(), mapped: folder.path().join("mapped") };
    super::write_file(&bench.mapped, options.mapped)?;
    runs.measure(session, options.pairs, "", &ways, |turn| bench.one(turn.way))?;
    runs.finish(report(session, options, &runs), session)
}

struct Bench<'a> {
    session: &'a Session,
    options: &'a Options,
    masu: Option<Masu>,
    folder: &'a Path,
    mapped: PathBuf,
}

/// Protection of the service's pages during a run.
enum Protection {
    None,
    Masu(Running),
    Vmtouch { _child: OwnChild },
    Setting { _swappiness: Setting },
}

impl Bench<'_> {
    fn one(&self, way: Way) -> Result<Run> {
        drop_all(&self.mapped)?;
        // A cgroup that is made meanwhile starts with this value, in both versions of cgroups.
        let swappiness = Path::new("/proc/sys/vm/swappiness");
        let setting = match way {
            Way::Swappiness0 => Some(Setting::set(swappiness, "0")?),
            Way::Swappiness200 => Some(Setting::set(swappiness, "200")?),
            _ => None,
        };
        let group = MemoryCgroup::make()?;
        group.limit_plainly(self.options.group)?;
        let mut service =
            self.start(&group, "workload-idle-service", vec!["--file".into(), self.mapped.clone().into()])?;
        let stream = ["--bytes".into(), self.options.stream.0.to_string().into(), "--reads".into()];
        let file = ["--file".into(), self.folder.join("stream").into()];
        let reads = self.options.reads.to_string().into();
        let mut stream =
            self.start(&group, "workload-stream", stream.into_iter().chain([reads]).chain(file).collect())?;
        let protection = match setting {
            Some(setting) => Protection::Setting { _swappiness: setting },
            None => self.protect(way, &group)?,
        };
        let stop = &self.session.stop;
        let streamed = stream.ask("go", LIMIT, stop)?;
        let woken = service.ask("touch", LIMIT, stop)?;
        let masu = match protection {
            Protection::Masu(running) => Some(running.end(self.session)?),
            _ => None,
        };
        stream.end(LIMIT, stop)?;
        let mapped_pages = service.ready().whole("pages")?;
        service.end(LIMIT, stop)?;
        Ok(Run {
            mapped_pages,
            major_faults: woken.whole("major")?,
            wake_s: woken.number("seconds")?,
            stream_mib_per_s: streamed.number("bytes")? / f64::from(1 << 20) / streamed.number("seconds")?,
            write_s: streamed.number("write_s")?,
            masu,
        })
    }

    fn start(&self, group: &MemoryCgroup, name: &str, arguments: Vec<std::ffi::OsString>) -> Result<Workload> {
        let command = group.start(&Program::workload(name, arguments)?);
        let child = OwnChild::start(command, &self.session.processors, Place::Anywhere)?;
        Workload::greet(child, name, &self.session.stop)
    }

    fn protect(&self, way: Way, group: &MemoryCgroup) -> Result<Protection> {
        if way == Way::Vmtouch {
            return Ok(Protection::Vmtouch { _child: super::vmtouch(self.session, &self.mapped, self.options.group)? });
        }
        let Some((masu, level)) = self.masu.as_ref().zip(way.level()) else { return Ok(Protection::None) };
        let options = ["--cgroup", &group.name(), "--mapped", level, "--budget", "50%"].map(str::to_owned);
        Ok(Protection::Masu(Running::start(self.session, masu, &options)?))
    }
}

fn report(session: &Session, options: &Options, runs: &Runs<Way, Run>) -> Report {
    let Options { mapped, group, stream, reads, .. } = options;
    let title = format!(
        "idle-service: {mapped} mapped and idle in a group of {group}; {stream} are written there and read {reads} times"
    );
    let mut report = Report::new("idle-service", title, &session.host);
    let stream = Metric::more("stream", Unit::MibPerSecond, |run: &Run| run.stream_mib_per_s)
        .target(Way::Masu100, Target::AtLeast(0.99))
        .target(Way::Masu80, Target::AtLeast(0.99));
    let wake = Metric::less("waking up", Unit::Seconds, |run: &Run| run.wake_s);
    runs.compare(&mut report, &runs.against(Way::Kernel), &[stream, wake]);
    let faulted = Metric::less("major faults on waking up, of its pages", Unit::Fraction, Run::faulted_fraction)
        .target(Way::Masu100, Target::AtMost(0.0))
        .target(Way::Masu80, Target::AtMost(0.05));
    runs.figures(&mut report, &[faulted, super::processor_time(&[Way::Masu100, Way::Masu80], |run: &Run| &run.masu)]);
    runs.table(&mut report, "All runs, medians:", &columns());
    report.note(super::lists());
    report.note(
        "The stream ends when all that it wrote is on disk and has been read back; the service wakes right after.",
    );
    report
}

fn columns() -> [Column<'static, Run>; 7] {
    let faults = |runs: &[Run]| runs.iter().map(|run| run.major_faults).collect::<Vec<u64>>();
    [
        Column::new("major faults", |runs| {
            let middle = |value: &dyn Fn(&Run) -> f64| or_dash(Unit::Count, median_of(runs, value));
            format!("{} of {}", middle(&|run| run.major_faults as f64), middle(&|run| run.mapped_pages as f64))
        }),
        Column::new("least", move |runs| faults(runs).iter().min().unwrap_or(&0).to_string()),
        Column::new("most", move |runs| faults(runs).iter().max().unwrap_or(&0).to_string()),
        Column::median("waking up", Unit::Seconds, |run: &Run| run.wake_s),
        Column::median("stream", Unit::MibPerSecond, |run: &Run| run.stream_mib_per_s),
        super::kept(|run: &Run| &run.masu),
        super::dropped(|run: &Run| &run.masu),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_a_part_of_the_pages() {
        let run =
            Run { mapped_pages: 200, major_faults: 50, wake_s: 1.0, stream_mib_per_s: 1.0, write_s: 1.0, masu: None };
        assert!((run.faulted_fraction() - 0.25).abs() < 1e-12);
        let mut runs = Runs::default();
        runs.push("", Way::Kernel, vec![run]);
        let text = runs.as_table(&columns()).to_string();
        let words: Vec<&str> = text.lines().nth(1).unwrap().split_whitespace().collect();
        assert_eq!(words[..7], ["kernel", "alone", "50", "of", "200", "50", "50"], "{text}");
    }
}
