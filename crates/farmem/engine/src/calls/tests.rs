//! The table against the known accesses of the calls, and against random arguments.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

/// Memory with the words that were put into it; all other words come from `elsewhere`.
struct Fake {
    words: BTreeMap<u64, u64>,
    elsewhere: Option<u64>,
}

impl Fake {
    fn new() -> Self {
        Fake { words: BTreeMap::new(), elsewhere: None }
    }

    /// Puts bytes at an address; the rest of their words is 0.
    fn with(mut self, address: u64, bytes: &[u8]) -> Self {
        for (at, byte) in (address..).zip(bytes) {
            let word = self.words.entry(at & !7).or_default();
            let shift = (at & 7) * 8;
            *word = *word & !(0xff << shift) | u64::from(*byte) << shift;
        }
        self
    }

    fn with_words(mut self, address: u64, words: &[u64]) -> Self {
        for (at, word) in (address..).step_by(8).zip(words) {
            self = self.with(at, &word.to_le_bytes());
        }
        self
    }
}

impl Memory for Fake {
    fn word(&self, address: u64) -> Option<u64> {
        assert_eq!(address % 8, 0, "read across a page");
        assert!((USER_START..USER_END).contains(&address), "read at {address:#x}");
        self.words.get(&address).copied().or(self.elsewhere)
    }

    fn is_own_process(&self, pid: u32) -> bool {
        pid == 42
    }
}

fn call(number: u32, arguments: &[u64]) -> Call {
    let mut all = [0; 6];
    all[..arguments.len()].copy_from_slice(arguments);
    Call { number, arguments: all }
}

/// The buffers of a call as text: `r1000+8` is read, `w` written, `k` kept.
fn seen(memory: &Fake, number: u32, arguments: &[u64]) -> String {
    let mut text = Vec::new();
    buffers(call(number, arguments), memory, &mut |buffer: Buffer| {
        let what = match (buffer.access, buffer.until) {
            (Access::Read, _) => 'r',
            (Access::Write, Until::Return) => 'w',
            (Access::Write, Until::Replaced) => 'k',
        };
        text.push(format!("{what}{:x}+{}", buffer.start, buffer.bytes));
    });
    text.join(" ")
}

const A: u64 = 0x1_0000;
const B: u64 = 0x2_0000;
const C: u64 = 0x3_0000;
const D: u64 = 0x4_0000;

#[test]
fn every_number_of_the_kernel_has_a_row_and_no_other_has() {
    for number in 0..=number::RSEQ_SLICE_YIELD {
        let left_out = (337..=423).contains(&number);
        assert_eq!(table::row(number).is_none(), left_out, "{number}");
        assert_eq!(number::name(number).is_none(), left_out, "{number}");
    }
    assert!(table::row(number::RSEQ_SLICE_YIELD + 1).is_none());
    assert!(table::row(u32::MAX).is_none());
}

#[test]
fn a_call_that_touches_nothing_says_so_and_an_unknown_one_too() {
    let none = &mut |_: Buffer| panic!("a buffer");
    assert_eq!(buffers(call(number::GETPID, &[A; 6]), &Fake::new(), none), Known::NoMemory);
    assert_eq!(buffers(call(400, &[A; 6]), &Fake::new(), none), Known::No);
    assert_eq!(buffers(call(number::READ, &[0; 6]), &Fake::new(), none), Known::Yes);
}

