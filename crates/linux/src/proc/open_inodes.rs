//! `/proc/PID/fdinfo`: inodes of the files that processes have open.
//!
//! Cost: some 10 µs a descriptor. Side effects: none; no server is asked.
//!
//! Since: the inode Linux 5.14. Needs ptrace access to the processes. Truth: proc_pid_fdinfo(5).

use std::collections::BTreeSet;

use crate::{KernelFiles, Pid};

/// Number of descriptors that are looked at in all.
const DESCRIPTORS_MAX: usize = 256;

/// Inodes of all files that these processes have open, whatever their file systems. `None` when that is not known: there
/// are too many, or one process cannot be read.
pub fn open_inodes(files: &impl KernelFiles, pids: impl IntoIterator<Item = Pid>) -> Option<BTreeSet<u64>> {
    let (mut inodes, mut looked_at) = (BTreeSet::new(), 0);
    for pid in pids {
        let folder = pid.file("fdinfo");
        let numbers = match files.list(&folder) {
            Ok(numbers) => numbers,
            Err(rustix::io::Errno::NOENT | rustix::io::Errno::SRCH) => continue, // it has ended
            Err(_) => return None,
        };
        looked_at += numbers.len();
        if looked_at > DESCRIPTORS_MAX {
            return None;
        }
        for number in numbers {
            // A descriptor that was closed meanwhile counts as closed.
            let Ok(text) = files.read(&format!("{folder}/{number}")) else { continue };
            let inode = text.lines().find_map(|line| line.strip_prefix("ino:")?.trim().parse().ok());
            inodes.insert(inode?);
        }
    }
    Some(inodes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::FakeKernel;

    #[test]
    fn the_inodes_of_all_processes_are_found_and_older_kernels_show_none() {
        let kernel = FakeKernel::new()
            .file("proc/7/fdinfo/0", "pos:\t0\nflags:\t02\nmnt_id:\t24\nino:\t12\n")
            .file("proc/8/fdinfo/3", "pos:\t5\nino:\t13\n");
        assert_eq!(open_inodes(&kernel, [7, 8, 9].map(Pid)), Some(BTreeSet::from([12, 13])));
        let old = FakeKernel::new().file("proc/7/fdinfo/0", "pos:\t0\nmnt_id:\t24\n");
        assert_eq!(open_inodes(&old, [Pid(7)]), None);
        let many = (0..300).fold(FakeKernel::new(), |all, n| all.file(&format!("proc/7/fdinfo/{n}"), "ino:\t1\n"));
        assert_eq!(open_inodes(&many, [Pid(7)]), None);
    }
}
