//! Source files as the rules see them: code without comments and without the insides of strings.
//!
//! This is a scanner for words, not a parser: enough to find a path or a keyword outside of comments and strings, also
//! inside macros, and to tell the lines of unit tests from the rest.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::workspace;

/// One source file.
#[derive(Debug)]
pub struct Source {
    /// Relative to the root of the workspace, with `/`.
    pub path: String,
    /// All of it.
    pub text: String,
    /// The code of each line: comments, strings and character literals are blank.
    pub code: Vec<String>,
    /// Per line: part of an item under `#[cfg(test)]`, or of a file of tests.
    pub is_test: Vec<bool>,
}

impl Source {
    /// Scans `text`.
    pub fn new(path: &str, text: &str) -> Source {
        let code: Vec<String> = blank(text).lines().map(str::to_owned).collect();
        let is_test = if is_test_file(path) { vec![true; code.len()] } else { test_lines(&code) };
        Source { path: path.to_owned(), text: text.to_owned(), code, is_test }
    }

    /// The crate's folder (`crates/linux`, `crates/llc/emulator`, `bench`), and the path below it.
    pub fn package(&self) -> (&str, &str) {
        const WITHIN: [&str; 5] = ["src/", "tests/", "examples/", "bpf/", "include/"];
        let mut ends = self.path.match_indices('/').map(|(end, _)| end);
        let is_folder = |end: &usize| {
            let below = &self.path[end + 1..];
            self.path[..*end] != *"crates"
                && (WITHIN.iter().any(|part| below.starts_with(part)) || !below.contains('/'))
        };
        let end = if self.path.starts_with("crates/") { ends.find(is_folder) } else { ends.next() };
        end.map_or(("", &self.path), |end| (&self.path[..end], &self.path[end + 1..]))
    }

    /// Each line's number, from 1, with its code.
    pub fn lines(&self) -> impl Iterator<Item = (usize, &str)> {
        (1..).zip(self.code.iter().map(String::as_str))
    }

    /// The code with the lines of tests blank.
    pub fn code_without_tests(&self) -> String {
        let lines = self.code.iter().zip(&self.is_test).map(|(line, is_test)| if *is_test { "" } else { line });
        lines.collect::<Vec<_>>().join("\n")
    }

    /// The lines that are no tests.
    pub fn lines_without_tests(&self) -> impl Iterator<Item = (usize, &str)> {
        self.lines().zip(&self.is_test).filter(|(_, is_test)| !**is_test).map(|(line, _)| line)
    }
}

/// All Rust and C files of the workspace.
pub fn all() -> Result<Vec<Source>> {
    let mut found = Vec::new();
    for folder in ["crates", "bench", "live-tests", "xtask", "fuzz"] {
        collect(&workspace::root().join(folder), &mut found)?;
    }
    found.sort();
    found.iter().map(|path| read(path)).collect()
}

fn collect(folder: &Path, found: &mut Vec<PathBuf>) -> Result<()> {
    for entry in std::fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir() {
            if name != "target" && !name.starts_with('.') {
                collect(&path, found)?;
            }
        } else if [".rs", ".c", ".h"].iter().any(|ending| name.ends_with(ending)) {
            found.push(path);
        }
    }
    Ok(())
}

fn read(path: &Path) -> Result<Source> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    Ok(Source::new(&workspace::shown(path), &text))
}

fn is_test_file(path: &str) -> bool {
    path.ends_with("/tests.rs") || path.contains("/tests/")
}

/// The positions at which `word` stands as a whole word.
pub fn words<'a>(line: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    line.match_indices(word).map(|(at, _)| at).filter(move |&at| {
        let before = line[..at].chars().next_back();
        let after = line[at + word.len()..].chars().next();
        !before.is_some_and(is_word) && !after.is_some_and(is_word)
    })
}

/// The number, from 1, of the line at `at` in `code`.
pub fn line_of(code: &str, at: usize) -> usize {
    code[..at].matches('\n').count() + 1
}

