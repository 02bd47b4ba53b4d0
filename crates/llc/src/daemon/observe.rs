//! Counts of programs: instructions, cycles and misses from the processor's counters, and the readings of the groups.
//!
//! Misses are counted by the processor. Without its counters (many virtual machines) there is no rate per
//! instruction, and so no curve: bytes from memory per second only reflect the current speed of the program. They are
//! shown, and nothing is decided by them.

use std::collections::BTreeMap;
use std::time::Duration;

use linux::perf_counters::{Counter, Event};
use linux::probe::Known;
use linux::resctrl::monitoring::Readings;
use linux::{Error, Pid};
use units::Bytes;

use super::curve::Point;
use super::layout::Processes;

/// Counts of a program since the last read.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Counted {
    /// Instructions.
    pub instructions: u64,
    /// Cycles.
    pub cycles: u64,
    /// Misses of the last-level cache.
    pub misses: u64,
    /// Cycles stalled for data; `None` if the processor does not count them.
    pub stalled: Option<u64>,
}

impl Counted {
    /// Per thousand instructions; `None` with hardly any.
    pub fn point(&self) -> Option<Point> {
        /// Least number of instructions: below it, starting and ending weigh too much.
        const ENOUGH: u64 = 1_000_000;
        #[expect(clippy::cast_precision_loss, reason = "counts of one interval")]
        let per_thousand = |count: u64| count as f64 * 1000.0 / self.instructions as f64;
        let enough = self.instructions >= ENOUGH;
        enough.then(|| Point { misses: per_thousand(self.misses), cycles: per_thousand(self.cycles) })
    }

    /// Fraction of its cycles stalled on memory.
    pub fn stalled_fraction(&self) -> Option<f64> {
        #[expect(clippy::cast_precision_loss, reason = "counts of one interval")]
        let part = |stalled: u64| stalled as f64 / self.cycles as f64;
        self.stalled.filter(|_| self.cycles > 0).map(|stalled| part(stalled).min(1.0))
    }
}

/// The counters of one thread.
#[derive(Debug)]
struct OfThread {
    counters: [Counter; 3],
    stalled: Option<Counter>,
}

impl OfThread {
    fn open(thread: Pid) -> Result<OfThread, Error> {
        let open = |event| Counter::open(thread, event);
        let counters = [open(Event::Instructions)?, open(Event::Cycles)?, open(Event::Misses)?];
        // Not every processor has this one.
        let stalled = open(Event::Stalled).ok();
        Ok(OfThread { counters, stalled })
    }

    /// `None` if one of the counters was never scheduled.
    fn since_last(&mut self) -> Result<Option<Counted>, Error> {
        let [instructions, cycles, misses] = &mut self.counters;
        let (instructions, cycles) = (instructions.since_last()?, cycles.since_last()?);
        let (misses, stalled) = (misses.since_last()?, self.stalled.as_mut().map(Counter::since_last).transpose()?);
        let counted =
            |((instructions, cycles), misses)| Counted { instructions, cycles, misses, stalled: stalled.flatten() };
        Ok(instructions.zip(cycles).zip(misses).map(counted))
    }
}

/// Counters for all threads of some programs.
#[derive(Debug, Default)]
pub struct Counting {
    threads: BTreeMap<Pid, OfThread>,
    /// Reason why nothing is counted on this host; determined once.
    cannot: Option<String>,
}

impl Counting {
    /// Counts of each program since the last read. New threads begin to count; counters of ended ones are closed.
    pub fn look(&mut self, programs: &[Processes]) -> Known<Vec<Counted>> {
        if let Some(why) = &self.cannot {
            return Known::Unknown(why.clone());
        }
        let mut all = Vec::with_capacity(programs.len());
        let mut still = BTreeMap::new();
        for program in programs {
            let mut sum: Option<Counted> = None;
            for thread in program.values().flatten() {
                let known = match self.threads.remove(thread) {
                    Some(known) => Ok(known),
                    None => OfThread::open(*thread),
                };
                let mut known = match known {
                    Ok(known) => known,
                    Err(error) if error.is_gone() => continue,
                    Err(error) => {
                        self.threads.clear();
                        let why = match error {
                            Error::Unsupported(_) => "this machine counts no instructions and misses".to_owned(),
                            error => error.to_string(),
                        };
                        self.cannot = Some(why.clone());
                        return Known::Unknown(why);
                    }
                };
                if let Ok(more) = known.since_last() {
                    let sum = sum.get_or_insert(Counted { stalled: Some(0), ..Counted::default() });
                    more.into_iter().for_each(|more| add(sum, more));
                    still.insert(*thread, known);
                }
            }
            all.push(sum.unwrap_or_default());
        }
        self.threads = still;
        Known::Value(all)
    }
}

