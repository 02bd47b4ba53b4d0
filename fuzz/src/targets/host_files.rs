//! The files of the host: memory and NUMA nodes, zones, free blocks, counters, huge pages, control groups, stalls,
//! mounts. Any text is read or refused.

use crate::memory_files::MemoryFiles;
use linux::cgroup::{group, limited};
use linux::file_systems::{FileSystems, Numbers};
use linux::{Pid, buddyinfo, capabilities, iomem, meminfo, pressure, thp, thp_stats, vmstat, zoneinfo};

/// Parsers that the first byte selects, by its remainder.
pub const VARIANTS: u8 = 12;

/// Runs one input; true when it was understood.
pub fn run(bytes: &[u8]) -> bool {
    let Some((which, text)) = bytes.split_first() else { return false };
    let text = String::from_utf8_lossy(text);
    let mut understood = false;
    match which % VARIANTS {
        0 => return meminfo::meminfo(&MemoryFiles::everywhere(&["proc/meminfo"], &text)).is_ok(),
        1 => {
            if let Ok(counters) = vmstat::vmstat(&MemoryFiles::everywhere(&["proc/vmstat"], &text)) {
                understood = true;
                assert!(counters.thp_split_page == counters.get("thp_split_page"));
            }
        }
        2 => {
            let files = MemoryFiles::from_sections(&text);
            if let Ok(settings) = thp::settings(&files) {
                understood = true;
                assert!(settings.sizes.is_sorted_by_key(|size| size.bytes));
            }
            understood |= thp::khugepaged(&files).is_ok();
        }
        3 => {
            if let Ok(zones) = buddyinfo::buddyinfo(&MemoryFiles::everywhere(&["proc/buddyinfo"], &text)) {
                understood = true;
                assert!(
                    zones.iter().all(|zone| zone.free_windows() == 0 || zone.free_blocks.len() > buddyinfo::HUGE_ORDER)
                );
            }
        }
        4 => {
            if let Ok(sizes) = thp_stats::stats(&MemoryFiles::from_sections(&text)) {
                understood = true;
                assert!(sizes.is_sorted_by_key(|size| size.page_bytes));
                assert!(sizes.iter().all(|size| size.split == size.get("split")));
            }
        }
        5 => {
            if let Ok(zones) = zoneinfo::zoneinfo(&MemoryFiles::everywhere(&["proc/zoneinfo"], &text)) {
                understood = true;
                assert!(zones.is_sorted_by_key(|zone| zone.first_frame));
                assert!(zones.iter().all(|zone| zone.present.0 > 0));
            }
        }
        6 => {
            let (name, text) = text.split_once('\n').unwrap_or((&text, ""));
            if let Ok(group) = group::find(&MemoryFiles::from_sections(text), name) {
                understood = true;
                assert!(!group.path.split('/').any(|part| part == ".."), "{}", group.path);
                assert!(!group.inodes.is_empty());
            }
        }
        7 => {
            let files = MemoryFiles::from_sections(&text);
            for group in limited::groups(&files).unwrap_or_default() {
                if let Ok(Some(charge)) = group.charge(&files) {
                    understood = true;
                    assert!(charge.left() <= charge.limit);
                }
            }
        }
        8 => {
            if let Ok(pressure) = pressure::of_host(&MemoryFiles::everywhere(&["proc/pressure/memory"], &text)) {
                understood = true;
                assert!(pressure.some.avg10.get() <= 1.0 && pressure.full.avg10.get() <= 1.0);
            }
        }
        9 => {
            // The mounts may be any text; no file is opened that has no handle here.
            let files = MemoryFiles::everywhere(&["proc/self/mountinfo"], &text);
            let of = Numbers { device: (u32::MAX, 0), inode: 1, generation: 1 };
            assert!(FileSystems::read(&files).is_ok_and(|mut all| all.open(&files, &[], of).is_err()));
            understood = !text.is_empty();
        }
        10 => {
            if let Ok(ranges) = iomem::memory(&MemoryFiles::everywhere(&["proc/iomem"], &text)) {
                understood = true;
                assert!(ranges.iter().all(|range| range.start < range.end));
                assert!(ranges.windows(2).all(|pair| pair[0].end < pair[1].start));
            }
        }
        _ => {
            let files = MemoryFiles::everywhere(&[&Pid::own().file("status")], &text);
            if let Ok(own) = capabilities::own(&files) {
                understood = true;
                assert!(own.known().count() <= 64);
            }
        }
    }
    understood
}
