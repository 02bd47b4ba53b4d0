//! `masu census`.

mod files;
mod groups;

use std::collections::BTreeSet;
use std::io::Write;

use access::backend::Unavailable;
use access::insertions::Filter;
use access::refaults;
use aging::census::{self, Census, Closeness, Managed, OfClass, OfProcess};
use aging::class::Class;
use linux::cgroup::charges::Charges;
use linux::cgroup::group;
use linux::halted::HaltedProcess;
use linux::meminfo::meminfo;
use linux::probe::Known;
use linux::{Error, KernelFiles, NotRead, Pid, stat};
use units::Bytes;

use crate::args::CensusTask;
use crate::failure::Failure;
use crate::open::{Purpose, admit, each};
use crate::terminal::repeat::{self, every};
use crate::terminal::table::Table;
use crate::{Done, HOST};

/// Processes in the table; the JSON has all.
const SHOWN: usize = 10;

pub fn run(task: &CensusTask) -> Result<Done, Failure> {
    let closeness = if task.exact { Closeness::Exact } else { Closeness::Sampled { seed: seed() } };
    if let Some(folders) = &task.files {
        return files::run(folders, task.json);
    }
    if task.cgroups {
        return groups::run(task, closeness);
    }
    let mut wanted = task.pids.clone();
    let every = every(task.watch, &mut wanted);
    if task.cgroup.is_some() && !wanted.is_empty() {
        let line = "cannot take one census of a control group and of processes";
        return Err(Failure::new(line).remedy("Ask for one after the other."));
    }
    let (whom, done) = if let Some(name) = &task.cgroup {
        (Whom::Group(name.clone()), Done::Whole)
    } else if wanted.is_empty() {
        (Whom::Host, Done::Whole)
    } else {
        let (processes, done) = each(&wanted, Process::admitted)?;
        (Whom::Processes(processes), done)
    };
    let counter = every.is_some().then(|| Counter::of(&whom));
    let mut series = Series { whom, closeness, counter, before: None, before_by_class: Vec::new() };
    repeat::reports(every, task.json, |out| series.print_next(out, task.json))?;
    Ok(done)
}

/// A process, told apart from a later one with the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Process {
    pid: Pid,
    start_ticks: u64,
}

impl Process {
    fn admitted(pid: Pid) -> Result<Process, Failure> {
        admit(pid, Purpose::Look)?;
        let stat = stat::stat(&*HOST, pid).map_err(|error| Failure::at_process(&error))?;
        Ok(Process { pid, start_ticks: stat.start_ticks })
    }

