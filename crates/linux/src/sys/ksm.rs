//! `/sys/kernel/mm/ksm` and `/proc/PID/ksm_stat`: what the kernel merges, and how much of it is whose.
//!
//! KSM merges pages with the same content into one frame, of what programs offered (MADV_MERGEABLE, PR_SET_MEMORY_MERGE). Which frames
//! those are is in `kpageflags.rs`, who has them in `pagemap.rs`. Offering pages of our own is `merged_memory.rs`. To change a knob so
//! that it is put back afterwards, `turn` its path with `knobs.rs`; masu turns none of them.
//!
//! **The counters lag.** A page that is written, unmapped or given back is parted from the others at once; the kernel takes it off the
//! counters when KSM next comes by, and not at all while KSM is off. A forked child begins with zeros and has all merged pages of its
//! parent (seen on Linux 6.18; older ones give it its parent's figures). So they say what KSM has done, and
//! neither who has merged pages now nor how many.
//!
//! Cost: a small file for each figure. `ksm_mergeable` goes over the mappings of the process. Side effects: none.
//!
//! Since: Linux 2.6.32; `ksm_merging_pages` and `ksm_stat` (then `ksm_rmap_items` alone) are there in 6.1, the rest of `ksm_stat` in 6.18,
//! and what a kernel does not have is `NotReported`. Needs CONFIG_KSM; the files of a process are its user's.
//!
//! Truth: Documentation/admin-guide/mm/ksm.rst; proc_pid_ksm_merging_pages(5), Documentation/filesystems/proc.rst.

use rustix::io::Errno;
use serde::Serialize;
use units::{Bytes, Pages};

use crate::key_lines::number;
use crate::{Error, KernelFiles, Pid};

/// The directory of the knobs and counters.
pub const ROOT: &str = "sys/kernel/mm/ksm";

/// What KSM is doing (`run`). The discriminant is the number in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Run {
    /// Nothing. What is merged stays merged.
    Stopped = 0,
    /// It looks for pages to merge.
    Merging = 1,
    /// Nothing, and what was merged has been parted.
    Unmerging = 2,
}

/// A figure, if this kernel has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Reported<T> {
    /// It says so.
    Value(T),
    /// It does not say: an older one. Null in JSON.
    NotReported,
}

impl<T: Copy> Reported<T> {
    /// The figure, if there is one.
    pub fn value(self) -> Option<T> {
        match self {
            Reported::Value(value) => Some(value),
            Reported::NotReported => None,
        }
    }
}

impl<T> From<Option<T>> for Reported<T> {
    fn from(value: Option<T>) -> Reported<T> {
        value.map_or(Reported::NotReported, Reported::Value)
    }
}

/// What the host is set to, and what KSM has done on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Host {
    /// What KSM is doing.
    pub run: Run,
    /// Frames that are shared.
    pub pages_shared: Pages,
    /// How many more pages there would be without: what is saved.
    pub pages_sharing: Pages,
    /// Pages that are like no other, and are looked at again and again.
    pub pages_unshared: Pages,
    /// Pages that change too fast.
    pub pages_volatile: Pages,
    /// How often all of what was offered was looked at.
    pub full_scans: u64,
    /// Pages that are looked at before it sleeps.
    pub pages_to_scan: u64,
    /// For how long it sleeps, in milliseconds.
    pub sleep_millisecs: u64,
    /// The most pages that have one frame: what is more of the same content has another.
    pub max_page_sharing: Reported<u64>,
    /// Empty pages become the zero page, which is no frame of KSM's.
    pub use_zero_pages: Reported<bool>,
    /// Pages that did, and still are.
    pub zero_pages: Reported<Pages>,
    /// What is saved, less what KSM needs for it.
    pub general_profit_bytes: Reported<i64>,
}

impl Host {
    /// What is saved by frames, as the kernel counts it.
    pub const fn saved(&self) -> Bytes {
        self.pages_sharing.bytes()
    }
}

/// What KSM has done with one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OfProcess {
    /// Pages that KSM has looked at.
    pub rmap_items: Reported<u64>,
    /// Pages that it merged, of those that it knows.
    pub merging_pages: Reported<Pages>,
    /// Empty pages that it made the zero page.
    pub zero_pages: Reported<Pages>,
    /// All of its memory is offered (PR_SET_MEMORY_MERGE).
    pub merge_any: Reported<bool>,
    /// Some of its memory is offered, one way or the other: without that it has no merged pages.
    pub mergeable: Reported<bool>,
}

