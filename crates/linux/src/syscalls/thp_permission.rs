//! `prctl(PR_GET_THP_DISABLE)` and `PR_SET_THP_DISABLE`: whether this process may have huge pages, and who forbade them.
//!
//! The flag belongs to the address space; fork and exec pass it on. So a container's runtime, a service manager or a
//! shell forbids huge pages for all that it starts. Another process's flag is in `status.rs` (`THP_enabled:`); it is
//! changed in `injection.rs`.
//!
//! Cost: one system call; the mmap lock of this process for the change. Side effects: those of the flag.
//!
//! Since: Linux 3.15; `PR_THP_DISABLE_EXCEPT_ADVISED` 6.18, with which memory advised by MADV_HUGEPAGE and
//! MADV_COLLAPSE still get huge pages, and `THP_enabled` is 1.
//!
//! Truth: PR_SET_THP_DISABLE(2const); `prctl_set_thp_disable` in kernel/sys.c.

use rustix::io::Errno;

use crate::status::HugePages;
use crate::{KernelFiles, Pid, Untrusted, stat, status};

/// Permission of an address space for huge pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Permission {
    /// Not forbidden.
    Allowed,
    /// Forbidden except where the program advises them (Linux 6.18).
    OnlyAdvised,
    /// Forbidden.
    Forbidden,
}

/// The kernel's `PR_THP_DISABLE_EXCEPT_ADVISED`, shifted into the answer of `PR_GET_THP_DISABLE` as the kernel does.
const ONLY_ADVISED: i32 = 1 << 1;

/// Decodes the answer of `PR_GET_THP_DISABLE`.
fn decode(answer: i32) -> Permission {
    match answer {
        0 => Permission::Allowed,
        answer if answer & ONLY_ADVISED != 0 => Permission::OnlyAdvised,
        _ => Permission::Forbidden,
    }
}

/// Permission of this process.
///
/// # Errors
/// The kernel's answer: a seccomp filter.
pub fn own() -> Result<Permission, Errno> {
    // SAFETY: numbers only.
    let answer = unsafe { libc::prctl(libc::PR_GET_THP_DISABLE, 0, 0, 0, 0) };
    if answer < 0 { Err(last_errno()) } else { Ok(decode(answer)) }
}

/// Allows huge pages in this process, and in all that it starts from now on.
///
/// # Errors
/// The kernel's answer: a seccomp filter.
pub fn allow_own() -> Result<(), Errno> {
    // SAFETY: numbers only.
    let answer = unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, 0, 0, 0, 0) };
    if answer < 0 { Err(last_errno()) } else { Ok(()) }
}

fn last_errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

/// Process that forbade huge pages, as far as the living processes tell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The process itself, a program that ran in it before exec, or an ancestor that has ended.
    Itself,
    /// The oldest of an unbroken line of ancestors for which they are forbidden.
    Ancestor(Pid, Untrusted),
}

/// Longest line of ancestors followed.
const GENERATIONS_MAX: usize = 64;

/// Origin of the prohibition for `pid`: the flag is inherited, so a parent with the same flag had it first, unless it
/// was set in both. Not a snapshot.
pub fn origin(files: &impl KernelFiles, pid: Pid) -> Origin {
    let mut found = Origin::Itself;
    let mut child = pid;
    for _ in 0..GENERATIONS_MAX {
        let Ok(parent) = stat::stat(files, child).map(|stat| stat.parent) else { break };
        match status::status(files, parent) {
            Ok(status) if status.huge_pages == HugePages::Forbidden => found = Origin::Ancestor(parent, status.name),
            _ => break,
        }
        child = parent;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::FakeKernel;

    #[test]
    fn the_answer_has_a_bit_for_the_exception() {
        assert_eq!(decode(0), Permission::Allowed);
        assert_eq!(decode(1), Permission::Forbidden);
        assert_eq!(decode(3), Permission::OnlyAdvised);
    }

    #[test]
    fn the_oldest_of_an_unbroken_line_is_the_origin() {
        let process = |kernel: FakeKernel, pid: i32, parent: i32, thp: u8| {
            let stat = format!("{pid} (p{pid}) S {parent} 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 5 0 0 0\n");
            let status = format!(
                "Name:\tp{pid}\nState:\tS (sleeping)\nTgid:\t{pid}\nUid:\t0\t0\t0\t0\nVmSize:\t1 kB\nTHP_enabled:\t{thp}\n\
                 Threads:\t1\nCapEff:\t0000000000000000\n"
            );
            kernel.file(&format!("proc/{pid}/stat"), &stat).file(&format!("proc/{pid}/status"), &status)
        };
        let line = [(9, 8, 0), (8, 7, 0), (7, 1, 0), (1, 0, 1)];
        let kernel =
            line.into_iter().fold(FakeKernel::new(), |kernel, (pid, parent, thp)| process(kernel, pid, parent, thp));
        assert_eq!(origin(&kernel, Pid(9)), Origin::Ancestor(Pid(7), "p7".into()));
        assert_eq!(origin(&kernel, Pid(7)), Origin::Itself);
        assert_eq!(origin(&kernel, Pid(4)), Origin::Itself, "gone");
    }

    #[test]
    fn this_process_is_known_to_the_kernel_as_to_status() {
        let status = status::status(&crate::Rooted::host(), Pid::own()).unwrap();
        assert_eq!(own().unwrap() == Permission::Forbidden, status.huge_pages == HugePages::Forbidden);
    }
}
