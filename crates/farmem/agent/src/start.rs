//! Start of a program with the library.
//!
//! The loader runs `begin` before the code of the program and of all its libraries (`-z initfirst`). Without masu's
//! variable in the environment it does nothing.

use core::ffi::{c_char, c_int, c_void};
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use farmem_engine::PAGE_BYTES;
use farmem_engine::counters::Counter;
use farmem_engine::handshake::{self, Go, Identity, Ready, Secret, SessionParameters};
use farmem_engine::policy::site::{INITIAL_PROFILE_WORDS, InitialProfile, SITES};

use crate::kernel::{self, call, int, size, uint};
use crate::left_out::{self, variable};
use crate::limits::{self, Files};
use crate::lock::{Guard, LOCK};
use crate::mappings;
use crate::program::{self, HEAP_END, Program};
use crate::socket::{self, NOT_BEGUN};
use crate::{memory, prepare, syscall_user_dispatch};

#[used]
#[unsafe(link_section = ".init_array")]
static BEGIN: unsafe extern "C" fn(c_int, *const *mut c_char, *const *mut c_char) = begin;

/// # Safety
/// Called by the loader, with the program's arguments and its environment. Another C library's loader passes none.
unsafe extern "C" fn begin(_: c_int, _: *const *mut c_char, environment: *const *mut c_char) {
    if !left_out::is_systems_c_library() {
        return;
    }
    // SAFETY: the loader's.
    let value = |name: &str| unsafe { variable(environment, name.as_bytes()) };
    let Some(name) = value(handshake::VARIABLE) else { return };
    let path = value(handshake::PATH_VARIABLE);
    let reason = left_out::in_memory();
    // First of all: under an unknown filter there are only calls that the loader has just made.
    if left_out::is_filtered(value(handshake::FILTERS_VARIABLE)) {
        return left_out::tell_of_filter(path);
    }
    let Some(secret) = value(handshake::SECRET_VARIABLE).and_then(Secret::of) else {
        kernel::say(&[
            "masu: cannot begin this program: the masu that limits its memory is of another version than its library\n",
            "    Start it again with the masu that is installed now.\n",
        ]);
        kernel::end(NOT_BEGUN)
    };
    // Until this returns, descriptors may have numbers above the program's limit.
    let files = Files::raise();
    let connected = socket::reach(path, name);
    if connected < 0 {
        return without_parameters(connected);
    }
    // SAFETY: asks.
    let process = uint(unsafe { call!(libc::SYS_getpid) }.cast_unsigned());
    let left_out = reason.or_else(left_out::by_own_file).or_else(|| left_out::by_tracer(connected));
    socket::send(connected, &Identity { process, secret: secret.library, limits: limits::own(), left_out }.message());
    let mut fds = [-1; socket::FDS];
    let answer = socket::receive(connected, &mut fds);
    let parameters = match answer.and_then(|answer| SessionParameters::of(&answer)) {
        Some((parameters, theirs)) if theirs == secret.masu && left_out.is_none() => parameters,
        none => {
            close([connected, fds[0], fds[1]]);
            return match answer {
                Some(handshake::LEFT_OUT) => {}
                // masu reports the reason.
                Some(handshake::REFUSED) => kernel::end(NOT_BEGUN),
                // masu ends just now, or has no answer.
                _ if left_out.is_some() => {}
                // Another process has the name of a masu that has ended.
                Some(handshake::REJECTED) => without_parameters(-libc::ECONNREFUSED),
                _ if none.is_some() => without_parameters(-libc::ECONNREFUSED),
                // Or masu ends just now: then there is no answer any more.
                _ => without_parameters(socket::reach(path, name)),
            };
        }
    };
    // A segment that is no file has no descriptor.
    let [segment, store] = if parameters.segment.is_some() { [-1, fds[0]] } else { fds };
    let [socket, segment, store] = [connected, segment, store].map(|fd| files.out_of_the_way(fd));
    match prepare::prepare(&files, parameters, process, [segment, store, socket]) {
        Ok((program, made)) => {
            socket::send(socket, &Ready { begun: Ok(program.uffd.backend) }.message());
            // Without an answer the program begins with nothing known: masu has ended.
            match socket::receive(socket, &mut [-1; socket::FDS]) {
                Some(handshake::LEFT_OUT) => made.undo(),
                Some(handshake::REFUSED) => kernel::end(NOT_BEGUN),
                answer => serve(program, answer.and_then(|answer| Go::of(&answer))),
            }
        }
        Err((step, errno)) => {
            socket::send(socket, &Ready { begun: Err((step, errno)) }.message());
            if socket::receive(socket, &mut [-1; socket::FDS]) == Some(handshake::REFUSED) {
                // masu reports the reason.
                kernel::end(NOT_BEGUN);
            }
            close([socket, segment, store]);
        }
    }
}

