//! `masu census --cgroups`.

use std::io::Write;

use aging::census::Closeness;
use aging::census::groups::{self, Groups, OfGroup};
use aging::class::Class;
use linux::probe::Known;
use units::Bytes;

use super::{at_frames, listed, print_halted};
use crate::args::CensusTask;
use crate::failure::Failure;
use crate::terminal::repeat::{self, every};
use crate::terminal::table::Table;
use crate::{Done, HOST};

/// Groups in the table; the JSON has all.
const SHOWN: usize = 40;

pub fn run(task: &CensusTask, closeness: Closeness) -> Result<Done, Failure> {
    let every = every(task.watch, &mut Vec::new());
    repeat::reports(every, task.json, |out| {
        let census = groups::of_all(&*HOST, closeness).map_err(|error| at_frames(&error))?;
        if task.json {
            serde_json::to_writer(&mut *out, &census)?;
            writeln!(out)?;
        } else {
            print(out, &census)?;
        }
        Ok(true)
    })?;
    Ok(Done::Whole)
}

/// Inactive memory of all classes; unknown if one is.
fn inactive(of: &OfGroup) -> Known<Bytes> {
    let mut sum = Bytes(0);
    for class in &of.classes {
        match &class.inactive_bytes {
            Known::Value(bytes) => sum += *bytes,
            Known::Unknown(why) => return Known::Unknown(why.clone()),
        }
    }
    Known::Value(sum)
}

fn print(out: &mut impl Write, census: &Groups) -> Result<(), Failure> {
    let mut names = vec!["charged", "limit", "working set"];
    names.extend(Class::ALL.map(Class::name));
    names.extend(["inactive", "off by at most", "group"]);
    let mut table = Table::new(names);
    for of in census.groups.iter().take(SHOWN) {
        let kernel = |get: fn(&linux::cgroup::charges::Charges) -> Option<Bytes>| {
            of.of_kernel.as_ref().and_then(get).map_or_else(|| "-".to_owned(), |bytes| bytes.to_string())
        };
        let mut row = vec![
            kernel(|kernel| Some(kernel.usage_bytes)),
            kernel(|kernel| kernel.limit_bytes),
            kernel(|kernel| Some(kernel.working_set_bytes)),
        ];
        row.extend(of.classes.iter().map(|class| class.bytes.to_string()));
        row.extend([listed(&inactive(of)), of.error_bound_bytes.to_string(), of.group.to_string()]);
        table.row(row);
    }
    table.write(out, "")?;
    let left_out = census.groups.len().saturating_sub(SHOWN);
    if left_out > 0 {
        writeln!(out, "and {left_out} more; --json has all")?;
    }
    writeln!(out)?;
    if census.empty_groups > 0 {
        writeln!(out, "{} groups have no memory", census.empty_groups)?;
    }
    print_halted(out, &census.halted, None)?;
    let (read, took) = (census.sampled_fraction * 100.0, census.cost_us / 1000);
    writeln!(
        out,
        "charged, limit and working set are the kernel's own count; the others come from {read:.1} % of the page frames, read in {took} ms"
    )?;
    Ok(())
}
