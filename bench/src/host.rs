//! The machine of the measurements, in one line.

use std::fmt;
use std::fs;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use units::Bytes;

use crate::thp;

/// The host, as far as it bears on figures about memory.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Host {
    /// Processors that may be used.
    pub cores: usize,
    /// Their name.
    pub processor: String,
    /// The kernel's release.
    pub kernel: String,
    /// Setting of `transparent_hugepage/enabled`.
    pub thp_enabled: String,
    /// Setting of `transparent_hugepage/defrag`.
    pub thp_defrag: String,
    /// Installed memory.
    pub memory_bytes: Bytes,
    /// Swap space.
    pub swap_bytes: Bytes,
    /// Programs that wanted to run in the last minute, on average, before the benchmark began.
    pub load: f64,
}

impl Host {
    /// Reads the properties of this host. A value that cannot be read is shown as "unknown" or 0: it only labels the
    /// figures.
    pub fn here() -> Host {
        let text = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let setting = |name| thp::setting(name).unwrap_or_else(|_| "unknown".into());
        let cpu = text("/proc/cpuinfo");
        let processor = cpu.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
        let memory = text("/proc/meminfo");
        Host {
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            processor: processor.map_or_else(|| "unknown processor".into(), |(_, name)| name.trim().into()),
            kernel: text("/proc/sys/kernel/osrelease").trim().into(),
            thp_enabled: setting("enabled"),
            thp_defrag: setting("defrag"),
            memory_bytes: amount(&memory, "MemTotal").unwrap_or_default(),
            swap_bytes: amount(&memory, "SwapTotal").unwrap_or_default(),
            load: text("/proc/loadavg").split_whitespace().next().and_then(|n| n.parse().ok()).unwrap_or(0.0),
        }
    }
}

impl Host {
    /// Whether figures of both hosts are comparable: the same machine under the same kernel and setting, as far as can
    /// be told.
    pub fn is_same(&self, other: &Host) -> bool {
        let gib = |bytes: Bytes| bytes.0 >> 30; // the kernel's own part differs from start to start
        let machine = |host: &Host| (host.cores, host.processor.clone(), host.kernel.clone(), gib(host.memory_bytes));
        let thp = |host: &Host| (host.thp_enabled.clone(), host.thp_defrag.clone());
        (machine(self), thp(self)) == (machine(other), thp(other))
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plural = if self.cores == 1 { "" } else { "s" };
        write!(f, "{} core{plural} ({}), Linux {}, ", self.cores, self.processor, self.kernel)?;
        write!(f, "THP {} (defrag {}), {} memory, ", self.thp_enabled, self.thp_defrag, self.memory_bytes)?;
        match self.swap_bytes {
            Bytes(0) => write!(f, "no swap")?,
            swap => write!(f, "swap {swap}")?,
        }
        write!(f, ", load {:.1}", self.load)
    }
}

/// Memory that programs could take now without pushing anything out; 0 when it cannot be read.
pub fn available() -> Bytes {
    amount(&fs::read_to_string("/proc/meminfo").unwrap_or_default(), "MemAvailable").unwrap_or_default()
}

/// Huge pages of private memory that all programs have now.
///
/// # Errors
/// When the kernel does not count them.
pub fn huge_pages_in_use() -> Result<u64> {
    let text = fs::read_to_string("/proc/vmstat").context("cannot read /proc/vmstat")?;
    let count = text.lines().find_map(|line| line.strip_prefix("nr_anon_transparent_hugepages ")?.trim().parse().ok());
    count.context("/proc/vmstat: no nr_anon_transparent_hugepages")
}

/// Kernel counters of huge pages of private memory since boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VmCounters {
    /// Page faults that got a huge page.
    pub huge_faults: u64,
    /// Page faults that wanted one and got a small page.
    pub huge_faults_refused: u64,
}

impl VmCounters {
    /// Current counters.
    ///
    /// # Errors
    /// When the kernel does not count.
    pub fn now() -> Result<VmCounters> {
        Ok(VmCounters::in_text(&fs::read_to_string("/proc/vmstat").context("cannot read /proc/vmstat")?))
    }

    /// Increase since `before`.
    pub const fn since(self, before: VmCounters) -> VmCounters {
        VmCounters {
            huge_faults: self.huge_faults.saturating_sub(before.huge_faults),
            huge_faults_refused: self.huge_faults_refused.saturating_sub(before.huge_faults_refused),
        }
    }

    /// A kernel without transparent huge pages has neither line.
    fn in_text(text: &str) -> VmCounters {
        let count = |name: &str| {
            let mut lines = text.lines().filter_map(|line| line.split_once(' '));
            lines.find(|(key, _)| *key == name).and_then(|(_, number)| number.trim().parse().ok()).unwrap_or(0)
        };
        VmCounters { huge_faults: count("thp_fault_alloc"), huge_faults_refused: count("thp_fault_fallback") }
    }
}

/// The amount that a line such as `MemTotal:  24573144 kB` names.
pub fn amount(text: &str, name: &str) -> Option<Bytes> {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line?.split_whitespace().next()?.parse().ok().map(Bytes::kib)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_found_by_their_whole_name() {
        let text = "MemTotalX:  1 kB\nMemTotal:    24573144 kB\nSwapTotal: 0 kB\n";
        assert_eq!(amount(text, "MemTotal"), Some(Bytes::kib(24_573_144)));
        assert_eq!(amount(text, "MemFree"), None);
    }

    #[test]
    fn refused_huge_pages_are_not_mistaken_for_refused_charges() {
        let before = VmCounters::in_text("thp_fault_alloc 5\nthp_fault_fallback_charge 9\nthp_fault_fallback 2\n");
        assert_eq!(before, VmCounters { huge_faults: 5, huge_faults_refused: 2 });
        let after = VmCounters { huge_faults: 8, huge_faults_refused: 2 };
        assert_eq!(after.since(before), VmCounters { huge_faults: 3, huge_faults_refused: 0 });
    }

    #[test]
    fn the_line_names_everything_that_bears_on_the_figures() {
        let host = Host {
            cores: 2,
            processor: "EPYC".into(),
            kernel: "6.12.1".into(),
            thp_enabled: "madvise".into(),
            thp_defrag: "defer".into(),
            memory_bytes: Bytes::gib(24),
            swap_bytes: Bytes(0),
            load: 0.04,
        };
        let wanted = "2 cores (EPYC), Linux 6.12.1, THP madvise (defrag defer), 24.00 GiB memory, no swap, load 0.0";
        assert_eq!(host.to_string(), wanted);
    }
}
