//! The smallest 32-bit program: one page, one or two system calls, no libraries.

use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::process::{Child, Command};

/// `exit(0)` in the 32-bit way.
pub(crate) const EXIT_0: &[u8] = &[0xb8, 1, 0, 0, 0, 0x31, 0xdb, 0xcd, 0x80];

/// `pause()`, for ever.
pub(crate) const PAUSE: &[u8] = &[0xb8, 29, 0, 0, 0, 0xcd, 0x80, 0xeb, 0xf7];

const BASE: u32 = 0x0804_8000;
const HEADERS: u32 = 52 + 32;

/// Starts a program of these instructions. Its file is gone by the time this returns.
pub(crate) fn run(code: &[u8]) -> io::Result<Child> {
    let path = std::env::temp_dir().join(format!("masu-live-elf32-{}", std::process::id()));
    {
        let mut file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o700).open(&path)?;
        io::Write::write_all(&mut file, &program(code))?;
    }
    let child = Command::new(&path).spawn();
    std::fs::remove_file(&path)?;
    child
}

/// An ELF file: header, one program header, code. All of it is mapped, readable and executable.
fn program(code: &[u8]) -> Vec<u8> {
    let length = HEADERS + u32::try_from(code.len()).expect("code is some bytes long");
    let mut file = vec![0x7f, b'E', b'L', b'F', 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let half = |file: &mut Vec<u8>, number: u16| file.extend_from_slice(&number.to_le_bytes());
    let word = |file: &mut Vec<u8>, number: u32| file.extend_from_slice(&number.to_le_bytes());
    half(&mut file, 2); // ET_EXEC
    half(&mut file, 3); // EM_386
    word(&mut file, 1);
    word(&mut file, BASE + HEADERS); // entry
    word(&mut file, 52); // program headers
    word(&mut file, 0); // no sections
    word(&mut file, 0);
    for number in [52, 32, 1, 0, 0, 0] {
        half(&mut file, number);
    }
    for number in [1, 0, BASE, BASE, length, length, 5, 0x1000] {
        word(&mut file, number); // PT_LOAD, all of the file, r-x
    }
    file.extend_from_slice(code);
    file
}
