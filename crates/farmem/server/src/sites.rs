//! Code sites by name: the lines of the program that fault. Programs that mark their sections have these instead.
//!
//! A site is the address of an instruction. Its name comes from the program's file, as far as that has symbols and
//! debug information, or from its separate debug file; the mappings were read while the program ran.

use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use addr2line::Loader;
use farmem_engine::PAGE_BYTES;
use farmem_engine::units::Learned;
use linux::Untrusted;
use linux::maps::Mapping;
use object::read::elf::ElfFile64;
use object::{Endianness, Object, ObjectKind, ObjectSymbol, SymbolKind};
use serde::{Deserialize, Serialize};
use units::Bytes;

use crate::history::{History, Since};
use crate::observation::Observed;

mod debug_file;

/// Largest number of sites in a report: the ones with the most faults.
pub const MOST: usize = 20;

/// Site of pages that a system call needs: they are requested without an instruction of the program.
const OF_THE_KERNEL: u64 = 1;

/// A code site.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct Site {
    /// Command name of its program.
    pub program: Untrusted,
    /// Process of its program, in the program's own PID namespace.
    pub process: u32,
    /// The function, or `file+offset` where the program's file has no symbols.
    pub function: Untrusted,
    /// The source file, if the program was built with debug information.
    pub file: Option<Untrusted>,
    /// The line in it.
    pub line: Option<u32>,
    /// Number of its faults, since it is known.
    pub faults: u64,
    /// Bytes per fault at the end.
    pub unit_bytes: Bytes,
    /// Earlier transfer sizes, with their times.
    pub units: Vec<Since>,
}

/// Sites of a program, the most faults first.
pub fn of(learned: &Learned, process: u32, observed: &Observed) -> Vec<Site> {
    let mut known: Vec<_> = learned.sites.known().collect();
    known.sort_by_key(|site| std::cmp::Reverse(site.faults));
    known.truncate(MOST);
    let mut files = Files { may_read: observed.may_read_files, names: BTreeMap::new() };
    known
        .into_iter()
        .map(|site| {
            let (function, file, line) = name(site.site, &observed.mappings, &mut files);
            let unit_bytes = Bytes(u64::from(site.unit_pages) * PAGE_BYTES);
            let (program, faults, units) = (observed.name.clone(), site.faults.into(), observed.history.of(site.site));
            Site { program, process, function, file, line, faults, unit_bytes, units }
        })
        .collect()
}

/// Marked section.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct Section {
    /// Its number.
    pub section: u32,
    /// Number of its faults.
    pub faults: u64,
    /// Bytes per fault at the end.
    pub unit_bytes: Bytes,
    /// Earlier transfer sizes, with their times.
    pub units: Vec<Since>,
}

/// Sections of a program that have ended, the most faults first.
pub fn sections(learned: &Learned, history: &History) -> Vec<Section> {
    let known = learned.marked.known().map(|section| Section {
        section: section.section,
        faults: section.faults.into(),
        unit_bytes: Bytes(u64::from(section.unit_pages) * PAGE_BYTES),
        units: history.of(section.section.into()),
    });
    let mut known: Vec<_> = known.collect();
    known.sort_by_key(|section| std::cmp::Reverse(section.faults));
    known
}

/// Files that were read for their symbols.
#[derive(Default)]
struct Files {
    /// Whether files may be read: not those of another user's program, with masu's rights.
    may_read: bool,
    names: BTreeMap<PathBuf, Names>,
}

/// Symbols of a program's file.
#[derive(Default)]
struct Names {
    lines: Option<Loader>,
    /// Functions: start, end and name.
    functions: Vec<(u64, u64, String)>,
    /// Whether the file is at the linker's address, instead of one that the loader chose.
    fixed: bool,
}

/// Largest file whose symbols are read.
const FILE_BYTES_MAX: u64 = 4 << 30;

/// Whether `path` names the mapped regular file, and not a pipe that has its name by now. The file is held without
/// being opened.
fn is_file_of(path: &Path, mapping: &Mapping) -> bool {
    let held =
        rustix::fs::open(path, rustix::fs::OFlags::PATH | rustix::fs::OFlags::CLOEXEC, rustix::fs::Mode::empty());
    let Ok(held) = held else { return false };
    let Ok(about) = rustix::fs::fstat(&held) else { return false };
    let is_file = rustix::fs::FileType::from_raw_mode(about.st_mode) == rustix::fs::FileType::RegularFile;
    is_file && about.st_ino == mapping.inode && u64::try_from(about.st_size).is_ok_and(|bytes| bytes <= FILE_BYTES_MAX)
}

fn functions(file: &ElfFile64<'_>) -> Vec<(u64, u64, String)> {
    let all = file.symbols().chain(file.dynamic_symbols());
    let functions = all.filter(|symbol| symbol.kind() == SymbolKind::Text && symbol.size() > 0);
    let named = functions.filter_map(|symbol| {
        Some((symbol.address(), symbol.address().saturating_add(symbol.size()), symbol.name().ok()?.to_owned()))
    });
    named.collect()
}

