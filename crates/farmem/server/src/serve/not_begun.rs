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
    /// Reason of the failure, and the remedy.
    pub fn reason_and_remedy(&self) -> (String, &'static str) {
        let why = describe(self.errno);
        match self.step {
            Step::Userfaultfd => (
                format!("userfaultfd(2) failed: {why}"),
                "It takes Linux 5.11 with CONFIG_USERFAULTFD, and no seccomp filter that forbids it; `masu facts` says more.",
            ),
            Step::Memory => (
                format!("there is no memory for its tables: {why}"),
                "They take three words a page; see `ulimit -v` and vm.overcommit_memory.",
            ),
            Step::Signals => {
                (format!("its signal handlers cannot be set: {why}"), "This should not happen; please report it.")
            }
            Step::Backend => (
                "this kernel lacks the requested backend, or has none".to_owned(),
                "`masu facts` lists the backends of this host; without --backend the best one is used.",
            ),
            Step::Dispatch => (
                format!("its system calls cannot be trapped: {why}"),
                "It takes Syscall User Dispatch: Linux 5.11 on x86-64.",
            ),
        }
    }
}
