//! Memory that the kernel holds for a device: buffers registered with io_uring.

use std::io::BufRead as _;
use std::process::{Command, Stdio};

use super::command::said;
use super::programs::{Running, python};
use super::{Outcome, no_automatic_huge_pages};
use crate::host::{Host, LiveTest, tests};

/// Tests of this file, and their requirements.
pub(crate) const TESTS: &[LiveTest] = tests! {
    pinned_memory requires [Root, MasuCommand, Python];
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
while not select.select([0], [], [], 0)[0]:
    for i in pages: ctypes.string_at(base + i, 1)
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
    drop(program.0.stdin.take());
    assert_eq!(lines.next().ok_or("no line")??, "0", "wrong content");
    Ok(())
}
