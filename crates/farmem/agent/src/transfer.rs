//! Calls that move data, maybe more than may be local at a time.

use farmem_engine::PAGE_BYTES;
use farmem_engine::calls::parts::{self, File};
use farmem_engine::calls::{self, Call, Kind, Refusal, number};

use crate::kernel::{self, call};
use crate::program::Program;
use crate::registers::Context;
use crate::stub::More;
use crate::thread::Thread;
use crate::{memory, stub};

/// Positions of such a call's arguments.
pub struct Shape {
    pub address: usize,
    pub length: usize,
    pub vectors: bool,
    pub offset: Option<usize>,
}

/// Makes the call: whole if its memory fits, and otherwise in parts where it promises all bytes, or its first part.
pub fn make(program: &'static Program, thread: &mut Thread, context: &mut Context, call: Call, shape: &Shape) {
    // The call may touch other memory besides.
    let most = memory::most_pinned(program) - 8;
    let asked = to_ask(program, call, shape);
    let size = size_of(program, asked, shape);
    match size.filter(|(_, pages)| *pages > most || is_past_all_pins(call, shape)) {
        Some((all, _)) if call.number != number::GETRANDOM && is_regular(call.arguments[0]) => {
            let all = all.min(MOST_BYTES).min(room_in_file(asked, shape));
            context.answer(in_parts(program, thread, asked, shape, most, all));
        }
        Some(_) if promises_all(call) => go_on(program, thread, context, &More { call, done: 0 }),
        Some(_) if is_message(call.arguments[0]) => message(program, thread, context, asked, shape),
        Some(_) => {
            let Some(part) = part(thread, asked, shape, 0, most) else {
                return context.answer(-i64::from(libc::EFAULT));
            };
            memory::fault_in_up_to(program, thread, part, most + 8);
            stub::pass_part(thread, context, part);
        }
        None => {
            memory::fault_in(program, thread, asked);
            if asked == call { stub::pass(thread, context) } else { stub::pass_part(thread, context, asked) }
        }
    }
}

/// Whether the call is to be made part by part until it has all bytes.
fn promises_all(call: Call) -> bool {
    let [fd, ..] = call.arguments;
    // SAFETY: asks.
    let flags = || unsafe { call!(libc::SYS_fcntl, fd, libc::F_GETFL) };
    call.number == number::GETRANDOM || parts::promises_all(call, file(fd), flags() & i64::from(libc::O_NONBLOCK) != 0)
}

/// A call whose buffer exceeds the pins, at a socket of messages: a receive takes a message that is short enough, after
/// the call has waited for one. Another thread may take that message first, and a longer one is then cut.
fn message(program: &'static Program, thread: &mut Thread, context: &mut Context, call: Call, shape: &Shape) {
    const EAGAIN: i64 = -(libc::EAGAIN as i64);
    let most = memory::most_pinned(program) - 8;
    if let Some(wait) = parts::wait_for_message(call).filter(|_| can_peek(call.arguments[0])) {
        let ask = parts::ask_for_length(wait);
        // SAFETY: touches no memory.
        match unsafe { kernel::syscall(ask.number.into(), ask.arguments) } {
            EAGAIN => return stub::pass_wait(thread, context, wait),
            error @ ..0 => return context.answer(error),
            bytes => {
                let first = part(thread, call, shape, 0, most);
                if let Some(first) = first.filter(|first| bytes_of(thread, *first, shape) >= bytes.cast_unsigned()) {
                    memory::fault_in_up_to(program, thread, first, most + 8);
                    return stub::pass_part(thread, context, first);
                }
            }
        }
    }
    if parts::takes_no_message(call) {
        let Some(first) = part(thread, call, shape, 0, most) else { return context.answer(-i64::from(libc::EFAULT)) };
        memory::fault_in_up_to(program, thread, first, most + 8);
        return stub::pass_part(thread, context, first);
    }
    // A part of a message would be another message.
    program.pager.counters.refuse(Refusal::LargeMessage);
    context.answer(-i64::from(libc::EMSGSIZE));
}

/// Whether a socket of messages tells a message's length and keeps it (MSG_PEEK): not one of AF_ALG, or of SCTP.
fn can_peek(fd: u64) -> bool {
    // A peek would move this offset.
    if option(fd, libc::SO_PEEK_OFF).is_some_and(|offset| offset >= 0) {
        return false;
    }
    let is_packet = option(fd, libc::SO_TYPE) == Some(libc::SOCK_SEQPACKET);
    match option(fd, libc::SO_DOMAIN) {
        Some(libc::AF_UNIX) => true,
        Some(libc::AF_INET | libc::AF_INET6 | libc::AF_NETLINK | libc::AF_PACKET) => !is_packet,
        _ => false,
    }
}

