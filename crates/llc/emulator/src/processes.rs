//! Threads of this machine, from `/proc`.
//!
//! The emulator sees the threads of its own PID namespace. Truth: proc_pid_stat(5), proc_pid_status(5).

use std::fs;

use crate::members::{Owner, Task, Tasks};

/// `/proc`.
#[derive(Clone, Copy, Debug)]
pub struct Processes;

impl Tasks for Processes {
    /// Skips processes that end during the read.
    fn all(&self) -> Vec<Task> {
        let mut all = Vec::new();
        for process in numbers("/proc") {
            for tid in numbers(&format!("/proc/{process}/task")) {
                let text = text(&format!("/proc/{process}/task/{tid}/stat"));
                if let Some((parent, began)) = text.as_deref().and_then(parent_and_beginning) {
                    all.push(Task { tid, process, parent, began });
                }
            }
        }
        all
    }

    fn owner(&self, tid: u32) -> Option<Owner> {
        owner(&text(&format!("/proc/{tid}/status"))?)
    }
}

/// Content of a file. The name of a process may be no UTF-8, and the process counts all the same.
fn text(path: &str) -> Option<String> {
    Some(String::from_utf8_lossy(&fs::read(path).ok()?).into_owned())
}

fn numbers(folder: &str) -> Vec<u32> {
    let entries = fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok);
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// Fields 4 and 22 of `stat`; the name before them, in parentheses, may hold anything. A thread's parent is its
/// process's.
fn parent_and_beginning(text: &str) -> Option<(u32, u64)> {
    let (_, behind) = text.rsplit_once(')')?;
    let mut fields = behind.split_ascii_whitespace();
    let parent = fields.nth(1)?.parse().ok()?;
    let began = fields.nth(17)?.parse().ok()?;
    Some((parent, began))
}

/// `Uid:` of `status`: real, effective, saved, of the file system.
fn owner(text: &str) -> Option<Owner> {
    let line = text.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    let uids: Vec<u32> = line.split_ascii_whitespace().filter_map(|word| word.parse().ok()).collect();
    Some(Owner { uid: *uids.first()?, saved_uid: *uids.get(2)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_parentheses_and_blanks_is_no_field() {
        let text = "42 (a) b (c) S 7 42 42 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 12345 1000 10 18446744073709551615\n";
        assert_eq!(parent_and_beginning(text), Some((7, 12345)));
        assert_eq!(parent_and_beginning("42 (a) S"), None);
    }

    #[test]
    fn a_thread_belongs_to_its_real_and_its_saved_user() {
        assert_eq!(owner("Name:\ta\nUid:\t1\t2\t3\t4\n"), Some(Owner { uid: 1, saved_uid: 3 }));
        assert_eq!(owner("Name:\ta\n"), None);
    }

    #[test]
    fn this_process_is_among_all() {
        let own = std::process::id();
        let all = Processes.all();
        assert!(all.iter().any(|task| task.tid == own && task.process == own && task.began > 0));
        assert!(Processes.owner(own).is_some() && Processes.owner(u32::MAX).is_none());
    }
}
