//! Kind of memory of a mapping, from the list of mappings and the ends of the programs' variables. Pure.
//!
//! No I/O, no clock, no randomness.

use linux::maps::Mapping;
use serde::{Deserialize, Serialize};

/// Use of a mapping by its program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Grown by `brk`: small allocations.
    Heap,
    /// All other private anonymous memory: large allocations, arenas, the stacks of threads.
    Mmap,
    /// Zero-initialised variables, of the program or of a library. A mapping with other memory, too, is what most of it
    /// is.
    Bss,
    /// Stack of the first thread.
    Stack,
    /// Executable memory: the program, its libraries, generated code.
    Code,
}

impl Kind {
    /// All kinds, in the order of the printed tables.
    pub const ALL: [Kind; 5] = [Kind::Heap, Kind::Mmap, Kind::Bss, Kind::Stack, Kind::Code];

    /// Name in tables and in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Heap => "heap",
            Kind::Mmap => "mmap",
            Kind::Bss => "bss",
            Kind::Stack => "stack",
            Kind::Code => "code",
        }
    }
}

/// Kind of each mapping, in their order; `None` for memory that can never be on huge pages of the program's own: file
/// data, shared memory, and special mappings of the kernel. `zeros_end` has the end of the zeros after the data of a
/// program or library, `None` where it is not known; only asked for mappings with a window.
pub fn kinds(mappings: &[Mapping], mut zeros_end: impl FnMut(&Mapping) -> Option<u64>) -> Vec<Option<Kind>> {
    let mut kinds: Vec<Option<Kind>> = Vec::with_capacity(mappings.len());
    let mut data: Option<&Mapping> = None;
    for (number, mapping) in mappings.iter().enumerate() {
        let before = number.checked_sub(1).and_then(|before| Some((mappings.get(before)?, kinds.get(before)?)));
        let mut kind = of(mapping, before.map(|(mapping, kind)| (mapping, *kind)));
        if kind == Some(Kind::Bss) {
            data = before.and_then(|(before, kind)| if *kind == Some(Kind::Bss) { data } else { Some(before) });
            let has_window = mapping.range.whole_windows().len() > 0;
            let end = data.filter(|_| has_window).and_then(&mut zeros_end);
            if end.is_some_and(|end| !is_mostly_below(mapping, end)) {
                kind = Some(Kind::Mmap);
            }
        }
        kinds.push(kind);
    }
    kinds
}

/// Whether at least half of a mapping is below this address.
fn is_mostly_below(mapping: &Mapping, end: u64) -> bool {
    let (first, last) = (mapping.range.start().0, mapping.range.end().0);
    end.clamp(first, last) - first >= (last - first).div_ceil(2)
}

