//! `masu run --huge touch`: the parts of a program's memory that are huge from the first touch on.

use std::collections::BTreeMap;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use super::command::masu;
use super::programs::{Running, Said};
use super::{Outcome, no_automatic_huge_pages};
use crate::host::{Host, LiveTest, tests};
use crate::program;
use crate::setting::Setting;

/// Tests of this file, and their requirements.
pub(crate) const TESTS: &[LiveTest] = tests! {
    run requires [Root, MasuCommand, PreloadLibrary, HugePageModes];
    every_kind_of_private_memory_is_huge_from_the_first_touch;
    without_the_library_nothing_is_huge;
    what_malloc_gives_is_huge;
    with_no_align_mappings_lie_where_the_kernel_puts_them;
    stacks_are_huge_when_asked_for;
    text_is_huge_when_asked_for [CCompiler];
    smaller_sizes_serve_what_is_too_small_for_a_window;
    half_of_a_window_can_go_and_the_rest_stays [PageFrames];
    windows_that_live_for_some_milliseconds_have_a_line;
    what_is_touched_thinly_comes_back_within_seconds [PageFrames, RemoteAdvice, RemoteCollapse];
    memory_that_many_threads_change_is_never_damaged;
};

pub(super) type Result<T> = std::result::Result<T, libtest_mimic::Failed>;

/// The test program, which is also the started program: see `program.rs`.
pub(super) fn own() -> Result<PathBuf> {
    Ok(std::env::current_exe()?)
}

/// `masu run OPTIONS -- COMMAND`, not started yet, as if there were nothing of the sort around it.
pub(super) fn run(options: &[&str], command: &[&str]) -> Result<Command> {
    let mut run = masu()?;
    run.arg("run").args(options).arg("--").args(command);
    for name in ["LD_PRELOAD", "GLIBC_TUNABLES", "MASU_TOUCH", "MASU_DISABLE"] {
        run.env_remove(name);
    }
    // The tests may have been started with these signals ignored (nohup, a shell's `&`), which masu and the program
    // would inherit. SAFETY: between fork and exec: system calls with numbers only.
    unsafe {
        run.pre_exec(|| {
            for signal in [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT] {
                libc::signal(signal, libc::SIG_DFL);
            }
            Ok(())
        });
    }
    Ok(run)
}

/// The same with one of the programs of `program.rs`.
pub(super) fn run_program(options: &[&str], name: &[&str]) -> Result<Command> {
    let own = own()?;
    let mut command = vec![own.to_str().ok_or("a path that is no text")?, program::FLAG];
    command.extend(name);
    run(options, &command)
}

/// Runs it to its end.
pub(super) fn said(command: &mut Command) -> Result<Said> {
    Ok(Running::start(command.stdin(Stdio::null()))?.said()?)
}

/// Its output as `key=value`, after status 0.
pub(super) fn lines(said: &Said) -> Result<BTreeMap<String, String>> {
    assert_eq!(said.code(), 0, "{said:?}");
    let pairs = said.out.lines().filter_map(|line| line.split_once('='));
    Ok(pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).collect())
}

/// `huge/possible`.
pub(super) fn windows(lines: &BTreeMap<String, String>, name: &str) -> Result<(u64, u64)> {
    let value = lines.get(name).ok_or_else(|| format!("no {name} in {lines:?}"))?;
    let (huge, possible) = value.split_once('/').ok_or_else(|| value.clone())?;
    Ok((huge.parse()?, possible.parse()?))
}

/// File of a report; removed when dropped.
pub(super) struct Report(PathBuf);

impl Report {
    pub(super) fn new(name: &str) -> Report {
        Report(std::env::temp_dir().join(format!("masu-live-{name}-{}.json", std::process::id())))
    }

    pub(super) fn path(&self) -> &str {
        self.0.to_str().unwrap_or_default()
    }

    pub(super) fn read(&self) -> Result<Value> {
        Ok(serde_json::from_str(&std::fs::read_to_string(&self.0)?)?)
    }
}

