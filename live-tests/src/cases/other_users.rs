//! Hostile programs of other users beside masu: they take all the resources that they can get, and choose their own
//! names.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use linux::kpageflags::FrameTable;
use linux::maps::maps;
use linux::pagemap::Pagemap;
use linux::{Pid, Rooted};
use rustix::process::Signal;

use super::Outcome;
use super::aging::Aging;
use super::command::{masu, said};
use super::llc_run::{Daemon, Place};
use super::programs::Running;
use super::redis::wait_until;
use super::run::Result;
use crate::group::Group;
use crate::host::{Host, LiveTest, tests};
use crate::program::FLAG;

/// Tests of this file, and their requirements.
pub(crate) const TESTS: &[LiveTest] = tests! {
    other_users requires [Root, MasuCommand];
    who_takes_all_that_masu_can_hold_takes_nothing_from_others [PageFrames, MemoryGroups, Shell];
    an_impostor_by_name_does_not_enter_a_group [Fuse, Shell, ResctrlEmulator, RealProcessor];
    a_program_that_anybody_could_be_is_refused [Fuse, ResctrlEmulator, RealProcessor];
};

const ATTACKER: u32 = 4001;
const SECOND: u32 = 4003;
const VICTIM: u32 = 4002;

/// A running program of `program/other_users.rs`.
struct OtherUser(Running);

impl OtherUser {
    fn start(user: u32, folder: Option<&PathBuf>, arguments: &[&str]) -> Result<OtherUser> {
        // The folder of the tests may be closed to this user.
        let program = File::open(std::env::current_exe()?)?;
        rustix::io::fcntl_setfd(&program, rustix::io::FdFlags::empty())?;
        let mut command = Command::new(format!("/proc/self/fd/{}", program.as_raw_fd()));
        command.arg(FLAG).args(arguments).uid(user).gid(user);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut running = Running(command.spawn()?);
        let mut line = String::new();
        BufReader::new(running.0.stdout.take().ok_or("no output")?).read_line(&mut line)?;
        if !line.starts_with("mapped=") && !line.starts_with("called=") {
            return Err(format!("the program of another user said {line:?}").into());
        }
        if let Some(folder) = folder {
            fs::write(folder.join("cgroup.procs"), running.pid().to_string())?;
        }
        Ok(OtherUser(running))
    }

    fn pid(&self) -> Pid {
        Pid(self.0.pid())
    }

    /// Number of its file pages that masu has locked.
    fn held(&self) -> Result<usize> {
        let (frames, pagemap) = (FrameTable::open()?, Pagemap::open(self.pid())?);
        let mut held = 0;
        for mapping in
            maps(&Rooted::host(), self.pid())?.iter().filter(|of| of.path.to_string().contains("memfd:other-user"))
        {
            for frame in pagemap.entries(mapping.range)?.into_iter().filter_map(|entry| entry.frame()) {
                held += usize::from(frames.flags(frame)?.is_locked());
            }
        }
        Ok(held)
    }

    fn until_held(&self, pages: usize) -> Outcome {
        wait_until("its pages are held", || self.held().is_ok_and(|held| held == pages))
    }
}

/// Control groups below one of ours.
struct Below {
    group: Group,
    folders: Vec<PathBuf>,
}

impl Below {
    fn make(names: &[&str]) -> Result<Below> {
        let group = Group::make("other-users")?;
        let top = group.procs().parent().ok_or("no folder")?.to_owned();
        let folders: Vec<PathBuf> = names.iter().map(|name| top.join(name)).collect();
        let below = Below { group, folders };
        below.folders.iter().try_for_each(fs::create_dir)?;
        Ok(below)
    }
}

impl Drop for Below {
    fn drop(&mut self) {
        let all_gone = || self.folders.iter().all(|folder| fs::remove_dir(folder).is_ok() || !folder.exists());
        if let Err(error) = wait_until("its groups are gone", all_gone) {
            eprintln!("cannot remove {:?}: {error:?}", self.folders);
        }
    }
}

