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
    WarmUp(String, CacheId),
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
            Step::WarmUp(label, cache) => {
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
            Step::Process(label, ..) | Step::Thread(label, _) | Step::WarmUp(label, _) => label,
        }
    }
}

/// Observed group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObservedGroup {
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
pub type Observed = BTreeMap<String, ObservedGroup>;

/// Steps from `observed` to `desired`. `warming` lists the existing warm-up threads.
pub fn diff(
    observed: &Observed,
    desired: &Desired,
    warming: &BTreeMap<(String, CacheId), Pid>,
    ways_min: Ways,
) -> Vec<Step> {
    let mut steps = Vec::new();
    let targets = targets(desired);
    for (name, _) in observed.iter().filter(|(name, group)| group.ours && !targets.contains_key(name.as_str())) {
        steps.push(Step::Remove(name.clone()));
    }
    let mut states: BTreeMap<String, GroupState> = observed
        .iter()
        .filter(|(name, group)| !group.ours || targets.contains_key(name.as_str()))
        .map(|(name, group)| {
            (name.clone(), GroupState { masks: Some(group.masks.clone()), exclusive: group.exclusive })
        })
        .collect();
    for group in desired.groups.iter().filter(|group| !group.exclusive) {
        if let Some(state) = states.get_mut(&group.label).filter(|state| state.exclusive) {
            steps.push(Step::Exclusive(group.label.clone(), false));
            state.exclusive = false;
        }
    }
    shrink(&mut states, &targets, ways_min, &mut steps);
    for group in desired.groups.iter().filter(|group| !observed.contains_key(&group.label)) {
        steps.push(Step::Make(group.label.clone()));
        states.insert(group.label.clone(), GroupState { masks: None, exclusive: false });
    }
    move_masks(&mut states, desired, &targets, &mut steps);
    for group in &desired.groups {
        if states.get(&group.label).is_some_and(|state| state.exclusive != group.exclusive) {
            steps.push(Step::Exclusive(group.label.clone(), group.exclusive));
        }
    }
    threads(observed, desired, warming, &mut steps);
    steps
}

/// Steps that remove all masu groups; `rest` is the former masks of the default group.
pub fn undo(observed: &Observed, default_masks: &Masks) -> Vec<Step> {
    let ours = observed.iter().filter(|(_, group)| group.ours);
    // The exclusive ones first, as they came last.
    let (mut exclusive, mut others): (Vec<_>, Vec<_>) = ours.partition(|(_, group)| group.exclusive);
    exclusive.append(&mut others);
    let mut steps: Vec<Step> = exclusive.into_iter().map(|(name, _)| Step::Remove(name.clone())).collect();
    if observed.get("").is_some_and(|group| group.masks != *default_masks) {
        steps.push(Step::Masks(String::new(), default_masks.clone()));
    }
    steps
}

/// Ways of a group while others move. Those of a new group are unknown until it exists.
struct GroupState {
    masks: Option<Masks>,
    exclusive: bool,
}

/// Desired masks of each group, the default group among them.
fn targets(desired: &Desired) -> BTreeMap<&str, &Masks> {
    let groups = desired.groups.iter().map(|group| (group.label.as_str(), &group.masks));
    std::iter::once(("", &desired.default_masks)).chain(groups).collect()
}

