//! `masu run --local`: the profiles of a program's code sites are known to its next run, and are never more than a
//! hint.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::Outcome;
use super::run::{Folder, Report, Result, said};
use super::run_hard::compile;
use super::run_local::{paged_with_profile, stress_with_build_id};
use crate::host::{Host, LiveTest, tests};

/// Tests of this file, and their requirements.
pub(crate) const TESTS: &[LiveTest] = tests! {
    run_local_profile requires [MasuCommand, PagerLibrary, UserFaults, CCompiler];
    a_second_run_begins_with_what_the_first_one_learned;
    a_program_in_a_pid_namespace_is_known_as_itself [Root];
    no_profile_is_kept_where_none_is_wanted;
    who_has_no_privilege_is_paged_and_has_a_profile [Root];
    a_broken_profile_is_ignored_and_replaced [Root];
};

/// Fills 32 MiB in order and then reads words of it in no order, from one instruction: no neighbour is worth to be fetched, which
/// has to be found out first.
const JUMPS: &str = r#"
#include <stdio.h>
#include <stdlib.h>
enum { PAGES = 8192, WORDS = PAGES * 512 };
int main(void) {
    unsigned long *memory = malloc(WORDS * sizeof *memory), sum = 0, random = 1;
    for (unsigned long word = 0; word < WORDS; word += 64) memory[word] = word;
    for (int n = 0; n < 3000; n++) {
        random = random * 6364136223846793005 + 1442695040888963407;
        sum += memory[(random >> 33) % PAGES * 512];
    }
    printf("%lu\n", sum);
    return 0;
}
"#;

/// A run with its profiles in a private folder: the report, and the program's output.
fn ran(program: &str, cache: &Path, options: &[&str]) -> Result<(Value, String)> {
    let report = Report::new("local-profile");
    let options = [options, &["--local", "2MiB", "--report", report.path(), "--json"]].concat();
    let said = said(paged_with_profile(&options, &[program])?.env("XDG_CACHE_HOME", cache))?;
    assert_eq!((said.code(), said.err.as_str()), (0, ""), "{said:?}");
    Ok((report.read()?, said.out))
}

fn profiles(cache: &Path) -> Vec<PathBuf> {
    let files = std::fs::read_dir(cache.join("masu/profiles")).into_iter().flatten();
    files.filter_map(|file| Some(file.ok()?.path())).collect()
}

/// The second run starts with the transfer sizes of the first, at other addresses.
fn a_second_run_begins_with_what_the_first_one_learned(_: &Host) -> Outcome {
    let folder = Folder::make("local-profile")?;
    let jumps = compile(&folder, "cc", "jumps", JUMPS, &["-Wl,--build-id"])?;
    let cache = folder.0.join("cache");
    let (first, out) = ran(&jumps, &cache, &[])?;
    let saved = first["profile"]["sites_saved"].as_u64().ok_or("no profile")?;
    assert!(first["profile"]["sites_loaded"] == 0 && saved > 0, "{first}");
    let files = profiles(&cache);
    assert_eq!(files.len(), 1, "{files:?}");
    assert_eq!(first["profile"]["path"].as_str(), files[0].to_str());
    // A folder whose name is no text costs no report.
    let odd = folder.0.join(OsStr::from_bytes(b"cache-\xff"));
    let (report, _) = ran(&jumps, &odd, &[])?;
    assert!(report["profile"]["path"].as_str().is_some_and(|path| path.contains("cache-\u{fffd}")), "{report}");
    assert_eq!(profiles(&odd).len(), 1);
    let (second, same) = ran(&jumps, &cache, &[])?;
    assert_eq!((second["profile"]["sites_loaded"].as_u64(), &same), (Some(saved), &out), "{second}");
    let brought = |report: &Value| report["bytes_in"].as_u64().unwrap_or(0);
    assert!(brought(&second) > 0 && brought(&second) < brought(&first), "{first}\n{second}");
    Ok(())
}

/// There the program is process 1 to itself, and has another number for masu.
fn a_program_in_a_pid_namespace_is_known_as_itself(_: &Host) -> Outcome {
    let folder = Folder::make("local-profile-namespace")?;
    let jumps = compile(&folder, "cc", "jumps", JUMPS, &["-Wl,--build-id"])?;
    let cache = folder.0.join("cache");
    let report = Report::new("local-profile-namespace");
    let options = ["--local", "2MiB", "--report", report.path(), "--json"];
    let namespace = ["/usr/bin/unshare", "--pid", "--fork", jumps.as_str()];
    let said = said(paged_with_profile(&options, &namespace)?.env("XDG_CACHE_HOME", &cache))?;
    assert_eq!((said.code(), said.own_errors().as_str()), (0, ""), "{said:?}");
    let report = report.read()?;
    let mut sites = report["sites"].as_array().into_iter().flatten();
    assert!(sites.any(|site| site["function"] == "main"), "{report}");
    let (second, _) = ran(&jumps, &cache, &[])?;
    assert!(second["profile"]["sites_loaded"].as_u64() > Some(0), "{second}");
    Ok(())
}

