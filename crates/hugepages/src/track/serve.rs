//! The tracker's loop: clients connect and leave, programs are scanned and acted on, one step at a time.

mod halts;
mod limits;

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use contract::track::terms::Terms;
use contract::track::wire::{Answer, MOST_BYTES, Refused, SHORT_BYTES, Totals};
use linux::message_socket::{Connection, Listener, Peer};
use linux::sealed_memory::sealed;
use linux::{Error, Pid};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use units::NonZeroFraction;
use units::cast::fits;

use self::halts::has_ended;
use super::admission::{self, ACCOUNTS_AT_ONCE, Account, Bounds, Connections, Verdict};
use super::schedule;
use super::session::{ClientRequest, Session, may_register};
use super::share::Limits;
use super::watched::{Outcome, Watched};
use crate::target::Target;

/// Settings of the loop.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// Times of the scans.
    pub schedule: schedule::Settings,
    /// Limits on huge pages.
    pub limits: Limits,
    /// Registered programs of one user at a time.
    pub most_programs: usize,
    /// Bounds on connections and programs in all.
    pub bounds: Bounds,
}

/// A program that is ready to be watched.
pub struct Opened {
    /// The program, with its source and its actions.
    pub target: Target,
    /// Becomes readable when the program ends.
    pub ends: OwnedFd,
    /// Lock that keeps other trackers away from the program until dropped.
    pub lock: Box<dyn std::any::Any>,
}