/// Kind of a descriptor's file.
fn file(fd: u64) -> File {
    let Some(status) = status(fd) else { return File::Other };
    match status.st_mode & libc::S_IFMT {
        libc::S_IFIFO => File::Pipe,
        libc::S_IFCHR => parts::character(libc::major(status.st_rdev), libc::minor(status.st_rdev)),
        libc::S_IFSOCK if !is_message(fd) => File::Stream,
        _ => File::Other,
    }
}

/// Makes the next part of a call that promises all bytes. The program's signals come in each part and between them, and
/// end the call with the bytes so far.
///
/// Each part is a call of its own to the kernel: the times of SO_SNDTIMEO and SO_RCVTIMEO begin anew, a descriptor that
/// another thread closes or replaces ends or changes the rest, and an error of a socket that comes between two parts is
/// not told again.
pub fn go_on(program: &'static Program, thread: &mut Thread, context: &mut Context, more: &More) {
    let &More { mut call, done } = more;
    let Kind::Transfer { address, length, vectors, offset, .. } = calls::kind(call) else {
        return context.answer(done.cast_signed());
    };
    let (shape, most) = (Shape { address, length, vectors, offset }, memory::most_pinned(program) - 8);
    if !shape.vectors {
        call.arguments[shape.length] = call.arguments[shape.length].min(MOST_BYTES);
    }
    let all = size_of(program, call, &shape).map_or(0, |(all, _)| all);
    let next = if all > done || done == 0 { part(thread, call, &shape, done, most) } else { None };
    let bytes = next.map_or(0, |next| bytes_of(thread, next, &shape));
    let Some(next) = next.filter(|_| done == 0 || bytes > 0 && done + bytes <= MOST_BYTES) else {
        return context.answer(if done == 0 { -i64::from(libc::EFAULT) } else { done.cast_signed() });
    };
    memory::fault_in_up_to(program, thread, next, most + 8);
    let next = if done == 0 { next } else { later(thread, next, file(call.arguments[0])) };
    // Without bytes, and with more than the kernel moves, a part is the last.
    let is_last = bytes == 0 || done + bytes >= all.min(MOST_BYTES);
    stub::pass_more(thread, context, more, next, (!is_last).then_some(bytes));
}

/// The call for a part that follows others.
fn later(thread: &mut Thread, part: Call, file: File) -> Call {
    if !parts::is_later_by_message(part, file) {
        return parts::later(part, file);
    }
    let pending = thread.pending_call();
    // Name, its length, vectors and their number, control data, its length, flags.
    let vectors = (&raw const pending.vectors).expose_provenance() as u64;
    pending.message = [0, 0, vectors, part.arguments[2], 0, 0, 0];
    parts::by_message(part, (&raw const pending.message).expose_provenance() as u64)
}

/// Number of bytes of a part.
fn bytes_of(thread: &mut Thread, part: Call, shape: &Shape) -> u64 {
    let count = part.arguments[shape.length];
    if !shape.vectors {
        return count;
    }
    let used = kernel::size(count);
    thread.pending_call().vectors.iter().take(used).map(|[_, bytes]| bytes).sum()
}

/// Longer buffers are examined more closely, and shortened only by multiples of this size: then the rest meets a direct
/// read's condition on its length.
const LONG: u64 = 64 << 10;

/// End of a program's memory; the kernel returns EFAULT for a buffer that reaches so high.
const ALL_MEMORY: u64 = (1 << 47) - PAGE_BYTES;

/// The call itself, or one that asks for less: no more than will come. A program may name a buffer of gigabytes for a
/// short file, and all of it would be mapped in for a read into its beginning.
fn to_ask(program: &Program, call: Call, shape: &Shape) -> Call {
    let mut asked = call;
    if let Some(bytes) = bytes_to_come(program, call) {
        asked.arguments[shape.length] = bytes;
    }
    asked
}

