//! Measurements of `masu aging`: programs beside streams, backups, writers and copies, with masu, with the kernel
//! alone, and with the usual tools for the purpose.
//!
//! - `idle_service`: resident memory of an idle program after a stream has passed;
//! - `backup`: page cache before and after a backup;
//! - `served`: request latency while a large copy runs;
//! - `writers`: the LRU-split paper's throughput of many writers, as the memory grows;
//! - `running`, `residency`: a running masu, and the residency of files in the page cache.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use units::Bytes;

use self::running::Cost;
use crate::children::OwnChild;
use crate::harness::{Choice, Column, Metric};
use crate::masu::Masu;
use crate::place::Place;
use crate::report::{Target, Unit};
use crate::session::Session;

pub mod backup;
pub mod idle_service;
pub mod residency;
pub mod running;
pub mod served;
pub mod writers;

/// Folder for files that are written and read: on a disk, unlike `/tmp` on many hosts.
pub const FOLDER: &str = "/var/tmp";

/// Names the kernel's kind of page lists, as a sentence for a report.
pub fn lists() -> String {
    let enabled = std::fs::read_to_string("/sys/kernel/mm/lru_gen/enabled").unwrap_or_default();
    let lists = match enabled.trim() {
        "" => "active and inactive lists; this kernel has no generations (MGLRU)",
        "0x0000" => "active and inactive lists; generations (MGLRU) are turned off",
        _ => "generations (MGLRU)",
    };
    format!("The kernel keeps pages on {lists}.")
}

/// The command under test, where a way `needs` it.
///
/// # Errors
/// When it is not built, or does not know `aging`.
fn masu(session: &Session, needs: bool) -> Result<Option<Masu>> {
    if !needs {
        return Ok(None);
    }
    let masu = session.masu()?;
    let help = masu.aging().arg("--help").output().context("cannot start masu")?;
    ensure!(help.status.success(), "this masu does not know the command `aging`; build it anew");
    Ok(Some(masu))
}

/// Writes a file of `bytes`, rounded up to MiB, to the disk.
fn write_file(path: &Path, bytes: Bytes) -> Result<()> {
    let write = || -> std::io::Result<()> {
        let (mut file, some) = (File::create(path)?, vec![7; 1 << 20]);
        for _ in 0..bytes.0.div_ceil(1 << 20) {
            file.write_all(&some)?;
        }
        file.sync_all()
    };
    write().with_context(|| format!("cannot write {}", path.display()))
}

/// masu's processor time, with its target under the given conditions.
fn processor_time<'a, W: Choice, S>(ways: &[W], cost: impl Fn(&S) -> &Option<Cost> + 'a) -> Metric<'a, W, S> {
    let fraction = move |run: &S| Some(cost(run).as_ref()?.core_fraction);
    let metric = Metric::less("processor time of masu, of a core", Unit::Fraction, fraction);
    ways.iter().fold(metric, |metric, way| metric.target(*way, Target::AtMost(0.01)))
}

fn kept<'a, S>(cost: impl Fn(&S) -> &Option<Cost> + 'a) -> Column<'a, S> {
    let bytes = move |run: &S| Some(cost(run).as_ref()?.said.mlocked_bytes_max.0 as f64);
    Column::median("kept by masu", Unit::Bytes, bytes)
}

fn dropped<'a, S>(cost: impl Fn(&S) -> &Option<Cost> + 'a) -> Column<'a, S> {
    let bytes = move |run: &S| Some(cost(run).as_ref()?.said.dropped_bytes.0 as f64);
    Column::median("dropped by masu", Unit::Bytes, bytes)
}

/// Time limit of vmtouch for reading and locking its files.
const VMTOUCH_LIMIT: Duration = Duration::from_secs(120);

/// `vmtouch -l` on a file or folder, when it has locked all of it; no file in it is larger than `largest`.
///
/// # Errors
/// When it cannot be started, or reports a failure.
fn vmtouch(session: &Session, path: &Path, largest: Bytes) -> Result<OwnChild> {
    // Into a pipe it would print the line only when its buffer is full: never.
    let mut command = Command::new("stdbuf");
    command.args(["-oL", "vmtouch", "-l", "-m", &largest.0.to_string()]).arg(path);
    let mut child = OwnChild::start(command, &session.processors, Place::Anywhere)?;
    let line = child.line(VMTOUCH_LIMIT, &session.stop)?;
    if !line.starts_with("LOCKED ") {
        bail!("vmtouch said `{line}` instead of what it has locked");
    }
    Ok(child)
}
