//! Arguments and their help.

mod aging;
mod llc;
pub mod run;

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use access::Backend;
use clap::{Args as ClapArgs, Parser, Subcommand, ValueEnum};
use contract::policy::Size;
use linux::Pid;
use serde::Serialize;
use units::{Bytes, Fraction, NonZeroFraction};

pub use aging::{AgingTask, Budget};
pub use llc::{DomainBy, LlcPart, LlcRunTask, LlcTask, PlanTask, SharedTask, SimulateTask};

/// The right place for every page of a running program.
///
/// masu watches which pages a program touches, puts the hot 2 MiB windows on huge pages, gives back what is not worth
/// one, and shows what it did. No kernel patch, no change to the program, no restart.
#[derive(Debug, Parser)]
#[command(name = "masu", version, max_term_width = 100, subcommand_required = true, arg_required_else_help = true)]
#[command(after_help = "\
Examples:
  masu facts                            what this machine offers, and how to get what it does not
  masu pages $(pidof -s redis-server)   which pages are touched, and how often
  masu attach PID --dry-run             what masu would do, and what it would cost in memory
  masu attach PID --until-settled       do it, report, and leave
  masu track                            serve programs that decide for themselves (libmasu)
  masu run -- ./solver input            start a program on huge pages, from the first touch
  masu stat PID                         its superpages: reserved, allocated, failed, downgraded
  masu set PID huge=off                 no huge pages for it from now on, without a restart
  masu census                           who uses memory for what, and what of it goes first
  masu aging --cache 0 -- ./backup.sh   what it streams leaves no trace in the page cache
  masu aging --mapped 100 --cgroup web  what the group's programs have mapped stays in memory
  masu llc shared                       which pages are merged (KSM), and between whom

Exit status: 0 done, 1 done in part (each failure was printed), 2 not done; `masu run`, and `masu aging`
with a command, pass on the program's own.")]
pub struct Args {
    /// Log decisions and calls to standard error; twice, with each window and page
    ///
    /// MASU_LOG does the same by crate and level: `MASU_LOG=debug`, `MASU_LOG=linux=trace,hugepages=debug`.
    #[arg(long, global = true, action = clap::ArgAction::Count)]
    pub verbose: u8,

    #[command(subcommand)]
    pub task: Task,
}

/// Print the completions of a shell
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  masu completions bash > /usr/share/bash-completion/completions/masu
  masu completions zsh > /usr/local/share/zsh/site-functions/_masu
  masu completions fish > ~/.config/fish/completions/masu.fish")]
pub struct CompletionsTask {
    /// bash, zsh, fish, elvish or powershell
    pub shell: clap_complete::Shell,
}

#[derive(Debug, Subcommand)]
pub enum Task {
    Facts(FactsTask),
    Pages(PagesTask),
    Attach(AttachTask),
    Track(TrackTask),
    Run(RunTask),
    Stat(StatTask),
    Census(CensusTask),
    Aging(AgingTask),
    Llc(LlcTask),
    Set(SetTask),
    Completions(CompletionsTask),
}

/// Start a program whose memory is on huge pages from the first touch
///
/// A library that is loaded into the program aligns its large mappings and asks for huge pages there; the kernel gives one
/// at the first touch of each window. What is touched thinly does not stay huge: while the program runs, masu splits from
/// outside what holds too much for nothing. The program sees nothing of it. Signals, terminal and exit status are its own.
///
/// With --local, a program larger than its machine: so much of its memory is local, and the rest is home in a store, a file
/// or Redis, and comes when it is touched. That needs no privilege and no change to the program.
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  masu run -- ./solver input              huge pages from the first touch
  masu run --report - -- make -j4         with its children; the report even without a terminal
  masu run --huge hot -- ./server         from outside, by what is hot: what `masu attach` does
  masu run --code --stack -- ./interpreter script
  masu run --report run.json --json -- ./solver input
  masu run --huge off -- ./solver input   as it is, with the same report: the baseline
  masu run --local 4GiB -- ./solver input 4 GiB in memory, the rest in a file in /var/tmp
  masu run --local 10% --store redis://node1:6379 -- ./solver input
  masu run --local 4GiB --unit 64KiB --report - -- ./solver input

