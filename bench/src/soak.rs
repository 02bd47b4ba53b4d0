//! `masu-bench soak`: containers of real programs that are started and stopped in random order under `masu serve`, with
//! each of its features: errors, memory and descriptors of masu over time, and the host's settings at the end.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use units::Bytes;
use units::spread::Random;

use crate::cgroup::MemoryCgroup;
use crate::children::{OwnChild, free_port};
use crate::launch::Program;
use crate::page;
use crate::place::Place;
use crate::process::rss_counted;
use crate::report::{Report, Target, Unit};
use crate::session::Session;
use crate::table::Table;

/// Arguments of `masu-bench soak`.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Duration, in minutes
    #[arg(long, default_value_t = 60)]
    pub minutes: u64,
    /// Containers at a time
    #[arg(long, default_value_t = 20)]
    pub containers: usize,
    /// Seed of the order
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

/// Longest pause between two starts or stops.
const PAUSE: Duration = Duration::from_secs(2);
/// Time between two looks at masu.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// Part of the looks that is compared, at the begin and at the end.
const PART: usize = 5;
/// File that backups read.
const FILE: Bytes = Bytes::mib(64);

/// A kind of container: program that it needs, and the shell's lines. `$PORT` is free, the folder is its own and writable
/// for user 65534.
const KINDS: [(&str, &str, &str); 6] = [
    (
        "redis",
        "redis-check-rdb", // Debian's redis-tools has the server under this name
        "ln -s $(command -v redis-check-rdb) redis-server
         ./redis-server --port $PORT --save '' --logfile /dev/null &
         until redis-cli -p $PORT ping >/dev/null 2>&1; do sleep 0.1; done
         while redis-benchmark -p $PORT -d 500 -r 50000 -n 50000 -t set,get -q >/dev/null 2>&1; do sleep 1; done",
    ),
    (
        "postgresql",
        "postgres",
        "as='setpriv --reuid 65534 --regid 65534 --clear-groups'
         $as initdb -D db -U bench -A trust >/dev/null
         $as postgres -D db -p $PORT -k $PWD -c shared_buffers=64MB >/dev/null 2>&1 &
         until pgbench -h $PWD -p $PORT -U bench -i -s 3 postgres >/dev/null 2>&1; do sleep 0.5; done
         while pgbench -h $PWD -p $PORT -U bench -S -R 200 -T 5 postgres >/dev/null 2>&1; do :; done",
    ),
    (
        "nginx",
        "nginx",
        "head -c 8388608 /dev/urandom >file
         echo \"daemon off; pid $PWD/pid; error_log /dev/null; events {} http { access_log off;
              server { listen 127.0.0.1:$PORT; root $PWD; } }\" >nginx.conf
         nginx -c $PWD/nginx.conf 2>/dev/null &
         while sleep 1; do wrk -t1 -c2 -d1 http://127.0.0.1:$PORT/file >/dev/null; done",
    ),
    (
        "java",
        "java",
        "echo 'class Soak { public static void main(String[] a) throws Exception { var kept = new byte[96][];
              for (int i = 0; ; i++) { kept[i % 96] = new byte[1 << 20]; Thread.sleep(10); } } }' >Soak.java
         exec java -Xmx192m Soak.java",
    ),
    (
        "node",
        "node",
        "exec node -e 'const kept = []; let i = 0; setInterval(() => {
              kept[i++ % 64] = Buffer.alloc(1 << 20, i); for (const one of kept) one[0]++; }, 20)'",
    ),
    ("backup", "tar", "while sleep 1; do tar -cf - file | cat >/dev/null; done"),
];

/// A running container.
struct Container {
    process: OwnChild,
    group: MemoryCgroup,
    folder: tempfile::TempDir,
}

impl Container {
    /// Ends it with all that it started.
    fn end(self) -> Result<()> {
        let Container { process, group, folder } = self;
        drop(process);
        for pid in group.processes()? {
            let pid = Pid::from_raw(i32::try_from(pid)?).context("a process without a number")?;
            // It may end by itself meanwhile.
            let _ = kill_process(pid, Signal::KILL);
        }
        drop(group);
        folder.close().context("cannot remove a directory")
    }
}

/// Figures of masu at one time.
#[derive(Clone, Copy, Debug, serde::Serialize)]
struct Look {
    rss_bytes: u64,
    descriptors: usize,
}

