//! One row for each system call, with the memory behind each argument.
//!
//! Arguments count from 0. Rows are grouped by purpose, and a test checks that no number is left out. Sizes of structs
//! are those on x86-64; their sources are section 2 of the manual pages and the headers named there.
//!
//! A struct that is read and written is `w`. An array of bytes is `r_bytes` or `w_bytes`. Calls that the kernel no
//! longer has (`uselib`, `nfsservctl`, …) keep their row, or have an empty one if they never did anything on x86-64.

use super::number;
use super::walk::{Count, PATH_BYTES, Part};
use super::{Access, command, control};
use Count::{Int, Long};

/// Struct of `bytes` bytes that is read.
const fn r(argument: usize, bytes: u64) -> Part {
    Part::Fixed { argument, bytes, access: Access::Read }
}

/// Struct of `bytes` bytes that is written.
const fn w(argument: usize, bytes: u64) -> Part {
    Part::Fixed { argument, bytes, access: Access::Write }
}

/// Bytes that are read.
const fn r_bytes(argument: usize, count: Count) -> Part {
    r_array(argument, count, 1)
}

/// Bytes that are written.
const fn w_bytes(argument: usize, count: Count) -> Part {
    w_array(argument, count, 1)
}

const fn r_array(argument: usize, count: Count, each: u64) -> Part {
    Part::Array { argument, count, each, access: Access::Read }
}

const fn w_array(argument: usize, count: Count, each: u64) -> Part {
    Part::Array { argument, count, each, access: Access::Write }
}

const fn path(argument: usize) -> Part {
    Part::Text { argument, bytes_max: PATH_BYTES }
}

const fn text(argument: usize, bytes_max: u64) -> Part {
    Part::Text { argument, bytes_max }
}

const fn r_vectors(argument: usize, count: usize) -> Part {
    Part::Vectors { argument, count, access: Access::Read }
}

const fn w_vectors(argument: usize, count: usize) -> Part {
    Part::Vectors { argument, count, access: Access::Write }
}

/// A socket's address that is written, and its length, which is replaced.
const fn socket_address(argument: usize, length: usize) -> Part {
    Part::Measured { argument, length, bytes_max: 128 }
}

const STAT: u64 = 144;
const STATFS: u64 = 120;
const TIMESPEC: u64 = 16;
const TIMEVAL: u64 = 16;
/// Two `timespec` or `timeval`.
const TIMES: u64 = 32;
const RUSAGE: u64 = 144;
const SIGINFO: u64 = 128;
const SIGACTION: u64 = 32;
const SIGNAL_SET: u64 = 8;
const TIMEX: u64 = 208;
const XATTR_NAME: u64 = 256;

macro_rules! rows {
    ($($($number:ident)|+ : [$($part:expr),* $(,)?];)*) => {
        /// Memory behind the arguments of a call. Empty: none; `None`: no such call.
        pub(super) fn row(number: u32) -> Option<&'static [Part]> {
            match number {
                $($(number::$number)|+ => {
                    const PARTS: &[Part] = &[$($part),*];
                    Some(PARTS)
                })*
                _ => None,
            }
        }
    };
}

