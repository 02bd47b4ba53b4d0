//! The files of one process: `maps`, `smaps`, `smaps_rollup`, `status`, `stat`, its group. Any text is read or refused.

use crate::memory_files::MemoryFiles;
use linux::{Pid, cgroup, maps, smaps, stat, status};

const PID: Pid = Pid(42);

/// Parsers that the first byte selects, by its remainder.
pub const VARIANTS: u8 = 6;

/// Runs one input; true when it was understood.
pub fn run(bytes: &[u8]) -> bool {
    let Some((which, text)) = bytes.split_first() else { return false };
    let text = String::from_utf8_lossy(text);
    let at = |name: &str| MemoryFiles::everywhere(&[&PID.file(name)], &text);
    match which % VARIANTS {
        0 => reads_maps(&text),
        1 => {
            let all = smaps::details(&at("smaps"), PID);
            assert!(all.as_ref().is_ok_and(|all| all.len() <= text.lines().count()) || all.is_err());
            all.is_ok()
        }
        2 => smaps::rollup(&at("smaps_rollup"), PID).is_ok(),
        3 => {
            let status = status::status(&at("status"), PID);
            assert!(status.as_ref().is_ok_and(|status| status.name.bytes().len() <= text.len()) || status.is_err());
            status.is_ok()
        }
        4 => stat::stat(&at("stat"), PID).is_ok(),
        _ => {
            let memory = cgroup::memory(&MemoryFiles::from_sections(&text), PID);
            matches!(memory, Ok(Some(memory)) if { let _ = memory.headroom(); true })
        }
    }
}

/// One mapping a line; printed again, it reads the same.
fn reads_maps(text: &str) -> bool {
    let Ok(all) = maps::parse(text, "maps") else { return false };
    assert!(all.len() <= text.lines().count());
    for mapping in &all {
        assert!(mapping.range.start() <= mapping.range.end());
        let (range, (major, minor)) = (mapping.range, mapping.device);
        let head = format!("{range} {} {:x} {major:x}:{minor:x}", mapping.permissions, mapping.offset);
        let line = format!("{head} {} {}", mapping.inode, mapping.path.text());
        let again = maps::parse(&line, "printed").expect("what was printed from a mapping is one");
        assert_eq!(again.first(), Some(mapping));
    }
    !all.is_empty()
}
