//! `masu-bench remote-fault`: cost of one page fault of a paged program, from the touch to the next instruction.
//!
//! A program times single touches by the processor's clock (`workloads/remote/touch.c`), in the real `masu run --local`
//! with a transfer size of 4 KiB. In each round each kind of fault runs once, in turns. The baseline is the first touch
//! of a page without masu; where the kernel can swap to zram, its figure stands beside. The kinds of the faults are
//! counted, not assumed (`fault/kind.rs`): a run with other faults fails.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use farmem::report::Report as LocalReport;
use serde::Serialize;
use units::Bytes;

use super::cell::{EVERY, run_to_end};
use super::swap::Area;
use super::task;
use crate::cgroup::MemoryCgroup;
use crate::harness::{Choice as _, Column, Runs};
use crate::launch::Program;
use crate::masu::{Masu, local_report};
use crate::pairs::Better;
use crate::place::Place;
use crate::redis::server::Server;
use crate::report::{Report, Unit, Versus};
use crate::session::Session;

mod kind;

use kind::{Kind, Plan, Touches};

/// Arguments of `masu-bench remote-fault`.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Kinds of faults, beside the kernel's first touch [default: all]
    #[arg(long, value_delimiter = ',')]
    pub kinds: Vec<Kind>,
    /// Rounds
    #[arg(long, default_value_t = 10)]
    pub rounds: usize,
    /// Pages of the program; a quarter is local
    #[arg(long, default_value_t = 8192)]
    pub pages: u64,
    /// Timed passes over them
    #[arg(long, default_value_t = 2)]
    pub passes: u64,
}

/// Fewer pages would not fill masu's smallest victim queue.
const PAGES_MIN: u64 = 4096;

/// No run takes longer.
const LIMIT: Duration = Duration::from_secs(120);

/// Memory of the program beside its pages, when the kernel limits it.
const BESIDES: Bytes = Bytes::mib(4);

/// Inputs of the runs.
struct Bench<'a> {
    session: &'a Session,
    masu: Masu,
    program: Program,
    redis: Option<Server>,
    zram: Option<Area>,
}

/// One run.
#[derive(Debug, Serialize)]
struct Sample {
    touches: Touches,
    masu: Option<LocalReport>,
    /// Counters of another kind of fault.
    wrong: Option<String>,
}

impl Options {
    fn check(&self) -> Result<()> {
        ensure!(self.rounds > 0, "--rounds 0: expected 1 or more");
        ensure!(self.passes > 0, "--passes 0: expected 1 or more");
        ensure!(self.pages >= PAGES_MIN, "--pages {}: expected {PAGES_MIN} or more", self.pages);
        Ok(())
    }

    /// The baseline first, each once.
    fn wanted(&self) -> Vec<Kind> {
        use clap::ValueEnum as _;
        let all = Kind::value_variants().iter().copied();
        all.filter(|kind| *kind == Kind::Kernel || self.kinds.is_empty() || self.kinds.contains(kind)).collect()
    }
}

/// Runs the benchmark.
///
/// # Errors
/// When masu is missing or cannot page, the program cannot be built, a run fails or had faults of another kind, or we
/// are interrupted.
pub fn run(session: &Session, options: &Options) -> Result<()> {
    options.check()?;
    let masu = session.masu()?;
    ensure!(masu.knows_local()?, "this masu does not know `run --local`");
    let program = task::touch(&task::folder()?)?;
    let (mut runs, mut kinds) = (Runs::default(), options.wanted());
    let mut offered = |found: Result<()>, of: fn(Kind) -> bool| {
        if let Err(error) = found {
            kinds.iter().filter(|kind| of(**kind)).for_each(|kind| runs.skip(kind.title(), format!("{error:#}")));
            kinds.retain(|kind| !of(*kind));
        }
    };
    let (mut redis, mut zram) = (None, None);
    if options.wanted().iter().any(|kind| kind.is_of_redis()) {
        let server = Server::start_on_loopback(&session.processors, Place::Anywhere, &session.stop);
        session.stop.check()?;
        offered(server.map(|server| redis = Some(server)), Kind::is_of_redis);
    }
    if options.wanted().contains(&Kind::Zram) {
        let area = MemoryCgroup::make().and_then(|_| Area::zram(Bytes(options.pages * 4096 * 2)));
        offered(area.map(|area| zram = Some(area)), |kind| kind == Kind::Zram);
    }
    session.warm_up_to(Bytes::gib(1))?;
    let bench = Bench { session, masu, program, redis, zram };
    runs.measure(session, options.rounds, "", &kinds, |turn| {
        bench.run(turn.way, turn.way.plan(options.pages, options.passes))
    })?;
    drop(bench);
    runs.finish(report(session, options, &runs), session)?;
    let wrong = runs.rows().iter().filter_map(|row| Some(format!("{}: {}", row.way.title(), wrong(&row.samples)?)));
    let wrong: Vec<String> = wrong.collect();
    ensure!(wrong.is_empty(), "faults were not of the kind claimed: {}", wrong.join("; "));
    Ok(())
}