/// Upper bound of the bytes that will come: the rest of a file, or the content of a pipe. `None`: all requested bytes,
/// or it is not known, as of files that claim to be empty (proc(5)).
///
/// For a file that is longer than its size says, less may come than could, as for one that grows meanwhile.
fn bytes_to_come(program: &Program, call: Call) -> Option<u64> {
    let [fd, start, asked, offset, ..] = call.arguments;
    let reads = matches!(call.number, number::READ | number::PREAD64);
    let is_long = asked > LONG && start.checked_add(asked).is_some_and(|end| end <= ALL_MEMORY);
    if !reads || !is_long || !memory::touches(program, start, asked) {
        return None;
    }
    let status = status(fd)?;
    // SAFETY: these ask.
    let (position, capacity) = unsafe {
        (|| call!(libc::SYS_lseek, fd, 0, libc::SEEK_CUR), || call!(libc::SYS_fcntl, fd, libc::F_GETPIPE_SZ))
    };
    let most = match status.st_mode & libc::S_IFMT {
        libc::S_IFREG if status.st_size > 0 => {
            let at = if call.number == number::READ { position() } else { offset.cast_signed() };
            if at < 0 { return None } else { (status.st_size - at).max(0) }
        }
        libc::S_IFIFO => capacity(),
        _ => return None,
    };
    let beyond = asked.saturating_sub(u64::try_from(most).ok()?.max(LONG));
    (beyond >= LONG).then_some(asked - beyond / LONG * LONG)
}

/// Most bytes that the kernel moves in one call.
const MOST_BYTES: u64 = 0x7fff_f000;

/// Requested bytes, and number of paged pages that hold them; `None` when they cannot be read, or reach beyond all
/// memory: the kernel will return the error, and does nothing.
fn size_of(program: &Program, call: Call, shape: &Shape) -> Option<(u64, u64)> {
    let reaches = |start: u64, bytes: u64| start.checked_add(bytes).filter(|end| *end <= ALL_MEMORY);
    let pages_of = |start: u64, bytes: u64| match memory::touches(program, start, bytes) {
        true => (start % PAGE_BYTES).saturating_add(bytes).div_ceil(PAGE_BYTES),
        false => 0,
    };
    let count = call.arguments[shape.length];
    if !shape.vectors {
        reaches(call.arguments[shape.address], count)?;
        return Some((count, pages_of(call.arguments[shape.address], count)));
    }
    if count > 1024 {
        return None;
    }
    let mut last = u64::MAX;
    (0..count).try_fold((0_u64, 0_u64), |(bytes, pages), number| {
        let (start, more) = vector(call, shape, number)?;
        reaches(start, more)?;
        // Pieces of one page follow each other in most programs.
        let (these, again) = (pages_of(start, more), u64::from(more > 0 && start / PAGE_BYTES == last));
        if more > 0 {
            last = start.saturating_add(more - 1) / PAGE_BYTES;
        }
        Some((bytes.saturating_add(more), pages.saturating_add(these - again.min(these))))
    })
}

/// Number of pieces above which a call may exceed the thread's pins: more pieces are mapped in, and may be evicted
/// before the call is done.
const PINNED_PIECES: u64 = 64;

/// Whether a device may be given pages that are not pinned (O_DIRECT). The kernel returns EFAULT for a page evicted
/// before. It does not move a page that it holds; but a copy would miss later writes of the device.
fn is_past_all_pins(call: Call, shape: &Shape) -> bool {
    let many = shape.vectors && call.arguments[shape.length] > PINNED_PIECES;
    // SAFETY: asks.
    let flags = || unsafe { call!(libc::SYS_fcntl, call.arguments[0], libc::F_GETFL) };
    many && is_regular(call.arguments[0]) && flags() & i64::from(libc::O_DIRECT) != 0
}

/// Whether a descriptor transfers whole messages: a socket other than a stream.
fn is_message(fd: u64) -> bool {
    option(fd, libc::SO_TYPE).is_some_and(|kind| kind != libc::SOCK_STREAM)
}

/// An option of a socket (SOL_SOCKET).
fn option(fd: u64, name: i32) -> Option<i32> {
    let (mut value, mut bytes) = (0_i32, 4_u32);
    let (value_at, bytes_at) = ((&raw mut value).expose_provenance(), (&raw mut bytes).expose_provenance());
    // SAFETY: writes our own words.
    let answer = unsafe { call!(libc::SYS_getsockopt, fd, libc::SOL_SOCKET, name, value_at, bytes_at) };
    (answer == 0).then_some(value)
}

/// Start and length of a vector.
fn vector(call: Call, shape: &Shape, number: u64) -> Option<(u64, u64)> {
    let at = call.arguments[shape.address].checked_add(number * 16)?;
    memory::read_word(at).zip(memory::read_word(at + 8))
}

