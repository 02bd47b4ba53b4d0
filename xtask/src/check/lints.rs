//! Lints and dependencies of the libraries inside programs: workspaces of their own, with the lints of this one.

use anyhow::{Context, Result};

use super::{LIBRARIES, Violation};
use crate::workspace;

/// Crates that a library shares with masu; they depend on nothing.
const SHARED: [&str; 2] = ["../contract", "../engine"];

/// Libraries whose lints or dependencies differ from the workspace's.
pub fn of_libraries() -> Result<Vec<Violation>> {
    let read = |path: &str| {
        std::fs::read_to_string(workspace::root().join(path)).with_context(|| format!("cannot read {path}"))
    };
    let ours = lints(&read("Cargo.toml")?, "workspace.lints.");
    let mut found = Vec::new();
    for path in LIBRARIES {
        let manifest = read(path)?;
        if lints(&manifest, "lints.") != ours {
            found.push(Violation::of_file(path, "its lints are not the workspace's".to_owned()));
        }
        let paths = manifest.lines().filter_map(|line| line.split_once("path = \"")?.1.split('"').next());
        for other in paths.filter(|other| !SHARED.contains(other)) {
            found.push(Violation::of_file(path, format!("it may not depend on {other}")));
        }
    }
    Ok(found)
}

/// The lines of the sections `[prefix…]`, each behind its section's name.
fn lints(manifest: &str, prefix: &str) -> Vec<String> {
    let mut section = None;
    let mut found = Vec::new();
    for line in manifest.lines().map(str::trim) {
        if let Some(name) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            section = name.strip_prefix(prefix);
        } else if let Some(section) = section
            && !line.is_empty()
            && !line.starts_with('#')
        {
            found.push(format!("{section} {line}"));
        }
    }
    found.sort();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lints_are_compared_by_section_in_any_order() {
        let ours = lints(
            "[workspace.lints.rust]\na = 1\n\n[workspace.lints.clippy]\nb = 2\n[profile]\nc = 3\n",
            "workspace.lints.",
        );
        assert_eq!(ours, ["clippy b = 2", "rust a = 1"]);
        assert_eq!(lints("[lints.clippy]\nb = 2\n[lints.rust]\n# why\na = 1\n", "lints."), ours);
        assert_ne!(lints("[lints.clippy]\nb = 2\na = 1\n", "lints."), ours);
    }
}
