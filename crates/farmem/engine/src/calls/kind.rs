//! Duties of the pager for a call, beside mapping in its buffers.
//!
//! Most calls are `Plain`. The others change things that the pager itself uses: the address space, threads and
//! processes, its signals, its descriptors. Some cannot work in a paged program and are refused, with the error that
//! the kernel gives where the call does not exist, so that the program takes its fallback.

use super::{Access, Call, number};

const EINVAL: i32 = 22;
const ENOSYS: i32 = 38;
const EOPNOTSUPP: i32 = 95;

/// Class of a call, by its needs beside its buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// No further need.
    Plain,
    /// Changes or describes the address space: mappings, their rights, residency.
    Memory,
    /// Creates or ends a thread or a process, or replaces the program.
    Process,
    /// Changes the delivery of signals: their handlers, masks or stack.
    Signal(Signal),
    /// Closes or replaces descriptors, and may name one of the pager's.
    Descriptor,
    /// Reads or writes the memory of another process, which may be paged.
    Peer,
    /// Moves data, maybe more than may be local at a time. A regular file may be read and written in parts. For every
    /// other file one call may be one message: then the whole buffer must be present. Where a short count is a valid
    /// answer, only a first part may be requested; `parts::promises_all` tells where it is none.
    Transfer {
        /// Index of the argument with the address of the data or of the vectors.
        address: usize,
        /// Index of the argument with the length: in bytes, or in vectors.
        length: usize,
        /// Whether the address is that of an array of `iovec`.
        vectors: bool,
        /// Access of the kernel to the program's memory.
        access: Access,
        /// Index of the argument with the file offset, which must grow from part to part. `None`: the descriptor has
        /// the offset.
        offset: Option<usize>,
    },
    /// Must not be made.
    Refused {
        /// Error number that the program gets.
        errno: i32,
        /// Refused feature, with its reason.
        refusal: Refusal,
    },
}

/// Features that a paged program cannot have. Each has a counter of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The kernel's threads use the memory at any later time, and no call reports their end.
    IoUring,
    /// Same reason as `IoUring`.
    KernelAio,
    /// The pipe keeps the page itself; after its eviction, the reader would see the next content of its frame.
    Vmsplice,
    /// A filter made for the program does not know the pager's calls and would kill it.
    Seccomp,
    /// Each thread has one, and the pager uses it.
    UserDispatch,
    /// It would be a second pager of the same pages.
    Userfaultfd,
    /// Pointers would have bits that are not address, in every comparison of the pager.
    TaggedAddresses,
    /// Pages are sent after the call.
    ZeroCopy,
    /// Memory that a network card shares for good.
    NetworkCard,
    /// The buffer must be present as a whole, and a part of it would be another message.
    LargeMessage,
    /// The tracer would get the pager's signals, and may keep them from the program.
    TraceMe,
    /// Pages of another paged program that only that program can bring back.
    PeerMemory,
    /// Locked pages would keep their frames, and could not leave for others.
    Lock,
    /// The mapping that is left behind reports its faults to the program, while the pager serves them.
    LeftMapped,
    /// A second process with the same memory would fault on pages that the pager counts for the first.
    SharedMemory,
}

impl Refusal {
    /// All refusals, by their numbers.
    pub const ALL: [Refusal; 15] = [
        Refusal::IoUring,
        Refusal::KernelAio,
        Refusal::Vmsplice,
        Refusal::Seccomp,
        Refusal::UserDispatch,
        Refusal::Userfaultfd,
        Refusal::TaggedAddresses,
        Refusal::ZeroCopy,
        Refusal::NetworkCard,
        Refusal::LargeMessage,
        Refusal::TraceMe,
        Refusal::PeerMemory,
        Refusal::Lock,
        Refusal::LeftMapped,
        Refusal::SharedMemory,
    ];

