//! `tasks` and `cpus`: membership of groups.

use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::mpsc;

use libtest_mimic::Failed;
use rustix::io::Errno;

use super::mount::{Mount, Shell, Shown, Trial, not, write};

/// User id of nobody, which owns nothing.
const NOBODY_UID: u32 = 65534;

/// Larger than any process id can be.
const NOBODY: &str = "4194305";

/// find_task_by_vpid: of a process with several threads, the one that was named.
pub(crate) fn one_thread_moves_for_each_id(mount: &Mount) -> Trial {
    let group = mount.group("web")?;
    let (say, id) = mpsc::channel();
    let (end, wait) = mpsc::channel::<()>();
    let thread = std::thread::spawn(move || {
        let _ = say.send(rustix::thread::gettid().as_raw_nonzero().get());
        let _ = wait.recv();
    });
    let tid = id.recv()?;
    let own = rustix::process::getpid().as_raw_nonzero().get();
    group.write("tasks", &format!("{tid}\n"))?;
    let (moved, stayed) = (group.has(tid)?, !group.has(own)?);
    drop(end);
    let _ = thread.join();
    assert!(moved && stayed, "{moved} {stayed}");
    assert!(!group.has(tid)?, "it has ended");
    Ok(Shown::Kept)
}

/// "0" is the thread that writes.
pub(crate) fn zero_is_the_thread_that_writes(mount: &Mount) -> Trial {
    let group = mount.group("web")?;
    let file = group.file("tasks");
    let own = std::thread::spawn(move || {
        let tid = rustix::thread::gettid().as_raw_nonzero().get();
        let outcome = write(&file, "0");
        let text = std::fs::read_to_string(&file).unwrap_or_default();
        (outcome, text.trim().parse::<i32>() == Ok(tid))
    });
    let joined = own.join().map_err(|_| "the thread failed")?;
    assert_eq!(joined, (Ok(()), true));
    Ok(Shown::Kept)
}

/// A child is where its parent is when it is made, and stays there.
pub(crate) fn a_child_begins_where_its_parent_is(mount: &Mount) -> Trial {
    let group = mount.group("web")?;
    let mut shell = Shell::start(0)?;
    let before = shell.fork()?;
    group.write("tasks", &shell.pid().to_string())?;
    let after = shell.fork()?;
    assert!(group.has(shell.pid())? && group.has(after)? && !group.has(before)?);
    // Back: the child stays where it is.
    mount.write("tasks", &shell.pid().to_string())?;
    assert!(!group.has(shell.pid())? && group.has(after)?);
    mount.write("tasks", &after.to_string())?;
    for child in [before, after] {
        end(child);
    }
    Ok(Shown::Kept)
}

fn end(pid: i32) {
    if let Some(pid) = rustix::process::Pid::from_raw(pid) {
        // The process may have ended.
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
    }
}

/// rdtgroup_tasks_write: lists, in order, up to the first that cannot be moved.
pub(crate) fn a_list_stops_at_the_first_that_cannot_be_moved(mount: &Mount) -> Trial {
    let group = mount.group("web")?;
    let shells = [Shell::start(0)?, Shell::start(0)?, Shell::start(0)?];
    let [one, two, three] = [&shells[0], &shells[1], &shells[2]].map(Shell::pid);
    let words = format!("No task {NOBODY}\nError while processing task {NOBODY}\n");
    let text = format!("{one}, {two},{NOBODY},{three}\n");
    match mount.refuses(&group.file("tasks"), &text, Errno::SRCH, &words) {
        Err(_) if mount.is_the_kernels() && group.read("tasks")?.is_empty() => {
            return not("this kernel takes one id at a time (before Linux 6.7)");
        }
        outcome => outcome?,
    }
    assert!(group.has(one)? && group.has(two)? && !group.has(three)?);
    Ok(Shown::Kept)
}

/// rdtgroup_tasks_write: text that is no thread id.
pub(crate) fn what_is_no_thread_is_refused(mount: &Mount) -> Trial {
    let group = mount.group("web")?;
    let old = mount.is_the_kernels();
    for (text, errno, words) in [
        (format!("{NOBODY}\n"), Errno::SRCH, format!("No task {NOBODY}\nError while processing task {NOBODY}\n")),
        ("x\n".to_owned(), Errno::INVAL, "Task list parsing error pid x\n".to_owned()),
        ("-5\n".to_owned(), Errno::INVAL, "Invalid pid -5\n".to_owned()),
    ] {
        match mount.refuses(&group.file("tasks"), &text, errno, &words) {
            // Before lists, kernels returned less.
            Err(_) if old => assert_eq!(group.write("tasks", &text), Err(errno)),
            outcome => outcome?,
        }
    }
    group.write("tasks", "\n").or_else(|errno| if old { Ok(()) } else { Err(errno) })?;
    assert_eq!(group.read("tasks")?, "");
    Ok(Shown::Kept)
}

