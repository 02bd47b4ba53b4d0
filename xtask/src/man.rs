//! The man pages, from the command's own definition of its arguments.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::command::{cargo, create_folder, program, run as run_program};
use crate::workspace;

/// Options of `cargo xtask man`.
#[derive(clap::Args)]
#[command(
    long_about = "Writes man/*.1 from the definition of the arguments of masu and resctrl-emulator, to be committed."
)]
pub struct Options {
    /// Write nothing: fail when a page differs from the one that the definition gives
    #[arg(long)]
    check: bool,
}

/// Writes or compares the pages.
pub fn run(options: &Options) -> Result<()> {
    if options.check { check() } else { write() }
}

/// Compares every page with a fresh one.
pub fn check() -> Result<()> {
    let fresh = generate()?;
    let problems = differences(&fresh, &folder())?;
    if !problems.is_empty() {
        bail!("{}; `cargo xtask man` writes them anew", problems.join("; "));
    }
    println!("{} man pages are up to date", names(&fresh)?.len());
    Ok(())
}

fn write() -> Result<()> {
    let fresh = generate()?;
    let folder = folder();
    create_folder(&folder)?;
    for old in names(&folder)? {
        fs::remove_file(folder.join(&old)).with_context(|| format!("cannot remove {old}"))?;
    }
    for name in names(&fresh)? {
        fs::copy(fresh.join(&name), folder.join(&name)).with_context(|| format!("cannot write {name}"))?;
        println!("man/{name} written");
    }
    Ok(())
}

fn folder() -> PathBuf {
    workspace::root().join("man")
}

/// Runs the generator, a program of its own so that every other task works while masu does not compile.
fn generate() -> Result<PathBuf> {
    let mut build = cargo();
    build.args(["build", "--quiet", "--features", "xtask/man", "--bin", "man-pages"]).args(workspace::AS_FOR_TESTS);
    run_program(&mut build)?;
    let folder = workspace::target().join("man");
    if folder.exists() {
        fs::remove_dir_all(&folder).with_context(|| format!("cannot empty {}", folder.display()))?;
    }
    create_folder(&folder)?;
    run_program(program(workspace::target().join("debug/man-pages")).arg(&folder))?;
    Ok(folder)
}

/// Differences between the pages of two folders, in words.
fn differences(fresh: &Path, there: &Path) -> Result<Vec<String>> {
    let mut problems = Vec::new();
    for name in names(fresh)? {
        match fs::read_to_string(there.join(&name)) {
            Ok(text) if text == fs::read_to_string(fresh.join(&name))? => (),
            Ok(_) => problems.push(format!("man/{name} is out of date")),
            Err(_) => problems.push(format!("man/{name} is missing")),
        }
    }
    for name in names(there)? {
        if !fresh.join(&name).exists() {
            problems.push(format!("man/{name} is about nothing"));
        }
    }
    Ok(problems)
}

/// The pages in a folder; none when it is not there.
fn names(folder: &Path) -> Result<Vec<String>> {
    let Ok(entries) = fs::read_dir(folder) else { return Ok(Vec::new()) };
    let names = entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
    let mut names: Vec<String> = names.filter(|name| name.ends_with(".1")).collect();
    names.sort();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_that_differ_are_missing_or_too_many_are_named() {
        let (fresh, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        for name in ["a.1", "b.1", "c.1"] {
            fs::write(fresh.path().join(name), name).unwrap();
        }
        for (name, text) in [("a.1", "a.1"), ("b.1", "old"), ("d.1", "gone"), ("README.md", "kept")] {
            fs::write(there.path().join(name), text).unwrap();
        }
        let problems = differences(fresh.path(), there.path()).unwrap();
        assert_eq!(problems, ["man/b.1 is out of date", "man/c.1 is missing", "man/d.1 is about nothing"]);
        assert_eq!(differences(fresh.path(), fresh.path()).unwrap(), [""; 0]);
    }
}
