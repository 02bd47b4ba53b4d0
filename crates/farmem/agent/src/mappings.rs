//! Mappings at the start of the library, from /proc/self/maps.

use crate::kernel::{call, size};

/// A mapping.
#[derive(Clone, Copy)]
pub struct Mapping {
    pub start: u64,
    pub end: u64,
    pub readable: bool,
    pub writable: bool,
    pub executable: bool,
    pub private: bool,
    /// Whether the mapping has a file.
    pub file: bool,
    /// Whether the mapping is `[heap]`.
    pub heap: bool,
    /// Whether the mapping has any other name in brackets.
    pub special: bool,
    /// Whether the mapping is a pager's shared segment.
    pub segment: bool,
}

/// Calls `each` for every mapping of this process, in the order of addresses. False when they cannot be read.
pub fn each(each: impl FnMut(Mapping)) -> bool {
    each_in(OWN, each)
}

/// Name of the file of this process, with a zero at its end.
pub const OWN: &[u8] = c"/proc/self/maps".to_bytes_with_nul();

/// Opens a file of mappings; a negative errno on failure.
pub fn open(path: &[u8]) -> i64 {
    // SAFETY: opens a file to be read.
    unsafe { call!(libc::SYS_open, path.as_ptr().expose_provenance(), libc::O_RDONLY | libc::O_CLOEXEC, 0) }
}

/// The same for the file with this name, which ends with a zero.
pub fn each_in(path: &[u8], mut each: impl FnMut(Mapping)) -> bool {
    let fd = open(path);
    if fd < 0 {
        return false;
    }
    let (mut text, mut length) = ([0_u8; 8192], 0);
    let all = loop {
        let room = text.len() - length;
        // SAFETY: writes our own buffer.
        let got = unsafe { call!(libc::SYS_read, fd, text.as_mut_ptr().expose_provenance() + length, room) };
        if got <= 0 {
            break got == 0;
        }
        length += size(got.cast_unsigned());
        let mut from = 0;
        while let Some(end) = text[from..length].iter().position(|byte| *byte == b'\n') {
            if let Some(mapping) = parse(&text[from..from + end]) {
                each(mapping);
            }
            from += end + 1;
        }
        text.copy_within(from..length, 0);
        length -= from;
        if length == text.len() {
            // A line that does not fit: its end does not matter.
            length = 0;
        }
    };
    // SAFETY: our own.
    unsafe { call!(libc::SYS_close, fd) };
    all
}

/// `start-end rwxp offset device inode   name`.
fn parse(line: &[u8]) -> Option<Mapping> {
    let mut words = line.split(|byte| *byte == b' ').filter(|word| !word.is_empty());
    let range = words.next()?;
    let dash = range.iter().position(|byte| *byte == b'-')?;
    let (start, end) = (hexadecimal(&range[..dash])?, hexadecimal(&range[dash + 1..])?);
    let &[r, w, x, p, ..] = words.next()? else { return None };
    let (_offset, _device, inode) = (words.next()?, words.next()?, words.next()?);
    let name = words.next().unwrap_or_default();
    Some(Mapping {
        start,
        end,
        readable: r == b'r',
        writable: w == b'w',
        executable: x == b'x',
        private: p == b'p',
        file: inode != b"0",
        heap: name == b"[heap]",
        special: name.starts_with(b"[") && name != b"[heap]",
        segment: name.starts_with(b"/memfd:masu-segment"),
    })
}

fn hexadecimal(digits: &[u8]) -> Option<u64> {
    digits
        .iter()
        .try_fold(0_u64, |number, digit| Some(number.checked_mul(16)? + u64::from(char::from(*digit).to_digit(16)?)))
}
