//! Retries: a store that does not answer is asked again, and the program waits for it.
//!
//! One outage is reported once, even if several threads meet it: its begin by the call that has waited too long, and
//! its end when that call is answered. After the time limit every call fails with the last reason. The failure is
//! final, since a program cannot go on without a page.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::{Error, GetRun, PutRun, Say, Span, Store, Trouble};

/// Parameters of the retries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// Longest wait of a call for its pages, each by itself: answers to other calls meanwhile, by the rest of a
    /// Cluster, do not help it. `None` is for ever.
    pub limit: Option<Duration>,
    /// Time after which an outage is reported: a shorter one needs no report.
    pub quiet: Duration,
    /// Pause before the second attempt; it doubles from one to the next.
    pub pause_min: Duration,
    /// Longest pause.
    pub pause_max: Duration,
}

impl Patience {
    /// Usual values: first attempts soon, and a report after two seconds.
    pub const USUAL: Patience = Patience {
        limit: None,
        quiet: Duration::from_secs(2),
        pause_min: Duration::from_millis(5),
        pause_max: Duration::from_millis(500),
    };
}

/// Store with retries of temporary failures.
pub struct Patient {
    store: Arc<dyn Store>,
    patience: Patience,
    say: Say,
    outage: Mutex<Outage>,
    changed: Condvar,
}

#[derive(Default)]
struct Outage {
    /// Set while a call waits: begin of the first one's failure.
    since: Option<Instant>,
    /// Number of waiting calls.
    waiting: u32,
    /// Number of calls that waited and had an answer: then all waiting calls try at once.
    answered: u64,
    /// Begin of the failure of the reported call.
    said: Option<Instant>,
    /// Reason of the final failure.
    given_up: Option<Error>,
}

/// Call that waits.
struct Wait {
    /// Begin of its failure: other calls may be answered all the while, by a Cluster that lost a part.
    since: Instant,
    /// Time that the limit counts.
    silence: Silence,
    /// Number of answers seen.
    answered: u64,
}

/// Time without an answer, for the limit. Between two looks is at most one pause and one attempt, together less than the
/// limit. After a longer time masu itself was stopped or frozen (Ctrl-Z, a freezer): it did not ask, and the time begins
/// anew. Once in a wait: an attempt may also take that long by itself, in a search for the server's address.
struct Silence {
    since: Instant,
    looked: Instant,
    began_anew: bool,
}

impl Silence {
    fn since(begin: Instant) -> Silence {
        Silence { since: begin, looked: begin, began_anew: false }
    }

    /// Its duration at this look.
    fn look(&mut self, now: Instant, limit: Option<Duration>) -> Duration {
        let without_look = now.saturating_duration_since(self.looked);
        if !self.began_anew && limit.is_some_and(|limit| without_look > limit + limit / 8) {
            (self.since, self.began_anew) = (now, true);
        }
        self.looked = now;
        now.saturating_duration_since(self.since)
    }
}

impl Patient {
    /// Wraps `store`.
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

