//! One table and one set of plots from programs that were measured one at a time: no new measurement.
//!
//! Each folder is the output of `masu-bench --save remote --workloads PROGRAM`. Folders that cannot be compared are
//! refused: other hosts, other stores, the same program twice.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use super::measured::Measured;
use super::tables;
use super::way::{Units, Way};
use crate::host::Host;
use crate::report::Report;
use crate::session::Session;

/// Relevant parts of one folder's `samples.json`.
#[derive(Debug, Deserialize)]
struct Saved {
    #[serde(skip)]
    folder: String,
    command: String,
    commit: String,
    host: Host,
    samples: Samples,
}

#[derive(Debug, Deserialize)]
struct Samples {
    store: String,
    background: bool,
    programs: Vec<Measured>,
}

/// Joins the results in `folders`, in their order.
///
/// # Errors
/// When one cannot be read, or two are not comparable.
pub fn run(session: &Session, folders: &[PathBuf]) -> Result<()> {
    let saved = folders.iter().map(|folder| read(folder)).collect::<Result<Vec<Saved>>>()?;
    check(&saved)?;
    report(saved).context("--join: nothing to join")?.finish(session.save)
}

fn read(folder: &Path) -> Result<Saved> {
    let file = folder.join("samples.json");
    let text = fs::read_to_string(&file).with_context(|| format!("--join: cannot read {}", file.display()))?;
    let saved: Saved = serde_json::from_str(&text)
        .with_context(|| format!("--join: {} is not from `masu-bench --save remote`", file.display()))?;
    Ok(Saved { folder: folder.file_name().unwrap_or_default().to_string_lossy().into_owned(), ..saved })
}

fn check(saved: &[Saved]) -> Result<()> {
    let mut seen = Vec::new();
    for one in saved {
        let (first, name) = (&saved[0], &one.folder);
        ensure!(first.host.is_same(&one.host), "--join: {} and {name} were measured on different hosts", first.folder);
        let same_store = first.samples.store == one.samples.store && first.samples.background == one.samples.background;
        ensure!(same_store, "--join: {} and {name} were measured with different stores", first.folder);
        for measured in &one.samples.programs {
            ensure!(!seen.contains(&measured.task), "--join: {} is in {name} and in one before it", measured.task);
            seen.push(measured.task);
        }
    }
    Ok(())
}

/// `None` when there is nothing to report.
fn report(saved: Vec<Saved>) -> Option<Report> {
    let host = saved.first()?.host.clone();
    let sources: Vec<String> = saved.iter().map(Saved::source).collect();
    let all: Vec<Measured> = saved.into_iter().flat_map(|one| one.samples.programs).collect();
    let rows = || all.iter().flat_map(|measured| &measured.rows);
    let has = |way: &Way| rows().any(|row| row.ways.iter().any(|(other, _)| other == way));
    let ways: Vec<Way> = Way::all(Units::All).into_iter().filter(has).collect();
    let title =
        format!("remote: {} programs with a part of the memory that they need, measured one at a time", all.len());
    let mut report = Report::new("remote-joined", title, &host);
    tables::summary(&mut report, &all, &ways);
    report.note(
        "Joined from what stands in these folders, whose tables have ranges, floors, faults and traffic as well:",
    );
    for source in &sources {
        report.note(source);
    }
    report.sample("joined", &sources);
    Some(report)
}

impl Saved {
    fn source(&self) -> String {
        format!("  {}: `{}` at {}", self.folder, self.command, self.commit)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use units::Bytes;

    use super::super::cell::End;
    use super::super::measured::tests::{row, run};
    use super::super::need::Need;
    use super::super::task::Task;
    use super::*;

    fn text(task: Task, store: &str, kernel: &str) -> Value {
        let need = Need { paged_bytes: Bytes::mib(160), rest_bytes: Bytes(0), checksum: "a".into(), run_s: 2.0 };
        let ways = vec![
            (Way::Fixed(64), vec![End::Well(Box::new(run(4.0, 1)))]),
            (Way::Auto, vec![End::Well(Box::new(run(3.0, 1)))]),
            (Way::Zram, vec![End::TooLong(60.0)]),
            (Way::SwapFile, vec![End::Badly("it was ended by signal 9".into())]),
        ];
        let measured = Measured { task, need, rows: vec![row(ways)] };
        json!({
            "command": "masu-bench --save remote", "commit": "abc",
            "host": {"cores": 2, "processor": "EPYC", "kernel": kernel, "thp_enabled": "madvise",
                     "thp_defrag": "madvise", "memory_bytes": 1 << 30, "swap_bytes": 0, "load": 0.1},
            "samples": {"store": store, "background": true, "programs": [measured], "copy_bytes_per_s": 6e9},
        })
    }

    fn folders(all: &[Value]) -> (tempfile::TempDir, Vec<PathBuf>) {
        let folder = tempfile::tempdir().unwrap();
        let write = |(nth, value): (usize, &Value)| {
            let one = folder.path().join(format!("remote-{nth}"));
            fs::create_dir(&one).unwrap();
            fs::write(one.join("samples.json"), value.to_string()).unwrap();
            one
        };
        let paths = all.iter().enumerate().map(write).collect();
        (folder, paths)
    }

    #[test]
    fn what_was_saved_is_shown_side_by_side() {
        let (_folder, paths) = folders(&[text(Task::Adi, "x", "6.12"), text(Task::Sort, "x", "6.12")]);
        let saved: Vec<Saved> = paths.iter().map(|folder| read(folder).unwrap()).collect();
        check(&saved).unwrap();
        let printed = report(saved).unwrap().to_string();
        let table = "       local    64K   auto   zram   swap-file\n\
                     adi      5 %   4.00   3.00    >60   failed\n\
                     sort     5 %   4.00   3.00    >60   failed\n";
        assert!(printed.contains(table), "{printed}");
        assert!(printed.contains("adi, 5 % local: auto against the best fixed unit (64K)"), "{printed}");
        assert!(printed.contains("  remote-1: `masu-bench --save remote` at abc\n"), "{printed}");
    }

    #[test]
    fn what_does_not_belong_together_is_refused() {
        let one = || text(Task::Adi, "x", "6.12");
        for (other, wanted) in [
            (text(Task::Sort, "x", "6.18"), "--join: remote-0 and remote-1 were measured on different hosts"),
            (text(Task::Sort, "y", "6.12"), "--join: remote-0 and remote-1 were measured with different stores"),
            (one(), "--join: adi is in remote-1 and in one before it"),
        ] {
            let (_folder, paths) = folders(&[one(), other]);
            let saved: Vec<Saved> = paths.iter().map(|folder| read(folder).unwrap()).collect();
            assert_eq!(check(&saved).unwrap_err().to_string(), wanted);
        }
    }

    #[test]
    fn a_folder_of_another_benchmark_is_named() {
        let (_folder, paths) = folders(&[json!({"benchmark": "scan"})]);
        let said = read(&paths[0]).unwrap_err().to_string();
        assert!(said.ends_with("remote-0/samples.json is not from `masu-bench --save remote`"), "{said}");
        let said = format!("{:#}", read(Path::new("/nowhere")).unwrap_err());
        assert!(said.starts_with("--join: cannot read /nowhere/samples.json: No such file"), "{said}");
    }
}
