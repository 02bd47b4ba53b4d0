//! Findings of a benchmark: printed side by side with its baseline and its target, and saved with the raw samples.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::host::Host;
use crate::pairs::{Better, Comparison, Difference, Verdict};
use crate::table::Table;
use units::spread::Random;

/// The unit of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// Events per second.
    PerSecond,
    /// MiB per second.
    MibPerSecond,
    /// Bytes.
    Bytes,
    /// Seconds.
    Seconds,
    /// Milliseconds.
    Milliseconds,
    /// Microseconds.
    Microseconds,
    /// Nanoseconds.
    Nanoseconds,
    /// A part of a whole.
    Fraction,
    /// A count.
    Count,
    /// A factor.
    Times,
}

impl Unit {
    /// `value` as people read it.
    pub fn print(self, value: f64) -> String {
        match self {
            Unit::PerSecond if value >= 1e6 => format!("{:.3} M/s", value / 1e6),
            Unit::PerSecond if value >= 1e3 => format!("{:.1} k/s", value / 1e3),
            Unit::PerSecond => format!("{value:.1} /s"),
            Unit::MibPerSecond => format!("{value:.0} MiB/s"),
            // Always in MiB: one column shows a difference of one percent.
            Unit::Bytes => format!("{:.1} MiB", value / f64::from(1 << 20)),
            Unit::Seconds => format!("{value:.2} s"),
            Unit::Milliseconds => format!("{value:.3} ms"),
            Unit::Microseconds => format!("{value:.1} us"),
            Unit::Nanoseconds => format!("{value:.1} ns"),
            Unit::Fraction => format!("{:.3} %", value * 100.0),
            Unit::Count => format!("{value:.0}"),
            Unit::Times => format!("{value:.2}x"),
        }
    }
}

/// Target of a figure. Printed beside it; a benchmark never fails by it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Target {
    /// At least this value.
    AtLeast(f64),
    /// At most this value.
    AtMost(f64),
    /// For a comparison: its interval touches 1, or lies on the better side of it.
    NotWorse,
}

impl Target {
    const fn is_met(self, value: f64) -> bool {
        match self {
            Target::AtLeast(bound) => value >= bound,
            Target::AtMost(bound) => value <= bound,
            Target::NotWorse => false, // one value has no interval
        }
    }

    fn print(self, value: f64, unit: impl Fn(f64) -> String) -> String {
        let (sign, bound) = match self {
            Target::AtLeast(bound) => ('≥', bound),
            Target::AtMost(bound) => ('≤', bound),
            Target::NotWorse => return "target: not worse".into(),
        };
        format!("target {sign} {}: {}", unit(bound), if self.is_met(value) { "met" } else { "missed" })
    }

    /// As [`Target::print`], for the ratio of a comparison whose verdict is known.
    fn print_ratio(self, found: &Comparison, verdict: Verdict) -> String {
        match (self, verdict) {
            (Target::NotWorse, Verdict::TooFewPairs) => "target: not worse".into(),
            (Target::NotWorse, Verdict::Worse) => "target: not worse: missed".into(),
            (Target::NotWorse, Verdict::Better | Verdict::NoDifference) => "target: not worse: met".into(),
            _ => self.print(found.ratio, |bound| bound.to_string()),
        }
    }
}

/// Names of two conditions: of the first column of figures, and of the second.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Versus {
    /// The baseline.
    pub baseline: &'static str,
    /// Condition that is compared with it.
    pub this: &'static str,
}

#[derive(Debug, Serialize)]
struct Compared {
    what: String,
    versus: Versus,
    unit: Unit,
    target: Option<Target>,
    found: Found,
    baseline_samples: Vec<f64>,
    this_samples: Vec<f64>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "snake_case")]
enum Found {
    Ratio { better: Better, comparison: Option<Comparison> },
    Difference(Option<Difference>),
}

impl Found {
    const fn kind(&self) -> &'static str {
        match self {
            Found::Ratio { .. } => "ratio",
            Found::Difference(_) => "difference",
        }
    }
}

#[derive(Debug, Serialize)]
struct Figure {
    what: String,
    unit: Unit,
    value: Option<f64>,
    target: Option<Target>,
}

