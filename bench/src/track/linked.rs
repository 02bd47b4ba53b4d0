//! Cost of libmasu in a program when no tracker is running: instructions, by valgrind, and time.

use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde::Serialize;

use super::Options;
use super::programs::{Programs, WAYS};
use crate::children::describe;
use crate::harness::{Metric, Runs};
use crate::report::{Report, Target, Unit};
use crate::session::Session;
use crate::table::Table;
use crate::tools::on_path;
use crate::workload::Reply;

/// Rounds of the program's work that are counted, and that are timed.
const COUNTED: [u64; 2] = [1, 11];
const TIMED: u64 = 20;

/// Command that counts instructions.
const COUNT: [&str; 3] = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null"];

/// Instructions of one way of building it.
#[derive(Clone, Copy, Debug, Serialize)]
struct Instructions {
    /// Instructions from start to end with little work.
    little: u64,
    /// Instructions with ten rounds more.
    much: u64,
}

/// Results by the ways of building it.
#[derive(Debug)]
pub struct Linked {
    /// `None` where valgrind is not installed.
    instructions: Option<Vec<Instructions>>,
    seconds: Runs<&'static str, f64>,
}

/// Has it counted and timed.
///
/// # Errors
/// When a program fails or comes to another result, or we are interrupted.
pub fn measure(session: &Session, programs: &Programs, options: &Options) -> Result<Linked> {
    let instructions = on_path(COUNT[0]).is_some().then(|| count(session, programs)).transpose()?;
    let mut seconds = Runs::default();
    let mut checksum: Option<String> = None;
    seconds.measure(session, options.pairs, "the same work", &WAYS, |turn| {
        let (reply, _) = finished(&mut programs.linked(turn.nth, &[], TIMED))?;
        let found = reply.text("checksum")?;
        let wanted = checksum.get_or_insert_with(|| found.to_owned());
        ensure!(found == wanted, "the same work came to different results: {wanted}, {found}");
        reply.number("seconds")
    })?;
    Ok(Linked { instructions, seconds })
}

fn count(session: &Session, programs: &Programs) -> Result<Vec<Instructions>> {
    let counted = |nth: usize, rounds: u64| -> Result<u64> {
        session.stop.check()?;
        let (_, errors) = finished(&mut programs.linked(nth, &COUNT, rounds))?;
        collected(&errors).with_context(|| format!("valgrind did not say how many instructions: {errors}"))
    };
    session.progress("counting instructions");
    (0..WAYS.len())
        .map(|nth| Ok(Instructions { little: counted(nth, COUNTED[0])?, much: counted(nth, COUNTED[1])? }))
        .collect()
}

/// Output of the program, and the last lines of its standard error.
fn finished(command: &mut Command) -> Result<(Reply, String)> {
    let output = command.stdin(Stdio::null()).output().context("cannot start a program")?;
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(output.status.success(), "a program {}: {errors}", describe(output.status));
    Ok((Reply::of(String::from_utf8_lossy(&output.stdout).trim_end()), errors))
}

/// `==12== Collected : 123456`
fn collected(said: &str) -> Option<u64> {
    said.lines().find_map(|line| line.split_once("Collected : ")?.1.trim().parse().ok())
}

impl Linked {
    /// Adds it to the report.
    pub fn tell(&self, report: &mut Report) {
        if let Some(all) = &self.instructions {
            let rounds = (COUNTED[1] - COUNTED[0]) as f64;
            let mut table = Table::new(["", "start and end", "more than without", "each round of work", "ratio"]);
            let work = |one: &Instructions| (one.much - one.little) as f64 / rounds;
            let start = |one: &Instructions| one.little as f64 - work(one);
            for (name, one) in WAYS.iter().zip(all) {
                table.row([
                    (*name).to_owned(),
                    Unit::Count.print(start(one)),
                    Unit::Count.print(start(one) - start(&all[0])),
                    Unit::Count.print(work(one)),
                    format!("{:.6}", work(one) / work(&all[0])),
                ]);
            }
            report.table("Instructions of a program where no tracker is running:", table);
        } else {
            report.note("Instructions were not counted: valgrind is not installed (Debian: valgrind).");
        }
        let work = Metric::less("no tracker", Unit::Seconds, |seconds: &f64| *seconds)
            .target(WAYS[1], Target::NotWorse)
            .target(WAYS[2], Target::NotWorse);
        self.seconds.compare(report, &self.seconds.against(WAYS[0]), &[work]);
        report.sample("linked_s", self.seconds.samples());
        report.sample("instructions", &self.instructions);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_valgrind_counted_is_found_among_its_words() {
        let said = "==12== Events    : Ir\n==12== Collected : 123456\n==12==\n";
        assert_eq!((collected(said), collected("==12== bye\n")), (Some(123_456), None));
    }
}
