use proptest::prelude::*;
use units::AddressRange;

use super::*;

const PRESENT: u64 = 1 << 63;
const FILE: u64 = 1 << 61;

fn mapping(line: &str) -> Mapping {
    linux::maps::parse(line, "maps").unwrap().remove(0)
}

fn anonymous() -> Mapping {
    mapping("200000-800000 rw-p 00000000 00:00 0 \n")
}

fn flags(flags: &[VmFlag]) -> VmFlags {
    flags.iter().copied().collect()
}

const MADVISE: Giving = Giving { enabled: Enabled::Madvise, forbidden: false };
const ALWAYS: Giving = Giving { enabled: Enabled::Always, forbidden: false };

#[test]
fn a_window_that_was_huge_at_an_earlier_count_is_downgraded_wherever_its_pages_are() {
    for by_frames in [Fate::Failed, Fate::NotHuge, Fate::Downgraded] {
        assert_eq!(with_history(by_frames, true), Fate::Downgraded);
        assert_eq!(with_history(by_frames, false), by_frames);
    }
    for other in [Fate::Allocated, Fate::Untouched, Fate::SwappedOut] {
        assert_eq!(with_history(other, true), other);
    }
}

#[test]
fn who_gets_huge_pages_is_the_hosts_mode_the_advice_and_the_programs_own_word() {
    let (plain, advised, unwanted) = (flags(&[]), flags(&[VmFlag::HugePage]), flags(&[VmFlag::NoHugePage]));
    let gets = |flags, giving| would_get(&anonymous(), flags, giving);
    assert_eq!([plain, advised, unwanted].map(|flags| gets(flags, MADVISE)), [false, true, false]);
    assert_eq!([plain, advised, unwanted].map(|flags| gets(flags, ALWAYS)), [true, true, false]);
    let never = Giving { enabled: Enabled::Never, forbidden: false };
    assert_eq!([plain, advised, unwanted].map(|flags| gets(flags, never)), [false; 3]);
    let forbidden = Giving { forbidden: true, ..ALWAYS };
    assert_eq!([plain, advised, unwanted].map(|flags| gets(flags, forbidden)), [false; 3]);
}

#[test]
fn files_shared_memory_and_address_space_that_is_only_set_aside_get_none() {
    for line in [
        "200000-800000 ---p 00000000 00:00 0 \n",
        "200000-800000 rw-s 00000000 00:01 9 /dev/zero (deleted)\n",
        "200000-800000 rw-p 00000000 08:01 9 /usr/bin/x\n",
    ] {
        assert!(!would_get(&mapping(line), flags(&[VmFlag::HugePage]), ALWAYS), "{line}");
    }
    assert!(!would_get(&anonymous(), flags(&[VmFlag::HugeTlb]), ALWAYS));
}

fn run(first_page: u64, end_page: u64, huge: bool) -> Run {
    let range = AddressRange::new(first_page * 4096, end_page * 4096).unwrap();
    Run { range, present: true, swapped: false, zero: false, huge }
}

#[test]
fn runs_are_shared_out_among_their_windows() {
    let mut windows = BTreeMap::new();
    let swapped = Run { present: false, swapped: true, ..run(1600, 1700, false) };
    let zeros = Run { zero: true, huge: true, ..run(2048, 2560, true) };
    contents(&mut windows, &[run(500, 600, false), run(1024, 1536, true), swapped, zeros]);
    let found: Vec<_> = windows
        .iter()
        .map(|(window, contents)| (window.0, contents.resident, contents.swapped, contents.huge))
        .collect();
    assert_eq!(found, [(0, 12, 0, 0), (1, 88, 0, 0), (2, 512, 0, 512), (3, 0, 100, 0)]);
    assert!(windows[&Window(2)].is_huge() && !windows[&Window(1)].is_huge());
}

/// Entries of a window: page n in the frame `frame(n)`, or not present.
fn entries(frame: impl Fn(u64) -> Option<u64>) -> Vec<PageEntry> {
    (0..512).map(|page| PageEntry(frame(page).map_or(0, |frame| PRESENT | frame))).collect()
}

