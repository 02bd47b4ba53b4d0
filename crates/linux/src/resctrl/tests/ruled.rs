//! A fake tree with rules beyond plain files: each task is in one group, threads start and end, RMIDs stay in limbo,
//! and ways move together.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};

use rustix::io::Errno;
use units::WayMask;

use super::*;
use crate::Locked;

/// Called before the file of this path is read.
type BeforeRead = Box<dyn Fn(&str)>;

/// Called on the threads after a write.
type Happening = Box<dyn Fn(&mut Threads)>;

/// The threads of processes, and the directories of the groups that they are in.
#[derive(Default)]
pub(super) struct Threads {
    pub(super) of: BTreeMap<i32, BTreeSet<i32>>,
    pub(super) group_of: BTreeMap<i32, String>,
    /// Start time of a thread in ticks; 500 for the others.
    pub(super) born: BTreeMap<i32, u64>,
    parent: BTreeMap<i32, i32>,
}

impl Threads {
    /// A thread makes another, in the same group.
    pub(super) fn make(&mut self, process: i32, maker: i32, thread: i32) {
        self.of.entry(process).or_default().insert(thread);
        if let Some(group) = self.group_of.get(&maker).cloned() {
            self.group_of.insert(thread, group);
        }
    }

    /// A process starts another, in the same group.
    pub(super) fn fork(&mut self, parent: i32, child: i32, born: u64) {
        self.make(child, parent, child);
        self.parent.insert(child, parent);
        self.born.insert(child, born);
    }

    fn stat(&self, thread: i32) -> String {
        let (parent, born) = (self.parent.get(&thread).unwrap_or(&1), self.born.get(&thread).unwrap_or(&500));
        format!("{thread} (x) S {parent} 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 {born} 0 0\n")
    }

    fn children(&self, process: i32) -> String {
        let children = self.parent.iter().filter(|(child, parent)| **parent == process && self.of.contains_key(child));
        children.map(|(child, _)| format!("{child} ")).collect()
    }

    pub(super) fn end(&mut self, process: i32, thread: i32) {
        let threads = self.of.entry(process).or_default();
        threads.remove(&thread);
        if threads.is_empty() {
            self.of.remove(&process);
        }
        self.group_of.remove(&thread);
    }
}

pub(super) struct Ruled {
    pub(super) kernel: FakeKernel,
    pub(super) threads: RefCell<Threads>,
    /// Changes to threads, by the number of moved tasks that triggers them.
    pub(super) happenings: BTreeMap<usize, Happening>,
    moves: Cell<usize>,
    /// Number of times that making a directory is refused.
    pub(super) limbo: Cell<u32>,
    /// Ways 10 and 9 move together.
    pub(super) pairs: bool,
    /// The next directory is locked by another process as soon as it is made, as a search for leftovers does.
    pub(super) looked_at: Cell<bool>,
    pub(super) looker: RefCell<Option<Locked>>,
    pub(super) before_read: Option<BeforeRead>,
}

impl Ruled {
    pub(super) fn new(kernel: FakeKernel) -> Ruled {
        let (threads, happenings) = (RefCell::default(), BTreeMap::new());
        let (moves, limbo, looked_at, looker) = (Cell::new(0), Cell::new(0), Cell::new(false), RefCell::default());
        Ruled { kernel, threads, happenings, moves, limbo, pairs: false, looked_at, looker, before_read: None }
    }

    pub(super) fn process(mut self, pid: i32, threads: &[i32]) -> Ruled {
        self.threads.get_mut().of.insert(pid, threads.iter().copied().collect());
        self
    }

    pub(super) fn in_group(mut self, directory: &str, threads: &[i32]) -> Ruled {
        self.threads.get_mut().group_of.extend(threads.iter().map(|thread| (*thread, format!("{ROOT}/{directory}"))));
        self
    }

    pub(super) fn when_moved(mut self, moves: usize, happening: impl Fn(&mut Threads) + 'static) -> Ruled {
        self.happenings.insert(moves, Box::new(happening));
        self
    }

    /// Content of the file after the command.
    fn merged(&self, before: &str, command: &str) -> String {
        let mut all = Schemata::parse("before", before).unwrap();
        for (resource, values) in Schemata::parse("command", command).unwrap().0 {
            match (all.0.get_mut(&resource), values) {
                (Some(Values::Masks(there)), Values::Masks(written)) => {
                    let pair =
                        |mask: WayMask| if self.pairs && mask.contains(10) { mask.or(WayMask(0x600)) } else { mask };
                    there.extend(written.into_iter().map(|(domain, mask)| (domain, pair(mask))));
                }
                (Some(Values::Numbers(there)), Values::Numbers(written)) => there.extend(written),
                (there, written) => panic!("{there:?} {written:?}"),
            }
        }
        all.command()
    }

