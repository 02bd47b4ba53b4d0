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
  masu llc shared --domain uid          trust goes by the user, not by the control group
  masu llc shared --watch 5s            again and again, reading only what changed

What this does to your machine: it reads page tables and flags of page frames, some 100 ns a page;
it writes nothing, touches no page of a program and un-merges none.")]
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
/// It runs until Ctrl-C, for --for, or until all processes that are named by their numbers have ended; plans anew when programs or
/// what they share change, and says in a line what it measured, decided and did. At the end, also after a crash, the cache is as it was.
#[derive(Debug, ClapArgs)]
#[command(
    after_help = "`masu llc run --help` explains the configuration.",
    after_long_help = "\
Examples:
  masu llc run --config llc.toml
  masu llc run --config llc.toml --for 10m --json
  masu llc run --config llc.toml --resctrl /tmp/resctrl
                                an emulator, mounted by resctrl-emulator

A configuration; only policy and one program have to be there:
  policy = \"sharing\"            # none, equal, dunn, lfoc, kpart, ucp; sharing knows what is shared
  partition = \"on\"              # \"off\": no partitions, shared pages are only kept in the cache
  rest_ways = 2                 # for whoever is not named below [default: those that devices
                                # use, else as few as there may be]
  interval_s = 1.0              # how often is looked and decided
  duty_fraction = 0.01          # the most of one CPU that refilling may take
  domain = \"cgroup\"             # who trusts each other: those of one group, or of one user (\"uid\")

  [region]
  on = true                     # shared pages get ways of their own [default: with \"sharing\" alone]
  ways_max = 4                  # the most for each region

  [[program]]
  name = \"web\"                  # its group is masu-web
  cgroup = \"web\"                # or pids = [4121, 4122], or what stands at the next program
  domain = \"shop\"               # who it trusts, by a label instead of its group or user;
                                # with cgroup, pids or user
  l3 = [0]                      # the caches on whose CPUs it runs [default: all]
  mpki = [40.0, 22.0, 9.5]      # misses per 1000 instructions with 0, 1, 2 ... ways, where known
  private_mpki = [30.0, 18.0]   # of its own pages alone
  shared_mpki = [10.0, 6.0]     # of what it shares, by the ways of a region
  base_cycles = 500.0           # cycles per thousand instructions without a miss; with mpki
  miss_cycles = 180.0           # what each miss adds; with mpki

  [[program]]
  name = \"voice\"
  user = \"asterisk\"             # all of this user, by name or number
  executable = \"/usr/sbin/asterisk\" # all that run this file, whoever they are without user
  command = \"asterisk\"          # all of this name, only with user: anybody may be called so
  mask = \"3\"                    # these ways, whatever the policy says
  exclusive = true              # and nobody else in them

Where the processor counts instructions and misses, curves are learned while it runs, and policy
\"sharing\" goes on by what it measures: first without partitions for ten intervals, then under a
plan, and so on as long as another plan promises more. Elsewhere it plans from mpki alone. Where
nothing is known, nothing is made up: each program has as many ways, and a region as many as hold
what is shared. What processes of one program share counts as its own.

What this does to your machine: it makes groups called masu-... in resctrl, gives them ways and
puts the programs' tasks into them; it takes a copy of the shared pages, which KSM merges with
them again, and flushes and loads the lines of those. It mounts nothing, turns no knob of KSM, and
changes no page of a program."
)]
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
/// which policies to compare. The policies are those of `masu llc run`; "sharing" is told what it measures, as there where the
/// processor counts.
#[derive(Debug, ClapArgs)]
#[command(
    after_help = "`masu llc simulate --help` explains scenarios.",
    after_long_help = "\
Examples:
  masu llc simulate mix.toml
  masu llc simulate mix.toml --json
  masu llc simulate figure.toml --svg figure.svg
  valgrind --tool=lackey --trace-mem=yes --log-file=solver.trace ./solver
                                        a trace, for `trace = \"solver.trace\"` in a scenario