/// The call from byte `from` on, for data in at most `most` pages. Its vectors are in the thread's record then.
fn part(thread: &mut Thread, call: Call, shape: &Shape, from: u64, most: u64) -> Option<Call> {
    let mut part = call;
    if let Some(offset) = shape.offset {
        part.arguments[offset] = call.arguments[offset].wrapping_add(from);
    }
    if !shape.vectors {
        part.arguments[shape.address] += from;
        let bytes = call.arguments[shape.length] - from;
        part.arguments[shape.length] = bytes.min(room(part.arguments[shape.address], most));
        return Some(part);
    }
    let (mut skip, mut left, mut used) = (from, most, 0);
    for number in 0..call.arguments[shape.length] {
        let (start, bytes) = vector(call, shape, number)?;
        if skip >= bytes {
            skip -= bytes;
            continue;
        }
        let Some(place) = thread.pending_call().vectors.get_mut(used) else { break };
        let (start, rest) = (start.wrapping_add(skip), bytes - skip);
        let bytes = rest.min(room(start, left));
        *place = [start, bytes];
        left -= (start % PAGE_BYTES + bytes).div_ceil(PAGE_BYTES).min(left);
        (skip, used) = (0, used + 1);
        if left == 0 || bytes < rest {
            break;
        }
    }
    part.arguments[shape.address] = (&raw const thread.pending_call().vectors).expose_provenance() as u64;
    part.arguments[shape.length] = used as u64;
    Some(part)
}

/// Number of bytes from an address on in this number of pages.
const fn room(start: u64, pages: u64) -> u64 {
    (pages * PAGE_BYTES).saturating_sub(start % PAGE_BYTES)
}

/// Status of a descriptor from the kernel.
fn status(fd: u64) -> Option<libc::stat> {
    // SAFETY: all zeros are a value of it.
    let mut status: libc::stat = unsafe { core::mem::zeroed() };
    // SAFETY: writes our own memory.
    let answer = unsafe { call!(libc::SYS_fstat, fd, (&raw mut status).expose_provenance()) };
    (answer == 0).then_some(status)
}

/// Whether a descriptor is a file or a disk with a position.
fn is_regular(fd: u64) -> bool {
    status(fd).is_some_and(|status| matches!(status.st_mode & libc::S_IFMT, libc::S_IFREG | libc::S_IFBLK))
}

/// Bytes up to the limit of file sizes (RLIMIT_FSIZE), for a write that begins below it: the kernel writes these, and a part
/// that begins at the limit would raise SIGXFSZ.
fn room_in_file(call: Call, shape: &Shape) -> u64 {
    use number::{PWRITE64, PWRITEV, PWRITEV2, WRITE, WRITEV};
    let mut limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: writes our own memory.
    unsafe { call!(libc::SYS_getrlimit, libc::RLIMIT_FSIZE, (&raw mut limit).expose_provenance()) };
    if limit.rlim_cur == libc::RLIM_INFINITY || !matches!(call.number, WRITE | WRITEV | PWRITE64 | PWRITEV | PWRITEV2) {
        return u64::MAX;
    }
    let fd = call.arguments[0];
    // SAFETY: these ask.
    let (flags, position) =
        unsafe { (call!(libc::SYS_fcntl, fd, libc::F_GETFL), call!(libc::SYS_lseek, fd, 0, libc::SEEK_CUR)) };
    let at = match shape.offset {
        _ if flags & i64::from(libc::O_APPEND) != 0 => status(fd).map_or(0, |status| status.st_size),
        Some(offset) => call.arguments[offset].cast_signed(),
        None => position,
    };
    u64::try_from(at).ok().and_then(|at| limit.rlim_cur.checked_sub(at)).filter(|room| *room > 0).unwrap_or(u64::MAX)
}

/// Reads or writes a regular file part by part, as one call: it does not block, so no signal need come between.
fn in_parts(program: &'static Program, thread: &mut Thread, call: Call, shape: &Shape, most: u64, all: u64) -> i64 {
    let mut done = 0;
    while done < all {
        let Some(now) = part(thread, call, shape, done, most) else {
            return if done == 0 { -i64::from(libc::EFAULT) } else { done as i64 };
        };
        let pins = thread.part();
        memory::fault_in_up_to(program, thread, now, most + 8);
        // SAFETY: the program's own call, a part of it.
        let answer = unsafe { kernel::syscall(now.number.into(), now.arguments) };
        memory::take_off_last(thread, pins);
        if answer < 0 {
            return if done == 0 { answer } else { done as i64 };
        }
        done += answer.cast_unsigned();
        // The call's regular end: the end of the file, a full disk, or the limit of file sizes.
        if answer.cast_unsigned() < bytes_of(thread, now, shape) {
            break;
        }
    }
    done as i64
}
