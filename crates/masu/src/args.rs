//! Arguments and their help.

mod aging;
mod llc;
mod restore;
pub mod run;
mod serve;
mod set;

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use access::Backend;
use clap::{Args as ClapArgs, Parser, Subcommand, ValueEnum};
use contract::placement::Size;
use linux::Pid;
use serde::{Deserialize, Serialize};
use units::{Bytes, Fraction, NonZeroFraction};

pub use aging::{AgingTask, Budget};
pub use llc::{DomainBy, LlcPart, LlcRunTask, LlcTask, PlanTask, SharedTask, SimulateTask};
pub use restore::RestoreTask;
pub use serve::{ServeTask, StatusTask};
pub use set::{SetTask, Word};

/// Place each page of a Linux program: huge pages, far memory, page cache, cache partitions
///
/// `masu attach` puts the hot 2 MiB windows of a running program on huge pages, and splits idle ones.
/// `masu run` starts a program on huge pages from the first touch.
/// `masu run --local` starts a program in less memory than it uses: the rest is in a file or in Redis.
/// `masu aging` gives each class of pages a protection level, and drops pages behind streams.
/// `masu llc` partitions the last-level cache, also where programs share pages.
///
/// No kernel patch, no change to the program. `masu facts` lists the features of this machine.
#[derive(Debug, Parser)]
#[command(name = "masu", version, max_term_width = 100, subcommand_required = true, arg_required_else_help = true)]
#[command(verbatim_doc_comment)]
#[command(after_help = "\
Examples:
  masu facts                            host capabilities, and the remedy for each missing one
  masu pages $(pidof -s redis-server)   how often each page is touched
  masu attach PID --dry-run             the plan, and its price in memory
  masu attach PID --until-settled       promote, report, and end
  masu serve                            serve all processes that rules name
  masu status                           its rules, and each process under them
  masu track                            serve cooperating programs (libmasu)
  masu run -- ./solver input            huge pages from the first touch
  masu run --local 4GiB -- ./solver     4 GiB in memory, the rest in a file
  masu stat PID                         superpages: reserved, allocated, failed, downgraded
  masu set PID huge=off                 no huge pages from now on, without a restart
  masu census                           memory by class, and the part reclaimed first
  masu aging --cache 0 -- ./backup.sh   drop-behind: the backup leaves no trace in the page cache
  masu aging --mapped 100 --cgroup web  the mapped pages of a control group stay in memory
  masu llc shared                       merged pages (KSM), and their sharers
  masu llc run --config llc.toml        partition the cache until Ctrl-C

Exit status: 0 done; 1 done in part, each failure printed; 2 not done.
`masu run` and `masu aging -- COMMAND` return the program's own status.")]
pub struct Args {
    /// Log decisions to standard error; given twice, also each single action
    ///
    /// MASU_LOG sets it by crate and level: `MASU_LOG=debug`, `MASU_LOG=linux=trace,hugepages=debug`.
    #[arg(long, global = true, action = clap::ArgAction::Count)]
    pub verbose: u8,

    #[command(subcommand)]
    pub task: Task,
}

/// Print the completions of a shell
///
/// Use it when masu is installed, and anew after each update. The shell then completes commands and options.
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  masu completions bash > /usr/share/bash-completion/completions/masu
  masu completions zsh > /usr/local/share/zsh/site-functions/_masu
  masu completions fish > ~/.config/fish/completions/masu.fish")]
pub struct CompletionsTask {
    /// Shell: bash, zsh, fish, elvish or powershell
    pub shell: clap_complete::Shell,
}

#[derive(Debug, Subcommand)]
pub enum Task {
    Facts(FactsTask),
    Pages(PagesTask),
    Attach(AttachTask),
    Serve(ServeTask),
    Status(StatusTask),
    Track(TrackTask),
    Run(RunTask),
    Stat(StatTask),
    Census(CensusTask),
    Aging(AgingTask),
    Llc(LlcTask),
    Set(SetTask),
    Restore(RestoreTask),
    Completions(CompletionsTask),
}

