//! Separate debug file of a program or library: the symbols and lines that a distribution strips from it.
//!
//! By build-id below `/usr/lib/debug/.build-id`, or by the name in `.gnu_debuglink`, beside the file and below
//! `/usr/lib/debug`. A debug file of another build is not taken: it has the same build-id, or the checksum that the
//! link names.
//!
//! Truth: "Debugging Information in Separate Files" in the manual of GDB.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use object::Object;
use object::read::elf::ElfFile64;

use super::FILE_BYTES_MAX;

/// Folder of debug files.
pub const FOLDER: &str = "/usr/lib/debug";

/// Path and content of the debug file below `folder` of the file at `path`.
pub fn of(path: &Path, file: &ElfFile64<'_>, folder: &Path) -> Option<(PathBuf, Vec<u8>)> {
    by_build_id(file, folder).or_else(|| by_link(path, file, folder))
}

fn by_build_id(file: &ElfFile64<'_>, folder: &Path) -> Option<(PathBuf, Vec<u8>)> {
    let wanted = file.build_id().ok()??;
    let (first, rest) = wanted.split_first().filter(|(_, rest)| !rest.is_empty())?;
    let rest: String = rest.iter().map(|byte| format!("{byte:02x}")).collect();
    let path = folder.join(format!(".build-id/{first:02x}/{rest}.debug"));
    let bytes = read(&path)?;
    let is_of_build = ElfFile64::parse(&*bytes).is_ok_and(|found: ElfFile64<'_>| found.build_id() == Ok(Some(wanted)));
    is_of_build.then_some((path, bytes))
}

fn by_link(path: &Path, file: &ElfFile64<'_>, folder: &Path) -> Option<(PathBuf, Vec<u8>)> {
    let (name, checksum) = file.gnu_debuglink().ok()??;
    // The program's file chose the name: it is one of a file, not a path.
    if name.is_empty() || name == b".." || name == b"." || name.contains(&b'/') {
        return None;
    }
    let (beside, name) = (path.parent()?, OsStr::from_bytes(name));
    let below = folder.join(beside.strip_prefix("/").ok()?);
    let places = [beside.join(name), beside.join(".debug").join(name), below.join(name)];
    places.into_iter().filter(|place| place != path).find_map(|place| {
        let bytes = read(&place)?;
        (crc32fast::hash(&bytes) == checksum).then_some((place, bytes))
    })
}

/// Content of a regular file; a pipe or a device is not opened.
fn read(path: &Path) -> Option<Vec<u8>> {
    let about = std::fs::metadata(path).ok()?;
    (about.is_file() && about.len() <= FILE_BYTES_MAX).then(|| std::fs::read(path).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_debug_file_is_found_by_its_build_id_and_one_of_another_build_is_not_taken() {
        let own = std::fs::read("/proc/self/exe").unwrap();
        let file = ElfFile64::parse(&*own).unwrap();
        let id = file.build_id().unwrap().expect("a build-id: Debian's gcc and clang ask the linker for one");
        let folder = tempfile::tempdir().unwrap();
        let name: String = id[1..].iter().map(|byte| format!("{byte:02x}")).collect();
        let below = folder.path().join(format!(".build-id/{:02x}", id[0]));
        std::fs::create_dir_all(&below).unwrap();
        let found = || of(Path::new("/proc/self/exe"), &file, folder.path()).map(|(path, _)| path);
        assert_eq!(found(), None);
        let debug = below.join(format!("{name}.debug"));
        std::fs::write(&debug, &own).unwrap();
        assert_eq!(found(), Some(debug.clone()));
        std::fs::write(&debug, b"not a file of this build").unwrap();
        assert_eq!(found(), None);
    }
}
