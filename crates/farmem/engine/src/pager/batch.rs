//! I/O batches in the background: pages are fetched before they are touched, and written to the store after their
//! frames were given to others.
//!
//! masu runs them, in its own process, beside the faulting thread, for stores with a long latency. The work is cut into
//! *flights*: I/O batches, each with space for some pages in the shared segment. A batch is submitted with the pager's
//! lock held ([`Pager::launch`]). masu runs several at a time, without the lock ([`Batches::fly`]). Batches complete in
//! the same order with the lock held, at the next fault, or when a thread needs one of their pages and waits
//! ([`Pager::settle`]). So pages in a batch belong to that batch only. By their state words, all pages of a batch are
//! in the store, and requested.
//!
//! Tried and dropped, with a file as the store: the whole mechanism, since it gains nothing over the kernel's own
//! readahead and write-behind, and takes copies; a thread in the program, since it shares the address space, so that
//! each move of frames interrupts the other processor; and access by masu to the program's frames, which takes longer
//! than a copy by the program.

use core::sync::atomic::{AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

use super::{Checksum, Come, Machine, Pager, Source, Unit};
use crate::cast::low;
use crate::counters::Counter;
use crate::entry::Place;
use crate::policy::replacement::Arrival;
use crate::policy::site::FetchPlan;
use crate::policy::{self, NO_PAGE};
use crate::space::Page;
use crate::units::Units;

/// Largest number of pages in a batch.
pub const FLIGHT_PAGES: u32 = 32;

/// Batches in flight at a time.
const FLIGHTS: u32 = 8;

/// Pending requests at a time.
const MOST_ORDERS: u32 = 256;

/// Limit of requested pages: beyond it no more are requested, and the faulting thread fetches by itself, so both work.
const MOST_PAGES_ORDERED: u64 = 128;

// Words of all batches.
const LAUNCHED: usize = 0;
const LANDED: usize = 1;
const ORDERS_DONE: usize = 2;
const ORDERS_MADE: usize = 3;
const PAGES_ORDERED: usize = 4;
const ORDERS: usize = 5;
const FIRST_FLIGHT: usize = ORDERS + 2 * MOST_ORDERS as usize;

// Words of each batch.
const STATE: usize = 0;
const KIND: usize = 1;
const FIRST: usize = 2;
const COUNT: usize = 3;
const COME: usize = 4;
const SUMS: usize = 5;
const WORDS_OF_A_FLIGHT: usize = SUMS + 2 * FLIGHT_PAGES as usize;

/// Words of all batches and requests.
pub const FLIGHT_WORDS: usize = FIRST_FLIGHT + FLIGHTS as usize * WORDS_OF_A_FLIGHT;

/// Pages that all batches hold together.
pub const FLIGHTS_PAGES: u32 = FLIGHTS * FLIGHT_PAGES;

// Values of the state.
const ON_THE_GROUND: u64 = 0;
const IN_THE_AIR: u64 = 1;
const ARRIVED: u64 = 2;
const FAILED: u64 = 3;

const FETCH: u64 = 0;
const WRITE: u64 = 1;

/// Batches in flight and pending requests. All zeros: none.
#[derive(Clone, Copy, Debug)]
pub struct Batches<'a>(pub &'a [AtomicU64; FLIGHT_WORDS]);

/// Worker of the I/O batches: `room` is the number of the first page in the batches' memory.
pub trait Crew {
    /// Reason of a failure.
    type Trouble;

    /// Reads these pages of the store into the batch's memory, and writes their checksums.
    ///
    /// # Errors
    /// When the store has failed for good.
    fn fetch(&mut self, page: Page, room: u32, sums: &mut [Checksum]) -> Result<(), Self::Trouble>;

    /// Writes the batch's memory to the store.
    ///
    /// # Errors
    /// When the store has failed for good.
    fn write(&mut self, page: Page, room: u32, pages: u32) -> Result<(), Self::Trouble>;

    /// Reports a batch with words that no pager writes.
    fn invalid(&mut self) -> Self::Trouble;
}

/// Words of one batch.
#[derive(Clone, Copy)]
struct Flight<'a>(&'a [AtomicU64]);

