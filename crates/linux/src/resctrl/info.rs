//! `info`: capabilities of the hardware, and its rules for masks.

use std::collections::BTreeMap;
use std::fmt;

use rustix::io::Errno;
use serde::{Serialize, Serializer};
use units::{Bytes, WayMask, Ways};

use super::schemata::{Resource, parse_masks, parse_usage};
use super::{CacheId, Failed, Resctrl};
use crate::KernelFiles;

/// Capabilities of resctrl.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Info {
    /// Caches that can be allocated, by name: L2 or L3; two entries each if code and data are separate.
    pub caches: BTreeMap<Resource, CacheInfo>,
    /// Memory bandwidth, where it can be allocated.
    pub bandwidth: Option<BandwidthInfo>,
    /// Monitoring, where it is supported.
    pub monitoring: Option<MonitoringInfo>,
    /// Maximum number of control groups, the default group included: the least `num_closids` of all resources. 1 where
    /// only monitoring is possible.
    pub classes_max: u32,
}

impl Info {
    /// The last-level cache; its data entry if code and data are separate.
    pub fn l3(&self) -> Option<&CacheInfo> {
        [Resource::L3, Resource::L3Data].iter().find_map(|resource| self.caches.get(resource))
    }

    /// Names of the last-level cache in `schemata`: L3, or L3CODE and L3DATA.
    pub fn l3_resources(&self) -> Vec<Resource> {
        self.caches.keys().filter(|resource| resource.is_l3()).cloned().collect()
    }
}

/// One cache, or code or data in it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CacheInfo {
    /// `num_closids`: number of control groups, the default group included.
    pub classes_max: u32,
    /// Rules for its masks.
    #[serde(flatten)]
    pub rules: MaskRules,
    /// Ways that devices fill as well (`shareable_bits`). An exclusive group may not have them.
    pub shareable: WayMask,
    /// Current use of each way, by domain; empty where the kernel does not report it.
    pub usage: BTreeMap<CacheId, WaysInUse>,
    /// Ways that devices fill under their own CLOSID (AMD: SDCIAE).
    pub io_alloc: IoAlloc,
}

/// Allocation by devices under their own CLOSID.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum IoAlloc {
    /// Not supported by this kernel or hardware.
    Unsupported,
    /// Supported, and switched off.
    Disabled,
    /// Switched on, in these ways. It takes the highest CLOSID.
    Enabled(BTreeMap<CacheId, WayMask>),
}

/// Memory bandwidth allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct BandwidthInfo {
    /// Number of control groups, the default group included.
    pub classes_max: u32,
    /// Smallest value, in the unit of the resource.
    pub bandwidth_min: u64,
    /// Step to which the kernel rounds.
    pub step: u64,
}

/// Monitoring.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MonitoringInfo {
    /// `num_rmids`: number of groups that can be counted, of both kinds together.
    pub groups_max: u32,
    /// Counters: `llc_occupancy`, `mbm_total_bytes`, `mbm_local_bytes`, and others that a kernel may have.
    pub features: Vec<String>,
    /// Occupancy below which the RMID of a removed group may be reused.
    #[serde(rename = "max_threshold_occupancy_bytes")]
    pub max_threshold_occupancy: Option<Bytes>,
}

impl MonitoringInfo {
    /// True if the kernel has this counter.
    pub fn counts(&self, feature: &str) -> bool {
        self.features.iter().any(|known| known == feature)
    }
}

/// A cache's rules for masks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct MaskRules {
    /// All ways of the cache (`cbm_mask`).
    #[serde(rename = "ways")]
    pub full: WayMask,
    /// Fewest contiguous ways (`min_cbm_bits`): 1 or 2 with Intel, 0 with AMD.
    pub ways_min: Ways,
    /// Holes are allowed (`sparse_masks`).
    pub sparse: bool,
}

/// Reason why a cache refuses a mask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MaskFault {
    /// The mask has ways beyond the cache's.
    TooHigh {
        /// All ways of the cache.
        full: WayMask,
    },
    /// The mask is empty, and may not be.
    Empty {
        /// Fewest ways.
        ways_min: Ways,
    },
    /// The ways are not contiguous.
    Holes,
    /// Too few of the lowest ways are contiguous.
    TooFew {
        /// Fewest contiguous ways.
        ways_min: Ways,
    },
}

