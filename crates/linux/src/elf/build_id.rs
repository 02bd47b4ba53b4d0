//! Build-id of a program or library: names one build, independent of path and load address.
//!
//! Cost: two opens and three reads. Side effects: none. Opening a file of a server waits for the server.
//!
//! Since: binutils 2.18; a file without one has none.
//!
//! Truth: elf(5) on PT_NOTE; ld(1) on `--build-id`; `NT_GNU_BUILD_ID` in glibc's elf.h.

use std::fmt;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;

use object::read::elf::{FileHeader, ProgramHeader};
use object::{Endianness, ReadCache, ReadRef, elf};
use rustix::fs::{FileType, Mode, OFlags, fstat, open};

/// Bytes kept of a build-id: the full default length of the linkers.
pub const BUILD_ID_BYTES: usize = 20;

/// Minimum length. Shorter build-ids are set by hand and may be shared by several builds.
const LEAST_BYTES: usize = 8;

/// Maximum number and size of program headers. Files above it, which no linker makes, are ignored.
const MOST_HEADERS: usize = 1024;
const MOST_NOTE_BYTES: u64 = 1 << 16;

/// Build-id of a file. Longer ones are cut off, shorter ones end in zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BuildId(pub [u8; BUILD_ID_BYTES]);

impl fmt::Display for BuildId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Reads the build-id of the file at `path`. `None` if the file has none, is not ELF, has another inode than `inode`,
/// or cannot be read.
pub fn build_id(path: &Path, inode: Option<u64>) -> Option<BuildId> {
    // Opening a pipe or a device affects its other end, so the file type is read first, through `O_PATH`.
    let seen = open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let about = fstat(&seen).ok()?;
    if !FileType::from_raw_mode(about.st_mode).is_file() || inode.is_some_and(|inode| inode != about.st_ino) {
        return None;
    }
    in_file(&ReadCache::new(File::open(format!("/proc/self/fd/{}", seen.as_raw_fd())).ok()?))
}

fn in_file<'data>(data: impl ReadRef<'data>) -> Option<BuildId> {
    let header = elf::FileHeader64::<Endianness>::parse(data).ok()?;
    let endian = header.endian().ok()?;
    if header.phnum(endian, data).ok()? > MOST_HEADERS {
        return None;
    }
    let parts = header.program_headers(endian, data).ok()?;
    parts.iter().filter(|part| part.p_filesz(endian) <= MOST_NOTE_BYTES).find_map(|part| {
        let mut notes = part.notes(endian, data).ok()??;
        while let Ok(Some(note)) = notes.next() {
            if note.name() == elf::ELF_NOTE_GNU && note.n_type(endian) == elf::NT_GNU_BUILD_ID {
                return of(note.desc());
            }
        }
        None
    })
}

fn of(bytes: &[u8]) -> Option<BuildId> {
    let mut id = [0; BUILD_ID_BYTES];
    for (place, byte) in id.iter_mut().zip(bytes) {
        *place = *byte;
    }
    (bytes.len() >= LEAST_BYTES && id != [0; BUILD_ID_BYTES]).then_some(BuildId(id))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::process::Command;

    fn built(folder: &Path, option: &str) -> Option<BuildId> {
        let (source, made) = (folder.join("a.c"), folder.join("a"));
        std::fs::write(&source, "int main(void) { return 0; }\n").unwrap();
        assert!(Command::new("cc").arg(option).arg("-o").arg(&made).arg(&source).status().unwrap().success());
        build_id(&made, None)
    }

    #[test]
    fn a_file_says_which_build_it_is_if_the_linker_wrote_it_down() {
        let folder = tempfile::tempdir().unwrap();
        let id = built(folder.path(), "-Wl,--build-id=0x0102030405060708090a0b0c0d0e0f1011121314").unwrap();
        assert_eq!(id.to_string(), "0102030405060708090a0b0c0d0e0f1011121314");
        let cut = built(folder.path(), "-Wl,--build-id=0x0102030405060708090a0b0c0d0e0f10111213141516");
        assert_eq!(cut, Some(id));
        assert!(built(folder.path(), "-Wl,--build-id=sha1").is_some_and(|other| other != id));
        assert_eq!(built(folder.path(), "-Wl,--build-id=0x0102"), None, "too short");
        assert_eq!(built(folder.path(), "-Wl,--build-id=none"), None);
    }

    #[test]
    fn what_is_no_program_has_none() {
        let folder = tempfile::tempdir().unwrap();
        let text = folder.path().join("text");
        std::fs::write(&text, "\x7fELF").unwrap();
        let pipe = folder.path().join("pipe");
        assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        for path in [text.as_path(), pipe.as_path(), folder.path(), Path::new("/no/such/file"), Path::new("/dev/zero")]
        {
            assert_eq!(build_id(path, None), None, "{}", path.display());
        }
    }

    #[test]
    fn a_file_is_the_one_with_its_inode_or_none() {
        use std::os::unix::fs::MetadataExt;
        let shell = Path::new("/bin/sh");
        let inode = std::fs::metadata(shell).unwrap().ino();
        assert_eq!(build_id(shell, Some(inode)), build_id(shell, None));
        assert_eq!(build_id(shell, Some(inode + 1)), None);
    }

    #[test]
    fn whoever_waits_at_a_pipe_does_not_notice() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let (path, pipe) = (pipe.clone(), pipe);
        let writer = std::thread::spawn(move || File::options().write(true).open(path).map(drop));
        for _ in 0..50 {
            assert_eq!(build_id(&pipe, None), None);
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
        assert!(!writer.is_finished(), "it was opened");
        File::open(&pipe).unwrap();
        writer.join().unwrap().unwrap();
    }

    proptest! {
        #[test]
        fn a_damaged_file_is_survived(at in 0_usize..4096, bytes in proptest::collection::vec(any::<u8>(), 1..64)) {
            let mut file = std::fs::read("/bin/sh").unwrap();
            for (place, byte) in file[at..].iter_mut().zip(bytes) {
                *place = byte;
            }
            let _ = in_file(&*file);
        }
    }
}
