//! `masu-bench paper`: the micro-benchmark of the HPS paper (section 6.3), with the paper's three columns.
//!
//! Measured twice. First each condition alone, over all rounds, as the paper did, for the curves of throughput and
//! memory; masu is attached before the first page is touched and stays until the last round. Then the three programs,
//! still alive, in turns, for the ratio: masu has ended by then, and its huge pages stay.
//!
//! | paper | here |
//! | sequential, random, skew ("about a third of the range") | `seq`, `rand`, `skew` |
//! | Default, THP, HPS | Default, THP, masu |
//! | 16 sets a round, 80 rounds, then 400 | the same, `--rounds` |
//! | memory by `ps` every 5 s | after each round, exactly (smaps_rollup) |
//!
//! The paper's THP grows by 147 % under skew, and a contiguous third would not do that; so its third was scattered. The
//! pattern `skew-spread` takes a third of the pages anywhere. There a huge page costs three times the memory it saves
//! walks for, and masu, which cannot move the objects of a program that does not cooperate, must leave them where they
//! are.

use std::time::Duration;

use anyhow::{Result, ensure};
use clap::ValueEnum as _;
use hugepages::report::Report as AttachReport;
use serde::Serialize;

use crate::choices;
use crate::harness::{Choice as _, Column, Metric, Runs, median_of, or_dash};
use crate::place::Place;
use crate::process::resident;
use crate::report::{Report, Unit};
use crate::session::Session;
use crate::table::Table;
use crate::thp::{Guard, Mode};
use crate::workload::Workload;
use sim::plot::{Chart, Series, grid};

/// Arguments of `masu-bench paper`.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Rounds of 16 sets; the paper runs 80, and 400
    #[arg(long, default_value_t = 80)]
    pub rounds: usize,
    /// Memory mapped, in MiB
    #[arg(long, default_value_t = 1024)]
    pub mib: u64,
    /// Sets in a round
    #[arg(long, default_value_t = 16)]
    pub sets: usize,
    /// Measurements of each condition for the ratio
    #[arg(long, default_value_t = 20)]
    pub pairs: usize,
    /// Patterns to measure
    #[arg(long, value_delimiter = ',', default_values_t = Pattern::value_variants().to_vec())]
    pub patterns: Vec<Pattern>,
}

choices! {
    /// Order of the touched pages.
    pub enum Pattern {
        Seq = "seq", "sequential";
        Rand = "rand", "random";
        Skew = "skew", "skewed to a third in one piece";
        SkewSpread = "skew-spread", "skewed to a third of the pages anywhere";
    }
}

choices! {
    /// The paper's columns.
    enum Way {
        Default = "default", "Default";
        Thp = "thp", "THP";
        Masu = "masu", "masu";
    }
}

const WAYS: [Way; 3] = [Way::Default, Way::Thp, Way::Masu];
const LIMIT: Duration = Duration::from_secs(600);

/// One round of a condition alone.
#[derive(Debug, Serialize)]
struct Round {
    mib_per_s: f64,
    /// Resident memory after it.
    rss_bytes: f64,
    /// Growth of this over the memory after the last round of Default.
    over_default: Option<f64>,
}

/// Samples of all patterns.
#[derive(Default)]
struct Measured {
    alone: Runs<Way, Round>,
    /// MiB per second.
    turns: Runs<Way, f64>,
    attached: Vec<(Pattern, AttachReport)>,
}

/// Runs the benchmark.
///
/// # Errors
/// When masu is missing or fails, a pattern is unknown, or we are interrupted.
pub fn run(session: &Session, options: &Options) -> Result<()> {
    ensure!(options.rounds > 0 && options.mib > 0 && options.sets > 0, "expected at least 1 of everything");
    session.masu()?;
    session.warm_up()?;
    let mut measured = Measured::default();
    for pattern in &options.patterns {
        one_pattern(session, options, *pattern, &mut measured)?;
    }
    measured.turns.finish(report(session, options, &measured), session)
}

fn one_pattern(session: &Session, options: &Options, pattern: Pattern, measured: &mut Measured) -> Result<()> {
    let mut programs = Vec::new();
    for way in WAYS {
        session.progress(&format!("{}: {}, {} rounds", pattern.title(), way.title(), options.rounds));
        let _guard = Guard::turn(if way == Way::Thp { Mode::Always } else { Mode::Madvise })?;
        let arguments = ["--mib".to_owned(), options.mib.to_string(), "--pattern".to_owned(), pattern.to_string()];
        let mut program =
            Workload::start("workload-micro", &arguments, &session.processors, Place::Only(0), &session.stop)?;
        let attached = match way {
            Way::Masu => Some(session.masu()?.attach(program.pid(), &[], &session.processors)?),
            _ => None,
        };
        let mut rounds = Vec::new();
        for _ in 0..options.rounds {
            let mib_per_s = throughput(&mut program, options.sets, session)?;
            let rss_bytes = resident(program.pid())?.rss_bytes.0 as f64;
            let default = measured.alone.of(pattern.title(), Way::Default).last();
            let over_default = default.map(|default| rss_bytes / default.rss_bytes - 1.0);
            rounds.push(Round { mib_per_s, rss_bytes, over_default });
        }
        measured.alone.push(pattern.title(), way, rounds);
        if let Some(masu) = attached {
            measured.attached.push((pattern, masu.interrupt(&session.stop)?));
        }
        programs.push(program);
    }
    let _guard = Guard::turn(Mode::Madvise)?;
    measured.turns.measure(session, options.pairs, pattern.title(), &WAYS, |turn| {
        throughput(&mut programs[turn.nth], options.sets.div_ceil(4), session)
    })
}

