//! `masu llc simulate`.

use std::fs::File;
use std::io::Write;
use std::num::NonZero;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use indicatif::{ProgressBar, ProgressStyle};
use sim::cache::compare;
use sim::cache::figure;
use sim::cache::files::{self, NoScenario};
use sim::cache::report::{OfCondition, Report};
use sim::cache::run::Broken;
use sim::cache::scenario::Unfit;
use sim::cache::trace::BadTrace;
use units::Bytes;

use crate::Done;
use crate::args::SimulateTask;
use crate::failure::Failure;
use crate::terminal::clock::Stop;
use crate::terminal::output_file::{empty, open_to_write};
use crate::terminal::print;
use crate::terminal::table::Table;

pub fn run(task: &SimulateTask) -> Result<Done, Failure> {
    let scenario = files::scenario(&task.scenario).map_err(|error| match error {
        NoScenario::Unread { .. } => {
            Failure::new(error).remedy("bench/scenarios has some; masu-llc-simulate(1) explains what stands in one.")
        }
        NoScenario::Bad(_) => Failure::new(error).remedy("masu-llc-simulate(1) explains what stands in a scenario."),
    })?;
    // Opened before a long run, so that no result is lost to a file that cannot be written.
    let figure = task.svg.as_ref().map(|file| Figure::open(file)).transpose()?;
    let stop = Stop::on_signals()?;
    let threads = std::thread::available_parallelism().map_or(1, NonZero::get);
    let progress = Progress::over(compare::accesses(&scenario));
    let watch = |accesses| {
        progress.ran(accesses);
        !stop.is_set()
    };
    let report = compare::compare(&scenario, threads, &files::trace, &watch);
    progress.bar.finish_and_clear();
    let report = report.map_err(|error| match error {
        Broken::Trace(BadTrace::Line { .. } | BadTrace::Empty { .. }) | Broken::Unfit(Unfit::Trace { .. }) => {
            Failure::new(error)
                .remedy("valgrind --tool=lackey --trace-mem=yes --log-file=FILE PROGRAM writes such a trace.")
        }
        Broken::Trace(_) | Broken::Unfit(_) | Broken::Stopped => Failure::new(error),
    })?;
    let mut out = print::out();
    if task.json {
        serde_json::to_writer(&mut out, &report)?;
        writeln!(out)?;
    } else {
        print(&mut out, &report)?;
    }
    out.flush()?;
    if let Some(figure) = figure {
        figure.write(&figure::svg(&report))?;
    }
    if report.complete {
        return Ok(Done::Whole);
    }
    let any = report.points.iter().any(|point| !point.conditions.is_empty());
    let left_out = if any { "what was not run by then is left out" } else { "nothing was run to its end yet" };
    print::note(format_args!("stopped: {left_out}"));
    Ok(Done::InPart)
}

/// The file of the figure. Its old content stays until the new one is ready.
struct Figure<'f> {
    name: &'f Path,
    file: File,
}

impl Figure<'_> {
    fn open(name: &Path) -> Result<Figure<'_>, Failure> {
        let opened = open_to_write(name);
        Ok(Figure { name, file: opened.map_err(|error| Figure::failed(name, &error))? })
    }

    fn write(mut self, svg: &str) -> Result<(), Failure> {
        empty(&self.file)
            .and_then(|()| self.file.write_all(svg.as_bytes()))
            .map_err(|error| Figure::failed(self.name, &error))
    }

    fn failed(name: &Path, error: &std::io::Error) -> Failure {
        Failure::new(format!("cannot write the figure {}: {}", name.display(), linux::describe_io(error)))
            .remedy("--svg names a file in a directory that you may write to.")
    }
}

/// Progress on standard error, if that is a terminal.
struct Progress {
    bar: ProgressBar,
    accesses: AtomicU64,
}

impl Progress {
    fn over(accesses: u64) -> Progress {
        let bar = ProgressBar::new(accesses >> 20);
        if let Ok(style) = ProgressStyle::with_template("{elapsed_precise}  {wide_bar}  {percent} %  {eta} left") {
            bar.set_style(style);
        }
        Progress { bar, accesses: AtomicU64::new(0) }
    }

    fn ran(&self, accesses: u64) {
        let all = self.accesses.fetch_add(accesses, Ordering::Relaxed) + accesses;
        self.bar.set_position(all >> 20);
    }
}

