//! Indirect constructions: counted, and refused at the beginning of a comment or heading.

use std::collections::BTreeMap;

use super::Violation;
use super::documents::{Document, prose};
use super::source::Source;

/// Beginnings that name a pronoun instead of the thing.
const BEGINNINGS: [&str; 8] = ["What", "Who", "Whoever", "Those", "So many", "So much", "So long", "Of which"];
/// Indirect constructions, in lower case.
const INDIRECT: [&[&str]; 16] = [
    &["what"],
    &["who"],
    &["whoever"],
    &["whatever"],
    &["those", "who"],
    &["those", "that"],
    &["those", "of"],
    &["so", "many"],
    &["so", "much"],
    &["so", "long"],
    &["so", "far"],
    &["so", "often"],
    &["of", "which"],
    &["for", "whom"],
    &["by", "which"],
    &["in", "which"],
];
/// Constructions per 100 words of documents and of the heads of a crate's files.
const HEADS_MAX: f64 = 0.5;
/// Constructions per 100 words of all comments of a crate.
const COMMENTS_MAX: f64 = 1.0;

/// Words, and indirect constructions among them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Count {
    words: usize,
    found: usize,
}

impl Count {
    fn add(&mut self, text: &str) {
        let words: Vec<String> = words(text).collect();
        self.words += words.len();
        let starts = |at: usize, phrase: &&[&str]| {
            words[at..].len() >= phrase.len() && words[at..].iter().zip(phrase.iter()).all(|(a, b)| a == b)
        };
        self.found += (0..words.len()).filter(|at| INDIRECT.iter().any(|phrase| starts(*at, phrase))).count();
    }

    fn per_100(self) -> f64 {
        // A float holds the number of words of any text exactly.
        if self.words == 0 { 0.0 } else { 100.0 * self.found as f64 / self.words as f64 }
    }
}

/// Words in lower case, without code in backquotes.
fn words(text: &str) -> impl Iterator<Item = String> {
    let prose: String = text.split('`').step_by(2).flat_map(|part| [part, " "]).collect();
    let words: Vec<String> = prose
        .split(|c: char| !c.is_ascii_alphabetic() && c != '\'' && c != '-')
        .filter(|word| word.starts_with(|c: char| c.is_ascii_alphabetic()))
        .map(str::to_lowercase)
        .collect();
    words.into_iter()
}

/// The text of a comment of its own on this line, without its sign.
fn comment(line: &str) -> Option<&str> {
    let line = line.trim_start();
    ["//!", "///", "//", "/*", "* "].iter().find_map(|sign| line.strip_prefix(sign)).map(str::trim)
}

fn begins_with_a_pronoun(text: &str) -> Option<&'static str> {
    BEGINNINGS.into_iter().find(|word| {
        text.strip_prefix(word).is_some_and(|rest| rest.starts_with([' ', ',', '.', '\'']) || rest.is_empty())
    })
}

/// Comments and headings that begin with a pronoun. A line continues the comment before it, so only first lines count.
pub fn beginnings(sources: &[Source], documents: &[Document]) -> Vec<Violation> {
    let mut found = Vec::new();
    let message = |word: &str| format!("begins with \"{word}\": begin with the noun or the verb of the thing");
    for source in sources {
        let mut before = None;
        for (number, line) in (1..).zip(source.text.lines()) {
            let text = comment(line);
            let is_first = before.is_none_or(|line: &str| line.is_empty() || line.starts_with("# "));
            if let Some(word) = text.filter(|_| is_first).and_then(begins_with_a_pronoun) {
                found.push(Violation::at(source, number, message(word)));
            }
            before = text;
        }
    }
    for document in documents {
        let headings = prose(&document.text).filter(|(_, line)| line.starts_with('#'));
        for (number, line) in headings {
            if let Some(word) = begins_with_a_pronoun(line.trim_start_matches('#').trim()) {
                found.push(Violation { path: document.path.clone(), line: Some(number), message: message(word) });
            }
        }
    }
    found
}

/// Per crate: the heads of its files, and all its comments.
pub fn of_crates(sources: &[Source]) -> BTreeMap<String, (Count, Count)> {
    let mut crates = BTreeMap::<String, (Count, Count)>::new();
    for source in sources {
        let (heads, comments) = crates.entry(source.package().0.to_owned()).or_default();
        let lines: Vec<&str> = source.text.lines().filter_map(comment).collect();
        comments.add(&lines.join("\n"));
        let head = source.text.lines().take_while(|line| line.starts_with("//!")).filter_map(comment);
        heads.add(&head.collect::<Vec<_>>().join("\n"));
    }
    crates
}

/// One document.
pub fn of_document(document: &Document) -> Count {
    let mut count = Count::default();
    count.add(&prose(&document.text).flat_map(|(_, line)| [line, "\n"]).collect::<String>());
    count
}

/// Crates and documents beyond the targets.
pub fn too_indirect(sources: &[Source], documents: &[Document]) -> Vec<Violation> {
    let mut found = Vec::new();
    let mut judge = |path: &str, part: &str, count: Count, most: f64| {
        if count.per_100() > most {
            let message = format!(
                "{part}: {:.2} indirect constructions per 100 words, at most {most}: `cargo xtask language` counts",
                count.per_100()
            );
            found.push(Violation::of_file(path, message));
        }
    };
    for (package, (heads, comments)) in of_crates(sources) {
        judge(&package, "heads of files", heads, HEADS_MAX);
        judge(&package, "comments", comments, COMMENTS_MAX);
    }
    for document in documents {
        judge(&document.path, "text", of_document(document), HEADS_MAX);
    }
    found
}

/// The counts as a table, for people.
pub fn table(sources: &[Source], documents: &[Document]) -> String {
    let mut table = String::from("indirect constructions per 100 words\n");
    for (package, (heads, comments)) in of_crates(sources) {
        table += &format!("{package:28} heads {:5.2}   comments {:5.2}\n", heads.per_100(), comments.per_100());
    }
    for document in documents {
        table += &format!("{:40} {:5.2}\n", document.path, of_document(document).per_100());
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    fn document(text: &str) -> Document {
        Document { path: "a.md".to_owned(), text: text.to_owned() }
    }

    #[test]
    fn constructions_are_counted_outside_of_code() {
        let count =
            of_document(&document("What is done, so long as those who ask wait.\n```\nwhat\n```\nA `what` word.\n"));
        assert_eq!(count, Count { words: 12, found: 4 });
        assert_eq!(of_document(&document("A page is read. Somewhat whole.")).found, 0);
    }

    #[test]
    fn a_pronoun_at_the_beginning_is_found_and_a_continued_line_is_none() {
        let text = "//! What it is.\n//! What continues.\n\n/// Whatever works.\nfn a() {}\n// Those who ask\n//\n// Who else\nlet what = 1;\n\
                    /// Reads.\n///\n/// # Errors\n/// Those of read(2).\n";
        let found =
            beginnings(&[Source::new("crates/linux/src/a.rs", text)], &[document("# What about it\n## Whole\n")]);
        let lines: Vec<_> = found.iter().filter_map(|violation| violation.line).collect();
        assert_eq!(lines, [1, 6, 8, 13, 1]);
    }

    #[test]
    fn crates_and_documents_beyond_the_targets_are_named() {
        let bad = Source::new("crates/a/src/lib.rs", "//! A file.\n\n// Whoever has what it takes.\n");
        let found = too_indirect(&[bad], &[document("Who waits.")]);
        let paths: Vec<_> = found.iter().map(|violation| violation.path.as_str()).collect();
        assert_eq!(paths, ["crates/a", "a.md"]);
    }
}
