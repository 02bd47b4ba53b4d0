//! Writes `masu.h` to the file that the first argument names. Run by `cargo xtask header`.
//!
//! Declarations and their comments come from `crates/hugepages/libmasu/src`. The rest (the use by a program, and the
//! marks of sections, which are another library's) is in `crates/hugepages/libmasu/preface.h`.

#![forbid(unsafe_code)]

use std::path::Path;

use anyhow::{Context, Result};

fn main() -> Result<()> {
    let file = std::env::args_os().nth(1).context("expected a file")?;
    let api = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/hugepages/libmasu");
    let mut config = cbindgen::Config::from_file(api.join("cbindgen.toml"))
        .map_err(anyhow::Error::msg)
        .context("cannot read cbindgen.toml")?;
    let preface = api.join("preface.h");
    let preface = std::fs::read_to_string(&preface).with_context(|| format!("cannot read {}", preface.display()))?;
    config.after_includes = Some(format!("\n{preface}"));
    let bindings =
        cbindgen::Builder::new().with_crate(&api).with_config(config).generate().context("cannot generate")?;
    let mut text = Vec::new();
    bindings.write(&mut text);
    let text = String::from_utf8(text).context("the header is not text")?;
    std::fs::write(&file, tidied(&text)).with_context(|| format!("cannot write {}", Path::new(&file).display()))
}

/// The header in C style: comments of one line on one line, negative numbers in parentheses, and nothing that only
/// concerns Rust (a comment's part `# Safety`).
fn tidied(text: &str) -> String {
    let (made, ours) = text.split_once("extern void swpin_refresh").unwrap_or(("", text));
    let mut out: Vec<String> = Vec::new();
    let mut comment: Option<Vec<&str>> = None;
    for line in ours.lines() {
        let indent = &line[..line.len() - line.trim_start().len()];
        match (line.trim(), comment.as_mut()) {
            ("/*", None) => comment = Some(Vec::new()),
            ("*/", Some(lines)) => {
                out.extend(written(lines, indent.len() / 4 * 4));
                comment = None;
            }
            (text, Some(lines)) => lines.push(text),
            (_, None) => out.push(in_parentheses(line)),
        }
    }
    format!("{made}extern void swpin_refresh{}\n", out.join("\n"))
}

/// A comment, `indent` columns from the left.
fn written(lines: &[&str], indent: usize) -> Vec<String> {
    let told: Vec<&str> = lines.iter().copied().take_while(|line| *line != "# Safety").collect();
    let end = told.iter().rposition(|line| !line.is_empty()).map_or(0, |last| last + 1);
    let space = " ".repeat(indent);
    if let [line] = told[..end] {
        return vec![format!("{space}/* {line} */")];
    }
    let middle = told[..end].iter().map(|line| format!("{space} * {line}").trim_end().to_owned());
    [vec![format!("{space}/*")], middle.collect(), vec![format!("{space} */")]].concat()
}

fn in_parentheses(line: &str) -> String {
    match line.strip_prefix("#define ").and_then(|rest| rest.split_once(" -")) {
        Some((name, number)) => format!("#define {name} (-{number})"),
        None => line.to_owned(),
    }
}