impl Flight<'_> {
    fn get(self, word: usize) -> u64 {
        self.0[word].load(Relaxed)
    }

    fn put(self, word: usize, value: u64) {
        self.0[word].store(value, Relaxed);
    }

    fn state(self) -> u64 {
        self.0[STATE].load(Acquire)
    }

    fn ends_as(self, state: u64) {
        self.0[STATE].store(state, Release);
    }

    fn count(self) -> u32 {
        low(self.get(COUNT)).min(FLIGHT_PAGES)
    }

    fn is_fetch(self) -> bool {
        self.get(KIND) == FETCH
    }

    /// Whether it is a fetch, its first page, and their number. `None` for words that no pager writes: the program can
    /// write any.
    fn checked(self) -> Option<(bool, Page, u32)> {
        let first = u32::try_from(self.get(FIRST)).ok()?;
        let pages = u32::try_from(self.get(COUNT)).ok().filter(|pages| (1..=FLIGHT_PAGES).contains(pages))?;
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

    fn sum(self, number: u32) -> Checksum {
        let at = SUMS + 2 * (number % FLIGHT_PAGES) as usize;
        Checksum([self.get(at), self.get(at + 1)])
    }

    fn set_sum(self, number: u32, sum: Checksum) {
        let at = SUMS + 2 * (number % FLIGHT_PAGES) as usize;
        self.put(at, sum.0[0]);
        self.put(at + 1, sum.0[1]);
    }
}

/// First page of the batch with this number, in the batches' memory.
const fn room_of(number: u64) -> u32 {
    low(number % FLIGHTS as u64) * FLIGHT_PAGES
}

impl<'a> Batches<'a> {
    /// Number of batches submitted.
    pub fn launched(&self) -> u64 {
        self.0[LAUNCHED].load(Acquire)
    }

    /// Whether the oldest batch has not completed yet.
    pub fn is_waited_for(&self) -> bool {
        self.flight(self.get(LANDED)).state() == IN_THE_AIR
    }

    fn flight(&self, number: u64) -> Flight<'a> {
        let at = FIRST_FLIGHT + low(number % u64::from(FLIGHTS)) as usize * WORDS_OF_A_FLIGHT;
        let words: &'a [AtomicU64] = self.0;
        Flight(&words[at..at + WORDS_OF_A_FLIGHT])
    }

    /// Batches in flight, the oldest first.
    fn under_way(&self) -> impl Iterator<Item = Flight<'a>> + use<'a> {
        let (landed, flights) = (self.get(LANDED), *self);
        let count = self.get(LAUNCHED).wrapping_sub(landed).min(FLIGHTS.into());
        (0..count).map(move |more| flights.flight(landed.wrapping_add(more)))
    }

    /// Whether the batch with this number was submitted, and its words still belong to it.
    pub fn has_taken_off(&self, number: u64) -> bool {
        (1..=u64::from(FLIGHTS)).contains(&self.launched().wrapping_sub(number))
    }

    /// Runs the batch with this number, if it was submitted. Returns whether it was. Called by masu only, and once for
    /// each number.
    ///
    /// # Errors
    /// When the batch fails: then the program sees the failure when the batch completes.
    pub fn fly<C: Crew>(&self, crew: &mut C, number: u64) -> Result<bool, C::Trouble> {
        let flight = self.flight(number);
        if !self.has_taken_off(number) || flight.state() != IN_THE_AIR {
            return Ok(false);
        }
        let room = room_of(number);
        let Some((is_fetch, first, pages)) = flight.checked() else {
            let invalid = crew.invalid();
            flight.ends_as(FAILED);
            return Err(invalid);
        };
        let done = if is_fetch {
            let mut sums = [Checksum::default(); FLIGHT_PAGES as usize];
            crew.fetch(first, room, &mut sums[..pages as usize]).map(|()| {
                (0..pages).zip(sums).for_each(|(number, sum)| flight.set_sum(number, sum));
            })
        } else {
            crew.write(first, room, pages)
        };
        flight.ends_as(if done.is_ok() { ARRIVED } else { FAILED });
        done.map(|()| true)
    }

    /// Whether a batch has this page.
    pub(super) fn have(&self, page: Page) -> bool {
        self.under_way().any(|flight| flight.has(page))
    }

    fn get(&self, word: usize) -> u64 {
        self.0[word].load(Relaxed)
    }

    fn put(&self, word: usize, value: u64) {
        self.0[word].store(value, Relaxed);
    }

    /// A free batch, if one is not in flight.
    fn free(&self) -> Option<Flight<'a>> {
        let launched = self.get(LAUNCHED);
        let is_free = launched.wrapping_sub(self.get(LANDED)) < u64::from(FLIGHTS);
        is_free.then(|| self.flight(launched)).filter(|flight| flight.state() == ON_THE_GROUND)
    }

    fn takes_off(&self, flight: Flight<'_>, kind: u64, (first, pages): Unit, come: u64) {
        for (word, value) in [(KIND, kind), (FIRST, first.0.into()), (COUNT, pages.into()), (COME, come)] {
            flight.put(word, value);
        }
        flight.ends_as(IN_THE_AIR);
        self.0[LAUNCHED].store(self.get(LAUNCHED).wrapping_add(1), Release);
    }

    /// Whether the pending work is so large that more would come too late.
    pub(super) fn is_busy(&self) -> bool {
        self.get(PAGES_ORDERED) > MOST_PAGES_ORDERED
    }

    fn has_orders(&self) -> bool {
        self.get(ORDERS_DONE) != self.get(ORDERS_MADE)
    }

    /// Adds a request. False: there are too many.
    fn order(&self, (first, pages): Unit, come: u64) -> bool {
        let made = self.get(ORDERS_MADE);
        if made.wrapping_sub(self.get(ORDERS_DONE)) >= u64::from(MOST_ORDERS) {
            return false;
        }
        let at = ORDERS + 2 * low(made % u64::from(MOST_ORDERS)) as usize;
        self.put(at, u64::from(first.0) | u64::from(pages) << 32);
        self.put(at + 1, come);
        self.put(ORDERS_MADE, made.wrapping_add(1));
        self.put(PAGES_ORDERED, self.get(PAGES_ORDERED) + u64::from(pages));
        true
    }

    /// The oldest request, and the arrival class of its pages.
    fn first_order(&self) -> Option<(Unit, u64)> {
        let at = ORDERS + 2 * low(self.get(ORDERS_DONE) % u64::from(MOST_ORDERS)) as usize;
        let word = self.get(at);
        self.has_orders().then_some(((Page(low(word)), low(word >> 32)), self.get(at + 1)))
    }

    /// Removes `done` pages from the oldest request.
    fn dealt_with(&self, (first, pages): Unit, done: u32) {
        let number = self.get(ORDERS_DONE);
        self.put(PAGES_ORDERED, self.get(PAGES_ORDERED).saturating_sub(done.min(pages).into()));
        if done >= pages {
            self.put(ORDERS_DONE, number.wrapping_add(1));
        } else {
            let at = ORDERS + 2 * low(number % u64::from(MOST_ORDERS)) as usize;
            self.put(at, u64::from(first.0 + done) | u64::from(pages - done) << 32);
        }
    }
}

