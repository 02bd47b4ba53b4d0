//! The host's switch for transparent huge pages, `/sys/kernel/mm/transparent_hugepage/enabled`, turned for a while.
//!
//! The guard puts the old setting back when it goes out of scope: at the end, on an error, on a panic, and after SIGINT or
//! SIGTERM, which raise a flag that ends the benchmark in the ordinary way (`stop.rs`).

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

/// Where the kernel keeps its settings for transparent huge pages.
pub const FOLDER: &str = "/sys/kernel/mm/transparent_hugepage";

/// A setting of `enabled`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// No huge pages, whoever asks.
    Never,
    /// Huge pages for every mapping.
    Always,
    /// Huge pages only where a program asks for them.
    Madvise,
}

impl Mode {
    const fn word(self) -> &'static str {
        match self {
            Mode::Never => "never",
            Mode::Always => "always",
            Mode::Madvise => "madvise",
        }
    }
}

/// Holds the switch where it was turned to, until dropped.
#[derive(Debug)]
pub struct Guard {
    file: PathBuf,
    before: String,
}

impl Guard {
    /// Turns the host's switch to `mode`.
    ///
    /// # Errors
    /// When the kernel has no such switch, or we may not turn it.
    pub fn turn(mode: Mode) -> Result<Guard> {
        Guard::turn_in(Path::new(FOLDER), mode)
    }

    fn turn_in(folder: &Path, mode: Mode) -> Result<Guard> {
        let file = folder.join("enabled");
        let Some(before) = chosen(&read(&file)?).map(str::to_owned) else {
            bail!("{}: no setting is marked as chosen", file.display());
        };
        let guard = Guard { file, before };
        fs::write(&guard.file, mode.word())
            .with_context(|| format!("cannot turn {} to {} (this needs root)", guard.file.display(), mode.word()))?;
        Ok(guard)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if let Err(error) = fs::write(&self.file, &self.before) {
            let (file, before) = (self.file.display(), &self.before);
            eprintln!("masu-bench: cannot put {file} back to {before}: {error}\n    echo {before} > {file}");
        }
    }
}

/// The setting now in force, for example `enabled` or `defrag`.
///
/// # Errors
/// When it cannot be read, or none is marked.
pub fn setting(name: &str) -> Result<String> {
    let file = Path::new(FOLDER).join(name);
    chosen(&read(&file)?).map(str::to_owned).with_context(|| format!("{}: no setting is marked", file.display()))
}

fn read(file: &Path) -> Result<String> {
    fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))
}

/// The word in brackets: `always [madvise] never` says `madvise`.
fn chosen(text: &str) -> Option<&str> {
    text.split_whitespace().find_map(|word| word.strip_prefix('[')?.strip_suffix(']'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(enabled: &str) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("enabled"), enabled).unwrap();
        folder
    }

    #[test]
    fn the_old_setting_comes_back_even_after_a_panic() {
        let folder = folder("always [madvise] never\n");
        let enabled = folder.path().join("enabled");
        let panicked = std::panic::catch_unwind(|| {
            let _guard = Guard::turn_in(folder.path(), Mode::Always).unwrap();
            assert_eq!(fs::read_to_string(&enabled).unwrap(), "always");
            panic!("on purpose");
        });
        assert!(panicked.is_err());
        assert_eq!(fs::read_to_string(&enabled).unwrap(), "madvise");
    }

    #[test]
    fn a_file_without_a_chosen_word_is_left_alone() {
        let folder = folder("odd\n");
        let said = Guard::turn_in(folder.path(), Mode::Madvise).unwrap_err().to_string();
        assert!(said.ends_with("enabled: no setting is marked as chosen"), "{said}");
        assert_eq!(fs::read_to_string(folder.path().join("enabled")).unwrap(), "odd\n");
    }

    #[test]
    fn a_host_without_the_switch_says_which_file_is_missing() {
        let folder = tempfile::tempdir().unwrap();
        let said = Guard::turn_in(folder.path(), Mode::Always).unwrap_err().to_string();
        assert!(said.starts_with("cannot read ") && said.ends_with("/enabled"), "{said}");
    }
}
