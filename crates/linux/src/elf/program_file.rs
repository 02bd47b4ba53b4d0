//! Start properties of a program's file, before it is run: ELF or script, loader, privileges.
//!
//! The address width of a running process is in `auxv.rs`.
//!
//! Cost: a few reads of the file. Side effects: none. Opening a file of a server waits for the server.
//!
//! Since: always.
//!
//! Truth: execve(2), elf(5), ld.so(8) on secure-execution mode, capabilities(7); go.dev/src/debug/buildinfo for Go.

use std::ffi::OsString;
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use object::read::elf::{Dyn, FileHeader, ProgramHeader, SectionHeader};
use object::{Endianness, ReadCache, elf};

use crate::auxv::WordSize;
use crate::{Error, error, named_file};

/// Format of a program's file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Format {
    /// ELF file.
    Elf(Elf),
    /// Script: `#!` and an interpreter.
    Script {
        /// Program that is run in the script's place.
        interpreter: PathBuf,
    },
    /// Any other file: left to the kernel (binfmt_misc) or to a shell.
    Other,
}

/// Properties of an ELF file that decide its start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Elf {
    /// Width of its addresses.
    pub word_size: WordSize,
    /// True if built for this machine's kind of processor.
    pub native: bool,
    /// Dynamic loader; `None` for a statically linked program.
    pub loader: Option<PathBuf>,
    /// Needed libraries, in the order of the dynamic section.
    pub needs: Vec<OsString>,
    /// True if built by Go's tools, whose runtime asks the kernel for memory without any library.
    pub go: bool,
}

/// Privileges that a start would give. The loader then ignores libraries named in the environment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Privileged {
    /// Set-user-ID or set-group-ID bit, of another user or group.
    SetId,
    /// File capabilities.
    Capabilities,
}

/// Reads the format of a program's file.
///
/// # Errors
/// `Denied` if it cannot be read (a program may be executable but not readable), `Malformed` for a torn ELF file.
pub fn inspect(path: &Path) -> Result<Format, Error> {
    let object = path.display().to_string();
    let failed = |error: std::io::Error| Error::of_host("read", &object, error::errno(error));
    let mut file = match named_file::open(path) {
        // The kernel starts no pipe, device or directory.
        Err(error) if error.kind() == ErrorKind::InvalidInput => return Ok(Format::Other),
        opened => opened.map_err(failed)?,
    };
    let mut head = Vec::new();
    file.by_ref().take(256).read_to_end(&mut head).map_err(failed)?;
    if let Some(line) = head.strip_prefix(b"#!") {
        return Ok(interpreter_of(line).map_or(Format::Other, |interpreter| Format::Script { interpreter }));
    }
    if !head.starts_with(b"\x7fELF") {
        return Ok(Format::Other);
    }
    let cache = ReadCache::new(file);
    let elf = match head.get(4) {
        Some(1) => inspect_elf::<elf::FileHeader32<Endianness>>(&cache, WordSize::Bits32),
        _ => inspect_elf::<elf::FileHeader64<Endianness>>(&cache, WordSize::Bits64),
    };
    elf.map(Format::Elf).map_err(|error| Error::malformed(&object, error))
}

fn inspect_elf<Header: FileHeader<Endian = Endianness>>(
    data: &ReadCache<File>,
    word_size: WordSize,
) -> Result<Elf, object::Error> {
    let header = Header::parse(data)?;
    let endian = header.endian()?;
    let mut loader = None;
    for part in header.program_headers(endian, data)? {
        if let Some(name) = part.interpreter(endian, data)? {
            loader = Some(PathBuf::from(OsString::from_vec(name.to_vec())));
        }
    }
    // A file may have no sections (sstrip). Go programs are then not recognised.
    let go = header.sections(endian, data).is_ok_and(|sections| {
        sections.iter().any(|section| {
            let name = sections.section_name(endian, section).unwrap_or_default();
            section.sh_size(endian).into() > 0 && matches!(name, b".go.buildinfo" | b".note.go.buildid" | b".gopclntab")
        })
    });
    let needs = needed(header, endian, data)?;
    let machine = if cfg!(target_arch = "x86_64") { elf::EM_X86_64 } else { elf::EM_AARCH64 };
    Ok(Elf { word_size, native: header.e_machine(endian) == machine, loader, needs, go })
}

