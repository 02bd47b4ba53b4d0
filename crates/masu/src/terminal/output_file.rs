//! Files that the user names for output.

use std::fs::File;
use std::io;
use std::path::Path;

use rustix::fs::{Mode, OFlags, fcntl_getfl, fcntl_setfl, open};
use rustix::io::Errno;

/// Opens a file for writing, and makes it if it is missing. Its content stays. Never waits for the reader of a pipe.
///
/// # Errors
/// That of open(2); for a pipe without a reader, the reason in words.
pub fn open_to_write(path: &Path) -> io::Result<File> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = match open(path, flags, Mode::from_raw_mode(0o666)) {
        Err(Errno::NXIO) => return Err(io::Error::other("nobody reads this pipe; start its reader first")),
        opened => opened?,
    };
    // Writes wait for a slow reader.
    fcntl_setfl(&file, fcntl_getfl(&file)? - OFlags::NONBLOCK)?;
    Ok(file.into())
}

/// Removes the content of a file. A device or a pipe has none that lasts.
///
/// # Errors
/// That of ftruncate(2).
pub fn empty(file: &File) -> io::Result<()> {
    if file.metadata()?.is_file() { file.set_len(0) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use rustix::fs::{CWD, FileType, mknodat};

    use super::*;

    #[test]
    fn a_pipe_without_a_reader_is_refused_and_one_with_a_reader_is_written() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        mknodat(CWD, &pipe, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        assert_eq!(open_to_write(&pipe).unwrap_err().to_string(), "nobody reads this pipe; start its reader first");
        let reader = open(&pipe, OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty()).unwrap();
        let mut file = open_to_write(&pipe).unwrap();
        file.write_all(b"line").unwrap();
        assert!(!fcntl_getfl(&file).unwrap().contains(OFlags::NONBLOCK));
        let mut read = [0; 8];
        assert_eq!(rustix::io::read(&reader, &mut read).unwrap(), 4);
    }

    #[test]
    fn a_file_is_made_and_its_content_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("report");
        open_to_write(&path).unwrap().write_all(b"old").unwrap();
        let file = open_to_write(&path).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"old");
        empty(&file).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"");
        empty(&File::options().write(true).open("/dev/null").unwrap()).unwrap();
        assert!(open_to_write(folder.path()).is_err());
    }
}
