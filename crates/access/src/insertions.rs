//! Page-cache insertions: pages of files that enter the page cache, each with its process. Counted exactly, by BPF at
//! the kernel's own tracepoint.
//!
//! A page that was in the cache before is not inserted. So a caller that wants to undo a stream's effect on the page
//! cache, and nothing else, drops the inserted pages, and needs no snapshot from before.
//!
//! `record` is the record format of the two sides. Each page is reported once, in runs. Runs that are not
//! fetched in time are dropped and counted: the ring has space for 74,898.
//!
//! Cost: some 0.1 µs for each added folio, in the path of the process that adds it; loading takes about 0.1 s.

mod record;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

use libbpf_rs::{Link, MapCore, MapFlags, MapHandle, Object, ObjectBuilder, PrintLevel, RingBuffer, RingBufferBuilder};
use linux::Pid;
use units::Pages;

use crate::backend::Unavailable;
use crate::bpf_object::{self, Aligned};
use record::{FilterRecord, MEMBER, PARENT, Run};

/// Name in messages.
const PROGRAM: &str = "the program for page-cache insertions";

static OBJECT: &Aligned<[u8]> = &Aligned(*include_bytes!("../bpf/insertions.bpf.o"));

/// Processes whose insertions are reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filter {
    /// All processes.
    All,
    /// Processes in a control group of the memory controller and below it; the number is its inode.
    Group(u64),
    /// Members ([`Insertions::add_member`]) and all processes that they start from then on.
    Members,
}

/// Kind of membership.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Membership {
    /// Reports the insertions of the process, and of those that it starts.
    Whole,
    /// Reports only those that it starts: for a launcher that is not itself part of the workload.
    Children,
}

/// A file, by the kernel's numbers for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileId {
    /// The file system's device: major and minor number.
    pub device: (u32, u32),
    /// Its inode.
    pub inode: u64,
    /// Distinguishes it from a later file with the same inode.
    pub generation: u32,
}

/// Consecutive pages of one file, inserted by one process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Insertion {
    /// The file.
    pub file: FileId,
    /// Its page numbers.
    pub pages: Range<u64>,
    /// Process that caused the insertion.
    pub process: Pid,
}

/// The loaded program. Dropping it detaches it.
#[derive(Debug)]
pub struct Insertions {
    ring: RingBuffer<'static>,
    fetched: Rc<RefCell<Vec<Run>>>,
    open_runs: MapHandle,
    lost: MapHandle,
    members: MapHandle,
    reported: Reported,
    filter: MapHandle,
    _links: Vec<Link>,
    _object: Object,
}

impl Insertions {
    /// Starts recording insertions.
    ///
    /// # Errors
    /// Reason for which this host does not allow it, and the remedy.
    pub fn of(filter: Filter) -> Result<Insertions, Unavailable> {
        libbpf_rs::set_print(None::<(PrintLevel, fn(PrintLevel, String))>);
        let open = ObjectBuilder::default().open_memory(&OBJECT.0).map_err(|e| refused("be opened", &e))?;
        let object = open.load().map_err(|e| refused("be loaded", &e))?;
        let handle = |name| bpf_object::map_of(&object, PROGRAM, name);
        let filters = handle("filter")?;
        set_filter(&filters, filter)?;
        let fetched = Rc::new(RefCell::new(Vec::new()));
        let runs = handle("runs")?;
        let into = Rc::clone(&fetched);
        let ring = {
            let mut builder = RingBufferBuilder::new();
            let added = builder.add(&runs, move |bytes| {
                into.borrow_mut().extend(Run::from_bytes(bytes));
                0
            });
            added.map_err(|e| refused("share its maps", &e))?;
            builder.build().map_err(|e| refused("share its maps", &e))?
        };
        let (open_runs, lost, members) = (handle("open_runs")?, handle("lost_pages")?, handle("members")?);
        let links = object.progs_mut().map(|program| program.attach()).collect::<Result<Vec<Link>, _>>();
        let _links = links.map_err(|e| refused("be attached", &e))?;
        let (reported, filter) = (Reported::default(), filters);
        Ok(Insertions { ring, fetched, open_runs, lost, members, reported, filter, _links, _object: object })
    }

    /// Sets the processes whose insertions are reported from now on.
    ///
    /// # Errors
    /// When the kernel takes the maps away, which it does not.
    pub fn set_filter(&self, filter: Filter) -> Result<(), Unavailable> {
        set_filter(&self.filter, filter)
    }

    /// Makes a process a member, for [`Filter::Members`]. Processes that it started before are not members.
    ///
    /// # Errors
    /// When there are 65,536 already.
    pub fn add_member(&self, pid: Pid, membership: Membership) -> Result<(), Unavailable> {
        let value = match membership {
            Membership::Whole => MEMBER,
            Membership::Children => PARENT,
        };
        let added = self.members.update(&pid.0.to_ne_bytes(), &value.to_ne_bytes(), MapFlags::ANY);
        added.map_err(|e| refused("take another member", &e))
    }

    /// Ends a membership; processes that it started remain members.
    pub fn remove_member(&self, pid: Pid) {
        let _ = self.members.delete(&pid.0.to_ne_bytes()); // It may have ended, and its membership with it.
    }

    /// Number of members.
    pub fn members(&self) -> usize {
        self.members.keys().count()
    }

