//! `/proc`: list of the processes.
//!
//! Owner, memory and state of each are in `status.rs`. The list is not a snapshot: a process that starts or ends
//! while it is read may be missing, and a listed one may be gone before it is read.
//!
//! Cost: some 2 µs a process. Side effects: none.
//!
//! Since: always. Mounted with hidepid, only one's own.
//!
//! Truth: proc(5).

use crate::{Error, KernelFiles, Pid};

/// Processes, by rising id, including kernel threads.
///
/// # Errors
/// `Unsupported` if /proc is not mounted.
pub fn processes(files: &impl KernelFiles) -> Result<Vec<Pid>, Error> {
    let names = files.list("proc").map_err(|errno| Error::of_host("list", "/proc", errno))?;
    let mut pids: Vec<Pid> = names.iter().filter_map(|name| name.parse().ok()).collect();
    pids.sort_unstable();
    Ok(pids)
}

/// True if a pid namespace hides processes from masu, and gives the others numbers of its own.
pub fn some_are_hidden(files: &impl KernelFiles) -> bool {
    /// Inode of the initial namespace: PROC_PID_INIT_INO in include/linux/proc_ns.h.
    const INITIAL: u64 = 0xEFFF_FFFC;
    files.inode("proc/self/ns/pid").is_ok_and(|inode| inode != INITIAL)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Rooted;
    use crate::fake::FakeKernel;

    #[test]
    fn directories_with_a_number_are_processes() {
        let kernel = FakeKernel::new().file("proc/20/status", "").file("proc/3/status", "").file("proc/self/x", "");
        assert_eq!(processes(&kernel).unwrap(), [Pid(3), Pid(20)]);
    }

    #[test]
    fn without_proc_there_is_an_error_and_no_empty_list() {
        assert!(matches!(processes(&FakeKernel::new()), Err(Error::Unsupported(_))));
    }

    #[test]
    fn we_are_among_them() {
        assert!(processes(&Rooted::host()).unwrap().contains(&Pid::own()));
    }
}
