//! Least privilege: the capabilities that each command keeps.
//!
//! All others are given up once the arguments are known, before reading anything that another user wrote. The table in
//! docs/security.md lists the same for users; a test compares the two.
//!
//! Not in the sets: CAP_BPF and CAP_PERFMON beside CAP_SYS_ADMIN, which covers them, and, except for files by handle,
//! CAP_DAC_READ_SEARCH beside CAP_DAC_OVERRIDE. Root's files (`/proc/sys`, `/sys`, `/run/masu`) need no capability,
//! since user 0 owns them.

use linux::capabilities::Capabilities;
use linux::capabilities::Capability::{
    self, Bpf, DacOverride, DacReadSearch, Fowner, IpcLock, Kill, Perfmon, Setgid, Setuid, SysAdmin, SysNice, SysPtrace,
};

use crate::args::{AgingTask, Huge, LlcPart, RunTask, SetTask, Task, Word};
use crate::failure::Failure;

/// A command as the table names it, and its capabilities.
type Row = (&'static str, Capabilities);

const COMPLETIONS: Row = ("completions", Capabilities(0));
/// All is restored before the command begins.
const RESTORE: Row = ("restore", Capabilities(0));
/// Lists masu's capabilities on this host, and probes their uses on masu's own memory.
const FACTS: Row = ("facts", Capabilities::of(&Capability::ALL));
/// `clear_refs` is writable by its owner alone.
const PAGES: Row = ("pages", Capabilities::of(&[DacOverride, SysPtrace, Perfmon, Bpf]));
const ATTACH: Row = ("attach", Capabilities::of(&[DacOverride, SysPtrace, SysNice, Perfmon, Bpf]));
/// It attaches, and drops streamed pages as `aging` does, without frame numbers and settings. The process of the page has
/// another user.
const SERVE: Row = ("serve", ATTACH.1.and(Capabilities::of(&[DacReadSearch, Fowner, Setgid, Setuid])));
/// The socket of the service is root's.
const STATUS: Row = ("status", Capabilities::of(&[]));
/// Programs are notified by signals.
const TRACK: Row = ("track", Capabilities::of(&[DacOverride, Kill, SysPtrace, SysNice, Perfmon, Bpf]));
const STAT: Row = ("stat", Capabilities::of(&[DacReadSearch, SysPtrace, SysAdmin]));
/// Signals that arrived during the call are sent again. CAP_SYS_ADMIN reads seccomp filters.
const SET_HUGE: Row = ("set huge=", Capabilities::of(&[DacReadSearch, Kill, SysPtrace, SysAdmin, SysNice]));
/// The switch is in the program's memory, which only its owner may write.
const SET_ALIGN: Row = ("set align=", Capabilities::of(&[DacOverride, Kill, SysPtrace, SysAdmin, SysNice]));
const CENSUS: Row = ("census", Capabilities::of(&[DacReadSearch, SysPtrace, SysAdmin]));
/// Settings of control groups may belong to the user that the group is delegated to. CAP_FOWNER: whether pages of
/// another user's file are in memory (mincore, cachestat), and opening it without a new access time.
/// CAP_DAC_READ_SEARCH: opening files by handle, since CAP_DAC_OVERRIDE is not enough there.
const AGING: Row =
    ("aging", Capabilities::of(&[DacOverride, DacReadSearch, Fowner, IpcLock, SysPtrace, SysAdmin, SysNice]));
const AGING_COMMAND: Row = ("aging -- COMMAND", AGING.1.and(Capabilities::of(&[Kill])));
const AGING_REPLAY: Row = ("aging --replay", Capabilities::of(&[DacReadSearch]));
const LLC_SHARED: Row = ("llc shared", Capabilities::of(&[DacReadSearch, SysPtrace, SysAdmin]));
const LLC_PLAN: Row = ("llc plan", Capabilities::of(&[DacReadSearch, SysPtrace, SysAdmin]));
/// Groups are made in a folder that not even its owner may write to (resctrl: 0555).
const LLC_RUN: Row = ("llc run", Capabilities::of(&[DacOverride, SysPtrace, SysAdmin]));
/// Its files may belong to another user.
const LLC_SIMULATE: Row = ("llc simulate", Capabilities::of(&[DacOverride]));
const RUN_TOUCH: Row = ("run", Capabilities::of(&[DacReadSearch, Kill, SysPtrace, SysNice]));
const RUN_HOT: Row = ("run --huge hot", TRACK.1);
const RUN_OFF: Row = ("run --huge off", Capabilities::of(&[DacReadSearch, Kill, SysPtrace]));
const RUN_LOCAL: Row = ("run --local", Capabilities::of(&[DacReadSearch, Kill, SysPtrace]));

/// Frame numbers, which the kernel shows to CAP_SYS_ADMIN alone: for the counts of a report, and on a kernel without
/// `PAGEMAP_SCAN` for the content of a window.
const FRAMES: Capabilities = Capabilities::of(&[SysAdmin]);

/// Capabilities for restoring, before a command begins: settings of delegated groups, and whether the process that
/// changed them is alive where `/proc` hides processes.
pub const RESTORING: Capabilities = Capabilities::of(&[DacOverride, SysPtrace]).and(Capabilities::STEPS);

/// Capabilities to judge and open the files in the arguments of `run`: a program, a report, a store in a folder of
/// another user. Given up before the program is started.
const OPENING: Capabilities = Capabilities::of(&[DacOverride]).and(Capabilities::STEPS);

/// Capabilities that `task` keeps. `has_scan`: the kernel offers `PAGEMAP_SCAN`.
pub fn of(task: &Task, has_scan: bool) -> Capabilities {
    let (row, needs_scan) = match task {
        Task::Completions(_) => (COMPLETIONS, false),
        Task::Restore(_) => (RESTORE, false),
        Task::Facts(_) => (FACTS, false),
        Task::Pages(_) => (PAGES, true),
        Task::Attach(_) => (ATTACH, true),
        Task::Serve(_) => (SERVE, true),
        Task::Status(_) => (STATUS, false),
        Task::Track(_) => (TRACK, true),
        Task::Stat(_) => (STAT, true),
        Task::Set(task) => (of_set(task), true),
        Task::Census(_) => (CENSUS, false),
        Task::Aging(task) => (of_aging(task), false),
        Task::Llc(task) => (of_llc(&task.task), false),
        // A program that cannot be served at the first touch is served from outside.
        Task::Run(task) => {
            let hot = if task.huge == Huge::Touch { Huge::Hot } else { task.huge };
            return of_run(task, task.huge, !task.quiet, has_scan).and(of_run(task, hot, false, has_scan)).and(OPENING);
        }
    };
    if needs_scan && !has_scan { row.1.and(FRAMES) } else { row.1 }
}

fn of_set(task: &SetTask) -> Row {
    if task.words.iter().any(|word| matches!(word, Word::Align(_))) { SET_ALIGN } else { SET_HUGE }
}

fn of_aging(task: &AgingTask) -> Row {
    match task {
        task if task.replay.is_some() => AGING_REPLAY,
        task if task.command.is_empty() => AGING,
        _ => AGING_COMMAND,
    }
}

fn of_llc(task: &LlcPart) -> Row {
    match task {
        LlcPart::Shared(_) => LLC_SHARED,
        LlcPart::Plan(_) => LLC_PLAN,
        LlcPart::Run(_) => LLC_RUN,
        LlcPart::Simulate(_) => LLC_SIMULATE,
    }
}

/// Capabilities that `masu run` keeps beside a program served as `how`.
fn of_run(task: &RunTask, how: Huge, has_report: bool, has_scan: bool) -> Capabilities {
    let served = match how {
        _ if task.local.is_some() => return RUN_LOCAL.1,
        Huge::Touch => RUN_TOUCH.1,
        Huge::Hot => RUN_HOT.1,
        Huge::Off => RUN_OFF.1,
    };
    let needs_scan = how != Huge::Off && !has_scan;
    if has_report || needs_scan { served.and(FRAMES) } else { served }
}

/// Gives up the capabilities that `masu run` no longer needs once its files are open and the way of serving is known.
///
/// # Errors
/// As [`keep`].
pub fn keep_for_run(task: &RunTask, how: Huge, has_report: bool) -> Result<(), Failure> {
    keep(of_run(task, how, has_report, has_scan()))
}

/// Gives up what `masu set` needs for seccomp filters alone.
///
/// # Errors
/// As [`keep`].
pub fn keep_for_unfiltered(task: &SetTask) -> Result<(), Failure> {
    let row = of_set(task).1;
    keep(if has_scan() { Capabilities(row.0 & !FRAMES.0) } else { row })
}

/// Gives up all capabilities but `kept`.
///
/// # Errors
/// A filter over system calls forbids it.
pub fn keep(kept: Capabilities) -> Result<(), Failure> {
    linux::capabilities::restrict_to(kept).map_err(|errno| {
        let line = format!("cannot give up capabilities: {}", linux::describe(errno));
        Failure::new(line)
            .remedy("Allow capset and prctl in the filter over system calls (seccomp) under which masu runs.")
    })
}

/// Whether this kernel describes a range's pages without frame numbers.
pub fn has_scan() -> bool {
    linux::pagemap::has_scan()
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::Args;

    const ROWS: [Row; 22] = [
        COMPLETIONS,
        RESTORE,
        SERVE,
        STATUS,
        FACTS,
        PAGES,
        ATTACH,
        TRACK,
        STAT,
        SET_HUGE,
        SET_ALIGN,
        CENSUS,
        AGING,
        AGING_COMMAND,
        AGING_REPLAY,
        LLC_SHARED,
        LLC_PLAN,
        LLC_RUN,
        LLC_SIMULATE,
        RUN_TOUCH,
        RUN_HOT,
        RUN_OFF,
    ];

    fn names(kept: Capabilities) -> Vec<&'static str> {
        kept.known().map(Capability::name).collect()
    }

    fn kept(words: &[&str]) -> Capabilities {
        let words = ["masu"].iter().chain(words);
        of(&Args::try_parse_from(words).unwrap().task, true)
    }

    #[test]
    fn users_are_told_what_each_command_keeps() {
        let document = include_str!("../../../docs/security.md");
        let manual = include_str!("../../../man/extra/masu.roff");
        for (name, kept) in ROWS.into_iter().chain([RUN_LOCAL]) {
            let list = if kept == Capabilities(0) { "none".to_owned() } else { names(kept).join(", ") };
            let (words, all) = (list.replace("CAP_", ""), kept == FACTS.1);
            let row = format!("| `{name}` | {} |", if all { "all of these" } else { &words });
            assert!(document.contains(&row), "docs/security.md lacks: {row}");
            let entry = format!(".TP\n.B {}\n{}\n", name.replace('-', "\\-"), if all { "all of these" } else { &list });
            assert!(manual.contains(&entry), "man/extra/masu.roff lacks: {entry}");
        }
    }

    #[test]
    fn no_set_holds_what_another_capability_of_it_covers() {
        for (name, kept) in ROWS.into_iter().chain([RUN_LOCAL]).filter(|row| *row != FACTS) {
            let has = |capability| kept.contains(capability);
            assert!(!(has(SysAdmin) && (has(Bpf) || has(Perfmon))), "{name}");
            let by_handle = kept.contains(Fowner);
            assert_eq!(has(DacOverride) && has(DacReadSearch), by_handle, "{name}");
            assert_eq!(kept.known().count(), kept.0.count_ones() as usize, "{name}: only what has a name");
        }
    }

    #[test]
    fn the_set_is_that_of_the_command_and_of_its_arguments() {
        assert_eq!(kept(&["stat"]), STAT.1);
        assert_eq!(kept(&["set", "1", "huge=off"]), SET_HUGE.1);
        assert_eq!(kept(&["set", "1", "huge=off", "align=on"]), SET_ALIGN.1);
        assert_eq!(kept(&["aging", "--mapped", "100"]), AGING.1);
        assert_eq!(kept(&["aging", "--cache", "0", "--", "true"]), AGING_COMMAND.1);
        assert_eq!(kept(&["llc", "simulate", "file"]), LLC_SIMULATE.1);
        assert!(kept(&["run", "--", "true"]).contains(DacOverride), "until its files are open");
    }

    #[test]
    fn frame_numbers_are_asked_for_where_the_kernel_offers_no_scan_or_a_report_counts_them() {
        let task = |words: &[&str]| Args::try_parse_from([&["masu"], words].concat()).unwrap().task;
        for words in [&["attach", "1"][..], &["pages", "1"], &["track"]] {
            assert!(!of(&task(words), true).contains(SysAdmin), "{words:?}");
            assert!(of(&task(words), false).contains(SysAdmin), "{words:?}");
        }
        let Task::Run(run) = task(&["run", "--", "true"]) else { panic!("no run") };
        assert!(!of_run(&run, Huge::Touch, false, true).contains(SysAdmin));
        assert!(of_run(&run, Huge::Touch, true, true).contains(SysAdmin));
        assert!(!of_run(&run, Huge::Off, false, false).contains(SysAdmin));
    }

    const UNITS: [(&str, Row); 2] = [
        (include_str!("../../../integrations/systemd/masu.service"), SERVE),
        (include_str!("../../../integrations/systemd/masu-aging.service"), AGING),
    ];

    #[test]
    fn a_service_is_not_started_again_while_another_masu_holds_the_lock() {
        for (unit, (name, _)) in UNITS {
            let line = format!("RestartPreventExitStatus={}", crate::failure::HELD);
            assert!(unit.lines().any(|found| found == line), "{name}");
        }
    }

    #[test]
    fn a_service_may_do_what_the_command_keeps_and_restoring_needs() {
        for (unit, (name, kept)) in UNITS {
            let line = unit.lines().find_map(|line| line.strip_prefix("CapabilityBoundingSet=")).unwrap();
            let granted: Vec<&str> = line.split(' ').collect();
            assert_eq!(granted, names(kept), "{name}");
            // Without CAP_SETPCAP the bounding set stays as the service gives it, which is the same.
            assert!(names(RESTORING).iter().all(|name| granted.contains(name)), "{name}");
        }
    }
}
