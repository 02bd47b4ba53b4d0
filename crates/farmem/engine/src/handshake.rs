//! Handshake between masu and the library in a program at the program's start, over a socket.
//!
//! The socket has a path that only the program gets; where the path is not visible (chroot), there is a socket with a
//! name in the abstract namespace. Both are in the environment, as is a secret. Everybody can see abstract names, and
//! use them once masu has ended; only its user can read a process's environment. So each side sends its half of the
//! secret, and rejects a peer without the other half.
//!
//! Sequence: the library identifies itself, with the limits of its process and the reason against paging it, if it has
//! one. masu answers with the session parameters, the shared segment and the store's file. The library reports its
//! readiness. masu writes the initial profile into the segment, and lets the program begin. The connection stays open as
//! long as both live: its end tells each side of the other's end.
//!
//! Instead of each of its two answers masu may say that the program is left out (`LEFT_OUT`), and runs as without masu,
//! or that it is refused (`REFUSED`), as the first program is. Later the library says which programs it becomes by exec
//! that will load no library ([`Aside`]).

use core::fmt;

use crate::backend::Backend;
use crate::left_out::LeftOut;

/// Environment variable with the socket's abstract name, without the leading zero byte.
pub const VARIABLE: &str = "MASU_PAGER";

/// Environment variable with the path of the hidden socket. Without it, only the abstract name is tried.
pub const PATH_VARIABLE: &str = "MASU_PAGER_PATH";

/// Environment variable with the secret. It is apart from the name, so that a library of another version finds masu,
/// and is rejected.
pub const SECRET_VARIABLE: &str = "MASU_PAGER_SECRET";

/// Environment variable with the number of seccomp filters on masu itself: a program with more of them is not masu's
/// to serve. Absent for none.
pub const FILTERS_VARIABLE: &str = "MASU_PAGER_FILTERS";

/// Ending of the file beside the hidden socket that a program opens, and closes, to say that a seccomp filter was put on
/// before its start. An unknown filter allows no more than the loader's own calls, and to open a file is one of them.
pub const FILTERED_ENDING: &str = ".filtered";

/// Protocol version.
pub const MAGIC: u64 = u64::from_le_bytes(*b"masu-p04");

/// Words of a message.
pub const WORDS: usize = 8;

/// Message of the handshake.
pub type Message = [u64; WORDS];

/// Secret of masu and the programs that it started.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Secret {
    /// The library's half.
    pub library: u64,
    /// masu's half.
    pub masu: u64,
}

/// Rejection by masu, for a program that another masu of this name has started: the other masu has ended.
pub const REJECTED: Message = [MAGIC, u64::MAX, u64::MAX, u64::MAX, u64::MAX, u64::MAX, u64::MAX, u64::MAX];

/// Answer of masu: the program runs as without masu.
pub const LEFT_OUT: Message = [MAGIC, u64::MAX - 1, u64::MAX, u64::MAX, u64::MAX, u64::MAX, u64::MAX, u64::MAX];

/// Answer of masu: the program ends. masu says why.
pub const REFUSED: Message = [MAGIC, u64::MAX - 2, u64::MAX, u64::MAX, u64::MAX, u64::MAX, u64::MAX, u64::MAX];

/// Limits of the program's process (getrlimit(2)), in bytes; `u64::MAX` for none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// RLIMIT_AS, `ulimit -v`.
    pub address_space: u64,
    /// RLIMIT_DATA, `ulimit -d`.
    pub data: u64,
    /// RLIMIT_FSIZE, `ulimit -f`.
    pub file_size: u64,
}

impl Limits {
    /// No limits.
    pub const NONE: Limits = Limits { address_space: u64::MAX, data: u64::MAX, file_size: u64::MAX };
}

/// First message of the library: its identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// PID in the program's own PID namespace.
    pub process: u32,
    /// The library's half of the secret.
    pub secret: u64,
    /// Limits of the process.
    pub limits: Limits,
    /// Reason against paging the program, if the library sees one.
    pub left_out: Option<LeftOut>,
}

