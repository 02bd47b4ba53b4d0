//! Runs the table of tests: one probe of the host, named skips, and libtest's output format.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::sync::Arc;
use std::time::Duration;

use libtest_mimic::{Arguments, Completion, Conclusion, Trial};

use crate::live::Live;
use crate::need::{Need, Verdict};
use crate::probe;
use crate::table::{self, LiveTest};

/// Runs the tests that the arguments choose, one after the other. With `LIVE_TESTS=off` there are none: for a `cargo
/// test` of everything else. `LIVE_TESTS=page-tables` selects the tests that walk page tables or check their depth,
/// without the tests of the whole command.
pub fn run(mut args: Arguments) -> Conclusion {
    let tests: Vec<&'static LiveTest> = match std::env::var("LIVE_TESTS").as_deref() {
        Ok("off") => {
            println!("LIVE_TESTS=off: no live tests");
            return libtest_mimic::run(&args, Vec::new());
        }
        Ok("page-tables") => table::ALL.iter().filter(|test| is_about_page_tables(test)).collect(),
        _ => table::ALL.iter().collect(),
    };
    // One at a time, across runs as well: the tests change settings of the whole machine and measure its memory.
    args.test_threads = Some(1);
    let _turn = (!args.list).then(turn);
    let live = Arc::new(Live::new(probe::all()));
    let trials: Vec<Trial> = tests.iter().map(|test| trial(test, &live)).collect();
    if !args.list {
        for (trial, test) in trials.iter().zip(&tests) {
            if let Verdict::Skip(why) = live.verdict(test.needs)
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
    let about = test.needs.iter().any(|need| matches!(need, Need::PageTableWalk | Need::FiveLevels));
    about && !test.needs.contains(&Need::MasuCommand)
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

fn trial(test: &'static LiveTest, live: &Arc<Live>) -> Trial {
    let live = Arc::clone(live);
    Trial::ignorable_test(test.name, move || match live.verdict(test.needs) {
        Verdict::Run => (test.run)(&live).map(|()| Completion::Completed),
        Verdict::Skip(why) => Ok(Completion::ignored_with(why)),
        Verdict::Fail(why) => Err(why.into()),
    })
}
