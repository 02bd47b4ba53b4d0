//! Findings of the runs: each condition against each of its baselines, its cost, and the paper's figures beside.

use crate::memcached::command::{Options, Workload};
use crate::memcached::condition::Condition;
use crate::memcached::one_run::{Measured, Run};
use crate::memcached::sampler::{Series, middle};
use crate::memcached::server::number;
use crate::pairs::{Better, median};
use crate::plot::{self, Bar, Bars, Chart, bars, grid};
use crate::report::{Report, Target, Unit, Versus};
use crate::session::Session;
use crate::side_by_side::compare;
use crate::table::Table;

/// The runs of a condition, in order of rounds.
pub type Runs = (Condition, Vec<Run>);

/// Pairs of a baseline and a condition, compared where both were run.
const PAIRS: [(Condition, Condition); 9] = [
    (Condition::Promote, Condition::Hps),
    (Condition::Collapsed, Condition::Hps),
    (Condition::Always, Condition::Hps),
    (Condition::LargePages, Condition::Hps),
    (Condition::Default, Condition::Hps),
    (Condition::Default, Condition::Promote),
    (Condition::Default, Condition::Collapsed),
    (Condition::Default, Condition::Always),
    (Condition::Default, Condition::LargePages),
];

const MIB: f64 = 1_048_576.0;

/// Prints and saves the findings.
pub fn report(session: &Session, options: &Options, all: &[Runs]) -> Report {
    let mut report = Report::new(name(options), title(options, all), &session.host);
    for (baseline, this) in PAIRS {
        if let (Some(base), Some(other)) = (of(all, baseline), of(all, this)) {
            compared(&mut report, options, (baseline, base), (this, other));
        }
    }
    report.table("Requests, medians of the runs:", requests(options, all));
    report.table("Memory, medians of the runs:", memory(all));
    if let Some(runs) = of(all, Condition::Hps) {
        report.table("memcached and masu together, run by run:", together(runs));
    }
    if let Some(runs) = of(all, Condition::Promote) {
        report.table("Promotion alone, run by run:", alone(runs));
    }
    if options.workload == Workload::Zipfian {
        report
            .table("Beside the paper (section 6.4, its tables and figures 19 and 20):", beside_the_paper(options, all));
    } else {
        let faster = last_ratio(options, all, (Condition::Promote, Condition::Hps));
        report.figure("compaction over promotion alone", Unit::Times, faster, None);
    }
    notes(&mut report, options, all);
    report.file(&format!("{}-throughput.svg", name(options)), draw_throughput(options, all));
    report.file(&format!("{}-memory.svg", name(options)), draw_over_time(options, all));
    report.sample("runs", all);
    report
}

fn of(all: &[Runs], wanted: Condition) -> Option<&[Run]> {
    all.iter().find(|(condition, _)| *condition == wanted).map(|(_, runs)| runs.as_slice())
}

fn samples(runs: &[Run], figure: impl Fn(&Run) -> f64) -> Vec<f64> {
    runs.iter().map(figure).collect()
}

fn middle_of(runs: &[Run], figure: impl Fn(&Run) -> f64) -> f64 {
    median(&samples(runs, figure)).unwrap_or(f64::NAN)
}

/// Measurement with `keys` keys a request.
fn with_keys(run: &Run, keys: usize) -> Option<&Measured> {
    run.measured.iter().find(|measured| measured.keys_per_get == keys)
}

fn speed(run: &Run, keys: usize) -> f64 {
    with_keys(run, keys).map_or(f64::NAN, |measured| measured.gets_per_s)
}

fn keys_in_words(keys: usize) -> String {
    format!("{keys} key{} a request", if keys == 1 { "" } else { "s" })
}

/// A folder of results for each kind of run.
fn name(options: &Options) -> String {
    let what = match options.workload {
        Workload::Zipfian => format!("{:?}", options.law).to_lowercase(),
        Workload::Scattered => format!("scattered-{}", options.hot_per_window),
    };
    let amount = options.memory_gib.map_or_else(|| format!("{}items", options.items()), |gib| format!("{gib}gib"));
    format!("memcached-{what}-{amount}")
}

fn title(options: &Options, all: &[Runs]) -> String {
    let first = all.iter().find_map(|(_, runs)| runs.first());
    let (chunk, asked_for) = first.map_or((0, 0), |run| (run.chunk_bytes, run.asked_for));
    let what = match options.workload {
        Workload::Zipfian => format!("all of them asked for, {:?}", options.law).to_lowercase(),
        Workload::Scattered => {
            format!("{asked_for} of them asked for, {} in every 2 MiB, all alike", options.hot_per_window)
        }
    };
    format!(
        "memcached: {} items of {} bytes ({chunk} each in memory), {what}; {} runs each",
        options.items(),
        options.size,
        options.runs()
    )
}

