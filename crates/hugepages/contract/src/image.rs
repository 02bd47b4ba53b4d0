//! Judgement of a program's file: whether the library may be loaded into the program, before it is started. Pure.
//!
//! One rule for the first program and for all that it starts. A program that is left out runs as without masu.

/// Reason for which a program is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeftOut {
    /// A sanitizer's runtime, which must come before all other libraries.
    Sanitizer = 0,
    /// Statically linked.
    Static = 1,
    /// Built by Go, whose runtime asks the kernel itself for memory.
    Go = 2,
    /// Another C library than the system's.
    OtherLibrary = 3,
    /// A 32-bit program, or one for another processor.
    OtherMachine = 4,
    /// Its parent has put a seccomp filter on.
    Sandbox = 5,
    /// Set-user-ID or set-group-ID.
    Privileged = 6,
    /// Within a limit on its address space or data: the library takes some of both.
    Limited = 7,
    /// It forbids itself new privileges, or puts on a seccomp filter, which may kill for the library's calls.
    OwnSandbox = 8,
    /// Its user or its namespaces do not let it open the status page: masu could neither count nor trim its memory.
    NoStatusPage = 9,
}

impl LeftOut {
    /// All reasons, by their number.
    pub const ALL: [LeftOut; 10] = [
        LeftOut::Sanitizer,
        LeftOut::Static,
        LeftOut::Go,
        LeftOut::OtherLibrary,
        LeftOut::OtherMachine,
        LeftOut::Sandbox,
        LeftOut::Privileged,
        LeftOut::Limited,
        LeftOut::OwnSandbox,
        LeftOut::NoStatusPage,
    ];

    /// Words behind a number of programs.
    pub const fn words(self) -> &'static str {
        match self {
            LeftOut::Sanitizer => "with a sanitizer's runtime",
            LeftOut::Static => "statically linked",
            LeftOut::Go => "built by Go",
            LeftOut::OtherLibrary => "with another C library",
            LeftOut::OtherMachine => "of 32 bits or for another processor",
            LeftOut::Sandbox => "in a sandbox (seccomp)",
            LeftOut::Privileged => "set-uid or set-gid",
            LeftOut::Limited => "within a ulimit -v or -d",
            LeftOut::OwnSandbox => "from their own prctl(PR_SET_NO_NEW_PRIVS) or seccomp on",
            LeftOut::NoStatusPage => "of another user or in other namespaces",
        }
    }

    /// Reason for the first program, behind its name.
    pub const fn reason(self) -> &'static str {
        match self {
            LeftOut::Sanitizer => {
                "it is built with a sanitizer, whose runtime ends it when another library comes first"
            }
            LeftOut::Static => "it is linked statically",
            LeftOut::Go => "it is a Go program, whose runtime asks the kernel itself for memory",
            LeftOut::OtherLibrary => "it has another C library than the system's",
            LeftOut::OtherMachine => "it is a 32-bit program, or one for another kind of processor",
            LeftOut::Sandbox => "it runs in a sandbox (seccomp)",
            LeftOut::Privileged => "it is set-uid or set-gid",
            LeftOut::OwnSandbox => "it enters a sandbox (PR_SET_NO_NEW_PRIVS, seccomp)",
            LeftOut::NoStatusPage => "masu has more privileges than the program, which cannot open masu's status page",
            LeftOut::Limited => {
                "its address space or data is limited (ulimit -v, -d), and the library takes some of both"
            }
        }
    }
}

/// Longest path of an interpreter that the kernel reads in a script's first line.
pub const INTERPRETER_BYTES: usize = 254;

/// Judgement.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "a boxed path would allocate inside the program")]
pub enum Verdict {
    /// The library may be loaded, as far as the file tells.
    Served,
    /// A script: its interpreter decides. The path, with zeros behind it.
    Script([u8; INTERPRETER_BYTES + 1]),
    /// Left out.
    LeftOut(LeftOut),
}

