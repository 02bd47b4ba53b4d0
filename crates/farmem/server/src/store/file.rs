//! `file:DIR`: one sparse file per layer; page n lies at n * 4096 (at n * 4112, if pages are sealed: then only masu
//! reads them).
//!
//! The files have no name (`O_TMPFILE`; where the file system cannot, a name that is removed at once), so that nothing
//! is left behind, however masu ends. A program may read and write its pages there by itself: [`Store::direct`].
//!
//! `O_DIRECT` is not used: it needs aligned buffers and makes each 4 KiB write wait for the device, while the page
//! cache gathers writes, and is memory that the kernel takes back whenever it needs it.
//!
//! Where masu may write small files only (`ulimit -f`, with no right to raise it), a layer is many files of that size.
//!
//! A page is stored when `pwrite` has returned: it outlives the program and masu, not the machine. With `?sync` it is
//! stored when the device has it. That costs a wait for each put, and would help only to read the file of a crashed
//! machine, which has no name; so it is for measurements.
//!
//! A hole reads as zeros: a forgotten page cannot be told from a page of zeros. Beyond the end nothing was ever put.

use std::collections::BTreeMap;

use std::io;
use std::os::fd::OwnedFd;

use std::sync::{Arc, PoisonError, RwLock};

use linux::{describe, file_size};
use rustix::fs::{FallocateFlags, Mode, OFlags};
use rustix::io::Errno;
use units::Bytes;
use units::cast::index;

use super::url::FileUrl;
use super::{
    Error, GetRun, Location, Opening, PutRun, Span, Store, Trouble, assert_in_bounds, assert_whole, operation,
};

/// Files in a directory.
pub struct FileStore {
    name: String,
    directory: OwnedFd,
    path: std::path::PathBuf,
    sync: bool,
    page_bytes: usize,
    /// Pages of a file; `u64::MAX` where a file has any size.
    part_pages: u64,
    /// Files by layer and part.
    files: RwLock<BTreeMap<(u32, u64), Arc<OwnedFd>>>,
}

