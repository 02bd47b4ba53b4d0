//! The tracker's loop: clients come and go, programs are looked at and acted on, one step at a time.

mod limits;

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use contract::track::terms::Terms;
use contract::track::wire::{Answer, MOST_BYTES, Refused, SHORT_BYTES, Totals};
use linux::handover::{Connection, Listener, Peer};
use linux::sealed_memory::sealed;
use linux::{Error, Pid};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use units::NonZeroFraction;

use super::admission::{self, ACCOUNTS_AT_ONCE, Account, Bounds, Crowd, Verdict};
use super::schedule;
use super::session::{Session, Wanted, may_register};
use super::share::Limits;
use super::watched::{Came, Watched};
use crate::target::Target;

/// What decides.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// When programs are looked at.
    pub schedule: schedule::Settings,
    /// Limits on huge pages.
    pub limits: Limits,
    /// Programs of one user that may be registered at a time.
    pub most_programs: usize,
    /// Connections and programs in all.
    pub bounds: Bounds,
}

/// A program that is ready to be watched.
pub struct Opened {
    /// It, with what observes it and acts on it.
    pub target: Target,
    /// Becomes readable when it ends.
    pub ends: OwnedFd,
    /// Keeps other trackers away from it for as long as it is held.
    pub hold: Box<dyn std::any::Any>,
}

