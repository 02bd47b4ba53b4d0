//! `masu aging`.

mod replay;

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use access::backend::Unavailable;
use access::insertions::{Filter, Membership};
use aging::class::Class;
use aging::daemon::{Daemon, DaemonError, Settings};
use aging::levels::{Bounds, Level, Preferences};
use aging::report::{Event, Running as Member, Summary};
use aging::scope::Scope;
use aging::streams::{Keep, Streams};
use aging::{mlocks, plan};
use linux::cgroup::group;
use linux::cgroup::limited;
use linux::halted::halted_among;
use linux::journal::{HostSettings, LeftAlone};
use linux::meminfo::meminfo;
use linux::runtime_directory::DIRECTORY;
use linux::{Error, Pid, Rooted, children, open_files, signals};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::Serialize;
use units::{Bytes, Fraction, cast};

use crate::args::{AgingTask, Budget};
use crate::failure::Failure;
use crate::launch::child::{Child, Ended, Relay, end_as};
use crate::launch::command::{NotStarted, find};
use crate::only_one::{Sole, only_one};
use crate::open::{Purpose, admit, each};
use crate::priority::Priority;
use crate::terminal::clock::{Clock, Pause, Stop};
use crate::terminal::events;
use crate::terminal::output_file::{empty, open_to_write};
use crate::terminal::print::{self, Clean};
use crate::terminal::unwritten::Unwritten;
use crate::{Done, HOST, runtime};

/// Files that masu opens at most to start a command and to follow its streams, by trial.
pub const FILES_OF_START: usize = 30;

/// Runs the task. `relay` is given when the task has a command to start.
pub fn run(task: &AgingTask, relay: Option<Result<Relay, Failure>>) -> ExitCode {
    let answer = match relay {
        None => alone(task).map(Done::status).map_err(|failure| NotStarted { status: failure.status(), failure }),
        Some(_) if task.dry_run => planned_beside(task).map(|()| ExitCode::SUCCESS),
        Some(relay) => relay.map_err(NotStarted::from).and_then(|relay| beside(task, relay)),
    };
    match answer {
        Ok(status) => status,
        Err(NotStarted { failure, .. }) if failure.is_broken_pipe() => ExitCode::SUCCESS,
        Err(NotStarted { failure, status }) => {
            print::failure(&failure);
            ExitCode::from(status)
        }
    }
}

/// Ages pages until a signal, the time limit, or the end of the named processes.
fn alone(task: &AgingTask) -> Result<Done, Failure> {
    if let (Some(trace), Some(memory)) = (&task.replay, task.memory) {
        let part = match task.budget {
            Budget::Part(part) => part,
            Budget::Size(size) => Fraction::clamped(1.0 + size.growth_over(memory)),
        };
        return replay::run(trace, memory, &preferences(task)?, part, task.json).map(|()| Done::Whole);
    }
    let stop = Stop::on_signals()?;
    let wanted = Wanted::of(task)?;
    if task.dry_run {
        return print_plan(task, &wanted).map(|()| Done::Whole);
    }
    let mut out = Out::open(task)?;
    let mut clock = Clock::new(stop, Vec::new());
    let programs = programs(&wanted.settings.scope)?;
    let pause = Pause::on_signal()?;
    let (mut daemon, _lock) = begin(&wanted, &|| clock.is_stopped(), &mut out)?;
    raise_priority(&wanted);
    let mut rest = Outliving::default();
    let outcome = loop {
        let stepped = step(&mut daemon, clock.now(), &mut out);
        if let Err(failure) = stepped.and_then(|()| stop_if_paused(&pause, &mut daemon, clock.now(), &mut out)) {
            break Err(failure);
        }
        let left = task.time.map(|time| time.saturating_sub(clock.now()));
        clock.wait(left.map_or(daemon.wait(), |left| left.min(daemon.wait())));
        let is_over = left.is_some_and(|left| left.is_zero());
        let have_ended = !programs.is_empty() && programs.iter().all(has_ended);
        if clock.is_stopped() || is_over || (have_ended && rest.is_over(&daemon, clock.now(), &mut out)) {
            rest.end(&daemon, clock.now(), &mut out);
            break Ok(());
        }
    };
    let ended = end(daemon, clock.now(), &|| false, &mut out);
    outcome.and(ended).map(|()| out.unwritten.done())
}

