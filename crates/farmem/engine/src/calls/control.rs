//! Calls that no row of the table describes: the memory that they touch depends on an operation, on flags, or on a
//! struct.
//!
//! `command.rs` has the calls that are whole families: prctl, keyctl, ptrace, bpf, System V.

use super::Access;
use super::walk::{VECTORS_MAX, Walk};

/// `struct flock`.
const LOCK: u64 = 32;
/// Largest struct of an ioctl whose number carries no size: the old ioctls.
const OLD_IOCTL: u64 = 256;

/// fcntl: locks, owners and hints are structs; all other arguments are numbers.
pub(super) fn fcntl(walk: &mut Walk<'_>) {
    let start = walk.argument(2);
    match walk.int(1) {
        // F_GETLK, F_OFD_GETLK.
        5 | 36 => walk.writes(start, LOCK),
        // F_SETLK, F_SETLKW, F_OFD_SETLK, F_OFD_SETLKW.
        6 | 7 | 37 | 38 => walk.reads(start, LOCK),
        // F_SETOWN_EX.
        15 => walk.reads(start, 8),
        // F_GETOWN_EX, F_GETOWNER_UIDS; F_GET_RW_HINT … F_SETDELEG (1035 to 1040): 8 bytes each.
        16 | 17 | 1035..=1040 => walk.writes(start, 8),
        _ => {}
    }
}

/// ioctl: the number carries the size of the struct (bits 16 to 29). Old ioctls do not carry it, and drivers are not
/// exact about the direction, so the size is at least 256 bytes and the struct always counts as written. A few structs
/// have pointers.
pub(super) fn ioctl(walk: &mut Walk<'_>) {
    let (request, start) = (walk.int(1), walk.argument(2));
    // Below, the argument is a number.
    if !(super::USER_START..super::USER_END - 4096).contains(&start) {
        return;
    }
    let bytes = u64::from(request >> 16 & 0x3fff);
    walk.writes(start, bytes.max(OLD_IOCTL));
    let (group, number) = (request >> 8 & 0xff, request & 0xff);
    match (group, number) {
        // SIOCGIFCONF: an int length, then at 8 the address.
        (0x89, 0x12) => described(walk, start, 0, 8, 1),
        // SIOCETHTOOL, SIOCxMII: `ifr_data` at 16 of `ifreq`. Only the driver knows its length.
        (0x89, 0x46..=0x49) => pointed(walk, start + 16, 4096),
        // FS_IOC_FIEMAP: 32 bytes, then 56 for each of the count at 24.
        (0x66, 0x0b) => counted_behind(walk, start, 24, 32, 56),
        // FIDEDUPERANGE: 24 bytes, then 32 for each of the 16-bit count at 16.
        (0x94, 0x36) => {
            let count = walk.half(start + 16).unwrap_or(0) & 0xffff;
            walk.writes(start, 24 + 32 * u64::from(count));
        }
        // PAGEMAP_SCAN: `vec` at 40, of 24 bytes each, their count at 48.
        (0x66, 0x10) => {
            if let (Some(ranges), Some(count)) = (walk.word(start + 40), walk.word(start + 48)) {
                walk.writes(ranges, count.saturating_mul(24));
            }
        }
        // UFFDIO_COPY: from `src` at 8, `len` at 16.
        (0xaa, 0x03) => {
            if let (Some(from), Some(bytes)) = (walk.word(start + 8), walk.word(start + 16)) {
                walk.reads(from, bytes);
            }
        }
        // SG_IO: `dxfer_len` at 12, `dxferp` at 16, `cmdp` at 24, `sbp` at 32; lengths of the last two are bytes.
        (0x22, 0x85) => {
            if walk.half(start + 8).is_some_and(|head| head >> 16 == 0) {
                described(walk, start, 12, 16, 1);
            }
            pointed(walk, start + 24, 255);
            pointed(walk, start + 32, 255);
        }
        // PERF_EVENT_IOC_SET_FILTER: a string.
        (0x24, 0x06) => {
            walk.text(start, 4096);
        }
        _ => {}
    }
}