    fn move_task(&self, group: &str, value: &str) -> Result<(), Errno> {
        let thread: i32 = value.trim().parse().map_err(|_| Errno::INVAL)?;
        let mut threads = self.threads.borrow_mut();
        if !threads.of.values().any(|of| of.contains(&thread)) {
            return Err(Errno::SRCH);
        }
        if group == ROOT {
            threads.group_of.remove(&thread);
        } else {
            threads.group_of.insert(thread, group.to_owned());
        }
        self.moves.set(self.moves.get() + 1);
        if let Some(happening) = self.happenings.get(&self.moves.get()) {
            happening(&mut threads);
        }
        Ok(())
    }
}

/// Directory of the group, for a `tasks` file that exists.
fn group_of_tasks(path: &str) -> Option<&str> {
    path.strip_suffix("/tasks")
}

impl KernelFiles for Ruled {
    fn read(&self, path: &str) -> Result<String, Errno> {
        self.before_read.iter().for_each(|happening| happening(path));
        let words: Vec<&str> = path.split('/').collect();
        let number = |word: &str| word.parse::<i32>().map_err(|_| Errno::NOENT);
        let threads = self.threads.borrow();
        match words[..] {
            ["proc", process, "stat"] if threads.of.contains_key(&number(process).unwrap_or(0)) => {
                return Ok(threads.stat(number(process)?));
            }
            ["proc", process, "task", thread, file] => {
                let (process, thread) = (number(process)?, number(thread)?);
                let first = process == thread;
                threads.of.get(&process).filter(|of| of.contains(&thread)).ok_or(Errno::NOENT)?;
                return match file {
                    "stat" => Ok(threads.stat(thread)),
                    "children" if first => Ok(threads.children(process)),
                    "children" => Ok(String::new()),
                    _ => Err(Errno::NOENT),
                };
            }
            _ => drop(threads),
        }
        let text = self.kernel.read(path)?;
        let Some(group) = group_of_tasks(path) else { return Ok(text) };
        let threads = self.threads.borrow();
        let within = format!("{group}/mon_groups/");
        let here = |thread: &i32| match threads.group_of.get(thread) {
            None => group == ROOT,
            Some(other) => other == group || other.starts_with(&within),
        };
        let members = threads.of.values().flatten().filter(|thread| here(thread));
        Ok(members.map(|thread| format!("{thread}\n")).collect())
    }

    fn write(&self, path: &str, value: &str) -> Result<(), Errno> {
        if let Some(group) = group_of_tasks(path) {
            self.kernel.write(path, value)?;
            return self.move_task(group, value);
        }
        let before = self.kernel.read(path)?;
        self.kernel.write(path, value)?;
        if path.ends_with("/schemata") {
            self.kernel.add(path, &self.merged(&before, value));
        }
        Ok(())
    }

    fn list(&self, path: &str) -> Result<Vec<String>, Errno> {
        let pid = path.strip_prefix("proc/").and_then(|rest| rest.strip_suffix("/task"));
        let Some(pid) = pid.and_then(|pid| pid.parse::<i32>().ok()) else { return self.kernel.list(path) };
        let threads = self.threads.borrow();
        threads.of.get(&pid).map(|of| of.iter().map(i32::to_string).collect()).ok_or(Errno::NOENT)
    }

    fn inode(&self, path: &str) -> Result<u64, Errno> {
        self.kernel.inode(path)
    }

    fn make_directory(&self, path: &str) -> Result<(), Errno> {
        if self.limbo.get() > 0 {
            self.limbo.set(self.limbo.get() - 1);
            return Err(Errno::BUSY);
        }
        self.kernel.make_directory(path)?;
        if self.looked_at.get() {
            *self.looker.borrow_mut() = Some(self.kernel.lock(path, Lock::Exclusive)?);
        }
        Ok(())
    }

    fn remove_directory(&self, path: &str) -> Result<(), Errno> {
        self.kernel.remove_directory(path)?;
        self.threads.borrow_mut().group_of.retain(|_, group| group != path && !group.starts_with(&format!("{path}/")));
        Ok(())
    }

    fn lock(&self, path: &str, lock: Lock) -> Result<Locked, Errno> {
        self.kernel.lock(path, lock)
    }
}
