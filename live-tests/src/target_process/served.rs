//! The target process's own side: carries out orders from standard input until it ends.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use rustix::io::Errno;
use rustix::process::Signal;

use super::memory;
use super::orders::{Answer, Order, Part};

/// A forked copy of the target process, which serves orders that the target process passes on.
struct Fork {
    pid: rustix::process::Pid,
    orders: File,
    answers: BufReader<File>,
}

#[derive(Default)]
struct Served {
    /// Forks by number; an ended one leaves its place empty.
    forks: Vec<Option<Fork>>,
    spinners: Vec<JoinHandle<()>>,
    rest: Arc<AtomicBool>,
}

/// Serves orders from standard input, after a first line that says it is ready.
pub fn run() -> ExitCode {
    // The test holds the other end of the pipe; should it die in the middle of an order, this ends the target process
    // as well.
    let _ = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
    println!("{}", line(&Answer::Process { pid: own_pid() }));
    serve(&mut std::io::stdin().lock(), &mut std::io::stdout())
}

fn serve(orders: &mut dyn BufRead, answers: &mut dyn Write) -> ExitCode {
    let mut served = Served::default();
    let mut text = String::new();
    loop {
        text.clear();
        match orders.read_line(&mut text) {
            Ok(0) | Err(_) => return ExitCode::SUCCESS,
            Ok(_) => (),
        }
        let Ok(order) = serde_json::from_str::<Order>(&text) else {
            eprintln!("target process: not an order: {text}");
            return ExitCode::FAILURE;
        };
        let answer = served.carry_out(order).unwrap_or_else(|errno| Answer::Refused { errno: errno.raw_os_error() });
        // An answer without a reader means that the test has ended.
        if writeln!(answers, "{}", line(&answer)).and_then(|()| answers.flush()).is_err() {
            return ExitCode::SUCCESS;
        }
    }
}

impl Served {
    fn carry_out(&mut self, order: Order) -> Result<Answer, Errno> {
        match order {
            Order::Map { backing, windows } => return memory::map(backing, windows).map(at),
            Order::MapAt { start, windows } => return memory::map_at(start, windows).map(at),
            Order::Move { part, pages_off } => return memory::move_away(part, pages_off).map(at),
            Order::Check { part, seed } => return Ok(memory::check(part, seed)),
            Order::Write { part, seed } => memory::write(part, seed),
            Order::WriteByte { part, at } => memory::write_byte(part, at),
            Order::Read { part } => memory::read(part),
            Order::ReadPages { pages, threads } => read_by_threads(&pages, threads),
            Order::Protect { part, protection } => memory::protect(part, protection)?,
            Order::Unmap { part } => memory::unmap(part)?,
            Order::Advise { part, advice } => memory::advise(part, advice)?,
            Order::Lock { part } => memory::lock(part)?,
            Order::Unlock { part } => memory::unlock(part)?,
            Order::ForgetTranslations => memory::forget_translations()?,
            Order::ForbidHugePages => memory::forbid_huge_pages()?,
            Order::OfferAll => memory::offer_all()?,
            Order::TimeLoads { part } => return memory::time_loads(part).map(|median| Answer::Ticks { median }),
            Order::Spin { part, threads, writing } => self.spin(part, threads, writing),
            Order::Rest => self.rest(),
            Order::Fork => return self.fork(),
            Order::Forked { index, order } => return self.pass_on(index, &order),
            Order::EndFork { index } => self.end_fork(index)?,
            Order::Exec => return Err(self.exec()),
            Order::Exit { status } => std::process::exit(status),
        }
        Ok(Answer::Done)
    }

    /// Threads that go over the pages again and again until told to rest.
    fn spin(&mut self, part: Part, threads: usize, writing: bool) {
        for _ in 0..threads {
            let rest = Arc::clone(&self.rest);
            self.spinners.push(std::thread::spawn(move || {
                while !rest.load(Ordering::Relaxed) {
                    if writing { memory::rewrite(part) } else { memory::read(part) }
                }
            }));
        }
    }

