//! `masu-bench served`: request latency of nginx and PostgreSQL while a file of twice their cgroup's memory is copied
//! in the same cgroup, and read back.
//!
//! Each run has its own cgroup. The served data is dropped from the page cache, the server starts, and all served data
//! is read twice in the cgroup. Then requests arrive at a fixed rate from a client outside of the cgroup, until the
//! copy ends. The server has one processor and the client the other; the copy and masu may run on both.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use units::Bytes;

use super::residency::drop_all;
use super::running::{Cost, Running, Spared, finished};
use crate::cgroup::MemoryCgroup;
use crate::choices;
use crate::harness::{Choice as _, Column, Metric, Runs};
use crate::latency::Latency;
use crate::launch::Program;
use crate::masu::Masu;
use crate::report::{Report, Target, Unit};
use crate::session::Session;
use crate::tools::Missing;

mod latency;
mod nginx;
mod postgres;

/// Arguments of `masu-bench served`.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Memory of the group of server and copy; twice of it is copied
    #[arg(long, default_value = "1GiB")]
    pub group: Bytes,
    /// Served data, in percent of the group
    #[arg(long, default_value_t = 55, value_name = "PERCENT")]
    pub served_percent: u32,
    /// Requests per second
    #[arg(long, default_value_t = 1000)]
    pub per_second: u32,
    /// Time of measuring the quiet machine, in seconds
    #[arg(long, default_value_t = 10)]
    pub quiet_s: u64,
    /// Runs in each way
    #[arg(long, default_value_t = 6)]
    pub pairs: usize,
    /// Servers
    #[arg(long, value_delimiter = ',', default_values_t = [Kind::Nginx, Kind::Postgres])]
    pub servers: Vec<Kind>,
    /// Ways to copy beside them
    #[arg(long, value_delimiter = ',', default_values_t = WAYS)]
    pub ways: Vec<Way>,
}

choices! {
    /// A server.
    pub enum Kind {
        Nginx = "nginx", "nginx, under wrk";
        Postgres = "postgres", "PostgreSQL, under pgbench -S";
    }
}

choices! {
    /// A way to copy beside a server, or not to. `masu-beside` has to find the streams itself.
    pub enum Way {
        Quiet = "quiet", "no copy";
        Kernel = "kernel", "kernel alone";
        Masu = "masu", "masu -- cp";
        MasuBeside = "masu-beside", "masu beside";
        Vmtouch = "vmtouch", "vmtouch -l", needs "vmtouch";
        Nocache = "nocache", "nocache cp", needs "nocache";
    }
}

const WAYS: [Way; 6] = [Way::Quiet, Way::Kernel, Way::Masu, Way::MasuBeside, Way::Vmtouch, Way::Nocache];
const OF_MASU: [Way; 2] = [Way::Masu, Way::MasuBeside];

#[derive(Clone, Debug, Serialize)]
struct Run {
    latency: Latency,
    /// Bytes copied, over the time of copying and reading back.
    copy_mib_per_s: Option<f64>,
    masu: Option<Cost>,
}

/// Time limit of a copy.
const LIMIT: Duration = Duration::from_secs(900);