#[test]
fn simple_calls_touch_what_their_arguments_say() {
    use number as n;
    let nothing = Fake::new();
    for (number, arguments, expected) in [
        (n::READ, &[3, A, 100] as &[u64], "w10000+100"),
        (n::WRITE, &[3, A, 100], "r10000+100"),
        (n::WRITE, &[3, A, u64::MAX], "r10000+2147479552"),
        (n::PREAD64, &[3, A, 5, 1 << 40], "w10000+5"),
        (n::FSTAT, &[3, A], "w10000+144"),
        (n::POLL, &[A, 3, 0], "w10000+24"),
        (n::POLL, &[A, 0xffff_ffff_0000_0003, 0], "w10000+24"),
        (n::PPOLL, &[A, 1, B, C, 8], "w10000+8 w20000+16 r30000+8"),
        (n::SELECT, &[65, A, 0, B, C], "w10000+16 w20000+16 w30000+16"),
        (n::EPOLL_WAIT, &[3, A, 10, 0], "w10000+120"),
        (n::EPOLL_WAIT, &[3, A, 0xffff_ffff, 0], ""),
        (n::EPOLL_CTL, &[3, 1, 4, A], "r10000+12"),
        (n::EPOLL_PWAIT2, &[3, A, 1, B, C, 8], "w10000+12 r20000+16 r30000+8"),
        (n::PIPE2, &[A, 0], "w10000+8"),
        (n::SOCKETPAIR, &[1, 1, 0, A], "w10000+8"),
        (n::BIND, &[3, A, 16], "r10000+16"),
        (n::SENDTO, &[3, A, 10, 0, B, 16], "r10000+10 r20000+16"),
        (n::SENDFILE, &[3, 4, A, 1 << 30], "w10000+8"),
        (n::SPLICE, &[3, A, 4, 0, 100, 0], "w10000+8"),
        (n::COPY_FILE_RANGE, &[3, A, 4, B, 100, 0], "w10000+8 w20000+8"),
        (n::GETDENTS64, &[3, A, 32768], "w10000+32768"),
        (n::GETCWD, &[A, 4096], "w10000+4096"),
        (n::MINCORE, &[B, 4097, A], "w10000+2"),
        (n::WAIT4, &[1, A, 0, B], "w10000+4 w20000+144"),
        (n::WAITID, &[0, 1, A, 4, B], "w10000+128 w20000+144"),
        (n::NANOSLEEP, &[A, B], "r10000+16 w20000+16"),
        (n::CLOCK_GETTIME, &[0, A], "w10000+16"),
        (n::RT_SIGACTION, &[10, A, B, 8], "r10000+32 w20000+32"),
        (n::RT_SIGPROCMASK, &[0, A, 0, 8], "r10000+8"),
        (n::RT_SIGTIMEDWAIT, &[A, B, C, 8], "r10000+8 w20000+128 r30000+16"),
        (n::TIMER_SETTIME, &[0, 0, A, B], "r10000+32 w20000+32"),
        (n::SEMOP, &[0, A, 2], "r10000+12"),
        (n::MSGSND, &[0, A, 10], "r10000+18"),
        (n::MOVE_PAGES, &[0, 2, A, B, C], "r10000+16 r20000+8 w30000+8"),
        (n::MBIND, &[A, 4096, 2, B, 65], "r20000+16"),
        (n::PROCESS_MADVISE, &[3, A, 2, 4], "r10000+32"),
        (n::SCHED_GETAFFINITY, &[0, 128, A], "w10000+128"),
        (n::PRLIMIT64, &[0, 7, A, B], "r10000+16 w20000+16"),
        (n::SET_TID_ADDRESS, &[A], "k10000+4"),
        (n::SET_ROBUST_LIST, &[A, 24], "k10000+24"),
        (n::RSEQ, &[A, 32, 0, 7], "k10000+32"),
        (n::RSEQ, &[A, 32, 1, 7], "w10000+32"),
        (n::FUTEX, &[A, 0x80, 1, B], "r10000+4 r20000+16"),
        (n::FUTEX, &[A, 0x81, 1, B], "r10000+4"),
        (n::FUTEX, &[A, 0x84, 1, 1, B], "r10000+4 r20000+4"),
        (n::FUTEX, &[A, 0x86, 0, B], "w10000+4 r20000+16"),
        (n::FCNTL, &[3, 7, A], "r10000+32"),
        (n::FCNTL, &[3, 5, A], "w10000+32"),
        (n::FCNTL, &[3, 4, A], ""),
        (n::IOCTL, &[3, 0x5413, A], "w10000+256"),
        (n::IOCTL, &[3, 0x4400_0000, A], "w10000+1024"),
        (n::IOCTL, &[3, 0x5409, 1], ""),
        (n::PRCTL, &[16, A], "w10000+16"),
        (n::PRCTL, &[38, A], ""),
        (n::ARCH_PRCTL, &[0x1003, A], "w10000+8"),
        (n::SHMCTL, &[0, 2, A], "w10000+112"),
        (n::SEMCTL, &[0, 0, 16, A], ""),
        (n::CLONE, &[0x3d_0f00, B, A, C, D], "w10000+4 k30000+4 k1c000+16384"),
        (n::CLONE, &[0x120_0011, 0, 0, C, 0], "k30000+4"),
        (n::GETRANDOM, &[A, 16, 0], "w10000+16"),
        (n::UNAME, &[A], "w10000+390"),
        (n::CACHESTAT, &[3, A, B, 0], "r10000+16 w20000+40"),
        (n::LISTMOUNT, &[A, B, 4, 0], "w10000+24 w20000+32"),
        (n::FUTEX_WAKE, &[A, 1, 1, 2], "r10000+8"),
    ] {
        assert_eq!(seen(&nothing, number, arguments), expected, "{} {arguments:x?}", n::name(number).unwrap());
    }
}

