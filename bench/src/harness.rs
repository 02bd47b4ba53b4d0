//! The frame of every benchmark: conditions, measurement in turns, comparison with a baseline, report.
//!
//! A benchmark declares its arguments, its conditions, one function that measures once, and its metrics:
//!
//! ```text
//! choices! {
//!     /// Protection of the service's pages.
//!     pub enum Way {
//!         Kernel = "kernel", "kernel alone";                      // name for --ways, title in tables
//!         Masu = "masu-100", "masu --mapped 100";
//!         Vmtouch = "vmtouch", "vmtouch -l", needs "vmtouch";     // skipped with a note where it is not installed
//!     }
//! }
//!
//! #[derive(Serialize)]
//! struct Sample { wake_s: f64, core_fraction: Option<f64> }       // all raw samples are saved
//!
//! pub fn run(session: &Session, options: &Options) -> Result<()> {
//!     let mut runs = Runs::default();
//!     let ways = runs.available(&options.ways);
//!     runs.measure(session, options.pairs, "", &ways, |turn| once(turn.way))?;
//!     let mut report = Report::new("idle-service", title, &session.host);
//!     let wake = Metric::less("wake-up", Unit::Seconds, |run: &Sample| run.wake_s);
//!     let cpu = Metric::less("processor time of masu, of a core", Unit::Fraction, |run: &Sample| run.core_fraction);
//!     runs.compare(&mut report, &runs.against(Way::Kernel), &[wake.target(Way::Masu, Target::AtMost(1.0))]);
//!     runs.figures(&mut report, &[cpu.target(Way::Masu, Target::AtMost(0.01))]);
//!     runs.table(&mut report, "All runs, medians:", &[Column::median("wake-up", Unit::Seconds, |run| run.wake_s)]);
//!     report.note("The service wakes right after the stream.");
//!     runs.finish(report, session)
//! }
//! ```
//!
//! A benchmark with several programs, servers or sizes calls `measure` once per subject (`measure_cells` interleaves
//! subjects too). Subjects name lines and rows. A metric returns `f64` or `Option<f64>`; a line without any value is
//! left out. Fixed conditions need no enum: `["smaps", "masu"]` is a list of ways.

use anyhow::{Context, Result};
use serde::Serialize;
use serde_json::json;

use crate::pairs::{Better, median, turns};
use crate::report::{Report, Target, Unit, Versus};
use crate::session::Session;
use crate::table::Table;
use crate::tools::on_path;

/// A choice on the command line: a condition, a program, a server.
pub trait Choice: Copy + PartialEq {
    /// Name on the command line and in files.
    fn name(self) -> &'static str;

    /// Name in tables.
    fn title(self) -> &'static str {
        self.name()
    }

    /// Program that must be installed; its Debian package has the same name.
    fn needs(self) -> Option<&'static str> {
        None
    }
}

impl Choice for &'static str {
    fn name(self) -> &'static str {
        self
    }
}

/// Declares an enum of choices with name, title and needed program, for clap, serde and [`Choice`].
#[macro_export]
macro_rules! choices {
    ($(#[$meta:meta])* $vis:vis enum $Enum:ident {
        $($Variant:ident = $name:literal, $title:literal $(, needs $program:literal)?;)*
    }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        $vis enum $Enum { $(#[doc = $title] $Variant,)* }

        impl $crate::harness::Choice for $Enum {
            fn name(self) -> &'static str {
                match self { $($Enum::$Variant => $name,)* }
            }

            fn title(self) -> &'static str {
                match self { $($Enum::$Variant => $title,)* }
            }

            fn needs(self) -> Option<&'static str> {
                match self { $($Enum::$Variant => [$($program,)?].first().copied(),)* }
            }
        }

        impl clap::ValueEnum for $Enum {
            fn value_variants<'a>() -> &'a [Self] {
                &[$($Enum::$Variant,)*]
            }

            fn to_possible_value(&self) -> Option<clap::builder::PossibleValue> {
                use $crate::harness::Choice as _;
                let value = clap::builder::PossibleValue::new(self.name());
                Some(if self.title() == self.name() { value } else { value.help(self.title()) })
            }
        }

        impl std::fmt::Display for $Enum {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str($crate::harness::Choice::name(*self))
            }
        }

        impl serde::Serialize for $Enum {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str($crate::harness::Choice::name(*self))
            }
        }
    };
}

/// One measurement to be made.
#[derive(Clone, Copy, Debug)]
pub struct Turn<W> {
    /// Round, from 0.
    pub round: usize,
    /// Index of the condition (of the cell, in [`Runs::measure_cells`]).
    pub nth: usize,
    /// Condition.
    pub way: W,
}

