//! The host's setting for transparent huge pages, `/sys/kernel/mm/transparent_hugepage/enabled`, changed temporarily.
//!
//! The guard restores the old setting when it goes out of scope: at the end, on an error, on a panic, and after SIGINT
//! or SIGTERM, which raise a flag that ends the benchmark in the ordinary way (`stop.rs`).

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

/// Folder of the kernel's settings for transparent huge pages.
pub const FOLDER: &str = "/sys/kernel/mm/transparent_hugepage";

/// A setting of `enabled`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// No huge pages, whatever a program asks for.
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

/// khugepaged at full speed, until dropped. At its usual settings it collapses 16 MiB in ten seconds; here the same
/// pages are collapsed at once. Its choice of pages is unchanged.
#[derive(Debug)]
pub struct Hurry {
    before: Vec<(PathBuf, String)>,
}

impl Hurry {
    /// Pages scanned in one go, and the sleep between scans.
    const SETTINGS: [(&str, &str); 2] = [("pages_to_scan", "65536"), ("scan_sleep_millisecs", "10")];

    /// Changes khugepaged's settings.
    ///
    /// # Errors
    /// When the kernel has no khugepaged, or we may not change them.
    pub fn begin() -> Result<Hurry> {
        Hurry::begin_in(&Path::new(FOLDER).join("khugepaged"))
    }

    fn begin_in(folder: &Path) -> Result<Hurry> {
        let mut hurry = Hurry { before: Vec::new() };
        for (name, value) in Self::SETTINGS {
            let file = folder.join(name);
            hurry.before.push((file.clone(), read(&file)?.trim().to_owned()));
            fs::write(&file, value)
                .with_context(|| format!("cannot write {value} to {} (this needs root)", file.display()))?;
        }
        Ok(hurry)
    }

    /// Number of khugepaged's full scans since the host started.
    ///
    /// # Errors
    /// When it does not count.
    pub fn full_scans() -> Result<u64> {
        let file = Path::new(FOLDER).join("khugepaged/full_scans");
        read(&file)?.trim().parse().with_context(|| format!("{} is not a number", file.display()))
    }
}

impl Drop for Hurry {
    fn drop(&mut self) {
        for (file, before) in &self.before {
            if let Err(error) = fs::write(file, before) {
                let file = file.display();
                eprintln!("masu-bench: cannot put {file} back to {before}: {error}\n    echo {before} > {file}");
            }
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
    fn khugepaged_has_its_settings_back_after_a_hurry_and_after_one_that_failed() {
        let folder = tempfile::tempdir().unwrap();
        let [first, second] = Hurry::SETTINGS.map(|(name, _)| folder.path().join(name));
        fs::write(&first, "4096\n").unwrap();
        assert!(Hurry::begin_in(folder.path()).is_err());
        assert_eq!(fs::read_to_string(&first).unwrap(), "4096");
        fs::write(&second, "10000\n").unwrap();
        let hurry = Hurry::begin_in(folder.path()).unwrap();
        assert_eq!(fs::read_to_string(&second).unwrap(), "10");
        drop(hurry);
        assert_eq!([first, second].map(|file| fs::read_to_string(file).unwrap()), ["4096", "10000"]);
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
