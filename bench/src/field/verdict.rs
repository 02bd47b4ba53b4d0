//! Comparison of a run under masu with the run alone.

use std::fmt;

use serde::Serialize;

use super::cell::Outcome;
use super::entry::{Apart, Entry, Feature};

/// Result of one run under masu.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Output and exit status are those of the run alone.
    Equal,
    /// masu refused the start, as it must.
    Refused,
    /// Not run.
    LeftOut,
    /// Another output, another end, or a complaint of masu.
    Failed,
}

/// One run under masu.
#[derive(Clone, Debug, Serialize)]
pub struct Cell {
    /// Feature that it ran under.
    pub feature: Feature,
    /// Result.
    pub verdict: Verdict,
    /// Reason or difference; empty when equal.
    pub text: String,
    /// Wall time; `None` if it was not run.
    pub seconds: Option<f64>,
}

/// All runs of one program.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Its name.
    pub name: String,
    /// Its version, as it prints it.
    pub version: String,
    /// Programs that are not installed, or why its input could not be made.
    pub missing: Option<String>,
    /// End of the run alone.
    pub alone: String,
    /// Wall time alone.
    pub alone_s: f64,
    /// Bytes of output that were compared.
    pub output_bytes: usize,
    /// Runs under masu.
    pub cells: Vec<Cell>,
}

impl Row {
    /// The row of a program that ran alone.
    pub fn new(entry: &Entry, version: &[u8], alone: &Outcome) -> Row {
        Row {
            name: entry.name.to_owned(),
            version: first_line(version),
            missing: None,
            alone: alone.ended.clone(),
            alone_s: alone.seconds,
            output_bytes: alone.output.len(),
            cells: Vec::new(),
        }
    }

    /// The row of a program that is not installed.
    pub fn without_runs(entry: &Entry, missing: String) -> Row {
        Row {
            name: entry.name.to_owned(),
            version: String::new(),
            missing: Some(missing),
            alone: String::new(),
            alone_s: 0.0,
            output_bytes: 0,
            cells: Vec::new(),
        }
    }

    /// Whether a run failed: alone, under masu, or in having no output to compare.
    pub fn failed(&self) -> bool {
        let alone = self.missing.is_none() && (self.alone != "status 0" || self.output_bytes == 0);
        alone || self.cells.iter().any(|cell| cell.verdict == Verdict::Failed)
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(missing) = &self.missing {
            return write!(f, "{:<24} left out: {missing}", self.name);
        }
        let (alone, bytes) = (&self.alone, self.output_bytes);
        write!(
            f,
            "{:<24} {}\n    alone: {alone}, {:.1} s, {bytes} bytes of output",
            self.name, self.version, self.alone_s
        )?;
        for cell in &self.cells {
            let word = match cell.verdict {
                Verdict::Equal => "ok",
                Verdict::Refused => "refused",
                Verdict::LeftOut => "left out",
                Verdict::Failed => "FAILED",
            };
            write!(f, "\n    {}: {word}", cell.feature.heading())?;
            if let Some(seconds) = cell.seconds {
                write!(f, ", {seconds:.1} s")?;
            }
            if !cell.text.is_empty() {
                write!(f, ": {}", cell.text)?;
            }
        }
        Ok(())
    }
}

/// The cell of a feature under which `entry` does not run.
pub fn not_run(entry: &Entry, feature: Feature) -> Option<Cell> {
    match entry.apart(feature) {
        Some(Apart::LeftOut(reason)) => {
            Some(Cell { feature, verdict: Verdict::LeftOut, text: reason.to_owned(), seconds: None })
        }
        _ => None,
    }
}

