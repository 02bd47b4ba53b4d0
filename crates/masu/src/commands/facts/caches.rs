//! Capabilities of this host for `masu llc`: last-level caches, their partitioning (resctrl), and merging of equal
//! pages (KSM).

use hugepages::backends::{Missing, PartBackend};
use linux::cache_line::Flusher;
use linux::caches::{self, Cache};
use linux::ksm::{self, Run};
use linux::probe::{HostFacts, Known};
use linux::{KernelFiles, resctrl};
use serde::Serialize;

const OFF: &str = "With partition = \"off\" `masu llc run` keeps shared pages in the cache without partitions.";

/// Results of the probes, beside `HostFacts`.
#[derive(Debug, Serialize)]
pub struct Found {
    pub last_level_caches: Known<Vec<Cache>>,
    pub ksm: Known<Run>,
    /// Flushing cache lines by address.
    #[serde(skip)]
    flushes: Known<()>,
    #[serde(skip)]
    partitions: Result<String, Missing>,
}

/// Reads some files; changes nothing.
pub fn try_out(files: &impl KernelFiles, host: &HostFacts) -> Found {
    Found {
        last_level_caches: caches::of_level(files, 3).into(),
        ksm: ksm::host(files).map(|host| host.run).into(),
        flushes: Flusher::of_this_processor().map(|_| ()).into(),
        partitions: divided(&host.resctrl),
    }
}

/// Caches with size and ways: `1 of 32.0 MiB, 16 ways`.
pub fn sizes(all: &[Cache]) -> String {
    let of = |cache: &Cache| {
        let size = cache.size.map_or("an unknown size".to_owned(), |size| size.to_string());
        cache.ways.map_or(size.clone(), |ways| format!("{size}, {ways} ways"))
    };
    let mut kinds: Vec<(String, usize)> = Vec::new();
    for kind in all.iter().map(of) {
        match kinds.iter_mut().find(|(known, _)| *known == kind) {
            Some((_, count)) => *count += 1,
            None => kinds.push((kind, 1)),
        }
    }
    let kinds: Vec<String> = kinds.into_iter().map(|(kind, count)| format!("{count} of {kind}")).collect();
    if kinds.is_empty() { "the kernel tells of none".to_owned() } else { kinds.join("; ") }
}

/// Capabilities of resctrl, on one line.
pub fn partitions(state: &resctrl::State) -> String {
    match state {
        resctrl::State::NotInKernel { processors_could: true } => "not in this kernel; the processor could".to_owned(),
        resctrl::State::NotInKernel { processors_could: false } => "not here".to_owned(),
        resctrl::State::NotMounted => "not mounted".to_owned(),
        resctrl::State::Mounted { directory, info, .. } => match info.l3() {
            None => format!("{directory}, which divides no L3 cache"),
            Some(l3) => {
                let apart = if info.l3_resources().len() > 1 { ", code and data apart" } else { "" };
                let devices =
                    if l3.shareable.is_empty() { String::new() } else { format!(", devices use {}", l3.shareable) };
                let ways = l3.rules.full.ways();
                format!("{directory}: {ways} ways, {} classes{apart}{devices}", info.classes_max)
            }
        },
    }
}

fn missing(backend: &'static str, reason: impl Into<String>, remedy: impl Into<String>) -> Missing {
    Missing { backend, reason: reason.into(), remedy: remedy.into() }
}

fn divided(state: &Known<resctrl::State>) -> Result<String, Missing> {
    let no = |reason: &str, remedy: &str| Err(missing("resctrl", reason, format!("{remedy} {OFF}")));
    match state {
        Known::Unknown(why) => no(why, ""),
        Known::Value(resctrl::State::NotInKernel { processors_could: true }) => no(
            "this kernel does not offer it, though the processor could",
            "It wants a kernel with CONFIG_X86_CPU_RESCTRL, started without rdt=!l3cat.",
        ),
        Known::Value(resctrl::State::NotInKernel { processors_could: false }) => no(
            "this kernel does not offer it",
            "It wants a processor with Intel CAT, AMD QoS or Arm MPAM; virtual machines have none.",
        ),
        Known::Value(resctrl::State::NotMounted) => {
            no("it is not mounted", "`mount -t resctrl resctrl /sys/fs/resctrl` mounts it.")
        }
        Known::Value(resctrl::State::Mounted { info, .. }) if info.l3().is_none() || info.classes_max < 2 => {
            no("no L3 cache can be divided", "This processor only counts.")
        }
        Known::Value(mounted) => Ok(partitions(mounted)),
    }
}

