//! Failures by name, each with its first line of output. They are printed once more at the end, since a log that was
//! cut short still has its end.

use std::sync::{Mutex, PoisonError};

static NOTED: Mutex<Vec<Failure>> = Mutex::new(Vec::new());

/// Failures that are named.
const MOST: usize = 40;

/// Characters of a failure's output.
const LONGEST: usize = 300;

struct Failure {
    /// Prefix of the virtual machine; empty for this machine.
    machine: String,
    name: String,
    why: Option<String>,
    /// Its output comes next.
    is_saying: bool,
}

impl Failure {
    fn line(&self) -> String {
        let machine = if self.machine.is_empty() { String::new() } else { format!("{}: ", self.machine) };
        let why = self.why.as_ref().map(|why| format!(": {why}")).unwrap_or_default();
        format!("FAILED {machine}{}{why}\n", self.name)
    }
}

/// Notes the failed test that a line of a runner names, or its reason. `machine` ran it; empty for this machine.
pub fn look(machine: &str, line: &str) {
    let mut noted = NOTED.lock().unwrap_or_else(PoisonError::into_inner);
    look_in(&mut noted, machine, line.trim());
}

/// Notes something that failed.
pub fn note(what: String) {
    let mut noted = NOTED.lock().unwrap_or_else(PoisonError::into_inner);
    add(&mut noted, "", &what);
}

/// All failures, a line for each.
pub fn text() -> String {
    text_of(&NOTED.lock().unwrap_or_else(PoisonError::into_inner))
}

fn look_in(noted: &mut Vec<Failure>, machine: &str, line: &str) {
    if let Some(name) = result_of(line) {
        add(noted, machine, name);
    } else if let Some(name) = heading_of(line) {
        let at = add(noted, machine, name);
        for (other, failure) in noted.iter_mut().enumerate().filter(|(_, failure)| failure.machine == machine) {
            failure.is_saying = other == at;
        }
    } else if let Some(failure) = noted.iter_mut().find(|failure| failure.is_saying && failure.machine == machine)
        && !line.is_empty()
        && !is_place(line)
    {
        failure.why = Some(line.chars().take(LONGEST).collect());
        failure.is_saying = false;
    }
}

/// Its index among them.
fn add(noted: &mut Vec<Failure>, machine: &str, name: &str) -> usize {
    let known = noted.iter().position(|failure| failure.machine == machine && failure.name == name);
    known.unwrap_or_else(|| {
        noted.push(Failure { machine: machine.to_owned(), name: name.to_owned(), why: None, is_saying: false });
        noted.len() - 1
    })
}

fn text_of(noted: &[Failure]) -> String {
    let lines = noted.iter().take(MOST).map(Failure::line);
    let more = noted.len().saturating_sub(MOST);
    lines.chain((more > 0).then(|| format!("and {more} more\n"))).collect()
}

/// `test NAME ... FAILED`.
fn result_of(line: &str) -> Option<&str> {
    line.strip_prefix("test ")?.strip_suffix("... FAILED").map(str::trim)
}

/// `---- NAME stdout ----`, or `---- NAME ----`: above the output of a failed test.
fn heading_of(line: &str) -> Option<&str> {
    let name = line.strip_prefix("---- ")?.strip_suffix(" ----")?;
    Some(name.strip_suffix(" stdout").unwrap_or(name).trim())
}

/// `thread 'NAME' (NUMBER) panicked at PLACE:`, above the words.
fn is_place(line: &str) -> bool {
    line.starts_with("thread '") && line.contains(" panicked at ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text_after(lines: &[(&str, &str)]) -> String {
        let mut noted = Vec::new();
        for (machine, line) in lines {
            look_in(&mut noted, machine, line.trim());
        }
        text_of(&noted)
    }

    #[test]
    fn a_test_that_failed_is_known_by_its_line() {
        assert_eq!(text_after(&[("", "test run::a_test          ... FAILED\r")]), "FAILED run::a_test\n");
        assert_eq!(text_after(&[("", "---- store::tests::a_test stdout ----")]), "FAILED store::tests::a_test\n");
        for other in ["test run::a_test ... ok", "test result: FAILED. 1 passed; 2 failed", "FAILED", "----"] {
            assert_eq!(text_after(&[("", other)]), "", "{other}");
        }
    }

    #[test]
    fn each_is_named_once() {
        let line = "test run::twice ... FAILED";
        let text = text_after(&[("6.1/4", line), ("6.1/4", line), ("", line)]);
        assert_eq!(text, "FAILED 6.1/4: run::twice\nFAILED run::twice\n");
    }

    #[test]
    fn the_first_line_of_what_it_said_is_told_with_it() {
        let libtest = [
            ("", "test a::one ... FAILED"),
            ("", "---- a::one stdout ----"),
            ("", ""),
            ("", "thread 'a::one' (71) panicked at a.rs:3:5:"),
            ("", "the words"),
            ("", "more words"),
        ];
        assert_eq!(text_after(&libtest), "FAILED a::one: the words\n");
        // Two machines at once, whose lines come between each other's.
        let two = [
            ("6.1/4", "---- b ----"),
            ("6.12/4", "---- b ----"),
            ("6.1/4", "test panicked: 1"),
            ("6.12/4", "test panicked: 2"),
            ("6.1/4", "---- c ----"),
            ("6.1/4", "---- d ----"),
            ("6.1/4", "of d"),
        ];
        let told = "FAILED 6.1/4: b: test panicked: 1\nFAILED 6.12/4: b: test panicked: 2\nFAILED 6.1/4: c\nFAILED 6.1/4: d: of d\n";
        assert_eq!(text_after(&two), told);
    }
}
