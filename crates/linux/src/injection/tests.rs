use proptest::prelude::*;

use super::tracee::{Stop, decode, entered_again, is_within, pending};
use super::*;
use crate::Rooted;
use crate::fake::FakeKernel;
use crate::quiet_process::QuietProcess;
use crate::status::HugePages;

#[test]
fn the_instruction_is_found_wherever_it_stands() {
    assert_eq!(syscall_in(&[0x90, 0x0f, 0x05, 0xc3]), Some(1));
    assert_eq!(syscall_in(&[0x0f, 0x0f, 0x05]), Some(1));
    assert_eq!(syscall_in(&[0x05, 0x0f]), None);
    assert_eq!(syscall_in(&[]), None);
}

#[test]
fn the_kernels_page_comes_before_the_library_and_that_before_other_code() {
    let maps = maps::parse(
        "400000-500000 r-xp 00000000 08:01 11 /usr/bin/x\n\
         500000-600000 rw-p 00000000 00:00 0 \n\
         600000-700000 r-xp 00000000 08:01 12 /usr/lib/x86_64-linux-gnu/libc.so.6\n\
         700000-800000 r--p 00000000 08:01 12 /usr/lib/x86_64-linux-gnu/libc.so.6\n\
         800000-802000 r-xp 00000000 00:00 0 [vdso]\n\
         900000-901000 --xp 00000000 00:00 0 [vsyscall]\n",
        "maps",
    )
    .unwrap();
    let found: Vec<u64> = candidates(&maps).iter().map(|mapping| mapping.range.start().0).collect();
    assert_eq!(found, [0x80_0000, 0x60_0000, 0x40_0000]);
}

#[test]
fn stops_are_told_apart() {
    let stopped = |signal: i32, event: i32| event << 16 | signal << 8 | 0x7f;
    assert_eq!(decode(stopped(libc::SIGTRAP, 128)), Stop::Asked);
    assert_eq!(decode(stopped(libc::SIGTSTP, 128)), Stop::Asked, "a group stop");
    assert_eq!(decode(stopped(libc::SIGTRAP | 0x80, 0)), Stop::SystemCall);
    assert_eq!(decode(stopped(libc::SIGALRM, 0)), Stop::Signal(libc::SIGALRM));
    assert_eq!(decode(0), Stop::Ended, "exited");
    assert_eq!(decode(libc::SIGKILL), Stop::Ended, "killed");
}

#[test]
fn a_restartable_sequence_ends_before_its_length() {
    assert!(is_within(0x1000, 0x1000, 8) && is_within(0x1007, 0x1000, 8));
    assert!(!is_within(0x1008, 0x1000, 8) && !is_within(0xfff, 0x1000, 8));
}

fn stopped_in(call: i64, answer: i64) -> libc::user_regs_struct {
    // SAFETY: registers are plain numbers, for which zeros are valid.
    let none: libc::user_regs_struct = unsafe { std::mem::zeroed() };
    libc::user_regs_struct { rip: 0x1002, orig_rax: call.cast_unsigned(), rax: answer.cast_unsigned(), ..none }
}

#[test]
fn a_call_that_would_answer_eintr_is_made_again_if_it_has_done_nothing() {
    let eintr = -i64::from(libc::EINTR);
    let again = entered_again(stopped_in(libc::SYS_epoll_wait, eintr));
    assert_eq!((again.rip, again.rax), (0x1000, libc::SYS_epoll_wait.cast_unsigned()));
    // One event, a call that may have done something, one that the kernel restarts, and no call at all.
    for (call, answer) in [(libc::SYS_epoll_wait, 1), (libc::SYS_connect, eintr), (libc::SYS_read, -512), (-1, eintr)] {
        let found = entered_again(stopped_in(call, answer));
        assert_eq!((found.rip, found.rax), (0x1002, answer.cast_unsigned()), "{call} {answer}");
    }
}

#[test]
fn signals_wait_for_a_thread_or_for_all() {
    let status = "Name:\tx\nSigPnd:\t0000000000000002\nShdPnd:\t0000000000002000\nSigBlk:\t00000000ffffffff\n";
    assert_eq!(pending(status), 0x2002);
    assert_eq!(pending("SigPnd:\tx\n"), 0);
}

#[test]
fn a_process_that_is_not_there_is_gone() {
    let error = forbid_huge_pages(&FakeKernel::new(), Pid(4_194_304), true).unwrap_err();
    assert!(error.is_gone(), "{error}");
}

/// Its last system call, a read, goes on as if nothing had happened: the process ends only when it is told to.
#[test]
fn a_process_of_our_own_gets_the_flag_and_loses_it() {
    if crate::status::status(&Rooted::host(), Pid::own()).unwrap().seccomp != Seccomp::Off {
        return; // a sandbox: its children are filtered too
    }
    let quiet = QuietProcess::start();
    let host = Rooted::host();
    for (forbid, expected) in [(true, HugePages::Forbidden), (true, HugePages::Forbidden), (false, HugePages::Allowed)]
    {
        match forbid_huge_pages(&host, quiet.pid(), forbid) {
            Err(Error::Denied(_)) => return, // somebody else's rule about tracing
            done => done.unwrap(),
        }
        assert_eq!(status::status(&host, quiet.pid()).unwrap().huge_pages, expected);
        assert_eq!(status::status(&host, quiet.pid()).unwrap().tracer, None);
    }
}

proptest! {
    #[test]
    fn what_is_found_is_the_instruction(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
        if let Some(at) = syscall_in(&bytes) {
            prop_assert_eq!(&bytes[at..at + 2], &[0x0f, 0x05]);
        }
    }
}
