//! Probes of the requirements. Every probe performs the operation itself, on a target process, and checks the outcome.
//!
//! The probes do not use `linux::probe`: a mistake there must not turn into a skipped test.

use std::collections::BTreeMap;
use std::fs;
use std::os::fd::AsFd;

use linux::clear_refs::{self, Forget};
use linux::pagemap::{PageEntry, Pagemap};
use linux::process_madvise::{Advice, advise};
use linux::{Rooted, describe};
use rustix::io::Errno;

use crate::cases::walk::ABOVE_47_BITS;
use crate::cases::{disk_file, elf32, llc_refill, memcached, programs, resctrl_host};
use crate::group::Group;
use crate::need::{Need, Offer};
use crate::swap::Swap;
use crate::toy::MADV_GUARD_INSTALL;
use crate::toy::{Backing, Mapping, Part, ToyProcess};
use crate::user_faults::{features, paging_backends};

/// Error of a probe that could not be carried out.
type Unprobed = Box<dyn std::error::Error>;

/// All needs, each probed once.
pub(crate) fn all() -> BTreeMap<Need, Offer> {
    Need::ALL.into_iter().map(|need| (need, offer(need))).collect()
}

fn offer(need: Need) -> Offer {
    let probed = match need {
        Need::Root => Ok(root()),
        Need::RemoteAdvice => remote_advice(Advice::Cold),
        Need::RemoteCollapse => remote_advice(Advice::Collapse),
        Need::PagemapScan => pagemap_scan(),
        Need::SoftDirty => soft_dirty(),
        Need::PageFrames => page_frames(),
        Need::HugePageModes => Ok(file("/sys/kernel/mm/transparent_hugepage/enabled")),
        Need::PageTableWalk => Ok(page_table_walk()),
        Need::FiveLevels => five_levels(),
        Need::RealProcessor => Ok(real_processor()),
        Need::SharedCache => Ok(shared_cache()),
        Need::GuardPages => guard_pages(),
        Need::ReservedHuge => Ok(file("/proc/sys/vm/nr_hugepages")),
        Need::Ksm => Ok(file("/sys/kernel/mm/ksm/run")),
        Need::Compaction => Ok(written("/proc/sys/vm/compact_memory")),
        Need::MemoryGroups => Ok(made(Group::make("probe"))),
        Need::Pressure => Ok(file("/proc/pressure/memory")),
        Need::CacheStat => Ok(cachestat()),
        Need::SharedSegments => Ok(file("/proc/sysvipc/shm")),
        Need::DiskFiles => disk_files(),
        Need::Swap => Ok(made(Swap::on(8 << 20))),
        Need::SmallHugePages => Ok(file("/sys/kernel/mm/transparent_hugepage/hugepages-64kB/enabled")),
        Need::DamonVaddr => Ok(damon("vaddr")),
        Need::Programs32 => Ok(made(elf32::run(elf32::EXIT_0).and_then(|mut child| child.wait()))),
        Need::UserFaults => Ok(user_faults()),
        Need::KernelThreads => Ok(kernel_threads()),
        Need::MasuCommand => Ok(program("masu command", programs::masu())),
        Need::RedisServer => Ok(program("redis-server", programs::redis_server())),
        Need::PreloadLibrary => Ok(program("libmasu-preload.so", programs::preload_library())),
        Need::PagerLibrary => Ok(program("libmasu-pager.so", programs::pager_library())),
        Need::CCompiler => Ok(program("cc", programs::installed("cc"))),
        Need::Make => Ok(program("make", programs::installed("make"))),
        Need::CPrograms => {
            Ok(program("programs in C", programs::c_program("stress").or_else(|| programs::installed("cc"))))
        }
        Need::Shell => Ok(program("sh", programs::installed("sh"))),
        Need::Musl => Ok(program("musl-gcc", programs::installed("musl-gcc"))),
        Need::Python => Ok(program("python3", programs::python())),
        Need::Sqlite => Ok(program("sqlite3", programs::installed("sqlite3"))),
        Need::StressNg => Ok(program("stress-ng", programs::installed("stress-ng"))),
        Need::Allocators => Ok(program("allocators", programs::allocators().into_iter().next())),
        Need::SystemdAnalyze => {
            let unit = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../integrations/systemd");
            let both = programs::installed("systemd-analyze").filter(|_| unit.is_dir());
            Ok(program("systemd-analyze", both))
        }
        Need::Script => Ok(program("script", programs::installed("script"))),
        Need::MemcachedSource => Ok(memcached_source()),
        Need::Fuse => Ok(written("/dev/fuse")),
        Need::ResctrlEmulator => Ok(program("resctrl-emulator", programs::resctrl_emulator())),
        Need::Resctrl => Ok(resctrl()),
    };
    probed.unwrap_or_else(|error| Offer::Withheld(format!("could not be tried: {error}")))
}

