//! The ladder of ways to see accesses, best first, and the choice among them.
//!
//! Pure: the host's facts come in, the rung and the reasons against better ones go out.

use serde::Serialize;

/// One way to see which pages a program touches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rung {
    /// The page-table walk: every page, exact, 0.3 ms a GiB a look.
    BpfWalk,
    /// DAMON watching the process's addresses: regions, sampled.
    DamonVaddr,
    /// Only what is in memory: nothing about use.
    Residency,
}

impl Rung {
    /// All of them, best first.
    pub const ALL: [Rung; 3] = [Rung::BpfWalk, Rung::DamonVaddr, Rung::Residency];

    /// Its name in output and on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Rung::BpfWalk => "bpf-walk",
            Rung::DamonVaddr => "damon-vaddr",
            Rung::Residency => "residency",
        }
    }

    /// How exact it is, in a few words.
    pub const fn exactness(self) -> &'static str {
        match self {
            Rung::BpfWalk => "every 4 KiB page, exact at each look",
            Rung::DamonVaddr => "regions of pages, one page of each sampled",
            Rung::Residency => "what is in memory, not what is used",
        }
    }

    /// The privilege it takes.
    pub const fn privilege(self) -> &'static str {
        match self {
            Rung::BpfWalk => "CAP_BPF, CAP_PERFMON and CAP_SYS_PTRACE",
            Rung::DamonVaddr => "root (the files of DAMON)",
            Rung::Residency => "ptrace access to the process",
        }
    }
}

impl std::fmt::Display for Rung {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

impl std::str::FromStr for Rung {
    type Err = String;
    fn from_str(text: &str) -> Result<Rung, String> {
        let names: Vec<&str> = Rung::ALL.iter().map(|rung| rung.name()).collect();
        let found = Rung::ALL.into_iter().find(|rung| rung.name() == text);
        found.ok_or_else(|| format!("{text}: expected one of {}", names.join(", ")))
    }
}

/// Why a rung cannot be stood on, and what would make it hold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Unavailable {
    /// What is missing: `the kernel has no type information (/sys/kernel/btf/vmlinux)`.
    pub reason: String,
    /// How to get it: a config option, a capability, a sysctl.
    pub remedy: String,
}

/// For each rung, whether it holds here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rungs {
    /// The page-table walk.
    pub bpf_walk: Result<(), Unavailable>,
    /// DAMON on virtual addresses.
    pub damon_vaddr: Result<(), Unavailable>,
    /// Residency.
    pub residency: Result<(), Unavailable>,
}

impl Rungs {
    /// Whether `rung` holds.
    ///
    /// # Errors
    /// Why it does not.
    pub fn get(&self, rung: Rung) -> Result<(), &Unavailable> {
        let state = match rung {
            Rung::BpfWalk => &self.bpf_walk,
            Rung::DamonVaddr => &self.damon_vaddr,
            Rung::Residency => &self.residency,
        };
        state.as_ref().copied()
    }

    /// The best rung that holds, and why each better one does not.
    pub fn best(&self) -> (Option<Rung>, Vec<(Rung, &Unavailable)>) {
        let mut missing = Vec::new();
        for rung in Rung::ALL {
            match self.get(rung) {
                Ok(()) => return (Some(rung), missing),
                Err(why) => missing.push((rung, why)),
            }
        }
        (None, missing)
    }
}

/// The rung to stand on: the one asked for if it holds, the best one otherwise.
///
/// # Errors
/// When the rung asked for, or every rung, does not hold: the reasons, best rung first.
pub fn choose_rung(rungs: &Rungs, wanted: Option<Rung>) -> Result<Rung, Vec<(Rung, Unavailable)>> {
    if let Some(rung) = wanted {
        return rungs.get(rung).map(|()| rung).map_err(|why| vec![(rung, why.clone())]);
    }
    let (best, missing) = rungs.best();
    best.ok_or_else(|| missing.into_iter().map(|(rung, why)| (rung, why.clone())).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn missing(reason: &str) -> Result<(), Unavailable> {
        Err(Unavailable { reason: reason.to_owned(), remedy: String::new() })
    }

    #[test]
    fn the_best_rung_that_holds_is_chosen_and_the_better_ones_are_named() {
        let rungs = Rungs { bpf_walk: missing("lockdown"), damon_vaddr: Ok(()), residency: Ok(()) };
        assert_eq!(choose_rung(&rungs, None), Ok(Rung::DamonVaddr));
        let (_, better) = rungs.best();
        assert_eq!(better.len(), 1);
        assert_eq!(better[0].1.reason, "lockdown");
    }

    #[test]
    fn a_rung_that_was_asked_for_is_never_replaced_silently() {
        let rungs = Rungs { bpf_walk: missing("lockdown"), damon_vaddr: Ok(()), residency: Ok(()) };
        assert_eq!(choose_rung(&rungs, Some(Rung::BpfWalk)).unwrap_err()[0].1.reason, "lockdown");
        assert_eq!(choose_rung(&rungs, Some(Rung::Residency)), Ok(Rung::Residency));
    }

    #[test]
    fn without_any_rung_every_reason_is_given() {
        let rungs = Rungs { bpf_walk: missing("a"), damon_vaddr: missing("b"), residency: missing("c") };
        assert_eq!(choose_rung(&rungs, None).unwrap_err().len(), 3);
    }

    #[test]
    fn names_parse_back() {
        for rung in Rung::ALL {
            assert_eq!(rung.name().parse(), Ok(rung));
        }
        assert!("walk".parse::<Rung>().is_err());
    }
}