#[test]
fn calls_with_pointers_behind_pointers_touch_what_these_name() {
    use number as n;
    let vectors = [B, 10, 0, 5, C, 20];
    let message = [D, 0xdead_0000_0010, A, 3, B + 100, 24, 0];
    let waiters = [1, B, 2, 1, C, 2];
    let thread = [0x3d_0f00, 0, B, C, 0, D, 0x10_0000, 0];
    let memory = Fake::new().with_words(A, &vectors).with_words(A + 0x800, &message).with_words(A + 0x900, &waiters);
    let memory = memory.with_words(A + 0xa00, &thread).with_words(A + 0xb00, &[16]).with_words(A + 0xc00, &[B, 8]);
    let memory = memory.with_words(A + 0xd00, &[D, 0, 8192, D, 2, 8192]).with_words(A + 0xe00, &[112, 24 << 32 | 7]);
    for (number, arguments, expected) in [
        (n::READV, &[3, A, 3] as &[u64], "r10000+48 w20000+10 w30000+20"),
        (n::PWRITEV2, &[3, A, 3, 0, 0, 0], "r10000+48 r20000+10 r30000+20"),
        (n::READV, &[3, A, 1025], ""),
        (n::READV, &[3, 0x7000_0000, 2], "r70000000+32"),
        (n::SENDMSG, &[3, A + 0x800, 0], "r10800+56 r40000+16 r10000+48 r20000+10 r30000+20 r20064+24"),
        (n::RECVMSG, &[3, A + 0x800, 0], "w10800+56 w40000+16 r10000+48 w20000+10 w30000+20 w20064+24"),
        (
            n::RECVMMSG,
            &[3, A + 0x800, 1, 0, B],
            "w10800+64 w40000+16 r10000+48 w20000+10 w30000+20 w20064+24 w20000+16",
        ),
        (n::ACCEPT, &[3, B, A + 0xb00], "w10b00+4 w20000+16"),
        (n::GETSOCKOPT, &[3, 1, 2, B, A + 0xb00], "w10b00+4 w20000+16"),
        (n::ACCEPT, &[3, 0, 0], ""),
        (n::GETSOCKOPT, &[3, 1, 26, B, A + 0xb00], "w10b00+4 w20000+16 w20000+128"),
        (n::FUTEX_WAITV, &[A + 0x900, 2, 0, D, 0], "r10900+48 r20000+8 r30000+8 r40000+16"),
        (n::CLONE3, &[A + 0xa00, 64], "r10a00+64 w30000+4 k20000+4 k13c000+16384"),
        (n::PSELECT6, &[0, 0, 0, 0, 0, A + 0xc00], "r10c00+16 r20000+8"),
        (n::SIGALTSTACK, &[A + 0xd00, B], "r10d00+24 w20000+24 k40000+8192"),
        (n::SIGALTSTACK, &[A + 0xd18, B], "r10d18+24 w20000+24"),
        (n::SCHED_SETATTR, &[0, A + 0xb00, 0], "w10b00+48"),
        (n::PERF_EVENT_OPEN, &[A + 0xe00, 0, 0, 0, 0], "w10e00+64"),
        (n::PROCESS_VM_READV, &[42, A, 1, A + 32, 1], "r10000+16 w20000+10 r10020+16 r30000+20"),
        (n::PROCESS_VM_READV, &[43, A, 1, A + 32, 1], "r10000+16 w20000+10 r10020+16"),
        (n::PROCESS_VM_WRITEV, &[42, A, 1, A + 32, 1], "r10000+16 r20000+10 r10020+16 w30000+20"),
    ] {
        assert_eq!(seen(&memory, number, arguments), expected, "{} {arguments:x?}", n::name(number).unwrap());
    }
}

