use linux::Pid;
use proptest::prelude::*;

use super::*;

const SECOND: Duration = Duration::from_secs(1);
const AHEAD: Pages = Pages(32);

fn file(inode: u64) -> FileId {
    FileId { device: (254, 0), inode, generation: 0 }
}

fn insertion(inode: u64, pages: Range<u64>) -> Insertion {
    Insertion { file: file(inode), pages, process: Pid(1) }
}

impl Queue {
    fn is_empty_at(&self, now: Duration) -> bool {
        !self.waiting.iter().any(|entry| entry.is_due_again(now))
    }
}

fn pages(due: &[Due]) -> u64 {
    due.iter().map(|due| due.pages.end - due.pages.start).sum()
}

#[test]
fn passed_pages_of_a_long_stream_are_due_and_readahead_is_not() {
    let mut queue = Queue::new(SETTINGS);
    for n in 0..64 {
        queue.insert(Duration::ZERO, &insertion(1, n * 128..(n + 1) * 128), AHEAD);
    }
    let due = queue.due(Duration::ZERO);
    let last = due.iter().map(|due| due.pages.end).max().unwrap();
    assert!((64 * 128 - last) >= SETTINGS.behind_in_all.0, "{last}");
    assert!(64 * 128 - last <= 3 * SETTINGS.behind_in_all.0, "and no more than that: {last}");
    assert_eq!(due[0].pages.start, 0, "the oldest first");
}

#[test]
fn a_large_readahead_is_not_due_before_its_reader() {
    let far = Pages(2048);
    assert_eq!(ahead(far), Pages(8704), "34 MiB where the kernel reads 8 MiB ahead");
    let mut queue = Queue::new(SETTINGS);
    for n in 0..17 {
        queue.insert(Duration::ZERO, &insertion(1, n * 512..(n + 1) * 512), far);
    }
    assert_eq!(queue.due(Duration::ZERO), []);
    queue.insert(Duration::ZERO, &insertion(1, 8704..10000), far);
    assert!(pages(&queue.due(Duration::ZERO)) >= 512);
}

#[test]
fn the_end_of_a_file_is_due_after_some_time() {
    let mut queue = Queue::new(SETTINGS);
    queue.insert(Duration::ZERO, &insertion(1, 0..4), AHEAD);
    assert_eq!(queue.due(SETTINGS.after_little - SECOND / 1000), []);
    assert_eq!(pages(&queue.due(SETTINGS.after_little)), 4);
    assert_eq!((queue.waiting(), queue.of_file.len()), (Pages(0), 0));
}

#[test]
fn the_end_of_a_closed_file_is_due_at_once_and_that_of_an_open_one_is_not() {
    let mut queue = Queue::new(SETTINGS);
    queue.insert(Duration::ZERO, &insertion(1, 0..4000), AHEAD);
    queue.insert(Duration::ZERO, &insertion(2, 0..4000), AHEAD);
    queue.close(|due| due.file == file(2));
    assert!(queue.due(Duration::ZERO).iter().all(|due| due.file == file(1)));
    assert_eq!(queue.waiting(), Pages(4000));
    queue.insert(Duration::ZERO, &insertion(1, 4000..4100), AHEAD);
    assert_eq!(queue.due(Duration::ZERO), [], "opened again");
}

#[test]
fn a_slow_reader_beside_a_fast_one_keeps_what_was_read_ahead_for_it() {
    let mut queue = Queue::new(SETTINGS);
    queue.insert(Duration::ZERO, &insertion(1, 0..32), AHEAD);
    for n in 0..100 {
        queue.insert(Duration::ZERO, &insertion(2, n * 512..(n + 1) * 512), AHEAD);
    }
    assert!(queue.due(SECOND / 4).iter().all(|due| due.file == file(2)));
}

