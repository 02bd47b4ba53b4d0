//! Arbitrary events between the steps: nothing panics, unmanaged groups stay unchanged, and in the end masu's groups
//! are gone.

use proptest::prelude::*;

use super::super::super::steps::ObservedGroup;
use super::*;

/// Event between two steps.
#[derive(Clone, Debug)]
enum Happens {
    /// A program has these processes from now on, each with this number of threads.
    Processes(usize, Vec<usize>),
    /// The programs of one domain share the first number of MiB, those of another the second.
    Shared(u64, u64),
    Merging(bool),
    /// Another tool makes a group of these ways, if the kernel permits it, or changes it, or removes it.
    Theirs(u64, bool),
    NoTheirs,
    /// Steps with this text in their description are refused from now on.
    Refused(Option<&'static str>),
    /// Another tool removes one of masu's groups.
    OursRemoved,
    /// A thread is born in one of masu's groups.
    Born(i32),
}

fn happens() -> impl Strategy<Value = Happens> {
    let word = prop::sample::select(vec!["make", "give", "its own", "put process", "put thread", "remove", "shared"]);
    prop_oneof![
        4 => (0usize..2, prop::collection::vec(1usize..4, 0..3)).prop_map(|(nth, of)| Happens::Processes(nth, of)),
        3 => (0u64..8, 0u64..8).prop_map(|(one, other)| Happens::Shared(one, other)),
        1 => any::<bool>().prop_map(Happens::Merging),
        2 => (0u32..12, 1u32..12, any::<bool>())
            .prop_map(|(first, ways, exclusive)| Happens::Theirs(WayMask::run(first, Ways(ways.min(12 - first))).0, exclusive)),
        1 => Just(Happens::NoTheirs),
        2 => prop::option::of(word).prop_map(Happens::Refused),
        1 => Just(Happens::OursRemoved),
        1 => (500i32..520).prop_map(Happens::Born),
    ]
}

fn set(domain: &str, pages: u64, at: u64) -> SharedFrames {
    let page = |page: u64| PageOf { pid: Pid(10), address: Address((at + page) * 4096) };
    SharedFrames { domain: domain.into(), sharers: [0, 1].into(), pages: (0..pages).map(page).collect() }
}

fn happen(host: &mut Host, what: Happens) {
    match what {
        Happens::Processes(nth, of) => {
            let first = 10 * (i32::try_from(nth).unwrap() + 1);
            let threads = |pid: i32, count: usize| (0..i32::try_from(count).unwrap()).map(|n| pid * 10 + n).collect();
            host.programs[nth] = (first..).zip(of).map(|(pid, count)| (pid, threads(pid, count))).collect();
            // Ended threads are in no group.
            let alive: BTreeSet<Pid> = host
                .programs
                .iter()
                .flatten()
                .flat_map(|(_, threads)| threads.iter().map(|thread| Pid(*thread)))
                .collect();
            let warming: BTreeSet<Pid> = host.threads.values().map(|(thread, ..)| *thread).collect();
            for group in host.kernel.groups.values_mut().filter(|group| group.ours) {
                group.threads.retain(|thread| alive.contains(thread) || warming.contains(thread));
            }
        }
        Happens::Shared(one, other) => {
            let all = [set("/shop", one * 200, 0), set("/mail", other * 200, 1 << 20)];
            let sets = all.into_iter().filter(|set| !set.pages.is_empty()).collect();
            host.sets = SharingGroups { sets, crossing: Pages(one), ..SharingGroups::default() };
        }
        Happens::Merging(merging) => host.merging = merging,
        Happens::Theirs(mask, exclusive) => {
            let masks: Masks = [(CacheId(0), WayMask(mask)), (CacheId(1), WayMask(mask))].into();
            let lets =
                host.kernel.groups.iter().filter(|(name, _)| *name != "theirs").all(|(_, group)| {
                    !(exclusive || group.exclusive) || !group.masks[&CacheId(0)].overlaps(WayMask(mask))
                });
            if lets {
                let threads = [Pid(77)].into();
                host.kernel
                    .groups
                    .insert("theirs".to_owned(), ObservedGroup { masks, exclusive, threads, ours: false });
            }
        }
        Happens::NoTheirs => drop(host.kernel.groups.remove("theirs")),
        Happens::Refused(words) => host.refuses = words,
        Happens::OursRemoved => {
            let ours = host.kernel.groups.iter().find(|(_, group)| group.ours).map(|(name, _)| name.clone());
            ours.map(|name| host.kernel.groups.remove(&name));
        }
        Happens::Born(thread) => {
            if let Some(group) = host.kernel.groups.values_mut().find(|group| group.ours) {
                group.threads.insert(Pid(thread));
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]
    #[test]
    fn whatever_happens_nothing_of_ours_stays_and_others_keep_theirs(
        all in prop::collection::vec(happens(), 1..40), equal in any::<bool>(),
    ) {
        let model = Model::new(2);
        let text = if equal { SHARING.replace("\"sharing\"\nrest_ways = 2", "\"equal\"\nrest_ways = 1\n[region]\non = true") } else { SHARING.to_owned() };
        let mut daemon = daemon(&model, &text);
        for (second, what) in (0..).zip(all) {
            happen(&mut model.0.borrow_mut(), what);
            let theirs = model.0.borrow().kernel.groups.get("theirs").cloned();
            let settled = daemon.settled;
            let answer = daemon.step(at(second));
            prop_assert_eq!(model.0.borrow().kernel.groups.get("theirs").cloned(), theirs);
            if answer.is_err() {
                prop_assert!(!settled, "it was in place, and goes on: {:?}", answer);
                break;
            }
            // Each warm-up thread has begun only within an existing group.
            let host = model.0.borrow();
            for ((label, _), (thread, has_begun, _)) in &host.threads {
                let within = host.kernel.groups.get(label).is_some_and(|group| group.threads.contains(thread));
                let held_up = host.refuses.is_some();
                prop_assert!(!has_begun || within || held_up, "{label}: {thread}");
            }
        }
        model.0.borrow_mut().refuses = None;
        let (_, _, answer) = daemon.finish();
        prop_assert!(answer.is_ok(), "{answer:?}");
        let host = model.0.borrow();
        prop_assert!(host.kernel.groups.values().all(|group| !group.ours) && host.threads.is_empty());
    }
}