impl FileStore {
    /// Opens the directory and checks that files can be created in it.
    ///
    /// # Errors
    /// `Unfit` if it is no directory, `Refused` if masu may not write there, `Full`.
    pub fn open(url: &FileUrl, opening: &Opening) -> Result<FileStore, Error> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = rustix::fs::open(&url.directory, flags, Mode::empty());
        let name = url.to_string();
        if file_size::limit().is_some_and(|limit| limit < opening.page_bytes as u64) {
            return Err(Error::Unfit(of_size("open".to_owned(), &name, Errno::FBIG)));
        }
        let directory = directory.map_err(|errno| of_directory(&name, errno))?;
        let part_pages = file_size::limit().map_or(u64::MAX, |limit| (limit / opening.page_bytes as u64).max(1));
        let store = FileStore {
            name,
            directory,
            path: url.directory.clone(),
            sync: url.sync,
            page_bytes: opening.page_bytes,
            part_pages,
            files: RwLock::default(),
        };
        store.file(0, 0)?;
        store.say_what_it_stands_on(opening);
        Ok(store)
    }

    /// Warns of a store in memory, and of a device known to be too small: both are reported, neither is refused.
    fn say_what_it_stands_on(&self, opening: &Opening) {
        if rustix::fs::fstatfs(&self.directory).is_ok_and(|is| is_memory(is.f_type.cast_unsigned())) {
            (opening.say)(&format!(
                "{} is memory (tmpfs): pages that leave the program still take memory of this machine",
                self.name
            ));
        }
        if let (Some(expected), Some(free)) = (opening.expected, self.free())
            && expected > free
        {
            (opening.say)(&format!("{} has {free} free, and the program may need {expected}", self.name));
        }
    }

    /// Free space of the file system for this user.
    fn free(&self) -> Option<Bytes> {
        let vfs = rustix::fs::fstatvfs(&self.directory).ok()?;
        Some(Bytes(vfs.f_bavail.saturating_mul(vfs.f_frsize)))
    }

    /// File of a layer's part, created at its first use.
    fn file(&self, layer: u32, part: u64) -> Result<Arc<OwnedFd>, Error> {
        let known = self.files.read().unwrap_or_else(PoisonError::into_inner).get(&(layer, part)).cloned();
        if let Some(file) = known {
            return Ok(file);
        }
        let mut files = self.files.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(file) = files.get(&(layer, part)) {
            return Ok(Arc::clone(file));
        }
        let made = nameless(&self.directory, layer).map_err(|errno| match errno {
            Errno::NOSPC | Errno::DQUOT => self.full("make a file in".to_owned(), errno),
            errno => of_making(&self.name, errno),
        })?;
        let file = Arc::new(made);
        files.insert((layer, part), Arc::clone(&file));
        Ok(file)
    }

    /// Files of consecutive pages: each with its first page, the number of pages, and the offset in the file.
    fn parts(&self, location: Location, pages: u64) -> impl Iterator<Item = (u64, u64, u64, u64)> {
        let end = location.page.saturating_add(pages);
        let (mut page, part_pages, page_bytes) = (location.page, self.part_pages, self.page_bytes as u64);
        std::iter::from_fn(move || {
            let (part, within) = (page / part_pages, page % part_pages);
            let count = (end - page).min(part_pages - within);
            let first = page;
            page += count;
            (count > 0).then(|| (part, first, count, within * page_bytes))
        })
    }

    fn put_run(&self, file: &OwnedFd, mut bytes: &[u8], mut offset: u64) -> io::Result<()> {
        while !bytes.is_empty() {
            let written = match rustix::io::pwrite(file, bytes, offset) {
                Err(Errno::INTR) => continue,
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => written,
                Err(errno) => return Err(errno.into()),
            };
            bytes = &bytes[written..];
            offset += written as u64;
        }
        Ok(())
    }

    fn get_run(&self, file: &OwnedFd, location: Location, bytes: &mut [u8], start: u64) -> Result<(), Error> {
        let doing = |bytes: usize| {
            let span = Span { location, pages: (bytes / self.page_bytes) as u64 };
            operation("get", [span].into_iter(), "from")
        };
        let (mut done, all) = (0, bytes.len());
        while done < all {
            match rustix::io::pread(file, &mut bytes[done..], start + done as u64) {
                Err(Errno::INTR) => (),
                Ok(0) => {
                    let lost = Location { page: location.page + (done / self.page_bytes) as u64, ..location };
                    return Err(Error::Lost(self.trouble(
                        doing(all),
                        format!("{lost} is beyond the end of its file"),
                        "Something cut the file short; the pages in it are lost.",
                    )));
                }
                Ok(read) => done += read,
                Err(errno) => return Err(self.failed(doing(all), errno)),
            }
        }
        Ok(())
    }

    /// Bytes in a run of the `count` pages from `first` on.
    const fn bytes_of(&self, run: Location, first: u64, count: u64) -> std::ops::Range<usize> {
        let start = index(first - run.page) * self.page_bytes;
        start..start + index(count) * self.page_bytes
    }

    fn trouble(&self, operation: String, cause: String, remedy: &str) -> Trouble {
        Trouble { operation, store: self.name.clone(), cause, remedy: remedy.to_owned() }
    }

    fn full(&self, operation: String, errno: Errno) -> Error {
        let free = self.free().map_or(String::new(), |free| format!(", {free} free"));
        let path = self.path.display();
        Error::Full(Trouble {
            operation,
            store: self.name.clone(),
            cause: format!("{}{free}", describe(errno)),
            remedy: format!("Make room in {path}, or name a directory on a larger device with --store file:DIR."),
        })
    }

    /// Error of a failed device, which is not temporary: its pages do not come back.
    fn failed(&self, operation: String, errno: Errno) -> Error {
        match errno {
            Errno::NOSPC | Errno::DQUOT => self.full(operation, errno),
            Errno::FBIG => Error::Full(of_size(operation, &self.name, errno)),
            errno => {
                let remedy = "Look at what the kernel says of the device (dmesg); name another directory.";
                Error::Unfit(self.trouble(operation, describe(errno), remedy))
            }
        }
    }
}

impl Store for FileStore {
    fn name(&self) -> &str {
        &self.name
    }

