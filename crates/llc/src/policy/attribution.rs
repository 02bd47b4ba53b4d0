//! Attribution of lines in the cache: a line shared by k programs is charged 1/k to each.
//!
//! Hardware charges a line to the class that filled it (`llc_occupancy`: "Notes on cache occupancy" in
//! Documentation/filesystems/resctrl.rst). With merged pages the first to touch one is charged all of it, and the
//! others nothing. No paper was found that charges otherwise; for memory the same share has long been the kernel's
//! proportional set size (`Pss` in proc_pid_smaps(5)).

use units::Bytes;

/// Lines of one sharing group in the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedLines {
    /// Sharers, as indices of programs, each once.
    pub sharers: Vec<usize>,
    /// Bytes of the group in the cache, from all fillers.
    pub resident: Bytes,
}

/// Bytes charged to each program: its private lines in the cache, and its part of the shared ones. The remainder is
/// charged to the first sharers, a byte each, so that nothing is lost. A sharer that is not among `private` pays
/// nothing, and the others pay for it.
pub fn charged(private: &[Bytes], shared: &[SharedLines]) -> Vec<Bytes> {
    let mut charged = private.to_vec();
    for set in shared {
        let sharers: Vec<usize> = set.sharers.iter().copied().filter(|program| *program < charged.len()).collect();
        let count = sharers.len() as u64;
        if count == 0 {
            continue;
        }
        for (nth, program) in (0u64..).zip(sharers) {
            let odd = u64::from(nth < set.resident.0 % count);
            charged[program] = Bytes(charged[program].0.saturating_add(set.resident.0 / count + odd));
        }
    }
    charged
}

/// Hits of one program on lines of shared pages, by filler. A simulator counts them; hardware does not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rides {
    /// Its hits on lines filled by others.
    pub on_others: u64,
    /// Hits of others on lines filled by it.
    pub by_others: u64,
}

impl Rides {
    /// Free-rider index: hits on lines filled by others, per hit of others on lines filled by this program. Above 1
    /// it rides, below 1 it pays, 1 is even. `None` without a hit of either kind.
    pub fn free_rider_index(self) -> Option<f64> {
        #[expect(clippy::cast_precision_loss, reason = "a ratio")]
        let (on, by) = (self.on_others as f64, self.by_others as f64);
        match (self.on_others, self.by_others) {
            (0, 0) => None,
            (_, 0) => Some(f64::INFINITY),
            _ => Some(on / by),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn who_filled_does_not_matter() {
        // The paper's scenario: two programs with 2 MiB of their own each, and 2 MiB that they share, all filled by
        // the first. Hardware says 4 and 2 MiB; each is charged 2 + 2/2.
        let shared = [SharedLines { sharers: vec![0, 1], resident: Bytes::mib(2) }];
        assert_eq!(charged(&[Bytes::mib(2); 2], &shared), [Bytes::mib(3); 2]);
    }

    #[test]
    fn nothing_is_lost_when_it_does_not_come_out_even() {
        let shared = [SharedLines { sharers: vec![2, 0, 1], resident: Bytes(64 * 2 + 64 / 4) }];
        assert_eq!(charged(&[Bytes(0); 4], &shared), [Bytes(48), Bytes(48), Bytes(48), Bytes(0)]);
        let odd = [SharedLines { sharers: vec![2, 0, 9], resident: Bytes(65) }];
        assert_eq!(charged(&[Bytes(0); 3], &odd), [Bytes(32), Bytes(0), Bytes(33)]);
    }

    #[test]
    fn riding_and_paying() {
        assert_eq!(Rides { on_others: 300, by_others: 100 }.free_rider_index(), Some(3.0));
        assert_eq!(Rides { on_others: 1, by_others: 0 }.free_rider_index(), Some(f64::INFINITY));
        assert_eq!(Rides::default().free_rider_index(), None);
    }

    proptest! {
        #[test]
        fn all_that_is_resident_is_charged_and_equal_sharers_pay_equally(
            private in prop::collection::vec(0u64..1 << 30, 2..8), resident in 0u64..1 << 30,
        ) {
            let sharers: Vec<usize> = (0..private.len()).collect();
            let own: Vec<Bytes> = private.iter().map(|bytes| Bytes(*bytes)).collect();
            let found = charged(&own, &[SharedLines { sharers, resident: Bytes(resident) }]);
            let sum = |of: &[Bytes]| of.iter().map(|bytes| bytes.0).sum::<u64>();
            prop_assert_eq!(sum(&found), sum(&own) + resident);
            let parts: Vec<u64> = found.iter().zip(&own).map(|(all, own)| all.0 - own.0).collect();
            prop_assert!(parts.iter().max().unwrap() - parts.iter().min().unwrap() <= 1);
        }
    }
}
