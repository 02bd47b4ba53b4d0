//! A process with one task that it reports at its end: for tests that interfere with it from outside.
//!
//! The argument behind [`FLAG`] names the task. `ready` is the first line of its output, the result the last.

use std::io::Read;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use units::cast::fits;

use super::memory::last_errno;
use super::resisting;

/// The argument that makes this program run one task.
pub const FLAG: &str = "--task";

/// Time of sleep in each of the calls, in ms.
pub const SLEEP_MS: u64 = 1200;

/// Rounds of the computation that must come out right.
const ROUNDS: u64 = 150_000_000;

static QUEUED: AtomicU64 = AtomicU64::new(0);
static ALARMS: AtomicU64 = AtomicU64::new(0);

/// The signal that is queued, so that none is ever lost.
pub fn queued_signal() -> i32 {
    libc::SIGRTMIN() + 2
}

/// Does the task named by the argument.
pub fn run() -> ExitCode {
    let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
    let what = std::env::args().nth(2).unwrap_or_default();
    if what == "filtered" {
        filter();
    }
    let count = std::env::args().nth(3).and_then(|count| count.parse().ok()).unwrap_or(0);
    println!("ready");
    let begun = Instant::now();
    let outcome = match what.as_str() {
        "nanosleep" => nanosleep(),
        "poll" => poll(),
        "futex" => futex(),
        "epoll" => epoll(),
        "read" | "filtered" => read(),
        "write" => write(count),
        "compute" => format!("{:#x}", compute(1)),
        "threads" => threads(),
        "signals" => return signals(),
        "brief" => return brief(),
        "execs" => return resisting::execs(count),
        "spins" | "becomes" => return resisting::changes_its_code(what == "becomes"),
        "vfork" => resisting::waits_for_child(count),
        "escaped" => "escaped".to_owned(),
        other => format!("no such task: {other}"),
    };
    println!("{outcome} {}", begun.elapsed().as_millis());
    ExitCode::SUCCESS
}

/// Result of a call: a number, or an errno.
fn said(answer: i64) -> String {
    if answer < 0 { format!("errno{}", last_errno().raw_os_error()) } else { answer.to_string() }
}

fn sleep() -> libc::timespec {
    libc::timespec { tv_sec: (SLEEP_MS / 1000).cast_signed(), tv_nsec: (SLEEP_MS % 1000 * 1_000_000).cast_signed() }
}

fn nanosleep() -> String {
    let time = sleep();
    // SAFETY: the time outlives the call, which only reads it; nothing is asked back.
    said(i64::from(unsafe { libc::nanosleep(&raw const time, std::ptr::null_mut()) }))
}

fn poll() -> String {
    let timeout = fits(SLEEP_MS);
    // SAFETY: no file is named, so there is nothing to read or write.
    said(i64::from(unsafe { libc::poll(std::ptr::null_mut(), 0, timeout) }))
}

/// The kernel never restarts this one by itself.
fn epoll() -> String {
    let timeout = fits(SLEEP_MS);
    // SAFETY: a zeroed event is plain data; it outlives the call, which may fill it, but no file is waited for.
    unsafe {
        let mut event: libc::epoll_event = std::mem::zeroed();
        let file = libc::epoll_create1(0);
        said(i64::from(libc::epoll_wait(file, &raw mut event, 1, timeout)))
    }
}

fn futex() -> String {
    let word = 7u32;
    let time = sleep();
    // SAFETY: the word and the time outlive the call; no thread wakes it, so it only compares and waits.
    said(unsafe { libc::syscall(libc::SYS_futex, &raw const word, libc::FUTEX_WAIT, 7, &raw const time, 0, 0) })
}

fn read() -> String {
    let mut byte = [0];
    // Not through the buffer, which would try again by itself after EINTR.
    // SAFETY: one byte, which outlives the call.
    let answer = unsafe { libc::read(0, byte.as_mut_ptr().cast(), 1) };
    format!("{}:{}", said(answer as i64), byte[0])
}

