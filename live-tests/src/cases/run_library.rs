//! The preloaded library: its dependencies, its exported symbols, and its size.

use object::elf::FileHeader64;
use object::read::elf::{FileHeader, Sym};
use object::{Endianness, elf};

use super::Outcome;
use super::programs;
use super::run::Result;
use crate::host::{Host, LiveTest, tests};

/// Tests of this file, and their requirements.
pub(crate) const TESTS: &[LiveTest] = tests! {
    run_library requires [PreloadLibrary];
    it_needs_little_and_shows_only_its_hooks;
};

/// System calls, errno, names of functions, a clock, a thread's address, and four pieces of moving memory: nothing that allocates, locks or prints.
const IMPORTS: [&str; 10] = [
    "__errno_location",
    "bcmp",
    "clock_gettime",
    "dl_iterate_phdr",
    "dlsym",
    "memcmp",
    "memcpy",
    "memmove",
    "memset",
    "pthread_self",
];

/// Symbols that the compiler itself requests, where it does not inline them.
const ALSO: [&str; 2] = ["strlen", "syscall"];

const HOOKS: [&str; 18] = [
    "brk",
    "execl",
    "execle",
    "execlp",
    "execv",
    "execve",
    "execvp",
    "execvpe",
    "fexecve",
    "mmap",
    "mmap64",
    "mremap",
    "posix_spawn",
    "posix_spawnp",
    "prctl",
    "pthread_create",
    "sbrk",
    "syscall",
];

/// Names of imported symbols, and of exported ones.
fn symbols() -> Result<(Vec<String>, Vec<String>)> {
    let file = std::fs::read(programs::preload_library().ok_or("no library")?)?;
    assert!(file.len() < 200 << 10, "{} bytes", file.len());
    let header = FileHeader64::<Endianness>::parse(&*file)?;
    let endian = header.endian()?;
    let sections = header.sections(endian, &*file)?;
    let table = sections.symbols(endian, &*file, elf::SHT_DYNSYM)?;
    let (mut wanted, mut shown) = (Vec::new(), Vec::new());
    for symbol in table.iter() {
        let name = String::from_utf8(symbol.name(endian, table.strings())?.to_vec())?;
        match symbol.is_undefined(endian) {
            _ if name.is_empty() => {}
            true => wanted.push(name),
            false => shown.push(name),
        }
    }
    shown.sort();
    Ok((wanted, shown))
}

/// A longer list is a decision, and no accident.
fn it_needs_little_and_shows_only_its_hooks(_: &Host) -> Outcome {
    let (wanted, shown) = symbols()?;
    let strange: Vec<_> =
        wanted.iter().filter(|name| !IMPORTS.iter().chain(&ALSO).any(|known| known == name)).collect();
    assert!(strange.is_empty(), "{strange:?}");
    assert_eq!(shown, HOOKS);
    Ok(())
}
