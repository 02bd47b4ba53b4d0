//! `masu serve`: groups are measured, and the page, the metrics and the history show them.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use linux::{Pid, Rooted, status};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use rustix::process::{Signal, kill_process};
use serde_json::Value;

use super::programs::{Running, TIME_LIMIT};
use super::run::{Folder, Result};
use super::run_hard::compile;
use super::serve::Service;
use super::{Outcome, no_automatic_huge_pages};
use crate::group::Group;
use crate::host::{Host, LiveTest, tests};
use crate::target_process::TargetProcess;

/// Tests of this file, and their requirements.
pub(crate) const TESTS: &[LiveTest] = tests! {
    serve_page requires [Root, MasuCommand, PageTableWalk];
    the_page_has_a_process_without_rights;
    a_client_may_send_anything_and_read_slowly;
    an_address_in_use_is_said_and_tried_again;
    a_killed_page_and_a_killed_service_leave_nothing;
    groups_have_the_memory_that_the_kernel_charges [MemoryGroups, CCompiler];
    memory_of_torn_huge_pages_is_unmapped [MemoryGroups, CCompiler, TornPages, HugePageModes];
    the_history_outlives_a_killed_service [MemoryGroups];
    a_history_that_cannot_be_written_stops_nothing;
};

/// Settings of a service whose page has any free port.
const FREE_PORT: &str = "[serve]\nlisten = \"127.0.0.1:0\"\nhistory = \"off\"\n";

