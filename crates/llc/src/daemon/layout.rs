//! From plans to groups: the desired groups, their masks in each cache, and their members.
//!
//! Pure. A group is a class of service, and has a mask in every cache of the host. A policy plans one cache; where
//! programs run on the CPUs of some caches only, each cache has a plan of its own, and programs with the same ways in
//! all caches share a group. In a cache on which a program does not run it has the ways of the default group.
//!
//! A group is called `masu-NAME` after the first of its programs, a shared partition `masu-shared.DOMAIN`; no program
//! can have such a name. Names are given here as labels, without `masu-`, the prefix that `linux::resctrl` adds.

use std::collections::{BTreeMap, BTreeSet};

use linux::Pid;
use linux::resctrl::{CacheId, PREFIX};
use units::WayMask;

use super::allocatable_ways::UnmanagedGroup;
use super::config::SHARED_LABEL;
use super::number::counted;
use crate::policy::Plan;

/// Mask for each cache.
pub type Masks = BTreeMap<CacheId, WayMask>;

/// Processes, each with its threads.
pub type Processes = BTreeMap<Pid, BTreeSet<Pid>>;

/// Desired group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Label, without the prefix.
    pub label: String,
    /// Ways, by cache.
    pub masks: Masks,
    /// No other group may allocate in them.
    pub exclusive: bool,
    /// Members.
    pub processes: Processes,
    /// Caches where a masu thread keeps the partition warm, and is in the group.
    pub warmed: BTreeSet<CacheId>,
    /// Purpose of the group.
    pub purpose: Purpose,
}

/// Purpose of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Programs, by their indices in the configuration.
    Programs(Vec<usize>),
    /// Lines of a sharing group, by its index among the groups found.
    SharedPartition(usize),
}

/// All desired groups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Desired {
    /// Ways of the default group.
    pub default_masks: Masks,
    /// masu groups, in the order of their creation.
    pub groups: Vec<Group>,
    /// Restrictions to report, in words.
    pub notes: Vec<String>,
}

/// Plan for some caches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Planned {
    /// These caches.
    pub caches: BTreeSet<CacheId>,
    /// Programs of the plan, by their indices in the configuration.
    pub programs: Vec<usize>,
    /// Sharing groups of the plan, by their indices among those found.
    pub sets: Vec<usize>,
    /// Output of the policy.
    pub plan: Plan,
}

/// Input about one program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its name in the configuration.
    pub name: String,
    /// Its processes.
    pub processes: Processes,
    /// Caches on whose CPUs it runs.
    pub caches: BTreeSet<CacheId>,
    /// Ways assigned by the configuration, and whether they are exclusive.
    pub fixed: Option<(WayMask, bool)>,
}

/// The plans need more groups than there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot make {}, classes of service left: {left}", counted(*wanted, "group"))]
pub struct TooMany {
    /// Number of groups in the plans.
    pub wanted: usize,
    /// Number of available groups.
    pub left: usize,
}

/// State of the host around the masu groups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Surroundings {
    /// All caches.
    pub caches: BTreeSet<CacheId>,
    /// Ways of the default group, in caches on which any of the programs runs.
    pub default_ways: WayMask,
    /// Masks of the default group before masu: kept in all other caches.
    pub before: Masks,
    /// Ways that other hardware uses.
    pub shareable: WayMask,
    /// Unmanaged groups, which stay unchanged.
    pub unmanaged: Vec<UnmanagedGroup>,
    /// Greatest number of masu groups.
    pub groups_max: usize,
}

