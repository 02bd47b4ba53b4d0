//! Prints a report once, or repeatedly.

use std::io::Write;
use std::time::Duration;

use linux::Pid;

use crate::args::Watch;
use crate::failure::Failure;
use crate::terminal::clock::{Clock, Stop};
use crate::terminal::print;

/// Default interval of `--watch`.
const EVERY: Duration = Duration::from_secs(2);

/// Interval of `--watch`; `None` without it. A process id given after `--watch` is added to `pids`.
pub fn every(watch: Option<Watch>, pids: &mut Vec<Pid>) -> Option<Duration> {
    match watch? {
        Watch::Every(time) => Some(time),
        Watch::Process(pid) => {
            pids.push(pid);
            Some(EVERY)
        }
    }
}

/// Prints one report, or a series. A single report leaves Ctrl-C as it is: the signal ends masu at once.
pub fn reports(
    every: Option<Duration>,
    json: bool,
    mut report: impl FnMut(&mut Vec<u8>) -> Result<bool, Failure>,
) -> Result<(), Failure> {
    if every.is_some() {
        return repeat(every, Clock::new(Stop::on_signals()?, Vec::new()), json, report);
    }
    let mut text = Vec::new();
    if !report(&mut text)? {
        return Err(Failure::new("cannot report on processes that have ended"));
    }
    let mut out = print::out();
    out.write_all(&text)?;
    Ok(out.flush()?)
}

/// Prints once, or until stopped: in place on a terminal, one block after the other on a pipe.
pub fn repeat(
    every: Option<Duration>,
    mut clock: Clock,
    json: bool,
    mut block: impl FnMut(&mut Vec<u8>) -> Result<bool, Failure>,
) -> Result<(), Failure> {
    let in_place = every.is_some() && !json && print::out().is_terminal();
    let mut first = true;
    loop {
        let mut text = Vec::new();
        let goes_on = block(&mut text)?;
        if in_place && !text.is_empty() {
            // Unchanged text does not flicker.
            print::in_place(&text, first)?;
        } else {
            let mut out = print::out();
            if !first && !json && !text.is_empty() {
                writeln!(out)?;
            }
            out.write_all(&text)?;
            out.flush()?;
        }
        first = false;
        let Some(every) = every.filter(|_| goes_on) else { return Ok(()) };
        clock.wait(every);
        if clock.is_stopped() {
            return Ok(());
        }
    }
}
