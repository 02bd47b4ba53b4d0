//! Confinement of the calling process, for good: no new privileges, few resources, few system calls (`seccomp(2)`).
//!
//! The rest suits a process of one thread that answers on sockets it was given: it reads, writes, accepts and waits. It
//! opens no file, makes no socket, starts no process, and runs no memory that it wrote. Another call fails with EPERM, and
//! does not kill: a new version of the C library may try one, and goes on without.
//!
//! Side effects: as said; on the calling thread, so it must be the only one. Since: Linux 3.17, CONFIG_SECCOMP_FILTER.
//!
//! Truth: seccomp(2), prctl(2), setrlimit(2).

use std::collections::BTreeMap;
use std::io;

use rustix::process::{Resource, Rlimit, setrlimit};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    apply_filter,
};
use units::Bytes;

/// Allowed calls.
const CALLS: &[i64] = &[
    libc::SYS_accept4,
    libc::SYS_brk,
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_close,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_epoll_wait,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_fcntl,
    libc::SYS_futex,
    libc::SYS_getpeername,
    libc::SYS_getpid,
    libc::SYS_getrandom,
    libc::SYS_getsockname,
    libc::SYS_getsockopt,
    libc::SYS_gettid,
    libc::SYS_madvise,
    libc::SYS_mremap,
    libc::SYS_munmap,
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_recvfrom,
    libc::SYS_restart_syscall,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sched_yield,
    libc::SYS_sendmsg,
    libc::SYS_sendto,
    libc::SYS_setsockopt,
    libc::SYS_shutdown,
    libc::SYS_sigaltstack,
    libc::SYS_tgkill,
    libc::SYS_write,
    libc::SYS_writev,
];

/// Allowed without PROT_EXEC, their third argument.
const MAPPING_CALLS: [i64; 2] = [libc::SYS_mmap, libc::SYS_mprotect];

/// Confines this process.
///
/// # Errors
/// The kernel's error: it has no filters, or a limit is lower already.
pub fn confine(descriptors: u64, memory: Bytes) -> io::Result<()> {
    for (resource, most) in [(Resource::Nofile, descriptors), (Resource::As, memory.0), (Resource::Core, 0)] {
        setrlimit(resource, Rlimit { current: Some(most), maximum: Some(most) })?;
    }
    rustix::thread::set_no_new_privs(true)?;
    apply_filter(&filter().map_err(io::Error::other)?).map_err(io::Error::other)
}

fn filter() -> Result<BpfProgram, seccompiler::BackendError> {
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = CALLS.iter().map(|call| (*call, Vec::new())).collect();
    for call in MAPPING_CALLS {
        let runs = SeccompCmpOp::MaskedEq(u64::from(libc::PROT_EXEC.unsigned_abs()));
        let condition = SeccompCondition::new(2, SeccompCmpArgLen::Dword, runs, 0)?;
        rules.insert(call, vec![SeccompRule::new(vec![condition])?]);
    }
    let refused = SeccompAction::Errno(libc::EPERM.unsigned_abs());
    SeccompFilter::new(rules, refused, SeccompAction::Allow, std::env::consts::ARCH.try_into()?)?.try_into()
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Write;
    use std::net::TcpListener;
    use std::os::fd::AsFd;
    use std::process::Command;
    use std::time::{Duration, Instant};

    use super::*;
    use crate::forked::Forked;

    #[test]
    fn a_confined_process_reads_and_writes_and_nothing_else() {
        let null = File::create("/dev/null").unwrap();
        let is_refused = |error: io::Error| error.raw_os_error() == Some(libc::EPERM);
        let mut child = Forked::start(c"masu-test", null.as_fd(), |null, send| {
            let confined = confine(64, Bytes::gib(64)).is_ok();
            let memory = vec![7u8; 1 << 20];
            let answers = [
                confined,
                null.try_clone_to_owned().is_ok_and(|null| File::from(null).write_all(&memory).is_ok()),
                File::open("/dev/null").is_err_and(is_refused),
                TcpListener::bind("127.0.0.1:0").is_err_and(is_refused),
                Command::new("/bin/true").spawn().is_err(),
            ];
            send(&answers.map(u8::from));
        })
        .unwrap();
        let mut answers = [0; 5];
        child.read(&mut answers, Instant::now() + Duration::from_secs(20)).unwrap();
        assert_eq!(answers, [1; 5], "confined, writes; opens no file, makes no socket, starts no process");
    }
}
