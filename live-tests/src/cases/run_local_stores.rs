//! `masu run --local` when the store, or masu itself, fails: the program waits or ends with a reason, and never sees
//! wrong data.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::mount::{MountFlags, UnmountFlags};

use super::Outcome;
use super::programs::Said;
use super::redis::Redis;
use super::run::{Folder, Report, Result, said};
use super::run_hard::compile;
use super::run_local::{Talking, memory_checker, paged, signal, stress};
use crate::host::{Host, LiveTest, tests};

/// Tests of this file, and their requirements.
pub(crate) const TESTS: &[LiveTest] = tests! {
    run_local_stores requires [MasuCommand, PagerLibrary, UserFaults, CCompiler];
    a_redis_keeps_the_pages_and_is_left_empty [RedisServer];
    a_redis_is_read_ahead_and_written_behind [RedisServer];
    pages_that_were_changed_in_the_file_are_found;
    pages_that_are_gone_from_the_file_are_found;
    pages_that_were_changed_in_redis_are_found [RedisServer];
    pages_that_a_redis_forgot_are_found [RedisServer];
    a_redis_that_is_silent_for_a_while_is_waited_for [RedisServer];
    a_redis_that_stays_silent_ends_the_program_after_the_time_that_was_said [RedisServer];
    a_store_that_is_full_ends_the_program_with_its_name [Root];
    a_redis_that_is_full_ends_the_program_with_its_name [RedisServer];
    with_a_file_the_program_outlives_masu;
    with_redis_the_program_ends_when_masu_is_killed [RedisServer];
    a_signal_ends_the_wait_for_a_silent_redis [RedisServer];
    ctrl_c_ends_it_and_leaves_nothing_in_the_store [RedisServer];
};

/// A paged program with little local memory at this store.
fn at(store: &str, command: &[&str]) -> Result<Command> {
    paged(&["--local", "2MiB", "--store", store], command)
}

/// A program with nearly all of its pages stored, which waits.
pub(super) fn full(store: &str, memory_checker: &str) -> Result<Talking> {
    full_with(store, memory_checker, &[])
}

/// The same, with these options.
pub(super) fn full_with(store: &str, memory_checker: &str, options: &[&str]) -> Result<Talking> {
    let options = [&["--local", "2MiB", "--store", store], options].concat();
    let mut talking = Talking::start(paged(&options, &[memory_checker, "24", "0.5"])?)?;
    talking.hears("rest")?;
    talking.says()?;
    talking.hears("full")?;
    Ok(talking)
}

/// The program ended because of its store, with these words, and never found anything wrong.
pub(super) fn ended_by_its_store(said: &Said, words: &[&str]) {
    assert_eq!((said.code(), said.out.contains("wrong")), (2, false), "{said:?}");
    assert!(!said.out.contains("right"), "{said:?}");
    for word in words {
        assert!(said.err.contains(word), "no {word:?}: {said:?}");
    }
    assert!(said.err.lines().any(|line| line.starts_with("    ")), "no way out: {said:?}");
}

/// The same stress, with all pages going through masu.
fn a_redis_keeps_the_pages_and_is_left_empty(_: &Host) -> Outcome {
    let redis = Redis::start("local-redis")?;
    let folder = Folder::make("local-redis-stress")?;
    let stress = stress(&folder)?;
    let at_folder = folder.0.to_str().ok_or("a path that is no text")?;
    let arguments = ["--seconds", "2", "--threads", "3", "--mib", "32", "--seed", "11", "--without", "altstack"];
    let command = [&[stress.as_str(), "--folder", at_folder], &arguments[..]].concat();
    let said = said(&mut at(&redis.url(), &command)?)?;
    assert!(said.code() == 0 && said.out.ends_with(" wrong=0\n"), "{said:?}");
    assert_eq!(redis.ask(&["DBSIZE"])?, ":0");
    Ok(())
}

