//! `masu track`.

use std::io::Write;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use contract::track::SOCKET;
use contract::track::wire::{Refused, Totals};
use hugepages::track::admission::{Account, Bounds};
use hugepages::track::schedule;
use hugepages::track::serve::{Control, EndReason, Event, Opened, Settings, Unsent, serve};
use hugepages::track::share::Limits;
use hugepages::track::watched::Watched;
use hugepages::{policy, rate_limiter};
use linux::capabilities::Capability;
use linux::message_socket::{Listener, Peer};
use linux::ptrace_access::Asking;
use linux::subordinate_ids::Owners;
use linux::{KernelFiles, Pid, describe, open_files, queued_signal, signals, status, user_namespace};
use rustix::io::Errno;
use serde_json::{Value, json};
use units::{Bytes, PageSize};

use crate::args::TrackTask;
use crate::attach;
use crate::failure::Failure;
use crate::open::{Observers, Purpose, admit, can_promote, contended, hold_silently};
use crate::priority::Priority;
use crate::prohibition::{self, Inherited};
use crate::terminal::clock::Stop;
use crate::terminal::print::{self, percent};
use crate::terminal::unwritten::Unwritten;
use crate::{Done, HOST, runtime};

pub fn run(task: &TrackTask) -> Result<Done, Failure> {
    let stop = Stop::on_signals()?;
    // For masu's own probe and preallocated pages.
    if let Inherited::Stays(why) = prohibition::lift_own() {
        print::note(format_args!("{why}"));
    }
    can_promote(&linux::probe::collapse(&*HOST))?;
    let observers = Observers::find(task.backend)?;
    if observers.backend == access::Backend::DamonVaddr {
        print::note(format_args!("damon-vaddr watches one process at a time: a second program will be refused"));
    }
    open_files::raise();
    let listener = listen(&task.socket)?;
    let mut surroundings = Surroundings {
        accounts: Accounts::default(),
        start: Instant::now(),
        stop,
        observers,
        json: task.json,
        priority: Priority::default(),
        unwritten: Unwritten::of("masu track"),
        complaints: Complaints::default(),
        reasons: Complaints::default(),
    };
    surroundings.print_start(&task.socket);
    serve(&listener, settings(task), &mut surroundings);
    // A socket file left here is detected and replaced at the next start.
    let _ = std::fs::remove_file(&task.socket);
    Ok(surroundings.unwritten.done())
}

fn listen(path: &Path) -> Result<Listener, Failure> {
    let failed = |why: &str| Failure::new(format!("cannot listen at {}: {why}", path.display()));
    if path == Path::new(SOCKET) {
        runtime::public()?;
    }
    Listener::at(path).map_err(|errno| match errno {
        Errno::ADDRINUSE => failed("another process listens there, or it is no socket: address in use (EADDRINUSE)")
            .remedy("One tracker serves all programs: end the other one, or give this one a path by --socket."),
        Errno::INVAL | Errno::NAMETOOLONG => {
            failed("the path is too long for a socket, which has 107 bytes").remedy("Give a shorter one by --socket.")
        }
        Errno::ACCESS | Errno::PERM | Errno::NOENT | Errno::NOTDIR | Errno::ROFS => failed(&describe(errno))
            .remedy("Run as root, or give a path by --socket; programs look for it in the variable MASU_TRACK."),
        other => failed(&describe(other)),
    })
}

fn settings(task: &TrackTask) -> Settings {
    let windows = |size: Option<Bytes>| size.map_or(u64::MAX, |size| size.0 / PageSize::Huge.bytes().0);
    Settings {
        schedule: schedule::Settings { cpu_fraction: task.max_cpu, rate: rate_limiter::MEASURED },
        limits: Limits {
            of_program: windows(task.max_huge_per_program),
            of_user: windows(task.max_huge_per_user),
            of_all: windows(task.max_huge),
        },
        most_programs: task.max_programs,
        bounds: Bounds::of_descriptors(open_files::limit()),
    }
}

