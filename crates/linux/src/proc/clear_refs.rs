//! `/proc/PID/clear_refs`: clears the accessed bits of a process.
//!
//! After a clear, a page's accessed bit is set again only by a page walk of the processor, that is by an access
//! without a translation in the TLB. Reading the bits back is `access`; `Referenced:` in `smaps` counts the same
//! bits.
//!
//! Cost: walks the page tables of the whole process with its mmap lock held for reading. A thread of the program that
//! maps or unmaps memory waits that long; page faults do not. No TLB is flushed (1–3).
//! Side effect: 1–3 clear the bits that reclaim also reads, so the kernel sees colder memory until they are set
//! again.
//!
//! Since: 1–3 Linux 2.6.32, 4 Linux 3.11, 5 Linux 4.0; needs CONFIG_PROC_PAGE_MONITOR. Without CONFIG_MEM_SOFT_DIRTY
//! writing 4 succeeds and does nothing, so ask `probe` first.
//!
//! Truth: proc_pid_clear_refs(5); `clear_refs_write` in fs/proc/task_mmu.c.

use crate::{Error, KernelFiles, Pid};

/// Bits to clear. The discriminant is the number that the kernel expects, written in decimal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forget {
    /// Accessed bits of every page.
    AllPages = 1,
    /// Accessed bits of anonymous memory.
    AnonPages = 2,
    /// Accessed bits of file pages.
    FilePages = 3,
    /// Soft-dirty bits: the first write to each page faults afterwards.
    SoftDirty = 4,
    /// Peak of the resident set (`VmHWM`).
    PeakRss = 5,
}

/// Clears the chosen bits on every page of `pid`.
///
/// # Errors
/// `Gone` if the process ended (callers usually skip it), `Denied` if it belongs to another user.
pub fn clear(files: &impl KernelFiles, pid: Pid, forget: Forget) -> Result<(), Error> {
    let path = pid.file("clear_refs");
    let number = forget as u8;
    files
        .write(&path, &number.to_string())
        .map_err(|errno| Error::of_process(format!("write \"{number}\" to"), format!("/{path}"), errno))
}

#[cfg(test)]
mod tests {
    use rustix::io::Errno;

    use super::*;
    use crate::fake::FakeKernel;

    #[test]
    fn forgetting_all_pages_writes_a_one_and_nothing_else() {
        let kernel = FakeKernel::new().file("proc/42/clear_refs", "");
        clear(&kernel, Pid(42), Forget::AllPages).unwrap();
        assert_eq!(kernel.writes(), ["proc/42/clear_refs <- 1"]);
    }

    #[test]
    fn a_process_that_ended_is_gone_and_a_foreign_one_denied() {
        let kernel = FakeKernel::new().refusing("proc/43/clear_refs", Errno::ACCESS);
        assert!(clear(&kernel, Pid(42), Forget::AllPages).unwrap_err().is_gone());
        let denied = clear(&kernel, Pid(43), Forget::AllPages).unwrap_err();
        assert_eq!(denied.to_string(), "cannot write \"1\" to /proc/43/clear_refs: permission denied (EACCES)");
    }
}
