//! Hardware of the emulated machine: its caches, its classes of service, its counters. Pure.

use units::{Bytes, WayMask, Ways};

use crate::cpus::Cpus;

/// Properties decided by the processor, the firmware and the mount's options on a real machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hardware {
    /// Ids of the L3 caches, in order.
    pub cache_ids: Vec<u32>,
    /// Size of one L3 cache.
    pub cache: Bytes,
    /// Ways of one L3 cache, 1 to 32: the bits of a mask.
    pub ways: Ways,
    /// Least number of contiguous ways in a mask; 0 permits a class without ways (AMD).
    pub min_ways: Ways,
    /// Ways that devices also use.
    pub shareable: WayMask,
    /// Masks may have holes.
    pub sparse_masks: bool,
    /// Classes of service (CLOSIDs), the default one included, 1 to 64. With `cdp` half of them.
    pub classes: u32,
    /// Code and data of a class can have separate masks.
    pub cdp_capable: bool,
    /// Separate masks are enabled: as mounted with `-o cdp`.
    pub cdp: bool,
    /// Ways that a mask has together or not at all; none on most machines.
    pub paired_ways: WayMask,
    /// Devices can have a mask of their own (AMD's SDCIAE).
    pub io_alloc_capable: bool,
    /// The kernel can stop the processor's prefetchers, so that a region can be locked: of Broadwell-X, Goldmont and
    /// Goldmont Plus (`resctrl_arch_get_prefetch_disable_bits` in arch/x86/kernel/cpu/resctrl/pseudo_lock.c).
    pub pseudo_lock: bool,
    /// Bandwidth limits, if supported.
    pub bandwidth: Option<Bandwidth>,
    /// Monitoring, if supported.
    pub monitoring: Option<Monitoring>,
    /// Files for the ids in the hardware: as mounted with `-o debug`.
    pub debug: bool,
    /// Online CPUs.
    pub online: Cpus,
}

/// Bandwidth limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bandwidth {
    /// The least, in percent.
    pub min_percent: u32,
    /// The step, in percent.
    pub step_percent: u32,
    /// In MiB/s instead, kept by the kernel: as mounted with `-o mba_MBps`.
    pub in_mib: bool,
}

/// Counted events, and the number of groups with counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Monitoring {
    /// Groups that can be monitored at once (RMIDs), the default one included.
    pub rmids: u32,
    /// Nodes into which each L3 cache's CPUs are divided (sub-NUMA clusters, SNC); 1 if they are not.
    pub nodes_per_cache: u32,
    /// Bytes read from and written to memory are counted, too.
    pub bandwidth: bool,
    /// Time for which the lines of a removed group stay in the cache, and its RMID in limbo; 0 for a kernel without
    /// limbo.
    pub limbo_ms: u64,
}

/// The counters of a usual server.
pub const MONITORING: Monitoring = Monitoring { rmids: 176, nodes_per_cache: 1, bandwidth: true, limbo_ms: 5000 };

/// Intel Xeon E5 v4, as in the examples of the kernel's document: 20 ways, two of them used by devices.
///
/// Truth: `shareable_bits` c0000 in intel-cmt-cat's issues 41 and 150.
pub fn broadwell_20() -> Hardware {
    Hardware {
        cache_ids: vec![0],
        cache: Bytes::mib(20),
        ways: Ways(20),
        min_ways: Ways(1),
        shareable: WayMask(0xc_0000),
        sparse_masks: false,
        classes: 16,
        cdp_capable: true,
        cdp: false,
        paired_ways: WayMask::NONE,
        io_alloc_capable: false,
        pseudo_lock: true,
        bandwidth: None,
        monitoring: Some(MONITORING),
        debug: false,
        online: Cpus::first(2),
    }
}