/// Descriptors of the named processes: aging ends with the last of them. Empty for the host and for a group.
fn programs(scope: &Scope) -> Result<Vec<OwnedFd>, Failure> {
    match scope {
        Scope::Host | Scope::Group(_) => Ok(Vec::new()),
        Scope::Processes(pids) => {
            pids.iter().map(|pid| pid.open().map_err(|error| Failure::at_process(&error))).collect()
        }
    }
}

fn has_ended(program: &OwnedFd) -> bool {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::new(program, PollFlags::IN)], Some(&now)).is_ok_and(|ended| ended > 0)
}

/// Prints the plan for a command, which is not started.
fn planned_beside(task: &AgingTask) -> Result<(), NotStarted> {
    let name = task.command.first().map(std::ffi::OsString::as_os_str).unwrap_or_default();
    find(name, std::env::var_os("PATH"))?;
    Ok(print_plan(task, &Wanted::of(task)?)?)
}

/// Ages pages while a command runs, and ends with its status.
fn beside(task: &AgingTask, relay: Relay) -> Result<ExitCode, NotStarted> {
    let name = task.command.first().map(std::ffi::OsString::as_os_str).unwrap_or_default();
    let file = find(name, std::env::var_os("PATH"))?;
    let wanted = Wanted::of(task)?;
    let mut out = Out::open(task)?;
    let pause = Pause::on_signal().map_err(Failure::from)?;
    let start = Instant::now();
    let (mut daemon, _lock) = begin(&wanted, &|| false, &mut out)?;
    // Followed before the start, so that the first page of the command is counted.
    daemon.follow(Pid::own(), Membership::Children).map_err(|why| at_streams(&why))?;
    let mut child = Child::start(&file, &task.command, &[], relay)?;
    daemon.unfollow(Pid::own());
    raise_priority(&wanted);
    // From here on the command runs: a failure is printed, and the command goes on.
    let mut ended: Option<Ended> = None;
    while ended.is_none() {
        let stepped = step(&mut daemon, start.elapsed(), &mut out);
        if let Err(failure) = stepped.and_then(|()| stop_if_paused(&pause, &mut daemon, start.elapsed(), &mut out)) {
            print::failure(&failure);
            break;
        }
        ended = child.wait_at_most(daemon.wait())?;
    }
    // The command has ended and takes no more signals: from here on signals are for masu.
    let stop = ended.map(|_| Stop::on_signals()).transpose().map_err(Failure::from)?;
    let is_urgent = || stop.as_ref().is_some_and(Stop::is_set);
    // The named processes are servers of the command, and need not end with it.
    for pid in &wanted.follow {
        daemon.unfollow(*pid);
        children::descendants(&*HOST, *pid).unwrap_or_default().into_iter().for_each(|pid| daemon.unfollow(pid));
    }
    if ended.is_some() {
        follow_to_the_end(&mut daemon, start, &pause, &is_urgent, &mut out);
    }
    // Before the wait for the command: no page stays mlocked without a headroom monitor.
    if let Err(failure) = end(daemon, start.elapsed(), &is_urgent, &mut out) {
        print::failure(&failure);
    }
    let ended = match ended {
        Some(ended) => ended,
        None => child.wait()?,
    };
    Ok(end_as(ended.status))
}

/// Goes on until the last process that the command has started ends, or `is_urgent` returns true. A failure is printed:
/// the command's status stays.
fn follow_to_the_end(daemon: &mut Running, start: Instant, pause: &Pause, is_urgent: &dyn Fn() -> bool, out: &mut Out) {
    let mut rest = Outliving::default();
    while !rest.is_over(daemon, start.elapsed(), out) && !is_urgent() {
        let stepped = step(daemon, start.elapsed(), out);
        if let Err(failure) = stepped.and_then(|()| stop_if_paused(pause, daemon, start.elapsed(), out)) {
            print::failure(&failure);
            break;
        }
        std::thread::sleep(daemon.wait());
    }
    rest.end(daemon, start.elapsed(), out);
}