/// Holds its memory: with an argument torn huge pages, of which a quarter is mapped; else 64 MiB.
const HOLDS: &str = r#"
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
int main(int c, char **v) {
    size_t w = 2 << 20, n = 32 * w;
    char *p = mmap(0, n + w, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    p = (char *)(((size_t)p + w - 1) & ~(w - 1));
    madvise(p, n, c > 1 ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
    memset(p, 1, n);
    if (c > 1 && mlock(p, n)) return 77;
    for (size_t i = 0; c > 1 && i < n; i += w) if (madvise(p + i + w / 4, w / 4 * 3, 24)) return 78;
    if (write(1, "ready\n", 6) != 6) return 79;
    return sleep(300);
}
"#;

/// Answer of the page: status and body.
fn get(address: SocketAddr, path: &str) -> Result<(u16, String)> {
    ask(address, &format!("GET {path} HTTP/1.1\r\nHost: {address}\r\n\r\n"))
}

fn ask(address: SocketAddr, request: &str) -> Result<(u16, String)> {
    let mut client = TcpStream::connect(address)?;
    client.set_read_timeout(Some(TIME_LIMIT))?;
    client.write_all(request.as_bytes())?;
    answer(&mut client)
}

fn answer(client: &mut impl Read) -> Result<(u16, String)> {
    let mut text = String::new();
    client.read_to_string(&mut text)?;
    let (head, body) = text.split_once("\r\n\r\n").ok_or_else(|| format!("no answer: {text:?}"))?;
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).ok_or("no status")?;
    Ok((status, body.to_owned()))
}

/// Address of the page after `before` others.
pub(super) fn address_of(service: &Service, before: usize) -> Result<SocketAddr> {
    let event = service.waits_for("page", before)?;
    let address = event["address"].as_str().and_then(|url| url.strip_prefix("http://")?.strip_suffix('/'));
    Ok(address.ok_or_else(|| format!("{event}"))?.parse()?)
}

/// The state, once there is one that `suits`.
pub(super) fn state(address: SocketAddr, suits: impl Fn(&Value) -> bool) -> Result<Value> {
    let deadline = Instant::now() + TIME_LIMIT;
    loop {
        let (status, body) = get(address, "/api/v1/state")?;
        let state: Value = if status == 200 { serde_json::from_str(&body)? } else { Value::Null };
        if suits(&state) {
            return Ok(state);
        }
        assert!(Instant::now() < deadline, "{status}: {state}");
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// The group of this path in a state.
fn group<'s>(state: &'s Value, path: &str) -> Option<&'s Value> {
    state["groups"]["groups"].as_array()?.iter().find(|group| group["group"] == path)
}

/// The process that answers.
fn page_of(service: &Service) -> Result<Pid> {
    let deadline = Instant::now() + TIME_LIMIT;
    loop {
        let children = linux::children::descendants(&Rooted::host(), Pid(service.running.pid()))?;
        if let Some(page) = children.first() {
            return Ok(*page);
        }
        assert!(Instant::now() < deadline, "no process");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn the_page_has_a_process_without_rights(_: &Host) -> Outcome {
    let service = Service::start("page-rights", FREE_PORT)?;
    let address = address_of(&service, 0)?;
    let state = state(address, |state| state["version"].is_string())?;
    assert!(state["rules"].as_array().is_some_and(Vec::is_empty), "{state}");
    let (status_of_page, page) = get(address, "/")?;
    assert!(status_of_page == 200 && page.contains("<title>masu"), "{page}");
    assert_eq!(get(address, "/none")?.0, 404);
    let (_, metrics) = get(address, "/metrics")?;
    assert!(metrics.contains("\nmasu_rules_loaded 0\n") && metrics.ends_with("# EOF\n"), "{metrics}");

    let pid = page_of(&service)?;
    let found = status::status(&Rooted::host(), pid)?;
    assert!(found.uids.iter().all(|user| *user != 0), "{found:?}");
    assert_eq!(found.effective_capabilities, 0);
    let text = fs::read_to_string(format!("/proc/{pid}/status"))?;
    for line in ["CapPrm:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2", "Threads:\t1", "Groups:\t"] {
        assert!(text.lines().any(|found| found.trim_end() == line.trim_end()), "{line}\n{text}");
    }
    service.ends()?;
    assert!(TcpStream::connect(address).is_err(), "the page ends with the service");
    Ok(())
}

fn a_client_may_send_anything_and_read_slowly(_: &Host) -> Outcome {
    let service = Service::start("page-clients", FREE_PORT)?;
    let address = address_of(&service, 0)?;
    state(address, |state| state["version"].is_string())?;
    assert_eq!(ask(address, &format!("POST / HTTP/1.1\r\nHost: {address}\r\nContent-Length: 0\r\n\r\n"))?.0, 405);
    assert_eq!(ask(address, "GET / HTTP/1.1\r\nHost: masu.example\r\n\r\n")?.0, 421);
    for garbage in ["\0\u{7f}\r\n\r\n".to_owned(), format!("GET /{} HTTP/1.1\r\n\r\n", "x".repeat(60_000))] {
        let status = ask(address, &garbage).map_or(0, |(status, _)| status);
        assert!(matches!(status, 0 | 400..=499), "{status}");
    }
    // More than there are places: some say nothing, some ask and do not read.
    let mut slow = Vec::new();
    for number in 0..200 {
        let mut client = TcpStream::connect(address)?;
        if number % 2 == 0 {
            client.write_all(format!("GET /app.js HTTP/1.1\r\nHost: {address}\r\n\r\n").as_bytes())?;
        }
        slow.push(client);
    }
    assert_eq!(get(address, "/metrics")?.0, 200);
    drop(slow);
    assert_eq!(get(address, "/metrics")?.0, 200);
    assert_eq!((service.count("page")?, service.count("page-failed")?), (1, 0), "{:?}", service.lines()?);
    service.ends()
}

fn an_address_in_use_is_said_and_tried_again(_: &Host) -> Outcome {
    let other = TcpListener::bind("127.0.0.1:0")?;
    let address = other.local_addr()?;
    let service = Service::start("page-in-use", &format!("[serve]\nlisten = \"{address}\"\n"))?;
    let failed = service.waits_for("page-failed", 0)?;
    let expected = format!("cannot listen at {address}: address already in use (EADDRINUSE)");
    assert_eq!(failed["reason"], Value::from(expected));
    drop(other);
    assert_eq!(address_of(&service, 0)?, address);
    state(address, |state| state["version"].is_string())?;

    // Another address by a reload.
    let folder = Folder::make("page-socket")?;
    let socket = folder.0.join("http.sock");
    fs::write(service.folder.0.join("masu.toml"), format!("[serve]\nlisten = \"unix:{}\"\n", socket.display()))?;
    service.running.signal(Signal::HUP)?;
    service.waits_for("page", 1)?;
    let mut client = UnixStream::connect(&socket)?;
    client.write_all(b"GET / HTTP/1.1\r\nHost: any\r\n\r\n")?;
    assert_eq!(answer(&mut client)?.0, 200);
    assert!(TcpStream::connect(address).is_err(), "the former address is free");
    service.ends()?;
    assert!(!socket.exists());
    Ok(())
}

fn a_killed_page_and_a_killed_service_leave_nothing(_: &Host) -> Outcome {
    let kill = |pid: Pid| -> Result<()> {
        Ok(kill_process(rustix::process::Pid::from_raw(pid.0).ok_or("no process")?, Signal::KILL)?)
    };
    let service = Service::start("page-killed", FREE_PORT)?;
    address_of(&service, 0)?;
    let first = page_of(&service)?;
    kill(first)?;
    let failed = service.waits_for("page-failed", 0)?;
    assert!(failed["reason"].as_str().is_some_and(|why| why.contains("has ended: signal: 9")), "{failed}");
    let address = address_of(&service, 1)?;
    state(address, |state| state["version"].is_string())?;
    let second = page_of(&service)?;
    assert!(second != first);
    service.running.signal(Signal::KILL)?;
    let deadline = Instant::now() + TIME_LIMIT;
    while status::status(&Rooted::host(), second).is_ok_and(|status| !status.zombie) {
        assert!(Instant::now() < deadline, "the page outlives the service");
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// A program with its memory in a group.
fn holder(program: &str, of: &Group, arguments: &[&str]) -> Result<Running> {
    let script = format!("echo 0 > '{}' && exec \"$@\"", of.procs().display());
    let mut command = Command::new("/bin/sh");
    let mut running = Running::start(command.args(["-c", &script, "sh", program]).args(arguments))?;
    let mut ready = [0; 6];
    running.0.stdout.as_mut().ok_or("no output")?.read_exact(&mut ready)?;
    assert_eq!(&ready, b"ready\n");
    Ok(running)
}

fn groups_have_the_memory_that_the_kernel_charges(_: &Host) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let folder = Folder::make("page-groups-programs")?;
    let program = compile(&folder, "cc", "holds", HOLDS, &[])?;
    let of = Group::make("page<script>\u{1b}[2J\"")?;
    of.limit(256 << 20)?;
    let running = holder(&program, &of, &[])?;
    let service = Service::start("page-groups", FREE_PORT)?;
    let address = address_of(&service, 0)?;
    let shown = of.path().replace('\u{1b}', "\\x1b");
    let state = state(address, |state| group(state, &shown).is_some())?;
    let found = group(&state, &shown).ok_or("gone")?;
    let mib = |name: &str| found[name].as_u64().map(|bytes| bytes >> 20);
    assert_eq!((&found["processes"], mib("limit_bytes")), (&1.into(), Some(256)), "{found}");
    assert!(matches!(mib("anonymous_bytes"), Some(64..70)), "{found}");
    assert!(mib("usage_bytes") >= mib("anonymous_bytes"), "{found}");
    assert!(matches!(mib("huge_bytes"), Some(0) | None), "{found}");
    let (_, metrics) = get(address, "/metrics")?;
    let label = shown.replace('\\', "\\\\").replace('"', "\\\"");
    let line = format!("masu_group_memory_bytes{{group=\"{label}\",class=\"anonymous\"}} ");
    assert!(metrics.lines().any(|found| found.starts_with(&line)), "{line}\n{metrics}");
    let encoded: String = shown.bytes().map(|byte| format!("%{byte:02x}")).collect();
    let (status, history) = get(address, &format!("/api/v1/history?range=1h&group={encoded}"))?;
    let history: Value = serde_json::from_str(&history)?;
    assert_eq!((status, &history["groups"][0]["anonymous"][0]), (200, &found["anonymous_bytes"]), "{history}");
    drop((service, running));
    Ok(())
}

fn memory_of_torn_huge_pages_is_unmapped(_: &Host) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let folder = Folder::make("page-torn-programs")?;
    let program = compile(&folder, "cc", "holds", HOLDS, &[])?;
    let of = Group::make("page-torn")?;
    let running = holder(&program, &of, &["torn"])?;
    let service = Service::start("page-torn", FREE_PORT)?;
    let state = state(address_of(&service, 0)?, |state| group(state, &of.path()).is_some())?;
    let found = group(&state, &of.path()).ok_or("gone")?;
    // Three quarters of 64 MiB are charged and not mapped.
    assert!(matches!(found["unmapped_bytes"].as_u64().map(|bytes| bytes >> 20), Some(46..=50)), "{found}");
    drop((service, running));
    Ok(())
}

/// The next service shows the samples of a killed one.
fn the_history_outlives_a_killed_service(_: &Host) -> Outcome {
    let folder = Folder::make("page-history-state")?;
    // The topmost group is not accounted under version 2.
    let of = Group::make("page-history")?;
    let process = TargetProcess::start()?;
    of.take_in(process.pid())?;
    let history = format!("{{ dir = \"{}\" }}", folder.0.join("history").display());
    let rules = FREE_PORT.replace("\"off\"", &history);
    let mut service = Service::start("page-history", &rules)?;
    let first = state(address_of(&service, 0)?, |state| state["at"].is_u64())?["at"].as_u64();
    let file = folder.0.join("history/history.db");
    let is_written = || {
        let files = [file.clone(), file.with_extension("db-wal")].map(|file| fs::read(file).unwrap_or_default());
        files.iter().any(|bytes| bytes.windows(of.path().len()).any(|part| part == of.path().as_bytes()))
    };
    let deadline = Instant::now() + TIME_LIMIT;
    while !is_written() {
        assert!(Instant::now() < deadline, "no sample is written");
        std::thread::sleep(Duration::from_millis(50));
    }
    std::thread::sleep(Duration::from_millis(500));
    service.running.signal(Signal::KILL)?;
    service.running = Service::begin(&service.folder.0)?;
    let address = address_of(&service, 1)?;
    loop {
        let (_, body) = get(address, "/api/v1/history?range=1h")?;
        let history: Value = serde_json::from_str(&body)?;
        let times: Vec<u64> = history["at"].as_array().into_iter().flatten().filter_map(Value::as_u64).collect();
        if times.len() >= 2 {
            assert!(times.first().copied() <= first, "{times:?} {first:?}");
            break;
        }
        assert!(Instant::now() < deadline, "{history}");
        std::thread::sleep(Duration::from_millis(100));
    }
    drop(process);
    service.ends()
}

/// A file system of 16 KiB, unmounted when dropped.
struct Small(PathBuf);

impl Drop for Small {
    fn drop(&mut self) {
        let _ = unmount(&self.0, UnmountFlags::DETACH);
    }
}

fn a_history_that_cannot_be_written_stops_nothing(_: &Host) -> Outcome {
    let folder = Folder::make("page-full-state")?;
    let small = folder.0.join("small");
    fs::create_dir(&small)?;
    mount("tmpfs", &small, "tmpfs", MountFlags::empty(), Some(c"size=16k"))?;
    let small = Small(small);
    let history = format!("{{ dir = \"{}\" }}", small.0.display());
    let service = Service::start("page-full", &FREE_PORT.replace("\"off\"", &history))?;
    let failed = service.waits_for("history-failed", 0)?;
    assert!(failed["reason"].as_str().is_some_and(|why| why.contains("database or disk is full")), "{failed}");
    state(address_of(&service, 0)?, |state| state["version"].is_string())?;
    service.ends()?;
    drop(small);
    let service = Service::start("page-no-folder", &FREE_PORT.replace("\"off\"", "{ dir = \"/dev/null/masu\" }"))?;
    let failed = service.waits_for("history-failed", 0)?;
    assert_eq!(failed["reason"], "/dev/null/masu: not a directory (ENOTDIR)");
    service.ends()
}