/// Message of a served program after its start: a program that it becomes, or is from now on, runs unserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Aside {
    /// Reason.
    pub reason: LeftOut,
}

/// masu's answer: the session parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionParameters {
    /// Local memory, in frames.
    pub budget_frames: u32,
    /// Local part of its paged memory, in parts of 65,536, if the budget follows the program's memory; else 0.
    pub budget_share: u32,
    /// Largest number of pages that can be paged.
    pub most_pages: u32,
    /// Transfer size in pages; 0 when the policy decides.
    pub unit_pages: u32,
    /// Smallest transfer size, in pages.
    pub base_pages: u32,
    /// Mappings smaller than this are not paged.
    pub least_bytes: u64,
    /// Source of the program's sections.
    pub sections: Sections,
    /// Whether masu may fetch and write in the background.
    pub background: bool,
    /// Whether the program reads and writes the store's file itself: its descriptor follows the segment's, if that has one.
    pub has_file: bool,
    /// Number of the shared segment (shmat(2)); `None` if it is a file, the first descriptor of the message.
    pub segment: Option<u32>,
    /// Requested backend; `None` for the best that the kernel offers.
    pub backend: Option<Backend>,
}

/// Distinction between sections of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sections {
    /// By the faulting instruction.
    Auto = 0,
    /// By the program's own marks.
    Marked = 1,
    /// None.
    Off = 2,
}

/// The library's report on its readiness.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ready {
    /// Backend in use; or the failed step, with its errno.
    pub begun: Result<Backend, (Step, u32)>,
}

/// masu's permission to begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Go {
    /// Number of saved site profiles in the segment, in the area of pages in transfer.
    pub profiles: u32,
}

/// Step of the library's start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// userfaultfd(2).
    Userfaultfd = 1,
    /// The memory for its tables.
    Memory = 2,
    /// Signal handlers and their stack.
    Signals = 3,
    /// Syscall trap: prctl(2), Syscall User Dispatch.
    Dispatch = 4,
    /// Choice of the requested backend, or of any.
    Backend = 5,
}

impl Step {
    const ALL: [Step; 5] = [Step::Userfaultfd, Step::Memory, Step::Signals, Step::Dispatch, Step::Backend];
}

impl Secret {
    /// Hexadecimal digits of a secret.
    const DIGITS: usize = 32;

    /// Parses the environment variable. `None` for digits that masu has not written.
    pub fn of(digits: &[u8]) -> Option<Secret> {
        // The parser would accept signs and capitals too, which masu does not write.
        if digits.len() != Secret::DIGITS || !digits.iter().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f')) {
            return None;
        }
        let half = |digits: &[u8]| u64::from_str_radix(core::str::from_utf8(digits).ok()?, 16).ok();
        let (library, masu) = digits.split_at(Secret::DIGITS / 2);
        Some(Secret { library: half(library)?, masu: half(masu)? })
    }
}

/// Prints the digits, for the environment.
impl fmt::Display for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}{:016x}", self.library, self.masu)
    }
}

/// Prints no digits.
impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

impl Identity {
    /// Encodes the message.
    pub const fn message(self) -> Message {
        let Limits { address_space, data, file_size } = self.limits;
        let left_out = match self.left_out {
            Some(reason) => reason as u64,
            None => 0,
        };
        [MAGIC, self.process as u64, self.secret, address_space, data, file_size, left_out, 0]
    }

    /// Decodes the message; `None` if it is another one.
    pub fn of(message: &Message) -> Option<Identity> {
        let [magic, process, secret, address_space, data, file_size, left_out, _] = *message;
        let process = u32::try_from(process).ok()?;
        let left_out = match left_out {
            0 => None,
            word => Some(LeftOut::of_word(word)?),
        };
        let limits = Limits { address_space, data, file_size };
        (magic == MAGIC).then_some(Identity { process, secret, limits, left_out })
    }
}