/// Not to be read, and not to be written; and only where instructions have transfer sizes of their own.
fn no_profile_is_kept_where_none_is_wanted(_: &Host) -> Outcome {
    let folder = Folder::make("local-no-profile")?;
    let jumps = compile(&folder, "cc", "jumps", JUMPS, &["-Wl,--build-id"])?;
    let nameless = compile(&folder, "cc", "nameless", JUMPS, &["-Wl,--build-id=none"])?;
    let cache = folder.0.join("cache");
    let cases: [(&str, &[&str]); 5] = [
        (&jumps, &["--no-profile"]),
        (&jumps, &["--sections", "marked"]),
        (&jumps, &["--sections", "off"]),
        (&jumps, &["--unit", "4KiB"]),
        (&nameless, &[]),
    ];
    for (program, options) in cases {
        let (report, _) = ran(program, &cache, options)?;
        assert!(report["profile"].is_null() && report["notes"] == serde_json::json!([]), "{options:?}: {report}");
        assert!(!cache.exists(), "{options:?}");
    }
    ran(&jumps, &cache, &[])?;
    let (report, _) = ran(&jumps, &cache, &["--no-profile"])?;
    assert!(report["profile"].is_null(), "{report}");
    Ok(())
}

/// Each byte is right, and the kept files belong to the user.
fn who_has_no_privilege_is_paged_and_has_a_profile(_: &Host) -> Outcome {
    const NOBODY: u32 = 65534;
    let folder = Folder::make("local-nobody")?;
    let stress = stress_with_build_id(&folder)?;
    let theirs = folder.0.join("theirs");
    std::fs::create_dir(&theirs)?;
    std::os::unix::fs::chown(&theirs, Some(NOBODY), Some(NOBODY))?;
    let at = theirs.to_str().ok_or("a path that is no text")?;
    let arguments = ["--seconds", "0.7", "--threads", "3", "--mib", "32", "--folder", at, "--without", "altstack"];
    let command = [&[stress.as_str()], &arguments[..]].concat();
    for known in [false, true] {
        let report = Report::new("local-nobody");
        let mut run = paged_with_profile(&["--local", "5%", "--report", report.path(), "--json"], &command)?;
        let said = said(run.env("XDG_CACHE_HOME", theirs.join("cache")).uid(NOBODY).gid(NOBODY))?;
        assert!(said.code() == 0 && said.out.ends_with(" wrong=0\n"), "{said:?}");
        let report = report.read()?;
        assert!(report["bytes_in"].as_u64() > Some(0) && report["backend"].is_string(), "{report}");
        assert_eq!(report["profile"]["sites_loaded"].as_u64().map(|sites| sites > 0), Some(known), "{report}");
    }
    let files = profiles(&theirs.join("cache"));
    assert!(!files.is_empty(), "no profile was kept");
    for file in files {
        assert_eq!(file.metadata()?.uid(), NOBODY, "{}", file.display());
    }
    Ok(())
}

/// One line in the report; then there is a good one.
fn a_broken_profile_is_ignored_and_replaced(_: &Host) -> Outcome {
    let folder = Folder::make("local-broken-profile")?;
    let jumps = compile(&folder, "cc", "jumps", JUMPS, &["-Wl,--build-id"])?;
    let cache = folder.0.join("cache");
    let (_, out) = ran(&jumps, &cache, &[])?;
    let file = profiles(&cache).pop().ok_or("no profile")?;
    let good = std::fs::read(&file)?;
    let wild: Vec<u8> = good[..16].iter().copied().chain(std::iter::repeat_n(0xff, good.len() - 16)).collect();
    for (bytes, broken) in [(&b"nonsense"[..], true), (&good[..good.len() / 2], true), (&wild, false)] {
        std::fs::write(&file, bytes)?;
        let (report, same) = ran(&jumps, &cache, &[])?;
        assert_eq!((report["profile"]["sites_loaded"].as_u64(), &same), (Some(0), &out), "{report}");
        assert_eq!(report["notes"].as_array().map(Vec::len), Some(usize::from(broken)), "{report}");
        let (report, _) = ran(&jumps, &cache, &[])?;
        assert!(report["profile"]["sites_loaded"].as_u64() > Some(0), "{report}");
    }
    // Owned by another user: its contents do not count. The folder is ours, so it is replaced.
    std::os::unix::fs::chown(&file, Some(65534), Some(65534))?;
    let (report, same) = ran(&jumps, &cache, &[])?;
    assert_eq!((report["profile"]["sites_loaded"].as_u64(), &same), (Some(0), &out), "{report}");
    // And a cache that cannot be written is no reason not to run: there is a file where the folder should be.
    let odd = folder.0.join("file");
    std::fs::write(&odd, "")?;
    let (report, same) = ran(&jumps, &odd, &[])?;
    assert_eq!((report["profile"]["sites_saved"].as_u64(), same), (Some(0), out), "{report}");
    Ok(())
}
