//! `masu attach`.

mod elsewhere;
mod progress;

use std::collections::BTreeMap;
use std::io::Write;
use std::sync::Arc;

use access::Backend;
use hugepages::attach::{ROUND_MIN, Settings, Until, attach};
use hugepages::program::RunningProgram;
use hugepages::report::{PlannedRun, Report};
use hugepages::target::{Phase, Target};
use hugepages::torn::STAYS;
use hugepages::{policy, rate_limiter};
use linux::{Pid, Untrusted};
use serde::Serialize;
use units::{Bytes, Fraction};

use crate::args::AttachTask;
use crate::failure::Failure;
use crate::open::{Observers, Purpose, admit, can_promote, each, hold, say_halted};
use crate::prohibition::{self, Inherited};
use crate::terminal::clock::{Clock, Stop};
use crate::terminal::print::{self, percent};
use crate::terminal::table::Table;
use crate::terminal::unwritten;
use crate::{Done, HOST};
use elsewhere::Elsewhere;
use progress::Progress;

pub fn run(task: &AttachTask) -> Result<Done, Failure> {
    let stop = Stop::on_signals()?;
    let mut pids = task.pids.clone();
    pids.sort_unstable();
    pids.dedup();
    // Every reason against a process is printed before anything is loaded.
    let mut halted = BTreeMap::new();
    let (admitted, mut done) = each(&pids, |pid| {
        let status = admit(pid, Purpose::Attach)?;
        halted.extend(say_halted(pid, &status.name).map(|why| (pid, why)));
        Ok((pid, status.name, Arc::new(hold(pid, Purpose::Attach)?)))
    })?;
    // For masu's own probe and preallocated pages.
    if let Inherited::Stays(why) = prohibition::lift_own() {
        print::note(format_args!("{why}"));
    }
    can_promote(&linux::probe::collapse(&*HOST))?;
    let observers = Observers::find(task.backend)?;
    if observers.backend == Backend::DamonVaddr && admitted.len() > 1 {
        let line = "cannot attach to several processes by damon-vaddr: the kernel's interface watches one at a time";
        return Err(
            Failure::new(line).remedy("Attach to one process; `masu facts` says why the walk does not hold here.")
        );
    }
    let (opened, in_part) = each(&admitted, |(pid, name, _held)| open(&observers, pid, name, policy(task)))?;
    done = done.max(in_part);
    let (mut targets, programs): (Vec<Target>, Vec<_>) = opened.into_iter().unzip();

    let mut progress = Progress::new(Clock::new(stop, programs), halted);
    let settings = settings(task);
    attach(&mut targets, settings, &mut progress);
    progress.finish();
    if task.undo {
        for target in &mut targets {
            for (why, left) in target.undo() {
                let (pid, why) = (target.pid, why.explanation());
                print::note(format_args!("{left} windows of process {pid} stayed huge: {why}"));
                done = done.max(Done::InPart);
            }
        }
    }
    let reports: Vec<Report> =
        targets.iter().map(|target| Report::of(target, linux::cpu_time::of_process(), task.dry_run)).collect();
    let ran_s = progress.clock.now().as_secs_f64();
    let written = reports.iter().try_for_each(|report| {
        let elsewhere = elsewhere::of(report.pid);
        if task.json { print_json(report, &elsewhere) } else { print_table(report, ran_s, task.undo, &elsewhere) }
    });
    if task.dry_run {
        written?;
    } else {
        done = done.max(unwritten::report_of_work(written));
    }
    for report in reports.iter().filter(|_| task.undo) {
        let extra = if report.ended { Bytes(0) } else { report.extra_rss_bytes };
        if let Some(line) = not_undone(report.pid, report.windows_split_by_others, extra) {
            print::note(line);
            done = done.max(Done::InPart);
        }
    }
    for target in targets.iter().filter(|target| target.phase != Phase::Ended) {
        let Some(why) = target.halted() else { continue };
        print::note(format_args!("process {} ({}) is {why} still: nothing of it has settled", target.pid, target.name));
        done = done.max(Done::InPart);
    }
    for target in targets.iter().filter(|target| target.phase == Phase::Watching) {
        if settings.until == Until::Settled && !task.dry_run && !progress.clock.is_stopped() {
            print::note(format_args!(
                "process {} ({}) did not settle in {:.0} s: in its last round {} windows changed, and {} idle ones had no verdict",
                target.pid,
                target.name,
                progress.clock.now().as_secs_f64(),
                target.changed(),
                target.split_candidates()
            ));
            done = done.max(Done::InPart);
        }
    }
    for target in targets.iter().filter(|target| target.phase == Phase::Ended) {
        match &target.failure {
            Some(error) => print::failure(&Failure::at_process(error)),
            None => print::note(format_args!("process {} ({}) ended meanwhile", target.pid, target.name)),
        }
        done = done.max(Done::InPart);
    }
    Ok(done)
}

