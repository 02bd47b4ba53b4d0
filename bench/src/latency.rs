//! Latency of many requests.

use std::time::Duration;

use anyhow::{Context, Result};
use hdrhistogram::Histogram;
use serde::Serialize;
use units::cast::saturated;

use crate::workload::Reply;

/// Percentiles of many requests, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Latency {
    pub requests: u64,
    pub p50_ms: f64,
    pub p99_ms: f64,
    pub p999_ms: f64,
    pub max_ms: f64,
}

impl Latency {
    /// Reads the fields `requests`, `p50_us`, `p99_us`, `p999_us` and `max_us`.
    ///
    /// # Errors
    /// When one of them is missing.
    pub fn of(reply: &Reply) -> Result<Latency> {
        let ms = |name: &str| Ok::<f64, anyhow::Error>(reply.number(name)? / 1e3);
        Ok(Latency {
            requests: reply.whole("requests")?,
            p50_ms: ms("p50_us")?,
            p99_ms: ms("p99_us")?,
            p999_ms: ms("p999_us")?,
            max_ms: ms("max_us")?,
        })
    }
}

/// One hour; longer latencies count as this.
const LONGEST_NS: u64 = 3_600_000_000_000;

/// Latencies of single requests, to three digits.
#[derive(Debug)]
pub struct Latencies(Histogram<u64>);

impl Latencies {
    /// No request yet.
    ///
    /// # Errors
    /// When there is no memory for the histogram.
    pub fn none() -> Result<Latencies> {
        Ok(Latencies(Histogram::new_with_max(LONGEST_NS, 3).context("histogram")?))
    }

    /// Adds one request.
    pub fn add(&mut self, time: Duration) {
        self.0.saturating_record(saturated(time.as_nanos()));
    }

    /// Percentiles of all requests; zeros for none.
    pub fn percentiles(&self) -> Latency {
        let at = |quantile| self.0.value_at_quantile(quantile) as f64 / 1e6;
        Latency {
            requests: self.0.len(),
            p50_ms: at(0.5),
            p99_ms: at(0.99),
            p999_ms: at(0.999),
            max_ms: self.0.max() as f64 / 1e6,
        }
    }
}