impl Drop for Report {
    fn drop(&mut self) {
        // There may be none.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// A folder for a test's files, removed with the test.
#[derive(Debug)]
pub(super) struct Folder(pub(super) PathBuf);

impl Folder {
    pub(super) fn make(name: &str) -> std::io::Result<Folder> {
        let folder = Folder(std::env::temp_dir().join(format!("masu-live-{name}-{}", std::process::id())));
        std::fs::create_dir(&folder.0)?;
        Ok(folder)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            eprintln!("cannot remove {}: {error}", self.0.display());
        }
    }
}

/// A sum over all kinds.
fn total(report: &Value, what: &str) -> u64 {
    let kinds = report["superpages"].as_object();
    kinds.map_or(0, |kinds| kinds.values().filter_map(|kind| kind[what].as_u64()).sum())
}

/// Memory that is placed by the library or the kernel at a window, where nothing is lost.
const WHOLE: [&str; 14] = [
    "mmap-2048",
    "mmap-2052",
    "mmap-3072",
    "mmap-4096",
    "mmap-5000",
    "mmap-8192",
    "mmap-65540",
    "before-mremap",
    "moved",
    "mremap",
    "shrunk",
    "fixed",
    "populate",
    "mprotected",
];

/// Memory that lies where it lies: a window may be lost at its ends.
const AT_EDGES: [&str; 3] = ["sbrk", "bss", "data"];

/// Counted by the program itself, and by masu in the report.
fn every_kind_of_private_memory_is_huge_from_the_first_touch(_: &Host) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let report = Report::new("kinds");
    let counted = lines(&said(&mut run_program(&["--report", report.path(), "--json"], &["kinds"])?)?)?;
    for name in WHOLE {
        let (huge, possible) = windows(&counted, name)?;
        assert_eq!(huge, possible, "{name}: {counted:?}");
    }
    for name in AT_EDGES {
        let (huge, possible) = windows(&counted, name)?;
        assert!(huge + 1 >= possible && huge > 0, "{name}: {counted:?}");
    }
    for name in ["shared", "for-a-stack", "small", "32-bit"] {
        assert_eq!(counted.get(name).map(String::as_str), Some("not advised"), "{name}");
    }
    let report = report.read()?;
    assert_eq!(
        (&report["huge"], &report["served"], &report["processes"]),
        (&"touch".into(), &"touch".into(), &1.into())
    );
    for (kind, least) in [("heap", 7), ("mmap", 50), ("bss", 3)] {
        let allocated = report["superpages"][kind]["allocated_windows"].as_u64();
        assert!(allocated.is_some_and(|windows| windows >= least), "{kind}: {report}");
    }
    assert!(report["aligned_mappings"].as_u64().is_some_and(|mappings| mappings > 0), "{report}");
    assert_eq!(report["notes"], Value::Array(Vec::new()));
    Ok(())
}

/// Without the library, or with it silenced, nothing is huge: it is the library that makes the difference.
fn without_the_library_nothing_is_huge(_: &Host) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let off = lines(&said(&mut run_program(&["--huge", "off"], &["kinds"])?)?)?;
    let disabled = lines(&said(run_program(&[], &["kinds"])?.env("MASU_DISABLE", "1"))?)?;
    for name in WHOLE.iter().chain(&AT_EDGES) {
        assert_eq!(windows(&off, name)?.0, 0, "{name}");
        assert_eq!(windows(&disabled, name)?.0, 0, "{name}, MASU_DISABLE=1");
    }
    let allocated = lines(&said(run_program(&[], &["allocation", "16"])?.env("MASU_DISABLE", "0"))?)?;
    assert!(windows(&allocated, "malloc")?.0 >= 7, "0 is no word for yes: {allocated:?}");
    Ok(())
}

