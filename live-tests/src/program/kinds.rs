//! Kinds of memory, and the huge part of each.

use std::sync::atomic::{AtomicU8, Ordering::Relaxed};
use std::time::{Duration, Instant};

use units::cast::fits;

use super::Wrong;
use super::memory::{HUGE, MIB, Memory, PAGE, PRIVATE, READ_WRITE};

/// In the static build, without a preloaded library, these would only cost size.
const STATIC_BYTES: usize = if cfg!(target_feature = "crt-static") { 64 } else { 8 * MIB };

static ZEROS: [AtomicU8; STATIC_BYTES] = [const { AtomicU8::new(0) }; STATIC_BYTES];
static ONES: [AtomicU8; STATIC_BYTES] = [const { AtomicU8::new(1) }; STATIC_BYTES];

fn say(name: &str, memory: Memory) -> Result<(), Wrong> {
    println!("{name}={}/{}", memory.huge_windows()?, memory.windows());
    Ok(())
}

/// Fills it and prints its huge part.
fn filled(name: &str, memory: Memory) -> Result<Memory, Wrong> {
    memory.fill(7, 1);
    memory.check(7, 1)?;
    say(name, memory)?;
    Ok(memory)
}

/// Lines `kind=huge/possible`, `kind=advised` or `kind=not advised`; then waits for the end of its input.
pub(super) fn all() -> Result<(), Wrong> {
    for kib in [2048, 2052, 3072, 4096, 5000, 8192, 65_536 + 4] {
        filled(&format!("mmap-{kib}"), Memory::map(kib * 1024, READ_WRITE, PRIVATE)?)?;
    }
    filled("sbrk", Memory::grow_heap(16 * MIB)?)?;
    let bss = Memory { start: (&raw const ZEROS).expose_provenance(), bytes: STATIC_BYTES };
    filled("bss", bss)?;
    // The first read returns the file's contents.
    if let Some(at) = ONES.iter().position(|one| one.load(Relaxed) != 1) {
        return Err(format!("content: byte {at} of the data").into());
    }
    filled("data", Memory { start: (&raw const ONES).expose_provenance(), bytes: STATIC_BYTES })?;

    let grown = blocked(4 * MIB)?;
    grown.fill(9, 1);
    say("before-mremap", grown)?;
    let moved = grown.resize(32 * MIB)?;
    if moved.start == grown.start {
        return Err("nothing was in its way".into());
    }
    moved.part(0, grown.bytes).check(9, 1)?;
    say("moved", moved.part(0, grown.bytes))?;
    filled("mremap", moved)?;
    filled("shrunk", moved.resize(12 * MIB)?)?;

    let reserved = Memory::map(16 * MIB, libc::PROT_NONE, PRIVATE | libc::MAP_NORESERVE)?;
    let place = reserved.start.next_multiple_of(HUGE);
    filled("fixed", Memory::map_at(place, 8 * MIB, READ_WRITE, PRIVATE | libc::MAP_FIXED)?)?;
    say("populate", Memory::map(8 * MIB, READ_WRITE, PRIVATE | libc::MAP_POPULATE)?)?;
    let locked_away = Memory::map(8 * MIB, libc::PROT_NONE, PRIVATE)?;
    locked_away.protect(READ_WRITE)?;
    filled("mprotected", locked_away)?;

    let shared = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
    // Between neighbours with which they cannot become one mapping.
    for (name, flags, bytes) in [
        ("shared", shared, 8 * MIB),
        ("for-a-stack", PRIVATE | libc::MAP_STACK, 8 * MIB),
        ("small", PRIVATE, MIB),
        ("32-bit", PRIVATE | libc::MAP_32BIT, 8 * MIB),
    ] {
        let memory = Memory::map(bytes, libc::PROT_READ, flags)?;
        println!("{name}={}", if memory.is_advised()? { "advised" } else { "not advised" });
    }
    // The library's own count is read while this waits.
    let _ = std::io::stdin().read_line(&mut String::new());
    Ok(())
}

/// A mapping that cannot grow where it is.
fn blocked(bytes: usize) -> Result<Memory, Wrong> {
    let both = Memory::map(bytes + 4 * MIB, READ_WRITE, PRIVATE)?;
    let first = both.part(0, bytes);
    both.part(bytes, 4 * MIB).protect(libc::PROT_READ)?;
    Ok(first)
}

/// One allocation of `mib` MiB by malloc.
pub(super) fn allocation(mib: u64) -> Result<(), Wrong> {
    filled("malloc", Memory::allocate(usize::try_from(mib)? * MIB)?)?;
    Ok(())
}

fn deep(levels: usize) -> u8 {
    let mut frame = [0u8; 64 << 10];
    for at in (0..frame.len()).step_by(PAGE) {
        frame[at] = fits(levels % 251);
    }
    let frame = std::hint::black_box(&mut frame);
    let below = if levels == 0 { 0 } else { deep(levels - 1) };
    below.wrapping_add(frame[PAGE])
}

