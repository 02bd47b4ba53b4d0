//! Release of memory wasted in huge pages, in one program, from outside.
//!
//! For programs that get huge pages at the first touch: even a window with few touched pages is huge. `observe`
//! counts the pages of a huge window that hold only zeros. `policy` chooses windows until the rest of the waste is
//! within the allowance. [`Trimmer`] has them split (`act::demote`), which returns those pages, and measures again. A
//! split window that is fully resident later is promoted again, since that is free.
//!
//! Only private anonymous memory. Windows shared by a fork are not scanned before they are the program's own again.
//! Locked windows, which do not split, are left as they are and not counted: they would be resident with small pages
//! too.
//!
//! A window that the program moves (mremap) keeps what is known of it (`moved`).
//!
//! The caller keeps the clock, waits and stops: [`Trimmer::round`] returns the time of its next call.

mod moved;
pub mod observe;
pub mod policy;

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::AsFd;
use std::time::Duration;

use linux::process_madvise::{Advice, advise};
use linux::{Error, KernelFiles, Pid};
use rustix::io::Errno;
use units::{AddressRange, Bytes, PAGES_PER_WINDOW, PageSize, Pages, Window};

use crate::act::{self, Demoted, Promoted};
use crate::program::{Program, RunningProgram};
use crate::torn::Torn;
use observe::{Content, Reader};
use policy::moved::Look;
use policy::{Choice, Finding, HugeWindow, Settings, Spent};

/// Result of one round.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Round {
    /// Windows of private anonymous memory that are huge.
    pub huge_windows: u64,
    /// Memory still wasted, after this round.
    pub extra: Bytes,
    /// Allowance for wasted memory.
    pub allowed: Bytes,
    /// Windows split in this round.
    pub demoted: u64,
    /// Memory that the splits returned, as measured afterwards.
    pub returned: Bytes,
    /// Windows promoted again in this round.
    pub promoted_again: u64,
    /// Time of the next call, from the end of this round on.
    pub next_scan: Duration,
}

/// A window that was split here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct SplitWindow {
    times: u32,
    /// Pages resident at the last measurement, and the scan since which the number is unchanged.
    resident: Pages,
    since: u64,
    /// Scan at which it is measured again.
    due: u64,
    /// Refused promotions.
    refused: u32,
}

/// Totals since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Windows split.
    pub demoted: u64,
    /// Memory returned by the splits.
    pub returned: Bytes,
    /// Windows that were split, filled up, and are huge again.
    pub promoted_again: u64,
    /// Windows that the program gave back in part, whose blocks were split.
    pub torn: u64,
    /// Memory that this freed: charged to the memory cgroup, and not resident.
    pub torn_returned: Bytes,
    /// Torn windows whose blocks the kernel does not split, and the memory that it keeps of them.
    pub torn_left: (u64, Bytes),
    /// The same of those that a fork shares: each of its processes counts them.
    pub torn_shared: (u64, Bytes),
    /// Huge windows that a fork shares, so that they are neither read nor split, and the memory that may be wasted in
    /// them: the most at a time. Windows that were full before the fork are not among them.
    pub shared_left: (u64, Bytes),
    /// Exact counts.
    pub counted: u64,
    /// Scans.
    pub scans: u64,
}

/// One program being trimmed.
pub struct Trimmer {
    /// Totals since the start.
    pub totals: Totals,
    settings: Settings,
    program: Box<dyn Program>,
    content: Box<dyn Content>,
    windows: BTreeMap<Window, HugeWindow>,
    /// Huge windows that did not split, and the number of attempts.
    refused: BTreeMap<Window, u32>,
    /// All huge windows, including those not sampled.
    huge: BTreeSet<Window>,
    split: BTreeMap<Window, SplitWindow>,
    /// Huge windows that a fork shares, and the memory wasted in each: as sampled before the fork, or all of it.
    shared: BTreeMap<Window, Bytes>,
    /// Windows that were promoted again.
    again: BTreeSet<Window>,
    /// First frames, where frames are visible.
    frames: BTreeMap<Window, u64>,
    /// Windows that were not at their address any more after the last scan.
    vanished: BTreeMap<Window, HugeWindow>,
    /// Mappings at the last scan, in order of address.
    mappings: Vec<AddressRange>,
    /// Windows counted since the last scan, while its work is not done.
    under_way: Option<BTreeSet<Window>>,
    /// Consecutive scans without a change.
    quiet: u32,
    /// Consecutive splits that returned nothing.
    misses: u32,
    torn: Torn,
}