impl Come {
    fn word(self) -> u64 {
        u64::from(self.mark) | u64::from(matches!(self.arrival, Arrival::Passing)) << 16
    }

    fn of(word: u64) -> Come {
        let arrival = if word >> 16 & 1 == 1 { Arrival::Passing } else { Arrival::New };
        Come { mark: (word & 0xffff) as u16, arrival }
    }
}

impl Pager<'_> {
    /// Whether the page is in the store, and in no batch.
    pub(super) fn is_at_home(&self, page: Page) -> bool {
        self.entry(page).place() == Place::Home && !self.is_under_way(page)
    }

    /// Whether a batch has this page.
    pub(super) fn is_under_way(&self, page: Page) -> bool {
        self.entry(page).is_ordered() && self.flights.have(page)
    }

    /// Whether a batch reads this page.
    pub(super) fn is_coming(&self, page: Page) -> bool {
        let brings = |flight: Flight<'_>| flight.is_fetch() && flight.has(page);
        self.entry(page).is_ordered() && self.flights.under_way().any(brings)
    }

    /// Adds requests for the background. `page` is the page of `number`; requested pages lie in its chunk.
    pub(super) fn order_ahead(&self, order: &FetchPlan, page: Page, number: u64, area: policy::Run) {
        let arrival = if order.passing { Arrival::Passing } else { Arrival::New };
        let come = Come { mark: order.mark, arrival }.word();
        let at = |number_of_other: u64| self.of_number(page, number, number_of_other);
        for series in order.ahead {
            for run in (0..series.runs).map(|run| series.run(run, area)).filter(|run| run.pages > 0) {
                let first = at(run.first_page);
                let all = (0..run.pages).map(|more| first.plus(more));
                if !all.clone().any(|page| self.is_at_home(page)) || !self.flights.order((first, run.pages), come) {
                    continue;
                }
                for page in all.filter(|page| self.is_at_home(*page)) {
                    self.set(page, self.entry(page).ordered(true).early(false));
                }
                for held in order.held.into_iter().filter(|held| *held != NO_PAGE && run.contains(*held)) {
                    let held = at(held);
                    if self.is_at_home(held) {
                        self.set(held, self.entry(held).early(true));
                    }
                }
            }
        }
    }

    /// Submits batches for the requests. The lock is held.
    pub fn launch(&self) {
        while let Some(flight) = self.flights.free()
            && let Some((unit, come)) = self.flights.first_order()
        {
            let (first, pages) = unit;
            let comes = |more: &u32| self.is_at_home(first.plus(*more)) && self.entry(first.plus(*more)).is_ordered();
            let skipped = (0..pages).find(comes).unwrap_or(pages);
            let most = pages.min(skipped + FLIGHT_PAGES);
            let end = (skipped..most).find(|more| !comes(more)).unwrap_or(most);
            if skipped < end {
                self.flights.takes_off(flight, FETCH, (first.plus(skipped), end - skipped), come);
            }
            self.flights.dealt_with(unit, end);
        }
    }

    /// Hands over pages that are to be written to the store. Their slots may be reused after this, and the caller marks
    /// them as in the store, and requested. Returns the number taken, from the first on; the caller writes the others.
    pub(super) fn hand_over<M: Machine>(&self, machine: &mut M, (first, pages): Unit, slot: u32) -> u32 {
        let mut taken = 0;
        while taken < pages
            && let Some(flight) = self.flights.free()
        {
            let now = (pages - taken).min(FLIGHT_PAGES);
            machine.load(slot + taken, room_of(self.flights.launched()), now);
            self.flights.takes_off(flight, WRITE, (first.plus(taken), now), 0);
            taken += now;
        }
        self.counters.add(Counter::PagesBehind, taken.into());
        taken
    }

    /// Completes batches that have run. The lock is held.
    ///
    /// # Errors
    /// When the store has failed for good.
    pub fn land<M: Machine>(&self, machine: &mut M, units: &mut Units<'_>) -> Result<(), M::Fatal> {
        while let Some(flight) = self.flights.under_way().next()
            && flight.state() != IN_THE_AIR
        {
            self.land_oldest(machine, units, flight)?;
        }
        Ok(())
    }

    fn land_oldest<M: Machine>(
        &self,
        machine: &mut M,
        units: &mut Units<'_>,
        flight: Flight<'_>,
    ) -> Result<(), M::Fatal> {
        if flight.state() == FAILED {
            return Err(machine.flight_failed());
        }
        let number = self.flights.get(LANDED);
        let (first, pages) = (flight.first(), flight.count());
        if flight.is_fetch() {
            // Checked before any access to the pages: a mismatch ends the program.
            for more in 0..pages {
                if flight.sum(more) != self.sum(first.plus(more)) {
                    return Err(machine.corrupt(first.plus(more)));
                }
            }
        }
        // The batch is no longer in flight, and its pages belong to this thread; its memory is not reused before the
        // state word allows it.
        self.flights.put(LANDED, number.wrapping_add(1));
        if flight.is_fetch() {
            let come = Come::of(flight.get(COME));
            self.land_fetch(machine, units, (first, pages), come, room_of(number))?;
        }
        for page in (0..pages).map(|more| first.plus(more)) {
            let entry = self.entry(page);
            if entry.place() == Place::Home {
                // It may have come, changed, and left again meanwhile.
                self.set(page, entry.ordered(self.flights.have(page)));
            }
        }
        flight.ends_as(ON_THE_GROUND);
        Ok(())
    }

    fn land_fetch<M: Machine>(
        &self,
        machine: &mut M,
        units: &mut Units<'_>,
        (first, pages): Unit,
        come: Come,
        room: u32,
    ) -> Result<(), M::Fatal> {
        // A page that is fetched otherwise loses the mark that leaves it unmapped.
        let mut held = 0_u64;
        for more in 0..pages {
            held |= u64::from(self.entry(first.plus(more)).is_early()) << more;
        }
        let mut next = 0;
        while next < pages {
            let home = |more: &u32| self.entry(first.plus(*more)).place() == Place::Home;
            let Some(from) = (next..pages).find(home) else { break };
            let end = (from..pages).find(|more| !home(more)).unwrap_or(pages);
            self.make_room(machine, units, end - from, 0);
            if self.frames_in_use() >= self.budget().frames && self.ring.frames() == 0 {
                // All frames are pinned. No thread waits for these pages.
                break;
            }
            let source = Source::Flight(room + from);
            let came = self.fetch_run(machine, units, (first.plus(from), end - from), come, source)?;
            self.counters.add(Counter::PagesAhead, came.into());
            if came == 0 {
                break;
            }
            next = from + came;
        }
        for page in (0..pages).filter(|more| held >> more & 1 == 1).map(|more| first.plus(more)) {
            self.hold_page_back(machine, page);
            let entry = self.entry(page);
            self.set(page, entry.ordered(entry.place() == Place::Staged || self.flights.have(page)));
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
            && let Some(flight) = self.flights.under_way().next()
        {
            if flight.state() == IN_THE_AIR {
                machine.wait_for_arrival(self);
            }
            self.land_oldest(machine, units, flight)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Worker that must not be asked to do anything.
    struct Idle;

    impl Crew for Idle {
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
            let words = [const { AtomicU64::new(0) }; FLIGHT_WORDS];
            let batches = Batches(&words);
            let batch = batches.flight(0);
            [(KIND, kind), (FIRST, first), (COUNT, count)].into_iter().for_each(|(word, value)| batch.put(word, value));
            batch.ends_as(IN_THE_AIR);
            batches.put(LAUNCHED, 1);
            assert_eq!(batches.fly(&mut Idle, 0), Err("invalid"), "{kind} {first} {count}");
            assert_eq!(batch.state(), FAILED);
        }
    }
}
