//! Registers of the interrupted program, in the frame of a signal handler.

use core::ffi::c_void;

use crate::kernel::Arguments;

/// Interrupted program: its registers at the call.
pub struct Context(*mut libc::ucontext_t);

const REGISTERS: [i32; 6] = [libc::REG_RDI, libc::REG_RSI, libc::REG_RDX, libc::REG_R10, libc::REG_R8, libc::REG_R9];

impl Context {
    /// Frame of a handler.
    ///
    /// # Safety
    /// The pointer is the kernel's, which gave it to the handler, and is not used after the handler.
    pub const unsafe fn of(frame: *mut c_void) -> Context {
        Context(frame.cast())
    }

    /// Reads a register.
    pub fn get(&self, register: i32) -> u64 {
        // SAFETY: the kernel's frame, valid while the handler runs.
        unsafe { (*self.0).uc_mcontext.gregs[register.cast_unsigned() as usize].cast_unsigned() }
    }

    /// Sets a register.
    pub fn set(&mut self, register: i32, value: u64) {
        // SAFETY: as above.
        unsafe { (*self.0).uc_mcontext.gregs[register.cast_unsigned() as usize] = value.cast_signed() };
    }

    /// Arguments of the call.
    pub fn arguments(&self) -> Arguments {
        REGISTERS.map(|register| self.get(register))
    }

    /// Sets an argument.
    pub fn set_argument(&mut self, number: usize, value: u64) {
        if let Some(register) = REGISTERS.get(number) {
            self.set(*register, value);
        }
    }

    /// Answers the call, which is not made any more.
    pub fn answer(&mut self, answer: i64) {
        self.set(libc::REG_RAX, answer.cast_unsigned());
    }

    /// Signal mask that the return from the handler sets.
    pub fn set_of_mask(&self) -> u64 {
        // SAFETY: as above.
        unsafe { (&raw const (*self.0).uc_sigmask).cast::<u64>().read() }
    }

    /// Sets the mask.
    pub fn set_mask(&mut self, set: u64) {
        // SAFETY: as above; the kernel's set has 64 bits.
        unsafe { (&raw mut (*self.0).uc_sigmask).cast::<u64>().write(set) };
    }

    /// Has the return from the handler set an initial state of the processor's other registers.
    pub fn set_no_state(&mut self) {
        // SAFETY: as above; the kernel takes a null pointer for it.
        unsafe { (*self.0).uc_mcontext.fpregs = core::ptr::null_mut() };
    }

    /// Signal stack to which the return from the handler switches back.
    pub fn signal_stack(&self) -> libc::stack_t {
        // SAFETY: as above.
        unsafe { (*self.0).uc_stack }
    }

    /// Sets the signal stack.
    pub fn set_signal_stack(&mut self, stack: libc::stack_t) {
        // SAFETY: as above.
        unsafe { (*self.0).uc_stack = stack };
    }

    /// Pointer to the kernel's form.
    pub const fn raw(&self) -> *mut libc::ucontext_t {
        self.0
    }
}
