//! Documentation of public items: types, traits, functions. Fields and variants need none where name and type say all.

use super::Violation;
use super::source::Source;

/// The name of an ABI is blank in the code without strings.
const QUALIFIERS: [&str; 4] = ["const ", "async ", "unsafe ", "extern "];
const ITEMS: [&str; 6] = ["fn ", "struct ", "enum ", "trait ", "type ", "union "];

/// The command, and libraries whose interface is C: no crate uses their items.
const PROGRAMS: [&str; 4] =
    ["crates/masu", "crates/hugepages/preload", "crates/hugepages/libmasu", "crates/farmem/agent"];

/// Public items of crates without a doc comment.
pub fn in_source(source: &Source) -> Vec<Violation> {
    let (package, _) = source.package();
    if !package.starts_with("crates/") || PROGRAMS.contains(&package) || !source.path.ends_with(".rs") {
        return Vec::new();
    }
    let text: Vec<&str> = source.text.lines().collect();
    let is_undocumented = |number: usize| {
        let mut within = false;
        // Attributes stand between the comment and the item, on one line or more.
        let mut above = text[..number - 1].iter().rev().map(|line| line.trim()).skip_while(|line| {
            within |= line.ends_with(")]");
            let is_attribute = within || line.starts_with("#[");
            within &= !line.starts_with("#[");
            is_attribute
        });
        !above.next().is_some_and(|line| line.starts_with("///") || line.starts_with("#[doc"))
    };
    let items = source.lines_without_tests().filter(|(_, line)| is_public_item(line.trim_start()));
    let items = items.filter(|(number, _)| is_undocumented(*number));
    items.map(|(number, _)| Violation::at(source, number, "a public item without a doc comment".to_owned())).collect()
}

fn is_public_item(line: &str) -> bool {
    let Some(mut rest) = line.strip_prefix("pub ") else { return false };
    while let Some(shorter) = QUALIFIERS.iter().find_map(|word| rest.strip_prefix(word)) {
        rest = shorter.trim_start();
    }
    ITEMS.iter().any(|item| rest.starts_with(item))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn undocumented_items_are_found_and_fields_are_none() {
        let text = "/// A.\npub struct A {\n    pub b: u8,\n}\npub fn c() {}\n#[derive(Debug)]\npub enum D {}\n/// E.\n#[inline]\n#[expect(\n    a\n)]\n\
            pub const fn e() {}\npub extern \"C\" fn h() {}\npub(crate) fn f() {}\npub use a::B;\n#[cfg(test)]\nmod tests {\n    pub fn g() {}\n}\n";
        let found = in_source(&Source::new("crates/linux/src/a.rs", text));
        assert_eq!(found.iter().filter_map(|violation| violation.line).collect::<Vec<_>>(), [5, 7, 14]);
    }
}