impl fmt::Display for MaskFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MaskFault::TooHigh { full } => write!(f, "the cache has the ways {full} and no others"),
            MaskFault::Empty { ways_min } => write!(f, "no way at all, and at least {ways_min} must be in it"),
            MaskFault::Holes => f.write_str("the ways are not in a row"),
            MaskFault::TooFew { ways_min } => write!(f, "at least {ways_min} ways in a row must be in it"),
        }
    }
}

impl std::error::Error for MaskFault {}

impl MaskRules {
    /// Checks a mask for a group that overlaps no exclusive one, in the kernel's order. In masks with holes the kernel
    /// counts the lowest contiguous ways.
    ///
    /// # Errors
    /// The first broken rule.
    pub const fn check(&self, mask: WayMask) -> Result<(), MaskFault> {
        let ways_min = self.ways_min;
        if !self.full.covers(mask) {
            return Err(MaskFault::TooHigh { full: self.full });
        }
        if mask.is_empty() && ways_min.0 > 0 {
            return Err(MaskFault::Empty { ways_min });
        }
        if !self.sparse && !mask.is_contiguous() {
            return Err(MaskFault::Holes);
        }
        if mask.first_run().ways().0 < ways_min.0 {
            return Err(MaskFault::TooFew { ways_min });
        }
        Ok(())
    }
}

/// Use of a way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Usage {
    /// `0`: unused.
    Unused,
    /// `H`: devices only.
    Hardware,
    /// `X`: devices and groups.
    HardwareAndGroups,
    /// `S`: shareable groups.
    Shared,
    /// `E`: one exclusive group.
    Exclusive,
    /// `P`: pseudo-locked.
    PseudoLocked,
    /// A letter that this version of masu does not know.
    Unknown(char),
}

/// Use of each way of one cache, the lowest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WaysInUse(pub Vec<Usage>);

impl WaysInUse {
    const LETTERS: [(char, Usage); 6] = [
        ('0', Usage::Unused),
        ('H', Usage::Hardware),
        ('X', Usage::HardwareAndGroups),
        ('S', Usage::Shared),
        ('E', Usage::Exclusive),
        ('P', Usage::PseudoLocked),
    ];

    /// One letter for each way, the highest first; `None` for any text but up to 64 letters and digits.
    pub(super) fn parse(text: &str) -> Option<WaysInUse> {
        let plain = text.len() <= 64 && text.bytes().all(|letter| letter.is_ascii_alphanumeric());
        plain.then(|| WaysInUse(text.chars().rev().map(WaysInUse::of_letter).collect()))
    }

    fn of_letter(letter: char) -> Usage {
        let known = WaysInUse::LETTERS.into_iter().find(|(known, _)| *known == letter);
        known.map_or(Usage::Unknown(letter), |(_, usage)| usage)
    }

    /// Ways with this use.
    pub fn ways(&self, usage: Usage) -> WayMask {
        let ways = (0u32..).zip(&self.0).filter(|(_, way)| **way == usage);
        ways.fold(WayMask::NONE, |mask, (way, _)| mask.or(WayMask::run(way, Ways(1))))
    }
}

/// As the kernel prints it.
impl fmt::Display for WaysInUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let letter = |usage: &Usage| match usage {
            Usage::Unknown(letter) => *letter,
            known => WaysInUse::LETTERS.iter().find(|(_, usage)| usage == known).map_or('?', |(letter, _)| *letter),
        };
        f.pad(&self.0.iter().rev().map(letter).collect::<String>())
    }
}

