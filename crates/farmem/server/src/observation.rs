//! Observation of a program while it runs: name, mappings, transfer sizes, and memory that is not paged. All of it is
//! gone from /proc when the program has ended.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use farmem_engine::units::Learned;
use linux::maps::{Mapping, maps};
use linux::message_socket::Peer;
use linux::mounts::Table;
use linux::smaps::{self, kinds};
use linux::{Rooted, Untrusted, status};
use rustix::process::geteuid;
use units::Bytes;

use crate::copies::Held;
use crate::history::{History, Part};
use crate::unpaged::Unpaged;

/// Interval of reading the mappings, without a cause: libraries may be loaded later.
const MAPPINGS_EVERY: Duration = Duration::from_secs(1);

/// Interval of reading the sizes of memory by kind.
const SIZES_EVERY: Duration = Duration::from_millis(90);

/// `smaps` walks all page tables: it is read at most this part of the time.
const REST: u32 = 20;

/// Growth of the memory that is not paged after which `smaps` is read again.
const GROWTH: Bytes = Bytes::mib(1);

/// Name of the library's shared segment.
const SEGMENT: &[u8] = b"/memfd:masu-segment";

/// Results of the observation.
#[derive(Clone, Debug, Default)]
pub struct Observed {
    /// Command name of the program.
    pub name: Untrusted,
    /// Mappings, also ones that are gone by now.
    pub mappings: Vec<Mapping>,
    /// Whether files that it has mapped may be read: it runs as masu's user.
    pub may_read_files: bool,
    /// Transfer sizes.
    pub history: History,
    /// Peak of the memory that is not paged; `None` if it was not seen.
    pub unpaged: Option<Unpaged>,
}

struct State {
    observed: Observed,
    /// Last reading of the mappings, and of the sizes.
    mappings_at: Instant,
    sizes_at: Instant,
    /// Size that `smaps` was read at.
    measured: Bytes,
    /// `smaps` is not read before.
    rests_until: Instant,
    is_named: bool,
    is_named_for_copies: bool,
}

/// Observation of one program.
pub struct Observation {
    peer: Peer,
    begun: Instant,
    state: Mutex<State>,
}

