//! Start of a program with the library.
//!
//! The loader runs `begin` before the code of the program and of all its libraries (`-z initfirst`). Without masu's
//! variable in the environment it does nothing.

use core::ffi::{CStr, c_char, c_int};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use farmem_engine::PAGE_BYTES;
use farmem_engine::backend::Backend;
use farmem_engine::counters::Counter;
use farmem_engine::handshake::{self, Go, Identity, Message, Ready, Secret, SessionParameters, Step};
use farmem_engine::pager::Pager;
use farmem_engine::policy::site::{INITIAL_PROFILE_WORDS, InitialProfile, SITES};
use farmem_engine::segment::{self, DOORBELL, Doorbell, Layout, STORE_REQUEST, StoreRequest};

use crate::frames::PAGE;
use crate::kernel::{self, call, int, size, uint};
use crate::lock::{Guard, LOCK};
use crate::mappings::{self, Mapping};
use crate::program::{self, HEAP_END, Program};
use crate::syscall_user_dispatch::{self, DISPATCH};
use crate::thread::{self, map_memory};
use crate::uffd::Uffd;
use crate::{bus_error, delivery, descriptors, memory, signals, syscall_trap};

#[used]
#[unsafe(link_section = ".init_array")]
static BEGIN: unsafe extern "C" fn(c_int, *const *mut c_char, *const *mut c_char) = begin;

/// # Safety
/// Called by the loader, with the program's arguments and its environment.
unsafe extern "C" fn begin(_: c_int, _: *const *mut c_char, environment: *const *mut c_char) {
    // SAFETY: the loader's.
    let Some(name) = (unsafe { variable(environment, handshake::VARIABLE.as_bytes()) }) else { return };
    // SAFETY: as above.
    let secret = unsafe { variable(environment, handshake::SECRET_VARIABLE.as_bytes()) };
    let Some(secret) = secret.and_then(Secret::of) else {
        kernel::say(&[
            "masu: cannot begin this program: the masu that limits its memory is of another version than its library\n",
            "    Start it again with the masu that is installed now.\n",
        ]);
        kernel::end(NOT_BEGUN)
    };
    // SAFETY: as above.
    let path = unsafe { variable(environment, handshake::PATH_VARIABLE.as_bytes()) };
    let socket = reach(path, name);
    if socket < 0 {
        return without_parameters(socket);
    }
    // SAFETY: asks.
    let process = uint(unsafe { call!(libc::SYS_getpid) }.cast_unsigned());
    send(socket, &Identity { process, secret: secret.library }.message(), &[]);
    let mut store = -1;
    let answer = receive(socket, &mut store);
    let parameters = match answer.and_then(|answer| SessionParameters::of(&answer)) {
        Some((parameters, theirs)) if theirs == secret.masu => parameters,
        none => {
            for fd in [socket, store] {
                // SAFETY: our own, or none.
                unsafe { call!(libc::SYS_close, fd) };
            }
            // Another process has the name of a masu that has ended. Or masu ends just now: then there is no answer any
            // more.
            let is_gone = none.is_some() || answer == Some(handshake::REJECTED);
            return without_parameters(if is_gone { -libc::ECONNREFUSED } else { reach(path, name) });
        }
    };
    let socket = descriptors::out_of_the_way(socket);
    let store = if store < 0 { store } else { descriptors::out_of_the_way(store) };
    match prepare(parameters, process, store, socket) {
        Ok((segment, backend)) => {
            let program = program::program();
            let uffd = program.map_or(-1, |program| program.uffd.fd);
            send(socket, &Ready { begun: Ok(backend) }.message(), &[segment, uffd]);
            // SAFETY: our own; the memory stays mapped.
            unsafe { call!(libc::SYS_close, segment) };
            // Without an answer the program begins with nothing known: masu has ended, or could not take its tables.
            let go = receive(socket, &mut -1).and_then(|message| Go::of(&message));
            if let Some(program) = program {
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
        }
        Err((step, errno)) => {
            send(socket, &Ready { begun: Err((step, errno)) }.message(), &[]);
            // masu reports the reason.
            kernel::end(NOT_BEGUN);
        }
    }
}

/// Exit status of a program that was not allowed to begin, as of `masu run` itself.
const NOT_BEGUN: i32 = 125;

/// Deadline of a connection, and of each message at the start.
const DEADLINE_S: u64 = 15;

/// Ends the program: there is a server, and it is silent. A masu that is only slow could still write to the shared
/// segment, so the program does not begin.
fn without_answer() -> ! {
    kernel::say(&[
        "masu: cannot begin this program: the masu that limits its memory has not answered for ",
        kernel::Decimal::of(DEADLINE_S).text(),
        " s\n    See whether it is stopped or frozen (`ps -C masu -o pid,stat,wchan`), let it go on, and start this program again.\n",
    ]);
    kernel::end(NOT_BEGUN)
}

/// Handles a start without session parameters; `answer` is the socket's last answer. A program that outlives masu
/// starts others as it would without masu. While masu lives, no program runs without a limit.
fn without_parameters(answer: i32) {
    if answer == -libc::EAGAIN {
        without_answer();
    }
    if answer == -libc::ECONNREFUSED {
        return kernel::say(&[
            "masu: the masu that limits this program's memory is gone, or in another network namespace: it runs without \
             a limit\n",
        ]);
    }
    kernel::say(&[
        "masu: cannot begin this program: the masu that limits its memory gives it no session parameters\n",
        "    masu says why; what runs out is open files or threads: see `ulimit -n` and `ulimit -u`.\n",
    ]);
    kernel::end(NOT_BEGUN)
}

/// # Safety
/// `environment` is an array of strings that ends with a null pointer.
unsafe fn variable(environment: *const *mut c_char, name: &[u8]) -> Option<&'static [u8]> {
    let mut entry = environment;
    // SAFETY: the caller's.
    while !entry.is_null() && unsafe { !(*entry).is_null() } {
        // SAFETY: as above; the strings stay where they are.
        let text = unsafe { CStr::from_ptr(*entry) }.to_bytes();
        if let Some(value) = text.strip_prefix(name).and_then(|rest| rest.strip_prefix(b"=")) {
            return Some(value);
        }
        // SAFETY: before the null pointer there is always a next.
        entry = unsafe { entry.add(1) };
    }
    None
}

