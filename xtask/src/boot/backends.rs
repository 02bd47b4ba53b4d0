//! `docs/kernels.md`: the backends of each kernel, generated from the answers of the machines.

use std::fmt::Write;
use std::path::Path;
use std::{fs, io};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::kernels;
use crate::workspace;

/// One machine's answers.
pub struct Column {
    /// `6.12`: the series, since the page should not change with every update.
    pub kernel: String,
    /// Levels of its page tables.
    pub levels: u8,
    /// Its answer after `BACKENDS`.
    pub facts: Value,
}

/// Name in `HostFacts`, and name in the document.
const FACTS: &[(&str, &str)] = &[
    ("btf", "kernel type information (BTF)"),
    ("lockdown", "lockdown"),
    ("clear_refs", "accessed bits can be cleared"),
    ("soft_dirty", "soft-dirty bits"),
    ("pagemap_scan", "`PAGEMAP_SCAN`"),
    ("collapse", "`MADV_COLLAPSE` promotes"),
    ("cold_splits", "`MADV_COLD` on a part splits"),
    ("split_frees_zero_pages", "a split gives zero pages back"),
    ("damon_operations", "DAMON watches"),
    ("thp_enabled", "huge pages at the first touch, as booted"),
    ("khugepaged", "khugepaged"),
    ("user_faults", "user faults, without privilege"),
    ("syscall_dispatch", "Syscall User Dispatch"),
];

/// Features whose backend is shown.
const FEATURES: [(&str, &str); 2] = [("hugepages", "huge pages: backend"), ("larger", "larger than memory: backend")];

const HOST_TITLE: &str = "## The machine that this page was written on";

/// Writes the page, or compares its part about Debian's kernels with the page in the tree. `host` gives the column of
/// the running kernel when it is needed.
pub fn write_or_compare(columns: &[Column], write: bool, host: impl FnOnce() -> Result<Column>) -> Result<()> {
    let path = workspace::root().join("docs/kernels.md");
    if columns.len() < kernels::ALL.len() * 2 {
        println!("docs/kernels.md is about all kernels, and not all were started: left alone");
        return Ok(());
    }
    let page = debian_part(columns);
    if write {
        let page = format!("{page}\n{}", host_part(&host()?));
        return fs::write(&path, page).with_context(|| format!("cannot write {}", path.display()));
    }
    compare(&page, &path)
}

fn compare(page: &str, path: &Path) -> Result<()> {
    let shown = workspace::shown(path);
    let there = match fs::read_to_string(path) {
        Ok(there) => there,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            bail!("{shown} is missing; `cargo xtask boot-test --write` writes it")
        }
        Err(error) => return Err(error).with_context(|| format!("cannot read {shown}")),
    };
    let compared = there.split(HOST_TITLE).next().unwrap_or_default();
    if compared.trim() == page.trim() {
        return Ok(());
    }
    let difference = compared.lines().zip(page.lines()).find(|(old, new)| old != new);
    let (old, new) = difference.unwrap_or(("(its end)", "(more, or fewer, lines)"));
    bail!(
        "{shown} is not what these kernels said:\n  there: {old}\n  now:   {new}\n\
         `cargo xtask boot-test --write` writes it anew"
    )
}

fn debian_part(columns: &[Column]) -> String {
    let mut page = String::from(
        "# Kernels: the backend of each part\n\n\
         Written by `cargo xtask boot-test --write` from what the kernels said; `cargo xtask boot-test` compares. Debian's\n\
         kernels run in virtual machines (QEMU, software emulation) as root, with page tables of 4 and of 5 levels. On a\n\
         machine of yours `masu facts` says the same, and why.\n\n",
    );
    tables(&mut page, columns);
    page
}

fn host_part(host: &Column) -> String {
    let mut page = format!("{HOST_TITLE}\n\nNot compared: yours will differ.\n\n");
    tables(&mut page, std::slice::from_ref(host));
    page
}

fn tables(page: &mut String, columns: &[Column]) {
    let title = |column: &Column| format!("{}, {} levels", column.kernel, column.levels);
    let mut table = |head: &str, rows: Vec<(String, Vec<String>)>| {
        // Writing to a string does not fail.
        let _ = writeln!(page, "| {head} | {} |", columns.iter().map(title).collect::<Vec<_>>().join(" | "));
        let _ = writeln!(page, "|---|{}", "---|".repeat(columns.len()));
        for (name, cells) in rows {
            let _ = writeln!(page, "| {name} | {} |", cells.join(" | "));
        }
        page.push('\n');
    };
    let Some(first) = columns.first() else { return };
    for (feature, head) in FEATURES {
        let parts = |column: &Column| column.facts[feature].as_array().cloned().unwrap_or_default();
        let backends = parts(first).into_iter().enumerate().map(|(number, part)| {
            let backend = |column| parts(column).get(number).map_or(Value::Null, |part| part["backend"].clone());
            (words(&part["part"]), columns.iter().map(|column| words(&backend(column))).collect())
        });
        table(head, backends.collect());
    }
    let facts = FACTS.iter().map(|(key, name)| {
        ((*name).to_owned(), columns.iter().map(|column| words(&column.facts["facts"][key])).collect())
    });
    table("fact", facts.collect());
    let requirements =
        first.facts["requirements"].as_object().into_iter().flatten().filter(|(_, capability)| !capability.is_null());
    let requirements = requirements.map(|(name, _)| {
        (name.clone(), columns.iter().map(|column| words(&column.facts["requirements"][name])).collect())
    });
    table("what live tests need", requirements.collect());
    why_not(page, columns);
}

