//! `masu-bench transpose`: the matrix transposition of the Super Page paper (section 5.1, figures 8 to 11), over
//! dimensions, with each way of getting huge pages.
//!
//! | paper | here |
//! | load stride, store stride | the same |
//! | Normal Kernel, Super Page Kernel | `4k`, `touch`; beside them `always`, `glibc` and `jemalloc` |
//! | figure 9, MB/s over the dimension | the curves; a MiB is one of the matrix, copied once |
//! | figures 10 and 11, ratio over the dimension | the heat map, and the table of the worst and the best dimension |
//!
//! The dimensions go on beyond 4096, since today's processors keep the translations of some 2000 pages: only a column
//! of more rows than that misses all of them.
//!
//! In each round each way runs one process (`workloads/transpose.rs`), which goes through all dimensions; ways are
//! taken in turns over rounds. A ratio pairs the results of two ways in the same round for the same dimension and
//! stride.

use std::time::Duration;

use anyhow::{Result, ensure};
use serde::Serialize;
use units::Bytes;

use crate::harness::{Choice as _, Runs};
use crate::launch::{Launcher, Policy, Program, Run};
use crate::pairs::{Better, Comparison, PAIRS_MIN, Verdict, median};
use crate::report::{Report, Target, Unit, Versus};
use crate::session::Session;
use crate::side_by_side::{self, compare, ratio_with_interval};
use crate::table::Table;
use crate::workload::Reply;
use sim::plot::{Chart, HeatMap, Series, grid, heat_map};

/// Arguments of `masu-bench transpose`.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Smallest dimension
    #[arg(long, default_value_t = 64)]
    pub from: usize,
    /// Largest dimension
    #[arg(long, default_value_t = 6145)]
    pub to: usize,
    /// Dimensions between two powers of two
    #[arg(long, default_value_t = 8)]
    pub per_octave: usize,
    /// Time of measuring one stride of one dimension in a round, in milliseconds
    #[arg(long, default_value_t = 30)]
    pub cell_ms: u64,
    /// Rounds
    #[arg(long, default_value_t = 10)]
    pub pairs: usize,
    /// Sources of huge pages; those of masu are touch and touch-stack
    #[arg(long, value_delimiter = ',', default_values_t = POLICIES)]
    pub policies: Vec<Policy>,
}

const POLICIES: [Policy; 5] = [Policy::Small, Policy::Always, Policy::Glibc, Policy::Jemalloc, Policy::Touch];

/// Side of the copy that jumps from row to row.
const STRIDES: [&str; 2] = ["load stride", "store stride"];

const LIMIT: Duration = Duration::from_secs(600);

/// MiB per second by stride, dimension and round.
type Speeds = [Vec<Vec<f64>>; 2];

/// Two conditions at one place.
#[derive(Clone, Copy, Debug, Serialize)]
struct Cell {
    stride: usize,
    dim: usize,
    found: Comparison,
}

/// Runs the benchmark.
///
/// # Errors
/// When masu is missing, a program fails, its results are wrong, or we are interrupted.
pub fn run(session: &Session, options: &Options) -> Result<()> {
    ensure!(options.pairs > 0 && options.per_octave > 0, "expected --pairs and --per-octave of 1 or more");
    ensure!(
        (2..=options.to).contains(&options.from) && options.to <= 1 << 15,
        "--from {} --to {}: expected 2 or more, up to 32768",
        options.from,
        options.to
    );
    let mut runs = Runs::default();
    let (launcher, policies) = Launcher::offering(session, &options.policies, &mut runs)?;
    let dims = dimensions(options.from, options.to, options.per_octave);
    let words: Vec<String> = dims.iter().map(usize::to_string).collect();
    let arguments = ["--dims".to_owned(), words.join(","), "--cell-ms".to_owned(), options.cell_ms.to_string()];
    let program = Program::workload("workload-transpose", arguments)?;
    let memory = Bytes((options.to * options.to * 16) as u64 + (64 << 20));
    let mut speeds: Vec<(Policy, Speeds)> =
        policies.iter().map(|policy| (*policy, [vec![Vec::new(); dims.len()], vec![Vec::new(); dims.len()]])).collect();
    let mut checksums: Option<(Policy, Vec<u64>)> = None;
    runs.measure(session, options.pairs, "", &policies, |turn| {
        session.keep_warm(memory)?;
        let run = launcher.run(session, turn.way, &program, LIMIT)?;
        let sums = take_lines(&run.lines, &dims, &mut speeds[turn.nth].1)?;
        let (first, wanted) = checksums.get_or_insert_with(|| (turn.way, sums.clone()));
        ensure!(*wanted == sums, "wrong result: the matrices differ from those of {first}");
        Ok(run)
    })?;
    runs.finish(report(session, options, &dims, &speeds, &runs), session)
}

