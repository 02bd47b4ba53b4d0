//! Speed of a store: `cargo run --release -p farmem --example store_speed -- URL…`.
//!
//! One thread puts and gets units of 4 KiB, 64 KiB and 1 MiB at random places of 64 MiB that were put before, for a
//! second each; then four threads get 4 KiB. The output is latencies (p50, p99) and bandwidths.

use std::sync::Arc;
use std::time::{Duration, Instant};

use farmem::store::{self, GetRun, Location, Opening, PutRun, Store, url::StoreUrl};
use units::spread::Random;

const PAGES: u64 = 64 << 8;
const FOR: Duration = Duration::from_secs(1);

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let say = Arc::new(|line: &str| println!("note: {line}"));
    let opening =
        Opening { page_bytes: store::PAGE_BYTES, expected: None, password: store::password_from_environment(), say };
    for url in std::env::args().skip(1) {
        let store = store::open(&url.parse::<StoreUrl>()?, &opening)?;
        println!("{}", store.name());
        let contents: Vec<u8> = (0..1u32 << 20).map(|at| (at % 251) as u8).collect();
        for page in (0..PAGES).step_by(256) {
            store.put(&[PutRun { location: Location { layer: 0, page }, bytes: &contents }])?;
        }
        for unit_pages in [1, 16, 256] {
            let bytes = &contents[..unit_pages * store::PAGE_BYTES];
            measure("put", unit_pages, 1, |location| store.put(&[PutRun { location, bytes }]));
            measure("get", unit_pages, 1, |location| get(&*store, location, unit_pages));
        }
        measure("get", 1, 4, |location| get(&*store, location, 1));
        store.close()?;
    }
    Ok(())
}

fn get(store: &dyn Store, location: Location, pages: usize) -> Result<(), store::Error> {
    thread_local! { static PLACE: std::cell::RefCell<Vec<u8>> = std::cell::RefCell::new(vec![0; 1 << 20]); }
    PLACE.with_borrow_mut(|place| store.get(&mut [GetRun { location, bytes: &mut place[..pages * store::PAGE_BYTES] }]))
}

fn measure(verb: &str, unit_pages: usize, threads: u64, call: impl Fn(Location) -> Result<(), store::Error> + Sync) {
    let one = |seed: u64| {
        let mut random = Random::seeded(seed);
        let mut took = Vec::new();
        let begun = Instant::now();
        while begun.elapsed() < FOR {
            let page = random.number() % (PAGES / unit_pages as u64) * unit_pages as u64;
            let at = Instant::now();
            if let Err(error) = call(Location { layer: 0, page }) {
                panic!("{error}");
            }
            took.push(at.elapsed());
        }
        took
    };
    let mut took: Vec<Duration> = std::thread::scope(|scope| {
        let running: Vec<_> = (1..=threads).map(|seed| scope.spawn(move || one(seed))).collect();
        running.into_iter().flat_map(|thread| thread.join().unwrap_or_default()).collect()
    });
    took.sort();
    let at = |hundredths: usize| took[(took.len() - 1) * hundredths / 100].as_secs_f64() * 1e6;
    let mib_per_s = (took.len() * unit_pages * store::PAGE_BYTES) as f64 / FOR.as_secs_f64() / 1_048_576.0;
    let unit_kib = unit_pages * 4;
    println!(
        "{verb} {unit_kib:5} KiB  {threads} threads  p50 {:8.1} us  p99 {:8.1} us  {mib_per_s:8.0} MiB/s",
        at(50),
        at(99)
    );
}
