//! How long single requests take: one at a time, the next as soon as the answer is there.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use hdrhistogram::Histogram;
use serde::Serialize;

use crate::random::XorShift;
use crate::redis::client::Client;
use crate::redis::keys::Keys;
use crate::stop::Stop;

/// Percentiles of many requests, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Latency {
    /// Requests.
    pub requests: u64,
    /// Median.
    pub p50_ms: f64,
    /// One request in a hundred took longer.
    pub p99_ms: f64,
    /// One request in a thousand took longer.
    pub p999_ms: f64,
    /// The longest.
    pub max_ms: f64,
}

/// Requests between two questions whether to go on: about a millisecond.
const BATCH: usize = 32;

/// A minute; what takes longer counts as that.
const LONGEST_NS: u64 = 60_000_000_000;

/// Sends single requests for as long as `go_on` says so.
///
/// A client that waits for an answer sends nothing meanwhile, so one long stall would count as a single slow request. The
/// percentiles therefore also count the requests that it would have sent at its usual pace (`usual`, the median of a quiet
/// time; zero for no correction), each with the time that it would have waited.
///
/// # Errors
/// When an answer is wrong, the server is gone, or we are interrupted.
pub fn measure(
    client: &mut Client,
    keys: &Keys,
    value_bytes: usize,
    usual: Duration,
    stop: &Stop,
    mut go_on: impl FnMut() -> bool,
) -> Result<Latency> {
    let mut histogram = Histogram::<u64>::new_with_bounds(1, LONGEST_NS, 3).context("histogram")?;
    let (mut random, mut requests) = (XorShift::seeded(7), 0);
    loop {
        for key in keys.draw(BATCH, &mut random) {
            let begun = Instant::now();
            client.get(key, value_bytes)?;
            let taken = nanoseconds(begun.elapsed()).clamp(1, LONGEST_NS);
            histogram.record_correct(taken, nanoseconds(usual)).context("histogram")?;
            requests += 1;
        }
        stop.check()?;
        if !go_on() {
            break;
        }
    }
    let at = |quantile| histogram.value_at_quantile(quantile) as f64 / 1e6;
    Ok(Latency {
        requests,
        p50_ms: at(0.5),
        p99_ms: at(0.99),
        p999_ms: at(0.999),
        max_ms: histogram.max() as f64 / 1e6,
    })
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
