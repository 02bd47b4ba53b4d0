use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::fake::FakeKernel;
use crate::journal::Knobs;
use crate::{Pid, Rooted};

const LOOKS: Looks = Looks {
    sample_interval: Duration::from_millis(500),
    aggregation_interval: Duration::from_secs(5),
    min_regions: 10,
    max_regions: 1000,
};

const IOMEM: &str =
    "00001000-0009fbff : System RAM\n00100000-bfffffff : System RAM\n  01000000-0220bb07 : Kernel code\n";

fn of(name: &str) -> String {
    format!("{KDAMONDS}/{name}")
}

fn scheme_file(number: usize, name: &str) -> String {
    of(&format!("{CONTEXT}/schemes/{number}/{name}"))
}

/// The files that a current kernel would make on the way, all present from the start, filtered by `is_there`.
fn kernel_where(is_there: impl Fn(&str) -> bool) -> FakeKernel {
    let mut names = vec![
        (of("nr_kdamonds"), "0\n"),
        (of("0/state"), "off\n"),
        (of("0/contexts/nr_contexts"), "0\n"),
        (of("0/contexts/0/avail_operations"), "vaddr\nfvaddr\npaddr\n"),
    ];
    let context = ["operations", "targets/nr_targets", "targets/0/regions/nr_regions", "schemes/nr_schemes"];
    let intervals = ["sample_us", "aggr_us", "update_us"].map(|name| format!("monitoring_attrs/intervals/{name}"));
    let regions = ["min", "max"].map(|name| format!("monitoring_attrs/nr_regions/{name}"));
    let ranges = (0..2).flat_map(|number| ["start", "end"].map(|end| format!("targets/0/regions/{number}/{end}")));
    let all = context.map(str::to_owned).into_iter().chain(intervals).chain(regions).chain(ranges);
    names.extend(all.map(|name| (of(&format!("{CONTEXT}/{name}")), "0\n")));
    for scheme in 0..2 {
        let patterns = ["sz", "nr_accesses", "age"];
        let patterns =
            patterns.iter().flat_map(|name| ["min", "max"].map(|end| format!("access_pattern/{name}/{end}")));
        let files = ["type", "memcg_path", "matching", "allow"];
        let filters = (0..3).flat_map(|filter| files.map(|name| format!("filters/{filter}/{name}")));
        let quotas = ["ms", "bytes", "reset_interval_ms"].map(|name| format!("quotas/{name}"));
        let stats = ["nr_tried", "sz_tried", "nr_applied", "sz_applied", "sz_ops_filter_passed", "qt_exceeds"];
        let rest = ["action", "apply_interval_us", "filters/nr_filters"].map(str::to_owned);
        let stats = stats.map(|name| format!("stats/{name}"));
        let all = patterns.chain(filters).chain(quotas).chain(stats).chain(rest);
        names.extend(all.map(|name| (scheme_file(scheme, &name), "0\n")));
    }
    let names = names.into_iter().filter(|(name, _)| is_there(name));
    names.fold(FakeKernel::new(), |kernel, (name, text)| kernel.file(&name, text)).file("proc/iomem", IOMEM)
}

fn kernel() -> FakeKernel {
    kernel_where(|_| true)
}

/// [`kernel`] without the files that Linux 6.12 lacks.
fn kernel_6_12() -> FakeKernel {
    let kernel = kernel_where(|name| !name.ends_with("/allow") && !name.ends_with("sz_ops_filter_passed"));
    ["unmapped", "active"]
        .iter()
        .fold(kernel, |kernel, word| kernel.refusing_value(&scheme_file(0, "filters/0/type"), word, Errno::INVAL))
}

/// A scheme for all regions, after each aggregation interval.
fn scheme(action: Action, filters: Vec<FilterRule>) -> Scheme {
    let (nr_accesses, age) = (0..=u32::MAX, 0..=u32::MAX);
    Scheme { action, filters, nr_accesses, age, quota: None, apply_interval: None }
}

/// The writes so far, relative to the directory of kdamonds.
fn writes(kernel: &FakeKernel) -> Vec<String> {
    kernel.writes().iter().map(|write| write.replace(&format!("{KDAMONDS}/"), "")).collect()
}

/// The first two writes of every tree, and the last.
const GROWN: [&str; 2] = ["nr_kdamonds <- 1", "0/contexts/nr_contexts <- 1"];
const FELLED: &str = "nr_kdamonds <- 0";

