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
//! The caller keeps the clock, waits and stops: [`Trimmer::round`] returns the time of its next call.

pub mod observe;
pub mod policy;

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::AsFd;
use std::time::Duration;

use linux::process_madvise::{Advice, advise};
use linux::{Error, KernelFiles, Pid};
use rustix::io::Errno;
use units::{Bytes, PAGES_PER_WINDOW, Pages, Window};

use crate::act::{self, Demoted, Promoted};
use crate::program::{Program, RunningProgram};
use observe::{Content, Reader};
use policy::{Choice, Finding, Known, Settings, Spent};

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
    pub next_look: Duration,
}

/// A window that was split here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct GivenBack {
    times: u32,
    /// Pages resident at the last measurement, and the scan since which the number is unchanged.
    resident: Pages,
    since: u64,
    /// Scan at which it is measured again.
    due: u64,
    /// Refused promotions.
    refused: u32,
}

/// One program being trimmed.
pub struct Trimmer {
    /// Windows split since the start.
    pub demoted: u64,
    /// Memory returned by the splits.
    pub returned: Bytes,
    /// Windows that were split, filled up, and are huge again.
    pub promoted_again: u64,
    /// Exact counts since the start.
    pub counted: u64,
    /// Scans since the start.
    pub looks: u64,
    program: Box<dyn Program>,
    content: Box<dyn Content>,
    known: BTreeMap<Window, Known>,
    /// Huge windows that did not split, and the number of attempts.
    refused: BTreeMap<Window, u32>,
    /// All huge windows, including those not sampled.
    huge: BTreeSet<Window>,
    given_back: BTreeMap<Window, GivenBack>,
    /// Windows counted since the last scan, while its work is not done.
    under_way: Option<BTreeSet<Window>>,
    /// Consecutive scans without a change.
    quiet: u32,
    /// Consecutive splits that returned nothing.
    in_vain: u32,
}

/// Attempts after which a window that does not split counts as locked, and is left alone. A window may be held for a
/// moment.
const REFUSED_MAX: u32 = 3;

/// Splits without any return after which the kernel is taken not to return memory of a split.
const IN_VAIN_MAX: u32 = 4;