/// What the loop needs from whoever runs it.
pub trait Control {
    /// Time since the start.
    fn now(&self) -> Duration;
    /// True once asked to stop.
    fn stop(&self) -> bool;
    /// Processor time of this process so far.
    fn cpu_time(&self) -> Duration;
    /// Told before and after a call for which a program may have to wait.
    fn in_haste(&mut self, haste: bool);
    /// On whose account a connection goes.
    fn account(&mut self, peer: Peer) -> Account;
    /// Gets a process ready to be watched for `peer`: its own, or one that the kernel lets it inspect.
    ///
    /// # Errors
    /// Why not, for the client; the whole reason is the caller's to print.
    fn open(&mut self, pid: Pid, peer: Peer) -> Result<Opened, Refused>;
    /// Sends a signal with a value to the process `pid` of `user`, if it would be caught there.
    ///
    /// # Errors
    /// Why it was not sent.
    fn signal(&mut self, pid: Pid, user: u32, pidfd: BorrowedFd<'_>, signal: i32, value: u64) -> Result<(), Unsent>;
    /// Told what happens.
    fn say(&mut self, what: &Happening<'_>);
}

/// Why a signal was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unsent {
    /// The process has no handler for it any more: it would be ended by it. It is tried again later.
    Unexpected,
    /// The process belongs to another user by now, as after exec of a setuid program: its client is forgotten.
    NotIts,
    /// The kernel's answer. It is tried again later.
    Kernel(Errno),
}

/// What happened.
#[derive(Clone, Copy, Debug)]
pub enum Happening<'a> {
    /// A program is watched from now on.
    Registered(&'a Watched),
    /// Its terms are others now.
    Changed(&'a Watched),
    /// Somebody was told no.
    Refused(Peer, Refused),
    /// Somebody sent what makes no sense, and was cut off.
    Nonsense(Peer),
    /// A program was told how many of its pages are active.
    Notified(&'a Watched, u64),
    /// It could not be told.
    NotNotified(&'a Watched, Unsent),
    /// A program fetched its list: windows and pages.
    Fetched(&'a Watched, u64, u64),
    /// A program decided on so many windows.
    Decided(&'a Watched, u64),
    /// A round ended, with what it changed.
    Round(&'a Watched, Totals),
    /// A program is not watched any more.
    Forgotten(&'a Watched, Farewell),
    /// There is no descriptor or no memory left for another client.
    Full(Errno),
}

impl std::fmt::Debug for Watched {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watched").field("pid", &self.target.pid).finish_non_exhaustive()
    }
}

/// Why a program is not watched any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Farewell {
    /// It asked for that.
    Asked,
    /// It closed its connection: it ended, or became another program.
    Left,
    /// It ended.
    Ended,
    /// It cannot be worked on any more.
    Failed,
    /// It was cut off.
    CutOff,
    /// The tracker ends.
    Stopped,
}

/// Who has connected.
struct Client {
    connection: Connection,
    peer: Peer,
    account: Account,
    /// The process that connected, and no later one with its number.
    process: OwnedFd,
    since: Duration,
    session: Session,
    watched: Option<Watching>,
}

/// The program that a client has registered.
struct Watching {
    program: Watched,
    ends: OwnedFd,
    _hold: Box<dyn std::any::Any>,
    before: Totals,
}

/// A connection that is not registered after this time is closed, whatever it sent.
const REGISTERED_WITHIN: Duration = Duration::from_secs(30);

/// The longest time without a look at the stop flag.
const SLICE: Duration = Duration::from_millis(250);

/// So many are taken in before others have their turn.
const AT_ONCE: usize = 64;

/// After a failure to take in a client nobody is taken in for so long.
const FULL_FOR: Duration = Duration::from_secs(1);

/// Serves programs until it is asked to stop.
pub fn serve(listener: &Listener, s: Settings, control: &mut dyn Control) {
    let mut tracker =
        Tracker { clients: BTreeMap::new(), next: 0, s, full_until: Duration::ZERO, heard_again: BTreeMap::new() };
    while !control.stop() {
        tracker.turn(listener, control);
    }
    for key in tracker.clients.keys().copied().collect::<Vec<_>>() {
        tracker.forget(key, Farewell::Stopped, control);
    }
}

struct Tracker {
    clients: BTreeMap<usize, Client>,
    next: usize,
    s: Settings,
    full_until: Duration,
    /// When accounts are heard again: requests cost time, too, of which each account has its part.
    heard_again: BTreeMap<Account, Duration>,
}

/// Who has something.
#[derive(Default)]
struct Ready {
    listener: bool,
    clients: Vec<usize>,
    ended: Vec<usize>,
}

impl Tracker {
    /// Waits, and does what there is to do.
    fn turn(&mut self, listener: &Listener, control: &mut dyn Control) {
        let before = control.cpu_time();
        let ready = self.wait(listener, control);
        if ready.listener {
            self.take_in(listener, control);
            self.rest_from_newcomers(control, before);
        }
        let woken = control.cpu_time().saturating_sub(before) / u32::try_from(ready.clients.len().max(1)).unwrap_or(1);
        for key in ready.ended {
            self.forget(key, Farewell::Ended, control);
        }
        for key in ready.clients {
            self.attend_at_a_price(key, woken, control);
        }
        self.step(control);
        self.notify(control);
    }

    fn watching(&mut self, key: usize) -> Option<&mut Watching> {
        self.clients.get_mut(&key)?.watched.as_mut()
    }

    /// The program whose step is due first.
    fn first_due(&self) -> Option<(Duration, usize)> {
        let due = |(key, client): (&usize, &Client)| Some((client.watched.as_ref()?.program.due, *key));
        self.clients.iter().filter_map(due).min()
    }

    /// Waits until somebody says something, a program ends, or a step is due.
    fn wait(&mut self, listener: &Listener, control: &dyn Control) -> Ready {
        let now = control.now();
        let silent = |client: &Client| client.watched.is_none() && now > client.since + REGISTERED_WITHIN;
        self.clients.retain(|_, client| !silent(client));
        let heard = self.heard_again.values().min().copied();
        let full = Some(self.full_until).filter(|until| *until > now);
        let due = self.first_due().map(|(due, _)| due).into_iter().chain(heard).chain(full).min();
        let due = due.map_or(SLICE, |due| due.saturating_sub(now).min(SLICE));
        let is_full = now < self.full_until;
        self.heard_again.retain(|_, until| *until > now);
        let wanted = if is_full { PollFlags::empty() } else { PollFlags::IN };
        let mut fds = vec![PollFd::from_borrowed_fd(listener.as_fd(), wanted)];
        let mut keys = Vec::new();
        for (key, client) in &self.clients {
            // Without events poll(2) returns all the same when the other side is gone, at once and each time.
            if !self.heard_again.contains_key(&client.account) {
                fds.push(PollFd::new(&client.connection, PollFlags::IN));
                keys.push((*key, false));
            }
            if let Some(watching) = &client.watched {
                fds.push(PollFd::new(&watching.ends, PollFlags::IN));
                keys.push((*key, true));
            }
        }
        let timeout = Timespec::try_from(due).ok();
        // A signal that interrupts it is looked into by the caller.
        if poll(&mut fds, timeout.as_ref()).is_err() {
            return Ready::default();
        }
        let mut ready = Ready { listener: fds[0].revents().contains(PollFlags::IN), ..Ready::default() };
        for ((key, is_end), _) in keys.into_iter().zip(&fds[1..]).filter(|(_, fd)| !fd.revents().is_empty()) {
            if is_end { ready.ended.push(key) } else { ready.clients.push(key) }
        }
        ready
    }

    /// Takes in newcomers, some at a time: the others have their turn in between.
    fn take_in(&mut self, listener: &Listener, control: &mut dyn Control) {
        let mut crowd = Crowd::default();
        for (key, client) in &self.clients {
            crowd.join(client.account, *key, client.watched.is_none().then_some(client.since));
        }
        for _ in 0..AT_ONCE {
            match self.take_in_one(listener, &mut crowd, control) {
                Ok(true) => {}
                Ok(false) => return,
                Err(errno) => {
                    self.full_until = control.now() + FULL_FOR;
                    return control.say(&Happening::Full(errno));
                }
            }
        }
    }

    /// True if somebody was there. A connection that is refused is closed at once: to its program there is no tracker.
    fn take_in_one(
        &mut self,
        listener: &Listener,
        crowd: &mut Crowd,
        control: &mut dyn Control,
    ) -> Result<bool, Errno> {
        let Some(connection) = listener.accept(Duration::ZERO)? else { return Ok(false) };
        let peer = connection.peer()?;
        let Ok(process) = connection.peer_process() else { return Ok(true) };
        let account = control.account(peer);
        // Only now it is sure that its number was not another process's meanwhile.
        if has_ended(process.as_fd()) {
            return Ok(true);
        }
        match crowd.admit(account, &self.s.bounds) {
            Verdict::Refused => return Ok(true),
            Verdict::Admitted => {}
            Verdict::InsteadOf(key) => drop(self.clients.remove(&key)),
        }
        let (key, since, session) = (self.next, control.now(), Session::default());
        crowd.join(account, key, Some(since));
        self.clients.insert(key, Client { connection, peer, account, process, since, session, watched: None });
        self.next += 1;
        Ok(true)
    }

    /// Newcomers, whoever they are, have a part of a processor, too: after a number of them nobody is taken in for a time.
    fn rest_from_newcomers(&mut self, control: &dyn Control, before: Duration) {
        let part = self.s.schedule.cpu_fraction.get() * ACCOUNTS_AT_ONCE as f64;
        let spent = control.cpu_time().saturating_sub(before).div_f64(part);
        self.full_until = self.full_until.max(control.now() + spent);
    }

    /// Hears one message of a client, whose account is heard again when it has paid for it with time, and for what it took to
    /// notice it, `woken`. Root need not.
    fn attend_at_a_price(&mut self, key: usize, woken: Duration, control: &mut dyn Control) {
        let Some(account) = self.clients.get(&key).map(|client| client.account) else { return };
        if self.heard_again.contains_key(&account) {
            return;
        }
        let before = control.cpu_time();
        let part = self.part_of_account();
        self.attend(key, control);
        let spent = control.cpu_time().saturating_sub(before) + woken;
        if account != Account::Privileged {
            let until = control.now() + spent.div_f64(part.get());
            self.heard_again.insert(account, until);
        }
    }

    /// The part of a processor that one account has, root's apart.
    fn part_of_account(&self) -> NonZeroFraction {
        let watched = self.clients.values().filter(|client| client.watched.is_some());
        let accounts: BTreeSet<Account> = watched.map(|client| client.account).collect();
        let unprivileged = accounts.iter().filter(|account| **account != Account::Privileged).count();
        admission::part_of_account(self.s.schedule.cpu_fraction, unprivileged)
    }

    /// Hears one message of a client.
    fn attend(&mut self, key: usize, control: &mut dyn Control) {
        let Some(client) = self.clients.get_mut(&key) else { return };
        let mut message = [0; MOST_BYTES];
        let bytes = match client.connection.receive_at_once(&mut message) {
            Ok(Some(bytes)) => bytes,
            Ok(None) => return,
            Err(Errno::MSGSIZE) => return self.cut_off(key, control),
            Err(_) => return self.forget(key, Farewell::Left, control),
        };
        match client.session.understand(&message[..bytes]) {
            Wanted::Register(terms) => self.register(key, terms, control),
            Wanted::Unregister => {
                self.answer(key, Answer::Bye, control);
                self.stop_watching(key, Farewell::Asked, control);
            }
            Wanted::Fetch => self.fetch(key, control),
            Wanted::Arena(windows) => {
                let granted = self.grant(key, windows);
                self.answer(key, Answer::Granted { windows: granted }, control);
            }
            Wanted::Progress => {
                let totals = self.watching(key).map(|watching| watching.program.totals()).unwrap_or_default();
                self.answer(key, Answer::Progress(totals), control);
            }
            Wanted::Decided(wishes) => {
                if let Some(watching) = self.watching(key) {
                    control.say(&Happening::Decided(&watching.program, wishes.len() as u64));
                    watching.program.decided(wishes, control.now());
                }
            }
            Wanted::More => {}
            Wanted::No(why) => self.refuse(key, why, control),
            Wanted::Nonsense => self.cut_off(key, control),
        }
    }

    fn cut_off(&mut self, key: usize, control: &mut dyn Control) {
        if let Some(client) = self.clients.get(&key) {
            control.say(&Happening::Nonsense(client.peer));
        }
        self.forget(key, Farewell::CutOff, control);
    }

    fn refuse(&mut self, key: usize, why: Refused, control: &mut dyn Control) {
        if let Some(client) = self.clients.get(&key) {
            control.say(&Happening::Refused(client.peer, why));
        }
        self.answer(key, Answer::Refused(why), control);
    }

    /// Says something. Whoever does not read what it asked for is cut off.
    fn answer(&mut self, key: usize, answer: Answer, control: &mut dyn Control) {
        self.answer_with(key, answer, &[], control);
    }

    fn answer_with(&mut self, key: usize, answer: Answer, fds: &[BorrowedFd<'_>], control: &mut dyn Control) {
        let Some(client) = self.clients.get(&key) else { return };
        let mut message = [0; SHORT_BYTES];
        let bytes = answer.write(&mut message);
        match client.connection.send_at_once(&message[..bytes], fds) {
            Ok(()) => {}
            Err(Errno::AGAIN) => self.cut_off(key, control),
            Err(_) => self.forget(key, Farewell::Left, control),
        }
    }

    fn register(&mut self, key: usize, terms: Terms, control: &mut dyn Control) {
        let Some(client) = self.clients.get(&key) else { return };
        let peer = client.peer;
        if let Some(watching) = self.watching(key) {
            let pid = if terms.pid == 0 { peer.pid.unwrap_or(watching.program.target.pid) } else { Pid(terms.pid) };
            if pid != watching.program.target.pid {
                return self.refuse(key, Refused::Taken, control);
            }
            watching.program.change(terms);
            control.say(&Happening::Changed(&watching.program));
            return self.answer(key, Answer::Welcome, control);
        }
        match self.open(key, terms, control) {
            Ok(watching) => {
                control.say(&Happening::Registered(&watching.program));
                if let Some(client) = self.clients.get_mut(&key) {
                    client.session.set_registered(true);
                    client.watched = Some(watching);
                }
                self.answer(key, Answer::Welcome, control);
            }
            Err(why) => self.refuse(key, why, control),
        }
    }

    fn open(&self, key: usize, terms: Terms, control: &mut dyn Control) -> Result<Watching, Refused> {
        let client = self.clients.get(&key).ok_or(Refused::NoProcess)?;
        let (peer, account) = (client.peer, client.account);
        let watched = || self.clients.values().filter(|one| one.watched.is_some());
        let of_account = watched().filter(|one| one.account == account).count();
        let has_room =
            self.s.bounds.has_room_for_program(account, watched().count()) && of_account < self.s.most_programs;
        let pid = may_register(peer, terms, has_room)?;
        let taken = |client: &Client| client.watched.as_ref().is_some_and(|one| one.program.target.pid == pid);
        if self.clients.values().any(taken) {
            return Err(Refused::Taken);
        }
        let Opened { target, ends, hold } = control.open(pid, peer)?;
        // Only now that it is open is it sure that its number was not another process's meanwhile.
        if has_ended(client.process.as_fd()) {
            return Err(Refused::NoProcess);
        }
        let program = Watched::new(target, peer.user, account, terms, control.now());
        Ok(Watching { program, ends, _hold: hold, before: Totals::default() })
    }

    fn fetch(&mut self, key: usize, control: &mut dyn Control) {
        let Some(client) = self.clients.get_mut(&key) else { return };
        let Some(list) = client.watched.as_mut().and_then(|watching| watching.program.take_list()) else {
            return self.answer(key, Answer::Nothing, control);
        };
        let generation = client.session.next_generation();
        let memory = match sealed("masu-track-list", &list.bytes(generation)) {
            Ok(memory) => memory,
            Err(errno) => {
                control.say(&Happening::Full(errno));
                return self.answer(key, Answer::Nothing, control);
            }
        };
        client.session.give(list.places());
        let (windows, pages) = (list.windows.len() as u64, list.pages.len() as u64);
        if let Some(watching) = &client.watched {
            control.say(&Happening::Fetched(&watching.program, windows, pages));
        }
        self.answer_with(key, Answer::List { generation, windows, pages }, &[memory.as_fd()], control);
    }

    /// Does the step that is due first.
    fn step(&mut self, control: &mut dyn Control) {
        let now = control.now();
        let Some((_, key)) = self.first_due().filter(|(due, _)| *due <= now) else { return };
        let before = control.cpu_time();
        let outcome = self.step_of(key, control);
        let spent = control.cpu_time().saturating_sub(before);
        if let Some(watching) = self.watching(key) {
            watching.program.spent += spent;
        }
        if self.watching(key).is_some_and(|watching| watching.program.target.execs > 0) {
            // Another program, which did not ask for this, and may be more privileged.
            return self.forget(key, Farewell::Left, control);
        }
        match outcome {
            Ok(()) => {}
            Err(error) if error.is_gone() => self.forget(key, Farewell::Ended, control),
            Err(error) => {
                if let Some(watching) = self.watching(key) {
                    watching.program.target.failure = Some(error);
                }
                self.forget(key, Farewell::Failed, control);
            }
        }
    }

    fn step_of(&mut self, key: usize, control: &mut dyn Control) -> Result<(), Error> {
        let schedule = self.schedule_of(key);
        let Some(watching) = self.watching(key) else { return Ok(()) };
        match watching.program.step(control.now(), schedule)? {
            Came::Nothing => {}
            Came::ToShare(plan) => self.share(key, &plan),
            Came::ToDo(act) => {
                let begun = control.now();
                control.in_haste(true);
                let done = self.carry_out(key, act);
                control.in_haste(false);
                done?;
                let now = control.now();
                if let Some(watching) = self.watching(key) {
                    watching.program.pause(now, now.saturating_sub(begun), schedule);
                    watching.program.make_ready();
                }
            }
            Came::Rested => {
                let totals = watching.program.totals();
                let before = std::mem::replace(&mut watching.before, totals);
                control.say(&Happening::Round(&watching.program, before));
            }
        }
        Ok(())
    }

    /// Tells those programs of their active pages for which it is time.
    fn notify(&mut self, control: &mut dyn Control) {
        let now = control.now();
        let mut others = Vec::new();
        for (key, client) in &mut self.clients {
            let (Some(watching), Some(pid)) = (client.watched.as_mut(), client.peer.pid) else { continue };
            let program = &mut watching.program;
            let signal = program.terms().signal;
            if signal == 0 || !program.notice.is_due(now) {
                continue;
            }
            program.notice.told(now);
            let active = program.list().map_or(0, |list| list.pages.len() as u64);
            match control.signal(pid, client.peer.user, client.process.as_fd(), signal, active) {
                Ok(()) => {
                    program.signals += 1;
                    control.say(&Happening::Notified(program, active));
                }
                Err(why) => {
                    control.say(&Happening::NotNotified(program, why));
                    others.extend((why == Unsent::NotIts).then_some(*key));
                }
            }
        }
        for key in others {
            self.forget(key, Farewell::Left, control);
        }
    }

    /// How a program may be watched: all programs of an account share its part of a processor, but for root's.
    fn schedule_of(&self, key: usize) -> schedule::Settings {
        let s = self.s.schedule;
        let Some(account) = self.clients.get(&key).map(|client| client.account) else { return s };
        if account == Account::Privileged {
            return s;
        }
        let of_account = |client: &&Client| client.watched.is_some() && client.account == account;
        let count = self.clients.values().filter(of_account).count().max(1);
        let fraction = self.part_of_account().get() / count as f64;
        schedule::Settings { cpu_fraction: NonZeroFraction::new(fraction).unwrap_or(s.cpu_fraction), ..s }
    }

    /// A program is not watched any more; its client stays.
    fn stop_watching(&mut self, key: usize, why: Farewell, control: &mut dyn Control) {
        let Some(client) = self.clients.get_mut(&key) else { return };
        client.session.set_registered(false);
        client.since = control.now();
        if let Some(watching) = client.watched.take() {
            watching.program.target.rest();
            control.say(&Happening::Forgotten(&watching.program, why));
        }
    }

    /// A client is no more.
    fn forget(&mut self, key: usize, why: Farewell, control: &mut dyn Control) {
        self.stop_watching(key, why, control);
        self.clients.remove(&key);
    }
}

/// Whether the process behind a pidfd has ended.
fn has_ended(pidfd: BorrowedFd<'_>) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(pidfd, PollFlags::IN)];
    poll(&mut fds, Some(&Timespec::default())).is_ok_and(|ended| ended > 0)
}

#[cfg(test)]
mod tests;
