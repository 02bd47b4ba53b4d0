//! Capabilities of this host, found by trying on memory of our own, never by the kernel's version.
//!
//! The result is a plain struct, and the rules over it are pure functions in the crates above, so every kind of host
//! can be tested on one laptop. An unknown value carries its reason: "no" and "could not be asked" are different
//! answers.
//!
//! Cost: some milliseconds; the collapse may wait for memory to be compacted. Side effects: clears the accessed bits
//! of this process (`clear_refs`), and briefly sets up the files of an idle DAMON thread if there are none. All
//! memory is given back.
//!
//! Since: always; each probe says what a kernel lacks.
//!
//! Truth: the probes below.

use std::fmt;
use std::os::fd::AsFd;

use rustix::io::Errno;
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use units::{AddressRange, Bytes, PageSize};

use crate::capabilities::Capabilities;
use crate::clear_refs::{Forget, clear};
use crate::pagemap::Pagemap;
use crate::process_madvise::{Advice, advise};
use crate::scratch::Scratch;
use crate::{
    At, Error, KernelFiles, Pid, bracketed, capabilities, cgroup, damon, meminfo, resctrl, smaps, status,
    syscall_dispatch, thp, user_namespace, userfaultfd,
};

/// A value, or the reason why it could not be read. Serialises as the value, or as `{"unknown": "why"}`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Known<T> {
    /// Known value.
    Value(T),
    /// Unknown, for this reason.
    Unknown(String),
}

impl<T> Known<T> {
    /// The value, if known.
    pub fn value(&self) -> Option<&T> {
        match self {
            Known::Value(value) => Some(value),
            Known::Unknown(_) => None,
        }
    }

    /// The reason, if unknown.
    pub fn why_unknown(&self) -> Option<&str> {
        match self {
            Known::Value(_) => None,
            Known::Unknown(why) => Some(why),
        }
    }
}

impl Known<bool> {
    /// True only if known and true.
    pub fn is_yes(&self) -> bool {
        matches!(self, Known::Value(true))
    }
}

impl<T, E: fmt::Display> From<Result<T, E>> for Known<T> {
    fn from(result: Result<T, E>) -> Known<T> {
        match result {
            Ok(value) => Known::Value(value),
            Err(error) => Known::Unknown(error.to_string()),
        }
    }
}

impl<T: Serialize> Serialize for Known<T> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Known::Value(value) => value.serialize(to),
            Known::Unknown(why) => {
                let mut map = to.serialize_map(Some(1))?;
                map.serialize_entry("unknown", why)?;
                map.end()
            }
        }
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Known<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Known<T>, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Form<T> {
            Unknown { unknown: String },
            Value(T),
        }
        Ok(match Form::deserialize(from)? {
            Form::Unknown { unknown } => Known::Unknown(unknown),
            Form::Value(value) => Known::Value(value),
        })
    }
}

/// Lockdown mode: protection of the kernel against root.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Lockdown {
    /// No protection.
    None,
    /// The kernel cannot be changed.
    Integrity,
    /// The kernel's memory cannot be read either, which rules out the page-table walk.
    Confidentiality,
}

/// Capabilities of this host.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct HostFacts {
    /// Release of the kernel, for display; nothing may be decided by it.
    pub kernel_release: Known<String>,
    /// Processors that this process may use.
    pub cores: Known<usize>,
    /// Memory of the host.
    pub memory_bytes: Known<Bytes>,
    /// Levels of the page tables, 4 or 5.
    pub page_table_levels: Known<u8>,
    /// The kernel describes its types, which BPF programs need (`/sys/kernel/btf/vmlinux`).
    pub btf: Known<bool>,
    /// Lockdown mode.
    pub lockdown: Known<Lockdown>,
    /// Effective capabilities of this process.
    pub capabilities: Known<Capabilities>,
    /// This process is in the host's user namespace, where its capabilities count.
    pub initial_user_namespace: Known<bool>,
    /// Clearing the accessed bits works: fewer pages count as referenced afterwards.
    pub clear_refs: Known<bool>,
    /// Pages written since a clear are distinguishable (CONFIG_MEM_SOFT_DIRTY).
    pub soft_dirty: Known<bool>,
    /// The scan of page states works (`PAGEMAP_SCAN`).
    pub pagemap_scan: Known<bool>,
    /// A window of small pages can be collapsed on demand, by the call for another process (which also takes
    /// CAP_SYS_NICE for one).
    pub collapse: Known<bool>,
    /// `MADV_COLD` on one page of a huge page splits it.
    pub cold_splits: Known<bool>,
    /// After such a split, zero-filled pages are free memory again.
    pub split_frees_zero_pages: Known<bool>,
    /// Operations of DAMON: `vaddr`, `fvaddr`, `paddr`; empty without DAMON.
    pub damon_operations: Known<Vec<String>>,
    /// Policy for huge pages at the first touch; `None` for a kernel without huge pages.
    pub thp_enabled: Known<Option<thp::Enabled>>,
    /// khugepaged is available.
    pub khugepaged: Known<bool>,
    /// Features of userfaultfd without privileges; `None` for a kernel without it.
    pub user_faults: Known<Option<userfaultfd::Features>>,
    /// Syscall User Dispatch works: a thread can receive its own system calls as signals.
    pub syscall_dispatch: Known<bool>,
    /// Group with the tightest memory limit on this process; `None` if memory is not accounted by groups.
    pub cgroup_memory: Known<Option<cgroup::Memory>>,
    /// Support for cache partitioning (resctrl).
    pub resctrl: Known<resctrl::State>,
}

