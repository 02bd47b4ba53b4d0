//! A setting of the kernel, changed until its value here is dropped: at the end, on an error, on a panic, and after
//! SIGINT or SIGTERM, which raise a flag that ends the benchmark in the ordinary way (`stop.rs`).

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

/// A changed setting. Dropped, it is restored.
#[derive(Debug)]
pub struct Setting {
    file: PathBuf,
    before: String,
}

impl Setting {
    /// Writes `value` to `file`.
    ///
    /// # Errors
    /// When the kernel has no such setting, or refuses.
    pub fn set(file: &Path, value: &str) -> Result<Setting> {
        let text = read(file)?;
        Setting::write(file, value, text.trim())
    }

    /// Writes `value` to `file`, which lists all values with the present one in brackets.
    ///
    /// # Errors
    /// As [`Setting::set`], and when no value stands in brackets.
    pub fn choose(file: &Path, value: &str) -> Result<Setting> {
        let text = read(file)?;
        let Some(before) = chosen(&text) else { bail!("{}: no setting is marked as chosen", file.display()) };
        Setting::write(file, value, before)
    }

    fn write(file: &Path, value: &str, before: &str) -> Result<Setting> {
        let setting = Setting { file: file.to_owned(), before: before.to_owned() };
        fs::write(file, value)
            .with_context(|| format!("cannot write {value} to {} (this needs root)", file.display()))?;
        Ok(setting)
    }
}

impl Drop for Setting {
    fn drop(&mut self) {
        if let Err(error) = fs::write(&self.file, &self.before) {
            let (file, before) = (self.file.display(), &self.before);
            eprintln!("masu-bench: cannot restore {file} to {before}: {error}\n    echo {before} > {file}");
        }
    }
}

/// Text of a setting's file.
///
/// # Errors
/// When it cannot be read.
pub fn read(file: &Path) -> Result<String> {
    fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))
}

/// The word in brackets: `always [madvise] never` says `madvise`.
pub fn chosen(text: &str) -> Option<&str> {
    text.split_whitespace().find_map(|word| word.strip_prefix('[')?.strip_suffix(']'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(text: &str) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), text).unwrap();
        file
    }

    #[test]
    fn the_old_value_comes_back() {
        let file = file("60\n");
        let setting = Setting::set(file.path(), "200").unwrap();
        assert_eq!(fs::read_to_string(file.path()).unwrap(), "200");
        drop(setting);
        assert_eq!(fs::read_to_string(file.path()).unwrap(), "60");
    }

    #[test]
    fn the_chosen_value_comes_back_even_after_a_panic() {
        let file = file("always [madvise] never\n");
        let panicked = std::panic::catch_unwind(|| {
            let _setting = Setting::choose(file.path(), "always").unwrap();
            assert_eq!(fs::read_to_string(file.path()).unwrap(), "always");
            panic!("on purpose");
        });
        assert!(panicked.is_err());
        assert_eq!(fs::read_to_string(file.path()).unwrap(), "madvise");
    }

    #[test]
    fn a_file_without_a_chosen_word_is_left_alone() {
        let file = file("odd\n");
        let said = Setting::choose(file.path(), "madvise").unwrap_err().to_string();
        assert!(said.ends_with(": no setting is marked as chosen"), "{said}");
        assert_eq!(fs::read_to_string(file.path()).unwrap(), "odd\n");
    }

    #[test]
    fn a_missing_setting_is_named() {
        let said = Setting::choose(Path::new("/nowhere/enabled"), "always").unwrap_err().to_string();
        assert_eq!(said, "cannot read /nowhere/enabled");
    }
}
