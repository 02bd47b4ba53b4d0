//! `/sys/kernel/mm/damon/admin`: DAMON, the kernel's own monitor of accesses, watching one process.
//!
//! DAMON divides the address space into regions of similar access, samples one page of each every sampling interval,
//! and counts over an aggregation interval the samples that found it touched. Exact readings of every page are
//! `access`.
//!
//! A run goes through three types: [`Draft`] (nothing written yet), [`Committed`] (the tree is filled in) and
//! [`Running`]. Dropping the last two stops the kernel's thread and removes the tree. A crash leaves both behind: call
//! [`record_undo`] on a journal before committing; its replay removes them. Our tree is recognized by its update
//! interval, which has our process id added in microseconds.
//!
//! Results come from one scheme that does nothing (`stat`) on all regions; [`Running::regions`] makes the kernel list
//! them. The host has one tree, and a write to `nr_kdamonds` discards its contents. So we refuse when another program
//! has set up a kdamond.
//!
//! Cost: one sample per region and sampling interval, done by a kernel thread. Reading back waits for the end of an
//! aggregation interval and opens four files per region.
//! Side effect: sampling clears accessed bits, which reclaim and our own tracking read too.
//!
//! Since: sysfs Linux 5.18, `avail_operations` 5.19, `tried_regions` 6.2; needs CONFIG_DAMON_SYSFS, and
//! CONFIG_DAMON_VADDR to watch processes. Root only.
//!
//! Truth: Documentation/admin-guide/mm/damon/usage.rst and Documentation/mm/damon/design.rst.

use std::thread::sleep;
use std::time::Duration;

use rustix::io::Errno;
use units::{AddressRange, cast};

use crate::journal::{HostSettings, Mark};
use crate::{At, Error, KernelFiles, Pid};

const KDAMONDS: &str = "sys/kernel/mm/damon/admin/kdamonds";
const CONTEXT: &str = "0/contexts/0";
const SCHEME: &str = "0/contexts/0/schemes/0";

const UPDATE_INTERVAL: &str = "0/contexts/0/monitoring_attrs/intervals/update_us";

/// Has the journal remove a tree of ours after a crash. A tree without our mark is left alone: ours is not there yet,
/// or no longer.
///
/// # Errors
/// When the journal cannot be written.
pub fn record_undo<F: KernelFiles>(settings: &mut HostSettings<'_, F>) -> Result<(), Error> {
    let mark = || Mark { path: format!("{KDAMONDS}/{UPDATE_INTERVAL}"), value: marked_update_us().to_string() };
    // The journal undoes in reverse: the thread is stopped before its files are removed.
    settings.record_undo_if_marked(&format!("{KDAMONDS}/nr_kdamonds"), "0", mark())?;
    settings.record_undo_if_marked(&format!("{KDAMONDS}/0/state"), "off", mark())
}

/// Update interval of our tree: DAMON searches for new mappings about once a second; the microseconds beyond that are our
/// mark.
fn marked_update_us() -> u64 {
    1_000_000 + u64::from(Pid::own().0.unsigned_abs())
}

/// Process, intervals and number of regions of a monitor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Monitor {
    /// The monitored process.
    pub pid: Pid,
    /// Time between two samples of a region.
    pub sample_interval: Duration,
    /// Time over which samples are counted; at least `sample_interval`.
    pub aggregation_interval: Duration,
    /// Fewest regions; the kernel demands three.
    pub min_regions: u32,
    /// Most regions: bounds the cost.
    pub max_regions: u32,
}

impl Monitor {
    fn sampling(&self) -> Sampling {
        let Monitor { sample_interval, aggregation_interval, min_regions, max_regions, .. } = *self;
        Sampling { sample_interval, aggregation_interval, min_regions, max_regions }
    }
}

/// Sampling parameters of any DAMON target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sampling {
    /// Time between two samples of a region.
    pub sample_interval: Duration,
    /// Time over which samples are counted; at least `sample_interval`.
    pub aggregation_interval: Duration,
    /// Fewest regions; the kernel demands three.
    pub min_regions: u32,
    /// Most regions: bounds the cost.
    pub max_regions: u32,
}

