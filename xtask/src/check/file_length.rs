//! A file beyond 600 lines is split, or says why not.

use super::Violation;
use super::source::Source;

const LINES_MAX: usize = 600;
const REASON: &str = "Longer than 600 lines because";

/// A long file without a reason.
pub fn in_source(source: &Source) -> Vec<Violation> {
    let lines = source.text.lines().count();
    // In C, a comment's lines begin with a star.
    let is_comment = |line: &str| ["//", "* "].iter().any(|sign| line.trim_start().starts_with(sign));
    if lines <= LINES_MAX || source.text.lines().any(|line| is_comment(line) && line.contains(REASON)) {
        return Vec::new();
    }
    let message = format!("{lines} lines: split it, or say in a comment \"{REASON} ...\"");
    vec![Violation::of_file(&source.path, message)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_file_needs_a_reason() {
        let long = "fn a() {}\n".repeat(601);
        let found = in_source(&Source::new("crates/linux/src/a.rs", &long));
        assert!(found[0].message.starts_with("601 lines"));
        assert_eq!(in_source(&Source::new("a.rs", &"fn a() {}\n".repeat(600))), []);
        assert_eq!(in_source(&Source::new("a.rs", &format!("//! {REASON} it is a table.\n{long}"))), []);
        assert_eq!(in_source(&Source::new("a.c", &format!("/*\n * {REASON} it is a table.\n */\n{long}"))), []);
        assert_eq!(in_source(&Source::new("a.rs", &format!("const A: &str = \"{REASON}\";\n{long}"))).len(), 1);
    }
}
