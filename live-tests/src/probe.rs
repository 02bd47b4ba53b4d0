//! Probes of the requirements. Every probe performs the operation itself, on a target process, and checks the outcome.
//!
//! The probes do not use `linux::probe`: a mistake there must not turn into a skipped test.

use std::collections::BTreeMap;
use std::fs;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;

use linux::clear_refs::{self, Forget};
use linux::pagemap::{PageEntry, Pagemap};
use linux::process_madvise::{Advice, advise};
use linux::{Rooted, describe};
use rustix::io::Errno;
use units::Bytes;

use crate::cases::walk::ABOVE_47_BITS;
use crate::cases::{alerts, disk_file, elf32, llc_refill, memcached, packages, programs, resctrl_host};
use crate::group::Group;
use crate::requirement::{Capability, Requirement};
use crate::swap::Swap;
use crate::target_process::MADV_GUARD_INSTALL;
use crate::target_process::{Backing, Mapping, Part, TargetProcess};
use crate::user_faults::{features, paging_backends};

const TORN_PAGES: &str = "/sys/kernel/mm/transparent_hugepage/hugepages-2048kB/stats/nr_anon_partially_mapped";

/// Error of a probe that could not be carried out.
type Unprobed = Box<dyn std::error::Error>;

/// All requirements, each probed once.
pub(crate) fn all() -> BTreeMap<Requirement, Capability> {
    Requirement::ALL.into_iter().map(|requirement| (requirement, capability(requirement))).collect()
}

fn capability(requirement: Requirement) -> Capability {
    let probed = match requirement {
        Requirement::Root => Ok(root()),
        Requirement::RemoteAdvice => remote_advice(Advice::Cold),
        Requirement::RemoteCollapse => remote_advice(Advice::Collapse),
        Requirement::PagemapScan => pagemap_scan(),
        Requirement::SoftDirty => soft_dirty(),
        Requirement::PageFrames => page_frames(),
        Requirement::HugePageModes => Ok(file("/sys/kernel/mm/transparent_hugepage/enabled")),
        // Before, a torn page that stays is not told from one whose other part a child maps.
        Requirement::TornPages => Ok(file(TORN_PAGES)),
        Requirement::PageTableWalk => Ok(page_table_walk()),
        Requirement::FiveLevels => five_levels(),
        Requirement::RealProcessor => Ok(real_processor()),
        Requirement::SharedCache => Ok(shared_cache()),
        Requirement::GuardPages => guard_pages(),
        Requirement::ReservedHuge => Ok(file("/proc/sys/vm/nr_hugepages")),
        Requirement::Ksm => Ok(file("/sys/kernel/mm/ksm/run")),
        Requirement::MergedFlag => merged_flag(),
        Requirement::Compaction => Ok(written("/proc/sys/vm/compact_memory")),
        Requirement::MemoryGroups => Ok(made(Group::make("probe"))),
        Requirement::Pressure => Ok(file("/proc/pressure/memory")),
        Requirement::CacheStat => Ok(cachestat()),
        Requirement::SharedSegments => Ok(file("/proc/sysvipc/shm")),
        Requirement::DiskFiles => disk_files(),
        Requirement::Swap => Ok(made(Swap::on(8 << 20))),
        Requirement::SmallHugePages => Ok(file("/sys/kernel/mm/transparent_hugepage/hugepages-64kB/enabled")),
        Requirement::DamonVaddr => Ok(damon("vaddr")),
        Requirement::Programs32 => Ok(made(elf32::run(elf32::EXIT_0).and_then(|mut child| child.wait()))),
        Requirement::UserFaults => Ok(user_faults()),
        Requirement::KernelThreads => Ok(kernel_threads()),
        Requirement::MasuCommand => Ok(program("masu command", programs::masu())),
        Requirement::RedisServer => Ok(program("redis-server", programs::redis_server())),
        Requirement::OpenSsl => Ok(program("openssl", programs::installed("openssl"))),
        Requirement::PreloadLibrary => Ok(program("libmasu-preload.so", programs::preload_library())),
        Requirement::PagerLibrary => Ok(program("libmasu-pager.so", programs::pager_library())),
        Requirement::CCompiler => Ok(program("cc", programs::installed("cc"))),
        Requirement::Make => Ok(program("make", programs::installed("make"))),
        Requirement::CPrograms => {
            Ok(program("programs in C", programs::c_program("stress").or_else(|| programs::installed("cc"))))
        }
        Requirement::Shell => Ok(program("sh", programs::installed("sh"))),
        Requirement::Musl => Ok(program("musl-gcc", programs::installed("musl-gcc"))),
        Requirement::Python => Ok(program("python3", programs::python())),
        Requirement::Numpy => Ok(program("numpy", programs::numpy())),
        Requirement::Sqlite => Ok(program("sqlite3", programs::installed("sqlite3"))),
        Requirement::StressNg => Ok(program("stress-ng", programs::installed("stress-ng"))),
        Requirement::Allocators => Ok(program("allocators", programs::allocators().into_iter().next())),
        Requirement::SystemdAnalyze => {
            let unit = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../integrations/systemd");
            let both = programs::installed("systemd-analyze").filter(|_| unit.is_dir());
            Ok(program("systemd-analyze", both))
        }
        Requirement::Script => Ok(program("script", programs::installed("script"))),
        Requirement::MemcachedSource => Ok(memcached_source()),
        Requirement::Chromium => Ok(program("chromium", programs::installed("chromium"))),
        Requirement::CleanRoot => Ok(clean_root()),
        Requirement::Promtool => Ok(promtool()),
        Requirement::Rpm => Ok(program("rpmbuild", programs::installed("rpmbuild"))),
        Requirement::Fuse => Ok(written("/dev/fuse")),
        Requirement::LoopDevices => Ok(loop_devices()),
        Requirement::Btrfs => Ok(file_system("btrfs")),
        Requirement::Erofs => Ok(file_system("erofs")),
        Requirement::SecretMemory => Ok(secret_memory()),
        Requirement::ResctrlEmulator => Ok(program("resctrl-emulator", programs::resctrl_emulator())),
        Requirement::Resctrl => Ok(resctrl()),
    };
    probed.unwrap_or_else(|error| Capability::Unavailable(format!("could not be tried: {error}")))
}

