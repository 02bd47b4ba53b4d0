//! From a process id on the command line to an observable process: every reason against it has its own line.

use std::path::Path;

use access::damon::DamonObserver;
use access::probe::{Probed, probe_for};
use access::residency::ResidencyObserver;
use access::walk::WalkObserver;
use access::{Backend, Observer, choose_backend};
use hugepages::backends::{APART, OUTSIDE};
use linux::auxv::{WordSize, word_size};
use linux::capabilities::Capabilities;
use linux::halted::{self, Halted};
use linux::probe::Known;
use linux::process_lock::{self, ProcessLock, Unlocked};
use linux::runtime_directory::DIRECTORY;
use linux::status::{self, HugePages, Status};
use linux::{Error, KernelFiles, Pid, Untrusted, capabilities, damon, journal::HostSettings};

use crate::failure::Failure;
use crate::terminal::print;
use crate::{Done, HOST, prohibition, runtime};

/// The backends of this host, and the chosen one.
pub struct Observers {
    probed: Probed,
    pub backend: Backend,
    /// Holds the record to take DAMON down if masu is killed.
    _settings: Option<HostSettings<'static, linux::Rooted>>,
}

impl Observers {
    /// Finds the best backend, or checks the requested one.
    pub fn find(wanted: Option<Backend>) -> Result<Observers, Failure> {
        let probed = probe_for(&*HOST, wanted);
        let backend = choose_backend(&probed.backends, wanted).map_err(|missing| {
            let reasons: Vec<String> =
                missing.iter().map(|(backend, why)| format!("{backend}: {}", why.reason)).collect();
            let remedies: Vec<&str> = missing.iter().map(|(_, why)| why.remedy.as_str()).collect();
            let what = if wanted.is_some() { "cannot observe by" } else { "cannot observe any process:" };
            Failure::new(format!("{what} {}", reasons.join("; "))).remedy(remedies.join(" "))
        })?;
        tracing::debug!(%backend, "backend chosen");
        if wanted.is_none() && backend != Backend::BpfWalk {
            for (better, why) in probed.backends.best().1 {
                print::note(format_args!(
                    "observing by {backend} ({}), not by {better}: {}",
                    backend.exactness(),
                    why.reason
                ));
            }
        }
        let settings = if backend == Backend::DamonVaddr { Some(record_undo_of_damon()?) } else { None };
        Ok(Observers { probed, backend, _settings: settings })
    }

    /// Opens an observer of `pid`.
    pub fn open(&self, pid: Pid) -> Result<Box<dyn Observer>, Failure> {
        let files: &'static linux::Rooted = &HOST;
        let observer: Result<Box<dyn Observer>, Error> = match (self.backend, &self.probed.walker) {
            (Backend::BpfWalk, Some(walker)) => {
                WalkObserver::new(walker.clone(), files, pid).map(|observer| Box::new(observer) as Box<dyn Observer>)
            }
            (Backend::DamonVaddr, _) => {
                DamonObserver::start(files, pid).map(|observer| Box::new(observer) as Box<dyn Observer>)
            }
            (Backend::BpfWalk | Backend::Residency, _) => {
                ResidencyObserver::new(files, pid).map(|observer| Box::new(observer) as Box<dyn Observer>)
            }
        };
        observer.map_err(|error| Failure::at_process(&error))
    }
}

fn record_undo_of_damon() -> Result<HostSettings<'static, linux::Rooted>, Failure> {
    let failed = |error: Error| Failure::new(format!("cannot keep a journal for DAMON: {error}"));
    let mut settings = runtime::settings()?;
    damon::record_undo(&mut settings).map_err(failed)?;
    Ok(settings)
}

/// Locks a process for one masu at a time: two would clear each other's bits and undo each other's work.
pub fn hold(pid: Pid, purpose: Purpose) -> Result<ProcessLock, Failure> {
    let held = hold_silently(pid, purpose)?;
    if held.is_contended {
        print::failure(&contended(pid));
    }
    Ok(held)
}

