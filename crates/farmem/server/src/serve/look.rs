//! Readings of a program while it runs, and lines about it.

use farmem_engine::counters::{Counter, Counters};
use linux::Rooted;
use linux::stat::stat;
use units::Bytes;

use super::{Common, LOOK, Program, Server, locked};
use crate::at_once::{Crowd, One};
use crate::copies::Search;
use crate::report::{Counted, WorkingSet};
use crate::store::PAGE_BYTES;
use crate::thrash::Reading;
use crate::unpaged;

/// Counts forked copies, until the run is over.
pub(super) fn count_copies(common: &Common) {
    let mut search = Search::begin(&Rooted::host(), Server::segment_path());
    while !common.is_over() {
        if let Some(found) = search.look(&Rooted::host()) {
            let all = locked(&common.copies).read(&found);
            locked(&common.at_once).copies(all);
        }
        std::thread::park_timeout(LOOK);
    }
}

impl Program {
    /// Takes the readings that are due, and says what the user should know at once.
    pub(super) fn look(&self, common: &Common) {
        let Some(counters) = self.counters() else { return };
        let local = Counted::local(&counters);
        // The program can write any value there.
        let resident = Bytes(counters.get(Counter::ResidentPages).saturating_mul(PAGE_BYTES as u64)).min(local);
        let one = One { process: self.peer.pid, local, resident };
        let has_ended = |pid| stat(&Rooted::host(), pid).map_or_else(|error| error.is_gone(), |of| of.state == 'Z');
        let crowd = locked(&common.at_once).is(self.layer, one, common.room, has_ended);
        if let Some(crowd) = crowd.filter(|crowd| common.says_all || matches!(crowd, Crowd::TooMuch(_))) {
            (common.say)(&crowd.text());
        }
        self.look_for_thrash(&counters, common);
        self.look_for_copies(local, common);
        let queue = Bytes(local.0 / 8);
        let unpaged = self.observation.look(|| self.learned(), queue).filter(|unpaged| unpaged.is_much(local));
        if let Some(unpaged) = unpaged
            && let Some(name) = self.observation.name_once()
        {
            let (process, text) = (self.process, unpaged.text().unwrap_or_default());
            let one = || {
                format!("{name} (process {process}) has memory that is not paged, on top of --local {local}: {text}")
            };
            let line = common.unpaged.next(one, "more programs have memory that is not paged: see the report");
            line.iter().for_each(|line| (common.say)(line));
        }
    }

    /// Says once that its forked copies have much memory.
    fn look_for_copies(&self, local: Bytes, common: &Common) {
        let Some(mapped) = self.mapped else { return };
        let held = locked(&common.copies).of(mapped);
        self.observation.copies(held);
        if held.bytes < unpaged::warned_min(local) {
            return;
        }
        let Some(name) = self.observation.name_of_copied_once() else { return };
        let one = || {
            let (process, (copies, have)) = (self.process, unpaged::copies(held.copies));
            let bytes = held.bytes;
            format!(
                "{copies} of {name} (process {process}) {have} {bytes} in memory, not paged and not limited by \
                 --local {local} until exec"
            )
        };
        let line = common.copying.next(one, "more programs have forked copies with much memory: see the report");
        line.iter().for_each(|line| (common.say)(line));
    }

    /// Says once that the program spends its time on waiting for pages.
    fn look_for_thrash(&self, counters: &Counters<'_>, common: &Common) {
        let reading = Reading {
            at: self.observation.age(),
            waited_s: Counted::waited_s(counters),
            faults_stored: counters.get(Counter::FaultsStored),
        };
        let Some(thrashed) = locked(&self.thrash).look(reading) else { return };
        let (name, local) = (self.observation.observed().name, Counted::local(counters));
        let touched = Bytes(counters.get(Counter::TouchedPagesPeak).saturating_mul(PAGE_BYTES as u64));
        let set = WorkingSet::of(self.process, &name, &self.learned().what_if, local, touched);
        let one = || thrashed.text(&name, self.process, set.as_ref(), local, touched);
        let line = common.thrashing.next(one, "more programs thrash: see the report");
        line.iter().for_each(|line| (common.say)(line));
    }
}
