//! Arguments of `masu aging`, and their help.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use ::aging::levels::Bounds;
use clap::Args as ClapArgs;
use linux::Pid;
use units::{Bytes, Fraction};

use super::duration;

/// Set a protection level for each class of pages, and drop pages behind streams
///
/// Use it when backups, copies or searches evict the pages of a service. The classes are code, other mapped files,
/// data, shared memory and page cache, each with a level from 0 to 100. `masu census` shows their sizes.
///
/// At 100 a class is not aged: its pages stay. At 80 it is aged at a fifth of the kernel's rate. At 0 it is aged as
/// by the kernel, except page cache: there 0 is drop-behind, which drops the pages that a stream inserts as soon as
/// the stream has passed them. Pages cached before the stream stay. A class without a level is left to the kernel. A
/// range such as 40-90 moves with refaults and with the cost of memory.
///
/// It runs until Ctrl-C, for --for, or as long as COMMAND, and prints each measurement, decision and change in a
/// line. At the end, also after a crash, everything is restored.
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  masu aging --cache 0 -- ./backup.sh           drop-behind for the streams of this command
  masu aging --cache 0 --cgroup backup          the same for every program of a control group
  masu aging --code 100 --rodata 80             programs stay in memory during any copy
  masu aging --mapped 100 --cgroup web          the mapped pages of this group's programs stay
  masu aging --mapped 40-90 --cache 0           levels that move with refaults
  masu aging --mapped 100 --pid 4121 --for 1h
  masu aging --mapped 100 --dry-run             the plan
  masu aging --mapped 80 --replay day.trace --memory 1GiB
                                                the result, in a simulation of the kernel

Classes, and the means of protection:
  code, rodata   files that programs have mapped: masu maps them, too, and locks them (mlock)
  shared         mapped shared memory and tmpfs files: locked
  data           heaps and stacks: swapped less (vm.swappiness, or the group's)
  cache          page-cache insertions of streams: drop-behind. Without COMMAND, --cgroup or --pid
                 any process with more than 64 MiB, nearly all in order, is a stream

Effects on the machine: locked memory cannot be reclaimed. It is at most --budget, and masu unlocks
it before the headroom of the host or of a control group gets low. masu writes the pages that a
stream has written to disk early. It changes vm.swappiness, of the host or of a group, and restores
it.

With COMMAND the lines go to standard error if that is a terminal, or to --report. The exit status
is the command's, or 125 to 127 as of `masu run`. Without COMMAND it is 3 when another masu locks
pages already.")]
pub struct AgingTask {
    /// Level of programs and libraries that are run
    #[arg(long, value_name = "N")]
    pub code: Option<Bounds>,

    /// Level of other mapped files
    #[arg(long, value_name = "N")]
    pub rodata: Option<Bounds>,

    /// Level of heaps and stacks
    #[arg(long, value_name = "N")]
    pub data: Option<Bounds>,

    /// Level of memory between programs, and of files in tmpfs
    #[arg(long, value_name = "N")]
    pub shared: Option<Bounds>,

    /// Level of page cache: files that no process maps, inserted by streams
    #[arg(long, value_name = "N")]
    pub cache: Option<Bounds>,

    /// Level of the four mapped classes together; the option of one class overrides it
    #[arg(long, value_name = "N")]
    pub mapped: Option<Bounds>,

    /// Processes of this control group and its descendants [default: all]
    #[arg(long, value_name = "GROUP", conflicts_with = "pid")]
    pub cgroup: Option<String>,

    /// Processes to protect, until the last one ends; for drop-behind also their children. With COMMAND and --cache
    /// alone: servers whose streams are dropped, too
    #[arg(long, value_name = "PID")]
    pub pid: Vec<Pid>,

    /// Limit on locked memory, as a part of the memory or as a size
    #[arg(long, value_name = "P%|SIZE", default_value = "10%")]
    pub budget: Budget,

    /// End after this time [default: on Ctrl-C, with COMMAND, or with the last PID]
    #[arg(long = "for", value_name = "TIME", value_parser = duration, conflicts_with = "command")]
    pub time: Option<Duration>,

    /// Print the plan, and do nothing; COMMAND is not started
    #[arg(long)]
    pub dry_run: bool,

    /// Try the levels on a trace of accesses instead, in a group of --memory, beside the kernel alone
    #[arg(long, value_name = "TRACE", requires = "memory", conflicts_with_all = ["command", "cgroup", "pid", "time", "dry_run"])]
    pub replay: Option<PathBuf>,

    /// Memory of the trace
    #[arg(long, value_name = "SIZE", requires = "replay")]
    pub memory: Option<Bytes>,

    /// Print one JSON object a line
    #[arg(long)]
    pub json: bool,

    /// Write the lines to this file, `-` for standard error
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,

    /// Command to run; drop-behind then applies to its streams alone
    #[arg(value_name = "COMMAND", trailing_var_arg = true)]
    pub command: Vec<OsString>,
}

/// Limit on locked memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Budget {
    /// A part of the memory.
    Part(Fraction),
    /// A size.
    Size(Bytes),
}

impl std::str::FromStr for Budget {
    type Err = String;

    fn from_str(text: &str) -> Result<Budget, String> {
        let bad = || format!("{text}: expected a part of the memory or a size, such as 10% or 2GiB");
        if text.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(bad()); // percent, or bytes?
        }
        text.parse().map(Budget::Part).or_else(|_| text.parse().map(Budget::Size)).map_err(|_| bad())
    }
}