/// Shrinks a group to the common ways of its observed and desired masks, if there are enough.
fn shrink(
    states: &mut BTreeMap<String, GroupState>,
    targets: &BTreeMap<&str, &Masks>,
    ways_min: Ways,
    steps: &mut Vec<Step>,
) {
    for (name, target) in targets {
        let Some(state) = states.get_mut(*name) else { continue };
        let Some(masks) = &mut state.masks else { continue };
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
    states: &mut BTreeMap<String, GroupState>,
    desired: &Desired,
    targets: &BTreeMap<&str, &Masks>,
    steps: &mut Vec<Step>,
) {
    // The default group first; then in the order of creation. A missing group does not move.
    let all = std::iter::once("").chain(desired.groups.iter().map(|group| group.label.as_str()));
    let order: Vec<&str> = all.filter(|name| states.contains_key(*name)).collect();
    let is_there = |states: &BTreeMap<String, GroupState>, name: &str| {
        states.get(name).is_some_and(|state| state.masks.as_ref() == Some(targets[name]))
    };
    let mut aside: BTreeSet<&str> = BTreeSet::new();
    loop {
        let waiting: Vec<&str> = order.iter().copied().filter(|name| !is_there(states, name)).collect();
        let Some(first) = waiting.first() else { return };
        if let Some(free) = waiting.iter().copied().find(|name| may_move(states, name, targets[name])) {
            steps.push(Step::Masks(free.to_owned(), targets[free].clone()));
            if let Some(state) = states.get_mut(free) {
                state.masks = Some(targets[free].clone());
            }
            continue;
        }
        // All wait for each other: one steps aside, none twice.
        let Some(blocked) = waiting.iter().copied().find(|name| !name.is_empty() && !aside.contains(name)) else {
            // Other groups are in the way: the kernel refuses this step, and the refusal is reported.
            steps.push(Step::Masks((*first).to_owned(), targets[first].clone()));
            if let Some(state) = states.get_mut(*first) {
                state.masks = Some(targets[first].clone());
            }
            continue;
        };
        aside.insert(blocked);
        let default_masks = states.get("").and_then(|state| state.masks.clone()).unwrap_or_default();
        let Some(state) = states.get_mut(blocked) else { continue };
        if state.exclusive {
            steps.push(Step::Exclusive(blocked.to_owned(), false));
            state.exclusive = false;
        }
        if state.masks.as_ref() != Some(&default_masks) {
            steps.push(Step::Masks(blocked.to_owned(), default_masks.clone()));
            state.masks = Some(default_masks);
        }
    }
}

/// Whether the kernel would accept these ways for the group now. Unknown ways of a group may be anywhere except in
/// exclusive ones.
fn may_move(states: &BTreeMap<String, GroupState>, name: &str, target: &Masks) -> bool {
    let Some(own) = states.get(name) else { return false };
    states.iter().filter(|(other, _)| *other != name).all(|(_, other)| match &other.masks {
        Some(masks) if own.exclusive || other.exclusive => {
            !target.iter().any(|(cache, mask)| masks.get(cache).is_some_and(|theirs| theirs.overlaps(*mask)))
        }
        Some(_) => true,
        None => !own.exclusive,
    })
}

/// Moves threads into their groups, and orphaned ones out of masu's.
fn threads(observed: &Observed, desired: &Desired, warming: &BTreeMap<(String, CacheId), Pid>, steps: &mut Vec<Step>) {
    let mut placed: BTreeSet<Pid> = BTreeSet::new();
    let none = BTreeSet::new();
    for group in &desired.groups {
        let there = observed.get(&group.label).map_or(&none, |there| &there.threads);
        for (pid, threads) in &group.processes {
            placed.extend(threads);
            let missing: BTreeSet<Pid> = threads.difference(there).copied().collect();
            if !missing.is_empty() {
                steps.push(Step::Process(group.label.clone(), *pid, missing));
            }
        }
        for cache in &group.warmed {
            match warming.get(&(group.label.clone(), *cache)) {
                None => steps.push(Step::WarmUp(group.label.clone(), *cache)),
                Some(thread) => {
                    placed.insert(*thread);
                    if !there.contains(thread) {
                        steps.push(Step::Thread(group.label.clone(), *thread));
                    }
                }
            }
        }
    }
    let kept = |label: &String| desired.groups.iter().any(|group| group.label == *label);
    for (_, group) in observed.iter().filter(|(label, group)| group.ours && kept(label)) {
        for thread in group.threads.difference(&placed) {
            steps.push(Step::Thread(String::new(), *thread));
        }
    }
}

#[cfg(test)]
pub(super) mod tests;
