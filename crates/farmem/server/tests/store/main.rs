//! Tests of the stores: the same conformance tests (`conformance.rs`) on every store, and then with faults: a proxy
//! that delays, cuts and withholds, killed servers, full disks, wrong passwords.
//!
//! Real `redis-server` processes on loopback, in temporary directories, ended with the test. Where a program is
//! missing, a test prints SKIP and the reason; with `LIVE_REQUIRE=all` it fails.

#![allow(clippy::unwrap_used, reason = "what cannot be unwrapped fails the test")]

mod cluster;
mod conformance;
mod disk;
mod faults;
mod proxy;
mod redis;
mod sealed;
mod servers;

use std::sync::{Arc, Mutex};

use farmem::store::url::{Secret, StoreUrl};
use farmem::store::{self, Error, GetRun, Location, Opening, PAGE_BYTES, PutRun, Store};
use units::Bytes;

/// Notices of a store, line by line.
#[derive(Clone, Default)]
struct Said(Arc<Mutex<Vec<String>>>);

impl Said {
    fn lines(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }

    fn say(&self) -> store::Say {
        let lines = Arc::clone(&self.0);
        Arc::new(move |line: &str| lines.lock().unwrap().push(line.to_owned()))
    }
}

fn open(url: &str) -> Result<(Arc<dyn Store>, Said), Error> {
    open_with(url, None)
}

fn open_with(url: &str, password: Option<&str>) -> Result<(Arc<dyn Store>, Said), Error> {
    let password = password.map(|password| Secret::new(password.to_owned()));
    open_expecting(url, password, None)
}

fn open_expecting(
    url: &str,
    password: Option<Secret>,
    expected: Option<Bytes>,
) -> Result<(Arc<dyn Store>, Said), Error> {
    let said = Said::default();
    let opening = Opening { page_bytes: PAGE_BYTES, expected, password, say: said.say() };
    let url: StoreUrl = url.parse().unwrap();
    Ok((store::open(&url, &opening)?, said))
}

/// Error of `open`.
fn failure(url: &str) -> Error {
    match open(url) {
        Ok(_) => panic!("{url} was opened"),
        Err(error) => error,
    }
}

fn location(page: u64) -> Location {
    Location { layer: 0, page }
}

/// Contents of a page, by its place and its number of writes.
fn contents(location: Location, version: u64) -> Vec<u8> {
    let seed = location.page.wrapping_mul(0x9e37_79b9_7f4a_7c15)
        ^ u64::from(location.layer) << 32
        ^ version.wrapping_mul(0xd1b5);
    (0..PAGE_BYTES as u64 / 8).flat_map(|at| (seed ^ at.wrapping_mul(0x2545_f491_4f6c_dd1d)).to_le_bytes()).collect()
}

fn put(store: &dyn Store, location: Location, version: u64) -> Result<(), Error> {
    store.put(&[PutRun { location, bytes: &contents(location, version) }])
}

fn get(store: &dyn Store, location: Location) -> Result<Vec<u8>, Error> {
    let mut bytes = vec![0xee; PAGE_BYTES];
    store.get(&mut [GetRun { location, bytes: &mut bytes }])?;
    Ok(bytes)
}

/// Prints that a test is skipped, with the reason; fails where no test may be.
fn skip(what: &str, why: &str) {
    assert!(std::env::var("LIVE_REQUIRE").as_deref() != Ok("all"), "LIVE_REQUIRE=all, but {what}: {why}");
    println!("SKIP {what}: {why}");
}
