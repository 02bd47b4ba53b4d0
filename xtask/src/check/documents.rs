//! Markdown: its size, and the files and headings that it names.

use std::path::{Component, Path, PathBuf};

use anyhow::{Context, Result};

use super::Violation;
use crate::command::{output, program};
use crate::workspace;

/// Bytes of a document. Published results are tables and may be longer.
const BYTES_MAX: usize = 25_000;
/// Folders whose name begins a path of the workspace.
const FOLDERS: [&str; 8] = ["crates/", "bench/", "docs/", "xtask/", "live-tests/", "fuzz/", "integrations/", "man/"];

/// A document.
#[derive(Debug)]
pub struct Document {
    /// Relative to the root of the workspace.
    pub path: String,
    pub text: String,
}

/// The Markdown files of the repository.
pub fn all() -> Result<Vec<Document>> {
    let names = output(program("git").args(["ls-files", "*.md"]).current_dir(workspace::root()))?;
    let read = |path: &str| {
        let text =
            std::fs::read_to_string(workspace::root().join(path)).with_context(|| format!("cannot read {path}"))?;
        Ok(Document { path: path.to_owned(), text })
    };
    names.lines().filter(|path| workspace::root().join(path).exists()).map(read).collect()
}

/// A long document, and names of files and headings that do not exist.
pub fn in_document(document: &Document) -> Vec<Violation> {
    let mut found = Vec::new();
    let bytes = document.text.len();
    if bytes > BYTES_MAX && !document.path.starts_with("docs/results/") && document.path != "CHANGELOG.md" {
        found.push(Violation::of_file(&document.path, format!("{bytes} bytes; at most {BYTES_MAX}")));
    }
    for (number, line) in prose(&document.text) {
        let broken = links(line).into_iter().filter(|link| !leads_somewhere(document, link));
        let history = document.path == "CHANGELOG.md";
        let missing = quoted(line).filter(|path| !history && !exists(path));
        let messages = broken.map(|link| format!("broken link: {link}"));
        found.extend(messages.chain(missing.map(|path| format!("no such path: {path}"))).map(|message| Violation {
            path: document.path.clone(),
            line: Some(number),
            message,
        }));
    }
    found
}

/// Lines outside of code blocks, with their numbers from 1.
pub fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut in_code = false;
    (1..).zip(text.lines()).filter(move |(_, line)| {
        let fence = line.trim_start().starts_with("```");
        in_code ^= fence;
        !in_code && !fence
    })
}

/// Targets of `[text](target)` that are no addresses.
fn links(line: &str) -> Vec<&str> {
    let targets =
        line.match_indices("](").filter_map(|(at, _)| line[at + 2..].split_once(')').map(|(target, _)| target));
    targets.filter(|target| !target.contains("://") && !target.starts_with("mailto:")).collect()
}

/// Paths of the workspace in backquotes.
fn quoted(line: &str) -> impl Iterator<Item = &str> {
    let words = line.split('`').skip(1).step_by(2);
    words.filter(|word| FOLDERS.iter().any(|folder| word.starts_with(folder)) && !word.contains([' ', '$', '<', '…']))
}

/// Whether there is such a file; `*` stands for any part of a name, `{a,b}` for each.
fn exists(path: &str) -> bool {
    if let Some((before, rest)) = path.split_once('{')
        && let Some((choices, after)) = rest.split_once('}')
    {
        return choices.split(',').all(|choice| exists(&format!("{before}{choice}{after}")));
    }
    let path = path.trim_end_matches('/').split([':', '#']).next().unwrap_or_default();
    let Some((before, after)) = path.split_once('*') else { return workspace::root().join(path).exists() };
    let (folder, start) = before.rsplit_once('/').unwrap_or(("", before));
    let Ok(entries) = std::fs::read_dir(workspace::root().join(folder)) else { return false };
    let names = entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
    let (end, below) = after.split_once('/').unwrap_or((after, ""));
    let fits =
        |name: &String| name.starts_with(start) && end.split('*').next_back().is_some_and(|end| name.ends_with(end));
    names.into_iter().filter(fits).any(|name| below.is_empty() || exists(&format!("{folder}/{name}/{below}")))
}

fn leads_somewhere(document: &Document, link: &str) -> bool {
    let (file, heading) = link.split_once('#').map_or((link, None), |(file, heading)| (file, Some(heading)));
    let folder = Path::new(&document.path).parent().unwrap_or(Path::new(""));
    let file = if file.is_empty() { PathBuf::from(&document.path) } else { flat(&folder.join(file)) };
    let full = workspace::root().join(&file);
    let Some(heading) = heading.filter(|_| file.extension().is_some_and(|ending| ending == "md")) else {
        return full.exists();
    };
    let text = if link.starts_with('#') { Ok(document.text.clone()) } else { std::fs::read_to_string(full) };
    text.is_ok_and(|text| {
        prose(&text).any(|(_, line)| line.starts_with('#') && anchor(line.trim_start_matches('#').trim()) == heading)
    })
}

/// `a/b/../c` is `a/c`.
fn flat(path: &Path) -> PathBuf {
    let mut flat = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => drop(flat.pop()),
            Component::CurDir => (),
            other => flat.push(other),
        }
    }
    flat
}

/// The anchor of a heading, as Markdown's hosts make it.
fn anchor(heading: &str) -> String {
    let kept = heading.to_lowercase().chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c)).collect::<String>();
    kept.replace(' ', "-")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(path: &str, text: &str) -> Vec<String> {
        let document = Document { path: path.to_owned(), text: text.to_owned() };
        in_document(&document).into_iter().map(|violation| violation.to_string()).collect()
    }

    #[test]
    fn a_long_document_is_found_and_a_long_result_is_none() {
        let long = "a\n".repeat(13_000);
        assert_eq!(messages("docs/a.md", &long), ["docs/a.md: 26000 bytes; at most 25000"]);
        assert_eq!(messages("docs/results/a/b.md", &long), [""; 0]);
    }

    #[test]
    fn names_of_nothing_are_found_outside_of_code() {
        let text =
            "`xtask/src/main.rs` `xtask/src/*.rs` `xtask/{src,Cargo.toml}`\n```\n`xtask/none`\n```\n`xtask/none.rs`";
        assert_eq!(messages("README.md", text), ["README.md:5: no such path: xtask/none.rs"]);
        assert_eq!(messages("README.md", "`xtask/{src,none}` `bench/*.none` `crates/*/none.md`").len(), 3);
        assert_eq!(messages("README.md", "`crates/*/README.md` `crates/*/src/lib.rs`"), [""; 0]);
    }

    #[test]
    fn links_lead_to_files_and_headings() {
        let good = "[a](CONTRIBUTING.md) [b](CONTRIBUTING.md#build-and-test) [c](https://a.b/c) [d](#here)\n# Here";
        assert_eq!(messages("README.md", good), [""; 0]);
        assert_eq!(messages("docs/a.md", "[a](../README.md) [b](guide/attach.md)"), [""; 0]);
        let bad = messages("docs/a.md", "[a](README.md) [b](../CONTRIBUTING.md#none)");
        assert_eq!(bad, ["docs/a.md:1: broken link: README.md", "docs/a.md:1: broken link: ../CONTRIBUTING.md#none"]);
    }
}
