//! `schemata`: resources that a group may use. Also the form of `size`, which has the same lines with bytes in them.
//!
//! A line has the resource, padded with spaces to a common width, and a value for each domain: `
//! L3:0=fffff;1=000ff`. Caches have masks in hexadecimal, without `0x` (some kernels pad them with zeros); memory
//! bandwidth has decimal numbers, padded with spaces. With code and data separate (CDP), `L3` is replaced by `L3CODE`
//! and `L3DATA`. A group that is being set up for pseudo-locking says `L3:uninitialized`. Unknown resources of newer
//! kernels are kept as text, and never written.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Serialize, Serializer};
use units::{Bytes, WayMask};

use super::CacheId;
use crate::Error;

/// A resource, by the kernel's name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Resource {
    /// The last-level cache.
    L3,
    /// Code in the last-level cache, where code and data are separate.
    L3Code,
    /// Data in the last-level cache, where code and data are separate.
    L3Data,
    /// The cache of each core.
    L2,
    /// Code in the cache of each core.
    L2Code,
    /// Data in the cache of each core.
    L2Data,
    /// Memory bandwidth.
    Mb,
    /// Bandwidth of slow memory.
    Smba,
    /// A resource that this version of masu does not know.
    Other(String),
}

impl Resource {
    const KNOWN: [(&'static str, Resource); 8] = [
        ("L3", Resource::L3),
        ("L3CODE", Resource::L3Code),
        ("L3DATA", Resource::L3Data),
        ("L2", Resource::L2),
        ("L2CODE", Resource::L2Code),
        ("L2DATA", Resource::L2Data),
        ("MB", Resource::Mb),
        ("SMBA", Resource::Smba),
    ];

    /// The resource of this name.
    pub fn of_name(name: &str) -> Resource {
        let known = Resource::KNOWN.into_iter().find(|(known, _)| *known == name);
        known.map_or_else(|| Resource::Other(name.to_owned()), |(_, resource)| resource)
    }

    /// True for a cache: its values are masks.
    pub fn is_cache(&self) -> bool {
        self.is_l3() || matches!(self, Resource::L2 | Resource::L2Code | Resource::L2Data)
    }

    /// True for the last-level cache, or code or data in it.
    pub fn is_l3(&self) -> bool {
        matches!(self, Resource::L3 | Resource::L3Code | Resource::L3Data)
    }
}

/// The kernel's name: `L3CODE`.
impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = Resource::KNOWN.iter().find(|(_, resource)| resource == self);
        f.pad(match self {
            Resource::Other(name) => name,
            _ => known.map_or("", |(name, _)| name),
        })
    }
}

impl Serialize for Resource {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Values of one resource for a group, by domain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Values {
    /// Ways of a cache.
    Masks(BTreeMap<CacheId, WayMask>),
    /// Bandwidth in the unit of the resource: percent (Intel), MiB/s (mounted with `mba_MBps`), eighths of GB/s (AMD).
    Numbers(BTreeMap<CacheId, u64>),
    /// Nothing yet: the group is to be pseudo-locked.
    Uninitialized,
    /// Unparsed text of a resource that this version of masu does not know.
    Other(String),
}

/// Lines of one `schemata` file, or a part of them to be written.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Schemata(pub BTreeMap<Resource, Values>);

/// A value that differs from the request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// Resource of the value.
    pub resource: Resource,
    /// Domain of the value.
    pub domain: CacheId,
    /// Requested value, as the kernel writes it.
    pub asked: String,
    /// Value found; `None` for a domain that does not exist.
    pub found: Option<String>,
}

impl Schemata {
    /// One line of masks.
    pub fn of_masks(resource: Resource, masks: impl IntoIterator<Item = (CacheId, WayMask)>) -> Schemata {
        Schemata([(resource, Values::Masks(masks.into_iter().collect()))].into())
    }

    /// The same mask in all these domains, for all these resources: L3, or L3CODE and L3DATA.
    pub fn uniform(resources: &[Resource], domains: &[CacheId], mask: WayMask) -> Schemata {
        let masks: BTreeMap<CacheId, WayMask> = domains.iter().map(|domain| (*domain, mask)).collect();
        Schemata(resources.iter().map(|resource| (resource.clone(), Values::Masks(masks.clone()))).collect())
    }

    /// Parses the text of `object`, which is named in errors.
    ///
    /// # Errors
    /// `Malformed` for a line without a resource, or with a known one and values of another form.
    pub fn parse(object: &str, text: &str) -> Result<Schemata, Error> {
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
        lines
            .map(|line| {
                parse_line(line).ok_or_else(|| {
                    Error::malformed(
                        object,
                        format_args!("{line:?}, expected a resource and its domains, such as L3:0=ff"),
                    )
                })
            })
            .collect::<Result<_, _>>()
            .map(Schemata)
    }

    /// Masks of a resource; `None` when it has none.
    pub fn masks(&self, resource: &Resource) -> Option<&BTreeMap<CacheId, WayMask>> {
        match self.0.get(resource) {
            Some(Values::Masks(masks)) => Some(masks),
            _ => None,
        }
    }

    /// One command for all writable lines, ended with a newline; empty when there is none.
    pub fn command(&self) -> String {
        let lines = self.0.iter().filter_map(|(resource, values)| {
            let values = written(values)?;
            (!values.is_empty()).then(|| format!("{resource}:{values}\n"))
        });
        lines.collect()
    }