/// Start a program on huge pages from the first touch, or with far memory (--local)
///
/// Use it for a program with large mappings that you start yourself; `masu attach` serves running ones. A library
/// inside the program aligns its large mappings and advises huge pages there, and the kernel provides one at the
/// first touch of each window. While the program runs, masu splits sparse huge pages from outside. The program needs
/// no change, and keeps its signals, terminal and exit status.
///
/// Use --local for a program larger than the machine's memory. A part of its pages is local. The others are in a
/// backing store, a file or Redis, and a touch fetches them. That needs no privilege and no change to the program.
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  masu run -- ./solver input              huge pages from the first touch
  masu run --report - -- make -j4         children included; a report even without a terminal
  masu run --huge hot -- ./server         promotion of hot windows from outside, as by `masu attach`
  masu run --code --stack -- ./interpreter script
  masu run --report run.json --json -- ./solver input
  masu run --huge off -- ./solver input   the baseline: no change, the same report
  masu run --local 4GiB -- ./solver input 4 GiB in memory, the rest in a file in /var/tmp
  masu run --local 10% --store redis://node1:6379 -- ./solver input
  masu run --local 4GiB --unit 64KiB --report - -- ./solver input

On huge pages with --huge touch: mmap, brk, malloc (glibc by its own parameter; jemalloc, mimalloc and
tcmalloc by their mappings), .data and .bss of the program and its libraries. Not on huge pages:
shared memory, files, and with glibc the stacks of threads, which need --stack.

masu serves a program that loads no library (static, Go, another C library) from outside, as by
--huge hot, and says so; that needs the privileges of `masu attach`. MASU_DISABLE=1 in the
environment makes the library inert.

With --local, heap, anonymous mappings and .bss from 64 KiB on are paged. Text, files, shared memory
and the first stack are not paged, and come on top. Threads and started programs work. fork fails
with ENOMEM if the program is not all in memory. A lost or changed page is detected and ends the
program. Pages for a server are encrypted with a key in masu's memory alone: the server can neither
read nor replay them. The password for Redis is MASU_STORE_PASSWORD in the environment. Refused:
programs without the system's C library, and set-uid programs.

Exit status: the program's; 125 if masu could not start it, 126 if it is not a program, 127 if it
does not exist. If a signal ended the program, masu ends by the same signal. 2 if a store failed
while the program ran.")]
pub struct RunTask {
    /// Promote windows at the first touch, by heat from outside, or not at all
    #[arg(long, value_name = "HOW", default_value = "touch")]
    pub huge: Huge,

    /// Page sizes to use, such as 2M,64K [default: all that the host provides]
    #[arg(long, value_name = "SIZES", value_delimiter = ',', value_parser = run::page_size)]
    pub sizes: Vec<Size>,

    /// Put the program's text on huge pages, too
    #[arg(long)]
    pub code: bool,

    /// Put stacks on huge pages, too
    #[arg(long)]
    pub stack: bool,

    /// Leave mappings at the kernel's choice of address
    #[arg(long)]
    pub no_align: bool,

    /// Serve the program alone, without the programs that it starts
    #[arg(long)]
    pub no_children: bool,

    /// Untouched memory that huge pages may hold, as a part of the resident memory
    #[arg(long, value_name = "P", default_value = "10%")]
    pub max_extra_rss: Fraction,

    /// Local memory for the program's data, such as 4GiB or 10% of its touched memory; the rest is in the store
    #[arg(long, value_name = "SIZE|N%", conflicts_with_all = ["huge", "sizes", "code", "stack", "no_align", "no_children"])]
    pub local: Option<run::Local>,

    /// Backing store of the rest: file:DIR, redis://HOST:PORT[,HOST:PORT…] or rediss://… [default: file:/var/tmp]
    #[arg(long, value_name = "URL", requires = "local")]
    pub store: Option<String>,