/// The speeds of `policy`.
fn of(all: &[(Policy, Speeds)], policy: Policy) -> Option<&Speeds> {
    all.iter().find(|(other, _)| *other == policy).map(|(_, speeds)| speeds)
}

/// Powers of two from `from` to `to`, each with the odd number after it; between them, `per_octave` - 1 others, odd and even.
fn dimensions(from: usize, to: usize, per_octave: usize) -> Vec<usize> {
    let mut dims = vec![from, to];
    let mut power = 1;
    while power <= to {
        dims.push(power + 1);
        dims.extend((0..per_octave).map(|nth| (power + power * nth / per_octave) | (nth % 2)));
        power *= 2;
    }
    dims.retain(|dim| (from..=to).contains(dim));
    dims.sort_unstable();
    dims.dedup();
    dims
}

/// Adds one process's lines to its way's speeds; its checksums.
fn take_lines(lines: &[String], dims: &[usize], speeds: &mut Speeds) -> Result<Vec<u64>> {
    ensure!(lines.len() == dims.len(), "{} lines for {} dimensions", lines.len(), dims.len());
    let mut sums = Vec::new();
    for (nth, (line, dim)) in lines.iter().zip(dims).enumerate() {
        let reply = Reply::of(line);
        ensure!(reply.whole("dim")? == *dim as u64, "`{line}`: expected dimension {dim}");
        speeds[0][nth].push(reply.number("load_mib_per_s")?);
        speeds[1][nth].push(reply.number("store_mib_per_s")?);
        sums.push(reply.whole("checksum")?);
    }
    Ok(sums)
}

/// All places where both were measured.
fn cells(dims: &[usize], baseline: &Speeds, this: &Speeds) -> Vec<Cell> {
    let places =
        (0..STRIDES.len()).flat_map(|stride| dims.iter().enumerate().map(move |(nth, dim)| (stride, nth, *dim)));
    let cell = |(stride, nth, dim): (usize, usize, usize)| {
        Some(Cell { stride, dim, found: compare(&baseline[stride][nth], &this[stride][nth])? })
    };
    places.filter_map(cell).collect()
}

fn worst_and_best(cells: &[Cell]) -> Option<[Cell; 2]> {
    let by_ratio = |a: &&Cell, b: &&Cell| a.found.ratio.total_cmp(&b.found.ratio);
    Some([*cells.iter().min_by(by_ratio)?, *cells.iter().max_by(by_ratio)?])
}

fn count(cells: &[Cell], verdict: Verdict) -> usize {
    cells.iter().filter(|cell| cell.found.verdict(Better::More) == verdict).count()
}

