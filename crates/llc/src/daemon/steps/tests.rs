use proptest::prelude::*;

use super::*;
use crate::daemon::layout::{Group, Purpose};

/// Model of the kernel's rules for steps: masks that are contiguous, of enough ways, and in no other group's
/// exclusive ones; groups up to the number of classes.
#[derive(Clone, Debug)]
pub struct Kernel {
    /// Groups, including the default group.
    pub groups: Observed,
    /// All ways.
    pub all: WayMask,
    /// Fewest ways of a mask.
    pub ways_min: Ways,
    /// Greatest number of groups.
    pub classes: usize,
}

impl Kernel {
    fn overlaps(&self, name: &str, masks: &Masks, among: impl Fn(&ObservedGroup) -> bool) -> Option<String> {
        let others = self.groups.iter().filter(|(other, group)| *other != name && among(group));
        let mut hit = others
            .filter(|(_, group)| masks.iter().any(|(cache, mask)| group.masks[cache].overlaps(*mask)))
            .map(|(other, _)| other.clone());
        hit.next()
    }

    /// Applies one step.
    ///
    /// # Errors
    /// The reason of a refusal.
    pub fn does(&mut self, step: &Step) -> Result<(), String> {
        let present = |name: &String| self.groups.get(name).cloned().ok_or(format!("{name} is not there"));
        match step {
            Step::Make(name) => {
                if self.groups.len() == self.classes {
                    return Err("out of classes".to_owned());
                }
                let caches: Vec<CacheId> = self.groups[""].masks.keys().copied().collect();
                let free = |cache: &CacheId| {
                    let walls = self.groups.values().filter(|group| group.exclusive);
                    let run = walls.fold(self.all, |left, group| left.without(group.masks[cache])).first_run();
                    (*cache, run)
                };
                let masks: Masks = caches.iter().map(free).collect();
                if masks.values().any(|mask| mask.ways() < self.ways_min || mask.is_empty()) {
                    return Err("no space".to_owned());
                }
                let new = ObservedGroup { masks, ours: true, ..ObservedGroup::default() };
                assert!(self.groups.insert(name.clone(), new).is_none(), "{name} is there already");
            }
            Step::Remove(name) => {
                let group = self.groups.remove(name).ok_or(format!("{name} is not there"))?;
                assert!(group.ours && !name.is_empty(), "{name} is not ours");
            }
            Step::Masks(name, masks) => {
                let own = present(name)?;
                assert!(own.ours || name.is_empty(), "{name} is not ours");
                if masks.values().any(|mask| !mask.is_contiguous() || mask.ways() < self.ways_min || mask.is_empty()) {
                    return Err(format!("{name}: a mask that cannot be"));
                }
                if let Some(other) = self.overlaps(name, masks, |group| group.exclusive || own.exclusive) {
                    return Err(format!("{name}: overlaps {other}"));
                }
                self.groups.insert(name.clone(), ObservedGroup { masks: masks.clone(), ..own });
            }
            Step::Exclusive(name, exclusive) => {
                let own = present(name)?;
                if *exclusive && let Some(other) = self.overlaps(name, &own.masks, |_| true) {
                    return Err(format!("{name}: overlaps {other}"));
                }
                self.groups.insert(name.clone(), ObservedGroup { exclusive: *exclusive, ..own });
            }
            Step::Process(name, _, threads) => threads.iter().try_for_each(|thread| self.moves(name, *thread))?,
            Step::Thread(name, thread) => self.moves(name, *thread)?,
            Step::WarmUp(..) => {}
        }
        Ok(())
    }

    fn moves(&mut self, name: &String, thread: Pid) -> Result<(), String> {
        for group in self.groups.values_mut() {
            group.threads.remove(&thread);
        }
        if !name.is_empty() {
            self.groups.get_mut(name).ok_or(format!("{name} is not there"))?.threads.insert(thread);
        }
        Ok(())
    }

    fn goes_to(&mut self, desired: &Desired) -> Vec<Step> {
        let steps = diff(&self.groups, desired, &BTreeMap::new(), self.ways_min);
        for step in &steps {
            self.does(step).unwrap_or_else(|why| panic!("{step}: {why}, of {steps:#?}"));
        }
        for group in &desired.groups {
            let there = &self.groups[&group.label];
            assert_eq!((&there.masks, there.exclusive), (&group.masks, group.exclusive), "{}", group.label);
            let threads: BTreeSet<Pid> = group.processes.values().flatten().copied().collect();
            assert_eq!(there.threads, threads, "{}", group.label);
        }
        assert_eq!(self.groups[""].masks, desired.default_masks);
        assert_eq!(self.groups.values().filter(|group| group.ours).count(), desired.groups.len());
        steps
    }
}

/// Two caches with this number of ways each, without threads.
pub fn kernel(ways: u32) -> Kernel {
    let all = WayMask::lowest(Ways(ways));
    let default = ObservedGroup { masks: both(all.0), ..ObservedGroup::default() };
    Kernel { groups: [(String::new(), default)].into(), all, ways_min: Ways(1), classes: 16 }
}

fn both(mask: u64) -> Masks {
    [(CacheId(0), WayMask(mask)), (CacheId(1), WayMask(mask))].into()
}

fn group(label: &str, mask: u64, exclusive: bool, threads: &[i32]) -> Group {
    Group {
        label: label.to_owned(),
        masks: both(mask),
        exclusive,
        processes: threads.iter().map(|id| (Pid(*id), [Pid(*id)].into())).collect(),
        warmed: BTreeSet::new(),
        purpose: Purpose::SharedPartition(0),
    }
}

fn desired(rest: u64, groups: Vec<Group>) -> Desired {
    Desired { default_masks: both(rest), groups, notes: Vec::new() }
}