/// Processes that outlive the command, or the named processes, that started them.
#[derive(Default)]
struct Outliving {
    is_told: bool,
}

impl Outliving {
    /// True once none runs; the first time that some run, a line names them.
    fn is_over(&mut self, daemon: &Running, now: Duration, out: &mut Out) -> bool {
        let members = daemon.members();
        if members.is_empty() {
            return true;
        }
        if !std::mem::replace(&mut self.is_told, true) {
            out.outlived(now, members, true);
        }
        false
    }

    /// Names those that still run when masu ends.
    fn end(&self, daemon: &Running, now: Duration, out: &mut Out) {
        if self.is_told {
            let members = daemon.members();
            if !members.is_empty() {
                out.outlived(now, members, false);
            }
        }
    }
}

/// Arguments, checked.
struct Wanted {
    settings: Settings,
    whose: Filter,
    /// Processes followed from the start.
    follow: Vec<Pid>,
    keep: Keep,
    /// Memory that the page cache's protection level is a fraction of.
    memory: Bytes,
}

impl Wanted {
    fn of(task: &AgingTask) -> Result<Wanted, Failure> {
        let preferences = preferences(task)?;
        let scope = if let Some(name) = &task.cgroup {
            Scope::Group(name.clone())
        } else if task.pid.is_empty() {
            Scope::Host
        } else {
            let (pids, _) = each(&task.pid, |pid| admit(pid, Purpose::Look).map(|_| pid))?;
            Scope::Processes(pids.into_iter().collect())
        };
        let total = meminfo(&*HOST).map_err(Failure::new)?.total;
        let (mut whose, mut follow, mut memory) = (Filter::All, Vec::new(), total);
        match &scope {
            Scope::Host => {}
            Scope::Group(name) => {
                let group = group::find(&*HOST, name).map_err(|error| {
                    Failure::new(error).remedy("`cat /proc/PID/cgroup` says in which group a process is.")
                })?;
                let own = linux::KernelFiles::inode(&*HOST, group.path.trim_start_matches('/'));
                whose = Filter::Group(own.map_err(|errno| Failure::new(linux::describe(errno)))?);
                memory = limit_of(&group.path).unwrap_or(total);
            }
            Scope::Processes(pids) => {
                whose = Filter::Members;
                for pid in pids {
                    follow.push(*pid);
                    follow.extend(children::descendants(&*HOST, *pid).unwrap_or_default());
                }
            }
        }
        // Beside a level of mapped pages, the named processes are those to protect.
        let are_streams = preferences.iter().all(|(class, bounds)| class == Class::Cache || bounds.is_none());
        if !task.command.is_empty() {
            let is_group = matches!(scope, Scope::Group(_));
            whose = if is_group && are_streams { whose } else { Filter::Members };
            follow.retain(|_| are_streams);
        }
        let budget = budget(task.budget, total)?;
        let settings = Settings { scope, preferences, budget, data_with_the_rest: task.data.is_none() };
        let keep = if task.command.is_empty() { Keep::ReadAgain } else { Keep::All };
        Ok(Wanted { settings, whose, follow, keep, memory })
    }

    fn cache(&self) -> Option<Level> {
        // Level 100 leaves the page cache to the kernel. A level that only may rise to 100 does not.
        self.settings.preferences.get(Class::Cache).filter(|bounds| bounds.low < Level::NEVER).map(|bounds| bounds.low)
    }

    /// Processes of the group, and named ones.
    fn processes(&self) -> BTreeSet<Pid> {
        match &self.settings.scope {
            Scope::Host => BTreeSet::new(),
            Scope::Group(name) => group::find(&*HOST, name).map_or_else(|_| BTreeSet::new(), |group| group.processes),
            Scope::Processes(pids) => pids.clone(),
        }
    }

    fn needs_mlock(&self) -> bool {
        mlocks::CLASSES.into_iter().any(|class| self.settings.preferences.get(class).is_some())
    }
}

