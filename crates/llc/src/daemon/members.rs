//! Current processes and threads of the configured programs.
//!
//! A program is a control group with all groups below it, some processes with all their descendants, or all processes
//! of a user, a file or a name with all their descendants; for a user, without processes of other users, whichever
//! process started them. A child is in the group of its parent from the first moment, since the kernel puts it there.
//! A process that fits two programs belongs to the first. A scan is no snapshot: a process that starts meanwhile is
//! found the next time.

use std::collections::{BTreeMap, BTreeSet};

use linux::cgroup::group;
use linux::executable::Executable;
use linux::status::Status;
use linux::{Error, KernelFiles, Pid, Untrusted, children, processes, stat, status};
use rustix::io::Errno;

use super::config::{Like, Named, Whom};
use super::layout::Processes;

/// Scan of all programs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Members {
    /// For each program, in the order of the configuration, its processes with their threads.
    pub programs: Vec<Processes>,
    /// Processes that also fit a later program, which does not get them.
    pub twice: BTreeMap<Pid, usize>,
    /// Named processes of each program, by its number, that have no thread to move: why.
    pub absent: BTreeMap<usize, Vec<String>>,
}

/// A named process that cannot be a program.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadProgram {
    /// A thread: its number is no process's.
    #[error("cannot divide the cache for process {thread}: it is a thread of process {process} ({name})")]
    Thread {
        /// The configured number.
        thread: Pid,
        /// Its process.
        process: Pid,
        /// Name of the thread.
        name: Untrusted,
    },
    /// A thread of the kernel; kthreadd has all others as children.
    #[error("cannot divide the cache for process {pid} ({name}): it is a kernel thread")]
    Kernel {
        /// Its number.
        pid: Pid,
        /// Its name.
        name: Untrusted,
    },
    /// It cannot be read.
    #[error(transparent)]
    Unread(#[from] Error),
}

/// Finds the processes of the programs repeatedly.
#[derive(Clone, Debug)]
pub struct Finder {
    programs: Vec<Whom>,
    /// Start times of the named processes: a number may be reused.
    begun: BTreeMap<Pid, u64>,
}

impl Finder {
    /// A finder for these programs. The named processes must exist.
    ///
    /// # Errors
    /// `Gone` for a missing process, `Unsupported` for a missing control group; a thread, or a thread of the kernel.
    pub fn new(files: &impl KernelFiles, programs: &[Named]) -> Result<Finder, BadProgram> {
        let mut begun = BTreeMap::new();
        for program in programs {
            match &program.whom {
                Whom::Pids(pids) => {
                    for pid in pids {
                        let stat = stat::stat(files, *pid)?;
                        is_process(files, *pid)?;
                        begun.insert(*pid, stat.start_ticks);
                    }
                }
                Whom::Cgroup(name) => drop(group::find(files, name)?),
                Whom::Like(_) => {} // it may come later
            }
        }
        Ok(Finder { programs: programs.iter().map(|program| program.whom.clone()).collect(), begun })
    }

    /// Scans. A removed control group has no processes.
    ///
    /// # Errors
    /// When there is no list of processes.
    pub fn look(&self, files: &impl KernelFiles) -> Result<Members, Error> {
        let own = Pid::own();
        let mut members = Members::default();
        let mut taken: BTreeMap<Pid, usize> = BTreeMap::new();
        for (nth, whom) in self.programs.iter().enumerate() {
            let mut found = Processes::new();
            for pid in self.processes(files, whom)? {
                if pid == own {
                    continue;
                }
                if taken.contains_key(&pid) {
                    members.twice.insert(pid, nth);
                    continue;
                }
                let threads = threads(files, pid);
                if !threads.is_empty() {
                    taken.insert(pid, nth);
                    found.insert(pid, threads);
                }
            }
            if let (Whom::Pids(pids), true) = (whom, found.is_empty()) {
                let named = pids.iter().filter(|pid| !taken.contains_key(pid));
                let why = named.map(|pid| absence(files, *pid, self.begun.get(pid).copied())).collect();
                members.absent.insert(nth, why);
            }
            members.programs.push(found);
        }
        Ok(members)
    }

