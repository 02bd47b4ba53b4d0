//! Deciding code, and what is worked out beside it, has no I/O, no clock, no randomness and no unsafe: time, chance and history come in as arguments, what
//! to do goes out as data.

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
    let (_, below) = source.room();
    below == "src/policy.rs" || below.starts_with("src/policy/") || below.ends_with("/policy.rs")
}

/// Files that ARCHITECTURE.md lists as pure. They may name `linux`, for its types of plain data; what in it reads or writes
/// needs a `KernelFiles`, which none of them is given.
const PURE: &[(&str, &str)] = &[
    ("crates/access", "src/estimate.rs"),
    ("crates/access", "src/map.rs"),
    ("crates/access", "src/rung.rs"),
    ("crates/aging", "src/class.rs"),
    ("crates/aging", "src/controller.rs"),
    ("crates/aging", "src/dials.rs"),
    ("crates/aging", "src/ranges.rs"),
    ("crates/aging", "src/sample.rs"),
    ("crates/aging", "src/simulate.rs"),
    ("crates/aging", "src/simulate/dials.rs"),
    ("crates/aging", "src/simulate/kernel.rs"),
    ("crates/aging", "src/simulate/memory.rs"),
    ("crates/aging", "src/simulate/pages.rs"),
    ("crates/aging", "src/simulate/paper.rs"),
    ("crates/aging", "src/simulate/trace.rs"),
    ("crates/aging", "src/streams/detect.rs"),
    ("crates/hugepages", "src/count/kind.rs"),
    ("crates/hugepages", "src/count/rule.rs"),
    ("crates/hugepages", "src/observe.rs"),
    ("crates/hugepages", "src/pace.rs"),
    ("crates/hugepages", "src/refusal.rs"),
    ("crates/hugepages", "src/standing.rs"),
    ("crates/hugepages", "src/track/list.rs"),
    ("crates/hugepages", "src/track/notice.rs"),
    ("crates/hugepages", "src/track/schedule.rs"),
    ("crates/hugepages", "src/track/session.rs"),
    ("crates/hugepages", "src/track/share.rs"),
    ("crates/libmasu", "src/settings.rs"),
    ("crates/libmasu", "src/track/list.rs"),
    ("crates/libmasu", "src/track/terms.rs"),
    ("crates/libmasu", "src/track/wire.rs"),
    ("crates/llc", "src/keep/arrange.rs"),
    ("crates/llc", "src/keep/curve.rs"),
    ("crates/llc", "src/keep/decide.rs"),
    ("crates/llc", "src/keep/room.rs"),
    ("crates/llc", "src/keep/sets.rs"),
    ("crates/llc", "src/keep/steps.rs"),
    ("crates/llc", "src/shared/index.rs"),
    ("crates/llc", "src/shared/report.rs"),
    ("crates/llc", "src/simulate/cache.rs"),
    ("crates/llc", "src/simulate/fit.rs"),
    ("crates/llc", "src/simulate/frames.rs"),
    ("crates/llc", "src/simulate/machine.rs"),
    ("crates/llc", "src/simulate/program.rs"),
    ("crates/llc", "src/simulate/random.rs"),
    ("crates/llc", "src/simulate/refill.rs"),
    ("crates/llc", "src/simulate/report.rs"),
    ("crates/llc", "src/simulate/run.rs"),
    ("crates/llc", "src/simulate/situation.rs"),
    ("crates/masu", "src/run/sizes.rs"),
    ("crates/resctrl-emulator", "src/cpus.rs"),
    ("crates/resctrl-emulator", "src/groups.rs"),
    ("crates/resctrl-emulator", "src/hardware.rs"),
    ("crates/resctrl-emulator", "src/info.rs"),
    ("crates/resctrl-emulator", "src/io_alloc.rs"),
    ("crates/resctrl-emulator", "src/machine.rs"),
    ("crates/resctrl-emulator", "src/masks.rs"),
    ("crates/resctrl-emulator", "src/mode.rs"),
    ("crates/resctrl-emulator", "src/monitoring.rs"),
    ("crates/resctrl-emulator", "src/node.rs"),
    ("crates/resctrl-emulator", "src/number.rs"),
    ("crates/resctrl-emulator", "src/schemata.rs"),
    ("crates/resctrl-emulator", "src/status.rs"),
    ("crates/resctrl-emulator", "src/tasks.rs"),
];

fn is_pure(source: &Source) -> bool {
    let (room, below) = source.room();
    room == "crates/quantities" && below.starts_with("src/") || PURE.contains(&(room, below))
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
            assert_eq!(lines_found("crates/remote/src/policy/size.rs", effect), [1], "{effect}");
        }
    }

    #[test]
    fn the_listed_files_may_name_what_the_kernel_says_and_do_nothing() {
        let typed = "use linux::maps::Mapping;\nuse rustix::io::Errno;\nuse linux::Error;\n";
        assert_eq!(lines_found("crates/hugepages/src/observe.rs", typed), [0; 0]);
        assert_eq!(lines_found("crates/hugepages/src/pace.rs", "use std::time::Instant;"), [1]);
        assert_eq!(lines_found("crates/hugepages/src/refusal.rs", "use rustix::fs::open;"), [1]);
        assert_eq!(lines_found("crates/quantities/src/bytes.rs", "use std::fs;"), [1]);
    }

    #[test]
    fn pure_code_its_tests_and_other_files_pass() {
        let pure = "use std::time::Duration;\nuse quantities::Bytes;\n/// Instant\nfn a(x: &'static str) {}\n";
        assert_eq!(lines_found("crates/hugepages/src/policy.rs", pure), [0; 0]);
        let tested = "#[cfg(test)]\nmod tests {\n    use std::fs;\n}\n";
        assert_eq!(lines_found("crates/hugepages/src/policy.rs", tested), [0; 0]);
        assert_eq!(lines_found("crates/hugepages/src/policy/tests.rs", "use std::fs;"), [0; 0]);
        assert_eq!(lines_found("crates/hugepages/src/act.rs", "use std::fs;"), [0; 0]);
    }
}
