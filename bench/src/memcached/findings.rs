//! Findings of the runs: each condition against each of its baselines, its cost, and the paper's figures beside.

use crate::harness::{Choice as _, Column, Metric, Row, Runs, median_of, or_dash};
use crate::latency::Latency;
use crate::memcached::command::{Options, Workload};
use crate::memcached::condition::Condition;
use crate::memcached::one_run::{Measured, Run, Watched};
use crate::memcached::sampler::{Series, middle};
use crate::memcached::server::number;
use crate::pairs::median;
use crate::report::{Report, Target, Unit};
use crate::session::Session;
use crate::side_by_side::compare;
use crate::table::Table;
use sim::plot::{self, Bar, Bars, Chart, bars, grid};

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

/// All that the runs show.
pub fn report(session: &Session, options: &Options, runs: &Runs<Condition, Run>) -> Report {
    let mut report = Report::new(name(options), title(options, runs), &session.host);
    runs.compare(&mut report, &PAIRS, &metrics(options));
    for &keys in &options.keys_per_get {
        let heading = format!("Requests, {}, medians of the runs:", keys_in_words(keys));
        runs.table(&mut report, &heading, &requests(options, keys));
    }
    memory(&mut report, runs);
    let (hps, promote) = (runs.of("", Condition::Hps), runs.of("", Condition::Promote));
    if !hps.is_empty() {
        report.table("memcached and masu together, run by run:", together(hps));
    }
    if !promote.is_empty() {
        report.table("Promotion alone, run by run:", alone(promote));
    }
    if options.workload == Workload::Zipfian {
        let table = beside_the_paper(options, runs);
        report.table("Beside the paper (section 6.4, its tables and figures 19 and 20):", table);
    } else {
        let keys = options.keys_while_settling(); // the largest number, where memory counts the most
        let faster = ratio(runs, (Condition::Promote, Condition::Hps), |run| speed(run, keys));
        report.figure("compaction over promotion alone", Unit::Times, faster, None);
    }
    notes(&mut report, options, runs);
    report.file(&format!("{}-throughput.svg", name(options)), draw_throughput(options, runs));
    report.file(&format!("{}-memory.svg", name(options)), draw_over_time(options, runs));
    report
}

/// Measurement with `keys` keys a request.
fn with_keys(run: &Run, keys: usize) -> Option<&Measured> {
    run.measured.iter().find(|measured| measured.keys_per_get == keys)
}

fn speed(run: &Run, keys: usize) -> Option<f64> {
    Some(with_keys(run, keys)?.gets_per_s)
}

fn keys_in_words(keys: usize) -> String {
    format!("{keys} key{} a request", if keys == 1 { "" } else { "s" })
}

/// A folder of results for each kind of run.
fn name(options: &Options) -> String {
    let what = match options.workload {
        Workload::Zipfian => options.law.name().to_owned(),
        Workload::Scattered => format!("scattered-{}", options.hot_per_window),
    };
    let amount = options.memory_gib.map_or_else(|| format!("{}items", options.items()), |gib| format!("{gib}gib"));
    format!("memcached-{what}-{amount}")
}

fn title(options: &Options, runs: &Runs<Condition, Run>) -> String {
    let first = runs.rows().iter().find_map(|row| row.samples.first());
    let (chunk, asked_for) = first.map_or((0, 0), |run| (run.chunk_bytes, run.asked_for));
    let what = match options.workload {
        Workload::Zipfian => format!("all of them asked for, {}", options.law),
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

fn metrics(options: &Options) -> Vec<Metric<'_, Condition, Run>> {
    let get = |keys: usize| {
        let get = Metric::more(format!("GET, {}", keys_in_words(keys)), Unit::PerSecond, move |run| speed(run, keys));
        get.target_against(Condition::Always, Condition::Hps, Target::NotWorse).target_against(
            Condition::Collapsed,
            Condition::Hps,
            Target::NotWorse,
        )
    };
    let what = format!("the same from the first get on, {}", keys_in_words(options.keys_while_settling()));
    let whole = Metric::more(what, Unit::PerSecond, |run: &Run| run.whole_gets_per_s);
    let memory = Metric::less("resident memory", Unit::Bytes, |run: &Run| run.rss_bytes);
    let memory = memory.target_against(Condition::Default, Condition::Hps, Target::AtMost(1.01));
    options.keys_per_get.iter().map(|keys| get(*keys)).chain([whole, memory]).collect()
}

fn requests(options: &Options, keys: usize) -> Vec<Column<'static, Run>> {
    let us = |head, ms: fn(&Latency) -> f64| {
        Column::median(head, Unit::Microseconds, move |run: &Run| Some(ms(&with_keys(run, keys)?.latency) * 1e3))
    };
    let busy = |head, part: fn(&Measured) -> f64| {
        Column::median(head, Unit::Fraction, move |run: &Run| with_keys(run, keys).map(part))
    };
    let mut columns =
        vec![us("p50", |found| found.p50_ms), us("p99", |found| found.p99_ms), us("p99.9", |found| found.p999_ms)];
    if keys == options.keys_while_settling() {
        let settling = |run: &Run| run.settling.p999_ms * 1e3;
        columns.push(Column::median("p99.9 settling", Unit::Microseconds, settling));
    }
    columns.push(busy("server busy", |found| found.server_busy_fraction));
    columns.push(busy("client busy", |found| found.client_busy_fraction));
    columns
}

