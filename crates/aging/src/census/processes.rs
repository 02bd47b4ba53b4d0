//! Resident memory of processes by class, from their page tables.
//!
//! The class and the presence of a page are exact. The LRU list is read from the frames, from a sample if there are
//! many.

use linux::kpageflags::FrameTable;
use linux::maps::{self, Mapping};
use linux::pagemap::Pagemap;
use linux::probe::Known;
use linux::{Error, KernelFiles, Pid};
use units::{AddressRange, Bytes, Pages};

use super::frame_set::FrameSet;
use super::kind::Kind;
use super::memory::Memory;
use super::tally::{ByLruState, fraction, lru_state};
use super::{Closeness, OfClass, OfRest};
use crate::class::{Class, Rest};

/// Number of page table entries read in one call: 64 MiB of addresses.
const ENTRIES: u64 = 16384;

/// Frames of some processes by class, each once.
#[derive(Debug, Default)]
pub struct Frames {
    code: FrameSet,
    read_only: FrameSet,
    data: FrameSet,
    shared: FrameSet,
    huge_pool: FrameSet,
    kernel: FrameSet,
}

/// Frames of the host, as needed to look up a process's frames.
#[derive(Clone, Copy, Debug)]
pub struct HostFrames<'a> {
    /// Flags of the frames.
    pub table: &'a FrameTable,
    /// Frames that exist.
    pub memory: &'a Memory,
}

/// Classes that a process can have.
pub const CLASSES: [Class; 4] = [Class::Code, Class::ReadOnly, Class::Data, Class::Shared];

impl Frames {
    /// Frames in the page tables of `pid`; `code` are the frames executed by any process of the host.
    ///
    /// # Errors
    /// `Gone` if it ended, `Denied` without permission to read it.
    pub fn of(files: &impl KernelFiles, pid: Pid, code: &FrameSet, host: HostFrames<'_>) -> Result<Frames, Error> {
        let pagemap = Pagemap::open(pid)?;
        let mut found = Frames::default();
        // Mappings of the kernel ([vdso], [vvar], [vsyscall]) belong to no process.
        for mapping in maps::maps(files, pid)?.into_iter().filter(|mapping| !mapping.path.bytes().starts_with(b"[v")) {
            found.add(&pagemap, &mapping, code, host)?;
        }
        Ok(found)
    }

    fn add(
        &mut self,
        pagemap: &Pagemap,
        mapping: &Mapping,
        code: &FrameSet,
        host: HostFrames<'_>,
    ) -> Result<(), Error> {
        for range in in_memory(pagemap, mapping.range)? {
            let (mut of_files, mut others) = (Vec::new(), Vec::new());
            for entry in pagemap.entries(range)? {
                let Some(frame) = entry.frame() else { continue };
                if entry.is_file() { of_files.push(frame) } else { others.push(frame) }
            }
            let of_file = || Kind::of_frames(&of_files, host.table, host.memory);
            self.insert(&of_files, if mapping.is_secret() { Kind::Shared } else { of_file()? }, code);
            // In a mapping without a file, pages without a file are the process's own.
            let kind =
                if mapping.inode == 0 { Kind::Anonymous } else { Kind::of_frames(&others, host.table, host.memory)? };
            self.insert(&others, kind, code);
        }
        Ok(())
    }

    fn insert(&mut self, frames: &[u64], kind: Kind, code: &FrameSet) {
        for frame in frames.iter().copied() {
            let set = match kind {
                Kind::Nothing => return,
                Kind::Kernel => &mut self.kernel,
                Kind::HugePool => &mut self.huge_pool,
                Kind::Anonymous => &mut self.data,
                Kind::Shared => &mut self.shared,
                Kind::File if code.contains(frame) => &mut self.code,
                Kind::File => &mut self.read_only,
            };
            set.insert(frame);
        }
    }

