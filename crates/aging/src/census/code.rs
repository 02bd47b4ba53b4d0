//! Page frames that are code: frames of files that some process maps executable. Frames of memfd_secret(2), whose flags
//! are those of a file.
//!
//! A library page that one process executes is code also for a process that reads it as data.

use linux::kpageflags::FrameFlags;
use linux::maps::{self, Mapping};
use linux::pagemap::{PageEntry, Pagemap};
use linux::status::{Status, status};
use linux::{Error, KernelFiles, Pid, processes};
use units::Pages;

use super::frame_set::FrameSet;
use super::kind::Kind;
use super::processes::HostFrames;

/// Process and its resident code.
#[derive(Clone, Debug)]
pub struct Runner {
    /// Pid.
    pub pid: Pid,
    /// Identity and memory of the process.
    pub status: Status,
    /// Resident file pages in its executable mappings.
    pub code: Pages,
    /// Resident pages of memfd_secret(2), which the kernel counts as file pages of the process.
    pub secret: Pages,
}

/// Code of all processes.
#[derive(Clone, Debug, Default)]
pub struct Code {
    /// Frames.
    pub frames: FrameSet,
    /// Frames of memfd_secret(2).
    pub secret: FrameSet,
    /// Processes with memory of their own.
    pub runners: Vec<Runner>,
    /// Errors of processes that could not be read: their code counts as read-only data, unless another process executes
    /// it, too.
    pub not_read: Vec<Error>,
}

impl Code {
    /// Flags of a frame, by which its class is told.
    pub fn flags(&self, frame: u64, flags: FrameFlags) -> FrameFlags {
        if self.secret.contains(frame) { flags.of_memory() } else { flags }
    }
}

/// Reads all processes.
///
/// # Errors
/// `Unsupported` where /proc is not mounted.
pub fn of_host(files: &impl KernelFiles, host: HostFrames<'_>) -> Result<Code, Error> {
    let mut found = Code::default();
    for pid in processes::processes(files)? {
        match of_process(files, pid, host, &mut found) {
            Ok(Some(runner)) => found.runners.push(runner),
            Ok(None) => {}
            Err(error) if error.is_gone() => {}
            Err(error) => found.not_read.push(error),
        }
    }
    Ok(found)
}

/// `None` for a process without memory of its own.
fn of_process(
    files: &impl KernelFiles,
    pid: Pid,
    host: HostFrames<'_>,
    found: &mut Code,
) -> Result<Option<Runner>, Error> {
    let status = status(files, pid)?;
    if status.kernel_thread || status.zombie {
        return Ok(None);
    }
    let mappings = maps::maps(files, pid)?;
    let pagemap = Pagemap::open(pid)?;
    let mut code = Pages(0);
    for mapping in mappings.iter().filter(|mapping| is_code(mapping)) {
        let own = frames_of_file(&pagemap, mapping)?;
        // A program in tmpfs is shared memory, and the kernel counts it so for the process. Code already found in
        // another process is not read again.
        let is_known = own.first().is_some_and(|first| found.frames.contains(*first));
        if is_known || Kind::of_frames(&own, host.table, host.memory)? == Kind::File {
            code.0 += own.len() as u64;
            own.into_iter().for_each(|frame| {
                found.frames.insert(frame);
            });
        }
    }
    let mut secret = Pages(0);
    for mapping in mappings.iter().filter(|mapping| mapping.is_secret()) {
        for frame in frames_of_file(&pagemap, mapping)? {
            found.secret.insert(frame);
            secret.0 += 1;
        }
    }
    Ok(Some(Runner { pid, status, code, secret }))
}

fn frames_of_file(pagemap: &Pagemap, mapping: &Mapping) -> Result<Vec<u64>, Error> {
    let entries = pagemap.entries(mapping.range)?;
    Ok(entries.into_iter().filter(|entry| entry.is_file()).filter_map(PageEntry::frame).collect())
}

/// True for an executable mapping of a file. Shared memory (`/dev/zero`, memfd, tmpfs) is recognized at the frames.
pub fn is_code(mapping: &Mapping) -> bool {
    mapping.permissions.execute && mapping.inode != 0
}
