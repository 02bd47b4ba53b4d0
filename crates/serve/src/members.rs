//! Processes from their start to their end, each with its rules.
//!
//! Where the kernel tells which processes start, execute a program, enter a group or end, a look reads the facts of these
//! ([`Members::look_at`]), and the list of all processes is read seldom. Elsewhere each look reads the list, and the facts
//! of new processes. In both cases the facts of young ones are read some more times: a fork often becomes another program
//! soon, or changes its user. The facts of all others are read by turns, because a process may change its user or its
//! name at any time.

use std::collections::{BTreeMap, BTreeSet};

use linux::{Error, KernelFiles, Pid, processes, stat};

use crate::config::Config;
use crate::facts::{self, Executables};
use crate::rules::{Assignment, assign};

/// Number of first looks with facts each time.
const YOUNG_LOOKS: u32 = 6;
/// Most processes that are read in one look for events: the others come with the next.
const EVENTS_MOST: usize = 200;
/// Most followed processes.
const MEMBERS_MOST: usize = 100_000;

/// A followed process.
#[derive(Clone, Debug)]
struct Member {
    /// Start in clock ticks after boot: a number may be reused.
    start_ticks: u64,
    assignment: Assignment,
    looks: u32,
}

/// Turn of the processes that are not young: the number of looks in which each is read once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// Smallest number of looks.
    pub looks: u64,
    /// Most processes of one look, so that many processes cost no more.
    pub most: u64,
}

/// A process with other rules than before.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    /// The process.
    pub pid: Pid,
    /// Rules now; none after its end.
    pub now: Assignment,
}

/// All processes, each with its rules.
#[derive(Debug)]
pub struct Members {
    config: Config,
    executables: Executables,
    all: BTreeMap<Pid, Member>,
    /// Members with less than [`YOUNG_LOOKS`] looks.
    young: BTreeSet<Pid>,
    /// Processes with an event, not looked at yet.
    due: BTreeSet<Pid>,
    look: u64,
    left_out: usize,
}

impl Members {
    /// Nobody yet.
    pub fn new(config: Config) -> Members {
        let executables = executables(&config);
        let (young, due) = (BTreeSet::new(), BTreeSet::new());
        Members { config, executables, all: BTreeMap::new(), young, due, look: 0, left_out: 0 }
    }

    /// The rules in force.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Replaces the rules. The next look returns all processes with other or changed rules.
    pub fn reload(&mut self, config: Config) {
        self.config = config;
        self.executables = executables(&self.config);
        for member in self.all.values_mut() {
            member.looks = 0;
        }
    }

    /// Number of processes beyond the bound at the last look; they are not followed.
    pub fn left_out(&self) -> usize {
        self.left_out
    }

    /// Looks at all processes. Returns the ones with other rules than before, in the order of their numbers.
    ///
    /// # Errors
    /// When there is no list of processes.
    pub fn look(&mut self, files: &impl KernelFiles, turn: Turn) -> Result<Vec<Change>, Error> {
        let listed = processes::processes(files)?;
        self.look += 1;
        if self.look.is_multiple_of(turn.looks) {
            // Installed, replaced or mounted meanwhile.
            self.executables = executables(&self.config);
        }
        let turn = turn.looks.max(listed.len() as u64 / turn.most);
        self.left_out = listed.len().saturating_sub(MEMBERS_MOST);
        let mut changes = Vec::new();
        let mut before = std::mem::take(&mut self.all);
        for pid in listed.into_iter().take(MEMBERS_MOST) {
            let known = before.remove(&pid);
            let is_due = known.as_ref().is_none_or(|known| {
                known.looks < YOUNG_LOOKS || u64::from(pid.0.unsigned_abs()) % turn == self.look % turn
            });
            match known {
                Some(known) if !is_due => drop(self.all.insert(pid, known)),
                known => self.read_one(files, pid, known, &mut changes),
            }
        }
        self.young.retain(|pid| self.all.contains_key(pid));
        let ended = before.into_iter().filter(|(_, member)| member.assignment != Assignment::default());
        changes.extend(ended.map(|(pid, _)| Change { pid, now: Assignment::default() }));
        Ok(changes)
    }