/// Sequential pages come from a server before they are touched, and evicted pages are written behind, unless an option
/// turns this off.
fn a_redis_is_read_ahead_and_written_behind(_: &Host) -> Outcome {
    const SWEEPS: &str = r#"
#include <stdio.h>
static long numbers[2 << 20];
int main(void) {
    for (long round = 0; round < 4; round++)
        for (long i = 0; i < 2 << 20; i++) {
            if (numbers[i] != round * i) return 3;
            numbers[i] += i;
        }
    puts("right");
    return 0;
}
"#;
    let redis = Redis::start("local-redis-ahead")?;
    let folder = Folder::make("local-redis-ahead-program")?;
    let sweeps = compile(&folder, "cc", "sweeps", SWEEPS, &[])?;
    for (background, options) in [(true, &[][..]), (false, &["--no-background"][..])] {
        let report = Report::new("local-redis-ahead");
        let with = ["--local", "2MiB", "--store", &redis.url(), "--report", report.path(), "--json"];
        let said = said(&mut paged(&[&with[..], options].concat(), &[&sweeps])?)?;
        assert_eq!((said.code(), said.out.as_str()), (0, "right\n"), "{said:?}");
        let report = report.read()?;
        let bytes = |name: &str| report[name].as_u64().unwrap_or(0);
        let (read, ahead) = (bytes("bytes_in"), bytes("bytes_in_ahead"));
        let (written, behind) = (bytes("bytes_out"), bytes("bytes_out_behind"));
        if background {
            assert!(ahead * 4 > read && behind * 4 > written, "{report}");
            let rate = report["prefetch_hit_rate"].as_f64();
            assert!(rate.is_some_and(|rate| (0.0..=1.0).contains(&rate)), "{report}");
        } else {
            assert_eq!((ahead, behind, &report["faults_in_flight"]), (0, 0, &serde_json::json!(0)), "{report}");
        }
    }
    assert_eq!(redis.ask(&["DBSIZE"])?, ":0");
    Ok(())
}

/// The file, which has no name, reached through the program's descriptors.
fn store_file(process: i32, folder: &Path) -> Result<PathBuf> {
    for entry in std::fs::read_dir(format!("/proc/{process}/fd"))? {
        let path = entry?.path();
        // A descriptor may be closed meanwhile.
        let Ok(target) = std::fs::read_link(&path) else { continue };
        if target.starts_with(folder) {
            return Ok(path);
        }
    }
    Err("the program has no file of the store".into())
}

/// Every page of the file is overwritten behind the program's back.
fn pages_that_were_changed_in_the_file_are_found(_: &Host) -> Outcome {
    let (folder, built) = (Folder::make("local-changed")?, Folder::make("local-changed-program")?);
    let mut talking = full(&format!("file:{}", folder.0.display()), &memory_checker(&built)?)?;
    let file = OpenOptions::new().write(true).open(store_file(talking.program, &folder.0)?)?;
    let bytes = file.metadata()?.len();
    assert!(bytes > 16 << 20, "{bytes} bytes are stored");
    for at in (0..bytes).step_by(4096) {
        file.write_all_at(&[0x5a], at + 123)?;
    }
    talking.says()?;
    ended_by_its_store(
        &talking.ends()?,
        &["masu: page ", "is not what was written there", "\n    Find out what else writes"],
    );
    Ok(())
}

/// A file that became shorter.
fn pages_that_are_gone_from_the_file_are_found(_: &Host) -> Outcome {
    let (folder, built) = (Folder::make("local-cut")?, Folder::make("local-cut-program")?);
    let mut talking = full(&format!("file:{}", folder.0.display()), &memory_checker(&built)?)?;
    OpenOptions::new().write(true).open(store_file(talking.program, &folder.0)?)?.set_len(4096)?;
    talking.says()?;
    // Beyond the end, or in a hole left by an earlier write.
    ended_by_its_store(&talking.ends()?, &["masu: ", "\n    Find out what "]);
    Ok(())
}

