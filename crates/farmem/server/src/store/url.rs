//! Store URLs: `file:DIR`, `redis://[user[:password]@]host[:port][,host[:port]…][/db]`, `rediss://…`, with
//! `?option=value`.
//!
//! | option | store | meaning |
//! |---|---|---|
//! | `sync` | file | wait for the device after each put |
//! | `replicas=N` | Redis | a page is stored when N replicas have it; without it: one, where the server has any |
//! | `timeout=5s` | Redis | time limit of a request without an answer; twice that for all of the answer |
//! | `ttl=24h` | Redis | life time of pages after masu was killed |
//! | `eviction=accept` | Redis | use a server that evicts keys when it is full |
//! | `ca=FILE`, `cert=FILE`, `key=FILE` | rediss | signer of the server's certificate; masu's own certificate and key |
//!
//! Special characters (`@ / ? , %` and the like) in user, password and directory are written as `%40` and so on. A
//! message about a bad URL never repeats a password: it quotes pieces that cannot hold one.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

/// Text that is not printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Creates a secret.
    pub fn new(text: String) -> Secret {
        Secret(text)
    }

    /// Text, for the server only.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// Selected store, and its settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreUrl {
    /// Files in a directory.
    File(FileUrl),
    /// Redis or Valkey server, or a Cluster of them.
    Redis(RedisUrl),
}

/// `file:DIR`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileUrl {
    /// The directory, which must exist.
    pub directory: PathBuf,
    /// Whether a page is stored only when the device has it.
    pub sync: bool,
}

/// `redis://…` and `rediss://…`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedisUrl {
    /// The servers: one, or some of a Cluster. Never empty.
    pub hosts: Vec<Host>,
    /// The user of the server's access list.
    pub user: Option<String>,
    /// Password in the URL, if any.
    pub password: Option<Secret>,
    /// The number of the database.
    pub database: u32,
    /// TLS files; `None`: the connection is not encrypted.
    pub tls: Option<TlsFiles>,
    /// Number of replicas that acknowledge a page before it is stored; `None` is one, where the server has any.
    pub replicas: Option<u32>,
    /// Time limit of a request without an answer.
    pub timeout: Duration,
    /// Life time of pages after masu was killed.
    pub ttl: Duration,
    /// Whether a server that evicts keys when it is full is accepted.
    pub accepts_eviction: bool,
}

/// Name or address of a server, and its port.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Host {
    /// A name, or an address without brackets.
    pub name: String,
    /// The TCP port.
    pub port: u16,
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.name.contains(':') {
            return write!(f, "[{}]:{}", self.name, self.port);
        }
        write!(f, "{}:{}", self.name, self.port)
    }
}

/// Files in PEM form for an encrypted connection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsFiles {
    /// Certificates of the server's signers; without it, the system's.
    pub authorities: Option<PathBuf>,
    /// masu's own certificate and its key, if the server asks for one.
    pub own: Option<(PathBuf, PathBuf)>,
}

/// Reason why a text is no store URL: one line with an example.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}, such as {example}")]
pub struct BadUrl {
    what: String,
    example: &'static str,
}

/// Default port of Redis.
const PORT: u16 = 6379;
/// Long enough for a server that saves its data, short enough to notice one that is gone.
const TIMEOUT: Duration = Duration::from_secs(5);
/// A laptop may sleep for a night, and find its pages in the morning.
const TTL: Duration = Duration::from_secs(24 * 3600);
/// Least life time: leases are renewed four times in that; a minute leaves time for a server that is away for a while.
const TTL_MIN: Duration = Duration::from_secs(60);
const REDIS: &str = "redis://node1:6379,node2:6379";
const FILE: &str = "file:/var/tmp";

impl FromStr for StoreUrl {
    type Err = BadUrl;

    fn from_str(text: &str) -> Result<StoreUrl, BadUrl> {
        let parsed = match text.split_once(':') {
            Some(("file", rest)) => FileUrl::parse(rest).map(StoreUrl::File),
            Some(("redis", rest)) => RedisUrl::parse(rest, None).map(StoreUrl::Redis),
            Some(("rediss", rest)) => RedisUrl::parse(rest, Some(TlsFiles::default())).map(StoreUrl::Redis),
            Some((scheme, _)) if is_scheme(scheme) => Err(bad(
                format!("store URL: {scheme}: is no kind of store; expected file:, redis:// or rediss://"),
                REDIS,
            )),
            _ => Err(bad("store URL: expected file:DIR, redis://… or rediss://…".to_owned(), REDIS)),
        };
        let no_control = text.chars().all(|c| !c.is_control());
        if no_control { parsed } else { Err(bad("store URL: holds a control character".to_owned(), REDIS)) }
    }
}

impl fmt::Display for StoreUrl {
    /// Prints the URL without user, password and options.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StoreUrl::File(url) => url.fmt(f),
            StoreUrl::Redis(url) => url.fmt(f),
        }
    }
}

impl fmt::Display for FileUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "file:{}", self.directory.display())
    }
}