    /// Name in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Refusal::IoUring => "io_uring",
            Refusal::KernelAio => "asynchronous I/O by the kernel (io_setup)",
            Refusal::Vmsplice => "vmsplice",
            Refusal::Seccomp => "a seccomp filter",
            Refusal::UserDispatch => "Syscall User Dispatch",
            Refusal::Userfaultfd => "userfaultfd",
            Refusal::TaggedAddresses => "tagged addresses",
            Refusal::ZeroCopy => "sending without a copy (SO_ZEROCOPY)",
            Refusal::NetworkCard => "memory shared with a network card (XDP_UMEM_REG)",
            Refusal::LargeMessage => "a message larger than an eighth of local memory",
            Refusal::PeerMemory => "access to another paged program's memory (process_vm_readv, process_vm_writev)",
            Refusal::TraceMe => "tracing by the parent (PTRACE_TRACEME)",
            Refusal::Lock => "locking of memory (mlock, mlock2, mlockall)",
            Refusal::LeftMapped => "moving of pages from a mapping that stays (mremap with MREMAP_DONTUNMAP)",
            Refusal::SharedMemory => "a child process with the same memory (clone with CLONE_VM, without CLONE_VFORK)",
        }
    }

    /// Reason, and the way out where there is one.
    #[must_use]
    pub const fn reason(self) -> &'static str {
        match self {
            Refusal::IoUring | Refusal::KernelAio => {
                "it uses memory after its call; most programs have another way and take it"
            }
            Refusal::Vmsplice => "it leaves the program's pages in a pipe",
            Refusal::Seccomp => "it would stop the pager's own calls; switch the program's sandbox off",
            Refusal::UserDispatch => "the pager uses it",
            Refusal::Userfaultfd => "the pager serves the program's faults; most programs have another way and take it",
            Refusal::TaggedAddresses => "the pager does not understand them",
            Refusal::ZeroCopy => "it uses memory after its call; programs copy instead",
            Refusal::NetworkCard => "it cannot be paged",
            Refusal::LargeMessage => "it must be in memory as a whole; a larger --local lets it through",
            Refusal::PeerMemory => {
                "only that program brings its pages back; libraries copy otherwise, as Open MPI with \
                 --mca btl_vader_single_copy_mechanism emulated"
            }
            Refusal::Lock => "its pages may go to the store; --seal encrypts them there",
            Refusal::LeftMapped => "the pager serves the faults of the mapping; programs copy instead, or do without",
            Refusal::SharedMemory => {
                "its faults are not the pager's; threads, and vfork or posix_spawn for programs, are served"
            }
            Refusal::TraceMe => {
                "its parent would stop it at each of the pager's signals; a program is not paged if it is traced before its exec"
            }
        }
    }
}

/// Calls with signal sets. The pager needs its signals, SIGBUS and SIGSYS, even if the program blocks or handles them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// rt_sigaction: argument 1 points to the new action (its mask is at byte 24), argument 3 is the mask's size.
    Action,
    /// rt_sigprocmask: argument 0 is the operation, 1 points to the set, 2 to the old one, 3 is the size.
    Mask,
    /// Calls whose set replaces the thread's mask until they return.
    MaskDuring {
        /// Index of the argument that points to the set; null keeps the mask.
        set: usize,
        /// Index of the argument with the set's size.
        bytes: usize,
    },
    /// Like `MaskDuring`, but the argument points to a pair: the set's address and its size.
    MaskDuringBehind {
        /// Index of the argument that points to the pair.
        pair: usize,
    },
    /// Takes pending signals of this set: a blocked SIGBUS would be taken away from the pager.
    Takes {
        /// Index of the argument that points to the set.
        set: usize,
        /// Index of the argument with the set's size.
        bytes: usize,
    },
    /// rt_sigpending: argument 0 is written, argument 1 is the size.
    Pending,
    /// sigaltstack: argument 0 points to the new stack, 1 to the old one.
    Stack,
    /// rt_sigreturn: the mask, the registers and the signal stack come from the frame on the stack.
    Return,
}

/// Class of a call.
#[must_use]
pub fn kind(call: Call) -> Kind {
    use number as n;
    match call.number {
        n::MMAP | n::MUNMAP | n::MREMAP | n::MPROTECT | n::PKEY_MPROTECT | n::BRK | n::REMAP_FILE_PAGES => Kind::Memory,
        n::MADVISE | n::MSYNC | n::MLOCK | n::MLOCK2 | n::MUNLOCK | n::MLOCKALL | n::MUNLOCKALL | n::MSEAL => {
            Kind::Memory
        }
        // The pager knows residency better: a stored page belongs to the program, and is missing.
        n::MINCORE => Kind::Memory,
        // On another process it does not concern the pager. Only the pager can ask whether the descriptor means this
        // process.
        n::PROCESS_MADVISE => Kind::Memory,
        // Place and remove mappings as mmap and munmap do.
        n::SHMAT | n::SHMDT | n::MAP_SHADOW_STACK | n::USELIB => Kind::Memory,
        // Split mappings, and ask for the nodes of pages.
        n::MBIND | n::SET_MEMPOLICY_HOME_NODE | n::GET_MEMPOLICY => Kind::Memory,
        // Allowed: the program may serve its own mappings. They must not be paged then.
        n::USERFAULTFD => Kind::Memory,

        n::CLONE | n::CLONE3 | n::FORK | n::VFORK | n::EXECVE | n::EXECVEAT | n::EXIT | n::EXIT_GROUP => Kind::Process,

        n::RT_SIGACTION => Kind::Signal(Signal::Action),
        n::RT_SIGPROCMASK => Kind::Signal(Signal::Mask),
        n::RT_SIGSUSPEND => Kind::Signal(Signal::MaskDuring { set: 0, bytes: 1 }),
        n::PPOLL => Kind::Signal(Signal::MaskDuring { set: 3, bytes: 4 }),
        n::EPOLL_PWAIT | n::EPOLL_PWAIT2 => Kind::Signal(Signal::MaskDuring { set: 4, bytes: 5 }),
        n::PSELECT6 => Kind::Signal(Signal::MaskDuringBehind { pair: 5 }),
        n::RT_SIGTIMEDWAIT => Kind::Signal(Signal::Takes { set: 0, bytes: 3 }),
        n::SIGNALFD | n::SIGNALFD4 => Kind::Signal(Signal::Takes { set: 1, bytes: 2 }),
        n::RT_SIGPENDING => Kind::Signal(Signal::Pending),
        n::SIGALTSTACK => Kind::Signal(Signal::Stack),
        n::RT_SIGRETURN => Kind::Signal(Signal::Return),

        n::CLOSE | n::CLOSE_RANGE | n::DUP2 | n::DUP3 => Kind::Descriptor,
        // F_DUPFD and F_DUPFD_CLOEXEC can ask for a descriptor from one of the pager's numbers on.
        n::FCNTL if matches!(call.int(1), 0 | 1030) => Kind::Descriptor,

        n::PROCESS_VM_READV | n::PROCESS_VM_WRITEV => Kind::Peer,
        // PTRACE_PEEKTEXT, PTRACE_PEEKDATA.
        n::PTRACE if matches!(call.arguments[0], 1 | 2) => Kind::Peer,

        n::READ | n::RECVFROM => transfer(1, 2, Access::Write),
        n::WRITE | n::SENDTO => transfer(1, 2, Access::Read),
        n::GETRANDOM => transfer(0, 1, Access::Write),
        n::PREAD64 => at_offset(transfer(1, 2, Access::Write)),
        n::PWRITE64 => at_offset(transfer(1, 2, Access::Read)),
        n::READV => by_vectors(transfer(1, 2, Access::Write)),
        n::WRITEV => by_vectors(transfer(1, 2, Access::Read)),
        n::PREADV => by_vectors(at_offset(transfer(1, 2, Access::Write))),
        n::PWRITEV => by_vectors(at_offset(transfer(1, 2, Access::Read))),
        // An offset of -1 means the descriptor's own offset.
        n::PREADV2 if call.arguments[3] == u64::MAX => by_vectors(transfer(1, 2, Access::Write)),
        n::PWRITEV2 if call.arguments[3] == u64::MAX => by_vectors(transfer(1, 2, Access::Read)),
        n::PREADV2 => by_vectors(at_offset(transfer(1, 2, Access::Write))),
        n::PWRITEV2 => by_vectors(at_offset(transfer(1, 2, Access::Read))),

        _ => refused(call),
    }
}

