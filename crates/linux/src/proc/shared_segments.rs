//! `/proc/sysvipc/shm` and `shmctl(2)`: shared memory segments made by `shmget`, and locking them.
//!
//! Other shared memory is a file (`/dev/shm`, memfd), locked in memory by `pinned_file.rs`, or belongs to processes
//! alone.
//!
//! A lock brings nothing in. Pages that come in later are not reclaimed; earlier ones move to the unevictable list
//! when the kernel comes across them. Pages of huge-page segments (SHM_HUGETLB) are never reclaimed; a lock on one
//! succeeds and does nothing.
//!
//! Cost: some 20 µs for the list, more with many segments, whose pages are summed up under a lock of the kernel's; a
//! lock is a system call; an unlock walks the segment's pages, some ms a GiB.
//! Side effects: the lock belongs to the segment, not to its setter: it outlives us, and other processes may remove
//! it or have set it already. So look first, unlock only our own locks, and record them in case of a crash. A locked
//! segment counts against the RLIMIT_MEMLOCK of the user that locked it, and is charged to the group that touched it
//! first, locked or not: a group that is full of it kills (OOM).
//!
//! Since: always (CONFIG_SYSVIPC); `rss` and `swap` Linux 2.6.36. The list has only the segments of our IPC
//! namespace, not those of a container. Locking needs the segment's owner, or CAP_IPC_LOCK.
//!
//! Truth: proc_sysvipc(5), shmctl(2); `sysvipc_shm_proc_show` in ipc/shm.c; Documentation/mm/unevictable-lru.rst.

use std::fmt;

use rustix::io::Errno;
use units::Bytes;

use crate::{Error, KernelFiles, Pid};

const FILE: &str = "proc/sysvipc/shm";
const OBJECT: &str = "/proc/sysvipc/shm";
/// Bit of the permissions: locked.
const SHM_LOCKED: u32 = 0o2000;

/// The kernel's number of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SegmentId(pub i32);

impl fmt::Display for SegmentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// One segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// The kernel's number.
    pub id: SegmentId,
    /// Key agreed on between programs; 0 for a segment known only to related processes.
    pub key: i32,
    /// Size, in memory or not.
    pub size: Bytes,
    /// Process that made it, which may have ended.
    pub creator: Pid,
    /// User id of the owner.
    pub owner_uid: u32,
    /// Number of mappings.
    pub attached: u64,
    /// In memory.
    pub resident: Bytes,
    /// In swap.
    pub swapped: Bytes,
    /// Locked.
    pub locked: bool,
}

/// Segments, in the kernel's order.
///
/// # Errors
/// `Unsupported` without CONFIG_SYSVIPC; `Malformed` for other text.
pub fn segments(files: &impl KernelFiles) -> Result<Vec<Segment>, Error> {
    let text = files.read(FILE).map_err(|errno| Error::of_host("read", OBJECT, errno))?;
    let mut lines = text.lines();
    let head: Vec<&str> = lines.next().unwrap_or_default().split_ascii_whitespace().collect();
    lines.filter(|line| !line.trim().is_empty()).map(|line| segment(&head, line)).collect()
}

/// Parses one line by the column names of the first line.
fn segment(head: &[&str], line: &str) -> Result<Segment, Error> {
    let values: Vec<&str> = line.split_ascii_whitespace().collect();
    let bad =
        |column: &str| Error::malformed(OBJECT, format_args!("{:?}, expected a number for {column:?}", line.trim()));
    let value = |column: &str| {
        let place = head.iter().position(|name| *name == column);
        place.and_then(|place| values.get(place).copied()).ok_or_else(|| bad(column))
    };
    let number = |column: &str| value(column)?.parse::<u64>().map_err(|_| bad(column));
    let permissions = u32::from_str_radix(value("perms")?, 8).map_err(|_| bad("perms"))?;
    Ok(Segment {
        id: SegmentId(value("shmid")?.parse().map_err(|_| bad("shmid"))?),
        key: value("key")?.parse().map_err(|_| bad("key"))?,
        size: Bytes(number("size")?),
        creator: Pid(value("cpid")?.parse().map_err(|_| bad("cpid"))?),
        owner_uid: value("uid")?.parse().map_err(|_| bad("uid"))?,
        attached: number("nattch")?,
        resident: Bytes(number("rss")?),
        swapped: Bytes(number("swap")?),
        locked: permissions & SHM_LOCKED != 0,
    })
}

/// Locks the segment: the kernel evicts none of its pages from now on.
///
/// # Errors
/// `Gone` if it was removed; `Denied` for one of another user without CAP_IPC_LOCK, and beyond RLIMIT_MEMLOCK
/// (ENOMEM).
pub fn lock(id: SegmentId) -> Result<(), Error> {
    control("lock", id, libc::SHM_LOCK)
}

