//! I/O batches in the background: pages are fetched before they are touched, and written to the store after their
//! frames were given to others.
//!
//! masu runs them, in its own process, beside the faulting thread, for stores with a long latency. The work is cut into
//! batches, each with space for some pages in the shared segment. A batch is submitted with the pager's
//! lock held ([`Pager::submit`]). masu runs several at a time, without the lock ([`Batches::run_batch`]). Batches complete in
//! the same order with the lock held, at the next fault, or when a thread needs one of their pages and waits
//! ([`Pager::settle`]). So pages in a batch belong to that batch only. By their state words, all pages of a batch are
//! in the store, and requested.
//!
//! Tried and dropped, with a file as the store: the whole mechanism, since it gains nothing over the kernel's own
//! readahead and write-behind, and takes copies; a thread in the program, since it shares the address space, so that
//! each move of frames interrupts the other processor; and access by masu to the program's frames, which takes longer
//! than a copy by the program.

use core::sync::atomic::{AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

use super::{Checksum, Incoming, Machine, Pager, Source, Unit};
use crate::cast::low;
use crate::counters::Counter;
use crate::entry::Place;
use crate::policy::replacement::Arrival;
use crate::policy::site::FetchPlan;
use crate::policy::{self, NO_PAGE};
use crate::space::Page;
use crate::units::Units;

/// Largest number of pages in a batch.
pub const BATCH_PAGES: u32 = 32;

/// Batches in flight at a time.
const BATCHES: u32 = 8;

/// Pending requests at a time.
const MAX_REQUESTS: u32 = 256;

/// Limit of requested pages: beyond it no more are requested, and the faulting thread fetches by itself, so both work.
const MAX_PAGES_REQUESTED: u64 = 128;

// Words of all batches.
const SUBMITTED: usize = 0;
const COMPLETED: usize = 1;
const REQUESTS_DONE: usize = 2;
const REQUESTS_MADE: usize = 3;
const PAGES_REQUESTED: usize = 4;
const REQUESTS: usize = 5;
const FIRST_BATCH: usize = REQUESTS + 2 * MAX_REQUESTS as usize;

// Words of each batch.
const STATE: usize = 0;
const KIND: usize = 1;
const FIRST: usize = 2;
const COUNT: usize = 3;
const INCOMING: usize = 4;
const CHECKSUMS: usize = 5;
const BATCH_WORDS: usize = CHECKSUMS + 2 * BATCH_PAGES as usize;

/// Words of all batches and requests.
pub const BATCHES_WORDS: usize = FIRST_BATCH + BATCHES as usize * BATCH_WORDS;

/// Pages that all batches hold together.
pub const BATCHES_PAGES: u32 = BATCHES * BATCH_PAGES;

// Values of the state.
const FREE: u64 = 0;
const RUNNING: u64 = 1;
const DONE: u64 = 2;
const FAILED: u64 = 3;

const FETCH: u64 = 0;
const WRITE: u64 = 1;

/// Batches in flight and pending requests. All zeros: none.
#[derive(Clone, Copy, Debug)]
pub struct Batches<'a>(pub &'a [AtomicU64; BATCHES_WORDS]);

/// Worker of the I/O batches: `buffer` is the number of the first page in the batches' memory.
pub trait BatchWorker {
    /// Reason of a failure.
    type Trouble;

    /// Reads these pages of the store into the batch's memory, and writes their checksums.
    ///
    /// # Errors
    /// When the store has failed for good.
    fn fetch(&mut self, page: Page, buffer: u32, checksums: &mut [Checksum]) -> Result<(), Self::Trouble>;

    /// Writes the batch's memory to the store.
    ///
    /// # Errors
    /// When the store has failed for good.
    fn write(&mut self, page: Page, buffer: u32, pages: u32) -> Result<(), Self::Trouble>;

    /// Reports a batch with words that no pager writes.
    fn invalid(&mut self) -> Self::Trouble;
}

/// Words of one batch.
#[derive(Clone, Copy)]
struct Batch<'a>(&'a [AtomicU64]);