/// Runs `sets` sets; MiB per second.
fn throughput(program: &mut Workload, sets: usize, session: &Session) -> Result<f64> {
    let reply = program.ask(&format!("round {sets}"), LIMIT, &session.stop)?;
    Ok(reply.number("bytes")? / f64::from(1 << 20) / reply.number("seconds")?)
}

fn report(session: &Session, options: &Options, all: &Measured) -> Report {
    let title = format!(
        "paper: the HPS micro-benchmark, {} MiB, {} sets a round, {} rounds",
        options.mib, options.sets, options.rounds
    );
    let mut report = Report::new(format!("paper-{}", options.rounds), title, &session.host);
    let pairs = [(Way::Thp, Way::Masu), (Way::Default, Way::Masu), (Way::Default, Way::Thp)];
    all.turns.compare(&mut report, &pairs, &[Metric::more("", Unit::MibPerSecond, |speed: &f64| *speed)]);
    all.alone.table(
        &mut report,
        "Alone, throughput in the first, the second and the last rounds (median of a quarter); memory after the last:",
        &over_rounds(),
    );
    report.table("masu, attached from the first touch to the last round:", attached(&all.attached));
    report.file(&format!("paper-{}.svg", options.rounds), draw(options, &all.alone));
    report.note("The paper: HPS reaches THP's throughput after about 80 rounds (skew) and 300 (others), at +0.002 % memory; +0.031 % under skew, THP +147 %.");
    report.sample("alone", all.alone.samples());
    report.sample("attach", &all.attached);
    report
}

fn over_rounds() -> [Column<'static, Round>; 5] {
    let speed = |round: Option<&Round>| or_dash(Unit::MibPerSecond, round.map(|round| round.mib_per_s));
    [
        Column::new("round 1", move |rounds: &[Round]| speed(rounds.first())),
        Column::new("round 2", move |rounds: &[Round]| speed(rounds.get(1))),
        Column::new("last rounds", |rounds: &[Round]| {
            let last = &rounds[rounds.len() - rounds.len().div_ceil(4)..];
            or_dash(Unit::MibPerSecond, median_of(last, |round| round.mib_per_s))
        }),
        Column::new("resident memory", |rounds: &[Round]| {
            or_dash(Unit::Bytes, rounds.last().map(|round| round.rss_bytes))
        }),
        Column::new("over Default", |rounds: &[Round]| {
            or_dash(Unit::Fraction, rounds.last().and_then(|round| round.over_default))
        }),
    ]
}

fn attached(all: &[(Pattern, AttachReport)]) -> Table {
    let mut table = Table::new(["pattern", "settled", "promoted", "demoted", "refused", "cpu"]);
    for (pattern, attach) in all {
        let settled = attach.settled_s.filter(|_| attach.settled);
        table.row([
            pattern.title().to_owned(),
            settled.map_or_else(|| "not settled".into(), |time| Unit::Seconds.print(time)),
            attach.windows_promoted.to_string(),
            attach.windows_demoted.to_string(),
            attach.windows_refused.values().sum::<u64>().to_string(),
            Unit::Seconds.print(attach.cpu_s),
        ]);
    }
    table
}

/// Throughput above, memory below, a column for each pattern.
fn draw(options: &Options, alone: &Runs<Way, Round>) -> String {
    let charts = |what: &str, unit: &str, value: fn(&Round) -> f64| {
        let chart = |pattern: &Pattern| {
            let line = |way: &Way| {
                let rounds = alone.of(pattern.title(), *way).iter().enumerate();
                Series { name: way.title().into(), points: rounds.map(|(n, r)| ((n + 1) as f64, value(r))).collect() }
            };
            Chart {
                title: format!("{what}, {}", pattern.title()),
                x_label: "round".into(),
                y_label: unit.into(),
                series: WAYS.iter().map(line).collect(),
            }
        };
        options.patterns.iter().map(chart).collect::<Vec<Chart>>()
    };
    let speed = charts("Throughput", "MiB/s", |round| round.mib_per_s);
    let memory = charts("Resident memory", "MiB", |round| round.rss_bytes / f64::from(1 << 20));
    let title = format!("HPS micro-benchmark, {} MiB, {} sets a round", options.mib, options.sets);
    grid(&title, &[speed, memory].concat(), options.patterns.len())
}
