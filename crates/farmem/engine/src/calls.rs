//! Which memory a system call reads and writes.
//!
//! A page of a paged program may be missing. The program's own access brings it; the kernel's access, in a system call,
//! fails with EFAULT, ends early, or does nothing at all and says nothing. So the pager sees each call before the kernel
//! does, asks `buffers` which memory it will touch, brings and pins these pages, and lets the call go through. `kind`
//! says which calls need more than that.
//!
//! - `number.rs`: the numbers and names of the calls.
//! - `table.rs`: one row for each call: which argument points to what.
//! - `walk.rs`: carries out a row: strings, vectors, messages, lengths that are themselves in memory.
//! - `command.rs`, `control.rs`: calls whose arguments mean something else for each operation.
//! - `kind.rs`: memory, processes, signals, descriptors, transfers that may be split, and what is refused.
//!
//! Truth: section 2 of the manual pages, and the kernel's user-space headers. `live-tests/tests/system_calls`
//! asks the running kernel: it makes the calls with missing pages, brings what `buffers` names, and then they must succeed.
//!
//! What is named may be too much, never too little: a page that is brought in vain costs time. So an operation that is
//! not known gets what it could need at most. A buffer may reach beyond what is mapped: a wrong call of a program must
//! get the kernel's answer, not ours.
//!
//! Not seen from the arguments, so the pager has to know it by itself: the stack on which the kernel puts or finds a
//! signal's frame (rt_sigreturn has no argument), and memory that other processes touch through `process_vm_readv`,
//! `ptrace` or `/proc/PID/mem`. Pointers behind an ioctl's own struct are followed for the few that `control.rs` lists.

mod command;
mod control;
mod kind;
pub mod number;
mod table;
#[cfg(test)]
mod tests;
mod walk;

pub use kind::{Kind, Refusal, Signal, kind};

/// Below this nothing is mapped: the first page catches null pointers (`vm.mmap_min_addr`).
const USER_START: u64 = 4096;
/// Beyond this no user memory lies, also with page tables of five levels.
const USER_END: u64 = 1 << 56;

/// A system call that is about to be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// The number, as it stands in eax.
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

/// What the kernel does with a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// It only reads it.
    Read,
    /// It writes it, or parts of it, and may read it, too. So its old content must be there.
    Write,
}

/// For how long the kernel may touch a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// Until the call returns.
    Return,
    /// Until the thread ends or gives another address: the call only says where the memory is.
    Replaced,
}

/// Memory that a call touches. Never empty, never in the first page, and its end does not overflow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffer {
    /// The first byte.
    pub start: u64,
    /// How many bytes.
    pub bytes: u64,
    /// Whether the kernel writes it.
    pub access: Access,
    /// Whether the kernel comes back to it after the call.
    pub until: Until,
}

/// The program's memory. Some buffers are found only by reading others: a string's end, the vectors of readv.
pub trait Memory {
    /// The eight bytes at `address`, a multiple of 8: so they lie in one page. A page that is paged and missing is brought.
    /// None where the program could not read, as the kernel could not: it will say EFAULT.
    fn word(&self, address: u64) -> Option<u64>;

    /// Whether this number is this process: some calls may touch another's memory, or our own.
    fn is_own_process(&self, pid: u32) -> bool;
}

/// What is known of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Known {
    /// Its buffers were named, if it has some with these arguments.
    Yes,
    /// Not in the table: a call of a newer kernel, or none at all.
    No,
    /// It touches no memory, whatever its arguments are.
    NoMemory,
}

/// Calls `each` for all memory that the kernel touches in `call`. Buffers may overlap, and the same may come twice.
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

/// Calls `each` for what the kernel touches when a thread ends that gave `head` to set_robust_list: the list, and the
/// words of the locks that it holds. Where it finds a page missing it stops and says nothing, and who waits for such a
/// lock waits for ever. So this is asked before exit; glibc's list is in the thread's own block.
pub fn robust_list(head: u64, memory: &impl Memory, each: &mut impl FnMut(Buffer)) {
    let nothing = Call { number: number::EXIT, arguments: [0; 6] };
    control::robust_list(&mut walk::Walk::new(nothing, memory, each), head);
}