/// Calls that cannot work. All other calls that `kind` does not name are plain, unknown ones included.
fn refused(call: Call) -> Kind {
    use number as n;
    let (errno, refusal) = match call.number {
        // Programs have a fallback for kernels without it.
        n::IO_URING_SETUP | n::IO_URING_ENTER | n::IO_URING_REGISTER => (ENOSYS, Refusal::IoUring),
        n::IO_SETUP | n::IO_DESTROY | n::IO_SUBMIT | n::IO_CANCEL | n::IO_GETEVENTS | n::IO_PGETEVENTS => {
            (ENOSYS, Refusal::KernelAio)
        }
        // EINVAL is the answer of descriptors that cannot do it.
        n::VMSPLICE => (EINVAL, Refusal::Vmsplice),
        // As without CONFIG_SECCOMP. Queries (operations 2 and 3) are answered.
        n::SECCOMP if call.int(0) <= 1 => (ENOSYS, Refusal::Seccomp),
        n::PRCTL => match call.int(0) {
            22 => (EINVAL, Refusal::Seccomp),
            59 => (EINVAL, Refusal::UserDispatch),
            // PR_SET_MM moves the borders of the heap without the pager; the kernel needs CAP_SYS_RESOURCE for it.
            35 => return Kind::Memory,
            _ => return Kind::Plain,
        },
        // ARCH_ENABLE_TAGGED_ADDR.
        n::ARCH_PRCTL if call.int(0) == 0x4002 => (EINVAL, Refusal::TaggedAddresses),
        // SO_ZEROCOPY: without it MSG_ZEROCOPY copies, or fails.
        n::SETSOCKOPT if call.int(1) == 1 && call.int(2) == 60 => (EOPNOTSUPP, Refusal::ZeroCopy),
        // XDP_UMEM_REG.
        n::SETSOCKOPT if call.int(1) == 283 && call.int(2) == 4 => (EOPNOTSUPP, Refusal::NetworkCard),
        // Plain on purpose, against appearance. personality: flags for later mmaps and execs, which are seen
        // themselves. restart_syscall: the kernel repeats a call that was allowed before. ptrace: buffers like any
        // others. setuid and its like: may stop masu from reading the process, not the program from running.
        _ => return Kind::Plain,
    };
    Kind::Refused { errno, refusal }
}

const fn transfer(address: usize, length: usize, access: Access) -> Kind {
    Kind::Transfer { address, length, vectors: false, access, offset: None }
}

fn by_vectors(kind: Kind) -> Kind {
    match kind {
        Kind::Transfer { address, length, access, offset, .. } => {
            Kind::Transfer { address, length, vectors: true, access, offset }
        }
        other => other,
    }
}

/// The file offset is argument 3 in all calls that have one.
fn at_offset(kind: Kind) -> Kind {
    match kind {
        Kind::Transfer { address, length, vectors, access, .. } => {
            Kind::Transfer { address, length, vectors, access, offset: Some(3) }
        }
        other => other,
    }
}
