//! Bytes chosen by another process, user, server or file, and their display.
//!
//! A name can hold anything: escape sequences that control a terminal, a newline that forges a line, marks that
//! change the direction of writing. [`Untrusted`] holds such bytes and shows them escaped, so printing code cannot
//! forget it. Our own text that may contain strange text, such as a message, is shown by [`visible`].
//!
//! | bytes | shown by `Untrusted` | shown by `visible` |
//! |---|---|---|
//! | printable characters and the space | as they are | as they are |
//! | `\` | `\\` | as it is |
//! | other characters: control, newline, unassigned, private, other spaces, direction, zero width | each byte as `\x1b` | `\u001b` |
//! | no UTF-8 | each byte as `\xff` | there is none |
//!
//! `printf %b` restores the bytes from the first form. The second form is also valid within the strings of JSON.
//! Showing text twice equals showing it once.
//!
//! Printable characters are the ones that `Debug` of the standard library leaves unescaped: all but Cc, Cf, Cn, Co,
//! Cs, Zl, Zp and Zs of Unicode's general categories, and the space.

use std::borrow::Cow;
use std::ffi::OsStr;
use std::fmt::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Bytes chosen by others: the name of a process, the path of a mapping, the answer of a server. Display and JSON are
/// escaped.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Untrusted(Vec<u8>);

impl Untrusted {
    /// Wraps these bytes.
    pub fn new(bytes: impl Into<Vec<u8>>) -> Untrusted {
        Untrusted(bytes.into())
    }

    /// The raw bytes: to compare and to look up, not to print.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// The bytes as a path, to open.
    pub fn path(&self) -> &Path {
        Path::new(OsStr::from_bytes(&self.0))
    }

    /// The bytes as text, with invalid UTF-8 replaced.
    pub fn text(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(&self.0)
    }
}

/// From text made by [`text_of`].
impl From<&str> for Untrusted {
    fn from(text: &str) -> Untrusted {
        Untrusted::new(bytes_of(text))
    }
}

impl From<String> for Untrusted {
    fn from(text: String) -> Untrusted {
        Untrusted::from(text.as_str())
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

/// As displayed, in quotation marks.
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

impl<'de> Deserialize<'de> for Untrusted {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Untrusted, D::Error> {
        String::deserialize(from).map(|text| Untrusted(unescaped(text.as_bytes())))
    }
}

/// Bytes of a text that [`Untrusted`] displays. An unknown escape stands for itself.
fn unescaped(mut text: &[u8]) -> Vec<u8> {
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let mut bytes = Vec::with_capacity(text.len());
    while let [first, rest @ ..] = text {
        let (byte, rest) = match text {
            [b'\\', b'\\', rest @ ..] => (b'\\', rest),
            [b'\\', b'x', high, low, after @ ..] => match (digit(*high), digit(*low)) {
                (Some(high), Some(low)) => (high << 4 | low, after),
                _ => (*first, rest),
            },
            _ => (*first, rest),
        };
        bytes.push(byte);
        text = rest;
    }
    bytes
}

/// Escapes strange text in our own text, so nothing controls a terminal or begins a line.
pub fn visible(text: &str) -> Cow<'_, str> {
    visible_but(text, &[])
}

/// As [`visible`], but leaves the characters of `allowed` as they are.
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

/// First of the characters that stand for bytes in text: 128 at the end of the last private plane, from 0x80 on.
const BYTES: u32 = 0x10_ff80;

fn stands_for_byte(letter: char) -> Option<u8> {
    u32::from(letter).checked_sub(BYTES).and_then(|byte| u8::try_from(byte + 0x80).ok())
}

/// Bytes as text that [`bytes_of`] converts back to the same bytes, so paths and names in it stay distinct. Each byte
/// that is not UTF-8, or belongs to a character of this encoding, becomes one character.
pub fn text_of(bytes: Vec<u8>) -> String {
    let bytes = match String::from_utf8(bytes) {
        Ok(text) if !text.chars().any(|letter| stands_for_byte(letter).is_some()) => return text,
        Ok(text) => text.into_bytes(),
        Err(error) => error.into_bytes(),
    };
    let mut text = String::with_capacity(bytes.len());
    let of = |byte: &u8| char::from_u32(BYTES + u32::from(*byte).saturating_sub(0x80));
    for chunk in bytes.utf8_chunks() {
        for letter in chunk.valid().chars() {
            match stands_for_byte(letter) {
                Some(_) => text.extend(letter.encode_utf8(&mut [0; 4]).as_bytes().iter().filter_map(of)),
                None => text.push(letter),
            }
        }
        text.extend(chunk.invalid().iter().filter_map(of));
    }
    text
}

/// Bytes of text that [`text_of`] has made.
pub fn bytes_of(text: &str) -> Cow<'_, [u8]> {
    if !text.chars().any(|letter| stands_for_byte(letter).is_some()) {
        return Cow::Borrowed(text.as_bytes());
    }
    let mut bytes = Vec::with_capacity(text.len());
    for letter in text.chars() {
        match stands_for_byte(letter) {
            Some(byte) => bytes.push(byte),
            None => bytes.extend_from_slice(letter.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
    Cow::Owned(bytes)
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
    // Behind another letter, so that a standalone accent is not taken for one at the beginning.
    let mut two = [b'a'; 5];
    let len = letter.encode_utf8(&mut two[1..]).len();
    std::str::from_utf8(&two[..=len]).is_ok_and(|two| two.escape_debug().nth(1) == Some(letter))
}

#[cfg(test)]
mod tests;
