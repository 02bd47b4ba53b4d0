//! Input of a run: the programs at masu's start, their events, and masu's settings.
//!
//! A script is made from bytes, so that a fuzzer's bytes and the lists of a property test mean the same.

use std::fmt;
use std::time::Duration;

use hugepages::attach::{ROUND_MIN, Settings, Until};
use hugepages::{policy, rate_limiter};
use rustix::io::Errno;
use units::{Bytes, Fraction, NonZeroFraction};

use super::cell::{Answer, Cell, Mapped, OFTEN, PAGES};
use super::space::Space;

/// Time of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// At this time.
    Time(Duration),
    /// At the start of this call: between a scan and an action, if it so falls.
    Call(u64),
}

impl When {
    /// Whether it is due.
    pub fn is_due(self, now: Duration, calls: u64) -> bool {
        match self {
            When::Time(at) => at <= now,
            When::Call(number) => number <= calls,
        }
    }
}

/// One event.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Event {
    /// Time.
    pub when: When,
    /// Index of the program, modulo the number of programs.
    pub program: usize,
    /// Index of the window, modulo the number of windows.
    pub window: usize,
    /// Event.
    pub change: Change,
}

/// Possible events.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Change {
    /// The program touches this many of a window's pages for the first time.
    Touch(u64),
    /// The program touches this number of pages repeatedly, or stops with zero.
    Heat(u64, Duration),
    /// The program reads this number of pages: they map the zero page.
    Zero(u64),
    /// This number of pages goes to swap.
    Swap(u64),
    /// A forked child shares this number of pages from now on; with zero, no longer.
    Share(u64),
    /// This number of pages becomes guard pages.
    Guard(u64),
    /// Another mapping over the window; its memory goes, unless only the permissions change.
    Map(Mapped),
    /// MADV_DONTNEED.
    Free,
    /// The same on all but this number of pages of a huge window.
    Tear(u64),
    /// MADV_NOHUGEPAGE.
    Forbid,
    /// Split, not by masu.
    Split,
    /// khugepaged makes it huge.
    Khugepaged,
    /// The next collapses by masu fail.
    Fail(Answer, u32),
    /// The next splits do nothing.
    Pin(u32),
    /// The next scans do not see it: it is being migrated.
    Hide(u32),
    /// Room below the memory cgroup's limit.
    Room(Option<Bytes>),
    /// The program replaces its address space.
    Exec,
    /// The program ends.
    Exit,
    /// The host sleeps: the clock jumps.
    Sleep(Duration),
    /// Ctrl-C.
    CtrlC,
}

impl Change {
    /// Applies its effect on one window.
    pub fn apply(self, cell: &mut Cell, now: Duration) {
        let small = !cell.huge;
        match self {
            Change::Touch(pages) if cell.mapped == Mapped::Anonymous => cell.touch(pages),
            Change::Heat(pages, period) if cell.mapped == Mapped::Anonymous => {
                cell.touch(pages);
                (cell.hot, cell.period, cell.hot_since) = (pages.min(PAGES), period, now);
            }
            Change::Zero(pages) if small => cell.zero = pages,
            Change::Swap(pages) if small => {
                let out = pages.min(cell.used);
                (cell.used, cell.swapped) = (cell.used - out, cell.swapped + out);
            }
            Change::Share(pages) if small => cell.shared = pages,
            Change::Guard(pages) if small => cell.guards = pages,
            Change::Map(mapped) => {
                let stays = |mapped| matches!(mapped, Mapped::Anonymous | Mapped::ReadOnly | Mapped::NoAccess);
                if !(stays(mapped) && stays(cell.mapped)) {
                    cell.empty();
                }
                cell.mapped = mapped;
                if cell.is_file() {
                    cell.used = PAGES / 2; // read in at once
                }
            }
            Change::Free => cell.empty(),
            Change::Tear(kept) if cell.huge => cell.tear(kept),
            Change::Forbid => cell.forbidden = true,
            Change::Split => cell.split_by_others(),
            Change::Khugepaged => {
                // A window that refuses it stays small, as the script intends.
                let _ = cell.collapse(false);
            }
            Change::Fail(answer, times) => cell.failing = Some((answer, times)),
            Change::Pin(times) => cell.pinned = times,
            Change::Hide(scans) => cell.hidden = scans,
            _ => {}
        }
        cell.fit();
    }
}

