//! Choice of huge windows to split because they waste memory, and time of the next scan.
//!
//! A program that gets huge pages at the first touch pays for all 512 pages of a window when it touches one. Its
//! untouched pages hold zeros. So
//!
//! ```text
//! extra   = Σ zero pages of the huge windows
//! allowed = max_extra_rss · (resident memory − extra)
//! ```
//!
//! and while `extra` is more than `allowed`, windows are split, those with the most zero pages first.
//!
//! There is no paper behind this. The kernel's own shrinker (Linux 6.12, `max_ptes_none`) splits huge pages with many
//! zero pages too, but only when memory runs short, and without asking the program. Our additions:
//! - **Hysteresis.** A window that is just being filled is left alone. Samples must have been the same for one scan
//!   ([`HugeWindow::is_still`]), then two exact counts `still_for` apart must be the same ([`HugeWindow::count`]).
//! - **No oscillation.** A window that was split and is huge again must keep still for 2, 4, 8, 16 scans. Not
//!   for longer: khugepaged makes thin windows huge again where the program asked for huge pages, eight of them every
//!   ten seconds, and for ever. So it is never more than some dozen windows ahead. A window whose count fell after it
//!   was counted is being filled, and must keep still for up to 64.
//! - **Moves.** A window that the program moves keeps its age and its last count ([`moved`]).
//! - **Cost.** Unchanged windows are scanned at growing intervals; the pause after a scan grows with its cost.
//!
//! No I/O, no clock, no randomness.

pub mod moved;

use std::time::Duration;

use units::{Bytes, Fraction, NonZeroFraction, PAGES_PER_WINDOW, Pages, Window};

/// Settings of the policy.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// Memory that huge pages may waste, as a fraction of the memory resident without the waste.
    pub max_extra_rss: Fraction,
    /// Interval over which two exact counts must be the same.
    pub still_for: Duration,
    /// Time between two scans: at first, and when nothing changes any more.
    pub scan_every: (Duration, Duration),
    /// Largest fraction of one processor for scanning.
    pub scan_fraction: NonZeroFraction,
    /// Longest time between two scans, at any cost.
    pub scan_every_max: Duration,
    /// Scans within which an unchanged window is sampled at least once.
    pub sample_every_max: u64,
    /// Largest fraction of the time for counting and splitting.
    pub busy_fraction: NonZeroFraction,
    /// Windows counted or split in one batch.
    pub windows_at_once: usize,
}

/// Values used for the measurements; without an allowance, which is the user's.
pub const MEASURED: Settings = Settings {
    max_extra_rss: Fraction::ZERO,
    still_for: Duration::from_secs(1),
    scan_every: (Duration::from_secs(1), Duration::from_secs(10)),
    scan_fraction: NonZeroFraction::ratio(1, 100),
    scan_every_max: Duration::from_secs(600),
    sample_every_max: 16,
    busy_fraction: NonZeroFraction::ratio(1, 4),
    windows_at_once: 64,
};

/// Pages of a window per sampled page.
pub const PAGES_PER_SAMPLE: usize = 8;

/// Pages that one sample of a window reads.
pub const SAMPLES: usize = PAGES_PER_WINDOW / PAGES_PER_SAMPLE;

/// Doublings of the required stillness for a window that was split before.
const TIMES_SPLIT_MAX: u32 = 4;

/// Doublings of the required stillness for a window whose count fell.
const DISTURBED_MAX: u32 = 6;

/// State of one huge window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HugeWindow {
    /// Number of the [`SAMPLES`] sampled pages that seemed to hold only zeros.
    sampled: Pages,
    /// Number of the first scan since which there was no change.
    still_since: u64,
    /// Scan at which it is sampled again.
    due: u64,
    /// The last exact count, if the samples did not change since.
    counted: Option<Counted>,
    /// Number of splits after which it became huge again.
    times_split: u32,
    /// Times that it was found disturbed: its count fell, or a fork came to share it.
    disturbed: u32,
}

/// An exact count of zero pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Counted {
    zero: Pages,
    /// Time at which this figure was first found.
    since: Duration,
    /// Counted at another address, and not certainly in the same window.
    is_elsewhere: bool,
}

/// Result of an exact count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finding {
    /// The same as `still_for` ago: it may be split.
    Stable,
    /// Changed, or not known for long enough.
    Unstable,
    /// No memory to gain.
    Full,
}

impl HugeWindow {
    /// A window first seen huge in `scan`, split `times_split` times before.
    pub fn first(sampled: Pages, scan: u64, times_split: u32) -> HugeWindow {
        HugeWindow { sampled, still_since: scan, due: scan + 1, counted: None, times_split, disturbed: 0 }
    }

    /// Whether it is to be sampled in `scan`.
    pub fn is_due(&self, scan: u64) -> bool {
        scan >= self.due
    }

