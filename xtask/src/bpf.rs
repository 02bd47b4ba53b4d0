//! BPF programs: C in `crates/access/bpf`, compiled here, objects committed beside the source, so that building masu
//! needs no clang.
//!
//! Beside each object is a `.stamp`: the compiler's version and the checksums of the sources and of the object. The
//! same clang must give the same bytes. Another clang may give other bytes from the same source; then the checksums of
//! the sources tell a forgotten compilation.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

use crate::command::{cargo, create_folder, output, program, require, run as run_program};
use crate::workspace;

/// Options of `cargo xtask bpf`.
#[derive(clap::Args)]
#[command(
    long_about = "Compiles crates/*/bpf/*.bpf.c with clang and writes the objects beside them, to be committed.\n\n\
    The objects are all that a build needs: masu includes their bytes and opens them with libbpf-rs, so there is no \
    generated skeleton. The C sources are formatted on the way."
)]
pub struct Options {
    /// Write nothing: fail when an object differs from the one that its source gives, or a source is not formatted
    #[arg(long)]
    check: bool,
}

const FLAGS: &[&str] = &[
    "-O2",
    "-g",
    "-target",
    "bpf",
    "-D__TARGET_ARCH_x86",
    "-Wall",
    "-Wextra",
    "-Werror",
    // A callback has the parameters that the kernel gives it.
    "-Wno-unused-parameter",
    // Otherwise the type information would name the folder of the compilation.
    "-fdebug-compilation-dir=.",
];

/// The kernel's style, with lines of 120 as everywhere here.
const STYLE: &str = "{BasedOnStyle: LLVM, UseTab: AlignWithSpaces, IndentWidth: 8, TabWidth: 8, ContinuationIndentWidth: 8, \
    ColumnLimit: 120, BreakBeforeBraces: Linux, AllowShortFunctionsOnASingleLine: None, SortIncludes: Never, \
    Cpp11BracedListStyle: false, ReflowComments: false}";

/// Compiles or compares the objects.
pub fn run(options: &Options) -> Result<()> {
    if options.check { check() } else { write() }
}

/// Compares every object with its source.
pub fn check() -> Result<()> {
    for source in sources()? {
        let shown = workspace::shown(&source);
        let there = Stamp::read(&stamp_path(&source))?;
        let built = build(&source)?;
        let now = Stamp::of(&source, &built)?;
        check_stamp(&there, &now, &sum(&object_path(&source))?)
            .with_context(|| format!("{shown}: run `cargo xtask bpf`"))?;
        if there.compiler == now.compiler {
            let mut format = program(require("clang-format", "clang-format")?);
            run_program(format.args(["--dry-run", "--Werror", &format!("--style={STYLE}")]).args(c_files(&source)?))
                .context("`cargo xtask bpf` formats it")?;
            println!("{shown}: the committed object is what {} makes of it", now.compiler);
        } else {
            println!("{shown}: unchanged since {} compiled it; here is {}", there.compiler, now.compiler);
        }
    }
    Ok(())
}

fn write() -> Result<()> {
    for source in sources()? {
        let mut format = program(require("clang-format", "clang-format")?);
        run_program(format.args(["-i", &format!("--style={STYLE}")]).args(c_files(&source)?))?;
        let built = build(&source)?;
        let object = object_path(&source);
        fs::copy(&built, &object).with_context(|| format!("cannot write {}", object.display()))?;
        let stamp = stamp_path(&source);
        fs::write(&stamp, Stamp::of(&source, &built)?.text())
            .with_context(|| format!("cannot write {}", stamp.display()))?;
        println!("{} written", workspace::shown(&object));
    }
    Ok(())
}

/// Compiler and checksums of an object and its sources.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Stamp {
    compiler: String,
    /// One line per file: checksum and name. Programs may share headers, so all of the folder's count.
    sources: Vec<String>,
    object: String,
}

impl Stamp {
    fn of(source: &Path, object: &Path) -> Result<Stamp> {
        let mut sources = Vec::new();
        for file in c_files(source)? {
            sources.push(format!("{} {}", sum(&file)?, file.file_name().unwrap_or_default().to_string_lossy()));
        }
        Ok(Stamp { compiler: compiler()?, sources, object: sum(object)? })
    }

    fn text(&self) -> String {
        let mut lines = vec![format!("compiler {}", self.compiler), format!("object {}", self.object)];
        lines.extend(self.sources.iter().map(|source| format!("source {source}")));
        lines.join("\n") + "\n"
    }

    fn parse(text: &str) -> Option<Stamp> {
        let all =
            |key: &str| text.lines().filter_map(|line| line.strip_prefix(key)).map(str::to_owned).collect::<Vec<_>>();
        let one = |key: &str| all(key).into_iter().next();
        Some(Stamp { compiler: one("compiler ")?, sources: all("source "), object: one("object ")? })
    }

    fn read(path: &Path) -> Result<Stamp> {
        let shown = workspace::shown(path);
        let text =
            fs::read_to_string(path).with_context(|| format!("cannot read {shown}; `cargo xtask bpf` makes it"))?;
        Stamp::parse(&text).with_context(|| format!("{shown} is no stamp"))
    }
}

