//! Visits a known set of random pages over and over: the same number in each window of 2 MiB of a mapping that is all
//! resident. The command `move` goes on to another set and answers once no page of the old one is visited any more.

use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use bench::hot_pages::hot_pages;
use bench::mapping::{Mapping, WINDOW_BYTES, WORDS_PER_PAGE};
use bench::workload;
use clap::Parser;
use units::spread::Random;

#[derive(Parser)]
struct Arguments {
    /// Windows of 2 MiB.
    #[arg(long)]
    windows: u32,
    /// Pages visited in each window.
    #[arg(long)]
    hot_per_window: u32,
    /// Seed of the sets.
    #[arg(long)]
    seed: u64,
}

/// State shared by the visiting thread and the answering one.
#[derive(Default)]
struct Visits {
    /// The set to visit.
    wanted: AtomicU64,
    /// The set visited, plus one; 0 before the first visit.
    begun: AtomicU64,
    /// Rounds through the current set.
    rounds: AtomicU64,
    end: AtomicBool,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    workload::run("workload-hot-set", || run(&arguments))
}

fn run(arguments: &Arguments) -> Result<()> {
    ensure!((1..=512).contains(&arguments.hot_per_window), "--hot-per-window: expected 1 to 512");
    ensure!(arguments.windows > 0, "--windows 0: expected at least 1");
    let mut mapping = Mapping::anonymous(arguments.windows as usize * WINDOW_BYTES).context("cannot map memory")?;
    mapping.words().iter_mut().step_by(WORDS_PER_PAGE).for_each(|word| *word = 1);
    let ready = format!("start={:#x} bytes={}", mapping.address(), mapping.bytes());
    let visits = Visits::default();
    let words: &[u64] = mapping.words();
    thread::scope(|scope| {
        scope.spawn(|| visit(arguments, words, &visits));
        let served = workload::serve(&ready, |command| answer(command, &visits));
        visits.end.store(true, Ordering::Release);
        served
    })
}

fn answer(command: &str, visits: &Visits) -> Result<String> {
    match command {
        "move" => {
            let epoch = visits.wanted.fetch_add(1, Ordering::AcqRel) + 1;
            wait_for(visits, epoch);
            Ok(format!("epoch={epoch}"))
        }
        "where" => {
            let epoch = visits.wanted.load(Ordering::Acquire);
            wait_for(visits, epoch);
            Ok(format!("epoch={epoch} rounds={}", visits.rounds.load(Ordering::Acquire)))
        }
        _ => bail!("`{command}`: expected `move` or `where`"),
    }
}

/// Waits until the set of `epoch` is visited, and no other.
fn wait_for(visits: &Visits, epoch: u64) {
    while visits.begun.load(Ordering::Acquire) != epoch + 1 {
        thread::sleep(Duration::from_micros(200));
    }
}

/// Reads one word of every hot page, in a random order, again and again.
fn visit(arguments: &Arguments, words: &[u64], visits: &Visits) {
    let mut random = Random::seeded(!arguments.seed);
    while !visits.end.load(Ordering::Acquire) {
        let epoch = visits.wanted.load(Ordering::Acquire);
        let mut pages = hot_pages(arguments.seed, epoch, arguments.windows, arguments.hot_per_window);
        random.shuffle(&mut pages);
        visits.rounds.store(0, Ordering::Release);
        visits.begun.store(epoch + 1, Ordering::Release);
        while visits.wanted.load(Ordering::Acquire) == epoch && !visits.end.load(Ordering::Acquire) {
            let mut sum = 0u64;
            for (nth, page) in pages.iter().enumerate() {
                // Another cache line in every page: otherwise all would compete for a few cache sets.
                sum = sum.wrapping_add(words[*page as usize * WORDS_PER_PAGE + nth * 8 % WORDS_PER_PAGE]);
            }
            std::hint::black_box(sum);
            visits.rounds.fetch_add(1, Ordering::AcqRel);
        }
    }
}
