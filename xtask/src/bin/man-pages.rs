//! Writes the man pages of masu and of resctrl-emulator into the folder that the first argument names. Run by
//! `cargo xtask man`.
//!
//! Synopsis and options come from the definition of the command's arguments. The rest (columns, examples, effects of a
//! command on the machine) is appended from `man/extra/NAME.roff`.

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
    let mut emulator = resctrl_emulator::arguments::command().version(None::<&str>);
    emulator.build();
    page(&emulator, folder)
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
    let (synopsis, has_subcommands) = (synopsis(&told), told.has_subcommands());
    let has_extra = told.get_after_help().is_some() || told.get_after_long_help().is_some();
    let man = clap_mangen::Man::new(told);
    let mut render = || {
        man.render_title(&mut text)?;
        man.render_name_section(&mut text)?;
        text.extend(synopsis.as_bytes());
        man.render_description_section(&mut text)?;
        man.render_options_section(&mut text)?;
        if has_subcommands {
            man.render_subcommands_section(&mut text)?;
        }
        if has_extra {
            man.render_extra_section(&mut text)?;
        }
        Ok::<(), std::io::Error>(())
    };
    render().context("cannot render")?;
    text.extend(extra);
    let path = folder.join(format!("{name}.1"));
    std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    command.get_subcommands().filter(|below| !below.is_hide_set()).try_for_each(|below| page(below, folder))
}

/// The command with each option and its value, which clap_mangen leaves out.
fn synopsis(command: &Command) -> String {
    let words = |text: &str| text.replace('-', "\\-");
    let shown = |argument: &clap::Arg| {
        let text = argument.to_string();
        let (option, value) =
            text.split_once(' ').map_or((text.as_str(), None), |(option, value)| (option, Some(value)));
        if argument.is_positional() {
            return format!("\\fI{}\\fR", words(&text));
        }
        let value = value.map(|value| format!(" \\fI{}\\fR", words(value))).unwrap_or_default();
        let shown = format!("\\fB{}\\fR{value}", words(option));
        if argument.is_required_set() { shown } else { format!("[{shown}]") }
    };
    let (positional, options): (Vec<_>, Vec<_>) = command
        .get_arguments()
        .filter(|argument| !argument.is_hide_set())
        .partition(|argument| argument.is_positional());
    let arguments = options.into_iter().chain(positional).map(shown);
    let name = words(command.get_bin_name().unwrap_or_else(|| command.get_name()));
    let below = command.has_subcommands().then(|| "\\fICOMMAND\\fR".to_owned());
    let line: Vec<String> = [format!("\\fB{name}\\fR")].into_iter().chain(arguments).chain(below).collect();
    format!(".SH SYNOPSIS\n{}\n", line.join(" "))
}

/// Text about a command that is written by hand, if there is any.
fn extra(name: &str) -> Result<Vec<u8>> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../man/extra").join(format!("{name}.roff"));
    match std::fs::read(&path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
        other => other.with_context(|| format!("cannot read {}", path.display())),
    }
}
