//! Seccomp filters and one call: the call (64 bytes), then instructions of up to three filters (8 bytes each; a code of
//! `0xff00` ends a filter). Filters that the kernel accepts give the answer of a second, simple interpreter, together
//! the kernel's strictest; any others give one without a panic.

use linux::seccomp_filter::{Action, Filter, Instruction, SystemCall, action};

/// Codes that the kernel allows in a filter, half of them chosen by the low byte alone.
const CODES: [u16; 40] = [
    0x20, 0x80, 0x81, 0x06, 0x16, 0x04, 0x0c, 0x14, 0x1c, 0x24, 0x2c, 0x34, 0x3c, 0x54, 0x5c, 0x44, 0x4c, 0xa4, 0xac,
    0x64, 0x6c, 0x74, 0x7c, 0x84, 0x00, 0x01, 0x07, 0x87, 0x60, 0x61, 0x02, 0x03, 0x05, 0x15, 0x1d, 0x35, 0x3d, 0x25,
    0x2d, 0x45,
];
const JSET_X: u16 = 0x4d;
const FILTERS_MAX: usize = 3;

/// Runs one input; true when the kernel would have accepted all of its filters.
pub fn run(bytes: &[u8]) -> bool {
    let Some((head, rest)) = bytes.split_first_chunk::<64>() else { return false };
    let long = |at: usize| u64::from_le_bytes(head[at..at + 8].try_into().expect("eight bytes"));
    let call = SystemCall {
        number: i32::from_le_bytes(head[..4].try_into().expect("four bytes")),
        arch: u32::from_le_bytes(head[4..8].try_into().expect("four bytes")),
        instruction_pointer: long(8),
        arguments: [16, 24, 32, 40, 48, 56].map(long),
    };
    let mut programs = vec![Vec::new()];
    for bytes in rest.chunks_exact(8) {
        let [low, high, jt, jf, k @ ..] = bytes else { continue };
        if (*low, *high) == (0, 0xff) && programs.len() < FILTERS_MAX {
            programs.push(Vec::new());
            continue;
        }
        let code = match (high, CODES.get(usize::from(*low) % 41)) {
            (128.., _) => u16::from_le_bytes([*low, high & 0x7f]),
            (_, Some(code)) => *code,
            (_, None) => JSET_X,
        };
        let k = u32::from_le_bytes(k.try_into().expect("four bytes"));
        programs.last_mut().expect("one at least").push(Instruction { code, jt: *jt, jf: *jf, k });
    }
    let filters: Vec<Filter> = programs.iter().cloned().map(Filter::new).collect();
    let answer = action(&filters, &call);
    if !programs.iter().all(|program| is_accepted(program)) {
        return false;
    }
    let answers: Vec<u32> = programs.iter().map(|program| simple(program, head)).collect();
    for (filter, answer) in filters.iter().zip(&answers) {
        assert_eq!(filter.action(&call), of(*answer), "{programs:?}");
    }
    let strictest = answers.iter().map(|answer| (answer & 0xffff_0000).cast_signed()).min();
    assert_eq!(answer, of(strictest.expect("one at least").cast_unsigned()), "{programs:?}");
    true
}

/// The kernel's `bpf_check_classic` and `seccomp_check_filter`.
fn is_accepted(program: &[Instruction]) -> bool {
    let length = program.len();
    if length == 0 || length > 4096 || !matches!(program[length - 1].code, 0x06 | 0x16) {
        return false;
    }
    // Words of memory that are written on each way to an instruction.
    let mut known = vec![u16::MAX; length + 1];
    let mut written = 0u16;
    for (at, Instruction { code, jt, jf, k }) in program.iter().copied().enumerate() {
        if !CODES.contains(&code) && code != JSET_X {
            return false;
        }
        written &= known[at];
        let left = length - at - 1;
        let jump = |far: u64| far < left as u64;
        let fits = match code {
            0x20 => k < 64 && k % 4 == 0,
            0x34 => k != 0,
            0x64 | 0x74 => k < 32,
            0x60 | 0x61 => k < 16 && written & 1 << k != 0,
            0x02 | 0x03 => k < 16,
            0x05 => jump(k.into()),
            0x15..=0x4d if code & 7 == 5 => jump(jt.into()) && jump(jf.into()),
            _ => true,
        };
        if !fits {
            return false;
        }
        match code {
            0x02 | 0x03 => written |= 1 << k,
            0x05 => {
                known[at + 1 + k as usize] &= written;
                written = u16::MAX;
            }
            _ if code & 7 == 5 => {
                known[at + 1 + usize::from(jt)] &= written;
                known[at + 1 + usize::from(jf)] &= written;
                written = u16::MAX;
            }
            _ => {}
        }
    }
    true
}

/// Runs an accepted program, in numbers of 64 bits.
fn simple(program: &[Instruction], data: &[u8; 64]) -> u32 {
    const WORD: u64 = 1 << 32;
    let (mut a, mut x, mut memory, mut at) = (0u64, 0u64, [0u64; 16], 0usize);
    loop {
        let Instruction { code, jt, jf, k } = program[at];
        let (class, operation, is_x) = (code & 7, code & 0xf0, code & 8 != 0);
        let (k, slot) = (u64::from(k), k as usize);
        let other = if is_x { x } else { k };
        at += 1;
        match (class, code) {
            (0, 0x20) => a = u32::from_ne_bytes(data[slot..slot + 4].try_into().expect("four bytes")).into(),
            (0, 0x80) => a = 64,
            (0, 0x00) => a = k,
            (0, _) => a = memory[slot],
            (1, 0x81) => x = 64,
            (1, 0x01) => x = k,
            (1, _) => x = memory[slot],
            (2, _) => memory[slot] = a,
            (3, _) => memory[slot] = x,
            (4, _) => {
                a = match operation {
                    0x00 => a + other,
                    0x10 => a + WORD - other,
                    0x20 => u64::try_from(u128::from(a) * u128::from(other) % u128::from(WORD)).expect("a word"),
                    0x30 if other == 0 => return 0,
                    0x30 => a / other,
                    0x40 => a | other,
                    0x50 => a & other,
                    0x60 => a << (other % 32),
                    0x70 => a >> (other % 32),
                    0x80 => WORD - a,
                    _ => a ^ other,
                } % WORD;
            }
            (5, 0x05) => at += slot,
            (5, _) => {
                let holds = match operation {
                    0x10 => a == other,
                    0x20 => a > other,
                    0x30 => a >= other,
                    _ => a & other != 0,
                };
                at += usize::from(if holds { jt } else { jf });
            }
            (6, _) => return if operation == 0x10 { a as u32 } else { k as u32 },
            (_, 0x07) => x = a,
            _ => a = x,
        }
    }
}

fn of(answer: u32) -> Action {
    const KNOWN: [(u32, Action); 7] = [
        (0, Action::KillThread),
        (0x3_0000, Action::Trap),
        (0x5_0000, Action::Errno),
        (0x7fc0_0000, Action::UserNotif),
        (0x7ff0_0000, Action::Trace),
        (0x7ffc_0000, Action::Log),
        (0x7fff_0000, Action::Allow),
    ];
    let known = KNOWN.into_iter().find(|(number, _)| *number == answer & 0xffff_0000);
    known.map_or(Action::KillProcess, |(_, action)| action)
}
