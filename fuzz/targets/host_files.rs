//! The files of the host: memory and where it lies, zones, free blocks, counters, huge pages, control groups, stalls, mounts. Any text is read or refused.
#![no_main]

mod memory_files;

use libfuzzer_sys::fuzz_target;
use linux::cgroup::{group, limited};
use linux::file_handle::FileSystems;
use linux::{Pid, buddyinfo, capabilities, iomem, meminfo, pressure, thp, thp_stats, vmstat, zoneinfo};
use memory_files::MemoryFiles;

fuzz_target!(|bytes: &[u8]| {
    let Some((which, text)) = bytes.split_first() else { return };
    let text = String::from_utf8_lossy(text);
    match which % 12 {
        0 => drop(meminfo::meminfo(&MemoryFiles::everywhere(&["proc/meminfo"], &text))),
        1 => {
            if let Ok(counters) = vmstat::vmstat(&MemoryFiles::everywhere(&["proc/vmstat"], &text)) {
                assert!(counters.thp_split_page == counters.get("thp_split_page"));
            }
        }
        2 => {
            let files = MemoryFiles::from_sections(&text);
            if let Ok(settings) = thp::settings(&files) {
                assert!(settings.sizes.is_sorted_by_key(|size| size.bytes));
            }
            let _ = thp::khugepaged(&files);
        }
        3 => {
            if let Ok(zones) = buddyinfo::buddyinfo(&MemoryFiles::everywhere(&["proc/buddyinfo"], &text)) {
                assert!(
                    zones.iter().all(|zone| zone.free_windows() == 0 || zone.free_blocks.len() > buddyinfo::HUGE_ORDER)
                );
            }
        }
        4 => {
            if let Ok(sizes) = thp_stats::stats(&MemoryFiles::from_sections(&text)) {
                assert!(sizes.is_sorted_by_key(|size| size.page_bytes));
                assert!(sizes.iter().all(|size| size.split == size.get("split")));
            }
        }
        5 => {
            if let Ok(zones) = zoneinfo::zoneinfo(&MemoryFiles::everywhere(&["proc/zoneinfo"], &text)) {
                assert!(zones.is_sorted_by_key(|zone| zone.first_frame));
                assert!(zones.iter().all(|zone| zone.present.0 > 0));
            }
        }
        6 => {
            let (name, text) = text.split_once('\n').unwrap_or((&text, ""));
            if let Ok(group) = group::find(&MemoryFiles::from_sections(text), name) {
                assert!(!group.path.split('/').any(|part| part == ".."), "{}", group.path);
                assert!(!group.inodes.is_empty());
            }
        }
        7 => {
            let files = MemoryFiles::from_sections(&text);
            for group in limited::groups(&files).unwrap_or_default() {
                if let Ok(Some(charge)) = group.charge(&files) {
                    assert!(charge.left() <= charge.limit);
                }
            }
        }
        8 => {
            if let Ok(pressure) = pressure::of_host(&MemoryFiles::everywhere(&["proc/pressure/memory"], &text)) {
                assert!(pressure.some.avg10.get() <= 1.0 && pressure.full.avg10.get() <= 1.0);
            }
        }
        9 => {
            // What is mounted may be anything; nothing is opened that has no handle here.
            let files = MemoryFiles::everywhere(&["proc/self/mountinfo"], &text);
            assert!(FileSystems::read(&files).is_ok_and(|all| all.open((u32::MAX, 0), 1, 1).is_err()));
        }
        10 => {
            if let Ok(ranges) = iomem::memory(&MemoryFiles::everywhere(&["proc/iomem"], &text)) {
                assert!(ranges.iter().all(|range| range.start < range.end));
                assert!(ranges.windows(2).all(|pair| pair[0].end < pair[1].start));
            }
        }
        _ => {
            let files = MemoryFiles::everywhere(&[&Pid::own().file("status")], &text);
            if let Ok(own) = capabilities::own(&files) {
                assert!(own.known().count() <= 64);
            }
        }
    }
});