    /// False once the process has ended. A zombie has ended too: it has no memory.
    fn runs(self, files: &impl KernelFiles) -> Result<bool, Error> {
        match stat::stat(files, self.pid) {
            Ok(stat) => Ok(stat.start_ticks == self.start_ticks && !matches!(stat.state, 'Z' | 'X' | 'x')),
            Err(error) if error.is_gone() => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// Scope of the census.
#[derive(Clone, Debug)]
enum Whom {
    Host,
    Group(String),
    Processes(Vec<Process>),
}

/// Counts refaults by class while masu watches.
struct Counter(Result<refaults::Refaults, Unavailable>);

impl Counter {
    fn of(whom: &Whom) -> Counter {
        let memory = meminfo(&*HOST).map_or(Bytes(0), |memory| memory.total).pages();
        let begun = refaults::Refaults::of(whose(whom), memory).and_then(|counter| {
            if let Whom::Processes(processes) = whom {
                processes.iter().try_for_each(|process| counter.add_member(process.pid))?;
            }
            Ok(counter)
        });
        Counter(begun)
    }

    fn so_far(&self, whom: &Whom) -> Result<refaults::Counts, Unavailable> {
        let counter = self.0.as_ref().map_err(Clone::clone)?;
        if let Whom::Group(_) = whom {
            // A group that was removed and made again is another group.
            counter.set_filter(whose(whom))?;
        }
        counter.so_far()
    }

    fn dismiss(&self, pid: Pid) {
        if let Ok(counter) = &self.0 {
            counter.remove_member(pid);
        }
    }
}

fn whose(whom: &Whom) -> Filter {
    match whom {
        Whom::Host => Filter::All,
        Whom::Processes(_) => Filter::Members,
        Whom::Group(name) => {
            let group = group::find(&*HOST, name).ok();
            let inode = group.and_then(|group| HOST.inode(group.path.trim_start_matches('/')).ok());
            inode.map_or(Filter::Members, Filter::Group)
        }
    }
}

/// A single census, or a series.
struct Series {
    whom: Whom,
    closeness: Closeness,
    counter: Option<Counter>,
    /// Refaults that the previous census found.
    before: Option<Refaults>,
    /// Refaults of the previous census by class.
    before_by_class: Vec<Option<u64>>,
}

impl Series {
    /// Takes a census and prints it. False when no further one can follow.
    fn print_next(&mut self, out: &mut Vec<u8>, json: bool) -> Result<bool, Failure> {
        if let Whom::Processes(processes) = &mut self.whom {
            let mut running = Vec::new();
            for process in &*processes {
                // A failed read is not the end: a process cannot be read while it calls execve(2).
                if process.runs(&*HOST).map_err(|error| Failure::at_process(&error))? {
                    running.push(*process);
                } else if let Some(counter) = &self.counter {
                    counter.dismiss(process.pid);
                }
            }
            *processes = running;
            if processes.is_empty() {
                return Ok(false); // Watching ends with the last process.
            }
        }
        // Both counts of refaults at about the same time: the look may take a second.
        let counts = self.counter.as_ref().map(|counter| counter.so_far(&self.whom));
        let mut census = look(&self.whom, self.closeness)?;
        if let Some(counts) = &counts {
            census = census.counted(counts);
        }
        if json {
            serde_json::to_writer(&mut *out, &census)?;
            writeln!(out)?;
        } else {
            let refaults = Refaults::of(&census);
            let since = refaults.map(|now| now.since(self.before, matches!(self.whom, Whom::Group(_))));
            let now: Vec<Option<u64>> = census.classes.iter().map(|of| of.refaults.value().copied()).collect();
            let came_back = self.counter.as_ref().map(|_| self.since(&now));
            print(out, &census, since, came_back.as_deref())?;
            if !matches!(self.whom, Whom::Host) {
                print_halted(out, &census.halted, Some(census.processes.len()))?;
            }
            (self.before, self.before_by_class) = (refaults, now);
        }
        Ok(true)
    }
}

impl Series {
    /// Refaults since the previous census, by class.
    fn since(&self, now: &[Option<u64>]) -> Vec<Option<u64>> {
        let before = |nth: usize| self.before_by_class.get(nth).copied().flatten().unwrap_or(0);
        now.iter().enumerate().map(|(nth, now)| now.map(|now| now.saturating_sub(before(nth)))).collect()
    }
}

fn look(whom: &Whom, closeness: Closeness) -> Result<Census, Failure> {
    let census = match whom {
        Whom::Group(name) => {
            let group = group::find(&*HOST, name).map_err(|error| Failure::new(&error).remedy(WHERE_GROUPS_ARE))?;
            census::of_group(&*HOST, &group, closeness)
        }
        Whom::Host => census::of_host(&*HOST, closeness),
        Whom::Processes(processes) => {
            let pids: BTreeSet<Pid> = processes.iter().map(|process| process.pid).collect();
            census::of_processes(&*HOST, &pids, closeness)
        }
    };
    census.map_err(|error| at_frames(&error))
}

const WHERE_GROUPS_ARE: &str = "`cat /proc/PID/cgroup` says in which group a process is.";

/// Random seed, the same for every census of a run.
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
        Error::Gone(_) | Error::Malformed { .. } => failure,
        Error::Other(_) => Failure::at_process(error),
    }
}

/// Refaults: pages that came back soon after they were evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Refaults {
    files: u64,
    swap: u64,
}

impl Refaults {
    /// `None` where refaults are not counted.
    fn of(census: &Census) -> Option<Refaults> {
        Some(Refaults { files: census.file_refaults?, swap: census.swap_refaults? })
    }

    /// Refaults since the previous census, if there was one. A group that was made anew counts from zero.
    fn since(self, before: Option<Refaults>, of_group: bool) -> (Refaults, &'static str) {
        let more = |before: Refaults| {
            let (files, swap) = (self.files.checked_sub(before.files)?, self.swap.checked_sub(before.swap)?);
            Some((Refaults { files, swap }, "since the last census"))
        };
        let all = (self, if of_group { "since the group was made" } else { "since boot" });
        before.and_then(more).unwrap_or(all)
    }
}

