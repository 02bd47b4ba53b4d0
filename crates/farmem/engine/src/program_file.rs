//! Program files that the agent can page: judged by the ELF header, the loader and the notes. Pure.
//!
//! The same judgement serves the first program (masu reads the file before it starts it), a program at its own start
//! (the agent reads `/proc/self/exe`), and a program that a served one is about to become by exec.
//!
//! The file is hostile: any offset and count may stand there. Each read is bounded, and each loop has a limit.
//!
//! Truth: elf(5), gABI chapters 4 and 5; go.dev/src/debug/buildinfo and cmd/link for Go.

use crate::left_out::LeftOut;

/// A file to be judged.
pub trait Source {
    /// Reads the bytes from `offset` on, as many as `to` has. False at the end of the file, or for any failure.
    fn read(&self, offset: u64, to: &mut [u8]) -> bool;
}

/// Longest path of a script's interpreter, as the kernel's `BINPRM_BUF_SIZE`.
const LINE_BYTES: usize = 256;

/// Path of a script's interpreter, with a zero behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interpreter {
    path: [u8; LINE_BYTES],
    bytes: usize,
}

impl Interpreter {
    /// Path without the zero.
    pub fn path(&self) -> &[u8] {
        &self.path[..self.bytes]
    }

    /// Path with the zero.
    pub fn with_zero(&self) -> &[u8] {
        &self.path[..=self.bytes]
    }
}

/// Judgement of a file.
#[expect(clippy::large_enum_variant, reason = "nothing here allocates, and a judgement is kept nowhere")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Judged {
    /// The system's loader starts it, and loads the agent.
    Paged,
    /// It runs unserved. Without `loads`, no loader loads the agent into it.
    LeftOut {
        /// Reason.
        reason: LeftOut,
        /// Whether the system's loader starts it.
        loads: bool,
    },
    /// Its interpreter is judged in its place.
    Script(Interpreter),
    /// No ELF file and no script, or torn: left to the kernel.
    Unknown,
}

/// Scripts whose interpreters are scripts, as many as the kernel follows.
pub const SCRIPTS_MAX: u32 = 5;

const PT_INTERP: u32 = 3;
const PT_NOTE: u32 = 4;
const PROGRAM_HEADER: usize = 56;
const SECTION_HEADER: usize = 64;
const PROGRAM_HEADERS_MAX: u64 = 64;
const SECTION_HEADERS_MAX: u64 = 512;
/// Notes of a program are short: a build-id, properties, the build-id of Go.
const NOTE_BYTES: usize = 512;

const LOADER: &[u8] = b"/lib64/ld-linux-x86-64.so.2\0";
const GO_SECTIONS: [&[u8]; 3] = [b".go.buildinfo\0", b".note.go.buildid\0", b".gopclntab\0"];

/// Judges a file.
pub fn judge(file: &impl Source) -> Judged {
    let mut head = [0; LINE_BYTES];
    // A file may be shorter than the line, not than its first two bytes.
    let mut start = [0; 2];
    if !file.read(0, &mut start) {
        return Judged::Unknown;
    }
    if start == *b"#!" {
        read_what_is_there(file, &mut head);
        return interpreter_of(&head[2..]).map_or(Judged::Unknown, Judged::Script);
    }
    let mut header = [0; 64];
    if !file.read(0, &mut header) || !header.starts_with(b"\x7fELF") {
        return Judged::Unknown;
    }
    match (header[4], u16_at(&header, 18)) {
        (2, 62) if header[5] == 1 => judge_elf(file, &header),
        (1, 3 | 62) => not_loaded(LeftOut::Bits32),
        _ => not_loaded(LeftOut::OtherProcessor),
    }
}

const fn not_loaded(reason: LeftOut) -> Judged {
    Judged::LeftOut { reason, loads: false }
}

/// Reads up to the end of a short file.
fn read_what_is_there(file: &impl Source, to: &mut [u8]) {
    let mut done = 0;
    while done < to.len() && file.read(done as u64, &mut to[done..=done]) {
        done += 1;
    }
}

fn judge_elf(file: &impl Source, header: &[u8; 64]) -> Judged {
    let (first, count) = (u64_at(header, 32), u64::from(u16_at(header, 56)).min(PROGRAM_HEADERS_MAX));
    let mut has_loader = false;
    let mut is_go = false;
    for number in 0..count {
        let mut part = [0; PROGRAM_HEADER];
        if !read_at(file, first, number * PROGRAM_HEADER as u64, &mut part) {
            return Judged::Unknown;
        }
        let (offset, bytes) = (u64_at(&part, 8), u64_at(&part, 32));
        match u32_at(&part, 0) {
            PT_INTERP => {
                let mut name = [0; LOADER.len()];
                if bytes != LOADER.len() as u64 || !file.read(offset, &mut name) || name != *LOADER {
                    return not_loaded(LeftOut::OtherLibrary);
                }
                has_loader = true;
            }
            PT_NOTE => is_go |= has_go_note(file, offset, bytes),
            _ => {}
        }
    }
    if is_go || has_go_section(file, header) {
        return Judged::LeftOut { reason: LeftOut::Go, loads: has_loader };
    }
    if has_loader { Judged::Paged } else { not_loaded(LeftOut::Static) }
}

