//! Page-cache residency of files: reading it, and loading or dropping pages.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use rustix::fs::{Advice, fadvise};
use serde::Serialize;

use crate::file_mapping::FileMapping;
use crate::mapping::PAGE_BYTES;

/// Residency of each page of a file in the page cache.
///
/// # Errors
/// When the file cannot be opened or mapped.
pub fn resident(path: &Path) -> Result<Vec<bool>> {
    let asked = || -> io::Result<Vec<bool>> {
        let file = File::open(path)?;
        if file.metadata()?.len() == 0 { Ok(Vec::new()) } else { FileMapping::of(&file)?.resident() }
    };
    asked().with_context(|| format!("cannot see which pages of {} are cached", path.display()))
}

/// Drops all pages of a file from the page cache, after writing dirty ones to disk.
///
/// # Errors
/// When the file cannot be opened, or pages of it stay: a process maps or locks them.
pub fn drop_all(path: &Path) -> Result<()> {
    let file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
    file.sync_data().with_context(|| format!("cannot write {} out", path.display()))?;
    // Pages that are on their way to a list of the kernel's are passed over; a little later they are not.
    let mut left = 0;
    for _ in 0..5 {
        fadvise(&file, 0, None, Advice::DontNeed)?;
        left = resident(path)?.iter().filter(|page| **page).count();
        if left == 0 {
            return Ok(());
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    ensure!(left == 0, "{left} pages of {} cannot be dropped from the page cache", path.display());
    Ok(())
}

/// Reads pages `first` up to, not including, `end` of a file, and no others: nothing is read ahead.
///
/// # Errors
/// When the file cannot be read.
pub fn read_only(path: &Path, first: usize, end: usize) -> Result<()> {
    let read = || -> io::Result<()> {
        let file = File::open(path)?;
        fadvise(&file, 0, None, Advice::Random)?;
        let mut some = vec![0; 64 * PAGE_BYTES];
        let (mut at, end) = ((first * PAGE_BYTES) as u64, (end * PAGE_BYTES) as u64);
        while at < end {
            let wanted = units::cast::index(end - at).min(some.len());
            match file.read_at(&mut some[..wanted], at)? {
                0 => break,
                read => at += read as u64,
            }
        }
        Ok(())
    };
    read().with_context(|| format!("cannot read {}", path.display()))
}

/// Pages of files before and after something read them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Kept {
    /// Pages in the page cache before.
    pub before_pages: u64,
    /// Pages cached before and after.
    pub kept_pages: u64,
    /// Not in it before.
    pub absent_pages: u64,
    /// Pages cached after, but not before.
    pub brought_pages: u64,
}

impl Kept {
    /// Counts one more file.
    pub fn add(&mut self, before: &[bool], after: &[bool]) {
        for (before, after) in before.iter().zip(after) {
            let (all, now) = if *before {
                (&mut self.before_pages, &mut self.kept_pages)
            } else {
                (&mut self.absent_pages, &mut self.brought_pages)
            };
            *all += 1;
            *now += u64::from(*after);
        }
    }

    /// Part of the previously cached pages that is still cached; 1 when there were none.
    pub fn kept_fraction(&self) -> f64 {
        if self.before_pages == 0 { 1.0 } else { self.kept_pages as f64 / self.before_pages as f64 }
    }

    /// Part of the previously uncached pages that is cached now.
    pub fn brought_fraction(&self) -> f64 {
        if self.absent_pages == 0 { 0.0 } else { self.brought_pages as f64 / self.absent_pages as f64 }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn only_the_pages_read_are_in_the_cache() {
        let mut file = tempfile::NamedTempFile::new_in("/var/tmp").unwrap();
        file.write_all(&vec![1; 256 * PAGE_BYTES]).unwrap();
        drop_all(file.path()).unwrap();
        assert!(resident(file.path()).unwrap().iter().all(|page| !page));
        read_only(file.path(), 10, 12).unwrap();
        let cached: Vec<usize> =
            resident(file.path()).unwrap().iter().enumerate().filter(|(_, is)| **is).map(|(nth, _)| nth).collect();
        assert_eq!(cached, [10, 11]);
    }

    #[test]
    fn what_was_there_and_what_was_not_are_counted_apart() {
        let mut kept = Kept::default();
        kept.add(&[true, true, false, false], &[true, false, true, false]);
        kept.add(&[false], &[false]);
        assert_eq!(kept, Kept { before_pages: 2, kept_pages: 1, absent_pages: 3, brought_pages: 1 });
        assert!((kept.kept_fraction() - 0.5).abs() < 1e-12 && (kept.brought_fraction() - 1.0 / 3.0).abs() < 1e-12);
        let nothing = Kept::default();
        assert!((nothing.kept_fraction() - 1.0).abs() < 1e-12 && nothing.brought_fraction() == 0.0);
    }

    #[test]
    fn a_file_that_is_not_there_is_named() {
        let said = resident(Path::new("/nowhere/x")).unwrap_err().to_string();
        assert_eq!(said, "cannot see which pages of /nowhere/x are cached");
    }
}
