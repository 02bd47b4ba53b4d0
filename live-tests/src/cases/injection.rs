//! One system call in the name of another process: the flag is set, and the process does not notice.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use linux::injection::{NotCalled, forbid_huge_pages};
use linux::status::{HugePages, status};
use linux::{Error, Pid, stat};
use rustix::process::Signal;

use super::Outcome;
use super::halted::Freezer;
use super::programs::{Running, TIME_LIMIT};
use crate::host::{Host, LiveTest, tests};
use crate::target_process::task::{FLAG, SLEEP_MS, WRITTEN, queued_signal};

/// Tests of this file, and their requirements.
pub(crate) const TESTS: &[LiveTest] = tests! {
    injection requires [Root];
    a_sleeping_process_sleeps_on;
    a_call_that_is_never_restarted_is_made_again;
    a_process_that_waits_for_input_gets_it;
    a_transfer_is_not_ended_in_part;
    a_computation_comes_out_the_same [RealProcessor];
    no_signal_is_lost [RealProcessor];
    a_stopped_process_stays_stopped [RealProcessor];
    a_process_that_ends_meanwhile_is_gone;
    a_process_that_execs_goes_on_and_it_is_said [RealProcessor];
    code_that_changes_under_a_call_gains_nothing [RealProcessor];
    a_process_that_does_not_stop_is_given_up;
    a_frozen_process_is_refused;
};

/// A target process and its output.
struct Task {
    running: Running,
    said: BufReader<ChildStdout>,
}

impl Task {
    fn start(what: &str) -> Result<Task, libtest_mimic::Failed> {
        Task::counting(what, 0)
    }

