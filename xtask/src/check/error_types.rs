//! A text as an error: `Result<_, String>` tells a caller nothing that it could react to.

use super::Violation;
use super::source::{Source, inside_brackets, line_of, words};

/// Files and folders of argument parsing, where the text is for the person who typed it.
const ARGUMENTS: [&str; 4] = ["/args.rs", "/args/", "/arguments.rs", "/arguments/"];

/// Results with a text as the error, outside argument parsing and tests.
pub fn in_source(source: &Source) -> Vec<Violation> {
    if !source.path.ends_with(".rs") || ARGUMENTS.iter().any(|part| source.path.contains(part)) {
        return Vec::new();
    }
    let code = source.code_without_tests();
    let is_text = |at: usize| {
        let types = inside_brackets(&code[at + "Result".len()..], '<', '>').map(|(types, _)| types);
        types.and_then(last_of).is_some_and(|error| error == "String")
    };
    // The text of a parser of arguments is for the person who typed them.
    let parses = |at: usize| {
        let name = code[..at].rsplit_once("fn ").map_or("", |(_, signature)| signature);
        name.starts_with("from_str(") || name.starts_with("parse")
    };
    let message = "Result<_, String>: an error is an enum by what the caller can do";
    let found = words(&code, "Result").filter(|&at| is_text(at) && !parses(at));
    found.map(|at| Violation::at(source, line_of(&code, at), message.to_owned())).collect()
}

/// The last of two or more types that commas divide.
fn last_of(types: &str) -> Option<&str> {
    let mut depth = 0_i32;
    let is_comma = |c: char| {
        match c {
            '<' | '(' | '[' => depth += 1,
            '>' | ')' | ']' => depth -= 1,
            _ => (),
        }
        c == ',' && depth == 0
    };
    let mut parts = types.split(is_comma).map(str::trim).filter(|part| !part.is_empty());
    let first = parts.next();
    first.and(parts.last())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, text: &str) -> Vec<usize> {
        in_source(&Source::new(path, text)).into_iter().filter_map(|violation| violation.line).collect()
    }

    #[test]
    fn each_result_with_a_text_is_found() {
        let text = "fn a() -> Result<(), String>;\nfn b() -> io::Result<Result<Vec<(u8, u8)>, String>>;\n\
            fn c() -> Result<\n    BTreeMap<u8, String>,\n    String,\n>;\n";
        assert_eq!(found("crates/llc/src/a.rs", text), [1, 2, 3]);
    }

    #[test]
    fn other_results_and_argument_parsing_are_none() {
        let text = "fn a() -> Result<String>;\nfn b() -> Result<BTreeMap<u8, String>>;\nfn c() -> Result<String, Error>;\n\
            type Results = Vec<(u8, String)>;\nfn d() -> Result<u8, Vec<String>>;\n";
        assert_eq!(found("crates/llc/src/a.rs", text), [0; 0]);
        let text = "fn a() -> Result<(), String>;\n";
        for path in ["crates/masu/src/args.rs", "crates/masu/src/args/run.rs", "crates/llc/src/a/tests.rs"] {
            assert_eq!(found(path, text), [0; 0], "{path}");
        }
        let text = "fn from_str(a: &str) -> Result<A, String>;\nfn parse_time(a: &str) -> Result<A, String>;\n\
            fn parse(a: &str) -> Result<A, B>;\nfn next() -> Result<A, String>;\n";
        assert_eq!(found("crates/llc/src/a.rs", text), [4]);
    }
}
