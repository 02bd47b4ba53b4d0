//! A pointer chase: each cache line of a large memory holds the index of the next, so that each load, with its page
//! walk, is waited for.
//!
//! Prints a checksum and the time of the chase alone.

use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Result, ensure};
use bench::workload;
use clap::Parser;
use units::Bytes;
use units::cast::index;

#[derive(Parser)]
struct Arguments {
    /// Memory chased through; rounded down to a power of two.
    #[arg(long)]
    size: Bytes,
}

/// One cache line.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line {
    next: u64,
    _rest: [u64; 7],
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    workload::run("workload-chase", || run(&arguments))
}

fn run(arguments: &Arguments) -> Result<()> {
    ensure!(arguments.size >= Bytes::kib(4), "--size {}: expected 4 KiB or more", arguments.size);
    let count = 1 << index(arguments.size.0 / size_of::<Line>() as u64).ilog2();
    let lines = circle(count);
    let begun = Instant::now();
    let checksum = chase(&lines, count / 2);
    println!("checksum={checksum} work_s={}", begun.elapsed().as_secs_f64());
    Ok(())
}

/// One cycle through all `count` lines (a power of two), in the order of a linear congruential generator. By the
/// theorem of Hull and Dobell its period is full, since the factor is one more than a multiple of four and the summand
/// is odd.
fn circle(count: usize) -> Vec<Line> {
    let mask = count as u64 - 1;
    let next = |at: u64| at.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(0x1405_7B7E_F767_814F) & mask;
    (0..count as u64).map(|at| Line { next: next(at), _rest: [0; 7] }).collect()
}

/// Takes `steps`; a number that depends on each of them.
fn chase(lines: &[Line], steps: usize) -> u64 {
    let (mut at, mut sum) = (0, 0u64);
    for _ in 0..steps {
        at = lines[index(at)].next;
        sum = sum.rotate_left(1) ^ at;
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_circle_visits_every_line_once() {
        for count in [64, 4096] {
            let lines = circle(count);
            let mut seen = vec![false; count];
            let mut at = 0;
            for _ in 0..count {
                assert!(!std::mem::replace(&mut seen[index(at)], true));
                at = lines[index(at)].next;
            }
            assert!(at == 0 && seen.iter().all(|seen| *seen));
        }
    }

    #[test]
    fn the_sum_depends_on_the_way() {
        let lines = circle(64);
        assert_ne!(chase(&lines, 31), chase(&lines, 32));
    }
}
