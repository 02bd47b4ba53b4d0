//! One connection to one server: TCP or TLS, logged in. Every read and write has a time limit, and so has each exchange
//! of requests and replies as a whole: a server that sends a byte now and then is bounded, too.

use std::fmt;
use std::io::{self, BufReader, IoSlice, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::time::{Duration, Instant};

use linux::untrusted::visible;
use rustls::pki_types::ServerName;

use super::answers::{self, ClientId, Verdict};
use super::resp::{self, Reply, Requests};
use crate::store::url::{Host, Secret};

/// Credentials and settings of a connection.
pub struct Access {
    /// Certificates, if the connection is encrypted.
    pub tls: Option<Arc<rustls::ClientConfig>>,
    /// User of the server's access list.
    pub user: Option<String>,
    /// The password.
    pub password: Option<Secret>,
    /// The number of the database.
    pub database: u32,
    /// Time limit of a read or a write; an exchange may take [`EXCHANGE`] times as long.
    pub timeout: Duration,
    /// Name of the connection in the server's `CLIENT LIST`.
    pub client_name: String,
}

/// Largest number of characters of a server's words in a message.
const SHOWN_MAX: usize = 300;

/// Failure of a request.
#[derive(Debug)]
pub enum Failure {
    /// The connection failed.
    Io(io::Error),
    /// The server gave an error line; made by [`Connection::said`].
    Said {
        /// Consequence of the line, as the server sent it.
        verdict: Verdict,
        /// Printable line.
        line: String,
    },
    /// Too few replicas acknowledged in time.
    Unacknowledged {
        /// Number of replicas that acknowledged.
        acknowledged: i64,
        /// Number of replicas required.
        wanted: u32,
    },
    /// A Cluster names more nodes than [`super::exchange::NODES_MAX`].
    TooManyNodes,
    /// No master has the slot.
    NoMaster(u16),
    /// The node of a Cluster has missed a change of masters.
    OutOfDate {
        /// Epoch of the node.
        epoch: u64,
        /// Newest epoch of other nodes.
        newest: u64,
    },
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        Failure::Io(error)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Io(error) => match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => f.write_str("no answer in time"),
                io::ErrorKind::UnexpectedEof => f.write_str("the connection was closed"),
                _ => {
                    let text = error.to_string();
                    f.write_str(text.split(" (os error").next().unwrap_or(&text).to_lowercase().as_str())
                }
            },
            Failure::Said { line, .. } => {
                let shown: String = line.chars().take(SHOWN_MAX).collect();
                write!(f, "it says {}", visible(&shown))
            }
            Failure::Unacknowledged { acknowledged, wanted } => {
                write!(f, "{acknowledged} of {wanted} replicas acknowledged in time")
            }
            Failure::OutOfDate { epoch, newest } => {
                write!(f, "it knows the Cluster as of epoch {epoch}, and others of epoch {newest}")
            }
            Failure::TooManyNodes => {
                write!(f, "it names more than {} nodes", super::exchange::NODES_MAX)
            }
            Failure::NoMaster(slot) => write!(f, "no master has slot {slot} of the Cluster"),
        }
    }
}

/// Time limit of an exchange of requests and replies, as a multiple of the URL's timeout.
const EXCHANGE: u32 = 2;

/// Socket with a deadline.
pub struct Timed {
    stream: TcpStream,
    timeout: Duration,
    deadline: Instant,
}

impl Timed {
    fn new(stream: TcpStream, timeout: Duration) -> Timed {
        Timed { stream, timeout, deadline: Instant::now() + timeout * EXCHANGE }
    }

    /// Time limit of the next read or write; never zero, which would be no limit.
    fn left(&self) -> io::Result<Option<Duration>> {
        let left = self.deadline.saturating_duration_since(Instant::now()).min(self.timeout);
        if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(Some(left)) }
    }
}

impl Read for Timed {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(self.left()?)?;
        self.stream.read(buffer)
    }
}