impl Batch<'_> {
    fn get(self, word: usize) -> u64 {
        self.0[word].load(Relaxed)
    }

    fn put(self, word: usize, value: u64) {
        self.0[word].store(value, Relaxed);
    }

    fn state(self) -> u64 {
        self.0[STATE].load(Acquire)
    }

    fn set_state(self, state: u64) {
        self.0[STATE].store(state, Release);
    }

    fn count(self) -> u32 {
        low(self.get(COUNT)).min(BATCH_PAGES)
    }

    fn is_fetch(self) -> bool {
        self.get(KIND) == FETCH
    }

    /// Whether it is a fetch, its first page, and their number. `None` for words that no pager writes: the program can
    /// write any.
    fn checked(self) -> Option<(bool, Page, u32)> {
        let first = u32::try_from(self.get(FIRST)).ok()?;
        let pages = u32::try_from(self.get(COUNT)).ok().filter(|pages| (1..=BATCH_PAGES).contains(pages))?;
        first.checked_add(pages - 1)?;
        let is_fetch = match self.get(KIND) {
            FETCH => true,
            WRITE => false,
            _ => return None,
        };
        Some((is_fetch, Page(first), pages))
    }

    fn first(self) -> Page {
        Page(low(self.get(FIRST)))
    }

    fn has(self, page: Page) -> bool {
        page.0.wrapping_sub(self.first().0) < self.count()
    }

    fn checksum(self, number: u32) -> Checksum {
        let at = CHECKSUMS + 2 * (number % BATCH_PAGES) as usize;
        Checksum([self.get(at), self.get(at + 1)])
    }

    fn set_checksum(self, number: u32, sum: Checksum) {
        let at = CHECKSUMS + 2 * (number % BATCH_PAGES) as usize;
        self.put(at, sum.0[0]);
        self.put(at + 1, sum.0[1]);
    }
}

/// First page of the batch with this number, in the batches' memory.
const fn buffer_of(number: u64) -> u32 {
    low(number % BATCHES as u64) * BATCH_PAGES
}

impl<'a> Batches<'a> {
    /// Number of batches submitted.
    pub fn submitted(&self) -> u64 {
        self.0[SUBMITTED].load(Acquire)
    }

    /// Whether the oldest batch has not completed yet.
    pub fn is_oldest_running(&self) -> bool {
        self.batch(self.get(COMPLETED)).state() == RUNNING
    }

