//! Stores: where the pages of a program have their home.
//!
//! A store keeps pages of 4 KiB under a [`Home`]: a layer and a number. `put` returns when the pages are home, not before;
//! `get` fills buffers or says which page is lost. Calls block, and many threads make them at once. What fails for a while
//! ([`Error::is_passing`]) is tried again by [`retry::Patient`], which stands around a store; a store itself tries at most
//! once more, so that a connection that was closed while idle is not an outage.
//!
//! Neighbours: `file.rs` and `redis.rs` are the stores, `url.rs` says which one is meant, `sealed.rs` stands around one that is not
//! trusted. Without it, whether the bytes of a page are the right ones is the caller's to check, by a checksum; too few of them
//! are found here. A store keeps pages of [`Opening::page_bytes`] bytes, which are all its own bytes as far as it knows.

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

/// A page's fixed place in the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Home {
    /// Which of the program's address spaces; a layer is forgotten as a whole.
    pub layer: u32,
    /// The number of the page in it: dense, from 0.
    pub page: u64,
}

impl Home {
    /// The highest page number, and one more: 2^40 pages are 4 PiB, and their offsets fit a file.
    pub const PAGES_MAX: u64 = 1 << 40;
}

impl fmt::Display for Home {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "page {} of layer {}", self.page, self.layer)
    }
}

/// Pages that lie one after the other, to be written.
#[derive(Clone, Copy, Debug)]
pub struct PutRun<'a> {
    /// The first one's home.
    pub home: Home,
    /// Their bytes: a multiple of those of a page.
    pub bytes: &'a [u8],
}

/// Pages that lie one after the other, to be read.
#[derive(Debug)]
pub struct GetRun<'a> {
    /// The first one's home.
    pub home: Home,
    /// Where they go: a multiple of the bytes of a page.
    pub bytes: &'a mut [u8],
}

/// Pages that lie one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The first one's home.
    pub home: Home,
    /// How many.
    pub pages: u64,
}

impl PutRun<'_> {
    /// Its pages, of so many bytes each, without their bytes.
    pub fn span(&self, page_bytes: usize) -> Span {
        Span { home: self.home, pages: (self.bytes.len() / page_bytes) as u64 }
    }
}

impl GetRun<'_> {
    /// Its pages, of so many bytes each, without their bytes.
    pub fn span(&self, page_bytes: usize) -> Span {
        Span { home: self.home, pages: (self.bytes.len() / page_bytes) as u64 }
    }
}

/// Keeps pages. Every call blocks until it is done or has failed, and several threads make calls at once.
///
/// Two calls at once on the same page are the caller's mistake, except two `get`; so is a page that a call names twice. What a call left undone when it failed
/// is undefined: a `put` that failed may have written some of its pages, and none of them late (after a later call on the
/// same page was answered).
///
/// A page that was never put, or was forgotten, has no contents: `get` answers zeros or [`Error::Lost`].
pub trait Store: Send + Sync {
    /// The URL, without user and password.
    fn name(&self) -> &str;

