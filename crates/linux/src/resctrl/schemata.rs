//! `schemata`: what a group may use of each resource. Also the form of `size`, which has the same lines with bytes in them.
//!
//! A line has the resource, padded with spaces to a common width, and a value for each domain: `    L3:0=fffff;1=000ff`. Caches have masks
//! in hexadecimal, without `0x` (some kernels pad them with zeros); memory bandwidth has decimal numbers, padded with spaces. With code
//! and data apart (CDP), `L3` is replaced by `L3CODE` and `L3DATA`. A group that is being set up for pseudo-locking says
//! `L3:uninitialized`. What a newer kernel adds is kept as text, and never written.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Serialize, Serializer};
use units::{Bytes, WayMask};

use super::CacheId;
use crate::Error;

/// A resource, by the name that the kernel has for it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Resource {
    /// The last-level cache.
    L3,
    /// Code in it, where code and data are apart.
    L3Code,
    /// Data in it, where code and data are apart.
    L3Data,
    /// The cache of each core.
    L2,
    /// Code in it.
    L2Code,
    /// Data in it.
    L2Data,
    /// Memory bandwidth.
    Mb,
    /// Bandwidth of slow memory.
    Smba,
    /// One that this version of masu does not know.
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

    /// A cache: its values are masks.
    pub fn is_cache(&self) -> bool {
        self.is_l3() || matches!(self, Resource::L2 | Resource::L2Code | Resource::L2Data)
    }

    /// The last-level cache, or code or data in it.
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

/// What a group may use of one resource.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Values {
    /// Ways of a cache.
    Masks(BTreeMap<CacheId, WayMask>),
    /// Bandwidth, in what the resource counts it in: percent (Intel), MiB/s (mounted with `mba_MBps`), eighths of GB/s (AMD).
    Numbers(BTreeMap<CacheId, u64>),
    /// Nothing yet: the group is to be pseudo-locked.
    Uninitialized,
    /// What this version of masu does not know, as it stands there.
    Other(String),
}

/// The lines of one `schemata` file, or those of them that are to be written.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Schemata(pub BTreeMap<Resource, Values>);

/// A value that is not what was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// Of which resource.
    pub resource: Resource,
    /// Where.
    pub domain: CacheId,
    /// What was asked for, as the kernel writes it.
    pub asked: String,
    /// What there is; `None` for a domain that is not there.
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

    /// Reads the text of `object`, which is named in errors.
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

    /// The masks of a resource; `None` when it has none.
    pub fn masks(&self, resource: &Resource) -> Option<&BTreeMap<CacheId, WayMask>> {
        match self.0.get(resource) {
            Some(Values::Masks(masks)) => Some(masks),
            _ => None,
        }
    }

    /// One command for all lines that can be written, with its end of line; empty when there is none.
    pub fn command(&self) -> String {
        let lines = self.0.iter().filter_map(|(resource, values)| {
            let values = written(values)?;
            (!values.is_empty()).then(|| format!("{resource}:{values}\n"))
        });
        lines.collect()
    }

    /// These lines alone, as they are in `present`: what is to be put back after they were written.
    #[must_use]
    pub fn as_in(&self, present: &Schemata) -> Schemata {
        let lines = self.0.keys().filter_map(|resource| Some((resource.clone(), present.0.get(resource)?.clone())));
        Schemata(lines.collect())
    }

    /// Of these lines what `present` has a place for: a resource or a domain that is not there any more is left out, as is what is so
    /// already.
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

    /// Where `found`, what the kernel made of it, is something else: some processors move neighbouring ways together, and bandwidth is
    /// rounded.
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

/// `0=ff;1=f`; `None` for what is never written.
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

/// The file `size`: what the masks of each cache amount to. Lines of other resources are left out.
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