impl Write for Timed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(self.left()?)?;
        self.stream.write(bytes)
    }

    fn write_vectored(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        self.stream.set_write_timeout(self.left()?)?;
        self.stream.write_vectored(pieces)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

/// Stream that may be encrypted.
pub enum Stream {
    /// Without encryption.
    Plain(Timed),
    /// With TLS.
    Tls(Box<rustls::StreamOwned<rustls::ClientConnection, Timed>>),
}

impl Stream {
    fn socket(&mut self) -> &mut Timed {
        match self {
            Stream::Plain(socket) => socket,
            Stream::Tls(stream) => &mut stream.sock,
        }
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Plain(stream) => stream.read(buffer),
            Stream::Tls(stream) => stream.read(buffer),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Plain(stream) => stream.write(bytes),
            Stream::Tls(stream) => stream.write(bytes),
        }
    }

    fn write_vectored(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Stream::Plain(stream) => stream.write_vectored(pieces),
            Stream::Tls(stream) => stream.write_vectored(pieces),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Stream::Plain(stream) => stream.flush(),
            Stream::Tls(stream) => stream.flush(),
        }
    }
}

/// Bytes read at once.
const BUFFER_BYTES: usize = 128 << 10;
/// Time limit of connecting: a host that is gone for good does not delay the others by a whole request's time.
const CONNECT_MAX: Duration = Duration::from_secs(2);

/// Connection that is logged in, and waits for no reply.
pub struct Connection {
    input: BufReader<Stream>,
    password: Option<Secret>,
    /// Identity at the server, if the server reports it.
    pub id: Option<ClientId>,
}

impl Connection {
    /// Connects and logs in.
    ///
    /// # Errors
    /// The connection's, or the server's answer on the password or the database.
    pub fn open(host: &Host, access: &Access) -> Result<Connection, Failure> {
        let stream = connect(host, access.timeout.min(CONNECT_MAX))?;
        stream.set_nodelay(true)?;
        let stream = Timed::new(stream, access.timeout);
        let stream = match &access.tls {
            None => Stream::Plain(stream),
            Some(config) => {
                let name = ServerName::try_from(host.name.clone()).map_err(io::Error::other)?;
                let tls = rustls::ClientConnection::new(Arc::clone(config), name).map_err(io::Error::other)?;
                Stream::Tls(Box::new(rustls::StreamOwned::new(tls, stream)))
            }
        };
        let input = BufReader::with_capacity(BUFFER_BYTES, stream);
        let mut connection = Connection { input, password: access.password.clone(), id: None };
        connection.log_in(access)?;
        Ok(connection)
    }

    fn log_in(&mut self, access: &Access) -> Result<(), Failure> {
        let mut out = Requests::default();
        let mut must_succeed = 0;
        if let Some(password) = &access.password {
            let password = password.reveal().as_bytes();
            match &access.user {
                Some(user) => out.request(&[b"AUTH", user.as_bytes(), password]),
                None => out.request(&[b"AUTH", password]),
            }
            must_succeed += 1;
        }
        if access.database > 0 {
            out.request(&[b"SELECT", access.database.to_string().as_bytes()]);
            must_succeed += 1;
        }
        out.request(&[b"CLIENT", b"SETNAME", access.client_name.as_bytes()]);
        out.request(&[b"CLIENT", b"INFO"]);
        self.send(&out)?;
        let (mut refused, mut first) = (None, None);
        for nth in 0..must_succeed + 2 {
            match self.reply() {
                // A server that requires a password reports it after the others.
                Ok(Reply::Error(line)) => {
                    if nth < must_succeed || line.starts_with("NOAUTH") {
                        refused.get_or_insert_with(|| line.clone());
                    }
                    first.get_or_insert(line);
                }
                Ok(Reply::Bulk(text)) if nth > must_succeed => {
                    self.id = answers::client_id(&String::from_utf8_lossy(&text));
                }
                Ok(_) => {}
                // A server that has too many clients says so, unasked, and closes.
                Err(error) => return Err(first.map_or(Failure::Io(error), |line| self.said(&line))),
            }
        }
        refused.map_or(Ok(()), |line| Err(self.said(&line)))
    }

    /// Failure of an error line, printable: servers repeat text that they did not understand, even the password.
    pub fn said(&self, line: &str) -> Failure {
        // The line as received: without the password it may read otherwise.
        Failure::Said { verdict: answers::verdict(line), line: printable(line, self.password.as_ref()) }
    }

    /// Sends all requests. The deadline of the exchange begins here.
    ///
    /// # Errors
    /// The connection cannot be used any more.
    pub fn send(&mut self, requests: &Requests<'_>) -> io::Result<()> {
        let stream = self.input.get_mut();
        let socket = stream.socket();
        socket.deadline = Instant::now() + socket.timeout * EXCHANGE;
        requests.write_to(stream)
    }