impl Trimmer {
    /// Opens a process of this host.
    ///
    /// # Errors
    /// `Gone`; `Denied` without the right to trace it or without CAP_SYS_NICE.
    pub fn open<F: KernelFiles + 'static>(files: F, pid: Pid) -> Result<Trimmer, Error> {
        let reader = Reader::open(pid)?;
        may_advise(pid)?;
        let program = RunningProgram::open(files, pid)?;
        Ok(Trimmer::of(Box::new(program), Box::new(reader)))
    }

    /// A program, real or a model, and its content.
    pub fn of(program: Box<dyn Program>, content: Box<dyn Content>) -> Trimmer {
        Trimmer {
            demoted: 0,
            returned: Bytes(0),
            promoted_again: 0,
            counted: 0,
            looks: 0,
            program,
            content,
            known: BTreeMap::new(),
            refused: BTreeMap::new(),
            huge: BTreeSet::new(),
            given_back: BTreeMap::new(),
            under_way: None,
            quiet: 0,
            in_vain: 0,
        }
    }

    /// False when splitting has turned out to return nothing here, as before Linux 6.12: then rounds do nothing any
    /// more.
    pub fn returns_memory(&self) -> bool {
        self.returned > Bytes(0) || self.in_vain < IN_VAIN_MAX
    }

    /// Huge windows that do not split: locked memory. They stay, and do not count as extra.
    pub fn left_alone(&self) -> u64 {
        self.refused.values().filter(|times| **times >= REFUSED_MAX).count() as u64
    }

    /// Scans, or continues the work of the last scan; gives back memory above the allowance. `now` is any monotonic
    /// clock.
    ///
    /// # Errors
    /// `Gone` when the process ended; `Denied` when it changed its owner (exec of a set-uid program).
    pub fn round(&mut self, s: Settings, now: Duration, stop: &dyn Fn() -> bool) -> Result<Round, Error> {
        let (demoted, returned, promoted_again) = (self.demoted, self.returned, self.promoted_again);
        let begun = self.content.cpu_time();
        if self.under_way.is_none() && self.returns_memory() && !stop() {
            let changed = self.look(s, stop)?;
            self.quiet = if changed { 0 } else { self.quiet.saturating_add(1) };
            self.under_way = Some(BTreeSet::new());
        }
        let looked = self.content.cpu_time();
        let mut room = s.windows_at_once.max(1);
        self.give_back(s, now, stop, &mut room)?;
        self.promote_again(s, stop, &mut room)?;
        let acted = self.content.cpu_time();

        let has_acted = (self.demoted, self.promoted_again) != (demoted, promoted_again);
        self.quiet = if has_acted { 0 } else { self.quiet };
        let spent = Spent { looking: looked.saturating_sub(begun), acting: acted.saturating_sub(looked) };
        let is_done = room > 0 || stop();
        if is_done {
            self.under_way = None;
        }
        let choice = self.choose(s)?;
        Ok(Round {
            huge_windows: self.huge.len() as u64,
            extra: choice.extra,
            allowed: choice.allowed,
            demoted: self.demoted - demoted,
            returned: self.returned.saturating_sub(returned),
            promoted_again: self.promoted_again - promoted_again,
            next_look: if is_done { policy::next_look(self.quiet, spent, s) } else { policy::next_batch(spent, s) },
        })
    }

    /// Finds the huge windows and samples the due ones. True when something changed.
    fn look(&mut self, s: Settings, stop: &dyn Fn() -> bool) -> Result<bool, Error> {
        self.looks += 1;
        let mut changed = self.content.is_new_memory()? | self.program.renew()?;
        if changed {
            self.known.clear();
            self.refused.clear();
            self.given_back.clear();
        }
        let huge = self.huge_windows()?;
        self.known.retain(|window, _| huge.contains(window));
        self.refused.retain(|window, _| huge.contains(window));
        changed |= huge != self.huge;
        self.huge.clone_from(&huge);
        for window in huge {
            if stop() {
                break; // the rest is for the next scan
            }
            changed |= !self.is_left_alone(window) && self.sample(window, s)?;
        }
        Ok(changed)
    }

    fn is_left_alone(&self, window: Window) -> bool {
        self.refused.get(&window).is_some_and(|times| *times >= REFUSED_MAX)
    }

    fn huge_windows(&self) -> Result<BTreeSet<Window>, Error> {
        let mut huge = BTreeSet::new();
        for mapping in self.program.mappings()? {
            let fit = mapping.is_anonymous() && mapping.permissions.read;
            if fit && mapping.range.whole_windows().len() > 0 {
                huge.extend(self.content.huge_windows(mapping.range)?);
            }
        }
        Ok(huge)
    }

    /// Samples a window if it is due. True when it is new or has changed.
    fn sample(&mut self, window: Window, s: Settings) -> Result<bool, Error> {
        let look = self.looks;
        if self.known.get(&window).is_some_and(|known| !known.is_due(look)) {
            return Ok(false);
        }
        let Some(sampled) = self.content.sample(window)? else {
            return Ok(self.known.remove(&window).is_some());
        };
        if let Some(known) = self.known.get_mut(&window) {
            return Ok(known.sample(sampled, look, s));
        }
        let times = self.given_back.get(&window).map_or(0, |given| given.times);
        self.known.insert(window, Known::first(sampled, look, times));
        Ok(true)
    }

    fn choose(&self, s: Settings) -> Result<Choice, Error> {
        Ok(policy::choose(&self.known, self.program.resident()?, self.looks, s))
    }

    /// Splits the chosen windows that are still. A count may change the choice, so it is repeated until it holds only
    /// windows counted in this scan; `room` is the number of windows to work on before a pause.
    fn give_back(
        &mut self,
        s: Settings,
        now: Duration,
        stop: &dyn Fn() -> bool,
        room: &mut usize,
    ) -> Result<(), Error> {
        let Some(mut counted) = self.under_way.take() else { return Ok(()) };
        loop {
            let mut chosen = self.choose(s)?.windows;
            chosen.retain(|window| !counted.contains(window));
            if chosen.is_empty() {
                break;
            }
            for window in chosen {
                if *room == 0 || stop() || !self.returns_memory() {
                    self.under_way = Some(counted);
                    return Ok(());
                }
                *room -= 1;
                counted.insert(window);
                self.count(window, s, now)?;
            }
        }
        self.under_way = Some(counted);
        Ok(())
    }

    /// Counts a window, and splits it if allowed.
    fn count(&mut self, window: Window, s: Settings, now: Duration) -> Result<(), Error> {
        let state = self.program.state(window)?.unwrap_or_default();
        if !state.huge {
            self.known.remove(&window);
            self.huge.remove(&window);
            return Ok(());
        }
        let Some(known) = self.known.get_mut(&window) else { return Ok(()) };
        if state.shared > Pages(0) || state.file > Pages(0) {
            known.disturb(self.looks);
            return Ok(());
        }
        self.counted += 1;
        match self.content.count(window)?.map(|zero| known.count(zero, now, self.looks, s)) {
            None => {
                self.known.remove(&window);
            }
            Some(Finding::Ripe) => self.demote(window)?,
            Some(Finding::Unripe) => self.quiet = 0,
            Some(Finding::Full) => {}
        }
        Ok(())
    }

    fn demote(&mut self, window: Window) -> Result<(), Error> {
        let outcome = act::demote(self.program.as_ref(), window)?;
        let known = self.known.remove(&window);
        match outcome {
            Demoted::No => {
                *self.refused.entry(window).or_insert(0) += 1;
                if let Some(mut known) = known.filter(|_| !self.is_left_alone(window)) {
                    known.disturb(self.looks);
                    self.known.insert(window, known);
                }
            }
            Demoted::Already { .. } => {
                self.huge.remove(&window);
            }
            Demoted::Yes { returned, resident } => {
                self.huge.remove(&window);
                let times = self.given_back.get(&window).map_or(0, |given| given.times) + 1;
                let (since, due) = (self.looks, self.looks + 1);
                self.given_back.insert(window, GivenBack { times, resident, since, due, refused: 0 });
                self.demoted += 1;
                self.returned += returned;
                self.in_vain = if returned == Bytes(0) { self.in_vain.saturating_add(1) } else { 0 };
            }
        }
        Ok(())
    }

    /// Promotes windows that were split here and are fully resident now: that costs no memory.
    fn promote_again(&mut self, s: Settings, stop: &dyn Fn() -> bool, room: &mut usize) -> Result<(), Error> {
        let look = self.looks;
        let due = self.given_back.iter().filter(|(window, given)| given.due <= look && !self.huge.contains(window));
        let due: Vec<Window> = due.map(|(window, _)| *window).collect();
        for window in due {
            if *room == 0 || stop() {
                break;
            }
            let state = self.program.state(window)?.unwrap_or_default();
            let Some(given) = self.given_back.get_mut(&window) else { continue };
            if state.resident.0 + state.zero.0 + state.swapped.0 == 0 {
                self.given_back.remove(&window); // unmapped or freed: its next content is new
                continue;
            }
            if state.resident != given.resident {
                (given.resident, given.since) = (state.resident, look);
            }
            given.due = policy::look_again_in(given.since, look, s);
            if state.huge || state.resident != Pages(PAGES_PER_WINDOW as u64) {
                continue;
            }
            *room -= 1;
            self.program.make_ready();
            match act::promote(self.program.as_ref(), window, Bytes(0))? {
                Promoted::Yes { .. } => {
                    self.promoted_again += 1;
                    self.huge.insert(window);
                }
                Promoted::Already => {}
                Promoted::Astray(split) => {
                    self.count_astray(split);
                    break;
                }
                Promoted::No(_) => {
                    given.refused = given.refused.saturating_add(1);
                    given.due = look + (1 << given.refused.min(6));
                }
            }
        }
        self.program.rest();
        Ok(())
    }

    /// Counts the memory left by a promotion in the program's next address space. The known windows are those in the
    /// old one.
    fn count_astray(&mut self, split: Demoted) {
        self.known.clear();
        self.refused.clear();
        self.given_back.clear();
        self.huge.clear();
        match split {
            Demoted::Already { .. } => {}
            Demoted::No => self.promoted_again += 1,
            Demoted::Yes { returned, .. } => {
                self.promoted_again += 1;
                self.demoted += 1;
                self.returned += returned;
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
