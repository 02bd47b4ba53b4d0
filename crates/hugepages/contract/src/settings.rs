//! masu's request to the library, in one environment variable that child processes inherit. Pure.
//!
//! `MASU_TOUCH=align,stack,sizes=2048+64,board=/proc/77/fd/9`. The library does nothing without the variable, with a
//! malformed one, or with `MASU_DISABLE=1`.

use core::fmt;

use crate::placement::{Size, Sizes};

/// Name of the variable.
pub const VARIABLE: &str = "MASU_TOUCH";

/// Variable that makes the library inert. Unset, empty and `0` do not.
pub const DISABLE: &str = "MASU_DISABLE";

/// The loader's list of libraries to load first. Ours is first in it.
pub const PRELOAD: &str = "LD_PRELOAD";

/// The C library's list of tunables.
pub const TUNABLES: &str = "GLIBC_TUNABLES";

/// Tunable by which the C library's malloc asks for huge pages. masu does not set it: children would inherit it.
pub const TUNABLE: &str = "glibc.malloc.hugetlb";

/// The request. `status_page`, its path, borrows from the variable's text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Settings<'a> {
    /// Align mappings.
    pub align: bool,
    /// Stacks, too.
    pub stack: bool,
    /// The programs' text, too.
    pub code: bool,
    /// Child processes are not served: the variables are removed from the environment.
    pub alone: bool,
    /// Wait at exit until masu has counted the memory a last time.
    pub last_count: bool,
    /// The C library's malloc, too.
    pub malloc: bool,
    /// Page sizes available.
    pub sizes: Sizes,
    /// Path of the status page.
    pub status_page: Option<&'a str>,
}

impl<'a> Settings<'a> {
    /// Parses the variable; `None` if any part is not understood.
    pub fn parse(text: &'a str) -> Option<Settings<'a>> {
        let mut settings = Settings::default();
        for word in text.split(',').filter(|word| !word.is_empty()) {
            match word.split_once('=') {
                None => match word {
                    "align" => settings.align = true,
                    "stack" => settings.stack = true,
                    "code" => settings.code = true,
                    "malloc" => settings.malloc = true,
                    "alone" => settings.alone = true,
                    "last-look" => settings.last_count = true,
                    _ => return None,
                },
                Some(("sizes", list)) => {
                    for kib in list.split('+') {
                        settings.sizes = settings.sizes.with(Size::of_kib(kib.parse().ok()?)?);
                    }
                }
                Some(("board", path)) => settings.status_page = Some(path),
                Some(_) => return None,
            }
        }
        Some(settings)
    }
}

impl fmt::Display for Settings<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = [
            (self.align, "align,"),
            (self.stack, "stack,"),
            (self.code, "code,"),
            (self.alone, "alone,"),
            (self.malloc, "malloc,"),
            (self.last_count, "last-look,"),
        ];
        for (_, word) in words.iter().filter(|(is_set, _)| *is_set) {
            f.write_str(word)?;
        }
        for (index, size) in self.sizes.iter().enumerate() {
            write!(f, "{}{}", if index == 0 { "sizes=" } else { "+" }, size.kib())?;
        }
        match self.status_page {
            Some(path) => write!(f, ",board={path}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_is_written_is_what_is_read() {
        let settings = Settings {
            align: true,
            stack: false,
            code: true,
            alone: false,
            malloc: true,
            last_count: true,
            sizes: Sizes::NONE.with(Size::HUGE).with(Size::of_kib(64).unwrap()),
            status_page: Some("/proc/77/fd/9"),
        };
        let text = settings.to_string();
        assert_eq!(text, "align,code,malloc,last-look,sizes=2048+64,board=/proc/77/fd/9");
        assert_eq!(Settings::parse(&text), Some(settings));
        assert_eq!(Settings::parse(""), Some(Settings::default()));
    }

    #[test]
    fn what_is_not_understood_is_not_followed() {
        for bad in ["aligned", "sizes=3", "sizes=", "sizes=64+x", "colour=red", "align,,,x"] {
            assert_eq!(Settings::parse(bad), None, "{bad}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "\\PC{0,80}") {
            if let Some(settings) = Settings::parse(&text) {
                let again = settings.to_string();
                prop_assert_eq!(Settings::parse(&again), Some(settings));
            }
        }
    }
}
