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
use serde::Serialize;

use crate::masu::AttachReport;
use crate::pairs::{Better, median, order_of_round};
use crate::place::Place;
use crate::plot::{Chart, Series, grid};
use crate::process::resident;
use crate::report::{Report, Unit, Versus};
use crate::session::Session;
use crate::table::Table;
use crate::thp::{Guard, Mode};
use crate::workload::Workload;

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
    /// Patterns to measure (seq, rand, skew, skew-spread)
    #[arg(long, value_delimiter = ',', default_values_t = PATTERNS.map(|pattern| pattern.word.to_owned()))]
    pub patterns: Vec<String>,
}

struct Pattern {
    word: &'static str,
    name: &'static str,
}

const PATTERNS: [Pattern; 4] = [
    Pattern { word: "seq", name: "sequential" },
    Pattern { word: "rand", name: "random" },
    Pattern { word: "skew", name: "skewed to a third in one piece" },
    Pattern { word: "skew-spread", name: "skewed to a third of the pages anywhere" },
];

const NAMES: [&str; 3] = ["Default", "THP", "masu"];
const MASU: usize = 2;
const LIMIT: Duration = Duration::from_secs(600);

/// Samples of Default, THP and masu.
type Conditions = [Vec<f64>; 3];

/// All that was measured with one pattern.
#[derive(Debug, Serialize)]
struct Measured {
    pattern: &'static str,
    name: &'static str,
    /// MiB per second of each round, each condition alone.
    rounds: Conditions,
    /// Resident bytes after each round.
    rss: Conditions,
    /// MiB per second, in turns.
    turns: Conditions,
    attach: AttachReport,
}

/// Runs the benchmark.
///
/// # Errors
/// When masu is missing or fails, a pattern is unknown, or we are interrupted.
pub fn run(session: &Session, options: &Options) -> Result<()> {
    ensure!(options.rounds > 0 && options.mib > 0 && options.sets > 0, "expected at least 1 of everything");
    for word in &options.patterns {
        ensure!(
            PATTERNS.iter().any(|pattern| pattern.word == word),
            "--patterns {word}: expected seq, rand, skew or skew-spread"
        );
    }
    session.masu()?;
    session.warm_up()?;
    let wanted = PATTERNS.iter().filter(|pattern| options.patterns.iter().any(|word| pattern.word == word));
    let measured: Result<Vec<Measured>> = wanted.map(|pattern| one_pattern(session, options, pattern)).collect();
    report(session, options, &measured?).finish(session.save)
}

fn one_pattern(session: &Session, options: &Options, pattern: &'static Pattern) -> Result<Measured> {
    let [mut rounds, mut rss, mut turns]: [Conditions; 3] = Default::default();
    let mut programs = Vec::new();
    let mut attach = None;
    for (nth, name) in NAMES.iter().enumerate() {
        session.progress(&format!("{}: {name}, {} rounds", pattern.name, options.rounds));
        let _guard = Guard::turn(if *name == "THP" { Mode::Always } else { Mode::Madvise })?;
        let arguments = ["--mib".to_owned(), options.mib.to_string(), "--pattern".to_owned(), pattern.word.to_owned()];
        let mut program =
            Workload::start("workload-micro", &arguments, &session.processors, Place::Only(0), &session.stop)?;
        let attached =
            if nth == MASU { Some(session.masu()?.attach(program.pid(), &[], &session.processors)?) } else { None };
        for _ in 0..options.rounds {
            rounds[nth].push(throughput(&mut program, options.sets, session)?);
            rss[nth].push(resident(program.pid())?.rss_bytes.0 as f64);
        }
        attach = attached.map(|masu| masu.interrupt(&session.stop)).transpose()?.or(attach);
        programs.push(program);
    }
    session.progress(&format!("{}: in turns", pattern.name));
    let _guard = Guard::turn(Mode::Madvise)?;
    for round in 0..options.pairs {
        for nth in order_of_round(round, NAMES.len()) {
            turns[nth].push(throughput(&mut programs[nth], options.sets.div_ceil(4), session)?);
        }
    }
    let Some(attach) = attach else { unreachable!("masu is one of the conditions") };
    Ok(Measured { pattern: pattern.word, name: pattern.name, rounds, rss, turns, attach })
}

