//! Files of stopped processes, of block devices and of mounts, in sections (`== path`). Any text is read or refused.

use crate::memory_files::MemoryFiles;
use linux::block_device::{self, Below};
use linux::cgroup::freezer;
use linux::halted::Looks;
use linux::{Pid, mounts};

const PID: Pid = Pid(42);
const DEVICE: (u32, u32) = (253, 1);

/// Parsers that the first byte selects, by its remainder.
pub const VARIANTS: u8 = 3;

/// Runs one input; true when it was understood.
pub fn run(bytes: &[u8]) -> bool {
    let Some((which, text)) = bytes.split_first() else { return false };
    let text = String::from_utf8_lossy(text);
    let files = MemoryFiles::from_sections(&text);
    match which % VARIANTS {
        0 => {
            let frozen = freezer::frozen_group(&files, PID);
            if let Some(group) = &frozen {
                assert!(group.starts_with('/'), "{group}");
                assert!(text.contains("FROZEN") || text.contains("FREEZING") || text.contains("frozen 1"));
            }
            let mut looks = Looks::default();
            let halted = looks.look(&files, PID).or_else(|| looks.look(&files, PID));
            if let Some(halted) = &halted {
                assert!(!halted.remedy(PID).is_empty() && !halted.to_string().contains('\n'));
            }
            frozen.is_some() || halted.is_some()
        }
        1 => {
            let below = block_device::below(&files, DEVICE);
            if let Below::Devices(devices) = &below {
                assert!(devices.len() <= text.lines().count());
            }
            let path = block_device::backing_path(&files, DEVICE);
            assert!(path.as_ref().is_none_or(|path| text.contains(path.as_str())));
            let name = block_device::name(&files, DEVICE);
            assert!(name.as_ref().is_ok_and(|name| !name.is_empty()) || name.is_err());
            path.is_some() || !matches!(below, Below::Nothing | Below::File)
        }
        _ => {
            let Ok(table) = mounts::Table::read(&files, "self") else { return false };
            let mut understood = false;
            for mount in table.all_of_device(DEVICE) {
                understood = true;
                assert_eq!(mount.device, DEVICE);
                // A file system in memory or of a program is not one of the kernel's own on a disk.
                let _ = table.is_local(mount);
                assert!(!mount.kind().is_empty() || !mount.is_of_program());
            }
            assert_eq!(table.of_device(DEVICE), table.all_of_device(DEVICE).next());
            understood
        }
    }
}
