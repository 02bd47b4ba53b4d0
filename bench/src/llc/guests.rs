//! `masu-bench llc-guests`: virtual machines of one kernel with pages merged by KSM (QEMU offers them): masu's
//! findings, the kernel's counts, and the cost of a scan.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use linux::cpu_time;

use super::index::ns_per;
use super::ksm::{self, Merging};
use crate::children::OwnChild;
use crate::harness::{Metric, Runs};
use crate::place::Place;
use crate::report::{Report, Target, Unit};
use crate::session::Session;

/// Arguments of `masu-bench llc-guests`.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Kernel of the guests: a boot image, such as /boot/vmlinuz-6.1.0-56-cloud-amd64
    #[arg(long, value_name = "FILE")]
    pub kernel: PathBuf,
    /// Number of guests
    #[arg(long, default_value_t = 2)]
    pub guests: usize,
    /// Memory of each guest, in MiB
    #[arg(long, default_value_t = 256)]
    pub mib: usize,
    /// Full scans by KSM
    #[arg(long, default_value_t = 4)]
    pub scans: u64,
    /// Measurements of each way
    #[arg(long, default_value_t = 10)]
    pub pairs: usize,
}

const SMAPS: &str = "smaps";
const MASU: &str = "masu";

#[derive(serde::Serialize)]
struct Look {
    /// Processor time per page of the guests' memory.
    ns: f64,
    merged_pages: f64,
}

/// Runs the benchmark.
///
/// # Errors
/// When there is no QEMU, no C library to link statically, or a machine does not boot.
pub fn run(session: &Session, options: &Options) -> Result<()> {
    ensure!(options.guests > 1 && options.mib >= 192, "expected at least 2 guests of at least 192 MiB");
    ensure!(options.pairs > 0, "expected at least 1 pair");
    let masu = session.masu()?;
    let folder = tempfile::tempdir()?;
    let files = initial_files(folder.path())?;
    session.progress("booting");
    let mut machines = Vec::new();
    for nth in 0..options.guests {
        let console = folder.path().join(format!("console-{nth}"));
        machines.push((
            OwnChild::start(machine(options, &files, &console), &session.processors, Place::Anywhere)?,
            console,
        ));
    }
    let up = || Ok(machines.iter().all(|(_, at)| fs::read_to_string(at).is_ok_and(|text| text.contains("guest up"))));
    let boot = ksm::until("all guests up", &session.stop, up)?;
    session.progress("waiting for KSM");
    let scans = || Ok::<u64, anyhow::Error>(linux::ksm::host(&linux::Rooted::host())?.full_scans);
    let (merging, before) = (Merging::start()?, scans()?);
    let took = ksm::until("all of it looked at", &session.stop, || Ok(scans()? >= before + options.scans))?;
    drop(merging);
    let pages = (options.guests * options.mib * 256) as f64;
    let mut runs = Runs::default();
    let mut last = None;
    runs.measure(session, options.pairs, "", &[SMAPS, MASU], |turn| {
        if turn.way == SMAPS {
            return by_smaps(machines.iter().map(|(machine, _)| machine.pid()), pages);
        }
        let found = last.insert(masu.shared(1, &session.processors, &session.stop)?);
        Ok(Look { ns: ns_per(found, pages), merged_pages: found.merged_pages as f64 })
    })?;
    let counted = linux::ksm::host(&linux::Rooted::host())?.saved().0 as f64;
    ensure!(counted > 0.0, "the kernel counts nothing saved");
    let last = last.context("no look was taken")?;
    let title = format!(
        "llc-guests: {} virtual machines with {} MiB, all of {}",
        options.guests,
        options.mib,
        options.kernel.file_name().unwrap_or_default().display()
    );
    let mut report = Report::new("llc-guests", title, &session.host);
    let ns = Unit::Nanoseconds;
    let cost = Metric::less("a look, per page of the guests", ns, |look: &Look| look.ns);
    runs.compare(&mut report, &[(SMAPS, MASU)], &[cost]);
    let pairs = runs.of("", MASU).iter().zip(runs.of("", SMAPS));
    let ratios: Vec<f64> = pairs.map(|(masu, smaps)| masu.merged_pages / smaps.merged_pages).collect();
    let least = ratios.iter().copied().reduce(f64::min);
    let most = ratios.iter().copied().reduce(f64::max);
    report.figure("found, of what smaps counts, at least", Unit::Fraction, least, Some(Target::AtLeast(0.99)));
    report.figure("found, of what smaps counts, at most", Unit::Fraction, most, Some(Target::AtMost(1.01)));
    let saved = (last.merged_pages - last.merged_frames) as f64 * 4096.0;
    report.figure("frames merged", Unit::Count, Some(last.merged_frames as f64), None);
    report.figure("pages merged", Unit::Count, Some(last.merged_pages as f64), None);
    report.figure("saved", Unit::Bytes, Some(saved), None);
    report.figure("saved, as the kernel counts it", Unit::Bytes, Some(counted), None);
    let median = runs.median("", MASU, |look| look.ns);
    report.figure("a look, per page of the guests", ns, median, Some(Target::AtMost(200.0)));
    report.figure("a look, per entry read", ns, Some(ns_per(&last, last.scan.pages_read.0 as f64)), None);
    report.figure("KSM took", Unit::Seconds, Some(took.as_secs_f64()), None);
    report.figure("booting took", Unit::Seconds, Some(boot.as_secs_f64()), None);
    report.note("smaps (KSM:) says how many pages of a guest are merged, and with whom not; the host must have nothing else merged.");
    report.note("The kernel's count of what is saved lags: what guests wrote since KSM last came by is in it still. Guests are emulated (TCG) and sleep once they are up.");
    for (mut machine, _) in machines {
        machine.signal(rustix::process::Signal::TERM);
        machine.finish(Duration::from_secs(30), &session.stop)?;
    }
    runs.finish(report, session)
}