/// Whether a peer may have a process watched: its own, or one that the kernel lets the peer inspect.
fn may_watch(pid: Pid, peer: Peer) -> Result<(), Failure> {
    let Peer { user, .. } = peer;
    let refused = |why: &str| Failure::new(format!("cannot attach to process {pid}: {why}"));
    if Some(pid) == peer.pid {
        // A process that called exec since it connected may belong to another user by now, or show no owner.
        let owner = std::fs::metadata(format!("/proc/{pid}")).map(|about| about.uid());
        let is_own = owner.ok() == Some(user);
        return if is_own {
            Ok(())
        } else {
            Err(refused(&format!("it does not belong to user {user}, who asks for it")))
        };
    }
    let asking = Asking::of(&*HOST, peer).map_err(|error| Failure::at_process(&error))?;
    if asking.may_inspect(pid).map_err(|error| Failure::at_process(&error))? {
        return Ok(());
    }
    let why = format!("user {user}, who asks for it, may not inspect it: permission denied (EACCES)");
    Err(refused(&why).remedy("Register it with CAP_SYS_PTRACE in its user namespace."))
}

/// Whether all user ids of a process are `user`'s: a setuid program after exec has others. Root's processes may become
/// any program, since none has more rights than root.
fn belongs_to(files: &impl KernelFiles, pid: Pid, user: u32) -> Result<bool, Unsent> {
    let status = status::status(files, pid).map_err(|_| Unsent::Kernel(Errno::SRCH))?;
    Ok(user == 0 || status.uids == [user; 4])
}

/// Finds the account that a connection is charged to.
#[derive(Default)]
struct Accounts {
    owners: Owners,
    /// Last modification of the files.
    changed: Option<SystemTime>,
}

impl Accounts {
    fn account(&mut self, peer: Peer) -> Account {
        const SYS_PTRACE: u64 = 1 << Capability::SysPtrace as u64;
        let has = |asking: Asking| asking.capabilities & SYS_PTRACE != 0;
        if peer.user == 0 && Asking::of(&*HOST, peer).is_ok_and(has) {
            return Account::Privileged;
        }
        let changed = std::fs::metadata("/etc/subuid").and_then(|about| about.modified()).ok();
        if changed != self.changed {
            (self.owners, self.changed) = (Owners::read(&*HOST), changed);
        }
        // A namespace that root made, as for a container, does not tell its users apart.
        let maker = peer.pid.and_then(|pid| user_namespace::maker(pid).ok()?).filter(|maker| *maker != 0);
        Account::User(self.owners.owner_of(maker.unwrap_or(peer.user)))
    }
}

/// The loop's callbacks on a real host.
struct Surroundings {
    accounts: Accounts,
    start: Instant,
    stop: Stop,
    observers: Observers,
    json: bool,
    priority: Priority,
    /// The reader of the output has left, which is a normal end.
    unwritten: Unwritten,
    complaints: Complaints,
    /// Reasons why a process cannot be served.
    reasons: Complaints,
}

/// Complaints about clients, at most [`Complaints::MOST_PER_SECOND`]: any user can cause one.
#[derive(Debug, Default)]
struct Complaints {
    second: u64,
    in_it: u32,
    left_out: u64,
}

impl Complaints {
    const MOST_PER_SECOND: u32 = 10;

    /// Number of complaints left out before, if one may be printed in this second.
    fn may_say(&mut self, second: u64) -> Option<u64> {
        if second != self.second {
            (self.second, self.in_it) = (second, 0);
        }
        self.in_it += 1;
        if self.in_it > Complaints::MOST_PER_SECOND {
            self.left_out += 1;
            return None;
        }
        Some(std::mem::take(&mut self.left_out))
    }
}

impl Control for Surroundings {
    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    fn stop(&self) -> bool {
        self.stop.is_set()
    }

    fn cpu_time(&self) -> Duration {
        linux::cpu_time::of_process()
    }

    fn set_urgent(&mut self, urgent: bool) {
        self.priority.set(urgent);
    }

    fn account(&mut self, peer: Peer) -> Account {
        self.accounts.account(peer)
    }

    fn open(&mut self, pid: Pid, peer: Peer) -> Result<Opened, Refused> {
        let second = self.start.elapsed().as_secs();
        let mut unfit = |failure: Failure| {
            if self.reasons.may_say(second).is_some() {
                print::failure(&failure);
            }
            Refused::Unfit
        };
        let status = admit(pid, Purpose::Attach).map_err(&mut unfit)?;
        let held = hold_silently(pid, Purpose::Attach).map_err(|failure| {
            unfit(failure);
            Refused::Taken
        })?;
        if held.is_contended {
            unfit(contended(pid));
        }
        let (target, ends) = attach::open(&self.observers, pid, status.name, policy::PAPER).map_err(&mut unfit)?;
        // Checked last: since it was opened the process may have become another program by exec.
        may_watch(pid, peer).map_err(|failure| {
            unfit(failure);
            Refused::NotYours
        })?;
        Ok(Opened { target, ends, lock: Box::new(held) })
    }