/// Decided by the handshake's answer.
fn user_faults() -> Capability {
    match features() {
        Ok(_) if !paging_backends().is_empty() => Capability::Available,
        Ok(features) => Capability::NotInThisKernel(format!("neither by moves nor by copies: features {features:#x}")),
        Err(errno) => refused(errno),
    }
}

fn last_errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

/// Process 2 starts all the others.
fn kernel_threads() -> Capability {
    match std::fs::read_to_string("/proc/2/comm") {
        Ok(name) if name.trim() == "kthreadd" => Capability::Available,
        _ => Capability::NotOnThisMachine("none is to be seen from here".to_owned()),
    }
}

fn root() -> Capability {
    let user = rustix::process::geteuid();
    if user.is_root() {
        Capability::Available
    } else {
        Capability::Unavailable(format!("this is user {}", user.as_raw()))
    }
}

fn remote_advice(advice: Advice) -> Result<Capability, Unprobed> {
    let (process, heap) = process_with_touched(1)?;
    let pidfd = process.pid().open()?;
    Ok(match advise(process.pid(), pidfd.as_fd(), &[heap.window(0).range()], advice) {
        Ok(_) => Capability::Available,
        Err(errno) => refused(errno),
    })
}

fn pagemap_scan() -> Result<Capability, Unprobed> {
    let (process, heap) = process_with_touched(1)?;
    Ok(match Pagemap::open(process.pid())?.scan(heap.range()) {
        Ok(_) => Capability::Available,
        Err(error) => error.errno().map_or_else(|| Capability::Unavailable(error.to_string()), refused),
    })
}