pub fn open(
    observers: &Observers,
    pid: Pid,
    name: Untrusted,
    policy: policy::Settings,
) -> Result<(Target, std::os::fd::OwnedFd), Failure> {
    let at_process = |error: linux::Error| Failure::at_process(&error);
    let program = RunningProgram::open(&*HOST, pid).map_err(at_process)?;
    let ends = pid.open().map_err(at_process)?;
    let source = observers.open(pid)?;
    let target = Target::new(pid, name, Box::new(program), source, policy).map_err(at_process)?;
    Ok((target, ends))
}

fn policy(task: &AttachTask) -> policy::Settings {
    policy::Settings {
        hot_fraction: task.hot_fraction,
        max_extra_rss: task.max_extra_rss,
        idle_rounds: task.demote_after,
        settle_noise: Fraction::clamped(0.005),
        ..policy::PAPER
    }
}

fn settings(task: &AttachTask) -> Settings {
    let until = match task.time {
        Some(time) => Until::For(time),
        None if task.until_settled => Until::Settled,
        None => Until::Stopped,
    };
    Settings { rate: rate_limiter::MEASURED, until, dry_run: task.dry_run, round_min: ROUND_MIN }
}

/// Line about memory of promotions that `--undo` could not return: masu splits huge windows, and the kernel returns the
/// pages of zeros with the split only.
fn not_undone(pid: Pid, split_by_others: u64, extra: Bytes) -> Option<String> {
    (split_by_others > 0 && extra > Bytes(0)).then(|| {
        format!(
            "{extra} that promotion added to process {pid} stay: others split {split_by_others} of its windows (a fork, \
             reclaim, mprotect), and the kernel returns pages of zeros with a split by masu only"
        )
    })
}

fn print_json(report: &Report, elsewhere: &Elsewhere) -> Result<(), Failure> {
    #[derive(Serialize)]
    struct Both<'a> {
        #[serde(flatten)]
        report: &'a Report,
        #[serde(flatten)]
        elsewhere: &'a Elsewhere,
    }
    let mut out = print::out();
    serde_json::to_writer(&mut out, &Both { report, elsewhere })?;
    writeln!(out)?;
    Ok(())
}

fn print_table(report: &Report, ran_s: f64, undone: bool, elsewhere: &Elsewhere) -> Result<(), Failure> {
    let mut out = print::out();
    let dry = if report.dry_run { "   dry run: nothing was promoted or demoted" } else { "" };
    writeln!(out, "process {} ({})   observed by {}{dry}\n", report.pid, report.name, report.backend)?;
    windows(report, undone).write(&mut out, "  ")?;
    writeln!(out)?;
    if let Some(plan) = report.plan.as_deref().filter(|plan| !plan.is_empty()) {
        planned(plan).write(&mut out, "  ")?;
        writeln!(out)?;
    }
    figures(report, ran_s).write(&mut out, "  ")?;
    if let Some(text) = elsewhere.text() {
        writeln!(out, "\n  {text}")?;
    }
    writeln!(out)?;
    let mut what_if = Table::new(["hot fraction", "huge windows", "extra memory, without a budget"]);
    for line in &report.what_if {
        let fraction = format!("1/{:.0}", 1.0 / line.hot_fraction);
        what_if.row([fraction, line.windows.to_string(), line.extra_rss_bytes.to_string()]);
    }
    what_if.write(&mut out, "  ")?;
    if out.is_terminal() {
        writeln!(out)?;
    }
    Ok(())
}

