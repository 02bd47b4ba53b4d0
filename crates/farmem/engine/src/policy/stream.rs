//! Streams: the next pages of a site, in order or in steps.
//!
//! A site may sweep several arrays at a time, so it has several streams. A fault belongs to the stream whose marker
//! it hits, else to the one whose end it continues, else to the one it is one step away from, else to the nearest. The
//! step belongs to the site, the position to the stream: loops over lines start each line at another position and step
//! alike in all of them.
//!
//! The step is found by majority vote over the distances between faults (Boyer and Moore's vote, one candidate and one
//! counter), as Leap does over a window of them: Al Maruf and Chowdhury, "Effectively Prefetching Remote Memory with
//! Leap", USENIX ATC 2020. We differ: a vote per code site instead of per process; positions apart from the step; pages
//! ahead are requested by a fault on the first page of the earlier request, which was left unmapped, so that requests
//! go on while everything is hit.

use crate::cast::saturated;

/// Streams of a site.
pub(super) const STREAMS: usize = 16;

/// Faults farther apart than this many pages never belong together, unless they are one step apart.
pub(super) const NEAR_PAGES: u64 = 4096;

/// Limit of the pages between a stream's end and its next fault that were present already.
const MOST_GAP: u64 = 64;

/// Vote from which on the step is trusted; its largest value is the second figure.
pub(super) const TRUSTED: u8 = 3;
const MOST_TRUST: u8 = 8;

/// One position of a site.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct Stream {
    /// Contiguous pages behind the position: first page, and the page after the last.
    pub(super) low: u64,
    pub(super) high: u64,
    /// Page of its last fault.
    pub(super) last: u64,
    /// Readahead marker: 1 + the unmapped page whose fault requests more; 0: none.
    pub(super) trigger: u64,
    /// First page of the next series of steps, if one was requested.
    pub(super) next: u64,
    /// Pages fetched by all sites, at its last fault.
    pub(super) touched: u32,
    /// Steps, or windows, in a row that were right.
    pub(super) hits: u8,
    /// Last request: 2^n steps of a series, or 2^n pages of a window.
    pub(super) depth: u8,
    /// 0: unused slot. 1: nothing known. 2: up in order. 3: down in order. 4: in steps.
    pub(super) way: u8,
    /// Epoch of its last count as active.
    pub(super) epoch: u8,
    /// Number of steps from the start of its line, including requested ones, and number of steps requested last.
    pub(super) steps: u16,
    pub(super) requested: u16,
}

pub(super) const UNUSED: u8 = 0;
pub(super) const UNKNOWN: u8 = 1;
pub(super) const UP: u8 = 2;
pub(super) const DOWN: u8 = 3;
pub(super) const STEPS: u8 = 4;

impl Stream {
    /// An empty slot.
    pub(super) const NONE: Stream = Stream {
        low: 0,
        high: 0,
        last: 0,
        trigger: 0,
        next: 0,
        touched: 0,
        hits: 0,
        depth: 0,
        way: UNUSED,
        epoch: 0,
        steps: 0,
        requested: 0,
    };
}

/// Relation of a fault to its stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Hit the marker.
    Trigger,
    /// Right behind the fetched pages, or right before them.
    Up,
    Down,
    /// One step of the site away.
    Stride,
    /// Near, without another relation.
    Near,
    /// Begins a stream.
    New,
}

/// Streams of a site, and its step. All zeros: nothing known.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct Streams {
    pub(super) stream: [Stream; STREAMS],
    /// Pages from one fault to the next, by vote.
    pub(super) stride: i64,
    /// The vote's counter.
    pub(super) trust: u8,
    /// Steps requested at a time by a new stream of this site: 2^n.
    pub(super) depth: u8,
    /// Counter: up for markers that were not reached, down for others.
    pub(super) doubt: u8,
    /// Number of halvings of the windows, since pages left before the site got there.
    pub(super) cut: u8,
    /// Held pages reached since the last halving.
    pub(super) reached: u8,
    pub(super) unused: u8,
    /// Approximate steps of a line: nothing is requested beyond; 0: not known.
    pub(super) line: u16,
}

/// Largest number of halvings, and number of reached markers after which the windows are doubled again.
const MOST_CUT: u8 = 10;
const REACHED_BEFORE_GROWTH: u8 = 16;

/// Doubt from which on a stream must be longer before pages are requested ahead, and the largest doubt.
const DOUBTFUL: u8 = 8;
const MOST_DOUBT: u8 = 40;

impl Streams {
    /// Nothing known.
    pub(super) const UNKNOWN: Streams = Streams {
        stream: [Stream::NONE; STREAMS],
        stride: 0,
        trust: 0,
        depth: 0,
        doubt: 0,
        cut: 0,
        reached: 0,
        unused: 0,
        line: 0,
    };