/// Locks a process without a message about an owner's masu beside root's.
pub fn hold_silently(pid: Pid, purpose: Purpose) -> Result<ProcessLock, Failure> {
    process_lock::lock(Path::new(DIRECTORY), pid).map_err(|unlocked| match unlocked {
        Unlocked::Held => {
            let remedy = "Wait for it, or end it with Ctrl-C; several processes can be given to one masu.";
            refuse(pid, purpose, "another masu is at work on it", remedy)
        }
        Unlocked::Failed(error) => runtime::at_directory(&format!("{} process {pid}", purpose.verb()), &error),
    })
}

/// Note about an owner's masu, or another program with the owner's lock: root goes on beside it.
pub fn contended(pid: Pid) -> Failure {
    Failure::new(format!(
        "another program holds /proc/{pid}/maps locked, as a masu of the owner does; root's goes on beside it"
    ))
    .remedy(format!("`grep :$(stat -c %i /proc/{pid}/maps) /proc/locks` names its process."))
}

/// Runs `work` for each. A failure of some is printed, a failure of all is returned.
pub fn each<T: Clone, U>(all: &[T], mut work: impl FnMut(T) -> Result<U, Failure>) -> Result<(Vec<U>, Done), Failure> {
    let mut good = Vec::new();
    let mut failures = Vec::new();
    for one in all {
        match work(one.clone()) {
            Ok(result) => good.push(result),
            Err(failure) => failures.push(failure),
        }
    }
    let last = if good.is_empty() { failures.pop() } else { None };
    let done = if failures.is_empty() { Done::Whole } else { Done::InPart };
    failures.iter().for_each(print::failure);
    match last {
        Some(failure) => Err(failure),
        None => Ok((good, done)),
    }
}

/// Purpose of opening a process: attaching requires more than looking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Read only.
    Look,
    /// Promote and demote.
    Attach,
    /// Have the process make a system call.
    Change,
}

impl Purpose {
    fn verb(self) -> &'static str {
        match self {
            Purpose::Look => "look at",
            Purpose::Attach => "attach to",
            Purpose::Change => "change",
        }
    }
}

/// Checks that masu can work on `pid`, and returns its status.
pub fn admit(pid: Pid, purpose: Purpose) -> Result<Status, Failure> {
    let status = status::status(&*HOST, pid).map_err(|error| {
        let failure = match &error {
            Error::Gone(_) => Failure::new(format!("cannot {} process {pid}: no such process (ESRCH)", purpose.verb())),
            other => Failure::new(other),
        };
        failure.remedy("`pgrep -a NAME` finds a running one.")
    })?;
    judge(pid, &status, purpose)?;
    match word_size(pid) {
        Ok(WordSize::Bits32) => {
            return Err(refuse(pid, purpose, "it is a 32-bit program", "masu works on 64-bit programs."));
        }
        Err(Error::Denied(_)) => {
            let own = capabilities::own(&*HOST).unwrap_or_default();
            let (why, remedy) = why_denied(&status, rustix::process::geteuid().as_raw(), own);
            return Err(refuse(pid, purpose, &format!("{why}: permission denied (EACCES)"), remedy));
        }
        Ok(WordSize::Bits64) | Err(_) => {}
    }
    if purpose != Purpose::Look {
        may_advise(pid, purpose, &*HOST)?;
    }
    Ok(status)
}

/// Reason for which the kernel denies masu, with these rights, access to a process, and the remedy.
fn why_denied(status: &Status, user: u32, own: Capabilities) -> (String, &'static str) {
    let more: Vec<&str> =
        Capabilities(status.effective_capabilities & !own.0).known().map(capabilities::Capability::name).collect();
    let remedy = if user == 0 { "Run with CAP_SYS_PTRACE." } else { "Run as root, or with CAP_SYS_PTRACE." };
    let why = match (status.uid == user, more.is_empty()) {
        (false, _) => "it belongs to somebody else".to_owned(),
        (true, false) => format!("it has capabilities that masu lacks ({})", more.join(", ")),
        (true, true) => {
            "it is closed to its own user, as after a change of user or by prctl (PR_SET_DUMPABLE), or has \
                         more privileges than masu"
                .to_owned()
        }
    };
    (why, remedy)
}

/// Says that a process cannot run, if that is so. Returns the cause.
pub fn say_halted(pid: Pid, name: &Untrusted) -> Option<Halted> {
    let halted = halted::halted(&*HOST, pid);
    if let Some(halted) = &halted {
        print::failure(&halted_failure(pid, name, halted));
    }
    halted
}

