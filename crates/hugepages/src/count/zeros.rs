//! End of the zero-initialised variables of a program or library, from its program headers in memory.
//!
//! The kernel merges them with anonymous memory that follows without a gap, such as a heap that a library mapped. The
//! list of mappings shows one mapping then. The headers tell where the variables end: at `p_vaddr + p_memsz` of the
//! writable part, plus the load address (elf(5)).
//!
//! The process chooses the headers: a wrong end changes the kind of its own windows, and nothing else.

use std::collections::BTreeMap;

use linux::Pid;
use linux::maps::Mapping;
use linux::memory_file::MemoryFile;
use units::{Address, PageSize};

/// Programs and libraries looked up in one process. No real one has as many with 2 MiB behind their data.
const LOOKED_UP_MAX: usize = 256;

/// Ends of the variables by the start of the data before them, each with the data's mapping.
#[derive(Debug, Default)]
pub struct Zeros(BTreeMap<u64, (Mapping, Option<u64>)>);

impl Zeros {
    /// End of the zeros after `data`, a written private mapping of a file; `None` where that cannot be known.
    pub fn end(&mut self, pid: Pid, mappings: &[Mapping], data: &Mapping) -> Option<u64> {
        let start = data.range.start().0;
        if let Some((_, end)) = self.0.get(&start).filter(|(known, _)| known == data) {
            return *end;
        }
        if self.0.len() >= LOOKED_UP_MAX {
            return None;
        }
        let end = first(mappings, data).and_then(|first| {
            let mut headers = vec![0; PageSize::Small.bytes().0.try_into().ok()?];
            MemoryFile::open(pid).ok()?.read(first.range.start(), &mut headers).ok()?;
            end(&headers, first.range.start(), data)
        });
        self.0.insert(start, (data.clone(), end));
        end
    }

    /// Forgets all data that is not mapped any more.
    pub fn retain(&mut self, mappings: &[Mapping]) {
        self.0.retain(|start, (data, _)| {
            let at = mappings.binary_search_by_key(start, |mapping| mapping.range.start().0);
            at.is_ok_and(|at| mappings[at] == *data)
        });
    }
}

/// First mapping of the file of `data` below it: the one with the headers.
fn first<'a>(mappings: &'a [Mapping], data: &Mapping) -> Option<&'a Mapping> {
    let same = |one: &&Mapping| (one.device, one.inode) == (data.device, data.inode) && one.offset == 0;
    mappings.iter().filter(same).take_while(|one| one.range.start() <= data.range.start()).last()
}

/// End of the zeros after `data`, from the first page of the file, loaded at `base`. Pure.
fn end(headers: &[u8], base: Address, data: &Mapping) -> Option<u64> {
    const PT_LOAD: u32 = 1;
    const PF_W: u32 = 2;
    let half = |at: usize| Some(u16::from_le_bytes(headers.get(at..at + 2)?.try_into().ok()?));
    let word = |at: usize| Some(u32::from_le_bytes(headers.get(at..at + 4)?.try_into().ok()?));
    let long = |at: usize| Some(u64::from_le_bytes(headers.get(at..at.checked_add(8)?)?.try_into().ok()?));
    if headers.get(..6)? != b"\x7fELF\x02\x01" {
        return None;
    }
    let (table, size, count) = (usize::try_from(long(32)?).ok()?, usize::from(half(54)?), usize::from(half(56)?));
    let parts = (0..count).map_while(|number| {
        let at = table.checked_add(size.checked_mul(number)?)?;
        headers.get(at..at.checked_add(56)?)?;
        Some((word(at)?, word(at + 4)?, long(at + 16)?, long(at + 40)?))
    });
    let loaded: Vec<_> = parts.filter(|(kind, ..)| *kind == PT_LOAD).collect();
    let lowest = loaded.iter().map(|(_, _, address, _)| *address).min()?;
    let load = base.0.wrapping_sub(lowest & !(PageSize::Small.bytes().0 - 1));
    let writable = loaded.iter().filter(|(_, flags, ..)| flags & PF_W != 0);
    let ends = writable.filter_map(|(_, _, address, length)| {
        let start = load.wrapping_add(*address);
        let end = start.checked_add(*length)?.checked_next_multiple_of(PageSize::Small.bytes().0)?;
        (start < data.range.end().0 && end >= data.range.end().0).then_some(end)
    });
    ends.max()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// First page of a file with one part of code and one of data: `address`, length in memory.
    fn headers(code: u64, data: (u64, u64)) -> Vec<u8> {
        let mut bytes = vec![0; 4096];
        bytes[..6].copy_from_slice(b"\x7fELF\x02\x01");
        bytes[32..40].copy_from_slice(&64_u64.to_le_bytes());
        bytes[54..56].copy_from_slice(&56_u16.to_le_bytes());
        bytes[56..58].copy_from_slice(&2_u16.to_le_bytes());
        for (at, flags, address, length) in [(64, 5_u32, code, 0x1000_u64), (120, 6, data.0, data.1)] {
            bytes[at..at + 4].copy_from_slice(&1_u32.to_le_bytes());
            bytes[at + 4..at + 8].copy_from_slice(&flags.to_le_bytes());
            bytes[at + 16..at + 24].copy_from_slice(&address.to_le_bytes());
            bytes[at + 40..at + 48].copy_from_slice(&length.to_le_bytes());
        }
        bytes
    }

    fn mappings() -> Vec<Mapping> {
        let text = "7f0000000000-7f0000004000 r-xp 00000000 08:01 12 /usr/lib/libx.so\n\
                    7f0000004000-7f0000006000 rw-p 00003000 08:01 12 /usr/lib/libx.so\n\
                    7f0000006000-7f0040000000 rw-p 00000000 00:00 0 \n";
        linux::maps::parse(text, "maps").unwrap()
    }

    #[test]
    fn the_zeros_end_where_the_writable_part_ends_in_memory() {
        let all = mappings();
        let first = first(&all, &all[1]).unwrap();
        assert_eq!(first, &all[0]);
        let of = |code, data| end(&headers(code, data), first.range.start(), &all[1]);
        assert_eq!(of(0, (0x4000, 0x5123)), Some(0x7f00_0000_a000), "a library: relative to its load address");
        let absolute = (0x7f00_0000_4000, 0x2000);
        assert_eq!(of(0x7f00_0000_0000, absolute), Some(0x7f00_0000_6000), "a program at a fixed address, no zeros");
    }

    #[test]
    fn headers_that_do_not_fit_the_mapping_tell_nothing() {
        let all = mappings();
        let base = all[0].range.start();
        assert_eq!(end(&[], base, &all[1]), None);
        assert_eq!(end(b"\x7fELF\x01\x01", base, &all[1]), None, "a 32-bit file");
        assert_eq!(end(&headers(0, (0x4000, 0x100)), base, &all[1]), None, "ends before the data does");
        assert_eq!(end(&headers(0, (0x4000, u64::MAX)), base, &all[1]), None);
        let mut outside = headers(0, (0x4000, 0x5000));
        outside[32..40].copy_from_slice(&u64::MAX.to_le_bytes());
        assert_eq!(end(&outside, base, &all[1]), None);
    }
}
