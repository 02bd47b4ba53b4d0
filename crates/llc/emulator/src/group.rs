//! Groups, and what each has.

use units::WayMask;

use crate::cpus::Cpus;
use crate::schema::Schema;

/// A group, for as long as it is there; never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupId(pub u64);

impl GroupId {
    /// The default group: the root directory.
    pub const ROOT: GroupId = GroupId(0);
}

/// What a group is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A class of service, and counting (CTRL_MON).
    Control,
    /// Counting a part of what is in a control group (MON).
    Monitor {
        /// That group.
        of: GroupId,
    },
}

/// A group.
#[derive(Clone, Debug)]
pub struct Group {
    /// Its directory's name; empty of the root.
    pub name: String,
    /// What it is for.
    pub kind: Kind,
    /// The class (CLOSID) of a control group that is not a locked region.
    pub class: Option<u32>,
    /// Its counters (RMID).
    pub rmid: Option<u32>,
    /// How it has its ways.
    pub mode: Mode,
    /// Its CPUs.
    pub cpus: Cpus,
    /// Its locked region.
    pub locked: Option<Region>,
    /// Which of the two events keeps its bandwidth down; only with `-o mba_MBps`.
    pub kept_by_total: bool,
    /// Who made it: user and group of its files.
    pub owner: (u32, u32),
}

impl Group {
    /// One that has nothing yet.
    pub(crate) fn empty() -> Group {
        Group {
            name: String::new(),
            kind: Kind::Control,
            class: None,
            rmid: None,
            mode: Mode::Shareable,
            cpus: Cpus::default(),
            locked: None,
            kept_by_total: false,
            owner: (0, 0),
        }
    }

    /// The group that it monitors a part of.
    pub fn parent(&self) -> Option<GroupId> {
        match self.kind {
            Kind::Control => None,
            Kind::Monitor { of } => Some(of),
        }
    }
}

/// How a group has its ways.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Others may have them, too.
    Shareable,
    /// Nobody else has them.
    Exclusive,
    /// Some of them are about to be locked.
    PseudoLocksetup,
    /// They hold a region of memory and serve only hits.
    PseudoLocked,
}

impl Mode {
    /// As the file shows it.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Shareable => "shareable",
            Mode::Exclusive => "exclusive",
            Mode::PseudoLocksetup => "pseudo-locksetup",
            Mode::PseudoLocked => "pseudo-locked",
        }
    }

    /// Is, or is to be, a locked region.
    pub fn is_of_pseudo_locking(self) -> bool {
        matches!(self, Mode::PseudoLocksetup | Mode::PseudoLocked)
    }
}

/// A locked region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// Of which line of `schemata`.
    pub schema: Schema,
    /// In which cache, by position.
    pub cache: usize,
    /// In which ways.
    pub mask: WayMask,
}