/// Note about a process that cannot run.
pub fn halted_failure(pid: Pid, name: &Untrusted, halted: &Halted) -> Failure {
    Failure::new(format!("process {pid} ({name}) is {halted}: until it runs, no access is no sign of idle memory"))
        .remedy(halted.remedy(pid))
}

/// Reasons against it in the status alone.
fn judge(pid: Pid, status: &Status, purpose: Purpose) -> Result<(), Failure> {
    let no = |why: &str, remedy: &str| Err(refuse(pid, purpose, why, remedy));
    if status.thread_group != pid {
        let leader = status.thread_group;
        return no(&format!("it is a thread of process {leader}"), &format!("Name the process: {leader}."));
    }
    if status.kernel_thread {
        return no("it is a kernel thread", "Kernel threads have no memory of their own; name a program.");
    }
    if status.first_thread_ended() {
        return no(FIRST_THREAD_ENDED, "masu follows the first thread only.");
    }
    if status.zombie {
        return no("it has ended and waits for its parent (zombie)", "Name a running program.");
    }
    if purpose == Purpose::Attach && status.huge_pages == HugePages::Forbidden {
        let (why, remedy) = prohibition::reason_and_remedy(&*HOST, pid, &status.name);
        return no(&why, &remedy);
    }
    Ok(())
}

/// Reason against a process whose memory `/proc` shows no more, since it shows the first thread's.
pub const FIRST_THREAD_ENDED: &str = "its first thread has ended and left the memory to others";

/// Reasons in the status against having the process make a system call. A seccomp filter is judged at the call.
pub fn may_call(pid: Pid, status: &Status) -> Result<(), Failure> {
    let no = |why: &str, remedy: &str| Err(refuse(pid, Purpose::Change, why, remedy));
    if let Some(tracer) = status.tracer {
        let remedy = format!("One at a time can: end process {tracer} (a debugger, strace) or have it let go.");
        let name = status::status(&*HOST, tracer).map_or(String::new(), |tracer| format!(" ({})", tracer.name));
        return no(&format!("it is traced by process {tracer}{name} already"), &remedy);
    }
    Ok(())
}

fn may_advise(pid: Pid, purpose: Purpose, files: &impl KernelFiles) -> Result<(), Failure> {
    let own = capabilities::own(files).map_err(|error| Failure::at_process(&error))?;
    if capabilities::may_advise_others(files).unwrap_or(false) {
        return Ok(());
    }
    if own.contains(capabilities::Capability::SysNice) {
        return Err(refuse(pid, purpose, &format!("{APART}: operation not permitted (EPERM)"), OUTSIDE));
    }
    let why = "advice to another process needs CAP_SYS_NICE: operation not permitted (EPERM)";
    Err(refuse(pid, purpose, why, "Run as root, or with CAP_SYS_NICE and CAP_SYS_PTRACE."))
}

/// Reports once a reason that would refuse every window: the kernel is too old, or has no huge pages. An unknown is
/// left to the first window.
pub fn can_promote(collapse: &Known<bool>) -> Result<(), Failure> {
    match collapse {
        Known::Value(true) | Known::Unknown(_) => Ok(()),
        Known::Value(false) => {
            let why = "cannot attach to any process: this kernel makes no window huge on demand (MADV_COLLAPSE)";
            Err(Failure::new(why).remedy("Use Linux 6.1 or newer with CONFIG_TRANSPARENT_HUGEPAGE=y."))
        }
    }
}

fn refuse(pid: Pid, purpose: Purpose, why: &str, remedy: &str) -> Failure {
    Failure::new(format!("cannot {} process {pid}: {why}", purpose.verb())).remedy(remedy)
}

#[cfg(test)]
mod tests {
    use linux::status::Seccomp;
    use units::Bytes;

    use super::*;

