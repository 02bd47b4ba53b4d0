//! `/proc/PID/smaps_rollup` and `/proc/PID/smaps`: exact resident memory of a process, by kind.
//!
//! Cheaper and coarser figures are in `status.rs`; single pages are in `pagemap.rs`. `Referenced` counts pages
//! touched since the last clear by `clear_refs.rs`.
//!
//! Cost: both walk the page tables of the whole process under the mmap lock for reading, 11 ms per GiB of small pages
//! (measured once on Linux 6.18); the rollup releases the lock now and then when a writer waits. Side effects: none.
//!
//! Since: smaps Linux 2.6.14, smaps_rollup Linux 4.14; needs CONFIG_PROC_PAGE_MONITOR and ptrace access. `KSM:` is
//! missing in Linux 6.1 and present in 6.12; `LazyFree:` Linux 4.12, `THPeligible:` Linux 5.0, `VmFlags:` Linux 3.8. A process without memory
//! answers ESRCH to the rollup.
//!
//! Truth: proc_pid_smaps(5); `show_smap` and `show_smaps_rollup` in fs/proc/task_mmu.c.

use units::Bytes;

use crate::key_lines::{amount, lines, number, required, split};
use crate::maps::{Mapping, not_a_mapping, parse_line};
use crate::{Error, KernelFiles, Pid};

pub mod kinds;

/// Sums over all mappings of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rollup {
    /// Resident memory.
    pub rss: Bytes,
    /// Resident memory, shared pages divided by the number of sharers.
    pub pss: Bytes,
    /// Resident memory without a file behind it.
    pub anonymous: Bytes,
    /// Anonymous memory on huge pages.
    pub anon_huge_pages: Bytes,
    /// Memory touched since the last clear (`clear_refs.rs`).
    pub referenced: Bytes,
    /// Locked by mlock, shared out like `pss`.
    pub locked: Bytes,
    /// Freed lazily (MADV_FREE) and not written since: reclaim may take it. `None` before Linux 4.12.
    pub lazy_free: Option<Bytes>,
    /// Swapped out.
    pub swap: Bytes,
    /// Merged by KSM, without the zero page; `None` on a kernel without this figure (6.1).
    pub ksm: Option<Bytes>,
}

/// One mapping with its memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Detail {
    /// Mapping as in `maps`.
    pub mapping: Mapping,
    /// Resident memory, without pages of hugetlbfs.
    pub rss: Bytes,
    /// Resident memory, each page divided by the number of its mappings.
    pub pss: Bytes,
    /// Resident pages of hugetlbfs, shared and private; zero before Linux 4.4.
    pub hugetlb: Bytes,
    /// Resident memory without a file behind it: in a private file mapping, the written pages.
    pub anonymous: Bytes,
    /// Memory whose accessed bit is set: touched since the kernel last looked.
    pub referenced: Bytes,
    /// Anonymous memory on huge pages.
    pub anon_huge_pages: Bytes,
    /// Freed lazily (MADV_FREE) and not written since: reclaim may take it. `None` before Linux 4.12.
    pub lazy_free: Option<Bytes>,
    /// Swapped out.
    pub swap: Bytes,
    /// Locked by mlock, divided by the number of processes that map it.
    pub locked: Bytes,
    /// Merged by KSM, without the zero page; `None` on a kernel without this figure (6.1).
    pub ksm: Option<Bytes>,
    /// True if the kernel would give it huge pages by itself; `None` before 5.0.
    pub thp_eligible: Option<bool>,
    /// Flags of the mapping.
    pub flags: VmFlags,
}

