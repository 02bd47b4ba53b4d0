//! All tests, the names of the failed ones, and the line that counts them.

use std::fs;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};

use crate::boot::Machines;
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
const LIVE_TESTS_BYTES: u64 = 3 << 30;

/// Whether the machines fit into this host's memory beside the live tests.
fn fit_beside_live_tests(machines: &Machines) -> bool {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let available_kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    available_kib.is_some_and(|kib| kib << 10 >= machines.memory_bytes() + LIVE_TESTS_BYTES)
}

/// The live tests on this kernel wait most of the time, so the virtual machines run at the same time.
fn live_tests(tally: &mut Tally) {
    let machines = with_clock("virtual machines: kernels and programs", || boot::prepare(&boot::Options::default()));
    std::thread::scope(|scope| {
        let beside = machines.as_ref().ok().filter(|machines| fit_beside_live_tests(machines));
        let booting = beside.map(|machines| scope.spawn(|| machines.boot()));
        step(tally, "live tests on this kernel", || live::run_tests(None));
        step(tally, "live tests on Debian's kernels", || {
            let machines = machines.as_ref().map_err(|error| anyhow!("{error:#}"))?;
            let reports = match booting {
                Some(booting) => booting.join().map_err(|_| anyhow!("the virtual machines' thread panicked"))?,
                None => machines.boot(),
            };
            Ok(machines.count(reports))
        });
    });
}

/// Runs everything, also after a failure. The last line is `N passed, N failed, N skipped` and nothing else.
pub fn run() -> Result<()> {
    let mut tally = Tally::default();
    step(&mut tally, "check", check::run_all);
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