    /// Gives the replies of this exchange at least one more timeout: other servers' replies were read meanwhile.
    pub fn await_replies(&mut self) {
        let socket = self.input.get_mut().socket();
        socket.deadline = socket.deadline.max(Instant::now() + socket.timeout);
    }

    /// Reads one reply.
    ///
    /// # Errors
    /// The connection cannot be used any more.
    pub fn reply(&mut self) -> io::Result<Reply> {
        resp::reply(&mut self.input)
    }

    /// Input with the replies.
    pub fn input(&mut self) -> &mut BufReader<Stream> {
        &mut self.input
    }

    /// Sends one request and reads its reply; an error line is a failure.
    ///
    /// # Errors
    /// The connection's, or the server's.
    pub fn ask(&mut self, arguments: &[&[u8]]) -> Result<Reply, Failure> {
        let mut out = Requests::default();
        out.request(arguments);
        self.send(&out)?;
        match self.reply()? {
            Reply::Error(line) => Err(self.said(&line)),
            reply => Ok(reply),
        }
    }

    /// Reads and parses `INFO`.
    ///
    /// # Errors
    /// As [`Connection::ask`].
    pub fn info(&mut self, section: Option<&str>) -> Result<answers::Info, Failure> {
        let reply = match section {
            Some(section) => self.ask(&[b"INFO", section.as_bytes()])?,
            None => self.ask(&[b"INFO"])?,
        };
        match reply {
            Reply::Bulk(text) => Ok(answers::info(&String::from_utf8_lossy(&text))),
            _ => Err(Failure::Io(io::Error::new(io::ErrorKind::InvalidData, "no text in reply to INFO"))),
        }
    }
}

/// Largest number of characters of a server's line that are printed.
const LINE_MAX: usize = 200;

/// Cleans a server's line: without the password, without control characters, and not too long. Its first word stays if
/// it can only be the kind of error, which a password that is a part of it would spoil.
fn printable(line: &str, password: Option<&Secret>) -> String {
    let (sort, rest) = line.split_at(line.find(' ').unwrap_or(line.len()));
    let is_sort = |password: &str| {
        sort.bytes().all(|byte| byte.is_ascii_uppercase()) && sort != password && !password.contains(' ')
    };
    let hidden = match password.map(Secret::reveal).filter(|password| !password.is_empty()) {
        Some(password) if is_sort(password) => format!("{sort}{}", rest.replace(password, "(password)")),
        Some(password) => line.replace(password, "(password)"),
        None => line.to_owned(),
    };
    let mut shown: String = hidden.chars().take(LINE_MAX).collect();
    if shown.len() < hidden.len() {
        shown.push('…');
    }
    shown.replace(char::is_control, "\u{fffd}")
}

