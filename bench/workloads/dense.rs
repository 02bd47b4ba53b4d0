//! One large mapping, every page of it touched once as a 4 KiB page, then random access to all of it.
//!
//! The command `run MS` answers with accesses per second; each access depends on the previous one. `idle` does nothing.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use bench::mapping::{Mapping, WORDS_PER_PAGE};
use bench::workload;
use clap::Parser;
use units::spread::within;

#[derive(Parser)]
struct Arguments {
    /// Memory mapped, in MiB.
    #[arg(long)]
    mib: usize,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    workload::run("workload-dense", || run(&arguments))
}

fn run(arguments: &Arguments) -> Result<()> {
    ensure!(arguments.mib > 0, "--mib 0: expected at least 1");
    let mut mapping = Mapping::anonymous(arguments.mib << 20).context("cannot map memory")?;
    mapping.words().iter_mut().step_by(WORDS_PER_PAGE).for_each(|word| *word = 1);
    let ready = format!("start={:#x} bytes={}", mapping.address(), mapping.bytes());
    let mut at = 1;
    workload::serve(&ready, |command| match command.split_once(' ') {
        Some(("run", time)) => Ok(format!("rate={}", access(mapping.words(), &mut at, workload::milliseconds(time)?))),
        _ => bail!("`{command}`: expected `run MS`"),
    })
}

/// Reads random words for `time`; accesses per second.
fn access(words: &[u64], at: &mut u64, time: Duration) -> f64 {
    const BATCH: u64 = 4096;
    let (begun, mut accesses) = (Instant::now(), 0u64);
    while begun.elapsed() < time {
        for _ in 0..BATCH {
            let loaded = words[within(*at, words.len())];
            *at = at.wrapping_add(loaded).wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(0x1405_7B7E_F767_814F);
        }
        accesses += BATCH;
    }
    accesses as f64 / begun.elapsed().as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accesses_go_everywhere() {
        let words = vec![1; 1 << 16];
        let mut at = 1;
        let mut quarters = [false; 4];
        for _ in 0..64 {
            access(&words, &mut at, Duration::from_micros(1));
            quarters[within(at, 4)] = true;
        }
        assert_eq!(quarters, [true; 4]);
    }
}
