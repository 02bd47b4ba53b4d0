//! Reports of observations, decisions and changes.

use std::collections::{BTreeMap, BTreeSet};

use linux::Pid;
use linux::resctrl::PREFIX;

use super::super::act::{Done, name_of};
use super::super::config::Whom;
use super::super::decide::Basis;
use super::super::host_ops::HostOps;
use super::super::layout::{Masks, Purpose};
use super::super::members::Members;
use super::super::number::counted;
use super::super::report::{Event, OfCache, OfGroup, OfSet, Slowdown, shown};
use super::super::sharing_groups::SharingGroups;
use super::super::steps::{Observed, Step};
use super::{Daemon, Refining, SHARED_PARTITIONS};

impl<W: HostOps> Daemon<W> {
    pub(super) fn report_members(&mut self, members: &Members, events: &mut Vec<Event>) {
        for (nth, processes) in members.programs.iter().enumerate() {
            let none = BTreeMap::new();
            let before = self.members.programs.get(nth).unwrap_or(&none);
            let began = processes.keys().filter(|pid| !before.contains_key(pid)).count();
            let gone: BTreeSet<Pid> = before.keys().filter(|pid| !processes.contains_key(pid)).copied().collect();
            let left = if gone.is_empty() { 0 } else { self.host.running(&gone).len() };
            let ended = gone.len() - left;
            if began + gone.len() == 0 {
                if processes.is_empty() && self.steps == 0 {
                    let why = match &self.config.programs[nth].whom {
                        Whom::Like(like) => format!("there are no processes {like} yet"),
                        Whom::Cgroup(name) => format!("control group {name} has no process yet"),
                        whom @ Whom::Pids(_) => match members.absent.get(&nth) {
                            Some(why) if !why.is_empty() => why.join("; "),
                            _ => format!("{whom}: no process that is not an earlier program's"),
                        },
                    };
                    self.report_missing(&self.config.programs[nth].name.clone(), &why, events);
                }
                continue;
            }
            let threads = processes.values().map(BTreeSet::len).sum();
            let program = self.config.programs[nth].name.clone();
            events.push(Event::Program { program, processes: processes.len(), threads, began, ended, left });
        }
        for (pid, nth) in &members.twice {
            let why = format!("process {pid} is an earlier program's already");
            self.report_missing(&format!("a part of {}", self.config.programs[*nth].name), &why, events);
        }
    }

    pub(super) fn take_sets(&mut self, sets: SharingGroups, events: &mut Vec<Event>) {
        let shown = |sets: &SharingGroups| -> Vec<OfSet> {
            let each = sets.sets.iter().map(|set| OfSet {
                domain: set.domain.clone(),
                programs: set.sharers.iter().map(|program| self.config.programs[*program].name.clone()).collect(),
                bytes: set.bytes(),
            });
            each.collect()
        };
        let (before, after) = (shown(&self.sets), shown(&sets));
        if before != after || self.sets.crossing != sets.crossing || self.steps == 0 {
            events.push(Event::Shared { sets: after, cross_domain_frames: sets.crossing.0 });
        }
        if let Some(why) = &sets.unread {
            self.report_missing(SHARED_PARTITIONS, why, events);
        }
        if let Some(who) = &sets.passed_over {
            self.report_missing("what is shared since the last look", who, events);
        }
        self.sets = sets;
    }

    pub(super) fn report_missing(&mut self, what: &str, why: &str, events: &mut Vec<Event>) {
        if self.reported.insert(format!("{what}: {why}")) {
            events.push(Event::Without { what: what.to_owned(), why: why.to_owned() });
        }
    }

    pub(super) fn report_not_done(&mut self, what: &str, why: &str, events: &mut Vec<Event>) {
        if self.reported.insert(format!("not {what}: {why}")) {
            events.push(Event::NotDone { what: what.to_owned(), why: why.to_owned() });
        }
    }