impl Observation {
    /// Begins, and reads the mappings.
    pub fn begin(peer: Peer) -> Observation {
        let now = Instant::now();
        let observed = Observed { may_read_files: peer.user == geteuid().as_raw(), ..Observed::default() };
        let state = State {
            observed,
            mappings_at: now,
            sizes_at: now,
            measured: Bytes(0),
            rests_until: now,
            is_named: false,
            is_named_for_copies: false,
        };
        let observation = Observation { peer, begun: now, state: Mutex::new(state) };
        observation.read_mappings(&mut observation.state());
        observation.read_sizes(&mut observation.state(), Bytes(0));
        observation
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Time since its begin.
    pub fn age(&self) -> Duration {
        self.begun.elapsed()
    }

    /// Copy of the results so far.
    pub fn observed(&self) -> Observed {
        self.state().observed.clone()
    }

    /// Takes the readings that are due; `queue` is the memory of the victim queue. Returns whether the memory that is
    /// not paged has grown.
    pub fn look(&self, learned: impl Fn() -> Box<Learned>, queue: Bytes) -> Option<Unpaged> {
        let mut state = self.state();
        let now = self.begun.elapsed();
        if state.observed.history.is_due(now) {
            let learned = learned();
            state.observed.history.read(now, Part::of(&learned));
            let is_known = |site: u64| state.observed.mappings.iter().any(|mapping| holds(mapping, site));
            let has_new_site = learned.sites.known().any(|site| site.site > 1 && !is_known(site.site));
            if has_new_site || state.mappings_at.elapsed() > MAPPINGS_EVERY {
                self.read_mappings(&mut state);
            }
        }
        if state.sizes_at.elapsed() < SIZES_EVERY {
            return None;
        }
        state.sizes_at = Instant::now();
        self.read_sizes(&mut state, queue).then(|| state.observed.unpaged.clone()).flatten()
    }

    /// Name of the program, for the first caller only.
    pub fn name_once(&self) -> Option<Untrusted> {
        let mut state = self.state();
        (!std::mem::replace(&mut state.is_named, true)).then(|| state.observed.name.clone())
    }

    /// The same, for forked copies.
    pub fn name_of_copied_once(&self) -> Option<Untrusted> {
        let mut state = self.state();
        (!std::mem::replace(&mut state.is_named_for_copies, true)).then(|| state.observed.name.clone())
    }

    /// Takes a reading of the forked copies.
    pub fn copies(&self, held: Held) {
        if held.copies > 0 {
            let mut state = self.state();
            let unpaged = state.observed.unpaged.get_or_insert_default();
            let peak = held.peak(Held { copies: unpaged.copies, bytes: unpaged.copies_bytes });
            (unpaged.copies, unpaged.copies_bytes) = (peak.copies, peak.bytes);
        }
    }

    /// Takes the last reading of the transfer sizes.
    pub fn end(&self, learned: &Learned) {
        self.state().observed.history.read(self.begun.elapsed(), Part::of(learned));
    }

    /// Reads the mappings, for the names of code sites. A mapping that is gone stays known, unless its place is taken.
    fn read_mappings(&self, state: &mut State) {
        state.mappings_at = Instant::now();
        let Some(Ok(mut new)) = self.peer.pid.map(|pid| maps(&Rooted::host(), pid)) else { return };
        if new.is_empty() {
            return;
        }
        new.retain(|mapping| mapping.permissions.execute || mapping.path.bytes().starts_with(b"/"));
        let mut gone = std::mem::take(&mut state.observed.mappings);
        gone.retain(|old| !new.iter().any(|new| overlap(old, new)));
        new.extend(gone);
        new.sort_by_key(|mapping| mapping.range.start().0);
        state.observed.mappings = new;
    }

    /// Reads the sizes, by kind if they have grown. True if the result is a new peak.
    fn read_sizes(&self, state: &mut State, queue: Bytes) -> bool {
        let Some(pid) = self.peer.pid else { return false };
        let Ok(status) = status::status(&Rooted::host(), pid) else { return false };
        if state.observed.name.bytes().is_empty() || !status.name.bytes().is_empty() {
            state.observed.name = status.name;
        }
        // Private memory counts as a whole: the paged part is bounded by local memory.
        let now = status.rss_shmem + status.rss_file + status.hugetlb + status.rss_anon;
        if now < state.measured + GROWTH.max(Bytes(state.measured.0 / 8)) || Instant::now() < state.rests_until {
            return false;
        }
        let begun = Instant::now();
        let Ok(details) = smaps::details(&Rooted::host(), pid) else { return false };
        let details: Vec<_> = details.into_iter().filter(|of| !of.mapping.path.bytes().starts_with(SEGMENT)).collect();
        let mounts = Table::read(&Rooted::host(), "self").unwrap_or_default();
        let kinds = kinds::kinds(&details, |device| mounts.is_in_memory(device));
        state.measured = now;
        state.rests_until = Instant::now() + begun.elapsed() * REST;
        let mut unpaged = Unpaged::of(kinds, queue);
        if let Some(peak) = &state.observed.unpaged {
            (unpaged.copies, unpaged.copies_bytes) = (peak.copies, peak.copies_bytes);
        }
        let is_peak = state.observed.unpaged.as_ref().is_none_or(|peak| unpaged.total() > peak.total());
        if is_peak {
            state.observed.unpaged = Some(unpaged);
        }
        is_peak
    }
}

fn holds(mapping: &Mapping, address: u64) -> bool {
    (mapping.range.start().0..mapping.range.end().0).contains(&address)
}

fn overlap(one: &Mapping, other: &Mapping) -> bool {
    one.range.start().0 < other.range.end().0 && other.range.start().0 < one.range.end().0
}
