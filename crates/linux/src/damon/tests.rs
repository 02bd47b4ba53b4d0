use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use proptest::prelude::*;

use super::*;
use crate::Rooted;
use crate::fake::FakeKernel;
use crate::quiet_process::QuietProcess;

const MONITOR: Monitor = Monitor {
    pid: Pid(42),
    sample_interval: Duration::from_millis(5),
    aggregation_interval: Duration::from_millis(100),
    min_regions: 10,
    max_regions: 1000,
};

/// A tree with the files that the kernel would make on the way, all present from the start.
fn kernel_with(operations: &str, regions: &[[&str; 4]]) -> FakeKernel {
    let kernel = [
        ("nr_kdamonds", "0\n"),
        ("0/state", "off\n"),
        ("0/contexts/nr_contexts", "0\n"),
        ("0/contexts/0/avail_operations", operations),
        ("0/contexts/0/operations", "vaddr\n"),
        ("0/contexts/0/monitoring_attrs/intervals/sample_us", "5000\n"),
        ("0/contexts/0/monitoring_attrs/intervals/aggr_us", "100000\n"),
        ("0/contexts/0/monitoring_attrs/intervals/update_us", "60000000\n"),
        ("0/contexts/0/monitoring_attrs/nr_regions/min", "10\n"),
        ("0/contexts/0/monitoring_attrs/nr_regions/max", "1000\n"),
        ("0/contexts/0/targets/nr_targets", "0\n"),
        ("0/contexts/0/targets/0/pid_target", "0\n"),
        ("0/contexts/0/schemes/nr_schemes", "0\n"),
        ("0/contexts/0/schemes/0/action", "stat\n"),
        ("0/contexts/0/schemes/0/access_pattern/sz/min", "0\n"),
        ("0/contexts/0/schemes/0/access_pattern/sz/max", "0\n"),
        ("0/contexts/0/schemes/0/access_pattern/nr_accesses/min", "0\n"),
        ("0/contexts/0/schemes/0/access_pattern/nr_accesses/max", "0\n"),
        ("0/contexts/0/schemes/0/access_pattern/age/min", "0\n"),
        ("0/contexts/0/schemes/0/access_pattern/age/max", "0\n"),
        ("0/contexts/0/schemes/0/tried_regions/total_bytes", "0\n"),
    ]
    .iter()
    .fold(FakeKernel::new(), |kernel, (name, text)| kernel.file(&format!("{KDAMONDS}/{name}"), text));
    regions.iter().enumerate().fold(kernel, |kernel, (index, region)| {
        ["start", "end", "nr_accesses", "age"].iter().zip(region).fold(kernel, |kernel, (name, text)| {
            kernel.file(&format!("{KDAMONDS}/{SCHEME}/tried_regions/{index}/{name}"), &format!("{text}\n"))
        })
    })
}

fn kernel() -> FakeKernel {
    kernel_with("vaddr\nfvaddr\npaddr\n", &[])
}

/// The writes so far, relative to the directory of kdamonds.
fn writes(kernel: &FakeKernel) -> Vec<String> {
    kernel.writes().iter().map(|write| write.replace(&format!("{KDAMONDS}/"), "")).collect()
}

#[test]
fn a_run_writes_the_whole_tree_in_order_starts_and_takes_it_down() {
    let kernel = kernel();
    let running = Draft::new(&kernel, MONITOR).unwrap().commit().unwrap().start().unwrap();
    assert_eq!(running.max_nr_accesses(), 20);
    drop(running);
    let expected = [
        "nr_kdamonds <- 1",
        "0/contexts/nr_contexts <- 1",
        &format!("0/contexts/0/monitoring_attrs/intervals/update_us <- {}", 1_000_000 + Pid::own().0),
        "0/contexts/0/operations <- vaddr",
        "0/contexts/0/monitoring_attrs/intervals/sample_us <- 5000",
        "0/contexts/0/monitoring_attrs/intervals/aggr_us <- 100000",
        "0/contexts/0/monitoring_attrs/nr_regions/min <- 10",
        "0/contexts/0/monitoring_attrs/nr_regions/max <- 1000",
        "0/contexts/0/targets/nr_targets <- 1",
        "0/contexts/0/targets/0/pid_target <- 42",
        "0/contexts/0/schemes/nr_schemes <- 1",
        "0/contexts/0/schemes/0/action <- stat",
        "0/contexts/0/schemes/0/access_pattern/sz/min <- 0",
        "0/contexts/0/schemes/0/access_pattern/sz/max <- 18446744073709551615",
        "0/contexts/0/schemes/0/access_pattern/nr_accesses/min <- 0",
        "0/contexts/0/schemes/0/access_pattern/nr_accesses/max <- 4294967295",
        "0/contexts/0/schemes/0/access_pattern/age/min <- 0",
        "0/contexts/0/schemes/0/access_pattern/age/max <- 4294967295",
        "0/state <- on",
        "0/state <- off",
        "nr_kdamonds <- 0",
    ];
    assert_eq!(writes(&kernel), expected);
}

