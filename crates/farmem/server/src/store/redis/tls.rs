//! Settings of encrypted connections: certificates and keys, from files that the user names.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use linux::named_file;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use units::Bytes;

use crate::store::url::TlsFiles;

/// Reason why an encrypted connection cannot be configured.
#[derive(Debug, thiserror::Error)]
pub enum BadTls {
    /// The file cannot be read, or not as PEM.
    #[error("{}: {}", file.display(), of_pem(cause))]
    Pem { file: PathBuf, cause: pem::Error },
    /// A certificate or its key is refused.
    #[error("{}: {cause}", file.display())]
    Certificate { file: PathBuf, cause: rustls::Error },
    /// `SSL_CERT_FILE` names a pipe, a device or a directory.
    #[error("{SYSTEM_FILE}={}: {cause}", file.display())]
    System { file: PathBuf, cause: io::Error },
    /// The file has no certificate.
    #[error("{}: holds no certificate", .0.display())]
    Empty(PathBuf),
    /// The cipher suites fit no version of TLS.
    #[error(transparent)]
    Versions(rustls::Error),
}

impl BadTls {
    fn pem(file: &Path, cause: pem::Error) -> BadTls {
        BadTls::Pem { file: file.to_owned(), cause }
    }

    fn certificate(file: &Path, cause: rustls::Error) -> BadTls {
        BadTls::Certificate { file: file.to_owned(), cause }
    }
}

fn of_pem(cause: &pem::Error) -> String {
    match cause {
        pem::Error::Io(error) => linux::describe_io(error),
        cause => cause.to_string(),
    }
}

/// Largest file of certificates or keys.
const PEM_MOST: Bytes = Bytes::mib(16);

/// Environment variable that names the system's certificates for the libraries of TLS.
const SYSTEM_FILE: &str = "SSL_CERT_FILE";

fn content(file: &Path) -> Result<Vec<u8>, BadTls> {
    named_file::read(file, PEM_MOST).map_err(|error| BadTls::pem(file, pem::Error::Io(error)))
}

/// Refuses a file that is none: the library would open a pipe, and wait for its writer. It passes over a missing file.
fn check_system_file(file: Option<OsString>) -> Result<(), BadTls> {
    let Some(file) = file.map(PathBuf::from) else { return Ok(()) };
    match named_file::open(&file) {
        Err(cause) if cause.kind() == io::ErrorKind::InvalidInput => Err(BadTls::System { file, cause }),
        _ => Ok(()),
    }
}

/// Reads the certificates; all connections share the result.
///
/// # Errors
/// The file, and its fault.
pub fn settings(files: &TlsFiles) -> Result<Arc<rustls::ClientConfig>, BadTls> {
    let mut roots = rustls::RootCertStore::empty();
    match &files.authorities {
        Some(file) => {
            for certificate in CertificateDer::pem_slice_iter(&content(file)?) {
                let certificate = certificate.map_err(|error| BadTls::pem(file, error))?;
                roots.add(certificate).map_err(|error| BadTls::certificate(file, error))?;
            }
            if roots.is_empty() {
                return Err(BadTls::Empty(file.clone()));
            }
        }
        None => {
            check_system_file(std::env::var_os(SYSTEM_FILE))?;
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ClientConfig::builder_with_provider(provider);
    let builder = builder.with_safe_default_protocol_versions().map_err(BadTls::Versions)?;
    let builder = builder.with_root_certificates(roots);
    let Some((certificate, key)) = &files.own else {
        return Ok(Arc::new(builder.with_no_client_auth()));
    };
    let chain = CertificateDer::pem_slice_iter(&content(certificate)?).collect::<Result<Vec<_>, _>>();
    let chain = chain.map_err(|error| BadTls::pem(certificate, error))?;
    let key_read = PrivateKeyDer::from_pem_slice(&content(key)?).map_err(|error| BadTls::pem(key, error))?;
    let config = builder.with_client_auth_cert(chain, key_read);
    let config = config.map_err(|error| BadTls::certificate(certificate, error))?;
    Ok(Arc::new(config))
}

#[cfg(test)]
mod tests {
    use rustix::fs::{CWD, FileType, Mode, mknodat};

    use super::*;

    #[test]
    fn a_pipe_without_a_writer_is_refused_as_any_of_the_files() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        mknodat(CWD, &pipe, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        let file = folder.path().join("file");
        std::fs::write(&file, "").unwrap();
        let own = |certificate: &Path, key: &Path| Some((certificate.to_owned(), key.to_owned()));
        let authorities = Some(pipe.clone());
        for files in [
            TlsFiles { authorities, own: None },
            TlsFiles { authorities: None, own: own(&pipe, &file) },
            TlsFiles { authorities: None, own: own(&file, &pipe) },
        ] {
            let refused = settings(&files).unwrap_err().to_string();
            assert_eq!(refused, format!("{}: nobody writes to this pipe; start its writer first", pipe.display()));
        }
        let system = check_system_file(Some(pipe.clone().into())).unwrap_err().to_string();
        assert_eq!(system, format!("SSL_CERT_FILE={}: it is a pipe, not a file", pipe.display()));
        assert!(check_system_file(Some("/no/such/file".into())).is_ok() && check_system_file(None).is_ok());
    }
}
