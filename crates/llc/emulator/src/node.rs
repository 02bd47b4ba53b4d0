//! Possible directories and files, and their names. Pure.

use crate::counters::Event;
use crate::group::GroupId;
use crate::schema::Schema;

/// Directory or file, by its subject; it stays the same when its group is renamed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Node {
    /// Directory of a group.
    Group(GroupId),
    /// File of a group.
    File(GroupId, GroupFile),
    /// `mon_groups` of a control group.
    MonGroups(GroupId),
    /// `mon_data` of a group.
    MonData(GroupId),
    /// `mon_L3_XX` in it: of the cache at this position.
    MonCache(GroupId, usize),
    /// `mon_sub_L3_YY` in that: of this node of the cache.
    MonNode(GroupId, usize, u32),
    /// File of a counter in one of the two.
    Event(GroupId, usize, Option<u32>, Event),
    /// `info`.
    Info,
    /// `info/last_cmd_status`.
    LastCommand,
    /// Directory of `info`.
    Folder(Folder),
    /// File of such a directory.
    InfoFile(Folder, InfoFile),
}

/// File of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(missing_docs, reason = "named after the files, which the kernel's document describes")]
pub enum GroupFile {
    Cpus,
    CpusList,
    CtrlHwId,
    MbaMbpsEvent,
    Mode,
    MonHwId,
    Schemata,
    Size,
    Tasks,
}

impl GroupFile {
    pub(crate) const ALL: [GroupFile; 9] = [
        GroupFile::Cpus,
        GroupFile::CpusList,
        GroupFile::CtrlHwId,
        GroupFile::MbaMbpsEvent,
        GroupFile::Mode,
        GroupFile::MonHwId,
        GroupFile::Schemata,
        GroupFile::Size,
        GroupFile::Tasks,
    ];

    /// Name of the file.
    pub fn name(self) -> &'static str {
        match self {
            GroupFile::Cpus => "cpus",
            GroupFile::CpusList => "cpus_list",
            GroupFile::CtrlHwId => "ctrl_hw_id",
            GroupFile::MbaMbpsEvent => "mba_MBps_event",
            GroupFile::Mode => "mode",
            GroupFile::MonHwId => "mon_hw_id",
            GroupFile::Schemata => "schemata",
            GroupFile::Size => "size",
            GroupFile::Tasks => "tasks",
        }
    }
}

impl Node {
    /// Whether it is a directory.
    pub fn is_directory(self) -> bool {
        !matches!(self, Node::File(..) | Node::Event(..) | Node::LastCommand | Node::InfoFile(..))
    }

    /// Group of the node.
    pub fn group(self) -> Option<GroupId> {
        match self {
            Node::Group(id) | Node::File(id, _) | Node::MonGroups(id) | Node::MonData(id) => Some(id),
            Node::MonCache(id, _) | Node::MonNode(id, _, _) | Node::Event(id, ..) => Some(id),
            Node::Info | Node::LastCommand | Node::Folder(_) | Node::InfoFile(..) => None,
        }
    }
}

/// Directory of `info`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Folder {
    /// Directory for a line of `schemata`.
    Schema(Schema),
    /// `L3_MON`.
    Monitoring,
}

impl Folder {
    /// Name of the directory.
    pub fn name(self) -> &'static str {
        match self {
            Folder::Schema(schema) => schema.name(),
            Folder::Monitoring => "L3_MON",
        }
    }
}

/// File of such a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(missing_docs, reason = "named after the files, which the kernel's document describes")]
pub enum InfoFile {
    NumClosids,
    CbmMask,
    MinCbmBits,
    ShareableBits,
    BitUsage,
    SparseMasks,
    IoAlloc,
    IoAllocCbm,
    MinBandwidth,
    BandwidthGran,
    DelayLinear,
    ThreadThrottleMode,
    NumRmids,
    MonFeatures,
    MaxThresholdOccupancy,
}

use InfoFile::{
    BandwidthGran, BitUsage, CbmMask, DelayLinear, IoAlloc, IoAllocCbm, MaxThresholdOccupancy, MinBandwidth,
    MinCbmBits, MonFeatures, NumClosids, NumRmids, ShareableBits, SparseMasks, ThreadThrottleMode,
};

impl InfoFile {
    pub(crate) const CACHE: [InfoFile; 8] =
        [NumClosids, CbmMask, MinCbmBits, ShareableBits, BitUsage, SparseMasks, IoAlloc, IoAllocCbm];
    pub(crate) const BANDWIDTH: [InfoFile; 5] =
        [NumClosids, MinBandwidth, BandwidthGran, DelayLinear, ThreadThrottleMode];
    pub(crate) const MONITORING: [InfoFile; 3] = [NumRmids, MonFeatures, MaxThresholdOccupancy];

    /// Name of the file.
    pub fn name(self) -> &'static str {
        match self {
            NumClosids => "num_closids",
            CbmMask => "cbm_mask",
            MinCbmBits => "min_cbm_bits",
            ShareableBits => "shareable_bits",
            BitUsage => "bit_usage",
            SparseMasks => "sparse_masks",
            IoAlloc => "io_alloc",
            IoAllocCbm => "io_alloc_cbm",
            MinBandwidth => "min_bandwidth",
            BandwidthGran => "bandwidth_gran",
            DelayLinear => "delay_linear",
            ThreadThrottleMode => "thread_throttle_mode",
            NumRmids => "num_rmids",
            MonFeatures => "mon_features",
            MaxThresholdOccupancy => "max_threshold_occupancy",
        }
    }

    /// Whether it can be written.
    pub fn is_writable(self) -> bool {
        matches!(self, IoAlloc | IoAllocCbm | MaxThresholdOccupancy)
    }
}
