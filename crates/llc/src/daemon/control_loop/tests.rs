use std::cell::RefCell;
use std::rc::Rc;

use linux::merged_memory::PageOf;
use linux::resctrl::schemata::Difference;
use linux::resctrl::{CacheId, Resource};
use linux::{At, Pid};
use units::{Address, Pages, WayMask, Ways};

use super::super::act::Done;
use super::super::layout::Processes;
use super::super::observe::Counted;
use super::super::others::InGroup;
use super::super::sharing_groups::SharedFrames;
use super::super::steps::tests::{Kernel, kernel};
use super::*;

mod absent;
mod anything;
mod classes;
mod measured;
mod trust;

/// A host of 12 ways, two caches and any number of classes.
#[derive(Debug)]
struct Host {
    kernel: Kernel,
    programs: Vec<Vec<(i32, Vec<i32>)>>,
    sets: SharingGroups,
    merging: bool,
    partitions: bool,
    unmounted: bool,
    /// Misses per thousand instructions with this number of ways, for each program; `None` without counters.
    misses: Option<fn(usize, u32) -> u64>,
    /// A step with this text in its description is refused.
    refuses: Option<&'static str>,
    /// Ways that the kernel sets together.
    paired: WayMask,
    steps: Vec<Step>,
    threads: BTreeMap<Key, (Pid, bool, usize)>,
    /// Processes that run and are no program's.
    still: BTreeSet<Pid>,
    next_thread: i32,
    /// Masks of the default group after the end, if another tool took ways from it.
    restores_to: Option<WayMask>,
}

#[derive(Clone, Debug)]
struct Model(Rc<RefCell<Host>>);

const WAY: Bytes = Bytes::mib(1);

fn refused(step: &Step, why: String) -> Failed {
    let at = At { operation: step.to_string(), object: why, errno: rustix::io::Errno::INVAL };
    Failed { why: Why::Refused, error: Error::Other(at), status: None }
}

impl Model {
    /// Two programs of one process with two threads each, that share this number of MiB.
    fn new(shared_mib: u64) -> Model {
        let host = Host {
            kernel: kernel(12),
            programs: vec![vec![(10, vec![10, 11])], vec![(20, vec![20, 21])]],
            sets: shares(shared_mib),
            merging: true,
            partitions: true,
            unmounted: false,
            misses: None,
            refuses: None,
            paired: WayMask::NONE,
            steps: Vec::new(),
            threads: BTreeMap::new(),
            still: BTreeSet::new(),
            next_thread: 900,
            restores_to: None,
        };
        Model(Rc::new(RefCell::new(host)))
    }

    fn ways(&self, label: &str) -> u64 {
        self.0.borrow().kernel.groups[label].masks[&CacheId(0)].0
    }

    fn threads_in(&self, label: &str) -> Vec<i32> {
        self.0.borrow().kernel.groups[label].threads.iter().map(|thread| thread.0).collect()
    }

    fn labels(&self) -> Vec<String> {
        self.0.borrow().kernel.groups.keys().filter(|label| !label.is_empty()).cloned().collect()
    }
}

fn shares(mib: u64) -> SharingGroups {
    let pages = (0..mib * 256).map(|page| PageOf { pid: Pid(10), address: Address(page * 4096) }).collect();
    let set = SharedFrames { domain: "/shop".into(), sharers: [0, 1].into(), pages };
    SharingGroups { sets: if mib > 0 { vec![set] } else { Vec::new() }, ..SharingGroups::default() }
}

impl HostOps for Model {
    fn members(&mut self) -> Result<Members, Error> {
        let host = self.0.borrow();
        let processes = |of: &Vec<(i32, Vec<i32>)>| -> Processes {
            of.iter().map(|(pid, threads)| (Pid(*pid), threads.iter().map(|thread| Pid(*thread)).collect())).collect()
        };
        Ok(Members { programs: host.programs.iter().map(processes).collect(), ..Members::default() })
    }

    fn running(&self, pids: &BTreeSet<Pid>) -> BTreeSet<Pid> {
        pids.iter().filter(|pid| self.0.borrow().still.contains(*pid)).copied().collect()
    }

