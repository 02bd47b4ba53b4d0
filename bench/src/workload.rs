//! Protocol between a benchmark and its workload programs: a line to standard input, a line back.
//!
//! A workload prints `ready …` once its memory is set up, answers each command with one line of `name=number` words,
//! and ends when its input is closed, so that none outlives the benchmark, even if that is killed.

use std::io::{self, BufRead, Write};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::children::{OwnChild, describe};
use crate::place::{Place, Processors};
use crate::stop::Stop;

/// A running workload, seen from the benchmark.
#[derive(Debug)]
pub struct Workload {
    child: OwnChild,
    ready: Reply,
}

/// Time limit of a workload for setting up its memory.
const READY_LIMIT: Duration = Duration::from_secs(300);

impl Workload {
    /// Starts the workload program `name`, which lies beside this one, and waits until it is ready.
    ///
    /// # Errors
    /// When it is not built, refuses its arguments, or we are interrupted.
    pub fn start(
        name: &str,
        arguments: &[String],
        processors: &Processors,
        place: Place,
        stop: &Stop,
    ) -> Result<Workload> {
        let path = std::env::current_exe()?.with_file_name(name);
        ensure!(path.exists(), "{} is not built. Run `cargo build --release -p bench` first.", path.display());
        let mut command = Command::new(path);
        command.args(arguments);
        Workload::greet(OwnChild::start(command, processors, place)?, name, stop)
    }

    /// Waits until `child`, which runs the workload program `name`, is ready.
    ///
    /// # Errors
    /// When it ends or prints something else, or we are interrupted.
    pub fn greet(mut child: OwnChild, name: &str, stop: &Stop) -> Result<Workload> {
        let line = child.line(READY_LIMIT, stop)?;
        let Some(rest) = line.strip_prefix("ready") else { bail!("{name} said `{line}` instead of `ready`") };
        Ok(Workload { ready: Reply(rest.to_owned()), child })
    }

    /// Process id.
    pub fn pid(&self) -> u32 {
        self.child.pid()
    }

    /// Reply at the start.
    pub const fn ready(&self) -> &Reply {
        &self.ready
    }

    /// Sends a command and waits for the answer.
    ///
    /// # Errors
    /// When it has ended, does not answer within `limit`, or we are interrupted.
    pub fn ask(&mut self, command: &str, limit: Duration, stop: &Stop) -> Result<Reply> {
        self.tell(command)?;
        self.answer(limit, stop)
    }

    /// Sends a command whose answer is fetched later with [`Workload::answer`].
    ///
    /// # Errors
    /// When it has ended.
    pub fn tell(&mut self, command: &str) -> Result<()> {
        if self.child.tell(command).is_err() {
            // The workload has ended; the last lines of its output say more than the broken pipe.
            self.child.line(Duration::from_secs(5), &Stop::default())?;
            bail!("a workload no longer listens");
        }
        Ok(())
    }

    /// Closes its input, at which it ends by itself, and waits for that.
    ///
    /// # Errors
    /// When it does not end within `limit`, or badly, or we are interrupted.
    pub fn end(mut self, limit: Duration, stop: &Stop) -> Result<()> {
        self.child.close_input();
        let ended = self.child.finish(limit, stop)?;
        let complaint = ended.errors.last().map_or("no message", String::as_str);
        ensure!(ended.status.success(), "a workload {}: {complaint}", describe(ended.status));
        Ok(())
    }

    /// Waits for the answer to a command sent before.
    ///
    /// # Errors
    /// When it has ended, does not answer within `limit`, or we are interrupted.
    pub fn answer(&mut self, limit: Duration, stop: &Stop) -> Result<Reply> {
        self.child.line(limit, stop).map(Reply)
    }
}

/// One line of `name=number` words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply(String);

impl Reply {
    /// A line that a workload printed.
    pub fn of(line: &str) -> Reply {
        Reply(line.to_owned())
    }

    /// The number called `name`. Addresses are written as `0x…`.
    ///
    /// # Errors
    /// When there is none.
    pub fn number(&self, name: &str) -> Result<f64> {
        self.text(name)?.parse().with_context(|| format!("`{}`: {name} is not a number", self.0))
    }

    /// The whole number or address called `name`.
    ///
    /// # Errors
    /// When there is none.
    pub fn whole(&self, name: &str) -> Result<u64> {
        let word = self.text(name)?;
        let parsed = word.strip_prefix("0x").map_or_else(|| word.parse(), |hex| u64::from_str_radix(hex, 16));
        parsed.with_context(|| format!("`{}`: {name} is not a whole number", self.0))
    }

    /// The word called `name`, as it was printed.
    ///
    /// # Errors
    /// When there is none.
    pub fn text(&self, name: &str) -> Result<&str> {
        let value = |word| str::split_once(word, '=').filter(|(key, _)| *key == name).map(|(_, value)| value);
        self.0.split_whitespace().find_map(value).with_context(|| format!("`{}` has no {name}", self.0))
    }
}

/// The workload's side: reports that it is ready, then answers commands until its input ends.
///
/// # Errors
/// When the benchmark no longer listens, or a command is not understood.
pub fn serve(ready: &str, mut answer: impl FnMut(&str) -> Result<String>) -> Result<()> {
    let mut output = io::stdout().lock();
    writeln!(output, "ready {ready}")?;
    output.flush()?;
    for line in io::stdin().lock().lines() {
        let reply = answer(line?.trim())?;
        writeln!(output, "{reply}")?;
        output.flush()?;
    }
    Ok(())
}

/// `main` of a workload: prints an error as one line and ends with status 2.
pub fn run(name: &str, body: impl FnOnce() -> Result<()>) -> std::process::ExitCode {
    match body() {
        Ok(()) => std::process::ExitCode::SUCCESS,
        // A benchmark that went away is a normal end.
        Err(error) if error.downcast_ref::<io::Error>().is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe) => {
            std::process::ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{name}: {error:#}");
            std::process::ExitCode::from(2)
        }
    }
}

/// The time that a command such as `run 2000` names, in milliseconds.
///
/// # Errors
/// When `text` is not a whole number.
pub fn milliseconds(text: &str) -> Result<Duration> {
    Ok(Duration::from_millis(text.trim().parse().with_context(|| format!("`{text}`: expected milliseconds"))?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_addresses_are_found_by_name() {
        let reply = Reply("start=0x7f0000200000 rate=12.5 start2=3".into());
        assert_eq!(reply.whole("start").unwrap(), 0x7f00_0020_0000);
        assert!((reply.number("rate").unwrap() - 12.5).abs() < 1e-12);
        assert_eq!(reply.number("speed").unwrap_err().to_string(), format!("`{}` has no speed", reply.0));
        assert!(reply.whole("rate").is_err());
    }
}