#[test]
fn the_locks_of_a_thread_that_ends_are_followed() {
    let memory = Fake::new().with_words(A, &[B, 0xffff_ffff_ffff_ffe0, C]).with_words(B, &[D | 1]).with_words(D, &[A]);
    let mut seen = Vec::new();
    robust_list(A, &memory, &mut |buffer: Buffer| seen.push((buffer.start, buffer.bytes, buffer.access)));
    let locks = [(C - 32, 4, Access::Write), (B, 8, Access::Read), (B - 32, 4, Access::Write)];
    let more = [(D, 8, Access::Read), (D - 32, 4, Access::Write)];
    assert_eq!(seen, [&[(A, 24, Access::Read)], &locks[..], &more[..]].concat());
    // A list that never comes back to its head.
    let endless = Fake::new().with_words(A, &[B, 0, 0]).with_words(B, &[B]);
    let mut count = 0;
    robust_list(A, &endless, &mut |_| count += 1);
    assert_eq!(count, 1 + 2 * 2048);
}

#[test]
fn strings_end_where_they_end() {
    use number as n;
    let memory = Fake::new().with(A + 5, b"a long name\0").with(B, b"x\0").with_words(C, &[A + 5, B, 0, B]);
    let memory = memory.with(D - 8, b"no end..");
    for (number, arguments, expected) in [
        (n::OPEN, &[A + 5] as &[u64], "r10005+12"),
        (n::OPENAT, &[0, B], "r20000+2"),
        (n::RENAME, &[A + 5, B], "r10005+12 r20000+2"),
        (n::READLINK, &[B, C, 9], "r20000+2 w30000+9"),
        (n::SETXATTR, &[B, A + 5, C, 8], "r20000+2 r10005+12 r30000+8"),
        (
            n::EXECVE,
            &[B, C, C + 8],
            "r20000+2 r30000+8 r10005+12 r30008+8 r20000+2 r30010+8 r30008+8 r20000+2 r30010+8",
        ),
        // The string runs into memory that cannot be read: the readable part is named, and the kernel returns the
        // error.
        (n::OPEN, &[D - 8], "r3fff8+8"),
        (n::OPEN, &[D - 3], "r3fffd+3"),
        (n::OPEN, &[0], ""),
    ] {
        assert_eq!(seen(&memory, number, arguments), expected, "{} {arguments:x?}", n::name(number).unwrap());
    }
}

#[test]
fn a_string_without_an_end_is_followed_as_far_as_the_kernel_does() {
    let memory = Fake { words: BTreeMap::new(), elsewhere: Some(u64::MAX) };
    assert_eq!(seen(&memory, number::OPEN, &[A + 3]), "r10003+4096");
    assert_eq!(seen(&memory, number::SETHOSTNAME, &[A, 10]), "r10000+10");
    assert_eq!(seen(&memory, number::PRCTL, &[15, A + 1]), "r10001+16");
}

