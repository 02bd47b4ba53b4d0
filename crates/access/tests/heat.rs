//! An access map's figures for a window, against the same counted page by page; page sets against sets.

use std::collections::BTreeSet;

use access::{AccessMap, Backend, Class, PageSet, WindowHeat};
use proptest::collection::{btree_set, vec};
use proptest::prelude::*;
use units::{PAGES_PER_WINDOW, Pages, Rate, Window};

const ALL: u64 = PAGES_PER_WINDOW as u64;

fn set_of(pages: &BTreeSet<usize>) -> PageSet {
    let mut set = PageSet::EMPTY;
    pages.iter().for_each(|page| set.insert(*page));
    set
}

fn page_sets() -> impl Strategy<Value = BTreeSet<usize>> {
    btree_set(0..PAGES_PER_WINDOW, 0..PAGES_PER_WINDOW)
}

/// Up to five scans, each with the rate that it implies and the pages that it saw.
fn maps() -> impl Strategy<Value = (AccessMap, WindowHeat)> {
    vec((0u32..20, 0.0f64..100.0, page_sets()), 0..5).prop_map(|scans| {
        let mut map = AccessMap::empty(Backend::BpfWalk);
        let mut heat = WindowHeat::untouched(Window(3));
        for (class, (accessed_reads, rate, pages)) in (1u8..).zip(&scans) {
            map.classes.push(Class { accessed_reads: *accessed_reads, rate: Rate::per_second(*rate) });
            heat.classify(&set_of(pages), class);
        }
        heat.present = heat.touched;
        (map, heat)
    })
}

proptest! {
    #[test]
    fn hot_pages_and_walks_are_those_of_the_pages_one_by_one((map, heat) in maps(), threshold in 0.0f64..100.0) {
        let threshold = Rate::per_second(threshold);
        let touched: Vec<Class> = heat.touched.iter().map(|page| map.class(&heat, page)).collect();
        let hot = touched.iter().filter(|class| class.rate >= threshold && class.accessed_reads > 0).count();
        let walks: f64 = touched.iter().map(|class| class.rate.get()).sum();
        let (found_hot, found_walks) = map.heat(&heat, threshold);
        prop_assert_eq!(found_hot, Pages(hot as u64));
        prop_assert!((found_walks.get() - walks).abs() <= 1e-9 * walks.max(1.0), "{found_walks} and {walks}");
    }

    #[test]
    fn a_higher_threshold_never_finds_more_hot_pages((map, heat) in maps(), low in 0.0f64..100.0, more in 0.0f64..100.0) {
        let hot = |threshold| map.heat(&heat, Rate::per_second(threshold)).0;
        prop_assert!(hot(low + more) <= hot(low));
        prop_assert!(hot(low) <= Pages(u64::from(heat.touched.count())));
    }

    #[test]
    fn of_a_huge_window_all_pages_are_hot_or_none((map, heat) in maps(), threshold in 0.0f64..100.0) {
        let class = map.class(&heat, 0);
        let mut huge = WindowHeat { huge: true, ..WindowHeat::untouched(Window(3)) };
        if heat.class_of[0] != 0 {
            huge.classify(&PageSet::FULL, heat.class_of[0]);
        }
        let (hot, walks) = map.heat(&huge, Rate::per_second(threshold));
        let in_use = class.accessed_reads > 0 && class.rate >= Rate::per_second(threshold);
        // One accessed bit: the walks are those to one entry, not to 512.
        prop_assert_eq!((hot, walks), (Pages(if in_use { ALL } else { 0 }), class.rate));
    }

    #[test]
    fn what_was_touched_is_forgotten_as_a_whole((map, heat) in maps()) {
        let mut forgotten = heat.clone();
        forgotten.forget();
        prop_assert_eq!(map.heat(&forgotten, Rate::ZERO), (Pages(0), Rate::ZERO));
        prop_assert_eq!(forgotten.present, heat.present);
    }

    #[test]
    fn page_sets_are_sets(a in page_sets(), b in page_sets()) {
        let both = |set: PageSet| set.iter().collect::<BTreeSet<usize>>();
        prop_assert_eq!(both(set_of(&a).union(&set_of(&b))), &a | &b);
        prop_assert_eq!(both(set_of(&a).without(&set_of(&b))), &a - &b);
        prop_assert!(set_of(&a).iter().is_sorted());
    }
}
