//! `/run/masu` for the commands: the place of journals and locks, and the errors when it cannot be used.

use std::path::{Path, PathBuf};

use linux::journal::HostSettings;
use linux::runtime_directory::{self as directory, DIRECTORY, Seen};
use linux::{Error, Rooted};
use rustix::io::Errno;

use crate::HOST;
use crate::failure::Failure;
use crate::terminal::print;

/// Checks the directory that all users may read, for sockets.
pub fn public() -> Result<(), Failure> {
    directory::public(Path::new(DIRECTORY)).map(drop).map_err(|error| at_directory("use", &error))
}

/// The directory of journals and locks.
pub fn private(cannot: &str) -> Result<PathBuf, Failure> {
    let path = Path::new(DIRECTORY);
    directory::private(path).map_err(|error| at_directory(cannot, &error))?;
    Ok(directory::private_path(path))
}

/// The directory of journals and locks, for an operation on the whole host.
pub fn private_of_host(cannot: &str) -> Result<PathBuf, Failure> {
    match directory::seen(&*HOST, DIRECTORY) {
        Seen::Another => {
            let line =
                format!("cannot {cannot}: {DIRECTORY} is not the host's here, and ends with this mount namespace");
            Err(Failure::new(line).remedy(
                "Run it in the host's mount namespace (nsenter --target 1 --mount), in a service without a /run of its own, \
                 or in a container with --pid=host --volume /run/masu:/run/masu.",
            ))
        }
        Seen::Hosts | Seen::CannotTell(_) => private(cannot),
    }
}

/// Settings of the host that masu is about to change, with their journal.
pub fn settings() -> Result<HostSettings<'static, Rooted>, Failure> {
    const CANNOT: &str = "keep a journal of settings";
    private_of_host(CANNOT)?;
    if let Seen::CannotTell(why) = directory::seen(&*HOST, DIRECTORY) {
        print::note(format_args!(
            "{why}: if {DIRECTORY} ends with it and masu is killed, settings of the host stay turned"
        ));
    }
    HostSettings::open(&*HOST, Path::new(DIRECTORY)).map_err(|error| at_directory(CANNOT, &error))
}

/// A failure at one of the directories, with its remedy.
pub fn at_directory(cannot: &str, error: &Error) -> Failure {
    let failure = Failure::new(format!("cannot {cannot}: {error}"));
    match error.errno() {
        Some(Errno::PERM | Errno::NOTDIR) if error.to_string().contains(" trust ") => failure.remedy(format!(
            "Look who made it, and remove it: masu makes {DIRECTORY} anew, as root's, with mode 0755."
        )),
        Some(Errno::ACCESS | Errno::PERM) => failure.remedy("Run as root."),
        Some(Errno::ROFS) => failure.remedy("Mount a tmpfs at /run, as systemd does."),
        _ => failure,
    }
}
