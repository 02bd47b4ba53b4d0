//! Arguments of `masu set`.

use clap::Args as ClapArgs;
use linux::Pid;

/// Switch huge pages off or on for a running program
///
/// Use it when huge pages cost a program too much memory or latency, or when a program forbade them for itself, as
/// Redis does. It takes effect at once, for present and future memory, without a restart. huge=off makes the program
/// forbid huge pages for itself, splits its huge pages, and returns the memory in them that it never used. huge=on
/// allows them again.
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Settings:
  huge=off      no huge pages from now on; present ones are split
  huge=on       huge pages as host and program allow; fully resident windows become huge at once
  align=on|off  large mappings start on a window, or anywhere; for programs started by `masu run`

Examples:
  masu set 4121 huge=off
  masu set 4121 4122 huge=on
  masu set 4121 huge=off --json | jq '{rss_before_bytes, rss_after_bytes}'

Effects on the machine: masu stops one thread of the program for some 100 µs and makes it call
prctl(PR_SET_THP_DISABLE), since only a program itself may set this. A system call that the thread
waits in goes on afterwards. A split takes less than a millisecond a window. The program's children
inherit the setting.")]
pub struct SetTask {
    /// Processes, and settings: huge=off, huge=on, align=on, align=off
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