fn print(out: &mut impl Write, report: &Report) -> Result<(), Failure> {
    if !report.title.is_empty() {
        writeln!(out, "{}", report.title)?;
    }
    writeln!(out, "{}\n", report.model)?;
    if report.points.iter().all(|point| point.conditions.is_empty()) {
        return Ok(());
    }
    let varied = report.points.iter().any(|point| point.array_bytes.is_some());
    if varied { print_sweep(out, report) } else { print_programs(out, report) }
}

/// A row for each size and condition.
fn print_sweep(out: &mut impl Write, report: &Report) -> Result<(), Failure> {
    let names =
        report.points.iter().flat_map(|point| &point.conditions).next().map_or(&[][..], |first| &first.programs);
    let mut heads = vec!["array".to_owned(), "condition".to_owned()];
    heads.extend(names.iter().map(|program| format!("{}, cycles", program.name)));
    heads.extend(["ratio", "unfairness", "even after", "region", "fills", "duty"].map(str::to_owned));
    let mut table = Table::new(heads);
    for point in &report.points {
        for condition in &point.conditions {
            // Without a shared partition nothing is warmed, and no thread is busy with that.
            let none = condition.regions.is_empty();
            let mut cells = vec![point.array_bytes.unwrap_or_default().to_string(), condition.name.clone()];
            cells.extend(condition.programs.iter().map(|program| format!("{:.1}", program.access_cycles)));
            cells.push(format!("{:.2}", condition.access_time_ratio));
            cells
                .push(condition.metrics.map_or_else(|| "-".to_owned(), |metrics| format!("{:.2}", metrics.unfairness)));
            cells.push(condition.passes_until_even.map_or_else(|| "-".to_owned(), |passes| format!("{passes} passes")));
            let duty = condition.regions.iter().fold(0.0, |sum, region| sum + region.duty_fraction);
            cells.extend(if none {
                ["-"; 3].map(str::to_owned)
            } else {
                [
                    condition.regions.iter().map(|region| region.occupancy_bytes).sum::<Bytes>().to_string(),
                    condition.regions.iter().map(|region| region.passes).sum::<u64>().to_string(),
                    format!("{:.2} %", duty * 100.0),
                ]
            });
            table.row(cells);
        }
    }
    table.write(out, "")?;
    Ok(())
}

/// A row for each condition, then a row for each program under each.
fn print_programs(out: &mut impl Write, report: &Report) -> Result<(), Failure> {
    let conditions: Vec<&OfCondition> = report.points.iter().flat_map(|point| &point.conditions).collect();
    let mut table =
        Table::new(["condition", "unfairness", "STP", "ANTT", "Jain", "classes", "plan changes", "regions"]);
    for condition in &conditions {
        let figure = |of: fn(&llc::policy::metrics::Metrics) -> f64, digits: usize| {
            condition.metrics.as_ref().map_or_else(|| "-".to_owned(), |metrics| format!("{:.digits$}", of(metrics)))
        };
        let mut masks: Vec<u64> = condition.programs.iter().map(|program| program.mask.0).collect();
        masks.sort_unstable();
        masks.dedup();
        let regions: Vec<String> =
            condition.regions.iter().map(|region| format!("{}:{}", region.set, region.mask)).collect();
        table.row([
            condition.name.clone(),
            figure(|metrics| metrics.unfairness, 3),
            figure(|metrics| metrics.stp, 3),
            figure(|metrics| metrics.antt, 3),
            figure(|metrics| metrics.jain, 4),
            masks.len().to_string(),
            condition.plan_changes.to_string(),
            regions.join(" "),
        ]);
    }
    table.write(out, "")?;
    writeln!(out)?;
    let heads = ["condition", "program", "ways", "slowdown", "cycles/access", "misses", "MPKI", "free rides", "filled"];
    let mut table = Table::new(heads);
    for (condition, program) in conditions.iter().flat_map(|of| of.programs.iter().map(move |program| (of, program))) {
        table.row([
            condition.name.clone(),
            program.name.clone(),
            program.mask.to_string(),
            format!("{:.3}", program.slowdown),
            format!("{:.1}", program.access_cycles),
            format!("{:.2} %", program.miss_fraction * 100.0),
            format!("{:.2}", program.mpki),
            format!("{:.2} %", program.free_ride_fraction * 100.0),
            program.occupancy_bytes.to_string(),
        ]);
    }
    table.write(out, "")?;
    Ok(())
}
