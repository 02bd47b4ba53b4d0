//! resctrl: its files, and a journal that would undo something in it. A byte says which, the rest is text. Any text is read or refused; lines
//! that were read and written read the same; a replay changes only what is ours, and where it is mounted.
#![no_main]

mod memory_files;

use std::cell::RefCell;
use std::fs;

use libfuzzer_sys::fuzz_target;
use linux::caches::{self, Cpus};
use linux::knobs::replay;
use linux::resctrl::{Group, MaskRules, Reading, Resctrl, Schemata};
use memory_files::MemoryFiles;
use quantities::{WayMask, Ways};
use tempfile::TempDir;

thread_local! {
    static DIRECTORY: RefCell<Option<TempDir>> = const { RefCell::new(None) };
}

const MOUNTS: &str = "resctrl /sys/fs/resctrl resctrl rw 0 0\ne /tmp/e fuse.resctrl rw 0 0\n";

fuzz_target!(|bytes: &[u8]| {
    let Some((which, rest)) = bytes.split_first() else { return };
    let text = String::from_utf8_lossy(rest);
    match which % 7 {
        0 => schemata(&text),
        1 => files_of_a_mount(&text),
        2 => drop(Resctrl::find(&MemoryFiles::everywhere(&["proc/mounts", "proc/filesystems", "proc/cpuinfo"], &text))),
        3 => {
            if let Some(cpus) = Cpus::parse(&text) {
                assert_eq!(Cpus::parse(&cpus.to_string()), Some(cpus));
            }
            let _ = caches::of_level(&MemoryFiles::from_sections(&text), 3);
        }
        4 => masks(rest),
        5 => {
            if let Some(reading) = Reading::parse(&text) {
                assert_eq!(Reading::parse(&reading.to_string()), Some(reading));
            }
        }
        _ => journal(rest),
    }
});

fn schemata(text: &str) {
    let Ok(schemata) = Schemata::parse("/schemata", text) else { return };
    let command = schemata.command();
    let again = Schemata::parse("/schemata", &command).expect("what is written is read");
    assert_eq!(again.command(), command);
    assert!(schemata.still_to_write(&schemata).command().is_empty() && schemata.differences(&schemata).is_empty());
}

fn files_of_a_mount(text: &str) {
    let files = MemoryFiles::from_sections(text);
    files.put("proc/mounts", MOUNTS);
    let Ok(resctrl) = Resctrl::find(&files) else { return };
    if let Ok(info) = resctrl.info() {
        assert!(info.caches.values().all(|cache| cache.classes_max >= info.classes_max));
        let _ = (info.l3(), info.l3_resources());
    }
    for group in resctrl.all_groups().unwrap_or_default().iter().chain([&Group::DEFAULT]) {
        let _ = (resctrl.schemata(group), resctrl.size(group), resctrl.mode(group), resctrl.tasks(group));
        let _ = (resctrl.cpus(group), resctrl.readings(group));
    }
    let _ = (resctrl.domains(), resctrl.group_of(linux::Pid(7)));
}

/// A mask that is taken is within, and in a row or allowed to have holes.
fn masks(bytes: &[u8]) {
    let Some((head, mask)) = bytes.split_first_chunk::<3>() else { return };
    let Some(mask) = mask.first_chunk::<8>() else { return };
    let (ways, ways_min, sparse) = (u32::from(head[0]) % 65, u32::from(head[1]) % 5, head[2] % 2 == 1);
    let rules = MaskRules { full: WayMask::lowest(Ways(ways)), ways_min: Ways(ways_min), sparse };
    let mask = WayMask(u64::from_le_bytes(*mask));
    if rules.check(mask).is_ok() {
        assert!(rules.full.covers(mask) && mask.ways().0 >= ways_min && (sparse || mask.is_contiguous()));
    }
}

/// The journal of a dead process.
fn journal(bytes: &[u8]) {
    DIRECTORY.with_borrow_mut(|kept| {
        let Ok(directory) = kept.take().map_or_else(tempfile::tempdir, Ok) else { return };
        fs::write(directory.path().join("9-1.journal"), bytes).expect("a directory of our own");
        let files = MemoryFiles::default();
        for (path, text) in [
            ("proc/mounts", MOUNTS),
            ("proc/sys/kernel/random/boot_id", "this-boot\n"),
            ("tmp/e/schemata", "L3:0=f;1=f\nMB:0=100\n"),
            ("tmp/e/mode", "shareable\n"),
            ("tmp/e/tasks", "7\n"),
            ("tmp/e/masu-web/tasks", "7\n"),
            ("tmp/e/masu-web/mon_groups/masu-x/tasks", ""),
            ("tmp/e/batch/tasks", ""),
            ("tmp/e/batch/cpus_list", "1\n"),
            ("tmp/other/schemata", "L3:0=f\n"),
            ("proc/7/task/7/stat", ""),
            ("proc/7/stat", "7 (x) S 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 500 0 0\n"),
        ] {
            files.put(path, text);
        }
        replay(&files, directory.path()).expect("a directory of our own");
        for (path, value) in files.writes.borrow().iter() {
            let below = ["tmp/e/", "sys/", "proc/"].iter().any(|known| path.starts_with(known));
            assert!(below && !path.split('/').any(|part| part == ".."), "{path}");
            let name = path.rsplit('/').next().unwrap_or_default();
            assert!(value != "rmdir" || name.starts_with("masu-") || !path.starts_with("tmp/"), "{path}");
        }
        let _ = fs::remove_file(directory.path().join("9-1.journal"));
        *kept = Some(directory);
    });
}
