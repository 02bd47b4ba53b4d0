//! `/sys/kernel/mm/transparent_hugepage`: the kernel's own policy for huge pages.
//!
//! Collapse on demand is `process_madvise.rs`; its results are counted in `vmstat.rs`. To change a setting and
//! have it restored, pass its path and word to `HostSettings::set` (`journal.rs`).
//!
//! Cost: one small file each. Side effect of a write: it applies at once to memory touched later, on the whole host.
//!
//! Since: Linux 2.6.38, the sizes below 2 MiB (`hugepages-*kB`) 6.8; needs CONFIG_TRANSPARENT_HUGEPAGE. khugepaged
//! runs only while `enabled` (or that of a size) is not `never`; its directory always exists.
//!
//! Truth: Documentation/admin-guide/mm/transhuge.rst; mm/huge_memory.c, mm/khugepaged.c.

use std::time::Duration;

use serde::Serialize;
use units::Bytes;

use crate::bracketed;
use crate::{Error, KernelFiles};

/// Directory of all these files.
pub const ROOT: &str = "sys/kernel/mm/transparent_hugepage";

/// File of [`Enabled`].
pub const ENABLED: &str = "sys/kernel/mm/transparent_hugepage/enabled";

/// Mappings that get huge pages at the first touch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Enabled {
    /// Every mapping that is large enough.
    Always,
    /// Mappings with `MADV_HUGEPAGE`.
    Madvise,
    /// None.
    Never,
}

impl Enabled {
    /// The word that the kernel prints and accepts.
    pub const fn word(self) -> &'static str {
        match self {
            Enabled::Always => "always",
            Enabled::Madvise => "madvise",
            Enabled::Never => "never",
        }
    }
}

/// Effort of a page fault to find a huge page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Defrag {
    /// Compacts memory and waits.
    Always,
    /// Asks the kernel's threads to compact memory, and takes small pages meanwhile.
    Defer,
    /// Waits in mappings with `MADV_HUGEPAGE` and defers elsewhere.
    #[serde(rename = "defer+madvise")]
    DeferMadvise,
    /// Waits in mappings with `MADV_HUGEPAGE` and does nothing elsewhere.
    Madvise,
    /// Takes a huge page only if one is free.
    Never,
}

/// Shared memory (tmpfs, memfd, shared anonymous) that gets huge pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ShmemEnabled {
    /// All of it.
    Always,
    /// Pages within the file's size.
    WithinSize,
    /// Mappings with `MADV_HUGEPAGE`.
    Advise,
    /// None.
    Never,
    /// None, mount options notwithstanding.
    Deny,
    /// All of it, mount options notwithstanding: for tests of the kernel.
    Force,
}

/// Condition for pages of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum SizeEnabled {
    /// Every mapping that is large enough.
    Always,
    /// As [`Enabled`].
    Inherit,
    /// Mappings with `MADV_HUGEPAGE`.
    Madvise,
    /// Never.
    Never,
}

/// One directory `hugepages-64kB`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Size {
    /// Page size.
    pub bytes: Bytes,
    /// Condition for anonymous memory; `None` for a size that only shared memory can have.
    pub enabled: Option<SizeEnabled>,
}

/// Settings of the host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Settings {
    /// Mappings that get huge pages at the first touch.
    pub enabled: Enabled,
    /// Effort of a page fault.
    pub defrag: Defrag,
    /// Policy for shared memory; `None` for a kernel without it (CONFIG_SHMEM off, or before 4.8).
    pub shmem_enabled: Option<ShmemEnabled>,
    /// Reading untouched memory maps a huge page of zeros.
    pub use_zero_page: bool,
    /// Size of a huge page: 2 MiB on x86-64.
    pub pmd_bytes: Bytes,
    /// All sizes that the host offers, smallest first; empty before Linux 6.8.
    pub sizes: Vec<Size>,
}

/// Settings and counters of `khugepaged`, the kernel's own collapsing thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Khugepaged {
    /// True if it may compact memory.
    pub defrag: bool,
    /// Pages scanned per pass.
    pub pages_to_scan: u64,
    /// Pause between two passes.
    pub scan_sleep: Duration,
    /// Pause after it found no huge page.
    pub alloc_sleep: Duration,
    /// Maximum empty pages of a window: 511 collapses a window with one page in it, and so bloats memory.
    pub max_ptes_none: u64,
    /// Maximum swapped-out pages of a window.
    pub max_ptes_swap: u64,
    /// Maximum pages of a window that are shared after a fork; `None` before Linux 5.8.
    pub max_ptes_shared: Option<u64>,
    /// Windows that it collapsed since boot.
    pub pages_collapsed: u64,
    /// Full scans of all memory since boot.
    pub full_scans: u64,
}

/// Reads the policy for the first touch.
///
/// # Errors
/// `Unsupported` for a kernel without huge pages.
pub fn enabled(files: &impl KernelFiles) -> Result<Enabled, Error> {
    bracketed_word(files, "enabled", &[Enabled::Always, Enabled::Madvise, Enabled::Never].map(|e| (e.word(), e)))
}

