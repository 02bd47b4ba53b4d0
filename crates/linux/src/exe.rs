//! `/proc/PID/exe`: the program that a process runs.
//!
//! Cost: one open and a read of five bytes. Side effect: none.
//! Since: always; needs ptrace access (PTRACE_MODE_READ).
//! Truth: proc_pid_exe(5), elf(5).

use std::fs::File;
use std::io::Read;

use crate::{Error, Pid, files};

/// How wide the program's addresses are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WordSize {
    /// A 32-bit program on a 64-bit kernel.
    Bits32,
    /// A 64-bit program.
    Bits64,
}

/// Reads the class from the head of the program's file.
///
/// # Errors
/// `Gone`, `Denied`, or `Malformed` when the file is not ELF.
pub fn word_size(pid: Pid) -> Result<WordSize, Error> {
    let path = format!("/{}", pid.file("exe"));
    let failed = |e| Error::of_process("read", &path, files::errno(e));
    let mut head = [0; 5];
    File::open(&path).map_err(failed)?.read_exact(&mut head).map_err(failed)?;
    decode(head).ok_or_else(|| Error::malformed(&path, "no ELF header"))
}

fn decode(head: [u8; 5]) -> Option<WordSize> {
    match head {
        [0x7f, b'E', b'L', b'F', 1] => Some(WordSize::Bits32),
        [0x7f, b'E', b'L', b'F', 2] => Some(WordSize::Bits64),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_class_stands_in_the_fifth_byte() {
        assert_eq!(decode(*b"\x7fELF\x01"), Some(WordSize::Bits32));
        assert_eq!(decode(*b"\x7fELF\x02"), Some(WordSize::Bits64));
        assert_eq!(decode(*b"#!/bi"), None);
    }

    #[test]
    fn this_test_is_a_64_bit_program() {
        assert_eq!(word_size(Pid::own()), Ok(WordSize::Bits64));
    }
}
