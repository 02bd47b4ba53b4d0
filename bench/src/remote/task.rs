//! Programs of `masu-bench remote`: small ones in C, compiled here with the system's gcc, and some real applications.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::ValueEnum as _;
use serde::{Deserialize, Deserializer};
use units::spread::Random;

use crate::choices;
use crate::launch::Program;
use crate::tools::{Missing, compile_c, on_path, succeeds};

choices! {
    /// One of the programs.
    pub enum Task {
        Adi = "adi", "an ADI solver, block-tridiagonal systems of 5 x 5 along x, y and z";
        Himeno = "himeno", "the 19-point Jacobi stencil of the Himeno benchmark, size M";
        HimenoS = "himeno-s", "the 19-point Jacobi stencil of the Himeno benchmark, size S";
        HimenoL = "himeno-l", "the 19-point Jacobi stencil of the Himeno benchmark, size L";
        Fft3d = "fft3d", "a Fourier transform in three dimensions, with transposes, there and back";
        Sort = "sort", "a merge sort of records of 32 bytes";
        Gups = "gups", "random updates of one table";
        Spmv = "spmv", "conjugate gradients, a sparse matrix in random order";
        Sqlite = "sqlite", "SQLite in memory: an index, random look-ups, a GROUP BY";
        CoreutilsSort = "coreutils-sort", "`sort` of the coreutils";
        Numpy = "numpy", "NumPy: a table scaled, correlated, sorted and grouped";
        Gcc = "gcc", "gcc -O1, a large file";
    }
}

impl<'de> Deserialize<'de> for Task {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Task, D::Error> {
        Task::from_str(&String::deserialize(deserializer)?, false).map_err(serde::de::Error::custom)
    }
}

/// Default programs.
pub const USUAL: [Task; 10] = [
    Task::Adi,
    Task::Himeno,
    Task::Fft3d,
    Task::Sort,
    Task::Gups,
    Task::Spmv,
    Task::Sqlite,
    Task::CoreutilsSort,
    Task::Numpy,
    Task::Gcc,
];

/// A program that can be run.
#[derive(Clone, Debug)]
pub struct Ready {
    pub program: Program,
    /// The same with marked sections, where there is one.
    pub marked: Option<Program>,
    /// Form of its result.
    pub result: Told,
    /// A run is ended when it takes this many times as long as one with all memory.
    pub times_at_most: f64,
}

/// Form of a program's result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// Lines that begin with `checksum=`.
    ByChecksum,
    /// All that it prints is its result.
    ByOutput,
}

const HEADER: &str = include_str!("../../workloads/remote/task.h");
const COLUMNS: &str = include_str!("../../workloads/remote/columns.py");
const ORDERS: &str = include_str!("../../workloads/remote/orders.sql");

/// A program in C.
struct Source {
    name: &'static str,
    text: &'static str,
    has_marks: bool,
}

const ADI: Source = Source { name: "adi", text: include_str!("../../workloads/remote/adi.c"), has_marks: true };
const HIMENO: Source =
    Source { name: "himeno", text: include_str!("../../workloads/remote/himeno.c"), has_marks: true };
const FFT3D: Source = Source { name: "fft3d", text: include_str!("../../workloads/remote/fft3d.c"), has_marks: false };
const SORT: Source = Source { name: "sort", text: include_str!("../../workloads/remote/sort.c"), has_marks: false };
const GUPS: Source = Source { name: "gups", text: include_str!("../../workloads/remote/gups.c"), has_marks: false };
const SPMV: Source = Source { name: "spmv", text: include_str!("../../workloads/remote/spmv.c"), has_marks: false };
const STRESS: Source =
    Source { name: "stress", text: include_str!("../../workloads/remote/stress.c"), has_marks: false };
const TOUCH: Source = Source { name: "touch", text: include_str!("../../workloads/remote/touch.c"), has_marks: false };

/// A random update costs some 16 ns with all memory and a page fault without, which no pager can hide: to see it measured at
/// all, this program may take longer than the others.
const TIMES_OF_GUPS: f64 = 1000.0;