const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const PT_INTERP: u32 = 3;
const DT_NEEDED: u64 = 1;
const DT_STRTAB: u64 = 5;
const DT_STRSZ: u64 = 10;
const DT_PREINIT_ARRAY: u64 = 32;
const MACHINE: u16 = if cfg!(target_arch = "x86_64") { 62 } else { 183 };

/// Loaders of the system's own programs: another loader has its own C library beside it.
const LOADERS: [&[u8]; 2] = [b"/lib64/ld-linux-x86-64.so.2", b"/lib/ld-linux-aarch64.so.1"];

/// Beginnings of the names of the runtimes' libraries, of gcc and of clang.
const RUNTIMES: [&[u8]; 5] = [b"libasan.so", b"libtsan.so", b"liblsan.so", b"libhwasan.so", b"libclang_rt."];

/// Runtimes that begin alike and need not come first.
const HARMLESS: [&[u8]; 4] =
    [b"libclang_rt.ubsan", b"libclang_rt.builtins", b"libclang_rt.profile", b"libclang_rt.scudo"];

/// Name of the undefined-behaviour sanitizer's functions, and those of the other sanitizers.
const OF_UBSAN: &[u8] = b"__ubsan_";
const OF_OTHERS: [&[u8]; 8] =
    [b"__asan_", b"__hwasan_", b"__tsan_", b"__lsan_", b"__msan_", b"__dfsan_", b"__memprof_", b"__rtsan_"];

/// Sections that only Go's tools make.
const OF_GO: [&[u8]; 3] = [b".go.buildinfo\0", b".note.go.buildid\0", b".gopclntab\0"];

/// Reads a file: fills from an offset, returns the number of bytes.
pub type ReadAt<'a> = &'a mut dyn FnMut(u64, &mut [u8]) -> usize;

fn half(bytes: &[u8], at: usize) -> u16 {
    bytes.get(at..at + 2).and_then(|bytes| bytes.try_into().ok()).map_or(0, u16::from_le_bytes)
}

fn word(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|bytes| bytes.try_into().ok()).map_or(0, u32::from_le_bytes)
}

fn long(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).and_then(|bytes| bytes.try_into().ok()).map_or(0, u64::from_le_bytes)
}

/// Judges a file. One that is torn, or that the kernel gives to another program (binfmt_misc), is served: nothing tells
/// against it.
pub fn judge(read: ReadAt<'_>) -> Verdict {
    let mut head = [0; INTERPRETER_BYTES + 2];
    let length = read(0, &mut head);
    let head = head.get(..length).unwrap_or_default();
    if let Some(line) = head.strip_prefix(b"#!") {
        return script(line);
    }
    if !head.starts_with(b"\x7fELF") || head.len() < 64 {
        return Verdict::Served;
    }
    if head[4] != 2 || head[5] != 1 || half(head, 18) != MACHINE {
        return Verdict::LeftOut(LeftOut::OtherMachine);
    }
    if is_of_go(head, read) {
        return Verdict::LeftOut(LeftOut::Go);
    }
    let parts = parts(head, read);
    if parts.dynamic.is_some_and(|dynamic| has_sanitizer(dynamic, &parts, read)) {
        return Verdict::LeftOut(LeftOut::Sanitizer);
    }
    let Some((at, bytes)) = parts.loader else { return Verdict::LeftOut(LeftOut::Static) };
    let mut name = [0; 64];
    let length = read(at, &mut name);
    let length = usize::try_from(bytes).map_or(length, |bytes| bytes.min(length));
    let name = name.get(..length).unwrap_or_default();
    let is_system = LOADERS.iter().any(|loader| name.strip_suffix(b"\0") == Some(loader));
    if is_system { Verdict::Served } else { Verdict::LeftOut(LeftOut::OtherLibrary) }
}

