//! Private Redis servers on loopback, alone or as a Cluster: ended by their process ids, however the test ends.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use super::Outcome;
use super::programs::{self, Running, TIME_LIMIT};
use super::run::{Folder, Result};
use super::run_local::signal;

/// One server, which by default writes nothing to disk.
pub(super) struct Redis {
    // Ends before its folder goes, into which it may write.
    running: Running,
    folder: Folder,
    options: Vec<String>,
    pub(super) port: u16,
}

/// A free port, with another free one 10000 above it for the Cluster's own traffic. It is below the kernel's ephemeral
/// range, so that no connection takes it while the server is down.
fn free_port() -> Result<u16> {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let first = u16::try_from(std::process::id() % 2000)?;
    for _ in 0..2000 {
        let port = 8000 + (first + NEXT.fetch_add(1, Ordering::Relaxed)) % 2000;
        if [port, port + 10_000].iter().all(|&port| TcpListener::bind(("127.0.0.1", port)).is_ok()) {
            return Ok(port);
        }
    }
    Err("no port is free".into())
}

/// Waits for a state that servers reach among themselves.
pub(super) fn wait_until(what: &str, mut holds: impl FnMut() -> bool) -> Outcome {
    let deadline = Instant::now() + TIME_LIMIT;
    while !holds() {
        if Instant::now() > deadline {
            return Err(format!("waited in vain until {what}").into());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

impl Redis {
    pub(super) fn start(name: &str) -> Result<Redis> {
        Redis::start_with(name, &[])
    }

    pub(super) fn start_with(name: &str, options: &[&str]) -> Result<Redis> {
        let folder = Folder::make(name)?;
        // Redis reads the name under which it was called.
        std::os::unix::fs::symlink(programs::redis_server().ok_or("no redis-server")?, folder.0.join("redis-server"))?;
        let port = free_port()?;
        let options: Vec<String> = options.iter().map(|&option| option.to_owned()).collect();
        let running = Redis::run(&folder, port, &options)?;
        Ok(Redis { running, folder, options, port })
    }

    fn run(folder: &Folder, port: u16, options: &[String]) -> Result<Running> {
        let mut command = Command::new(folder.0.join("redis-server"));
        command.args(["--port", &port.to_string(), "--bind", "127.0.0.1"]).arg("--dir").arg(&folder.0);
        command.args(["--save", "", "--daemonize", "no", "--loglevel", "warning"]).args(options);
        let running = Running::start(&mut command)?;
        wait_until("Redis answers", || TcpStream::connect(("127.0.0.1", port)).is_ok())?;
        Ok(running)
    }

    /// Kills it, as a loss of power would.
    pub(super) fn kill(&mut self) -> Outcome {
        self.running.0.kill()?;
        self.running.0.wait()?;
        Ok(())
    }

    /// Starts it again after a kill, on the same port and folder.
    pub(super) fn run_again(&mut self) -> Outcome {
        self.running = Redis::run(&self.folder, self.port, &self.options)?;
        Ok(())
    }

    pub(super) fn sleep(&self) -> Outcome {
        signal(self.running.pid(), libc::SIGSTOP)
    }

    pub(super) fn wake(&self) -> Outcome {
        signal(self.running.pid(), libc::SIGCONT)
    }

    pub(super) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}?timeout=200ms", self.port)
    }

    /// The answer, if it is a text; else its first line.
    pub(super) fn ask(&self, words: &[&str]) -> io::Result<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port))?;
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        let mut request = format!("*{}\r\n", words.len());
        request.extend(words.iter().map(|word| format!("${}\r\n{word}\r\n", word.len())));
        stream.write_all(request.as_bytes())?;
        let mut answer = BufReader::new(stream);
        let mut line = String::new();
        answer.read_line(&mut line)?;
        let line = line.trim_end();
        let Some(bytes) = line.strip_prefix('$') else { return Ok(line.to_owned()) };
        let mut text = vec![0; bytes.parse().map_err(io::Error::other)?];
        answer.read_exact(&mut text)?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    }

    /// An order, which must be carried out.
    fn order(&self, words: &[&str]) -> Outcome {
        match self.ask(words)?.as_str() {
            "+OK" => Ok(()),
            answer => Err(format!("Redis answered {answer}").into()),
        }
    }

    /// A server that is gone is none.
    pub(super) fn is_master(&self) -> bool {
        self.ask(&["INFO", "replication"]).is_ok_and(|answer| answer.contains("role:master"))
    }
}

/// Three masters with a replica each.
pub(super) struct Cluster {
    pub(super) servers: Vec<Redis>,
}

impl Cluster {
    /// Two seconds after one of them fell silent, the others vote for its replica. Replicas begin to acknowledge with the first
    /// ping, which would come after ten seconds.
    const OPTIONS: [&str; 8] = [
        "--cluster-enabled",
        "yes",
        "--cluster-node-timeout",
        "2000",
        "--repl-diskless-sync-delay",
        "0",
        "--repl-ping-replica-period",
        "1",
    ];

    const SLOTS: usize = 16384;

    pub(super) fn start(name: &str) -> Result<Cluster> {
        let start = |number| Redis::start_with(&format!("{name}-{number}"), &Cluster::OPTIONS);
        let servers = (0..6).map(start).collect::<Result<Vec<_>>>()?;
        let cluster = Cluster { servers };
        let (masters, replicas) = cluster.servers.split_at(3);
        let first = masters[0].port.to_string();
        for (epoch, server) in (1..).zip(&cluster.servers) {
            server.order(&["CLUSTER", "SET-CONFIG-EPOCH", &u16::to_string(&epoch)])?;
            if epoch > 1 {
                server.order(&["CLUSTER", "MEET", "127.0.0.1", &first])?;
            }
        }
        for (number, master) in masters.iter().enumerate() {
            let slots = Cluster::SLOTS * number / 3..Cluster::SLOTS * (number + 1) / 3;
            let slots: Vec<String> = slots.map(|slot| slot.to_string()).collect();
            let words: Vec<&str> =
                ["CLUSTER", "ADDSLOTS"].into_iter().chain(slots.iter().map(String::as_str)).collect();
            master.order(&words)?;
        }
        for (master, replica) in masters.iter().zip(replicas) {
            let id = master.ask(&["CLUSTER", "MYID"])?;
            wait_until("a replica knows its master", || replica.order(&["CLUSTER", "REPLICATE", &id]).is_ok())?;
        }
        wait_until("the Cluster is whole", || cluster.servers.iter().all(Cluster::is_ready))?;
        Ok(cluster)
    }

    /// It knows of the whole Cluster, and its replica, if it is a master, has begun to acknowledge.
    fn is_ready(server: &Redis) -> bool {
        let cluster = server.ask(&["CLUSTER", "INFO"]).unwrap_or_default();
        let whole = ["cluster_state:ok", "cluster_known_nodes:6", "cluster_size:3"];
        let replication = server.ask(&["INFO", "replication"]).unwrap_or_default();
        let acknowledged = replication.contains("state=online") && !replication.contains("offset=0,");
        let in_step = acknowledged || replication.contains("master_link_status:up");
        whole.iter().all(|words| cluster.contains(words)) && in_step
    }

    pub(super) fn url(&self) -> String {
        let [first, second, ..] = &self.servers[..] else { return String::new() };
        format!("redis://127.0.0.1:{},127.0.0.1:{}?timeout=500ms", first.port, second.port)
    }
}
