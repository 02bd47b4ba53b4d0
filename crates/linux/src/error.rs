//! Failures at a kernel interface, sorted by the caller's possible reaction.

use std::fmt;

use rustix::io::Errno;

use crate::untrusted::visible;

/// Place of a failure: operation, object and the kernel's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct At {
    /// Operation, as a verb: `read`, `write "1" to`, `promote`.
    pub operation: String,
    /// Path, or window of the process.
    pub object: String,
    /// The kernel's answer.
    pub errno: Errno,
}

/// One failure at a kernel interface.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The process, or the object in it, ended meanwhile. Normal: the caller counts it and goes on.
    #[error("cannot {0}")]
    Gone(At),
    /// A privilege is missing: the caller names it.
    #[error("cannot {0}")]
    Denied(At),
    /// This kernel lacks the interface, or always refuses this use of it: the caller uses another, or names the kernel
    /// option.
    #[error("cannot {0}")]
    Unsupported(At),
    /// The text of a file of the kernel, or an ELF file, cannot be parsed by this version of masu. Another attempt does
    /// not help; other files can still be read.
    #[error("cannot understand {}: {}", visible(object), visible(found))]
    Malformed {
        /// Path, with the line if there is one.
        object: String,
        /// Text found, and text expected.
        found: String,
    },
    /// Anything else, mostly passing conditions such as EAGAIN and ENOMEM: the caller may try again later, or reports it.
    #[error("cannot {0}")]
    Other(At),
}

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Paths may contain names chosen by other processes.
        write!(f, "{} {}: {}", visible(&self.operation), visible(&self.object), describe(self.errno))
    }
}

impl Error {
    /// Sorts the kernel's answer to a call about the host: a missing file is a missing feature.
    pub fn of_host(operation: impl Into<String>, object: impl fmt::Display, errno: Errno) -> Error {
        let at = At { operation: operation.into(), object: object.to_string(), errno };
        match errno {
            Errno::ACCESS | Errno::PERM => Error::Denied(at),
            Errno::NOENT | Errno::NOSYS | Errno::OPNOTSUPP | Errno::NOTTY | Errno::NODEV => Error::Unsupported(at),
            _ => Error::Other(at),
        }
    }

    /// Sorts the kernel's answer to a call about a process: a missing file is an ended process.
    pub fn of_process(operation: impl Into<String>, object: impl fmt::Display, errno: Errno) -> Error {
        let at = At { operation: operation.into(), object: object.to_string(), errno };
        match errno {
            Errno::ACCESS | Errno::PERM => Error::Denied(at),
            Errno::NOENT | Errno::SRCH => Error::Gone(at),
            Errno::NOSYS | Errno::OPNOTSUPP | Errno::NOTTY => Error::Unsupported(at),
            _ => Error::Other(at),
        }
    }

    /// Error for text of `object` that does not parse. A failed call is no such error, even without an errno.
    pub fn malformed(object: impl fmt::Display, found: impl fmt::Display) -> Error {
        Error::Malformed { object: object.to_string(), found: found.to_string() }
    }

    /// The kernel's answer, if there was one.
    pub fn errno(&self) -> Option<Errno> {
        match self {
            Error::Gone(at) | Error::Denied(at) | Error::Unsupported(at) | Error::Other(at) => Some(at.errno),
            Error::Malformed { .. } => None,
        }
    }

    /// True if the call made no progress (`proxy.rs`), or was skipped because an earlier one made none.
    pub fn is_unanswered(&self) -> bool {
        self.errno() == Some(Errno::TIMEDOUT)
    }

    /// True if the process ended meanwhile.
    pub fn is_gone(&self) -> bool {
        matches!(self, Error::Gone(_))
    }
}

/// Processes that could not be read, for one reason.
#[derive(Clone, Debug, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
pub struct NotRead {
    /// Number of processes.
    pub processes: u64,
    /// Message of the first failure.
    pub first: String,
}

impl NotRead {
    /// Groups failures by the kernel's answer, in order of first occurrence.
    pub fn of(errors: &[Error]) -> Vec<NotRead> {
        let mut found: Vec<(Option<Errno>, NotRead)> = Vec::new();
        for error in errors {
            match found.iter_mut().find(|(errno, _)| *errno == error.errno()) {
                Some((_, of)) => of.processes += 1,
                None => found.push((error.errno(), NotRead { processes: 1, first: error.to_string() })),
            }
        }
        found.into_iter().map(|(_, of)| of).collect()
    }
}

/// Errno of a failure of the standard library at a kernel interface. EIO if it carries none.
pub(crate) fn errno(error: std::io::Error) -> Errno {
    Errno::from_io_error(&error).unwrap_or(Errno::IO)
}

/// `permission denied (EACCES)`: the sentence, and the symbol used in documents.
pub fn describe(errno: Errno) -> String {
    if errno == Errno::TIMEDOUT {
        // The C library's sentence mentions a connection.
        return "no answer in time (ETIMEDOUT)".to_owned();
    }
    let system = std::io::Error::from(errno).to_string();
    let sentence = system.split(" (os error").next().unwrap_or(&system).to_lowercase();
    format!("{sentence} ({})", symbol(errno))
}

