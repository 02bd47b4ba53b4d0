//! Walk from the arguments of a call to its buffers, as a row of the table describes it.
//!
//! All memory that is read here belongs to the program and may hold nonsense: addresses that lead nowhere, counts of
//! billions. So each loop has the kernel's bound, and each sum is clamped.

use super::{Access, Buffer, Call, Memory, USER_END, USER_START, Until};

/// Most bytes that the kernel moves in one read or write (`MAX_RW_COUNT`).
const TRANSFER_BYTES_MAX: u64 = 0x7fff_f000;
/// The longest path, with its end (`PATH_MAX`).
pub(super) const PATH_BYTES: u64 = 4096;
/// The longest argument of execve (`MAX_ARG_STRLEN`).
const ARGUMENT_BYTES_MAX: u64 = 128 << 10;
/// All arguments of execve together, with their pointers: three quarters of the largest stack that the kernel counts.
const ARGUMENTS_BYTES_MAX: u64 = 6 << 20;
/// More vectors in one call are refused (`UIO_MAXIOV`).
pub(super) const VECTORS_MAX: u64 = 1024;
/// A socket's address is at most this long (`sockaddr_storage`).
const SOCKET_ADDRESS_BYTES_MAX: u64 = 128;

/// Source of a number of bytes or elements.
#[derive(Clone, Copy)]
pub(super) enum Count {
    /// An argument that the kernel takes as 64 bits.
    Long(usize),
    /// An argument that the kernel takes as an int; a negative one is an error.
    Int(usize),
}

/// Part of a row: memory that an argument points to.
#[derive(Clone, Copy)]
pub(super) enum Part {
    /// A struct.
    Fixed { argument: usize, bytes: u64, access: Access },
    /// Struct that the kernel uses after the call, too.
    Kept { argument: usize, bytes: u64 },
    /// `count` elements of `each` bytes.
    Array { argument: usize, count: Count, each: u64, access: Access },
    /// One bit for each of `count`, in whole words.
    Bits { argument: usize, count: Count, access: Access },
    /// String of at most `bytes_max` bytes with its end.
    Text { argument: usize, bytes_max: u64 },
    /// A null-terminated array of strings.
    Texts { argument: usize },
    /// Written memory. Its length is in memory, too, behind another argument, and is replaced.
    Measured { argument: usize, length: usize, bytes_max: u64 },
    /// An array of `iovec`.
    Vectors { argument: usize, count: usize, access: Access },
    /// A `msghdr`.
    Message { argument: usize, access: Access },
    /// Array of `count` `mmsghdr`s.
    Messages { argument: usize, count: usize, access: Access },
    /// Struct whose first bytes carry its size; `otherwise` if they do not.
    Sized { argument: usize, at: u64, otherwise: u64 },
    /// Code of its own.
    Own(fn(&mut Walk<'_>)),
}

/// One call during its walk.
pub(super) struct Walk<'a> {
    pub(super) call: Call,
    memory: &'a dyn Memory,
    each: &'a mut dyn FnMut(Buffer),
}

impl<'a> Walk<'a> {
    pub(super) fn new(call: Call, memory: &'a dyn Memory, each: &'a mut dyn FnMut(Buffer)) -> Self {
        Walk { call, memory, each }
    }

    pub(super) fn argument(&self, argument: usize) -> u64 {
        self.call.arguments[argument]
    }

    pub(super) fn int(&self, argument: usize) -> u32 {
        self.call.int(argument)
    }

    pub(super) fn is_own_process(&self, pid: u32) -> bool {
        self.memory.is_own_process(pid)
    }

    fn give(&mut self, start: u64, bytes: u64, access: Access, until: Until) {
        if !(USER_START..USER_END).contains(&start) || bytes == 0 {
            return;
        }
        let bytes = bytes.min(USER_END - start);
        (self.each)(Buffer { start, bytes, access, until });
    }