fn preferences(task: &AgingTask) -> Result<Preferences, Failure> {
    let mut preferences = Preferences::default();
    let mut set = |class, own: Option<Bounds>, mapped: Option<Bounds>| preferences.set(class, own.or(mapped));
    set(Class::Code, task.code, task.mapped);
    set(Class::ReadOnly, task.rodata, task.mapped);
    set(Class::Data, task.data, task.mapped);
    set(Class::Shared, task.shared, task.mapped);
    set(Class::Cache, task.cache, None);
    if preferences.iter().all(|(_, bounds)| bounds.is_none()) {
        let remedy = "Give a class its level: `--mapped 100` keeps the mapped pages of programs, `--cache 0 -- COMMAND` drops the pages \
                      that COMMAND streams; `masu aging --help` has more.";
        return Err(Failure::new("cannot age pages: no level is given").remedy(remedy));
    }
    Ok(preferences)
}

fn budget(asked: Budget, total: Bytes) -> Result<Bytes, Failure> {
    match asked {
        Budget::Part(part) => Ok(total.scaled(part.get())),
        Budget::Size(size) if size > total => {
            let line = format!("cannot mlock up to {size}: this machine has {total} of memory");
            Err(Failure::new(line).remedy("Give a smaller --budget, such as 10%."))
        }
        Budget::Size(size) => Ok(size),
    }
}

/// Lowest limit of a control group.
fn limit_of(path: &str) -> Option<Bytes> {
    let directory = path.trim_start_matches('/');
    let all = limited::groups(&*HOST).ok()?;
    let group = all.iter().find(|group| group.directory == directory)?;
    group.charge(&*HOST).ok()?.map(|charge| charge.limit)
}

type Running = Daemon<Rooted>;

fn begin(wanted: &Wanted, is_urgent: &dyn Fn() -> bool, out: &mut Out) -> Result<(Running, Option<File>), Failure> {
    let lock = wanted.needs_mlock().then(|| only_one(&SOLE)).transpose()?;
    // Each file with mlocked pages needs an open descriptor.
    open_files::raise();
    let streams = wanted.cache().map(|level| {
        let streams = Streams::begin(&*HOST, wanted.whose, wanted.keep, level, wanted.memory)?;
        wanted.follow.iter().try_for_each(|pid| streams.follow(*pid, Membership::Whole))?;
        Ok(streams)
    });
    let streams = streams.transpose().map_err(|why| at_streams(&why))?;
    let writes_settings = wanted.settings.preferences.get(Class::Data).is_some();
    let unrecorded = || HostSettings::open(&*HOST, Path::new(DIRECTORY)).map_err(|error| at_host(&error));
    let settings = if writes_settings { runtime::settings() } else { unrecorded() }?;
    let (mut daemon, mut events) =
        Daemon::begin(&*HOST, wanted.settings.clone(), streams, settings).map_err(|error| at_host(&error))?;
    events.extend(daemon.settle(is_urgent).map_err(|error| at_daemon(&error))?);
    out.ready(wanted)?;
    let halted = halted_among(&*HOST, wanted.processes());
    if !halted.is_empty() {
        out.event(Duration::ZERO, &Event::Halted { processes: halted })?;
    }
    events.iter().try_for_each(|event| out.event(Duration::ZERO, event))?;
    Ok((daemon, lock))
}

fn step(daemon: &mut Running, now: Duration, out: &mut Out) -> Result<(), Failure> {
    let events = daemon.step(now).map_err(|error| at_daemon(&error))?;
    events.iter().try_for_each(|event| out.event(now, event))
}

/// Stops after Ctrl-Z. All pages are unlocked first, since a stopped masu cannot monitor headroom.
fn stop_if_paused(pause: &Pause, daemon: &mut Running, now: Duration, out: &mut Out) -> Result<(), Failure> {
    if !pause.is_set() {
        return Ok(());
    }
    if let Some(event) = daemon.unlock_all().map_err(|error| at_host(&error))? {
        out.event(now, &event)?;
    }
    pause.stop();
    Ok(())
}

