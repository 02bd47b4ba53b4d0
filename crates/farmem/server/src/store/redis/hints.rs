//! Remedies: what a user can do about a failure of a server, by its cause.

use std::io::ErrorKind;

use rustix::io::Errno;
use rustls::pki_types::pem;
use rustls::{AlertDescription, CertificateError};

use super::PASSWORD_VARIABLE;
use super::answers::Verdict;
use super::connection::{Failure, tls_failure};
use super::tls::BadTls;

const RIGHTS: &str =
    "Its user needs the keys masu:* and the commands HSET HMGET HDEL EXPIRE UNLINK WAIT INFO CLIENT CLUSTER ASKING.";
const NO_TLS: &str = "Does it speak TLS on this port? Without TLS the store is redis://.";
const HAS_TLS: &str = "Is this a port of Redis? If it speaks TLS, the store is rediss://.";
const REACH: &str = "Is it running, and reachable from here? `redis-cli -h HOST -p PORT ping` asks it.";

const ANSWERS: &str = "Something other than Redis, or a proxy, answers there.";

/// Cause in words: a certificate's fault is not printed as a structure.
pub fn cause(failure: &Failure) -> String {
    let said = match tls_failure(failure) {
        Some(rustls::Error::InvalidCertificate(fault)) => match certificate(fault) {
            Fault::Authority => "its own certificate is that of an authority (CA:TRUE)",
            Fault::Unknown => "the authority of its certificate is not known here",
            Fault::Name => "its certificate is for another name than that of the URL",
            Fault::Time => "its certificate has expired, or is not valid yet",
            Fault::Other => return failure.to_string(),
        },
        Some(rustls::Error::AlertReceived(AlertDescription::CertificateRequired)) => {
            "it asks for a certificate of its clients"
        }
        Some(rustls::Error::AlertReceived(alert)) if is_about_ours(*alert) => "it does not accept our certificate",
        _ => return failure.to_string(),
    };
    said.to_owned()
}

/// Whether the server refuses the certificate that it was given.
fn is_about_ours(alert: AlertDescription) -> bool {
    matches!(
        alert,
        AlertDescription::UnknownCA
            | AlertDescription::BadCertificate
            | AlertDescription::UnsupportedCertificate
            | AlertDescription::CertificateRevoked
            | AlertDescription::CertificateExpired
            | AlertDescription::CertificateUnknown
            | AlertDescription::AccessDenied
    )
}

/// Remedy for a server that ends the handshake.
fn of_alert(alert: AlertDescription) -> &'static str {
    match alert {
        AlertDescription::CertificateRequired => "Name one that its authority has signed: ?cert=FILE&key=FILE.",
        alert if is_about_ours(alert) => {
            "?cert=FILE is to be signed by an authority that it knows (tls-ca-cert-file there), and within its time."
        }
        AlertDescription::ProtocolVersion | AlertDescription::InsufficientSecurity => {
            "masu speaks TLS 1.2 and 1.3: allow one of them there (tls-protocols, tls-ciphers, tls-ciphersuites)."
        }
        AlertDescription::UnrecognisedName => "It knows no such name: say the one in its certificate.",
        _ => "Its log says why. It may ask for a certificate of its clients: ?cert=FILE&key=FILE.",
    }
}

/// Remedy for files that cannot be used for TLS.
pub fn of_files(bad: &BadTls) -> &'static str {
    match bad {
        BadTls::Pem { cause: pem::Error::Io(_), .. } => {
            "Name a file that masu may read: ?ca=FILE, or ?cert=FILE&key=FILE."
        }
        BadTls::System { .. } => "Correct this environment variable, or name the certificates: ?ca=FILE.",
        BadTls::Certificate { cause: rustls::Error::InconsistentKeys(_), .. } => {
            "Name the key that belongs to that certificate: ?cert=FILE&key=FILE."
        }
        BadTls::Pem { .. } | BadTls::Certificate { .. } | BadTls::Empty(_) => {
            "Name files in PEM form: ?ca=FILE, or ?cert=FILE&key=FILE."
        }
        BadTls::Versions(_) => "This is a fault of masu; without TLS the store is redis://.",
    }
}

/// Fault of a certificate.
enum Fault {
    /// The certificate of an authority is used as the server's.
    Authority,
    /// No known authority has signed it.
    Unknown,
    /// Another name.
    Name,
    /// Outside its time.
    Time,
    /// Any other.
    Other,
}

