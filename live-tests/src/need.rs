//! Requirements of tests, their check, and the consequence when one is not met.

use std::collections::BTreeMap;

/// Something that not every kernel, user or machine has. Found out by trying, never by a version number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Need {
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
    /// File systems by programs (FUSE), and the right to mount one.
    Fuse,
    /// The emulator of resctrl, beside the command.
    ResctrlEmulator,
    /// resctrl itself, mounted.
    Resctrl,
}

impl Need {
    /// All needs, in the order of the tables.
    pub const ALL: [Need; 45] = [
        Need::Root,
        Need::RemoteAdvice,
        Need::RemoteCollapse,
        Need::PagemapScan,
        Need::SoftDirty,
        Need::PageFrames,
        Need::HugePageModes,
        Need::PageTableWalk,
        Need::FiveLevels,
        Need::RealProcessor,
        Need::SharedCache,
        Need::GuardPages,
        Need::ReservedHuge,
        Need::Ksm,
        Need::Compaction,
        Need::MemoryGroups,
        Need::Pressure,
        Need::CacheStat,
        Need::SharedSegments,
        Need::DiskFiles,
        Need::Swap,
        Need::SmallHugePages,
        Need::DamonVaddr,
        Need::Programs32,
        Need::UserFaults,
        Need::KernelThreads,
        Need::MasuCommand,
        Need::RedisServer,
        Need::PreloadLibrary,
        Need::PagerLibrary,
        Need::CCompiler,
        Need::Make,
        Need::CPrograms,
        Need::Shell,
        Need::Musl,
        Need::Python,
        Need::Sqlite,
        Need::StressNg,
        Need::Allocators,
        Need::Script,
        Need::SystemdAnalyze,
        Need::MemcachedSource,
        Need::Fuse,
        Need::ResctrlEmulator,
        Need::Resctrl,
    ];

    /// Name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Need::Root => "root",
            Need::RemoteAdvice => "process_madvise",
            Need::RemoteCollapse => "remote collapse",
            Need::PagemapScan => "PAGEMAP_SCAN",
            Need::SoftDirty => "soft-dirty",
            Need::PageFrames => "page frame numbers",
            Need::HugePageModes => "transparent huge pages",
            Need::PageTableWalk => "page-table walk",
            Need::FiveLevels => "five-level page tables",
            Need::RealProcessor => "a processor that is not emulated",
            Need::SharedCache => "processors with one cache",
            Need::GuardPages => "guard pages",
            Need::ReservedHuge => "hugetlb pages",
            Need::Ksm => "KSM",
            Need::Compaction => "compaction",
            Need::MemoryGroups => "memory control groups",
            Need::Pressure => "memory pressure (PSI)",
            Need::CacheStat => "cachestat",
            Need::SharedSegments => "System V shared memory",
            Need::DiskFiles => "files on a disk",
            Need::Swap => "swap on zram",
            Need::SmallHugePages => "huge pages of 64 KiB",
            Need::DamonVaddr => "DAMON vaddr",
            Need::Programs32 => "32-bit programs",
            Need::UserFaults => "userfaultfd for user faults",
            Need::KernelThreads => "kernel threads",
            Need::MasuCommand => "masu command",
            Need::RedisServer => "redis-server",
            Need::PreloadLibrary => "libmasu-preload.so",
            Need::PagerLibrary => "libmasu-pager.so",
            Need::CCompiler => "C compiler",
            Need::Make => "make",
            Need::CPrograms => "programs in C",
            Need::Shell => "shell",
            Need::Musl => "musl",
            Need::Python => "python3",
            Need::Sqlite => "sqlite3",
            Need::StressNg => "stress-ng",
            Need::Allocators => "other allocators",
            Need::Script => "script",
            Need::SystemdAnalyze => "systemd-analyze",
            Need::MemcachedSource => "memcached's source",
            Need::Fuse => "FUSE",
            Need::ResctrlEmulator => "resctrl-emulator",
            Need::Resctrl => "resctrl",
        }
    }

    /// False for needs on users and installed programs, which do not depend on the kernel.
    pub fn is_of_the_kernel(self) -> bool {
        let programs = [
            Need::MasuCommand,
            Need::RedisServer,
            Need::PreloadLibrary,
            Need::PagerLibrary,
            Need::CCompiler,
            Need::Make,
            Need::CPrograms,
            Need::Shell,
            Need::Musl,
            Need::Python,
            Need::Sqlite,
            Need::StressNg,
            Need::Allocators,
            Need::Script,
            Need::SystemdAnalyze,
            Need::MemcachedSource,
            Need::ResctrlEmulator,
        ];
        let machine =
            [Need::Root, Need::KernelThreads, Need::RealProcessor, Need::SharedCache, Need::DiskFiles, Need::Resctrl];
        !machine.contains(&self) && !programs.contains(&self)
    }
}