impl HostFacts {
    /// Runs all probes. `files` are the host's; over another tree, probes of the host itself answer "unknown".
    pub fn gather(files: &impl KernelFiles) -> HostFacts {
        let huge = probe_huge_window(files);
        let release = files.read("proc/sys/kernel/osrelease").map(|text| text.trim().to_owned());
        HostFacts {
            kernel_release: release.map_err(|errno| Error::of_host("read", "/proc/sys/kernel/osrelease", errno)).into(),
            cores: std::thread::available_parallelism().map(std::num::NonZero::get).into(),
            memory_bytes: meminfo::meminfo(files).map(|info| info.total).into(),
            page_table_levels: page_table_levels(),
            btf: is_listed(files, "sys/kernel/btf", "vmlinux"),
            lockdown: lockdown(files),
            capabilities: capabilities::own(files).into(),
            initial_user_namespace: user_namespace::is_initial().into(),
            clear_refs: clear_refs_works(files).into(),
            soft_dirty: soft_dirty_works(files).into(),
            pagemap_scan: pagemap_scan_works(),
            collapse: huge.collapse,
            cold_splits: huge.cold_splits,
            split_frees_zero_pages: huge.split_frees_zero_pages,
            damon_operations: none_where_missing(damon::available_operations(files)),
            thp_enabled: none_where_missing(thp::enabled(files).map(Some)),
            khugepaged: supported(thp::khugepaged(files)),
            user_faults: none_where_missing(userfaultfd::features().map(Some)),
            syscall_dispatch: syscall_dispatch::is_there().into(),
            cgroup_memory: cgroup::memory(files, Pid::own()).into(),
            resctrl: resctrl::state(files).into(),
        }
    }
}

/// Missing on the host is a "no".
fn supported<T>(answer: Result<T, Error>) -> Known<bool> {
    match answer {
        Ok(_) => Known::Value(true),
        Err(Error::Unsupported(_)) => Known::Value(false),
        Err(error) => Known::Unknown(error.to_string()),
    }
}

/// Missing on the host is the default value.
fn none_where_missing<T: Default>(answer: Result<T, Error>) -> Known<T> {
    match answer {
        Err(Error::Unsupported(_)) => Known::Value(T::default()),
        other => other.into(),
    }
}

fn is_listed(files: &impl KernelFiles, directory: &str, name: &str) -> Known<bool> {
    match files.list(directory) {
        Ok(names) => Known::Value(names.iter().any(|other| other == name)),
        Err(Errno::NOENT) => Known::Value(false),
        Err(errno) => Known::Unknown(Error::of_host("list", format_args!("/{directory}"), errno).to_string()),
    }
}

/// Five levels offer addresses above 128 TiB on request.
fn page_table_levels() -> Known<u8> {
    if !cfg!(target_arch = "x86_64") {
        return Known::Unknown("only known how to find out on x86-64".to_owned());
    }
    match Scratch::at(1 << 50) {
        Ok(_) => Known::Value(5),
        Err(Errno::NOMEM) => Known::Value(4),
        Err(errno) => Known::Unknown(Error::of_host("map", "memory above 128 TiB", errno).to_string()),
    }
}

