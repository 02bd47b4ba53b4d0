//! `masu set`.

use std::collections::BTreeMap;
use std::io::Write;

use contract::status_page::{self, Switches};
use hugepages::Refusal;
use hugepages::act::{FullPromotions, Split, demote_all, promote_full};
use hugepages::count::{full_windows, huge_windows};
use hugepages::program::{Program, RunningProgram};
use hugepages::rate_limiter::{self, RateLimiter};
use hugepages::torn::{STAYS, Torn};
use linux::injection::{self, NotCalled};
use linux::memory_file::MemoryFile;
use linux::status::{HugePages, Seccomp, Status, status};
use linux::{Error, Pid, Untrusted, maps};
use rustix::fs::{MemfdFlags, fstat, major, memfd_create, minor};
use rustix::io::Errno;
use serde::Serialize;
use units::{Address, Bytes};

use crate::args::{SetTask, Word};
use crate::failure::Failure;
use crate::open::{Purpose, admit, each, hold, may_call};
use crate::terminal::print;
use crate::terminal::table::Table;
use crate::terminal::unwritten;
use crate::{Done, HOST, privileges};

/// Request in the words of the command line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Wish {
    pids: Vec<Pid>,
    huge: Option<bool>,
    align: Option<bool>,
}

/// The JSON output for each process.
#[derive(Debug, Serialize)]
struct Report {
    pid: Pid,
    name: Untrusted,
    /// Reason why huge=off could not be set; what needs no call in the process was done.
    #[serde(skip_serializing_if = "Option::is_none")]
    not_set: Option<String>,
    #[serde(skip)]
    failure: Option<Failure>,
    /// Read back from the kernel.
    huge_pages_allowed: bool,
    /// Whether large mappings start on a window; absent when not requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    aligned: Option<bool>,
    windows_huge_before: u64,
    windows_huge_after: u64,
    windows_split: u64,
    windows_made_huge: u64,
    /// Fully resident windows that were not made huge, by reason.
    windows_refused: BTreeMap<Refusal, u64>,
    /// The process called exec while its windows were promoted.
    became_another_program: bool,
    windows_stayed_huge: u64,
    /// The same, by reason.
    windows_not_split: BTreeMap<Refusal, u64>,
    returned_bytes: Bytes,
    /// Windows that the process had given back in part, whose blocks were split, and the memory that this freed.
    torn_windows: u64,
    torn_returned_bytes: Bytes,
    torn_left_windows: u64,
    torn_left_bytes: Bytes,
    torn_on_host: u64,
    rss_before_bytes: Bytes,
    rss_after_bytes: Bytes,
}

pub fn run(task: &SetTask) -> Result<Done, Failure> {
    let wish = wish(&task.words)?;
    let is_filtered = |pid: &Pid| status(&*HOST, *pid).is_ok_and(|found| found.seccomp == Seccomp::Filtered);
    if !wish.pids.iter().any(is_filtered) {
        privileges::keep_for_unfiltered(task)?;
    }
    let (reports, mut done) = each(&wish.pids, |pid| set(pid, &wish))?;
    done = done.max(unwritten::report_of_work(write(&reports, task.json)));
    for report in &reports {
        if let Some(failure) = &report.failure {
            print::failure(failure);
            print::note(format_args!("{}", not_forbidden(report)));
            done = Done::InPart;
        }
        for (why, windows) in &report.windows_not_split {
            let (pid, why) = (report.pid, why.explanation());
            print::note(format_args!("{windows} windows of process {pid} stayed huge: {why}"));
            done = Done::InPart;
        }
        for (why, windows) in &report.windows_refused {
            let (pid, why) = (report.pid, why.explanation());
            print::note(format_args!("{windows} full windows of process {pid} were not made huge: {why}"));
            done = Done::InPart;
        }
    }
    Ok(done)
}

fn write(reports: &[Report], json: bool) -> Result<(), Failure> {
    let mut out = print::out();
    for report in reports {
        if json {
            serde_json::to_writer(&mut out, report)?;
            writeln!(out)?;
        } else {
            print(&mut out, report)?;
        }
    }
    Ok(())
}

