//! Kernel files in memory only: parsers read the fuzzer's text.

#![allow(dead_code, reason = "each target uses a part of it")]

use std::cell::RefCell;
use std::collections::BTreeMap;

use linux::{KernelFiles, Lock, Locked};
use rustix::io::Errno;

/// The files by path, and every write.
#[derive(Debug, Default)]
pub struct MemoryFiles {
    files: RefCell<BTreeMap<String, String>>,
    pub writes: RefCell<Vec<(String, String)>>,
}

impl MemoryFiles {
    /// Adds a file.
    pub fn put(&self, path: &str, text: &str) {
        self.files.borrow_mut().insert(path.to_owned(), text.to_owned());
    }

    /// Adds `text` once under each of these paths.
    pub fn everywhere(paths: &[&str], text: &str) -> MemoryFiles {
        let files = MemoryFiles::default();
        paths.iter().for_each(|path| files.put(path, text));
        files
    }

    /// Files from sections: a line `== path` begins one.
    pub fn from_sections(text: &str) -> MemoryFiles {
        let files = MemoryFiles::default();
        for section in text.split("== ").skip(1) {
            let (path, content) = section.split_once('\n').unwrap_or((section, ""));
            files.put(path, content);
        }
        files
    }
}

impl KernelFiles for MemoryFiles {
    fn read(&self, path: &str) -> Result<String, Errno> {
        self.files.borrow().get(path).cloned().ok_or(Errno::NOENT)
    }

    fn write(&self, path: &str, value: &str) -> Result<(), Errno> {
        let mut files = self.files.borrow_mut();
        let file = files.get_mut(path).ok_or(Errno::NOENT)?;
        value.clone_into(file);
        self.writes.borrow_mut().push((path.to_owned(), value.to_owned()));
        Ok(())
    }

    fn list(&self, path: &str) -> Result<Vec<String>, Errno> {
        let directory = format!("{path}/");
        let files = self.files.borrow();
        let below = files.keys().filter_map(|file| file.strip_prefix(&directory));
        let mut names: Vec<String> = below.map(|rest| rest.split('/').next().unwrap_or_default().to_owned()).collect();
        names.sort();
        names.dedup();
        if names.is_empty() { Err(Errno::NOENT) } else { Ok(names) }
    }

    /// The same for the same path, within one input.
    fn inode(&self, path: &str) -> Result<u64, Errno> {
        let directory = format!("{path}/");
        let files = self.files.borrow();
        let at = files.keys().position(|file| file == path || file.starts_with(&directory));
        at.and_then(|at| u64::try_from(at).ok()).ok_or(Errno::NOENT)
    }
    fn make_directory(&self, path: &str) -> Result<(), Errno> {
        if self.list(path).is_ok() {
            return Err(Errno::EXIST);
        }
        self.put(&format!("{path}/tasks"), "");
        self.writes.borrow_mut().push((path.to_owned(), "mkdir".to_owned()));
        Ok(())
    }

    fn remove_directory(&self, path: &str) -> Result<(), Errno> {
        self.list(path)?;
        let directory = format!("{path}/");
        self.files.borrow_mut().retain(|file, _| !file.starts_with(&directory));
        self.writes.borrow_mut().push((path.to_owned(), "rmdir".to_owned()));
        Ok(())
    }

    fn lock(&self, _path: &str, _lock: Lock) -> Result<Locked, Errno> {
        Ok(Locked::nothing())
    }
}
