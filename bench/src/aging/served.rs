//! `masu-bench served`: request latency of nginx and PostgreSQL while a file of twice their cgroup's memory is copied
//! in the same cgroup, and read back.
//!
//! Each run has its own cgroup. The served data is dropped from the page cache, the server starts, and all served data
//! is read twice in the cgroup. Then requests arrive at a fixed rate from a client outside of the cgroup, until the
//! copy ends. The server has one processor and the client the other; the copy and masu may run on both.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use units::Bytes;

use super::residency::drop_all;
use super::running::{Around, Cost, Running};
use crate::cgroup::MemoryCgroup;
use crate::children::{OwnChild, describe};
use crate::launch::Program;
use crate::masu::Masu;
use crate::pairs::{Better, median, order_of_round};
use crate::place::Place;
use crate::process::processor_time;
use crate::report::{Report, Target, Unit, Versus};
use crate::session::Session;
use crate::superpages::tools::on_path;
use crate::table::Table;

mod latency;
mod nginx;
mod postgres;

use latency::Latency;

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

/// A server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// nginx, under wrk.
    Nginx,
    /// PostgreSQL, under `pgbench -S`.
    Postgres,
}

/// A way to copy beside a server, or not to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Way {
    /// No copy.
    Quiet,
    /// Copy by cp and cat.
    Kernel,
    /// The same under `masu aging --cache 0 --`.
    Masu,
    /// The same beside `masu aging --mapped 100 --cache 0`, which has to find the streams itself.
    MasuBeside,
    /// The same with the served data locked by `vmtouch -l`.
    Vmtouch,
    /// The same under `nocache`.
    Nocache,
}

const WAYS: [Way; 6] = [Way::Quiet, Way::Kernel, Way::Masu, Way::MasuBeside, Way::Vmtouch, Way::Nocache];

impl Way {
    const fn title(self) -> &'static str {
        match self {
            Way::Quiet => "no copy",
            Way::Kernel => "kernel alone",
            Way::Masu => "masu -- cp",
            Way::MasuBeside => "masu beside",
            Way::Vmtouch => "vmtouch -l",
            Way::Nocache => "nocache cp",
        }
    }

    const fn is_masu(self) -> bool {
        matches!(self, Way::Masu | Way::MasuBeside)
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = clap::ValueEnum::to_possible_value(self);
        f.write_str(value.as_ref().map_or("", |value| value.get_name()))
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if *self == Kind::Nginx { "nginx" } else { "postgres" })
    }
}

#[derive(Clone, Debug, Serialize)]
struct Run {
    latency: Latency,
    /// Bytes copied, over the time of copying and reading back.
    copy_mib_per_s: Option<f64>,
    /// masu's cost, in the runs under masu.
    masu: Option<Cost>,
}

/// A copy takes no longer.
const LIMIT: Duration = Duration::from_secs(900);

type Runs = (Kind, Way, Vec<Run>);

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
    let masu = super::masu(session, options.ways.iter().any(|way| way.is_masu()))?;
    let (mut ways, mut skipped) = (options.ways.clone(), Vec::new());
    for (way, name) in [(Way::Vmtouch, "vmtouch"), (Way::Nocache, "nocache")] {
        if ways.contains(&way) && on_path(name).is_none() {
            ways.retain(|other| *other != way);
            skipped.push(format!("skipped: {name}: it is not installed (Debian: {name})"));
        }
    }
    session.warm_up_to(options.group.scaled(2.0))?;
    let folder = tempfile::tempdir_in(super::FOLDER).context("cannot make a folder for the files")?;
    // PostgreSQL's user has to find its own below it.
    fs::set_permissions(folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
    let bench = Bench { session, options, masu, folder: folder.path() };
    session.progress("writing what is copied");
    write(&bench.source(), options.group.scaled(2.0))?;
    let mut all: Vec<Runs> = Vec::new();
    for &kind in &options.servers {
        session.progress(&format!("{kind}: making ready"));
        let service = match bench.service(kind)? {
            Ok(service) => service,
            Err(missing) => {
                skipped.push(format!("skipped: {kind}: {missing}"));
                continue;
            }
        };
        let first = all.len();
        all.extend(ways.iter().map(|way| (kind, *way, Vec::new())));
        for round in 0..options.pairs {
            for nth in order_of_round(round, ways.len()) {
                session.progress(&format!("{kind}: round {} of {}: {}", round + 1, options.pairs, ways[nth].title()));
                let run = bench.one(&service, ways[nth]).with_context(|| format!("{kind} ({})", ways[nth].title()))?;
                all[first + nth].2.push(run);
            }
        }
    }
    let mut report = report(session, options, &all);
    for skipped in skipped {
        report.note(skipped);
    }
    report.finish(session.save)
}

enum Service {
    Nginx(nginx::Site),
    Postgres(postgres::Database),
}

