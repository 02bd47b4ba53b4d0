//! A tree of files to be backed up, partly in the page cache; a seed chooses the cached pages.

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::ops::Range;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use units::Bytes;
use units::cast::index;

use crate::aging::residency::{Kept, drop_all, read_only, resident};
use crate::mapping::PAGE_BYTES;
use crate::stop::Stop;
use units::spread::Random;

/// Sizes of small files, and of large ones.
const SMALL_BYTES: Range<u64> = 4 << 10..256 << 10;
const LARGE_BYTES: Range<u64> = 256 << 10..64 << 20;

/// One file in 40 is large.
const LARGE_ONE_OF: usize = 40;

/// Files in a folder.
const IN_A_FOLDER: usize = 64;

/// Cached pages of each file: one flag for each page.
pub type Cached = Vec<Vec<bool>>;

/// A tree that was written here.
#[derive(Debug)]
pub struct Tree {
    root: PathBuf,
    files: Vec<One>,
}

#[derive(Debug)]
struct One {
    /// Below the root.
    path: PathBuf,
    bytes: u64,
    /// Pages that are cached before a backup.
    cached: Vec<Range<usize>>,
}

impl Tree {
    /// Writes files of about `bytes` in all below `root`.
    ///
    /// # Errors
    /// When they cannot be written, or we are interrupted.
    pub fn write(root: &Path, bytes: Bytes, seed: u64, stop: &Stop) -> Result<Tree> {
        let mut random = Random::seeded(seed);
        let mut some = vec![0u8; 1 << 20];
        some.fill_with(|| random.number().to_le_bytes()[0]);
        let mut files = Vec::new();
        for (nth, bytes) in sizes(bytes.0, &mut random).into_iter().enumerate() {
            stop.check()?;
            let path = PathBuf::from(format!("{:03}/{nth:05}", nth / IN_A_FOLDER));
            // No two files are alike, so that one taken for another is found.
            some[..8].copy_from_slice(&random.number().to_le_bytes());
            write(&root.join(&path), bytes, &some)?;
            files.push(One { path, bytes, cached: choose(index(bytes).div_ceil(PAGE_BYTES), &mut random) });
        }
        Ok(Tree { root: root.to_owned(), files })
    }

    /// Root folder of the tree.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Number of files.
    pub fn files(&self) -> usize {
        self.files.len()
    }

    /// Bytes of all files.
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).sum()
    }

    /// Brings the page cache into its initial state for a backup: the chosen pages, and nothing else.
    ///
    /// # Errors
    /// When pages cannot be dropped or read, or we are interrupted.
    pub fn prepare(&self, stop: &Stop) -> Result<Cached> {
        for file in &self.files {
            stop.check()?;
            drop_all(&self.root.join(&file.path))?;
        }
        for file in &self.files {
            stop.check()?;
            for range in &file.cached {
                read_only(&self.root.join(&file.path), range.start, range.end)?;
            }
        }
        self.cached_below(&self.root)
    }

    /// Cached pages of the files, or of a copy of them below another root.
    ///
    /// # Errors
    /// When one of them is missing.
    pub fn cached_below(&self, root: &Path) -> Result<Cached> {
        self.files.iter().map(|file| resident(&root.join(&file.path))).collect()
    }

    /// Compares the copy below `copy` with the tree, from the disk.
    ///
    /// # Errors
    /// When a file is missing or has other bytes, or we are interrupted.
    pub fn compare(&self, copy: &Path, stop: &Stop) -> Result<()> {
        for file in &self.files {
            stop.check()?;
            let (ours, theirs) = (self.root.join(&file.path), copy.join(&file.path));
            drop_all(&theirs)?;
            ensure!(is_same(&ours, &theirs)?, "{} is not what was copied", theirs.display());
        }
        Ok(())
    }
}

/// Counts the pages cached before and after, over all files.
pub fn kept(before: &Cached, after: &Cached) -> Kept {
    let mut kept = Kept::default();
    before.iter().zip(after).for_each(|(before, after)| kept.add(before, after));
    kept
}

/// Sizes of files that come to `total`, the last of them cut to fit: most are small, most bytes are in large ones.
fn sizes(total: u64, random: &mut Random) -> Vec<u64> {
    let (mut sizes, mut left) = (Vec::new(), total);
    while left > 0 {
        let range = if random.below(LARGE_ONE_OF) == 0 { LARGE_BYTES } else { SMALL_BYTES };
        let bytes = between(&range, random).min(left);
        sizes.push(bytes);
        left -= bytes;
    }
    sizes
}

/// A size of the range, as likely to be between 8 and 16 KiB as between 16 and 32.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it lies in the range")]
fn between(range: &Range<u64>, random: &mut Random) -> u64 {
    let (low, high) = (range.start as f64, range.end as f64);
    (low * (high / low).powf(random.fraction())) as u64
}

