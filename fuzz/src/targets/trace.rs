//! Traces of accesses for `masu aging --replay`. Any text is read or refused; a trace that was read reads the same when
//! printed; and a replay accounts for every access.

use aging::class::Class;
use aging::levels::Level;
use sim::reclaim::trace::{Step, Trace};
use sim::reclaim::{Aging, Machine, Rate, replay};
use units::Pages;

/// Steps or accesses beyond this number are only counted: nested repetitions can have any number.
const MOST: usize = 20_000;

/// Runs one input; true when it was understood.
pub fn run(bytes: &[u8]) -> bool {
    let Ok(trace) = Trace::parse(&String::from_utf8_lossy(bytes)) else { return false };
    let printed = trace.to_string();
    let again = Trace::parse(&printed).expect("what was printed is a trace");
    assert_eq!((again.to_string(), again.accesses()), (printed, trace.accesses()));
    let few = trace.steps().take(MOST).count() < MOST && trace.accesses() < MOST as u64;
    if !few {
        return false;
    }
    let of_steps = trace.steps().map(|step| if let Step::Use { count, .. } = step { u64::from(count) } else { 0 });
    assert_eq!(of_steps.sum::<u64>(), trace.accesses());
    // A larger file would only be slow: the lists have an entry for each page.
    if trace.files().iter().map(|file| file.pages.0).sum::<u64>() > 1 << 20 {
        return false;
    }
    let machine = Machine {
        memory: Pages(64 + bytes.len() as u64 % 256),
        swap: Pages(bytes.len() as u64 % 64),
        swappiness: 60,
        miss_us: 4,
        sums_us: 2_000_000,
    };
    for aging in [Aging::KERNEL, Aging::KERNEL.with(Class::Code, Rate::Level(Level::NEVER))] {
        let outcome = replay(&trace, &machine, &aging);
        let counted = outcome.rows.iter().map(|row| row.counts.hits + row.counts.misses()).sum::<u64>();
        assert_eq!(counted, trace.accesses());
    }
    true
}
