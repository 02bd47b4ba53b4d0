//! Aging policy of each class: effect of the protection level, amount to mlock, and time of unlocking.
//!
//! Oshima, Aoki and Arai, section 5: pages are aged by their list, each list at its own rate, and `mapped_page_cost`
//! sets the rates.
//!
//! | paper                              | here                        | unit                                          |
//! | `mapped_page_cost`                 | [`Level`]                    | 0 (as all others) to 100 (not aged)           |
//! | rate of aging of active-mapped     | [`Level::rate`]              | part of the time under pressure               |
//! | stopping the aging (100)           | [`is_protected`], always    |                                               |
//! | one list for mapped pages          | four classes, a level each  |                                               |
//!
//! We differ. The paper scans a list less often. From user space a page can only be on its lists or off them: mlocked.
//! A class at level d is therefore in the protected phase (off the lists) for d % of the time under reclaim, and in the
//! exposed phase (on the lists) for the rest. This duty cycle ages it at (100 − d)/100 of the kernel's rate. In the
//! exposed phase the kernel's second chance keeps pages in use and evicts idle pages, so protection is earned again in
//! every cycle. Time without reclaim does not count, because nothing ages then.
//!
//! Split lists may keep pages that are used less than the evicted ones. Three things bound that: the duty cycle, the
//! budget, and [`must_unlock`]: mlocked pages are the first to be released when headroom runs short.
//!
//! No I/O, no clock, no randomness.

use std::time::Duration;

use units::{Bytes, Fraction, Pages};

use crate::class::Class;
use crate::levels::Level;
use crate::shares::{Claim, Owner, Owners, Pieces, divide};

/// Length of the exposed phase of the duty cycle, in time under pressure.
pub const EXPOSED: Duration = Duration::from_secs(60);

/// Length of the protected phase before it: [`EXPOSED`] · d / (100 − d), so that the exposed part of the time is (100 −
/// d)/100. `None`: for ever.
pub fn protected_for(level: Level) -> Option<Duration> {
    let (d, rest) = (f64::from(level.get()), f64::from(100 - level.get()));
    (rest > 0.0).then(|| EXPOSED.mul_f64(d / rest))
}

/// Is a class in the protected phase, after this time under pressure? The cycle begins with the protected phase.
pub fn is_protected(level: Level, reclaim_time: Duration) -> bool {
    let Some(protected) = protected_for(level) else { return true };
    let cycle = (protected + EXPOSED).as_nanos();
    reclaim_time.as_nanos() % cycle < protected.as_nanos()
}

/// Swappiness for the class of data at a protection level: 0 swaps no data at all, as level 100 asks for; otherwise the
/// host's own weight at the class's rate. A group that meets its limit and may not swap has its programs killed.
/// Therefore 0 is written only for an explicit level 100, and never `gently`.
pub fn swappiness(level: Level, normal: u32, gently: bool) -> u32 {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 0 and `normal`")]
    let weight = (f64::from(normal) * level.rate()).round() as u32;
    // Only level 100 stops the aging.
    if level == Level::NEVER && !gently { 0 } else { weight.max(1).min(normal.max(1)) }
}

/// Memory of the host, or of a control group with a limit, and its headroom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Headroom {
    /// Memory limit in all.
    pub limit: Bytes,
    /// Headroom: free memory up to the limit, and reclaimable files that are not mlocked.
    pub left: Bytes,
}

/// Low watermark of the headroom. Pages are unlocked below it.
///
/// A program fills new memory at some 2 GiB/s. The smallest watermark lasts for 30 ms, enough for two checks
/// ([`check_after`]).
pub fn low_watermark(limit: Bytes) -> Bytes {
    const LEAST: Bytes = Bytes::mib(64);
    limit.scaled(1.0 / 16.0).max(LEAST)
}

/// Delay of the next check: half the time to fill the headroom at 4 GiB/s, twice the measured rate.
pub fn check_after(left: Bytes) -> Duration {
    const FASTEST_PER_S: f64 = 4.0 * (1u64 << 30) as f64;
    const SOONEST: Duration = Duration::from_millis(5);
    const LATEST: Duration = Duration::from_millis(200);
    #[expect(clippy::cast_precision_loss, reason = "a time to the millisecond")]
    let half = left.0 as f64 / FASTEST_PER_S / 2.0;
    Duration::from_secs_f64(half).clamp(SOONEST, LATEST)
}