impl Task {
    /// Builds the program in `folder` if necessary; smaller when `quick`.
    ///
    /// # Errors
    /// [`Missing`] when a tool is not installed; another error when it does not work.
    pub fn prepare(self, folder: &Path, times_at_most: f64, quick: bool) -> Result<Ready> {
        fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
        let size = |usual: &'static str, small: &'static str| if quick { small } else { usual };
        let build = |source: &Source, size: &str, times: f64| compile(source, size, folder, times);
        match self {
            Task::Adi => build(&ADI, size("SIDE=64", "SIDE=40"), times_at_most),
            Task::Himeno => build(&HIMENO, size("SIZE_M", "SIZE_S"), times_at_most),
            Task::HimenoS => build(&HIMENO, "SIZE_S", times_at_most),
            Task::HimenoL => build(&HIMENO, "SIZE_L", times_at_most),
            Task::Fft3d => build(&FFT3D, size("SIDE=256", "SIDE=128"), times_at_most),
            Task::Sort => build(&SORT, size("RECORDS=8000000", "RECORDS=2000000"), times_at_most),
            Task::Gups => build(&GUPS, size("LOG2_WORDS=24", "LOG2_WORDS=22"), times_at_most.max(TIMES_OF_GUPS)),
            Task::Spmv => build(&SPMV, size("SIDE=80", "SIDE=48"), times_at_most),
            Task::Sqlite => sqlite(folder, if quick { 150_000 } else { 700_000 }, times_at_most),
            Task::CoreutilsSort => sort(folder, if quick { 400_000 } else { 2_000_000 }, times_at_most),
            Task::Numpy => numpy(folder, if quick { 200_000 } else { 800_000 }, times_at_most),
            Task::Gcc => gcc(folder, if quick { 200 } else { 700 }, times_at_most),
        }
    }
}

/// Folder of the programs in C.
///
/// # Errors
/// When our own program cannot be found.
pub fn folder() -> Result<PathBuf> {
    Ok(std::env::current_exe()?.with_file_name("remote-workloads"))
}

/// Builds the program that times single touches.
///
/// # Errors
/// As [`Task::prepare`].
pub fn touch(folder: &Path) -> Result<Program> {
    Ok(compile(&TOUCH, "PAGE=4096", folder, 1.0)?.program)
}

/// Builds the program that uses memory in every way and checks each byte.
///
/// # Errors
/// As [`Task::prepare`].
pub fn stress(folder: &Path) -> Result<Program> {
    Ok(compile(&STRESS, "STRESS=1", folder, 1.0)?.program)
}

/// Compiles a program in C, and once more with its marks.
fn compile(source: &Source, size: &str, folder: &Path, times_at_most: f64) -> Result<Ready> {
    let file = format!("{}.c", source.name);
    let build = |ending: &str, flag: Option<&str>| -> Result<Program> {
        let name = format!("{}-{}{ending}", source.name, size.to_lowercase().replace('=', "-"));
        let size = format!("-D{size}");
        let flags = [size.as_str(), "-lm", "-pthread"].into_iter().chain(flag).map(OsString::from);
        let files = [(file.as_str(), source.text), ("task.h", HEADER)];
        Ok(Program::at(compile_c(folder, &name, &files, &flags.collect::<Vec<_>>())??, [""; 0]))
    };
    let program = build("", None)?;
    let marked = source.has_marks.then(|| build("-marked", Some("-DMARKED"))).transpose()?;
    Ok(Ready { program, marked, result: Told::ByChecksum, times_at_most })
}

fn written(folder: &Path, name: &str, text: &str) -> Result<PathBuf> {
    let path = folder.join(name);
    fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(path)
}

fn sqlite(folder: &Path, rows: u32, times_at_most: f64) -> Result<Ready> {
    let path = on_path("sqlite3").ok_or(Missing("sqlite3 is not installed (Debian: sqlite3)"))?;
    let script = written(folder, "orders.sql", &ORDERS.replace("ROWS", &rows.to_string()))?;
    let read = format!(".read {}", script.display());
    let program = Program::at(path, ["-batch", "-bail", "-init", "/dev/null", ":memory:", &read]);
    Ok(Ready { program, marked: None, result: Told::ByChecksum, times_at_most })
}

fn sort(folder: &Path, lines: u32, times_at_most: f64) -> Result<Ready> {
    let path = on_path("sort").ok_or(Missing("sort is not installed (Debian: coreutils)"))?;
    let mut random = Random::seeded(7);
    let mut text = String::new();
    for nth in 0..lines {
        let _ = writeln!(text, "{:016x} {nth:08} words that follow the key", random.number());
    }
    let file = written(folder, "lines.txt", &text)?;
    // All in memory, and its result to a pipe: no file of its own takes part in the limit on its memory.
    let arguments = ["--key=1,1".into(), "--parallel=1".into(), "--buffer-size=2G".into(), file.into_os_string()];
    Ok(Ready { program: Program::at(path, arguments), marked: None, result: Told::ByOutput, times_at_most })
}

fn numpy(folder: &Path, rows: u32, times_at_most: f64) -> Result<Ready> {
    // Debian's own Python, which finds Debian's NumPy; one that stands before it on the PATH may not.
    let candidates = [Some(PathBuf::from("/usr/bin/python3")), on_path("python3")];
    let has_numpy = |path: &PathBuf| succeeds(path, &["-c", "import numpy"]);
    let python = candidates.into_iter().flatten().find(has_numpy);
    let python = python.ok_or(Missing("no python3 with NumPy is installed (Debian: python3-numpy)"))?;
    let script = written(folder, "columns.py", COLUMNS)?;
    let program = Program::at(python, [script.into_os_string(), rows.to_string().into()]);
    Ok(Ready { program, marked: None, result: Told::ByChecksum, times_at_most })
}