    fn processes(&self, files: &impl KernelFiles, whom: &Whom) -> Result<BTreeSet<Pid>, Error> {
        let first: Vec<Pid> = match whom {
            Whom::Cgroup(name) => {
                return match group::find(files, name) {
                    Ok(group) => Ok(group.processes),
                    Err(Error::Unsupported(_) | Error::Gone(_)) => Ok(BTreeSet::new()),
                    Err(error) => Err(error),
                };
            }
            Whom::Pids(pids) => pids
                .iter()
                .copied()
                .filter(|pid| {
                    let begun = stat::stat(files, *pid).map(|stat| stat.start_ticks).ok();
                    begun.is_some() && begun == self.begun.get(pid).copied()
                })
                .collect(),
            Whom::Like(like) => {
                let executable = like.executable.as_deref().map(Executable::at).transpose();
                // A program that is not installed is not run.
                let Ok(executable) = executable else { return Ok(BTreeSet::new()) };
                let is_run = |pid: Pid| executable.as_ref().is_none_or(|executable| executable.is_run_by(pid));
                let all = processes::processes(files)?.into_iter();
                // A process that ends meanwhile has no name.
                let is_one =
                    |pid: &Pid| status::status(files, *pid).is_ok_and(|status| is_like(&status, like)) && is_run(*pid);
                all.filter(is_one).collect()
            }
        };
        let mut all: BTreeSet<Pid> = first.iter().copied().collect();
        for pid in first {
            all.extend(children::descendants(files, pid).unwrap_or_default());
        }
        if let Whom::Like(like @ Like { user: Some(_), .. }) = whom {
            all.retain(|pid| status::status(files, *pid).is_ok_and(|status| is_of_user(&status, like)));
        }
        Ok(all)
    }
}

fn is_like(status: &Status, like: &Like) -> bool {
    let is_called_so = like.command.as_ref().is_none_or(|name| status.name == name.as_str());
    is_called_so && is_of_user(status, like) && !status.kernel_thread && !status.zombie
}

/// Whether the process belongs to its user alone. A process that runs a program with the rights of another user
/// (setuid) does not.
fn is_of_user(status: &Status, like: &Like) -> bool {
    like.user.as_ref().is_none_or(|user| status.uids.iter().all(|id| Some(*id) == user.id))
}

/// Threads of a process; none for a process that has ended, also if it was not waited for. Its first thread may have
/// ended before others.
fn threads(files: &impl KernelFiles, pid: Pid) -> BTreeSet<Pid> {
    let stat = stat::stat(files, pid);
    // The topmost control group has the kernel's threads, too: they belong to no program.
    if stat.as_ref().is_ok_and(|stat| stat.of_kernel) {
        return BTreeSet::new();
    }
    let first_ended = stat.is_ok_and(|stat| matches!(stat.state, 'Z' | 'X'));
    let names = files.list(&pid.file("task")).unwrap_or_default();
    let all = names.iter().filter_map(|name| name.parse().ok());
    all.filter(|thread| !first_ended || *thread != pid).collect()
}

/// Refuses numbers of threads: `/proc` shows them like processes.
fn is_process(files: &impl KernelFiles, pid: Pid) -> Result<(), BadProgram> {
    // A process that ended meanwhile is absent at the first scan.
    let Ok(status) = status::status(files, pid) else { return Ok(()) };
    if status.thread_group != pid {
        return Err(BadProgram::Thread { thread: pid, process: status.thread_group, name: status.name });
    }
    if status.kernel_thread {
        return Err(BadProgram::Kernel { pid, name: status.name });
    }
    Ok(())
}

/// Keeps the processes that have not ended.
pub fn running<'p>(files: &impl KernelFiles, pids: impl Iterator<Item = &'p Pid>) -> BTreeSet<Pid> {
    pids.copied().filter(|pid| !threads(files, *pid).is_empty()).collect()
}

/// Why a named process, which began at this time, has no thread to move.
fn absence(files: &impl KernelFiles, pid: Pid, begun: Option<u64>) -> String {
    if pid == Pid::own() {
        return format!("process {pid} is masu itself");
    }
    match stat::stat(files, pid) {
        Err(Error::Gone(_)) => format!("process {pid} ended already"),
        Err(error) => format!("process {pid} cannot be looked at: {error}"),
        Ok(stat) if Some(stat.start_ticks) != begun => {
            format!("process {pid} ended already, and another process has its number")
        }
        Ok(stat) if matches!(stat.state, 'Z' | 'X') => {
            let parent = stat.parent;
            format!("process {pid} ended already (a zombie: its parent, process {parent}, has not waited for it)")
        }
        Ok(_) => match files.list(&pid.file("task")) {
            Err(errno) if !matches!(errno, Errno::NOENT | Errno::SRCH) => {
                format!("the threads of process {pid} cannot be listed: {}", linux::describe(errno))
            }
            // It ended between the two reads.
            Ok(_) | Err(_) => format!("process {pid} ended already"),
        },
    }
}

#[cfg(test)]
mod tests {
    use linux::fake::FakeKernel;

    use super::*;
    use crate::daemon::config::User;

    const MOUNTS: &str = "35 31 0:32 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";

    fn stat_of(pid: i32, state: char, parent: i32, start: u64) -> String {
        format!("{pid} (x) {state} {parent} 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 {start} 0 0\n")
    }