/// A `count` (32 bits) at one offset of a struct, the address of the elements at another.
fn described(walk: &mut Walk<'_>, start: u64, count_at: u64, address_at: u64, each: u64) {
    if let (Some(count), Some(address)) = (walk.half(start + count_at), walk.word(start + address_at)) {
        walk.writes(address, u64::from(count) * each);
    }
}

fn pointed(walk: &mut Walk<'_>, at: u64, bytes: u64) {
    if let Some(address) = walk.word(at) {
        walk.writes(address, bytes);
    }
}

fn counted_behind(walk: &mut Walk<'_>, start: u64, count_at: u64, head: u64, each: u64) {
    if let Some(count) = walk.half(start + count_at) {
        walk.writes(start, head + u64::from(count) * each);
    }
}

/// The signal set of pselect6 and io_pgetevents: argument 5 points to its address and its size.
pub(super) fn set_behind_argument_5(walk: &mut Walk<'_>) {
    let pair = walk.argument(5);
    walk.reads(pair, 16);
    if let Some(set) = walk.word(pair) {
        walk.reads(set, 8);
    }
}

/// process_vm_readv(pid, local, count, remote, count, flags) and process_vm_writev.
pub(super) fn process_vm(walk: &mut Walk<'_>) {
    let reading = walk.call.number == super::number::PROCESS_VM_READV;
    let (here, there) = if reading { (Access::Write, Access::Read) } else { (Access::Read, Access::Write) };
    walk.vectors(walk.argument(1), walk.argument(2), here);
    let (remote, count) = (walk.argument(3), walk.argument(4));
    if walk.is_own_process(walk.int(0)) {
        walk.vectors(remote, count, there);
    } else if count <= VECTORS_MAX {
        walk.reads(remote, count * 16);
    }
}

/// SO_ATTACH_FILTER and SO_ATTACH_REUSEPORT_CBPF: a count of instructions of 8 bytes, and their address at 8.
pub(super) fn socket_filter(walk: &mut Walk<'_>) {
    if walk.int(1) == 1 && matches!(walk.int(2), 26 | 51) {
        let program = walk.argument(3);
        if let (Some(count), Some(address)) = (walk.half(program), program.checked_add(8).and_then(|at| walk.word(at)))
        {
            walk.reads(address, u64::from(count & 0xffff) * 8);
        }
    }
}

/// Options whose answer has another address or length than the call gives: SO_GET_FILTER counts instructions of 8
/// bytes, and TCP_ZEROCOPY_RECEIVE copies data that it cannot map to the address in its struct (address at 24, bytes at
/// 32).
pub(super) fn socket_answer(walk: &mut Walk<'_>) {
    let (value, length) = (walk.argument(3), walk.argument(4));
    match (walk.int(1), walk.int(2)) {
        (1, 26) => {
            let count = walk.half(length).unwrap_or(0).min(0xffff);
            walk.writes(value, u64::from(count) * 8);
        }
        (6, 35) => {
            if let (Some(address_at), Some(bytes_at)) = (value.checked_add(24), value.checked_add(32))
                && let (Some(address), Some(bytes)) = (walk.word(address_at), walk.half(bytes_at))
            {
                walk.writes(address, u64::from(bytes).min(1 << 30));
            }
        }
        _ => {}
    }
}

/// name_to_handle_at: the struct begins with the number of bytes that follow its first 8.
pub(super) fn file_handle(walk: &mut Walk<'_>) {
    let handle = walk.argument(2);
    let bytes = walk.half(handle).unwrap_or(0).min(128);
    walk.writes(handle, 8 + u64::from(bytes));
}

/// open_by_handle_at.
pub(super) fn file_handle_opened(walk: &mut Walk<'_>) {
    let handle = walk.argument(1);
    let bytes = walk.half(handle).unwrap_or(0).min(128);
    walk.reads(handle, 8 + u64::from(bytes));
}

/// setxattrat: a struct has the value's address at 0 and its size at 8.
pub(super) fn xattr_read(walk: &mut Walk<'_>) {
    xattr(walk, Access::Read);
}

