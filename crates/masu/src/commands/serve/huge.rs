//! Huge pages of the members: the loop of `masu attach`, with programs that come and go.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use access::Backend;
use aging::report::Event;
use hugepages::attach::{Control, Doing, ROUND_MIN, Settings, Until, attach};
use hugepages::target::{Phase, Target};
use hugepages::{policy, rate_limiter};
use linux::process_lock::ProcessLock;
use linux::{Pid, status};
use sd_notify::NotifyState;
use serde_json::{Value, json};
use serve::config::{Cache, Config, Hot, Huge, Rule};
use serve::members::Members;
use serve::rules::InForce;
use serve::snapshot::{Feature, OfProcess, OfRule, Snapshot, State, Windows};
use units::{Bytes, Fraction};

use super::board::Board;
use super::cache::{News, Streaming};
use super::events::Events;
use super::{Source, cache_in_words, check_host, in_words, name_of};
use crate::commands::attach::open;
use crate::failure::Failure;
use crate::open::{Observers, Purpose, admit, hold_silently};
use crate::priority::Priority;
use crate::terminal::clock::Stop;
use crate::{Done, HOST};

/// Time between two looks for processes.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Longest time between two checks of the flags.
const SLICE: Duration = Duration::from_millis(100);
/// Smallest memory of a served program: below that it has too few windows.
const WORTH_IT: Bytes = Bytes::mib(8);
/// Most programs that are served at a time: each costs descriptors, and scans.
const SERVED_MOST: usize = 2000;
/// Most of them of one user other than root.
const OF_USER_MOST: usize = SERVED_MOST / 4;
/// Bounds of the time between two looks at the size of a small member: a quarter of the time that it was small.
const GROWN_EVERY: [Duration; 2] = [SLICE, Duration::from_secs(20)];
/// Most members that are tried again in one look, so that many small ones cost no more.
const AGAIN_EACH_LOOK: usize = 25;
/// Time until the next try of a member for which there is no place.
const PLACE_EVERY: Duration = Duration::from_secs(2);
/// Time between two tries of a member that could not be served.
const AGAIN_AFTER: Duration = Duration::from_secs(60);

/// Serves until it is stopped.
///
/// # Errors
/// When the system has no thread left.
pub fn serve(
    members: Members,
    source: Source,
    observers: &Observers,
    stop: Stop,
    board: &Board,
    json: bool,
) -> std::io::Result<Done> {
    let streaming = Some(Streaming::begin()?);
    let settings =
        Settings { rate: rate_limiter::MEASURED, until: Until::Stopped, dry_run: false, round_min: ROUND_MIN };
    let mut events = Events::new(json);
    let rules = members.config().rules.len();
    let text = format!("serving by {rules} rules, observing by {}", observers.backend);
    events.say("serving", &text, json!({ "rules": rules, "backend": observers.backend }));
    let mut host = Host {
        start: Instant::now(),
        stop,
        members,
        source,
        observers,
        board,
        events,
        reload_failed: None,
        totals: BTreeMap::new(),
        dropped: Bytes(0),
        waiting: BTreeMap::new(),
        served: BTreeMap::new(),
        streaming,
        arrived: Vec::new(),
        released: Vec::new(),
        looked: None,
        is_told: false,
        is_too_many: false,
        priority: Priority::default(),
    };
    tell_manager(NotifyState::Ready);
    let mut targets = Vec::new();
    attach(&mut targets, settings, &mut host);
    targets.append(&mut host.arrived);
    targets.into_iter().for_each(|target| host.leaves(&target));
    tell_manager(NotifyState::Stopping);
    let rest = host.streaming.take().map(Streaming::end);
    host.tell_of_cache(rest.unwrap_or_default());
    Ok(host.events.done())
}

/// The configuration, if this host has what its rules ask for.
fn can_serve(config: Config) -> Result<Config, Failure> {
    check_host(&config).map(|()| config)
}

