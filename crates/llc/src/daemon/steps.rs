//! Diff from observed to desired groups: ordered steps.
//!
//! Pure. The order meets the kernel's conditions for each step, and no program allocates in a shared partition while
//! it is one:
//!
//! 1. obsolete masu groups are removed; their threads fall to the default group;
//! 2. groups that must no longer be exclusive are opened; every group shrinks to the ways that it has and keeps, the
//!    default group first: a new group gets free ways;
//! 3. new groups are made;
//! 4. masks move, each only when its new ways are in no exclusive group, and those of an exclusive group only to ways
//!    of no other group. Where two wait for each other, one steps aside to the ways of the default group;
//! 5. shared partitions become exclusive;
//! 6. processes join, and the warm-up threads.
//!
//! Removing everything is the reverse: processes leave with their groups, and the default group has its ways back.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use linux::Pid;
use linux::resctrl::{CacheId, PREFIX};
use units::{WayMask, Ways};

use super::layout::{Desired, Masks};
use super::report::{OfCache, shown};

/// One change of the file system. Groups are named by their labels; the empty label is the default group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Makes a group.
    Make(String),
    /// Removes a masu group.
    Remove(String),
    /// Sets the ways of a group; the empty name is the default group.
    Masks(String, Masks),
    /// Makes the ways of a group exclusive (true) or shareable (false).
    Exclusive(String, bool),
    /// Moves these threads of a process into a group, and those that it makes meanwhile.
    Process(String, Pid, BTreeSet<Pid>),
    /// Moves an orphaned thread to the default group, or a masu thread into a shared partition.
    Thread(String, Pid),
    /// Moves the warm-up thread of this cache into the partition, as soon as it exists.
    Refilling(String, CacheId),
}

/// In words, for reports: `make group masu-web`.
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
    /// Label of the group.
    pub fn label(&self) -> &str {
        match self {
            Step::Make(label) | Step::Remove(label) | Step::Masks(label, _) | Step::Exclusive(label, _) => label,
            Step::Process(label, ..) | Step::Thread(label, _) | Step::Refilling(label, _) => label,
        }
    }
}

/// Observed group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Present {
    /// Its ways.
    pub masks: Masks,
    /// No other group may allocate in them.
    pub exclusive: bool,
    /// Threads in the group; not read for the default group.
    pub threads: BTreeSet<Pid>,
    /// A masu group: others stay unchanged.
    pub ours: bool,
}

/// All observed groups, masu's by label, unmanaged ones by name; the default group, always present, by the empty
/// name.
pub type Standing = BTreeMap<String, Present>;

/// Steps from `standing` to `wanted`. `refilling` lists the existing warm-up threads.
pub fn steps(
    standing: &Standing,
    wanted: &Desired,
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

/// Steps that remove all masu groups; `rest` is the former masks of the default group.
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

/// Ways of a group while others move. Those of a new group are unknown until it exists.
struct Place {
    masks: Option<Masks>,
    exclusive: bool,
}

/// Desired masks of each group, the default group among them.
fn targets(wanted: &Desired) -> BTreeMap<&str, &Masks> {
    let groups = wanted.groups.iter().map(|group| (group.label.as_str(), &group.masks));
    std::iter::once(("", &wanted.rest)).chain(groups).collect()
}

/// Shrinks a group to the common ways of its observed and desired masks, if there are enough.
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

/// Moves all masks to the desired ones.
fn move_masks(
    places: &mut BTreeMap<String, Place>,
    wanted: &Desired,
    targets: &BTreeMap<&str, &Masks>,
    steps: &mut Vec<Step>,
) {
    // The default group first; then in the order of creation. A missing group does not move.
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
        // All wait for each other: one steps aside, none twice.
        let Some(shy) = waiting.iter().copied().find(|name| !name.is_empty() && !aside.contains(name)) else {
            // Other groups are in the way: the kernel refuses this step, and the refusal is reported.
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

/// Whether the kernel would accept these ways for the group now. Unknown ways of a group may be anywhere except in
/// exclusive ones.
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

/// Moves threads into their groups, and orphaned ones out of masu's.
fn threads(standing: &Standing, wanted: &Desired, refilling: &BTreeMap<(String, CacheId), Pid>, steps: &mut Vec<Step>) {
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
