use proptest::prelude::*;

use units::Address;

use super::tracee::{Stop, SystemCallInfo, decode, entered_again, is_within, mask_during_call, pending};
use super::tracer::{Message, syscall_in, vdso_in};
use super::*;
use crate::Rooted;
use crate::fake::FakeKernel;
use crate::quiet_process::QuietProcess;
use crate::seccomp_filter::{Action, Filter, Instruction};
use crate::status::HugePages;

#[test]
fn the_instruction_is_found_wherever_it_stands() {
    assert_eq!(syscall_in(&[0x90, 0x0f, 0x05, 0xc3]), Some(1));
    assert_eq!(syscall_in(&[0x0f, 0x0f, 0x05]), Some(1));
    assert_eq!(syscall_in(&[0x05, 0x0f]), None);
    assert_eq!(syscall_in(&[]), None);
}

#[test]
fn the_vdso_is_the_kernels_own_executable_mapping_alone() {
    let is = |line: &str| vdso_in(line.into()).is_some();
    assert!(is("800000-802000 r-xp 00000000 00:00 0                          [vdso]"));
    assert!(!is("800000-802000 rwxp 00000000 00:00 0                          [vdso]"), "writable");
    assert!(!is("800000-802000 r-xs 00000000 00:00 0                          [vdso]"), "shared");
    assert!(!is("800000-802000 r--p 00000000 00:00 0                          [vdso]"), "not executable");
    assert!(!is("800000-802000 r-xp 00000000 08:01 7                          [vdso]"), "a file");
    assert!(!is("800000-802000 r-xp 00000000 08:01 7                          /tmp/[vdso]"), "a file");
    assert!(!is("900000-901000 r-xp 00000000 00:00 0                          [vsyscall]"));
}

#[test]
fn the_vdso_is_found_beside_names_that_are_no_text_or_end_like_its_own() {
    let maps = b"700000-701000 rw-s 00000000 08:01 7                          /tmp/data\xff\xfe.bin
710000-711000 r-xp 00000000 08:01 8                          /tmp/[vdso]
800000-802000 r-xp 00000000 00:00 0                          [vdso]
";
    assert_eq!(vdso_in(maps.to_vec()).map(|vdso| vdso.range.start()), Some(Address(0x80_0000)));
}

fn entry() -> SystemCallInfo {
    SystemCallInfo {
        op: numbers::PTRACE_SYSCALL_INFO_ENTRY,
        padding: [0; 3],
        arch: numbers::AUDIT_ARCH_X86_64,
        instruction_pointer: 0x8000_0002,
        stack_pointer: 0x7000_0000,
        number: libc::SYS_prctl.cast_unsigned(),
        arguments: [41, 1, 0, 0, 0, 99],
    }
}

#[test]
fn only_the_very_call_at_the_very_instruction_is_let_run() {
    let call = Call { number: libc::SYS_prctl, arguments: [41, 1, 0, 0, 0] };
    let runs = |info: SystemCallInfo| info.is_entry_of(call, Address(0x8000_0000));
    assert!(runs(entry()));
    assert!(!runs(SystemCallInfo { op: numbers::PTRACE_SYSCALL_INFO_EXIT, ..entry() }), "an exit");
    assert!(!runs(SystemCallInfo { arch: 0x4000_0003, ..entry() }), "int 0x80");
    assert!(!runs(SystemCallInfo { instruction_pointer: 0x8000_0010, ..entry() }), "another place");
    assert!(!runs(SystemCallInfo { number: libc::SYS_execve.cast_unsigned(), ..entry() }), "another call");
    for place in 0..5 {
        let mut info = entry();
        info.arguments[place] ^= 1;
        assert!(!runs(info), "argument {place}");
    }
}

#[test]
fn a_skipped_call_is_one_that_the_filters_do_not_kill_for() {
    let of = |program: &[(u16, u8, u8, u32)]| {
        let program = program.iter().map(|(code, jt, jf, k)| Instruction { code: *code, jt: *jt, jf: *jf, k: *k });
        super::tracee::skipping_call(&[Filter::new(program.collect())], &entry())
    };
    let kill = (0x06, 0, 0, 0x8000_0000);
    let allow = (0x06, 0, 0, 0x7fff_0000);
    assert_eq!(of(&[allow]), -1);
    assert_eq!(of(&[(0x06, 0, 0, 0x0005_0001)]), -1, "an error has no effect either");
    // Lets getpid (39) pass, and kills for the rest.
    assert_eq!(of(&[(0x20, 0, 0, 0), (0x15, 0, 1, 39), allow, kill]), libc::SYS_getpid);
}

#[test]
fn faults_keep_their_place_in_the_mask_and_all_else_is_blocked() {
    let segv = 1 << (libc::SIGSEGV - 1);
    assert_eq!(mask_during_call(0) & segv, 0);
    assert_eq!(mask_during_call(segv) & segv, segv, "blocked by the thread itself");
    assert_ne!(mask_during_call(0) & 1 << (libc::SIGTERM - 1), 0);
}

#[test]
fn stops_are_told_apart() {
    let stopped = |signal: i32, event: i32| event << 16 | signal << 8 | 0x7f;
    assert_eq!(decode(stopped(libc::SIGTRAP, 128)), Stop::Requested);
    assert_eq!(decode(stopped(libc::SIGTSTP, 128)), Stop::Requested, "a group stop");
    assert_eq!(decode(stopped(libc::SIGTRAP | 0x80, 0)), Stop::SystemCall);
    assert_eq!(decode(stopped(libc::SIGALRM, 0)), Stop::Signal(libc::SIGALRM));
    assert_eq!(decode(stopped(libc::SIGTRAP, libc::PTRACE_EVENT_EXEC)), Stop::Exec);
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

/// Its last system call, a read, is restarted: the process ends only when it is told to.
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
            Err(NotCalled::Kernel(Error::Denied(_))) => return, // a security rule about tracing
            done => done.unwrap(),
        }
        assert_eq!(status::status(&host, quiet.pid()).unwrap().huge_pages, expected);
        assert_eq!(status::status(&host, quiet.pid()).unwrap().tracer, None);
    }
}

#[test]
fn messages_of_the_tracer_come_back_as_they_were() {
    let failed = [
        Failed::Filtered(Ok(Action::UserNotif)),
        Failed::Filtered(Err(Errno::ACCESS)),
        Failed::NoStop,
        Failed::Exec,
        Failed::Foreign,
        Failed::NoCall,
        Failed::NoInstruction,
        Failed::Ended,
    ];
    let failed = failed.into_iter().chain([Failed::Kernel(Errno::PERM)]).map(Message::Failed);
    for message in failed.chain([Message::Changing, Message::Answer(-22), Message::Answer(0)]) {
        assert_eq!(Message::of_bytes(message.to_bytes()), Some(message));
    }
    assert_eq!(Message::of_bytes([0; 16]), None);
}

proptest! {
    #[test]
    fn what_is_found_is_the_instruction(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
        if let Some(at) = syscall_in(&bytes) {
            prop_assert_eq!(&bytes[at..at + 2], &[0x0f, 0x05]);
        }
    }
}
