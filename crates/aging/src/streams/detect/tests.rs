use access::insertions::FileId;
use std::ops::Range;

use super::*;

fn insertion(inode: u64, pages: Range<u64>) -> Insertion {
    Insertion { file: FileId { device: (8, 1), inode, generation: 0 }, pages, process: Pid(7) }
}

fn pages(parts: &[Part]) -> u64 {
    parts.iter().map(|part| part.insertion.pages.end - part.insertion.pages.start).sum()
}

fn insertion_of(process: i32, inode: u64, pages: Range<u64>) -> Insertion {
    Insertion { process: Pid(process), ..insertion(inode, pages) }
}

#[test]
fn many_small_readers_hide_no_stream() {
    let mut detector = Detector::default();
    for nth in 0..MUCH.0 / 128 {
        for other in 0..50 {
            let pid = i32::try_from(100 + nth * 50 + other).unwrap();
            detector.add(insertion_of(pid, 9, 0..1));
        }
        detector.add(insertion(1, nth * 128..(nth + 1) * 128));
    }
    assert_eq!(detector.streams().collect::<Vec<_>>(), [Pid(7)]);
    assert!(detector.processes.len() <= PROCESSES_MOST + 1);
}

#[test]
fn a_process_that_reads_many_files_makes_masu_forget_its_own() {
    let mut detector = Detector::default();
    detector.add(insertion_of(7, 1, 0..4));
    for inode in 0..=FILES_MOST as u64 {
        detector.add(insertion_of(8, 10 + inode, 0..1));
    }
    assert_eq!(detector.processes[&Pid(7)].passes.files(), 1);
    assert!(detector.processes[&Pid(8)].passes.files() < FILES_MOST);
}

#[test]
fn a_copy_is_a_stream_from_its_first_page_on() {
    let mut detector = Detector::default();
    let found: u64 = (0..300).map(|n| pages(&detector.add(insertion(1, n * 128..(n + 1) * 128)))).sum();
    assert_eq!(found, 300 * 128);
    assert_eq!(detector.streams().collect::<Vec<_>>(), [Pid(7)]);
}

#[test]
fn a_backup_of_many_small_files_is_a_stream() {
    let mut detector = Detector::default();
    let found: u64 = (0..3000).map(|inode| pages(&detector.add(insertion(inode, 0..8)))).sum();
    assert_eq!(found, 3000 * 8);
}

#[test]
fn a_database_with_random_lookups_is_no_stream() {
    let mut detector = Detector::default();
    let found: u64 = (0..20_000u64)
        .map(|n| pages(&detector.add(insertion(1, (n * 7919) % 100_000 + 1..(n * 7919) % 100_000 + 5))))
        .sum();
    assert_eq!((found, detector.streams().count()), (0, 0));
}

#[test]
fn a_process_becomes_a_stream_after_lookups_and_stops_being_one() {
    let mut detector = Detector::default();
    for n in 0..5_000u64 {
        detector.add(insertion(1, (n * 7919) % 100_000 + 1..(n * 7919) % 100_000 + 5));
    }
    let found: u64 = (0..600).map(|n| pages(&detector.add(insertion(2, n * 128..(n + 1) * 128)))).sum();
    assert!(found >= 400 * 128, "{found}");
    for n in 0..20_000u64 {
        detector.add(insertion(1, (n * 7919) % 100_000 + 1..(n * 7919) % 100_000 + 5));
    }
    assert_eq!((detector.streams().count(), detector.ended()), (0, vec![(Pid(7), Ended::Scattered)]));
}

#[test]
fn two_passes_over_everything_in_order_are_a_stream_and_the_third_is_none() {
    for (files, each) in [(32u64, 6144u64), (1, 196_608), (12_000, 16)] {
        let mut detector = Detector::default();
        let pass = |detector: &mut Detector, is_backwards: bool| {
            let mut found = BTreeMap::<Time, u64>::new();
            for file in 0..files {
                let inode = if is_backwards { files - file } else { 1 + file };
                for first in (0..each).step_by(128) {
                    for part in detector.add(insertion(inode, first..(first + 128).min(each))) {
                        let time = part.time;
                        *found.entry(time).or_default() += pages(&[part]);
                    }
                }
            }
            found
        };
        let all = files * each;
        assert_eq!(pass(&mut detector, false), [(Time::First, all)].into());
        assert_eq!(pass(&mut detector, true), [(Time::Second, all)].into(), "in whichever order of the files");
        assert_eq!((detector.streams().count(), detector.ended()), (1, vec![]));
        let third = pass(&mut detector, false);
        assert!(third.keys().all(|time| *time == Time::Later), "{third:?}");
        assert_eq!((detector.streams().count(), detector.ended()), (0, vec![(Pid(7), Ended::ReadsAgain)]));
        assert_eq!(pass(&mut detector, false), [].into(), "constant use");
    }
}

#[test]
fn a_server_that_reads_its_files_again_and_again_is_no_stream_until_it_reads_others() {
    let mut detector = Detector::default();
    let site = |detector: &mut Detector, files: std::ops::Range<u64>| {
        files.map(|inode| pages(&detector.add(insertion(inode, 0..8)))).sum::<u64>()
    };
    assert_eq!(site(&mut detector, 0..4200), 4200 * 8, "a server that begins looks like a backup");
    site(&mut detector, 0..4200);
    site(&mut detector, 0..4200);
    site(&mut detector, 0..4200);
    assert_eq!(detector.streams().count(), 0);
    assert_eq!(site(&mut detector, 0..4200), 0, "now it has them, if there is room");
    site(&mut detector, 4200..12_000);
    assert_eq!(detector.streams().count(), 1);
}

#[test]
fn the_memory_of_the_detector_is_bounded() {
    let mut detector = Detector::default();
    for pid in 0..5000 {
        detector.add(Insertion { process: Pid(pid), ..insertion(1, 1..2) });
    }
    assert!(detector.processes.len() <= PROCESSES_MOST);
    for inode in 0..2 * FILES_MOST as u64 {
        detector.add(insertion(inode, 0..1));
    }
    assert!(detector.processes.values().map(|of| of.passes.files()).sum::<usize>() <= FILES_MOST);
    detector.forget(|_| true);
    assert!(detector.processes.is_empty());
}
