//! `masu aging --replay`: replays a trace with protection levels, and with the kernel alone.

use std::io::Write;
use std::path::Path;

use aging::levels::Preferences;
use linux::{describe_io, named_file};
use serde::Serialize;
use sim::reclaim::trace::Trace;
use sim::reclaim::{Aging, BASE_US, Counts, Lists, Machine, Outcome, Rate, replay};
use units::{Bytes, Fraction};

use crate::failure::Failure;
use crate::terminal::print;
use crate::terminal::table::Table;

/// Largest trace.
const TRACE_MOST: Bytes = Bytes::gib(1);

/// Cost of a page that is not in memory, in µs: a disk that reads 1 GB/s sequentially. Only misses advance the time in
/// a trace.
const MISS_US: u64 = 4;

#[derive(Serialize)]
struct Both {
    kernel: Outcome,
    #[serde(flatten, with = "units::renamed::levels")]
    levels: Outcome,
}

/// Replays the trace in `file` on a group with `memory` bytes, and prints the misses with masu and without.
pub fn run(file: &Path, memory: Bytes, preferences: &Preferences, budget: Fraction, json: bool) -> Result<(), Failure> {
    let text = named_file::read_text(file, TRACE_MOST).map_err(|error| {
        Failure::new(format!("cannot read the trace {}: {}", file.display(), describe_io(&error)))
            .remedy("A trace is text: `file NAME CLASS PAGES`, `read NAME FIRST COUNT`, `touch …`, `write …`, `wait SECONDS`, `repeat N` … `end`.")
    })?;
    let trace =
        Trace::parse(&text).map_err(|bad| Failure::new(format!("cannot read the trace {}: {bad}", file.display())))?;
    let both = both(&trace, memory, preferences, budget);
    let mut out = print::out();
    if json {
        serde_json::to_writer(&mut out, &both)?;
        writeln!(out)?;
        return Ok(());
    }
    print(&mut out, &both)
}

/// The trace with the kernel alone, and with levels.
fn both(trace: &Trace, memory: Bytes, preferences: &Preferences, budget: Fraction) -> Both {
    let machine = Machine {
        memory: memory.pages(),
        swap: Bytes(0).pages(),
        swappiness: 60,
        miss_us: MISS_US,
        sums_us: 2_000_000,
    };
    let mut with = Aging { lists: Lists::Classic, budget, base_us: BASE_US, ..Aging::KERNEL };
    for (class, bounds) in preferences.iter() {
        // A level that may move starts at its lower bound.
        if let Some(bounds) = bounds {
            with = with.with(class, Rate::Level(bounds.low));
        }
    }
    Both { kernel: replay(trace, &machine, &Aging::KERNEL), levels: replay(trace, &machine, &with) }
}

fn print(out: &mut impl Write, both: &Both) -> Result<(), Failure> {
    let mut table = Table::new([
        "phase",
        "file",
        "used for",
        "accesses",
        "not in memory, kernel",
        "with levels",
        "refaults, kernel",
        "with levels",
    ]);
    for row in &both.kernel.rows {
        let with: Counts = both.levels.of(&row.phase, &row.file);
        let accesses = row.counts.hits + row.counts.misses();
        table.row([
            row.phase.clone(),
            row.file.clone(),
            row.class.name().to_owned(),
            accesses.to_string(),
            row.counts.misses().to_string(),
            with.misses().to_string(),
            row.counts.refaults.to_string(),
            with.refaults.to_string(),
        ]);
    }
    table.write(out, "")?;
    let refused: u64 = both.levels.classes.iter().map(|of| of.counts.refused).sum();
    if refused > 0 {
        writeln!(out, "\nwith these levels {refused} accesses found no memory: a kernel would have killed a process")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::{Args, Budget, Task};

    const GUIDE: &str = include_str!("../../../../../docs/guide/aging.md");

    /// Table that the simulator prints for a command line of the guide.
    fn printed(line: &str, trace: &str) -> String {
        let Task::Aging(task) = Args::try_parse_from(line.split_whitespace()).unwrap().task else { panic!("{line}") };
        let Budget::Part(part) = task.budget else { panic!("{line}") };
        let preferences = super::super::preferences(&task).unwrap();
        let mut out = Vec::new();
        print(&mut out, &both(&Trace::parse(trace).unwrap(), task.memory.unwrap(), &preferences, part)).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn the_examples_of_the_guide_are_what_the_simulator_prints() {
        let (_, rest) = GUIDE.split_once("cat > day.trace <<'END'\n").unwrap();
        let (trace, rest) = rest.split_once("END\n").unwrap();
        let mut tables = Vec::new();
        for example in rest.split("$ masu aging ").skip(1).filter(|example| example.contains("--replay day.trace")) {
            let (line, output) = example.split_once('\n').unwrap();
            let wanted = output.split_once("```").unwrap().0;
            assert_eq!(printed(&format!("masu aging {line}"), trace), wanted, "masu aging {line}");
            tables.push(wanted);
        }
        assert_eq!(tables.len(), 2);
        let cache = printed("masu aging --cache 0 --replay day.trace --memory 100MiB", trace);
        assert_eq!(cache, tables[1], "the guide: `--cache 0` prints the same table");
    }
}
