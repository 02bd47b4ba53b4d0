//! Fake kernel: a temporary tree under the same code as on a host, with a record of every write.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::sync::Mutex;

use rustix::io::Errno;

use crate::untrusted::bytes_of;
use crate::{KernelFiles, Lock, Locked, Rooted};

/// Fake tree. A file that was not added is missing, as for an absent feature.
#[derive(Debug)]
pub struct FakeKernel {
    tree: tempfile::TempDir,
    refusals: BTreeMap<String, Errno>,
    refused_values: BTreeMap<(String, String), Errno>,
    furnishings: Vec<(String, String, String)>,
    writes: Mutex<Vec<String>>,
}

impl Default for FakeKernel {
    fn default() -> Self {
        Self::new()
    }
}

impl FakeKernel {
    /// Makes an empty tree.
    ///
    /// # Panics
    /// If no temporary directory can be made.
    #[expect(clippy::unwrap_used, reason = "test support")]
    pub fn new() -> FakeKernel {
        FakeKernel {
            tree: tempfile::tempdir().unwrap(),
            refusals: BTreeMap::new(),
            refused_values: BTreeMap::new(),
            furnishings: Vec::new(),
            writes: Mutex::new(Vec::new()),
        }
    }

    /// Adds the file `path` (relative to the root) with this content.
    #[must_use]
    pub fn file(self, path: &str, content: &str) -> FakeKernel {
        self.add(path, content);
        self
    }

    /// As [`FakeKernel::file`], with content that need not be text.
    #[must_use]
    pub fn file_of_bytes(self, path: &str, content: &[u8]) -> FakeKernel {
        self.add_bytes(path, content);
        self
    }

    /// As [`FakeKernel::file`], for a file that appears during a test.
    pub fn add(&self, path: &str, content: &str) {
        self.add_bytes(path, content.as_bytes());
    }

    #[expect(clippy::unwrap_used, reason = "test support")]
    fn add_bytes(&self, path: &str, content: &[u8]) {
        let full = self.tree.path().join(OsStr::from_bytes(&bytes_of(path)));
        fs::create_dir_all(full.parent().unwrap()).unwrap();
        fs::write(full, content).unwrap();
    }

    /// Removes a folder, like a control group that is removed. A folder added again has another inode.
    #[expect(clippy::unwrap_used, reason = "test support")]
    pub fn remove(&self, path: &str) {
        // The removed folder is moved within the tree, so its inode is not reused.
        let elsewhere = tempfile::tempdir_in(self.tree.path()).unwrap().keep();
        fs::rename(self.tree.path().join(path), elsewhere.join("removed")).unwrap();
    }

    /// Adds this file to every directory made in `parent` from now on, as the kernel does.
    #[must_use]
    pub fn furnishing(mut self, parent: &str, name: &str, content: &str) -> FakeKernel {
        self.furnishings.push((parent.to_owned(), name.to_owned(), content.to_owned()));
        self
    }

    /// Makes every read, write and listing of `path` answer with this errno.
    #[must_use]
    pub fn refusing(mut self, path: &str, errno: Errno) -> FakeKernel {
        self.refusals.insert(path.to_owned(), errno);
        self
    }

    /// Makes a write of this `value` to `path` answer with this errno, like a file that takes only some words.
    #[must_use]
    pub fn refusing_value(mut self, path: &str, value: &str, errno: Errno) -> FakeKernel {
        self.refused_values.insert((path.to_owned(), value.to_owned()), errno);
        self
    }

    /// All writes as `path <- value`, in order, including `mkdir path` and `rmdir path`.
    #[expect(clippy::unwrap_used, reason = "test support")]
    pub fn writes(&self) -> Vec<String> {
        self.writes.lock().unwrap().clone()
    }

    #[expect(clippy::unwrap_used, reason = "test support")]
    fn record(&self, what: String) {
        self.writes.lock().unwrap().push(what);
    }

    fn rooted(&self, path: &str) -> Result<Rooted, Errno> {
        match self.refusals.get(path) {
            Some(errno) => Err(*errno),
            None => Ok(Rooted::at(self.tree.path())),
        }
    }
}

impl KernelFiles for FakeKernel {
    fn read(&self, path: &str) -> Result<String, Errno> {
        self.rooted(path)?.read(path)
    }

    fn bytes(&self, path: &str) -> Result<Vec<u8>, Errno> {
        self.rooted(path)?.bytes(path)
    }

    fn write(&self, path: &str, value: &str) -> Result<(), Errno> {
        let rooted = self.rooted(path)?;
        fs::metadata(self.tree.path().join(path)).map_err(crate::error::errno)?;
        if let Some(errno) = self.refused_values.get(&(path.to_owned(), value.to_owned())) {
            return Err(*errno);
        }
        self.record(format!("{path} <- {value}"));
        // A kernel file takes the value as a whole; a plain file would keep the tail of a longer one.
        fs::write(self.tree.path().join(path), "").map_err(crate::error::errno)?;
        rooted.write(path, value)
    }

    fn list(&self, path: &str) -> Result<Vec<String>, Errno> {
        self.rooted(path)?.list(path)
    }

    fn directories(&self, path: &str) -> Result<Vec<String>, Errno> {
        self.rooted(path)?.directories(path)
    }

    fn inode(&self, path: &str) -> Result<u64, Errno> {
        self.rooted(path)?.inode(path)
    }
    fn owner(&self, path: &str) -> Result<u32, Errno> {
        self.rooted(path)?.owner(path)
    }
    fn make_directory(&self, path: &str) -> Result<(), Errno> {
        self.rooted(path)?.make_directory(path)?;
        self.record(format!("mkdir {path}"));
        let parent = path.rsplit_once('/').map_or("", |(parent, _)| parent);
        for (_, name, content) in self.furnishings.iter().filter(|(within, ..)| within == parent) {
            self.add(&format!("{path}/{name}"), content);
        }
        Ok(())
    }

    fn remove_directory(&self, path: &str) -> Result<(), Errno> {
        self.rooted(path)?.list(path)?;
        self.record(format!("rmdir {path}"));
        self.remove(path);
        Ok(())
    }

    fn lock(&self, path: &str, lock: Lock) -> Result<Locked, Errno> {
        self.rooted(path)?.lock(path, lock)
    }
}
