//! `masu run`: starts a program on huge pages.

mod counts;
mod hot;
pub mod local;
pub mod report;
pub mod sizes;
mod watch;

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use contract::image::LeftOut;
use contract::settings::{PRELOAD, Settings};
use contract::status_page::Code;
use hugepages::trim;
use linux::{capabilities, memory_limit, thp};

use crate::args::{Huge, RunTask};
use crate::failure::Failure;
use crate::launch::child::{Child, Relay, end_as};
use crate::launch::command::{Loads, NOT_STARTED, NotStarted, find, loads, refuse_privileged};
use crate::launch::environment;
use crate::prohibition::{self, Inherited};
use crate::terminal::output_file::{empty, open_to_write};
use crate::terminal::print::{self, Clean};
use crate::{HOST, privileges};
use counts::{Counts, Shared};
use hot::Hot;
use report::{Report, StillRunning};
use rustix::io::Errno;
use watch::{Seen, Wanted, Watch};

/// Files that masu opens at most to start a program, by trial.
pub const FILES_OF_START: usize = 6;

/// Time from the start until a program with the library has taken a process slot, however slow its loader.
const SLOT_WITHIN: Duration = Duration::from_secs(2);

/// Processes that forbid huge pages and are named in a report; the number counts all.
const FORBIDDING_SHOWN: usize = 8;

/// Way of serving a program, with notes about it.
#[derive(Debug)]
struct Served {
    how: Huge,
    notes: Vec<String>,
}

pub fn run(task: &RunTask, relay: Result<Relay, Failure>) -> ExitCode {
    match relay.map_err(NotStarted::from).and_then(|relay| started(task, relay)) {
        Ok(status) => status,
        Err(NotStarted { failure, status }) => {
            print::failure(&failure);
            ExitCode::from(status)
        }
    }
}

/// Destination of the report.
enum Destination {
    Nowhere,
    Terminal,
    File(File),
}

