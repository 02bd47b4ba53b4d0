//! Many threads and many child processes, with constant checks of their memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use contract::status_page;
use units::spread::Random;

use super::Wrong;
use super::memory::{HUGE, MIB, Memory, PAGE, PRIVATE, READ_WRITE};

/// `threads` threads map, move, cut and unmap for `seconds`, while children are forked and the switch for alignment on
/// the status page changes.
pub(super) fn churn(threads: u64, seconds: u64) -> Result<(), Wrong> {
    let over = Arc::new(AtomicBool::new(false));
    let rounds = Arc::new(AtomicU64::new(0));
    let workers: Vec<_> = (0..threads)
        .map(|number| {
            let (over, rounds) = (Arc::clone(&over), Arc::clone(&rounds));
            std::thread::spawn(move || {
                let mut random = Random::seeded(number);
                while !over.load(Relaxed) {
                    one_round(&mut random).map_err(|error| error.to_string())?;
                    rounds.fetch_add(1, Relaxed);
                }
                Ok::<(), String>(())
            })
        })
        .collect();
    let switch = own_switch()?;
    let kept = Memory::map(8 * MIB, READ_WRITE, PRIVATE)?;
    kept.fill(5, 1);
    let begun = Instant::now();
    let (mut turned, mut forks) = (0u32, 0u32);
    while begun.elapsed() < Duration::from_secs(seconds) && workers.iter().all(|worker| !worker.is_finished()) {
        if let Some(word) = switch {
            word.store(turned % 2, Relaxed);
        }
        turned += 1;
        if turned.is_multiple_of(16) {
            forks += 1;
            in_a_fork(|| {
                let new = Memory::map(6 * MIB, READ_WRITE, PRIVATE)?;
                new.fill(u64::from(turned), 16);
                new.check(u64::from(turned), 16)?;
                kept.check(5, 64)
            })?;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    over.store(true, Relaxed);
    for worker in workers {
        worker.join().map_err(|_| "a thread panicked")??;
    }
    kept.check(5, 1)?;
    println!("rounds={}", rounds.load(Relaxed));
    println!("forks={forks}");
    println!("turned={}", if switch.is_some() { turned } else { 0 });
    Ok(())
}

fn one_round(random: &mut Random) -> Result<(), Wrong> {
    let seed = random.number() >> 50;
    let pages = |random: &mut Random| (1 + random.below(1500)) * PAGE;
    let mut memory = Memory::map(pages(random), READ_WRITE, PRIVATE)?;
    memory.fill(seed, 16);
    if random.below(2) == 0 {
        let before = memory.bytes;
        memory = memory.resize(pages(random))?;
        memory.part(0, before.min(memory.bytes)).check(seed, 16)?;
        memory.fill(seed, 16);
    }
    if random.below(3) == 0 && memory.bytes > HUGE {
        memory.part(MIB, memory.bytes - MIB).unmap()?;
        memory = memory.part(0, MIB);
    }
    memory.check(seed, 16)?;
    memory.unmap()
}

/// The word with this process's switches, on the status page mapped in it; none when it runs without the library.
fn own_switch() -> Result<Option<&'static AtomicU32>, Wrong> {
    let all = linux::maps::maps(&linux::Rooted::host(), linux::Pid::own())?;
    let Some(mapping) = all.iter().find(|mapping| mapping.path.text().contains(status_page::NAME)) else {
        return Ok(None);
    };
    let start = usize::try_from(mapping.range.start().0)?;
    let words = std::ptr::with_exposed_provenance::<AtomicU32>(start);
    // SAFETY: `WORDS` words are mapped there, for as long as this process lives; all their users access them as
    // atomics.
    let words = unsafe { std::slice::from_raw_parts(words, status_page::WORDS) };
    let copy: Vec<u32> = words.iter().map(|word| word.load(Relaxed)).collect();
    let found = status_page::find_switches(&copy, std::process::id());
    Ok(found.and_then(|(offset, _)| words.get(offset / 4)))
}

/// Does the work in a forked copy of this process, and waits for it.
fn in_a_fork(work: impl FnOnce() -> Result<(), Wrong>) -> Result<(), Wrong> {
    // SAFETY: the copy makes system calls and allocates only to report an error, and ends.
    let child = unsafe { libc::fork() };
    if child < 0 {
        return Err("fork".into());
    }
    if child == 0 {
        let status = i32::from(work().is_err());
        // SAFETY: ends the copy, and nothing of it is cleaned up.
        unsafe { libc::_exit(status) };
    }
    end_of(child)
}

fn end_of(child: i32) -> Result<(), Wrong> {
    let mut status = 0;
    // SAFETY: a child of ours, and a variable of ours.
    let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
    if (waited, status) == (child, 0) { Ok(()) } else { Err(format!("a child ended with {status:#x}").into()) }
}

/// `count` children at once, each with private memory; they end by exit.
pub(super) fn many_children(count: u64) -> Result<(), Wrong> {
    let (wait, go) = std::io::pipe()?;
    let mut children = Vec::new();
    for number in 0..count {
        // SAFETY: this process has one thread, so that the copy may call anything.
        let child = unsafe { libc::fork() };
        if child < 0 {
            return Err(format!("fork {number}: {}", std::io::Error::last_os_error()).into());
        }
        if child == 0 {
            drop(go);
            let memory = Memory::map(2 * MIB, READ_WRITE, PRIVATE)?;
            memory.part(0, PAGE).fill(number, 1);
            let _ = std::io::Read::read(&mut &wait, &mut [0]);
            std::process::exit(i32::from(memory.part(0, PAGE).check(number, 1).is_err()));
        }
        children.push(child);
    }
    drop((wait, go));
    for child in children {
        end_of(child)?;
    }
    println!("children={count}");
    Ok(())
}