fn report(
    session: &Session,
    options: &Options,
    dims: &[usize],
    speeds: &[(Policy, Speeds)],
    runs: &Runs<Policy, Run>,
) -> Report {
    let title = format!(
        "transpose: the Super Page paper's matrix transposition, {} dimensions from {} to {}, both strides",
        dims.len(),
        options.from,
        options.to
    );
    let mut report = Report::new("transpose", title, &session.host);
    for (baseline, this) in
        [(Policy::Always, Policy::Touch), (Policy::Small, Policy::Touch), (Policy::Small, Policy::Always)]
    {
        let (Some(base), Some(at)) = (of(speeds, baseline), of(speeds, this)) else { continue };
        let cells = cells(dims, base, at);
        for (cell, which) in worst_and_best(&cells).into_iter().flatten().zip(["worst", "best"]) {
            let Some(nth) = dims.iter().position(|dim| *dim == cell.dim) else { continue };
            let samples = (base[cell.stride][nth].as_slice(), at[cell.stride][nth].as_slice());
            let what = format!("{which}: {}, dimension {}", STRIDES[cell.stride], cell.dim);
            let versus = Versus { baseline: baseline.name(), this: this.name() };
            report.compare(&what, Unit::MibPerSecond, Better::More, versus, samples);
            match (baseline, this, which) {
                (Policy::Always, _, "worst") => report.target(Target::NotWorse),
                (Policy::Small, Policy::Touch, "best") => report.target(Target::AtLeast(2.0)),
                _ => {}
            }
        }
        if baseline == Policy::Always && options.pairs >= PAIRS_MIN {
            let worse = count(&cells, Verdict::Worse) as f64;
            report.figure("touch worse than always, cells", Unit::Count, Some(worse), Some(Target::AtMost(0.0)));
            report.note(format!(
                "A cell is one dimension with one stride. Of {} cells of two equal ways, {:.1} or some more come out worse by chance.",
                cells.len(),
                cells.len() as f64 * 0.025
            ));
        }
    }
    report.table(
        "Each way over all dimensions, ratio of the throughput (median over rounds):",
        over_dimensions(dims, speeds),
    );
    report.table("Whole processes:", side_by_side::table(runs, ""));
    report.note("The paper: about 2x on a Celeron, at best 5x to 6x on a Pentium 4; with losses at some dimensions.");
    report.file("transpose-curves.svg", curves(dims, speeds));
    report.file("transpose-ratio.svg", heat_map(&ratios(dims, speeds)));
    report.sample("dimensions", dims);
    report.sample("strides", STRIDES);
    report.sample("mib_per_s", speeds);
    report
}

fn over_dimensions(dims: &[usize], speeds: &[(Policy, Speeds)]) -> Table {
    let mut table =
        Table::new(["", "over", "median", "worst cell", "", "best cell", "", "better", "no difference", "worse"]);
    for (policy, this) in speeds {
        for baseline in side_by_side::BASELINES {
            let Some(base) = of(speeds, baseline).filter(|_| baseline != *policy) else { continue };
            let cells = cells(dims, base, this);
            let Some([worst, best]) = worst_and_best(&cells) else { continue };
            let all: Vec<f64> = cells.iter().map(|cell| cell.found.ratio).collect();
            let at = |cell: Cell| format!("{} {}", STRIDES[cell.stride], cell.dim);
            table.row([
                policy.name().to_owned(),
                baseline.name().to_owned(),
                format!("{:.3}", median(&all).unwrap_or(f64::NAN)),
                at(worst),
                ratio_with_interval(Some(worst.found)),
                at(best),
                ratio_with_interval(Some(best.found)),
                count(&cells, Verdict::Better).to_string(),
                count(&cells, Verdict::NoDifference).to_string(),
                count(&cells, Verdict::Worse).to_string(),
            ]);
        }
    }
    table
}

/// The paper's figure 9: throughput over the dimension, a chart for each stride.
fn curves(dims: &[usize], speeds: &[(Policy, Speeds)]) -> String {
    let chart = |stride: usize| Chart {
        title: format!("Matrix transposition, {}", STRIDES[stride]),
        x_label: "dimension".into(),
        y_label: "MiB/s".into(),
        series: speeds
            .iter()
            .map(|(policy, speeds)| Series {
                name: policy.to_string(),
                points: dims
                    .iter()
                    .zip(&speeds[stride])
                    .map(|(dim, rounds)| (*dim as f64, median(rounds).unwrap_or(f64::NAN)))
                    .collect(),
            })
            .collect(),
    };
    grid("Matrix transposition: throughput", &[chart(0), chart(1)], 2)
}