/// `there` is the recorded stamp, `now` the stamp of a fresh build, `committed` the checksum of the object in the tree.
fn check_stamp(there: &Stamp, now: &Stamp, committed: &str) -> Result<()> {
    if there.sources != now.sources {
        bail!("the source changed after the object was made");
    }
    if there.object != committed {
        bail!("the object is not the one that was made from the source");
    }
    if there.compiler == now.compiler && now.object != committed {
        bail!("{} makes another object of this source", now.compiler);
    }
    Ok(())
}

fn sources() -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for folder in fs::read_dir(workspace::root().join("crates")).context("cannot list crates")?.flatten() {
        if let Ok(files) = fs::read_dir(folder.path().join("bpf")) {
            found.extend(
                files.flatten().map(|file| file.path()).filter(|path| path.to_string_lossy().ends_with(".bpf.c")),
            );
        }
    }
    found.sort();
    ensure!(!found.is_empty(), "no crates/*/bpf/*.bpf.c found");
    Ok(found)
}

/// The C files in the folder of `source`.
fn c_files(source: &Path) -> Result<Vec<PathBuf>> {
    let folder = source.parent().context("a source without a folder")?;
    let files = fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))?.flatten();
    let mut files: Vec<PathBuf> =
        files.map(|file| file.path()).filter(|path| path.extension().is_some_and(|e| e == "c" || e == "h")).collect();
    files.sort();
    Ok(files)
}

/// `walk.bpf.c` → `walk.bpf.o`.
fn object_path(source: &Path) -> PathBuf {
    source.with_extension("o")
}

fn stamp_path(source: &Path) -> PathBuf {
    source.with_extension("stamp")
}

/// Compiles into the target folder.
fn build(source: &Path) -> Result<PathBuf> {
    let name = source.file_name().context("a source without a name")?;
    let object = workspace::target().join("bpf").join(name).with_extension("o");
    let mut clang = program(require("clang", "clang")?);
    clang.current_dir(source.parent().context("a source without a folder")?);
    run_program(
        clang.args(FLAGS).arg(format!("-I{}", headers()?.display())).arg("-c").arg(name).arg("-o").arg(&object),
    )?;
    // The debugging sections go, the type information that the loader needs stays.
    run_program(program(require("llvm-strip", "llvm")?).arg("-g").arg(&object))?;
    Ok(object)
}

/// Include folder with the `<bpf/bpf_helpers.h>` of the libbpf that masu links with, not the distribution's.
fn headers() -> Result<PathBuf> {
    let json = output(cargo().args(["metadata", "--format-version", "1"]))?;
    let metadata: serde_json::Value = serde_json::from_str(&json).context("cannot understand cargo metadata")?;
    let packages = metadata["packages"].as_array().context("cargo metadata names no packages")?;
    let libbpf = packages.iter().find(|package| package["name"] == "libbpf-sys").context("libbpf-sys is not used")?;
    let manifest = Path::new(libbpf["manifest_path"].as_str().context("libbpf-sys has no manifest")?);
    let libbpf = manifest.with_file_name("libbpf").join("src");
    let folder = workspace::target().join("bpf/include");
    create_folder(&folder)?;
    let link = folder.join("bpf");
    let _ = fs::remove_file(&link); // may not be there yet
    std::os::unix::fs::symlink(&libbpf, &link).with_context(|| format!("cannot link {}", link.display()))?;
    Ok(folder)
}

/// `clang 14.0.6`, without the packager's suffix.
fn compiler() -> Result<String> {
    let said = output(program(require("clang", "clang")?).arg("--version"))?;
    let version = said.split_once("clang version ").map(|(_, rest)| rest);
    let number = version.and_then(|rest| rest.split(|c: char| c.is_whitespace() || c == '-' || c == '+').next());
    Ok(format!("clang {}", number.context("clang does not say its version")?))
}

fn sum(path: &Path) -> Result<String> {
    let said = output(program("sha256sum").arg(path))?;
    Ok(said.split_ascii_whitespace().next().context("sha256sum said nothing")?.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stamp(compiler: &str, source: &str, object: &str) -> Stamp {
        Stamp { compiler: compiler.to_owned(), sources: vec![format!("{source} a.bpf.c")], object: object.to_owned() }
    }

    #[test]
    fn a_stamp_reads_as_it_was_written() {
        let stamp = stamp("clang 14.0.6", "1f", "2e");
        assert_eq!(Stamp::parse(&stamp.text()), Some(stamp));
        assert_eq!(Stamp::parse("source 1f a.bpf.c"), None);
    }

    #[test]
    fn the_same_clang_must_give_the_same_bytes_and_another_need_not() {
        let there = stamp("clang 14.0.6", "1f", "2e");
        assert!(check_stamp(&there, &there, "2e").is_ok());
        assert!(check_stamp(&there, &stamp("clang 14.0.6", "1f", "33"), "2e").is_err());
        assert!(check_stamp(&there, &stamp("clang 19.1.7", "1f", "33"), "2e").is_ok());
    }

    #[test]
    fn a_changed_source_and_a_foreign_object_are_found_with_any_clang() {
        let there = stamp("clang 14.0.6", "1f", "2e");
        let changed = check_stamp(&there, &stamp("clang 19.1.7", "44", "33"), "2e").unwrap_err();
        assert_eq!(changed.to_string(), "the source changed after the object was made");
        let foreign = check_stamp(&there, &stamp("clang 19.1.7", "1f", "33"), "55").unwrap_err();
        assert_eq!(foreign.to_string(), "the object is not the one that was made from the source");
    }
}
