//! Folder of profiles: one file for each program, in the user's cache folder.
//!
//! Only files of the effective user are read and written. Under sudo the environment may still name the folders of the
//! calling user: then root's own are taken.

use std::ffi::{OsStr, OsString};
use std::fs::{self, DirBuilder, File};
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::SystemTime;

use linux::build_id::{BUILD_ID_BYTES, BuildId};
use rustix::fs::OFlags;
use rustix::process::geteuid;

use super::file::{Broken, MOST_BYTES, SavedSite, parse};

/// Largest number of files kept: the oldest are removed.
const MOST_FILES: usize = 256;

/// Prefix of files that are being written.
const NEW: &str = ".new-";

/// Reason why a profile was not loaded.
#[derive(Debug, thiserror::Error)]
pub enum NotLoaded {
    /// The file cannot be read.
    #[error(transparent)]
    Unreadable(#[from] io::Error),
    /// It is no regular file, or another user's.
    #[error("it is no file of this user's")]
    Foreign,
    /// Its bytes are no profile.
    #[error(transparent)]
    Broken(#[from] Broken),
}

/// The folder with the profiles.
#[derive(Clone, Debug)]
pub struct Folder(PathBuf);

impl Folder {
    /// Folder of the effective user. `None` when it has none.
    pub fn of_user(variable: impl Fn(&str) -> Option<OsString>) -> Option<Folder> {
        let user = geteuid().as_raw();
        let named = |name: &str| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let passwd = || home_of(user, &fs::read("/etc/passwd").ok()?);
        let home = || [named("HOME"), passwd()].into_iter().flatten().find(|home| is_of(home, user));
        let new = named("XDG_CACHE_HOME").filter(|path| would_be_of(path, user));
        let cache = new.or_else(|| Some(home()?.join(".cache")))?;
        Some(Folder(cache.join("masu/profiles")))
    }

    #[cfg(test)]
    pub(super) fn at(path: PathBuf) -> Folder {
        Folder(path)
    }

    /// File of a program.
    pub fn path_of(&self, program: BuildId) -> PathBuf {
        self.0.join(program.to_string())
    }

    /// Loads the saved sites; none if there is no such file.
    ///
    /// # Errors
    /// Reason why the file cannot be used.
    pub fn load(&self, path: &Path) -> Result<Vec<SavedSite>, NotLoaded> {
        let file = match File::options().read(true).custom_flags(flags(OFlags::NONBLOCK)).open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error.into()),
        };
        let about = file.metadata()?;
        if !about.is_file() || about.uid() != geteuid().as_raw() {
            return Err(NotLoaded::Foreign);
        }
        let mut bytes = Vec::new();
        let most = MOST_BYTES as u64 + 1;
        file.take(most).read_to_end(&mut bytes)?;
        Ok(parse(&bytes)?)
    }

    /// Saves the bytes, in one step: a concurrent reader sees the old file or the new one.
    ///
    /// # Errors
    /// The kernel's answer.
    pub fn save(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(0o700).create(&self.0)?;
        let about = fs::symlink_metadata(&self.0)?;
        if !about.is_dir() || about.uid() != geteuid().as_raw() {
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, "its folder is a link, or another user's"));
        }
        let new = self.0.join(new_name());
        let mut file = File::options().write(true).create_new(true).mode(0o600).open(&new)?;
        let written = file.write_all(bytes).and_then(|()| fs::rename(&new, path));
        if written.is_err() {
            // A failure here changes nothing: it cannot be removed either, then.
            let _ = fs::remove_file(&new);
        } else {
            self.tidy();
        }
        written
    }

    /// Removes the oldest files where there are too many. Files that cannot be seen or removed stay, and files with a
    /// foreign name.
    fn tidy(&self) {
        let Ok(entries) = fs::read_dir(&self.0) else { return };
        let names = entries.filter_map(|entry| Some(entry.ok()?.file_name()));
        let paths: Vec<PathBuf> = names.filter(|name| is_ours(name)).map(|name| self.0.join(name)).collect();
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
    (OFlags::NOFOLLOW | OFlags::NOCTTY | more).bits().cast_signed()
}

/// Temporary name of a file: different from all others of this process, and of a process with its PID in another PID
/// namespace.
fn new_name() -> String {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let now_ns = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |now| now.as_nanos());
    format!("{NEW}{}-{}-{now_ns}", std::process::id(), NUMBER.fetch_add(1, Relaxed))
}

/// Whether the name is a build-id, or a temporary file whose writer died before the rename.
fn is_ours(name: &OsStr) -> bool {
    let name = name.as_bytes();
    name.starts_with(NEW.as_bytes()) || name.len() == 2 * BUILD_ID_BYTES && name.iter().all(u8::is_ascii_hexdigit)
}

