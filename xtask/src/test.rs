//! All tests, the names of the failed ones, and the line that counts them.

use std::fs;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

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

/// Runs everything, also after a failure. The last line is `N passed, N failed, N skipped` and nothing else; a step
/// that did not come to its end counts as one failure.
pub fn run() -> Result<()> {
    let mut tally = Tally::default();
    let mut step = |name: &str, run: &dyn Fn() -> Result<Tally>| {
        println!("\n==== {name}");
        tally += with_clock(name, run).unwrap_or_else(|error| {
            println!("==== {name}: FAILED: {error:#}");
            failures::note(format!("{name}: {error:#}"));
            Tally::one_failure()
        });
    };
    step("check", &check::run_all);
    step("Debian's newest kernel headers", &|| header_check::compare_with_newest().map(|()| Tally::default()));
    step("live tests on this kernel", &|| live::run_tests(None));
    step("live tests on Debian's kernels", &|| boot::run(&boot::Options::default()));
    let line = format!("{}{tally}", failures::text());
    // For .ci/run, whose last line it is too, also when make adds a complaint of its own.
    let summary = workspace::target().join("test-summary");
    fs::write(&summary, format!("{line}\n")).with_context(|| format!("cannot write {}", summary.display()))?;
    println!("\n{line}");
    ensure!(tally.failed == 0 && tally.passed > 0, "not all tests passed");
    Ok(())
}