impl Sampling {
    /// Refuses values that the kernel would refuse.
    fn check(self) -> Result<(), Error> {
        let Sampling { sample_interval: sample, aggregation_interval: aggregation, min_regions, max_regions } = self;
        if sample.as_micros() > 0 && sample <= aggregation && (3..=max_regions).contains(&min_regions) {
            return Ok(());
        }
        let object =
            format!("with DAMON every {sample:?} over {aggregation:?} in {min_regions} to {max_regions} regions");
        Err(Error::Other(At { operation: "monitor".to_owned(), object, errno: Errno::INVAL }))
    }

    /// First writes of a context: our mark, the operations, the intervals and the number of regions.
    fn writes(self, operations: &str) -> [(String, String); 6] {
        let of = |name: &str, value: String| (format!("{CONTEXT}/{name}"), value);
        [
            (UPDATE_INTERVAL.to_owned(), marked_update_us().to_string()),
            of("operations", operations.to_owned()),
            of("monitoring_attrs/intervals/sample_us", self.sample_interval.as_micros().to_string()),
            of("monitoring_attrs/intervals/aggr_us", self.aggregation_interval.as_micros().to_string()),
            of("monitoring_attrs/nr_regions/min", self.min_regions.to_string()),
            of("monitoring_attrs/nr_regions/max", self.max_regions.to_string()),
        ]
    }

    /// Largest number of samples in one aggregation interval.
    fn most(self) -> u32 {
        let samples = self.aggregation_interval.as_micros() / self.sample_interval.as_micros().max(1);
        cast::saturated::<_, u32>(samples).max(1)
    }
}

/// One region whose pages DAMON takes to be of similar access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// Address range of the region.
    pub range: AddressRange,
    /// Samples of the last aggregation interval that found the region touched, up to [`Running::max_nr_accesses`].
    pub nr_accesses: u32,
    /// Aggregation intervals since the region's access last changed much.
    pub age: u32,
}

/// The kernel's operation sets: `vaddr` processes, `fvaddr` fixed ranges of them, `paddr` physical memory.
///
/// The list is a file of a context, so a context is set up for a moment if there is none; another program's is only
/// read.
///
/// # Errors
/// `Unsupported` without DAMON, `Denied` without root, `Other` with EBUSY when another program is just setting it up.
pub fn available_operations(files: &impl KernelFiles) -> Result<Vec<String>, Error> {
    let list = format!("{CONTEXT}/avail_operations");
    let text = if read_number(files, "nr_kdamonds")? == 0 {
        let tree = Tree::set_up(files)?;
        let text = read(files, &list)?;
        tree.remove()?;
        text
    } else {
        read(files, &list).map_err(|error| if error.errno() == Some(Errno::NOENT) { taken() } else { error })?
    };
    Ok(text.split_ascii_whitespace().map(str::to_owned).collect())
}

/// A monitor before anything is written.
#[derive(Debug)]
pub struct Draft<'f, F: KernelFiles> {
    files: &'f F,
    monitor: Monitor,
}

impl<'f, F: KernelFiles> Draft<'f, F> {
    /// Checks that the parameters are valid and that no other program uses DAMON through sysfs.
    ///
    /// # Errors
    /// `Unsupported` without DAMON, `Denied` without root; `Other` with EBUSY when there are kdamonds already, with
    /// EINVAL for intervals or regions that the kernel would refuse.
    pub fn new(files: &'f F, monitor: Monitor) -> Result<Draft<'f, F>, Error> {
        monitor.sampling().check()?;
        demand_free(files)?;
        Ok(Draft { files, monitor })
    }

    /// Fills in the kernel's tree.
    ///
    /// # Errors
    /// `Unsupported` where DAMON cannot watch processes. The writes are undone.
    pub fn commit(self) -> Result<Committed<'f, F>, Error> {
        let Draft { files, monitor } = self;
        let tree = Tree::set_up_for(files, "vaddr", "processes")?;
        let pattern = format!("{SCHEME}/access_pattern");
        let values = [
            (format!("{CONTEXT}/targets/nr_targets"), "1".to_owned()),
            (format!("{CONTEXT}/targets/0/pid_target"), monitor.pid.to_string()),
            (format!("{CONTEXT}/schemes/nr_schemes"), "1".to_owned()),
            (format!("{SCHEME}/action"), "stat".to_owned()),
            (format!("{pattern}/sz/min"), "0".to_owned()),
            (format!("{pattern}/sz/max"), u64::MAX.to_string()),
            (format!("{pattern}/nr_accesses/min"), "0".to_owned()),
            (format!("{pattern}/nr_accesses/max"), u32::MAX.to_string()),
            (format!("{pattern}/age/min"), "0".to_owned()),
            (format!("{pattern}/age/max"), u32::MAX.to_string()),
        ];
        for (name, value) in monitor.sampling().writes("vaddr").iter().chain(&values) {
            write(files, name, value).map_err(|errno| failed_write(name, value, errno))?;
        }
        Ok(Committed { tree, monitor })
    }
}

