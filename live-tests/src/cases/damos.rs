//! DAMON's schemes on physical memory: moved pages, untouched pages, and complete removal of the schemes.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::thread::{available_parallelism, sleep};
use std::time::{Duration, Instant};

use linux::damon::physical::{
    Action, Draft, Filter, FilterKind, FilterRule, Looks, Quota, Running, Scheme, Stats, offered, promise_undo,
};
use linux::journal::{self, Knobs};
use linux::kpageflags::FrameTable;
use linux::pagemap::Pagemap;
use linux::{Error, Rooted};
use rustix::io::Errno;
use units::Bytes;

use super::run::Folder;
use super::{Outcome, no_automatic_huge_pages};
use crate::group::Group;
use crate::knob::Knob;
use crate::live::Live;
use crate::toy::{Backing, Mapping, ToyProcess};

const ADMIN: &str = "/sys/kernel/mm/damon/admin";
const KDAMONDS: &str = "/sys/kernel/mm/damon/admin/kdamonds";
const SCHEME: &str = "0/contexts/0/schemes/0";

/// A pass over all memory takes an emulated machine a second.
const LOOKS: Looks = Looks {
    sample_interval: Duration::from_millis(200),
    aggregation_interval: Duration::from_secs(1),
    min_regions: 10,
    max_regions: 100,
};

const PATIENCE: Duration = Duration::from_secs(120);

/// A scheme for any access frequency, without a bound.
fn always(action: Action, filters: Vec<FilterRule>) -> Scheme {
    let (nr_accesses, age) = (0..=u32::MAX, 0..=u32::MAX);
    Scheme { action, filters, nr_accesses, age, quota: None, apply_interval: None }
}

fn nr_kdamonds() -> std::io::Result<String> {
    Ok(fs::read_to_string(format!("{KDAMONDS}/nr_kdamonds"))?.trim().to_owned())
}

/// A kdamond as another program would set one up, with a scheme. It does not run. Dropping it removes it.
struct Strangers;

impl Strangers {
    fn set_up() -> std::io::Result<Strangers> {
        fs::write(format!("{KDAMONDS}/nr_kdamonds"), "1")?;
        let theirs = Strangers;
        theirs.write("0/contexts/nr_contexts", "1")?;
        theirs.write("0/contexts/0/schemes/nr_schemes", "1")?;
        theirs.write(&format!("{SCHEME}/action"), "pageout")?;
        Ok(theirs)
    }

    fn write(&self, name: &str, value: &str) -> std::io::Result<()> {
        fs::write(format!("{KDAMONDS}/{name}"), value)
    }
}

impl Drop for Strangers {
    fn drop(&mut self) {
        if let Err(error) = self.write("nr_kdamonds", "0") {
            eprintln!("cannot take down the kdamond of a test: {error}");
        }
    }
}

/// Every file below, with its contents or the error of reading it.
fn contents(directory: &Path, into: &mut BTreeMap<String, String>) -> std::io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            contents(&entry.path(), into)?;
        } else {
            let text = fs::read(entry.path()).map_or_else(|error| error.to_string(), |bytes| format!("{bytes:?}"));
            into.insert(entry.path().display().to_string(), text);
        }
    }
    Ok(())
}

/// No DAMON at all, a real monitor of another program, or one of ours in its place: each is refused, and left as it is.
pub fn without_damon_or_with_somebody_elses_nothing_is_changed(live: &Live) -> Outcome {
    let wishes = || vec![always(Action::LruDeprio, vec![FilterRule::reject(Filter::Anon)])];
    if !Path::new(ADMIN).exists() {
        assert!(matches!(offered(live.files()), Err(Error::Unsupported(_))));
        assert!(matches!(Draft::new(live.files(), LOOKS, wishes()), Err(Error::Unsupported(_))));
        return Ok(());
    }
    let _played = if nr_kdamonds()? == "0" { Some(Strangers::set_up()?) } else { None };
    let tree = || {
        let mut tree = BTreeMap::new();
        contents(Path::new(ADMIN), &mut tree).map(|()| tree)
    };
    let before = tree()?;
    assert!(before.len() > 30, "{before:?}");
    let busy = "cannot use DAMON, in which someone else has set up kdamonds: device or resource busy (EBUSY)";
    let refused = Draft::new(live.files(), LOOKS, wishes()).map(|_| ()).map_err(|error| error.to_string());
    assert_eq!(refused, Err(busy.to_owned()));
    assert_eq!(offered(live.files()).map_err(|error| error.to_string()), Err(busy.to_owned()));
    assert_eq!(tree()?, before);
    Ok(())
}

