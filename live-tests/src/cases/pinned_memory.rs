//! Memory that the kernel holds for a device or a pipe (buffers of io_uring, vmsplice, direct I/O), and memory with rules of
//! its own (sealed, secret).

use std::io::BufRead as _;
use std::process::{Command, Stdio};

use super::command::{json, said};
use super::programs::{Running, python};
use super::run::Folder;
use super::{Outcome, no_automatic_huge_pages};
use crate::host::{Host, LiveTest, tests};

/// Tests of this file, and their requirements.
pub(crate) const TESTS: &[LiveTest] = tests! {
    pinned_memory requires [Root, MasuCommand, Python];
    spliced_pages_are_named_and_keep_their_content [PageFrames, RemoteAdvice, HugePageModes];
    memory_under_direct_io_keeps_its_content [PageFrames, RemoteAdvice, HugePageModes, DiskFiles];
    sealed_memory_is_promoted_and_split [PageFrames, RemoteAdvice, HugePageModes];
    secret_memory_is_left_alone_and_named [PageFrames, RemoteAdvice, HugePageModes];
    registered_buffers_are_named_and_keep_their_content [PageFrames, RemoteAdvice, HugePageModes];
};

/// Windows of buffers, as many as the argument says. Checks them at the end of its input.
const BUFFERS: &str = r#"
import ctypes, mmap, select, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
n = int(sys.argv[1]) << 21
m = mmap.mmap(-1, n + (2 << 20), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
base = (ctypes.addressof(ctypes.c_char.from_buffer(m)) + (2 << 20) - 1) & ~((2 << 20) - 1)
pages = range(0, n, 4096)
libc.madvise(base, n, 15)
for i in pages: ctypes.memset(base + i, (i >> 12) % 251 + 1, 64)
libc.madvise(base, n, 14)
class Buffer(ctypes.Structure): _fields_ = [("start", ctypes.c_void_p), ("bytes", ctypes.c_size_t)]
ring = libc.syscall(425, 4, ctypes.create_string_buffer(120))
buffers = (Buffer * (n >> 21))(*[Buffer(base + (i << 21), 2 << 20) for i in range(n >> 21)])
done = ring >= 0 and libc.syscall(427, ring, 0, buffers, n >> 21) == 0
print("pinned" if done else "errno %d" % ctypes.get_errno(), flush=True)
other_pages = mmap.mmap(-1, 64 << 12, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
while not select.select([0], [], [], 0)[0]:
    for i in pages: ctypes.string_at(base + i, 1)
    # All pages fit into the TLB, and an entry of the TLB sets no accessed bit again. 64 pages given back flush it.
    for i in range(0, 64 << 12, 4096): other_pages[i] = 1
    other_pages.madvise(mmap.MADV_DONTNEED)
print(sum(ctypes.string_at(base + i, 64) != bytes([(i >> 12) % 251 + 1]) * 64 for i in pages), flush=True)
"#;

/// A promotion would move the pages away from the device: the kernel refuses, masu names the reason, and the content
/// stays.
fn registered_buffers_are_named_and_keep_their_content(_: &Host) -> Outcome {
    const WINDOWS: u64 = 4;
    let _quiet = no_automatic_huge_pages()?;
    let mut command = Command::new(python().ok_or("no python")?);
    command.args(["-c", BUFFERS, &WINDOWS.to_string()]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut program = Running(command.spawn()?);
    let mut lines = std::io::BufReader::new(program.0.stdout.take().ok_or("no pipe")?).lines();
    let ready = lines.next().ok_or("no line")??;
    if ready != "pinned" {
        return Ok(()); // no io_uring here, or a limit on locked memory
    }
    let attach = said(&["attach", &program.pid().to_string(), "--for", "8s", "--json"])?;
    let report: serde_json::Value = serde_json::from_str(&attach.out)?;
    let refused = |why: &str| report["windows_refused"][why].as_u64().unwrap_or(0);
    // khugepaged may have made a window huge before the buffers were registered.
    let was_huge = report["windows_huge"].as_u64().unwrap_or(0);
    assert_eq!(refused("pinned") + refused("try-again") + was_huge, WINDOWS, "{report}");
    assert!(was_huge < WINDOWS && report["windows_promoted"] == 0, "{report}");
    let bytes = |why: &str| report["refused_resident_bytes"][why].as_u64().unwrap_or(0);
    assert_eq!(bytes("pinned") + bytes("try-again"), (WINDOWS - was_huge) << 21, "{report}");
    drop(program.0.stdin.take());
    assert_eq!(lines.next().ok_or("no line")??, "0", "wrong content");
    Ok(())
}

/// Windows of [`KINDS`].
const WINDOWS: u64 = 4;

/// Four windows of memory of one kind, all of them read again and again. Says whether the kernel has this kind, and at the
/// end of its input the number of pages with wrong content.
const KINDS: &str = r#"
import ctypes, mmap, os, select, sys, threading
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.pwrite.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_long]
libc.syscall.restype = ctypes.c_long
class Part(ctypes.Structure): _fields_ = [("start", ctypes.c_void_p), ("bytes", ctypes.c_size_t)]
H, kind, ends = 2 << 20, sys.argv[1], False
n, pages = 4 * H, range(0, 4 * H, 4096)
right = lambda i: bytes([(i >> 12) % 251 + 1]) * 64
def fill(p):
    for i in pages: ctypes.memset(p + i, (i >> 12) % 251 + 1, 4096)
    return p
def room(): return (libc.mmap(None, n + H, 3, 0x22, -1, 0) + H - 1) & ~(H - 1)
def anonymous(): return fill(room())
good, other = True, lambda: 0
if kind == "spliced":
    p = anonymous()
    pipes = [os.pipe() for _ in range(4)]
    for w in range(4): good &= libc.vmsplice(pipes[w][1], ctypes.byref(Part(p + w * H, 16 * 4096)), 1, 0) > 0
elif kind == "direct":
    p = anonymous()
    file = os.open(sys.argv[2], os.O_RDWR | os.O_CREAT | os.O_DIRECT, 0o600)
    good = libc.pwrite(file, p, n, 0) == n
    def write():
        while not ends: libc.pwrite(file, p, n, 0)
    writers = [threading.Thread(target=write) for _ in range(2)]
    for one in writers: one.start()
    def other():
        for one in writers: one.join()
        with open(sys.argv[2], "rb") as f: written = f.read()
        return sum(written[i:i + 64] != right(i) for i in pages)
elif kind == "sealed":
    p = anonymous()
    good = libc.syscall(462, ctypes.c_void_p(p), ctypes.c_size_t(n), 0) == 0
elif kind == "secret":
    file = libc.syscall(447, 0)
    good = file >= 0
    if good:
        os.ftruncate(file, n)
        p = fill(libc.mmap(room(), n, 3, 0x11, file, 0)) # MAP_SHARED | MAP_FIXED: starts with a window
print("ready" if good else "errno %d" % ctypes.get_errno(), flush=True)
other_pages = mmap.mmap(-1, 64 << 12, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
while good and not select.select([0], [], [], 0)[0]:
    for i in pages: ctypes.string_at(p + i, 1)
    for i in range(0, 64 << 12, 4096): other_pages[i] = 1 # as in BUFFERS
    other_pages.madvise(mmap.MADV_DONTNEED)
ends = True
if good: print(sum(ctypes.string_at(p + i, 64) != right(i) for i in pages) + other(), flush=True)
"#;

/// Runs the program, has `check` work on it, and compares its content. Without effect where the kernel has no such memory.
fn with_kind(kind: &[&str], check: impl FnOnce(&str) -> Outcome) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let mut command = Command::new(python().ok_or("no python")?);
    command.args(["-c", KINDS]).args(kind).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut program = Running(command.spawn()?);
    let mut lines = std::io::BufReader::new(program.0.stdout.take().ok_or("no pipe")?).lines();
    if lines.next().ok_or("no line")?? != "ready" {
        return Ok(());
    }
    check(&program.pid().to_string())?;
    drop(program.0.stdin.take());
    assert_eq!(lines.next().ok_or("no line")??, "0", "{kind:?}: wrong content");
    Ok(())
}

/// A pipe holds some pages of each window.
fn spliced_pages_are_named_and_keep_their_content(_: &Host) -> Outcome {
    with_kind(&["spliced"], |pid| {
        let report = json(&["attach", pid, "--for", "4s", "--json"])?;
        let sum =
            |field: &str| ["pinned", "try-again"].iter().filter_map(|why| report[field][why].as_u64()).sum::<u64>();
        assert_eq!(report["windows_promoted"], 0, "{report}");
        assert_eq!((sum("windows_refused"), sum("refused_resident_bytes")), (WINDOWS, WINDOWS << 21), "{report}");
        Ok(())
    })
}

/// The kernel writes from the memory to a file while masu promotes what it can: memory and file are right.
fn memory_under_direct_io_keeps_its_content(_: &Host) -> Outcome {
    let folder = Folder::make("direct")?;
    let file = folder.0.join("file");
    with_kind(&["direct", file.to_str().ok_or("a path that is no text")?], |pid| {
        let report = json(&["attach", pid, "--for", "4s", "--json"])?;
        // Hot, and huge when its pages are free for a moment.
        assert!(report["windows_seen"].as_u64() >= Some(WINDOWS) && report["windows_cold"] == 0, "{report}");
        Ok(())
    })
}

/// A seal (mseal) forbids changes of the mapping and its discard; neither a promotion nor a split is one.
fn sealed_memory_is_promoted_and_split(_: &Host) -> Outcome {
    with_kind(&["sealed"], |pid| {
        let report = json(&["attach", pid, "--for", "4s", "--json"])?;
        assert_eq!(report["windows_huge"], WINDOWS, "{report}");
        let report = json(&["set", pid, "huge=off", "--json"])?;
        assert_eq!((&report["windows_split"], &report["windows_huge_after"]), (&WINDOWS.into(), &0.into()), "{report}");
        Ok(())
    })
}

/// Secret memory (memfd_secret) is a file's for masu, and has a line.
fn secret_memory_is_left_alone_and_named(_: &Host) -> Outcome {
    with_kind(&["secret"], |pid| {
        let report = json(&["attach", pid, "--for", "4s", "--json"])?;
        let of = |field: &str| report[field]["not-anonymous"].as_u64().unwrap_or(0);
        assert!(of("windows_refused") >= WINDOWS && of("refused_resident_bytes") >= WINDOWS << 21, "{report}");
        Ok(())
    })
}