/// Intel Xeon E5 v3: a mask has at least two ways, there are four classes, and only occupancy is counted.
///
/// Truth: `cache_alloc_hsw_probe` in arch/x86/kernel/cpu/resctrl/core.c.
pub fn haswell_20() -> Hardware {
    Hardware {
        min_ways: Ways(2),
        classes: 4,
        cdp_capable: false,
        pseudo_lock: false,
        monitoring: Some(Monitoring { bandwidth: false, ..MONITORING }),
        ..broadwell_20()
    }
}

/// Intel Xeon Silver 4110: 11 ways; the two that devices use come together.
///
/// Truth: intel-cmt-cat's issue 135 ("setting one of these bits will always result in both bits being set").
pub fn skylake_11() -> Hardware {
    Hardware {
        cache: Bytes::mib(11),
        ways: Ways(11),
        shareable: WayMask(0x600),
        paired_ways: WayMask(0x600),
        pseudo_lock: false,
        bandwidth: Some(Bandwidth { min_percent: 10, step_percent: 10, in_mib: false }),
        ..broadwell_20()
    }
}

/// AMD EPYC: 16 ways, masks with holes and without any way, devices with a mask of their own.
///
/// Truth: Documentation/filesystems/resctrl.rst, `io_alloc`; `rdt_init_res_defs_amd` in
/// arch/x86/kernel/cpu/resctrl/core.c.
pub fn amd_16() -> Hardware {
    Hardware {
        cache: Bytes::mib(16),
        ways: Ways(16),
        min_ways: Ways(0),
        shareable: WayMask::NONE,
        sparse_masks: true,
        pseudo_lock: false,
        io_alloc_capable: true,
        ..broadwell_20()
    }
}

/// Names and machines, in the order of the help.
pub fn models() -> [(&'static str, &'static str, Hardware); 7] {
    let two = Hardware { cache_ids: vec![0, 1], ..broadwell_20() };
    [
        ("broadwell-20", "Intel, 20 ways of 1 MiB, devices use the upper two, 16 classes", broadwell_20()),
        ("haswell-20", "Intel, 20 ways, a mask has at least two, 4 classes, occupancy only", haswell_20()),
        ("skylake-11", "Intel, 11 ways, the upper two come together, 16 classes, bandwidth in percent", skylake_11()),
        ("amd-16", "AMD, 16 ways, masks with holes or empty, 16 classes, io_alloc", amd_16()),
        ("two-sockets", "broadwell-20 with caches 0 and 1", two.clone()),
        (
            "cdp",
            "broadwell-20 mounted with -o cdp: 8 classes, masks for code and for data",
            Hardware { cdp: true, ..broadwell_20() },
        ),
        (
            "snc-2",
            "two-sockets with two nodes for each cache",
            Hardware { monitoring: Some(Monitoring { nodes_per_cache: 2, ..MONITORING }), ..two },
        ),
    ]
}

impl Hardware {
    /// Machine of this name.
    pub fn named(name: &str) -> Option<Hardware> {
        models().into_iter().find(|(other, _, _)| *other == name).map(|(_, _, hardware)| hardware)
    }

    /// All ways.
    pub fn all_ways(&self) -> WayMask {
        WayMask::lowest(self.ways)
    }

    /// Number of classes for groups, including the default group's.
    pub fn usable_classes(&self) -> u32 {
        if self.cdp { self.classes / 2 } else { self.classes }
    }

    /// Nodes of each cache; 1 without sub-NUMA clusters.
    pub fn nodes_per_cache(&self) -> u32 {
        self.monitoring.map_or(1, |monitoring| monitoring.nodes_per_cache.max(1))
    }

    /// Size of these ways in a cache, over all its nodes.
    pub fn size_of(&self, mask: WayMask) -> Bytes {
        let way = self.cache.0 / u64::from(self.ways.0.max(1));
        Bytes(way * u64::from(mask.ways().0))
    }

    /// Mask as the hardware reads it back: with all paired ways of each way.
    pub fn read_back(&self, mask: WayMask) -> WayMask {
        if mask.overlaps(self.paired_ways) { mask.or(self.paired_ways) } else { mask }
    }
}
