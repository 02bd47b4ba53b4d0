//! `masu-bench remote-fault`: cost of one page fault of a paged program, from the touch to the next instruction.
//!
//! A program times single touches by the processor's clock (`workloads/remote/touch.c`), in the real `masu run --local`
//! with a transfer size of 4 KiB. In each round each kind of fault runs once, in turns. The baseline is the first touch
//! of a page without masu; where the kernel can swap to zram, its figure stands beside. The kinds of the faults are
//! counted, not assumed (`fault/kind.rs`): a run with other faults fails.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use farmem::report::Report as LocalReport;
use units::Bytes;

use super::cell::same_environment;
use super::swap::Area;
use super::task;
use crate::cgroup::MemoryCgroup;
use crate::children::{OwnChild, describe};
use crate::launch::Program;
use crate::masu::{Masu, local_report};
use crate::pairs::{Better, median, order_of_round};
use crate::place::Place;
use crate::redis::server::Server;
use crate::report::{Report, Unit, Versus};
use crate::session::Session;
use crate::table::Table;

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

/// Interval of updates of the kernel's counters, and of checks for the program's end.
const EVERY: Duration = Duration::from_millis(2);

/// Inputs of the runs.
struct Bench<'a> {
    session: &'a Session,
    masu: Masu,
    program: Program,
    redis: Option<Server>,
    zram: Option<Area>,
}

