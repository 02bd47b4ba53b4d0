//! `masu run` on third-party programs.

use std::process::Command;

use super::programs;
use super::run::{lines, run, run_program, said, windows};
use super::{Outcome, no_automatic_huge_pages};
use crate::host::{Host, LiveTest, tests};

/// Tests of this file, and their requirements.
pub(crate) const TESTS: &[LiveTest] = tests! {
    run_programs requires [Root, MasuCommand, PreloadLibrary, HugePageModes];
    other_allocators_get_huge_pages [Allocators];
    stress_ng_finds_its_memory_as_it_left_it [StressNg];
    python_with_threads_and_children_says_the_same [Python];
};

/// jemalloc, mimalloc, tcmalloc: each asks for memory by mmap, and each gets huge pages.
fn other_allocators_get_huge_pages(_: &Host) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    for allocator in programs::allocators() {
        let said = said(run_program(&["-q"], &["allocation", "64"])?.env("LD_PRELOAD", &allocator))?;
        let (huge, possible) = windows(&lines(&said)?, "malloc")?;
        assert!(huge + 1 >= possible, "{}: {said:?}", allocator.display());
        assert_eq!(said.err, "", "{}", allocator.display());
    }
    Ok(())
}

fn stress(arguments: &[&str]) -> Outcome {
    let mut command = vec!["stress-ng", "--verify", "--temp-path", "/tmp", "--quiet"];
    command.extend(arguments);
    let said = said(&mut run(&["-q"], &command)?)?;
    assert_eq!((said.code(), said.err.as_str()), (0, ""), "{said:?}");
    Ok(())
}

/// stress-ng checks its own writes, by all its methods.
fn stress_ng_finds_its_memory_as_it_left_it(_: &Host) -> Outcome {
    stress(&["--vm", "2", "--vm-bytes", "128M", "--vm-method", "all", "-t", "8s"])?;
    stress(&["--mmap", "1", "--mremap", "2", "--brk", "1", "--malloc", "1", "-t", "6s"])
}

const SCRIPT: &str = "
import mmap, os, subprocess, sys, threading, multiprocessing
def work(n):
    b = bytearray(n << 20); b[::4096] = b'x' * len(b[::4096]); return b.count(b'x')
m = mmap.mmap(-1, 3 << 20); m[:5] = b'hello'; m.resize(9 << 20) if hasattr(m, 'resize') else None
out = [m[:5], work(8)]
threads = [threading.Thread(target=work, args=(5,)) for _ in range(8)]
[t.start() for t in threads]; [t.join() for t in threads]
out.append(subprocess.run([sys.executable, '-c', 'print(len(bytearray(9 << 20)))'], capture_output=True).stdout)
with multiprocessing.get_context('fork').Pool(3) as pool:
    out.append(pool.map(work, [2, 3, 4]))
pid = os.fork()
if pid == 0:
    os._exit(work(6) != 1536)
out.append(os.waitpid(pid, 0)[1])
print(out)
";

/// Python with maps, threads, forks and programs of its own: the output is the same as without masu.
fn python_with_threads_and_children_says_the_same(_: &Host) -> Outcome {
    let python = programs::python().ok_or("no python3")?;
    let python = python.to_str().ok_or("a path that is no text")?;
    let plain = said(Command::new(python).args(["-c", SCRIPT]))?;
    assert_eq!(plain.code(), 0, "{plain:?}");
    for options in [&["-q"][..], &["-q", "--code", "--stack"], &["-q", "--no-align", "--no-children"]] {
        let served = said(&mut run(options, &[python, "-c", SCRIPT])?)?;
        assert_eq!((served.code(), &served.out, &served.err), (0, &plain.out, &plain.err), "{options:?}");
    }
    Ok(())
}
