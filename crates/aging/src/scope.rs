//! Processes whose pages are aged: of the host, of a control group, or named.

use std::collections::{BTreeMap, BTreeSet};

use linux::cgroup::group::{self, Group};
use linux::{Error, KernelFiles, Pid, processes, stat};

/// Scope of the aging.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    /// All processes of the host.
    Host,
    /// Processes in a control group and below it.
    Group(String),
    /// Named processes.
    Processes(BTreeSet<Pid>),
}

impl Scope {
    /// Control group of the scope, if it is one.
    ///
    /// # Errors
    /// `Unsupported` without such a group.
    pub fn group(&self, files: &impl KernelFiles) -> Result<Option<Group>, Error> {
        match self {
            Scope::Group(name) => group::find(files, name).map(Some),
            Scope::Host | Scope::Processes(_) => Ok(None),
        }
    }
}

/// Processes of a scope. A named process that ended is not replaced by a later one with the same pid.
#[derive(Debug)]
pub struct Members {
    scope: Scope,
    /// Start time of each named process.
    started: BTreeMap<Pid, u64>,
}

impl Members {
    /// Processes of the scope, named processes as they run now.
    pub fn of(files: &impl KernelFiles, scope: Scope) -> Members {
        let started = match &scope {
            Scope::Processes(pids) => {
                pids.iter().filter_map(|pid| Some((*pid, stat::stat(files, *pid).ok()?.start_ticks))).collect()
            }
            Scope::Host | Scope::Group(_) => BTreeMap::new(),
        };
        Members { scope, started }
    }

    /// The scope.
    pub fn scope(&self) -> &Scope {
        &self.scope
    }

    /// Control group of the scope; `None` without one, and while it is gone.
    pub fn group(&self, files: &impl KernelFiles) -> Option<Group> {
        self.scope.group(files).ok().flatten()
    }

    /// Processes that run now, without masu.
    ///
    /// # Errors
    /// Error of the kernel for `/proc`.
    pub fn processes(&self, files: &impl KernelFiles) -> Result<BTreeSet<Pid>, Error> {
        let mut pids = match &self.scope {
            Scope::Host => processes::processes(files)?.into_iter().collect(),
            Scope::Group(_) => self.group(files).map_or_else(BTreeSet::new, |group| group.processes),
            Scope::Processes(_) => {
                let is_same = |(pid, start_ticks): &(&Pid, &u64)| {
                    stat::stat(files, **pid).is_ok_and(|now| now.start_ticks == **start_ticks)
                };
                self.started.iter().filter(is_same).map(|(pid, _)| *pid).collect()
            }
        };
        pids.remove(&Pid::own());
        Ok(pids)
    }
}

#[cfg(test)]
mod tests {
    use linux::fake::FakeKernel;

    use super::*;

    #[test]
    fn a_later_process_with_the_same_pid_is_not_a_member() {
        let own = std::fs::read_to_string("/proc/self/stat").unwrap();
        let (before, after) = own.rsplit_once(')').unwrap();
        let started_at = |ticks: u64| {
            let mut fields: Vec<String> = after.split_whitespace().map(str::to_owned).collect();
            fields[19] = ticks.to_string();
            FakeKernel::new().file("proc/7/stat", &format!("{before}) {}\n", fields.join(" ")))
        };
        let members = Members::of(&started_at(100), Scope::Processes([Pid(7), Pid(8)].into()));
        assert_eq!(members.processes(&started_at(100)).unwrap(), [Pid(7)].into());
        assert_eq!(members.processes(&started_at(101)).unwrap(), BTreeSet::new());
        assert_eq!(members.processes(&FakeKernel::new()).unwrap(), BTreeSet::new());
    }
}