/// The paper's figures 10 and 11: the ratio over the dimension, a row for each way and stride.
fn ratios(dims: &[usize], speeds: &[(Policy, Speeds)]) -> HeatMap {
    let pairs = speeds.iter().flat_map(|(policy, this)| {
        // Against 4 KiB pages all of them; against the kernel's own setting only masu's.
        let baselines = side_by_side::BASELINES.into_iter();
        let baselines = baselines.filter(|baseline| *baseline == Policy::Small || policy.of_masu().is_some());
        baselines.filter(move |baseline| baseline != policy).map(move |baseline| (*policy, this, baseline))
    });
    let rows = pairs.filter_map(|(policy, this, baseline)| {
        let cells = cells(dims, of(speeds, baseline)?, this);
        let row = |stride: usize| {
            let of_dim = |dim: &usize| cells.iter().find(|cell| cell.stride == stride && cell.dim == *dim);
            let ratios = dims.iter().map(|dim| of_dim(dim).map_or(f64::NAN, |cell| cell.found.ratio)).collect();
            (format!("{policy} / {baseline}, {}", STRIDES[stride].trim_end_matches(" stride")), ratios)
        };
        Some([row(0), row(1)])
    });
    HeatMap {
        title: "Matrix transposition: throughput, ratio".into(),
        x_label: "dimension".into(),
        columns: dims.iter().map(usize::to_string).collect(),
        rows: rows.flatten().collect(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn powers_of_two_odd_and_even_dimensions_are_met() {
        assert_eq!(dimensions(64, 128, 4), [64, 65, 81, 96, 113, 128]);
        let published = dimensions(64, 6145, 8);
        assert!((6..=12).all(|bits| published.contains(&(1 << bits))));
        assert!(published.iter().filter(|dim| *dim % 2 == 1).count() > 20, "{published:?}");
        assert!((50..=70).contains(&published.len()), "{published:?}");
    }

    fn speeds(of: [[f64; 2]; 2]) -> Speeds {
        of.map(|stride| stride.map(|speed| vec![speed; 6]).to_vec())
    }

    #[test]
    fn the_worst_and_the_best_place_are_found_by_their_ratio() {
        let cells = cells(&[64, 65], &speeds([[1.0, 2.0], [4.0, 4.0]]), &speeds([[1.0, 1.0], [12.0, 4.0]]));
        let [worst, best] = worst_and_best(&cells).unwrap();
        assert_eq!((worst.stride, worst.dim, worst.found.ratio), (0, 65, 0.5));
        assert_eq!((best.stride, best.dim, best.found.ratio), (1, 64, 3.0));
        let verdicts = [Verdict::Better, Verdict::NoDifference, Verdict::Worse].map(|verdict| count(&cells, verdict));
        assert_eq!(verdicts, [1, 2, 1]);
    }

    #[test]
    fn lines_are_taken_in_order_and_others_are_refused() {
        let line = |dim| format!("dim={dim} load_mib_per_s=1.5 store_mib_per_s=2 checksum={}", dim * 10);
        let mut taken: Speeds = [vec![Vec::new(); 2], vec![Vec::new(); 2]];
        assert_eq!(take_lines(&[line(64), line(65)], &[64, 65], &mut taken).unwrap(), [640, 650]);
        assert_eq!(taken, [vec![vec![1.5]; 2], vec![vec![2.0]; 2]]);
        assert!(take_lines(&[line(65), line(64)], &[64, 65], &mut taken).is_err());
        assert!(take_lines(&[line(64)], &[64, 65], &mut taken).is_err());
    }

    #[test]
    fn each_way_has_a_row_for_each_stride_and_baseline() {
        let all = [Policy::Small, Policy::Always, Policy::Touch].map(|policy| (policy, speeds([[1.0, 2.0]; 2])));
        let map = ratios(&[64, 65], &all);
        let names: Vec<&str> = map.rows.iter().map(|(name, _)| name.as_str()).collect();
        let wanted = ["always / 4k, load", "always / 4k, store", "touch / 4k, load", "touch / 4k, store"];
        assert_eq!(names[..4], wanted);
        assert_eq!(names[4..], ["touch / always, load", "touch / always, store"]);
        assert!(map.rows.iter().all(|(_, ratios)| ratios == &[1.0, 1.0]));
        assert_eq!(over_dimensions(&[64, 65], &all).to_string().lines().count(), 1 + 4);
    }

    proptest! {
        #[test]
        fn dimensions_rise_within_their_bounds(from in 2usize..5000, more in 0usize..5000, per_octave in 1usize..20) {
            let dims = dimensions(from, from + more, per_octave);
            prop_assert!(dims.windows(2).all(|pair| pair[0] < pair[1]));
            prop_assert!(dims[0] == from && dims[dims.len() - 1] == from + more);
        }
    }
}
