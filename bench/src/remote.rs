//! `masu-bench remote`: programs with less memory than data, under `masu run --local` and under the kernel's own
//! swapping.
//!
//! A budget is a part of the memory that masu can page (`remote/need.rs`). masu is told the budget. The kernel's
//! swapping gets a memory cgroup with a limit of the budget plus the program's other memory, so both have the same
//! memory for data.
//!
//! In each round each way runs the program once, beside one run with all memory; ways are taken in turns over rounds. A
//! slowdown pairs the two runs of the same round. It covers the part of the run after the data was made, where a
//! program reports that part. Every run's result must equal that of a run with all memory; otherwise its cell says so
//! and the benchmark fails in the end.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use units::Bytes;

use crate::harness::Choice as _;
use crate::pairs::turns;
use crate::report::Report;
use crate::session::Session;
use crate::tools::Missing;

mod cell;
pub mod fault;
mod figures;
mod floor;
mod joined;
mod measured;
mod need;
mod swap;
mod tables;
mod task;
pub mod torture;
mod way;

use cell::{Bench, End, Run};
use measured::{Cell, Measured, Row};
use swap::Area;
use task::{Ready, Task};
use way::{Units, Way};

/// Arguments of `masu-bench remote`.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Programs [default: all but himeno-s and himeno-l]
    #[arg(long, value_delimiter = ',', default_values_t = task::USUAL, hide_default_value = true)]
    pub workloads: Vec<Task>,
    /// Local memory, in percent of the paged memory [default: 5,10,25,50,100]
    #[arg(long, value_delimiter = ',', value_name = "PERCENT")]
    pub local: Vec<f64>,
    /// Ways: 4K … 1M, marked, auto, known, zram, swap-file [default: all, with transfer sizes 4K,16K,64K,256K,1M]
    #[arg(long, value_delimiter = ',')]
    pub ways: Vec<Way>,
    /// Measure every power of two from 4 KiB to 1 MiB as a fixed transfer size
    #[arg(long)]
    pub all_units: bool,
    /// Rounds [default: 3]
    #[arg(long)]
    pub pairs: Option<usize>,
    /// Run small programs, one round, 10 and 50 percent of local memory, transfer sizes 4K, 64K and 1M
    #[arg(long)]
    pub quick: bool,
    /// Limit on the run time, as a multiple of the run with all memory; a longer run is ended
    #[arg(long, default_value_t = 60.0)]
    pub times_at_most: f64,
    /// Backing store of masu [default: its own default]
    #[arg(long, value_name = "URL")]
    pub store: Option<String>,
    /// Disable prefetch and write-behind, which masu does with a server as its store
    #[arg(long)]
    pub no_background: bool,
    /// Measure nothing: print the results that --save wrote to these folders in one table
    #[arg(long, value_name = "DIR", num_args = 1..)]
    pub join: Vec<PathBuf>,
    /// Folder of the swap file during the benchmark
    #[arg(long, default_value = "/var/tmp", value_name = "DIR")]
    pub swap_folder: PathBuf,
}

/// No run with all memory takes longer.
const ALL_LOCAL_LIMIT: Duration = Duration::from_secs(120);

impl Options {
    fn budgets(&self) -> Vec<f64> {
        match (self.local.is_empty(), self.quick) {
            (false, _) => self.local.clone(),
            (true, true) => vec![10.0, 50.0],
            (true, false) => vec![5.0, 10.0, 25.0, 50.0, 100.0],
        }
    }

    fn rounds(&self) -> usize {
        self.pairs.unwrap_or(if self.quick { 1 } else { 3 })
    }

    fn wanted(&self) -> Vec<Way> {
        let units = match (self.all_units, self.quick) {
            (true, _) => Units::All,
            (false, true) => Units::Few,
            (false, false) => Units::Usual,
        };
        if self.ways.is_empty() { Way::all(units) } else { self.ways.clone() }
    }

    fn check(&self) -> Result<()> {
        ensure!(self.rounds() > 0, "--pairs 0: expected 1 or more");
        ensure!(self.times_at_most > 1.0, "--times-at-most {}: expected more than 1", self.times_at_most);
        for percent in self.budgets() {
            ensure!(percent > 0.0 && percent <= 100.0, "--local {percent}: expected more than 0 and up to 100 percent");
        }
        Ok(())
    }
}