fn started(task: &RunTask, relay: Relay) -> Result<ExitCode, NotStarted> {
    if let Some(local) = task.local {
        return local::started(task, local, relay);
    }
    let name = task.command.first().map(std::ffi::OsString::as_os_str).unwrap_or_default();
    let file = find(name, std::env::var_os("PATH"))?;
    let host = thp::settings(&*HOST).ok();
    let inherited = if task.huge == Huge::Off { Inherited::Nothing } else { prohibition::lift_own() };
    let mut served = serve_how(task, &file, host.as_ref(), &inherited)?;
    if let Inherited::Lifted(note) = inherited {
        served.notes.push(note);
    }
    if is_own_program(&file) {
        served.notes.push("the program is masu: if it runs another, see its own report".to_owned());
    }
    // The last step that can be refused, so that an existing file is emptied only for a run that starts.
    let destination = destination(task)?;
    destination.empty();
    let wanted = wanted(task, &mut served, !matches!(destination, Destination::Nowhere));
    privileges::keep_for_run(task, served.how, wanted.report)?;
    let memory = watch::new_status_page()
        .map_err(|errno| {
            let why = match errno {
                Errno::FBIG => "the limit of file sizes (`ulimit -f`) is below 64 KiB".to_owned(),
                _ => format!("cannot share memory with the programs: {}", linux::describe(errno)),
            };
            let touch = served.how == Huge::Touch;
            served.how = if touch { Huge::Off } else { served.how };
            let line = if touch { "runs without huge pages" } else { "not watched" };
            served.notes.push(format!("{line}: {why}"));
        })
        .ok();
    let mut changes = environment::without_ours(|name| std::env::var_os(name));
    if let (Huge::Touch, Some(memory)) = (served.how, &memory) {
        let status_page = memory.path();
        let sizes =
            host.as_ref().map_or(Ok(contract::placement::Sizes::NONE), |host| sizes::choose(&task.sizes, host))?;
        let settings = Settings {
            align: !task.no_align,
            stack: task.stack,
            code: task.code,
            alone: task.no_children,
            // As the C library itself decides: under `always` it has nothing to ask for.
            malloc: sizes.contains(contract::placement::Size::HUGE)
                && host.as_ref().is_some_and(|host| host.enabled == thp::Enabled::Madvise)
                && !environment::has_chosen_malloc(|name| std::env::var_os(name)),
            last_count: wanted.report,
            sizes,
            status_page: Some(&status_page),
        };
        changes =
            environment::variables(&environment::library(environment::NAME)?, &settings, |name| std::env::var_os(name));
        if environment::is_disabled() {
            changes = environment::without_ours(|name| std::env::var_os(name));
            served.how = Huge::Off;
            served.notes.push(format!("runs without huge pages: {} is set", contract::settings::DISABLE));
        }
        if !task.quiet {
            for missing in environment::missing_libraries(std::env::var_os(PRELOAD).as_deref()) {
                print::note(format_args!(
                    "LD_PRELOAD names {missing}, which is not there; the loader will say so and go on"
                ));
            }
        }
    }
    let mut child = Child::start(&file, &task.command, &changes, relay)?;
    let without_slot = (served.how != Huge::Touch).then_some(child.pid);
    // From here on the program runs: a failure becomes a note.
    let mut not_done = |what: &str, error: std::io::Error| served.notes.push(format!("{what}: {error}"));
    let counts = Shared::default();
    let watch = memory.filter(|_| served.how != Huge::Off || wanted.report).map(|memory| {
        Watch::begin(memory, Wanted { without_slot, ..wanted }, counts.clone())
            .map_err(|error| not_done("not watched", error))
    });
    let watch = watch.and_then(Result::ok);
    let hot = (served.how == Huge::Hot).then(|| {
        let hot = Hot::begin(child.pid, task.no_children, task.max_extra_rss, wanted.report.then(|| counts.clone()));
        hot.map_err(|error| not_done("not served from outside", error))
    });
    let hot = hot.and_then(Result::ok);
    let mut ended = child.wait_at_most(SLOT_WITHIN)?;
    if ended.is_none() && served.how == Huge::Touch && watch.as_ref().is_some_and(|watch| !watch.has_slot(child.pid)) {
        served.notes.push("the library was not loaded, for a reason that its file does not tell".to_owned());
    }
    let ended = match ended.take() {
        Some(ended) => ended,
        None => child.wait_and_look(name, task.quiet)?,
    };
    let seen = watch.map(Watch::end).unwrap_or_default();
    let outcome = hot.map(Hot::end).transpose();
    if !matches!(destination, Destination::Nowhere) {
        let mut report = Report::of(&task.command, task.huge, served.how, &ended);
        let counts = counts.lock();
        report.program_forbids = counts.forbidden.contains_key(&child.pid);
        fill(&mut report, seen, &counts, served.notes, outcome);
        // The program has run: a failure to write the report is printed, and does not change the status.
        if let Err(error) = write(&report, destination, task.json) {
            print::note(error.of_report());
        }
    }
    Ok(end_as(ended.status))
}

impl Destination {
    /// Empties the file, after the last step that can be refused.
    fn empty(&self) {
        if let Destination::File(file) = self {
            // A failure is one of the report, which is written at the end.
            let _ = empty(file);
        }
    }
}

/// Opens the report's file before anything is started: a run may take hours.
fn destination(task: &RunTask) -> Result<Destination, Failure> {
    match task.report.as_deref() {
        None if !task.quiet && print::err().is_terminal() => Ok(Destination::Terminal),
        None => Ok(Destination::Nowhere),
        Some(path) if path == Path::new("-") => Ok(Destination::Terminal),
        Some(path) => open_to_write(path).map(Destination::File).map_err(|error| {
            Failure::new(format!("cannot write the report to {}: {}", path.display(), linux::describe_io(&error)))
                .remedy("Name a file in a folder that you may write to, or - for standard error.")
        }),
    }
}