/// Runs the benchmark.
///
/// # Errors
/// When masu is missing or fails, or we are interrupted.
pub fn run(session: &Session, options: &Options) -> Result<()> {
    ensure!(options.containers > 0 && options.minutes > 0, "--containers and --minutes: expected at least 1");
    let kinds: Vec<_> = KINDS.into_iter().filter(|(_, program, _)| is_installed(program)).collect();
    ensure!(!kinds.is_empty(), "none of the programs is installed: `make deps-bench`");
    let masu = session.masu()?;
    let folder = tempfile::tempdir_in("/var/tmp").context("cannot make a directory")?;
    let (page_at, settings) = page::free_address()?;
    let settings = settings.replace("\"off\"", &format!("{{ dir = \"{}\" }}", folder.path().join("history").display()));
    let config = folder.path().join("masu.toml");
    let of_groups = format!("select = {{ cgroup = \"masu-bench-{}-*\" }}", std::process::id());
    let rules =
        format!("[[rule]]\nname = \"containers\"\n{of_groups}\nhuge = {{ mode = \"hot\" }}\naging = {{ cache = 0 }}\n");
    fs::write(&config, settings + &rules)?;
    let before = host()?;

    let mut serve = Command::new(masu.path());
    serve.args(["serve", "--json", "--config"]).arg(&config);
    let mut serve = OwnChild::start(serve, &session.processors, Place::Anywhere)?;
    let lines = serve.take_lines();
    let (mut random, begun) = (Random::seeded(options.seed), Instant::now());
    let end = begun + Duration::from_secs(60 * options.minutes);
    let mut running: Vec<Option<Container>> = (0..options.containers).map(|_| None).collect();
    let (mut looks, mut starts, mut events) = (Vec::new(), BTreeMap::<&str, u64>::new(), BTreeMap::new());
    let mut scrapes = 0u64;
    while Instant::now() < end {
        session.progress(&format!("{} starts", starts.values().sum::<u64>()));
        let place = random.below(running.len());
        running[place] = match running[place].take() {
            Some(container) => {
                container.end()?;
                None
            }
            None => {
                let (name, _, script) = kinds[random.below(kinds.len())];
                *starts.entry(name).or_default() += 1;
                Some(start(session, script)?)
            }
        };
        session.stop.sleep(PAUSE.mul_f64(random.fraction()))?;
        lines.try_iter().for_each(|line| count(&mut events, &line));
        ensure!(serve.is_running(), "masu serve has ended");
        if begun.elapsed() >= LOOK_EVERY * u32::try_from(looks.len())? {
            looks.push(look(serve.pid())?);
            scrapes += u64::from(page::metrics(page_at).is_ok());
        }
    }
    running.into_iter().flatten().try_for_each(Container::end)?;
    let ended = serve.finish(Duration::ZERO, &session.stop)?;
    lines.try_iter().for_each(|line| count(&mut events, &line));
    let after = host()?;

    let title = format!("soak: {} containers of {} kinds for {} min", options.containers, kinds.len(), options.minutes);
    let mut report = Report::new("soak", title, &session.host);
    let mut table = Table::new(["started", "times"]);
    for (name, number) in &starts {
        table.row([(*name).to_owned(), number.to_string()]);
    }
    report.table("containers", table);
    let mut table = Table::new(["event", "lines"]);
    for (name, number) in &events {
        table.row([name.clone(), number.to_string()]);
    }
    report.table("events of masu serve", table);
    let part = looks.len().div_ceil(PART);
    let (first, last) =
        (&looks[part.min(looks.len() - 1)..][..part.min(looks.len() - part).max(1)], &looks[looks.len() - part..]);
    let figure = |report: &mut Report, what: &str, unit, of: fn(&Look) -> f64, more: f64| {
        let (begin, end) = (median(first, of), median(last, of));
        report.figure(&format!("{what}, at first"), unit, Some(begin), None);
        report.figure(&format!("{what}, at last"), unit, Some(end), Some(Target::AtMost(begin + more)));
    };
    #[expect(clippy::cast_precision_loss, reason = "bytes of a process, and some descriptors")]
    {
        figure(&mut report, "resident memory of masu", Unit::Bytes, |look| look.rss_bytes as f64, 4.0 * 1048576.0);
        figure(&mut report, "descriptors of masu", Unit::Count, |look| look.descriptors as f64, 8.0);
    }
    let is_clean = ended.status.success() && ended.errors.iter().all(|line| line.trim().is_empty());
    report.figure(
        "exit status 0, and no line of error",
        Unit::Count,
        Some(f64::from(u8::from(is_clean))),
        Some(Target::AtLeast(1.0)),
    );
    let is_as_before = before == after;
    report.figure(
        "settings of the host as before",
        Unit::Count,
        Some(f64::from(u8::from(is_as_before))),
        Some(Target::AtLeast(1.0)),
    );
    ended.errors.iter().for_each(|line| report.note(format!("masu: {line}")));
    if !is_as_before {
        report.note(format!("settings before: {before:?}; after: {after:?}"));
    }
    report.note(format!("{scrapes} of {} scrapes answered; seed {}.", looks.len(), options.seed));
    report.sample("looks", &looks);
    report.finish(session.save)
}

