//! Arguments of `masu llc`, and their help.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args as ClapArgs, Subcommand};
use linux::Pid;

use super::duration;

/// Partition the last-level cache, also where programs share pages
///
/// Use it when programs on one socket evict each other's cache lines. The tasks `shared` and `plan` change nothing,
/// `simulate` needs no hardware, and `run` needs a processor with Intel CAT or AMD QoS, unless `partition = "off"`.
///
/// Such a processor limits the ways where a program allocates lines, not the ways where it finds them. The lines of a
/// merged page (KSM) are in the ways of its first reader, which pays for all sharers. masu finds the sharers of each
/// page, gives shared lines a shared partition that it keeps warm, and divides the other ways by a policy.
#[derive(Debug, ClapArgs)]
#[command(arg_required_else_help = true, subcommand_required = true)]
#[command(after_help = "\
Examples:
  masu llc shared                             merged pages, and their sharers
  masu llc plan --config llc.toml --dry-run   each write to resctrl, and none is made
  masu llc run --config llc.toml              partition the cache until Ctrl-C
  masu llc simulate mix.toml                  compare policies on a simulated cache")]
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

/// List merged pages, their sharers, and shares across trust domains
///
/// Use it to see the memory that KSM saves, and its risk: a sharer of a page can find out how the others use it.
/// Frames shared across trust domains (control groups, unless --domain says otherwise) are a warning.
///
/// The list has the page frames that KSM merged, the processes that have them, and the saved memory. A scan un-merges
/// no page. If nothing is merged, the report says why: nothing offered, shared memory, a slow or stopped KSM, no equal
/// pages.
///
/// KSM may leave equal pages unmerged: with smart_scan (on since Linux 6.7) it skips a page that did not merge in up to 8
/// of 9 scans, and two equal pages merge only when it visits both in one scan. `masu llc shared` says so where much
/// offered memory is unmerged. `echo 0 > /sys/kernel/mm/ksm/smart_scan` turns the skipping off, for more processor time.
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  masu llc shared                       all processes with merged pages
  masu llc shared --pid 4121 --pid 4122 their merged pages, with each other and with others
  masu llc shared --json | jq .cross_domain_frames
  masu llc shared --domain uid          trust by user, not by control group
  masu llc shared --watch 5s            repeated scans, which read only changes

Effects on the machine: masu reads page tables and flags of page frames, some 100 ns a page. It
writes nothing, touches no page of a program and un-merges none.")]
pub struct SharedTask {
    /// Processes to list [default: all that have merged pages]
    #[arg(long, value_name = "PID")]
    pub pid: Vec<Pid>,

    /// Processes of this control group and its descendants
    #[arg(long, value_name = "GROUP", conflicts_with = "pid")]
    pub cgroup: Option<String>,

    /// Trust domain of a process: its control group, or its user
    #[arg(long, value_name = "BY", default_value = "cgroup")]
    pub domain: DomainBy,

    /// Repeat the scan at this interval
    #[arg(long, value_name = "TIME", value_parser = duration, num_args = 0..=1, default_missing_value = "1s")]
    pub watch: Option<Duration>,

    /// Print JSON, one object a scan
    #[arg(long)]
    pub json: bool,
}

/// Basis of trust domains.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum DomainBy {
    /// Processes of one control group.
    Cgroup,
    /// Processes of one user.
    Uid,
}

/// Print the partitions of the cache, and the expected slowdowns
///
/// Use it before `masu llc run`. It changes nothing. With --dry-run it prints each write in the order of `masu llc
/// run`, as `path <- value`.
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  masu llc plan --config llc.toml             classes, their ways, expected slowdowns
  masu llc plan --config llc.toml --dry-run   each write, as `path <- value`
  masu llc plan --config llc.toml --json

masu-llc-run(1) explains the configuration.")]
pub struct PlanTask {
    /// Configuration: programs, policy, limits
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,

    /// Mount point of resctrl [default: from /proc/mounts]
    #[arg(long, value_name = "DIR")]
    pub resctrl: Option<PathBuf>,

    /// Print each write as `path <- value`
    #[arg(long)]
    pub dry_run: bool,

    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Partition the cache, keep shared partitions warm, and restore everything at the end
///
/// Use it on a machine with resctrl, after `masu llc plan`. It runs until Ctrl-C, for --for, or until all processes
/// named by pid have ended. It plans anew when programs or their shared pages change, and prints each measurement,
/// decision and change in a line. At the end, also after a crash, the cache is as it was.
#[derive(Debug, ClapArgs)]
#[command(
    after_help = "`masu llc run --help` explains the configuration.",
    after_long_help = "\
Examples:
  masu llc run --config llc.toml
  masu llc run --config llc.toml --for 10m --json
  masu llc run --config llc.toml --resctrl /tmp/resctrl
                                an emulator, mounted by resctrl-emulator

A configuration; only policy and one program are required:
  policy = \"sharing\"            # none, equal, dunn, lfoc, kpart, ucp; sharing knows shared pages
  partition = \"on\"              # \"off\": no partitions, shared pages are only kept in the cache
  rest_ways = 2                 # ways of the default CLOS, for programs not named below
                                # [default: the ways of devices, else as few as possible]
  interval_s = 1.0              # time between measurements and decisions
  duty_fraction = 0.01          # limit on the processor time of warm-up, as a part of one CPU
  domain = \"cgroup\"             # trust domain: one control group, or one user (\"uid\")

  [region]
  on = true                     # shared partitions [default: only with \"sharing\"]
  ways_max = 4                  # limit on the ways of each shared partition