    fn signal(&mut self, pid: Pid, user: u32, pidfd: BorrowedFd<'_>, signal: i32, value: u64) -> Result<(), Unsent> {
        // A real-time signal without a handler ends a process, such as one that has become another program by exec.
        match signals::is_expected(&*HOST, pid, signal) {
            Ok(true) => {}
            Ok(false) => return Err(Unsent::NoHandler),
            Err(_) => return Err(Unsent::Kernel(Errno::SRCH)),
        }
        if !belongs_to(&*HOST, pid, user)? {
            return Err(Unsent::OtherUser);
        }
        queued_signal::queue(pidfd, signal, value).map_err(Unsent::Kernel)
    }

    fn report(&mut self, what: &Event<'_>) {
        let at = self.start.elapsed().as_secs_f64();
        let mut left_out = 0;
        if anybody_can_cause(what) {
            let Some(before) = self.complaints.may_say(self.start.elapsed().as_secs()) else { return };
            left_out = before;
        }
        let line = if self.json { Some(told_json(what, at, left_out).to_string()) } else { told(what, at) };
        let Some(mut line) = line else { return };
        if left_out > 0 && !self.json {
            line += &format!(" (and {left_out} more such lines)");
        }
        if !self.unwritten.is_lost() {
            let mut out = print::out();
            self.unwritten.take(writeln!(out, "{line}").and_then(|()| out.flush()));
        }
    }
}

/// True for an event that any user can cause at any rate.
fn anybody_can_cause(what: &Event<'_>) -> bool {
    match what {
        Event::Refused(..) | Event::Malformed(_) | Event::Full(_) => true,
        Event::Registered(program)
        | Event::Changed(program)
        | Event::Removed(program, _)
        | Event::Halted(program)
        | Event::NotNotified(program, _)
        | Event::Round(program, _) => program.user != 0,
        _ => false,
    }
}

impl Surroundings {
    fn print_start(&mut self, socket: &Path) {
        let (backend, socket) = (self.observers.backend, socket.display());
        let mut out = print::out();
        let said = if self.json {
            writeln!(
                out,
                "{}",
                json!({ "event": "listening", "socket": socket.to_string(), "backend": backend, "rung": backend })
            )
        } else {
            writeln!(out, "listening at {socket}   observing by {backend}\n{:>9}  {:>8}  program", "time", "process")
        };
        self.unwritten.take(said.and_then(|()| out.flush()));
    }
}

/// One line for people; `None` for events that happen all the time.
fn told(what: &Event<'_>, at: f64) -> Option<String> {
    let of = |program: &Watched, text: &str| {
        let (pid, name) = (program.target.pid, &program.target.name);
        format!("{at:>7.1} s  {pid:>8}  {name}: {text}")
    };
    let user = |peer: &Peer, text: &str| {
        let pid = peer.pid.map_or("?".to_owned(), |pid| pid.to_string());
        format!("{at:>7.1} s  {pid:>8}  user {}: {text}", peer.user)
    };
    Some(match what {
        Event::Registered(program) => of(program, &format!("registered; {}", terms_in_words(program))),
        Event::Changed(program) => of(program, &format!("other terms; {}", terms_in_words(program))),
        Event::Refused(peer, why) => user(peer, &format!("refused: {}", why.text().to_string_lossy())),
        Event::Malformed(peer) => user(peer, "cut off: it sent a malformed message"),
        Event::NotNotified(program, why) => of(program, &format!("not told: {}", unsent_in_words(*why))),
        Event::Halted(program) => of(
            program,
            &match program.target.halted() {
                Some(halted) => format!("is {halted}. {}", halted.remedy(program.target.pid)),
                None => "runs again".to_owned(),
            },
        ),
        Event::Round(program, before) => of(program, &round_in_words(program.totals(), *before)?),
        Event::Removed(program, why) => of(program, &farewell_in_words(program, *why)),
        Event::Full(errno) => {
            format!("{at:>7.1} s  {:>8}  cannot take in another program: {}", "", describe(*errno))
        }
        Event::Notified(..) | Event::Fetched(..) | Event::Decided(..) => return None,
    })
}

