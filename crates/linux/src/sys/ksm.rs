//! `/sys/kernel/mm/ksm` and `/proc/PID/ksm_stat`: settings and counters of KSM, per host and per process.
//!
//! KSM merges pages with the same content into one frame, in memory that programs offered (MADV_MERGEABLE,
//! PR_SET_MEMORY_MERGE). Merged frames are in `kpageflags.rs`, their users in `pagemap.rs`. Offering pages of our own
//! is `merged_memory.rs`. A setting is changed through `HostSettings::set` (`journal.rs`); masu changes none.
//!
//! **The counters lag.** A page that is written, unmapped or freed is separated from the others at once. The kernel
//! updates the counters on KSM's next pass over it, and not at all while KSM is off. A forked child begins with zeros
//! and has all merged pages of its parent (seen on Linux 6.18; older ones give it its parent's figures). So the
//! counters tell the work of KSM, and neither the owners nor the number of present merged pages.
//!
//! **`smart_scan`** (Linux 6.7, on by default): ksmd skips a page that did not merge in earlier scans, at first every
//! second scan, later eight of nine (`skip_age` in mm/ksm.c), and takes a skipped page out of the tree of unmerged
//! pages. Two equal pages merge only when ksmd visits both in one scan, so pages that it visits in different scans stay
//! unmerged; a page that equals a merged one merges at its next visit. A live test saw no merge in 8,085 scans (6.12).
//!
//! Cost: a small file for each figure. `ksm_mergeable` goes over the mappings of the process. Side effects: none.
//!
//! Since: Linux 2.6.32; `ksm_merging_pages` and `ksm_stat` (then `ksm_rmap_items` alone) exist in 6.1, the rest of
//! `ksm_stat` in 6.18; a figure that the kernel lacks is `NotReported`. Needs CONFIG_KSM; the files of a process are
//! its user's.
//!
//! Truth: Documentation/admin-guide/mm/ksm.rst; proc_pid_ksm_merging_pages(5), Documentation/filesystems/proc.rst.

use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use units::{Bytes, Pages};

use crate::key_lines::number;
use crate::{Error, KernelFiles, Pid};

/// Directory of the settings and counters.
pub const ROOT: &str = "sys/kernel/mm/ksm";

/// State of KSM (`run`). The discriminant is the number in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Run {
    /// Stopped. Merged pages stay merged.
    Stopped = 0,
    /// Looking for pages to merge.
    Merging = 1,
    /// Stopped, and all merged pages have been separated.
    Unmerging = 2,
}

/// Figure, if this kernel has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(untagged)]
pub enum Reported<T> {
    /// Reported figure.
    Value(T),
    /// Not reported: an older kernel. Null in JSON.
    NotReported,
}

impl<T: Copy> Reported<T> {
    /// The figure, if reported.
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

/// Settings of the host, and counters of KSM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct Host {
    /// State of KSM.
    pub run: Run,
    /// Shared frames.
    pub pages_shared: Pages,
    /// Additional pages that would exist without KSM: the saving.
    pub pages_sharing: Pages,
    /// Unique pages, which are compared again in each scan.
    pub pages_unshared: Pages,
    /// Pages that change too fast.
    pub pages_volatile: Pages,
    /// Number of full scans of all offered memory.
    pub full_scans: u64,
    /// Pages scanned between two sleeps.
    pub pages_to_scan: u64,
    /// Sleep, in milliseconds.
    pub sleep_millisecs: u64,
    /// Maximum pages per frame; further pages of the same content use another frame.
    pub max_page_sharing: Reported<u64>,
    /// Empty pages become the zero page, which is no frame of KSM's.
    pub use_zero_pages: Reported<bool>,
    /// Pages that are at present replaced by the zero page.
    pub zero_pages: Reported<Pages>,
    /// Saving less KSM's own memory, in bytes.
    pub general_profit_bytes: Reported<i64>,
    /// Pages that did not merge are skipped in most scans (file head).
    pub smart_scan: Reported<bool>,
    /// Number of skipped visits to a page, since boot.
    pub pages_skipped: Reported<u64>,
}

impl Host {
    /// Merged pages, by the kernel's count.
    pub const fn merged(&self) -> Pages {
        Pages(self.pages_shared.0.saturating_add(self.pages_sharing.0))
    }

    /// Offered pages known to KSM and not merged.
    pub const fn unmerged(&self) -> Pages {
        Pages(self.pages_unshared.0.saturating_add(self.pages_volatile.0))
    }

    /// Memory saved by shared frames, by the kernel's count.
    pub const fn saved(&self) -> Bytes {
        self.pages_sharing.bytes()
    }
}

/// Counters of KSM for one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OfProcess {
    /// Pages that KSM has scanned.
    pub rmap_items: Reported<u64>,
    /// Pages that it merged, among its known pages.
    pub merging_pages: Reported<Pages>,
    /// Empty pages that it replaced by the zero page.
    pub zero_pages: Reported<Pages>,
    /// All of its memory is offered (PR_SET_MEMORY_MERGE).
    pub merge_any: Reported<bool>,
    /// Some of its memory is offered, in either way; without that it has no merged pages.
    pub mergeable: Reported<bool>,
}

/// Reads the settings and counters of the host.
///
/// # Errors
/// `Unsupported` on a kernel without KSM.
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
        smart_scan: optional("smart_scan")?.map(|on| on != 0).into(),
        pages_skipped: optional("pages_skipped")?.into(),
    })
}

fn figure<N: std::str::FromStr>(files: &impl KernelFiles, name: &str) -> Result<N, Error> {
    let path = format!("{ROOT}/{name}");
    let text = files.read(&path).map_err(|errno| Error::of_host("read", format_args!("/{path}"), errno))?;
    number(&format!("/{ROOT}"), name, text.trim())
}

/// Reads the counters for `pid`; `None` for a process without memory of its own: a kernel thread, a zombie.
///
/// # Errors
/// `Gone` if the process ended, `Denied` if it belongs to another user, `Unsupported` on a kernel without the file.
pub fn of_process(files: &impl KernelFiles, pid: Pid) -> Result<Option<OfProcess>, Error> {
    let path = pid.file("ksm_stat");
    let object = format!("/{path}");
    let text = files.read(&path).map_err(|errno| match errno {
        // The process exists, and the file does not.
        Errno::NOENT if files.list(&pid.file("")).is_ok() => Error::of_host("read", &object, errno),
        _ => Error::of_process("read", &object, errno),
    })?;
    let Some(mut found) = parse(&text, &object)? else { return Ok(None) };
    if found.merging_pages == Reported::NotReported {
        found.merging_pages = merging_pages(files, pid)?;
    }
    Ok(Some(found))
}

/// Reads the file with this one figure, which is older than the line.
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

/// Parses the text of a `ksm_stat` file; `object` is the path for messages. `None` for an empty text.
///
/// # Errors
/// `Malformed`, naming the line.
pub fn parse(text: &str, object: &str) -> Result<Option<OfProcess>, Error> {
    if text.is_empty() {
        return Ok(None);
    }
    // Figures follow a space, and answers follow a colon.
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
