//! Page-cache insertions: pages of files that enter the page cache, each with its process. Counted exactly, by BPF at
//! the kernel's own tracepoint.
//!
//! A page that was in the cache before is not inserted. So a caller that wants to undo a stream's effect on the page
//! cache, and nothing else, drops the inserted pages, and needs no snapshot from before.
//!
//! `record` is the record format of the two sides. Each page is reported once, in runs. Runs that are not
//! fetched in time are dropped and counted: the ring has space for 74,898.
//!
//! Servers and kernel threads read for the selected processes. So the insertions of all other processes are reported,
//! too, where they are wanted ([`Insertions::fetch_others`]): in a ring of their own, with space for 18,724 runs, so
//! that no other process can fill the first.
//!
//! Cost: some 0.1 µs for each added folio, in the path of the process that adds it; loading takes about 0.1 s.

mod record;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

use libbpf_rs::{Link, MapCore, MapFlags, MapHandle, Object, ObjectBuilder, PrintLevel, RingBuffer, RingBufferBuilder};
use linux::{Pid, Untrusted};
use units::Pages;

use crate::backend::Unavailable;
use crate::bpf_object::{self, Aligned};
use record::{FilterRecord, InserterRecord, MEMBER, PARENT, Run};

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

/// A process with insertions, as it was at one of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inserter {
    /// Name of its first thread.
    pub name: Untrusted,
    /// True for a kernel thread.
    pub of_kernel: bool,
    /// Start, in nanoseconds: distinguishes it from a later process with the same pid.
    pub start_ns: u64,
    /// Parent at its last insertion run; `None` for a process of the kernel's own, and for the first process.
    pub parent: Option<Pid>,
}

/// Insertions of the selected processes, or of the others.
#[derive(Debug)]
struct Side {
    /// Its number in the maps of the program.
    number: u32,
    ring: RingBuffer<'static>,
    fetched: Rc<RefCell<Vec<Run>>>,
    reported: Reported,
}

/// The loaded program. Dropping it detaches it.
#[derive(Debug)]
pub struct Insertions {
    selected: Side,
    others: Side,
    open_runs: MapHandle,
    lost: MapHandle,
    members: MapHandle,
    inserters: MapHandle,
    filter: MapHandle,
    filter_record: Cell<FilterRecord>,
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
        let filter_record = Cell::new(record_of(filter));
        set_filter(&filters, filter_record.get())?;
        let (selected, others) = (Side::of(0, &handle("runs")?)?, Side::of(1, &handle("other_runs")?)?);
        let (open_runs, lost, members) = (handle("open_runs")?, handle("lost_pages")?, handle("members")?);
        let inserters = handle("inserters")?;
        let links = object.progs_mut().map(|program| program.attach()).collect::<Result<Vec<Link>, _>>();
        let _links = links.map_err(|e| refused("be attached", &e))?;
        let filter = filters;
        Ok(Insertions {
            selected,
            others,
            open_runs,
            lost,
            members,
            inserters,
            filter,
            filter_record,
            _links,
            _object: object,
        })
    }

    /// Sets the processes whose insertions are reported from now on.
    ///
    /// # Errors
    /// When the kernel takes the maps away, which it does not.
    pub fn set_filter(&self, filter: Filter) -> Result<(), Unavailable> {
        self.filter_record.set(FilterRecord { others: self.filter_record.get().others, ..record_of(filter) });
        set_filter(&self.filter, self.filter_record.get())
    }

    /// Reports the insertions of all other processes from now on, by [`Insertions::fetch_others`].
    ///
    /// # Errors
    /// When the kernel takes the maps away, which it does not.
    pub fn report_others(&self) -> Result<(), Unavailable> {
        self.filter_record.set(FilterRecord { others: 1, ..self.filter_record.get() });
        set_filter(&self.filter, self.filter_record.get())
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

    /// Members: those added, and the processes that they started since. A parent that only starts others is one, too.
    pub fn member_pids(&self) -> Vec<Pid> {
        let pid = |bytes: Vec<u8>| Some(Pid(i32::from_ne_bytes(*bytes.first_chunk()?)));
        self.members.keys().filter_map(pid).collect()
    }

    /// Insertions since the last call, in order of insertion. Each processor reports its own runs, and a reading
    /// process may move between processors.
    ///
    /// # Errors
    /// When the kernel takes the maps away, which it does not.
    pub fn fetch(&mut self) -> Result<Vec<Insertion>, Unavailable> {
        self.selected.fetch(&self.open_runs)
    }

    /// Insertions of processes that are not selected, in order as of [`Insertions::fetch`]; none before
    /// [`Insertions::report_others`].
    ///
    /// # Errors
    /// When the kernel takes the maps away, which it does not.
    pub fn fetch_others(&mut self) -> Result<Vec<Insertion>, Unavailable> {
        self.others.fetch(&self.open_runs)
    }

    /// Process of an insertion that is not selected; it may have ended. `None` when the program no longer remembers it:
    /// it remembers 4,096.
    pub fn inserter(&self, pid: Pid) -> Option<Inserter> {
        let bytes = self.inserters.lookup(&pid.0.to_ne_bytes(), MapFlags::ANY).ok().flatten()?;
        let record = InserterRecord::from_bytes(&bytes)?;
        let name = Untrusted::new(record.name());
        let parent = i32::try_from(record.parent).ok().filter(|parent| *parent > 0).map(Pid);
        Some(Inserter { name, of_kernel: record.of_kernel != 0, start_ns: record.start_ns, parent })
    }

    /// Pages inserted and not reported, since the start.
    pub fn lost(&self) -> Pages {
        self.lost_of(&self.selected)
    }

    /// Pages inserted by processes that are not selected and not reported, since [`Insertions::report_others`].
    pub fn lost_of_others(&self) -> Pages {
        self.lost_of(&self.others)
    }

    fn lost_of(&self, side: &Side) -> Pages {
        let lost = self.lost.lookup_percpu(&side.number.to_ne_bytes(), MapFlags::ANY).ok().flatten();
        let counts = lost.unwrap_or_default();
        Pages(counts.iter().filter_map(|bytes| Some(u64::from_ne_bytes(*bytes.first_chunk()?))).sum())
    }
}