    /// The values that `present` has for these lines, to be restored after a write.
    #[must_use]
    pub fn as_in(&self, present: &Schemata) -> Schemata {
        let lines = self.0.keys().filter_map(|resource| Some((resource.clone(), present.0.get(resource)?.clone())));
        Schemata(lines.collect())
    }

    /// These lines without resources and domains that are missing in `present`, and without values that are equal
    /// there.
    #[must_use]
    pub fn still_to_write(&self, present: &Schemata) -> Schemata {
        let mut left = Schemata::default();
        for (resource, values) in &self.0 {
            let left_over = match (values, present.0.get(resource)) {
                (Values::Masks(asked), Some(Values::Masks(there))) => Values::Masks(differing(asked, there)),
                (Values::Numbers(asked), Some(Values::Numbers(there))) => Values::Numbers(differing(asked, there)),
                _ => continue,
            };
            if written(&left_over).is_some_and(|text| !text.is_empty()) {
                left.0.insert(resource.clone(), left_over);
            }
        }
        left
    }

    /// Values that differ in `found`, the lines read back: some processors move neighbouring ways together, and
    /// bandwidth is rounded.
    pub fn differences(&self, found: &Schemata) -> Vec<Difference> {
        let mut differences = Vec::new();
        for (resource, values) in &self.0 {
            let (asked, there) = (texts(values), found.0.get(resource).map(texts).unwrap_or_default());
            for (domain, asked) in asked {
                let found = there.get(&domain).cloned();
                if found.as_ref() != Some(&asked) {
                    differences.push(Difference { resource: resource.clone(), domain, asked, found });
                }
            }
        }
        differences
    }
}

fn differing<V: Copy + PartialEq>(asked: &BTreeMap<CacheId, V>, there: &BTreeMap<CacheId, V>) -> BTreeMap<CacheId, V> {
    let differs = |domain: &CacheId, value: &V| there.get(domain).is_some_and(|present| present != value);
    asked.iter().filter(|(domain, value)| differs(domain, value)).map(|(domain, value)| (*domain, *value)).collect()
}

fn texts(values: &Values) -> BTreeMap<CacheId, String> {
    match values {
        Values::Masks(masks) => masks.iter().map(|(domain, mask)| (*domain, mask.to_string())).collect(),
        Values::Numbers(numbers) => numbers.iter().map(|(domain, number)| (*domain, number.to_string())).collect(),
        Values::Uninitialized | Values::Other(_) => BTreeMap::new(),
    }
}

/// `0=ff;1=f`; `None` for values that are never written.
fn written(values: &Values) -> Option<String> {
    if matches!(values, Values::Uninitialized | Values::Other(_)) {
        return None;
    }
    let each: Vec<String> = texts(values).into_iter().map(|(domain, value)| format!("{domain}={value}")).collect();
    Some(each.join(";"))
}

fn parse_line(line: &str) -> Option<(Resource, Values)> {
    let (name, values) = line.split_once(':')?;
    let (name, values) = (name.trim(), values.trim());
    if name.is_empty() || name.contains(char::is_whitespace) {
        return None;
    }
    let resource = Resource::of_name(name);
    let values = match &resource {
        Resource::Other(_) => Values::Other(values.to_owned()),
        cache if cache.is_cache() && values == "uninitialized" => Values::Uninitialized,
        cache if cache.is_cache() => Values::Masks(parse_values(values, |mask| mask.parse().ok())?),
        _ => Values::Numbers(parse_values(values, |number| number.parse().ok())?),
    };
    Some((resource, values))
}

/// `0=ff;1= f;`, each domain once.
fn parse_values<V>(text: &str, parse: impl Fn(&str) -> Option<V>) -> Option<BTreeMap<CacheId, V>> {
    let mut values = BTreeMap::new();
    for part in text.split(';').map(str::trim).filter(|part| !part.is_empty()) {
        let (domain, value) = part.split_once('=')?;
        let domain = CacheId(domain.trim().parse().ok()?);
        if values.insert(domain, parse(value.trim())?).is_some() {
            return None;
        }
    }
    Some(values)
}

/// Parses the file `size`: bytes that the masks of each cache cover. Lines of other resources are left out.
///
/// # Errors
/// `Malformed`, naming `object`, for a cache's line that has no bytes.
pub(super) fn parse_size(object: &str, text: &str) -> Result<BTreeMap<Resource, BTreeMap<CacheId, Bytes>>, Error> {
    let mut sizes = BTreeMap::new();
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let malformed =
            || Error::malformed(object, format_args!("{line:?}, expected a resource and bytes, such as L3:0=1048576"));
        let (name, values) = line.split_once(':').ok_or_else(malformed)?;
        let resource = Resource::of_name(name.trim());
        if resource.is_cache() && values.trim() != "uninitialized" {
            let parsed = parse_values(values, |bytes| bytes.parse().ok().map(Bytes)).ok_or_else(malformed)?;
            sizes.insert(resource, parsed);
        }
    }
    Ok(sizes)
}

/// `info/L3/bit_usage`: `0=XXSSSSSS;1=…` has one letter for each way, the highest first.
pub(super) fn parse_usage(text: &str) -> Option<BTreeMap<CacheId, super::info::WaysInUse>> {
    parse_values(text, super::info::WaysInUse::parse)
}

/// `0=ff;1=f`, masks alone: `info/L3/io_alloc_cbm`.
pub(super) fn parse_masks(text: &str) -> Option<BTreeMap<CacheId, WayMask>> {
    parse_values(text, |mask| mask.parse().ok())
}
