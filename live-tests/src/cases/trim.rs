//! Freeing the unused parts of huge pages: programs that got huge pages at the first touch, trimmed from outside.

use std::time::{Duration, Instant};

use hugepages::trim::observe::{Content, Reader};
use hugepages::trim::policy::{MEASURED, SAMPLES, Settings};
use hugepages::trim::{Round, Trimmer};
use linux::probe::HostFacts;
use units::{Fraction, NonZeroFraction, Pages};

use super::collapse::collapse;
use super::{Outcome, huge_bytes, no_automatic_huge_pages, present_pages};
use crate::host::{Host, LiveTest, tests};
use crate::target_process::{Backing, Mapping, TargetProcess};

/// Tests of this file, and their requirements.
pub(crate) const TESTS: &[LiveTest] = tests! {
    trim requires [Root, PageFrames, RemoteAdvice, RemoteCollapse, HugePageModes];
    thin_windows_shrink_to_what_was_touched_and_keep_their_content;
    dense_windows_are_left_as_they_are;
    a_window_is_not_split_while_it_is_being_filled;
    windows_that_move_after_each_scan_are_split_like_those_that_stay;
    a_single_byte_anywhere_makes_a_page_not_zero;
    looking_brings_nothing_into_memory;
    windows_that_a_fork_shares_and_locked_ones_are_left_alone;
    a_window_that_fills_up_after_it_was_split_is_promoted_again;
    a_stopped_programs_windows_are_left_until_it_runs;
    windows_torn_between_two_scans_are_split [PagemapScan];
    a_program_that_execs_is_trimmed_anew_and_one_that_ends_is_gone;
    what_a_look_and_a_count_cost;
};

type Result<T> = std::result::Result<T, libtest_mimic::Failed>;

/// Settings of a run, with seconds shortened to a twentieth.
fn settings() -> Settings {
    let short = Duration::from_millis(50);
    Settings {
        max_extra_rss: Fraction::clamped(0.1),
        still_for: short,
        scan_every: (short, 2 * short),
        scan_fraction: NonZeroFraction::ratio(1, 1),
        ..MEASURED
    }
}

/// Windows that are huge from the first touch on, as the preloaded library has them.
fn advised(process: &mut TargetProcess, windows: u64) -> Result<Mapping> {
    let heap = process.map(Backing::Anonymous, windows)?;
    process.advise(heap.all(), libc::MADV_HUGEPAGE)?;
    Ok(heap)
}

/// Makes all windows huge, also where the kernel had no huge page at the first touch.
fn all_huge(host: &Host, process: &TargetProcess, heap: Mapping) -> Outcome {
    if huge_bytes(host, process, heap)? != heap.range().bytes().0 {
        collapse(process, heap)?;
    }
    assert_eq!(huge_bytes(host, process, heap)?, heap.range().bytes().0);
    Ok(())
}

fn trimmer(host: &Host, process: &TargetProcess) -> Result<Trimmer> {
    Ok(Trimmer::open(host.files().clone(), process.pid(), settings())?)
}

/// Runs `count` rounds, each at the time requested by the last one.
fn rounds(trimmer: &mut Trimmer, count: usize) -> Result<Vec<Round>> {
    let mut rounds = Vec::new();
    for _ in 0..count {
        let round = trimmer.round(clock(), &|| false)?;
        std::thread::sleep(round.next_scan.max(Duration::from_millis(1)));
        rounds.push(round);
    }
    Ok(rounds)
}

/// One clock for all rounds of a trimmer.
fn clock() -> Duration {
    static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    START.get_or_init(Instant::now).elapsed()
}

fn returns_memory(host: &Host) -> bool {
    HostFacts::gather(host.files()).split_frees_zero_pages.is_yes()
}

/// Private pages of the program: the zero page is not counted.
fn own_pages(process: &TargetProcess, heap: Mapping) -> Result<u64> {
    let viewer = access::residency::Viewer::open(process.pid())?;
    let mut pages = 0;
    for window in heap.windows() {
        pages += viewer.window(window)?.resident.0;
    }
    Ok(pages)
}

