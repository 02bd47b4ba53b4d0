//! A program that checks its own memory: threads write patterns and check them while they give pages back, protect,
//! unmap, move and fork them. It must find no difference, however other programs change the backing of this memory.
//!
//! `status` answers with the counts up to now, `stop` checks every page a last time. Each difference is one line on
//! standard error.

#[path = "self_check/model.rs"]
mod model;
#[path = "self_check/region.rs"]
mod region;

use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use anyhow::{Context, Result, bail, ensure};
use bench::workload;
use clap::Parser;
use rustix::mm::Advice;
use units::spread::Random;

use crate::model::Content;
use crate::region::{Difference, Region};

#[derive(Parser)]
struct Arguments {
    /// Memory that the threads share page by page, in MiB; each has a quarter as much of its own.
    #[arg(long)]
    mib: usize,
    /// Threads.
    #[arg(long, default_value_t = 3)]
    threads: usize,
    /// Seed of everything they do.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// Counters of the threads, and their end flag.
#[derive(Debug, Default)]
struct Counts {
    operations: AtomicU64,
    checks: AtomicU64,
    forks: AtomicU64,
    differences: AtomicU64,
    errors: AtomicU64,
    end: AtomicBool,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    workload::run("workload-self-check", || run(&arguments))
}

fn run(arguments: &Arguments) -> Result<()> {
    ensure!(arguments.mib >= 8 && arguments.threads > 0, "expected --mib 8 or more and --threads 1 or more");
    let shared = Region::of(arguments.mib * 256).context("cannot map memory")?;
    let counts = Counts::default();
    let workers: Result<Vec<Worker>> =
        (0..arguments.threads).map(|id| Worker::new(id, arguments, &shared, &counts)).collect();
    let mut workers = workers?;
    let ready = format!("threads={}", arguments.threads);
    thread::scope(|scope| {
        let mut running: Vec<_> = workers.drain(..).map(|worker| scope.spawn(move || worker.work())).collect();
        let served = workload::serve(&ready, |command| {
            match command {
                "status" => {}
                "stop" => {
                    counts.end.store(true, Ordering::Release);
                    for thread in running.drain(..) {
                        ensure!(thread.join().is_ok(), "a thread panicked");
                    }
                }
                _ => bail!("`{command}`: expected `status` or `stop`"),
            }
            Ok(counts.line())
        });
        counts.end.store(true, Ordering::Release);
        served
    })
}

impl Counts {
    fn line(&self) -> String {
        let count = |counter: &AtomicU64| counter.load(Ordering::Acquire);
        format!(
            "operations={} checks={} forks={} differences={} errors={}",
            count(&self.operations),
            count(&self.checks),
            count(&self.forks),
            count(&self.differences),
            count(&self.errors)
        )
    }

    fn add(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::AcqRel);
    }
}

/// One thread: its pages of the shared memory (every n-th), and private memory.
struct Worker<'a> {
    id: usize,
    threads: usize,
    shared: &'a Region,
    own: Region,
    shared_model: Vec<Content>,
    own_model: Vec<Content>,
    random: Random,
    counts: &'a Counts,
}

/// Longest run of own pages that one operation takes: more than a window, so that some hold a whole one.
const RUN_MAX: usize = 1200;

const PAGES_PER_WINDOW: usize = 512;

