//! `masu stat` without a process: the host's counters, its free blocks, and the processes with huge pages.

use std::collections::BTreeMap;
use std::io::Write;

use hugepages::count::{Counter, Superpages};
use linux::buddyinfo::{self, Zone};
use linux::probe::Known;
use linux::status::status;
use linux::thp::{self, Enabled, Settings};
use linux::thp_stats::{self, SizeStats};
use linux::{Error, KernelFiles, NotRead, Pid, Untrusted, vmstat};
use serde::Serialize;
use units::Bytes;

use super::cell;
use crate::HOST;
use crate::failure::Failure;
use crate::terminal::table::Table;

/// The JSON output.
#[derive(Debug, Serialize)]
pub struct Host {
    /// Settings for huge pages at the first touch; `null` for a kernel without them.
    thp: Option<Settings>,
    /// Counters since boot, by the kernel's names; `null` for a counter missing in this kernel.
    events: BTreeMap<&'static str, Option<u64>>,
    /// Counters by size; unknown on a kernel that does not count by size.
    sizes: Known<Vec<SizeStats>>,
    /// Free blocks of each zone by order.
    free: Vec<Zone>,
    /// Huge pages available without compaction.
    free_windows: u64,
    /// Processes with huge pages, or with memory that would get them; most first.
    processes: Vec<OfProcess>,
    /// Processes that could not be read.
    processes_not_read: u64,
    /// Processes that could not be read, by reason.
    not_read: Vec<NotRead>,
}

#[derive(Debug, Serialize)]
struct OfProcess {
    pid: Pid,
    name: Untrusted,
    rss_bytes: Bytes,
    #[serde(flatten)]
    superpages: Superpages,
}

/// The counters of `/proc/vmstat` for huge pages, with their meaning.
const EVENTS: [(&str, &str); 11] = [
    ("thp_fault_alloc", "allocated at the first touch"),
    ("thp_fault_fallback", "failed at the first touch: small pages instead"),
    ("thp_collapse_alloc", "made of small pages (khugepaged, masu attach)"),
    ("thp_collapse_alloc_failed", "not made of small pages: none to be had"),
    ("thp_split_page", "downgraded: split into small pages"),
    ("thp_split_page_failed", "could not be split"),
    ("thp_deferred_split_page", "partly unmapped: to be split when memory is short"),
    ("thp_underused_split_page", "split because hardly used"),
    ("thp_split_pmd", "mapped by small pages from then on"),
    ("thp_swpout", "swapped out whole"),
    ("thp_swpout_fallback", "split for swapping out"),
];

/// Processes in the table; the JSON has all.
const SHOWN: usize = 20;

/// Reads the host's state. `counters` caches between calls the values that are slow to read.
pub fn look(counters: &mut BTreeMap<Pid, Counter>) -> Result<Host, Failure> {
    let failed = |error: Error| Failure::at_process(&error);
    let thp = match thp::settings(&*HOST) {
        Err(Error::Unsupported(_)) => None,
        other => Some(other.map_err(failed)?),
    };
    let counted = vmstat::vmstat(&*HOST).map_err(failed)?;
    let free = buddyinfo::buddyinfo(&*HOST).map_err(failed)?;
    let (processes, not_read) = processes(counters)?;
    Ok(Host {
        thp,
        events: EVENTS.iter().map(|(name, _)| (*name, counted.get(name))).collect(),
        sizes: thp_stats::stats(&*HOST).into(),
        free_windows: free.iter().map(Zone::free_windows).sum(),
        free,
        processes,
        processes_not_read: not_read.len() as u64,
        not_read: NotRead::of(&not_read),
    })
}

fn processes(counters: &mut BTreeMap<Pid, Counter>) -> Result<(Vec<OfProcess>, Vec<Error>), Failure> {
    let names = HOST.list("proc").map_err(|errno| Failure::new(Error::of_host("list", "/proc", errno)))?;
    let pids: Vec<Pid> = names.iter().filter_map(|name| name.parse().ok()).collect();
    counters.retain(|pid, _| pids.contains(pid));
    let (mut found, mut not_read) = (Vec::new(), Vec::new());
    for pid in pids {
        match of_process(pid, counters.entry(pid).or_insert_with(|| Counter::new(pid))) {
            Ok(process) => found.extend(process),
            // Ended meanwhile.
            Err(error) if error.is_gone() => {}
            Err(error) => not_read.push(error),
        }
    }
    found.sort_by_key(|process| {
        let of = &process.superpages;
        (std::cmp::Reverse((of.allocated_windows, of.reserved_windows)), process.pid)
    });
    Ok((found, not_read))
}

