//! A program that forks again and again: its windows are split by each fork.

use std::io::BufRead as _;
use std::process::{Command, Stdio};

use super::command::said;
use super::programs::{Running, python};
use super::{Outcome, no_automatic_huge_pages};
use crate::host::{Host, LiveTest, tests};

/// Tests of this file, and their requirements.
pub(crate) const TESTS: &[LiveTest] = tests! {
    forking requires [Root, MasuCommand, Python, PageTableWalk, RemoteCollapse, HugePageModes];
    windows_that_forks_split_again_and_again_are_promoted_ever_later;
};

/// Writes to each of so many windows, and forks every 200 ms a child that lives 100 ms. Checks the content at the end of
/// its input.
const FORKS: &str = r#"
import ctypes, mmap, os, select, sys, time
n = int(sys.argv[1]) << 21
m = mmap.mmap(-1, n + (2 << 20), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
base = -ctypes.addressof(ctypes.c_char.from_buffer(m)) % (2 << 20)
for i in range(0, n, 4096): m[base + i] = i >> 12 & 255
print("ready", flush=True)
child, due = 0, time.monotonic()
while not select.select([0], [], [], 0)[0]:
    for i in range(0, n, 4096): m[base + i] = i >> 12 & 255
    now = time.monotonic()
    if child and now > due + .1:
        os.kill(child, 9); os.waitpid(child, 0); child = 0
    if not child and now > due + .2:
        due = now; child = os.fork()
        if not child:
            while True: time.sleep(1)
if child: os.kill(child, 9); os.waitpid(child, 0)
print(sum(m[base + i] != i >> 12 & 255 for i in range(0, n, 4096)), flush=True)
"#;

/// Each window may be promoted at the first look, and 1 s, 3 s and 7 s after the first forks.
fn windows_that_forks_split_again_and_again_are_promoted_ever_later(_: &Host) -> Outcome {
    const WINDOWS: u64 = 16;
    let _quiet = no_automatic_huge_pages()?;
    let mut command = Command::new(python().ok_or("no python")?);
    command.args(["-c", FORKS, &WINDOWS.to_string()]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut program = Running(command.spawn()?);
    let mut lines = std::io::BufReader::new(program.0.stdout.take().ok_or("no pipe")?).lines();
    assert_eq!(lines.next().ok_or("no line")??, "ready");
    let attach = said(&["attach", &program.pid().to_string(), "--for", "6s", "--json"])?;
    let report: serde_json::Value = serde_json::from_str(&attach.out)?;
    let promoted = report["windows_promoted"].as_u64().ok_or("no count")?;
    // Python's own heap has some windows, too.
    assert!((1..=(WINDOWS + 16) * 4).contains(&promoted), "{report}");
    drop(program.0.stdin.take());
    assert_eq!(lines.next().ok_or("no line")??, "0", "wrong content");
    Ok(())
}
