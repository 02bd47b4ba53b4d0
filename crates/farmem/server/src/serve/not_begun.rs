//! Programs that could not begin, as text.

use farmem_engine::handshake::Step;
use linux::describe;
use rustix::io::Errno;

/// Failed start of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotBegun {
    /// PID in the program's own PID namespace.
    pub process: u32,
    /// Failed step.
    pub step: Step,
    /// The kernel's answer.
    pub errno: Errno,
}

impl NotBegun {
    /// Description of the failure, and the remedy.
    pub fn words(&self) -> (String, &'static str) {
        let why = describe(self.errno);
        match self.step {
            Step::Userfaultfd => (
                format!("the kernel gives it no userfaultfd: {why}"),
                "It takes Linux 5.11 with CONFIG_USERFAULTFD, and no seccomp filter that forbids it; `masu facts` says more.",
            ),
            Step::Memory => (
                format!("there is no memory for its tables: {why}"),
                "They take three words a page; see `ulimit -v` and vm.overcommit_memory.",
            ),
            Step::Signals => {
                (format!("its signals cannot be taken: {why}"), "This should not happen; please report it.")
            }
            Step::Backend => (
                "this kernel does not let pages leave it and come back in the way that is wanted, or in any".to_owned(),
                "`masu facts` says what this host has; without --backend the best of it is taken.",
            ),
            Step::Dispatch => (
                format!("its system calls cannot be seen: {why}"),
                "It takes Syscall User Dispatch: Linux 5.11 on x86-64.",
            ),
        }
    }
}
