//! Calls that are a family each: prctl, arch_prctl, ptrace, keyctl, bpf, and the controls of System V.
//!
//! Sources of the command numbers: `linux/prctl.h`, `asm/prctl.h`, `linux/ptrace.h`, `linux/keyctl.h`, `linux/bpf.h`,
//! `linux/ipc.h` and the three headers beside it. Each number has its name beside it here.

use super::walk::Walk;

/// prctl(option, …).
pub(super) fn prctl(walk: &mut Walk<'_>) {
    let (second, third, fourth) = (walk.argument(1), walk.argument(2), walk.argument(3));
    match walk.int(0) {
        // PR_GET_PDEATHSIG, _UNALIGN, _FPEMU, _FPEXC, _ENDIAN, _TSC, _CHILD_SUBREAPER: an int.
        2 | 5 | 9 | 11 | 19 | 25 | 37 => walk.writes(second, 4),
        // PR_SET_NAME, PR_GET_NAME.
        15 => {
            walk.text(second, 16);
        }
        16 => walk.writes(second, 16),
        // PR_SET_SECCOMP with a filter: refused by `kind`.
        22 => walk.reads(third, 16),
        // PR_SET_MM: the new auxiliary vector, the whole map, or the size of it.
        35 => match second {
            12 => walk.reads(third, fourth.min(4096)),
            14 => memory_map(walk, third, fourth),
            15 => walk.writes(third, 4),
            _ => {}
        },
        // PR_GET_TID_ADDRESS.
        40 => walk.writes(second, 8),
        // PR_SCHED_CORE: the cookie is written by its command 0.
        62 if second == 0 => walk.writes(walk.argument(4), 8),
        // PR_SET_SYSCALL_USER_DISPATCH: the switch is read at each call from then on. Refused by `kind`.
        59 => walk.keeps(walk.argument(4), 1),
        // PR_SET_VMA, PR_SET_VMA_ANON_NAME: a name of at most 80 bytes.
        0x5356_4d41 => {
            walk.text(walk.argument(4), 80);
        }
        // PR_GET_AUXV.
        0x4155_5856 => walk.writes(second, third.min(4096)),
        _ => {}
    }
}

/// `prctl_mm_map`: the auxiliary vector's address is at byte 88, its length in bytes at 96.
fn memory_map(walk: &mut Walk<'_>, start: u64, bytes: u64) {
    walk.reads(start, bytes.min(4096));
    if let (Some(vector_at), Some(bytes_at)) = (start.checked_add(88), start.checked_add(96))
        && let (Some(vector), Some(bytes)) = (walk.word(vector_at), walk.half(bytes_at))
    {
        walk.reads(vector, u64::from(bytes).min(4096));
    }
}

/// arch_prctl(code, address).
pub(super) fn arch_prctl(walk: &mut Walk<'_>) {
    match walk.int(0) {
        // ARCH_GET_FS, ARCH_GET_GS, ARCH_GET_XCOMP_SUPP, _PERM, _GUEST_PERM, ARCH_GET_UNTAG_MASK,
        // ARCH_GET_MAX_TAG_BITS, ARCH_SHSTK_STATUS.
        0x1003 | 0x1004 | 0x1021 | 0x1022 | 0x1024 | 0x4001 | 0x4003 | 0x5005 => walk.writes(walk.argument(1), 8),
        _ => {}
    }
}