#[test]
fn a_draft_writes_nothing_and_a_committed_one_is_taken_down_without_stopping() {
    let kernel = kernel();
    let draft = Draft::new(&kernel, MONITOR).unwrap();
    assert_eq!(writes(&kernel), [""; 0]);
    drop(draft.commit().unwrap());
    let writes = writes(&kernel);
    assert_eq!(writes.last().unwrap(), "nr_kdamonds <- 0");
    assert!(!writes.iter().any(|write| write.starts_with("0/state")));
}

#[test]
fn regions_are_asked_for_and_read_by_rising_address() {
    let kernel = kernel_with("vaddr\n", &[["8192", "16384", "3", "7"], ["4096", "8192", "20", "0"]]);
    let running = Draft::new(&kernel, MONITOR).unwrap().commit().unwrap().start().unwrap();
    let range = |start, end| AddressRange::new(start, end).unwrap();
    let expected = [
        Region { range: range(4096, 8192), nr_accesses: 20, age: 0 },
        Region { range: range(8192, 16384), nr_accesses: 3, age: 7 },
    ];
    assert_eq!(running.regions().unwrap(), expected);
    assert_eq!(writes(&kernel).last().unwrap(), "0/state <- update_schemes_tried_regions");
    running.stop().unwrap();
    assert_eq!(writes(&kernel).last().unwrap(), "nr_kdamonds <- 0");
}

#[test]
fn what_a_newer_kernel_puts_beside_the_regions_is_left_out() {
    let kernel = kernel_with("vaddr\n", &[["4096", "8192", "1", "1"]])
        .file(&format!("{KDAMONDS}/{SCHEME}/tried_regions/0/sz_filter_passed"), "0\n")
        .file(&format!("{KDAMONDS}/{SCHEME}/tried_regions/summary/new"), "0\n");
    let running = Draft::new(&kernel, MONITOR).unwrap().commit().unwrap().start().unwrap();
    assert_eq!(running.regions().unwrap().len(), 1);
}

#[test]
fn a_malformed_region_is_named() {
    for region in [
        ["4097", "8192", "1", "1"],
        ["8192", "4096", "1", "1"],
        ["x", "8192", "1", "1"],
        ["0", "4096", "4294967296", "1"],
    ] {
        let kernel = kernel_with("vaddr\n", &[region]);
        let running = Draft::new(&kernel, MONITOR).unwrap().commit().unwrap().start().unwrap();
        let error = running.regions().unwrap_err();
        assert!(error.to_string().contains("tried_regions/0"), "{error}");
    }
}

#[test]
fn kdamonds_of_someone_else_are_left_alone() {
    let kernel = kernel().file(&format!("{KDAMONDS}/nr_kdamonds"), "2\n");
    let error = Draft::new(&kernel, MONITOR).unwrap_err();
    let expected = "cannot use DAMON, in which another program has set up kdamonds: device or resource busy (EBUSY)";
    assert_eq!(error.to_string(), expected);
    assert_eq!(available_operations(&kernel).unwrap(), ["vaddr", "fvaddr", "paddr"]);
    assert_eq!(writes(&kernel), [""; 0]);
}

#[test]
fn a_kernel_that_cannot_watch_processes_says_so_and_is_left_as_it_was() {
    let kernel = kernel_with("paddr\n", &[]);
    let error = Draft::new(&kernel, MONITOR).unwrap().commit().unwrap_err();
    let expected =
        "cannot monitor processes with DAMON, which offers here only \"paddr\": operation not supported (EOPNOTSUPP)";
    assert_eq!(error.to_string(), expected);
    assert_eq!(writes(&kernel), ["nr_kdamonds <- 1", "0/contexts/nr_contexts <- 1", "nr_kdamonds <- 0"]);
}

#[test]
fn a_refused_write_takes_everything_back() {
    let kernel = kernel().refusing(&format!("{KDAMONDS}/0/contexts/0/targets/0/pid_target"), Errno::INVAL);
    let error = Draft::new(&kernel, MONITOR).unwrap().commit().unwrap_err();
    assert!(
        error.to_string().contains("cannot write \"42\" to /sys/kernel/mm/damon/admin/kdamonds/0/contexts/0/targets")
    );
    assert_eq!(writes(&kernel).last().unwrap(), "nr_kdamonds <- 0");
}