/// Samples of one subject under one condition, one per round.
#[derive(Debug)]
pub struct Row<W, S> {
    /// Program, server or size; empty where a benchmark has one.
    pub subject: String,
    /// Condition.
    pub way: W,
    /// Samples in the order of the rounds.
    pub samples: Vec<S>,
}

/// All samples of a benchmark.
#[derive(Debug)]
pub struct Runs<W, S> {
    rows: Vec<Row<W, S>>,
    skipped: Vec<String>,
}

impl<W, S> Default for Runs<W, S> {
    fn default() -> Self {
        Runs { rows: Vec::new(), skipped: Vec::new() }
    }
}

impl<W: Choice, S> Runs<W, S> {
    /// Removes the choices whose program is not installed, and names them in a note.
    pub fn available<C: Choice>(&mut self, wanted: &[C]) -> Vec<C> {
        let (mut found, mut missing) = (Vec::new(), Vec::new());
        for &choice in wanted {
            match choice.needs().filter(|program| on_path(program).is_none()) {
                None => found.push(choice),
                Some(program) => missing.push(program),
            }
        }
        for program in missing {
            self.skip(program, format!("it is not installed (Debian: {program})"));
        }
        found
    }

    /// Notes that `what` was not measured.
    pub fn skip(&mut self, what: impl std::fmt::Display, why: impl std::fmt::Display) {
        self.skipped.push(format!("skipped: {what}: {why}"));
    }

    /// Measures `subject` under all `ways` in turns, `rounds` times, in the order ABBA. Samples of the same subject and
    /// condition are added to those of an earlier call.
    ///
    /// # Errors
    /// When a measurement fails, or we are interrupted.
    pub fn measure(
        &mut self,
        session: &Session,
        rounds: usize,
        subject: &str,
        ways: &[W],
        once: impl FnMut(Turn<W>) -> Result<S>,
    ) -> Result<()> {
        let cells = ways.iter().map(|way| (subject.to_owned(), *way)).collect();
        self.measure_cells(session, rounds, cells, once)
    }

    /// As [`Runs::measure`], with the subjects in turns as well.
    ///
    /// # Errors
    /// When a measurement fails, or we are interrupted.
    pub fn measure_cells(
        &mut self,
        session: &Session,
        rounds: usize,
        cells: Vec<(String, W)>,
        mut once: impl FnMut(Turn<W>) -> Result<S>,
    ) -> Result<()> {
        let places: Vec<usize> = cells.into_iter().map(|(subject, way)| self.place(subject, way)).collect();
        for (round, nth) in turns(rounds, places.len()) {
            session.stop.check()?;
            let row = &mut self.rows[places[nth]];
            let name = label(&row.subject, row.way.title());
            session.progress(&format!("round {} of {rounds}: {name}", round + 1));
            let sample = once(Turn { round, nth, way: row.way }).with_context(|| name)?;
            row.samples.push(sample);
        }
        Ok(())
    }

    /// Index of a row, which may have samples of an earlier measurement already.
    fn place(&mut self, subject: String, way: W) -> usize {
        let found = self.rows.iter().position(|row| row.subject == subject && row.way == way);
        found.unwrap_or_else(|| {
            self.rows.push(Row { subject, way, samples: Vec::new() });
            self.rows.len() - 1
        })
    }

    /// Adds samples that were measured otherwise.
    pub fn push(&mut self, subject: impl Into<String>, way: W, samples: Vec<S>) {
        self.rows.push(Row { subject: subject.into(), way, samples });
    }

    /// Samples by subject and condition.
    pub fn rows(&self) -> &[Row<W, S>] {
        &self.rows
    }

    /// Samples of `subject` under `way`; empty when there are none.
    pub fn of(&self, subject: &str, way: W) -> &[S] {
        let row = self.rows.iter().find(|row| row.subject == subject && row.way == way);
        row.map_or(&[], |row| &row.samples)
    }

    /// Median of `value` over the samples of `subject` under `way`.
    pub fn median<V: Into<Option<f64>>>(&self, subject: &str, way: W, value: impl Fn(&S) -> V) -> Option<f64> {
        median_of(self.of(subject, way), value)
    }

    /// `baseline` with each other condition.
    pub fn against(&self, baseline: W) -> Vec<(W, W)> {
        let mut pairs = Vec::new();
        for Row { way, .. } in &self.rows {
            if *way != baseline && !pairs.contains(&(baseline, *way)) {
                pairs.push((baseline, *way));
            }
        }
        pairs
    }