/// Decided by the handshake's answer.
fn user_faults() -> Offer {
    match features() {
        Ok(_) if !paging_backends().is_empty() => Offer::Yes,
        Ok(features) => Offer::NotInThisKernel(format!("neither by moves nor by copies: features {features:#x}")),
        Err(errno) => refused(errno),
    }
}

fn last_errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

/// Process 2 starts all the others.
fn kernel_threads() -> Offer {
    match std::fs::read_to_string("/proc/2/comm") {
        Ok(name) if name.trim() == "kthreadd" => Offer::Yes,
        _ => Offer::NotOnThisMachine("none is to be seen from here".to_owned()),
    }
}

fn root() -> Offer {
    let user = rustix::process::geteuid();
    if user.is_root() { Offer::Yes } else { Offer::Withheld(format!("this is user {}", user.as_raw())) }
}

fn remote_advice(advice: Advice) -> Result<Offer, Unprobed> {
    let (toy, heap) = toy_with_touched(1)?;
    let pidfd = toy.pid().open()?;
    Ok(match advise(toy.pid(), pidfd.as_fd(), &[heap.window(0).range()], advice) {
        Ok(_) => Offer::Yes,
        Err(errno) => refused(errno),
    })
}

fn pagemap_scan() -> Result<Offer, Unprobed> {
    let (toy, heap) = toy_with_touched(1)?;
    Ok(match Pagemap::open(toy.pid())?.scan(heap.range()) {
        Ok(_) => Offer::Yes,
        Err(error) => error.errno().map_or_else(|| Offer::Withheld(error.to_string()), refused),
    })
}

/// Without CONFIG_MEM_SOFT_DIRTY the clear is answered with success, and the bit reads as zero for ever.
fn soft_dirty() -> Result<Offer, Unprobed> {
    let (mut toy, heap) = toy_with_touched(1)?;
    clear_refs::clear(&Rooted::host(), toy.pid(), Forget::SoftDirty)?;
    let after_clear = is_soft_dirty(&toy, heap.page(0))?;
    toy.write(heap.page(0), 2)?;
    let after_write = is_soft_dirty(&toy, heap.page(0))?;
    Ok(match (after_clear, after_write) {
        (false, true) => Offer::Yes,
        (false, false) => Offer::NotInThisKernel("the mark does not come with a write".to_owned()),
        (true, _) => Offer::NotInThisKernel("the mark does not go with a clear".to_owned()),
    })
}

fn is_soft_dirty(toy: &ToyProcess, part: Part) -> Result<bool, Unprobed> {
    let entries = Pagemap::open(toy.pid())?.entries(part.range())?;
    Ok(entries.first().is_some_and(|&PageEntry(bits)| bits & (1 << 55) != 0))
}

fn page_frames() -> Result<Offer, Unprobed> {
    let (toy, heap) = toy_with_touched(1)?;
    let entries = Pagemap::open(toy.pid())?.entries(heap.page(0).range())?;
    Ok(match entries.first().and_then(|entry| entry.frame()) {
        Some(_) => Offer::Yes,
        None => Offer::Withheld("they read as zero, which means no CAP_SYS_ADMIN".to_owned()),
    })
}

fn file(path: &str) -> Offer {
    match fs::metadata(path) {
        Ok(_) => Offer::Yes,
        Err(error) => refused(Errno::from_io_error(&error).unwrap_or(Errno::IO)),
    }
}

/// Probes a write-only file with side effects: it is only opened.
fn written(path: &str) -> Offer {
    match fs::OpenOptions::new().write(true).open(path) {
        Ok(_) => Offer::Yes,
        Err(error) => refused(Errno::from_io_error(&error).unwrap_or(Errno::IO)),
    }
}

/// The walk itself; there is no other way to know.
fn page_table_walk() -> Offer {
    match access::walk::Walker::load() {
        Ok(_) => Offer::Yes,
        Err(why) => Offer::Withheld(format!("{} {}", why.reason, why.remedy)),
    }
}

fn five_levels() -> Result<Offer, Unprobed> {
    match ToyProcess::start()?.map_at(ABOVE_47_BITS, 1) {
        Ok(_) => Ok(Offer::Yes),
        Err(refusal) if refusal.errno() == Some(Errno::NOMEM) => {
            Ok(Offer::NotInThisKernel("no addresses above 128 TiB".to_owned()))
        }
        Err(other) => Err(other.into()),
    }
}

fn real_processor() -> Offer {
    // QEMU's software emulation names itself; without a name, the tests are worth their time.
    let named = fs::read_to_string("/proc/cpuinfo").is_ok_and(|text| text.contains("QEMU TCG"));
    if named { Offer::NotOnThisMachine("the processor is emulated (QEMU TCG)".to_owned()) } else { Offer::Yes }
}

fn shared_cache() -> Offer {
    match llc_refill::neighbours() {
        Some(_) => Offer::Yes,
        None => Offer::NotOnThisMachine("no two processors have a last-level cache in common".to_owned()),
    }
}