/// The row of a process; `None` without huge pages and memory for them.
fn of_process(pid: Pid, counter: &mut Counter) -> Result<Option<OfProcess>, Error> {
    let status = status(&*HOST, pid)?;
    if status.kernel_thread || status.zombie {
        return Ok(None);
    }
    let counted = counter.count(&*HOST)?;
    let of = |superpages| OfProcess { pid, name: status.name, rss_bytes: status.rss, superpages };
    Ok(counted.is_of_interest().then(|| of(counted.total)))
}

pub fn print(out: &mut impl Write, host: &Host) -> Result<(), Failure> {
    match &host.thp {
        None => writeln!(out, "this kernel has no transparent huge pages")?,
        Some(settings) => {
            let who = match settings.enabled {
                Enabled::Always => "all memory",
                Enabled::Madvise => "memory for which the program asked",
                Enabled::Never => "none",
            };
            writeln!(out, "huge pages at the first touch: {} ({who})", settings.enabled.word())?;
        }
    }
    writeln!(out)?;
    let mut events = Table::new(["since boot", "times", "huge pages of 2 MiB"]);
    for (name, meaning) in EVENTS {
        if let Some(Some(times)) = host.events.get(name) {
            events.row([name.to_owned(), times.to_string(), meaning.to_owned()]);
        }
    }
    events.write(out, "")?;
    print_sizes(out, host)?;
    print_free(out, host)?;
    print_processes(out, host)
}

fn print_sizes(out: &mut impl Write, host: &Host) -> Result<(), Failure> {
    writeln!(out)?;
    let sizes = match &host.sizes {
        Known::Unknown(why) => return Ok(writeln!(out, "by size: not offered by this kernel: {why}")?),
        Known::Value(sizes) => sizes,
    };
    let mut table =
        Table::new(["page size", "allocated", "fell back", "split", "not split", "to be split", "in use now"]);
    for size in sizes.iter().filter(|size| size.anon_fault_alloc.is_some()) {
        let number = |count: Option<u64>| count.map_or_else(|| "-".to_owned(), |count| count.to_string());
        table.row([
            size.page_bytes.to_string(),
            number(size.anon_fault_alloc),
            number(size.anon_fault_fallback),
            number(size.split),
            number(size.split_failed),
            number(size.split_deferred),
            number(size.nr_anon),
        ]);
    }
    Ok(table.write(out, "")?)
}

/// Free blocks as in the paper's `/proc/alloc_pages`, with the zones beside each other.
fn print_free(out: &mut impl Write, host: &Host) -> Result<(), Failure> {
    writeln!(out)?;
    let names: Vec<String> = host.free.iter().map(|zone| format!("node {} {}", zone.node, zone.zone)).collect();
    let orders = host.free.iter().map(|zone| zone.free_blocks.len()).max().unwrap_or(0);
    let heads = ["free blocks".to_owned(), "order".to_owned()];
    let mut table = Table::new(heads.into_iter().chain(names));
    for order in 0..orders {
        let blocks = host.free.iter().map(|zone| zone.free_blocks.get(order).copied().unwrap_or(0).to_string());
        table.row([buddyinfo::block_bytes(order).to_string(), order.to_string()].into_iter().chain(blocks));
    }
    table.write(out, "")?;
    let memory = Bytes(host.free_windows.saturating_mul(2 << 20));
    Ok(writeln!(out, "free windows of 2 MiB: {} ({memory})", host.free_windows)?)
}

fn print_processes(out: &mut impl Write, host: &Host) -> Result<(), Failure> {
    writeln!(out)?;
    if host.processes.is_empty() {
        writeln!(out, "no process has huge pages, or memory that would get them")?;
    } else {
        let mut table = Table::new([
            "pid",
            "resident",
            "reserved",
            "allocated",
            "failed",
            "downgraded",
            "untouched",
            "on huge pages",
            "name",
        ]);
        for process in host.processes.iter().take(SHOWN) {
            let of = &process.superpages;
            table.row([
                process.pid.to_string(),
                process.rss_bytes.to_string(),
                of.reserved_windows.to_string(),
                of.allocated_windows.to_string(),
                cell(&of.failed_windows),
                cell(&of.downgraded_windows),
                of.untouched_windows.to_string(),
                of.allocated().to_string(),
                process.name.to_string(),
            ]);
        }
        table.write(out, "")?;
        if host.processes.len() > SHOWN {
            writeln!(out, "{} more with fewer; --json has them all", host.processes.len() - SHOWN)?;
        }
    }
    for not_read in &host.not_read {
        writeln!(out, "processes that could not be read: {}; the first: {}", not_read.processes, not_read.first)?;
    }
    Ok(())
}
