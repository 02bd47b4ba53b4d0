//! System calls, made by the library's own instructions: calls in this library's text are not trapped (`calls.rs`), all
//! others are.
//!
//! Answers are the kernel's: a negative errno for a failure. The C library's errno is never touched.

use core::arch::asm;

/// Arguments of a call.
pub type Arguments = [u64; 6];

/// Makes a call.
///
/// # Safety
/// That of the call: the caller is responsible for the memory that it reads, writes, maps or unmaps.
#[inline(always)]
pub unsafe fn syscall(number: i64, [a, b, c, d, e, f]: Arguments) -> i64 {
    let answer: i64;
    // SAFETY: the caller's; the kernel changes these three registers and, as the caller allows, memory.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number => answer,
            in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d, in("r8") e, in("r9") f,
            lateout("rcx") _, lateout("r11") _,
            options(nostack),
        );
    }
    answer
}

/// Arguments of a call; missing ones are zeros.
pub const fn arguments<const N: usize>(given: [u64; N]) -> Arguments {
    let mut all = [0; 6];
    let mut number = 0;
    while number < N {
        all[number] = given[number];
        number += 1;
    }
    all
}

macro_rules! call {
    ($number:expr $(, $argument:expr)* $(,)?) => {
        $crate::kernel::syscall($number as i64, $crate::kernel::arguments([$(($argument as i64).cast_unsigned()),*]))
    };
}
pub(crate) use call;

/// Address or length of 64 bits, as a size of memory.
#[expect(clippy::cast_possible_truncation, reason = "x86-64: usize has 64 bits")]
pub const fn size(word: u64) -> usize {
    word as usize
}

/// Lower half of a register, for arguments and answers of type unsigned int.
pub const fn uint(register: u64) -> u32 {
    (register & 0xffff_ffff) as u32
}

/// Lower half of a register, for arguments and answers of type int.
pub const fn int(register: u64) -> i32 {
    uint(register).cast_signed()
}

/// Writes a message for the user to standard error. A failed write is ignored.
pub fn say(parts: &[&str]) {
    let mut line = [0_u8; 768];
    let mut length = 0;
    for byte in parts.iter().flat_map(|part| part.bytes()) {
        if length < line.len() {
            line[length] = byte;
            length += 1;
        }
    }
    // SAFETY: reads our own line.
    unsafe { call!(libc::SYS_write, 2, line.as_ptr().addr(), length) };
}

/// Ends the program with masu's own status, after printing the reason, and in a second line the remedy.
pub fn give_up(parts: &[&str]) -> ! {
    say(&["masu: "]);
    say(parts);
    say(&["\n"]);
    end(2)
}

/// Out of page numbers: there is one for each page that masu expects of a program at most (see the session parameters).
pub fn out_of_page_slots() -> ! {
    give_up(&[
        "out of page slots: the program used more than 64 times the machine's memory in address space; aborting, because its \
         pages can no longer be tracked\n    ",
        "Run it with less data, or on a machine with more memory.",
    ])
}

/// Ends the program.
pub fn end(status: i32) -> ! {
    loop {
        // SAFETY: ends the process.
        unsafe { call!(libc::SYS_exit_group, status) };
    }
}

/// A number in decimal, for messages.
pub struct Decimal([u8; 20], usize);

impl Decimal {
    pub fn of(mut number: u64) -> Decimal {
        let (mut digits, mut start) = ([b'0'; 20], 20);
        loop {
            start -= 1;
            digits[start] = b'0' + (number % 10) as u8;
            number /= 10;
            if number == 0 || start == 0 {
                return Decimal(digits, start);
            }
        }
    }

    pub fn text(&self) -> &str {
        core::str::from_utf8(&self.0[self.1..]).unwrap_or("?")
    }
}