    /// Transfer size of one fault: auto, or 4KiB to 1MiB for all faults; sequential access gains from a large one
    #[arg(long, value_name = "SIZE", requires = "local", default_value = "auto")]
    pub unit: run::Unit,

    /// Smallest transfer size: 4KiB or 16KiB [default: 4KiB; 16KiB with --sections marked]
    #[arg(long, value_name = "SIZE", requires = "local")]
    pub base: Option<run::Base>,

    /// Division of the program into parts with transfer sizes of their own; with off all have 64KiB, or --unit
    /// [default: auto, or off with --unit]
    #[arg(long, value_name = "HOW", requires = "local")]
    pub sections: Option<Sections>,

    /// Disable prefetch and write-behind (with a server)
    #[arg(long, requires = "local")]
    pub no_background: bool,

    /// Seal pages in a file, too: masu then transfers each page, and the program no longer reads the file by itself
    #[arg(long, requires = "local", conflicts_with = "no_seal")]
    pub seal: bool,

    /// Send pages to a server unsealed, for a network without other users: the server can read, change and replay them
    #[arg(long, requires = "local")]
    pub no_seal: bool,

    /// Map pages in and evict them by this backend instead of the best one: move or copy
    #[arg(long, alias = "rung", value_name = "BACKEND", requires = "local")]
    pub backend: Option<run::Exchange>,

    /// Neither load nor save the transfer sizes that the program's instructions learn (site profile)
    #[arg(long, requires = "local")]
    pub no_profile: bool,

    /// End the program when a server is silent for this time, such as 30s [default: the program waits]
    #[arg(long, value_name = "TIME", requires = "local", value_parser = duration)]
    pub store_timeout: Option<Duration>,

    /// Write the report to this file, `-` for standard error [default: standard error, if it is a terminal]
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,

    /// Print the report as one JSON object
    #[arg(long)]
    pub json: bool,

    /// Print neither a report nor remarks
    #[arg(long, short, conflicts_with = "report")]
    pub quiet: bool,

    /// Program and its arguments
    #[arg(value_name = "COMMAND", required = true, trailing_var_arg = true)]
    pub command: Vec<OsString>,
}

/// Time and basis of promotion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Huge {
    /// At the first touch, by a library inside the program.
    Touch,
    /// When it is hot, from outside.
    Hot,
    /// Never: the program runs unchanged.
    Off,
}

impl std::fmt::Display for Huge {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Huge::Touch => "touch",
            Huge::Hot => "hot",
            Huge::Off => "off",
        })
    }
}

/// Division of a paged program into parts with transfer sizes of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Sections {
    /// By the instruction that touches memory.
    Auto,
    /// By swpin_countstart and swpin_refresh in the program.
    Marked,
    /// No division: one transfer size for all, 64 KiB without --unit.
    Off,
}

/// List host capabilities, and the backend of each feature
///
/// Use it first on every machine, as root: many capabilities cannot be tried without privileges. masu finds each one
/// by trying it on its own memory, never from the kernel's version. A feature without its best backend has the reason
/// and the remedy: a config option, a capability, a sysctl.
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  masu facts
  sudo masu facts
  masu facts --json | jq -r '.features[].parts[] | \"\\(.part): \\(.backend)\"'
  masu facts --json | jq '.features[].parts[].missing[]'    missing capabilities, and remedies")]