    /// Writes the pages. Returns when they are home: in the file, or in a server and acknowledged by its replicas.
    ///
    /// # Errors
    /// All but `Lost`.
    fn put(&self, runs: &[PutRun<'_>]) -> Result<(), Error>;

    /// Reads the pages into the runs' buffers.
    ///
    /// # Errors
    /// `Lost` names a page that is not there, or not whole; the buffers' contents are then undefined.
    fn get(&self, runs: &mut [GetRun<'_>]) -> Result<(), Error>;

    /// Gives the pages' room back, as far as that works: their contents are never asked for again.
    ///
    /// # Errors
    /// A caller may ignore them; then the store holds more than it needs.
    fn forget(&self, spans: &[Span]) -> Result<(), Error>;

    /// Forgets all pages of a layer.
    ///
    /// # Errors
    /// As `forget`.
    fn forget_layer(&self, layer: u32) -> Result<(), Error>;

    /// The file of a layer, for a program that reads and writes its pages there by itself (page n at n * 4096).
    /// `None` if this store is no file.
    ///
    /// # Errors
    /// The file cannot be made.
    fn direct(&self, layer: u32) -> Result<Option<Arc<OwnedFd>>, Error> {
        let _ = layer;
        Ok(None)
    }

    /// Gives everything back. The store is not used afterwards; a second call does nothing.
    ///
    /// # Errors
    /// Something was left behind; the error says where.
    fn close(&self) -> Result<(), Error>;
}

/// What went wrong, where, and what helps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// What was tried, with the preposition: `put 16 pages (from page 32 of layer 0) into`.
    pub operation: String,
    /// The store's name: the URL, without user and password.
    pub store: String,
    /// Why not, in the store's words where it gave some.
    pub cause: String,
    /// The way out.
    pub remedy: String,
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A server chose the words of the cause.
        write!(f, "cannot {} {}: {}", self.operation, visible(&self.store), visible(&self.cause))
    }
}

/// A store's failure, by what a caller can do. Prints as one line; [`Error::remedy`] is the second.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// It does not answer, or not now. The same call may work later.
    #[error("{0}")]
    Unreachable(Trouble),
    /// It does not let us in: password, rights, certificate.
    #[error("{0}")]
    Refused(Trouble),
    /// It has no room left.
    #[error("{0}")]
    Full(Trouble),
    /// A page that was put is not there, or not whole.
    #[error("{0}")]
    Lost(Trouble),
    /// It is there and cannot be used as it is: no directory, a replica, a server that throws keys away.
    #[error("{0}")]
    Unfit(Trouble),
}

impl Error {
    /// What went wrong, without its sort.
    pub fn trouble(&self) -> &Trouble {
        let (Error::Unreachable(trouble)
        | Error::Refused(trouble)
        | Error::Full(trouble)
        | Error::Lost(trouble)
        | Error::Unfit(trouble)) = self;
        trouble
    }

    /// The way out: the second line of a message.
    pub fn remedy(&self) -> &str {
        &self.trouble().remedy
    }

    /// True when the same call may work later.
    pub fn is_passing(&self) -> bool {
        matches!(self, Error::Unreachable(_))
    }
}

/// Where a store says what a person should know and what is no failure: one line each.
pub type Say = Arc<dyn Fn(&str) + Send + Sync>;

/// What a store needs to be opened, besides its URL.
#[derive(Clone)]
pub struct Opening {
    /// Bytes of a page as it is kept there: [`PAGE_BYTES`], or [`sealed::PAGE_BYTES_SEALED`].
    pub page_bytes: usize,
    /// How much will be put, as far as that is known.
    pub expected: Option<Bytes>,
    /// The password, if it does not stand in the URL; it wins over the one there. See [`password_from_environment`].
    pub password: Option<url::Secret>,
    /// Where notices go.
    pub say: Say,
}

/// The environment variable for the password, so that it need not stand in the list of processes.
pub const PASSWORD_VARIABLE: &str = "MASU_STORE_PASSWORD";

/// The password from [`PASSWORD_VARIABLE`]; an empty one counts as none.
pub fn password_from_environment() -> Option<url::Secret> {
    std::env::var(PASSWORD_VARIABLE).ok().filter(|password| !password.is_empty()).map(url::Secret::new)
}

/// Opens a store. It is tried out: what cannot be reached or used fails here.
///
/// # Errors
/// All but `Lost`. Nothing is tried again: at the start, a person waits for the answer.
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
        0 => format!("{verb} {pages} {noun} (from {}) {preposition}", first.home),
        _ => format!("{verb} {pages} {noun} (from {}, and {more} more runs) {preposition}", first.home),
    }
}

/// Runs are whole pages within bounds: anything else is our own mistake.
fn assert_whole(span: Span, bytes: usize, page_bytes: usize) {
    assert!(bytes.is_multiple_of(page_bytes), "{bytes} bytes at {}: no whole pages", span.home);
    assert_in_bounds(span);
}

fn assert_in_bounds(span: Span) {
    let end = span.home.page.checked_add(span.pages);
    assert!(end.is_some_and(|end| end <= Home::PAGES_MAX), "{} pages at {}: beyond any store", span.pages, span.home);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(page: u64, pages: u64) -> Span {
        Span { home: Home { layer: 3, page }, pages }
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
