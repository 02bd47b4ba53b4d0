//! Clocks, timers, sleeping, and waiting for words in memory.

use farmem_engine::calls::number as n;

use crate::arena::{Attempt, Good, Trial, make, six};

/// All of them.
pub fn trial(trial: &mut Trial) {
    clocks(trial);
    timers(trial);
    words(trial);
}

fn clocks(trial: &mut Trial) {
    trial.call(n::TIME, Good::Yes, |attempt| six(&[attempt.buffer(8)]));
    trial.call(n::GETTIMEOFDAY, Good::Yes, |attempt| six(&[attempt.buffer(16), attempt.buffer(8)]));
    trial.call(n::CLOCK_GETTIME, Good::Yes, |attempt| six(&[1, attempt.buffer(16)]));
    trial.call(n::CLOCK_GETRES, Good::Yes, |attempt| six(&[1, attempt.buffer(16)]));
    // A time that is none: it is read, and then refused.
    trial.call(n::CLOCK_SETTIME, Good::Errno(libc::EINVAL), |attempt| six(&[0, attempt.words(&[0, 2_000_000_000])]));
    trial.call(n::SETTIMEOFDAY, Good::Errno(libc::EINVAL), |attempt| six(&[attempt.words(&[0, 2_000_000]), 0]));
    trial.call(n::NANOSLEEP, Good::Yes, |attempt| six(&[attempt.words(&[0, 1000]), attempt.loose(&[0; 16])]));
    trial.call(n::CLOCK_NANOSLEEP, Good::Yes, |attempt| {
        six(&[1, 0, attempt.words(&[0, 1000]), attempt.loose(&[0; 16])])
    });
    let timex = size_of::<libc::timex>();
    trial.call(n::ADJTIMEX, Good::Yes, |attempt| six(&[attempt.buffer(timex)]));
    trial.call(n::CLOCK_ADJTIME, Good::Yes, |attempt| six(&[0, attempt.buffer(timex)]));
    trial.call(n::TIMES, Good::Yes, |attempt| six(&[attempt.buffer(size_of::<libc::tms>())]));
}

fn timers(trial: &mut Trial) {
    trial.call(n::GETITIMER, Good::Yes, |attempt| six(&[1, attempt.buffer(32)]));
    trial.call(n::SETITIMER, Good::Yes, |attempt| six(&[1, attempt.words(&[0; 4]), attempt.buffer(32)]));
    trial.call(n::TIMERFD_SETTIME, Good::Yes, |attempt| {
        let timer = attempt.made(make(n::TIMERFD_CREATE, six(&[1, 0])));
        six(&[timer, 0, attempt.words(&[0, 0, 1000, 0]), attempt.buffer(32)])
    });
    trial.call(n::TIMERFD_GETTIME, Good::Yes, |attempt| {
        let timer = attempt.made(make(n::TIMERFD_CREATE, six(&[1, 0])));
        six(&[timer, attempt.buffer(32)])
    });
    trial.call(n::TIMER_CREATE, Good::Yes, |attempt| {
        // SIGEV_NONE; the rest of the struct is padding, and read all the same.
        let mut event = [0; 8];
        event[1] = 1 << 32;
        six(&[1, attempt.words(&event), attempt.buffer(4)])
    });
    let (mut event, mut timer) = ([0_u64; 8], 0_u32);
    event[1] = 1 << 32;
    assert_eq!(make(n::TIMER_CREATE, six(&[1, event.as_ptr() as u64, &raw mut timer as u64])), 0);
    let timer = u64::from(timer);
    trial.call(n::TIMER_SETTIME, Good::Yes, |attempt| {
        six(&[timer, 0, attempt.words(&[0, 0, 1000, 0]), attempt.buffer(32)])
    });
    trial.call(n::TIMER_GETTIME, Good::Yes, |attempt| six(&[timer, attempt.buffer(32)]));
}

/// Futexes: not private, so that the kernel reads the page of the word also to wake.
fn words(trial: &mut Trial) {
    let again = Good::Errno(libc::EAGAIN);
    let late = Good::Errno(libc::ETIMEDOUT);
    let time = |attempt: &mut Attempt| attempt.words(&[0, 1000]);
    trial.call(n::FUTEX, again, |attempt| six(&[attempt.aligned(1), 0, 2, 0]));
    trial.call(n::FUTEX, again, |attempt| six(&[attempt.aligned(1), 0x80, 2, 0]));
    trial.call(n::FUTEX, late, |attempt| six(&[attempt.aligned(1), 0x80, 1, time(attempt)]));
    trial.call(n::FUTEX, late, |attempt| [attempt.aligned(1), 0x89, 1, attempt.words(&[0, 1]), 0, 1]);
    trial.call(n::FUTEX, Good::Count(0), |attempt| six(&[attempt.aligned(1), 1, 1]));
    trial.call(n::FUTEX, Good::Count(0), |attempt| [attempt.aligned(1), 10, 1, 0, 0, 1]);
    trial.call(n::FUTEX, Good::Count(0), |attempt| [attempt.aligned(1), 3, 1, 1, attempt.aligned(1), 0]);
    trial.call(n::FUTEX, Good::Count(0), |attempt| [attempt.aligned(1), 4, 1, 1, attempt.aligned(1), 1]);
    trial.call(n::FUTEX, again, |attempt| [attempt.aligned(1), 4, 1, 1, attempt.aligned(1), 2]);
    // WAKE_OP: add 1 to the second word.
    trial.call(n::FUTEX, Good::Count(0), |attempt| [attempt.aligned(1), 5, 1, 1, attempt.aligned(1), 0x1000_1000]);
    // LOCK_PI takes it, UNLOCK_PI of our own lock releases it.
    let me = make(n::GETTID, six(&[])) as u32;
    trial.call(n::FUTEX, Good::Count(0), |attempt| six(&[attempt.aligned(0), 6, 0, 0]));
    trial.call(n::FUTEX, Good::Count(0), |attempt| six(&[attempt.aligned(0), 8, 0, 0]));
    trial.call(n::FUTEX, Good::Count(0), |attempt| six(&[attempt.aligned(0), 13, 0, attempt.words(&[1, 0])]));
    trial.call(n::FUTEX, Good::Count(0), |attempt| six(&[attempt.aligned(me), 7]));
    trial.call(n::FUTEX_WAITV, again, |attempt| {
        let (one, two) = (attempt.aligned(1), attempt.aligned(1));
        six(&[attempt.words(&[1, one, 2, 2, two, 2]), 2, 0])
    });
    trial.call(n::FUTEX_WAITV, late, |attempt| {
        let (one, two) = (attempt.aligned(1), attempt.aligned(1));
        six(&[attempt.words(&[1, one, 2, 1, two, 2]), 2, 0, attempt.words(&[1, 1]), 1])
    });
    trial.call(n::FUTEX_WAKE, Good::Count(0), |attempt| six(&[attempt.aligned(1), 1, 1, 2]));
    trial.call(n::FUTEX_WAIT, again, |attempt| {
        [attempt.aligned(1), 2, u64::from(u32::MAX), 2, attempt.words(&[1, 1]), 1]
    });
    trial.call(n::FUTEX_WAIT, late, |attempt| {
        [attempt.aligned(1), 1, u64::from(u32::MAX), 2, attempt.words(&[1, 1]), 1]
    });
    trial.call(n::FUTEX_REQUEUE, Good::Count(0), |attempt| {
        let (one, two) = (attempt.aligned(1), attempt.aligned(1));
        six(&[attempt.words(&[1, one, 2, 1, two, 2]), 0, 1, 1])
    });
}
