//! Whether memcached and masu have come to rest: nothing more is promoted, the arena does not grow, and few items move.

use crate::memcached::server::{Stats, number};

/// What `stats hps` said at one time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Look {
    rounds: f64,
    promoted: f64,
    arena_bytes: f64,
    moved: f64,
    in_arena: f64,
}

/// Looks, one a second, over which nothing may change.
const SPAN: usize = 5;

/// Of the items in the arena, the part that may be others after [`SPAN`] seconds: those on the border of being hot come and go.
const MOVING: f64 = 0.02;

impl Look {
    /// Takes what counts from `stats hps`.
    pub fn of(stats: &Stats) -> Look {
        let of = |name| number(stats, name);
        Look {
            rounds: of("tracker_rounds"),
            promoted: of("tracker_promoted") + of("tracker_demoted"),
            arena_bytes: of("arena_bytes"),
            moved: of("items_moved"),
            in_arena: of("chunks") - of("chunks_free"),
        }
    }
}

/// Whether it has settled by the last of `looks`.
pub fn has_settled(looks: &[Look]) -> bool {
    let Some(before) = looks.len().checked_sub(SPAN + 1).map(|at| looks[at]) else { return false };
    let now = looks[looks.len() - 1];
    let stands_still = now.promoted <= before.promoted && now.arena_bytes <= before.arena_bytes;
    before.rounds >= 2.0 && stands_still && now.moved - before.moved <= MOVING * now.in_arena.max(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CALM: Look = Look { rounds: 4.0, promoted: 7.0, arena_bytes: 2e6, moved: 1000.0, in_arena: 900.0 };

    #[test]
    fn five_seconds_without_a_change_are_rest() {
        assert!(has_settled(&[CALM; 6]) && !has_settled(&[CALM; 5]) && !has_settled(&[]));
        let begins = Look { rounds: 1.0, ..CALM };
        assert!(!has_settled(&[begins, CALM, CALM, CALM, CALM, CALM]), "it was not watched for long enough");
    }

    #[test]
    fn each_change_counts_but_not_a_few_items_on_the_border() {
        let after = |last: Look| has_settled(&[CALM, CALM, CALM, CALM, CALM, last]);
        assert!(!after(Look { promoted: 8.0, ..CALM }));
        assert!(!after(Look { arena_bytes: 4e6, ..CALM }));
        assert!(!after(Look { moved: 1019.0, ..CALM }));
        assert!(after(Look { moved: 1018.0, ..CALM }));
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
        assert_eq!(Look::of(&pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).into()), CALM);
    }
}
