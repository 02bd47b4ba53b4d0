//! Plan of the actions without executing them: for `--dry-run`.

use std::time::Duration;

use linux::cgroup::group;
use linux::{Error, KernelFiles, Pid, processes};
use serde::Serialize;
use units::{Bytes, Pages};

use crate::class::Class;
use crate::daemon::Settings;
use crate::headroom;
use crate::left_out::{LeftOut, Said};
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
    pub pins: Vec<OfClass>,
    /// Wanted bytes without headroom or budget.
    pub without_bytes: Bytes,
    /// Upper limit of mlocked bytes.
    pub budget_bytes: Bytes,
    /// Smallest headroom of all domains.
    pub left_bytes: Bytes,
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

/// Scans without changing anything.
///
/// # Errors
/// As [`crate::daemon::Daemon::begin`].
pub fn of(files: &impl KernelFiles, settings: &Settings, cache: Option<Level>) -> Result<Plan, Error> {
    let dials = settings.wishes.at_first();
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
    let rooms = headroom::rooms(files, &headroom::limits(files)?, &charged)?;
    let left = headroom::tightest(&rooms);
    let (mut wanted, mut left_out) = (ByClass::<u64>::default(), Vec::new());
    if mlocks::CLASSES.into_iter().any(|class| dials.get(class).is_some()) {
        let mut mapped = mapped::of(files, &pids);
        let mut pins = Mlocks::new(files)?;
        let mut admitted = pins.admit(&mut mapped, &dials, Duration::ZERO);
        let opened = mlocks::open_all(files, &admitted.missing, &mapped);
        admitted.left_out.add_all(pins.take(opened, &mapped, Duration::ZERO));
        left_out = Said::default().of(admitted.left_out, &mapped.owners, Duration::ZERO);
        for of in Scan::at(mapped, &pins.sources(), &dials).found {
            wanted.set(of.class, wanted.get(of.class) + of.resident.pages());
        }
    }
    let most = rooms.iter().map(|named| policy::may_pin(named.room)).min().unwrap_or(Bytes(0)).min(budget);
    let all: Bytes = wanted.iter().map(|(_, pages)| Pages(pages).bytes()).sum();
    let writes = match swap::would_write(files, &settings.scope, group.as_ref(), &dials, settings.data_with_the_rest) {
        Err(Error::Unsupported(_)) if settings.data_with_the_rest => None,
        answer => answer?,
    };
    Ok(Plan {
        pins: mlocks::CLASSES
            .into_iter()
            .filter(|class| dials.get(*class).is_some())
            .map(|class| OfClass { class, pinned_bytes: Pages(wanted.get(class)).bytes() })
            .collect(),
        without_bytes: all.saturating_sub(most),
        budget_bytes: budget,
        left_bytes: left,
        writes: writes.into_iter().collect(),
        nothing: (dials.get(Class::Data).is_some() && !swap::has_swap(files))
            .then(|| Nothing { class: Class::Data, why: swap::NO_SWAP.to_owned() })
            .into_iter()
            .collect(),
        left_out,
        streams: cache.map(|dial| of_streams(dial, &settings.scope)),
    })
}

fn of_streams(dial: Level, scope: &Scope) -> String {
    let whose = match scope {
        Scope::Host => "whoever brings in more than 64 MiB, nearly all of it in order",
        Scope::Group(_) => "the processes of the control group",
        Scope::Processes(_) => "these processes and those that they start",
    };
    match dial.get() {
        0 => format!("what {whose} bring into the page cache goes again when they have passed it"),
        part => format!("of what {whose} bring into the page cache, as much stays as {part} % of the memory"),
    }
}

impl Plan {
    /// Lines for people.
    pub fn lines(&self) -> Vec<String> {
        let mut lines: Vec<String> = self
            .pins
            .iter()
            .map(|OfClass { class, pinned_bytes }| {
                format!("{}: would pin {pinned_bytes}, what is mapped of it and in memory", class.name())
            })
            .collect();
        if !self.pins.is_empty() {
            let mut line = format!("at most {} in all; {} left", self.budget_bytes, self.left_bytes);
            if self.without_bytes > Bytes(0) {
                line += &format!("; {} would be left out", self.without_bytes);
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