/// Groups for these plans.
///
/// # Errors
/// When there are more of them than classes.
pub fn desired(
    plans: &[Planned],
    members: &[Member],
    domains: &[String],
    around: &Surroundings,
) -> Result<Desired, TooMany> {
    let mut groups = groups_of_programs(plans, members, around);
    let mut notes = Vec::new();
    for (set, domain) in domains.iter().enumerate() {
        let Some(group) = partition(set, domain, plans, domains, around) else { continue };
        groups.push(group);
    }
    if groups.len() > around.groups_max {
        return Err(TooMany { wanted: groups.len(), left: around.groups_max });
    }
    for nth in 0..groups.len() {
        let asked = match &groups[nth].purpose {
            Purpose::SharedPartition(_) => true,
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
    let default_mask = |cache: &CacheId| {
        let used = members.iter().any(|member| !member.processes.is_empty() && member.caches.contains(cache));
        let taken = |mask: WayMask| around.unmanaged.iter().any(|other| other.exclusive && other.mask.overlaps(mask));
        let before = around.before.get(cache).filter(|mask| !used && !taken(**mask));
        (*cache, before.copied().unwrap_or(around.default_ways))
    };
    let default_masks = around.caches.iter().map(default_mask).collect();
    Ok(Desired { default_masks, groups, notes })
}

/// Groups of programs; programs with the same ways in all caches share one.
fn groups_of_programs(plans: &[Planned], members: &[Member], around: &Surroundings) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    for (program, member) in members.iter().enumerate() {
        if member.processes.is_empty() {
            continue; // it has ended, or not begun
        }
        let mask = |cache: &CacheId| match member.fixed {
            _ if !member.caches.contains(cache) => around.default_ways,
            Some((mask, _)) => mask,
            None => class_of(plans, *cache, program).unwrap_or(around.default_ways),
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
            warmed: BTreeSet::new(),
            purpose: Purpose::Programs(vec![program]),
        });
    }
    groups
}

/// Ways of a program in the plan for this cache.
fn class_of(plans: &[Planned], cache: CacheId, program: usize) -> Option<WayMask> {
    let planned = plans.iter().find(|planned| planned.caches.contains(&cache))?;
    let place = planned.programs.iter().position(|other| *other == program)?;
    planned.plan.classes.iter().find(|class| class.programs.contains(&place)).map(|class| class.mask)
}

/// Group for a sharing group, if any plan has a partition for it.
fn partition(set: usize, domain: &str, plans: &[Planned], domains: &[String], around: &Surroundings) -> Option<Group> {
    let mut masks: Masks = around.caches.iter().map(|cache| (*cache, around.default_ways)).collect();
    let mut warmed = BTreeSet::new();
    for planned in plans {
        let Some(place) = planned.sets.iter().position(|other| *other == set) else { continue };
        let Some(partition) = planned.plan.partitions.iter().find(|partition| partition.group == place) else {
            continue;
        };
        for cache in &planned.caches {
            masks.insert(*cache, partition.mask);
            warmed.insert(*cache);
        }
    }
    if warmed.is_empty() {
        return None;
    }
    // A domain may have several sharing groups, with different programs.
    let nth = domains[..set].iter().filter(|other| label_of(other) == label_of(domain)).count();
    let label = if nth == 0 { label_of(domain) } else { format!("{}.{}", label_of(domain), nth + 1) };
    let processes = Processes::new();
    Some(Group { label, masks, exclusive: false, processes, warmed, purpose: Purpose::SharedPartition(set) })
}

/// Label of a domain, which may be the path of a control group.
fn label_of(domain: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.') { c } else { '_' };
    let label: String = domain.trim_matches('/').chars().map(plain).collect();
    // Names of directories are limited; the last part of a path says most.
    let from = label.len().saturating_sub(100);
    format!("{SHARED_LABEL}{}", if label.is_empty() { "all" } else { &label[from..] })
}

/// Another group that may allocate in the ways of the `nth`.
fn overlapped_by(nth: usize, groups: &[Group], around: &Surroundings) -> Option<String> {
    let own = &groups[nth].masks;
    let any = own.values().fold(WayMask::NONE, |all, mask| all.or(*mask));
    if any.overlaps(around.shareable) {
        return Some("other hardware (shareable_bits)".to_owned());
    }
    if any.overlaps(around.default_ways) {
        return Some("the default group".to_owned());
    }
    if let Some(unmanaged) = around.unmanaged.iter().find(|unmanaged| unmanaged.mask.overlaps(any)) {
        return Some(format!("group {}", unmanaged.name));
    }
    let mut others = groups.iter().enumerate().filter(|(other, _)| *other != nth).map(|(_, group)| group);
    let hit = others.find(|group| own.iter().any(|(cache, mask)| group.masks[cache].overlaps(*mask)));
    hit.map(|group| format!("group {PREFIX}{}", group.label))
}

#[cfg(test)]
mod tests;