#[test]
fn a_process_that_ended_before_the_start_is_gone() {
    let kernel = kernel().refusing(&format!("{KDAMONDS}/0/state"), Errno::INVAL);
    let error = Draft::new(&kernel, MONITOR).unwrap().commit().unwrap().start().unwrap_err();
    assert!(error.is_gone(), "{error}");
    assert_eq!(writes(&kernel).last().unwrap(), "nr_kdamonds <- 0");
}

#[test]
fn without_regions_in_a_stopped_monitor_the_process_is_gone() {
    // The fake state keeps the last word written to it; "off" is the answer of a kernel whose thread ended by itself.
    let kernel = kernel();
    let running = Draft::new(&kernel, MONITOR).unwrap().commit().unwrap().start().unwrap();
    assert_eq!(running.regions(), Ok(vec![]));
    kernel.write(&format!("{KDAMONDS}/0/state"), "off").unwrap();
    assert!(running.stopped().unwrap().is_gone());
}

/// [`kernel`] with the files that a journal needs.
fn kernel_with_journal() -> (tempfile::TempDir, FakeKernel) {
    let stat = format!("{} (masu) S{}", Pid::own(), " 1".repeat(30));
    (tempfile::tempdir().unwrap(), kernel().file(&Pid::own().file("stat"), &stat))
}

#[test]
fn a_tree_left_by_a_crash_is_undone_by_the_journal_thread_first() {
    let (run, kernel) = kernel_with_journal();
    let mut settings = HostSettings::open(&kernel, &run.path().join("masu")).unwrap();
    record_undo(&mut settings).unwrap();
    std::mem::forget(Draft::new(&kernel, MONITOR).unwrap().commit().unwrap().start().unwrap());
    settings.restore().unwrap();
    let writes = writes(&kernel);
    assert_eq!(writes[writes.len() - 3..], ["0/state <- on", "0/state <- off", "nr_kdamonds <- 0"]);
}

#[test]
fn a_promise_to_undo_never_touches_a_tree_of_someone_else() {
    let (run, kernel) = kernel_with_journal();
    let mut settings = HostSettings::open(&kernel, &run.path().join("masu")).unwrap();
    record_undo(&mut settings).unwrap();
    settings.restore().unwrap();
    assert_eq!(writes(&kernel), [""; 0]);
}

#[test]
fn asking_what_is_available_leaves_the_tree_as_it_was() {
    let kernel = kernel();
    assert_eq!(available_operations(&kernel).unwrap(), ["vaddr", "fvaddr", "paddr"]);
    assert_eq!(writes(&kernel), ["nr_kdamonds <- 1", "0/contexts/nr_contexts <- 1", "nr_kdamonds <- 0"]);
}

#[test]
fn a_kernel_without_damon_is_unsupported() {
    let kernel = FakeKernel::new();
    assert!(matches!(available_operations(&kernel), Err(Error::Unsupported(_))));
    assert!(matches!(Draft::new(&kernel, MONITOR), Err(Error::Unsupported(_))));
}

#[test]
fn senseless_wishes_are_refused_before_anything_is_written() {
    let kernel = kernel();
    let none = Duration::ZERO;
    let longer = Duration::from_millis(101);
    for monitor in [
        Monitor { sample_interval: none, ..MONITOR },
        Monitor { sample_interval: longer, ..MONITOR },
        Monitor { min_regions: 2, ..MONITOR },
        Monitor { max_regions: 9, ..MONITOR },
    ] {
        assert_eq!(Draft::new(&kernel, monitor).unwrap_err().errno(), Some(Errno::INVAL), "{monitor:?}");
    }
    assert_eq!(writes(&kernel), [""; 0]);
}

/// One test at a time: the tree is the host's.
pub(crate) fn host_tree() -> MutexGuard<'static, ()> {
    static TREE: Mutex<()> = Mutex::new(());
    TREE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The host, if its DAMON can watch processes and is not in use.
fn host_with_vaddr() -> Option<Rooted> {
    let host = Rooted::host();
    let free = read_number(&host, "nr_kdamonds") == Ok(0);
    let able = free && available_operations(&host).is_ok_and(|names| names.iter().any(|name| name == "vaddr"));
    if !able {
        println!("SKIP: no DAMON here that can watch processes and is free");
    }
    able.then_some(host)
}