#[test]
fn what_the_pager_rests_on_is_told_apart() {
    use number as n;
    assert_eq!(kind(call(n::GETPID, &[])), Kind::Plain);
    assert_eq!(kind(call(n::MREMAP, &[])), Kind::Memory);
    assert_eq!(kind(call(n::CLONE3, &[])), Kind::Process);
    assert_eq!(kind(call(n::FCNTL, &[3, 1030, 0])), Kind::Descriptor);
    assert_eq!(kind(call(n::FCNTL, &[3, 3, 0])), Kind::Plain);
    assert_eq!(kind(call(n::PPOLL, &[])), Kind::Signal(Signal::MaskDuring { set: 3, bytes: 4 }));
    let parts = |vectors, access, offset| Kind::Transfer { address: 1, length: 2, vectors, access, offset };
    assert_eq!(kind(call(n::READ, &[])), parts(false, Access::Write, None));
    assert_eq!(kind(call(n::PWRITEV, &[])), parts(true, Access::Read, Some(3)));
    assert_eq!(kind(call(n::PREADV2, &[3, A, 1, u64::MAX])), parts(true, Access::Write, None));
    let errno = |call| match kind(call) {
        Kind::Refused { errno, .. } => errno,
        _ => 0,
    };
    assert_eq!(errno(call(n::IO_URING_SETUP, &[])), 38);
    assert_eq!(errno(call(n::SECCOMP, &[1])), 38);
    assert_eq!(errno(call(n::SECCOMP, &[2])), 0);
    assert_eq!(errno(call(n::PRCTL, &[22])), 22);
    assert_eq!(errno(call(n::PRCTL, &[59])), 22);
    assert_eq!(errno(call(n::PRCTL, &[15])), 0);
    assert_eq!(errno(call(n::VMSPLICE, &[])), 22);
    assert_eq!(errno(call(n::SETSOCKOPT, &[3, 1, 60])), 95);
}

#[test]
fn every_set_of_signals_that_kind_names_is_a_buffer() {
    let arguments = [A, B, C, D, A + 0x100, B + 0x100];
    let memory = Fake { words: BTreeMap::new(), elsewhere: Some(0) };
    for number in 0..=number::RSEQ_SLICE_YIELD {
        let (Signal::MaskDuring { set, .. } | Signal::Takes { set, .. } | Signal::MaskDuringBehind { pair: set }) =
            (match kind(call(number, &arguments)) {
                Kind::Signal(signal) => signal,
                _ => continue,
            })
        else {
            continue;
        };
        let mut found = false;
        buffers(call(number, &arguments), &memory, &mut |buffer: Buffer| found |= buffer.start == arguments[set]);
        assert!(found, "{:?}", number::name(number));
    }
}

/// Arguments that are likely addresses or counts, and any others.
fn any_argument() -> impl Strategy<Value = u64> {
    prop_oneof![
        any::<u64>(),
        0..64_u64,
        A..A + 0x1000,
        USER_END - 64..USER_END + 64,
        u64::MAX - 64..=u64::MAX,
        Just(0x8910_0000_u64),
    ]
}

proptest! {
    #[test]
    fn nonsense_is_answered_with_buffers_inside_user_memory(
        number in 0..500_u32,
        arguments in proptest::array::uniform6(any_argument()),
        words in proptest::collection::vec(any_argument(), 64),
        elsewhere in proptest::option::of(any_argument()),
    ) {
        let memory = Fake { words: (A..).step_by(8).zip(words).collect(), elsewhere };
        let mut wrong = None;
        buffers(Call { number, arguments }, &memory, &mut |buffer: Buffer| {
            let end = buffer.start.checked_add(buffer.bytes);
            if buffer.start < USER_START || buffer.bytes == 0 || end.is_none_or(|end| end > USER_END) {
                wrong = Some(buffer);
            }
        });
        prop_assert_eq!(wrong, None);
        robust_list(arguments[0], &memory, &mut |buffer: Buffer| assert!(buffer.start + buffer.bytes <= USER_END));
        let _ = kind(Call { number, arguments });
    }

    #[test]
    fn operations_with_any_number_are_answered(
        family in proptest::sample::select(vec![
            number::IOCTL, number::PRCTL, number::PTRACE, number::KEYCTL, number::BPF, number::FUTEX, number::FCNTL,
        ]),
        operation in prop_oneof![0..64_u64, 0x4200..0x4220_u64, any::<u64>()],
        arguments in proptest::array::uniform6(any_argument()),
        elsewhere in proptest::option::of(any_argument()),
    ) {
        let memory = Fake { words: BTreeMap::new(), elsewhere };
        let mut arguments = arguments;
        arguments[usize::from(family == number::IOCTL || family == number::FUTEX || family == number::FCNTL)] = operation;
        buffers(Call { number: family, arguments }, &memory, &mut |buffer: Buffer| {
            assert!(buffer.start + buffer.bytes <= USER_END);
        });
    }
}
