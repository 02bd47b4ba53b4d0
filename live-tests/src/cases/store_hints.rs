//! Remedies of stores that refuse, with a real Redis: each belongs to its cause.

use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};

use super::Outcome;
use super::redis::Redis;
use super::run::{Folder, Result, said};
use super::run_local::paged;
use crate::host::{Host, LiveTest, tests};

/// Tests of this file, and their requirements.
pub(crate) const TESTS: &[LiveTest] = tests! {
    store_hints requires [MasuCommand, PagerLibrary, RedisServer, Shell];
    each_fault_of_tls_has_its_own_remedy [OpenSsl];
    each_refusal_of_a_server_has_its_own_remedy;
};

/// Runs `true` with this store: refused, or with no words begun. `words` are in the first line, `remedy` in the second.
fn with(store: &str, words: &str, remedy: &str) -> Outcome {
    let outcome = said(&mut paged(&["--local", "4MiB", "--no-seal", "--store", store], &["/bin/sh", "-c", ":"])?)?;
    if words.is_empty() {
        assert_eq!(outcome.code(), 0, "{store}: {outcome:?}");
        return Ok(());
    }
    let lines: Vec<&str> = outcome.err.lines().collect();
    let at = lines.iter().position(|line| line.contains(words)).ok_or(format!("{store}: no {words:?}: {outcome:?}"))?;
    assert_eq!(outcome.code(), 125, "{store}: {outcome:?}");
    assert!(lines.get(at + 1).is_some_and(|line| line.contains(remedy)), "{store}: no {remedy:?}: {outcome:?}");
    Ok(())
}

fn openssl(folder: &Path, line: &str) -> Outcome {
    let mut command = Command::new("openssl");
    let done =
        command.current_dir(folder).args(line.split(' ')).stdout(Stdio::null()).stderr(Stdio::piped()).output()?;
    if done.status.success() {
        return Ok(());
    }
    Err(format!("openssl {line}: {}", String::from_utf8_lossy(&done.stderr)).into())
}

const KEY: &str = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -batch";

/// A certificate `name.crt` with its key, signed by `ca`, for this name and this number of days.
fn certificate(folder: &Path, name: &str, alternative: &str, days: i32) -> Outcome {
    std::fs::write(folder.join("ext"), format!("basicConstraints=CA:FALSE\nsubjectAltName={alternative}\n"))?;
    openssl(folder, &format!("req {KEY} -keyout {name}.key -out csr -subj /CN={name}"))?;
    let sign = format!("x509 -req -in csr -CA ca.crt -CAkey ca.key -CAcreateserial -extfile ext -days {days}");
    openssl(folder, &format!("{sign} -out {name}.crt"))
}

/// A server that speaks TLS at a second port, with this certificate.
fn server(folder: &Path, name: &str, clients: &str) -> Result<(Redis, u16)> {
    let port = TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port();
    let file = |end: &str| folder.join(format!("{name}.{end}")).display().to_string();
    let (certificate, key, ca) = (file("crt"), file("key"), folder.join("ca.crt").display().to_string());
    let port_text = port.to_string();
    let options = ["--tls-port", &port_text, "--tls-cert-file", &certificate, "--tls-key-file", &key];
    let tls = [&options[..], &["--tls-ca-cert-file", &ca, "--tls-auth-clients", clients]].concat();
    let server = Redis::start_with(&format!("hints-{name}-{clients}"), &tls)?;
    super::redis::wait_until("it speaks TLS", || TcpStream::connect(("127.0.0.1", port)).is_ok())?;
    Ok((server, port))
}

