//! Index of shared frames. Each four bytes are a page that is merged, one that is unmerged or moved, a process that
//! forks or ends, or a scan. After each scan the index equals a set of triples, and its reported changes are the
//! changes of that set. The same bytes as the text of `ksm_stat` are read or refused.

use std::collections::{BTreeMap, BTreeSet};

use linux::{Pid, Untrusted, ksm};
use llc::shared::domain::{By, Member, crosses};
use llc::shared::index::{Changed, Index, MergedPage};
use units::cast::fits;
use units::{Address, Pages};

/// Merged pages of each process: page to frame.
type Model = BTreeMap<Pid, BTreeMap<u64, u64>>;

/// Runs one input; true when it was understood.
pub fn run(bytes: &[u8]) -> bool {
    if let Ok(Some(of)) = ksm::parse(&String::from_utf8_lossy(bytes), "ksm_stat") {
        let _ = (of.merging_pages.value(), of.mergeable.value());
    }
    let (mut index, mut model, mut before) = (Index::default(), Model::new(), BTreeSet::new());
    for word in bytes.chunks_exact(4) {
        let [what, who, page, frame] = [word[0], word[1], word[2], word[3]].map(u64::from);
        let one_of_seven = |number: u64| Pid(fits(number % 7 + 1));
        let pid = one_of_seven(who);
        match what % 8 {
            0..=2 => drop(model.entry(pid).or_default().insert(page, frame % 32)),
            3 => drop(model.entry(pid).or_default().remove(&page)),
            4 => {
                let pages = model.entry(pid).or_default();
                if let Some(moved) = pages.remove(&page) {
                    pages.insert(frame, moved);
                }
            }
            5 => drop(model.remove(&pid)),
            6 => {
                let parent = model.get(&pid).cloned().unwrap_or_default();
                model.insert(one_of_seven(frame), parent);
            }
            _ => before = look(&mut index, &model, &before, what & 8 != 0),
        }
    }
    look(&mut index, &model, &before, false);
    !model.is_empty()
}

fn look(
    index: &mut Index,
    model: &Model,
    before: &BTreeSet<(Pid, u64, u64)>,
    backwards: bool,
) -> BTreeSet<(Pid, u64, u64)> {
    let pages = |of: &BTreeMap<u64, u64>| -> Vec<MergedPage> {
        let page = |(page, frame): (&u64, &u64)| MergedPage { address: Address(page * 4096), frame: *frame };
        if backwards { of.iter().rev().map(page).collect() } else { of.iter().map(page).collect() }
    };
    let changed = index.update(model.iter().map(|(pid, of)| (*pid, pages(of))));
    let now: BTreeSet<(Pid, u64, u64)> =
        model.iter().flat_map(|(pid, of)| of.iter().map(|(page, frame)| (*pid, *page, *frame))).collect();
    let count = |one: &BTreeSet<_>, other| one.difference(other).count() as u64;
    assert_eq!(changed, Changed { added: count(&now, before), removed: count(before, &now) });

    let mut by_frame: BTreeMap<u64, BTreeSet<(Pid, u64)>> = BTreeMap::new();
    for (pid, page, frame) in &now {
        by_frame.entry(*frame).or_default().insert((*pid, page * 4096));
    }
    let found: BTreeMap<u64, BTreeSet<(Pid, u64)>> = index
        .frames()
        .map(|frame| (frame.number(), frame.sharers().map(|of| (of.pid, of.address.0)).collect()))
        .collect();
    assert_eq!(found, by_frame);
    assert_eq!(index.mapped(), Pages(now.len() as u64));
    // Two domains, and a process with unknown credentials.
    let member = |pid: &Pid| {
        let uid = pid.0.unsigned_abs() % 2;
        let domain = By::Uid.domain(&Untrusted::default(), [uid; 4]);
        (*pid, Member { name: Untrusted::default(), uid, group: Untrusted::default(), domain })
    };
    let members: BTreeMap<Pid, Member> = model.keys().filter(|pid| pid.0 != 7).map(member).collect();
    let crossing = index.frames().filter(|frame| crosses(&frame.processes().collect::<Vec<_>>(), &members)).count();
    let by_set = index.sets().into_iter().filter(|set| crosses(&set.processes, &members));
    assert_eq!(by_set.map(|set| set.frames.0).sum::<u64>(), crossing as u64);
    let saved: u64 = by_frame.values().map(|sharers| (sharers.len() as u64 - 1) * 4096).sum();
    assert_eq!(index.sets().iter().map(|set| set.saved().0).sum::<u64>(), saved);
    now
}