/// Chooses the cached ranges of a file of `pages` pages: none in half of the files, all in a quarter, up to four
/// stretches in the others.
fn choose(pages: usize, random: &mut Random) -> Vec<Range<usize>> {
    match random.below(4) {
        0 | 1 => Vec::new(),
        2 => vec![Range { start: 0, end: pages }],
        _ => {
            let stretch = |random: &mut Random| {
                let start = random.below(pages);
                start..(start + 1 + random.below(pages / 4 + 1)).min(pages)
            };
            (0..=random.below(4)).map(|_| stretch(random)).collect()
        }
    }
}

fn write(path: &Path, bytes: u64, some: &[u8]) -> Result<()> {
    let write = || -> std::io::Result<()> {
        path.parent().map_or(Ok(()), fs::create_dir_all)?;
        let (mut file, mut left) = (File::create(path)?, bytes);
        while left > 0 {
            let part = index(left).min(some.len());
            file.write_all(&some[..part])?;
            left -= part as u64;
        }
        Ok(())
    };
    write().with_context(|| format!("cannot write {}", path.display()))
}

fn is_same(ours: &Path, theirs: &Path) -> Result<bool> {
    let open = |path: &Path| File::open(path).with_context(|| format!("cannot open {}", path.display()));
    let (mut ours, mut theirs) = (open(ours)?, open(theirs)?);
    if ours.metadata()?.len() != theirs.metadata()?.len() {
        return Ok(false);
    }
    let (mut one, mut other) = (vec![0; 1 << 20], vec![0; 1 << 20]);
    loop {
        let read = ours.read(&mut one)?;
        if read == 0 {
            return Ok(true);
        }
        theirs.read_exact(&mut other[..read])?;
        if one[..read] != other[..read] {
            return Ok(false);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gib_is_some_thousand_files_from_small_to_large() {
        let sizes = sizes(1 << 30, &mut Random::seeded(1));
        assert_eq!(sizes.iter().sum::<u64>(), 1 << 30);
        assert!((1500..6000).contains(&sizes.len()), "{}", sizes.len());
        assert!(sizes.iter().all(|bytes| *bytes <= LARGE_BYTES.end) && sizes.iter().any(|bytes| *bytes > 8 << 20));
    }

    #[test]
    fn half_of_the_files_are_not_cached_and_ranges_lie_inside() {
        let mut random = Random::seeded(2);
        let chosen: Vec<Vec<Range<usize>>> = (0..4000).map(|nth| choose(1 + nth % 50, &mut random)).collect();
        let without = chosen.iter().filter(|ranges| ranges.is_empty()).count();
        assert!((1900..2100).contains(&without), "{without}");
        let inside = |(nth, ranges): (usize, &Vec<Range<usize>>)| {
            ranges.iter().all(|range| range.start < range.end && range.end <= 1 + nth % 50)
        };
        assert!(chosen.iter().enumerate().all(inside));
    }

    #[test]
    fn a_copy_with_one_other_byte_is_found() {
        let folder = tempfile::tempdir_in("/var/tmp").unwrap();
        let (root, stop) = (folder.path().join("tree"), Stop::default());
        let tree = Tree::write(&root, Bytes::mib(2), 3, &stop).unwrap();
        assert_eq!(tree.bytes(), 2 << 20);
        tree.compare(&root, &stop).unwrap();
        let copy = folder.path().join("copy");
        for file in &tree.files {
            fs::create_dir_all(copy.join(&file.path).parent().unwrap()).unwrap();
            fs::copy(root.join(&file.path), copy.join(&file.path)).unwrap();
        }
        tree.compare(&copy, &stop).unwrap();
        let last = copy.join(&tree.files.last().unwrap().path);
        let mut bytes = fs::read(&last).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        fs::write(&last, bytes).unwrap();
        let said = tree.compare(&copy, &stop).unwrap_err().to_string();
        assert_eq!(said, format!("{} is not what was copied", last.display()));
    }

    #[test]
    fn before_a_backup_the_chosen_pages_are_cached_and_no_others() {
        let folder = tempfile::tempdir_in("/var/tmp").unwrap();
        let tree = Tree::write(folder.path(), Bytes::mib(8), 5, &Stop::default()).unwrap();
        let cached = tree.prepare(&Stop::default()).unwrap();
        for (file, cached) in tree.files.iter().zip(&cached) {
            let wanted = |page: &usize| file.cached.iter().any(|range| range.contains(page));
            assert!((0..cached.len()).all(|page| cached[page] == wanted(&page)), "{}", file.path.display());
        }
        assert_eq!(kept(&cached, &cached).kept_fraction().to_bits(), 1.0f64.to_bits());
    }
}