    pub(super) fn decided(&self) -> Event {
        let name = |program: &usize| self.config.programs[*program].name.clone();
        let mut groups = Vec::new();
        if let Some(desired) = &self.desired {
            for group in &desired.groups {
                let holds = match &group.purpose {
                    Purpose::Programs(programs) => programs.iter().map(name).collect(),
                    Purpose::SharedPartition(set) => vec![self.sets.sets[*set].domain.to_string()],
                };
                let masks = OfCache::all(&group.masks);
                groups.push(OfGroup {
                    group: format!("{PREFIX}{}", group.label),
                    holds,
                    masks,
                    exclusive: group.exclusive,
                });
            }
            let masks = OfCache::all(&desired.default_masks);
            groups.push(OfGroup { group: "the default group".to_owned(), holds: Vec::new(), masks, exclusive: false });
        }
        let slowdowns = self.decision.iter().flat_map(|decision| &decision.slowdowns);
        let slowdowns = slowdowns.map(|(nth, slowdown)| Slowdown { program: name(nth), slowdown: *slowdown }).collect();
        Event::Decided { policy: self.config.policy.to_string(), basis: self.basis(), groups, slowdowns }
    }

    fn basis(&self) -> String {
        let Some(decision) = &self.decision else { return String::new() };
        if let Some((nth, _)) = self.visit {
            return format!("visiting allocation {} to learn curves", nth + 1);
        }
        if self.refining.as_ref().is_some_and(Refining::is_first) {
            return "measuring without partitions first".to_owned();
        }
        let measured = if self.refining.is_some() { ", and what was measured under other plans" } else { "" };
        let partitions = if decision.partitions_by_size { ", shared partitions by size" } else { "" };
        match decision.basis {
            Basis::Nothing if decision.planned.iter().all(|planned| planned.programs.is_empty()) => {
                "with no program to divide between".to_owned()
            }
            Basis::Nothing => format!("which needs no curves{partitions}"),
            Basis::Configured => format!("by curves of the configuration{measured}{partitions}"),
            Basis::Learned => format!("by learned curves{measured}{partitions}"),
            Basis::NoCurve(program) => {
                let why = self.uncounted.as_ref().map_or(String::new(), |why| format!(" ({why})"));
                let name = &self.config.programs[program].name;
                format!("without curves, since {name} has none{why}: equal ways{partitions}")
            }
        }
    }

    /// Notes the groups of other tools in which moved threads were, and whether masu had moved them before.
    fn came_from(&mut self, label: &str, threads: &BTreeSet<Pid>, observed: &Observed, moved: &mut MovedTo) {
        if label.is_empty() {
            self.placed.retain(|thread| !threads.contains(thread));
            return;
        }
        for (name, group) in observed.iter().filter(|(name, group)| !group.ours && !name.is_empty()) {
            let mut here = threads.intersection(&group.threads).peekable();
            if here.peek().is_some() {
                self.origins.insert(name.clone());
                let again = here.any(|thread| self.placed.contains(thread));
                *moved.from.entry(label.to_owned()).or_default().entry(name.clone()).or_default() |= again;
            }
        }
        self.placed.extend(threads);
    }

    /// Differences of the groups from how masu left them, in words that follow a step. A cache that has gone offline
    /// is none.
    pub(super) fn changes_by_others(&self, observed: &Observed) -> BTreeMap<String, String> {
        let change = |(label, (masks, exclusive)): (&String, &(Masks, bool))| {
            let Some(group) = observed.get(label) else {
                return Some((label.clone(), ": another tool had removed it".to_owned()));
            };
            let differ = group.masks.iter().filter(|(cache, mask)| masks.get(cache).is_some_and(|ours| ours != *mask));
            let differ: Masks = differ.map(|(cache, mask)| (*cache, *mask)).collect();
            let words = if !differ.is_empty() {
                format!(": another tool had set them to {}", shown(&OfCache::all(&differ)))
            } else if group.exclusive != *exclusive {
                ": another tool had changed its mode".to_owned()
            } else {
                return None;
            };
            Some((label.clone(), words))
        };
        self.as_left.iter().filter_map(change).collect()
    }

