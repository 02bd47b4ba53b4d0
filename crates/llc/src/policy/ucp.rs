//! UCP: fewest misses together.
//!
//! Qureshi and Patt, MICRO 2006 (see [`lookahead`](super::lookahead)): each program has a partition of its own, sized
//! by look-ahead on the misses of all.
//!
//! | paper                       | here                | unit                          |
//! |-----------------------------|---------------------|-------------------------------|
//! | misses by UMON, per interval | [`Program::misses`](super::Program::misses) | per thousand instructions |
//! | partitions                  | classes             |                               |
//!
//! We differ: misses are per thousand instructions, not per interval, so a fast program does not count for more. The
//! paper has one partition for each program; with fewer partitions, neighbours share one, by the combined curves of
//! KPart ([`merged_curve`](super::merged_curve)).

use super::lookahead::lookahead;
use super::masks::{neighbours, partitions_max, side_by_side, ways_least};
use super::merged_curve::combined;
use super::{Curve, Plan, Situation};

/// The plan.
pub fn plan(situation: &Situation) -> Plan {
    let cache = &situation.cache;
    let groups = neighbours(situation.programs.len(), partitions_max(cache));
    let curves: Vec<Curve> = groups.iter().map(|group| combined(situation, group).misses).collect();
    let ways = lookahead(&curves, cache.usable.ways(), ways_least(cache));
    side_by_side(cache, &ways.into_iter().zip(groups).collect::<Vec<_>>(), &[])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::examples::{cache, cyclic, program, random, situation};

    #[test]
    fn a_stream_gets_one_way_and_those_who_gain_get_the_rest() {
        let programs = vec![program(&[30.0; 9]), program(&cyclic(20.0, 4, 8)), program(&random(10.0, 4, 8))];
        let plan = plan(&situation(cache(8, 16), programs));
        let masks: Vec<u64> = plan.classes.iter().map(|class| class.mask.0).collect();
        // The loop: 20 / 3 a way for 3 more; random access: 2.5 a way for the 3 that are left.
        assert_eq!(masks, [0x1, 0x1e, 0xe0]);
    }
}
