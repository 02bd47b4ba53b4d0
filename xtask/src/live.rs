//! Live tests on the running kernel: built as the user, run as root.

use anyhow::{Result, bail};

use crate::command::{cargo, find, program, run, watch};
use crate::tally::Tally;
use crate::workspace;

/// Options of `cargo xtask live`.
#[derive(clap::Args)]
pub struct Options {
    /// Only tests whose name contains this
    filter: Option<String>,
}

/// Builds and runs them, and counts. Without root, and without a `sudo` that asks nothing, most tests are skipped.
pub fn run_tests(filter: Option<&str>) -> Result<Tally> {
    // The programs are tested too.
    let bins = ["--bin", "live-tests", "--bin", "masu", "--bin", "resctrl-emulator"];
    run(cargo().args(["build", "--quiet"]).args(bins).args(workspace::AS_FOR_TESTS))?;
    let binary = workspace::target().join("debug/live-tests");
    let mut command = if is_root() {
        program(binary)
    } else if sudo_works() {
        let mut sudo = program("sudo");
        sudo.args(["--non-interactive", "--preserve-env=LIVE_REQUIRE,RUST_BACKTRACE"]).arg(binary);
        sudo
    } else {
        println!("Not root, and no sudo without a password: tests that need root are skipped. Run this as root.");
        program(binary)
    };
    let mut tally = None;
    let succeeded = watch(command.args(filter), |line| tally = Tally::of_line(line).or(tally))?;
    match tally {
        Some(tally) if succeeded == (tally.failed == 0) => Ok(tally),
        _ => bail!("the live tests did not come to their end"),
    }
}

/// Runs the live tests, and fails when one failed.
pub fn run_task(options: &Options) -> Result<()> {
    match run_tests(options.filter.as_deref())? {
        Tally { failed: 0, .. } => Ok(()),
        tally => bail!("live tests: {tally}"),
    }
}

fn is_root() -> bool {
    std::fs::read_to_string("/proc/self/status").is_ok_and(|status| {
        // Real, effective, saved and file-system user.
        let uids = status.lines().find_map(|line| line.strip_prefix("Uid:"));
        uids.and_then(|uids| uids.split_ascii_whitespace().nth(1)) == Some("0")
    })
}

fn sudo_works() -> bool {
    find("sudo").is_some()
        && program("sudo").args(["--non-interactive", "true"]).output().is_ok_and(|o| o.status.success())
}
