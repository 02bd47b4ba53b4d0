use std::cell::Cell;
use std::time::Instant;

use contract::track::wire::Request;

use super::*;
use crate::rate_limiter;
use crate::track::share::UNLIMITED;

/// Clients of one account; each reading of the processor time costs 20 ms.
struct OneAccount {
    start: Instant,
    spent: Cell<Duration>,
}

impl Control for OneAccount {
    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    fn stop(&self) -> bool {
        false
    }

    fn cpu_time(&self) -> Duration {
        self.spent.set(self.spent.get() + Duration::from_millis(20));
        self.spent.get()
    }

    fn set_urgent(&mut self, _: bool) {}

    fn account(&mut self, _: Peer) -> Account {
        Account::User(7)
    }

    fn open(&mut self, _: Pid, _: Peer) -> Result<Opened, Refused> {
        Err(Refused::Unfit)
    }

    fn signal(&mut self, _: Pid, _: u32, _: BorrowedFd<'_>, _: i32, _: u64) -> Result<(), Unsent> {
        Ok(())
    }

    fn report(&mut self, _: &Event<'_>) {}
}

fn tracker() -> Tracker {
    let s = Settings {
        schedule: schedule::Settings { cpu_fraction: NonZeroFraction::ratio(1, 10), rate: rate_limiter::MEASURED },
        limits: UNLIMITED,
        most_programs: 4,
        bounds: Bounds { connections: 64, programs: 16 },
    };
    Tracker {
        clients: BTreeMap::new(),
        next: 0,
        s,
        full_until: Duration::ZERO,
        served_again: BTreeMap::new(),
        look_again: Duration::ZERO,
    }
}

#[test]
fn a_disconnect_of_an_account_that_must_wait_causes_no_wakeups() {
    let listener = Listener::open().unwrap();
    let mut control = OneAccount { start: Instant::now(), spent: Cell::default() };
    let mut tracker = tracker();
    let [asks, hangs_up] = [(); 2].map(|()| Connection::to(listener.name()).unwrap());
    let mut message = [0; SHORT_BYTES];
    let bytes = Request::Fetch.write(&mut message);
    asks.send(&message[..bytes], &[]).unwrap();
    while tracker.served_again.is_empty() && control.now() < Duration::from_secs(20) {
        tracker.run_once(&listener, &mut control);
    }
    assert_eq!((tracker.clients.len(), tracker.served_again.len()), (2, 1));
    drop(hangs_up);
    let mut runs = 0;
    while tracker.clients.len() > 1 && control.now() < Duration::from_secs(20) {
        tracker.run_once(&listener, &mut control);
        runs += 1;
    }
    assert_eq!(tracker.clients.len(), 1, "in the end it is noticed");
    assert!(runs < 20, "{runs} runs");
}
