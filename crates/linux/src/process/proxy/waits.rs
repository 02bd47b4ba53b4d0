//! Processes that are skipped, because calls about them made masu wait. Instants are arguments.

use std::time::{Duration, Instant};

use crate::Pid;

/// Shorter waits are not counted.
pub(super) const UNNOTICED: Duration = Duration::from_millis(20);
/// Time for which a process is skipped after it made a call stall.
const AFTER_STALL: Duration = Duration::from_secs(30);
/// Time that calls may wait for the processes of one user, beyond the share below.
const ALLOWANCE: Duration = Duration::from_secs(30);
/// Divisor of time: 1/4 of it may be spent waiting for the processes of one user.
const SHARE: u32 = 4;
/// Maximum number of left proxies for the processes of one user.
const LEFT: usize = 8;

/// Record of waits.
#[derive(Debug)]
pub(super) struct Waits {
    stalled: Vec<(Pid, Instant)>,
    /// By user: time waited and not yet forgiven, as of the instant.
    owed: Vec<(u32, Duration, Instant)>,
}

impl Waits {
    pub(super) const fn new() -> Waits {
        Waits { stalled: Vec::new(), owed: Vec::new() }
    }

    /// True if no wait is remembered.
    pub(super) fn is_empty(&mut self, now: Instant) -> bool {
        self.stalled.retain(|(_, at)| now.saturating_duration_since(*at) < AFTER_STALL);
        self.owed.retain(|owed| owing(owed, now) > Duration::ZERO);
        self.stalled.is_empty() && self.owed.is_empty()
    }

    /// True if a call about `pid` is allowed, given `left` remaining proxies for its owner.
    pub(super) fn admits(&self, pid: Pid, owner: Option<u32>, left: usize, now: Instant) -> bool {
        let has_stalled =
            self.stalled.iter().any(|(of, at)| *of == pid && now.saturating_duration_since(*at) < AFTER_STALL);
        let owed =
            self.owed.iter().find(|(of, _, _)| Some(*of) == owner).map_or(Duration::ZERO, |owed| owing(owed, now));
        !has_stalled && owed <= ALLOWANCE && left < LEFT
    }

    /// Records that a call about `pid` waited.
    pub(super) fn note(&mut self, pid: Pid, owner: Option<u32>, waited: Duration, stalled: bool, now: Instant) {
        if stalled {
            self.stalled.push((pid, now));
        }
        let Some(owner) = owner else { return };
        match self.owed.iter_mut().find(|(of, _, _)| *of == owner) {
            Some(owed) => *owed = (owner, owing(owed, now) + waited, now),
            None => self.owed.push((owner, waited, now)),
        }
    }
}

fn owing((_, owed, at): &(u32, Duration, Instant), now: Instant) -> Duration {
    owed.saturating_sub(now.saturating_duration_since(*at) / SHARE)
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Pid = Pid(41);
    const B: Pid = Pid(42);
    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_process_that_stalled_is_asked_again_after_30_seconds_and_others_of_its_user_at_once() {
        let (mut waits, start) = (Waits::new(), Instant::now());
        waits.note(A, Some(7), 3 * SECOND, true, start);
        assert!(!waits.admits(A, Some(7), 0, start + 29 * SECOND));
        assert!(waits.admits(B, Some(7), 0, start));
        assert!(waits.admits(A, Some(7), 0, start + 30 * SECOND));
        assert!(waits.is_empty(start + 30 * SECOND));
    }

    #[test]
    fn a_user_whose_processes_make_masu_wait_gets_30_seconds_and_then_a_quarter_of_the_time() {
        let (mut waits, start) = (Waits::new(), Instant::now());
        for process in 0..11 {
            assert!(waits.admits(Pid(process), Some(7), 0, start), "{process}");
            waits.note(Pid(process), Some(7), 3 * SECOND, false, start);
        }
        assert!(!waits.admits(B, Some(7), 0, start), "33 s are owed");
        assert!(waits.admits(B, Some(8), 0, start), "another user");
        assert!(waits.admits(B, Some(8), 7, start) && !waits.admits(B, Some(8), 8, start), "8 are kept");
        assert!(!waits.admits(B, Some(7), 0, start + 11 * SECOND));
        assert!(waits.admits(B, Some(7), 0, start + 12 * SECOND), "3 s are forgiven");
        assert!(!waits.is_empty(start + 131 * SECOND) && waits.is_empty(start + 132 * SECOND));
    }
}