A scenario; its length, size and ways of the cache, a program, and what to compare are needed:
  title = \"two programs, half of their array shared\"
  seed = 1
  passes = 12                           # or accesses = 40_000_000: of all programs together
  warm_up_passes = 8                    # or warm_up_accesses [default: half of the above]
  interval_accesses = 1_000_000         # policies decide anew so often [default: never]
  interleave = \"time\"                 # side by side; or \"turns\", one after the other
  turn_accesses = 1                     # or turn_passes [default: a pass]
  pages = \"scattered\"                 # or \"contiguous\"
  memory = \"4 GiB\"
  cycles_per_instruction = 0.5
  policies = [\"none\", \"equal\"]        # conditions named after policies

  [cache]
  size = \"20 MiB\"
  ways = 20
  slices = 1
  replacement = \"lru\"                 # fifo, tree-plru, qlru
  inclusive = false
  cycles = 40
  memory_cycles = 200
  ways_min = 1                          # the fewest of a class
  classes_max = 16

  [[level]]                             # private, the nearest first
  size = \"32 KiB\"
  ways = 8
  cycles = 4

  [refill]                              # of regions
  mode = \"flush-and-touch\"            # touch, off
  every_cycles = 1_000_000
  duty_fraction = 0.01

  [sweep]
  array = [\"16 KiB\", \"4 MiB\"]         # sizes below may say \"array\", \"array/2\" or \"array*3/4\"

  [[shared]]
  name = \"half\"
  size = \"array/2\"

  [[program]]
  name = \"first\"
  private = \"array/2\"
  shared = [\"half\"]
  pattern = \"cyclic\"                  # chase, random, zipf (with skew), stream;
                                        # over what is shared, then what is private
  begin_fraction = 0.5                  # cyclic and chase: where in it
  instructions_per_access = 4

  [[program]]
  name = \"mixed\"
  private = \"2 MiB\"
  part = [{ pattern = \"zipf\", skew = 0.8, over = [\"private\"], weight = 3 },
          { pattern = \"stream\", weight = 1 }]
                                        # or phase = [{ accesses = 1_000_000, part = [...] }, ...]

  [[program]]
  name = \"real\"
  trace = \"solver.trace\"              # beside the scenario
  private = \"256 MiB\"                 # the most that it uses
  shared = [\"half\"]
  shared_at = [\"0x4025000\"]           # where each set begins in its address space

  [[condition]]
  name = \"shared, CAT\"
  masks = { first = \"ff\", mixed = \"ff00\", real = \"ff00\" }
  sharing = true                        # false: each has a copy
  region = [{ set = \"half\", mask = \"f0000\" }]
  refill = { mode = \"touch\" }         # else that of above
                                        # or policy = \"none\"; or policy = \"sharing\" and
                                        # refined = false: by curves alone; or fit_fraction = 0.98:
                                        # regions that hold so much of their sets, and the
                                        # same of the rest for each program

It prints unfairness (greatest over least slowdown), STP (throughput, in programs), ANTT (mean
slowdown) and Jain's index for each condition, and what became of each program. Slowdown is cycles
for each instruction, over the same alone with the whole cache.

With a sweep there is a row for each size: the programs' cycles an access; ratio, the longer of
them over the shorter; even after, the passes of the programs from when the daemon begins until
that ratio is 1.05 or less and stays so; region, what it holds in the end; fills, the daemon's
passes over it, the first one included; duty, the part of a CPU that these took after the warm-up
(`busy_cycles` in JSON counts all)."
)]
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

#[cfg(test)]
mod tests {
    use std::path::Path;

    use clap::CommandFactory;
    use llc::daemon::config::Config;
    use sim::cache::scenario::Scenario;

    /// The indented block behind `head` in the long help of `masu llc TASK`.
    fn example(task: &str, head: &str) -> String {
        let masu = crate::args::Args::command();
        let part = masu.find_subcommand("llc").and_then(|llc| llc.find_subcommand(task)).unwrap();
        let help = part.get_after_long_help().unwrap().to_string();
        assert_eq!(help.lines().filter(|line| line.chars().count() > 100).collect::<Vec<_>>(), Vec::<&str>::new());
        let block = help.lines().skip_while(|line| !line.starts_with(head)).skip(1);
        block.take_while(|line| line.is_empty() || line.starts_with("  ")).map(|line| format!("{line}\n")).collect()
    }

    #[test]
    fn what_the_help_shows_is_a_configuration_and_a_scenario() {
        let config = Config::parse("llc.toml", &example("run", "A configuration")).unwrap();
        assert_eq!(config.programs.iter().map(|program| program.name.as_str()).collect::<Vec<_>>(), ["web", "voice"]);
        let scenario = Scenario::parse(Path::new("mix.toml"), &example("simulate", "A scenario")).unwrap();
        assert_eq!((scenario.programs.len(), scenario.conditions.len()), (3, 3));
    }
}