fn terms_in_words(program: &Watched) -> String {
    let terms = program.terms();
    let who = if terms.decides { "it decides" } else { "the rule decides" };
    let told = match terms.signal {
        0 => "never told".to_owned(),
        signal => format!("told of {} pages or more by signal {signal}", terms.threshold_pages),
    };
    format!("{told}, {} ms a round, {who}", terms.period_ms)
}

fn unsent_in_words(why: Unsent) -> String {
    match why {
        Unsent::NoHandler => "it does not handle the signal any more; tried again later".to_owned(),
        Unsent::OtherUser => "it belongs to another user by now".to_owned(),
        Unsent::Kernel(errno) => format!("{}; tried again later", describe(errno)),
    }
}

/// `None` when nothing changed.
fn round_in_words(now: Totals, before: Totals) -> Option<String> {
    let (promoted, demoted) = (now.promoted - before.promoted, now.demoted - before.demoted);
    let refused = now.refused.saturating_sub(before.refused);
    if (promoted, demoted) == (0, 0) {
        return None;
    }
    let extra = Bytes(now.extra_rss_bytes);
    Some(format!("windows promoted {promoted}, demoted {demoted}, refused {refused}; extra memory {extra}"))
}

fn farewell_in_words(program: &Watched, why: EndReason) -> String {
    let totals = program.totals();
    let why = match why {
        EndReason::Unregistered => "not watched any more, as it asked".to_owned(),
        EndReason::Closed => "has left".to_owned(),
        EndReason::Ended => "has ended".to_owned(),
        EndReason::Disconnected => "was cut off".to_owned(),
        EndReason::Stopped => "runs on unwatched".to_owned(),
        EndReason::Failed => match &program.target.failure {
            Some(error) => format!("cannot be worked on any more: {error}"),
            None => "cannot be worked on any more".to_owned(),
        },
    };
    let extra = Bytes(totals.extra_rss_bytes);
    let share = percent((program.target.totals.rss_before + extra).growth_over(program.target.totals.rss_before));
    format!(
        "{why}; in {} rounds and {} signals promoted {}, demoted {}, refused {}; extra memory {extra} ({share}); {:.2} s of a processor",
        totals.rounds,
        totals.signals,
        totals.promoted,
        totals.demoted,
        totals.refused,
        program.spent.as_secs_f64(),
    )
}

/// One object per event, all of them.
fn told_json(what: &Event<'_>, at: f64, left_out: u64) -> Value {
    let mut told = match what {
        Event::Registered(program) => of_program("registered", program, terms_json(program)),
        Event::Changed(program) => of_program("changed", program, terms_json(program)),
        Event::Refused(peer, why) => {
            let why = why.text().to_string_lossy();
            json!({ "event": "refused", "pid": peer.pid, "user": peer.user, "reason": why })
        }
        Event::Malformed(peer) => json!({ "event": "cut-off", "pid": peer.pid, "user": peer.user }),
        Event::Notified(program, pages) => of_program("notified", program, json!({ "active_pages": pages })),
        Event::NotNotified(program, why) => {
            of_program("not-notified", program, json!({ "reason": unsent_in_words(*why) }))
        }
        Event::Fetched(program, windows, pages) => {
            of_program("fetched", program, json!({ "windows": windows, "active_pages": pages }))
        }
        Event::Decided(program, windows) => of_program("decided", program, json!({ "windows": windows })),
        Event::Halted(program) => {
            let pid = program.target.pid;
            let remedy = program.target.halted().map(|halted| halted.remedy(pid));
            of_program("halted", program, json!({ "halted": program.target.halted(), "remedy": remedy }))
        }
        Event::Round(program, _) => of_program("round", program, totals_json(program)),
        Event::Removed(program, why) => {
            let mut value = totals_json(program);
            value["reason"] = json!(farewell_name(*why));
            of_program("forgotten", program, value)
        }
        Event::Full(errno) => json!({ "event": "full", "reason": describe(*errno) }),
    };
    told["at_s"] = json!(at);
    if left_out > 0 {
        told["left_out"] = json!(left_out);
    }
    told
}

