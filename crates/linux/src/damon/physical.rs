//! DAMON on the physical memory of the host: schemes that act on pages (DAMOS, `paddr`).
//!
//! A scheme visits the memory regions of a given access and acts on each page that its filters let through: moves it to
//! the active or the inactive list, reclaims it, or counts it. So classes of pages can be aged separately: anonymous or
//! not, mapped or not, of one control group. The class of a page is read from `kpageflags.rs`.
//!
//! As in `damon.rs`, which owns the tree: [`Draft`] (nothing written yet), [`Committed`], [`Running`], [`promise_undo`]
//! to a journal in case of a crash, and a refusal where another program has set up a kdamond. The initial regions are
//! all memory that `iomem.rs` finds.
//!
//! Capabilities of this kernel are found by trying: [`offered`].
//!
//! Cost: one sample per region and sampling interval, and some 100 ns per page of its regions for each pass of a
//! scheme, done by a kernel thread; a [`Quota`] bounds it. Reading the counters waits for the end of a sampling
//! interval.
//! Side effect: sampling clears accessed bits, which reclaim and our own tracking read too.
//!
//! Since: `lru_prio` and `lru_deprio` Linux 6.0; filters by anonymous and group 6.3, young 6.10, unmapped and active
//! 6.15; `apply_interval_us` 6.7, `allow` and `sz_ops_filter_passed` 6.14. Needs CONFIG_DAMON_PADDR and
//! CONFIG_DAMON_SYSFS. Root only.
//!
//! Truth: Documentation/admin-guide/mm/damon/usage.rst and Documentation/mm/damon/design.rst.

mod scheme;

pub use super::{Looks, promise_undo};
pub use scheme::{Action, Filter, FilterKind, FilterRule, Quota, Scheme};

use rustix::io::Errno;
use units::{AddressRange, Bytes, Pages};

use super::{
    CONTEXT, KDAMONDS, Tree, UPDATE_INTERVAL, demand_free, failed_write, marked_update_us, read, read_number, write,
};
use crate::{At, Error, KernelFiles, iomem};

const OPERATIONS: &str = "paddr";
const WATCHING: &str = "physical memory";
const STATE: &str = "0/state";

/// Capabilities of this kernel's DAMON for physical memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// Supported actions.
    pub actions: Vec<Action>,
    /// Supported filters.
    pub filters: Vec<FilterKind>,
    /// Filters can allow pages too; otherwise only reject.
    pub allowing: bool,
    /// A scheme can have an interval of its own.
    pub apply_interval: bool,
    /// The kernel counts the bytes that the filters let through.
    pub counts_passed: bool,
}

impl Offer {
    /// True when this scheme can be set up here.
    pub fn takes(&self, scheme: &Scheme) -> bool {
        self.actions.contains(&scheme.action)
            && (scheme.apply_interval.is_none() || self.apply_interval)
            && scheme
                .filters
                .iter()
                .all(|rule| self.filters.contains(&rule.filter.kind()) && (self.allowing || !rule.allow))
    }
}

/// Probes DAMON for physical memory by setting up a scheme for a moment. No thread is started.
///
/// # Errors
/// `Unsupported` without DAMON, or where it cannot watch physical memory; `Denied` without root; `Other` with EBUSY
/// where another program has set up a kdamond, which is left alone.
pub fn offered(files: &impl KernelFiles) -> Result<Offer, Error> {
    demand_free(files)?;
    let tree = Tree::grow_for(files, OPERATIONS, WATCHING)?;
    demand(files, UPDATE_INTERVAL, &marked_update_us().to_string())?;
    demand(files, &format!("{CONTEXT}/schemes/nr_schemes"), "1")?;
    let takes = |name: &str, value: &str| {
        let name = format!("{}/{name}", directory_of(0));
        match write(files, &name, value) {
            Ok(()) => Ok(true),
            Err(Errno::INVAL | Errno::NOENT) => Ok(false),
            Err(errno) => Err(failed_write(&name, value, errno)),
        }
    };
    let mut offer = Offer {
        actions: Vec::new(),
        filters: Vec::new(),
        allowing: false,
        apply_interval: takes("apply_interval_us", "0")?,
        counts_passed: files.read(&format!("{KDAMONDS}/{}/stats/sz_ops_filter_passed", directory_of(0))).is_ok(),
    };
    for action in Action::ALL {
        if takes("action", action.name())? {
            offer.actions.push(action);
        }
    }
    if takes("filters/nr_filters", "1")? {
        for kind in FilterKind::ALL {
            if takes("filters/0/type", kind.name())? {
                offer.filters.push(kind);
            }
        }
        offer.allowing = takes("filters/0/allow", "Y")?;
    }
    tree.fell()?;
    Ok(offer)
}

