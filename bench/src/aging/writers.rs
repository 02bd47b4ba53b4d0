//! `masu-bench writers`: the experiment of the LRU-split paper: many processes write files, and the throughput is
//! measured as their memory grows.
//!
//! Oshima, Aoki, Arai, "Large Scale Memory Management Method Using LRU List Split", its section 6 and figures 1 and 5.
//!
//! | paper | here |
//! | memory that Linux is told of, 2 to 12 GB | limit of a memory cgroup, 1 to 12 GiB, `--gib` |
//! | 1024 processes | 64, `--processes` |
//! | files of 100 KB to 5 MB, written | the same; one of four is read again, and a mapped file is touched as code would be |
//! | 5 hours | 30 s, `--run-s`, in turns |
//! | 2.6.6-mm3 | the kernel of the host |
//! | split lists, `mapped_page_cost` 100 | `masu aging --mapped 100 --cache 0` on the group |
//!
//! The paper's kernels scan lists of all pages, and lose throughput where there are many. Kernels have changed since;
//! the first column says whether this one loses any.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use units::Bytes;

use super::residency::drop_all;
use super::running::{Cost, Running};
use crate::cgroup::MemoryCgroup;
use crate::children::OwnChild;
use crate::choices;
use crate::harness::{Choice as _, Column, Metric, Runs};
use crate::launch::Program;
use crate::masu::Masu;
use crate::place::Place;
use crate::report::{Report, Target, Unit};
use crate::session::Session;
use crate::workload::Workload;
use sim::plot::{Chart, Series, grid};

/// Default number of processes.
const USUAL: u32 = 64;

/// Arguments of `masu-bench writers`.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Memory of the group, in GiB
    #[arg(long, value_delimiter = ',', default_values_t = [1, 2, 4, 8, 12])]
    pub gib: Vec<u64>,
    /// Number of writing processes
    #[arg(long, default_value_t = USUAL)]
    pub processes: u32,
    /// Time of writing, in seconds
    #[arg(long, default_value_t = 30)]
    pub run_s: u64,
    /// Total size of all files
    #[arg(long, default_value = "15GiB")]
    pub files: Bytes,
    /// Memory that all processes map as their code
    #[arg(long, default_value = "256MiB")]
    pub code: Bytes,
    /// Runs of each group in each way
    #[arg(long, default_value_t = 3)]
    pub pairs: usize,
    /// Ways: the kernel alone, masu
    #[arg(long, value_delimiter = ',', default_values_t = [Way::Kernel, Way::Masu])]
    pub ways: Vec<Way>,
}

choices! {
    /// A condition.
    pub enum Way {
        Kernel = "kernel", "kernel alone";
        Masu = "masu", "masu";
    }
}

#[derive(Clone, Debug, Serialize)]
struct Run {
    written_mib_per_s: f64,
    /// Written and read.
    mib_per_s: f64,
    files_per_s: f64,
    /// Major faults of all processes: mostly in the file that they map as their code.
    major_faults: u64,
    masu: Option<Cost>,
}

/// Mean size of a file.
const FILE_BYTES: u64 = 2_550_000;

/// Extra time limit beyond the run's own time: processes start, and wait for write-back.
const GRACE: Duration = Duration::from_secs(300);

/// Runs the benchmark.
///
/// # Errors
/// When masu is missing, this host has no memory cgroups, too little disk or memory, or we are interrupted.
pub fn run(session: &Session, options: &Options) -> Result<()> {
    options.check()?;
    let masu = super::masu(session, options.ways.contains(&Way::Masu))?;
    options.check_room(session)?;
    session.warm_up_to(Bytes::gib(options.gib.iter().copied().max().unwrap_or(1)))?;
    let folder = tempfile::tempdir_in(super::FOLDER).context("cannot make a folder for the files")?;
    let bench = Bench { session, options, masu, folder: folder.path() };
    super::write_file(&bench.folder.join("code"), Bytes(options.code.0.max(1)))?;
    let cells: Vec<(u64, Way)> =
        options.gib.iter().flat_map(|gib| options.ways.iter().map(|way| (*gib, *way))).collect();
    let named = cells.iter().map(|(gib, way)| (subject(*gib), *way)).collect();
    let mut runs = Runs::default();
    runs.measure_cells(session, options.pairs, named, |turn| bench.one(cells[turn.nth].0, turn.way))?;
    runs.finish(report(session, options, &runs), session)
}

