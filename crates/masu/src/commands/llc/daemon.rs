//! Start of `masu llc plan` and `masu llc run`: configuration, resctrl mount, and a control loop over both.

use std::path::Path;

use linux::journal::HostSettings;
use linux::resctrl::{Absent, Failed, Resctrl, Why};
use linux::{Error, Rooted};
use llc::daemon::act::{Mount, Unusable, name_of};
use llc::daemon::allocatable_ways::Unfit;
use llc::daemon::config::{Config, NoConfig};
use llc::daemon::control_loop::{Daemon, LoopError, Refused};
use llc::daemon::host::Host;
use llc::daemon::members::BadProgram;
use llc::daemon::others::used_up;
use llc::daemon::steps::Step;

use crate::HOST;
use crate::failure::Failure;
use crate::only_one::Sole;

/// A control loop on this host.
pub type LlcDaemon = Daemon<Host<Rooted>>;

/// Lock for partitioning: two control loops would divide the same cache.
pub const SOLE: Sole = Sole {
    file: "llc.lock",
    cannot: "divide the cache",
    command: "masu llc run",
    remedy: "End it, or name its programs and yours in one configuration.",
};

/// Lock for planning: the groups of a running control loop leave nothing to plan from.
pub const SOLE_PLAN: Sole = Sole {
    file: SOLE.file,
    cannot: "plan from what is there",
    command: SOLE.command,
    remedy: "Its lines say what it has decided; end it first to plan another division.",
};

/// The configuration in `file`.
pub fn config(file: &Path) -> Result<Config, Failure> {
    Config::read(file).map_err(|error| match error {
        NoConfig::Unread { .. } => Failure::new(error).remedy("integrations/llc/llc.toml is an example."),
        NoConfig::Bad(bad) => Failure::new(bad).remedy("masu-llc-run(1) explains what can be said there."),
    })
}

/// The resctrl mount, if the configuration asks for partitions.
pub fn mount(config: &Config, directory: Option<&Path>) -> Result<Option<Mount<'static, Rooted>>, Failure> {
    if !config.partition {
        return Ok(None);
    }
    let found = match directory {
        None => Resctrl::find(&*HOST),
        Some(directory) => {
            let whole = directory.canonicalize().map_err(|error| {
                Failure::new(format!("cannot use {}: {}", directory.display(), linux::describe_io(&error)))
                    .remedy("Name the directory at which resctrl, or an emulator of it, is mounted.")
            })?;
            Resctrl::at(&*HOST, &whole.to_string_lossy())
        }
    };
    let resctrl = found.map_err(|absent| at_absent(&absent))?;
    let mount = Mount::look(&*HOST, resctrl).map_err(|unusable| match &unusable {
        Unusable::NoCache => Failure::new(&unusable)
            .remedy("This processor only counts. With partition = \"off\" masu keeps what is shared in the cache."),
        Unusable::Failed(failed) => at_call(failed),
    })?;
    Ok(Some(mount))
}

fn at_absent(absent: &Absent) -> Failure {
    const OFF: &str =
        "With partition = \"off\" in the configuration masu keeps what is shared in the cache, without partitions.";
    let failure = Failure::new(absent);
    match absent {
        Absent::NotInKernel { processors_could: true } => failure.remedy(format_args!(
            "The processor could: the kernel lacks CONFIG_X86_CPU_RESCTRL, or was started with rdt=!l3cat. {OFF}"
        )),
        Absent::NotInKernel { processors_could: false } => failure.remedy(format_args!(
            "It wants a processor with Intel CAT, AMD QoS or Arm MPAM; virtual machines have none. {OFF}"
        )),
        Absent::NotMounted => failure.remedy("`mount -t resctrl resctrl /sys/fs/resctrl` mounts it."),
        Absent::NotThere(_) => {
            failure.remedy("/proc/mounts says where it is mounted; without --resctrl, masu looks there.")
        }
        Absent::Unknown(_) => failure,
    }
}

/// A control loop that has changed nothing yet.
pub fn daemon(
    config: &Config,
    directory: Option<&Path>,
    settings: HostSettings<'static, Rooted>,
    is_over: impl Fn() -> bool + Send + 'static,
) -> Result<LlcDaemon, Failure> {
    let mount = mount(config, directory)?;
    let host = Host::new(&*HOST, config, mount, settings, is_over).map_err(|error| at_program(&error))?;
    Daemon::new(host, config.clone()).map_err(|error| at_trouble(&error))
}

