//! Messages between a program and the tracker: one request and one answer each, over a socket that keeps message
//! boundaries. Pure.
//!
//! Every request is answered except [`Request::Verdicts`] and [`Request::Decided`]. The tracker sends only answers;
//! the signal notifies the program. A malformed request closes its own connection, and no other.
//!
//! Numbers are little-endian, one after the other, without gaps.

use core::ffi::CStr;

use super::terms::Terms;

/// Protocol version: the first word of a registration.
pub const VERSION: u64 = u64::from_le_bytes(*b"masu-t01");

/// Longest message.
pub const MOST_BYTES: usize = 16 * 1024;

/// Longest message without its verdicts; each verdict adds one byte.
pub const SHORT_BYTES: usize = 128;

/// Most verdicts in one message.
pub const MOST_VERDICTS: usize = MOST_BYTES - SHORT_BYTES;

/// From a program to the tracker.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Request<'a> {
    /// Start watching, or replace the session parameters. Answered by `Welcome` or `Refused`.
    Register(Terms),
    /// Stop watching; no signal follows the answer `Bye`.
    Unregister,
    /// Send the list that the signal announced. Answered by `List` with the memory, or `Nothing`.
    Fetch,
    /// Verdicts on windows of a list, one byte each, from window number `first` on.
    Verdicts {
        /// Number of the list.
        generation: u64,
        /// Index of the first window in it.
        first: u64,
        /// [`super::list::Verdict`]s.
        verdicts: &'a [u8],
    },
    /// The verdicts are complete.
    Decided {
        /// Number of the list.
        generation: u64,
    },
    /// Number of windows in the program's own arena from now on. Answered by `Granted`.
    Arena {
        /// Windows.
        windows: u64,
    },
    /// Totals so far. Answered by `Progress`.
    Progress,
}

/// From the tracker to a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The program is watched.
    Welcome,
    /// The program is not watched.
    Refused(Refused),
    /// The list, whose memory comes with this message.
    List {
        /// Number of the list.
        generation: u64,
        /// Number of windows.
        windows: u64,
        /// Number of pages.
        pages: u64,
    },
    /// No unfetched list.
    Nothing,
    /// Windows granted to the arena.
    Granted {
        /// Windows.
        windows: u64,
    },
    /// Totals so far.
    Progress(Totals),
    /// The program is no longer watched.
    Bye,
}

/// Totals of the tracker's work for a program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Observations.
    pub rounds: u64,
    /// Signals.
    pub signals: u64,
    /// Windows promoted.
    pub promoted: u64,
    /// Windows split again.
    pub demoted: u64,
    /// Promotions refused by the kernel, the budget or a limit.
    pub refused: u64,
    /// Memory that promotion holds beyond the earlier resident memory.
    pub extra_rss_bytes: u64,
}

/// Reason for a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// Another protocol version.
    Version = 1,
    /// A value is out of its bounds.
    Terms = 2,
    /// No such process.
    NoProcess = 3,
    /// Only root may register another process than its own, and only one that the kernel lets it inspect.
    NotYours = 4,
    /// The user has the maximum number of registered programs.
    TooMany = 5,
    /// Already registered, or another masu works on it.
    Taken = 6,
    /// It cannot be observed, or forbids huge pages: the tracker has printed the reason.
    Unfit = 7,
    /// Not registered; the request needs a registration.
    Unregistered = 8,
}

impl Refused {
    const ALL: [Refused; 8] = [
        Refused::Version,
        Refused::Terms,
        Refused::NoProcess,
        Refused::NotYours,
        Refused::TooMany,
        Refused::Taken,
        Refused::Unfit,
        Refused::Unregistered,
    ];

    /// Text for the client.
    pub const fn text(self) -> &'static CStr {
        match self {
            Refused::Version => c"the tracker is of another version than this library: install both anew",
            Refused::Terms => c"a value lies out of its bounds (masu.h says which are allowed)",
            Refused::NoProcess => c"there is no such process",
            Refused::NotYours => c"only root, with ptrace access to it, may register another process than its own",
            Refused::TooMany => {
                c"your user, or all users, have as many programs registered as the tracker allows (masu track --max-programs)"
            }
            Refused::Taken => c"it is registered already, or another masu is at work on it",
            Refused::Unfit => c"the tracker cannot work on this process: it has printed why",
            Refused::Unregistered => c"the tracker does not know this program: enable tracking first",
        }
    }
}

/// Malformed message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

/// Writer of a message.
struct Writer<'a> {
    into: &'a mut [u8],
    bytes: usize,
}