fn subject(gib: u64) -> String {
    format!("{gib} GiB")
}

impl Options {
    fn check(&self) -> Result<()> {
        ensure!(self.pairs > 0 && self.run_s > 0, "expected --pairs and --run-s of 1 or more");
        ensure!((1..=4096).contains(&self.processes), "--processes {}: expected 1 to 4096", self.processes);
        Ok(())
    }

    /// Whether this host has the memory and the disk for these files.
    fn check_room(&self, session: &Session) -> Result<()> {
        for gib in &self.gib {
            let fits = (1..).contains(gib) && Bytes::gib(*gib) < session.host.memory_bytes;
            ensure!(fits, "--gib {gib}: expected 1 or more, and less than this host has");
        }
        let disk = rustix::fs::statvfs(super::FOLDER).context("cannot see how much room there is on the disk")?;
        let (free, needed) = (Bytes(disk.f_bavail * disk.f_frsize), Bytes(self.files.0 + self.code.0 + (1 << 30)));
        ensure!(needed <= free, "{}: {needed} are needed and {free} are free; try a smaller --files", super::FOLDER);
        Ok(())
    }
}

struct Bench<'a> {
    session: &'a Session,
    options: &'a Options,
    masu: Option<Masu>,
    folder: &'a Path,
}

impl Bench<'_> {
    fn one(&self, gib: u64, way: Way) -> Result<Run> {
        let (session, options, code) = (self.session, self.options, self.folder.join("code"));
        rustix::fs::sync(); // nothing of the run before is written during this one
        drop_all(&code)?;
        let files = tempfile::tempdir_in(self.folder).context("cannot make a folder for the files")?;
        let each = (options.files.0 / FILE_BYTES / u64::from(options.processes)).max(1);
        let group = MemoryCgroup::make()?;
        let mut words = vec!["--folder".into(), files.path().as_os_str().to_owned()];
        words.extend(["--code".into(), code.into_os_string(), "--files".into(), each.to_string().into()]);
        words.extend(["--processes".into(), options.processes.to_string().into()]);
        let command = group.start(&Program::workload("workload-writers", words)?);
        let child = OwnChild::start(command, &session.processors, Place::Anywhere)?;
        let mut writers = Workload::greet(child, "workload-writers", &session.stop)?;
        // A thousand programs that start in a small group take each other's code away for half a minute and more.
        writers.ask("start", GRACE, &session.stop)?;
        group.limit_plainly(Bytes::gib(gib))?;
        let beside = match (way, &self.masu) {
            (Way::Masu, Some(masu)) => {
                let dials = ["--cgroup", &group.name(), "--mapped", "100", "--cache", "0", "--budget", "50%"];
                Some(Running::start(session, masu, &dials.map(str::to_owned))?)
            }
            _ => None,
        };
        let time = Duration::from_secs(options.run_s);
        let done = writers.ask(&format!("run {}", time.as_millis()), time + GRACE, &session.stop)?;
        let masu = beside.map(|running| running.end(session)).transpose()?;
        writers.end(GRACE, &session.stop)?;
        let (mib, seconds) = (f64::from(1 << 20), time.as_secs_f64());
        let written = done.number("written")?;
        Ok(Run {
            written_mib_per_s: written / mib / seconds,
            mib_per_s: (written + done.number("read")?) / mib / seconds,
            files_per_s: done.number("files")? / seconds,
            major_faults: done.whole("major")?,
            masu,
        })
    }
}