/// [`describe`] for an error of the standard library; its own text if it carries no errno.
pub fn describe_io(error: &std::io::Error) -> String {
    Errno::from_io_error(error).map_or_else(|| error.to_string(), describe)
}

/// Symbol of the errno in the kernel's documents: `EACCES`.
pub fn symbol(errno: Errno) -> String {
    let known = match errno {
        Errno::PERM => "EPERM",
        Errno::NOENT => "ENOENT",
        Errno::SRCH => "ESRCH",
        Errno::PIPE => "EPIPE",
        Errno::INTR => "EINTR",
        Errno::IO => "EIO",
        Errno::NXIO => "ENXIO",
        Errno::TOOBIG => "E2BIG",
        Errno::FBIG => "EFBIG",
        Errno::BADF => "EBADF",
        Errno::AGAIN => "EAGAIN",
        Errno::NOMEM => "ENOMEM",
        Errno::ACCESS => "EACCES",
        Errno::FAULT => "EFAULT",
        Errno::BUSY => "EBUSY",
        Errno::EXIST => "EEXIST",
        Errno::NODEV => "ENODEV",
        Errno::INVAL => "EINVAL",
        Errno::NOTDIR => "ENOTDIR",
        Errno::NOTTY => "ENOTTY",
        Errno::MFILE => "EMFILE",
        Errno::NFILE => "ENFILE",
        Errno::NOEXEC => "ENOEXEC",
        Errno::NOSPC => "ENOSPC",
        Errno::ROFS => "EROFS",
        Errno::NOSYS => "ENOSYS",
        Errno::OPNOTSUPP => "EOPNOTSUPP",
        Errno::TIMEDOUT => "ETIMEDOUT",
        Errno::ISDIR => "EISDIR",
        Errno::NAMETOOLONG => "ENAMETOOLONG",
        Errno::LOOP => "ELOOP",
        Errno::DQUOT => "EDQUOT",
        Errno::STALE => "ESTALE",
        Errno::ADDRINUSE => "EADDRINUSE",
        Errno::ADDRNOTAVAIL => "EADDRNOTAVAIL",
        Errno::AFNOSUPPORT => "EAFNOSUPPORT",
        Errno::CONNREFUSED => "ECONNREFUSED",
        Errno::CONNRESET => "ECONNRESET",
        Errno::CONNABORTED => "ECONNABORTED",
        Errno::NETUNREACH => "ENETUNREACH",
        Errno::HOSTUNREACH => "EHOSTUNREACH",
        Errno::NOBUFS => "ENOBUFS",
        other => return format!("errno {}", other.raw_os_error()),
    };
    known.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_names_operation_object_and_answer() {
        let error = Error::of_process("read", "/proc/4121/pagemap", Errno::ACCESS);
        assert_eq!(error.to_string(), "cannot read /proc/4121/pagemap: permission denied (EACCES)");
        assert!(matches!(error, Error::Denied(_)));
    }

    #[test]
    fn a_name_in_it_forges_no_line() {
        let error = Error::of_host("read", "/sys/fs/cgroup/a\u{1b}[2J\u{9b}/memory.max", Errno::ACCESS);
        let shown = r"cannot read /sys/fs/cgroup/a\u001b[2J\u009b/memory.max: permission denied (EACCES)";
        assert_eq!(error.to_string(), shown);
        assert_eq!(Error::malformed("/a\nb", "c\r").to_string(), r"cannot understand /a\u000ab: c\u000d");
    }

    #[test]
    fn a_missing_file_means_gone_for_a_process_and_unsupported_for_the_host() {
        assert!(Error::of_process("read", "/proc/1/maps", Errno::NOENT).is_gone());
        let host = Error::of_host("read", "/sys/kernel/mm/damon", Errno::NOENT);
        assert!(matches!(host, Error::Unsupported(_)));
    }

    #[test]
    fn processes_that_were_not_read_are_counted_by_the_answer() {
        let of = |pid: i32, errno| Error::of_process("read", format_args!("/proc/{pid}/maps"), errno);
        let found = NotRead::of(&[of(1, Errno::ACCESS), of(2, Errno::TIMEDOUT), of(3, Errno::ACCESS)]);
        let first = |pid, why: &str| format!("cannot read /proc/{pid}/maps: {why}");
        let denied = NotRead { processes: 2, first: first(1, "permission denied (EACCES)") };
        assert_eq!(found, [denied, NotRead { processes: 1, first: first(2, "no answer in time (ETIMEDOUT)") }]);
        assert_eq!(NotRead::of(&[]), []);
    }

    #[test]
    fn an_errno_without_a_name_still_prints() {
        assert_eq!(symbol(Errno::XDEV), "errno 18");
    }
}
