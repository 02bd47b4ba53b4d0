//! `masu.h`, from the Rust source of the library that it declares.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};

use crate::command::{cargo, program, run as run_program};
use crate::workspace;

/// Options of `cargo xtask header`.
#[derive(clap::Args)]
#[command(
    long_about = "Writes crates/hugepages/libmasu/include/masu.h from crates/hugepages/libmasu, to be committed."
)]
pub struct Options {
    /// Write nothing: fail when the header differs from the one that the source gives
    #[arg(long)]
    check: bool,
}

/// Writes or compares the header.
pub fn run(options: &Options) -> Result<()> {
    if options.check {
        return check();
    }
    let (fresh, place) = (generate()?, place());
    fs::copy(&fresh, &place).with_context(|| format!("cannot write {}", place.display()))?;
    println!("{} written", workspace::shown(&place));
    Ok(())
}

/// Compares the header with a fresh one.
pub fn check() -> Result<()> {
    let (fresh, place) = (generate()?, place());
    let read = |path: &PathBuf| fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()));
    let shown = workspace::shown(&place);
    ensure!(read(&fresh)? == read(&place)?, "{shown} is out of date; `cargo xtask header` writes it anew");
    println!("{shown} is up to date");
    Ok(())
}

fn place() -> PathBuf {
    workspace::root().join("crates/hugepages/libmasu/include/masu.h")
}

/// Runs the generator, a program of its own so that every other task builds without its dependencies.
fn generate() -> Result<PathBuf> {
    let mut build = cargo();
    build.args(["build", "--quiet", "--features", "xtask/header", "--bin", "c-header"]).args(workspace::AS_FOR_TESTS);
    run_program(&mut build)?;
    let file = workspace::target().join("masu.h");
    run_program(program(workspace::target().join("debug/c-header")).arg(&file))?;
    Ok(file)
}
