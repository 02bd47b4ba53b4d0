//! `/proc/PID/fdinfo`: the FUSE file systems that a process serves.
//!
//! A FUSE server holds `/dev/fuse` open. Since Linux 6.16 the kernel shows the connection of such a descriptor
//! (`fuse_connection`): the device number of its file system. Before, only that it is one.
//!
//! Cost: a small file for each descriptor of the process. Side effects: none; no server is asked.
//!
//! Since: Linux 2.6.22. Needs ptrace access to the process. Truth: `fuse_dev_show_fdinfo` in fs/fuse/dev.c.

use crate::{KernelFiles, Pid};

/// Maximum number of descriptors that are looked at.
const DESCRIPTORS_MAX: usize = 4096;

/// File systems that a process serves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Served {
    /// Their devices.
    pub devices: Vec<(u32, u32)>,
    /// It holds `/dev/fuse`, and the kernel does not say for which file system.
    pub others: bool,
}

/// File systems that `pid` serves; none if it has ended.
pub fn served_by(files: &impl KernelFiles, pid: Pid) -> Served {
    let mut served = Served::default();
    let folder = pid.file("fdinfo");
    for number in files.list(&folder).unwrap_or_default().into_iter().take(DESCRIPTORS_MAX) {
        let Ok(text) = files.read(&format!("{folder}/{number}")) else { continue };
        if let Some(device) = text.lines().find_map(connection) {
            served.devices.push(device);
        } else if is_fuse_device(pid, &number) {
            served.others = true;
        }
    }
    served
}

fn connection(line: &str) -> Option<(u32, u32)> {
    let number: u32 = line.strip_prefix("fuse_connection:")?.trim().parse().ok()?;
    Some((number >> 20, number & 0xf_ffff))
}

fn is_fuse_device(pid: Pid, number: &str) -> bool {
    let link = std::fs::read_link(format!("/{}", pid.file(&format!("fd/{number}"))));
    link.is_ok_and(|link| link.as_os_str() == "/dev/fuse")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::FakeKernel;

    #[test]
    fn a_connection_is_the_device_of_its_file_system() {
        let kernel = FakeKernel::new()
            .file("proc/2147483647/fdinfo/0", "pos:\t0\nflags:\t02\nmnt_id:\t24\n")
            .file("proc/2147483647/fdinfo/5", "pos:\t0\nfuse_connection:\t45\n")
            .file("proc/2147483647/fdinfo/6", "pos:\t0\nfuse_connection:\t8388609\n")
            .file("proc/2147483647/fdinfo/7", "fuse_connection:\tx\n");
        let served = served_by(&kernel, Pid(i32::MAX));
        assert_eq!(served, Served { devices: vec![(0, 45), (8, 1)], others: false });
        assert_eq!(served_by(&FakeKernel::new(), Pid(i32::MAX)), Served::default(), "it has ended");
    }
}
