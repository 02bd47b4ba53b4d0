//! A stream through the page cache: a file is written, brought to the disk, and read back some times, a MiB at a time.
//!
//! The command `go` does all of it once and answers with its bytes and times.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use bench::workload;
use clap::Parser;
use units::Bytes;
use units::cast::index;

#[derive(Parser)]
struct Arguments {
    /// The file, which is written anew and removed at the end.
    #[arg(long)]
    file: PathBuf,
    /// Its length.
    #[arg(long)]
    bytes: Bytes,
    /// How often it is read back.
    #[arg(long, default_value_t = 3)]
    reads: u32,
}

const BUFFER_BYTES: usize = 1 << 20;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    workload::run("workload-stream", || run(&arguments))
}

/// Removes the file when it goes.
struct Removed<'a>(&'a Path);

impl Drop for Removed<'_> {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(self.0);
    }
}

fn run(arguments: &Arguments) -> Result<()> {
    ensure!(arguments.bytes.0 > 0, "--bytes 0: expected more than 0");
    let path = arguments.file.as_path();
    let mut buffer = vec![0x5a; BUFFER_BYTES];
    let _removed = Removed(path);
    workload::serve("", |command| {
        ensure!(command == "go", "`{command}`: expected `go`");
        let begun = Instant::now();
        write(path, arguments.bytes.0, &buffer).with_context(|| format!("cannot write {}", path.display()))?;
        let write_s = begun.elapsed().as_secs_f64();
        for _ in 0..arguments.reads {
            let read = read(path, &mut buffer).with_context(|| format!("cannot read {}", path.display()))?;
            ensure!(read == arguments.bytes.0, "{} has {read} bytes", path.display());
        }
        let seconds = begun.elapsed().as_secs_f64();
        let bytes = arguments.bytes.0 * (1 + u64::from(arguments.reads));
        Ok(format!("bytes={bytes} seconds={seconds} write_s={write_s} read_s={}", seconds - write_s))
    })
}

fn write(path: &Path, bytes: u64, buffer: &[u8]) -> std::io::Result<()> {
    let (mut file, mut left) = (File::create(path)?, bytes);
    while left > 0 {
        let part = index(left).min(buffer.len());
        file.write_all(&buffer[..part])?;
        left -= part as u64;
    }
    file.sync_data()
}

/// Bytes read.
fn read(path: &Path, buffer: &mut [u8]) -> std::io::Result<u64> {
    let (mut file, mut sum) = (File::open(path)?, 0);
    loop {
        match file.read(buffer)? {
            0 => return Ok(sum),
            read => sum += read as u64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back_to_the_byte() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("stream");
        let mut buffer = vec![1; 1000];
        write(&path, 2500, &buffer).unwrap();
        assert_eq!(read(&path, &mut buffer).unwrap(), 2500);
        drop(Removed(&path));
        assert!(!path.exists());
    }
}