    fn process(kernel: FakeKernel, pid: i32, name: &str, parent: i32, threads: &[i32]) -> FakeKernel {
        process_of("0\t0\t0\t0", kernel, pid, name, parent, threads)
    }

    fn process_of(users: &str, kernel: FakeKernel, pid: i32, name: &str, parent: i32, threads: &[i32]) -> FakeKernel {
        let status = format!(
            "Name:\t{name}\nState:\tS\nTgid:\t{pid}\nUid:\t{users}\nVmRSS:\t 4 kB\nVmSize:\t 4 kB\nThreads:\t1\nCapEff:\t0\n"
        );
        let kernel = kernel
            .file(&format!("proc/{pid}/stat"), &stat_of(pid, 'S', parent, 100))
            .file(&format!("proc/{pid}/status"), &status);
        threads.iter().fold(kernel, |kernel, thread| kernel.file(&format!("proc/{pid}/task/{thread}/children"), ""))
    }

    fn named(whom: Whom) -> Named {
        Named { name: "a".to_owned(), line: 1, whom, domain: None, l3: None, measured: None, fixed: None }
    }

    fn like(user: Option<u32>, command: Option<&str>) -> Whom {
        let user = user.map(|id| User { shown: id.to_string(), line: 1, id: Some(id) });
        Whom::Like(Like { executable: None, user, command: command.map(str::to_owned) })
    }

    fn kernel() -> FakeKernel {
        let kernel = FakeKernel::new().file("proc/self/mountinfo", MOUNTS);
        let kernel = process(kernel, 7, "web", 1, &[7, 8]);
        let kernel = process(kernel, 9, "redis-server", 1, &[9]);
        let kernel =
            kernel.file("sys/fs/cgroup/web/cgroup.procs", "7\n").file("sys/fs/cgroup/web/in/cgroup.procs", "9\n");
        kernel.add("proc/9/task/9/children", "11 ");
        process(kernel, 11, "saver", 9, &[11, 12])
    }

    fn pids(processes: &Processes) -> Vec<i32> {
        processes.keys().map(|pid| pid.0).collect()
    }

    #[test]
    fn a_group_has_all_below_it_and_others_have_what_they_started() {
        let kernel = kernel();
        let all = [Whom::Cgroup("web".to_owned()), like(Some(0), Some("redis-server")), Whom::Pids(vec![Pid(9)])];
        for (whom, expected) in all.into_iter().zip([vec![7, 9], vec![9, 11], vec![9, 11]]) {
            let finder = Finder::new(&kernel, &[named(whom.clone())]).unwrap();
            let found = finder.look(&kernel).unwrap();
            assert_eq!(pids(&found.programs[0]), expected, "{whom}");
        }
        let finder = Finder::new(&kernel, &[named(Whom::Pids(vec![Pid(7)]))]).unwrap();
        assert_eq!(finder.look(&kernel).unwrap().programs[0][&Pid(7)], [Pid(7), Pid(8)].into());
    }

    #[test]
    fn whoever_calls_itself_like_a_users_program_is_not_that_users() {
        let kernel = process(kernel(), 20, "redis-server", 1, &[20]);
        let kernel = process_of("4001\t4001\t4001\t4001", kernel, 21, "redis-server", 1, &[21]);
        // A program with the rights of user 0 that user 4001 started, and a child of user 0's that is user 4001's by
        // now.
        let kernel = process_of("4001\t0\t0\t0", kernel, 22, "redis-server", 1, &[22]);
        let kernel = process_of("4001\t4001\t4001\t4001", kernel, 23, "shell", 20, &[23]);
        kernel.add("proc/20/task/20/children", "23 ");
        let of = |whom| {
            let finder = Finder::new(&kernel, &[named(whom)]).unwrap();
            pids(&finder.look(&kernel).unwrap().programs[0])
        };
        assert_eq!(of(like(Some(0), Some("redis-server"))), [9, 11, 20]);
        assert_eq!(of(like(Some(4001), Some("redis-server"))), [21]);
        assert_eq!(of(like(Some(4001), None)), [21, 23]);
        let nobody = User { shown: "nobody".to_owned(), line: 1, id: None };
        assert_eq!(
            of(Whom::Like(Like { user: Some(nobody), ..Like::default() })),
            [0; 0],
            "a user who was not found is nobody"
        );
    }

    #[test]
    fn who_fits_two_programs_is_the_first_ones() {
        let kernel = kernel();
        let programs = [named(Whom::Pids(vec![Pid(9)])), named(Whom::Cgroup("web".to_owned()))];
        let found = Finder::new(&kernel, &programs).unwrap().look(&kernel).unwrap();
        assert_eq!((pids(&found.programs[0]), pids(&found.programs[1])), (vec![9, 11], vec![7]));
        assert_eq!(found.twice, [(Pid(9), 1)].into());
    }

