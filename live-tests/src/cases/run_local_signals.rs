//! `masu run --local`: signals of the program, on stacks that are paged, and under a tracer.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::Outcome;
use super::run::{Folder, Result, said};
use super::run_local::{self, built, paged};
use crate::host::{Host, LiveTest, tests};

/// Tests of this file, and their requirements.
pub(crate) const TESTS: &[LiveTest] = tests! {
    run_local_signals requires [MasuCommand, PagerLibrary, UserFaults, CPrograms];
    a_signal_comes_while_a_fiber_runs_on_memory_from_malloc [RealProcessor];
    handlers_run_on_the_stack_that_the_program_gave_them [RealProcessor];
    settings_of_signals_are_what_the_program_set [RealProcessor];
    a_child_that_is_traced_before_its_exec_runs [Shell];
    a_signal_ends_the_parent_of_a_vfork;
    a_handler_returns_to_what_a_signal_interrupted [RealProcessor];
    a_handled_signal_costs_few_system_calls [RealProcessor];
    an_ignored_signal_ends_no_call_of_another_thread;
    blocked_signals_stay_pending_when_a_handler_returns;
    a_signal_that_is_handled_as_of_now_is_not_lost [RealProcessor];
    a_debugger_outside_reads_what_is_there_or_an_error [Root];
};

fn program(folder: &Folder) -> Result<String> {
    built(folder, "signals", include_str!("../../programs/signals.c"))
}

/// Runs a part of the program without masu, and with each local size on each backend.
fn right(host: &Host, part: &str, sizes: &[&str]) -> Outcome {
    let folder = Folder::make("local-signals")?;
    run_local::right(host, &program(&folder)?, part, sizes)
}

/// Runs a part of the program of ignored signals likewise.
fn ignored(host: &Host, part: &str, sizes: &[&str]) -> Outcome {
    let folder = Folder::make("local-signals")?;
    let program = built(&folder, "ignored", include_str!("../../programs/ignored.c"))?;
    run_local::right(host, &program, part, sizes)
}

/// A write stays whole beside SIGCHLD of children, and SIGPIPE of another process, whatever these were before.
fn an_ignored_signal_ends_no_call_of_another_thread(host: &Host) -> Outcome {
    ignored(host, "children", &["32MiB"])?;
    ignored(host, "handlers", &["32MiB"])
}

fn blocked_signals_stay_pending_when_a_handler_returns(host: &Host) -> Outcome {
    ignored(host, "pending", &["32MiB"])
}

/// Another thread sets its handler while this one serves a fault with the signal not blocked.
fn a_signal_that_is_handled_as_of_now_is_not_lost(host: &Host) -> Outcome {
    ignored(host, "changed", &["32MiB", "2MiB"])
}

/// The kernel writes the frame outside of any call, and ends the program at a missing page.
fn a_signal_comes_while_a_fiber_runs_on_memory_from_malloc(host: &Host) -> Outcome {
    right(host, "fiber", &["64MiB", "2MiB"])
}

/// Nested handlers, longjmp out of them, a thread on a stack from malloc, repairs of protected memory.
fn handlers_run_on_the_stack_that_the_program_gave_them(host: &Host) -> Outcome {
    right(host, "stack", &["64MiB", "4MiB"])
}

/// SA_RESETHAND, sigsuspend, registers, restarted calls, a forked child.
fn settings_of_signals_are_what_the_program_set(host: &Host) -> Outcome {
    right(host, "setting", &["64MiB"])
}

/// Its tracer waits in vfork, so no signal of the library may stop it before.
fn a_child_that_is_traced_before_its_exec_runs(host: &Host) -> Outcome {
    right(host, "debugger", &["64MiB"])
}

/// The child sleeps for a minute.
fn a_signal_ends_the_parent_of_a_vfork(_: &Host) -> Outcome {
    let folder = Folder::make("local-signals-parent")?;
    let begun = Instant::now();
    let mut run = paged(&["--local", "64MiB"], &[&program(&folder)?, "parent"])?;
    // Without pipes, whose end the child would hold open.
    let status = run.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null()).status()?;
    assert_eq!(status.signal(), Some(libc::SIGTERM), "{status}");
    assert!(begun.elapsed() < Duration::from_secs(30), "it waited for the child");
    Ok(())
}

/// Unwinders find the interrupted function, and a forked child returns as its parent does.
fn a_handler_returns_to_what_a_signal_interrupted(host: &Host) -> Outcome {
    right(host, "return", &["64MiB"])
}

/// Of a thousand handled signals: the returns from the trap of tgkill and to the handler; probes of the two pages of
/// the frame; the mask, the stack and the return. None reads memory by a call.
const CALLS: [(&str, u32); 4] =
    [("rt_sigreturn", 3), ("rt_sigprocmask", 3), ("sigaltstack", 1), ("process_vm_readv", 0)];

/// strace counts, where it is installed.
fn a_handled_signal_costs_few_system_calls(_: &Host) -> Outcome {
    let folder = Folder::make("local-signals-count")?;
    let table = folder.0.join("calls");
    let run = paged(&["--local", "64MiB"], &[&program(&folder)?, "thousand"])?;
    let mut strace = Command::new("strace");
    let names = CALLS.map(|(name, _)| name).join(",");
    strace.args(["-f", "-c", "-U", "calls,name", "-e", &format!("trace={names}"), "-o"]).arg(&table);
    strace.arg(run.get_program()).args(run.get_args());
    strace.envs(run.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let said = match said(&mut strace) {
        Err(_) if Command::new("strace").arg("-V").output().is_err() => {
            println!("SKIP: strace is not installed");
            return Ok(());
        }
        said => said?,
    };
    assert_eq!((said.code(), said.out.as_str()), (0, "right\n"), "{said:?}");
    let counted = std::fs::read_to_string(table)?;
    for (name, most) in CALLS {
        let line = counted.lines().find_map(|line| line.trim().strip_suffix(name));
        let calls: u32 = line.map_or(Ok(0), |calls| calls.trim().parse())?;
        // Some belong to the start.
        assert!(calls < most * 1000 + 500, "{calls} calls of {name} for 1000 signals:\n{counted}");
    }
    Ok(())
}

/// An absent page fails; no page reads as zeros.
fn a_debugger_outside_reads_what_is_there_or_an_error(_: &Host) -> Outcome {
    let folder = Folder::make("local-signals-shown")?;
    let mut run = paged(&["--local", "4MiB"], &[&program(&folder)?, "shown"])?;
    let mut masu = run.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
    let mut lines = BufReader::new(masu.stdout.take().ok_or("no output")?).lines();
    let line = lines.next().ok_or("it said nothing")??;
    let (pid, start) = line.split_once(' ').ok_or("no address")?;
    let start: u64 = start.parse()?;
    let memory = std::fs::File::open(format!("/proc/{pid}/mem"))?;
    let (mut right, mut refused) = (0_u64, 0_u64);
    for page in 0..(6 << 20) / 4096 {
        let mut word = [0; 8];
        match memory.read_exact_at(&mut word, start + page * 4096) {
            Ok(()) => {
                assert_eq!(u64::from_le_bytes(word), page + 1, "page {page}");
                right += 1;
            }
            Err(_) => refused += 1,
        }
    }
    drop(masu.stdin.take());
    assert_eq!(lines.next().ok_or("it said nothing more")??, "right");
    assert!(masu.wait()?.success() && right > 0 && refused > 0, "{right} pages read, {refused} refused");
    Ok(())
}
