//! Plan of the actions without executing them: for `--dry-run`.

use std::time::Duration;

use linux::cgroup::group;
use linux::{Error, KernelFiles, Pid, processes};
use serde::Serialize;
use units::{Bytes, Pages};

use crate::class::Class;
use crate::daemon::Settings;
use crate::headroom;
use crate::left_out::{LeftOut, Reports};
use crate::levels::{ByClass, Level};
use crate::mlocks::{self, Mlocks};
use crate::report::OfClass;
use crate::scan::Scan;
use crate::scope::Scope;
use crate::{mapped, policy, swap};

/// Planned actions.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Plan {
    /// Bytes to mlock, by class.
    #[serde(flatten, with = "units::renamed::mlocks")]
    pub mlocks: Vec<OfClass>,
    /// Wanted bytes without headroom or budget.
    pub without_bytes: Bytes,
    /// Upper limit of mlocked bytes.
    pub budget_bytes: Bytes,
    /// Smallest headroom of all domains.
    #[serde(flatten, with = "units::renamed::headroom_bytes")]
    pub headroom_bytes: Bytes,
    /// Settings to write, as `path <- value`.
    pub writes: Vec<String>,
    /// Classes that have a protection level but no setting to write, with the reason.
    pub nothing: Vec<Nothing>,
    /// Files that cannot be mlocked at any headroom, by cause.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<LeftOut>,
    /// Plan for streams.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub streams: Option<String>,
}

/// Class that stays as it is.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Nothing {
    /// Class.
    pub class: Class,
    /// Reason.
    pub why: String,
}

/// Scans without changing anything. `with_command`: the streams are those of a command, and of the processes named
/// beside it.
///
/// # Errors
/// As [`crate::daemon::Daemon::begin`].
pub fn of(
    files: &impl KernelFiles,
    settings: &Settings,
    cache: Option<Level>,
    with_command: bool,
) -> Result<Plan, Error> {
    let levels = settings.preferences.at_first();
    let group = match &settings.scope {
        Scope::Group(name) => Some(group::find(files, name)?),
        Scope::Host | Scope::Processes(_) => None,
    };
    let mut pids = match (&settings.scope, &group) {
        (Scope::Processes(pids), _) => pids.clone(),
        (_, Some(group)) => group.processes.clone(),
        _ => processes::processes(files)?.into_iter().collect(),
    };
    pids.remove(&Pid::own());
    let budget = settings.budget;
    let charged = group.as_ref().map(|group| group.inodes.clone()).unwrap_or_default();
    let domains = headroom::domains(files, &headroom::limits(files)?, &charged)?;
    let headroom = headroom::minimum(&domains);
    let (mut wanted, mut left_out) = (ByClass::<u64>::default(), Vec::new());
    if mlocks::CLASSES.into_iter().any(|class| levels.get(class).is_some()) {
        let mut mapped = mapped::of(files, &pids);
        let mut mlocks = Mlocks::new(files)?;
        let mut admitted = mlocks.admit(&mut mapped, &levels, Duration::ZERO);
        let opened = mlocks::open_all(files, &admitted.missing, &mapped);
        admitted.left_out.add_all(mlocks.take(opened, &mapped, Duration::ZERO));
        left_out = Reports::default().of(admitted.left_out, &mapped.owners, Duration::ZERO);
        for of in Scan::at(mapped, &mlocks.sources(), &levels).found {
            wanted.set(of.class, wanted.get(of.class) + of.resident.pages());
        }
    }
    let most = domains.iter().map(|named| policy::may_mlock(named.headroom)).min().unwrap_or(Bytes(0)).min(budget);
    let all: Bytes = wanted.iter().map(|(_, pages)| Pages(pages).bytes()).sum();
    let writes = match swap::would_write(files, &settings.scope, group.as_ref(), &levels, settings.data_with_the_rest) {
        Err(Error::Unsupported(_)) if settings.data_with_the_rest => None,
        answer => answer?,
    };
    Ok(Plan {
        mlocks: mlocks::CLASSES
            .into_iter()
            .filter(|class| levels.get(*class).is_some())
            .map(|class| OfClass { class, mlocked_bytes: Pages(wanted.get(class)).bytes() })
            .collect(),
        without_bytes: all.saturating_sub(most),
        budget_bytes: budget,
        headroom_bytes: headroom,
        writes: writes.into_iter().collect(),
        nothing: (levels.get(Class::Data).is_some() && !swap::has_swap(files))
            .then(|| Nothing { class: Class::Data, why: swap::NO_SWAP.to_owned() })
            .into_iter()
            .collect(),
        left_out,
        streams: cache.map(|level| of_streams(level, &settings.scope, with_command)),
    })
}

fn of_streams(level: Level, scope: &Scope, with_command: bool) -> String {
    let whose = match (scope, with_command) {
        (Scope::Host, true) => "the command and its descendants",
        (Scope::Host, false) => "any process that inserts more than 64 MiB, nearly all in order,",
        (Scope::Group(_), true) => "the processes of the control group, of the command and of its descendants",
        (Scope::Group(_), false) => "the processes of the control group",
        (Scope::Processes(_), true) => "these processes, the command, and the descendants of all",
        (Scope::Processes(_), false) => "these processes and their descendants",
    };
    match level.get() {
        0 => format!("drops the page-cache insertions of {whose} once they are passed"),
        part => format!("of the page-cache insertions of {whose}, {part} % of the memory may stay"),
    }
}

impl Plan {
    /// Lines for people.
    pub fn lines(&self) -> Vec<String> {
        let mut lines: Vec<String> = self
            .mlocks
            .iter()
            .map(|OfClass { class, mlocked_bytes }| {
                format!("{}: would mlock {mlocked_bytes}, the mapped and resident pages", class.name())
            })
            .collect();
        if !self.mlocks.is_empty() {
            let mut line = format!("at most {} in all; headroom {}", self.budget_bytes, self.headroom_bytes);
            if self.without_bytes > Bytes(0) {
                line += &format!("; {} more do not fit", self.without_bytes);
            }
            lines.push(line);
        }
        lines.extend(self.left_out.iter().map(ToString::to_string));
        lines.extend(self.writes.iter().map(|write| format!("{}: would write {write}", Class::Data.name())));
        let nothing = |Nothing { class, why }: &Nothing| format!("{}: nothing to do: {why}", class.name());
        lines.extend(self.nothing.iter().map(nothing));
        lines.extend(self.streams.iter().map(|streams| format!("{}: {streams}", Class::Cache.name())));
        if lines.is_empty() {
            lines.push("nothing to do".to_owned());
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_streams_of_a_command_are_its_own() {
        let of = |with_command| of_streams(Level::NONE, &Scope::Host, with_command);
        assert_eq!(of(true), "drops the page-cache insertions of the command and its descendants once they are passed");
        assert!(of(false).contains("any process that inserts more than 64 MiB"), "{}", of(false));
    }
}
