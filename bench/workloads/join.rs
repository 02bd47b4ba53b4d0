//! A hash join of two tables, as a database does it in memory: one is put into a hash table (build), each row of the other
//! is looked up there (probe). Half of them find a partner.
//!
//! Prints a checksum and the time of build and probe.

use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Result, ensure};
use bench::workload;
use clap::Parser;
use units::Bytes;
use units::cast::index;
use units::spread::{spread, within};

#[derive(Parser)]
struct Arguments {
    /// Memory of the two tables and the hash table; rounded down to a power of two.
    #[arg(long)]
    size: Bytes,
}

/// A row of either table. In the hash table, key 0 is an empty slot.
#[derive(Clone, Copy, Default)]
struct Row {
    key: u64,
    value: u64,
}

/// Half of the memory is slots, a quarter each of the two tables.
const BYTES_PER_SLOT: u64 = 32;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    workload::run("workload-join", || run(&arguments))
}

fn run(arguments: &Arguments) -> Result<()> {
    ensure!(arguments.size >= Bytes::kib(4), "--size {}: expected 4 KiB or more", arguments.size);
    let slots = 1 << index(arguments.size.0 / BYTES_PER_SLOT).ilog2();
    let rows = slots as u64 / 2;
    let inner = table(rows, 0);
    let outer = table(rows, rows / 2);
    let begun = Instant::now();
    let mut hash = vec![Row::default(); slots];
    build(&mut hash, &inner);
    let (partners, checksum) = probe(&hash, &outer);
    let work_s = begun.elapsed().as_secs_f64();
    ensure!(partners == rows / 2, "{partners} rows found a partner instead of {}", rows / 2);
    println!("checksum={checksum} work_s={work_s}");
    Ok(())
}

/// `rows` rows whose keys are the numbers from `first` + 1 on.
fn table(rows: u64, first: u64) -> Vec<Row> {
    (first + 1..=first + rows).map(|key| Row { key, value: spread(key ^ first) }).collect()
}

fn build(hash: &mut [Row], rows: &[Row]) {
    for row in rows {
        let mut at = within(spread(row.key), hash.len());
        while hash[at].key != 0 {
            at = (at + 1) % hash.len();
        }
        hash[at] = *row;
    }
}

/// Number of rows with a partner, and the sum of their products.
fn probe(hash: &[Row], rows: &[Row]) -> (u64, u64) {
    let (mut partners, mut sum) = (0, 0u64);
    for row in rows {
        let mut at = within(spread(row.key), hash.len());
        while hash[at].key != 0 {
            if hash[at].key == row.key {
                partners += 1;
                sum = sum.wrapping_add(hash[at].value.wrapping_mul(row.value));
                break;
            }
            at = (at + 1) % hash.len();
        }
    }
    (partners, sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_join_finds_what_nested_loops_find() {
        let (inner, outer) = (table(100, 0), table(100, 50));
        let mut hash = vec![Row::default(); 256];
        build(&mut hash, &inner);
        let pairs =
            outer.iter().flat_map(|o| inner.iter().filter(|i| i.key == o.key).map(|i| i.value.wrapping_mul(o.value)));
        let wanted = pairs.fold((0, 0u64), |(count, sum), product| (count + 1, sum.wrapping_add(product)));
        assert_eq!(probe(&hash, &outer), wanted);
        assert_eq!(wanted.0, 50);
    }
}
