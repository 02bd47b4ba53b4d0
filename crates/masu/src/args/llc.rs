//! Arguments of `masu llc`, and their help.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args as ClapArgs, Subcommand};
use linux::Pid;

use super::duration;

/// Share the last-level cache fairly, also where pages are shared
///
/// Hardware that partitions the cache (Intel CAT, AMD QoS) limits where a program may put its lines, not where it finds them. The
/// lines of a page that the kernel merged (KSM) lie in the part of whoever touched them first, who pays for all. masu finds who
/// shares which pages, gives the shared lines a region of their own that it keeps filled, and partitions the rest.
#[derive(Debug, ClapArgs)]
#[command(arg_required_else_help = true, subcommand_required = true)]
pub struct LlcTask {
    #[command(subcommand)]
    pub task: LlcPart,
}

#[derive(Debug, Subcommand)]
pub enum LlcPart {
    Shared(SharedTask),
    Plan(PlanTask),
    Run(LlcRunTask),
    Simulate(SimulateTask),
}

/// Which pages are merged, between whom, and whether they trust each other
///
/// Lists the page frames that KSM merged, who has them, and what that saves. Frames that are shared across trust domains (control
/// groups, unless --domain says otherwise) are a warning: who shares a page can tell what others do with it. Looking un-merges
/// no page.
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  masu llc shared                       all processes with merged pages
  masu llc shared --pid 4121 --pid 4122 what these have merged, with each other and with others
  masu llc shared --json | jq .cross_domain_frames
  masu llc shared --domain uid          who trusts whom is said by the user, not by the control group
  masu llc shared --watch 5s            again and again, reading only what changed

What this does to your machine: it reads page tables and flags of page frames, some 100 ns a page; it writes nothing,
touches no page of a program and un-merges none.")]
pub struct SharedTask {
    /// These processes [default: all that have merged pages]
    #[arg(long, value_name = "PID")]
    pub pid: Vec<Pid>,

    /// The processes of this control group and those below it
    #[arg(long, value_name = "GROUP", conflicts_with = "pid")]
    pub cgroup: Option<String>,

    /// Who trusts each other: those in one control group, or of one user
    #[arg(long, value_name = "BY", default_value = "cgroup")]
    pub domain: DomainBy,

    /// Look again and again
    #[arg(long, value_name = "TIME", value_parser = duration, num_args = 0..=1, default_missing_value = "1s")]
    pub watch: Option<Duration>,

    /// Print JSON, one object a look
    #[arg(long)]
    pub json: bool,
}

/// By what processes are put into trust domains.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum DomainBy {
    /// Those in one control group.
    Cgroup,
    /// Those of one user.
    Uid,
}

/// Say how the cache would be partitioned, and what is expected of it
///
/// Nothing is changed. With --dry-run it prints each write as `path <- value`, in the order in which `masu llc run` would make them.
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  masu llc plan --config llc.toml             classes, their ways, expected slowdowns
  masu llc plan --config llc.toml --dry-run   each write, as `path <- value`
  masu llc plan --config llc.toml --json

The configuration is explained in masu-llc-run(1).")]
pub struct PlanTask {
    /// The programs, the policy, and what they may have
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,

    /// The mounted resctrl file system [default: found in /proc/mounts]
    #[arg(long, value_name = "DIR")]
    pub resctrl: Option<PathBuf>,

    /// Print each write as `path <- value`
    #[arg(long)]
    pub dry_run: bool,

    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Partition the cache, keep the shared region filled, and put everything back
///
/// It runs until Ctrl-C or for --for, plans anew when programs or what they share change, and says in a line what it measured,
/// decided and did. At the end, also after a crash, the cache is as it was.
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  masu llc run --config llc.toml
  masu llc run --config llc.toml --for 10m --json
  masu llc run --config llc.toml --resctrl /tmp/resctrl    an emulator, mounted by resctrl-emulator

A configuration:
  policy = \"sharing\"            # sharing, ucp, dunn, lfoc, kpart or equal
  rest_ways = 2                 # for whoever is not named below
  [[program]]
  name = \"web\"
  cgroup = \"web\"                # or pids = [4121, 4122]
  domain = \"shop\"               # who trusts each other may share a region [default: the control group]")]
pub struct LlcRunTask {
    /// The programs, the policy, and what they may have
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,

    /// The mounted resctrl file system [default: found in /proc/mounts]
    #[arg(long, value_name = "DIR")]
    pub resctrl: Option<PathBuf>,

    /// End after this time [default: on Ctrl-C]
    #[arg(long = "for", value_name = "TIME", value_parser = duration)]
    pub time: Option<Duration>,

    /// Print one JSON object a line
    #[arg(long)]
    pub json: bool,
}

/// Try policies on a simulated cache
///
/// A scenario says what cache there is, which programs run on it (synthetic ones, or traces of real ones), what they share, and
/// which policies to compare. The policies are those of `masu llc run`.
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  masu llc simulate mix.toml
  masu llc simulate mix.toml --json
  masu llc simulate figure.toml --svg figure.svg
  valgrind --tool=lackey --trace-mem=yes --log-file=solver.trace ./solver
                                        a trace, for `trace = \"solver.trace\"` in a scenario")]
pub struct SimulateTask {
    /// The scenario
    #[arg(value_name = "SCENARIO")]
    pub scenario: PathBuf,

    /// Write a figure there as well
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,

    /// Print JSON
    #[arg(long)]
    pub json: bool,
}