/// Kernel's sums for each mapping of these processes.
fn by_smaps(machines: impl Iterator<Item = u32>, pages: f64) -> Result<Look> {
    let begun = cpu_time::of_thread();
    let mut kib = 0;
    for pid in machines {
        let text = fs::read_to_string(format!("/proc/{pid}/smaps"))?;
        let merged = text.lines().filter_map(|line| line.strip_prefix("KSM:")?.trim().strip_suffix(" kB"));
        kib += merged.map(|kib| Ok(kib.parse::<u64>()?)).sum::<Result<u64>>()?;
    }
    let took = cpu_time::of_thread().saturating_sub(begun);
    ensure!(kib > 0, "smaps has no merged page");
    Ok(Look { ns: took.as_secs_f64() * 1e9 / pages, merged_pages: kib as f64 / 4.0 })
}

fn machine(options: &Options, files: &Path, console: &Path) -> Command {
    let mut command = Command::new("qemu-system-x86_64");
    command.args(["-machine", "pc,accel=tcg,mem-merge=on", "-nographic", "-no-reboot", "-monitor", "none"]);
    command.args(["-m", &options.mib.to_string(), "-append", "console=ttyS0 quiet panic=-1 nokaslr"]);
    command.arg("-kernel").arg(&options.kernel).arg("-initrd").arg(files);
    command.arg("-serial").arg(format!("file:{}", console.display())).stdin(Stdio::null());
    command
}

/// A cpio archive (newc) with one program, linked statically, and the console that it writes to.
fn initial_files(folder: &Path) -> Result<PathBuf> {
    let (source, program) = (folder.join("guest.c"), folder.join("init"));
    fs::write(&source, include_str!("../../workloads/llc/guest.c"))?;
    let built = Command::new("cc").args(["-O2", "-static", "-o"]).arg(&program).arg(&source).status();
    ensure!(built.context("cannot run cc")?.success(), "cc could not build the guest's program");
    let mut archive = Vec::new();
    for (number, (name, mode, device, content)) in [
        ("dev", 0o40_755, (0, 0), Vec::new()),
        ("dev/console", 0o20_600, (5, 1), Vec::new()),
        ("init", 0o100_755, (0, 0), fs::read(&program)?),
        ("TRAILER!!!", 0, (0, 0), Vec::new()),
    ]
    .into_iter()
    .enumerate()
    {
        let (major, minor) = device;
        archive.extend_from_slice(b"070701");
        for field in [number + 1, mode, 0, 0, 1, 0, content.len(), 0, 0, major, minor, name.len() + 1, 0] {
            archive.extend_from_slice(format!("{field:08x}").as_bytes());
        }
        archive.extend_from_slice(name.as_bytes());
        archive.push(0);
        pad(&mut archive);
        archive.extend_from_slice(&content);
        pad(&mut archive);
    }
    let path = folder.join("initial-files");
    fs::write(&path, archive)?;
    Ok(path)
}

fn pad(archive: &mut Vec<u8>) {
    archive.resize(archive.len().next_multiple_of(4), 0);
}
