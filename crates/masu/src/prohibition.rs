//! Huge pages forbidden by prctl(PR_SET_THP_DISABLE): by which process, and the remedy for that program.

use std::path::Path;

use linux::status::HugePages;
use linux::thp_permission::{self, Origin, Permission};
use linux::{KernelFiles, Pid, Untrusted, describe, status};

use crate::HOST;

/// Origin of the prohibition for a process, as words that follow its name.
pub fn by_whom(origin: &Origin) -> String {
    match origin {
        // The kernel does not tell who had the process forbid them.
        Origin::Itself => "for itself, or `masu set` did".to_owned(),
        Origin::Ancestor(pid, name) => format!("by inheritance from process {pid} ({name})"),
    }
}

/// Reason and remedy for a process whose huge pages are forbidden.
pub fn reason_and_remedy(files: &impl KernelFiles, pid: Pid, name: &Untrusted) -> (String, String) {
    let origin = thp_permission::origin(files, pid);
    let why = format!("{name} forbids huge pages {} (prctl PR_SET_THP_DISABLE; THP_enabled: 0)", by_whom(&origin));
    let allow = format!("`masu set {pid} huge=on` allows them again");
    // The file of the program, and not its name, which the program chooses.
    let file = std::fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
    (why, format!("{allow}; {}", lasting(&origin, &file)))
}

/// Remedy that outlasts a restart.
fn lasting(origin: &Origin, file: &Path) -> String {
    if let Origin::Ancestor(pid, name) = origin {
        return format!(
            "started by `masu run` it has them, whatever its ancestors forbid. Process {pid} ({name}) passes the \
             prohibition on to all that it starts."
        );
    }
    let name = file.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    match name {
        "redis-server" | "redis-check-rdb" | "valkey-server" | "valkey-check-rdb" => {
            "or restart it: Redis with `disable-thp no`, or with THP set to madvise.".to_owned()
        }
        "mariadbd" | "mysqld" => {
            "MariaDB forbids them at each start, so repeat it then; large_pages of the server is the other way."
                .to_owned()
        }
        _ => "the program, or one that ran in its place before (exec), sets it at each start.".to_owned(),
    }
}

/// Prohibition that this process inherited, and whether it could be lifted.
#[derive(Debug)]
pub enum Inherited {
    /// None.
    Nothing,
    /// Lifted, with a note.
    Lifted(String),
    /// It stays, with the reason.
    Stays(String),
}

/// Lifts a prohibition that masu inherited: for its own probes and preallocated pages, and for what it starts.
pub fn lift_own() -> Inherited {
    let own = thp_permission::own();
    let is_forbidden = match own {
        Ok(permission) => permission == Permission::Forbidden,
        // A filter that forbids the question: the status tells the same.
        Err(_) => status::status(&*HOST, Pid::own()).is_ok_and(|own| own.huge_pages == HugePages::Forbidden),
    };
    if !is_forbidden {
        return Inherited::Nothing;
    }
    let by = match thp_permission::origin(&*HOST, Pid::own()) {
        Origin::Itself => "by the program that became masu (exec)".to_owned(),
        inherited @ Origin::Ancestor(..) => by_whom(&inherited),
    };
    match thp_permission::allow_own() {
        Ok(()) => Inherited::Lifted(format!(
            "huge pages were forbidden {by} (PR_SET_THP_DISABLE); masu lifted that for itself and for what it starts"
        )),
        Err(errno) => Inherited::Stays(format!(
            "huge pages are forbidden {by} (PR_SET_THP_DISABLE), and masu cannot lift that: prctl: {}",
            describe(errno)
        )),
    }
}

/// Note of a report about a program that had its huge pages forbidden while it ran.
pub fn note(pid: Pid, name: &Untrusted, origin: &Origin) -> String {
    let by = by_whom(origin);
    format!("process {pid} ({name}) forbade huge pages {by} (prctl PR_SET_THP_DISABLE)")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_remedy_is_that_of_the_program() {
        let of = |file: &str| lasting(&Origin::Itself, Path::new(file));
        assert!(of("/usr/bin/redis-server").contains("disable-thp no"));
        assert!(of("/usr/sbin/mariadbd").contains("MariaDB"));
        for other in ["/usr/bin/python3.11", "/usr/sbin/mariadbd (deleted)", ""] {
            assert!(!of(other).contains("edis") && !of(other).contains("MariaDB"), "{other}");
        }
    }

    #[test]
    fn an_ancestor_is_named_before_the_program_s_own_remedy() {
        let origin = Origin::Ancestor(Pid(7), "shim".into());
        assert_eq!(by_whom(&origin), "by inheritance from process 7 (shim)");
        let said = lasting(&origin, Path::new("/usr/bin/redis-server"));
        assert!(
            said.contains("Process 7 (shim)") && said.contains("masu run") && !said.contains("disable-thp"),
            "{said}"
        );
        assert!(
            note(Pid(9), &"python3".into(), &Origin::Itself)
                .contains("process 9 (python3) forbade huge pages for itself, or `masu set` did")
        );
    }
}