impl Writer<'_> {
    fn put(&mut self, bytes: &[u8]) {
        // A value too long for the buffer is cut: callers bring enough space, and a test asserts the size.
        let bytes = &bytes[..bytes.len().min(self.into.len() - self.bytes)];
        self.into[self.bytes..self.bytes + bytes.len()].copy_from_slice(bytes);
        self.bytes += bytes.len();
    }

    fn words(mut self, words: &[u64]) -> Self {
        words.iter().for_each(|word| self.put(&word.to_le_bytes()));
        self
    }
}

/// Reader of a message.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn word(&mut self) -> Result<u64, Malformed> {
        let (word, rest) = self.0.split_first_chunk::<8>().ok_or(Malformed)?;
        self.0 = rest;
        Ok(u64::from_le_bytes(*word))
    }

    fn narrow<T: TryFrom<u64>>(&mut self) -> Result<T, Malformed> {
        T::try_from(self.word()?).map_err(|_| Malformed)
    }

    fn float(&mut self) -> Result<f64, Malformed> {
        self.word().map(f64::from_bits)
    }

    fn rest(&mut self) -> &'a [u8] {
        core::mem::take(&mut self.0)
    }

    fn end<T>(self, value: T) -> Result<T, Malformed> {
        if self.0.is_empty() { Ok(value) } else { Err(Malformed) }
    }
}

impl<'a> Request<'a> {
    /// Writes it into [`SHORT_BYTES`], or as many more as there are verdicts, and returns its length.
    pub fn write(&self, into: &mut [u8]) -> usize {
        let writer = Writer { into, bytes: 0 };
        let wide = |number: i32| i64::from(number).cast_unsigned();
        match *self {
            Request::Register(t) => {
                writer
                    .words(&[1, VERSION, wide(t.pid), wide(t.signal), u64::from(t.decides), t.threshold_pages])
                    .words(&[u64::from(t.period_ms), u64::from(t.every_ms)])
                    .words(&[t.hot_rate, t.hot_fraction, t.max_extra_rss].map(f64::to_bits))
                    .bytes
            }
            Request::Unregister => writer.words(&[2]).bytes,
            Request::Fetch => writer.words(&[3]).bytes,
            Request::Verdicts { generation, first, verdicts } => {
                let mut writer = writer.words(&[4, generation, first]);
                writer.put(verdicts);
                writer.bytes
            }
            Request::Decided { generation } => writer.words(&[5, generation]).bytes,
            Request::Arena { windows } => writer.words(&[6, windows]).bytes,
            Request::Progress => writer.words(&[7]).bytes,
        }
    }

    /// Reads it.
    ///
    /// # Errors
    /// Malformed requests. A request of another version is valid: [`wants_another_version`] tells.
    pub fn read(message: &'a [u8]) -> Result<Request<'a>, Malformed> {
        let mut reader = Reader(message);
        let request = match reader.word()? {
            1 => {
                if reader.word()? != VERSION {
                    return Err(Malformed);
                }
                let signed =
                    |reader: &mut Reader<'_>| i32::try_from(reader.word()?.cast_signed()).map_err(|_| Malformed);
                Request::Register(Terms {
                    pid: signed(&mut reader)?,
                    signal: signed(&mut reader)?,
                    decides: reader.narrow::<u8>()? != 0,
                    threshold_pages: reader.word()?,
                    period_ms: reader.narrow()?,
                    every_ms: reader.narrow()?,
                    hot_rate: reader.float()?,
                    hot_fraction: reader.float()?,
                    max_extra_rss: reader.float()?,
                })
            }
            2 => Request::Unregister,
            3 => Request::Fetch,
            4 => Request::Verdicts { generation: reader.word()?, first: reader.word()?, verdicts: reader.rest() },
            5 => Request::Decided { generation: reader.word()? },
            6 => Request::Arena { windows: reader.word()? },
            7 => Request::Progress,
            _ => return Err(Malformed),
        };
        reader.end(request)
    }
}

/// Whether a message registers a program with another protocol version.
pub fn wants_another_version(message: &[u8]) -> bool {
    let mut reader = Reader(message);
    reader.word() == Ok(1) && reader.word().is_ok_and(|version| version != VERSION && version & 0xff_ffff_ffff == OURS)
}

/// `masu-` of a version.
const OURS: u64 = u64::from_le_bytes(*b"masu-\0\0\0");

impl Answer {
    /// Writes it into [`SHORT_BYTES`], and returns its length.
    pub fn write(&self, into: &mut [u8]) -> usize {
        let writer = Writer { into, bytes: 0 };
        match *self {
            Answer::Welcome => writer.words(&[101]),
            Answer::Refused(why) => writer.words(&[102, why as u64]),
            Answer::List { generation, windows, pages } => writer.words(&[103, generation, windows, pages]),
            Answer::Nothing => writer.words(&[104]),
            Answer::Granted { windows } => writer.words(&[105, windows]),
            Answer::Progress(t) => {
                writer.words(&[106, t.rounds, t.signals, t.promoted, t.demoted, t.refused, t.extra_rss_bytes])
            }
            Answer::Bye => writer.words(&[107]),
        }
        .bytes
    }