fn marked() -> String {
    format!("0/contexts/0/monitoring_attrs/intervals/update_us <- {}", 1_000_000 + Pid::own().0)
}

#[test]
fn a_run_writes_the_whole_tree_in_order_starts_and_takes_it_down() {
    let kernel = kernel();
    let demoting = Scheme {
        action: Action::LruDeprio,
        filters: vec![
            FilterRule::reject(Filter::Anon),
            FilterRule::only(Filter::Group("/backup".to_owned())),
            FilterRule::allow(Filter::Unmapped),
        ],
        nr_accesses: 0..=1,
        age: 6..=u32::MAX,
        quota: Some(Quota {
            bytes: Some(Bytes::mib(64)),
            time: Some(Duration::from_millis(50)),
            reset_interval: Duration::from_secs(1),
        }),
        apply_interval: Some(Duration::from_secs(1)),
    };
    let counting = scheme(Action::Stat, Vec::new());
    let draft = Draft::new(&kernel, LOOKS, vec![demoting, counting]).unwrap();
    assert_eq!(writes(&kernel), [""; 0]);
    let running = draft.commit().unwrap().start().unwrap();
    assert_eq!(running.max_nr_accesses(), 10);
    drop(running);
    let mark = marked();
    let context = [
        &mark,
        "0/contexts/0/operations <- paddr",
        "0/contexts/0/monitoring_attrs/intervals/sample_us <- 500000",
        "0/contexts/0/monitoring_attrs/intervals/aggr_us <- 5000000",
        "0/contexts/0/monitoring_attrs/nr_regions/min <- 10",
        "0/contexts/0/monitoring_attrs/nr_regions/max <- 1000",
        "0/contexts/0/targets/nr_targets <- 1",
        "0/contexts/0/targets/0/regions/nr_regions <- 2",
        "0/contexts/0/targets/0/regions/0/start <- 4096",
        "0/contexts/0/targets/0/regions/0/end <- 651264",
        "0/contexts/0/targets/0/regions/1/start <- 1048576",
        "0/contexts/0/targets/0/regions/1/end <- 3221225472",
        "0/contexts/0/schemes/nr_schemes <- 2",
    ];
    let demoting = [
        "action <- lru_deprio",
        "access_pattern/sz/min <- 0",
        "access_pattern/sz/max <- 18446744073709551615",
        "access_pattern/nr_accesses/min <- 0",
        "access_pattern/nr_accesses/max <- 1",
        "access_pattern/age/min <- 6",
        "access_pattern/age/max <- 4294967295",
        "apply_interval_us <- 1000000",
        "quotas/ms <- 50",
        "quotas/bytes <- 67108864",
        "quotas/reset_interval_ms <- 1000",
        "filters/nr_filters <- 3",
        "filters/0/type <- anon",
        "filters/0/matching <- Y",
        "filters/1/type <- memcg",
        "filters/1/memcg_path <- /backup",
        "filters/1/matching <- N",
        "filters/2/type <- unmapped",
        "filters/2/matching <- Y",
        "filters/2/allow <- Y",
    ];
    let counting = [
        "action <- stat",
        "access_pattern/sz/min <- 0",
        "access_pattern/sz/max <- 18446744073709551615",
        "access_pattern/nr_accesses/min <- 0",
        "access_pattern/nr_accesses/max <- 4294967295",
        "access_pattern/age/min <- 0",
        "access_pattern/age/max <- 4294967295",
    ];
    let mut expected: Vec<String> = GROWN.iter().chain(&context).map(|&line| line.to_owned()).collect();
    expected.extend(demoting.map(|line| format!("0/contexts/0/schemes/0/{line}")));
    expected.extend(counting.map(|line| format!("0/contexts/0/schemes/1/{line}")));
    expected.extend(["0/state <- on", "0/state <- off", FELLED].map(str::to_owned));
    assert_eq!(writes(&kernel), expected);
}

#[test]
fn a_committed_one_is_taken_down_without_stopping() {
    let kernel = kernel();
    drop(Draft::new(&kernel, LOOKS, vec![scheme(Action::Stat, Vec::new())]).unwrap().commit().unwrap());
    assert_eq!(writes(&kernel).last().unwrap(), FELLED);
    assert!(!writes(&kernel).iter().any(|write| write.starts_with("0/state")));
}

