//! Request latencies, from the client's output: wrk prints them at its end, pgbench into a log.

use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::latency::{Latencies, Latency};
use crate::workload::Reply;

/// wrk's script: random files at an even pace, and percentiles in one line, which wrk itself prints only up to the 99th.
pub const WRK_SCRIPT: &str = r#"
math.randomseed(1)
function request()
  return wrk.format("GET", string.format("/%05d", math.random(0, FILES - 1)))
end
function delay()
  return math.random(DELAY_MS / 2, DELAY_MS * 3 / 2)
end
function done(summary, latency)
  local e = summary.errors
  io.write(string.format("requests=%d errors=%d p50_us=%d p99_us=%d p999_us=%d max_us=%d\n", summary.requests,
    e.connect + e.read + e.write + e.status + e.timeout,
    latency:percentile(50), latency:percentile(99), latency:percentile(99.9), latency.max))
end
"#;

/// Latencies from wrk's output.
///
/// # Errors
/// When our line is not among it, nothing was served, or requests failed.
pub fn of_wrk(lines: &[String]) -> Result<Latency> {
    let line = lines.iter().rfind(|line| line.starts_with("requests=")).context("wrk printed no percentiles")?;
    let reply = Reply::of(line);
    ensure!(reply.whole("errors")? == 0 && reply.whole("requests")? > 0, "wrk: requests failed: {line}");
    Latency::of(&reply)
}

/// Latencies from the log of a pgbench, of the transactions that ended within a span of time (seconds since 1970).
///
/// The lines are `client transaction time_us script epoch_s epoch_us [lag_us]`; the last one may be cut off.
///
/// # Errors
/// When there is none of that time.
pub fn of_pgbench(log: &str, from_s: f64, to_s: f64) -> Result<Latency> {
    let mut times = Latencies::none()?;
    let whole = log.rfind('\n').map_or("", |end| &log[..end]);
    for line in whole.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [_, _, time_us, _, epoch_s, epoch_us, ..] = words[..] else { continue };
        let number = |word: &str| word.parse::<u64>().with_context(|| format!("pgbench's log: `{line}`"));
        let at = number(epoch_s)? as f64 + number(epoch_us)? as f64 / 1e6;
        if (from_s..=to_s).contains(&at) {
            times.add(Duration::from_micros(number(time_us)?));
        }
    }
    let latency = times.percentiles();
    ensure!(latency.requests > 0, "pgbench has logged nothing");
    Ok(latency)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrks_line_is_found_among_its_own_words() {
        let lines = ["Running 10s test", "requests=500 errors=0 p50_us=310 p99_us=1200 p999_us=9000 max_us=12000"];
        let latency = of_wrk(&lines.map(str::to_owned)).unwrap();
        assert_eq!((latency.requests, latency.p50_ms, latency.p999_ms), (500, 0.31, 9.0));
        let failed = ["requests=500 errors=1 p50_us=310 p99_us=1 p999_us=1 max_us=1".to_owned()];
        assert!(of_wrk(&failed).unwrap_err().to_string().starts_with("wrk: requests failed: requests=500 errors=1"));
        assert_eq!(of_wrk(&[]).unwrap_err().to_string(), "wrk printed no percentiles");
    }

    #[test]
    fn only_transactions_of_the_time_count_and_a_line_cut_off_does_not() {
        let log = "0 1 900000 0 99 500000 10\n0 2 2000 0 100 1 10\n1 1 4000 0 101 0 10\n1 2 7000 0 103 0 10\n0 3 99";
        let latency = of_pgbench(log, 100.0, 102.0).unwrap();
        assert_eq!(latency.requests, 2);
        assert!((latency.p50_ms - 2.0).abs() < 0.01 && (latency.max_ms - 4.0).abs() < 0.01, "{latency:?}");
        assert_eq!(of_pgbench(log, 200.0, 300.0).unwrap_err().to_string(), "pgbench has logged nothing");
        assert!(of_pgbench("a b c d e f\n", 0.0, 1.0).is_err());
    }
}
