//! DAMON, for hosts that do not allow the page-table walk: regions and samples instead of pages.

use std::sync::LazyLock;
use std::time::{Duration, Instant};

use access::Observer;
use access::damon::DamonObserver;
use hugepages::attach::Until;
use hugepages::program::RunningProgram;
use hugepages::target::Target;
use linux::Rooted;

use super::scripted_driver::{ScriptedDriver, settings};
use super::{Outcome, no_automatic_huge_pages, touched};
use crate::host::{Host, LiveTest, tests};
use crate::target_process::{Backing, Mapping, TargetProcess};

/// Tests of this file, and their requirements.
pub(crate) const TESTS: &[LiveTest] = tests! {
    damon requires [Root, DamonVaddr, HugePageModes];
    it_sees_the_hot_part_and_not_the_cold_one;
    attach_on_this_backend_promotes_the_hot_windows [RemoteCollapse];
};

static FILES: LazyLock<Rooted> = LazyLock::new(Rooted::host);

const TIME_LIMIT: Duration = Duration::from_secs(120);

/// Twelve windows in use and twelve not, side by side. A region may extend over their border, so the tests check the
/// inner ones.
fn half_hot() -> Result<(TargetProcess, Mapping), crate::target_process::TargetError> {
    let mut process = TargetProcess::start()?;
    let heap = process.map(Backing::Anonymous, 24)?;
    process.write(heap.all(), 7)?;
    process.spin(heap.pages(0, 12 * 512), 1, false)?;
    Ok((process, heap))
}

/// Replaces the processor's translations all the time, as a working program does.
fn work_on(process: &mut TargetProcess) -> Result<(), crate::target_process::TargetError> {
    process.forget_translations()
}

/// Every window of the inner hot part has touched pages, none of the inner cold part has.
fn it_sees_the_hot_part_and_not_the_cold_one(_: &Host) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let (mut process, heap) = half_hot()?;
    let mut observer = DamonObserver::start(&*FILES, process.pid())?;
    let deadline = Instant::now() + TIME_LIMIT;
    let seen = loop {
        observer.begin()?;
        for _ in 0..20 {
            work_on(&mut process)?;
            std::thread::sleep(Duration::from_millis(10));
        }
        observer.scan()?;
        let seen = touched(observer.map(), heap);
        let hot_windows = (0..10).filter(|window| seen.iter().any(|page| page / 512 == *window)).count();
        if hot_windows == 10 || Instant::now() > deadline {
            break seen;
        }
    };
    let windows: std::collections::BTreeSet<u64> = seen.iter().map(|page| page / 512).collect();
    assert!((0..10).all(|window| windows.contains(&window)), "hot windows not seen: {windows:?}");
    assert!(windows.iter().all(|window| *window < 14), "cold windows seen: {windows:?}");
    process.rest()?;
    process.check(heap.all(), 7)?;
    Ok(())
}

/// The same loop, other eyes.
fn attach_on_this_backend_promotes_the_hot_windows(host: &Host) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let (mut process, heap) = half_hot()?;
    let program = RunningProgram::open(host.files().clone(), process.pid())?;
    let observer = DamonObserver::start(&*FILES, process.pid())?;
    let mut targets = vec![Target::new(
        process.pid(),
        "target".to_owned(),
        Box::new(program),
        Box::new(observer),
        hugepages::policy::PAPER,
    )?];
    let play = |_| {
        for _ in 0..10 {
            work_on(&mut process)?;
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    };
    let until = |targets: &[Target]| targets[0].totals.promoted >= 10;
    ScriptedDriver::new(play, until).attach(&mut targets, settings(Until::Stopped))?;
    process.rest()?;
    let viewer = access::residency::Viewer::open(process.pid())?;
    for window in heap.windows().into_iter().skip(14) {
        assert!(!viewer.window(window)?.huge, "a cold window is huge");
    }
    process.check(heap.all(), 7)?;
    drop(targets);
    assert_eq!(std::fs::read_to_string("/sys/kernel/mm/damon/admin/kdamonds/nr_kdamonds")?.trim(), "0");
    Ok(())
}
