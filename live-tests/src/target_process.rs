//! A target process: a process with all its pages under the control of the test.
//!
//! The test program starts itself again as `--target-process` and gives it orders over a pipe, one at a time, each answered before
//! the next. Its mappings are aligned to windows of 2 MiB and merge with no neighbour; nothing but orders touches them.
//! The target process ends with the test: when its [`TargetProcess`] is dropped, and also when the test itself is killed.
//!
//! ```ignore
//! let mut process = TargetProcess::start()?;
//! let heap = process.map(Backing::Anonymous, 4)?;       // 4 windows
//! process.write(heap.window(0), 7)?;                    // fills 512 pages with the pattern of seed 7
//! process.read(heap.window(1).every(8))?;               // touches every eighth page of the second window
//! process.check(heap.window(0), 7)?;                    // Err(Differs) names the first wrong word
//! ```

mod memory;
mod orders;
mod resisting;
pub(crate) mod served;
pub(crate) mod task;

use std::io::{Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use linux::Pid;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::Signal;
use units::{AddressRange, PAGES_PER_WINDOW, Window};

use orders::{Answer, Order};
pub use orders::{Backing, Part, Protection};

/// Makes pages at which every access is a fault. Linux 6.13.
pub(crate) const MADV_GUARD_INSTALL: i32 = 102;

/// The argument that makes the test program a target process.
pub(crate) const FLAG: &str = "--target-process";

const PAGE: u64 = 4096;

/// An order is answered within this time, or the target process hangs. Emulated machines are slow, so it is long.
const TIME_LIMIT: Duration = Duration::from_secs(120);

/// Why an order was not carried out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TargetError {
    /// The kernel refused it.
    #[error("target process {pid}: {order}: {}", linux::describe(*errno))]
    Refused {
        /// Process id of the target process.
        pid: Pid,
        /// Order that was sent.
        order: String,
        /// The kernel's answer.
        errno: Errno,
    },
    /// A page differs from its written contents.
    #[error("target process {pid}: memory changed: {address:#x} holds {found:#018x} instead of {expected:#018x}")]
    Differs {
        /// Process id of the target process.
        pid: Pid,
        /// The first wrong word.
        address: u64,
        /// Word found.
        found: u64,
        /// Word written.
        expected: u64,
    },
    /// The process ended instead of answering.
    #[error("target process {pid}: {order}: it ended instead ({status})")]
    Ended {
        /// Process id of the target process.
        pid: Pid,
        /// Order that was sent.
        order: String,
        /// Exit status, in words.
        status: String,
    },
    /// The process did not answer in time, or not in known words.
    #[error("target process {pid}: {order}: {problem}")]
    Unanswered {
        /// Process id of the target process.
        pid: Pid,
        /// Order that was sent.
        order: String,
        /// Problem with the answer.
        problem: String,
    },
}

impl TargetError {
    /// The kernel's answer, when it refused an order.
    pub fn errno(&self) -> Option<Errno> {
        match self {
            TargetError::Refused { errno, .. } => Some(*errno),
            _ => None,
        }
    }
}

/// One mapping of a target process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping {
    start: u64,
    end: u64,
}

impl Mapping {
    /// All its pages.
    pub fn all(self) -> Part {
        Part { origin: self.start, start: self.start, end: self.end, step: PAGE }
    }

    /// The pages from the `first`th up to, not including, the `end`th.
    ///
    /// # Panics
    /// When that is not within the mapping.
    pub fn pages(self, first: u64, end: u64) -> Part {
        assert!(first <= end && self.start + end * PAGE <= self.end, "pages {first}..{end} are outside of the mapping");
        Part { start: self.start + first * PAGE, end: self.start + end * PAGE, ..self.all() }
    }

    /// One page.
    pub fn page(self, index: u64) -> Part {
        self.pages(index, index + 1)
    }

    /// The pages of the `index`th window.
    pub fn window(self, index: u64) -> Part {
        let pages = PAGES_PER_WINDOW as u64;
        self.pages(index * pages, (index + 1) * pages)
    }

    /// Windows, as the rest of masu names them.
    pub fn windows(self) -> Vec<Window> {
        self.range().whole_windows().collect()
    }

    /// Address range.
    ///
    /// # Panics
    /// Never: the kernel maps whole pages.
    pub fn range(self) -> AddressRange {
        self.all().range()
    }
}

impl Part {
    /// The first of these pages and every `nth` after it.
    pub fn every(self, nth: u64) -> Part {
        Part { step: self.step * nth.max(1), ..self }
    }

    /// The first `pages` of these.
    pub fn first(self, pages: u64) -> Part {
        Part { end: self.end.min(self.start + pages * self.step), ..self }
    }
}

/// A forked copy of a target process, by number. It shares the target process's pages until one of them writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forked {
    index: usize,
    pid: Pid,
}