/// Without CONFIG_MEM_SOFT_DIRTY the clear is answered with success, and the bit reads as zero for ever.
fn soft_dirty() -> Result<Capability, Unprobed> {
    let (mut process, heap) = process_with_touched(1)?;
    clear_refs::clear(&Rooted::host(), process.pid(), Forget::SoftDirty)?;
    let after_clear = is_soft_dirty(&process, heap.page(0))?;
    process.write(heap.page(0), 2)?;
    let after_write = is_soft_dirty(&process, heap.page(0))?;
    Ok(match (after_clear, after_write) {
        (false, true) => Capability::Available,
        (false, false) => Capability::NotInThisKernel("the mark does not come with a write".to_owned()),
        (true, _) => Capability::NotInThisKernel("the mark does not go with a clear".to_owned()),
    })
}

fn is_soft_dirty(process: &TargetProcess, part: Part) -> Result<bool, Unprobed> {
    let entries = Pagemap::open(process.pid())?.entries(part.range())?;
    Ok(entries.first().is_some_and(|&PageEntry(bits)| bits & (1 << 55) != 0))
}

fn page_frames() -> Result<Capability, Unprobed> {
    let (process, heap) = process_with_touched(1)?;
    let entries = Pagemap::open(process.pid())?.entries(heap.page(0).range())?;
    Ok(match entries.first().and_then(|entry| entry.frame()) {
        Some(_) => Capability::Available,
        None => Capability::Unavailable("they read as zero, which means no CAP_SYS_ADMIN".to_owned()),
    })
}

fn file(path: &str) -> Capability {
    match fs::metadata(path) {
        Ok(_) => Capability::Available,
        Err(error) => refused(Errno::from_io_error(&error).unwrap_or(Errno::IO)),
    }
}

/// Probes a write-only file with side effects: it is only opened.
fn written(path: &str) -> Capability {
    match fs::OpenOptions::new().write(true).open(path) {
        Ok(_) => Capability::Available,
        Err(error) => refused(Errno::from_io_error(&error).unwrap_or(Errno::IO)),
    }
}

fn loop_devices() -> Capability {
    match ["losetup", "mkfs.ext4", "mount", "unshare"].into_iter().find(|name| !is_installed(name)) {
        Some(name) => program(name, None),
        None => written("/dev/loop-control"),
    }
}

fn is_installed(name: &str) -> bool {
    let folders = ["/usr/sbin", "/sbin", "/usr/bin", "/bin"];
    folders.iter().any(|folder| fs::exists(format!("{folder}/{name}")).unwrap_or(false))
}

fn file_system(kind: &str) -> Capability {
    let kinds = fs::read_to_string("/proc/filesystems").unwrap_or_default();
    let maker = format!("mkfs.{kind}");
    if !is_installed(&maker) {
        program(&maker, None)
    } else if kinds.lines().any(|line| line.trim() == kind) {
        loop_devices()
    } else {
        Capability::NotInThisKernel(format!("no {kind} in /proc/filesystems"))
    }
}

fn secret_memory() -> Capability {
    match crate::secret_memory::SecretMemory::make(Bytes::mib(2)) {
        Ok(_) => Capability::Available,
        Err(errno) => refused(errno),
    }
}

/// The walk itself; there is no other way to know.
fn page_table_walk() -> Capability {
    match access::walk::Walker::load() {
        Ok(_) => Capability::Available,
        Err(why) => Capability::Unavailable(format!("{} {}", why.reason, why.remedy)),
    }
}

fn five_levels() -> Result<Capability, Unprobed> {
    match TargetProcess::start()?.map_at(ABOVE_47_BITS, 1) {
        Ok(_) => Ok(Capability::Available),
        Err(refusal) if refusal.errno() == Some(Errno::NOMEM) => {
            Ok(Capability::NotInThisKernel("no addresses above 128 TiB".to_owned()))
        }
        Err(other) => Err(other.into()),
    }
}