fn certificate(fault: &CertificateError) -> Fault {
    match fault {
        CertificateError::UnknownIssuer | CertificateError::BadSignature => Fault::Unknown,
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => Fault::Name,
        CertificateError::Expired
        | CertificateError::ExpiredContext { .. }
        | CertificateError::NotValidYet
        | CertificateError::NotValidYetContext { .. } => Fault::Time,
        // Of the verifier, which has no variant of its own for it.
        CertificateError::Other(other) if format!("{other:?}").contains("CaUsedAsEndEntity") => Fault::Authority,
        _ => Fault::Other,
    }
}

/// Remedy for a failure; `tls` tells whether the URL asks for TLS.
pub fn remedy(failure: &Failure, tls: bool, at_start: bool) -> String {
    match failure {
        Failure::Said { verdict, line } => return of_line(verdict, line, at_start),
        Failure::Unacknowledged { .. } => "Is its replica running, and connected? INFO replication tells.",
        Failure::NoMaster(_) | Failure::OutOfDate { .. } | Failure::TooManyNodes => {
            "`redis-cli --cluster check HOST:PORT` tells more."
        }
        Failure::Io(error) => match tls_failure(failure) {
            Some(rustls::Error::InvalidCertificate(fault)) => match certificate(fault) {
                Fault::Authority => {
                    "Give the server a certificate of its own: signed by that authority (then ?ca= names the authority's), or \
                     self-signed with basicConstraints=CA:FALSE."
                }
                Fault::Unknown => {
                    "Name the file with the certificate of the authority that signed it: ?ca=FILE. That is its issuer's, not its own; \
                     `openssl s_client -connect HOST:PORT` shows both."
                }
                Fault::Name => {
                    "Say the name or address that is in the certificate (subjectAltName), or make one for this name."
                }
                Fault::Time => "Renew it, or set the clock of this machine.",
                Fault::Other => "`openssl s_client -connect HOST:PORT` shows it.",
            },
            Some(rustls::Error::AlertReceived(alert)) => of_alert(*alert),
            Some(_) if at_start => NO_TLS,
            Some(_) => ANSWERS,
            None => of_io(error, tls, at_start),
        },
    }
    .to_owned()
}

fn of_io(error: &std::io::Error, tls: bool, at_start: bool) -> &'static str {
    if matches!(Errno::from_io_error(error), Some(Errno::MFILE | Errno::NFILE)) {
        return "masu has no descriptor left: raise the limit of open files (`ulimit -n`, LimitNOFILE=, fs.file-max).";
    }
    // The resolver has no error number.
    if error.to_string().contains("lookup address") {
        return "No such host is known: see the name in --store, /etc/hosts, and the name server in /etc/resolv.conf.";
    }
    match error.kind() {
        ErrorKind::ConnectionRefused => {
            "Nothing listens there: start the server, or correct the port (6379 without one) or bind address."
        }
        ErrorKind::NetworkUnreachable | ErrorKind::HostUnreachable | ErrorKind::AddrNotAvailable => {
            "There is no way to that address from here: see `ip route get ADDRESS`."
        }
        ErrorKind::UnexpectedEof if at_start && !tls => {
            "Is this a port of Redis, and may it have more clients (maxclients)? If it speaks TLS, the store is rediss://."
        }
        ErrorKind::UnexpectedEof
        | ErrorKind::ConnectionReset
        | ErrorKind::ConnectionAborted
        | ErrorKind::BrokenPipe
        | ErrorKind::InvalidData
            if at_start =>
        {
            if tls {
                NO_TLS
            } else {
                HAS_TLS
            }
        }
        ErrorKind::TimedOut | ErrorKind::WouldBlock if at_start && tls => {
            "It does not answer: it may be overloaded or stopped, a firewall may drop packets, or it does not speak TLS (then the \
             store is redis://)."
        }
        ErrorKind::TimedOut | ErrorKind::WouldBlock => {
            "It does not answer: it may be overloaded or stopped, a firewall may drop packets, or the address is another machine's."
        }
        ErrorKind::InvalidData => ANSWERS,
        _ => REACH,
    }
}