/// Schemes before anything is written.
#[derive(Debug)]
pub struct Draft<'f, F: KernelFiles> {
    files: &'f F,
    looks: Looks,
    schemes: Vec<Scheme>,
    memory: Vec<AddressRange>,
}

impl<'f, F: KernelFiles> Draft<'f, F> {
    /// Checks that the schemes are valid and that no other program uses DAMON through sysfs; finds the memory.
    ///
    /// # Errors
    /// `Unsupported` without DAMON, `Denied` without root; `Other` with EBUSY when there are kdamonds already, with
    /// EINVAL for parameters that the kernel would refuse or misread: no scheme at all, an empty range, a quota of
    /// nothing, a group that is no path, invalid intervals or regions.
    pub fn new(files: &'f F, looks: Looks, schemes: Vec<Scheme>) -> Result<Draft<'f, F>, Error> {
        looks.check()?;
        if schemes.is_empty() {
            let object = "no scheme to physical memory with DAMON".to_owned();
            return Err(Error::Other(At { operation: "apply".to_owned(), object, errno: Errno::INVAL }));
        }
        schemes.iter().try_for_each(|scheme| scheme.check(looks.sample_interval))?;
        demand_free(files)?;
        let memory = memory(files)?;
        Ok(Draft { files, looks, schemes, memory })
    }

    /// Fills in the kernel's tree.
    ///
    /// # Errors
    /// `Unsupported` where DAMON cannot watch physical memory, or lacks an action or a filter; the error names it. The
    /// writes are undone.
    pub fn commit(self) -> Result<Committed<'f, F>, Error> {
        let Draft { files, looks, schemes, memory } = self;
        let tree = Tree::grow_for(files, OPERATIONS, WATCHING)?;
        for (name, value) in looks.writes(OPERATIONS) {
            demand(files, &name, &value)?;
        }
        demand(files, &format!("{CONTEXT}/targets/nr_targets"), "1")?;
        let regions = format!("{CONTEXT}/targets/0/regions");
        demand(files, &format!("{regions}/nr_regions"), &memory.len().to_string())?;
        for (number, range) in memory.iter().enumerate() {
            demand(files, &format!("{regions}/{number}/start"), &range.start().0.to_string())?;
            demand(files, &format!("{regions}/{number}/end"), &range.end().0.to_string())?;
        }
        demand(files, &format!("{CONTEXT}/schemes/nr_schemes"), &schemes.len().to_string())?;
        for (number, scheme) in schemes.iter().enumerate() {
            for line in scheme.writes() {
                let name = format!("{}/{}", directory_of(number), line.name);
                write(files, &name, &line.value).map_err(|errno| {
                    line.lack.error(errno).unwrap_or_else(|| failed_write(&name, &line.value, errno))
                })?;
            }
        }
        Ok(Committed { tree, looks, schemes })
    }
}

/// Schemes that are filled in and not applied yet.
#[derive(Debug)]
pub struct Committed<'f, F: KernelFiles> {
    tree: Tree<'f, F>,
    looks: Looks,
    schemes: Vec<Scheme>,
}

impl<'f, F: KernelFiles> Committed<'f, F> {
    /// Starts the kernel's thread.
    ///
    /// # Errors
    /// `Gone` if a control group that a filter names does not exist; `Other` with EBUSY when a kernel module uses DAMON
    /// exclusively. The writes are undone.
    pub fn start(mut self) -> Result<Running<'f, F>, Error> {
        let files = self.tree.files;
        write(files, STATE, "on").map_err(|errno| match self.missing_group() {
            // Kernels report a missing group as EINVAL, or as ENOMEM (6.12) with any amount of memory.
            Some(path) if matches!(errno, Errno::INVAL | Errno::NOMEM) => {
                let object = format!("pages by control group {path} with DAMON, which finds no such group");
                Error::Gone(At { operation: "filter".to_owned(), object, errno })
            }
            _ => failed_write(STATE, "on", errno),
        })?;
        self.tree.running = true;
        Ok(Running { tree: self.tree, looks: self.looks, schemes: self.schemes.len() })
    }

    /// A filter's group without a directory at the usual mount points.
    fn missing_group(&self) -> Option<&str> {
        let there = |path: &str| {
            ["sys/fs/cgroup", "sys/fs/cgroup/memory"]
                .iter()
                .any(|mount| self.tree.files.list(&format!("{mount}{path}")).is_ok())
        };
        let mut filters = self.schemes.iter().flat_map(|scheme| &scheme.filters);
        filters.find_map(|rule| match &rule.filter {
            Filter::Group(path) if !there(path) => Some(path.as_str()),
            _ => None,
        })
    }
}

