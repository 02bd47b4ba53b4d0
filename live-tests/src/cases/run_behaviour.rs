//! `masu run`: the program behaves as if it ran directly under its parent.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use super::Outcome;
use super::programs::{self, Running, Said, TIME_LIMIT};
use super::run::{Report, Result, run, run_program, said};
use crate::host::{Host, LiveTest, tests};

/// Tests of this file, and their requirements.
pub(crate) const TESTS: &[LiveTest] = tests! {
    run_behaviour requires [Root, MasuCommand, PreloadLibrary, HugePageModes];
    it_ends_as_the_program_ends;
    what_cannot_be_started_has_a_status_of_its_own;
    its_input_and_its_output_are_its_own;
    its_surroundings_are_as_without_masu;
    each_signal_reaches_it_exactly_once;
    a_signal_at_the_start_is_not_lost;
    signals_that_are_ignored_at_the_start_stay_ignored;
    stopping_and_continuing_the_group_works;
    when_masu_is_killed_the_program_lives_on;
    on_a_terminal_there_is_a_report_and_the_program_has_the_terminal [Script];
    the_report_goes_where_it_is_wanted;
    programs_end_in_all_ways_that_there_are;
    a_program_in_a_chroot_goes_on;
    children_are_served_unless_that_is_not_wanted;
    more_children_than_seats_all_run;
    a_pid_namespace_of_its_own_is_no_confusion;
};

/// Ways of serving.
const HOWS: [&str; 2] = ["touch", "off"];

/// Statuses pass, signals end masu in the same way, without a core of its own.
fn it_ends_as_the_program_ends(_: &Host) -> Outcome {
    for how in HOWS {
        for status in [0, 1, 3, 125, 255] {
            let said = said(&mut run(&["--huge", how], &["/bin/sh", "-c", &format!("exit {status}")])?)?;
            assert_eq!((said.status.code(), said.err.as_str()), (Some(status), ""), "{how}");
        }
        for signal in [1, 2, 3, 6, 8, 9, 11, 13, 15, 16, 31, 34, 64] {
            let said = said(&mut run(&["--huge", how], &["/bin/sh", "-c", &format!("kill -{signal} $$")])?)?;
            assert_eq!((said.status.signal(), said.err.as_str()), (Some(signal), ""), "{how}");
            assert!(!said.status.core_dumped(), "{how}: {signal}");
        }
    }
    Ok(())
}

/// The statuses of env(1), with a line and a way out.
fn what_cannot_be_started_has_a_status_of_its_own(_: &Host) -> Outcome {
    let cases: [(&[&str], &[&str], i32, &str); 6] = [
        (&[], &["no-such-command-here"], 127, "masu: cannot run no-such-command-here: no such command"),
        (&[], &["/no/such/file"], 127, "masu: cannot run /no/such/file: no such file or directory (ENOENT)"),
        (&[], &["/etc/passwd"], 126, "masu: cannot run /etc/passwd: permission denied (EACCES)"),
        (&[], &["/etc"], 126, "masu: cannot run /etc: is a directory"),
        (
            &["--report", "/no/such/folder/x"],
            &["/bin/echo", "started"],
            125,
            "masu: cannot write the report to /no/such/folder/x: ",
        ),
        (&["--huge", "never"], &["/bin/echo", "started"], 125, "masu: invalid value 'never' for '--huge <HOW>'"),
    ];
    for (options, command, status, line) in cases {
        let said = said(&mut run(options, command)?)?;
        assert_eq!((said.code(), said.out.as_str()), (status, ""), "{said:?}");
        assert!(said.first_line().starts_with(line), "{}", said.err);
        assert!(said.err.lines().nth(1).is_some_and(|line| line.starts_with("    ")), "{}", said.err);
    }
    Ok(())
}

