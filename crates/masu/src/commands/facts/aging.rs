//! Backend of `masu aging` for each class on this host, and why no better one. Probes run on memory that they write
//! themselves.

use access::backend::Unavailable;
use access::insertions::{Filter, Insertions};
use aging::backend::{self, Backend, Capabilities, SwapSetting};
use aging::class::Class;
use aging::levels::Level;
use hugepages::backends::{Missing, PartBackend};
use linux::KernelFiles;
use linux::kpageflags::FrameTable;
use linux::pinned_file;

/// Results of the probes.
pub struct Tried {
    /// mlock of a file in memory that the probe writes, with a check that its first frame is held.
    mlock: Result<(), Unavailable>,
    /// Tracing page-cache insertions.
    insertions: Result<(), Unavailable>,
    /// True with swap.
    has_swap: bool,
}

/// Probes on memory of our own; costs about 0.1 s, for loading a BPF program.
pub fn try_out(files: &impl KernelFiles) -> Tried {
    Tried {
        mlock: mlock(),
        insertions: Insertions::of(Filter::Members).map(|_| ()),
        has_swap: files.read("proc/swaps").is_ok_and(|text| text.lines().count() > 1),
    }
}

fn mlock() -> Result<(), Unavailable> {
    const REMEDY: &str =
        "Run as root (CAP_IPC_LOCK, CAP_SYS_ADMIN), on Linux 5.18 or newer with CONFIG_PROC_PAGE_MONITOR=y.";
    let failed = |reason: String| Unavailable { reason, remedy: REMEDY.to_owned() };
    let frames = FrameTable::open().map_err(|error| failed(error.to_string()))?;
    match pinned_file::holds_own_memory(&frames).map_err(|error| failed(error.to_string()))? {
        true => Ok(()),
        false => Err(failed("memory of our own (memfd) was locked, and its first frame is not held".to_owned())),
    }
}

/// One part for each class, in their order, at the protection level that requires most of the host.
pub fn backends(tried: &Tried) -> Vec<PartBackend> {
    let capabilities = Capabilities {
        mlock: tried.mlock.is_ok(),
        insertions: tried.insertions.is_ok(),
        has_swap: tried.has_swap,
        swap_setting: Some(SwapSetting::Weight),
    };
    Class::ALL.into_iter().map(|class| of(class, capabilities, tried)).collect()
}

fn of(class: Class, capabilities: Capabilities, tried: &Tried) -> PartBackend {
    let (level, by) = match class {
        Class::Cache => (Level::clamped(0), &tried.insertions),
        Class::Code | Class::ReadOnly | Class::Data | Class::Shared => (Level::NEVER, &tried.mlock),
    };
    let (best, part) = (if class == Class::Cache { Backend::DropBehind } else { Backend::Mlock }, class.name());
    match (backend::of(class, level, false, capabilities), by) {
        (Err(_), Err(Unavailable { reason, remedy })) => {
            let missing = vec![Missing { backend: best.name(), reason: reason.clone(), remedy: remedy.clone() }];
            PartBackend { part, backend: None, meaning: meaning(Backend::Kernel).to_owned(), missing }
        }
        (Err(_), Ok(())) => {
            PartBackend { part, backend: None, meaning: meaning(Backend::Kernel).to_owned(), missing: Vec::new() }
        }
        (Ok(backend), _) => PartBackend {
            part,
            backend: Some(backend.name()),
            meaning: meaning(backend).to_owned(),
            missing: Vec::new(),
        },
    }
}

fn meaning(backend: Backend) -> &'static str {
    match backend {
        Backend::Mlock => "mapped and locked by masu as well, inside --budget; measured at the frames",
        Backend::Swappiness => {
            "the host's weight, or a version 1 control group's; a version 2 group has level 100 only: no swap at all"
        }
        Backend::NoSwap => "none of it may be in swap",
        Backend::DropBehind => "page-cache insertions of streams are traced, and dropped behind the reader",
        Backend::Kernel => "as the kernel ages it",
        Backend::NotAged => "there is no swap, so data is not aged at all",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn no() -> Result<(), Unavailable> {
        Err(Unavailable { reason: "not allowed".to_owned(), remedy: "Run as root.".to_owned() })
    }

    #[test]
    fn each_class_has_a_backend_or_a_reason() {
        let all = backends(&Tried { mlock: Ok(()), insertions: Ok(()), has_swap: true });
        let names: Vec<_> = all.iter().map(|part| part.backend).collect();
        assert_eq!(names, [Some("mlock"), Some("mlock"), Some("swappiness"), Some("mlock"), Some("drop-behind")]);
        assert!(all.iter().all(|part| part.missing.is_empty()));
        let none = backends(&Tried { mlock: no(), insertions: no(), has_swap: false });
        assert_eq!(none.iter().filter(|part| part.backend.is_none()).count(), 4);
        assert!(none.iter().all(|part| part.backend.is_some() || part.missing[0].remedy == "Run as root."));
        assert!(none[2].backend == Some("not aged") && none[2].meaning.contains("no swap"));
    }
}
