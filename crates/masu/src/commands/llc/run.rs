//! `masu llc run`.

use std::time::Duration;

use linux::open_files;
use llc::daemon::config::Config;
use llc::daemon::number::counted;
use llc::daemon::report::{Event, Summary};
use serde::Serialize;
use units::Bytes;
use units::cast::{index, saturated};

use super::daemon::{LlcDaemon, SOLE, at_trouble, config, daemon};
use super::lines::Lines;
use crate::Done;
use crate::args::LlcRunTask;
use crate::failure::Failure;
use crate::only_one::only_one;
use crate::runtime;
use crate::terminal::clock::{Clock, Stop};
use crate::terminal::events;
use crate::terminal::print;
use crate::terminal::unwritten::Unwritten;

pub fn run(task: &LlcRunTask) -> Result<Done, Failure> {
    let stop = Stop::on_signals()?;
    let config = config(&task.config)?;
    let _lock = only_one(&SOLE)?;
    // Each counted thread needs descriptors, and each process that shares pages needs one.
    open_files::raise();
    let mut out = Out {
        json: task.json,
        lines: Lines::to(print::out(), if task.json { left_out_json } else { left_out })?,
        unwritten: Unwritten::of("masu llc run"),
    };
    let is_over = stop.clone();
    let mut daemon = daemon(&config, task.resctrl.as_deref(), runtime::settings()?, move || is_over.is_set())?;
    let told_to_end = stop.clone();
    let mut clock = Clock::new(stop, Vec::new());
    let outcome = attend(&mut daemon, &config, task.time, &mut clock, &mut out);
    let (summary, events, ended) = daemon.finish();
    let now = clock.now();
    // Everything is restored here, even if the reader has left.
    let micros = |time: Duration| saturated(time.as_micros());
    let summary = Summary { run_us: micros(now), cpu_us: micros(linux::cpu_time::of_process()), ..summary };
    let failed = outcome.is_err() || ended.is_err();
    let mut told = events.iter().try_for_each(|event| out.event(now, event));
    if !failed {
        told = told.and_then(|()| out.end(&summary, config.partition));
    }
    let Out { lines, mut unwritten, .. } = out;
    let written = lines.end(PATIENCE, || failed || told_to_end.is_set());
    if !unwritten.is_lost() {
        unwritten.take_last(written);
    }
    outcome?;
    ended.map_err(|error| at_trouble(&error))?;
    told?;
    Ok(if summary.failures > 0 { Done::InPart } else { unwritten.done() })
}

/// Runs the control loop until a signal, the time limit, or the end of the last program.
fn attend(
    daemon: &mut LlcDaemon,
    config: &Config,
    time: Option<Duration>,
    clock: &mut Clock,
    out: &mut Out,
) -> Result<(), Failure> {
    let mut ready = false;
    while !clock.is_stopped() {
        let now = clock.now();
        let events = daemon.step(now).map_err(|error| at_trouble(&error))?;
        if !ready {
            out.ready(config)?;
            ready = true;
        }
        events.iter().try_for_each(|event| out.event(now, event))?;
        out.check();
        let left = time.map(|time| time.saturating_sub(clock.now()));
        if daemon.is_over() || left.is_some_and(|left| left.is_zero()) {
            break;
        }
        clock.wait(left.map_or(daemon.wait(), |left| left.min(daemon.wait())));
    }
    Ok(())
}

/// Time for a reader who has stopped reading to take the last lines after the end was requested.
const PATIENCE: Duration = Duration::from_secs(2);

/// Destination of the event lines.
struct Out {
    json: bool,
    lines: Lines,
    unwritten: Unwritten,
}

/// The line that reports dropped lines.
fn left_out(lines: u64) -> String {
    format!("{} left out: nobody read them", counted(index(lines), "line"))
}

fn left_out_json(lines: u64) -> String {
    serde_json::json!({ "event": "left_out", "lines": lines }).to_string()
}

#[derive(Serialize)]
struct Ready<'a> {
    event: &'static str,
    ready: bool,
    policy: &'a str,
    partition: bool,
    programs: Vec<&'a str>,
}

impl Out {
    /// Sends a line. The work goes on when lines cannot be written.
    fn line(&mut self, text: String) {
        if !self.unwritten.is_lost() {
            let said = self.lines.say(text);
            self.unwritten.take(said);
        }
    }

    /// Looks for a failed write.
    fn check(&mut self) {
        if !self.unwritten.is_lost() {
            let written = self.lines.check();
            self.unwritten.take(written);
        }
    }

    fn ready(&mut self, config: &Config) -> Result<(), Failure> {
        let programs: Vec<&str> = config.programs.iter().map(|program| program.name.as_str()).collect();
        if self.json {
            let (policy, partition) = (config.policy.name(), config.partition);
            let ready = Ready { event: "ready", ready: true, policy, partition, programs };
            self.line(serde_json::to_string(&ready)?);
            return Ok(());
        }
        let whose = programs.join(", ");
        if config.partition {
            self.line(format!("dividing the cache between {whose}, by {}; Ctrl-C puts it back", config.policy));
        } else {
            self.line(format!("keeping what {whose} share in the cache, without partitions; Ctrl-C ends it"));
        }
        Ok(())
    }

    fn event(&mut self, now: Duration, event: &Event) -> Result<(), Failure> {
        self.line(events::event(self.json, now, event)?);
        Ok(())
    }

    fn end(&mut self, summary: &Summary, partition: bool) -> Result<(), Failure> {
        if self.json {
            self.line(events::end(summary)?);
            return Ok(());
        }
        #[expect(clippy::cast_precision_loss, reason = "times for people")]
        let (run_s, cpu_s, refill_s) =
            (summary.run_us as f64 / 1e6, summary.cpu_us as f64 / 1e6, summary.refill_cpu_us as f64 / 1e6);
        let mut said = Vec::new();
        if partition {
            said.push(counted(index(summary.plans), "plan"));
        }
        if summary.refilled_bytes > Bytes(0) {
            let unmerged = summary.unmerged_pages;
            said.push(format!(
                "refilled {} in {refill_s:.2} s of a CPU, pages un-merged: {unmerged}",
                summary.refilled_bytes
            ));
        }
        said.push(format!("{:.1} % of a CPU in all", cpu_s / run_s.max(1e-6) * 100.0));
        self.line(format!("{run_s:8.1} s  {}", said.join("; ")));
        Ok(())
    }
}