/// 64 of 512 pages of each window are written: the rest is freed, up to 10 % more than on small pages.
fn thin_windows_shrink_to_what_was_touched_and_keep_their_content(host: &Host) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let mut process = TargetProcess::start()?;
    let heap = advised(&mut process, 16)?;
    process.write(heap.all().every(8), 7)?;
    all_huge(host, &process, heap)?;
    assert_eq!(own_pages(&process, heap)?, 16 * 512);

    let mut trimmer = trimmer(host, &process)?;
    let all = rounds(&mut trimmer, 12)?;

    process.check(heap.all().every(8), 7)?;
    if !returns_memory(host) {
        assert!(
            !trimmer.returns_memory() && trimmer.totals.demoted <= 4,
            "{} splits for nothing",
            trimmer.totals.demoted
        );
        return Ok(());
    }
    let left = own_pages(&process, heap)?;
    assert!(left <= 16 * 64 * 11 / 10, "{left} pages: {all:?}");
    assert_eq!(trimmer.totals.returned, Pages(16 * 512 - left).bytes());
    let last = all.last().ok_or("no round")?;
    assert!(last.extra <= last.allowed, "{last:?}");
    // The pages that came back are zero still, and there when they are wanted.
    process.write(heap.page(1), 9)?;
    process.check(heap.page(1), 9)?;
    process.check(heap.all().every(8), 7)?;
    Ok(())
}

/// Beside thin windows, and no more of those are split than necessary.
fn dense_windows_are_left_as_they_are(host: &Host) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let mut process = TargetProcess::start()?;
    let dense = advised(&mut process, 4)?;
    let thin = advised(&mut process, 4)?;
    process.write(dense.all(), 7)?;
    process.write(thin.all().every(8), 7)?;
    all_huge(host, &process, dense)?;
    all_huge(host, &process, thin)?;

    let mut trimmer = trimmer(host, &process)?;
    rounds(&mut trimmer, 8)?;

    assert_eq!(huge_bytes(host, &process, dense)?, dense.range().bytes().0, "all of the dense ones are huge");
    assert!(trimmer.totals.demoted >= 4 || !returns_memory(host), "{} were split", trimmer.totals.demoted);
    assert_eq!(trimmer.totals.counted, 2 * trimmer.totals.demoted, "what was not split was not read as a whole");
    process.check(dense.all(), 7)?;
    process.check(thin.all().every(8), 7)?;
    Ok(())
}

/// A page every few milliseconds, from the first to the last.
fn a_window_is_not_split_while_it_is_being_filled(host: &Host) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let mut process = TargetProcess::start()?;
    let heap = advised(&mut process, 1)?;
    process.write(heap.page(0), 7)?;
    all_huge(host, &process, heap)?;
    let mut trimmer = trimmer(host, &process)?;
    let mut due = Instant::now();
    let mut looked = 0;
    for page in 1..512 {
        process.write(heap.page(page), 7)?;
        std::thread::sleep(Duration::from_millis(2));
        if Instant::now() >= due {
            let round = trimmer.round(clock(), &|| false)?;
            looked += 1;
            due = Instant::now() + round.next_scan;
            assert_eq!(round.demoted, 0, "split in look {looked}, at page {page}");
        }
    }
    assert!(looked >= 5, "{looked} looks are too few to say anything");
    rounds(&mut trimmer, 6)?;
    assert_eq!(trimmer.totals.demoted, 0, "and it is full now");
    process.check(heap.all(), 7)?;
    Ok(())
}

/// All of a mapping, and the middle of another; where frames are visible.
fn windows_that_move_after_each_scan_are_split_like_those_that_stay(host: &Host) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    if !returns_memory(host) {
        return Ok(());
    }
    let mut process = TargetProcess::start()?;
    let mut whole = advised(&mut process, 4)?;
    let rest = advised(&mut process, 6)?;
    for heap in [whole, rest] {
        process.write(heap.all().every(8), 7)?;
        all_huge(host, &process, heap)?;
    }
    let mut part = rest.pages(512, 3 * 512);
    let mut trimmer = trimmer(host, &process)?;
    for _ in 0..12 {
        rounds(&mut trimmer, 1)?;
        whole = process.move_away(whole.all())?;
        part = process.move_away(part)?.all();
    }
    let totals = trimmer.totals;
    assert!(totals.demoted >= 9, "a tenth may stay: {totals:?}");
    assert_eq!(totals.counted, 2 * totals.demoted, "{totals:?}");
    assert!(own_pages(&process, whole)? < 4 * 512);
    Ok(())
}

/// A single byte counts, at every position.
fn a_single_byte_anywhere_makes_a_page_not_zero(host: &Host) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let mut process = TargetProcess::start()?;
    let heap = advised(&mut process, 1)?;
    let window = heap.windows()[0];
    process.write_byte(heap.page(0), 0)?;
    all_huge(host, &process, heap)?;
    let reader = Reader::open(process.pid())?;
    assert_eq!(reader.count(window)?, Some(Pages(511)));
    for (set, at) in (2..).zip([1, 63, 64, 2047, 2048, 4094, 4095]) {
        process.write_byte(heap.page(set * 50), at)?;
        assert_eq!(reader.count(window)?, Some(Pages(512 - set)), "byte {at}");
    }
    process.write_byte(heap.all(), 1234)?;
    assert_eq!(reader.count(window)?, Some(Pages(0)));
    // It is not split, whatever the samples: they never show fewer pages than there are.
    let mut trimmer = trimmer(host, &process)?;
    rounds(&mut trimmer, 8)?;
    assert_eq!(trimmer.totals.demoted, 0);
    assert!(huge_bytes(host, &process, heap)? > 0);
    Ok(())
}