/// Every byte in both directions, with nothing of ours between; and no report on a pipe.
fn its_input_and_its_output_are_its_own(_: &Host) -> Outcome {
    let bytes: Vec<u8> = (0..1_000_000u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let script = "cat; printf 'err\\0\\377' >&2";
    let mut command = run(&[], &["/bin/sh", "-c", script])?;
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let mut to = child.stdin.take().ok_or("no pipe")?;
    let sent = bytes.clone();
    let writer = std::thread::spawn(move || to.write_all(&sent));
    let output = child.wait_with_output()?;
    writer.join().map_err(|_| "the writer panicked")??;
    assert!(output.stdout == bytes, "{} bytes of {}", output.stdout.len(), bytes.len());
    assert_eq!(output.stderr, b"err\0\xff");
    Ok(())
}

/// Comparable part of a program's environment as the program sees it.
fn surroundings(command: &mut Command) -> Result<String> {
    // SAFETY: between fork and exec: system calls with numbers only.
    unsafe {
        command.pre_exec(|| {
            for signal in [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT] {
                libc::signal(signal, libc::SIG_DFL);
            }
            libc::umask(0o027);
            libc::nice(3);
            libc::signal(libc::SIGPIPE, libc::SIG_IGN);
            libc::signal(libc::SIGUSR2, libc::SIG_IGN);
            let mut blocked = std::mem::zeroed();
            libc::sigemptyset(&raw mut blocked);
            libc::sigaddset(&raw mut blocked, libc::SIGALRM);
            libc::sigprocmask(libc::SIG_BLOCK, &raw const blocked, std::ptr::null_mut());
            Ok(())
        });
    }
    command.current_dir("/usr").env("A_VARIABLE", "a value\nof two lines").env_remove("OLDPWD");
    let said = said(command)?;
    assert_eq!(said.code(), 0, "{said:?}");
    // Signals 32 and 33 are glibc's own: it catches them in every program with threads, so that they are not ignored after it.
    let line =
        |line: &str| match line.strip_prefix("SigIgn:").and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok()) {
            Some(bits) => format!("SigIgn:{:x}\n", bits & !(3 << 31)),
            None => format!("{line}\n"),
        };
    Ok(said.out.lines().map(line).collect())
}

/// Signals, files, folder, mask, priority, name, limits: as without masu. The environment has two variables more.
fn its_surroundings_are_as_without_masu(_: &Host) -> Outcome {
    let commands: [&[&str]; 5] = [
        &["grep", "-E", "^(Name|Umask|Sig(Blk|Ign|Cgt)|NoNewPrivs|Cap|Groups|Seccomp|THP)", "/proc/self/status"],
        &["ls", "/proc/self/fd"],
        &["pwd"],
        &["nice"],
        &["cat", "/proc/self/limits", "/proc/self/cmdline", "/proc/self/oom_score_adj"],
    ];
    for words in commands {
        let plain = surroundings(Command::new(words[0]).args(&words[1..]))?;
        for how in HOWS {
            assert_eq!(surroundings(&mut run(&["--huge", how], words)?)?, plain, "{how}: {words:?}");
        }
    }
    let variables = |text: String| -> Vec<String> {
        text.split('\0').filter(|entry| !entry.is_empty()).map(str::to_owned).collect()
    };
    let plain =
        variables(surroundings(Command::new("env").arg("-0").env_remove("LD_PRELOAD").env_remove("GLIBC_TUNABLES"))?);
    let served = variables(surroundings(&mut run(&[], &["env", "-0"])?)?);
    let ours = ["LD_PRELOAD=", "MASU_TOUCH="];
    let (added, same): (Vec<_>, Vec<_>) =
        served.into_iter().partition(|entry| ours.iter().any(|name| entry.starts_with(name)));
    assert_eq!(same, plain);
    assert_eq!(added.len(), 2, "{added:?}");
    Ok(())
}

/// masu with the program that counts signals, in a process group of their own.
struct Listening {
    masu: Child,
    input: Option<ChildStdin>,
    output: BufReader<std::process::ChildStdout>,
    program: i32,
}

impl Listening {
    fn start(mut command: Command) -> Result<Listening> {
        command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut masu = command.spawn()?;
        let input = masu.stdin.take();
        let mut output = BufReader::new(masu.stdout.take().ok_or("no pipe")?);
        let mut line = String::new();
        output.read_line(&mut line)?;
        let program = line.trim().strip_prefix("ready=").ok_or_else(|| format!("not ready: {line:?}"))?.parse()?;
        Ok(Listening { masu, input, output, program })
    }

