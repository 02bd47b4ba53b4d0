//! Blocking transfers above the pin limit: which of them promise all bytes, and the answer after several parts.
//!
//! A blocking write to a pipe, a stream socket or a terminal, a receive with MSG_WAITALL, a read of /dev/zero and its
//! like and getrandom return a short count only after a signal, an error or the end of the data. Many programs do not
//! repeat them, so the pager must.
//!
//! Truth: `pipe_write` in fs/pipe.c, `unix_stream_sendmsg` and `unix_stream_read_generic` in net/unix/af_unix.c,
//! `tcp_sendmsg_locked` and `tcp_recvmsg_locked` in net/ipv4/tcp.c, `get_random_bytes_user` in drivers/char/random.c.

use super::{Call, number};

/// Kind of a descriptor's file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum File {
    /// Pipe or FIFO.
    Pipe,
    /// Socket of type SOCK_STREAM.
    Stream,
    /// Character device, as a terminal, whose read may return less than there is.
    Character,
    /// Character device without end, such as /dev/zero: a read returns all bytes, also with O_NONBLOCK.
    Endless,
    /// Any other file, or no file.
    Other,
}

const MSG_OOB: u32 = 0x1;
const MSG_PEEK: u32 = 0x2;
const MSG_TRUNC: u32 = 0x20;
const MSG_DONTWAIT: u32 = 0x40;
const MSG_WAITALL: u32 = 0x100;
const MSG_ERRQUEUE: u32 = 0x2000;
const MSG_NOSIGNAL: u32 = 0x4000;
const MSG_ZEROCOPY: u32 = 0x400_0000;
const MSG_FASTOPEN: u32 = 0x2000_0000;

/// Index of the argument with the flags of preadv2 and pwritev2, and the flag for no wait.
const RW_FLAGS: usize = 5;
const RWF_NOWAIT: u32 = 0x8;

/// Index of the argument with the flags of sendto and recvfrom.
const FLAGS: usize = 3;

/// Whether the call returns all its bytes unless a signal, an error or the end of the data comes first.
/// `is_nonblocking`: the descriptor has O_NONBLOCK.
#[must_use]
pub fn promises_all(call: Call, file: File, is_nonblocking: bool) -> bool {
    // A peeked part would come again, and a part of urgent data would be other urgent data.
    const NO_SEND: u32 = MSG_OOB | MSG_DONTWAIT | MSG_ZEROCOPY | MSG_FASTOPEN;
    const NO_RECEIVE: u32 = MSG_OOB | MSG_PEEK | MSG_DONTWAIT | MSG_ERRQUEUE;
    let flags = call.int(FLAGS);
    match call.number {
        number::GETRANDOM => true,
        number::READ | number::READV | number::PREAD64 | number::PREADV | number::PREADV2 => file == File::Endless,
        number::PWRITE64 | number::PWRITEV => file == File::Endless,
        _ if is_nonblocking => false,
        number::WRITE | number::WRITEV => file != File::Other,
        number::PWRITEV2 => file != File::Other && call.int(RW_FLAGS) & RWF_NOWAIT == 0,
        number::SENDTO => file == File::Stream && flags & NO_SEND == 0,
        number::RECVFROM => file == File::Stream && flags & MSG_WAITALL != 0 && flags & NO_RECEIVE == 0,
        _ => false,
    }
}

/// Minor numbers of the devices without end, of major number 1: zero, full, random, urandom
/// (Documentation/admin-guide/devices.txt).
const ENDLESS: [u32; 4] = [5, 7, 8, 9];

/// Kind of a character device.
#[must_use]
pub fn character(major: u32, minor: u32) -> File {
    if major == 1 && ENDLESS.contains(&minor) { File::Endless } else { File::Character }
}

/// Whether a part that follows others is a `sendmsg` without a signal: a stream that has taken bytes in this call raises no
/// SIGPIPE, and calls with vectors have no flag for that.
#[must_use]
pub fn is_later_by_message(part: Call, file: File) -> bool {
    file == File::Stream && matches!(part.number, number::WRITEV | number::PWRITEV2)
}

/// The `sendmsg` of a part, with the address of its `msghdr`.
#[must_use]
pub fn by_message(part: Call, header: u64) -> Call {
    Call { number: number::SENDMSG, arguments: [part.arguments[0], header, MSG_NOSIGNAL.into(), 0, 0, 0] }
}

