//! `masu facts`.

use std::fmt::Display;
use std::io::{Write, stdout};

use access::probe::probe;
use hugepages::standing::{Standing, standings};
use linux::facts::{HostFacts, Known};
use serde::Serialize;

use crate::args::FactsTask;
use crate::failure::Failure;
use crate::print::Table;
use crate::{Done, HOST};

/// What is printed as JSON.
#[derive(Debug, Serialize)]
struct Report {
    host: HostFacts,
    features: Vec<Feature>,
}

/// One feature and its parts.
#[derive(Debug, Serialize)]
struct Feature {
    feature: &'static str,
    parts: Vec<Standing>,
}

pub fn run(task: &FactsTask) -> Result<Done, Failure> {
    let host = HostFacts::gather(&*HOST);
    let probed = probe(&*HOST);
    let parts = standings(&host, &probed.rungs);
    let report = Report { host, features: vec![Feature { feature: "hugepages", parts }] };
    let mut out = stdout().lock();
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
    let mut facts = Table::new(&["host", "found by trying"]);
    let mut row = |what: &str, value: String| facts.row([what.to_owned(), value]);
    row("kernel", said(&host.kernel_release, String::clone));
    row("processors", said(&host.cores, usize::to_string));
    row("memory", said(&host.memory_bytes, ToString::to_string));
    row("page tables", said(&host.page_table_levels, |levels| format!("{levels} levels")));
    row(
        "huge pages at the first touch",
        said(&host.thp_enabled, |mode| mode.map_or("none in this kernel", |m| m.word()).to_owned()),
    );
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
        "memory limit of our own group",
        said(&host.cgroup_memory, |memory| match memory.as_ref().and_then(linux::cgroup::Memory::room) {
            Some(room) => format!("{room} left"),
            None => "none".to_owned(),
        }),
    );
    facts.write(out, "")?;
    for feature in &report.features {
        writeln!(out)?;
        let mut parts = Table::new(&[feature.feature, "stands on", "which means"]);
        for part in &feature.parts {
            parts.row([part.part.to_owned(), part.rung.unwrap_or("nothing").to_owned(), part.meaning.clone()]);
        }
        parts.write(out, "")?;
        for part in &feature.parts {
            for missing in &part.missing {
                writeln!(out, "\n{}: not {}, because {}", part.part, missing.rung, missing.reason)?;
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