/// glibc's malloc is reached through its tunable, independent of the earlier contents of its stack.
fn what_malloc_gives_is_huge(_: &Host) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    for mib in ["8", "16", "64"] {
        let counted = lines(&said(&mut run_program(&[], &["allocation", mib])?)?)?;
        let (huge, possible) = windows(&counted, "malloc")?;
        assert!(huge + 1 >= possible && huge > 0, "{mib} MiB: {counted:?}");
    }
    Ok(())
}

/// Three MiB lie at the kernel's choice of address; the kernel itself aligns multiples of two MiB.
fn with_no_align_mappings_lie_where_the_kernel_puts_them(_: &Host) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let report = Report::new("no-align");
    let options = ["--no-align", "--report", report.path(), "--json"];
    let counted = lines(&said(&mut run_program(&options, &["kinds"])?)?)?;
    let (huge, possible) = windows(&counted, "mmap-65540")?;
    assert!(huge + 1 >= possible, "advised all the same: {counted:?}");
    assert_eq!(report.read()?["aligned_mappings"], 0);
    Ok(())
}

/// Deep recursion, in the first thread and in another.
fn stacks_are_huge_when_asked_for(_: &Host) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let number = |lines: &BTreeMap<String, String>, name: &str| -> Result<u64> {
        Ok(lines.get(name).ok_or("missing")?.parse()?)
    };
    let plain = lines(&said(&mut run_program(&[], &["stack"])?)?)?;
    assert_eq!((number(&plain, "main")?, number(&plain, "thread")?), (0, 0), "{plain:?}");
    let asked = lines(&said(&mut run_program(&["--stack"], &["stack"])?)?)?;
    // 6 MiB hold two whole windows at any address; the upper one was begun before the advice if it ends close below the
    // top.
    assert!(number(&asked, "main")? >= 1 && number(&asked, "thread")? >= 5, "{asked:?}");
    Ok(())
}

/// A program with many MiB of text, the compiler itself: it makes the same output from the same input, its text is on
/// huge pages, and the report names the method.
fn text_is_huge_when_asked_for(_: &Host) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let folder = Folder::make("code")?;
    let source = folder.0.join("source.c");
    std::fs::write(
        &source,
        "#include <stdio.h>\nint main(void) { for (int i = 0; i < 9; i++) printf(\"%d\", i * i); }\n",
    )?;
    let source = source.to_str().ok_or("a path that is no text")?;
    let words = ["cc", "-O2", "-S", "-o", "-", source];
    let plain = said(Command::new(words[0]).args(&words[1..]))?;
    let report = Report::new("code");
    let served = said(&mut run(&["--code", "--report", report.path(), "--json"], &words)?)?;
    assert_eq!((served.code(), &served.out, &served.err), (0, &plain.out, &plain.err));
    let report = report.read()?;
    let notes: Vec<&str> = report["notes"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    assert!(notes.iter().any(|note| note.starts_with("text: ")), "{report}");
    if notes.iter().any(|note| note.starts_with("text: copied")) {
        let code = report["superpages"]["code"]["allocated_windows"].as_u64();
        assert!(code.is_some_and(|windows| windows >= 4), "{report}");
    }
    Ok(())
}

/// A size that the host does not provide is named with its file; turned on, it serves mappings smaller than a window.
fn smaller_sizes_serve_what_is_too_small_for_a_window(_: &Host) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let file = "/sys/kernel/mm/transparent_hugepage/hugepages-64kB/enabled";
    if !Path::new(file).exists() {
        // Before Linux 6.8.
        let refused = said(&mut run(&["--sizes", "2M,64K"], &["/bin/true"])?)?;
        assert_eq!(refused.code(), 125);
        assert!(refused.first_line().contains("cannot use pages of 64 KiB: there is no "), "{}", refused.err);
        return Ok(());
    }
    let off = Setting::set(file, "never")?;
    let refused = said(&mut run(&["--sizes", "2M,64K"], &["/bin/true"])?)?;
    let line = format!("masu: cannot use pages of 64 KiB: {file} is never");
    assert_eq!((refused.code(), refused.first_line()), (125, line.as_str()));
    drop(off);
    let _on = Setting::set(file, "madvise")?;
    let report = Report::new("sizes");
    let options = ["--sizes", "2M,64K", "--report", report.path(), "--json"];
    let counted = lines(&said(&mut run_program(&options, &["kinds"])?)?)?;
    assert_eq!(counted.get("small").map(String::as_str), Some("advised"), "{counted:?}");
    let (huge, possible) = windows(&counted, "mmap-8192")?;
    assert_eq!(huge, possible);
    let report = report.read()?;
    let blocks = report["small_sizes"].as_object().and_then(|sizes| sizes.get("65536")).and_then(Value::as_u64);
    assert!(blocks.is_some_and(|blocks| blocks > 0), "{report}");
    Ok(())
}