const BASE: u64 = 77 * 512;

fn judged(entries: &[PageEntry], extent: Extent) -> Option<bool> {
    let resident = entries.iter().filter(|entry| entry.is_present()).count() as u64;
    once_huge(frames(entries, |_| false), resident, extent, false)
}

#[test]
fn the_pages_of_a_split_huge_page_keep_their_frames() {
    assert_eq!(judged(&entries(|page| Some(BASE + page)), Extent::Whole), Some(true));
    // 64 of 512 are left: the others hold only zeros.
    let sparse = entries(|page| (page % 8 == 3).then_some(BASE + page));
    assert_eq!(judged(&sparse, Extent::Whole), Some(true));
    assert_eq!(judged(&sparse, Extent::Edge), Some(true));
    // Two are left, and one more was given alone since.
    let few = entries(|page| match page {
        9 | 400 => Some(BASE + page),
        10 => Some(4711),
        _ => None,
    });
    assert_eq!(judged(&few, Extent::Whole), Some(true));
    assert_eq!(judged(&few, Extent::Edge), Some(false), "too few to be sure");
    let full = entries(|page| Some(BASE + page));
    assert_eq!(judged(&full, Extent::Unwanted), Some(false), "a large free block, filled from its start");
}

#[test]
fn pages_that_were_given_one_by_one_do_not_fit() {
    assert_eq!(judged(&entries(|page| Some(BASE + page * 7 + 3)), Extent::Whole), Some(false));
    // In a row, from a block that begins somewhere else.
    assert_eq!(judged(&entries(|page| Some(BASE + page + 100)), Extent::Whole), Some(false));
    // Half of them by chance in two blocks: no base has enough.
    let torn = entries(|page| Some(if page < 200 { BASE + page } else { page * 3 + 5 }));
    assert_eq!(judged(&torn, Extent::Whole), Some(false));
}

#[test]
fn a_reader_who_may_not_see_frames_does_not_know() {
    let hidden: Vec<PageEntry> = (0..512).map(|page| PageEntry(if page == 5 { PRESENT } else { 0 })).collect();
    assert_eq!(judged(&hidden, Extent::Whole), None);
    assert_eq!(frames(&[], |_| false), Frames::NoBase);
}

#[test]
fn pages_of_files_and_of_smaller_blocks_do_not_count() {
    let files: Vec<PageEntry> = (0..512).map(|page| PageEntry(PRESENT | FILE | (BASE + page))).collect();
    assert_eq!(frames(&files, |_| false), Frames::NoBase);
    // A block of 1 MiB is aligned to its size, and so to 2 MiB every other time.
    let block = entries(|page| Some(if page < 256 { BASE + page } else { page * 3 }));
    assert!(matches!(frames(&block, |_| false), Frames::Base(Base { frame: BASE, fits: 256.. })));
    assert!(!matches!(frames(&block, |page| page < 256), Frames::Base(Base { frame: BASE, .. })));
}

#[test]
fn what_is_one_huge_page_to_the_kernel_still_is_sure() {
    let one = frames(&entries(|page| (page == 3).then_some(BASE + 3)), |_| false);
    assert_eq!(once_huge(one, 1, Extent::Edge, true), Some(true));
    assert_eq!(once_huge(one, 1, Extent::Unwanted, true), Some(true));
    assert_eq!(once_huge(one, 1, Extent::Edge, false), Some(false));
    assert_eq!(once_huge(one, 1, Extent::Whole, false), Some(true));
}

#[test]
fn the_fate_is_what_the_window_holds_and_then_where_that_lies() {
    let contents = |resident, swapped, huge| Contents { resident, swapped, huge };
    assert_eq!(fate(contents(512, 0, 512), None), Fate::Allocated);
    assert_eq!(fate(contents(0, 0, 0), None), Fate::Untouched);
    assert_eq!(fate(contents(0, 3, 0), Some(false)), Fate::SwappedOut);
    assert_eq!(fate(contents(3, 9, 0), Some(true)), Fate::Downgraded);
    assert_eq!(fate(contents(3, 0, 0), Some(false)), Fate::Failed);
    assert_eq!(fate(contents(3, 0, 0), None), Fate::NotHuge);
}