    fn sets(&mut self, _: Duration, _: &Members) -> Result<Option<SharingGroups>, Error> {
        Ok(Some(self.0.borrow().sets.clone()))
    }

    fn merging(&mut self) -> Result<(), NotMerging> {
        if self.0.borrow().merging { Ok(()) } else { Err(NotMerging::Stopped) }
    }

    fn counted(&mut self, members: &Members) -> Known<Vec<Counted>> {
        let host = self.0.borrow();
        let Some(misses) = host.misses else { return Known::Unknown("no counters here".to_owned()) };
        let counted = members.programs.iter().enumerate().map(|(program, processes)| {
            let thread = processes.values().flatten().next().copied();
            let group =
                host.kernel.groups.values().find(|group| thread.is_some_and(|thread| group.threads.contains(&thread)));
            let ways = group.map_or(12, |group| group.masks[&CacheId(0)].ways().0);
            let misses = misses(program, ways) * 2000;
            Counted { instructions: 2_000_000, cycles: 1_000_000 + 200 * misses, misses, stalled: None }
        });
        Known::Value(counted.collect())
    }

    fn readings(&mut self, _: Duration) -> BTreeMap<String, super::super::observe::OfGroup> {
        BTreeMap::new()
    }

    fn hardware(&mut self) -> Result<Option<Hardware>, Failed> {
        let host = self.0.borrow();
        Ok(host.partitions.then(|| Hardware {
            all: host.kernel.all,
            ways_min: Ways(1),
            classes: host.kernel.classes,
            shareable: WayMask::NONE,
            way_bytes: WAY,
            caches: vec![CacheId(0), CacheId(1)],
        }))
    }

    fn observed(&mut self) -> Result<(Observed, Vec<String>), Failed> {
        if self.0.borrow().unmounted {
            let at =
                At { operation: "read".to_owned(), object: "schemata".to_owned(), errno: rustix::io::Errno::NOENT };
            return Err(Failed { why: Why::Gone, error: Error::Gone(at), status: None });
        }
        Ok((self.0.borrow().kernel.groups.clone(), Vec::new()))
    }

    fn other_groups(&self, names: &[String]) -> Vec<OtherGroup> {
        let host = self.0.borrow();
        let group = |name: &String| {
            let threads = host.kernel.groups[name].threads.len();
            let processes = host.kernel.groups[name].threads.iter().map(|pid| InGroup { pid: *pid, name: "x".into() });
            OtherGroup {
                group: name.clone(),
                path: Some(format!("/r/{name}")),
                empty: threads == 0,
                threads,
                processes: processes.collect(),
                ..OtherGroup::default()
            }
        };
        names.iter().map(group).collect()
    }

    fn collect(&mut self) -> Result<Vec<String>, Failed> {
        Ok(Vec::new())
    }

    fn apply(&mut self, step: &Step) -> Result<Done, Failed> {
        let mut host = self.0.borrow_mut();
        if host.refuses.is_some_and(|words| step.to_string().contains(words)) {
            return Err(refused(step, "as the test wants".to_owned()));
        }
        let mut done = Done::default();
        let mut as_done = step.clone();
        if let Step::Masks(_, masks) = &mut as_done {
            for (cache, mask) in masks.iter_mut().filter(|(_, mask)| mask.overlaps(host.paired)) {
                let asked = mask.to_string();
                *mask = mask.or(host.paired);
                if mask.to_string() != asked {
                    let found = Some(mask.to_string());
                    done.differences.push(Difference { resource: Resource::L3, domain: *cache, asked, found });
                }
            }
        }
        host.kernel.does(&as_done).map_err(|why| refused(step, why))?;
        done.threads = match step {
            Step::Process(_, _, threads) => threads.len(),
            Step::Thread(..) => 1,
            _ => 0,
        };
        host.steps.push(step.clone());
        Ok(done)
    }

    fn caches(&self) -> BTreeMap<CacheId, Bytes> {
        [(CacheId(0), Bytes::mib(12))].into()
    }