/// A monitor that is filled in and does not run yet.
#[derive(Debug)]
pub struct Committed<'f, F: KernelFiles> {
    tree: Tree<'f, F>,
    monitor: Monitor,
}

impl<'f, F: KernelFiles> Committed<'f, F> {
    /// Starts the kernel's thread.
    ///
    /// # Errors
    /// `Gone` if the process ended; `Other` with EBUSY when a kernel module uses DAMON exclusively. The writes are
    /// undone.
    pub fn start(mut self) -> Result<Running<'f, F>, Error> {
        let pid = self.monitor.pid;
        let started = write(self.tree.files, "0/state", "on");
        match started {
            Ok(()) => self.tree.running = true,
            // The kernel's error for a process that does not exist, since the numbers are known to be good.
            Err(Errno::INVAL) if self.tree.files.list(&pid.file("")).is_err() => {
                return Err(Error::of_process("monitor", format_args!("process {pid} with DAMON"), Errno::SRCH));
            }
            Err(errno) => return Err(failed_write("0/state", "on", errno)),
        }
        Ok(Running { tree: self.tree, monitor: self.monitor })
    }
}

/// A running monitor.
#[derive(Debug)]
pub struct Running<'f, F: KernelFiles> {
    tree: Tree<'f, F>,
    monitor: Monitor,
}

impl<F: KernelFiles> Running<'_, F> {
    /// All regions by rising address at the end of the current aggregation interval; waits for that end.
    ///
    /// # Errors
    /// `Gone` if the process ended, which stops the monitor.
    pub fn regions(&self) -> Result<Vec<Region>, Error> {
        const COMMAND: &str = "update_schemes_tried_regions";
        let files = self.tree.files;
        if let Err(errno) = write(files, "0/state", COMMAND) {
            return Err(self.stopped().unwrap_or_else(|| failed_write("0/state", COMMAND, errno)));
        }
        let directory = format!("{SCHEME}/tried_regions");
        let names = files
            .list(&format!("{KDAMONDS}/{directory}"))
            .map_err(|errno| Error::of_host("list", format_args!("/{KDAMONDS}/{directory}"), errno))?;
        let mut regions = Vec::with_capacity(names.len());
        for name in names.iter().filter(|name| name.bytes().all(|byte| byte.is_ascii_digit())) {
            regions.push(read_region(files, &format!("{directory}/{name}"))?);
        }
        regions.sort_by_key(|region| region.range);
        if regions.is_empty()
            && let Some(gone) = self.stopped()
        {
            return Err(gone);
        }
        Ok(regions)
    }

    /// Largest possible [`Region::nr_accesses`]: samples in one aggregation interval.
    pub fn max_nr_accesses(&self) -> u32 {
        self.monitor.sampling().most()
    }

    /// Stops the kernel's thread and removes the tree. Dropping does the same, but ignores failures.
    ///
    /// # Errors
    /// The kernel's answer.
    pub fn stop(self) -> Result<(), Error> {
        self.tree.remove()
    }

    /// The error for a monitor that stopped by itself; it does so when its process ends.
    fn stopped(&self) -> Option<Error> {
        let state = read(self.tree.files, "0/state").ok()?;
        let object = format!("process {} with DAMON", self.monitor.pid);
        (state.trim() == "off").then(|| Error::of_process("monitor", object, Errno::SRCH))
    }
}

/// Our part of the kernel's tree: one kdamond with one context. Dropping removes it.
#[derive(Debug)]
struct Tree<'f, F: KernelFiles> {
    files: &'f F,
    running: bool,
    set_up: bool,
}