/// All runs of one kind.
struct Measured {
    kind: Kind,
    plan: Plan,
    runs: Vec<(Touches, Option<LocalReport>)>,
    /// Message of the first run that had other faults.
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
    let folder = std::env::current_exe()?.with_file_name("remote-workloads");
    let program = task::touch(&folder)?.map_err(|missing| anyhow::anyhow!("{missing}"))?;
    let mut kinds = options.wanted();
    let mut skipped = Vec::new();
    let mut offered = |found: Result<()>, of: fn(Kind) -> bool| {
        if let Err(error) = found {
            skipped.extend(kinds.iter().filter(|kind| of(**kind)).map(|kind| format!("skipped: {kind}: {error:#}")));
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
    let measured = bench.measure(&kinds, options)?;
    drop(bench);
    report(session, options, &measured, skipped).finish(session.save)?;
    let wrong: Vec<String> =
        measured.iter().filter_map(|of| Some(format!("{}: {}", of.kind, of.wrong.as_ref()?))).collect();
    ensure!(wrong.is_empty(), "faults were not of the kind claimed: {}", wrong.join("; "));
    Ok(())
}

impl Bench<'_> {
    fn measure(&self, kinds: &[Kind], options: &Options) -> Result<Vec<Measured>> {
        let new = |kind: &Kind| {
            let plan = kind.plan(options.pages, options.passes);
            Measured { kind: *kind, plan, runs: Vec::new(), wrong: None }
        };
        let mut measured: Vec<Measured> = kinds.iter().map(new).collect();
        for round in 0..options.rounds {
            for nth in order_of_round(round, kinds.len()) {
                let Measured { kind, plan, runs, wrong } = &mut measured[nth];
                self.session.progress(&format!("round {} of {}: {kind}", round + 1, options.rounds));
                let (told, report) = self.run(*kind, *plan).with_context(|| kind.to_string())?;
                if let Err(said) = kind.verify(*plan, &told, report.as_ref()) {
                    wrong.get_or_insert(said);
                }
                runs.push((told, report));
            }
        }
        Ok(measured)
    }

    fn run(&self, kind: Kind, plan: Plan) -> Result<(Touches, Option<LocalReport>)> {
        let program = Program::at(&self.program.path, kind.words(plan));
        if kind.is_of_masu() {
            let file = tempfile::NamedTempFile::new().context("cannot make a file for masu's report")?;
            let told = self.finished(self.under_masu(kind, plan, &program, file.path())?, None)?;
            return Ok((told, Some(local_report(file.path())?)));
        }
        let Some(area) = self.zram.as_ref().filter(|_| kind == Kind::Zram) else {
            return Ok((self.finished(program.command(), None)?, None));
        };
        let _on = area.on()?;
        let cgroup = MemoryCgroup::make()?;
        cgroup.limit(Bytes(plan.local_pages * 4096) + BESIDES)?;
        Ok((self.finished(cgroup.start(&program), Some(&cgroup))?, None))
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
    fn finished(&self, mut command: Command, cgroup: Option<&MemoryCgroup>) -> Result<Touches> {
        same_environment(&mut command);
        let begun = Instant::now();
        let mut child = OwnChild::start(command, &self.session.processors, Place::Anywhere)?;
        while child.is_running() {
            self.session.stop.check()?;
            ensure!(begun.elapsed() < LIMIT, "it did not end within {} s", LIMIT.as_secs());
            if let Some(cgroup) = cgroup {
                cgroup.refresh()?;
            }
            thread::sleep(EVERY);
        }
        let ended = child.finish(Duration::ZERO, &self.session.stop)?;
        let complaint = ended.errors.iter().rfind(|line| !line.trim().is_empty()).map_or("no message", String::as_str);
        ensure!(ended.status.success(), "it {}: {complaint}", describe(ended.status));
        let line = ended.lines.first().context("it said nothing")?;
        serde_json::from_str(line).with_context(|| format!("it said `{line}`"))
    }
}

impl Measured {
    fn all(&self, of: fn(&Touches) -> f64) -> Vec<f64> {
        self.runs.iter().map(|(told, _)| of(told)).collect()
    }

    /// Times of each run, in µs.
    fn times(&self) -> [(&'static str, Vec<f64>); 3] {
        [
            ("p50", self.all(|told| told.p50_ns / 1e3)),
            ("p99", self.all(|told| told.p99_ns / 1e3)),
            ("mean", self.all(|told| told.mean_ns / 1e3)),
        ]
    }

    /// Medians over the runs, and whether the counters agree.
    fn cells(&self) -> Vec<String> {
        let count = |values: Vec<f64>| median(&values).map_or_else(|| "–".into(), |value| Unit::Count.print(value));
        let of_masu = |of: fn(&LocalReport) -> u64| {
            count(self.runs.iter().filter_map(|(_, report)| report.as_ref()).map(|report| of(report) as f64).collect())
        };
        vec![
            self.kind.to_string(),
            count(self.all(|told| told.touches as f64)),
            count(self.all(|told| told.there as f64)),
            of_masu(|report| report.faults_first),
            of_masu(|report| report.faults_staged),
            of_masu(|report| report.faults - report.faults_staged - report.faults_first),
            of_masu(|report| report.bytes_out.pages().0),
            if self.kind.is_of_masu() { "–".into() } else { count(self.all(|told| told.minor_faults as f64)) },
            if self.kind.is_of_masu() { "–".into() } else { count(self.all(|told| told.major_faults as f64)) },
            self.wrong.clone().unwrap_or_else(|| "as claimed".into()),
        ]
    }
}

const COUNTED: [&str; 10] = [
    "",
    "timed touches",
    "page was there",
    "first",
    "staged",
    "from the store",
    "pages out",
    "kernel, minor",
    "kernel, major",
    "",
];

fn report(session: &Session, options: &Options, measured: &[Measured], skipped: Vec<String>) -> Report {
    let title = format!(
        "remote-fault: one fault of a program with {} MiB, a quarter of it local, units of 4 KiB",
        (options.pages * 4096) >> 20
    );
    let mut report = Report::new("remote-fault", title, &session.host);
    let mut compare = |versus, baseline: &Measured, this: &Measured| {
        for ((name, base), (_, samples)) in baseline.times().iter().zip(this.times()) {
            let what = format!("{}, {name}", this.kind);
            report.compare(&what, Unit::Microseconds, Better::Less, versus, (base, &samples));
        }
    };
    if let Some((kernel, others)) = measured.split_first() {
        let versus = Versus { baseline: Kind::Kernel.name(), this: "this fault" };
        others.iter().for_each(|this| compare(versus, kernel, this));
    }
    if let Some(zram) = measured.iter().find(|of| of.kind == Kind::Zram) {
        let versus = Versus { baseline: Kind::Zram.name(), this: "masu" };
        measured
            .iter()
            .filter(|of| of.kind.is_of_masu() && of.kind != Kind::First)
            .for_each(|this| compare(versus, zram, this));
    }
    let of = |kind| measured.iter().find(|of| of.kind == kind);
    let pairs = measured.iter().filter_map(|plain| Some((plain, of(plain.kind.sealed()?)?)));
    pairs.for_each(|(plain, sealed)| compare(Versus { baseline: "as it is", this: "sealed" }, plain, sealed));
    let mut table = Table::new(COUNTED);
    measured.iter().for_each(|of| table.row(of.cells()));
    report.table("What was counted, in a run:", table);
    for note in skipped.into_iter().chain(NOTES.map(str::to_owned)) {
        report.note(note);
    }
    let mut samples = BTreeMap::new();
    for of in measured {
        let runs: Vec<_> =
            of.runs.iter().map(|(told, report)| serde_json::json!({ "touches": told, "masu": report })).collect();
        samples.insert(of.kind, runs);
    }
    report.sample("kinds", samples);
    report
}

const NOTES: [&str; 7] = [
    "p50 and p99 are of the faults of one run; the columns show the median run. All of a fault is in them: the signal, making \
     room, fetching, mapping.",
    "mean: what else ran on this machine meanwhile is in it, too. The kernel makes room for many pages at once, so few of its \
     faults pay for all, and masu for one at each.",
    "first, staged, from the store, pages out: what masu's report counts over the whole run, with one pass before the timed ones \
     and one after them. They must be those of the kind claimed, or the benchmark fails.",
    "changed: each touch writes, so the page that leaves to make room is written home first.",
    "The file's pages are in the kernel's page cache, Redis is on this machine: a disk or a network comes on top.",
    "sealed: encrypted and authenticated by masu, on top of the checksum that the program makes in any case; a fault opens one page, and \
     one that changes seals one as well. What that takes by itself prints `cargo run --release -p remote --example seal`.",
    "Half of each page is noise and half is zeros, which zram halves.",
];

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

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
        let folder = tempfile::tempdir().unwrap();
        let Ok(program) = task::touch(folder.path()).unwrap() else { return };
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
