//! Memory with missing pages, and a system call tried on it.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use farmem_engine::calls::{Access, Buffer, Call, Known, Memory, buffers, number};

const PAGE: u64 = 4096;
const ARENA_PAGES: u64 = 512;

/// Criterion of a call's success.
#[derive(Clone, Copy, Debug)]
pub enum Good {
    /// The call succeeds.
    Yes,
    /// The call returns this value.
    Count(i64),
    /// The call gets as far as returning this error.
    Errno(i32),
    /// The call may be refused by its object, but only after it found its memory.
    NoFault,
}

impl Good {
    fn is(self, result: i64) -> bool {
        match self {
            Good::Yes => result >= 0,
            Good::Count(count) => result == count,
            Good::Errno(errno) => result == -i64::from(errno),
            Good::NoFault => result != -i64::from(libc::EFAULT),
        }
    }
}

/// Pages of a trial, their contents when they are mapped in, and the results of the trials.
pub struct Trial {
    base: u64,
    uffd: OwnedFd,
    /// Calls that held.
    pub held: usize,
    names: BTreeSet<String>,
    absent: Vec<String>,
    /// Calls that did not.
    pub wrong: Vec<String>,
}

/// One attempt: addresses of its buffers, and its open descriptors.
pub struct Attempt {
    base: u64,
    free_page: u64,
    stored: BTreeMap<u64, Vec<u8>>,
    needed: BTreeSet<u64>,
    open: Vec<OwnedFd>,
}

impl Attempt {
    fn new(base: u64) -> Self {
        Attempt { base, free_page: 1, stored: BTreeMap::new(), needed: BTreeSet::new(), open: Vec::new() }
    }

    fn place(&mut self, bytes: &[u8], needed: bool) -> u64 {
        let count = bytes.len() as u64;
        let pages = (count - 1).div_ceil(PAGE);
        let start = self.base + (self.free_page + pages) * PAGE - (count - 1);
        self.free_page += pages + 2;
        assert!(self.free_page < ARENA_PAGES);
        self.fill(start, bytes, needed);
        start
    }

    fn fill(&mut self, start: u64, bytes: &[u8], needed: bool) {
        for (at, byte) in (start..).zip(bytes) {
            let page = at & !(PAGE - 1);
            self.stored.entry(page).or_insert_with(|| vec![0; PAGE as usize])[(at % PAGE) as usize] = *byte;
            if needed {
                self.needed.insert(page);
            }
        }
    }

    /// Bytes with the last one alone on a page.
    pub fn put(&mut self, bytes: &[u8]) -> u64 {
        self.place(bytes, true)
    }

    /// A string with its end.
    pub fn text(&mut self, text: &str) -> u64 {
        self.put(format!("{text}\0").as_bytes())
    }

    /// A struct of words.
    pub fn words(&mut self, words: &[u64]) -> u64 {
        self.put(&words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>())
    }

    /// A struct of 32-bit words.
    pub fn halves(&mut self, halves: &[u32]) -> u64 {
        self.put(&halves.iter().flat_map(|half| half.to_le_bytes()).collect::<Vec<_>>())
    }

    /// Zeros, all of which the kernel is known to touch.
    pub fn buffer(&mut self, bytes: usize) -> u64 {
        self.put(&vec![0; bytes])
    }

    /// Bytes that the kernel may touch in part only, or without reporting a failure.
    pub fn loose(&mut self, bytes: &[u8]) -> u64 {
        self.place(bytes, false)
    }

    /// A 32-bit word at its natural address.
    pub fn aligned(&mut self, value: u32) -> u64 {
        let start = self.base + self.free_page * PAGE;
        self.free_page += 2;
        self.fill(start, &value.to_le_bytes(), true);
        start
    }

    /// A descriptor that is closed after the attempt.
    pub fn keep(&mut self, descriptor: impl Into<OwnedFd>) -> u64 {
        let descriptor = descriptor.into();
        let number = descriptor.as_raw_fd() as u64;
        self.open.push(descriptor);
        number
    }