/// Beside the same words written by hand.
pub fn what_the_kernel_knows_is_what_it_takes(live: &Live) -> Outcome {
    let offer = offered(live.files())?;
    assert_eq!(nr_kdamonds()?, "0");
    println!("{offer:?}");
    let theirs = Strangers::set_up()?;
    let takes = |name: &str, value: &str| theirs.write(&format!("{SCHEME}/{name}"), value).is_ok();
    for action in Action::ALL {
        assert_eq!(takes("action", action.name()), offer.actions.contains(&action), "{action:?}");
    }
    takes("filters/nr_filters", "1");
    for kind in FilterKind::ALL {
        assert_eq!(takes("filters/0/type", kind.name()), offer.filters.contains(&kind), "{kind:?}");
    }
    assert_eq!(takes("filters/0/allow", "Y"), offer.allowing);
    drop(theirs);
    // As the kernel's documents have it; a distribution may add to its kernel.
    let release = fs::read_to_string("/proc/sys/kernel/osrelease")?;
    if release.starts_with("6.12.") {
        assert_eq!(offer.actions, Action::ALL);
        assert_eq!(offer.filters, [FilterKind::Anon, FilterKind::Young, FilterKind::Group]);
        assert_eq!((offer.allowing, offer.counts_passed, offer.apply_interval), (false, false, true));
        let refused =
            Draft::new(live.files(), LOOKS, vec![always(Action::Stat, vec![FilterRule::only(Filter::Unmapped)])])?;
        let error = refused.commit().map(|_| ()).map_err(|error| error.to_string());
        let expected =
            "cannot filter by \"unmapped\" pages with DAMON, which does not know it here: invalid argument (EINVAL)";
        assert_eq!(error, Err(expected.to_owned()));
        assert_eq!(nr_kdamonds()?, "0");
    }
    Ok(())
}

/// An active and an inactive list until this is dropped, instead of generations, which do not show.
fn two_lists() -> std::io::Result<Option<Knob>> {
    const SWITCH: &str = "/sys/kernel/mm/lru_gen/enabled";
    Path::new(SWITCH).exists().then(|| Knob::turn(SWITCH, "0")).transpose()
}

/// Number of pages that a processor batches before it moves them to another list.
fn gathered() -> usize {
    31 * available_parallelism().map_or(1, std::num::NonZero::get)
}

/// Number of the mapping's pages on the active list.
fn active(toy: &ToyProcess, mapping: Mapping) -> Result<usize, linux::Error> {
    let table = FrameTable::open()?;
    let entries = Pagemap::open(toy.pid())?.entries(mapping.range())?;
    let mut active = 0;
    for entry in entries {
        let frame = entry.frame().ok_or_else(|| Error::malformed("pagemap of the toy", "a page without a frame"))?;
        active += usize::from(table.flags(frame)?.is_active());
    }
    Ok(active)
}

fn start(files: &Rooted, schemes: Vec<Scheme>) -> Result<Running<'_, Rooted>, Error> {
    Draft::new(files, LOOKS, schemes)?.commit()?.start()
}

/// Applies a scheme until it has reached the awaited effect; returns its counts. The scheme is removed.
fn apply(
    files: &Rooted,
    scheme: Scheme,
    is_done: impl Fn() -> Result<bool, Error>,
) -> Result<Stats, libtest_mimic::Failed> {
    let running = start(files, vec![scheme])?;
    let deadline = Instant::now() + PATIENCE;
    while !is_done()? && Instant::now() < deadline {
        sleep(Duration::from_millis(300));
    }
    let stats = running.stats()?[0];
    running.stop()?;
    assert_eq!(nr_kdamonds()?, "0");
    println!("{stats:?}");
    Ok(stats)
}

