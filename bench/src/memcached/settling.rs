//! Settling of memcached and masu: hardly any further promotion, no growth of the arena, and few moved items.

use anyhow::Result;

use crate::memcached::server::{Stats, number};

/// Values of `stats hps` at one time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Look {
    rounds: f64,
    promoted: f64,
    arena_bytes: f64,
    moved: f64,
    in_arena: f64,
}

/// Minimum number of scans, one a second, without a change; also the number of rounds of the tracker, which take longer
/// for more memory.
const SPAN: usize = 5;
const ROUNDS: f64 = 2.0;

/// Part of the arena's items that may be replaced meanwhile: items on the border of being hot come and go.
const MOVING: f64 = 0.02;

/// Part of the promoted windows that may be added meanwhile: some are on the border as well.
const MORE: f64 = 0.01;

impl Look {
    /// Reads the relevant values of `stats hps`.
    ///
    /// # Errors
    /// When one is missing.
    pub fn of(stats: &Stats) -> Result<Look> {
        let of = |name| number(stats, name);
        Ok(Look {
            rounds: of("tracker_rounds")?,
            promoted: of("tracker_promoted")? + of("tracker_demoted")?,
            arena_bytes: of("arena_bytes")?,
            moved: of("items_moved")?,
            in_arena: of("chunks")? - of("chunks_free")?,
        })
    }
}

/// Whether memcached had settled by the last of `looks`.
pub fn has_settled(looks: &[Look]) -> bool {
    let Some(now) = looks.last() else { return false };
    let long_ago = &looks[..looks.len().saturating_sub(SPAN)];
    let Some(before) = long_ago.iter().rev().find(|look| look.rounds + ROUNDS <= now.rounds) else { return false };
    let stands_still =
        now.promoted - before.promoted <= MORE * before.promoted && now.arena_bytes <= before.arena_bytes;
    before.rounds >= ROUNDS && stands_still && now.moved - before.moved <= MOVING * now.in_arena.max(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CALM: Look = Look { rounds: 4.0, promoted: 7.0, arena_bytes: 2e6, moved: 1000.0, in_arena: 900.0 };

    /// Scans one second and one round apart, ending with `last`.
    fn calm_until(last: Look) -> Vec<Look> {
        let mut looks: Vec<Look> = (0..6).map(|n| Look { rounds: CALM.rounds + f64::from(n), ..CALM }).collect();
        looks[5] = Look { rounds: CALM.rounds + 5.0, ..last };
        looks
    }

    #[test]
    fn five_seconds_and_two_rounds_without_a_change_are_rest() {
        assert!(has_settled(&calm_until(CALM)) && !has_settled(&calm_until(CALM)[..5]) && !has_settled(&[]));
        let mut looks = calm_until(CALM);
        looks[0].rounds = 1.0;
        assert!(!has_settled(&looks), "it was not watched for long enough");
        let within_a_round = [CALM; 20];
        assert!(!has_settled(&within_a_round), "nobody has looked meanwhile");
        let mut slow = vec![CALM; 20];
        slow.extend([Look { rounds: 5.0, ..CALM }; 20]);
        slow.push(Look { rounds: 6.0, ..CALM });
        assert!(has_settled(&slow));
        slow[20..].iter_mut().for_each(|look| look.promoted = 8.0);
        assert!(!has_settled(&slow), "that was two rounds ago");
    }

    #[test]
    fn each_change_counts_but_not_a_few_on_the_border() {
        let after = |last: Look| has_settled(&calm_until(last));
        assert!(!after(Look { promoted: 8.0, ..CALM }));
        assert!(!after(Look { arena_bytes: 4e6, ..CALM }));
        assert!(!after(Look { moved: 1019.0, ..CALM }));
        assert!(after(Look { moved: 1018.0, ..CALM }));
        let many = |promoted: f64| Look { promoted, ..CALM };
        let looks: Vec<Look> = calm_until(CALM).iter().map(|look| Look { promoted: 1000.0, ..*look }).collect();
        let with = |last: Look| has_settled(&[&looks[..5], &[Look { rounds: 9.0, ..last }]].concat());
        assert!(with(many(1010.0)) && !with(many(1011.0)));
    }

    #[test]
    fn what_counts_is_found_in_the_statistics() {
        let pairs = [
            ("tracker_rounds", "4"),
            ("tracker_promoted", "5"),
            ("tracker_demoted", "2"),
            ("arena_bytes", "2000000"),
            ("items_moved", "1000"),
            ("chunks", "1000"),
            ("chunks_free", "100"),
        ];
        let mut stats: Stats = pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        assert_eq!(Look::of(&stats).unwrap(), CALM);
        stats.remove("chunks");
        assert_eq!(Look::of(&stats).unwrap_err().to_string(), "memcached's statistics have no chunks");
    }
}
