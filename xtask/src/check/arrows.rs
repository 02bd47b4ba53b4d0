//! Who may use whom: `quantities` ← `linux` ← `access` ← the features ← `masu`; no feature uses another. `libmasu` and
//! `paging`, which are loaded into programs, use nothing; only `masu` and `hugepages`, which serves programs with a say, use the first, and `remote` and `masu` the second.

use anyhow::{Context, Result};
use serde_json::Value;

use super::Violation;
use super::source::{Source, words};
use crate::command::{cargo, output};

const FEATURES: &[&str] = &["hugepages", "remote", "aging", "llc"];
const RULE: &str = "quantities <- linux <- access <- features (hugepages, remote, aging, llc; never each other) <- masu -> libmasu; remote and libmasu -> paging; hugepages -> libmasu";

/// The crates of the house that `name` may use; `None` for the rooms that may use anything.
fn allowed(name: &str) -> Option<Vec<&'static str>> {
    let below_features = vec!["quantities", "linux", "access"];
    match name {
        "quantities" => Some(Vec::new()),
        "linux" => Some(vec!["quantities"]),
        "access" => Some(vec!["quantities", "linux"]),
        "paging" => Some(Vec::new()),
        "libmasu" => Some(vec!["paging"]),
        "hugepages" => Some([below_features, vec!["libmasu"]].concat()),
        "remote" => Some([below_features, vec!["paging"]].concat()),
        "resctrl-emulator" => Some(vec!["quantities", "linux"]),
        "masu" => Some([below_features, FEATURES.to_vec(), vec!["libmasu", "paging"]].concat()),
        "bench" | "live-tests" | "xtask" | "fuzz" => None,
        // Features, and any crate that is new: it stands with them until a rule says otherwise.
        _ => Some(below_features),
    }
}

fn is_of_the_house(name: &str) -> bool {
    ["quantities", "linux", "access", "masu", "libmasu", "paging", "bench", "live_tests", "xtask"].contains(&name)
        || FEATURES.contains(&name)
}

/// A crate and the crates of the workspace that its manifest names, for tests and build scripts too.
#[derive(Debug)]
pub struct Package {
    name: String,
    manifest: String,
    uses: Vec<String>,
}

/// The packages of this workspace.
pub fn packages() -> Result<Vec<Package>> {
    let json = output(cargo().args(["metadata", "--format-version", "1", "--no-deps", "--offline"]))?;
    parse(&serde_json::from_str(&json).context("cannot understand cargo metadata")?)
}

fn parse(metadata: &Value) -> Result<Vec<Package>> {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let package = |package: &Value| {
        let dependencies = package["dependencies"].as_array()?;
        let own = dependencies.iter().filter(|dependency| dependency["path"].is_string());
        Some(Package {
            name: text(&package["name"])?,
            manifest: crate::workspace::shown(package["manifest_path"].as_str()?.as_ref()),
            uses: own.filter_map(|dependency| text(&dependency["name"])).collect(),
        })
    };
    let packages = metadata["packages"].as_array().context("cargo metadata names no packages")?;
    packages.iter().map(package).collect::<Option<_>>().context("cargo metadata has an unknown form")
}

/// Dependencies against the arrows.
pub fn in_manifests(packages: &[Package]) -> Vec<Violation> {
    let mut found = Vec::new();
    for package in packages {
        let Some(allowed) = allowed(&package.name) else { continue };
        for used in package.uses.iter().filter(|used| !allowed.contains(&used.as_str())) {
            let message = format!("{} may not depend on {used}: {RULE}", package.name);
            found.push(Violation::of_file(&package.manifest, message));
        }
    }
    found
}

/// Paths that name a crate against the arrows, and modules that are taken from elsewhere by path.
pub fn in_source(source: &Source) -> Vec<Violation> {
    let (room, _) = source.room();
    let own = room.strip_prefix("crates/").unwrap_or(room);
    let Some(allowed) = allowed(own) else { return Vec::new() };
    let mut found = Vec::new();
    for (number, line) in source.lines() {
        for name in crates_named(line) {
            let name_in_path = own.replace('-', "_");
            if is_of_the_house(name) && name != name_in_path && !allowed.contains(&name) {
                found.push(Violation::at(source, number, format!("{own} may not use {name}: {RULE}")));
            }
        }
        let elsewhere = source.text.lines().nth(number - 1).is_some_and(|text| text.contains("../"));
        if line.contains("#[path") && elsewhere {
            found.push(Violation::at(source, number, "a module is not taken from elsewhere by #[path]".to_owned()));
        }
    }
    found
}

