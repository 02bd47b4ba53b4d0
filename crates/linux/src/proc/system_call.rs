//! `/proc/PID/syscall`: the system call that a thread waits in.
//!
//! Cost: one small file. Side effects: none. A hint: the thread may be elsewhere by now.
//!
//! Since: Linux 2.6.27, with CONFIG_HAVE_ARCH_TRACEHOOK. Needs ptrace access (PTRACE_MODE_ATTACH).
//!
//! Truth: proc_pid_syscall(5); `proc_pid_syscall` in fs/proc/base.c.

use rustix::io::Errno;

use crate::{KernelFiles, Pid};

/// A system call by the 64-bit convention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SystemCall {
    /// Its number.
    pub number: i64,
    /// Its arguments.
    pub arguments: [u64; 6],
}

impl SystemCall {
    /// True if a signal in the midst of it ends it with a part done: data go to or come from a pipe, a socket or a
    /// terminal, and more than the first of them is waited for (signal(7), write(2), recv(2)).
    pub fn may_end_in_part(self) -> bool {
        let waits_for_all = |flags: u64| flags & libc::MSG_WAITALL.cast_unsigned() as u64 != 0;
        match self.number {
            libc::SYS_write
            | libc::SYS_writev
            | libc::SYS_pwrite64
            | libc::SYS_pwritev
            | libc::SYS_pwritev2
            | libc::SYS_sendto
            | libc::SYS_sendmsg
            | libc::SYS_sendmmsg
            | libc::SYS_recvmmsg
            | libc::SYS_sendfile
            | libc::SYS_splice
            | libc::SYS_vmsplice
            | libc::SYS_copy_file_range => true,
            libc::SYS_recvfrom => waits_for_all(self.arguments[3]),
            libc::SYS_recvmsg => waits_for_all(self.arguments[2]),
            _ => false,
        }
    }
}

/// System call that a thread waits in. `None` while it runs, or outside of one.
///
/// # Errors
/// The kernel's, such as EACCES and ESRCH.
pub fn system_call(files: &impl KernelFiles, thread: Pid) -> Result<Option<SystemCall>, Errno> {
    Ok(decode(&files.read(&thread.file("syscall"))?))
}

fn decode(line: &str) -> Option<SystemCall> {
    let mut words = line.split_ascii_whitespace();
    let number = words.next()?.parse().ok().filter(|number| *number >= 0)?;
    let mut arguments = [0; 6];
    for argument in &mut arguments {
        *argument = u64::from_str_radix(words.next()?.strip_prefix("0x")?, 16).ok()?;
    }
    Some(SystemCall { number, arguments })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends_in_part(line: &str) -> bool {
        decode(line).unwrap().may_end_in_part()
    }

    #[test]
    fn a_thread_outside_of_a_call_is_in_none() {
        assert_eq!(decode("running\n"), None);
        assert_eq!(decode("-1 0x7ffc0 0x7f0a\n"), None);
        assert_eq!(decode(""), None);
        assert_eq!(decode("1 0x1 0x2\n"), None);
        let write = decode("1 0x4 0x7f00 0x100000 0x0 0x0 0xffffffffffffffff 0x7ffc0 0x7f0a\n");
        assert_eq!(write, Some(SystemCall { number: 1, arguments: [4, 0x7f00, 0x10_0000, 0, 0, u64::MAX] }));
    }

    #[test]
    fn transfers_may_end_in_part_and_waits_may_not() {
        assert!(ends_in_part("1 0x4 0x7f00 0x100000 0x0 0x0 0x0 0x0 0x0"), "write");
        assert!(ends_in_part("45 0x4 0x7f00 0x100000 0x100 0x0 0x0 0x0 0x0"), "recvfrom with MSG_WAITALL");
        assert!(!ends_in_part("45 0x4 0x7f00 0x100000 0x40 0x0 0x0 0x0 0x0"), "recvfrom");
        assert!(ends_in_part("47 0x4 0x7f00 0x100 0x0 0x0 0x0 0x0 0x0"), "recvmsg with MSG_WAITALL");
        for wait in [libc::SYS_read, libc::SYS_futex, libc::SYS_epoll_wait, libc::SYS_nanosleep, libc::SYS_wait4] {
            assert!(!ends_in_part(&format!("{wait} 0x4 0x7f00 0x100000 0x100 0x0 0x0 0x0 0x0")));
        }
    }
}
