//! The client: our own C program over libmemcached (`workloads/memcached/load.c`), compiled here with the system's gcc.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, bail, ensure};

use crate::children::OwnChild;
use crate::latency::Latency;
use crate::place::Place;
use crate::session::Session;
use crate::tools::{compile_c, on_path};
use crate::workload::{Reply, Workload};

const SOURCE: &str = include_str!("../../workloads/memcached/load.c");

/// Result of asking for some time.
#[derive(Clone, Copy, Debug, Default)]
pub struct Got {
    pub gets: f64,
    pub misses: f64,
    pub seconds: f64,
}

/// A connected client.
#[derive(Debug)]
pub struct Client {
    program: Workload,
}

/// Time limit of one command beyond its own duration.
const LIMIT: Duration = Duration::from_secs(300);

/// Items set, or compared, by one command: so that a signal is heard.
const STEP: u32 = 100_000;

/// The longest time for which one command asks for keys.
const PIECE: Duration = Duration::from_secs(1);

impl Client {
    /// Compiles the program.
    ///
    /// # Errors
    /// When gcc or libmemcached is not installed.
    pub fn compile() -> Result<PathBuf> {
        let folder = std::env::current_exe()?.with_file_name("memcached-workloads");
        if on_path("gcc").is_some() && !["/usr/include", "/usr/local/include"].iter().any(has_libmemcached) {
            bail!("libmemcached is not installed. On Debian: apt-get install libmemcached-dev.");
        }
        Ok(compile_c(&folder, "load", &[("load.c", SOURCE)], &[OsString::from("-lmemcached")])??)
    }

    /// Connects `connections` times to the server at `socket`, to ask for the drawn items.
    ///
    /// # Errors
    /// When the server does not answer.
    pub fn start(
        program: &Path,
        (socket, drawn): (&Path, &Path),
        (connections, value_bytes): (usize, usize),
        place: Place,
        session: &Session,
    ) -> Result<Client> {
        let mut command = Command::new(program);
        command.arg(socket).arg(drawn).args([connections.to_string(), value_bytes.to_string()]);
        let child = OwnChild::start(command, &session.processors, place)?;
        Ok(Client { program: Workload::greet(child, "load", &session.stop)? })
    }

    /// Process id.
    pub fn pid(&self) -> u32 {
        self.program.pid()
    }

    /// Sets the items `0..items`.
    ///
    /// # Errors
    /// When the server refuses, or we are interrupted.
    pub fn set(&mut self, items: u32, session: &Session) -> Result<()> {
        self.in_steps("set", items, session).map(|_| ())
    }

    /// Compares every byte of the items `0..items`; returns the number of missing items.
    ///
    /// # Errors
    /// When an item differs from its set value, or we are interrupted.
    pub fn check(&mut self, items: u32, session: &Session) -> Result<u64> {
        let replies = self.in_steps("check", items, session)?;
        replies.iter().map(|reply| reply.whole("missing")).sum()
    }

    fn in_steps(&mut self, command: &str, items: u32, session: &Session) -> Result<Vec<Reply>> {
        let steps = (0..items).step_by(STEP as usize);
        steps
            .map(|from| {
                let to = items.min(from.saturating_add(STEP));
                self.program.ask(&format!("{command} {from} {to}"), LIMIT, &session.stop)
            })
            .collect()
    }

    /// Asks for `keys` keys a request for `time`, one second at most.
    ///
    /// # Errors
    /// When a value is wrong, the server is gone, or we are interrupted.
    pub fn get(&mut self, keys: usize, time: Duration, session: &Session) -> Result<Got> {
        ensure!(time <= PIECE, "more than a second at once");
        let reply = self.program.ask(&format!("get {keys} {}", time.as_millis()), LIMIT, &session.stop)?;
        Ok(Got { gets: reply.number("gets")?, misses: reply.number("misses")?, seconds: reply.number("seconds")? })
    }

    /// Latency of all requests since the previous call.
    ///
    /// # Errors
    /// When the client is gone.
    pub fn latency(&mut self, session: &Session) -> Result<Latency> {
        Latency::of(&self.program.ask("latency", LIMIT, &session.stop)?)
    }
}

impl Got {
    /// Both together.
    #[must_use]
    pub fn and(self, more: Got) -> Got {
        Got { gets: self.gets + more.gets, misses: self.misses + more.misses, seconds: self.seconds + more.seconds }
    }

    /// Keys a second; 0 for nothing.
    pub fn per_s(self) -> f64 {
        if self.seconds > 0.0 { self.gets / self.seconds } else { 0.0 }
    }
}

fn has_libmemcached(folder: &&str) -> bool {
    Path::new(folder).join("libmemcached/memcached.h").exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_add_up() {
        let piece = Got { gets: 300.0, misses: 1.0, seconds: 2.0 };
        let both = piece.and(Got { gets: 100.0, misses: 0.0, seconds: 2.0 });
        assert!((both.per_s() - 100.0).abs() < 1e-12 && (both.misses - 1.0).abs() < 1e-12);
        assert!(Got::default().per_s().abs() < 1e-12);
    }
}
