//! `redis-server` processes of the tests: on free ports of loopback, in a temporary directory, ended by their PIDs.

use std::net::{TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use super::skip;

/// Server that ends when dropped.
pub struct Server {
    pub port: u16,
    pub directory: tempfile::TempDir,
    options: Vec<String>,
    password: Option<String>,
    process: Option<Child>,
}

/// Path of the server, as in Debian and others. The package redis-tools has the server under another name, which
/// changes its behaviour, so it is called by its own. `None` was reported already.
pub fn redis_server() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let find = |name: &str| std::env::split_paths(&path).map(|at| at.join(name)).find(|at| at.exists());
    let server = find("redis-server").or_else(|| find("redis-check-rdb"));
    if server.is_none() || find("redis-cli").is_none() {
        skip("redis-server", "redis-server or redis-cli is not installed: apt-get install redis-tools");
        return None;
    }
    server
}

/// Port without a listener, with another one 5000 above it for the Cluster's own protocol.
pub fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let first = u16::try_from(std::process::id() % 4000).unwrap();
    loop {
        let port = 20_000 + (first + NEXT.fetch_add(1, Ordering::Relaxed)) % 5000;
        if [port, port + 5000].iter().all(|&port| TcpListener::bind(("127.0.0.1", port)).is_ok()) {
            return port;
        }
    }
}

impl Server {
    /// Starts a server. `None` if there is none to start; that was reported.
    pub fn start(options: &[&str]) -> Option<Server> {
        redis_server()?;
        let password = options.windows(2).find(|pair| pair[0] == "--requirepass").map(|pair| pair[1].to_owned());
        let mut server = Server {
            port: free_port(),
            directory: tempfile::tempdir().unwrap(),
            options: options.iter().map(|&option| option.to_owned()).collect(),
            password,
            process: None,
        };
        server.run();
        Some(server)
    }

    /// Starts it again, on the same port and directory.
    pub fn run(&mut self) {
        let mut command = Command::new(redis_server().unwrap());
        command.arg0("redis-server");
        command.current_dir(self.directory.path()).stdin(Stdio::null());
        command.stdout(std::fs::File::create(self.directory.path().join("log")).unwrap()).stderr(Stdio::null());
        let port = self.port.to_string();
        if !self.options.iter().any(|option| option == "--tls-port") {
            command.args(["--port", &port]);
        } else {
            command.args(["--port", "0"]);
        }
        command.args(["--bind", "127.0.0.1", "--save", "", "--cluster-port", &(self.port + 5000).to_string()]);
        command.args(self.options.iter().map(|option| if option == "PORT" { port.as_str() } else { option.as_str() }));
        self.process = Some(command.spawn().unwrap());
        let begun = Instant::now();
        while TcpStream::connect(("127.0.0.1", self.port)).is_err() {
            assert!(begun.elapsed() < Duration::from_secs(10), "redis-server does not start: {}", self.log());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.directory.path().join("log")).unwrap_or_default()
    }

    pub fn id(&self) -> u32 {
        self.process.as_ref().unwrap().id()
    }

    pub fn runs(&self) -> bool {
        self.process.is_some()
    }

    /// Kills it, as if its machine had lost power.
    pub fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            let _ = process.kill();
            let _ = process.wait();
        }
    }

    /// Sends a signal by its name.
    pub fn signal(&self, name: &str) {
        let status = Command::new("kill").args([format!("-{name}"), self.id().to_string()]).status().unwrap();
        assert!(status.success());
    }

    /// Output of `redis-cli` for a command.
    pub fn ask(&self, arguments: &[&str]) -> String {
        let mut command = Command::new("redis-cli");
        command.args(["-p", &self.port.to_string()]).args(arguments).stdin(Stdio::null());
        if let Some(password) = &self.password {
            command.env("REDISCLI_AUTH", password);
        }
        String::from_utf8_lossy(&command.output().unwrap().stdout).trim().to_owned()
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Starts a replica of this server, in sync.
    pub fn replica(&self) -> Server {
        let port = self.port.to_string();
        let server = Server::start(&["--replicaof", "127.0.0.1", &port]).unwrap();
        // An online replica may need a second for its first acknowledgement.
        let acknowledges = |line: &str| line.contains("state=online") && !line.contains("offset=0,");
        wait_until("a replica is in step", || self.ask(&["INFO", "replication"]).lines().any(acknowledges));
        server
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Waits for at most 20 s.
pub fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < Duration::from_secs(20), "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Creates a certificate for 127.0.0.1 and its key: both files in the directory. `None` was reported.
pub fn certificate(directory: &Path) -> Option<(PathBuf, PathBuf)> {
    let (certificate, key) = (directory.join("own.pem"), directory.join("own.key"));
    let made = Command::new("openssl")
        .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"])
        .args(["-subj", "/CN=masu-test", "-addext", "subjectAltName=IP:127.0.0.1"])
        .args(["-addext", "basicConstraints=critical,CA:FALSE"])
        .args(["-out".as_ref(), certificate.as_os_str(), "-keyout".as_ref(), key.as_os_str()])
        .stderr(Stdio::null())
        .status();
    if !made.is_ok_and(|status| status.success()) {
        skip("openssl", "cannot make a certificate: apt-get install openssl");
        return None;
    }
    Some((certificate, key))
}