    /// The result of a call that makes a descriptor.
    pub fn made(&mut self, result: i64) -> u64 {
        assert!(result >= 0, "{}", std::io::Error::from_raw_os_error(-result as i32));
        // SAFETY: the call has just returned this descriptor, and no other code knows it.
        self.keep(unsafe { OwnedFd::from_raw_fd(result as i32) })
    }
}

impl Memory for Attempt {
    fn word(&self, address: u64) -> Option<u64> {
        let (page, at) = (address & !(PAGE - 1), (address % PAGE) as usize);
        self.stored.get(&page).map(|bytes| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap()))
    }

    fn is_own_process(&self, pid: u32) -> bool {
        pid == std::process::id()
    }
}

/// Makes a call; returns its result, or minus the error.
pub fn make(number: u32, a: [u64; 6]) -> i64 {
    // SAFETY: the calls of this test only name memory of the arena, or none.
    let result = unsafe { libc::syscall(i64::from(number), a[0], a[1], a[2], a[3], a[4], a[5]) };
    if result == -1 { -i64::from(std::io::Error::last_os_error().raw_os_error().unwrap()) } else { result }
}

/// Six arguments from fewer.
pub fn six(given: &[u64]) -> [u64; 6] {
    let mut all = [0; 6];
    all[..given.len()].copy_from_slice(given);
    all
}

/// Pages to map in for an attempt.
#[derive(Clone, Copy)]
enum Bring {
    Nothing,
    Named,
    NamedWithout(u64),
}

impl Trial {
    /// `None` where userfaultfd cannot be used.
    pub fn start() -> Option<Self> {
        // UFFD_USER_MODE_ONLY.
        let uffd = make(number::USERFAULTFD, six(&[libc::O_CLOEXEC as u64 | 1]));
        if uffd < 0 {
            return None;
        }
        // SAFETY: just made.
        let uffd = unsafe { OwnedFd::from_raw_fd(uffd as i32) };
        // SAFETY: a new mapping, wherever the kernel likes.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                (ARENA_PAGES * PAGE) as usize,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        } as u64;
        let trial = Trial { base, uffd, held: 0, names: BTreeSet::new(), absent: Vec::new(), wrong: Vec::new() };
        // UFFD_API with UFFD_FEATURE_SIGBUS; registration for missing pages.
        let api_is_fine = trial.ioctl(0xc018_aa3f, &mut [0xaa, 1 << 7, 0]);
        (api_is_fine && trial.ioctl(0xc020_aa00, &mut [base, ARENA_PAGES * PAGE, 1, 0])).then_some(trial)
    }

    fn ioctl<const N: usize>(&self, request: u64, argument: &mut [u64; N]) -> bool {
        // SAFETY: the struct of each of these requests has the size encoded in its number, and so has the array.
        unsafe { libc::ioctl(self.uffd.as_raw_fd(), request, argument.as_mut_ptr()) == 0 }
    }

