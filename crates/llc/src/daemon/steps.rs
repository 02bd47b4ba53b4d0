//! From the groups that are there to those that are wanted: which steps, in which order.
//!
//! Pure. The order keeps what the kernel wants of each step, and that no program allocates in a region while it is one:
//!
//! 1. groups of ours that nobody wants any more go; their threads fall to the default group;
//! 2. what is exclusive and is not to be is opened; every group shrinks to what it has and is to keep, the default group first: a new group gets what is free;
//! 3. new groups are made;
//! 4. masks move, each only when its new ways are in nobody's exclusive ones, and those of an exclusive group only to where nobody
//!    else is. Where two wait for each other, one steps aside to the ways of the default group;
//! 5. regions become exclusive;
//! 6. processes come in, and the threads that refill.
//!
//! To take everything down is the reverse: processes leave with their groups, and the default group has its ways back.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use linux::Pid;
use linux::resctrl::{CacheId, PREFIX};
use units::{WayMask, Ways};

use super::arrange::{Masks, Wanted};
use super::report::{OfCache, shown};

/// One change of the file system. Groups are named by their labels; none is the default group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// A group is made.
    Make(String),
    /// One of ours is removed.
    Remove(String),
    /// The ways of a group; that without a name is the default group.
    Masks(String, Masks),
    /// Nobody else may allocate in its ways any more, or others may again.
    Exclusive(String, bool),
    /// These threads of a process come into a group, and those that it makes meanwhile.
    Process(String, Pid, BTreeSet<Pid>),
    /// A thread of nobody's any more goes to the default group, or one of ours comes into a region.
    Thread(String, Pid),
    /// The thread that refills the region in this cache comes in, as soon as it is there.
    Refilling(String, CacheId),
}

/// In words, for what was done or not: `make group masu-web`.
impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of = |label: &String| match label.as_str() {
            "" => "the default group".to_owned(),
            label => format!("group {PREFIX}{label}"),
        };
        match self {
            Step::Make(label) => write!(f, "make {}", of(label)),
            Step::Remove(label) => write!(f, "remove {}", of(label)),
            Step::Masks(label, masks) => {
                write!(f, "give {} ways {}", of(label), shown(&OfCache::all(masks)))
            }
            Step::Exclusive(label, true) => write!(f, "make the ways of {} its own", of(label)),
            Step::Exclusive(label, false) => write!(f, "let others into the ways of {}", of(label)),
            Step::Process(label, pid, _) => write!(f, "put process {pid} into {}", of(label)),
            Step::Thread(label, thread) => write!(f, "put thread {thread} into {}", of(label)),
            Step::Refilling(label, cache) => {
                write!(f, "put the thread that refills cache {} into {}", cache.0, of(label))
            }
        }
    }
}

impl Step {
    /// The group that it is about.
    pub fn label(&self) -> &str {
        match self {
            Step::Make(label) | Step::Remove(label) | Step::Masks(label, _) | Step::Exclusive(label, _) => label,
            Step::Process(label, ..) | Step::Thread(label, _) | Step::Refilling(label, _) => label,
        }
    }
}

/// A group as it is there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Present {
    /// Its ways.
    pub masks: Masks,
    /// Nobody else may allocate in them.
    pub exclusive: bool,
    /// Who is in it; not looked at in the default group.
    pub threads: BTreeSet<Pid>,
    /// It is one of ours: others are left as they are.
    pub ours: bool,
}

/// All groups that are there, by label, those of others by name; the default group, which is always there, by none.
pub type Standing = BTreeMap<String, Present>;

