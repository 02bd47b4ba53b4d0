//! The table of programs in docs/field.md, written from the runs.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};

use super::entry::Feature;
use super::verdict::{Row, Verdict};

const BEGIN: &str = "<!-- programs: written by `masu-bench field --write docs/field.md` -->";
const END: &str = "<!-- end of programs -->";

/// Replaces the row of one program in the table between the two marks, and keeps the others, in the order of `names`.
///
/// # Errors
/// When the file cannot be read or written, or has no marks.
pub fn write<'a>(path: &Path, row: &Row, names: impl Iterator<Item = &'a str>) -> Result<()> {
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let text = with_row(&text, row, names).with_context(|| format!("{} has no marks of a table", path.display()))?;
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

fn with_row<'a>(text: &str, row: &Row, names: impl Iterator<Item = &'a str>) -> Option<String> {
    let (before, rest) = text.split_once(BEGIN)?;
    let (table, after) = rest.split_once(END)?;
    let named = |line: &str| Some((line.strip_prefix("| ")?.split(" | ").next()?.to_owned(), line.to_owned()));
    let mut lines: HashMap<String, String> = table.lines().filter_map(named).collect();
    if row.missing.is_none() {
        lines.insert(row.name.clone(), line_of(row));
    }
    let headings: Vec<&str> = Feature::ALL.iter().map(|feature| feature.heading()).collect();
    let mut new =
        format!("\n| program | version | {} |\n|---|---|{}\n", headings.join(" | "), "---|".repeat(headings.len()));
    for line in names.filter_map(|name| lines.get(name)) {
        new.push_str(line);
        new.push('\n');
    }
    Some(format!("{before}{BEGIN}\n{new}\n{END}{after}"))
}

fn line_of(row: &Row) -> String {
    let cell = |feature: &Feature| match row.cells.iter().find(|cell| cell.feature == *feature) {
        None => "not run".to_owned(),
        Some(cell) => match cell.verdict {
            Verdict::Equal => "equal".to_owned(),
            Verdict::Refused => "refused".to_owned(),
            Verdict::LeftOut => format!("left out: {}", cell.text.replace('|', "/")),
            Verdict::Failed => format!("**differs**: {}", cell.text.replace('|', "/")),
        },
    };
    let cells: Vec<String> = Feature::ALL.iter().map(cell).collect();
    format!("| {} | {} | {} |", row.name, number(&row.version), cells.join(" | "))
}

/// Number in the line in which a program names its version: from the first digit with a point behind it.
fn number(line: &str) -> &str {
    let is_part = |letter: char| letter.is_ascii_alphanumeric() || ".+-_~".contains(letter);
    let starts = line.char_indices().filter(|(at, letter)| letter.is_ascii_digit() && !line[..*at].ends_with(is_digit));
    let numbers = starts.map(|(at, _)| line[at..].split(|letter| !is_part(letter)).next().unwrap_or_default());
    let mut versions = numbers.filter(|number| number.trim_start_matches(is_digit).starts_with('.'));
    versions.next().unwrap_or(line)
}

fn is_digit(letter: char) -> bool {
    letter.is_ascii_digit()
}

#[cfg(test)]
mod tests {
    use super::super::entry::BATCH;
    use super::super::verdict::Cell;
    use super::*;

    #[test]
    fn a_row_is_replaced_and_the_others_stay_in_order() {
        let text = format!("# Field\n{BEGIN}\n| b | 1 | old |\n| a | 1 | kept |\n| gone | 1 | x |\n{END}\nend\n");
        let mut row = Row::without_runs(&super::super::Entry { name: "b", ..BATCH }, String::new());
        (row.missing, row.version) = (None, "2".to_owned());
        let cell = Cell { feature: Feature::Run, verdict: Verdict::Equal, text: String::new(), seconds: None };
        row.cells.push(cell);
        let new = with_row(&text, &row, ["a", "b", "c"].into_iter()).unwrap();
        let rows: Vec<&str> = new.lines().filter(|line| line.starts_with("| ")).skip(1).collect();
        assert_eq!(rows, ["| a | 1 | kept |", "| b | 2 | equal | not run | not run | not run | not run |"]);
        assert!(new.starts_with("# Field\n") && new.ends_with("\nend\n"));
        assert_eq!(with_row("no marks", &row, ["b"].into_iter()), None);
    }

    /// Texts of all files below `folder` that end in `.rs`.
    fn sources(folder: &Path, texts: &mut String) {
        for entry in fs::read_dir(folder).unwrap().flatten() {
            let path = entry.path();
            if path.is_dir() {
                sources(&path, texts);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                texts.push_str(&fs::read_to_string(&path).unwrap());
            }
        }
    }

    #[test]
    fn each_test_that_the_document_names_exists() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let mut tests = String::new();
        ["live-tests/src/cases", "crates"].iter().for_each(|folder| sources(&root.join(folder), &mut tests));
        let text = fs::read_to_string(root.join("docs/field.md")).unwrap();
        let (situations, programs) = text.split_once("## Programs").unwrap();
        assert!(programs.contains(BEGIN) && programs.contains(END));
        let rows = situations.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| situation"));
        let mut named = 0;
        for row in rows {
            let cell = row.trim_end_matches(" |").rsplit(" | ").next().unwrap();
            for name in cell.split(", ").map(|name| name.trim_matches('`')) {
                assert!(tests.contains(&format!("fn {name}(")), "no test is called {name}");
                named += 1;
            }
        }
        assert!(named >= 30, "{named}");
    }

    #[test]
    fn the_number_of_a_version_is_taken_from_its_line() {
        let lines = [
            ("1.5.3", "1.5.3"),
            ("R version 4.2.2 Patched (2022-11-10 r83330)", "4.2.2"),
            ("openjdk 17.0.15 2025-04-15", "17.0.15"),
            ("go version go1.26.8 linux/amd64", "1.26.8"),
            ("*** Zstandard CLI (64-bit) v1.5.4, by", "1.5.4"),
            ("gcc (Debian 12.2.0-14+deb12u1) 12.2.0", "12.2.0-14+deb12u1"),
            ("jq-1.6", "1.6"),
            ("no number, é", "no number, é"),
        ];
        lines.iter().for_each(|(line, expected)| assert_eq!(number(line), *expected, "{line}"));
    }
}