/// Connects to masu's socket at this path, or with this name where the path does not exist; a negative errno on
/// failure.
fn reach(path: Option<&[u8]>, name: &[u8]) -> i32 {
    let socket = path.map_or(-libc::ENOENT, |path| connect(path, 0));
    // Gone, or not visible from here (chroot, a mount namespace, another user). For all other errors there is no
    // fallback.
    match -socket {
        libc::ENOENT | libc::ENOTDIR | libc::EACCES | libc::ECONNREFUSED | libc::EINVAL => connect(name, 1),
        _ => socket,
    }
}

/// Family of masu's socket, as an address has it.
#[expect(clippy::cast_possible_truncation, reason = "AF_UNIX is 1")]
const FAMILY: libc::sa_family_t = libc::AF_UNIX as libc::sa_family_t;

/// Connects to the socket at this path, or with this name behind a zero (`zeros`): in the abstract namespace. A
/// negative errno on failure.
fn connect(name: &[u8], zeros: usize) -> i32 {
    let mut address = libc::sockaddr_un { sun_family: FAMILY, sun_path: [0; 108] };
    if name.len() + 1 > address.sun_path.len() {
        return -libc::EINVAL;
    }
    for (place, byte) in address.sun_path[zeros..].iter_mut().zip(name) {
        *place = *byte as c_char;
    }
    // A path ends with a zero, a name does not.
    let bytes = core::mem::offset_of!(libc::sockaddr_un, sun_path) + 1 + name.len();
    // SAFETY: makes a socket, and reads our own address and our own time.
    unsafe {
        let fd = call!(libc::SYS_socket, libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0);
        if fd < 0 {
            return int(fd.cast_unsigned());
        }
        // A connection waits for space in the queue of the server as long as a message may take.
        let time = libc::timeval { tv_sec: DEADLINE_S as i64, tv_usec: 0 };
        let (place, room) = ((&raw const time).expose_provenance(), size_of::<libc::timeval>());
        for option in [libc::SO_RCVTIMEO, libc::SO_SNDTIMEO] {
            call!(libc::SYS_setsockopt, fd, libc::SOL_SOCKET, option, place, room);
        }
        let answer = match call!(libc::SYS_connect, fd, (&raw const address).expose_provenance(), bytes) {
            0 if !may_be_masu(fd) => -i64::from(libc::ECONNREFUSED),
            answer => answer,
        };
        if answer < 0 {
            call!(libc::SYS_close, fd);
            return int(answer.cast_unsigned());
        }
        int(fd.cast_unsigned())
    }
}

