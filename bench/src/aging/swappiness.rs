//! `/proc/sys/vm/swappiness`, set temporarily: cgroups created meanwhile start with its value, in both versions of
//! cgroups.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// Holds the setting, until dropped.
#[derive(Debug)]
pub struct Swappiness {
    file: PathBuf,
    before: String,
}

impl Swappiness {
    /// Sets it: 0 (take back files first) to 200 (take back programs' data first).
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn set(value: u8) -> Result<Swappiness> {
        Swappiness::set_in(Path::new("/proc/sys/vm/swappiness"), value)
    }

    fn set_in(file: &Path, value: u8) -> Result<Swappiness> {
        let before = fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
        let held = Swappiness { file: file.to_owned(), before: before.trim().to_owned() };
        fs::write(file, value.to_string())
            .with_context(|| format!("cannot write {value} to {} (this needs root)", file.display()))?;
        Ok(held)
    }
}

impl Drop for Swappiness {
    fn drop(&mut self) {
        if let Err(error) = fs::write(&self.file, &self.before) {
            let (file, before) = (self.file.display(), &self.before);
            eprintln!("masu-bench: cannot put {file} back to {before}: {error}\n    echo {before} > {file}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_old_setting_comes_back() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), "60\n").unwrap();
        let held = Swappiness::set_in(file.path(), 200).unwrap();
        assert_eq!(fs::read_to_string(file.path()).unwrap(), "200");
        drop(held);
        assert_eq!(fs::read_to_string(file.path()).unwrap(), "60");
    }
}
