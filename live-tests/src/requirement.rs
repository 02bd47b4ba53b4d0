//! Requirements of tests, their check, and the consequence when one is not met.

use std::collections::BTreeMap;

/// Something that not every kernel, user or machine has. Found out by trying, never by a version number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Requirement {
    /// User 0.
    Root,
    /// `process_madvise` takes `MADV_COLD` for another process.
    RemoteAdvice,
    /// `process_madvise` takes `MADV_COLLAPSE` for another process.
    RemoteCollapse,
    /// The `PAGEMAP_SCAN` ioctl.
    PagemapScan,
    /// Soft-dirty bits that come and go.
    SoftDirty,
    /// Page frame numbers in `pagemap`.
    PageFrames,
    /// The system-wide switch of transparent huge pages.
    HugePageModes,
    /// The kernel counts huge pages that are mapped in part (Linux 6.12).
    TornPages,
    /// The BPF walk of page tables loads and calibrates.
    PageTableWalk,
    /// Page tables of five levels: addresses above 128 TiB.
    FiveLevels,
    /// A processor that is not emulated in software: a hundred times slower, some tests would take minutes.
    RealProcessor,
    /// Two processors that have a last-level cache in common.
    SharedCache,
    /// `MADV_GUARD_INSTALL`.
    GuardPages,
    /// The pool of reserved huge pages (hugetlb).
    ReservedHuge,
    /// Merging of pages with the same content.
    Ksm,
    /// KPF_KSM only on merged pages. Linux from 6.10 sets it for every anonymous page, until a fix of July 2026.
    MergedFlag,
    /// Closing the holes in memory by moving pages together, when asked.
    Compaction,
    /// Control groups that limit memory, and the right to make one.
    MemoryGroups,
    /// Time that is lost waiting for memory, counted (PSI).
    Pressure,
    /// `cachestat`.
    CacheStat,
    /// Shared memory of the System V kind.
    SharedSegments,
    /// Temporary files that lie on a disk, and not in memory.
    DiskFiles,
    /// A swap device of compressed memory of our own.
    Swap,
    /// Pages between 4 KiB and 2 MiB for anonymous memory, with a switch for each size.
    SmallHugePages,
    /// DAMON watching processes, with no other user.
    DamonVaddr,
    /// 32-bit programs run.
    Programs32,
    /// A userfaultfd for faults of the program itself, with SIGBUS instead of a second thread, which needs no privilege, and
    /// which moves frames (Linux 6.8), or protects them against writes.
    UserFaults,
    /// Threads of the kernel among the processes; a container hides them.
    KernelThreads,
    /// The built command.
    MasuCommand,
    /// Redis.
    RedisServer,
    /// OpenSSL's command, for certificates.
    OpenSsl,
    /// The library that `masu run` preloads, beside the command.
    PreloadLibrary,
    /// Pager library of `masu run --local`, beside the command.
    PagerLibrary,
    /// A C compiler.
    CCompiler,
    /// make.
    Make,
    /// The programs of `live-tests/programs`: there already, as in a virtual machine, or a compiler for them.
    CPrograms,
    /// A shell, and with it the programs that every system has.
    Shell,
    /// musl, another C library, with its compiler.
    Musl,
    /// Python, as Debian installs it.
    Python,
    /// NumPy, as Debian installs it.
    Numpy,
    /// The shell of SQLite.
    Sqlite,
    /// stress-ng, which checks its own work.
    StressNg,
    /// The allocators that programs are linked to or preloaded with: jemalloc, mimalloc, tcmalloc.
    Allocators,
    /// script(1), for a terminal.
    Script,
    /// systemd-analyze, and the unit in the sources.
    SystemdAnalyze,
    /// The distribution's source of memcached, and its build tools.
    MemcachedSource,
    /// A browser without a window.
    Chromium,
    /// A clean root of Debian, to install packages in.
    CleanRoot,
    /// Prometheus' tool for rules.
    Promtool,
    /// The programs that build and install packages of rpm.
    Rpm,
    /// File systems by programs (FUSE), and the right to mount one.
    Fuse,
    /// Loop devices, and the programs that make and mount file systems on them.
    LoopDevices,
    /// btrfs, and the program that makes one.
    Btrfs,
    /// EROFS, and the program that makes one.
    Erofs,
    /// Memory that the kernel cannot read (memfd_secret(2)).
    SecretMemory,
    /// The emulator of resctrl, beside the command.
    ResctrlEmulator,
    /// resctrl itself, mounted.
    Resctrl,
}

