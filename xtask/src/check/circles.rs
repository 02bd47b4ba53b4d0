//! Circles of modules: two top-level modules of a crate that use each other, directly or through others.
//!
//! A module is a file with its folder. Folders that only group (`proc` of `linux`) are left out: their modules count as
//! top-level ones. A path counts by the module that it names: `crate::a::f`, `super::b` in a file beside `b`. Paths of
//! a crate's root count for none.

use std::collections::{BTreeMap, BTreeSet};

use super::Violation;
use super::source::Source;

/// Modules of one crate, with the modules that each uses.
type Graph = BTreeMap<String, BTreeSet<String>>;

/// Circles per crate, each as its modules in order.
pub fn circles(sources: &[Source]) -> BTreeMap<String, Vec<Vec<String>>> {
    let mut crates: BTreeMap<String, Vec<&Source>> = BTreeMap::new();
    for source in sources {
        let (package, below) = source.package();
        if below.starts_with("src/") && source.path.ends_with(".rs") {
            crates.entry(package.to_owned()).or_default().push(source);
        }
    }
    let found = crates.into_iter().map(|(package, files)| (package, strongly_connected(&graph(&files))));
    found.filter(|(_, circles)| !circles.is_empty()).collect()
}

/// The circles as violations.
pub fn in_sources(sources: &[Source]) -> Vec<Violation> {
    let of_crate = |(package, circles): (String, Vec<Vec<String>>)| {
        let message = |circle: Vec<String>| format!("modules in a circle: {}", circle.join(", "));
        circles.into_iter().map(move |circle| Violation::of_file(&package, message(circle)))
    };
    circles(sources).into_iter().flat_map(of_crate).collect()
}

/// `proc/maps/tests.rs` is `["proc", "maps", "tests"]`.
fn module_path(source: &Source) -> Vec<&str> {
    let (_, below) = source.package();
    let path = below.trim_start_matches("src/").trim_end_matches(".rs");
    path.split('/').filter(|part| !["lib", "main", "mod"].contains(part)).collect()
}

/// Folders whose file declares modules and nothing else.
fn groups(files: &[&Source]) -> BTreeSet<String> {
    let only_modules = |source: &&&Source| {
        let mut lines = source.lines_without_tests().map(|(_, line)| line.trim()).filter(|line| !line.is_empty());
        let path = module_path(source);
        path.len() == 1
            && source.text.contains("mod ")
            && lines.all(|line| line.starts_with("pub mod ") || line.starts_with("mod ") || line.starts_with("#["))
    };
    files.iter().filter(only_modules).filter_map(|source| Some((*module_path(source).first()?).to_owned())).collect()
}

fn graph(files: &[&Source]) -> Graph {
    let groups = groups(files);
    // A module of a group has its group's name before its own.
    let within = |path: &[&str]| match path {
        [group, module, ..] if groups.contains(*group) => Some(format!("{group}::{module}")),
        [group] if groups.contains(*group) => None,
        [module, ..] => Some((*module).to_owned()),
        [] => None,
    };
    let modules: BTreeSet<String> = files.iter().filter_map(|source| within(&module_path(source))).collect();
    // A root that exports the modules of its groups names them without the group.
    let top = |path: &[&str]| {
        let module = within(path)?;
        let exported = || groups.iter().map(|group| format!("{group}::{module}")).find(|name| modules.contains(name));
        if modules.contains(&module) { Some(module) } else { exported() }
    };
    let mut graph = Graph::new();
    for source in files {
        let path = module_path(source);
        let Some(own) = within(&path) else { continue };
        let uses = graph.entry(own.clone()).or_default();
        let code: String = source.lines_without_tests().flat_map(|(_, line)| [line, "\n"]).collect();
        for named in paths_named(&code, &path) {
            let named: Vec<&str> = named.iter().map(String::as_str).collect();
            uses.extend(top(&named).filter(|module| *module != own));
        }
    }
    graph
}

/// Module paths that `crate::` and `super::` name in the code of the module at `own`, groups in braces included.
fn paths_named(code: &str, own: &[&str]) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    for (keyword, base) in [("crate::", &own[..0]), ("super::", &own[..own.len().saturating_sub(1)])] {
        for (at, _) in code.match_indices(keyword) {
            let before = code[..at].chars().next_back();
            if before.is_some_and(|c| c.is_alphanumeric() || c == '_' || c == ':') {
                continue;
            }
            let mut rest = &code[at + keyword.len()..];
            let mut base = base.to_vec();
            while let Some(after) = rest.strip_prefix("super::") {
                (rest, _) = (after, base.pop());
            }
            found.extend(names(rest).into_iter().map(|name| {
                let base = base.iter().map(|part| (*part).to_owned());
                base.chain(name).collect()
            }));
        }
    }
    found
}

