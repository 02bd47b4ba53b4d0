//! A private `redis-server`: on a Unix socket in its own folder, and optionally on a port of the loopback; without
//! persistence, ended when dropped.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use tempfile::TempDir;

use crate::children::{OwnChild, free_port};
use crate::place::{Place, Processors};
use crate::redis::client::Client;
use crate::stop::Stop;
use crate::tools::on_path;

/// A running server.
#[derive(Debug)]
pub struct Server {
    // Dropped in this order: the program ends before its folder goes.
    child: OwnChild,
    folder: TempDir,
    port: u16,
}

impl Server {
    /// Starts a server on `place` and waits until it answers.
    ///
    /// # Errors
    /// When Redis is not installed, or does not come up.
    pub fn start(processors: &Processors, place: Place, stop: &Stop) -> Result<Server> {
        Server::start_on(0, processors, place, stop)
    }

    /// As [`Server::start`], and it listens on a port of the loopback, too.
    ///
    /// # Errors
    /// As [`Server::start`], or when there is no free port.
    pub fn start_on_loopback(processors: &Processors, place: Place, stop: &Stop) -> Result<Server> {
        Server::start_on(free_port()?, processors, place, stop)
    }

    /// The port of the loopback on which it listens; 0 for none.
    pub const fn port(&self) -> u16 {
        self.port
    }

    fn start_on(port: u16, processors: &Processors, place: Place, stop: &Stop) -> Result<Server> {
        let folder = TempDir::with_prefix("masu-bench-redis-").context("cannot create a folder for the server")?;
        let mut command = Command::new(program(folder.path())?);
        command.current_dir(folder.path()).args([
            "--bind",
            "127.0.0.1",
            "--port",
            &port.to_string(),
            "--unixsocket",
            "socket",
            "--save",
            "",
            "--appendonly",
            "no",
        ]);
        // With THP=always Redis would forbid itself huge pages by prctl, and no other process could give it any.
        command.args(["--disable-thp", "no", "--daemonize", "no", "--loglevel", "warning"]);
        command.args(["--activedefrag", "no", "--maxmemory", "0", "--databases", "1"]);
        let mut child = OwnChild::start(command, processors, place)?;
        let socket = folder.path().join("socket");
        let ping = || Client::connect(&socket).and_then(|mut client| client.command(&["PING"]));
        child.await_answer(stop, || ping().is_ok_and(|pong| pong == "PONG"))?;
        Ok(Server { child, folder, port })
    }

    /// Process id.
    pub fn pid(&self) -> u32 {
        self.child.pid()
    }

    /// A new connection.
    ///
    /// # Errors
    /// When the server is gone.
    pub fn client(&self) -> Result<Client> {
        Client::connect(&self.folder.path().join("socket"))
    }
}

/// The `redis-server` of the search path. Debian's redis-tools has the same program under another name; it chooses its
/// role by that name.
fn program(folder: &Path) -> Result<PathBuf> {
    if let Some(server) = on_path("redis-server") {
        return Ok(server);
    }
    let Some(twin) = on_path("redis-check-rdb") else {
        bail!("redis-server is not installed. On Debian: apt-get install redis-server (redis-tools is enough).");
    };
    let link = folder.join("redis-server");
    symlink(&twin, &link).with_context(|| format!("cannot link {} to {}", link.display(), twin.display()))?;
    Ok(link)
}