fn compared(report: &mut Report, options: &Options, base: (Condition, &[Run]), this: (Condition, &[Run])) {
    let versus = Versus { baseline: base.0.name(), this: this.0.name() };
    let against_thp = this.0 == Condition::Hps && base.0.mode() == crate::thp::Mode::Always;
    for &keys in &options.keys_per_get {
        let pair = [base.1, this.1].map(|runs| samples(runs, |run| speed(run, keys)));
        let what = format!("GET, {}", keys_in_words(keys));
        report.compare(&what, Unit::PerSecond, Better::More, versus, (&pair[0], &pair[1]));
        if against_thp {
            report.target(Target::NotWorse);
        }
    }
    let pair = [base.1, this.1].map(|runs| samples(runs, |run| run.whole_gets_per_s));
    let what = format!("the same from the first get on, {}", keys_in_words(options.keys_while_settling()));
    report.compare(&what, Unit::PerSecond, Better::More, versus, (&pair[0], &pair[1]));
    let pair = [base.1, this.1].map(|runs| samples(runs, |run| run.rss_bytes));
    report.compare("resident memory", Unit::Bytes, Better::Less, versus, (&pair[0], &pair[1]));
    if (base.0, this.0) == (Condition::Default, Condition::Hps) {
        report.target(Target::AtMost(1.01));
    }
}

fn requests(options: &Options, all: &[Runs]) -> Table {
    let mut table =
        Table::new(["keys a request", "", "p50", "p99", "p99.9", "p99.9 settling", "server busy", "client busy"]);
    for &keys in &options.keys_per_get {
        for (condition, runs) in all {
            let of = |part: fn(&Measured) -> f64| middle_of(runs, |run| with_keys(run, keys).map_or(f64::NAN, part));
            let settling = (keys == options.keys_while_settling()).then(|| middle_of(runs, |run| run.settling.p999_us));
            table.row([
                keys.to_string(),
                condition.name().to_owned(),
                Unit::Microseconds.print(of(|one| one.latency.p50_us)),
                Unit::Microseconds.print(of(|one| one.latency.p99_us)),
                Unit::Microseconds.print(of(|one| one.latency.p999_us)),
                settling.map_or_else(|| "–".into(), |value| Unit::Microseconds.print(value)),
                Unit::Fraction.print(of(|one| one.server_busy_fraction)),
                Unit::Fraction.print(of(|one| one.client_busy_fraction)),
            ]);
        }
    }
    table
}

fn memory(all: &[Runs]) -> Table {
    let mut table = Table::new(["", "loaded in", "resident at the end", "over Default", "on huge pages", "huge pages"]);
    let default = of(all, Condition::Default).map(|runs| middle_of(runs, |run| run.rss_bytes));
    for (condition, runs) in all {
        let rss = middle_of(runs, |run| run.rss_bytes);
        let huge = middle_of(runs, |run| run.huge_bytes);
        table.row([
            condition.name().to_owned(),
            Unit::Seconds.print(middle_of(runs, |run| run.load_s)),
            Unit::Bytes.print(rss),
            default.map_or_else(|| "–".into(), |default| Unit::Fraction.print(rss / default - 1.0)),
            Unit::Fraction.print(huge / rss),
            Unit::Count.print(huge / (2.0 * MIB)),
        ]);
    }
    table
}

fn settled(run: &Run) -> String {
    run.settled_s.map_or_else(|| "not settled".into(), |time| Unit::Seconds.print(time))
}

fn together(runs: &[Run]) -> Table {
    let mut table = Table::new([
        "run",
        "settled",
        "moved in",
        "moved back",
        "no room",
        "arena",
        "promoted",
        "longest lock",
        "tracker settling",
        "settled",
        "its memory",
    ]);
    for (nth, run) in runs.iter().enumerate() {
        let said = |name: &str| Unit::Count.print(number(&run.hps, name));
        let watched = |part: fn(&crate::memcached::one_run::Watched) -> f64, unit: Unit| {
            run.watched.as_ref().map_or_else(|| "–".into(), |watched| unit.print(part(watched)))
        };
        table.row([
            (nth + 1).to_string(),
            settled(run),
            said("items_moved"),
            said("items_moved_back"),
            said("items_no_room"),
            Unit::Bytes.print(number(&run.hps, "arena_bytes")),
            said("tracker_promoted"),
            Unit::Microseconds.print(number(&run.hps, "longest_item_lock_us")),
            watched(|one| one.settling_fraction, Unit::Fraction),
            watched(|one| one.settled_fraction, Unit::Fraction),
            watched(|one| one.rss_bytes, Unit::Bytes),
        ]);
    }
    table
}

fn alone(runs: &[Run]) -> Table {
    let mut table = Table::new(["run", "settled", "promoted", "refused", "masu's cpu"]);
    for (nth, run) in runs.iter().enumerate() {
        let Some(attach) = &run.attach else { continue };
        table.row([
            (nth + 1).to_string(),
            settled(run),
            attach.windows_promoted.to_string(),
            attach.windows_refused.values().sum::<u64>().to_string(),
            Unit::Seconds.print(attach.cpu_s),
        ]);
    }
    table
}

