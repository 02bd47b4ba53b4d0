//! A process's memory and processor time, from `/proc`.
//!
//! These do not use masu's own readers: a benchmark that measured with the code under test could not find its mistakes.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result};
use units::Bytes;

use crate::host::amount;

/// Memory of a process that is in RAM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Resident {
    /// All of it.
    pub rss_bytes: Bytes,
    /// The part on huge pages that are not backed by a file.
    pub anon_huge_bytes: Bytes,
}

/// Resident memory of process `pid`, exactly, by a walk over its page tables (`smaps_rollup`; the counters in `status`
/// lag behind).
///
/// # Errors
/// When the process is gone or is not ours.
pub fn resident(pid: u32) -> Result<Resident> {
    let text = read(pid, "smaps_rollup")?;
    let said = |name| amount(&text, name).with_context(|| format!("/proc/{pid}/smaps_rollup has no {name}"));
    Ok(Resident { rss_bytes: said("Rss")?, anon_huge_bytes: said("AnonHugePages")? })
}

/// Resident memory of process `pid` from the kernel's counters: cheap, and off by up to some hundred KiB.
///
/// # Errors
/// When the process is gone or is not ours.
pub fn rss_counted(pid: u32) -> Result<Bytes> {
    amount(&read(pid, "status")?, "VmRSS").with_context(|| format!("/proc/{pid}/status has no VmRSS"))
}

/// As [`rss_counted`], with the pages of the hugetlb pool, which the kernel does not count as resident.
///
/// # Errors
/// When the process is gone or is not ours.
pub fn memory_counted(pid: u32) -> Result<Bytes> {
    Ok(Bytes(rss_counted(pid)?.0 + hugetlb(pid)?.0))
}

/// Pages of the hugetlb pool that process `pid` has; none on a kernel without the pool.
///
/// # Errors
/// When the process is gone or is not ours.
pub fn hugetlb(pid: u32) -> Result<Bytes> {
    Ok(amount(&read(pid, "status")?, "HugetlbPages").unwrap_or_default())
}

/// Processor time of process `pid` up to now, in its current threads, to the nanosecond.
///
/// # Errors
/// When the process is gone, or this kernel does not count that precisely.
pub fn processor_time_closely(pid: u32) -> Result<Duration> {
    Ok(closely_of(pid)? + proxies_of(pid).into_iter().flat_map(closely_of).sum::<Duration>())
}

fn closely_of(pid: u32) -> Result<Duration> {
    let folder = format!("/proc/{pid}/task");
    let threads = fs::read_dir(&folder).with_context(|| format!("cannot read {folder}"))?;
    let mut sum_ns = 0;
    for thread in threads.flatten() {
        // A thread that has just ended is no error.
        let Ok(text) = fs::read_to_string(thread.path().join("schedstat")) else { continue };
        let word = text.split_whitespace().next().and_then(|word| word.parse::<u64>().ok());
        sum_ns += word.with_context(|| format!("{folder}: schedstat is not what it should be"))?;
    }
    Ok(Duration::from_nanos(sum_ns))
}

/// Processor time that process `pid` has used, in all its threads. Counted in steps of 10 ms.
///
/// # Errors
/// When the process is gone.
pub fn processor_time(pid: u32) -> Result<Duration> {
    Ok(time_of(pid)? + proxies_of(pid).into_iter().flat_map(time_of).sum::<Duration>())
}

/// The processes that make calls for a masu: their time is its own.
fn proxies_of(pid: u32) -> Vec<u32> {
    let is_one =
        |of: &u32| read(*of, "stat").is_ok_and(|stat| stat.contains("(masu-proxy)") && parent_of(&stat) == Some(pid));
    let processes = fs::read_dir("/proc").into_iter().flatten();
    processes.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).filter(is_one).collect()
}

/// The 4th field.
fn parent_of(stat: &str) -> Option<u32> {
    stat.get(stat.rfind(')')? + 1..)?.split_whitespace().nth(1)?.parse().ok()
}

