//! The fetch policy on synthetic programs, with a cost model: used to tune and test the policy.
//!
//! `cargo run --release -p sim --example transfer -- --help` describes the output. `cargo test -p sim` runs its tests.

#![expect(clippy::cast_possible_truncation, reason = "figures of small programs")]

mod programs;
mod simulator;
mod table;
mod time;

#[cfg(test)]
mod tests;

use std::io::{self, ErrorKind, Write};
use std::process::ExitCode;

const HELP: &str = "\
The pager's policy on synthetic programs, with a cost model. Nothing is paged; all figures but those of --time are
the same on every machine.

usage: transfer [--foretell|--traffic] [PROGRAM]
       transfer --time

  PROGRAM      only programs whose name contains this, in capitals or not; without it all, which takes a while
               (a minute or two, when built with --release)

It prints run time over computing time, for each program and for local memory of 5 to 50 % of its pages:
  4 KiB … 1024 KiB   with units of that size
  marked             with the paper's rule, for sections that the program marks
  alone              with units by code site, and nothing fetched in the background
  auto               with units by code site: what a paged program gets
  ratio              auto over the best fixed unit; '<' where that is better

  --foretell   instead: faults now, and those foretold for half and for double the memory beside those counted there
  --traffic    instead: pages read from the store, beside the fewest possible, which takes knowing the future
  --time       instead: what one decision costs on this machine, in nanoseconds
  --help       this

programs:
";

/// Requested output.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Desired {
    Help,
    /// Programs with this text in their name.
    Slowdowns(String),
    Foretold(String),
    Traffic(String),
    Time,
}

impl Desired {
    /// Reads the command's arguments; the error describes the first invalid one.
    fn parse(arguments: Vec<String>) -> Result<Desired, String> {
        let (options, names): (Vec<String>, Vec<String>) =
            arguments.into_iter().partition(|argument| argument.starts_with('-'));
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        if options.contains(&"--help") || options.contains(&"-h") {
            return Ok(Desired::Help);
        }
        if names.len() > 1 {
            return Err(format!("one PROGRAM at most, not {}", names.len()));
        }
        let name = names.first().cloned().unwrap_or_default();
        if programs::named(&name).is_empty() {
            return Err(format!("no program's name contains {name:?}"));
        }
        match options[..] {
            [] => Ok(Desired::Slowdowns(name)),
            ["--foretell"] => Ok(Desired::Foretold(name)),
            ["--traffic"] => Ok(Desired::Traffic(name)),
            ["--time"] if names.is_empty() => Ok(Desired::Time),
            ["--time"] => Err("--time knows no programs".into()),
            _ => Err(format!("cannot make sense of {}", options.join(" "))),
        }
    }

    fn print(&self, out: &mut impl Write) -> io::Result<()> {
        match self {
            Desired::Help => {
                write!(out, "{HELP}")?;
                programs::all().iter().try_for_each(|program| writeln!(out, "  {}", program.name))
            }
            Desired::Slowdowns(name) => table::slowdowns(&programs::named(name), out),
            Desired::Foretold(name) => table::foretold(&programs::named(name), out),
            Desired::Traffic(name) => table::traffic(&programs::named(name), out),
            Desired::Time => time::decisions(out),
        }
    }
}

fn main() -> ExitCode {
    let wanted = match Desired::parse(std::env::args().skip(1).collect()) {
        Ok(wanted) => wanted,
        Err(wrong) => {
            eprintln!("transfer: {wrong}\n--help says what it knows");
            return ExitCode::from(2);
        }
    };
    match wanted.print(&mut io::stdout()) {
        Ok(()) => ExitCode::SUCCESS,
        // The reader has closed the pipe, as `head` does.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("transfer: writing to standard output: {error}");
            ExitCode::FAILURE
        }
    }
}
