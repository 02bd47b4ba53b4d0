//! Counting tests by the closing lines of their runners.

use std::fmt;
use std::ops::AddAssign;

/// Number of tests that passed, failed and were skipped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Passed.
    pub passed: u64,
    /// Failed.
    pub failed: u64,
    /// Skipped, each with a reason that was printed.
    pub skipped: u64,
}

impl Tally {
    /// Counts the tests of libtest's closing line: `test result: ok. 12 passed; 0 failed; 1 ignored; …`.
    pub fn of_line(line: &str) -> Option<Tally> {
        let (_, counts) = line.trim().strip_prefix("test result: ")?.split_once(". ")?;
        let count = |what: &str| -> Option<u64> {
            let part = counts.split(';').find(|part| part.trim_end().ends_with(what))?;
            part.trim().strip_suffix(what)?.trim().parse().ok()
        };
        Some(Tally { passed: count("passed")?, failed: count("failed")?, skipped: count("ignored")? })
    }

    /// One failure that no runner counted: a step that did not come to its end.
    pub fn one_failure() -> Tally {
        Tally { failed: 1, ..Tally::default() }
    }
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Tally) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} passed, {} failed, {} skipped", self.passed, self.failed, self.skipped)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libtests_closing_line_is_counted() {
        let line = "test result: FAILED. 12 passed; 2 failed; 1 ignored; 0 measured; 3 filtered out; finished in 0.06s";
        assert_eq!(Tally::of_line(line), Some(Tally { passed: 12, failed: 2, skipped: 1 }));
        assert_eq!(
            Tally::of_line("test result: ok. 1 passed; 0 failed; 0 ignored\r"),
            Some(Tally { passed: 1, ..Tally::default() })
        );
    }

    #[test]
    fn other_lines_are_not() {
        assert_eq!(Tally::of_line("test a ... ok"), None);
        assert_eq!(Tally::of_line("test result: ok. nothing to see"), None);
    }

    #[test]
    fn sums_print_as_one_line() {
        let mut sum = Tally { passed: 3, failed: 0, skipped: 2 };
        sum += Tally::one_failure();
        assert_eq!(sum.to_string(), "3 passed, 1 failed, 2 skipped");
    }
}