#[test]
fn an_unbounded_half_of_a_quota_is_written_as_zero() {
    let kernel = kernel();
    let quota =
        Some(Quota { bytes: None, time: Some(Duration::from_millis(7)), reset_interval: Duration::from_secs(2) });
    let bounded = Scheme { quota, ..scheme(Action::PageOut, Vec::new()) };
    drop(Draft::new(&kernel, LOOKS, vec![bounded]).unwrap().commit().unwrap());
    let quotas: Vec<String> = writes(&kernel).into_iter().filter(|write| write.contains("/quotas/")).collect();
    let expected = ["ms <- 7", "bytes <- 0", "reset_interval_ms <- 2000"];
    assert_eq!(quotas, expected.map(|line| format!("0/contexts/0/schemes/0/quotas/{line}")));
}

#[test]
fn the_numbers_of_each_scheme_are_asked_for_and_read() {
    let texts = [("nr_tried", 12), ("sz_tried", 8192), ("nr_applied", 3), ("sz_applied", 4096), ("qt_exceeds", 5)];
    let kernel = texts.iter().fold(kernel(), |kernel, (name, number)| {
        kernel.file(&scheme_file(1, &format!("stats/{name}")), &format!("{number}\n"))
    });
    let kernel = kernel
        .file(&scheme_file(1, "stats/sz_ops_filter_passed"), "6000\n")
        .file(&scheme_file(1, "stats/nr_snapshots"), "a newer kernel's\n");
    let schemes = vec![scheme(Action::Stat, Vec::new()), scheme(Action::LruPrio, Vec::new())];
    let running = Draft::new(&kernel, LOOKS, schemes).unwrap().commit().unwrap().start().unwrap();
    let stats = running.stats().unwrap();
    let expected = Stats {
        nr_tried: 12,
        sz_tried: Bytes(8192),
        nr_applied: 3,
        sz_applied: Bytes(4096),
        sz_ops_filter_passed: Some(Bytes(6000)),
        qt_exceeds: 5,
    };
    assert_eq!((stats.len(), stats[0].nr_tried, stats[1]), (2, 0, expected));
    assert_eq!(writes(&kernel).last().unwrap(), "0/state <- update_schemes_stats");
    running.stop().unwrap();
    assert_eq!(writes(&kernel).last().unwrap(), FELLED);
}

#[test]
fn what_an_older_kernel_does_not_count_is_none_and_any_other_missing_file_an_error() {
    let run = |kernel: &FakeKernel| {
        let schemes = vec![scheme(Action::Stat, Vec::new())];
        Draft::new(kernel, LOOKS, schemes).unwrap().commit().unwrap().start().unwrap().stats()
    };
    assert_eq!(run(&kernel_6_12()).unwrap()[0].sz_ops_filter_passed, None);
    let error = run(&kernel_where(|name| !name.ends_with("stats/qt_exceeds"))).unwrap_err();
    assert!(error.to_string().ends_with("schemes/0/stats/qt_exceeds: no such file or directory (ENOENT)"), "{error}");
}

#[test]
fn a_malformed_number_is_named() {
    for name in ["nr_tried", "sz_applied", "sz_ops_filter_passed"] {
        let kernel = kernel().file(&scheme_file(0, &format!("stats/{name}")), "many\n");
        let schemes = vec![scheme(Action::Stat, Vec::new())];
        let running = Draft::new(&kernel, LOOKS, schemes).unwrap().commit().unwrap().start().unwrap();
        let error = running.stats().unwrap_err();
        let expected = format!("schemes/0/stats/{name}: \"many\", expected a number");
        assert!(error.to_string().ends_with(&expected), "{error}");
    }
}

#[test]
fn schemes_whose_thread_somebody_stopped_are_gone() {
    let kernel = kernel();
    let schemes = vec![scheme(Action::Stat, Vec::new())];
    let running = Draft::new(&kernel, LOOKS, schemes).unwrap().commit().unwrap().start().unwrap();
    assert_eq!(running.stopped(), None);
    kernel.write(&of("0/state"), "off").unwrap();
    let gone = running.stopped().unwrap();
    assert!(gone.is_gone());
    assert_eq!(gone.to_string(), "cannot go on with DAMON, whose thread somebody stopped: no such process (ESRCH)");
}

