use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

fn pages(of: &[(u64, u64)]) -> Vec<MergedPage> {
    of.iter().map(|(address, frame)| MergedPage { address: Address(address * 4096), frame: *frame }).collect()
}

fn index(look: &[(i32, &[(u64, u64)])]) -> Index {
    let mut index = Index::default();
    index.update(look.iter().map(|(pid, of)| (Pid(*pid), pages(of))));
    index
}

/// Two machines with three pages in common, one of them also in a third; the first has two identical pages of its
/// own.
fn example() -> Index {
    index(&[(10, &[(1, 7), (2, 8), (3, 9), (4, 5), (5, 5)]), (11, &[(1, 7), (2, 8), (9, 9)]), (12, &[(6, 9)])])
}

#[test]
fn frames_are_told_with_their_sharers_by_rising_number() {
    let index = example();
    let all: Vec<(u64, Vec<(i32, u64)>)> = index
        .frames()
        .map(|frame| (frame.number(), frame.sharers().map(|of| (of.pid.0, of.address.0 / 4096)).collect()))
        .collect();
    let expected = [
        (5, vec![(10, 4), (10, 5)]),
        (7, vec![(10, 1), (11, 1)]),
        (8, vec![(10, 2), (11, 2)]),
        (9, vec![(10, 3), (11, 9), (12, 6)]),
    ];
    assert_eq!(all, expected);
    assert_eq!(index.mapped(), Pages(9));
    let nine = index.frame(9).unwrap();
    assert_eq!((nine.sharers().len(), nine.saved()), (3, Bytes::kib(8)));
    assert_eq!(index.frame(5).unwrap().processes().collect::<Vec<_>>(), [Pid(10)]);
    assert!(index.frame(6).is_none() && index.frame(10).is_none());
}

#[test]
fn frames_with_the_same_sharers_are_one_set_and_what_saves_most_comes_first() {
    let sets: Vec<(Vec<i32>, u64, u64, u64)> = example()
        .sets()
        .into_iter()
        .map(|set| {
            let saved = set.saved().0;
            (set.processes.into_iter().map(|pid| pid.0).collect(), set.frames.0, set.mapped.0, saved)
        })
        .collect();
    let expected = [(vec![10, 11], 2, 4, 8192), (vec![10, 11, 12], 1, 3, 8192), (vec![10], 1, 2, 4096)];
    assert_eq!(sets, expected);
}

#[test]
fn a_page_that_was_written_one_that_moved_and_a_process_that_ended_are_taken_over() {
    let mut index = example();
    let look = [(Pid(10), pages(&[(1, 7), (3, 9), (4, 5), (5, 5)])), (Pid(11), pages(&[(1, 7), (2, 8), (9, 4)]))];
    assert_eq!(index.update(look.clone()), Changed { added: 1, removed: 3 });
    let mut fresh = Index::default();
    fresh.update(look.clone());
    assert_eq!(index, fresh);
    assert_eq!(index.update(look), Changed::default());
    assert_eq!(index.update([]), Changed { added: 0, removed: 7 });
    assert_eq!(index, Index::default());
}

/// The model: a set of triples.
type Model = BTreeMap<Pid, BTreeMap<u64, u64>>;

fn agrees(index: &Index, model: &Model) -> Result<(), TestCaseError> {
    let mut by_frame: BTreeMap<u64, BTreeSet<(Pid, u64)>> = BTreeMap::new();
    for (pid, pages) in model {
        for (address, frame) in pages {
            by_frame.entry(*frame).or_default().insert((*pid, *address));
        }
    }
    let found: BTreeMap<u64, BTreeSet<(Pid, u64)>> = index
        .frames()
        .map(|frame| (frame.number(), frame.sharers().map(|of| (of.pid, of.address.0)).collect()))
        .collect();
    prop_assert_eq!(&found, &by_frame);
    let saved: u64 = by_frame.values().map(|sharers| (sharers.len() as u64 - 1) * 4096).sum();
    prop_assert_eq!(index.sets().iter().map(|set| set.saved().0).sum::<u64>(), saved);
    prop_assert_eq!(index.frames().map(|frame| frame.saved().0).sum::<u64>(), saved);
    for set in index.sets() {
        let of_them = by_frame.values().filter(|sharers| {
            sharers.iter().map(|(pid, _)| *pid).collect::<BTreeSet<_>>() == set.processes.iter().copied().collect()
        });
        prop_assert_eq!(of_them.count() as u64, set.frames.0);
    }
    Ok(())
}

proptest! {
    /// Repeated scans, each with the pages of some processes at that time.
    #[test]
    fn after_any_looks_the_index_is_what_a_full_look_would_give(
        looks in prop::collection::vec(
            prop::collection::btree_map(0..6i32, prop::collection::btree_map(0..20u64, 0..12u64, 0..12), 0..5),
            1..8,
        ),
    ) {
        let mut index = Index::default();
        for look in looks {
            let model: Model = look.iter().map(|(pid, pages)| {
                (Pid(*pid), pages.iter().map(|(page, frame)| (page * 4096, *frame)).collect())
            }).collect();
            let pages = |of: &BTreeMap<u64, u64>| -> Vec<MergedPage> {
                of.iter().rev().map(|(address, frame)| MergedPage { address: Address(*address), frame: *frame }).collect()
            };
            let before: BTreeSet<(Pid, MergedPage)> =
                index.processes().flat_map(|pid| index.of(pid).iter().map(move |page| (pid, *page))).collect();
            let changed = index.update(model.iter().map(|(pid, of)| (*pid, pages(of))));
            let now: BTreeSet<(Pid, MergedPage)> =
                model.iter().flat_map(|(pid, of)| pages(of).into_iter().map(move |page| (*pid, page))).collect();
            prop_assert_eq!(changed.added, now.difference(&before).count() as u64);
            prop_assert_eq!(changed.removed, before.difference(&now).count() as u64);
            agrees(&index, &model)?;
        }
    }
}