What is on huge pages with --huge touch: mmap, brk, and what malloc makes of them (glibc by its own
tunable, jemalloc, mimalloc, tcmalloc), .data and .bss of the program and its libraries. Not: shared
memory, files, and with glibc the stacks of threads, which need --stack.

A program that loads no library (static, Go, another C library) is served from outside, as by --huge
hot, and masu says so; for that it needs the privileges of `masu attach`. In the environment,
MASU_DISABLE=1 makes the library inert.

With --local: heap, anonymous mappings and .bss from 64 KiB on are paged; text, files, shared memory
and the first stack are not, and come on top. Threads and programs that it starts work; a fork that
copies a program which is not all in memory fails with ENOMEM. What a store loses or changes is found
and ends the program. Pages for a server are encrypted by a key that is in masu's memory alone: it can
neither read nor replay them. A password for Redis: MASU_STORE_PASSWORD in the environment.
Refused: programs without the system's C library, and set-uid ones.

Exit status: the program's, or 125 when masu could not start it, 126 when it is no program, 127 when
there is none; a program that a signal ended ends masu by the same signal. 2 when a store failed under
a program that was running.")]
pub struct RunTask {
    /// From the first touch, by heat from outside, or not at all
    #[arg(long, value_name = "HOW", default_value = "touch")]
    pub huge: Huge,

    /// Sizes of pages to use, such as 2M,64K [default: all that the host gives]
    #[arg(long, value_name = "SIZES", value_delimiter = ',', value_parser = run::page_size)]
    pub sizes: Vec<Size>,

    /// Put the program's text on huge pages, too
    #[arg(long)]
    pub code: bool,

    /// Put stacks on huge pages, too
    #[arg(long)]
    pub stack: bool,

    /// Leave mappings where the kernel puts them
    #[arg(long)]
    pub no_align: bool,

    /// Serve the program alone and not what it starts
    #[arg(long)]
    pub no_children: bool,

    /// Memory that huge pages may hold for nothing, as a part of the resident memory
    #[arg(long, value_name = "P", default_value = "10%")]
    pub max_extra_rss: Fraction,

    /// Local memory for the program's data, such as 4GiB or 10% of what it touches; the rest is in the store
    #[arg(long, value_name = "SIZE|N%", conflicts_with_all = ["huge", "sizes", "code", "stack", "no_align", "no_children"])]
    pub local: Option<run::Local>,

    /// Where the rest is: file:DIR, redis://HOST:PORT[,HOST:PORT…] or rediss://… [default: file:/var/tmp]
    #[arg(long, value_name = "URL", requires = "local")]
    pub store: Option<String>,

    /// What one fault fetches: auto, or 4KiB to 1MiB for all; larger where memory is gone through in order
    #[arg(long, value_name = "SIZE", requires = "local", default_value = "auto")]
    pub unit: run::Unit,

    /// The least that one fault fetches: 4KiB or 16KiB [default: 4KiB; 16KiB with --sections marked]
    #[arg(long, value_name = "SIZE", requires = "local")]
    pub base: Option<run::Base>,

    /// How parts of the program get units of their own; with off all have 64KiB, or --unit [default: auto, or off with --unit]
    #[arg(long, value_name = "HOW", requires = "local")]
    pub sections: Option<Sections>,

    /// Let a fault do all by itself: masu fetches nothing ahead, and writes nothing behind (with a server)
    #[arg(long, requires = "local")]
    pub no_background: bool,

    /// Seal pages in a file, too: masu then carries each of them, and the program no longer reads its file by itself
    #[arg(long, requires = "local", conflicts_with = "no_seal")]
    pub seal: bool,

    /// Send pages to a server as they are, on a network where nobody else is: it can read, change and replay them
    #[arg(long, requires = "local")]
    pub no_seal: bool,

    /// Bring pages in this way instead of the best one: move or copy
    #[arg(long, alias = "rung", value_name = "BACKEND", requires = "local")]
    pub backend: Option<run::Exchange>,

    /// Neither use nor keep what the program's instructions have learned in earlier runs
    #[arg(long, requires = "local")]
    pub no_profile: bool,

    /// How long a server may be silent before the program is ended, such as 30s [default: the program waits]
    #[arg(long, value_name = "TIME", requires = "local", value_parser = duration)]
    pub store_timeout: Option<Duration>,

