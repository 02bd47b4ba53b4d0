//! DAMON, for hosts that do not allow the page-table walk: regions and samples instead of pages.

use std::sync::LazyLock;
use std::time::{Duration, Instant};

use access::Source;
use access::damon::DamonSource;
use hugepages::attach::Until;
use hugepages::program::RunningProgram;
use hugepages::target::Target;
use linux::Rooted;

use super::stage::{Stage, settings};
use super::{Outcome, no_automatic_huge_pages, touched};
use crate::live::Live;
use crate::toy::{Backing, Mapping, ToyProcess};

static FILES: LazyLock<Rooted> = LazyLock::new(Rooted::host);

const PATIENCE: Duration = Duration::from_secs(120);

/// Twelve windows in use and twelve not, side by side. A region may extend over their border, so the tests check the
/// inner ones.
fn half_hot() -> Result<(ToyProcess, Mapping), crate::toy::ToyError> {
    let mut toy = ToyProcess::start()?;
    let heap = toy.map(Backing::Anonymous, 24)?;
    toy.write(heap.all(), 7)?;
    toy.spin(heap.pages(0, 12 * 512), 1, false)?;
    Ok((toy, heap))
}

/// Replaces the processor's translations all the time, as a working program does.
fn work_on(toy: &mut ToyProcess) -> Result<(), crate::toy::ToyError> {
    toy.forget_translations()
}

/// Every window of the inner hot part has touched pages, none of the inner cold part has.
pub fn it_sees_the_hot_part_and_not_the_cold_one(_: &Live) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let (mut toy, heap) = half_hot()?;
    let mut source = DamonSource::start(&*FILES, toy.pid())?;
    let deadline = Instant::now() + PATIENCE;
    let seen = loop {
        source.begin()?;
        for _ in 0..20 {
            work_on(&mut toy)?;
            std::thread::sleep(Duration::from_millis(10));
        }
        source.look()?;
        let seen = touched(source.map(), heap);
        let hot_windows = (0..10).filter(|window| seen.iter().any(|page| page / 512 == *window)).count();
        if hot_windows == 10 || Instant::now() > deadline {
            break seen;
        }
    };
    let windows: std::collections::BTreeSet<u64> = seen.iter().map(|page| page / 512).collect();
    assert!((0..10).all(|window| windows.contains(&window)), "hot windows not seen: {windows:?}");
    assert!(windows.iter().all(|window| *window < 14), "cold windows seen: {windows:?}");
    toy.rest()?;
    toy.check(heap.all(), 7)?;
    Ok(())
}

/// The same loop, other eyes.
pub fn attach_on_this_backend_promotes_the_hot_windows(live: &Live) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let (mut toy, heap) = half_hot()?;
    let program = RunningProgram::open(live.files().clone(), toy.pid())?;
    let source = DamonSource::start(&*FILES, toy.pid())?;
    let mut targets = vec![Target::new(toy.pid(), "toy".to_owned(), Box::new(program), Box::new(source))?];
    let play = |_| {
        for _ in 0..10 {
            work_on(&mut toy)?;
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    };
    let until = |targets: &[Target]| targets[0].promoted >= 10;
    Stage::new(play, until).attach(&mut targets, settings(Until::Stopped))?;
    toy.rest()?;
    let viewer = access::residency::Viewer::open(toy.pid())?;
    for window in heap.windows().into_iter().skip(14) {
        assert!(!viewer.window(window)?.huge, "a cold window is huge");
    }
    toy.check(heap.all(), 7)?;
    drop(targets);
    assert_eq!(std::fs::read_to_string("/sys/kernel/mm/damon/admin/kdamonds/nr_kdamonds")?.trim(), "0");
    Ok(())
}