/// Tells systemd, if it started this process.
fn tell_manager(state: NotifyState<'_>) {
    // Nobody listens: the manager decides what a lost message means.
    let _ = sd_notify::notify(false, &[state]);
}

/// A member that is not served yet.
struct Waiting {
    rule: InForce<Huge>,
    hot: Hot,
    since: Duration,
    /// Time of the next try.
    due: Duration,
    /// Reason of the last refusal, which was said.
    refused: Option<String>,
}

/// A member that is served.
struct Served {
    rule: InForce<Huge>,
    user: u32,
    /// Nothing has changed for some rounds.
    is_settled: bool,
    windows: Windows,
    extra_rss: Bytes,
    _held: ProcessLock,
}

/// The loop's callbacks.
struct Host<'a> {
    start: Instant,
    stop: Stop,
    members: Members,
    source: Source,
    observers: &'a Observers,
    board: &'a Board,
    events: Events,
    /// Fault of the rules that were read last.
    reload_failed: Option<String>,
    /// Windows of processes that have left, by rule.
    totals: BTreeMap<String, Windows>,
    /// Dropped behind streams.
    dropped: Bytes,
    waiting: BTreeMap<Pid, Waiting>,
    served: BTreeMap<Pid, Served>,
    /// Page cache of the members; `None` once the service ends.
    streaming: Option<Streaming>,
    arrived: Vec<Target>,
    /// Processes whose rule no longer asks for hot windows, or asks for other settings.
    released: Vec<Pid>,
    looked: Option<Instant>,
    /// A wait was cut short for the programs that arrived or were released since the last round.
    is_told: bool,
    /// It was said that there are more processes than are looked at.
    is_too_many: bool,
    priority: Priority,
}

