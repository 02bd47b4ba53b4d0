//! Journals of dead processes, and their replay: only kernel files are written, each journal is removed or stays for
//! another attempt or a newer masu, and a second replay finds nothing more to do.

use std::cell::RefCell;
use std::fs;

use crate::memory_files::MemoryFiles;
use linux::journal::{Replay, replay};
use linux::resctrl::UNDO;
use tempfile::TempDir;

thread_local! {
    static DIRECTORY: RefCell<Option<TempDir>> = const { RefCell::new(None) };
}

/// Process 7 of these runs; number 8 was another process.
const NAMES: [&str; 4] = ["7-100.journal", "8-100.journal", "9-1.journal", "9-2.journal"];

fn stat(pid: u32, start_ticks: u32) -> String {
    format!("{pid} (masu) S{} {start_ticks} 0\n", " 0".repeat(18))
}

fn kernel() -> MemoryFiles {
    let files = MemoryFiles::everywhere(&["sys/a", "sys/b", "proc/sys/c"], "new\n");
    files.put("proc/sys/kernel/random/boot_id", "this-boot\n");
    files.put("proc/7/stat", &stat(7, 100));
    files.put("proc/8/stat", &stat(8, 999));
    files
}

/// Runs one input; true when it was understood.
pub fn run(bytes: &[u8]) -> bool {
    DIRECTORY.with_borrow_mut(|kept| {
        let Ok(directory) = kept.take().map_or_else(tempfile::tempdir, Ok) else { return false };
        let journals: Vec<(&str, &[u8])> = NAMES.into_iter().zip(bytes.split(|byte| *byte == 0)).collect();
        for (name, content) in &journals {
            fs::write(directory.path().join(name), content).expect("a directory of our own");
        }
        let files = kernel();
        let replayed = replay(&files, directory.path(), &[UNDO]).expect("a directory of our own");
        let Replay { restored, left_alone, newer } = replayed;
        for (path, _) in files.writes.borrow().iter() {
            assert!(path.starts_with("sys/") || path.starts_with("proc/"), "{path}");
            assert!(!path.split('/').any(|part| part == ".."), "{path}");
        }
        let understood = !restored.is_empty() || !left_alone.is_empty() || !newer.is_empty();
        let failed = restored.iter().filter(|setting| setting.failure.is_some()).count();
        let left = NAMES.iter().filter(|name| directory.path().join(name).exists()).count();
        let living = journals.len().min(1);
        assert!(left <= living + failed + newer.len(), "{left} journals left, {failed} failures, {newer:?}");
        assert!(newer.iter().all(|journal| journal.path.exists()), "{newer:?}");
        if failed == 0 {
            files.writes.borrow_mut().clear();
            assert_eq!(replay(&files, directory.path(), &[UNDO]), Ok(Replay { newer, ..Replay::default() }));
            assert!(files.writes.borrow().is_empty());
        }
        for name in NAMES {
            let _ = fs::remove_file(directory.path().join(name));
        }
        *kept = Some(directory);
        understood
    })
}