#[test]
fn a_window_that_nobody_would_have_made_huge_counts_if_it_is_or_was() {
    let mut tally = Tally::default();
    for fate in [Fate::Untouched, Fate::Failed, Fate::NotHuge, Fate::SwappedOut] {
        tally.add(false, fate, Pages(0));
    }
    assert_eq!(tally, Tally::default());
    tally.add(false, Fate::Allocated, Pages(0));
    tally.add(false, Fate::Downgraded, Pages(0));
    assert_eq!((tally.reserved, tally.allocated, tally.downgraded), (2, 1, 1));
}

#[test]
fn blocks_are_told_from_single_pages() {
    let (head, tail, single) = (FrameFlags::of(1 << 15), FrameFlags::of(1 << 16), FrameFlags::of(0));
    // The last pages of a block that began before, two blocks of four, a single page, a block that goes beyond the run.
    let mut flags = vec![tail, tail, head, tail, tail, tail, head, tail, tail, tail, single, head];
    let run = flags.len();
    flags.extend([tail; 7]);
    flags.push(head);
    let expected = [Block { first: 2, pages: 4 }, Block { first: 6, pages: 4 }, Block { first: 11, pages: 8 }];
    assert_eq!(blocks(run, &flags), expected);
    assert_eq!(blocks(0, &[]), []);
}

#[test]
fn only_pages_in_a_row_are_asked_about() {
    let found = frame_runs(&entries(|page| match page {
        0..3 => Some(900 + page),
        8..16 => Some(5000 + page),
        16..24 => Some(9000 + page),
        30 => Some(1),
        _ => None,
    }));
    let run = |page, frame, pages| FrameRun { page, frame, pages };
    assert_eq!(found, [run(8, 5008, 8), run(16, 9016, 8)]);
}

fn any_fate() -> impl Strategy<Value = Fate> {
    let contents = (0u64..=512, 0u64..=512, prop::bool::ANY);
    (contents, prop::option::of(prop::bool::ANY)).prop_map(|((resident, swapped, huge), once)| {
        let huge = if huge { 512 } else { 0 };
        fate(Contents { resident: resident.max(huge), swapped, huge }, once)
    })
}

proptest! {
    #[test]
    fn no_more_is_counted_than_is_reserved(windows in prop::collection::vec((prop::bool::ANY, any_fate()), 0..200)) {
        let mut tally = Tally::default();
        for (would_get, fate) in &windows {
            tally.add(*would_get, *fate, Pages(3));
        }
        let Tally { reserved, allocated, failed, downgraded, not_known, swapped_out, torn_pages } = tally;
        prop_assert!(allocated + failed + downgraded + not_known + swapped_out <= reserved);
        prop_assert!(reserved <= windows.len() as u64);
        prop_assert_eq!(torn_pages, 3 * windows.len() as u64);
        prop_assert!(reserved >= windows.iter().filter(|(would_get, _)| *would_get).count() as u64);
    }

    #[test]
    fn a_split_huge_page_is_found_whichever_of_its_pages_are_left(
        base in 1u64..1 << 30,
        left in prop::collection::btree_set(0u64..512, 1..512),
    ) {
        let window = entries(|page| left.contains(&page).then_some(base * 512 + page));
        prop_assert_eq!(judged(&window, Extent::Whole), Some(true));
    }

    #[test]
    fn any_entries_are_judged_without_a_panic(words in prop::collection::vec(any::<u64>(), 0..600)) {
        let window: Vec<PageEntry> = words.into_iter().map(PageEntry).collect();
        let _ = judged(&window, Extent::Edge);
        for run in frame_runs(&window) {
            prop_assert!(run.pages >= 4 && run.page + run.pages <= 512);
        }
    }
}