/// The steps from `standing` to `wanted`. `refilling` says which threads of ours are there already.
pub fn steps(
    standing: &Standing,
    wanted: &Wanted,
    refilling: &BTreeMap<(String, CacheId), Pid>,
    ways_min: Ways,
) -> Vec<Step> {
    let mut steps = Vec::new();
    let targets = targets(wanted);
    for (name, _) in standing.iter().filter(|(name, group)| group.ours && !targets.contains_key(name.as_str())) {
        steps.push(Step::Remove(name.clone()));
    }
    let mut places: BTreeMap<String, Place> = standing
        .iter()
        .filter(|(name, group)| !group.ours || targets.contains_key(name.as_str()))
        .map(|(name, group)| (name.clone(), Place { masks: Some(group.masks.clone()), exclusive: group.exclusive }))
        .collect();
    for group in wanted.groups.iter().filter(|group| !group.exclusive) {
        if let Some(place) = places.get_mut(&group.label).filter(|place| place.exclusive) {
            steps.push(Step::Exclusive(group.label.clone(), false));
            place.exclusive = false;
        }
    }
    shrink(&mut places, &targets, ways_min, &mut steps);
    for group in wanted.groups.iter().filter(|group| !standing.contains_key(&group.label)) {
        steps.push(Step::Make(group.label.clone()));
        places.insert(group.label.clone(), Place { masks: None, exclusive: false });
    }
    move_masks(&mut places, wanted, &targets, &mut steps);
    for group in &wanted.groups {
        if places.get(&group.label).is_some_and(|place| place.exclusive != group.exclusive) {
            steps.push(Step::Exclusive(group.label.clone(), group.exclusive));
        }
    }
    threads(standing, wanted, refilling, &mut steps);
    steps
}

/// The steps that take all of ours down; `rest` is what the default group had.
pub fn undo(standing: &Standing, rest: &Masks) -> Vec<Step> {
    let ours = standing.iter().filter(|(_, group)| group.ours);
    // The exclusive ones first, as they came last.
    let (mut exclusive, mut others): (Vec<_>, Vec<_>) = ours.partition(|(_, group)| group.exclusive);
    exclusive.append(&mut others);
    let mut steps: Vec<Step> = exclusive.into_iter().map(|(name, _)| Step::Remove(name.clone())).collect();
    if standing.get("").is_some_and(|group| group.masks != *rest) {
        steps.push(Step::Masks(String::new(), rest.clone()));
    }
    steps
}

/// Where a group stands while others move. What a new one has is not known before it is there.
struct Place {
    masks: Option<Masks>,
    exclusive: bool,
}

/// The masks that are wanted of each group, the default group among them.
fn targets(wanted: &Wanted) -> BTreeMap<&str, &Masks> {
    let groups = wanted.groups.iter().map(|group| (group.label.as_str(), &group.masks));
    std::iter::once(("", &wanted.rest)).chain(groups).collect()
}

/// Where what a group has and what it is to have have enough ways in common, it shrinks to those.
fn shrink(
    places: &mut BTreeMap<String, Place>,
    targets: &BTreeMap<&str, &Masks>,
    ways_min: Ways,
    steps: &mut Vec<Step>,
) {
    for (name, target) in targets {
        let Some(place) = places.get_mut(*name) else { continue };
        let Some(masks) = &mut place.masks else { continue };
        let common = masks.iter().map(|(cache, mask)| {
            let both = mask.and(target.get(cache).copied().unwrap_or(WayMask::NONE));
            (*cache, both)
        });
        let common: Masks = common.collect();
        let holds = |mask: &WayMask| mask.is_contiguous() && mask.ways() >= ways_min && !mask.is_empty();
        if common != *masks && common.values().all(holds) {
            steps.push(Step::Masks((*name).to_owned(), common.clone()));
            *masks = common;
        }
    }
}

