//! Memory offered to KSM: pages with a content common to all such programs, and pages with a unique content.
//!
//! Pages of one kind are contiguous, the common ones first. The command `loads PAGES` answers with the load latency of
//! a line: the median over one line in each of the first PAGES pages, in ticks of the processor's clock.

use std::process::ExitCode;

use anyhow::{Context, Result, bail, ensure};
use bench::mapping::{Mapping, PAGE_BYTES, WORDS_PER_PAGE};
use bench::workload;
use clap::Parser;
use rustix::mm::{Advice, madvise};
use units::spread::Random;

#[derive(Parser)]
struct Arguments {
    /// Memory in common with others, in MiB.
    #[arg(long)]
    common_mib: usize,
    /// Memory like no other's, in MiB.
    #[arg(long, default_value_t = 0)]
    own_mib: usize,
    /// Offer no page to KSM.
    #[arg(long)]
    keep: bool,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    workload::run("workload-mergeable", || run(&arguments))
}

fn run(arguments: &Arguments) -> Result<()> {
    let (common, own) = (arguments.common_mib << 20, arguments.own_mib << 20);
    ensure!(common + own > 0, "--common-mib 0: expected at least 1");
    let mut mapping = Mapping::anonymous(common + own).context("cannot map memory")?;
    mapping.want_huge_pages(false)?;
    let mut random = Random::seeded(u64::from(std::process::id()) << 20 | 1);
    for (number, page) in mapping.words().chunks_mut(WORDS_PER_PAGE).enumerate() {
        let content = if number * PAGE_BYTES < common { number as u64 + 1 } else { random.number() };
        page.fill(content.wrapping_mul(0x9E37_79B9_7F4A_7C15));
    }
    if !arguments.keep {
        // SAFETY: the whole of our own mapping; KSM replaces pages only by pages of the same content.
        unsafe { madvise(mapping.start(), mapping.bytes(), Advice::LinuxMergeable) }
            .context("cannot offer memory to KSM")?;
    }
    let ready = format!("start={:#x} bytes={}", mapping.address(), mapping.bytes());
    workload::serve(&ready, |command| match command.split_once(' ') {
        Some(("loads", pages)) => {
            let pages: usize = pages.parse().with_context(|| format!("`{pages}`: expected a number of pages"))?;
            let all = mapping.words();
            ensure!(pages > 0 && pages * WORDS_PER_PAGE <= all.len(), "{pages} pages: there are fewer");
            Ok(format!("ticks={}", loads(&all[..pages * WORDS_PER_PAGE], &mut random)?))
        }
        _ => bail!("`{command}`: expected `loads PAGES`"),
    })
}

/// Reads lines in an order that no prefetcher predicts: newer processors predict large steps, and the rest of a page
/// after a few of its lines.
#[cfg(target_arch = "x86_64")]
fn loads(words: &[u64], random: &mut Random) -> Result<u64> {
    use std::arch::x86_64::{_mm_lfence, _mm_mfence, _rdtsc};
    /// A median needs no more, and the TLB holds this many translations.
    const SAMPLES: usize = 800;
    let mut pages: Vec<&[u64]> = words.chunks(WORDS_PER_PAGE).collect();
    random.shuffle(&mut pages);
    pages.truncate(SAMPLES);
    let volatile = |word: *const u64| {
        // SAFETY: a word of `words`, which is borrowed.
        unsafe { word.read_volatile() }
    };
    // The translations are there before the clock runs.
    for page in &pages {
        volatile(page.as_ptr());
    }
    let mut times = Vec::with_capacity(pages.len());
    for page in pages {
        // Not close to the first line, which is near now.
        let word = &raw const page[(4 + random.below(56)) * 8];
        // SAFETY: every x86-64 has the fences and the clock, and they touch no memory.
        times.push(unsafe {
            _mm_mfence();
            _mm_lfence();
            let begun = _rdtsc();
            _mm_lfence();
            volatile(word);
            _mm_lfence();
            _rdtsc() - begun
        });
    }
    times.sort_unstable();
    times.get(times.len() / 2).copied().context("no pages")
}

#[cfg(not(target_arch = "x86_64"))]
fn loads(_: &[u64], _: &mut Random) -> Result<u64> {
    bail!("only x86-64 has the clock for it")
}