/// Up to two parts of each path at the start of `text`: `a::{b, c::d}` is `a::b` and `a::c`.
fn names(text: &str) -> Vec<Vec<String>> {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    if let Some(group) = text.strip_prefix('{') {
        let mut depth = 1;
        let end = group.find(|c| {
            depth += i32::from(c == '{') - i32::from(c == '}');
            depth == 0
        });
        let group = &group[..end.unwrap_or(group.len())];
        let mut depth = 0;
        let parts = group.split(|c| {
            depth += i32::from(c == '{') - i32::from(c == '}');
            c == ',' && depth == 0
        });
        return parts.flat_map(|part| names(part.trim())).collect();
    }
    let end = text.find(|c| !is_word(c)).unwrap_or(text.len());
    let (first, rest) = text.split_at(end);
    if first.is_empty() {
        return Vec::new();
    }
    let below = rest.strip_prefix("::").map(names_below).unwrap_or_default();
    if below.is_empty() {
        return vec![vec![first.to_owned()]];
    }
    below.into_iter().map(|name| vec![first.to_owned(), name]).collect()
}

fn names_below(text: &str) -> Vec<String> {
    names(text).into_iter().filter_map(|path| path.into_iter().next()).collect()
}

/// Modules that reach each other, as sorted lists.
fn strongly_connected(graph: &Graph) -> Vec<Vec<String>> {
    let reached = |from: &String| {
        let mut seen = BTreeSet::new();
        let mut open = vec![from];
        while let Some(module) = open.pop() {
            for next in graph.get(module).into_iter().flatten() {
                if seen.insert(next) {
                    open.push(next);
                }
            }
        }
        seen
    };
    let reach: BTreeMap<&String, BTreeSet<&String>> = graph.keys().map(|module| (module, reached(module))).collect();
    let mut done = BTreeSet::new();
    let mut circles = Vec::new();
    for (module, reached) in &reach {
        if done.contains(module) || !reached.contains(*module) {
            continue;
        }
        let circle: Vec<String> = reached
            .iter()
            .filter(|other| reach.get(**other).is_some_and(|back| back.contains(*module)))
            .map(|other| (*other).clone())
            .collect();
        done.extend(reached.iter().filter(|other| circle.contains(other)).copied());
        circles.push(circle);
    }
    circles
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[(&str, &str)]) -> Vec<Vec<String>> {
        let sources: Vec<Source> =
            files.iter().map(|(name, text)| Source::new(&format!("crates/a/src/{name}.rs"), text)).collect();
        circles(&sources).into_values().flatten().collect()
    }

    #[test]
    fn modules_that_use_each_other_are_a_circle_and_a_chain_is_none() {
        assert_eq!(found(&[("a", "use crate::b::B;"), ("b", "use crate::c::C;"), ("c", "")]), [[""; 0]; 0]);
        let circle =
            found(&[("a", "use crate::b::B;"), ("b", "fn f() { crate::{c::f, Error} }"), ("c", "use super::a;")]);
        assert_eq!(circle, [["a", "b", "c"]]);
    }

    #[test]
    fn a_folder_belongs_to_its_file_and_a_group_to_nobody() {
        let text = "use crate::b::B;";
        assert_eq!(found(&[("a", ""), ("a/x", text), ("b", "use crate::a::x::X;")]), [["a", "b"]]);
        assert_eq!(found(&[("a", "mod x;\nfn f() {}"), ("a/x", "use super::f;")]), [[""; 0]; 0]);
        let grouped = [("g", "//! Group.\n\npub mod x;\npub mod y;"), ("g/x", "use crate::g::y::Y;"), ("g/y", "")];
        assert_eq!(found(&grouped), [[""; 0]; 0]);
        let grouped = [grouped[0], grouped[1], ("g/y", "use super::x::X;")];
        assert_eq!(found(&grouped), [["g::x", "g::y"]]);
        let exported = [
            ("lib", "pub use g::{x, y};"),
            ("g", "mod x;\nmod y;"),
            ("g/x", "use crate::y::Y;"),
            ("g/y", "use crate::x::X;"),
        ];
        assert_eq!(found(&exported), [["g::x", "g::y"]]);
    }

    #[test]
    fn tests_and_roots_do_not_count() {
        let text = "#[cfg(test)]\nmod tests {\n    use crate::b::B;\n}\n";
        assert_eq!(found(&[("a", text), ("b", "use crate::a::A;")]), [[""; 0]; 0]);
        assert_eq!(found(&[("lib", "use crate::a::A;"), ("a", "use crate::Error;")]), [[""; 0]; 0]);
    }
}