/// The way of serving the program: as requested, or as the host allows.
fn serve_how(
    task: &RunTask,
    file: &Path,
    host: Option<&thp::Settings>,
    inherited: &Inherited,
) -> Result<Served, NotStarted> {
    let mut served = Served { how: task.huge, notes: Vec::new() };
    if let Inherited::Stays(why) = inherited {
        let line = format!("runs without huge pages: {why}");
        if !task.quiet {
            print::note(format_args!("{line}"));
        }
        return Ok(Served { how: Huge::Off, notes: vec![line] });
    }
    match task.huge {
        Huge::Off => {}
        Huge::Hot => hot::check()?,
        Huge::Touch => {
            let name = task.command.first().map(std::ffi::OsString::as_os_str).unwrap_or_default();
            let remedy = "Run it with --huge off, or as root start it and `masu attach` to it.";
            refuse_privileged(file, name, "huge pages", remedy)?;
            let (why, from_outside) = match (loads(file), host) {
                (Loads::NotServed(why), _) => (why.to_owned(), false),
                (_, None) => ("this kernel has no huge pages".to_owned(), false),
                (Loads::Nothing(why), _) => (why.to_owned(), true),
                (Loads::Library, Some(_)) if memory_limit::is_set() => (LeftOut::Limited.reason().to_owned(), true),
                (Loads::Library, Some(_)) if !shows_status_page() => (LeftOut::NoStatusPage.reason().to_owned(), true),
                (Loads::Library, Some(host)) => {
                    if sizes::choose(&task.sizes, host)? != contract::placement::Sizes::NONE {
                        return Ok(served);
                    }
                    (format!("/{} is never, so that no first touch gets a huge page", thp::ENABLED), true)
                }
            };
            let line = match (from_outside, hot::check()) {
                (true, Ok(())) => {
                    served.how = Huge::Hot;
                    format!("served from outside: {why}")
                }
                (true, Err(failure)) => {
                    served.how = Huge::Off;
                    format!("runs without huge pages: {why}; and from outside: {}", failure.line())
                }
                (false, _) => {
                    served.how = Huge::Off;
                    format!("runs without huge pages: {why}")
                }
            };
            if !task.quiet {
                print::note(format_args!("{line}"));
            }
            served.notes.push(line);
        }
    }
    Ok(served)
}

/// Whether a program of masu's user can open masu's status page. The kernel hides the files of a masu with file
/// capabilities from it.
fn shows_status_page() -> bool {
    rustix::process::geteuid().is_root() || !linux::auxv::has_privileges_of_file(&*HOST)
}

fn wanted(task: &RunTask, served: &mut Served, report: bool) -> Wanted {
    let mut trim = None;
    if served.how == Huge::Touch {
        if capabilities::may_advise_others(&*HOST).unwrap_or(false) {
            trim = Some(trim::policy::Settings { max_extra_rss: task.max_extra_rss, ..trim::policy::MEASURED });
        } else {
            let note = "windows with little used memory stay huge: splitting them needs CAP_SYS_NICE";
            served.notes.push(note.to_owned());
        }
    }
    Wanted { report, trim, without_slot: None }
}

/// True for the file of this program.
fn is_own_program(file: &Path) -> bool {
    let id = |path: &Path| rustix::fs::stat(path).map(|about| (about.st_dev, about.st_ino));
    id(file).is_ok_and(|of| id(Path::new("/proc/self/exe")) == Ok(of))
}