/// ptrace(request, pid, address, data): the memory of the tracer. The traced program's memory is in another process.
pub(super) fn ptrace(walk: &mut Walk<'_>) {
    let (address, data) = (walk.argument(2), walk.argument(3));
    match walk.argument(0) {
        // PEEKTEXT, PEEKDATA, PEEKUSR; GETEVENTMSG.
        1..=3 | 0x4201 => walk.writes(data, 8),
        // GETREGS, SETREGS.
        12 => walk.writes(data, 216),
        13 => walk.reads(data, 216),
        // GETFPREGS, SETFPREGS.
        14 => walk.writes(data, 512),
        15 => walk.reads(data, 512),
        // GET_THREAD_AREA, SET_THREAD_AREA.
        25 => walk.writes(data, 16),
        26 => walk.reads(data, 16),
        // ARCH_PRCTL: some of its codes write to the address.
        30 => walk.writes(address, 8),
        // GETSIGINFO, SETSIGINFO.
        0x4202 => walk.writes(data, 128),
        0x4203 => walk.reads(data, 128),
        // GETREGSET, SETREGSET: data is one iovec, whose length is replaced.
        0x4204 | 0x4205 => {
            walk.writes(data, 16);
            if let (Some(base), Some(bytes)) = (walk.word(data), data.checked_add(8).and_then(|at| walk.word(at))) {
                walk.writes(base, bytes.min(1 << 20));
            }
        }
        // PEEKSIGINFO: address is offset, flags and, at 12, the count.
        0x4209 => {
            walk.reads(address, 16);
            let count = address.checked_add(12).and_then(|at| walk.half(at)).unwrap_or(0);
            walk.writes(data, u64::from(count) * 128);
        }
        // GETSIGMASK, SETSIGMASK.
        0x420a => walk.writes(data, 8),
        0x420b => walk.reads(data, 8),
        // SECCOMP_GET_FILTER: at most 4096 instructions.
        0x420c => walk.writes(data, 4096 * 8),
        // SECCOMP_GET_METADATA, GET_SYSCALL_INFO, GET_RSEQ_CONFIGURATION, the configuration of Syscall User Dispatch,
        // SET_SYSCALL_INFO: address is the size.
        0x420d..=0x4212 => walk.writes(data, address.min(4096)),
        _ => {}
    }
}

/// keyctl(command, …).
pub(super) fn keyctl(walk: &mut Walk<'_>) {
    let (second, third, fourth, fifth) = (walk.argument(1), walk.argument(2), walk.argument(3), walk.argument(4));
    match walk.int(0) {
        // JOIN_SESSION_KEYRING.
        1 => {
            walk.text(second, 4096);
        }
        // UPDATE.
        2 => walk.reads(third, fourth.min(1 << 20)),
        // DESCRIBE, READ, GET_SECURITY.
        6 | 11 | 17 => walk.writes(third, fourth.min(1 << 20)),
        // SEARCH: type and description.
        10 => {
            walk.text(third, 32);
            walk.text(fourth, 4096);
        }
        // INSTANTIATE.
        12 => walk.reads(third, fourth.min(1 << 20)),
        // INSTANTIATE_IOV.
        20 => walk.vectors(third, fourth, super::Access::Read),
        // DH_COMPUTE: three keys, a result, and the parameters of a hash: its name, other bytes and their count.
        23 => {
            walk.reads(second, 12);
            walk.writes(third, fourth.min(1 << 20));
            walk.reads(fifth, 64);
            if let (Some(name), Some(other)) = (walk.word(fifth), fifth.checked_add(8).and_then(|at| walk.word(at))) {
                walk.text(name, 128);
                let bytes = fifth.checked_add(16).and_then(|at| walk.half(at)).unwrap_or(0);
                walk.reads(other, u64::from(bytes).min(4096));
            }
        }
        // PKEY_QUERY: information as text, and the answer.
        24 => {
            walk.text(fourth, 4096);
            walk.writes(fifth, 48);
        }
        // PKEY_ENCRYPT, _DECRYPT, _SIGN, _VERIFY: lengths in a struct, text, input, and output or a second input.
        25..=28 => {
            walk.reads(second, 32);
            walk.text(third, 4096);
            let length = |walk: &Walk<'_>, by: u64| second.checked_add(by).and_then(|at| walk.half(at)).unwrap_or(0);
            let (input, output) = (length(walk, 4), length(walk, 8));
            walk.reads(fourth, u64::from(input).min(1 << 20));
            walk.writes(fifth, u64::from(output).min(1 << 20));
        }
        // RESTRICT_KEYRING.
        29 => {
            walk.text(third, 32);
            walk.text(fourth, 4096);
        }
        // CAPABILITIES.
        31 => walk.writes(second, third.min(4096)),
        _ => {}
    }
}

/// Largest key or value of a BPF map that is mapped in. The kernel knows the true size; the call does not carry it.
const BPF_ELEMENT: u64 = 64 << 10;