impl Forked {
    /// Process id.
    pub fn pid(self) -> Pid {
        self.pid
    }
}

/// A running target process. Dropping it ends it and its forks.
#[derive(Debug)]
pub struct TargetProcess {
    child: Child,
    orders: ChildStdin,
    answers: ChildStdout,
    unread: Vec<u8>,
    forks: usize,
}

impl TargetProcess {
    /// Starts one, with no mappings of its own yet.
    ///
    /// # Errors
    /// When the program cannot be started again, or does not say that it is ready.
    pub fn start() -> Result<TargetProcess, TargetError> {
        TargetProcess::start_by(Command::new("/proc/self/exe"))
    }

    /// Starts one through `command`, which must in the end run this program with the appended arguments.
    ///
    /// # Errors
    /// As `start`.
    pub fn start_by(mut command: Command) -> Result<TargetProcess, TargetError> {
        let unstarted = |problem: String| TargetError::Unanswered { pid: Pid(0), order: "start".to_owned(), problem };
        command.arg(FLAG).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(|error| unstarted(error.to_string()))?;
        let (Some(orders), Some(answers)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(unstarted("its pipes are missing".to_owned()));
        };
        let mut process = TargetProcess { child, orders, answers, unread: Vec::new(), forks: 0 };
        process.answer("start").map(|_| process)
    }

    /// Process id.
    pub fn pid(&self) -> Pid {
        Pid(self.child.id().cast_signed())
    }

