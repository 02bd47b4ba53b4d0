//! `masu run --local` where it is not possible: an error before anything is started, with the remedy.

use super::Outcome;
use super::redis::Redis;
use super::run::{Folder, said};
use super::run_hard::compile;
use super::run_local::paged;
use crate::host::{Host, LiveTest, tests};

/// Tests of this file, and their requirements.
pub(crate) const TESTS: &[LiveTest] = tests! {
    run_local_refusals requires [MasuCommand, PagerLibrary];
    local_memory_that_cannot_be_given_is_refused [Shell];
    stores_that_cannot_be_used_are_refused_with_their_name [Shell];
    a_redis_that_does_not_let_masu_in_is_refused_with_the_way_out [Shell, RedisServer];
    files_that_a_user_names_are_never_waited_for [Shell];
    programs_that_cannot_be_paged_are_refused_with_the_reason [Root, CCompiler];
    a_program_of_another_c_library_is_refused [Musl];
    a_program_that_is_not_there_has_its_usual_status [Shell];
};

/// Refused with status 125, and these words in the first line.
fn refused(options: &[&str], command: &[&str], words: &[&str]) -> Outcome {
    refused_with(options, command, words, "")
}

/// The same, and this way out in the second line.
fn refused_with(options: &[&str], command: &[&str], words: &[&str], way_out: &str) -> Outcome {
    let said = said(&mut paged(options, command)?)?;
    assert_eq!((said.code(), said.out.as_str()), (125, ""), "{options:?}: {said:?}");
    for word in words {
        assert!(said.first_line().contains(word), "{options:?}: no {word:?}: {said:?}");
    }
    if !way_out.is_empty() {
        let second = said.err.lines().nth(1).unwrap_or_default();
        assert!(second.starts_with("    ") && second.contains(way_out), "{options:?}: no {way_out:?}: {said:?}");
    }
    Ok(())
}

const NEVER: [&str; 2] = ["/bin/echo", "started"];

/// Sizes that are none, or not possible.
fn local_memory_that_cannot_be_given_is_refused(_: &Host) -> Outcome {
    for (size, word) in [
        ("0", "the least that works"),
        ("0%", "above 0%"),
        ("101%", "at most 100%"),
        ("64KiB", "the least that works"),
        ("much", "is no size"),
    ] {
        refused(&["--local", size], &NEVER, &[size, word])?;
    }
    refused(&["--local", "4096TiB"], &NEVER, &["of local memory: this machine has"])?;
    refused(&["--local", "4MiB", "--unit", "12KiB"], &NEVER, &["power of two"])?;
    refused(&["--local", "4MiB", "--unit", "2MiB"], &NEVER, &["power of two"])?;
    refused(&["--local", "4MiB", "--base", "8KiB"], &NEVER, &["4KiB or 16KiB"])?;
    refused(&["--local", "4MiB", "--huge", "touch"], &NEVER, &["--huge"])?;
    let marked = ["--local", "4MiB", "--unit", "64KiB", "--sections", "marked"];
    refused_with(&marked, &NEVER, &["cannot use --unit", "with --sections marked"], "Leave one of them out")?;
    let timeout = ["--local", "4MiB", "--store-timeout", "30s"];
    refused_with(&timeout, &NEVER, &["--store-timeout with file:/var/tmp"], "Leave it out")?;
    refused(&["--store", "file:/tmp"], &NEVER, &["--local"])
}

/// Stores that are none, or are not there.
fn stores_that_cannot_be_used_are_refused_with_their_name(_: &Host) -> Outcome {
    for (store, words) in [
        ("file:/no/such/folder", ["file:/no/such/folder", "no such file or directory"]),
        ("file:/etc/passwd", ["file:/etc/passwd", "not a directory"]),
        ("file:/proc", ["make a file in file:/proc", "no such file or directory"]),
        ("redis://127.0.0.1:1", ["redis://127.0.0.1:1", "connection refused"]),
        ("redis://127.0.0.1:1/name", ["database", "expected a number"]),
        ("ftp://127.0.0.1", ["ftp", "expected file:, redis:// or rediss://"]),
        ("/var/tmp", ["store URL", "expected file:"]),
    ] {
        refused_with(&["--local", "4MiB", "--store", store], &NEVER, &words, " ")?;
    }
    Ok(())
}

