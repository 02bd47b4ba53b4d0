//! Files with a word of 64 bits for each page frame: `/proc/kpageflags`, `/proc/kpagecgroup`, which say cost and kernel.

use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;

use rustix::io::Errno;

use crate::{Error, error};

/// Words per system call: one page of them.
const WORDS_PER_CALL: usize = 512;

/// Errno for a frame that does not exist.
pub(crate) const BEYOND: Errno = Errno::NXIO;

/// Open file of this format.
#[derive(Debug)]
pub(crate) struct FrameFile {
    file: File,
    path: &'static str,
}

impl FrameFile {
    /// Opens it.
    ///
    /// # Errors
    /// `Denied` without CAP_SYS_ADMIN, `Unsupported` where the kernel lacks it.
    pub fn open(path: &'static str) -> Result<FrameFile, Error> {
        let file = File::open(path).map_err(|e| Error::of_host("open", path, error::errno(e)))?;
        Ok(FrameFile { file, path })
    }

    /// Passes the words of `count` frames, from `first` on, to `take`, in order.
    ///
    /// # Errors
    /// `Other` ([`BEYOND`]) for frames beyond the last; the words of earlier frames were passed on.
    pub fn each(&self, first: u64, count: usize, mut take: impl FnMut(u64)) -> Result<(), Error> {
        let mut bytes = [0; WORDS_PER_CALL * 8];
        let mut done = 0;
        while done < count {
            let chunk = &mut bytes[..(count - done).min(WORDS_PER_CALL) * 8];
            let frame = first.saturating_add(done as u64);
            let failed = |errno| Error::of_host("read", format_args!("{} at frame {frame:#x}", self.path), errno);
            let filled = match self.file.read_at(chunk, frame.saturating_mul(8)) {
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                filled => filled.map_err(|error| failed(error::errno(error)))?,
            };
            let words = chunk[..filled].as_chunks::<8>().0;
            if words.is_empty() {
                return Err(failed(BEYOND));
            }
            words.iter().for_each(|word| take(u64::from_ne_bytes(*word)));
            done += words.len();
        }
        Ok(())
    }

    /// Wraps a file of the same format, for tests.
    #[cfg(test)]
    pub fn of(file: File) -> FrameFile {
        FrameFile { file, path: "frames" }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn up_to_the_last_frame_all_is_handed_on() {
        let mut file = tempfile::tempfile().unwrap();
        let words: Vec<u8> = (0..600u64).flat_map(u64::to_ne_bytes).collect();
        file.write_all(&words).unwrap();
        let frames = FrameFile::of(file);
        let mut found = Vec::new();
        frames.each(40, 560, |word| found.push(word)).unwrap();
        assert_eq!(found, (40..600).collect::<Vec<u64>>());
        found.clear();
        let error = frames.each(590, 20, |word| found.push(word)).unwrap_err();
        assert_eq!((found, error.errno()), ((590..600).collect(), Some(BEYOND)));
        assert_eq!(error.to_string(), "cannot read frames at frame 0x258: no such device or address (ENXIO)");
    }
}
