//! Rules of resctrl, tried on the kernel's own file system, with private groups that are removed afterwards.

use std::path::PathBuf;

use super::Outcome;
use super::resctrl::{Mount, RULES, Shown};
use crate::host::{Host, LiveTest, tests};

/// Tests of this file, and their requirements.
pub(crate) const TESTS: &[LiveTest] = tests! {
    resctrl_host requires [Root, Resctrl, Shell];
    the_kernel_keeps_the_rules_of_the_emulator;
};

/// Mount point: at most one for the whole machine.
pub(crate) fn mounted() -> Option<PathBuf> {
    let mounts = std::fs::read_to_string("/proc/self/mounts").ok()?;
    mounts.lines().find_map(|line| {
        let mut fields = line.split(' ').skip(1);
        let (at, kind) = (fields.next()?, fields.next()?);
        (kind == "resctrl").then(|| PathBuf::from(at))
    })
}

/// All of `resctrl.rs`. Rules that this machine cannot show, or that would disturb others, are named and left out.
fn the_kernel_keeps_the_rules_of_the_emulator(_: &Host) -> Outcome {
    let root = mounted().ok_or("it is not mounted")?;
    let mut broken = Vec::new();
    for (name, rule) in RULES {
        match rule(&Mount::of_the_kernel(root.clone())?) {
            Ok(Shown::Kept) => (),
            Ok(Shown::Not(why)) => println!("SKIP resctrl_host::{name}: {why}"),
            Err(failed) => broken.push(format!("{name}: {}", failed.message().unwrap_or("failed"))),
        }
    }
    if broken.is_empty() { Ok(()) } else { Err(broken.join("\n").into()) }
}