fn script(line: &[u8]) -> Verdict {
    let line = line.split(|byte| *byte == b'\n').next().unwrap_or_default().trim_ascii();
    let path = line.split(|byte| byte.is_ascii_whitespace()).next().unwrap_or_default();
    let mut name = [0; INTERPRETER_BYTES + 1];
    match name.get_mut(..path.len()) {
        Some(place) if !path.is_empty() => place.copy_from_slice(path),
        _ => return Verdict::Served,
    }
    Verdict::Script(name)
}

/// A part of the file: offset and bytes.
type Extent = (u64, u64);

#[derive(Default)]
struct Parts {
    /// Address, offset and bytes of each loaded part.
    loaded: [(u64, u64, u64); 16],
    loader: Option<Extent>,
    dynamic: Option<Extent>,
}

impl Parts {
    fn offset_of(&self, address: u64) -> Option<u64> {
        let part = self.loaded.iter().find(|(start, _, bytes)| address.wrapping_sub(*start) < *bytes)?;
        Some(part.1.wrapping_add(address.wrapping_sub(part.0)))
    }
}

fn parts(head: &[u8], read: ReadAt<'_>) -> Parts {
    let (first, size) = (long(head, 32), u64::from(half(head, 54)));
    let mut parts = Parts::default();
    let mut loaded = 0;
    for number in 0..u64::from(half(head, 56)).min(128) {
        let mut part = [0; 56];
        if read(first.wrapping_add(number * size), &mut part) < part.len() {
            break;
        }
        let extent = (long(&part, 8), long(&part, 32));
        match word(&part, 0) {
            PT_LOAD => {
                if let Some(place) = parts.loaded.get_mut(loaded) {
                    *place = (long(&part, 16), extent.0, extent.1);
                    loaded += 1;
                }
            }
            PT_DYNAMIC => parts.dynamic = Some(extent),
            PT_INTERP => parts.loader = Some(extent),
            _ => {}
        }
    }
    parts
}

/// Calls `each` with every entry of the dynamic section until it returns true.
fn any_entry((at, bytes): Extent, read: ReadAt<'_>, mut each: impl FnMut(u64, u64, ReadAt<'_>) -> bool) -> bool {
    const ENTRIES: usize = 64;
    let mut chunk = [0; ENTRIES * 16];
    let mut done = 0;
    while done < bytes.min(1 << 16) {
        let length = read(at.wrapping_add(done), &mut chunk);
        for entry in chunk.get(..length).unwrap_or_default().chunks_exact(16) {
            match long(entry, 0) {
                0 => return false,
                tag if each(tag, long(entry, 8), read) => return true,
                _ => {}
            }
        }
        if length < chunk.len() {
            return false;
        }
        done += chunk.len() as u64;
    }
    false
}

/// Whether a runtime is among its libraries, or code begins before all libraries (DT_PREINIT_ARRAY), as that of a
/// runtime linked statically does. The undefined-behaviour sanitizer alone takes no memory over, and is none of these.
fn has_sanitizer(dynamic: Extent, parts: &Parts, read: ReadAt<'_>) -> bool {
    let (mut names, mut names_bytes) = (None, 0);
    any_entry(dynamic, read, |tag, value, _| {
        names = (tag == DT_STRTAB).then(|| parts.offset_of(value)).flatten().or(names);
        names_bytes = if tag == DT_STRSZ { value } else { names_bytes };
        false
    });
    any_entry(dynamic, read, |tag, value, read| match (tag, names) {
        (DT_PREINIT_ARRAY, Some(names)) => !is_of_ubsan_alone((names, names_bytes), read),
        (DT_PREINIT_ARRAY, None) => true,
        (DT_NEEDED, Some(names)) => {
            let mut name = [0; 24];
            let length = read(names.wrapping_add(value), &mut name);
            let name = name.get(..length).unwrap_or_default();
            let begins = |with: &&[u8]| name.starts_with(with);
            RUNTIMES.iter().any(&begins) && !HARMLESS.iter().any(begins)
        }
        _ => false,
    })
}