    fn batch(&self, number: u64) -> Batch<'a> {
        let at = FIRST_BATCH + low(number % u64::from(BATCHES)) as usize * BATCH_WORDS;
        let words: &'a [AtomicU64] = self.0;
        Batch(&words[at..at + BATCH_WORDS])
    }

    /// Batches in flight, the oldest first.
    fn in_flight(&self) -> impl Iterator<Item = Batch<'a>> + use<'a> {
        let (completed, batches) = (self.get(COMPLETED), *self);
        let count = self.get(SUBMITTED).wrapping_sub(completed).min(BATCHES.into());
        (0..count).map(move |more| batches.batch(completed.wrapping_add(more)))
    }

    /// Whether the batch with this number was submitted, and its words still belong to it.
    pub fn is_submitted(&self, number: u64) -> bool {
        (1..=u64::from(BATCHES)).contains(&self.submitted().wrapping_sub(number))
    }

    /// Runs the batch with this number, if it was submitted. Returns whether it was. Called by masu only, and once for
    /// each number.
    ///
    /// # Errors
    /// When the batch fails: then the program sees the failure when the batch completes.
    pub fn run_batch<C: BatchWorker>(&self, worker: &mut C, number: u64) -> Result<bool, C::Trouble> {
        let batch = self.batch(number);
        if !self.is_submitted(number) || batch.state() != RUNNING {
            return Ok(false);
        }
        let buffer = buffer_of(number);
        let Some((is_fetch, first, pages)) = batch.checked() else {
            let invalid = worker.invalid();
            batch.set_state(FAILED);
            return Err(invalid);
        };
        let done = if is_fetch {
            let mut checksums = [Checksum::default(); BATCH_PAGES as usize];
            worker.fetch(first, buffer, &mut checksums[..pages as usize]).map(|()| {
                (0..pages).zip(checksums).for_each(|(number, sum)| batch.set_checksum(number, sum));
            })
        } else {
            worker.write(first, buffer, pages)
        };
        batch.set_state(if done.is_ok() { DONE } else { FAILED });
        done.map(|()| true)
    }

    /// Whether a batch has this page.
    pub(super) fn have(&self, page: Page) -> bool {
        self.in_flight().any(|batch| batch.has(page))
    }

    fn get(&self, word: usize) -> u64 {
        self.0[word].load(Relaxed)
    }

    fn put(&self, word: usize, value: u64) {
        self.0[word].store(value, Relaxed);
    }

    /// A free batch, if one is not in flight.
    fn free(&self) -> Option<Batch<'a>> {
        let submitted = self.get(SUBMITTED);
        let is_free = submitted.wrapping_sub(self.get(COMPLETED)) < u64::from(BATCHES);
        is_free.then(|| self.batch(submitted)).filter(|batch| batch.state() == FREE)
    }

    fn start(&self, batch: Batch<'_>, kind: u64, (first, pages): Unit, incoming: u64) {
        for (word, value) in [(KIND, kind), (FIRST, first.0.into()), (COUNT, pages.into()), (INCOMING, incoming)] {
            batch.put(word, value);
        }
        batch.set_state(RUNNING);
        self.0[SUBMITTED].store(self.get(SUBMITTED).wrapping_add(1), Release);
    }

    /// Whether the pending work is so large that more would come too late.
    pub(super) fn is_busy(&self) -> bool {
        self.get(PAGES_REQUESTED) > MAX_PAGES_REQUESTED
    }

    fn has_requests(&self) -> bool {
        self.get(REQUESTS_DONE) != self.get(REQUESTS_MADE)
    }

    /// Adds a request. False: there are too many.
    fn request(&self, (first, pages): Unit, incoming: u64) -> bool {
        let made = self.get(REQUESTS_MADE);
        if made.wrapping_sub(self.get(REQUESTS_DONE)) >= u64::from(MAX_REQUESTS) {
            return false;
        }
        let at = REQUESTS + 2 * low(made % u64::from(MAX_REQUESTS)) as usize;
        self.put(at, u64::from(first.0) | u64::from(pages) << 32);
        self.put(at + 1, incoming);
        self.put(REQUESTS_MADE, made.wrapping_add(1));
        self.put(PAGES_REQUESTED, self.get(PAGES_REQUESTED) + u64::from(pages));
        true
    }

    /// The oldest request, and the arrival class of its pages.
    fn first_request(&self) -> Option<(Unit, u64)> {
        let at = REQUESTS + 2 * low(self.get(REQUESTS_DONE) % u64::from(MAX_REQUESTS)) as usize;
        let word = self.get(at);
        self.has_requests().then_some(((Page(low(word)), low(word >> 32)), self.get(at + 1)))
    }

    /// Removes `done` pages from the oldest request.
    fn consume_request(&self, (first, pages): Unit, done: u32) {
        let number = self.get(REQUESTS_DONE);
        self.put(PAGES_REQUESTED, self.get(PAGES_REQUESTED).saturating_sub(done.min(pages).into()));
        if done >= pages {
            self.put(REQUESTS_DONE, number.wrapping_add(1));
        } else {
            let at = REQUESTS + 2 * low(number % u64::from(MAX_REQUESTS)) as usize;
            self.put(at, u64::from(first.0 + done) | u64::from(pages - done) << 32);
        }
    }
}

impl Incoming {
    fn word(self) -> u64 {
        u64::from(self.mark) | u64::from(matches!(self.arrival, Arrival::Probation)) << 16
    }

    fn of(word: u64) -> Incoming {
        let arrival = if word >> 16 & 1 == 1 { Arrival::Probation } else { Arrival::New };
        Incoming { mark: (word & 0xffff) as u16, arrival }
    }
}