impl Requirement {
    /// All requirements, in the order of the tables.
    pub const ALL: [Requirement; 57] = [
        Requirement::Root,
        Requirement::RemoteAdvice,
        Requirement::RemoteCollapse,
        Requirement::PagemapScan,
        Requirement::SoftDirty,
        Requirement::PageFrames,
        Requirement::HugePageModes,
        Requirement::TornPages,
        Requirement::PageTableWalk,
        Requirement::FiveLevels,
        Requirement::RealProcessor,
        Requirement::SharedCache,
        Requirement::GuardPages,
        Requirement::ReservedHuge,
        Requirement::Ksm,
        Requirement::MergedFlag,
        Requirement::Compaction,
        Requirement::MemoryGroups,
        Requirement::Pressure,
        Requirement::CacheStat,
        Requirement::SharedSegments,
        Requirement::DiskFiles,
        Requirement::Swap,
        Requirement::SmallHugePages,
        Requirement::DamonVaddr,
        Requirement::Programs32,
        Requirement::UserFaults,
        Requirement::KernelThreads,
        Requirement::MasuCommand,
        Requirement::RedisServer,
        Requirement::OpenSsl,
        Requirement::PreloadLibrary,
        Requirement::PagerLibrary,
        Requirement::CCompiler,
        Requirement::Make,
        Requirement::CPrograms,
        Requirement::Shell,
        Requirement::Musl,
        Requirement::Python,
        Requirement::Numpy,
        Requirement::Sqlite,
        Requirement::StressNg,
        Requirement::Allocators,
        Requirement::Script,
        Requirement::SystemdAnalyze,
        Requirement::MemcachedSource,
        Requirement::Chromium,
        Requirement::CleanRoot,
        Requirement::Promtool,
        Requirement::Rpm,
        Requirement::Fuse,
        Requirement::LoopDevices,
        Requirement::Btrfs,
        Requirement::Erofs,
        Requirement::SecretMemory,
        Requirement::ResctrlEmulator,
        Requirement::Resctrl,
    ];

