//! Shared pages and partitions of the last-level cache (LLC).
//!
//! 藤 and 山田, ページ共有を考慮した CPU キャッシュパーティショニング機構 (cache partitioning that knows shared pages). CAT limits the ways of the
//! cache where a class of service may *allocate*; a *lookup* hits anywhere. So the lines of a page that KSM merged
//! lie in the partition of the first process to touch them: that process pays, the others use the lines free of
//! charge. The paper gives shared lines a partition of their own, kept warm by a daemon, and partitions the rest
//! fairly.
//!
//! `shared` finds the merged frames and their sharers; `policy` assigns ways; `daemon` applies the plan through
//! resctrl, keeps the shared partition warm, and restores everything. The simulator of the cache is `sim::cache`.

#![forbid(unsafe_code)]

pub mod daemon;
pub mod policy;
pub mod shared;

/// Message for a TOML file that does not parse: the text found and the text expected, in words of the file and not of
/// the parser.
pub fn unparsed(text: &str, span: Option<std::ops::Range<usize>>, message: &str) -> String {
    const KINDS: [(&str, &str); 6] = [
        ("expected u32", "expected a whole number, not below 0"),
        ("expected u64", "expected a whole number, not below 0"),
        ("expected i32", "expected a whole number"),
        ("expected f64", "expected a number"),
        ("expected string or table", "expected a word in quotes"),
        ("wanted string or table", "expected a word in quotes"),
    ];
    let mut message = message.trim().replace('\n', ", ");
    for (theirs, ours) in KINDS {
        message = message.replace(theirs, ours);
    }
    let names_it = ["missing field", "unknown field", "duplicate key"].iter().any(|start| message.starts_with(start));
    let start = span.map_or(0, |span| span.start).min(text.len());
    let begin = text.as_bytes()[..start].iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    let line = text.get(begin..).and_then(|rest| rest.lines().next()).unwrap_or_default();
    let line: String = line.trim().chars().take(60).collect();
    if names_it || !line.contains('=') { message } else { format!("{line}: {message}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_meant_is_named_in_words_of_the_file() {
        let at = |text: &str, word: &str, message: &str| {
            let start = text.find(word).unwrap();
            unparsed(text, Some(start..start + 1), message)
        };
        let text = "a = 1\nways = -1\npolicy = 1\n";
        let found = at(text, "-1", "invalid value: integer `-1`, expected u32");
        assert_eq!(found, "ways = -1: invalid value: integer `-1`, expected a whole number, not below 0");
        assert_eq!(at(text, "1\n", "wanted string or table\n"), "a = 1: expected a word in quotes");
        assert_eq!(at(text, "policy", "missing field `cache`"), "missing field `cache`");
        assert_eq!(unparsed("", Some(9..10), "missing field `cache`"), "missing field `cache`");
        assert_eq!(unparsed("é = ü", None, "no"), "é = ü: no");
    }
}