/// Runs the benchmark.
///
/// # Errors
/// When masu is missing, a program cannot be built, this host cannot swap or limit memory, a result was wrong, or we
/// are interrupted.
pub fn run(session: &Session, options: &Options) -> Result<()> {
    options.check()?;
    if !options.join.is_empty() {
        return joined::run(session, &options.join);
    }
    let mut skipped = Vec::new();
    let mut ways = options.wanted();
    let masu = if ways.iter().any(|way| way.of_masu().is_some()) { Some(session.masu()?) } else { None };
    let masu = match masu {
        Some(masu) if masu.knows_local()? => Some(masu),
        Some(_) => {
            skipped.push("skipped: all that masu does: this masu does not know `run --local`".to_owned());
            ways.retain(|way| way.of_masu().is_none());
            None
        }
        None => None,
    };
    let folder = task::folder()?;
    session.warm_up_to(Bytes::gib(4))?;
    let copy_bytes_per_s = floor::copy_bandwidth();
    let (mut all, mut went) = (Vec::new(), Ok(()));
    for &task in &options.workloads {
        session.progress(&format!("{task}: making ready"));
        let ready = match task.prepare(&folder, options.times_at_most, options.quick) {
            Ok(ready) => ready,
            Err(error) if error.is::<Missing>() => {
                skipped.push(format!("skipped: {task}: {error}"));
                continue;
            }
            Err(error) => return Err(error),
        };
        let need = need::measure(session, &ready, ALL_LOCAL_LIMIT).with_context(|| task.to_string())?;
        let area = need.paged_bytes.scaled(2.0) + need.rest_bytes + Bytes::mib(64);
        let profiles = tempfile::tempdir().context("cannot make a folder for profiles")?;
        let bench = Bench {
            session,
            masu: masu.as_ref(),
            store: options.store.as_deref(),
            background: !options.no_background,
            profiles: profiles.path(),
            ready: &ready,
            need: &need,
            zram: ways.contains(&Way::Zram).then(|| Area::zram(area)).transpose()?,
            swap_file: ways.contains(&Way::SwapFile).then(|| file(&options.swap_folder, area)).transpose()?,
        };
        let mut rows = Vec::new();
        went = measure(&bench, options, task, &ways_of(&ready, &ways), &mut rows);
        drop(bench);
        all.push(Measured { task, need, rows });
        if went.is_err() {
            break;
        }
    }
    all.retain(|measured| !measured.rows.is_empty());
    if went.is_err() && !all.is_empty() {
        skipped.push("ended early: what was measured until then is shown, and not saved".to_owned());
    }
    if went.is_ok() || !all.is_empty() {
        report(session, options, &all, &ways, copy_bytes_per_s, skipped).finish(session.save && went.is_ok())?;
    }
    went?;
    let wrong = all.iter().flat_map(|measured| measured.rows.iter().map(move |row| (measured, row)));
    let wrong = wrong.flat_map(|(measured, row)| {
        row.ways
            .iter()
            .filter(|(way, _)| matches!(row.cell(*way), Cell::Wrong(_)))
            .map(move |(way, _)| format!("{} at {} under {way}", measured.task, tables::percent(row.percent)))
    });
    let wrong: Vec<String> = wrong.collect();
    ensure!(wrong.is_empty(), "{} cells failed: {}", wrong.len(), wrong.join(", "));
    Ok(())
}

fn file(folder: &Path, bytes: Bytes) -> Result<Area> {
    Area::file(folder, bytes).context("cannot make a swap file; --swap-folder names another place")
}

/// A program without marks has no such way.
fn ways_of(ready: &Ready, ways: &[Way]) -> Vec<Way> {
    ways.iter().copied().filter(|way| *way != Way::Marked || ready.marked.is_some()).collect()
}

/// Runs one program with each budget. Rows already in `rows` are complete, also after an error.
fn measure(bench: &Bench, options: &Options, task: Task, ways: &[Way], rows: &mut Vec<Row>) -> Result<()> {
    for percent in options.budgets() {
        let budget = bench.need.paged_bytes.scaled(percent / 100.0).pages().bytes();
        let mut all_local: Vec<Run> = Vec::new();
        let mut ends: Vec<(Way, Vec<End>)> = ways.iter().map(|way| (*way, Vec::new())).collect();
        for (round, nth) in turns(options.rounds(), ways.len() + 1) {
            let name = if nth == 0 { "all-local".into() } else { ways[nth - 1].to_string() };
            let (at, of) = (round + 1, options.rounds());
            bench.session.progress(&format!("{task}: {} local, round {at} of {of}: {name}", tables::percent(percent)));
            if nth == 0 {
                all_local.push(bench.all_local(ALL_LOCAL_LIMIT).with_context(|| task.to_string())?);
                continue;
            }
            let (way, ends) = &mut ends[nth - 1];
            if ends.iter().all(|end| matches!(end, End::Well(_))) {
                let known = all_local.last().map_or(bench.need.run_s, |run| run.run_s);
                ends.push(bench.run_with(*way, budget, known).with_context(|| format!("{task} under {way}"))?);
            }
        }
        rows.push(Row { percent, budget, all_local, ways: ends });
    }
    Ok(())
}