/// The first word of every path on the line (`linux` in `linux::Pid`), and what `use` and `extern crate` name.
fn crates_named(line: &str) -> Vec<&str> {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let mut names = Vec::new();
    for (at, _) in line.match_indices("::") {
        let before = line[..at].trim_end();
        let name = &before[before.rfind(|c| !is_word(c)).map_or(0, |end| end + 1)..];
        let ahead = &before[..before.len() - name.len()];
        if !ahead.ends_with("::") && !ahead.ends_with('.') {
            names.push(name);
        }
    }
    for keyword in ["use", "crate"] {
        for at in words(line, keyword) {
            let rest = line[at + keyword.len()..].trim_start();
            let name = &rest[..rest.find(|c| !is_word(c)).unwrap_or(rest.len())];
            if !rest[name.len()..].starts_with("::") {
                names.push(name);
            }
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn messages(path: &str, text: &str) -> Vec<String> {
        in_source(&Source::new(path, text)).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_dependency_against_the_arrows_is_found_also_among_those_for_tests() {
        let metadata = json!({ "packages": [
            { "name": "hugepages", "manifest_path": "/x/crates/hugepages/Cargo.toml", "dependencies": [
                { "name": "access", "path": "/x/crates/access", "kind": null },
                { "name": "serde", "kind": null },
                { "name": "remote", "path": "/x/crates/remote", "kind": "dev" } ] },
            { "name": "linux", "manifest_path": "/x/crates/linux/Cargo.toml", "dependencies": [
                { "name": "access", "path": "/x/crates/access", "kind": null } ] },
            { "name": "bench", "manifest_path": "/x/bench/Cargo.toml", "dependencies": [
                { "name": "masu", "path": "/x/crates/masu", "kind": null } ] },
        ]});
        let found = in_manifests(&parse(&metadata).unwrap());
        let messages: Vec<&str> = found.iter().map(|violation| violation.message.as_str()).collect();
        assert_eq!(messages.len(), 2, "{messages:?}");
        assert!(messages[0].starts_with("hugepages may not depend on remote: quantities <- linux"));
        assert!(messages[1].starts_with("linux may not depend on access"));
    }

    #[test]
    fn metadata_of_another_form_is_an_error_and_not_an_empty_list() {
        assert!(parse(&json!({})).is_err());
        assert!(parse(&json!({ "packages": [{ "name": 1 }] })).is_err());
    }

    #[test]
    fn an_import_against_the_arrows_is_found_with_its_line() {
        let found = messages("crates/linux/src/a.rs", "use std::fmt;\nuse access::{Rung, Source};\n");
        assert_eq!(found.len(), 1);
        assert!(found[0].starts_with("crates/linux/src/a.rs:2: linux may not use access: "), "{}", found[0]);
        assert_eq!(messages("crates/hugepages/src/a.rs", "fn f() { remote::pager::run() }").len(), 1);
        assert_eq!(messages("crates/quantities/src/a.rs", "println!(\"{}\", linux::Pid(1))").len(), 1);
        assert_eq!(messages("crates/access/src/a.rs", "use hugepages as h;").len(), 1);
        assert_eq!(messages("crates/access/src/a.rs", "extern crate masu;").len(), 1);
        assert_eq!(messages("crates/aging/src/a.rs", "use llc;").len(), 1);
    }

    #[test]
    fn imports_along_the_arrows_and_names_that_only_look_like_crates_pass() {
        for (path, text) in [
            ("crates/hugepages/src/a.rs", "use access::Rung; use linux::Pid; use quantities::Bytes;"),
            ("crates/masu/src/a.rs", "use hugepages::standing; use masu::command;"),
            (
                "crates/linux/src/a.rs",
                "// access::Rung\nlet text = \"remote::x\"; crate::access::x(); self.access::<u8>()",
            ),
            ("bench/src/a.rs", "use masu::command; use hugepages::policy;"),
        ] {
            assert_eq!(messages(path, text), [""; 0], "{text}");
        }
    }

    #[test]
    fn a_module_taken_by_path_is_found() {
        assert_eq!(messages("crates/linux/src/a.rs", "#[path = \"../../access/src/x.rs\"]\nmod x;").len(), 1);
        assert_eq!(messages("crates/linux/tests/a.rs", "#[path = \"a/mod.rs\"]\nmod a;").len(), 0);
    }
}