/// Begins to page the program.
fn serve(program: Program, go: Option<Go>) {
    program::begin(program);
    let Some(program) = program::program() else { return };
    preset_sites(program, go.map_or(0, |go| go.profiles));
    take_memory(program);
    let answer = syscall_user_dispatch::begin((program.text.0, program.text.1));
    if answer < 0 {
        // masu would have refused before it started anything, so the kernel changed its answer.
        kernel::give_up(&[
            "Syscall User Dispatch was refused; the program cannot be paged\n    ",
            "`masu facts` says what this host has; run it without --local.",
        ]);
    }
}

/// Closes descriptors of the library's own; a negative number is none.
fn close<const N: usize>(fds: [i32; N]) {
    for fd in fds {
        if fd >= 0 {
            // SAFETY: our own.
            unsafe { call!(libc::SYS_close, fd) };
        }
    }
}

/// Handles a start without session parameters; `answer` is the socket's last answer. A program that outlives masu
/// starts others as it would without masu. A masu that lives, and has no parameters for it, has printed the reason.
fn without_parameters(answer: i32) {
    if answer == -libc::EAGAIN {
        socket::without_answer();
    }
    if answer == -libc::ECONNREFUSED {
        return kernel::say(&[
            "masu: the masu that limits this program's memory is gone, or in another network namespace: it runs without \
             a limit\n",
        ]);
    }
    // No descriptor for a socket, or a sandbox that lets none connect: the program runs as without masu.
    if answer < 0 {
        return;
    }
    kernel::say(&[
        "masu: cannot begin this program: the masu that limits its memory gives it no session parameters\n",
        "    masu says why; what runs out is open files or threads: see `ulimit -n` and `ulimit -u`.\n",
    ]);
    kernel::end(NOT_BEGUN)
}

/// Loads the site profiles that masu has from an earlier run.
fn preset_sites(program: &Program, profiles: u32) {
    let guard = LOCK.lock();
    let units = program.units(&guard);
    let mut place = core::ptr::with_exposed_provenance::<AtomicU64>(size(program.data));
    for _ in 0..(profiles as usize).min(SITES) {
        let mut words = [0; INITIAL_PROFILE_WORDS];
        for word in &mut words {
            // SAFETY: in the segment's data, which is larger than all that is read here (asserted in `segment.rs`), and
            // aligned.
            unsafe {
                *word = (*place).load(Relaxed);
                place = place.add(1);
            }
        }
        units.learned.sites.preset(InitialProfile::of(words));
    }
}

/// Begins to page memory that is mapped already: the heap, and the memory beyond the initialised data of the program and of
/// its libraries.
fn take_memory(program: &'static Program) {
    // SAFETY: asks.
    HEAP_END.store(unsafe { call!(libc::SYS_brk, 0) }.cast_unsigned(), Relaxed);
    let zeroed = Zeroed::of_objects();
    let mut found = [(0_u64, 0_u64); 128];
    let mut count = 0_usize;
    mappings::each(|mapping| {
        let plain = mapping.private && mapping.readable && mapping.writable && !mapping.executable && !mapping.file;
        if !plain || mapping.special {
            return;
        }
        let mut take = |start: u64, end: u64| {
            if let Some(place) = found.get_mut(count) {
                *place = (start, end);
            }
            count += 1;
        };
        if mapping.heap {
            take(mapping.start, mapping.end);
        }
        // The kernel joins it with a mapping behind it, which may be this library's own.
        for (start, end) in zeroed.ranges() {
            let (start, end) = (start.max(mapping.start), end.min(mapping.end));
            if !mapping.heap && start < end && end - start >= program.least_bytes {
                take(start, end);
            }
        }
    });
    // There is no space to note more of them, so they stay as they are.
    program.pager.counters.add(Counter::NotRegistered, count.saturating_sub(found.len()) as u64);
    let guard = LOCK.lock();
    // SAFETY: opens a file to be read.
    let pagemap = unsafe {
        call!(libc::SYS_open, c"/proc/self/pagemap".as_ptr().expose_provenance(), libc::O_RDONLY | libc::O_CLOEXEC, 0)
    };
    for (start, end) in found.into_iter().take(count) {
        memory::page(program, start, end - start);
        adopt(program, &guard, int(pagemap.cast_unsigned()), start, end);
    }
    if pagemap >= 0 {
        // SAFETY: our own.
        unsafe { call!(libc::SYS_close, pagemap) };
    }
    pin_thread_area(program);
}

