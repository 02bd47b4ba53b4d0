//! Writes the man pages of masu and of resctrl-emulator into the folder that the first argument names. Run by `cargo xtask man`.
//!
//! Synopsis and options come from the definition of the command's arguments. What that cannot say (columns, examples,
//! what a command does to the machine) follows from `man/extra/NAME.roff`.

#![forbid(unsafe_code)]

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Command;

fn main() -> Result<()> {
    let folder = std::env::args_os().nth(1).context("expected a folder")?;
    // With the version in it every release would touch every page; `masu --version` tells it.
    let mut command = masu::command().disable_help_subcommand(true).version(None::<&str>);
    // Gives the commands below it their full names: masu-attach.
    command.build();
    let folder = Path::new(&folder);
    page(&command, folder)?;
    page(&resctrl_emulator::arguments::command().version(None::<&str>), folder)
}

/// The page of a command, and of each below it: `masu.1`, `masu-attach.1`.
fn page(command: &Command, folder: &Path) -> Result<()> {
    let name = command.get_display_name().unwrap_or_else(|| command.get_name());
    let (mut told, mut text) = (command.clone(), Vec::new());
    let extra = extra(name)?;
    if !extra.is_empty() {
        // The end of `--help` gives examples too, for a terminal; the page has its own.
        told = told.after_help(None::<&str>).after_long_help(None::<&str>);
    }
    clap_mangen::Man::new(told).render(&mut text).context("cannot render")?;
    text.extend(extra);
    let path = folder.join(format!("{name}.1"));
    std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    command.get_subcommands().filter(|below| !below.is_hide_set()).try_for_each(|below| page(below, folder))
}

/// What was written by hand about a command, if anything was.
fn extra(name: &str) -> Result<Vec<u8>> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../man/extra").join(format!("{name}.roff"));
    match std::fs::read(&path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
        other => other.with_context(|| format!("cannot read {}", path.display())),
    }
}
