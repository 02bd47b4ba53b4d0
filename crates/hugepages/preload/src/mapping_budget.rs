//! vm.max_map_count: how many mappings a process may have. Neighbouring mappings of a program merge into one; one that
//! was moved to a window of its own, or advised, does not. So from an eighth of the limit on, nothing is placed or
//! advised any more, and new mappings merge as without masu.

use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

use crate::kernel;

/// Mappings up to which placement goes on; 0 without a known limit.
static BUDGET: AtomicUsize = AtomicUsize::new(0);
/// Upper bound of the mappings now: those of the last count, and what was placed since.
static USED: AtomicUsize = AtomicUsize::new(0);
/// Requests until the next count, once the budget is used up.
static PAUSE: AtomicUsize = AtomicUsize::new(0);
static COUNTING: AtomicBool = AtomicBool::new(false);

/// Mappings that one served request may add: the request's own, and the rest of a neighbour split from it.
const EACH: usize = 2;

/// Reads the limit, at the start.
pub fn begin() {
    let mut digits = [0; 24];
    let Some(fd) = kernel::open(c"/proc/sys/vm/max_map_count") else { return };
    let length = kernel::read_at(fd, &mut digits, 0);
    kernel::close(fd);
    let digits = digits.get(..length).unwrap_or_default().trim_ascii();
    let limit = core::str::from_utf8(digits).ok().and_then(|digits| digits.parse::<usize>().ok());
    BUDGET.store(limit.map_or(0, |limit| (limit / 8).max(1)), Relaxed);
}

/// Whether one more mapping may be placed or advised.
pub fn may_serve() -> bool {
    let budget = BUDGET.load(Relaxed);
    if budget == 0 || USED.fetch_add(EACH, Relaxed) + EACH <= budget {
        return true;
    }
    USED.fetch_sub(EACH, Relaxed);
    let waits = PAUSE.fetch_update(Relaxed, Relaxed, |pause| pause.checked_sub(1)).is_ok();
    if waits || COUNTING.swap(true, Relaxed) {
        return false;
    }
    let used = kernel::keeping_errno(|| count(budget)).unwrap_or(budget);
    USED.store(used, Relaxed);
    PAUSE.store(if used + EACH > budget { budget } else { 0 }, Relaxed);
    COUNTING.store(false, Relaxed);
    used + EACH <= budget
}

/// Mappings of this process, at most `enough`; `None` if they cannot be read.
fn count(enough: usize) -> Option<usize> {
    let fd = kernel::open(c"/proc/self/maps")?;
    let (mut found, mut chunk) = (0, [0; 4096]);
    let read = loop {
        match kernel::read(fd, &mut chunk) {
            None => break None,
            Some(0) => break Some(found),
            Some(length) => {
                found += chunk.get(..length).unwrap_or_default().iter().filter(|byte| **byte == b'\n').count();
                if found >= enough {
                    break Some(found);
                }
            }
        }
    };
    kernel::close(fd);
    read
}