fn is_of(path: &Path, user: u32) -> bool {
    fs::metadata(path).is_ok_and(|about| about.uid() == user)
}

/// Whether a folder belongs to the user, or would: a missing one is created in a folder of the user's.
fn would_be_of(path: &Path, user: u32) -> bool {
    path.ancestors().find(|path| path.exists()).is_some_and(|nearest| is_of(nearest, user))
}

/// The home folder of a user, by the content of /etc/passwd.
fn home_of(user: u32, passwd: &[u8]) -> Option<PathBuf> {
    passwd.split(|byte| *byte == b'\n').find_map(|line| {
        let mut fields = line.split(|byte| *byte == b':');
        let is_user = std::str::from_utf8(fields.nth(2)?).ok()?.parse() == Ok(user);
        let home = PathBuf::from(OsStr::from_bytes(fields.nth(2)?));
        (is_user && home.is_absolute()).then_some(home)
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::super::file::bytes;
    use super::*;
    use farmem_engine::policy::site::SiteProfile;

    const ID: BuildId = BuildId([7; 20]);

    fn sites() -> Vec<SavedSite> {
        vec![SavedSite { object: ID, offset: 4711, profile: SiteProfile::of(&[2; 24]) }]
    }

    #[test]
    fn what_is_saved_is_loaded_and_nobody_else_can_read_it() {
        let home = tempfile::tempdir().unwrap();
        let folder = Folder(home.path().join("a/b"));
        let path = folder.path_of(ID);
        assert_eq!(folder.load(&path).unwrap(), []);
        for _ in 0..2 {
            folder.save(&path, &bytes(&sites())).unwrap();
            assert_eq!(folder.load(&path).unwrap(), sites());
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
            fs::write(home.path().join(format!("{n:040x}")), "").unwrap();
        }
        folder.save(&folder.path_of(ID), b"").unwrap();
        assert_eq!(fs::read_dir(home.path()).unwrap().count(), MOST_FILES);
        assert!(folder.path_of(ID).exists());
    }

    #[test]
    fn what_is_not_ours_stays() {
        let home = tempfile::tempdir().unwrap();
        let folder = Folder(home.path().to_owned());
        let names = || (0..MOST_FILES + 3).map(|n| home.path().join(format!("letter-{n}")));
        names().for_each(|name| fs::write(name, "").unwrap());
        // Another process with our PID, in another PID namespace, writes there too.
        let new = |n| home.path().join(format!(".new-{}-{n}", std::process::id()));
        (0..100).for_each(|n| fs::write(new(n), "").unwrap());
        folder.save(&folder.path_of(ID), b"").unwrap();
        assert!(names().chain((0..100).map(new)).all(|name| name.exists()));
    }

    #[test]
    fn nothing_is_written_through_a_link() {
        let home = tempfile::tempdir().unwrap();
        let (elsewhere, link) = (home.path().join("elsewhere"), home.path().join("link"));
        fs::create_dir(&elsewhere).unwrap();
        symlink(&elsewhere, &link).unwrap();
        let folder = Folder(link);
        assert!(folder.save(&folder.path_of(ID), b"").is_err());
        assert_eq!(fs::read_dir(&elsewhere).unwrap().count(), 0);
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
        let (me, other, new) = (geteuid().as_raw(), geteuid().as_raw() + 1, home.path().join("not/yet"));
        assert!(is_of(home.path(), me) && !is_of(home.path(), other) && !is_of(&new, me));
        assert!(would_be_of(home.path(), me) && would_be_of(&new, me) && !would_be_of(&new, other));
        assert!(!would_be_of(Path::new("/no/such/folder"), 1), "the system's");
        assert_eq!(of("XDG_CACHE_HOME", &new), Some(new.join("masu/profiles")));
        assert_ne!(of("HOME", &new), Some(new.join(".cache/masu/profiles")), "only a cache may be new");
        let passwd = b"root:x:0:0:root:/root:/bin/bash\n\xff\xfe:x:\xff:1:::\nj:x:8:8:J\xf6rg:/home/j\xf6rg:/bin/sh\n\
                       me:x:1000:1000::/home/me:/bin/sh\nodd:x\n";
        assert_eq!(home_of(1000, passwd), Some(PathBuf::from("/home/me")));
        assert_eq!(home_of(8, passwd), Some(PathBuf::from(OsStr::from_bytes(b"/home/j\xf6rg"))));
        assert_eq!(home_of(7, passwd), None);
    }
}