/// getxattrat.
pub(super) fn xattr_written(walk: &mut Walk<'_>) {
    xattr(walk, Access::Write);
}

fn xattr(walk: &mut Walk<'_>, access: Access) {
    let arguments = walk.argument(4);
    if let (Some(value), Some(bytes)) = (walk.word(arguments), arguments.checked_add(8).and_then(|at| walk.half(at))) {
        walk.touches(value, u64::from(bytes), access);
    }
}

/// fsconfig: the value is a string, bytes, or a path.
pub(super) fn fsconfig(walk: &mut Walk<'_>) {
    let value = walk.argument(3);
    match walk.int(1) {
        // FSCONFIG_SET_STRING.
        1 => {
            walk.text(value, 256);
        }
        // FSCONFIG_SET_BINARY.
        2 => walk.reads(value, u64::from(walk.int(4)).min(1 << 20)),
        // FSCONFIG_SET_PATH, FSCONFIG_SET_PATH_EMPTY.
        3 | 4 => {
            walk.text(value, 4096);
        }
        _ => {}
    }
}

/// quotactl and quotactl_fd: a command and, in its low byte, a type. Q_QUOTAON has the path of a file.
pub(super) fn quota(walk: &mut Walk<'_>) {
    let of_file = walk.call.number == super::number::QUOTACTL_FD;
    let command = if of_file { walk.int(1) } else { walk.int(0) };
    let address = walk.argument(3);
    if command >> 8 == 0x80_0002 {
        walk.text(address, 4096);
    } else {
        walk.writes(address, 256);
    }
}

/// sysfs(1, name), sysfs(2, number, buffer): the buffer has no length; a file system's name is short.
pub(super) fn sysfs(walk: &mut Walk<'_>) {
    match walk.int(0) {
        1 => {
            walk.text(walk.argument(1), 4096);
        }
        2 => walk.writes(walk.argument(2), 256),
        _ => {}
    }
}

/// mincore(address, bytes, one byte for each page).
pub(super) fn mincore(walk: &mut Walk<'_>) {
    let pages = walk.argument(1).div_ceil(4096);
    walk.writes(walk.argument(2), pages);
}

/// get_mempolicy with MPOL_F_NODE and MPOL_F_ADDR asks for the node of the page at an address: the page must be there.
pub(super) fn policy_of_address(walk: &mut Walk<'_>) {
    if walk.argument(4) & 3 == 3 {
        walk.reads(walk.argument(3), 1);
    }
}

/// Bytes that the kernel writes for a new thread: the part of its stack that must be present until the thread has a
/// signal stack. The kernel cannot put the frame of the first SIGBUS on a missing page. The frame of a processor with
/// AVX-512 takes 3.5 KiB, of one with AMX 11 KiB.
const FIRST_STACK: u64 = 16 << 10;
const CLONE_VM: u64 = 0x100;
const CLONE_PIDFD: u64 = 0x1000;
const CLONE_PARENT_SETTID: u64 = 0x10_0000;
const CLONE_CHILD_CLEARTID: u64 = 0x20_0000;
const CLONE_CHILD_SETTID: u64 = 0x100_0000;

/// clone(flags, end of the stack, parent's word, child's word, tls). The tls block is only named; the kernel does not
/// touch it.
pub(super) fn clone(walk: &mut Walk<'_>) {
    let flags = walk.argument(0);
    if flags & (CLONE_PARENT_SETTID | CLONE_PIDFD) != 0 {
        walk.writes(walk.argument(2), 4);
    }
    child(walk, flags, walk.argument(3));
    let end = walk.argument(1);
    if flags & CLONE_VM != 0 && end > FIRST_STACK {
        walk.keeps(end - FIRST_STACK, FIRST_STACK);
    }
}

