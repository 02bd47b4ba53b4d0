//! `mon_data`: cache occupancy and memory traffic of a group's tasks.
//!
//! A cache line is counted for the group that filled it, until it is replaced: moving a task changes nothing at first.
//! A control group's counts include those of its monitoring groups. Counters of memory traffic only grow, and wrap;
//! occupancy is of this moment.

use std::fmt;

use rustix::io::Errno;
use serde::{Serialize, Serializer};
use units::Bytes;

use super::{CacheId, Failed, Group, Resctrl};
use crate::{Error, KernelFiles};

/// Reading of one counter. Only the first is a number; the others are four different states.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reading {
    /// Bytes.
    Value(Bytes),
    /// The hardware reported an error: the group's RMID is out of range.
    Error,
    /// The hardware has no number yet: it counts again from now on. The next reading may have one.
    Unavailable,
    /// No counter is assigned to the group (AMD, `mbm_event` mode).
    Unassigned,
    /// This hardware does not count it: there is no such file.
    Unsupported,
}

impl Reading {
    const WORDS: [(&'static str, Reading); 3] =
        [("Error", Reading::Error), ("Unavailable", Reading::Unavailable), ("Unassigned", Reading::Unassigned)];

    /// A decimal number of bytes, or one of the kernel's words; `None` for other text.
    pub fn parse(text: &str) -> Option<Reading> {
        let text = text.trim();
        let word = Reading::WORDS.iter().find(|(word, _)| *word == text).map(|(_, reading)| *reading);
        word.or_else(|| text.parse().ok().map(|bytes| Reading::Value(Bytes(bytes))))
    }

    /// Bytes, if the counter has a number.
    pub fn value(self) -> Option<Bytes> {
        match self {
            Reading::Value(bytes) => Some(bytes),
            _ => None,
        }
    }
}

/// The number of bytes, or the kernel's word.
impl fmt::Display for Reading {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reading::Value(bytes) => f.pad(&bytes.0.to_string()),
            Reading::Unsupported => f.pad("Unsupported"),
            other => f.pad(Reading::WORDS.iter().find(|(_, reading)| reading == other).map_or("", |(word, _)| word)),
        }
    }
}

/// A number of bytes, or a word.
impl Serialize for Reading {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Reading::Value(bytes) => serializer.serialize_u64(bytes.0),
            other => serializer.collect_str(other),
        }
    }
}

/// Counters of one group in one domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Readings {
    /// Domain of the last-level cache.
    pub domain: CacheId,
    /// Node of the domain, where one cache serves several nodes (sub-NUMA clustering); `None` for the whole domain.
    pub node: Option<u32>,
    /// Cache occupancy of the group.
    #[serde(rename = "llc_occupancy_bytes")]
    pub llc_occupancy: Reading,
    /// Traffic with all memory.
    pub mbm_total_bytes: Reading,
    /// Traffic with memory of the same node.
    pub mbm_local_bytes: Reading,
}

impl<F: KernelFiles> Resctrl<'_, F> {
    /// All counters of this group, by domain and then by node. Empty where the hardware cannot count.
    ///
    /// # Errors
    /// `Gone` when the group no longer exists, `Malformed` for text of another form.
    pub fn readings(&self, group: &Group) -> Result<Vec<Readings>, Failed> {
        let directory = self.file(group, "mon_data");
        let names = match self.files.list(&directory) {
            Ok(names) => names,
            Err(Errno::NOENT) if self.exists(group) => return Ok(Vec::new()),
            Err(errno) => return Err(Failed::of("list", &directory, errno)),
        };
        let mut all = Vec::new();
        for name in names {
            let Some(domain) = number_after(&name, "mon_L3_").map(CacheId) else { continue };
            let below = format!("{directory}/{name}");
            all.push(self.readings_in(&below, domain, None)?);
            let inner = self.files.list(&below).map_err(|errno| Failed::of("list", &below, errno))?;
            for part in inner {
                if let Some(node) = number_after(&part, "mon_sub_L3_") {
                    all.push(self.readings_in(&format!("{below}/{part}"), domain, Some(node))?);
                }
            }
        }
        all.sort_by_key(|readings| (readings.domain, readings.node));
        Ok(all)
    }

    /// Occupancy of the group in one cache: the one file of these that is read often.
    ///
    /// # Errors
    /// `Gone` when the group no longer exists, `Malformed` for text of another form.
    pub fn llc_occupancy(&self, group: &Group, domain: CacheId) -> Result<Reading, Failed> {
        let reading =
            self.reading(&format!("{}/mon_L3_{:02}", self.file(group, "mon_data"), domain.0), "llc_occupancy")?;
        match reading {
            Reading::Unsupported if !self.exists(group) => {
                Err(Failed::of("read", &self.file(group, "mon_data"), Errno::NOENT))
            }
            reading => Ok(reading),
        }
    }

    fn readings_in(&self, directory: &str, domain: CacheId, node: Option<u32>) -> Result<Readings, Failed> {
        Ok(Readings {
            domain,
            node,
            llc_occupancy: self.reading(directory, "llc_occupancy")?,
            mbm_total_bytes: self.reading(directory, "mbm_total_bytes")?,
            mbm_local_bytes: self.reading(directory, "mbm_local_bytes")?,
        })
    }

    fn reading(&self, directory: &str, event: &str) -> Result<Reading, Failed> {
        let path = format!("{directory}/{event}");
        let text = match self.files.read(&path) {
            Ok(text) => text,
            Err(Errno::NOENT) => return Ok(Reading::Unsupported),
            Err(errno) => return Err(Failed::of("read", &path, errno)),
        };
        let malformed =
            || Error::malformed(format_args!("/{path}"), format_args!("{:?}, expected a number of bytes", text.trim()));
        Ok(Reading::parse(&text).ok_or_else(malformed)?)
    }
}

/// `mon_L3_00`: 0.
fn number_after(name: &str, prefix: &str) -> Option<u32> {
    name.strip_prefix(prefix)?.parse().ok()
}
