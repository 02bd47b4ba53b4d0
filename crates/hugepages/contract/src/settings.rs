//! What masu asks of the library, in one environment variable that the programs' children inherit. Pure.
//!
//! `MASU_TOUCH=align,stack,sizes=2048+64,board=/proc/77/fd/9`. Without the variable, with one that does not read like
//! this, or with `MASU_DISABLE=1`, the library does nothing.

use core::fmt;

use crate::policy::{Size, Sizes};

/// The variable's name.
pub const VARIABLE: &str = "MASU_TOUCH";

/// A variable that makes the library inert when it is set to anything but nothing or `0`.
pub const DISABLE: &str = "MASU_DISABLE";

/// Where the loader looks for libraries to load first. Ours stands first in it.
pub const PRELOAD: &str = "LD_PRELOAD";

/// Where the C library looks for its tunables. Ours stands first in it.
pub const TUNABLES: &str = "GLIBC_TUNABLES";

/// The C library's malloc advises its own memory, and grows by whole windows (glibc 2.35 and newer).
pub const TUNABLE: &str = "glibc.malloc.hugetlb=1";

/// What is asked; `board` is the path of the shared page, and lies where the variable does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Settings<'a> {
    /// Align mappings.
    pub align: bool,
    /// Stacks, too.
    pub stack: bool,
    /// The programs' text, too.
    pub code: bool,
    /// Children are not to be served: the variables are taken out of the environment.
    pub alone: bool,
    /// Wait at exit until masu has looked at the memory a last time.
    pub last_look: bool,
    /// The sizes of pages that may be had.
    pub sizes: Sizes,
    /// Where the board is.
    pub board: Option<&'a str>,
}

impl<'a> Settings<'a> {
    /// What the variable says; `None` if it says anything that is not understood.
    pub fn parse(text: &'a str) -> Option<Settings<'a>> {
        let mut settings = Settings::default();
        for word in text.split(',').filter(|word| !word.is_empty()) {
            match word.split_once('=') {
                None => match word {
                    "align" => settings.align = true,
                    "stack" => settings.stack = true,
                    "code" => settings.code = true,
                    "alone" => settings.alone = true,
                    "last-look" => settings.last_look = true,
                    _ => return None,
                },
                Some(("sizes", list)) => {
                    for kib in list.split('+') {
                        settings.sizes = settings.sizes.with(Size::of_kib(kib.parse().ok()?)?);
                    }
                }
                Some(("board", path)) => settings.board = Some(path),
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
            (self.last_look, "last-look,"),
        ];
        for (_, word) in words.iter().filter(|(said, _)| *said) {
            f.write_str(word)?;
        }
        for (index, size) in self.sizes.iter().enumerate() {
            write!(f, "{}{}", if index == 0 { "sizes=" } else { "+" }, size.kib())?;
        }
        match self.board {
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
            last_look: true,
            sizes: Sizes::NONE.with(Size::HUGE).with(Size::of_kib(64).unwrap()),
            board: Some("/proc/77/fd/9"),
        };
        let text = settings.to_string();
        assert_eq!(text, "align,code,last-look,sizes=2048+64,board=/proc/77/fd/9");
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
