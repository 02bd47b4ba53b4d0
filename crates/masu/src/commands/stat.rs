//! `masu stat`.

mod host;

use std::collections::BTreeMap;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::time::Duration;

use hugepages::count::{Counted, Counter, Superpages};
use hugepages::program::LazilyFreed;
use linux::halted::{self, Halted};
use linux::probe::Known;
use linux::status::status;
use linux::{Error, Pid, Untrusted, thp_permission};
use serde::Serialize;
use units::Bytes;

use crate::args::StatTask;
use crate::failure::Failure;
use crate::open::{Purpose, admit, each};
use crate::terminal::clock::{Clock, Stop};
use crate::terminal::repeat::{every, repeat};
use crate::terminal::table::Table;
use crate::{Done, HOST, prohibition};

/// A process with what was read of it before.
type Watched = (Counter, LazilyFreed);

/// The JSON output for a process.
#[derive(Debug, Serialize)]
struct Process {
    pid: Pid,
    name: Untrusted,
    rss_bytes: Bytes,
    /// Cause for which it cannot run.
    #[serde(skip_serializing_if = "Option::is_none")]
    halted: Option<Halted>,
    /// Part of it that the program freed lazily (MADV_FREE): the kernel may take it at any time.
    lazily_freed_bytes: Known<Bytes>,
    #[serde(flatten)]
    counted: Counted,
}

pub fn run(task: &StatTask) -> Result<Done, Failure> {
    let stop = Stop::on_signals()?;
    let mut pids = task.pids.clone();
    let every = every(task.watch, &mut pids);
    pids.sort_unstable();
    pids.dedup();
    if pids.is_empty() { of_host(task.json, every, stop) } else { of_processes(&pids, task.json, every, stop) }
}

fn of_host(json: bool, every: Option<Duration>, stop: Stop) -> Result<Done, Failure> {
    let mut counters = BTreeMap::new();
    repeat(every, Clock::new(stop, Vec::new()), json, |out| {
        let host = host::look(&mut counters)?;
        if json {
            line(out, &host)?
        } else {
            host::print(out, &host)?
        }
        Ok(true)
    })?;
    Ok(Done::Whole)
}

fn of_processes(pids: &[Pid], json: bool, every: Option<Duration>, stop: Stop) -> Result<Done, Failure> {
    let (mut counters, done): (Vec<(Watched, OwnedFd)>, Done) = each(pids, |pid| {
        admit(pid, Purpose::Look)?;
        let ends = pid.open().map_err(|error| Failure::at_process(&error))?;
        Ok(((Counter::new(pid), LazilyFreed::default()), ends))
    })?;
    let mut ends = Vec::new();
    for (_, end) in &counters {
        ends.push(end.try_clone()?);
    }
    let mut first = true;
    repeat(every, Clock::new(stop, ends), json, |out| {
        let mut left = Vec::new();
        let several = counters.len() > 1;
        for (number, (mut counter, end)) in std::mem::take(&mut counters).into_iter().enumerate() {
            let process = match look(&mut counter.0, &counter.1) {
                // Watching ends with the process.
                Err(error) if error.is_gone() && !first => continue,
                other => other.map_err(|error| Failure::at_process(&error))?,
            };
            if json {
                line(out, &process)?;
            } else {
                if several && number > 0 {
                    writeln!(out)?;
                }
                print(out, &process)?;
            }
            left.push((counter, end));
        }
        first = false;
        counters = left;
        Ok(!counters.is_empty())
    })?;
    Ok(done)
}

fn line(out: &mut impl Write, value: &impl Serialize) -> Result<(), Failure> {
    serde_json::to_writer(&mut *out, value)?;
    Ok(writeln!(out)?)
}

