//! Arguments of `masu serve`.

use std::path::PathBuf;

use clap::Args as ClapArgs;

/// Serve all processes that rules name, from their start to their end
///
/// Use it as a service, for programs that come and go: rules name processes by unit, control group, file, user and
/// command, and say what masu does with their huge pages and their page cache. A process is under its rule within a
/// second of its start. A process without a rule is never touched.
///
/// SIGHUP reads the rules again, and changes only what changed; rules with an error leave those in force. Ctrl-C and
/// SIGTERM end it. The programs go on, and keep their huge pages.
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Rules, in the order in which they are asked; the first that matches and names a feature holds for it:
  [[rule]]
  name   = \"redis\"
  select = { unit = \"redis*.service\" }
  huge   = { mode = \"hot\", max-extra-rss = \"1%\" }

  [[rule]]
  name   = \"backup\"
  select = { unit = \"backup.service\" }
  aging  = { cache = 0 }

  [[rule]]
  name   = \"rest\"
  select = { cgroup = \"system.slice\" }
  huge   = { mode = \"leave\" }

  select: unit, cgroup, executable, user, command; a process must match all that are given. unit,
  cgroup and command are patterns: * and ? stand for parts of a name, ** for any number of names.
  cgroup matches the groups below, too. command never stands alone: any process may take any name.
  huge: mode = \"hot\" promotes hot windows and splits idle ones, as `masu attach` does, with
  max-extra-rss and hot-fraction as there; mode = \"leave\" changes nothing.
  aging: cache = 0 drops the pages that a process and those that it starts bring into the page cache
  behind them, as `masu aging --cache 0` does; cache = 100 leaves them to the kernel.

Examples:
  masu serve --check                    are the rules right? status 0, or 2 with the line of the fault
  masu serve --dry-run                  the running processes, and the rule for each
  masu serve                            until Ctrl-C
  systemctl enable --now masu           as a service")]
pub struct ServeTask {
    /// Rules; files in the folder of this name with the ending .d are read behind it
    #[arg(long, value_name = "FILE", default_value = "/etc/masu/masu.toml")]
    pub config: PathBuf,

    /// Read the rules, say whether they are right, and end
    #[arg(long, conflicts_with = "dry_run")]
    pub check: bool,

    /// Print the running processes with a rule, and end
    #[arg(long)]
    pub dry_run: bool,

    /// Print one JSON object per line
    #[arg(long)]
    pub json: bool,

    /// Answers HTTP on descriptor 1: the service starts itself so, as another user
    #[arg(long, hide = true)]
    pub answer_http: bool,
}

/// Print the rules of the running `masu serve`, and the state of each process under them
///
/// Use it to see what the service does, and why a process is not served. Needs root.
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
States of a process: waiting (it is smaller than 8 MiB, or comes next), refused (with the reason), served,
settled (nothing has changed for some rounds), left (its rule asks for no change).

Examples:
  masu status                           all rules and processes
  masu status redis 4121                one rule, and one process
  masu status --json                    for programs
  masu status --openmetrics > /var/lib/prometheus/node-exporter/masu.prom
                                        for the textfile collector of node_exporter")]
pub struct StatusTask {
    /// Rules or processes [default: all]
    #[arg(value_name = "RULE|PID")]
    pub of: Vec<String>,

    /// Print a JSON object
    #[arg(long)]
    pub json: bool,

    /// Print the metrics as text of OpenMetrics
    #[arg(long, conflicts_with_all = ["json", "of"])]
    pub openmetrics: bool,
}
