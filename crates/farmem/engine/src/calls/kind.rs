//! What the pager has to do with a call, beside bringing its buffers.
//!
//! Most calls are `Plain`. The others change what the pager itself rests on: the address space, the threads and
//! processes, the signals by which it works, its descriptors. Some cannot work in a paged program and are refused, with the
//! error that the kernel gives where the call does not exist, so that the program takes its other way.

use super::{Access, Call, number};

const EINVAL: i32 = 22;
const ENOSYS: i32 = 38;
const EOPNOTSUPP: i32 = 95;

/// What a call needs beside its buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Nothing.
    Plain,
    /// It changes or describes the address space: what is mapped, with which rights, what is resident.
    Memory,
    /// It makes or ends a thread or a process, or replaces the program.
    Process,
    /// It changes which signals arrive, where, or on which stack.
    Signal(Signal),
    /// It closes or replaces descriptors, and may mean one of the pager's.
    Descriptor,
    /// It moves data, maybe more than may be local at a time. A regular file may be read and written in parts. Of
    /// everything else one call may be one message: then the whole must be there, or only a first part be asked for
    /// where a short count is a good answer (pipes, stream sockets, terminals).
    Transfer {
        /// Which argument is the address: of the data, or of the vectors.
        address: usize,
        /// Which is the length: in bytes, or how many vectors.
        length: usize,
        /// The address is that of an array of `iovec`.
        vectors: bool,
        /// What the kernel does with the program's memory.
        access: Access,
        /// Which argument is the place in the file, and must grow from part to part. None: the descriptor knows it.
        offset: Option<usize>,
    },
    /// It must not be made.
    Refused {
        /// What the program gets.
        errno: i32,
        /// What it is that cannot work, and why.
        refusal: Refusal,
    },
}

/// What a paged program cannot have. Each is counted for itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The kernel's threads use the memory at any later time, and no call says when they are done.
    IoUring,
    /// The same.
    KernelAio,
    /// The pipe keeps the page itself; when it is moved out, the reader would see whatever comes into its frame.
    Vmsplice,
    /// A filter made for the program does not know the pager's calls and would kill it.
    Seccomp,
    /// There is one for each thread, and it is the pager's.
    UserDispatch,
    /// It would be a second pager of the same pages.
    Userfaultfd,
    /// Then pointers have bits that are not address, in all that is compared here.
    TaggedAddresses,
    /// Pages are sent after the call.
    ZeroCopy,
    /// Memory that a network card shares for good.
    NetworkCard,
    /// It must be in memory as a whole, and a part of it would be another message.
    LargeMessage,
}

impl Refusal {
    /// All of them, by their numbers.
    pub const ALL: [Refusal; 10] = [
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
    ];

    /// What it is called.
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
        }
    }

    /// Why, and the way out where there is one.
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
        }
    }
}

/// Calls with signal sets. The pager needs its own signals, SIGBUS and SIGSYS, whatever the program blocks or handles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// rt_sigaction: argument 1 points to the new action (its mask is at byte 24), argument 3 is the mask's size.
    Action,
    /// rt_sigprocmask: argument 0 says how, 1 points to the set, 2 to the old one, 3 is the size.
    Mask,
    /// The set replaces the thread's mask until the call returns.
    MaskDuring {
        /// Which argument points to the set; null leaves the mask as it is.
        set: usize,
        /// Which argument is its size.
        bytes: usize,
    },
    /// The same, but the argument points to a pair: the set's address and its size.
    MaskDuringBehind {
        /// Which argument points to the pair.
        pair: usize,
    },
    /// The call takes signals of this set that are pending: a blocked SIGBUS would be taken away from the pager.
    Takes {
        /// Which argument points to the set.
        set: usize,
        /// Which argument is its size.
        bytes: usize,
    },
    /// rt_sigpending: argument 0 is written, argument 1 is the size.
    Pending,
    /// sigaltstack: argument 0 points to the new stack, 1 to the old one.
    Stack,
    /// rt_sigreturn: the mask, the registers and the signal stack come from the frame on the stack.
    Return,
}