fn time_of(pid: u32) -> Result<Duration> {
    let text = read(pid, "stat")?;
    let ticks = ticks_of(&text).with_context(|| format!("/proc/{pid}/stat is not what it should be"))?;
    let per_second = rustix::param::clock_ticks_per_second().max(1);
    Ok(Duration::from_secs_f64(ticks as f64 / per_second as f64))
}

/// Page faults of a process since it started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct PageFaults {
    /// Served from memory.
    pub minor: u64,
    /// Waited for a disk.
    pub major: u64,
}

/// Page faults of process `pid`, in all its threads.
///
/// # Errors
/// When the process is gone.
pub fn page_faults(pid: u32) -> Result<PageFaults> {
    faults_of(&read(pid, "stat")?).with_context(|| format!("/proc/{pid}/stat is not what it should be"))
}

/// minflt and majflt: the 10th and 12th field.
fn faults_of(stat: &str) -> Option<PageFaults> {
    let mut fields = stat.get(stat.rfind(')')? + 1..)?.split_whitespace().skip(7);
    let minor = fields.next()?.parse().ok()?;
    Some(PageFaults { minor, major: fields.nth(1)?.parse().ok()? })
}

/// utime + stime: the 14th and 15th field, counted after the name, which may hold blanks and parentheses.
fn ticks_of(stat: &str) -> Option<u64> {
    let mut fields = stat.get(stat.rfind(')')? + 1..)?.split_whitespace().skip(11);
    Some(fields.next()?.parse::<u64>().ok()? + fields.next()?.parse::<u64>().ok()?)
}

/// The process called `name`, when there is one; of kernel threads such as khugepaged there is one at most.
pub fn by_name(name: &str) -> Option<u32> {
    let is_named =
        |pid: &u32| fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|comm| comm.trim_end() == name);
    fs::read_dir("/proc").ok()?.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).find(is_named)
}

fn read(pid: u32, file: &str) -> Result<String> {
    let path = format!("/proc/{pid}/{file}");
    fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mapping::Mapping;

    #[test]
    fn processor_time_is_found_behind_a_name_with_parentheses() {
        let stat = "42 (a) b (c) S 1 42 42 0 -1 4194560 100 0 0 0 120 30 0 0 20 0 1 0 5 6 7";
        assert_eq!(ticks_of(stat), Some(150));
        assert_eq!(ticks_of("42 (a"), None);
        assert_eq!(ticks_of("42 (a) S 1"), None);
    }

    #[test]
    fn page_faults_are_those_of_the_process_and_not_of_its_children() {
        let stat = "42 (a) b (c) S 1 42 42 0 -1 4194560 100 7 9 8 120 30 0 0 20 0 1 0 5 6 7";
        assert_eq!(faults_of(stat), Some(PageFaults { minor: 100, major: 9 }));
        assert_eq!(faults_of("42 (a) S 1 42"), None);
    }

    #[test]
    fn touched_memory_is_counted_to_the_page() {
        let mut mapping = Mapping::anonymous(16 << 20).unwrap();
        mapping.want_huge_pages(false).unwrap();
        let me = std::process::id();
        let before = resident(me).unwrap().rss_bytes;
        mapping.words().fill(1);
        let grown = resident(me).unwrap().rss_bytes.saturating_sub(before);
        // Other tests of this process come and go meanwhile.
        assert!(grown > Bytes::mib(8), "{grown}");
        assert!(rss_counted(me).unwrap() > Bytes::mib(8));
        assert!(processor_time(me).is_ok() && resident(u32::MAX).is_err());
        assert!(memory_counted(me).unwrap() > Bytes::mib(8) && memory_counted(u32::MAX).is_err());
    }

    #[test]
    fn both_clocks_of_a_process_tell_the_same() {
        let me = std::process::id();
        let (close, coarse) = (processor_time_closely(me).unwrap(), processor_time(me).unwrap());
        // Threads of other tests that have ended are missing in the one.
        assert!(close <= coarse + Duration::from_secs(2), "{close:?} and {coarse:?}");
        assert!(close > Duration::ZERO && processor_time_closely(u32::MAX).is_err());
    }
}
