//! `masu-bench backup`: `tar` and `rsync` read a tree that is partly in the page cache. A backup should leave the page
//! cache unchanged: cached pages stay cached, and the pages that it read are dropped.
//!
//! Before each run the page cache is brought into the same state, from a seed. Afterwards `mincore` reports for each
//! page whether it is cached. `tar` writes into a pipe: into `/dev/null` GNU tar would not read the files at all.

use std::fs::{self, File};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use units::Bytes;

use super::residency::Kept;
use super::running::{Cost, Spared, finished};
use crate::choices;
use crate::harness::{Choice as _, Column, Metric, Runs};
use crate::launch::Program;
use crate::masu::Masu;
use crate::report::{Report, Target, Unit};
use crate::session::Session;

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

choices! {
    /// A backup.
    pub enum Job {
        Tar = "tar", "tar cf - tree | cat >/dev/null";
        Rsync = "rsync", "rsync -a tree/ copy", needs "rsync";
    }
}

choices! {
    /// Protection of the page cache from a backup.
    pub enum Way {
        Plain = "plain", "plain";
        Masu = "masu", "masu --cache 0";
        Nocache = "nocache", "nocache", needs "nocache";
    }
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

#[derive(Clone, Debug, Serialize)]
struct Run {
    run_s: f64,
    /// Time until all that it wrote is on disk.
    on_disk_s: f64,
    mib: f64,
    /// Pages of the tree.
    kept: Kept,
    /// Cached part of the copy's pages.
    copy_cached_fraction: Option<f64>,
    masu: Option<Cost>,
}

/// Time limit of a backup.
const LIMIT: Duration = Duration::from_secs(600);

/// Runs the benchmark.
///
/// # Errors
/// When masu is missing, a program fails, a copy differs, or we are interrupted.
pub fn run(session: &Session, options: &Options) -> Result<()> {
    ensure!(options.pairs > 0 && options.size.0 > 0, "expected --pairs and --size of 1 or more");
    let masu = super::masu(session, options.ways.contains(&Way::Masu))?;
    let mut runs = Runs::default();
    let (ways, jobs) = (runs.available(&options.ways), runs.available(&options.jobs));
    session.warm_up_to(options.size.scaled(2.5))?;
    let folder = tempfile::tempdir_in(super::FOLDER).context("cannot make a folder for the tree")?;
    session.progress("writing the tree");
    let tree = Tree::write(&folder.path().join("tree"), options.size, options.seed, &session.stop)?;
    let bench = Bench { session, masu, tree, folder: folder.path() };
    for job in jobs {
        runs.measure(session, options.pairs, job.name(), &ways, |turn| bench.one(job, turn.way))?;
    }
    runs.finish(report(session, &bench.tree, &runs), session)
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
        let spared = match (way, &self.masu) {
            (Way::Masu, Some(masu)) => Spared::by_masu(&program, masu, self.folder),
            (Way::Nocache, _) => Spared::by_nocache(&program),
            _ => Spared::not(program),
        };
        let begun = Instant::now();
        let used = finished(self.session, spared.program().command(), LIMIT)?;
        let after = self.tree.cached_below(self.tree.root())?;
        let copied = if job == Job::Rsync { Some(self.tree.cached_below(&copy)?) } else { None };
        rustix::fs::syncfs(File::open(self.folder)?).context("cannot write everything out")?;
        let on_disk_s = begun.elapsed().as_secs_f64();
        let masu = spared.cost(used)?;
        if job == Job::Rsync && way == Way::Masu {
            self.tree.compare(&copy, stop)?;
        }
        remove(&copy)?;
        let part = |pages: Vec<bool>| pages.iter().filter(|page| **page).count() as f64 / pages.len().max(1) as f64;
        Ok(Run {
            run_s: used.elapsed.as_secs_f64(),
            on_disk_s,
            mib: self.tree.bytes() as f64 / f64::from(1 << 20),
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

fn report(session: &Session, tree: &Tree, runs: &Runs<Way, Run>) -> Report {
    let bytes = Bytes(tree.bytes());
    let title = format!("backup: a tree of {} files, {bytes}, of which some pages are cached", tree.files());
    let mut report = Report::new("backup", title, &session.host);
    let speed = Metric::more("", Unit::MibPerSecond, |run: &Run| run.mib / run.run_s);
    let on_disk = Metric::more("until all is on disk", Unit::MibPerSecond, |run: &Run| {
        run.copy_cached_fraction.map(|_| run.mib / run.on_disk_s) // tar writes no copy
    });
    runs.compare(&mut report, &runs.against(Way::Plain), &[speed, on_disk]);
    let under_masu = |what, value: fn(&Kept) -> f64, target| {
        let value = move |run: &Run| run.masu.as_ref().map(|_| value(&run.kept));
        Metric::more(what, Unit::Fraction, value).target(Way::Masu, target)
    };
    let figures = [
        under_masu("of what was cached, still is", Kept::kept_fraction, Target::AtLeast(0.99)),
        under_masu("of what was not cached, now is", Kept::brought_fraction, Target::AtMost(0.01)),
        super::processor_time(&[Way::Masu], |run: &Run| &run.masu),
    ];
    runs.figures(&mut report, &figures);
    runs.table(&mut report, "All runs, medians:", &columns());
    report.note("Processor time of masu: from its start to its end. The copies made under masu were read from the disk and were the same.");
    report
}

fn columns() -> [Column<'static, Run>; 6] {
    [
        Column::median("throughput", Unit::MibPerSecond, |run: &Run| run.mib / run.run_s),
        Column::median("until on disk", Unit::MibPerSecond, |run: &Run| run.mib / run.on_disk_s),
        Column::median("cached, still is", Unit::Fraction, |run: &Run| run.kept.kept_fraction()),
        Column::median("not cached, now is", Unit::Fraction, |run: &Run| run.kept.brought_fraction()),
        Column::median("copy cached", Unit::Fraction, |run: &Run| run.copy_cached_fraction),
        super::dropped(|run: &Run| &run.masu),
    ]
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
        let run = Run { run_s: 2.0, on_disk_s: 4.0, mib: 100.0, kept, copy_cached_fraction: None, masu: None };
        let mut runs = Runs::default();
        runs.push("tar", Way::Plain, vec![run]);
        let text = runs.as_table(&columns()).to_string();
        let last: Vec<&str> =
            text.lines().last().unwrap().split("   ").map(str::trim).filter(|c| !c.is_empty()).collect();
        assert_eq!(last, ["tar", "plain", "50 MiB/s", "25 MiB/s", "100.000 %", "100.000 %", "–", "–"]);
    }

    #[test]
    fn a_folder_that_is_gone_is_no_error() {
        remove(Path::new("/var/tmp/masu-bench-was-never-there")).unwrap();
    }
}