    /// Write the report there, `-` for standard error [default: standard error, if it is a terminal]
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,

    /// The report as one JSON object
    #[arg(long)]
    pub json: bool,

    /// No report, and no remarks
    #[arg(long, short, conflicts_with = "report")]
    pub quiet: bool,

    /// The program and its arguments
    #[arg(value_name = "COMMAND", required = true, trailing_var_arg = true)]
    pub command: Vec<OsString>,
}

/// When a program's memory is put on huge pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Huge {
    /// At the first touch, by a library inside the program.
    Touch,
    /// When it turns out to be hot, from outside.
    Hot,
    /// Not at all: the program as it is.
    Off,
}

/// How a paged program's parts are told apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Sections {
    /// By the instruction that touches memory.
    Auto,
    /// By swpin_countstart and swpin_refresh in the program.
    Marked,
    /// Not at all: one unit for all, 64 KiB without --unit.
    Off,
}

/// What this machine offers, and the backend of each feature
///
/// Every line was found by trying it on memory of our own, never from the kernel's version. A feature that does not use
/// its best backend says why, and what would change that: a config option, a capability, a sysctl.
#[derive(Debug, ClapArgs)]
pub struct FactsTask {
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// How often each page of a program is touched
///
/// Prints for each mapping a strip of heat, and on request every run of pages.
///
/// The accessed bits of the program are cleared once and read at growing delays (10 ms, 20 ms, 40 ms …). A page is counted
/// when its translation had to be walked for, that is when it cost a TLB miss: pages that stay in the TLB look idle.
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Columns:
  address    where the mapping lies           resident   how much of it is in memory
  touched    how much of that was touched     walks/s    page walks a second, all pages together
The strip shows the mapping from its first to its last page in memory: a blank is not in memory, a
dot in memory and idle, and blocks from low to high the part of the pages that was touched.

Examples:
  masu pages 4121
  masu pages 4121 --for 30s             a longer look finds colder pages
  masu pages 4121 --runs                each run of pages, its count and its rate
  masu pages 4121 --json | jq '.mappings[] | {start, path}'")]
pub struct PagesTask {
    /// The process to look at
    #[arg(value_name = "PID")]
    pub pid: Pid,

    /// How long to look
    #[arg(long = "for", value_name = "TIME", default_value = "5s", value_parser = duration)]
    pub time: Duration,

    /// Also print every run of pages: address, pages, reads that saw it touched, rate
    #[arg(long)]
    pub runs: bool,

    /// Show small mappings of which nothing was touched, too
    #[arg(long)]
    pub all: bool,

    /// Print one JSON object, complete
    #[arg(long)]
    pub json: bool,

    /// Observe in this way instead of the best one: bpf-walk, damon-vaddr or residency
    #[arg(long, alias = "rung", value_name = "BACKEND")]
    pub backend: Option<Backend>,
}

/// Put a running program's hot windows on huge pages
///
/// Rounds of looking follow each other until nothing changes. A window of 2 MiB whose pages are hot in at least
/// --hot-fraction of 512 is made huge, the most worthwhile first, while memory grows by no more than --max-extra-rss;
/// a huge window that nothing touches is split, and its untouched memory goes back to the system. Every change is
/// measured again before it is reported. Huge pages stay when masu leaves, unless --undo is given.
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  masu attach 4121                      until Ctrl-C; looks rarely once nothing changes any more
  masu attach 4121 --until-settled      report and leave when nothing changes any more
  masu attach 4121 --dry-run            the plan, and what other hot fractions would do
  masu attach 4121 --max-extra-rss 5%   more memory for more speed
  masu attach 4121 4122 --for 1m        two programs share the work by what a byte saves
  masu attach 4121 --undo --for 1m      try it for a minute and take it back

What this does to your machine: it clears the accessed bits of the program's pages (the kernel
sees it as idler than it is until they are set again), holds the program's mmap lock for some 10 ms
a GiB at each clear, and for each promoted window for under a millisecond, or some milliseconds when
the kernel has to find the memory first. It changes no sysctl and no kernel setting.")]
pub struct AttachTask {
    /// The processes to work on
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

    /// Observe and plan, promote and demote nothing
    #[arg(long)]
    pub dry_run: bool,

    /// Split the windows that this run promoted before leaving
    #[arg(long, conflicts_with = "dry_run")]
    pub undo: bool,