pub struct FactsTask {
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// Show how often a program touches each page
///
/// Use it before `masu attach`, to find the memory that costs a program its TLB misses. It prints a heat strip for
/// each mapping, and with --runs every run of pages.
///
/// masu clears the accessed bits of the program once and reads them at growing delays (10 ms, 20 ms, 40 ms …). A page
/// counts as touched when the processor walked the page table for it, that is, after a TLB miss. A page whose
/// translation stays in the TLB looks idle.
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Columns:
  address    address of the mapping           resident   part of it in memory
  touched    part of the resident memory      walks/s    page walks per second, all pages together
The strip shows the mapping from its first to its last page in memory. Blank: not in memory. Dot: in
memory and idle. Blocks from low to high: the part of the pages that was touched.

Examples:
  masu pages 4121
  masu pages 4121 --for 30s             a longer observation finds colder pages
  masu pages 4121 --runs                each run of pages, its count and its rate
  masu pages 4121 --json | jq '.mappings[] | {start, path}'")]
pub struct PagesTask {
    /// Process to observe
    #[arg(value_name = "PID")]
    pub pid: Pid,

    /// Time of observation
    #[arg(long = "for", value_name = "TIME", default_value = "5s", value_parser = duration)]
    pub time: Duration,

    /// Also print every run of pages: address, pages, scans that saw it touched, rate
    #[arg(long)]
    pub runs: bool,

    /// Also show small mappings without a touched page
    #[arg(long)]
    pub all: bool,

    /// Print one complete JSON object
    #[arg(long)]
    pub json: bool,

    /// Observe by this backend instead of the best one: bpf-walk, damon-vaddr or residency
    #[arg(long, alias = "rung", value_name = "BACKEND")]
    pub backend: Option<Backend>,
}

/// Put a running program's hot windows on huge pages
///
/// Use it for a program with hundreds of MiB of private memory that it accesses at random, or with huge pages that it
/// hardly uses. Start with --dry-run, while the program does its usual work.
///
/// masu works in rounds until nothing changes. It promotes a window of 2 MiB if at least --hot-fraction of its 512
/// pages are hot, the largest benefit first, while memory grows by at most --max-extra-rss. It splits a huge window
/// that nothing touches, and returns its untouched memory to the system. It measures every change again before it
/// reports it. Huge pages stay when masu ends, unless --undo is given.
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  masu attach 4121                      until Ctrl-C; scans rarely once nothing changes
  masu attach 4121 --until-settled      report and end when nothing changes any more
  masu attach 4121 --dry-run            the plan, and the result of other hot fractions
  masu attach 4121 --max-extra-rss 5%   more memory for more speed
  masu attach 4121 4122 --for 1m        two programs, one list of windows by benefit per byte
  masu attach 4121 --undo --for 1m      a trial for a minute, then undo

Effects on the machine: masu clears the accessed bits of the program's pages; the kernel takes them
for idle until the program touches them again. Each clear holds the program's mmap lock for some
10 ms a GiB. Each promotion holds it for less than a millisecond, or for some milliseconds if the
kernel has to find the memory first. No kernel setting changes but DAMON's, with --backend damon-vaddr.")]
pub struct AttachTask {
    /// Processes to work on
    #[arg(value_name = "PID", required = true)]
    pub pids: Vec<Pid>,

    /// End when nothing changes any more
    #[arg(long, conflicts_with = "time")]
    pub until_settled: bool,

    /// End after this time [default: on Ctrl-C]
    #[arg(long = "for", value_name = "TIME", value_parser = duration)]
    pub time: Option<Duration>,

    /// Part of a window's 512 pages that must be hot
    #[arg(long, value_name = "F", default_value = "1/4")]
    pub hot_fraction: NonZeroFraction,

    /// Memory that promotion may add, as a part of the resident memory
    #[arg(long, value_name = "P", default_value = "1%")]
    pub max_extra_rss: Fraction,

    /// Observe and plan; promote and demote nothing
    #[arg(long)]
    pub dry_run: bool,

    /// Split the windows that this run promoted, before the end
    #[arg(long, conflicts_with = "dry_run")]
    pub undo: bool,

    /// Rounds without a touch before a huge window is split
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    pub demote_after: u32,

    /// Print one JSON object per process at the end
    #[arg(long)]
    pub json: bool,

