//! Session parameters of a tracked program, and their bounds. Pure.

/// Process, signal, thresholds and periods.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Terms {
    /// Process to watch, in the client's PID namespace; 0 for the client itself.
    pub pid: i32,
    /// Signal for notifications, 0 for none.
    pub signal: i32,
    /// The program has a deciding function, so nothing is promoted without its verdict.
    pub decides: bool,
    /// Number of active pages from which the program is notified.
    pub threshold_pages: u64,
    /// Length of one observation.
    pub period_ms: u32,
    /// Least time from the beginning of one observation to that of the next.
    pub every_ms: u32,
    /// Page walks per second from which a page is active.
    pub hot_rate: f64,
    /// Fraction of a window's 512 pages that must be active for a huge page.
    pub hot_fraction: f64,
    /// Memory that promotion may add, as a fraction of the resident memory.
    pub max_extra_rss: f64,
}

/// Defaults: as `masu attach`.
pub const USUAL: Terms = Terms {
    pid: 0,
    signal: 0,
    decides: false,
    threshold_pages: 1,
    period_ms: 1280,
    every_ms: 0,
    hot_rate: 0.1,
    hot_fraction: 0.25,
    max_extra_rss: 0.01,
};

/// Shortest observation: that of the first scan.
pub const PERIOD_MS_MIN: u32 = 10;

/// Longest observation: ten minutes.
pub const PERIOD_MS_MAX: u32 = 600_000;

/// Longest time between two observations: a day.
pub const EVERY_MS_MAX: u32 = 86_400_000;

/// First signal that can be queued (SIGRTMIN of the C libraries, which reserve the lower ones) …
pub const SIGNAL_MIN: i32 = 34;

/// … and the last (SIGRTMAX).
pub const SIGNAL_MAX: i32 = 64;

impl Terms {
    /// Whether every value lies within its bounds.
    pub fn are_sound(&self) -> bool {
        let is_part = |value: f64| value > 0.0 && value <= 1.0;
        self.pid >= 0
            && (self.signal == 0 || (SIGNAL_MIN..=SIGNAL_MAX).contains(&self.signal))
            && self.threshold_pages > 0
            && (PERIOD_MS_MIN..=PERIOD_MS_MAX).contains(&self.period_ms)
            && self.every_ms <= EVERY_MS_MAX
            && self.hot_rate.is_finite()
            && self.hot_rate >= 0.0
            && is_part(self.hot_fraction)
            && (self.max_extra_rss == 0.0 || is_part(self.max_extra_rss))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_usual_terms_are_sound_and_each_bound_holds() {
        assert!(USUAL.are_sound());
        let bad = [
            Terms { pid: -1, ..USUAL },
            Terms { signal: 9, ..USUAL },
            Terms { signal: 65, ..USUAL },
            Terms { threshold_pages: 0, ..USUAL },
            Terms { period_ms: 9, ..USUAL },
            Terms { period_ms: 600_001, ..USUAL },
            Terms { every_ms: 86_400_001, ..USUAL },
            Terms { hot_rate: -0.1, ..USUAL },
            Terms { hot_rate: f64::NAN, ..USUAL },
            Terms { hot_rate: f64::INFINITY, ..USUAL },
            Terms { hot_fraction: 0.0, ..USUAL },
            Terms { hot_fraction: 1.1, ..USUAL },
            Terms { hot_fraction: f64::NAN, ..USUAL },
            Terms { max_extra_rss: -0.1, ..USUAL },
            Terms { max_extra_rss: f64::NAN, ..USUAL },
        ];
        for terms in bad {
            assert!(!terms.are_sound(), "{terms:?}");
        }
        assert!(Terms { max_extra_rss: 0.0, hot_rate: 0.0, ..USUAL }.are_sound());
    }
}