    /// Maps `windows` windows, aligned, not touched yet.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn map(&mut self, backing: Backing, windows: u64) -> Result<Mapping, TargetError> {
        self.mapping_of(Order::Map { backing, windows })
    }

    /// Maps `windows` windows of private memory at `start`: for addresses that the kernel would not choose, and for
    /// more memory than there is.
    ///
    /// # Errors
    /// The kernel's refusal; `ENOMEM` for an address beyond the reach of its page tables.
    pub fn map_at(&mut self, start: u64, windows: u64) -> Result<Mapping, TargetError> {
        self.mapping_of(Order::MapAt { start, windows })
    }

    /// Fills each of the pages with a pattern of its own, that `check` knows.
    ///
    /// # Errors
    /// When the target process ended, as it does by writing where it must not.
    pub fn write(&mut self, part: Part, seed: u64) -> Result<(), TargetError> {
        self.done(Order::Write { part, seed })
    }

    /// Sets one byte of each of the pages, `at` bytes from the page's start. It is not zero from then on.
    ///
    /// # Errors
    /// When the target process ended.
    pub fn write_byte(&mut self, part: Part, at: u64) -> Result<(), TargetError> {
        self.done(Order::WriteByte { part, at })
    }

    /// Reads one word of each of the pages.
    ///
    /// # Errors
    /// When the target process ended.
    pub fn read(&mut self, part: Part) -> Result<(), TargetError> {
        self.done(Order::Read { part })
    }

    /// Has `threads` threads read the pages of these numbers, each thread its share.
    ///
    /// # Errors
    /// When the target process ended.
    pub fn read_pages(&mut self, mapping: Mapping, pages: &[u64], threads: usize) -> Result<(), TargetError> {
        let pages = pages.iter().map(|page| mapping.start + page * PAGE).collect();
        self.done(Order::ReadPages { pages, threads })
    }

    /// Checks that each of the pages still holds, in every word, the pattern of `write` with this seed.
    ///
    /// # Errors
    /// `Differs` for the first wrong word.
    pub fn check(&mut self, part: Part, seed: u64) -> Result<(), TargetError> {
        self.done(Order::Check { part, seed })
    }

    /// `mprotect` of the part's range.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn protect(&mut self, part: Part, protection: Protection) -> Result<(), TargetError> {
        self.done(Order::Protect { part, protection })
    }

    /// `munmap` of the part's range.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn unmap(&mut self, part: Part) -> Result<(), TargetError> {
        self.done(Order::Unmap { part })
    }

    /// `mremap` of the part's range to another place, aligned to a window, where its pages check as before when it was
    /// a whole mapping.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn move_away(&mut self, part: Part) -> Result<Mapping, TargetError> {
        self.mapping_of(Order::Move { part, pages_off: 0 })
    }

    /// The same, to an address that many pages behind the start of a window.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn move_off(&mut self, part: Part, pages_off: u64) -> Result<Mapping, TargetError> {
        self.mapping_of(Order::Move { part, pages_off })
    }

    /// `madvise` of the part's range with one of the kernel's numbers, such as `libc::MADV_HUGEPAGE`.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn advise(&mut self, part: Part, advice: i32) -> Result<(), TargetError> {
        self.done(Order::Advise { part, advice })
    }

    /// `mlock` of the part's range.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn lock(&mut self, part: Part) -> Result<(), TargetError> {
        self.done(Order::Lock { part })
    }

    /// `munlock` of the part's range.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn unlock(&mut self, part: Part) -> Result<(), TargetError> {
        self.done(Order::Unlock { part })
    }

    /// Flushes the TLB entries of this process: after clearing accessed bits, the next access to any page sets its bit
    /// again.
    ///
    /// # Errors
    /// When the target process ended.
    pub fn forget_translations(&mut self) -> Result<(), TargetError> {
        self.done(Order::ForgetTranslations)
    }

    /// `prctl(PR_SET_THP_DISABLE)`: no huge pages for this process, by its own wish.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn forbid_huge_pages(&mut self) -> Result<(), TargetError> {
        self.done(Order::ForbidHugePages)
    }

    /// `prctl(PR_SET_MEMORY_MERGE)`: all of its memory may be merged with equal pages.
    ///
    /// # Errors
    /// The kernel's refusal: `INVAL` before Linux 6.4.
    pub fn offer_all(&mut self) -> Result<(), TargetError> {
        self.done(Order::OfferAll)
    }

    /// Current load latency of these pages: the median over one line of each page, in ticks of the processor's clock.
    /// The lines are in its caches afterwards.
    ///
    /// # Errors
    /// `OPNOTSUPP` on a processor other than x86-64.
    pub fn time_loads(&mut self, part: Part) -> Result<u64, TargetError> {
        let order = Order::TimeLoads { part };
        match self.obey(&order)? {
            Answer::Ticks { median } => Ok(median),
            other => Err(self.confused(&order, &other)),
        }
    }

    /// Starts `threads` threads that go over the pages, again and again, until [`TargetProcess::rest`]. Writing threads
    /// rewrite the present contents, so the pages still check.
    ///
    /// # Errors
    /// When the target process ended.
    pub fn spin(&mut self, part: Part, threads: usize, writing: bool) -> Result<(), TargetError> {
        self.done(Order::Spin { part, threads, writing })
    }

    /// Ends the spinning threads.
    ///
    /// # Errors
    /// When the target process ended.
    pub fn rest(&mut self) -> Result<(), TargetError> {
        self.done(Order::Rest)
    }

    /// Forks, and keeps the copy until [`TargetProcess::end_fork`].
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn fork(&mut self) -> Result<Forked, TargetError> {
        let order = Order::Fork;
        match self.obey(&order)? {
            Answer::Process { pid } => {
                self.forks += 1;
                Ok(Forked { index: self.forks - 1, pid: Pid(pid) })
            }
            other => Err(self.confused(&order, &other)),
        }
    }

    /// Has the forked copy write, as [`TargetProcess::write`].
    ///
    /// # Errors
    /// When the copy ended.
    pub fn write_in_fork(&mut self, fork: Forked, part: Part, seed: u64) -> Result<(), TargetError> {
        self.done(Order::Forked { index: fork.index, order: Box::new(Order::Write { part, seed }) })
    }

    /// Has the forked copy read, as [`TargetProcess::read`].
    ///
    /// # Errors
    /// When the copy ended.
    pub fn read_in_fork(&mut self, fork: Forked, part: Part) -> Result<(), TargetError> {
        self.done(Order::Forked { index: fork.index, order: Box::new(Order::Read { part }) })
    }

    /// Has the forked copy compare, as [`TargetProcess::check`].
    ///
    /// # Errors
    /// `Differs` for the first wrong word.
    pub fn check_in_fork(&mut self, fork: Forked, part: Part, seed: u64) -> Result<(), TargetError> {
        self.done(Order::Forked { index: fork.index, order: Box::new(Order::Check { part, seed }) })
    }

    /// Ends a forked copy, and waits until it is gone.
    ///
    /// # Errors
    /// When it is gone already.
    pub fn end_fork(&mut self, fork: Forked) -> Result<(), TargetError> {
        self.done(Order::EndFork { index: fork.index })
    }

    /// Whether touching these pages ends a program. Tried by a forked copy, which may end.
    ///
    /// # Errors
    /// When no copy can be made.
    pub fn faults(&mut self, part: Part) -> Result<bool, TargetError> {
        let fork = self.fork()?;
        let faulted = match self.read_in_fork(fork, part) {
            Ok(()) => false,
            Err(refusal) if refusal.errno() == Some(Errno::SRCH) => true,
            Err(other) => return Err(other),
        };
        self.end_fork(fork)?;
        Ok(faulted)
    }

    /// Becomes a fresh target process under the same process id. Its mappings and forks are gone.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn exec(&mut self) -> Result<(), TargetError> {
        let order = Order::Exec;
        match self.obey(&order)? {
            Answer::Process { .. } => {
                self.forks = 0;
                Ok(())
            }
            other => Err(self.confused(&order, &other)),
        }
    }

    /// Has it exit by itself, and waits for that.
    ///
    /// # Errors
    /// When it does not.
    pub fn exit(mut self, status: i32) -> Result<ExitStatus, TargetError> {
        self.send(&Order::Exit { status })?;
        self.child.wait().map_err(|error| self.unanswered("exit", error.to_string()))
    }

    /// Stops it in its tracks (SIGSTOP), as a debugger does.
    ///
    /// # Errors
    /// When it is gone.
    pub fn freeze(&self) -> Result<(), TargetError> {
        self.signal(Signal::STOP)
    }

    /// Lets it go on (SIGCONT).
    ///
    /// # Errors
    /// When it is gone.
    pub fn thaw(&self) -> Result<(), TargetError> {
        self.signal(Signal::CONT)
    }

    /// Ends it (SIGKILL), and waits until nothing but the answer to `wait` is left.
    pub fn kill(&mut self) {
        // Both fail only when it has ended and was waited for, which is the wanted state.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    fn signal(&self, signal: Signal) -> Result<(), TargetError> {
        let order = || "signal".to_owned();
        rustix::process::Pid::from_raw(self.pid().0)
            .ok_or(Errno::SRCH)
            .and_then(|pid| rustix::process::kill_process(pid, signal))
            .map_err(|errno| TargetError::Refused { pid: self.pid(), order: order(), errno })
    }

    fn done(&mut self, order: Order) -> Result<(), TargetError> {
        match self.obey(&order)? {
            Answer::Done => Ok(()),
            other => Err(self.confused(&order, &other)),
        }
    }

    fn mapping_of(&mut self, order: Order) -> Result<Mapping, TargetError> {
        match self.obey(&order)? {
            Answer::At { start, end } => Ok(Mapping { start, end }),
            other => Err(self.confused(&order, &other)),
        }
    }

    fn obey(&mut self, order: &Order) -> Result<Answer, TargetError> {
        self.send(order)?;
        let name = name_of(order);
        match self.answer(&name)? {
            Answer::Refused { errno } => {
                let errno = Errno::from_raw_os_error(errno);
                Err(TargetError::Refused { pid: self.pid(), order: name, errno })
            }
            Answer::Differs { address, found, expected } => {
                Err(TargetError::Differs { pid: self.pid(), address, found, expected })
            }
            answer => Ok(answer),
        }
    }

    fn send(&mut self, order: &Order) -> Result<(), TargetError> {
        let name = name_of(order);
        let line = serde_json::to_string(order).map_err(|error| self.unanswered(&name, error.to_string()))?;
        writeln!(self.orders, "{line}").map_err(|_| self.ended(&name))
    }

    /// One line from the target process, within the time limit.
    fn answer(&mut self, order: &str) -> Result<Answer, TargetError> {
        let deadline = Instant::now() + TIME_LIMIT;
        loop {
            if let Some(end) = self.unread.iter().position(|&byte| byte == b'\n') {
                let line: Vec<u8> = self.unread.drain(..=end).collect();
                return serde_json::from_slice(&line).map_err(|error| self.unanswered(order, error.to_string()));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            let timeout = Timespec::try_from(left).map_err(|error| self.unanswered(order, error.to_string()))?;
            let ready = poll(&mut [PollFd::new(&self.answers, PollFlags::IN)], Some(&timeout));
            match ready {
                Ok(0) => return Err(self.unanswered(order, format!("no answer within {} s", TIME_LIMIT.as_secs()))),
                Ok(_) => (),
                Err(Errno::INTR) => continue,
                Err(errno) => return Err(self.unanswered(order, linux::describe(errno))),
            }
            let mut bytes = [0; 4096];
            match self.answers.read(&mut bytes) {
                Ok(0) => return Err(self.ended(order)),
                Ok(count) => self.unread.extend_from_slice(&bytes[..count]),
                Err(error) => return Err(self.unanswered(order, error.to_string())),
            }
        }
    }

    fn ended(&mut self, order: &str) -> TargetError {
        let status = self.child.wait().map_or_else(|error| error.to_string(), |status| status.to_string());
        TargetError::Ended { pid: self.pid(), order: order.to_owned(), status }
    }

    fn unanswered(&self, order: &str, problem: String) -> TargetError {
        TargetError::Unanswered { pid: self.pid(), order: order.to_owned(), problem }
    }

    fn confused(&self, order: &Order, answer: &Answer) -> TargetError {
        self.unanswered(&name_of(order), format!("an answer to something else: {answer:?}"))
    }
}

impl Drop for TargetProcess {
    fn drop(&mut self) {
        self.kill();
    }
}

/// An order as a failure shows it; addresses are hexadecimal.
fn name_of(order: &Order) -> String {
    format!("{order:x?}")
}