/// The size, or a dash where it is unknown.
fn listed(bytes: &Known<Bytes>) -> String {
    bytes.value().map_or_else(|| "-".to_owned(), Bytes::to_string)
}

/// The rest: active by the kernel's list, or accessed since it last looked.
fn active(of: &OfClass) -> Known<Bytes> {
    match &of.idle_bytes {
        Known::Value(idle) => Known::Value(of.bytes.saturating_sub(*idle + of.locked_bytes)),
        Known::Unknown(why) => Known::Unknown(why.clone()),
    }
}

fn print(
    out: &mut impl Write,
    census: &Census,
    refaults: Option<(Refaults, &str)>,
    came_back: Option<&[Option<u64>]>,
) -> Result<(), Failure> {
    let sampled = census.sampled_fraction < 1.0;
    let none = || "-".to_owned();
    let mut names = vec!["used for", "memory", "active", "idle", "locked", "lazily freed", "off by at most"];
    names.extend(came_back.map(|_| "pages came back"));
    let mut table = Table::new(names);
    for (nth, of) in census.classes.iter().enumerate() {
        let mut row = vec![
            of.class.name().to_owned(),
            of.bytes.to_string(),
            listed(&active(of)),
            listed(&of.idle_bytes),
            of.locked_bytes.to_string(),
            of.lazily_freed_bytes.to_string(),
            of.error_bound_bytes.to_string(),
        ];
        row.extend(came_back.map(|all| all.get(nth).copied().flatten().map_or_else(none, |pages| pages.to_string())));
        table.row(row);
    }
    // An empty pool is not listed.
    for of in census.rest.iter().filter(|of| of.bytes > Bytes(0)) {
        let (name, memory) = (of.rest.name().to_owned(), of.bytes.to_string());
        let mut row = vec![name, memory, none(), none(), none(), none(), of.error_bound_bytes.to_string()];
        row.extend(came_back.map(|_| none()));
        table.row(row);
    }
    table.write(out, "")?;
    writeln!(out)?;
    if let Some(of_kernel) = &census.of_kernel {
        print_charges(out, of_kernel)?;
        writeln!(out)?;
    }
    if let Some(Managed { present_bytes, managed_bytes }) = census.managed {
        let rest = present_bytes.saturating_sub(managed_bytes);
        writeln!(
            out,
            "of {present_bytes}, the kernel hands out {managed_bytes}; {rest} is reserved, or the host took it back"
        )?;
    }
    if came_back.is_some()
        && let Some(why) =
            census.classes.iter().find_map(|of| of.refaults.why_unknown().filter(|_| of.class.is_of_files()))
    {
        writeln!(out, "which files' pages came back is not known: {why}")?;
    }
    if let Some(why) = census.classes.iter().find_map(|of| of.active_bytes.why_unknown()) {
        writeln!(out, "active and idle are not known: {why}")?;
    }
    let took = census.cost_us / 1000;
    if sampled {
        let read = census.sampled_fraction * 100.0;
        writeln!(out, "{read:.1} % of the page frames were read, in {took} ms")?;
    } else {
        writeln!(out, "all page frames were read, in {took} ms")?;
    }
    if let Some((Refaults { files, swap }, since)) = refaults {
        writeln!(out, "pages that came back soon after they had gone, {since}: {files} of files, {swap} from swap")?;
    }
    if census.in_pid_namespace {
        let line = "processes outside of this PID namespace are not seen: their code counts as read-only data";
        writeln!(out, "{line}")?;
    }
    if census.too_large > 0 {
        let line = "processes of more than 8 GiB: their memory is active or idle by the kernel's list alone";
        writeln!(out, "{} {line}", census.too_large)?;
    }
    print_processes(out, &census.processes)?;
    for NotRead { processes, first } in &census.not_read {
        let what = if *processes == 1 { "process" } else { "processes" };
        writeln!(out, "{processes} {what} could not be read, whose code counts as read-only data; the first: {first}")?;
    }
    Ok(())
}

