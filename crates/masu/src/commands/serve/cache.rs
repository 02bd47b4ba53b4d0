//! Page cache of the members: dropped behind their streams, as by `masu aging --cache 0`, on a thread of its own.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use access::backend::Unavailable;
use access::insertions::{Filter, Membership};
use aging::levels::Level;
use aging::report::Event;
use aging::streams::{Keep, Streams};
use linux::meminfo::meminfo;
use linux::{Pid, children};
use serve::config::Cache;
use serve::rules::InForce;

use super::shown_name;
use crate::HOST;

/// Wait of the thread while nobody is followed.
const IDLE: Duration = Duration::from_secs(3600);
/// Time without a followed process after which the tracing ends.
const LINGER: Duration = Duration::from_secs(10);
/// Time between two looks whether a followed process still runs.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Time between two tries to begin the tracing.
const AGAIN_AFTER: Duration = Duration::from_secs(60);

/// Something to tell people.
pub enum News {
    /// An event of the streams.
    Event(Box<Event>),
    /// Streams cannot be followed.
    Refused(Unavailable),
}

enum Order {
    Follow(Pid),
    Dismiss(Pid),
}

/// Members whose streams are followed.
pub struct Streaming {
    orders: Sender<Order>,
    news: Receiver<News>,
    thread: JoinHandle<()>,
    /// Rule and command name of each.
    members: BTreeMap<Pid, (InForce<Cache>, String)>,
}

impl Streaming {
    /// Starts the thread. Without members it sleeps.
    ///
    /// # Errors
    /// When the system has no thread left.
    pub fn begin() -> std::io::Result<Streaming> {
        let ((orders, ordered), (tell, news)) = (mpsc::channel(), mpsc::channel());
        let thread = std::thread::Builder::new().name("masu-cache".to_owned());
        let thread = thread.spawn(move || Followed::default().run(&ordered, &tell))?;
        Ok(Streaming { orders, news, thread, members: BTreeMap::new() })
    }

    /// Sets the rule of a process. Returns a rule that has its first member by this.
    pub fn change(&mut self, pid: Pid, now: Option<InForce<Cache>>) -> Option<String> {
        let now = now.filter(|now| now.settings == Cache::Drop);
        if self.members.get(&pid).map(|(rule, _)| rule) == now.as_ref() {
            return None;
        }
        if self.members.remove(&pid).is_some() {
            // The thread goes on until this is dropped.
            let _ = self.orders.send(Order::Dismiss(pid));
        }
        let now = now?;
        let is_first = self.members.values().all(|(other, _)| other.rule != now.rule);
        let rule = now.rule.clone();
        let _ = self.orders.send(Order::Follow(pid));
        self.members.insert(pid, (now, shown_name(pid)));
        is_first.then_some(rule)
    }

    /// Members, each with its command name and its rule.
    pub fn members(&self) -> impl Iterator<Item = (Pid, &str, &str)> {
        self.members.iter().map(|(pid, (member, name))| (*pid, &**name, &*member.rule))
    }

    /// News since the last call.
    pub fn news(&self) -> Vec<News> {
        self.news.try_iter().collect()
    }

    /// Drops what is left behind the streams, and returns the last news.
    pub fn end(self) -> Vec<News> {
        drop(self.orders);
        // It does not panic; its work ends with it anyway.
        let _ = self.thread.join();
        self.news.try_iter().collect()
    }
}

/// The thread's side.
struct Followed {
    start: Instant,
    streams: Option<Streams>,
    members: BTreeSet<Pid>,
    /// Time until which no tracing is begun, after a failure.
    not_before: Duration,
    /// Last time that a followed process ran, and that this was looked at.
    used: Duration,
    looked: Duration,
}

impl Default for Followed {
    fn default() -> Followed {
        let zero = Duration::ZERO;
        let members = BTreeSet::new();
        Followed { start: Instant::now(), streams: None, members, not_before: zero, used: zero, looked: zero }
    }
}

impl Followed {
    fn run(mut self, orders: &Receiver<Order>, tell: &Sender<News>) {
        // Nobody listens any more when the service ends.
        let tell = |news| drop(tell.send(news));
        loop {
            let step = match orders.recv_timeout(self.streams.as_ref().map_or(IDLE, Streams::wait)) {
                Ok(Order::Follow(pid)) => self.follow(pid),
                Ok(Order::Dismiss(pid)) => {
                    self.dismiss(pid);
                    Ok(())
                }
                Err(RecvTimeoutError::Timeout) => Ok(()),
                Err(RecvTimeoutError::Disconnected) => break self.finish(&tell),
            };
            if let Err(why) = step.and_then(|()| self.step(&tell)) {
                self.streams = None;
                self.not_before = self.start.elapsed() + AGAIN_AFTER;
                tell(News::Refused(why));
            }
        }
    }

    fn follow(&mut self, pid: Pid) -> Result<(), Unavailable> {
        self.members.insert(pid);
        if self.streams.is_some() {
            return self.follow_whole(pid);
        }
        if self.start.elapsed() < self.not_before {
            return Ok(());
        }
        let memory = meminfo(&*HOST).map(|info| info.total).unwrap_or_default();
        self.streams = Some(Streams::begin(&*HOST, Filter::Members, Keep::ReadAgain, Level::NONE, memory)?);
        self.used = self.start.elapsed();
        self.members.clone().into_iter().try_for_each(|pid| self.follow_whole(pid))
    }

    /// Follows a process and those that it has started.
    fn follow_whole(&self, pid: Pid) -> Result<(), Unavailable> {
        let Some(streams) = &self.streams else { return Ok(()) };
        let family = std::iter::once(pid).chain(children::descendants(&*HOST, pid).unwrap_or_default());
        family.into_iter().try_for_each(|pid| streams.follow(pid, Membership::Whole))
    }

    /// Ends the following of a process and of those that it has started, except of other members.
    fn dismiss(&mut self, pid: Pid) {
        self.members.remove(&pid);
        let Some(streams) = &self.streams else { return };
        let family = std::iter::once(pid).chain(children::descendants(&*HOST, pid).unwrap_or_default());
        family.filter(|pid| !self.members.contains(pid)).for_each(|pid| streams.dismiss(pid));
    }

    fn step(&mut self, tell: &dyn Fn(News)) -> Result<(), Unavailable> {
        let now = self.start.elapsed();
        let Some(streams) = &mut self.streams else { return Ok(()) };
        let mut events = Vec::new();
        let stepped = streams.step(&*HOST, now, &mut events);
        events.into_iter().for_each(|event| tell(News::Event(Box::new(event))));
        stepped?;
        if now >= self.looked + LOOK_EVERY {
            self.looked = now;
            if !streams.members(&*HOST).is_empty() {
                self.used = now;
            } else if now >= self.used + LINGER {
                self.finish(tell);
            }
        }
        Ok(())
    }

    fn finish(&mut self, tell: &dyn Fn(News)) {
        let Some(mut streams) = self.streams.take() else { return };
        let mut events = Vec::new();
        if let Err(why) = streams.finish(&*HOST, self.start.elapsed(), &|| false, &mut events) {
            tell(News::Refused(why));
        }
        events.into_iter().for_each(|event| tell(News::Event(Box::new(event))));
    }
}
