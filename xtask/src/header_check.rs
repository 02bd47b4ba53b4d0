//! Our kernel structures and numbers against the C headers, by a C program that prints the values of the headers.
//!
//! The headers are the distribution's, or any that `--headers` names; a name that they are too old for is a named skip.
//! The Rust side is the one that `crates/linux` uses: `linux-raw-sys`, and the ioctl number that rustix computes from
//! its struct.

use std::collections::BTreeMap;
use std::mem::offset_of;
use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use linux::perf_counters::{Attributes, numbers as perf};
use linux::syscall_dispatch::numbers as dispatch;
use linux_raw_sys::general::{self as raw, cachestat, cachestat_range, page_region, pm_scan_arg, uffdio_api};

use crate::boot::kernels;
use crate::command::{create_folder, output, program, run as run_program};
use crate::workspace;

/// Headers to compare with.
#[derive(clap::Args)]
pub struct Options {
    /// A folder of kernel headers (usr/include of an unpacked linux-libc-dev), instead of the distribution's
    #[arg(long)]
    headers: Option<PathBuf>,
    /// Debian's newest headers, which are downloaded
    #[arg(long, conflicts_with = "headers")]
    newest: bool,
}

/// Compares with the headers that the options name.
pub fn run(options: &Options) -> Result<()> {
    if options.newest { compare_with_newest() } else { compare_with(options.headers.as_deref()) }
}

/// Compares with the distribution's headers.
pub fn compare() -> Result<()> {
    compare_with(None)
}

/// Compares with Debian's newest headers, since the host's may be too old for some names.
pub fn compare_with_newest() -> Result<()> {
    compare_with(Some(&kernels::newest_headers()?))
}

