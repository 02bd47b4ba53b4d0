//! Arguments and their help.

use std::time::Duration;

use access::Rung;
use clap::{Args as ClapArgs, Parser, Subcommand};
use linux::Pid;
use quantities::{Fraction, NonZeroFraction};

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

Exit status: 0 done, 1 done in part (each failure was printed), 2 not done.")]
pub struct Args {
    #[command(subcommand)]
    pub task: Task,
}

#[derive(Debug, Subcommand)]
pub enum Task {
    Facts(FactsTask),
    Pages(PagesTask),
    Attach(AttachTask),
}

/// What this machine offers, and the rung of each feature
///
/// Every line was found by trying it on memory of our own, never from the kernel's version. A feature that does not stand
/// on its best rung says why, and what would change that: a config option, a capability, a sysctl.
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
    #[arg(long, value_name = "RUNG")]
    pub rung: Option<Rung>,
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
    #[arg(long, value_name = "RUNG")]
    pub rung: Option<Rung>,
}

fn duration(text: &str) -> Result<Duration, String> {
    match humantime::parse_duration(text) {
        Ok(time) if !time.is_zero() => Ok(time),
        _ => Err(format!("{text}: expected a time above zero, such as 500ms, 5s or 1m")),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_definition_holds_together() {
        Args::command().debug_assert();
    }

    #[test]
    fn times_are_written_as_people_write_them() {
        assert_eq!(duration("1m 30s"), Ok(Duration::from_secs(90)));
        assert!(duration("0s").is_err());
        assert!(duration("5").unwrap_err().contains("500ms"));
    }
}
