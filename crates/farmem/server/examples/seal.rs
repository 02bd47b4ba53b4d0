//! Price of sealing a page, beside its checksum: `cargo run --release -p farmem --example seal`.

use std::hint::black_box;
use std::time::Instant;

use farmem::store::sealed::{Cipher, PAGE_BYTES_SEALED, Sealer};
use farmem::store::{Location, PAGE_BYTES};
use xxhash_rust::xxh3::xxh3_128;

const ROUNDS: usize = 101;
const PAGES: u64 = 1000;

/// Prints nanoseconds for each page: the median of many rounds, and the best of them.
fn measure(name: &str, mut each: impl FnMut(u64)) {
    let mut rounds: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let begun = Instant::now();
            (0..PAGES).for_each(&mut each);
            begun.elapsed().as_secs_f64() * 1e9 / PAGES as f64
        })
        .collect();
    rounds.sort_by(f64::total_cmp);
    println!("{name:32} {:6.0} ns, at best {:6.0} ns", rounds[ROUNDS / 2], rounds[0]);
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("4 KiB; this processor would have {}", Cipher::of_processor());
    let page: Vec<u8> = (0..=250u8).cycle().take(PAGE_BYTES).collect();
    measure("checksum (xxh3, 128 bits)", |_| {
        black_box(xxh3_128(black_box(&page)));
    });
    for cipher in [Cipher::Aes256Gcm, Cipher::ChaCha20Poly1305] {
        let sealer = Sealer::new(cipher)?;
        let (mut sealed, mut back) = (vec![0; PAGE_BYTES_SEALED], vec![0; PAGE_BYTES]);
        let location = |page| Location { layer: 0, page };
        measure(&format!("{cipher}, seal"), |at| {
            black_box(sealer.seal(location(at), black_box(&page), &mut sealed));
        });
        let version = sealer.seal(location(7), &page, &mut sealed);
        let kept = sealed.clone();
        // Opening is in place: the page is put there anew, as by a read from the store.
        measure(&format!("{cipher}, copy and open"), |_| {
            sealed.copy_from_slice(&kept);
            assert!(sealer.open(location(7), version, black_box(&mut sealed), &mut back));
        });
        assert!(back == page);
    }
    Ok(())
}