/// Half of a window is unmapped, half of another forbidden: the rest keeps its content, and both count as downgraded.
fn half_of_a_window_can_go_and_the_rest_stays(_: &Host) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let report = Report::new("half");
    let counted = lines(&said(&mut run_program(&["--report", report.path(), "--json"], &["half"])?)?)?;
    assert_eq!(windows(&counted, "whole")?, (8, 8));
    assert_eq!(counted.get("after").map(String::as_str), Some("6"));
    let report = report.read()?;
    assert_eq!(report["superpages"]["mmap"]["allocated_windows"], 6, "{report}");
    assert!(total(&report, "downgraded_windows") >= 2, "{report}");
    Ok(())
}

/// Windows that are unmapped before the end are in the report: in a count, or as windows without one.
fn windows_that_live_for_some_milliseconds_have_a_line(_: &Host) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let report = Report::new("short");
    let counted = lines(&said(&mut run_program(&["--report", report.path(), "--json"], &["short"])?)?)?;
    assert_eq!(windows(&counted, "filled")?, (8, 8));
    let report = report.read()?;
    let number = |what: &str| report[what].as_u64().ok_or_else(|| format!("no {what}: {report}"));
    assert!(number("reserved_ever_windows")? >= 8, "{report}");
    assert!(number("uncounted_windows")? + total(&report, "reserved_windows") >= 8, "{report}");
    let at_end = report["superpages_at_end"]["mmap"]["allocated_windows"].as_u64();
    assert!(at_end.is_none_or(|windows| windows < 8), "{report}");
    Ok(())
}

/// A quarter of 512 MiB is touched, thinly: within seconds it takes hardly more than with small pages.
fn what_is_touched_thinly_comes_back_within_seconds(host: &Host) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let report = Report::new("thin");
    let counted = lines(&said(&mut run_program(&["--report", report.path(), "--json"], &["thin", "256"])?)?)?;
    let number = |name: &str| counted.get(name).and_then(|text| text.parse::<f64>().ok()).unwrap_or(f64::NAN);
    assert!(number("huge") >= 250.0 && number("full") > 500e6, "{counted:?}");
    if !linux::probe::HostFacts::gather(host.files()).split_frees_zero_pages.is_yes() {
        return Ok(());
    }
    assert_eq!(counted.get("too-much").map(String::as_str), Some("false"), "{counted:?}");
    // Paced by the processor time that it takes: some eight seconds, and twelve beside a compiler on two processors. The
    // program waits for 20.
    assert!(number("seconds") < 20.0, "{counted:?}");
    let report = report.read()?;
    assert!(report["demoted_windows"].as_u64().is_some_and(|windows| windows > 200), "{report}");
    Ok(())
}

/// Mapped, moved, cut and unmapped by 200 threads, while children are forked and alignment is switched off and on.
fn memory_that_many_threads_change_is_never_damaged(_: &Host) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let counted = lines(&said(&mut run_program(&["-q"], &["churn", "200", "4"])?)?)?;
    let number = |name: &str| counted.get(name).and_then(|text| text.parse::<u64>().ok()).unwrap_or(0);
    assert!(number("rounds") > 1000 && number("forks") >= 2 && number("turned") > 20, "{counted:?}");
    Ok(())
}