fn at_program(error: &BadProgram) -> Failure {
    let failure = Failure::new(error);
    match error {
        BadProgram::Thread { process, .. } => failure
            .remedy(format_args!("Name the process, {process}, in the configuration: all its threads go with it.")),
        BadProgram::Kernel { .. } => failure.remedy("Kernel threads work for all programs; name a program."),
        BadProgram::Unread(Error::Gone(_)) => {
            failure.remedy("The configuration names a process that is not there; `pgrep -a NAME` finds a running one.")
        }
        BadProgram::Unread(Error::Unsupported(_)) => {
            failure.remedy("`cat /proc/PID/cgroup` says in which control group a process is.")
        }
        BadProgram::Unread(error) => at_host(error),
    }
}

/// An error of the control loop, with a remedy.
pub fn at_trouble(error: &LoopError) -> Failure {
    match error {
        LoopError::Unfit(unfit) => at_unfit(unfit),
        LoopError::Classes(error, others) => at_trouble(error).remedy(used_up(others).join("; ")),
        LoopError::TooMany(_) => Failure::new(error)
            .remedy("Without l3 = […] programs can share groups; or remove groups that nobody uses any more."),
        LoopError::Step(refused) => at_step(refused),
        LoopError::Unread(failed) => at_call(failed),
        LoopError::Unseen(error) => at_host(error),
        LoopError::Nothing(why) => Failure::new(format!("cannot keep shared pages in the cache: {why}"))
            .remedy("partition = \"off\" leaves nothing else to do; `masu llc shared` says what is shared."),
    }
}

fn at_unfit(unfit: &Unfit) -> Failure {
    let failure = Failure::new(unfit);
    match unfit {
        Unfit::Config(_) => {
            failure.remedy("`masu facts`, or info/L3 in the file system, says how many ways and classes there are.")
        }
        Unfit::Classes { .. } => {
            failure.remedy("Remove groups that nobody uses any more (rmdir), or give fewer programs a fixed mask.")
        }
        Unfit::Ways { .. } => failure.remedy("Give rest_ways, fixed masks or exclusive groups of others fewer ways."),
    }
}

fn at_step(refused: &Refused) -> Failure {
    let answer = refused.failed.to_string();
    // The step already names the object.
    let answer = ["cannot make ", "cannot remove ", "cannot "].iter().find_map(|start| answer.strip_prefix(start));
    let answer = answer.map_or_else(|| refused.failed.to_string(), str::to_owned);
    let failure = Failure::new(format!("cannot {}: {answer}", refused.step));
    match (refused.failed.why, &refused.step) {
        (Why::NameTaken, Step::Make(label)) => failure.remedy(format_args!(
            "Somebody else uses {}: give the program another name, or remove the group if nobody does.",
            name_of(label)
        )),
        (Why::Full, _) => failure.remedy("Remove groups that nobody uses any more (rmdir), or name fewer programs."),
        (Why::Busy, _) => failure.remedy("Numbers of removed groups are still in the cache: try again in a minute."),
        (Why::Denied, Step::Process(..) | Step::Thread(..)) => failure.remedy(
            "The kernel lets user 0 of the host move tasks of all users: run as root, outside of user namespaces.",
        ),
        (Why::Refused, _) => failure.remedy("Another group may be exclusive by now: `masu llc plan` looks anew."),
        _ => with_remedy(failure, &refused.failed),
    }
}

fn at_call(failed: &Failed) -> Failure {
    with_remedy(Failure::new(failed), failed)
}

fn with_remedy(failure: Failure, failed: &Failed) -> Failure {
    match failed.why {
        Why::Denied => failure.remedy("Run as root."),
        Why::Locked => failure.remedy("Another program changes it just now: try again."),
        Why::Gone => failure.remedy("It was unmounted, or the emulator has ended: with that all groups are gone, and nothing is left to restore."),
        _ => failure,
    }
}

/// An error that does not come from resctrl.
pub fn at_host(error: &Error) -> Failure {
    let failure = Failure::new(error);
    match error {
        Error::Denied(_) => failure.remedy("Run as root: frames of pages are shown to CAP_SYS_ADMIN alone."),
        Error::Unsupported(_) => failure.remedy("`masu facts` lists what this host offers and what is missing."),
        Error::Gone(_) | Error::Malformed { .. } | Error::Other(_) => failure,
    }
}
