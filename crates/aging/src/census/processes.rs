//! What processes have in memory, by class: from their page tables.
//!
//! Which class a page is of, and that it is there, is exact. Where the pages stand with the kernel is asked of the frames, of a
//! sample if there are many.

use linux::kpageflags::FrameTable;
use linux::maps::{self, Mapping};
use linux::pagemap::Pagemap;
use linux::probe::Known;
use linux::{Error, KernelFiles, Pid};
use units::{AddressRange, Bytes, Pages};

use super::frame_set::FrameSet;
use super::kind::Kind;
use super::memory::Memory;
use super::tally::{OfStanding, fraction, standing};
use super::{Closeness, OfClass, OfRest};
use crate::class::{Class, Rest};

/// Entries of a page table that are read in one go: 64 MiB of addresses.
const ENTRIES: u64 = 16384;

/// The frames of some processes by class, each once.
#[derive(Debug, Default)]
pub struct Frames {
    code: FrameSet,
    read_only: FrameSet,
    data: FrameSet,
    shared: FrameSet,
    huge_pool: FrameSet,
    kernel: FrameSet,
}

/// The host's frames, as far as a process's are looked up among them.
#[derive(Clone, Copy, Debug)]
pub struct HostFrames<'a> {
    /// What the kernel keeps about each.
    pub table: &'a FrameTable,
    /// Which there are.
    pub memory: &'a Memory,
}

/// The classes that a process can have something of.
pub const CLASSES: [Class; 4] = [Class::Code, Class::ReadOnly, Class::Data, Class::Shared];

impl Frames {
    /// Those that `pid` has in its page tables; `code` are those that some process of the host runs.
    ///
    /// # Errors
    /// `Gone` if it ended, `Denied` without the right to look at it.
    pub fn of(files: &impl KernelFiles, pid: Pid, code: &FrameSet, host: HostFrames<'_>) -> Result<Frames, Error> {
        let pagemap = Pagemap::open(pid)?;
        let mut found = Frames::default();
        // What the kernel maps for its own ends ([vdso], [vvar], [vsyscall]) is no memory of anybody's.
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
            self.insert(&of_files, Kind::of_frames(&of_files, host.table, host.memory)?, code);
            // Without a file behind the mapping, what has none is the process's own.
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

    /// What is mapped and of no class: huge pages of the pool, and buffers of the kernel and its drivers.
    pub fn rest(&self) -> Vec<OfRest> {
        let of = |rest, set: &FrameSet| OfRest { rest, bytes: Pages(set.len()).bytes(), error_bound_bytes: Bytes(0) };
        vec![of(Rest::HugePool, &self.huge_pool), of(Rest::Kernel, &self.kernel)]
    }

    /// By class, and which part of the frames was asked where it stands; `no_lists` is why the kernel has no active list, if so.
    ///
    /// # Errors
    /// `Denied` without CAP_SYS_ADMIN.
    pub fn by_class(
        &self,
        table: &FrameTable,
        no_lists: Option<&str>,
        closeness: Closeness,
    ) -> Result<(Vec<OfClass>, f64), Error> {
        let (mut classes, mut looked_at, mut all) = (Vec::new(), 0, 0);
        for class in CLASSES {
            let set = self.set(class);
            let (found, asked): (OfStanding, u64) = standing(table, set, closeness)?;
            looked_at += asked;
            all += set.len();
            let refaults = Known::Unknown(
                "the kernel counts them for the host and for control groups; masu those of files, while it watches"
                    .to_owned(),
            );
            classes.push(found.of_class(class, no_lists, refaults));
        }
        Ok((classes, fraction(looked_at, all)))
    }
}

/// The parts of a mapping in which pages are in memory, none of them long, without the page of zeros where the kernel can tell.
fn in_memory(pagemap: &Pagemap, range: AddressRange) -> Result<Vec<AddressRange>, Error> {
    let runs = match pagemap.scan(range) {
        Ok(runs) => runs.into_iter().filter(|run| run.present && !run.zero).map(|run| run.range).collect(),
        Err(Error::Unsupported(_)) => vec![range],
        Err(error) => return Err(error),
    };
    Ok(runs.into_iter().flat_map(|run| pieces(run, Pages(ENTRIES).bytes())).collect())
}

/// A range in parts of at most `most` bytes.
fn pieces(range: AddressRange, most: Bytes) -> impl Iterator<Item = AddressRange> {
    let mut start = range.start().0;
    std::iter::from_fn(move || {
        let end = start.saturating_add(most.0).min(range.end().0);
        // Both ends are page boundaries, in order: a range that is not would be our mistake, and ends the parts.
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
