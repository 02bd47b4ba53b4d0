//! `masu run --local` under attack: the program looking for masu's secrets, other users, a server that lies.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use super::Outcome;
use super::programs::{self, Running, TIME_LIMIT};
use super::redis::{Redis, wait_until};
use super::run::{Folder, Report, Result, lines, own, said};
use super::run_local::{Talking, memory_checker, paged};
use super::run_local_stores::{ended_by_its_store, full, full_with};
use crate::host::{Host, LiveTest, tests};
use crate::program;

/// Tests of this file, and their requirements.
pub(crate) const TESTS: &[LiveTest] = tests! {
    run_local_other_users requires [MasuCommand, PagerLibrary, UserFaults];
    another_users_connections_keep_no_program_waiting [Root, Shell];
    a_program_that_became_another_user_is_paged [Root, Python];
    a_server_that_replays_or_swaps_pages_is_found_out [CPrograms, RedisServer];
    pages_in_a_file_are_sealed_where_one_says_so [CPrograms];
    a_stores_password_stays_with_masu [Root, Shell, RedisServer];
};

/// A user without privileges. It needs no name.
const SOMEBODY: u32 = 4001;

/// As an ordinary user: root may read everything.
fn a_stores_password_stays_with_masu(_: &Host) -> Outcome {
    const LOOK: &str =
        "env; /bin/sh -c env; cat /proc/$PPID/environ /proc/$PPID/task/*/environ; head -c 1 /proc/$PPID/mem";
    let redis = Redis::start_with("local-secret", &["--requirepass", "hunter22"])?;
    let mut run = paged(&["--local", "4MiB", "--store", &redis.url()], &["/bin/sh", "-c", LOOK])?;
    let said = said(run.env("MASU_STORE_PASSWORD", "hunter22").uid(SOMEBODY).gid(SOMEBODY))?;
    assert!(said.out.contains("MASU_PAGER=") && !said.out.contains("MASU_STORE"), "{said:?}");
    assert!(!said.out.contains("hunter22") && !said.err.contains("hunter22"), "{said:?}");
    assert!(said.err.matches("ermission denied").count() >= 3, "masu is open to its program: {said:?}");
    Ok(())
}

/// Threads and open files of a process.
fn held(process: i32) -> Result<(usize, usize)> {
    let count = |what: &str| Ok::<_, std::io::Error>(std::fs::read_dir(format!("/proc/{process}/{what}"))?.count());
    Ok((count("task")?, count("fd")?))
}

/// Starts a shell that starts programs, reports their start, and waits for a line, twice.
const STARTS: &str = "echo name $MASU_PAGER $MASU_PAGER_PATH; read go; i=0; \
                      while [ $i -lt 40 ]; do /bin/true || exit 1; i=$((i+1)); done; echo done $i; read go";

/// Another user with public knowledge only. Root's programs do not wait for it, and it costs no threads or open files.
fn another_users_connections_keep_no_program_waiting(_: &Host) -> Outcome {
    let mut talking = Talking::start(paged(&["-q", "--local", "4MiB"], &["/bin/sh", "-c", STARTS])?)?;
    let names = talking.line()?;
    let [_, name, path] = names.split_whitespace().collect::<Vec<_>>()[..] else { return Err(names.into()) };
    let shown = std::fs::read_to_string("/proc/net/unix")?;
    let secret = path.rsplit('/').next().ok_or("no path")?;
    assert!(shown.contains(&format!("@{name}")) && !shown.contains(secret), "{names}");
    let before = held(talking.masu())?;
    let mut client = Command::new(own()?);
    client.args([program::FLAG, "connections", name, "4000"]).uid(SOMEBODY).gid(SOMEBODY).stdin(Stdio::null());
    // As many as processors: each of them does nothing else.
    let mut clients = [Running::start(&mut client)?, Running::start(&mut client)?];
    std::thread::sleep(Duration::from_millis(500));
    talking.says()?;
    assert_eq!(talking.line()?.trim(), "done 40");
    // Its programs have ended, and it notices; beside its own files, it holds 64 foreign connections and the newest
    // one.
    let masu = talking.masu();
    let holds_no_more = |now: (usize, usize)| now.0 <= before.0 && now.1 <= before.1 + 65;
    wait_until("masu has no thread and no file more than that", || held(masu).is_ok_and(holds_no_more))?;
    assert!(
        clients.iter_mut().all(|client| matches!(client.0.try_wait(), Ok(None))),
        "the programs waited for the other clients"
    );
    for client in clients {
        let made: u64 = lines(&client.said()?)?["made"].parse()?;
        assert!(made > 1000, "{made} connections");
    }
    talking.says()?;
    let said = talking.ends()?;
    assert_eq!((said.code(), said.err.as_str()), (0, ""), "{said:?}");
    Ok(())
}