/// Whether the names of the dynamic symbols show the undefined-behaviour sanitizer and no other one. Names beyond the
/// first MiB are not read: then it is another.
fn is_of_ubsan_alone((at, bytes): Extent, read: ReadAt<'_>) -> bool {
    const READ_MAX: u64 = 1 << 20;
    const LONGEST: usize = 16;
    let mut chunk = [0; 2048];
    let (mut done, mut found) = (0, false);
    while done < bytes && bytes <= READ_MAX {
        let length = read(at.wrapping_add(done), &mut chunk);
        let part = chunk.get(..length).unwrap_or_default();
        let has = |name: &[u8]| part.windows(name.len()).any(|here| here == name);
        if OF_OTHERS.iter().any(|name| has(name)) {
            return false;
        }
        found |= has(OF_UBSAN);
        if length < chunk.len() {
            break;
        }
        done += (chunk.len() - LONGEST) as u64;
    }
    found
}

fn is_of_go(head: &[u8], read: ReadAt<'_>) -> bool {
    let (first, size) = (long(head, 40), u64::from(half(head, 58)));
    let mut section = [0; 64];
    let at = |number: u64| first.wrapping_add(number.wrapping_mul(size));
    if first == 0 || read(at(u64::from(half(head, 62))), &mut section) < section.len() {
        return false;
    }
    let names = long(&section, 24);
    for number in 0..u64::from(half(head, 60)).min(128) {
        let mut name = [0; 18];
        if read(at(number), &mut section) < section.len() {
            return false;
        }
        let length = read(names.wrapping_add(u64::from(word(&section, 0))), &mut name);
        let name = name.get(..length).unwrap_or_default();
        if long(&section, 32) > 0 && OF_GO.iter().any(|of_go| name.starts_with(of_go)) {
            return true;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn of(file: &[u8]) -> Verdict {
        judge(&mut |at, into| {
            let rest = usize::try_from(at).ok().and_then(|at| file.get(at..)).unwrap_or_default();
            let length = rest.len().min(into.len());
            into[..length].copy_from_slice(&rest[..length]);
            length
        })
    }

    /// A program with a loader and a dynamic section of these tags; names of libraries lie at 0x400.
    fn program(loader: &str, entries: &[(u64, u64)], names: &str) -> Vec<u8> {
        let mut file = vec![0; 0x500];
        file[..6].copy_from_slice(b"\x7fELF\x02\x01");
        file[18..20].copy_from_slice(&MACHINE.to_le_bytes());
        file[32..40].copy_from_slice(&64u64.to_le_bytes());
        file[54..56].copy_from_slice(&56u16.to_le_bytes());
        file[56..58].copy_from_slice(&3u16.to_le_bytes());
        let parts = [
            (PT_LOAD, 0, 0x10_0000, 0x500),
            (PT_INTERP, 0x200, 0, loader.len() as u64 + 1),
            (PT_DYNAMIC, 0x300, 0, 0x100),
        ];
        for (number, (kind, offset, address, bytes)) in parts.into_iter().enumerate() {
            let part = &mut file[64 + number * 56..][..56];
            part[..4].copy_from_slice(&(if loader.is_empty() && kind == PT_INTERP { 0 } else { kind }).to_le_bytes());
            part[8..16].copy_from_slice(&u64::to_le_bytes(offset));
            part[16..24].copy_from_slice(&u64::to_le_bytes(address));
            part[32..40].copy_from_slice(&u64::to_le_bytes(bytes));
        }
        file[0x200..][..loader.len()].copy_from_slice(loader.as_bytes());
        for (number, (tag, value)) in entries.iter().chain(&[(DT_STRTAB, 0x10_0400)]).enumerate() {
            file[0x300 + number * 16..][..8].copy_from_slice(&tag.to_le_bytes());
            file[0x308 + number * 16..][..8].copy_from_slice(&value.to_le_bytes());
        }
        file[0x400..][..names.len()].copy_from_slice(names.as_bytes());
        file
    }

    const LOADER: &str =
        if cfg!(target_arch = "x86_64") { "/lib64/ld-linux-x86-64.so.2" } else { "/lib/ld-linux-aarch64.so.1" };

    #[test]
    fn each_kind_of_program_is_told_apart() {
        let libraries = "libc.so.6\0libasan.so.8\0libtsan.so.2\0";
        let with = |entries: &[_]| of(&program(LOADER, entries, libraries));
        assert_eq!(with(&[(DT_NEEDED, 0)]), Verdict::Served);
        assert_eq!(with(&[(DT_NEEDED, 0), (DT_NEEDED, 10)]), Verdict::LeftOut(LeftOut::Sanitizer));
        assert_eq!(with(&[(DT_NEEDED, 23)]), Verdict::LeftOut(LeftOut::Sanitizer));
        assert_eq!(with(&[(DT_NEEDED, 0), (DT_PREINIT_ARRAY, 9)]), Verdict::LeftOut(LeftOut::Sanitizer), "static");
        assert_eq!(of(&program("", &[], "")), Verdict::LeftOut(LeftOut::Static));
        let named = |entries: &[_], names: &str| of(&program(LOADER, entries, names));
        for (library, verdict) in [
            ("libclang_rt.asan-x86_64.so", Verdict::LeftOut(LeftOut::Sanitizer)),
            ("libclang_rt.hwasan-aarch64.so", Verdict::LeftOut(LeftOut::Sanitizer)),
            ("libhwasan.so.0", Verdict::LeftOut(LeftOut::Sanitizer)),
            ("liblsan.so.0", Verdict::LeftOut(LeftOut::Sanitizer)),
            ("libclang_rt.ubsan_standalone-x86_64.so", Verdict::Served),
            ("libubsan.so.1", Verdict::Served),
        ] {
            assert_eq!(named(&[(DT_NEEDED, 0)], library), verdict, "{library}");
        }
        let before = [(DT_PREINIT_ARRAY, 9), (DT_STRSZ, 0x100)];
        assert_eq!(named(&before, "main\0__ubsan_handle_add\0"), Verdict::Served, "ubsan alone, static");
        assert_eq!(named(&before, "__ubsan_x\0__lsan_init\0"), Verdict::LeftOut(LeftOut::Sanitizer));
        assert_eq!(named(&before, "main\0"), Verdict::LeftOut(LeftOut::Sanitizer), "of whatever");
        assert_eq!(of(&program("/lib/ld-musl-x86_64.so.1", &[], "")), Verdict::LeftOut(LeftOut::OtherLibrary));
        let mut small = program(LOADER, &[], "");
        small[4] = 1;
        assert_eq!(of(&small), Verdict::LeftOut(LeftOut::OtherMachine));
    }

    #[test]
    fn a_script_names_its_interpreter_and_other_files_are_served() {
        let Verdict::Script(name) = of(b"#! /usr/bin/env python3 -u\n") else { panic!("no script") };
        assert!(name.starts_with(b"/usr/bin/env\0"));
        for other in [&b"#!\n"[..], b"echo", b"", b"\x7fELF\x02\x01"] {
            assert_eq!(of(other), Verdict::Served, "{other:?}");
        }
    }

    #[test]
    fn a_part_that_ends_beyond_all_addresses_is_judged() {
        let mut file = program(LOADER, &[(DT_NEEDED, 0)], "libasan.so.8\0");
        // Bytes of the loaded part, and the address of the names below its start.
        file[64 + 32..64 + 40].copy_from_slice(&u64::MAX.to_le_bytes());
        file[0x318..0x320].copy_from_slice(&1_u64.to_le_bytes());
        assert_eq!(of(&file), Verdict::Served);
    }

    proptest! {
        #[test]
        fn any_file_is_judged(mut file in prop::collection::vec(any::<u8>(), 0..2048), cut in any::<bool>()) {
            if cut && file.len() > 64 {
                file[..6].copy_from_slice(b"\x7fELF\x02\x01");
                file[18..20].copy_from_slice(&MACHINE.to_le_bytes());
            }
            of(&file);
        }
    }
}
