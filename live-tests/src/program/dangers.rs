//! Operations that a library in front of the memory calls could break. Each once broke, or might have.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use units::cast::fits;

use super::Wrong;
use super::memory::{HUGE, MIB, Memory, PRIVATE, READ_WRITE};

/// One thread asks again and again for more than there can be; mappings that another makes meanwhile stay.
pub(super) fn refused_growth() -> Result<(), Wrong> {
    let over = Arc::new(AtomicBool::new(false));
    let rounds = Arc::new(AtomicU64::new(0));
    let (ended, counted) = (Arc::clone(&over), Arc::clone(&rounds));
    let other = std::thread::spawn(move || {
        while !ended.load(Relaxed) {
            let memory = Memory::map(4 * MIB, READ_WRITE, PRIVATE).map_err(|error| error.to_string())?;
            for _ in 0..20 {
                if !is_mapped(memory.start) {
                    return Err("a mapping vanished".to_owned());
                }
            }
            memory.unmap().map_err(|error| error.to_string())?;
            counted.fetch_add(1, Relaxed);
        }
        Ok(())
    });
    let small = Memory::map(8 * MIB, READ_WRITE, PRIVATE)?;
    small.fill(3, 64);
    for _ in 0..5000 {
        if other.is_finished() {
            break;
        }
        // More than any machine has: refused after the target was looked for.
        if small.resize(1 << 40).is_ok() {
            return Err("a TiB was to be had".into());
        }
    }
    over.store(true, Relaxed);
    other.join().map_err(|_| "the other thread panicked")??;
    small.check(3, 64)?;
    println!("rounds={}", rounds.load(Relaxed));
    Ok(())
}

fn is_mapped(start: usize) -> bool {
    let mut resident = 0u8;
    // SAFETY: asks about one page; the answer goes to a variable of ours.
    unsafe { libc::mincore(std::ptr::with_exposed_provenance_mut(start), 4096, &raw mut resident) == 0 }
}

/// Memory that began small and grew is huge like other large memory.
pub(super) fn small_grows() -> Result<(), Wrong> {
    let small = Memory::map(MIB, READ_WRITE, PRIVATE)?;
    small.fill(4, 1);
    let grown = small.resize(64 * MIB)?;
    grown.part(0, MIB).check(4, 1)?;
    grown.fill(5, 1);
    println!("grown={}/{}", grown.huge_windows()?, 64 * MIB / HUGE - 1);
    Ok(())
}

/// Threads whose handle is freed by themselves, before their creator could read it.
pub(super) fn detached() -> Result<(), Wrong> {
    struct Owned {
        thread: libc::pthread_t,
        // Large enough to be unmapped when it is freed.
        _rest: [u8; 200_000],
    }
    extern "C" fn begin(argument: *mut libc::c_void) -> *mut libc::c_void {
        // SAFETY: the box released below; this thread alone has it.
        drop(unsafe { Box::from_raw(argument.cast::<Owned>()) });
        std::ptr::null_mut()
    }
    for _ in 0..3000 {
        let owned = Box::into_raw(Box::new(Owned { thread: 0, _rest: [0; 200_000] }));
        // SAFETY: variables of ours; destroyed once the thread is there.
        unsafe {
            let mut attributes = std::mem::zeroed::<libc::pthread_attr_t>();
            libc::pthread_attr_init(&raw mut attributes);
            libc::pthread_attr_setdetachstate(&raw mut attributes, libc::PTHREAD_CREATE_DETACHED);
            let mut answer = libc::EAGAIN;
            while answer == libc::EAGAIN {
                answer = libc::pthread_create(&raw mut (*owned).thread, &raw const attributes, begin, owned.cast());
            }
            libc::pthread_attr_destroy(&raw mut attributes);
            if answer != 0 {
                return Err(std::io::Error::from_raw_os_error(answer).into());
            }
        }
    }
    println!("threads=3000");
    Ok(())
}

/// Shuts itself in with the few calls that it makes itself, forks, and ends.
pub(super) fn boxed() -> Result<(), Wrong> {
    const ALLOWED: [i64; 11] = [
        libc::SYS_read,
        libc::SYS_write,
        libc::SYS_brk,
        libc::SYS_mmap,
        libc::SYS_munmap,
        libc::SYS_sigaltstack,
        libc::SYS_exit_group,
        libc::SYS_clone,
        libc::SYS_set_robust_list,
        libc::SYS_rt_sigprocmask,
        libc::SYS_wait4,
    ];
    let statement = |code: u32, k: u32, jt: u8, jf: u8| libc::sock_filter { code: fits(code), jt, jf, k };
    let mut filter = vec![statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0)];
    for call in ALLOWED {
        filter.push(statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, u32::try_from(call)?, 0, 1));
        filter.push(statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW, 0, 0));
    }
    filter.push(statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_KILL_PROCESS, 0, 0));
    let program = libc::sock_fprog { len: u16::try_from(filter.len())?, filter: filter.as_mut_ptr() };
    // SAFETY: numbers, and a filter that outlives the call, which copies it.
    let failed = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0
            || libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) != 0
    };
    if failed {
        return Err(std::io::Error::last_os_error().into());
    }
    let memory = Memory::map(4 * MIB, READ_WRITE, PRIVATE)?;
    memory.fill(1, 64);
    memory.unmap()?;
    // SAFETY: the child of a process with one thread, which ends at once; the parent waits for it.
    let status = unsafe {
        let child = libc::fork();
        if child == 0 {
            libc::_exit(0);
        }
        let mut status = -1;
        libc::waitpid(child, &raw mut status, 0);
        status
    };
    if status != 0 {
        return Err(format!("the child ended with {status}").into());
    }
    println!("boxed=1");
    // SAFETY: ends the program by the C library's exit, with all that was registered for it.
    unsafe { libc::exit(0) }
}