/// Whether the server does not know a command, or a form of it.
fn is_unknown_command(line: &str) -> bool {
    let line = line.to_ascii_lowercase();
    ["unknown command", "unknown subcommand", "wrong number of arguments", "syntax error"]
        .iter()
        .any(|words| line.contains(words))
}

/// Remedy for an error line of the server; empty where its own words are all that is known.
fn of_line(verdict: &Verdict, line: &str, at_start: bool) -> String {
    let first = line.split_whitespace().next().unwrap_or_default();
    match (first, verdict) {
        ("NOPERM", _) => RIGHTS,
        ("DENIED", _) => {
            "It serves this machine alone (protected mode): set a password there (requirepass), and then `protected-mode no`."
        }
        ("NOAUTH", _) => return format!("It wants a password: set {PASSWORD_VARIABLE}; the user stands in the URL: redis://USER@HOST."),
        ("ERR", Verdict::Refused) if line.contains("without any password") => {
            return format!("It has no password: unset {PASSWORD_VARIABLE}, and say none in the URL.");
        }
        (_, Verdict::Refused) => {
            return format!("Set {PASSWORD_VARIABLE} to the right password; the user stands in the URL: redis://USER@HOST.");
        }
        ("LOADING", _) => "It reads its data from disk after a start: try again when `redis-cli ping` says PONG.",
        ("BUSY", _) => "A script runs there: wait for it, or `redis-cli SCRIPT KILL`.",
        ("NOREPLICAS", _) => "It takes writes only with replicas (min-replicas-to-write): start them, or lower that number.",
        ("MASTERDOWN", _) => "It is a replica without its master: name the master.",
        ("READONLY", _) => "It is a replica: name its master.",
        ("MOVED" | "ASK" | "CLUSTERDOWN" | "TRYAGAIN", _) => {
            "Its Cluster changes, or has no master for some slots: `redis-cli --cluster check HOST:PORT` tells more."
        }
        ("ERR", _) if line.contains("max number of clients") => {
            "It has as many clients as it may: raise maxclients there, or end some (CLIENT LIST)."
        }
        ("MISCONF", _) => "It cannot save to its disk: its log says why; make room there, or `CONFIG SET stop-writes-on-bgsave-error no`.",
        (_, Verdict::Full) => "Raise maxmemory there, or free memory; a page takes 5 KiB.",
        (_, Verdict::Unfit) if line.contains("SELECT") || line.contains("DB index") => {
            "Leave the /DATABASE at the end out: a Cluster has none, a server 16 by default."
        }
        (_, Verdict::Unfit) if at_start || is_unknown_command(line) => "Use Redis 6.2 or newer, or Valkey.",
        (_, Verdict::Unfit) => "",
        _ => "It should answer again soon; its log says why it does not.",
    }
    .to_owned()
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::Arc;

    use super::*;
    use crate::store::redis::answers;

    fn io(error: impl Into<io::Error>, tls: bool) -> String {
        remedy(&Failure::Io(error.into()), tls, true)
    }

    #[test]
    fn each_cause_has_its_own_remedy() {
        assert!(io(Errno::MFILE, false).contains("ulimit -n"));
        assert!(io(Errno::CONNREFUSED, true).contains("Nothing listens"));
        assert!(io(io::ErrorKind::UnexpectedEof, false).contains("rediss://"));
        assert!(io(Errno::CONNRESET, true).contains("redis://."));
        assert!(
            io(io::Error::other("failed to lookup address information: Name or service not known"), false)
                .contains("No such host")
        );
        let later = remedy(&Failure::Io(Errno::CONNRESET.into()), true, false);
        assert!(later.contains("reachable"), "a server that has answered speaks what the URL says: {later}");
        for (line, word) in [
            ("LOADING Redis is loading the dataset in memory", "PONG"),
            ("DENIED Redis is running in protected mode", "protected-mode"),
            ("NOAUTH Authentication required.", PASSWORD_VARIABLE),
            ("WRONGPASS invalid username-password pair", "right password"),
            ("ERR AUTH <password> called without any password configured", "unset"),
            ("NOPERM this user has no permissions", "masu:*"),
            ("ERR max number of clients reached", "maxclients"),
            ("OOM command not allowed when used memory > 'maxmemory'.", "maxmemory"),
            ("MISCONF Redis is configured to save RDB snapshots", "its disk"),
            ("ERR DB index is out of range", "/DATABASE"),
            ("CLUSTERDOWN Hash slot not served", "--cluster check"),
            ("READONLY You can't write against a read only replica.", "master"),
        ] {
            let failure = Failure::Said { verdict: answers::verdict(line), line: line.to_owned() };
            let said = remedy(&failure, false, true);
            assert!(said.contains(word), "{line}: {said}");
        }
    }

    #[test]
    fn an_answer_that_is_not_understood_is_no_server_that_is_down() {
        let later = |failure| remedy(&failure, false, false);
        let nonsense = || io::Error::new(io::ErrorKind::InvalidData, "the answer is not understood: x");
        assert_eq!(later(Failure::Io(nonsense())), ANSWERS);
        let tls = io::Error::new(io::ErrorKind::InvalidData, rustls::Error::DecryptError);
        assert_eq!(remedy(&Failure::Io(tls), true, false), ANSWERS);
        assert_eq!(remedy(&Failure::Io(nonsense()), false, true), HAS_TLS);
        assert_eq!(later(Failure::Io(Errno::CONNRESET.into())), REACH);
    }

    #[test]
    fn an_unknown_error_of_a_server_that_has_served_is_not_one_of_its_version() {
        let said = |line: &str, at_start| {
            remedy(&Failure::Said { verdict: answers::verdict(line), line: line.to_owned() }, false, at_start)
        };
        assert_eq!(said("ERR something odd", false), "");
        for (line, at_start) in [("ERR something odd", true), ("ERR unknown command 'HSET'", false)] {
            assert_eq!(said(line, at_start), "Use Redis 6.2 or newer, or Valkey.", "{line}");
        }
    }

    #[test]
    fn a_server_that_refuses_our_certificate_is_told_from_one_that_wants_one() {
        let alert = |alert| {
            let error = rustls::Error::AlertReceived(alert);
            Failure::Io(io::Error::new(io::ErrorKind::InvalidData, error))
        };
        for (of, said, word) in [
            (AlertDescription::CertificateRequired, "asks for", "?cert=FILE&key=FILE"),
            (AlertDescription::UnknownCA, "does not accept our", "tls-ca-cert-file"),
            (AlertDescription::CertificateExpired, "does not accept our", "within its time"),
            (AlertDescription::ProtocolVersion, "fatal alert", "tls-protocols"),
        ] {
            let failure = alert(of);
            assert!(cause(&failure).contains(said), "{}", cause(&failure));
            assert!(remedy(&failure, true, true).contains(word), "{}", remedy(&failure, true, true));
        }
    }

    #[test]
    fn each_fault_of_a_file_has_its_own_remedy() {
        let pem = |cause| BadTls::Pem { file: "/f".into(), cause };
        let missing = pem(pem::Error::Io(io::ErrorKind::NotFound.into()));
        let mismatch = rustls::Error::InconsistentKeys(rustls::InconsistentKeys::KeyMismatch);
        assert!(of_files(&missing).contains("may read"));
        assert!(of_files(&pem(pem::Error::NoItemsFound)).contains("PEM"));
        assert!(of_files(&BadTls::Certificate { file: "/f".into(), cause: mismatch }).contains("belongs to"));
    }

    #[test]
    fn each_fault_of_a_certificate_has_its_own_words() {
        #[derive(Debug)]
        struct CaUsedAsEndEntity;
        impl std::fmt::Display for CaUsedAsEndEntity {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("no variant")
            }
        }
        impl std::error::Error for CaUsedAsEndEntity {}
        let other = CertificateError::Other(rustls::OtherError(Arc::new(CaUsedAsEndEntity)));
        for (fault, said, word) in [
            (other, "CA:TRUE", "CA:FALSE"),
            (CertificateError::UnknownIssuer, "authority", "?ca=FILE"),
            (CertificateError::NotValidForName, "another name", "subjectAltName"),
            (CertificateError::Expired, "expired", "clock"),
        ] {
            let failure =
                Failure::Io(io::Error::new(io::ErrorKind::InvalidData, rustls::Error::InvalidCertificate(fault)));
            assert!(cause(&failure).contains(said), "{}", cause(&failure));
            assert!(remedy(&failure, true, true).contains(word), "{}", remedy(&failure, true, true));
        }
    }
}