fn connect(host: &Host, timeout: Duration) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for address in (host.name.as_str(), host.port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, timeout) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// TLS error of a failed connection, if TLS failed.
pub fn tls_failure(failure: &Failure) -> Option<&rustls::Error> {
    match failure {
        Failure::Io(error) => error.get_ref()?.downcast_ref(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::url::TlsFiles;
    use crate::store::{Error, Trouble};

    #[test]
    fn what_a_server_says_is_one_line_without_control_characters() {
        let said = format!("ERR \u{1b}[2J\u{9b}31m\r\nmasu: all is well {}", "x".repeat(60_000));
        let cause = Failure::Said { verdict: answers::verdict(&said), line: said }.to_string();
        let (operation, store) = ("open".to_owned(), "redis://a".to_owned());
        let shown = Error::Unfit(Trouble { operation, store, cause, remedy: String::new() }).to_string();
        assert!(
            shown.starts_with(r"cannot open redis://a: it says ERR \u001b[2J\u009b31m\u000d\u000amasu: all is well x"),
            "{shown}"
        );
        assert!(shown.len() < 500 && !shown.contains(char::is_control), "{}", shown.len());
    }

    #[test]
    fn what_a_server_says_is_printed_without_the_password_and_in_one_line() {
        let password = Secret::new("hunter22".to_owned());
        let shown = |line: &str| printable(line, Some(&password));
        assert_eq!(
            shown("ERR unknown command `AUTH`, with args beginning with: `me`, `hunter22`, "),
            "ERR unknown command `AUTH`, with args beginning with: `me`, `(password)`, "
        );
        assert_eq!(shown("ERR \x1b[2J\rhunter22hunter22"), "ERR \u{fffd}[2J\u{fffd}(password)(password)");
        assert_eq!(printable("MOVED 1 h:1", Some(&Secret::new("M".to_owned()))), "MOVED 1 h:1");
        assert_eq!(shown(&"x".repeat(5000)).chars().count(), LINE_MAX + 1);
        assert_eq!(printable("MOVED 1 [::1]:7000", None), "MOVED 1 [::1]:7000");
    }

    #[test]
    fn a_password_in_the_first_word_is_not_printed() {
        let shown = |line: &str, password: &str| printable(line, Some(&Secret::new(password.to_owned())));
        assert_eq!(shown("hunter22 is wrong", "hunter22"), "(password) is wrong");
        assert_eq!(shown("hunter22", "hunter22"), "(password)");
        assert_eq!(shown("HUNTER is wrong", "HUNTER"), "(password) is wrong");
        assert_eq!(shown("ERR: hunter22", "hunter22"), "ERR: (password)");
        assert_eq!(shown("ERRhunter22 no", "hunter22"), "ERR(password) no");
        assert_eq!(shown("ERR two words", "R two"), "ER(password) words");
    }

    /// A connection to a server that reads nothing and runs `serve`.
    fn connected(timeout: Duration, password: &str, serve: impl FnOnce(TcpStream) + Send + 'static) -> Connection {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let accepted = listener.accept().unwrap().0;
        std::thread::spawn(move || serve(accepted));
        let input = BufReader::new(Stream::Plain(Timed::new(stream, timeout)));
        Connection { input, password: Some(Secret::new(password.to_owned())), id: None }
    }

    #[test]
    fn a_server_that_sends_a_byte_now_and_then_is_not_waited_for_beyond_the_deadline() {
        let timeout = Duration::from_millis(100);
        let mut connection = connected(timeout, "p", |mut stream| {
            // Until the other end is closed; ten minutes for a line, if nothing stopped it.
            while stream.write_all(b"+").is_ok() {
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        let begun = Instant::now();
        let Err(Failure::Io(error)) = connection.ask(&[b"PING"]) else { panic!("it answered") };
        assert!(matches!(error.kind(), io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock), "{error}");
        assert!(begun.elapsed() >= timeout * EXCHANGE, "{:?}", begun.elapsed());
        assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    }

    #[test]
    fn a_server_that_drips_in_the_tls_handshake_is_not_waited_for_beyond_the_deadline() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let host = Host { name: "127.0.0.1".to_owned(), port: listener.local_addr().unwrap().port() };
        std::thread::spawn(move || {
            let mut stream = listener.accept().unwrap().0;
            // The head of a record of 16 KiB, and then the record.
            let mut sent = stream.write_all(&[0x16, 3, 3, 0x40, 0]);
            while sent.is_ok() {
                std::thread::sleep(Duration::from_millis(20));
                sent = stream.write_all(&[2]);
            }
        });
        let access = Access {
            tls: Some(super::super::tls::settings(&TlsFiles::default()).unwrap()),
            user: None,
            password: None,
            database: 0,
            timeout: Duration::from_millis(100),
            client_name: "masu".to_owned(),
        };
        let begun = Instant::now();
        let Err(Failure::Io(error)) = Connection::open(&host, &access) else { panic!("it answered") };
        assert!(matches!(error.kind(), io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock), "{error}");
        assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    }

    #[test]
    fn each_exchange_has_a_deadline_of_its_own() {
        let timeout = Duration::from_secs(1);
        let mut connection = connected(timeout, "p", |mut stream| {
            for _ in 0..6 {
                let _ = stream.read(&mut [0; 64]);
                std::thread::sleep(Duration::from_millis(420));
                let _ = stream.write_all(b"+PONG\r\n");
            }
        });
        for _ in 0..6 {
            assert_eq!(connection.ask(&[b"PING"]).unwrap(), Reply::Simple("PONG".to_owned()));
        }
    }

    #[test]
    fn a_password_that_is_a_word_of_an_error_does_not_change_what_it_asks_for() {
        let connection = connected(Duration::from_secs(1), "max", drop);
        let Failure::Said { verdict, line } = connection.said("ERR max number of clients reached") else { panic!() };
        assert_eq!(verdict, Verdict::Later);
        assert_eq!(line, "ERR (password) number of clients reached");
    }
}
