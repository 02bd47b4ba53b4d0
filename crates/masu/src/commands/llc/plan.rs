//! `masu llc plan`.

use std::io::Write;
use std::path::Path;
use std::time::Duration;

use linux::journal::HostSettings;
use linux::runtime_directory::DIRECTORY;
use llc::daemon::act::writes;
use llc::daemon::others::SharedClasses;
use llc::daemon::report::{Event, OfGroup, OfSet, Slowdown, shown};
use serde::Serialize;

use super::daemon::{SOLE_PLAN, at_host, at_trouble, config, daemon};
use crate::args::PlanTask;
use crate::failure::Failure;
use crate::only_one::only_one;
use crate::terminal::print;
use crate::terminal::table::Table;
use crate::{Done, HOST};

/// The JSON output.
#[derive(Debug, Default, Serialize)]
struct Report {
    policy: String,
    basis: String,
    groups: Vec<OfGroup>,
    slowdowns: Vec<Slowdown>,
    shared: Vec<OfSet>,
    cross_domain_frames: u64,
    /// Parts that cannot be done, in words.
    without: Vec<String>,
    /// Programs that share a class of service because the classes are used up.
    shared_classes: Option<SharedClasses>,
    /// Each write, as `path <- value`, in order.
    writes: Vec<String>,
}

pub fn run(task: &PlanTask) -> Result<Done, Failure> {
    let config = config(&task.config)?;
    if config.partition {
        // Taken only to see that no control loop runs, and released at once.
        drop(only_one(&SOLE_PLAN)?);
    }
    let unturned = HostSettings::open(&*HOST, Path::new(DIRECTORY)).map_err(|error| at_host(&error))?;
    let mut daemon = daemon(&config, task.resctrl.as_deref(), unturned, || false)?;
    let (events, steps) = daemon.plan(Duration::ZERO).map_err(|error| at_trouble(&error))?;
    let mut report = Report { policy: config.policy.to_string(), ..Report::default() };
    for event in events {
        match event {
            Event::Decided { basis, groups, slowdowns, .. } => {
                (report.basis, report.groups, report.slowdowns) = (basis, groups, slowdowns);
            }
            Event::Shared { sets, cross_domain_frames } => {
                (report.shared, report.cross_domain_frames) = (sets, cross_domain_frames);
            }
            Event::SharedClasses(shared) => report.shared_classes = Some(shared),
            Event::Without { what, why } => report.without.push(format!("{what}: {why}")),
            _ => {}
        }
    }
    if let Some(mount) = daemon.host().mount() {
        report.writes = steps.iter().flat_map(|step| writes(step, mount)).collect();
    }
    let mut out = print::out();
    if task.json {
        serde_json::to_writer(&mut out, &report)?;
        writeln!(out)?;
    } else if task.dry_run {
        // Output is the writes alone.
        report.shared_classes.iter().for_each(print::note);
        for write in &report.writes {
            writeln!(out, "{write}")?;
        }
    } else {
        print(&mut out, &report)?;
    }
    Ok(Done::Whole)
}

fn print(out: &mut impl Write, report: &Report) -> Result<(), Failure> {
    if report.groups.is_empty() {
        writeln!(out, "no partitions: what is shared is kept in the cache")?;
    } else {
        writeln!(out, "policy {}, {}", report.policy, report.basis)?;
        let mut table = Table::new(["group", "ways", "mask", "mode", "holds"]);
        for group in &report.groups {
            let ways = group.masks.first().map_or(0, |of| of.mask.ways().0);
            let mode = if group.exclusive { "exclusive" } else { "shareable" };
            table.row([
                group.group.clone(),
                ways.to_string(),
                shown(&group.masks),
                mode.to_owned(),
                group.holds.join(", "),
            ]);
        }
        writeln!(out)?;
        table.write(out, "")?;
    }
    if let Some(shared) = &report.shared_classes {
        writeln!(out, "\n{shared}")?;
    }
    if !report.slowdowns.is_empty() {
        let mut table = Table::new(["program", "expected slowdown"]);
        for of in &report.slowdowns {
            table.row([of.program.clone(), format!("{:.2}", of.slowdown)]);
        }
        writeln!(out)?;
        table.write(out, "")?;
    }
    let shared = Event::Shared { sets: report.shared.clone(), cross_domain_frames: report.cross_domain_frames };
    writeln!(out, "\n{shared}")?;
    for without in &report.without {
        writeln!(out, "without {without}")?;
    }
    Ok(())
}
