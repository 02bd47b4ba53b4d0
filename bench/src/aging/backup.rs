//! `masu-bench backup`: `tar` and `rsync` read a tree that is partly in the page cache. A backup should leave the page
//! cache unchanged: cached pages stay cached, and the pages that it read are dropped.
//!
//! Before each run the page cache is brought into the same state, from a seed. Afterwards `mincore` reports for each
//! page whether it is cached. `tar` writes into a pipe: into `/dev/null` GNU tar would not read the files at all.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::{self, File};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use units::Bytes;

use super::residency::Kept;
use super::running::{Around, Cost};
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

mod tree;

use tree::{Tree, kept};

/// Arguments of `masu-bench backup`.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Size of the tree
    #[arg(long, default_value = "1GiB")]
    pub size: Bytes,
    /// Runs of each backup in each way
    #[arg(long, default_value_t = 6)]
    pub pairs: usize,
    /// Backups
    #[arg(long, value_delimiter = ',', default_values_t = [Job::Tar, Job::Rsync])]
    pub jobs: Vec<Job>,
    /// Ways to spare the page cache
    #[arg(long, value_delimiter = ',', default_values_t = [Way::Plain, Way::Masu, Way::Nocache])]
    pub ways: Vec<Way>,
    /// Seed of the file sizes and of the cached pages
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

/// A backup.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Job {
    /// `tar cf - tree | cat >/dev/null`.
    Tar,
    /// `rsync -a tree/ copy`.
    Rsync,
}

/// A way to run it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Way {
    /// The command alone.
    Plain,
    /// `masu aging --cache 0 -- …`.
    Masu,
    /// `nocache …`.
    Nocache,
}

impl Job {
    fn program(self, tree: &Path, copy: &Path) -> Program {
        match self {
            // The script's own name is its argument.
            Job::Tar => {
                let script = "tar cf - \"$0\" | cat >/dev/null";
                Program::at("/bin/sh", ["-c".into(), script.into(), tree.as_os_str().to_owned()])
            }
            Job::Rsync => {
                Program::at("rsync", ["-a".into(), tree.join("").into_os_string(), copy.as_os_str().to_owned()])
            }
        }
    }
}

impl Way {
    const fn title(self) -> &'static str {
        match self {
            Way::Plain => "plain",
            Way::Masu => "masu --cache 0",
            Way::Nocache => "nocache",
        }
    }
}

impl fmt::Display for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if *self == Job::Tar { "tar" } else { "rsync" })
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Way::Plain => "plain",
            Way::Masu => "masu",
            Way::Nocache => "nocache",
        })
    }
}

#[derive(Clone, Debug, Serialize)]
struct Run {
    /// Time from its start to its end, in seconds.
    run_s: f64,
    /// The same, and until all that it wrote is on disk.
    on_disk_s: f64,
    /// Pages of the tree.
    kept: Kept,
    /// Cached part of the copy's pages.
    copy_cached_fraction: Option<f64>,
    /// masu's cost, in the runs under masu.
    masu: Option<Cost>,
}

/// A backup takes no longer.
const LIMIT: Duration = Duration::from_secs(600);

type Runs = (Job, Way, Vec<Run>);

/// Runs the benchmark.
///
/// # Errors
/// When masu is missing, a program fails, a copy differs, or we are interrupted.
pub fn run(session: &Session, options: &Options) -> Result<()> {
    ensure!(options.pairs > 0 && options.size.0 > 0, "expected --pairs and --size of 1 or more");
    let masu = super::masu(session, options.ways.contains(&Way::Masu))?;
    let mut skipped = Vec::new();
    let (mut jobs, mut ways) = (options.jobs.clone(), options.ways.clone());
    if on_path("nocache").is_none() && ways.contains(&Way::Nocache) {
        ways.retain(|way| *way != Way::Nocache);
        skipped.push("skipped: nocache: it is not installed (Debian: nocache)");
    }
    if on_path("rsync").is_none() && jobs.contains(&Job::Rsync) {
        jobs.retain(|job| *job != Job::Rsync);
        skipped.push("skipped: rsync: it is not installed (Debian: rsync)");
    }
    session.warm_up_to(options.size.scaled(2.5))?;
    let folder = tempfile::tempdir_in(super::FOLDER).context("cannot make a folder for the tree")?;
    session.progress("writing the tree");
    let tree = Tree::write(&folder.path().join("tree"), options.size, options.seed, &session.stop)?;
    let bench = Bench { session, masu, tree, folder: folder.path() };
    let mut all: Vec<Runs> = Vec::new();
    for &job in &jobs {
        let first = all.len();
        all.extend(ways.iter().map(|way| (job, *way, Vec::new())));
        for round in 0..options.pairs {
            for nth in order_of_round(round, ways.len()) {
                session.progress(&format!("{job}: round {} of {}: {}", round + 1, options.pairs, ways[nth].title()));
                let run = bench.one(job, ways[nth]).with_context(|| format!("{job} ({})", ways[nth].title()))?;
                all[first + nth].2.push(run);
            }
        }
    }
    let mut report = report(session, &bench.tree, &all);
    for skipped in skipped {
        report.note(skipped);
    }
    report.finish(session.save)
}