fn ratio(all: &[Runs], (baseline, this): (Condition, Condition), figure: impl Fn(&Run) -> f64) -> Option<f64> {
    let (base, other) = (of(all, baseline)?, of(all, this)?);
    compare(&samples(base, &figure), &samples(other, &figure)).map(|found| found.ratio)
}

/// Ratio with the largest number of keys a request, where memory counts the most.
fn last_ratio(options: &Options, all: &[Runs], pair: (Condition, Condition)) -> Option<f64> {
    ratio(all, pair, |run| speed(run, options.keys_while_settling()))
}

fn beside_the_paper(options: &Options, all: &[Runs]) -> Table {
    let keys = options.keys_per_get.iter().map(|keys| format!("here, {}", keys_in_words(*keys)));
    let mut table = Table::new(["".to_owned(), "the paper".to_owned()].into_iter().chain(keys));
    let over =
        |ratio: Option<f64>| ratio.map_or_else(|| "–".into(), |ratio| format!("{:+.2} %", (ratio - 1.0) * 100.0));
    let thp = if of(all, Condition::Collapsed).is_some() { Condition::Collapsed } else { Condition::Always };
    let mut row = |what: &str, paper: &str, pair: (Condition, Condition)| {
        let here = options.keys_per_get.iter().map(|&keys| over(ratio(all, pair, |run| speed(run, keys))));
        table.row([what.to_owned(), paper.to_owned()].into_iter().chain(here));
    };
    row("throughput: HPS over THP", "-0.60 %", (thp, Condition::Hps));
    row("throughput: THP over Default", "+2.55 %", (Condition::Default, thp));
    row("throughput: HPS over Default", "+1.94 %", (Condition::Default, Condition::Hps));
    let extra = |this| ratio(all, (Condition::Default, this), |run| run.rss_bytes);
    table.row(["memory: THP over Default", "+96.20 %", &over(extra(thp))]);
    table.row(["memory: HPS over Default", "+6.17 %", &over(extra(Condition::Hps))]);
    table
}

fn notes(report: &mut Report, options: &Options, all: &[Runs]) {
    report.note(format!(
        "A run is a server from its start to its end: filled, all items read once, {} s or more of gets until it has settled, then \
         measured, then every byte of every item compared. No item was lost, none differed.",
        options.settle()
    ));
    if of(all, Condition::Collapsed).is_some() {
        report.note(
            "memcached takes its memory in pieces of 1 MiB, which are too small for a huge page at the first touch, so that under \
             THP=always it stays on small pages until khugepaged comes by, 16 MiB in ten seconds. \"collapsed\" is after that: \
             khugepaged was made to hurry.",
        );
    }
    if let Some(runs) = of(all, Condition::Hps)
        && runs.iter().any(|run| run.settled_s.is_none())
    {
        report
            .note("In some runs masu and memcached had not come to rest when they were measured. Try --settle-limit.");
    }
    report.note(
        "Latency is that of requests under full load: each connection has one under way, and the others wait for the server, too.",
    );
}

/// Figure 19: a bar for each condition, a chart for each number of keys.
fn draw_throughput(options: &Options, all: &[Runs]) -> String {
    let chart = |keys: usize| {
        let bar = |(condition, runs): &Runs| {
            let all = samples(runs, |run| speed(run, keys) / 1e3);
            let (low, high) = all.iter().fold((f64::INFINITY, 0.0f64), |(low, high), v| (low.min(*v), high.max(*v)));
            Bar { name: condition.name().into(), value: median(&all).unwrap_or(f64::NAN), range: (low, high) }
        };
        let title = format!("Throughput, {}", keys_in_words(keys));
        Bars { title, y_label: "thousand gets/s".into(), bars: all.iter().map(bar).collect() }
    };
    let charts: Vec<Bars> = options.keys_per_get.iter().map(|keys| chart(*keys)).collect();
    bars(&format!("memcached, {} items of {} bytes", options.items(), options.size), &charts, 2)
}

/// Figure 20: memory over time, a line for each condition; and beside it how fast it was meanwhile.
fn draw_over_time(options: &Options, all: &[Runs]) -> String {
    let lines = |of: fn(&Run) -> &Series, scale: f64| -> Vec<plot::Series> {
        let line = |(condition, runs): &Runs| {
            let all: Vec<&Series> = runs.iter().map(of).collect();
            let points = middle(&all).into_iter().map(|(x, y)| (x, y / scale)).collect();
            plot::Series { name: condition.name().into(), points }
        };
        all.iter().map(line).collect()
    };
    let chart = |title: &str, y_label: &str, series| Chart {
        title: title.into(),
        x_label: "seconds since the load began".into(),
        y_label: y_label.into(),
        series,
    };
    let charts = [
        chart("Resident memory", "MiB", lines(|run| &run.rss_over_time, MIB)),
        chart("Throughput while it settles", "thousand gets/s", lines(|run| &run.gets_over_time, 1e3)),
    ];
    grid(&format!("memcached, {} items of {} bytes", options.items(), options.size), &charts, 2)
}
