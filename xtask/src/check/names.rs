//! File, folder and module names that say nothing of their contents.

use super::Violation;
use super::source::Source;

const FORBIDDEN: &[&str] = &["common", "util", "utils", "helper", "helpers", "misc", "core", "types"];

/// Folders and files of such names, and modules inside a file.
pub fn in_source(source: &Source) -> Vec<Violation> {
    let rule = |name: &str| format!("{name}: name it by its contents, not common, utils, helpers, misc, core or types");
    let parts = source.path.split('/').map(|part| part.split('.').next().unwrap_or(part));
    let mut found: Vec<Violation> = parts
        .filter(|part| FORBIDDEN.contains(part))
        .map(|part| Violation::of_file(&source.path, rule(part)))
        .collect();
    for (number, line) in source.lines() {
        let mut words = line.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty());
        while let Some(word) = words.next() {
            if word == "mod"
                && let Some(name) = words.next()
                && FORBIDDEN.contains(&name)
            {
                found.push(Violation::at(source, number, rule(name)));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_a_folder_and_a_module_are_found() {
        assert_eq!(in_source(&Source::new("crates/linux/src/utils.rs", "")).len(), 1);
        assert_eq!(in_source(&Source::new("crates/linux/src/helpers/a.rs", "")).len(), 1);
        assert_eq!(in_source(&Source::new("crates/core/src/lib.rs", "")).len(), 1);
        let found = in_source(&Source::new("crates/linux/src/a.rs", "fn f() {}\npub(crate) mod common {}"));
        assert_eq!(found[0].line, Some(2));
    }

    #[test]
    fn other_names_pass() {
        assert_eq!(in_source(&Source::new("crates/linux/src/common_pages.rs", "mod corelation; use core::fmt;")), []);
    }
}
