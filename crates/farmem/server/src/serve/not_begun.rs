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
        match (self.step, self.errno) {
            (_, Errno::MFILE) => (
                format!("it has no descriptor left for the library: {why}"),
                "Raise its limit of open files (`ulimit -n`): the library takes five at its start.",
            ),
            (_, Errno::NFILE) => (format!("there is no descriptor left for the library: {why}"), "Raise fs.file-max."),
            (Step::Dispatch, Errno::NOENT) => ("it sees no /proc/self/maps".to_owned(), "Mount proc where it runs."),
            (Step::Userfaultfd, _) => (
                format!("userfaultfd(2) failed: {why}"),
                "It takes Linux 5.11 with CONFIG_USERFAULTFD, and no seccomp filter that forbids it; `masu facts` says more.",
            ),
            (Step::Memory, _) => (
                format!("there is no memory for its tables: {why}"),
                "They take three words a page; see `ulimit -v` and vm.overcommit_memory.",
            ),
            (Step::Signals, _) => {
                (format!("its signal handlers cannot be set: {why}"), "This should not happen; please report it.")
            }
            (Step::Backend, _) => (
                "this kernel lacks the requested backend, or has none".to_owned(),
                "`masu facts` lists the backends of this host; without --backend the best one is used.",
            ),
            (Step::Dispatch, _) => (
                format!("its system calls cannot be trapped: {why}"),
                "It takes Syscall User Dispatch: Linux 5.11 on x86-64.",
            ),
        }
    }
}

/// Lines about programs that could not begin: one for each reason, with its remedy.
pub fn lines(all: &[NotBegun]) -> Vec<String> {
    let mut groups: Vec<(&NotBegun, u64)> = Vec::new();
    for one in all {
        match groups.iter_mut().find(|(first, _)| (first.step, first.errno) == (one.step, one.errno)) {
            Some((_, count)) => *count += 1,
            None => groups.push((one, 1)),
        }
    }
    let line = |(first, count): (&NotBegun, u64)| {
        let (why, remedy) = first.reason_and_remedy();
        let who = match count {
            1 => format!("process {}", first.process),
            count => format!("{count} programs (process {} and others)", first.process),
        };
        format!("{who} ran as without masu, since the library could not begin: {why}. {remedy}")
    };
    groups.into_iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_has_one_line_with_a_remedy_that_belongs_to_it() {
        let of = |process, errno| NotBegun { process, step: Step::Userfaultfd, errno };
        let all = [of(7, Errno::MFILE), of(8, Errno::PERM), of(9, Errno::MFILE), of(10, Errno::MFILE)];
        let said = lines(&all);
        assert_eq!(said.len(), 2, "{said:?}");
        assert_eq!(
            said[0],
            "3 programs (process 7 and others) ran as without masu, since the library could not begin: it has no \
             descriptor left for the library: too many open files (EMFILE). Raise its limit of open files (`ulimit -n`): \
             the library takes five at its start."
        );
        assert!(
            said[1].starts_with("process 8 ran as without masu") && said[1].contains("CONFIG_USERFAULTFD"),
            "{said:?}"
        );
        assert!(said.iter().all(|line| !line.contains('\n')), "{said:?}");
        assert_eq!(lines(&[]), Vec::<String>::new());
    }
}