#[test]
fn what_this_kernel_knows_is_found_out_by_trying_and_the_tree_is_as_it_was() {
    let kernel = kernel();
    let offer = offered(&kernel).unwrap();
    let expected = Offer {
        actions: Action::ALL.to_vec(),
        filters: FilterKind::ALL.to_vec(),
        allowing: true,
        apply_interval: true,
        counts_passed: true,
    };
    assert_eq!(offer, expected);
    let writes = writes(&kernel);
    assert_eq!((&writes[..2], writes[2].as_str()), (&GROWN.map(str::to_owned)[..], marked().as_str()));
    assert_eq!(writes.last().unwrap(), FELLED);
    assert!(!writes.iter().any(|write| write.starts_with("0/state")), "no thread is started");
}

#[test]
fn of_an_older_kernel_the_offer_is_smaller_and_says_which_schemes_can_be() {
    let offer = offered(&kernel_6_12()).unwrap();
    assert_eq!(offer.filters, [FilterKind::Anon, FilterKind::Young, FilterKind::Group]);
    assert_eq!((offer.actions.len(), offer.allowing, offer.counts_passed), (4, false, false));
    let with = |rule| scheme(Action::LruDeprio, vec![FilterRule::reject(Filter::Anon), rule]);
    assert!(offer.takes(&with(FilterRule::reject(Filter::Young))));
    assert!(!offer.takes(&with(FilterRule::only(Filter::Unmapped))));
    assert!(!offer.takes(&with(FilterRule::allow(Filter::Young))));
    let without = kernel_where(|name| !name.contains("/filters/") && !name.ends_with("apply_interval_us"))
        .refusing_value(&scheme_file(0, "action"), "lru_prio", Errno::INVAL)
        .refusing_value(&scheme_file(0, "action"), "lru_deprio", Errno::INVAL);
    let offer = offered(&without).unwrap();
    assert_eq!((&offer.actions[..], &offer.filters[..]), (&[Action::Stat, Action::PageOut][..], &[][..]));
    let every = Scheme { apply_interval: Some(Duration::from_secs(1)), ..scheme(Action::Stat, Vec::new()) };
    assert!(offer.takes(&scheme(Action::Stat, Vec::new())) && !offer.takes(&every));
}

/// The refusal of a draft of this one scheme; no write of it may remain.
fn refusal(kernel: &FakeKernel, scheme: Scheme) -> Error {
    let error = Draft::new(kernel, LOOKS, vec![scheme]).unwrap().commit().unwrap_err();
    assert!(matches!(error, Error::Unsupported(_)), "{error:?}");
    assert_eq!(writes(kernel).last().unwrap(), FELLED);
    error
}

#[test]
fn what_the_kernel_does_not_know_is_refused_by_name_and_nothing_is_left() {
    let kernel = kernel_6_12();
    let unmapped = refusal(&kernel, scheme(Action::PageOut, vec![FilterRule::only(Filter::Unmapped)]));
    let expected =
        "cannot filter by \"unmapped\" pages with DAMON, which does not know it here: invalid argument (EINVAL)";
    assert_eq!(unmapped.to_string(), expected);
    let allowing = refusal(&kernel, scheme(Action::PageOut, vec![FilterRule::allow(Filter::Young)]));
    let expected =
        "cannot allow pages with filters of DAMON, which can only reject here: no such file or directory (ENOENT)";
    assert_eq!(allowing.to_string(), expected);
    let kernel = kernel_where(|name| !name.contains("/filters/") && !name.ends_with("apply_interval_us"))
        .refusing_value(&scheme_file(0, "action"), "lru_prio", Errno::INVAL);
    let action = refusal(&kernel, scheme(Action::LruPrio, Vec::new()));
    let expected =
        "cannot apply \"lru_prio\" to pages with DAMON, which does not know it here: invalid argument (EINVAL)";
    assert_eq!(action.to_string(), expected);
    let filters = refusal(&kernel, scheme(Action::Stat, vec![FilterRule::reject(Filter::Anon)]));
    assert!(filters.to_string().starts_with("cannot filter pages with DAMON, which has no filters here:"), "{filters}");
    let every = Scheme { apply_interval: Some(Duration::from_secs(1)), ..scheme(Action::Stat, Vec::new()) };
    let every = refusal(&kernel, every);
    assert!(every.to_string().starts_with("cannot apply a scheme of DAMON at an interval of its own here:"), "{every}");
}

