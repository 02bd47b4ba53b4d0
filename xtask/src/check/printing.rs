//! Output goes through the one module that removes control characters.

use super::Violation;
use super::source::{Source, words};

/// The module, and a program that prints for itself.
const MAY_PRINT: [&str; 2] = ["crates/masu/src/terminal/print.rs", "crates/llc/emulator/src/main.rs"];

const MACROS: [&str; 5] = ["print", "println", "eprint", "eprintln", "dbg"];
const STREAMS: [&str; 2] = ["stdout", "stderr"];

/// Lines that write to standard output or standard error by themselves.
pub fn in_source(source: &Source) -> Vec<Violation> {
    let (package, path) = source.package();
    if !package.starts_with("crates/") || !path.starts_with("src/") || MAY_PRINT.contains(&source.path.as_str()) {
        return Vec::new();
    }
    let prints = |(line, code): (usize, &str)| {
        let found =
            MACROS.into_iter().find(|name| words(code, name).any(|at| code[at + name.len()..].starts_with('!')));
        // A method of `Command` has this name.
        let is_stream = |name: &str, at: usize| code[at + name.len()..].starts_with('(') && !code[..at].ends_with('.');
        let found =
            found.or_else(|| STREAMS.into_iter().find(|name| words(code, name).any(|at| is_stream(name, at))))?;
        Some(Violation::at(
            source,
            line,
            format!("{found}: only crates/masu/src/terminal/print.rs writes to the terminal"),
        ))
    };
    source.lines_without_tests().filter_map(prints).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, text: &str) -> Vec<usize> {
        in_source(&Source::new(path, text)).into_iter().filter_map(|violation| violation.line).collect()
    }

    #[test]
    fn each_way_to_print_is_found_and_what_looks_alike_is_not() {
        let text = "println!(\"a\");\neprint!(\"a\");\nlet out = io::stdout().lock();\nlet to = stderr();\n\
            command.stdout(Stdio::null());\nuse std::io::stdout;\n// println!(\"a\")\nlet print = 7; print(7);\n\
            #[cfg(test)]\nmod tests {\n    println!(\"SKIP\");\n}\n";
        assert_eq!(found("crates/masu/src/commands/stat.rs", text), [1, 2, 3, 4]);
        assert_eq!(found("crates/farmem/server/src/serve.rs", text), [1, 2, 3, 4]);
        for path in [
            "crates/masu/src/terminal/print.rs",
            "bench/src/report.rs",
            "crates/masu/build.rs",
            "crates/linux/src/maps/tests.rs",
        ] {
            assert_eq!(found(path, text), [0; 0], "{path}");
        }
    }
}
