//! One connection to one server: TCP or TLS, logged in, with a time limit on every read and write.

use std::fmt;
use std::io::{self, BufReader, IoSlice, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

use linux::untrusted::visible;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};

use super::answers::{self, ClientId};
use super::resp::{self, Reply, Requests};
use crate::store::url::{Host, Secret, TlsFiles};

/// How to get in.
pub struct Access {
    /// Certificates, if the connection is encrypted.
    pub tls: Option<Arc<rustls::ClientConfig>>,
    /// The user of the access list.
    pub user: Option<String>,
    /// The password.
    pub password: Option<Secret>,
    /// The number of the database.
    pub database: u32,
    /// How long a read or a write may take.
    pub timeout: Duration,
    /// What the connection is called in the server's `CLIENT LIST`.
    pub client_name: String,
}

/// The most characters of a server's words in a message.
const SHOWN_MAX: usize = 300;

/// Why a server did not do as asked.
#[derive(Debug)]
pub enum Failure {
    /// The connection failed.
    Io(io::Error),
    /// The server gave an error line; made by [`Connection::said`].
    Said(String),
    /// Too few replicas acknowledged in time.
    Unacknowledged {
        /// So many did.
        acknowledged: i64,
        /// So many have to.
        wanted: u32,
    },
    /// Nobody has the slot.
    NoMaster(u16),
    /// A node of a Cluster that has slept through a change of masters.
    OutOfDate {
        /// What it knows.
        epoch: u64,
        /// What others have told.
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
            Failure::Said(line) => {
                let shown: String = line.chars().take(SHOWN_MAX).collect();
                write!(f, "it says {}", visible(&shown))
            }
            Failure::Unacknowledged { acknowledged, wanted } => {
                write!(f, "{acknowledged} of {wanted} replicas acknowledged in time")
            }
            Failure::OutOfDate { epoch, newest } => {
                write!(f, "it knows the Cluster as of epoch {epoch}, and others of epoch {newest}")
            }
            Failure::NoMaster(slot) => write!(f, "no master has slot {slot} of the Cluster"),
        }
    }
}

/// A stream that may be encrypted.
pub enum Stream {
    /// Not.
    Plain(TcpStream),
    /// By TLS.
    Tls(Box<rustls::StreamOwned<rustls::ClientConnection, TcpStream>>),
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

/// What is read at once.
const BUFFER_BYTES: usize = 128 << 10;
/// A host that is gone for good does not keep the others waiting for a whole request's time.
const CONNECT_MAX: Duration = Duration::from_secs(2);

/// A connection that is logged in, and waits for no reply.
pub struct Connection {
    input: BufReader<Stream>,
    password: Option<Secret>,
    /// What names it to the server, if the server says so.
    pub id: Option<ClientId>,
}

impl Connection {
    /// Connects and logs in.
    ///
    /// # Errors
    /// The connection's, or what the server said of the password or the database.
    pub fn open(host: &Host, access: &Access) -> Result<Connection, Failure> {
        let stream = connect(host, access.timeout.min(CONNECT_MAX))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(access.timeout))?;
        stream.set_write_timeout(Some(access.timeout))?;
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
        let mut refused = None;
        for _ in 0..must_succeed {
            if let Reply::Error(line) = self.reply()? {
                refused.get_or_insert(line);
            }
        }
        // A server that asks for a password says so now.
        if let Reply::Error(line) = self.reply()?
            && line.starts_with("NOAUTH")
        {
            refused.get_or_insert(line);
        }
        if let Reply::Bulk(text) = self.reply()? {
            self.id = answers::client_id(&String::from_utf8_lossy(&text));
        }
        refused.map_or(Ok(()), |line| Err(self.said(line)))
    }

    /// An error line as a failure, fit to be printed: servers repeat what they did not understand, be it the password.
    pub fn said(&self, line: String) -> Failure {
        Failure::Said(printable(&line, self.password.as_ref()))
    }

    /// Sends requests, all of them.
    ///
    /// # Errors
    /// The connection is of no use any more.
    pub fn send(&mut self, requests: &Requests<'_>) -> io::Result<()> {
        requests.write_to(self.input.get_mut())
    }

    /// Reads one reply.
    ///
    /// # Errors
    /// The connection is of no use any more.
    pub fn reply(&mut self) -> io::Result<Reply> {
        resp::reply(&mut self.input)
    }

    /// Where replies are read.
    pub fn input(&mut self) -> &mut BufReader<Stream> {
        &mut self.input
    }

    /// One request and its reply; an error line is a failure.
    ///
    /// # Errors
    /// The connection's, or the server's.
    pub fn ask(&mut self, arguments: &[&[u8]]) -> Result<Reply, Failure> {
        let mut out = Requests::default();
        out.request(arguments);
        self.send(&out)?;
        match self.reply()? {
            Reply::Error(line) => Err(self.said(line)),
            reply => Ok(reply),
        }
    }

    /// `INFO`, read.
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

/// Characters of a server's line that are printed.
const LINE_MAX: usize = 200;

/// A server's line without the password, without control characters, and not too long. Its first word, the sort of error, stays.
fn printable(line: &str, password: Option<&Secret>) -> String {
    let (sort, rest) = line.split_at(line.find(' ').unwrap_or(line.len()));
    let hidden = match password.map(Secret::reveal).filter(|password| !password.is_empty()) {
        Some(password) => format!("{sort}{}", rest.replace(password, "(password)")),
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

/// What TLS has to say of a failed connection, if it was TLS that failed.
pub fn tls_failure(failure: &Failure) -> Option<&rustls::Error> {
    match failure {
        Failure::Io(error) => error.get_ref()?.downcast_ref(),
        _ => None,
    }
}

/// Reads the certificates; all connections share the result.
///
/// # Errors
/// One line that names the file.
pub fn tls(files: &TlsFiles) -> Result<Arc<rustls::ClientConfig>, String> {
    let mut roots = rustls::RootCertStore::empty();
    match &files.authorities {
        Some(file) => {
            let named = |error: &dyn fmt::Display| format!("{}: {error}", file.display());
            for certificate in CertificateDer::pem_file_iter(file).map_err(|error| named(&error))? {
                let certificate = certificate.map_err(|error| named(&error))?;
                roots.add(certificate).map_err(|error| named(&error))?;
            }
            if roots.is_empty() {
                return Err(named(&"holds no certificate"));
            }
        }
        None => {
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ClientConfig::builder_with_provider(provider);
    let builder = builder.with_safe_default_protocol_versions().map_err(|error| error.to_string())?;
    let builder = builder.with_root_certificates(roots);
    let Some((certificate, key)) = &files.own else {
        return Ok(Arc::new(builder.with_no_client_auth()));
    };
    let named = |file: &std::path::Path, error: &dyn fmt::Display| format!("{}: {error}", file.display());
    let chain = CertificateDer::pem_file_iter(certificate).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let chain = chain.map_err(|error| named(certificate, &error))?;
    let key_read = PrivateKeyDer::from_pem_file(key).map_err(|error| named(key, &error))?;
    let config = builder.with_client_auth_cert(chain, key_read).map_err(|error| named(certificate, &error))?;
    Ok(Arc::new(config))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{Error, Trouble};

    #[test]
    fn what_a_server_says_is_one_line_without_control_characters() {
        let said = format!("ERR \u{1b}[2J\u{9b}31m\r\nmasu: all is well {}", "x".repeat(60_000));
        let cause = Failure::Said(said).to_string();
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
}
