//! resctrl: its files, and a journal that would undo a change in it. A byte selects one, the rest is text. Any text is
//! read or refused; lines that were read and written read the same; a replay changes only masu's own objects, and only
//! at the mount point.

use std::cell::RefCell;
use std::fs;

use crate::memory_files::MemoryFiles;
use linux::caches::{self, Cpus};
use linux::journal::replay;
use linux::resctrl::{Group, MaskRules, Reading, Resctrl, Schemata, UNDO};
use tempfile::TempDir;
use units::{WayMask, Ways};

thread_local! {
    static DIRECTORY: RefCell<Option<TempDir>> = const { RefCell::new(None) };
}

const MOUNTS: &str = "resctrl /sys/fs/resctrl resctrl rw 0 0\ne /tmp/e fuse.resctrl rw 0 0\n";

/// Parsers that the first byte selects, by its remainder.
pub const VARIANTS: u8 = 7;

/// Runs one input; true when it was understood.
pub fn run(bytes: &[u8]) -> bool {
    let Some((which, rest)) = bytes.split_first() else { return false };
    let text = String::from_utf8_lossy(rest);
    match which % VARIANTS {
        0 => schemata(&text),
        1 => files_of_a_mount(&text),
        2 => {
            let names = ["proc/mounts", "proc/filesystems", "proc/cpuinfo"];
            Resctrl::find(&MemoryFiles::everywhere(&names, &text)).is_ok()
        }
        3 => {
            let cpus = Cpus::parse(&text);
            if let Some(cpus) = &cpus {
                assert_eq!(Cpus::parse(&cpus.to_string()).as_ref(), Some(cpus));
            }
            let caches = caches::of_level(&MemoryFiles::from_sections(&text), 3);
            cpus.is_some() || caches.is_ok_and(|caches| !caches.is_empty())
        }
        4 => masks(rest),
        5 => {
            let reading = Reading::parse(&text);
            if let Some(reading) = &reading {
                assert_eq!(Reading::parse(&reading.to_string()).as_ref(), Some(reading));
            }
            reading.is_some()
        }
        _ => journal(rest),
    }
}

fn schemata(text: &str) -> bool {
    let Ok(schemata) = Schemata::parse("/schemata", text) else { return false };
    let command = schemata.command();
    let again = Schemata::parse("/schemata", &command).expect("what is written is read");
    assert_eq!(again.command(), command);
    assert!(schemata.still_to_write(&schemata).command().is_empty() && schemata.differences(&schemata).is_empty());
    !command.is_empty()
}

fn files_of_a_mount(text: &str) -> bool {
    let files = MemoryFiles::from_sections(text);
    files.put("proc/mounts", MOUNTS);
    let Ok(resctrl) = Resctrl::find(&files) else { return false };
    let mut understood = false;
    if let Ok(info) = resctrl.info() {
        assert!(info.caches.values().all(|cache| cache.classes_max >= info.classes_max));
        let _ = (info.l3(), info.l3_resources());
        understood = true;
    }
    for group in resctrl.all_groups().unwrap_or_default().iter().chain([&Group::DEFAULT]) {
        let _ = (resctrl.schemata(group), resctrl.size(group), resctrl.mode(group), resctrl.tasks(group));
        let _ = (resctrl.cpus(group), resctrl.readings(group));
    }
    let _ = (resctrl.domains(), resctrl.group_of(linux::Pid(7)));
    understood
}

/// An accepted mask is within the full one, and contiguous or allowed to have holes.
fn masks(bytes: &[u8]) -> bool {
    let Some((head, mask)) = bytes.split_first_chunk::<3>() else { return false };
    let Some(mask) = mask.first_chunk::<8>() else { return false };
    let (ways, ways_min, sparse) = (u32::from(head[0]) % 65, u32::from(head[1]) % 5, head[2] % 2 == 1);
    let rules = MaskRules { full: WayMask::lowest(Ways(ways)), ways_min: Ways(ways_min), sparse };
    let mask = WayMask(u64::from_le_bytes(*mask));
    let taken = rules.check(mask).is_ok();
    assert!(!taken || rules.full.covers(mask) && mask.ways().0 >= ways_min && (sparse || mask.is_contiguous()));
    taken
}

/// The journal of a dead process.
fn journal(bytes: &[u8]) -> bool {
    DIRECTORY.with_borrow_mut(|kept| {
        let Ok(directory) = kept.take().map_or_else(tempfile::tempdir, Ok) else { return false };
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
        let restored = replay(&files, directory.path(), &[UNDO]).expect("a directory of our own").restored;
        for (path, value) in files.writes.borrow().iter() {
            let below = ["tmp/e/", "sys/", "proc/"].iter().any(|known| path.starts_with(known));
            assert!(below && !path.split('/').any(|part| part == ".."), "{path}");
            let name = path.rsplit('/').next().unwrap_or_default();
            assert!(value != "rmdir" || name.starts_with("masu-") || !path.starts_with("tmp/"), "{path}");
        }
        let _ = fs::remove_file(directory.path().join("9-1.journal"));
        *kept = Some(directory);
        !restored.is_empty()
    })
}
