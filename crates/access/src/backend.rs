//! Backends that observe accesses, best first, and the choice among them.
//!
//! Pure: the host's facts come in, the backend and the reasons against better ones go out.

use serde::{Deserialize, Serialize};

/// Method of observing the pages that a program touches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Backend {
    /// Page-table walk: every page, exact, 0.3 ms per GiB per scan.
    BpfWalk,
    /// DAMON on the process's virtual addresses: regions, sampled.
    DamonVaddr,
    /// Residency only: no information on use.
    Residency,
}

impl Backend {
    /// All backends, best first.
    pub const ALL: [Backend; 3] = [Backend::BpfWalk, Backend::DamonVaddr, Backend::Residency];

    /// Name in output and on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Backend::BpfWalk => "bpf-walk",
            Backend::DamonVaddr => "damon-vaddr",
            Backend::Residency => "residency",
        }
    }

    /// Exactness, in a few words.
    pub const fn exactness(self) -> &'static str {
        match self {
            Backend::BpfWalk => "every 4 KiB page, exact at each scan",
            Backend::DamonVaddr => "regions of pages, one page of each sampled",
            Backend::Residency => "what is in memory, not what is used",
        }
    }

    /// Required privilege.
    pub const fn privilege(self) -> &'static str {
        match self {
            Backend::BpfWalk => "CAP_BPF, CAP_PERFMON and CAP_SYS_PTRACE",
            Backend::DamonVaddr => "root (the files of DAMON)",
            Backend::Residency => "ptrace access to the process",
        }
    }
}

impl std::fmt::Display for Backend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

impl std::str::FromStr for Backend {
    type Err = String;
    fn from_str(text: &str) -> Result<Backend, String> {
        let names: Vec<&str> = Backend::ALL.iter().map(|backend| backend.name()).collect();
        let found = Backend::ALL.into_iter().find(|backend| backend.name() == text);
        found.ok_or_else(|| format!("{text}: expected one of {}", names.join(", ")))
    }
}

/// Reason for which a backend is unavailable, and the remedy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Unavailable {
    /// Missing item: `the kernel has no type information (/sys/kernel/btf/vmlinux)`.
    pub reason: String,
    /// Remedy: a config option, a capability, a sysctl.
    pub remedy: String,
}

impl std::fmt::Display for Unavailable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.reason)
    }
}

impl std::error::Error for Unavailable {}

/// Availability of each backend on this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backends {
    /// The page-table walk.
    pub bpf_walk: Result<(), Unavailable>,
    /// DAMON on virtual addresses.
    pub damon_vaddr: Result<(), Unavailable>,
    /// Residency.
    pub residency: Result<(), Unavailable>,
}

impl Backends {
    /// Whether `backend` is available.
    ///
    /// # Errors
    /// Reason for which it is not.
    pub fn get(&self, backend: Backend) -> Result<(), &Unavailable> {
        let state = match backend {
            Backend::BpfWalk => &self.bpf_walk,
            Backend::DamonVaddr => &self.damon_vaddr,
            Backend::Residency => &self.residency,
        };
        state.as_ref().copied()
    }

    /// Best available backend, and the reason against each better one.
    pub fn best(&self) -> (Option<Backend>, Vec<(Backend, &Unavailable)>) {
        let mut missing = Vec::new();
        for backend in Backend::ALL {
            match self.get(backend) {
                Ok(()) => return (Some(backend), missing),
                Err(why) => missing.push((backend, why)),
            }
        }
        (None, missing)
    }
}

/// The backend to use: the requested one if available, the best one otherwise.
///
/// # Errors
/// When the requested backend, or every backend, is unavailable: the reasons, best backend first.
pub fn choose_backend(backends: &Backends, wanted: Option<Backend>) -> Result<Backend, Vec<(Backend, Unavailable)>> {
    if let Some(backend) = wanted {
        return backends.get(backend).map(|()| backend).map_err(|why| vec![(backend, why.clone())]);
    }
    let (best, missing) = backends.best();
    best.ok_or_else(|| missing.into_iter().map(|(backend, why)| (backend, why.clone())).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn missing(reason: &str) -> Result<(), Unavailable> {
        Err(Unavailable { reason: reason.to_owned(), remedy: String::new() })
    }

    #[test]
    fn the_best_backend_that_holds_is_chosen_and_the_better_ones_are_named() {
        let backends = Backends { bpf_walk: missing("lockdown"), damon_vaddr: Ok(()), residency: Ok(()) };
        assert_eq!(choose_backend(&backends, None), Ok(Backend::DamonVaddr));
        let (_, better) = backends.best();
        assert_eq!(better.len(), 1);
        assert_eq!(better[0].1.reason, "lockdown");
    }

    #[test]
    fn a_backend_that_was_asked_for_is_never_replaced_silently() {
        let backends = Backends { bpf_walk: missing("lockdown"), damon_vaddr: Ok(()), residency: Ok(()) };
        assert_eq!(choose_backend(&backends, Some(Backend::BpfWalk)).unwrap_err()[0].1.reason, "lockdown");
        assert_eq!(choose_backend(&backends, Some(Backend::Residency)), Ok(Backend::Residency));
    }

    #[test]
    fn without_any_backend_every_reason_is_given() {
        let backends = Backends { bpf_walk: missing("a"), damon_vaddr: missing("b"), residency: missing("c") };
        assert_eq!(choose_backend(&backends, None).unwrap_err().len(), 3);
    }

    #[test]
    fn names_parse_back() {
        for backend in Backend::ALL {
            assert_eq!(backend.name().parse(), Ok(backend));
        }
        assert!("walk".parse::<Backend>().is_err());
    }
}
