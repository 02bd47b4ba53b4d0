//! Time until programs that share a cache access their lines equally fast.

use super::counts::Counts;

/// Ratio of the longest to the shortest access time up to which the times are even.
pub const EVEN: f64 = 1.05;

/// Checks after each pass whether the programs' access times are even.
#[derive(Clone, Debug, Default)]
pub struct Evenness {
    /// Accesses of a pass, between two checks (one or more passes), and until the next check.
    pass: u64,
    every: u64,
    left: u64,
    /// Counters at the last check.
    before: Vec<Counts>,
    /// Number of checks since the first plan, and the last uneven one.
    looks: u64,
    uneven_until: u64,
}

/// Least number of accesses between checks: over fewer, times differ at random.
const LOOK_MIN: u64 = 1 << 13;

impl Evenness {
    /// Checker for passes of this number of accesses of all programs, in a run that measures `measured` accesses.
    pub fn new(pass: u64, measured: u64) -> Evenness {
        let pass = pass.max(1);
        Evenness { pass, every: pass.max(measured / 64).max(LOOK_MIN), ..Evenness::default() }
    }

    /// Accesses between two checks.
    pub fn every(&self) -> u64 {
        self.every
    }

    /// Accesses until the next check; `None` before the start.
    pub fn next(&self) -> Option<u64> {
        (self.left > 0).then_some(self.left)
    }

    /// Starts at the current counters of the programs.
    pub fn begin(&mut self, counts: impl Iterator<Item = Counts>) {
        self.left = self.every;
        self.before = counts.collect();
    }

    /// Advances by at most [`Evenness::next`] accesses, to the current counters of the programs.
    pub fn ran(&mut self, accesses: u64, counts: impl Iterator<Item = Counts>) {
        if self.left == 0 {
            return;
        }
        self.left -= accesses;
        if self.left > 0 {
            return;
        }
        let now: Vec<Counts> = counts.collect();
        let times = now.iter().zip(&self.before).filter_map(|(now, before)| now.since(before).access_cycles());
        let (least, most) = times.fold((f64::INFINITY, 0.0), |(least, most), time| (time.min(least), time.max(most)));
        self.looks += 1;
        if most > least * EVEN {
            self.uneven_until = self.looks;
        }
        self.begin(now.into_iter());
    }

    /// Passes until the times became and stayed even; `None` if the last check found them uneven.
    pub fn passes_until_even(&self) -> Option<u64> {
        let even = self.uneven_until == 0 || self.uneven_until < self.looks;
        even.then(|| (self.uneven_until * self.every).div_ceil(self.pass))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_counts_is_the_last_pass_in_which_they_were_uneven() {
        let mut evenness = Evenness::new(10_000, 0);
        let mut both = [Counts::default(); 2];
        evenness.begin(both.into_iter());
        for (second, expected) in [(50.0, None), (40.0, Some(1)), (42.1, None), (42.0, Some(3))] {
            for (counts, time) in both.iter_mut().zip([40.0, second]) {
                counts.accesses += 5000;
                counts.cycles += 5000.0 * time;
            }
            assert_eq!(evenness.next(), Some(10_000));
            evenness.ran(10_000, both.into_iter());
            assert_eq!(evenness.passes_until_even(), expected, "{second}");
        }
    }
}
