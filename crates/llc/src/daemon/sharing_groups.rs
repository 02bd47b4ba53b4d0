//! Sharing groups: the frames shared by programs of one trust domain, one group for each domain.
//!
//! Pure: it reads the index of a scan (`shared`). A frame belongs to a sharing group if at least two programs have
//! it, and all its sharers, configured or not, trust each other. A program trusts by its label in the configuration;
//! without one, by its control group or user, like processes outside the configuration. Frames across domains are
//! counted and left alone: a shared partition would let one watch the other.

use std::collections::{BTreeMap, BTreeSet};

use linux::merged_memory::PageOf;
use linux::{Pid, Untrusted};
use units::{Bytes, Pages};

use super::layout::Processes;
use crate::shared::domain::{Domain, Member};
use crate::shared::index::{Frame, Index};

/// Frames shared within one domain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedFrames {
    /// Trust domain.
    pub domain: Untrusted,
    /// Programs, by their indices in the configuration: at least two.
    pub sharers: BTreeSet<usize>,
    /// One page of each frame; frames with the most programs first.
    pub pages: Vec<PageOf>,
}

impl SharedFrames {
    /// Size of the group.
    pub fn bytes(&self) -> Bytes {
        Pages(self.pages.len() as u64).bytes()
    }
}

/// All sharing groups.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SharingGroups {
    /// Groups by domain.
    pub sets: Vec<SharedFrames>,
    /// Frames shared by a configured program and a process of another domain.
    pub crossing: Pages,
    /// Pages of configured programs in such frames: none of them stays in a shared partition.
    pub crossing_pages: BTreeSet<PageOf>,
    /// Reason why nothing is known: a possible sharer could not be scanned, so the sharers of every frame are
    /// uncertain.
    pub unread: Option<String>,
    /// A process whose reads go unanswered, and its possible unknown sharing.
    pub passed_over: Option<String>,
}

/// Identity of the sharers, as input of the groups.
pub struct Identities<'w> {
    program_of: BTreeMap<Pid, usize>,
    labels: Vec<Option<&'w str>>,
    members: &'w BTreeMap<Pid, Member>,
}

impl<'w> Identities<'w> {
    /// The programs' processes, their labels, and the members found for all sharing processes.
    pub fn new(
        programs: &[Processes],
        labels: Vec<Option<&'w str>>,
        members: &'w BTreeMap<Pid, Member>,
    ) -> Identities<'w> {
        let program_of = programs.iter().enumerate().flat_map(|(nth, of)| of.keys().map(move |pid| (*pid, nth)));
        Identities { program_of: program_of.collect(), labels, members }
    }

    /// Domain of a process: a label differs from a control group of the same name.
    fn domain(&self, pid: Pid) -> Option<(bool, &[u8])> {
        let label = self.program_of.get(&pid).and_then(|program| self.labels.get(*program).copied().flatten());
        match label {
            Some(label) => Some((true, label.as_bytes())),
            None => self.members.get(&pid).map(|Member { domain: Domain(domain), .. }| (false, domain.bytes())),
        }
    }
}

/// Sharing groups of these programs.
pub fn sets(index: &Index, who: &Identities<'_>) -> SharingGroups {
    // Sharers, and pages with the number of programs that have each.
    type Found = (BTreeSet<usize>, Vec<(usize, PageOf)>);
    let mut found = SharingGroups::default();
    let mut by_domain: BTreeMap<(bool, &[u8]), Found> = BTreeMap::new();
    for frame in index.frames() {
        let programs: BTreeSet<usize> = frame.processes().filter_map(|pid| who.program_of.get(&pid)).copied().collect();
        if programs.is_empty() {
            continue;
        }
        match domain_of(frame, who) {
            None => {
                found.crossing.0 += 1;
                found.crossing_pages.extend(frame.sharers().filter(|page| who.program_of.contains_key(&page.pid)));
            }
            Some(domain) if programs.len() >= 2 => {
                let Some(page) = frame.sharers().find(|page| who.program_of.contains_key(&page.pid)) else { continue };
                let (sharers, pages) = by_domain.entry(domain).or_default();
                pages.push((programs.len(), page));
                sharers.extend(programs);
            }
            Some(_) => {}
        }
    }
    for ((_, domain), (sharers, mut pages)) in by_domain {
        pages.sort_by_key(|(programs, page)| (std::cmp::Reverse(*programs), *page));
        let pages = pages.into_iter().map(|(_, page)| page).collect();
        found.sets.push(SharedFrames { domain: Untrusted::new(domain), sharers, pages });
    }
    found
}

