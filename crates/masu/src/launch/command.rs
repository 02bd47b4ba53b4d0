//! Finds the command, and decides before its start which way of serving is possible.

use std::ffi::{OsStr, OsString};
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use linux::auxv::WordSize;
use linux::program_file::{self, Elf, Format};
use linux::{Error, describe};
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

/// Judges a program's file.
pub fn loads(file: &Path) -> Loads {
    // A program that is executable and not readable is started by the loader all the same.
    judge(file, &mut |path| program_file::inspect(path), 4)
}

fn judge(file: &Path, inspect: &mut dyn FnMut(&Path) -> Result<Format, Error>, scripts: u32) -> Loads {
    match inspect(file) {
        Ok(Format::Elf(elf)) => judge_elf(&elf),
        Ok(Format::Script { interpreter }) if scripts > 0 => judge(&interpreter, inspect, scripts - 1),
        Ok(Format::Script { .. } | Format::Other) | Err(_) => Loads::Library,
    }
}

fn judge_elf(elf: &Elf) -> Loads {
    if !elf.native {
        return Loads::NotServed("it is for another kind of processor");
    }
    if elf.word_size == WordSize::Bits32 {
        return Loads::NotServed("it is a 32-bit program");
    }
    if elf.needs.iter().any(|library| library.as_bytes().starts_with(b"libasan.so")) {
        return Loads::Nothing(
            "it is built with the address sanitizer, whose library ends it when another comes first",
        );
    }
    match &elf.loader {
        _ if elf.go => Loads::Nothing("it is a Go program, whose runtime asks the kernel itself for memory"),
        None => Loads::Nothing("it is linked statically"),
        Some(loader) => {
            // The loaders of the system's own programs: another loader has its own C library beside it.
            match loader.to_str() {
                Some("/lib64/ld-linux-x86-64.so.2" | "/lib/ld-linux-aarch64.so.1") => Loads::Library,
                _ => Loads::Nothing("it has another C library than the system's"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn elf() -> Elf {
        let loader = Some("/lib64/ld-linux-x86-64.so.2".into());
        Elf { word_size: WordSize::Bits64, native: true, loader, needs: Vec::new(), go: false }
    }

    #[test]
    fn what_the_loader_starts_loads_the_library() {
        assert_eq!(judge_elf(&elf()), Loads::Library);
        assert!(matches!(judge_elf(&Elf { loader: None, ..elf() }), Loads::Nothing(why) if why.contains("statically")));
        assert!(matches!(judge_elf(&Elf { go: true, ..elf() }), Loads::Nothing(why) if why.contains("Go")));
        let musl = Elf { loader: Some("/lib/ld-musl-x86_64.so.1".into()), ..elf() };
        assert!(matches!(judge_elf(&musl), Loads::Nothing(why) if why.contains("another C library")));
        let own = Elf { loader: Some("/opt/x/ld-linux-x86-64.so.2".into()), ..elf() };
        assert!(matches!(judge_elf(&own), Loads::Nothing(why) if why.contains("another C library")));
        let asan = Elf { needs: vec!["libc.so.6".into(), "libasan.so.8".into()], ..elf() };
        assert!(matches!(judge_elf(&asan), Loads::Nothing(why) if why.contains("address sanitizer")));
        assert!(matches!(judge_elf(&Elf { word_size: WordSize::Bits32, ..elf() }), Loads::NotServed(_)));
        assert!(matches!(judge_elf(&Elf { native: false, ..elf() }), Loads::NotServed(_)));
    }

    #[test]
    fn a_script_is_what_runs_it_and_scripts_do_not_go_round_for_ever() {
        let mut statically = |path: &Path| {
            Ok(match path.to_str() {
                Some("/script") => Format::Script { interpreter: "/busybox".into() },
                Some("/round") => Format::Script { interpreter: "/round".into() },
                _ => Format::Elf(Elf { loader: None, ..elf() }),
            })
        };
        assert!(matches!(judge(Path::new("/script"), &mut statically, 4), Loads::Nothing(_)));
        assert_eq!(judge(Path::new("/round"), &mut statically, 4), Loads::Library);
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
