//! Conditions of a run: the memcached binary, the host's setting, and its helper (masu or none).

use crate::choices;
use crate::thp::Mode;

choices! {
    /// Condition of a run. Under `always` khugepaged is not waited for; under `collapsed` it has scanned all of the memory.
    pub enum Condition {
        Default = "default", "Default";
        Always = "always", "THP=always";
        Collapsed = "collapsed", "THP=always, collapsed";
        LargePages = "large-pages", "memcached -L";
        Promote = "promote", "promotion alone";
        Hps = "hps", "HPS";
    }
}

impl Condition {
    /// The host's setting while it runs.
    pub const fn mode(self) -> Mode {
        match self {
            Condition::Always | Condition::Collapsed => Mode::Always,
            _ => Mode::Madvise,
        }
    }
}
