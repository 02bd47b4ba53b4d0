//! Page frames that are code: frames of files that some process maps executable.
//!
//! A library page that one process executes is code also for a process that reads it as data.

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
}

/// Code of all processes.
#[derive(Clone, Debug, Default)]
pub struct Code {
    /// Frames.
    pub frames: FrameSet,
    /// Processes with memory of their own.
    pub runners: Vec<Runner>,
    /// Errors of processes that could not be read: their code counts as read-only data, unless another process executes
    /// it, too.
    pub not_read: Vec<Error>,
}

/// Reads all processes.
///
/// # Errors
/// `Unsupported` where /proc is not mounted.
pub fn of_host(files: &impl KernelFiles, host: HostFrames<'_>) -> Result<Code, Error> {
    let mut found = Code::default();
    for pid in processes::processes(files)? {
        match of_process(files, pid, host, &mut found.frames) {
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
    frames: &mut FrameSet,
) -> Result<Option<Runner>, Error> {
    let status = status(files, pid)?;
    if status.kernel_thread || status.zombie {
        return Ok(None);
    }
    let mappings = maps::maps(files, pid)?;
    let pagemap = Pagemap::open(pid)?;
    let mut code = Pages(0);
    for mapping in mappings.iter().filter(|mapping| is_code(mapping)) {
        let entries = pagemap.entries(mapping.range)?;
        let own: Vec<u64> = entries.into_iter().filter(|entry| entry.is_file()).filter_map(PageEntry::frame).collect();
        // A program in tmpfs is shared memory, and the kernel counts it so for the process. Code already found in
        // another process is not read again.
        let is_known = own.first().is_some_and(|first| frames.contains(*first));
        if is_known || Kind::of_frames(&own, host.table, host.memory)? == Kind::File {
            code.0 += own.len() as u64;
            own.into_iter().for_each(|frame| {
                frames.insert(frame);
            });
        }
    }
    Ok(Some(Runner { pid, status, code }))
}

/// True for an executable mapping of a file. Shared memory (`/dev/zero`, memfd, tmpfs) is recognized at the frames.
pub fn is_code(mapping: &Mapping) -> bool {
    mapping.permissions.execute && mapping.inode != 0
}
