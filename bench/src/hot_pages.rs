//! Pages visited by the workload `hot-set`: the reference for masu's findings in `known-hot-set`.
//!
//! Both programs compute them from the same seed, so nothing has to be handed over.

use crate::random::permutation;
use units::spread::{Random, spread};

/// Pages of 4 KiB in a window of 2 MiB.
pub const PAGES_PER_WINDOW: u32 = 512;

/// The hot pages of all `windows`, in ascending order: in each window the same number of pages, chosen at random, other ones
/// in every `epoch`.
pub fn hot_pages(seed: u64, epoch: u64, windows: u32, hot_per_window: u32) -> Vec<u32> {
    let mut random = Random::seeded(seed ^ spread(epoch));
    let mut all = Vec::new();
    for window in 0..windows {
        let mut pages = permutation(PAGES_PER_WINDOW, &mut random);
        pages.truncate(hot_per_window as usize);
        pages.sort_unstable();
        all.extend(pages.into_iter().map(|page| window * PAGES_PER_WINDOW + page));
    }
    all
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn every_window_has_its_number_of_pages_and_no_page_twice(
            seed: u64, epoch in 0u64..5, windows in 1u32..20, hot in 0u32..=512,
        ) {
            let pages = hot_pages(seed, epoch, windows, hot);
            prop_assert!(pages.is_sorted_by(|a, b| a < b));
            for window in 0..windows {
                let here = pages.iter().filter(|page| **page / PAGES_PER_WINDOW == window).count();
                prop_assert_eq!(here, hot as usize);
            }
        }
    }

    #[test]
    fn a_new_epoch_has_other_pages() {
        let (first, second) = (hot_pages(1, 0, 8, 32), hot_pages(1, 1, 8, 32));
        let both = first.iter().filter(|page| second.binary_search(page).is_ok()).count();
        // 8 · 32 · 32 / 512 = 16 by chance.
        assert!(both < 64, "{both} of 256");
    }
}
