//! Sealed pages: an untrusted store can neither read a page, nor change it, nor return another or an older one instead.
//!
//! Authenticated encryption by a key that is drawn for this run and is only in masu's memory: AES-256-GCM where the
//! processor has instructions for it, else ChaCha20-Poly1305 (RFC 8439). Sealed pages are 16 bytes longer, by the tag.
//!
//! | part | content | against |
//! |---|---|---|
//! | nonce | 64 bits that count the pages sealed in this run: none comes twice under the key | reuse of a nonce |
//! | associated data | layer and page number | another page's contents |
//! | version | nonce of each page's last acknowledged write; in masu's memory, 8 bytes a page | an older page |
//!
//! A page is opened with the version that masu remembers, so the store has no influence on it. The version is set when
//! the write is acknowledged: before that the page is the old one, and after a failed write the store's content is
//! unknown. A page that was never put, or was forgotten, has no version and is not even requested. A write that is
//! retried (`retry.rs`, which is inside) sends the same bytes.
//!
//! The store still sees the page numbers and times of reads and writes.

use units::cast::index;

use std::collections::HashMap;
use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ring::aead::{AES_256_GCM, Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use rustix::rand::{GetRandomFlags, getrandom};

use super::{Error, GetRun, Location, PAGE_BYTES, PutRun, Span, Store, Trouble, assert_whole, operation};

/// Bytes of a tag, behind its page. Both ciphers have as many.
const TAG_BYTES: usize = 16;

/// Bytes of a page in the store.
pub const PAGE_BYTES_SEALED: usize = PAGE_BYTES + TAG_BYTES;

/// Bytes of a key. Both ciphers have as many.
const KEY_BYTES: usize = 32;

/// Number of buffers kept for later calls: one for each concurrent thread.
const BUFFERS_MAX: usize = 8;

/// Cipher of the pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cipher {
    /// For processors with AES and carry-less multiplication.
    Aes256Gcm,
    /// For other processors.
    ChaCha20Poly1305,
}

impl Cipher {
    /// The faster one on this processor.
    pub fn of_processor() -> Cipher {
        #[cfg(target_arch = "x86_64")]
        let has_aes = std::arch::is_x86_feature_detected!("aes") && std::arch::is_x86_feature_detected!("pclmulqdq");
        #[cfg(target_arch = "aarch64")]
        let has_aes =
            std::arch::is_aarch64_feature_detected!("aes") && std::arch::is_aarch64_feature_detected!("pmull");
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        let has_aes = false;
        if has_aes { Cipher::Aes256Gcm } else { Cipher::ChaCha20Poly1305 }
    }

    /// Name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Cipher::Aes256Gcm => "aes-256-gcm",
            Cipher::ChaCha20Poly1305 => "chacha20-poly1305",
        }
    }
}

impl fmt::Display for Cipher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Seals and opens single pages.
pub struct Sealer {
    key: LessSafeKey,
    /// Number of nonces used.
    sealed: AtomicU64,
}

/// Number of a sealed page in this run. Never zero.
pub type Version = u64;

impl Sealer {
    /// Sealer with a key of its own.
    ///
    /// # Errors
    /// The kernel's answer when it has no random numbers.
    pub fn new(cipher: Cipher) -> Result<Sealer, rustix::io::Errno> {
        let mut key = [0; KEY_BYTES];
        // The kernel fills requests of up to 256 bytes whole.
        getrandom(&mut key, GetRandomFlags::empty())?;
        let algorithm = match cipher {
            Cipher::Aes256Gcm => &AES_256_GCM,
            Cipher::ChaCha20Poly1305 => &CHACHA20_POLY1305,
        };
        // Fails only for a key of another length.
        let key = UnboundKey::new(algorithm, &key).map_err(|_| rustix::io::Errno::INVAL)?;
        Ok(Sealer { key: LessSafeKey::new(key), sealed: AtomicU64::new(0) })
    }

    fn nonce(version: Version) -> Nonce {
        let mut nonce = [0; NONCE_LEN];
        nonce[..size_of::<Version>()].copy_from_slice(&version.to_le_bytes());
        Nonce::assume_unique_for_key(nonce)
    }

    fn bound_in(location: Location) -> Aad<[u8; 12]> {
        let mut bytes = [0; 12];
        bytes[..4].copy_from_slice(&location.layer.to_le_bytes());
        bytes[4..].copy_from_slice(&location.page.to_le_bytes());
        Aad::from(bytes)
    }