impl<'a> Worker<'a> {
    fn new(id: usize, arguments: &Arguments, shared: &'a Region, counts: &'a Counts) -> Result<Worker<'a>> {
        let own = Region::of(arguments.mib * 64).context("cannot map memory")?;
        Ok(Worker {
            id,
            threads: arguments.threads,
            shared,
            shared_model: vec![Content::Zero; (shared.pages() - id).div_ceil(arguments.threads)],
            own_model: vec![Content::Zero; own.pages()],
            own,
            random: Random::seeded(arguments.seed.wrapping_mul(1000).wrapping_add(id as u64)),
            counts,
        })
    }

    fn work(mut self) {
        while !self.counts.end.load(Ordering::Acquire) {
            Counts::add(&self.counts.operations);
            let done = if self.random.below(2) == 0 { self.shared_operation() } else { self.own_operation() };
            if let Err(error) = done {
                // Refusals that any program must live with, such as too little memory; the model knows nothing was done.
                Counts::add(&self.counts.errors);
                eprintln!("thread {}: {error}", self.id);
            }
        }
        (0..self.shared_model.len()).for_each(|nth| self.check_shared(nth));
        (0..self.own_model.len()).for_each(|page| self.check_own(page));
    }

    /// The page in the shared memory that is the `nth` of this thread.
    const fn shared_page(&self, nth: usize) -> usize {
        nth * self.threads + self.id
    }

    fn shared_operation(&mut self) -> std::io::Result<()> {
        let nth = self.random.below(self.shared_model.len());
        let page = self.shared_page(nth);
        match self.random.below(100) {
            0..35 => self.fill_shared(nth),
            35..75 => self.check_shared(nth),
            75..80 => {
                self.shared.advise(page, 1, Advice::LinuxDontNeed)?;
                self.shared_model[nth] = Content::Zero;
            }
            80..85 => {
                self.shared.advise(page, 1, Advice::LinuxFree)?;
                self.shared_model[nth] = self.shared_model[nth].freed();
            }
            85..90 => {
                let found = self.shared.check_while_read_only(page, self.shared_model[nth])?;
                self.note(found, "shared, read-only", self.shared_model[nth]);
            }
            90..92 => self.advise_run(Advice::LinuxCold)?,
            92..94 => self.advise_run(Advice::LinuxHugepage)?,
            // Rarer than its opposite: after this advice, no process may promote the range.
            94..95 if self.random.below(4) == 0 => self.advise_run(Advice::LinuxNoHugepage)?,
            // A run of neighbours, so that whole windows fill up.
            95..99 => {
                let end = (nth + 200).min(self.shared_model.len());
                (nth..end).for_each(|nth| self.fill_shared(nth));
            }
            // Rare as well: pages shared with a child are promoted only when they are private again.
            99 if self.random.below(10) == 0 => self.fork()?,
            _ => self.check_shared(nth),
        }
        Ok(())
    }

    fn own_operation(&mut self) -> std::io::Result<()> {
        let pages = self.own_model.len();
        if self.random.below(4000) == 0 {
            // Moving leaves many small mappings without a whole window; this starts again with a single one.
            self.own.renew(0, pages)?;
            self.own_model.fill(Content::Zero);
        }
        let (page, to, count) = self.run_of(pages);
        match self.random.below(100) {
            0..40 => {
                for page in page..(page + count).min(page + 64) {
                    self.fill_own(page);
                }
            }
            40..80 => (page..(page + count).min(page + 64)).for_each(|page| self.check_own(page)),
            80..86 => {
                self.own.renew(page, count)?;
                self.own_model[page..page + count].fill(Content::Zero);
            }
            86..92 => {
                if page.abs_diff(to) >= count {
                    self.own.relocate(page, to, count)?;
                    self.own_model.copy_within(page..page + count, to);
                    self.own_model[page..page + count].fill(Content::Zero);
                }
            }
            92..94 => {
                self.own.advise(page, count, Advice::LinuxDontNeed)?;
                self.own_model[page..page + count].fill(Content::Zero);
            }
            94..97 => {
                self.own.advise(page, count, Advice::LinuxFree)?;
                self.own_model[page..page + count].iter_mut().for_each(|content| *content = content.freed());
            }
            _ => (page..page + count).for_each(|page| self.fill_own(page)),
        }
        Ok(())
    }

    /// Two places for a run of pages, and its length, in memory of `pages`; half of the time whole windows.
    fn run_of(&mut self, pages: usize) -> (usize, usize, usize) {
        let unit = if self.random.below(2) == 0 { 1 } else { PAGES_PER_WINDOW };
        let (units, longest) = (pages / unit, (RUN_MAX.min(pages / 2) / unit).max(1));
        let count = 1 + self.random.below(longest);
        let mut place = || self.random.below(units - count + 1) * unit;
        (place(), place(), count * unit)
    }

    /// Advice on whole windows of all threads' pages: it may change their backing, not their contents. Only whole ones,
    /// because some advice splits the mapping, and a window with a split in it can no longer be promoted.
    fn advise_run(&mut self, advice: Advice) -> std::io::Result<()> {
        let windows = self.shared.pages() / PAGES_PER_WINDOW;
        let window = self.random.below(windows);
        let count = PAGES_PER_WINDOW * (1 + self.random.below(3.min(windows - window)));
        let page = window * PAGES_PER_WINDOW;
        self.shared.advise(page, count, advice)
    }

    fn fill_shared(&mut self, nth: usize) {
        let number = self.random.number();
        self.shared.fill(self.shared_page(nth), number);
        self.shared_model[nth] = Content::Filled(number);
    }

    fn fill_own(&mut self, page: usize) {
        let number = self.random.number();
        self.own.fill(page, number);
        self.own_model[page] = Content::Filled(number);
    }

    fn check_shared(&self, nth: usize) {
        let wanted = self.shared_model[nth];
        self.note(self.shared.check(self.shared_page(nth), wanted), "shared", wanted);
    }

    fn check_own(&self, page: usize) {
        self.note(self.own.check(page, self.own_model[page]), "own", self.own_model[page]);
    }

    fn note(&self, found: Result<(), Difference>, what: &str, wanted: Content) {
        Counts::add(&self.counts.checks);
        if let Err(Difference { page, word, found }) = found {
            Counts::add(&self.counts.differences);
            eprintln!("thread {}: {what} page {page} word {word}: found {found:#x}, wanted {wanted:?}", self.id);
        }
    }

    /// Forks. The child checks the inherited memory, writes to it and checks that; the parent's pages must stay as they
    /// were.
    fn fork(&mut self) -> std::io::Result<()> {
        Counts::add(&self.counts.forks);
        let begin = self.random.below(self.shared_model.len());
        let end = (begin + 300).min(self.shared_model.len());
        let good = Region::in_forked_child(|| {
            let sound = |nth: usize| self.shared.check(self.shared_page(nth), self.shared_model[nth]).is_ok();
            let inherited = (begin..end).all(sound);
            (begin..end).step_by(2).for_each(|nth| self.shared.fill(self.shared_page(nth), nth as u64));
            let written = |nth| self.shared.check(self.shared_page(nth), Content::Filled(nth as u64)).is_ok();
            inherited && (begin..end).step_by(2).all(written) && (begin..end).skip(1).step_by(2).all(sound)
        })?;
        if !good {
            Counts::add(&self.counts.differences);
            eprintln!("thread {}: a forked child found a difference in shared pages of run {begin}..{end}", self.id);
        }
        (begin..end).for_each(|nth| self.check_shared(nth));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments() -> Arguments {
        Arguments { mib: 8, threads: 2, seed: 3 }
    }

    #[test]
    fn every_operation_keeps_memory_and_model_the_same() {
        let (shared, counts) = (Region::of(8 * 256).unwrap(), Counts::default());
        let mut worker = Worker::new(1, &arguments(), &shared, &counts).unwrap();
        for _ in 0..4000 {
            worker.shared_operation().unwrap();
            worker.own_operation().unwrap();
        }
        counts.end.store(true, Ordering::Release);
        worker.work();
        assert_eq!(counts.differences.load(Ordering::Acquire), 0);
        assert!(counts.checks.load(Ordering::Acquire) > 1024 + 512 && counts.forks.load(Ordering::Acquire) > 0);
    }

    #[test]
    fn a_word_changed_behind_its_back_is_found() {
        let (shared, counts) = (Region::of(8 * 256).unwrap(), Counts::default());
        let mut worker = Worker::new(0, &arguments(), &shared, &counts).unwrap();
        worker.fill_shared(5);
        shared.fill(worker.shared_page(5), 1);
        counts.end.store(true, Ordering::Release);
        worker.work();
        assert_eq!(counts.differences.load(Ordering::Acquire), 1);
    }
}
