//! The library's own descriptors: the program can neither close nor replace them.

use farmem_engine::calls::{Call, number};

use crate::kernel::{call, int, uint};
use crate::program::Program;

/// Answer to a call that names one of them; `None` when the kernel is to make the call.
pub fn emulate(program: &Program, call: Call) -> Option<i64> {
    let ours = |fd: u64| [program.uffd.fd, program.store, program.socket].contains(&int(fd));
    let [first, second, third, ..] = call.arguments;
    const EBADF: i64 = -(libc::EBADF as i64);
    match call.number {
        number::CLOSE => ours(first).then_some(EBADF),
        number::DUP2 | number::DUP3 => ours(second).then_some(EBADF),
        number::CLOSE_RANGE => {
            let (mut from, last) = (uint(first), uint(second));
            let mut kept =
                [program.uffd.fd, program.store.max(program.uffd.fd), program.socket].map(i32::cast_unsigned);
            kept.sort_unstable();
            if from > last || !kept.iter().any(|fd| (from..=last).contains(fd)) {
                return None;
            }
            let close = |from: u32, last: u32| {
                // SAFETY: the program's own call, without the library's descriptors.
                if from <= last { unsafe { call!(libc::SYS_close_range, from, last, third) } } else { 0 }
            };
            for fd in kept.into_iter().filter(|fd| (uint(first)..=last).contains(fd)) {
                if fd > from {
                    let answer = close(from, fd - 1);
                    if answer < 0 {
                        return Some(answer);
                    }
                }
                from = fd.saturating_add(1);
            }
            Some(close(from, last))
        }
        _ => None,
    }
}
