//! `unsafe` lives where the kernel's and the processor's interfaces are, and nowhere else.

use super::Violation;
use super::source::{Source, words};

/// Crates that call the kernel or run inside programs, and crates whose tests and workloads handle memory by address.
const ALLOWED: [&str; 9] = [
    "crates/linux",
    "crates/access",
    "crates/hugepages/preload",
    "crates/hugepages/libmasu",
    "crates/farmem/agent",
    "crates/farmem/server",
    "live-tests",
    "bench",
    "fuzz",
];

/// The keyword in a crate that does not need it, and a root of such a crate that does not forbid it.
pub fn in_source(source: &Source) -> Vec<Violation> {
    let (package, below) = source.package();
    if ALLOWED.contains(&package) {
        return Vec::new();
    }
    let lines = source.lines().filter(|(_, line)| words(line, "unsafe").next().is_some());
    let message = || format!("unsafe in {package}; allowed in {}", ALLOWED.join(", "));
    let mut found: Vec<Violation> = lines.map(|(number, _)| Violation::at(source, number, message())).collect();
    let is_root = below == "src/lib.rs" || (package == "xtask" && below == "src/main.rs");
    if is_root && !source.code.iter().any(|line| line.contains("#![forbid(unsafe_code)]")) {
        found.push(Violation::of_file(&source.path, "#![forbid(unsafe_code)] is missing".to_owned()));
    }
    found
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
        let without = in_source(&Source::new("crates/units/src/lib.rs", "// #![forbid(unsafe_code)]\n"));
        assert_eq!(without.iter().map(|violation| violation.line).collect::<Vec<_>>(), [None]);
        assert_eq!(in_source(&Source::new("crates/masu/src/lib.rs", "#![forbid(unsafe_code)]\n")), []);
    }
}
