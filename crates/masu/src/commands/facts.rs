//! `masu facts`.

mod aging;
mod caches;
mod paging;
mod service;

use std::fmt::Display;
use std::io::Write;

use access::probe::probe;
use hugepages::backends::{PartBackend, part_backends};
use linux::probe::{HostFacts, Known};
use linux::thp;
use serde::Serialize;
use units::Bytes;

use crate::args::FactsTask;
use crate::commands::run::sizes::{self, Given};
use crate::failure::Failure;
use crate::prohibition::{self, Inherited};
use crate::terminal::print;
use crate::terminal::table::Table;
use crate::{Done, HOST};

/// The JSON output.
#[derive(Debug, Serialize)]
struct Report {
    host: HostFacts,
    /// Prohibition of huge pages that this process inherited, and its origin.
    #[serde(skip_serializing_if = "Option::is_none")]
    forbidden_here: Option<String>,
    /// Page sizes of this kernel, largest first; empty without huge pages.
    page_sizes: Vec<PageSize>,
    #[serde(flatten)]
    caches: caches::Found,
    features: Vec<Feature>,
}

/// A page size, and whether memory that asks for it gets it at the first touch.
#[derive(Debug, Serialize)]
struct PageSize {
    page_bytes: Bytes,
    #[serde(skip)]
    shown: String,
    given: bool,
    /// The file that denies this size, and the word to write there to allow it.
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    write: Option<&'static str>,
}

fn page_sizes() -> Vec<PageSize> {
    // A kernel without huge pages has no sizes.
    let Ok(settings) = thp::settings(&*HOST) else { return Vec::new() };
    let size = |(size, given): (contract::placement::Size, Given)| {
        let (file, write) = match &given {
            Given::No { file, write, .. } => (Some(file.clone()), Some(*write)),
            Given::Yes | Given::Unknown => (None, None),
        };
        PageSize {
            page_bytes: Bytes(size.bytes() as u64),
            shown: sizes::shown(size),
            given: given == Given::Yes,
            file,
            write,
        }
    };
    sizes::all(&settings).into_iter().map(size).collect()
}

/// A feature and its parts.
#[derive(Debug, Serialize)]
struct Feature {
    feature: &'static str,
    parts: Vec<PartBackend>,
}

pub fn run(task: &FactsTask) -> Result<Done, Failure> {
    // Before the probes, which try huge pages in this process.
    let inherited = prohibition::lift_own();
    let host = HostFacts::gather(&*HOST);
    let probed = probe(&*HOST);
    let parts = part_backends(&host, &probed.backends);
    let paging = Feature { feature: "larger than memory", parts: paging::backends(&host) };
    let aging = Feature { feature: "aging", parts: aging::backends(&aging::try_out(&*HOST)) };
    let found = caches::try_out(&*HOST, &host);
    let caches = Feature { feature: "last-level cache", parts: caches::backends(&found) };
    let service = Feature { feature: "service", parts: service::backends() };
    let features = vec![Feature { feature: "hugepages", parts }, paging, aging, caches, service];
    let forbidden_here = match inherited {
        Inherited::Nothing => None,
        Inherited::Lifted(why) | Inherited::Stays(why) => Some(why),
    };
    let report = Report { host, forbidden_here, page_sizes: page_sizes(), caches: found, features };
    let mut out = print::out();
    if task.json {
        serde_json::to_writer(&mut out, &report)?;
        writeln!(out)?;
    } else {
        print(&mut out, &report)?;
    }
    Ok(Done::Whole)
}

fn print(out: &mut impl Write, report: &Report) -> Result<(), Failure> {
    let host = &report.host;
    let mut facts = Table::new(["host", "found by trying"]);
    let mut row = |what: &str, value: String| facts.row([what.to_owned(), value]);
    row("kernel", said(&host.kernel_release, String::clone));
    row("processors", said(&host.cores, usize::to_string));
    row("memory", said(&host.memory_bytes, ToString::to_string));
    row("page tables", said(&host.page_table_levels, |levels| format!("{levels} levels")));
    row(
        "huge pages at the first touch",
        said(&host.thp_enabled, |mode| mode.map_or("none in this kernel", |m| m.word()).to_owned()),
    );
    if let Some(why) = &report.forbidden_here {
        row("huge pages in what is started here", why.clone());
    }
    row("kernel type information", yes_no(&host.btf));
    row("lockdown", said(&host.lockdown, |mode| format!("{mode:?}").to_lowercase()));
    row(
        "privileges",
        said(&host.capabilities, |own| {
            let names: Vec<&str> = own.known().map(linux::capabilities::Capability::name).collect();
            if names.is_empty() { "none of those that matter here".to_owned() } else { names.join(" ") }
        }),
    );
    row("clear accessed bits", yes_no(&host.clear_refs));
    row("soft-dirty bits", yes_no(&host.soft_dirty));
    row("scan of page states", yes_no(&host.pagemap_scan));
    row(
        "DAMON watches",
        said(&host.damon_operations, |names| if names.is_empty() { "nothing".to_owned() } else { names.join(" ") }),
    );
    row(
        "user faults",
        said(&host.user_faults, |features| match features {
            None => "none without privilege (UFFD_USER_MODE_ONLY)".to_owned(),
            Some(features) => features.names().collect::<Vec<_>>().join(" "),
        }),
    );
    row("syscall user dispatch", yes_no(&host.syscall_dispatch));
    row(
        "memory limit of our own group",
        said(&host.cgroup_memory, |memory| match memory.as_ref().and_then(linux::cgroup::Memory::headroom) {
            Some(room) => format!("{room} left"),
            None => "none".to_owned(),
        }),
    );
    row("last-level cache", said(&report.caches.last_level_caches, |all| caches::sizes(all)));
    row("cache partitions (resctrl)", said(&host.resctrl, caches::partitions));
    row("merging of equal pages (KSM)", said(&report.caches.ksm, |run| format!("{run:?}").to_lowercase()));
    facts.write(out, "")?;
    if !report.page_sizes.is_empty() {
        writeln!(out)?;
        let mut sizes = Table::new(["pages at the first touch", "for programs that ask", "to change that, as root"]);
        for size in &report.page_sizes {
            let change = size.file.as_ref().zip(size.write).map(|(file, word)| format!("echo {word} > {file}"));
            let given = if size.given { "yes" } else { "no" };
            sizes.row([size.shown.clone(), given.to_owned(), change.unwrap_or_default()]);
        }
        sizes.write(out, "")?;
    }
    for feature in &report.features {
        writeln!(out)?;
        let mut parts = Table::new([feature.feature, "backend", "meaning"]);
        for part in &feature.parts {
            parts.row([part.part.to_owned(), part.backend.unwrap_or("nothing").to_owned(), part.meaning.clone()]);
        }
        parts.write(out, "")?;
        for part in &feature.parts {
            for missing in &part.missing {
                writeln!(out, "\n{}: not {}, because {}", part.part, missing.backend, missing.reason)?;
                writeln!(out, "    {}", missing.remedy)?;
            }
        }
    }
    Ok(())
}

fn said<T>(fact: &Known<T>, say: impl FnOnce(&T) -> String) -> String {
    match fact {
        Known::Value(value) => say(value),
        Known::Unknown(why) => unknown(why),
    }
}

fn yes_no(fact: &Known<bool>) -> String {
    said(fact, |yes| if *yes { "yes" } else { "no" }.to_owned())
}

fn unknown(why: impl Display) -> String {
    format!("not known: {why}")
}