fn fill(
    report: &mut Report,
    seen: Seen,
    counts: &Counts,
    notes: Vec<String>,
    outcome: Result<Option<hot::Outcome>, Failure>,
) {
    counts.fullest.values().for_each(|counted| report.add(counted));
    counts.last.values().for_each(|counted| report.add_at_end(counted));
    report.forbidding_processes = counts.forbidden.len() as u64;
    report.processes = seen.processes;
    let rest = seen.still_running.into_iter();
    report.still_running = rest.map(|(process, program)| StillRunning { process, program }).collect();
    report.aligned_mappings = seen.aligned;
    report.demoted_windows = seen.demoted;
    report.returned_bytes = seen.returned;
    (report.torn_windows, report.torn_returned_bytes) = seen.torn;
    report.torn_left_windows = seen.torn_left.0 + seen.torn_shared.0;
    report.torn_left_bytes = seen.torn_left.1 + seen.torn_shared.1;
    (report.shared_left_windows, report.shared_left_bytes) = seen.shared_left;
    (report.promoted_windows, report.promoted_still_huge_windows) = seen.promoted_again;
    report.reserved_ever_windows = seen.reserved_ever;
    report.uncounted_windows = report.uncounted();
    report.rss_peak_bytes = report.rss_peak_bytes.max(counts.rss_peak);
    report.notes = notes;
    report.notes.extend(counts.forbidden.values().take(FORBIDDING_SHOWN).cloned());
    report.notes.extend(counts.hidden.values().take(FORBIDDING_SHOWN).cloned());
    report.hidden_processes = counts.hidden.len() as u64;
    report.left_out = seen.left_out;
    let mut begun = seen.programs;
    if let Ok(Some(outcome)) = &outcome {
        begun += outcome.looked_at.processes;
        let outside = [(hot::SMALL, outcome.small), (hot::NOT_SERVED, outcome.not_served)];
        report.left_out.extend(outside.into_iter().filter(|of| of.1 > 0).map(|(why, count)| (why.to_owned(), count)));
    }
    report.count_programs(begun);
    report.notes.extend(report.left_out_note());
    if seen.lost {
        report.notes.push("the counts of this run are lost: the thread that watched it failed".to_owned());
    }
    match outcome {
        Ok(None) => {}
        Ok(Some(outcome)) => {
            report.promoted_windows += outcome.promoted;
            report.demoted_windows += outcome.demoted;
            report.promoted_still_huge_windows += outcome.still_huge;
            report.promoted_uncounted_windows = outcome.uncounted;
            report.looked_at = Some(outcome.looked_at);
            report.returned_bytes += outcome.returned;
            report.torn_windows += outcome.torn.0;
            report.torn_returned_bytes += outcome.torn.1;
            report.torn_left_windows += outcome.torn_left.0;
            report.torn_left_bytes += outcome.torn_left.1;
            report.notes.extend(outcome.why);
        }
        Err(failure) => report.notes.push(format!("nothing was done from outside: {}", failure.line())),
    }
    match seen.code {
        Code::FileMapped => report.notes.push("text: the file's own pages are huge; symbols are unchanged".to_owned()),
        Code::Copied => report.notes.push(
            "text: copied to anonymous huge pages, because this kernel maps no huge pages of files; perf and uprobes find no \
             symbols in it, gdb does"
                .to_owned(),
        ),
        Code::Refused => report.notes.push("text: left where it was; the kernel refused the copy".to_owned()),
        Code::Untouched => {}
    }
    if let Some(error) = seen.no_trim {
        report.notes.push(format!("windows with little used memory stayed huge: {error}"));
    }
    if seen.kept_small > 0 {
        let windows = seen.kept_small;
        report
            .notes
            .push(format!("{windows} windows stayed on small pages: not in half of the control group's headroom"));
    }
    for (group, killed) in &seen.oom_kills {
        let processes = if *killed == 1 { "process" } else { "processes" };
        report
            .notes
            .push(format!("the kernel killed {killed} {processes} of control group /{group} for lack of memory"));
    }
    if seen.turned_away > 0 {
        report.notes.push(format!("{} processes found no free slot and are not in the report", seen.turned_away));
    }
}

fn write(report: &Report, destination: Destination, json: bool) -> Result<(), Failure> {
    let mut text = Vec::new();
    if json {
        serde_json::to_writer(&mut text, report)?;
        writeln!(text)?;
    } else {
        report.print(&mut text)?;
    }
    put(&text, destination)
}

/// Writes a report to its destination.
fn put(text: &[u8], destination: Destination) -> Result<(), Failure> {
    match destination {
        Destination::Nowhere => {}
        Destination::Terminal => print::err().write_all(text)?,
        Destination::File(file) => Clean(file).write_all(text)?,
    }
    Ok(())
}

/// Status for a misuse: not 2, which may be the program's.
pub const MISUSED: u8 = NOT_STARTED;
