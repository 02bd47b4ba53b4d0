//! `masu-bench service`: `masu serve` beside many groups and processes: its processor time and memory, with the page's
//! process; the time of a scrape; and the time from the start of a process until it is under its rule.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use hdrhistogram::Histogram;
use serde_json::Value;
use units::spread::Random;

use crate::cgroup::MemoryCgroup;
use crate::children::OwnChild;
use crate::launch::Program;
use crate::page;
use crate::place::Place;
use crate::process::{processor_time, rss_counted};
use crate::report::{Report, Target, Unit};
use crate::session::Session;
use crate::thp::{Guard, Mode};

/// Arguments of `masu-bench service`.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Idle processes under a rule, beside those of the host
    #[arg(long, default_value_t = 500)]
    pub processes: usize,
    /// Control groups that these processes are in; 0: they are in that of the benchmark
    #[arg(long, default_value_t = 0)]
    pub groups: usize,
    /// Time over which the processor time of masu is counted, in seconds
    #[arg(long, default_value_t = 60)]
    pub watch: u64,
    /// Starts of a process under a rule, one after the other
    #[arg(long, default_value_t = 200)]
    pub starts: usize,
}

/// Memory of a started process: enough to be served.
const MIB: &str = "16";
const LIMIT: Duration = Duration::from_secs(60);
/// masu looks for processes this often; starts fall anywhere between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Runs the benchmark.
///
/// # Errors
/// When masu is missing or fails, or we are interrupted.
pub fn run(session: &Session, options: &Options) -> Result<()> {
    ensure!(options.watch > 0 && options.starts > 0, "--watch and --starts: expected at least 1");
    let masu = session.masu()?;
    session.warm_up()?;
    let _guard = Guard::turn(Mode::Madvise)?;
    let folder = tempfile::tempdir().context("cannot make a directory")?;
    let workload = std::env::current_exe()?.with_file_name("workload-dense");
    let copy = |name: &str, from: &Path| -> Result<_> {
        let to = folder.path().join(name);
        fs::copy(from, &to).with_context(|| format!("cannot copy {}", from.display()))?;
        Ok(to)
    };
    let (started, idle) = (copy("started", &workload)?, copy("idle", Path::new("/bin/sleep"))?);
    let rule = |name: &str, executable: &Path| {
        let select = format!("executable = \"{}\"", executable.display());
        format!("[[rule]]\nname = \"{name}\"\nselect = {{ {select} }}\nhuge = {{ mode = \"hot\" }}\n")
    };
    let config = folder.path().join("masu.toml");
    let (page, settings) = page::free_address()?;
    fs::write(&config, settings + &rule("started", &started) + &rule("idle", &idle))?;

    session.progress("starting idle processes");
    let groups = (0..options.groups).map(|_| MemoryCgroup::make()).collect::<Result<Vec<_>>>()?;
    let sleep = Program { path: idle, arguments: vec!["86400".into()] };
    let mut beside = Vec::new();
    for number in 0..options.processes {
        session.stop.check()?;
        let command = match groups.get(number % options.groups.max(1)) {
            Some(group) => group.start(&sleep),
            None => sleep.command(),
        };
        beside.push(OwnChild::start(command, &session.processors, Place::Anywhere)?);
    }
    let mut serve = Command::new(masu.path());
    serve.args(["serve", "--json", "--config"]).arg(&config);
    let mut serve = OwnChild::start(serve, &session.processors, Place::Anywhere)?;
    await_event(&mut serve, session, "serving", None)?;

    session.progress("counting masu's processor time");
    // Young processes are looked at more closely.
    session.stop.sleep(LOOK_EVERY * 10)?;
    let page_pid = page::process_of(serve.pid())?;
    let spent = || Ok::<_, anyhow::Error>(processor_time(serve.pid())? + processor_time(page_pid)?);
    let used = || Ok::<_, anyhow::Error>(rss_counted(serve.pid())? + rss_counted(page_pid)?);
    let (before, begun) = (spent()?, Instant::now());
    session.stop.sleep(Duration::from_secs(options.watch))?;
    let share = (spent()? - before).as_secs_f64() / begun.elapsed().as_secs_f64();
    let memory = used()?;
    let (series, scrape) = scrapes(page, session)?;

    let (mut delays, mut random) = (Histogram::<u64>::new(3)?, Random::seeded(7));
    for start in 0..options.starts {
        session.progress(&format!("start {} of {}", start + 1, options.starts));
        session.stop.sleep(LOOK_EVERY.mul_f64(random.fraction()))?;
        let mut command = Command::new(&started);
        command.args(["--mib", MIB]);
        let begun = Instant::now();
        let mut process = OwnChild::start(command, &session.processors, Place::Anywhere)?;
        await_event(&mut serve, session, "admitted", Some(process.pid()))?;
        delays.record(u64::try_from(begun.elapsed().as_micros())?)?;
        process.close_input();
        process.await_end(LIMIT, &session.stop)?;
    }
    let after = rss_counted(serve.pid())? + rss_counted(page_pid)?;
    ensure!(serve.is_running(), "masu serve ended before it was asked to");

    let (processes, groups) = (options.processes, options.groups);
    let title = format!("service: masu serve beside {processes} idle processes under a rule, in {groups} groups");
    let mut report = Report::new("service", title, &session.host);
    #[expect(clippy::cast_precision_loss, reason = "microseconds of a minute, and bytes of a process")]
    let quantile = |part: f64| Some(delays.value_at_quantile(part) as f64 / 1e6);
    #[expect(clippy::cast_precision_loss, reason = "as above")]
    let of_bytes = |bytes: units::Bytes| Some(bytes.0 as f64);
    report.figure("share of one core", Unit::Fraction, Some(share), Some(Target::AtMost(0.01)));
    report.figure("resident memory", Unit::Bytes, of_bytes(memory), Some(Target::AtMost(64.0 * 1048576.0)));
    report.figure("resident memory after the starts", Unit::Bytes, of_bytes(after), None);
    report.figure("scrape, longest of some", Unit::Seconds, Some(scrape.as_secs_f64()), Some(Target::AtMost(0.05)));
    report.figure("from start to rule, p50", Unit::Seconds, quantile(0.5), None);
    report.figure("from start to rule, p99", Unit::Seconds, quantile(0.99), Some(Target::AtMost(1.0)));
    report.note(format!("{} starts of a process that touches {MIB} MiB first.", options.starts));
    report.note(format!("{series} series. Processor time and memory are those of masu and of the page's process."));
    report.sample("processor_time_share", share);
    report.sample("delay_p99_us", delays.value_at_quantile(0.99));
    report.finish(session.save)
}

/// Number of series, and the longest of some scrapes: the first after a measurement makes the text.
fn scrapes(page: SocketAddr, session: &Session) -> Result<(usize, Duration)> {
    let (mut series, mut longest) = (0, Duration::ZERO);
    for _ in 0..24 {
        session.stop.sleep(Duration::from_millis(500))?;
        let begun = Instant::now();
        let text = page::metrics(page)?;
        longest = longest.max(begun.elapsed());
        series = text.lines().filter(|line| line.starts_with("masu_")).count();
    }
    Ok((series, longest))
}

/// Waits for a line about this event, and this process.
fn await_event(serve: &mut OwnChild, session: &Session, event: &str, pid: Option<u32>) -> Result<()> {
    let begun = Instant::now();
    loop {
        let line = serve.line(LIMIT, &session.stop)?;
        let line: Value = serde_json::from_str(&line).with_context(|| format!("masu serve said {line:?}"))?;
        if line["event"] == event && pid.is_none_or(|pid| line["pid"] == pid) {
            return Ok(());
        }
        ensure!(begun.elapsed() < LIMIT, "masu serve says nothing of {event}");
    }
}
