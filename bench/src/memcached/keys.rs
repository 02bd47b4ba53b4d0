//! Requested items: numbers drawn beforehand, in a file that the client reads in order.
//!
//! Items are set in the order of their numbers, and memcached carves its pages in order: items with adjacent numbers
//! have adjacent addresses.

use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::Path;

use anyhow::{Context, Result};
use units::cast::fits;
use units::spread::Random;

use crate::choices;
use crate::mapping::WINDOW_BYTES;
use crate::random::{Keys, Zipf};

choices! {
    /// Frequency of each item.
    pub enum Law {
        Ycsb = "ycsb", "As YCSB's `zipfian` draws them: ranks of ten billion, scattered over the items by a hash";
        Zipf = "zipf", "Zipf's law over as many ranks as there are items, scattered by a hash: the hottest are hotter";
        Uniform = "uniform", "Equal frequency for all items";
    }
}

/// Requested items.
#[derive(Clone, Debug)]
pub enum Wanted {
    /// All items, by a law.
    All(Keys),
    /// These items, each as often as any other.
    Some(Vec<u32>),
}

impl Wanted {
    /// All of `items`, by `law`.
    pub fn all(items: u32, law: Law) -> Wanted {
        Wanted::All(Keys::over(
            items,
            match law {
                Law::Ycsb => Some(Zipf::ycsb()),
                Law::Zipf => Some(Zipf::over(items as usize)),
                Law::Uniform => None,
            },
        ))
    }

    /// `per_window` items of every 2 MiB of `items` that take `chunk_bytes` each: anywhere in these 2 MiB, always the same.
    pub fn scattered(items: u32, chunk_bytes: usize, per_window: usize, random: &mut Random) -> Wanted {
        let in_window = (WINDOW_BYTES / chunk_bytes.max(1)).max(1);
        let mut hot = Vec::new();
        for first in (0..items as usize).step_by(in_window) {
            let length = in_window.min(items as usize - first);
            // One item from each of `per_window` parts, so that no two are the same.
            let parts = per_window.min(length);
            hot.extend((0..parts).map(|part| {
                let (from, to) = (length * part / parts, length * (part + 1) / parts);
                fits::<_, u32>(first + from + random.below(to - from))
            }));
        }
        Wanted::Some(hot)
    }

    /// Number of distinct requested items.
    pub fn distinct(&self) -> usize {
        match self {
            Wanted::All(keys) => keys.count as usize,
            Wanted::Some(hot) => hot.len(),
        }
    }

    fn one(&self, random: &mut Random) -> u32 {
        match self {
            Wanted::All(keys) => keys.one(random),
            Wanted::Some(hot) => hot[random.below(hot.len())],
        }
    }

    /// Writes `count` numbers to `path`, as the client reads them.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn draw_to(&self, path: &Path, count: usize, random: &mut Random) -> Result<()> {
        let mut write = || -> std::io::Result<()> {
            let mut file = BufWriter::with_capacity(1 << 20, File::create(path)?);
            for _ in 0..count {
                file.write_all(&self.one(random).to_ne_bytes())?;
            }
            file.flush()
        };
        write().with_context(|| format!("cannot write {}", path.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ITEMS: u32 = 800_000;

    /// Number of draws of each item, the most drawn first, and the item's number.
    fn counted(wanted: &Wanted, draws: usize) -> Vec<(usize, u32)> {
        let mut random = Random::seeded(5);
        let mut counts = vec![0; ITEMS as usize];
        (0..draws).for_each(|_| counts[wanted.one(&mut random) as usize] += 1);
        let mut counts: Vec<(usize, u32)> = counts.into_iter().zip(0..).collect();
        counts.sort_unstable_by(|a, b| b.cmp(a));
        counts
    }

    #[test]
    fn the_hottest_item_has_the_share_of_the_first_rank_and_all_others_their_part() {
        let draws = 400_000;
        // 1 / 26.469; four deviations of 400,000 draws are 0.0012.
        let ycsb = counted(&Wanted::all(ITEMS, Law::Ycsb), draws);
        assert!((ycsb[0].0 as f64 / draws as f64 - 0.037_780).abs() < 0.0012, "{}", ycsb[0].0);
        // zeta(800,000) = 15.2; 1 / 15.2 = 0.066.
        let zipf = counted(&Wanted::all(ITEMS, Law::Zipf), draws);
        assert!((zipf[0].0 as f64 / draws as f64 - 0.066).abs() < 0.002, "{}", zipf[0].0);
        // Ranks beyond the first of YCSB's ten billion reach every item: more different ones are asked for.
        let touched = |counts: &[(usize, u32)]| counts.iter().filter(|(count, _)| *count > 0).count();
        assert!(touched(&ycsb) > touched(&zipf), "{} and {}", touched(&ycsb), touched(&zipf));
    }

    #[test]
    fn hot_items_lie_all_over() {
        for law in [Law::Ycsb, Law::Zipf] {
            let hot: Vec<u32> = counted(&Wanted::all(ITEMS, law), 200_000).iter().take(400).map(|hot| hot.1).collect();
            for quarter in 0..4 {
                let inside = hot.iter().filter(|number| **number / (ITEMS / 4) == quarter).count();
                assert!((60..140).contains(&inside), "{inside} of 400 in quarter {quarter}");
            }
        }
    }

    #[test]
    fn every_two_mebibytes_have_as_many_hot_items_as_wanted() {
        let wanted = Wanted::scattered(10_000, 600, 4, &mut Random::seeded(1));
        let Wanted::Some(hot) = &wanted else { panic!("these are some") };
        let in_window = WINDOW_BYTES / 600; // 3495 items
        assert_eq!((in_window, wanted.distinct()), (3495, 12));
        for (window, items) in hot.chunks(4).enumerate() {
            assert!(items.iter().all(|item| *item as usize / in_window == window), "{items:?}");
            assert!(items.is_sorted_by(|a, b| a < b));
        }
        let mut random = Random::seeded(2);
        assert!((0..1000).all(|_| hot.contains(&wanted.one(&mut random))));
    }

    #[test]
    fn what_is_drawn_is_what_the_client_reads() {
        let file = tempfile::NamedTempFile::new().unwrap();
        Wanted::all(10, Law::Uniform).draw_to(file.path(), 2000, &mut Random::seeded(1)).unwrap();
        let bytes = std::fs::read(file.path()).unwrap();
        let numbers: Vec<u32> = bytes.chunks(4).map(|four| u32::from_ne_bytes(four.try_into().unwrap())).collect();
        assert!(
            numbers.len() == 2000 && (0..10).all(|item| numbers.contains(&item)) && numbers.iter().all(|n| *n < 10)
        );
    }
}