/// Message of a served program that has a file for its pages: it has a request all the same, and masu wakes up.
pub const WAKE: Message = [0; WORDS];

impl Aside {
    /// Encodes the message.
    pub const fn message(self) -> Message {
        [MAGIC, self.reason as u64, 0, 0, 0, 0, 0, 0]
    }

    /// Decodes the message; `None` if it is another one.
    pub fn of(message: &Message) -> Option<Aside> {
        let reason = LeftOut::of_word(message[1])?;
        (message[0] == MAGIC).then_some(Aside { reason })
    }
}

impl SessionParameters {
    /// Pages per fault where no part of the program has a transfer size of its own: with sections by instruction all
    /// parts have one.
    pub fn plain_unit_pages(&self) -> Option<u32> {
        match self.sections {
            Sections::Auto => None,
            Sections::Marked => Some(self.base_pages),
            Sections::Off => Some(self.unit_pages),
        }
    }

    /// Encodes the message, with masu's half of the secret.
    pub const fn message(self, secret: u64) -> Message {
        let budget = self.budget_frames as u64 | (self.budget_share as u64) << 32;
        let units = self.unit_pages as u64 | (self.base_pages as u64) << 32;
        let backend = match self.backend {
            Some(backend) => backend as u64,
            None => 0,
        };
        let segment = match self.segment {
            Some(number) => number as u64 + 1,
            None => 0,
        };
        let backend = backend | segment << 8;
        let way = self.sections as u64 | (self.background as u64) << 32 | (self.has_file as u64) << 33;
        [MAGIC, budget, self.most_pages as u64, units, self.least_bytes, way, backend, secret]
    }

    /// Decodes the message and the secret in it; `None` if it is another one.
    pub fn of(message: &Message) -> Option<(SessionParameters, u64)> {
        let [magic, budget, most_pages, units, least_bytes, way, backend, secret] = *message;
        let halves = |word: u64| ((word & 0xffff_ffff) as u32, (word >> 32) as u32);
        let sections =
            [Sections::Auto, Sections::Marked, Sections::Off].into_iter().find(|of| *of as u64 == way & 0xffff_ffff)?;
        let ((budget_frames, budget_share), (unit_pages, base_pages)) = (halves(budget), halves(units));
        let most_pages = u32::try_from(most_pages).ok()?;
        let segment = match backend >> 8 {
            0 => None,
            next => Some(u32::try_from(next - 1).ok()?),
        };
        let backend = match backend & 0xff {
            0 => None,
            word => Some(Backend::of_word(word)?),
        };
        let parameters = SessionParameters {
            budget_frames,
            budget_share,
            most_pages,
            unit_pages,
            base_pages,
            least_bytes,
            sections,
            background: way >> 32 & 1 != 0,
            has_file: way >> 33 & 1 != 0,
            segment,
            backend,
        };
        (magic == MAGIC && way >> 34 == 0).then_some((parameters, secret))
    }
}

impl Ready {
    /// Encodes the message.
    pub fn message(self) -> Message {
        let (step, errno, backend) = match self.begun {
            Ok(backend) => (0, 0, backend as u64),
            Err((step, errno)) => (step as u64, errno.into(), 0),
        };
        [MAGIC, step, errno, backend, 0, 0, 0, 0]
    }

    /// Decodes the message; `None` if it is another one.
    pub fn of(message: &Message) -> Option<Ready> {
        let [magic, step, errno, backend, ..] = *message;
        let begun = match step {
            0 => Ok(Backend::of_word(backend)?),
            step => Err((Step::ALL.into_iter().find(|of| *of as u64 == step)?, u32::try_from(errno).ok()?)),
        };
        (magic == MAGIC).then_some(Ready { begun })
    }
}

impl Go {
    /// Encodes the message.
    pub const fn message(self) -> Message {
        [MAGIC, self.profiles as u64, 0, 0, 0, 0, 0, 0]
    }

