//! Arguments of `masu aging`, and their help.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use ::aging::dials::Bounds;
use clap::Args as ClapArgs;
use linux::Pid;
use units::{Bytes, Fraction};

use super::duration;

/// Age each kind of pages at a rate of its own
///
/// Code, files that are mapped otherwise, data, shared memory and the page cache each have a dial from 0 to 100. At 100 a kind is
/// not aged: it stays. At 80 it is aged at a fifth of the kernel's rate, at 0 as the kernel does it, but for the page cache, of
/// which 0 lets go what streams bring in as soon as they have passed it. What was in the page cache before stays there. A kind
/// without a dial is left to the kernel. A dial like 40-90 is moved in between, by what comes back and by what memory costs.
///
/// It runs until Ctrl-C, for --for, or as long as COMMAND, and says in a line what it measured, decided and did. At the end, also
/// after a crash, all is as it was.
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  masu aging --cache 0 -- ./backup.sh           only what this command streams goes again
  masu aging --cache 0 --cgroup backup          the same for whatever runs in a control group
  masu aging --code 100 --rodata 80             programs stay in memory, whoever copies what
  masu aging --mapped 100 --cgroup web          what this group's programs have mapped
  masu aging --mapped 40-90 --cache 0           dials that move, by what comes back
  masu aging --mapped 100 --pid 4121 --for 1h
  masu aging --mapped 100 --dry-run             what would be done
  masu aging --mapped 80 --replay day.trace --memory 1GiB
                                                what would come of it, in a simulation of the kernel

Kinds, and how they are kept or let go:
  code, rodata   files that programs have mapped: pinned, by mapping and locking them as well
  shared         shared memory and files in tmpfs that are mapped: pinned
  data           heaps and stacks: swapped less (vm.swappiness, or that of the group)
  cache          what streams bring in: dropped behind them. Without COMMAND, --cgroup or --pid a
                 stream is whoever brings in more than 64 MiB, nearly all of it in order

What this does to your machine: pinned memory is unevictable, at most --budget of it, and goes before
memory gets scarce for the host or a control group. It writes early what a stream has written. It turns
vm.swappiness or a group's, and puts it back.

With COMMAND the lines go to standard error, if that is a terminal, or to --report; the exit status is
the command's, or 125 to 127 as of `masu run`.")]
pub struct AgingTask {
    /// Programs and libraries, where they are run
    #[arg(long, value_name = "N")]
    pub code: Option<Bounds>,

    /// Files that are mapped otherwise
    #[arg(long, value_name = "N")]
    pub rodata: Option<Bounds>,

    /// Heaps and stacks
    #[arg(long, value_name = "N")]
    pub data: Option<Bounds>,

    /// Memory between programs, and files in tmpfs
    #[arg(long, value_name = "N")]
    pub shared: Option<Bounds>,

    /// Files that nobody maps: what streams bring in
    #[arg(long, value_name = "N")]
    pub cache: Option<Bounds>,

    /// The four kinds that are mapped, together; a dial of their own goes before it
    #[arg(long, value_name = "N")]
    pub mapped: Option<Bounds>,

    /// The processes of this control group and those below it [default: all]
    #[arg(long, value_name = "GROUP", conflicts_with = "pid")]
    pub cgroup: Option<String>,

    /// These processes, until the last has ended; for what they stream also those that they start
    #[arg(long, value_name = "PID")]
    pub pid: Vec<Pid>,

    /// The most that may be pinned, as a part of the memory or as a size
    #[arg(long, value_name = "P%|SIZE", default_value = "10%")]
    pub budget: Budget,

    /// End after this time [default: on Ctrl-C, with COMMAND, or with the last PID]
    #[arg(long = "for", value_name = "TIME", value_parser = duration, conflicts_with = "command")]
    pub time: Option<Duration>,

    /// Say what would be done, and do nothing
    #[arg(long, conflicts_with = "command")]
    pub dry_run: bool,

    /// Try the dials on a trace of accesses instead, in a group of --memory, beside the kernel alone
    #[arg(long, value_name = "TRACE", requires = "memory", conflicts_with_all = ["command", "cgroup", "pid", "time", "dry_run"])]
    pub replay: Option<PathBuf>,

    /// How much memory the trace has
    #[arg(long, value_name = "SIZE", requires = "replay")]
    pub memory: Option<Bytes>,

    /// Print one JSON object a line
    #[arg(long)]
    pub json: bool,

    /// Write the lines there, `-` for standard error
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,

    /// A command; only what it streams is let go then
    #[arg(value_name = "COMMAND", trailing_var_arg = true)]
    pub command: Vec<OsString>,
}

/// How much may be pinned.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Budget {
    /// A part of the memory.
    Part(Fraction),
    /// So much.
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
