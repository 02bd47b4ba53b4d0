//! What failed, by name: said once more at the end, where a log that was cut short still has it.

use std::sync::{Mutex, PoisonError};

static NOTED: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// So many are named.
const MOST: usize = 40;

/// Notes the test that a line of a runner says to have failed; `machine` ran it, where it was not this one.
pub fn look(machine: &str, line: &str) {
    if let Some(name) = of_line(line) {
        note(format!("{machine}{}{name}", if machine.is_empty() { "" } else { ": " }));
    }
}

/// Notes something that failed.
pub fn note(what: String) {
    let mut noted = NOTED.lock().unwrap_or_else(PoisonError::into_inner);
    if !noted.contains(&what) {
        noted.push(what);
    }
}

/// All of it, a line for each.
pub fn text() -> String {
    let noted = NOTED.lock().unwrap_or_else(PoisonError::into_inner);
    let lines = noted.iter().take(MOST).map(|what| format!("FAILED {what}\n"));
    let more = noted.len().saturating_sub(MOST);
    lines.chain((more > 0).then(|| format!("and {more} more\n"))).collect()
}

/// `test NAME ... FAILED`, or `---- NAME stdout ----` of a runner that says no more of each.
fn of_line(line: &str) -> Option<&str> {
    let line = line.trim();
    let failed = line.strip_prefix("test ").and_then(|rest| rest.strip_suffix("... FAILED"));
    failed.or_else(|| line.strip_prefix("---- ")?.strip_suffix(" stdout ----")).map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_that_failed_is_known_by_its_line() {
        assert_eq!(of_line("test run::a_test          ... FAILED\r"), Some("run::a_test"));
        assert_eq!(of_line("---- store::tests::a_test stdout ----"), Some("store::tests::a_test"));
        for other in ["test run::a_test ... ok", "test result: FAILED. 1 passed; 2 failed", "FAILED", "----"] {
            assert_eq!(of_line(other), None, "{other}");
        }
    }

    #[test]
    fn each_is_named_once() {
        look("6.1/4", "test run::twice ... FAILED");
        look("6.1/4", "test run::twice ... FAILED");
        look("", "test run::twice ... FAILED");
        let text = text();
        assert_eq!(text.matches("FAILED 6.1/4: run::twice\n").count(), 1, "{text}");
        assert_eq!(text.matches("FAILED run::twice\n").count(), 1, "{text}");
    }
}