fn each_fault_of_tls_has_its_own_remedy(_: &Host) -> Outcome {
    let folder = Folder::make("hints")?;
    let at = &folder.0;
    openssl(at, &format!("req -x509 {KEY} -keyout ca.key -out ca.crt -days 2 -subj /CN=ca"))?;
    // As many documents have it: self-signed, with a subject name alone, and so an authority's.
    let alone = format!("req -x509 {KEY} -days 2 -subj /CN=localhost -addext subjectAltName=IP:127.0.0.1");
    openssl(at, &format!("{alone} -keyout self.key -out self.crt"))?;
    openssl(at, &format!("{alone} -addext basicConstraints=critical,CA:FALSE -keyout own.key -out own.crt"))?;
    certificate(at, "good", "IP:127.0.0.1", 2)?;
    certificate(at, "other", "DNS:other.example", 2)?;
    certificate(at, "expired", "IP:127.0.0.1", -1)?;
    let url = |port: u16, query: &str| {
        let files = query.replace('=', &format!("={}/", at.display()));
        format!("rediss://127.0.0.1:{port}?{files}&timeout=2s")
    };
    let (good, port) = server(at, "good", "no")?;
    with(&url(port, "ca=ca.crt"), "", "")?;
    with(&format!("rediss://127.0.0.1:{port}?timeout=2s"), "authority of its certificate is not known", "?ca=FILE")?;
    with(&url(port, "ca=good.crt"), "authority of its certificate is not known", "its issuer's, not its own")?;
    with(&url(port, "ca=own.crt"), "authority of its certificate is not known", "its issuer's, not its own")?;
    with(&url(port, "ca=none.crt"), "none.crt: no such file or directory (ENOENT)", "Name a file that masu may read")?;
    with(&url(port, "ca=ca.key"), "ca.key: holds no certificate", "PEM")?;
    with(&format!("redis://127.0.0.1:{port}?timeout=2s"), "cannot open redis://", "the store is rediss://")?;
    with(&url(good.port, "ca=ca.crt").replace("2s", "500ms"), "cannot open rediss://", "the store is redis://")?;
    drop(good);
    let cases = [
        ("other", "ca.crt", "for another name", "subjectAltName"),
        ("expired", "ca.crt", "has expired", "Renew it"),
        ("self", "self.crt", "that of an authority (CA:TRUE)", "CA:FALSE"),
        ("own", "own.crt", "", ""),
    ];
    for (name, ca, words, remedy) in cases {
        let (_server, port) = server(at, name, "no")?;
        with(&url(port, &format!("ca={ca}")), words, remedy)?;
    }
    let (_server, port) = server(at, "good", "yes")?;
    with(&url(port, "ca=ca.crt"), "it asks for a certificate of its clients", "?cert=FILE&key=FILE")?;
    with(&url(port, "ca=ca.crt&cert=good.crt&key=good.key"), "", "")?;
    with(&url(port, "ca=ca.crt&cert=own.crt&key=own.key"), "does not accept our certificate", "tls-ca-cert-file")?;
    with(&url(port, "ca=ca.crt&cert=good.crt&key=own.key"), "KeyMismatch", "the key that belongs to that certificate")
}

fn each_refusal_of_a_server_has_its_own_remedy(_: &Host) -> Outcome {
    let few = Redis::start_with("hints-few", &["--maxclients", "1"])?;
    // The connection that looked for it at the start has ended.
    super::redis::wait_until("it has no client", || few.ask(&["PING"]).is_ok_and(|answer| answer == "+PONG"))?;
    let client = TcpStream::connect(("127.0.0.1", few.port))?;
    std::thread::sleep(std::time::Duration::from_millis(100));
    with(&few.url(), "max number of clients reached", "raise maxclients")?;
    drop(client);
    let weak = ["--user", "weak", "on", ">pw", "~x*", "+ping", "+client"];
    let weak = Redis::start_with("hints-weak", &weak)?;
    let url = weak.url().replace("redis://", "redis://weak:pw@");
    with(&url, "NOPERM", "HSET HMGET")?;
    // Descriptors of masu's own process.
    let plain = Redis::start("hints-plain")?;
    let store = plain.url();
    let run = paged(&["--local", "4MiB", "--no-seal", "--store", &store], &["/bin/true"])?;
    let mut limited = Command::new("/bin/sh");
    limited.args(["-c", "ulimit -n 10; exec \"$0\" \"$@\""]).arg(run.get_program()).args(run.get_args());
    run.get_envs().for_each(|(name, value)| {
        match value {
            Some(value) => limited.env(name, value),
            None => limited.env_remove(name),
        };
    });
    let outcome = said(&mut limited)?;
    assert_eq!(outcome.code(), 125, "{outcome:?}");
    assert!(outcome.err.contains("ulimit -n") && !outcome.err.contains("no memory"), "{outcome:?}");
    Ok(())
}