/// Counters of a scheme since its start, by the kernel's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stats {
    /// Regions with the scheme's access.
    pub nr_tried: u64,
    /// Bytes of those regions, each time one was tried.
    pub sz_tried: Bytes,
    /// Regions with at least one page acted on.
    pub nr_applied: u64,
    /// Bytes acted on. A page that was already on its target list may count or not: check with `kpageflags.rs`.
    pub sz_applied: Bytes,
    /// Bytes that the filters let through; `None` where the kernel does not count them.
    pub sz_ops_filter_passed: Option<Bytes>,
    /// Number of times the quota stopped the scheme.
    pub qt_exceeds: u64,
}

/// Running schemes.
#[derive(Debug)]
pub struct Running<'f, F: KernelFiles> {
    tree: Tree<'f, F>,
    looks: Looks,
    schemes: usize,
}

impl<F: KernelFiles> Running<'_, F> {
    /// Counters of each scheme, in the order of the schemes. Waits for the end of a sampling interval.
    ///
    /// # Errors
    /// `Gone` if another program stopped the thread, `Malformed` for text that is no number.
    pub fn stats(&self) -> Result<Vec<Stats>, Error> {
        const COMMAND: &str = "update_schemes_stats";
        let files = self.tree.files;
        if let Err(errno) = write(files, STATE, COMMAND) {
            return Err(self.stopped().unwrap_or_else(|| failed_write(STATE, COMMAND, errno)));
        }
        (0..self.schemes).map(|number| read_stats(files, &format!("{}/stats", directory_of(number)))).collect()
    }

    /// Largest possible `nr_accesses` of a scheme: samples in one aggregation interval.
    pub fn max_nr_accesses(&self) -> u32 {
        self.looks.most()
    }

    /// Stops the kernel's thread and removes the tree. Dropping does the same, but ignores failures.
    ///
    /// # Errors
    /// The kernel's answer.
    pub fn stop(self) -> Result<(), Error> {
        self.tree.fell()
    }

    /// The error for a thread that no longer runs; it never ends by itself.
    fn stopped(&self) -> Option<Error> {
        let state = read(self.tree.files, STATE).ok()?;
        let object = "with DAMON, whose thread somebody stopped".to_owned();
        (state.trim() == "off").then(|| Error::Gone(At { operation: "go on".to_owned(), object, errno: Errno::SRCH }))
    }
}

fn directory_of(scheme: usize) -> String {
    format!("{CONTEXT}/schemes/{scheme}")
}

/// A write that succeeds on every kernel with DAMON.
fn demand(files: &impl KernelFiles, name: &str, value: &str) -> Result<(), Error> {
    write(files, name, value).map_err(|errno| failed_write(name, value, errno))
}

fn read_stats(files: &impl KernelFiles, directory: &str) -> Result<Stats, Error> {
    let number = |name: &str| read_number(files, &format!("{directory}/{name}"));
    let passed = match number("sz_ops_filter_passed") {
        Err(error) if error.errno() == Some(Errno::NOENT) => None,
        passed => Some(Bytes(passed?)),
    };
    Ok(Stats {
        nr_tried: number("nr_tried")?,
        sz_tried: Bytes(number("sz_tried")?),
        nr_applied: number("nr_applied")?,
        sz_applied: Bytes(number("sz_applied")?),
        sz_ops_filter_passed: passed,
        qt_exceeds: number("qt_exceeds")?,
    })
}

/// Physical address ranges of memory.
fn memory(files: &impl KernelFiles) -> Result<Vec<AddressRange>, Error> {
    const OBJECT: &str = "System RAM in /proc/iomem";
    let frames = iomem::memory(files)?;
    if frames.is_empty() {
        return Err(Error::of_host("find", OBJECT, Errno::NODEV));
    }
    let addresses = |frames: std::ops::Range<u64>| {
        let (start, end) = (Pages(frames.start).bytes().0, Pages(frames.end).bytes().0);
        AddressRange::new(start, end).map_err(|bad| Error::malformed(OBJECT, bad))
    };
    frames.into_iter().map(addresses).collect()
}

#[cfg(test)]
mod tests;
