//! The files of the host: memory, free blocks, counters, huge pages. Any text is read or refused.
#![no_main]

mod memory_files;

use libfuzzer_sys::fuzz_target;
use linux::{Pid, buddyinfo, capabilities, meminfo, thp, thp_stats, vmstat};
use memory_files::MemoryFiles;

fuzz_target!(|bytes: &[u8]| {
    let Some((which, text)) = bytes.split_first() else { return };
    let text = String::from_utf8_lossy(text);
    match which % 6 {
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
                assert!(zones.iter().all(|zone| zone.free_windows() == 0 || zone.free_blocks.len() > buddyinfo::HUGE_ORDER));
            }
        }
        4 => {
            if let Ok(sizes) = thp_stats::stats(&MemoryFiles::from_sections(&text)) {
                assert!(sizes.is_sorted_by_key(|size| size.page_bytes));
                assert!(sizes.iter().all(|size| size.split == size.get("split")));
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
