//! Records of the BPF program for page-cache insertions: `bpf/insertion_record.h` in Rust.
//!
//! A test compares these with the type information in the compiled program, member by member.

/// `struct insertion_run`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Run {
    pub inode: u64,
    pub first: u64,
    pub pages: u64,
    pub since_ns: u64,
    pub device: u32,
    pub generation: u32,
    pub process: u32,
    pub processor: u32,
}

/// `struct insertion_filter`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FilterRecord {
    pub group: u64,
    pub all: u32,
    pub others: u32,
}

/// `struct inserter`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InserterRecord {
    pub start_ns: u64,
    pub name: [u8; 16],
    pub of_kernel: u32,
    pub parent: u32,
}

/// `INSERTION_MEMBER`.
pub const MEMBER: u32 = 1;
/// `INSERTION_PARENT`.
pub const PARENT: u32 = 2;

impl Run {
    /// Decodes the kernel's bytes; `None` when the length is not exactly that of the record.
    pub fn from_bytes(bytes: &[u8]) -> Option<Run> {
        let mut words =
            bytes.chunks_exact(8).filter_map(|word| word.first_chunk()).map(|word| u64::from_ne_bytes(*word));
        let mut word = || words.next();
        let (inode, first, pages, since_ns) = (word()?, word()?, word()?, word()?);
        let mut halves = bytes
            .get(32..)?
            .chunks_exact(4)
            .filter_map(|half| half.first_chunk())
            .map(|half| u32::from_ne_bytes(*half));
        let mut half = || halves.next();
        let (device, generation, process, processor) = (half()?, half()?, half()?, half()?);
        let run = Run { inode, first, pages, since_ns, device, generation, process, processor };
        (bytes.len() == size_of::<Run>()).then_some(run)
    }

    /// The run without its length: its identity.
    pub fn start(self) -> Run {
        Run { pages: 0, ..self }
    }
}

impl FilterRecord {
    /// Encodes it for the kernel.
    pub fn to_bytes(self) -> Vec<u8> {
        let mut bytes = self.group.to_ne_bytes().to_vec();
        bytes.extend_from_slice(&self.all.to_ne_bytes());
        bytes.extend_from_slice(&self.others.to_ne_bytes());
        bytes
    }
}

impl InserterRecord {
    /// Decodes the kernel's bytes; `None` when the length is not exactly that of the record.
    pub fn from_bytes(bytes: &[u8]) -> Option<InserterRecord> {
        let (start, rest) = bytes.split_first_chunk::<8>()?;
        let (name, rest) = rest.split_first_chunk::<16>()?;
        let (of_kernel, parent) = rest.split_first_chunk::<4>()?;
        let parent = u32::from_ne_bytes(parent.try_into().ok()?);
        let (start_ns, of_kernel) = (u64::from_ne_bytes(*start), u32::from_ne_bytes(*of_kernel));
        Some(InserterRecord { start_ns, name: *name, of_kernel, parent })
    }

    /// The name up to its first zero byte.
    pub fn name(&self) -> &[u8] {
        self.name.split(|byte| *byte == 0).next().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bpf_object;

    #[test]
    fn a_run_survives_the_way_through_bytes() {
        let words: Vec<u8> =
            (1u64..=4).flat_map(u64::to_ne_bytes).chain((5u32..=8).flat_map(u32::to_ne_bytes)).collect();
        let run = Run { inode: 1, first: 2, pages: 3, since_ns: 4, device: 5, generation: 6, process: 7, processor: 8 };
        assert_eq!(Run::from_bytes(&words), Some(run));
        assert_eq!(Run::from_bytes(&words[1..]), None);
        assert_eq!(Run::from_bytes(&[]), None);
        assert_eq!(FilterRecord { group: 1, all: 2, others: 0 }.to_bytes().len(), size_of::<FilterRecord>());
    }

    #[test]
    fn an_inserter_is_decoded_and_its_name_ends_at_the_first_zero() {
        let mut bytes = 7u64.to_ne_bytes().to_vec();
        bytes.extend_from_slice(b"walsender\0\0\0\0\0\0\0");
        bytes.extend([1u32, 9].iter().flat_map(|word| word.to_ne_bytes()));
        let found = InserterRecord::from_bytes(&bytes).unwrap();
        assert_eq!((found.start_ns, found.name(), found.of_kernel, found.parent), (7, &b"walsender"[..], 1, 9));
        assert_eq!(InserterRecord::from_bytes(&bytes[1..]), None);
        assert_eq!(InserterRecord { name: [b'x'; 16], ..found }.name().len(), 16, "a name without an end");
    }

    #[test]
    fn the_records_are_laid_out_as_in_the_compiled_program() {
        macro_rules! same {
            ($c:literal, $record:ty, $($field:ident),+) => {
                assert_eq!(bpf_object::layout("insertions.bpf.o", $c), [$(
                    (stringify!($field).to_owned(), u32::try_from(std::mem::offset_of!($record, $field)).unwrap())
                ),+]);
            };
        }
        same!("insertion_run", Run, inode, first, pages, since_ns, device, generation, process, processor);
        same!("insertion_filter", FilterRecord, group, all, others);
        same!("inserter", InserterRecord, start_ns, name, of_kernel, parent);
    }
}