    fn put(&self, runs: &[PutRun<'_>]) -> Result<(), Error> {
        let failed = |error: io::Error| {
            let errno = Errno::from_io_error(&error).unwrap_or(Errno::IO);
            self.failed(operation("put", runs.iter().map(|run| run.span(self.page_bytes)), "into"), errno)
        };
        let mut touched = BTreeMap::new();
        for run in runs {
            assert_whole(run.span(self.page_bytes), run.bytes.len(), self.page_bytes);
            let span = run.span(self.page_bytes);
            for (part, first, count, offset) in self.parts(span.location, span.pages) {
                let file = self.file(run.location.layer, part)?;
                self.put_run(&file, &run.bytes[self.bytes_of(span.location, first, count)], offset).map_err(failed)?;
                if self.sync {
                    touched.insert((run.location.layer, part), file);
                }
            }
        }
        for file in touched.values() {
            rustix::fs::fdatasync(file).map_err(|errno| failed(errno.into()))?;
        }
        Ok(())
    }

    fn get(&self, runs: &mut [GetRun<'_>]) -> Result<(), Error> {
        for run in runs {
            assert_whole(run.span(self.page_bytes), run.bytes.len(), self.page_bytes);
            let span = run.span(self.page_bytes);
            for (part, first, count, offset) in self.parts(span.location, span.pages) {
                let file = self.file(run.location.layer, part)?;
                let bytes = &mut run.bytes[self.bytes_of(span.location, first, count)];
                self.get_run(&file, Location { page: first, ..span.location }, bytes, offset)?;
            }
        }
        Ok(())
    }

    fn forget(&self, spans: &[Span]) -> Result<(), Error> {
        for span in spans {
            assert_in_bounds(*span);
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            for (part, _, count, start) in self.parts(span.location, span.pages) {
                let file = self.file(span.location.layer, part)?;
                match rustix::fs::fallocate(&file, flags, start, count * self.page_bytes as u64) {
                    // A file system without holes keeps the pages: it uses more space than needed, and nothing else
                    // changes.
                    Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INTR) => (),
                    Err(errno) => return Err(self.failed(operation("forget", spans.iter().copied(), "in"), errno)),
                }
            }
        }
        Ok(())
    }

    fn forget_layer(&self, layer: u32) -> Result<(), Error> {
        let mut files = self.files.write().unwrap_or_else(PoisonError::into_inner);
        let mut first_failure = Ok(());
        for ((of, part), file) in std::mem::take(&mut *files) {
            if of != layer {
                files.insert((of, part), file);
            } else if let Err(errno) = rustix::fs::ftruncate(&file, 0) {
                // A program may still hold the file: it is emptied, not only closed.
                let failed = self.failed(format!("forget layer {layer} in"), errno);
                first_failure = first_failure.and(Err(failed));
            }
        }
        first_failure
    }

    fn direct(&self, layer: u32) -> Result<Option<Arc<OwnedFd>>, Error> {
        // Of a layer in parts the program could not find its pages.
        if self.part_pages < u64::MAX {
            return Ok(None);
        }
        self.file(layer, 0).map(Some).map_err(|error| match error {
            // The caller decides how long a program waits for descriptors.
            Error::Unreachable(trouble) => Error::Unfit(trouble),
            error => error,
        })
    }

    fn close(&self) -> Result<(), Error> {
        self.files.write().unwrap_or_else(PoisonError::into_inner).clear();
        Ok(())
    }
}

/// Creates a file without a name in the directory.
fn nameless(directory: &OwnedFd, layer: u32) -> Result<OwnedFd, Errno> {
    let mode = Mode::RUSR | Mode::WUSR;
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::LARGEFILE;
    match rustix::fs::openat(directory, ".", flags | OFlags::TMPFILE, mode) {
        // NFS, overlayfs before 6.1 and FUSE do not know O_TMPFILE.
        Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::NOENT | Errno::INVAL | Errno::NOSYS) => (),
        made => return made,
    }
    named_for_a_moment(directory, layer)
}

/// The same for file systems that know only files with names.
fn named_for_a_moment(directory: &OwnedFd, layer: u32) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::LARGEFILE | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
    for attempt in 0..100 {
        let name = format!(".masu-{}-{layer}-{attempt}", std::process::id());
        match rustix::fs::openat(directory, &name, flags, Mode::RUSR | Mode::WUSR) {
            Err(Errno::EXIST) => (),
            Err(errno) => return Err(errno),
            Ok(file) => {
                rustix::fs::unlinkat(directory, &name, rustix::fs::AtFlags::empty())?;
                return Ok(file);
            }
        }
    }
    Err(Errno::EXIST)
}

/// Failure by the limit of file sizes.
fn of_size(operation: String, name: &str, errno: Errno) -> Trouble {
    let remedy = "Raise the limit of file sizes (`ulimit -f`), or name a server: --store redis://HOST:PORT.";
    Trouble { operation, store: name.to_owned(), cause: describe(errno), remedy: remedy.to_owned() }
}