impl Side {
    fn of(number: u32, runs: &MapHandle) -> Result<Side, Unavailable> {
        let fetched = Rc::new(RefCell::new(Vec::new()));
        let into = Rc::clone(&fetched);
        let mut builder = RingBufferBuilder::new();
        let added = builder.add(runs, move |bytes| {
            into.borrow_mut().extend(Run::from_bytes(bytes));
            0
        });
        added.map_err(|e| refused("share its maps", &e))?;
        let ring = builder.build().map_err(|e| refused("share its maps", &e))?;
        Ok(Side { number, ring, fetched, reported: Reported::default() })
    }

    fn fetch(&mut self, open_runs: &MapHandle) -> Result<Vec<Insertion>, Unavailable> {
        self.ring.consume().map_err(|e| refused("be read", &e))?;
        let mut new = Vec::new();
        for run in self.fetched.borrow_mut().drain(..) {
            new.extend(self.reported.finished(run).map(|insertion| (run.since_ns, insertion)));
        }
        let open = open_runs.lookup_percpu(&self.number.to_ne_bytes(), MapFlags::ANY);
        for bytes in open.map_err(|e| refused("be read", &e))?.into_iter().flatten() {
            // Each processor's part has the length of the record; the kernel's padding is left out.
            let run = bytes.get(..size_of::<Run>()).and_then(Run::from_bytes);
            let run = run.filter(|run| run.pages > 0);
            new.extend(run.and_then(|run| Some((run.since_ns, self.reported.so_far(run)?))));
        }
        new.sort_by_key(|(since_ns, _)| *since_ns);
        Ok(new.into_iter().map(|(_, insertion)| insertion).collect())
    }
}

fn record_of(filter: Filter) -> FilterRecord {
    let group = if let Filter::Group(id) = filter { id } else { 0 };
    FilterRecord { group, all: u32::from(filter == Filter::All), others: 0 }
}

fn set_filter(map: &MapHandle, record: FilterRecord) -> Result<(), Unavailable> {
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