fn of(mapping: &Mapping, before: Option<(&Mapping, Option<Kind>)>) -> Option<Kind> {
    let rights = mapping.permissions;
    let is_file = mapping.inode != 0;
    if rights.execute && (is_file || mapping.is_anonymous() && !rights.write) {
        return Some(Kind::Code);
    }
    if !mapping.is_anonymous() {
        return None;
    }
    if mapping.path == "[heap]" {
        return Some(Kind::Heap);
    }
    if mapping.path.bytes().starts_with(b"[stack") {
        return Some(Kind::Stack);
    }
    // The zeros of a program follow its data without a gap. Advice on a part of them splits the mapping in two.
    let follows_data = before.is_some_and(|(before, kind)| {
        let is_data = before.inode != 0 && before.permissions.write && !before.permissions.shared;
        before.range.end() == mapping.range.start() && (is_data || kind == Some(Kind::Bss)) && rights.write
    });
    Some(if follows_data { Kind::Bss } else { Kind::Mmap })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kinds_of(text: &str) -> Vec<Option<Kind>> {
        kinds(&linux::maps::parse(text, "maps").unwrap(), |_| None)
    }

    #[test]
    fn memory_mapped_behind_the_zeros_is_no_bss() {
        let text = "800000-a00000 rw-p 00400000 08:01 11 /usr/bin/x\n\
                    a00000-1a00000 rw-p 00000000 00:00 0 \n\
                    1a00000-2000000 rw-p 00000000 00:00 0 \n";
        let with_end = |end| kinds(&linux::maps::parse(text, "maps").unwrap(), |_| Some(end));
        let (bss, mmap) = (Some(Kind::Bss), Some(Kind::Mmap));
        assert_eq!(with_end(0x2000000), [None, bss, bss]);
        assert_eq!(with_end(0x1a00000), [None, bss, mmap]);
        assert_eq!(with_end(0xa01000), [None, mmap, mmap], "the kernel merged a page of zeros with a heap");
        assert_eq!(with_end(0xa00000), [None, mmap, mmap], "a program without zeros");
    }

    #[test]
    fn a_program_with_a_library_has_every_kind() {
        let found = kinds_of(
            "400000-600000 r-xp 00000000 08:01 11 /usr/bin/x\n\
             600000-800000 r--p 00200000 08:01 11 /usr/bin/x\n\
             800000-a00000 rw-p 00400000 08:01 11 /usr/bin/x\n\
             a00000-e00000 rw-p 00000000 00:00 0 \n\
             f00000-1000000 rw-p 00000000 00:00 0 [heap]\n\
             7f0000000000-7f0000400000 rw-p 00000000 00:00 0 \n\
             7f0000400000-7f0000600000 rw-s 00000000 00:01 5 /memfd:x (deleted)\n\
             7f0000600000-7f0000800000 r-xp 00000000 08:01 12 /usr/lib/libc.so.6\n\
             7f0000800000-7f0000801000 rw-p 00200000 08:01 12 /usr/lib/libc.so.6\n\
             7f0000801000-7f000080e000 rw-p 00000000 00:00 0 \n\
             7f0000900000-7f0000b00000 rw-p 00000000 00:00 0 [anon:arena]\n\
             7ffd00000000-7ffd00400000 rw-p 00000000 00:00 0 [stack]\n\
             7ffd00500000-7ffd00502000 r-xp 00000000 00:00 0 [vdso]\n",
        );
        use Kind::{Bss, Code, Heap, Mmap, Stack};
        let expected = [
            Some(Code),
            None,
            None,
            Some(Bss),
            Some(Heap),
            Some(Mmap),
            None,
            Some(Code),
            None,
            Some(Bss),
            Some(Mmap),
            Some(Stack),
            None,
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn a_part_of_the_zeros_that_was_advised_is_still_theirs() {
        let found = kinds_of(
            "800000-a00000 rw-p 00400000 08:01 11 /usr/bin/x\n\
             a00000-b00000 rw-p 00000000 00:00 0 \n\
             b00000-e00000 rw-p 00000000 00:00 0 \n\
             e00000-e10000 ---p 00000000 00:00 0 \n\
             e10000-f00000 rw-p 00000000 00:00 0 \n",
        );
        assert_eq!(found, [None, Some(Kind::Bss), Some(Kind::Bss), Some(Kind::Mmap), Some(Kind::Mmap)]);
    }

    #[test]
    fn memory_behind_a_gap_or_behind_data_that_cannot_be_written_is_no_bss() {
        let found = kinds_of(
            "800000-a00000 rw-p 00400000 08:01 11 /usr/bin/x\n\
             a01000-b00000 rw-p 00000000 00:00 0 \n\
             c00000-d00000 r--p 00000000 08:01 12 /usr/share/x\n\
             d00000-e00000 rw-p 00000000 00:00 0 \n\
             e00000-f00000 rw-s 00000000 00:05 13 /dev/shm/x\n\
             f00000-1000000 rw-p 00000000 00:00 0 \n",
        );
        assert_eq!(found, [None, Some(Kind::Mmap), None, Some(Kind::Mmap), None, Some(Kind::Mmap)]);
    }

    #[test]
    fn code_that_a_program_made_itself_is_code_once_it_cannot_be_written_any_more() {
        let found = kinds_of(
            "200000-400000 r-xp 00000000 00:00 0 \n\
             600000-800000 rwxp 00000000 00:00 0 \n",
        );
        assert_eq!(found, [Some(Kind::Code), Some(Kind::Mmap)]);
        assert_eq!(kinds(&[], |_| None), []);
    }
}
