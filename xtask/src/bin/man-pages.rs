//! Writes masu's man pages into the folder that the first argument names. Run by `cargo xtask man`.

#![forbid(unsafe_code)]

use std::path::Path;

use anyhow::{Context, Result};
use clap::Command;

fn main() -> Result<()> {
    let folder = std::env::args_os().nth(1).context("expected a folder")?;
    // The version in a page would make every release touch every page; `masu --version` tells it.
    let mut command = masu::command().disable_help_subcommand(true).version(None::<&str>);
    command.build();
    page(&command, "masu", Path::new(&folder))
}

/// The page of a command, and of each below it: `masu.1`, `masu-attach.1`.
fn page(command: &Command, name: &str, folder: &Path) -> Result<()> {
    let named = command.clone().name(name.to_owned());
    let mut text = Vec::new();
    clap_mangen::Man::new(named).render(&mut text).context("cannot render")?;
    let path = folder.join(format!("{name}.1"));
    std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    for below in command.get_subcommands().filter(|below| !below.is_hide_set()) {
        page(below, &format!("{name}-{}", below.get_name()), folder)?;
    }
    Ok(())
}
