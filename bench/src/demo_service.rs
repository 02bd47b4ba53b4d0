//! Second part of `masu-bench demo`: `masu serve` with two real programs under two rules, and the metrics that changed.

use std::fs::{self, File};
use std::io::{self, IsTerminal, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use linux::page_cache::resident;
use rustix::fs::{Advice, fadvise};
use units::spread::Random;
use units::{Bytes, Pages};

use crate::children::OwnChild;
use crate::masu::Masu;
use crate::page;
use crate::place::Place;
use crate::random::Keys;
use crate::redis::server::Server;
use crate::report::Unit;
use crate::session::Session;
use crate::table::Table;

/// Length of the file that is copied.
const FILE: Bytes = Bytes::gib(1);
const PROMOTED: &str = "masu_windows_total{rule=\"redis\",result=\"promoted\"}";
const DROPPED: &str = "masu_cache_dropped_bytes_total";
/// Longest wait for the rules to take effect.
const LIMIT: Duration = Duration::from_secs(60);
/// Time without a change after which no more pages are dropped.
const STILL: Duration = Duration::from_secs(3);
/// Longest time for which the page is shown on a terminal.
const SHOWN: Duration = Duration::from_secs(600);

/// Serves a Redis and a backup by rules.
///
/// # Errors
/// When Redis or masu is missing or fails, a wrong value comes back, or we are interrupted.
pub fn run(session: &Session, masu: &Masu, keys: u32, value_bytes: usize) -> Result<()> {
    let folder = tempfile::tempdir_in("/var/tmp").context("cannot make a directory")?;
    let (file, backup) = (folder.path().join("file"), folder.path().join("backup"));
    // A copy of its own, so that no other `cp` of the host is under the rule.
    fs::copy("/bin/cp", &backup).context("cannot copy /bin/cp")?;
    let server = Server::start(&session.processors, Place::Only(0), &session.stop)?;
    let (page, settings) = page::free_address()?;
    let rules = rules(&fs::read_link(format!("/proc/{}/exe", server.pid()))?, &backup);
    let config = folder.path().join("masu.toml");
    fs::write(&config, settings + &rules)?;
    println!("\nmasu serve, by two rules:\n{}", rules.replace("\n", "\n  ").trim_end());

    let mut serve = Command::new(masu.path());
    serve.args(["serve", "--json", "--config"]).arg(&config);
    let serve = OwnChild::start(serve, &session.processors, Place::Anywhere)?;
    session.progress("loading a redis-server under the first rule");
    let mut client = server.client()?;
    client.load(0, keys, value_bytes, &session.stop)?;
    let before = first_metrics(page, session)?;
    let pool = Keys::over(keys, None).draw(1 << 16, &mut Random::seeded(42));
    session.progress("copying a file under the second rule");
    let left = copied(session, &backup, &file)?;
    session.progress("waiting for the metrics");
    let mut after = page::metrics(page)?;
    let begun = Instant::now();
    while page::value(&after, PROMOTED) == 0.0 || page::value(&after, DROPPED) == 0.0 {
        ensure!(begun.elapsed() < LIMIT, "the rules have no effect on the metrics");
        client.get_while(&pool, value_bytes, &session.stop, |since| since < Duration::from_secs(1))?;
        after = page::metrics(page)?;
    }
    client.check(keys, value_bytes).context("under masu serve")?;

    let mut table = Table::new(["metric", "before", "after"]);
    for (name, unit) in [(PROMOTED, Unit::Count), (DROPPED, Unit::Bytes), ("masu_cpu_seconds_total", Unit::Seconds)] {
        table.row([name.to_owned(), unit.print(page::value(&before, name)), unit.print(page::value(&after, name))]);
    }
    println!("\n{table}\n{left} of the {FILE} that the backup read are in the page cache: read before masu saw it.");
    show(page, session)?;
    serve.finish(Duration::ZERO, &session.stop)?;
    Ok(())
}

fn rules(redis: &Path, backup: &Path) -> String {
    let rule = |name: &str, executable: &Path, feature: &str| {
        let select = format!("executable = \"{}\"", executable.display());
        format!("  [[rule]]\n  name   = \"{name}\"\n  select = {{ {select} }}\n  {feature}\n\n")
    };
    rule("redis", redis, "huge   = { mode = \"hot\" }") + &rule("backup", backup, "aging  = { cache = 0 }")
}

/// The metrics, once the service has measured.
fn first_metrics(page: SocketAddr, session: &Session) -> Result<String> {
    let begun = Instant::now();
    loop {
        match page::metrics(page) {
            Ok(metrics) => return Ok(metrics),
            Err(error) if begun.elapsed() > LIMIT => return Err(error.context("masu serve shows no metrics")),
            Err(_) => session.stop.sleep(Duration::from_millis(100))?,
        }
    }
}

/// Copies a file that is not in memory. Returns the part of it that is left in the page cache.
fn copied(session: &Session, backup: &Path, file: &Path) -> Result<Bytes> {
    let mut written = File::create(file)?;
    let part = vec![7; 1 << 20];
    for _ in 0..FILE.0 >> 20 {
        written.write_all(&part)?;
    }
    written.sync_all()?;
    drop(written);
    let read = File::open(file)?;
    fadvise(&read, 0, None, Advice::DontNeed)?;
    let mut command = Command::new(backup);
    command.arg(file).arg("/dev/null");
    let copy = OwnChild::start(command, &session.processors, Place::Anywhere)?;
    copy.await_end(LIMIT, &session.stop)?;
    let (mut left, mut changed) = (Bytes(u64::MAX), Instant::now());
    loop {
        let runs = resident(&read, 0..FILE.pages().0)?;
        let now = Pages(runs.iter().map(|run| run.end - run.start).sum()).bytes();
        if now != std::mem::replace(&mut left, now) {
            changed = Instant::now();
        }
        if changed.elapsed() > STILL {
            return Ok(left);
        }
        session.stop.sleep(Duration::from_millis(100))?;
    }
}

/// Tells the address of the page. On a terminal it stays until Enter.
fn show(page: SocketAddr, session: &Session) -> Result<()> {
    if !(io::stdin().is_terminal() && io::stdout().is_terminal()) {
        println!("The page was at http://{page}/. As a service it stays: `systemctl enable --now masu`.");
        return Ok(());
    }
    println!("The page is at http://{page}/ now. Enter ends it; as a service it stays.");
    let (told, ended) = std::sync::mpsc::channel();
    std::thread::spawn(move || told.send(io::stdin().read_line(&mut String::new()).is_ok()));
    let begun = Instant::now();
    while ended.try_recv().is_err() && begun.elapsed() < SHOWN {
        session.stop.sleep(Duration::from_millis(100))?;
    }
    Ok(())
}