/// A missing password and a wrong one are refused, and the wrong one is not repeated. The right one is accepted.
fn a_redis_that_does_not_let_masu_in_is_refused_with_the_way_out(_: &Host) -> Outcome {
    let redis = Redis::start_with("local-redis-password", &["--requirepass", "right"])?;
    let url = redis.url();
    let name = format!("redis://127.0.0.1:{}", redis.port);
    let with = |password: &str| {
        let mut run = paged(&["--local", "4MiB", "--store", &url], &NEVER)?;
        said(run.env("MASU_STORE_PASSWORD", password))
    };
    for (password, words) in [("", "NOAUTH"), ("wrong-one", "WRONGPASS")] {
        let said = with(password)?;
        assert_eq!((said.code(), said.out.as_str()), (125, ""), "{said:?}");
        assert!(said.first_line().contains(&name) && said.first_line().contains(words), "{said:?}");
        let remedy = said.err.lines().nth(1).unwrap_or_default();
        assert!(remedy.contains("MASU_STORE_PASSWORD") && !said.err.contains("wrong-one"), "{said:?}");
    }
    let said = with("right")?;
    assert_eq!((said.code(), said.out.as_str()), (0, "started\n"), "{said:?}");
    Ok(())
}

/// A pipe without a writer: as a certificate, a key, a script's interpreter and the program itself; a device that has no
/// end. A pipe with a writer is read.
fn files_that_a_user_names_are_never_waited_for(_: &Host) -> Outcome {
    let folder = Folder::make("local-pipes")?;
    let at = |name: &str| folder.0.join(name).display().to_string();
    let (pipe, file, script) = (at("pipe"), at("file"), at("script"));
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o755.into(), 0)?;
    std::fs::write(&file, "")?;
    std::fs::write(&script, format!("#!{pipe}\n"))?;
    std::fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
    let silent = "nobody writes to this pipe; start its writer first";
    for (options, words) in [
        (format!("ca={pipe}"), silent),
        (format!("cert={pipe}&key={file}"), silent),
        (format!("cert={file}&key={pipe}"), silent),
        ("ca=/dev/zero".to_owned(), "it is a device, not a file"),
    ] {
        let store = format!("rediss://127.0.0.1:1?{options}");
        refused_with(&["--local", "4MiB", "--store", &store], &NEVER, &[words], "Name a file that masu may read")?;
    }
    for program in [&pipe, &script] {
        let local = said(&mut paged(&["--local", "4MiB"], &[program])?)?;
        let huge = said(&mut super::run::run(&[], &[program])?)?;
        assert_eq!((local.code(), huge.code()), (126, 126), "{local:?}\n{huge:?}");
    }
    let written = format!("echo 'no certificate' > {pipe} & exec \"$0\" \"$@\"");
    let run = paged(&["--local", "4MiB", "--store", &format!("rediss://127.0.0.1:1?ca={pipe}")], &NEVER)?;
    let mut shell = std::process::Command::new("/bin/sh");
    let said = said(shell.args(["-c", &written]).arg(run.get_program()).args(run.get_args()))?;
    assert!(said.code() == 125 && said.err.contains("holds no certificate"), "{said:?}");
    Ok(())
}

/// No library can be loaded into these, or not masu's.
fn programs_that_cannot_be_paged_are_refused_with_the_reason(_: &Host) -> Outcome {
    const SOURCE: &str = "int main(void) { return 3; }\n";
    let folder = Folder::make("local-refused")?;
    let fixed = compile(&folder, "cc", "fixed", SOURCE, &["-static"])?;
    refused_with(&["--local", "4MiB"], &[&fixed], &["--local", "it is linked statically"], "Link it dynamically")?;
    let privileged = compile(&folder, "cc", "privileged", SOURCE, &[])?;
    // Owned by another user: a set-user-id bit for the current user grants no privilege.
    std::os::unix::fs::chown(&privileged, Some(65534), Some(65534))?;
    std::fs::set_permissions(&privileged, std::os::unix::fs::PermissionsExt::from_mode(0o4755))?;
    let words = ["--local", "it is set-uid or set-gid"];
    refused_with(&["--local", "4MiB"], &[&privileged], &words, "Run it as the user that it becomes")
}

/// Recognised by its loader.
fn a_program_of_another_c_library_is_refused(_: &Host) -> Outcome {
    let folder = Folder::make("local-musl")?;
    let other = compile(&folder, "musl-gcc", "other", "int main(void) { return 3; }\n", &[])?;
    refused(&["--local", "4MiB"], &[&other], &["--local", "so that no library can page it"])
}

/// The status is the shell's.
fn a_program_that_is_not_there_has_its_usual_status(_: &Host) -> Outcome {
    let missing = said(&mut paged(&["--local", "4MiB"], &["/no/such/program"])?)?;
    assert_eq!(missing.code(), 127, "{missing:?}");
    let folder = said(&mut paged(&["--local", "4MiB"], &["/etc"])?)?;
    assert_eq!(folder.code(), 126, "{folder:?}");
    Ok(())
}
