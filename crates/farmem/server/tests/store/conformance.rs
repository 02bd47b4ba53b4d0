//! Conformance tests for every store.

use std::collections::BTreeMap;

use farmem::store::{Error, GetRun, Location, PAGE_BYTES, PutRun, Span, Store};
use units::spread::Random;

use super::{contents, get, put};

type Demand = (&'static str, fn(&dyn Store));

/// All tests. Each has layers of its own, so they need no empty store.
pub const DEMANDS: [Demand; 10] = [
    ("what was put is what is got", what_was_put_is_what_is_got),
    ("a run may begin and end anywhere", a_run_may_begin_and_end_anywhere),
    ("many runs go in one call", many_runs_go_in_one_call),
    ("the last put wins and its neighbours stay", the_last_put_wins_and_its_neighbours_stay),
    ("layers are apart", layers_are_apart),
    ("forgotten pages are gone and may be put again", forgotten_pages_are_gone_and_may_be_put_again),
    ("a layer is forgotten as a whole", a_layer_is_forgotten_as_a_whole),
    ("nothing is a valid request", nothing_is_a_valid_request),
    ("threads do not disturb each other", threads_do_not_disturb_each_other),
    ("any sequence of calls does what a map would do", any_sequence_does_what_a_map_would_do),
];

/// Runs all tests on a store.
pub fn demand_all(store: &dyn Store) {
    for (name, demand) in DEMANDS {
        println!("{}: {name}", store.name());
        demand(store);
    }
}

fn many(location: Location, pages: u64, version: u64) -> Vec<u8> {
    (0..pages).flat_map(|page| contents(Location { page: location.page + page, ..location }, version)).collect()
}

fn what_was_put_is_what_is_got(store: &dyn Store) {
    for (page, pages) in [(0, 1), (1, 16), (1 << 29, 3), (4096, 1500)] {
        let location = Location { layer: 10, page };
        let bytes = many(location, pages, 1);
        store.put(&[PutRun { location, bytes: &bytes }]).unwrap();
        let mut back = vec![0xee; bytes.len()];
        store.get(&mut [GetRun { location, bytes: &mut back }]).unwrap();
        assert!(back == bytes, "{pages} pages from {location}");
    }
}

fn a_run_may_begin_and_end_anywhere(store: &dyn Store) {
    let first = Location { layer: 11, page: 0 };
    store.put(&[PutRun { location: first, bytes: &many(first, 64, 1) }]).unwrap();
    for (page, pages) in [(0, 1), (15, 2), (16, 16), (3, 40), (63, 1)] {
        let location = Location { layer: 11, page };
        let mut back = vec![0xee; usize::try_from(pages).unwrap() * PAGE_BYTES];
        store.get(&mut [GetRun { location, bytes: &mut back }]).unwrap();
        assert!(back == many(location, pages, 1), "{pages} pages from {location}");
    }
}

fn many_runs_go_in_one_call(store: &dyn Store) {
    let locations: Vec<_> = (0..300).map(|at| Location { layer: 12 + at % 2, page: u64::from(at) * 3 }).collect();
    let bytes: Vec<_> = locations.iter().map(|&location| many(location, 1 + location.page % 2, 5)).collect();
    let runs: Vec<_> = locations.iter().zip(&bytes).map(|(&location, bytes)| PutRun { location, bytes }).collect();
    store.put(&runs).unwrap();
    let mut back: Vec<_> = bytes.iter().map(|bytes| vec![0xee; bytes.len()]).collect();
    let mut runs: Vec<_> =
        locations.iter().zip(&mut back).map(|(&location, bytes)| GetRun { location, bytes }).rev().collect();
    store.get(&mut runs).unwrap();
    assert!(back == bytes);
}

fn the_last_put_wins_and_its_neighbours_stay(store: &dyn Store) {
    let first = Location { layer: 14, page: 100 };
    store.put(&[PutRun { location: first, bytes: &many(first, 20, 1) }]).unwrap();
    for version in 2..20 {
        put(store, Location { layer: 14, page: 107 }, version).unwrap();
    }
    for page in 100..120 {
        let location = Location { layer: 14, page };
        assert!(get(store, location).unwrap() == contents(location, if page == 107 { 19 } else { 1 }), "{location}");
    }
}

fn layers_are_apart(store: &dyn Store) {
    let locations = [0, 1, 77, u32::MAX - 1].map(|layer| Location { layer, page: 5 });
    locations.iter().for_each(|&location| put(store, location, 1).unwrap());
    locations
        .iter()
        .for_each(|&location| assert!(get(store, location).unwrap() == contents(location, 1), "{location}"));
}

/// Asserts that the page is zeros, or lost by name.
fn assert_gone(store: &dyn Store, location: Location) {
    match get(store, location) {
        Ok(bytes) => assert!(bytes.iter().all(|&byte| byte == 0), "{location} is still there"),
        Err(Error::Lost(trouble)) => assert!(trouble.cause.contains(&location.to_string()), "{trouble}"),
        Err(error) => panic!("{error}"),
    }
}

fn forgotten_pages_are_gone_and_may_be_put_again(store: &dyn Store) {
    let at = |page| Location { layer: 15, page };
    store.put(&[PutRun { location: at(0), bytes: &many(at(0), 64, 1) }]).unwrap();
    store
        .forget(&[
            Span { location: at(5), pages: 1 },
            Span { location: at(16), pages: 16 },
            Span { location: at(40), pages: 20 },
        ])
        .unwrap();
    // Pages that were never put may be forgotten, too.
    store.forget(&[Span { location: at(1 << 20), pages: 100 }]).unwrap();
    for page in 0..64 {
        match page {
            5 | 16..32 | 40..60 => assert_gone(store, at(page)),
            _ => assert!(get(store, at(page)).unwrap() == contents(at(page), 1), "page {page}"),
        }
    }
    put(store, at(20), 2).unwrap();
    assert!(get(store, at(20)).unwrap() == contents(at(20), 2));
    assert_gone(store, at(21));
}

fn a_layer_is_forgotten_as_a_whole(store: &dyn Store) {
    let locations = [0, 17, 70_000].map(|page| Location { layer: 16, page });
    let other = Location { layer: 17, page: 0 };
    locations.iter().chain([&other]).for_each(|&location| put(store, location, 1).unwrap());
    store.forget_layer(16).unwrap();
    locations.iter().for_each(|&location| assert_gone(store, location));
    assert!(get(store, other).unwrap() == contents(other, 1));
    put(store, locations[1], 2).unwrap();
    assert!(get(store, locations[1]).unwrap() == contents(locations[1], 2));
}

fn nothing_is_a_valid_request(store: &dyn Store) {
    let location = Location { layer: 18, page: 3 };
    store.put(&[]).unwrap();
    store.get(&mut []).unwrap();
    store.forget(&[]).unwrap();
    store.put(&[PutRun { location, bytes: &[] }]).unwrap();
    store.get(&mut [GetRun { location, bytes: &mut [] }]).unwrap();
    store.forget(&[Span { location, pages: 0 }]).unwrap();
    store.forget_layer(9999).unwrap();
}

fn threads_do_not_disturb_each_other(store: &dyn Store) {
    std::thread::scope(|scope| {
        for thread in 0..6u64 {
            scope.spawn(move || run_against_a_map(store, 20, thread * 8, 8, 60));
        }
    });
}

fn any_sequence_does_what_a_map_would_do(store: &dyn Store) {
    run_against_a_map(store, 21, 0, 100, 300);
}

/// Random calls on some pages of a layer, each answer compared with a map.
pub fn run_against_a_map(store: &dyn Store, layer: u32, first: u64, pages: u64, calls: u64) {
    let mut random = Random::seeded(first);
    let mut known: BTreeMap<u64, u64> = BTreeMap::new();
    for version in 1..=calls {
        let page = first + random.number() % pages;
        let run = 1 + random.number() % (first + pages - page).min(40);
        let location = Location { layer, page };
        match random.number() % 10 {
            0 => {
                // A forget does not wait for an unreachable store: the pages that it still has are not requested again.
                let forgotten = store.forget(&[Span { location, pages: run }]);
                assert!(forgotten.as_ref().err().is_none_or(Error::is_passing), "{forgotten:?}");
                known.retain(|known, _| !(page..page + run).contains(known));
            }
            1..5 => {
                store.put(&[PutRun { location, bytes: &many(location, run, version) }]).unwrap();
                known.extend((page..page + run).map(|page| (page, version)));
            }
            _ => {
                let there = (page..page + run).take_while(|page| known.contains_key(page)).count();
                let mut back = vec![0xee; there * PAGE_BYTES];
                store.get(&mut [GetRun { location, bytes: &mut back }]).unwrap();
                for (page, bytes) in (page..).zip(back.chunks(PAGE_BYTES)) {
                    let location = Location { layer, page };
                    assert!(
                        bytes == contents(location, known[&page]),
                        "{}: {location} at call {version}",
                        store.name()
                    );
                }
            }
        }
    }
}