fn memory(report: &mut Report, runs: &Runs<Condition, Run>) {
    let default = runs.median("", Condition::Default, |run| run.rss_bytes);
    let over = move |runs: &[Run]| Some(median_of(runs, |run| run.rss_bytes)? / default? - 1.0);
    let columns = [
        Column::median("loaded in", Unit::Seconds, |run: &Run| run.load_s),
        Column::median("resident at the end", Unit::Bytes, |run: &Run| run.rss_bytes),
        Column::new("over Default", move |runs| or_dash(Unit::Fraction, over(runs))),
        Column::median("on huge pages", Unit::Fraction, |run: &Run| run.huge_bytes / run.rss_bytes),
        Column::median("huge pages", Unit::Count, |run: &Run| run.huge_bytes / (2.0 * MIB)),
    ];
    runs.table(report, "Memory, medians of the runs:", &columns);
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
        let said = |name: &str, unit: Unit| or_dash(unit, number(&run.hps, name).ok());
        let watched = |part: fn(&Watched) -> f64, unit: Unit| or_dash(unit, run.watched.as_ref().map(part));
        table.row([
            (nth + 1).to_string(),
            settled(run),
            said("items_moved", Unit::Count),
            said("items_moved_back", Unit::Count),
            said("items_no_room", Unit::Count),
            said("arena_bytes", Unit::Bytes),
            said("tracker_promoted", Unit::Count),
            said("longest_item_lock_us", Unit::Microseconds),
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

type Pair = (Condition, Condition);

fn ratio(runs: &Runs<Condition, Run>, (baseline, this): Pair, value: impl Fn(&Run) -> Option<f64>) -> Option<f64> {
    let [base, this] = [baseline, this].map(|way| runs.of("", way).iter().map(&value).collect::<Option<Vec<f64>>>());
    compare(&base?, &this?).map(|found| found.ratio)
}

fn beside_the_paper(options: &Options, runs: &Runs<Condition, Run>) -> Table {
    let keys = options.keys_per_get.iter().map(|keys| format!("here, {}", keys_in_words(*keys)));
    let mut table = Table::new(["".to_owned(), "the paper".to_owned()].into_iter().chain(keys));
    let over =
        |ratio: Option<f64>| ratio.map_or_else(|| "–".into(), |ratio| format!("{:+.2} %", (ratio - 1.0) * 100.0));
    let is_collapsed = !runs.of("", Condition::Collapsed).is_empty();
    let thp = if is_collapsed { Condition::Collapsed } else { Condition::Always };
    let mut row = |what: &str, paper: &str, pair: Pair| {
        let here = options.keys_per_get.iter().map(|&keys| over(ratio(runs, pair, |run| speed(run, keys))));
        table.row([what.to_owned(), paper.to_owned()].into_iter().chain(here));
    };
    row("throughput: HPS over THP", "-0.60 %", (thp, Condition::Hps));
    row("throughput: THP over Default", "+2.55 %", (Condition::Default, thp));
    row("throughput: HPS over Default", "+1.94 %", (Condition::Default, Condition::Hps));
    let extra = |this| ratio(runs, (Condition::Default, this), |run| Some(run.rss_bytes));
    table.row(["memory: THP over Default", "+96.20 %", &over(extra(thp))]);
    table.row(["memory: HPS over Default", "+6.17 %", &over(extra(Condition::Hps))]);
    table
}

fn notes(report: &mut Report, options: &Options, runs: &Runs<Condition, Run>) {
    report.note(format!(
        "A run is a server from its start to its end: filled, all items read once, {} s or more of gets until it has settled, then \
         measured, then every byte of every item compared. No item was lost, none differed.",
        options.settle()
    ));
    if !runs.of("", Condition::Collapsed).is_empty() {
        report.note(
            "memcached takes its memory in pieces of 1 MiB, which are too small for a huge page at the first touch, so that under \
             THP=always it stays on small pages until khugepaged comes by, 16 MiB in ten seconds. \"collapsed\" is after that: \
             khugepaged was made to hurry.",
        );
    }
    if runs.of("", Condition::Hps).iter().any(|run| run.settled_s.is_none()) {
        report
            .note("In some runs masu and memcached had not come to rest when they were measured. Try --settle-limit.");
    }
    report.note(
        "Latency is that of requests under full load: each connection has one under way, and the others wait for the server, too.",
    );
}

/// Figure 19: a bar for each condition, a chart for each number of keys.
fn draw_throughput(options: &Options, runs: &Runs<Condition, Run>) -> String {
    let chart = |keys: &usize| {
        let bar = |row: &Row<Condition, Run>| {
            let all: Vec<f64> = row.samples.iter().filter_map(|run| Some(speed(run, *keys)? / 1e3)).collect();
            let (low, high) = all.iter().fold((f64::INFINITY, 0.0f64), |(low, high), v| (low.min(*v), high.max(*v)));
            Bar { name: row.way.title().into(), value: median(&all).unwrap_or(f64::NAN), range: (low, high) }
        };
        let title = format!("Throughput, {}", keys_in_words(*keys));
        Bars { title, y_label: "thousand gets/s".into(), bars: runs.rows().iter().map(bar).collect() }
    };
    let charts: Vec<Bars> = options.keys_per_get.iter().map(chart).collect();
    bars(&format!("memcached, {} items of {} bytes", options.items(), options.size), &charts, 2)
}

/// Figure 20: memory over time, a line for each condition; and the throughput beside it.
fn draw_over_time(options: &Options, runs: &Runs<Condition, Run>) -> String {
    let lines = |of: fn(&Run) -> &Series, scale: f64| -> Vec<plot::Series> {
        let line = |row: &Row<Condition, Run>| {
            let all: Vec<&Series> = row.samples.iter().map(of).collect();
            let points = middle(&all).into_iter().map(|(x, y)| (x, y / scale)).collect();
            plot::Series { name: row.way.title().into(), points }
        };
        runs.rows().iter().map(line).collect()
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