/// Domain of all sharers of a frame; `None` for several domains, or an unknown sharer.
fn domain_of<'w>(frame: Frame<'_>, who: &'w Identities<'_>) -> Option<(bool, &'w [u8])> {
    let mut domains = frame.processes().map(|pid| who.domain(pid));
    let first = domains.next()??;
    domains.all(|domain| domain == Some(first)).then_some(first)
}

#[cfg(test)]
mod tests {
    use units::Address;

    use super::*;
    use crate::shared::domain::members_of;
    use crate::shared::index::MergedPage;

    fn index(of: &[(i32, &[u64])]) -> Index {
        let mut index = Index::default();
        let pages = |frames: &[u64]| {
            let number = (1..).zip(frames);
            number.map(|(at, frame)| MergedPage { address: Address(at * 4096), frame: *frame }).collect()
        };
        index.update(of.iter().map(|(pid, frames)| (Pid(*pid), pages(frames))));
        index
    }

    fn programs(of: &[&[i32]]) -> Vec<Processes> {
        of.iter().map(|pids| pids.iter().map(|pid| (Pid(*pid), [Pid(*pid)].into())).collect()).collect()
    }

    #[test]
    fn what_two_programs_of_one_domain_have_is_a_set_and_what_most_have_is_first() {
        // 1 and 2 are one program, 3 another, 4 a third.
        let index = index(&[(1, &[10, 11, 12, 13]), (2, &[10, 11]), (3, &[11, 12]), (4, &[12])]);
        let members = members_of(&[(1, "a"), (2, "a"), (3, "a"), (4, "a")]);
        let programs = programs(&[&[1, 2], &[3], &[4]]);
        let found = sets(&index, &Identities::new(&programs, vec![None; 3], &members));
        // Frame 10 is shared within one program, 13 with none.
        let page = |number: u64| PageOf { pid: Pid(1), address: Address(number * 4096) };
        let set = SharedFrames { domain: "a".into(), sharers: [0, 1, 2].into(), pages: vec![page(3), page(2)] };
        assert_eq!(found, SharingGroups { sets: vec![set], ..SharingGroups::default() });
        assert_eq!(found.sets[0].bytes(), Bytes::kib(8));
    }

    #[test]
    fn across_domains_there_is_no_set_also_with_somebody_who_is_not_named() {
        let index = index(&[(1, &[10, 11, 12]), (2, &[10, 11, 12]), (9, &[12])]);
        let members = members_of(&[(1, "a"), (2, "b"), (9, "c")]);
        let both = programs(&[&[1], &[2]]);
        let crossing = |labels: Vec<Option<&str>>| {
            let found = sets(&index, &Identities::new(&both, labels, &members));
            (found.crossing.0, found.sets.iter().map(|set| set.pages.len()).sum::<usize>())
        };
        assert_eq!(crossing(vec![None, None]), (3, 0));
        assert_eq!(crossing(vec![Some("shop"), Some("shop")]), (1, 2), "9 is not named, and not of the shop");
        assert_eq!(crossing(vec![Some("b"), None]), (3, 0), "a label is no control group");
        // Frame 12 is also in 9: the programs' pages of it may not stay in a shared partition.
        let found = sets(&index, &Identities::new(&both, vec![Some("shop"), Some("shop")], &members));
        let page = found.crossing_pages.iter().map(|page| page.pid.0).collect::<Vec<_>>();
        assert_eq!(page, [1, 2]);
        assert!(found.sets[0].pages.iter().all(|page| !found.crossing_pages.contains(page)));
        let unknown = BTreeMap::new();
        assert_eq!(sets(&index, &Identities::new(&both, vec![None, None], &unknown)).crossing, Pages(3));
    }
}
