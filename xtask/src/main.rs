//! Chores of the project: `cargo xtask --help` lists them.

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
#[command(name = "cargo xtask", about = "Chores of the project", version)]
struct Arguments {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Subcommand)]
enum Chore {
    /// Everything that needs no root: format, lints, tests, documents, the house's rules, generated files
    Check,
    /// Live tests on the running kernel
    Live(live::Options),
    /// Live tests on Debian's kernels in virtual machines, and the table of rungs per kernel
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
    let result = match Arguments::parse().chore {
        Chore::Check => check::run_chore(),
        Chore::Live(options) => live::run_chore(&options),
        Chore::BootTest(options) => boot::run_chore(&options),
        Chore::Test => test::run(),
        Chore::Bpf(options) => bpf::run(&options),
        Chore::Header(options) => header::run(&options),
        Chore::Man(options) => man::run(&options),
        Chore::HeaderCheck(options) => header_check::run(&options),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}
