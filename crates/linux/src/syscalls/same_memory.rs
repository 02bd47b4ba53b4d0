//! `kcmp(2)`, KCMP_VM: whether two processes have one address space.
//!
//! A child of vfork(2), posix_spawn(3) or clone(2) with CLONE_VM has that of its parent until it calls execve(2) or ends.
//! A forked child has a copy. `/proc` shows both alike.
//!
//! Cost: some 1 µs. Side effects: none.
//!
//! Since: Linux 3.5, with CONFIG_KCMP. Needs ptrace read access to both processes.
//!
//! Truth: kcmp(2); kernel/kcmp.c.

use rustix::io::Errno;

use crate::{Error, Pid};

/// `KCMP_VM` in include/uapi/linux/kcmp.h.
const KCMP_VM: i32 = 1;

/// True if the two processes have one address space.
///
/// # Errors
/// `Gone` if one of them ended, `Denied`, `Unsupported` by a kernel without the call.
pub fn is_same(one: Pid, other: Pid) -> Result<bool, Error> {
    // SAFETY: reads two processes, and no memory of ours.
    let answer = unsafe { libc::syscall(libc::SYS_kcmp, one.0, other.0, KCMP_VM, 0_i64, 0_i64) };
    if answer < 0 {
        let errno = Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL);
        return Err(Error::of_process("compare", format!("the address spaces of {one} and {other}"), errno));
    }
    Ok(answer == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_has_one_address_space_with_itself_and_another_with_a_child() {
        let mut child = std::process::Command::new("sleep").arg("10").spawn().unwrap();
        let pid = Pid(i32::try_from(child.id()).unwrap());
        assert_eq!(is_same(Pid::own(), Pid::own()), Ok(true));
        assert_eq!(is_same(Pid::own(), pid), Ok(false));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(is_same(Pid::own(), pid).unwrap_err().is_gone());
    }
}
