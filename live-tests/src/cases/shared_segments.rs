//! Segments of System V shared memory, and their locks.

use std::ffi::c_void;
use std::ptr::{NonNull, null};

use linux::kpageflags::FrameTable;
use linux::pagemap::Pagemap;
use linux::shared_segments::{Segment, SegmentId, lock, segments, unlock};
use linux::{Error, Pid};
use units::{AddressRange, Bytes};

use super::{Outcome, disk_file};
use crate::host::{Host, LiveTest, tests};

/// Tests of this file, and their requirements.
pub(crate) const TESTS: &[LiveTest] = tests! {
    shared_segments requires [Root, PageFrames, SharedSegments, Compaction];
    a_locked_segment_is_listed_so_and_its_pages_are_put_aside;
};

const PAGES: usize = 64;
const LENGTH: usize = PAGES * 4096;

/// A segment of our own, mapped.
///
/// # Safety
/// `start` is where `LENGTH` bytes of it are mapped, from [`Attached::make`] until drop.
struct Attached {
    id: SegmentId,
    start: NonNull<c_void>,
}

impl Attached {
    fn make() -> std::io::Result<Attached> {
        // SAFETY: a system call with numbers.
        let id = unsafe { libc::shmget(libc::IPC_PRIVATE, LENGTH, libc::IPC_CREAT | 0o600) };
        if id < 0 {
            return Err(std::io::Error::last_os_error());
        }
        // SAFETY: mapped where the kernel chooses.
        let start = unsafe { libc::shmat(id, null(), 0) };
        let failed = (start.addr() == usize::MAX).then(std::io::Error::last_os_error);
        match (failed, NonNull::new(start)) {
            (None, Some(start)) => Ok(Attached { id: SegmentId(id), start }),
            (failed, _) => {
                remove(id);
                Err(failed.unwrap_or_else(|| std::io::ErrorKind::OutOfMemory.into()))
            }
        }
    }

    /// Writes to its pages from `first` on, before `end`.
    fn write(&self, first: usize, end: usize) {
        for page in first..end.min(PAGES) {
            // SAFETY: within the mapping (see the type), which no other code has.
            unsafe { self.start.cast::<u8>().add(page * 4096).write_volatile(7) };
        }
    }

    fn listed(&self, host: &Host) -> Result<Option<Segment>, Error> {
        Ok(segments(host.files())?.into_iter().find(|segment| segment.id == self.id))
    }

    /// Resident pages that the kernel may not reclaim.
    fn unevictable(&self) -> Result<Vec<usize>, libtest_mimic::Failed> {
        let start = self.start.addr().get() as u64;
        let range = AddressRange::new(start, start + LENGTH as u64).map_err(|bad| bad.to_string())?;
        let entries = Pagemap::open(Pid::own())?.entries(range)?;
        let table = FrameTable::open()?;
        let mut found = Vec::new();
        for (page, entry) in entries.iter().enumerate() {
            if let Some(frame) = entry.frame()
                && table.flags(frame)?.is_unevictable()
            {
                found.push(page);
            }
        }
        Ok(found)
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        // SAFETY: where it is mapped (see the type); nothing points there any more.
        if unsafe { libc::shmdt(self.start.as_ptr()) } != 0 {
            eprintln!("cannot unmap a segment: {}", std::io::Error::last_os_error());
        }
        remove(self.id.0);
    }
}

fn remove(id: i32) {
    // SAFETY: this order reads no record.
    if unsafe { libc::shmctl(id, libc::IPC_RMID, std::ptr::null_mut()) } != 0 {
        eprintln!("cannot remove segment {id}: {}", std::io::Error::last_os_error());
    }
}

/// Pages that come in after the lock are moved to the unevictable list at once, and come back at the unlock.
fn a_locked_segment_is_listed_so_and_its_pages_are_put_aside(host: &Host) -> Outcome {
    let segment = Attached::make()?;
    segment.write(0, 8);
    let before = segment.listed(host)?.ok_or("it is not listed")?;
    assert_eq!((before.size, before.attached, before.creator), (Bytes(LENGTH as u64), 1, Pid::own()));
    assert_eq!((before.resident, before.locked), (Bytes::kib(32), false));

    lock(segment.id)?;
    let locked = segment.listed(host)?.ok_or("it is not listed")?;
    assert_eq!(locked, Segment { locked: true, ..before }, "and nothing was brought in");
    segment.write(8, PAGES);
    settle()?;
    let aside = segment.unevictable()?;
    assert!((8..PAGES).all(|page| aside.contains(&page)), "{aside:?}");

    unlock(segment.id)?;
    settle()?;
    assert_eq!(segment.unevictable()?, [] as [usize; 0]);
    assert_eq!(segment.listed(host)?.map(|segment| segment.locked), Some(false));

    let id = segment.id;
    drop(segment);
    assert!(lock(id).is_err_and(|error| error.is_gone()));
    Ok(())
}

/// Has every processor put the pages that wait for it on their lists. Dropping pages of a file that are mapped, and stay, does
/// that; where our own program lies in memory, nothing is tried, and compaction does it.
fn settle() -> Outcome {
    let program = std::fs::File::open("/proc/self/exe")?;
    rustix::fs::fadvise(&program, 0, None, rustix::fs::Advice::DontNeed)?;
    if !disk_file::is_possible()? {
        std::fs::write("/proc/sys/vm/compact_memory", "1")?;
    }
    Ok(())
}
