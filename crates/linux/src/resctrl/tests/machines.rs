//! Trees as kernels print them for machines of different kinds, from the kernel's document and reports of owners of
//! such machines.

use units::{WayMask, Ways};

use super::*;
use crate::resctrl::info::{IoAlloc, Usage};

const MOUNTS: &str = "proc /proc proc rw,nosuid 0 0\n";

/// A tree with these files below the mount, and the files that a journal needs.
fn machine(options: &str, files: &[(&str, &str)]) -> FakeKernel {
    let mounts = format!("{MOUNTS}resctrl /{ROOT} resctrl rw,relatime{options} 0 0\n");
    let kernel = FakeKernel::new()
        .file("proc/mounts", &mounts)
        .file("proc/sys/kernel/random/boot_id", "this-boot\n")
        .file("proc/uptime", "8.00 15.00\n")
        .file(&format!("{ROOT}/info/last_cmd_status"), "ok\n");
    files.iter().fold(kernel, |kernel, (path, text)| kernel.file(&format!("{ROOT}/{path}"), text))
}

/// Two sockets of a Xeon E5 v4: 20 ways, two of them shared with devices; Linux 4.20 and later.
pub(super) fn broadwell() -> FakeKernel {
    let files = [
        ("info/L3/num_closids", "16\n"),
        ("info/L3/cbm_mask", "fffff\n"),
        ("info/L3/min_cbm_bits", "1\n"),
        ("info/L3/shareable_bits", "c0000\n"),
        ("info/L3/bit_usage", "0=XXSSSSSSSSSSSSSSSSSS;1=XXSSSSSSSSSSSSSSSSSS\n"),
        ("info/L3_MON/num_rmids", "88\n"),
        ("info/L3_MON/mon_features", "llc_occupancy\nmbm_total_bytes\nmbm_local_bytes\n"),
        ("info/L3_MON/max_threshold_occupancy", "65536\n"),
        ("schemata", "    L3:0=fffff;1=fffff\n"),
        ("size", "    L3:0=31457280;1=31457280\n"),
        ("mode", "shareable\n"),
        ("tasks", "1\n2\n"),
        ("cpus_list", "0-3\n"),
        ("mon_data/mon_L3_00/llc_occupancy", "16234000\n"),
        ("mon_data/mon_L3_00/mbm_total_bytes", "99000000\n"),
        ("mon_data/mon_L3_00/mbm_local_bytes", "Unavailable\n"),
        ("mon_data/mon_L3_01/llc_occupancy", "Error\n"),
        ("mon_data/mon_L3_01/mbm_total_bytes", "Unassigned\n"),
    ];
    machine("", &files)
        .furnishing(ROOT, "schemata", "    L3:0=fffff;1=fffff\n")
        .furnishing(ROOT, "mode", "shareable\n")
        .furnishing(ROOT, "tasks", "")
        .furnishing(ROOT, "cpus_list", "\n")
}

/// A Xeon Scalable: 11 ways, the upper two shared with devices; padded masks, and bandwidth.
pub(super) fn skylake() -> FakeKernel {
    let files = [
        ("info/L3/num_closids", "16\n"),
        ("info/L3/cbm_mask", "7ff\n"),
        ("info/L3/min_cbm_bits", "1\n"),
        ("info/L3/shareable_bits", "600\n"),
        ("info/L3/bit_usage", "0=XXSSSSSSSSS\n"),
        ("info/L3/sparse_masks", "0\n"),
        ("info/MB/num_closids", "8\n"),
        ("info/MB/min_bandwidth", "10\n"),
        ("info/MB/bandwidth_gran", "10\n"),
        ("info/MB/delay_linear", "1\n"),
        ("schemata", "    MB:0= 100\n    L3:0=7ff\n"),
    ];
    machine("", &files)
}