struct Bench<'a> {
    session: &'a Session,
    masu: Option<Masu>,
    tree: Tree,
    folder: &'a Path,
}

impl Bench<'_> {
    fn one(&self, job: Job, way: Way) -> Result<Run> {
        let stop = &self.session.stop;
        let copy = self.folder.join("copy");
        remove(&copy)?;
        let before = self.tree.prepare(stop)?;
        rustix::fs::sync(); // nothing that was written before is written during the run
        let program = job.program(self.tree.root(), &copy);
        let around = self.masu.as_ref().filter(|_| way == Way::Masu);
        let around = around.map(|masu| Around::of(masu, &["--cache", "0"], self.folder));
        let program = match (&around, way) {
            (Some(around), _) => around.program(&program),
            (None, Way::Nocache) => {
                Program::at("nocache", [program.path.into_os_string()].into_iter().chain(program.arguments))
            }
            _ => program,
        };
        let begun = Instant::now();
        let child = OwnChild::start(program.command(), &self.session.processors, Place::Anywhere)?;
        child.await_end(LIMIT, stop)?;
        let elapsed = begun.elapsed();
        let used = processor_time(child.pid())?;
        let ended = child.finish(LIMIT, stop)?;
        let complaint = ended.errors.last().map_or("no message", String::as_str);
        ensure!(ended.status.success(), "it {}: {complaint}", describe(ended.status));
        let after = self.tree.cached_below(self.tree.root())?;
        let copied = if job == Job::Rsync { Some(self.tree.cached_below(&copy)?) } else { None };
        rustix::fs::syncfs(File::open(self.folder)?).context("cannot write everything out")?;
        let on_disk_s = begun.elapsed().as_secs_f64();
        let masu = around.map(|around| around.cost(used, elapsed)).transpose()?;
        if job == Job::Rsync && way == Way::Masu {
            self.tree.compare(&copy, stop)?;
        }
        remove(&copy)?;
        let part = |pages: Vec<bool>| pages.iter().filter(|page| **page).count() as f64 / pages.len().max(1) as f64;
        Ok(Run {
            run_s: elapsed.as_secs_f64(),
            on_disk_s,
            kept: kept(&before, &after),
            copy_cached_fraction: copied.map(|files| part(files.concat())),
            masu,
        })
    }
}

fn remove(folder: &Path) -> Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", folder.display()))
        }
        _ => Ok(()),
    }
}

fn samples(runs: &[Run], figure: impl Fn(&Run) -> f64) -> Vec<f64> {
    runs.iter().map(figure).collect()
}