    fn warm_up(&mut self, partition: &WarmPartition) -> Result<Pid, Error> {
        let mut host = self.0.borrow_mut();
        host.next_thread += 1;
        let thread = Pid(host.next_thread);
        // A replaced thread ends, and leaves its group.
        if let Some((old, ..)) =
            host.threads.insert((partition.label.clone(), partition.cache), (thread, false, partition.pages.len()))
        {
            host.kernel.groups.values_mut().for_each(|group| {
                group.threads.remove(&old);
            });
        }
        Ok(thread)
    }

    fn begin(&mut self, key: &Key) {
        if let Some(thread) = self.0.borrow_mut().threads.get_mut(key) {
            thread.1 = true;
        }
    }

    fn keep_only(&mut self, keys: &BTreeSet<Key>) {
        let mut host = self.0.borrow_mut();
        let gone: Vec<Pid> =
            host.threads.iter().filter(|(key, _)| !keys.contains(*key)).map(|(_, (thread, ..))| *thread).collect();
        host.threads.retain(|key, _| keys.contains(key));
        for thread in gone {
            host.kernel.groups.values_mut().for_each(|group| {
                group.threads.remove(&thread);
            });
        }
    }

    fn warming(&self) -> BTreeMap<Key, Pid> {
        self.0.borrow().threads.iter().map(|(key, (thread, ..))| (key.clone(), *thread)).collect()
    }

    fn state(&self) -> BTreeMap<Key, WarmState> {
        let host = self.0.borrow();
        let state = |pages: usize| WarmState { pages: pages as u64, cpu_us: 5, ..WarmState::default() };
        host.threads.iter().map(|(key, (_, _, pages))| (key.clone(), state(*pages))).collect()
    }

    fn restore(&mut self) -> Result<(), Error> {
        let mut host = self.0.borrow_mut();
        let all = host.kernel.all;
        let before = host.restores_to.unwrap_or(all);
        if let Some(default) = host.kernel.groups.get_mut("") {
            default.masks.values_mut().for_each(|mask| *mask = before);
        }
        Ok(())
    }
}

const SHARING: &str = "policy = \"sharing\"\nrest_ways = 2\n[[program]]\nname = \"web\"\npids = [10]\n[[program]]\nname = \"db\"\npids = [20]\n";

fn daemon(model: &Model, text: &str) -> Daemon<Model> {
    Daemon::new(model.clone(), Config::parse("llc.toml", text).unwrap()).unwrap()
}

fn lines(events: &[Event]) -> Vec<String> {
    events.iter().map(Event::to_string).collect()
}