/// An EPYC of four core complexes: 16 ways, masks with holes and empty masks, devices under their own CLOSID.
pub(super) fn epyc() -> FakeKernel {
    let files = [
        ("info/L3/num_closids", "15\n"),
        ("info/L3/cbm_mask", "ffff\n"),
        ("info/L3/min_cbm_bits", "0\n"),
        ("info/L3/shareable_bits", "0\n"),
        ("info/L3/bit_usage", "0=SSSSSSSS00000000;1=SSSSSSSSSSSSSSSS;2=SSSSSSSSSSSSSSSS;3=SSSSSSSSSSSSSSSS\n"),
        ("info/L3/sparse_masks", "1\n"),
        ("info/L3/io_alloc", "enabled\n"),
        ("info/L3/io_alloc_cbm", "0=f000;1=f000;2=f000;3=f000\n"),
        ("info/MB/num_closids", "15\n"),
        ("info/MB/min_bandwidth", "1\n"),
        ("info/MB/bandwidth_gran", "1\n"),
        ("info/SMBA/num_closids", "15\n"),
        (
            "schemata",
            "  SMBA:0=2048;1=  64;2=2048;3=2048\n    MB:0=2048;1=  16;2=2048;3=2048\n    L3:0=ffff;1=ffff;2=ffff;3=ffff\n",
        ),
    ];
    machine("", &files)
}

/// Code and data separate, with the masks padded by zeros of Linux before 5.14.
pub(super) fn with_cdp() -> FakeKernel {
    let each = |name| {
        [("num_closids", "8\n"), ("cbm_mask", "fffff\n"), ("min_cbm_bits", "1\n"), ("shareable_bits", "c0000\n")]
            .map(|(file, text)| (format!("info/{name}/{file}"), text))
    };
    let files = [each("L3CODE"), each("L3DATA")].concat();
    let kernel =
        machine(",cdp", &[("schemata", "L3DATA:0=fffff;1=000ff\nL3CODE:0=0000f;1=fffff\n"), ("mode", "shareable\n")]);
    files.iter().fold(kernel, |kernel, (path, text)| kernel.file(&format!("{ROOT}/{path}"), text))
}

/// One cache that serves two nodes (sub-NUMA clustering), with monitoring only.
pub(super) fn two_nodes_that_only_count() -> FakeKernel {
    let files = [
        ("info/L3_MON/num_rmids", "144\n"),
        ("info/L3_MON/mon_features", "llc_occupancy\n"),
        ("info/PERF_PKG_MON/num_rmids", "64\n"),
        ("tasks", "1\n"),
        ("mon_data/mon_L3_00/llc_occupancy", "300\n"),
        ("mon_data/mon_L3_00/mon_sub_L3_00/llc_occupancy", "100\n"),
        ("mon_data/mon_L3_00/mon_sub_L3_01/llc_occupancy", "200\n"),
        ("mon_data/mon_PERF_PKG_00/core_energy", "1.5\n"),
        ("mon_groups/m01/tasks", "7\n"),
    ];
    machine(",debug", &files)
}

#[test]
fn a_broadwell_has_twenty_ways_of_which_two_are_the_devices_too() {
    let kernel = broadwell();
    let resctrl = Resctrl::find(&kernel).unwrap();
    let info = resctrl.info().unwrap();
    assert_eq!((info.classes_max, info.l3_resources()), (16, vec![Resource::L3]));
    let l3 = info.l3().unwrap();
    assert_eq!(l3.rules, MaskRules { full: WayMask(0xf_ffff), ways_min: Ways(1), sparse: false });
    assert_eq!((l3.shareable, l3.io_alloc.clone()), (WayMask(0xc_0000), IoAlloc::Unsupported));
    let usage = &l3.usage[&CacheId(1)];
    assert_eq!(usage.ways(Usage::HardwareAndGroups), WayMask(0xc_0000));
    assert_eq!(usage.ways(Usage::Shared), WayMask(0x3_ffff));
    let monitoring = info.monitoring.unwrap();
    assert_eq!((monitoring.groups_max, monitoring.max_threshold_occupancy), (88, Some(Bytes::kib(64))));
    assert!(monitoring.counts("mbm_local_bytes") && !monitoring.counts("mbm_"));
    assert_eq!(resctrl.domains().unwrap(), [CacheId(0), CacheId(1)]);
    assert_eq!(resctrl.size(&Group::DEFAULT).unwrap()[&Resource::L3][&CacheId(1)], Bytes::mib(30));
}

#[test]
fn a_skylake_has_fewer_classes_for_bandwidth_than_for_its_cache() {
    let kernel = skylake();
    let resctrl = Resctrl::find(&kernel).unwrap();
    let info = resctrl.info().unwrap();
    assert_eq!(info.classes_max, 8);
    assert_eq!(info.bandwidth.map(|bandwidth| (bandwidth.bandwidth_min, bandwidth.step)), Some((10, 10)));
    assert_eq!(info.l3().unwrap().shareable, WayMask(0x600));
    assert_eq!(info.monitoring, None);
    let schemata = resctrl.schemata(&Group::DEFAULT).unwrap();
    assert_eq!(schemata.command(), "L3:0=7ff\nMB:0=100\n");
}

