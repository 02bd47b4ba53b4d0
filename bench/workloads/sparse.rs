//! A sparse heap: most windows of 2 MiB are touched on a few pages once and never again; the rest is dense, and all the work
//! is random access to it.
//!
//! The command `run MS` answers with accesses per second. Each access depends on the one before, so that its page walk, when
//! there is one, is waited for.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use bench::mapping::{Mapping, WINDOW_BYTES, WORDS_PER_PAGE};
use bench::random::permutation;
use bench::workload;
use clap::Parser;
use units::cast::index;
use units::spread::{Random, within};

#[derive(Parser)]
struct Arguments {
    /// Windows of 2 MiB.
    #[arg(long)]
    windows: u32,
    /// Of these, how many percent are dense and hot.
    #[arg(long, default_value_t = 20)]
    dense_percent: u32,
    /// Pages touched once in each of the other windows.
    #[arg(long, default_value_t = 64)]
    sparse_pages: u32,
    /// Seed of all random choices.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

const WORDS_PER_WINDOW: usize = WINDOW_BYTES / 8;
const PAGES_PER_WINDOW: u32 = 512;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    workload::run("workload-sparse", || run(&arguments))
}

fn run(arguments: &Arguments) -> Result<()> {
    ensure!((1..=100).contains(&arguments.dense_percent), "--dense-percent: expected 1 to 100");
    ensure!(arguments.sparse_pages <= PAGES_PER_WINDOW, "--sparse-pages: expected up to {PAGES_PER_WINDOW}");
    let mut random = Random::seeded(arguments.seed);
    let mut windows = permutation(arguments.windows, &mut random);
    let dense_count = (u64::from(arguments.windows) * u64::from(arguments.dense_percent)).div_ceil(100);
    ensure!(dense_count > 0, "--windows 0: expected at least 1");
    let sparse = windows.split_off(index(dense_count));
    let mut mapping = Mapping::anonymous(arguments.windows as usize * WINDOW_BYTES).context("cannot map memory")?;
    touch_sparse(mapping.words(), &sparse, arguments.sparse_pages, &mut random);
    touch_dense(mapping.words(), &windows, &mut random);
    let ready = format!("start={:#x} bytes={} dense_windows={dense_count}", mapping.address(), mapping.bytes());
    let mut at = 0;
    workload::serve(&ready, |command| {
        let Some(("run", time)) = command.split_once(' ') else { bail!("`{command}`: expected `run MS`") };
        let rate = chase(mapping.words(), &windows, &mut at, workload::milliseconds(time)?);
        Ok(format!("rate={rate}"))
    })
}

fn touch_sparse(words: &mut [u64], windows: &[u32], pages: u32, random: &mut Random) {
    for &window in windows {
        for page in permutation(PAGES_PER_WINDOW, random).into_iter().take(pages as usize) {
            words[window as usize * WORDS_PER_WINDOW + page as usize * WORDS_PER_PAGE] = 1;
        }
    }
}

fn touch_dense(words: &mut [u64], windows: &[u32], random: &mut Random) {
    for &window in windows {
        let first = window as usize * WORDS_PER_WINDOW;
        words[first..first + WORDS_PER_WINDOW].iter_mut().for_each(|word| *word = random.number());
    }
}

/// Follows random numbers stored in the dense windows for `time`; accesses per second.
fn chase(words: &[u64], dense: &[u32], at: &mut u64, time: Duration) -> f64 {
    const BATCH: u64 = 4096;
    let (begun, mut accesses) = (Instant::now(), 0u64);
    while begun.elapsed() < time {
        for _ in 0..BATCH {
            let place = within(*at, dense.len() * WORDS_PER_WINDOW);
            let window = dense[place / WORDS_PER_WINDOW] as usize;
            let loaded = words[window * WORDS_PER_WINDOW + place % WORDS_PER_WINDOW];
            // The next index needs the loaded value, and the odd constant keeps it off any cycle.
            *at = at.wrapping_add(0x9E37_79B9_7F4A_7C15).rotate_left(21) ^ loaded;
        }
        accesses += BATCH;
    }
    accesses as f64 / begun.elapsed().as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sparse_windows_get_exactly_their_pages() {
        let mut words = vec![0; 2 * WORDS_PER_WINDOW];
        touch_sparse(&mut words, &[1], 64, &mut Random::seeded(1));
        let touched = |window: &[u64]| window.chunks(WORDS_PER_PAGE).filter(|page| page.contains(&1)).count();
        assert_eq!(touched(&words[..WORDS_PER_WINDOW]), 0);
        assert_eq!(touched(&words[WORDS_PER_WINDOW..]), 64);
    }

    #[test]
    fn the_chase_runs_and_moves() {
        let mut words = vec![0; 2 * WORDS_PER_WINDOW];
        touch_dense(&mut words, &[1], &mut Random::seeded(1));
        let mut at = 0;
        assert!(chase(&words, &[1], &mut at, Duration::from_millis(5)) > 0.0);
        assert_ne!(at, 0);
    }
}