/// clone3(struct, size): flags at 0, pidfd at 8, child's word at 16, parent's at 24, stack at 40 and 48, the array of
/// requested PIDs at 64 and 72.
pub(super) fn clone3(walk: &mut Walk<'_>) {
    let (start, bytes) = (walk.argument(0), walk.argument(1).min(4096));
    walk.reads(start, bytes);
    if bytes < 64 || start >= super::USER_END - 4096 {
        return;
    }
    let field = |walk: &Walk<'_>, at: u64| walk.word(start + at).unwrap_or(0);
    let flags = field(walk, 0);
    if flags & CLONE_PIDFD != 0 {
        walk.writes(field(walk, 8), 4);
    }
    if flags & CLONE_PARENT_SETTID != 0 {
        walk.writes(field(walk, 24), 4);
    }
    child(walk, flags, field(walk, 16));
    if flags & CLONE_VM != 0 {
        let (stack, stack_bytes) = (field(walk, 40), field(walk, 48));
        let kept = stack_bytes.min(FIRST_STACK);
        if stack != 0 {
            walk.keeps(stack.saturating_add(stack_bytes - kept), kept);
        }
    }
    if bytes >= 80 {
        walk.reads(field(walk, 64), field(walk, 72).min(32) * 4);
    }
}

/// The child's word is written by the child, after the call has returned here, and cleared when the child ends.
fn child(walk: &mut Walk<'_>, flags: u64, word: u64) {
    if flags & (CLONE_CHILD_SETTID | CLONE_CHILD_CLEARTID) != 0 {
        walk.keeps(word, 4);
    }
}

/// rseq(area, size, flags, signature). With the flag RSEQ_FLAG_UNREGISTER the area is cleared and left.
pub(super) fn rseq(walk: &mut Walk<'_>) {
    let (area, bytes) = (walk.argument(0), u64::from(walk.int(1)).clamp(32, 4096));
    if walk.int(2) & 1 == 0 {
        walk.keeps(area, bytes);
    } else {
        walk.writes(area, bytes);
    }
}

/// The locks that the kernel walks through when a thread ends (`ROBUST_LIST_LIMIT`).
const ROBUST_LOCKS_MAX: usize = 2048;

/// The list given to set_robust_list. Its head has the first entry; at 8 the offset of the lock's word from an entry;
/// at 16 the entry that is being changed. Bit 0 of a pointer marks a lock that inherits priority.
pub(super) fn robust_list(walk: &mut Walk<'_>, head: u64) {
    walk.reads(head, 24);
    let at = |by: u64| head.checked_add(by);
    let (Some(offset_at), Some(pending_at)) = (at(8), at(16)) else { return };
    let (Some(first), Some(offset), Some(pending)) = (walk.word(head), walk.word(offset_at), walk.word(pending_at))
    else {
        return;
    };
    walk.writes((pending & !1).wrapping_add(offset), if pending == 0 { 0 } else { 4 });
    let mut entry = first & !1;
    for _ in 0..ROBUST_LOCKS_MAX {
        if entry == head {
            return;
        }
        walk.reads(entry, 8);
        walk.writes(entry.wrapping_add(offset), 4);
        let Some(next) = walk.word(entry) else { return };
        entry = next & !1;
    }
}

/// seccomp(operation, flags, address).
pub(super) fn seccomp(walk: &mut Walk<'_>) {
    let address = walk.argument(2);
    match walk.int(0) {
        // SECCOMP_SET_MODE_FILTER: a count of instructions of 8 bytes, and their address.
        1 => {
            walk.reads(address, 16);
            if let (Some(count), Some(program)) =
                (walk.half(address), address.checked_add(8).and_then(|at| walk.word(at)))
            {
                walk.reads(program, u64::from(count & 0xffff) * 8);
            }
        }
        // SECCOMP_GET_ACTION_AVAIL.
        2 => walk.reads(address, 4),
        // SECCOMP_GET_NOTIF_SIZES.
        3 => walk.writes(address, 6),
        _ => {}
    }
}

/// sigaltstack(new, old): the new stack itself is written when a signal arrives. SS_DISABLE (2) names none.
pub(super) fn signal_stack(walk: &mut Walk<'_>) {
    let new = walk.argument(0);
    let at = |by: u64| new.checked_add(by).filter(|_| new != 0);
    let (Some(flags_at), Some(bytes_at)) = (at(8), at(16)) else { return };
    if let (Some(stack), Some(flags), Some(bytes)) = (walk.word(new), walk.half(flags_at), walk.word(bytes_at))
        && flags & 2 == 0
    {
        walk.keeps(stack, bytes);
    }
}