#[test]
fn live_the_memory_that_a_program_uses_is_told_from_the_memory_that_it_does_not() {
    const MIB: usize = 1 << 20;
    let _tree = host_tree();
    let Some(host) = host_with_vaddr() else { return };
    let mut idle = vec![1u8; 64 * MIB];
    let mut busy = vec![1u8; 64 * MIB];
    idle.fill(2);
    let addresses = |memory: &[u8]| {
        let start = memory.as_ptr().addr() as u64;
        AddressRange::new(start.next_multiple_of(4096), (start + memory.len() as u64) / 4096 * 4096).unwrap()
    };
    let (idle_range, busy_range) = (addresses(&idle), addresses(&busy));
    let stop = AtomicBool::new(false);
    let (regions, most) = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                busy.iter_mut().step_by(4096).for_each(|byte| *byte = byte.wrapping_add(1));
            }
        });
        let running =
            Draft::new(&host, Monitor { pid: Pid::own(), ..MONITOR }).unwrap().commit().unwrap().start().unwrap();
        sleep(Duration::from_secs(3));
        let regions = running.regions().unwrap();
        let most = running.max_nr_accesses();
        running.stop().unwrap();
        stop.store(true, Ordering::Relaxed);
        (regions, most)
    });
    assert_eq!(read_number(&host, "nr_kdamonds"), Ok(0));
    // Share of samples that found the memory touched, each page counted as its region.
    let share = |of: AddressRange| {
        let parts = regions.iter().filter_map(|r| Some((of.intersection(r.range)?.bytes().0, r.nr_accesses)));
        let touched: u64 = parts.clone().map(|(bytes, accesses)| bytes * u64::from(accesses)).sum();
        let covered: u64 = parts.map(|(bytes, _)| bytes).sum();
        assert_eq!(covered, of.bytes().0, "{regions:?}");
        touched as f64 / (covered * u64::from(most)) as f64
    };
    let (busy_share, idle_share) = (share(busy_range), share(idle_range));
    println!("{} regions, busy {busy_share:.2}, idle {idle_share:.2}", regions.len());
    assert!(regions.iter().all(|region| region.nr_accesses <= most), "{regions:?}");
    assert!(busy_share > 4.0 * idle_share, "busy {busy_share}, idle {idle_share}: {regions:?}");
    assert_eq!(idle.len(), 64 * MIB);
}

#[test]
fn live_a_monitor_notices_that_its_process_ended() {
    let _tree = host_tree();
    let Some(host) = host_with_vaddr() else { return };
    let quiet = QuietProcess::start();
    let monitor = Monitor { pid: quiet.pid(), ..MONITOR };
    let running = Draft::new(&host, monitor).unwrap().commit().unwrap().start().unwrap();
    assert!(!running.regions().unwrap().is_empty());
    drop(quiet);
    sleep(Duration::from_millis(1500)); // until it next looks for new mappings
    let error = running.regions().unwrap_err();
    assert!(error.is_gone(), "{error}");
    drop(running);
    assert_eq!(read_number(&host, "nr_kdamonds"), Ok(0));
}

#[test]
fn live_a_process_that_is_not_there_cannot_be_watched() {
    let _tree = host_tree();
    let Some(host) = host_with_vaddr() else { return };
    let nobody = Monitor { pid: Pid(i32::MAX), ..MONITOR };
    let error = Draft::new(&host, nobody).unwrap().commit().unwrap().start().unwrap_err();
    assert!(error.is_gone(), "{error}");
    assert_eq!(read_number(&host, "nr_kdamonds"), Ok(0));
}

#[test]
fn live_what_a_crash_left_behind_is_undone_by_the_journal() {
    let _tree = host_tree();
    let Some(host) = host_with_vaddr() else { return };
    let run = tempfile::tempdir().unwrap();
    let mut settings = crate::journal::HostSettings::open(&host, &run.path().join("masu")).unwrap();
    record_undo(&mut settings).unwrap();
    let monitor = Monitor { pid: Pid::own(), ..MONITOR };
    std::mem::forget(Draft::new(&host, monitor).unwrap().commit().unwrap().start().unwrap());
    assert_eq!(read_number(&host, "nr_kdamonds"), Ok(1));
    settings.restore().unwrap();
    assert_eq!(read_number(&host, "nr_kdamonds"), Ok(0));
}

#[test]
fn this_host_is_left_as_it_was() {
    let _tree = host_tree();
    let host = Rooted::host();
    let number = || read_number(&host, "nr_kdamonds");
    let before = number();
    match available_operations(&host) {
        Ok(operations) => assert!(!operations.is_empty()),
        Err(error) => assert!(!matches!(error, Error::Malformed { .. }), "{error}"),
    }
    assert_eq!(number(), before);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn any_text_in_a_region_is_read_or_refused_without_a_panic(start in ".{0,10}", end: u64) {
        let kernel = kernel_with("vaddr\n", &[[&start, &end.to_string(), "1", "1"]]);
        let _ = read_region(&kernel, &format!("{SCHEME}/tried_regions/0"));
    }
}