    /// Rounds without a touch before a huge window is given back
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    pub demote_after: u32,

    /// Print one JSON object per process at the end
    #[arg(long)]
    pub json: bool,

    /// Observe in this way instead of the best one: bpf-walk, damon-vaddr or residency
    #[arg(long, alias = "rung", value_name = "BACKEND")]
    pub backend: Option<Backend>,
}

/// Serve programs that have a say about their pages
///
/// Programs that were built with libmasu (masu.h) register themselves. masu watches which of their pages are touched, tells
/// them by a signal how many are active, and hands out the list; the program decides for each window of 2 MiB: leave it, have
/// it made one huge page, or move what is hot in it onto huge pages of its own. Programs without an opinion are treated as by
/// `masu attach`. It runs until Ctrl-C; programs go on without it, and their huge pages stay.
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  masu track                                    serve whoever comes
  masu track --max-huge 4GiB --max-huge-per-user 1GiB
  masu track --json >> /var/log/masu-track.json
  masu track --socket /run/user/1000/track.sock & MASU_TRACK=/run/user/1000/track.sock ./cache

Limits on huge pages are shared by benefit: at a limit a window takes the place of one that saves half as
much or less. Arenas of programs count; they are not taken back.

What this does to your machine: for each registered program what `masu attach` does to one, and a signal
now and then. It changes no sysctl and no kernel setting. One file: the socket.")]
pub struct TrackTask {
    /// Where to listen
    #[arg(long, value_name = "PATH", default_value = contract::track::SOCKET)]
    pub socket: PathBuf,

    /// Huge pages that all programs together get from masu, and in arenas, such as 4GiB [default: no limit]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub max_huge: Option<Bytes>,

    /// The same of one user's programs together [default: no limit]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub max_huge_per_user: Option<Bytes>,

    /// The same of one program [default: no limit]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub max_huge_per_program: Option<Bytes>,

    /// Programs that one user may have registered at a time
    #[arg(long, value_name = "N", default_value_t = 64)]
    pub max_programs: usize,

    /// The most of one processor that watching one program may take
    ///
    /// Making its windows huge comes on top: all of them once, at a pace that leaves the program two thirds of the time. What
    /// is done again counts like watching.
    #[arg(long, value_name = "P", default_value = "10%")]
    pub max_cpu: NonZeroFraction,

    /// Print one JSON object per event
    #[arg(long)]
    pub json: bool,

    /// Observe in this way instead of the best one: bpf-walk, damon-vaddr or residency
    #[arg(long, alias = "rung", value_name = "BACKEND")]
    pub backend: Option<Backend>,
}

/// How many superpages a program has: reserved, allocated, failed, downgraded
///
/// A superpage is a huge page of 2 MiB. They are counted from outside, for any process, by kind of memory and by size. Without
/// a process: what the host gave since boot, how much of its free memory lies in large enough blocks, and which processes
/// have huge pages or asked for them.
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Columns, in windows of 2 MiB:
  reserved     would get a huge page at the first touch, or has one, or had one
  allocated    huge now
  failed       touched, never huge: none was to be had, or touched before it was advised
  downgraded   huge once, small pages now: split, or partly unmapped or protected
  swapped      all of it is in swap        untouched   nothing was written to it yet

Examples:
  masu stat                             the host, and who has huge pages
  masu stat 4121                        one program, by kind of memory and by size
  masu stat 4121 --watch                again every 2 s, until Ctrl-C or until it ends
  masu stat --watch 10s
  masu stat 4121 --json | jq .total")]
pub struct StatTask {
    /// The processes to count in [default: the host]
    #[arg(value_name = "PID")]
    pub pids: Vec<Pid>,

    /// Print again and again, every 2 s or as often as said, until Ctrl-C or until the processes have ended
    #[arg(long, value_name = "TIME", num_args = 0..=1, default_missing_value = "2s", value_parser = watch)]
    pub watch: Option<Watch>,

    /// Print one JSON object for each process, or for the host; with --watch one a line
    #[arg(long)]
    pub json: bool,
}

