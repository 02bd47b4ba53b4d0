//! Lower bound of a program's run time with a budget: the fewest bytes that had to be moved, at this machine's speed of
//! copying memory, added to the program's own time.
//!
//! floor = (all-local time + (bytes in + bytes out) / copy bandwidth) / all-local time
//!
//! Bytes are those of the way that moved least, so there is one floor for all ways: moving more does not raise it. They
//! are counted from start to end, so times are of the whole run, and so is the compared slowdown. A way that moves
//! bytes while the program computes can lie below it.

use std::hint::black_box;
use std::time::Instant;

use crate::pairs::median;

/// Bytes copied for one measurement: more than caches hold.
const COPIED_BYTES: usize = 256 << 20;

/// Size of the copied pieces: a usual transfer size.
const PIECE_BYTES: usize = 64 << 10;

/// Floor as a ratio to the all-local time. `None` when there is nothing to divide by.
pub fn floor(moved_bytes: f64, bytes_per_s: f64, all_local_s: f64) -> Option<f64> {
    let can = all_local_s > 0.0 && bytes_per_s > 0.0;
    can.then(|| (all_local_s + moved_bytes / bytes_per_s) / all_local_s)
}

/// Bytes that one processor copies per second from one place in memory to another: the median of five measurements.
pub fn copy_bandwidth() -> f64 {
    let from = vec![1u8; COPIED_BYTES];
    let mut to = vec![2u8; COPIED_BYTES];
    let measure = |_| {
        let begun = Instant::now();
        for (to, from) in to.chunks_mut(PIECE_BYTES).zip(from.chunks(PIECE_BYTES)) {
            to.copy_from_slice(black_box(from));
        }
        black_box(&mut to);
        COPIED_BYTES as f64 / begun.elapsed().as_secs_f64()
    };
    let speeds: Vec<f64> = (0..5).map(measure).collect();
    median(&speeds).unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn four_gigabytes_at_two_a_second_add_two_seconds() {
        assert_eq!(floor(4e9, 2e9, 2.0), Some(2.0));
        assert_eq!(floor(0.0, 2e9, 2.0), Some(1.0));
        assert_eq!((floor(1.0, 0.0, 1.0), floor(1.0, 1.0, 0.0)), (None, None));
    }

    proptest! {
        #[test]
        fn more_bytes_never_lower_the_floor(fewer in 0.0..1e12, more in 0.0..1e12, speed in 1e6f64..1e12) {
            let at = |bytes| floor(bytes, speed, 1.5).unwrap();
            prop_assert!(at(fewer) >= 1.0 && at(fewer) <= at(fewer + more));
        }
    }
}
