//! The initial file system of a virtual machine, in the kernel's `newc` cpio format.
//!
//! Truth: Documentation/driver-api/early-userspace/buffer-format.rst.

use anyhow::{Context, Result};

const DIRECTORY: u32 = 0o040_755;
const CHARACTER_DEVICE: u32 = 0o020_600;
const PROGRAM: u32 = 0o100_755;

/// One file.
struct Entry<'a> {
    name: &'a str,
    mode: u32,
    /// Major and minor number of a device.
    device: (u32, u32),
    content: &'a [u8],
}

/// Archive with these programs and libraries by their paths, a console device, and the mount points. The kernel starts
/// `init`.
pub fn archive(programs: &[(&str, Vec<u8>)]) -> Result<Vec<u8>> {
    let mut folders = vec!["dev", "proc", "run", "sys", "tmp"];
    for (path, _) in programs {
        let ends = path.match_indices('/').map(|(end, _)| &path[..end]);
        for folder in ends {
            if !folders.contains(&folder) {
                folders.push(folder);
            }
        }
    }
    let folder = |name| Entry { name, mode: DIRECTORY, device: (0, 0), content: &[] };
    let mut entries: Vec<Entry<'_>> = folders.into_iter().map(folder).collect();
    entries.push(Entry { name: "dev/console", mode: CHARACTER_DEVICE, device: (5, 1), content: &[] });
    let program = |(name, content)| Entry { name, mode: PROGRAM, device: (0, 0), content };
    entries.extend(programs.iter().map(|(name, content)| program((*name, content.as_slice()))));
    let mut bytes = Vec::new();
    for (number, entry) in (1..).zip(&entries) {
        append(&mut bytes, number, entry)?;
    }
    append(&mut bytes, 0, &Entry { name: "TRAILER!!!", mode: 0, device: (0, 0), content: &[] })?;
    Ok(bytes)
}

fn append(bytes: &mut Vec<u8>, inode: u32, entry: &Entry<'_>) -> Result<()> {
    let length = u32::try_from(entry.content.len()).context("the program is too large for a cpio archive")?;
    let name_length = u32::try_from(entry.name.len() + 1)?;
    let (major, minor) = entry.device;
    let (owner, links, time, checksum) = (0, 1, 0, 0);
    let fields = [inode, entry.mode, owner, owner, links, time, length, 0, 0, major, minor, name_length, checksum];
    bytes.extend_from_slice(b"070701");
    for field in fields {
        bytes.extend_from_slice(format!("{field:08X}").as_bytes());
    }
    bytes.extend_from_slice(entry.name.as_bytes());
    bytes.push(0);
    pad(bytes);
    bytes.extend_from_slice(entry.content);
    pad(bytes);
    Ok(())
}

/// Headers with their names, and contents, end on a multiple of four bytes.
fn pad(bytes: &mut Vec<u8>) {
    bytes.resize(bytes.len().next_multiple_of(4), 0);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The names, modes and contents of an archive, read by the format's description.
    fn unpack(mut bytes: &[u8]) -> Vec<(String, u32, Vec<u8>)> {
        let mut entries = Vec::new();
        loop {
            assert_eq!(&bytes[..6], b"070701");
            let field = |n: usize| {
                let digits = std::str::from_utf8(&bytes[6 + n * 8..14 + n * 8]).unwrap();
                u32::from_str_radix(digits, 16).unwrap()
            };
            let (mode, length, name_length) = (field(1), field(6) as usize, field(11) as usize);
            let name = String::from_utf8(bytes[110..110 + name_length - 1].to_vec()).unwrap();
            let content = (110 + name_length).next_multiple_of(4);
            let next = (content + length).next_multiple_of(4);
            if name == "TRAILER!!!" {
                return entries;
            }
            entries.push((name, mode, bytes[content..content + length].to_vec()));
            bytes = &bytes[next..];
        }
    }

    #[test]
    fn what_was_packed_can_be_unpacked() {
        let programs = [("lib/one/c.so", b"c".to_vec()), ("lib/d.so", b"d".to_vec()), ("init", b"\x7fELF!".to_vec())];
        let entries = unpack(&archive(&programs).unwrap());
        let names: Vec<&str> = entries.iter().map(|(name, ..)| name.as_str()).collect();
        let folders = ["dev", "proc", "run", "sys", "tmp", "lib", "lib/one"];
        assert_eq!(names, [&folders[..], &["dev/console", "lib/one/c.so", "lib/d.so", "init"]].concat());
        let (_, mode, content) = entries.last().unwrap();
        assert_eq!((*mode, content.as_slice()), (0o100_755, b"\x7fELF!".as_slice()));
    }
}
