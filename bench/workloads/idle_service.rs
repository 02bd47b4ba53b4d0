//! A service that idles: it maps a file and reads each page of it once, then leaves it alone.
//!
//! The command `touch` reads each page again, in the same order, and answers with its time and page faults.

use std::fs::File;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use bench::file_mapping::FileMapping;
use bench::process::page_faults;
use bench::workload;
use clap::Parser;

#[derive(Parser)]
struct Arguments {
    /// The file.
    #[arg(long)]
    file: PathBuf,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    workload::run("workload-idle-service", || run(&arguments))
}

fn run(arguments: &Arguments) -> Result<()> {
    let opened = File::open(&arguments.file).with_context(|| format!("cannot open {}", arguments.file.display()))?;
    let mapping = FileMapping::of(&opened).with_context(|| format!("cannot map {}", arguments.file.display()))?;
    mapping.expect_random()?;
    let sum = touch_all(&mapping);
    workload::serve(&format!("pages={} sum={sum}", mapping.pages()), |command| {
        ensure!(command == "touch", "`{command}`: expected `touch`");
        let me = std::process::id();
        let (before, begun) = (page_faults(me)?, Instant::now());
        let sum = touch_all(&mapping);
        let (seconds, after) = (begun.elapsed().as_secs_f64(), page_faults(me)?);
        let (minor, major) = (after.minor - before.minor, after.major - before.major);
        Ok(format!("seconds={seconds} minor={minor} major={major} sum={sum}"))
    })
}

/// Returns a sum, so that the compiler cannot drop the reads.
fn touch_all(mapping: &FileMapping) -> u64 {
    (0..mapping.pages()).map(|page| u64::from(mapping.touch(page))).sum()
}