/// Pages that are not huge are not read, so that scanning brings nothing into memory.
fn looking_brings_nothing_into_memory(host: &Host) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let mut process = TargetProcess::start()?;
    let heap = process.map(Backing::Anonymous, 3)?;
    process.write(heap.page(5), 7)?;
    process.read(heap.pages(512, 520))?;
    let before = present_pages(&process, heap)?;
    let reader = Reader::open(process.pid())?;
    for window in heap.windows() {
        assert_eq!((reader.sample(window)?, reader.count(window)?), (None, None));
    }
    let mut trimmer = trimmer(host, &process)?;
    rounds(&mut trimmer, 3)?;
    assert_eq!(present_pages(&process, heap)?, before);
    // Shared memory and files are left alone, huge or not.
    let shared = process.map(Backing::SharedAnonymous, 1)?;
    process.advise(shared.all(), libc::MADV_HUGEPAGE)?;
    process.write(shared.page(5), 7)?;
    let round = rounds(&mut trimmer, 1)?[0];
    assert_eq!(round.huge_windows, 0);
    Ok(())
}

/// Splitting memory shared by a fork would copy nothing and free nothing; locked memory does not split.
fn windows_that_a_fork_shares_and_locked_ones_are_left_alone(host: &Host) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let mut process = TargetProcess::start()?;
    let heap = advised(&mut process, 2)?;
    process.write(heap.all().every(8), 7)?;
    all_huge(host, &process, heap)?;
    let fork = process.fork()?;
    let mut shared = trimmer(host, &process)?;
    rounds(&mut shared, 8)?;
    assert_eq!((shared.totals.demoted, shared.totals.counted), (0, 0));
    let both = (huge_bytes(host, &process, heap)?, own_pages(&process, heap)?);
    assert_eq!(both, (heap.range().bytes().0, 2 * 512), "reading what is shared would have split and copied it");
    assert_eq!(shared.totals.shared_left, (2, heap.range().bytes()), "their content is not known");
    process.check_in_fork(fork, heap.all().every(8), 7)?;
    process.end_fork(fork)?;
    if returns_memory(host) {
        rounds(&mut shared, 8)?;
        assert_eq!(shared.totals.demoted, 2);
    }

    let locked = advised(&mut process, 1)?;
    process.write(locked.all().every(8), 7)?;
    all_huge(host, &process, locked)?;
    process.lock(locked.all())?;
    let mut trimmer = trimmer(host, &process)?;
    rounds(&mut trimmer, 20)?;
    assert_eq!(huge_bytes(host, &process, locked)?, locked.range().bytes().0);
    assert_eq!(own_pages(&process, locked)?, 512);
    process.check(heap.all().every(8), 7)?;
    process.check(locked.all().every(8), 7)?;
    Ok(())
}

/// With small pages it would not be huge again before khugepaged came by.
fn a_window_that_fills_up_after_it_was_split_is_promoted_again(host: &Host) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    if !returns_memory(host) {
        return Ok(());
    }
    let mut process = TargetProcess::start()?;
    let heap = advised(&mut process, 2)?;
    process.write(heap.all().every(8), 7)?;
    all_huge(host, &process, heap)?;
    let mut trimmer = trimmer(host, &process)?;
    rounds(&mut trimmer, 6)?;
    assert_eq!((trimmer.totals.demoted, huge_bytes(host, &process, heap)?), (2, 0));
    process.write(heap.window(0), 7)?;
    rounds(&mut trimmer, 30)?;
    assert_eq!(trimmer.totals.promoted_again, 1);
    assert_eq!(huge_bytes(host, &process, heap)?, 2 << 20);
    process.check(heap.window(0), 7)?;
    process.check(heap.all().every(8), 7)?;
    Ok(())
}

