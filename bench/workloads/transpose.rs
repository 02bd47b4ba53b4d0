//! The matrix transposition of the Super Page paper (section 5.1, figure 8), in a list of dimensions:
//!
//! ```c
//! for (k = 0; k < ITR; k++)
//!   for (i = 0; i < dim; i++)
//!     for (j = 0; j < dim; j++)
//!       a[i][j] = b[j][i];
//! ```
//!
//! This is the load stride: from a dimension of 512 doubles on, each load is on another page of 4 KiB than the one
//! before. With `i` and `j` exchanged it is the store stride. For each dimension the two matrices are allocated anew by
//! the C library's malloc and first touched by writing, as a C program would. Prints a line for each dimension: MiB
//! copied per second with either stride, the best of some repeats, and a checksum.

use std::hint::black_box;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use bench::workload;
use clap::Parser;
use units::cast::saturated;
use units::spread::spread;

#[derive(Parser)]
struct Arguments {
    /// Dimensions of the matrices.
    #[arg(long, value_delimiter = ',', required = true)]
    dims: Vec<usize>,
    /// How long one stride of one dimension is measured, in milliseconds.
    #[arg(long, default_value_t = 30)]
    cell_ms: u64,
}

/// Number of measurements of a cell; the best counts.
const REPEATS: u32 = 3;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    workload::run("workload-transpose", || run(&arguments))
}

fn run(arguments: &Arguments) -> Result<()> {
    ensure!(arguments.dims.iter().all(|dim| (1..=1 << 15).contains(dim)), "--dims: expected 1 to 32768");
    let cell = Duration::from_millis(arguments.cell_ms);
    for &dim in &arguments.dims {
        let from = matrix(dim, |place| place as f64);
        let mut to = matrix(dim, |_| -1.0);
        let load = measure(dim, cell, || load_stride(black_box(&mut to), black_box(&from), dim));
        let load_sum = checksum(&to);
        to.fill(-1.0);
        let store = measure(dim, cell, || store_stride(black_box(&mut to), black_box(&from), dim));
        let checksum = load_sum ^ checksum(&to).rotate_left(1);
        println!("dim={dim} load_mib_per_s={load:.3} store_mib_per_s={store:.3} checksum={checksum}");
    }
    Ok(())
}

/// A matrix, row after row, allocated now and touched by writing.
fn matrix(dim: usize, value: impl Fn(usize) -> f64) -> Vec<f64> {
    let mut cells = Vec::with_capacity(dim * dim);
    cells.extend((0..dim * dim).map(value));
    cells
}

/// `a[i][j] = b[j][i]`, the stores next to each other.
fn load_stride(a: &mut [f64], b: &[f64], dim: usize) {
    for (i, row) in a.chunks_exact_mut(dim).enumerate() {
        for (cell, loaded) in row.iter_mut().zip(b[i..].iter().step_by(dim)) {
            *cell = *loaded;
        }
    }
}

/// `a[j][i] = b[i][j]`, the loads next to each other.
fn store_stride(a: &mut [f64], b: &[f64], dim: usize) {
    for (i, row) in b.chunks_exact(dim).enumerate() {
        for (loaded, cell) in row.iter().zip(a[i..].iter_mut().step_by(dim)) {
            *cell = *loaded;
        }
    }
}

/// MiB copied per second, at best.
fn measure(dim: usize, cell: Duration, mut once: impl FnMut()) -> f64 {
    let begun = Instant::now();
    once(); // not counted: it fills the caches
    let first = begun.elapsed().max(Duration::from_nanos(100));
    let iterations = saturated::<_, u32>((cell / REPEATS).as_nanos() / first.as_nanos()).max(1);
    let timed = (0..REPEATS).map(|_| {
        let begun = Instant::now();
        (0..iterations).for_each(|_| once());
        begun.elapsed()
    });
    let best = timed.min().unwrap_or(first).max(Duration::from_nanos(1));
    let mib = (dim * dim * size_of::<f64>()) as f64 / f64::from(1 << 20);
    mib * f64::from(iterations) / best.as_secs_f64()
}

/// A checksum that depends on each cell and its position.
fn checksum(cells: &[f64]) -> u64 {
    cells.iter().fold(0, |sum, cell| spread(sum ^ cell.to_bits()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_strides_transpose() {
        for dim in [1, 2, 3, 64, 65] {
            let from = matrix(dim, |place| place as f64);
            let wanted = matrix(dim, |place| from[place % dim * dim + place / dim]);
            let (mut by_load, mut by_store) = (matrix(dim, |_| -1.0), matrix(dim, |_| -1.0));
            load_stride(&mut by_load, &from, dim);
            store_stride(&mut by_store, &from, dim);
            assert_eq!(by_load, wanted);
            assert_eq!(by_store, wanted);
        }
    }

    #[test]
    fn a_checksum_knows_the_order() {
        assert_ne!(checksum(&[1.0, 2.0]), checksum(&[2.0, 1.0]));
    }

    #[test]
    fn a_cell_is_repeated_as_often_as_its_first_run_leaves_time_for() {
        let mut runs = 0;
        let rate = measure(8, Duration::from_millis(30), || {
            runs += 1;
            std::thread::sleep(Duration::from_millis(1));
        });
        // One uncounted call, and then three measurements of one call (when the first was delayed) to ten calls.
        assert!(rate > 0.0 && runs % REPEATS == 1 && (4..=31).contains(&runs), "{rate} {runs}");
    }
}
