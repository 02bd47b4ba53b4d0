//! Reports of observations, decisions and changes.

use std::collections::{BTreeMap, BTreeSet};

use linux::resctrl::PREFIX;

use super::super::act::{Done, name_of};
use super::super::config::Whom;
use super::super::decide::Basis;
use super::super::host_ops::HostOps;
use super::super::layout::{Masks, Purpose};
use super::super::members::Members;
use super::super::number::counted;
use super::super::report::{Event, OfCache, OfGroup, OfSet, Slowdown, shown};
use super::super::sets::Sets;
use super::super::steps::Step;
use super::{Daemon, REGIONS, Refining};

impl<W: HostOps> Daemon<W> {
    pub(super) fn tell_members(&mut self, members: &Members, events: &mut Vec<Event>) {
        for (nth, processes) in members.programs.iter().enumerate() {
            let none = BTreeMap::new();
            let before = self.members.programs.get(nth).unwrap_or(&none);
            let began = processes.keys().filter(|pid| !before.contains_key(pid)).count();
            let ended = before.keys().filter(|pid| !processes.contains_key(pid)).count();
            if began + ended == 0 {
                if processes.is_empty() && self.steps == 0 {
                    let why = match &self.config.programs[nth].whom {
                        Whom::Like(like) => format!("there are no processes {like} yet"),
                        Whom::Cgroup(name) => format!("control group {name} has no process yet"),
                        whom @ Whom::Pids(_) => format!("{whom} ended already"),
                    };
                    self.say_without(&self.config.programs[nth].name.clone(), &why, events);
                }
                continue;
            }
            let threads = processes.values().map(BTreeSet::len).sum();
            let program = self.config.programs[nth].name.clone();
            events.push(Event::Program { program, processes: processes.len(), threads, began, ended });
        }
        for (pid, nth) in &members.twice {
            let why = format!("process {pid} is an earlier program's already");
            self.say_without(&format!("a part of {}", self.config.programs[*nth].name), &why, events);
        }
    }

    pub(super) fn take_sets(&mut self, sets: Sets, events: &mut Vec<Event>) {
        let shown = |sets: &Sets| -> Vec<OfSet> {
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
            self.say_without(REGIONS, why, events);
        }
        if let Some(who) = &sets.passed_over {
            self.say_without("what is shared since the last look", who, events);
        }
        self.sets = sets;
    }

    pub(super) fn say_without(&mut self, what: &str, why: &str, events: &mut Vec<Event>) {
        if self.said.insert(format!("{what}: {why}")) {
            events.push(Event::Without { what: what.to_owned(), why: why.to_owned() });
        }
    }

    pub(super) fn say_not_done(&mut self, what: &str, why: &str, events: &mut Vec<Event>) {
        if self.said.insert(format!("not {what}: {why}")) {
            events.push(Event::NotDone { what: what.to_owned(), why: why.to_owned() });
        }
    }

    pub(super) fn decided(&self) -> Event {
        let name = |program: &usize| self.config.programs[*program].name.clone();
        let mut groups = Vec::new();
        if let Some(wanted) = &self.wanted {
            for group in &wanted.groups {
                let holds = match &group.purpose {
                    Purpose::Programs(programs) => programs.iter().map(name).collect(),
                    Purpose::Region(set) => vec![self.sets.sets[*set].domain.to_string()],
                };
                let masks = OfCache::all(&group.masks);
                groups.push(OfGroup {
                    group: format!("{PREFIX}{}", group.label),
                    holds,
                    masks,
                    exclusive: group.exclusive,
                });
            }
            let masks = OfCache::all(&wanted.rest);
            groups.push(OfGroup { group: "the rest".to_owned(), holds: Vec::new(), masks, exclusive: false });
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
        let regions = if decision.regions_by_size { ", regions by what is shared" } else { "" };
        match decision.basis {
            Basis::Nothing if decision.planned.iter().all(|planned| planned.programs.is_empty()) => {
                "with no program to divide between".to_owned()
            }
            Basis::Nothing => format!("which wants no curves{regions}"),
            Basis::Configured => format!("by curves of the configuration{measured}{regions}"),
            Basis::Learned => format!("by curves that were learned here{measured}{regions}"),
            Basis::NoCurve(program) => {
                let why = self.counts.as_ref().err().map_or(String::new(), |why| format!(" ({why})"));
                let name = &self.config.programs[program].name;
                format!("without curves, since {name} has none{why}: equal ways{regions}")
            }
        }
    }

    pub(super) fn tell_done(&mut self, step: &Step, done: &Done, moved: &mut MovedTo, events: &mut Vec<Event>) {
        if let Step::Masks(label, asked) = step {
            self.made_of.remove(label);
            let mut found = asked.clone();
            for difference in &done.differences {
                if let Some(mask) = difference.found.as_ref().and_then(|text| text.parse().ok()) {
                    found.insert(difference.domain, mask);
                }
            }
            if found != *asked {
                let text = |masks: &Masks| shown(&OfCache::all(masks));
                events.push(Event::Differs { group: name_of(label), asked: text(asked), found: text(&found) });
                self.made_of.insert(label.clone(), (asked.clone(), found));
            }
        }
        match step {
            Step::Refilling(..) => {} // joins as a thread, as soon as it exists
            Step::Process(label, ..) => moved.add(label, 1, done),
            Step::Thread(label, _) => moved.add(label, 0, done),
            Step::Make(_) | Step::Remove(_) | Step::Masks(..) | Step::Exclusive(..) => {
                events.push(Event::Done { what: step.to_string(), threads: 0, ended: 0 });
            }
        }
        if done.unsettled {
            let why = "it makes threads faster than they are moved";
            self.say_not_done(&format!("put all threads of a process into {}", name_of(step.label())), why, events);
        }
    }
}

/// Moves: by group its processes, threads, and those that ended before.
#[derive(Debug, Default)]
pub(super) struct MovedTo(BTreeMap<String, (usize, usize, usize)>);

impl MovedTo {
    fn add(&mut self, label: &str, processes: usize, done: &Done) {
        let of = self.0.entry(label.to_owned()).or_default();
        // A process that ended before is not counted.
        of.0 += if done.threads > 0 { processes } else { 0 };
        (of.1, of.2) = (of.1 + done.threads, of.2 + done.ended);
    }

    /// Adds a line for each group.
    pub(super) fn tell(self, events: &mut Vec<Event>) {
        for (label, (processes, threads, ended)) in self.0.into_iter().filter(|(_, (_, threads, _))| *threads > 0) {
            let who = match processes {
                0 => counted(threads, "thread"),
                _ => format!("{}, {},", counted(processes, "process"), counted(threads, "thread")),
            };
            let group = if label.is_empty() { name_of(&label) } else { format!("group {}", name_of(&label)) };
            events.push(Event::Done { what: format!("put {who} into {group}"), threads, ended });
        }
    }
}
