//! Deciding code, and the computations beside it, have no I/O, no clock, no randomness and no unsafe: time, chance and
//! history come in as arguments, decisions go out as data.

use super::Violation;
use super::source::{Source, words};

/// Paths that only code with effects needs.
const PATHS: &[&str] = &[
    "std::fs",
    "std::io",
    "std::net",
    "std::os",
    "std::env",
    "std::process",
    "std::thread",
    "std::sync",
    "std::time::Instant",
    "std::time::SystemTime",
];

/// Words that say the same, however they were imported.
const WORDS: &[&str] = &[
    "Instant",
    "SystemTime",
    "rand",
    "unsafe",
    "libc",
    "rustix",
    "println",
    "eprintln",
    "print",
    "eprint",
    "dbg",
    "static",
];

/// The part of the file that decides, with effects in it.
pub fn in_source(source: &Source) -> Vec<Violation> {
    let (is_policy, is_pure) = (is_policy(source), is_pure(source));
    if !is_policy && !is_pure {
        return Vec::new();
    }
    let mut found = Vec::new();
    for (number, line) in source.lines_without_tests() {
        let paths = PATHS.iter().filter(|path| words(line, path).next().is_some());
        let kernel = words(line, "linux").filter(|&at| line[at..].starts_with("linux::")).map(|_| &"linux::");
        // `'static` is a lifetime and no variable.
        let is_lifetime = |at: usize| line[..at].ends_with('\'');
        let is_errno = |at: usize| line[at..].starts_with("rustix::io::Errno");
        let harmless = |at: usize| is_lifetime(at) || (is_pure && is_errno(at));
        let plain = WORDS.iter().filter(|word| words(line, word).any(|at| !harmless(at)));
        if let Some(what) = paths.chain(kernel.filter(|_| is_policy)).chain(plain).next() {
            let message = format!("{what} in pure code, which has no I/O, clock, randomness, state or unsafe");
            found.push(Violation::at(source, number, message));
        }
    }
    found
}

fn is_policy(source: &Source) -> bool {
    let (_, below) = source.package();
    below == "src/policy.rs" || below.starts_with("src/policy/") || below.ends_with("/policy.rs")
}

/// Files whose first line says `Pure.` or `Pure:`. They may name `linux`, for its types of plain data; every function
/// of it that reads or writes needs a `KernelFiles`, which none of them is given.
fn is_pure(source: &Source) -> bool {
    let head = source.text.lines().take_while(|line| line.starts_with("//!"));
    head.into_iter().any(|line| line.contains("Pure.") || line.contains("Pure:"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines_found(path: &str, text: &str) -> Vec<usize> {
        in_source(&Source::new(path, text)).iter().filter_map(|violation| violation.line).collect()
    }

    #[test]
    fn every_kind_of_effect_is_found() {
        for effect in [
            "use std::fs;",
            "let f = std::fs::read(p);",
            "use std::time::{Duration, Instant};",
            "let now = SystemTime::now();",
            "use std::net::TcpStream;",
            "let x = rand::random();",
            "unsafe { f() }",
            "linux::vmstat::read()",
            "use linux::Pid;",
            "println!(\"{x}\");",
            "static COUNT: u8 = 0;",
        ] {
            assert_eq!(
                lines_found("crates/hugepages/src/policy.rs", &format!("fn a() {{}}\n{effect}")),
                [2],
                "{effect}"
            );
            assert_eq!(lines_found("crates/farmem/server/src/policy/size.rs", effect), [1], "{effect}");
        }
    }

    #[test]
    fn a_file_that_says_so_may_name_types_of_the_kernel_and_has_no_effects() {
        let found = |text: &str| lines_found("crates/hugepages/src/pace.rs", &format!("//! Pace. Pure.\n{text}"));
        assert_eq!(found("use linux::maps::Mapping;\nuse rustix::io::Errno;\nuse linux::Error;\n"), [0; 0]);
        assert_eq!(found("use std::time::Instant;"), [2]);
        assert_eq!(found("use rustix::fs::open;"), [2]);
        assert_eq!(lines_found("crates/hugepages/src/pace.rs", "use std::time::Instant;\n//! Pure."), [0; 0]);
    }

    #[test]
    fn pure_code_its_tests_and_other_files_pass() {
        let pure = "use std::time::Duration;\nuse units::Bytes;\n/// Instant\nfn a(x: &'static str) {}\n";
        assert_eq!(lines_found("crates/hugepages/src/policy.rs", pure), [0; 0]);
        let tested = "#[cfg(test)]\nmod tests {\n    use std::fs;\n}\n";
        assert_eq!(lines_found("crates/hugepages/src/policy.rs", tested), [0; 0]);
        assert_eq!(lines_found("crates/hugepages/src/policy/tests.rs", "use std::fs;"), [0; 0]);
        assert_eq!(lines_found("crates/hugepages/src/act.rs", "use std::fs;"), [0; 0]);
    }
}
