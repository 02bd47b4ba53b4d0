//! Input of every test, and the form of a file's list of tests.

use std::collections::BTreeMap;

use libtest_mimic::Failed;
use linux::Rooted;

use crate::requirement::{self, Capability, Requirement, SkipReason};

/// The host's files, and its capabilities.
#[derive(Debug)]
pub struct Host {
    files: Rooted,
    capabilities: BTreeMap<Requirement, Capability>,
    all_required: bool,
}

impl Host {
    /// This host with the capabilities that a probe found.
    pub fn new(capabilities: BTreeMap<Requirement, Capability>) -> Host {
        let all_required = std::env::var("LIVE_REQUIRE").is_ok_and(|value| value == "all");
        Host { files: Rooted::host(), capabilities, all_required }
    }

    /// The files of this kernel.
    pub fn files(&self) -> &Rooted {
        &self.files
    }

    /// Findings for each requirement.
    pub fn capabilities(&self) -> &BTreeMap<Requirement, Capability> {
        &self.capabilities
    }

    /// Cause for which the test does not run; `None` when it runs.
    pub fn skip_reason(&self, test: &LiveTest) -> Option<SkipReason> {
        requirement::skip_reason(test.requirements(), &self.capabilities, self.all_required)
    }

    /// True when this requirement is met: for a test that has assertions in both cases.
    pub fn has(&self, requirement: Requirement) -> bool {
        self.capabilities.get(&requirement) == Some(&Capability::Available)
    }
}

/// One test.
#[derive(Debug)]
pub struct LiveTest {
    /// File and function: `collapse::a_touched_window_becomes_huge`.
    pub name: &'static str,
    /// Requirements of all tests in the file.
    pub(crate) common: &'static [Requirement],
    /// Further requirements of this test.
    pub(crate) own: &'static [Requirement],
    /// Function of the test.
    pub run: fn(&Host) -> Result<(), Failed>,
}

impl LiveTest {
    /// Requirements for running it.
    pub fn requirements(&self) -> impl Iterator<Item = Requirement> + use<> {
        self.common.iter().chain(self.own).copied()
    }
}

/// List of a file's tests: the file's name with the requirements of all tests, then each function with its further
/// requirements. The test is named after the function, so that the two cannot differ.
macro_rules! tests {
    ($file:ident requires [$($common:ident),*]; $($function:ident $([$($own:ident),*])?;)*) => {{
        use $crate::requirement::Requirement;
        const COMMON: &[Requirement] = &[$(Requirement::$common),*];
        &[$(LiveTest {
            name: concat!(stringify!($file), "::", stringify!($function)),
            common: COMMON,
            own: &[$($(Requirement::$own),*)?],
            run: $function,
        }),*]
    }};
}

pub(crate) use tests;
