//! Patience: a store that does not answer is asked again, and the program waits for it.
//!
//! One outage is one thing, however many threads meet it: it is said once that the store does not answer, and once that it
//! is back, when nobody waits for it any more. After the time limit every call gives up with the last reason; a store that was given up once stays so, since
//! a program cannot go on without a page.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::{Error, GetRun, PutRun, Say, Span, Store, Trouble};

/// How patient.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// How long an outage may last; `None` is for ever.
    pub limit: Option<Duration>,
    /// An outage is mentioned when it has lasted so long: one that nobody felt needs no words.
    pub quiet: Duration,
    /// The pause before the second attempt; it doubles from one to the next.
    pub pause_min: Duration,
    /// No pause is longer.
    pub pause_max: Duration,
}

impl Patience {
    /// What people see and feel: first attempts soon, and a word after two seconds.
    pub const USUAL: Patience = Patience {
        limit: None,
        quiet: Duration::from_secs(2),
        pause_min: Duration::from_millis(5),
        pause_max: Duration::from_millis(500),
    };
}

/// A store whose passing failures are waited for.
pub struct Patient {
    store: Arc<dyn Store>,
    patience: Patience,
    say: Say,
    outage: Mutex<Outage>,
    changed: Condvar,
}

#[derive(Default)]
struct Outage {
    /// Set while a call waits: since when the first of them fails.
    since: Option<Instant>,
    /// So many calls wait.
    waiting: u32,
    /// So many waited and had an answer: then whoever waits still tries at once.
    answered: u64,
    /// Whether that was said.
    said: bool,
    /// Why nobody waits any more.
    given_up: Option<Error>,
}

impl Patient {
    /// Stands around `store`.
    pub fn new(store: Arc<dyn Store>, patience: Patience, say: Say) -> Patient {
        Patient { store, patience, say, outage: Mutex::default(), changed: Condvar::new() }
    }

    /// Ends all waiting, now and later: calls fail with the last reason. For a program that is to end.
    pub fn give_up(&self) {
        let mut outage = self.outage();
        let trouble = Trouble {
            operation: "wait for".to_owned(),
            store: self.store.name().to_owned(),
            cause: "masu was told to stop".to_owned(),
            remedy: String::new(),
        };
        outage.given_up.get_or_insert(Error::Unreachable(trouble));
        self.changed.notify_all();
    }

    /// How long the store has not answered; `None` when it does.
    pub fn silent_for(&self) -> Option<Duration> {
        self.outage().since.map(|since| since.elapsed())
    }

    fn outage(&self) -> MutexGuard<'_, Outage> {
        self.outage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn patiently<T>(&self, mut attempt: impl FnMut(&dyn Store) -> Result<T, Error>) -> Result<T, Error> {
        let (mut pause, mut waits) = (self.patience.pause_min, None);
        let result = loop {
            let begun = Instant::now();
            let error = match attempt(&*self.store) {
                Err(error) if error.is_passing() => error,
                // Any other answer is an answer.
                result => break result,
            };
            let since = *waits.get_or_insert_with(|| self.begins_to_wait(begun));
            if let Err(given_up) = self.wait(error, since, pause) {
                break Err(given_up);
            }
            pause = (pause * 2).min(self.patience.pause_max);
        };
        if waits.is_some() {
            self.waits_no_more();
        }
        result
    }

    /// A call's first attempt failed, which began then.
    fn begins_to_wait(&self, begun: Instant) -> Instant {
        let mut outage = self.outage();
        outage.waiting += 1;
        outage.since.get_or_insert(begun);
        begun
    }

    /// The call was answered, or given up. The outage is over when none waits.
    fn waits_no_more(&self) {
        let mut outage = self.outage();
        outage.waiting -= 1;
        outage.answered += 1;
        self.changed.notify_all();
        let over = if outage.waiting == 0 { outage.since.take() } else { None };
        let Some(since) = over else { return };
        if std::mem::take(&mut outage.said) && outage.given_up.is_none() {
            let silent = since.elapsed().as_secs_f64();
            drop(outage);
            (self.say)(&format!("store {} is back after {silent:.1}s; the program goes on", self.store.name()));
        }
    }