/// All that one benchmark found.
#[derive(Debug)]
pub struct Report {
    name: String,
    title: String,
    host: Host,
    compared: Vec<Compared>,
    figures: Vec<Figure>,
    tables: Vec<(String, Table)>,
    notes: Vec<String>,
    samples: Map<String, Value>,
    files: Vec<(String, String)>,
}

impl Report {
    /// An empty report of the benchmark `name`, headed by `title`.
    pub fn new(name: impl Into<String>, title: impl Into<String>, host: &Host) -> Report {
        Report {
            name: name.into(),
            title: title.into(),
            host: host.clone(),
            compared: Vec::new(),
            figures: Vec::new(),
            tables: Vec::new(),
            notes: Vec::new(),
            samples: Map::new(),
            files: Vec::new(),
        }
    }

    /// Adds a comparison of paired samples, baseline first.
    pub fn compare(
        &mut self,
        what: &str,
        unit: Unit,
        better: Better,
        versus: Versus,
        samples: (&[f64], &[f64]),
    ) -> &mut Self {
        // A fixed seed: the same samples give the same interval, today and from the saved file.
        let comparison = Comparison::of(samples.0, samples.1, &mut Random::seeded(1));
        self.add(what, unit, versus, samples, Found::Ratio { better, comparison })
    }

    /// Adds a difference of paired samples, baseline first.
    pub fn differ(&mut self, what: &str, unit: Unit, versus: Versus, samples: (&[f64], &[f64])) -> &mut Self {
        let difference = Difference::of(samples.0, samples.1, &mut Random::seeded(1));
        self.add(what, unit, versus, samples, Found::Difference(difference))
    }

    fn add(&mut self, what: &str, unit: Unit, versus: Versus, samples: (&[f64], &[f64]), found: Found) -> &mut Self {
        let (what, baseline_samples, this_samples) = (what.to_owned(), samples.0.to_vec(), samples.1.to_vec());
        self.compared.push(Compared { what, versus, unit, target: None, found, baseline_samples, this_samples });
        self
    }

    /// Target of the comparison added last.
    pub fn target(&mut self, target: Target) {
        if let Some(last) = self.compared.last_mut() {
            last.target = Some(target);
        }
    }

    /// Adds a single figure; `None` where it could not be had.
    pub fn figure(&mut self, what: &str, unit: Unit, value: Option<f64>, target: Option<Target>) {
        self.figures.push(Figure { what: what.to_owned(), unit, value, target });
    }

    /// Adds a table of its own under a heading.
    pub fn table(&mut self, heading: &str, table: Table) {
        self.tables.push((heading.to_owned(), table));
    }

    /// Adds a sentence that a reader needs to understand the figures.
    pub fn note(&mut self, note: impl Into<String>) {
        self.notes.push(note.into());
    }

    /// Keeps raw values for the saved file.
    pub fn sample(&mut self, name: &str, value: impl Serialize) {
        self.samples.insert(name.to_owned(), serde_json::to_value(value).unwrap_or(Value::Null));
    }

    /// Adds a file, such as a plot, to be saved beside the samples.
    pub fn file(&mut self, name: &str, content: String) {
        self.files.push((name.to_owned(), content));
    }

    /// Prints it, and saves it to `docs/results/NAME/` when asked to.
    ///
    /// # Errors
    /// When it cannot be saved.
    pub fn finish(&self, save: bool) -> Result<()> {
        print!("{self}");
        if save {
            let folder = repository().context("cannot save to docs/results")?.join("docs/results").join(&self.name);
            self.save_to(&folder)?;
            println!("saved to {}", folder.display());
            return Ok(());
        }
        for (name, content) in &self.files {
            let path = std::env::current_exe()?.with_file_name(name);
            fs::write(&path, content).with_context(|| format!("cannot write {}", path.display()))?;
            println!("drawn: {}", path.display());
        }
        Ok(())
    }

    fn save_to(&self, folder: &Path) -> Result<()> {
        fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
        let mut text = serde_json::to_string_pretty(&self.to_json())?;
        text.push('\n');
        let all = [("samples.json", text.as_str()), ("table.txt", &self.to_string())];
        let files = self.files.iter().map(|(name, content)| (name.as_str(), content.as_str()));
        for (name, content) in all.into_iter().chain(files) {
            let path = folder.join(name);
            fs::write(&path, content).with_context(|| format!("cannot write {}", path.display()))?;
        }
        Ok(())
    }

