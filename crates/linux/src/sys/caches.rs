//! `/sys/devices/system/cpu/cpuN/cache/indexM`: processor caches, their sizes, and their processors.
//!
//! The partitioning of a cache by ways is `resctrl.rs`, which identifies a cache by the same number.
//!
//! Cost: seven files for each cache of each processor. Side effects: none. An offline processor shows no caches.
//!
//! Since: Linux 2.6.11; not every kernel and firmware gives an `id`, and a virtual machine may show less than there
//! is.
//!
//! Truth: Documentation/ABI/testing/sysfs-devices-system-cpu.

use std::collections::BTreeSet;
use std::fmt;

use rustix::io::Errno;
use serde::Serialize;
use units::{Bytes, Ways};

use crate::{Error, KernelFiles};

const CPUS: &str = "sys/devices/system/cpu";

/// Number of a cache, unique within its level. The numbers may have gaps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct CacheId(pub u32);

impl fmt::Display for CacheId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Processors, by number.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Cpus(pub BTreeSet<u32>);

impl Cpus {
    /// Parses the kernel's list: `0-3,8`, or nothing. `None` for other text, and for more than 65536 processors.
    pub fn parse(list: &str) -> Option<Cpus> {
        const CPUS_MAX: u32 = 1 << 16;
        let mut cpus = BTreeSet::new();
        for part in list.trim().split(',').filter(|part| !part.is_empty()) {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
            if first > last || last >= CPUS_MAX {
                return None;
            }
            cpus.extend(first..=last);
        }
        Some(Cpus(cpus))
    }
}

/// Prints the kernel's form: `0-3,8`.
impl fmt::Display for Cpus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut runs: Vec<(u32, u32)> = Vec::new();
        for cpu in &self.0 {
            match runs.last_mut() {
                Some((_, last)) if *last + 1 == *cpu => *last = *cpu,
                _ => runs.push((*cpu, *cpu)),
            }
        }
        let runs: Vec<String> = runs
            .into_iter()
            .map(|(first, last)| if first == last { first.to_string() } else { format!("{first}-{last}") })
            .collect();
        f.pad(&runs.join(","))
    }
}

/// One data cache.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Cache {
    /// Level: 1 for the one nearest to a processor.
    pub level: u32,
    /// Number; `None` if the kernel does not report it.
    pub id: Option<CacheId>,
    /// Online processors that use it.
    pub cpus: Cpus,
    /// Capacity; `None` if the kernel does not report it.
    #[serde(rename = "size_bytes")]
    pub size: Option<Bytes>,
    /// Number of ways; `None` if the kernel does not report it.
    pub ways: Option<Ways>,
    /// Line size; `None` if the kernel does not report it.
    #[serde(rename = "line_bytes")]
    pub line: Option<Bytes>,
}

/// Data caches of this level, each once, by number.
///
/// # Errors
/// `Unsupported` if there is no such directory. A host that reports nothing about its caches has none.
pub fn of_level(files: &impl KernelFiles, level: u32) -> Result<Vec<Cache>, Error> {
    let names = files.list(CPUS).map_err(|errno| Error::of_host("list", format_args!("/{CPUS}"), errno))?;
    let mut caches: Vec<Cache> = Vec::new();
    for cpu in names.iter().filter(|name| name.strip_prefix("cpu").is_some_and(|number| number.parse::<u32>().is_ok()))
    {
        let directory = format!("{CPUS}/{cpu}/cache");
        for index in files.list(&directory).unwrap_or_default().iter().filter(|name| name.starts_with("index")) {
            let cache = read(files, &format!("{directory}/{index}"), level)?;
            caches.extend(cache.filter(|cache| !caches.iter().any(|other| is_the_same(other, cache))));
        }
    }
    caches.sort_by_key(|cache| (cache.id, cache.cpus.0.first().copied()));
    Ok(caches)
}

fn is_the_same(one: &Cache, other: &Cache) -> bool {
    one.id == other.id && one.cpus == other.cpus
}

/// Cache of this directory, if it is a data cache of this level.
fn read(files: &impl KernelFiles, directory: &str, level: u32) -> Result<Option<Cache>, Error> {
    let text = |name: &str| match files.read(&format!("{directory}/{name}")) {
        Ok(text) => Ok(Some(text.trim().to_owned())),
        Err(Errno::NOENT | Errno::NODEV) => Ok(None), // not reported, or switched off meanwhile
        Err(errno) => Err(Error::of_host("read", format_args!("/{directory}/{name}"), errno)),
    };
    let number = |name: &str| -> Result<Option<u32>, Error> {
        let malformed = |found: &str| {
            Error::malformed(format_args!("/{directory}/{name}"), format_args!("{found:?}, expected a number"))
        };
        text(name)?.map(|digits| digits.parse().map_err(|_| malformed(&digits))).transpose()
    };
    let holds_data = text("type")?.is_none_or(|kind| kind != "Instruction");
    if number("level")? != Some(level) || !holds_data {
        return Ok(None);
    }
    let list = text("shared_cpu_list")?.unwrap_or_default();
    let cpus = Cpus::parse(&list).ok_or_else(|| {
        let found = format_args!("{list:?}, expected processors such as 0-3,8");
        Error::malformed(format_args!("/{directory}/shared_cpu_list"), found)
    })?;
    Ok(Some(Cache {
        level,
        id: number("id")?.map(CacheId),
        cpus,
        size: text("size")?.and_then(|size| parse_size(&size)),
        ways: number("ways_of_associativity")?.filter(|ways| *ways > 0).map(Ways),
        line: number("coherency_line_size")?.filter(|line| *line > 0).map(|line| Bytes(line.into())),
    }))
}

