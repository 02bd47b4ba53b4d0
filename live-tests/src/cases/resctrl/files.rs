//! Directories and files: their list, the places where groups can be made, and the status of the last command.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use libtest_mimic::Failed;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use super::mount::{Mount, OwnGroup, Shown, Trial, errno_of, mask_of, not, read_again, written};

fn errno<T>(outcome: std::io::Result<T>) -> Result<(), Errno> {
    outcome.map(drop).map_err(|error| errno_of(&error))
}

/// kernfs: `cat` and `echo` work on them, `ls` shows no size.
pub(crate) fn files_have_the_kernels_rights_and_no_size(mount: &Mount) -> Trial {
    let group = mount.group("web")?;
    for (path, mode) in
        [("schemata", 0o644), ("tasks", 0o644), ("mode", 0o644), ("cpus", 0o644), ("cpus_list", 0o644), ("size", 0o444)]
    {
        let about = fs::metadata(group.file(path))?;
        assert_eq!((about.permissions().mode() & 0o7777, about.len()), (mode, 0), "{path}");
    }
    for (path, mode) in [("", 0o555), ("info", 0o555), ("info/last_cmd_status", 0o444)] {
        assert_eq!(fs::metadata(mount.root.join(path))?.mode() & 0o7777, mode, "{path:?}");
    }
    if mount.monitors {
        let counters = group.file(&format!("mon_data/mon_L3_{:02}", mount.caches[0]));
        for file in fs::read_dir(counters)? {
            let about = file?.metadata()?;
            assert!(about.is_dir() || about.mode() & 0o7777 == 0o444);
        }
    }
    Ok(Shown::Kept)
}

/// Also by root: kernfs itself checks a file's rights when it is opened.
pub(crate) fn what_is_only_read_is_not_opened_for_writing(mount: &Mount) -> Trial {
    for path in ["size", "info/last_cmd_status", &format!("info/{}/cbm_mask", mount.lines[0])] {
        let opened = OpenOptions::new().write(true).open(mount.root.join(path));
        assert_eq!(errno(opened), Err(Errno::ACCESS), "{path}");
        assert!(!mount.read(path)?.is_empty(), "{path}");
    }
    Ok(Shown::Kept)
}

/// Only directories of groups are made or removed.
pub(crate) fn files_come_and_go_with_their_group_alone(mount: &Mount) -> Trial {
    let group = mount.group("web")?;
    assert_eq!(
        errno(OpenOptions::new().write(true).create(true).truncate(true).open(group.file("none"))),
        Err(Errno::ACCESS)
    );
    assert_eq!(errno(fs::remove_file(group.file("tasks"))), Err(Errno::PERM));
    assert_eq!(errno(symlink("tasks", group.file("link"))), Err(Errno::PERM));
    assert_eq!(errno(fs::hard_link(group.file("tasks"), group.file("link"))), Err(Errno::PERM));
    assert_eq!(errno(fs::read(group.file("none"))), Err(Errno::NOENT));
    // As a shell's `>` opens it.
    errno(fs::write(group.file("mode"), "shareable\n"))?;
    Ok(Shown::Kept)
}

/// rdtgroup_mkdir: in the root, and in mon_groups.
pub(crate) fn groups_are_made_in_the_root_and_in_mon_groups_alone(mount: &Mount) -> Trial {
    let group = mount.group("web")?;
    let monitor = mount.monitors.then(|| group.monitor("vm")).transpose()?;
    let info = mount.root.join("info");
    let in_info = if mount.monitors { Errno::NODEV } else { Errno::PERM };
    let mut refusals = vec![
        (group.path.clone(), Errno::EXIST),
        (info.clone(), Errno::EXIST),
        (group.file("inner"), Errno::PERM),
        (info.join("inner"), in_info),
        (info.join(&mount.lines[0]).join("inner"), in_info),
        (group.path.with_file_name("masu-live-a\nb"), Errno::INVAL),
        (group.file("tasks/inner"), Errno::NOTDIR),
        (mount.root.join("masu-live-none/inner"), Errno::NOENT),
    ];
    if monitor.is_some() {
        refusals.push((group.file("mon_groups/vm/inner"), Errno::PERM));
        refusals.push((group.file("mon_data/inner"), Errno::PERM));
        refusals.push((group.file("mon_groups/mon_groups"), Errno::PERM));
        refusals.push((group.file("mon_groups/vm"), Errno::EXIST));
    }
    for (path, expected) in &refusals {
        assert_eq!(errno(fs::create_dir(path)), Err(*expected), "{}", path.display());
    }
    Ok(Shown::Kept)
}

/// rdtgroup_rmdir: and with a group its files, which is no obstacle.
pub(crate) fn only_groups_are_removed(mount: &Mount) -> Trial {
    let group = mount.group("web")?;
    for path in [mount.root.join("info"), mount.root.join("info").join(&mount.lines[0])] {
        assert_eq!(errno(fs::remove_dir(&path)), Err(Errno::PERM), "{}", path.display());
    }
    assert_eq!(errno(fs::remove_dir(group.file("tasks"))), Err(Errno::NOTDIR));
    if mount.monitors {
        assert_eq!(errno(fs::remove_dir(group.file("mon_data"))), Err(Errno::PERM));
        assert_eq!(errno(fs::remove_dir(group.file("mon_groups"))), Err(Errno::PERM));
        let monitor = group.monitor("vm")?;
        fs::remove_dir(&monitor.path)?;
        assert!(!monitor.path.exists());
    }
    fs::remove_dir(&group.path)?;
    assert!(!group.path.exists());
    Ok(Shown::Kept)
}