/// Sorts the words. Contradictions and missing words are errors.
fn wish(words: &[Word]) -> Result<Wish, Failure> {
    const REMEDY: &str = "For example: masu set 4121 huge=off";
    let mut wish = Wish::default();
    for word in words {
        let (name, setting, value) = match *word {
            Word::Process(pid) => {
                wish.pids.push(pid);
                continue;
            }
            Word::Huge(value) => ("huge", &mut wish.huge, value),
            Word::Align(value) => ("align", &mut wish.align, value),
        };
        if setting.replace(value).is_some_and(|before| before != value) {
            return Err(Failure::new(format!("{name}=on and {name}=off: expected one of the two")).remedy(REMEDY));
        }
    }
    wish.pids.sort_unstable();
    wish.pids.dedup();
    if wish.pids.is_empty() {
        return Err(Failure::new("no process: expected at least one process id").remedy(REMEDY));
    }
    if wish.huge.is_none() && wish.align.is_none() {
        let line = "nothing to set: expected huge=on, huge=off, align=on or align=off";
        return Err(Failure::new(line).remedy(REMEDY));
    }
    Ok(wish)
}

fn set(pid: Pid, wish: &Wish) -> Result<Report, Failure> {
    let found = admit(pid, Purpose::Change)?;
    let _held = hold(pid, Purpose::Change)?;
    let failed = |error: Error| Failure::at_process(&error);
    let program = RunningProgram::open(&*HOST, pid).map_err(failed)?;
    let huge = || huge_windows(&*HOST, pid).map_err(failed);
    let (huge_before, rss_before) = (huge()?, program.resident_exact().map_err(failed)?);
    // Steps that may be refused come first, so that nothing is done by half.
    let switch = wish.align.map(|on| Switch::find(pid).map(|switch| (switch, on))).transpose()?;
    let mut not_set = None;
    let (mut split, mut made) = (Split::default(), FullPromotions::default());
    let mut torn = Torn::default();
    if let Some(on) = wish.huge {
        let wanted = if on { HugePages::Allowed } else { HugePages::Forbidden };
        if found.huge_pages != wanted {
            match forbid(pid, &found, !on) {
                // Splitting its huge pages needs no call in the process.
                Err((failure, false)) if !on => not_set = Some(failure),
                other => other.map_err(|(failure, _)| failure)?,
            }
        }
        if on {
            let mut pace = RateLimiter::default();
            let mut rest = |took| std::thread::sleep(pace.pause_after(took, rate_limiter::MEASURED));
            made = promote_full(&program, &full_windows(&*HOST, pid).map_err(failed)?, &mut rest).map_err(failed)?;
        } else {
            split = demote_all(&program, &huge()?).map_err(failed)?;
            torn.split_all(&program, &|| false).map_err(failed)?;
        }
    }
    let aligned = switch.map(|(switch, on)| switch.set(on)).transpose()?;
    let now = status(&*HOST, pid).map_err(failed)?;
    if now.zombie {
        return Err(failed(Error::of_process("read the memory of", format!("process {pid}"), Errno::SRCH)));
    }
    let allowed = now.huge_pages != HugePages::Forbidden;
    if not_set.is_none() && wish.huge.is_some_and(|on| on != allowed) {
        let line = format!("cannot change process {pid}: the call was made, and THP_enabled is still as it was");
        return Err(Failure::new(line).remedy("The program set it again; look whether it does so by itself."));
    }
    Ok(Report {
        pid,
        name: now.name,
        not_set: not_set.as_ref().map(|failure: &Failure| failure.line().to_owned()),
        failure: not_set,
        huge_pages_allowed: allowed,
        aligned,
        windows_huge_before: huge_before.len() as u64,
        windows_huge_after: huge()?.len() as u64,
        windows_split: split.windows,
        windows_made_huge: made.windows,
        windows_refused: made.refused,
        became_another_program: made.is_another,
        windows_stayed_huge: split.stayed.values().sum(),
        windows_not_split: split.stayed,
        returned_bytes: split.returned,
        torn_windows: torn.split,
        torn_returned_bytes: torn.returned,
        torn_left_windows: torn.stays().0,
        torn_left_bytes: torn.stays().1,
        torn_on_host: torn.maybe_stays(&program),
        rss_before_bytes: rss_before,
        rss_after_bytes: program.resident_exact().map_err(failed)?,
    })
}

/// Has the process forbid huge pages for itself, or allow them. After a failure: the message, and whether the process
/// ended.
fn forbid(pid: Pid, found: &Status, forbid: bool) -> Result<(), (Failure, bool)> {
    may_call(pid, found).map_err(|failure| (failure, false))?;
    injection::forbid_huge_pages(&*HOST, pid, forbid).map_err(|why| (not_called(&why), why.is_gone()))
}

