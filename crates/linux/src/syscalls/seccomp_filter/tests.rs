use proptest::prelude::*;

use super::*;

const X86_64: u32 = 0xc000_003e;

fn prctl() -> SystemCall {
    SystemCall { number: 157, arch: X86_64, instruction_pointer: 0x1_0000_2000, arguments: [41, 1, 0, 0, 0, 0] }
}

fn filter(program: &[(u16, u8, u8, u32)]) -> Filter {
    Filter::new(program.iter().map(|(code, jt, jf, k)| Instruction { code: *code, jt: *jt, jf: *jf, k: *k }).collect())
}

fn returns(answer: u32) -> Filter {
    filter(&[(0x06, 0, 0, answer)])
}

#[test]
fn every_action_is_told_apart_and_an_unknown_one_kills() {
    let of = |answer| returns(answer).action(&prctl());
    assert_eq!(of(0x7fff_0000), Action::Allow);
    assert_eq!(of(0x7ffc_0000), Action::Log);
    assert_eq!(of(0x7ff0_0007), Action::Trace);
    assert_eq!(of(0x7fc0_0000), Action::UserNotif);
    assert_eq!(of(0x0005_0001), Action::Errno);
    assert_eq!(of(0x0003_0000), Action::Trap);
    assert_eq!(of(0), Action::KillThread);
    assert_eq!(of(0x8000_0000), Action::KillProcess);
    assert_eq!(of(0x1234_0000), Action::KillProcess);
    assert!(Action::Log.passes() && Action::Allow.passes() && !Action::Trace.passes());
}

#[test]
fn the_strictest_of_several_filters_counts() {
    let of = |answers: &[u32]| action(&answers.iter().map(|answer| returns(*answer)).collect::<Vec<_>>(), &prctl());
    assert_eq!(of(&[]), Action::Allow);
    assert_eq!(of(&[0x7fff_0000, 0x0005_0001, 0x7ffc_0000]), Action::Errno);
    assert_eq!(of(&[0x0005_0001, 0x8000_0000, 0]), Action::KillProcess);
}

#[test]
fn number_architecture_address_and_both_halves_of_an_argument_are_seen() {
    let kills_if = |offset, value| {
        filter(&[(0x20, 0, 0, offset), (0x15, 0, 1, value), (0x06, 0, 0, 0x8000_0000), (0x06, 0, 0, 0x7fff_0000)])
    };
    for (offset, value) in [(0, 157), (4, X86_64), (8, 0x2000), (12, 1), (16, 41), (24, 1)] {
        assert_eq!(kills_if(offset, value).action(&prctl()), Action::KillProcess, "{offset}");
        assert_eq!(kills_if(offset, value + 1).action(&prctl()), Action::Allow, "{offset}");
    }
    let high = SystemCall { arguments: [0, 7 << 32, 0, 0, 0, 0], ..prctl() };
    assert_eq!(kills_if(28, 7).action(&high), Action::KillProcess);
    // Unaligned and beyond the data: no program that the kernel accepts.
    assert_eq!(kills_if(2, 0).action(&prctl()), Action::KillProcess);
    assert_eq!(kills_if(64, 0).action(&prctl()), Action::KillProcess);
}

#[test]
fn arithmetic_memory_and_jumps_are_those_of_the_kernel() {
    // A = (41 * 3 + 2) >> 1 = 62; M[3] = A; X = M[3]; A = 0; A |= X; A == 62?
    let program = [
        (0x20, 0, 0, 16),
        (0x24, 0, 0, 3),
        (0x04, 0, 0, 2),
        (0x74, 0, 0, 1),
        (0x02, 0, 0, 3),
        (0x61, 0, 0, 3),
        (0x00, 0, 0, 0),
        (0x4c, 0, 0, 0),
        (0x15, 0, 1, 62),
        (0x05, 0, 0, 1),
        (0x06, 0, 0, 0x8000_0000),
        (0x06, 0, 0, 0x7fff_0000),
    ];
    assert_eq!(filter(&program).action(&prctl()), Action::Allow);
    assert_eq!(filter(&[(0x01, 0, 0, 0), (0x3c, 0, 0, 0)]).action(&prctl()), Action::KillThread, "a division by 0");
    assert_eq!(filter(&[(0x00, 0, 0, 0x7fff_0000), (0x16, 0, 0, 0)]).action(&prctl()), Action::Allow, "returns A");
    assert_eq!(filter(&[(0x05, 0, 0, u32::MAX)]).action(&prctl()), Action::KillProcess, "a jump out of the program");
    assert_eq!(filter(&[]).action(&prctl()), Action::KillProcess);
    assert_eq!(filter(&[(0x40, 0, 0, 0), (0x06, 0, 0, 0x7fff_0000)]).action(&prctl()), Action::KillProcess, "unknown");
}

proptest! {
    #[test]
    fn any_program_ends_with_an_action(
        program in prop::collection::vec((any::<u16>(), any::<u8>(), any::<u8>(), any::<u32>()), 0..64),
        arguments in any::<[u64; 6]>(),
    ) {
        let call = SystemCall { arguments, ..prctl() };
        let small: Vec<_> = program.iter().map(|(code, jt, jf, k)| (code & 0xff, jt % 8, jf % 8, k % 80)).collect();
        for program in [program, small] {
            let answer = filter(&program).action(&call);
            prop_assert!(Action::ALL.contains(&answer));
        }
    }
}

#[test]
fn an_unknown_answer_counts_by_its_number() {
    let call = SystemCall { number: 157, arch: 0, instruction_pointer: 0, arguments: [0; 6] };
    let with = |answers: &[u32]| {
        let filter = |k| Filter::new(vec![Instruction { code: 0x06, jt: 0, jf: 0, k }]);
        action(&answers.iter().copied().map(filter).collect::<Vec<_>>(), &call)
    };
    assert_eq!(with(&[0x1000_0000, 0x5_0001]), Action::Errno);
    assert_eq!(with(&[0x7ffd_0000, 0x7ffc_0000]), Action::Log);
    assert_eq!(with(&[0x7ffd_0000, 0x7fff_0000]), Action::KillProcess);
    assert_eq!(with(&[0x8000_0000, 0]), Action::KillProcess);
}