rows! {
    // Reading and writing.
    READ: [w_bytes(1, Long(2))];
    WRITE: [r_bytes(1, Long(2))];
    PREAD64: [w_bytes(1, Long(2))];
    PWRITE64: [r_bytes(1, Long(2))];
    READV | PREADV | PREADV2: [w_vectors(1, 2)];
    WRITEV | PWRITEV | PWRITEV2: [r_vectors(1, 2)];
    // The direction depends on the pipe's end.
    VMSPLICE: [w_vectors(1, 2)];
    SENDFILE: [w(2, 8)];
    SPLICE | COPY_FILE_RANGE: [w(1, 8), w(3, 8)];
    // Vectors of another process; if that is this one, they are buffers as well.
    PROCESS_VM_READV | PROCESS_VM_WRITEV: [Part::Own(control::process_vm)];
    LSEEK | CLOSE | CLOSE_RANGE | DUP | DUP2 | DUP3 | FLOCK | FSYNC | FDATASYNC | FTRUNCATE | SYNC | SYNCFS
        | SYNC_FILE_RANGE | FALLOCATE | FADVISE64 | READAHEAD | TEE: [];
    FCNTL: [Part::Own(control::fcntl)];
    IOCTL: [Part::Own(control::ioctl)];

    // Waiting for descriptors. poll writes the events, select the sets and the time left.
    POLL: [w_array(0, Int(1), 8)];
    PPOLL: [w_array(0, Int(1), 8), w(2, TIMESPEC), r(3, SIGNAL_SET)];
    SELECT: [
        Part::Bits { argument: 1, count: Int(0), access: Access::Write },
        Part::Bits { argument: 2, count: Int(0), access: Access::Write },
        Part::Bits { argument: 3, count: Int(0), access: Access::Write },
        w(4, TIMEVAL),
    ];
    PSELECT6: [
        Part::Bits { argument: 1, count: Int(0), access: Access::Write },
        Part::Bits { argument: 2, count: Int(0), access: Access::Write },
        Part::Bits { argument: 3, count: Int(0), access: Access::Write },
        w(4, TIMESPEC),
        Part::Own(control::set_behind_argument_5),
    ];
    EPOLL_CREATE | EPOLL_CREATE1 | EPOLL_CTL_OLD | EPOLL_WAIT_OLD: [];
    EPOLL_CTL: [r(3, 12)];
    EPOLL_WAIT: [w_array(1, Int(2), 12)];
    EPOLL_PWAIT: [w_array(1, Int(2), 12), r(4, SIGNAL_SET)];
    EPOLL_PWAIT2: [w_array(1, Int(2), 12), r(3, TIMESPEC), r(4, SIGNAL_SET)];
    EVENTFD | EVENTFD2 | TIMERFD_CREATE | INOTIFY_INIT | INOTIFY_INIT1 | INOTIFY_RM_WATCH | FANOTIFY_INIT: [];
    INOTIFY_ADD_WATCH: [path(1)];
    FANOTIFY_MARK: [path(4)];
    PIPE | PIPE2: [w(0, 8)];
    // Refused by `kind`; the rows are for the memory that they would touch at once.
    IO_SETUP: [w(0, 8)];
    IO_DESTROY | IO_URING_ENTER: [];
    IO_GETEVENTS: [w_array(3, Long(2), 32), r(4, TIMESPEC)];
    IO_PGETEVENTS: [w_array(3, Long(2), 32), r(4, TIMESPEC), Part::Own(control::set_behind_argument_5)];
    IO_SUBMIT: [r_array(2, Long(1), 8)];
    IO_CANCEL: [r(1, 64), w(2, 32)];
    IO_URING_SETUP: [w(1, 120)];
    IO_URING_REGISTER: [w_array(2, Int(3), 64)];

    // Sockets.
    SOCKET | LISTEN | SHUTDOWN: [];
    SOCKETPAIR: [w(3, 8)];
    BIND | CONNECT: [r_bytes(1, Int(2))];
    ACCEPT | ACCEPT4 | GETSOCKNAME | GETPEERNAME: [socket_address(1, 2)];
    SENDTO: [r_bytes(1, Long(2)), r_bytes(4, Int(5))];
    RECVFROM: [w_bytes(1, Long(2)), socket_address(4, 5)];
    SENDMSG: [Part::Message { argument: 1, access: Access::Read }];
    RECVMSG: [Part::Message { argument: 1, access: Access::Write }];
    SENDMMSG: [Part::Messages { argument: 1, count: 2, access: Access::Read }];
    RECVMMSG: [Part::Messages { argument: 1, count: 2, access: Access::Write }, w(4, TIMESPEC)];
    SETSOCKOPT: [r_bytes(3, Int(4)), Part::Own(control::socket_filter)];
    GETSOCKOPT: [Part::Measured { argument: 3, length: 4, bytes_max: 1 << 20 }, Part::Own(control::socket_answer)];

    // Files by name.
    OPEN | CREAT | ACCESS | CHDIR | MKDIR | RMDIR | UNLINK | CHMOD | CHOWN | LCHOWN | TRUNCATE | MKNOD | CHROOT | UMOUNT2
        | SWAPON | SWAPOFF | ACCT | USELIB: [path(0)];
    RENAME | LINK | SYMLINK | PIVOT_ROOT: [path(0), path(1)];
    OPENAT | MKDIRAT | MKNODAT | FCHOWNAT | UNLINKAT | FCHMODAT | FCHMODAT2 | FACCESSAT | FACCESSAT2 | OPEN_TREE | FSPICK:
        [path(1)];
    OPENAT2: [path(1), r_bytes(2, Long(3))];
    RENAMEAT | RENAMEAT2 | LINKAT | MOVE_MOUNT: [path(1), path(3)];
    SYMLINKAT: [path(0), path(2)];
    READLINK: [path(0), w_bytes(1, Int(2))];
    READLINKAT: [path(1), w_bytes(2, Int(3))];
    STAT | LSTAT: [path(0), w(1, STAT)];
    FSTAT: [w(1, STAT)];
    NEWFSTATAT: [path(1), w(2, STAT)];
    STATX: [path(1), w(4, 256)];
    STATFS: [path(0), w(1, STATFS)];
    FSTATFS: [w(1, STATFS)];
    USTAT: [w(1, 32)];
    UTIME: [path(0), r(1, 16)];
    UTIMES: [path(0), r(1, TIMES)];
    FUTIMESAT | UTIMENSAT: [path(1), r(2, TIMES)];
    GETCWD: [w_bytes(0, Long(1))];
    GETDENTS | GETDENTS64: [w_bytes(1, Int(2))];
    FCHDIR | FCHMOD | FCHOWN | UMASK: [];
    NAME_TO_HANDLE_AT: [path(1), Part::Own(control::file_handle), w(3, 8)];
    OPEN_BY_HANDLE_AT: [Part::Own(control::file_handle_opened)];
    FILE_GETATTR: [path(1), w_bytes(2, Long(3))];
    FILE_SETATTR: [path(1), r_bytes(2, Long(3))];
    CACHESTAT: [r(1, 16), w(2, 40)];
    LOOKUP_DCOOKIE: [w_bytes(1, Long(2))];

    // Extended attributes.
    SETXATTR | LSETXATTR: [path(0), text(1, XATTR_NAME), r_bytes(2, Long(3))];
    FSETXATTR: [text(1, XATTR_NAME), r_bytes(2, Long(3))];
    GETXATTR | LGETXATTR: [path(0), text(1, XATTR_NAME), w_bytes(2, Long(3))];
    FGETXATTR: [text(1, XATTR_NAME), w_bytes(2, Long(3))];
    LISTXATTR | LLISTXATTR: [path(0), w_bytes(1, Long(2))];
    FLISTXATTR: [w_bytes(1, Long(2))];
    REMOVEXATTR | LREMOVEXATTR: [path(0), text(1, XATTR_NAME)];
    FREMOVEXATTR: [text(1, XATTR_NAME)];
    SETXATTRAT: [path(1), text(3, XATTR_NAME), r_bytes(4, Long(5)), Part::Own(control::xattr_read)];
    GETXATTRAT: [path(1), text(3, XATTR_NAME), r_bytes(4, Long(5)), Part::Own(control::xattr_written)];
    LISTXATTRAT: [path(1), w_bytes(3, Long(4))];
    REMOVEXATTRAT: [path(1), text(3, XATTR_NAME)];

    // File systems. mount copies a whole page of options, as far as it is present.
    MOUNT: [path(0), path(1), path(2), r(4, 4096)];
    MOUNT_SETATTR: [path(1), r_bytes(3, Long(4))];
    OPEN_TREE_ATTR: [path(1), r_bytes(3, Long(4))];
    FSOPEN: [path(0)];
    FSMOUNT: [];
    FSCONFIG: [text(2, 256), Part::Own(control::fsconfig)];
    STATMOUNT: [Part::Sized { argument: 0, at: 0, otherwise: 24 }, w_bytes(1, Long(2))];
    LISTMOUNT | LISTNS: [Part::Sized { argument: 0, at: 0, otherwise: 24 }, w_array(1, Long(2), 8)];
    QUOTACTL: [path(1), Part::Own(control::quota)];
    QUOTACTL_FD: [Part::Own(control::quota)];
    SYSFS: [Part::Own(control::sysfs)];
    NFSSERVCTL: [];

    // Memory. The pager itself acts on changes (`kind`); mincore writes one byte for each page.
    MMAP | MPROTECT | MUNMAP | BRK | MREMAP | MSYNC | MADVISE | MLOCK | MLOCK2 | MUNLOCK | MLOCKALL | MUNLOCKALL
        | REMAP_FILE_PAGES | PKEY_MPROTECT | PKEY_ALLOC | PKEY_FREE | SHMGET | SHMAT | SHMDT | MAP_SHADOW_STACK | MSEAL
        | USERFAULTFD | MEMFD_SECRET | PROCESS_MRELEASE | MEMBARRIER | SET_MEMPOLICY_HOME_NODE: [];
    MINCORE: [Part::Own(control::mincore)];
    // Only the vectors: the memory that they name is not touched.
    PROCESS_MADVISE: [r_array(1, Long(2), 16)];
    MEMFD_CREATE: [text(0, 256)];
    SHMCTL: [Part::Own(command::shmctl)];
    MBIND: [Part::Bits { argument: 3, count: Long(4), access: Access::Read }];
    SET_MEMPOLICY: [Part::Bits { argument: 1, count: Long(2), access: Access::Read }];
    GET_MEMPOLICY: [
        w(0, 4),
        Part::Bits { argument: 1, count: Long(2), access: Access::Write },
        Part::Own(control::policy_of_address),
    ];
    MIGRATE_PAGES: [
        Part::Bits { argument: 2, count: Long(1), access: Access::Read },
        Part::Bits { argument: 3, count: Long(1), access: Access::Read },
    ];
    MOVE_PAGES: [r_array(2, Long(1), 8), r_array(3, Long(1), 4), w_array(4, Long(1), 4)];

    // Processes and threads.
    FORK | VFORK | EXIT | EXIT_GROUP | GETPID | GETPPID | GETTID | GETUID | GETEUID | GETGID | GETEGID | SETUID | SETGID
        | SETREUID | SETREGID | SETRESUID | SETRESGID | SETFSUID | SETFSGID | SETPGID | GETPGID | GETPGRP | SETSID | GETSID
        | GETPRIORITY | SETPRIORITY | PERSONALITY | UNSHARE | SETNS | KCMP | VHANGUP | IOPL | IOPERM | SCHED_YIELD
        | SCHED_GETSCHEDULER | SCHED_GET_PRIORITY_MAX | SCHED_GET_PRIORITY_MIN | IOPRIO_SET | IOPRIO_GET | PIDFD_OPEN
        | PIDFD_GETFD | RSEQ_SLICE_YIELD: [];
    CLONE: [Part::Own(control::clone)];
    CLONE3: [Part::Own(control::clone3)];
    EXECVE: [path(0), Part::Texts { argument: 1 }, Part::Texts { argument: 2 }];
    EXECVEAT: [path(1), Part::Texts { argument: 2 }, Part::Texts { argument: 3 }];
    WAIT4: [w(1, 4), w(3, RUSAGE)];
    WAITID: [w(2, SIGINFO), w(4, RUSAGE)];
    GETRESUID | GETRESGID: [w(0, 4), w(1, 4), w(2, 4)];
    GETGROUPS: [w_array(1, Int(0), 4)];
    SETGROUPS: [r_array(1, Int(0), 4)];
    // A version unknown to the kernel is replaced. Two halves of the sets from version 2 on.
    CAPGET: [w(0, 8), w(1, 24)];
    CAPSET: [w(0, 8), r(1, 24)];
    GETRLIMIT: [w(1, 16)];
    SETRLIMIT: [r(1, 16)];
    PRLIMIT64: [r(2, 16), w(3, 16)];
    GETRUSAGE: [w(1, RUSAGE)];
    TIMES: [w(0, 32)];
    // Written when the thread ends, with a wakeup there.
    SET_TID_ADDRESS: [Part::Kept { argument: 0, bytes: 4 }];
    // Read when the thread ends; the locks that it names, too, but these belong to the program's data.
    SET_ROBUST_LIST: [Part::Kept { argument: 0, bytes: 24 }];
    GET_ROBUST_LIST: [w(1, 8), w(2, 8)];
    // Written whenever the thread is scheduled. A missing page would end the program.
    RSEQ: [Part::Own(control::rseq)];
    PRCTL: [Part::Own(command::prctl)];
    ARCH_PRCTL: [Part::Own(command::arch_prctl)];
    PTRACE: [Part::Own(command::ptrace)];
    SET_THREAD_AREA | GET_THREAD_AREA: [w(0, 16)];
    MODIFY_LDT: [w_bytes(1, Long(2))];
    SECCOMP: [Part::Own(control::seccomp)];
    LANDLOCK_CREATE_RULESET: [r_bytes(0, Long(1))];
    LANDLOCK_ADD_RULE: [r(2, 16)];
    LANDLOCK_RESTRICT_SELF: [];
    LSM_GET_SELF_ATTR: [Part::Measured { argument: 1, length: 2, bytes_max: 1 << 20 }];
    LSM_SET_SELF_ATTR: [r_bytes(1, Int(2))];
    LSM_LIST_MODULES: [Part::Measured { argument: 0, length: 1, bytes_max: 1 << 20 }];

    // Scheduling.
    SCHED_SETPARAM: [r(1, 4)];
    SCHED_GETPARAM: [w(1, 4)];
    SCHED_SETSCHEDULER: [r(2, 4)];
    SCHED_RR_GET_INTERVAL: [w(1, TIMESPEC)];
    SCHED_SETAFFINITY: [r_bytes(2, Int(1))];
    SCHED_GETAFFINITY: [w_bytes(2, Int(1))];
    SCHED_SETATTR: [Part::Sized { argument: 1, at: 0, otherwise: 48 }];
    SCHED_GETATTR: [w_bytes(1, Int(2))];
    GETCPU: [w(0, 4), w(1, 4)];

    // Signals.
    RT_SIGACTION: [r(1, SIGACTION), w(2, SIGACTION)];
    RT_SIGPROCMASK: [r(1, SIGNAL_SET), w(2, SIGNAL_SET)];
    RT_SIGPENDING: [w(0, SIGNAL_SET)];
    RT_SIGSUSPEND: [r(0, SIGNAL_SET)];
    RT_SIGTIMEDWAIT: [r(0, SIGNAL_SET), w(1, SIGINFO), r(2, TIMESPEC)];
    RT_SIGQUEUEINFO | PIDFD_SEND_SIGNAL: [r(2, SIGINFO)];
    RT_TGSIGQUEUEINFO: [r(3, SIGINFO)];
    SIGALTSTACK: [r(0, 24), w(1, 24), Part::Own(control::signal_stack)];
    SIGNALFD | SIGNALFD4: [r(1, SIGNAL_SET)];
    // It reads the frame on the stack, which no argument names.
    RT_SIGRETURN: [];
    KILL | TKILL | TGKILL | PAUSE | ALARM | RESTART_SYSCALL: [];

    // Time.
    TIME: [w(0, 8)];
    GETTIMEOFDAY: [w(0, TIMEVAL), w(1, 8)];
    SETTIMEOFDAY: [r(0, TIMEVAL), r(1, 8)];
    CLOCK_GETTIME | CLOCK_GETRES: [w(1, TIMESPEC)];
    CLOCK_SETTIME: [r(1, TIMESPEC)];
    NANOSLEEP: [r(0, TIMESPEC), w(1, TIMESPEC)];
    CLOCK_NANOSLEEP: [r(2, TIMESPEC), w(3, TIMESPEC)];
    ADJTIMEX: [w(0, TIMEX)];
    CLOCK_ADJTIME: [w(1, TIMEX)];
    GETITIMER: [w(1, TIMES)];
    SETITIMER: [r(1, TIMES), w(2, TIMES)];
    TIMER_CREATE: [r(1, 64), w(2, 4)];
    TIMER_SETTIME | TIMERFD_SETTIME: [r(2, TIMES), w(3, TIMES)];
    TIMER_GETTIME | TIMERFD_GETTIME: [w(1, TIMES)];
    TIMER_GETOVERRUN | TIMER_DELETE: [];

    // Waiting on words in memory.
    FUTEX: [Part::Own(control::futex)];
    FUTEX_WAITV: [Part::Own(control::futex_waiters), r(3, TIMESPEC)];
    FUTEX_WAKE: [r(0, 8)];
    FUTEX_WAIT: [r(0, 8), r(4, TIMESPEC)];
    FUTEX_REQUEUE: [Part::Own(control::futex_two_waiters)];

    // Messages, semaphores, keys.
    SEMGET | MSGGET: [];
    SEMOP: [r_array(1, Int(2), 6)];
    SEMTIMEDOP: [r_array(1, Int(2), 6), r(3, TIMESPEC)];
    SEMCTL: [Part::Own(command::semctl)];
    MSGSND: [Part::Own(control::message_sent)];
    MSGRCV: [Part::Own(control::message_received)];
    MSGCTL: [Part::Own(command::msgctl)];
    MQ_OPEN: [path(0), r(3, 64)];
    MQ_UNLINK: [path(0)];
    MQ_TIMEDSEND: [r_bytes(1, Long(2)), r(4, TIMESPEC)];
    MQ_TIMEDRECEIVE: [w_bytes(1, Long(2)), w(3, 4), r(4, TIMESPEC)];
    MQ_NOTIFY: [r(1, 64), Part::Own(control::cookie)];
    MQ_GETSETATTR: [r(1, 64), w(2, 64)];
    ADD_KEY: [text(0, 32), text(1, 4096), r_bytes(2, Long(3))];
    REQUEST_KEY: [text(0, 32), text(1, 4096), text(2, 4096)];
    KEYCTL: [Part::Own(command::keyctl)];

    // The machine.
    UNAME: [w(0, 390)];
    SYSINFO: [w(0, 112)];
    SYSLOG: [w_bytes(1, Int(2))];
    SETHOSTNAME | SETDOMAINNAME: [r_bytes(0, Int(1))];
    GETRANDOM: [w_bytes(0, Long(1))];
    REBOOT: [text(3, 256)];
    INIT_MODULE: [r_bytes(0, Long(1)), text(2, 4096)];
    FINIT_MODULE: [text(1, 4096)];
    DELETE_MODULE: [text(0, 64)];
    KEXEC_LOAD: [Part::Own(control::kexec_segments)];
    KEXEC_FILE_LOAD: [r_bytes(3, Long(2))];
    BPF: [Part::Own(command::bpf)];
    // For a size that is too large the kernel writes its own.
    PERF_EVENT_OPEN: [Part::Sized { argument: 0, at: 4, otherwise: 64 }];
    // Called by instructions that the kernel wrote into the program's text; their memory is the stack.
    URETPROBE | UPROBE: [];
    SYSCTL | CREATE_MODULE | GET_KERNEL_SYMS | QUERY_MODULE | GETPMSG | PUTPMSG | AFS_SYSCALL | TUXCALL | SECURITY | VSERVER:
        [];
}