    /// Stream whose marker is `page`.
    pub(super) fn waiting_for(&self, page: u64) -> Option<usize> {
        self.stream.iter().position(|s| s.way != UNUSED && s.trigger != 0 && s.trigger - 1 == page)
    }

    /// Finds the fault's stream and its relation to it; votes on the step. A gap counts as in order when all of it is
    /// `here`.
    pub(super) fn follow(&mut self, page: u64, clock: u32, here: &impl Fn(u64) -> bool) -> (usize, Step) {
        if let Some(at) = self.waiting_for(page) {
            return (at, Step::Trigger);
        }
        let mut nearest = (u64::MAX, 0);
        let mut oldest = (0, 0);
        let mut found = None;
        for (at, stream) in self.stream.iter().enumerate() {
            if stream.way == UNUSED {
                oldest = (u32::MAX, at);
                continue;
            }
            let age = clock.wrapping_sub(stream.touched).min(u32::MAX - 1);
            if age >= oldest.0 {
                oldest = (age, at);
            }
            if page >= stream.high && page - stream.high < MOST_GAP && (stream.high..page).all(here) {
                found = Some((at, Step::Up));
                break;
            }
            if page < stream.low && stream.low - page <= MOST_GAP && (page + 1..stream.low).all(here) {
                found = Some((at, Step::Down));
                break;
            }
            if self.trust > 0 && self.stride != 0 && stream.last.checked_add_signed(self.stride) == Some(page) {
                found = Some((at, Step::Stride));
            }
            let away = stream.last.abs_diff(page);
            if away < nearest.0 {
                nearest = (away, at);
            }
        }
        let (at, step) = match found {
            Some(found) => found,
            None if nearest.0 <= NEAR_PAGES => (nearest.1, Step::Near),
            None => (oldest.1, Step::New),
        };
        match step {
            Step::Stride => self.trust = self.trust.saturating_add(1).min(MOST_TRUST),
            Step::Near => {
                let stream = &self.stream[at];
                self.vote(difference(page, stream.last));
            }
            _ => {}
        }
        (at, step)
    }

    /// Counts a request that was reached, or not.
    pub(super) fn judge(&mut self, reached: bool) {
        self.doubt = if reached { self.doubt.saturating_sub(4) } else { self.doubt.saturating_add(1).min(MOST_DOUBT) };
        self.reached = self.reached.saturating_add(u8::from(reached));
        if self.reached >= REACHED_BEFORE_GROWTH {
            self.reached = 0;
            self.cut = self.cut.saturating_sub(1);
        }
    }

    /// Handles a second fetch of `page`. If a stream requested it and has not got there yet, its window was too long.
    pub(super) fn missed(&mut self, page: u64, limit_log2: u8) {
        let ahead = |s: &&mut Stream| match s.way {
            UP => page > s.last && page < s.high,
            DOWN => page < s.last && page >= s.low,
            _ => false,
        };
        let Some(stream) = self.stream.iter_mut().find(ahead) else { return };
        if stream.hits > 0 && stream.depth > 0 {
            stream.hits = 0; // once for each window
            stream.depth -= 1;
            self.cut = self.cut.max(limit_log2.saturating_sub(stream.depth)).min(MOST_CUT);
            self.reached = 0;
        }
    }

    /// Ends the line of a stream in steps. Lines of a loop are mostly of the same length: the steps beyond this line's
    /// end will not be requested beyond the next line's end.
    pub(super) fn end_of_line(&mut self, stream: &Stream) {
        if stream.way != STEPS || stream.steps < 3 {
            return;
        }
        self.line = if stream.trigger != 0 {
            stream.steps.saturating_sub(stream.requested).max(1)
        } else {
            // Nothing was left over: perhaps it ended even before. A fault shows if this is too short.
            (self.line - self.line / 16).max(1)
        };
    }

    /// Counts a step of a stream in steps by a fault. Beyond the known length of a line, the length grows.
    pub(super) fn goes_on(&mut self, steps: u16) {
        if self.line != 0 && steps >= self.line {
            self.line = steps.saturating_add(steps / 8).saturating_add(2);
        }
    }

    /// Whether a stream with this number of hits gets pages requested ahead of it.
    pub(super) fn deserves(&self, hits: u8) -> bool {
        self.doubt < DOUBTFUL || hits > self.doubt / DOUBTFUL
    }

    fn vote(&mut self, pages: i64) {
        if pages == 0 {
        } else if pages == self.stride {
            self.trust = self.trust.saturating_add(1).min(MOST_TRUST);
        } else if self.trust == 0 {
            self.stride = pages;
            self.trust = 1;
        } else {
            self.trust -= 1;
        }
    }
}

/// `to - from` in pages, clamped to the type.
fn difference(to: u64, from: u64) -> i64 {
    saturated(i128::from(to) - i128::from(from))
}
