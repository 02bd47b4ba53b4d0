//! `masu-bench torture`: a program that checks its own memory (`workloads/self_check.rs`) runs while its windows are
//! promoted and demoted at the highest rate, and must find no difference.
//!
//! Three parts: our own hammer alone, at a far higher rate than masu's; `masu attach --undo` again and again, told to
//! promote almost everything; and both at once. Any difference is an error.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use units::cast::fits;

use crate::hammer::{Blows, hammer};
use crate::harness::{Column, Runs};
use crate::masu::Masu;
use crate::place::Place;
use crate::report::{Report, Unit};
use crate::session::Session;
use crate::workload::{Reply, Workload};

/// Arguments of `masu-bench torture`.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Time in all, such as 120s or 2m
    #[arg(long = "for", default_value = "120s", value_parser = parse_time)]
    pub time: Duration,
    /// Memory that the program's threads share, in MiB
    #[arg(long, default_value_t = 256)]
    pub mib: u64,
    /// Threads of the program
    #[arg(long, default_value_t = 3)]
    pub threads: u64,
    /// Seed of all random choices
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Run only the hammer of the benchmark, without masu
    #[arg(long)]
    pub direct_only: bool,
}

/// `120s`, `120` or `2m`.
pub(crate) fn parse_time(text: &str) -> Result<Duration, String> {
    let (number, unit_s) = match text.strip_suffix('m') {
        Some(minutes) => (minutes, 60.0),
        None => (text.strip_suffix('s').unwrap_or(text), 1.0),
    };
    let number: f64 = number.parse().map_err(|_| "expected a time, such as 120s or 2m".to_owned())?;
    Duration::try_from_secs_f64(number * unit_s)
        .map_err(|_| "expected a time of 0 s or more, such as 120s or 2m".to_owned())
}

/// Agents that act on the program, by part.
const HAMMER: &str = "hammer";
const MASU: &str = "masu attach";
const BOTH: &str = "both";

/// Actions on the program in one part, and its own counts.
#[derive(Debug, serde::Serialize)]
struct Part {
    blows: Blows,
    operations: u64,
    checks: u64,
    forks: u64,
    differences: u64,
}

/// Runs the benchmark.
///
/// # Errors
/// When the program finds a difference, masu is missing or fails, or we are interrupted.
pub fn run(session: &Session, options: &Options) -> Result<()> {
    let masu = if options.direct_only { None } else { Some(session.masu()?) };
    let arguments = [("--mib", options.mib), ("--threads", options.threads), ("--seed", options.seed)];
    let arguments: Vec<String> =
        arguments.iter().flat_map(|(name, value)| [(*name).to_owned(), value.to_string()]).collect();
    let mut program =
        Workload::start("workload-self-check", &arguments, &session.processors, Place::Anywhere, &session.stop)?;
    let parts = if options.direct_only { &[HAMMER][..] } else { &[HAMMER, MASU, BOTH] };
    let each = options.time / fits(parts.len());
    let mut before = status(&mut program, session)?;
    let mut runs = Runs::default();
    runs.measure(session, 1, "", parts, |turn| {
        let seed = options.seed.wrapping_add(turn.nth as u64);
        let masu = masu.as_ref().filter(|_| turn.way != HAMMER);
        let blows = one_part(&mut program, turn.way, masu, each, seed, session)?;
        let now = status(&mut program, session)?;
        let since = |name: &str| Ok::<_, anyhow::Error>(now.whole(name)? - before.whole(name)?);
        let part = Part {
            blows,
            operations: since("operations")?,
            checks: since("checks")?,
            forks: since("forks")?,
            differences: since("differences")?,
        };
        before = now;
        Ok(part)
    })?;
    let end = program.ask("stop", Duration::from_secs(120), &session.stop).context("the last check of every page")?;
    let title = format!(
        "torture: {} threads check {} MiB that they share, and as much of their own",
        options.threads, options.mib
    );
    let mut report = Report::new("torture", title, &session.host);
    let column =
        |head: &str, count: fn(&Part) -> u64| Column::median(head, Unit::Count, move |part| count(part) as f64);
    let columns = [
        column("promoted", |part| part.blows.promoted),
        column("split or demoted", |part| part.blows.split),
        column("refused", |part| part.blows.refused.values().sum()),
        column("operations", |part| part.operations),
        column("checks", |part| part.checks),
        column("forks", |part| part.forks),
        column("differences", |part| part.differences),
    ];
    runs.table(&mut report, "In each part:", &columns);
    report.note(format!(
        "After the last check of every page: {} checks, {} differences.",
        end.whole("checks")?,
        end.whole("differences")?
    ));
    let mut refused = BTreeMap::new();
    runs.rows().iter().flat_map(|row| &row.samples).for_each(|part| add(&mut refused, &part.blows.refused));
    let reasons: Vec<String> = refused.iter().map(|(reason, count)| format!("{reason} {count}")).collect();
    report.note(format!("Refused: {}.", reasons.join(", ")));
    report.sample("checks", end.whole("checks")?);
    report.sample("differences", end.whole("differences")?);
    runs.finish(report, session)?;
    no_difference(&end)
}

