//! `masu-bench` as its user meets it when something is wrong: one clear line, status 2, nothing left changed.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on ends there")]

use assert_cmd::Command;

/// What it says on standard error, having failed as it should.
fn refusal(arguments: &[&str]) -> String {
    let output = Command::cargo_bin("masu-bench").unwrap().args(arguments).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{arguments:?}");
    assert!(output.stdout.is_empty(), "{arguments:?}");
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn a_missing_masu_is_one_line_for_every_benchmark_that_needs_it() {
    let wanted = "masu-bench: /nowhere/masu: no such file. Build masu first with `cargo build --release`, or name it with \
                  --masu PATH.\n";
    for name in ["redis", "paper", "sparse", "known-hot-set", "scan", "idle-cost", "torture", "demo", "all"] {
        assert_eq!(refusal(&["--masu", "/nowhere/masu", name]), wanted, "{name}");
    }
}

#[test]
fn each_bad_value_has_its_own_line() {
    for (arguments, wanted) in [
        (&["redis", "--gib", "0"][..], "masu-bench: --gib 0: expected more than 0 and below 1024\n"),
        (
            &["paper", "--patterns", "zigzag"],
            "masu-bench: --patterns zigzag: expected seq, rand, skew or skew-spread\n",
        ),
        (&["sparse", "--windows", "4"], "masu-bench: expected --windows 5 or more and --pairs 1 or more\n"),
        (&["idle-cost", "--mib", "0"], "masu-bench: --mib and --watch: expected at least 1\n"),
    ] {
        assert_eq!(refusal(arguments), wanted);
    }
    let said = refusal(&["torture", "--for", "soon"]);
    assert!(
        said.starts_with("masu-bench: invalid value 'soon' for '--for <TIME>': expected a time, such as 120s\n"),
        "{said}"
    );
    assert!(refusal(&["zigzag"]).starts_with("masu-bench: unrecognized subcommand 'zigzag'\n"));
}

#[test]
fn a_workload_refuses_what_it_cannot_do_and_ends_when_nobody_asks_any_more() {
    let workload = |name: &str, arguments: &[&str]| Command::cargo_bin(name).unwrap().args(arguments).output().unwrap();
    let output = workload("workload-sparse", &["--windows", "0"]);
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "workload-sparse: --windows 0: expected at least 1\n");
    assert_eq!(output.status.code(), Some(2));
    let output = workload("workload-dense", &["--mib", "2"]);
    assert!(output.status.success() && output.stdout.starts_with(b"ready start=0x"));
}