fn real_processor() -> Capability {
    // QEMU's software emulation names itself; without a name, the tests are worth their time.
    let named = fs::read_to_string("/proc/cpuinfo").is_ok_and(|text| text.contains("QEMU TCG"));
    if named {
        Capability::NotOnThisMachine("the processor is emulated (QEMU TCG)".to_owned())
    } else {
        Capability::Available
    }
}

fn shared_cache() -> Capability {
    match llc_refill::neighbours() {
        Some(_) => Capability::Available,
        None => Capability::NotOnThisMachine("no two processors have a last-level cache in common".to_owned()),
    }
}

/// Probes the call on no file: a kernel that has it reports the missing file.
fn cachestat() -> Capability {
    const CACHESTAT: libc::c_long = 451;
    // SAFETY: a system call with numbers, which fails before it would write anything.
    unsafe { libc::syscall(CACHESTAT, -1, 0, 0, 0) };
    match last_errno() {
        Errno::BADF | Errno::FAULT => Capability::Available,
        errno => refused(errno),
    }
}

fn disk_files() -> Result<Capability, Unprobed> {
    let folder = std::env::temp_dir();
    let why = || format!("{} lies in memory", folder.display());
    Ok(match disk_file::is_possible()? {
        true => Capability::Available,
        false if rustix::process::getpid().is_init() => Capability::NotOnThisMachine(why()),
        false => Capability::Unavailable(why()),
    })
}

/// KPF_KSM of a page that was just written, which KSM cannot have merged.
fn merged_flag() -> Result<Capability, Unprobed> {
    let (target, heap) = process_with_touched(1)?;
    let entries = Pagemap::open(target.pid())?.entries(heap.page(0).range())?;
    let frame = entries.first().copied().and_then(PageEntry::frame);
    let (Some(frame), Ok(table)) = (frame, fs::File::open("/proc/kpageflags")) else {
        return Ok(Capability::Unavailable("no flags of page frames".to_owned()));
    };
    let mut word = [0; 8];
    table.read_exact_at(&mut word, frame * 8)?;
    let is_set = u64::from_ne_bytes(word) & 1 << 21 != 0;
    Ok(if is_set {
        Capability::NotInThisKernel("every anonymous page has the flag".to_owned())
    } else {
        Capability::Available
    })
}

fn guard_pages() -> Result<Capability, Unprobed> {
    let (mut process, heap) = process_with_touched(1)?;
    match process.advise(heap.page(1), MADV_GUARD_INSTALL) {
        Ok(()) => Ok(Capability::Available),
        Err(refusal) => refusal.errno().map(refused).ok_or(refusal.into()),
    }
}

/// An existing monitor of another program is checked and left alone: there is one for the whole machine. The test
/// itself finds out whether ours would start.
fn damon(watching: &str) -> Capability {
    const KDAMONDS: &str = "/sys/kernel/mm/damon/admin/kdamonds";
    let theirs = fs::read_to_string(format!("{KDAMONDS}/nr_kdamonds")).is_ok_and(|number| number.trim() != "0");
    match linux::damon::available_operations(&Rooted::host()) {
        Ok(names) if !names.iter().any(|name| name == watching) => {
            Capability::NotInThisKernel(format!("DAMON watches only {}", names.join(" ")))
        }
        Ok(_) if theirs => Capability::NotOnThisMachine("somebody else uses DAMON".to_owned()),
        Ok(_) => Capability::Available,
        Err(error) => error.errno().map_or_else(|| Capability::Unavailable(error.to_string()), refused),
    }
}

/// The probe mounts nothing: there is one mount for the whole machine, and an unmount would remove all users' groups.
fn resctrl() -> Capability {
    match resctrl_host::mounted() {
        Some(_) => Capability::Available,
        None => Capability::NotOnThisMachine("it is not mounted, or the processor has nothing for it".to_owned()),
    }
}

/// Result of making an object that is removed again.
fn made<T>(thing: std::io::Result<T>) -> Capability {
    match thing {
        Ok(_) => Capability::Available,
        Err(error) => match Errno::from_io_error(&error) {
            Some(errno) => refused(errno),
            None => Capability::Unavailable(error.to_string()),
        },
    }
}

