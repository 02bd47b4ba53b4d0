//! `BTRFS_IOC_TREE_SEARCH`: ids of all subvolumes of a btrfs file system, snapshots among them.
//!
//! Files of two subvolumes may have one inode number, and those of a snapshot have the generation of the original, too.
//!
//! Cost: some 10 µs. Side effects: none.
//!
//! Since: Linux 2.6.34. Needs CAP_SYS_ADMIN. Truth: `btrfs_ioctl_search_key` in include/uapi/linux/btrfs.h;
//! `key_in_sk` in fs/btrfs/ioctl.c.

use std::os::fd::{AsRawFd, OwnedFd};

use rustix::io::Errno;

const BTRFS_IOC_TREE_SEARCH: libc::c_ulong = 0xd000_9411;
/// `struct btrfs_ioctl_search_args`, in words: a key of 13, and the kernel's answer.
const WORDS: usize = 512;
const KEY_WORDS: usize = 13;
/// `struct btrfs_ioctl_search_header`, in bytes.
const HEADER_BYTES: usize = 32;

const ROOT_TREE: u64 = 1;
const ROOT_ITEM: u32 = 132;
/// Id of the topmost subvolume, and those of the others.
const TOPMOST: u64 = 5;
const OTHERS: std::ops::RangeInclusive<u64> = 256..=u64::MAX - 255;

/// Ids of the subvolumes of the file system with this file or folder; `None` if there are more than `most`.
///
/// # Errors
/// `NOTTY` on another file system, `PERM` without CAP_SYS_ADMIN.
pub(crate) fn subvolumes(at: &OwnedFd, most: usize) -> Result<Option<Vec<u64>>, Errno> {
    let mut found = Vec::new();
    let mut next = TOPMOST;
    loop {
        let items = search(at, next)?;
        let Some(last) = items.last().map(|(id, _)| *id) else { return Ok(Some(found)) };
        let new = items.iter().filter(|(id, kind)| *kind == ROOT_ITEM && (*id == TOPMOST || OTHERS.contains(id)));
        found.extend(new.map(|(id, _)| *id));
        found.dedup();
        if found.len() > most {
            return Ok(None);
        }
        let Some(after) = last.checked_add(1) else { return Ok(Some(found)) };
        next = after;
    }
}

/// Items of the root tree from this id on, as many as one call returns: id and type of each.
fn search(at: &OwnedFd, from: u64) -> Result<Vec<(u64, u32)>, Errno> {
    let mut words = [0u64; WORDS];
    let key = [ROOT_TREE, from, *OTHERS.end(), 0, u64::MAX, 0, u64::MAX];
    words[..key.len()].copy_from_slice(&key);
    // Types of all items, and their number.
    let (types, number) = (u64::from(u32::MAX) << 32, 4096);
    (words[key.len()], words[key.len() + 1]) = (types, number);
    // SAFETY: the kernel reads and writes one `struct btrfs_ioctl_search_args`, which is as long as `words` and has its
    // alignment; the file is open.
    if unsafe { libc::ioctl(at.as_raw_fd(), BTRFS_IOC_TREE_SEARCH, words.as_mut_ptr()) } != 0 {
        return Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO));
    }
    let bytes: Vec<u8> = words[KEY_WORDS..].iter().flat_map(|word| word.to_ne_bytes()).collect();
    // The low half, on a little-endian machine, and the high one on others.
    let halves = words[key.len() + 1].to_ne_bytes();
    let count = halves.first_chunk().map_or(0, |half| u32::from_ne_bytes(*half));
    Ok(decode(&bytes, count))
}

/// Items of the kernel's answer; what is cut off is left out.
fn decode(mut bytes: &[u8], count: u32) -> Vec<(u64, u32)> {
    let mut items = Vec::new();
    for _ in 0..count {
        let Some((header, rest)) = bytes.split_at_checked(HEADER_BYTES) else { break };
        let word = |at: usize| header.get(at..)?.first_chunk().map(|word| u64::from_ne_bytes(*word));
        let half = |at: usize| header.get(at..)?.first_chunk().map(|half| u32::from_ne_bytes(*half));
        let (Some(id), Some(kind), Some(length)) = (word(8), half(24), half(28)) else { break };
        items.push((id, kind));
        let Some(rest) = rest.get(units::cast::index(u64::from(length))..) else { break };
        bytes = rest;
    }
    items
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(id: u64, kind: u32, length: u32) -> Vec<u8> {
        let mut bytes: Vec<u8> = [9, id, 0].iter().flat_map(|word: &u64| word.to_ne_bytes()).collect();
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(length.to_ne_bytes());
        bytes.extend(vec![7; length as usize]);
        bytes
    }

    #[test]
    fn items_have_an_id_and_a_type_and_any_length() {
        let bytes = [item(5, ROOT_ITEM, 439), item(256, 144, 0), item(257, ROOT_ITEM, 1)].concat();
        assert_eq!(decode(&bytes, 3), [(5, ROOT_ITEM), (256, 144), (257, ROOT_ITEM)]);
        assert_eq!(decode(&bytes, 2).len(), 2);
        assert_eq!(decode(&bytes[..40], 3), [(5, ROOT_ITEM)], "cut off");
        assert_eq!(decode(&[], 3), []);
    }

    #[test]
    fn other_file_systems_have_no_subvolumes() {
        let folder = rustix::fs::open("/proc", rustix::fs::OFlags::RDONLY, rustix::fs::Mode::empty()).unwrap();
        assert_eq!(subvolumes(&folder, 9), Err(Errno::NOTTY));
    }
}