/// Whether the listening process belongs to our own user, to root, or to a user without a name in our user namespace:
/// from any other user not even an answer is expected.
fn may_be_masu(socket: i64) -> bool {
    const NAMELESS: u32 = 65534;
    let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
    #[expect(clippy::cast_possible_truncation, reason = "three numbers of 32 bits")]
    let mut bytes = size_of::<libc::ucred>() as libc::socklen_t;
    let (place, room) = ((&raw mut peer).expose_provenance(), (&raw mut bytes).expose_provenance());
    // SAFETY: writes our own variables, at most as many bytes as there are; then asks.
    let (answer, own) = unsafe {
        let answer = call!(libc::SYS_getsockopt, socket, libc::SOL_SOCKET, libc::SO_PEERCRED, place, room);
        (answer, uint(call!(libc::SYS_geteuid).cast_unsigned()))
    };
    answer < 0 || [own, 0, NAMELESS].contains(&peer.uid)
}

/// Control message with descriptors.
#[repr(C, align(8))]
struct Control {
    head: libc::cmsghdr,
    fds: [i32; 2],
}

fn message_of(vector: &mut libc::iovec, control: &mut Control, fds: usize) -> libc::msghdr {
    let bytes = size_of::<libc::cmsghdr>() + fds * size_of::<i32>();
    control.head = libc::cmsghdr { cmsg_len: bytes, cmsg_level: libc::SOL_SOCKET, cmsg_type: libc::SCM_RIGHTS };
    // SAFETY: all zeros are a value of it.
    let mut message: libc::msghdr = unsafe { core::mem::zeroed() };
    message.msg_iov = vector;
    message.msg_iovlen = 1;
    if fds > 0 {
        message.msg_control = core::ptr::from_mut(control).cast();
        message.msg_controllen = bytes.next_multiple_of(8);
    }
    message
}

fn send(socket: i32, message: &Message, fds: &[i32]) {
    let mut vector = libc::iovec { iov_base: message.as_ptr().cast_mut().cast(), iov_len: size_of::<Message>() };
    // SAFETY: all zeros are a value of it.
    let mut control: Control = unsafe { core::mem::zeroed() };
    for (place, fd) in control.fds.iter_mut().zip(fds) {
        *place = *fd;
    }
    let head = message_of(&mut vector, &mut control, fds.len());
    // SAFETY: reads our own memory.
    unsafe { call!(libc::SYS_sendmsg, socket, (&raw const head).expose_provenance(), libc::MSG_NOSIGNAL) };
}

/// Receives a message, with its descriptor. Without any within the deadline the program is ended.
fn receive(socket: i32, fd: &mut i32) -> Option<Message> {
    let mut message: Message = [0; handshake::WORDS];
    let mut vector = libc::iovec { iov_base: message.as_mut_ptr().cast(), iov_len: size_of::<Message>() };
    // SAFETY: all zeros are a value of it.
    let mut control: Control = unsafe { core::mem::zeroed() };
    let mut head = message_of(&mut vector, &mut control, 1);
    control.head.cmsg_len = 0;
    const MOST_NS: u64 = DEADLINE_S * 1_000_000_000;
    let mut begun_ns = kernel::clock_ns();
    let got = loop {
        let called_ns = kernel::clock_ns();
        // SAFETY: writes our own memory.
        let got =
            unsafe { call!(libc::SYS_recvmsg, socket, (&raw mut head).expose_provenance(), libc::MSG_CMSG_CLOEXEC) };
        // A signal makes the kernel restart its timeout. A call that took longer than its timeout was stopped (Ctrl-Z),
        // perhaps with masu.
        let now_ns = kernel::clock_ns();
        if now_ns.saturating_sub(called_ns) > MOST_NS + MOST_NS / 8 {
            begun_ns = now_ns;
        }
        let is_late = now_ns.saturating_sub(begun_ns) > MOST_NS;
        match int((-got).cast_unsigned()) {
            libc::EINTR if !is_late => {}
            libc::EINTR | libc::EAGAIN => without_answer(),
            _ => break got,
        }
    };
    if control.head.cmsg_len >= size_of::<libc::cmsghdr>() + size_of::<i32>() {
        *fd = control.fds[0];
    }
    (got == size_of::<Message>() as i64).then_some(message)
}