/// Message of the first run that had other faults.
fn wrong(runs: &[Sample]) -> Option<&str> {
    runs.iter().find_map(|run| run.wrong.as_deref())
}

impl Bench<'_> {
    fn run(&self, kind: Kind, plan: Plan) -> Result<Sample> {
        let program = Program::at(&self.program.path, kind.words(plan));
        let (touches, masu) = if kind.is_of_masu() {
            let file = tempfile::NamedTempFile::new().context("cannot make a file for masu's report")?;
            let touches = self.finished(self.under_masu(kind, plan, &program, file.path())?, None)?;
            (touches, Some(local_report(file.path())?))
        } else if let Some(area) = self.zram.as_ref().filter(|_| kind == Kind::Zram) {
            let _on = area.on()?;
            let cgroup = MemoryCgroup::make()?;
            cgroup.limit(Bytes(plan.local_pages * 4096) + BESIDES)?;
            (self.finished(cgroup.start(&program), Some(&cgroup))?, None)
        } else {
            (self.finished(program.command(), None)?, None)
        };
        let wrong = kind.verify(plan, &touches, masu.as_ref()).err().map(|error| error.to_string());
        Ok(Sample { touches, masu, wrong })
    }

    fn under_masu(&self, kind: Kind, plan: Plan, program: &Program, report: &Path) -> Result<Command> {
        let local = (plan.local_pages * 4096).to_string();
        let mut words = vec!["--local", &local, "--unit", "4KiB", "--sections", "off"];
        let store = match (kind.is_of_redis(), &self.redis) {
            (true, Some(server)) => Some(format!("redis://127.0.0.1:{}", server.port())),
            (true, None) => bail!("there is no Redis"),
            (false, _) => None,
        };
        if let Some(store) = &store {
            words.extend(["--store", store]);
            words.extend(kind.sealed().map(|_| "--no-seal"));
        }
        Ok(program.under(&self.masu, &words, Some(report)))
    }

    /// Runs the command to its end, and parses its output.
    fn finished(&self, command: Command, cgroup: Option<&MemoryCgroup>) -> Result<Touches> {
        let ran = run_to_end(self.session, command, LIMIT, EVERY, || {
            cgroup.map_or(Ok(()), |cgroup| cgroup.refresh().map(|_| ()))
        })?;
        let ended = ran.with_context(|| format!("it did not end within {} s", LIMIT.as_secs()))?.ended;
        ended.succeeded()?;
        let line = ended.lines.first().context("it said nothing")?;
        serde_json::from_str(line).with_context(|| format!("it said `{line}`"))
    }
}

/// Counters of a run, medians over the runs, and whether they are those of the kind.
fn counted() -> [Column<'static, Sample>; 9] {
    let told =
        |head, of: fn(&Touches) -> u64| Column::median(head, Unit::Count, move |run: &Sample| of(&run.touches) as f64);
    let of_masu = |head, of: fn(&LocalReport) -> u64| {
        Column::median(head, Unit::Count, move |run: &Sample| Some(of(run.masu.as_ref()?) as f64))
    };
    let of_kernel = |head, of: fn(&Touches) -> u64| {
        let count = move |run: &Sample| run.masu.is_none().then(|| of(&run.touches) as f64);
        Column::median(head, Unit::Count, count)
    };
    [
        told("timed touches", |touches| touches.touches),
        told("page was there", |touches| touches.there),
        of_masu("first", |report| report.faults_first),
        of_masu("victim queue", |report| report.faults_in_victim_queue),
        of_masu("from the store", |report| report.faults - report.faults_in_victim_queue - report.faults_first),
        of_masu("pages out", |report| report.bytes_out.pages().0),
        of_kernel("kernel, minor", |touches| touches.minor_faults),
        of_kernel("kernel, major", |touches| touches.major_faults),
        Column::new("", |runs| wrong(runs).unwrap_or("as claimed").to_owned()),
    ]
}

type Ns = fn(&Touches) -> f64;

/// Times of the faults of a run.
const TIMES: [(&str, Ns); 3] =
    [("p50", |touches| touches.p50_ns), ("p99", |touches| touches.p99_ns), ("mean", |touches| touches.mean_ns)];

