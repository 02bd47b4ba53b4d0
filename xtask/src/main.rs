//! Tasks of the project: `cargo xtask --help` lists them.

#![forbid(unsafe_code)]

mod boot;
mod bpf;
mod check;
mod command;
mod failures;
mod header;
mod header_check;
mod live;
mod man;
mod tally;
mod test;
mod workspace;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Tasks of the project", version)]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Everything that needs no root: format, lints, tests, documents, the rules, generated files
    Check,
    /// The rules over all sources, documents and commits: the part of check that needs no build
    Rules,
    /// Indirect constructions per 100 words, by crate and document
    Language,
    /// Live tests on the running kernel
    Live(live::Options),
    /// Live tests on Debian's kernels in virtual machines, and the table of backends per kernel
    BootTest(boot::Options),
    /// All tests there are: check, live, boot-test; the last line counts them
    Test,
    /// Compiles the BPF programs, whose objects are committed
    Bpf(bpf::Options),
    /// Writes masu.h
    Header(header::Options),
    /// Writes the man pages
    Man(man::Options),
    /// Compares our kernel structures and numbers with the C headers
    HeaderCheck(header_check::Options),
}

fn main() -> ExitCode {
    let result = match Arguments::parse().task {
        Task::Check => check::run_task(),
        Task::Rules => check::rules(),
        Task::Language => check::language(),
        Task::Live(options) => live::run_task(&options),
        Task::BootTest(options) => boot::run_task(&options),
        Task::Test => test::run(),
        Task::Bpf(options) => bpf::run(&options),
        Task::Header(options) => header::run(&options),
        Task::Man(options) => man::run(&options),
        Task::HeaderCheck(options) => header_check::run(&options),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}
