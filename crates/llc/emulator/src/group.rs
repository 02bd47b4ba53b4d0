//! Groups and their resources.

use units::WayMask;

use crate::cpus::Cpus;
use crate::schema::Schema;

/// Id of a group, valid while the group exists; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupId(pub u64);

impl GroupId {
    /// The default group: the root directory.
    pub const ROOT: GroupId = GroupId(0);
}

/// Purpose of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A class of service, and counting (CTRL_MON).
    Control,
    /// Counts a part of a control group (MON).
    Monitor {
        /// That control group.
        of: GroupId,
    },
}

/// A group.
#[derive(Clone, Debug)]
pub struct Group {
    /// Name of its directory; empty for the root.
    pub name: String,
    /// Purpose of the group.
    pub kind: Kind,
    /// Class (CLOSID) of a control group that is not a locked region.
    pub class: Option<u32>,
    /// Counters (RMID).
    pub rmid: Option<u32>,
    /// Sharing mode of its ways.
    pub mode: Mode,
    /// CPUs of the group.
    pub cpus: Cpus,
    /// Locked region of the group.
    pub locked: Option<Region>,
    /// Bandwidth is limited by the total event, not the local one; only with `-o mba_MBps`.
    pub kept_by_total: bool,
    /// Creator: user and group of its files.
    pub owner: (u32, u32),
}

impl Group {
    /// Group without resources.
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

    /// The monitored control group.
    pub fn parent(&self) -> Option<GroupId> {
        match self.kind {
            Kind::Control => None,
            Kind::Monitor { of } => Some(of),
        }
    }
}

/// Sharing mode of a group's ways.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Other groups may have them, too.
    Shareable,
    /// No other group has them.
    Exclusive,
    /// Some of them are about to be locked.
    PseudoLocksetup,
    /// They hold a region of memory and serve only hits.
    PseudoLocked,
}

impl Mode {
    /// Text of the file.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Shareable => "shareable",
            Mode::Exclusive => "exclusive",
            Mode::PseudoLocksetup => "pseudo-locksetup",
            Mode::PseudoLocked => "pseudo-locked",
        }
    }

    /// Whether it is, or is to be, a locked region.
    pub fn is_of_pseudo_locking(self) -> bool {
        matches!(self, Mode::PseudoLocksetup | Mode::PseudoLocked)
    }
}

/// Locked region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// Line of `schemata`.
    pub schema: Schema,
    /// Cache, by position.
    pub cache: usize,
    /// Ways.
    pub mask: WayMask,
}