impl Pager<'_> {
    /// Whether the page is in the store, and in no batch.
    pub(super) fn is_stored(&self, page: Page) -> bool {
        self.entry(page).place() == Place::Stored && !self.is_in_flight(page)
    }

    /// Whether a batch has this page.
    pub(super) fn is_in_flight(&self, page: Page) -> bool {
        self.entry(page).is_requested() && self.batches.have(page)
    }

    /// Whether a batch reads this page.
    pub(super) fn is_being_fetched(&self, page: Page) -> bool {
        let reads_it = |batch: Batch<'_>| batch.is_fetch() && batch.has(page);
        self.entry(page).is_requested() && self.batches.in_flight().any(reads_it)
    }

    /// Adds requests for the background. `page` is the page of `number`; requested pages lie in its chunk.
    pub(super) fn request_ahead(&self, plan: &FetchPlan, page: Page, number: u64, area: policy::Run) {
        let arrival = if plan.probation { Arrival::Probation } else { Arrival::New };
        let incoming = Incoming { mark: plan.mark, arrival }.word();
        let at = |number_of_other: u64| self.of_number(page, number, number_of_other);
        for series in plan.ahead {
            for run in (0..series.runs).map(|run| series.run(run, area)).filter(|run| run.pages > 0) {
                let first = at(run.first_page);
                let all = (0..run.pages).map(|more| first.plus(more));
                if !all.clone().any(|page| self.is_stored(page)) || !self.batches.request((first, run.pages), incoming)
                {
                    continue;
                }
                for page in all.filter(|page| self.is_stored(*page)) {
                    self.set(page, self.entry(page).requested(true).marker(false));
                }
                for marker in plan.markers.into_iter().filter(|marker| *marker != NO_PAGE && run.contains(*marker)) {
                    let marker = at(marker);
                    if self.is_stored(marker) {
                        self.set(marker, self.entry(marker).marker(true));
                    }
                }
            }
        }
    }

    /// Submits batches for the requests. The lock is held.
    pub fn submit(&self) {
        while let Some(batch) = self.batches.free()
            && let Some((unit, incoming)) = self.batches.first_request()
        {
            let (first, pages) = unit;
            let comes = |more: &u32| self.is_stored(first.plus(*more)) && self.entry(first.plus(*more)).is_requested();
            let skipped = (0..pages).find(comes).unwrap_or(pages);
            let most = pages.min(skipped + BATCH_PAGES);
            let end = (skipped..most).find(|more| !comes(more)).unwrap_or(most);
            if skipped < end {
                self.batches.start(batch, FETCH, (first.plus(skipped), end - skipped), incoming);
            }
            self.batches.consume_request(unit, end);
        }
    }

    /// Hands over pages that are to be written to the store. Their slots may be reused after this, and the caller marks
    /// them as in the store, and requested. Returns the number taken, from the first on; the caller writes the others.
    pub(super) fn hand_over<M: Machine>(&self, machine: &mut M, (first, pages): Unit, slot: u32) -> u32 {
        let mut taken = 0;
        while taken < pages
            && let Some(batch) = self.batches.free()
        {
            let now = (pages - taken).min(BATCH_PAGES);
            machine.load(slot + taken, buffer_of(self.batches.submitted()), now);
            self.batches.start(batch, WRITE, (first.plus(taken), now), 0);
            taken += now;
        }
        self.counters.add(Counter::PagesBehind, taken.into());
        taken
    }

    /// Completes batches that have run. The lock is held.
    ///
    /// # Errors
    /// When the store has failed for good.
    pub fn complete<M: Machine>(&self, machine: &mut M, units: &mut Units<'_>) -> Result<(), M::Fatal> {
        while let Some(batch) = self.batches.in_flight().next()
            && batch.state() != RUNNING
        {
            self.complete_oldest(machine, units, batch)?;
        }
        Ok(())
    }

    fn complete_oldest<M: Machine>(
        &self,
        machine: &mut M,
        units: &mut Units<'_>,
        batch: Batch<'_>,
    ) -> Result<(), M::Fatal> {
        if batch.state() == FAILED {
            return Err(machine.batch_failed());
        }
        let number = self.batches.get(COMPLETED);
        let (first, pages) = (batch.first(), batch.count());
        if batch.is_fetch() {
            // Checked before any access to the pages: a mismatch ends the program.
            for more in 0..pages {
                if batch.checksum(more) != self.checksum(first.plus(more)) {
                    return Err(machine.corrupt(first.plus(more)));
                }
            }
        }
        // The batch is no longer in flight, and its pages belong to this thread; its memory is not reused before the
        // state word allows it.
        self.batches.put(COMPLETED, number.wrapping_add(1));
        if batch.is_fetch() {
            let incoming = Incoming::of(batch.get(INCOMING));
            self.complete_fetch(machine, units, (first, pages), incoming, buffer_of(number))?;
        }
        for page in (0..pages).map(|more| first.plus(more)) {
            let entry = self.entry(page);
            if entry.place() == Place::Stored {
                // It may have come, changed, and left again meanwhile.
                self.set(page, entry.requested(self.batches.have(page)));
            }
        }
        batch.set_state(FREE);
        Ok(())
    }

    fn complete_fetch<M: Machine>(
        &self,
        machine: &mut M,
        units: &mut Units<'_>,
        (first, pages): Unit,
        incoming: Incoming,
        buffer: u32,
    ) -> Result<(), M::Fatal> {
        // A page that is fetched otherwise loses the mark that leaves it unmapped.
        let mut markers = 0_u64;
        for more in 0..pages {
            markers |= u64::from(self.entry(first.plus(more)).is_marker()) << more;
        }
        let mut next = 0;
        while next < pages {
            let is_stored = |more: &u32| self.entry(first.plus(*more)).place() == Place::Stored;
            let Some(from) = (next..pages).find(is_stored) else { break };
            let end = (from..pages).find(|more| !is_stored(more)).unwrap_or(pages);
            self.free_frames(machine, units, end - from, 0);
            if self.frames_in_use() >= self.budget().frames && self.victims.frames() == 0 {
                // All frames are pinned. No thread waits for these pages.
                break;
            }
            let source = Source::Batch(buffer + from);
            let came = self.fetch_run(machine, units, (first.plus(from), end - from), incoming, source)?;
            self.counters.add(Counter::PagesAhead, came.into());
            if came == 0 {
                break;
            }
            next = from + came;
        }
        for page in (0..pages).filter(|more| markers >> more & 1 == 1).map(|more| first.plus(more)) {
            self.set_marker_on(machine, page);
            let entry = self.entry(page);
            self.set(page, entry.requested(entry.place() == Place::Victim || self.batches.have(page)));
        }
        Ok(())
    }

    /// Waits for all batches and completes them, so that none is in flight. The lock is held.
    ///
    /// # Errors
    /// When the store has failed for good.
    pub fn settle<M: Machine>(&self, machine: &mut M, units: &mut Units<'_>) -> Result<(), M::Fatal> {
        self.settle_while(machine, units, || true)
    }

    /// Waits for the oldest batches, and completes them, as long as the condition holds.
    pub(super) fn settle_while<M: Machine>(
        &self,
        machine: &mut M,
        units: &mut Units<'_>,
        is_needed: impl Fn() -> bool,
    ) -> Result<(), M::Fatal> {
        while is_needed()
            && let Some(batch) = self.batches.in_flight().next()
        {
            if batch.state() == RUNNING {
                machine.wait_for_completion(self);
            }
            self.complete_oldest(machine, units, batch)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Worker that must not be asked to do anything.
    struct Idle;

    impl BatchWorker for Idle {
        type Trouble = &'static str;

        fn fetch(&mut self, _: Page, _: u32, _: &mut [Checksum]) -> Result<(), &'static str> {
            unreachable!("an invalid batch was run")
        }

        fn write(&mut self, _: Page, _: u32, _: u32) -> Result<(), &'static str> {
            unreachable!("an invalid batch was run")
        }

        fn invalid(&mut self) -> &'static str {
            "invalid"
        }
    }

    #[test]
    fn a_batch_with_words_that_no_pager_writes_is_refused_and_no_page_0_is_read_or_written() {
        for (kind, first, count) in [
            (2, 0, 1),
            (FETCH, 1 << 32, 1),
            (WRITE, 1 << 32, 1),
            (FETCH, 0, 0),
            (FETCH, 0, 33),
            (WRITE, u32::MAX.into(), 2),
        ] {
            let words = [const { AtomicU64::new(0) }; BATCHES_WORDS];
            let batches = Batches(&words);
            let batch = batches.batch(0);
            [(KIND, kind), (FIRST, first), (COUNT, count)].into_iter().for_each(|(word, value)| batch.put(word, value));
            batch.set_state(RUNNING);
            batches.put(SUBMITTED, 1);
            assert_eq!(batches.run_batch(&mut Idle, 0), Err("invalid"), "{kind} {first} {count}");
            assert_eq!(batch.state(), FAILED);
        }
    }
}