    fn rest(&mut self) {
        self.rest.store(true, Ordering::Relaxed);
        for spinner in self.spinners.drain(..) {
            // A spinner has no way to fail but a fault, which ends the whole target process.
            let _ = spinner.join();
        }
        // The kernel lets a join return a moment before the thread is gone.
        while std::fs::read_dir("/proc/self/task").is_ok_and(|tasks| tasks.count() > 1) {
            std::thread::yield_now();
        }
        self.rest.store(false, Ordering::Relaxed);
    }

    /// A copy of this process that shares all its pages until one of the two writes.
    fn fork(&mut self) -> Result<Answer, Errno> {
        let flags = rustix::pipe::PipeFlags::CLOEXEC;
        let (orders_to_read, orders) = rustix::pipe::pipe_with(flags)?;
        let (answers, answers_to_write) = rustix::pipe::pipe_with(flags)?;
        // SAFETY: the child goes on in `serve`, which takes no lock that another thread of this process could have held
        // at the fork except the allocator's, and glibc keeps that one usable in a forked child.
        match unsafe { libc::fork() } {
            -1 => Err(memory::last_errno()),
            0 => {
                let _ = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
                drop((orders, answers));
                // The copies of the parent's ends must go, or a fork would keep its elder siblings' pipes open.
                self.forks.clear();
                // Threads do not survive a fork, so there is none to join.
                self.spinners.drain(..).for_each(std::mem::forget);
                serve(&mut BufReader::new(File::from(orders_to_read)), &mut File::from(answers_to_write));
                std::process::exit(0)
            }
            pid => {
                let pid = rustix::process::Pid::from_raw(pid).ok_or(Errno::SRCH)?;
                let answers = BufReader::new(File::from(answers));
                self.forks.push(Some(Fork { pid, orders: File::from(orders), answers }));
                Ok(Answer::Process { pid: pid.as_raw_nonzero().get() })
            }
        }
    }

    fn pass_on(&mut self, index: usize, order: &Order) -> Result<Answer, Errno> {
        let fork = self.forks.get_mut(index).and_then(Option::as_mut).ok_or(Errno::SRCH)?;
        let order = serde_json::to_string(order).map_err(|_| Errno::INVAL)?;
        writeln!(fork.orders, "{order}").map_err(|_| Errno::SRCH)?;
        let mut answer = String::new();
        fork.answers.read_line(&mut answer).map_err(|_| Errno::SRCH)?;
        serde_json::from_str(&answer).map_err(|_| Errno::SRCH)
    }

    fn end_fork(&mut self, index: usize) -> Result<(), Errno> {
        let fork = self.forks.get_mut(index).and_then(Option::take).ok_or(Errno::SRCH)?;
        rustix::process::kill_process(fork.pid, Signal::KILL)?;
        rustix::process::waitpid(Some(fork.pid), rustix::process::WaitOptions::empty())?;
        Ok(())
    }

    /// Becomes a fresh target process under the same process id, on the same pipes. Comes back only when that was
    /// refused.
    fn exec(&mut self) -> Errno {
        let error = Command::new("/proc/self/exe").arg(super::FLAG).exec();
        Errno::from_io_error(&error).unwrap_or(Errno::IO)
    }
}

/// Each thread reads its share of the pages.
fn read_by_threads(pages: &[u64], threads: usize) {
    let share = pages.len().div_ceil(threads.max(1)).max(1);
    std::thread::scope(|scope| {
        for pages in pages.chunks(share) {
            scope.spawn(|| pages.iter().for_each(|&page| memory::read_page(page)));
        }
    });
}

fn at((start, end): (u64, u64)) -> Answer {
    Answer::At { start, end }
}

fn line(answer: &Answer) -> String {
    serde_json::to_string(answer).expect("answers are plain data")
}

fn own_pid() -> i32 {
    rustix::process::getpid().as_raw_nonzero().get()
}
