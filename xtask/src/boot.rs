//! Live tests on Debian's own kernels, in virtual machines: QEMU's software emulation, no disk, no network, no modules.
//!
//! The initial file system holds the statically linked live-tests program and command, and a few programs in C with the
//! system's C library, for the libraries that are loaded into programs. The live-tests program mounts its file systems,
//! runs every test, prints the kernel's backends and the result on the serial line, and switches the machine off.
//! Page tables of four and of five levels are tried, because masu walks them: all tests run with one of them, and the
//! tests of the page-table walks with the other. The backends of the kernels are collected into `docs/kernels.md`.

mod backends;
mod console;
mod initramfs;
pub mod kernels;
mod machine;

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use clap::ValueEnum;
use units::Bytes;
use units::cast::index;

use crate::command::{cargo, output, program, require, run as run_program};
use crate::failures;
use crate::tally::Tally;
use crate::workspace;

use console::Report;
use kernels::Kernel;
use machine::Machine;

/// Seconds after which a machine has failed: five times as many as the slowest takes beside other work (586 s). A host that
/// gives its machines little time takes more than twice as many.
const LIMIT_S: u64 = 3000;

/// Options of `cargo xtask boot-test`.
#[derive(clap::Args)]
pub struct Options {
    /// Only this kernel (default: all)
    #[arg(long, value_parser = kernels::names())]
    kernel: Option<String>,
    /// Page tables of five levels (on), of four (off), or both: then one of them runs only the tests of page-table
    /// walks, without the tests of the whole command
    #[arg(long, value_enum, default_value_t = La57::Both)]
    la57: La57,
    /// Write docs/kernels.md instead of comparing with it
    #[arg(long)]
    write: bool,
    /// Ask the mirror with a package index of our own, also when the host's knows a kernel
    #[arg(long)]
    fresh_index: bool,
    /// Number of machines at a time (default: three for two processors, since each waits for a part of its time, but at
    /// most 4)
    #[arg(long)]
    at_once: Option<usize>,
    /// A machine that takes longer than this many seconds has failed
    #[arg(long, default_value_t = LIMIT_S)]
    limit_s: u64,
    /// Only tests whose name contains this (docs/kernels.md is compared all the same)
    #[arg(long)]
    filter: Option<String>,
}

impl Default for Options {
    fn default() -> Options {
        let (kernel, filter, at_once) = (None, None, None);
        Options { kernel, la57: La57::Both, write: false, fresh_index: false, at_once, limit_s: LIMIT_S, filter }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum La57 {
    On,
    Off,
    Both,
}

impl La57 {
    /// The numbers of levels to boot with.
    fn levels(self) -> &'static [u8] {
        match self {
            La57::On => &[5],
            La57::Off => &[4],
            La57::Both => &[4, 5],
        }
    }
}

/// Machines to boot, with their kernels and files at hand.
pub struct Machines {
    machines: Vec<Machine>,
    at_once: usize,
    write: bool,
}

/// Reports of the machines, in their order.
pub struct Reports(Vec<Result<Report>>);

/// Gets the kernels, and builds the initial file system.
pub fn prepare(options: &Options) -> Result<Machines> {
    let qemu = require("qemu-system-x86_64", "qemu-system-x86")?;
    let kernels: Vec<&Kernel> = kernels::ALL
        .iter()
        .filter(|kernel| options.kernel.as_deref().is_none_or(|name| name == kernel.series))
        .collect();
    let mut images = Vec::new();
    for kernel in kernels {
        images.push((kernel, kernels::obtain(kernel, options.fresh_index)?));
    }
    let initial_files = build_initial_files()?;

    // Tests that are chosen by name run with both page tables.
    let all_everywhere = options.la57 != La57::Both || options.filter.is_some();
    let machines = images.iter().flat_map(|(kernel, image)| {
        options.la57.levels().iter().map(|&levels| Machine {
            qemu: qemu.clone(),
            kernel: image.clone(),
            initial_files: initial_files.clone(),
            levels,
            page_tables_only: !all_everywhere && levels != kernel.all_tests_with_levels,
            filter: options.filter.clone(),
            limit: Duration::from_secs(options.limit_s),
            name: format!("{}/{levels}", kernel.series),
        })
    });
    let processors = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let at_once = options.at_once.unwrap_or((processors * 3 / 2).min(4)).max(1);
    Ok(Machines { machines: machines.collect(), at_once, write: options.write })
}

impl Machines {
    /// Boots all of them, a number at a time and the ones with all tests first.
    pub fn boot(&self) -> Reports {
        self.boot_at_once(self.at_once)
    }