#[test]
fn what_is_not_there_is_not_moved() {
    let desired = desired(0xc00, vec![group("web", 0xf, false, &[7])]);
    let steps = diff(&Observed::new(), &desired, &BTreeMap::new(), Ways(1));
    assert!(steps.iter().all(|step| step.label() == "web"), "{steps:?}");
}

#[test]
fn the_default_group_shrinks_first_and_threads_come_last() {
    let mut kernel = kernel(12);
    let plan = desired(0xc00, vec![group("web", 0xf, false, &[7, 8]), group("shared.shop", 0x300, true, &[])]);
    let steps: Vec<String> = kernel.goes_to(&plan).iter().map(Step::to_string).collect();
    assert_eq!(
        steps,
        [
            "give the default group ways c00",
            "make group masu-web",
            "make group masu-shared.shop",
            "give group masu-web ways f",
            "give group masu-shared.shop ways 300",
            "make the ways of group masu-shared.shop its own",
            "put process 7 into group masu-web",
            "put process 8 into group masu-web",
        ]
    );
    assert_eq!(kernel.goes_to(&plan), [], "what is there is not done again");
    let undone: Vec<String> = undo(&kernel.groups, &both(0xfff)).iter().map(Step::to_string).collect();
    let expected = ["remove group masu-shared.shop", "remove group masu-web", "give the default group ways fff"];
    assert_eq!(undone, expected);
}

#[test]
fn a_shared_partition_and_a_group_that_change_places_pass_each_other() {
    let mut kernel = kernel(12);
    kernel.goes_to(&desired(0xc00, vec![group("a", 0x1f, false, &[1]), group("s", 0x3e0, true, &[2])]));
    let steps = kernel.goes_to(&desired(0xc00, vec![group("a", 0x3e0, false, &[1]), group("s", 0x1f, true, &[2])]));
    let said: Vec<String> = steps.iter().map(Step::to_string).collect();
    assert_eq!(said, ["give group masu-a ways c00", "give group masu-s ways 1f", "give group masu-a ways 3e0",]);
}

#[test]
fn who_left_a_program_leaves_its_group_and_foreign_groups_stay() {
    let mut kernel = kernel(12);
    let unmanaged = ObservedGroup { masks: both(0xf00), exclusive: false, threads: [Pid(99)].into(), ours: false };
    kernel.groups.insert("theirs".to_owned(), unmanaged.clone());
    kernel.goes_to(&desired(0xc00, vec![group("a", 0xf, false, &[1, 2])]));
    let steps = kernel.goes_to(&desired(0xc00, vec![group("a", 0xf, false, &[2, 3])]));
    let said: Vec<String> = steps.iter().map(Step::to_string).collect();
    assert_eq!(said, ["put process 3 into group masu-a", "put thread 1 into the default group"]);
    assert_eq!(kernel.groups["theirs"], unmanaged);
}

#[test]
fn a_thread_of_ours_is_named_by_its_cache_until_it_is_there() {
    let mut plan = desired(0xc00, vec![group("s", 0xf, true, &[])]);
    plan.groups[0].warmed = [CacheId(0)].into();
    let kernel = kernel(12);
    let before = diff(&kernel.groups, &plan, &BTreeMap::new(), Ways(1));
    assert_eq!(before.last(), Some(&Step::WarmUp("s".to_owned(), CacheId(0))));
    let there = [(("s".to_owned(), CacheId(0)), Pid(50))].into();
    let after = diff(&kernel.groups, &plan, &there, Ways(1));
    assert_eq!(after.last(), Some(&Step::Thread("s".to_owned(), Pid(50))));
}

/// Ways cut into runs at random, some of them exclusive, for some of six groups; in the second cache shifted by one
/// part.
fn arrangement(ways: u32) -> impl Strategy<Value = Desired> {
    let parts = prop::collection::vec((1u32..4, any::<bool>(), any::<bool>(), 0i32..6), 1..6);
    (parts, Just((0i32..6).collect::<Vec<_>>()).prop_shuffle()).prop_map(move |(parts, names)| {
        let mut first = 0;
        let mut groups = Vec::new();
        for ((count, exclusive, twice, thread), name) in parts.into_iter().zip(names) {
            // The top two ways are the default group's.
            if first + count > ways - 2 {
                break;
            }
            let mask = WayMask::run(first, Ways(count));
            // A shareable group may have another's ways as well.
            let other = if exclusive || !twice { mask } else { WayMask::run(0, Ways(first + count)) };
            let mut group = group(&format!("{name}"), mask.0, exclusive, &[thread * 10 + name]);
            group.masks.insert(CacheId(1), other);
            groups.push(group);
            first += count;
        }
        let walls: Vec<Masks> =
            groups.iter().filter(|group| group.exclusive).map(|group| group.masks.clone()).collect();
        for group in groups.iter_mut().filter(|group| !group.exclusive) {
            if walls.iter().any(|wall| wall[&CacheId(1)].overlaps(group.masks[&CacheId(1)])) {
                group.masks.insert(CacheId(1), group.masks[&CacheId(0)]);
            }
        }
        desired(0b11 << (ways - 2), groups)
    })
}

proptest! {
    #[test]
    fn from_any_arrangement_to_any_other_the_kernel_says_no_to_no_step(
        first in arrangement(12), second in arrangement(12), third in arrangement(12), classes in 7usize..9,
    ) {
        let mut kernel = Kernel { classes, ..kernel(12) };
        let before = kernel.groups.clone();
        for plan in [&first, &second, &third] {
            kernel.goes_to(plan);
        }
        for step in undo(&kernel.groups, &both(0xfff)) {
            kernel.does(&step).unwrap();
        }
        prop_assert_eq!(kernel.groups, before);
    }
}