enum Server {
    Nginx(nginx::Server),
    Postgres(postgres::Server),
}

enum Client {
    Nginx(nginx::Client),
    Postgres(postgres::Client),
}

impl Service {
    fn data(&self) -> PathBuf {
        match self {
            Service::Nginx(site) => site.data(),
            Service::Postgres(database) => database.tables(),
        }
    }

    fn start(&self, session: &Session, group: &MemoryCgroup) -> Result<Server> {
        Ok(match self {
            Service::Nginx(site) => Server::Nginx(site.start(session, group)?),
            Service::Postgres(database) => Server::Postgres(database.start(session, group)?),
        })
    }
}

impl Server {
    fn client(&self, session: &Session, folder: &Path, per_s: u32) -> Result<Client> {
        Ok(match self {
            Server::Nginx(server) => Client::Nginx(server.client(session, folder, per_s)?),
            Server::Postgres(server) => Client::Postgres(server.client(session, folder, per_s)?),
        })
    }

    fn end(self, session: &Session) -> Result<()> {
        match self {
            Server::Nginx(server) => drop(server),
            Server::Postgres(server) => server.end(session)?,
        }
        Ok(())
    }
}

impl Client {
    fn end(self, session: &Session) -> Result<Latency> {
        match self {
            Client::Nginx(client) => client.end(session),
            Client::Postgres(client) => client.end(session),
        }
    }
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

    fn service(&self, kind: Kind) -> Result<Result<Service, crate::superpages::tools::Missing>> {
        let bytes = self.options.group.scaled(f64::from(self.options.served_percent) / 100.0);
        Ok(match kind {
            Kind::Nginx => nginx::Site::write(&self.folder.join("nginx"), bytes)?.map(Service::Nginx),
            Kind::Postgres => {
                let scale = u32::try_from(bytes.0 / 15_000_000).unwrap_or(1).max(1);
                postgres::Database::make(self.session, &self.folder.join("postgres"), scale)?.map(Service::Postgres)
            }
        })
    }

    fn one(&self, service: &Service, way: Way) -> Result<Run> {
        let (session, per_s) = (self.session, self.options.per_second);
        let served = files_below(&service.data())?;
        served.iter().chain([&self.source()]).try_for_each(|file| drop_all(file))?;
        let group = MemoryCgroup::make()?;
        group.limit_plainly(self.options.group)?;
        let server = service.start(session, &group)?;
        let data = service.data().into_os_string();
        let twice = "for i in 1 2; do find \"$0\" -type f -exec cat {} + >/dev/null; done";
        self.finished(group.start(&Program::at("/bin/sh", ["-c".into(), twice.into(), data])))?;
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

    /// Copies, and how long that took.
    fn copy(&self, group: &MemoryCgroup, way: Way) -> Result<(Duration, Option<Cost>)> {
        let script = "cp \"$0\" \"$1\" && cat \"$1\" >/dev/null";
        let files = [self.source().into_os_string(), self.folder.join("copy").into_os_string()];
        let program = Program::at("/bin/sh", ["-c".into(), script.into()].into_iter().chain(files));
        let around = self.masu.as_ref().filter(|_| way == Way::Masu);
        let around = around.map(|masu| Around::of(masu, &["--cache", "0"], self.folder));
        let program = match (&around, way) {
            (Some(around), _) => around.program(&program),
            (None, Way::Nocache) => {
                Program::at("nocache", [program.path.into_os_string()].into_iter().chain(program.arguments))
            }
            _ => program,
        };
        let (taken, used) = self.finished(group.start(&program))?;
        Ok((taken, around.map(|around| around.cost(used, taken)).transpose()?))
    }

    /// Runs the command to its end; returns its elapsed time and its own processor time.
    fn finished(&self, command: Command) -> Result<(Duration, Duration)> {
        let begun = Instant::now();
        let child = OwnChild::start(command, &self.session.processors, Place::Anywhere)?;
        child.await_end(LIMIT, &self.session.stop)?;
        let (taken, used) = (begun.elapsed(), processor_time(child.pid())?);
        let ended = child.finish(LIMIT, &self.session.stop)?;
        let complaint = ended.errors.last().map_or("no message", String::as_str);
        ensure!(ended.status.success(), "a copy {}: {complaint}", describe(ended.status));
        Ok((taken, used))
    }
}

fn write(path: &Path, bytes: Bytes) -> Result<()> {
    let write = || -> std::io::Result<()> {
        let (mut file, some) = (File::create(path)?, vec![9; 1 << 20]);
        for _ in 0..bytes.0.div_ceil(1 << 20) {
            file.write_all(&some)?;
        }
        file.sync_all()
    };
    write().with_context(|| format!("cannot write {}", path.display()))
}

fn files_below(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))? {
        let path = entry?.path();
        if path.is_dir() { files.extend(files_below(&path)?) } else { files.push(path) }
    }
    Ok(files)
}

