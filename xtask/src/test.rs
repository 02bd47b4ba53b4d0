//! All tests, the names of the failed ones, and the line that counts them.

use std::fs;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use linux::Rooted;
use linux::meminfo::meminfo;
use units::Bytes;

use crate::tally::Tally;
use crate::{boot, check, failures, header_check, live, workspace};

/// Time between two lines about a step that goes on.
const EVERY: Duration = Duration::from_secs(30);

/// Runs a step, and says each half minute that it goes on.
fn with_clock<T>(name: &str, run: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    std::thread::scope(|scope| {
        let (done, ended) = mpsc::channel::<()>();
        scope.spawn(move || {
            while ended.recv_timeout(EVERY) == Err(RecvTimeoutError::Timeout) {
                println!("==== {name}: {} s", start.elapsed().as_secs());
            }
        });
        let outcome = run();
        drop(done);
        outcome
    })
}

/// Runs one step, and adds its tests. A step that did not come to its end counts as one failure.
fn step(tally: &mut Tally, name: &str, run: impl FnOnce() -> Result<Tally>) {
    println!("\n==== {name}");
    *tally += with_clock(name, run).unwrap_or_else(|error| {
        println!("==== {name}: FAILED: {error:#}");
        failures::note(format!("{name}: {error:#}"));
        Tally::one_failure()
    });
}

/// Memory that the live tests on this kernel use, with the programs that they start.
const LIVE_TESTS: Bytes = Bytes(3 << 30);

/// Memory that the live tests on this kernel leave.
fn memory_beside_live_tests() -> Bytes {
    let available = meminfo(&Rooted::host()).map_or(0, |memory| memory.available.0);
    Bytes(available.saturating_sub(LIVE_TESTS.0))
}

/// The live tests on this kernel wait most of the time, so the virtual machines run at the same time where memory
/// suffices.
fn live_tests(tally: &mut Tally) {
    let machines = with_clock("virtual machines: kernels and programs", || boot::prepare(&boot::Options::default()));
    let memory = memory_beside_live_tests();
    std::thread::scope(|scope| {
        let booting = machines.as_ref().ok().map(|machines| scope.spawn(move || machines.boot_within(memory)));
        step(tally, "live tests on this kernel", || live::run_tests(None));
        step(tally, "live tests on Debian's kernels", || {
            let machines = machines.as_ref().map_err(|error| anyhow!("{error:#}"))?;
            let reports = booting.map(ScopedJoinHandle::join).transpose();
            let reports = reports.map_err(|_| anyhow!("the thread of the virtual machines panicked"))?.flatten();
            Ok(machines.count(reports.unwrap_or_else(|| machines.boot())))
        });
    });
}

/// Runs everything, also after a failure. The last line is `N passed, N failed, N skipped` and nothing else.
pub fn run() -> Result<()> {
    let mut tally = Tally::default();
    std::thread::scope(|scope| {
        scope.spawn(boot::kernels::fetch);
        step(&mut tally, "check", check::run_all);
    });
    step(&mut tally, "Debian's newest kernel headers", || {
        header_check::compare_with_newest().map(|()| Tally::default())
    });
    live_tests(&mut tally);
    let line = format!("{}{tally}", failures::text());
    // For .ci/run, whose last line it is too, also when make adds a complaint of its own.
    let summary = workspace::target().join("test-summary");
    fs::write(&summary, format!("{line}\n")).with_context(|| format!("cannot write {}", summary.display()))?;
    println!("\n{line}");
    ensure!(tally.failed == 0 && tally.passed > 0, "not all tests passed");
    Ok(())
}
