//! A private nginx with files to serve, on a free port of the loopback, and wrk as its client.

use std::fs;
use std::net::{Ipv4Addr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::process::Signal;
use units::Bytes;

use super::latency::{WRK_SCRIPT, of_wrk};
use super::{Client, Server, Service};
use crate::cgroup::MemoryCgroup;
use crate::children::{OwnChild, free_port};
use crate::latency::Latency;
use crate::launch::Program;
use crate::place::Place;
use crate::session::Session;
use crate::tools::{Missing, on_path};
use units::spread::Random;

const FILE_BYTES: usize = 64 << 10;

/// Connections of the client; each asks again some time after an answer.
const CONNECTIONS: u32 = 8;

/// Files to serve, and where the server has its own.
#[derive(Debug)]
pub struct Site {
    folder: PathBuf,
    files: usize,
}

impl Site {
    /// Writes files of 64 KiB, `bytes` in all.
    ///
    /// # Errors
    /// When they cannot be written.
    pub fn write(folder: &Path, bytes: Bytes) -> Result<Result<Box<dyn Service>, Missing>> {
        if on_path("nginx").is_none() || on_path("wrk").is_none() {
            return Ok(Err(Missing("nginx and wrk are not installed (Debian: nginx-light wrk)")));
        }
        let site = Site { folder: folder.to_owned(), files: units::cast::index(bytes.0) / FILE_BYTES };
        let write = || -> std::io::Result<()> {
            fs::create_dir_all(site.data())?;
            fs::create_dir_all(folder.join("own"))?;
            let (mut random, mut some) = (Random::seeded(1), vec![0; FILE_BYTES]);
            for nth in 0..site.files {
                some[..8].copy_from_slice(&random.number().to_le_bytes());
                fs::write(site.data().join(format!("{nth:05}")), &some)?;
            }
            Ok(())
        };
        write().with_context(|| format!("cannot write files below {}", folder.display()))?;
        Ok(Ok(Box::new(site)))
    }
}

impl Service for Site {
    fn data(&self) -> PathBuf {
        self.folder.join("files")
    }

    fn start(&self, session: &Session, group: &MemoryCgroup) -> Result<Box<dyn Server>> {
        let port = free_port()?;
        let own = self.folder.join("own");
        let configuration = own.join("nginx.conf");
        fs::write(&configuration, configured(&own, &self.data(), port)).context("cannot write nginx.conf")?;
        let log = own.join("error.log");
        let arguments = ["-e".into(), log.clone().into_os_string(), "-p".into(), own.into_os_string(), "-c".into()];
        let program = Program::at("nginx", arguments.into_iter().chain([configuration.into_os_string()]));
        let mut child = OwnChild::start(group.start(&program), &session.processors, Place::Only(0))?;
        for _ in 0..200 {
            if TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok() {
                return Ok(Box::new(Nginx { _child: child, port, files: self.files }));
            }
            if !child.is_running() {
                let said = fs::read_to_string(&log).unwrap_or_default();
                bail!("nginx has ended: {}", said.lines().last().unwrap_or("no message"));
            }
            session.stop.sleep(Duration::from_millis(25))?;
        }
        bail!("nginx does not answer")
    }
}

/// Configuration with all writes inside `own`, and one serving process.
fn configured(own: &Path, data: &Path, port: u16) -> String {
    let temporary: Vec<String> = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .iter()
        .map(|name| format!("    {name}_temp_path {}/{name};\n", own.display()))
        .collect();
    format!(
        "daemon off;\nuser root;\nworker_processes 1;\npid {own}/pid;\nerror_log {own}/error.log;\n\
         events {{ worker_connections 256; }}\nhttp {{\n    access_log off;\n    sendfile on;\n    keepalive_requests 100000000;\n\
         {}    server {{ listen 127.0.0.1:{port}; root {}; }}\n}}\n",
        temporary.concat(),
        data.display(),
        own = own.display(),
    )
}

struct Nginx {
    _child: OwnChild,
    port: u16,
    files: usize,
}

impl Server for Nginx {
    fn client(&self, session: &Session, folder: &Path, per_s: u32) -> Result<Box<dyn Client>> {
        let script = folder.join("requests.lua");
        let delay_ms = (CONNECTIONS * 1000 / per_s.max(1)).max(1);
        fs::write(&script, format!("FILES = {}\nDELAY_MS = {delay_ms}\n{WRK_SCRIPT}", self.files))
            .context("cannot write wrk's script")?;
        let mut command = Command::new("wrk");
        command.args(["-t", "1", "-c", &CONNECTIONS.to_string(), "-d", "3600s", "--timeout", "600s", "-s"]);
        command.arg(script).arg(format!("http://127.0.0.1:{}/", self.port));
        Ok(Box::new(Wrk(OwnChild::start(command, &session.processors, Place::Only(1))?)))
    }

    fn end(self: Box<Self>, _session: &Session) -> Result<()> {
        Ok(()) // dropped
    }
}

struct Wrk(OwnChild);

impl Client for Wrk {
    fn end(mut self: Box<Self>, session: &Session) -> Result<Latency> {
        self.0.signal(Signal::INT);
        let ended = self.0.finish(Duration::from_secs(30), &session.stop)?;
        of_wrk(&ended.lines).with_context(|| ended.errors.join(" "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_server_writes_into_its_own_folder_only() {
        let text = configured(Path::new("/own"), Path::new("/data"), 8080);
        assert!(text.contains("listen 127.0.0.1:8080; root /data;"));
        assert_eq!(text.matches("_temp_path /own/").count(), 5);
        assert!(text.contains("pid /own/pid;") && text.contains("error_log /own/error.log;"));
    }
}