impl Names {
    /// Reads the mapped file, if it is regular. The program chose the path: another file may have the name by now.
    fn of(mapping: &Mapping) -> Names {
        let mut names = Names::default();
        let path = mapping.path.path();
        if !is_file_of(path, mapping) {
            return names;
        }
        let Ok(bytes) = std::fs::read(path) else { return names };
        let Ok(file) = ElfFile64::<Endianness>::parse(&*bytes) else { return names };
        names.fixed = file.kind() == ObjectKind::Executable;
        names.functions = functions(&file);
        let has_lines = file.section_by_name(".debug_line").is_some();
        let separate = if has_lines { None } else { debug_file::of(path, &file, Path::new(debug_file::FOLDER)) };
        if let Some((at, bytes)) = separate {
            names.lines = Loader::new(at).ok();
            names.functions.extend(ElfFile64::parse(&*bytes).map(|file| functions(&file)).unwrap_or_default());
        } else {
            names.lines = Loader::new(path).ok();
        }
        names
    }

    /// Function with an instruction. A file without symbols names a few only, and an address between them has none.
    fn function(&self, at: u64) -> Option<String> {
        let found = self.functions.iter().find(|(start, end, _)| (*start..*end).contains(&at))?;
        Some(addr2line::demangle_auto(found.2.as_str().into(), None).into_owned())
    }

    fn line(&self, at: u64) -> Option<(String, Option<u32>)> {
        let location = self.lines.as_ref()?.find_location(at).ok().flatten()?;
        Some((location.file?.to_owned(), location.line))
    }
}

fn name(address: u64, mappings: &[Mapping], files: &mut Files) -> (Untrusted, Option<Untrusted>, Option<u32>) {
    if address <= OF_THE_KERNEL {
        return ("system calls".into(), None, None);
    }
    let inside = |mapping: &&Mapping| mapping.range.start().0 <= address && address < mapping.range.end().0;
    let mapping = match mappings.iter().find(inside) {
        Some(mapping) if mapping.path.bytes().starts_with(b"/") => mapping,
        Some(mapping) if mapping.path.bytes().is_empty() => {
            return (format!("{address:#x} (generated code)").into(), None, None);
        }
        _ => return (format!("{address:#x}").into(), None, None),
    };
    let path = mapping.path.path();
    let short = path.file_name().unwrap_or(path.as_os_str());
    let may_read = files.may_read;
    let read = || if may_read { Names::of(mapping) } else { Names::default() };
    let names = files.names.entry(path.to_owned()).or_insert_with(read);
    // Address of the file's first byte: relocated files count from there.
    let base = mappings
        .iter()
        .find(|first| first.path == mapping.path)
        .map_or(0, |first| first.range.start().0.wrapping_sub(first.offset));
    let at = if names.fixed { address } else { address.wrapping_sub(base) };
    let offset = (address - mapping.range.start().0).wrapping_add(mapping.offset);
    let plain = || Untrusted::new([short.as_bytes(), format!("+{offset:#x}").as_bytes()].concat());
    let function = names.function(at).map_or_else(plain, Untrusted::from);
    let (file, line) = names.line(at).map_or((None, None), |(file, line)| (Some(file.into()), line));
    (function, file, line)
}

#[cfg(test)]
mod tests {
    use linux::Pid;
    use linux::Rooted;
    use linux::maps::maps;

    use super::*;

    #[inline(never)]
    fn a_function_of_this_test() -> u64 {
        std::hint::black_box(7)
    }

    #[test]
    fn an_instruction_of_this_program_has_a_name() {
        assert_eq!(a_function_of_this_test(), 7);
        let mappings = maps(&Rooted::host(), Pid::own()).unwrap();
        let address = (a_function_of_this_test as *const ()).addr() as u64;
        let (function, file, line) = name(address, &mappings, &mut Files { may_read: true, ..Files::default() });
        assert!(function.text().contains("a_function_of_this_test"), "{function}");
        // With debug information; `panic` is not always built with all of it.
        assert_eq!(file.is_some(), line.is_some());
    }

    #[test]
    fn sections_that_have_ended_are_listed_by_their_faults() {
        let mut learned = Learned::default();
        for (section, faults) in [(7, 2), (3, 5)] {
            learned.marked.count_start(section);
            (0..faults).for_each(|_| learned.marked.faulted());
            learned.marked.refresh(section, farmem_engine::policy::marked::Settings::paper(4096));
        }
        learned.marked.count_start(9);
        let mut history = History::default();
        history.read(std::time::Duration::ZERO, crate::history::Part::of(&learned));
        let listed: Vec<_> = sections(&learned, &history);
        // Each was small, so its size was doubled when it ended: the second began with the result of the first.
        let said: Vec<_> = listed.iter().map(|of| (of.section, of.faults, of.unit_bytes)).collect();
        assert_eq!(said, [(3, 5, Bytes::kib(64)), (7, 2, Bytes::kib(32))]);
        assert!(listed.iter().all(|of| of.units.last().is_some_and(|last| last.unit_bytes == of.unit_bytes)));
    }

    #[test]
    fn what_lies_in_no_file_is_its_address() {
        assert_eq!(name(0x1234, &[], &mut Files::default()).0, "0x1234");
        assert_eq!(name(0, &[], &mut Files::default()).0, "system calls");
    }
}