/// The main stack and a thread's, used deeply.
pub(super) fn stacks() -> Result<(), Wrong> {
    let here = 0u8;
    let top = (&raw const here).addr();
    std::hint::black_box(deep(100));
    let used = Memory { start: top - 6 * MIB, bytes: 6 * MIB };
    println!("main={}", used.huge_windows()?);
    let thread = std::thread::Builder::new().stack_size(16 * MIB).spawn(|| {
        let here = 0u8;
        let top = (&raw const here).addr();
        std::hint::black_box(deep(200));
        let used = Memory { start: top - 12 * MIB, bytes: 12 * MIB };
        used.huge_windows().map_err(|error| error.to_string())
    })?;
    println!("thread={}", thread.join().map_err(|_| "the thread panicked")??);
    Ok(())
}

/// Runs with an address-space limit that allows no reservation beyond the request.
pub(super) fn limited() -> Result<(), Wrong> {
    // The check of the program's own pages takes memory, which is then there.
    let first = Memory::map(PAGE, READ_WRITE, PRIVATE)?;
    first.huge_windows()?;
    first.unmap()?;
    for resource in [libc::RLIMIT_AS, libc::RLIMIT_DATA] {
        let text = std::fs::read_to_string("/proc/self/statm")?;
        let pages: usize = text.split(' ').next().ok_or("empty")?.parse()?;
        let most = (pages * PAGE + 9 * MIB) as u64;
        let limit = libc::rlimit { rlim_cur: most, rlim_max: libc::RLIM_INFINITY };
        // SAFETY: a limit of this process, and a variable that outlives the call.
        if unsafe { libc::setrlimit(resource, &raw const limit) } != 0 {
            return Err("setrlimit".into());
        }
        let memory = Memory::map(8 * MIB, READ_WRITE, PRIVATE)?;
        memory.fill(7, 1);
        memory.check(7, 1)?;
        println!("limited={}", memory.huge_windows()?);
        // Excessive requests are refused as usual, and leave nothing behind.
        for _ in 0..40 {
            if Memory::map(1 << 40, READ_WRITE, PRIVATE).is_ok() && resource == libc::RLIMIT_AS {
                return Err("beyond the limit".into());
            }
            if memory.resize(1 << 40).is_ok() {
                return Err("grown beyond the limit".into());
            }
        }
        memory.check(7, 1)?;
        memory.unmap()?;
        let limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
        // SAFETY: as above.
        unsafe { libc::setrlimit(resource, &raw const limit) };
    }
    Ok(())
}

/// Windows with one half unmapped, or made read-only, keep the rest; then waits for the end of its input.
pub(super) fn half_a_window() -> Result<(), Wrong> {
    let memory = Memory::map(16 * MIB, READ_WRITE, PRIVATE)?;
    memory.fill(7, 1);
    say("whole", memory)?;
    let first = memory.start.next_multiple_of(HUGE) - memory.start;
    let window = |index: usize| memory.part(first + index * HUGE, HUGE);
    let (unmapped, read_only) = (window(1), window(3));
    let at = |of: Memory| of.start - memory.start;
    unmapped.part(0, MIB).unmap()?;
    read_only.part(MIB, MIB).protect(libc::PROT_READ)?;
    memory.part(0, at(unmapped)).check(7, 1)?;
    let between = memory.part(at(unmapped) + MIB, at(read_only) - at(unmapped));
    between.fill(8, 1);
    between.check(8, 1)?;
    read_only.part(0, MIB).fill(9, 1);
    read_only.part(0, MIB).check(9, 1)?;
    println!("after={}", memory.huge_windows()?);
    let _ = std::io::stdin().read_line(&mut String::new());
    Ok(())
}

fn rss() -> Result<usize, Wrong> {
    let text = std::fs::read_to_string("/proc/self/statm")?;
    Ok(text.split(' ').nth(1).ok_or("short")?.parse::<usize>()? * PAGE)
}

/// Fills eight windows, unmaps them at once, and goes on for a while.
pub(super) fn short() -> Result<(), Wrong> {
    let memory = filled("filled", Memory::map(8 * HUGE, READ_WRITE, PRIVATE)?)?;
    std::thread::sleep(Duration::from_millis(10));
    memory.unmap()?;
    // Long enough for a count that does not find them.
    std::thread::sleep(Duration::from_millis(700));
    Ok(())
}

/// Touches every eighth page of `windows` windows; waits up to 20 s until the unneeded memory has been freed.
pub(super) fn thin(windows: u64) -> Result<(), Wrong> {
    // The check's own memory is allocated before.
    println!("small={}", Memory::map(HUGE, READ_WRITE, PRIVATE)?.huge_windows()?);
    rss()?;
    let before = rss()?;
    let memory = Memory::map(usize::try_from(windows)? * HUGE, READ_WRITE, PRIVATE)?;
    memory.fill(7, 8);
    let needed = memory.bytes / 8;
    // At most a tenth of all that is resident without it, the program's own data among it.
    let too_much = || -> Result<bool, Wrong> {
        let whole = rss()?;
        let extra = (whole - before).saturating_sub(needed);
        Ok(extra > (whole - extra) / 10)
    };
    println!("full={}", rss()? - before);
    println!("huge={}", memory.huge_windows()?);
    let begun = Instant::now();
    while too_much()? && begun.elapsed() < Duration::from_secs(20) {
        std::thread::sleep(Duration::from_millis(50));
    }
    memory.check(7, 8)?;
    println!("seconds={:.1}", begun.elapsed().as_secs_f64());
    println!("left={}", rss()? - before);
    println!("too-much={}", too_much()?);
    Ok(())
}