    /// Name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Requirement::Root => "root",
            Requirement::RemoteAdvice => "process_madvise",
            Requirement::RemoteCollapse => "remote collapse",
            Requirement::PagemapScan => "PAGEMAP_SCAN",
            Requirement::SoftDirty => "soft-dirty",
            Requirement::PageFrames => "page frame numbers",
            Requirement::HugePageModes => "transparent huge pages",
            Requirement::TornPages => "count of torn huge pages",
            Requirement::PageTableWalk => "page-table walk",
            Requirement::FiveLevels => "five-level page tables",
            Requirement::RealProcessor => "a processor that is not emulated",
            Requirement::SharedCache => "processors with one cache",
            Requirement::GuardPages => "guard pages",
            Requirement::ReservedHuge => "hugetlb pages",
            Requirement::Ksm => "KSM",
            Requirement::MergedFlag => "KPF_KSM on merged pages only",
            Requirement::Compaction => "compaction",
            Requirement::MemoryGroups => "memory control groups",
            Requirement::Pressure => "memory pressure (PSI)",
            Requirement::CacheStat => "cachestat",
            Requirement::SharedSegments => "System V shared memory",
            Requirement::DiskFiles => "files on a disk",
            Requirement::Swap => "swap on zram",
            Requirement::SmallHugePages => "huge pages of 64 KiB",
            Requirement::DamonVaddr => "DAMON vaddr",
            Requirement::Programs32 => "32-bit programs",
            Requirement::UserFaults => "userfaultfd for user faults",
            Requirement::KernelThreads => "kernel threads",
            Requirement::MasuCommand => "masu command",
            Requirement::RedisServer => "redis-server",
            Requirement::OpenSsl => "openssl",
            Requirement::PreloadLibrary => "libmasu-preload.so",
            Requirement::PagerLibrary => "libmasu-pager.so",
            Requirement::CCompiler => "C compiler",
            Requirement::Make => "make",
            Requirement::CPrograms => "programs in C",
            Requirement::Shell => "shell",
            Requirement::Musl => "musl",
            Requirement::Python => "python3",
            Requirement::Numpy => "numpy",
            Requirement::Sqlite => "sqlite3",
            Requirement::StressNg => "stress-ng",
            Requirement::Allocators => "other allocators",
            Requirement::Script => "script",
            Requirement::SystemdAnalyze => "systemd-analyze",
            Requirement::MemcachedSource => "memcached's source",
            Requirement::Chromium => "chromium",
            Requirement::CleanRoot => "clean root of Debian",
            Requirement::Promtool => "promtool",
            Requirement::Rpm => "rpm",
            Requirement::Fuse => "FUSE",
            Requirement::LoopDevices => "loop devices",
            Requirement::Btrfs => "btrfs",
            Requirement::Erofs => "erofs",
            Requirement::SecretMemory => "memfd_secret",
            Requirement::ResctrlEmulator => "resctrl-emulator",
            Requirement::Resctrl => "resctrl",
        }
    }

    /// False for requirements on users and installed programs, which do not depend on the kernel.
    pub fn is_of_the_kernel(self) -> bool {
        let programs = [
            Requirement::MasuCommand,
            Requirement::RedisServer,
            Requirement::OpenSsl,
            Requirement::PreloadLibrary,
            Requirement::PagerLibrary,
            Requirement::CCompiler,
            Requirement::Make,
            Requirement::CPrograms,
            Requirement::Shell,
            Requirement::Musl,
            Requirement::Python,
            Requirement::Numpy,
            Requirement::Sqlite,
            Requirement::StressNg,
            Requirement::Allocators,
            Requirement::Script,
            Requirement::SystemdAnalyze,
            Requirement::MemcachedSource,
            Requirement::Chromium,
            Requirement::CleanRoot,
            Requirement::Promtool,
            Requirement::Rpm,
            Requirement::LoopDevices,
            Requirement::Btrfs,
            Requirement::Erofs,
            Requirement::ResctrlEmulator,
        ];
        let machine = [
            Requirement::Root,
            Requirement::KernelThreads,
            Requirement::RealProcessor,
            Requirement::SharedCache,
            Requirement::DiskFiles,
            Requirement::Resctrl,
        ];
        !machine.contains(&self) && !programs.contains(&self)
    }
}

/// Whether a requirement is met.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Capability {
    /// Met.
    Available,
    /// This kernel was built without it, or is too old: no user and no setting of this machine changes that.
    NotInThisKernel(String),
    /// A virtual machine that holds nothing but the tests has no programs to run.
    NotOnThisMachine(String),
    /// This kernel may have it, but a privilege, a setting or a program is missing.
    Unavailable(String),
}

/// Cause for which a test does not run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SkipReason {
    /// The test is skipped, by name.
    Allowed(String),
    /// The test should have run: it fails.
    Forbidden(String),
}

