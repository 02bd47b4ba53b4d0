//! Backend of each part of the feature on this host, and the reasons against better ones.
//!
//! Pure: the host's facts come in, the output of `masu facts` goes out.

use access::backend::Unavailable;
use access::{Backend, Backends};
use linux::capabilities::Capability;
use linux::probe::{HostFacts, Known};
use serde::Serialize;

/// One part of the feature.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PartBackend {
    /// `observing`, `promoting`, `demoting` or `measuring again`.
    pub part: &'static str,
    /// Backend in use; `None` when none is available.
    #[serde(flatten, with = "units::renamed::backend")]
    pub backend: Option<&'static str>,
    /// Meaning for the user.
    pub meaning: String,
    /// Better backends that are not available, best first.
    pub missing: Vec<Missing>,
}

/// A backend that is not available.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Missing {
    /// Name of the backend.
    #[serde(flatten, with = "units::renamed::backend")]
    pub backend: &'static str,
    /// Reason.
    pub reason: String,
    /// Remedy.
    pub remedy: String,
}

/// All parts, in the order of the flow.
pub fn part_backends(facts: &HostFacts, backends: &Backends) -> Vec<PartBackend> {
    vec![observing(backends), promoting(facts), demoting(facts), measuring(facts)]
}

fn observing(backends: &Backends) -> PartBackend {
    let (best, missing) = backends.best();
    PartBackend {
        part: "observing",
        backend: best.map(Backend::name),
        meaning: best.map_or("no process can be observed".to_owned(), |backend| {
            format!("{}; needs {}", backend.exactness(), backend.privilege())
        }),
        missing: missing.into_iter().map(|(backend, why)| Missing::of(backend.name(), why.clone())).collect(),
    }
}

const COLLAPSE: &str = "collapse";

fn promoting(facts: &HostFacts) -> PartBackend {
    let missing = lack(&facts.collapse, "MADV_COLLAPSE of one window did nothing", NEEDS_COLLAPSE);
    let missing = missing.or_else(|| not_allowed(facts));
    let (backend, meaning) = match missing {
        None => (Some(COLLAPSE), "one window at a time, at once, whatever the THP mode says"),
        Some(_) => (None, "no window can be promoted"),
    };
    PartBackend {
        part: "promoting",
        backend,
        meaning: meaning.to_owned(),
        missing: missing.map(|why| Missing::of(COLLAPSE, why)).into_iter().collect(),
    }
}

/// Reason in a user namespace, and remedy.
pub const APART: &str =
    "advice to another process needs CAP_SYS_NICE of the host, which nobody has in a user namespace of its own";
pub const OUTSIDE: &str = "Run as root of the host, outside of the user namespace or container.";

/// Advice to another process needs a privilege. The probe advised its own process, and does not show it.
fn not_allowed(facts: &HostFacts) -> Option<Unavailable> {
    let allowed = facts.capabilities.value().is_none_or(|own| own.contains(Capability::SysNice));
    let is_apart = facts.initial_user_namespace == Known::Value(false);
    (!allowed || is_apart).then(|| Unavailable {
        reason: if is_apart { APART } else { "advice to another process needs CAP_SYS_NICE" }.to_owned(),
        remedy: if is_apart { OUTSIDE } else { "Run as root, or with CAP_SYS_NICE and CAP_SYS_PTRACE." }.to_owned(),
    })
}

const NEEDS_COLLAPSE: &str = "Use Linux 6.1 or newer with CONFIG_TRANSPARENT_HUGEPAGE=y, and CAP_SYS_NICE.";
const RETURN: &str = "split-and-return";
const SPLIT: &str = "split";

fn demoting(facts: &HostFacts) -> PartBackend {
    let no_return = lack(
        &facts.split_frees_zero_pages,
        "a split leaves the pages that hold only zeros in memory",
        "Use Linux 6.12 or newer, whose splits return them.",
    );
    let no_split = lack(&facts.cold_splits, "MADV_COLD on one page does not split its huge page", NEEDS_COLLAPSE);
    let no_split = no_split.or_else(|| not_allowed(facts));
    let mut missing: Vec<Missing> = no_return.into_iter().map(|why| Missing::of(RETURN, why)).collect();
    let splits = no_split.is_none();
    missing.extend(no_split.map(|why| Missing::of(SPLIT, why)));
    let (backend, meaning) = match (splits, missing.is_empty()) {
        (true, true) => (Some(RETURN), "a huge page is split and its untouched memory is returned"),
        (true, false) => (Some(SPLIT), "a huge page is split; its memory is returned when the kernel needs it"),
        (false, _) => (None, "no window can be demoted"),
    };
    PartBackend { part: "demoting", backend, meaning: meaning.to_owned(), missing }
}

const SCAN: &str = "pagemap-scan";
const FRAMES: &str = "frame-flags";