/// Names of the libraries in the dynamic section.
fn needed<Header: FileHeader<Endian = Endianness>>(
    header: &Header,
    endian: Endianness,
    data: &ReadCache<File>,
) -> Result<Vec<OsString>, object::Error> {
    let sections = header.sections(endian, data)?;
    let Some((entries, link)) = sections.dynamic(endian, data)? else { return Ok(Vec::new()) };
    let names = sections.strings(endian, data, link)?;
    let needed = entries.iter().filter(|entry| entry.d_tag(endian).into() == u64::from(elf::DT_NEEDED));
    needed.map(|entry| entry.string(endian, names).map(|name| OsString::from_vec(name.to_vec()))).collect()
}

/// First word of a script's first line.
fn interpreter_of(line: &[u8]) -> Option<PathBuf> {
    let line = line.split(|byte| *byte == b'\n').next()?.trim_ascii();
    let word = line.split(|byte| byte.is_ascii_whitespace()).next().filter(|word| !word.is_empty())?;
    Some(PathBuf::from(OsString::from_vec(word.to_vec())))
}

/// Privileges that this process would gain by starting the file; `None` for none.
///
/// # Errors
/// `Denied` or `Gone`-like answers of the file system.
pub fn privileged(path: &Path) -> Result<Option<Privileged>, Error> {
    let object = path.display().to_string();
    let failed = |error: std::io::Error| Error::of_host("stat", &object, error::errno(error));
    let meta = std::fs::metadata(path).map_err(failed)?;
    let (user, group) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    const SET_USER: u32 = 0o4000;
    const SET_GROUP_AND_RUN: u32 = 0o2010; // without the execute bit: mandatory locking
    let set_user = meta.mode() & SET_USER != 0 && meta.uid() != user;
    let set_group = meta.mode() & SET_GROUP_AND_RUN == SET_GROUP_AND_RUN && meta.gid() != group;
    if set_user || set_group {
        return Ok(Some(Privileged::SetId));
    }
    let has_capabilities = rustix::fs::getxattr(path, "security.capability", &mut [0u8; 64]).is_ok();
    // Root gains nothing by file capabilities, so the loader trusts the environment.
    Ok((has_capabilities && user != 0).then_some(Privileged::Capabilities))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn this_test_is_a_program_with_a_loader() {
        let own = std::env::current_exe().unwrap();
        let Format::Elf(elf) = inspect(&own).unwrap() else { panic!("a program") };
        assert_eq!((elf.word_size, elf.native, elf.go), (WordSize::Bits64, true, false));
        assert!(elf.needs.iter().any(|library| library == "libc.so.6"), "{:?}", elf.needs);
        assert!(elf.loader.is_some_and(|loader| loader.to_string_lossy().contains("ld-")));
    }

    #[test]
    fn a_script_names_what_runs_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("script");
        for (text, interpreter) in [("#!/bin/sh\necho", "/bin/sh"), ("#! /usr/bin/env python3 -u\n", "/usr/bin/env")] {
            std::fs::write(&path, text).unwrap();
            assert_eq!(inspect(&path), Ok(Format::Script { interpreter: interpreter.into() }));
        }
        for other in ["#!\n", "echo", ""] {
            std::fs::write(&path, other).unwrap();
            assert_eq!(inspect(&path), Ok(Format::Other), "{other:?}");
        }
    }

    #[test]
    fn a_torn_program_is_malformed_and_a_missing_one_is_said_to_be_missing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("torn");
        std::fs::write(&path, b"\x7fELF\x02\x01\x01").unwrap();
        assert!(matches!(inspect(&path), Err(Error::Malformed { .. })));
        assert!(inspect(&folder.path().join("nothing")).is_err());
    }

    #[test]
    fn a_set_uid_file_of_somebody_else_is_privileged_and_ours_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("program");
        std::fs::write(&path, "").unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o4755)).unwrap();
        assert_eq!(privileged(&path), Ok(None), "it gives what we have");
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&path, Some(65534), Some(65534)).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o4755)).unwrap();
            assert_eq!(privileged(&path), Ok(Some(Privileged::SetId)));
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o2755)).unwrap();
            assert_eq!(privileged(&path), Ok(Some(Privileged::SetId)));
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o2744)).unwrap();
            assert_eq!(privileged(&path), Ok(None), "mandatory locking");
        }
    }
}
