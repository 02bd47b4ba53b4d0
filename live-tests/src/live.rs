//! Input of every test.

use std::collections::BTreeMap;

use linux::Rooted;

use crate::need::{self, Need, Offer, Verdict};

/// Input of every test: the host's files, and its capabilities.
#[derive(Debug)]
pub struct Live {
    files: Rooted,
    offers: BTreeMap<Need, Offer>,
    all_required: bool,
}

impl Live {
    /// This host with the capabilities that a probe found.
    pub fn new(offers: BTreeMap<Need, Offer>) -> Live {
        let all_required = std::env::var("LIVE_REQUIRE").is_ok_and(|value| value == "all");
        Live { files: Rooted::host(), offers, all_required }
    }

    /// The files of this kernel.
    pub fn files(&self) -> &Rooted {
        &self.files
    }

    /// Findings for each need.
    pub fn offers(&self) -> &BTreeMap<Need, Offer> {
        &self.offers
    }

    /// Whether a test with these needs runs.
    pub fn verdict(&self, needs: &[Need]) -> Verdict {
        need::verdict(needs, &self.offers, self.all_required)
    }

    /// True when this need is met: for a test that has assertions in both cases.
    pub fn has(&self, need: Need) -> bool {
        self.offers.get(&need) == Some(&Offer::Yes)
    }
}