fn report(session: &Session, options: &Options, runs: &Runs<Way, Run>) -> Report {
    let Options { processes, run_s, files, .. } = options;
    let title = format!("writers: {processes} processes write files of 100 KB to 5 MB, {files} in all, for {run_s} s");
    let name = if *processes == USUAL { "writers".to_owned() } else { format!("writers-{processes}") };
    let mut report = Report::new(name, title, &session.host);
    let speed = Metric::more("written and read", Unit::MibPerSecond, |run: &Run| run.mib_per_s);
    runs.compare(&mut report, &[(Way::Kernel, Way::Masu)], &[speed.target(Way::Masu, Target::NotWorse)]);
    let ends = options.gib.iter().min().zip(options.gib.iter().max()).filter(|(low, high)| low < high);
    for way in &options.ways {
        let middle = |gib: &u64| runs.median(&subject(*gib), *way, |run| run.mib_per_s);
        let ratio = ends.and_then(|(low, high)| Some(middle(high)? / middle(low)?));
        let target = (*way == Way::Masu).then_some(Target::AtLeast(1.0));
        report.figure(&format!("{}: most memory over least", way.title()), Unit::Times, ratio, target);
    }
    runs.figures(&mut report, &[super::processor_time(&[Way::Masu], |run: &Run| &run.masu)]);
    runs.table(&mut report, "All runs, medians:", &columns());
    report.file("writers.svg", draw(options, runs));
    report.note(super::lists());
    report.note("The paper, on Linux 2.4.26 and 2.6.6: throughput falls from 4 GB on; with split lists it is higher at each size.");
    report
}

fn columns() -> [Column<'static, Run>; 6] {
    [
        Column::median("written and read", Unit::MibPerSecond, |run: &Run| run.mib_per_s),
        Column::median("written", Unit::MibPerSecond, |run: &Run| run.written_mib_per_s),
        Column::median("files", Unit::PerSecond, |run: &Run| run.files_per_s),
        Column::median("major faults", Unit::Count, |run: &Run| run.major_faults as f64),
        super::kept(|run: &Run| &run.masu),
        super::dropped(|run: &Run| &run.masu),
    ]
}

/// The paper's figure 1 (one kernel over memory) and figure 5 (two of them), and the page faults that it does not show.
fn draw(options: &Options, runs: &Runs<Way, Run>) -> String {
    let line = |way: &Way, figure: &dyn Fn(&Run) -> f64| {
        let point = |gib: &u64| Some((*gib as f64, runs.median(&subject(*gib), *way, figure)?));
        Series { name: way.title().into(), points: options.gib.iter().filter_map(point).collect() }
    };
    let chart = |title: &str, y_label: &str, series| Chart {
        title: title.into(),
        x_label: "memory of the group, GiB".into(),
        y_label: y_label.into(),
        series,
    };
    let all_ways =
        |figure: &dyn Fn(&Run) -> f64| options.ways.iter().map(|way| line(way, figure)).collect::<Vec<Series>>();
    let alone = vec![line(&Way::Kernel, &|run| run.mib_per_s)];
    let charts = [
        chart("As figure 1: the kernel alone", "MiB/s", alone),
        chart("As figure 5: with and without classes", "MiB/s", all_ways(&|run| run.mib_per_s)),
        chart("Major faults in code", "faults a run", all_ways(&|run| run.major_faults as f64)),
    ];
    grid(&format!("{} writers of files of 100 KB to 5 MB", options.processes), &charts, 3)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options() -> Options {
        Options {
            gib: vec![1, 12],
            processes: 64,
            run_s: 30,
            files: Bytes::gib(15),
            code: Bytes::mib(256),
            pairs: 3,
            ways: vec![Way::Kernel, Way::Masu],
        }
    }

    #[test]
    fn a_figure_has_a_line_for_each_way_over_memory() {
        let mut runs = Runs::default();
        for (gib, way, mib_per_s) in
            [(1, Way::Kernel, 100.0), (1, Way::Masu, 110.0), (12, Way::Kernel, 80.0), (12, Way::Masu, 120.0)]
        {
            let run = Run { written_mib_per_s: mib_per_s, mib_per_s, files_per_s: 1.0, major_faults: 5, masu: None };
            runs.push(subject(gib), way, vec![run]);
        }
        let svg = draw(&options(), &runs);
        // One line in the first chart, two in each of the others.
        assert_eq!(svg.matches("stroke-linejoin").count(), 5);
        assert!(svg.contains("memory of the group, GiB") && svg.contains("64 writers"));
        let text = runs.as_table(&columns()).to_string();
        assert!(text.lines().nth(3).unwrap().starts_with("12 GiB   kernel alone"), "{text}");
    }

    #[test]
    fn a_way_that_was_not_measured_leaves_a_gap() {
        assert!(draw(&options(), &Runs::default()).ends_with("</svg>\n"));
    }
}