    fn program() -> Status {
        Status {
            name: "redis-server".into(),
            thread_group: Pid(42),
            uid: 0,
            uids: [0; 4],
            threads: 4,
            kernel_thread: false,
            zombie: false,
            huge_pages: HugePages::Allowed,
            tracer: None,
            seccomp: Seccomp::Off,
            rss: Bytes::gib(1),
            rss_peak: Bytes::gib(1),
            rss_anon: Bytes::gib(1),
            rss_file: Bytes(0),
            rss_shmem: Bytes(0),
            hugetlb: Bytes(0),
            locked: Bytes(0),
            effective_capabilities: 0,
        }
    }

    fn said(status: &Status, purpose: Purpose) -> String {
        judge(Pid(42), status, purpose).unwrap_err().to_string()
    }

    #[test]
    fn an_ordinary_program_is_admitted() {
        assert_eq!(judge(Pid(42), &program(), Purpose::Attach), Ok(()));
    }

    #[test]
    fn an_old_kernel_is_refused_in_one_line_and_an_unknown_one_is_tried() {
        assert_eq!(
            can_promote(&Known::Value(false)).unwrap_err().to_string(),
            "masu: cannot attach to any process: this kernel makes no window huge on demand (MADV_COLLAPSE)\n    \
             Use Linux 6.1 or newer with CONFIG_TRANSPARENT_HUGEPAGE=y."
        );
        assert_eq!(can_promote(&Known::Value(true)), Ok(()));
        assert_eq!(can_promote(&Known::Unknown("cannot allocate memory (ENOMEM)".to_owned())), Ok(()));
    }

    #[test]
    fn each_reason_against_a_process_has_its_own_line() {
        let thread = Status { thread_group: Pid(40), ..program() };
        assert_eq!(
            said(&thread, Purpose::Attach),
            "masu: cannot attach to process 42: it is a thread of process 40\n    Name the process: 40."
        );
        let kernel = Status { kernel_thread: true, ..program() };
        assert!(said(&kernel, Purpose::Look).starts_with("masu: cannot look at process 42: it is a kernel thread\n"));
        let zombie = Status { zombie: true, threads: 1, ..program() };
        assert!(said(&zombie, Purpose::Look).contains("zombie"));
    }

    #[test]
    fn a_denied_process_is_somebody_elses_only_if_its_user_is_another() {
        let own = Capabilities::of(&[capabilities::Capability::SysNice]);
        let (why, remedy) = why_denied(&Status { uid: 4001, ..program() }, 0, own);
        assert_eq!((why.as_str(), remedy), ("it belongs to somebody else", "Run with CAP_SYS_PTRACE."));
        let more = capabilities::Capability::SysAdmin as u32;
        let more = Status { effective_capabilities: own.0 | 1 << more, ..program() };
        let (why, remedy) = why_denied(&more, 0, own);
        assert_eq!(why, "it has capabilities that masu lacks (CAP_SYS_ADMIN)");
        assert_eq!(remedy, "Run with CAP_SYS_PTRACE.");
        let (why, remedy) = why_denied(&Status { uid: 4001, ..program() }, 4001, own);
        assert!(why.starts_with("it is closed to its own user"), "{why}");
        assert_eq!(remedy, "Run as root, or with CAP_SYS_PTRACE.");
    }

    #[test]
    fn a_traced_program_is_not_made_to_call_anything() {
        // No process: above the largest pid of any kernel.
        let traced = Status { tracer: Some(Pid(5_000_000)), ..program() };
        assert_eq!(
            may_call(Pid(42), &traced).unwrap_err().to_string(),
            "masu: cannot change process 42: it is traced by process 5000000 already\n    \
             One at a time can: end process 5000000 (a debugger, strace) or have it let go."
        );
        // Splitting from outside needs no call in it.
        assert_eq!(judge(Pid(42), &traced, Purpose::Change), Ok(()));
        let filtered = Status { seccomp: Seccomp::Filtered, ..program() };
        assert_eq!(may_call(Pid(42), &filtered), Ok(()), "judged at the call");
    }

    #[test]
    fn a_program_that_forbids_huge_pages_can_be_looked_at_but_not_attached_to() {
        let forbidding = Status { huge_pages: HugePages::Forbidden, ..program() };
        assert_eq!(judge(Pid(42), &forbidding, Purpose::Look), Ok(()));
        let said = said(&forbidding, Purpose::Attach);
        assert!(said.contains("redis-server forbids huge pages for itself, or `masu set` did"), "{said}");
    }
}
