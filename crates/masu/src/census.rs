//! `masu census`.

use std::collections::BTreeSet;
use std::io::Write;

use aging::census::{self, Census, Closeness, OfProcess};
use aging::class::Class;
use linux::cgroup::group;
use linux::facts::Known;
use linux::{Error, Pid};
use quantities::Bytes;

use crate::args::CensusTask;
use crate::control::{Stop, Terminal};
use crate::failure::Failure;
use crate::open::{Purpose, admit, each};
use crate::print::Table;
use crate::repeat::{again_and_again, every};
use crate::{Done, HOST};

/// Processes in the table; all are in the JSON.
const SHOWN: usize = 10;

pub fn run(task: &CensusTask) -> Result<Done, Failure> {
    let stop = Stop::on_signals()?;
    let closeness = if task.exact { Closeness::Exact } else { Closeness::Sampled { seed: seed() } };
    let mut wanted = task.pids.clone();
    let every = every(task.watch, &mut wanted);
    if task.cgroup.is_some() && !wanted.is_empty() {
        let line = "cannot look at a control group and at processes in one census";
        return Err(Failure::new(line).remedy("Ask for one after the other."));
    }
    let (admitted, done) = if wanted.is_empty() {
        (Vec::new(), Done::Whole)
    } else {
        each(&wanted, |pid| admit(pid, Purpose::Look).map(|_| pid))?
    };
    let mut pids: BTreeSet<Pid> = admitted.into_iter().collect();
    let mut first = true;
    again_and_again(every, Terminal::new(stop, Vec::new()), task.json, |out| {
        let census = look(task.cgroup.as_deref(), &pids, closeness)?;
        if !wanted.is_empty() {
            pids = census.processes.iter().map(|process| process.pid).collect();
        }
        let have_ended = !wanted.is_empty() && pids.is_empty();
        if have_ended && !first {
            return Ok(false); // Their end is what watching waits for.
        }
        first = false;
        if task.json {
            serde_json::to_writer(&mut *out, &census)?;
            writeln!(out)?;
        } else {
            print(out, &census)?;
        }
        Ok(!have_ended)
    })?;
    Ok(done)
}

fn look(cgroup: Option<&str>, pids: &BTreeSet<Pid>, closeness: Closeness) -> Result<Census, Failure> {
    let census = if let Some(name) = cgroup {
        let group = group::find(&*HOST, name).map_err(|error| Failure::new(&error).remedy(WHERE_GROUPS_ARE))?;
        census::of_group(&*HOST, &group, closeness)
    } else if pids.is_empty() {
        census::of_host(&*HOST, closeness)
    } else {
        census::of_processes(&*HOST, pids, closeness)
    };
    census.map_err(|error| at_frames(&error))
}

const WHERE_GROUPS_ARE: &str = "`cat /proc/PID/cgroup` says in which group a process is.";

/// Chance, the same for all looks of a run.
fn seed() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    u64::from(now.subsec_nanos()) << 32 | u64::from(std::process::id())
}

fn at_frames(error: &Error) -> Failure {
    let failure = Failure::new(error);
    match error {
        Error::Denied(_) => {
            let remedy = "Run as root with CAP_SYS_ADMIN, which root in a container has to be given (--cap-add SYS_ADMIN): \
                what each page frame is used for is shown to nobody else.";
            failure.remedy(remedy)
        }
        Error::Unsupported(_) => failure.remedy("The census needs a kernel with CONFIG_PROC_PAGE_MONITOR."),
        Error::Gone(_) | Error::Malformed { .. } | Error::Other(_) => failure,
    }
}

/// What is not known is a dash.
fn listed(bytes: &Known<Bytes>) -> String {
    bytes.value().map_or_else(|| "-".to_owned(), Bytes::to_string)
}

fn print(out: &mut impl Write, census: &Census) -> Result<(), Failure> {
    let sampled = census.sampled_fraction < 1.0;
    let bound = |bytes: Bytes| bytes.to_string();
    let mut table = Table::new(&["used for", "memory", "active", "idle", "locked", "off by at most"]);
    for of in &census.classes {
        table.row([
            of.class.name().to_owned(),
            of.bytes.to_string(),
            listed(&of.active_bytes),
            listed(&of.idle_bytes),
            of.locked_bytes.to_string(),
            bound(of.error_bound_bytes),
        ]);
    }
    let none = || "-".to_owned();
    // A pool that nobody has set up is no news.
    for of in census.rest.iter().filter(|of| of.bytes > Bytes(0)) {
        let (name, memory) = (of.rest.name().to_owned(), of.bytes.to_string());
        table.row([name, memory, none(), none(), none(), bound(of.error_bound_bytes)]);
    }
    table.write(out, "")?;
    writeln!(out)?;
    if let Some(why) = census.classes.iter().find_map(|of| of.active_bytes.why_unknown()) {
        writeln!(out, "active and idle are not known: {why}")?;
    }
    let took = census.cost_us / 1000;
    if sampled {
        let looked_at = census.sampled_fraction * 100.0;
        writeln!(out, "{looked_at:.1} % of the page frames were looked at, in {took} ms")?;
    } else {
        writeln!(out, "all page frames were looked at, in {took} ms")?;
    }
    if let (Some(files), Some(swap)) = (census.file_refaults, census.swap_refaults) {
        writeln!(out, "pages that came back soon after they had gone: {files} of files, {swap} from swap")?;
    }
    print_processes(out, &census.processes, census.processes_not_read)
}

fn print_processes(out: &mut impl Write, processes: &[OfProcess], not_read: u64) -> Result<(), Failure> {
    if processes.is_empty() {
        return Ok(());
    }
    writeln!(out)?;
    let names = [Class::Code, Class::ReadOnly, Class::Data, Class::Shared].map(Class::name);
    let mut table = Table::new(&["pid", "resident", names[0], names[1], names[2], names[3], "major faults", "name"]);
    for process in processes.iter().take(SHOWN) {
        table.row([
            process.pid.to_string(),
            process.resident().to_string(),
            process.code_bytes.to_string(),
            process.read_only_bytes.to_string(),
            process.data_bytes.to_string(),
            process.shared_bytes.to_string(),
            process.major_faults.to_string(),
            process.name.clone(),
        ]);
    }
    table.write(out, "")?;
    let left_out = &processes[processes.len().min(SHOWN)..];
    if !left_out.is_empty() {
        let resident: Bytes = left_out.iter().map(OfProcess::resident).sum();
        writeln!(out, "and {} more with {resident}; --json has all", left_out.len())?;
    }
    if not_read > 0 {
        let processes = if not_read == 1 { "process" } else { "processes" };
        writeln!(out, "{not_read} {processes} could not be looked at, whose code counts as read-only data")?;
    }
    Ok(())
}
