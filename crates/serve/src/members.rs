//! Processes from their start to their end, each with its rules.
//!
//! Each look lists all processes, and reads the facts of new and of young ones: a fork often becomes another program
//! soon (exec). The facts of others are read by turns, because a process may change its user, its group or its program at
//! any time. A look costs one directory and the facts of a few processes, for any number of processes.

use std::collections::BTreeMap;

use linux::{Error, KernelFiles, Pid, processes, stat};

use crate::config::Config;
use crate::facts::{self, Executables};
use crate::rules::{Assignment, assign};

/// Number of first looks with facts each time.
const YOUNG_LOOKS: u32 = 6;
/// Smallest number of looks for one turn of all others.
const TURN: u64 = 40;
/// Most of the others that are read in one look, so that many processes cost no more.
const OTHERS_MOST: u64 = 25;
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
    look: u64,
    left_out: usize,
}

impl Members {
    /// Nobody yet.
    pub fn new(config: Config) -> Members {
        let executables = executables(&config);
        Members { config, executables, all: BTreeMap::new(), look: 0, left_out: 0 }
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

    /// Looks for processes. Returns all with other rules than before, in the order of their numbers.
    ///
    /// # Errors
    /// When there is no list of processes.
    pub fn look(&mut self, files: &impl KernelFiles) -> Result<Vec<Change>, Error> {
        let listed = processes::processes(files)?;
        self.look += 1;
        if self.look.is_multiple_of(TURN) {
            // Installed, replaced or mounted meanwhile.
            self.executables = executables(&self.config);
        }
        let turn = TURN.max(listed.len() as u64 / OTHERS_MOST);
        self.left_out = listed.len().saturating_sub(MEMBERS_MOST);
        let mut changes = Vec::new();
        let mut before = std::mem::take(&mut self.all);
        for pid in listed.into_iter().take(MEMBERS_MOST) {
            let known = before.remove(&pid);
            let is_due = known.as_ref().is_none_or(|known| {
                known.looks < YOUNG_LOOKS || u64::from(pid.0.unsigned_abs()) % turn == self.look % turn
            });
            let member = if is_due { self.read(files, pid, known.as_ref()) } else { known.clone() };
            let now = member.as_ref().map(|member| member.assignment.clone()).unwrap_or_default();
            // Another process has the number now: the features of the old one end first.
            let is_another = known.as_ref().zip(member.as_ref()).is_some_and(|(a, b)| a.start_ticks != b.start_ticks);
            let was = known.map(|known| known.assignment).unwrap_or_default();
            if is_another && was != Assignment::default() {
                changes.push(Change { pid, now: Assignment::default() });
            }
            if now != was || (is_another && now != Assignment::default()) {
                changes.push(Change { pid, now: now.clone() });
            }
            if let Some(member) = member {
                self.all.insert(pid, member);
            }
        }
        let ended = before.into_iter().filter(|(_, member)| member.assignment != Assignment::default());
        changes.extend(ended.map(|(pid, _)| Change { pid, now: Assignment::default() }));
        Ok(changes)
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

    fn look(members: &mut Members, kernel: &FakeKernel) -> Vec<(i32, Option<String>)> {
        let changes = members.look(kernel).unwrap().into_iter();
        changes.map(|change| (change.pid.0, change.now.huge.map(|huge| huge.rule))).collect()
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
        let found = (0..TURN).find(|_| look(&mut members, &kernel) == [held(70, "r")]);
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