fn end(daemon: Running, now: Duration, is_urgent: &dyn Fn() -> bool, out: &mut Out) -> Result<(), Failure> {
    let (summary, events) = daemon.finish(now, is_urgent).map_err(|error| at_daemon(&error))?;
    events.iter().try_for_each(|event| out.event(now, event))?;
    let micros = |time: Duration| cast::saturated(time.as_micros());
    out.end(&Summary { run_us: micros(now), cpu_us: micros(linux::cpu_time::of_process()), ..summary })
}

/// Raises the priority while pages are mlocked: masu must be able to unlock them when other programs use all memory and
/// all processors. Printing a line from the background does not stop masu. Called after a command is started, which
/// would inherit both.
fn raise_priority(wanted: &Wanted) {
    if wanted.needs_mlock() {
        Priority::default().set(true);
        signals::write_from_the_background();
    }
}

/// Lock for mlock: two processes would each use a whole budget.
const SOLE: Sole = Sole {
    file: "aging.lock",
    cannot: "keep mapped pages in memory",
    command: "masu aging",
    remedy: "End it, or give it these levels, too: one budget holds for the machine.",
};

fn at_streams(why: &Unavailable) -> Failure {
    Failure::new(format!("cannot trace page-cache insertions: {}", why.reason)).remedy(&why.remedy)
}

fn at_daemon(error: &DaemonError) -> Failure {
    match error {
        DaemonError::Host(error) => at_host(error),
        DaemonError::Insertions(why) => at_streams(why),
    }
}

fn at_host(error: &Error) -> Failure {
    let failure = Failure::new(error);
    match error {
        Error::Denied(_) => failure.remedy("Run as root: the use of page frames is visible to CAP_SYS_ADMIN alone."),
        Error::Unsupported(_) => failure.remedy("`masu facts` lists what this host offers and what is missing."),
        Error::Gone(_) | Error::Malformed { .. } | Error::Other(_) => failure,
    }
}

fn print_plan(task: &AgingTask, wanted: &Wanted) -> Result<(), Failure> {
    let plan = plan::of(&*HOST, &wanted.settings, wanted.cache(), !task.command.is_empty())
        .map_err(|error| at_host(&error))?;
    let mut out = print::out();
    if task.json {
        serde_json::to_writer(&mut out, &plan)?;
        writeln!(out)?;
    } else {
        for line in plan.lines() {
            writeln!(out, "{line}")?;
        }
    }
    Ok(())
}

/// Destination of the event lines.
struct Out {
    to: Option<Box<dyn Write>>,
    json: bool,
    unwritten: Unwritten,
}

#[derive(Serialize)]
struct Ready {
    event: &'static str,
    ready: bool,
    #[serde(flatten, with = "units::renamed::levels")]
    levels: Vec<OfLevel>,
    budget_bytes: Bytes,
}

#[derive(Serialize)]
struct OfLevel {
    class: Class,
    low: Level,
    high: Level,
}

impl Out {
    fn open(task: &AgingTask) -> Result<Out, Failure> {
        let to: Option<Box<dyn Write>> = match task.report.as_deref() {
            Some(path) if path != Path::new("-") => {
                let file = open_to_write(path).and_then(|file| empty(&file).map(|()| file)).map_err(|error| {
                    Failure::new(format!(
                        "cannot write the lines to {}: {}",
                        path.display(),
                        linux::describe_io(&error)
                    ))
                    .remedy("Name a file in a folder that you may write to, or - for standard error.")
                })?;
                Some(Box::new(Clean(file)))
            }
            Some(_) => Some(Box::new(print::err())),
            None if task.command.is_empty() => Some(Box::new(print::out())),
            // The command owns the terminal: masu's lines go there only where a reader can tell them apart.
            None if task.json || print::err().is_terminal() => Some(Box::new(print::err())),
            None => None,
        };
        Ok(Out { to, json: task.json, unwritten: Unwritten::of("aging") })
    }

    fn line(&mut self, text: &str) -> Result<(), Failure> {
        let Some(to) = &mut self.to else { return Ok(()) };
        let written = writeln!(to, "{text}").and_then(|()| to.flush());
        if !self.unwritten.take(written) {
            // The work goes on, and so does the command; the remaining lines are dropped.
            self.to = None;
        }
        Ok(())
    }