    fn counting(what: &str, count: u64) -> Result<Task, libtest_mimic::Failed> {
        let mut command = Command::new("/proc/self/exe");
        let mut child = command
            .args([FLAG, what, &count.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let said = BufReader::new(child.stdout.take().ok_or("no pipe")?);
        let mut task = Task { running: Running(child), said };
        assert_eq!(task.line()?, "ready");
        Ok(task)
    }

    fn pid(&self) -> Pid {
        Pid(self.running.pid())
    }

    fn line(&mut self) -> std::io::Result<String> {
        let mut line = String::new();
        self.said.read_line(&mut line)?;
        Ok(line.trim().to_owned())
    }

    /// Result, and its time in milliseconds.
    fn outcome(&mut self) -> Result<(String, u64), libtest_mimic::Failed> {
        let line = self.line()?;
        let (outcome, time) = line.rsplit_once(' ').ok_or_else(|| format!("{line:?} is no outcome"))?;
        Ok((outcome.to_owned(), time.parse()?))
    }

    fn state(&self, host: &Host) -> Result<char, Error> {
        stat::stat(host.files(), self.pid()).map(|stat| stat.state)
    }

    /// Waits until it is in this state.
    fn until(&self, host: &Host, state: char) -> Outcome {
        let deadline = Instant::now() + TIME_LIMIT;
        while self.state(host)? != state {
            assert!(Instant::now() < deadline, "process {} does not come to state {state}", self.pid());
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// Sets the flag and clears it again, `times` times in all, and checks each time.
    fn interfere(&self, host: &Host, times: usize) -> Outcome {
        assert!(self.interfere_while_it_runs(host, times)?, "it ended");
        Ok(())
    }

    /// The same with a process that may end meanwhile; false when it did.
    fn interfere_while_it_runs(&self, host: &Host, times: usize) -> Result<bool, libtest_mimic::Failed> {
        for time in 0..times {
            let forbid = time % 2 == 0;
            match forbid_huge_pages(host.files(), self.pid(), forbid) {
                Err(why) if why.is_gone() => return Ok(false),
                other => other?,
            }
            let found = status(host.files(), self.pid())?;
            if found.huge_pages == HugePages::NotReported {
                return Ok(false); // no memory any more
            }
            let expected = if forbid { HugePages::Forbidden } else { HugePages::Allowed };
            if (found.huge_pages, found.tracer) != (expected, None) {
                return Err(format!("expected {expected:?}, found {found:?}").into());
            }
        }
        Ok(true)
    }
}

/// Each sleeps for its full time, and sees no interruption.
fn a_sleeping_process_sleeps_on(host: &Host) -> Outcome {
    for (call, expected) in [("nanosleep", "0"), ("poll", "0"), ("futex", "errno110")] {
        let mut last_stop = Duration::ZERO;
        // On a loaded machine there may be no second stop before it wakes.
        for _ in 0..5 {
            let (stop, time_ms) = sleep_with_stops(host, call, expected)?;
            // Never early, and before the end of a sleep that began anew after the last stop.
            let most = SLEEP_MS + u64::try_from(stop.as_millis())?;
            assert!(time_ms >= SLEEP_MS, "{call}: {time_ms} ms, of {SLEEP_MS}");
            last_stop = stop;
            if stop >= Duration::from_millis(SLEEP_MS / 6) {
                assert!(time_ms < most, "{call}: {time_ms} ms, of {SLEEP_MS} to {most}");
                break;
            }
        }
        assert!(last_stop >= Duration::from_millis(SLEEP_MS / 6), "{call}: too slow to stop it in the middle");
    }
    Ok(())
}

/// Time at which the last stop began, and the time that the call took.
fn sleep_with_stops(host: &Host, call: &str, expected: &str) -> Result<(Duration, u64), libtest_mimic::Failed> {
    let mut task = Task::start(call)?;
    task.until(host, 'S')?;
    let begun = Instant::now();
    let mut last_stop = Duration::ZERO;
    for _ in 0..40 {
        let now = begun.elapsed();
        if now > Duration::from_millis(SLEEP_MS * 2 / 3) {
            break;
        }
        last_stop = now;
        task.interfere(host, 2)?;
        std::thread::sleep(Duration::from_millis(10));
    }
    let (outcome, time_ms) = task.outcome()?;
    assert_eq!(outcome, expected, "{call}");
    Ok((last_stop, time_ms))
}

/// A call that answers EINTR after every stop is made again, and its time limit starts anew.
fn a_call_that_is_never_restarted_is_made_again(host: &Host) -> Outcome {
    let begun = Instant::now();
    let mut task = Task::start("epoll")?;
    task.until(host, 'S')?;
    for _ in 0..10 {
        task.interfere(host, 2)?;
        std::thread::sleep(Duration::from_millis(20));
    }
    let interfered_ms = u64::try_from(begun.elapsed().as_millis())?;
    let (outcome, time_ms) = task.outcome()?;
    assert_eq!(outcome, "0", "the time was up");
    // The last stop may be as late as this; then the time limit once, and not twice.
    let (least, most) = (SLEEP_MS, interfered_ms + 2 * SLEEP_MS);
    assert!((least..most).contains(&time_ms), "{time_ms} ms, of {least} to {most}");
    Ok(())
}

/// It gets the byte that is sent afterwards.
fn a_process_that_waits_for_input_gets_it(host: &Host) -> Outcome {
    let mut task = Task::start("read")?;
    task.until(host, 'S')?;
    task.interfere(host, 100)?;
    task.until(host, 'S')?;
    task.running.0.stdin.as_mut().ok_or("no pipe")?.write_all(&[42])?;
    assert_eq!(task.outcome()?.0, "1:42");
    Ok(())
}

/// A stop would end a write to a full pipe with a part of its bytes. Another thread makes the call, if there is one.
fn a_transfer_is_not_ended_in_part(host: &Host) -> Outcome {
    for others in [0, 1] {
        let mut task = Task::counting("write", others)?;
        task.until(host, 'S')?;
        let answer = forbid_huge_pages(host.files(), task.pid(), true);
        assert_eq!(answer, if others == 0 { Err(NotCalled::Transfer(task.pid())) } else { Ok(()) });
        let mut written = vec![0; WRITTEN];
        task.said.read_exact(&mut written)?;
        assert_eq!(task.outcome()?.0, WRITTEN.to_string(), "{others} other threads");
    }
    Ok(())
}

/// Every register is restored, including those of the floating point unit.
fn a_computation_comes_out_the_same(host: &Host) -> Outcome {
    for what in ["compute", "threads"] {
        let expected = Task::start(what)?.outcome()?.0;
        let mut task = Task::start(what)?;
        let mut times = 0;
        while task.interfere_while_it_runs(host, 2)? {
            times += 2;
        }
        assert!(times > 20, "{what}: only {times} times");
        assert_eq!(task.outcome()?.0, expected, "{what}, after {times} times");
    }
    Ok(())
}

/// Signals that come meanwhile are handled afterwards, each of them, and none twice.
fn no_signal_is_lost(host: &Host) -> Outcome {
    const SENT: u64 = 3000;
    let mut task = Task::start("signals")?;
    assert_eq!(task.line()?, "handling");
    let pid = task.pid();
    let sender = std::thread::spawn(move || {
        for _ in 0..SENT {
            // SAFETY: three numbers, to a child of ours that has not been waited for.
            let sent = unsafe { libc::kill(pid.0, queued_signal()) };
            assert_eq!(sent, 0);
            std::thread::sleep(Duration::from_micros(50));
        }
    });
    while !sender.is_finished() {
        task.interfere(host, 2)?;
    }
    sender.join().map_err(|_| "the sender failed")?;
    task.interfere(host, 2)?;
    std::thread::sleep(Duration::from_millis(20));
    drop(task.running.0.stdin.take());
    let said = task.line()?;
    let numbers: Vec<u64> = said.split(' ').map(str::parse).collect::<Result<_, _>>()?;
    let [queued, alarms, wrong] = numbers[..] else { return Err(format!("{said:?}").into()) };
    assert_eq!((queued, wrong), (SENT, 0), "{said}");
    // The number depends on the processor's speed; an emulated one seldom delivers any.
    assert!(alarms > 0, "{said}");
    Ok(())
}

/// Stopped by job control before and after, and in between for all that its parent can see.
fn a_stopped_process_stays_stopped(host: &Host) -> Outcome {
    let expected = Task::start("compute")?.outcome()?.0;
    // Not SIGTSTP, too: the kernel drops it in a process group whose parents are of another session, as may be here.
    let mut task = Task::start("compute")?;
    task.running.signal(Signal::STOP)?;
    task.until(host, 'T')?;
    for _ in 0..20 {
        task.interfere(host, 2)?;
        task.until(host, 'T')?;
    }
    let used = |host: &Host, pid| stat::stat(host.files(), pid).map(|stat| stat.user);
    let before = used(host, task.pid())?;
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(task.state(host)?, 'T');
    assert_eq!(used(host, task.pid())?, before, "it ran while it was stopped");
    task.running.signal(Signal::CONT)?;
    assert_eq!(task.outcome()?.0, expected);
    Ok(())
}

/// Whenever that is: the answer is that it is gone, and nothing hangs.
fn a_process_that_ends_meanwhile_is_gone(host: &Host) -> Outcome {
    let (mut done, mut gone) = (0, 0);
    for _ in 0..150 {
        let task = Task::start("brief")?;
        match forbid_huge_pages(host.files(), task.pid(), true) {
            Ok(()) => done += 1,
            Err(error) if error.is_gone() => gone += 1,
            Err(other) => return Err(other.into()),
        }
    }
    assert_eq!(done + gone, 150);
    Ok(())
}

/// Nothing is written into the new program, which goes on; no call blocks.
fn a_process_that_execs_goes_on_and_it_is_said(host: &Host) -> Outcome {
    let mut task = Task::counting("execs", 1500)?;
    let (mut made, mut exec) = (0, 0);
    while task.running.0.try_wait()?.is_none() {
        match forbid_huge_pages(host.files(), task.pid(), made % 2 == 0) {
            Ok(()) => made += 1,
            Err(NotCalled::Exec(_)) => exec += 1,
            // Its memory is being replaced.
            Err(NotCalled::NoInstruction(_) | NotCalled::Kernel(_)) => {}
            Err(other) => return Err(other.into()),
        }
    }
    assert!(task.running.0.wait()?.success());
    assert!(made > 0 && exec > 0, "made {made} times, {exec} times it became another program");
    Ok(())
}

/// Another thread exchanges the instruction for code of its own: the call is not made, the code's own call does not run, and the thread goes on.
fn code_that_changes_under_a_call_gains_nothing(host: &Host) -> Outcome {
    const TRIES: usize = 2000;
    for what in ["spins", "becomes"] {
        let mut task = Task::start(what)?;
        assert_eq!(task.line()?, "changing");
        let mut foreign = 0;
        for time in 0..TRIES {
            match forbid_huge_pages(host.files(), task.pid(), time % 2 == 0) {
                Ok(()) => {}
                Err(NotCalled::Foreign(_)) => foreign += 1,
                Err(other) => return Err(other.into()),
            }
            if foreign == 2 {
                break;
            }
        }
        assert_eq!(foreign, 2, "{what}: its code was never met");
        assert_eq!(status(host.files(), task.pid())?.tracer, None);
        drop(task.running.0.stdin.take());
        assert_eq!(task.line()?, "0 0", "{what}");
    }
    Ok(())
}

/// A thread that no signal reaches is left alone after two seconds, and is none the worse for it.
fn a_process_that_does_not_stop_is_given_up(host: &Host) -> Outcome {
    let mut task = Task::counting("vfork", 5)?;
    task.until(host, 'D')?;
    let begun = Instant::now();
    assert_eq!(forbid_huge_pages(host.files(), task.pid(), true), Err(NotCalled::NoStop(task.pid())));
    assert!(begun.elapsed() < Duration::from_millis(4900), "it was waited for");
    assert_eq!(task.outcome()?.0, "0");
    Ok(())
}

/// In a frozen cgroup: refused without a wait, running or stopped, and untouched.
fn a_frozen_process_is_refused(host: &Host) -> Outcome {
    for stopped in [false, true] {
        let mut task = Task::start("read")?;
        task.until(host, 'S')?;
        if stopped {
            task.running.signal(Signal::STOP)?;
            task.until(host, 'T')?;
        }
        let freezer = Freezer::of(task.pid())?;
        let found = forbid_huge_pages(host.files(), task.pid(), true);
        assert!(matches!(found, Err(NotCalled::Frozen(..))), "{found:?}");
        drop(freezer);
        if stopped {
            task.running.signal(Signal::CONT)?;
        }
        assert_eq!(status(host.files(), task.pid())?.huge_pages, HugePages::Allowed);
        task.running.0.stdin.as_mut().ok_or("no pipe")?.write_all(&[42])?;
        assert_eq!(task.outcome()?.0, "1:42");
    }
    Ok(())
}
