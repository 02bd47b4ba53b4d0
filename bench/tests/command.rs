//! `masu-bench` with wrong input, from the user's side: one clear line, status 2, no setting left changed.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on ends there")]

use assert_cmd::Command;

/// Standard error of a call that failed with the expected status.
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
    let attach = ["redis", "paper", "sparse", "known-hot-set", "scan", "idle-cost", "torture", "demo", "all"];
    let run = ["transpose", "superpages", "startup", "stacks", "remote", "remote-fault", "memcached", "track"];
    let aging = ["idle-service", "backup", "served", "writers"];
    for name in attach.into_iter().chain(run).chain(aging) {
        assert_eq!(refusal(&["--masu", "/nowhere/masu", name]), wanted, "{name}");
    }
}

#[test]
fn each_bad_value_has_its_own_line() {
    for (arguments, wanted) in [
        (&["redis", "--gib", "0"][..], "masu-bench: --gib 0: expected more than 0 and below 1024\n"),
        (&["sparse", "--windows", "4"], "masu-bench: expected --windows 5 or more and --pairs 1 or more\n"),
        (&["transpose", "--from", "9", "--to", "8"], "masu-bench: --from 9 --to 8: expected 2 or more, up to 32768\n"),
        (&["superpages", "--size", "1MiB"], "masu-bench: --size 1.0 MiB: expected 8MiB or more\n"),
        (&["startup", "--starts", "0"], "masu-bench: expected --starts and --pairs of 1 or more\n"),
        (&["stacks", "--threads", "0"], "masu-bench: expected --threads and --pairs of 1 or more\n"),
        (&["remote", "--local", "0"], "masu-bench: --local 0: expected more than 0 and up to 100 percent\n"),
        (&["memcached", "--size", "1"], "masu-bench: --size 1: expected 8 to 65536 bytes\n"),
        (&["memcached", "--items", "9"], "masu-bench: --items 9: expected 1000 to 2147483647\n"),
        (&["memcached", "--memory-gib", "0"], "masu-bench: --memory-gib 0: expected more than 0 and up to 256\n"),
        (&["memcached", "--keys-per-get", "0"], "masu-bench: --keys-per-get 0: expected 1 to 1000\n"),
        (&["track", "--periods-ms", "5"], "masu-bench: --periods-ms 5: expected 10 to 60000\n"),
        (&["track", "--programs", "0"], "masu-bench: --programs 0: expected 1 to 10000\n"),
        (&["remote-fault", "--rounds", "0"], "masu-bench: --rounds 0: expected 1 or more\n"),
        (&["idle-service", "--mapped", "2GiB"], "masu-bench: --mapped 2.00 GiB: expected less than --group\n"),
        (&["backup", "--pairs", "0"], "masu-bench: expected --pairs and --size of 1 or more\n"),
        (&["served", "--served-percent", "99"], "masu-bench: --served-percent 99: expected 1 to 90\n"),
        (&["writers", "--processes", "0"], "masu-bench: --processes 0: expected 1 to 4096\n"),
        (&["idle-cost", "--mib", "0"], "masu-bench: --mib and --watch: expected at least 1\n"),
    ] {
        assert_eq!(refusal(arguments), wanted);
    }
    let said = refusal(&["torture", "--for", "soon"]);
    assert!(
        said.starts_with("masu-bench: invalid value 'soon' for '--for <TIME>': expected a time, such as 120s or 2m\n"),
        "{said}"
    );
    let said = refusal(&["paper", "--patterns", "zigzag"]);
    let wanted = "masu-bench: invalid value 'zigzag' for '--patterns <PATTERNS>' [possible values: seq, rand, skew, skew-spread]\n";
    assert!(said.starts_with(wanted), "{said}");
    assert!(refusal(&["zigzag"]).starts_with("masu-bench: unrecognized subcommand 'zigzag'\n"));
}

#[test]
fn a_workload_refuses_what_it_cannot_do_and_ends_when_nobody_asks_any_more() {
    let workload = |name: &str, arguments: &[&str]| Command::cargo_bin(name).unwrap().args(arguments).output().unwrap();
    let output = workload("workload-sparse", &["--windows", "0"]);
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "workload-sparse: --windows 0: expected at least 1\n");
    assert_eq!(output.status.code(), Some(2));
    let output = workload("workload-chase", &["--size", "64"]);
    let wanted = "workload-chase: --size 64 B: expected 4 KiB or more\n";
    assert_eq!((String::from_utf8(output.stderr).unwrap().as_str(), output.status.code()), (wanted, Some(2)));
    let output = workload("workload-dense", &["--mib", "2"]);
    assert!(output.status.success() && output.stdout.starts_with(b"ready start=0x"));
}

#[test]
fn the_same_work_gives_the_same_checksum_each_time() {
    let lines = |name: &str, arguments: &[&str]| -> Vec<String> {
        let output = Command::cargo_bin(name).unwrap().args(arguments).output().unwrap();
        assert!(output.status.success(), "{name}: {output:?}");
        let text = String::from_utf8(output.stdout).unwrap();
        let checksum = |line: &str| line.split(' ').find(|word| word.starts_with("checksum=")).unwrap().to_owned();
        text.lines().map(checksum).collect()
    };
    let size = ["--size", "1MiB"];
    for name in ["workload-gups", "workload-chase", "workload-join", "workload-graph"] {
        let (once, again) = (lines(name, &size), lines(name, &size));
        assert_eq!((once.len(), &once), (1, &again), "{name}");
        assert_ne!(once, lines(name, &["--size", "2MiB"]), "{name}");
    }
    let dims = ["--dims", "8,9", "--cell-ms", "1"];
    let once = lines("workload-transpose", &dims);
    assert_eq!((once.len(), &once), (2, &lines("workload-transpose", &dims)));
}

#[test]
fn threads_sleep_until_nobody_asks_any_more() {
    let output = Command::cargo_bin("workload-stacks").unwrap().args(["--threads", "100"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && text.starts_with("ready threads=100 pid="), "{text}");
}