    fn group(&self) -> i32 {
        self.masu.id().cast_signed()
    }

    /// Number of deliveries of each signal, by lines `number=times`; and the exit status.
    fn heard(mut self) -> Result<(String, i32)> {
        drop(self.input.take());
        let mut text = String::new();
        self.output.read_to_string(&mut text)?;
        let status = self.masu.wait()?;
        Ok((text, status.code().unwrap_or(-1)))
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        // Its input ends, and so does the program; the test waits for masu.
        drop(self.input.take());
        let _ = self.masu.kill();
        let _ = self.masu.wait();
    }
}

fn signal(to: i32, signal: i32) -> Result<()> {
    // SAFETY: a system call with numbers, of a process or group that this test started.
    match unsafe { libc::kill(to, signal) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error().into()),
    }
}

const TOLD: [i32; 6] = [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM, libc::SIGUSR1, libc::SIGUSR2];

/// Ctrl-C among them: the program decides on its effect, and here it only counts.
fn each_signal_reaches_it_exactly_once(_: &Host) -> Outcome {
    let rest = || std::thread::sleep(Duration::from_millis(60));
    for how in HOWS {
        let listening = Listening::start(run_program(&["-q", "--huge", how], &["signals"])?)?;
        for number in TOLD {
            signal(listening.group(), number)?;
            rest();
            signal(-listening.group(), number)?;
            rest();
            signal(listening.program, number)?;
            rest();
        }
        let expected: String = TOLD.iter().map(|number| format!("{number}=3\n")).collect();
        assert_eq!(listening.heard()?, (expected, 0), "{how}: to masu, to the group, to the program");
    }
    Ok(())
}

/// Ctrl-C before the program is in the group, and while it still has masu's handlers.
fn a_signal_at_the_start_is_not_lost(_: &Host) -> Outcome {
    for number in 0..40 {
        let mut command = run(&["-q"], &["sleep", "20"])?;
        let mut masu = command.process_group(0).spawn()?;
        let begun = Instant::now();
        std::thread::sleep(Duration::from_micros(number * 500));
        signal(-masu.id().cast_signed(), libc::SIGINT)?;
        let status = masu.wait()?;
        assert_eq!(status.signal(), Some(libc::SIGINT), "after {number} half milliseconds: {status}");
        assert!(begun.elapsed() < Duration::from_secs(15), "after {number} half milliseconds: the program lived on");
    }
    Ok(())
}

/// The signals are ignored as under nohup(1), or in the background of a shell without job control.
fn signals_that_are_ignored_at_the_start_stay_ignored(_: &Host) -> Outcome {
    let words = ["grep", "SigIgn", "/proc/self/status"];
    let mut plain = Command::new(words[0]);
    plain.args(&words[1..]);
    let mut seen = Vec::new();
    for mut command in [plain, run(&["-q"], &words)?] {
        // SAFETY: between fork and exec: system calls with numbers only.
        unsafe {
            command.pre_exec(|| {
                for number in [libc::SIGINT, libc::SIGQUIT, libc::SIGHUP] {
                    libc::signal(number, libc::SIG_IGN);
                }
                Ok(())
            });
        }
        seen.push(said(&mut command)?.out);
    }
    assert!(seen[0].trim_end().ends_with('7') && seen[0] == seen[1], "{seen:?}");
    Ok(())
}

/// The state letter of a process.
fn state(pid: i32) -> Result<char> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    Ok(text.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next()).ok_or("no state")?)
}

