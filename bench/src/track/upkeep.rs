//! The tracker's processor time by cause: watched memory, and number of programs.

use std::time::{Duration, Instant};

use anyhow::Result;
use serde::Serialize;

use super::Options;
use super::programs::{Programs, Tracked};
use crate::masu::Masu;
use crate::process::rss_counted;
use crate::report::{Report, Unit};
use crate::session::Session;
use crate::table::Table;
use crate::tracker::Tracker;

/// Memory of one of the many programs, in MiB.
const SMALL_MIB: u64 = 16;

/// The tracker does as usual.
const PERIOD_MS: u64 = 1280;

/// One tracker and its programs.
#[derive(Debug, Serialize)]
struct Watched {
    programs: usize,
    /// Memory of each program, in MiB.
    memory_mib: u64,
    /// Touched all the time, or never.
    is_touched: bool,
    /// An observation begins with each period, at any cost. Otherwise a settled program is watched for longer at a
    /// time, so that it costs half a percent of a processor.
    is_steady: bool,
    /// Use of one processor.
    cpu_fraction: f64,
    /// Processor time for one observation of one program; `None` where none ended.
    cpu_ms_per_round: Option<f64>,
    /// Observations of the first program, a second.
    rounds_per_s: f64,
    /// Memory of the tracker.
    rss_bytes: u64,
}

/// Programs to watch.
#[derive(Clone, Copy, Debug)]
struct Wanted {
    programs: usize,
    memory_mib: u64,
    is_touched: bool,
    is_steady: bool,
}

/// All of them.
#[derive(Debug)]
pub struct Upkeep(Vec<Watched>);

/// Has it counted.
///
/// # Errors
/// When a program is not watched, or we are interrupted.
pub fn measure(session: &Session, masu: &Masu, programs: &Programs, options: &Options) -> Result<Upkeep> {
    let of_one = |memory_mib, is_touched| Wanted { programs: 1, memory_mib, is_touched, is_steady: true };
    let small = |programs| Wanted { programs, memory_mib: SMALL_MIB, is_touched: false, is_steady: false };
    let memory = options.memory_mib.iter().flat_map(|memory| [false, true].map(|touched| of_one(*memory, touched)));
    let wanted = [small(0)].into_iter().chain(memory).chain(options.programs.iter().map(|count| small(*count)));
    wanted.map(|wanted| watched(session, masu, programs, wanted, options)).collect::<Result<_>>().map(Upkeep)
}

fn watched(session: &Session, masu: &Masu, programs: &Programs, wanted: Wanted, options: &Options) -> Result<Watched> {
    let Wanted { programs: count, memory_mib, is_touched, is_steady } = wanted;
    session.progress(&format!("the tracker's processor time: {count} programs of {memory_mib} MiB"));
    let tracker = Tracker::start(masu, &["--max-programs", &count.max(1).to_string()], session)?;
    let mut running: Vec<Tracked> = Vec::new();
    for _ in 0..count {
        session.stop.check()?;
        let mut one = programs.start_tracked(session, &tracker.socket(), memory_mib)?;
        // More pages than the program has: no list is made, and only the watching remains.
        one.enable(u64::MAX, (PERIOD_MS, if is_steady { PERIOD_MS } else { 0 }), session)?;
        if is_touched {
            one.work(memory_mib * 256, session)?;
        }
        running.push(one);
    }
    // Waits until the observations that were cut short by the start of many programs are over.
    session.stop.sleep(Duration::from_millis(PERIOD_MS * 3))?;
    let rounds = |running: &mut Vec<Tracked>| running.first_mut().map_or(Ok(0), |first| first.rounds(session));
    let (cpu_before, rounds_before, begun) = (tracker.processor_time()?, rounds(&mut running)?, Instant::now());
    session.stop.sleep(Duration::from_secs(options.seconds))?;
    let cpu_s = (tracker.processor_time()? - cpu_before).as_secs_f64();
    let (took_s, rounds) = (begun.elapsed().as_secs_f64(), rounds(&mut running)? - rounds_before);
    let rss_bytes = rss_counted(tracker.pid())?.0;
    drop(running);
    tracker.finish(&session.stop)?;
    Ok(Watched {
        programs: count,
        memory_mib,
        is_touched,
        is_steady,
        cpu_fraction: cpu_s / took_s,
        cpu_ms_per_round: (rounds > 0).then(|| cpu_s * 1e3 / (rounds as f64 * count as f64)),
        rounds_per_s: rounds as f64 / took_s,
        rss_bytes,
    })
}

impl Upkeep {
    /// Adds it to the report.
    pub fn tell(&self, report: &mut Report) {
        let mut table = Table::new([
            "programs",
            "of",
            "touched",
            "observations",
            "of a processor",
            "a round",
            "rounds a second",
            "tracker's memory",
        ]);
        for one in &self.0 {
            table.row([
                one.programs.to_string(),
                format!("{} MiB", one.memory_mib),
                if one.is_touched { "all the time" } else { "never" }.into(),
                if one.is_steady { "one each period" } else { "as usual" }.into(),
                Unit::Fraction.print(one.cpu_fraction),
                one.cpu_ms_per_round.map_or_else(|| "–".into(), |ms| Unit::Milliseconds.print(ms)),
                format!("{:.2}", one.rounds_per_s),
                Unit::Bytes.print(one.rss_bytes as f64),
            ]);
        }
        report.table("Processor time of the tracker:", table);
        let single = |is_touched: bool| {
            let of_one = self.0.iter().filter(move |one| one.is_steady && one.is_touched == is_touched);
            of_one.filter_map(|one| Some((one.memory_mib as f64 / 1024.0, one.cpu_ms_per_round?))).collect::<Vec<_>>()
        };
        for (is_touched, what) in [(false, "that nobody touches"), (true, "touched all the time")] {
            let what = format!("tracker, an observation, for each GiB {what}");
            report.figure(&what, Unit::Milliseconds, slope(&single(is_touched)), None);
        }
        let small = self.0.iter().filter(|one| one.programs > 0 && !one.is_steady);
        let many: Vec<(f64, f64)> = small.map(|one| (one.programs as f64, one.cpu_fraction)).collect();
        report.figure(&format!("tracker, for each program of {SMALL_MIB} MiB"), Unit::Fraction, slope(&many), None);
        report.note(
            "masu track --max-cpu (10 % of a processor) holds for each program; those of one user share it, but for root's, and these \
             programs are root's.",
        );
        report.sample("upkeep", &self.0);
    }
}

/// Slope of y over x from the first to the last of the points; `None` for fewer than two.
fn slope(points: &[(f64, f64)]) -> Option<f64> {
    let least = points.iter().min_by(|a, b| a.0.total_cmp(&b.0))?;
    let most = points.iter().max_by(|a, b| a.0.total_cmp(&b.0))?;
    (most.0 > least.0).then(|| (most.1 - least.1) / (most.0 - least.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slope_is_from_the_first_point_to_the_last() {
        let found = slope(&[(4.0, 9.0), (1.0, 3.0), (2.0, 100.0)]).unwrap();
        assert!((found - 2.0).abs() < 1e-12, "{found}");
        assert_eq!((slope(&[(1.0, 1.0)]), slope(&[(1.0, 1.0), (1.0, 2.0)]), slope(&[])), (None, None, None));
    }
}