    /// Looks at these processes, which have started, changed or ended, and at the young ones, if it is time for them.
    /// Returns the ones with other rules than before.
    pub fn look_at(
        &mut self,
        files: &impl KernelFiles,
        pids: impl IntoIterator<Item = Pid>,
        with_young: bool,
    ) -> Vec<Change> {
        let mut changes = Vec::new();
        let young: Vec<Pid> = if with_young { self.young.iter().copied().collect() } else { Vec::new() };
        for pid in young {
            let known = self.all.remove(&pid);
            self.read_one(files, pid, known, &mut changes);
        }
        let before = self.due.len();
        self.due.extend(pids);
        if self.due.len() > before {
            // An update has replaced the file that is executed now.
            self.executables = executables(&self.config);
        }
        for _ in 0..EVENTS_MOST {
            let Some(pid) = self.due.pop_first() else { break };
            // It is young again: it may be a service manager's child that takes another user next.
            let known = self.all.remove(&pid).map(|known| Member { looks: 0, ..known });
            if known.is_some() || self.all.len() < MEMBERS_MOST {
                self.read_one(files, pid, known, &mut changes);
            }
        }
        changes
    }

    /// Reads the facts of one process, which is not among the members now.
    fn read_one(&mut self, files: &impl KernelFiles, pid: Pid, known: Option<Member>, changes: &mut Vec<Change>) {
        let member = self.read(files, pid, known.as_ref());
        let now = member.as_ref().map(|member| member.assignment.clone()).unwrap_or_default();
        // Another process has the number now: the features of the old one end first.
        let is_another = known.as_ref().zip(member.as_ref()).is_some_and(|(a, b)| a.start_ticks != b.start_ticks);
        let was = known.map(|known| known.assignment).unwrap_or_default();
        if is_another && was != Assignment::default() {
            changes.push(Change { pid, now: Assignment::default() });
        }
        if now != was || (is_another && now != Assignment::default()) {
            changes.push(Change { pid, now });
        }
        match member {
            Some(member) => {
                if member.looks < YOUNG_LOOKS {
                    self.young.insert(pid)
                } else {
                    self.young.remove(&pid)
                };
                self.all.insert(pid, member);
            }
            None => drop(self.young.remove(&pid)),
        }
    }

    /// Facts of a process, and the rules for it; `None` if it ended.
    fn read(&self, files: &impl KernelFiles, pid: Pid, known: Option<&Member>) -> Option<Member> {
        let start_ticks = stat::stat(files, pid).ok()?.start_ticks;
        let facts = facts::read(files, pid, &self.executables).ok()?;
        let looks = known.filter(|known| known.start_ticks == start_ticks).map_or(0, |known| known.looks);
        Some(Member { start_ticks, assignment: assign(&self.config, &facts), looks: looks.saturating_add(1) })
    }
}