/// Two sums: the windows seen, each in one row below, and the promotions, each with one end.
fn windows(report: &Report, undone: bool) -> Table {
    let mut table = Table::new(["windows of 2 MiB", "number"]);
    let mut row = |what: &str, count: u64| table.row([what.to_owned(), count.to_string()]);
    row("seen", report.windows_seen);
    row("  huge", report.windows_huge);
    row("  some pages hot, too few", report.windows_compactable);
    row("  no page hot", report.windows_cold);
    if report.dry_run {
        row("  would be promoted", report.windows_promoted);
    } else if report.windows_waiting > 0 {
        row("  to be promoted, and not yet", report.windows_waiting);
    }
    for (reason, count) in &report.windows_refused {
        let waits = reason.wait().map(|wait| format!(": {wait}")).unwrap_or_default();
        row(&format!("  refused: {}{waits}", reason.explanation()), *count);
    }
    row("hot at the last look", report.windows_hot);
    if !report.dry_run {
        let demoted = report.windows_demoted.saturating_sub(report.windows_demoted_found);
        row("promoted", report.windows_promoted);
        row("  still huge at the end", report.windows_still_huge);
        row("  demoted", demoted);
        let others = [
            ("  given back in part by the program", report.windows_torn),
            ("  given back whole by the program", report.windows_unmapped),
            ("  split by others", report.windows_split_by_others),
            ("huge without masu, idle, and split", report.windows_demoted_found),
            ("given back in part, and split by masu", report.torn_windows),
            (&format!("given back in part, not split: {STAYS}"), report.torn_left_windows),
        ];
        others.into_iter().filter(|(_, count)| *count > 0).for_each(|(what, count)| row(what, count));
    }
    let not_split = if undone { "not split by --undo" } else { "idle, not split" };
    for (reason, count) in &report.windows_not_split {
        row(&format!("{not_split}: {}", reason.explanation()), *count);
    }
    table
}

/// The plan of a dry run, cut to a readable table; the JSON has all of it.
fn planned(plan: &[PlannedRun]) -> Table {
    const SHOWN: usize = 16;
    let mut table = Table::new(["would be promoted, from", "windows", "hot pages", "extra memory"]);
    for run in plan.iter().take(SHOWN) {
        let hot = run.hot_pages.0.to_string();
        table.row([format!("{:x}", run.start.0), run.windows.to_string(), hot, run.extra_rss_bytes.to_string()]);
    }
    let rest = plan.get(SHOWN..).unwrap_or_default();
    if !rest.is_empty() {
        let windows: u64 = rest.iter().map(|run| run.windows).sum();
        let hot: u64 = rest.iter().map(|run| run.hot_pages.0).sum();
        let extra: Bytes = rest.iter().map(|run| run.extra_rss_bytes).sum();
        let more = format!("{} more runs, see --json", rest.len());
        table.row([more, windows.to_string(), hot.to_string(), extra.to_string()]);
    }
    table
}

fn figures(report: &Report, ran_s: f64) -> Table {
    let per_gib = |us: Option<f64>| us.map_or("none".to_owned(), |us| format!("{:.2} ms/GiB", us / 1e3));
    let mut table = Table::new(["figure", "value"]);
    let mut row = |what: &str, value: String| table.row([what.to_owned(), value]);
    let extra = format!("{} ({})", report.extra_rss_bytes, percent(report.extra_rss_fraction));
    if report.dry_run {
        row("resident memory", report.rss_before_bytes.to_string());
        row("promotion would add", extra);
    } else {
        row("resident memory before", report.rss_before_bytes.to_string());
        let none = if report.ended { "ended" } else { "not known" };
        row("resident memory after", report.rss_after_bytes.map_or(none.to_owned(), |rss| rss.to_string()));
        row("of that by promotion", extra);
        row("returned by demotion", report.returned_bytes.to_string());
        if report.torn_windows > 0 {
            row("freed by splitting torn huge pages", report.torn_returned_bytes.to_string());
        }
        if report.torn_left_windows > 0 {
            row("charged for torn huge pages that stay", report.torn_left_bytes.to_string());
        }
        if report.torn_on_host > 0 {
            let whose = format!("{}; `masu stat {}` shows its part ({STAYS})", report.torn_on_host, report.pid);
            row("torn huge pages of the host that stay", whose);
        }
        row("settled", report.settled_s.map_or(format!("not in {ran_s:.1} s"), |s| format!("after {s:.1} s")));
    }
    if report.small_mappings > 0 {
        let (bytes, mappings) = (report.small_mapping_bytes, report.small_mappings);
        row("in mappings without a window of 2 MiB", format!("{bytes} in {mappings} mappings"));
    }
    for (reason, resident) in &report.refused_resident_bytes {
        row(&format!("resident in windows refused: {reason}"), resident.to_string());
    }
    row("one scan", per_gib(report.scan_us_per_gib));
    row("one clear", per_gib(report.clear_us_per_gib));
    row("processor time of masu", format!("{:.2} s of {ran_s:.1} s", report.cpu_s));
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_undo_does_not_return_is_named_where_others_split_the_windows() {
        let line = not_undone(Pid(7), 20, Bytes::mib(40)).unwrap();
        assert!(
            line.starts_with("40.0 MiB that promotion added to process 7 stay: others split 20 of its windows"),
            "{line}"
        );
        assert_eq!((not_undone(Pid(7), 0, Bytes::mib(40)), not_undone(Pid(7), 20, Bytes(0))), (None, None));
    }
}