/// What is to be done with a call.
#[must_use]
pub fn kind(call: Call) -> Kind {
    use number as n;
    match call.number {
        n::MMAP | n::MUNMAP | n::MREMAP | n::MPROTECT | n::PKEY_MPROTECT | n::BRK | n::REMAP_FILE_PAGES => Kind::Memory,
        n::MADVISE | n::MSYNC | n::MLOCK | n::MLOCK2 | n::MUNLOCK | n::MLOCKALL | n::MUNLOCKALL | n::MSEAL => {
            Kind::Memory
        }
        // What is resident, the pager knows better: a page at home is the program's, and missing.
        n::MINCORE => Kind::Memory,
        // On another process it is none of ours. Whether the descriptor means this one, only the pager can ask.
        n::PROCESS_MADVISE => Kind::Memory,
        // They place and remove mappings as mmap and munmap do.
        n::SHMAT | n::SHMDT | n::MAP_SHADOW_STACK | n::USELIB => Kind::Memory,
        // They split mappings, and ask where pages lie.
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
        // F_DUPFD and F_DUPFD_CLOEXEC can ask for a number from one of the pager's on.
        n::FCNTL if matches!(call.int(1), 0 | 1030) => Kind::Descriptor,

        n::READ | n::RECVFROM => transfer(1, 2, Access::Write),
        n::WRITE | n::SENDTO => transfer(1, 2, Access::Read),
        n::GETRANDOM => transfer(0, 1, Access::Write),
        n::PREAD64 => at_offset(transfer(1, 2, Access::Write)),
        n::PWRITE64 => at_offset(transfer(1, 2, Access::Read)),
        n::READV => by_vectors(transfer(1, 2, Access::Write)),
        n::WRITEV => by_vectors(transfer(1, 2, Access::Read)),
        n::PREADV => by_vectors(at_offset(transfer(1, 2, Access::Write))),
        n::PWRITEV => by_vectors(at_offset(transfer(1, 2, Access::Read))),
        // An offset of -1 means the descriptor's own place.
        n::PREADV2 if call.arguments[3] == u64::MAX => by_vectors(transfer(1, 2, Access::Write)),
        n::PWRITEV2 if call.arguments[3] == u64::MAX => by_vectors(transfer(1, 2, Access::Read)),
        n::PREADV2 => by_vectors(at_offset(transfer(1, 2, Access::Write))),
        n::PWRITEV2 => by_vectors(at_offset(transfer(1, 2, Access::Read))),

        _ => refused(call),
    }
}

/// What cannot work. Anything else that `kind` does not name is plain, among it calls that nobody knows yet.
fn refused(call: Call) -> Kind {
    use number as n;
    let (errno, refusal) = match call.number {
        // Programs have another way for kernels without it.
        n::IO_URING_SETUP | n::IO_URING_ENTER | n::IO_URING_REGISTER => (ENOSYS, Refusal::IoUring),
        n::IO_SETUP | n::IO_DESTROY | n::IO_SUBMIT | n::IO_CANCEL | n::IO_GETEVENTS | n::IO_PGETEVENTS => {
            (ENOSYS, Refusal::KernelAio)
        }
        // EINVAL is what descriptors that cannot do it give.
        n::VMSPLICE => (EINVAL, Refusal::Vmsplice),
        // As without CONFIG_SECCOMP. Questions (operations 2 and 3) are answered.
        n::SECCOMP if call.int(0) <= 1 => (ENOSYS, Refusal::Seccomp),
        n::PRCTL => match call.int(0) {
            22 => (EINVAL, Refusal::Seccomp),
            59 => (EINVAL, Refusal::UserDispatch),
            // PR_SET_MM moves the borders of the heap under the pager's feet; the kernel needs CAP_SYS_RESOURCE for it.
            35 => return Kind::Memory,
            _ => return Kind::Plain,
        },
        // ARCH_ENABLE_TAGGED_ADDR.
        n::ARCH_PRCTL if call.int(0) == 0x4002 => (EINVAL, Refusal::TaggedAddresses),
        // SO_ZEROCOPY: without it MSG_ZEROCOPY copies, or says no.
        n::SETSOCKOPT if call.int(1) == 1 && call.int(2) == 60 => (EOPNOTSUPP, Refusal::ZeroCopy),
        // XDP_UMEM_REG.
        n::SETSOCKOPT if call.int(1) == 283 && call.int(2) == 4 => (EOPNOTSUPP, Refusal::NetworkCard),
        // Plain on purpose, though they look as if they were not. personality: flags for later mmaps and execs, which
        // are seen themselves. restart_syscall: the kernel repeats what was allowed before. process_vm_*, ptrace:
        // buffers as any. setuid and its like: may stop masu from looking in, not the program from running.
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

/// The place in the file is argument 3 in all calls that have one.
fn at_offset(kind: Kind) -> Kind {
    match kind {
        Kind::Transfer { address, length, vectors, access, .. } => {
            Kind::Transfer { address, length, vectors, access, offset: Some(3) }
        }
        other => other,
    }
}
