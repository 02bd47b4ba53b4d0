//! Where profiles are: one file for each program, in the user's cache folder.
//!
//! Read and written is only what belongs to the effective user. Under sudo the environment may still name the folders of
//! whoever called it: then root's own are taken.

use std::ffi::OsString;
use std::fs::{self, DirBuilder, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use linux::build_id::BuildId;
use rustix::fs::OFlags;
use rustix::process::geteuid;

use super::file::{Kept, MOST_BYTES, parse};

/// More files than this are not kept: those that were written longest ago go.
const MOST_FILES: usize = 256;

/// The folder with the profiles.
#[derive(Clone, Debug)]
pub struct Folder(PathBuf);

impl Folder {
    /// The effective user's. `None` when there is none to be found.
    pub fn of_user(variable: impl Fn(&str) -> Option<OsString>) -> Option<Folder> {
        let user = geteuid().as_raw();
        let named =
            |name: &str| variable(name).map(PathBuf::from).filter(|path| path.is_absolute() && is_of(path, user));
        let home = || named("HOME").or_else(|| home_of(user, &fs::read_to_string("/etc/passwd").ok()?));
        let cache = named("XDG_CACHE_HOME").or_else(|| Some(home()?.join(".cache")))?;
        Some(Folder(cache.join("masu/profiles")))
    }

    #[cfg(test)]
    pub(super) fn at(path: PathBuf) -> Folder {
        Folder(path)
    }

    /// The file of a program.
    pub fn path_of(&self, program: BuildId) -> PathBuf {
        self.0.join(program.to_string())
    }

    /// What was kept; nothing if there is no such file.
    ///
    /// # Errors
    /// Why it cannot be used, in words.
    pub fn load(&self, path: &Path) -> Result<Vec<Kept>, String> {
        let file = match File::options().read(true).custom_flags(flags(OFlags::NONBLOCK)).open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error.to_string()),
        };
        let about = file.metadata().map_err(|error| error.to_string())?;
        if !about.is_file() || about.uid() != geteuid().as_raw() {
            return Err("it is no file of this user's".to_owned());
        }
        let mut bytes = Vec::new();
        let most = MOST_BYTES as u64 + 1;
        file.take(most).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
        parse(&bytes).map_err(|broken| broken.to_string())
    }

    /// Keeps it, in one step: whoever reads meanwhile sees the old one or the new one.
    ///
    /// # Errors
    /// The kernel's answer.
    pub fn save(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        DirBuilder::new().recursive(true).mode(0o700).create(&self.0)?;
        if fs::metadata(&self.0)?.uid() != geteuid().as_raw() {
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, "its folder is another user's"));
        }
        let new = self.0.join(format!(".new-{}-{}", std::process::id(), NUMBER.fetch_add(1, Relaxed)));
        // One that was killed may have left it.
        let _ = fs::remove_file(&new);
        let written = File::options()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&new)
            .and_then(|mut file| file.write_all(bytes))
            .and_then(|()| fs::rename(&new, path));
        if written.is_err() {
            // It is not there, or cannot be removed either.
            let _ = fs::remove_file(&new);
        } else {
            self.tidy();
        }
        written
    }

    /// Removes the oldest files where there are too many. What cannot be seen or removed stays.
    fn tidy(&self) {
        let Ok(entries) = fs::read_dir(&self.0) else { return };
        let paths: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
        let Some(too_many) = paths.len().checked_sub(MOST_FILES).filter(|n| *n > 0) else { return };
        let age = |path: PathBuf| Some((fs::symlink_metadata(&path).ok()?.modified().ok()?, path));
        let mut by_age: Vec<_> = paths.into_iter().filter_map(age).collect();
        by_age.sort();
        for (_, path) in by_age.into_iter().take(too_many) {
            let _ = fs::remove_file(path);
        }
    }
}

fn flags(more: OFlags) -> i32 {
    i32::try_from((OFlags::NOFOLLOW | OFlags::NOCTTY | more).bits()).unwrap_or(0)
}

