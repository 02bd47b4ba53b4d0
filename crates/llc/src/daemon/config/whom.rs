//! Selection of a program's processes by the configuration.
//!
//! | key | selects | can be forged by |
//! |---|---|---|
//! | `pids` | these processes and their children | no other process |
//! | `cgroup` | the processes of a control group | every user that may move processes into it |
//! | `user` | the processes of a user | that user |
//! | `executable` | the processes that run a file | every user that may run the file |
//! | `command` | the processes of a name | every process: it can set any name |
//!
//! So a name is accepted only together with a user; and trust, given by a label of `domain`, needs `pids`, `cgroup`
//! or `user`: a process in the domain of another can find out which of its pages the other uses.

use std::fmt;
use std::path::PathBuf;

use linux::Pid;
use serde::Deserialize;
use toml::Spanned;

use super::{BadConfig, Place};

/// Selection of processes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Whom {
    /// Processes in a control group and below it.
    Cgroup(String),
    /// Processes with all their threads.
    Pids(Vec<Pid>),
    /// All processes with these properties, and all their descendants.
    Like(Like),
}

/// Conditions on a process: at least one of these, and never a command alone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Like {
    /// File that the process runs.
    pub executable: Option<PathBuf>,
    /// User of the process: by its real, effective, saved and file-system user.
    pub user: Option<User>,
    /// Its name from `/proc/PID/status`: at most 15 bytes.
    pub command: Option<String>,
}

/// A user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// Text in the configuration.
    pub shown: String,
    /// Line of that text.
    pub line: usize,
    /// Number of the user; `None` until the name was [looked up](super::Config::read).
    pub id: Option<u32>,
}

impl fmt::Display for Whom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Whom::Cgroup(name) => write!(f, "control group {name}"),
            Whom::Pids(pids) => {
                let pids: Vec<String> = pids.iter().map(Pid::to_string).collect();
                write!(f, "process{} {}", if pids.len() == 1 { "" } else { "es" }, pids.join(", "))
            }
            Whom::Like(like) => write!(f, "processes {like}"),
        }
    }
}

impl fmt::Display for Like {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let user = self.user.as_ref().map(|user| format!("of user {}", user.shown));
        let executable = self.executable.as_ref().map(|path| format!("that run {}", path.display()));
        let command = self.command.as_ref().map(|name| format!("called {name}"));
        let parts: Vec<String> = [user, executable, command].into_iter().flatten().collect();
        f.write_str(&parts.join(" "))
    }
}

/// Keys as in the file.
pub(super) struct RawWhom {
    pub(super) cgroup: Option<String>,
    pub(super) pids: Option<Vec<Spanned<i32>>>,
    pub(super) executable: Option<Spanned<PathBuf>>,
    pub(super) user: Option<Spanned<RawUser>>,
    pub(super) command: Option<Spanned<String>>,
}

/// A number, or a name.
#[derive(Deserialize)]
#[serde(untagged)]
pub(super) enum RawUser {
    Id(u32),
    Name(String),
}

/// Kernel's limit on a command's name.
const COMMAND_MAX: usize = 15;

impl RawWhom {
    /// The processes of program `name`, defined at `start`; `domain` is the position of its label.
    pub(super) fn checked(
        self,
        name: &str,
        start: usize,
        domain: Option<usize>,
        place: &Place<'_>,
    ) -> Result<Whom, BadConfig> {
        let like = self.executable.is_some() || self.user.is_some() || self.command.is_some();
        let ways = [self.cgroup.is_some(), self.pids.is_some(), like].iter().filter(|is| **is).count();
        if ways != 1 {
            let what = format!(
                "program {name}: expected one of cgroup, pids, or user with executable or command, found {ways}"
            );
            return Err(place.bad(start, what));
        }
        if let Some(group) = self.cgroup {
            return Ok(Whom::Cgroup(group));
        }
        if let Some(pids) = &self.pids {
            let all = pids.iter().map(|pid| place.check("pid", pid, |pid| *pid > 0, "a process id above 0").map(Pid));
            let pids: Vec<Pid> = all.collect::<Result<_, _>>()?;
            let none = || place.bad(start, format!("program {name}: pids = []: expected at least one"));
            return if pids.is_empty() { Err(none()) } else { Ok(Whom::Pids(pids)) };
        }
        self.like(domain, place).map(Whom::Like)
    }

    fn like(self, domain: Option<usize>, place: &Place<'_>) -> Result<Like, BadConfig> {
        if let (Some(command), None) = (&self.command, &self.user) {
            let what = format!(
                "command = \"{}\" without a user: any process may call itself so; expected user = \"…\" beside it, or executable, cgroup or \
                 pids instead",
                command.get_ref()
            );
            return Err(place.bad(command.span().start, what));
        }
        if let (Some(domain), None) = (domain, &self.user) {
            let what = "domain with an executable alone: any user may run it, and would be trusted; expected user = \"…\" beside it, or \
                        cgroup or pids instead";
            return Err(place.bad(domain, what));
        }
        let expected = "1 to 15 bytes, as `ps -o comm` shows it";
        let fits = |name: &String| (1..=COMMAND_MAX).contains(&name.len());
        let command = self.command.map(|name| place.check("command", &name, fits, expected)).transpose()?;
        let executable = self.executable.map(|path| {
            let what = || format!("executable = {}: expected a path from the root", path.get_ref().display());
            if path.get_ref().is_absolute() {
                Ok(path.get_ref().clone())
            } else {
                Err(place.bad(path.span().start, what()))
            }
        });
        let user = self.user.map(|user| {
            let line = place.line(user.span().start);
            match user.into_inner() {
                RawUser::Id(id) => User { shown: id.to_string(), line, id: Some(id) },
                RawUser::Name(name) => User { id: name.parse().ok(), shown: name, line },
            }
        });
        Ok(Like { executable: executable.transpose()?, user, command })
    }
}

impl User {
    /// Looks the name up in the text of `/etc/passwd`; true if it is known.
    pub(super) fn look_up(&mut self, passwd: &str) -> bool {
        let of_line = |line: &str| {
            let mut fields = line.split(':');
            (fields.next() == Some(self.shown.as_str())).then(|| fields.nth(1)?.parse().ok()).flatten()
        };
        self.id = self.id.or_else(|| passwd.lines().find_map(of_line));
        self.id.is_some()
    }
}
