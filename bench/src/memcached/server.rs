//! A private memcached: one worker thread, on a Unix socket in its own folder, ended when dropped.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use tempfile::TempDir;

use crate::children::OwnChild;
use crate::place::Place;
use crate::report::repository;
use crate::session::Session;

/// memcached's statistics.
pub type Stats = BTreeMap<String, String>;

/// A running server.
#[derive(Debug)]
pub struct Server {
    // Dropped in this order: the program ends before its folder goes.
    child: OwnChild,
    folder: TempDir,
}

impl Server {
    /// Starts the memcached `program` with at most `memory_mib` MiB and further `arguments`, and waits until it
    /// answers.
    ///
    /// # Errors
    /// When it cannot be started, or exits with a message.
    pub fn start(
        program: &Path,
        memory_mib: u64,
        arguments: &[String],
        place: Place,
        session: &Session,
    ) -> Result<Server> {
        let folder = TempDir::with_prefix("masu-bench-memcached-").context("cannot create a folder for the server")?;
        let mut command = Command::new(program);
        command.arg("-s").arg(folder.path().join("socket"));
        command.args(["-t", "1", "-c", "128", "-U", "0", "-u", "root", "-m", &memory_mib.to_string()]).args(arguments);
        let mut child = OwnChild::start(command, &session.processors, place)?;
        let socket = folder.path().join("socket");
        child.await_answer(&session.stop, || stats(&socket, "").is_ok())?;
        Ok(Server { child, folder })
    }

    /// Process id.
    pub fn pid(&self) -> u32 {
        self.child.pid()
    }

    /// Path of its socket.
    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("socket")
    }

    /// Answer to `stats WHAT`.
    ///
    /// # Errors
    /// When the server has ended, or does not know that command.
    pub fn stats(&self, what: &str) -> Result<Stats> {
        stats(&self.socket(), what)
    }
}

fn stats(socket: &Path, what: &str) -> Result<Stats> {
    let mut stream = UnixStream::connect(socket).context("memcached does not listen")?;
    stream.set_read_timeout(Some(Duration::from_secs(30)))?;
    stream.write_all(format!("{}\r\n", format!("stats {what}").trim_end()).as_bytes())?;
    let mut stats = Stats::new();
    for line in BufReader::new(stream).lines() {
        let line = line.context("memcached hung up")?;
        match line.trim_end().strip_prefix("STAT ").map(|rest| rest.split_once(' ').unwrap_or((rest, ""))) {
            Some((name, value)) => stats.insert(name.to_owned(), value.to_owned()),
            None if line.trim_end() == "END" || line.trim_end() == "RESET" => return Ok(stats),
            None => bail!("memcached answered `{}` to stats {what}", line.trim_end()),
        };
    }
    bail!("memcached hung up")
}

/// The number called `name`.
///
/// # Errors
/// When there is none.
pub fn number(stats: &Stats, name: &str) -> Result<f64> {
    let text = stats.get(name).with_context(|| format!("memcached's statistics have no {name}"))?;
    text.parse().with_context(|| format!("memcached's statistics: {name} is `{text}`"))
}

/// Bytes of an item, from a loaded server's slab statistics: those of the class with the most items.
pub fn chunk_bytes(slabs: &Stats) -> Option<usize> {
    let classes = slabs.iter().filter_map(|(name, used)| {
        let class = name.strip_suffix(":used_chunks")?;
        Some((used.parse::<u64>().ok()?, slabs.get(&format!("{class}:chunk_size"))?.parse().ok()?))
    });
    classes.max().map(|(_, bytes)| bytes)
}

/// The memcached at `given`, or the one of that `kind` that integrations/memcached/build makes.
///
/// # Errors
/// When there is none.
pub fn locate(given: Option<&Path>, kind: &str) -> Result<PathBuf> {
    let (path, remedy) = match given {
        Some(path) => (path.to_owned(), String::new()),
        None => {
            let option = if kind == "plain" { " --plain" } else { "" };
            let remedy =
                format!(" Build it with `integrations/memcached/build{option}`, or name one with --{kind}-server.");
            (repository()?.join("target/memcached").join(kind).join("memcached"), remedy)
        }
    };
    ensure!(path.is_file(), "{}: no such file.{remedy}", path.display());
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stats_of(pairs: &[(&str, &str)]) -> Stats {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn numbers_are_found_by_name() {
        let stats = stats_of(&[("items_moved", "12"), ("tracker", "watched")]);
        assert_eq!(["items_moved", "tracker", "none"].map(|name| number(&stats, name).ok()), [Some(12.0), None, None]);
    }

    #[test]
    fn an_item_takes_what_a_chunk_of_the_fullest_class_does() {
        let slabs = stats_of(&[
            ("1:chunk_size", "96"),
            ("1:used_chunks", "3"),
            ("8:chunk_size", "600"),
            ("8:used_chunks", "800000"),
            ("active_slabs", "2"),
        ]);
        assert_eq!(chunk_bytes(&slabs), Some(600));
        assert_eq!(chunk_bytes(&Stats::new()), None);
    }

    #[test]
    fn a_missing_server_is_named_with_the_remedy() {
        let said = locate(Some(Path::new("/nowhere/memcached")), "hps").unwrap_err().to_string();
        assert_eq!(said, "/nowhere/memcached: no such file.");
    }
}