/// Creates all resources of the pager in the program. Returns the shared segment's descriptor, and the backend.
fn prepare(
    parameters: SessionParameters,
    process: u32,
    store: i32,
    socket: i32,
) -> Result<(i32, Backend), (Step, u32)> {
    let errno = |answer: i64| uint(answer.unsigned_abs());
    let failed = |step: Step| move |answer: i64| (step, errno(answer));
    let uffd = Uffd::create(parameters.backend).map_err(|(step, answer)| (step, errno(answer)))?;
    let layout = Layout::new(parameters.most_pages as usize, parameters.budget_frames as usize);
    let (segment, start) = make_segment(layout.bytes).map_err(failed(Step::Memory))?;
    let memory = |bytes: usize| map_memory(bytes).ok_or((Step::Memory, libc::ENOMEM as u32));
    // The slots, and a page more: `Uffd::spare_page`.
    let slots_bytes = layout.slots * PAGE;
    let bytes = slots_bytes + PAGE;
    let slots = memory(bytes)? as u64;
    let uffd = Uffd { fd: descriptors::out_of_the_way(uffd.fd), spare_page: slots + slots_bytes as u64, ..uffd };
    let zeros = memory(farmem_engine::MAX_UNIT_PAGES as usize * PAGE)? as u64;
    // SAFETY: advice on our own memory that changes no content.
    unsafe {
        call!(libc::SYS_madvise, slots, bytes, libc::MADV_NOHUGEPAGE);
        call!(libc::SYS_madvise, slots, bytes, libc::MADV_DONTFORK);
    }
    // The spare page gets its page table now: later there might be no memory for one.
    // SAFETY: our own memory, which is still empty.
    unsafe {
        core::ptr::with_exposed_provenance_mut::<u8>(size(uffd.spare_page)).write_volatile(1);
        call!(libc::SYS_madvise, uffd.spare_page, PAGE_BYTES, libc::MADV_DONTNEED);
    }
    if !uffd.register_slots(slots, bytes as u64) {
        return Err((Step::Userfaultfd, libc::EINVAL as u32));
    }
    // SAFETY: mapped just now, shared and writable, never unmapped, all zeros; every type in it is atomic and aligned.
    let pager = unsafe { over(start, &layout) }.ok_or((Step::Memory, libc::EINVAL as u32))?;
    pager.counters.set(Counter::BudgetFrames, parameters.budget_frames.into());
    pager.counters.set(Counter::BudgetShare, parameters.budget_share.into());
    // Where all may be local, nothing has to be evicted.
    let aside = if parameters.budget_share >= ALL { 0 } else { uffd.backend.doubled_pages() };
    pager.counters.set(Counter::FramesAside, aside.into());
    pager.counters.set(Counter::EarlyTicks, kernel::ticks());
    pager.counters.set(Counter::EarlyNs, kernel::clock_ns());
    // SAFETY: as above; nothing else is placed there.
    let request =
        StoreRequest(unsafe { &*core::ptr::with_exposed_provenance(start + STORE_REQUEST * size_of::<u32>()) });
    // SAFETY: as above.
    let doorbell = Doorbell(unsafe { &*core::ptr::with_exposed_provenance(start + DOORBELL * size_of::<u32>()) });
    let text = own_text().ok_or((Step::Dispatch, libc::ENOENT as u32))?;
    DISPATCH[0].store(text.0, Relaxed);
    DISPATCH[1].store(text.1, Relaxed);
    program::begin(Program {
        pager,
        uffd,
        slots,
        zeros,
        store,
        socket,
        request,
        data: (start + layout.data) as u64,
        batch_data: (start + layout.batch_data) as u64,
        doorbell,
        background: parameters.background,
        learned: core::ptr::with_exposed_provenance_mut(start + layout.learned),
        ghosts: (core::ptr::with_exposed_provenance_mut(start + layout.ghosts), layout.ghost_words),
        sections: parameters.sections,
        fixed_log2: log2(parameters.unit_pages),
        base_log2: log2(parameters.base_pages),
        least_bytes: parameters.least_bytes,
        text,
        process: AtomicU32::new(process),
    });
    take_signals().map_err(failed(Step::Signals))?;
    Ok((segment, uffd.backend))
}

