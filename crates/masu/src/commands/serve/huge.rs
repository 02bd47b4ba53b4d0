//! Huge pages of the members: the loop of `masu attach`, with programs that come and go.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use access::Backend;
use access::process_events::{Fetched, ProcessEvents};
use aging::report::Event;
use hugepages::attach::{Control, Doing, ROUND_MIN, Settings, Until, attach};
use hugepages::target::{Phase, Target};
use hugepages::{policy, rate_limiter};
use linux::process_lock::ProcessLock;
use linux::{Pid, status};
use sd_notify::NotifyState;
use serde_json::json;
use serve::config::{Cache, Config, Hot, Huge, Rule};
use serve::groups::Groups;
use serve::members::{Change, Members, Turn};
use serve::rules::InForce;
use serve::snapshot::{Feature, OfProcess, OfRule, Snapshot, State, Windows};
use units::{Bytes, Fraction};

use super::board::Board;
use super::cache::{News, Streaming};
use super::events::Events;
use super::export::Export;
use super::shown::{heat_of, of_process, totals_in_words, totals_json, windows_of};
use super::{Source, cache_in_words, check_host, discovery, in_words, name_of, shown_name};
use crate::commands::attach::open;
use crate::failure::Failure;
use crate::open::{Observers, Purpose, admit, hold_silently};
use crate::priority::Priority;
use crate::terminal::clock::Stop;
use crate::{Done, HOST};

/// Time between two looks for processes.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Time between two lists of all processes, where the kernel tells which of them start and change.
const LIST_EVERY: Duration = Duration::from_secs(10);
/// Turns of the processes that are not young, for looks at these intervals: 20 s and a minute.
const POLLING: Turn = Turn { looks: 40, most: 25 };
const TOLD: Turn = Turn { looks: 6, most: 400 };
/// Time between two looks at the heat of a program's memory.
const HEAT_EVERY: Duration = Duration::from_secs(5);
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
    let export = Some(Export::begin(&members.config().service)?);
    let settings =
        Settings { rate: rate_limiter::MEASURED, until: Until::Stopped, dry_run: false, round_min: ROUND_MIN };
    let mut events = Events::new(json);
    let rules = members.config().rules.len();
    let told =
        discovery::events().inspect_err(|why| tracing::info!(reason = why.reason, "no events of processes")).ok();
    let discovery = if told.is_some() { discovery::EVENTS } else { discovery::LISTS };
    let by = if rules == 0 { "measuring only, without rules".to_owned() } else { format!("serving by {rules} rules") };
    let text = format!("{by}, observing by {}, finding processes by {discovery}", observers.backend);
    events.say("serving", &text, json!({ "rules": rules, "backend": observers.backend, "discovery": discovery }));
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
        export,
        groups: Groups::default(),
        waiting: BTreeMap::new(),
        served: BTreeMap::new(),
        streaming,
        arrived: Vec::new(),
        released: Vec::new(),
        told,
        looked: None,
        listed: None,
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
    host.export.take().into_iter().for_each(Export::end);
    let rest = host.streaming.take().map(Streaming::end);
    host.tell_of_cache(rest.unwrap_or_default());
    Ok(host.events.done())
}

/// The configuration, if this host has what its rules ask for.
fn can_serve(config: Config) -> Result<Config, Failure> {
    check_host(&config).map(|()| config)
}

fn is_due(last: Option<Instant>, every: Duration) -> bool {
    last.is_none_or(|last| last.elapsed() >= every)
}

/// Tells systemd, if it started this process.
fn tell_manager(state: NotifyState<'_>) {
    // Nobody listens: the manager decides what a lost message means.
    let _ = sd_notify::notify(false, &[state]);
}