/// One run.
#[derive(Clone)]
pub struct Script {
    /// The programs at masu's start.
    pub spaces: Vec<Space>,
    /// Events.
    pub events: Vec<Event>,
    /// masu's settings of the loop.
    pub settings: Settings,
    /// masu's policy for each program.
    pub policy: policy::Settings,
    /// Splits return the pages that hold only zeros.
    pub returns_zero_pages: bool,
    /// Latest time of Ctrl-C.
    pub horizon: Duration,
    /// Time to preallocate a huge page.
    pub preallocation: Duration,
    /// Arrival time of each program; programs beyond the list are there from the start.
    pub come_at: Vec<Duration>,
}

/// A few lines for reading a failed script.
impl fmt::Debug for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Settings { until, dry_run, .. } = self.settings;
        writeln!(f, "{until:?}, dry run {dry_run}, splits return {}, {:?}", self.returns_zero_pages, self.policy)?;
        writeln!(f, "programs come at {:?}", self.come_at)?;
        for (number, space) in self.spaces.iter().enumerate() {
            writeln!(f, "program {number}: {} pages elsewhere, room {:?}", space.other_rss, space.room)?;
            for (number, cell) in space.cells.iter().enumerate() {
                writeln!(f, "    window {number}: {cell:?}")?;
            }
        }
        for Event { when, program, window, change } in &self.events {
            let (program, window) = (program % self.spaces.len().max(1), *window);
            let windows = self.spaces.get(program).map_or(1, |space| space.cells.len().max(1));
            writeln!(f, "at {when:?}, program {program}, window {}: {change:?}", window % windows)?;
        }
        Ok(())
    }
}

/// The bytes in front of the windows.
pub const HEADER: usize = 8;
/// Bytes of one window.
pub const WINDOW: usize = 5;
/// Bytes of one event.
pub const EVENT: usize = 6;

/// Default settings of the tests.
pub const SETTINGS: Settings =
    Settings { rate: rate_limiter::MEASURED, until: Until::Settled, dry_run: false, round_min: ROUND_MIN };

impl Script {
    /// Programs without events.
    pub fn of(spaces: Vec<Space>) -> Script {
        Script {
            spaces,
            events: Vec::new(),
            settings: SETTINGS,
            policy: policy::PAPER,
            returns_zero_pages: true,
            horizon: Duration::from_secs(1000),
            preallocation: Duration::ZERO,
            come_at: Vec::new(),
        }
    }

    /// Script decoded from bytes; any bytes are valid.
    pub fn from_bytes(bytes: &[u8]) -> Script {
        let (header, rest) = bytes.split_at(HEADER.min(bytes.len()));
        let mut full = [0; HEADER];
        full[..header.len()].copy_from_slice(header);
        let windows = usize::from(full[7] % 24) * WINDOW;
        let (windows, events) = rest.split_at(windows.min(rest.len()));
        Script::from_parts(full, windows.as_chunks().0, events.as_chunks().0)
    }

    /// The same from its parts.
    pub fn from_parts(header: [u8; HEADER], windows: &[[u8; WINDOW]], events: &[[u8; EVENT]]) -> Script {
        let [programs, until, hot, extra, idle, other, flags, _] = header;
        let mut spaces = vec![Space::of(Vec::new()); 1 + usize::from(programs % 3)];
        let count = spaces.len();
        for bytes in windows {
            spaces[usize::from(bytes[0]) % count].cells.push(cell(*bytes));
        }
        for space in &mut spaces {
            space.other_rss = u64::from(other) * 64;
        }
        let policy = policy::Settings {
            hot_fraction: NonZeroFraction::ratio(1, [4, 1, 2, 8][usize::from(hot % 4)]),
            max_extra_rss: Fraction::clamped([0.01, 0.0, 0.1, 1.0][usize::from(extra % 4)]),
            idle_rounds: 1 + u32::from(idle % 4),
            settle_noise: Fraction::clamped([0.0, 0.1][usize::from(idle / 4 % 2)]),
            ..policy::PAPER
        };
        let until = match until % 4 {
            0 | 1 => Until::Settled,
            2 => Until::For(Duration::from_millis(u64::from(until) * 100)),
            _ => Until::Stopped,
        };
        Script {
            events: events.iter().map(|bytes| event(*bytes)).collect(),
            settings: Settings { until, dry_run: flags % 8 == 7, ..SETTINGS },
            policy,
            returns_zero_pages: flags / 8 % 4 != 3,
            horizon: Duration::from_secs(120),
            preallocation: Duration::ZERO,
            ..Script::of(spaces)
        }
    }
}