    /// Notes the state after a step. `found` are the masks read back.
    fn leave(&mut self, step: &Step, found: Option<Masks>) {
        match step {
            Step::Make(label) => drop(self.as_left.insert(label.clone(), (Masks::new(), false))),
            Step::Remove(label) => drop(self.as_left.remove(label)),
            Step::Masks(label, _) => self.as_left.entry(label.clone()).or_default().0 = found.unwrap_or_default(),
            Step::Exclusive(label, exclusive) => self.as_left.entry(label.clone()).or_default().1 = *exclusive,
            Step::Process(..) | Step::Thread(..) | Step::WarmUp(..) => {}
        }
    }

    pub(super) fn report_done(
        &mut self,
        step: &Step,
        done: &Done,
        observed: &Observed,
        moved: &mut MovedTo,
        events: &mut Vec<Event>,
    ) {
        let mut found = None;
        if let Step::Masks(label, asked) = step {
            self.adjusted.remove(label);
            let found = found.insert(asked.clone());
            for difference in &done.differences {
                if let Some(mask) = difference.found.as_ref().and_then(|text| text.parse().ok()) {
                    found.insert(difference.domain, mask);
                }
            }
            if found != asked {
                let text = |masks: &Masks| shown(&OfCache::all(masks));
                events.push(Event::Differs { group: name_of(label), asked: text(asked), found: text(found) });
                self.adjusted.insert(label.clone(), (asked.clone(), found.clone()));
            }
        }
        self.leave(step, found);
        match step {
            Step::WarmUp(..) => {} // joins as a thread, as soon as it exists
            Step::Process(label, _, threads) => {
                moved.add(label, 1, done);
                self.came_from(label, threads, observed, moved);
            }
            Step::Thread(label, thread) => {
                moved.add(label, 0, done);
                self.came_from(label, &[*thread].into(), observed, moved);
            }
            Step::Make(_) | Step::Remove(_) | Step::Masks(..) | Step::Exclusive(..) => {
                let undone = self.changed_by_others.remove(step.label()).unwrap_or_default();
                events.push(Event::Done { what: format!("{step}{undone}"), threads: 0, ended: 0, from: Vec::new() });
            }
        }
        if done.unsettled {
            let why = "it makes threads faster than they are moved";
            self.report_not_done(&format!("put all threads of a process into {}", name_of(step.label())), why, events);
        }
    }
}

/// Moves into each group.
#[derive(Debug, Default)]
pub(super) struct MovedTo {
    /// Processes, threads, and those that ended before.
    counts: BTreeMap<String, (usize, usize, usize)>,
    /// Groups of other tools from which they came; true if masu had moved one of them before.
    from: BTreeMap<String, BTreeMap<String, bool>>,
}

impl MovedTo {
    fn add(&mut self, label: &str, processes: usize, done: &Done) {
        let of = self.counts.entry(label.to_owned()).or_default();
        // A process that ended before is not counted.
        of.0 += if done.threads > 0 { processes } else { 0 };
        (of.1, of.2) = (of.1 + done.threads, of.2 + done.ended);
    }

    /// Adds a line for each group.
    pub(super) fn tell(self, events: &mut Vec<Event>) {
        let MovedTo { counts, mut from } = self;
        for (label, (processes, threads, ended)) in counts.into_iter().filter(|(_, (_, threads, _))| *threads > 0) {
            let from = from.remove(&label).unwrap_or_default();
            let who = match processes {
                0 => counted(threads, "thread"),
                _ => format!("{}, {},", counted(processes, "process"), counted(threads, "thread")),
            };
            let group = if label.is_empty() { name_of(&label) } else { format!("group {}", name_of(&label)) };
            let what = format!("put {who} into {group}{}", origin(&from));
            events.push(Event::Done { what, threads, ended, from: from.into_keys().collect() });
        }
    }
}

/// `, out of group pods`, or `, back from group pods, where another tool had put some`
fn origin(from: &BTreeMap<String, bool>) -> String {
    let names = |again: bool| {
        let names: Vec<&str> = from.iter().filter(|(_, of)| **of == again).map(|(name, _)| name.as_str()).collect();
        names.join(", ")
    };
    let (first, again) = (names(false), names(true));
    let first = if first.is_empty() { first } else { format!(", out of group {first}") };
    if again.is_empty() {
        first
    } else {
        format!("{first}, back from group {again}: another tool had moved them there")
    }
}