fn gcc(folder: &Path, functions: u32, times_at_most: f64) -> Result<Ready> {
    let compiler = on_path("gcc").ok_or(Missing("gcc is not installed (Debian: gcc libc6-dev)"))?;
    let file = written(folder, "many-functions.c", &many_functions(functions))?;
    // To a pipe, for the same reason as above.
    let arguments = ["-O1".into(), "-S".into(), "-o".into(), "-".into(), file.into_os_string()];
    Ok(Ready { program: Program::at(compiler, arguments), marked: None, result: Told::ByOutput, times_at_most })
}

/// Functions that call each other: the compiler keeps all of them until it has seen the last.
fn many_functions(count: u32) -> String {
    let mut random = Random::seeded(3);
    let mut text = String::from("struct node { struct node *next; long key; double weight; };\n\n");
    let mut some = |limit: usize| random.below(limit) + 3;
    for nth in 0..count {
        let called = match nth {
            0 => "b".to_owned(),
            _ => format!("step_{}(list, b, a, sum)", (some(nth as usize) - 3)),
        };
        let _ = write!(
            text,
            "static long step_{nth}(const struct node *list, long a, long b, double *sum)\n{{\n\tlong found = {};\n\
             \tfor (const struct node *at = list; at; at = at->next) {{\n\t\tswitch ((at->key ^ a) & 7) {{\n\
             \t\tcase 0: found += at->key * {} + b; break;\n\
             \t\tcase 1: *sum += at->weight * {}.5; break;\n\
             \t\tcase 2: found ^= a << (b & {}); break;\n\
             \t\tcase 3: found -= b % {}; break;\n\
             \t\tcase 5: for (long k = 0; k < (b & {}); k++) found = found * 31 + at->key; break;\n\
             \t\tdefault: *sum -= (double)found / {}.0;\n\t\t}}\n\t}}\n\treturn found + {called};\n}}\n\n",
            some(1 << 20),
            some(1 << 16),
            some(99),
            some(29),
            some(999),
            some(61),
            some(99),
        );
    }
    text += "long all(const struct node *list, long a, long b, double *sum)\n{\n\tlong total = 0;\n";
    for nth in 0..count {
        let _ = writeln!(text, "\ttotal += step_{nth}(list, a, b, sum);");
    }
    text + "\treturn total;\n}\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::Choice as _;

    #[test]
    fn a_program_is_named_alike_everywhere() {
        for task in Task::value_variants() {
            assert_eq!(serde_json::to_value(task).unwrap(), task.name());
            assert_eq!(serde_json::from_value::<Task>(task.name().into()).unwrap(), *task);
        }
    }

    #[test]
    fn no_place_for_the_rows_is_left_over_in_the_sql() {
        let code: String = ORDERS.lines().filter(|line| !line.starts_with("--")).collect();
        assert_eq!(code.matches("ROWS").count(), 2);
        assert!(!code.replace("ROWS", "8").contains("ROWS"));
    }

    #[test]
    fn the_generated_file_is_the_same_each_time_and_calls_only_what_stands_before() {
        let text = many_functions(20);
        assert_eq!(text, many_functions(20));
        assert_eq!(text.matches("static long step_").count(), 20);
        assert!(text.starts_with("struct node") && text.contains("return found + b;"));
    }

    #[test]
    fn small_programs_compile_check_themselves_and_print_their_result() {
        if on_path("gcc").is_none() {
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        for (source, size) in [
            (&ADI, "SIDE=8"),
            (&FFT3D, "SIDE=16"),
            (&SORT, "RECORDS=1000"),
            (&GUPS, "LOG2_WORDS=10"),
            (&SPMV, "SIDE=8"),
        ] {
            let ready = compile(source, size, folder.path(), 60.0).unwrap();
            let mut printed = Vec::new();
            for program in [Some(ready.program), ready.marked].into_iter().flatten() {
                let output = program.command().output().unwrap();
                assert!(output.status.success(), "{} {}", source.name, String::from_utf8_lossy(&output.stderr));
                let text = String::from_utf8(output.stdout).unwrap();
                assert!(text.starts_with("checksum=") && text.contains("\nelapsed_s="), "{text}");
                printed.push(text.lines().next().unwrap().to_owned());
            }
            printed.dedup();
            assert_eq!((printed.len(), ready.times_at_most), (1, 60.0), "{}", source.name);
        }
    }
}