fn samples(runs: &[Run], figure: impl Fn(&Run) -> f64) -> Vec<f64> {
    runs.iter().map(figure).collect()
}

fn report(session: &Session, options: &Options, all: &[Runs]) -> Report {
    let Options { group, per_second, served_percent, .. } = options;
    let title = format!(
        "served: {per_second} requests a second for {served_percent} % of a group of {group}, while twice its memory is copied there"
    );
    let mut report = Report::new("served", title, &session.host);
    let of = |kind: Kind, way: Way| {
        all.iter().find(|(k, w, _)| (*k, *w) == (kind, way)).map_or(&[][..], |(_, _, runs)| runs.as_slice())
    };
    for baseline in [Way::Quiet, Way::Kernel] {
        for (kind, way, runs) in all.iter().filter(|(_, way, _)| !matches!(way, Way::Quiet | Way::Kernel)) {
            let base = of(*kind, baseline);
            if base.is_empty() {
                continue;
            }
            let versus = Versus { baseline: baseline.title(), this: way.title() };
            for name in ["p50", "p99", "p99.9"] {
                let figure = |run: &Run| match name {
                    "p50" => run.latency.p50_ms,
                    "p99" => run.latency.p99_ms,
                    _ => run.latency.p999_ms,
                };
                let (base, this) = (samples(base, figure), samples(runs, figure));
                let what = format!("{kind}, {name}");
                report.compare(&what, Unit::Milliseconds, Better::Less, versus, (&base, &this));
                if name == "p99" && baseline == Way::Quiet && way.is_masu() {
                    report.target(Target::AtMost(1.1));
                }
            }
            if baseline == Way::Kernel {
                let copied = |run: &Run| run.copy_mib_per_s.unwrap_or(f64::NAN);
                let (base, this) = (samples(base, copied), samples(runs, copied));
                report.compare(&format!("{kind}, copying"), Unit::MibPerSecond, Better::More, versus, (&base, &this));
            }
        }
    }
    for (kind, way, runs) in all.iter().filter(|(_, way, _)| way.is_masu()) {
        let cpu: Vec<f64> = runs.iter().filter_map(|run| Some(run.masu.as_ref()?.core_fraction)).collect();
        let what = format!("processor time of {}, of a core, beside {kind}", way.title());
        report.figure(&what, Unit::Fraction, median(&cpu), Some(Target::AtMost(0.01)));
    }
    report.table("All runs, medians:", table(all));
    report.note(super::lists());
    report.note("wrk pauses after each answer; pgbench keeps to a schedule, and a transaction that begins late counts from when it was due.");
    let by_name: BTreeMap<String, &Vec<Run>> =
        all.iter().map(|(kind, way, runs)| (format!("{kind}, {way}"), runs)).collect();
    report.sample("runs", by_name);
    report
}

fn table(all: &[Runs]) -> Table {
    let mut table = Table::new(["", "", "p50", "p99", "p99.9", "longest", "requests", "copying", "dropped by masu"]);
    for (nth, (kind, way, runs)) in all.iter().enumerate() {
        let middle = |figure: &dyn Fn(&Run) -> f64| median(&samples(runs, figure)).unwrap_or(f64::NAN);
        let ms = |figure: &dyn Fn(&Latency) -> f64| Unit::Milliseconds.print(middle(&|run| figure(&run.latency)));
        let copied: Vec<f64> = runs.iter().filter_map(|run| run.copy_mib_per_s).collect();
        let dropped: Vec<f64> =
            runs.iter().filter_map(|run| Some(run.masu.as_ref()?.said.dropped_bytes as f64)).collect();
        let or_dash = |unit: Unit, value: Option<f64>| value.map_or_else(|| "–".into(), |value| unit.print(value));
        table.row([
            if nth == 0 || all[nth - 1].0 != *kind { kind.to_string() } else { String::new() },
            way.title().to_owned(),
            ms(&|latency| latency.p50_ms),
            ms(&|latency| latency.p99_ms),
            ms(&|latency| latency.p999_ms),
            ms(&|latency| latency.max_ms),
            Unit::Count.print(middle(&|run| run.latency.requests as f64)),
            or_dash(Unit::MibPerSecond, median(&copied)),
            or_dash(Unit::Bytes, median(&dropped)),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quiet_machine_copies_nothing() {
        let latency = Latency { requests: 5000, p50_ms: 0.3, p99_ms: 1.0, p999_ms: 2.0, max_ms: 9.0 };
        let run = |copy_mib_per_s| Run { latency, copy_mib_per_s, masu: None };
        let all = [(Kind::Nginx, Way::Quiet, vec![run(None)]), (Kind::Nginx, Way::Kernel, vec![run(Some(250.0))])];
        let text = table(&all).to_string();
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