#[test]
fn any_other_refused_write_is_told_as_it_is_and_takes_everything_back() {
    let kernel = kernel().refusing(&scheme_file(0, "filters/0/type"), Errno::NOMEM);
    let schemes = vec![scheme(Action::Stat, vec![FilterRule::reject(Filter::Anon)])];
    let error = Draft::new(&kernel, LOOKS, schemes).unwrap().commit().unwrap_err();
    assert!(error.to_string().starts_with("cannot write \"anon\" to /sys/kernel/mm/damon/admin/kdamonds/0"), "{error}");
    assert_eq!(writes(&kernel).last().unwrap(), FELLED);
    assert_eq!(offered(&kernel).unwrap_err().errno(), Some(Errno::NOMEM));
    assert_eq!(writes(&kernel).last().unwrap(), FELLED);
}

#[test]
fn a_group_that_is_not_there_is_gone() {
    for (errno, words) in
        [(Errno::INVAL, "invalid argument (EINVAL)"), (Errno::NOMEM, "cannot allocate memory (ENOMEM)")]
    {
        let kernel = kernel().refusing(&of("0/state"), errno).file("sys/fs/cgroup/memory/there/cgroup.procs", "");
        let start = |path: &str| {
            let filters = vec![FilterRule::only(Filter::Group(path.to_owned()))];
            let schemes = vec![scheme(Action::LruDeprio, filters)];
            Draft::new(&kernel, LOOKS, schemes).unwrap().commit().unwrap().start().unwrap_err()
        };
        let gone = start("/backup");
        assert!(gone.is_gone(), "{gone}");
        let expected = "cannot filter pages by control group /backup with DAMON, which finds no such group:";
        assert_eq!(gone.to_string(), format!("{expected} {words}"));
        assert_eq!(writes(&kernel).last().unwrap(), FELLED);
        assert!(matches!(start("/there"), Error::Other(_)));
    }
}

#[test]
fn a_quota_that_is_to_hold_from_the_start_waits_until_the_regions_are_so_old() {
    let quota = |reset_interval| Some(Quota { bytes: Some(Bytes::mib(1)), time: None, reset_interval });
    let age = |scheme: Scheme| scheme.bounded_from_the_start(LOOKS).age;
    let bounded = |reset, age| Scheme { quota: quota(reset), age, ..scheme(Action::PageOut, Vec::new()) };
    // First application after 5 s, a new window 1 s later: at the second aggregation interval, and one for rounding.
    assert_eq!(age(bounded(Duration::from_secs(1), 0..=u32::MAX)), 3..=u32::MAX);
    assert_eq!(age(bounded(Duration::from_secs(60), 6..=u32::MAX)), 14..=u32::MAX);
    assert_eq!(age(bounded(Duration::from_secs(1), 6..=9)), 6..=9);
    let often = Scheme { apply_interval: Some(Duration::from_secs(1)), ..bounded(Duration::from_secs(1), 0..=9) };
    assert_eq!(age(often), 2..=9);
    assert_eq!(age(bounded(Duration::from_secs(1), 0..=1)), 3..=3);
    assert_eq!(age(scheme(Action::PageOut, Vec::new())), 0..=u32::MAX);
}

#[test]
fn kdamonds_of_someone_else_are_left_alone() {
    let kernel = kernel().file(&of("nr_kdamonds"), "1\n");
    let expected = "cannot use DAMON, in which someone else has set up kdamonds: device or resource busy (EBUSY)";
    let schemes = vec![scheme(Action::Stat, Vec::new())];
    assert_eq!(Draft::new(&kernel, LOOKS, schemes).unwrap_err().to_string(), expected);
    assert_eq!(offered(&kernel).unwrap_err().to_string(), expected);
    assert_eq!(writes(&kernel), [""; 0]);
}

#[test]
fn a_kernel_that_cannot_watch_physical_memory_says_so_and_is_left_as_it_was() {
    let kernel = kernel().file(&of("0/contexts/0/avail_operations"), "vaddr\n");
    let expected = "cannot monitor physical memory with DAMON, which offers here only \"vaddr\": \
        operation not supported (EOPNOTSUPP)";
    assert_eq!(offered(&kernel).unwrap_err().to_string(), expected);
    assert_eq!(writes(&kernel), [GROWN[0], GROWN[1], FELLED]);
    assert_eq!(refusal(&kernel, scheme(Action::Stat, Vec::new())).to_string(), expected);
}

