//! Finds the command, and decides before its start which way of serving is possible.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use contract::image::{self, LeftOut, Verdict};
use linux::describe;
use linux::program_file;
use rustix::fs::{Access, access};

use crate::failure::Failure;

/// Statuses of `masu run` itself, as in env(1), nice(1) and timeout(1).
pub const NOT_STARTED: u8 = 125;
pub const NOT_EXECUTABLE: u8 = 126;
pub const NOT_FOUND: u8 = 127;

/// A command that was not started: the message, and the status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotStarted {
    pub failure: Failure,
    pub status: u8,
}

impl From<Failure> for NotStarted {
    fn from(failure: Failure) -> NotStarted {
        NotStarted { failure, status: NOT_STARTED }
    }
}

/// Whether the preload library can serve a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Loads {
    /// Loaded by the C library's loader, as far as the file tells.
    Library,
    /// Not loaded, with the reason. The program can be served from outside.
    Nothing(&'static str),
    /// The program cannot be served at all, with the reason.
    NotServed(&'static str),
}

/// Finds the file that a shell would start for `name`.
pub fn find(name: &OsStr, path: Option<OsString>) -> Result<PathBuf, NotStarted> {
    let shown = name.display();
    let not_found =
        |line: String, remedy: &str| NotStarted { failure: Failure::new(line).remedy(remedy), status: NOT_FOUND };
    if name.as_bytes().contains(&b'/') {
        return may_be_run(Path::new(name), name).map(|()| PathBuf::from(name));
    }
    let path = path.unwrap_or_else(|| "/usr/local/bin:/usr/bin:/bin".into());
    let mut unfit = None;
    for folder in std::env::split_paths(&path) {
        let file = folder.join(name);
        match may_be_run(&file, name) {
            Ok(()) => return Ok(file),
            Err(found) if found.status == NOT_EXECUTABLE => unfit = unfit.or(Some(found)),
            Err(_) => {}
        }
    }
    Err(unfit.unwrap_or_else(|| {
        not_found(
            format!("cannot run {shown}: no such command"),
            "It is in none of the folders of PATH; name it by its path, or install it.",
        )
    }))
}

fn may_be_run(file: &Path, name: &OsStr) -> Result<(), NotStarted> {
    let shown = name.display();
    let is_folder = match std::fs::metadata(file) {
        Ok(meta) => meta.is_dir(),
        Err(error) => {
            let status = if error.kind() == ErrorKind::PermissionDenied { NOT_EXECUTABLE } else { NOT_FOUND };
            let why = describe(errno_of(&error));
            let failure = Failure::new(format!("cannot run {shown}: {why}")).remedy("Name a program's file.");
            return Err(NotStarted { failure, status });
        }
    };
    let unfit = |why: &str, remedy: String| {
        Err(NotStarted {
            failure: Failure::new(format!("cannot run {shown}: {why}")).remedy(remedy),
            status: NOT_EXECUTABLE,
        })
    };
    if is_folder {
        return unfit("is a directory", "Name a program's file.".to_owned());
    }
    match access(file, Access::EXEC_OK) {
        Ok(()) => Ok(()),
        Err(errno) => unfit(&describe(errno), format!("`chmod +x {}` makes a program of it.", file.display())),
    }
}

fn errno_of(error: &std::io::Error) -> rustix::io::Errno {
    rustix::io::Errno::from_io_error(error).unwrap_or(rustix::io::Errno::IO)
}

/// Refuses a program that would be started with other privileges than masu's. `purpose` names the option that is
/// impossible, and `remedy` the alternative.
pub fn refuse_privileged(file: &Path, name: &OsStr, purpose: &str, remedy: &str) -> Result<(), Failure> {
    let what = match program_file::privileged(file) {
        Ok(None) | Err(_) => return Ok(()),
        Ok(Some(program_file::Privileged::SetId)) => "it is set-uid or set-gid",
        Ok(Some(program_file::Privileged::Capabilities)) => "it has file capabilities",
    };
    let line = format!(
        "cannot run {} with {purpose}: {what}, so that the loader takes no library from the environment",
        name.display()
    );
    Err(Failure::new(line).remedy(remedy))
}

/// Judges a program's file by the rule for all programs of a run ([`image::judge`]).
pub fn loads(file: &Path) -> Loads {
    judge(file, SCRIPTS_MAX)
}

/// Scripts that are run by scripts, at most; the kernel's limit.
const SCRIPTS_MAX: u32 = 4;

fn judge(file: &Path, scripts: u32) -> Loads {
    // A program that is executable and not readable is started by the loader all the same.
    let Some(opened) = open(file) else { return Loads::Library };
    match image::judge(&mut |at, into| opened.read_at(into, at).unwrap_or(0)) {
        Verdict::LeftOut(why @ LeftOut::OtherMachine) => Loads::NotServed(why.reason()),
        Verdict::LeftOut(why) => Loads::Nothing(why.reason()),
        Verdict::Script(name) if scripts > 0 => {
            let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
            judge(Path::new(OsStr::from_bytes(name)), scripts - 1)
        }
        Verdict::Script(_) | Verdict::Served => Loads::Library,
    }
}

/// Opens a regular file: opening a pipe would wait for a writer.
fn open(file: &Path) -> Option<File> {
    std::fs::metadata(file).ok().filter(std::fs::Metadata::is_file)?;
    File::options().read(true).open(file).ok()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn the_first_program_is_judged_as_any_other() {
        assert_eq!(loads(Path::new("/proc/self/exe")), Loads::Library);
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("program");
        let mut small = vec![0; 64];
        small[..6].copy_from_slice(b"\x7fELF\x01\x01");
        std::fs::write(&file, &small).unwrap();
        assert!(matches!(loads(&file), Loads::NotServed(why) if why.contains("32-bit")));
        small[4] = 2;
        small[18] = if cfg!(target_arch = "x86_64") { 62 } else { 183 };
        std::fs::write(&file, &small).unwrap();
        assert!(matches!(loads(&file), Loads::Nothing(why) if why.contains("statically")));
        let script = folder.path().join("script");
        std::fs::write(&script, format!("#! {}\n", file.display())).unwrap();
        assert!(matches!(loads(&script), Loads::Nothing(why) if why.contains("statically")), "as what runs it");
    }

    #[test]
    fn scripts_do_not_go_round_for_ever_and_what_cannot_be_read_is_left_to_the_loader() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("round");
        std::fs::write(&file, format!("#!{}\n", file.display())).unwrap();
        assert_eq!(loads(&file), Loads::Library);
        assert_eq!(loads(&folder.path().join("missing")), Loads::Library);
        assert_eq!(loads(folder.path()), Loads::Library);
    }

    #[test]
    fn what_is_missing_is_127_and_what_is_no_program_126() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("program");
        let path = || Some(folder.path().as_os_str().to_owned());
        let missing = find(OsStr::new("program"), path()).unwrap_err();
        assert_eq!(missing.status, NOT_FOUND);
        assert!(
            missing.failure.to_string().starts_with("masu: cannot run program: no such command\n    It is in none")
        );
        std::fs::write(&file, "#!/bin/sh\n").unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).unwrap();
        let unfit = find(OsStr::new("program"), path()).unwrap_err();
        assert_eq!(unfit.status, NOT_EXECUTABLE);
        assert!(unfit.failure.to_string().contains("permission denied (EACCES)"), "{}", unfit.failure);
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(find(OsStr::new("program"), path()), Ok(file.clone()));
        assert_eq!(find(file.as_os_str(), None), Ok(file));
        assert_eq!(find(folder.path().as_os_str(), None).unwrap_err().status, NOT_EXECUTABLE);
        let below = folder.path().join("program/below");
        assert_eq!(find(below.as_os_str(), None).unwrap_err().status, NOT_FOUND);
    }
}