/// Skip reason of a test with these requirements; `None` when it runs. An interface that the kernel lacks is an allowed
/// reason. Other missing requirements are allowed unless every test that this kernel could run is required
/// (`LIVE_REQUIRE=all`).
pub fn skip_reason(
    requirements: impl IntoIterator<Item = Requirement>,
    capabilities: &BTreeMap<Requirement, Capability>,
    all_required: bool,
) -> Option<SkipReason> {
    let mut unavailable = None;
    for requirement in requirements {
        let name = requirement.name();
        match capabilities.get(&requirement) {
            Some(Capability::Available) => (),
            Some(Capability::NotInThisKernel(why)) => {
                return Some(SkipReason::Allowed(format!("this kernel does not offer {name}: {why}")));
            }
            Some(Capability::NotOnThisMachine(why)) => return Some(SkipReason::Allowed(format!("{name}: {why}"))),
            Some(Capability::Unavailable(why)) => {
                unavailable.get_or_insert_with(|| format!("{name}: {why}"));
            }
            None => {
                unavailable.get_or_insert_with(|| format!("{name}: was not probed"));
            }
        }
    }
    let why = unavailable?;
    Some(if all_required {
        SkipReason::Forbidden(format!("LIVE_REQUIRE=all, but {why}"))
    } else {
        SkipReason::Allowed(why)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn capabilities() -> BTreeMap<Requirement, Capability> {
        BTreeMap::from([
            (Requirement::Root, Capability::Unavailable("user 1000".to_owned())),
            (Requirement::RemoteAdvice, Capability::Available),
            (Requirement::PagemapScan, Capability::NotInThisKernel("ENOTTY".to_owned())),
            (Requirement::RedisServer, Capability::NotOnThisMachine("no programs".to_owned())),
        ])
    }

    fn reason(requirements: &[Requirement], all_required: bool) -> Option<SkipReason> {
        skip_reason(requirements.iter().copied(), &capabilities(), all_required)
    }

    #[test]
    fn a_test_runs_when_all_requirements_are_met() {
        assert_eq!(reason(&[Requirement::RemoteAdvice], true), None);
        assert_eq!(reason(&[], true), None);
    }

    #[test]
    fn an_interface_that_the_kernel_lacks_is_a_skip_even_when_all_is_required() {
        let skip = Some(SkipReason::Allowed("this kernel does not offer PAGEMAP_SCAN: ENOTTY".to_owned()));
        assert_eq!(reason(&[Requirement::PagemapScan], true), skip);
        assert_eq!(reason(&[Requirement::Root, Requirement::PagemapScan], true), skip);
    }

    #[test]
    fn a_program_in_a_machine_without_any_is_a_skip_even_when_all_is_required() {
        let skip = SkipReason::Allowed("redis-server: no programs".to_owned());
        assert_eq!(reason(&[Requirement::RedisServer], true), Some(skip));
    }

    #[test]
    fn a_missing_privilege_is_a_skip_and_a_failure_when_all_is_required() {
        let why = "root: user 1000".to_owned();
        assert_eq!(reason(&[Requirement::Root], false), Some(SkipReason::Allowed(why)));
        assert_eq!(
            reason(&[Requirement::RemoteAdvice, Requirement::Root], true),
            Some(SkipReason::Forbidden("LIVE_REQUIRE=all, but root: user 1000".to_owned()))
        );
    }

    #[test]
    fn a_requirement_without_a_probe_is_a_failure_when_all_is_required() {
        assert!(matches!(reason(&[Requirement::SoftDirty], true), Some(SkipReason::Forbidden(_))));
    }

    #[test]
    fn every_requirement_has_a_name_of_its_own() {
        let names: std::collections::BTreeSet<_> = Requirement::ALL.iter().map(|one| one.name()).collect();
        assert_eq!(names.len(), Requirement::ALL.len());
    }

    /// The machines compare the page too, after all other tests.
    #[test]
    fn the_page_about_kernels_has_a_row_for_each_requirement_of_the_kernel_and_no_other() {
        let page = include_str!("../../docs/kernels.md");
        let table = page.split("| what live tests need |").nth(1).unwrap();
        let rows: Vec<_> = table.lines().skip(2).map_while(|row| row.strip_prefix("| ")?.split(" |").next()).collect();
        let mut names: Vec<_> =
            Requirement::ALL.iter().filter(|one| one.is_of_the_kernel()).map(|one| one.name()).collect();
        names.sort_unstable();
        assert_eq!(rows, names, "`cargo xtask boot-test --write` writes the page anew");
    }
}
