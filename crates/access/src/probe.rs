//! Available backends on this host, found by trying each.

use linux::{Error, KernelFiles, Pid, damon};

use crate::backend::{Backend, Backends, Unavailable};
use crate::residency::Viewer;
use crate::walk::Walker;

/// Result of trying the backends: the walk comes loaded, since loading it is the proof.
#[derive(Debug)]
pub struct Probed {
    /// Availability of the backends.
    pub backends: Backends,
    /// The walk, if available.
    pub walker: Option<Walker>,
}

/// Tries every backend on ourselves. Costs about 0.1 s, most of it for loading the walk. The check of DAMON's
/// operations sets up an idle monitor for a moment where there is none.
pub fn probe(files: &impl KernelFiles) -> Probed {
    let (bpf_walk, walker) = walk(files);
    Probed { backends: Backends { bpf_walk, damon_vaddr: damon_vaddr(files), residency: residency() }, walker }
}

/// Tries the wanted backend, or else the backends from the best one on up to the first available one, so that the
/// host is not changed for an unused backend.
pub fn probe_for(files: &impl KernelFiles, wanted: Option<Backend>) -> Probed {
    let not_asked = || Err(Unavailable { reason: "it was not asked for".to_owned(), remedy: String::new() });
    let mut probed = Probed {
        backends: Backends { bpf_walk: not_asked(), damon_vaddr: not_asked(), residency: not_asked() },
        walker: None,
    };
    for backend in Backend::ALL.into_iter().filter(|backend| wanted.is_none_or(|wanted| wanted == *backend)) {
        match backend {
            Backend::BpfWalk => (probed.backends.bpf_walk, probed.walker) = walk(files),
            Backend::DamonVaddr => probed.backends.damon_vaddr = damon_vaddr(files),
            Backend::Residency => probed.backends.residency = residency(),
        }
        if probed.backends.get(backend).is_ok() {
            break;
        }
    }
    probed
}

fn walk(files: &impl KernelFiles) -> (Result<(), Unavailable>, Option<Walker>) {
    match Walker::load().and_then(|walker| can_clear(files).map(|()| walker)) {
        Ok(walker) => (Ok(()), Some(walker)),
        Err(why) => (Err(why), None),
    }
}

/// The walk reads; without the clear it would see all accesses since the start. Clearing the peak of our own RSS is
/// the one clear without an effect on other readers.
fn can_clear(files: &impl KernelFiles) -> Result<(), Unavailable> {
    use linux::clear_refs::{Forget, clear};
    clear(files, Pid::own(), Forget::PeakRss).map_err(|error| Unavailable {
        reason: error.to_string(),
        remedy: "Use a kernel built with CONFIG_PROC_PAGE_MONITOR=y.".to_owned(),
    })
}

fn damon_vaddr(files: &impl KernelFiles) -> Result<(), Unavailable> {
    match damon::available_operations(files) {
        Ok(operations) if operations.iter().any(|name| name == "vaddr") => Ok(()),
        Ok(operations) => Err(Unavailable {
            reason: format!("DAMON cannot watch processes here, only {}", operations.join(", ")),
            remedy: "Use a kernel built with CONFIG_DAMON_VADDR=y.".to_owned(),
        }),
        Err(error @ Error::Denied(_)) => {
            Err(Unavailable { reason: error.to_string(), remedy: "Run as root.".to_owned() })
        }
        Err(error @ Error::Unsupported(_)) => Err(Unavailable {
            reason: error.to_string(),
            remedy: "Use a kernel built with CONFIG_DAMON_SYSFS=y and CONFIG_DAMON_VADDR=y.".to_owned(),
        }),
        Err(error) => {
            Err(Unavailable { reason: error.to_string(), remedy: "Stop the other user of DAMON.".to_owned() })
        }
    }
}

fn residency() -> Result<(), Unavailable> {
    Viewer::open(Pid::own()).map(|_| ()).map_err(|error| Unavailable {
        reason: error.to_string(),
        remedy: "Run with CAP_SYS_PTRACE; before Linux 6.7 also with CAP_SYS_ADMIN.".to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use linux::fake::FakeKernel;

    use super::*;

    #[test]
    fn a_host_without_damon_says_which_option_it_lacks() {
        let why = damon_vaddr(&FakeKernel::new()).unwrap_err();
        assert!(why.reason.contains("/sys/kernel/mm/damon"), "{}", why.reason);
        assert!(why.remedy.contains("CONFIG_DAMON_SYSFS"), "{}", why.remedy);
    }

    #[test]
    fn a_host_without_clear_refs_cannot_use_the_walk() {
        assert!(can_clear(&FakeKernel::new()).unwrap_err().remedy.contains("CONFIG_PROC_PAGE_MONITOR"));
    }
}
