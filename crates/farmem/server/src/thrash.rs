//! Programs that spend their time on waiting for stored pages, told while they run. Pure.

use std::time::Duration;

use linux::Untrusted;
use units::Bytes;

use crate::report::WorkingSet;

/// Period that is judged.
const PERIOD: Duration = Duration::from_secs(10);

/// Least part of the period that the program waits, as the sum over its threads.
const WAITING_MIN: f64 = 0.5;

/// Least rate of faults on stored pages, per second. Fewer faults of the same duration are a slow store.
const FAULTS_MIN: f64 = 500.0;

/// Counters at one moment.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reading {
    /// Time since the program's start.
    pub at: Duration,
    /// Time that its threads have waited for pages, in seconds.
    pub waited_s: f64,
    /// Faults on stored pages.
    pub faults_stored: u64,
}

/// Judgement of one program, which is told once.
#[derive(Clone, Debug, Default)]
pub struct Thrash {
    begin: Reading,
    is_said: bool,
}

/// Period in which a program thrashed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Thrashed {
    /// Its duration, in seconds.
    pub period_s: f64,
    /// Time in it that threads waited for pages, in seconds.
    pub waited_s: f64,
    /// Faults on stored pages in it.
    pub faults: u64,
}

impl Thrash {
    /// Takes a reading. The result comes at the end of a period, and for the first such period only.
    pub fn look(&mut self, now: Reading) -> Option<Thrashed> {
        let period = now.at.saturating_sub(self.begin.at);
        if self.is_said || period < PERIOD {
            return None;
        }
        let seconds = period.as_secs_f64();
        let begin = std::mem::replace(&mut self.begin, now);
        let waited_s = now.waited_s - begin.waited_s;
        let faults = now.faults_stored.saturating_sub(begin.faults_stored);
        // A period that is much longer had a stop in it: rates of it tell nothing.
        let is_judged = period < PERIOD * 2;
        self.is_said = is_judged && waited_s >= seconds * WAITING_MIN && faults as f64 >= seconds * FAULTS_MIN;
        self.is_said.then_some(Thrashed { period_s: seconds, waited_s, faults })
    }
}

impl Thrashed {
    /// One sentence for the user, with the local memory that would be enough where it is known.
    pub fn text(
        &self,
        name: &Untrusted,
        process: u32,
        set: Option<&WorkingSet>,
        local: Bytes,
        touched: Bytes,
    ) -> String {
        let Thrashed { period_s, waited_s, faults } = self;
        let advice = match set {
            Some(set) => format!("it {}", set.text()),
            None => format!("it has touched {touched} and has --local {local}: more would do"),
        };
        format!(
            "{name} (process {process}) thrashes: in {period_s:.0} s its threads waited {waited_s:.1} s for pages, with \
             {faults} faults from the store; {advice}"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn looks(readings: &[(u64, f64, u64)]) -> Vec<bool> {
        let mut thrash = Thrash::default();
        let reading = |&(at, waited_s, faults_stored)| Reading { at: Duration::from_secs(at), waited_s, faults_stored };
        readings.iter().map(|of| thrash.look(reading(of)).is_some()).collect()
    }

    #[test]
    fn a_period_of_waiting_and_of_many_faults_is_told_once() {
        assert_eq!(looks(&[(5, 5.0, 90_000), (10, 9.0, 200_000), (20, 19.0, 400_000)]), [false, true, false]);
        // It begins late: the start of the program counts no more.
        assert_eq!(looks(&[(10, 0.1, 0), (20, 0.2, 10), (30, 7.0, 20_000)]), [false, false, true]);
    }

    #[test]
    fn a_slow_store_a_busy_program_and_a_stop_are_no_thrash() {
        assert_eq!(looks(&[(10, 10.0, 40)]), [false]);
        assert_eq!(looks(&[(10, 2.0, 90_000)]), [false]);
        assert_eq!(looks(&[(60, 50.0, 900_000)]), [false]);
        assert_eq!(looks(&[(10, f64::NAN, u64::MAX)]), [false]);
    }

    #[test]
    fn the_sentence_has_the_size_that_would_do() {
        let thrashed = Thrashed { period_s: 10.0, waited_s: 8.04, faults: 31_000 };
        let (name, mib) = (Untrusted::from("sort"), Bytes::mib);
        let set = WorkingSet {
            program: name.clone(),
            process: 7,
            bytes: mib(310),
            local_bytes: mib(320),
            faults: 13_000,
            faults_now: 2_000_000,
        };
        assert_eq!(
            thrashed.text(&name, 7, Some(&set), mib(64), mib(456)),
            "sort (process 7) thrashes: in 10 s its threads waited 8.0 s for pages, with 31000 faults from the store; \
             it goes round in 310.0 MiB; with --local 320MiB it would fault about 13000 times from the store instead of \
             2000000 times"
        );
        let unknown = thrashed.text(&name, 7, None, mib(64), mib(456));
        assert!(unknown.ends_with("it has touched 456.0 MiB and has --local 64.0 MiB: more would do"), "{unknown}");
    }
}
