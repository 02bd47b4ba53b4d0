//! The files with a word of 64 bits for each page frame: `/proc/kpageflags`, `/proc/kpagecgroup`.

use std::fs::File;
use std::os::unix::fs::FileExt;

use crate::{Error, files};

/// Words that one system call asks for: a page of them.
const WORDS_PER_CALL: usize = 512;

/// One of them, open.
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
        let file = File::open(path).map_err(|e| Error::of_host("open", path, files::errno(e)))?;
        Ok(FrameFile { file, path })
    }

    /// Hands the words of `count` frames, from `first` on, to `take`, in order.
    ///
    /// # Errors
    /// `Other` for frames beyond the last; those before it were handed on.
    pub fn each(&self, first: u64, count: usize, mut take: impl FnMut(u64)) -> Result<(), Error> {
        let mut bytes = [0; WORDS_PER_CALL * 8];
        let mut done = 0;
        while done < count {
            let chunk = &mut bytes[..(count - done).min(WORDS_PER_CALL) * 8];
            let frame = first.saturating_add(done as u64);
            self.file.read_exact_at(chunk, frame.saturating_mul(8)).map_err(|e| {
                Error::of_host("read", format_args!("{} at frame {frame:#x}", self.path), files::errno(e))
            })?;
            chunk.as_chunks::<8>().0.iter().for_each(|word| take(u64::from_ne_bytes(*word)));
            done += chunk.len() / 8;
        }
        Ok(())
    }
}