    fn subjects(&self) -> Vec<&str> {
        let mut subjects: Vec<&str> = Vec::new();
        for Row { subject, .. } in &self.rows {
            if !subjects.contains(&subject.as_str()) {
                subjects.push(subject);
            }
        }
        subjects
    }

    /// Compares pairs of conditions (baseline first) by each metric. A pair without values is left out, or is named as
    /// not measured where it has a target against this baseline.
    pub fn compare(&self, report: &mut Report, pairs: &[(W, W)], metrics: &[Metric<'_, W, S>]) {
        for &(baseline, this) in pairs {
            let versus = Versus { baseline: baseline.title(), this: this.title() };
            for subject in self.subjects() {
                for metric in metrics {
                    let values = [baseline, this].map(|way| metric.values(self.of(subject, way)));
                    let is_unknown = values.iter().any(|values| values.iter().all(|value| value.is_nan()));
                    let is_measured = values.iter().all(|values| !values.is_empty());
                    if is_unknown && !(is_measured && metric.has_target_against(baseline, this)) {
                        continue;
                    }
                    let what = label(subject, &metric.what);
                    report.compare(&what, metric.unit, metric.better, versus, (&values[0], &values[1]));
                    if let Some(target) = metric.target_of(Some(baseline), this) {
                        report.target(target);
                    }
                }
            }
        }
    }

    /// Adds the median of each metric in each row that has values of it, or a target for it.
    pub fn figures(&self, report: &mut Report, metrics: &[Metric<'_, W, S>]) {
        for metric in metrics {
            for row in &self.rows {
                let (value, target) = (median_of(&row.samples, &metric.value), metric.target_of(None, row.way));
                if value.is_some() || target.is_some() {
                    let what = format!("{}: {}", label(&row.subject, row.way.title()), metric.what);
                    report.figure(&what, metric.unit, value, target);
                }
            }
        }
    }

    /// Adds a table with a line for each row.
    pub fn table(&self, report: &mut Report, heading: &str, columns: &[Column<'_, S>]) {
        report.table(heading, self.as_table(columns));
    }

    /// A line for each row: subject, where there is one, condition, and the given columns.
    pub fn as_table(&self, columns: &[Column<'_, S>]) -> Table {
        let named = usize::from(self.rows.iter().any(|row| !row.subject.is_empty()));
        let names = std::iter::repeat_n("", 1 + named).chain(columns.iter().map(|column| column.head.as_str()));
        let mut table = Table::new(names);
        let mut before = "";
        for row in &self.rows {
            let subject = if row.subject == before { "" } else { &row.subject };
            before = &row.subject;
            let names = [subject, row.way.title()].map(str::to_owned).into_iter().skip(1 - named);
            table.row(names.chain(columns.iter().map(|column| (column.cell)(&row.samples))));
        }
        table
    }
}

impl<W: Choice, S: Serialize> Runs<W, S> {
    /// Adds the notes on skipped conditions and all samples to the report; prints and saves it.
    ///
    /// # Errors
    /// When it cannot be saved.
    pub fn finish(&self, mut report: Report, session: &Session) -> Result<()> {
        self.skipped.iter().for_each(|note| report.note(note));
        report.sample("runs", self.samples());
        report.finish(session.save)
    }

    /// All samples, for a file.
    pub fn samples(&self) -> serde_json::Value {
        let row = |row: &Row<W, S>| json!({ "subject": row.subject, "way": row.way.name(), "samples": row.samples });
        self.rows.iter().map(row).collect()
    }
}

type Value<'a, S> = Box<dyn Fn(&S) -> Option<f64> + 'a>;
type Cell<'a, S> = Box<dyn Fn(&[S]) -> String + 'a>;

/// A number of a sample, with its desired direction and its targets.
pub struct Metric<'a, W, S> {
    what: String,
    unit: Unit,
    better: Better,
    value: Value<'a, S>,
    targets: Vec<(Option<W>, W, Target)>,
}

impl<'a, W: Choice, S> Metric<'a, W, S> {
    /// More is better. `what` may be empty where the subject says it all.
    pub fn more<V: Into<Option<f64>>>(what: impl Into<String>, unit: Unit, value: impl Fn(&S) -> V + 'a) -> Self {
        Metric::new(what.into(), unit, Better::More, value)
    }

    /// Less is better.
    pub fn less<V: Into<Option<f64>>>(what: impl Into<String>, unit: Unit, value: impl Fn(&S) -> V + 'a) -> Self {
        Metric::new(what.into(), unit, Better::Less, value)
    }

    fn new<V: Into<Option<f64>>>(what: String, unit: Unit, better: Better, value: impl Fn(&S) -> V + 'a) -> Self {
        Metric { what, unit, better, value: Box::new(move |sample| value(sample).into()), targets: Vec::new() }
    }

    /// Target of `way`: for the ratio in a comparison, for the value in a figure.
    #[must_use]
    pub fn target(mut self, way: W, target: Target) -> Self {
        self.targets.push((None, way, target));
        self
    }

    /// Target of `way` compared with `baseline`.
    #[must_use]
    pub fn target_against(mut self, baseline: W, way: W, target: Target) -> Self {
        self.targets.push((Some(baseline), way, target));
        self
    }

    fn target_of(&self, baseline: Option<W>, way: W) -> Option<Target> {
        let fits = |(of, this, _): &&(Option<W>, W, Target)| *this == way && (of.is_none() || *of == baseline);
        self.targets.iter().find(fits).map(|(_, _, target)| *target)
    }

    fn has_target_against(&self, baseline: W, way: W) -> bool {
        self.targets.iter().any(|(of, this, _)| *of == Some(baseline) && *this == way)
    }

    fn values(&self, samples: &[S]) -> Vec<f64> {
        samples.iter().map(|sample| (self.value)(sample).unwrap_or(f64::NAN)).collect()
    }
}

/// A column of a table over the samples of a row.
pub struct Column<'a, S> {
    head: String,
    cell: Cell<'a, S>,
}

impl<'a, S> Column<'a, S> {
    /// Any text.
    pub fn new(head: impl Into<String>, cell: impl Fn(&[S]) -> String + 'a) -> Self {
        Column { head: head.into(), cell: Box::new(cell) }
    }

    /// Median of the samples that have a value, or a dash.
    pub fn median<V: Into<Option<f64>>>(head: impl Into<String>, unit: Unit, value: impl Fn(&S) -> V + 'a) -> Self {
        Column::new(head, move |samples| or_dash(unit, median_of(samples, &value)))
    }
}

/// Median of the samples that have a value.
pub fn median_of<S, V: Into<Option<f64>>>(samples: &[S], value: impl Fn(&S) -> V) -> Option<f64> {
    median(&samples.iter().filter_map(|sample| value(sample).into()).collect::<Vec<f64>>())
}

/// The value in its unit, or a dash.
pub fn or_dash(unit: Unit, value: Option<f64>) -> String {
    value.map_or_else(|| "–".into(), |value| unit.print(value))
}

fn label(subject: &str, what: &str) -> String {
    match (subject, what) {
        ("", only) | (only, "") => only.to_owned(),
        _ => format!("{subject}, {what}"),
    }
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum as _;

    use super::*;
    use crate::host::Host;

    choices! {
        /// Conditions of the tests.
        enum Way {
            Kernel = "kernel", "kernel alone";
            Masu = "masu-100", "masu --mapped 100";
            Other = "other", "another tool", needs "no-such-program-anywhere";
        }
    }

    type Sample = (f64, Option<f64>);

    fn runs(subjects: &[&str]) -> Runs<Way, Sample> {
        let mut runs = Runs::default();
        for subject in subjects {
            runs.push(*subject, Way::Kernel, vec![(2.0, None); 6]);
            runs.push(*subject, Way::Masu, vec![(1.0, Some(0.5)); 6]);
        }
        runs
    }

    fn report(add: impl FnOnce(&mut Report)) -> String {
        let mut report = Report::new("example", "example", &Host::here());
        add(&mut report);
        report.to_string()
    }

    #[test]
    fn a_choice_has_one_name_on_the_command_line_and_in_files() {
        for way in Way::value_variants() {
            assert_eq!(Way::from_str(&way.to_string(), false), Ok(*way));
            assert_eq!(json!(way), way.name());
        }
        assert_eq!((Way::Masu.name(), Way::Masu.title(), Way::Masu.needs()), ("masu-100", "masu --mapped 100", None));
    }

    #[test]
    fn a_missing_program_is_skipped_with_its_package() {
        let mut runs: Runs<Way, Sample> = Runs::default();
        assert_eq!(runs.available(&[Way::Other, Way::Masu]), [Way::Masu]);
        let wanted = "no-such-program-anywhere: it is not installed (Debian: no-such-program-anywhere)";
        assert_eq!(runs.skipped, [format!("skipped: {wanted}")]);
    }

    #[test]
    fn conditions_are_measured_in_turns_and_a_failure_names_its_condition() {
        let session = Session::begin(None, false, false).unwrap();
        let (mut runs, mut order) = (Runs::default(), Vec::new());
        let once = |turn: Turn<Way>| {
            order.push(turn.way.name());
            Ok((turn.round, turn.nth))
        };
        runs.measure(&session, 2, "x", &[Way::Kernel, Way::Masu], once).unwrap();
        assert_eq!(order, ["kernel", "masu-100", "masu-100", "kernel"]);
        assert_eq!(runs.of("x", Way::Masu), [(0, 1), (1, 1)]);
        runs.measure(&session, 1, "x", &[Way::Masu], |turn| Ok((turn.round, turn.nth))).unwrap();
        assert_eq!(runs.of("x", Way::Masu), [(0, 1), (1, 1), (0, 0)]);
        let fail = |_| anyhow::bail!("no memory");
        let said = runs.measure(&session, 1, "x", &[Way::Masu], fail).unwrap_err();
        assert_eq!(format!("{said:#}"), "x, masu --mapped 100: no memory");
    }

    #[test]
    fn each_condition_is_compared_with_its_baseline_by_metric_and_subject() {
        let runs = runs(&["a", "b"]);
        let speed = Metric::more("speed", Unit::Seconds, |run: &Sample| run.0);
        let metrics = [speed.target_against(Way::Kernel, Way::Masu, Target::NotWorse)];
        let text = report(|report| runs.compare(report, &runs.against(Way::Kernel), &metrics));
        let lines: Vec<&str> = text.lines().filter(|line| line.contains(", speed")).collect();
        assert_eq!(lines.len(), 2, "{text}");
        assert!(
            lines[1].starts_with("b, speed") && lines[1].ends_with("more is better: worse   target: not worse: missed")
        );
        assert!(text.contains("kernel alone   masu --mapped 100"), "{text}");
    }

    #[test]
    fn a_line_without_values_is_left_out() {
        let runs = runs(&[""]);
        let cpu = || [Metric::less("cpu", Unit::Fraction, |run: &Sample| run.1).target(Way::Masu, Target::AtMost(0.1))];
        let text = report(|report| runs.compare(report, &[(Way::Kernel, Way::Masu), (Way::Other, Way::Masu)], &cpu()));
        assert!(!text.contains("cpu"), "{text}");
        let text = report(|report| runs.figures(report, &cpu()));
        assert!(text.contains("masu --mapped 100: cpu   50.000 %   target ≤ 10.000 %: missed"), "{text}");
        assert!(!text.contains("kernel alone"), "{text}");
    }

    #[test]
    fn a_target_without_values_is_named_as_not_measured() {
        let mut runs = runs(&["b"]);
        runs.push("a", Way::Masu, vec![(1.0, None); 6]);
        runs.push("a", Way::Kernel, vec![(2.0, None); 6]);
        runs.push("b", Way::Other, vec![(1.0, None); 6]);
        let cpu = || Metric::less("cpu", Unit::Fraction, |run: &Sample| run.1);
        let text = report(|report| runs.figures(report, &[cpu().target(Way::Masu, Target::AtMost(0.1))]));
        assert!(text.contains("a, masu --mapped 100: cpu   not measured") && !text.contains("kernel"), "{text}");
        let against = cpu().target_against(Way::Kernel, Way::Masu, Target::NotWorse);
        let text = report(|report| runs.compare(report, &runs.against(Way::Kernel), &[against]));
        let lines: Vec<&str> = text.lines().filter(|line| line.contains(", cpu")).collect();
        assert!(lines.len() == 2 && lines.iter().all(|line| line.contains("not measured")), "{text}");
    }

    #[test]
    fn a_table_names_a_subject_once_and_shows_a_dash_for_no_value() {
        let columns = [
            Column::median("time", Unit::Seconds, |run: &Sample| run.0),
            Column::median("cpu", Unit::Fraction, |run: &Sample| run.1),
            Column::new("runs", |runs: &[Sample]| runs.len().to_string()),
        ];
        let wanted = "                          time        cpu   runs\n\
                      a   kernel alone        2.00 s          –      6\n    \
                      masu --mapped 100   1.00 s   50.000 %      6\n";
        assert_eq!(runs(&["a"]).as_table(&columns).to_string(), wanted);
        assert!(runs(&[""]).as_table(&columns).to_string().contains("\nkernel alone        2.00 s"));
    }

    #[test]
    fn all_samples_are_saved_by_name() {
        let wanted = json!({ "subject": "a", "way": "masu-100", "samples": vec![(1.0, Some(0.5)); 6] });
        assert_eq!(runs(&["a"]).samples()[1], wanted);
    }
}
