//! Commands in a mount namespace with a private `/run`.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use linux::message_socket::Connection;
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};
use rustix::process::{Pid, Signal, kill_process};
use rustix::thread::{UnshareFlags, unshare_unsafe};

use super::Wrong;

const SOCKET: &str = "/run/masu/track.sock";
const TIME_LIMIT: Duration = Duration::from_secs(60);

/// Prepares a `/run` (`MODE:OWNER:PATH` makes a folder, `link:PATH` a symbolic link), runs masu for each of `actions` under `umask`, and
/// prints how each ended, with the first line of its complaint, and in the end the modes of masu's directories.
pub(super) fn run(masu: &str, umask: &str, prepared: &str, actions: &[String]) -> Result<(), Wrong> {
    // SAFETY: this process has one thread, and no descriptor or path that means something else afterwards.
    unsafe { unshare_unsafe(UnshareFlags::NEWNS)? };
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
    mount("tmpfs", "/run", "tmpfs", MountFlags::empty(), None)?;
    for step in prepared.split(',').filter(|step| !step.is_empty()) {
        match step.splitn(3, ':').collect::<Vec<_>>()[..] {
            ["link", path] => std::os::unix::fs::symlink("/tmp", path)?,
            [mode, owner, path] => {
                std::fs::create_dir_all(path)?;
                std::fs::set_permissions(path, std::fs::Permissions::from_mode(u32::from_str_radix(mode, 8)?))?;
                std::os::unix::fs::chown(path, Some(owner.parse()?), None)?;
            }
            _ => return Err(format!("no step {step:?}").into()),
        }
    }
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(u32::from_str_radix(umask, 8)?));
    for action in actions {
        let (name, argument) = action.split_once('=').unwrap_or((action, ""));
        let own = std::process::id().to_string();
        let arguments = match name {
            "track" => vec!["track"],
            "attach" => vec!["attach", &own, "--dry-run", "--for", "10ms"],
            "llc" => vec!["llc", "run", "--config", argument],
            _ => return Err(format!("no action {name:?}").into()),
        };
        let mut child = Command::new(masu);
        let child = child.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?;
        if name == "track" {
            end_when_others_are_served(&child)?;
        }
        let said = child.wait_with_output()?;
        let complaint = String::from_utf8_lossy(&said.stderr).lines().next().unwrap_or_default().to_owned();
        println!("{name}={} {complaint}", said.status.code().unwrap_or(255));
    }
    for (name, path) in [("public", "/run/masu"), ("private", "/run/masu/private")] {
        let about = std::fs::symlink_metadata(path).map(|about| (about.mode(), about.uid(), about.gid()));
        println!(
            "{name}={}",
            about.map_or_else(|_| "none".to_owned(), |(mode, user, group)| format!("{mode:o} {user}:{group}"))
        );
    }
    Ok(())
}

/// Returns once a user without privileges can connect, or the tracker has ended by itself.
fn end_when_others_are_served(tracker: &std::process::Child) -> Result<(), Wrong> {
    let (end, pid) = (Instant::now() + TIME_LIMIT, tracker.id());
    let has_ended = || std::fs::read_to_string(format!("/proc/{pid}/stat")).map_or(true, |stat| stat.contains(") Z "));
    while Connection::at(Path::new(SOCKET)).is_err() && !has_ended() {
        if Instant::now() > end {
            return Err("the tracker does not listen".into());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    if has_ended() {
        return Ok(());
    }
    let mut client = Command::new(std::env::current_exe()?);
    let connected =
        client.args([super::FLAG, "track-clients", "4001", SOCKET, "1"]).uid(0).stdin(Stdio::null()).output()?;
    println!("client={}", String::from_utf8_lossy(&connected.stdout).trim());
    let pid = Pid::from_raw(pid.cast_signed()).ok_or("no process")?;
    Ok(kill_process(pid, Signal::INT)?)
}
