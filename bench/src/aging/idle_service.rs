//! `masu-bench idle-service`: a service maps a file, reads it once and then idles, while a stream of several times the
//! memory of their common cgroup passes. Measures the part of the file that is still resident when the service wakes.
//!
//! Each run has its own cgroup, and the file is dropped from the page cache before it: pages are charged to the cgroup
//! that read them first.

use std::fmt;
use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use units::Bytes;

use super::residency::drop_all;
use super::running::{Cost, Running};
use super::swappiness::Swappiness;
use crate::cgroup::MemoryCgroup;
use crate::children::OwnChild;
use crate::launch::Program;
use crate::masu::Masu;
use crate::pairs::{Better, median, order_of_round};
use crate::place::Place;
use crate::report::{Report, Target, Unit, Versus};
use crate::session::Session;
use crate::superpages::tools::on_path;
use crate::table::Table;
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

/// A way to keep the service's pages, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Way {
    /// The kernel alone.
    Kernel,
    /// `masu aging --mapped 100`.
    #[value(name = "masu-100")]
    Masu100,
    /// `masu aging --mapped 80`.
    #[value(name = "masu-80")]
    Masu80,
    /// `vmtouch -l` on the file.
    Vmtouch,
    /// The kernel, with `vm.swappiness` of 0.
    #[value(name = "swappiness-0")]
    Swappiness0,
    /// The kernel, with `vm.swappiness` of 200.
    #[value(name = "swappiness-200")]
    Swappiness200,
}

const USUAL: [Way; 4] = [Way::Kernel, Way::Masu100, Way::Masu80, Way::Vmtouch];

impl Way {
    const fn title(self) -> &'static str {
        match self {
            Way::Kernel => "kernel alone",
            Way::Masu100 => "masu --mapped 100",
            Way::Masu80 => "masu --mapped 80",
            Way::Vmtouch => "vmtouch -l",
            Way::Swappiness0 => "swappiness 0",
            Way::Swappiness200 => "swappiness 200",
        }
    }

    const fn dial(self) -> Option<&'static str> {
        match self {
            Way::Masu100 => Some("100"),
            Way::Masu80 => Some("80"),
            _ => None,
        }
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = clap::ValueEnum::to_possible_value(self);
        f.write_str(value.as_ref().map_or("", |value| value.get_name()))
    }
}

#[derive(Clone, Debug, Serialize)]
struct Run {
    /// Pages that the service maps.
    pages: u64,
    /// Major page faults of the second read.
    major_faults: u64,
    /// Time of that second read.
    wake_s: f64,
    /// Bytes written and read by the stream, over its time.
    stream_mib_per_s: f64,
    /// Part of this time spent on writing.
    write_s: f64,
    /// masu's cost, in the runs under masu.
    masu: Option<Cost>,
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
    let masu = super::masu(session, options.ways.iter().any(|way| way.dial().is_some()))?;
    let (mut ways, mut skipped) = (options.ways.clone(), None);
    if on_path("vmtouch").is_none() && ways.contains(&Way::Vmtouch) {
        ways.retain(|way| *way != Way::Vmtouch);
        skipped = Some("skipped: vmtouch: it is not installed (Debian: vmtouch)");
    }
    session.warm_up_to(options.group.scaled(2.0))?;
    let folder = tempfile::tempdir_in(super::FOLDER).context("cannot make a folder for the files")?;
    let bench = Bench { session, options, masu, folder: folder.path(), mapped: folder.path().join("mapped") };
    bench.write_mapped()?;
    let mut all: Vec<(Way, Vec<Run>)> = ways.iter().map(|way| (*way, Vec::new())).collect();
    for round in 0..options.pairs {
        for nth in order_of_round(round, ways.len()) {
            let way = ways[nth];
            session.progress(&format!("round {} of {}: {}", round + 1, options.pairs, way.title()));
            let run = bench.one(way).with_context(|| way.title())?;
            all[nth].1.push(run);
        }
    }
    let mut report = report(session, options, &all);
    if let Some(skipped) = skipped {
        report.note(skipped);
    }
    report.finish(session.save)
}

struct Bench<'a> {
    session: &'a Session,
    options: &'a Options,
    masu: Option<Masu>,
    folder: &'a Path,
    mapped: PathBuf,
}

/// Protection of the service's pages during a run.
enum Keeper {
    Nobody,
    Masu(Running),
    Vmtouch { _child: OwnChild },
    Setting { _held: Swappiness },
}

