//! The micro-benchmark of the HPS paper (section 6.3): reads and writes whole pages of 4 KiB in a mapping of 1 GiB.
//!
//! One set visits every page of the chosen range once, in the chosen order. The command `round N` runs N sets and answers
//! with the bytes visited and the time taken.

use std::hint::black_box;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use bench::mapping::{Mapping, WORDS_PER_PAGE};
use bench::random::permutation;
use bench::workload;
use clap::{Parser, ValueEnum};
use units::spread::Random;

#[derive(Parser)]
struct Arguments {
    /// Memory mapped, in MiB.
    #[arg(long)]
    mib: usize,
    /// Which pages, in which order.
    #[arg(long)]
    pattern: Pattern,
    /// Seed of the random orders.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

#[derive(Clone, Copy, ValueEnum)]
enum Pattern {
    /// All pages, one after the other.
    Seq,
    /// All pages in a random order.
    Rand,
    /// A third of the pages, all next to each other, in a random order.
    Skew,
    /// A third of the pages, anywhere, in a random order.
    SkewSpread,
}

impl Pattern {
    /// The pages of one set, in order, each at most once.
    fn pages(self, count: u32, random: &mut Random) -> Vec<u32> {
        let third = count / 3;
        match self {
            Pattern::Seq => (0..count).collect(),
            Pattern::Rand => permutation(count, random),
            Pattern::Skew => permutation(third, random).into_iter().map(|page| page + third).collect(),
            Pattern::SkewSpread => {
                let mut pages = permutation(count, random);
                pages.truncate(third as usize);
                pages
            }
        }
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    workload::run("workload-micro", || run(&arguments))
}

fn run(arguments: &Arguments) -> Result<()> {
    ensure!(arguments.mib > 0, "--mib 0: expected at least 1");
    let mut random = Random::seeded(arguments.seed);
    let count = u32::try_from(arguments.mib * 256).context("--mib: too much memory")?;
    let pages = arguments.pattern.pages(count, &mut random);
    let mut mapping = Mapping::anonymous(arguments.mib << 20).context("cannot map memory")?;
    let ready = format!("start={:#x} bytes={}", mapping.address(), mapping.bytes());
    workload::serve(&ready, |command| {
        let Some(("round", sets)) = command.split_once(' ') else { bail!("`{command}`: expected `round N`") };
        let sets: usize = sets.parse().context("sets")?;
        let begun = Instant::now();
        for _ in 0..sets {
            // Every set in another order: the same circle of pages, begun elsewhere.
            let begin = if matches!(arguments.pattern, Pattern::Seq) { 0 } else { random.below(pages.len()) };
            one_set(mapping.words(), &pages, begin);
        }
        let bytes = sets * pages.len() * bench::mapping::PAGE_BYTES;
        Ok(format!("bytes={bytes} seconds={}", begun.elapsed().as_secs_f64()))
    })
}

/// Reads and writes all of every page in `pages`, beginning at place `begin`.
fn one_set(words: &mut [u64], pages: &[u32], begin: usize) {
    let (after, before) = (&pages[begin..], &pages[..begin]);
    for &page in after.iter().chain(before) {
        let first = page as usize * WORDS_PER_PAGE;
        let page = &mut words[first..first + WORDS_PER_PAGE];
        page.iter_mut().for_each(|word| *word = word.wrapping_add(1));
        black_box(page);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_page_comes_twice_in_a_set_and_skew_keeps_to_a_third() {
        for pattern in [Pattern::Seq, Pattern::Rand, Pattern::Skew, Pattern::SkewSpread] {
            let mut pages = pattern.pages(3000, &mut Random::seeded(1));
            let wanted = if matches!(pattern, Pattern::Seq | Pattern::Rand) { 3000 } else { 1000 };
            pages.sort_unstable();
            pages.dedup();
            assert_eq!(pages.len(), wanted);
            assert!(pages.last().is_some_and(|last| *last < 3000));
        }
    }

    #[test]
    fn a_set_adds_one_to_every_word_of_its_pages_and_to_no_other() {
        let mut words = vec![0; 4 * WORDS_PER_PAGE];
        one_set(&mut words, &[2, 0], 1);
        let sums: Vec<u64> = words.chunks(WORDS_PER_PAGE).map(|page| page.iter().sum()).collect();
        assert_eq!(sums, [512, 0, 512, 0]);
    }
}
