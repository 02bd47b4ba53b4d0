//! Reports of wanted pages that are not mlocked: each domain once, each cause ever more rarely.

use std::collections::BTreeSet;
use std::time::Duration;

use units::Bytes;

use super::REPORTED_MIN;
use crate::headroom::Domain;
use crate::left_out::{Reports, Tally};
use crate::policy;
use crate::report::Event;
use crate::shares::Owners;

/// Pages left out by the current scan, and the lines printed so far.
#[derive(Debug, Default)]
pub struct Shortfall {
    left_out: Tally,
    causes: Reports,
    /// Domains whose missing headroom was reported, and whether it was reported that nothing can be mlocked.
    domains: BTreeSet<String>,
    nothing: bool,
}

impl Shortfall {
    /// Begins a scan, with the files that it left out.
    pub fn begin(&mut self, left_out: Tally) {
        self.left_out = left_out;
    }

    /// Adds files that were refused.
    pub fn add(&mut self, refused: Tally) {
        self.left_out.add_all(refused);
    }

    /// Reports the causes at the end of a scan; `of_memory`: pages without headroom or budget.
    pub fn report_causes(&mut self, of_memory: Tally, owners: &Owners, now: Duration, events: &mut Vec<Event>) {
        let mut left_out = std::mem::take(&mut self.left_out);
        left_out.add_all(of_memory);
        events.extend(self.causes.of(left_out, owners, now).into_iter().map(Event::LeftOut));
    }

    /// Reports each control group without headroom for the pages that are charged to it. `domains` begins with the
    /// host, for which no line is needed.
    pub fn report_domains(&mut self, domains: &[Domain], without_in: &[Bytes], events: &mut Vec<Event>) {
        let full = domains.iter().zip(without_in).skip(1).filter(|(_, without)| **without >= REPORTED_MIN);
        for (Domain { name, headroom, .. }, without) in full {
            if self.domains.insert(name.clone()) {
                let why = format!(
                    "they are charged to {name}, whose headroom is {} of {}, and twice {} must remain",
                    headroom.left,
                    headroom.limit,
                    policy::low_watermark(headroom.limit)
                );
                events.push(Event::Skipped { what: format!("{without} of mapped pages"), why });
            }
        }
    }

    /// Reports once that no page at all can be mlocked, unless a control group was reported as the reason.
    pub fn report_nothing(&mut self, without: Bytes, budget: Bytes, events: &mut Vec<Event>) {
        if !self.nothing && self.domains.is_empty() {
            self.nothing = true;
            let why = format!(
                "there is no headroom for them: at most {budget} may be mlocked, and twice the low watermark must remain"
            );
            events.push(Event::Skipped { what: format!("{without} of mapped pages"), why });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Headroom;

    #[test]
    fn a_group_without_headroom_is_reported_once_and_the_host_never() {
        let domain = |name: &str| Domain {
            name: name.to_owned(),
            groups: None,
            headroom: Headroom { limit: Bytes::gib(1), left: Bytes::mib(100) },
        };
        let domains = ["the host", "/a", "/b"].map(domain);
        let (mut shortfall, mut events) = (Shortfall::default(), Vec::new());
        let without = [Bytes::mib(9), Bytes::mib(5), Bytes(4096)];
        shortfall.report_domains(&domains, &without, &mut events);
        shortfall.report_domains(&domains, &without, &mut events);
        shortfall.report_nothing(Bytes::mib(9), Bytes::gib(1), &mut events);
        let lines: Vec<String> = events.iter().map(ToString::to_string).collect();
        assert_eq!(
            lines,
            ["skipped 5.0 MiB of mapped pages: they are charged to /a, whose headroom is 100.0 MiB of 1.00 GiB, \
              and twice 64.0 MiB must remain"]
        );
    }

    #[test]
    fn it_is_reported_once_that_nothing_can_be_mlocked() {
        let (mut shortfall, mut events) = (Shortfall::default(), Vec::new());
        shortfall.report_nothing(Bytes::mib(9), Bytes::gib(1), &mut events);
        shortfall.report_nothing(Bytes::mib(9), Bytes::gib(1), &mut events);
        assert_eq!(events.len(), 1, "{events:?}");
    }
}