fn executables(config: &Config) -> Executables {
    Executables::find(config.rules.iter().filter_map(|rule| rule.select.executable.clone()))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use linux::fake::FakeKernel;

    use super::*;

    fn config(rules: &[(&str, &str)]) -> Config {
        let mut config = Config::default();
        for (name, select) in rules {
            let text = format!("[[rule]]\nname = \"{name}\"\nselect = {{ {select} }}\nhuge = {{ mode = \"hot\" }}\n");
            config.add(Path::new("masu.toml"), &text, "").unwrap();
        }
        config
    }

    fn process(kernel: &FakeKernel, pid: i32, name: &str, start: u64, group: &str) {
        kernel.add(
            &format!("proc/{pid}/stat"),
            &format!("{pid} (x) S 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 {start} 0 0\n"),
        );
        kernel.add(&format!("proc/{pid}/cgroup"), &format!("0::{group}\n"));
        kernel.add(
            &format!("proc/{pid}/status"),
            &format!("Name:\t{name}\nState:\tS\nTgid:\t{pid}\nUid:\t7\t7\t7\t7\nVmRSS:\t 4 kB\nVmSize:\t 4 kB\nThreads:\t1\nCapEff:\t0\n"),
        );
    }

    const TURN: Turn = Turn { looks: 40, most: 25 };

    fn look(members: &mut Members, kernel: &FakeKernel) -> Vec<(i32, Option<String>)> {
        shown(members.look(kernel, TURN).unwrap())
    }

    fn look_at(members: &mut Members, kernel: &FakeKernel, pids: &[i32]) -> Vec<(i32, Option<String>)> {
        shown(members.look_at(kernel, pids.iter().copied().map(Pid), true))
    }

    fn shown(changes: Vec<Change>) -> Vec<(i32, Option<String>)> {
        changes.into_iter().map(|change| (change.pid.0, change.now.huge.map(|huge| huge.rule))).collect()
    }

    fn held(pid: i32, rule: &str) -> (i32, Option<String>) {
        (pid, Some(rule.to_owned()))
    }

    const WEB: &str = r#"cgroup = "web""#;
    const RUN: &str = r#"command = "run", user = "7""#;

    #[test]
    fn a_process_is_a_member_from_the_next_look_to_its_end() {
        let kernel = FakeKernel::new();
        process(&kernel, 70, "a", 5, "/web");
        process(&kernel, 71, "b", 5, "/other");
        let mut members = Members::new(config(&[("w", WEB)]));
        assert_eq!(look(&mut members, &kernel), [held(70, "w")]);
        assert_eq!(look(&mut members, &kernel), []);
        process(&kernel, 72, "c", 9, "/web/in");
        assert_eq!(look(&mut members, &kernel), [held(72, "w")]);
        kernel.remove("proc/70");
        assert_eq!(look(&mut members, &kernel), [(70, None)]);
    }

    #[test]
    fn a_fork_that_becomes_another_program_is_found_at_the_next_look() {
        let kernel = FakeKernel::new();
        process(&kernel, 70, "shell", 5, "/");
        let mut members = Members::new(config(&[("r", RUN)]));
        assert_eq!(look(&mut members, &kernel), []);
        process(&kernel, 70, "run", 5, "/");
        assert_eq!(look(&mut members, &kernel), [held(70, "r")]);
    }

    #[test]
    fn what_an_old_process_becomes_is_found_within_a_turn() {
        let kernel = FakeKernel::new();
        process(&kernel, 70, "shell", 5, "/");
        let mut members = Members::new(config(&[("r", RUN)]));
        (0..50).for_each(|_| assert_eq!(look(&mut members, &kernel), []));
        process(&kernel, 70, "run", 5, "/");
        let found = (0..TURN.looks).find(|_| look(&mut members, &kernel) == [held(70, "r")]);
        assert!(found.is_some());
    }

    #[test]
    fn a_number_that_is_used_again_is_another_process() {
        let kernel = FakeKernel::new();
        process(&kernel, 70, "a", 5, "/web");
        let mut members = Members::new(config(&[("w", WEB)]));
        assert_eq!(look(&mut members, &kernel), [held(70, "w")]);
        process(&kernel, 70, "b", 900, "/web");
        assert_eq!(look(&mut members, &kernel), [(70, None), held(70, "w")]);
    }

    #[test]
    fn an_event_of_a_process_makes_it_a_member_without_a_list() {
        let kernel = FakeKernel::new();
        process(&kernel, 70, "shell", 5, "/");
        let mut members = Members::new(config(&[("r", RUN), ("w", WEB)]));
        assert_eq!(look(&mut members, &kernel), []);
        process(&kernel, 71, "a", 9, "/web");
        process(&kernel, 72, "b", 9, "/web");
        assert_eq!(look_at(&mut members, &kernel, &[71]), [held(71, "w")]);
        assert_eq!(look_at(&mut members, &kernel, &[71]), [], "nothing has changed");
        kernel.remove("proc/71");
        assert_eq!(look_at(&mut members, &kernel, &[71, 4000]), [(71, None)]);
        assert_eq!(look(&mut members, &kernel), [held(72, "w")], "an event that was lost");
    }

    #[test]
    fn a_process_is_young_again_after_an_event() {
        let kernel = FakeKernel::new();
        process(&kernel, 70, "shell", 5, "/");
        let mut members = Members::new(config(&[("r", RUN)]));
        (0..50).for_each(|_| assert_eq!(look(&mut members, &kernel), []));
        assert_eq!(look_at(&mut members, &kernel, &[70]), []);
        process(&kernel, 70, "run", 5, "/");
        assert_eq!(look_at(&mut members, &kernel, &[]), [held(70, "r")]);
        (0..50).for_each(|_| assert_eq!(look_at(&mut members, &kernel, &[]), []));
        process(&kernel, 70, "shell", 5, "/");
        assert_eq!(look_at(&mut members, &kernel, &[]), [], "it is no longer young");
    }

    #[test]
    fn more_events_than_a_look_reads_are_read_next() {
        let kernel = FakeKernel::new();
        let mut members = Members::new(config(&[("w", WEB)]));
        let pids: Vec<i32> = (100..).take(EVENTS_MOST + 5).collect();
        pids.iter().for_each(|pid| process(&kernel, *pid, "a", 9, "/web"));
        assert_eq!(look_at(&mut members, &kernel, &pids).len(), EVENTS_MOST);
        assert_eq!(look_at(&mut members, &kernel, &[]).len(), 5);
    }

    #[test]
    fn a_reload_changes_only_what_changed() {
        let kernel = FakeKernel::new();
        process(&kernel, 70, "a", 5, "/web");
        process(&kernel, 71, "run", 5, "/");
        let mut members = Members::new(config(&[("w", WEB), ("r", RUN)]));
        assert_eq!(look(&mut members, &kernel), [held(70, "w"), held(71, "r")]);
        members.reload(config(&[("r", RUN), ("w", WEB)]));
        assert_eq!(look(&mut members, &kernel), [], "other numbers, the same rules");
        members.reload(config(&[("w", WEB)]));
        assert_eq!(look(&mut members, &kernel), [(71, None)]);
    }
}