    /// Adds another sample. True when it differs from the last.
    pub fn sample(&mut self, sampled: Pages, scan: u64, s: Settings) -> bool {
        let changed = sampled != self.sampled;
        if changed {
            (self.sampled, self.still_since, self.counted) = (sampled, scan, None);
        }
        self.due = next_sample(self.still_since, scan, s);
        changed
    }

    /// Adds an exact count at the time `now`, in `scan`.
    pub fn count(&mut self, zero: Pages, now: Duration, scan: u64, s: Settings) -> Finding {
        match &mut self.counted {
            Some(counted) if counted.zero == zero => {
                counted.is_elsewhere = false;
                let is_stable = zero > Pages(0) && now.saturating_sub(counted.since) >= s.still_for;
                return if is_stable { Finding::Stable } else { Finding::of_unstable(zero) };
            }
            Some(counted) if !counted.is_elsewhere => self.disturb(scan),
            Some(_) | None => {}
        }
        self.counted = Some(Counted { zero, since: now, is_elsewhere: false });
        Finding::of_unstable(zero)
    }

    /// Records that the window is being written: earlier samples are void, and the required stillness grows.
    pub fn disturb(&mut self, scan: u64) {
        self.disturbed = self.disturbed.saturating_add(1);
        (self.still_since, self.due) = (scan, scan + 1);
    }

    /// Forgets for how long it was unchanged, in `scan`: the program could not run.
    pub fn halted(&mut self, scan: u64) {
        (self.still_since, self.due, self.counted) = (scan, scan + 1, None);
    }

    /// The window at another address, where it is sampled in `scan`. `is_certain`: it is the same huge page.
    #[must_use]
    pub fn moved(self, scan: u64, is_certain: bool) -> HugeWindow {
        let counted = self.counted.map(|counted| Counted { is_elsewhere: !is_certain, ..counted });
        HugeWindow { due: scan, counted, ..self }
    }

    /// Sampled pages that seemed to hold only zeros, at the last sample.
    pub fn sampled(&self) -> Pages {
        self.sampled
    }

    /// Best known number of its zero pages.
    pub fn zero(&self) -> Pages {
        self.counted.map_or(Pages(self.sampled.0 * PAGES_PER_SAMPLE as u64), |counted| counted.zero)
    }

    /// Whether no change was seen for long enough to count it. Never in the scan that saw it first.
    pub fn is_still(&self, scan: u64) -> bool {
        let doublings = self.times_split.min(TIMES_SPLIT_MAX).max(self.disturbed.min(DISTURBED_MAX));
        scan.saturating_sub(self.still_since) >= 1 << doublings
    }
}

impl Finding {
    fn of_unstable(zero: Pages) -> Finding {
        if zero == Pages(0) { Finding::Full } else { Finding::Unstable }
    }
}

/// Scan at which to sample a window unchanged since the scan `since`: after as many scans as it kept still.
pub fn next_sample(since: u64, scan: u64, s: Settings) -> u64 {
    scan + scan.saturating_sub(since).clamp(1, s.sample_every_max.max(1))
}

/// Windows to split.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Choice {
    /// Memory that huge windows waste.
    pub extra: Bytes,
    /// Allowance for it.
    pub allowed: Bytes,
    /// Windows to split, the thinnest first.
    pub windows: Vec<Window>,
}

/// Chooses from the huge windows of a program with `resident` memory. The same input always gives the same choice.
pub fn choose<'a>(
    huge: impl IntoIterator<Item = (&'a Window, &'a HugeWindow)>,
    resident: Bytes,
    scan: u64,
    s: Settings,
) -> Choice {
    let mut extra = Bytes(0);
    let mut still: Vec<(Pages, Window)> = Vec::new();
    for (window, known) in huge {
        let zero = known.zero();
        extra += zero.bytes();
        if zero > Pages(0) && known.is_still(scan) {
            still.push((zero, *window));
        }
    }
    let allowed = resident.saturating_sub(extra).scaled(s.max_extra_rss.get());
    let mut windows = Vec::new();
    if extra > allowed {
        still.sort_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(&b.1)));
        // A split leaves `resident − extra` as it is, and so the allowance.
        let mut rest = extra;
        for (zero, window) in still {
            if rest <= allowed {
                break;
            }
            rest = rest.saturating_sub(zero.bytes());
            windows.push(window);
        }
    }
    Choice { extra, allowed, windows }
}

/// Processor time of a round.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spent {
    /// Finding the huge windows and sampling them.
    pub scanning: Duration,
    /// Counting, splitting, promoting again.
    pub acting: Duration,
}

