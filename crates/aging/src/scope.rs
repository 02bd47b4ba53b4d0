//! Processes whose pages are aged: of the host, of a control group, or named.

use std::collections::BTreeSet;

use linux::cgroup::group::{self, Group};
use linux::{Error, KernelFiles, Pid};

/// Scope of the aging.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    /// All processes of the host.
    Host,
    /// Processes in a control group and below it.
    Group(String),
    /// Named processes.
    Processes(BTreeSet<Pid>),
}

/// Control group of the scope, if it is one.
pub(crate) fn find(files: &impl KernelFiles, scope: &Scope) -> Result<Option<Group>, Error> {
    match scope {
        Scope::Group(name) => group::find(files, name).map(Some),
        Scope::Host | Scope::Processes(_) => Ok(None),
    }
}
