//! Third-party programs under every feature: each runs alone and under masu, and its output and exit status are compared.
//!
//! `programs` and `servers` are the table of programs, `cell` runs one of them once, `verdict` compares, `document` writes
//! the table of docs/field.md. Every process is a child of this one, in a process group of its own; nothing else on the host
//! is touched.

mod cell;
mod document;
mod entry;
mod interpreters;
mod programs;
mod servers;
mod verdict;

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Result, ensure};
use clap::Args;

use self::cell::Place;
use self::entry::{Entry, Feature};
use self::verdict::{Row, Verdict};
use crate::children::free_port;
use crate::session::Session;
use crate::tools::{finished, on_path};

/// Options of `masu-bench field`.
#[derive(Debug, Args)]
pub struct Options {
    /// The program of this name, or those whose name contains it, ignoring case [default: all]; may be repeated
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// Features to run under [default: all]; may be repeated
    #[arg(long, value_name = "FEATURE")]
    feature: Vec<Feature>,
    /// Print one JSON object per program
    #[arg(long)]
    json: bool,
    /// Install missing packages by apt-get and pip first
    #[arg(long)]
    install: bool,
    /// Write the rows of these programs into the table of this file
    #[arg(long, value_name = "FILE")]
    write: Option<PathBuf>,
    /// List the programs and their packages
    #[arg(long)]
    list: bool,
}

/// All programs, in the order of the table.
fn entries() -> impl Iterator<Item = &'static Entry> {
    interpreters::ENTRIES.iter().chain(programs::ENTRIES).chain(servers::ENTRIES)
}

/// Runs the programs and prints the table.
///
/// # Errors
/// When an output differs, a program cannot be run alone, or we are interrupted.
pub fn run(session: &Session, options: &Options) -> Result<()> {
    let fits = |part: &String, entry: &Entry| {
        let is_name = |entry: &Entry| entry.name.eq_ignore_ascii_case(part);
        let contains = || entry.name.to_lowercase().contains(&part.to_lowercase());
        is_name(entry) || (!entries().any(is_name) && contains())
    };
    let wanted = |entry: &&Entry| options.only.is_empty() || options.only.iter().any(|part| fits(part, entry));
    let chosen: Vec<&Entry> = entries().filter(wanted).collect();
    ensure!(!chosen.is_empty(), "no program has this name; `masu-bench field --list` names all");
    if options.list {
        for entry in chosen {
            println!("{:<24} {}", entry.name, entry.packages);
        }
        return Ok(());
    }
    if options.install {
        install(&chosen)?;
    }
    let features = if options.feature.is_empty() { Feature::ALL.to_vec() } else { options.feature.clone() };
    let mut rows = Vec::new();
    for entry in chosen {
        session.stop.check()?;
        let row = one(session, entry, &features)?;
        if options.json {
            println!("{}", serde_json::to_string(&row)?);
        } else {
            println!("{row}");
        }
        if let Some(path) = &options.write {
            document::write(path, &row, entries().map(|entry| entry.name))?;
        }
        rows.push(row);
    }
    let equal = rows.iter().flat_map(|row| row.cells.iter()).filter(|cell| cell.verdict == Verdict::Equal).count();
    let failed: Vec<&str> = rows.iter().filter(|row| row.failed()).map(|row| row.name.as_str()).collect();
    let missing: Vec<&str> = rows.iter().filter(|row| row.missing.is_some()).map(|row| row.name.as_str()).collect();
    if !options.json {
        println!("{} programs, {equal} runs under masu with equal output", rows.len() - missing.len());
        if !missing.is_empty() {
            println!("not installed: {} (--install installs them)", missing.join(", "));
        }
    }
    ensure!(failed.is_empty(), "another output or end under masu: {}", failed.join(", "));
    Ok(())
}

/// Runs one program alone and under each of `features`.
fn one(session: &Session, entry: &Entry, features: &[Feature]) -> Result<Row> {
    let missing: Vec<&str> = entry.needs.iter().copied().filter(|need| !exists(need)).collect();
    if !missing.is_empty() {
        let said = format!("{} not installed (Debian: {})", missing.join(", "), entry.packages);
        return Ok(Row::without_runs(entry, said));
    }
    let masu = session.masu()?;
    session.progress(&format!("{}: prepare", entry.name));
    let place = Place::new(free_port()?)?;
    let made = place.shell(&place.fill(entry.version), &session.stop);
    let made = made.and_then(|version| place.shell(&place.fill(entry.prepare), &session.stop).map(|_| version));
    let version = match made {
        Ok(version) => version,
        Err(error) => {
            session.stop.check()?;
            return Ok(Row::without_runs(entry, format!("{error:#} (packages: {})", entry.packages)));
        }
    };
    session.progress(&format!("{}: alone", entry.name));
    let alone = cell::run(&place, entry, masu.path(), None, &session.stop)?;
    let mut row = Row::new(entry, &version, &alone);
    if row.failed() {
        let said = String::from_utf8_lossy(&alone.output);
        row.alone = format!(
            "FAILED alone: {}: {} {}",
            alone.ended,
            alone.complaint,
            said.chars().take(200).collect::<String>()
        );
        return Ok(row);
    }
    for feature in features {
        session.progress(&format!("{}: {}", entry.name, feature.heading()));
        if let Some(cell) = verdict::not_run(entry, *feature) {
            row.cells.push(cell);
            continue;
        }
        let outcome = cell::run(&place, entry, masu.path(), Some(*feature), &session.stop)?;
        let mut cell = verdict::compare(entry, *feature, &alone, &outcome);
        // The document and the table name no folder of this machine.
        cell.text = place.unfill(&cell.text);
        row.cells.push(cell);
    }
    Ok(row)
}

/// Whether a program is on the PATH, in a folder of system programs, or a file exists.
fn exists(need: &str) -> bool {
    let found = |path: PathBuf| path.exists();
    need.split('|').any(|name| {
        on_path(name).is_some()
            || ["/usr/sbin", "/sbin", "/usr/local/go/bin"].iter().any(|folder| found(PathBuf::from(folder).join(name)))
            || (name.starts_with('/') && found(PathBuf::from(name)))
    })
}

/// Installs what is missing.
fn install(chosen: &[&Entry]) -> Result<()> {
    let missing = chosen.iter().filter(|entry| !entry.needs.iter().all(|need| exists(need)));
    let packages: Vec<&str> = missing.flat_map(|entry| entry.packages.split_whitespace()).collect();
    let (python, debian): (Vec<&str>, Vec<&str>) = packages.iter().partition(|name| name.starts_with("pip:"));
    if !debian.is_empty() {
        let mut command = Command::new("apt-get");
        command.env("DEBIAN_FRONTEND", "noninteractive");
        finished(command.args(["install", "--yes", "--no-install-recommends"]).args(debian))?;
    }
    if !python.is_empty() {
        let names = python.iter().filter_map(|name| name.strip_prefix("pip:"));
        let mut command = Command::new("/usr/bin/python3");
        finished(command.args(["-m", "pip", "install", "--quiet", "--break-system-packages"]).args(names))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn forty_programs_and_more_each_once_with_packages_and_a_version() {
        let names: Vec<&str> = entries().map(|entry| entry.name).collect();
        assert!(names.len() >= 40, "{}", names.len());
        assert_eq!(names.iter().collect::<HashSet<_>>().len(), names.len());
        for entry in entries() {
            assert!(
                !entry.packages.is_empty() && !entry.version.is_empty() && !entry.command.is_empty(),
                "{}",
                entry.name
            );
            assert!(!entry.name.contains('|'), "{}", entry.name);
        }
    }
}
