//! `masu serve`: programs that come and go are under their rules, and nothing else is touched.

use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use linux::page_cache::resident;
use rustix::process::Signal;
use serde_json::Value;
use units::{Bytes, Pages};

use super::command::{json, masu, said};
use super::disk_file::DiskFile;
use super::programs::{Running, TIME_LIMIT};
use super::run::{Folder, Result};
use super::run_hard::compile;
use super::{Outcome, no_automatic_huge_pages};
use crate::host::{Host, LiveTest, tests};

/// Tests of this file, and their requirements.
pub(crate) const TESTS: &[LiveTest] = tests! {
    serve requires [Root, MasuCommand, PageTableWalk, RemoteCollapse, HugePageModes, CCompiler];
    a_program_is_under_its_rule_from_its_start_and_others_are_not_touched;
    a_reload_changes_only_what_changed_and_a_fault_changes_nothing;
    a_killed_service_starts_again;
    rules_are_checked_and_foreseen_without_a_change;
    the_running_service_tells_its_state;
    what_a_program_reads_under_a_rule_leaves_the_page_cache [DiskFiles];
};

/// Uses 32 MiB for the seconds of its last argument, or until 24 MiB of them are huge; with another argument, only once.
/// Prints the huge KiB.
const HOT: &str = r#"
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
static long huge_kib(void) {
    char line[256]; long kib = -1;
    FILE *f = fopen("/proc/self/smaps_rollup", "r");
    while (fgets(line, sizeof line, f)) sscanf(line, "AnonHugePages: %ld", &kib);
    fclose(f);
    return kib;
}
int main(int c, char **v) {
    size_t n = 32 << 20;
    volatile char *p = mmap(0, n + (2 << 20), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    p = (char *)(((size_t)p + (2 << 20) - 1) & ~((2ul << 20) - 1));
    for (size_t i = 0; i < n; i += 4096) p[i] = 1;
    if (c > 2) return sleep(atoi(v[2]));
    time_t end = time(NULL) + atoi(v[c - 1]);
    while (time(NULL) < end && huge_kib() < 24 << 10)
        for (int k = 0; k < 100; k++) for (size_t i = 0; i < n; i += 4096) p[i]++;
    printf("%ld\n", huge_kib());
    return 0;
}
"#;

/// Reads its file after some seconds, and stays.
const READS: &str = r#"
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>
int main(int c, char **v) {
    static char part[65536];
    sleep(2);
    int fd = open(v[1], O_RDONLY);
    while (read(fd, part, sizeof part) > 0) {}
    return sleep(300);
}
"#;

/// A service with a configuration of its own.
pub(super) struct Service {
    pub(super) folder: Folder,
    pub(super) running: Running,
}

impl Service {
    pub(super) fn start(name: &str, rules: &str) -> Result<Service> {
        let folder = Folder::make(name)?;
        std::fs::write(folder.0.join("masu.toml"), rules)?;
        let running = Service::begin(&folder.0)?;
        let service = Service { folder, running };
        service.waits_for("serving", 0)?;
        Ok(service)
    }

    pub(super) fn begin(folder: &Path) -> Result<Running> {
        let mut command = masu()?;
        command.args(["serve", "--json", "--config"]).arg(folder.join("masu.toml"));
        let out = File::options().create(true).append(true).open(folder.join("lines"))?;
        Ok(Running(command.stdin(Stdio::null()).stdout(out).stderr(Stdio::piped()).spawn()?))
    }

    pub(super) fn lines(&self) -> Result<Vec<Value>> {
        let text = std::fs::read_to_string(self.folder.0.join("lines"))?;
        // The last line may be half written.
        Ok(text.split_inclusive('\n').filter_map(|line| serde_json::from_str(line).ok()).collect())
    }

    /// Number of events of this kind so far.
    pub(super) fn count(&self, event: &str) -> Result<usize> {
        Ok(self.lines()?.iter().filter(|line| line["event"] == event).count())
    }

    /// The event of this kind after `before` others.
    pub(super) fn waits_for(&self, event: &str, before: usize) -> Result<Value> {
        let deadline = Instant::now() + TIME_LIMIT;
        loop {
            let lines = self.lines()?;
            if let Some(found) = lines.iter().filter(|line| line["event"] == event).nth(before) {
                return Ok(found.clone());
            }
            if Instant::now() > deadline {
                return Err(format!("no {event}: {lines:?}").into());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub(super) fn ends(self) -> Result<()> {
        self.running.signal(Signal::TERM)?;
        let ended = self.running.said()?;
        assert_eq!((ended.code(), ended.err.as_str()), (0, ""));
        Ok(())
    }
}

fn rule(name: &str, select: &str, huge: &str) -> String {
    format!("[[rule]]\nname = \"{name}\"\nselect = {{ {select} }}\nhuge = {{ {huge} }}\n")
}

const IS_HOT: &str = r#"mode = "hot""#;

fn executable(path: &str) -> String {
    format!("executable = \"{path}\"")
}

fn huge_kib(program: Running) -> Result<u64> {
    let ended = program.said()?;
    assert_eq!(ended.code(), 0, "{ended:?}");
    Ok(ended.out.trim().parse()?)
}

fn a_program_is_under_its_rule_from_its_start_and_others_are_not_touched(_: &Host) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let programs = Folder::make("serve-programs")?;
    let [ruled, other, left] = ["ruled", "other", "left"].map(|name| compile(&programs, "cc", name, HOT, &[]));
    let [ruled, other, left] = [ruled?, other?, left?];
    // A rule for everything behind: the first that matches holds.
    let rules = rule("left", &executable(&left), r#"mode = "leave""#)
        + &rule("ruled", &executable(&ruled), IS_HOT)
        + &rule("nobody", r#"user = "4001", command = "**""#, IS_HOT);
    let service = Service::start("serve-rules", &rules)?;
    let running = [&ruled, &other, &left].map(|program| Running::start(Command::new(program).arg("60")));
    let [ruled, other, left] = running;
    let (ruled, other, left) = (ruled?, other?, left?);
    let admitted = service.waits_for("admitted", 0)?;
    assert_eq!(
        (admitted["pid"].as_i64(), &admitted["rule"]),
        (Some(ruled.pid().into()), &"ruled".into()),
        "{admitted}"
    );
    assert!(huge_kib(ruled)? >= 24 << 10);
    let gone = service.waits_for("left", 0)?;
    assert!(gone["windows_promoted"].as_u64() >= Some(12) && gone["reason"] == "has ended", "{gone}");
    for untouched in [other, left] {
        let smaps = std::fs::read_to_string(format!("/proc/{}/smaps_rollup", untouched.pid()))?;
        let line = smaps.lines().find(|line| line.starts_with("AnonHugePages:")).ok_or("no line")?;
        assert_eq!(line.split_whitespace().nth(1), Some("0"), "{line}");
    }
    assert_eq!((service.count("admitted")?, service.count("refused")?), (1, 0), "{:?}", service.lines()?);
    service.ends()
}

fn a_reload_changes_only_what_changed_and_a_fault_changes_nothing(_: &Host) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let programs = Folder::make("serve-reload-programs")?;
    let [first, second] = ["first", "second"].map(|name| compile(&programs, "cc", name, HOT, &[]));
    let [first, second] = [first?, second?];
    let (of_first, of_second) =
        (rule("first", &executable(&first), IS_HOT), rule("second", &executable(&second), IS_HOT));
    let service = Service::start("serve-reload", &of_first)?;
    let file = service.folder.0.join("masu.toml");
    let first = Running::start(Command::new(first).args(["once", "300"]))?;
    let second = Running::start(Command::new(second).arg("300"))?;
    assert_eq!(service.waits_for("admitted", 0)?["pid"].as_i64(), Some(first.pid().into()));

    std::fs::write(&file, of_first.clone() + &of_second.replace("hot", "warm"))?;
    service.running.signal(Signal::HUP)?;
    let fault = service.waits_for("not-reloaded", 0)?;
    assert!(
        fault["reason"].as_str().is_some_and(|why| why.contains("masu.toml, line 8: unknown variant `warm`")),
        "{fault}"
    );

    std::fs::write(&file, of_second + &of_first)?;
    service.running.signal(Signal::HUP)?;
    service.waits_for("reloaded", 0)?;
    assert_eq!(service.waits_for("admitted", 1)?["pid"].as_i64(), Some(second.pid().into()));
    assert!(huge_kib(second)? >= 24 << 10);
    assert_eq!(service.waits_for("left", 0)?["reason"], "has ended");

    std::fs::write(&file, "")?;
    service.running.signal(Signal::HUP)?;
    let left = service.waits_for("left", 1)?;
    assert_eq!(
        (left["pid"].as_i64(), &left["reason"]),
        (Some(first.pid().into()), &"is left as it is".into()),
        "{left}"
    );
    drop(first);
    service.ends()
}

/// It leaves a lock of a process that has ended, and nothing else.
fn a_killed_service_starts_again(_: &Host) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let programs = Folder::make("serve-killed-programs")?;
    let program = compile(&programs, "cc", "killed", HOT, &[])?;
    let mut service = Service::start("serve-killed", &rule("hot", &executable(&program), IS_HOT))?;
    let second = said(&["serve", "--config", &service.folder.0.join("masu.toml").display().to_string()])?;
    assert_eq!(second.code(), 3, "{second:?}");
    assert!(second.err.contains("another masu serve is at work"), "{second:?}");
    let running = Running::start(Command::new(&program).arg("60"))?;
    service.waits_for("admitted", 0)?;
    service.running.signal(Signal::KILL)?;
    service.running = Service::begin(&service.folder.0)?;
    service.waits_for("admitted", 1)?;
    assert!(huge_kib(running)? >= 24 << 10);
    service.ends()
}

fn rules_are_checked_and_foreseen_without_a_change(_: &Host) -> Outcome {
    let folder = Folder::make("serve-check")?;
    let file = folder.0.join("masu.toml");
    let name = file.display().to_string();
    let program = compile(&folder, "cc", "seen", HOT, &[])?;
    std::fs::write(&file, rule("seen", &executable(&program), IS_HOT))?;
    std::fs::create_dir(folder.0.join("masu.d"))?;
    std::fs::write(folder.0.join("masu.d/more.toml"), rule("twin", &executable(&program), IS_HOT))?;
    let checked = said(&["serve", "--check", "--config", &name])?;
    assert_eq!((checked.code(), checked.out.as_str()), (0, format!("{name}: 2 rules, no fault\n").as_str()));
    assert!(checked.err.contains("more.toml, line 2: rule twin never holds: rule seen"), "{checked:?}");

    let running = Running::start(Command::new(&program).arg("60"))?;
    let deadline = Instant::now() + TIME_LIMIT;
    let seen = loop {
        let foreseen = said(&["serve", "--dry-run", "--json", "--config", &name])?;
        assert_eq!(foreseen.code(), 0, "{foreseen:?}");
        // Before its exec it is a copy of this process.
        let lines = foreseen.out.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let own = lines.into_iter().find(|line| line["pid"].as_i64() == Some(running.pid().into()));
        match own {
            Some(line) => break line,
            None if Instant::now() > deadline => return Err(format!("not foreseen: {foreseen:?}").into()),
            None => {}
        }
    };
    assert_eq!((&seen["rule"], &seen["name"]), (&"seen".into(), &"seen".into()), "{seen}");

    std::fs::write(&file, "[[rule]]\nname = \"a\"\nselect = { unt = \"a\" }\n")?;
    let wrong = said(&["serve", "--check", "--config", &name])?;
    assert_eq!(wrong.code(), 2, "{wrong:?}");
    assert!(wrong.first_line().contains("line 3: unknown field `unt`") && wrong.err.contains("did you mean `unit`?"));
    Ok(())
}

/// Another program's pages stay, and those that the program reads once its rule is gone.
fn what_a_program_reads_under_a_rule_leaves_the_page_cache(_: &Host) -> Outcome {
    const LENGTH: Pages = Bytes::mib(64).pages();
    let programs = Folder::make("serve-cache-programs")?;
    let [ruled, other] = ["ruled", "other"].map(|name| compile(&programs, "cc", name, READS, &[]));
    let [ruled, other] = [ruled?, other?];
    let rules = rule("backup", &executable(&ruled), "").replace("huge = {  }", "aging = { cache = 0 }");
    let service = Service::start("serve-cache", &rules)?;
    let [of_ruled, of_other, later] =
        ["ruled", "other", "later"].map(|name| DiskFile::make(&format!("serve-{name}"), LENGTH));
    let (of_ruled, of_other, later) = (of_ruled?, of_other?, later?);
    let reader = Running::start(Command::new(&ruled).arg(of_ruled.path()))?;
    let others = Running::start(Command::new(&other).arg(of_other.path()))?;
    let followed = service.waits_for("followed", 0)?;
    assert_eq!((followed["pid"].as_i64(), &followed["rule"]), (Some(reader.pid().into()), &"backup".into()));
    let is_in_memory = |of: &DiskFile| -> Result<u64> {
        Ok(resident(&of.file, 0..LENGTH.0)?.iter().map(|run| run.end - run.start).sum())
    };
    let deadline = Instant::now() + TIME_LIMIT;
    let dropped = || -> Result<u64> {
        Ok(service
            .lines()?
            .iter()
            .filter(|line| line["event"] == "dropped")
            .filter_map(|line| line["bytes"].as_u64())
            .sum())
    };
    while dropped()? < LENGTH.bytes().0 / 100 * 99 {
        assert!(Instant::now() < deadline, "{:?}", service.lines()?);
        std::thread::sleep(Duration::from_millis(100));
    }
    let (left, others_left) = (is_in_memory(&of_ruled)?, is_in_memory(&of_other)?);
    assert!(left * 50 <= LENGTH.0 && others_left * 10 >= LENGTH.0 * 9, "{left} and {others_left} pages are left");

    std::fs::write(service.folder.0.join("masu.toml"), rules.replace("cache = 0", "cache = 100"))?;
    service.running.signal(Signal::HUP)?;
    service.waits_for("reloaded", 0)?;
    let reader = (reader, Running::start(Command::new(&ruled).arg(later.path()))?);
    while is_in_memory(&later)? * 10 < LENGTH.0 * 9 {
        assert!(Instant::now() < deadline, "{} pages are left", is_in_memory(&later)?);
        std::thread::sleep(Duration::from_millis(100));
    }
    drop((reader, others));
    service.ends()
}

/// Also to the next one after a client that does not read.
fn the_running_service_tells_its_state(_: &Host) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let without = said(&["status"])?;
    assert_eq!((without.code(), without.first_line()), (2, "masu: no masu serve is running"), "{without:?}");
    let programs = Folder::make("serve-status-programs")?;
    let hot = compile(&programs, "cc", "hot", HOT, &[])?;
    let small = compile(&programs, "cc", "small", READS, &[])?;
    let service = Service::start(
        "serve-status",
        &(rule("hot", &executable(&hot), IS_HOT) + &rule("small", &executable(&small), IS_HOT)),
    )?;
    let ends = Running::start(Command::new(&hot).arg("60"))?;
    let hot = Running::start(Command::new(&hot).args(["once", "300"]))?;
    let small = Running::start(Command::new(&small).arg(&small))?;
    let deadline = Instant::now() + TIME_LIMIT;
    let state = loop {
        let state = json(&["status", "--json"])?;
        let processes = state["processes"].as_array().ok_or("no processes")?;
        let is_settled = processes.iter().any(|process| process["state"] == "settled");
        // Of a process that has ended, too.
        if processes.len() == 2 && is_settled && state["rules"][0]["windows"]["promoted"].as_u64() >= Some(12) {
            break state;
        }
        assert!(Instant::now() < deadline, "{state}");
        std::thread::sleep(Duration::from_millis(100));
    };
    let of = |running: &Running| {
        let mut all = state["processes"].as_array().into_iter().flatten();
        all.find(|process| process["pid"].as_i64() == Some(running.pid().into())).cloned().unwrap_or_default()
    };
    let (of_hot, of_small) = (of(&hot), of(&small));
    assert_eq!((&of_hot["rule"], &of_hot["name"], &of_hot["feature"]), (&"hot".into(), &"hot".into(), &"huge".into()));
    assert_eq!((&of_hot["state"], &of_hot["promoted"]), (&"settled".into(), &0.into()), "{of_hot}");
    assert_eq!((&of_small["rule"], &of_small["state"]), (&"small".into(), &"waiting".into()), "{of_small}");
    let one = said(&["status", "small"])?;
    assert!(one.out.contains(" waiting") && !one.out.contains("hot     "), "{}", one.out);
    let own = std::process::id().to_string();
    let other = said(&["status", &own])?;
    assert_eq!((other.code(), other.first_line()), (2, format!("masu: no rule holds for process {own}").as_str()));
    let other = said(&["status", "warm"])?;
    assert_eq!((other.code(), other.first_line()), (2, "masu: no rule warm is in force; rules: hot, small"));

    let _silent = std::os::unix::net::UnixStream::connect("/run/masu/serve.sock")?;
    let metrics = said(&["status", "--openmetrics"])?;
    assert_eq!((metrics.code(), metrics.out.lines().last()), (0, Some("# EOF")), "{metrics:?}");
    let promoted =
        metrics.out.lines().find_map(|line| line.strip_prefix("masu_windows_total{rule=\"hot\",result=\"promoted\"} "));
    assert!(promoted.and_then(|number| number.parse::<u64>().ok()) >= Some(12), "{}", metrics.out);
    assert!(
        metrics.out.contains("\nmasu_members{rule=\"small\",feature=\"huge\",state=\"waiting\"} 1\n"),
        "{}",
        metrics.out
    );
    assert!(huge_kib(ends)? >= 24 << 10);
    drop((hot, small));
    service.ends()?;
    assert_eq!(said(&["status"])?.first_line(), "masu: no masu serve is running");
    Ok(())
}