/// A number of pages: the bounds often, and everything between.
fn pages(byte: u8) -> u64 {
    if byte == u8::MAX { PAGES } else { u64::from(byte) * 2 }
}

fn period(byte: u8) -> Duration {
    let choices = [OFTEN, OFTEN / 10, Duration::from_millis(1_100), Duration::from_secs(5), Duration::from_secs(30)];
    choices[usize::from(byte) % choices.len()]
}

fn mapped(byte: u8) -> Mapped {
    use Mapped::{Anonymous, CutInTwo, File, NoAccess, Nothing, ReadOnly, SharedMemory};
    [Anonymous, ReadOnly, NoAccess, File, SharedMemory, CutInTwo, Nothing][usize::from(byte) % 7]
}

fn cell([_, used, hot, how, what]: [u8; WINDOW]) -> Cell {
    let mut cell = Cell::hot(pages(used), pages(hot).min(pages(used)), period(how));
    match what {
        250.. => {
            cell = cell.huge();
            cell.tear(pages(used) / 2);
        }
        200..250 => cell = cell.huge(),
        100..200 => cell.mapped = mapped(what),
        90..100 => cell.shared = 3,
        80..90 => cell.guards = 1,
        70..80 => cell.swapped = 7,
        60..70 => cell.zero = 512,
        50..60 => cell.forbidden = true,
        40..50 => cell.failing = Some((answer(what), u32::MAX)),
        _ => {}
    }
    if cell.mapped != Mapped::Anonymous {
        cell.hot = 0;
    }
    if cell.mapped == Mapped::Nothing {
        cell.empty();
    }
    cell.fit();
    cell
}

fn answer(byte: u8) -> Answer {
    const ERRORS: [Errno; 6] = [Errno::AGAIN, Errno::NOMEM, Errno::BUSY, Errno::INVAL, Errno::PERM, Errno::INTR];
    match ERRORS.get(usize::from(byte) % (ERRORS.len() + 1)) {
        Some(errno) => Answer::Refused(*errno),
        None => Answer::YesAndNothing,
    }
}

fn event([when, later, program, window, what, amount]: [u8; EVENT]) -> Event {
    let when = match when % 2 {
        0 => When::Time(Duration::from_millis(u64::from(when) * u64::from(later) * 2)),
        _ => When::Call(u64::from(when) * u64::from(later) / 8),
    };
    let times = u32::from(amount / 8);
    let change = match what % 26 {
        0 | 1 => Change::Heat(pages(amount), period(amount)),
        2 | 3 => Change::Heat(0, OFTEN),
        4 => Change::Touch(pages(amount)),
        5 => Change::Zero(pages(amount)),
        6 => Change::Swap(pages(amount)),
        7 => Change::Share(pages(amount)),
        8 => Change::Share(0),
        9 => Change::Guard(pages(amount)),
        10 | 11 => Change::Map(mapped(amount)),
        12 => Change::Free,
        13 => Change::Forbid,
        14 => Change::Split,
        15 | 16 => Change::Khugepaged,
        17 => Change::Fail(answer(amount), times),
        18 => Change::Pin(times),
        19 => Change::Hide(times),
        20 => Change::Room((amount % 3 > 0).then_some(Bytes::mib(u64::from(amount)))),
        21 => {
            if amount < 200 {
                Change::Sleep(Duration::from_millis(u64::from(amount) * 100))
            } else {
                Change::CtrlC
            }
        }
        22 => Change::Exec,
        23 | 24 => Change::Tear(pages(amount)),
        _ => Change::Exit,
    };
    Event { when, program: usize::from(program), window: usize::from(window), change }
}
