//! The C library's malloc, which a tunable makes ask for huge pages.
//!
//! glibc (2.36, for one) reads the system's mode into memory that it has not cleared, and compares it as a string,
//! although no terminating zero byte was written. So earlier stack contents decide whether it takes the tunable. Here
//! it is made to read the tunable before the first call of malloc, on a clean stack.

use core::ffi::c_int;

use crate::next;

/// More stack than the call path to the comparison uses.
const STACK_BYTES: usize = 16 << 10;

/// Not a parameter of malloc; the call only initialises malloc, and allocates nothing.
const NO_PARAMETER: c_int = -1000;

/// Makes malloc read its tunables, if it has not yet.
pub fn read_tunables() {
    // This name is the C library's own, with any allocator of the program.
    let Some(set) = next::optional(c"__libc_mallopt") else { return };
    // SAFETY: mallopt of the C library, whose type this is.
    let set: unsafe extern "C" fn(c_int, c_int) -> c_int = unsafe { core::mem::transmute(set) };
    clean_stack();
    // SAFETY: changes no parameter; nothing else runs yet.
    unsafe { set(NO_PARAMETER, 0) };
}

/// Clears the stack that the next call uses for its variables.
#[inline(never)]
fn clean_stack() {
    let mut stack = core::mem::MaybeUninit::<[u8; STACK_BYTES]>::uninit();
    for at in 0..STACK_BYTES {
        // SAFETY: within the variable.
        unsafe { stack.as_mut_ptr().cast::<u8>().add(at).write_volatile(0) };
    }
}
