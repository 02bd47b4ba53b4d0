//! The C library's malloc, which is told by a tunable to ask for huge pages.
//!
//! glibc (2.36, for one) reads the system's mode into memory that it has not cleared, and compares it as a string that ends
//! in a zero byte which nobody wrote. So it takes the tunable or does not, as it happens to have used its stack before.
//! Here it is made to read it before anybody else calls malloc, on a stack that is clean.

use core::ffi::c_int;

use crate::next;

/// More than the way to the comparison takes.
const STACK_BYTES: usize = 16 << 10;

/// No parameter of malloc's; the call does nothing but to begin, and allocates nothing.
const NO_PARAMETER: c_int = -1000;

/// Has malloc read its tunables, if it has not yet.
pub fn read_tunables() {
    // Under this name it is the C library's own, whatever else the program allocates with.
    let Some(set) = next::optional(c"__libc_mallopt") else { return };
    // SAFETY: mallopt of the C library, whose type this is.
    let set: unsafe extern "C" fn(c_int, c_int) -> c_int = unsafe { core::mem::transmute(set) };
    clean_stack();
    // SAFETY: changes no parameter; nothing else runs yet.
    unsafe { set(NO_PARAMETER, 0) };
}

/// Writes zeros where the next call will have its variables.
#[inline(never)]
fn clean_stack() {
    let mut stack = core::mem::MaybeUninit::<[u8; STACK_BYTES]>::uninit();
    for at in 0..STACK_BYTES {
        // SAFETY: within the variable.
        unsafe { stack.as_mut_ptr().cast::<u8>().add(at).write_volatile(0) };
    }
}