fn lockdown(files: &impl KernelFiles) -> Known<Lockdown> {
    const DIRECTORY: &str = "sys/kernel/security";
    const WORDS: [(&str, Lockdown); 3] =
        [("none", Lockdown::None), ("integrity", Lockdown::Integrity), ("confidentiality", Lockdown::Confidentiality)];
    match files.read(&format!("{DIRECTORY}/lockdown")) {
        Ok(text) => bracketed::parse(&format!("/{DIRECTORY}/lockdown"), &text, &WORDS).into(),
        // An empty directory is the mount point of securityfs; the kernel may be locked down all the same.
        Err(Errno::NOENT) if files.list(DIRECTORY).is_ok_and(|names| names.is_empty()) => {
            Known::Unknown(format!("`mount -t securityfs none /{DIRECTORY}` would show it"))
        }
        Err(Errno::NOENT) => Known::Value(Lockdown::None),
        Err(errno) => Known::Unknown(Error::of_host("read", format_args!("/{DIRECTORY}/lockdown"), errno).to_string()),
    }
}

/// Touches a MiB, clears, and checks that at least half of it is cleared: other threads may touch other memory.
fn clear_refs_works(files: &impl KernelFiles) -> Result<bool, Error> {
    let mut scratch = scratch(Bytes::mib(1))?;
    scratch.touch_all();
    let referenced = || smaps::rollup(files, Pid::own()).map(|rollup| rollup.referenced);
    let before = referenced()?;
    match clear(files, Pid::own(), Forget::AllPages) {
        Ok(()) => {}
        Err(Error::Gone(_)) => return Ok(false), // our own file is missing: CONFIG_PROC_PAGE_MONITOR is off
        Err(error) => return Err(error),
    }
    Ok(referenced()? + Bytes::kib(512) <= before)
}

/// Follows one page: marked when written, unmarked by the clear, marked when written again.
fn soft_dirty_works(files: &impl KernelFiles) -> Result<bool, Error> {
    const SOFT_DIRTY: u64 = 1 << 55;
    let mut scratch = scratch(PageSize::Small.bytes())?;
    let range = scratch.range();
    let pagemap = Pagemap::open(Pid::own())?;
    let marked = || pagemap.entries(range).map(|entries| entries.first().is_some_and(|page| page.0 & SOFT_DIRTY != 0));
    scratch.touch_all();
    if !marked()? {
        return Ok(false);
    }
    clear(files, Pid::own(), Forget::SoftDirty)?;
    if marked()? {
        return Ok(false);
    }
    scratch.touch_all();
    marked()
}

fn pagemap_scan_works() -> Known<bool> {
    let found = || {
        let mut scratch = scratch(PageSize::Small.bytes())?;
        scratch.touch_all();
        let runs = Pagemap::open(Pid::own())?.scan(scratch.range())?;
        Ok(runs.iter().any(|run| run.present && run.range == scratch.range()))
    };
    match found() {
        Ok(found) => Known::Value(found),
        Err(Error::Unsupported(_)) => Known::Value(false),
        Err(error) => Known::Unknown(error.to_string()),
    }
}

/// Tries to collapse a window: the one capability that everything else needs.
pub fn collapse(files: &impl KernelFiles) -> Known<bool> {
    probe_huge_window(files).collapse
}

/// Results of the probe on a window of our own.
struct HugeWindow {
    collapse: Known<bool>,
    cold_splits: Known<bool>,
    split_frees_zero_pages: Known<bool>,
}

/// Collapses a window with one touched page, and splits it again. A huge page that another part of the kernel holds for
/// a moment (compaction) may be split in the page tables alone, which frees nothing: a few tries.
fn probe_huge_window(files: &impl KernelFiles) -> HugeWindow {
    let mut found = probe_one_window(files);
    for _ in 1..ATTEMPTS {
        if found.split_frees_zero_pages != Known::Value(false) {
            break;
        }
        found = probe_one_window(files);
    }
    found
}

fn probe_one_window(files: &impl KernelFiles) -> HugeWindow {
    let unknown = |why: &str| Known::Unknown(why.to_owned());
    let stopped = |collapse: Known<bool>, why: &str| HugeWindow {
        collapse,
        cold_splits: unknown(why),
        split_frees_zero_pages: unknown(why),
    };
    const NO_HUGE_PAGE: &str = "no huge page to split";
    let (scratch, collapsed) = match collapse_a_window(files) {
        Ok(done) => done,
        Err(error @ Error::Unsupported(_)) => return stopped(Known::Value(false), &error.to_string()),
        // A kernel without the advice, or without huge pages, answers EINVAL. These answers come from one that has it,
        // and had no huge page at the moment.
        Err(error) if matches!(error.errno(), Some(Errno::NOMEM | Errno::BUSY | Errno::AGAIN)) => {
            return stopped(Known::Value(true), &error.to_string());
        }
        Err(error) => return stopped(Known::Unknown(error.to_string()), NO_HUGE_PAGE),
    };
    if collapsed.anon_huge_pages != PageSize::Huge.bytes() {
        return stopped(Known::Value(false), NO_HUGE_PAGE);
    }
    let after = split_a_window(files, scratch.range());
    match after {
        Ok(after) => {
            let split = after.anon_huge_pages == Bytes(0);
            // All but one of its 512 pages are zero-filled.
            let freed = if split { Known::Value(after.rss <= Bytes::mib(1)) } else { unknown("it did not split") };
            HugeWindow { collapse: Known::Value(true), cold_splits: Known::Value(split), split_frees_zero_pages: freed }
        }
        Err(error) => stopped(Known::Value(true), &error.to_string()),
    }
}