/// Whether a folder is the user's, or would be: what is not there yet is made in a folder of the user's or of the system's.
fn is_of(path: &Path, user: u32) -> bool {
    let exists = fs::metadata(path).is_ok();
    let nearest = path.ancestors().find_map(|path| fs::metadata(path).ok());
    nearest.is_some_and(|about| about.uid() == user || !exists && about.uid() == 0)
}

/// The home folder of a user, by the text of /etc/passwd.
fn home_of(user: u32, passwd: &str) -> Option<PathBuf> {
    passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        let is_user = fields.nth(2)?.parse() == Ok(user);
        let home = PathBuf::from(fields.nth(2)?);
        (is_user && home.is_absolute()).then_some(home)
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::super::file::bytes;
    use super::*;
    use paging::policy::site::Habit;

    const ID: BuildId = BuildId([7; 20]);

    fn sites() -> Vec<Kept> {
        vec![Kept { object: ID, offset: 4711, habit: Habit::of(&[2; 24]) }]
    }

    #[test]
    fn what_is_saved_is_loaded_and_nobody_else_can_read_it() {
        let home = tempfile::tempdir().unwrap();
        let folder = Folder(home.path().join("a/b"));
        let path = folder.path_of(ID);
        assert_eq!(folder.load(&path), Ok(Vec::new()));
        for _ in 0..2 {
            folder.save(&path, &bytes(&sites())).unwrap();
            assert_eq!(folder.load(&path), Ok(sites()));
        }
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&path), mode(&folder.0)), (0o600, 0o700));
        assert_eq!(fs::read_dir(&folder.0).unwrap().count(), 1);
    }

    #[test]
    fn what_is_broken_or_odd_is_refused_with_a_reason() {
        let home = tempfile::tempdir().unwrap();
        let folder = Folder(home.path().to_owned());
        let path = folder.path_of(ID);
        for odd in [&b""[..], b"nonsense", &vec![0; 1 << 20], &bytes(&sites())[..40]] {
            fs::write(&path, odd).unwrap();
            assert!(folder.load(&path).is_err());
        }
        let other = home.path().join("other");
        fs::rename(&path, &other).unwrap();
        symlink(&other, &path).unwrap();
        assert!(folder.load(&path).is_err());
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        assert!(folder.load(&path).is_err());
        assert!(folder.save(&path, b"").is_err());
        assert!(
            !fs::read_dir(&folder.0).unwrap().any(|entry| entry.unwrap().path().to_string_lossy().contains(".new"))
        );
    }

    #[test]
    fn the_oldest_go_when_there_are_many() {
        let home = tempfile::tempdir().unwrap();
        let folder = Folder(home.path().to_owned());
        for n in 0..MOST_FILES + 3 {
            fs::write(home.path().join(n.to_string()), "").unwrap();
        }
        folder.save(&folder.path_of(ID), b"").unwrap();
        assert_eq!(fs::read_dir(home.path()).unwrap().count(), MOST_FILES);
        assert!(folder.path_of(ID).exists());
    }

    #[test]
    fn the_folder_is_the_effective_users() {
        let home = tempfile::tempdir().unwrap();
        let of = |name: &'static str, value: &Path| {
            let value = OsString::from(value);
            Folder::of_user(move |asked| (asked == name).then(|| value.clone())).map(|folder| folder.0)
        };
        assert_eq!(of("XDG_CACHE_HOME", home.path()), Some(home.path().join("masu/profiles")));
        assert_eq!(of("HOME", home.path()), Some(home.path().join(".cache/masu/profiles")));
        assert_ne!(of("XDG_CACHE_HOME", Path::new("cache")), Some(PathBuf::from("cache/masu/profiles")));
        assert!(is_of(&home.path().join("not/yet"), geteuid().as_raw()));
        assert!(!is_of(home.path(), geteuid().as_raw() + 1));
        assert!(!is_of(&home.path().join("not/yet"), geteuid().as_raw() + 1) || geteuid().is_root());
        let passwd = "root:x:0:0:root:/root:/bin/bash\nme:x:1000:1000::/home/me:/bin/sh\nodd:x\n";
        assert_eq!(home_of(1000, passwd), Some(PathBuf::from("/home/me")));
        assert_eq!(home_of(7, passwd), None);
    }
}
