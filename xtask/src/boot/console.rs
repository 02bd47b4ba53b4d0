//! Serial output of a virtual machine, and the verdict whether it passed.

use std::process::ExitStatus;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::tally::Tally;

/// Printed by the first program before the facts of its kernel.
const BACKENDS: &str = "BACKENDS ";
/// Printed before its result, which comes last.
const RESULT: &str = "LIVE-RESULT ";

/// Words of a kernel message that mean a fault in the kernel, also when the tests pass.
const KERNEL_TROUBLE: &[&str] = &[
    "BUG:",
    "Oops",
    "Kernel panic",
    "general protection fault",
    "WARNING: CPU",
    "blocked for more than",
    "stall on CPU",
];

/// A machine's serial line, from start to end.
#[derive(Debug, Default)]
pub struct Console {
    lines: Vec<String>,
    /// Exit status of the emulator; `None` when it had to be ended.
    pub exit: Option<ExitStatus>,
    /// The limit that it went over.
    pub over_time: Option<Duration>,
    /// From start to end.
    pub took: Duration,
}

/// A machine that came to its end by itself.
#[derive(Debug)]
pub struct Report {
    /// Its tests.
    pub tally: Tally,
    /// The facts of its kernel.
    pub backends: Value,
    /// From start to power-off.
    pub took: Duration,
}

impl Console {
    /// Notes a line.
    pub fn add(&mut self, line: String) {
        self.lines.push(line);
    }

    /// Passed tests are not enough: some must have run, the kernel must not have complained, it must have had the page
    /// tables we asked for, and the machine must have switched itself off.
    pub fn verdict(&self, levels: u8) -> Result<Report> {
        if let Some(limit) = self.over_time {
            bail!("the machine did not switch itself off within {} s", limit.as_secs());
        }
        if let Some(trouble) = self.lines.iter().find(|line| is_kernel_trouble(line)) {
            bail!("the kernel complained: {trouble}");
        }
        let exit = self.exit.context("the emulator's end was not seen")?;
        ensure!(exit.success(), "the emulator failed: {exit}");
        let result = self.tagged(RESULT)?;
        let count = |name: &str| result[name].as_u64().with_context(|| format!("no number of {name} tests"));
        let tally = Tally { passed: count("passed")?, failed: count("failed")?, skipped: count("skipped")? };
        ensure!(tally.passed + tally.failed > 0, "no test ran");
        let backends = self.tagged(BACKENDS)?;
        let found = backends["facts"]["page_table_levels"].as_u64();
        ensure!(found == Some(u64::from(levels)), "asked for {levels}-level page tables, got {found:?}");
        Ok(Report { tally, backends, took: self.took })
    }

    fn tagged(&self, tag: &str) -> Result<Value> {
        // The kernel may print in the middle of our line's beginning; the tag then stands further in.
        let line = self.lines.iter().rev().find_map(|line| line.split_once(tag).map(|(_, rest)| rest));
        let line = line.with_context(|| format!("the machine ended without a line {}", tag.trim()))?;
        serde_json::from_str(line).with_context(|| format!("cannot understand {tag}{line}"))
    }
}

/// Kernel messages begin with a time in brackets; a test may print such words itself.
fn is_kernel_trouble(line: &str) -> bool {
    line.trim_start().starts_with('[') && KERNEL_TROUBLE.iter().any(|word| line.contains(word))
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use super::*;

    const GOOD: &[&str] = &[
        "[    0.000000] Linux version 6.1.0",
        r#"BACKENDS {"facts":{"page_table_levels":4}}"#,
        "test a ... ok",
        r#"LIVE-RESULT {"passed":3,"failed":0,"skipped":1}"#,
        "[    3.100000] reboot: Power down",
    ];

    fn console(lines: &[&str]) -> Console {
        Console {
            lines: lines.iter().map(|&line| line.to_owned()).collect(),
            exit: Some(ExitStatus::from_raw(0)),
            ..Console::default()
        }
    }

    fn complaint(console: &Console) -> String {
        console.verdict(4).unwrap_err().to_string()
    }

    #[test]
    fn a_machine_that_ran_its_tests_and_switched_itself_off_passes() {
        let report = console(GOOD).verdict(4).unwrap();
        assert_eq!(report.tally, Tally { passed: 3, failed: 0, skipped: 1 });
        assert_eq!(report.backends["facts"]["page_table_levels"], 4);
    }

    #[test]
    fn a_machine_that_hangs_or_ends_without_a_result_fails() {
        let hung = Console { exit: None, over_time: Some(Duration::from_secs(9)), ..console(GOOD) };
        assert_eq!(complaint(&hung), "the machine did not switch itself off within 9 s");
        assert_eq!(complaint(&console(&GOOD[..3])), "the machine ended without a line LIVE-RESULT");
        let crashed = Console { exit: Some(ExitStatus::from_raw(256)), ..console(GOOD) };
        assert!(complaint(&crashed).contains("the emulator failed"));
    }

    #[test]
    fn no_test_at_all_is_a_failure() {
        let none = [GOOD[1], r#"LIVE-RESULT {"passed":0,"failed":0,"skipped":9}"#];
        assert_eq!(complaint(&console(&none)), "no test ran");
    }

    #[test]
    fn a_kernel_that_complains_fails_also_when_all_tests_passed() {
        let mut lines = GOOD.to_vec();
        lines.insert(2, "[    2.000000] BUG: Bad page state in process live-tests");
        assert!(complaint(&console(&lines)).contains("Bad page state"));
        lines[2] = "a test that prints BUG: itself";
        assert!(console(&lines).verdict(4).is_ok());
    }

    #[test]
    fn the_wrong_number_of_page_table_levels_is_a_failure() {
        assert!(console(GOOD).verdict(5).unwrap_err().to_string().contains("asked for 5-level"));
    }

    #[test]
    fn failed_tests_are_counted_not_hidden() {
        let lines = [GOOD[1], r#"LIVE-RESULT {"passed":2,"failed":1,"skipped":0}"#];
        assert_eq!(console(&lines).verdict(4).unwrap().tally.failed, 1);
    }
}