/// kernfs: a file that was removed while it was open answers no more.
pub(crate) fn an_open_file_of_a_removed_group_answers_no_more(mount: &Mount) -> Trial {
    let group = mount.group("web")?;
    let schemata = OpenOptions::new().read(true).write(true).open(group.file("schemata"))?;
    read_again(&schemata)?;
    fs::remove_dir(&group.path)?;
    assert_eq!(read_again(&schemata), Err(Errno::NODEV));
    assert_eq!(written(&schemata, format!("{}f\n", mount.first()).as_bytes()), Err(Errno::NODEV));
    Ok(Shown::Kept)
}

/// atomic_write_len: one write(2) is one command, wherever in the file it is; more than a page is none.
pub(crate) fn a_write_is_one_command_of_a_page_at_most(mount: &Mount) -> Trial {
    let group = mount.group("web")?;
    let file = File::options().write(true).open(group.file("schemata"))?;
    for mask in [0xf_u64, 0x1e] {
        written(&file, format!("{}{mask:x}\n", mount.first()).as_bytes())?;
        assert_eq!(mask_of(&group.path, &mount.lines[0], mount.caches[0])?, mask);
    }
    let command = format!("{}f\n", mount.first());
    let padded = |bytes: usize| format!("{command:>bytes$}");
    written(&file, padded(4096).as_bytes())?;
    assert_eq!(written(&file, padded(4097).as_bytes()), Err(Errno::TOOBIG));
    assert_eq!(mask_of(&group.path, &mount.lines[0], mount.caches[0])?, 0xf);
    Ok(Shown::Kept)
}

/// seq_read: also before the beginning was read.
pub(crate) fn reading_may_begin_anywhere(mount: &Mount) -> Trial {
    let group = mount.group("web")?;
    let whole = group.read("schemata")?;
    let mut piece = vec![0; whole.len()];
    let count = File::open(group.file("schemata"))?.read_at(&mut piece, 4)?;
    assert_eq!(String::from_utf8_lossy(&piece[..count]), whole[4..]);
    Ok(Shown::Kept)
}

/// Documentation/filesystems/resctrl.rst, "Locking in resctrl"; the mount holds the lock.
pub(crate) fn the_lock_on_the_root_keeps_others_out(mount: &Mount) -> Trial {
    let root = File::open(&mount.root)?;
    assert_eq!(flock(&root, FlockOperation::NonBlockingLockExclusive), Err(Errno::WOULDBLOCK));
    assert_eq!(flock(&root, FlockOperation::NonBlockingLockShared), Err(Errno::WOULDBLOCK));
    Ok(Shown::Kept)
}

/// `info/last_cmd_status`: the last command of any user.
pub(crate) fn the_status_is_that_of_the_last_command(mount: &Mount) -> Trial {
    let group = mount.group("web")?;
    assert_eq!(mount.status()?, "ok\n", "after mkdir");
    mount.refuses(&group.file("mode"), "nonsense\n", Errno::INVAL, "Unknown or unsupported mode\n")?;
    mount.read("schemata")?;
    assert!(mount.status()?.starts_with("Unknown"), "reading is no command");
    group.write("mode", "shareable\n")?;
    assert_eq!(mount.status()?, "ok\n");
    Ok(Shown::Kept)
}

/// A missing newline: the text is not even taken for a command.
pub(crate) fn a_command_without_a_newline_is_none(mount: &Mount) -> Trial {
    let group = mount.group("web")?;
    mount.refuses(&group.file("mode"), "nonsense\n", Errno::INVAL, "Unknown or unsupported mode\n")?;
    for (file, text) in [("schemata", format!("{}f", mount.first())), ("mode", "shareable".to_owned())] {
        mount.refuses(&group.file(file), &text, Errno::INVAL, "Unknown or unsupported mode\n")?;
    }
    Ok(Shown::Kept)
}

fn moved(mount: &Mount, from: &Path, to: &Path, expected: Errno, words: &str) -> Result<(), Failed> {
    let what = format!("{} to {}", from.display(), to.display());
    mount.said(&what, errno(fs::rename(from, to)), expected, words)
}

/// rdtgroup_rename: only monitoring groups, only to another mon_groups.
pub(crate) fn a_monitoring_group_moves_and_nothing_else_does(mount: &Mount) -> Trial {
    if !mount.monitors {
        return not("nothing is monitored here");
    }
    let (web, db) = (mount.group("web")?, mount.group("db")?);
    let vm = web.monitor("vm")?;
    let shell = super::mount::Shell::start(0)?;
    for group in [&web, &vm] {
        group.write("tasks", &shell.pid().to_string())?;
    }
    let moved_vm = OwnGroup { path: db.file("mon_groups/vm2") };
    fs::rename(&vm.path, &moved_vm.path)?;
    assert!(db.has(shell.pid())? && moved_vm.has(shell.pid())? && !web.has(shell.pid())?);
    let other = web.monitor("other")?;
    let words = "Source must be a MON group\n";
    moved(mount, &web.path, &web.path.with_extension("2"), Errno::PERM, words)?;
    moved(mount, &web.path, &db.file("mon_groups/web"), Errno::PERM, words)?;
    let words = "Destination must be a mon_groups subdirectory\n";
    moved(mount, &moved_vm.path, &web.path.with_extension("2"), Errno::PERM, words)?;
    moved(mount, &web.file("tasks"), &web.file("tasks2"), Errno::PERM, "Source and destination must be directories")?;
    assert_eq!(errno(fs::rename(&moved_vm.path, &other.path)), Err(Errno::EXIST));
    assert_eq!(errno(fs::rename(mount.root.join("info"), mount.root.join("info2"))), Err(Errno::NOENT));
    fs::rename(&moved_vm.path, &vm.path)?;
    assert!(web.has(shell.pid())?);
    Ok(Shown::Kept)
}