/// The call for a part that follows others of the same transfer, without vectors at a stream.
#[must_use]
pub fn later(part: Call, file: File) -> Call {
    let [fd, start, bytes, ..] = part.arguments;
    let mut later = part;
    match part.number {
        // A socket that has taken bytes in this call raises no SIGPIPE; a pipe does.
        number::WRITE if file == File::Stream => {
            later.number = number::SENDTO;
            later.arguments = [fd, start, bytes, MSG_NOSIGNAL.into(), 0, 0];
        }
        number::SENDTO => later.arguments[FLAGS] |= u64::from(MSG_NOSIGNAL),
        // The length of the address is set already, maybe beyond its buffer.
        number::RECVFROM => (later.arguments[4], later.arguments[5]) = (0, 0),
        _ => {}
    }
    later
}

/// For a receive from a socket of messages, the call that waits for a message, takes nothing and answers 0.
#[must_use]
pub fn wait_for_message(call: Call) -> Option<Call> {
    let flags = match call.number {
        number::READ | number::READV => 0,
        number::RECVFROM if call.int(FLAGS) & (MSG_OOB | MSG_ERRQUEUE) == 0 => call.int(FLAGS) & MSG_DONTWAIT,
        _ => return None,
    };
    let arguments = [call.arguments[0], 0, 0, u64::from(flags | MSG_PEEK), 0, 0];
    Some(Call { number: number::RECVFROM, arguments })
}

/// Whether a receive takes urgent data or an error from a socket of messages, and not a message. Both are short.
#[must_use]
pub fn takes_no_message(call: Call) -> bool {
    call.number == number::RECVFROM && call.int(FLAGS) & (MSG_OOB | MSG_ERRQUEUE) != 0
}

/// The call that answers the length of the next message, and does not wait for it. `wait` is from [`wait_for_message`].
#[must_use]
pub fn ask_for_length(wait: Call) -> Call {
    let mut ask = wait;
    ask.arguments[FLAGS] |= u64::from(MSG_TRUNC | MSG_DONTWAIT);
    ask
}

