//! Redis as it is installed, under load: the usual example of a program for which huge pages are turned off.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use linux::Pid;
use serde_json::Value;

use super::command::start;
use super::programs::{self, Running, TIME_LIMIT};
use super::{Outcome, no_automatic_huge_pages};
use crate::host::{Host, LiveTest, tests};

/// Tests of this file, and their requirements.
pub(crate) const TESTS: &[LiveTest] = tests! {
    command_redis requires [Root, MasuCommand, RedisServer, PageTableWalk, RemoteCollapse, HugePageModes];
    redis_gets_huge_pages_within_the_budget_and_keeps_its_data;
};

const KEYS: u32 = 160_000;
const VALUE_BYTES: usize = 1200;

/// A folder that goes with the test.
struct Folder(PathBuf);

impl Folder {
    fn make() -> io::Result<Folder> {
        let folder = Folder(std::env::temp_dir().join(format!("masu-live-redis-{}", std::process::id())));
        std::fs::create_dir(&folder.0)?;
        Ok(folder)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            eprintln!("cannot remove {}: {error}", self.0.display());
        }
    }
}

/// A server of our own on a socket in the folder, writing nothing to disk.
fn start_redis(folder: &Path) -> Result<Running, libtest_mimic::Failed> {
    start_redis_by(None, folder)
}

/// The same, started by another program, whose last argument it becomes.
pub(super) fn start_redis_by(starter: Option<Command>, folder: &Path) -> Result<Running, libtest_mimic::Failed> {
    // Redis reads the name under which it was called.
    let called = folder.join("redis-server");
    std::os::unix::fs::symlink(programs::redis_server().ok_or("no redis-server")?, &called)?;
    let mut command = match starter {
        None => Command::new(called),
        Some(mut starter) => {
            starter.arg(called);
            starter
        }
    };
    command.arg("--port").arg("0").arg("--unixsocket").arg(folder.join("socket")).arg("--dir").arg(folder);
    command.args(["--save", "", "--appendonly", "no", "--daemonize", "no", "--loglevel", "warning"]);
    command.args(["--disable-thp", "no"]);
    Ok(Running::start(&mut command)?)
}

/// A client that sends many commands and then reads their answers.
pub(super) struct Client(BufReader<UnixStream>);

impl Client {
    pub(super) fn connect(socket: &Path) -> io::Result<Client> {
        let deadline = Instant::now() + TIME_LIMIT;
        loop {
            match UnixStream::connect(socket) {
                Ok(stream) => return Ok(Client(BufReader::new(stream))),
                Err(error) if Instant::now() > deadline => return Err(error),
                Err(_) => std::thread::sleep(Duration::from_millis(20)),
            }
        }
    }

    fn send(&mut self, commands: &[Vec<Vec<u8>>]) -> io::Result<()> {
        let mut bytes = Vec::new();
        for words in commands {
            write!(bytes, "*{}\r\n", words.len())?;
            for word in words {
                write!(bytes, "${}\r\n", word.len())?;
                bytes.extend_from_slice(word);
                bytes.extend_from_slice(b"\r\n");
            }
        }
        self.0.get_mut().write_all(&bytes)
    }

    /// One answer: a string, or a word such as `OK`.
    fn answer(&mut self) -> io::Result<Vec<u8>> {
        let mut line = String::new();
        self.0.read_line(&mut line)?;
        let line = line.trim_end();
        match line.strip_prefix('$').map(str::parse::<usize>) {
            Some(Ok(length)) => {
                let mut bytes = vec![0; length + 2];
                self.0.read_exact(&mut bytes)?;
                bytes.truncate(length);
                Ok(bytes)
            }
            _ if line.starts_with('+') => Ok(line.as_bytes()[1..].to_vec()),
            _ => Err(io::Error::other(format!("Redis answered {line:?}"))),
        }
    }

    pub(super) fn set(&mut self, keys: impl Iterator<Item = u32>) -> io::Result<()> {
        let commands: Vec<_> = keys.map(|key| vec![b"SET".to_vec(), name(key), value(key)]).collect();
        self.send(&commands)?;
        for _ in commands {
            let answer = self.answer()?;
            assert_eq!(answer, b"OK");
        }
        Ok(())
    }

    pub(super) fn check(&mut self, keys: impl Iterator<Item = u32>) -> io::Result<()> {
        let keys: Vec<u32> = keys.collect();
        let commands: Vec<_> = keys.iter().map(|key| vec![b"GET".to_vec(), name(*key)]).collect();
        self.send(&commands)?;
        for key in keys {
            assert!(self.answer()? == value(key), "the value of key {key} has changed");
        }
        Ok(())
    }
}

fn name(key: u32) -> Vec<u8> {
    format!("key:{key:08}").into_bytes()
}

fn value(key: u32) -> Vec<u8> {
    let mut text = format!("{key}:{}:", key.wrapping_mul(2_654_435_761)).into_bytes().repeat(VALUE_BYTES / 8);
    text.truncate(VALUE_BYTES);
    text
}

fn rss_kib(pid: Pid) -> Result<u64, libtest_mimic::Failed> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
    let line = text.lines().find(|line| line.starts_with("Rss:")).ok_or("no Rss")?;
    Ok(line.split_ascii_whitespace().nth(1).ok_or("no amount")?.parse()?)
}

/// Uniform reads over some 200 MB: nearly every window is hot and dense.
fn redis_gets_huge_pages_within_the_budget_and_keeps_its_data(_: &Host) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let folder = Folder::make()?;
    let redis = start_redis(&folder.0)?;
    let pid = Pid(redis.pid());
    let mut client = Client::connect(&folder.0.join("socket"))?;
    for first in (0..KEYS).step_by(200) {
        client.set(first..first + 200)?;
    }
    let rss_before = rss_kib(pid)?;
    assert!(rss_before > 180 << 10, "{rss_before} KiB are no load");

    let masu = start(&["attach", &pid.to_string(), "--until-settled", "--json"])?;
    let mut next = 0u32;
    let said = masu.said_while(|| {
        // A large odd step visits all keys in no order that memory is in.
        let keys: Vec<u32> = (0..100).map(|n| (next + n).wrapping_mul(97_003) % KEYS).collect();
        next = next.wrapping_add(100);
        client.check(keys.into_iter())
    })?;

    assert_eq!((said.code(), said.err.as_str()), (0, ""));
    let report: Value = serde_json::from_str(&said.out)?;
    let promoted = report["windows_promoted"].as_u64().ok_or("no count")?;
    assert!(promoted >= 50, "of some 100 windows: {report}");
    let extra = report["extra_rss_fraction"].as_f64().ok_or("no fraction")?;
    assert!(extra <= 0.01, "{report}");
    let rss_after = rss_kib(pid)?;
    assert!(rss_after <= rss_before + rss_before / 50, "{rss_before} KiB before, {rss_after} KiB after");
    for first in (0..KEYS).step_by(200) {
        client.check(first..first + 200)?;
    }

    // The huge pages of this second run are undone; those of the first, which stayed, are not its own.
    let masu = start(&["attach", &pid.to_string(), "--for", "3s", "--undo", "--json"])?;
    let said = masu.said_while(|| client.check((0..100).map(|n| n * 1601 % KEYS)))?;
    assert_eq!((said.code(), said.err.as_str()), (0, ""));
    for first in (0..KEYS).step_by(200) {
        client.check(first..first + 200)?;
    }
    drop(redis);
    Ok(())
}
