//! Counts in the report of `masu run`: they agree with `masu stat`, and do not depend on the way of starting.

use std::io::{BufRead as _, Read as _};
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Stdio};

use linux::probe::HostFacts;
use serde_json::Value;

use super::command::json;
use super::programs::{self, Running};
use super::run::{Folder, Report, Result, run, said};
use super::{Outcome, no_automatic_huge_pages};
use crate::host::{Host, LiveTest, tests};

/// Tests of this file, and their requirements.
pub(crate) const TESTS: &[LiveTest] = tests! {
    run_counts requires [Root, MasuCommand, PreloadLibrary, HugePageModes, PageFrames];
    the_report_and_stat_agree_on_downgraded_windows [Python];
    sparse_windows_that_the_program_moves_are_split [Python, RemoteAdvice, PagemapScan];
    lazily_freed_memory_stays_the_kernels_under_run [Python, RemoteCollapse, PageTableWalk];
    the_kinds_of_a_python_with_numpy_do_not_depend_on_its_start [Python, Numpy, Shell];
};

/// Twelve windows, eight of them filled, three quarters of four given back. Ends with its input.
const TEARS: &str = r#"
import ctypes, os, sys
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
H = 2 << 20
p = (libc.mmap(None, 12 * H, 3, 0x22, -1, 0) + H - 1) & ~(H - 1)
ctypes.memset(p, 7, 8 * H)
for w in range(0, 8, 2): libc.madvise(p + w * H, 3 * H // 4, 4)
print(os.getpid(), flush=True)
sys.stdin.read()
print(all(ctypes.string_at(p + w * H + (w % 2 == 0) * 3 * H // 4, 8) == b'\7' * 8 for w in range(8)))
"#;

const COLUMNS: [&str; 4] = ["reserved_windows", "allocated_windows", "failed_windows", "downgraded_windows"];

fn numbers(counted: &Value) -> Result<[u64; 4]> {
    let mut numbers = [0; 4];
    for (number, column) in numbers.iter_mut().zip(COLUMNS) {
        *number = counted[column].as_u64().ok_or_else(|| format!("no {column} in {counted}"))?;
    }
    Ok(numbers)
}

/// The mappings of a program that has torn half of its huge pages, counted by both.
fn the_report_and_stat_agree_on_downgraded_windows(_: &Host) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let python = programs::python().ok_or("no python3")?;
    let report = Report::new("agree");
    let command = [python.to_str().ok_or("a path that is no text")?, "-c", TEARS];
    let mut running = run(&["--report", report.path(), "--json"], &command)?;
    let mut running = Running(running.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?);
    let mut output = std::io::BufReader::new(running.0.stdout.take().ok_or("no pipe")?);
    let mut pid = String::new();
    output.read_line(&mut pid)?;
    let stat = json(&["stat", pid.trim(), "--json"])?;
    let mmap = stat["by_kind"].as_array().and_then(|kinds| kinds.iter().find(|kind| kind["kind"] == "mmap"));
    let mmap = numbers(mmap.ok_or("no mmap")?)?;
    drop(running.0.stdin.take());
    let mut rest = String::new();
    output.read_to_string(&mut rest)?;
    assert_eq!((running.said()?.code(), rest.trim()), (0, "True"));
    let report = report.read()?;
    assert_eq!(numbers(&report["superpages_at_end"]["mmap"])?, mmap, "{report}");
    assert!(mmap[3] >= 4 && mmap[1] >= 4, "{stat}");
    Ok(())
}

/// Sixteen windows, the first 200 pages of each hot and the others freed lazily: LazyFree at first, after five seconds, and
/// whether the content of the hot pages is right.
const FREES: &str = r#"
import ctypes, mmap, re, time
W, N, USED = 2 << 20, 16, 200 * 4096
def kib(): return int(re.search(r"LazyFree:\s+(\d+)", open("/proc/self/smaps_rollup").read())[1])
m = mmap.mmap(-1, (N + 1) * W, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
start = -ctypes.addressof(ctypes.c_char.from_buffer(m)) % W
for w in range(N):
    for i in range(0, W, 4096): m[start + w * W + i] = 1
    m.madvise(8, start + w * W + USED, W - USED)
before = kib()
end = time.monotonic() + 5
while time.monotonic() < end:
    for w in range(N):
        for i in range(0, USED, 4096): m[start + w * W + i] = 2
print(before, kib(), all(m[start + w * W + i] == 2 for w in range(N) for i in range(0, USED, 4096)))
"#;

/// No promotion within a budget of nothing makes it ordinary memory.
fn lazily_freed_memory_stays_the_kernels_under_run(_: &Host) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let python = programs::python().ok_or("no python3")?;
    let command = [python.to_str().ok_or("a path that is no text")?, "-c", FREES];
    let said = said(&mut run(&["-q", "--huge", "hot", "--max-extra-rss", "0"], &command)?)?;
    let words: Vec<&str> = said.out.split_whitespace().collect();
    let [before, after, right] = words[..] else { return Err(format!("{said:?}").into()) };
    let (before, after): (u64, u64) = (before.parse()?, after.parse()?);
    assert!(before > 12 << 10 && after >= before / 20 * 19, "{before} KiB, then {after} KiB");
    assert_eq!((said.code(), right), (0, "True"));
    Ok(())
}

/// Sixteen windows with data in every eighth page, in seven places by turns, a second in two or three, until most of the
/// memory is returned: KiB at first and at the end, and whether the content is right.
const MOVES: &str = r#"
import ctypes, re, time
libc = ctypes.CDLL(None)
libc.mmap.restype = libc.mremap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.mremap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p]
W, N = 2 << 20, 16
SIZE = N * W
def kib(): return int(re.search(r"RssAnon:\s+(\d+)", open("/proc/self/status").read())[1])
base = kib()
first = (libc.mmap(None, 7 * (SIZE + W) + W, 0, 0x4022, -1, 0) + W - 1) & ~(W - 1)
places = [first + place * (SIZE + W) for place in range(7)]
at = libc.mmap(places[0], SIZE, 3, 0x32, -1, 0)
for page in range(0, SIZE, 8 * 4096): ctypes.memset(at + page, 7, 1)
before, turn, end = kib() - base, 0, time.monotonic() + 60
while kib() - base > before // 2 and time.monotonic() < end:
    time.sleep(0.4)
    turn += 1
    to = libc.mremap(at, SIZE, SIZE, 3, places[turn % 7])
    libc.mmap(at, SIZE, 0, 0x4032, -1, 0)
    at = to
print(before, kib() - base, all(ctypes.string_at(at + page, 2) == b"\7\0" for page in range(0, SIZE, 8 * 4096)))
"#;

/// masu holds no CAP_SYS_ADMIN here, and sees no frames.
fn sparse_windows_that_the_program_moves_are_split(host: &Host) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    if !HostFacts::gather(host.files()).split_frees_zero_pages.is_yes() {
        return Ok(());
    }
    let python = programs::python().ok_or("no python3")?;
    let report = Report::new("moves");
    let command = [python.to_str().ok_or("a path that is no text")?, "-c", MOVES];
    let said = said(&mut run(&["--max-extra-rss", "0", "--report", report.path(), "--json"], &command)?)?;
    let words: Vec<&str> = said.out.split_whitespace().collect();
    let [before, after, right] = words[..] else { return Err(format!("{said:?}").into()) };
    let (before, after): (u64, u64) = (before.parse()?, after.parse()?);
    assert_eq!((said.code(), right), (0, "True"));
    assert!(before > 30 << 10 && after <= before / 2, "{before} KiB, then {after} KiB");
    let report = report.read()?;
    assert!(report["demoted_windows"].as_u64() > Some(8), "{report}");
    Ok(())
}

/// The large array is there still at the last count: it has a reference for ever.
const NUMPY: &str = "#!/usr/bin/python3
import ctypes
import numpy as n
a = n.ones(8 << 20)
ctypes.pythonapi.Py_IncRef(ctypes.py_object(a))
b = [n.arange(40000) + i for i in range(200)]
print(a.sum(), sum(x.sum() for x in b))
";

/// As a file, as a module, by its first line, by env and by a shell.
fn the_kinds_of_a_python_with_numpy_do_not_depend_on_its_start(_: &Host) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let folder = Folder::make("numpy")?;
    let file = folder.0.join("arrays.py");
    std::fs::write(&file, NUMPY)?;
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755))?;
    let file = file.to_str().ok_or("a path that is no text")?;
    let python = "/usr/bin/python3";
    let ways = [
        vec![python, file],
        vec![python, "-m", "arrays"],
        vec![file],
        vec!["env", python, file],
        vec!["sh", "-c", file],
    ];
    let mut started = Vec::new();
    for (number, way) in ways.iter().enumerate() {
        let report = Report::new(&format!("numpy-{number}"));
        let mut command: Command = run(&["--report", report.path(), "--json"], way)?;
        started.push((way, report, Running::start(command.current_dir(&folder.0).env("OPENBLAS_NUM_THREADS", "1"))?));
    }
    let mut first: Option<(&Vec<&str>, String, [u64; 2])> = None;
    for (way, report, running) in started {
        let said = running.said()?;
        assert_eq!(said.code(), 0, "{said:?}");
        let report = report.read()?;
        let of = |kind: &str| report["superpages_at_end"][kind]["reserved_windows"].as_u64().unwrap_or(0);
        let counted = [of("mmap"), of("bss")];
        assert!(counted[0] >= 31, "the array: {report}");
        let (before, output, expected) = first.get_or_insert_with(|| (way, said.out.clone(), counted));
        assert_eq!((&said.out, counted), (&*output, *expected), "{way:?} and {before:?}: {report}");
        // Where the heap begins is random: a window more or less at each of its ends.
        assert!(of("heap") <= 8, "{report}");
    }
    Ok(())
}
