//! A private PostgreSQL on a Unix socket in its own folder, and `pgbench -S` as its client.
//!
//! PostgreSQL refuses to run as root, so it runs as the user `postgres` that its package creates.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::Signal;

use super::latency::of_pgbench;
use super::{Client, Server, Service};
use crate::cgroup::MemoryCgroup;
use crate::children::{OwnChild, describe};
use crate::latency::Latency;
use crate::launch::Program;
use crate::place::Place;
use crate::session::Session;
use crate::tools::{Missing, finished};

const USER: &str = "postgres";

/// Time limit for filling the tables, and for the end.
const LIMIT: Duration = Duration::from_secs(600);

/// A database that was filled and whose server does not run.
#[derive(Debug)]
pub struct Database {
    programs: PathBuf,
    folder: PathBuf,
}

impl Database {
    /// Makes one with pgbench's tables: 100,000 rows, about 15 MB, for each step of `scale`.
    ///
    /// # Errors
    /// When it cannot be made, or we are interrupted.
    pub fn make(session: &Session, folder: &Path, scale: u64) -> Result<Result<Box<dyn Service>, Missing>> {
        let missing = Missing("PostgreSQL is not installed (Debian: postgresql)");
        let Some(programs) = programs(Path::new("/usr/lib/postgresql")) else { return Ok(Err(missing)) };
        let database = Database { programs, folder: folder.to_owned() };
        finished(Command::new("install").args(["-d", "-m", "700", "-o", USER, "-g", USER]).arg(folder))?;
        let made = database.as_user("initdb", ["-A", "trust", "-U", USER, "-N", "-D"].map(str::to_owned));
        finished(made.command().arg(database.cluster()))?;
        let server = database.run(session, |program| program.command())?;
        database.client_tool(session, "createdb", &["bench"])?;
        database.client_tool(session, "pgbench", &["-i", "-q", "-s", &scale.to_string(), "bench"])?;
        server.end(session)?;
        Ok(Ok(Box::new(database)))
    }

    fn cluster(&self) -> PathBuf {
        self.folder.join("data")
    }

    fn run(&self, session: &Session, start: impl Fn(&Program) -> Command) -> Result<Box<Postgres>> {
        let mut words = vec!["-D".to_owned(), self.cluster().display().to_string()];
        words.extend(["-k".to_owned(), self.folder.display().to_string()]);
        // Reads are to come from the page cache, and no other work is to run.
        for setting in ["listen_addresses=", "shared_buffers=32MB", "autovacuum=off", "max_wal_size=4GB", "jit=off"] {
            words.extend(["-c".to_owned(), setting.to_owned()]);
        }
        let program = self.as_user("postgres", words);
        let mut command = start(&program);
        command.current_dir("/");
        let child = OwnChild::start(command, &session.processors, Place::Only(0))?;
        let mut server = Postgres { child, programs: self.programs.clone(), folder: self.folder.clone() };
        for _ in 0..400 {
            session.stop.sleep(Duration::from_millis(50))?;
            let mut asked = Command::new(self.programs.join("pg_isready"));
            if finished(asked.arg("-h").arg(&self.folder)).is_ok() {
                return Ok(Box::new(server));
            }
            if !server.child.is_running() {
                let ended = server.child.finish(LIMIT, &session.stop)?;
                bail!("postgres {}: {}", describe(ended.status), ended.errors.join(" "));
            }
        }
        bail!("postgres does not answer")
    }

    /// A program of PostgreSQL's, run as its user; the kernel signals it when this process dies.
    fn as_user(&self, name: &str, arguments: impl IntoIterator<Item = String>) -> Program {
        let words = ["--pdeathsig", "INT", "--reuid", USER, "--regid", USER, "--clear-groups", "--"].map(str::to_owned);
        let program = self.programs.join(name).display().to_string();
        Program::at("setpriv", words.into_iter().chain([program]).chain(arguments))
    }

    fn client_tool(&self, session: &Session, name: &str, arguments: &[&str]) -> Result<()> {
        let mut command = Command::new(self.programs.join(name));
        command.arg("-h").arg(&self.folder).args(["-U", USER]).args(arguments);
        let child = OwnChild::start(command, &session.processors, Place::Anywhere)?;
        let ended = child.finish(LIMIT, &session.stop)?;
        ensure!(ended.status.success(), "{name} {}: {}", describe(ended.status), ended.errors.join(" "));
        Ok(())
    }
}

impl Service for Database {
    /// Folder of the tables.
    fn data(&self) -> PathBuf {
        self.cluster().join("base")
    }

    fn start(&self, session: &Session, group: &MemoryCgroup) -> Result<Box<dyn Server>> {
        Ok(self.run(session, |program| group.start(program))?)
    }
}

/// The newest version's folder of programs.
fn programs(root: &Path) -> Option<PathBuf> {
    let version = |path: &PathBuf| path.file_name()?.to_str()?.parse::<u32>().ok();
    let versions = fs::read_dir(root).ok()?.filter_map(|entry| Some(entry.ok()?.path()));
    let newest = versions.filter(|path| version(path).is_some()).max_by_key(version)?.join("bin");
    newest.join("pgbench").is_file().then_some(newest)
}

struct Postgres {
    child: OwnChild,
    programs: PathBuf,
    folder: PathBuf,
}

impl Server for Postgres {
    fn client(&self, session: &Session, folder: &Path, per_s: u32) -> Result<Box<dyn Client>> {
        let log = folder.join("transactions");
        let mut command = Command::new(self.programs.join("pgbench"));
        command.args(["-S", "-n", "-M", "prepared", "-c", "4", "-j", "1", "-T", "3600"]);
        command.args(["-R", &per_s.to_string(), "-l"]);
        command.arg("--log-prefix").arg(&log).arg("-h").arg(&self.folder).args(["-U", USER, "bench"]);
        let child = OwnChild::start(command, &session.processors, Place::Only(1))?;
        let log = folder.join(format!("transactions.{}", child.pid()));
        Ok(Box::new(Pgbench { child, log, from_s: now_s() }))
    }

    fn end(mut self: Box<Self>, session: &Session) -> Result<()> {
        self.child.signal(Signal::INT);
        self.child.finish(LIMIT, &session.stop).map(drop)
    }
}

struct Pgbench {
    child: OwnChild,
    log: PathBuf,
    from_s: f64,
}

impl Client for Pgbench {
    fn end(mut self: Box<Self>, _session: &Session) -> Result<Latency> {
        let to_s = now_s();
        ensure!(self.child.is_running(), "pgbench has ended before it was asked to");
        drop(self.child); // the last lines of its log are still in its memory, and do not matter
        let text = fs::read_to_string(&self.log).context("pgbench has left no log")?;
        fs::remove_file(&self.log).context("cannot remove pgbench's log")?;
        of_pgbench(&text, self.from_s, to_s)
    }
}

fn now_s() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |time| time.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_version_is_taken() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(programs(root.path()), None);
        for version in ["9", "15", "common"] {
            fs::create_dir_all(root.path().join(version).join("bin")).unwrap();
            fs::write(root.path().join(version).join("bin/pgbench"), "").unwrap();
        }
        assert_eq!(programs(root.path()), Some(root.path().join("15/bin")));
    }
}