/// Attempts after which a window that does not split counts as locked, and is left alone. A page may be in
/// use for a moment.
const REFUSED_MAX: u32 = 3;

/// Splits without any return after which the kernel is taken not to return memory of a split.
const MISSES_MAX: u32 = 4;

/// Scans between two looks for torn pages on kernels that do not count them (before Linux 6.12).
const LOOK_FOR_TORN_EVERY: u64 = 16;

impl Trimmer {
    /// Opens a process of this host.
    ///
    /// # Errors
    /// `Gone`; `Denied` without the right to trace it or without CAP_SYS_NICE.
    pub fn open<F: KernelFiles + 'static>(files: F, pid: Pid, settings: Settings) -> Result<Trimmer, Error> {
        let reader = Reader::open(pid)?;
        may_advise(pid)?;
        let program = RunningProgram::open(files, pid)?;
        Ok(Trimmer::of(Box::new(program), Box::new(reader), settings))
    }

    /// A program, real or a model, and its content.
    pub fn of(program: Box<dyn Program>, content: Box<dyn Content>, settings: Settings) -> Trimmer {
        Trimmer {
            totals: Totals::default(),
            settings,
            program,
            content,
            windows: BTreeMap::new(),
            refused: BTreeMap::new(),
            huge: BTreeSet::new(),
            split: BTreeMap::new(),
            shared: BTreeMap::new(),
            again: BTreeSet::new(),
            frames: BTreeMap::new(),
            vanished: BTreeMap::new(),
            mappings: Vec::new(),
            under_way: None,
            quiet: 0,
            misses: 0,
            torn: Torn::default(),
        }
    }

    /// False when splitting has turned out to return nothing here, as before Linux 6.12: then rounds do nothing any
    /// more.
    pub fn returns_memory(&self) -> bool {
        self.totals.returned > Bytes(0) || self.misses < MISSES_MAX
    }

    /// Windows that were promoted again, and are huge as far as the last scan tells.
    pub fn promoted_still_huge(&self) -> u64 {
        self.again.intersection(&self.huge).count() as u64
    }

    /// Huge windows that do not split: locked memory. They stay, and do not count as extra.
    pub fn left_alone(&self) -> u64 {
        self.refused.values().filter(|times| **times >= REFUSED_MAX).count() as u64
    }

    /// Scans, or continues the work of the last scan; splits windows while more memory is wasted than allowed. `now`
    /// is any monotonic clock.
    ///
    /// # Errors
    /// `Gone` when the process ended; `Denied` when it changed its owner (exec of a set-uid program).
    pub fn round(&mut self, now: Duration, stop: &dyn Fn() -> bool) -> Result<Round, Error> {
        let before = self.totals;
        let s = self.settings;
        let begun = self.content.cpu_time();
        if self.program.halted().is_some() {
            return self.wait_for_it(begun);
        }
        if self.under_way.is_none() && self.returns_memory() && !stop() {
            let changed = self.scan(stop)?;
            self.quiet = if changed { 0 } else { self.quiet.saturating_add(1) };
            self.under_way = Some(BTreeSet::new());
        }
        let scanned = self.content.cpu_time();
        let mut left = s.windows_at_once.max(1);
        self.split_chosen(now, stop, &mut left)?;
        let wasted = || self.shared.values().filter(|wasted| **wasted > Bytes(0));
        let shared = (wasted().count() as u64, Bytes(wasted().map(|wasted| wasted.0).sum()));
        self.totals.shared_left = self.totals.shared_left.max(shared);
        self.promote_again(stop, &mut left)?;
        let acted = self.content.cpu_time();

        let has_acted = (self.totals.demoted, self.totals.promoted_again) != (before.demoted, before.promoted_again);
        self.quiet = if has_acted { 0 } else { self.quiet };
        let spent = Spent { scanning: scanned.saturating_sub(begun), acting: acted.saturating_sub(scanned) };
        let is_done = left > 0 || stop();
        if is_done {
            self.under_way = None;
        }
        let choice = self.choose()?;
        Ok(Round {
            huge_windows: self.huge.len() as u64,
            extra: choice.extra,
            allowed: choice.allowed,
            demoted: self.totals.demoted - before.demoted,
            returned: self.totals.returned.saturating_sub(before.returned),
            promoted_again: self.totals.promoted_again - before.promoted_again,
            next_scan: if is_done { policy::next_scan(self.quiet, spent, s) } else { policy::next_batch(spent, s) },
        })
    }

    /// A round of a program that cannot run: its windows do not change, and that is no sign of stillness.
    fn wait_for_it(&mut self, begun: Duration) -> Result<Round, Error> {
        (self.under_way, self.quiet) = (None, 0);
        self.windows.values_mut().for_each(|window| window.halted(self.totals.scans));
        let choice = self.choose()?;
        let spent = Spent { scanning: self.content.cpu_time().saturating_sub(begun), ..Spent::default() };
        Ok(Round {
            huge_windows: self.huge.len() as u64,
            extra: choice.extra,
            allowed: choice.allowed,
            demoted: 0,
            returned: Bytes(0),
            promoted_again: 0,
            next_scan: policy::next_scan(0, spent, self.settings),
        })
    }

    /// Finds the huge windows and samples the due ones. True when something changed.
    fn scan(&mut self, stop: &dyn Fn() -> bool) -> Result<bool, Error> {
        self.totals.scans += 1;
        let mut changed = self.content.is_new_memory()? | self.program.renew()?;
        if changed {
            self.forget();
        }
        let (huge, mappings) = self.huge_windows()?;
        let (mut looks, has_fewer) = self.follow_moves(&huge, mappings, stop)?;
        self.windows.retain(|window, _| huge.contains(window));
        self.refused.retain(|window, _| huge.contains(window));
        self.again.retain(|window| huge.contains(window));
        self.shared.retain(|window, _| huge.contains(window));
        self.frames.retain(|window, _| huge.contains(window));
        changed |= huge != self.huge;
        self.split_torn(has_fewer, stop)?;
        self.huge.clone_from(&huge);
        for window in huge {
            if stop() {
                break; // the rest is for the next scan
            }
            let is_due = |known: &HugeWindow| known.is_due(self.totals.scans);
            if self.is_left_alone(window) || !self.windows.get(&window).is_none_or(is_due) {
                continue;
            }
            let look = looks.remove(&window).map_or_else(|| self.look(window), Ok)?;
            changed |= self.record(window, look);
        }
        Ok(changed)
    }

    /// Forgets all windows: the program has another address space.
    fn forget(&mut self) {
        self.windows.clear();
        self.refused.clear();
        self.huge.clear();
        self.split.clear();
        self.shared.clear();
        self.again.clear();
        self.frames.clear();
        self.vanished.clear();
        self.mappings.clear();
        self.torn.clear();
    }

    /// Splits what the program gave back in part, also between two scans. `has_fewer`: windows of the last scan are not
    /// huge any more. Where the kernel does not count torn pages, all windows are looked at then, and from time to time.
    fn split_torn(&mut self, has_fewer: bool, stop: &dyn Fn() -> bool) -> Result<(), Error> {
        let is_due = match self.program.torn_on_host() {
            Some(torn) => torn > 0,
            None => has_fewer || self.totals.scans.is_multiple_of(LOOK_FOR_TORN_EVERY),
        };
        if is_due {
            self.torn.split_all(self.program.as_ref(), stop)?;
            (self.totals.torn, self.totals.torn_returned) = (self.torn.split, self.torn.returned);
            (self.totals.torn_left, self.totals.torn_shared) = (self.torn.stays_own(), self.torn.stays_shared());
        }
        Ok(())
    }

    fn is_left_alone(&self, window: Window) -> bool {
        self.refused.get(&window).is_some_and(|times| *times >= REFUSED_MAX)
    }

    /// Huge windows, and the mappings that may have some.
    fn huge_windows(&self) -> Result<(BTreeSet<Window>, Vec<AddressRange>), Error> {
        let (mut huge, mut ranges) = (BTreeSet::new(), Vec::new());
        for mapping in self.program.mappings()? {
            let fit = mapping.is_anonymous() && mapping.permissions.read;
            if fit && mapping.range.whole_windows().len() > 0 {
                huge.extend(self.content.huge_windows(mapping.range)?);
                ranges.push(mapping.range);
            }
        }
        Ok((huge, ranges))
    }

    /// Samples a window.
    fn look(&mut self, window: Window) -> Result<Look, Error> {
        if let Some(frame) = self.program.first_frame(window)? {
            self.frames.insert(window, frame);
        }
        if let Some(sampled) = self.content.sample(window)? {
            return Ok(Look::Sampled(sampled));
        }
        let is_shared = self.shared.contains_key(&window)
            || self.program.state(window)?.is_some_and(|state| state.huge && state.shared > Pages(0));
        Ok(if is_shared { Look::Shared } else { Look::Unknown })
    }

    /// Records a look at a huge window. True when it is new or has changed.
    fn record(&mut self, window: Window, look: Look) -> bool {
        let scan = self.totals.scans;
        let Look::Sampled(sampled) = look else {
            let known = self.windows.remove(&window);
            if look == Look::Shared {
                let wasted = known.map_or(PageSize::Huge.bytes(), |known| known.zero().bytes());
                self.shared.entry(window).or_insert(wasted);
            } else if let Some(known) = known {
                self.vanished.insert(window, known);
            }
            return known.is_some();
        };
        self.shared.remove(&window);
        if let Some(huge_window) = self.windows.get_mut(&window) {
            return huge_window.sample(sampled, scan, self.settings);
        }
        let times = self.split.get(&window).map_or(0, |split_window| split_window.times);
        self.windows.insert(window, HugeWindow::first(sampled, scan, times));
        true
    }

    fn choose(&self) -> Result<Choice, Error> {
        // Lazily freed memory is resident, and the program has given it back: no reason to waste more elsewhere.
        let resident = self.program.resident()?.saturating_sub(self.program.lazily_freed_bytes()?);
        Ok(policy::choose(&self.windows, resident, self.totals.scans, self.settings))
    }

    /// Splits the chosen windows that are still. A count may change the choice, so it is repeated until it holds only
    /// windows counted in this scan; `left` is the number of windows to work on before a pause.
    fn split_chosen(&mut self, now: Duration, stop: &dyn Fn() -> bool, left: &mut usize) -> Result<(), Error> {
        let Some(mut counted) = self.under_way.take() else { return Ok(()) };
        loop {
            let mut chosen = self.choose()?.windows;
            chosen.retain(|window| !counted.contains(window));
            if chosen.is_empty() {
                break;
            }
            for window in chosen {
                if *left == 0 || stop() || !self.returns_memory() {
                    self.under_way = Some(counted);
                    return Ok(());
                }
                *left -= 1;
                counted.insert(window);
                self.count(window, now)?;
            }
        }
        self.under_way = Some(counted);
        Ok(())
    }

    /// Records a window that is not huge at its address: the program may have moved it.
    fn record_vanished(&mut self, window: Window) {
        self.record(window, Look::Unknown);
        self.huge.remove(&window);
        self.shared.remove(&window);
    }

    /// Counts a window, and splits it if allowed.
    fn count(&mut self, window: Window, now: Duration) -> Result<(), Error> {
        let state = self.program.state(window)?.unwrap_or_default();
        if !state.huge {
            self.record_vanished(window);
            return Ok(());
        }
        let Some(huge_window) = self.windows.get_mut(&window) else { return Ok(()) };
        if state.shared > Pages(0) || state.file > Pages(0) {
            huge_window.disturb(self.totals.scans);
            self.shared.insert(window, huge_window.zero().bytes());
            return Ok(());
        }
        self.shared.remove(&window);
        self.totals.counted += 1;
        match self.content.count(window)?.map(|zero| huge_window.count(zero, now, self.totals.scans, self.settings)) {
            None => {
                self.record(window, Look::Unknown);
            }
            Some(Finding::Stable) => self.demote(window)?,
            Some(Finding::Unstable) => self.quiet = 0,
            Some(Finding::Full) => {}
        }
        Ok(())
    }

    fn demote(&mut self, window: Window) -> Result<(), Error> {
        let outcome = act::demote(self.program.as_ref(), window)?;
        if let Demoted::Already { .. } = outcome {
            self.record_vanished(window);
            return Ok(());
        }
        let huge_window = self.windows.remove(&window);
        match outcome {
            Demoted::No => {
                *self.refused.entry(window).or_insert(0) += 1;
                if let Some(mut huge_window) = huge_window.filter(|_| !self.is_left_alone(window)) {
                    huge_window.disturb(self.totals.scans);
                    self.windows.insert(window, huge_window);
                }
            }
            Demoted::Already { .. } => {}
            Demoted::Yes { returned, resident } => {
                self.huge.remove(&window);
                let times = self.split.get(&window).map_or(0, |split_window| split_window.times) + 1;
                let (since, due) = (self.totals.scans, self.totals.scans + 1);
                self.split.insert(window, SplitWindow { times, resident, since, due, refused: 0 });
                self.totals.demoted += 1;
                self.totals.returned += returned;
                self.misses = if returned == Bytes(0) { self.misses.saturating_add(1) } else { 0 };
            }
        }
        Ok(())
    }

    /// Promotes windows that were split here and are fully resident now: that costs no memory.
    fn promote_again(&mut self, stop: &dyn Fn() -> bool, left: &mut usize) -> Result<(), Error> {
        let scan = self.totals.scans;
        let due =
            self.split.iter().filter(|(window, split_window)| split_window.due <= scan && !self.huge.contains(window));
        let due: Vec<Window> = due.map(|(window, _)| *window).collect();
        for window in due {
            if *left == 0 || stop() {
                break;
            }
            let state = self.program.state(window)?.unwrap_or_default();
            let Some(split_window) = self.split.get_mut(&window) else { continue };
            if state.resident.0 + state.zero.0 + state.swapped.0 == 0 {
                self.split.remove(&window); // unmapped or freed: its next content is new
                continue;
            }
            if state.resident != split_window.resident {
                (split_window.resident, split_window.since) = (state.resident, scan);
            }
            split_window.due = policy::next_sample(split_window.since, scan, self.settings);
            if state.huge || state.resident != Pages(PAGES_PER_WINDOW as u64) {
                continue;
            }
            *left -= 1;
            self.program.preallocate();
            match act::promote(self.program.as_ref(), window, Bytes(0), act::NOT_KNOWN)? {
                Promoted::Yes { .. } => {
                    self.totals.promoted_again += 1;
                    self.again.insert(window);
                    self.huge.insert(window);
                }
                Promoted::Already => {}
                Promoted::Astray(split) => {
                    self.count_astray(split);
                    break;
                }
                Promoted::No(_) => {
                    split_window.refused = split_window.refused.saturating_add(1);
                    split_window.due = scan + (1 << split_window.refused.min(6));
                }
            }
        }
        self.program.free_preallocated();
        Ok(())
    }

    /// Counts the memory left by a promotion in the program's next address space. All state is of the old one.
    fn count_astray(&mut self, split: Demoted) {
        self.forget();
        match split {
            Demoted::Already { .. } => {}
            Demoted::No => self.totals.promoted_again += 1,
            Demoted::Yes { returned, .. } => {
                self.totals.promoted_again += 1;
                self.totals.demoted += 1;
                self.totals.returned += returned;
            }
        }
    }
}

/// Advice on unmapped memory fails with that error, or for lack of the privilege.
fn may_advise(pid: Pid) -> Result<(), Error> {
    let pidfd = pid.open()?;
    let nowhere = Window(0).first_page();
    match advise(pid, pidfd.as_fd(), &[nowhere], Advice::Cold) {
        Err(errno @ (Errno::PERM | Errno::NOSYS | Errno::SRCH)) => {
            Err(Error::of_process("advise on", format!("the memory of process {pid}"), errno))
        }
        _ => Ok(()),
    }
}
