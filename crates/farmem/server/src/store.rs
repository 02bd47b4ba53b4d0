//! Stores: backing stores of a program's pages.
//!
//! A store keeps pages of 4 KiB under a [`Location`]: a layer and a number. `put` returns when the pages are stored, not
//! before; `get` fills buffers or names the lost page. Calls block, and many threads make them at once. Temporary
//! failures ([`Error::is_passing`]) are retried by [`retry::Patient`], which wraps a store; a store itself tries at
//! most once more, so that a connection that was closed while idle is not an outage.
//!
//! Neighbours: `file.rs` and `redis.rs` are the stores, `url.rs` selects one, `sealed.rs` wraps an untrusted one.
//! Without `sealed.rs`, the caller checks the bytes of a page by a checksum; a store finds only missing bytes. A store
//! keeps pages of [`Opening::page_bytes`] bytes, and does not interpret them.

pub mod file;
pub mod redis;
pub mod retry;
pub mod sealed;
pub mod url;

use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use linux::untrusted::visible;
use units::Bytes;

use url::StoreUrl;

/// Bytes of a page.
pub const PAGE_BYTES: usize = 4096;

/// Fixed place of a page in the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Location {
    /// Address space of the program; a layer is forgotten as a whole.
    pub layer: u32,
    /// Number of the page in the layer: dense, from 0.
    pub page: u64,
}

impl Location {
    /// The highest page number, and one more: 2^40 pages are 4 PiB, and their offsets fit a file.
    pub const PAGES_MAX: u64 = 1 << 40;
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "page {} of layer {}", self.page, self.layer)
    }
}

/// Consecutive pages, to be written.
#[derive(Clone, Copy, Debug)]
pub struct PutRun<'a> {
    /// Place of the first page.
    pub location: Location,
    /// Content: a multiple of the bytes of a page.
    pub bytes: &'a [u8],
}

/// Consecutive pages, to be read.
#[derive(Debug)]
pub struct GetRun<'a> {
    /// Place of the first page.
    pub location: Location,
    /// Destination: a multiple of the bytes of a page.
    pub bytes: &'a mut [u8],
}

/// Consecutive pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Place of the first page.
    pub location: Location,
    /// Number of pages.
    pub pages: u64,
}

impl PutRun<'_> {
    /// Span of the run, with `page_bytes` per page.
    pub fn span(&self, page_bytes: usize) -> Span {
        Span { location: self.location, pages: (self.bytes.len() / page_bytes) as u64 }
    }
}

impl GetRun<'_> {
    /// Span of the run, with `page_bytes` per page.
    pub fn span(&self, page_bytes: usize) -> Span {
        Span { location: self.location, pages: (self.bytes.len() / page_bytes) as u64 }
    }
}

/// Keeps pages. Every call blocks until it is done or has failed, and several threads make calls at once.
///
/// Two calls at once on the same page are the caller's mistake, except two `get`; so is a page that a call names twice.
/// After a failed call the unfinished part is undefined: a `put` that failed may have written some of its pages, and
/// none of them late (after a later call on the same page was answered).
///
/// A page that was never put, or was forgotten, has no contents: `get` answers zeros or [`Error::Lost`].
pub trait Store: Send + Sync {
    /// The URL, without user and password.
    fn name(&self) -> &str;

    /// Writes the pages. Returns when they are stored: in the file, or in a server and acknowledged by its replicas.
    ///
    /// # Errors
    /// All but `Lost`.
    fn put(&self, runs: &[PutRun<'_>]) -> Result<(), Error>;

    /// Reads the pages into the runs' buffers.
    ///
    /// # Errors
    /// `Lost` names a page that is not there, or not whole; the buffers' contents are then undefined.
    fn get(&self, runs: &mut [GetRun<'_>]) -> Result<(), Error>;

    /// Releases the space of the pages, as far as possible: their contents are never requested again.
    ///
    /// # Errors
    /// A caller may ignore them; then the store holds more than it needs.
    fn forget(&self, spans: &[Span]) -> Result<(), Error>;

    /// Forgets all pages of a layer.
    ///
    /// # Errors
    /// As `forget`.
    fn forget_layer(&self, layer: u32) -> Result<(), Error>;

    /// File of a layer, for a program that reads and writes its pages there itself (page n at n * 4096). `None` if this
    /// store is not a file.
    ///
    /// # Errors
    /// The file cannot be made.
    fn direct(&self, layer: u32) -> Result<Option<Arc<OwnedFd>>, Error> {
        let _ = layer;
        Ok(None)
    }

    /// Releases everything. The store is not used afterwards; a second call does nothing.
    ///
    /// # Errors
    /// Pages were left behind; the error names the place.
    fn close(&self) -> Result<(), Error>;
}

/// Failure, with its place and the remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// Failed operation, with the preposition: `put 16 pages (from page 32 of layer 0) into`.
    pub operation: String,
    /// The store's name: the URL, without user and password.
    pub store: String,
    /// Cause, in the store's words where it gave some.
    pub cause: String,
    /// Remedy.
    pub remedy: String,
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A server chose the words of the cause.
        write!(f, "cannot {} {}: {}", self.operation, visible(&self.store), visible(&self.cause))
    }
}

/// Failure of a store, by the caller's options. Prints as one line; [`Error::remedy`] is the second.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The store does not answer, or not now. The same call may work later.
    #[error("{0}")]
    Unreachable(Trouble),
    /// The store denies access: password, rights, certificate.
    #[error("{0}")]
    Refused(Trouble),
    /// The store is full.
    #[error("{0}")]
    Full(Trouble),
    /// A page that was put is not there, or not whole.
    #[error("{0}")]
    Lost(Trouble),
    /// The store exists and cannot be used as it is: no directory, a replica, a server that evicts keys.
    #[error("{0}")]
    Unfit(Trouble),
}

impl Error {
    /// Failure without its kind.
    pub fn trouble(&self) -> &Trouble {
        let (Error::Unreachable(trouble)
        | Error::Refused(trouble)
        | Error::Full(trouble)
        | Error::Lost(trouble)
        | Error::Unfit(trouble)) = self;
        trouble
    }

