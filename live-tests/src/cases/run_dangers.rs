//! `masu run`: behaviour that a library in front of a program's memory calls must not break.

use std::time::{Duration, Instant};

use super::Outcome;
use super::programs::{Running, TIME_LIMIT};
use super::run::{lines, run, run_program, said, windows};
use crate::host::{Host, LiveTest, tests};

/// Tests of this file, and their requirements.
pub(crate) const TESTS: &[LiveTest] = tests! {
    run_dangers requires [Root, MasuCommand, PreloadLibrary, HugePageModes];
    a_refused_growth_takes_nothing_of_other_threads;
    memory_that_began_small_is_huge_once_it_is_large;
    threads_that_free_their_own_handle_are_no_trouble;
    a_program_that_shuts_itself_in_is_left_alone;
    a_long_list_of_arguments_does_not_harm_the_stack;
    a_script_without_a_first_line_is_run_by_the_shell;
    off_is_off_within_another_run;
    alignment_is_switched_in_a_running_program;
};

/// A growth that the kernel refuses half-way takes no other thread's memory.
fn a_refused_growth_takes_nothing_of_other_threads(_: &Host) -> Outcome {
    let said = lines(&said(&mut run_program(&[], &["refused-growth"])?)?)?;
    assert!(said.get("rounds").is_some_and(|rounds| rounds != "0"), "{said:?}");
    Ok(())
}

/// Memory that was too small for a window when it was mapped.
fn memory_that_began_small_is_huge_once_it_is_large(_: &Host) -> Outcome {
    let (huge, possible) = windows(&lines(&said(&mut run_program(&[], &["small-grows"])?)?)?, "grown")?;
    // The first window was touched before.
    assert!(huge + 1 >= possible, "{huge} of {possible}");
    Ok(())
}

/// With `--stack`, memory that a thread may have freed is not read.
fn threads_that_free_their_own_handle_are_no_trouble(_: &Host) -> Outcome {
    let said = lines(&said(&mut run_program(&["--stack"], &["detached"])?)?)?;
    assert_eq!(said.get("threads").map(String::as_str), Some("3000"));
    Ok(())
}

/// A filter that allows only the program's own calls kills no process, not at the exit either, when a report is
/// requested.
fn a_program_that_shuts_itself_in_is_left_alone(_: &Host) -> Outcome {
    for options in [&[][..], &["--report", "-"]] {
        let said = lines(&said(&mut run_program(options, &["boxed"])?)?)?;
        assert_eq!(said.get("boxed").map(String::as_str), Some("1"));
    }
    Ok(())
}

/// With `--stack`, the stack is measured from where the kernel measures it.
fn a_long_list_of_arguments_does_not_harm_the_stack(_: &Host) -> Outcome {
    let long = "a".repeat(100_000);
    let said = said(&mut run(&["--stack"], &["/bin/true", &long, &long, &long])?)?;
    assert_eq!((said.code(), said.err.as_str()), (0, ""));
    Ok(())
}

/// The shell runs it, as execvp(3) does it.
fn a_script_without_a_first_line_is_run_by_the_shell(_: &Host) -> Outcome {
    let path = std::env::temp_dir().join(format!("masu-live-script-{}", std::process::id()));
    std::fs::write(&path, "echo \"said $1\"; exit 7\n")?;
    std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
    let said = said(&mut run(&[], &[path.to_str().unwrap_or_default(), "hello"])?);
    std::fs::remove_file(&path)?;
    let said = said?;
    assert_eq!((said.code(), said.out.as_str(), said.err.as_str()), (7, "said hello\n", ""));
    Ok(())
}

/// The inner run removes the outer run's settings for its children.
fn off_is_off_within_another_run(_: &Host) -> Outcome {
    let mut outer = run(&[], &[])?;
    let masu = outer.get_program().to_owned();
    let said = said(outer.arg(masu).args(["run", "--huge", "off", "--", "env"]))?;
    assert_eq!(said.code(), 0, "{said:?}");
    assert!(!said.out.contains("MASU_TOUCH") && !said.out.contains("libmasu-preload"), "{}", said.out);
    Ok(())
}

/// `masu set`, on a program that is running under `masu run`.
fn alignment_is_switched_in_a_running_program(host: &Host) -> Outcome {
    let mut run = Running::start(&mut run(&[], &["sleep", "600"])?)?;
    let root = linux::Pid(run.pid());
    let deadline = Instant::now() + TIME_LIMIT;
    let sleep = loop {
        let all = linux::children::descendants(host.files(), root)?;
        let is_seated = |pid: &linux::Pid| {
            let mappings = linux::maps::maps(host.files(), *pid).unwrap_or_default();
            mappings.iter().any(|mapping| mapping.path.text().contains("masu-board") && mapping.permissions.shared)
        };
        match all.into_iter().find(is_seated) {
            Some(sleep) => break sleep,
            None => assert!(Instant::now() < deadline, "it took no seat"),
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    for on in [false, true] {
        let setting = if on { "align=on" } else { "align=off" };
        let said = said(super::command::masu()?.args(["set", &sleep.to_string(), setting, "--json"]))?;
        assert_eq!((said.code(), said.err.as_str()), (0, ""));
        let report: serde_json::Value = serde_json::from_str(&said.out)?;
        assert_eq!(report["aligned"], on, "{report}");
    }
    run.signal(rustix::process::Signal::TERM)?;
    assert!(!run.0.wait()?.success());
    Ok(())
}