/// Sets the policy for the first touch permanently. `journal.rs` has a way with a restore.
///
/// # Errors
/// `Unsupported` for a kernel without huge pages, `Denied` without root.
pub fn set_enabled(files: &impl KernelFiles, to: Enabled) -> Result<(), Error> {
    let operation = format!("write {:?} to", to.word());
    files.write(ENABLED, to.word()).map_err(|errno| Error::of_host(operation, format_args!("/{ENABLED}"), errno))
}

/// Reads all settings.
///
/// # Errors
/// `Unsupported` for a kernel without huge pages.
pub fn settings(files: &impl KernelFiles) -> Result<Settings, Error> {
    const DEFRAG: [(&str, Defrag); 5] = [
        ("always", Defrag::Always),
        ("defer", Defrag::Defer),
        ("defer+madvise", Defrag::DeferMadvise),
        ("madvise", Defrag::Madvise),
        ("never", Defrag::Never),
    ];
    const SHMEM: [(&str, ShmemEnabled); 6] = [
        ("always", ShmemEnabled::Always),
        ("within_size", ShmemEnabled::WithinSize),
        ("advise", ShmemEnabled::Advise),
        ("never", ShmemEnabled::Never),
        ("deny", ShmemEnabled::Deny),
        ("force", ShmemEnabled::Force),
    ];
    Ok(Settings {
        enabled: enabled(files)?,
        defrag: bracketed_word(files, "defrag", &DEFRAG)?,
        shmem_enabled: if_there(bracketed_word(files, "shmem_enabled", &SHMEM))?,
        use_zero_page: number(files, "use_zero_page")? != 0,
        pmd_bytes: Bytes(number(files, "hpage_pmd_size")?),
        sizes: sizes(files)?,
    })
}

/// Page sizes of the host, smallest first. Empty before Linux 6.8.
///
/// # Errors
/// `Unsupported` for a kernel without huge pages.
pub fn sizes(files: &impl KernelFiles) -> Result<Vec<Size>, Error> {
    const WORDS: [(&str, SizeEnabled); 4] = [
        ("always", SizeEnabled::Always),
        ("inherit", SizeEnabled::Inherit),
        ("madvise", SizeEnabled::Madvise),
        ("never", SizeEnabled::Never),
    ];
    let names = files.list(ROOT).map_err(|errno| Error::of_host("list", format_args!("/{ROOT}"), errno))?;
    let mut sizes = Vec::new();
    for name in names {
        let kib = name.strip_prefix("hugepages-").and_then(|rest| rest.strip_suffix("kB")?.parse::<u32>().ok());
        let Some(kib) = kib else { continue };
        let enabled = if_there(bracketed_word(files, &format!("{name}/enabled"), &WORDS))?;
        sizes.push(Size { bytes: Bytes::kib(u64::from(kib)), enabled });
    }
    sizes.sort_by_key(|size| size.bytes);
    Ok(sizes)
}

/// Reads the settings and counters of khugepaged.
///
/// # Errors
/// `Unsupported` for a kernel without it.
pub fn khugepaged(files: &impl KernelFiles) -> Result<Khugepaged, Error> {
    let number = |name: &str| number(files, &format!("khugepaged/{name}"));
    Ok(Khugepaged {
        defrag: number("defrag")? != 0,
        pages_to_scan: number("pages_to_scan")?,
        scan_sleep: Duration::from_millis(number("scan_sleep_millisecs")?),
        alloc_sleep: Duration::from_millis(number("alloc_sleep_millisecs")?),
        max_ptes_none: number("max_ptes_none")?,
        max_ptes_swap: number("max_ptes_swap")?,
        max_ptes_shared: if_there(number("max_ptes_shared"))?,
        pages_collapsed: number("pages_collapsed")?,
        full_scans: number("full_scans")?,
    })
}

fn read(files: &impl KernelFiles, name: &str) -> Result<(String, String), Error> {
    let path = format!("{ROOT}/{name}");
    let object = format!("/{path}");
    let text = files.read(&path).map_err(|errno| Error::of_host("read", &object, errno))?;
    Ok((object, text))
}

fn bracketed_word<T: Copy>(files: &impl KernelFiles, name: &str, known: &[(&str, T)]) -> Result<T, Error> {
    let (object, text) = read(files, name)?;
    bracketed::parse(&object, &text, known)
}

fn number(files: &impl KernelFiles, name: &str) -> Result<u64, Error> {
    let (object, text) = read(files, name)?;
    text.trim().parse().map_err(|_| Error::malformed(&object, format_args!("{:?}, expected a number", text.trim())))
}

/// Makes a file that older kernels lack optional.
fn if_there<T>(read: Result<T, Error>) -> Result<Option<T>, Error> {
    match read {
        Ok(value) => Ok(Some(value)),
        Err(Error::Unsupported(_)) => Ok(None),
        Err(other) => Err(other),
    }
}

#[cfg(test)]
mod tests;