fn measuring(facts: &HostFacts) -> PartBackend {
    let missing = lack(&facts.pagemap_scan, "the kernel has no PAGEMAP_SCAN", "Use Linux 6.7 or newer.");
    let (backend, meaning) = match missing {
        None => (Some(SCAN), "contents of each window, from the kernel under its lock"),
        Some(_) => (Some(FRAMES), "contents of each window, from frame numbers; needs CAP_SYS_ADMIN"),
    };
    PartBackend {
        part: "measuring again",
        backend,
        meaning: meaning.to_owned(),
        missing: missing.map(|why| Missing::of(SCAN, why)).into_iter().collect(),
    }
}

/// `None` when the fact holds.
fn lack(fact: &Known<bool>, no: &str, remedy: &str) -> Option<Unavailable> {
    let reason = match fact {
        Known::Value(true) => return None,
        Known::Value(false) => no.to_owned(),
        Known::Unknown(why) => why.clone(),
    };
    Some(Unavailable { reason, remedy: remedy.to_owned() })
}

impl Missing {
    fn of(backend: &'static str, why: Unavailable) -> Missing {
        Missing { backend, reason: why.reason, remedy: why.remedy }
    }
}

#[cfg(test)]
mod tests {
    use linux::capabilities::Capabilities;
    use linux::fake::FakeKernel;

    use super::*;

    fn all() -> Backends {
        Backends { bpf_walk: Ok(()), damon_vaddr: Ok(()), residency: Ok(()) }
    }

    fn facts() -> HostFacts {
        let yes = Known::Value(true);
        let nothing = HostFacts::gather(&FakeKernel::new());
        HostFacts {
            collapse: yes.clone(),
            cold_splits: yes.clone(),
            split_frees_zero_pages: yes.clone(),
            pagemap_scan: yes,
            initial_user_namespace: Known::Value(true),
            ..nothing
        }
    }

    #[test]
    fn a_backend_has_its_old_name_in_json_too() {
        let missing = Missing { backend: "walk", reason: "no BPF".to_owned(), remedy: String::new() };
        let json = serde_json::to_string(&missing).unwrap();
        assert_eq!(json, r#"{"backend":"walk","rung":"walk","reason":"no BPF","remedy":""}"#);
    }

    #[test]
    fn without_the_privilege_for_advice_nothing_is_promoted_or_demoted() {
        let nobody = HostFacts { capabilities: Known::Value(Capabilities(0)), ..facts() };
        assert_eq!(backends_of(&nobody)[1..3], [None, None]);
        assert!(part_backends(&nobody, &all())[1].missing[0].reason.contains("CAP_SYS_NICE"));
    }

    #[test]
    fn in_a_user_namespace_the_capability_is_not_the_hosts() {
        let own = Known::Value(Capabilities::of(&[Capability::SysNice]));
        let apart = HostFacts { capabilities: own, initial_user_namespace: Known::Value(false), ..facts() };
        assert_eq!(backends_of(&apart)[1..3], [None, None]);
        assert_eq!(part_backends(&apart, &all())[1].missing[0].reason, APART);
        let host = HostFacts { initial_user_namespace: Known::Value(true), ..apart };
        assert_eq!(backends_of(&host)[1..3], [Some("collapse"), Some("split-and-return")]);
    }

    fn backends_of(facts: &HostFacts) -> Vec<Option<&'static str>> {
        part_backends(facts, &all()).iter().map(|part| part.backend).collect()
    }

    #[test]
    fn on_a_host_with_everything_each_part_uses_its_best_backend() {
        assert_eq!(
            backends_of(&facts()),
            [Some("bpf-walk"), Some("collapse"), Some("split-and-return"), Some("pagemap-scan")]
        );
        assert!(part_backends(&facts(), &all()).iter().all(|part| part.missing.is_empty()));
    }

    #[test]
    fn an_older_kernel_splits_without_return_and_measures_by_frames() {
        let no = Known::Value(false);
        let older = HostFacts { split_frees_zero_pages: no.clone(), pagemap_scan: no, ..facts() };
        assert_eq!(backends_of(&older), [Some("bpf-walk"), Some("collapse"), Some("split"), Some("frame-flags")]);
        let demoting = &part_backends(&older, &all())[2];
        assert_eq!(demoting.missing[0].backend, "split-and-return");
        assert!(demoting.missing[0].remedy.contains("6.12"));
    }

    #[test]
    fn an_unknown_fact_is_not_taken_for_a_yes() {
        let unasked = HostFacts { collapse: Known::Unknown("permission denied (EPERM)".to_owned()), ..facts() };
        let promoting = &part_backends(&unasked, &all())[1];
        assert_eq!(promoting.backend, None);
        assert_eq!(promoting.missing[0].reason, "permission denied (EPERM)");
    }
}