/// Who uses memory for what: code, read-only data, data, shared memory, page cache
///
/// Every page frame is of one class, by what it is used for; a page that many processes share counts once. How much of a class the
/// kernel holds for active, and how much is idle and goes first when memory is needed, says what a backup or a big copy will cost.
///
/// The unit is the kernel's: of a large folio all pages count as mapped when some are. Pages that came back soon after they had gone
/// are counted since boot or since the control group was made, and with --watch since the last look; those of files then by class, too.
/// Needs CAP_SYS_ADMIN.
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Classes:
  code             files that some process runs
  read-only data   files that are mapped otherwise
  data             heaps, stacks, and what was written of privately mapped files
  shared memory    memory between programs, and files in tmpfs
  page cache       files that nobody maps
Columns:
  active           used more than once lately, as far as the kernel saw
  idle             the others: the next to go
  locked           may not be taken (mlock, SHM_LOCK)
  off by at most   19 times of 20, since only a sample of the frames was looked at
  pages came back  with --watch, of files: after the kernel had taken them, since the last look

Examples:
  masu census                     the host
  masu census 4121 4122           two programs: what they share counts once
  masu census --cgroup backup     what a control group is charged with, page cache included
  masu census --exact             every frame: 30 to 100 ms a GiB
  masu census --watch 10s         again every 10 s, until Ctrl-C
  masu census --json | jq '.classes[] | {class, idle_bytes}'")]
pub struct CensusTask {
    /// The processes to look at, whose page tables say what they have [default: the host]
    #[arg(value_name = "PID")]
    pub pids: Vec<Pid>,

    /// What this control group and those below it are charged with
    #[arg(long, value_name = "GROUP", conflicts_with = "pids")]
    pub cgroup: Option<String>,

    /// Look at every page frame instead of a sample
    #[arg(long)]
    pub exact: bool,

    /// Print again and again, every 2 s or as often as said, until Ctrl-C or until the processes have ended
    #[arg(long, value_name = "TIME", num_args = 0..=1, default_missing_value = "2s", value_parser = watch)]
    pub watch: Option<Watch>,

    /// Print one JSON object; with --watch one a line
    #[arg(long)]
    pub json: bool,
}

/// What may stand behind `--watch`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Watch {
    /// How often.
    Every(Duration),
    /// As in `--watch 4121`: no time but a process.
    Process(Pid),
}

fn watch(text: &str) -> Result<Watch, String> {
    match text.parse() {
        Ok(pid) => Ok(Watch::Process(pid)),
        Err(_) => duration(text).map(Watch::Every),
    }
}

/// Switch huge pages off or on for a running program
///
/// Takes effect without a restart, for memory to come and for memory that is there. huge=off makes the program forbid huge
/// pages for itself, splits those that it has, and gives the memory back that it never used; huge=on allows them again.
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Settings:
  huge=off     no huge pages from now on; those that are there are split
  huge=on      huge pages as the host and the program want them; nothing that is there changes
  align=on|off large mappings start on a window, or anywhere; for programs started with masu run

Examples:
  masu set 4121 huge=off
  masu set 4121 4122 huge=on
  masu set 4121 huge=off --json | jq '{rss_before_bytes, rss_after_bytes}'

What this does to your machine: one thread of the program is stopped for some 100 µs and made to call
prctl(PR_SET_THP_DISABLE) itself, for nobody else may; a system call in which it waits goes on
afterwards. Splitting takes below a millisecond a window. The program's children inherit the setting.")]
pub struct SetTask {
    /// Processes, and what to set: huge=off, huge=on, align=on, align=off
    #[arg(value_name = "PID|SETTING", required = true)]
    pub words: Vec<Word>,

    /// Print one JSON object for each process
    #[arg(long)]
    pub json: bool,
}

/// One word of `masu set`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
    /// A process.
    Process(Pid),
    /// `huge=on`.
    Huge(bool),
    /// `align=on`.
    Align(bool),
}

impl std::str::FromStr for Word {
    type Err = String;

    fn from_str(text: &str) -> Result<Word, String> {
        match text {
            "huge=on" => Ok(Word::Huge(true)),
            "huge=off" => Ok(Word::Huge(false)),
            "align=on" => Ok(Word::Align(true)),
            "align=off" => Ok(Word::Align(false)),
            other => other
                .parse()
                .map(Word::Process)
                .map_err(|_| format!("{other}: expected a process id, huge=on, huge=off, align=on or align=off")),
        }
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
