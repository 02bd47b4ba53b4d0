//! `masu run --local` for programs that start others: each is paged, and its memory is freed when it ends.

use std::process::{Command, Stdio};
use std::time::Duration;

use farmem_engine::handshake::{self, Secret, Sections, SessionParameters};
use linux::message_socket::Listener;

use super::Outcome;
use super::programs::{self, Running};
use super::run::{Report, said};
use super::run_local::paged;
use crate::host::{Host, LiveTest, tests};

/// Tests of this file, and their requirements.
pub(crate) const TESTS: &[LiveTest] = tests! {
    run_local_children requires [MasuCommand, PagerLibrary, Shell];
    hundreds_of_children_are_paged_with_few_open_files [UserFaults];
    masu_alone_may_have_more_open_files [UserFaults];
    without_session_parameters_a_program_ends_unless_masu_is_gone;
    a_child_that_cannot_begin_does_not_end_the_run [UserFaults];
    a_first_program_that_cannot_begin_is_named [UserFaults];
};

/// The same under a shell that lowers a limit for it and all that it starts.
fn limited(limit: &str, run: &Command) -> Command {
    let mut shell = Command::new("/bin/sh");
    shell.args(["-c", &format!("ulimit {limit}; exec \"$0\" \"$@\"")]).arg(run.get_program()).args(run.get_args());
    for (name, value) in run.get_envs() {
        match value {
            Some(value) => shell.env(name, value),
            None => shell.env_remove(name),
        };
    }
    shell
}

/// More of them than masu may have files open, and all within their limit.
fn hundreds_of_children_are_paged_with_few_open_files(_: &Host) -> Outcome {
    const CHILDREN: &str = "n=0; while [ $n -lt 300 ]; do /bin/true || exit 1; n=$((n+1)); done; echo $n";
    let report = Report::new("local-children");
    let run = paged(&["--local", "4MiB", "--report", report.path(), "--json"], &["/bin/sh", "-c", CHILDREN])?;
    let said = said(&mut limited("-n 64", &run))?;
    assert_eq!((said.code(), said.out.as_str(), said.err.as_str()), (0, "300\n", ""), "{said:?}");
    let report = report.read()?;
    // The shell is one, and those between fork and exec are none.
    assert_eq!((report["processes"].as_u64(), &report["notes"]), (Some(301), &serde_json::json!([])), "{report}");
    Ok(())
}

pub(super) const PARAMETERS: SessionParameters = SessionParameters {
    budget_frames: 256,
    budget_share: 0,
    most_pages: 1 << 12,
    unit_pages: 0,
    base_pages: 1,
    least_bytes: 1 << 16,
    sections: Sections::Auto,
    background: true,
    backend: None,
};

/// masu raises its own limit as far as allowed, so that concurrent programs do not wait for each other, and no other
/// process's limit.
fn masu_alone_may_have_more_open_files(_: &Host) -> Outcome {
    const LIMITS: &str = "ulimit -S -n; while read -r max open files soft hard unit; do \
                          [ \"$max $open\" = \"Max open\" ] && [ \"$soft\" = \"$hard\" ] && echo raised; \
                          done < /proc/$PPID/limits; exit 0";
    let run = paged(&["--local", "4MiB"], &["/bin/sh", "-c", LIMITS])?;
    let said = said(&mut limited("-S -n 64", &run))?;
    assert_eq!((said.code(), said.out.as_str()), (0, "64\nraised\n"), "{said:?}");
    Ok(())
}

/// The test plays a masu that sends nothing, and one whose socket name is taken by another process. Nothing is expected
/// from a masu that has ended.
fn without_session_parameters_a_program_ends_unless_masu_is_gone(_: &Host) -> Outcome {
    let library = programs::masu().ok_or("no masu")?.with_file_name("libmasu-pager.so");
    let listener = Listener::open()?;
    let secret = Secret { library: 1, masu: 2 };
    let mut program = Command::new("/bin/echo");
    program.arg("begun").env("LD_PRELOAD", library).env("MASU_PAGER", listener.name());
    program.env("MASU_PAGER_SECRET", secret.to_string()).stdin(Stdio::null());
    let running = Running::start(&mut program)?;
    drop(listener.accept(Duration::from_secs(10))?.ok_or("nobody connected")?);
    let refused = running.said()?;
    assert_eq!((refused.code(), refused.out.as_str()), (125, ""), "{refused:?}");
    assert!(refused.first_line().ends_with("gives it no session parameters"), "{refused:?}");
    assert!(refused.err.contains("\n    masu says why") && refused.err.contains("ulimit -n"), "{refused:?}");
    // The program has checked once more that masu is there.
    drop(listener.accept(Duration::from_secs(10))?.ok_or("nobody asked again")?);
    let mut outlived = Vec::new();
    for answer in [PARAMETERS.message(3), handshake::REJECTED] {
        let running = Running::start(&mut program)?;
        let connection = listener.accept(Duration::from_secs(10))?.ok_or("nobody connected")?;
        let bytes: Vec<u8> = answer.iter().flat_map(|word| word.to_ne_bytes()).collect();
        connection.send(&bytes, &[])?;
        outlived.push(running.said()?);
    }
    drop(listener);
    outlived.push(said(&mut program)?);
    for said in outlived {
        assert_eq!((said.code(), said.out.as_str()), (0, "begun\n"), "{said:?}");
        let words = "is gone, or in another network namespace: it runs without a limit";
        assert!(said.first_line().contains(words), "{said:?}");
    }
    let other = said(program.env_remove("MASU_PAGER_SECRET"))?;
    assert_eq!((other.code(), other.out.as_str()), (125, ""), "{other:?}");
    assert!(other.first_line().contains("is of another version"), "{other:?}");
    Ok(())
}

/// Only that child fails: the others go on, and the report has the reason.
fn a_child_that_cannot_begin_does_not_end_the_run(_: &Host) -> Outcome {
    const CHILD: &str = "(ulimit -v 200000; exec /bin/true); echo $?; exit 7";
    for with_report in [true, false] {
        let report = Report::new("local-child");
        let options = ["--local", "4MiB", "--report", report.path(), "--json"];
        let options = if with_report { &options[..] } else { &options[..2] };
        let said = said(&mut paged(options, &["/bin/sh", "-c", CHILD])?)?;
        assert_eq!((said.code(), said.out.as_str()), (7, "125\n"), "{said:?}");
        let words =
            if with_report { report.read()?["notes"][0].as_str().unwrap_or_default().to_owned() } else { said.err };
        for word in ["a program that was started", "there is no memory for its tables", "ulimit -v"] {
            assert!(words.contains(word), "no {word:?}: {words:?}");
        }
    }
    Ok(())
}

/// Nothing is hidden behind the status of the shell.
fn a_first_program_that_cannot_begin_is_named(_: &Host) -> Outcome {
    let run = paged(&["--local", "4MiB"], &["/usr/bin/env", "true"])?;
    let said = said(&mut limited("-v 400000", &run))?;
    assert_eq!((said.code(), said.out.as_str()), (125, ""), "{said:?}");
    assert!(said.first_line().contains("cannot run /usr/bin/env with --local"), "{said:?}");
    assert!(said.err.contains("\n    ") && said.err.contains("ulimit -v"), "{said:?}");
    Ok(())
}