#[test]
fn a_kernel_without_damon_is_unsupported() {
    let kernel = FakeKernel::new().file("proc/iomem", IOMEM);
    let schemes = vec![scheme(Action::Stat, Vec::new())];
    assert!(matches!(offered(&kernel), Err(Error::Unsupported(_))));
    assert!(matches!(Draft::new(&kernel, LOOKS, schemes), Err(Error::Unsupported(_))));
}

#[test]
fn without_the_addresses_of_the_memory_nothing_is_written() {
    let kernel = kernel().file("proc/iomem", "00000000-00000000 : System RAM\n");
    let error = Draft::new(&kernel, LOOKS, vec![scheme(Action::Stat, Vec::new())]).unwrap_err();
    assert!(matches!(error, Error::Denied(_)), "{error}");
    assert_eq!(writes(&kernel), [""; 0]);
}

#[test]
#[expect(clippy::reversed_empty_ranges, reason = "that is what is refused")]
fn senseless_wishes_are_refused_before_anything_is_written() {
    let kernel = kernel();
    let good = || scheme(Action::Stat, Vec::new());
    let quota = |bytes, time, reset_interval| Scheme { quota: Some(Quota { bytes, time, reset_interval }), ..good() };
    let second = Duration::from_secs(1);
    let group = |path: &str| scheme(Action::Stat, vec![FilterRule::only(Filter::Group(path.to_owned()))]);
    let bad = [
        Scheme { nr_accesses: 2..=1, ..good() },
        Scheme { age: 2..=1, ..good() },
        Scheme { apply_interval: Some(Duration::from_millis(499)), ..good() },
        quota(Some(Bytes(0)), None, second),
        quota(None, Some(Duration::from_micros(999)), second),
        quota(Some(Bytes(1)), None, Duration::ZERO),
        group("backup"),
        group("/back\nup"),
    ];
    for scheme in bad {
        let error = Draft::new(&kernel, LOOKS, vec![good(), scheme.clone()]).unwrap_err();
        assert_eq!(error.errno(), Some(Errno::INVAL), "{scheme:?}");
    }
    assert_eq!(Draft::new(&kernel, LOOKS, Vec::new()).unwrap_err().errno(), Some(Errno::INVAL));
    let few = Looks { min_regions: 2, ..LOOKS };
    assert_eq!(Draft::new(&kernel, few, vec![good()]).unwrap_err().errno(), Some(Errno::INVAL));
    assert_eq!(writes(&kernel), [""; 0]);
}

#[test]
fn a_tree_left_by_a_crash_is_undone_by_the_journal_thread_first() {
    let stat = format!("{} (masu) S{}", Pid::own(), " 1".repeat(30));
    let kernel = kernel().file(&Pid::own().file("stat"), &stat);
    let run = tempfile::tempdir().unwrap();
    let mut knobs = Knobs::open(&kernel, &run.path().join("masu")).unwrap();
    promise_undo(&mut knobs).unwrap();
    let schemes = vec![scheme(Action::Stat, Vec::new())];
    std::mem::forget(Draft::new(&kernel, LOOKS, schemes).unwrap().commit().unwrap().start().unwrap());
    knobs.put_back().unwrap();
    let writes = writes(&kernel);
    assert_eq!(writes[writes.len() - 3..], ["0/state <- on", "0/state <- off", FELLED]);
}

#[test]
fn this_hosts_kdamonds_are_as_they_were_after_asking() {
    let _tree = crate::damon::tests::host_tree();
    let host = Rooted::host();
    let number = || read_number(&host, "nr_kdamonds");
    let before = number();
    match offered(&host) {
        Ok(offer) => assert!(offer.actions.contains(&Action::Stat)),
        Err(error) => assert!(!matches!(error, Error::Malformed { .. }), "{error}"),
    }
    assert_eq!(number(), before);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn any_text_of_a_number_is_read_or_refused_without_a_panic(text in ".{0,10}") {
        let kernel = kernel().file(&scheme_file(0, "stats/sz_tried"), &text);
        let _ = read_stats(&kernel, &format!("{}/stats", directory_of(0)));
    }
}
