//! From plans to groups: which groups there are to be, with which masks in which cache, and who is in them.
//!
//! Pure. A group is a class of service, and has a mask in every cache of the host. A policy plans one cache; where programs run on the
//! CPUs of some caches only, each cache has a plan of its own, and programs that have the same ways everywhere share a group. In a
//! cache on which a program does not run it has the ways of the rest.
//!
//! A group is called `masu-NAME` after the first of its programs, a region `masu-shared.DOMAIN`; no program can be called so.
//! Names are given here as labels, without `masu-`, which `linux::resctrl` puts before them.

use std::collections::{BTreeMap, BTreeSet};

use linux::Pid;
use linux::resctrl::{CacheId, PREFIX};
use units::WayMask;

use super::config::REGION_LABEL;
use super::report::counted;
use super::room::Foreign;
use crate::policy::Plan;

/// A mask for each cache.
pub type Masks = BTreeMap<CacheId, WayMask>;

/// Processes, each with its threads.
pub type Processes = BTreeMap<Pid, BTreeSet<Pid>>;

/// A group as it is to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Its label.
    pub label: String,
    /// Its ways.
    pub masks: Masks,
    /// Nobody else may allocate in them.
    pub exclusive: bool,
    /// Who is in it.
    pub processes: Processes,
    /// The caches in each of which a thread of ours refills it, and is in it.
    pub refilled: BTreeSet<CacheId>,
    /// What it is for.
    pub purpose: Purpose,
}

/// What a group is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Programs, by their places in the configuration.
    Programs(Vec<usize>),
    /// The lines of a shared set, by its place among those that were found.
    Region(usize),
}

/// All groups as they are to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// The default group's ways.
    pub rest: Masks,
    /// Ours, in the order in which they are made.
    pub groups: Vec<Group>,
    /// What is not as one would wish, in words.
    pub notes: Vec<String>,
}

/// What was planned for some caches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Planned {
    /// For these.
    pub caches: BTreeSet<CacheId>,
    /// The plan's programs, by their places in the configuration.
    pub programs: Vec<usize>,
    /// The plan's shared sets, by their places among those that were found.
    pub sets: Vec<usize>,
    /// What the policy answered.
    pub plan: Plan,
}

/// What is known of a program when it is arranged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its name in the configuration.
    pub name: String,
    /// Its processes.
    pub processes: Processes,
    /// The caches on whose CPUs it runs.
    pub caches: BTreeSet<CacheId>,
    /// Ways that the configuration gives it, and whether nobody else may have them.
    pub fixed: Option<(WayMask, bool)>,
}

/// What cannot be arranged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot make {}, classes of service left: {left}", counted(*wanted, "group"))]
pub struct TooMany {
    /// As many as the plans ask for.
    pub wanted: usize,
    /// As many as there may be.
    pub left: usize,
}

/// What surrounds ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Surroundings {
    /// All caches.
    pub caches: BTreeSet<CacheId>,
    /// The ways of the rest, in caches on which any of the programs runs.
    pub rest: WayMask,
    /// What the default group had before all this: it keeps that in all other caches.
    pub before: Masks,
    /// Ways that other hardware uses.
    pub shareable: WayMask,
    /// Groups of others, which are left as they are.
    pub foreign: Vec<Foreign>,
    /// As many groups as there may be of ours.
    pub groups_max: usize,
}

/// The groups for these plans.
///
/// # Errors
/// When there are more of them than classes.
pub fn wanted(
    plans: &[Planned],
    members: &[Member],
    domains: &[String],
    around: &Surroundings,
) -> Result<Wanted, TooMany> {
    let mut groups = groups_of_programs(plans, members, around);
    let mut notes = Vec::new();
    for (set, domain) in domains.iter().enumerate() {
        let Some(group) = region(set, domain, plans, domains, around) else { continue };
        groups.push(group);
    }
    if groups.len() > around.groups_max {
        return Err(TooMany { wanted: groups.len(), left: around.groups_max });
    }
    for nth in 0..groups.len() {
        let asked = match &groups[nth].purpose {
            Purpose::Region(_) => true,
            Purpose::Programs(programs) => {
                programs.iter().any(|program| members[*program].fixed.is_some_and(|(_, exclusive)| exclusive))
            }
        };
        if !asked {
            continue;
        }
        match overlapped_by(nth, &groups, around) {
            None => groups[nth].exclusive = true,
            Some(whom) => {
                notes.push(format!("{PREFIX}{} is not exclusive: {whom} may allocate in its ways", groups[nth].label))
            }
        }
    }
    let rest = |cache: &CacheId| {
        let used = members.iter().any(|member| !member.processes.is_empty() && member.caches.contains(cache));
        let taken = |mask: WayMask| around.foreign.iter().any(|other| other.exclusive && other.mask.overlaps(mask));
        let before = around.before.get(cache).filter(|mask| !used && !taken(**mask));
        (*cache, before.copied().unwrap_or(around.rest))
    };
    let rest = around.caches.iter().map(rest).collect();
    Ok(Wanted { rest, groups, notes })
}