    /// Until the next attempt is due, or another call that waited had an answer. This one fails since then: others may be
    /// answered all the while, by a Cluster of which a part is lost.
    fn wait(&self, error: Error, since: Instant, pause: Duration) -> Result<(), Error> {
        let mut outage = self.outage();
        if let Some(reason) = &outage.given_up {
            return Err(reason.clone());
        }
        let silent = since.elapsed();
        if self.patience.limit.is_some_and(|limit| silent >= limit) {
            let reason = gave_up(error, silent);
            outage.given_up = Some(reason.clone());
            self.changed.notify_all();
            return Err(reason);
        }
        if silent >= self.patience.quiet && !outage.said {
            outage.said = true;
            (self.say)(&format!(
                "store {} does not answer since {:.1}s: {}; the program waits",
                self.store.name(),
                silent.as_secs_f64(),
                error.trouble().cause
            ));
        }
        // Not beyond the limit: an attempt then is the last one.
        let left =
            self.patience.limit.map_or(pause, |limit| limit.saturating_sub(silent).max(Duration::from_millis(1)));
        let answered = outage.answered;
        let waits = |outage: &mut Outage| outage.given_up.is_none() && outage.answered == answered;
        let waited = self.changed.wait_timeout_while(outage, pause.min(left), waits);
        let outage = waited.unwrap_or_else(PoisonError::into_inner).0;
        outage.given_up.clone().map_or(Ok(()), Err)
    }
}

fn gave_up(error: Error, silent: Duration) -> Error {
    let mut trouble = error.trouble().clone();
    trouble.cause = format!("no answer for {:.1}s (--store-timeout): {}", silent.as_secs_f64(), trouble.cause);
    Error::Unreachable(trouble)
}

impl Store for Patient {
    fn name(&self) -> &str {
        self.store.name()
    }

