//! `/proc/PID/auxv`: the kernel's start data for a program; masu reads the address width from it.
//!
//! The program's file has the width too, but may lie on a server that does not answer (FUSE, NFS): opening
//! `/proc/PID/exe` then waits in the kernel, also against SIGKILL. The kernel keeps this vector itself: no file, no
//! lock and no memory of the process is touched. The properties of a file before its run are in `program_file.rs`.
//!
//! Cost: one open and a read of some 400 bytes. Side effect: none. A process can replace the vector (prctl(2),
//! `PR_SET_MM_MAP`), so the width is a hint, and no safety may depend on it.
//! Since: always; needs ptrace access (PTRACE_MODE_READ).
//! Truth: proc_pid_auxv(5), getauxval(3); `auxv_read` in fs/proc/base.c.

use crate::{Error, Pid, proxy};

/// Width of a program's addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WordSize {
    /// 32-bit program on a 64-bit kernel.
    Bits32,
    /// 64-bit program.
    Bits64,
}

/// `AT_PHENT`: size of a program header, 32 bytes in a 32-bit file and 56 in a 64-bit one.
const AT_PHENT: u64 = 4;

/// `AT_SECURE`: the file of the program gave it a user, a group or capabilities.
const AT_SECURE: u64 = 23;

/// Whether this process has privileges of its file, which the programs that it starts do not have. True also where the
/// vector cannot be read, which is so for some of these processes.
pub fn has_privileges_of_file(files: &impl crate::KernelFiles) -> bool {
    let pairs = files.bytes("proc/self/auxv").ok();
    pairs.is_none_or(|bytes| wide(&bytes).any(|(kind, value)| kind == AT_SECURE && value != 0))
}

/// Reads the width of a program's addresses.
///
/// # Errors
/// `Gone`, `Denied`, or `Malformed` if there is no such vector (a kernel thread, an ended process).
pub fn word_size(pid: Pid) -> Result<WordSize, Error> {
    let path = format!("/{}", pid.file("auxv"));
    let bytes = proxy::read(pid, &path).map_err(|errno| Error::of_process("read", &path, errno))?;
    decode(&bytes).ok_or_else(|| Error::malformed(&path, "no size of a program header"))
}

/// Decodes pairs of a type and a value, each one word of the program.
fn decode(bytes: &[u8]) -> Option<WordSize> {
    let narrow = bytes.as_chunks::<8>().0.iter().map(|pair| {
        let (words, _) = pair.as_chunks::<4>();
        (u32::from_ne_bytes(words[0]).into(), u32::from_ne_bytes(words[1]).into())
    });
    if header_bytes(wide(bytes)) == Some(56) {
        return Some(WordSize::Bits64);
    }
    (header_bytes(narrow) == Some(32)).then_some(WordSize::Bits32)
}

/// Pairs of a 64-bit program.
fn wide(bytes: &[u8]) -> impl Iterator<Item = (u64, u64)> {
    bytes.as_chunks::<16>().0.iter().map(|pair| {
        let (words, _) = pair.as_chunks::<8>();
        (u64::from_ne_bytes(words[0]), u64::from_ne_bytes(words[1]))
    })
}

fn header_bytes(mut pairs: impl Iterator<Item = (u64, u64)>) -> Option<u64> {
    pairs.find_map(|(kind, value)| (kind == AT_PHENT).then_some(value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn privileges_of_the_file_are_in_the_vector_or_hide_it() {
        let vector =
            |secure: u64| [[4, 56], [AT_SECURE, secure], [0, 0]].concat().into_iter().flat_map(u64::to_ne_bytes);
        let kernel = |secure| {
            crate::fake::FakeKernel::new().file_of_bytes("proc/self/auxv", &vector(secure).collect::<Vec<_>>())
        };
        assert!(!has_privileges_of_file(&kernel(0)));
        assert!(has_privileges_of_file(&kernel(1)));
        assert!(has_privileges_of_file(&crate::fake::FakeKernel::new()));
    }

    #[test]
    fn the_width_is_that_of_the_words_in_which_a_program_header_has_its_size() {
        let of_64_bits = [33u64, 0x7ffd_0000_0000, 3, 0x40_0040, 4, 56, 0, 0].map(u64::to_ne_bytes);
        assert_eq!(decode(of_64_bits.as_flattened()), Some(WordSize::Bits64));
        let of_32_bits = [32u32, 0xf7f0_0000, 33, 0xf7f0_1000, 3, 0x0804_8034, 4, 32, 0, 0].map(u32::to_ne_bytes);
        assert_eq!(decode(of_32_bits.as_flattened()), Some(WordSize::Bits32));
    }

    #[test]
    fn a_vector_that_says_nothing_or_nonsense_has_no_width() {
        for words in [vec![], vec![0], vec![4], vec![4, 57], vec![6, 4096, 0, 0]] {
            let bytes: Vec<u8> = words.iter().flat_map(|word: &u64| word.to_ne_bytes()).collect();
            assert_eq!(decode(&bytes), None, "{words:?}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
            decode(&bytes);
        }
    }

    #[test]
    fn this_test_is_a_64_bit_program() {
        assert_eq!(word_size(Pid::own()), Ok(WordSize::Bits64));
    }
}
