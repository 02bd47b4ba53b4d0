//! Files that the user names, for reading: open(2) that waits for nobody.
//!
//! open(2) of a pipe waits for its writer, and a read of /dev/zero never ends. masu asks for the type first, through
//! `O_PATH`, which affects no other end, and reads regular files and pipes only. A pipe is read as long as its writer
//! sends: `<(command)` of a shell is one.
//!
//! Cost: two calls of open(2), fstat(2), the reads. Side effects: what is read from a pipe is gone.
//!
//! Since: Linux 2.6.39 (`O_PATH`).
//!
//! Truth: open(2), fifo(7), pipe(7).

use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, Mode, OFlags, fstat, open as open_file};
use rustix::io::Errno;
use units::Bytes;

/// Longest pause of a pipe's writer.
const PAUSE: Duration = Duration::from_secs(5);

/// Opens a regular file.
///
/// # Errors
/// As open(2); `InvalidInput` with the type in words for any other file.
pub fn open(path: &Path) -> io::Result<File> {
    match open_any(path)? {
        (file, FileType::RegularFile) => Ok(file),
        (_, kind) => Err(unfit(words(kind))),
    }
}

/// Reads a regular file or a pipe.
///
/// # Errors
/// As open(2) and read(2); `InvalidInput` for any other file, for one of more than `most`, and for a pipe whose writer
/// is missing or sends nothing for 5 s.
pub fn read(path: &Path, most: Bytes) -> io::Result<Vec<u8>> {
    let (file, kind) = open_any(path)?;
    let bytes = match kind {
        FileType::RegularFile => {
            let mut bytes = Vec::new();
            file.take(most.0.saturating_add(1)).read_to_end(&mut bytes)?;
            bytes
        }
        FileType::Fifo => read_pipe(&file, most, PAUSE)?,
        kind => return Err(unfit(words(kind))),
    };
    if bytes.len() as u64 > most.0 {
        return Err(unfit(format!("it is larger than {most}")));
    }
    Ok(bytes)
}

/// Reads text from a regular file or a pipe.
///
/// # Errors
/// As [`read`]; `InvalidData` for bytes that are not UTF-8.
pub fn read_text(path: &Path, most: Bytes) -> io::Result<String> {
    String::from_utf8(read(path, most)?).map_err(|_| io::Error::new(ErrorKind::InvalidData, "it is not UTF-8"))
}

fn open_any(path: &Path) -> io::Result<(File, FileType)> {
    let seen = open_file(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    let kind = FileType::from_raw_mode(fstat(&seen)?.st_mode);
    if !matches!(kind, FileType::RegularFile | FileType::Fifo) {
        return Err(unfit(words(kind)));
    }
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = open_file(format!("/proc/self/fd/{}", seen.as_raw_fd()), flags, Mode::empty())?;
    Ok((file.into(), kind))
}

/// Reads a pipe to its end, or one byte more than `most`.
fn read_pipe(pipe: &File, most: Bytes, pause: Duration) -> io::Result<Vec<u8>> {
    let timeout = Timespec::try_from(pause).map_err(|_| Errno::INVAL)?;
    let (mut bytes, mut block) = (Vec::new(), [0; 1 << 16]);
    let mut has_writer = false;
    while bytes.len() as u64 <= most.0 {
        match rustix::io::read(pipe, &mut block) {
            Ok(0) if bytes.is_empty() && !has_writer => {
                return Err(unfit("nobody writes to this pipe; start its writer first"));
            }
            Ok(0) => break,
            Ok(count) => bytes.extend_from_slice(&block[..count]),
            Err(Errno::AGAIN) => {
                has_writer = true;
                match poll(&mut [PollFd::new(pipe, PollFlags::IN)], Some(&timeout)) {
                    Ok(0) => return Err(unfit(format!("the writer of this pipe sends nothing for {pause:?}"))),
                    Ok(_) | Err(Errno::INTR) => {}
                    Err(errno) => return Err(errno.into()),
                }
            }
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(bytes)
}

fn words(kind: FileType) -> &'static str {
    match kind {
        FileType::Directory => "it is a directory, not a file",
        FileType::Fifo => "it is a pipe, not a file",
        FileType::Socket => "it is a socket, not a file",
        _ => "it is a device, not a file",
    }
}

fn unfit(why: impl Into<String>) -> io::Error {
    io::Error::new(ErrorKind::InvalidInput, why.into())
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use rustix::fs::{CWD, mknodat};

    use super::*;

    const MOST: Bytes = Bytes::kib(1);

    fn why<T: std::fmt::Debug>(result: io::Result<T>) -> String {
        result.unwrap_err().to_string()
    }

    #[test]
    fn a_file_is_read_up_to_its_limit() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, "text").unwrap();
        assert_eq!(read_text(&path, MOST).unwrap(), "text");
        assert_eq!(read(&path, Bytes(4)).unwrap(), b"text");
        assert_eq!(why(read(&path, Bytes(3))), "it is larger than 3 B");
        assert_eq!(open(&path).unwrap().metadata().unwrap().len(), 4);
        std::fs::write(&path, [0xff]).unwrap();
        assert_eq!(why(read_text(&path, MOST)), "it is not UTF-8");
        assert_eq!(read(&folder.path().join("none"), MOST).unwrap_err().kind(), ErrorKind::NotFound);
    }

    #[test]
    fn no_other_file_is_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(why(read(folder.path(), MOST)), "it is a directory, not a file");
        assert_eq!(why(read(Path::new("/dev/zero"), MOST)), "it is a device, not a file");
        let socket = folder.path().join("socket");
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        assert_eq!(why(read(&socket, MOST)), "it is a socket, not a file");
        let pipe = folder.path().join("pipe");
        mknodat(CWD, &pipe, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        assert_eq!(why(read(&pipe, MOST)), "nobody writes to this pipe; start its writer first");
        assert_eq!(why(open(&pipe)), "it is a pipe, not a file");
    }

    #[test]
    fn a_pipe_is_read_as_long_as_its_writer_sends() {
        let (reader, mut writer) = io::pipe().unwrap();
        let path = format!("/proc/self/fd/{}", reader.as_raw_fd());
        let thread = std::thread::spawn(move || {
            for _ in 0..3 {
                std::thread::sleep(Duration::from_millis(20));
                writer.write_all(b"part ").unwrap();
            }
        });
        assert_eq!(read_text(Path::new(&path), MOST).unwrap(), "part part part ");
        thread.join().unwrap();
        // The writer stays, and is silent.
        let (reader, mut writer) = io::pipe().unwrap();
        writer.write_all(b"part").unwrap();
        let (pipe, _) = open_any(Path::new(&format!("/proc/self/fd/{}", reader.as_raw_fd()))).unwrap();
        let silent = read_pipe(&pipe, MOST, Duration::from_millis(20));
        assert_eq!(why(silent), "the writer of this pipe sends nothing for 20ms");
    }
}
