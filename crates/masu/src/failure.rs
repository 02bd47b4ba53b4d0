//! Error messages: one line with operation, object and the kernel's answer; a second line with a remedy, if there is
//! one.

use std::fmt;

use linux::untrusted::visible;

/// A task that was not done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    line: String,
    remedy: Option<String>,
    broken_pipe: bool,
    held: bool,
}

const UNWRITTEN: &str = "cannot write the output";

/// Exit status when another masu holds a lock that one masu on the host holds at a time.
pub const HELD: u8 = 3;

impl Failure {
    pub fn new(line: impl fmt::Display) -> Failure {
        Failure { line: visible(&line.to_string()).into_owned(), remedy: None, broken_pipe: false, held: false }
    }

    /// Adds a remedy; an empty one is none.
    #[must_use]
    pub fn remedy(self, remedy: impl fmt::Display) -> Failure {
        let remedy = Some(visible(&remedy.to_string()).into_owned()).filter(|remedy| !remedy.is_empty());
        Failure { remedy, ..self }
    }

    /// The error, without the remedy.
    pub fn line(&self) -> &str {
        &self.line
    }

    /// The error of writing a report, where the work itself is done.
    pub fn of_report(&self) -> String {
        match self.line.strip_prefix(UNWRITTEN) {
            Some(why) => format!("cannot write the report{why}"),
            None => format!("cannot write the report: {}", self.line),
        }
    }

    /// True when the reader of the output has left, which is a normal end.
    pub fn is_broken_pipe(&self) -> bool {
        self.broken_pipe
    }

    /// Marks the failure as one by another masu that is at work.
    #[must_use]
    pub fn by_another_masu(self) -> Failure {
        Failure { held: true, ..self }
    }

    /// Exit status of a task that failed so.
    pub fn status(&self) -> u8 {
        if self.held { HELD } else { 2 }
    }

    /// An error of a process, with the remedy for the usual causes.
    pub fn at_process(error: &linux::Error) -> Failure {
        let failure = Failure::new(error);
        match error {
            linux::Error::Gone(_) => Failure::new(format!("the process ended meanwhile: {error}"))
                .remedy("`pgrep -a NAME` finds a running one."),
            linux::Error::Denied(_) => failure.remedy(
                "Run as root, or with CAP_SYS_PTRACE, CAP_SYS_NICE, CAP_BPF, CAP_PERFMON and CAP_DAC_OVERRIDE.",
            ),
            linux::Error::Unsupported(_) => {
                failure.remedy("`masu facts` lists what this host offers and what is missing.")
            }
            error if error.is_unanswered() => failure.remedy(UNANSWERED),
            linux::Error::Malformed { .. } | linux::Error::Other(_) => failure,
        }
    }
}

/// Reason why a call about a process does not return.
pub const UNANSWERED: &str = "The kernel holds the memory map of the process for another call, which waits: for a disk, or for a server of a mapped \
                              file. `cat /proc/*/wchan` names what each process waits for.";

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "masu: {}", self.line)?;
        match &self.remedy {
            Some(remedy) => write!(f, "\n    {remedy}"),
            None => Ok(()),
        }
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Failure {
        let broken_pipe = error.kind() == std::io::ErrorKind::BrokenPipe;
        Failure { broken_pipe, ..Failure::new(format!("{UNWRITTEN}: {}", linux::describe_io(&error))) }
    }
}

impl From<serde_json::Error> for Failure {
    fn from(error: serde_json::Error) -> Failure {
        std::io::Error::from(error).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_and_the_way_out() {
        let failure = Failure::new("cannot attach to process 2: it is a kernel thread").remedy("Name a program.");
        assert_eq!(failure.to_string(), "masu: cannot attach to process 2: it is a kernel thread\n    Name a program.");
        assert_eq!(Failure::new("the store: ERR odd").remedy("").to_string(), "masu: the store: ERR odd");
    }

    #[test]
    fn what_somebody_else_said_forges_no_line() {
        let failure = Failure::new("it says ERR\r\n\u{1b}[2Jmasu: all is well").remedy("Ask \u{9b}a\nb.");
        let shown = "masu: it says ERR\\u000d\\u000a\\u001b[2Jmasu: all is well\n    Ask \\u009ba\\u000ab.";
        assert_eq!(failure.to_string(), shown);
    }

    #[test]
    fn a_process_that_ended_is_said_before_the_call_that_failed_for_it() {
        let gone = linux::Error::of_process("open", "/proc/7/pagemap", rustix::io::Errno::NOENT);
        assert_eq!(
            Failure::at_process(&gone).to_string(),
            "masu: the process ended meanwhile: cannot open /proc/7/pagemap: no such file or directory (ENOENT)\n    \
             `pgrep -a NAME` finds a running one."
        );
    }

    #[test]
    fn a_reader_who_left_is_a_normal_end() {
        let gone = std::io::Error::from(std::io::ErrorKind::BrokenPipe);
        assert!(Failure::from(gone).is_broken_pipe());
        let full = Failure::from(std::io::Error::from_raw_os_error(28));
        assert_eq!(full.line(), "cannot write the output: no space left on device (ENOSPC)");
        assert_eq!(full.of_report(), "cannot write the report: no space left on device (ENOSPC)");
        assert!(!Failure::from(std::io::Error::from(std::io::ErrorKind::StorageFull)).is_broken_pipe());
    }
}
