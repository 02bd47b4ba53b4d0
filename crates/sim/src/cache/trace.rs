//! Traces of real programs in the format of valgrind's lackey: `valgrind --tool=lackey --trace-mem=yes --log-file=FILE
//! PROGRAM`.
//!
//! ```text
//! ==4121== Lackey, an example Valgrind tool     a line of valgrind, left out
//! I  04001090,3                                 an instruction of 3 bytes
//!  L 1ffefffd30,8                               a load of 8 bytes
//!  S 04a2b858,4                                 a store
//!  M 04a2b858,4                                 a load and a store
//! ```
//!
//! An access to two lines is two accesses here. Instructions are counted, but their own lines are ignored: they hardly
//! ever reach the last-level cache. A trace restarts from the beginning at its end.
//!
//! Truth: "Lackey: an example tool" in the Valgrind manual.

use std::collections::HashMap;
use std::io::{BufRead, Read, Seek};

use super::frames::{Frame, PAGE_LINES};
use super::set_associative::{LINE, Line};

/// Longest line: lackey's are shorter; other lines of valgrind may be long.
const LINE_MAX: u64 = 64 << 10;

/// Meaningful line of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record {
    /// Executed instruction.
    Instruction,
    /// Read or write of memory.
    Data {
        /// Virtual address.
        address: u64,
        /// Length in bytes, at least 1.
        bytes: u32,
        /// Written, or read and written.
        store: bool,
    },
}

/// Parses a line; `None` for other lines of valgrind and empty ones.
///
/// # Errors
/// Expected form, for any other line.
pub fn record(line: &str) -> Result<Option<Record>, &'static str> {
    const EXPECTED: &str = "expected I, L, S or M with an address and a number of bytes, such as \" L 1ffefffd30,8\"";
    let line = line.trim();
    if line.is_empty() || line.starts_with("==") || line.starts_with("--") {
        return Ok(None);
    }
    let (kind, place) = line.split_at_checked(1).ok_or(EXPECTED)?;
    let (address, bytes) = place.trim_start().split_once(',').ok_or(EXPECTED)?;
    let plain = |digits: &str| !digits.is_empty() && !digits.starts_with('+');
    let address = plain(address).then(|| u64::from_str_radix(address, 16).ok()).flatten().ok_or(EXPECTED)?;
    let bytes = plain(bytes).then(|| bytes.parse::<u32>().ok()).flatten().ok_or(EXPECTED)?;
    // The widest access of any instruction known to valgrind is far below (FXSAVE, XSAVE).
    if !(1..=65_536).contains(&bytes) || address.checked_add(u64::from(bytes)).is_none() {
        return Err("expected 1 to 65536 bytes that end within memory");
    }
    match kind {
        "I" => Ok(Some(Record::Instruction)),
        "L" => Ok(Some(Record::Data { address, bytes, store: false })),
        "S" | "M" => Ok(Some(Record::Data { address, bytes, store: true })),
        _ => Err(EXPECTED),
    }
}

/// Input of a trace.
pub trait Source: BufRead + Seek + Send {}

impl<T: BufRead + Seek + Send> Source for T {}

/// Reason that a trace cannot be continued.
#[derive(Debug, thiserror::Error)]
pub enum BadTrace {
    /// It cannot be read.
    #[error("cannot read the trace {name}: {why}")]
    Unread {
        /// File name.
        name: String,
        /// Error of the system.
        why: std::io::Error,
    },
    /// Invalid line.
    #[error("{name} line {line}: {expected}")]
    Line {
        /// File name.
        name: String,
        /// Line number, from 1.
        line: u64,
        /// Expected form.
        expected: &'static str,
    },
    /// It has no access.
    #[error("{name}: expected a trace, and it has no access to memory in it")]
    Empty {
        /// File name.
        name: String,
    },
    /// It uses more memory than was reserved for it.
    #[error("{name} line {line}: the program uses more memory than the scenario gives it; expected a larger `private`")]
    Memory {
        /// File name.
        name: String,
        /// Line number, from 1.
        line: u64,
    },
}

/// Memory of a traced program: pages get frames at their first use.
#[derive(Clone, Debug)]
struct Space {
    frames: HashMap<u64, (Frame, bool)>,
    free: Vec<Frame>,
    /// Page of the last access.
    last: Option<(u64, Frame, bool)>,
    unmerged: u64,
}

impl Space {
    /// Frame of a page; `None` without a free one. A store to a shared page gives the program its own copy.
    fn frame(&mut self, page: u64, store: bool) -> Option<Frame> {
        if let Some((last, frame, shared)) = self.last
            && last == page
            && !(shared && store)
        {
            return Some(frame);
        }
        let (mut frame, mut shared) = match self.frames.get(&page) {
            Some(known) => *known,
            None => (self.free.pop()?, false),
        };
        if shared && store {
            (frame, shared) = (self.free.pop()?, false);
            self.unmerged += 1;
        }
        self.frames.insert(page, (frame, shared));
        self.last = Some((page, frame, shared));
        Some(frame)
    }
}

/// Traced program.
pub struct Traced {
    name: String,
    source: Box<dyn Source>,
    text: Vec<u8>,
    line: u64,
    space: Space,
    /// Remaining lines of the current access, and whether it stores.
    pending: std::ops::Range<u64>,
    store: bool,
    instructions: u32,
    seen_any: bool,
    rounds: u64,
}

