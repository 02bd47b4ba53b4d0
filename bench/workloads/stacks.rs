//! Many threads that touch a little of their stacks and then sleep.
//!
//! Prints `ready threads=N pid=PID` once all of them sleep, and ends when its input is closed. It starts fewer threads
//! than told when free memory runs short: a host that gives each of them a huge page would run out of it.

use std::hint::black_box;
use std::process::ExitCode;
use std::sync::{Arc, Barrier};
use std::thread::{self, Builder};

use anyhow::{Context, Result, bail, ensure};
use bench::{host, workload};
use clap::Parser;
use units::Bytes;
use units::cast::index;

#[derive(Parser)]
struct Arguments {
    /// Threads.
    #[arg(long)]
    threads: usize,
    /// The stack of each; 8 MiB is what a C program's thread gets by default.
    #[arg(long, default_value = "8MiB")]
    stack: Bytes,
    /// How much of it is touched.
    #[arg(long, default_value = "16KiB")]
    touch: Bytes,
}

/// Free memory at which no more threads are started.
const LEAVE: Bytes = Bytes::gib(1);

/// Threads between two checks of free memory.
const BATCH: usize = 64;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    workload::run("workload-stacks", || run(&arguments))
}

fn run(arguments: &Arguments) -> Result<()> {
    let (stack, touch) = (index(arguments.stack.0), index(arguments.touch.0));
    ensure!(touch + (64 << 10) <= stack, "--touch {}: expected 64 KiB less than --stack at most", arguments.touch);
    let mut threads = 0;
    while threads < arguments.threads && host::available() > LEAVE {
        let batch = BATCH.min(arguments.threads - threads);
        let all_touched = Arc::new(Barrier::new(batch + 1));
        for _ in 0..batch {
            let all_touched = Arc::clone(&all_touched);
            let sleeper = move || {
                black_box(dig(touch));
                all_touched.wait();
                drop(all_touched);
                loop {
                    thread::park();
                }
            };
            Builder::new().stack_size(stack).spawn(sleeper).context("cannot start a thread")?;
        }
        all_touched.wait();
        threads += batch;
    }
    workload::serve(&format!("threads={threads} pid={}", std::process::id()), |command| {
        bail!("`{command}`: expected nothing")
    })
}

/// Touches `bytes` of the stack, in frames of somewhat more than 1 KiB.
fn dig(bytes: usize) -> u64 {
    const FRAME: usize = 1024;
    let frame = black_box([1u8; FRAME]);
    let below = if bytes > FRAME { dig(bytes - FRAME) } else { 0 };
    below + u64::from(black_box(frame)[0])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digging_goes_as_deep_as_it_is_told() {
        assert_eq!(dig(16 << 10), 16);
        assert_eq!(dig(1), 1);
    }
}