fn look(counter: &mut Counter, lazily_freed: &LazilyFreed) -> Result<Process, Error> {
    let counted = counter.count(&*HOST)?;
    let status = status(&*HOST, counted.pid)?;
    let lazily_freed_bytes = match lazily_freed.bytes(&*HOST, counted.pid) {
        Ok(bytes) => Known::Value(bytes),
        Err(error) => Known::Unknown(error.to_string()),
    };
    let halted = halted::halted(&*HOST, counted.pid);
    Ok(Process { pid: counted.pid, name: status.name, rss_bytes: status.rss, halted, lazily_freed_bytes, counted })
}

fn print(out: &mut impl Write, process: &Process) -> Result<(), Failure> {
    let Process { pid, name, rss_bytes, halted, lazily_freed_bytes, counted } = process;
    let forbidden = match counted.forbidden {
        true => {
            format!("   huge pages forbidden {} (prctl)", prohibition::by_whom(&thp_permission::origin(&*HOST, *pid)))
        }
        false => String::new(),
    };
    writeln!(out, "process {pid} ({name})   resident {rss_bytes}{forbidden}")?;
    if let Some(halted) = halted {
        writeln!(out, "It is {halted}. {}", halted.remedy(*pid))?;
    }
    let mut table = Table::new([
        "windows of 2 MiB",
        "reserved",
        "allocated",
        "failed",
        "downgraded",
        "swapped",
        "untouched",
        "on huge pages",
    ]);
    let shown = counted.by_kind.iter().filter(|of| of.superpages.reserved_windows > 0);
    for of in shown {
        row(&mut table, of.kind.name(), &of.superpages);
    }
    row(&mut table, "all", &counted.total);
    table.write(out, "")?;
    if let Some(torn) = counted.total.torn_bytes.value().filter(|bytes| bytes.0 > 0) {
        writeln!(
            out,
            "{torn} of torn huge pages: the program gave them back, and the kernel keeps and charges them until reclaim; \
             `masu attach` splits such pages, unless they are locked or another process maps them"
        )?;
    }
    if let Some(freed) = lazily_freed_bytes.value().filter(|bytes| bytes.0 > 0) {
        writeln!(
            out,
            "{freed} of the resident memory was freed lazily (MADV_FREE): the kernel takes it when it needs memory"
        )?;
    }
    if let Some(why) = counted.total.downgraded_windows.why_unknown() {
        let windows = counted.total.not_huge_windows;
        writeln!(out, "{windows} windows failed or were downgraded; which is not known: {why}")?;
    }
    print_sizes(out, counted)?;
    if let Some(line) = counted.pieces.text() {
        writeln!(out, "{line}")?;
    }
    Ok(())
}

/// The number, or a dash where it is unknown.
fn cell(windows: &Known<u64>) -> String {
    windows.value().map_or_else(|| "-".to_owned(), u64::to_string)
}

fn row(table: &mut Table, name: &str, of: &Superpages) {
    table.row([
        name.to_owned(),
        of.reserved_windows.to_string(),
        of.allocated_windows.to_string(),
        cell(&of.failed_windows),
        cell(&of.downgraded_windows),
        of.swapped_windows.to_string(),
        of.untouched_windows.to_string(),
        of.allocated().to_string(),
    ]);
}

fn print_sizes(out: &mut impl Write, counted: &Counted) -> Result<(), Failure> {
    let sizes = match &counted.small_sizes {
        None => return Ok(()),
        Some(Known::Unknown(why)) => return Ok(writeln!(out, "sizes below 2 MiB: not known: {why}")?),
        Some(Known::Value(sizes)) => sizes,
    };
    let mut table = Table::new(["page size", "allocated", "resident"]);
    for size in sizes {
        table.row([size.page_bytes.to_string(), size.allocated_pages.to_string(), size.resident_bytes.to_string()]);
    }
    let total = &counted.total;
    table.row(["2.0 MiB".to_owned(), total.allocated_windows.to_string(), total.allocated().to_string()]);
    writeln!(out)?;
    Ok(table.write(out, "")?)
}