/// Memory beyond the initialised data of the program and of its libraries, by whole pages.
struct Zeroed {
    all: [(u64, u64); 256],
    count: usize,
}

impl Zeroed {
    /// That of all objects but the C library, the loader and this library: bringing a page needs theirs.
    fn of_objects() -> Zeroed {
        let mut zeroed = Zeroed { all: [(0, 0); 256], count: 0 };
        // SAFETY: `add` gets the address of `zeroed`, which outlives the call. The loader's lists are complete: it has mapped
        // all objects before it runs `begin`.
        unsafe { libc::dl_iterate_phdr(Some(Zeroed::add), (&raw mut zeroed).cast()) };
        zeroed
    }

    unsafe extern "C" fn add(info: *mut libc::dl_phdr_info, _: usize, zeroed: *mut c_void) -> c_int {
        // SAFETY: the loader's description of an object, and the address that `of_objects` gave; both live until the return.
        let (info, zeroed) = unsafe { (&*info, &mut *zeroed.cast::<Zeroed>()) };
        // SAFETY: as many headers as the loader says.
        let headers = unsafe { core::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
        let loaded = || headers.iter().filter(|header| header.p_type == libc::PT_LOAD);
        let base = info.dlpi_addr;
        // SAFETY: asks.
        let loader = unsafe { libc::getauxval(libc::AT_BASE) };
        // A program may have functions of the first name of its own, in another object.
        let c_library = [libc::memcpy as *const (), libc::memset as *const (), libc::getauxval as *const ()];
        let own = (&raw const HEAP_END).cast();
        let needed = [c_library[0], c_library[1], c_library[2], own].map(|pointer| pointer.addr() as u64);
        let holds = |address: &u64| {
            loaded().any(|header| (base + header.p_vaddr..base + header.p_vaddr + header.p_memsz).contains(address))
        };
        if needed.iter().any(holds) || holds(&loader) {
            return 0;
        }
        for header in loaded().filter(|header| header.p_flags & libc::PF_W != 0) {
            let start = (base + header.p_vaddr + header.p_filesz).next_multiple_of(PAGE_BYTES);
            let end = (base + header.p_vaddr + header.p_memsz).next_multiple_of(PAGE_BYTES);
            if let Some(place) = zeroed.all.get_mut(zeroed.count).filter(|_| start < end) {
                *place = (start, end);
                zeroed.count += 1;
            }
        }
        0
    }

    fn ranges(&self) -> impl Iterator<Item = (u64, u64)> {
        self.all.iter().take(self.count).copied()
    }
}

/// Records pages that are in memory already.
fn adopt(program: &Program, guard: &Guard<'_>, pagemap: i32, start: u64, end: u64) {
    const PRESENT: u64 = 1 << 63;
    let mut words = [0_u64; 512];
    let mut address = start;
    while address < end {
        let pages = ((end - address) / PAGE_BYTES).min(words.len() as u64);
        let at = address / PAGE_BYTES * 8;
        // SAFETY: writes our own memory.
        let got = unsafe { call!(libc::SYS_pread64, pagemap, words.as_mut_ptr().expose_provenance(), pages * 8, at) };
        let known = got.max(0).cast_unsigned() / 8;
        for (page, word) in (0..pages).zip(words) {
            // Pages whose state cannot be read are found at their touch.
            if page < known && word & PRESENT != 0 {
                program.pager.adopt(&mut program.units(guard), address + page * PAGE_BYTES);
            }
        }
        address += pages * PAGE_BYTES;
    }
}

/// Pins the thread's own area, if it is paged: the kernel writes there at any time (rseq(2)).
fn pin_thread_area(program: &Program) {
    let area: u64;
    // SAFETY: reads the word at the beginning of the thread's area, which points to itself.
    unsafe { core::arch::asm!("mov {}, fs:0", out(reg) area, options(readonly, nostack, preserves_flags)) };
    for page in 0..2 {
        program.pager.pin(area + page * PAGE_BYTES);
    }
}