/// Resident memory of one mapping of our own.
struct Residency {
    rss: Bytes,
    anon_huge_pages: Bytes,
}

/// Collapses a window of our own. `Unsupported` if this kernel always refuses it; `Denied` if huge pages are forbidden
/// to this process.
fn collapse_a_window(files: &impl KernelFiles) -> Result<(Scratch, Residency), Error> {
    const OPERATION: &str = "collapse a window";
    let scratch = Scratch::window_with_one_touched_page().map_err(|errno| failed("map", errno))?;
    match advise_until_answered(scratch.range(), Advice::Collapse)? {
        Ok(()) => {}
        // The kernel's answer to unknown advice, and to a process that may not have huge pages.
        Err(Errno::INVAL) => {
            let status = status::status(files, Pid::own())?;
            let at =
                |object: &str| At { operation: OPERATION.to_owned(), object: object.to_owned(), errno: Errno::INVAL };
            return Err(match status.huge_pages {
                status::HugePages::Forbidden => Error::Denied(at("in this process, which may not have huge pages")),
                _ => Error::Unsupported(at(OWN_MEMORY)),
            });
        }
        Err(errno) => return Err(failed(OPERATION, errno)),
    }
    let residency = residency(files, scratch.range())?;
    Ok((scratch, residency))
}

/// Splits a huge window of our own. A huge page that another part of the kernel holds for a moment does not split: a
/// few tries.
fn split_a_window(files: &impl KernelFiles, window: AddressRange) -> Result<Residency, Error> {
    let mut after = residency(files, window)?;
    for attempt in 0..ATTEMPTS {
        std::thread::sleep(PAUSE * attempt);
        advise_until_answered(first_page(window), Advice::Cold)?.map_err(|errno| failed("split a window", errno))?;
        after = residency(files, window)?;
        if after.anon_huge_pages == Bytes(0) {
            break;
        }
    }
    Ok(after)
}

/// Tries of a call whose answer may be different a moment later, and the pause between two, which grows.
const ATTEMPTS: u32 = 5;
const PAUSE: std::time::Duration = std::time::Duration::from_millis(5);

/// Advises on memory of our own; tries again where the kernel's answer holds for the moment only.
fn advise_until_answered(range: AddressRange, advice: Advice) -> Result<Result<(), Errno>, Error> {
    let pidfd = own_pidfd()?;
    let mut answer = Ok(());
    for attempt in 0..ATTEMPTS {
        std::thread::sleep(PAUSE * attempt);
        answer = advise(Pid::own(), pidfd.as_fd(), &[range], advice).map(|_| ());
        if !matches!(answer, Err(Errno::AGAIN | Errno::BUSY | Errno::NOMEM)) {
            break;
        }
    }
    Ok(answer)
}

fn residency(files: &impl KernelFiles, range: AddressRange) -> Result<Residency, Error> {
    let details = smaps::details(files, Pid::own())?;
    let ours = details.into_iter().filter(|detail| detail.mapping.range.intersection(range).is_some());
    Ok(ours.fold(Residency { rss: Bytes(0), anon_huge_pages: Bytes(0) }, |sum, detail| Residency {
        rss: sum.rss + detail.rss,
        anon_huge_pages: sum.anon_huge_pages + detail.anon_huge_pages,
    }))
}

fn first_page(range: AddressRange) -> AddressRange {
    let start = range.start().0;
    AddressRange::new(start, start + PageSize::Small.bytes().0).unwrap_or(range)
}

fn scratch(size: Bytes) -> Result<Scratch, Error> {
    Scratch::of(size).map_err(|errno| failed("map", errno))
}

fn own_pidfd() -> Result<std::os::fd::OwnedFd, Error> {
    Pid::own().open()
}

const OWN_MEMORY: &str = "of our own memory";

fn failed(operation: &str, errno: Errno) -> Error {
    Error::of_host(operation, OWN_MEMORY, errno)
}

#[cfg(test)]
mod tests;
