//! `/run/masu`, made first by any user, and locks on processes, taken by any user.

use std::collections::BTreeMap;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};

use rustix::fs::{FlockOperation, flock};

use super::Outcome;
use super::command::said;
use super::llc_run::config;
use super::programs::masu;
use super::run::{Folder, Result, lines, own};
use crate::host::{Host, LiveTest, tests};
use crate::program::FLAG;
use crate::target_process::TargetProcess;

/// Tests of this file, and their requirements.
pub(crate) const TESTS: &[LiveTest] = tests! {
    runtime_directory requires [Root, MasuCommand];
    both_directories_have_their_modes_whoever_comes_first [PageTableWalk, RemoteCollapse];
    a_directory_of_somebody_else_and_a_link_are_refused_with_the_reason [PageTableWalk, RemoteCollapse];
    settings_are_not_turned_where_run_is_not_the_hosts;
    nobody_keeps_root_away_from_a_process [PageTableWalk, RemoteCollapse];
};

/// Output of `program/own_run.rs`.
fn in_own_run(umask: &str, prepared: &str, actions: &[&str]) -> Result<BTreeMap<String, String>> {
    let masu = masu().ok_or("the command is not built")?;
    let mut command = std::process::Command::new(own()?);
    command.arg(FLAG).arg("own-run").arg(masu).args([umask, prepared]).args(actions);
    lines(&super::run::said(&mut command)?)
}

const MODES: [(&str, &str); 2] = [("public", "40755 0:0"), ("private", "40700 0:0")];

fn are_right(said: &BTreeMap<String, String>) {
    for (name, mode) in MODES {
        assert_eq!(said.get(name).map(String::as_str), Some(mode), "{said:?}");
    }
}

/// In either order, under any umask, and over any modes of an earlier masu.
fn both_directories_have_their_modes_whoever_comes_first(_: &Host) -> Outcome {
    let orders: [&[&str]; 2] = [&["track", "attach"], &["attach", "track"]];
    let wrong = ["", "700:0:/run/masu", "775:0:/run/masu", "777:0:/run/masu,777:0:/run/masu/private"];
    for (number, prepared) in wrong.into_iter().enumerate() {
        let umask = ["077", "000"][number % 2];
        let said = in_own_run(umask, prepared, orders[number / 2])?;
        are_right(&said);
        for name in ["track", "attach"] {
            assert_eq!(said[name].trim(), "0", "{prepared:?}: {said:?}");
        }
        assert_eq!(said["client"], "connected=1", "{prepared:?}: clients of other users are shut out");
    }
    Ok(())
}

/// Their owner could exchange the contents.
fn a_directory_of_somebody_else_and_a_link_are_refused_with_the_reason(_: &Host) -> Outcome {
    let cases = [
        ("755:4001:/run/masu", "/run/masu, which belongs to user 4001: operation not permitted (EPERM)"),
        ("link:/run/masu", "/run/masu, which is not a directory: not a directory (ENOTDIR)"),
    ];
    for (prepared, why) in cases {
        let said = in_own_run("022", prepared, &["track", "attach"])?;
        for name in ["track", "attach"] {
            assert!(said[name].starts_with("2 masu: cannot ") && said[name].ends_with(why), "{prepared}: {said:?}");
        }
        assert_eq!(said["private"], "none");
    }
    let said = in_own_run("022", "755:0:/run/masu,700:4001:/run/masu/private", &["attach", "track"])?;
    assert!(said["attach"].contains("/run/masu/private, which belongs to user 4001"), "{said:?}");
    assert_eq!(said["track"].trim(), "0", "it needs nothing of what is private");
    Ok(())
}

/// Its journal would end with the namespace, and leave the host's settings changed.
fn settings_are_not_turned_where_run_is_not_the_hosts(_: &Host) -> Outcome {
    let process = TargetProcess::start()?;
    let folder = Folder::make("own-run")?;
    let file = folder.0.join("llc.toml");
    std::fs::write(&file, config(&[("one", format!("pids = [{}]", process.pid()))]))?;
    let said = in_own_run("022", "", &[&format!("llc={}", file.display())])?;
    let line = "2 masu: cannot divide the cache: /run/masu is not the host's here, and ends with this mount namespace";
    assert_eq!(said["llc"], line);
    assert_eq!(said["public"], "none", "nothing was made");
    Ok(())
}

/// Neither a former name of a process, nor the lock of its owner.
fn nobody_keeps_root_away_from_a_process(_: &Host) -> Outcome {
    let process = TargetProcess::start()?;
    let pid = process.pid().to_string();
    let name = SocketAddr::from_abstract_name(format!("masu-attach-{pid}"))?;
    let _squatter = UnixListener::bind_addr(&name)?;
    for arguments in [&["attach", &pid, "--dry-run", "--for", "10ms"][..], &["pages", &pid, "--for", "10ms"]] {
        let said = said(arguments)?;
        assert_eq!((said.code(), said.err.as_str()), (0, ""), "{arguments:?}");
    }
    let maps = std::fs::File::open(format!("/proc/{pid}/maps"))?;
    flock(&maps, FlockOperation::NonBlockingLockExclusive)?;
    for arguments in [&["attach", &pid, "--dry-run", "--for", "10ms"][..], &["set", &pid, "huge=on"]] {
        let said = said(arguments)?;
        assert_eq!(said.code(), 0, "{arguments:?}: {}", said.err);
        let line = format!("masu: another program holds /proc/{pid}/maps locked");
        assert!(said.err.starts_with(&line), "{arguments:?}: {}", said.err);
    }
    Ok(())
}