/// Number of bytes of [`write`]: more than a pipe takes.
pub const WRITTEN: usize = 1 << 20;

/// One call, with `others` threads beside it that wait for input.
fn write(others: u64) -> String {
    (0..others).for_each(|_| drop(std::thread::spawn(read)));
    let bytes = vec![b'x'; WRITTEN];
    // SAFETY: the bytes outlive the call, which reads them.
    said(unsafe { libc::write(1, bytes.as_ptr().cast(), WRITTEN) } as i64)
}

/// Integers and floating point at once, in registers. Any register that is not restored changes the outcome.
fn compute(seed: u64) -> u64 {
    let mut whole = seed;
    let mut parts = [1.0f64, 1.5, 2.0, 2.5];
    for round in 0..ROUNDS {
        whole = whole.rotate_left(7).wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(round);
        for part in &mut parts {
            *part = *part * 0.999_999_7 + 0.1;
        }
    }
    parts.iter().fold(whole, |sum, part| sum.rotate_left(13) ^ part.to_bits())
}

fn threads() -> String {
    let sums: Vec<u64> = std::thread::scope(|scope| {
        let threads: Vec<_> = (1..4).map(|seed| scope.spawn(move || compute(seed))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap_or(0)).collect()
    });
    format!("{sums:x?}").replace(' ', "")
}

extern "C" fn count(signal: libc::c_int) {
    let counter = if signal == libc::SIGALRM { &ALARMS } else { &QUEUED };
    counter.fetch_add(1, Ordering::Relaxed);
}

/// Handles a thousand alarms a second, and queued signals; computes, sleeps, and ends when its input does.
fn signals() -> ExitCode {
    let handler = count as extern "C" fn(libc::c_int);
    let timer = libc::itimerval {
        it_interval: libc::timeval { tv_sec: 0, tv_usec: 1000 },
        it_value: libc::timeval { tv_sec: 0, tv_usec: 1000 },
    };
    // SAFETY: the handler only adds to an atomic number; the timer outlives the call.
    unsafe {
        libc::signal(queued_signal(), handler as libc::sighandler_t);
        libc::signal(libc::SIGALRM, handler as libc::sighandler_t);
        libc::setitimer(libc::ITIMER_REAL, &raw const timer, std::ptr::null_mut());
    }
    println!("handling");
    let ended = std::thread::spawn(|| std::io::stdin().read(&mut [0]));
    let mut wrong = 0;
    let expected = brief_sum();
    while !ended.is_finished() {
        wrong += u64::from(brief_sum() != expected);
        // SAFETY: as in `nanosleep`; that alarms cut it short is the point.
        unsafe {
            let time = libc::timespec { tv_sec: 0, tv_nsec: 300_000 };
            libc::nanosleep(&raw const time, std::ptr::null_mut());
        }
    }
    println!("{} {} {wrong}", QUEUED.load(Ordering::Relaxed), ALARMS.load(Ordering::Relaxed));
    ExitCode::SUCCESS
}

fn brief_sum() -> u64 {
    (0..20_000u64).fold(1, |sum, round| sum.rotate_left(5).wrapping_mul(0x2545_f491_4f6c_dd1d) ^ round)
}

/// Ends by itself within a millisecond.
fn brief() -> ExitCode {
    let time = u64::from(std::process::id()) % 1000;
    std::thread::sleep(std::time::Duration::from_micros(time));
    ExitCode::SUCCESS
}

/// Installs a filter that checks the system calls, and allows them all.
fn filter() {
    const ALLOW: u32 = 0x7fff_0000;
    let mut program = [libc::sock_filter { code: 0x06, jt: 0, jf: 0, k: ALLOW }];
    let all = libc::sock_fprog { len: 1, filter: program.as_mut_ptr() };
    // SAFETY: both structs outlive the calls, which only read them.
    unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const all, 0, 0);
    }
}