/// rdtgroup_task_write_permission: root, and the owner of the thread.
pub(crate) fn only_root_and_its_owner_move_a_thread(mount: &Mount) -> Trial {
    let group = mount.group("web")?;
    std::os::unix::fs::chown(group.file("tasks"), Some(NOBODY_UID), None)?;
    let (roots, nobodys) = (Shell::start(0)?, Shell::start(NOBODY_UID)?);
    let by_nobody = |pid: i32| -> Result<bool, Failed> {
        let mut shell = Command::new("/bin/sh");
        shell.args(["-c", &format!("echo {pid} 2>/dev/null > '{}'", group.file("tasks").display())]);
        Ok(shell.uid(NOBODY_UID).stderr(std::process::Stdio::null()).status()?.success())
    };
    assert!(!by_nobody(roots.pid())?);
    let words = format!("No permission to move task {0}\nError while processing task {0}\n", roots.pid());
    assert!(words.starts_with(&mount.status()?) || mount.status()? == words, "{}", mount.status()?);
    assert!(by_nobody(nobodys.pid())?, "{}", mount.status()?);
    assert!(group.has(nobodys.pid())? && !group.has(roots.pid())?);
    Ok(Shown::Kept)
}

/// A monitoring group takes only threads of its control group.
pub(crate) fn a_monitoring_group_takes_only_what_its_control_group_has(mount: &Mount) -> Trial {
    if !mount.monitors {
        return not("nothing is monitored here");
    }
    let group = mount.group("web")?;
    let (vm, other) = (group.monitor("vm")?, group.monitor("other")?);
    let shell = Shell::start(0)?;
    let pid = shell.pid();
    let words = format!("Can't move task to different control group\nError while processing task {pid}\n");
    match mount.refuses(&vm.file("tasks"), &format!("{pid}\n"), Errno::INVAL, &words) {
        Err(_) if mount.is_the_kernels() => assert_eq!(vm.write("tasks", &format!("{pid}\n")), Err(Errno::INVAL)),
        outcome => outcome?,
    }
    group.write("tasks", &pid.to_string())?;
    vm.write("tasks", &pid.to_string())?;
    assert!(vm.has(pid)? && group.has(pid)?, "a control group has those of its monitoring groups");
    other.write("tasks", &pid.to_string())?;
    assert!(other.has(pid)? && !vm.has(pid)?);
    drop(other);
    assert!(group.has(pid)?, "those of a removed monitoring group stay in its control group");
    let root = mount.root.clone();
    drop(vm);
    drop(group);
    let everywhere = std::fs::read_to_string(root.join("tasks"))?;
    assert!(everywhere.lines().any(|line| line == pid.to_string()), "and then go to the default group");
    Ok(Shown::Kept)
}

/// rdtgroup_cpus_write.
pub(crate) fn cpus_that_cannot_be_given_are_refused(mount: &Mount) -> Trial {
    let group = mount.group("web")?;
    assert_eq!(group.read("cpus_list")?, "\n");
    for (file, text) in [("cpus_list", "8000\n"), ("cpus_list", "0-8000\n")] {
        let words = "Can only assign online CPUs\n";
        match mount.refuses(&group.file(file), text, Errno::INVAL, words) {
            // Larger than a kernel's masks are.
            Err(_) if mount.is_the_kernels() => assert!(group.write(file, text).is_err()),
            outcome => outcome?,
        }
    }
    for file in ["cpus", "cpus_list"] {
        mount.refuses(&group.file(file), "nonsense\n", Errno::INVAL, "Bad CPU list/mask\n")?;
    }
    if mount.read("cpus_list")? != "\n" {
        let words = "Can't drop CPUs from default group\n";
        mount.refuses(&mount.root.join("cpus_list"), "\n", Errno::INVAL, words)?;
    }
    Ok(Shown::Kept)
}

/// Each CPU is in one control group, and in at most one monitoring group of that; each write to the control group takes
/// all of them from its monitoring groups (cpus_ctrl_write).
pub(crate) fn cpus_are_of_one_group(mount: &Mount) -> Trial {
    if mount.is_the_kernels() {
        return not("the default group's CPUs would have to be given away");
    }
    let group = mount.group("web")?;
    assert_eq!(mount.read("cpus_list")?, "0-7\n");
    group.write("cpus_list", "4-7")?;
    assert_eq!((mount.read("cpus_list")?, group.read("cpus")?), ("0-3\n".to_owned(), "f0\n".to_owned()));
    let (vm, other) = (group.monitor("vm")?, group.monitor("other")?);
    let words = "Can only add CPUs to mongroup that belong to parent\n";
    mount.refuses(&vm.file("cpus_list"), "0\n", Errno::INVAL, words)?;
    vm.write("cpus", "f0\n")?;
    other.write("cpus", "30\n")?;
    assert_eq!(vm.read("cpus_list")?, "6-7\n");
    let away = group.path.with_file_name("vm");
    assert!(std::fs::rename(&vm.path, &away).is_err());
    let second = mount.group("second")?;
    let moved = std::fs::rename(&vm.path, second.file("mon_groups/vm"));
    mount.said(
        "rename",
        moved.map_err(|error| super::mount::errno_of(&error)),
        Errno::PERM,
        "Cannot move a MON group that monitors CPUs\n",
    )?;
    group.write("cpus_list", "7")?;
    assert_eq!((vm.read("cpus_list")?, mount.read("cpus_list")?), ("\n".to_owned(), "0-6\n".to_owned()));
    drop(second);
    drop((vm, other));
    drop(group);
    assert_eq!(mount.read("cpus_list")?, "0-7\n");
    Ok(Shown::Kept)
}