    /// Reads it.
    ///
    /// # Errors
    /// Malformed answers.
    pub fn read(message: &[u8]) -> Result<Answer, Malformed> {
        let mut reader = Reader(message);
        let answer = match reader.word()? {
            101 => Answer::Welcome,
            102 => {
                let number = reader.word()?;
                let why = Refused::ALL.into_iter().find(|why| *why as u64 == number);
                Answer::Refused(why.ok_or(Malformed)?)
            }
            103 => Answer::List { generation: reader.word()?, windows: reader.word()?, pages: reader.word()? },
            104 => Answer::Nothing,
            105 => Answer::Granted { windows: reader.word()? },
            106 => Answer::Progress(Totals {
                rounds: reader.word()?,
                signals: reader.word()?,
                promoted: reader.word()?,
                demoted: reader.word()?,
                refused: reader.word()?,
                extra_rss_bytes: reader.word()?,
            }),
            107 => Answer::Bye,
            _ => return Err(Malformed),
        };
        reader.end(answer)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::terms::USUAL;
    use super::*;

    fn there_and_back(request: &Request<'_>) {
        let mut space = [0; MOST_BYTES];
        let bytes = request.write(&mut space);
        assert_eq!(Request::read(&space[..bytes]), Ok(*request));
        let verdicts = if let Request::Verdicts { verdicts, .. } = request { verdicts.len() } else { 0 };
        assert!(bytes <= SHORT_BYTES + verdicts);
        assert_eq!(Request::read(&space[..bytes - 1]).is_err(), !matches!(request, Request::Verdicts { .. }));
    }

    #[test]
    fn requests_are_read_as_they_were_written_and_not_when_cut() {
        let most = [2u8; MOST_VERDICTS];
        there_and_back(&Request::Register(Terms { pid: 7, signal: 40, decides: true, ..USUAL }));
        there_and_back(&Request::Unregister);
        there_and_back(&Request::Fetch);
        there_and_back(&Request::Verdicts { generation: 9, first: 3, verdicts: &[0, 1, 2] });
        there_and_back(&Request::Verdicts { generation: 9, first: 3, verdicts: &most });
        there_and_back(&Request::Decided { generation: u64::MAX });
        there_and_back(&Request::Arena { windows: 5 });
        there_and_back(&Request::Progress);
    }

    #[test]
    fn answers_are_read_as_they_were_written_and_not_when_cut() {
        let totals = Totals { rounds: 1, signals: 2, promoted: 3, demoted: 4, refused: 5, extra_rss_bytes: 6 };
        let mut all = vec![
            Answer::Welcome,
            Answer::List { generation: 1, windows: 2, pages: 3 },
            Answer::Nothing,
            Answer::Granted { windows: 4 },
            Answer::Progress(totals),
            Answer::Bye,
        ];
        all.extend(Refused::ALL.map(Answer::Refused));
        for answer in all {
            let mut space = [0; MOST_BYTES];
            let bytes = answer.write(&mut space);
            assert_eq!(Answer::read(&space[..bytes]), Ok(answer));
            assert!(bytes <= SHORT_BYTES);
            assert_eq!(Answer::read(&space[..bytes - 1]), Err(Malformed));
            assert_eq!(Answer::read(&space[..bytes + 1]), Err(Malformed));
        }
    }

    #[test]
    fn another_version_is_told_from_garbage() {
        let mut space = [0; MOST_BYTES];
        let bytes = Request::Register(USUAL).write(&mut space);
        assert!(!wants_another_version(&space[..bytes]));
        space[8..16].copy_from_slice(b"masu-t99");
        assert!(wants_another_version(&space[..bytes]) && wants_another_version(&space[..16]));
        assert_eq!(Request::read(&space[..bytes]), Err(Malformed));
        space[8..16].copy_from_slice(b"GET / HT");
        assert!(!wants_another_version(&space[..bytes]));
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic_and_what_is_read_can_be_written(message in prop::collection::vec(any::<u8>(), 0..200)) {
            let mut space = [0; MOST_BYTES];
            if let Ok(request) = Request::read(&message) {
                let bytes = request.write(&mut space);
                prop_assert!(bytes <= message.len());
            }
            if let Ok(answer) = Answer::read(&message) {
                let bytes = answer.write(&mut space);
                prop_assert_eq!(&space[..bytes], &message[..]);
            }
            wants_another_version(&message);
        }
    }
}
