//! Dependencies between crates: a crate uses crates of the layers before its own, and the parts of a feature serve that
//! feature.

use anyhow::{Context, Result};
use serde_json::Value;

use super::Violation;
use super::source::{Source, inside_brackets, line_of, words};
use crate::command::{cargo, output};

/// Layers, each before its users. Crates of one layer do not use each other.
const LAYERS: &str = "units contract farmem-engine <- linux <- access resctrl-emulator <- hugepages farmem aging llc <- serve sim <- masu <- bench fuzz live-tests xtask";

/// A crate of the workspace.
#[derive(Debug)]
pub struct Package {
    name: String,
    manifest: String,
    /// Crates of the workspace that the manifest names, for tests and build scripts too.
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

fn layer(name: &str) -> Option<usize> {
    LAYERS.split(" <- ").position(|layer| layer.split(' ').any(|crate_| crate_ == name))
}

/// The folder of the feature that `manifest` is a part of, the feature's own crate included.
fn feature(manifest: &str) -> Option<&str> {
    let mut parts = manifest.rsplit_once("crates/")?.1.split('/');
    let feature = parts.next()?;
    (layer(feature) == layer("hugepages")).then_some(feature)
}

/// Dependencies that no layer allows, and crates without a layer.
pub fn in_manifests(packages: &[Package]) -> Vec<Violation> {
    let mut found = Vec::new();
    for package in packages {
        let mut say = |message: String| found.push(Violation::of_file(&package.manifest, message));
        let Some(own) = layer(&package.name) else {
            say(format!("{} has no layer in {}: {LAYERS}", package.name, file!()));
            continue;
        };
        for used in &package.uses {
            let manifest = packages.iter().find(|other| other.name == *used).map_or("", |other| &other.manifest);
            let (owner, user) = (feature(manifest), feature(&package.manifest));
            if layer(used).is_none_or(|layer| layer >= own) {
                say(format!("{} may not depend on {used}: {LAYERS}", package.name));
            } else if owner.is_some() && own < layer("sim").unwrap_or(0) && owner != user {
                say(format!("{} may not depend on {used}, which is a part of {}", package.name, owner.unwrap_or("")));
            }
        }
    }
    found
}

/// Modules that are taken from elsewhere by path.
pub fn in_source(source: &Source) -> Vec<Violation> {
    if !source.path.starts_with("crates/") {
        return Vec::new();
    }
    let is_elsewhere = |number: usize| source.text.lines().nth(number - 1).is_some_and(|text| text.contains("../"));
    let lines = source.lines().filter(|(number, line)| line.contains("#[path") && is_elsewhere(*number));
    lines.map(|(number, _)| Violation::at(source, number, "a module from elsewhere by #[path]".to_owned())).collect()
}

/// Commands that run the attach loop.
const ATTACH_COMMANDS: [&str; 3] =
    ["crates/masu/src/commands/attach", "crates/masu/src/commands/run", "crates/masu/src/commands/serve"];

/// Imports of `hugepages::attach::Control` for something else than the attach loop: the clock of all commands is in
/// `crates/masu/src/terminal`.
pub fn attach_control(source: &Source) -> Vec<Violation> {
    if !source.path.starts_with("crates/masu/src/") || ATTACH_COMMANDS.iter().any(|path| source.path.starts_with(path))
    {
        return Vec::new();
    }
    let code = source.code_without_tests();
    let is_import = |at: usize| {
        let after = &code[at + "attach".len()..];
        let group = after.strip_prefix("::").and_then(|after| inside_brackets(after, '{', '}')).map(|(group, _)| group);
        words(group.unwrap_or(after), "Control").any(|at| group.is_some() || at == "::".len())
    };
    let found = words(&code, "attach").filter(|&at| is_import(at));
    let message = "hugepages::attach::Control is for the attach loop only";
    found.map(|at| Violation::at(source, line_of(&code, at), message.to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn package(name: &str, folder: &str, uses: &[&str]) -> Value {
        let dependencies = uses.iter().map(|name| json!({ "name": name, "path": "/x", "kind": "dev" }));
        let others = [json!({ "name": "serde", "kind": null })];
        json!({ "name": name, "manifest_path": format!("/x/{folder}/Cargo.toml"),
            "dependencies": dependencies.chain(others).collect::<Vec<_>>() })
    }

    fn messages(packages: &[Value]) -> Vec<String> {
        let packages = parse(&json!({ "packages": packages })).unwrap();
        in_manifests(&packages).into_iter().map(|violation| violation.message).collect()
    }

    #[test]
    fn a_dependency_on_the_own_or_a_later_layer_is_found() {
        let found = messages(&[
            package("hugepages", "crates/hugepages", &["access", "farmem"]),
            package("linux", "crates/linux", &["access", "units"]),
            package("new", "crates/new", &[]),
            package("bench", "bench", &["masu", "llc"]),
        ]);
        let starts =
            ["hugepages may not depend on farmem: units", "linux may not depend on access: ", "new has no layer"];
        assert_eq!(found.len(), starts.len(), "{found:?}");
        assert!(found.iter().zip(starts).all(|(message, start)| message.starts_with(start)), "{found:?}");
    }

    #[test]
    fn a_part_of_a_feature_serves_that_feature_and_the_command() {
        let contract = package("contract", "crates/hugepages/contract", &[]);
        let users = [("aging", "crates/aging"), ("hugepages", "crates/hugepages"), ("masu", "crates/masu")];
        let users = users.map(|(name, folder)| package(name, folder, &["contract"]));
        assert_eq!(
            messages(&[&[contract], &users[..]].concat()),
            ["aging may not depend on contract, which is a part of hugepages"]
        );
    }

    #[test]
    fn metadata_of_another_form_is_an_error_and_not_an_empty_list() {
        assert!(parse(&json!({})).is_err());
        assert!(parse(&json!({ "packages": [{ "name": 1 }] })).is_err());
    }

    #[test]
    fn a_module_taken_by_path_is_found() {
        let found = |path, text| in_source(&Source::new(path, text)).len();
        assert_eq!(found("crates/linux/src/a.rs", "#[path = \"../../access/src/x.rs\"]\nmod x;"), 1);
        assert_eq!(found("crates/linux/tests/a.rs", "#[path = \"a/mod.rs\"]\nmod a;"), 0);
        assert_eq!(found("fuzz/src/a.rs", "#[path = \"../a/mod.rs\"]\nmod a;"), 0);
    }

    #[test]
    fn the_attach_loops_control_is_for_its_commands() {
        let found = |path, text| attach_control(&Source::new(path, text)).len();
        let one = "use hugepages::attach::Control;\nuse hugepages::attach::{Doing,\n    Control};\n";
        assert_eq!(found("crates/masu/src/commands/aging.rs", one), 2);
        assert_eq!(found("crates/masu/src/commands/attach/progress.rs", one), 0);
        let others = "use hugepages::attach::{Doing, ControlLoop};\nuse crate::terminal::Control;\nattach(Control);\n";
        assert_eq!(found("crates/masu/src/commands/aging.rs", others), 0);
    }
}