/// All pages of a cgroup are made active, then those of a file inactive again: never a page of another cgroup, and in
/// the second step no anonymous one.
pub fn pages_of_a_group_and_a_class_change_their_list_and_no_others(live: &Live) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let _lists = two_lists()?;
    let group = Group::make("damos")?;
    let mut inside = ToyProcess::start()?;
    group.take_in(inside.pid())?;
    let mut outside = ToyProcess::start()?;
    let file = inside.map(Backing::SharedFile, 4)?;
    // More than the quota of an interval; all memory takes a hundred intervals, or fewer.
    let quota = Bytes((linux::meminfo::meminfo(live.files())?.total.0 / 100).max(Bytes::mib(64).0) / 4096 * 4096);
    let heap = inside.map(Backing::Anonymous, quota.0 / Bytes::mib(2).0 * 5 / 4)?;
    let strangers = outside.map(Backing::SharedFile, 4)?;
    inside.write(file.all(), 7)?;
    inside.write(heap.all(), 8)?;
    outside.write(strangers.all(), 9)?;
    let pages_of = |mapping: Mapping| usize::try_from(mapping.range().pages().0);
    let (pages, heap_pages) = (pages_of(file)?, pages_of(heap)?);
    let (all, heap_all) = (pages - gathered(), heap_pages - gathered());
    let strangers_before = active(&outside, strangers)?;
    assert!(strangers_before < gathered(), "{strangers_before} of another's {pages} pages are active from the start");

    let of_group = || FilterRule::only(Filter::Group(group.path()));
    let raised = || Ok(active(&inside, file)? >= all && active(&inside, heap)? >= heap_all);
    let stats = apply(live.files(), always(Action::LruPrio, vec![of_group()]), raised)?;
    let (file_raised, heap_raised) = (active(&inside, file)?, active(&inside, heap)?);
    println!(
        "after lru_prio {file_raised} of {pages} pages of the file are active, {heap_raised} of {heap_pages} of the heap"
    );
    assert!(file_raised >= all && heap_raised >= heap_all, "{file_raised}, {heap_raised}: {stats:?}");
    let strangers_raised = active(&outside, strangers)?;
    assert!(strangers_raised <= strangers_before, "{strangers_raised} pages of another were raised");

    let fallen = || Ok(active(&inside, file)? <= gathered());
    let files_of_group = vec![of_group(), FilterRule::reject(Filter::Anon)];
    let stats = apply(live.files(), always(Action::LruDeprio, files_of_group), fallen)?;
    let (file_left, heap_left) = (active(&inside, file)?, active(&inside, heap)?);
    println!(
        "after lru_deprio {file_left} of {pages} pages of the file are active, {heap_left} of {heap_pages} of the heap"
    );
    assert!(file_left <= gathered(), "{file_left} of {pages} are still active: {stats:?}");
    assert!(heap_left >= heap_raised, "{heap_left} of {heap_raised} anonymous pages are still active");
    assert!(stats.sz_applied.0 >= (all * 4096) as u64 && stats.nr_applied > 0, "{stats:?}");
    assert_eq!(stats.sz_ops_filter_passed.is_some(), offered(live.files())?.counts_passed);
    anonymous_pages_have_their_turn_under_a_quota(live, quota, of_group(), &inside, heap)?;
    inside.check(file.all(), 7)?;
    inside.check(heap.all(), 8)?;
    Ok(())
}