    /// Duration of the outage; `None` when the store answers.
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
                // Any other result is final.
                result => break result,
            };
            let wait = waits.get_or_insert_with(|| self.begins_to_wait(begun));
            if let Err(given_up) = self.wait(error, wait, pause) {
                break Err(given_up);
            }
            pause = (pause * 2).min(self.patience.pause_max);
        };
        if let Some(wait) = waits {
            self.waits_no_more(&wait, result.is_ok());
        }
        result
    }

    /// Registers a call whose first attempt failed, which began at `since`.
    fn begins_to_wait(&self, since: Instant) -> Wait {
        let mut outage = self.outage();
        outage.waiting += 1;
        outage.since.get_or_insert(since);
        Wait { since, silence: Silence::since(since), answered: outage.answered }
    }

    /// Removes a call that was answered, `well` or not, or given up.
    fn waits_no_more(&self, wait: &Wait, well: bool) {
        let mut outage = self.outage();
        outage.waiting -= 1;
        outage.answered += 1;
        self.changed.notify_all();
        if outage.waiting == 0 {
            outage.since = None;
        }
        let is_back = outage.said.take_if(|since| *since == wait.since).is_some() && well;
        drop(outage);
        if is_back {
            let silent = wait.since.elapsed().as_secs_f64();
            (self.say)(&format!("store {} is back after {silent:.1}s; the program goes on", self.store.name()));
        }
    }

    /// Waits until the next attempt is due, or another waiting call was answered, even during this one's last attempt.
    fn wait(&self, error: Error, wait: &mut Wait, pause: Duration) -> Result<(), Error> {
        let mut outage = self.outage();
        if let Some(reason) = &outage.given_up {
            return Err(reason.clone());
        }
        let silent = wait.since.elapsed();
        let counted = wait.silence.look(Instant::now(), self.patience.limit);
        if self.patience.limit.is_some_and(|limit| counted >= limit) {
            let reason = gave_up(error, counted);
            outage.given_up = Some(reason.clone());
            self.changed.notify_all();
            return Err(reason);
        }
        if silent >= self.patience.quiet && outage.said.is_none() {
            outage.said = Some(wait.since);
            (self.say)(&format!(
                "store {} has not served for {:.1}s: {}; the program waits",
                self.store.name(),
                silent.as_secs_f64(),
                error.trouble().cause
            ));
        }
        // Not beyond the limit: an attempt then is the last one.
        let left =
            self.patience.limit.map_or(pause, |limit| limit.saturating_sub(counted).max(Duration::from_millis(1)));
        let waits = |outage: &mut Outage| outage.given_up.is_none() && outage.answered == wait.answered;
        let waited = self.changed.wait_timeout_while(outage, pause.min(left), waits);
        let outage = waited.unwrap_or_else(PoisonError::into_inner).0;
        wait.answered = outage.answered;
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

    /// No retries: pages that are not forgotten take space, and do no harm.
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
    use std::collections::BTreeMap;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;
    use crate::store::Location;

    /// Store whose answers are decided for each page and attempt.
    struct Scripted<F>(F, Mutex<BTreeMap<u64, u32>>);

    impl<F: Fn(u64, u32) -> bool + Send + Sync> Store for Scripted<F> {
        fn name(&self) -> &str {
            "redis://scripted"
        }

        fn put(&self, runs: &[PutRun<'_>]) -> Result<(), Error> {
            let page = runs[0].location.page;
            let attempt = {
                let mut attempts = self.1.lock().unwrap();
                let attempt = attempts.entry(page).or_default();
                *attempt += 1;
                *attempt
            };
            let (operation, store) = ("put 1 page into".to_owned(), self.name().to_owned());
            let trouble =
                || Trouble { operation, store, cause: "connection refused".to_owned(), remedy: String::new() };
            if (self.0)(page, attempt) { Ok(()) } else { Err(Error::Unreachable(trouble())) }
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

        fn close(&self) -> Result<(), Error> {
            Ok(())
        }
    }

    /// Store that fails a number of times, then answers.
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

    type Lines = Arc<Mutex<Vec<String>>>;

    fn patient(failures: u32, error: fn(Trouble) -> Error, patience: Patience) -> (Arc<Patient>, Lines) {
        around(Arc::new(Flaky { failures: AtomicU32::new(failures), error }), patience)
    }

    fn scripted(
        script: impl Fn(u64, u32) -> bool + Send + Sync + 'static,
        patience: Patience,
    ) -> (Arc<Patient>, Lines) {
        around(Arc::new(Scripted(script, Mutex::default())), patience)
    }

    fn around(store: Arc<dyn Store>, patience: Patience) -> (Arc<Patient>, Lines) {
        let said = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&said);
        let say: Say = Arc::new(move |line: &str| sink.lock().unwrap().push(line.to_owned()));
        (Arc::new(Patient::new(store, patience, say)), said)
    }

    fn put(store: &Patient) -> Result<(), Error> {
        put_page(store, 0)
    }

    fn put_page(store: &Patient, page: u64) -> Result<(), Error> {
        store.put(&[PutRun { location: Location { layer: 0, page }, bytes: &[] }])
    }

    /// Moment that a thread waits for.
    #[derive(Clone, Default)]
    struct Moment(Arc<AtomicU32>);

    impl Moment {
        fn comes(&self) {
            self.0.store(1, Ordering::SeqCst);
        }

        fn wait(&self) {
            while self.0.load(Ordering::SeqCst) == 0 {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }

    #[test]
    fn the_end_of_the_trouble_that_was_said_is_said_whatever_else_waits() {
        let (failed, over) = (Moment::default(), Moment::default());
        let script = {
            let (failed, over) = (failed.clone(), over.clone());
            move |page, attempt| match (page, attempt) {
                // Fails at first, and then takes long.
                (0, 1) => false,
                (0, _) => {
                    failed.comes();
                    over.wait();
                    true
                }
                // Fails after a while, and then answers.
                (_, 1) => {
                    std::thread::sleep(Duration::from_millis(600));
                    false
                }
                _ => true,
            }
        };
        let (store, said) = scripted(script, Patience { limit: None, quiet: Duration::from_millis(500), ..HASTY });
        std::thread::scope(|scope| {
            scope.spawn(|| put_page(&store, 0).unwrap());
            failed.wait();
            std::thread::sleep(Duration::from_millis(500));
            let begun = Instant::now();
            put_page(&store, 1).unwrap();
            let lasted = begun.elapsed().as_secs_f64();
            let lines = said.lock().unwrap().clone();
            over.comes();
            assert_eq!(lines.len(), 2, "{lines:?}");
            let words = lines[1].strip_prefix("store redis://scripted is back after ").unwrap();
            let silent: f64 = words.split_once('s').unwrap().0.parse().unwrap();
            assert!((0.6..lasted + 0.06).contains(&silent), "{lines:?}, of {lasted}s");
        });
        assert_eq!(said.lock().unwrap().len(), 2);
    }

    #[test]
    fn an_answer_during_an_attempt_that_fails_is_heard_of() {
        let (tries, answered) = (Moment::default(), Moment::default());
        let failed_at = Arc::new(Mutex::new(None));
        let script = {
            let (tries, answered, failed_at) = (tries.clone(), answered.clone(), Arc::clone(&failed_at));
            move |page, attempt| match (page, attempt) {
                (_, 1) => false,
                (0, 2) => {
                    tries.comes();
                    answered.wait();
                    *failed_at.lock().unwrap() = Some(Instant::now());
                    false
                }
                (1, 2) => {
                    tries.wait();
                    true
                }
                _ => true,
            }
        };
        let pause = Duration::from_millis(400);
        let (store, _) = scripted(script, Patience { limit: None, pause_min: pause, pause_max: pause * 2, ..HASTY });
        std::thread::scope(|scope| {
            scope.spawn(|| {
                put_page(&store, 1).unwrap();
                answered.comes();
            });
            put_page(&store, 0).unwrap();
        });
        let waited = failed_at.lock().unwrap().unwrap().elapsed();
        assert!(waited < pause, "{waited:?}");
    }

    #[test]
    fn an_outage_is_waited_for_and_said_once_with_its_end() {
        let (store, said) = patient(5, Error::Unreachable, HASTY);
        put(&store).unwrap();
        put(&store).unwrap();
        let said = said.lock().unwrap();
        assert_eq!(said.len(), 2, "{said:?}");
        assert!(said[0].starts_with("store redis://flaky has not served for 0.0s: connection refused; the program"));
        assert!(said[1].starts_with("store redis://flaky is back after 0."), "{said:?}");
    }

    #[test]
    fn a_time_in_which_masu_could_not_ask_is_no_silence_of_the_store() {
        let (limit, begin) = (Duration::from_secs(8), Instant::now());
        let at = |seconds| begin + Duration::from_secs(seconds);
        let looks = |times: &[u64]| {
            let mut silence = Silence::since(begin);
            times.iter().map(|time| silence.look(at(*time), Some(limit)).as_secs()).collect::<Vec<_>>()
        };
        assert_eq!(looks(&[4, 8]), [4, 8]);
        // Stopped for a minute in an attempt, and in a pause.
        assert_eq!(looks(&[60, 64, 68]), [0, 4, 8]);
        assert_eq!(looks(&[4, 64, 72]), [4, 0, 8]);
        // Attempts that take that long by themselves.
        assert_eq!(looks(&[60, 120]), [0, 60]);
        assert_eq!(Silence::since(begin).look(at(60), None).as_secs(), 60);
    }

    #[test]
    fn a_connection_that_was_closed_while_masu_was_stopped_is_made_anew() {
        let script = |_, attempt| {
            if attempt == 1 {
                std::thread::sleep(Duration::from_millis(200));
            }
            attempt > 1
        };
        let (store, _) = scripted(script, HASTY);
        put(&store).unwrap();
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
        assert_eq!(said.iter().filter(|line| line.contains("has not served for")).count(), 1, "{said:?}");
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