/// Runs `sets` sets; MiB per second.
fn throughput(program: &mut Workload, sets: usize, session: &Session) -> Result<f64> {
    let reply = program.ask(&format!("round {sets}"), LIMIT, &session.stop)?;
    Ok(reply.number("bytes")? / f64::from(1 << 20) / reply.number("seconds")?)
}

fn report(session: &Session, options: &Options, all: &[Measured]) -> Report {
    let title = format!(
        "paper: the HPS micro-benchmark, {} MiB, {} sets a round, {} rounds",
        options.mib, options.sets, options.rounds
    );
    let mut report = Report::new(format!("paper-{}", options.rounds), title, &session.host);
    for (baseline, this) in [(1, MASU), (0, MASU), (0, 1)] {
        let versus = Versus { baseline: NAMES[baseline], this: NAMES[this] };
        for measured in all {
            let turns = (measured.turns[baseline].as_slice(), measured.turns[this].as_slice());
            report.compare(measured.name, Unit::MibPerSecond, Better::More, versus, turns);
        }
    }
    report.table(
        "Alone, throughput in the first, the second and the last rounds (median of a quarter); memory after the last:",
        over_rounds(all),
    );
    report.table("masu, attached from the first touch to the last round:", attached(all));
    report.file(&format!("paper-{}.svg", options.rounds), draw(options, all));
    report.note("The paper: HPS reaches THP's throughput after about 80 rounds (skew) and 300 (others), at +0.002 % memory; +0.031 % under skew, THP +147 %.");
    report.sample("patterns", all);
    report
}

fn over_rounds(all: &[Measured]) -> Table {
    let mut table =
        Table::new(["pattern", "condition", "round 1", "round 2", "last rounds", "resident memory", "over Default"]);
    for measured in all {
        for (nth, name) in NAMES.iter().enumerate() {
            let rounds = &measured.rounds[nth];
            let speed = |value: Option<f64>| value.map_or_else(|| "–".into(), |value| Unit::MibPerSecond.print(value));
            let last = |of: &[f64]| of.last().copied().unwrap_or(0.0);
            let rss = last(&measured.rss[nth]);
            table.row([
                if nth == 0 { measured.name.to_owned() } else { String::new() },
                (*name).to_owned(),
                speed(rounds.first().copied()),
                speed(rounds.get(1).copied()),
                speed(median(&rounds[rounds.len() - rounds.len().div_ceil(4)..])),
                Unit::Bytes.print(rss),
                Unit::Fraction.print(rss / last(&measured.rss[0]) - 1.0),
            ]);
        }
    }
    table
}

fn attached(all: &[Measured]) -> Table {
    let mut table = Table::new(["pattern", "settled", "promoted", "demoted", "refused", "cpu"]);
    for Measured { name, attach, .. } in all {
        let settled = attach.settled_s.filter(|_| attach.settled);
        table.row([
            (*name).to_owned(),
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
fn draw(options: &Options, all: &[Measured]) -> String {
    let lines = |values: &Conditions, scale: f64| {
        let points = |of: &[f64]| of.iter().enumerate().map(|(nth, y)| ((nth + 1) as f64, y / scale)).collect();
        NAMES
            .iter()
            .zip(values)
            .map(|(name, of)| Series { name: (*name).into(), points: points(of) })
            .collect::<Vec<_>>()
    };
    let chart = |title: String, y_label: &str, series| Chart {
        title,
        x_label: "round".into(),
        y_label: y_label.into(),
        series,
    };
    let speed = all.iter().map(|m| chart(format!("Throughput, {}", m.name), "MiB/s", lines(&m.rounds, 1.0)));
    let mib = f64::from(1 << 20);
    let memory = all.iter().map(|m| chart(format!("Resident memory, {}", m.name), "MiB", lines(&m.rss, mib)));
    let charts: Vec<Chart> = speed.chain(memory).collect();
    grid(&format!("HPS micro-benchmark, {} MiB, {} sets a round", options.mib, options.sets), &charts, all.len())
}