/// Caller's side of the loop.
pub trait Control {
    /// Time since the start.
    fn now(&self) -> Duration;
    /// True once asked to stop.
    fn stop(&self) -> bool;
    /// Processor time of this process so far.
    fn cpu_time(&self) -> Duration;
    /// Called before and after a call that may make a program wait.
    fn set_urgent(&mut self, urgent: bool);
    /// Account of a connection.
    fn account(&mut self, peer: Peer) -> Account;
    /// Prepares a process to be watched for `peer`: its own, or one that the kernel lets it inspect.
    ///
    /// # Errors
    /// Reason for the client; the caller prints the full reason.
    fn open(&mut self, pid: Pid, peer: Peer) -> Result<Opened, Refused>;
    /// Sends a signal with a value to the process `pid` of `user`, if that process has a handler for it.
    ///
    /// # Errors
    /// Reason for which it was not sent.
    fn signal(&mut self, pid: Pid, user: u32, pidfd: BorrowedFd<'_>, signal: i32, value: u64) -> Result<(), Unsent>;
    /// Receives each event.
    fn report(&mut self, event: &Event<'_>);
}

/// Reason for which a signal was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unsent {
    /// The process has no handler for it any more, and the signal would kill it. Tried again later.
    NoHandler,
    /// The process belongs to another user by now, as after exec of a setuid program: its client is removed.
    OtherUser,
    /// The kernel's error. Tried again later.
    Kernel(Errno),
}

/// Event.
#[derive(Clone, Copy, Debug)]
pub enum Event<'a> {
    /// A program was registered.
    Registered(&'a Watched),
    /// Its session parameters changed.
    Changed(&'a Watched),
    /// A client was refused.
    Refused(Peer, Refused),
    /// A client was disconnected for a malformed message.
    Malformed(Peer),
    /// A program was notified of its number of active pages.
    Notified(&'a Watched, u64),
    /// A notification failed.
    NotNotified(&'a Watched, Unsent),
    /// A program fetched its list: number of windows and pages.
    Fetched(&'a Watched, u64, u64),
    /// A program decided on this number of windows.
    Decided(&'a Watched, u64),
    /// A program became unable to run ([`Target::halted`]), or able to.
    Halted(&'a Watched),
    /// A round ended, with these changes.
    Round(&'a Watched, Totals),
    /// The end of watching a program.
    Removed(&'a Watched, EndReason),
    /// No descriptor or memory left for further clients.
    Full(Errno),
}

impl std::fmt::Debug for Watched {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watched").field("pid", &self.target.pid).finish_non_exhaustive()
    }
}

/// Reason for the end of watching.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndReason {
    /// The program unregistered.
    Unregistered,
    /// It closed its connection: it ended, or exec replaced it.
    Closed,
    /// It ended.
    Ended,
    /// It can no longer be worked on.
    Failed,
    /// It was disconnected.
    Disconnected,
    /// The tracker stops.
    Stopped,
}

/// A connected client.
struct Client {
    connection: Connection,
    peer: Peer,
    account: Account,
    /// The process that connected; a pidfd, so never a later process with its number.
    process: OwnedFd,
    since: Duration,
    session: Session,
    watched: Option<Watching>,
}

/// Registered program of a client.
struct Watching {
    program: Watched,
    ends: OwnedFd,
    _lock: Box<dyn std::any::Any>,
    before: Totals,
}

/// Time after which an unregistered connection is closed, even if it sent messages.
const REGISTERED_WITHIN: Duration = Duration::from_secs(30);

/// Longest time between two checks of the stop flag.
const SLICE: Duration = Duration::from_millis(250);

/// Connections accepted before other work is done.
const AT_ONCE: usize = 64;

/// Pause of accepting after a failure to accept.
const FULL_FOR: Duration = Duration::from_secs(1);

/// Serves programs until it is asked to stop.
pub fn serve(listener: &Listener, s: Settings, control: &mut dyn Control) {
    let mut tracker = Tracker {
        clients: BTreeMap::new(),
        next: 0,
        s,
        full_until: Duration::ZERO,
        served_again: BTreeMap::new(),
        look_again: Duration::ZERO,
    };
    while !control.stop() {
        tracker.run_once(listener, control);
    }
    for key in tracker.clients.keys().copied().collect::<Vec<_>>() {
        tracker.remove(key, EndReason::Stopped, control);
    }
}

struct Tracker {
    clients: BTreeMap<usize, Client>,
    next: usize,
    s: Settings,
    full_until: Duration,
    /// Time from which an account's requests are served again: each account has its part of processor time.
    served_again: BTreeMap<Account, Duration>,
    look_again: Duration,
}

/// Ready sources.
#[derive(Default)]
struct Ready {
    listener: bool,
    clients: Vec<usize>,
    ended: Vec<usize>,
}

impl Tracker {
    /// Waits, and does the work that is due.
    fn run_once(&mut self, listener: &Listener, control: &mut dyn Control) {
        let before = control.cpu_time();
        let ready = self.wait(listener, control);
        if ready.listener {
            self.accept(listener, control);
            self.pause_accepting(control, before);
        }
        let woken = control.cpu_time().saturating_sub(before) / fits(ready.clients.len().max(1));
        for key in ready.ended {
            self.remove(key, EndReason::Ended, control);
        }
        for key in ready.clients {
            self.serve_at_cost(key, woken, control);
        }
        self.look_for_halts(control);
        self.step(control);
        self.notify(control);
    }

    fn watching(&mut self, key: usize) -> Option<&mut Watching> {
        self.clients.get_mut(&key)?.watched.as_mut()
    }

    /// Program with the earliest due step.
    fn first_due(&self) -> Option<(Duration, usize)> {
        let due = |(key, client): (&usize, &Client)| Some((client.watched.as_ref()?.program.due, *key));
        self.clients.iter().filter_map(due).min()
    }

    /// Waits until a client sends, a program ends, or a step is due.
    fn wait(&mut self, listener: &Listener, control: &dyn Control) -> Ready {
        let now = control.now();
        let silent = |client: &Client| client.watched.is_none() && now > client.since + REGISTERED_WITHIN;
        self.clients.retain(|_, client| !silent(client));
        let next_served = self.served_again.values().min().copied();
        let full = Some(self.full_until).filter(|until| *until > now);
        let due = self.first_due().map(|(due, _)| due).into_iter().chain(next_served).chain(full).min();
        let due = due.map_or(SLICE, |due| due.saturating_sub(now).min(SLICE));
        let is_full = now < self.full_until;
        self.served_again.retain(|_, until| *until > now);
        let wanted = if is_full { PollFlags::empty() } else { PollFlags::IN };
        let mut fds = vec![PollFd::from_borrowed_fd(listener.as_fd(), wanted)];
        let mut keys = Vec::new();
        for (key, client) in &self.clients {
            // Without events poll(2) still returns when the other side is gone, at once and each time.
            if !self.served_again.contains_key(&client.account) {
                fds.push(PollFd::new(&client.connection, PollFlags::IN));
                keys.push((*key, false));
            }
            if let Some(watching) = &client.watched {
                fds.push(PollFd::new(&watching.ends, PollFlags::IN));
                keys.push((*key, true));
            }
        }
        let timeout = Timespec::try_from(due).ok();
        if poll(&mut fds, timeout.as_ref()).is_err() {
            return Ready::default();
        }
        let mut ready = Ready { listener: fds[0].revents().contains(PollFlags::IN), ..Ready::default() };
        for ((key, is_end), _) in keys.into_iter().zip(&fds[1..]).filter(|(_, fd)| !fd.revents().is_empty()) {
            if is_end { ready.ended.push(key) } else { ready.clients.push(key) }
        }
        ready
    }

    /// Accepts connections, a limited number at a time, so that other work is done in between.
    fn accept(&mut self, listener: &Listener, control: &mut dyn Control) {
        let mut connections = Connections::default();
        for (key, client) in &self.clients {
            connections.add(client.account, *key, client.watched.is_none().then_some(client.since));
        }
        for _ in 0..AT_ONCE {
            match self.accept_one(listener, &mut connections, control) {
                Ok(true) => {}
                Ok(false) => return,
                Err(errno) => {
                    self.full_until = control.now() + FULL_FOR;
                    return control.report(&Event::Full(errno));
                }
            }
        }
    }

    /// True if a connection was pending. A refused connection is closed at once: its program finds no tracker.
    fn accept_one(
        &mut self,
        listener: &Listener,
        connections: &mut Connections,
        control: &mut dyn Control,
    ) -> Result<bool, Errno> {
        let Some(connection) = listener.accept(Duration::ZERO)? else { return Ok(false) };
        let peer = connection.peer()?;
        let Ok(process) = connection.peer_process() else { return Ok(true) };
        let account = control.account(peer);
        // The number may have belonged to another process until the pidfd was opened.
        if has_ended(process.as_fd()) {
            return Ok(true);
        }
        match connections.admit(account, &self.s.bounds) {
            Verdict::Refused => return Ok(true),
            Verdict::Admitted => {}
            Verdict::InsteadOf(key) => drop(self.clients.remove(&key)),
        }
        let (key, since, session) = (self.next, control.now(), Session::default());
        connections.add(account, key, Some(since));
        self.clients.insert(key, Client { connection, peer, account, process, since, session, watched: None });
        self.next += 1;
        Ok(true)
    }

    /// All new connections together have a part of a processor, too: accepting pauses after it is used up.
    fn pause_accepting(&mut self, control: &dyn Control, before: Duration) {
        let part = self.s.schedule.cpu_fraction.get() * ACCOUNTS_AT_ONCE as f64;
        let spent = control.cpu_time().saturating_sub(before).div_f64(part);
        self.full_until = self.full_until.max(control.now() + spent);
    }

    /// Reads one message of a client. The account is served again after a rest in proportion to the cost of the
    /// message and of the wake-up, `woken`. Root is exempt.
    fn serve_at_cost(&mut self, key: usize, woken: Duration, control: &mut dyn Control) {
        let Some(account) = self.clients.get(&key).map(|client| client.account) else { return };
        if self.served_again.contains_key(&account) {
            return;
        }
        let before = control.cpu_time();
        let part = self.part_of_account();
        self.serve_request(key, control);
        let spent = control.cpu_time().saturating_sub(before) + woken;
        if account != Account::Privileged {
            let until = control.now() + spent.div_f64(part.get());
            self.served_again.insert(account, until);
        }
    }

    /// Part of a processor of one account, without root's.
    fn part_of_account(&self) -> NonZeroFraction {
        let watched = self.clients.values().filter(|client| client.watched.is_some());
        let accounts: BTreeSet<Account> = watched.map(|client| client.account).collect();
        let unprivileged = accounts.iter().filter(|account| **account != Account::Privileged).count();
        admission::part_of_account(self.s.schedule.cpu_fraction, unprivileged)
    }

    /// Reads one message of a client.
    fn serve_request(&mut self, key: usize, control: &mut dyn Control) {
        let Some(client) = self.clients.get_mut(&key) else { return };
        let mut message = [0; MOST_BYTES];
        let bytes = match client.connection.receive_at_once(&mut message) {
            Ok(Some(bytes)) => bytes,
            Ok(None) => return,
            Err(Errno::MSGSIZE) => return self.disconnect(key, control),
            Err(_) => return self.remove(key, EndReason::Closed, control),
        };
        match client.session.decode(&message[..bytes]) {
            ClientRequest::Register(terms) => self.register(key, terms, control),
            ClientRequest::Unregister => {
                self.answer(key, Answer::Bye, control);
                self.stop_watching(key, EndReason::Unregistered, control);
            }
            ClientRequest::Fetch => self.fetch(key, control),
            ClientRequest::Arena(windows) => {
                let granted = self.grant(key, windows);
                self.answer(key, Answer::Granted { windows: granted }, control);
            }
            ClientRequest::Progress => {
                let totals = self.watching(key).map(|watching| watching.program.totals()).unwrap_or_default();
                self.answer(key, Answer::Progress(totals), control);
            }
            ClientRequest::Decided(preferences) => {
                if let Some(watching) = self.watching(key) {
                    control.report(&Event::Decided(&watching.program, preferences.len() as u64));
                    watching.program.decided(preferences, control.now());
                }
            }
            ClientRequest::Incomplete => {}
            ClientRequest::Refuse(why) => self.refuse(key, why, control),
            ClientRequest::Malformed => self.disconnect(key, control),
        }
    }

    fn disconnect(&mut self, key: usize, control: &mut dyn Control) {
        if let Some(client) = self.clients.get(&key) {
            control.report(&Event::Malformed(client.peer));
        }
        self.remove(key, EndReason::Disconnected, control);
    }

    fn refuse(&mut self, key: usize, why: Refused, control: &mut dyn Control) {
        if let Some(client) = self.clients.get(&key) {
            control.report(&Event::Refused(client.peer, why));
        }
        self.answer(key, Answer::Refused(why), control);
    }

    /// Sends an answer. A client that does not read its answers is disconnected.
    fn answer(&mut self, key: usize, answer: Answer, control: &mut dyn Control) {
        self.answer_with(key, answer, &[], control);
    }

    fn answer_with(&mut self, key: usize, answer: Answer, fds: &[BorrowedFd<'_>], control: &mut dyn Control) {
        let Some(client) = self.clients.get(&key) else { return };
        let mut message = [0; SHORT_BYTES];
        let bytes = answer.write(&mut message);
        match client.connection.send_at_once(&message[..bytes], fds) {
            Ok(()) => {}
            Err(Errno::AGAIN) => self.disconnect(key, control),
            Err(_) => self.remove(key, EndReason::Closed, control),
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
            control.report(&Event::Changed(&watching.program));
            return self.answer(key, Answer::Welcome, control);
        }
        match self.open(key, terms, control) {
            Ok(watching) => {
                control.report(&Event::Registered(&watching.program));
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
        let Opened { target, ends, lock } = control.open(pid, peer)?;
        // The number may have belonged to another process until it was opened.
        if has_ended(client.process.as_fd()) {
            return Err(Refused::NoProcess);
        }
        let program = Watched::new(target, peer.user, account, terms, control.now());
        Ok(Watching { program, ends, _lock: lock, before: Totals::default() })
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
                control.report(&Event::Full(errno));
                return self.answer(key, Answer::Nothing, control);
            }
        };
        client.session.set_list(list.ordered_windows());
        let (windows, pages) = (list.windows.len() as u64, list.pages.len() as u64);
        if let Some(watching) = &client.watched {
            control.report(&Event::Fetched(&watching.program, windows, pages));
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
        if self.watching(key).is_some_and(|watching| watching.program.target.totals.execs > 0) {
            // Another program, which did not ask for this, and may be more privileged.
            return self.remove(key, EndReason::Closed, control);
        }
        match outcome {
            Ok(()) => {}
            Err(error) if error.is_gone() => self.remove(key, EndReason::Ended, control),
            Err(error) => {
                if let Some(watching) = self.watching(key) {
                    watching.program.target.failure = Some(error);
                }
                self.remove(key, EndReason::Failed, control);
            }
        }
    }

    fn step_of(&mut self, key: usize, control: &mut dyn Control) -> Result<(), Error> {
        let schedule = self.schedule_of(key);
        let Some(watching) = self.watching(key) else { return Ok(()) };
        match watching.program.step(control.now(), schedule)? {
            Outcome::Nothing => {}
            Outcome::ToShare(plan) => self.share(key, &plan),
            Outcome::ToDo(act) => {
                let begun = control.now();
                control.set_urgent(true);
                let done = self.carry_out(key, act);
                control.set_urgent(false);
                done?;
                let now = control.now();
                if let Some(watching) = self.watching(key) {
                    watching.program.pause(now, now.saturating_sub(begun), schedule);
                    watching.program.preallocate();
                }
            }
            Outcome::Rested => {
                let totals = watching.program.totals();
                let before = std::mem::replace(&mut watching.before, totals);
                control.report(&Event::Round(&watching.program, before));
            }
        }
        Ok(())
    }

    /// Sends the notifications that are due.
    fn notify(&mut self, control: &mut dyn Control) {
        let now = control.now();
        let mut of_others = Vec::new();
        for (key, client) in &mut self.clients {
            let (Some(watching), Some(pid)) = (client.watched.as_mut(), client.peer.pid) else { continue };
            let program = &mut watching.program;
            let signal = program.terms().signal;
            if signal == 0 || !program.notice.is_due(now) {
                continue;
            }
            program.notice.notified(now);
            let active = program.list().map_or(0, |list| list.pages.len() as u64);
            match control.signal(pid, client.peer.user, client.process.as_fd(), signal, active) {
                Ok(()) => {
                    program.notice.sent();
                    control.report(&Event::Notified(program, active));
                }
                Err(why) => {
                    control.report(&Event::NotNotified(program, why));
                    of_others.extend((why == Unsent::OtherUser).then_some(*key));
                }
            }
        }
        for key in of_others {
            self.remove(key, EndReason::Closed, control);
        }
    }

    /// Schedule of a program: all programs of an account, except root's, share its part of a processor.
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

    /// Stops watching a program; its client stays.
    fn stop_watching(&mut self, key: usize, why: EndReason, control: &mut dyn Control) {
        let Some(client) = self.clients.get_mut(&key) else { return };
        client.session.set_registered(false);
        client.since = control.now();
        if let Some(watching) = client.watched.take() {
            watching.program.target.free_preallocated();
            control.report(&Event::Removed(&watching.program, why));
        }
    }

    /// Removes a client.
    fn remove(&mut self, key: usize, why: EndReason, control: &mut dyn Control) {
        self.stop_watching(key, why, control);
        self.clients.remove(&key);
    }
}

#[cfg(test)]
mod tests;
