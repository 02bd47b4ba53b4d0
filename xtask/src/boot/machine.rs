//! One virtual machine, from start to power-off.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::console::Console;
use crate::command::program;

/// Memory of a machine.
pub const MEMORY_MIB: u64 = 1536;

/// Kernel and programs to boot, and the limits.
pub struct Machine {
    /// The emulator.
    pub qemu: PathBuf,
    /// The kernel's boot image.
    pub kernel: PathBuf,
    /// The cpio archive with the first program.
    pub initial_files: PathBuf,
    /// Levels of its page tables: 4 or 5.
    pub levels: u8,
    /// Only the tests of the page-table walks (`LIVE_TESTS=page-tables`).
    pub page_tables_only: bool,
    /// An argument for the first program.
    pub filter: Option<String>,
    /// Limit, from start to power-off.
    pub limit: Duration,
    /// Prefix of its lines: it tells the machines that run at a time apart.
    pub name: String,
}

/// Ends the emulator when the time is over, or this program is.
struct Emulator(Child);

impl Drop for Emulator {
    fn drop(&mut self) {
        // Both fail only when it has ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Machine {
    /// Boots it, shows its console, and returns the report.
    pub fn boot(&self) -> Result<Console> {
        let started = Instant::now();
        let mut child = self.command().spawn().context("cannot start the emulator")?;
        let output = child.stdout.take().context("the emulator has no output")?;
        let mut emulator = Emulator(child);
        let (sender, lines) = mpsc::channel();
        std::thread::spawn(move || {
            let mut output = BufReader::new(output);
            let mut bytes = Vec::new();
            // Ends with the emulator, or when nobody listens any more.
            while output.read_until(b'\n', &mut bytes).is_ok_and(|count| count > 0) {
                if sender.send(String::from_utf8_lossy(&bytes).trim_end().to_owned()).is_err() {
                    return;
                }
                bytes.clear();
            }
        });
        let mut console = Console::default();
        loop {
            match lines.recv_timeout(self.limit.saturating_sub(started.elapsed())) {
                Ok(line) => {
                    println!("  {}: {line}", self.name);
                    crate::failures::look(&self.name, &line);
                    console.add(line);
                }
                Err(mpsc::RecvTimeoutError::Timeout) => {
                    console.over_time = Some(self.limit);
                    break;
                }
                Err(mpsc::RecvTimeoutError::Disconnected) => {
                    console.exit = Some(emulator.0.wait().context("cannot wait for the emulator")?);
                    break;
                }
            }
        }
        console.took = started.elapsed();
        Ok(console)
    }

    fn command(&self) -> std::process::Command {
        let processor = if self.levels == 5 { "max,la57=on" } else { "max,la57=off" };
        // A panic reboots, and with -no-reboot that ends the emulator; messages from warnings on are shown.
        let mut append = "console=ttyS0 panic=-1 loglevel=5 LIVE_REQUIRE=all NO_COLOR=1".to_owned();
        if self.page_tables_only {
            append.push_str(" LIVE_TESTS=page-tables");
        }
        if let Some(filter) = &self.filter {
            append.push_str(" -- ");
            append.push_str(filter);
        }
        // At a lower priority than the live tests of this host, which run at the same time and measure it.
        let mut qemu = program("nice");
        qemu.args(["-n", "10"]).arg(&self.qemu);
        // One host thread for both processors: with one for each, a kernel that patches its own code now and then
        // meets code that the emulator has half patched, and dies of it. It takes no longer, either.
        // The host's live tests merge pages, and expect to find their own ones only.
        qemu.args(["-machine", "q35,mem-merge=off", "-accel", "tcg,thread=single", "-cpu", processor, "-smp", "2"]);
        qemu.args(["-m", &MEMORY_MIB.to_string()]);
        qemu.args(["-nodefaults", "-no-reboot", "-display", "none", "-serial", "stdio"]);
        qemu.arg("-kernel").arg(&self.kernel).arg("-initrd").arg(&self.initial_files).args(["-append", &append]);
        qemu.stdout(Stdio::piped());
        qemu
    }
}