#[test]
fn dirty_pages_are_retried_with_backoff_and_mapped_pages_given_up() {
    let mut queue = Queue::new(SETTINGS);
    queue.insert(Duration::ZERO, &insertion(1, 0..4), AHEAD);
    let mut now = SECOND;
    let mut waits = Vec::new();
    for _ in 0..10 {
        let due = queue.due(now);
        assert!(queue.stayed(now, &due[0], 0..4, true));
        assert_eq!(queue.due(now), [], "not at once");
        let wait = (1..1000).map(|n| SECOND * n / 10).find(|wait| !queue.is_empty_at(now + *wait)).unwrap();
        waits.push(wait.as_millis());
        now += wait;
    }
    assert_eq!(waits, [100, 200, 400, 800, 1600, 3200, 6400, 10_000, 10_000, 10_000]);
    for _ in 1..SETTINGS.attempts {
        let due = queue.due(now);
        assert!(queue.stayed(now, &due[0], 0..2, false));
        now += SETTINGS.again_after;
    }
    let due = queue.due(now);
    assert!(!queue.stayed(now, &due[0], 0..2, false));
    assert_eq!(queue.due(now + SECOND * 100), []);
}

#[test]
fn a_file_under_constant_writes_is_given_up() {
    let mut queue = Queue::new(SETTINGS);
    queue.insert(Duration::ZERO, &insertion(1, 0..4), AHEAD);
    let mut now = SECOND;
    let asked = (1..1000).find(|_| {
        let due = queue.due(now);
        let goes_on = queue.stayed(now, &due[0], 0..4, true);
        now += SETTINGS.write_after_most;
        !goes_on
    });
    assert_eq!(asked, Some(SETTINGS.write_attempts));
}

#[test]
fn a_written_file_is_passed_without_its_readahead() {
    let far = Pages(2048);
    let mut queue = Queue::new(SETTINGS);
    let mut inserted = 0;
    let mut more = |queue: &mut Queue, pages: u64| {
        queue.insert(Duration::ZERO, &insertion(1, inserted..inserted + pages), far);
        inserted += pages;
    };
    (0..20).for_each(|_| more(&mut queue, 512));
    let first = queue.due(Duration::ZERO);
    assert!(pages(&first) <= 3 * 512, "{first:?}");
    assert!(queue.stayed(Duration::ZERO, &first[0], first[0].pages.clone(), true));
    more(&mut queue, 512);
    let left = queue.waiting().0 - pages(&queue.due(Duration::ZERO));
    assert!(left <= 2 * (SETTINGS.behind_in_all.0 + pages(&first)), "{left}");
}

#[test]
fn a_reader_of_a_written_file_is_not_overtaken() {
    let far = Pages(2048);
    let mut queue = Queue::new(SETTINGS);
    let written = Due::first(file(1), 0..4, Pid(1));
    assert!(queue.stayed(Duration::ZERO, &written, 0..4, true));
    let read = |pages| Insertion { process: Pid(2), ..insertion(1, pages) };
    (0..16).for_each(|n| queue.insert(Duration::ZERO, &read(n * 512..(n + 1) * 512), far));
    assert_eq!(queue.due(Duration::ZERO), [], "32 MiB may lie before the reader");
}

#[test]
fn parts_of_a_folio_are_retried_together_and_counted_apart() {
    let mut queue = Queue::new(SETTINGS);
    queue.insert(Duration::ZERO, &insertion(1, 0..8), AHEAD);
    let first = queue.due(SECOND).remove(0);
    queue.insert(SECOND, &insertion(1, 8..16), AHEAD);
    assert!(queue.stayed(SECOND, &first, 4..8, false));
    assert_eq!(queue.due(SECOND + SECOND / 4), [], "neither is due yet");
    let due = queue.due(SECOND * 2);
    assert_eq!(pages(&due), 12);
    let [a, b] = &due[..] else { panic!("two parts") };
    assert!(queue.stayed(SECOND * 2, a, a.pages.clone(), false));
    assert!(queue.stayed(SECOND * 5 / 2, b, b.pages.clone(), false));
    let due = queue.due(SECOND * 3);
    assert_eq!(pages(&due), 12, "as soon as one is");
    let early = |due: &Due| (due.pages.start, due.attempts, due.early);
    let mut found: Vec<_> = due.iter().map(early).collect();
    found.sort();
    assert_eq!(found, [(4, 2, None), (8, 1, Some(SECOND * 7 / 2))]);
    due.iter().for_each(|due| assert!(queue.stayed(SECOND * 3, due, due.pages.clone(), false)));
    let again: Vec<_> = queue.due(SECOND * 7 / 2).iter().map(early).collect();
    assert!(again.contains(&(8, 1, None)), "at its own time: {again:?}");
}