/// Each interval goes on where the last one stopped: otherwise a quota smaller than the memory would never cover all of
/// it.
fn anonymous_pages_have_their_turn_under_a_quota(
    live: &Live,
    bytes: Bytes,
    of_group: FilterRule,
    toy: &ToyProcess,
    heap: Mapping,
) -> Outcome {
    let reset_interval = LOOKS.sample_interval;
    let quota = Some(Quota { bytes: Some(bytes), time: None, reset_interval });
    let scheme = always(Action::LruDeprio, vec![of_group, FilterRule::only(Filter::Anon)]);
    let scheme = Scheme { quota, apply_interval: Some(reset_interval), ..scheme }.bounded_from_the_start(LOOKS);
    let begin = Instant::now();
    let stats = apply(live.files(), scheme, || Ok(active(toy, heap)? <= gathered()))?;
    let (left, took) = (active(toy, heap)?, begin.elapsed());
    println!("{left} pages of the heap are active after {took:.1?} with {bytes} in each {reset_interval:?}");
    assert!(left <= gathered(), "{left} pages of the heap are still active after {took:?}: {stats:?}");
    let most = (took.as_secs_f64() / reset_interval.as_secs_f64() + 1.0).ceil() * bytes.0 as f64;
    assert!(stats.sz_tried > bytes && stats.sz_tried.0 as f64 <= most, "{bytes} each of {took:?}: {stats:?}");
    Ok(())
}

/// The quota's bytes in each interval, and one quota more for intervals that only began.
pub fn a_quota_bounds_what_is_done_in_an_interval(live: &Live) -> Outcome {
    let (bytes, interval) = (Bytes::mib(8), Duration::from_secs(1));
    let quota = Some(Quota { bytes: Some(bytes), time: None, reset_interval: interval });
    let scheme = Scheme { quota, ..always(Action::Stat, Vec::new()) }.bounded_from_the_start(LOOKS);
    let begin = Instant::now();
    let running = start(live.files(), vec![scheme, always(Action::Stat, Vec::new())])?;
    sleep(Duration::from_secs(10));
    let stats = running.stats()?;
    let intervals = begin.elapsed().as_secs_f64() / interval.as_secs_f64();
    running.stop()?;
    println!("{intervals:.1} intervals: {stats:?}");
    let [bounded, free] = stats[..] else { return Err("not the numbers of two schemes".into()) };
    let most = (intervals + 1.0).ceil() * bytes.0 as f64;
    assert!(bounded.sz_tried.0 > 0 && bounded.sz_tried.0 as f64 <= most, "{bounded:?}, {intervals} intervals");
    assert!(bounded.qt_exceeds > 0 && free.qt_exceeds == 0, "{stats:?}");
    assert!(free.sz_tried > Bytes(4 * bounded.sz_tried.0), "{stats:?}");
    Ok(())
}

/// The kernel looks for it when the thread is to start.
pub fn a_group_that_is_not_there_is_named_and_nothing_stays(live: &Live) -> Outcome {
    let filters = vec![FilterRule::only(Filter::Group("/masu-live-no-such-group".to_owned()))];
    let Err(error) = start(live.files(), vec![always(Action::LruDeprio, filters)]) else {
        return Err("a group that is not there was taken".into());
    };
    assert!(error.is_gone() && matches!(error.errno(), Some(Errno::INVAL | Errno::NOMEM)), "{error}");
    assert!(error.to_string().contains("control group /masu-live-no-such-group"), "{error}");
    assert_eq!(nr_kdamonds()?, "0");
    Ok(())
}

/// The journal of a process that died, thread and all.
pub fn what_a_crash_leaves_is_taken_down_by_the_journal(live: &Live) -> Outcome {
    let folder = Folder::make("damos")?;
    let directory = folder.0.join("run");
    let mut knobs = Knobs::open(live.files(), &directory)?;
    promise_undo(&mut knobs)?;
    std::mem::forget(start(live.files(), vec![always(Action::Stat, Vec::new())])?);
    std::mem::forget(knobs);
    assert_eq!(fs::read_to_string(format!("{KDAMONDS}/0/state"))?.trim(), "on");
    // The journal's name holds a process id that does not exist, and no process has the file open.
    let private = directory.join("private");
    let mut names = fs::read_dir(&private)?.filter_map(|entry| Some(entry.ok()?.path()));
    let journal = names.find(|path| path.extension().is_some_and(|end| end == "journal")).ok_or("no journal")?;
    fs::copy(&journal, private.join("2147483647-1.journal"))?;
    fs::remove_file(&journal)?;
    let restored = journal::replay(live.files(), &directory, &[])?;
    assert!(restored.len() == 2 && restored.iter().all(|knob| knob.failure.is_none()), "{restored:?}");
    assert_eq!(nr_kdamonds()?, "0");
    Ok(())
}