/// Runs the benchmark.
///
/// # Errors
/// When masu is missing, this host has no memory cgroups, a program fails, or we are interrupted.
pub fn run(session: &Session, options: &Options) -> Result<()> {
    ensure!(options.pairs > 0 && options.per_second > 0, "expected --pairs and --per-second of 1 or more");
    ensure!(
        (1..=90).contains(&options.served_percent),
        "--served-percent {}: expected 1 to 90",
        options.served_percent
    );
    let masu = super::masu(session, options.ways.iter().any(|way| OF_MASU.contains(way)))?;
    let mut runs = Runs::default();
    let ways = runs.available(&options.ways);
    session.warm_up_to(options.group.scaled(2.0))?;
    let folder = tempfile::tempdir_in(super::FOLDER).context("cannot make a folder for the files")?;
    // PostgreSQL's user has to find its own below it.
    fs::set_permissions(folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
    let bench = Bench { session, options, masu, folder: folder.path() };
    session.progress("writing what is copied");
    super::write_file(&bench.source(), options.group.scaled(2.0))?;
    for kind in &options.servers {
        session.progress(&format!("{kind}: making ready"));
        match bench.service(*kind)? {
            Ok(service) => {
                runs.measure(session, options.pairs, kind.name(), &ways, |turn| bench.one(service.as_ref(), turn.way))?
            }
            Err(missing) => runs.skip(kind, missing),
        }
    }
    runs.finish(report(session, options, &runs), session)
}

/// Data and a server for it that does not run.
trait Service {
    /// Folder of the served files.
    fn data(&self) -> PathBuf;

    /// Starts the server in `group` and waits until it answers.
    fn start(&self, session: &Session, group: &MemoryCgroup) -> Result<Box<dyn Server>>;
}

/// A server that answers. Dropped, it ends.
trait Server {
    /// Starts the client, which asks about `per_s` times a second until it is ended.
    fn client(&self, session: &Session, folder: &Path, per_s: u32) -> Result<Box<dyn Client>>;

    /// Ends the server in order.
    fn end(self: Box<Self>, session: &Session) -> Result<()>;
}

/// A running client.
trait Client {
    /// Ends the client and returns its latencies.
    fn end(self: Box<Self>, session: &Session) -> Result<Latency>;
}

struct Bench<'a> {
    session: &'a Session,
    options: &'a Options,
    masu: Option<Masu>,
    folder: &'a Path,
}

impl Bench<'_> {
    fn source(&self) -> PathBuf {
        self.folder.join("source")
    }

    fn service(&self, kind: Kind) -> Result<Result<Box<dyn Service>, Missing>> {
        let bytes = self.options.group.scaled(f64::from(self.options.served_percent) / 100.0);
        match kind {
            Kind::Nginx => nginx::Site::write(&self.folder.join("nginx"), bytes),
            Kind::Postgres => {
                let scale = (bytes.0 / 15_000_000).max(1);
                postgres::Database::make(self.session, &self.folder.join("postgres"), scale)
            }
        }
    }

    fn one(&self, service: &dyn Service, way: Way) -> Result<Run> {
        let (session, per_s) = (self.session, self.options.per_second);
        let served = files_below(&service.data())?;
        served.iter().chain([&self.source()]).try_for_each(|file| drop_all(file))?;
        let group = MemoryCgroup::make()?;
        group.limit_plainly(self.options.group)?;
        let server = service.start(session, &group)?;
        let data = service.data().into_os_string();
        let twice = "for i in 1 2; do find \"$0\" -type f -exec cat {} + >/dev/null; done";
        finished(session, group.start(&Program::at("/bin/sh", ["-c".into(), twice.into(), data])), LIMIT)?;
        let beside = match (way, &self.masu) {
            (Way::MasuBeside, Some(masu)) => {
                let dials = ["--mapped", "100", "--cache", "0", "--budget", "50%"];
                Some(Running::start(session, masu, &dials.map(str::to_owned))?)
            }
            _ => None,
        };
        let _locked = match way {
            Way::Vmtouch => Some(super::vmtouch(session, &service.data(), self.options.group)?),
            _ => None,
        };
        let client = server.client(session, self.folder, per_s)?;
        let (copied, around) = if way == Way::Quiet {
            session.stop.sleep(Duration::from_secs(self.options.quiet_s))?;
            (None, None)
        } else {
            let (taken, cost) = self.copy(&group, way)?;
            (Some(taken), cost)
        };
        let latency = client.end(session)?;
        let masu = beside.map(|running| running.end(session)).transpose()?.or(around);
        server.end(session)?;
        let _ = fs::remove_file(self.folder.join("copy"));
        let mib = self.options.group.scaled(2.0).0 as f64 / f64::from(1 << 20);
        Ok(Run { latency, copy_mib_per_s: copied.map(|taken| mib / taken.as_secs_f64()), masu })
    }

    /// Copies and reads back; the time that it took.
    fn copy(&self, group: &MemoryCgroup, way: Way) -> Result<(Duration, Option<Cost>)> {
        let script = "cp \"$0\" \"$1\" && cat \"$1\" >/dev/null";
        let files = [self.source().into_os_string(), self.folder.join("copy").into_os_string()];
        let program = Program::at("/bin/sh", ["-c".into(), script.into()].into_iter().chain(files));
        let spared = match (way, &self.masu) {
            (Way::Masu, Some(masu)) => Spared::by_masu(&program, masu, self.folder),
            (Way::Nocache, _) => Spared::by_nocache(&program),
            _ => Spared::not(program),
        };
        let used = finished(self.session, group.start(spared.program()), LIMIT).context("a copy failed")?;
        Ok((used.elapsed, spared.cost(used)?))
    }
}