const TIMESPEC: u64 = 16;

/// futex(word, operation, value, timeout or second value, second word, third value).
pub(super) fn futex(walk: &mut Walk<'_>) {
    let (word, second) = (walk.argument(0), walk.argument(4));
    let timeout = walk.argument(3);
    match walk.int(1) & 0x7f {
        // WAIT, WAIT_BITSET.
        0 | 9 => {
            walk.reads(word, 4);
            walk.reads(timeout, TIMESPEC);
        }
        // WAKE, FD, WAKE_BITSET.
        1 | 2 | 10 => walk.reads(word, 4),
        // REQUEUE, CMP_REQUEUE.
        3 | 4 => {
            walk.reads(word, 4);
            walk.reads(second, 4);
        }
        // WAKE_OP changes the second word.
        5 => {
            walk.reads(word, 4);
            walk.writes(second, 4);
        }
        // LOCK_PI, LOCK_PI2: the kernel writes the owner.
        6 | 13 => {
            walk.writes(word, 4);
            walk.reads(timeout, TIMESPEC);
        }
        // UNLOCK_PI, TRYLOCK_PI.
        7 | 8 => walk.writes(word, 4),
        // WAIT_REQUEUE_PI.
        11 => {
            walk.reads(word, 4);
            walk.writes(second, 4);
            walk.reads(timeout, TIMESPEC);
        }
        // CMP_REQUEUE_PI.
        12 => {
            walk.reads(word, 4);
            walk.writes(second, 4);
        }
        _ => {}
    }
}

/// futex_waitv: at most 128 waiters of 24 bytes; the word's address is at 8.
pub(super) fn futex_waiters(walk: &mut Walk<'_>) {
    let count = u64::from(walk.int(1));
    if count <= 128 {
        waiters(walk, walk.argument(0), count);
    }
}

/// futex_requeue: two waiters.
pub(super) fn futex_two_waiters(walk: &mut Walk<'_>) {
    waiters(walk, walk.argument(0), 2);
}

fn waiters(walk: &mut Walk<'_>, start: u64, count: u64) {
    walk.reads(start, count * 24);
    for waiter in 0..count {
        let Some(word) = start.checked_add(waiter * 24 + 8).and_then(|at| walk.word(at)) else { return };
        // Up to 8 bytes, as the waiter's flags say.
        walk.reads(word, 8);
    }
}

/// msgsnd(queue, message, bytes): the message's type comes before the bytes.
pub(super) fn message_sent(walk: &mut Walk<'_>) {
    walk.reads(walk.argument(1), walk.argument(2).saturating_add(8));
}

/// msgrcv(queue, message, bytes, type, flags).
pub(super) fn message_received(walk: &mut Walk<'_>) {
    walk.writes(walk.argument(1), walk.argument(2).saturating_add(8));
}

/// mq_notify with SIGEV_THREAD (2): 32 bytes behind `sigev_value`, the first field.
pub(super) fn cookie(walk: &mut Walk<'_>) {
    let event = walk.argument(1);
    if let (Some(2), Some(cookie)) = (event.checked_add(12).and_then(|at| walk.half(at)), walk.word(event)) {
        walk.reads(cookie, 32);
    }
}

/// kexec_load(entry, count, segments, flags): at most 16 segments of 32 bytes; address and size come first.
pub(super) fn kexec_segments(walk: &mut Walk<'_>) {
    let (count, start) = (walk.argument(1), walk.argument(2));
    if count > 16 || start >= super::USER_END {
        return;
    }
    walk.reads(start, count * 32);
    for segment in 0..count {
        let at = start + segment * 32;
        let (Some(address), Some(bytes)) = (walk.word(at), walk.word(at + 8)) else { return };
        walk.reads(address, bytes);
    }
}