/// The whole memory of a program, as a share.
const ALL: u32 = 1 << 16;

#[expect(clippy::cast_possible_truncation, reason = "at most 31")]
fn log2(pages: u32) -> u8 {
    pages.max(1).ilog2() as u8
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

/// Creates the shared segment.
fn make_segment(bytes: usize) -> Result<(i32, usize), i64> {
    // SAFETY: makes a file and maps it.
    unsafe {
        let fd = call!(
            libc::SYS_memfd_create,
            c"masu-segment".as_ptr().expose_provenance(),
            libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING
        );
        if fd < 0 {
            return Err(fd);
        }
        let cut = call!(libc::SYS_ftruncate, fd, bytes);
        // masu maps it, too, and must never find it shorter.
        call!(libc::SYS_fcntl, fd, libc::F_ADD_SEALS, libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL);
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_NORESERVE);
        let start = if cut < 0 { cut } else { call!(libc::SYS_mmap, 0, bytes, protection, flags, fd, 0) };
        usize::try_from(start).map(|start| (int(fd.cast_unsigned()), start)).map_err(|_| start)
    }
}

/// # Safety
/// At `start` lie as many bytes as the layout has, zeros at first, shared and writable, for as long as the process
/// lives.
unsafe fn over(start: usize, layout: &Layout) -> Option<Pager<'static>> {
    // SAFETY: the caller's; both are only ever seen as atomics.
    unsafe {
        let words = core::ptr::with_exposed_provenance::<AtomicU64>(start);
        let halves = core::ptr::with_exposed_provenance::<AtomicU32>(start);
        segment::pager(
            core::slice::from_raw_parts(words, layout.bytes / size_of::<u64>()),
            core::slice::from_raw_parts(halves, layout.bytes / size_of::<u32>()),
            layout,
        )
    }
}

/// Mapping with this library's instructions: start and bytes.
fn own_text() -> Option<(u64, u64)> {
    let inside = (own_text as *const ()).expose_provenance() as u64;
    let mut found = None;
    mappings::each(|mapping| {
        if (mapping.start..mapping.end).contains(&inside) {
            found = Some((mapping.start, mapping.end - mapping.start));
        }
    });
    found
}

fn take_signals() -> Result<(), i64> {
    let record = thread::new_record().ok_or(-i64::from(libc::ENOMEM))?;
    // SAFETY: our own record; its stack is nobody else's.
    let answer = unsafe {
        (*record).number.store(uint(call!(libc::SYS_gettid).cast_unsigned()), Relaxed);
        call!(libc::SYS_sigaltstack, (&raw const (*record).stack).expose_provenance(), 0)
    };
    if answer < 0 {
        return Err(answer);
    }
    signals::deliver_by(delivery::on_signal);
    let taken = signals::take(libc::SIGBUS, bus_error::on_bus) && signals::take(libc::SIGSYS, syscall_trap::on_call);
    let mask = signals::bit(libc::SIGBUS) | signals::bit(libc::SIGSYS);
    // SAFETY: reads our own set. masu's parent may have left them blocked.
    unsafe {
        call!(libc::SYS_rt_sigprocmask, libc::SIG_UNBLOCK, (&raw const mask).expose_provenance(), 0, signals::SET_BYTES)
    };
    if taken { Ok(()) } else { Err(-i64::from(libc::EINVAL)) }
}

/// Begins to page memory that is mapped already: the heap, and the memory beyond the initialised data of programs and
/// libraries, which the kernel maps behind it without a file.
fn take_memory(program: &'static Program) {
    // SAFETY: asks.
    HEAP_END.store(unsafe { call!(libc::SYS_brk, 0) }.cast_unsigned(), Relaxed);
    let mut before: Option<Mapping> = None;
    let mut found = [(0_u64, 0_u64); 128];
    let mut count = 0_usize;
    mappings::each(|mapping| {
        let behind_data = before.is_some_and(|before| before.end == mapping.start && before.file && before.writable);
        let plain = mapping.private && mapping.readable && mapping.writable && !mapping.executable && !mapping.file;
        let large = mapping.end - mapping.start >= program.least_bytes;
        if plain && !mapping.special && (mapping.heap || behind_data && large) {
            if let Some(place) = found.get_mut(count) {
                *place = (mapping.start, mapping.end);
            }
            count += 1;
        }
        before = Some(mapping);
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