    /// Boots all of them, no more at a time than this memory holds; `None` when it holds none.
    pub fn boot_within(&self, memory: Bytes) -> Option<Reports> {
        let fit = index(memory.0 / (machine::MEMORY_MIB << 20));
        (fit > 0).then(|| self.boot_at_once(self.at_once.min(fit)))
    }

    fn boot_at_once(&self, at_once: usize) -> Reports {
        let (next, reports) = (AtomicUsize::new(0), Mutex::new(BTreeMap::new()));
        let mut longest_first: Vec<(usize, &Machine)> = self.machines.iter().enumerate().collect();
        longest_first.sort_by_key(|(_, machine)| machine.page_tables_only);
        let work = || {
            while let Some(&(number, machine)) = longest_first.get(next.fetch_add(1, Relaxed)) {
                println!("\n== {}: {}", machine.name, workspace::shown(&machine.kernel));
                let report = machine.boot().and_then(|console| console.verdict(machine.levels));
                reports.lock().unwrap_or_else(PoisonError::into_inner).insert(number, report);
            }
        };
        std::thread::scope(|scope| (0..at_once).for_each(|_| drop(scope.spawn(work))));
        Reports(reports.into_inner().unwrap_or_else(PoisonError::into_inner).into_values().collect())
    }

    /// Prints the reports, compares or writes `docs/kernels.md`, and counts the tests.
    pub fn count(&self, reports: Reports) -> Tally {
        let mut tally = Tally::default();
        let mut columns = Vec::new();
        println!();
        for (machine, report) in self.machines.iter().zip(reports.0) {
            let (series, levels) = (machine.name.split('/').next().unwrap_or_default(), machine.levels);
            let title = format!("Debian {series}, {levels}-level page tables");
            match report {
                Ok(report) => {
                    println!(
                        "== {title}: {}, {:.0} s from start to power-off",
                        report.tally,
                        report.took.as_secs_f64()
                    );
                    tally += report.tally;
                    columns.push(backends::Column { kernel: series.to_owned(), levels, facts: report.backends });
                }
                Err(error) => {
                    println!("== {title}: FAILED: {error:#}");
                    failures::note(format!("{title}: {error:#}"));
                    tally += Tally::one_failure();
                }
            }
        }
        // After a failed test the comparison would only be a second, less telling one.
        if (self.write || tally.failed == 0)
            && let Err(error) = backends::write_or_compare(&columns, self.write, || host_column(&program_file()))
        {
            println!("== FAILED: {error:#}");
            failures::note(format!("{error:#}"));
            tally += Tally::one_failure();
        }
        tally
    }
}

/// Boots the machines, and compares or writes `docs/kernels.md`.
pub fn run_task(options: &Options) -> Result<()> {
    let machines = prepare(options)?;
    let tally = machines.count(machines.boot());
    ensure!(tally.failed == 0, "live tests in virtual machines: {tally}");
    Ok(())
}

/// The running kernel's answers.
fn host_column(program_file: &Path) -> Result<backends::Column> {
    let said = output(program(program_file).arg("--backends"))?;
    let json = said.lines().find_map(|line| line.strip_prefix("BACKENDS ")).context("the program said no BACKENDS")?;
    let facts: serde_json::Value = serde_json::from_str(json).context("cannot understand BACKENDS")?;
    let release = facts["facts"]["kernel_release"].as_str().unwrap_or("unknown");
    let kernel = release.splitn(3, '.').take(2).collect::<Vec<_>>().join(".");
    let levels = facts["facts"]["page_table_levels"].as_u64().and_then(|levels| u8::try_from(levels).ok());
    Ok(backends::Column { kernel, levels: levels.context("no page_table_levels in BACKENDS")?, facts })
}

const TARGET: &str = "x86_64-unknown-linux-gnu";

/// The statically linked live tests.
fn program_file() -> PathBuf {
    workspace::target().join("static").join(TARGET).join("debug/live-tests")
}

/// Links the live tests, and the programs that some of them run, statically, and packs them.
fn build_initial_files() -> Result<PathBuf> {
    let target = workspace::target().join("static");
    let library_path = static_libraries()?;
    // A target folder and a --target of their own: otherwise the flags would reach build scripts, and every ordinary
    // build after this one would start from nothing.
    let mut build = cargo();
    build.args([
        "build",
        "--quiet",
        "--workspace",
        "--bin",
        "live-tests",
        "--bin",
        "masu",
        "--bin",
        "resctrl-emulator",
    ]);
    build.args(["--target", TARGET]);
    build.arg("--target-dir").arg(&target);
    // Optimizing here takes less time than running unoptimized code on an emulated processor.
    build.args(["--config", "profile.dev.package.'*'.opt-level=1", "--config", "profile.dev.debug=false"]);
    build.env("RUSTFLAGS", "-C target-feature=+crt-static -C strip=debuginfo");
    build.env("LIBBPF_SYS_LIBRARY_PATH", library_path);
    run_program(&mut build)?;

    let read = |path: &Path| std::fs::read(path).with_context(|| format!("cannot read {}", path.display()));
    let beside = |name: &str| read(&program_file().with_file_name(name));
    let mut programs = vec![
        ("init", read(&program_file())?),
        ("masu", beside("masu")?),
        ("resctrl-emulator", beside("resctrl-emulator")?),
        ("libmasu-pager.so", beside("libmasu-pager.so")?),
        (LOADER, read(&Path::new("/").join(LOADER))?),
    ];
    for (path, name) in C_LIBRARIES {
        programs.push((path, read(&c_library(name)?)?));
    }
    for (path, source) in C_PROGRAMS {
        let built = target.join(Path::new(path).file_name().unwrap_or_default());
        let library = program_file().with_file_name("libmasu.a");
        let mut compile = program("cc");
        compile.args(["-O1", "-w", "-pthread", "-I", "crates/hugepages/libmasu/include", "-o"]).arg(&built).arg(source);
        run_program(compile.arg(library))?;
        programs.push((path, read(&built)?));
    }
    let archive = target.join("initramfs.cpio");
    std::fs::write(&archive, initramfs::archive(&programs)?).context("cannot write the initial file system")?;
    Ok(archive)
}

/// Path of the dynamic loader, as programs with the system's C library name it.
const LOADER: &str = "lib64/ld-linux-x86-64.so.2";

/// Programs that tests start: their paths there, and their sources.
const C_PROGRAMS: [(&str, &str); 8] = [
    ("programs/stress", "bench/workloads/remote/stress.c"),
    ("programs/memory_checker", "live-tests/programs/memory_checker.c"),
    ("programs/advice", "live-tests/programs/advice.c"),
    ("programs/hard", "live-tests/programs/hard.c"),
    ("programs/signals", "live-tests/programs/signals.c"),
    ("programs/ignored", "live-tests/programs/ignored.c"),
    ("programs/transfers", "live-tests/programs/transfers.c"),
    ("programs/track_client", "live-tests/programs/track_client.c"),
];

/// Libraries of the system's that they are linked with, or load when a thread is cancelled.
const C_LIBRARIES: [(&str, &str); 2] = [("lib/libc.so.6", "libc.so.6"), ("lib/libgcc_s.so.1", "libgcc_s.so.1")];

/// Path of a library on this system, as the C compiler's programs find it.
fn c_library(name: &str) -> Result<PathBuf> {
    let said = output(program("cc").arg(format!("-print-file-name={name}")))?;
    let path = PathBuf::from(said.trim());
    ensure!(path.is_absolute(), "the C compiler does not say where {name} is");
    Ok(path)
}

/// The folder of the C libraries that the program is linked with.
fn static_libraries() -> Result<PathBuf> {
    let folders = ["/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib"].map(PathBuf::from);
    let found = folders.into_iter().find(|folder| folder.join("libelf.a").exists() && folder.join("libz.a").exists());
    match found {
        Some(folder) => Ok(folder),
        None => {
            bail!("libelf.a or libz.a is missing; on Debian: apt-get install libelf-dev zlib1g-dev (make deps does it)")
        }
    }
}