    fn put(&self, runs: &[PutRun<'_>]) -> Result<(), Error> {
        self.patiently(|store| store.put(runs))
    }

    fn get(&self, runs: &mut [GetRun<'_>]) -> Result<(), Error> {
        self.patiently(|store| store.get(runs))
    }

    /// Not waited for: what is not forgotten takes room, and harms nobody.
    fn forget(&self, spans: &[Span]) -> Result<(), Error> {
        self.store.forget(spans)
    }

    fn forget_layer(&self, layer: u32) -> Result<(), Error> {
        self.store.forget_layer(layer)
    }

    fn direct(&self, layer: u32) -> Result<Option<Arc<std::os::fd::OwnedFd>>, Error> {
        self.patiently(|store| store.direct(layer))
    }

    fn close(&self) -> Result<(), Error> {
        self.store.close()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;
    use crate::store::Home;

    /// Fails so many times, then answers.
    struct Flaky {
        failures: AtomicU32,
        error: fn(Trouble) -> Error,
    }

    impl Store for Flaky {
        fn name(&self) -> &str {
            "redis://flaky"
        }

        fn put(&self, _: &[PutRun<'_>]) -> Result<(), Error> {
            let left = self.failures.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
            let trouble = Trouble {
                operation: "put 1 page into".to_owned(),
                store: self.name().to_owned(),
                cause: "connection refused".to_owned(),
                remedy: "Start it.".to_owned(),
            };
            if left.is_ok() { Err((self.error)(trouble)) } else { Ok(()) }
        }

        fn get(&self, _: &mut [GetRun<'_>]) -> Result<(), Error> {
            Ok(())
        }

        fn forget(&self, _: &[Span]) -> Result<(), Error> {
            Ok(())
        }

        fn forget_layer(&self, _: u32) -> Result<(), Error> {
            Ok(())
        }

        fn direct(&self, _: u32) -> Result<Option<Arc<std::os::fd::OwnedFd>>, Error> {
            self.put(&[]).map(|()| None)
        }

        fn close(&self) -> Result<(), Error> {
            Ok(())
        }
    }

    const HASTY: Patience = Patience {
        limit: Some(Duration::from_millis(100)),
        quiet: Duration::ZERO,
        pause_min: Duration::from_millis(1),
        pause_max: Duration::from_millis(5),
    };

    fn patient(
        failures: u32,
        error: fn(Trouble) -> Error,
        patience: Patience,
    ) -> (Arc<Patient>, Arc<Mutex<Vec<String>>>) {
        let said = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&said);
        let store = Arc::new(Flaky { failures: AtomicU32::new(failures), error });
        let say: Say = Arc::new(move |line: &str| sink.lock().unwrap().push(line.to_owned()));
        (Arc::new(Patient::new(store, patience, say)), said)
    }

    fn put(store: &Patient) -> Result<(), Error> {
        store.put(&[PutRun { home: Home { layer: 0, page: 0 }, bytes: &[] }])
    }

    #[test]
    fn an_outage_is_waited_for_and_said_once_with_its_end() {
        let (store, said) = patient(5, Error::Unreachable, HASTY);
        put(&store).unwrap();
        put(&store).unwrap();
        let said = said.lock().unwrap();
        assert_eq!(said.len(), 2, "{said:?}");
        assert!(said[0].starts_with("store redis://flaky does not answer since 0.0s: connection refused; the program"));
        assert!(said[1].starts_with("store redis://flaky is back after 0."), "{said:?}");
    }

    #[test]
    fn a_file_that_cannot_be_opened_for_a_while_is_waited_for() {
        let (store, _) = patient(3, Error::Unreachable, HASTY);
        assert!(store.direct(0).unwrap().is_none());
    }

    #[test]
    fn a_short_outage_is_not_worth_a_word() {
        let (store, said) = patient(2, Error::Unreachable, Patience { quiet: Duration::from_secs(60), ..HASTY });
        put(&store).unwrap();
        assert!(said.lock().unwrap().is_empty());
        assert_eq!(store.silent_for(), None);
    }

    #[test]
    fn after_the_limit_the_last_reason_stands_for_all_calls() {
        let (store, _) = patient(u32::MAX, Error::Unreachable, HASTY);
        let begun = Instant::now();
        let error = put(&store).unwrap_err();
        assert!(begun.elapsed() >= Duration::from_millis(100));
        assert!(error.to_string().contains("no answer for 0.1s (--store-timeout): connection refused"), "{error}");
        assert_eq!(error.remedy(), "Start it.");
        let begun = Instant::now();
        assert_eq!(put(&store).unwrap_err(), error);
        assert!(begun.elapsed() < Duration::from_millis(50));
    }

    #[test]
    fn a_part_that_is_lost_is_given_up_though_the_rest_answers() {
        let (store, said) = patient(u32::MAX, Error::Unreachable, HASTY);
        let done = AtomicU32::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while done.load(Ordering::SeqCst) == 0 {
                    store.get(&mut []).unwrap();
                    std::thread::sleep(Duration::from_millis(1));
                }
            });
            let error = put(&store).unwrap_err();
            done.store(1, Ordering::SeqCst);
            assert!(error.to_string().contains("no answer for 0.1s"), "{error}");
        });
        let said = said.lock().unwrap();
        assert_eq!(said.iter().filter(|line| line.contains("does not answer")).count(), 1, "{said:?}");
        assert_eq!(said.len(), 1, "it never came back: {said:?}");
    }

    #[test]
    fn what_does_not_pass_is_not_waited_for() {
        for error in [Error::Full, Error::Lost, Error::Refused, Error::Unfit] {
            let (store, said) = patient(1, error, HASTY);
            assert!(put(&store).is_err());
            assert!(said.lock().unwrap().is_empty());
        }
    }

    #[test]
    fn many_threads_meet_one_outage() {
        let (store, said) = patient(40, Error::Unreachable, Patience { limit: None, ..HASTY });
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| put(&store).unwrap());
            }
        });
        let said = said.lock().unwrap();
        let back = said.iter().filter(|line| line.contains("is back")).count();
        assert_eq!(back * 2, said.len(), "{said:?}");
    }

    #[test]
    fn waiting_ends_when_masu_is_told_to_stop() {
        let (store, _) = patient(u32::MAX, Error::Unreachable, Patience { limit: None, ..HASTY });
        let waiter = Arc::clone(&store);
        let thread = std::thread::spawn(move || put(&waiter));
        while store.silent_for().is_none() {
            std::thread::yield_now();
        }
        store.give_up();
        assert!(thread.join().unwrap().unwrap_err().to_string().contains("told to stop"));
    }
}