    #[test]
    fn who_is_not_there_at_first_is_an_error_and_who_ends_later_is_none() {
        let kernel = kernel();
        let nobody = Finder::new(&kernel, &[named(Whom::Pids(vec![Pid(4121)]))]).unwrap_err();
        assert!(matches!(&nobody, BadProgram::Unread(error) if error.is_gone()), "{nobody}");
        let nowhere = Finder::new(&kernel, &[named(Whom::Cgroup("db".to_owned()))]).unwrap_err();
        assert_eq!(
            nowhere.to_string(),
            "cannot find control group db in /sys/fs/cgroup: no such file or directory (ENOENT)"
        );
        let programs = [named(Whom::Pids(vec![Pid(7)])), named(Whom::Cgroup("web/in".to_owned()))];
        let finder = Finder::new(&kernel, &programs).unwrap();
        // Another process has the number of the first by now, and the group is removed.
        kernel.add("proc/7/stat", &stat_of(7, 'S', 1, 900));
        kernel.remove("sys/fs/cgroup/web/in");
        assert_eq!(finder.look(&kernel).unwrap().programs, [Processes::new(), Processes::new()]);
        // A process that has ended and was not waited for has no threads.
        kernel.add("proc/9/stat", &stat_of(9, 'Z', 1, 100));
        let finder = Finder::new(&kernel, &[named(Whom::Pids(vec![Pid(9)]))]).unwrap();
        assert_eq!(pids(&finder.look(&kernel).unwrap().programs[0]), [11]);
        // Other threads go on without the first.
        kernel.add("proc/9/task/10/children", "");
        let found = finder.look(&kernel).unwrap();
        assert_eq!(found.programs[0][&Pid(9)], [Pid(10)].into());
    }

    #[test]
    fn a_thread_and_a_kernel_thread_are_no_programs() {
        let kernel = kernel();
        kernel.add("proc/8/stat", &stat_of(8, 'S', 1, 100));
        kernel.add("proc/8/status", "Name:\tbio\nState:\tS\nTgid:\t7\nUid:\t0\t0\t0\t0\nThreads:\t2\nCapEff:\t0\n");
        kernel.add("proc/2/stat", "2 (kthreadd) S 0 0 0 0 -1 2129984 0 0 0 0 0 0 0 0 20 0 1 0 5 0 0\n");
        kernel.add(
            "proc/2/status",
            "Name:\tkthreadd\nState:\tS\nTgid:\t2\nUid:\t0\t0\t0\t0\nThreads:\t1\nKthread:\t1\nCapEff:\t0\n",
        );
        kernel.add("proc/2/task/2/children", "");
        let refused = |pid| Finder::new(&kernel, &[named(Whom::Pids(vec![Pid(pid)]))]).unwrap_err().to_string();
        assert_eq!(refused(8), "cannot divide the cache for process 8: it is a thread of process 7 (bio)");
        assert_eq!(refused(2), "cannot divide the cache for process 2 (kthreadd): it is a kernel thread");
        // The topmost control group has the kernel's threads as well.
        kernel.add("sys/fs/cgroup/web/cgroup.procs", "2\n7\n");
        let finder = Finder::new(&kernel, &[named(Whom::Cgroup("web".to_owned()))]).unwrap();
        assert_eq!(pids(&finder.look(&kernel).unwrap().programs[0]), [7, 9]);
        assert_eq!(running(&kernel, [Pid(2), Pid(7), Pid(4121)].iter()), [Pid(7)].into());
    }

    #[test]
    fn only_what_ended_has_ended_and_each_other_absence_has_its_cause() {
        let kernel = kernel();
        let programs = [named(Whom::Pids(vec![Pid(7)])), named(Whom::Pids(vec![Pid(11)]))];
        let finder = Finder::new(&kernel, &programs).unwrap();
        let absent = || finder.look(&kernel).unwrap().absent;
        assert_eq!(absent(), BTreeMap::new());
        kernel.add("proc/7/stat", &stat_of(7, 'S', 1, 900));
        let reused = "process 7 ended already, and another process has its number";
        assert_eq!(absent(), [(0, vec![reused.to_owned()])].into());
        kernel.add("proc/7/stat", &stat_of(7, 'Z', 3, 100));
        kernel.remove("proc/7/task");
        let zombie = "process 7 ended already (a zombie: its parent, process 3, has not waited for it)";
        assert_eq!(absent(), [(0, vec![zombie.to_owned()])].into());
        kernel.remove("proc/7");
        assert_eq!(absent(), [(0, vec!["process 7 ended already".to_owned()])].into());
    }
}
