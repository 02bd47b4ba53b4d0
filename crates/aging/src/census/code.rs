//! Which page frames are code: those of files that some process maps executable.
//!
//! A page of a library that one process runs is code also where another reads it as data.

use linux::maps::{self, Mapping};
use linux::pagemap::{PageEntry, Pagemap};
use linux::status::{Status, status};
use linux::{Error, KernelFiles, Pid, processes};
use units::Pages;

use super::frame_set::FrameSet;
use super::kind::Kind;
use super::processes::HostFrames;

/// A process and the code that it has in memory.
#[derive(Clone, Debug)]
pub struct Runner {
    /// Which.
    pub pid: Pid,
    /// Who it is, and what it has.
    pub status: Status,
    /// Pages of files in its executable mappings that are in its page tables.
    pub code: Pages,
}

/// What all processes run.
#[derive(Clone, Debug, Default)]
pub struct Code {
    /// The frames.
    pub frames: FrameSet,
    /// The processes with memory of their own.
    pub runners: Vec<Runner>,
    /// Why processes could not be looked at: their code counts as read-only data, unless others run it, too.
    pub not_read: Vec<Error>,
}

/// Looks at every process.
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
        // A program in tmpfs is shared memory, and the kernel counts it so for the process.
        // What another process was found to run needs no asking.
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

/// An executable mapping of a file. What of it is shared memory (`/dev/zero`, memfd, tmpfs) the frames say.
pub fn is_code(mapping: &Mapping) -> bool {
    mapping.permissions.execute && mapping.inode != 0
}
