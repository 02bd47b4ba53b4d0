//! Programs of `masu-bench superpages`, and their requirements.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use units::Bytes;

use crate::choices;
use crate::launch::Program;
use crate::tools::{self, Missing};

choices! {
    /// One of the programs.
    pub enum Job {
        Gups = "gups", "random updates all over one table";
        Chase = "chase", "a pointer chase through cache lines";
        Join = "join", "a hash join, build and probe";
        Graph = "graph", "breadth-first search and PageRank on a skewed graph";
        Sqlite = "sqlite", "SQLite in memory, inserts and selects in random order";
        Numpy = "numpy", "NumPy: gather, sort, count and transpose";
        Jvm = "jvm", "a Java program: random updates of arrays, look-ups in a map";
        Go = "go", "a Go program, static: random updates of a slice, look-ups in a map";
    }
}

/// A program that can be run.
#[derive(Debug)]
pub struct Ready {
    /// Command of the program.
    pub program: Program,
    /// About how much memory it takes.
    pub memory: Bytes,
}

const SQL: &str = include_str!("../../workloads/sqlite/keys.sql");
const NUMPY: &str = include_str!("../../workloads/numpy/arrays.py");
const GO: [(&str, &str); 2] =
    [("main.go", include_str!("../../workloads/go/main.go")), ("go.mod", include_str!("../../workloads/go/go.mod"))];
const JAVA: &str = include_str!("../../workloads/jvm/RandomAccess.java");

/// Memory of one row of the SQL, with its share of the page around it.
const ROW_BYTES: u64 = 256;

impl Job {
    /// Builds the program in `folder` if necessary, for a memory of about `size`.
    ///
    /// # Errors
    /// When an installed tool does not work. A tool that is not installed is no error.
    pub fn prepare(self, size: Bytes, folder: &Path) -> Result<Result<Ready, Missing>> {
        let ours = |name: &str, memory: Bytes| -> Result<Result<Ready, Missing>> {
            let program = Program::workload(name, ["--size".to_owned(), size.0.to_string()])?;
            Ok(Ok(Ready { program, memory }))
        };
        match self {
            Job::Gups => ours("workload-gups", size),
            Job::Chase => ours("workload-chase", size),
            Job::Join => ours("workload-join", size),
            Job::Graph => ours("workload-graph", size),
            Job::Sqlite => sqlite(size.scaled(0.125), folder),
            Job::Numpy => numpy(size, folder),
            Job::Jvm => jvm(size, folder),
            Job::Go => go(size.scaled(0.5), folder),
        }
    }
}

fn sqlite(memory: Bytes, folder: &Path) -> Result<Result<Ready, Missing>> {
    let Some(path) = tools::on_path("sqlite3") else {
        return Ok(Err(Missing("sqlite3 is not installed (Debian: sqlite3)")));
    };
    let rows = 1u64 << (memory.0 / ROW_BYTES).max(1).ilog2();
    let script = folder.join("keys.sql");
    fs::write(&script, SQL.replace("ROWS", &rows.to_string())).context("cannot write the SQL")?;
    let read = format!(".read {}", script.display());
    let program = Program::at(path, ["-batch", "-bail", "-init", "/dev/null", ":memory:", &read]);
    Ok(Ok(Ready { program, memory }))
}

fn numpy(memory: Bytes, folder: &Path) -> Result<Result<Ready, Missing>> {
    // Debian's own Python, which finds Debian's NumPy; one that stands before it on the PATH may not.
    let candidates = [Some(Path::new("/usr/bin/python3").to_owned()), tools::on_path("python3")];
    let has_numpy = |path: &std::path::PathBuf| tools::succeeds(path, &["-c", "import numpy"]);
    let Some(python) = candidates.into_iter().flatten().find(has_numpy) else {
        return Ok(Err(Missing("no python3 with NumPy is installed (Debian: python3-numpy)")));
    };
    let script = folder.join("arrays.py");
    fs::write(&script, NUMPY).context("cannot write the Python program")?;
    let program = Program::at(python, [script.into_os_string(), memory.0.to_string().into()]);
    Ok(Ok(Ready { program, memory }))
}

fn jvm(memory: Bytes, folder: &Path) -> Result<Result<Ready, Missing>> {
    // The heap has twice the size of the program's data, as is usual; so it is filled to half of `memory`.
    let heap = format!("-Xmx{}m", (memory.0 >> 20).max(512));
    let filled = memory.scaled(0.5).0.to_string();
    let arguments = [heap, "-cp".into(), folder.display().to_string(), "RandomAccess".into(), filled];
    let compiled = tools::compile_java(folder, "RandomAccess", JAVA)?;
    Ok(compiled.map(|java| Ready { program: Program::at(java, arguments), memory }))
}

fn go(memory: Bytes, folder: &Path) -> Result<Result<Ready, Missing>> {
    let built = tools::build_go(folder, "random-access", &GO)?;
    Ok(built.map(|path| Ready { program: Program::at(path, [memory.0.to_string()]), memory }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_place_for_the_rows_is_left_over_in_the_sql() {
        // The factors are odd, and so map a power of two onto itself.
        for factor in [2_654_435_761u64, 40_503, 2_246_822_519] {
            assert!(SQL.contains(&factor.to_string()) && factor % 2 == 1);
        }
        let code: String = SQL.lines().filter(|line| !line.starts_with("--")).collect();
        assert_eq!(code.matches("ROWS").count(), 6);
        assert!(!code.replace("ROWS", "8").contains("ROWS"));
    }
}
