//! `/proc/PID/task/TID/children`: child processes of a process.
//!
//! On kernels without that file, the parent in each process's `stat` (`stat.rs`) gives the same, for all processes of
//! the host.
//!
//! Neither is a snapshot. A process that starts while the list is read may be missing, and is found the next time. A
//! process whose parent has ended belongs to its new parent: the first process, or the nearest ancestor that asked
//! for such (PR_SET_CHILD_SUBREAPER). To follow a program's daemons, ask for that before starting it.
//!
//! Cost: one directory and a file for each thread of each process in the tree, some 10 µs a thread; by `stat`, 15 µs
//! for every process of the host. Side effects: none.
//!
//! Since: Linux 3.5 with CONFIG_CHECKPOINT_RESTORE, 4.2 with CONFIG_PROC_CHILDREN. Every user may read it, unless
//! /proc is mounted with hidepid.
//!
//! Truth: proc_pid_task(5), proc_tid_children(5); `children_seq_show` in fs/proc/array.c.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use rustix::io::Errno;

use crate::{Error, KernelFiles, Pid, stat};

/// All descendants of `pid`, without `pid`, parents before their children. Includes zombies.
///
/// # Errors
/// `Gone` if `pid` ended, `Malformed`. A descendant that ends meanwhile is left out, with its own children.
pub fn descendants(files: &impl KernelFiles, pid: Pid) -> Result<Vec<Pid>, Error> {
    let Some(first) = children(files, pid)? else {
        return Ok(among(&parents(files)?, pid));
    };
    let mut found = Vec::new();
    let mut seen = BTreeSet::from([pid]);
    let mut next = VecDeque::from(first);
    while let Some(child) = next.pop_front() {
        // A number that comes up again during the read was given to another process meanwhile.
        if !seen.insert(child) {
            continue;
        }
        match children(files, child) {
            Ok(more) => {
                found.push(child);
                next.extend(more.unwrap_or_default());
            }
            Err(error) if error.is_gone() => {}
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}

/// Children of all threads of `pid`; `None` if this kernel does not report them.
fn children(files: &impl KernelFiles, pid: Pid) -> Result<Option<Vec<Pid>>, Error> {
    let tasks = pid.file("task");
    let threads = files.list(&tasks).map_err(|errno| Error::of_process("list", format!("/{tasks}"), errno))?;
    let mut all = Vec::new();
    for thread in threads {
        let path = format!("{tasks}/{thread}/children");
        match files.read(&path) {
            Ok(text) => all.extend(parse(&text, &path)?),
            // Either the thread has ended or the kernel has no such file: the thread's directory decides.
            Err(Errno::NOENT) if files.list(&format!("{tasks}/{thread}")).is_ok() => return Ok(None),
            Err(Errno::NOENT | Errno::SRCH) => {}
            Err(errno) => return Err(Error::of_process("read", format!("/{path}"), errno)),
        }
    }
    all.sort_unstable();
    Ok(Some(all))
}

/// Parses numbers with a space after each.
fn parse(text: &str, path: &str) -> Result<Vec<Pid>, Error> {
    let malformed = |word: &str| Error::malformed(format!("/{path}"), format_args!("{word:?}, expected a process id"));
    text.split_ascii_whitespace().map(|word| word.parse().map_err(|_| malformed(word))).collect()
}

/// Parent of every process of the host.
fn parents(files: &impl KernelFiles) -> Result<BTreeMap<Pid, Pid>, Error> {
    let names = files.list("proc").map_err(|errno| Error::of_host("list", "/proc", errno))?;
    let mut parents = BTreeMap::new();
    for pid in names.iter().filter_map(|name| name.parse::<Pid>().ok()) {
        match stat::stat(files, pid) {
            Ok(stat) => parents.insert(pid, stat.parent),
            Err(error) if error.is_gone() => None,
            Err(error) => return Err(error),
        };
    }
    Ok(parents)
}

/// Descendants of `pid` in `parents`, parents before their children.
fn among(parents: &BTreeMap<Pid, Pid>, pid: Pid) -> Vec<Pid> {
    let mut children: BTreeMap<Pid, Vec<Pid>> = BTreeMap::new();
    for (child, parent) in parents {
        children.entry(*parent).or_default().push(*child);
    }
    let mut found = Vec::new();
    let mut next = VecDeque::from([pid]);
    while let Some(parent) = next.pop_front() {
        // Removed, so that a cyclic list ends.
        let more = children.remove(&parent).unwrap_or_default();
        found.extend(more.iter().filter(|child| **child != pid));
        next.extend(more);
    }
    found
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use proptest::prelude::*;

    use super::*;
    use crate::Rooted;
    use crate::fake::FakeKernel;

    fn pids<const N: usize>(numbers: [i32; N]) -> Vec<Pid> {
        numbers.map(Pid).to_vec()
    }

    fn line(pid: i32, parent: i32) -> String {
        format!("{pid} (a) b) S {parent}{}\n", " 0".repeat(40))
    }

    #[test]
    fn the_children_of_all_threads_and_theirs_are_found_parents_first() {
        let kernel = FakeKernel::new()
            .file("proc/40/task/40/children", "52 51 ")
            .file("proc/40/task/41/children", "50 ")
            .file("proc/50/task/50/children", "60 ")
            .file("proc/51/task/51/children", "")
            .file("proc/52/task/52/children", "")
            .file("proc/60/task/60/children", "");
        assert_eq!(descendants(&kernel, Pid(40)).unwrap(), pids([50, 51, 52, 60]));
        assert_eq!(descendants(&kernel, Pid(60)).unwrap(), []);
    }

    #[test]
    fn a_child_that_ends_meanwhile_is_left_out_with_its_own_and_an_ended_program_is_gone() {
        let kernel = FakeKernel::new().file("proc/40/task/40/children", "50 51 ").file("proc/51/task/51/children", "");
        assert_eq!(descendants(&kernel, Pid(40)).unwrap(), pids([51]));
        assert!(descendants(&kernel, Pid(39)).unwrap_err().is_gone());
    }

    #[test]
    fn a_kernel_without_the_file_is_asked_for_the_parents_of_all() {
        let mut kernel = FakeKernel::new().file("proc/meminfo", "").file("proc/40/task/40/stat", "");
        for (pid, parent) in [(1, 0), (40, 1), (50, 40), (51, 1), (45, 50), (60, 45), (61, 51)] {
            kernel = kernel.file(&format!("proc/{pid}/stat"), &line(pid, parent));
        }
        assert_eq!(descendants(&kernel, Pid(40)).unwrap(), pids([50, 45, 60]));
    }

    #[test]
    fn what_is_no_number_is_refused() {
        let kernel = FakeKernel::new().file("proc/40/task/40/children", "50 x ");
        let error = descendants(&kernel, Pid(40)).unwrap_err().to_string();
        assert_eq!(error, "cannot understand /proc/40/task/40/children: \"x\", expected a process id");
    }

    #[test]
    fn this_process_finds_its_children_either_way() {
        let mut shell = Command::new("sh");
        shell.args(["-c", "sleep 600 & echo $!; wait"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = shell.spawn().unwrap();
        let mut first = String::new();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(child.stdout.as_mut().unwrap()), &mut first).unwrap();
        let (shell, sleep) = (Pid(i32::try_from(child.id()).unwrap()), first.trim().parse::<Pid>().unwrap());
        let host = Rooted::host();
        assert_eq!(descendants(&host, shell).unwrap(), [sleep]);
        assert_eq!(among(&parents(&host).unwrap(), shell), [sleep]);
        let own = descendants(&host, Pid::own()).unwrap();
        assert!(own.contains(&shell) && own.contains(&sleep), "other tests have children, too");
        for pid in [sleep, shell] {
            rustix::process::kill_process(
                rustix::process::Pid::from_raw(pid.0).unwrap(),
                rustix::process::Signal::KILL,
            )
            .unwrap();
        }
        child.wait().unwrap();
    }

    proptest! {
        #[test]
        fn any_list_of_parents_ends_and_names_each_process_once(
            parents in prop::collection::btree_map(1i32..30, 0i32..30, 0..30),
        ) {
            let parents = parents.into_iter().map(|(child, parent)| (Pid(child), Pid(parent))).collect();
            let found = among(&parents, Pid(1));
            let once: BTreeSet<Pid> = found.iter().copied().collect();
            prop_assert_eq!(once.len(), found.len());
            prop_assert!(!found.contains(&Pid(1)));
        }
    }
}