impl Host<'_> {
    /// Looks for processes that came, left or changed, if it is time.
    fn look(&mut self) {
        self.reload();
        if self.board.is_asked() {
            self.board.answer(self.snapshot());
        }
        if self.looked.is_some_and(|looked| looked.elapsed() < LOOK_EVERY) {
            // A new member is small first.
            return self.try_all();
        }
        self.looked = Some(Instant::now());
        tell_manager(NotifyState::Watchdog);
        match self.members.look(&*HOST) {
            Ok(changes) => {
                self.note_left_out();
                for change in changes {
                    self.change(change.pid, change.now.huge);
                    self.change_cache(change.pid, change.now.cache);
                }
            }
            Err(error) => tracing::warn!(%error, "processes cannot be listed"),
        }
        self.tell_of_cache(self.streaming.as_ref().map(Streaming::news).unwrap_or_default());
        self.try_all();
    }

    fn snapshot(&self) -> Snapshot {
        let mut processes = Vec::new();
        for (pid, Waiting { rule, refused, .. }) in &self.waiting {
            let state = if refused.is_some() { State::Refused } else { State::Waiting };
            processes.push(of_process(*pid, Feature::Huge, &rule.rule, state, refused.clone()));
        }
        for (pid, served) in &self.served {
            let state = if served.is_settled { State::Settled } else { State::Served };
            let (windows, extra_rss_bytes) = (served.windows, served.extra_rss);
            let process = of_process(*pid, Feature::Huge, &served.rule.rule, state, None);
            processes.push(OfProcess { windows, extra_rss_bytes, ..process });
        }
        let streaming = self.streaming.iter().flat_map(Streaming::members);
        processes.extend(streaming.map(|(pid, rule)| of_process(pid, Feature::Cache, rule, State::Served, None)));
        processes.sort_by_key(|process| (process.pid, process.feature));
        let of_rule = |rule: &Rule| {
            let huge = rule.huge.iter().map(|huge| format!("huge pages {}", in_words(huge)));
            let cache = rule.cache.iter().map(|cache| format!("page cache {}", cache_in_words(*cache)));
            let mut windows = self.totals.get(&rule.name).copied().unwrap_or_default();
            let now = self.served.values().filter(|served| served.rule.rule == rule.name);
            now.for_each(|served| windows += served.windows);
            let effects = huge.chain(cache).collect();
            OfRule { name: rule.name.clone(), select: rule.select.to_string(), effects, windows }
        };
        Snapshot {
            run_s: self.start.elapsed().as_secs_f64(),
            cpu_s: linux::cpu_time::of_process().as_secs_f64(),
            reload_failed: self.reload_failed.clone(),
            cache_dropped_bytes: self.dropped,
            rules: self.members.config().rules.iter().map(of_rule).collect(),
            processes,
        }
    }

    /// Tries all new members, and some of those that were tried before, the youngest first.
    fn try_all(&mut self) {
        let now = self.start.elapsed();
        let due = self.waiting.iter().filter(|(_, waiting)| waiting.due <= now);
        let (new, mut old): (Vec<_>, Vec<_>) =
            due.map(|(pid, waiting)| (*pid, waiting)).partition(|(_, waiting)| waiting.due == Duration::ZERO);
        old.sort_by_key(|(_, waiting)| std::cmp::Reverse(waiting.since));
        let tried = new.into_iter().chain(old.into_iter().take(AGAIN_EACH_LOOK));
        let tried: Vec<Pid> = tried.map(|(pid, _)| pid).collect();
        tried.into_iter().for_each(|pid| self.try_in(pid));
    }

    fn note_left_out(&mut self) {
        let left_out = self.members.left_out();
        if left_out > 0 && !std::mem::replace(&mut self.is_too_many, true) {
            let text = format!("too many processes: {left_out} are not looked at");
            self.events.say("left-out", &text, json!({ "processes": left_out }));
        }
    }

    /// Reads the rules again, if asked to.
    fn reload(&mut self) {
        let read = self.source.reloaded().map(|read| read.map_err(Failure::new));
        match read.map(|read| read.and_then(can_serve)) {
            None => {}
            Some(Ok(config)) => {
                let rules = config.rules.len();
                self.members.reload(config);
                self.looked = None;
                self.reload_failed = None;
                self.events.say("reloaded", &format!("read again: {rules} rules"), json!({ "rules": rules }));
            }
            Some(Err(why)) => {
                let text = format!("the rules in force stay: {}", why.line());
                self.events.say("not-reloaded", &text, json!({ "reason": why.line() }));
                self.reload_failed = Some(why.line().to_owned());
            }
        }
    }

    fn change_cache(&mut self, pid: Pid, now: Option<InForce<Cache>>) {
        let first = self.streaming.as_mut().and_then(|streaming| streaming.change(pid, now));
        if let (Some(rule), Some(name)) = (first, name_of(&*HOST, pid)) {
            let text = format!("rule {rule}: page cache {}", cache_in_words(Cache::Drop));
            self.events.say_of("followed", pid, &name, &text, json!({ "rule": rule }));
        }
    }

    fn tell_of_cache(&mut self, news: Vec<News>) {
        for one in news {
            match one {
                News::Event(event) => {
                    if let Event::Dropped { bytes, .. } = *event {
                        self.dropped += bytes;
                    }
                    let fields = serde_json::to_value(&*event).unwrap_or_default();
                    let kind = fields["event"].as_str().unwrap_or_default().to_owned();
                    self.events.say(&kind, &event.to_string(), fields);
                }
                News::Refused(why) => {
                    let text = format!("streams are not followed: {}; {}", why.reason, why.remedy);
                    self.events.say("refused", &text, json!({ "reason": why.reason }));
                }
            }
        }
    }

    fn change(&mut self, pid: Pid, now: Option<InForce<Huge>>) {
        let of_served = self.served.get(&pid).filter(|_| !self.released.contains(&pid)).map(|served| &served.rule);
        let in_force = self.waiting.get(&pid).map(|waiting| &waiting.rule).or(of_served);
        if now.is_some() && now.as_ref() == in_force {
            return;
        }
        self.waiting.remove(&pid);
        if self.served.contains_key(&pid) && !self.released.contains(&pid) {
            self.released.push(pid);
        }
        if let Some(rule @ InForce { settings: Huge::Hot(hot), .. }) = now {
            self.waiting
                .insert(pid, Waiting { rule, hot, since: self.start.elapsed(), due: Duration::ZERO, refused: None });
        }
    }

    /// Takes in a member that is large enough, and not served any more by an old rule.
    fn try_in(&mut self, pid: Pid) {
        let now = self.start.elapsed();
        let Some(waiting) = self.waiting.get_mut(&pid) else { return };
        waiting.due = now + ((now - waiting.since) / 4).clamp(GROWN_EVERY[0], GROWN_EVERY[1]);
        let is_large = |status: status::Status| status.rss >= WORTH_IT || status.first_thread_ended();
        if self.served.contains_key(&pid) || !status::status(&*HOST, pid).is_ok_and(is_large) {
            return;
        }
        let (hot, rule) = (waiting.hot, waiting.rule.clone());
        match self.take_in(pid, hot) {
            Ok((target, held, user)) => {
                self.waiting.remove(&pid);
                let text = format!("rule {}: {}", rule.rule, in_words(&rule.settings));
                self.events.say_of("admitted", pid, &target.name, &text, json!({ "rule": rule.rule }));
                self.served.insert(
                    pid,
                    Served {
                        rule,
                        user,
                        is_settled: false,
                        windows: Windows::default(),
                        extra_rss: Bytes(0),
                        _held: held,
                    },
                );
                self.arrived.push(target);
            }
            Err(failure) => self.refuse(pid, &rule.rule, &failure),
        }
    }

    fn take_in(&self, pid: Pid, hot: Hot) -> Result<(Target, ProcessLock, u32), Failure> {
        if self.observers.backend == Backend::DamonVaddr && !self.served.is_empty() {
            return Err(Failure::new("not served: DAMON watches one process at a time"));
        }
        if self.served.len() >= SERVED_MOST {
            return Err(Failure::new(format!("not served: {SERVED_MOST} programs are")));
        }
        let status = admit(pid, Purpose::Attach)?;
        let of_user = self.served.values().filter(|served| served.user == status.uid).count();
        if status.uid != 0 && of_user >= OF_USER_MOST {
            return Err(Failure::new(format!("not served: {OF_USER_MOST} programs of user {} are", status.uid)));
        }
        let user = status.uid;
        let held = hold_silently(pid, Purpose::Attach)?;
        let policy = policy::Settings {
            max_extra_rss: hot.max_extra_rss,
            hot_fraction: hot.hot_fraction,
            settle_noise: Fraction::clamped(0.005),
            ..policy::PAPER
        };
        let (target, _) = open(self.observers, pid, status.name, policy)?;
        Ok((target, held, user))
    }

    /// Says once why a member is not served; a later try may succeed.
    fn refuse(&mut self, pid: Pid, rule: &str, failure: &Failure) {
        let now = self.start.elapsed();
        let Some(waiting) = self.waiting.get_mut(&pid) else { return };
        // A place may be free soon.
        let is_full = self.served.len() >= OF_USER_MOST;
        waiting.due = now + if is_full { PLACE_EVERY } else { AGAIN_AFTER };
        let is_first = waiting.refused.replace(failure.line().to_owned()).is_none();
        // Without a name it has ended.
        if let (true, Some(name)) = (is_first, name_of(&*HOST, pid)) {
            let text = format!("rule {rule}: {}", failure.line());
            self.events.say_of("refused", pid, &name, &text, json!({ "rule": rule, "reason": failure.line() }));
        }
    }

    /// Says once that a program has settled, with its totals.
    fn note_settled(&mut self, target: &Target) {
        let Some(served) = self.served.get_mut(&target.pid) else { return };
        (served.windows, served.extra_rss) = (windows_of(target), target.extra_rss());
        let is_settled = target.phase == Phase::Settled;
        if std::mem::replace(&mut served.is_settled, is_settled) || !is_settled {
            return;
        }
        let (rule, totals) = (&served.rule.rule, totals_in_words(target));
        let fields = totals_json(target, rule);
        self.events.say_of("settled", target.pid, &target.name, &format!("has settled; {totals}"), fields);
    }

    fn leaves(&mut self, target: &Target) {
        let rule = self.served.remove(&target.pid).map(|served| served.rule.rule).unwrap_or_default();
        *self.totals.entry(rule.clone()).or_default() += windows_of(target);
        let why = match (&target.failure, target.phase) {
            (Some(error), _) => format!("cannot be served any more: {error}"),
            (None, Phase::Ended) => "has ended".to_owned(),
            (None, _) => "is left as it is".to_owned(),
        };
        let text = format!("{why}; {}", totals_in_words(target));
        let mut fields = totals_json(target, &rule);
        fields["reason"] = json!(why);
        self.events.say_of("left", target.pid, &target.name, &text, fields);
    }
}

