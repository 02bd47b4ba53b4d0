//! Signals to programs, and ways of ending.

use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::Duration;

use super::Wrong;
use super::memory::{MIB, Memory, PRIVATE, READ_WRITE};

static HEARD: [AtomicU32; 65] = [const { AtomicU32::new(0) }; 65];

extern "C" fn hear(signal: i32) {
    if let Some(heard) = usize::try_from(signal).ok().and_then(|signal| HEARD.get(signal)) {
        heard.fetch_add(1, SeqCst);
    }
}

/// Counts signals until its input ends, and prints the count of each.
pub(super) fn signals() -> Result<(), Wrong> {
    let all = [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM, libc::SIGUSR1, libc::SIGUSR2];
    for signal in all {
        let handler: extern "C" fn(i32) = hear;
        // SAFETY: the handler adds to an atomic, and nothing else.
        unsafe { libc::signal(signal, handler as libc::sighandler_t) };
    }
    println!("ready={}", std::process::id());
    // Interrupted reads are tried again.
    std::io::stdin().read_line(&mut String::new())?;
    for signal in all {
        let heard = HEARD.get(usize::try_from(signal)?).map_or(0, |heard| heard.load(SeqCst));
        println!("{signal}={heard}");
    }
    Ok(())
}

/// Uses memory, prints that it is right, and ends in this way.
pub(super) fn by(how: &str) -> Result<(), Wrong> {
    let memory = Memory::map(8 * MIB, READ_WRITE, PRIVATE)?;
    memory.fill(7, 1);
    memory.check(7, 1)?;
    // In a namespace with a foreign /proc, it cannot read its own state; and masu is to watch it for a while.
    if how == "quietly" {
        std::thread::sleep(Duration::from_millis(1500));
        return memory.check(7, 1);
    }
    println!("huge={}", memory.huge_windows()?);
    let own = std::env::current_exe()?;
    let again = || {
        let mut command = Command::new(&own);
        command.args([super::FLAG, "allocation", "16"]);
        command
    };
    match how {
        "return" => Ok(()),
        "_exit" => {
            // SAFETY: ends the process; the lines above are written.
            unsafe { libc::_exit(3) }
        }
        "abort" => std::process::abort(),
        "status" => std::process::exit(3),
        "spawn" => {
            if again().status()?.success() {
                Ok(())
            } else {
                Err("the child failed".into())
            }
        }
        "exec" => Err(again().exec().into()),
        "threads" => {
            for _ in 0..50 {
                std::thread::spawn(|| {
                    loop {
                        let work = || Memory::map(4 * MIB, READ_WRITE, PRIVATE).and_then(Memory::unmap);
                        if work().is_err() {
                            std::process::exit(9);
                        }
                    }
                });
            }
            std::thread::sleep(Duration::from_millis(50));
            std::process::exit(3)
        }
        "daemon" => {
            // SAFETY: this process has one thread; its parent's copy ends here, and this one goes on.
            if unsafe { libc::daemon(1, 1) } != 0 {
                return Err("daemon".into());
            }
            std::thread::sleep(Duration::from_millis(700));
            let more = Memory::map(8 * MIB, READ_WRITE, PRIVATE)?;
            more.fill(8, 1);
            memory.check(7, 1)?;
            println!("daemon={}", more.huge_windows()?);
            Ok(())
        }
        "close" => {
            // SAFETY: closes all files but the first three; this program has none that it still uses.
            unsafe { libc::syscall(libc::SYS_close_range, 3, u32::MAX, 0) };
            let more = Memory::map(8 * MIB, READ_WRITE, PRIVATE)?;
            more.fill(8, 1);
            println!("closed={}", more.huge_windows()?);
            Ok(())
        }
        "chroot" => {
            std::os::unix::fs::chroot("/usr/share")?;
            let more = Memory::map(8 * MIB + 4096, READ_WRITE, PRIVATE)?;
            more.fill(8, 1);
            more.check(8, 1)
        }
        other => Err(format!("no way to end: {other:?}").into()),
    }
}
