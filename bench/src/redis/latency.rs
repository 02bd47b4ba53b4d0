//! How long single requests take while the server is busy with others.
//!
//! One cycle is a batch of pipelined requests, which keeps the server's memory in use, then a single request, which is timed.
//! A client that waits for an answer sends nothing meanwhile, so one long stall would count as a single slow request. Two
//! corrections keep it honest, both with the pace of a quiet time ([`Pace`]): a single request counts from the moment when it
//! would have been sent had the batch before it not been late; and a stall of many cycles counts also for the requests that
//! would have been sent in it.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use hdrhistogram::Histogram;
use serde::Serialize;

use crate::pairs::median;
use crate::random::XorShift;
use crate::redis::client::{Client, DEPTH, Look};
use crate::redis::keys::Keys;
use crate::stop::Stop;

/// Percentiles of many requests, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Latency {
    /// Requests timed.
    pub requests: u64,
    /// Requests answered in all, per second.
    pub gets_per_s: f64,
    /// Median.
    pub p50_ms: f64,
    /// One request in a hundred took longer.
    pub p99_ms: f64,
    /// One request in a thousand took longer.
    pub p999_ms: f64,
    /// The longest.
    pub max_ms: f64,
}

/// How long a batch and a single request usually take.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pace {
    /// Median time of a batch.
    pub batch: Duration,
    /// Median time of a single request.
    pub single: Duration,
}

/// A minute; what takes longer counts as that.
const LONGEST_NS: u64 = 60_000_000_000;

/// Asks one server for keys.
pub struct Asker<'a> {
    /// The connection.
    pub client: &'a mut Client,
    /// Which keys.
    pub keys: &'a Keys,
    /// Bytes of each value.
    pub value_bytes: usize,
    /// Ends it early.
    pub stop: &'a Stop,
}

impl Asker<'_> {
    /// The pace of a quiet time: medians over `time`.
    ///
    /// # Errors
    /// When an answer is wrong, the server is gone, or we are interrupted.
    pub fn pace(&mut self, time: Duration) -> Result<Pace> {
        let (mut batches, mut singles, begun) = (Vec::new(), Vec::new(), Instant::now());
        self.cycles(|batch, single| {
            batches.push(batch.as_secs_f64());
            singles.push(single.as_secs_f64());
            Ok(begun.elapsed() < time)
        })?;
        let middle = |times: &[f64]| Duration::from_secs_f64(median(times).unwrap_or(0.0));
        Ok(Pace { batch: middle(&batches), single: middle(&singles) })
    }

    /// Times single requests for as long as `go_on` says so, asked once a cycle.
    ///
    /// # Errors
    /// As [`Asker::pace`].
    pub fn measure(&mut self, pace: Pace, mut go_on: impl FnMut() -> bool) -> Result<Latency> {
        let mut histogram = Histogram::<u64>::new_with_bounds(1, LONGEST_NS, 3).context("histogram")?;
        let (mut requests, begun) = (0u64, Instant::now());
        self.cycles(|batch, single| {
            record(&mut histogram, pace, batch, single)?;
            requests += 1;
            Ok(go_on())
        })?;
        let at = |quantile| histogram.value_at_quantile(quantile) as f64 / 1e6;
        Ok(Latency {
            requests,
            gets_per_s: (requests * (DEPTH as u64 + 1)) as f64 / begun.elapsed().as_secs_f64(),
            p50_ms: at(0.5),
            p99_ms: at(0.99),
            p999_ms: at(0.999),
            max_ms: histogram.max() as f64 / 1e6,
        })
    }

    /// Cycles until `each`, given the times of the batch and of the single request, says false.
    fn cycles(&mut self, mut each: impl FnMut(Duration, Duration) -> Result<bool>) -> Result<()> {
        let mut random = XorShift::seeded(7);
        loop {
            self.stop.check()?;
            let keys = self.keys.draw(DEPTH + 1, &mut random);
            let begun = Instant::now();
            self.client.get_pipelined(&keys[1..], self.value_bytes, Look::Quick)?;
            let batch = begun.elapsed();
            self.client.get(keys[0], self.value_bytes)?;
            if !each(batch, begun.elapsed().saturating_sub(batch))? {
                return Ok(());
            }
        }
    }
}

fn record(histogram: &mut Histogram<u64>, pace: Pace, batch: Duration, single: Duration) -> Result<()> {
    let nanoseconds = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    let late = batch.saturating_sub(pace.batch);
    // Half the batches are a little slower than their median; only what is late by a whole batch more is a stall.
    let late = if late > pace.batch { late } else { Duration::ZERO };
    let taken = nanoseconds(single + late).clamp(1, LONGEST_NS);
    histogram.record_correct(taken, nanoseconds(pace.batch + pace.single)).context("histogram")
}

#[cfg(test)]
mod tests {
    use super::*;

    const PACE: Pace = Pace { batch: Duration::from_micros(80), single: Duration::from_micros(20) };

    fn recorded(cycles: &[(u64, u64)]) -> Histogram<u64> {
        let mut histogram = Histogram::new_with_bounds(1, LONGEST_NS, 3).unwrap();
        for &(batch, single) in cycles {
            record(&mut histogram, PACE, Duration::from_micros(batch), Duration::from_micros(single)).unwrap();
        }
        histogram
    }

    #[test]
    fn a_batch_of_the_usual_pace_adds_nothing() {
        let quiet = recorded(&[(80, 20), (90, 20), (70, 20), (150, 20)]);
        assert_eq!((quiet.len(), quiet.max() / 1000), (4, 20));
    }

    #[test]
    fn a_stall_counts_for_every_request_that_it_kept_waiting() {
        // A stall of a millisecond, in the batch or in the single request: 1000 us, 900, 800 … 100, in cycles of 100 us.
        for stalled in [recorded(&[(1080, 20)]), recorded(&[(80, 1020)])] {
            assert_eq!(stalled.len(), 10);
            assert!((1019..=1021).contains(&(stalled.max() / 1000)), "{}", stalled.max());
        }
    }
}
