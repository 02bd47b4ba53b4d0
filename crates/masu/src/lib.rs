//! The command: arguments, wiring, printing. Decisions and actions are in the crates below.

#![forbid(unsafe_code)]

mod args;
mod commands;
mod failure;
mod launch;
mod only_one;
mod open;
mod priority;
mod privileges;
mod prohibition;
mod restoring;
mod runtime;
mod terminal;

pub use terminal::table;

/// Types of the JSON reports that no other crate has.
pub mod reports {
    pub use crate::args::Huge;
    pub use crate::commands::pages::{MappingHeat, Report as PagesReport, Run as PagesRun};
    pub use crate::commands::run::report::{Report as RunReport, Windows};
}

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::LazyLock;
use std::sync::atomic::AtomicBool;

use clap::{CommandFactory, Parser};
use linux::Rooted;
use linux::open_files;

use args::{Args, Task};
use commands::{aging, attach, census, completions, facts, llc, pages, restore, run, serve, set, stat, status, track};
use failure::Failure;
use launch::child::{Relay, check_open_files};
use restoring::Restored;
use terminal::{log, print};

/// The running kernel's files, for the life of the command.
pub(crate) static HOST: LazyLock<Rooted> = LazyLock::new(Rooted::host);

/// Outcome of a task, as an exit status.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Done {
    /// Status 0.
    Whole,
    /// Status 1: each failure was printed.
    InPart,
}

impl Done {
    fn status(self) -> ExitCode {
        match self {
            Done::Whole => ExitCode::SUCCESS,
            Done::InPart => ExitCode::from(1),
        }
    }
}

/// The command's definition, for man pages and completions.
pub fn command() -> clap::Command {
    Args::command()
}

/// Runs the command with the arguments of this process.
pub fn main() -> ExitCode {
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) => return usage(&error, status_of_misuse()),
    };
    if let Err(failure) = log::start(args.verbose) {
        print::failure(&failure);
        return status_of_misuse();
    }
    if matches!(&args.task, Task::Serve(task) if task.answer_http) {
        return status_of(serve::answer_http());
    }
    // A file beyond its limit is an error, and no end by SIGXFSZ. A handler, and not SIG_IGN, which programs would
    // inherit. Without it masu ends there.
    let _ = signal_hook::flag::register(signal_hook::consts::SIGXFSZ, Arc::new(AtomicBool::new(false)));
    // Before any privilege is given up that the program must have.
    match &args.task {
        Task::Run(_) => run::local::raise_limits(),
        task if starts_a_program(task) => open_files::raise(),
        _ => {}
    }
    if let Err(failure) = files_of_start(&args.task).map_or(Ok(()), check_open_files) {
        print::failure(&failure);
        return status_of_misuse();
    }
    let relay = starts_a_program(&args.task).then(Relay::ready);
    let restored = match restore_and_keep(&args.task) {
        Ok(restored) => restored,
        Err(failure) => {
            print::failure(&failure);
            return status_of_misuse();
        }
    };
    let outcome = match &args.task {
        Task::Run(task) => return run::run(task, relay.unwrap_or_else(Relay::ready)),
        Task::Completions(task) => completions::run(task),
        Task::Restore(task) => restore::run(task, restored),
        Task::Facts(task) => facts::run(task),
        Task::Pages(task) => pages::run(task),
        Task::Attach(task) => attach::run(task),
        Task::Serve(task) => serve::run(task),
        Task::Track(task) => track::run(task),
        Task::Stat(task) => stat::run(task),
        Task::Status(task) => status::run(task),
        Task::Census(task) => census::run(task),
        Task::Aging(task) => return aging::run(task, relay),
        Task::Llc(task) => llc::run(task),
        Task::Set(task) => set::run(task),
    };
    status_of(outcome)
}

fn status_of(outcome: Result<Done, Failure>) -> ExitCode {
    match outcome {
        Ok(done) => done.status(),
        Err(failure) if failure.is_broken_pipe() => ExitCode::SUCCESS,
        Err(failure) => {
            print::failure(&failure);
            ExitCode::from(failure.status())
        }
    }
}

/// Whether masu starts a command.
fn starts_a_program(task: &Task) -> bool {
    match task {
        Task::Run(_) => true,
        Task::Aging(task) => !task.command.is_empty(),
        _ => false,
    }
}

/// Files that masu opens to start its command, and that stay open or are open at the same time. `None` if it starts none.
fn files_of_start(task: &Task) -> Option<usize> {
    match task {
        Task::Run(task) => {
            let report = usize::from(task.report.is_some());
            Some(report + if task.local.is_some() { run::local::FILES_OF_START } else { run::FILES_OF_START })
        }
        task => starts_a_program(task).then_some(aging::FILES_OF_START),
    }
}

/// Gives up the capabilities that neither restoring nor the command needs, restores, and keeps those of the command.
fn restore_and_keep(task: &Task) -> Result<Result<Restored, linux::Error>, Failure> {
    let kept = privileges::of(task, privileges::has_scan());
    privileges::keep(kept.and(privileges::RESTORING))?;
    let restored = restoring::restore();
    if !matches!(task, Task::Restore(_))
        && let Err(error) = &restored
    {
        restoring::tell_of(error);
    }
    privileges::keep(kept)?;
    Ok(restored)
}

/// A usage error on one line, with a pointer to the help; help and version as clap prints them.
fn usage(error: &clap::Error, misuse: ExitCode) -> ExitCode {
    if !error.use_stderr() {
        // The reader has left: a normal end.
        let _ = error.print();
        return ExitCode::SUCCESS;
    }
    if error.kind() == clap::error::ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        // The help is the answer; a reader who has left is no error.
        let _ = error.print();
        return misuse;
    }
    let text = error.to_string();
    let said = text.lines().map(str::trim).take_while(|line| !line.starts_with("Usage:"));
    let line: Vec<&str> = said.filter(|line| !line.is_empty() && !line.starts_with("For more")).collect();
    let line = line.join(" ");
    let line = line.strip_prefix("error: ").unwrap_or(&line);
    print::failure(&Failure::new(line).remedy("`masu --help` and `masu COMMAND --help` explain every option."));
    misuse
}

/// Status 2, except for `masu run` and `masu aging -- COMMAND`: there 2 may be the program's status.
fn status_of_misuse() -> ExitCode {
    ExitCode::from(if starts_a_program_by_its_words(std::env::args_os().skip(1)) { run::MISUSED } else { 2 })
}

/// Whether words that could not be understood mean to start a program. Options of all commands may come first.
fn starts_a_program_by_its_words(words: impl Iterator<Item = std::ffi::OsString>) -> bool {
    let mut words = words.skip_while(|word| word.as_encoded_bytes().starts_with(b"-"));
    let task = words.next().unwrap_or_default();
    task == "run" || (task == "aging" && words.any(|word| word == "--"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misused_run_is_told_from_other_commands_also_behind_an_option() {
        let starts = |line: &str| starts_a_program_by_its_words(line.split(' ').map(Into::into));
        assert!(starts("run --bogus -- true") && starts("--verbose run --bogus -- true"));
        assert!(starts("--verbose aging --bogus -- true"));
        assert!(!starts("aging --bogus") && !starts("--verbose stat run") && !starts("--help"));
    }
}