    /// Remedy: the second line of a message.
    pub fn remedy(&self) -> &str {
        &self.trouble().remedy
    }

    /// True when the same call may work later.
    pub fn is_passing(&self) -> bool {
        matches!(self, Error::Unreachable(_))
    }
}

/// Sink of a store's notices for the user: one line each.
pub type Say = Arc<dyn Fn(&str) + Send + Sync>;

/// Parameters for opening a store, besides its URL.
#[derive(Clone)]
pub struct Opening {
    /// Bytes of a page in the store: [`PAGE_BYTES`], or [`sealed::PAGE_BYTES_SEALED`].
    pub page_bytes: usize,
    /// Expected amount of data, if known.
    pub expected: Option<Bytes>,
    /// Password that is not in the URL; it overrides the URL's. See [`password_from_environment`].
    pub password: Option<url::Secret>,
    /// Sink of notices.
    pub say: Say,
}

/// Environment variable for the password, so that it need not appear in the list of processes.
pub const PASSWORD_VARIABLE: &str = "MASU_STORE_PASSWORD";

/// Password from [`PASSWORD_VARIABLE`]; an empty one counts as none.
pub fn password_from_environment() -> Option<url::Secret> {
    std::env::var(PASSWORD_VARIABLE).ok().filter(|password| !password.is_empty()).map(url::Secret::new)
}

/// Opens a store and tests it: a store that cannot be reached or used fails here.
///
/// # Errors
/// All but `Lost`. Nothing is retried: at the start, a user waits for the answer.
pub fn open(url: &StoreUrl, opening: &Opening) -> Result<Arc<dyn Store>, Error> {
    Ok(match url {
        StoreUrl::File(url) => Arc::new(file::FileStore::open(url, opening)?),
        StoreUrl::Redis(url) => Arc::new(redis::RedisStore::open(url, opening)?),
    })
}

/// `put 16 pages (from page 32 of layer 0) into`.
fn operation(verb: &str, mut spans: impl Iterator<Item = Span>, preposition: &str) -> String {
    let Some(first) = spans.next() else {
        return format!("{verb} nothing {preposition}");
    };
    let (more, pages) = spans.fold((0u64, first.pages), |(runs, pages), span| (runs + 1, pages + span.pages));
    let noun = if pages == 1 { "page" } else { "pages" };
    match more {
        0 => format!("{verb} {pages} {noun} (from {}) {preposition}", first.location),
        _ => format!("{verb} {pages} {noun} (from {}, and {more} more runs) {preposition}", first.location),
    }
}

/// Asserts that runs are whole pages within bounds: anything else is masu's own mistake.
fn assert_whole(span: Span, bytes: usize, page_bytes: usize) {
    assert!(bytes.is_multiple_of(page_bytes), "{bytes} bytes at {}: no whole pages", span.location);
    assert_in_bounds(span);
}

fn assert_in_bounds(span: Span) {
    let end = span.location.page.checked_add(span.pages);
    assert!(
        end.is_some_and(|end| end <= Location::PAGES_MAX),
        "{} pages at {}: beyond any store",
        span.pages,
        span.location
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(page: u64, pages: u64) -> Span {
        Span { location: Location { layer: 3, page }, pages }
    }

    #[test]
    fn a_message_names_operation_store_and_cause_in_one_line() {
        let operation = operation("put", [span(32, 16), span(99, 1)].into_iter(), "into");
        let error = Error::Full(Trouble {
            operation,
            store: "file:/var/tmp".to_owned(),
            cause: "no space left on device (ENOSPC)".to_owned(),
            remedy: "Name a directory with more room.".to_owned(),
        });
        assert_eq!(
            error.to_string(),
            "cannot put 17 pages (from page 32 of layer 3, and 1 more runs) into file:/var/tmp: \
             no space left on device (ENOSPC)"
        );
        assert_eq!(error.remedy(), "Name a directory with more room.");
        assert!(!error.is_passing());
    }

    #[test]
    fn one_page_is_called_a_page() {
        assert_eq!(operation("get", [span(5, 1)].into_iter(), "from"), "get 1 page (from page 5 of layer 3) from");
    }

    #[test]
    #[should_panic(expected = "no whole pages")]
    fn half_a_page_is_our_own_mistake() {
        assert_whole(span(0, 1), 4095, PAGE_BYTES);
    }

    #[test]
    #[should_panic(expected = "beyond any store")]
    fn a_page_number_beyond_any_store_is_our_own_mistake() {
        assert_in_bounds(span(u64::MAX, 2));
    }
}
