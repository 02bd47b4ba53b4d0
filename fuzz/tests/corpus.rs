//! Seeds reach their code, and the driver finds bugs that were planted for it.

#![expect(clippy::unwrap_used, reason = "test support")]

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use fuzz::corpus::{self, files};
use fuzz::{TARGETS, named};

/// A driver that gets only refusals would find nothing, unnoticed.
#[test]
fn every_seed_is_understood_but_those_whose_name_says_otherwise() {
    for target in TARGETS {
        let mut variants = BTreeSet::new();
        for file in files(&target).unwrap() {
            let seed = fs::read(&file).unwrap();
            assert!(seed.len() <= target.bytes_max, "{} has {} bytes", file.display(), seed.len());
            let is_refused = file.file_name().unwrap().to_string_lossy().starts_with("refused");
            let understood = (target.run)(&seed);
            assert_eq!(understood, !is_refused, "{}", file.display());
            variants.extend(understood.then(|| seed.first().map_or(0, |first| first % target.variants)));
        }
        let missing: Vec<u8> = (0..target.variants).filter(|variant| !variants.contains(variant)).collect();
        assert!(missing.is_empty(), "{}: no seed is understood whose first byte is {missing:?}", target.name);
    }
}

#[test]
fn every_folder_of_seeds_has_a_target() {
    for folder in fs::read_dir(corpus::folder().join("corpus")).unwrap() {
        let name = folder.unwrap().file_name().into_string().unwrap();
        assert!(name == "planted" || named(&name).is_some(), "{name}");
    }
}

fn fuzz(arguments: &[&str], findings: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fuzz"));
    command.args(arguments).arg("--findings").arg(findings).output().unwrap()
}

/// A planted bug is found within the executions of continuous integration, and its file finds it again.
fn finds(target: &str, why: &str) {
    let findings = tempfile::tempdir().unwrap();
    let output = fuzz(&["run", target, "--time-limit", "2"], findings.path());
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(!output.status.success() && said.contains("0 passed; 1 failed"), "{said}");
    assert!(said.contains(why) && said.contains(&format!("repeat {target} ")), "{said}");
    let files: Vec<_> = fs::read_dir(findings.path()).unwrap().map(|file| file.unwrap().path()).collect();
    let [file] = &files[..] else { panic!("{files:?}") };
    // A hanging input would hang here too.
    if target != "planted_hang" {
        let again = Command::new(env!("CARGO_BIN_EXE_fuzz")).args(["repeat", target]).arg(file).output().unwrap();
        assert!(!again.status.success(), "{again:?}");
    }
}

#[test]
fn a_panic_is_found() {
    finds("planted_panic", "pages have no number of bytes");
}

#[test]
fn an_input_that_takes_for_ever_is_found() {
    finds("planted_hang", "it takes longer than 2s");
}

#[test]
fn a_stack_that_is_too_small_is_found() {
    finds("planted_overflow", "signal 6 ended it");
}

#[test]
fn the_same_run_tries_the_same_inputs() {
    let counted = |run: &str| {
        let arguments =
            ["worker", "store_url", "--from", "0", "--executions", "2000", "--seconds", "600", "--run", run];
        let output = fuzz(&arguments, Path::new("/nowhere"));
        let said = String::from_utf8(output.stdout).unwrap();
        let (counts, _ms) = said.lines().last().unwrap().rsplit_once(' ').unwrap();
        assert!(counts.starts_with("done 2000 2000 "), "{said}");
        counts.to_owned()
    };
    assert_eq!(counted("5"), counted("5"));
    assert_ne!(counted("5"), counted("6"));
}

#[test]
fn a_signal_ends_a_long_run_with_its_counts() {
    let findings = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_fuzz"));
    command.args(["run", "arguments", "--seconds", "600", "--findings"]).arg(findings.path());
    let run = command.stdout(std::process::Stdio::piped()).spawn().unwrap();
    std::thread::sleep(std::time::Duration::from_secs(2));
    rustix::process::kill_process(rustix::process::Pid::from_child(&run), rustix::process::Signal::INT).unwrap();
    let output = run.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("1 passed; 0 failed"), "{said}");
}