    fn to_json(&self) -> Value {
        let command: Vec<String> = std::env::args().skip(1).collect(); // "all" when it ran all of them
        json!({
            "benchmark": self.name,
            "command": format!("masu-bench {}", command.join(" ")),
            "commit": commit(),
            "unix_time_s": SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs()),
            "host": self.host,
            "comparisons": self.compared,
            "figures": self.figures,
            "notes": self.notes,
            "samples": self.samples,
        })
    }

    fn print_compared(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for group in self.compared.chunk_by(|a, b| (a.versus, a.found.kind()) == (b.versus, b.found.kind())) {
            let Versus { baseline, this } = group[0].versus;
            let mut table = Table::new(["", baseline, this, group[0].found.kind(), "95 % interval", "", ""]);
            for line in group {
                table.row(line.cells());
            }
            write!(f, "\n{table}")?;
        }
        Ok(())
    }
}

/// Three digits, and more where these would all be 1.000.
fn ratio(value: f64) -> String {
    if (value - 1.0).abs() < 0.0095 && value != 1.0 { format!("{value:.5}") } else { format!("{value:.3}") }
}

impl Compared {
    fn pairs(&self) -> Option<usize> {
        match &self.found {
            Found::Ratio { comparison, .. } => comparison.map(|found| found.pairs),
            Found::Difference(difference) => difference.map(|found| found.pairs),
        }
    }