fn report(
    session: &Session,
    options: &Options,
    all: &[Measured],
    ways: &[Way],
    copy_bytes_per_s: f64,
    skipped: Vec<String>,
) -> Report {
    let title = format!(
        "remote: programs with a part of the memory that they need, {} rounds{}",
        options.rounds(),
        if options.quick { ", small programs" } else { "" }
    );
    let mut report = Report::new(name(options), title, &session.host);
    tables::summary(&mut report, all, ways);
    for measured in all {
        let heading = format!("{}: {}", measured.task, measured.task.title());
        report.table(&heading, tables::details(measured, copy_bytes_per_s));
    }
    skipped.into_iter().chain(NOTES.map(str::to_owned)).for_each(|note| report.note(note));
    report.note(format!(
        "Floor of the whole run, one for all ways: the all-local run, and the bytes in and out of the way that moved least at {:.1} \
         GB/s, at which this machine copies memory.",
        copy_bytes_per_s / 1e9
    ));
    report.sample("copy_bytes_per_s", copy_bytes_per_s);
    report.sample("background", !options.no_background);
    report.sample("store", options.store.as_deref().unwrap_or("masu's default"));
    report.sample("programs", all);
    report
}

/// The folder for the results, so that programs and stores can be measured one at a time: `remote`, `remote-adi-quick`,
/// `remote-sort-gups-redis`.
fn name(options: &Options) -> String {
    let mut name = "remote".to_owned();
    if options.workloads != task::USUAL {
        for task in &options.workloads {
            name += &format!("-{task}");
        }
    }
    name += if options.quick { "-quick" } else { "" };
    match options.store.as_deref().and_then(|url| url.split_once(':')) {
        Some((scheme, _)) => name + "-" + scheme,
        None => name,
    }
}

const NOTES: [&str; 6] = [
    "auto: masu has never seen the program; known: it has run it before, with this budget and with those above it in the table.",
    "Slowdown: the part of the run after the data was made; sqlite, coreutils-sort and gcc do not tell it apart.",
    "Under zram and swap-file a memory cgroup is limited to the budget and the other memory that the program needs; \
     compressed pages are not counted in it, and swapped pages go past the page cache.",
    "In a cgroup of some MiB the kernel at times finds nothing to reclaim and would kill the program; it is made to wait and to \
     try again instead (`waits` in the samples).",
    "Peak memory: paged memory as masu reports it; otherwise all that was resident in the largest process.",
    "A run of gups is ended after 1000 times the all-local time; others at --times-at-most.",
];

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(clap::Parser)]
    struct Alone {
        #[command(flatten)]
        options: Options,
    }

    fn options(words: &[&str]) -> Options {
        Alone::try_parse_from([&["x"], words].concat()).unwrap().options
    }

    #[test]
    fn quick_is_small_unless_told_otherwise() {
        let usual = options(&[]);
        assert_eq!((usual.budgets().len(), usual.rounds(), usual.wanted().len()), (5, 3, 10));
        let quick = options(&["--quick"]);
        assert_eq!((quick.budgets(), quick.rounds(), quick.wanted().len()), (vec![10.0, 50.0], 1, 8));
        let both = options(&["--quick", "--local", "5,2.5", "--pairs", "2", "--ways", "auto,zram"]);
        assert_eq!((both.budgets(), both.rounds()), (vec![5.0, 2.5], 2));
        assert_eq!(both.wanted(), [Way::Auto, Way::Zram]);
        assert_eq!(options(&["--all-units"]).wanted().len(), 14);
    }

    #[test]
    fn results_of_one_program_or_store_have_a_folder_of_their_own() {
        for (words, wanted) in [
            (&[][..], "remote"),
            (&["--quick", "--pairs", "2"], "remote-quick"),
            (&["--workloads", "adi"], "remote-adi"),
            (&["--workloads", "sort,himeno-s", "--store", "redis://127.0.0.1:1"], "remote-sort-himeno-s-redis"),
        ] {
            assert_eq!(name(&options(words)), wanted);
        }
    }

    #[test]
    fn a_budget_of_nothing_or_of_more_than_all_is_refused() {
        for (words, wanted) in [
            (["--local", "0"], "--local 0: expected more than 0 and up to 100 percent"),
            (["--local", "101"], "--local 101: expected more than 0 and up to 100 percent"),
            (["--pairs", "0"], "--pairs 0: expected 1 or more"),
            (["--times-at-most", "1"], "--times-at-most 1: expected more than 1"),
        ] {
            assert_eq!(options(&words).check().unwrap_err().to_string(), wanted);
        }
    }
}