fn of_program(event: &str, program: &Watched, mut value: Value) -> Value {
    value["event"] = json!(event);
    value["pid"] = json!(program.target.pid);
    value["name"] = json!(program.target.name);
    value["user"] = json!(program.user);
    value
}

fn terms_json(program: &Watched) -> Value {
    let terms = program.terms();
    json!({
        "signal": terms.signal, "decides": terms.decides, "threshold_pages": terms.threshold_pages,
        "period_ms": terms.period_ms, "every_ms": terms.every_ms, "hot_rate_per_s": terms.hot_rate,
        "hot_fraction": terms.hot_fraction, "max_extra_rss_fraction": terms.max_extra_rss,
        "rss_bytes": program.target.totals.rss_before,
    })
}

fn totals_json(program: &Watched) -> Value {
    let totals = program.totals();
    let cost = program.target.source().cost();
    json!({
        "rounds": totals.rounds, "signals": totals.signals, "windows_promoted": totals.promoted,
        "windows_demoted": totals.demoted, "promotions_refused": totals.refused,
        "extra_rss_bytes": totals.extra_rss_bytes, "arena_windows": program.arena,
        "settled_s": program.target.totals.settled_at.map(|at| at.as_secs_f64()),
        "cpu_s": program.spent.as_secs_f64(), "scan_us_per_gib": cost.scan.us_per_gib(),
        "clear_us_per_gib": cost.clear.us_per_gib(),
    })
}

fn farewell_name(why: EndReason) -> &'static str {
    match why {
        EndReason::Unregistered => "asked",
        EndReason::Closed => "left",
        EndReason::Ended => "ended",
        EndReason::Disconnected => "cut-off",
        EndReason::Stopped => "stopped",
        EndReason::Failed => "failed",
    }
}

#[cfg(test)]
mod tests {
    use linux::fake::FakeKernel;

    use super::*;

    #[test]
    fn a_round_that_changed_nothing_is_not_worth_a_line() {
        let totals = Totals { rounds: 7, promoted: 5, demoted: 1, ..Totals::default() };
        assert_eq!(round_in_words(totals, totals), None);
        let before = Totals { promoted: 2, ..totals };
        assert_eq!(
            round_in_words(totals, before).unwrap(),
            "windows promoted 3, demoted 0, refused 0; extra memory 0 B"
        );
    }

    #[test]
    fn a_program_that_became_one_of_another_user_is_not_signalled() {
        let with_users = |users: &str| {
            format!(
                "Name:\tx\nState:\tS\nTgid:\t42\nUid:\t{users}\nVmRSS:\t 4 kB\nVmSize:\t 4 kB\nThreads:\t1\nCapEff:\t0\n"
            )
        };
        let belongs = |users: &str, user| {
            let kernel = FakeKernel::new().file("proc/42/status", &with_users(users));
            belongs_to(&kernel, Pid(42), user)
        };
        assert_eq!(belongs("4001\t4001\t4001\t4001", 4001), Ok(true));
        for users in ["4001\t0\t0\t0", "4001\t4001\t0\t4001", "0\t4001\t4001\t4001", "4001\t4001\t4001\t0"] {
            assert_eq!(belongs(users, 4001), Ok(false), "{users}");
        }
        assert_eq!(belongs("33\t33\t33\t33", 0), Ok(true), "a server of root's that gave up its rights");
        assert_eq!(belongs_to(&FakeKernel::new(), Pid(42), 4001), Err(Unsent::Kernel(Errno::SRCH)));
    }

    #[test]
    fn what_anybody_can_have_said_is_said_ten_times_a_second_and_counted() {
        let mut complaints = Complaints::default();
        let said = (0..100).filter(|_| complaints.may_say(7).is_some()).count();
        assert_eq!((said, complaints.may_say(8), complaints.may_say(8)), (10, Some(90), Some(0)));
    }

    #[test]
    fn a_path_that_is_in_use_or_cannot_be_is_refused_in_words() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("track.sock");
        let _first = listen(&path).unwrap();
        let said = listen(&path).unwrap_err().to_string();
        assert!(said.contains("another process listens there") && said.contains("--socket"), "{said}");
        let long = folder.path().join("x".repeat(120));
        assert!(listen(&long).unwrap_err().to_string().contains("too long"));
        let nowhere = folder.path().join("none/track.sock");
        assert!(listen(&nowhere).unwrap_err().to_string().contains("ENOENT"));
    }
}