    fn cells(&self) -> Vec<String> {
        let print = |value| self.unit.print(value);
        let what = self.what.clone();
        match &self.found {
            Found::Ratio { comparison: None, .. } | Found::Difference(None) => {
                [what].into_iter().chain(["–", "–", "–", "–", "not measured"].map(str::to_owned)).collect()
            }
            Found::Difference(Some(found)) => vec![
                what,
                print(found.baseline),
                print(found.this),
                print(found.difference),
                format!("{} … {}", print(found.difference_low), print(found.difference_high)),
                self.target.map_or_else(String::new, |target| target.print(found.difference, print)),
            ],
            Found::Ratio { better, comparison: Some(found) } => {
                let verdict = found.verdict(*better);
                let wanted = if *better == Better::More { "more is better" } else { "less is better" };
                vec![
                    what,
                    print(found.baseline),
                    print(found.this),
                    ratio(found.ratio),
                    format!("{} … {}", ratio(found.ratio_low), ratio(found.ratio_high)),
                    format!("{wanted}: {}", verdict.words()),
                    self.target.map_or_else(String::new, |target| target.print_ratio(found, verdict)),
                ]
            }
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pairs = self.compared.iter().filter_map(Compared::pairs).max();
        writeln!(f, "{}", self.title)?;
        write!(f, "host: {}", self.host)?;
        match pairs {
            Some(pairs) => writeln!(f, "      {pairs} pairs, order ABBA")?,
            None => writeln!(f)?,
        }
        self.print_compared(f)?;
        for (heading, table) in &self.tables {
            write!(f, "\n{heading}\n{table}")?;
        }
        if !self.figures.is_empty() {
            let mut table = Table::new(["", "", ""]);
            for figure in &self.figures {
                let value = figure.value.map_or_else(|| "not measured".to_owned(), |value| figure.unit.print(value));
                let target =
                    figure.target.zip(figure.value).map(|(t, value)| t.print(value, |bound| figure.unit.print(bound)));
                table.row([figure.what.clone(), value, target.unwrap_or_default()]);
            }
            write!(f, "{table}")?; // its head is empty: the line between it and the text above
        }
        if !self.notes.is_empty() {
            writeln!(f)?;
        }
        for note in &self.notes {
            writeln!(f, "{note}")?;
        }
        Ok(())
    }
}

/// The folder of the repository that this program was built in, or that it runs in.
///
/// # Errors
/// When it runs elsewhere.
pub fn repository() -> Result<PathBuf> {
    let exe = std::env::current_exe()?;
    let here = std::env::current_dir()?;
    let holds_us = |folder: &&Path| folder.join("bench/Cargo.toml").exists();
    let found = here.ancestors().chain(exe.ancestors()).find(holds_us);
    found.map(Path::to_owned).context("run this inside the repository")
}

/// The commit measured, with `-modified` when the files differ from it.
fn commit() -> String {
    let git = |arguments: &[&str]| {
        let output = Command::new("git").current_dir(repository().ok()?).args(arguments).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let modified = git(&["status", "--porcelain", "--untracked-files=no"]).is_some_and(|list| !list.is_empty());
    git(&["rev-parse", "HEAD"])
        .map_or_else(|| "unknown".into(), |commit| if modified { commit + "-modified" } else { commit })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        let host = Host {
            cores: 2,
            processor: "EPYC".into(),
            kernel: "6.12".into(),
            thp_enabled: "madvise".into(),
            thp_defrag: "madvise".into(),
            memory_bytes: units::Bytes::gib(24),
            swap_bytes: units::Bytes(0),
            load: 0.0,
        };
        let versus = Versus { baseline: "4 KiB", this: "masu" };
        let mut report = Report::new("example", "example: nothing at all", &host);
        report
            .compare("GET", Unit::PerSecond, Better::More, versus, (&[4e5; 6], &[5e5; 6]))
            .target(Target::AtLeast(0.99));
        report.compare("memory", Unit::Bytes, Better::Less, versus, (&[1048576.0; 6], &[1059061.0; 6]));
        report.figure("settled", Unit::Seconds, Some(12.0), Some(Target::AtMost(10.0)));
        report.figure("stall", Unit::Milliseconds, None, Some(Target::AtMost(1.0)));
        report
    }

    #[test]
    fn a_benefit_stands_beside_its_cost_and_its_target() {
        let wanted = "\
example: nothing at all
host: 2 cores (EPYC), Linux 6.12, THP madvise (defrag madvise), 24.00 GiB memory, no swap, load 0.0      6 pairs, order ABBA

             4 KiB        masu   ratio   95 % interval
GET      400.0 k/s   500.0 k/s   1.250   1.250 … 1.250   more is better: better   target ≥ 0.99: met
memory     1.0 MiB     1.0 MiB   1.010   1.010 … 1.010   less is better: worse

settled   12.00 s        target ≤ 10.00 s: missed
stall     not measured
";
        assert_eq!(report().to_string(), wanted);
    }

    #[test]
    fn a_difference_has_its_unit_everywhere() {
        let mut report = Report { compared: Vec::new(), figures: Vec::new(), ..report() };
        let versus = Versus { baseline: "true", this: "masu run" };
        report.differ("start and end", Unit::Milliseconds, versus, (&[1.0; 6], &[4.0; 6])).target(Target::AtMost(5.0));
        let wanted = "\
                    true   masu run   difference         95 % interval
start and end   1.000 ms   4.000 ms     3.000 ms   3.000 ms … 3.000 ms   target ≤ 5.000 ms: met
";
        let text = report.to_string();
        assert!(text.contains("6 pairs, order ABBA") && text.ends_with(wanted), "{text}");
    }

    #[test]
    fn what_must_not_be_worse_is_judged_by_its_interval() {
        let cases: [(&[f64], &str); 4] = [
            (&[0.9; 6], "not worse: missed"),
            (&[0.9, 1.1, 0.9, 1.1, 0.9, 1.0], "not worse: met"),
            (&[2.0; 6], "not worse: met"),
            (&[2.0; 2], "target: not worse"),
        ];
        for (this, wanted) in cases {
            let mut report = Report { compared: Vec::new(), ..report() };
            let versus = Versus { baseline: "always", this: "touch" };
            let baseline = vec![1.0; this.len()];
            report.compare("x", Unit::PerSecond, Better::More, versus, (&baseline, this)).target(Target::NotWorse);
            assert!(report.compared[0].cells()[6].ends_with(wanted), "{:?}", report.compared[0].cells());
        }
    }

    #[test]
    fn samples_host_and_commit_are_saved() {
        let folder = tempfile::tempdir().unwrap();
        let mut report = report();
        report.sample("raw", [1, 2]);
        report.file("plot.svg", "<svg/>".into());
        report.save_to(&folder.path().join("example")).unwrap();
        let text = fs::read_to_string(folder.path().join("example/samples.json")).unwrap();
        let saved: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(saved["samples"]["raw"], json!([1, 2]));
        assert_eq!(saved["comparisons"][0]["this_samples"].as_array().unwrap().len(), 6);
        assert_eq!(saved["host"]["cores"], 2);
        assert!(saved["commit"].is_string());
        assert!(folder.path().join("example/plot.svg").exists() && folder.path().join("example/table.txt").exists());
    }
}