/// Another client writes to the server.
fn pages_that_were_changed_in_redis_are_found(_: &Host) -> Outcome {
    const SPOIL: &str = "local n = 0 for _, k in ipairs(redis.call('KEYS', 'masu:*')) do \
                         for _, f in ipairs(redis.call('HKEYS', k)) do \
                         redis.call('HSET', k, f, string.rep('x', #redis.call('HGET', k, f))) n = n + 1 end end return n";
    let redis = Redis::start("local-redis-changed")?;
    let built = Folder::make("local-redis-changed-program")?;
    let memory_checker = memory_checker(&built)?;
    // Sealed, masu finds it; else the program does, by the sum.
    for (options, found) in [(&[][..], "changed or replayed page"), (&["--no-seal"], "is not what was written there")] {
        let mut talking = full_with(&redis.url(), &memory_checker, options)?;
        let changed = redis.ask(&["EVAL", SPOIL, "0"])?;
        assert!(
            changed.strip_prefix(':').is_some_and(|count| count.parse::<u32>().is_ok_and(|n| n > 4000)),
            "{changed}"
        );
        talking.says()?;
        ended_by_its_store(&talking.ends()?, &["masu: ", found, "\n    Find out what else writes"]);
    }
    Ok(())
}

/// Killed, and started again without its data.
fn pages_that_a_redis_forgot_are_found(_: &Host) -> Outcome {
    let mut redis = Redis::start("local-redis-anew")?;
    let built = Folder::make("local-redis-anew-program")?;
    let mut talking = full(&redis.url(), &memory_checker(&built)?)?;
    redis.kill()?;
    std::thread::sleep(Duration::from_millis(500));
    redis.run_again()?;
    talking.says()?;
    ended_by_its_store(&talking.ends()?, &["masu: cannot ", &format!("redis://127.0.0.1:{}", redis.port)]);
    Ok(())
}

/// It does not answer for three seconds, and then goes on.
fn a_redis_that_is_silent_for_a_while_is_waited_for(_: &Host) -> Outcome {
    let redis = Redis::start("local-redis-silent")?;
    let built = Folder::make("local-redis-silent-program")?;
    let mut talking = full(&redis.url(), &memory_checker(&built)?)?;
    redis.sleep()?;
    talking.says()?;
    std::thread::sleep(Duration::from_secs(3));
    redis.wake()?;
    let said = talking.ends()?;
    assert_eq!((said.code(), said.out.ends_with("right\n")), (0, true), "{said:?}");
    assert!(said.err.contains("has not served for") && said.err.contains("is back after"), "{said:?}");
    Ok(())
}

/// An option limits the wait.
fn a_redis_that_stays_silent_ends_the_program_after_the_time_that_was_said(_: &Host) -> Outcome {
    let redis = Redis::start("local-redis-timeout")?;
    let built = Folder::make("local-redis-timeout-program")?;
    let memory_checker = memory_checker(&built)?;
    let options = ["--local", "2MiB", "--store-timeout", "1s", "--store", &redis.url()];
    let mut talking = Talking::start(paged(&options, &[&memory_checker, "24", "0.5"])?)?;
    talking.hears("rest")?;
    talking.says()?;
    talking.hears("full")?;
    redis.sleep()?;
    talking.says()?;
    let said = talking.ends();
    redis.wake()?;
    ended_by_its_store(&said?, &["--store-timeout", &format!("redis://127.0.0.1:{}", redis.port)]);
    Ok(())
}

/// A small file system of our own, taken down when dropped.
struct Small(Folder);

impl Small {
    fn mount(name: &str) -> Result<Small> {
        let folder = Folder::make(name)?;
        rustix::mount::mount("masu-live", &folder.0, "tmpfs", MountFlags::empty(), Some(c"size=4m"))?;
        Ok(Small(folder))
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        if let Err(errno) = rustix::mount::unmount(&self.0.0, UnmountFlags::DETACH) {
            eprintln!("cannot unmount {}: {errno}", self.0.0.display());
        }
    }
}

/// 24 MiB do not fit into 4 MiB of a store and 2 MiB of memory.
fn a_store_that_is_full_ends_the_program_with_its_name(_: &Host) -> Outcome {
    let (small, built) = (Small::mount("local-full")?, Folder::make("local-full-program")?);
    let place = small.0.0.display();
    let said = said(&mut at(&format!("file:{place}"), &[&memory_checker(&built)?, "24", "0.2"])?)?;
    let words = ["masu: cannot write page ", "no space left on device", &place.to_string(), "\n    Make room there"];
    ended_by_its_store(&said, &words);
    Ok(())
}