impl<'f, F: KernelFiles> Tree<'f, F> {
    fn set_up(files: &'f F) -> Result<Tree<'f, F>, Error> {
        write(files, "nr_kdamonds", "1").map_err(|errno| failed_write("nr_kdamonds", "1", errno))?;
        let tree = Tree { files, running: false, set_up: true };
        write(files, "0/contexts/nr_contexts", "1")
            .map_err(|errno| failed_write("0/contexts/nr_contexts", "1", errno))?;
        Ok(tree)
    }

    /// [`Tree::set_up`] for one of `avail_operations`. `watching` names the target in messages.
    fn set_up_for(files: &'f F, operations: &str, watching: &str) -> Result<Tree<'f, F>, Error> {
        let tree = Tree::set_up(files)?;
        let offered = read(files, &format!("{CONTEXT}/avail_operations"))?;
        if offered.split_ascii_whitespace().any(|name| name == operations) {
            return Ok(tree);
        }
        let object = format!("{watching} with DAMON, which offers here only {:?}", offered.trim());
        Err(Error::Unsupported(At { operation: "monitor".to_owned(), object, errno: Errno::OPNOTSUPP }))
    }

    fn remove(mut self) -> Result<(), Error> {
        self.take_down()
    }

    fn take_down(&mut self) -> Result<(), Error> {
        if !std::mem::take(&mut self.set_up) {
            return Ok(());
        }
        if std::mem::take(&mut self.running) {
            // It may have stopped by itself; if it still runs, the next write fails.
            let _ = write(self.files, "0/state", "off");
        }
        write(self.files, "nr_kdamonds", "0").map_err(|errno| failed_write("nr_kdamonds", "0", errno))
    }
}

impl<F: KernelFiles> Drop for Tree<'_, F> {
    fn drop(&mut self) {
        // Drop cannot report. With a journal, the next start removes the tree.
        let _ = self.take_down();
    }
}

/// Writes one file below `kdamonds`. The kernel's threads and every reader share one lock. The kernel refuses a write
/// at once with EBUSY while the lock is taken, so this retries for a while.
fn write(files: &impl KernelFiles, name: &str, value: &str) -> Result<(), Errno> {
    const TRIES: u32 = 50;
    const PAUSE: Duration = Duration::from_millis(2);
    let path = format!("{KDAMONDS}/{name}");
    for _ in 1..TRIES {
        match files.write(&path, value) {
            Err(Errno::BUSY) => sleep(PAUSE),
            answer => return answer,
        }
    }
    files.write(&path, value)
}

fn failed_write(name: &str, value: &str, errno: Errno) -> Error {
    Error::of_host(format!("write {value:?} to"), format_args!("/{KDAMONDS}/{name}"), errno)
}

fn read(files: &impl KernelFiles, name: &str) -> Result<String, Error> {
    let path = format!("{KDAMONDS}/{name}");
    files.read(&path).map_err(|errno| Error::of_host("read", format_args!("/{path}"), errno))
}

fn read_number(files: &impl KernelFiles, name: &str) -> Result<u64, Error> {
    let text = read(files, name)?;
    let malformed =
        |_| Error::malformed(format_args!("/{KDAMONDS}/{name}"), format_args!("{:?}, expected a number", text.trim()));
    text.trim().parse().map_err(malformed)
}

fn read_region(files: &impl KernelFiles, name: &str) -> Result<Region, Error> {
    let number = |field: &str| read_number(files, &format!("{name}/{field}"));
    let small = |field: &str| {
        let too_large = |_| Error::malformed(format_args!("/{KDAMONDS}/{name}/{field}"), "a number beyond 32 bits");
        u32::try_from(number(field)?).map_err(too_large)
    };
    let range = AddressRange::new(number("start")?, number("end")?)
        .map_err(|bad| Error::malformed(format_args!("/{KDAMONDS}/{name}"), bad))?;
    Ok(Region { range, nr_accesses: small("nr_accesses")?, age: small("age")? })
}

/// Refuses where another program has set up a kdamond: our setup would discard it.
fn demand_free(files: &impl KernelFiles) -> Result<(), Error> {
    if read_number(files, "nr_kdamonds")? == 0 { Ok(()) } else { Err(taken()) }
}

fn taken() -> Error {
    let object = "DAMON, in which another program has set up kdamonds".to_owned();
    Error::Other(At { operation: "use".to_owned(), object, errno: Errno::BUSY })
}

#[cfg(test)]
pub(crate) mod tests;
