//! `masu census --files`.

use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use aging::census::files::{self, Files};
use linux::Untrusted;
use units::Bytes;

use crate::failure::Failure;
use crate::terminal::clock::Stop;
use crate::terminal::print;
use crate::terminal::table::Table;
use crate::{Done, HOST};

/// Files in the table.
const SHOWN: usize = 40;
/// Files in the JSON.
const LISTED: usize = 1000;
/// Files between two lines of progress.
const PROGRESS: u64 = 10_000;

pub fn run(folders: &[PathBuf], json: bool) -> Result<Done, Failure> {
    let folders = if folders.is_empty() {
        files::local_folders(&*HOST).map_err(|error| Failure::new(&error))?
    } else {
        folders.iter().map(|folder| Untrusted::new(folder.as_os_str().as_bytes())).collect()
    };
    let stop = Stop::on_signals()?;
    let goes_on = |asked: u64| {
        if asked.is_multiple_of(PROGRESS) {
            print::progress(&format!("{asked} files asked"));
        }
        !stop.is_set()
    };
    let report = files::of_folders(&*HOST, folders, if json { LISTED } else { SHOWN }, goes_on);
    print::progress("");
    let report = report.map_err(|error| match error {
        linux::Error::Unsupported(_) => {
            Failure::new(&error).remedy("The kernel counts the cached pages of a file since Linux 6.5 (cachestat).")
        }
        error if error.is_gone() => Failure::new(&error).remedy("Name a folder that is there."),
        error => Failure::new(&error).remedy("Name a folder that this user may open: the files below it are counted."),
    })?;
    let mut out = print::out();
    if json {
        serde_json::to_writer(&mut out, &report)?;
        writeln!(out)?;
    } else {
        show(&mut out, &report)?;
    }
    out.flush()?;
    Ok(if report.is_cut_short { Done::InPart } else { Done::Whole })
}

fn show(out: &mut impl Write, report: &Files) -> Result<(), Failure> {
    let mut table = Table::new(["cached", "of", "to be written", "file"]);
    for of in &report.files {
        table.row([
            of.cached_bytes.to_string(),
            of.size_bytes.to_string(),
            of.dirty_bytes.to_string(),
            of.path.to_string(),
        ]);
    }
    table.write(out, "")?;
    let listed: Bytes = report.files.iter().map(|of| of.cached_bytes).sum();
    if report.more_files > 0 {
        let rest = report.found_bytes.saturating_sub(listed);
        writeln!(out, "and {} more files with {rest}", report.more_files)?;
    }
    writeln!(out)?;
    let Files { cached_bytes, found_bytes, files_asked, cost_us, .. } = report;
    let unnamed = cached_bytes.saturating_sub(*found_bytes);
    writeln!(
        out,
        "{found_bytes} of {cached_bytes} of page cache, in {files_asked} files asked in {} ms",
        cost_us / 1000
    )?;
    writeln!(out, "{unnamed} has no name here: files elsewhere or deleted, directories, the file systems' own data")?;
    if report.not_opened > 0 {
        writeln!(out, "{} files and folders could not be opened", report.not_opened)?;
    }
    if report.is_cut_short {
        writeln!(out, "ended early: the files after that were not asked")?;
    }
    Ok(())
}