fn add(all: &mut BTreeMap<String, u64>, more: &BTreeMap<impl ToString, u64>) {
    for (reason, count) in more {
        *all.entry(reason.to_string()).or_default() += count;
    }
}

fn status(program: &mut Workload, session: &Session) -> Result<Reply> {
    let status = program.ask("status", Duration::from_secs(60), &session.stop)?;
    no_difference(&status)?;
    Ok(status)
}

fn no_difference(status: &Reply) -> Result<()> {
    let differences = status.whole("differences")?;
    ensure!(differences == 0, "the program found its memory changed: {differences} differences");
    Ok(())
}

fn one_part(
    program: &mut Workload,
    part: &str,
    masu: Option<&Masu>,
    time: Duration,
    seed: u64,
    session: &Session,
) -> Result<Blows> {
    let end = Arc::new(AtomicBool::new(false));
    let (pid, hammer_end) = (program.pid(), Arc::clone(&end));
    let hammering = (part != MASU).then(|| thread::spawn(move || hammer(pid, seed, &hammer_end)));
    let acted = act(program, masu, time, session);
    end.store(true, Ordering::Release);
    let mut blows = match hammering.map(thread::JoinHandle::join) {
        None => Blows::default(),
        Some(Ok(blows)) => blows?,
        Some(Err(_)) => bail!("the hammer panicked"),
    };
    let acted = acted?;
    blows.promoted += acted.promoted;
    blows.split += acted.split;
    add(&mut blows.refused, &acted.refused);
    Ok(blows)
}

/// Runs masu again and again, or just waits, and asks the program every second.
fn act(program: &mut Workload, masu: Option<&Masu>, time: Duration, session: &Session) -> Result<Blows> {
    let (begun, mut blows) = (Instant::now(), Blows::default());
    while begun.elapsed() < time {
        let left = time.saturating_sub(begun.elapsed());
        let Some(masu) = masu else {
            session.stop.sleep(left.min(Duration::from_secs(1)))?;
            status(program, session)?;
            continue;
        };
        // Promotes every touched window, at any cost in memory, and demotes all of them at the end. Twice in each part:
        // masu promotes windows that it has watched for a while, so that many short runs would do nothing.
        let watch = format!("{}s", left.as_secs().min(time.as_secs() / 2).max(1));
        let eager =
            ["--for", &watch, "--hot-fraction", "0.002", "--max-extra-rss", "100%", "--demote-after", "1", "--undo"];
        let attached = masu.attach(program.pid(), &eager, &session.processors)?;
        let report = attached.finish(Duration::from_secs(60), &session.stop)?;
        blows.promoted += report.windows_promoted;
        blows.split += report.windows_demoted;
        add(&mut blows.refused, &report.windows_refused);
        status(program, session)?;
    }
    Ok(blows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_seconds_with_or_without_their_unit_or_minutes() {
        assert_eq!(parse_time("120s"), Ok(Duration::from_secs(120)));
        assert_eq!(parse_time("0.5"), Ok(Duration::from_millis(500)));
        assert_eq!(parse_time("5m"), Ok(Duration::from_secs(300)));
        assert!(
            parse_time("-1").is_err()
                && parse_time("soon").is_err()
                && parse_time("inf").is_err()
                && parse_time("m").is_err()
        );
    }
}
