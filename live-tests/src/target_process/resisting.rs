//! Target processes that resist a tracer: they exec other programs, or change their code while they are traced.

use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};
use std::ptr;

use units::cast::fits;

use super::task::FLAG;

/// Becomes the same program again and again, `count` times; `0` is the outcome.
pub fn execs(count: u64) -> ExitCode {
    let time = libc::timespec { tv_sec: 0, tv_nsec: 1_000_000 };
    // SAFETY: the time outlives the call, which only reads it.
    unsafe { libc::nanosleep(&raw const time, ptr::null_mut()) };
    if count == 0 {
        println!("0 0");
        return ExitCode::SUCCESS;
    }
    let error = Command::new("/proc/self/exe").args([FLAG, "execs", &(count - 1).to_string()]).exec();
    println!("{error} 0");
    ExitCode::FAILURE
}

/// Waits in the kernel, where no signal reaches it, for a child that ends after `seconds`.
pub fn waits_for_child(seconds: u64) -> String {
    let time = libc::timespec { tv_sec: fits(seconds), tv_nsec: 0 };
    let flags = i64::from(libc::CLONE_VFORK | libc::SIGCHLD);
    // SAFETY: without CLONE_VM the child has its own copy of the memory, makes two system calls and ends.
    unsafe {
        if libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0) == 0 {
            libc::nanosleep(&raw const time, ptr::null_mut());
            libc::_exit(0);
        }
    }
    "0".to_owned()
}

/// Sleeps, with a thread that changes the code of the vdso whenever it sees a tracer, and changes it back when that has gone: in place of its
/// first `syscall` instruction stands a jump to code that spins, or, with `exec`, becomes `/proc/self/exe --task escaped`. Ends with
/// its input.
pub fn changes_its_code(exec: bool) -> ExitCode {
    let Some((start, length)) = vdso() else { return ExitCode::FAILURE };
    let payload = payload(start, exec);
    // SAFETY: the vdso of this process; the change makes a private copy, and no code here calls the overwritten
    // functions.
    let code = unsafe {
        libc::mprotect(start, length, libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC);
        std::slice::from_raw_parts(start.cast::<u8>().cast_const(), length)
    };
    let Some(at) = code.windows(2).position(|pair| pair == [0x0f, 0x05]) else { return ExitCode::FAILURE };
    let place = start.cast::<u8>().wrapping_add(at);
    // SAFETY: executable again and not writable, as masu wants it; the bytes are written through /proc/self/mem.
    unsafe { libc::mprotect(start, length, libc::PROT_READ | libc::PROT_EXEC) };
    let mut before = [0; 5];
    before.copy_from_slice(&code[at..at + 5]);
    let distance = payload.addr().cast_signed() - (place.addr().cast_signed() + 5);
    let Ok(distance) = i32::try_from(distance) else { return ExitCode::FAILURE };
    let mut jump = [0xe9, 0, 0, 0, 0];
    jump[1..].copy_from_slice(&distance.to_le_bytes());
    let address = place.addr() as u64;
    std::thread::spawn(move || watch(address, before, jump));
    println!("changing");
    let _ = std::io::stdin().read(&mut [0]);
    println!("0 0");
    ExitCode::SUCCESS
}

fn watch(at: u64, before: [u8; 5], jump: [u8; 5]) {
    use std::os::unix::fs::FileExt;
    let (Ok(status), Ok(memory)) =
        (std::fs::File::open("/proc/self/status"), std::fs::File::options().write(true).open("/proc/self/mem"))
    else {
        return;
    };
    let mut text = [0; 4096];
    let (mut is_changed, mut waits) = (false, 0);
    loop {
        let read = status.read_at(&mut text, 0).unwrap_or(0);
        let is_traced = !text[..read].windows(12).any(|part| part == b"TracerPid:\t0");
        if is_traced != is_changed {
            // Each time a little later, so that in some tries it comes between the check of the code and its use.
            waits = (waits + 41) % 4000;
            (0..if is_traced { waits * 10 } else { 0 }).for_each(|_| std::hint::spin_loop());
            let _ = memory.write_all_at(if is_traced { &jump } else { &before }, at);
            is_changed = is_traced;
        }
    }
}

fn vdso() -> Option<(*mut libc::c_void, usize)> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let line = maps.lines().find(|line| line.ends_with("[vdso]"))?;
    let (start, end) = line.split_once(' ')?.0.split_once('-')?;
    let [start, end] = [start, end].map(|number| usize::from_str_radix(number, 16).unwrap_or(0));
    Some((ptr::with_exposed_provenance_mut(start), end - start))
}

/// Code within reach of a jump from `near`.
fn payload(near: *mut libc::c_void, exec: bool) -> *mut u8 {
    let mut code = Vec::new();
    if exec {
        let strings: [&'static std::ffi::CStr; 3] = [c"/proc/self/exe", c"--task", c"escaped"];
        let arguments = Box::leak(Box::new(
            strings.map(|string| string.as_ptr().addr()).into_iter().chain([0]).collect::<Vec<usize>>(),
        ));
        for (opcode, value) in [([0x48, 0xbf], strings[0].as_ptr().addr()), ([0x48, 0xbe], arguments.as_ptr().addr())] {
            code.extend(opcode);
            code.extend(value.to_le_bytes()); // mov rdi; mov rsi
        }
        code.extend([0x31, 0xd2, 0xb8, 59, 0, 0, 0, 0x0f, 0x05]); // no environment; execve
    }
    code.extend([0xeb, 0xfe]); // jump to itself
    let hint = near.wrapping_byte_sub(16 << 20);
    let rights = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
    // SAFETY: a new page, filled with at most as many bytes as it has.
    unsafe {
        let page = libc::mmap(hint, 4096, rights, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0).cast::<u8>();
        ptr::copy_nonoverlapping(code.as_ptr(), page, code.len());
        page
    }
}