/// Two users of one cgroup map more files, and more memory, than masu can lock. A user with less than its share has all
/// of it locked: in a separate cgroup and in theirs, started before masu or after its budget was full; and once they
/// have gone, a user with more than that.
fn who_takes_all_that_masu_can_hold_takes_nothing_from_others(_: &Host) -> Outcome {
    const FILES: &str = "300";
    let below = Below::make(&["attackers", "victims"])?;
    let (theirs, own) = (below.folders.first(), below.folders.get(1));
    let mut attackers = Vec::new();
    for user in [ATTACKER, SECOND] {
        attackers.push(OtherUser::start(user, theirs, &["maps", FILES, "1"])?);
        attackers.push(OtherUser::start(user, theirs, &["maps", "1", "16384"])?);
    }
    let first = OtherUser::start(VICTIM, own, &["maps", "4", "256"])?;
    // 192 files at most, of over 600, and 64 MiB, of 128 and the file of these tests, which all of them map.
    let mut shell = Command::new("/bin/sh");
    shell.args(["-c", "ulimit -n 256; exec \"$0\" \"$@\""]).arg(masu()?.get_program());
    let aging = Aging::start_by(shell, &["--mapped", "100", "--budget", "64MiB", "--cgroup", &below.group.name()])?;
    first.until_held(1024)?;
    let left_out = aging.wait_for(|line| line["event"] == "left_out" && line["why"].to_string().contains("files"))?;
    assert!(left_out["count"].as_u64() > Some(400), "{left_out}");
    let user = left_out["owner"]["user"].as_u64().unwrap_or_default();
    assert!([u64::from(ATTACKER), u64::from(SECOND)].contains(&user), "{left_out}");
    assert!(left_out["owner"]["group"].to_string().ends_with("/attackers\""), "{left_out}");
    let in_theirs = OtherUser::start(VICTIM, theirs, &["maps", "2", "128"])?;
    in_theirs.until_held(256)?;
    let later = OtherUser::start(VICTIM + 10, own, &["maps", "2", "512"])?;
    later.until_held(1024)?;
    assert_eq!(first.held()?, 1024);
    drop(attackers);
    // More than its share was before.
    let after = OtherUser::start(VICTIM + 20, own, &["maps", "10", "512"])?;
    after.until_held(5120)?;
    assert_eq!((first.held()?, in_theirs.held()?, later.held()?), (1024, 256, 1024));
    drop((first, in_theirs, later, after));
    aging.end()?;
    Ok(())
}

/// A process that calls itself like another user's program does not get into that program's group.
fn an_impostor_by_name_does_not_enter_a_group(_: &Host) -> Outcome {
    let place = Place::make(&[])?;
    let (real, impostor) = (
        OtherUser::start(VICTIM, None, &["called", "asterisk"])?,
        OtherUser::start(ATTACKER, None, &["called", "asterisk"])?,
    );
    let odd = OtherUser::start(VICTIM, None, &["called", "a) Z 1 1 ("])?;
    let own = std::env::current_exe()?.canonicalize()?;
    let config = format!(
        "policy = \"equal\"\ninterval_s = 0.1\n[[program]]\nname = \"voice\"\nuser = {VICTIM}\ncommand = \"asterisk\"\ndomain = \"shop\"\n\
         [[program]]\nname = \"odd\"\nuser = {VICTIM}\ncommand = \"a) Z 1 1 (\"\n\
         [[program]]\nname = \"file\"\nuser = {ATTACKER}\nexecutable = \"{}\"\n\
         [[program]]\nname = \"copy\"\nexecutable = \"/bin/sh\"\nuser = {ATTACKER}\n",
        own.display()
    );
    let mut daemon = Daemon::start(&place.with(&config)?)?;
    daemon.until_event("ready")?;
    let tasks = |group: &str| -> Result<Vec<String>> {
        Ok(place.file(&format!("masu-{group}/tasks"))?.lines().map(str::to_owned).collect())
    };
    for (group, one) in [("voice", &real), ("odd", &odd), ("file", &impostor)] {
        wait_until("it is in its group", || tasks(group).is_ok_and(|tasks| tasks == [one.pid().to_string()]))?;
    }
    let until = Instant::now() + Duration::from_millis(300);
    while Instant::now() < until {
        assert_eq!(tasks("voice")?, [real.pid().to_string()]);
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(tasks("copy").is_err() || tasks("copy")?.is_empty());
    assert_eq!(daemon.end(Some(Signal::TERM))?.1.code(), 0);
    Ok(())
}

/// Every way of naming a program is refused if other users could choose the processes that it matches, each with its
/// line.
fn a_program_that_anybody_could_be_is_refused(_: &Host) -> Outcome {
    let place = Place::make(&[])?;
    let before = place.tree()?;
    let cases = [
        ("command = \"asterisk\"", 4, "command = \"asterisk\" without a user: any process may call itself so"),
        ("executable = \"/bin/sh\"\ndomain = \"shop\"", 5, "domain with an executable alone: any user may run it"),
        ("user = \"nobody-here\"", 4, "user = \"nobody-here\": not in /etc/passwd"),
    ];
    for (whom, line, expected) in cases {
        let arguments = place.with(&format!("policy = \"equal\"\n[[program]]\nname = \"voice\"\n{whom}\n"))?;
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let said = said(&[&["llc", "run"][..], &arguments].concat())?;
        let expected = format!("masu: {} line {line}: {expected}", place.config().display());
        assert!(said.code() == 2 && said.first_line().starts_with(&expected), "{said:?}");
    }
    assert_eq!(place.tree()?, before);
    Ok(())
}