/// The text inside of the brackets with which `text` begins, and the text behind them. `None` where no bracket begins,
/// or none ends.
pub fn inside_brackets(text: &str, open: char, close: char) -> Option<(&str, &str)> {
    let inside = text.strip_prefix(open)?;
    let mut depth = 1_usize;
    for (at, c) in inside.char_indices() {
        // The end of an arrow is no bracket.
        if c == close && !inside[..at].ends_with(['-', '=']) {
            depth -= 1;
        } else if c == open {
            depth += 1;
        }
        if depth == 0 {
            return Some((&inside[..at], &inside[at + close.len_utf8()..]));
        }
    }
    None
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// The text with comments and the insides of literals replaced by spaces; line ends stay.
fn blank(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    let mut out = String::with_capacity(text.len());
    let mut at = 0;
    while at < chars.len() {
        let end = skipped(&chars, at);
        if end > at {
            out.extend(chars[at..end].iter().map(|&c| if c == '\n' { c } else { ' ' }));
            at = end;
        } else {
            out.push(chars[at]);
            at += 1;
        }
    }
    out
}

/// Where the comment or literal that begins at `at` ends; `at` itself when none does.
fn skipped(chars: &[char], at: usize) -> usize {
    let next = |n: usize| chars.get(at + n).copied().unwrap_or('\0');
    match (chars[at], next(1)) {
        ('/', '/') => find(chars, at, |rest| rest[0] == '\n'),
        ('/', '*') => end_of_block_comment(chars, at),
        ('"', _) => end_of_string(chars, at),
        ('r', '"' | '#') if at == 0 || !is_word(chars[at - 1]) || chars[at - 1] == 'b' => end_of_raw_string(chars, at),
        ('\'', '\\') => find(chars, at + 3, |rest| rest[0] == '\'') + 1,
        ('\'', _) if next(2) == '\'' => at + 3,
        _ => at,
    }
    .min(chars.len())
}

fn find(chars: &[char], from: usize, is_end: impl Fn(&[char]) -> bool) -> usize {
    (from..chars.len()).find(|&at| is_end(&chars[at..])).unwrap_or(chars.len())
}

fn end_of_block_comment(chars: &[char], start: usize) -> usize {
    let mut depth = 0;
    let mut at = start;
    while at < chars.len() {
        match (chars[at], chars.get(at + 1)) {
            ('/', Some('*')) => {
                depth += 1;
                at += 2;
            }
            ('*', Some('/')) => {
                depth -= 1;
                at += 2;
                if depth == 0 {
                    return at;
                }
            }
            _ => at += 1,
        }
    }
    at
}

fn end_of_string(chars: &[char], start: usize) -> usize {
    let mut at = start + 1;
    while at < chars.len() {
        match chars[at] {
            '\\' => at += 2,
            '"' => return at + 1,
            _ => at += 1,
        }
    }
    at
}

fn end_of_raw_string(chars: &[char], start: usize) -> usize {
    let hashes = chars[start + 1..].iter().take_while(|&&c| c == '#').count();
    if chars.get(start + 1 + hashes) != Some(&'"') {
        return start; // r#name, an identifier
    }
    let is_end = |rest: &[char]| rest[0] == '"' && rest.len() > hashes && rest[1..=hashes].iter().all(|&c| c == '#');
    find(chars, start + 2 + hashes, is_end) + 1 + hashes
}

/// Which lines belong to an item under `#[cfg(test)]`: from there to the brace, or the semicolon, that ends the item.
fn test_lines(code: &[String]) -> Vec<bool> {
    let mut is_test = vec![false; code.len()];
    let mut in_item = false;
    let mut depth = 0_usize;
    for (number, line) in code.iter().enumerate() {
        let mut rest = line.as_str();
        if !in_item {
            let Some(start) = rest.find("#[cfg(test)]") else { continue };
            rest = &rest[start + "#[cfg(test)]".len()..];
            (in_item, depth) = (true, 0);
        }
        is_test[number] = true;
        for c in rest.chars() {
            match c {
                '{' => depth += 1,
                '}' => depth = depth.saturating_sub(1),
                _ => (),
            }
            if depth == 0 && (c == '}' || c == ';') {
                in_item = false;
                break;
            }
        }
    }
    is_test
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(text: &str) -> String {
        Source::new("crates/linux/src/a.rs", text).code.join("\n")
    }

    #[test]
    fn comments_and_strings_are_blank_and_code_stays() {
        assert_eq!(code("a /* b /* c */ d */ e // f"), format!("a {} e {}", " ".repeat(17), " ".repeat(4)));
        assert_eq!(code(r#"f("std::fs \" x", 'c', '\'')"#).replace(' ', ""), "f(,,)");
        assert_eq!(code("r#\"un\"safe\"# + r\"a\" + br\"b\"").replace(' ', ""), "++b");
        assert_eq!(code("fn f<'a>(x: &'a str) { r#type }"), "fn f<'a>(x: &'a str) { r#type }");
    }

    #[test]
    fn a_string_over_two_lines_keeps_the_numbers_of_lines() {
        let source = Source::new("a.rs", "\"a\nb\"\nunsafe");
        assert_eq!(source.lines().nth(2), Some((3, "unsafe")));
    }

    #[test]
    fn an_unfinished_literal_ends_with_the_file() {
        for text in ["\"abc", "/* abc", "r#\"abc", "'\\", "\"\\"] {
            assert_eq!(code(text).trim(), "", "{text}");
        }
    }

    #[test]
    fn lines_of_unit_tests_are_told_from_the_rest() {
        let text = "fn a() {}\n#[cfg(test)]\nmod tests {\n    fn b() { if x {} }\n}\nfn c() {}\n#[cfg(test)]\nmod more;\nfn d() {}";
        let source = Source::new("crates/linux/src/a.rs", text);
        let lines: Vec<usize> = source.lines_without_tests().map(|(line, _)| line).collect();
        assert_eq!(lines, [1, 6, 9]);
        assert_eq!(Source::new("crates/linux/src/a/tests.rs", text).lines_without_tests().count(), 0);
    }

    #[test]
    fn brackets_end_with_their_own_end() {
        assert_eq!(inside_brackets("(a(b)c)d", '(', ')'), Some(("a(b)c", "d")));
        assert_eq!(inside_brackets("<F<fn() -> A>> x", '<', '>'), Some(("F<fn() -> A>", " x")));
        for text in ["a", "", "(a(b)"] {
            assert_eq!(inside_brackets(text, '(', ')'), None, "{text}");
        }
    }

    #[test]
    fn words_are_whole() {
        assert_eq!(words("unsafe_code unsafe", "unsafe").collect::<Vec<_>>(), [12]);
        assert_eq!(words("brand rand::x", "rand").collect::<Vec<_>>(), [6]);
    }

    #[test]
    fn a_file_belongs_to_the_nearest_crate() {
        for (folder, below) in [
            ("crates/linux", "src/a.rs"),
            ("crates/llc/emulator", "src/rules/a.rs"),
            ("crates/hugepages/contract", "src/lib.rs"),
            ("crates/farmem/agent", "build.rs"),
            ("crates/masu", "build.rs"),
            ("bench", "src/a.rs"),
        ] {
            assert_eq!(Source::new(&format!("{folder}/{below}"), "").package(), (folder, below));
        }
    }
}