/// Parses `20480K`; `None` for 0, the kernel's value for "unknown".
fn parse_size(text: &str) -> Option<Bytes> {
    let kib: u64 = text.strip_suffix('K')?.parse().ok()?;
    kib.checked_mul(1 << 10).filter(|bytes| *bytes > 0).map(Bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::Rooted;
    use crate::fake::FakeKernel;

    fn index(kernel: FakeKernel, cpu: u32, index: u32, values: &[(&str, &str)]) -> FakeKernel {
        let directory = format!("{CPUS}/cpu{cpu}/cache/index{index}");
        values
            .iter()
            .fold(kernel, |kernel, (name, value)| kernel.file(&format!("{directory}/{name}"), &format!("{value}\n")))
    }

    /// Two sockets of two processors, with a gap in the numbers.
    fn two_sockets() -> FakeKernel {
        let kernel = FakeKernel::new().file(&format!("{CPUS}/cpufreq/x"), "");
        (0..4).fold(kernel, |kernel, cpu| {
            let (id, shared) = if cpu < 2 { ("0", "0-1") } else { ("3", "2-3") };
            let own = cpu.to_string();
            let kernel =
                index(kernel, cpu, 0, &[("level", "1"), ("type", "Data"), ("id", &own), ("shared_cpu_list", &own)]);
            let kernel = index(kernel, cpu, 1, &[("level", "3"), ("type", "Instruction"), ("shared_cpu_list", &own)]);
            let third = [
                ("level", "3"),
                ("type", "Unified"),
                ("id", id),
                ("shared_cpu_list", shared),
                ("size", "20480K"),
                ("ways_of_associativity", "20"),
                ("coherency_line_size", "64"),
            ];
            index(kernel, cpu, 3, &third)
        })
    }

    #[test]
    fn each_cache_is_listed_once_with_its_processors() {
        let caches = of_level(&two_sockets(), 3).unwrap();
        let cache = |id, cpus: [u32; 2]| Cache {
            level: 3,
            id: Some(CacheId(id)),
            cpus: Cpus(cpus.into()),
            size: Some(Bytes::mib(20)),
            ways: Some(Ways(20)),
            line: Some(Bytes(64)),
        };
        assert_eq!(caches, [cache(0, [0, 1]), cache(3, [2, 3])]);
    }

    #[test]
    fn what_is_not_told_is_no_number() {
        let kernel = index(
            FakeKernel::new(),
            0,
            3,
            &[("level", "3"), ("shared_cpu_list", "0"), ("size", "0K"), ("ways_of_associativity", "0")],
        );
        let caches = of_level(&kernel, 3).unwrap();
        assert_eq!(caches, [Cache { level: 3, id: None, cpus: Cpus([0].into()), size: None, ways: None, line: None }]);
        assert_eq!(of_level(&kernel, 2), Ok(vec![]));
    }

    #[test]
    fn a_missing_directory_and_odd_text_are_told_apart() {
        assert!(matches!(of_level(&FakeKernel::new(), 3), Err(Error::Unsupported(_))));
        let odd = index(FakeKernel::new(), 0, 3, &[("level", "three")]);
        let expected = format!("cannot understand /{CPUS}/cpu0/cache/index3/level: \"three\", expected a number");
        assert_eq!(of_level(&odd, 3).unwrap_err().to_string(), expected);
    }

    #[test]
    fn on_this_host_no_processor_has_two_caches_of_a_level() {
        let caches = of_level(&Rooted::host(), 1).unwrap();
        let all: Vec<u32> = caches.iter().flat_map(|cache| cache.cpus.0.iter().copied()).collect();
        let each: BTreeSet<u32> = all.iter().copied().collect();
        assert_eq!(all.len(), each.len());
    }

    #[test]
    fn lists_of_processors_read_as_the_kernel_prints_them() {
        assert_eq!(Cpus::parse("0-3,8\n"), Some(Cpus([0, 1, 2, 3, 8].into())));
        assert_eq!(Cpus::parse("\n"), Some(Cpus::default()));
        for bad in ["3-1", "a", "1-", "0-4000000000", "1 2"] {
            assert_eq!(Cpus::parse(bad), None, "{bad}");
        }
    }

    proptest! {
        #[test]
        fn processors_that_are_printed_are_read_back(cpus in prop::collection::btree_set(0u32..300, 0..40)) {
            let cpus = Cpus(cpus);
            prop_assert_eq!(Cpus::parse(&cpus.to_string()), Some(cpus));
        }

        #[test]
        fn any_text_is_read_or_refused(text in ".{0,40}") {
            let _ = (Cpus::parse(&text), parse_size(&text));
        }
    }
}