    /// Seals a page of [`PAGE_BYTES`] into [`PAGE_BYTES_SEALED`] bytes, and returns its version.
    pub fn seal(&self, location: Location, page: &[u8], sealed: &mut [u8]) -> Version {
        // 2^64 pages are more than any run writes.
        let version = self.sealed.fetch_add(1, Relaxed) + 1;
        let (text, tag) = sealed.split_at_mut(PAGE_BYTES);
        text.copy_from_slice(page);
        let made = self.key.seal_in_place_separate_tag(Sealer::nonce(version), Sealer::bound_in(location), text);
        // Fails only for texts longer than the cipher's 64 GiB.
        let made = made.unwrap_or_else(|_| unreachable!("a page is not too long for any cipher"));
        tag.copy_from_slice(made.as_ref());
        version
    }

    /// Opens a page; false if it is not the one sealed as this version of this page. Then `page` is unchanged.
    pub fn open(&self, location: Location, version: Version, sealed: &mut [u8], page: &mut [u8]) -> bool {
        match self.key.open_in_place(Sealer::nonce(version), Sealer::bound_in(location), sealed) {
            Ok(text) if text.len() == page.len() => page.copy_from_slice(text),
            _ => return false,
        }
        true
    }
}

/// Number of consecutive pages whose versions are stored together.
const CHUNK_PAGES: usize = 64;

/// Last acknowledged version of each page; zero for none.
#[derive(Default)]
struct Versions(HashMap<u32, HashMap<u64, Box<[Version; CHUNK_PAGES]>>>);

impl Versions {
    fn place(page: u64) -> (u64, usize) {
        (page / CHUNK_PAGES as u64, index(page % CHUNK_PAGES as u64))
    }

    fn get(&self, location: Location) -> Version {
        let (chunk, place) = Versions::place(location.page);
        self.0.get(&location.layer).and_then(|layer| layer.get(&chunk)).map_or(0, |versions| versions[place])
    }

    fn set(&mut self, location: Location, version: Version) {
        let (chunk, place) = Versions::place(location.page);
        let layer = self.0.entry(location.layer).or_default();
        layer.entry(chunk).or_insert_with(|| Box::new([0; CHUNK_PAGES]))[place] = version;
    }

    fn forget(&mut self, span: Span) {
        let end = span.location.page + span.pages;
        let Some(layer) = self.0.get_mut(&span.location.layer) else { return };
        // Spans may be much longer than their known versions.
        for (chunk, versions) in layer.iter_mut() {
            for (page, version) in (chunk * CHUNK_PAGES as u64..).zip(versions.iter_mut()) {
                if (span.location.page..end).contains(&page) {
                    *version = 0;
                }
            }
        }
        layer.retain(|_, versions| versions.iter().any(|version| *version != 0));
    }
}

/// Store with sealed pages.
pub struct Sealed {
    store: Arc<dyn Store>,
    sealer: Sealer,
    versions: Mutex<Versions>,
    buffers: Mutex<Vec<Vec<u8>>>,
}

fn locked<T>(lock: &Mutex<T>) -> MutexGuard<'_, T> {
    lock.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Places of consecutive pages.
fn locations(location: Location, pages: u64) -> impl Iterator<Item = Location> {
    (location.page..location.page + pages).map(move |page| Location { page, ..location })
}

impl Sealed {
    /// Wraps `store`, which keeps pages of [`PAGE_BYTES_SEALED`] bytes.
    ///
    /// # Errors
    /// `Unfit` when the kernel has no random numbers for a key.
    pub fn around(store: Arc<dyn Store>, cipher: Cipher) -> Result<Sealed, Error> {
        let sealer = Sealer::new(cipher).map_err(|errno| {
            Error::Unfit(Trouble {
                operation: "draw a key for".to_owned(),
                store: store.name().to_owned(),
                cause: linux::describe(errno),
                remedy: "Wait until the kernel has random numbers, or say --no-seal.".to_owned(),
            })
        })?;
        Ok(Sealed { store, sealer, versions: Mutex::default(), buffers: Mutex::default() })
    }

    /// Runs `with` on a buffer of `bytes` bytes.
    fn with_buffer<T>(&self, bytes: usize, with: impl FnOnce(&mut [u8]) -> T) -> T {
        let mut buffer = locked(&self.buffers).pop().unwrap_or_default();
        if buffer.len() < bytes {
            buffer.resize(bytes, 0);
        }
        let done = with(&mut buffer[..bytes]);
        let mut buffers = locked(&self.buffers);
        if buffers.len() < BUFFERS_MAX {
            buffers.push(buffer);
        }
        done
    }