/// Switch in a program that aligns its large mappings. It is on the status page that `masu run` shares with the
/// programs it starts; other programs do not read one.
struct Switch {
    /// The memory with the switch: that of the same program while this file is open.
    memory: MemoryFile,
    at: Address,
}

impl Switch {
    fn find(pid: Pid) -> Result<Switch, Failure> {
        let failed = |error: Error| Failure::at_process(&error);
        let memory = MemoryFile::open(pid).map_err(failed)?;
        let name = format!("/memfd:{} (deleted)", status_page::NAME);
        let mappings = maps::maps(&*HOST, pid).map_err(failed)?;
        // A name is not enough: a file on a network file system may have it too, and reading that waits for its server.
        let own = memfd_create(status_page::NAME, MemfdFlags::CLOEXEC).and_then(fstat);
        let device = own.map(|of| (major(of.st_dev), minor(of.st_dev))).ok();
        let is_board = |mapping: &&maps::Mapping| {
            mapping.path == name.as_str() && mapping.permissions.shared && Some(mapping.device) == device
        };
        let found = mappings.iter().find(is_board);
        let mut at = None;
        if let Some(mapping) = found {
            let mut bytes = vec![0; status_page::BYTES];
            memory.read(mapping.range.start(), &mut bytes).map_err(failed)?;
            let words: Vec<u32> = bytes.as_chunks().0.iter().map(|word| u32::from_ne_bytes(*word)).collect();
            let place = status_page::find_switches(&words, pid.0.cast_unsigned());
            at = place.map(|(offset, _)| Address(mapping.range.start().0 + offset as u64));
        }
        at.map(|at| Switch { memory, at }).ok_or_else(|| {
            let line =
                format!("cannot change process {pid}: align= is for programs started by masu run, and it was not");
            Failure::new(line).remedy("Without align= the rest is done; huge=off and huge=on work on any program.")
        })
    }

    /// Sets the switch, and returns its new state.
    fn set(&self, on: bool) -> Result<bool, Failure> {
        let failed = |error: Error| Failure::at_process(&error);
        self.memory.write(self.at, &Switches::new(on).word().to_ne_bytes()).map_err(failed)?;
        let mut now = [0; 4];
        self.memory.read(self.at, &mut now).map_err(failed)?;
        Ok(u32::from_ne_bytes(now) == Switches::new(true).word())
    }
}

/// Explains a call that could not be made.
fn not_called(why: &NotCalled) -> Failure {
    let failure = Failure::new(why);
    match why {
        NotCalled::Kernel(error) => match error {
            Error::Gone(_) => Failure::at_process(error),
            error if error.is_unanswered() => Failure::at_process(error),
            Error::Denied(_) => failure
                .remedy("Run as root, or with CAP_SYS_PTRACE; kernel.yama.ptrace_scope=3 forbids it to everybody."),
            Error::Unsupported(_) => failure.remedy("This works on x86-64 only."),
            Error::Malformed { .. } | Error::Other(_) => failure.remedy("Nothing was changed in it; try again."),
        },
        NotCalled::Frozen(_, group) => failure.remedy(format!("Thaw the group, then try again; its files are in {group}.")),
        NotCalled::Filtered(_, Ok(_)) => failure.remedy(
            "Restart it with huge pages as you want them, or allow prctl(PR_SET_THP_DISABLE) in its sandbox.",
        ),
        NotCalled::Filtered(_, Err(_)) => failure.remedy(
            "Reading a filter takes CAP_SYS_ADMIN on the host, and a masu without a filter of its own: run it as root outside of \
             containers.",
        ),
        NotCalled::NoStop(pid) => failure.remedy(format!(
            "Nothing was changed in it. /proc/{pid}/wchan names what it waits for: a disk, a server, or the child of a vfork."
        )),
        NotCalled::Transfer(_) => failure.remedy("Nothing was changed in it. Try again when its pipe or connection is served."),
        NotCalled::Exec(pid) => failure.remedy(format!("Look at what process {pid} is now, then try again.")),
        NotCalled::Foreign(_) => {
            failure.remedy("A program that changes its own code may do this; if it goes on, the program resists.")
        }
        NotCalled::NoInstruction(_) => {
            failure.remedy("Nothing was changed in it. Start it with huge pages as you want them: masu run --huge.")
        }
        NotCalled::Unfinished(..) => {
            failure.remedy("The thread runs on as it was after that; THP_enabled in its /proc/PID/status shows the result.")
        }
    }
}

