//! `/proc/PID/environ`: the environment that a process got at its last execve(2).
//!
//! The process may have overwritten it since, as programs do that set their title in ps.
//!
//! Cost: some 10 µs a process. Side effects: none.
//!
//! Since: always. Readable as by ptrace.
//!
//! Truth: proc_pid_environ(5).

use crate::{Error, KernelFiles, Pid};

/// True if the environment of `pid` has the variable `name` with this value.
///
/// # Errors
/// `Gone` if the process ended, `Denied` if it belongs to another user.
pub fn has(files: &impl KernelFiles, pid: Pid, name: &str, value: &str) -> Result<bool, Error> {
    let path = pid.file("environ");
    let all = files.bytes(&path).map_err(|errno| Error::of_process("read", format!("/{path}"), errno))?;
    let wanted = format!("{name}={value}");
    Ok(all.split(|byte| *byte == 0).any(|variable| variable == wanted.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::FakeKernel;

    #[test]
    fn a_variable_is_found_by_its_whole_name_and_value() {
        let kernel = FakeKernel::new().file("proc/7/environ", "AB=1\0B=12\0");
        let found = |name, value| has(&kernel, Pid(7), name, value).unwrap();
        assert!(found("AB", "1") && found("B", "12"));
        assert!(!found("B", "1") && !found("AB", "12") && !found("A", "1"));
        assert!(has(&kernel, Pid(8), "B", "1").is_err_and(|error| error.is_gone()));
    }
}
