//! Memory that each system call reads and writes.
//!
//! A page of a paged program may be missing. An access by the program maps it in. An access by the kernel, in a system
//! call, fails with EFAULT, ends early, or silently does nothing. So the pager sees each call before the kernel does.
//! It asks `buffers` for the memory that the call will touch, maps in and pins these pages, and lets the call go
//! through. `kind` names the calls that need more.
//!
//! - `number.rs`: the numbers and names of the calls.
//! - `table.rs`: one row for each call, with the memory behind each argument.
//! - `walk.rs`: carries out a row: strings, vectors, messages, lengths that are themselves in memory.
//! - `command.rs`, `control.rs`: calls whose arguments mean something else for each operation.
//! - `parts.rs`: transfers that are made in several parts.
//! - `kind.rs`: memory, processes, signals, descriptors, transfers that may be split, and refused calls.
//!
//! Truth: section 2 of the manual pages, and the kernel's user-space headers. `live-tests/tests/system_calls` asks the
//! running kernel: it makes the calls with missing pages, maps in the memory that `buffers` names, and then they must
//! succeed.
//!
//! `buffers` may name too much memory, never too little: a page that is mapped in needlessly costs time. So an unknown
//! operation gets the most that it could need. A buffer may reach beyond mapped memory: a wrong call of a program must
//! get the kernel's error, not the pager's.
//!
//! The arguments do not show two kinds of memory, so the pager has to know them: the stack on which the kernel puts or
//! finds a signal's frame (rt_sigreturn has no argument), and memory that other processes touch through
//! `process_vm_readv`, `ptrace` or `/proc/PID/mem`. Pointers behind an ioctl's own struct are followed for the few that
//! `control.rs` lists.

mod command;
mod control;
mod kind;
pub mod number;
pub mod parts;
mod table;
#[cfg(test)]
mod tests;
mod walk;

pub use kind::{Kind, Refusal, Signal, kind};

/// Below this nothing is mapped: the first page catches null pointers (`vm.mmap_min_addr`).
const USER_START: u64 = 4096;
/// No user memory lies beyond this address, also with page tables of five levels.
const USER_END: u64 = 1 << 56;

/// System call that is about to be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// Number of the call, as in eax.
    pub number: u32,
    /// rdi, rsi, rdx, r10, r8, r9.
    pub arguments: [u64; 6],
}

impl Call {
    /// An argument that the kernel takes as a 32-bit number: the upper half of the register may be anything.
    fn int(&self, argument: usize) -> u32 {
        (self.arguments[argument] & 0xffff_ffff) as u32
    }
}

/// Access of the kernel to a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Only reads.
    Read,
    /// Writes the buffer or parts of it, and may read it, so its old content must be there.
    Write,
}

/// Time until the kernel no longer touches a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// Until the call returns.
    Return,
    /// Until the thread ends or gives another address: the call only registers the address of the memory.
    Replaced,
}

/// Memory that a call touches. Never empty, never in the first page, and its end does not overflow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffer {
    /// Address of the first byte.
    pub start: u64,
    /// Length in bytes.
    pub bytes: u64,
    /// Access by the kernel: read or write.
    pub access: Access,
    /// Last moment at which the kernel may touch the buffer.
    pub until: Until,
}

/// The program's memory. Some buffers are found only by reading others: a string's end, the vectors of readv.
pub trait Memory {
    /// The eight bytes at `address`, a multiple of 8, so they lie in one page. A paged and missing page is mapped in.
    /// `None` where the program cannot read: the kernel cannot either, and will return EFAULT.
    fn word(&self, address: u64) -> Option<u64>;

    /// Whether `pid` is this process: some calls may touch the memory of another process, or this one's.
    fn is_own_process(&self, pid: u32) -> bool;
}

/// Knowledge about a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Known {
    /// Its buffers were named, if it has some with these arguments.
    Yes,
    /// The call is not in the table: a call of a newer kernel, or none at all.
    No,
    /// The call touches no memory with any arguments.
    NoMemory,
}

/// Calls `each` for all memory that the kernel touches in `call`. Buffers may overlap, and one may be named twice.
pub fn buffers(call: Call, memory: &impl Memory, each: &mut impl FnMut(Buffer)) -> Known {
    let Some(row) = table::row(call.number) else { return Known::No };
    if row.is_empty() {
        return Known::NoMemory;
    }
    let mut walk = walk::Walk::new(call, memory, each);
    for part in row {
        walk.part(*part);
    }
    Known::Yes
}

/// Calls `each` for the memory that the kernel touches when a thread ends that gave `head` to set_robust_list: the
/// list, and the words of the locks that the thread holds. The kernel silently stops at a missing page, and a thread
/// that waits for such a lock then waits for ever. So the pager asks this before exit; glibc's list is in the thread's
/// own block.
pub fn robust_list(head: u64, memory: &impl Memory, each: &mut impl FnMut(Buffer)) {
    let nothing = Call { number: number::EXIT, arguments: [0; 6] };
    control::robust_list(&mut walk::Walk::new(nothing, memory, each), head);
}