/// bpf(command, attributes, size): the attributes count as written, since some commands answer in them.
pub(super) fn bpf(walk: &mut Walk<'_>) {
    let (command, start, bytes) = (walk.int(0), walk.argument(1), u64::from(walk.int(2)).min(4096));
    walk.writes(start, bytes);
    if start == 0 || start >= super::USER_END - 4096 {
        return;
    }
    let field = |walk: &Walk<'_>, at: u64| if at + 8 <= bytes { walk.word(start + at).unwrap_or(0) } else { 0 };
    let count = |walk: &Walk<'_>, at: u64| field(walk, at) & 0xffff_ffff;
    match command {
        // MAP_LOOKUP, UPDATE, DELETE, GET_NEXT_KEY, LOOKUP_AND_DELETE: key and value or next key.
        1..=4 | 21 => {
            walk.writes(field(walk, 8), BPF_ELEMENT);
            walk.writes(field(walk, 16), BPF_ELEMENT);
        }
        // The same for many: in and out batch, keys, values.
        24..=27 => {
            for at in [0, 8, 16, 24] {
                walk.writes(field(walk, at), BPF_ELEMENT.saturating_mul(count(walk, 32).clamp(1, 1 << 16)));
            }
        }
        // PROG_LOAD: instructions at 8 and their count at 4, licence, log at 32 and its size at 28.
        5 => {
            walk.reads(field(walk, 8), count(walk, 4) * 8);
            walk.text(field(walk, 16), 128);
            walk.writes(field(walk, 32), count(walk, 28));
            // The functions', lines' and relocations' records: address, bytes of one, count.
            for (at, each, how_many) in [(80, 76, 88), (96, 92, 104), (128, 136, 116)] {
                let bytes = count(walk, each).saturating_mul(count(walk, how_many)).min(1 << 24);
                walk.reads(field(walk, at), bytes);
            }
            walk.reads(field(walk, 120), BPF_ELEMENT);
        }
        // OBJ_PIN, OBJ_GET: a path.
        6 | 7 => {
            walk.text(field(walk, 0), 4096);
        }
        // PROG_TEST_RUN: data at 16 and 24, their sizes at 8 and 12; context at 48 and 56, its sizes at 40 and 44.
        10 => {
            walk.reads(field(walk, 16), count(walk, 8));
            walk.writes(field(walk, 24), count(walk, 12));
            walk.reads(field(walk, 48), count(walk, 40));
            walk.writes(field(walk, 56), count(walk, 44));
        }
        // OBJ_GET_INFO_BY_FD: its size at 4, its address at 8. Pointers in the answer are not followed.
        15 => walk.writes(field(walk, 8), count(walk, 4)),
        // PROG_QUERY: programs' numbers at 16, their count at 24.
        16 => walk.writes(field(walk, 16), count(walk, 24) * 4),
        // RAW_TRACEPOINT_OPEN.
        17 => {
            walk.text(field(walk, 0), 128);
        }
        // BTF_LOAD: type information at 0 and its size at 16, log at 8 and its size at 20.
        18 => {
            walk.reads(field(walk, 0), count(walk, 16));
            walk.writes(field(walk, 8), count(walk, 20));
        }
        _ => {}
    }
}

/// Commands of System V carry this bit on some machines.
const IPC_64: u32 = 0x100;

/// shmctl(id, command, address).
pub(super) fn shmctl(walk: &mut Walk<'_>) {
    let address = walk.argument(2);
    match walk.int(1) & !IPC_64 {
        // IPC_SET.
        1 => walk.reads(address, 112),
        // IPC_STAT, IPC_INFO, SHM_STAT, SHM_INFO, SHM_STAT_ANY.
        2 | 3 | 13 | 14 | 15 => walk.writes(address, 112),
        _ => {}
    }
}

/// msgctl(id, command, address).
pub(super) fn msgctl(walk: &mut Walk<'_>) {
    let address = walk.argument(2);
    match walk.int(1) & !IPC_64 {
        1 => walk.reads(address, 120),
        // IPC_STAT, IPC_INFO, MSG_STAT, MSG_INFO, MSG_STAT_ANY.
        2 | 3 | 11 | 12 | 13 => walk.writes(address, 120),
        _ => {}
    }
}

/// semctl(id, number, command, address). The kernel knows the number of semaphores in the set: at most 32,000 of 2
/// bytes.
pub(super) fn semctl(walk: &mut Walk<'_>) {
    let address = walk.argument(3);
    match walk.int(2) & !IPC_64 {
        1 => walk.reads(address, 104),
        // IPC_STAT, IPC_INFO, SEM_STAT, SEM_INFO, SEM_STAT_ANY.
        2 | 3 | 18 | 19 | 20 => walk.writes(address, 104),
        // GETALL, SETALL.
        13 => walk.writes(address, 64_000),
        17 => walk.reads(address, 64_000),
        _ => {}
    }
}
