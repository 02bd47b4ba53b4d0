//! Seeds: small files that a target understands, in `corpus/TARGET/`, named for their content.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::Target;

/// The seeds of a target.
#[derive(Clone, Debug)]
pub struct Corpus {
    /// Bytes of each seed, in the order of file names, cut at the target's longest input.
    pub seeds: Vec<Vec<u8>>,
    /// Words of the seeds, between blanks and punctuation, each once.
    pub words: Vec<Vec<u8>>,
}

/// The folder with this crate's sources.
pub fn folder() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The files with a target's seeds, by name.
pub fn files(target: &Target) -> Result<Vec<PathBuf>> {
    // All planted bugs share one folder.
    let name = if target.name.starts_with("planted") { "planted" } else { target.name };
    let folder = folder().join("corpus").join(name);
    let entries = fs::read_dir(&folder).with_context(|| format!("cannot list {}", folder.display()))?;
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.map(|entry| entry.path())).collect::<Result<_, _>>()?;
    files.sort();
    Ok(files)
}

impl Corpus {
    /// Reads a target's seeds.
    pub fn of(target: &Target) -> Result<Corpus> {
        let read = |path: &PathBuf| fs::read(path).with_context(|| format!("cannot read {}", path.display()));
        let mut seeds: Vec<Vec<u8>> = files(target)?.iter().map(read).collect::<Result<_>>()?;
        seeds.iter_mut().for_each(|seed| seed.truncate(target.bytes_max));
        let is_between =
            |byte: &u8| byte.is_ascii_whitespace() || byte.is_ascii_punctuation() && !b"_-.".contains(byte);
        let words = seeds.iter().flat_map(|seed| seed.split(is_between));
        let mut words: Vec<Vec<u8>> = words.filter(|word| (1..=32).contains(&word.len())).map(<[u8]>::to_vec).collect();
        words.sort();
        words.dedup();
        Ok(Corpus { seeds, words })
    }
}