fn report(session: &Session, tree: &Tree, all: &[Runs]) -> Report {
    let bytes = Bytes(tree.bytes());
    let title = format!("backup: a tree of {} files, {bytes}, of which some pages are cached", tree.files());
    let mut report = Report::new("backup", title, &session.host);
    let mib = tree.bytes() as f64 / f64::from(1 << 20);
    for way in [Way::Masu, Way::Nocache] {
        let versus = Versus { baseline: Way::Plain.title(), this: way.title() };
        for (job, _, runs) in all.iter().filter(|(_, other, _)| *other == way) {
            let Some((_, _, plain)) = all.iter().find(|(of, way, _)| of == job && *way == Way::Plain) else { continue };
            let mut compare = |what: &str, figure: &dyn Fn(&Run) -> f64| {
                let (base, this) = (samples(plain, figure), samples(runs, figure));
                report.compare(&format!("{job}{what}"), Unit::MibPerSecond, Better::More, versus, (&base, &this));
            };
            compare("", &|run| mib / run.run_s);
            if *job == Job::Rsync {
                compare(", until all is on disk", &|run| mib / run.on_disk_s);
            }
        }
    }
    for (job, _, runs) in all.iter().filter(|(_, way, _)| *way == Way::Masu) {
        let mut figure = |what: &str, figure: &dyn Fn(&Run) -> f64, target| {
            report.figure(&format!("{job} under masu: {what}"), Unit::Fraction, median(&samples(runs, figure)), target);
        };
        figure("of what was cached, still is", &|run| run.kept.kept_fraction(), Some(Target::AtLeast(0.99)));
        figure("of what was not cached, now is", &|run| run.kept.brought_fraction(), Some(Target::AtMost(0.01)));
        let cpu = |run: &Run| run.masu.as_ref().map_or(f64::NAN, |cost| cost.core_fraction);
        figure("processor time of masu, of a core", &cpu, Some(Target::AtMost(0.01)));
    }
    report.table("All runs, medians:", table(all, mib));
    report.note("Processor time of masu: from its start to its end. The copies made under masu were read from the disk and were the same.");
    let names = |(job, way, runs)| (format!("{job}, {way}"), runs);
    let by_name: BTreeMap<String, &Vec<Run>> = all.iter().map(|(job, way, runs)| names((job, way, runs))).collect();
    report.sample("runs", by_name);
    report
}

fn table(all: &[Runs], mib: f64) -> Table {
    let head =
        ["", "", "throughput", "until on disk", "cached, still is", "not cached, now is", "copy cached", "dropped"];
    let mut table = Table::new(head);
    for (nth, (job, way, runs)) in all.iter().enumerate() {
        let middle = |figure: &dyn Fn(&Run) -> f64| median(&samples(runs, figure)).unwrap_or(f64::NAN);
        let copied: Vec<f64> = runs.iter().filter_map(|run| run.copy_cached_fraction).collect();
        let dropped: Vec<f64> =
            runs.iter().filter_map(|run| Some(run.masu.as_ref()?.said.dropped_bytes as f64)).collect();
        let or_dash = |unit: Unit, value: Option<f64>| value.map_or_else(|| "–".into(), |value| unit.print(value));
        table.row([
            if nth == 0 || all[nth - 1].0 != *job { job.to_string() } else { String::new() },
            way.title().to_owned(),
            Unit::MibPerSecond.print(middle(&|run| mib / run.run_s)),
            Unit::MibPerSecond.print(middle(&|run| mib / run.on_disk_s)),
            Unit::Fraction.print(middle(&|run| run.kept.kept_fraction())),
            Unit::Fraction.print(middle(&|run| run.kept.brought_fraction())),
            or_dash(Unit::Fraction, median(&copied)),
            or_dash(Unit::Bytes, median(&dropped)),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tar_writes_into_a_pipe_and_rsync_what_is_in_the_tree() {
        let words = |job: Job| {
            let program = job.program(Path::new("/a b/tree"), Path::new("/copy"));
            let words = program.arguments.iter().map(|word| word.to_string_lossy().into_owned());
            (program.path.display().to_string(), words.collect::<Vec<_>>())
        };
        let (shell, told) = words(Job::Tar);
        assert_eq!((shell.as_str(), told[2].as_str()), ("/bin/sh", "/a b/tree"));
        assert_eq!(words(Job::Rsync).1, ["-a", "/a b/tree/", "/copy"]);
    }

    #[test]
    fn a_way_that_has_no_copy_shows_a_dash() {
        let kept = Kept { before_pages: 4, kept_pages: 4, absent_pages: 8, brought_pages: 8 };
        let run = Run { run_s: 2.0, on_disk_s: 4.0, kept, copy_cached_fraction: None, masu: None };
        let text = table(&[(Job::Tar, Way::Plain, vec![run])], 100.0).to_string();
        let last: Vec<&str> =
            text.lines().last().unwrap().split("   ").map(str::trim).filter(|c| !c.is_empty()).collect();
        assert_eq!(last, ["tar", "plain", "50 MiB/s", "25 MiB/s", "100.000 %", "100.000 %", "–", "–"]);
    }

    #[test]
    fn a_folder_that_is_gone_is_no_error() {
        remove(Path::new("/var/tmp/masu-bench-was-never-there")).unwrap();
    }
}
