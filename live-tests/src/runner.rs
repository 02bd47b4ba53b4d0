//! Runs the table of tests: one probe of the host, named skips, and libtest's output format.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::sync::Arc;
use std::time::Duration;

use libtest_mimic::{Arguments, Completion, Conclusion, Trial};

use crate::host::{Host, LiveTest};
use crate::probe;
use crate::requirement::{Requirement, SkipReason};
use crate::table;

/// Runs the tests that the arguments choose, one after the other. With `LIVE_TESTS=off` there are none: for a `cargo
/// test` of everything else. `LIVE_TESTS=page-tables` selects the tests that walk page tables or check their depth,
/// without the tests of the whole command.
pub fn run(mut args: Arguments) -> Conclusion {
    let tests: Vec<&'static LiveTest> = match std::env::var("LIVE_TESTS").as_deref() {
        Ok("off") => {
            println!("LIVE_TESTS=off: no live tests");
            return libtest_mimic::run(&args, Vec::new());
        }
        Ok("page-tables") => table::all().filter(|test| is_about_page_tables(test)).collect(),
        _ => table::all().collect(),
    };
    // One at a time, across runs as well: the tests change settings of the whole machine and measure its memory.
    args.test_threads = Some(1);
    let _turn = (!args.list).then(turn);
    let host = Arc::new(Host::new(probe::all()));
    let trials: Vec<Trial> = tests.iter().map(|test| trial(test, &host)).collect();
    if !args.list {
        for (trial, test) in trials.iter().zip(&tests) {
            if let Some(SkipReason::Allowed(why)) = host.skip_reason(test)
                && !args.is_filtered_out(trial)
            {
                println!("SKIP {}: {why}", test.name);
            }
        }
    }
    libtest_mimic::run(&args, trials)
}

/// The whole command walks page tables as the tests of its parts do: effects of their depth show there already.
fn is_about_page_tables(test: &LiveTest) -> bool {
    let about = test.requirements().any(|one| matches!(one, Requirement::PageTableWalk | Requirement::FiveLevels));
    about && test.requirements().all(|one| one != Requirement::MasuCommand)
}

/// Waits until no other run of these tests is active: each would restore the other's settings, or keep them changed.
/// The lock is a socket's name that the kernel frees however the run ends.
fn turn() -> Option<UnixListener> {
    let name = SocketAddr::from_abstract_name("masu-live-tests").ok()?;
    let mut told = false;
    loop {
        match UnixListener::bind_addr(&name) {
            Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => {
                if !std::mem::replace(&mut told, true) {
                    println!("waiting for another run of the live tests to end");
                }
                std::thread::sleep(Duration::from_millis(200));
            }
            // Without it the tests still run, as for a user who runs them alone.
            turn => return turn.ok(),
        }
    }
}

fn trial(test: &'static LiveTest, host: &Arc<Host>) -> Trial {
    let host = Arc::clone(host);
    Trial::ignorable_test(test.name, move || match host.skip_reason(test) {
        None => (test.run)(&host).map(|()| Completion::Completed),
        Some(SkipReason::Allowed(why)) => Ok(Completion::ignored_with(why)),
        Some(SkipReason::Forbidden(why)) => Err(why.into()),
    })
}
