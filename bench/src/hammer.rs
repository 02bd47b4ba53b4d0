//! Promotes and demotes random windows of another process as fast as the kernel allows, for the torture test: masu's
//! actions without its policy.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::mapping::{PAGE_BYTES, WINDOW_BYTES};
use units::spread::Random;

/// `MADV_COLLAPSE`, Linux 6.1 and newer; not in the libc crate for every target.
const MADV_COLLAPSE: libc::c_int = 25;

/// Counts of a hammering.
#[derive(Clone, Debug, Default, serde::Serialize)]
pub struct Blows {
    /// Windows put on a huge page, by the kernel's answer.
    pub promoted: u64,
    /// Single pages marked cold, which splits the huge page around one; windows demoted by masu.
    pub split: u64,
    /// Refusals by reason.
    pub refused: BTreeMap<String, u64>,
}

/// Hammers at process `pid` until `end` is raised or the process is gone.
///
/// # Errors
/// When the process cannot be opened.
pub fn hammer(pid: u32, seed: u64, end: &AtomicBool) -> Result<Blows> {
    let number = i32::try_from(pid).ok().and_then(Pid::from_raw).context("not a process number")?;
    let process = pidfd_open(number, PidfdFlags::empty()).with_context(|| format!("cannot open process {pid}"))?;
    let (mut blows, mut random) = (Blows::default(), Random::seeded(seed));
    while !end.load(Ordering::Acquire) {
        let Ok(maps) = fs::read_to_string(format!("/proc/{pid}/maps")) else { break };
        let windows = windows_of(&maps);
        if windows.is_empty() {
            break;
        }
        for _ in 0..2000 {
            if end.load(Ordering::Acquire) {
                break;
            }
            strike(&process, windows[random.below(windows.len())], &mut random, &mut blows);
        }
        let _ = fs::write(format!("/proc/{pid}/clear_refs"), "1");
    }
    Ok(blows)
}

fn strike(process: &OwnedFd, window: usize, random: &mut Random, blows: &mut Blows) {
    let promote = random.below(3) > 0;
    let done = if promote {
        advise(process, window, WINDOW_BYTES, MADV_COLLAPSE)
    } else {
        advise(process, window + random.below(512) * PAGE_BYTES, PAGE_BYTES, libc::MADV_COLD)
    };
    match done {
        Ok(()) if promote => blows.promoted += 1,
        Ok(()) => blows.split += 1,
        Err(error) => *blows.refused.entry(reason(&error)).or_default() += 1,
    }
}

/// The kernel's name for the reasons that can be expected here.
fn reason(error: &io::Error) -> String {
    let name = match error.raw_os_error() {
        Some(libc::EAGAIN) => "EAGAIN",
        Some(libc::ENOMEM) => "ENOMEM",
        Some(libc::EBUSY) => "EBUSY",
        Some(libc::EINVAL) => "EINVAL",
        Some(libc::ESRCH) => "ESRCH",
        Some(libc::EPERM) => "EPERM",
        _ => return error.to_string(),
    };
    name.to_owned()
}

/// `process_madvise` on one range of another process.
fn advise(process: &OwnedFd, address: usize, bytes: usize, advice: libc::c_int) -> io::Result<()> {
    let range = libc::iovec { iov_base: std::ptr::without_provenance_mut(address), iov_len: bytes };
    // SAFETY: `range` outlives the call and the kernel only reads it; the address is one of the other process, never
    // dereferenced here; neither piece of advice changes the memory's contents.
    let done = unsafe {
        libc::syscall(libc::SYS_process_madvise, process.as_raw_fd(), &raw const range, 1usize, advice, 0u32)
    };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// First addresses of the whole windows in private, writable, nameless mappings.
fn windows_of(maps: &str) -> Vec<usize> {
    let mut windows = Vec::new();
    for line in maps.lines() {
        let mut words = line.split_whitespace();
        let (Some(range), Some("rw-p"), None) = (words.next(), words.next(), words.nth(3)) else { continue };
        let Some((start, end)) = range.split_once('-') else { continue };
        let (Ok(start), Ok(end)) = (usize::from_str_radix(start, 16), usize::from_str_radix(end, 16)) else { continue };
        let first = start.next_multiple_of(WINDOW_BYTES);
        windows.extend((first..end).step_by(WINDOW_BYTES).filter(|window| window + WINDOW_BYTES <= end));
    }
    windows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_windows_of_nameless_writable_mappings_are_struck() {
        let maps = "\
7f0000000000-7f0000600000 rw-p 00000000 00:00 0 \n\
7f0001100000-7f0001500000 rw-p 00000000 00:00 0\n\
7f0002000000-7f0002200000 r--p 00000000 00:00 0 \n\
7f0003000000-7f0003200000 rw-p 00000000 08:01 77 /lib/x.so\n\
7f0004000000-7f0004100000 rw-p 00000000 00:00 0 \n\
junk\n";
        let wanted = [0x7f00_0000_0000, 0x7f00_0020_0000, 0x7f00_0040_0000, 0x7f00_0120_0000];
        assert_eq!(windows_of(maps), wanted);
    }

    #[test]
    fn a_process_that_is_not_there_is_an_error_and_a_raised_flag_an_end() {
        let end = AtomicBool::new(true);
        assert!(hammer(u32::MAX, 1, &end).is_err());
        assert_eq!(hammer(std::process::id(), 1, &end).unwrap().promoted, 0);
    }
}
