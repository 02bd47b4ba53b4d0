//! Threads and their groups.
//!
//! In the kernel new threads and processes are in the group of their creator, from the fork on. An emulator sees no
//! forks: before every move and every read it scans the threads, and puts a new one into the group of its process's
//! first thread, or, if it is that, into the group of its parent process. So it differs from the kernel in two cases:
//! a fork by a thread in another group than its process's first one, and a process whose parent ended before the next
//! scan.

use std::collections::{BTreeMap, HashMap};

use crate::group::GroupId;

/// A thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Task {
    /// Thread id.
    pub tid: u32,
    /// Id of its process: of the process's first thread.
    pub process: u32,
    /// Parent of its process; 0 for none.
    pub parent: u32,
    /// Start time in clock ticks, which tells it from an earlier thread with the same id.
    pub began: u64,
}

/// Owner of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    /// The user.
    pub uid: u32,
    /// Saved user, which the thread may become again.
    pub saved_uid: u32,
}

/// Source of threads.
pub trait Tasks: Send {
    /// All threads.
    fn all(&self) -> Vec<Task>;

    /// User of this thread; `None` if there is no such thread.
    fn owner(&self, tid: u32) -> Option<Owner>;
}

/// Group of each thread of the last scan.
#[derive(Clone, Debug, Default)]
pub struct Members(BTreeMap<u32, (u64, GroupId)>);

impl Members {
    /// Assigns new threads to groups, and forgets ended ones.
    pub fn look(&mut self, tasks: &[Task]) {
        let by_tid: HashMap<u32, &Task> = tasks.iter().map(|task| (task.tid, task)).collect();
        let mut now = BTreeMap::new();
        for task in tasks {
            let mut kin = task;
            // Up to the first known ancestor. Ids may be reused during the read, so the path is bounded.
            let group = (0..=tasks.len()).find_map(|_| match self.0.get(&kin.tid) {
                Some((began, group)) if *began == kin.began => Some(*group),
                _ => {
                    let above = if kin.tid == kin.process { kin.parent } else { kin.process };
                    match by_tid.get(&above) {
                        Some(next) if above != kin.tid => {
                            kin = next;
                            None
                        }
                        _ => Some(GroupId::ROOT),
                    }
                }
            });
            now.insert(task.tid, (task.began, group.unwrap_or(GroupId::ROOT)));
        }
        self.0 = now;
    }

    /// Group of a thread of the last scan.
    pub fn group_of(&self, tid: u32) -> Option<GroupId> {
        self.0.get(&tid).map(|(_, group)| *group)
    }

    /// Moves a thread into a group.
    pub fn put(&mut self, tid: u32, into: GroupId) {
        if let Some((_, group)) = self.0.get_mut(&tid) {
            *group = into;
        }
    }

    /// Moves all threads of a group into another.
    pub fn put_all(&mut self, from: GroupId, into: GroupId) {
        self.0.values_mut().filter(|(_, group)| *group == from).for_each(|(_, group)| *group = into);
    }

    /// Threads of the selected groups, in order.
    pub fn of(&self, is_asked: impl Fn(GroupId) -> bool) -> Vec<u32> {
        self.0.iter().filter(|(_, (_, group))| is_asked(*group)).map(|(tid, _)| *tid).collect()
    }
}

/// The writing thread of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Writer {
    /// Thread id.
    pub tid: u32,
    /// User of the thread.
    pub uid: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    const WEB: GroupId = GroupId(7);

    fn task(tid: u32, process: u32, parent: u32) -> Task {
        Task { tid, process, parent, began: 100 + u64::from(tid) }
    }

    #[test]
    fn only_those_who_come_after_a_move_follow_it() {
        let mut members = Members::default();
        let before = [task(1, 1, 0), task(10, 10, 1), task(11, 10, 1), task(20, 20, 10)];
        members.look(&before);
        members.put(10, WEB);
        let new = [task(12, 10, 1), task(21, 20, 10), task(30, 30, 10), task(31, 30, 10), task(40, 40, 20)];
        members.look(&[&before[..], &new].concat());
        // Thread 11 and child 20 were there before; thread 12, child 30 and its thread 31 were made by threads of the
        // group.
        assert_eq!(members.of(|group| group == WEB), [10, 12, 30, 31]);
        members.look(&[task(1, 1, 0), task(30, 30, 1)]);
        assert_eq!(members.of(|group| group == WEB), [30], "a child outlives its parent");
    }

    #[test]
    fn an_id_that_is_used_again_is_not_the_same_thread() {
        let mut members = Members::default();
        members.look(&[task(1, 1, 0), task(10, 10, 1)]);
        members.put(10, WEB);
        members.look(&[task(1, 1, 0), Task { began: 999, ..task(10, 10, 1) }]);
        assert_eq!(members.group_of(10), Some(GroupId::ROOT));
    }

    #[test]
    fn threads_that_are_their_own_parents_come_to_an_end() {
        let mut members = Members::default();
        members.look(&[task(5, 6, 0), task(6, 6, 7), task(7, 7, 6)]);
        assert_eq!(members.group_of(5), Some(GroupId::ROOT));
    }
}