#[test]
fn a_range_far_from_a_retried_one_waits_for_its_own_time() {
    let mut queue = Queue::new(SETTINGS);
    let due = |pages| Due::first(file(1), pages, Pid(1));
    assert!(queue.stayed(Duration::ZERO, &due(0..8), 0..8, true));
    assert!(queue.stayed(Duration::ZERO, &due(519..600), 519..600, false));
    assert!(queue.stayed(Duration::ZERO, &due(600..700), 600..700, false));
    assert_eq!(pages(&queue.due(SECOND / 5)), 8 + 81);
}

#[test]
fn an_allowance_keeps_the_newest() {
    let mut queue = Queue::new(Settings { keep: Pages(100), ..SETTINGS });
    queue.insert(Duration::ZERO, &insertion(1, 0..80), AHEAD);
    queue.insert(Duration::ZERO, &insertion(2, 0..80), AHEAD);
    assert_eq!(queue.due(SECOND * 10), [Due::first(file(1), 0..80, Pid(1))]);
    assert_eq!(queue.waiting(), Pages(80));
    queue.set_keep(Pages(0));
    assert_eq!(pages(&queue.due(SECOND * 10)), 80);
}

proptest! {
    #[test]
    fn every_inserted_page_is_due_once(
        insertions in prop::collection::vec((0u64..4, 0u64..100, 1u64..50, 0u64..400), 1..200), keep in 0u64..500,
    ) {
        let mut queue = Queue::new(Settings { keep: Pages(keep), ..SETTINGS });
        let (mut now, mut inserted, mut went) = (Duration::ZERO, 0, 0);
        for (inode, first, count, wait) in insertions {
            now += Duration::from_millis(wait);
            queue.insert(now, &insertion(inode, first..first + count), AHEAD);
            inserted += count;
            went += pages(&queue.due(now));
            prop_assert_eq!(queue.waiting().0, inserted - went);
        }
        went += pages(&queue.rest());
        prop_assert_eq!(inserted, went);
        prop_assert_eq!(queue.waiting(), Pages(0));
    }

    #[test]
    fn remaining_pages_are_due_in_their_own_time_and_no_page_is_lost(
        insertions in prop::collection::vec((0u64..3, 0u64..2000, 1u64..600, 0u64..300), 1..60),
        stays in prop::collection::vec((any::<bool>(), any::<bool>()), 1..40),
    ) {
        let mut queue = Queue::new(SETTINGS);
        let (mut now, mut inserted, mut went, mut left) = (Duration::ZERO, 0, 0, 0);
        let mut stays = stays.iter().cycle();
        let mut insertions = insertions.into_iter();
        for _ in 0..600 {
            if let Some((inode, first, count, wait)) = insertions.next() {
                now += Duration::from_millis(wait);
                queue.insert(now, &insertion(inode, first..first + count), AHEAD);
                inserted += count;
            } else {
                now += SECOND;
            }
            for due in queue.due(now) {
                let (goes, unwritten) = *stays.next().unwrap();
                let count = due.pages.end - due.pages.start;
                let half = due.pages.start + if goes { count / 2 } else { 0 };
                went += half - due.pages.start;
                let (again, was) = (queue.stayed(now, &due, half..due.pages.end, unwritten), (due.attempts, due.writes));
                let is_last = was.0 + 1 >= SETTINGS.attempts || was.1 + 1 >= SETTINGS.write_attempts;
                prop_assert!(again || (is_last && due.early.is_none_or(|at| at <= now)), "given up early: {due:?}");
                left += if again { 0 } else { due.pages.end - half };
            }
            prop_assert_eq!(queue.waiting().0, inserted - went - left);
            prop_assert_eq!(queue.due(now).iter().filter(|due| due.early.is_none()).count(), 0, "all that is due is told at once");
        }
    }

    #[test]
    fn more_time_never_makes_fewer_pages_due(counts in prop::collection::vec(1u64..600, 1..40), early in 0u64..3000, more in 0u64..3000) {
        let gone = |at: u64| {
            let mut queue = Queue::new(SETTINGS);
            let mut first = 0;
            for count in &counts {
                queue.insert(Duration::ZERO, &insertion(1, first..first + count), AHEAD);
                first += count;
            }
            pages(&queue.due(Duration::from_millis(at)))
        };
        prop_assert!(gone(early) <= gone(early + more));
    }
}