impl fmt::Display for RedisUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hosts: Vec<_> = self.hosts.iter().map(Host::to_string).collect();
        f.write_str(if self.tls.is_some() { "rediss://" } else { "redis://" })?;
        f.write_str(&hosts.join(","))?;
        if self.database > 0 { write!(f, "/{}", self.database) } else { Ok(()) }
    }
}

impl FileUrl {
    fn parse(rest: &str) -> Result<FileUrl, BadUrl> {
        let (directory, options) = split_options(rest);
        let directory = match directory.strip_prefix("//") {
            Some(absolute) if absolute.starts_with('/') => absolute,
            Some(_) => {
                return Err(bad("store URL: file: names a directory of this machine, without a host".to_owned(), FILE));
            }
            None => directory,
        };
        if directory.is_empty() {
            return Err(bad("store URL: file: without a directory".to_owned(), FILE));
        }
        let decoded = decode(directory);
        let directory =
            decoded.ok_or_else(|| bad("store URL: a % in the directory is written as %25".to_owned(), FILE))?;
        let mut url = FileUrl { directory: directory.into(), sync: false };
        for option in options {
            match option {
                ("sync", "" | "1" | "yes") => url.sync = true,
                ("sync", "0" | "no") => url.sync = false,
                ("sync", value) => return Err(bad_value("sync", value, "yes or no", "file:/var/tmp?sync=yes")),
                (name, _) => {
                    return Err(bad(format!("store URL: file: has no option {}; it has sync", quote(name)), FILE));
                }
            }
        }
        Ok(url)
    }
}

impl RedisUrl {
    fn parse(rest: &str, tls: Option<TlsFiles>) -> Result<RedisUrl, BadUrl> {
        let Some(rest) = rest.strip_prefix("//") else {
            return Err(bad("store URL: expected two slashes after redis:".to_owned(), REDIS));
        };
        let authority_end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (authority, rest) = rest.split_at(authority_end);
        if rest.contains('@') {
            // The text before that @ may be a password: nothing of it is repeated.
            let what = "store URL: an @ after the host; in a password / ? # @ are written as %2F %3F %23 %40";
            return Err(bad(what.to_owned(), "redis://user:pass%2Fword@node1:6379"));
        }
        if rest.contains('#') {
            return Err(bad("store URL: has no part after a #".to_owned(), REDIS));
        }
        let (user, password, hosts) = match authority.rsplit_once('@') {
            None => (None, None, authority),
            Some((credentials, hosts)) => {
                let (user, password) = credentials.split_once(':').map_or((credentials, None), |(u, p)| (u, Some(p)));
                let undecodable = || bad("store URL: a % in user or password is written as %25".to_owned(), REDIS);
                let user = decode(user).ok_or_else(undecodable)?;
                let password = password.map(|password| decode(password).ok_or_else(undecodable)).transpose()?;
                (Some(user).filter(|user| !user.is_empty()), password.filter(|p| !p.is_empty()), hosts)
            }
        };
        let hosts = hosts.split(',').map(Host::parse).collect::<Result<_, _>>()?;
        let (path, options) = split_options(rest);
        let database = match path.trim_start_matches('/') {
            "" => 0,
            number => number.parse().map_err(|_| {
                bad(format!("store URL: database {}: expected a number", quote(number)), "redis://node1:6379/0")
            })?,
        };
        let mut url = RedisUrl {
            hosts,
            user,
            password: password.map(Secret),
            database,
            tls,
            replicas: None,
            timeout: TIMEOUT,
            ttl: TTL,
            accepts_eviction: false,
        };
        url.take_options(&options)?;
        Ok(url)
    }

    fn take_options(&mut self, options: &[(&str, &str)]) -> Result<(), BadUrl> {
        let (mut certificate, mut key) = (None, None);
        for &(name, value) in options {
            match name {
                "replicas" => {
                    let replicas = value.parse().ok().filter(|&replicas: &u32| replicas <= 100);
                    let example = "redis://node1:6379?replicas=1";
                    self.replicas =
                        Some(replicas.ok_or_else(|| bad_value(name, value, "a number up to 100", example))?);
                }
                "timeout" => {
                    let range = Duration::from_millis(10)..=Duration::from_secs(3600);
                    self.timeout = duration(name, value, range, "10ms to 1h", "redis://node1:6379?timeout=5s")?;
                }
                "ttl" => {
                    let range = TTL_MIN..=Duration::from_secs(365 * 24 * 3600);
                    self.ttl = duration(name, value, range, "1m to 1y", "redis://node1:6379?ttl=24h")?;
                }
                "eviction" if value == "accept" => self.accepts_eviction = true,
                "eviction" => return Err(bad_value(name, value, "accept", "redis://node1:6379?eviction=accept")),
                "ca" | "cert" | "key" => {
                    let example = "rediss://node1:6379?ca=/etc/ssl/redis-ca.pem";
                    let Some(tls) = &mut self.tls else {
                        return Err(bad(
                            format!("store URL: {name}= needs an encrypted connection, rediss://"),
                            example,
                        ));
                    };
                    let file = decode(value).filter(|file| !file.is_empty());
                    let file = Some(file.ok_or_else(|| bad_value(name, value, "a file", example))?.into());
                    match name {
                        "ca" => tls.authorities = file,
                        "cert" => certificate = file,
                        _ => key = file,
                    }
                }
                _ => {
                    let known = "replicas, timeout, ttl, eviction, ca, cert and key";
                    let what = format!("store URL: redis:// has no option {}; it has {known}", quote(name));
                    return Err(bad(what, "redis://node1:6379?replicas=1"));
                }
            }
        }
        match (certificate, key, &mut self.tls) {
            (Some(certificate), Some(key), Some(tls)) => tls.own = Some((certificate, key)),
            (None, None, _) => (),
            _ => {
                let what = "store URL: cert= and key= go together".to_owned();
                return Err(bad(what, "rediss://node1:6379?cert=/etc/own.pem&key=/etc/own.key"));
            }
        }
        Ok(())
    }
}