    pub(super) fn touches(&mut self, start: u64, bytes: u64, access: Access) {
        self.give(start, bytes, access, Until::Return);
    }

    pub(super) fn reads(&mut self, start: u64, bytes: u64) {
        self.touches(start, bytes, Access::Read);
    }

    pub(super) fn writes(&mut self, start: u64, bytes: u64) {
        self.touches(start, bytes, Access::Write);
    }

    /// Memory that the kernel touches after the call, too. It may write all of it.
    pub(super) fn keeps(&mut self, start: u64, bytes: u64) {
        self.give(start, bytes, Access::Write, Until::Replaced);
    }

    /// The eight bytes at any address.
    pub(super) fn word(&self, address: u64) -> Option<u64> {
        if !(USER_START..USER_END - 16).contains(&address) {
            return None;
        }
        let (aligned, shift) = (address & !7, (address & 7) * 8);
        let low = self.memory.word(aligned)?;
        if shift == 0 {
            return Some(low);
        }
        let high = self.memory.word(aligned + 8)?;
        Some(low >> shift | high << (64 - shift))
    }

    /// The four bytes at any address.
    pub(super) fn half(&self, address: u64) -> Option<u32> {
        if !(USER_START..USER_END - 16).contains(&address) {
            return None;
        }
        let value =
            if address & 7 <= 4 { self.memory.word(address & !7)? >> ((address & 7) * 8) } else { self.word(address)? };
        Some((value & 0xffff_ffff) as u32)
    }

    fn count(&self, count: Count) -> u64 {
        match count {
            Count::Long(argument) => self.argument(argument),
            Count::Int(argument) if self.int(argument) <= i32::MAX as u32 => u64::from(self.int(argument)),
            Count::Int(_) => 0,
        }
    }

    pub(super) fn part(&mut self, part: Part) {
        match part {
            Part::Fixed { argument, bytes, access } => self.touches(self.argument(argument), bytes, access),
            Part::Kept { argument, bytes } => self.keeps(self.argument(argument), bytes),
            Part::Array { argument, count, each, access } => {
                let bytes = self.count(count).saturating_mul(each).min(TRANSFER_BYTES_MAX);
                self.touches(self.argument(argument), bytes, access);
            }
            Part::Bits { argument, count, access } => {
                let bytes = self.count(count).div_ceil(64).saturating_mul(8).min(TRANSFER_BYTES_MAX);
                self.touches(self.argument(argument), bytes, access);
            }
            Part::Text { argument, bytes_max } => {
                self.text(self.argument(argument), bytes_max);
            }
            Part::Texts { argument } => self.texts(self.argument(argument)),
            Part::Measured { argument, length, bytes_max } => {
                self.measured(self.argument(argument), self.argument(length), bytes_max);
            }
            Part::Vectors { argument, count, access } => {
                self.vectors(self.argument(argument), self.argument(count), access);
            }
            Part::Message { argument, access } => {
                // recvmsg writes the lengths and flags back.
                self.touches(self.argument(argument), 56, access);
                self.message(self.argument(argument), access);
            }
            Part::Messages { argument, count, access } => {
                self.messages(self.argument(argument), u64::from(self.int(count)), access);
            }
            Part::Sized { argument, at, otherwise } => {
                let start = self.argument(argument);
                let bytes = start.checked_add(at).and_then(|address| self.half(address)).map_or(0, u64::from);
                // For a size that the kernel rejects it writes the right one back.
                self.writes(start, bytes.clamp(otherwise, PATH_BYTES));
            }
            Part::Own(code) => code(self),
        }
    }

