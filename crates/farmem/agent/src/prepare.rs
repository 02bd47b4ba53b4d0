//! Resources of the pager in a program: the shared segment, slots, userfaultfd, signal handlers. Made before the program
//! begins, and taken back where masu does not serve it.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use farmem_engine::PAGE_BYTES;
use farmem_engine::counters::Counter;
use farmem_engine::handshake::{SessionParameters, Step};
use farmem_engine::pager::Pager;
use farmem_engine::segment::{self, DOORBELL, Doorbell, Layout, PLACES, Places, STORE_REQUEST, StoreRequest};

use crate::clock;
use crate::frames::PAGE;
use crate::kernel::{call, size, uint};
use crate::limits::Files;
use crate::mappings;
use crate::program::Program;
use crate::syscall_user_dispatch::DISPATCH;
use crate::thread::{self, map_memory};
use crate::uffd::Uffd;
use crate::{bus_error, delivery, signals, stub, syscall_trap};

/// Memory and descriptors of the library's own.
#[derive(Clone, Copy)]
pub struct Made {
    /// Addresses and lengths of mappings; a length of 0 for none.
    memory: [(usize, usize); 3],
    /// Descriptors; -1 for none.
    fds: [i32; 4],
    signals: bool,
}

impl Made {
    const NOTHING: Made = Made { memory: [(0, 0); 3], fds: [-1; 4], signals: false };

    /// Takes all back: the program runs as without the library.
    pub fn undo(self) {
        if self.signals {
            signals::hand_back();
            let none = libc::stack_t { ss_sp: core::ptr::null_mut(), ss_flags: libc::SS_DISABLE, ss_size: 0 };
            // SAFETY: reads our own memory.
            unsafe { call!(libc::SYS_sigaltstack, (&raw const none).expose_provenance(), 0) };
        }
        for (start, bytes) in self.memory {
            if bytes > 0 {
                // SAFETY: our own memory, which nobody uses from now on.
                unsafe { call!(libc::SYS_munmap, start, bytes) };
            }
        }
        for fd in self.fds {
            if fd >= 0 {
                // SAFETY: our own.
                unsafe { call!(libc::SYS_close, fd) };
            }
        }
    }
}

/// Creates all resources of the pager in the program, or none. The descriptors are the segment's, the store's (-1 for
/// none) and the connection's; they stay open in case of a failure.
pub fn prepare(
    files: &Files,
    parameters: SessionParameters,
    process: u32,
    fds: [i32; 3],
) -> Result<(Program, Made), (Step, u32)> {
    let mut made = Made::NOTHING;
    let prepared = make(files, parameters, process, fds, &mut made);
    match prepared {
        Ok(program) => {
            let [segment, store, socket] = fds;
            if segment >= 0 {
                // The memory stays mapped.
                // SAFETY: our own.
                unsafe { call!(libc::SYS_close, segment) };
            }
            (made.fds[1], made.fds[2]) = (store, socket);
            Ok((program, made))
        }
        Err((step, answer)) => {
            made.undo();
            Err((step, uint(answer.unsigned_abs())))
        }
    }
}

