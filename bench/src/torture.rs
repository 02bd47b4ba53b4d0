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

use crate::hammer::{Blows, hammer};
use crate::masu::Masu;
use crate::place::Place;
use crate::report::Report;
use crate::session::Session;
use crate::table::Table;
use crate::workload::{Reply, Workload};

/// Arguments of `masu-bench torture`.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Time in all, such as 120s or 2m
    #[arg(long = "for", default_value = "120s", value_parser = time)]
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
pub(crate) fn time(text: &str) -> Result<Duration, String> {
    let (number, unit_s) = match text.strip_suffix('m') {
        Some(minutes) => (minutes, 60.0),
        None => (text.strip_suffix('s').unwrap_or(text), 1.0),
    };
    let number: f64 = number.parse().map_err(|_| "expected a time, such as 120s or 2m".to_owned())?;
    Duration::try_from_secs_f64(number * unit_s)
        .map_err(|_| "expected a time of 0 s or more, such as 120s or 2m".to_owned())
}

/// Agents that act on the program in one part.
#[derive(Clone, Copy, Debug)]
struct Part {
    name: &'static str,
    hammer: bool,
    masu: bool,
}

const PARTS: [Part; 3] = [
    Part { name: "hammer", hammer: true, masu: false },
    Part { name: "masu attach", hammer: false, masu: true },
    Part { name: "both", hammer: true, masu: true },
];

/// Results of masu's runs of one part.
#[derive(Debug, Default, serde::Serialize)]
struct Runs {
    runs: u64,
    promoted: u64,
    demoted: u64,
    refused: BTreeMap<String, u64>,
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
    let parts: Vec<Part> = PARTS.into_iter().filter(|part| masu.is_some() || !part.masu).collect();
    let each = options.time / u32::try_from(parts.len()).unwrap_or(1);
    let mut table = Table::new([
        "what acts on the program",
        "promoted",
        "split or demoted",
        "refused",
        "operations",
        "checks",
        "forks",
        "differences",
    ]);
    let mut refused = BTreeMap::new();
    let mut before = status(&mut program, session)?;
    for (nth, part) in parts.iter().enumerate() {
        session.progress(&format!("{} for {} s", part.name, each.as_secs()));
        let seed = options.seed.wrapping_add(nth as u64);
        let (blows, runs) = one_part(&mut program, *part, masu.as_ref().filter(|_| part.masu), each, seed, session)?;
        let now = status(&mut program, session)?;
        let since = |name: &str| Ok::<_, anyhow::Error>((now.whole(name)? - before.whole(name)?).to_string());
        table.row([
            part.name.to_owned(),
            (blows.promoted + runs.promoted).to_string(),
            (blows.split + runs.demoted).to_string(),
            (blows.refused.values().sum::<u64>() + runs.refused.values().sum::<u64>()).to_string(),
            since("operations")?,
            since("checks")?,
            since("forks")?,
            since("differences")?,
        ]);
        add(&mut refused, &blows.refused);
        add(&mut refused, &runs.refused);
        before = now;
    }
    let end = program.ask("stop", Duration::from_secs(120), &session.stop).context("the last check of every page")?;
    let title = format!(
        "torture: {} threads check {} MiB that they share, and as much of their own",
        options.threads, options.mib
    );
    let mut report = Report::new("torture", title, &session.host);
    report.table("In each part:", table);
    report.note(format!(
        "After the last check of every page: {} checks, {} differences.",
        end.whole("checks")?,
        end.whole("differences")?
    ));
    let reasons: Vec<String> = refused.iter().map(|(reason, count)| format!("{reason} {count}")).collect();
    report.note(format!("Refused: {}.", reasons.join(", ")));
    report.sample("refused", &refused);
    report.sample("checks", end.whole("checks")?);
    report.sample("differences", end.whole("differences")?);
    report.finish(session.save)?;
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
    part: Part,
    masu: Option<&Masu>,
    time: Duration,
    seed: u64,
    session: &Session,
) -> Result<(Blows, Runs)> {
    let end = Arc::new(AtomicBool::new(false));
    let (pid, hammer_end) = (program.pid(), Arc::clone(&end));
    let hammering = part.hammer.then(|| thread::spawn(move || hammer(pid, seed, &hammer_end)));
    let acted = act(program, masu, time, session);
    end.store(true, Ordering::Release);
    let blows = match hammering.map(thread::JoinHandle::join) {
        None => Blows::default(),
        Some(Ok(blows)) => blows?,
        Some(Err(_)) => bail!("the hammer panicked"),
    };
    Ok((blows, acted?))
}

/// Runs masu again and again, or just waits, and asks the program every second.
fn act(program: &mut Workload, masu: Option<&Masu>, time: Duration, session: &Session) -> Result<Runs> {
    let (begun, mut runs) = (Instant::now(), Runs::default());
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
        runs.runs += 1;
        runs.promoted += report.windows_promoted;
        runs.demoted += report.windows_demoted;
        add(&mut runs.refused, &report.windows_refused);
        status(program, session)?;
    }
    Ok(runs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_seconds_with_or_without_their_unit_or_minutes() {
        assert_eq!(time("120s"), Ok(Duration::from_secs(120)));
        assert_eq!(time("0.5"), Ok(Duration::from_millis(500)));
        assert_eq!(time("5m"), Ok(Duration::from_secs(300)));
        assert!(time("-1").is_err() && time("soon").is_err() && time("inf").is_err() && time("m").is_err());
    }
}