/// Compares the run under `feature` with the run `alone`.
pub fn compare(entry: &Entry, feature: Feature, alone: &Outcome, under: &Outcome) -> Cell {
    let cell = |verdict, text| Cell { feature, verdict, text, seconds: Some(under.seconds) };
    if let Some(Apart::Refused(reason)) = entry.apart(feature) {
        let refused = under.code == Some(125) && under.complaint.contains(reason);
        let text = format!("{}: {}", under.ended, under.complaint);
        return cell(if refused { Verdict::Refused } else { Verdict::Failed }, text);
    }
    // masu attach begins after 0.6 s, and needs a look or two.
    if under.masu.too_late || (feature == Feature::Attach && entry.client.is_none() && under.seconds < 1.0) {
        return Cell { seconds: None, ..cell(Verdict::LeftOut, "it ends too soon".to_owned()) };
    }
    if let Some(complaint) = &under.masu.complaint {
        return cell(Verdict::Failed, complaint.clone());
    }
    if under.ended != alone.ended {
        return cell(Verdict::Failed, format!("{} instead of {}: {}", under.ended, alone.ended, under.complaint));
    }
    match difference(&alone.output, &under.output) {
        Some(text) => cell(Verdict::Failed, text),
        None => cell(Verdict::Equal, String::new()),
    }
}

/// The first line in which two outputs differ.
fn difference(alone: &[u8], under: &[u8]) -> Option<String> {
    if alone == under {
        return None;
    }
    let lines = |output| String::from_utf8_lossy(output).lines().map(str::to_owned).collect::<Vec<_>>();
    let (alone, under) = (lines(alone), lines(under));
    let at = alone.iter().zip(&under).take_while(|(one, other)| one == other).count();
    let line = |lines: &[String]| lines.get(at).map_or("no line".to_owned(), |line| line.chars().take(120).collect());
    Some(format!("line {} of the output: {} instead of {}", at + 1, line(&under), line(&alone)))
}

/// First line, for a table.
fn first_line(output: &[u8]) -> String {
    let text = String::from_utf8_lossy(output);
    text.lines().next().unwrap_or_default().trim().replace('|', "/").chars().take(60).collect()
}

#[cfg(test)]
mod tests {
    use super::super::cell::Beside;
    use super::super::entry::BATCH;
    use super::*;

    fn outcome(output: &str, code: i32) -> Outcome {
        Outcome {
            output: output.as_bytes().to_vec(),
            ended: format!("status {code}"),
            code: Some(code),
            complaint: "masu: cannot page it: static".to_owned(),
            seconds: 1.0,
            masu: Beside::default(),
        }
    }

    fn verdict(entry: &Entry, under: &Outcome) -> (Verdict, String) {
        let cell = compare(entry, Feature::Local, &outcome("a\nb\n", 0), under);
        (cell.verdict, cell.text)
    }

    #[test]
    fn only_the_same_bytes_and_the_same_status_are_equal() {
        assert_eq!(verdict(&BATCH, &outcome("a\nb\n", 0)), (Verdict::Equal, String::new()));
        let said = "line 2 of the output: c instead of b".to_owned();
        assert_eq!(verdict(&BATCH, &outcome("a\nc\n", 0)), (Verdict::Failed, said));
        let said = "line 2 of the output: no line instead of b".to_owned();
        assert_eq!(verdict(&BATCH, &outcome("a\n", 0)), (Verdict::Failed, said));
        assert_eq!(verdict(&BATCH, &outcome("a\nb\n", 1)).0, Verdict::Failed);
        let complaint = Outcome {
            masu: Beside { complaint: Some("attach: status 2".to_owned()), too_late: false },
            ..outcome("a\nb\n", 0)
        };
        assert_eq!(verdict(&BATCH, &complaint), (Verdict::Failed, "attach: status 2".to_owned()));
    }

    #[test]
    fn a_refusal_counts_only_with_its_status_and_its_reason() {
        let refused = Entry { apart: &[(Feature::Local, Apart::Refused("static"))], ..BATCH };
        assert_eq!(verdict(&refused, &outcome("", 125)).0, Verdict::Refused);
        assert_eq!(verdict(&refused, &outcome("a\nb\n", 0)).0, Verdict::Failed, "it runs: the table is out of date");
        let other = Entry { apart: &[(Feature::Local, Apart::Refused("set-uid"))], ..BATCH };
        assert_eq!(verdict(&other, &outcome("", 125)).0, Verdict::Failed);
    }
}
