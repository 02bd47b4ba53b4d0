//! Delay until a program is notified of a number of active pages, and has the list.

use anyhow::{Result, ensure};
use serde::Serialize;

use super::Options;
use super::programs::Programs;
use crate::masu::Masu;
use crate::pairs::median;
use crate::report::{Report, Unit};
use crate::session::Session;
use crate::table::Table;
use crate::tracker::Tracker;
use units::spread::Random;

/// Pages of 4 KiB in a MiB.
const PAGES_PER_MIB: u64 = 256;

/// One notification, in microseconds since the first touch.
#[derive(Clone, Copy, Debug, Serialize)]
struct Heard {
    /// The thread that waits goes on.
    told_us: f64,
    /// The callback is called with the first window.
    first_us: f64,
    /// Time of the last call, in microseconds.
    last_us: f64,
    /// Pages in the list.
    pages: u64,
}

/// Parameters of the watching, and amount of touched memory.
#[derive(Clone, Copy, Debug, Serialize)]
struct Terms {
    period_ms: u64,
    /// An observation begins with each period, at any cost. Otherwise a settled program is watched for longer at a
    /// time, so that it costs half a percent of a processor.
    is_steady: bool,
    memory_mib: u64,
}

/// Notifications under the same parameters.
#[derive(Debug, Serialize)]
struct Series {
    terms: Terms,
    heard: Vec<Heard>,
}

/// Extra delay of the observation of a settled program, which is watched for longer.
const LOOKED_ON_MS: u64 = 3000;

/// All of them.
#[derive(Debug)]
pub struct Notifications(Vec<Series>);

/// Has them timed.
///
/// # Errors
/// When a program is not watched or hears nothing, or we are interrupted.
pub fn measure(session: &Session, masu: &Masu, programs: &Programs, options: &Options) -> Result<Notifications> {
    let mut all = Vec::new();
    for &period_ms in &options.periods_ms {
        let steady = options.memory_mib.iter().map(|memory_mib| (*memory_mib, true));
        let usual = options.memory_mib.iter().min().map(|memory_mib| (*memory_mib, false));
        for (memory_mib, is_steady) in steady.chain(usual) {
            session.progress(&format!("notifications: {memory_mib} MiB, periods of {period_ms} ms"));
            let terms = Terms { period_ms, is_steady, memory_mib };
            all.push(series(session, masu, programs, terms, options.notifications)?);
        }
    }
    Ok(Notifications(all))
}

fn series(session: &Session, masu: &Masu, programs: &Programs, terms: Terms, wanted: usize) -> Result<Series> {
    let Terms { period_ms, is_steady, memory_mib } = terms;
    let tracker = Tracker::start(masu, &[], session)?;
    let mut program = programs.start_tracked(session, &tracker.socket(), memory_mib)?;
    let pages = memory_mib * PAGES_PER_MIB;
    // Half of them: nearly all continuously touched pages are seen in every scan.
    program.enable(pages / 2, (period_ms, if is_steady { period_ms } else { 0 }), session)?;
    let mut random = Random::seeded(memory_mib);
    let mut heard = Vec::new();
    for _ in 0..wanted {
        // Longer than two observations take, and at no fixed time within one.
        let quiet_ms = 3 * period_ms + if is_steady { 0 } else { LOOKED_ON_MS } + random.number() % period_ms;
        program.ask(&format!("idle {quiet_ms}"), session)?;
        let reply = program.ask(&format!("touch {pages}"), session)?;
        let one = Heard {
            told_us: reply.number("told_us")?,
            first_us: reply.number("first_us")?,
            last_us: reply.number("last_us")?,
            pages: reply.whole("pages")?,
        };
        ensure!(one.pages >= pages / 2, "the list has {} pages and not {} or more", one.pages, pages / 2);
        heard.push(one);
    }
    drop(program);
    tracker.finish(&session.stop)?;
    Ok(Series { terms, heard })
}

impl Notifications {
    /// Adds them to the report.
    pub fn tell(&self, report: &mut Report) {
        let mut table = Table::new([
            "period",
            "observations",
            "touched",
            "pages listed",
            "told after",
            "in periods",
            "the longest",
            "callback after told",
            "whole list after told",
        ]);
        for series in &self.0 {
            let of = |figure: fn(&Heard) -> f64| series.heard.iter().map(figure).collect::<Vec<f64>>();
            let middle = |figure| median(&of(figure)).unwrap_or(f64::NAN);
            let (told, longest) = (middle(|one| one.told_us), of(|one| one.told_us).into_iter().fold(0.0, f64::max));
            let period_us = series.terms.period_ms as f64 * 1e3;
            table.row([
                format!("{} ms", series.terms.period_ms),
                if series.terms.is_steady { "one each period" } else { "as usual" }.into(),
                format!("{} MiB", series.terms.memory_mib),
                Unit::Count.print(middle(|one| one.pages as f64)),
                Unit::Milliseconds.print(told / 1e3),
                format!("{:.2}", told / period_us),
                format!("{:.2}", longest / period_us),
                Unit::Milliseconds.print(middle(|one| one.first_us - one.told_us) / 1e3),
                Unit::Milliseconds.print(middle(|one| one.last_us - one.told_us) / 1e3),
            ]);
        }
        report.table("From the first touch of idle pages until the program is told, medians:", table);
        report.note(
            "A program hears at the end of an observation in which half of the pages were touched often enough. One that is under \
             way when they begin to be touched may count, or the next one. As usual (masu_track_settings.every_ms is 0) a program of which \
             nothing is to be promoted is observed for longer at a time, so that it costs half a percent of a processor.",
        );
        report.sample("notifications", &self.0);
    }
}