fn at(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[test]
fn what_is_planned_is_done_said_and_not_done_again() {
    let model = Model::new(2);
    let before = model.0.borrow().kernel.groups.clone();
    let (_, planned) = daemon(&model, SHARING).plan(at(0)).unwrap();
    assert_eq!(model.0.borrow().steps, [], "a plan does nothing");
    let mut daemon = daemon(&model, SHARING);
    let reported = lines(&daemon.step(at(0)).unwrap());
    assert_eq!(
        reported[..4],
        [
            "web: 1 process, 2 threads",
            "db: 1 process, 2 threads",
            "shared: 2.0 MiB in /shop by web, db",
            "decided by sharing, without curves, since web has none (no counters here): equal ways, shared partitions by size: \
             masu-web f, masu-db f0, masu-shared.shop 300 exclusive, the default group c00",
        ]
    );
    assert_eq!(reported[4], "did give the default group ways c00");
    assert_eq!((model.ways("web"), model.ways("db"), model.ways("shared.shop")), (0xf, 0xf0, 0x300));
    assert_eq!((model.threads_in("web"), model.threads_in("shared.shop")), (vec![10, 11], vec![901]));
    assert!(model.0.borrow().threads[&("shared.shop".to_owned(), CacheId(0))].1, "it has begun");
    // Steps of the plan, with the thread in place of its name; the other cache has no CPU here.
    let done = model.0.borrow().steps.clone();
    let at_first = planned.iter().take_while(|step| !matches!(step, Step::WarmUp(..))).count();
    assert_eq!(planned[..at_first], done[..at_first]);
    assert_eq!(planned[at_first], Step::WarmUp("shared.shop".to_owned(), CacheId(0)));
    assert_eq!(done[at_first + 2], Step::Thread("shared.shop".to_owned(), Pid(901)));
    assert!(
        reported.contains(&"without warm shared partitions in cache 1: no CPU of this host uses it".to_owned()),
        "{reported:?}"
    );
    for second in 1..5 {
        assert_eq!(lines(&daemon.step(at(second)).unwrap()), [""; 0]);
    }
    let (summary, events, answer) = daemon.finish();
    answer.unwrap();
    assert_eq!(lines(&events), ["restored: 3 groups removed, the default group has its ways"]);
    assert_eq!((summary.plans, summary.refill_cpu_us), (1, 5));
    assert_eq!(model.0.borrow().kernel.groups, before);
}

#[test]
fn threads_and_processes_that_come_are_taken_in_and_those_that_end_are_counted() {
    let model = Model::new(0);
    let mut daemon = daemon(&model, SHARING);
    daemon.step(at(0)).unwrap();
    model.0.borrow_mut().programs[0] = vec![(10, vec![10, 11, 12]), (13, vec![13])];
    assert_eq!(
        lines(&daemon.step(at(1)).unwrap()),
        ["web: 2 processes, 4 threads", "did put 2 processes, 2 threads, into group masu-web"]
    );
    assert_eq!(model.threads_in("web"), [10, 11, 12, 13]);
    // 13 ends, and 10 loses a thread: the kernel takes them out.
    model.0.borrow_mut().programs[0] = vec![(10, vec![10, 11])];
    for gone in [12, 13] {
        model.0.borrow_mut().kernel.groups.get_mut("web").unwrap().threads.remove(&Pid(gone));
    }
    assert_eq!(lines(&daemon.step(at(2)).unwrap()), ["web: 1 process, 2 threads; 1 ended"]);
}

#[test]
fn the_ways_of_a_program_that_ended_are_given_to_others_and_with_the_last_it_is_over() {
    let model = Model::new(2);
    let mut daemon = daemon(&model, SHARING);
    daemon.step(at(0)).unwrap();
    model.0.borrow_mut().programs[1].clear();
    model.0.borrow_mut().sets = shares(0);
    let reported = lines(&daemon.step(at(1)).unwrap());
    assert_eq!(reported[0], "db: no process any more");
    assert_eq!(model.labels(), ["web"]);
    assert_eq!(model.ways("web"), 0x3ff);
    assert!(model.0.borrow().threads.is_empty() && !daemon.is_over());
    model.0.borrow_mut().programs[0].clear();
    daemon.step(at(2)).unwrap();
    assert!(daemon.is_over() && model.labels().is_empty());
    assert_eq!(model.ways(""), 0xfff, "no program uses the cache");
}

#[test]
fn a_child_that_is_born_between_two_looks_stays_and_a_stranger_leaves() {
    let model = Model::new(0);
    let mut daemon = daemon(&model, SHARING);
    daemon.step(at(0)).unwrap();
    let come = |thread: i32| model.0.borrow_mut().kernel.groups.get_mut("web").unwrap().threads.insert(Pid(thread));
    come(12); // the kernel puts it where its parent is
    assert_eq!(lines(&daemon.step(at(1)).unwrap()), [""; 0]);
    model.0.borrow_mut().programs[0] = vec![(10, vec![10, 11]), (12, vec![12])];
    assert_eq!(lines(&daemon.step(at(2)).unwrap()), ["web: 2 processes, 3 threads"]);
    come(77);
    daemon.step(at(3)).unwrap();
    assert_eq!(model.threads_in("web"), [10, 11, 12, 77]);
    assert_eq!(lines(&daemon.step(at(4)).unwrap()), ["did put 1 thread into the default group"]);
    assert_eq!(model.threads_in("web"), [10, 11, 12]);
}

#[test]
fn when_no_new_plan_can_be_made_what_there_is_stays() {
    let model = Model::new(2);
    let mut daemon = daemon(&model, SHARING);
    daemon.step(at(0)).unwrap();
    let theirs = super::super::steps::ObservedGroup {
        masks: [(CacheId(0), WayMask(0xfff)), (CacheId(1), WayMask(0xfff))].into(),
        exclusive: true,
        ..Default::default()
    };
    let before = model.0.borrow().kernel.groups.clone();
    model.0.borrow_mut().kernel.groups.insert("theirs".to_owned(), theirs.clone());
    // At the same moment nothing is shared any more.
    model.0.borrow_mut().sets = shares(0);
    let reported = lines(&daemon.step(at(1)).unwrap());
    assert_eq!(
        reported[1],
        "without a new plan: cannot partition the cache: 12 of its 12 ways are taken, needed in a row: 2"
    );
    assert_eq!(model.threads_in("shared.shop"), [901]);
    model.0.borrow_mut().kernel.groups.remove("theirs");
    assert_eq!(model.0.borrow().kernel.groups, before);
    daemon.step(at(2)).unwrap();
    assert_eq!(model.labels(), ["db", "web"]);
}

#[test]
fn a_failure_at_first_is_the_end_and_all_is_put_back() {
    for words in ["make group masu-db", "its own", "put process 20", "put thread 901"] {
        let model = Model::new(2);
        let before = model.0.borrow().kernel.groups.clone();
        model.0.borrow_mut().refuses = Some(words);
        let mut daemon = daemon(&model, SHARING);
        let error = daemon.step(at(0)).unwrap_err();
        assert!(matches!(&error, LoopError::Step(refused) if refused.step.to_string().contains(words)), "{error}");
        model.0.borrow_mut().refuses = None;
        daemon.finish().2.unwrap();
        assert_eq!(model.0.borrow().kernel.groups, before, "{words}");
    }
}

#[test]
fn a_failure_later_is_said_once_and_tried_again() {
    let model = Model::new(0);
    let mut daemon = daemon(&model, SHARING);
    daemon.step(at(0)).unwrap();
    model.0.borrow_mut().programs[0] = vec![(10, vec![10, 11]), (13, vec![13])];
    model.0.borrow_mut().refuses = Some("put process 13");
    let reported = lines(&daemon.step(at(1)).unwrap());
    assert!(reported[1].starts_with("did not put process 13 into group masu-web: cannot"), "{reported:?}");
    assert_eq!(lines(&daemon.step(at(2)).unwrap()), [""; 0]);
    model.0.borrow_mut().refuses = None;
    assert_eq!(lines(&daemon.step(at(3)).unwrap()), ["did put 1 process, 1 thread, into group masu-web"]);
    assert_eq!(daemon.summary.failures, 2);
}

#[test]
fn what_the_processor_makes_of_a_mask_is_said_and_not_fought() {
    let model = Model::new(0);
    // web has 1f and db 3e0: way 5 brings way 4 with it.
    model.0.borrow_mut().paired = WayMask(0x30);
    let mut daemon = daemon(&model, SHARING);
    let reported = lines(&daemon.step(at(0)).unwrap());
    let differs: Vec<&String> = reported.iter().filter(|line| line.contains("moves some together")).collect();
    assert_eq!(differs.len(), 2, "{reported:?}");
    assert_eq!(differs[0], "masu-web was to have ways 1f and has 3f: this processor moves some together");
    assert_eq!(lines(&daemon.step(at(1)).unwrap()), [""; 0]);
}

#[test]
fn with_counters_allocations_are_visited_and_then_curves_decide() {
    let model = Model::new(0);
    // web needs 7 ways, db none.
    model.0.borrow_mut().misses =
        Some(|program, ways| if program == 0 { 5 * u64::from(7u32.saturating_sub(ways)) } else { 1 });
    let mut daemon = daemon(&model, SHARING);
    let mut decided = Vec::new();
    for second in 0..80 {
        let reported = lines(&daemon.step(at(second)).unwrap());
        decided.extend(reported.into_iter().filter(|line| line.starts_with("decided")));
    }
    assert!(
        decided[0].starts_with("decided by sharing, visiting allocation 1 to learn curves: masu-web 1f, masu-db 3e0")
    );
    assert!(decided[1].contains("allocation 2") && decided[1].contains("masu-web 1ff, masu-db 200"), "{decided:#?}");
    assert!(decided[2].contains("allocation 3") && decided[2].contains("masu-web 1, masu-db 3fe"), "{decided:#?}");
    assert!(decided[3].contains("measuring without partitions first: masu-web 3ff, "), "{decided:#?}");
    // web is served best this way: nothing is to be gained by dividing.
    assert_eq!((model.ways("web"), decided.len()), (0x3ff, 4), "and there it stays: {decided:#?}");
}

#[test]
fn without_partitions_what_is_shared_is_only_kept_in_the_cache() {
    let text = SHARING.replace("rest_ways = 2", "partition = \"off\"");
    let model = Model::new(2);
    let mut daemon = daemon(&model, &text);
    let reported = lines(&daemon.step(at(0)).unwrap());
    assert!(reported[3].starts_with("/shop in cache 0: 0 of 512 pages merged with ours"), "{reported:?}");
    assert!(model.0.borrow().steps.is_empty());
    assert_eq!(model.0.borrow().threads.len(), 1);
    // Half of the cache and no more.
    model.0.borrow_mut().sets = shares(10);
    daemon.step(at(1)).unwrap();
    assert_eq!(model.0.borrow().threads.values().next().unwrap().2, 6 * 256);
    let (_, events, answer) = daemon.finish();
    answer.unwrap();
    assert!(events.is_empty() && model.0.borrow().threads.is_empty());
    model.0.borrow_mut().merging = false;
    let error = Daemon::new(model, Config::parse("f", &text).unwrap()).unwrap_err();
    assert_eq!(error.to_string(), "KSM is not running; `echo 1 > /sys/kernel/mm/ksm/run` starts it");
}

#[test]
fn a_few_other_pages_are_no_reason_to_copy_all_anew_and_many_are() {
    let model = Model::new(2);
    let mut daemon = daemon(&model, SHARING);
    daemon.step(at(0)).unwrap();
    let less = |pages: usize| {
        let mut sets = shares(2);
        sets.sets[0].pages.truncate(512 - pages);
        sets
    };
    model.0.borrow_mut().sets = less(20);
    daemon.step(at(1)).unwrap();
    assert_eq!(model.threads_in("shared.shop"), [901]);
    model.0.borrow_mut().sets = less(100);
    daemon.step(at(2)).unwrap();
    assert_eq!(model.threads_in("shared.shop"), [902]);
}

#[test]
fn what_others_make_meanwhile_is_left_alone_and_planned_around() {
    let model = Model::new(0);
    let mut daemon = daemon(&model, SHARING);
    daemon.step(at(0)).unwrap();
    let theirs = super::super::steps::ObservedGroup {
        masks: [(CacheId(0), WayMask(0xc00)), (CacheId(1), WayMask(0xc00))].into(),
        threads: [Pid(77)].into(),
        ..Default::default()
    };
    model.0.borrow_mut().kernel.groups.insert("theirs".to_owned(), theirs.clone());
    daemon.step(at(1)).unwrap();
    assert_eq!(model.0.borrow().kernel.groups["theirs"], theirs);
    // With one class for all of them the programs share it.
    let full = Model::new(0);
    full.0.borrow_mut().kernel.classes = 2;
    let mut daemon = self::daemon(&full, SHARING);
    daemon.step(at(0)).unwrap();
    assert_eq!((full.labels(), full.threads_in("web")), (vec!["web".to_owned()], vec![10, 11, 20, 21]));
    let none = Model::new(0);
    none.0.borrow_mut().kernel.classes = 1;
    let error = self::daemon(&none, SHARING).step(at(0)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "cannot make groups: 1 classes of service, the default group has one, other groups 0, needed: 1"
    );
}