fn report(session: &Session, options: &Options, runs: &Runs<Kind, Sample>) -> Report {
    let title = format!(
        "remote-fault: one fault of a program with {} MiB, a quarter of it local, units of 4 KiB",
        (options.pages * 4096) >> 20
    );
    let mut report = Report::new("remote-fault", title, &session.host);
    let kinds: Vec<Kind> = runs.rows().iter().map(|row| row.way).collect();
    // Each group is one table with a line for each kind: the harness would print a table for each pair.
    let mut compare = |versus, baseline: Kind, this: Kind| {
        for (name, ns) in TIMES.iter().filter(|_| [baseline, this].iter().all(|kind| kinds.contains(kind))) {
            let us = |kind| runs.of("", kind).iter().map(|run| ns(&run.touches) / 1e3).collect::<Vec<f64>>();
            let what = format!("{}, {name}", this.title());
            report.compare(&what, Unit::Microseconds, Better::Less, versus, (&us(baseline), &us(this)));
        }
    };
    let versus = Versus { baseline: Kind::Kernel.title(), this: "this fault" };
    kinds.iter().filter(|kind| **kind != Kind::Kernel).for_each(|this| compare(versus, Kind::Kernel, *this));
    let versus = Versus { baseline: Kind::Zram.title(), this: "masu" };
    let stored = kinds.iter().filter(|kind| kind.is_of_masu() && **kind != Kind::First);
    stored.for_each(|this| compare(versus, Kind::Zram, *this));
    for (plain, sealed) in kinds.iter().filter_map(|plain| Some((*plain, plain.sealed()?))) {
        compare(Versus { baseline: "as it is", this: "sealed" }, plain, sealed);
    }
    runs.table(&mut report, "What was counted, in a run:", &counted());
    NOTES.iter().for_each(|note| report.note(*note));
    report
}

const NOTES: [&str; 7] = [
    "p50 and p99 are of the faults of one run; the columns show the median run. All of a fault is in them: the signal, making \
     room, fetching, mapping.",
    "mean: what else ran on this machine meanwhile is in it, too. The kernel makes room for many pages at once, so few of its \
     faults pay for all, and masu for one at each.",
    "first, victim queue, from the store, pages out: what masu's report counts over the whole run, with one pass before the timed ones \
     and one after them. They must be those of the kind claimed, or the benchmark fails.",
    "changed: each touch writes, so the page that is evicted to make room is written back first.",
    "The file's pages are in the kernel's page cache, Redis is on this machine: a disk or a network comes on top.",
    "sealed: encrypted and authenticated by masu, on top of the checksum that the program makes in any case; a fault opens one page, and \
     one that changes seals one as well. What that takes by itself prints `cargo run --release -p remote --example seal`.",
    "Half of each page is noise and half is zeros, which zram halves.",
];

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::tools::on_path;

    #[derive(clap::Parser)]
    struct Alone {
        #[command(flatten)]
        options: Options,
    }

    fn options(words: &[&str]) -> Options {
        Alone::try_parse_from([&["x"], words].concat()).unwrap().options
    }

    #[test]
    fn the_baseline_is_always_measured_and_comes_first() {
        let all = options(&[]).wanted();
        assert_eq!((all.len(), all[0]), (9, Kind::Kernel));
        assert_eq!(options(&["--kinds", "redis,file"]).wanted(), [Kind::Kernel, Kind::File, Kind::Redis]);
        assert_eq!(options(&["--kinds", "kernel"]).wanted(), [Kind::Kernel]);
    }

    #[test]
    fn too_little_is_refused() {
        for (words, wanted) in [
            (["--rounds", "0"], "--rounds 0: expected 1 or more"),
            (["--passes", "0"], "--passes 0: expected 1 or more"),
            (["--pages", "100"], "--pages 100: expected 4096 or more"),
        ] {
            assert_eq!(options(&words).check().unwrap_err().to_string(), wanted);
        }
    }

    #[test]
    fn the_program_says_what_is_read() {
        if on_path("gcc").is_none() {
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let program = task::touch(folder.path()).unwrap();
        for kind in [Kind::Kernel, Kind::File, Kind::FileChanged] {
            let plan = kind.plan(64, 2);
            let output = Program::at(&program.path, kind.words(plan)).command().output().unwrap();
            let told: Touches = serde_json::from_slice(&output.stdout).unwrap();
            assert_eq!(told.touches, 128, "{kind}");
            // Without a pager, only a first touch finds no page.
            assert_eq!(kind == Kind::Kernel, told.there == 0 && told.minor_faults >= 128, "{kind}: {told:?}");
        }
    }
}
