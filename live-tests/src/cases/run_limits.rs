//! `masu run` within limits (`ulimit`) that just do for the program alone: it does not fail earlier.

use std::process::Command;

use super::Outcome;
use super::programs;
use super::run::{Report, Result, run, said};
use crate::host::{Host, LiveTest, tests};

/// Tests of this file, and their requirements.
pub(crate) const TESTS: &[LiveTest] = tests! {
    run_limits requires [Root, MasuCommand, PreloadLibrary, Shell, Python];
    a_program_needs_no_more_than_alone;
    a_child_within_a_limit_is_left_out_and_counted;
    a_small_limit_of_file_sizes_ends_neither_masu_nor_the_program;
};

/// Memory, a thread, open files, recursion, a file of its own.
const WORK: &str = "import os, sys, threading
b = bytearray(24 << 20); b[::4096] = b'x' * len(b[::4096])
t = threading.Thread(target=lambda: bytearray(3 << 20)); t.start(); t.join()
f = [os.open('/dev/null', 0) for _ in range(20)]
def down(n): return n and down(n - 1)
print(b.count(b'x'), len(f), down(500))
";

/// `ulimit` with this option and value, then Python.
fn within(option: &str, value: u64) -> Result<Vec<String>> {
    let python = programs::python().ok_or("no python3")?;
    let script = format!("ulimit -S {option} {value} && exec \"$0\" \"$@\"");
    Ok(["-c", &script, python.to_str().ok_or("a path that is no text")?, "-c", WORK].map(str::to_owned).to_vec())
}

/// Whether the program works three times. Python without memory for its thread may wait for it for ever (CPython 3.11).
fn works_alone(option: &str, value: u64) -> Result<bool> {
    for _ in 0..3 {
        let said = said(Command::new("timeout").args(["-s", "KILL", "5", "sh"]).args(within(option, value)?))?;
        if said.code() != 0 || said.out != "6144 20 0\n" {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Smallest value with which the program works alone.
fn least(option: &str) -> Result<u64> {
    let (mut fails, mut works) = (0, if option == "-n" { 256 } else { 1 << 22 });
    assert!(works_alone(option, works)?, "{option}");
    while works - fails > 1 {
        let middle = fails + (works - fails) / 2;
        *(if works_alone(option, middle)? { &mut works } else { &mut fails }) = middle;
    }
    Ok(works)
}

/// Address space, data, stack (in KiB) and open files. The limit is masu's, too, which the program inherits from it.
fn a_program_needs_no_more_than_alone(_: &Host) -> Outcome {
    for option in ["-v", "-d", "-s", "-n"] {
        // Where memory begins is random, and so is the need of the last pages.
        let value = least(option)? + if option == "-n" { 0 } else { 256 };
        for options in [&["-q"][..], &["-q", "--huge", "hot"]] {
            let masu = run(options, &[])?;
            let mut command = Command::new("sh");
            let mut arguments = within(option, value)?;
            arguments.splice(2..2, masu_words(&masu)?);
            let said = said(command.args(arguments))?;
            let line = said.own_errors().lines().next().unwrap_or_default().to_owned();
            assert_eq!((said.code(), said.out.as_str()), (0, "6144 20 0\n"), "{option} {value} {options:?}: {line}");
        }
    }
    Ok(())
}

/// The command and its arguments, up to `--`.
fn masu_words(command: &Command) -> Result<Vec<String>> {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    Ok(words.map(|word| word.to_str().map(str::to_owned)).collect::<Option<_>>().ok_or("a path that is no text")?)
}

/// A shell limits what it starts.
fn a_child_within_a_limit_is_left_out_and_counted(_: &Host) -> Outcome {
    let value = least("-v")? + 256;
    let report = Report::new("limited");
    let command = within("-v", value)?;
    let command: Vec<&str> = std::iter::once("sh").chain(command.iter().map(String::as_str)).collect();
    let said = said(&mut run(&["--report", report.path(), "--json"], &command)?)?;
    assert_eq!((said.code(), said.out.as_str()), (0, "6144 20 0\n"), "{said:?}");
    assert_eq!(report.read()?["left_out"]["within a ulimit -v or -d"], 1);
    Ok(())
}

/// masu's shared page is larger than that, and so is no report.
fn a_small_limit_of_file_sizes_ends_neither_masu_nor_the_program(_: &Host) -> Outcome {
    let masu = programs::masu().ok_or("no masu")?;
    for how in ["touch", "hot", "off"] {
        let line = format!("ulimit -f 1; exec {} run --huge {how} -- /bin/sh -c 'ulimit -f; exit 7'", masu.display());
        let said = said(Command::new("/bin/sh").args(["-c", &line]))?;
        // The shell counts in 512 bytes.
        assert_eq!((said.code(), said.out.as_str()), (7, "1\n"), "{how}: {}", said.err);
    }
    Ok(())
}