/// One flag of a mapping, as in `VmFlags:`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VmFlag {
    /// `sh`: shared with others.
    Shared,
    /// `lo`: locked by mlock.
    Locked,
    /// `ht`: hugetlbfs, never managed by masu.
    HugeTlb,
    /// `nh`: `MADV_NOHUGEPAGE`.
    NoHugePage,
    /// `hg`: `MADV_HUGEPAGE`.
    HugePage,
    /// `mg`: `MADV_MERGEABLE`, or merged as a whole by prctl.
    Mergeable,
    /// `io`: a device's memory.
    Io,
    /// `pf`: pages without a `struct page`.
    PfnMap,
    /// `um`: userfaultfd reports missing pages.
    UffdMissing,
    /// `uw`: userfaultfd reports writes.
    UffdWriteProtect,
    /// `ui`: userfaultfd reports minor faults.
    UffdMinor,
    /// `gd`: grows down, a stack.
    GrowsDown,
    /// `mt`: arm64 memory tags.
    MemoryTags,
    /// `sd`: soft-dirty, written or mapped since the last clear.
    SoftDirty,
    /// `dd`: left out of core dumps.
    DontDump,
}

impl VmFlag {
    fn of(code: &str) -> Option<VmFlag> {
        Some(match code {
            "sh" => VmFlag::Shared,
            "lo" => VmFlag::Locked,
            "ht" => VmFlag::HugeTlb,
            "nh" => VmFlag::NoHugePage,
            "hg" => VmFlag::HugePage,
            "mg" => VmFlag::Mergeable,
            "io" => VmFlag::Io,
            "pf" => VmFlag::PfnMap,
            "um" => VmFlag::UffdMissing,
            "uw" => VmFlag::UffdWriteProtect,
            "ui" => VmFlag::UffdMinor,
            "gd" => VmFlag::GrowsDown,
            "mt" => VmFlag::MemoryTags,
            "sd" => VmFlag::SoftDirty,
            "dd" => VmFlag::DontDump,
            _ => return None,
        })
    }
}

/// A set of [`VmFlag`]s.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VmFlags(u16);

impl VmFlags {
    /// True if the mapping has this flag.
    pub fn contains(self, flag: VmFlag) -> bool {
        self.0 & (1 << flag as u16) != 0
    }

    /// Parses the value of a `VmFlags:` line. Other codes are ignored.
    fn of(codes: &str) -> VmFlags {
        codes.split_ascii_whitespace().filter_map(VmFlag::of).collect()
    }
}

impl FromIterator<VmFlag> for VmFlags {
    fn from_iter<I: IntoIterator<Item = VmFlag>>(flags: I) -> VmFlags {
        VmFlags(flags.into_iter().fold(0, |bits, flag| bits | 1 << flag as u16))
    }
}

/// Sums over `pid`.
///
/// # Errors
/// `Gone` if the process ended or has no memory, `Denied` if it belongs to another user.
pub fn rollup(files: &impl KernelFiles, pid: Pid) -> Result<Rollup, Error> {
    let path = pid.file("smaps_rollup");
    let object = format!("/{path}");
    let text = files.read(&path).map_err(|errno| Error::of_process("read", &object, errno))?;
    parse_rollup(&text, &object)
}

/// Every mapping of `pid`, by rising address. Empty for a process without memory.
///
/// # Errors
/// `Gone` if the process ended, `Denied` if it belongs to another user.
pub fn details(files: &impl KernelFiles, pid: Pid) -> Result<Vec<Detail>, Error> {
    let path = pid.file("smaps");
    let object = format!("/{path}");
    let text = files.bytes(&path).map_err(|errno| Error::of_process("read", &object, errno))?;
    parse_details(&text, &object)
}

/// Lines in use of one mapping, or of the sums.
#[derive(Default)]
struct Amounts {
    rss: Option<Bytes>,
    pss: Option<Bytes>,
    referenced: Option<Bytes>,
    anonymous: Option<Bytes>,
    ksm: Option<Bytes>,
    anon_huge_pages: Option<Bytes>,
    lazy_free: Option<Bytes>,
    swap: Option<Bytes>,
    locked: Option<Bytes>,
    shared_hugetlb: Option<Bytes>,
    private_hugetlb: Option<Bytes>,
}