/// Whether a need is met.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Offer {
    /// Yes.
    Yes,
    /// This kernel was built without it, or is too old: no user and no setting of this machine changes that.
    NotInThisKernel(String),
    /// A virtual machine that holds nothing but the tests has no programs to run.
    NotOnThisMachine(String),
    /// This kernel may have it, but something else is in the way: a privilege, a setting, a missing program.
    Withheld(String),
}

/// Action for a test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// All it needs is there.
    Run,
    /// It is skipped, by name, for this reason.
    Skip(String),
    /// It cannot run, and should have.
    Fail(String),
}

/// The rule. A kernel that lacks something is a skip; anything else that is missing is a skip too, except when every
/// test that this kernel could run is required (`LIVE_REQUIRE=all`).
pub fn verdict(needs: &[Need], offers: &BTreeMap<Need, Offer>, all_required: bool) -> Verdict {
    let mut withheld = None;
    for need in needs {
        match offers.get(need) {
            Some(Offer::Yes) => (),
            Some(Offer::NotInThisKernel(why)) => {
                return Verdict::Skip(format!("this kernel does not offer {}: {why}", need.name()));
            }
            Some(Offer::NotOnThisMachine(why)) => return Verdict::Skip(format!("{}: {why}", need.name())),
            Some(Offer::Withheld(why)) => {
                withheld.get_or_insert_with(|| format!("{}: {why}", need.name()));
            }
            None => {
                withheld.get_or_insert_with(|| format!("{}: was not probed", need.name()));
            }
        }
    }
    match withheld {
        None => Verdict::Run,
        Some(why) if all_required => Verdict::Fail(format!("LIVE_REQUIRE=all, but {why}")),
        Some(why) => Verdict::Skip(why),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offers() -> BTreeMap<Need, Offer> {
        BTreeMap::from([
            (Need::Root, Offer::Withheld("user 1000".to_owned())),
            (Need::RemoteAdvice, Offer::Yes),
            (Need::PagemapScan, Offer::NotInThisKernel("ENOTTY".to_owned())),
        ])
    }

    #[test]
    fn a_test_runs_when_all_it_needs_is_there() {
        assert_eq!(verdict(&[Need::RemoteAdvice], &offers(), true), Verdict::Run);
        assert_eq!(verdict(&[], &offers(), true), Verdict::Run);
    }

    #[test]
    fn what_the_kernel_lacks_is_a_skip_even_when_all_is_required() {
        let skip = Verdict::Skip("this kernel does not offer PAGEMAP_SCAN: ENOTTY".to_owned());
        assert_eq!(verdict(&[Need::PagemapScan], &offers(), true), skip);
        assert_eq!(verdict(&[Need::Root, Need::PagemapScan], &offers(), true), skip);
    }

    #[test]
    fn a_program_in_a_machine_without_any_is_a_skip_even_when_all_is_required() {
        let offers = BTreeMap::from([(Need::RedisServer, Offer::NotOnThisMachine("no programs".to_owned()))]);
        assert_eq!(verdict(&[Need::RedisServer], &offers, true), Verdict::Skip("redis-server: no programs".to_owned()));
    }

    #[test]
    fn a_missing_privilege_is_a_skip_and_a_failure_when_all_is_required() {
        assert_eq!(verdict(&[Need::Root], &offers(), false), Verdict::Skip("root: user 1000".to_owned()));
        assert_eq!(
            verdict(&[Need::RemoteAdvice, Need::Root], &offers(), true),
            Verdict::Fail("LIVE_REQUIRE=all, but root: user 1000".to_owned())
        );
    }

    #[test]
    fn what_was_never_probed_does_not_pass_unseen() {
        assert!(matches!(verdict(&[Need::SoftDirty], &offers(), true), Verdict::Fail(_)));
    }

    #[test]
    fn every_need_has_a_name_of_its_own() {
        let names: std::collections::BTreeSet<_> = Need::ALL.iter().map(|need| need.name()).collect();
        assert_eq!(names.len(), Need::ALL.len());
    }
}