    /// One attempt; also returns the relevant pages, and errors in the kernel's writes.
    fn attempt(
        &self,
        number: u32,
        prepare: &mut dyn FnMut(&mut Attempt) -> [u64; 6],
        bring: Bring,
    ) -> (i64, BTreeSet<u64>, Option<String>) {
        // SAFETY: nothing but these trials uses the arena.
        unsafe { libc::madvise(self.base as *mut _, (ARENA_PAGES * PAGE) as usize, libc::MADV_DONTNEED) };
        let mut attempt = Attempt::new(self.base);
        let call = Call { number, arguments: prepare(&mut attempt) };
        let mut named = Vec::<Buffer>::new();
        let known = buffers(call, &attempt, &mut |buffer| named.push(buffer));
        assert_eq!(known, Known::Yes, "{:?}", number::name(number));
        let arena = self.base..self.base + ARENA_PAGES * PAGE;
        let pages = |buffer: &Buffer| {
            let (first, last) = (buffer.start & !(PAGE - 1), (buffer.start + buffer.bytes - 1) & !(PAGE - 1));
            (first.max(arena.start)..=last.min(arena.end - PAGE)).step_by(PAGE as usize)
        };
        let mut brought: BTreeSet<u64> = named.iter().flat_map(pages).collect();
        match bring {
            Bring::Nothing => brought.clear(),
            Bring::Named => {}
            Bring::NamedWithout(page) => {
                brought.remove(&page);
            }
        }
        let zeros = vec![0; PAGE as usize];
        for page in &brought {
            let from = attempt.stored.get(page).unwrap_or(&zeros).as_ptr() as u64;
            assert!(self.ioctl(0xc028_aa03, &mut [*page, from, PAGE, 0, 0]), "UFFDIO_COPY");
        }
        let result = make(call.number, call.arguments);
        let mut strange = None;
        for page in &brought {
            // SAFETY: the page was brought above, and nothing takes it away.
            let now = unsafe { std::slice::from_raw_parts(*page as *const u8, PAGE as usize) };
            let before = attempt.stored.get(page).unwrap_or(&zeros);
            for at in (0..PAGE).filter(|at| now[*at as usize] != before[*at as usize]) {
                let address = page + at;
                let written = named.iter().any(|buffer| {
                    buffer.access == Access::Write && (buffer.start..buffer.start + buffer.bytes).contains(&address)
                });
                if !written {
                    strange = Some(format!("a byte was written that only reads are known of: {named:x?} {address:x}"));
                }
            }
        }
        (result, attempt.needed, strange)
    }

    /// Tries one call. `prepare` is run before each attempt and returns the arguments.
    pub fn call(&mut self, number: u32, good: Good, mut prepare: impl FnMut(&mut Attempt) -> [u64; 6]) {
        let name = number::name(number).unwrap();
        let (full, needed, strange) = self.attempt(number, &mut prepare, Bring::Named);
        let (none, _, _) = self.attempt(number, &mut prepare, Bring::Nothing);
        // Calls missing for this user, or refused without access to memory.
        let refusals = [libc::ENOSYS, libc::EPERM, libc::EACCES, libc::EOPNOTSUPP].map(|errno| -i64::from(errno));
        let unknown = full == none && full == -i64::from(libc::EINVAL);
        if !good.is(full) && (unknown || refusals.contains(&full)) {
            let arguments = prepare(&mut Attempt::new(self.base));
            let why = std::io::Error::from_raw_os_error(-full as i32);
            self.absent.push(format!("{name} {:#x} {:#x}: {why}", arguments[0], arguments[1]));
            return;
        }
        let wrong_before = self.wrong.len();
        if !good.is(full) {
            let text =
                if full < 0 { std::io::Error::from_raw_os_error(-full as i32).to_string() } else { String::new() };
            self.wrong.push(format!("{name}: with all that is named it gives {full} {text}, not {good:?}"));
        }
        self.wrong.extend(strange.map(|strange| format!("{name}: {strange}")));
        if good.is(none) && !needed.is_empty() {
            self.wrong.push(format!("{name}: without any page it gives {none} as well"));
        }
        for page in needed {
            let (without, _, _) = self.attempt(number, &mut prepare, Bring::NamedWithout(page));
            if good.is(without) {
                let place = (page - self.base) / PAGE;
                self.wrong.push(format!("{name}: without page {place} it gives {without} as well"));
            }
        }
        if self.wrong.len() == wrong_before {
            self.held += 1;
            self.names.insert(name.into());
        }
    }

    /// Report in one line.
    pub fn report(&self) -> String {
        let (held, names) = (self.held, self.names.len());
        format!("{held} trials of {names} calls held; not here: {}", self.absent.join("; "))
    }
}