fn is_installed(program: &str) -> bool {
    path().split(':').any(|folder| Path::new(folder).join(program).is_file())
}

/// The path of programs, with that of Debian's PostgreSQL.
fn path() -> String {
    let newest = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten().map(|entry| entry.path()).max();
    let postgres = newest.map(|folder| folder.join("bin")).unwrap_or_else(|| PathBuf::from("/usr/bin"));
    format!("{}:/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/bin", postgres.display())
}

fn start(session: &Session, script: &str) -> Result<Container> {
    let folder = tempfile::tempdir_in("/var/tmp").context("cannot make a directory")?;
    std::os::unix::fs::chown(folder.path(), Some(65534), Some(65534))?;
    if script.contains("tar ") {
        fs::write(folder.path().join("file"), vec![7; usize::try_from(FILE.0)?])?;
    }
    let group = MemoryCgroup::make()?;
    let shell = Program { path: "/bin/sh".into(), arguments: vec!["-c".into(), script.into()] };
    let mut command = group.start(&shell);
    command.current_dir(folder.path()).env("PORT", free_port()?.to_string()).env("PATH", path());
    let process = OwnChild::start(command, &session.processors, Place::Anywhere)?;
    Ok(Container { process, group, folder })
}

fn count(events: &mut BTreeMap<String, u64>, line: &str) {
    let event = serde_json::from_str::<Value>(line).ok().and_then(|line| Some(line["event"].as_str()?.to_owned()));
    *events.entry(event.unwrap_or_else(|| format!("no event: {line}"))).or_default() += 1;
}

fn look(pid: u32) -> Result<Look> {
    Ok(Look { rss_bytes: rss_counted(pid)?.0, descriptors: fs::read_dir(format!("/proc/{pid}/fd"))?.count() })
}

fn median(looks: &[Look], of: fn(&Look) -> f64) -> f64 {
    let mut values: Vec<f64> = looks.iter().map(of).collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Settings that masu may change, and its journals.
fn host() -> Result<Vec<(String, String)>> {
    let files = [
        "/sys/kernel/mm/transparent_hugepage/enabled",
        "/sys/kernel/mm/transparent_hugepage/defrag",
        "/sys/kernel/mm/transparent_hugepage/khugepaged/defrag",
        "/sys/kernel/mm/ksm/run",
        "/proc/sys/vm/swappiness",
    ];
    let mut found = Vec::new();
    for file in files {
        found.push((file.to_owned(), fs::read_to_string(file).unwrap_or_default()));
    }
    let journals = fs::read_dir("/run/masu/private").into_iter().flatten().flatten();
    let mut journals: Vec<String> = journals
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .filter(|name| name.ends_with(".journal"))
        .collect();
    journals.sort();
    found.push(("journals".to_owned(), journals.join(" ")));
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_counts_as_its_event() {
        let mut events = BTreeMap::new();
        for line in ["{\"event\":\"left\"}", "{\"event\":\"left\"}", "panic"] {
            count(&mut events, line);
        }
        assert_eq!(events, BTreeMap::from([("left".to_owned(), 2), ("no event: panic".to_owned(), 1)]));
    }

    #[test]
    fn a_median_is_the_value_in_the_middle() {
        let looks = [3, 1, 2].map(|rss_bytes| Look { rss_bytes, descriptors: 0 });
        #[expect(clippy::cast_precision_loss, reason = "small")]
        let found = median(&looks, |look| look.rss_bytes as f64);
        assert!((found - 2.0).abs() < f64::EPSILON);
    }
}