fn until(what: &str, mut is: impl FnMut() -> Result<bool>) -> Outcome {
    let deadline = Instant::now() + TIME_LIMIT;
    while !is()? {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(())
}

/// Ctrl-Z and `fg`.
fn stopping_and_continuing_the_group_works(_: &Host) -> Outcome {
    let listening = Listening::start(run_program(&["-q"], &["signals"])?)?;
    let (masu, program) = (listening.group(), listening.program);
    signal(-masu, libc::SIGTSTP)?;
    until("they do not stop", || Ok(state(masu)? == 'T' && state(program)? == 'T'))?;
    signal(-masu, libc::SIGCONT)?;
    until("they do not go on", || Ok(state(masu)? != 'T' && state(program)? != 'T'))?;
    signal(masu, libc::SIGUSR1)?;
    std::thread::sleep(Duration::from_millis(60));
    let (text, status) = listening.heard()?;
    assert!(status == 0 && text.contains(&format!("{}=1\n", libc::SIGUSR1)), "{text}");
    Ok(())
}

/// The program needs masu for nothing.
fn when_masu_is_killed_the_program_lives_on(_: &Host) -> Outcome {
    let mut listening = Listening::start(run_program(&["-q"], &["signals"])?)?;
    signal(listening.group(), libc::SIGKILL)?;
    listening.masu.wait()?;
    signal(listening.program, libc::SIGUSR1)?;
    std::thread::sleep(Duration::from_millis(60));
    drop(listening.input.take());
    let mut text = String::new();
    listening.output.read_to_string(&mut text)?;
    assert!(text.contains(&format!("{}=1\n", libc::SIGUSR1)), "{text}");
    Ok(())
}

/// Runs it on a terminal of its own, by script(1).
fn on_a_terminal(options: &str, command: &str) -> Result<Said> {
    let masu = programs::masu().ok_or("no masu")?;
    let line = format!("{} run {options} -- {command}", masu.display());
    said(Command::new("script").args(["-q", "-e", "-c", &line, "/dev/null"]))
}

/// A report on the terminal, and the terminal belongs to the program.
fn on_a_terminal_there_is_a_report_and_the_program_has_the_terminal(_: &Host) -> Outcome {
    let said = on_a_terminal("", "sh -c 'test -t 0 && test -t 1 && test -t 2 && tty && ps -o stat= -p $$; exit 3'")?;
    assert_eq!(said.code(), 3, "{said:?}");
    assert!(said.out.contains("/dev/pts/"), "{said:?}");
    assert!(said.out.contains("+"), "in the foreground: {said:?}");
    assert!(
        said.out.contains("masu: sh ran ") && said.out.contains(", status 3, huge pages from the first touch"),
        "{said:?}"
    );
    for quiet in ["-q", "--quiet"] {
        let said = on_a_terminal(quiet, "true")?;
        assert_eq!((said.code(), said.out.trim()), (0, ""), "{said:?}");
    }
    Ok(())
}

/// To a file as lines or as JSON, and on standard error by `-`.
fn the_report_goes_where_it_is_wanted(_: &Host) -> Outcome {
    let asked = said(&mut run(&["--report", "-"], &["/bin/true"])?)?;
    assert_eq!((asked.code(), asked.out.as_str()), (0, ""));
    assert!(asked.err.starts_with("masu: /bin/true ran "), "{asked:?}");
    let report = Report::new("place");
    std::fs::write(report.path(), "of another run")?;
    assert_eq!(said(&mut run(&["--report", report.path()], &["no-such-command-here"])?)?.code(), 127);
    assert_eq!(std::fs::read_to_string(report.path())?, "of another run");
    let said = said(&mut run(&["--report", report.path(), "--json"], &["/bin/sh", "-c", "kill -TERM $$"])?)?;
    assert_eq!((said.status.signal(), said.err.as_str()), (Some(libc::SIGTERM), ""));
    let report = report.read()?;
    assert_eq!((&report["signal"], &report["exit_status"]), (&"SIGTERM".into(), &serde_json::Value::Null));
    assert_eq!(report["command"][2], "kill -TERM $$");
    assert!(report["run_s"].as_f64().is_some_and(|seconds| seconds < 5.0));
    Ok(())
}

/// Every way of ending, also out of the middle of its threads.
fn programs_end_in_all_ways_that_there_are(_: &Host) -> Outcome {
    let _quiet = super::no_automatic_huge_pages()?;
    let ways = [
        ("return", 0),
        ("_exit", 3),
        ("status", 3),
        ("abort", 134),
        ("threads", 3),
        ("close", 0),
        ("spawn", 0),
        ("exec", 0),
        ("daemon", 0),
    ];
    for (way, code) in ways {
        let report = Report::new("ends");
        let said = said(&mut run_program(&["--report", report.path(), "--json"], &["ends", way])?)?;
        assert_eq!((said.code(), said.err.as_str()), (code, ""), "{way}: {said:?}");
        assert!(said.out.starts_with("huge=4\n"), "{way}: {said:?}");
        let served_too = match way {
            "spawn" | "exec" => said.out.contains("malloc=7/8"),
            "daemon" => said.out.contains("daemon=4"),
            "close" => said.out.contains("closed=4"),
            _ => true,
        };
        assert!(served_too, "{way}: {said:?}");
        let processes = report.read()?["processes"].as_u64().ok_or("no count")?;
        match way {
            "spawn" => assert_eq!(processes, 2),
            // masu may have ended before the daemon sat down.
            "daemon" => assert!((1..=2).contains(&processes), "{processes}"),
            _ => assert_eq!(processes, 1, "{way}"),
        }
    }
    Ok(())
}

/// The chroot has no library, no board and no /proc.
fn a_program_in_a_chroot_goes_on(_: &Host) -> Outcome {
    let said = said(&mut run_program(&["-q"], &["ends", "chroot"])?)?;
    assert_eq!((said.code(), said.err.as_str()), (0, ""), "{said:?}");
    Ok(())
}

/// Forks of a daemon and started programs are served; with `--no-children` only the named program.
fn children_are_served_unless_that_is_not_wanted(_: &Host) -> Outcome {
    let _quiet = super::no_automatic_huge_pages()?;
    let report = Report::new("alone");
    let options = ["--no-children", "--report", report.path(), "--json"];
    let alone = said(&mut run_program(&options, &["ends", "spawn"])?)?;
    assert_eq!((alone.code(), alone.out.as_str()), (0, "huge=4\nmalloc=0/8\n"), "{alone:?}");
    assert_eq!(report.read()?["processes"], 1);
    // The user's own setting stays.
    let mut command =
        run(&["--no-children", "-q"], &["/bin/sh", "-c", "echo \"$LD_PRELOAD|$GLIBC_TUNABLES|$MASU_TOUCH\""])?;
    command.env("LD_PRELOAD", "libm.so.6").env("GLIBC_TUNABLES", "glibc.malloc.check=0");
    let kept = said(&mut command)?;
    assert_eq!((kept.out.as_str(), kept.err.as_str()), ("libm.so.6|glibc.malloc.check=0|\n", ""));
    Ok(())
}

/// More than there are process slots on the status page: all run, and the report has the number without a slot.
fn more_children_than_seats_all_run(_: &Host) -> Outcome {
    let report = Report::new("many");
    let said = said(&mut run_program(&["--report", report.path(), "--json"], &["many", "1100"])?)?;
    assert_eq!((said.code(), said.out.as_str()), (0, "children=1100\n"), "{said:?}");
    let report = report.read()?;
    let note = report["notes"][0].as_str().ok_or_else(|| report.to_string())?;
    assert!(note.ends_with("processes found no free slot and are not in the report"), "{note}");
    Ok(())
}

/// In a pid namespace the program has a number that belongs to another process outside: the program is counted, and no
/// other.
fn a_pid_namespace_of_its_own_is_no_confusion(_: &Host) -> Outcome {
    let _quiet = super::no_automatic_huge_pages()?;
    let report = Report::new("namespace");
    let own = super::run::own()?;
    let own = own.to_str().ok_or("a path that is no text")?;
    let command = ["unshare", "--pid", "--fork", own, crate::program::FLAG, "ends", "quietly"];
    let mut command = run(&["--report", report.path(), "--json"], &command)?;
    let running = Running::start(command.stdin(Stdio::null()))?.said()?;
    assert_eq!((running.code(), running.err.as_str()), (0, ""), "{running:?}");
    let report = report.read()?;
    assert_eq!(report["processes"], 2, "unshare and the program: {report}");
    assert!(report["superpages"]["mmap"]["allocated_windows"].as_u64().is_some_and(|windows| windows >= 4), "{report}");
    assert_eq!(report["notes"], serde_json::Value::Array(Vec::new()));
    Ok(())
}