/// The knobs and counters of the host.
///
/// # Errors
/// `Unsupported` by a kernel without KSM.
pub fn host(files: &impl KernelFiles) -> Result<Host, Error> {
    let optional = |name: &str| -> Result<Option<u64>, Error> {
        match figure(files, name) {
            Err(Error::Unsupported(_)) => Ok(None),
            figure => figure.map(Some),
        }
    };
    let run = match figure::<u8>(files, "run")? {
        0 => Run::Stopped,
        1 => Run::Merging,
        2 => Run::Unmerging,
        other => {
            return Err(Error::malformed(format_args!("/{ROOT}/run"), format_args!("{other}, expected 0, 1 or 2")));
        }
    };
    let profit = match figure(files, "general_profit") {
        Err(Error::Unsupported(_)) => Reported::NotReported,
        profit => Reported::Value(profit?),
    };
    Ok(Host {
        run,
        pages_shared: Pages(figure(files, "pages_shared")?),
        pages_sharing: Pages(figure(files, "pages_sharing")?),
        pages_unshared: Pages(figure(files, "pages_unshared")?),
        pages_volatile: Pages(figure(files, "pages_volatile")?),
        full_scans: figure(files, "full_scans")?,
        pages_to_scan: figure(files, "pages_to_scan")?,
        sleep_millisecs: figure(files, "sleep_millisecs")?,
        max_page_sharing: optional("max_page_sharing")?.into(),
        use_zero_pages: optional("use_zero_pages")?.map(|on| on != 0).into(),
        zero_pages: optional("ksm_zero_pages")?.map(Pages).into(),
        general_profit_bytes: profit,
    })
}

fn figure<N: std::str::FromStr>(files: &impl KernelFiles, name: &str) -> Result<N, Error> {
    let path = format!("{ROOT}/{name}");
    let text = files.read(&path).map_err(|errno| Error::of_host("read", format_args!("/{path}"), errno))?;
    number(&format!("/{ROOT}"), name, text.trim())
}

/// What KSM has done with `pid`; `None` for one without memory of its own: a thread of the kernel, a zombie.
///
/// # Errors
/// `Gone` if the process ended, `Denied` if it belongs to someone else, `Unsupported` by a kernel without the file.
pub fn of_process(files: &impl KernelFiles, pid: Pid) -> Result<Option<OfProcess>, Error> {
    let path = pid.file("ksm_stat");
    let object = format!("/{path}");
    let text = files.read(&path).map_err(|errno| match errno {
        // The process is there, and the file is not.
        Errno::NOENT if files.list(&pid.file("")).is_ok() => Error::of_host("read", &object, errno),
        _ => Error::of_process("read", &object, errno),
    })?;
    let Some(mut found) = parse(&text, &object)? else { return Ok(None) };
    if found.merging_pages == Reported::NotReported {
        found.merging_pages = merging_pages(files, pid)?;
    }
    Ok(Some(found))
}

/// The file with this one figure, which is older than the line.
fn merging_pages(files: &impl KernelFiles, pid: Pid) -> Result<Reported<Pages>, Error> {
    let path = pid.file("ksm_merging_pages");
    let object = format!("/{path}");
    match files.read(&path) {
        Ok(text) if text.is_empty() => Ok(Reported::NotReported),
        Ok(text) => number(&object, "ksm_merging_pages", text.trim()).map(Pages).map(Reported::Value),
        Err(Errno::NOENT) => Ok(Reported::NotReported),
        Err(errno) => Err(Error::of_process("read", &object, errno)),
    }
}

/// The text of a `ksm_stat` file; `object` is the path for messages. `None` of none.
///
/// # Errors
/// `Malformed`, naming the line.
pub fn parse(text: &str, object: &str) -> Result<Option<OfProcess>, Error> {
    if text.is_empty() {
        return Ok(None);
    }
    // Figures stand behind a space, and answers behind a colon.
    let find = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix([' ', ':']));
        line.map(str::trim)
    };
    let count = |name: &str| find(name).map(|value| number::<u64>(object, name, value)).transpose();
    let answer = |name: &str| match find(name) {
        None => Ok(Reported::NotReported),
        Some("yes") => Ok(Reported::Value(true)),
        Some("no") => Ok(Reported::Value(false)),
        Some(other) => {
            Err(Error::malformed(format_args!("{object}, {name}"), format_args!("{other:?}, expected yes or no")))
        }
    };
    Ok(Some(OfProcess {
        rmap_items: count("ksm_rmap_items")?.into(),
        merging_pages: count("ksm_merging_pages")?.map(Pages).into(),
        zero_pages: count("ksm_zero_pages")?.map(Pages).into(),
        merge_any: answer("ksm_merge_any")?,
        mergeable: answer("ksm_mergeable")?,
    }))
}

#[cfg(test)]
mod tests;
