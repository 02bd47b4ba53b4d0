//! Content of huge windows: the number of pages that hold only zeros.
//!
//! The only file that reads the *content* of a program's pages. The bytes are only compared with zero, and
//! forgotten in the same call: they go into a buffer that is wiped before the call returns.
//!
//! A window is sampled first: half a KiB of every eighth page, at changing addresses. A sample of 64 addresses costs a
//! tenth of the whole window; one of 1024 would cost more than the whole, since each address is translated on its own.
//! A page that a sample calls zero may hold data elsewhere, so before a window is split all of it is read.

use std::cell::RefCell;
use std::os::fd::OwnedFd;
use std::time::Duration;

use access::residency::Viewer;
use linux::{Error, Pid, cpu_time, process_vm};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use units::cast::index;
use units::{Address, AddressRange, PAGES_PER_WINDOW, PageSize, Pages, Window};

use super::policy::{PAGES_PER_SAMPLE, SAMPLES};

/// Access to a program's content for trimming.
pub trait Content {
    /// Makes the following calls refer to the memory that the program has now. True when that is another one than
    /// before (exec).
    ///
    /// # Errors
    /// `Gone` when it ended.
    fn is_new_memory(&self) -> Result<bool, Error>;

    /// Whole windows of `range` that are huge right now, in order.
    ///
    /// # Errors
    /// `Gone` when it ended.
    fn huge_windows(&self, range: AddressRange) -> Result<Vec<Window>, Error>;

    /// Number of the [`SAMPLES`] sampled pages of a window that seem to hold only zeros; `None` when it is not huge
    /// any more, shared after a fork, or cannot be read.
    ///
    /// # Errors
    /// `Gone` when it ended.
    fn sample(&self, window: Window) -> Result<Option<Pages>, Error>;

    /// Number of pages of a window that hold only zeros, byte for byte; `None` as for a sample.
    ///
    /// # Errors
    /// `Gone` when it ended.
    fn count(&self, window: Window) -> Result<Option<Pages>, Error>;

    /// Processor time of masu since its start, this work included.
    fn cpu_time(&self) -> Duration;
}

/// Content of a process of this host.
#[derive(Debug)]
pub struct Reader {
    pid: Pid,
    pidfd: OwnedFd,
    viewer: RefCell<Viewer>,
}

/// Nothing is mapped in the first page of any program.
const NOWHERE: Address = Address(0);

impl Reader {
    /// Opens it.
    ///
    /// # Errors
    /// `Gone`; `Denied` without the right to trace it; `Unsupported` on a kernel that cannot copy out of other
    /// processes.
    pub fn open(pid: Pid) -> Result<Reader, Error> {
        let pidfd = pid.open()?;
        let viewer = RefCell::new(Viewer::open(pid)?);
        let reader = Reader { pid, pidfd, viewer };
        match process_vm::read(pid, &[NOWHERE], 1, |_| ()) {
            Err(errno @ (Errno::PERM | Errno::NOSYS | Errno::SRCH)) => Err(reader.failed(errno)),
            _ => Ok(reader),
        }
    }

    /// Reads `each` bytes from all of `addresses` in `window`, if it is huge right now, and has `judge` count them.
    fn read(
        &self,
        window: Window,
        addresses: &[Address],
        each: usize,
        judge: impl FnOnce(&[u8]) -> Pages,
    ) -> Result<Option<Pages>, Error> {
        // Reading a missing page would allocate it; reading a page shared by a fork would copy it, and split the
        // window.
        let state = self.viewer.borrow().window(window);
        match state {
            Ok(state) if state.huge && [state.shared, state.file] == [Pages(0); 2] => {}
            Ok(_) => return Ok(None),
            Err(error) if error.is_gone() && !self.has_ended() => return Ok(None), // exec: the next scan finds out
            Err(error) => return Err(error),
        }
        let wanted = addresses.len() * each;
        let answer = process_vm::read(self.pid, addresses, each, |bytes| (bytes.len() == wanted).then(|| judge(bytes)));
        let result = match answer {
            Ok(result) => result,
            Err(Errno::FAULT | Errno::NOMEM | Errno::AGAIN | Errno::INTR) => None,
            Err(errno) => return Err(self.failed(errno)),
        };
        // The number may belong to another process by now.
        if self.has_ended() { Err(self.failed(Errno::SRCH)) } else { Ok(result) }
    }