impl Amounts {
    /// Takes one `Key: value`; other keys are ignored.
    fn take(&mut self, object: &str, key: &str, value: &str) -> Result<(), Error> {
        let slot = match key {
            "Rss" => &mut self.rss,
            "Pss" => &mut self.pss,
            "Referenced" => &mut self.referenced,
            "Anonymous" => &mut self.anonymous,
            "KSM" => &mut self.ksm,
            "AnonHugePages" => &mut self.anon_huge_pages,
            "LazyFree" => &mut self.lazy_free,
            "Swap" => &mut self.swap,
            "Locked" => &mut self.locked,
            "Shared_Hugetlb" => &mut self.shared_hugetlb,
            "Private_Hugetlb" => &mut self.private_hugetlb,
            _ => return Ok(()),
        };
        *slot = Some(amount(object, key, value)?);
        Ok(())
    }
}

fn parse_rollup(text: &str, object: &str) -> Result<Rollup, Error> {
    let mut found = Amounts::default();
    for (key, value) in text.lines().filter_map(split) {
        found.take(object, key, value)?;
    }
    Ok(Rollup {
        rss: required(object, "Rss", found.rss)?,
        pss: required(object, "Pss", found.pss)?,
        anonymous: required(object, "Anonymous", found.anonymous)?,
        anon_huge_pages: required(object, "AnonHugePages", found.anon_huge_pages)?,
        referenced: required(object, "Referenced", found.referenced)?,
        locked: required(object, "Locked", found.locked)?,
        lazy_free: found.lazy_free,
        swap: required(object, "Swap", found.swap)?,
        ksm: found.ksm,
    })
}

/// One mapping, while its lines are read.
struct Open {
    mapping: Mapping,
    amounts: Amounts,
    thp_eligible: Option<bool>,
    flags: VmFlags,
}

impl Open {
    fn take(&mut self, object: &str, key: &str, value: &str) -> Result<(), Error> {
        match key {
            "THPeligible" => self.thp_eligible = Some(number::<u8>(object, key, value)? != 0),
            "VmFlags" => self.flags = VmFlags::of(value),
            _ => self.amounts.take(object, key, value)?,
        }
        Ok(())
    }

    fn close(self, object: &str) -> Result<Detail, Error> {
        let amounts = self.amounts;
        Ok(Detail {
            mapping: self.mapping,
            rss: required(object, "Rss", amounts.rss)?,
            pss: required(object, "Pss", amounts.pss.or(amounts.rss))?,
            hugetlb: [amounts.shared_hugetlb, amounts.private_hugetlb].into_iter().flatten().sum(),
            anonymous: required(object, "Anonymous", amounts.anonymous)?,
            referenced: amounts.referenced.unwrap_or_default(),
            anon_huge_pages: required(object, "AnonHugePages", amounts.anon_huge_pages)?,
            swap: required(object, "Swap", amounts.swap)?,
            locked: required(object, "Locked", amounts.locked)?,
            lazy_free: amounts.lazy_free,
            ksm: amounts.ksm,
            thp_eligible: self.thp_eligible,
            flags: self.flags,
        })
    }
}

fn parse_details(text: &(impl AsRef<[u8]> + ?Sized), object: &str) -> Result<Vec<Detail>, Error> {
    let mut details = Vec::new();
    let mut open: Option<Open> = None;
    for (index, line) in lines(text.as_ref()).enumerate() {
        // A file name may hold a colon, but the first word of a mapping does not.
        if let Some((key, value)) = str::from_utf8(line).ok().and_then(split) {
            let current = open.as_mut().ok_or_else(|| not_a_mapping(object, index, line))?;
            current.take(object, key, value)?;
            continue;
        }
        if line.first().is_some_and(u8::is_ascii_uppercase) {
            continue; // line of a newer kernel: mappings start with a lower-case hexadecimal digit
        }
        let mapping = parse_line(line).ok_or_else(|| not_a_mapping(object, index, line))?;
        let next = Open { mapping, amounts: Amounts::default(), thp_eligible: None, flags: VmFlags::default() };
        if let Some(finished) = open.replace(next) {
            details.push(finished.close(object)?);
        }
    }
    details.extend(open.map(|last| last.close(object)).transpose()?);
    Ok(details)
}

#[cfg(test)]
mod tests;