/// Removes the lock, whichever process set it.
///
/// # Errors
/// `Gone` if it was removed; `Denied` for one of another user without CAP_IPC_LOCK.
pub fn unlock(id: SegmentId) -> Result<(), Error> {
    control("unlock", id, libc::SHM_UNLOCK)
}

fn control(operation: &str, id: SegmentId, order: libc::c_int) -> Result<(), Error> {
    // SAFETY: these two commands take a number and read no record.
    if unsafe { libc::shmctl(id.0, order, std::ptr::null_mut()) } == 0 {
        return Ok(());
    }
    let errno = Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO);
    Err(refused(operation, id, errno))
}

fn refused(operation: &str, id: SegmentId, errno: Errno) -> Error {
    let at = crate::At { operation: operation.to_owned(), object: format!("segment {id} of shared memory"), errno };
    match errno {
        Errno::INVAL | Errno::IDRM => Error::Gone(at),
        Errno::NOMEM => Error::Denied(at),
        _ => Error::of_host(at.operation, at.object, errno),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::Rooted;
    use crate::fake::FakeKernel;

    /// Recorded on Linux 6.18; the second segment was made by hand.
    const RECORDED: &str = "       key      shmid perms                  size  cpid  lpid nattch   uid   gid  cuid  cgid      \
        atime      dtime      ctime                   rss                  swap\n         0         27  2600               \
        1048576  6017     0      0     0     0     0     0          0          0 1795441259                     0                     0\n\
        -559038737   32768   600  18446744073692774400  812   990      2  1000  1000  1000  1000 1 2 3  8192  4096\n";

    fn of(text: &str) -> Result<Vec<Segment>, Error> {
        segments(&FakeKernel::new().file(FILE, text))
    }

    #[test]
    fn the_recorded_segment_is_read_and_so_is_one_in_use() {
        let expected = [
            Segment {
                id: SegmentId(27),
                key: 0,
                size: Bytes::mib(1),
                creator: Pid(6017),
                owner_uid: 0,
                attached: 0,
                resident: Bytes(0),
                swapped: Bytes(0),
                locked: true,
            },
            Segment {
                id: SegmentId(32768),
                key: -559_038_737,
                size: Bytes(18_446_744_073_692_774_400), // maximum size: no limit by default
                creator: Pid(812),
                owner_uid: 1000,
                attached: 2,
                resident: Bytes(8192),
                swapped: Bytes(4096),
                locked: false,
            },
        ];
        assert_eq!(of(RECORDED).unwrap(), expected);
    }

    #[test]
    fn a_missing_file_is_unsupported_and_no_segments_are_none() {
        assert!(matches!(segments(&FakeKernel::new()), Err(Error::Unsupported(_))));
        let head = RECORDED.lines().next().unwrap();
        assert_eq!(of(head), Ok(Vec::new()));
    }

    #[test]
    fn what_is_malformed_is_named() {
        let error = of("shmid perms\n27 8\n").unwrap_err();
        let expected = "cannot understand /proc/sysvipc/shm: \"27 8\", expected a number for \"perms\"";
        assert_eq!(error.to_string(), expected);
        assert!(of(&RECORDED.replace("1048576", "much")).is_err());
        assert!(of(&RECORDED.replace("  4096\n", "\n")).is_err(), "a column is missing");
    }

    #[test]
    fn columns_of_a_newer_kernel_are_left_out() {
        let lines = RECORDED.lines().enumerate();
        let newer = lines.map(|(n, line)| format!("{} {line}\n", if n == 0 { "new" } else { "x" }));
        assert_eq!(of(&newer.collect::<String>()), of(RECORDED));
    }

    #[test]
    fn a_segment_that_does_not_exist_is_gone() {
        let nobodys = SegmentId(i32::MAX);
        for refused in [lock(nobodys), unlock(nobodys)] {
            match refused.unwrap_err() {
                error @ Error::Gone(_) => assert!(error.to_string().contains("segment 2147483647"), "{error}"),
                error => assert!(matches!(error, Error::Unsupported(_)), "{error}"),
            }
        }
        assert!(matches!(refused("lock", nobodys, Errno::PERM), Error::Denied(_)));
        assert!(matches!(refused("lock", nobodys, Errno::NOMEM), Error::Denied(_)));
    }

    #[test]
    fn the_list_of_this_host_is_understood() {
        match segments(&Rooted::host()) {
            Ok(_) | Err(Error::Unsupported(_)) => (),
            Err(error) => panic!("{error}"),
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused_without_a_panic(text in "(?s).{0,100}", row in ".{0,80}") {
            let head = RECORDED.lines().next().unwrap();
            let _ = (of(&text), of(&format!("{head}\n{row}\n")));
        }
    }
}
