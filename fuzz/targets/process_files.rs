//! The files of one process: `maps`, `smaps`, `smaps_rollup`, `status`, `stat`, its group. Any text is read or refused.
#![no_main]

mod memory_files;

use libfuzzer_sys::fuzz_target;
use linux::{Pid, cgroup, maps, smaps, stat, status};
use memory_files::MemoryFiles;

const PID: Pid = Pid(42);

fuzz_target!(|bytes: &[u8]| {
    let Some((which, text)) = bytes.split_first() else { return };
    let text = String::from_utf8_lossy(text);
    let at = |name: &str| MemoryFiles::everywhere(&[&PID.file(name)], &text);
    match which % 6 {
        0 => read_maps(&text),
        1 => {
            if let Ok(all) = smaps::details(&at("smaps"), PID) {
                assert!(all.len() <= text.lines().count());
            }
        }
        2 => drop(smaps::rollup(&at("smaps_rollup"), PID)),
        3 => {
            if let Ok(status) = status::status(&at("status"), PID) {
                assert!(status.name.bytes().len() <= text.len());
            }
        }
        4 => drop(stat::stat(&at("stat"), PID)),
        _ => {
            if let Ok(Some(memory)) = cgroup::memory(&MemoryFiles::from_sections(&text), PID) {
                let _ = memory.room();
            }
        }
    }
});

/// One mapping a line, and what is printed again reads the same.
fn read_maps(text: &str) {
    let Ok(all) = maps::parse(text, "maps") else { return };
    assert!(all.len() <= text.lines().count());
    for mapping in &all {
        assert!(mapping.range.start() <= mapping.range.end());
        let (range, (major, minor)) = (mapping.range, mapping.device);
        let head = format!("{range} {} {:x} {major:x}:{minor:x}", mapping.permissions, mapping.offset);
        let line = format!("{head} {} {}", mapping.inode, mapping.path.text());
        let again = maps::parse(&line, "printed").expect("what was printed from a mapping is one");
        assert_eq!(again.first(), Some(mapping));
    }
}