/// Share of time with all tasks stalled on memory (PSI full) above which pages are unlocked.
pub const STALLED_MOST: f64 = 0.10;

/// Must pages be unlocked? Yes if the headroom is below the low watermark; or earlier, if all tasks stall on memory and
/// little is reclaimable. A single stream stalls its reader at any headroom, so a stall alone is no reason.
pub fn must_unlock(headroom: Headroom, stalled: Fraction) -> bool {
    let low_watermark = low_watermark(headroom.limit);
    let little = low_watermark.scaled(2.0);
    headroom.left < low_watermark || (stalled.get() >= STALLED_MOST && headroom.left < little)
}

/// Bytes that may still be mlocked with charge to this domain: twice the low watermark must be left after it.
pub fn may_mlock(headroom: Headroom) -> Bytes {
    headroom.left.saturating_sub(low_watermark(headroom.limit).scaled(2.0))
}

/// Delay of new mlocks charged to a domain after a release for it. `last`: the previous delay, and the time since its
/// end. The delay doubles, and halves for each such period without a release.
pub fn delay_after(last: Option<(Duration, Duration)>) -> Duration {
    const LEAST: Duration = Duration::from_secs(10);
    const MOST: Duration = Duration::from_secs(3600);
    let Some((length, went_well)) = last else { return LEAST };
    let halvings = went_well.as_nanos().checked_div(length.as_nanos()).unwrap_or(0).min(20);
    (length.saturating_mul(2) / (1 << halvings)).clamp(LEAST, MOST)
}

/// Mlock candidate: the pages of one class in one file.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    /// Class.
    pub class: Class,
    /// Protection level of the class.
    pub level: Level,
    /// Owners that map the file.
    pub owners: Vec<Owner>,
    /// Pages mapped and in memory.
    pub resident: Pages,
    /// Pages of `resident` already mlocked.
    pub mlocked: Pages,
    /// Fraction charged to each domain; `None` before it was measured, which takes a few mlocked pages.
    pub charged: Option<Vec<Fraction>>,
}

/// Limits of the mlocked amount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds<'a> {
    /// Pages in all.
    pub all: Pages,
    /// Additional pages in one step.
    pub more: Pages,
    /// Additional pages charged to each domain; the first domain is the host, and includes all pages.
    pub domains: &'a [Pages],
}

/// Pages of a file that are mlocked to find the groups charged with it.
pub const TRIAL: Pages = Pages(64);

/// Chooses the number of pages to mlock of each candidate.
///
/// Each owner has its [share](crate::shares); unused parts go to the others. The order within an owner: higher levels
/// first, then the classes in the paper's order, then pages already mlocked, then small candidates, because more of
/// them fit. The last candidate that fits gets the remainder. An owner below its share displaces pages that others have
/// mlocked above theirs. A domain without headroom delays only the pages charged to it.
pub fn choose(owners: &Owners, candidates: &[Candidate], bounds: Bounds<'_>) -> Vec<Pages> {
    let mut order: Vec<usize> = (0..candidates.len()).collect();
    order.sort_by_key(|index| {
        let of = &candidates[*index];
        (std::cmp::Reverse(of.level), of.class, of.mlocked == Pages(0), of.resident, *index)
    });
    let in_order: Vec<&Candidate> = order.iter().map(|index| &candidates[*index]).collect();
    let claims: Vec<Claim> =
        in_order.iter().map(|of| Claim { owners: of.owners.clone(), size: of.resident.0 }).collect();
    let mut growth = Growth::of(candidates, bounds);
    let piece = Pieces::Of((bounds.all.0 / PIECES).clamp(1, PIECE_MAX.0));
    let granted =
        divide(owners, &claims, bounds.all.0, piece, |nth, wanted| growth.grant(order[nth], in_order[nth], wanted));
    let mut chosen = vec![Pages(0); candidates.len()];
    order.iter().zip(granted).for_each(|(index, pages)| chosen[*index] = Pages(pages));
    chosen
}