/// The reasons, each once, with the kernels that gave it.
fn why_not(page: &mut String, columns: &[Column]) {
    let mut reasons: Vec<(String, Vec<String>)> = Vec::new();
    for column in columns {
        for part in FEATURES.iter().filter_map(|(feature, _)| column.facts[feature].as_array()).flatten() {
            for missing in part["missing"].as_array().into_iter().flatten() {
                let [backend, reason, remedy] = ["backend", "reason", "remedy"].map(|key| words(&missing[key]));
                let line = format!("{}: not {backend}, because {reason}. {remedy}", words(&part["part"]));
                match reasons.iter_mut().find(|(known, _)| *known == line) {
                    Some((_, kernels)) if kernels.contains(&column.kernel) => (),
                    Some((_, kernels)) => kernels.push(column.kernel.clone()),
                    None => reasons.push((line, vec![column.kernel.clone()])),
                }
            }
        }
    }
    for (reason, kernels) in reasons {
        let _ = writeln!(page, "- {}: {reason}", kernels.join(", "));
    }
}

/// A fact as a cell of a table.
fn words(fact: &Value) -> String {
    match fact {
        Value::Null => "none".to_owned(),
        Value::Bool(yes) => if *yes { "yes" } else { "no" }.to_owned(),
        Value::String(text) => text.replace('|', "\\|"),
        Value::Array(list) if list.is_empty() => "nothing".to_owned(),
        Value::Array(list) => list.iter().map(words).collect::<Vec<_>>().join(" "),
        Value::Object(map) => match map.get("unknown") {
            Some(why) => format!("unknown: {}", words(why)),
            // Names of the parts that are there.
            None => {
                let there = map.iter().filter(|(_, there)| **there == true);
                there.map(|(name, _)| name.replace('_', " ")).collect::<Vec<_>>().join(", ")
            }
        },
        Value::Number(number) => number.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn column(kernel: &str, pagemap_scan: bool) -> Column {
        let missing = if pagemap_scan {
            json!([])
        } else {
            json!([{ "backend": "pagemap-scan", "reason": "the scan is not there", "remedy": "Use Linux 6.7." }])
        };
        let moves = if pagemap_scan {
            json!([])
        } else {
            json!([{ "backend": "move", "reason": "it moves no frames", "remedy": "Linux 6.8 has it." }])
        };
        let facts = json!({
            "facts": {
                "pagemap_scan": pagemap_scan,
                "damon_operations": [],
                "lockdown": { "unknown": "why" },
                "user_faults": { "user_mode_only": true, "sigbus": true, "moves": pagemap_scan },
                "syscall_dispatch": true,
            },
            "hugepages": [{ "part": "measuring again", "backend": if pagemap_scan { "pagemap-scan" } else { "smaps" }, "missing": missing }],
            "larger": [{ "part": "faults", "backend": if pagemap_scan { "move" } else { "copy" }, "missing": moves }],
            "requirements": { "root": null, "PAGEMAP_SCAN": if pagemap_scan { "yes" } else { "no: ENOTTY" } },
        });
        Column { kernel: kernel.to_owned(), levels: 4, facts }
    }

    #[test]
    fn the_page_has_a_column_for_each_machine_and_a_reason_for_each_lack() {
        let page = debian_part(&[column("6.1", false), column("6.12", true)]);
        assert!(page.contains("| huge pages: backend | 6.1, 4 levels | 6.12, 4 levels |\n|---|---|---|\n"));
        assert!(page.contains("| measuring again | smaps | pagemap-scan |"));
        assert!(page.contains("| larger than memory: backend | 6.1, 4 levels | 6.12, 4 levels |\n|---|---|---|\n"));
        assert!(page.contains("| faults | copy | move |"));
        assert!(page.contains("| `PAGEMAP_SCAN` | no | yes |"));
        assert!(page.contains("| PAGEMAP_SCAN | no: ENOTTY | yes |"));
        assert!(page.contains("| lockdown | unknown: why | unknown: why |"));
        assert!(!page.contains("| root |"));
        assert!(
            page.contains(
                "| user faults, without privilege | sigbus, user mode only | moves, sigbus, user mode only |"
            )
        );
        assert!(page.contains("| Syscall User Dispatch | yes | yes |"));
        assert!(page.ends_with(
            "- 6.1: measuring again: not pagemap-scan, because the scan is not there. Use Linux 6.7.\n\
             - 6.1: faults: not move, because it moves no frames. Linux 6.8 has it.\n"
        ));
    }

    #[test]
    fn a_page_that_differs_is_told_by_its_first_line_and_the_hosts_part_is_not_compared() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("backends.md");
        let page = debian_part(&[column("6.1", false)]);
        fs::write(&path, format!("{page}\n{}", host_part(&column("6.99", true)))).unwrap();
        compare(&page, &path).unwrap();
        let other = debian_part(&[column("6.1", true)]);
        let error = compare(&other, &path).unwrap_err().to_string();
        assert!(error.contains("there: | measuring again | smaps |"), "{error}");
        assert!(compare(&page, &folder.path().join("missing.md")).unwrap_err().to_string().contains("--write"));
    }

    #[test]
    fn the_page_in_the_tree_has_a_row_for_each_fact() {
        let page = fs::read_to_string(workspace::root().join("docs/kernels.md")).unwrap();
        let table = page.split("| fact |").nth(1).unwrap();
        let rows: Vec<_> = table.lines().skip(2).map_while(|row| row.strip_prefix("| ")?.split(" |").next()).collect();
        assert_eq!(rows, FACTS.iter().map(|(_, name)| *name).collect::<Vec<_>>());
    }
}