    /// Adds the frames of another process.
    pub fn add_all(&mut self, other: &Frames) {
        for class in CLASSES {
            self.set_mut(class).add_all(other.set(class));
        }
        self.huge_pool.add_all(&other.huge_pool);
        self.kernel.add_all(&other.kernel);
    }

    fn set(&self, class: Class) -> &FrameSet {
        match class {
            Class::Code => &self.code,
            Class::ReadOnly | Class::Cache => &self.read_only,
            Class::Data => &self.data,
            Class::Shared => &self.shared,
        }
    }

    fn set_mut(&mut self, class: Class) -> &mut FrameSet {
        match class {
            Class::Code => &mut self.code,
            Class::ReadOnly | Class::Cache => &mut self.read_only,
            Class::Data => &mut self.data,
            Class::Shared => &mut self.shared,
        }
    }

    /// Memory of one class.
    pub fn bytes(&self, class: Class) -> Bytes {
        Pages(self.set(class).len()).bytes()
    }

    /// Mapped memory of no class: huge pages of the pool, and buffers of the kernel and its drivers.
    pub fn rest(&self) -> Vec<OfRest> {
        let of = |rest, set: &FrameSet| OfRest { rest, bytes: Pages(set.len()).bytes(), error_bound_bytes: Bytes(0) };
        vec![of(Rest::HugePool, &self.huge_pool), of(Rest::Kernel, &self.kernel)]
    }

    /// Memory by class, and the fraction of the frames whose list was read. `no_lists`: reason that the kernel has no
    /// active list.
    ///
    /// # Errors
    /// `Denied` without CAP_SYS_ADMIN.
    pub fn by_class(
        &self,
        table: &FrameTable,
        no_lists: Option<&str>,
        closeness: Closeness,
    ) -> Result<(Vec<OfClass>, f64), Error> {
        let (mut classes, mut frames_read, mut all) = (Vec::new(), 0, 0);
        for class in CLASSES {
            let set = self.set(class);
            let (found, asked): (ByLruState, u64) = lru_state(table, set, closeness)?;
            frames_read += asked;
            all += set.len();
            let refaults = Known::Unknown(
                "the kernel counts them for the host and for control groups; masu those of files, while it watches"
                    .to_owned(),
            );
            classes.push(found.of_class(class, no_lists, refaults));
        }
        Ok((classes, fraction(frames_read, all)))
    }
}

/// Parts of a mapping with resident pages, in short ranges; without the zero page where the kernel can tell.
fn in_memory(pagemap: &Pagemap, range: AddressRange) -> Result<Vec<AddressRange>, Error> {
    let runs = match pagemap.scan(range) {
        Ok(runs) => runs.into_iter().filter(|run| run.present && !run.zero).map(|run| run.range).collect(),
        Err(Error::Unsupported(_)) => vec![range],
        Err(error) => return Err(error),
    };
    Ok(runs.into_iter().flat_map(|run| pieces(run, Pages(ENTRIES).bytes())).collect())
}

/// Splits a range into parts of at most `most` bytes.
fn pieces(range: AddressRange, most: Bytes) -> impl Iterator<Item = AddressRange> {
    let mut start = range.start().0;
    std::iter::from_fn(move || {
        let end = start.saturating_add(most.0).min(range.end().0);
        // Both ends are sorted page boundaries. Any other range would be a bug, and ends the parts.
        let piece = (start < end).then(|| AddressRange::new(start, end).ok()).flatten();
        start = end;
        piece
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn pieces_are_short_and_make_up_the_whole(start in 0u64..1000, pages in 0u64..1000, most in 1u64..100) {
            let range = AddressRange::new(start * 4096, (start + pages) * 4096).unwrap();
            let found: Vec<AddressRange> = pieces(range, Pages(most).bytes()).collect();
            prop_assert!(found.iter().all(|piece| piece.pages().0 <= most && piece.pages().0 > 0));
            prop_assert!(found.windows(2).all(|two| two[0].end() == two[1].start()));
            prop_assert_eq!(found.iter().map(|piece| piece.pages().0).sum::<u64>(), pages);
        }
    }
}