impl Traced {
    /// Trace with its memory. `shared`: merged pages of its address space, by number, with their frames. `free`: frames
    /// for all other pages.
    pub fn new(
        name: String,
        source: Box<dyn Source>,
        shared: impl IntoIterator<Item = (u64, Frame)>,
        free: Vec<Frame>,
    ) -> Traced {
        let frames = shared.into_iter().map(|(page, frame)| (page, (frame, true))).collect();
        let space = Space { frames, free, last: None, unmerged: 0 };
        let (text, pending) = (Vec::new(), 0..0);
        Traced {
            name,
            source,
            text,
            line: 0,
            space,
            pending,
            store: false,
            instructions: 0,
            seen_any: false,
            rounds: 0,
        }
    }

    /// Number of pages that were shared until the program wrote to them.
    pub fn unmerged(&self) -> u64 {
        self.space.unmerged
    }

    /// Number of completed rounds of the trace.
    pub fn rounds(&self) -> u64 {
        self.rounds
    }

    /// Next access, with the number of instructions since the last one.
    ///
    /// # Errors
    /// When the trace cannot be read, is invalid, or uses too much memory.
    pub fn next_access(&mut self) -> Result<(Line, u32), BadTrace> {
        while self.pending.is_empty() {
            match self.record()? {
                Some(Record::Instruction) => self.instructions = self.instructions.saturating_add(1),
                Some(Record::Data { address, bytes, store }) => {
                    self.pending = address / LINE.0..(address + u64::from(bytes) - 1) / LINE.0 + 1;
                    (self.store, self.seen_any) = (store, true);
                }
                None => {}
            }
        }
        let number = self.pending.start;
        self.pending.start += 1;
        let page_lines = u64::from(PAGE_LINES);
        let frame = self.space.frame(number / page_lines, self.store);
        let frame = frame.ok_or_else(|| BadTrace::Memory { name: self.name.clone(), line: self.line })?;
        #[expect(clippy::cast_possible_truncation, reason = "below 64")]
        let in_page = (number % page_lines) as u32;
        Ok((frame.line(in_page), std::mem::take(&mut self.instructions)))
    }

    /// Next record; after the last line, the first one again.
    fn record(&mut self) -> Result<Option<Record>, BadTrace> {
        self.text.clear();
        let unread = |why| BadTrace::Unread { name: self.name.clone(), why };
        // No line of lackey's is this long: a longer line is no trace, and may be larger than memory.
        let mut line = (&mut self.source).take(LINE_MAX);
        if line.read_until(b'\n', &mut self.text).map_err(unread)? == 0 {
            if !self.seen_any {
                return Err(BadTrace::Empty { name: self.name.clone() });
            }
            self.source.rewind().map_err(|why| BadTrace::Unread { name: self.name.clone(), why })?;
            (self.line, self.seen_any) = (0, false);
            self.rounds += 1;
            return Ok(None);
        }
        self.line += 1;
        let text = std::str::from_utf8(&self.text).map_err(|_| "expected a text");
        text.and_then(record).map_err(|expected| BadTrace::Line { name: self.name.clone(), line: self.line, expected })
    }
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;

    fn traced(text: &'static str, shared: Vec<(u64, Frame)>, free: u32) -> Traced {
        let free = (100..100 + free).rev().map(Frame).collect();
        Traced::new("t".into(), Box::new(Cursor::new(text)), shared, free)
    }

    #[test]
    fn lines_of_lackey_are_read_and_those_of_valgrind_left_out() {
        assert_eq!(record("I  04001090,3"), Ok(Some(Record::Instruction)));
        let data = |address, bytes, store| Ok(Some(Record::Data { address, bytes, store }));
        assert_eq!(record(" L 1ffefffd30,8\n"), data(0x1f_feff_fd30, 8, false));
        assert_eq!(record(" S 04a2b858,4"), data(0x4a2_b858, 4, true));
        assert_eq!(record(" M 04a2b858,16"), data(0x4a2_b858, 16, true));
        assert_eq!([record("==12== Lackey"), record("--12-- x"), record("  ")], [Ok(None), Ok(None), Ok(None)]);
        for bad in
            ["X 1,1", "L", "L 12", "L 12,", "L g,1", "L 1,0", "L ffffffffffffffff,8", "L 1,99999999", "é", "L +1,2"]
        {
            assert!(record(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn an_access_to_two_lines_is_two_and_the_trace_begins_again_at_its_end() {
        let mut trace = traced("I  0,1\nI  1,1\n L 103e,4\nI  2,1\n S 2000,1\n", Vec::new(), 9);
        let first = Frame(100);
        let second = Frame(101);
        let expected = [(first.line(0), 2), (first.line(1), 0), (second.line(0), 1), (first.line(0), 2)];
        let found: Vec<_> = (0..4).map(|_| trace.next_access().unwrap()).collect();
        assert_eq!((found, trace.rounds()), (expected.to_vec(), 1));
    }

    #[test]
    fn a_store_to_a_shared_page_gets_the_program_a_copy() {
        let mut trace = traced(" L 5000,8\n S 5000,8\n L 5000,8\n", vec![(5, Frame(7))], 9);
        let lines: Vec<Line> = (0..4).map(|_| trace.next_access().unwrap().0).collect();
        assert_eq!(lines, [Frame(7).line(0), Frame(100).line(0), Frame(100).line(0), Frame(100).line(0)]);
        assert_eq!(trace.unmerged(), 1);
    }

    #[test]
    fn what_is_no_trace_is_refused_with_its_line() {
        let message = |text, free| {
            let mut trace = traced(text, Vec::new(), free);
            (0..9).find_map(|_| trace.next_access().err()).unwrap().to_string()
        };
        assert!(message(" L 1,1\nhello\n", 9).starts_with("t line 2: expected I, L, S or M"));
        assert!(message("==1== nothing\n", 9).contains("no access"));
        assert!(message("", 9).contains("no access"));
        assert!(message(" L 0,1\n L 1000,1\n L 2000,1\n", 2).starts_with("t line 3: the program uses more memory"));
    }
}
