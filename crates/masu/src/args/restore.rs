//! Arguments of `masu restore`.

use clap::Args as ClapArgs;

/// Restore settings that a killed masu left changed
///
/// Use it after kill -9 when no masu is to start again: each start of masu does the same. masu records a setting before it
/// changes it, in /run/masu/private. A setting that another program has changed since stays as it is. Exit status 1: a
/// setting is still changed, for the printed reason.
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  sudo masu restore
  sudo masu restore --json")]
pub struct RestoreTask {
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}