    /// Names a string with its end; returns its bytes. Read by aligned words, so a page is read only if a byte of it
    /// belongs to the string or to its last word, which lies in the same page.
    pub(super) fn text(&mut self, start: u64, bytes_max: u64) -> u64 {
        if !(USER_START..USER_END).contains(&start) {
            return 0;
        }
        let (mut address, mut skip) = (start & !7, (start & 7) * 8);
        let mut bytes = 0;
        while bytes < bytes_max && address < USER_END {
            let Some(word) = self.memory.word(address) else { break };
            let here = (64 - skip) / 8;
            match zero_byte(word >> skip, here) {
                Some(zero) => {
                    bytes += zero + 1;
                    break;
                }
                None => bytes += here,
            }
            (address, skip) = (address + 8, 0);
        }
        let bytes = bytes.min(bytes_max);
        self.reads(start, bytes);
        bytes
    }

    fn texts(&mut self, start: u64) {
        let mut room = ARGUMENTS_BYTES_MAX;
        let mut address = start;
        loop {
            // Named before it is read: of a string in two pages the second may be missing.
            self.reads(address, 8);
            let Some(text) = self.word(address).filter(|text| *text != 0) else { break };
            let bytes = 8 + self.text(text, ARGUMENT_BYTES_MAX);
            if bytes > room {
                break;
            }
            (room, address) = (room - bytes, address.saturating_add(8));
        }
    }

    fn measured(&mut self, start: u64, length: u64, bytes_max: u64) {
        self.writes(length, 4);
        if let Some(bytes) = self.half(length)
            && bytes <= i32::MAX as u32
        {
            self.writes(start, u64::from(bytes).min(bytes_max));
        }
    }

    pub(super) fn vectors(&mut self, start: u64, count: u64, access: Access) {
        if count > VECTORS_MAX || start >= USER_END {
            return;
        }
        self.reads(start, count * 16);
        let mut room = TRANSFER_BYTES_MAX;
        for vector in 0..count {
            let at = start + vector * 16;
            let (Some(base), Some(bytes)) = (self.word(at), self.word(at + 8)) else { return };
            self.touches(base, bytes.min(room), access);
            room -= bytes.min(room);
        }
    }

    /// Buffers of a `msghdr`; `access` applies to the data.
    fn message(&mut self, start: u64, access: Access) {
        if start == 0 || start >= USER_END - 4096 {
            return;
        }
        if let (Some(name), Some(bytes)) = (self.word(start), self.half(start + 8)) {
            self.touches(name, u64::from(bytes).min(SOCKET_ADDRESS_BYTES_MAX), access);
        }
        if let (Some(vectors), Some(count)) = (self.word(start + 16), self.word(start + 24)) {
            self.vectors(vectors, count, access);
        }
        if let (Some(control), Some(bytes)) = (self.word(start + 32), self.word(start + 40)) {
            self.touches(control, bytes.min(TRANSFER_BYTES_MAX), access);
        }
    }

    fn messages(&mut self, start: u64, count: u64, access: Access) {
        if start == 0 || start >= USER_END - (1 << 20) {
            return;
        }
        // More are no error: the kernel takes the first 1024. The number of bytes moved is written into each.
        let count = count.min(VECTORS_MAX);
        self.writes(start, count * 64);
        for message in 0..count {
            let at = start + message * 64;
            if self.word(at).is_none() {
                return;
            }
            self.message(at, access);
        }
    }
}

/// The first zero byte among the lowest `bytes` of a word.
fn zero_byte(word: u64, bytes: u64) -> Option<u64> {
    (0..bytes).find(|byte| word >> (byte * 8) & 0xff == 0)
}

#[cfg(test)]
mod tests {
    use super::zero_byte;

    #[test]
    fn the_first_zero_byte_counts_from_below() {
        assert_eq!(zero_byte(u64::from_le_bytes(*b"abc\0def\0"), 8), Some(3));
        assert_eq!(zero_byte(u64::from_le_bytes(*b"abcdefg\0"), 7), None);
        assert_eq!(zero_byte(u64::from_le_bytes(*b"abcdefgh"), 8), None);
        assert_eq!(zero_byte(0, 0), None);
    }
}
