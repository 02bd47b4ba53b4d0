//! Latency of single requests while the server is busy with others.
//!
//! Cycles begin at fixed intervals, whether or not the previous one was late: a request that is timed, then a batch of
//! pipelined ones, which keep the server's memory in use. The interval leaves the server some idle time
//! ([`Asker::interval`]): at full load, a queue would be measured. A request is timed from the scheduled begin of its cycle, so the delay behind
//! a stall is counted.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde::Serialize;

use crate::latency::{Latencies, Latency};
use crate::pairs::median;
use crate::random::Keys;
use crate::redis::client::{Client, DEPTH};
use crate::stop::Stop;
use units::spread::Random;

/// Latency of the timed requests, and rate of all.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Answered {
    #[serde(flatten)]
    pub latency: Latency,
    pub gets_per_s: f64,
}

/// Asks one server for keys.
pub struct Asker<'a> {
    pub client: &'a mut Client,
    pub keys: &'a Keys,
    pub value_bytes: usize,
    pub stop: &'a Stop,
}

impl Asker<'_> {
    /// Interval of cycles that uses `part` of the server's capacity, measured over `time`.
    ///
    /// # Errors
    /// When an answer is wrong, the server is gone, or we are interrupted.
    pub fn interval(&mut self, part: f64, time: Duration) -> Result<Duration> {
        let (mut cycles, mut random, begun) = (Vec::new(), Random::seeded(7), Instant::now());
        while begun.elapsed() < time {
            let started = Instant::now();
            self.timed(&mut random)?;
            self.batch(&mut random)?;
            cycles.push(started.elapsed().as_secs_f64());
        }
        let middle = median(&cycles).context("not a single cycle")?;
        Ok(Duration::from_secs_f64(middle / part))
    }

    /// Times single requests, one each `interval`, while `go_on`, called once a cycle, returns true.
    ///
    /// # Errors
    /// As [`Asker::interval`].
    pub fn measure(&mut self, interval: Duration, mut go_on: impl FnMut() -> bool) -> Result<Answered> {
        let (mut times, mut random, begun) = (Latencies::none()?, Random::seeded(8), Instant::now());
        let mut due = begun;
        while go_on() {
            thread::sleep(due.saturating_duration_since(Instant::now()));
            self.timed(&mut random)?;
            times.add(due.elapsed());
            self.batch(&mut random)?;
            due += interval;
        }
        let latency = times.percentiles();
        let gets_per_s = (latency.requests * (DEPTH as u64 + 1)) as f64 / begun.elapsed().as_secs_f64();
        Ok(Answered { latency, gets_per_s })
    }

    fn timed(&mut self, random: &mut Random) -> Result<()> {
        self.stop.check()?;
        let keys = self.keys.draw(1, random);
        self.client.get(keys[0], self.value_bytes)
    }

    fn batch(&mut self, random: &mut Random) -> Result<()> {
        let keys = self.keys.draw(DEPTH, random);
        self.client.get_pipelined(&keys, self.value_bytes)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use super::*;
    use crate::redis::keys::token;

    const VALUE_BYTES: usize = 16;

    /// Answers GETs, one after the other; the `stalled` one late by `stall`.
    fn server(mut theirs: std::os::unix::net::UnixStream, stalled: usize, stall: Duration) {
        let mut request = [0; b"*2\r\n$3\r\nGET\r\n$14\r\nkey:0000000000\r\n".len()];
        for number in 0.. {
            if theirs.read_exact(&mut request).is_err() {
                return;
            }
            if number == stalled {
                thread::sleep(stall);
            }
            let digits = std::str::from_utf8(&request[request.len() - 12..request.len() - 2]).unwrap();
            let value: Vec<u8> = token(digits.parse().unwrap()).into_iter().cycle().take(VALUE_BYTES).collect();
            let answer = [format!("${VALUE_BYTES}\r\n").as_bytes(), &value, b"\r\n"].concat();
            if theirs.write_all(&answer).is_err() {
                return;
            }
        }
    }

    #[test]
    fn what_a_stall_keeps_waiting_counts_from_when_it_was_due() {
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        let stall = Duration::from_millis(400);
        // The batch of the tenth cycle stalls: no timed request does, and the cycles after it begin late.
        let answering = thread::spawn(move || server(theirs, 10 * (DEPTH + 1) + 5, stall));
        let mut client = Client::over(ours);
        let keys = Keys::over(100, None);
        let stop = Stop::default();
        let mut asker = Asker { client: &mut client, keys: &keys, value_bytes: VALUE_BYTES, stop: &stop };
        let mut cycles = 0;
        let answered = asker.measure(Duration::from_millis(20), || {
            cycles += 1;
            cycles <= 60
        });
        let latency = answered.unwrap().latency;
        drop(client);
        answering.join().unwrap();
        assert_eq!(latency.requests, 60);
        assert!(latency.max_ms >= 350.0 && latency.p50_ms < latency.max_ms / 2.0, "{latency:?}");
    }
}