    fn event(&mut self, now: Duration, event: &Event) -> Result<(), Failure> {
        self.line(&events::event(self.json, now, event)?)
    }

    /// A line about processes that outlive the command. It goes to standard error where no report was asked for: masu
    /// would otherwise wait for them without a word.
    fn outlived(&mut self, now: Duration, processes: Vec<Member>, followed: bool) {
        let event = Event::Outlived { processes, followed };
        // A reader that has gone away does not end the following.
        if self.to.is_some() {
            let _ = self.event(now, &event);
        } else if let Ok(line) = events::event(false, now, &event) {
            let _ = writeln!(print::err(), "{line}");
        }
    }

    fn ready(&mut self, wanted: &Wanted) -> Result<(), Failure> {
        let levels = wanted.settings.preferences.iter().filter_map(|(class, bounds)| Some((class, bounds?)));
        let text = if self.json {
            let levels = levels.map(|(class, Bounds { low, high })| OfLevel { class, low, high }).collect();
            serde_json::to_string(&Ready { event: "ready", ready: true, levels, budget_bytes: wanted.settings.budget })?
        } else {
            let levels: Vec<String> = levels.map(|(class, bounds)| format!("{} {bounds}", class.name())).collect();
            let whose = match &wanted.settings.scope {
                Scope::Host => "of the host".to_owned(),
                Scope::Group(name) => format!("of control group {name}"),
                Scope::Processes(pids) => format!("of {}", list(pids)),
            };
            format!("aging pages {whose}: {}; Ctrl-C ends it", levels.join(", "))
        };
        self.line(&text)
    }

    fn end(&mut self, summary: &Summary) -> Result<(), Failure> {
        if self.json {
            return self.line(&events::end(summary)?);
        }
        let Summary {
            run_us, cpu_us, mlocked_bytes_max, brought_in_bytes, dropped_bytes, left_bytes, releases, ..
        } = summary;
        let mut done = Vec::new();
        if *mlocked_bytes_max > Bytes(0) {
            done.push(format!("mlocked up to {mlocked_bytes_max}"));
        }
        if *brought_in_bytes > Bytes(0) {
            done.push(format!("dropped {dropped_bytes} behind streams of {brought_in_bytes} that they brought in"));
        }
        if *left_bytes > Bytes(0) {
            let left: Vec<String> = summary.left.iter().map(ToString::to_string).collect();
            done.push(format!("left {left_bytes} ({})", left.join(", ")));
        }
        if *releases > 0 {
            done.push(format!("unlocked {releases} times for lack of headroom"));
        }
        if done.is_empty() {
            done.push("nothing to do".to_owned());
        }
        #[expect(clippy::cast_precision_loss, reason = "a time for people")]
        let (run_s, part) = (*run_us as f64 / 1e6, *cpu_us as f64 / (*run_us).max(1) as f64 * 100.0);
        let restored = restored(&summary.settings_left);
        self.line(&format!("{run_s:8.1} s  {restored}: {}; {part:.1} % of a processor", done.join(", ")))
    }
}

/// Whether the settings are as before, with those that are not.
fn restored(left: &[LeftAlone]) -> String {
    if left.is_empty() {
        return "everything is restored".to_owned();
    }
    let left: Vec<String> = left.iter().map(ToString::to_string).collect();
    format!("not everything is as before ({})", left.join("; "))
}

fn list(pids: &BTreeSet<Pid>) -> String {
    let numbers: Vec<String> = pids.iter().map(Pid::to_string).collect();
    if numbers.len() == 1 { format!("process {}", numbers[0]) } else { format!("processes {}", numbers.join(", ")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_is_restored_only_if_it_is() {
        assert_eq!(restored(&[]), "everything is restored");
        let path = "/proc/sys/vm/swappiness".to_owned();
        let left = LeftAlone { path, before: "60".to_owned(), found: Some("1".to_owned()), restored_by: None };
        let line = "/proc/sys/vm/swappiness is 1, which another program has written (60 before)";
        assert_eq!(restored(&[left]), format!("not everything is as before ({line})"));
    }
}
