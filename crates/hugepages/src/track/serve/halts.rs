//! Looks whether the programs can run (frozen, stopped, traced): a client runs when it registers, and may be halted later.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{Control, Event, Tracker};

/// Interval of the looks.
const LOOK_EVERY: Duration = Duration::from_secs(1);

impl Tracker {
    /// Looks once a second whether the programs can run; the looks take a twentieth of the time at most.
    pub(super) fn look_for_halts(&mut self, control: &mut dyn Control) {
        let now = control.now();
        if now < self.look_again {
            return;
        }
        for watching in self.clients.values_mut().filter_map(|client| client.watched.as_mut()) {
            let target = &mut watching.program.target;
            let before = target.halted().is_some();
            target.look_for_halt();
            if before != target.halted().is_some() {
                control.report(&Event::Halted(&watching.program));
            }
        }
        let took = control.now().saturating_sub(now);
        self.look_again = now + LOOK_EVERY.max(took * 20);
    }
}

/// Whether the process behind a pidfd has ended.
pub fn has_ended(pidfd: BorrowedFd<'_>) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(pidfd, PollFlags::IN)];
    poll(&mut fds, Some(&Timespec::default())).is_ok_and(|ended| ended > 0)
}
