//! What a program asks to be watched for, and within which bounds. Pure.

/// Of whom, for what and how often.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Terms {
    /// The process to watch, as it sees itself; 0 for the one that asks.
    pub pid: i32,
    /// The signal by which it is told, 0 for none.
    pub signal: i32,
    /// It has a function that decides, so nothing is promoted without its word.
    pub decides: bool,
    /// It is told when so many pages are active.
    pub threshold_pages: u64,
    /// How long one observation takes.
    pub period_ms: u32,
    /// From the beginning of one observation to that of the next, at least.
    pub every_ms: u32,
    /// A page is active that is walked to so often in a second.
    pub hot_rate: f64,
    /// Of a window's 512 pages the part that must be active for a huge page.
    pub hot_fraction: f64,
    /// What promotion may add, as a part of the resident memory.
    pub max_extra_rss: f64,
}

/// What holds when nothing else is asked for: as `masu attach`.
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

/// The shortest observation: that of the first look.
pub const PERIOD_MS_MIN: u32 = 10;

/// The longest: ten minutes.
pub const PERIOD_MS_MAX: u32 = 600_000;

/// The longest time between two: a day.
pub const EVERY_MS_MAX: u32 = 86_400_000;

/// Signals that can be queued are from here on (SIGRTMIN of the C libraries, which keep the ones below for themselves) …
pub const SIGNAL_MIN: i32 = 34;

/// … up to here (SIGRTMAX).
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
