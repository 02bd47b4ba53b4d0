//! Events of processes, from the live kernel: the service learns of each process that starts, changes its group or ends.

use std::time::{Duration, Instant};

use access::process_events::ProcessEvents;
use linux::Pid;

use super::Outcome;
use super::programs::TIME_LIMIT;
use super::run::Result;
use crate::group::Group;
use crate::host::{Host, LiveTest, tests};
use crate::target_process::TargetProcess;

/// Tests of this file, and their requirements.
pub(crate) const TESTS: &[LiveTest] = tests! {
    process_events requires [Root, PageTableWalk];
    a_process_that_starts_and_ends_is_told;
    a_process_that_enters_a_group_is_told [MemoryGroups];
    a_thread_is_no_process;
};

/// Waits until there is an event of this process.
fn is_told(events: &mut ProcessEvents, pid: Pid) -> Result<()> {
    let deadline = Instant::now() + TIME_LIMIT;
    while !events.fetch()?.processes.contains(&pid) {
        assert!(Instant::now() < deadline, "no event of process {pid}");
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// Drops the events so far. Those of the last steps may come a moment later.
fn forget(events: &mut ProcessEvents) -> Result<()> {
    std::thread::sleep(Duration::from_millis(100));
    events.fetch()?;
    Ok(())
}

fn a_process_that_starts_and_ends_is_told(_: &Host) -> Outcome {
    let mut events = ProcessEvents::begin()?;
    let process = TargetProcess::start()?;
    let pid = process.pid();
    is_told(&mut events, pid)?;
    forget(&mut events)?;
    drop(process);
    is_told(&mut events, pid)?;
    Ok(())
}

fn a_process_that_enters_a_group_is_told(_: &Host) -> Outcome {
    let group = Group::make("process-events")?;
    let process = TargetProcess::start()?;
    let mut events = ProcessEvents::begin()?;
    assert!(!events.fetch()?.processes.contains(&process.pid()), "it started before");
    group.take_in(process.pid())?;
    is_told(&mut events, process.pid())?;
    drop(process);
    Ok(())
}

fn a_thread_is_no_process(_: &Host) -> Outcome {
    let mut events = ProcessEvents::begin()?;
    for _ in 0..20 {
        std::thread::spawn(|| ()).join().map_err(|_| "the thread panicked")?;
    }
    let told = events.fetch()?;
    assert!(!told.processes.contains(&Pid::own()), "{told:?}");
    Ok(())
}