    /// Decodes the message; `None` if it is another one.
    pub fn of(message: &Message) -> Option<Go> {
        let profiles = u32::try_from(message[1]).ok()?;
        (message[0] == MAGIC).then_some(Go { profiles })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_secret_is_parsed_only_in_whole_and_as_masu_writes_it() {
        let digits = "0123456789abcdef0123456789abcdef";
        assert_eq!(Secret::of(digits.as_bytes()).map(|secret| secret.to_string()).as_deref(), Some(digits));
        let (half, signed) = (&digits[16..], format!("+{}", &digits[1..]));
        let capitals = digits.to_uppercase();
        for value in
            ["", "0123", half, &digits[1..], &format!("{}g", &digits[1..]), &format!("{digits}0"), &signed, &capitals]
        {
            assert_eq!(Secret::of(value.as_bytes()), None, "{value}");
        }
    }

    #[test]
    fn a_rejection_is_no_other_message() {
        for message in [REJECTED, LEFT_OUT, REFUSED] {
            assert_eq!(
                (Identity::of(&message), SessionParameters::of(&message), Ready::of(&message), Go::of(&message)),
                (None, None, None, None)
            );
            assert_eq!([Aside::of(&message), Aside::of(&WAKE)], [None; 2]);
        }
        assert!(REJECTED != LEFT_OUT && LEFT_OUT != REFUSED && REFUSED != REJECTED);
    }

    proptest! {
        #[test]
        fn each_message_is_decoded_as_it_was_encoded(
            words: [u32; 5], least_bytes: u64, sections in 0_usize..3, backend in 0_usize..3, background: bool,
            has_file: bool, has_segment: bool, secret: u64, limits: [u64; 3], reason in 0_usize..LeftOut::ALL.len(),
        ) {
            let sections = [Sections::Auto, Sections::Marked, Sections::Off][sections];
            let [budget_frames, budget_share, most_pages, unit_pages, base_pages] = words;
            let backend = [None, Some(Backend::Move), Some(Backend::Copy)][backend];
            let parameters = SessionParameters {
                budget_frames, budget_share, most_pages, unit_pages, base_pages, least_bytes, sections, background, has_file,
                segment: has_segment.then_some(words[4]), backend,
            };
            prop_assert_eq!(SessionParameters::of(&parameters.message(secret)), Some((parameters, secret)));
            let [address_space, data, file_size] = limits;
            let limits = Limits { address_space, data, file_size };
            let reason = LeftOut::ALL[reason];
            for left_out in [None, Some(reason)] {
                let identity = Identity { process: words[0], secret, limits, left_out };
                prop_assert_eq!(Identity::of(&identity.message()), Some(identity));
            }
            prop_assert_eq!(Aside::of(&Aside { reason }.message()), Some(Aside { reason }));
            let go = Go { profiles: words[0] };
            prop_assert_eq!(Go::of(&go.message()), Some(go));
            let failed = Step::ALL.map(|step| Err((step, words[1])));
            for begun in Backend::ALL.map(Ok).into_iter().chain(failed) {
                let ready = Ready { begun };
                prop_assert_eq!(Ready::of(&ready.message()), Some(ready));
            }
        }

        #[test]
        fn a_secret_in_the_environment_is_read_again_and_nowhere_else(library: u64, masu: u64) {
            let secret = Secret { library, masu };
            prop_assert_eq!(Secret::of(secret.to_string().as_bytes()), Some(secret));
            let (shown, half) = (format!("{secret:?}"), format!("{library:016x}"));
            prop_assert!(!shown.contains(&half));
        }

        #[test]
        fn any_value_in_the_environment_is_parsed_without_a_panic(value: Vec<u8>) {
            let _ = Secret::of(&value);
        }

        #[test]
        fn any_message_is_decoded_without_a_panic(message: Message) {
            let _ = (Identity::of(&message), SessionParameters::of(&message), Ready::of(&message), Go::of(&message));
            let mut marked = message;
            marked[0] = MAGIC;
            let _ = (Identity::of(&marked), SessionParameters::of(&marked), Ready::of(&marked), Go::of(&marked));
        }
    }
}