    /// Observe by this backend instead of the best one: bpf-walk, damon-vaddr or residency
    #[arg(long, alias = "rung", value_name = "BACKEND")]
    pub backend: Option<Backend>,
}

/// Serve cooperating programs: report their active pages, promote by their decisions
///
/// Use it for programs linked with libmasu (masu.h) that know their own objects: caches, databases, language
/// runtimes. It runs until Ctrl-C. The programs go on without it, and keep their huge pages.
///
/// Programs register themselves. masu observes their pages, sends a signal with the number of active pages, and
/// provides the list of them. The program decides on each window of 2 MiB: leave it, promote it to one huge page, or
/// move its hot objects to huge pages of their own. A program without a decision function is treated as by `masu
/// attach`.
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  masu track                                    serve every program that registers
  masu track --max-huge 4GiB --max-huge-per-user 1GiB
  masu track --json >> /var/log/masu-track.json
  masu track --socket /run/user/1000/track.sock & MASU_TRACK=/run/user/1000/track.sock ./cache

Limits on huge pages are shared by benefit: at a limit a window replaces another one that saves at
most half as much. Arenas of programs count against the limits, and are never taken back.

Effects on the machine: for each registered program the same as `masu attach`, and a signal now and
then. No kernel setting changes but DAMON's, with --backend damon-vaddr. One file: the socket.")]
pub struct TrackTask {
    /// Path of the socket
    #[arg(long, value_name = "PATH", default_value = contract::track::SOCKET)]
    pub socket: PathBuf,

    /// Limit on huge pages of all programs together, from masu and in arenas, such as 4GiB [default: no limit]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub max_huge: Option<Bytes>,

    /// The same for all programs of one user together [default: no limit]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub max_huge_per_user: Option<Bytes>,

    /// The same for one program [default: no limit]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub max_huge_per_program: Option<Bytes>,

    /// Limit on programs that one user has registered at a time
    #[arg(long, value_name = "N", default_value_t = 64)]
    pub max_programs: usize,

    /// Limit on the processor time for observing one program, as a part of one processor
    ///
    /// The first promotion of each window comes on top, at a rate that leaves the program two thirds of the time.
    /// A repeated promotion counts like observing.
    #[arg(long, value_name = "P", default_value = "10%")]
    pub max_cpu: NonZeroFraction,

    /// Print one JSON object per event
    #[arg(long)]
    pub json: bool,

    /// Observe by this backend instead of the best one: bpf-walk, damon-vaddr or residency
    #[arg(long, alias = "rung", value_name = "BACKEND")]
    pub backend: Option<Backend>,
}

/// Count superpages: reserved, allocated, failed, downgraded
///
/// Use it to check whether a program got the huge pages that it asked for, and whether the host has more. It changes
/// nothing.
///
/// A superpage is a huge page of 2 MiB. masu counts them from outside, for any process, by kind of memory and by page
/// size. Without a process it prints the host's counts since boot, the part of its free memory in large enough
/// blocks, and the processes that have huge pages or asked for them.
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Columns, in windows of 2 MiB:
  reserved     gets a huge page at the first touch, or has one, or had one
  allocated    huge now
  failed       touched, never huge: no huge page was free, or the touch preceded the advice
  downgraded   once huge, now small pages: split, or partly unmapped or protected
  swapped      all of it is in swap        untouched   nothing was written to it yet

Examples:
  masu stat                             the host, and the processes with huge pages
  masu stat 4121                        one program, by kind of memory and by size
  masu stat 4121 --watch                again every 2 s, until Ctrl-C or until it ends
  masu stat --watch 10s
  masu stat 4121 --json | jq .total")]
pub struct StatTask {
    /// Processes to count in [default: the host]
    #[arg(value_name = "PID")]
    pub pids: Vec<Pid>,

    /// Repeat every 2 s, or at this interval, until Ctrl-C or until the processes have ended
    #[arg(long, value_name = "TIME", num_args = 0..=1, default_missing_value = "2s", value_parser = watch)]
    pub watch: Option<Watch>,

