//! Backend of `masu run --local` on this host, and why no better one. Pure.

use farmem_engine::backend::{Backend, Features};
use hugepages::backends::{Missing, PartBackend};
use linux::probe::{HostFacts, Known};
use linux::userfaultfd;

const FORBIDDEN: &str = "Linux 5.11 or newer has it for everybody, tested on 6.1; a container's seccomp filter may forbid it: allow it there.";

/// The parts, in the order of their use by a program.
pub fn backends(facts: &HostFacts) -> Vec<PartBackend> {
    vec![faults(facts), calls(facts)]
}

/// Mapping pages in and evicting them.
fn faults(facts: &HostFacts) -> PartBackend {
    let missing = |backend: Backend, reason: String, remedy: &str| Missing {
        backend: backend.name(),
        reason,
        remedy: remedy.to_owned(),
    };
    let (backend, missing) = match &facts.user_faults {
        Known::Value(Some(features)) if features.sigbus => {
            let chosen = Backend::choose(word_of(features), None);
            let better = Backend::ALL.into_iter().take_while(|backend| Some(*backend) != chosen);
            let missing = better.map(|backend| match backend {
                Backend::Move => missing(
                    backend,
                    "this kernel moves no frames (UFFDIO_MOVE)".to_owned(),
                    "Linux 6.8 or newer has it.",
                ),
                Backend::Copy => {
                    let why = "this kernel protects no pages against writes (UFFDIO_WRITEPROTECT)".to_owned();
                    missing(backend, why, "Linux 5.7 or newer has it.")
                }
            });
            (chosen, missing.collect())
        }
        Known::Value(Some(_)) => {
            let why = "its userfaultfd raises no SIGBUS".to_owned();
            (None, vec![missing(Backend::Move, why, FORBIDDEN)])
        }
        Known::Value(None) => {
            let why = "this kernel gives no userfaultfd for user faults".to_owned();
            (None, vec![missing(Backend::Move, why, FORBIDDEN)])
        }
        Known::Unknown(why) => (None, vec![missing(Backend::Move, why.clone(), FORBIDDEN)]),
    };
    let meaning = match backend {
        Some(Backend::Move) => "a program serves its own faults; frames are moved",
        Some(Backend::Copy) => "a program serves its own faults; pages are copied, protected against writes meanwhile",
        None => "no program can be paged",
    };
    PartBackend { part: "faults", backend: backend.map(Backend::name), meaning: meaning.to_owned(), missing }
}

/// Features by the kernel's names.
fn word_of(features: &userfaultfd::Features) -> Features {
    let words = [
        (features.sigbus, Features::SIGBUS),
        (features.moves, Features::MOVE),
        (features.write_protect, Features::WRITE_PROTECT),
    ];
    words.into_iter().filter(|(has, _)| *has).fold(Features(0), |all, (_, one)| all.and(one))
}

/// Intercepting system calls with paged memory.
fn calls(facts: &HostFacts) -> PartBackend {
    const BACKEND: &str = "user-dispatch";
    let missing = match &facts.syscall_dispatch {
        Known::Value(true) => None,
        Known::Value(false) => Some("this kernel has no Syscall User Dispatch".to_owned()),
        Known::Unknown(why) => Some(why.clone()),
    };
    let (backend, meaning) = match missing {
        None => (Some(BACKEND), "each call is shown to the program's pager first; no symbol is interposed"),
        Some(_) => (None, "no program can be paged"),
    };
    let missing = missing.map(|reason| Missing { backend: BACKEND, reason, remedy: FORBIDDEN.to_owned() });
    PartBackend { part: "system calls", backend, meaning: meaning.to_owned(), missing: missing.into_iter().collect() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use linux::Rooted;
    use linux::userfaultfd::Features;

    fn facts(user_faults: Known<Option<Features>>, dispatch: Known<bool>) -> HostFacts {
        let nowhere = Rooted::at("/no/such/root");
        HostFacts { user_faults, syscall_dispatch: dispatch, ..HostFacts::gather(&nowhere) }
    }

    #[test]
    fn each_backend_is_found_and_the_better_one_explained() {
        let all = linux::userfaultfd::decode(u64::MAX);
        let old = Features { moves: false, ..all };
        for (features, backend, missing) in [
            (Known::Value(Some(all)), Some("move"), 0),
            (Known::Value(Some(old)), Some("copy"), 1),
            (Known::Value(Some(Features { write_protect: false, ..all })), Some("move"), 0),
            (Known::Value(Some(Features { write_protect: false, ..old })), None, 2),
            (Known::Value(Some(Features { sigbus: false, ..all })), None, 1),
            (Known::Value(None), None, 1),
            (Known::Unknown("operation not permitted (EPERM)".to_owned()), None, 1),
        ] {
            let part = &backends(&facts(features.clone(), Known::Value(true)))[0];
            assert_eq!((part.backend, part.missing.len()), (backend, missing), "{features:?}");
        }
        let old = &backends(&facts(Known::Value(Some(old)), Known::Value(true)))[0];
        assert!(old.meaning.contains("copied") && old.missing[0].backend == "move", "{old:?}");
        assert!(old.missing[0].remedy.contains("6.8"), "{old:?}");
        let without = &backends(&facts(Known::Value(Some(all)), Known::Value(false)))[1];
        assert_eq!((without.backend, without.missing.len()), (None, 1));
        assert!(without.missing[0].remedy.contains("5.11") && without.missing[0].remedy.contains("tested on 6.1"));
    }
}