    fn has_ended(&self) -> bool {
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut [PollFd::new(&self.pidfd, PollFlags::IN)], Some(&at_once)).is_ok_and(|ended| ended > 0)
    }

    fn failed(&self, errno: Errno) -> Error {
        Error::of_process("read", format!("the memory of process {}", self.pid), errno)
    }
}

impl Content for Reader {
    fn is_new_memory(&self) -> Result<bool, Error> {
        if self.viewer.borrow().is_current()? {
            return Ok(false);
        }
        if self.has_ended() {
            return Err(self.failed(Errno::SRCH));
        }
        *self.viewer.borrow_mut() = Viewer::open(self.pid)?;
        Ok(true)
    }

    fn huge_windows(&self, range: AddressRange) -> Result<Vec<Window>, Error> {
        self.viewer.borrow().huge_windows(range)
    }

    fn sample(&self, window: Window) -> Result<Option<Pages>, Error> {
        self.read(window, &addresses(window), SAMPLE, |bytes| zero_chunks(bytes, SAMPLE))
    }

    fn count(&self, window: Window) -> Result<Option<Pages>, Error> {
        let whole = index(PageSize::Huge.bytes().0);
        self.read(window, &[window.start()], whole, |bytes| zero_chunks(bytes, whole / PAGES_PER_WINDOW))
    }

    fn cpu_time(&self) -> Duration {
        cpu_time::of_thread()
    }
}

/// Bytes of a page that a sample reads. Translating an address costs as much as copying some KiB, so a single word
/// would cost the same.
const SAMPLE: usize = 512;

/// Addresses that a sample reads: one page of each eight, and one eighth of it, neither in step with its neighbours, so
/// that no regular pattern of pages or records hides from it. The same for every window and scan.
fn addresses(window: Window) -> [Address; SAMPLES] {
    std::array::from_fn(|number| {
        // The golden ratio's multiplier; its upper bits are the good ones.
        let mixed = (number as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let page = number * PAGES_PER_SAMPLE + index(mixed >> 61);
        let eighth = (mixed >> 58) & 7;
        Address(window.page(page).0 + eighth * SAMPLE as u64)
    })
}

/// Number of pieces of `length` bytes that hold only zeros.
fn zero_chunks(bytes: &[u8], length: usize) -> Pages {
    Pages(bytes.chunks_exact(length).filter(|chunk| is_zero(chunk)).count() as u64)
}

/// Word by word in lines of 64 bytes: ten times faster than byte by byte.
fn is_zero(bytes: &[u8]) -> bool {
    let line_is_zero = |line: &[u8]| {
        let (words, rest) = line.as_chunks::<8>();
        words.iter().fold(0, |all, word| all | u64::from_ne_bytes(*word)) == 0 && rest.iter().all(|byte| *byte == 0)
    };
    bytes.chunks(64).all(line_is_zero)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_sample_takes_one_page_of_each_eight_and_not_always_the_same_one() {
        let window = Window(0x1000);
        let addresses = addresses(window);
        let pages: Vec<usize> = addresses.iter().map(|address| address.page_in_window()).collect();
        assert!((0..SAMPLES).all(|number| pages[number] / PAGES_PER_SAMPLE == number));
        for rest in 0..PAGES_PER_SAMPLE {
            let of_this_rest = pages.iter().filter(|page| *page % PAGES_PER_SAMPLE == rest).count();
            assert!((4..=12).contains(&of_this_rest), "every eighth page from {rest}: {of_this_rest}");
        }
        assert!(addresses.iter().all(|address| window.range().contains(*address) && address.0 % SAMPLE as u64 == 0));
    }

    proptest! {
        #[test]
        fn a_piece_with_one_byte_set_anywhere_is_not_zero(length in 1usize..5000, at in any::<prop::sample::Index>()) {
            let mut bytes = vec![0; length];
            prop_assert!(is_zero(&bytes));
            bytes[at.index(length)] = 1;
            prop_assert!(!is_zero(&bytes));
        }

        #[test]
        fn pieces_are_judged_one_by_one(set in prop::collection::btree_set(0usize..512, 0..40)) {
            let mut bytes = vec![0; 512 * 16];
            set.iter().for_each(|piece| bytes[piece * 16 + piece % 16] = 0x80);
            prop_assert_eq!(zero_chunks(&bytes, 16), Pages(512 - set.len() as u64));
        }
    }
}