impl Serialize for WaysInUse {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<F: KernelFiles> Resctrl<'_, F> {
    /// Allocation and monitoring capabilities of this host.
    ///
    /// # Errors
    /// `Gone` when the file system is no longer mounted, `Malformed` for text of another form.
    pub fn info(&self) -> Result<Info, Failed> {
        let directory = self.path_of("info");
        let names = self.files.list(&directory).map_err(|errno| Failed::of("list", &directory, errno))?;
        let mut info = Info { caches: BTreeMap::new(), bandwidth: None, monitoring: None, classes_max: 1 };
        for name in &names {
            let resource = Resource::of_name(name);
            if resource.is_cache() {
                info.caches.insert(resource, self.cache_info(name)?);
            } else if resource == Resource::Mb {
                info.bandwidth = Some(self.bandwidth_info(name)?);
            } else if name == "L3_MON" {
                info.monitoring = Some(self.monitoring_info(name)?);
            }
        }
        let bandwidth = info.bandwidth.map(|bandwidth| bandwidth.classes_max);
        let all = info.caches.values().map(|cache| cache.classes_max).chain(bandwidth);
        info.classes_max = all.min().unwrap_or(1);
        Ok(info)
    }

    fn cache_info(&self, resource: &str) -> Result<CacheInfo, Failed> {
        let mask = |name: &str| self.value(resource, name, "a mask such as fffff", |text| text.parse::<WayMask>().ok());
        let number = |name: &str| self.value(resource, name, "a number", |text| text.parse::<u32>().ok());
        Ok(CacheInfo {
            classes_max: number("num_closids")?,
            rules: MaskRules {
                full: mask("cbm_mask")?,
                ways_min: Ways(number("min_cbm_bits")?),
                // Older kernels allow holes with AMD alone, and do not report it. Assuming that holes are forbidden is
                // never refused.
                sparse: optional(number("sparse_masks"))?.is_some_and(|sparse| sparse != 0),
            },
            shareable: optional(mask("shareable_bits"))?.unwrap_or(WayMask::NONE),
            usage: optional(self.value(resource, "bit_usage", "domains and letters such as 0=SSSS", parse_usage))?
                .unwrap_or_default(),
            io_alloc: self.io_alloc(resource)?,
        })
    }

    fn io_alloc(&self, resource: &str) -> Result<IoAlloc, Failed> {
        let state = optional(self.value(resource, "io_alloc", "a word", |text| Some(text.to_owned())))?;
        match state.as_deref() {
            Some("disabled") => Ok(IoAlloc::Disabled),
            Some("enabled") => {
                let expected = "domains and masks such as 0=ff";
                self.value(resource, "io_alloc_cbm", expected, parse_masks).map(IoAlloc::Enabled)
            }
            _ => Ok(IoAlloc::Unsupported),
        }
    }

    fn bandwidth_info(&self, resource: &str) -> Result<BandwidthInfo, Failed> {
        let number = |name: &str| self.value(resource, name, "a number", |text| text.parse::<u64>().ok());
        let classes = self.value(resource, "num_closids", "a number", |text| text.parse().ok());
        Ok(BandwidthInfo {
            classes_max: classes?,
            bandwidth_min: number("min_bandwidth")?,
            step: number("bandwidth_gran")?,
        })
    }

    fn monitoring_info(&self, resource: &str) -> Result<MonitoringInfo, Failed> {
        let features = |text: &str| Some(text.split_whitespace().map(str::to_owned).collect());
        let bytes = |text: &str| text.parse().ok().map(Bytes);
        Ok(MonitoringInfo {
            groups_max: self.value(resource, "num_rmids", "a number", |text| text.parse().ok())?,
            features: self.value(resource, "mon_features", "words", features)?,
            max_threshold_occupancy: optional(self.value(resource, "max_threshold_occupancy", "bytes", bytes))?,
        })
    }

    fn value<T>(
        &self,
        resource: &str,
        name: &str,
        expected: &str,
        parse: impl Fn(&str) -> Option<T>,
    ) -> Result<T, Failed> {
        let path = self.path_of(&format!("info/{resource}/{name}"));
        let text = self.files.read(&path).map_err(|errno| Failed::of("read", &path, errno))?;
        parse(text.trim()).ok_or_else(|| {
            crate::Error::malformed(format_args!("/{path}"), format_args!("{:?}, expected {expected}", text.trim()))
                .into()
        })
    }
}

/// A file that some kernels do not have.
fn optional<T>(value: Result<T, Failed>) -> Result<Option<T>, Failed> {
    match value {
        Ok(value) => Ok(Some(value)),
        Err(failed) if failed.errno() == Some(Errno::NOENT) => Ok(None),
        Err(failed) => Err(failed),
    }
}