    fn wrong(&self, operation: String, location: Location) -> Error {
        Error::Lost(Trouble {
            operation,
            store: self.store.name().to_owned(),
            cause: format!("the store changed or replayed {location}: it is not what was written there last"),
            remedy: "Find out what else writes to the store, or who keeps it; nothing wrong has reached the program."
                .to_owned(),
        })
    }

    fn never_put(&self, operation: String, location: Location) -> Error {
        Error::Lost(Trouble {
            operation,
            store: self.store.name().to_owned(),
            cause: format!("{location} was never put there, or was forgotten"),
            remedy: "This should not happen; please report it.".to_owned(),
        })
    }
}

impl Store for Sealed {
    fn name(&self) -> &str {
        self.store.name()
    }

    fn put(&self, runs: &[PutRun<'_>]) -> Result<(), Error> {
        let span = |run: &PutRun<'_>| run.span(PAGE_BYTES);
        runs.iter().for_each(|run| assert_whole(span(run), run.bytes.len(), PAGE_BYTES));
        let pages = runs.iter().map(|run| run.bytes.len() / PAGE_BYTES).sum::<usize>();
        let mut versions = Vec::with_capacity(pages);
        self.with_buffer(pages * PAGE_BYTES_SEALED, |buffer| {
            let mut places = buffer.chunks_exact_mut(PAGE_BYTES_SEALED);
            for run in runs {
                let pages = locations(run.location, span(run).pages).zip(run.bytes.chunks_exact(PAGE_BYTES));
                for ((location, page), place) in pages.zip(&mut places) {
                    versions.push((location, self.sealer.seal(location, page, place)));
                }
            }
            let mut rest = &*buffer;
            let sealed = runs.iter().map(|run| {
                let (bytes, others) = rest.split_at(run.bytes.len() / PAGE_BYTES * PAGE_BYTES_SEALED);
                rest = others;
                PutRun { location: run.location, bytes }
            });
            self.store.put(&sealed.collect::<Vec<_>>())
        })?;
        let mut known = locked(&self.versions);
        versions.into_iter().for_each(|(location, version)| known.set(location, version));
        Ok(())
    }

    fn get(&self, runs: &mut [GetRun<'_>]) -> Result<(), Error> {
        runs.iter().for_each(|run| assert_whole(run.span(PAGE_BYTES), run.bytes.len(), PAGE_BYTES));
        let spans: Vec<Span> = runs.iter().map(|run| run.span(PAGE_BYTES)).collect();
        let operation = || operation("get", spans.iter().copied(), "from");
        let known = locked(&self.versions);
        let pages = spans.iter().flat_map(|span| locations(span.location, span.pages));
        let versions: Vec<_> = pages.map(|location| (location, known.get(location))).collect();
        drop(known);
        if let Some((location, _)) = versions.iter().find(|(_, version)| *version == 0) {
            return Err(self.never_put(operation(), *location));
        }
        self.with_buffer(versions.len() * PAGE_BYTES_SEALED, |buffer| {
            let mut rest = &mut *buffer;
            let mut sealed = Vec::with_capacity(runs.len());
            for span in &spans {
                let bytes = index(span.pages) * PAGE_BYTES_SEALED;
                let (bytes, others) = std::mem::take(&mut rest).split_at_mut(bytes);
                rest = others;
                sealed.push(GetRun { location: span.location, bytes });
            }
            self.store.get(&mut sealed)?;
            let places = runs.iter_mut().flat_map(|run| run.bytes.chunks_exact_mut(PAGE_BYTES));
            let pages = buffer.chunks_exact_mut(PAGE_BYTES_SEALED).zip(places);
            for ((sealed, page), (location, version)) in pages.zip(&versions) {
                if !self.sealer.open(*location, *version, sealed, page) {
                    return Err(self.wrong(operation(), *location));
                }
            }
            Ok(())
        })
    }

    /// Forgets the versions first: the pages are then never accepted again, regardless of the store.
    fn forget(&self, spans: &[Span]) -> Result<(), Error> {
        let mut known = locked(&self.versions);
        spans.iter().for_each(|span| known.forget(*span));
        drop(known);
        self.store.forget(spans)
    }

    fn forget_layer(&self, layer: u32) -> Result<(), Error> {
        locked(&self.versions).0.remove(&layer);
        self.store.forget_layer(layer)
    }

    /// None: a program that writes to the file by itself would need the key.
    fn direct(&self, _: u32) -> Result<Option<Arc<OwnedFd>>, Error> {
        Ok(None)
    }

    fn close(&self) -> Result<(), Error> {
        self.store.close()
    }
}

#[cfg(test)]
mod tests;