#[test]
fn an_epyc_takes_masks_with_holes_and_none_at_all() {
    let kernel = epyc();
    let resctrl = Resctrl::find(&kernel).unwrap();
    let info = resctrl.info().unwrap();
    let l3 = info.l3().unwrap();
    for mask in [0, 0xffff, 0x5005, 1] {
        assert_eq!(l3.rules.check(WayMask(mask)), Ok(()));
    }
    assert_eq!(l3.rules.check(WayMask(0x1_0000)), Err(MaskFault::TooHigh { full: WayMask(0xffff) }));
    let IoAlloc::Enabled(masks) = &l3.io_alloc else { panic!("{:?}", l3.io_alloc) };
    assert_eq!(masks[&CacheId(3)], WayMask(0xf000));
    assert_eq!(l3.usage[&CacheId(0)].ways(Usage::Unused), WayMask(0xff));
    let schemata = resctrl.schemata(&Group::DEFAULT).unwrap();
    let Values::Numbers(slow) = &schemata.0[&Resource::Smba] else { panic!("{schemata:?}") };
    assert_eq!(slow[&CacheId(1)], 64);
}

#[test]
fn code_and_data_apart_are_two_resources_with_half_the_classes() {
    let kernel = with_cdp();
    let resctrl = Resctrl::find(&kernel).unwrap();
    assert!(resctrl.mount().cdp && !resctrl.mount().cdpl2);
    let info = resctrl.info().unwrap();
    assert_eq!((info.classes_max, info.l3_resources()), (8, vec![Resource::L3Code, Resource::L3Data]));
    let schemata = resctrl.schemata(&Group::DEFAULT).unwrap();
    assert_eq!(schemata.masks(&Resource::L3Data).unwrap()[&CacheId(1)], WayMask(0xff));
    assert_eq!(schemata.masks(&Resource::L3Code).unwrap()[&CacheId(0)], WayMask(0xf));
    assert_eq!(schemata.masks(&Resource::L3), None);
    let uniform = Schemata::uniform(&info.l3_resources(), &resctrl.domains().unwrap(), WayMask(0xf0));
    assert_eq!(uniform.command(), "L3CODE:0=f0;1=f0\nL3DATA:0=f0;1=f0\n");
}

#[test]
fn where_nothing_can_be_divided_there_is_one_class_and_parts_of_a_cache_are_counted() {
    let kernel = two_nodes_that_only_count();
    let resctrl = Resctrl::find(&kernel).unwrap();
    assert!(resctrl.mount().debug);
    let info = resctrl.info().unwrap();
    assert_eq!((info.classes_max, info.l3()), (1, None));
    assert!(resctrl.schemata(&Group::DEFAULT).unwrap_err().is_gone());
    let readings = resctrl.readings(&Group::DEFAULT).unwrap();
    let counted: Vec<_> =
        readings.iter().map(|one| (one.node, one.llc_occupancy.value(), one.mbm_total_bytes)).collect();
    let value = |bytes| Some(Bytes(bytes));
    let absent = Reading::Unsupported;
    assert_eq!(counted, [(None, value(300), absent), (Some(0), value(100), absent), (Some(1), value(200), absent)]);
    let monitors = resctrl.all_groups().unwrap();
    assert_eq!(monitors.iter().map(Group::to_string).collect::<Vec<_>>(), ["the default group", "mon_groups/m01"]);
}

#[test]
fn masks_are_checked_as_the_kernel_does() {
    let intel = MaskRules { full: WayMask(0xf_ffff), ways_min: Ways(2), sparse: false };
    let faults = [
        (0x10_0000, "the cache has the ways fffff and no others"),
        (0, "no way at all, and at least 2 must be in it"),
        (0x5, "the ways are not in a row"),
        (0x8, "at least 2 ways in a row must be in it"),
    ];
    for (mask, expected) in faults {
        assert_eq!(intel.check(WayMask(mask)).unwrap_err().to_string(), expected);
    }
    assert_eq!(intel.check(WayMask(0xc)), Ok(()));
    // With holes allowed, only the lowest contiguous ways are counted.
    let sparse = MaskRules { sparse: true, ..intel };
    assert_eq!(sparse.check(WayMask(0x33)), Ok(()));
    assert_eq!(sparse.check(WayMask(0x31)), Err(MaskFault::TooFew { ways_min: Ways(2) }));
}