/// Number of pieces of a budget; no piece is larger than [`PIECE_MAX`].
const PIECES: u64 = 1024;
const PIECE_MAX: Pages = Bytes::mib(16).pages();

/// Pages of the candidates that may still be granted.
#[derive(Debug)]
struct Growth {
    /// Pages not mlocked yet.
    more: u64,
    /// Pages charged to each domain, mlocked or not: one candidate may use pages that another one releases.
    domains: Vec<f64>,
    granted: Vec<u64>,
}

impl Growth {
    fn of(candidates: &[Candidate], bounds: Bounds<'_>) -> Growth {
        #[expect(clippy::cast_precision_loss, reason = "pages")]
        let mlocked = |nth: usize| {
            let of = |of: &Candidate| charged(of).get(nth).map_or(0.0, |share| share.get()) * of.is_mlocked() as f64;
            candidates.iter().map(of).sum::<f64>()
        };
        #[expect(clippy::cast_precision_loss, reason = "pages")]
        let domains = bounds.domains.iter().enumerate().map(|(nth, more)| more.0 as f64 + mlocked(nth)).collect();
        Growth { more: bounds.more.0, domains, granted: vec![0; candidates.len()] }
    }

    /// Grants as much of `wanted` as the limits allow.
    fn grant(&mut self, index: usize, of: &Candidate, wanted: u64) -> u64 {
        let before = self.granted[index];
        let is_there = of.is_mlocked().saturating_sub(before);
        let grown = before.saturating_sub(of.is_mlocked());
        let trial = if of.charged.is_none() { TRIAL.0.saturating_sub(grown) } else { u64::MAX };
        let in_domains = self.domains.iter().zip(charged(of)).map(|(pages, share)| whole_of(*pages, *share)).min();
        let granted = wanted.min(is_there.saturating_add(self.more.min(trial))).min(in_domains.unwrap_or(u64::MAX));
        self.more -= granted.saturating_sub(is_there);
        self.granted[index] += granted;
        #[expect(clippy::cast_precision_loss, reason = "pages")]
        self.domains.iter_mut().zip(charged(of)).for_each(|(pages, share)| *pages -= granted as f64 * share.get());
        granted
    }
}

impl Candidate {
    fn is_mlocked(&self) -> u64 {
        self.mlocked.0.min(self.resident.0)
    }
}

/// Fractions of a candidate charged to each domain. Before a measurement the host is charged with all of it.
fn charged(of: &Candidate) -> &[Fraction] {
    const HOST: [Fraction; 1] = [Fraction::ONE];
    of.charged.as_deref().unwrap_or(&HOST)
}

/// Largest number of pages at which a domain charged with this share gets at most `pages` pages.
fn whole_of(pages: f64, share: Fraction) -> u64 {
    /// Rounding error of sums of shares.
    const OFF: f64 = 1e-3;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "pages; what is below 0 is none")]
    let whole = (pages / share.get() + OFF) as u64;
    if share.get() > 0.0 { whole } else { u64::MAX }
}