    /// Print one JSON object for each process, or for the host; with --watch one a line
    #[arg(long)]
    pub json: bool,
}

/// Count memory by class: code, read-only data, data, shared memory, page cache
///
/// Use it before a backup or a big copy, to see how much idle memory the kernel can take, and before `masu aging`, to
/// see how much memory each protection level would cover. It needs CAP_SYS_ADMIN, and changes nothing.
///
/// Each page frame has one class, by its use; a page of many processes counts once. For each class masu prints the
/// memory that the kernel takes for active, and the idle memory that it reclaims first.
///
/// The unit is the kernel's folio: all its pages count as mapped if one of them is. Refaults, pages
/// that came back soon after they were reclaimed, are counted since boot or since the control group was created. With
/// --watch they are counted since the previous scan, for files also by class.
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Classes:
  code             files that a process runs
  read-only data   other mapped files
  data             heaps, stacks, and the written pages of private file mappings
  shared memory    memory between programs, and files in tmpfs
  page cache       files that no process maps
Columns:
  active           used more than once lately, by the kernel's lists and the accessed bits of data
  idle             the other pages: the next to be reclaimed
  locked           never reclaimed (mlock, SHM_LOCK)
  lazily freed     dropped first, without swap (MADV_FREE)
  off by at most   95 % confidence bound of the sample
  pages came back  with --watch, files: refaults since the previous scan

Examples:
  masu census                     the host
  masu census 4121 4122           two programs; a page of both counts once
  masu census --cgroup backup     memory charged to a control group, page cache included
  masu census --cgroups           all control groups in one table
  masu census --files             the files that hold the page cache; --files /var/lib: those below it
  masu census --exact             every frame: 30 to 100 ms a GiB
  masu census --watch 10s         again every 10 s, until Ctrl-C
  masu census --json | jq '.classes[] | {class, idle_bytes}'")]
pub struct CensusTask {
    /// Processes to count, by their page tables [default: the host]
    #[arg(value_name = "PID")]
    pub pids: Vec<Pid>,

    /// Count the memory charged to this control group and its descendants
    #[arg(long, value_name = "GROUP", conflicts_with = "pids")]
    pub cgroup: Option<String>,

    /// Count all control groups, each with its descendants, in one table
    #[arg(long, conflicts_with_all = ["pids", "cgroup"])]
    pub cgroups: bool,

    /// Name the files that hold the page cache: below these folders [default: all local file systems]
    #[arg(long, value_name = "FOLDER", num_args = 0.., conflicts_with_all = ["pids", "cgroup", "cgroups", "exact", "watch"])]
    pub files: Option<Vec<std::path::PathBuf>>,

    /// Examine every page frame instead of a sample
    #[arg(long)]
    pub exact: bool,

    /// Repeat every 2 s, or at this interval, until Ctrl-C or until the processes have ended
    #[arg(long, value_name = "TIME", num_args = 0..=1, default_missing_value = "2s", value_parser = watch)]
    pub watch: Option<Watch>,

    /// Print one JSON object; with --watch one a line
    #[arg(long)]
    pub json: bool,
}

/// Value of `--watch`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Watch {
    /// Interval.
    Every(Duration),
    /// A process instead of a time, as in `--watch 4121`.
    Process(Pid),
}

fn watch(text: &str) -> Result<Watch, String> {
    match text.parse() {
        Ok(pid) => Ok(Watch::Process(pid)),
        Err(_) => duration(text).map(Watch::Every),
    }
}

fn duration(text: &str) -> Result<Duration, String> {
    match humantime::parse_duration(text) {
        Ok(time) if !time.is_zero() => Ok(time),
        _ => Err(format!("{text}: expected a time above zero, such as 500ms, 5s or 1m")),
    }
}

fn size(text: &str) -> Result<Bytes, String> {
    text.parse().map_err(|_| format!("{text}: expected a size, such as 512MiB or 4GiB"))
}

#[cfg(test)]
mod tests;