fn files_below(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))? {
        let path = entry?.path();
        if path.is_dir() { files.extend(files_below(&path)?) } else { files.push(path) }
    }
    Ok(files)
}

fn report(session: &Session, options: &Options, runs: &Runs<Way, Run>) -> Report {
    let Options { group, per_second, served_percent, .. } = options;
    let title = format!(
        "served: {per_second} requests a second for {served_percent} % of a group of {group}, while twice its memory is copied there"
    );
    let mut report = Report::new("served", title, &session.host);
    let ms =
        |what, value: fn(&Latency) -> f64| Metric::less(what, Unit::Milliseconds, move |run: &Run| value(&run.latency));
    let p99 = OF_MASU.iter().fold(ms("p99", |latency| latency.p99_ms), |metric, way| {
        metric.target_against(Way::Quiet, *way, Target::AtMost(1.1))
    });
    // Nothing is copied on the quiet machine, so the last metric has the kernel as its only baseline.
    let metrics = [
        ms("p50", |latency| latency.p50_ms),
        p99,
        ms("p99.9", |latency| latency.p999_ms),
        Metric::more("copying", Unit::MibPerSecond, |run: &Run| run.copy_mib_per_s),
    ];
    for baseline in [Way::Quiet, Way::Kernel] {
        let mut pairs = runs.against(baseline);
        pairs.retain(|(_, way)| !matches!(way, Way::Quiet | Way::Kernel));
        runs.compare(&mut report, &pairs, &metrics);
    }
    runs.figures(&mut report, &[super::processor_time(&OF_MASU, |run: &Run| &run.masu)]);
    runs.table(&mut report, "All runs, medians:", &columns());
    report.note(super::lists());
    report.note("wrk pauses after each answer; pgbench keeps to a schedule, and a transaction that begins late counts from when it was due.");
    report
}

fn columns() -> [Column<'static, Run>; 7] {
    let ms = |head, value: fn(&Latency) -> f64| {
        Column::median(head, Unit::Milliseconds, move |run: &Run| value(&run.latency))
    };
    [
        ms("p50", |latency| latency.p50_ms),
        ms("p99", |latency| latency.p99_ms),
        ms("p99.9", |latency| latency.p999_ms),
        ms("longest", |latency| latency.max_ms),
        Column::median("requests", Unit::Count, |run: &Run| run.latency.requests as f64),
        Column::median("copying", Unit::MibPerSecond, |run: &Run| run.copy_mib_per_s),
        super::dropped(|run: &Run| &run.masu),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quiet_machine_copies_nothing() {
        let latency = Latency { requests: 5000, p50_ms: 0.3, p99_ms: 1.0, p999_ms: 2.0, max_ms: 9.0 };
        let run = |copy_mib_per_s| Run { latency, copy_mib_per_s, masu: None };
        let mut runs = Runs::default();
        runs.push("nginx", Way::Quiet, vec![run(None)]);
        runs.push("nginx", Way::Kernel, vec![run(Some(250.0))]);
        let text = runs.as_table(&columns()).to_string();
        let line = |name: &str| text.lines().find(|line| line.contains(name)).unwrap().to_owned();
        assert!(line("no copy").starts_with("nginx") && line("no copy").ends_with('–'), "{text}");
        assert!(line("kernel alone").contains("0.300 ms") && line("kernel alone").contains("250 MiB/s"), "{text}");
    }

    #[test]
    fn files_in_folders_of_folders_are_found() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir_all(folder.path().join("a/b")).unwrap();
        fs::write(folder.path().join("a/b/c"), "").unwrap();
        fs::write(folder.path().join("d"), "").unwrap();
        let mut files = files_below(folder.path()).unwrap();
        files.sort();
        assert_eq!(files, [folder.path().join("a/b/c"), folder.path().join("d")]);
    }
}
