//! `info`: what the hardware can do, and which masks it takes.

use std::collections::BTreeMap;
use std::fmt;

use rustix::io::Errno;
use serde::{Serialize, Serializer};
use units::{Bytes, WayMask, Ways};

use super::schemata::{Resource, parse_masks, parse_usage};
use super::{CacheId, Failed, Resctrl};
use crate::KernelFiles;

/// What the file system says about itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Info {
    /// The caches that can be divided, by name: L2 or L3; with code and data apart two of each.
    pub caches: BTreeMap<Resource, CacheInfo>,
    /// Memory bandwidth, where it can be divided.
    pub bandwidth: Option<BandwidthInfo>,
    /// Counting what groups have in the cache, where that can be counted.
    pub monitoring: Option<MonitoringInfo>,
    /// The groups that there may be at most, the default group included: the least `num_closids` of all resources. 1 where only
    /// monitoring is possible.
    pub classes_max: u32,
}

impl Info {
    /// The last-level cache; with code and data apart, what is said of data.
    pub fn l3(&self) -> Option<&CacheInfo> {
        [Resource::L3, Resource::L3Data].iter().find_map(|resource| self.caches.get(resource))
    }

    /// The names under which masks of the last-level cache are written: L3, or L3CODE and L3DATA.
    pub fn l3_resources(&self) -> Vec<Resource> {
        self.caches.keys().filter(|resource| resource.is_l3()).cloned().collect()
    }
}

/// One cache, or code or data in it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CacheInfo {
    /// `num_closids`: the groups that it can tell apart, the default group included.
    pub classes_max: u32,
    /// Which masks it takes.
    #[serde(flatten)]
    pub rules: MaskRules,
    /// Ways that devices fill as well (`shareable_bits`). An exclusive group may not have them.
    pub shareable: WayMask,
    /// How each way is used now, by domain; empty where the kernel does not say.
    pub usage: BTreeMap<CacheId, WaysInUse>,
    /// Ways that devices fill by a class of their own (AMD: SDCIAE).
    pub io_alloc: IoAlloc,
}

/// Where devices may allocate by a class of their own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum IoAlloc {
    /// This kernel or hardware has no such thing.
    Unsupported,
    /// It has, and it is switched off.
    Disabled,
    /// In these ways. It takes the highest class.
    Enabled(BTreeMap<CacheId, WayMask>),
}

/// Memory bandwidth.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct BandwidthInfo {
    /// The groups that it can tell apart, the default group included.
    pub classes_max: u32,
    /// The least that can be asked for, in what the resource counts in.
    pub bandwidth_min: u64,
    /// The step to which the kernel rounds.
    pub step: u64,
}

/// Counting.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MonitoringInfo {
    /// `num_rmids`: the groups that can be counted apart, of both kinds together.
    pub groups_max: u32,
    /// What is counted: `llc_occupancy`, `mbm_total_bytes`, `mbm_local_bytes`, and what else a kernel may have.
    pub features: Vec<String>,
    /// With this much left in the cache, the number of a removed group may be given to another.
    #[serde(rename = "max_threshold_occupancy_bytes")]
    pub max_threshold_occupancy: Option<Bytes>,
}

impl MonitoringInfo {
    /// Is this counted?
    pub fn counts(&self, feature: &str) -> bool {
        self.features.iter().any(|known| known == feature)
    }
}

/// Which masks a cache takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct MaskRules {
    /// All of its ways (`cbm_mask`).
    #[serde(rename = "ways")]
    pub full: WayMask,
    /// The fewest ways in a row (`min_cbm_bits`): 1 or 2 with Intel, 0 with AMD.
    pub ways_min: Ways,
    /// May there be holes (`sparse_masks`)?
    pub sparse: bool,
}

/// Why a cache does not take a mask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MaskFault {
    /// It has ways that the cache does not have.
    TooHigh {
        /// All of the cache's.
        full: WayMask,
    },
    /// It has none, and must have some.
    Empty {
        /// So many at least.
        ways_min: Ways,
    },
    /// Its ways are not in a row.
    Holes,
    /// Too few of its lowest ways are in a row.
    TooFew {
        /// So many must be.
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
    /// Would the kernel take this mask for a group that overlaps no exclusive one? In the order in which it looks: of masks with holes it
    /// counts the lowest ways in a row.
    ///
    /// # Errors
    /// The first rule that is broken.
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

/// How a way is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Usage {
    /// `0`: by nobody.
    Unused,
    /// `H`: by devices alone.
    Hardware,
    /// `X`: by devices and groups.
    HardwareAndGroups,
    /// `S`: by groups that share.
    Shared,
    /// `E`: by one group alone.
    Exclusive,
    /// `P`: pseudo-locked.
    PseudoLocked,
    /// A letter that this version of masu does not know.
    Unknown(char),
}

/// How each way of one cache is used, the lowest first.
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

    /// One letter for each way, the highest first; `None` for other text than up to 64 letters and digits.
    pub(super) fn parse(text: &str) -> Option<WaysInUse> {
        let plain = text.len() <= 64 && text.bytes().all(|letter| letter.is_ascii_alphanumeric());
        plain.then(|| WaysInUse(text.chars().rev().map(WaysInUse::of_letter).collect()))
    }

    fn of_letter(letter: char) -> Usage {
        let known = WaysInUse::LETTERS.into_iter().find(|(known, _)| *known == letter);
        known.map_or(Usage::Unknown(letter), |(_, usage)| usage)
    }

    /// The ways that are used so.
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
    /// What can be divided and counted here.
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
                // Older kernels allow holes with AMD alone, and do not tell: whoever takes them for forbidden is never refused.
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