/// A note of owner "Go".
fn has_go_note(file: &impl Source, offset: u64, bytes: u64) -> bool {
    let mut notes = [0; NOTE_BYTES];
    let bytes = crate::cast::index(bytes.min(NOTE_BYTES as u64));
    if !file.read(offset, &mut notes[..bytes]) {
        return false;
    }
    let mut rest = &notes[..bytes];
    while rest.len() >= 16 {
        let (name, description) = (u32_at(rest, 0), u32_at(rest, 4));
        if name == 4 && rest[12..16] == *b"Go\0\0" {
            return true;
        }
        let word = |bytes: u32| u64::from(bytes).next_multiple_of(4);
        let next = 12 + word(name) + word(description);
        let Some(behind) = usize::try_from(next).ok().and_then(|next| rest.get(next..)) else { return false };
        rest = behind;
    }
    false
}

/// A section of Go's linker. A stripped file may have no sections, and keeps the note.
fn has_go_section(file: &impl Source, header: &[u8; 64]) -> bool {
    let (first, count) = (u64_at(header, 40), u64::from(u16_at(header, 60)).min(SECTION_HEADERS_MAX));
    let names = u64::from(u16_at(header, 62));
    let mut section = [0; SECTION_HEADER];
    let each = SECTION_HEADER as u64;
    if first == 0 || names >= count || !read_at(file, first, names * each, &mut section) {
        return false;
    }
    let names_at = u64_at(&section, 24);
    (0..count).any(|number| {
        if !read_at(file, first, number * each, &mut section) || u64_at(&section, 32) == 0 {
            return false;
        }
        let at = u64::from(u32_at(&section, 0));
        GO_SECTIONS.iter().any(|wanted| {
            let mut name = [0; 20];
            let name = &mut name[..wanted.len()];
            read_at(file, names_at, at, name) && name == *wanted
        })
    })
}

fn read_at(file: &impl Source, base: u64, offset: u64, to: &mut [u8]) -> bool {
    base.checked_add(offset).is_some_and(|at| file.read(at, to))
}

/// First word behind `#!`.
fn interpreter_of(line: &[u8]) -> Option<Interpreter> {
    let end = line.iter().position(|byte| matches!(byte, b'\n' | 0)).unwrap_or(line.len());
    let words = &mut line[..end].split(|byte| matches!(byte, b' ' | b'\t')).filter(|word| !word.is_empty());
    let word = words.next()?;
    let mut path = [0; LINE_BYTES];
    path.get_mut(..word.len())?.copy_from_slice(word);
    (word.len() < LINE_BYTES).then_some(Interpreter { path, bytes: word.len() })
}

fn bytes_at<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).copied().unwrap_or([0; N])
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(bytes_at(bytes, at))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes_at(bytes, at))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes_at(bytes, at))
}

