//! Random updates all over one large table, as in the HPC Challenge's RandomAccess ("giga-updates per second"): each update
//! reads a word, changes it and writes it back, and none waits for another.
//!
//! Prints a checksum and the time of the updates alone.

use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Result, ensure};
use bench::workload;
use clap::Parser;
use units::Bytes;
use units::cast::index;
use units::spread::{Random, spread, within};

#[derive(Parser)]
struct Arguments {
    /// Memory of the table.
    #[arg(long)]
    size: Bytes,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    workload::run("workload-gups", || run(&arguments))
}

fn run(arguments: &Arguments) -> Result<()> {
    let words = index(arguments.size.0 / 8);
    ensure!(words > 0, "--size {}: expected 8 bytes or more", arguments.size);
    let mut table: Vec<u64> = (0..words as u64).collect();
    let begun = Instant::now();
    update(&mut table, words / 4);
    let work_s = begun.elapsed().as_secs_f64();
    // Order does not matter to an update, but each has its place.
    let checksum = table.iter().enumerate().fold(0u64, |sum, (at, word)| sum.wrapping_add(word ^ spread(at as u64)));
    println!("checksum={checksum} work_s={work_s}");
    Ok(())
}

/// Mixes random words into `count` random places.
fn update(table: &mut [u64], count: usize) {
    let mut random = Random::seeded(1);
    for _ in 0..count {
        let bits = random.number();
        table[within(bits, table.len())] ^= bits;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn updates_go_everywhere_and_undo_themselves() {
        let mut table = vec![0; 64];
        update(&mut table, 4096);
        assert!(table.iter().all(|word| *word != 0));
        update(&mut table, 4096);
        assert!(table.iter().all(|word| *word == 0));
    }
}