/// It inherits the secret and the path, and root's masu serves it.
fn a_program_that_became_another_user_is_paged(_: &Host) -> Outcome {
    const BECOMES: &str =
        "import os; os.setgid(4001); os.setuid(4001); os.execv('/bin/sh', ['sh', '-c', 'id -u; exit 7'])";
    let python = programs::python().ok_or("no python3")?;
    let report = Report::new("local-became");
    let options = ["--local", "4MiB", "--report", report.path(), "--json"];
    let said = said(&mut paged(&options, &[python.to_str().ok_or("a path that is no text")?, "-c", BECOMES])?)?;
    assert_eq!((said.code(), said.out.as_str(), said.own_errors().as_str()), (7, "4001\n", ""), "{said:?}");
    // Python, the program that it became, and id(1).
    assert_eq!(report.read()?["processes"].as_u64(), Some(3));
    Ok(())
}

/// Keeps a copy of all pages under other keys; gives them back; gives each page the next one's contents.
const KEEP: &str =
    "for _, k in ipairs(redis.call('KEYS', 'masu:*')) do redis.call('COPY', k, 'old' .. k, 'REPLACE') end return 1";
const REPLAY: &str = "for _, k in ipairs(redis.call('KEYS', 'masu:*')) do for _, f in ipairs(redis.call('HKEYS', 'old' .. k)) do \
                      redis.call('HSET', k, f, redis.call('HGET', 'old' .. k, f)) end end return 1";
const SWAP: &str = "for _, k in ipairs(redis.call('KEYS', 'masu:*')) do local f = redis.call('HKEYS', k) \
                    local all = redis.call('HGETALL', k) for n = 1, #f do \
                    redis.call('HSET', k, f[n], all[2 * (n % #f + 1)]) end end return 1";

/// Old pages have contents that the program itself wrote there once: no checksum of the store's would tell.
fn a_server_that_replays_or_swaps_pages_is_found_out(_: &Host) -> Outcome {
    let folder = Folder::make("local-liar")?;
    let memory_checker = memory_checker(&folder)?;
    let redis = Redis::start("local-liar-redis")?;
    for lie in [REPLAY, SWAP] {
        let mut talking = full(&redis.url(), &memory_checker)?;
        assert_eq!(redis.ask(&["EVAL", KEEP, "0"])?, ":1");
        // All pages changed meanwhile are stored by the time it has read all of it.
        talking.says()?;
        let begun = std::time::Instant::now();
        while redis.ask(&["EVAL", lie, "0"])? == ":1" && Path::new(&format!("/proc/{}", talking.program)).exists() {
            assert!(begun.elapsed() < TIME_LIMIT, "it was not found out");
        }
        let said = talking.ends()?;
        ended_by_its_store(&said, &["masu: cannot get ", "the store changed or replayed page "]);
        assert_eq!(redis.ask(&["FLUSHALL"])?, "+OK");
    }
    Ok(())
}

/// Sealed by masu, since the program would need the key; the file does not hold the program's memory in clear.
fn pages_in_a_file_are_sealed_where_one_says_so(_: &Host) -> Outcome {
    let (folder, built) = (Folder::make("local-sealed")?, Folder::make("local-sealed-program")?);
    let report = Report::new("local-sealed");
    let store = format!("file:{}", folder.0.display());
    let options = ["--seal", "--report", report.path(), "--json"];
    let mut talking = full_with(&store, &memory_checker(&built)?, &options)?;
    talking.says()?;
    let said = talking.ends()?;
    assert_eq!((said.code(), said.out.ends_with("right\n")), (0, true), "{said:?}");
    let report = report.read()?;
    assert!(report["sealed"].is_string() && report["bytes_in"].as_u64() > Some(1 << 20), "{report}");
    Ok(())
}
