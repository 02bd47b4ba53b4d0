//! Bytes that another process, user, server or file chose, and how they are shown.
//!
//! A name can hold anything: escape sequences that rule a terminal, a newline that forges a line, marks that turn the direction of
//! writing. [`Untrusted`] holds such bytes and shows them escaped, so that nothing which prints a name has to remember it. Text of
//! our own with something strange in it, such as a message, is shown by [`visible`].
//!
//! | bytes | shown by `Untrusted` | shown by `visible` |
//! |---|---|---|
//! | printable characters and the space | as they are | as they are |
//! | `\` | `\\` | as it is |
//! | other characters: control, newline, unassigned, private, other spaces, direction, zero width | each byte as `\x1b` | `\u001b` |
//! | no UTF-8 | each byte as `\xff` | there is none |
//!
//! `printf %b` makes the bytes again of the first. The second is also right within the strings of JSON, and text that was shown once
//! is shown again as it is.
//!
//! Printable is whatever `Debug` of the standard library leaves as it is: all but Cc, Cf, Cn, Co, Cs, Zl, Zp and Zs of Unicode's
//! general categories, and the space.

use std::borrow::Cow;
use std::ffi::OsStr;
use std::fmt::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use serde::{Serialize, Serializer};

/// Bytes that somebody else chose: the name of a process, the path of a mapping, the answer of a server. Shown and written to JSON
/// escaped.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Untrusted(Vec<u8>);

impl Untrusted {
    /// These bytes.
    pub fn new(bytes: impl Into<Vec<u8>>) -> Untrusted {
        Untrusted(bytes.into())
    }

    /// The bytes as they were chosen: to compare and to look up, not to print.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// The same as a path, to open.
    pub fn path(&self) -> &Path {
        Path::new(OsStr::from_bytes(&self.0))
    }

    /// The same as text, in which bytes that are no UTF-8 are replaced.
    pub fn text(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(&self.0)
    }
}

impl From<&str> for Untrusted {
    fn from(text: &str) -> Untrusted {
        Untrusted::new(text)
    }
}

impl From<String> for Untrusted {
    fn from(text: String) -> Untrusted {
        Untrusted::new(text)
    }
}

impl PartialEq<str> for Untrusted {
    fn eq(&self, text: &str) -> bool {
        self.0 == text.as_bytes()
    }
}

impl PartialEq<&str> for Untrusted {
    fn eq(&self, text: &&str) -> bool {
        self == *text
    }
}

impl fmt::Display for Untrusted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = String::with_capacity(self.0.len());
        for chunk in self.0.utf8_chunks() {
            for letter in chunk.valid().chars() {
                match letter {
                    '\\' => shown.push_str(r"\\"),
                    _ if is_printable(letter) => shown.push(letter),
                    _ => push_bytes(&mut shown, letter.encode_utf8(&mut [0; 4]).as_bytes()),
                }
            }
            push_bytes(&mut shown, chunk.invalid());
        }
        f.pad(&shown)
    }
}

/// As shown, in quotation marks.
impl fmt::Debug for Untrusted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}

impl Serialize for Untrusted {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

/// Our own text with something strange in it, without what rules a terminal or begins a line.
pub fn visible(text: &str) -> Cow<'_, str> {
    visible_but(text, &[])
}

/// The same, and what is in `allowed` stays as it is.
pub fn visible_but<'t>(text: &'t str, allowed: &[char]) -> Cow<'t, str> {
    let stays = |letter: char| is_printable(letter) || allowed.contains(&letter);
    if text.chars().all(stays) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len());
    for letter in text.chars() {
        if stays(letter) {
            shown.push(letter);
            continue;
        }
        for unit in letter.encode_utf16(&mut [0; 2]) {
            let _ = write!(shown, "\\u{unit:04x}"); // A String takes all.
        }
    }
    Cow::Owned(shown)
}

fn push_bytes(shown: &mut String, bytes: &[u8]) {
    for byte in bytes {
        let _ = write!(shown, "\\x{byte:02x}"); // A String takes all.
    }
}

fn is_printable(letter: char) -> bool {
    if letter.is_ascii() {
        return matches!(letter, ' '..='~');
    }
    // Behind another letter, so that an accent which stands alone is not taken for one at the beginning.
    let mut two = [b'a'; 5];
    let len = letter.encode_utf8(&mut two[1..]).len();
    std::str::from_utf8(&two[..=len]).is_ok_and(|two| two.escape_debug().nth(1) == Some(letter))
}

#[cfg(test)]
mod tests;