/// Whether exec gives privileges: the loader then takes no library from the environment. `mode`, `user` and `group` are
/// the file's; `own` are the effective ones of the process.
pub const fn gives_privileges(mode: u32, user: u32, group: u32, own: (u32, u32)) -> bool {
    const SET_USER: u32 = 0o4000;
    // Without the execute bit: mandatory locking.
    const SET_GROUP_AND_RUN: u32 = 0o2010;
    mode & SET_USER != 0 && user != own.0 || mode & SET_GROUP_AND_RUN == SET_GROUP_AND_RUN && group != own.1
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use std::vec::Vec;

    use super::*;

    impl Source for Vec<u8> {
        fn read(&self, offset: u64, to: &mut [u8]) -> bool {
            let from = usize::try_from(offset).ok().and_then(|offset| self.get(offset..));
            from.and_then(|rest| rest.get(..to.len())).map(|bytes| to.copy_from_slice(bytes)).is_some()
        }
    }

    /// An ELF file with these program headers: a type, and the bytes of the part.
    fn elf(parts: &[(u32, &[u8])]) -> Vec<u8> {
        let mut file = Vec::from(*b"\x7fELF\x02\x01\x01");
        file.resize(64, 0);
        file[18] = 62;
        file[32..40].copy_from_slice(&64_u64.to_le_bytes());
        file[56..58].copy_from_slice(&u16::try_from(parts.len()).unwrap().to_le_bytes());
        let mut at = 64 + PROGRAM_HEADER * parts.len();
        for (kind, bytes) in parts {
            let mut part = [0; PROGRAM_HEADER];
            part[..4].copy_from_slice(&kind.to_le_bytes());
            part[8..16].copy_from_slice(&(at as u64).to_le_bytes());
            part[32..40].copy_from_slice(&(bytes.len() as u64).to_le_bytes());
            file.extend(part);
            at += bytes.len();
        }
        parts.iter().for_each(|(_, bytes)| file.extend(*bytes));
        file
    }

    const GO_NOTE: &[u8] = b"\x04\0\0\0\x04\0\0\0\x03\0\0\0GNU\0abcd\x04\0\0\0\x02\0\0\0\x04\0\0\0Go\0\0id\0\0";

    const GO: Judged = Judged::LeftOut { reason: LeftOut::Go, loads: true };

    #[test]
    fn the_systems_loader_is_paged_and_all_else_is_left_out_with_its_reason() {
        let own = elf(&[(PT_INTERP, LOADER)]);
        assert_eq!(judge(&own), Judged::Paged);
        assert_eq!(judge(&elf(&[(1, b"text")])), not_loaded(LeftOut::Static));
        assert_eq!(judge(&elf(&[(PT_INTERP, b"/lib/ld-musl-x86_64.so.1\0")])), not_loaded(LeftOut::OtherLibrary));
        assert_eq!(judge(&elf(&[(PT_INTERP, LOADER), (PT_NOTE, GO_NOTE)])), GO);
        assert_eq!(judge(&elf(&[(PT_NOTE, &GO_NOTE[20..])])), Judged::LeftOut { reason: LeftOut::Go, loads: false });
        assert_eq!(judge(&elf(&[(PT_INTERP, LOADER), (PT_NOTE, &GO_NOTE[..20])])), Judged::Paged);
        let with = |at: usize, byte: u8| {
            let mut other = own.clone();
            other[at] = byte;
            judge(&other)
        };
        assert_eq!(with(18, 183), not_loaded(LeftOut::OtherProcessor));
        assert_eq!(with(0, b'X'), Judged::Unknown);
        let mut narrow = own.clone();
        (narrow[4], narrow[18]) = (1, 3);
        assert_eq!(judge(&narrow), not_loaded(LeftOut::Bits32));
    }

    #[test]
    fn a_section_of_go_is_found_where_the_note_is_not() {
        let mut file = elf(&[(PT_INTERP, LOADER)]);
        let names_at = file.len() as u64;
        file.extend(b"\0.gopclntab\0.shstrtab\0");
        let first = file.len() as u64;
        for (name, offset) in [(0_u32, 0), (1, 0), (12, names_at)] {
            let mut section = [0; SECTION_HEADER];
            section[..4].copy_from_slice(&name.to_le_bytes());
            section[24..32].copy_from_slice(&offset.to_le_bytes());
            section[32] = u8::from(name > 0);
            file.extend(section);
        }
        file[40..48].copy_from_slice(&first.to_le_bytes());
        (file[60], file[62]) = (3, 2);
        assert_eq!(judge(&file), GO);
        file[crate::cast::index(first) + SECTION_HEADER + 32] = 0;
        assert_eq!(judge(&file), Judged::Paged, "an empty section");
    }

    #[test]
    fn a_script_is_what_runs_it() {
        for (text, path) in
            [("#!/bin/sh\necho", "/bin/sh"), ("#! \t/usr/bin/env python3\n", "/usr/bin/env"), ("#!x", "x")]
        {
            let Judged::Script(found) = judge(&Vec::from(text)) else { panic!("{text:?}") };
            assert_eq!((found.path(), found.with_zero().last()), (path.as_bytes(), Some(&0)));
        }
        for other in ["#!\n", "#!", "#", "", "echo"] {
            assert_eq!(judge(&Vec::from(other)), Judged::Unknown, "{other:?}");
        }
    }

    #[test]
    fn only_bits_of_another_user_or_group_give_privileges() {
        assert!(gives_privileges(0o4755, 0, 0, (1000, 1000)) && gives_privileges(0o2755, 0, 42, (0, 0)));
        assert!(!gives_privileges(0o4755, 1000, 0, (1000, 1000)) && !gives_privileges(0o755, 0, 0, (1000, 1000)));
        assert!(!gives_privileges(0o2744, 0, 42, (0, 0)), "mandatory locking");
    }

    proptest! {
        #[test]
        fn any_file_is_judged_without_a_panic(mut file: Vec<u8>, head in 0_usize..3) {
            let own = elf(&[(PT_INTERP, LOADER), (PT_NOTE, GO_NOTE)]);
            let kept = [0, 20, 120][head].min(own.len());
            file.splice(0..0, own[..kept].iter().copied());
            let _ = judge(&file);
        }

        #[test]
        fn a_file_with_one_changed_byte_is_judged_without_a_panic(at in 0_usize..176, byte: u8) {
            let mut file = elf(&[(PT_INTERP, LOADER), (PT_NOTE, GO_NOTE)]);
            file[at] = byte;
            let _ = judge(&file);
        }
    }
}
