//! Settings that are another's by now, and are not restored.
//!
//! A setting that has neither the value that this process wrote nor the one before was changed by another program, whose
//! value stays. If several masus write one setting, the value of one that has ended is not another program's: a mark
//! beside the journals says that there were several, and then the last of them restores the first value.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::{fmt, fs};

use serde::{Deserialize, Serialize};

use super::file::Journal;
use super::{HostSettings, UndoRecord, read_setting, runtime_directory};
use crate::error::errno;
use crate::untrusted::visible;
use crate::{Error, KernelFiles, Pid};

/// Start of the names of files beside the journals that mark settings which several masus have written.
const SEVERAL: &str = "several-";

/// Setting that is not as it was before, because it is another's by now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeftAlone {
    /// Path: `/proc/sys/vm/swappiness`.
    pub path: String,
    /// Value before our change.
    pub before: String,
    /// Present value; `None` if it cannot be read.
    pub found: Option<String>,
    /// Another masu that has changed it and restores it; `None` if a program that keeps no journal changed it.
    pub restored_by: Option<Pid>,
}

/// `/proc/sys/vm/swappiness is 10, which another program has written (60 before)`
impl fmt::Display for LeftAlone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let found = self.found.as_deref().unwrap_or("unknown");
        write!(f, "{} is {}, ", visible(&self.path), visible(found))?;
        match self.restored_by {
            Some(pid) => write!(f, "and process {pid}, another masu, will restore it")?,
            None => f.write_str("which another program has written")?,
        }
        write!(f, " ({} before)", visible(&self.before))
    }
}

impl<F: KernelFiles> HostSettings<'_, F> {
    /// The setting of a record, if it is another's by now.
    pub(super) fn is_others(&self, record: &UndoRecord, living: &[&Journal]) -> Option<LeftAlone> {
        let key = record.key();
        let masu = living.iter().find(|other| other.value_of(&key).is_some()).map(|other| other.writer.pid);
        if masu.is_none() {
            return of_another_program(self.files, &self.directory, record, &self.written);
        }
        let found = read_setting(self.files, &record.path).ok();
        let (path, before) = (format!("/{}", record.path), record.old.clone());
        Some(LeftAlone { path, before, found, restored_by: masu })
    }

    pub(super) fn mark_several(&self, path: &str) -> Result<(), Error> {
        let file = several(&self.directory, path);
        let made = fs::write(&file, "");
        made.map_err(|error| Error::of_host("write", file.display(), errno(error)))
    }

    /// Removes all marks, once no other journal is left.
    pub(super) fn remove_marks(&self) {
        let entries = fs::read_dir(runtime_directory::private_path(&self.directory)).into_iter().flatten().flatten();
        let several = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(SEVERAL));
        // A mark that stays is removed by the next masu that ends.
        several.for_each(|entry| drop(fs::remove_file(entry.path())));
    }
}

/// The setting of a record, if its value is neither the one `written` nor the one before.
pub(super) fn of_another_program(
    files: &impl KernelFiles,
    directory: &Path,
    record: &UndoRecord,
    written: &BTreeMap<String, String>,
) -> Option<LeftAlone> {
    let ours = written.get(&record.key()).filter(|_| !several(directory, &record.path).exists())?;
    let found = read_setting(files, &record.path).ok().filter(|found| found != ours && *found != record.old)?;
    let (path, before) = (format!("/{}", record.path), record.old.clone());
    Some(LeftAlone { path, before, found: Some(found), restored_by: None })
}

/// File that says that several masus have written this setting: then its value tells nothing about other programs.
fn several(directory: &Path, path: &str) -> PathBuf {
    runtime_directory::private_path(directory).join(format!("{SEVERAL}{}", path.replace('/', "-")))
}