impl Bench<'_> {
    fn write_mapped(&self) -> Result<()> {
        let path = &self.mapped;
        let write = || -> std::io::Result<()> {
            let (mut file, some) = (File::create(path)?, vec![7; 1 << 20]);
            for _ in 0..self.options.mapped.0.div_ceil(1 << 20) {
                file.write_all(&some)?;
            }
            file.sync_all()
        };
        write().with_context(|| format!("cannot write {}", path.display()))
    }

    fn one(&self, way: Way) -> Result<Run> {
        drop_all(&self.mapped)?;
        let setting = match way {
            Way::Swappiness0 => Some(Swappiness::set(0)?),
            Way::Swappiness200 => Some(Swappiness::set(200)?),
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
        let keeper = match setting {
            Some(held) => Keeper::Setting { _held: held },
            None => self.keeper(way, &group)?,
        };
        let stop = &self.session.stop;
        let streamed = stream.ask("go", LIMIT, stop)?;
        let woken = service.ask("touch", LIMIT, stop)?;
        let masu = match keeper {
            Keeper::Masu(running) => Some(running.end(self.session)?),
            _ => None,
        };
        stream.end(LIMIT, stop)?;
        let pages = service.ready().whole("pages")?;
        service.end(LIMIT, stop)?;
        Ok(Run {
            pages,
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

    fn keeper(&self, way: Way, group: &MemoryCgroup) -> Result<Keeper> {
        if way == Way::Vmtouch {
            return Ok(Keeper::Vmtouch { _child: super::vmtouch(self.session, &self.mapped, self.options.group)? });
        }
        let Some((masu, dial)) = self.masu.as_ref().zip(way.dial()) else { return Ok(Keeper::Nobody) };
        let options = ["--cgroup", &group.name(), "--mapped", dial, "--budget", "50%"].map(str::to_owned);
        Ok(Keeper::Masu(Running::start(self.session, masu, &options)?))
    }
}

fn samples(runs: &[Run], figure: impl Fn(&Run) -> f64) -> Vec<f64> {
    runs.iter().map(figure).collect()
}

fn faults(run: &Run) -> f64 {
    run.major_faults as f64 / run.pages.max(1) as f64
}

fn report(session: &Session, options: &Options, all: &[(Way, Vec<Run>)]) -> Report {
    let Options { mapped, group, stream, reads, .. } = options;
    let title = format!(
        "idle-service: {mapped} mapped and idle in a group of {group}; {stream} are written there and read {reads} times"
    );
    let mut report = Report::new("idle-service", title, &session.host);
    let kernel = all.iter().find(|(way, _)| *way == Way::Kernel).map(|(_, runs)| runs.as_slice());
    for (way, runs) in all.iter().filter(|(way, _)| *way != Way::Kernel) {
        let Some(kernel) = kernel else { continue };
        let versus = Versus { baseline: Way::Kernel.title(), this: way.title() };
        let pair = |figure: &dyn Fn(&Run) -> f64| (samples(kernel, figure), samples(runs, figure));
        let (base, this) = pair(&|run| run.stream_mib_per_s);
        report.compare("stream", Unit::MibPerSecond, Better::More, versus, (&base, &this));
        if way.dial().is_some() {
            report.target(Target::AtLeast(0.99));
        }
        let (base, this) = pair(&|run| run.wake_s);
        report.compare("waking up", Unit::Seconds, Better::Less, versus, (&base, &this));
    }
    for (way, runs) in all {
        let target = match way {
            Way::Masu100 => Some(Target::AtMost(0.0)),
            Way::Masu80 => Some(Target::AtMost(0.05)),
            _ => None,
        };
        let what = format!("major faults on waking up, of its pages: {}", way.title());
        report.figure(&what, Unit::Fraction, median(&samples(runs, faults)), target);
    }
    for (way, runs) in all.iter().filter(|(way, _)| way.dial().is_some()) {
        let cpu: Vec<f64> = runs.iter().filter_map(|run| Some(run.masu.as_ref()?.core_fraction)).collect();
        let what = format!("processor time of {}, of a core", way.title());
        report.figure(&what, Unit::Fraction, median(&cpu), Some(Target::AtMost(0.01)));
    }
    report.table("All runs, medians:", table(all));
    report.note(super::lists());
    report.note(
        "The stream ends when all that it wrote is on disk and has been read back; the service wakes right after.",
    );
    let by_way: std::collections::BTreeMap<String, &Vec<Run>> =
        all.iter().map(|(way, runs)| (way.to_string(), runs)).collect();
    report.sample("ways", by_way);
    report
}

fn table(all: &[(Way, Vec<Run>)]) -> Table {
    let mut table = Table::new(["", "major faults", "least", "most", "waking up", "stream", "kept by masu", "dropped"]);
    for (way, runs) in all {
        let middle = |figure: &dyn Fn(&Run) -> f64| median(&samples(runs, figure)).unwrap_or(f64::NAN);
        let all_faults = || runs.iter().map(|run| run.major_faults);
        let of_masu = |figure: &dyn Fn(&Cost) -> u64| {
            let values: Vec<f64> = runs.iter().filter_map(|run| Some(figure(run.masu.as_ref()?) as f64)).collect();
            median(&values).map_or_else(|| "–".into(), |value| Unit::Bytes.print(value))
        };
        table.row([
            way.title().to_owned(),
            format!("{:.0} of {:.0}", middle(&|run| run.major_faults as f64), middle(&|run| run.pages as f64)),
            all_faults().min().unwrap_or(0).to_string(),
            all_faults().max().unwrap_or(0).to_string(),
            Unit::Seconds.print(middle(&|run| run.wake_s)),
            Unit::MibPerSecond.print(middle(&|run| run.stream_mib_per_s)),
            of_masu(&|cost| cost.said.pinned_bytes_max),
            of_masu(&|cost| cost.said.dropped_bytes),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum as _;

    use super::*;

    #[test]
    fn a_way_is_named_alike_on_the_command_line_and_in_files() {
        for way in Way::value_variants() {
            let name = way.to_string();
            assert_eq!(Way::from_str(&name, false), Ok(*way));
        }
        assert_eq!(Way::Masu80.to_string(), "masu-80");
    }

    #[test]
    fn faults_are_a_part_of_the_pages() {
        let run = Run { pages: 200, major_faults: 50, wake_s: 1.0, stream_mib_per_s: 1.0, write_s: 1.0, masu: None };
        assert!((faults(&run) - 0.25).abs() < 1e-12);
        let text = table(&[(Way::Kernel, vec![run])]).to_string();
        let words: Vec<&str> = text.lines().nth(1).unwrap().split_whitespace().collect();
        assert_eq!(words[..7], ["kernel", "alone", "50", "of", "200", "50", "50"], "{text}");
    }
}