fn add(sum: &mut Counted, more: Counted) {
    sum.instructions += more.instructions;
    sum.cycles += more.cycles;
    sum.misses += more.misses;
    sum.stalled = sum.stalled.zip(more.stalled).map(|(one, other)| one + other);
}

/// Readings of one group.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct OfGroup {
    /// Occupancy, summed over all caches.
    pub occupancy: Option<Bytes>,
    /// Bytes from and to memory, in all.
    pub total: Option<Bytes>,
    /// Bytes from and to memory, per second since the last read.
    pub bytes_per_s: Option<f64>,
}

impl OfGroup {
    /// Sum of a group's readings; a reading without a number makes no sum. `before` is the last sum, and its age.
    pub fn of(readings: &[Readings], before: Option<(OfGroup, Duration)>) -> OfGroup {
        let whole = || readings.iter().filter(|reading| reading.node.is_none());
        let sum = |values: Vec<Option<Bytes>>| {
            let some = !values.is_empty();
            some.then(|| values.into_iter().sum::<Option<Bytes>>()).flatten()
        };
        let occupancy = sum(whole().map(|reading| reading.llc_occupancy.value()).collect());
        let total = sum(whole().map(|reading| reading.mbm_total_bytes.value()).collect());
        let bytes_per_s = before.and_then(|(before, passed)| {
            #[expect(clippy::cast_precision_loss, reason = "bytes of one interval")]
            let more = total?.0.checked_sub(before.total?.0)? as f64; // it wraps around
            (passed > Duration::ZERO).then(|| more / passed.as_secs_f64())
        });
        OfGroup { occupancy, total, bytes_per_s }
    }
}

#[cfg(test)]
mod tests {
    use linux::resctrl::{CacheId, Reading};

    use super::*;

    #[test]
    fn counts_are_per_thousand_instructions_and_few_say_nothing() {
        let counted = Counted { instructions: 2_000_000, cycles: 3_000_000, misses: 10_000, stalled: Some(750_000) };
        assert_eq!(counted.point(), Some(Point { misses: 5.0, cycles: 1500.0 }));
        assert_eq!(counted.stalled_fraction(), Some(0.25));
        assert_eq!(Counted { instructions: 999_999, ..counted }.point(), None);
        assert_eq!(Counted { stalled: None, ..counted }.stalled_fraction(), None);
        assert_eq!(Counted { cycles: 0, ..counted }.stalled_fraction(), None);
    }

    #[test]
    fn where_the_processor_counts_nothing_the_reason_is_kept() {
        let own = Pid(rustix::thread::gettid().as_raw_nonzero().get());
        let programs = [Processes::from([(Pid::own(), [own].into())]), Processes::new()];
        let mut counting = Counting::default();
        match counting.look(&programs) {
            Known::Unknown(why) => {
                assert!(why.contains("instructions"), "{why}");
                assert_eq!(counting.look(&programs), Known::Unknown(why), "it is asked once");
            }
            Known::Value(first) => {
                assert_eq!(first[1].instructions, 0, "nobody does nothing");
                let Known::Value(then) = counting.look(&programs) else { panic!("it counted before") };
                assert!(then[0].instructions > 0);
            }
        }
    }

    #[test]
    fn a_word_instead_of_a_number_makes_no_sum_and_nodes_are_not_counted_twice() {
        let reading = |domain: u32, node: Option<u32>, occupancy, total| Readings {
            domain: CacheId(domain),
            node,
            llc_occupancy: occupancy,
            mbm_total_bytes: Reading::Value(Bytes(total)),
            mbm_local_bytes: Reading::Unsupported,
        };
        let value = |bytes| Reading::Value(Bytes(bytes));
        let readings =
            [reading(0, None, value(10), 500), reading(0, Some(1), value(10), 1), reading(1, None, value(7), 500)];
        let before = OfGroup { total: Some(Bytes(400)), ..OfGroup::default() };
        let found = OfGroup::of(&readings, Some((before, Duration::from_secs(2))));
        assert_eq!(
            (found.occupancy, found.total, found.bytes_per_s),
            (Some(Bytes(17)), Some(Bytes(1000)), Some(300.0))
        );
        let word = [reading(0, None, Reading::Unavailable, 300), reading(1, None, value(7), 0)];
        let found = OfGroup::of(&word, Some((before, Duration::from_secs(2))));
        assert_eq!((found.occupancy, found.bytes_per_s), (None, None), "and a count that wrapped is no rate");
        assert_eq!(OfGroup::of(&[], None), OfGroup::default());
    }
}
