//! Conversions between integers that hide an impossible case: `T::try_from(value).unwrap_or(0)`.

use super::Violation;
use super::source::{Source, inside_brackets, line_of, words};

/// Files whose functions name the expectation: `crates/units/src/cast.rs` and the ones of crates without dependencies.
const CAST: &str = "/cast.rs";

const CALLS: [&str; 2] = ["try_from", "try_into"];
const FALLBACKS: [&str; 2] = [".unwrap_or(", ".unwrap_or_default("];

/// Fallible conversions with a fallback, outside tests.
pub fn in_source(source: &Source) -> Vec<Violation> {
    if !source.path.ends_with(".rs") || source.path.ends_with(CAST) {
        return Vec::new();
    }
    let code = source.code_without_tests();
    let hides = |call: &'static str, at: usize| {
        let after = inside_brackets(&code[at + call.len()..], '(', ')').map(|(_, rest)| rest.trim_start());
        after.is_some_and(|rest| FALLBACKS.iter().any(|fallback| rest.starts_with(fallback)))
    };
    let found = CALLS.into_iter().flat_map(|call| words(&code, call).filter(move |&at| hides(call, at)));
    let message = "a conversion with a fallback hides the impossible case: units::cast::{index, fits, saturated}";
    found.map(|at| Violation::at(source, line_of(&code, at), message.to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, text: &str) -> Vec<usize> {
        in_source(&Source::new(path, text)).into_iter().filter_map(|violation| violation.line).collect()
    }

    #[test]
    fn each_conversion_with_a_fallback_is_found() {
        let text = "let a = u32::try_from(b).unwrap_or(0);\nlet a = u32::try_from(f(b, (c)))\n    .unwrap_or(u32::MAX);\n\
            let a: u8 = b.try_into().unwrap_or_default();\nlet a = char::try_from(b).unwrap_or(' ');\n";
        assert_eq!(found("crates/llc/src/a.rs", text), [1, 2, 5, 4]);
    }

    #[test]
    fn other_ways_and_tests_and_casts_are_none() {
        let text = "let a = u32::try_from(b)?;\nlet a = u32::try_from(b).ok();\nlet a = b.parse().unwrap_or(0);\n\
            // u32::try_from(b).unwrap_or(0)\nlet a = \"u32::try_from(b).unwrap_or(0)\";\n\
            let a = my_try_from(b).unwrap_or(0);\nlet a = u32::try_from(b";
        assert_eq!(found("crates/llc/src/a.rs", text), [0; 0]);
        let hidden = "let a = u32::try_from(b).unwrap_or(0);\n";
        assert_eq!(found("crates/units/src/cast.rs", hidden), [0; 0]);
        assert_eq!(found("crates/llc/src/a/tests.rs", hidden), [0; 0]);
        assert_eq!(found("crates/llc/src/a.rs", &format!("#[cfg(test)]\nmod tests {{\n{hidden}}}\n")), [0; 0]);
    }
}