/// Brings all masks to where they are wanted.
fn move_masks(
    places: &mut BTreeMap<String, Place>,
    wanted: &Wanted,
    targets: &BTreeMap<&str, &Masks>,
    steps: &mut Vec<Step>,
) {
    // The default group first; then in the order in which groups are made. One that is not there does not move.
    let all = std::iter::once("").chain(wanted.groups.iter().map(|group| group.label.as_str()));
    let order: Vec<&str> = all.filter(|name| places.contains_key(*name)).collect();
    let is_there = |places: &BTreeMap<String, Place>, name: &str| {
        places.get(name).is_some_and(|place| place.masks.as_ref() == Some(targets[name]))
    };
    let mut aside: BTreeSet<&str> = BTreeSet::new();
    loop {
        let waiting: Vec<&str> = order.iter().copied().filter(|name| !is_there(places, name)).collect();
        let Some(first) = waiting.first() else { return };
        if let Some(free) = waiting.iter().copied().find(|name| may_move(places, name, targets[name])) {
            steps.push(Step::Masks(free.to_owned(), targets[free].clone()));
            if let Some(place) = places.get_mut(free) {
                place.masks = Some(targets[free].clone());
            }
            continue;
        }
        // Everybody waits for somebody: one steps aside, none twice.
        let Some(shy) = waiting.iter().copied().find(|name| !name.is_empty() && !aside.contains(name)) else {
            // Others are in the way: the kernel will say no to this one, which is then reported.
            steps.push(Step::Masks((*first).to_owned(), targets[first].clone()));
            if let Some(place) = places.get_mut(*first) {
                place.masks = Some(targets[first].clone());
            }
            continue;
        };
        aside.insert(shy);
        let refuge = places.get("").and_then(|place| place.masks.clone()).unwrap_or_default();
        let Some(place) = places.get_mut(shy) else { continue };
        if place.exclusive {
            steps.push(Step::Exclusive(shy.to_owned(), false));
            place.exclusive = false;
        }
        if place.masks.as_ref() != Some(&refuge) {
            steps.push(Step::Masks(shy.to_owned(), refuge.clone()));
            place.masks = Some(refuge);
        }
    }
}

/// Would the kernel let this group have these ways now? Where somebody stands is not known means: anywhere but in exclusive ways.
fn may_move(places: &BTreeMap<String, Place>, name: &str, target: &Masks) -> bool {
    let Some(own) = places.get(name) else { return false };
    places.iter().filter(|(other, _)| *other != name).all(|(_, other)| match &other.masks {
        Some(masks) if own.exclusive || other.exclusive => {
            !target.iter().any(|(cache, mask)| masks.get(cache).is_some_and(|theirs| theirs.overlaps(*mask)))
        }
        Some(_) => true,
        None => !own.exclusive,
    })
}

/// Everybody into their group, and out of ours who belongs to nobody any more.
fn threads(standing: &Standing, wanted: &Wanted, refilling: &BTreeMap<(String, CacheId), Pid>, steps: &mut Vec<Step>) {
    let mut at_home: BTreeSet<Pid> = BTreeSet::new();
    let nobody = BTreeSet::new();
    for group in &wanted.groups {
        let there = standing.get(&group.label).map_or(&nobody, |there| &there.threads);
        for (pid, threads) in &group.processes {
            at_home.extend(threads);
            let missing: BTreeSet<Pid> = threads.difference(there).copied().collect();
            if !missing.is_empty() {
                steps.push(Step::Process(group.label.clone(), *pid, missing));
            }
        }
        for cache in &group.refilled {
            match refilling.get(&(group.label.clone(), *cache)) {
                None => steps.push(Step::Refilling(group.label.clone(), *cache)),
                Some(thread) => {
                    at_home.insert(*thread);
                    if !there.contains(thread) {
                        steps.push(Step::Thread(group.label.clone(), *thread));
                    }
                }
            }
        }
    }
    let kept = |label: &String| wanted.groups.iter().any(|group| group.label == *label);
    for (_, group) in standing.iter().filter(|(label, group)| group.ours && kept(label)) {
        for thread in group.threads.difference(&at_home) {
            steps.push(Step::Thread(String::new(), *thread));
        }
    }
}

#[cfg(test)]
pub(super) mod tests;