/// Processes that cannot run, and so touch nothing. `of`: the number of processes looked at.
fn print_halted(out: &mut impl Write, halted: &[HaltedProcess], of: Option<usize>) -> Result<(), Failure> {
    let Some(HaltedProcess { pid, name, why }) = halted.first() else { return Ok(()) };
    let whose = match (halted.len(), of) {
        (1, _) => String::new(),
        (count, Some(of)) => format!("{count} of {of} processes cannot run; "),
        (count, None) => format!("{count} processes cannot run; "),
    };
    writeln!(out, "{whose}process {pid} ({name}) is {why}: until it runs, no access is no sign of idle memory")?;
    writeln!(out, "    {}", why.remedy(*pid))?;
    Ok(())
}

/// The kernel's own count of a group.
fn print_charges(out: &mut impl Write, of: &Charges) -> Result<(), Failure> {
    let mut table = Table::new(["the kernel's own count", "memory"]);
    let mut row = |name: &str, bytes: Option<Bytes>| {
        if let Some(bytes) = bytes {
            table.row([name.to_owned(), bytes.to_string()]);
        }
    };
    row("charged", Some(of.usage_bytes));
    row("limit", of.limit_bytes);
    row("anonymous", Some(of.anonymous_bytes));
    row("files", Some(of.file_bytes));
    row("shared memory", Some(of.shared_bytes));
    row("kernel memory", of.kernel_bytes);
    row("inactive files", Some(of.inactive_file_bytes));
    row("working set, as kubelet counts", Some(of.working_set_bytes));
    row("in swap", of.swap_bytes);
    row("huge page pool, on top", of.huge_pool_bytes);
    table.write(out, "")?;
    Ok(())
}

fn print_processes(out: &mut impl Write, processes: &[OfProcess]) -> Result<(), Failure> {
    if processes.is_empty() {
        return Ok(());
    }
    writeln!(out)?;
    let names = [Class::Code, Class::ReadOnly, Class::Data, Class::Shared].map(Class::name);
    let mut table = Table::new(["pid", "resident", names[0], names[1], names[2], names[3], "major faults", "name"]);
    for process in processes.iter().take(SHOWN) {
        table.row([
            process.pid.to_string(),
            process.resident().to_string(),
            process.code_bytes.to_string(),
            process.read_only_bytes.to_string(),
            process.data_bytes.to_string(),
            process.shared_bytes.to_string(),
            process.major_faults.to_string(),
            process.name.to_string(),
        ]);
    }
    table.write(out, "")?;
    let left_out = &processes[processes.len().min(SHOWN)..];
    if !left_out.is_empty() {
        let resident: Bytes = left_out.iter().map(OfProcess::resident).sum();
        writeln!(out, "and {} more with {resident}; --json has all", left_out.len())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use linux::Rooted;

    use super::*;

    fn runs(stat: Option<&str>) -> bool {
        let tree = tempfile::tempdir().unwrap();
        fs::create_dir_all(tree.path().join("proc/7")).unwrap();
        if let Some(text) = stat {
            fs::write(tree.path().join("proc/7/stat"), text).unwrap();
        }
        Process { pid: Pid(7), start_ticks: 900 }.runs(&Rooted::at(tree.path())).unwrap()
    }

    #[test]
    fn a_process_has_ended_when_its_number_is_free_or_anothers_and_when_it_is_a_zombie() {
        let line = |state: char, start: u64| {
            format!(
                "7 (a b) {state} 1 7 7 0 -1 4194304 100 0 5 0 1 2 0 0 20 0 1 0 {start} 1000 10 18446744073709551615\n"
            )
        };
        assert!(runs(Some(&line('S', 900))) && runs(Some(&line('T', 900))));
        assert!(!runs(Some(&line('Z', 900))));
        assert!(!runs(Some(&line('S', 901))));
        assert!(!runs(None));
    }

    #[test]
    fn what_came_back_is_told_since_boot_and_then_since_the_last_look() {
        let of = |files, swap| Refaults { files, swap };
        assert_eq!(of(70, 7).since(None, false), (of(70, 7), "since boot"));
        assert_eq!(of(70, 7).since(None, true), (of(70, 7), "since the group was made"));
        assert_eq!(of(70, 7).since(Some(of(60, 7)), true), (of(10, 0), "since the last census"));
        // A group of this name was removed and made again.
        assert_eq!(of(3, 0).since(Some(of(60, 7)), true), (of(3, 0), "since the group was made"));
    }
}
