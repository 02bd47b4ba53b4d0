//! `unsafe` lives where the kernel's and the processor's interfaces are, and nowhere else.

use super::Violation;
use super::source::{Source, words};

/// Rooms that talk to the kernel, or whose tests and workloads handle memory by address.
const ALLOWED: &[&str] =
    &["crates/linux", "crates/access", "crates/remote", "crates/libmasu", "live-tests", "bench", "fuzz"];

/// Crate roots that forbid it themselves, so that the compiler says no first.
const BANNED_IN: &[&str] = &[
    "crates/quantities/src/lib.rs",
    "crates/libmasu/src/lib.rs",
    "crates/llc/src/lib.rs",
    "crates/resctrl-emulator/src/lib.rs",
    "crates/masu/src/lib.rs",
    "xtask/src/main.rs",
];

/// The word in a room that should not need it.
pub fn in_source(source: &Source) -> Vec<Violation> {
    let (room, _) = source.room();
    if ALLOWED.contains(&room) {
        return Vec::new();
    }
    let lines = source.lines().filter(|(_, line)| words(line, "unsafe").next().is_some());
    lines
        .map(|(number, _)| {
            Violation::at(source, number, format!("unsafe in {room}; allowed in {}", ALLOWED.join(", ")))
        })
        .collect()
}

/// Crate roots whose ban was taken away.
pub fn missing_bans(sources: &[Source]) -> Vec<Violation> {
    let roots = sources.iter().filter(|source| BANNED_IN.contains(&source.path.as_str()));
    let unbanned = roots.filter(|source| !source.code.iter().any(|line| line.contains("#![forbid(unsafe_code)]")));
    unbanned.map(|source| Violation::of_file(&source.path, "#![forbid(unsafe_code)] is missing".to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_word_is_found_where_it_is_not_allowed() {
        let found = in_source(&Source::new("crates/hugepages/src/a.rs", "// unsafe\nfn f() { unsafe { g() } }"));
        assert_eq!(found[0].line, Some(2));
        assert_eq!(in_source(&Source::new("crates/linux/src/a.rs", "unsafe { g() }")), []);
        assert_eq!(in_source(&Source::new("crates/hugepages/src/a.rs", "#![deny(unsafe_code)]")), []);
    }

    #[test]
    fn a_crate_root_without_its_ban_is_found() {
        let without = Source::new("crates/quantities/src/lib.rs", "// #![forbid(unsafe_code)]\n");
        let with = Source::new("crates/masu/src/lib.rs", "#![forbid(unsafe_code)]\n");
        let found = missing_bans(&[without, with]);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].path, "crates/quantities/src/lib.rs");
    }
}