/// Answer of the whole call, when `done` bytes came before and the last part's answer is `answer`.
///
/// An error after some bytes is not reported: the kernel returns the bytes, and the error at the next call.
#[must_use]
pub fn answer(done: u64, answer: i64) -> i64 {
    if done == 0 { answer } else { done.saturating_add(answer.max(0).cast_unsigned()).cast_signed() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(number: u32, flags: u32) -> Call {
        Call { number, arguments: [3, 0x1000, 0x10_0000, flags.into(), 0x2000, 0x3000] }
    }

    #[test]
    fn a_blocking_write_promises_all_bytes_except_to_files_that_are_written_in_parts_anyway() {
        for number in [number::WRITE, number::WRITEV] {
            for file in [File::Pipe, File::Stream, File::Character] {
                // Flags are no argument of these: the register may hold anything.
                assert!(promises_all(call(number, MSG_DONTWAIT), file, false), "{number} {file:?}");
                assert!(!promises_all(call(number, 0), file, true), "{number} {file:?}");
            }
            assert!(!promises_all(call(number, 0), File::Other, false), "{number}");
        }
    }

    #[test]
    fn an_endless_device_has_all_bytes_for_each_read_and_others_may_have_less() {
        let (zero, terminal) = (character(1, 5), character(4, 1));
        assert_eq!(
            [zero, terminal, character(1, 3), character(5, 0)].map(|file| file == File::Endless),
            [true, false, false, false]
        );
        for number in [number::READ, number::READV, number::PREAD64, number::PREADV, number::PREADV2] {
            assert!(
                promises_all(call(number, 0), zero, false) && promises_all(call(number, 0), zero, true),
                "{number}"
            );
            assert!(!promises_all(call(number, 0), terminal, false), "{number}");
        }
        assert!(promises_all(call(number::PWRITE64, 0), zero, false));
    }

    #[test]
    fn a_write_by_pwritev2_promises_all_unless_it_may_not_wait() {
        let with = |flags| Call { number: number::PWRITEV2, arguments: [3, 0x1000, 2, u64::MAX, 0, flags] };
        assert!(promises_all(with(0), File::Pipe, false) && promises_all(with(0), File::Stream, false));
        assert!(!promises_all(with(0x8), File::Pipe, false) && !promises_all(with(0), File::Pipe, true));
    }

    #[test]
    fn a_later_part_with_vectors_raises_no_signal_at_a_stream() {
        for number in [number::WRITEV, number::PWRITEV2] {
            assert!(is_later_by_message(call(number, 0), File::Stream), "{number}");
            assert!(!is_later_by_message(call(number, 0), File::Pipe), "{number}");
            let message = by_message(call(number, 0), 0x5000);
            assert_eq!((message.number, message.arguments), (number::SENDMSG, [3, 0x5000, 0x4000, 0, 0, 0]));
        }
    }

    #[test]
    fn a_read_may_always_be_short() {
        for number in [number::READ, number::READV, number::PREAD64] {
            for file in [File::Pipe, File::Stream, File::Character, File::Other] {
                assert!(!promises_all(call(number, MSG_WAITALL), file, false), "{number} {file:?}");
            }
        }
    }

    #[test]
    fn a_send_promises_all_bytes_without_flags_that_forbid_parts() {
        assert!(promises_all(call(number::SENDTO, MSG_NOSIGNAL), File::Stream, false));
        assert!(!promises_all(call(number::SENDTO, 0), File::Stream, true));
        assert!(!promises_all(call(number::SENDTO, 0), File::Other, false));
        for flag in [MSG_OOB, MSG_DONTWAIT, MSG_ZEROCOPY, MSG_FASTOPEN] {
            assert!(!promises_all(call(number::SENDTO, flag), File::Stream, false), "{flag:#x}");
        }
    }

    #[test]
    fn a_receive_promises_all_bytes_with_waitall_only() {
        assert!(promises_all(call(number::RECVFROM, MSG_WAITALL), File::Stream, false));
        assert!(!promises_all(call(number::RECVFROM, 0), File::Stream, false));
        assert!(!promises_all(call(number::RECVFROM, MSG_WAITALL), File::Stream, true));
        for flag in [MSG_OOB, MSG_PEEK, MSG_DONTWAIT, MSG_ERRQUEUE] {
            assert!(!promises_all(call(number::RECVFROM, MSG_WAITALL | flag), File::Stream, false), "{flag:#x}");
        }
    }

    #[test]
    fn getrandom_promises_all_bytes_whatever_its_first_argument_is_as_a_descriptor() {
        assert!(promises_all(call(number::GETRANDOM, 0), File::Other, true));
    }

    #[test]
    fn a_later_part_raises_no_signal_at_a_socket_and_writes_no_address() {
        let write = later(call(number::WRITE, 7), File::Stream);
        assert_eq!((write.number, write.arguments), (number::SENDTO, [3, 0x1000, 0x10_0000, 0x4000, 0, 0]));
        assert_eq!(later(call(number::WRITE, 7), File::Pipe), call(number::WRITE, 7));
        assert_eq!(later(call(number::WRITEV, 7), File::Stream), call(number::WRITEV, 7));
        assert_eq!(later(call(number::SENDTO, 1), File::Stream), call(number::SENDTO, 1 | MSG_NOSIGNAL));
        assert_eq!(later(call(number::RECVFROM, MSG_WAITALL), File::Stream).arguments[4..], [0, 0]);
    }

    #[test]
    fn a_wait_for_a_message_takes_nothing_and_waits_as_the_call() {
        for (number, flags, expected) in [
            (number::READ, MSG_DONTWAIT, MSG_PEEK),
            (number::READV, 0, MSG_PEEK),
            (number::RECVFROM, MSG_WAITALL, MSG_PEEK),
            (number::RECVFROM, MSG_DONTWAIT, MSG_PEEK | MSG_DONTWAIT),
        ] {
            let wait = wait_for_message(call(number, flags)).unwrap();
            assert_eq!((wait.number, wait.arguments), (number::RECVFROM, [3, 0, 0, expected.into(), 0, 0]));
            let flags = ask_for_length(wait).arguments[FLAGS];
            assert_eq!(flags, u64::from(MSG_PEEK | MSG_TRUNC | MSG_DONTWAIT));
        }
        assert_eq!(wait_for_message(call(number::SENDTO, 0)), None);
        assert_eq!(wait_for_message(call(number::RECVFROM, MSG_ERRQUEUE)), None);
    }

    #[test]
    fn an_error_or_the_end_after_some_bytes_is_answered_with_these_bytes() {
        const EPIPE: i64 = -32;
        assert_eq!([answer(0, EPIPE), answer(0, 0), answer(0, 5)], [EPIPE, 0, 5]);
        assert_eq!([answer(7, EPIPE), answer(7, 0), answer(7, 5)], [7, 7, 12]);
    }
}
