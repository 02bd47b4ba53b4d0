//! Allocates and frees memory again and again without using it, so that only the calls cost time.
//!
//! The commands `mmap BYTES MS` and `malloc BYTES MS` answer with pairs of calls per second.

use std::hint::black_box;
use std::process::ExitCode;
use std::ptr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use bench::workload;

fn main() -> ExitCode {
    workload::run("workload-churn", || workload::serve("", answer))
}

fn answer(command: &str) -> Result<String> {
    let words: Vec<&str> = command.split_whitespace().collect();
    let [call, bytes, time] = words[..] else { bail!("`{command}`: expected `mmap BYTES MS` or `malloc BYTES MS`") };
    let bytes = bytes.parse().context("BYTES")?;
    ensure!(bytes > 0, "`{command}`: expected 1 byte or more");
    let once = match call {
        "mmap" => map_and_unmap,
        "malloc" => allocate_and_free,
        _ => bail!("`{command}`: expected mmap or malloc"),
    };
    Ok(format!("rate={}", rate(once, bytes, workload::milliseconds(time)?)?))
}

/// Pairs of calls per second.
fn rate(once: fn(usize) -> Result<()>, bytes: usize, time: Duration) -> Result<f64> {
    const BATCH: u32 = 256;
    let (begun, mut pairs) = (Instant::now(), 0u32);
    while begun.elapsed() < time {
        for _ in 0..BATCH {
            once(bytes)?;
        }
        pairs += BATCH;
    }
    Ok(f64::from(pairs) / begun.elapsed().as_secs_f64())
}

/// Calls the C library's functions, which a preloaded library interposes.
fn map_and_unmap(bytes: usize) -> Result<()> {
    let (access, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: no address is asked for, so the kernel picks an unused one; exactly the mapped range is unmapped, and no
    // code has used it.
    let done = unsafe {
        let start = libc::mmap(ptr::null_mut(), black_box(bytes), access, flags, -1, 0);
        start != libc::MAP_FAILED && libc::munmap(start, bytes) == 0
    };
    ensure!(done, "mmap of {bytes} bytes: {}", std::io::Error::last_os_error());
    Ok(())
}

fn allocate_and_free(bytes: usize) -> Result<()> {
    // SAFETY: the allocation is freed once and not used; freeing a null pointer is allowed.
    let got = unsafe {
        let memory = black_box(libc::malloc(black_box(bytes)));
        libc::free(memory);
        !memory.is_null()
    };
    ensure!(got, "malloc of {bytes} bytes failed");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_calls_are_counted_and_others_are_refused() {
        for command in ["mmap 4096 1", "malloc 64 1", "mmap 4194304 1"] {
            assert!(answer(command).unwrap().starts_with("rate="), "{command}");
        }
        assert!(answer("brk 1 1").is_err() && answer("mmap 0 1").is_err() && answer("mmap").is_err());
    }
}