fn program(name: &str, path: Option<std::path::PathBuf>) -> Capability {
    match path {
        Some(_) => Capability::Available,
        None if rustix::process::getpid().is_init() => {
            Capability::NotOnThisMachine("this machine has no programs but the tests".to_owned())
        }
        None => Capability::Unavailable(format!("no {name} found; {}", programs::HOW_TO_GET)),
    }
}

/// Fetched if it is missing. An unreachable archive is a skip; a missing program is a failure.
fn memcached_source() -> Capability {
    let Some(mut fetch) = memcached::build(&["--fetch"]) else {
        return Capability::NotOnThisMachine("this machine has no sources".to_owned());
    };
    match fetch.output() {
        Ok(output) if output.status.success() => Capability::Available,
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr);
            let why = said.lines().last().unwrap_or("no word why").to_owned();
            if why.contains("cannot build") { Capability::Unavailable(why) } else { Capability::NotOnThisMachine(why) }
        }
        Err(error) => Capability::Unavailable(format!("cannot run integrations/memcached/build: {error}")),
    }
}

/// Made if it is missing. An unreachable archive is a skip; a missing program or privilege is a failure.
fn clean_root() -> Capability {
    if !rustix::process::geteuid().is_root() {
        return Capability::Unavailable("only root can make it".to_owned());
    }
    match (packages::clean_root(), program("debootstrap", programs::installed("debootstrap"))) {
        (Some(mut make), Capability::Available) => match make.output() {
            Ok(output) if output.status.success() => Capability::Available,
            Ok(output) => Capability::NotOnThisMachine(String::from_utf8_lossy(&output.stderr).trim_end().to_owned()),
            Err(error) => Capability::Unavailable(format!("cannot run integrations/package/clean-root: {error}")),
        },
        (None, _) => Capability::NotOnThisMachine("this machine has no sources".to_owned()),
        (_, missing) => missing,
    }
}

/// Fetched if it is missing. An unreachable archive is a skip.
fn promtool() -> Capability {
    let Some(mut fetch) = alerts::promtool() else {
        return Capability::NotOnThisMachine("this machine has no sources".to_owned());
    };
    match fetch.output() {
        Ok(output) if output.status.success() => Capability::Available,
        Ok(output) => Capability::NotOnThisMachine(String::from_utf8_lossy(&output.stderr).trim_end().to_owned()),
        Err(error) => Capability::Unavailable(format!("cannot run integrations/prometheus/promtool: {error}")),
    }
}

fn process_with_touched(windows: u64) -> Result<(TargetProcess, Mapping), Unprobed> {
    let mut process = TargetProcess::start()?;
    let heap = process.map(Backing::Anonymous, windows)?;
    process.write(heap.page(0), 1)?;
    Ok((process, heap))
}

/// An interface that does not exist, or does not know the request, is not in this kernel; any other refusal is not the
/// kernel's last word.
fn refused(errno: Errno) -> Capability {
    match errno {
        Errno::NOSYS | Errno::NOENT | Errno::NOTTY | Errno::INVAL | Errno::OPNOTSUPP | Errno::NOEXEC => {
            Capability::NotInThisKernel(describe(errno))
        }
        _ => Capability::Unavailable(describe(errno)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_request_is_the_kernels_lack_and_a_denied_one_is_not() {
        for errno in [Errno::NOSYS, Errno::NOENT, Errno::NOTTY, Errno::INVAL, Errno::OPNOTSUPP] {
            assert!(matches!(refused(errno), Capability::NotInThisKernel(_)), "{errno:?}");
        }
        for errno in [Errno::PERM, Errno::ACCESS, Errno::NOMEM, Errno::AGAIN, Errno::BUSY] {
            assert!(matches!(refused(errno), Capability::Unavailable(_)), "{errno:?}");
        }
    }
}