/// Effect of huge=off where the process could not be made to forbid huge pages.
fn not_forbidden(report: &Report) -> String {
    let (split, torn) = (report.windows_split, report.torn_windows);
    let present = match (split, torn, report.windows_stayed_huge) {
        (0, 0, 0) if report.windows_huge_before == 0 => "it had none".to_owned(),
        (0, 0, 0) => "its present ones were gone before masu split them".to_owned(),
        (0, 0, stayed) => format!("none of its {stayed} present ones was split"),
        (split, torn, 0) => format!("its {} present ones were split", split + torn),
        (split, torn, stayed) => format!("{} of its {} present ones were split", split + torn, split + torn + stayed),
    };
    format!("new memory of process {} may get huge pages as before; {present}", report.pid)
}

fn print(out: &mut impl Write, report: &Report) -> std::io::Result<()> {
    let allowed = if report.huge_pages_allowed { "allowed" } else { "forbidden" };
    write!(out, "process {} ({})   huge pages {allowed}", report.pid, report.name)?;
    match report.aligned {
        Some(true) => writeln!(out, "   large mappings aligned")?,
        Some(false) => writeln!(out, "   large mappings not aligned")?,
        None => writeln!(out)?,
    }
    let mut table = Table::new(["", "before", "after"]);
    table.row([
        "huge windows, 2 MiB each".to_owned(),
        report.windows_huge_before.to_string(),
        report.windows_huge_after.to_string(),
    ]);
    let (before, after) = (report.rss_before_bytes, report.rss_after_bytes);
    table.row(["resident memory".to_owned(), before.to_string(), after.to_string()]);
    table.write(out, "")?;
    if report.windows_made_huge > 0 {
        writeln!(out, "{} windows, resident in full, were made huge", report.windows_made_huge)?;
    }
    if report.became_another_program {
        writeln!(out, "it became another program (exec) meanwhile: the windows made huge before that are gone")?;
    }
    if report.windows_split > 0 {
        writeln!(out, "{} windows were split, which returned {}", report.windows_split, report.returned_bytes)?;
    }
    if report.torn_windows > 0 {
        let (windows, freed) = (report.torn_windows, report.torn_returned_bytes);
        writeln!(out, "{windows} windows that it had given back in part were split, which freed {freed}")?;
    }
    if report.torn_left_windows > 0 {
        let (windows, kept) = (report.torn_left_windows, report.torn_left_bytes);
        writeln!(out, "{windows} windows that it had given back in part stay charged with {kept}: {STAYS}")?;
    }
    if report.torn_on_host > 0 {
        let (count, pid) = (report.torn_on_host, report.pid);
        writeln!(out, "{count} torn huge pages of the host stay; `masu stat {pid}` shows its part ({STAYS})")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(words: &[Word]) -> String {
        wish(words).unwrap_err().to_string()
    }

    #[test]
    fn processes_and_settings_stand_in_any_order() {
        let words = [Word::Huge(false), Word::Process(Pid(9)), Word::Process(Pid(7)), Word::Process(Pid(9))];
        let expected = Wish { pids: vec![Pid(7), Pid(9)], huge: Some(false), align: None };
        assert_eq!(wish(&words), Ok(expected));
    }

    #[test]
    fn what_is_missing_or_contradicts_itself_is_said() {
        assert!(said(&[Word::Huge(false)]).starts_with("masu: no process: expected at least one process id\n"));
        assert!(said(&[Word::Process(Pid(7))]).starts_with("masu: nothing to set: expected huge=on"));
        let both = [Word::Process(Pid(7)), Word::Huge(true), Word::Huge(false)];
        assert!(said(&both).starts_with("masu: huge=on and huge=off: expected one of the two\n"));
        assert!(wish(&[Word::Process(Pid(7)), Word::Huge(true), Word::Huge(true)]).is_ok(), "said twice is said");
    }

    #[test]
    fn alignment_is_refused_for_a_program_that_masu_did_not_start() {
        let said = Switch::find(Pid::own()).err().map(|failure| failure.to_string()).unwrap_or_default();
        assert!(said.contains("align= is for programs started by masu run, and it was not"), "{said}");
    }
}