/// Probes the call on no file: a kernel that has it reports the missing file.
fn cachestat() -> Offer {
    const CACHESTAT: libc::c_long = 451;
    // SAFETY: a system call with numbers, which fails before it would write anything.
    unsafe { libc::syscall(CACHESTAT, -1, 0, 0, 0) };
    match last_errno() {
        Errno::BADF | Errno::FAULT => Offer::Yes,
        errno => refused(errno),
    }
}

fn disk_files() -> Result<Offer, Unprobed> {
    let folder = std::env::temp_dir();
    let why = || format!("{} lies in memory", folder.display());
    Ok(match disk_file::is_possible()? {
        true => Offer::Yes,
        false if rustix::process::getpid().is_init() => Offer::NotOnThisMachine(why()),
        false => Offer::Withheld(why()),
    })
}

fn guard_pages() -> Result<Offer, Unprobed> {
    let (mut toy, heap) = toy_with_touched(1)?;
    match toy.advise(heap.page(1), MADV_GUARD_INSTALL) {
        Ok(()) => Ok(Offer::Yes),
        Err(refusal) => refusal.errno().map(refused).ok_or(refusal.into()),
    }
}

/// An existing monitor of another program is checked and left alone: there is one for the whole machine. The test
/// itself finds out whether ours would start.
fn damon(watching: &str) -> Offer {
    const KDAMONDS: &str = "/sys/kernel/mm/damon/admin/kdamonds";
    let theirs = fs::read_to_string(format!("{KDAMONDS}/nr_kdamonds")).is_ok_and(|number| number.trim() != "0");
    match linux::damon::available_operations(&Rooted::host()) {
        Ok(names) if !names.iter().any(|name| name == watching) => {
            Offer::NotInThisKernel(format!("DAMON watches only {}", names.join(" ")))
        }
        Ok(_) if theirs => Offer::NotOnThisMachine("somebody else uses DAMON".to_owned()),
        Ok(_) => Offer::Yes,
        Err(error) => error.errno().map_or_else(|| Offer::Withheld(error.to_string()), refused),
    }
}

/// The probe mounts nothing: there is one mount for the whole machine, and an unmount would remove all users' groups.
fn resctrl() -> Offer {
    match resctrl_host::mounted() {
        Some(_) => Offer::Yes,
        None => Offer::NotOnThisMachine("it is not mounted, or the processor has nothing for it".to_owned()),
    }
}

/// Result of making an object that is removed again.
fn made<T>(thing: std::io::Result<T>) -> Offer {
    match thing {
        Ok(_) => Offer::Yes,
        Err(error) => match Errno::from_io_error(&error) {
            Some(errno) => refused(errno),
            None => Offer::Withheld(error.to_string()),
        },
    }
}

fn program(name: &str, path: Option<std::path::PathBuf>) -> Offer {
    match path {
        Some(_) => Offer::Yes,
        None if rustix::process::getpid().is_init() => {
            Offer::NotOnThisMachine("this machine has no programs but the tests".to_owned())
        }
        None => Offer::Withheld(format!("no {name} found; {}", programs::HOW_TO_GET)),
    }
}

/// Fetched if it is missing. An unreachable archive is a skip; a missing program is a failure.
fn memcached_source() -> Offer {
    let Some(mut fetch) = memcached::build(&["--fetch"]) else {
        return Offer::NotOnThisMachine("this machine has no sources".to_owned());
    };
    match fetch.output() {
        Ok(output) if output.status.success() => Offer::Yes,
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr);
            let why = said.lines().last().unwrap_or("no word why").to_owned();
            if why.contains("cannot build") { Offer::Withheld(why) } else { Offer::NotOnThisMachine(why) }
        }
        Err(error) => Offer::Withheld(format!("cannot run integrations/memcached/build: {error}")),
    }
}

fn toy_with_touched(windows: u64) -> Result<(ToyProcess, Mapping), Unprobed> {
    let mut toy = ToyProcess::start()?;
    let heap = toy.map(Backing::Anonymous, windows)?;
    toy.write(heap.page(0), 1)?;
    Ok((toy, heap))
}

/// An interface that does not exist, or does not know the request, is not in this kernel; any other refusal is not the
/// kernel's last word.
fn refused(errno: Errno) -> Offer {
    match errno {
        Errno::NOSYS | Errno::NOENT | Errno::NOTTY | Errno::INVAL | Errno::OPNOTSUPP | Errno::NOEXEC => {
            Offer::NotInThisKernel(describe(errno))
        }
        _ => Offer::Withheld(describe(errno)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_request_is_the_kernels_lack_and_a_denied_one_is_not() {
        for errno in [Errno::NOSYS, Errno::NOENT, Errno::NOTTY, Errno::INVAL, Errno::OPNOTSUPP] {
            assert!(matches!(refused(errno), Offer::NotInThisKernel(_)), "{errno:?}");
        }
        for errno in [Errno::PERM, Errno::ACCESS, Errno::NOMEM, Errno::AGAIN, Errno::BUSY] {
            assert!(matches!(refused(errno), Offer::Withheld(_)), "{errno:?}");
        }
    }
}
