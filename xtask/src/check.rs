//! Everything that continuous integration runs without root.

mod circles;
mod conversions;
mod docs;
mod documents;
mod error_types;
mod file_length;
mod language;
mod layers;
mod lints;
mod names;
mod printing;
mod purity;
mod source;
mod unsafe_code;

use std::cell::Cell;
use std::fmt;
use std::process::Command;

use anyhow::{Result, ensure};

use crate::command::{cargo, output, program, run, watch};
use crate::tally::Tally;
use crate::{bpf, failures, header, header_check, man, workspace};
use source::Source;

/// A rule that a line breaks.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Violation {
    path: String,
    /// From 1; `None` when it is about the file as a whole.
    line: Option<usize>,
    /// The finding, and the rule.
    message: String,
}

impl Violation {
    fn at(source: &Source, line: usize, message: String) -> Violation {
        Violation { path: source.path.clone(), line: Some(line), message }
    }

    fn of_file(path: &str, message: String) -> Violation {
        Violation { path: path.to_owned(), line: None, message }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Some(line) => write!(f, "{}:{line}: {}", self.path, self.message),
            None => write!(f, "{}: {}", self.path, self.message),
        }
    }
}

/// The rules, over all sources.
pub fn rules() -> Result<()> {
    let (sources, documents) = (source::all()?, documents::all()?);
    let mut found = layers::in_manifests(&layers::packages()?);
    found.extend(sources.iter().flat_map(layers::in_source));
    found.extend(sources.iter().flat_map(layers::attach_control));
    found.extend(sources.iter().flat_map(purity::in_source));
    found.extend(sources.iter().flat_map(printing::in_source));
    found.extend(sources.iter().flat_map(names::in_source));
    found.extend(sources.iter().flat_map(file_length::in_source));
    found.extend(sources.iter().flat_map(unsafe_code::in_source));
    found.extend(sources.iter().flat_map(docs::in_source));
    found.extend(circles::in_sources(&sources));
    found.extend(sources.iter().flat_map(conversions::in_source));
    found.extend(sources.iter().flat_map(error_types::in_source));
    found.extend(lints::of_libraries()?);
    found.extend(documents.iter().flat_map(documents::in_document));
    found.extend(language::beginnings(&sources, &documents));
    found.extend(language::too_indirect(&sources, &documents));
    for violation in &found {
        println!("{violation}");
    }
    for subject in long_subjects() {
        println!("commit subject beyond {SUBJECT_MAX} characters: {subject}");
    }
    ensure!(found.is_empty(), "{} violations of the rules", found.len());
    println!("{} sources and {} documents keep the rules", sources.len(), documents.len());
    Ok(())
}

/// Characters of a commit's subject.
const SUBJECT_MAX: usize = 72;

/// Subjects of recent commits that are too long: named, since a commit that is published stays. None where there is no
/// history.
fn long_subjects() -> Vec<String> {
    let log = output(program("git").args(["log", "-n", "50", "--format=%s"]).current_dir(workspace::root()));
    let subjects = log.unwrap_or_default();
    subjects.lines().filter(|subject| subject.chars().count() > SUBJECT_MAX).map(str::to_owned).collect()
}

/// Prints the language counts of crates and documents.
pub fn language() -> Result<()> {
    print!("{}", language::table(&source::all()?, &documents::all()?));
    Ok(())
}

/// The libraries that are loaded into programs, or linked with them: workspaces of their own.
const LIBRARIES: [&str; 3] =
    ["crates/hugepages/preload/Cargo.toml", "crates/farmem/agent/Cargo.toml", "crates/hugepages/libmasu/Cargo.toml"];

fn format() -> Result<()> {
    run(cargo().args(["fmt", "--all", "--check"]))?;
    LIBRARIES.iter().try_for_each(|library| run(cargo().args(["fmt", "--check", "--manifest-path", library])))
}

fn clippy() -> Result<()> {
    run(cargo().args(["clippy", "--quiet", "--workspace", "--all-targets", "--", "--deny", "warnings"]))?;
    LIBRARIES.iter().try_for_each(|library| {
        let mut command = cargo();
        command.args(["clippy", "--quiet", "--release", "--manifest-path", library, "--target-dir"]);
        run(command.arg(workspace::target().join("library-lints")).args(["--", "--deny", "warnings"]))
    })
}

/// Each fuzz target for a fixed number of executions, by the driver that the tests have built; each counts as a test.
fn fuzz_targets(tally: &Cell<Tally>) -> Result<()> {
    let mut driver = program(workspace::target().join("debug/fuzz"));
    counted(driver.arg("run"), tally)
}

fn rustdoc() -> Result<()> {
    run(cargo().args(["doc", "--quiet", "--workspace", "--no-deps"]).env("RUSTDOCFLAGS", "--deny warnings"))
}

/// All tests but the live ones, which have a task of their own.
fn tests(tally: &Cell<Tally>) -> Result<()> {
    let mut command = cargo();
    counted(command.args(["test", "--quiet", "--workspace", "--no-fail-fast"]).env("LIVE_TESTS", "off"), tally)
}

/// Runs tests and counts them.
fn counted(command: &mut Command, tally: &Cell<Tally>) -> Result<()> {
    let mut failed = false;
    let succeeded = watch(command, |line| {
        if let Some(more) = Tally::of_line(line) {
            let mut sum = tally.get();
            sum += more;
            tally.set(sum);
            failed |= more.failed > 0;
        }
    })?;
    // A failed test is counted already; a build that failed is not.
    ensure!(succeeded || failed, "the tests did not come to their end");
    Ok(())
}

/// Runs every step, also after one failed, and counts the tests; a step that failed counts as one failure.
pub fn run_all() -> Result<Tally> {
    let tally = Cell::new(Tally::default());
    let steps: [(&str, &mut dyn FnMut() -> Result<()>); 10] = [
        ("rules", &mut rules),
        ("format", &mut format),
        ("lints", &mut clippy),
        ("tests", &mut || tests(&tally)),
        ("fuzz targets", &mut || fuzz_targets(&tally)),
        ("documentation", &mut rustdoc),
        ("BPF object", &mut || bpf::check()),
        ("kernel headers", &mut || header_check::compare()),
        ("C header", &mut || header::check()),
        ("man pages", &mut || man::check()),
    ];
    let mut failed = Vec::new();
    for (name, step) in steps {
        println!("\n== {name}");
        if let Err(error) = step() {
            println!("== {name}: FAILED: {error:#}");
            failures::note(format!("check, {name}: {error:#}"));
            failed.push(name);
        }
    }
    let mut tally = tally.get();
    for _ in &failed {
        tally += Tally::one_failure();
    }
    let verdict =
        if failed.is_empty() { "all steps passed".to_owned() } else { format!("FAILED: {}", failed.join(", ")) };
    println!("\n== check: {verdict}; {tally}");
    Ok(tally)
}

/// Runs all steps, and fails when one failed.
pub fn run_task() -> Result<()> {
    let tally = run_all()?;
    ensure!(tally.failed == 0, "check: {tally}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_violation_says_where() {
        let source = Source::new("crates/linux/src/a.rs", "");
        assert_eq!(Violation::at(&source, 7, "no".to_owned()).to_string(), "crates/linux/src/a.rs:7: no");
        assert_eq!(Violation::of_file("a.rs", "no".to_owned()).to_string(), "a.rs: no");
    }
}