/// Failure of opening the directory.
fn of_directory(name: &str, errno: Errno) -> Error {
    refused_by("open", name, errno, |errno| match errno {
        Errno::NOTDIR => "This is a file. Name a directory: --store file:DIR.",
        Errno::LOOP => "A symbolic link leads to itself. Name a directory: --store file:DIR.",
        _ => "Name a directory that exists: --store file:DIR.",
    })
}

/// Failure of making a file in the directory, which is there.
fn of_making(name: &str, errno: Errno) -> Error {
    refused_by(
        "make a file in",
        name,
        errno,
        |_| "Its file system takes no files (proc, sysfs and the like): name a directory on a disk, --store file:DIR.",
    )
}

fn refused_by(operation: &str, name: &str, errno: Errno, other: impl FnOnce(Errno) -> &'static str) -> Error {
    let trouble = |remedy: &str| Trouble {
        operation: operation.to_owned(),
        store: name.to_owned(),
        cause: describe(errno),
        remedy: remedy.to_owned(),
    };
    match errno {
        Errno::ACCESS | Errno::PERM | Errno::ROFS => {
            Error::Refused(trouble("Name a directory that you may write to: --store file:DIR."))
        }
        Errno::NOSPC | Errno::DQUOT => Error::Full(trouble("Make room there, or name another directory.")),
        // Other programs may end, and free descriptors.
        Errno::MFILE => Error::Unreachable(trouble("Raise the limit of open files: `ulimit -n 256`.")),
        Errno::NFILE => Error::Unreachable(trouble("The machine has no descriptor left (fs.file-max).")),
        errno => Error::Unfit(trouble(other(errno))),
    }
}