/// The process stays, its memory does not; then neither.
fn a_program_that_execs_is_trimmed_anew_and_one_that_ends_is_gone(host: &Host) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let mut process = TargetProcess::start()?;
    let heap = advised(&mut process, 2)?;
    process.write(heap.all().every(8), 7)?;
    let mut trimmer = trimmer(host, &process)?;
    rounds(&mut trimmer, 2)?;
    process.exec()?;
    let fresh = advised(&mut process, 3)?;
    process.write(fresh.all().every(8), 3)?;
    all_huge(host, &process, fresh)?;
    let first = rounds(&mut trimmer, 1)?[0];
    assert_eq!((first.huge_windows, first.demoted), (3, 0));
    rounds(&mut trimmer, 6)?;
    assert!(trimmer.totals.demoted == 3 || !returns_memory(host));
    process.check(fresh.all().every(8), 3)?;
    process.kill();
    let gone = trimmer.round(clock(), &|| false).expect_err("it has ended");
    assert!(gone.is_gone(), "{gone}");
    let never = Reader::open(process.pid()).map(drop).expect_err("it has ended");
    assert!(never.is_gone(), "{never}");
    Ok(())
}

/// No bound on the machine: a bound on the ratio. A sample must be worth taking.
fn what_a_look_and_a_count_cost(host: &Host) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let mut process = TargetProcess::start()?;
    let heap = advised(&mut process, 64)?;
    process.write(heap.all().every(8), 7)?;
    all_huge(host, &process, heap)?;
    let reader = Reader::open(process.pid())?;
    let windows = heap.windows();
    let cost = |work: &dyn Fn() -> Outcome| -> Result<Duration> {
        let mut best = Duration::MAX;
        for _ in 0..3 {
            let begun = reader.cpu_time();
            work()?;
            best = best.min(reader.cpu_time().saturating_sub(begun) / 64);
        }
        Ok(best)
    };
    let find = cost(&|| {
        assert_eq!(reader.huge_windows(heap.range())?, windows);
        Ok(())
    })?;
    let sample = cost(&|| {
        for window in &windows {
            let zero = reader.sample(*window)?.ok_or("not huge")?;
            assert!(zero.0 > SAMPLES as u64 / 2, "{zero:?} of the sampled pages are zero");
        }
        Ok(())
    })?;
    let count = cost(&|| {
        for window in &windows {
            assert_eq!(reader.count(*window)?, Some(Pages(448)));
        }
        Ok(())
    })?;
    println!("per window: found in {find:?}, sampled in {sample:?}, counted in {count:?}");
    assert!(sample < count, "a sample takes {sample:?}, all of it {count:?}");
    Ok(())
}

/// Huge and given back in part before the first scan, and again between two: the trimmer never saw them huge. Linux 6.1
/// does not count torn pages, and has no PAGEMAP_SCAN either.
fn windows_torn_between_two_scans_are_split(host: &Host) -> Outcome {
    const WINDOWS: u64 = 4;
    let _quiet = no_automatic_huge_pages()?;
    let mut process = TargetProcess::start()?;
    let heap = advised(&mut process, WINDOWS)?;
    let mut trimmer = trimmer(host, &process)?;
    for times in 1..=2 {
        process.write(heap.all(), 7)?;
        all_huge(host, &process, heap)?;
        (0..WINDOWS)
            .try_for_each(|window| process.advise(heap.pages(window * 512, window * 512 + 384), libc::MADV_DONTNEED))?;
        rounds(&mut trimmer, 2)?;
        let totals = trimmer.totals;
        assert_eq!(
            (totals.torn, totals.torn_returned.0),
            (times * WINDOWS, times * WINDOWS * 384 * 4096),
            "{totals:?}"
        );
        (0..WINDOWS).try_for_each(|window| process.check(heap.pages(window * 512 + 384, window * 512 + 512), 7))?;
        process.advise(heap.all(), libc::MADV_DONTNEED)?;
    }
    Ok(())
}

/// Stopped in the middle of its work: unused memory is no sign, and is returned when the program runs again.
fn a_stopped_programs_windows_are_left_until_it_runs(host: &Host) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let returns = HostFacts::gather(host.files()).split_frees_zero_pages.is_yes();
    let mut process = TargetProcess::start()?;
    let heap = advised(&mut process, 3)?;
    (0..3).try_for_each(|window| process.write(heap.window(window).first(20), 7))?;
    all_huge(host, &process, heap)?;
    let pid = rustix::process::Pid::from_raw(process.pid().0).ok_or("no process")?;
    let mut trimmer = trimmer(host, &process)?;
    rustix::process::kill_process(pid, rustix::process::Signal::STOP)?;
    let stopped = rounds(&mut trimmer, 8);
    rustix::process::kill_process(pid, rustix::process::Signal::CONT)?;
    assert!(stopped?.iter().all(|round| round.demoted == 0));
    rounds(&mut trimmer, 10)?;
    assert!(!returns || trimmer.totals.demoted == 3, "{:?}", trimmer.totals);
    (0..3).try_for_each(|window| process.check(heap.window(window).first(20), 7))?;
    Ok(())
}
