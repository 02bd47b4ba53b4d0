//! Reasons why a program runs unserved: the library is loaded in it and does nothing, or is not loaded at all.
//!
//! The first program is refused for most of them. A program that it starts runs as without masu, and is counted. Pure.

/// Reason against paging a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LeftOut {
    /// No dynamic loader.
    Static = 1,
    /// The loader of another C library.
    OtherLibrary = 2,
    /// 32-bit addresses.
    Bits32 = 3,
    /// Built for another kind of processor.
    OtherProcessor = 4,
    /// Go's runtime: it runs its signal handlers on stacks of its own and checks that.
    Go = 5,
    /// A sanitizer's runtime: it maps shadow memory and takes signals.
    Sanitizer = 6,
    /// Set-user-ID, set-group-ID or file capabilities.
    Privileged = 7,
    /// valgrind executes the program, and knows neither userfaultfd nor Syscall User Dispatch.
    Emulated = 8,
    /// A seccomp filter was put on before exec.
    Filtered = 9,
    /// The program put a seccomp filter on itself while it was served.
    FilteredLater = 10,
    /// `ulimit -v` or `ulimit -d` leaves too little address space for the tables.
    AddressSpace = 11,
    /// masu has no thread, descriptor or memory left to serve it.
    NoService = 12,
    /// A step of the library's start failed.
    NotBegun = 13,
    /// A tracer had it before its start, a debugger of the run.
    Traced = 14,
}

impl LeftOut {
    /// All reasons, by their numbers.
    pub const ALL: [LeftOut; 14] = [
        LeftOut::Static,
        LeftOut::OtherLibrary,
        LeftOut::Bits32,
        LeftOut::OtherProcessor,
        LeftOut::Go,
        LeftOut::Sanitizer,
        LeftOut::Privileged,
        LeftOut::Emulated,
        LeftOut::Filtered,
        LeftOut::FilteredLater,
        LeftOut::AddressSpace,
        LeftOut::NoService,
        LeftOut::NotBegun,
        LeftOut::Traced,
    ];

    /// Reason with this number; `None` for any other number.
    #[must_use]
    pub fn of_word(word: u64) -> Option<LeftOut> {
        LeftOut::ALL.into_iter().find(|reason| *reason as u64 == word)
    }

    /// Whether the first program of a run is refused for this reason. A program within a limit of its own runs: the
    /// limit bounds its memory. A tracer of the first program is also masu's.
    #[must_use]
    pub const fn refuses_the_first(self) -> bool {
        !matches!(self, LeftOut::AddressSpace | LeftOut::FilteredLater | LeftOut::Traced)
    }

    /// Short name in JSON and in the report's count.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            LeftOut::Static => "linked statically",
            LeftOut::OtherLibrary => "with another C library",
            LeftOut::Bits32 => "32-bit",
            LeftOut::OtherProcessor => "for another processor",
            LeftOut::Go => "in Go",
            LeftOut::Sanitizer => "with a sanitizer",
            LeftOut::Privileged => "set-uid, set-gid or with file capabilities",
            LeftOut::Emulated => "under valgrind",
            LeftOut::Filtered => "behind a seccomp filter",
            LeftOut::FilteredLater => "that put on a seccomp filter",
            LeftOut::AddressSpace => "within a ulimit -v or -d",
            LeftOut::NoService => "that masu had no threads, files or memory for",
            LeftOut::NotBegun => "that could not begin",
            LeftOut::Traced => "under a debugger",
        }
    }

    /// Reason, as a clause about the program.
    #[must_use]
    pub const fn reason(self) -> &'static str {
        match self {
            LeftOut::Static => "it is linked statically",
            LeftOut::OtherLibrary => "it has another C library than the system's",
            LeftOut::Bits32 => "it is a 32-bit program",
            LeftOut::OtherProcessor => "it is for another kind of processor",
            LeftOut::Go => "it is a Go program, whose runtime asks the kernel itself for memory",
            LeftOut::Sanitizer => {
                "it has a sanitizer's runtime (address, thread, leak or memory), which maps memory of its own"
            }
            LeftOut::Privileged => {
                "it is set-uid, set-gid or has file capabilities, so that the loader takes no library from the environment"
            }
            LeftOut::Emulated => "valgrind executes it, which knows neither userfaultfd nor Syscall User Dispatch",
            LeftOut::Filtered => {
                "a seccomp filter was put on before its start, which may kill it for the pager's calls"
            }
            LeftOut::FilteredLater => "it put on a seccomp filter, which may kill it for the pager's calls",
            LeftOut::AddressSpace => {
                "its own limit (ulimit -v or -d) leaves too little address space for the pager's tables"
            }
            LeftOut::NoService => "masu has no thread, descriptor or memory left to serve it",
            LeftOut::NotBegun => "the library could not begin",
            LeftOut::Traced => "a debugger traces it from its start, and would stop it at each of the pager's signals",
        }
    }

    /// Remedy, for a user who wants it paged.
    #[must_use]
    pub const fn remedy(self) -> &'static str {
        match self {
            LeftOut::Static | LeftOut::OtherLibrary | LeftOut::Go => {
                "Link it dynamically with the system's C library; or give it a memory control group and swap."
            }
            LeftOut::Bits32 | LeftOut::OtherProcessor => {
                "Give it a build for this machine, or a memory control group and swap."
            }
            LeftOut::Sanitizer => "Build it without -fsanitize; or give it a memory control group and swap.",
            LeftOut::Privileged => "Run it as the user that it becomes, or a copy of it, which has no privileges.",
            LeftOut::Emulated => "Run valgrind without --local.",
            LeftOut::Filtered | LeftOut::FilteredLater => {
                "Switch the program's sandbox off, or run it without --local."
            }
            LeftOut::AddressSpace => "Raise `ulimit -v` and `ulimit -d`; until then they limit its memory.",
            LeftOut::NoService => "Allow masu more threads, files and memory (`ulimit -u`, `-n`, `-v`, pids.max).",
            LeftOut::NotBegun => "See the reason in the report.",
            LeftOut::Traced => {
                "Attach to it once it runs: gdb -p PID, with `handle SIGBUS SIGSYS nostop noprint pass`."
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_has_its_number_and_words_of_its_own() {
        for reason in LeftOut::ALL {
            assert_eq!(LeftOut::of_word(reason as u64), Some(reason));
            let same =
                LeftOut::ALL.iter().filter(|other| other.name() == reason.name() || other.reason() == reason.reason());
            assert_eq!(same.count(), 1, "{reason:?}");
            assert!(reason.remedy().ends_with('.'));
        }
        assert_eq!((LeftOut::of_word(0), LeftOut::of_word(u64::MAX)), (None, None));
    }
}