fn make(
    files: &Files,
    parameters: SessionParameters,
    process: u32,
    [segment, store, socket]: [i32; 3],
    made: &mut Made,
) -> Result<Program, (Step, i64)> {
    let of_memory = |answer: i64| (Step::Memory, answer);
    let none = || of_memory(-i64::from(libc::ENOMEM));
    let uffd = Uffd::create(parameters.backend)?;
    let fd = files.out_of_the_way(uffd.fd);
    made.fds[0] = fd;
    let layout = Layout::new(parameters.most_pages as usize, parameters.budget_frames as usize);
    let start = map_segment(segment, parameters.segment, layout.bytes).map_err(of_memory)?;
    made.memory[0] = (start, layout.bytes);
    // The slots, and a page more: `Uffd::spare_page`.
    let slots_bytes = layout.slots * PAGE;
    let bytes = slots_bytes + PAGE;
    let slots = map_memory(bytes).ok_or_else(none)?;
    made.memory[1] = (slots, bytes);
    let slots = slots as u64;
    let uffd = Uffd { fd, spare_page: slots + slots_bytes as u64, ..uffd };
    let zeros_bytes = farmem_engine::MAX_UNIT_PAGES as usize * PAGE;
    let zeros = map_memory(zeros_bytes).ok_or_else(none)?;
    made.memory[2] = (zeros, zeros_bytes);
    // SAFETY: advice on our own memory that changes no content. A core dump has the program's memory, not the pager's.
    unsafe {
        call!(libc::SYS_madvise, slots, bytes, libc::MADV_NOHUGEPAGE);
        call!(libc::SYS_madvise, slots, bytes, libc::MADV_DONTFORK);
        call!(libc::SYS_madvise, slots, bytes, libc::MADV_DONTDUMP);
        call!(libc::SYS_madvise, start, layout.bytes, libc::MADV_DONTDUMP);
    }
    // The spare page gets its page table now: later there might be no memory for one.
    // SAFETY: our own memory, which is still empty.
    unsafe {
        core::ptr::with_exposed_provenance_mut::<u8>(size(uffd.spare_page)).write_volatile(1);
        call!(libc::SYS_madvise, uffd.spare_page, PAGE_BYTES, libc::MADV_DONTNEED);
    }
    if !uffd.register_slots(slots, bytes as u64) {
        return Err((Step::Userfaultfd, -i64::from(libc::EINVAL)));
    }
    // SAFETY: mapped just now, shared and writable, all zeros, and unmapped only where this program is not used; every
    // type in it is atomic and aligned.
    let pager = unsafe { over(start, &layout) }.ok_or((Step::Memory, -i64::from(libc::EINVAL)))?;
    begin_counters(&pager, &parameters, &uffd);
    // SAFETY: as above; nothing else is placed there.
    let request =
        StoreRequest(unsafe { &*core::ptr::with_exposed_provenance(start + STORE_REQUEST * size_of::<u32>()) });
    // SAFETY: as above.
    let doorbell = Doorbell(unsafe { &*core::ptr::with_exposed_provenance(start + DOORBELL * size_of::<u32>()) });
    let places = Places {
        most_pages: parameters.most_pages.into(),
        frames: parameters.budget_frames.into(),
        slots,
        store: u32::try_from(store).ok(),
    };
    for (number, word) in places.words().into_iter().enumerate() {
        // SAFETY: as above: in the segment's first page.
        let place = unsafe { &*core::ptr::with_exposed_provenance::<AtomicU64>(start + (PLACES + number) * 8) };
        place.store(word, Relaxed);
    }
    let text = own_text().map_err(|answer| (Step::Dispatch, answer))?;
    DISPATCH[0].store(text.0, Relaxed);
    DISPATCH[1].store(text.1, Relaxed);
    made.signals = true;
    take_signals().map_err(|answer| (Step::Signals, answer))?;
    Ok(Program {
        pager,
        uffd,
        slots,
        zeros: zeros as u64,
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
    })
}

fn begin_counters(pager: &Pager<'_>, parameters: &SessionParameters, uffd: &Uffd) {
    pager.counters.set(Counter::BudgetFrames, parameters.budget_frames.into());
    pager.counters.set(Counter::BudgetShare, parameters.budget_share.into());
    // Where all may be local, nothing has to be evicted.
    let aside = if parameters.budget_share >= ALL { 0 } else { uffd.backend.doubled_pages() };
    pager.counters.set(Counter::FramesAside, aside.into());
    clock::choose();
    pager.counters.set(Counter::EarlyTicks, clock::ticks());
    pager.counters.set(Counter::EarlyNs, clock::clock_ns());
}

/// The whole memory of a program, as a share.
const ALL: u32 = 1 << 16;

#[expect(clippy::cast_possible_truncation, reason = "at most 31")]
fn log2(pages: u32) -> u8 {
    pages.max(1).ilog2() as u8
}

/// Maps the shared segment that masu has made, whose length cannot change any more.
fn map_segment(fd: i32, number: Option<u32>, bytes: usize) -> Result<usize, i64> {
    if let Some(number) = number {
        // SAFETY: as below.
        let start = unsafe { call!(libc::SYS_shmat, number, 0, 0) };
        return usize::try_from(start).map_err(|_| start);
    }
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_NORESERVE);
    // SAFETY: a new mapping at an address that the kernel chooses.
    let start = unsafe { call!(libc::SYS_mmap, 0, bytes, protection, flags, fd, 0) };
    usize::try_from(start).map_err(|_| start)
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

/// This library's instructions without the one that is to be trapped: start and bytes. On failure the kernel's answer
/// to open(2) of the mappings.
fn own_text() -> Result<(u64, u64), i64> {
    let inside = (own_text as *const ()).expose_provenance() as u64;
    let mut found = None;
    mappings::each(|mapping| {
        if (mapping.start..mapping.end).contains(&inside) {
            // The linker decides on which side of all others its section lies.
            let trap = stub::trap();
            let (start, end) = if inside < trap.start { (mapping.start, trap.start) } else { (trap.end, mapping.end) };
            found = Some((start, end - start));
        }
    });
    found.ok_or_else(|| match mappings::open(mappings::OWN) {
        fd @ 0.. => {
            // SAFETY: our own.
            unsafe { call!(libc::SYS_close, fd) };
            -i64::from(libc::EIO)
        }
        answer => answer,
    })
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
    signals::let_ignored_pass();
    let mask = signals::bit(libc::SIGBUS) | signals::bit(libc::SIGSYS);
    // SAFETY: reads our own set. masu's parent may have left them blocked.
    unsafe {
        call!(libc::SYS_rt_sigprocmask, libc::SIG_UNBLOCK, (&raw const mask).expose_provenance(), 0, signals::SET_BYTES)
    };
    if taken { Ok(()) } else { Err(-i64::from(libc::EINVAL)) }
}