/// A member that is not served yet.
struct Waiting {
    name: String,
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
    name: String,
    rule: InForce<Huge>,
    user: u32,
    /// Nothing has changed for some rounds.
    is_settled: bool,
    windows: Windows,
    extra_rss: Bytes,
    heat: Vec<f64>,
    heat_at: Option<Instant>,
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
    /// Groups, page and history; `None` once the service ends.
    export: Option<Export>,
    /// Groups, as measured last.
    groups: Groups,
    waiting: BTreeMap<Pid, Waiting>,
    served: BTreeMap<Pid, Served>,
    /// Page cache of the members; `None` once the service ends.
    streaming: Option<Streaming>,
    arrived: Vec<Target>,
    /// Processes whose rule no longer asks for hot windows, or asks for other settings.
    released: Vec<Pid>,
    /// Events of processes; `None` where the kernel tells none.
    told: Option<ProcessEvents>,
    looked: Option<Instant>,
    listed: Option<Instant>,
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
        let is_time = is_due(self.looked, LOOK_EVERY);
        for change in self.changes(is_time) {
            self.change(change.pid, change.now.huge);
            self.change_cache(change.pid, change.now.cache);
        }
        // A new member is small first.
        self.try_all();
        if is_time {
            self.looked = Some(Instant::now());
            tell_manager(NotifyState::Watchdog);
            self.tell_of_cache(self.streaming.as_ref().map(Streaming::news).unwrap_or_default());
            self.export();
        }
    }

    /// Processes with other rules than before: of all, if it is time for a list, else of the ones with events.
    fn changes(&mut self, is_time: bool) -> Vec<Change> {
        let fetched = self.told.as_mut().map(ProcessEvents::fetch);
        let (list_every, turn) = if self.told.is_some() { (LIST_EVERY, TOLD) } else { (LOOK_EVERY, POLLING) };
        let told = match fetched {
            None => BTreeSet::new(),
            Some(Ok(Fetched { processes, lost: 0 })) => processes,
            Some(Ok(_)) => {
                self.listed = None;
                BTreeSet::new()
            }
            Some(Err(why)) => {
                tracing::warn!(reason = why.reason, "no events of processes");
                self.told = None;
                BTreeSet::new()
            }
        };
        let mut changes = self.members.look_at(&*HOST, told, is_time);
        if is_time && is_due(self.listed, list_every) {
            self.listed = Some(Instant::now());
            match self.members.look(&*HOST, turn) {
                Ok(more) => changes.extend(more),
                Err(error) => tracing::warn!(%error, "processes cannot be listed"),
            }
            self.note_left_out();
        }
        changes
    }

    /// Publishes a new measurement of the groups, with all else.
    fn export(&mut self) {
        let Some(mut export) = self.export.take() else { return };
        let mut lines = Vec::new();
        export.news(&mut lines);
        let measured = export.measured(&mut lines);
        for line in lines {
            self.events.say(line.event, &line.text, line.fields);
        }
        if let Some(groups) = measured {
            self.groups = groups;
            export.publish(self.snapshot());
        }
        self.export = Some(export);
    }

    fn snapshot(&self) -> Snapshot {
        let mut processes = Vec::new();
        for (pid, Waiting { name, rule, refused, .. }) in &self.waiting {
            let state = if refused.is_some() { State::Refused } else { State::Waiting };
            let why = refused.clone();
            processes.push(OfProcess { why, ..of_process(*pid, name, Feature::Huge, &rule.rule, state) });
        }
        for (pid, served) in &self.served {
            let state = if served.is_settled { State::Settled } else { State::Served };
            let (windows, extra_rss_bytes, heat) = (served.windows, served.extra_rss, served.heat.clone());
            let process = of_process(*pid, &served.name, Feature::Huge, &served.rule.rule, state);
            processes.push(OfProcess { windows, extra_rss_bytes, heat, ..process });
        }
        let streaming = self.streaming.iter().flat_map(Streaming::members);
        let of_stream = |(pid, name, rule)| of_process(pid, name, Feature::Cache, rule, State::Served);
        processes.extend(streaming.map(of_stream));
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
            groups: self.groups.clone(),
            events: self.events.latest(),
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
                let changed = self.export.as_mut().map_or(Ok(()), |export| export.change(&config.service));
                if let Err(error) = changed {
                    tracing::warn!(%error, "the page and the history keep their settings");
                }
                self.members.reload(config);
                (self.looked, self.listed) = (None, None);
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
            let (name, since) = (shown_name(pid), self.start.elapsed());
            self.waiting.insert(pid, Waiting { name, rule, hot, since, due: Duration::ZERO, refused: None });
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
                        name: target.name.to_string(),
                        rule,
                        user,
                        is_settled: false,
                        windows: Windows::default(),
                        extra_rss: Bytes(0),
                        heat: Vec::new(),
                        heat_at: None,
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
        if is_due(served.heat_at, HEAT_EVERY) {
            (served.heat, served.heat_at) = (heat_of(target), Some(Instant::now()));
        }
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