/// TMPFS_MAGIC and RAMFS_MAGIC of include/uapi/linux/magic.h.
fn is_memory(file_system: u64) -> bool {
    matches!(file_system, 0x0102_1994 | 0x8584_58f6)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsFd;
    use std::os::unix::fs::FileExt;
    use std::path::Path;

    use super::*;
    use crate::store::PAGE_BYTES;

    fn opening() -> (Opening, Arc<std::sync::Mutex<Vec<String>>>) {
        let said = Arc::new(std::sync::Mutex::new(Vec::new()));
        let sink = Arc::clone(&said);
        let say = move |line: &str| sink.lock().unwrap().push(line.to_owned());
        (Opening { page_bytes: PAGE_BYTES, expected: None, password: None, say: Arc::new(say) }, said)
    }

    fn store(directory: &Path) -> FileStore {
        FileStore::open(&FileUrl { directory: directory.into(), sync: false }, &opening().0).unwrap()
    }

    fn location(page: u64) -> Location {
        Location { layer: 1, page }
    }

    #[test]
    fn nothing_is_left_in_the_directory_even_while_the_store_is_open() {
        let directory = tempfile::tempdir().unwrap();
        let store = store(directory.path());
        store.put(&[PutRun { location: location(7), bytes: &[7; PAGE_BYTES] }]).unwrap();
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_layer_in_parts_holds_the_same_pages_and_gives_no_file_away() {
        let directory = tempfile::tempdir().unwrap();
        let store = FileStore { part_pages: 3, ..store(directory.path()) };
        let bytes: Vec<u8> = (1..=10_u8).flat_map(|value| [value; PAGE_BYTES]).collect();
        store.put(&[PutRun { location: location(5), bytes: &bytes }]).unwrap();
        let mut got = vec![0; 7 * PAGE_BYTES];
        store.get(&mut [GetRun { location: location(7), bytes: &mut got }]).unwrap();
        assert!(got == bytes[2 * PAGE_BYTES..9 * PAGE_BYTES], "pages 7 to 13, of four files");
        assert!(store.direct(1).unwrap().is_none());
        store.forget(&[Span { location: location(8), pages: 4 }]).unwrap();
        store.get(&mut [GetRun { location: location(7), bytes: &mut got }]).unwrap();
        let kept = [3, 0, 0, 0, 0, 8, 9].map(|value| [value; PAGE_BYTES]);
        assert!(got == kept.as_flattened());
        store.forget_layer(1).unwrap();
        assert!(store.get(&mut [GetRun { location: location(7), bytes: &mut got }]).is_err());
    }

    #[test]
    fn a_file_with_a_name_for_a_moment_is_as_good() {
        let directory = tempfile::tempdir().unwrap();
        let fd = rustix::fs::open(directory.path(), OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap();
        let file = named_for_a_moment(&fd, 0).unwrap();
        rustix::io::pwrite(&file, b"there", 0).unwrap();
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
    }

    #[test]
    fn what_the_program_writes_into_the_file_is_what_the_store_reads() {
        let directory = tempfile::tempdir().unwrap();
        let store = store(directory.path());
        let file = store.direct(1).unwrap().unwrap();
        let file = File::from(file.try_clone().unwrap());
        file.write_all_at(&[5; PAGE_BYTES], 3 * 4096).unwrap();
        let mut bytes = vec![0; PAGE_BYTES];
        store.get(&mut [GetRun { location: location(3), bytes: &mut bytes }]).unwrap();
        assert_eq!(bytes, [5; PAGE_BYTES]);
    }

    #[test]
    fn the_file_goes_through_the_page_cache() {
        let directory = tempfile::tempdir().unwrap();
        let file = store(directory.path()).direct(0).unwrap().unwrap();
        assert!(!rustix::fs::fcntl_getfl(file.as_fd()).unwrap().contains(OFlags::DIRECT));
    }

    #[test]
    fn forgotten_pages_take_no_room() {
        let directory = tempfile::tempdir().unwrap();
        let store = store(directory.path());
        store.put(&[PutRun { location: location(0), bytes: &[1; 64 * PAGE_BYTES] }]).unwrap();
        let blocks = || rustix::fs::fstat(store.direct(1).unwrap().unwrap()).unwrap().st_blocks;
        rustix::fs::fsync(store.direct(1).unwrap().unwrap()).unwrap();
        let before = blocks();
        store.forget(&[Span { location: location(0), pages: 64 }]).unwrap();
        assert!(before >= 64 * 8 && blocks() < 16, "{before} -> {}", blocks());
    }

    #[test]
    fn a_layer_that_was_forgotten_is_empty_for_the_program_too() {
        let directory = tempfile::tempdir().unwrap();
        let store = store(directory.path());
        store.put(&[PutRun { location: location(0), bytes: &[1; PAGE_BYTES] }]).unwrap();
        let held = store.direct(1).unwrap().unwrap();
        store.forget_layer(1).unwrap();
        assert_eq!(rustix::fs::fstat(&held).unwrap().st_size, 0);
        let lost = store.get(&mut [GetRun { location: location(0), bytes: &mut [0; PAGE_BYTES] }]).unwrap_err();
        assert!(matches!(lost, Error::Lost(_)), "{lost}");
    }

    #[test]
    fn a_page_beyond_the_end_is_lost_by_name() {
        let directory = tempfile::tempdir().unwrap();
        let store = store(directory.path());
        store.put(&[PutRun { location: location(0), bytes: &[1; PAGE_BYTES] }]).unwrap();
        let lost = store.get(&mut [GetRun { location: location(0), bytes: &mut [0; 2 * PAGE_BYTES] }]).unwrap_err();
        assert!(matches!(lost, Error::Lost(_)));
        assert!(lost.to_string().contains("page 1 of layer 1 is beyond the end"), "{lost}");
    }

    #[test]
    fn a_directory_that_is_none_is_named() {
        let (opening, _) = opening();
        let url = |directory: &str| FileUrl { directory: directory.into(), sync: false };
        let missing = FileStore::open(&url("/nowhere/at/all"), &opening).err().unwrap();
        assert!(matches!(missing, Error::Unfit(_)));
        assert_eq!(missing.to_string(), "cannot open file:/nowhere/at/all: no such file or directory (ENOENT)");
        let file = tempfile::NamedTempFile::new().unwrap();
        let no_directory = FileStore::open(&url(file.path().to_str().unwrap()), &opening).err().unwrap();
        assert!(matches!(no_directory, Error::Unfit(_)), "{no_directory}");
    }

    #[test]
    fn too_little_room_is_said_at_the_start() {
        let directory = tempfile::tempdir().unwrap();
        let (mut opening, said) = opening();
        opening.expected = Some(Bytes(u64::MAX));
        FileStore::open(&FileUrl { directory: directory.path().into(), sync: true }, &opening).unwrap();
        let said = said.lock().unwrap();
        assert!(said.iter().any(|line| line.contains(" free, and the program may need ")), "{said:?}");
    }

    #[test]
    fn memory_is_named_as_what_it_is() {
        assert!(is_memory(0x0102_1994) && !is_memory(0xef53));
    }
}