fn compare_with(headers: Option<&Path>) -> Result<()> {
    let folder = workspace::target().join("header-check");
    create_folder(&folder)?;
    let binary = folder.join("print-headers");
    let mut compiler = program("cc");
    if let Some(headers) = headers {
        compiler.arg("-I").arg(headers).arg("-I").arg(headers.join("x86_64-linux-gnu"));
    }
    run_program(compiler.args(["-Wall", "-Werror", "xtask/src/header_check.c", "-o"]).arg(&binary))?;
    let said = output(&mut program(&binary))?;
    let report = compare_lines(&said, &ours());
    for line in &report.skipped {
        println!("SKIP {line}");
    }
    ensure!(report.wrong.is_empty(), "not what the headers say:\n  {}", report.wrong.join("\n  "));
    println!("{} sizes, offsets and numbers are those of the headers", report.same);
    Ok(())
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Report {
    same: usize,
    skipped: Vec<String>,
    wrong: Vec<String>,
}

fn compare_lines(said: &str, ours: &BTreeMap<String, u64>) -> Report {
    let mut report = Report::default();
    for line in said.lines() {
        if let Some(skip) = line.strip_prefix("skip ") {
            report.skipped.push(skip.to_owned());
            continue;
        }
        let theirs = line.rsplit_once(' ').map(|(name, number)| (name, number.parse().ok()));
        match theirs {
            Some((name, Some(number))) if ours.get(name) == Some(&number) => report.same += 1,
            Some((name, _)) => report.wrong.push(format!("{line}, but ours is {:?}", ours.get(name))),
            None => report.wrong.push(format!("{line}: not understood")),
        }
    }
    if report.same == 0 {
        report.wrong.push("nothing was compared".to_owned());
    }
    report
}

/// Names as the C program prints them, with their values in Rust.
fn ours() -> BTreeMap<String, u64> {
    let scan = rustix::ioctl::opcode::read_write::<pm_scan_arg>(b'f', 16);
    let mut numbers = vec![
        ("MADV_COLD", u64::from(raw::MADV_COLD)),
        ("MADV_PAGEOUT", u64::from(raw::MADV_PAGEOUT)),
        ("MADV_COLLAPSE", u64::from(raw::MADV_COLLAPSE)),
        ("__NR_process_madvise", u64::from(raw::__NR_process_madvise)),
        ("__NR_pidfd_open", u64::from(raw::__NR_pidfd_open)),
        ("__NR_cachestat", u64::from(raw::__NR_cachestat)),
        ("SYNC_FILE_RANGE_WRITE", u64::from(raw::SYNC_FILE_RANGE_WRITE)),
        ("PAGEMAP_SCAN", u64::from(scan)),
        ("KPF_LRU", u64::from(linux::kpageflags::bits::LRU)),
        ("KPF_ACTIVE", u64::from(linux::kpageflags::bits::ACTIVE)),
        ("KPF_SLAB", u64::from(linux::kpageflags::bits::SLAB)),
        ("KPF_BUDDY", u64::from(linux::kpageflags::bits::BUDDY)),
        ("KPF_MMAP", u64::from(linux::kpageflags::bits::MMAP)),
        ("KPF_ANON", u64::from(linux::kpageflags::bits::ANON)),
        ("KPF_SWAPBACKED", u64::from(linux::kpageflags::bits::SWAP_BACKED)),
        ("KPF_HUGE", u64::from(linux::kpageflags::bits::HUGE)),
        ("KPF_UNEVICTABLE", u64::from(linux::kpageflags::bits::UNEVICTABLE)),
        ("KPF_NOPAGE", u64::from(linux::kpageflags::bits::NO_PAGE)),
        ("KPF_OFFLINE", u64::from(linux::kpageflags::bits::OFFLINE)),
        ("KPF_PGTABLE", u64::from(linux::kpageflags::bits::PAGE_TABLE)),
        ("KPF_COMPOUND_HEAD", u64::from(linux::kpageflags::bits::COMPOUND_HEAD)),
        ("KPF_COMPOUND_TAIL", u64::from(linux::kpageflags::bits::COMPOUND_TAIL)),
        ("KPF_KSM", u64::from(linux::kpageflags::bits::KSM)),
        ("KPF_THP", u64::from(linux::kpageflags::bits::THP)),
        ("KPF_ZERO_PAGE", u64::from(linux::kpageflags::bits::ZERO_PAGE)),
        ("PR_SET_THP_DISABLE", linux::injection::numbers::PR_SET_THP_DISABLE),
        ("__NR_prctl", u64::from(raw::__NR_prctl)),
        ("PR_SET_SYSCALL_USER_DISPATCH", dispatch::PR_SET_SYSCALL_USER_DISPATCH.unsigned_abs().into()),
        ("PR_SYS_DISPATCH_OFF", dispatch::PR_SYS_DISPATCH_OFF),
        ("PR_SYS_DISPATCH_ON", dispatch::PR_SYS_DISPATCH_ON),
        ("__NR_perf_event_open", u64::from(raw::__NR_perf_event_open)),
        ("PERF_TYPE_HARDWARE", u64::from(perf::PERF_TYPE_HARDWARE)),
        ("PERF_TYPE_SOFTWARE", u64::from(perf::PERF_TYPE_SOFTWARE)),
        ("PERF_COUNT_HW_CPU_CYCLES", perf::PERF_COUNT_HW_CPU_CYCLES),
        ("PERF_COUNT_HW_INSTRUCTIONS", perf::PERF_COUNT_HW_INSTRUCTIONS),
        ("PERF_COUNT_HW_CACHE_MISSES", perf::PERF_COUNT_HW_CACHE_MISSES),
        ("PERF_COUNT_HW_STALLED_CYCLES_BACKEND", perf::PERF_COUNT_HW_STALLED_CYCLES_BACKEND),
        ("PERF_COUNT_SW_TASK_CLOCK", perf::PERF_COUNT_SW_TASK_CLOCK),
        ("PERF_FORMAT_TOTAL_TIME_ENABLED", perf::PERF_FORMAT_TOTAL_TIME_ENABLED),
        ("PERF_FORMAT_TOTAL_TIME_RUNNING", perf::PERF_FORMAT_TOTAL_TIME_RUNNING),
        ("PERF_FLAG_FD_CLOEXEC", perf::PERF_FLAG_FD_CLOEXEC),
        ("__NR_userfaultfd", u64::from(raw::__NR_userfaultfd)),
        ("UFFD_API", u64::from(raw::UFFD_API)),
        ("UFFDIO_API", u64::from(linux::userfaultfd::HANDSHAKE)),
        ("UFFD_USER_MODE_ONLY", u64::from(raw::UFFD_USER_MODE_ONLY)),
        ("UFFD_FEATURE_SIGBUS", u64::from(raw::UFFD_FEATURE_SIGBUS)),
        ("UFFD_FEATURE_WP_ASYNC", u64::from(raw::UFFD_FEATURE_WP_ASYNC)),
        ("UFFD_FEATURE_MOVE", u64::from(raw::UFFD_FEATURE_MOVE)),
        ("PTRACE_GETSIGMASK", u64::from(linux::injection::numbers::PTRACE_GETSIGMASK)),
        ("PTRACE_GET_SYSCALL_INFO", u64::from(linux::injection::numbers::PTRACE_GET_SYSCALL_INFO)),
        ("PTRACE_SYSCALL_INFO_ENTRY", u64::from(linux::injection::numbers::PTRACE_SYSCALL_INFO_ENTRY)),
        ("PTRACE_SYSCALL_INFO_EXIT", u64::from(linux::injection::numbers::PTRACE_SYSCALL_INFO_EXIT)),
        ("PTRACE_SETSIGMASK", u64::from(linux::injection::numbers::PTRACE_SETSIGMASK)),
        ("PTRACE_GET_RSEQ_CONFIGURATION", u64::from(linux::injection::numbers::PTRACE_GET_RSEQ_CONFIGURATION)),
        ("PTRACE_EVENT_STOP", u64::from(linux::injection::numbers::PTRACE_EVENT_STOP)),
        ("PAGE_IS_WPALLOWED", u64::from(raw::PAGE_IS_WPALLOWED)),
        ("PAGE_IS_WRITTEN", u64::from(raw::PAGE_IS_WRITTEN)),
        ("PAGE_IS_FILE", u64::from(raw::PAGE_IS_FILE)),
        ("PAGE_IS_PRESENT", u64::from(raw::PAGE_IS_PRESENT)),
        ("PAGE_IS_SWAPPED", u64::from(raw::PAGE_IS_SWAPPED)),
        ("PAGE_IS_PFNZERO", u64::from(raw::PAGE_IS_PFNZERO)),
        ("PAGE_IS_HUGE", u64::from(raw::PAGE_IS_HUGE)),
    ];
    numbers.extend(
        [
            ("sizeof(ptrace_rseq_configuration)", 24),
            ("ptrace_rseq_configuration.rseq_abi_pointer", 0),
            ("sizeof(cachestat_range)", size_of::<cachestat_range>()),
            ("cachestat_range.off", offset_of!(cachestat_range, off)),
            ("cachestat_range.len", offset_of!(cachestat_range, len)),
            ("sizeof(cachestat)", size_of::<cachestat>()),
            ("cachestat.nr_cache", offset_of!(cachestat, nr_cache)),
            ("cachestat.nr_dirty", offset_of!(cachestat, nr_dirty)),
            ("cachestat.nr_writeback", offset_of!(cachestat, nr_writeback)),
            ("cachestat.nr_evicted", offset_of!(cachestat, nr_evicted)),
            ("cachestat.nr_recently_evicted", offset_of!(cachestat, nr_recently_evicted)),
            ("PERF_ATTR_SIZE_VER0", size_of::<Attributes>()),
            ("perf_event_attr.type", offset_of!(Attributes, kind)),
            ("perf_event_attr.size", offset_of!(Attributes, size)),
            ("perf_event_attr.config", offset_of!(Attributes, config)),
            ("perf_event_attr.sample_period", offset_of!(Attributes, sample_period)),
            ("perf_event_attr.sample_type", offset_of!(Attributes, sample_type)),
            ("perf_event_attr.read_format", offset_of!(Attributes, read_format)),
            ("perf_event_attr.wakeup_events", offset_of!(Attributes, wakeup_events)),
            ("perf_event_attr.bp_type", offset_of!(Attributes, bp_type)),
            ("perf_event_attr.bp_addr", offset_of!(Attributes, bp_addr)),
            ("sizeof(uffdio_api)", size_of::<uffdio_api>()),
            ("uffdio_api.api", offset_of!(uffdio_api, api)),
            ("uffdio_api.features", offset_of!(uffdio_api, features)),
            ("uffdio_api.ioctls", offset_of!(uffdio_api, ioctls)),
            ("sizeof(page_region)", size_of::<page_region>()),
            ("page_region.start", offset_of!(page_region, start)),
            ("page_region.end", offset_of!(page_region, end)),
            ("page_region.categories", offset_of!(page_region, categories)),
            ("sizeof(pm_scan_arg)", size_of::<pm_scan_arg>()),
            ("pm_scan_arg.size", offset_of!(pm_scan_arg, size)),
            ("pm_scan_arg.flags", offset_of!(pm_scan_arg, flags)),
            ("pm_scan_arg.start", offset_of!(pm_scan_arg, start)),
            ("pm_scan_arg.end", offset_of!(pm_scan_arg, end)),
            ("pm_scan_arg.walk_end", offset_of!(pm_scan_arg, walk_end)),
            ("pm_scan_arg.vec", offset_of!(pm_scan_arg, vec)),
            ("pm_scan_arg.vec_len", offset_of!(pm_scan_arg, vec_len)),
            ("pm_scan_arg.max_pages", offset_of!(pm_scan_arg, max_pages)),
            ("pm_scan_arg.category_inverted", offset_of!(pm_scan_arg, category_inverted)),
            ("pm_scan_arg.category_mask", offset_of!(pm_scan_arg, category_mask)),
            ("pm_scan_arg.category_anyof_mask", offset_of!(pm_scan_arg, category_anyof_mask)),
            ("pm_scan_arg.return_mask", offset_of!(pm_scan_arg, return_mask)),
        ]
        .map(|(name, number)| (name, number as u64)),
    );
    numbers.into_iter().map(|(name, number)| (name.to_owned(), number)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_that_differs_or_is_missing_is_wrong_and_an_old_header_is_a_skip() {
        let ours = BTreeMap::from([("MADV_COLD".to_owned(), 20), ("sizeof(x)".to_owned(), 8)]);
        let report = compare_lines("MADV_COLD 20\nsizeof(x) 16\nother 1\nskip Y too old\n", &ours);
        assert_eq!(report.same, 1);
        assert_eq!(report.skipped, ["Y too old"]);
        assert_eq!(report.wrong, ["sizeof(x) 16, but ours is Some(8)", "other 1, but ours is None"]);
    }

    #[test]
    fn comparing_nothing_is_no_pass() {
        assert_eq!(compare_lines("", &BTreeMap::new()).wrong, ["nothing was compared"]);
    }
}