    /// Insertions since the last call, in order of insertion. Each processor reports its own runs, and a reading
    /// process may move between processors.
    ///
    /// # Errors
    /// When the kernel takes the maps away, which it does not.
    pub fn fetch(&mut self) -> Result<Vec<Insertion>, Unavailable> {
        self.ring.consume().map_err(|e| refused("be read", &e))?;
        let mut new = Vec::new();
        for run in self.fetched.borrow_mut().drain(..) {
            new.extend(self.reported.finished(run).map(|insertion| (run.since_ns, insertion)));
        }
        let open = self.open_runs.lookup_percpu(&0u32.to_ne_bytes(), MapFlags::ANY);
        for bytes in open.map_err(|e| refused("be read", &e))?.into_iter().flatten() {
            // Each processor's part has the length of the record; the kernel's padding is left out.
            let run = bytes.get(..size_of::<Run>()).and_then(Run::from_bytes);
            let run = run.filter(|run| run.pages > 0);
            new.extend(run.and_then(|run| Some((run.since_ns, self.reported.so_far(run)?))));
        }
        new.sort_by_key(|(since_ns, _)| *since_ns);
        Ok(new.into_iter().map(|(_, insertion)| insertion).collect())
    }

    /// Pages inserted and not reported, since the start.
    pub fn lost(&self) -> Pages {
        let lost = self.lost.lookup_percpu(&0u32.to_ne_bytes(), MapFlags::ANY).ok().flatten().unwrap_or_default();
        Pages(lost.iter().filter_map(|bytes| Some(u64::from_ne_bytes(*bytes.first_chunk()?))).sum())
    }
}

fn set_filter(map: &MapHandle, filter: Filter) -> Result<(), Unavailable> {
    let record = FilterRecord {
        group: if let Filter::Group(id) = filter { id } else { 0 },
        all: u32::from(filter == Filter::All),
        unused: 0,
    };
    let set = map.update(&0u32.to_ne_bytes(), &record.to_bytes(), MapFlags::ANY);
    set.map_err(|e| refused("take the filter of processes", &e))
}

fn refused(what: &str, error: &libbpf_rs::Error) -> Unavailable {
    bpf_object::refused(PROGRAM, what, error)
}

/// Pages already reported of open runs, so that each page is reported once.
#[derive(Debug, Default)]
struct Reported(BTreeMap<Run, u64>);

impl Reported {
    /// More open runs than there are processors: their ends were lost.
    const MOST: usize = 4096;

    /// New pages of a run that is still open.
    fn so_far(&mut self, run: Run) -> Option<Insertion> {
        if self.0.len() >= Self::MOST {
            self.0.clear();
        }
        let before = self.0.insert(run.start(), run.pages).unwrap_or(0);
        insertion(run, before)
    }

    /// New pages of a complete run.
    fn finished(&mut self, run: Run) -> Option<Insertion> {
        let before = self.0.remove(&run.start()).unwrap_or(0);
        insertion(run, before)
    }
}

/// Pages of a run beyond the first `reported`.
fn insertion(run: Run, reported: u64) -> Option<Insertion> {
    let end = run.first.checked_add(run.pages)?;
    let pages = run.first.saturating_add(reported)..end;
    let device = (run.device >> 20, run.device & 0xf_ffff);
    let file = FileId { device, inode: run.inode, generation: run.generation };
    let process = Pid(i32::try_from(run.process).ok()?);
    (!pages.is_empty()).then_some(Insertion { file, pages, process })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(first: u64, pages: u64) -> Run {
        Run { inode: 12, first, pages, since_ns: 1, device: 254 << 20 | 1, generation: 3, process: 42, processor: 0 }
    }

    fn pages(insertion: Option<Insertion>) -> Range<u64> {
        insertion.map_or(0..0, |insertion| insertion.pages)
    }

    #[test]
    fn a_page_is_told_once_though_its_run_is_seen_again_and_again() {
        let mut reported = Reported::default();
        assert_eq!(pages(reported.so_far(run(10, 2))), 10..12);
        assert_eq!(reported.so_far(run(10, 2)), None);
        assert_eq!(pages(reported.so_far(run(10, 5))), 12..15);
        assert_eq!(pages(reported.finished(run(10, 6))), 15..16);
        // The same pages, removed and inserted again, are reported again.
        assert_eq!(pages(reported.finished(run(10, 6))), 10..16);
    }

    #[test]
    fn an_open_run_of_one_processor_hides_none_of_another() {
        let mut reported = Reported::default();
        assert_eq!(pages(reported.so_far(run(10, 6))), 10..16);
        // It was removed, and inserted again by another processor, while the first still has its run.
        assert_eq!(pages(reported.finished(Run { processor: 1, ..run(10, 6) })), 10..16);
        assert_eq!(reported.so_far(run(10, 6)), None);
    }

    #[test]
    fn what_is_told_of_is_bounded_though_ends_get_lost() {
        let mut reported = Reported::default();
        for first in 0..3 * Reported::MOST as u64 {
            reported.so_far(run(first * 100, 1));
        }
        assert!(reported.0.len() <= Reported::MOST);
    }

    #[test]
    fn a_file_is_named_as_stat_names_it() {
        let file = insertion(run(0, 1), 0).unwrap().file;
        assert_eq!(file, FileId { device: (254, 1), inode: 12, generation: 3 });
        assert_eq!(insertion(run(u64::MAX, 2), 0), None, "no file has such pages");
    }
}
