//! The kernel's own swapping, to compressed memory (zram) or to a file: created for one program, turned on for one run.
//!
//! The pages of zram are charged to no cgroup, so a limit on a cgroup does not count them. Pages that are swapped to a
//! file go past the page cache: none of them stays in memory (unless below, in the host of a virtual machine).
//!
//! Dropping the value turns the area off and removes the device or the file: at the end, on an error, on a panic, and
//! after Ctrl-C, which raises a flag that ends the benchmark in the ordinary way (`stop.rs`).

use std::fs::{self, OpenOptions};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use units::Bytes;

use crate::tools;

/// Above any other swap area of the host: as long as ours is on, programs are swapped to it.
const PRIORITY: &str = "32767";

const ZRAM: &str = "/sys/class/zram-control";

/// A swap area that was made and is off.
#[derive(Debug)]
pub struct Area {
    kind: Kind,
    path: PathBuf,
}

#[derive(Debug)]
enum Kind {
    /// `loaded`: the kernel's module was loaded for it.
    Zram {
        number: u32,
        loaded: bool,
    },
    File,
}

/// A swap area that is on. Dropped, it is off again.
#[derive(Debug)]
pub struct On<'a>(&'a Area);

impl Area {
    /// A device that compresses swapped pages and keeps them in memory.
    ///
    /// # Errors
    /// When this kernel has no zram, or we may not make one.
    pub fn zram(bytes: Bytes) -> Result<Area> {
        let loaded = !Path::new(ZRAM).exists()
            && tools::finished(Command::new("modprobe").args(["zram", "num_devices=0"])).is_ok();
        let add = format!("{ZRAM}/hot_add");
        let text = fs::read_to_string(&add).with_context(|| format!("cannot read {add}"))?;
        let number = text.trim().parse().with_context(|| format!("{add}: `{}` is not a number", text.trim()))?;
        let area = Area { kind: Kind::Zram { number, loaded }, path: format!("/dev/zram{number}").into() };
        let size = format!("/sys/block/zram{number}/disksize");
        fs::write(&size, bytes.0.to_string()).with_context(|| format!("cannot write {bytes} to {size}"))?;
        area.format()?;
        Ok(area)
    }

    /// A file in `folder`.
    ///
    /// # Errors
    /// When it cannot be written, or lies on a file system that cannot swap.
    pub fn file(folder: &Path, bytes: Bytes) -> Result<Area> {
        let path = folder.join(format!("masu-bench-{}.swap", std::process::id()));
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).mode(0o600);
        let file = options.open(&path).with_context(|| format!("cannot make {}", path.display()))?;
        let area = Area { kind: Kind::File, path };
        rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, bytes.0)
            .with_context(|| format!("cannot give {} its {bytes}", area.path.display()))?;
        area.format()?;
        Ok(area)
    }

    fn format(&self) -> Result<()> {
        tools::finished(Command::new("mkswap").arg(&self.path))
    }

    /// Turns it on.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn on(&self) -> Result<On<'_>> {
        tools::finished(Command::new("swapon").args(["--priority", PRIORITY]).arg(&self.path))?;
        Ok(On(self))
    }

    /// The most memory that the compressed pages took; nothing for a file.
    pub fn memory_peak(&self) -> Option<Bytes> {
        let Kind::Zram { number, .. } = self.kind else { return None };
        memory_peak(&fs::read_to_string(format!("/sys/block/zram{number}/mm_stat")).ok()?)
    }

    fn remove(&self) -> Result<()> {
        match self.kind {
            Kind::File => fs::remove_file(&self.path).context("cannot remove it"),
            Kind::Zram { number, loaded } => {
                let reset = format!("/sys/block/zram{number}/reset");
                fs::write(&reset, "1").with_context(|| format!("cannot write 1 to {reset}"))?;
                let remove = format!("{ZRAM}/hot_remove");
                fs::write(&remove, number.to_string()).with_context(|| format!("cannot write {number} to {remove}"))?;
                if loaded { tools::finished(Command::new("modprobe").args(["--remove", "zram"])) } else { Ok(()) }
            }
        }
    }
}

impl Drop for Area {
    fn drop(&mut self) {
        if let Err(error) = self.remove() {
            eprintln!("masu-bench: {} is still there: {error:#}", self.path.display());
        }
    }
}

impl Drop for On<'_> {
    fn drop(&mut self) {
        let path = &self.0.path;
        if let Err(error) = tools::finished(Command::new("swapoff").arg(path)) {
            eprintln!("masu-bench: {} is still on: {error:#}\n    swapoff {}", path.display(), path.display());
        }
    }
}

/// Pages that were swapped, on the whole host, since it started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Swapped {
    /// Back into memory.
    pub bytes_in: Bytes,
    /// Bytes swapped out of memory.
    pub bytes_out: Bytes,
}

impl Swapped {
    /// The count now.
    ///
    /// # Errors
    /// When the kernel does not count.
    pub fn now() -> Result<Swapped> {
        Swapped::of(&fs::read_to_string("/proc/vmstat").context("cannot read /proc/vmstat")?)
    }

    fn of(vmstat: &str) -> Result<Swapped> {
        let bytes = |name: &str| -> Result<Bytes> {
            let mut lines = vmstat.lines().filter_map(|line| line.split_once(' '));
            let Some((_, pages)) = lines.find(|(key, _)| *key == name) else {
                bail!("/proc/vmstat: no {name}; this kernel cannot swap");
            };
            Ok(Bytes(pages.trim().parse::<u64>().with_context(|| format!("/proc/vmstat: {name}"))? * 4096))
        };
        Ok(Swapped { bytes_in: bytes("pswpin")?, bytes_out: bytes("pswpout")? })
    }

    /// Pages swapped since `before`.
    pub fn since(self, before: Swapped) -> Swapped {
        Swapped {
            bytes_in: self.bytes_in.saturating_sub(before.bytes_in),
            bytes_out: self.bytes_out.saturating_sub(before.bytes_out),
        }
    }
}

/// Reads the text of `mm_stat`: the fifth number.
fn memory_peak(mm_stat: &str) -> Option<Bytes> {
    mm_stat.split_whitespace().nth(4)?.parse().ok().map(Bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn swapped_pages_are_counted_in_bytes() {
        let before = Swapped::of("pswpin 10\npswpout 20\npswpin_zero 7\n").unwrap();
        let after = Swapped::of("pgpgin 5\npswpin 12\npswpout 120\n").unwrap();
        assert_eq!(after.since(before), Swapped { bytes_in: Bytes(8192), bytes_out: Bytes(409_600) });
        let said = Swapped::of("pgpgin 5\n").unwrap_err().to_string();
        assert_eq!(said, "/proc/vmstat: no pswpin; this kernel cannot swap");
    }

    #[test]
    fn the_peak_of_compressed_memory_is_the_fifth_number() {
        let text = " 41943040 10485760 11534336        0 12582912      100        0        0\n";
        assert_eq!(memory_peak(text), Some(Bytes(12_582_912)));
        assert_eq!(memory_peak("1 2 3"), None);
    }

    #[test]
    fn a_file_that_cannot_be_made_is_named() {
        let said = Area::file(Path::new("/nowhere"), Bytes::mib(1)).unwrap_err().to_string();
        assert!(said.starts_with("cannot make /nowhere/masu-bench-"), "{said}");
    }
}