/// Wait after a scan, when the `quiet` scans up to it showed no change. The wait doubles, from the shorter of
/// `scan_every` to the longer, and is always long enough to keep scanning within its part of the processor.
pub fn next_scan(quiet: u32, spent: Spent, s: Settings) -> Duration {
    let (first, last) = s.scan_every;
    let due = first.saturating_mul(1 << quiet.min(20)).min(last);
    let affordable = spent.scanning.div_f64(s.scan_fraction.get()).min(s.scan_every_max);
    due.max(affordable).max(next_batch(spent, s))
}

/// Wait in the middle of a round's work, so that it takes no more than its part of the time.
pub fn next_batch(spent: Spent, s: Settings) -> Duration {
    spent.acting.mul_f64(1.0 / s.busy_fraction.get() - 1.0)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    const S: Settings = MEASURED;
    const SECOND: Duration = Duration::from_secs(1);

    fn tenth() -> Settings {
        Settings { max_extra_rss: Fraction::clamped(0.1), ..S }
    }

    /// Windows unchanged since scan 1, by the samples that seemed zero.
    fn windows(sampled: &[u64]) -> BTreeMap<Window, HugeWindow> {
        (1..).map(Window).zip(sampled.iter().map(|n| HugeWindow::first(Pages(*n), 1, 0))).collect()
    }

    #[test]
    fn the_thinnest_windows_go_first_and_only_until_the_rest_fits() {
        // Four windows of 512 pages and 1,024 elsewhere. Zero: 64 + 448 + 128 + 448 = 1,088; allowed: a tenth of
        // 3,072 − 1,088, that is 198 pages. Without the two of 448 the rest is 192.
        let huge = windows(&[8, 56, 16, 56]);
        let choice = choose(&huge, Pages(3072).bytes(), 2, tenth());
        assert_eq!((choice.extra, choice.allowed.pages()), (Pages(1088).bytes(), Pages(198)));
        assert_eq!(choice.windows, [Window(2), Window(4)]);
    }

    #[test]
    fn what_fits_is_left_alone() {
        // 200 of 2,200: exactly a tenth of the 2,000 others.
        let huge = windows(&[25]);
        assert_eq!(choose(&huge, Pages(2200).bytes(), 2, tenth()).windows, []);
        assert_eq!(choose(&huge, Pages(2199).bytes(), 2, tenth()).windows, [Window(1)]);
    }

    #[test]
    fn a_window_is_not_chosen_in_the_scan_that_sees_it_first_nor_when_it_has_just_changed() {
        let mut huge = windows(&[56]);
        let chosen =
            |huge: &BTreeMap<Window, HugeWindow>, scan| choose(huge, Pages(512).bytes(), scan, S).windows.len();
        assert_eq!([1, 2].map(|scan| chosen(&huge, scan)), [0, 1]);
        for known in huge.values_mut() {
            assert!(known.sample(Pages(55), 2, S));
        }
        assert_eq!([2, 3].map(|scan| chosen(&huge, scan)), [0, 1]);
    }

    #[test]
    fn a_window_that_is_huge_again_must_keep_still_for_two_four_eight_scans() {
        for (times_split, scans) in [(0, 1), (1, 2), (2, 4), (3, 8), (100, 16)] {
            let known = HugeWindow::first(Pages(56), 10, times_split);
            assert!(!known.is_still(10 + scans - 1) && known.is_still(10 + scans), "{times_split}");
        }
    }

    #[test]
    fn two_counts_a_second_apart_must_be_the_same() {
        let mut known = HugeWindow::first(Pages(56), 1, 0);
        assert_eq!(known.count(Pages(440), SECOND, 2, S), Finding::Unstable);
        assert_eq!(known.count(Pages(440), SECOND * 3 / 2, 2, S), Finding::Unstable);
        assert_eq!(known.count(Pages(440), SECOND * 2, 3, S), Finding::Stable);
        assert_eq!(known.zero(), Pages(440), "what was counted is better than what was sampled");
    }

    #[test]
    fn a_count_that_fell_starts_the_waiting_anew_and_makes_it_longer() {
        let mut known = HugeWindow::first(Pages(56), 1, 0);
        known.count(Pages(440), SECOND, 2, S);
        assert_eq!(known.count(Pages(439), SECOND * 2, 3, S), Finding::Unstable);
        assert!(!known.is_still(4) && known.is_still(5));
        assert_eq!(known.count(Pages(439), SECOND * 4, 5, S), Finding::Stable);
        for scan in 0..100 {
            known.disturb(scan);
        }
        assert!(!known.is_still(99 + 63) && known.is_still(99 + 64));
    }

    #[test]
    fn a_moved_window_keeps_its_age_and_its_count() {
        let known = HugeWindow::first(Pages(56), 1, 0);
        let moved = known.moved(2, false);
        assert!(moved.is_due(2) && moved.is_still(2));
        let mut counted = known;
        counted.count(Pages(440), SECOND, 2, S);
        for is_certain in [false, true] {
            assert_eq!(counted.moved(3, is_certain).count(Pages(440), SECOND * 2, 3, S), Finding::Stable);
            let mut changed = counted.moved(3, is_certain);
            assert_eq!(changed.count(Pages(439), SECOND * 2, 3, S), Finding::Unstable);
            assert_eq!(changed.is_still(4), !is_certain, "another window is not one that is being filled");
        }
    }

    #[test]
    fn time_in_which_the_program_could_not_run_is_no_stillness() {
        let mut known = HugeWindow::first(Pages(56), 1, 0);
        known.count(Pages(440), SECOND, 2, S);
        known.halted(3);
        assert!(!known.is_still(3) && known.is_still(4));
        assert_eq!(known.count(Pages(440), SECOND * 100, 4, S), Finding::Unstable);
        assert_eq!(known.count(Pages(440), SECOND * 101, 5, S), Finding::Stable);
    }

    #[test]
    fn a_window_whose_zeros_were_only_in_the_samples_is_full_and_not_chosen_again() {
        let mut huge = windows(&[64]);
        for known in huge.values_mut() {
            assert_eq!(known.count(Pages(0), SECOND, 2, S), Finding::Full);
            assert_eq!(known.count(Pages(0), SECOND * 9, 3, S), Finding::Full);
        }
        assert_eq!(choose(&huge, Pages(512).bytes(), 9, S), Choice::default());
    }

    #[test]
    fn what_keeps_still_is_sampled_ever_more_seldom() {
        let mut known = HugeWindow::first(Pages(3), 0, 0);
        let mut sampled = Vec::new();
        for scan in 1..70 {
            if known.is_due(scan) {
                known.sample(Pages(3), scan, S);
                sampled.push(scan);
            }
        }
        assert_eq!(sampled, [1, 2, 4, 8, 16, 32, 48, 64]);
    }

    #[test]
    fn the_pause_doubles_to_ten_seconds_while_nothing_changes() {
        let seconds = |quiet| next_scan(quiet, Spent::default(), S).as_secs();
        assert_eq!([0, 1, 2, 3, 4, 100].map(seconds), [1, 2, 4, 8, 10, 10]);
    }

    #[test]
    fn a_scan_of_50_ms_is_followed_by_5_seconds_and_work_of_a_second_by_3() {
        let scanned = Spent { scanning: Duration::from_millis(50), acting: Duration::ZERO };
        let worked = Spent { scanning: Duration::ZERO, acting: SECOND };
        assert_eq!(next_scan(0, scanned, S), SECOND * 5);
        assert_eq!(next_scan(0, worked, S), SECOND * 3);
        assert_eq!(next_scan(0, Spent { scanning: SECOND * 60, ..scanned }, S), SECOND * 600);
    }

    proptest! {
        #[test]
        fn the_rest_fits_or_all_that_may_be_split_is_chosen(
            sampled in prop::collection::vec(0u64..=64, 0..40),
            elsewhere in 0u64..100_000,
            allowance in 0.0f64..1.0,
        ) {
            let huge = windows(&sampled);
            let resident = Pages(elsewhere + 512 * sampled.len() as u64).bytes();
            let s = Settings { max_extra_rss: Fraction::clamped(allowance), ..S };
            let choice = choose(&huge, resident, 2, s);
            let zero = |window: &Window| huge[window].zero();
            let back: Bytes = choice.windows.iter().map(|window| zero(window).bytes()).sum();
            let left = choice.extra.saturating_sub(back);
            prop_assert!(left <= choice.allowed, "{left} of {}", choice.allowed);
            // And not one more than needed; none for nothing; none thicker than one that stays.
            if let Some(last) = choice.windows.last() {
                prop_assert!(left + zero(last).bytes() > choice.allowed && zero(last) > Pages(0));
                let stays = huge.keys().filter(|window| !choice.windows.contains(window));
                prop_assert!(stays.map(zero).max().unwrap_or_default() <= zero(last));
            }
        }

        #[test]
        fn a_window_that_changes_at_every_scan_is_never_chosen(samples in prop::collection::vec(0u64..=64, 2..40)) {
            let mut known = HugeWindow::first(Pages(64), 0, 0);
            for (scan, sampled) in (1..).zip(samples) {
                if known.is_due(scan) && known.sample(Pages(sampled), scan, S) {
                    prop_assert!(!known.is_still(scan));
                }
            }
        }

        #[test]
        fn scanning_never_costs_more_than_its_part(scanning_us in 0u64..5_000_000, quiet in 0u32..40) {
            let scanning = Duration::from_micros(scanning_us);
            let pause = next_scan(quiet, Spent { scanning, acting: Duration::ZERO }, S);
            prop_assert!(scanning.as_secs_f64() <= pause.as_secs_f64() * S.scan_fraction.get() + 1e-9);
            prop_assert!(pause >= S.scan_every.0);
        }
    }
}