fn of_process(pid: Pid, feature: Feature, rule: &str, state: State, why: Option<String>) -> OfProcess {
    let name = name_of(&*HOST, pid).map(|name| name.to_string()).unwrap_or_default();
    let (windows, extra_rss_bytes) = (Windows::default(), Bytes(0));
    OfProcess { pid, name, feature, rule: rule.to_owned(), state, why, windows, extra_rss_bytes }
}

fn windows_of(target: &Target) -> Windows {
    let totals = &target.totals;
    Windows { promoted: totals.promoted, demoted: totals.demoted, refused: totals.refused }
}

fn totals_in_words(target: &Target) -> String {
    let totals = &target.totals;
    let extra = target.extra_rss();
    format!("promoted {}, split {}, refused {}; extra memory {extra}", totals.promoted, totals.demoted, totals.refused)
}

fn totals_json(target: &Target, rule: &str) -> Value {
    let totals = &target.totals;
    json!({
        "rule": rule, "windows_promoted": totals.promoted, "windows_demoted": totals.demoted,
        "promotions_refused": totals.refused, "extra_rss_bytes": target.extra_rss(),
    })
}

impl Control for Host<'_> {
    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    fn wait(&mut self, time: Duration) {
        let end = Instant::now() + time;
        loop {
            self.look();
            let left = end.saturating_duration_since(Instant::now());
            let is_news = self.has_arrivals() && !std::mem::replace(&mut self.is_told, true);
            if left.is_zero() || self.stop() || is_news {
                return;
            }
            std::thread::sleep(left.min(SLICE));
        }
    }

    fn stop(&self) -> bool {
        self.stop.is_set()
    }

    fn cpu_time(&self) -> Duration {
        linux::cpu_time::of_thread()
    }

    fn arrivals(&mut self) -> Vec<Target> {
        self.look();
        self.is_told = false;
        std::mem::take(&mut self.arrived)
    }

    fn has_arrivals(&self) -> bool {
        !self.arrived.is_empty() || !self.released.is_empty()
    }

    fn expects_arrivals(&self) -> bool {
        !self.stop()
    }

    fn keeps(&mut self, target: &Target) -> bool {
        !self.released.contains(&target.pid)
    }

    fn remove(&mut self, target: Target) -> Option<Target> {
        self.released.retain(|pid| *pid != target.pid);
        self.leaves(&target);
        None
    }

    fn set_urgent(&mut self, urgent: bool) {
        self.priority.set(urgent);
    }

    fn progress(&mut self, _: Doing, targets: &[Target]) {
        targets.iter().for_each(|target| self.note_settled(target));
    }
}