/// Bytes inserted by streams that may stay: the level's part of memory, nothing at 0. Level 100 leaves it to the
/// kernel.
pub fn streams_may_keep(level: Level, memory: Bytes) -> Option<Bytes> {
    (level < Level::NEVER).then(|| memory.scaled(f64::from(level.get()) / 100.0))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn level(value: u8) -> Level {
        Level::clamped(value)
    }

    #[test]
    fn the_two_ends_are_the_papers() {
        // Section 5: with mapped_page_cost = 100 the aging of active-mapped stops; with 0 it is aged like the other
        // list.
        for hours in [0, 1, 1000] {
            assert!(is_protected(level(100), SECOND * 3600 * hours));
            assert!(!is_protected(level(0), SECOND * 3600 * hours));
        }
    }

    #[test]
    fn at_80_a_class_is_off_the_lists_for_four_minutes_of_five() {
        assert_eq!(protected_for(level(80)), Some(SECOND * 240));
        let minutes: Vec<bool> = (0..10).map(|minute| is_protected(level(80), SECOND * (60 * minute + 1))).collect();
        assert_eq!(minutes, [true, true, true, true, false, true, true, true, true, false]);
    }

    #[test]
    fn at_level_100_data_is_not_swapped_and_other_levels_lower_the_weight() {
        assert_eq!(swappiness(level(100), 60, false), 0);
        assert_eq!(swappiness(level(100), 60, true), 1, "with the other mapped classes");
        assert_eq!(swappiness(level(99), 60, false), 1);
        assert_eq!(swappiness(level(50), 60, false), 30);
        assert_eq!(swappiness(level(0), 60, false), 60);
    }

    #[test]
    fn pages_are_unlocked_before_the_headroom_is_used_up() {
        let limit = Bytes::gib(1);
        let headroom = |left| Headroom { limit, left: Bytes::mib(left) };
        assert_eq!(low_watermark(limit), Bytes::mib(64));
        assert!(must_unlock(headroom(63), Fraction::ZERO));
        assert!(!must_unlock(headroom(64), Fraction::ZERO));
        // All tasks stall: earlier, but not while much is reclaimable.
        let stalled = Fraction::clamped(0.5);
        assert!(must_unlock(headroom(127), stalled) && !must_unlock(headroom(128), stalled));
        assert_eq!(may_mlock(headroom(200)), Bytes::mib(72));
        assert_eq!(may_mlock(headroom(100)), Bytes(0));
    }

    /// Candidate of user 0, charged to the host alone.
    fn of(class: Class, value: u8, resident: u64, mlocked: u64) -> Candidate {
        let owners = vec![Owners::default().of("/", 0)];
        let charged = Some(vec![Fraction::ONE]);
        Candidate { class, level: level(value), owners, resident: Pages(resident), mlocked: Pages(mlocked), charged }
    }

    /// Choice for user 0 as the only owner.
    fn choose(candidates: &[Candidate], bounds: Bounds<'_>) -> Vec<Pages> {
        let mut owners = Owners::default();
        owners.of("/", 0);
        super::choose(&owners, candidates, bounds)
    }

    fn up_to(all: u64) -> Bounds<'static> {
        Bounds { all: Pages(all), more: Pages(u64::MAX), domains: &[Pages(u64::MAX)] }
    }

    #[test]
    fn code_comes_before_read_only_data_and_a_higher_level_before_both() {
        let candidates = [of(Class::ReadOnly, 80, 50, 0), of(Class::Code, 80, 30, 0), of(Class::ReadOnly, 100, 30, 0)];
        assert_eq!(choose(&candidates, up_to(100)), [Pages(40), Pages(30), Pages(30)]);
        assert_eq!(choose(&candidates, up_to(40)), [Pages(0), Pages(10), Pages(30)]);
    }

    #[test]
    fn mlocked_pages_stay_before_new_ones_of_the_same_class() {
        let candidates = [of(Class::Code, 90, 10, 0), of(Class::Code, 90, 60, 60)];
        assert_eq!(choose(&candidates, up_to(60)), [Pages(0), Pages(60)]);
    }

    #[test]
    fn mlocked_pages_stay_while_others_are_mlocked_in_parts() {
        let candidates = [of(Class::Code, 90, 200, 0), of(Class::ReadOnly, 90, 100, 100)];
        let in_parts = Bounds { more: Pages(50), ..up_to(1000) };
        assert_eq!(choose(&candidates, in_parts), [Pages(50), Pages(100)]);
    }

    #[test]
    fn an_owner_below_its_share_displaces_pages_above_the_share_of_another() {
        let mut owners = Owners::default();
        let users = [owners.of("/", 4001), owners.of("/", 4002)];
        let of = |user: usize, resident, mlocked| Candidate {
            owners: vec![users[user]],
            ..of(Class::Shared, 100, resident, mlocked)
        };
        let full = Bounds { domains: &[Pages(0)], ..up_to(100) };
        let choose = |candidates: &[Candidate]| super::choose(&owners, candidates, full);
        assert_eq!(choose(&[of(0, 500, 100), of(1, 30, 0)]), [Pages(70), Pages(30)]);
        assert_eq!(choose(&[of(0, 500, 100), of(1, 500, 0)]), [Pages(50), Pages(50)]);
        assert_eq!(choose(&[of(0, 500, 50), of(1, 500, 50)]), [Pages(50), Pages(50)], "and then nothing moves");
        let code = Candidate { class: Class::Code, ..of(0, 500, 100) };
        assert_eq!(choose(&[code, of(1, 30, 0)]), [Pages(70), Pages(30)], "whatever class each has");
    }

    #[test]
    fn a_domain_without_headroom_delays_the_pages_charged_to_it_and_no_others() {
        let charged = |share| Some(vec![Fraction::clamped(1.0), Fraction::clamped(share)]);
        let of = |mlocked, share| Candidate { charged: charged(share), ..of(Class::Code, 90, 100, mlocked) };
        let bounds = |left| [Pages(u64::MAX), Pages(left)];
        let candidates = [of(0, 1.0), of(40, 0.5), of(0, 0.0)];
        let choose = |left| choose(&candidates, Bounds { domains: &bounds(left), ..up_to(1000) });
        assert_eq!(choose(0), [Pages(0), Pages(40), Pages(100)]);
        // Half of the growth of the second candidate is charged to it.
        assert_eq!(choose(20), [Pages(0), Pages(80), Pages(100)]);
        assert_eq!(choose(50), [Pages(20), Pages(100), Pages(100)]);
    }

    #[test]
    fn a_few_pages_show_the_group_that_a_file_is_charged_to() {
        let unknown = Candidate { charged: None, ..of(Class::Code, 90, 1000, 0) };
        assert_eq!(choose(&[unknown], up_to(10_000)), [TRIAL]);
    }

    #[test]
    fn the_delay_doubles_with_each_unlock_and_halves_without_one() {
        assert_eq!(delay_after(None), SECOND * 10);
        assert_eq!(delay_after(Some((SECOND * 10, SECOND))), SECOND * 20);
        assert_eq!(delay_after(Some((SECOND * 40, SECOND * 39))), SECOND * 80);
        assert_eq!(delay_after(Some((SECOND * 80, SECOND * 170))), SECOND * 40);
        assert_eq!(delay_after(Some((SECOND * 80, SECOND * 3600))), SECOND * 10);
        assert_eq!(delay_after(Some((SECOND * 3600, Duration::ZERO))), SECOND * 3600);
    }

    #[test]
    fn streams_may_keep_the_levels_part_of_memory() {
        assert_eq!(streams_may_keep(level(0), Bytes::gib(4)), Some(Bytes(0)));
        assert_eq!(streams_may_keep(level(25), Bytes::gib(4)), Some(Bytes::gib(1)));
        assert_eq!(streams_may_keep(level(100), Bytes::gib(4)), None);
    }

    proptest! {
        #[test]
        fn a_class_is_off_the_lists_for_the_levels_part_of_the_time(value in 0u8..100) {
            let cycle = protected_for(level(value)).unwrap() + EXPOSED;
            let steps: u32 = 6000;
            let off = (0..steps).filter(|step| is_protected(level(value), cycle * *step / steps)).count();
            let part = off as f64 / f64::from(steps);
            prop_assert!((part - f64::from(value) / 100.0).abs() < 0.001, "{part}");
        }

        #[test]
        fn no_more_is_chosen_than_the_resident_pages_and_the_limit(
            all in prop::collection::vec((0usize..5, 0u8..=100, 0u64..1000, 0u64..1000), 0..20), most in 0u64..5000,
        ) {
            let of = |(class, value, resident, mlocked)| of(Class::ALL[class], value, resident, mlocked);
            let candidates: Vec<Candidate> = all.into_iter().map(of).collect();
            let chosen = choose(&candidates, up_to(most));
            prop_assert!(candidates.iter().zip(&chosen).all(|(of, chosen)| *chosen <= of.resident));
            let (sum, all): (u64, u64) = (chosen.iter().map(|pages| pages.0).sum(), candidates.iter().map(|of| of.resident.0).sum());
            prop_assert_eq!(sum, all.min(most), "all that fits is used");
        }

        #[test]
        fn no_domain_is_charged_beyond_its_headroom(
            all in prop::collection::vec((0u64..1000, 0u64..1000, 0.0f64..=1.0, 0.0f64..=1.0), 0..20),
            (first, second, more) in (0u64..3000, 0u64..3000, 0u64..3000),
        ) {
            let share = Fraction::clamped;
            let candidates: Vec<Candidate> = all.into_iter().map(|(resident, mlocked, a, b)| Candidate {
                charged: Some(vec![share(1.0), share(a), share(b)]), ..of(Class::Code, 90, resident, mlocked)
            }).collect();
            let domains = [Pages(u64::MAX), Pages(first), Pages(second)];
            let chosen = choose(&candidates, Bounds { more: Pages(more), domains: &domains, ..up_to(u64::MAX) });
            let grown = |(of, chosen): (&Candidate, &Pages)| chosen.0.saturating_sub(of.is_mlocked());
            prop_assert!(candidates.iter().zip(&chosen).map(grown).sum::<u64>() <= more);
            for (nth, more) in [(1, first), (2, second)] {
                let of_domain = |of: &Candidate| of.charged.as_ref().map_or(0.0, |charged| charged[nth].get());
                let before: f64 = candidates.iter().map(|of| of.is_mlocked() as f64 * of_domain(of)).sum();
                let after: f64 = candidates.iter().zip(&chosen).map(|(of, chosen)| chosen.0 as f64 * of_domain(of)).sum();
                prop_assert!(after <= before + more as f64 + 1.0, "{after} of {before} with {more} more");
            }
        }

        #[test]
        fn a_delay_is_neither_short_nor_for_ever(length in 1u64..1 << 40, well in 0u64..1 << 40) {
            let delay = delay_after(Some((Duration::from_millis(length), Duration::from_millis(well))));
            prop_assert!(delay >= SECOND * 10 && delay <= SECOND * 3600);
        }

        #[test]
        fn an_mlock_never_leaves_less_than_the_low_watermark(limit in 0u64..1 << 40, left in 0u64..1 << 40) {
            let headroom = Headroom { limit: Bytes(limit), left: Bytes(left) };
            let more = may_mlock(headroom);
            prop_assert!(more == Bytes(0) || left - more.0 >= low_watermark(headroom.limit).0);
        }

        /// Many steps of growth for one user, with constant demands of two users.
        #[test]
        fn mlocked_pages_settle_at_fair_shares(
            sizes in prop::collection::vec((0u32..3, 1u64..200), 1..20), most in 3u64..500, more in 20u64..100,
        ) {
            let mut owners = Owners::default();
            let mut candidates: Vec<Candidate> = sizes.iter().map(|(user, size)| {
                Candidate { owners: vec![owners.of("/", *user)], ..of(Class::Code, 90, *size, 0) }
            }).collect();
            let step = |candidates: &[Candidate]| {
                super::choose(&owners, candidates, Bounds { all: Pages(most), more: Pages(more), domains: &[Pages(u64::MAX)] })
            };
            for _ in 0..60 {
                let chosen = step(&candidates);
                prop_assert!(chosen.iter().map(|pages| pages.0).sum::<u64>() <= most);
                candidates.iter_mut().zip(chosen).for_each(|(of, chosen)| of.mlocked = chosen);
            }
            let at_rest: Vec<Pages> = candidates.iter().map(|of| of.mlocked).collect();
            prop_assert_eq!(step(&candidates), at_rest, "it stays");
            for user in 0..3 {
                let own = || sizes.iter().zip(&candidates).filter(|((of, _), _)| *of == user);
                let (demand, has): (u64, u64) = (own().map(|((_, size), _)| size).sum(), own().map(|(_, of)| of.mlocked.0).sum());
                prop_assert!(has >= demand.min(most / 3), "user {user} has {has} of {demand}");
            }
        }

        #[test]
        fn a_higher_level_never_swaps_more(low in 0u8..=100, high in 0u8..=100, normal in 0u32..=200) {
            prop_assume!(low <= high);
            prop_assert!(swappiness(level(high), normal, false) <= swappiness(level(low), normal, true));
        }

        #[test]
        fn the_less_headroom_the_sooner_the_next_check(a: u64, b: u64) {
            let (less, more) = (a.min(b), a.max(b));
            prop_assert!(check_after(Bytes(less)) <= check_after(Bytes(more)));
        }
    }
}