impl Host {
    fn parse(text: &str) -> Result<Host, BadUrl> {
        let (name, port) = match text.strip_prefix('[') {
            Some(address) => {
                let (address, port) = address.split_once(']').ok_or_else(|| {
                    bad(format!("store URL: host {}: a [ without its ]", quote(text)), "redis://[::1]:6379")
                })?;
                let valid = address.parse::<std::net::Ipv6Addr>().is_ok() && (port.is_empty() || port.starts_with(':'));
                if !valid {
                    let what = format!("store URL: host {}: expected an IPv6 address in brackets", quote(text));
                    return Err(bad(what, "redis://[::1]:6379"));
                }
                (address, port.strip_prefix(':'))
            }
            None => text.split_once(':').map_or((text, None), |(name, port)| (name, Some(port))),
        };
        if name.is_empty() {
            return Err(bad("store URL: a host without a name".to_owned(), REDIS));
        }
        if port.is_some_and(|port| port.contains(':')) {
            let what = format!("store URL: host {}: an IPv6 address stands in brackets", quote(text));
            return Err(bad(what, "redis://[::1]:6379"));
        }
        let letter = |c: char| c.is_alphanumeric() || "-._:".contains(c);
        if !name.chars().all(letter) {
            return Err(bad(format!("store URL: host {}: expected a name or an address", quote(name)), REDIS));
        }
        let port = match port {
            None => PORT,
            Some(port) => port.parse().ok().filter(|&port| port > 0).ok_or_else(|| {
                bad(format!("store URL: port {} of host {}: expected 1 to 65535", quote(port), quote(name)), REDIS)
            })?,
        };
        Ok(Host { name: name.to_owned(), port })
    }
}

/// Splits `PATH?a=1&b` into the path and its options; an option without a value has an empty one.
fn split_options(text: &str) -> (&str, Vec<(&str, &str)>) {
    let (path, query) = text.split_once('?').unwrap_or((text, ""));
    let pieces = query.split('&').filter(|piece| !piece.is_empty());
    (path, pieces.map(|piece| piece.split_once('=').unwrap_or((piece, ""))).collect())
}

/// Decodes `%40` to `@`. `None` for a % without two hexadecimal digits after it, and for bytes that are no text.
fn decode(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut pieces = text.split('%');
    bytes.extend_from_slice(pieces.next()?.as_bytes());
    for piece in pieces {
        let digits = piece.get(..2).filter(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()))?;
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        bytes.extend_from_slice(&piece.as_bytes()[2..]);
    }
    String::from_utf8(bytes).ok().filter(|text| !text.contains('\0'))
}

fn duration(
    name: &str,
    value: &str,
    range: std::ops::RangeInclusive<Duration>,
    expected: &str,
    example: &'static str,
) -> Result<Duration, BadUrl> {
    let parsed = humantime::parse_duration(value).ok().filter(|duration| range.contains(duration));
    parsed.ok_or_else(|| bad_value(name, value, &format!("a time, {expected}"), example))
}

fn is_scheme(text: &str) -> bool {
    !text.is_empty() && text.len() <= 16 && text.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c))
}

fn bad(what: String, example: &'static str) -> BadUrl {
    BadUrl { what, example }
}

fn bad_value(name: &str, value: &str, expected: &str, example: &'static str) -> BadUrl {
    bad(format!("store URL: {name}={}: expected {expected}", shorten(value)), example)
}

fn quote(text: &str) -> String {
    format!("\"{}\"", shorten(text))
}

/// At most 40 characters of the text, in one line.
fn shorten(text: &str) -> String {
    let visible = |c: char| if c.is_control() { '\u{fffd}' } else { c };
    match text.char_indices().nth(40) {
        Some((end, _)) => text[..end].chars().map(visible).chain(['…']).collect(),
        None => text.chars().map(visible).collect(),
    }
}

#[cfg(test)]
mod tests;