  [[program]]
  name = \"web\"                  # its group is masu-web
  cgroup = \"web\"                # or pids = [4121, 4122], or the keys of the next program
  domain = \"shop\"               # trust domain by a label, not by control group or user;
                                # with cgroup, pids or user
  l3 = [0]                      # the caches of the CPUs that it runs on [default: all]
  mpki = [40.0, 22.0, 9.5]      # misses per 1000 instructions with 0, 1, 2 ... ways, if known
  private_mpki = [30.0, 18.0]   # of its own pages alone
  shared_mpki = [10.0, 6.0]     # of its shared pages, by the ways of a shared partition
  base_cycles = 500.0           # cycles per thousand instructions without a miss; with mpki
  miss_cycles = 180.0           # cycles that each miss adds; with mpki

  [[program]]
  name = \"voice\"
  user = \"asterisk\"             # all processes of this user, by name or number
  executable = \"/usr/sbin/asterisk\" # all that run this file, of any user if user is not given
  command = \"asterisk\"          # all of this name; only with user, since names can be forged
  mask = \"3\"                    # these ways, under any policy
  exclusive = true              # no other program in these ways

If the processor counts instructions and misses, masu learns curves while it runs, and policy
\"sharing\" relies on measurements: first without partitions for ten intervals, then under a plan, and
then under one plan after the other as long as a further plan promises more. Otherwise it plans from
mpki alone. Without either, masu assumes nothing: each program gets the same number of ways, and a
shared partition enough for its pages. Pages shared within one program count as its own.

Effects on the machine: masu makes groups called masu-... in resctrl, gives them ways, and moves the
programs' tasks into them. It takes a copy of the shared pages, which KSM merges with them again,
and flushes and loads their lines. It mounts nothing, changes no setting of KSM, and changes no page
of a program."
)]
pub struct LlcRunTask {
    /// Configuration: programs, policy, limits
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,

    /// Mount point of resctrl [default: from /proc/mounts]
    #[arg(long, value_name = "DIR")]
    pub resctrl: Option<PathBuf>,

    /// End after this time [default: on Ctrl-C]
    #[arg(long = "for", value_name = "TIME", value_parser = duration)]
    pub time: Option<Duration>,

    /// Print one JSON object a line
    #[arg(long)]
    pub json: bool,
}

/// Compare policies on a simulated cache
///
/// Use it before `masu llc run`, or without such a processor, to see the throughput that fairness costs. It needs no
/// privilege and changes nothing.
///
/// A scenario describes the cache, the programs (synthetic, or traces of real ones), their shared memory, and the
/// policies to compare. The policies are the same as in `masu llc run`; "sharing" gets measurements, as on a
/// processor that counts.
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

A scenario; length, size and ways of the cache, a program, and policies or conditions are required:
  title = \"two programs, half of their array shared\"
  seed = 1
  passes = 12                           # or accesses = 40_000_000, of all programs together
  warm_up_passes = 8                    # or warm_up_accesses [default: half of the above]
  interval_accesses = 1_000_000         # between decisions of a policy [default: never]
  interleave = \"time\"                 # at the same time; or \"turns\", one after the other
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
  ways_min = 1                          # smallest number of ways of a class
  classes_max = 16

  [[level]]                             # private levels, the nearest first
  size = \"32 KiB\"
  ways = 8
  cycles = 4

  [refill]                              # of shared partitions
  mode = \"flush-and-touch\"            # touch, off
  every_cycles = 1_000_000
  duty_fraction = 0.01

  [sweep]
  array = [\"16 KiB\", \"4 MiB\"]         # sizes below: \"array\", \"array/2\", \"array*3/4\"

  [[shared]]
  name = \"half\"
  size = \"array/2\"

  [[program]]
  name = \"first\"
  private = \"array/2\"
  shared = [\"half\"]
  pattern = \"cyclic\"                  # chase, random, zipf (with skew), stream;
                                        # over shared memory, then private memory
  begin_fraction = 0.5                  # cyclic and chase: place of the first access
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
  private = \"256 MiB\"                 # limit on its memory
  shared = [\"half\"]
  shared_at = [\"0x4025000\"]           # address of each shared memory

  [[condition]]
  name = \"shared, CAT\"
  masks = { first = \"ff\", mixed = \"ff00\", real = \"ff00\" }
  sharing = true                        # false: each has a copy
  region = [{ set = \"half\", mask = \"f0000\" }]
  refill = { mode = \"touch\" }         # else that of above
                                        # or policy = \"none\"; or policy = \"sharing\" with
                                        # refined = false: by curves alone; or fit_fraction = 0.98:
                                        # shared partitions that hold this part of their sharing
                                        # group, and the other ways in equal parts to the programs

For each condition masu prints unfairness (greatest over least slowdown), STP (throughput, in
programs), ANTT (mean slowdown), Jain's index, and the figures of each program. Slowdown is cycles
per instruction, over cycles per instruction alone with the whole cache.

With a sweep masu prints a row for each size. Cycles an access of each program; ratio: the longer
over the shorter; even after: passes of the programs from the start of the daemon until that ratio
is 1.05 or less and stays so; region: content of the shared partition at the end; fills: passes of
the daemon over it, the first one included; duty: part of a CPU that these took after the warm-up
(`busy_cycles` in JSON counts all)."
)]
pub struct SimulateTask {
    /// File of the scenario
    #[arg(value_name = "SCENARIO")]
    pub scenario: PathBuf,

    /// Also write a figure to this file
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