/// Partitioning the cache, and keeping shared pages in it.
pub fn backends(found: &Found) -> Vec<PartBackend> {
    let dividing = match &found.partitions {
        Ok(how) => {
            PartBackend { part: "dividing", backend: Some("resctrl"), meaning: how.clone(), missing: Vec::new() }
        }
        Err(why) => PartBackend {
            part: "dividing",
            backend: None,
            meaning: "every program may use all ways".to_owned(),
            missing: vec![why.clone()],
        },
    };
    let lacking = match (&found.flushes, &found.ksm) {
        (Known::Unknown(why), _) => Some(missing("KSM", why, "It wants an x86 processor with clflush.")),
        (_, Known::Unknown(why)) => Some(missing("KSM", why, "It wants a kernel with CONFIG_KSM.")),
        (_, Known::Value(Run::Merging)) => None,
        (_, Known::Value(_)) => Some(missing(
            "KSM",
            "it does not run (/sys/kernel/mm/ksm/run)",
            "`echo 1 > /sys/kernel/mm/ksm/run` starts it; programs offer pages with MADV_MERGEABLE or PR_SET_MEMORY_MERGE.",
        )),
    };
    let meaning = if lacking.is_none() { "lines of merged pages are kept in the cache" } else { "nothing is kept" };
    let keeping = PartBackend {
        part: "keeping shared pages",
        backend: lacking.is_none().then_some("KSM"),
        meaning: meaning.to_owned(),
        missing: lacking.into_iter().collect(),
    };
    vec![dividing, keeping]
}

#[cfg(test)]
mod tests {
    use linux::fake::FakeKernel;

    use super::*;

    #[test]
    fn what_is_mounted_is_said_in_a_line_and_what_is_not_has_a_remedy() {
        let kernel = FakeKernel::new()
            .file("proc/mounts", "resctrl /sys/fs/resctrl resctrl rw 0 0\n")
            .file("sys/fs/resctrl/info/L3/num_closids", "16\n")
            .file("sys/fs/resctrl/info/L3/cbm_mask", "fffff\n")
            .file("sys/fs/resctrl/info/L3/min_cbm_bits", "1\n")
            .file("sys/fs/resctrl/info/L3/shareable_bits", "c0000\n")
            .file("sys/fs/resctrl/schemata", "    L3:0=fffff\n");
        let there = resctrl::state(&kernel).unwrap();
        let line = "/sys/fs/resctrl: 20 ways, 16 classes, devices use c0000";
        assert_eq!(partitions(&there), line);
        assert_eq!(divided(&Known::Value(there)), Ok(line.to_owned()));
        let not_mounted = divided(&Known::Value(resctrl::State::NotMounted)).unwrap_err();
        assert_eq!(not_mounted.reason, "it is not mounted");
        assert!(not_mounted.remedy.starts_with("`mount -t resctrl resctrl /sys/fs/resctrl` mounts it."));
    }

    #[test]
    fn equal_caches_are_counted() {
        let cache = |mib: u64, ways: u32| Cache {
            level: 3,
            id: None,
            cpus: caches::Cpus::default(),
            size: Some(units::Bytes::mib(mib)),
            ways: Some(units::Ways(ways)),
            line: None,
        };
        assert_eq!(sizes(&[cache(32, 16), cache(32, 16)]), "2 of 32.0 MiB, 16 ways");
        assert_eq!(sizes(&[cache(96, 16), cache(32, 16)]), "1 of 96.0 MiB, 16 ways; 1 of 32.0 MiB, 16 ways");
        assert_eq!(sizes(&[]), "the kernel tells of none");
    }
}
