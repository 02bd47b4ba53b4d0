//! Start and end of the emulator where other files or mounts are in its way.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use rustix::process::Signal;

use super::emulator::{Emulator, is_mounted, program};
use crate::cases::Outcome;
use crate::cases::programs::Running;
use crate::cases::run::Folder;
use crate::host::Host;

/// User id of nobody, which owns nothing.
const NOBODY_UID: u32 = 65534;

/// As with nohup(1): SIGHUP is ignored. And its output cannot be written.
pub fn what_was_ignored_at_the_start_stays_so_and_nobody_need_listen(_: &Host) -> Outcome {
    let mut shell = Command::new("/bin/sh");
    shell.args(["-c", "trap '' HUP; exec \"$0\" \"$@\" >/dev/full"]).arg(program()?.get_program());
    let mut emulator = Emulator::start_by(shell, &[])?;
    let pid = emulator.running().ok_or("it has ended")?.pid();
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).ok_or("no SigIgn")?;
    assert_eq!(u64::from_str_radix(ignored.trim(), 16)? & 1, 1, "SIGHUP is 1");
    assert!(fs::read_to_string(emulator.root().join("mode"))?.starts_with("shareable"));
    emulator.running().ok_or("it has ended")?.signal(Signal::TERM)?;
    let said = emulator.said()?;
    assert_eq!((said.code(), said.err.as_str()), (0, ""));
    Ok(())
}

/// The kernel can be told to end a FUSE file system: fusectl, FUSE's documentation, "Aborting a filesystem connection".
pub fn a_connection_that_is_cut_off_is_an_error(_: &Host) -> Outcome {
    let mut emulator = Emulator::start(&[])?;
    let root = emulator.root();
    let number = fs::metadata(&root)?.dev();
    let minor = number & 0xff | number >> 12 & 0xf_ff00;
    let control = root.with_file_name("fusectl");
    fs::create_dir(&control)?;
    let cut = mount("none", &control, "fusectl", MountFlags::empty(), None)
        .map_err(std::io::Error::from)
        .and_then(|()| fs::write(control.join(minor.to_string()).join("abort"), "1"));
    let unmounted = unmount(&control, UnmountFlags::DETACH);
    fs::remove_dir(&control)?;
    cut?;
    unmounted?;
    let said = emulator.said()?;
    let line = format!("resctrl-emulator: {} is no longer served: ", root.display());
    assert!(said.code() == 2 && said.first_line().starts_with(&line), "{} {}", said.code(), said.err);
    assert!(!is_mounted(&root) && !emulator.socket().exists());
    Ok(())
}

/// Neither does a second one take it from the first, nor does it remove it.
pub fn one_emulator_listens_at_a_socket(_: &Host) -> Outcome {
    let emulator = Emulator::start(&[])?;
    let other = emulator.root().with_file_name("other");
    fs::create_dir(&other)?;
    let said = Running::start(program()?.arg(&other).arg("--control").arg(emulator.socket()))?.said()?;
    fs::remove_dir(&other)?;
    let line = format!("resctrl-emulator: cannot listen at {}: somebody listens there", emulator.socket().display());
    assert!(said.code() == 2 && said.first_line().starts_with(&line), "{} {}", said.code(), said.err);
    emulator.tell("settle")?;
    // A socket that was left behind is no obstacle, and one that came in between is not removed.
    let mut second = Emulator::start(&[])?;
    fs::remove_file(second.socket())?;
    let _other = std::os::unix::net::UnixListener::bind(second.socket())?;
    second.running().ok_or("it has ended")?.signal(Signal::TERM)?;
    assert_eq!(second.said()?.code(), 0);
    assert!(second.socket().exists());
    Ok(())
}

/// By a user who may not mount.
pub fn a_mount_that_fails_leaves_nothing_behind(_: &Host) -> Outcome {
    let folder = Folder::make("resctrl-ends")?;
    let (own, root, socket) = (folder.0.join("program"), folder.0.join("root"), folder.0.join("control"));
    fs::copy(program()?.get_program(), &own)?;
    fs::create_dir(&root)?;
    fs::set_permissions(&folder.0, fs::Permissions::from_mode(0o755))?;
    std::os::unix::fs::chown(&folder.0, Some(NOBODY_UID), None)?;
    let mut command = Command::new(&own);
    command.uid(NOBODY_UID).arg(&root).arg("--control").arg(&socket);
    let said = Running::start(&mut command)?.said()?;
    let line = format!("resctrl-emulator: cannot mount at {}: ", root.display());
    // EACCES of /dev/fuse, or EPERM of mount(2).
    let words = ["permission denied (EACCES)", "operation not permitted (EPERM)"];
    let why = said.first_line().strip_prefix(&line).ok_or_else(|| said.err.clone())?;
    assert!(
        words.contains(&why) && said.err.ends_with("It needs root and /dev/fuse (CONFIG_FUSE_FS).\n"),
        "{}",
        said.err
    );
    assert_eq!(said.code(), 2);
    assert!(!socket.exists());
    Ok(())
}