/// Nor do they fit into 8 MiB of a server, which drops none of its data.
fn a_redis_that_is_full_ends_the_program_with_its_name(_: &Host) -> Outcome {
    let redis = Redis::start_with("local-redis-full", &["--maxmemory", "8mb"])?;
    let built = Folder::make("local-redis-full-program")?;
    let said = said(&mut at(&redis.url(), &[&memory_checker(&built)?, "24", "0.2"])?)?;
    let name = format!("redis://127.0.0.1:{}", redis.port);
    ended_by_its_store(&said, &["masu: cannot ", &name, "OOM", "\n    Raise maxmemory there"]);
    Ok(())
}

/// A program in the file's hands needs masu for nothing more.
fn with_a_file_the_program_outlives_masu(_: &Host) -> Outcome {
    let (folder, built) = (Folder::make("local-orphan")?, Folder::make("local-orphan-program")?);
    let mut talking = full(&format!("file:{}", folder.0.display()), &memory_checker(&built)?)?;
    signal(talking.masu(), libc::SIGKILL)?;
    talking.masu.wait()?;
    talking.says()?;
    let said = talking.ends()?;
    assert_eq!((said.out.as_str(), said.err.as_str()), ("right\n", ""), "{said:?}");
    Ok(())
}

/// A shell, which has nothing in the store, reports the end of the program that it started.
fn with_redis_the_program_ends_when_masu_is_killed(_: &Host) -> Outcome {
    let redis = Redis::start("local-redis-orphan")?;
    let built = Folder::make("local-redis-orphan-program")?;
    let script = format!("{} 24 0.5; echo status=$?", memory_checker(&built)?);
    let mut talking = Talking::start(at(&redis.url(), &["/bin/sh", "-c", &script])?)?;
    talking.hears("rest")?;
    talking.says()?;
    talking.hears("full")?;
    signal(talking.masu(), libc::SIGKILL)?;
    talking.masu.wait()?;
    talking.says()?;
    let said = talking.ends()?;
    assert_eq!(said.out, "status=2\n", "{said:?}");
    assert!(said.err.contains("masu is gone") && said.err.contains("\n    Find out what ended masu"), "{said:?}");
    Ok(())
}

/// A thread that waits for a page has all signals blocked.
fn a_signal_ends_the_wait_for_a_silent_redis(_: &Host) -> Outcome {
    let redis = Redis::start("local-redis-signal")?;
    let built = Folder::make("local-redis-signal-program")?;
    let mut talking = full(&redis.url(), &memory_checker(&built)?)?;
    redis.sleep()?;
    talking.says()?;
    std::thread::sleep(Duration::from_secs(2));
    signal(talking.masu(), libc::SIGTERM)?;
    let (program, begun) = (format!("/proc/{}", talking.program), Instant::now());
    while Path::new(&program).exists() {
        assert!(begun.elapsed() < Duration::from_secs(20), "it waits on");
        std::thread::sleep(Duration::from_millis(50));
    }
    redis.wake()?;
    let said = talking.ends()?;
    assert_eq!(said.code(), 128 + libc::SIGTERM, "{said:?}");
    Ok(())
}

/// Ctrl-C goes to the whole group.
fn ctrl_c_ends_it_and_leaves_nothing_in_the_store(_: &Host) -> Outcome {
    let (folder, built) = (Folder::make("local-interrupt")?, Folder::make("local-interrupt-program")?);
    let memory_checker = memory_checker(&built)?;
    let redis = Redis::start("local-redis-interrupt")?;
    for store in [format!("file:{}", folder.0.display()), redis.url()] {
        let talking = full(&store, &memory_checker)?;
        let (program, is_redis) = (talking.program, store.starts_with("redis"));
        assert_eq!(std::fs::read_dir(&folder.0)?.count(), 0, "the store's files have no names");
        assert_eq!(redis.ask(&["DBSIZE"])? != ":0", is_redis);
        signal(-talking.masu(), libc::SIGINT)?;
        let said = talking.ends()?;
        let spoke = said.err.lines().any(|line| !line.contains("one server without replica"));
        assert_eq!((said.code(), spoke), (128 + libc::SIGINT, false), "{store}: {said:?}");
        assert!(!Path::new(&format!("/proc/{program}")).exists(), "the program lives on");
        assert_eq!(redis.ask(&["DBSIZE"])?, ":0", "{store}");
        assert_eq!(std::fs::read_dir(&folder.0)?.count(), 0);
    }
    Ok(())
}
