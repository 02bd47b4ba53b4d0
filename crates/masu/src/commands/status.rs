//! `masu status`.

use std::io::{self, Write};

use humantime::format_duration;
use linux::untrusted::visible;
use serve::metrics::{SERIES, metrics};
use serve::snapshot::{Feature, OfProcess, Snapshot, State};
use std::time::Duration;

use super::serve::board::ask;
use crate::Done;
use crate::args::StatusTask;
use crate::failure::Failure;
use crate::terminal::print;

pub fn run(task: &StatusTask) -> Result<Done, Failure> {
    let mut snapshot = ask().map_err(|error| no_answer(&error))?;
    if task.openmetrics {
        write!(print::out(), "{}", metrics(&snapshot, SERIES))?;
        return Ok(Done::Whole);
    }
    choose(&mut snapshot, &task.of)?;
    let mut out = print::out();
    if task.json {
        serde_json::to_writer(&mut out, &snapshot)?;
        writeln!(out)?;
    } else {
        print(&snapshot, &mut out)?;
    }
    Ok(Done::Whole)
}

fn no_answer(error: &io::Error) -> Failure {
    match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
            Failure::new("no masu serve is running").remedy("Start it: `systemctl start masu`, or `masu serve`.")
        }
        io::ErrorKind::PermissionDenied => {
            Failure::new("masu serve answers root alone: permission denied (EACCES)").remedy("Run as root.")
        }
        io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => Failure::new("masu serve gives no answer")
            .remedy("It may be stopped, or has ended just now: `systemctl status masu`."),
        _ => Failure::new(format!("masu serve gives no answer: {}", linux::describe_io(error))),
    }
}

/// Keeps the rules and processes that are asked for; all without any.
fn choose(snapshot: &mut Snapshot, of: &[String]) -> Result<(), Failure> {
    for one in of {
        let is_process = |process: &OfProcess| process.pid.to_string() == *one;
        if snapshot.processes.iter().any(is_process) || snapshot.rules.iter().any(|rule| rule.name == *one) {
            continue;
        }
        let failure = if one.bytes().all(|byte| byte.is_ascii_digit()) {
            Failure::new(format!("no rule holds for process {one}"))
                .remedy("`masu serve --dry-run` lists the processes with a rule.")
        } else {
            let known: Vec<&str> = snapshot.rules.iter().map(|rule| &*rule.name).collect();
            Failure::new(format!("no rule {} is in force; rules: {}", visible(one), known.join(", ")))
                .remedy("After a change of the rules: `systemctl reload masu`.")
        };
        return Err(failure);
    }
    if !of.is_empty() {
        let is_named = |name: &str| of.iter().any(|one| one == name);
        snapshot.processes.retain(|process| is_named(&process.rule) || is_named(&process.pid.to_string()));
        let used: Vec<String> = snapshot.processes.iter().map(|process| process.rule.clone()).collect();
        snapshot.rules.retain(|rule| is_named(&rule.name) || used.contains(&rule.name));
    }
    Ok(())
}

fn print(snapshot: &Snapshot, out: &mut impl Write) -> io::Result<()> {
    let Snapshot { run_s, cpu_s, rules, processes, .. } = snapshot;
    let time = format_duration(Duration::from_secs_f64(run_s.floor().max(0.0)));
    let dropped = snapshot.cache_dropped_bytes;
    writeln!(
        out,
        "masu serve for {time}: {:.2} % of a processor, dropped {dropped} behind streams",
        cpu_s / run_s.max(0.1) * 100.0
    )?;
    if let Some(why) = &snapshot.reload_failed {
        writeln!(out, "the rules on disk have a fault, and those before stay in force: {}", visible(why))?;
    }
    writeln!(out, "\n{:<16}  {:>9}  {:>8}  {:>8}  {:>8}  effect", "rule", "processes", "promoted", "split", "refused")?;
    for rule in rules {
        let number = processes.iter().filter(|process| process.rule == rule.name).count();
        let windows = rule.windows;
        writeln!(
            out,
            "{:<16}  {number:>9}  {:>8}  {:>8}  {:>8}  {}",
            rule.name,
            windows.promoted,
            windows.demoted,
            windows.refused,
            rule.effects.join("; ")
        )?;
    }
    if processes.is_empty() {
        return writeln!(out, "\nno running process has a rule");
    }
    let header = ("process", "command", "rule", "feature", "state", "extra memory");
    writeln!(
        out,
        "\n{:>8}  {:<16}  {:<16}  {:<10}  {:<8}  {}",
        header.0, header.1, header.2, header.3, header.4, header.5
    )?;
    for process in processes {
        let feature = match process.feature {
            Feature::Huge => "huge pages",
            Feature::Cache => "page cache",
        };
        let extra = match (process.feature, process.state) {
            (Feature::Huge, State::Served | State::Settled) => process.extra_rss_bytes.to_string(),
            _ => String::new(),
        };
        let line = format!(
            "{:>8}  {:<16}  {:<16}  {feature:<10}  {:<8}  {extra}",
            process.pid,
            visible(&process.name),
            process.rule,
            process.state.name()
        );
        writeln!(out, "{}", line.trim_end())?;
        if let Some(why) = &process.why {
            writeln!(out, "{:>8}  {}", "", visible(why))?;
        }
    }
    Ok(())
}