/// Programs with the same ways in all caches share a group.
fn groups_of_programs(plans: &[Planned], members: &[Member], around: &Surroundings) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    for (program, member) in members.iter().enumerate() {
        if member.processes.is_empty() {
            continue; // it has ended, or not begun
        }
        let mask = |cache: &CacheId| match member.fixed {
            _ if !member.caches.contains(cache) => around.rest,
            Some((mask, _)) => mask,
            None => class_of(plans, *cache, program).unwrap_or(around.rest),
        };
        let masks: Masks = around.caches.iter().map(|cache| (*cache, mask(cache))).collect();
        let processes = member.processes.iter().map(|(pid, threads)| (*pid, threads.clone()));
        let alone = member.fixed.is_some();
        let same = groups.iter_mut().find(|group| {
            let Purpose::Programs(others) = &group.purpose else { return false };
            group.masks == masks && !alone && others.iter().all(|other| members[*other].fixed.is_none())
        });
        if let Some(Group { processes: all, purpose: Purpose::Programs(programs), .. }) = same {
            all.extend(processes);
            programs.push(program);
            continue;
        }
        groups.push(Group {
            label: member.name.clone(),
            masks,
            exclusive: false,
            processes: processes.collect(),
            refilled: BTreeSet::new(),
            purpose: Purpose::Programs(vec![program]),
        });
    }
    groups
}

/// The ways that the plan for this cache gives to a program.
fn class_of(plans: &[Planned], cache: CacheId, program: usize) -> Option<WayMask> {
    let planned = plans.iter().find(|planned| planned.caches.contains(&cache))?;
    let place = planned.programs.iter().position(|other| *other == program)?;
    planned.plan.classes.iter().find(|class| class.programs.contains(&place)).map(|class| class.mask)
}

/// The group for a shared set, where any plan has a region for it.
fn region(set: usize, domain: &str, plans: &[Planned], domains: &[String], around: &Surroundings) -> Option<Group> {
    let mut masks: Masks = around.caches.iter().map(|cache| (*cache, around.rest)).collect();
    let mut refilled = BTreeSet::new();
    for planned in plans {
        let Some(place) = planned.sets.iter().position(|other| *other == set) else { continue };
        let Some(region) = planned.plan.regions.iter().find(|region| region.set == place) else { continue };
        for cache in &planned.caches {
            masks.insert(*cache, region.mask);
            refilled.insert(*cache);
        }
    }
    if refilled.is_empty() {
        return None;
    }
    // Of one domain there may be several sets, shared by different programs.
    let nth = domains[..set].iter().filter(|other| label_of(other) == label_of(domain)).count();
    let label = if nth == 0 { label_of(domain) } else { format!("{}.{}", label_of(domain), nth + 1) };
    let processes = Processes::new();
    Some(Group { label, masks, exclusive: false, processes, refilled, purpose: Purpose::Region(set) })
}

/// A domain's label may be the path of a control group.
fn label_of(domain: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.') { c } else { '_' };
    let label: String = domain.trim_matches('/').chars().map(plain).collect();
    // A directory's name has an end; of a path the last part says most.
    let from = label.len().saturating_sub(100);
    format!("{REGION_LABEL}{}", if label.is_empty() { "all" } else { &label[from..] })
}

/// Who else may allocate where the `nth` group does.
fn overlapped_by(nth: usize, groups: &[Group], around: &Surroundings) -> Option<String> {
    let own = &groups[nth].masks;
    let any = own.values().fold(WayMask::NONE, |all, mask| all.or(*mask));
    if any.overlaps(around.shareable) {
        return Some("other hardware (shareable_bits)".to_owned());
    }
    if any.overlaps(around.rest) {
        return Some("the default group".to_owned());
    }
    if let Some(foreign) = around.foreign.iter().find(|foreign| foreign.mask.overlaps(any)) {
        return Some(format!("group {}", foreign.name));
    }
    let mut others = groups.iter().enumerate().filter(|(other, _)| *other != nth).map(|(_, group)| group);
    let hit = others.find(|group| own.iter().any(|(cache, mask)| group.masks[cache].overlaps(*mask)));
    hit.map(|group| format!("group {PREFIX}{}", group.label))
}

#[cfg(test)]
mod tests;
