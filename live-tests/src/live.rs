//! Running the table of tests: probing once, skipping by name, and libtest's words for the rest.

use std::collections::BTreeMap;
use std::sync::Arc;

use libtest_mimic::{Arguments, Completion, Conclusion, Trial};
use linux::Rooted;

use crate::need::{self, Need, Offer, Verdict};
use crate::probe;
use crate::table::{self, LiveTest};

/// What every test is given: the host's files, and what it offers.
#[derive(Debug)]
pub struct Live {
    files: Rooted,
    offers: BTreeMap<Need, Offer>,
    all_required: bool,
}

impl Live {
    /// Probes this host.
    pub fn on_this_host() -> Live {
        let all_required = std::env::var("LIVE_REQUIRE").is_ok_and(|value| value == "all");
        Live { files: Rooted::host(), offers: probe::all(), all_required }
    }

    /// The files of this kernel.
    pub fn files(&self) -> &Rooted {
        &self.files
    }

    /// What was found for each need.
    pub fn offers(&self) -> &BTreeMap<Need, Offer> {
        &self.offers
    }

    /// True when this need is met: for a test that has something to say in both cases.
    pub fn has(&self, need: Need) -> bool {
        self.offers.get(&need) == Some(&Offer::Yes)
    }
}

/// Runs the tests that the arguments choose, one after the other.
pub fn run(mut args: Arguments) -> Conclusion {
    // One at a time: they turn knobs of the whole machine and measure its memory.
    args.test_threads = Some(1);
    let live = Arc::new(Live::on_this_host());
    let trials: Vec<Trial> = table::ALL.iter().map(|test| trial(test, &live)).collect();
    if !args.list {
        for (trial, test) in trials.iter().zip(table::ALL) {
            if let Verdict::Skip(why) = live.verdict_on(test)
                && !args.is_filtered_out(trial)
            {
                println!("SKIP {}: {why}", test.name);
            }
        }
    }
    libtest_mimic::run(&args, trials)
}

impl Live {
    fn verdict_on(&self, test: &LiveTest) -> Verdict {
        need::verdict(test.needs, &self.offers, self.all_required)
    }
}

fn trial(test: &'static LiveTest, live: &Arc<Live>) -> Trial {
    let live = Arc::clone(live);
    Trial::ignorable_test(test.name, move || match live.verdict_on(test) {
        Verdict::Run => (test.run)(&live).map(|()| Completion::Completed),
        Verdict::Skip(why) => Ok(Completion::ignored_with(why)),
        Verdict::Fail(why) => Err(why.into()),
    })
}
