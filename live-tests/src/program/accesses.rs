//! A trace of page accesses, run for real and compared with the result of `sim::reclaim`.
//!
//! `accesses TRACE PROCS STAT EVERY FD…`: puts itself into the cgroup with the file PROCS, and runs the text in the
//! file TRACE on the files behind the descriptors, one for each file line. Before each access it asks with mincore(2)
//! whether the page is in memory, which changes nothing for the kernel's lists. After each EVERY pages, if that is not
//! zero, it reads STAT, which has the kernel add up its sums over the cgroup. Prints `PHASE FILE HITS MISSES` for each
//! phase and file, `PHASE major FAULTS MISSES` with the major faults of the process and the touches that missed, and in
//! the end `group WHAT BYTES 0` for each counter of the cgroup.

use std::fs::File;
use std::io::{Read, Seek};
use std::os::fd::{BorrowedFd, RawFd};
use std::path::Path;
use std::ptr::NonNull;

use aging::class::Class;
use rustix::mm::{MapFlags, ProtFlags};
use sim::reclaim::trace::{Access, Step, Trace};

use super::Wrong;

const PAGE: usize = 4096;

/// A file of the trace, and a mapping of all of it.
struct Mapped {
    file: BorrowedFd<'static>,
    start: NonNull<u8>,
}

impl Mapped {
    /// Maps an inherited descriptor.
    fn of(fd: RawFd, class: Class, pages: u64) -> Result<Mapped, Wrong> {
        // SAFETY: the parent process left it open, and no code closes it.
        let file = unsafe { BorrowedFd::borrow_raw(fd) };
        let length = usize::try_from(pages)? * PAGE;
        let protection = match class {
            Class::Code => ProtFlags::READ | ProtFlags::EXEC,
            Class::ReadOnly | Class::Cache => ProtFlags::READ,
            Class::Data | Class::Shared => return Err("only traces of files are done".into()),
        };
        // SAFETY: a new mapping at a place that the kernel chooses; it stays until the end.
        let start = unsafe { rustix::mm::mmap(std::ptr::null_mut(), length, protection, MapFlags::SHARED, file, 0) }?;
        Ok(Mapped { file, start: NonNull::new(start.cast()).ok_or("a mapping at zero")? })
    }

    /// Whether the page is in memory.
    fn has(&self, page: u32) -> Result<bool, Wrong> {
        let mut resident = 0_u8;
        let start = self.start.as_ptr().wrapping_add(page as usize * PAGE);
        // SAFETY: the answer for one page fits in one byte.
        if unsafe { libc::mincore(start.cast(), PAGE, &raw mut resident) } != 0 {
            return Err(std::io::Error::last_os_error().into());
        }
        Ok(resident & 1 == 1)
    }

    fn touch(&self, page: u32) {
        // SAFETY: the trace's parser has checked that the file has the page, and all of the file is mapped, to be read.
        unsafe { self.start.as_ptr().wrapping_add(page as usize * PAGE).read_volatile() };
    }
}

#[derive(Clone, Copy, Default)]
struct Seen {
    hits: u64,
    misses: u64,
}

fn major_faults() -> Result<u64, Wrong> {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the kernel fills in the structure, which is all zeros before.
    let usage = unsafe {
        libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr());
        usage.assume_init()
    };
    Ok(u64::try_from(usage.ru_majflt)?)
}

/// Stays on the processor on which it is: each has pages under way, that are on no list yet and do not go while it does nothing.
fn stay_here() -> Result<(), Wrong> {
    let mut here = rustix::thread::CpuSet::new();
    here.set(rustix::thread::sched_getcpu());
    Ok(rustix::thread::sched_setaffinity(None, &here)?)
}

/// Replays the whole trace.
pub(super) fn replay(arguments: &[String]) -> Result<(), Wrong> {
    let [_, trace, procs, stat, every, fds @ ..] = arguments else { return Err("accesses: too few arguments".into()) };
    let every: u64 = every.parse()?;
    let trace = Trace::parse(&std::fs::read_to_string(trace)?)?;
    let files: Vec<Mapped> = (trace.files().iter().zip(fds))
        .map(|(file, fd)| Mapped::of(fd.parse()?, file.class, file.pages.0))
        .collect::<Result<_, Wrong>>()?;
    let mut sums = vec![vec![Seen::default(); files.len()]; trace.phases().len()];
    let mut major = vec![(0_u64, 0_u64); trace.phases().len()];
    let (mut buffer, mut done, mut phase) = ([0_u8; PAGE], 0_u64, 0);
    stay_here()?;
    std::fs::write(procs, "0")?;
    let mut stat = File::open(stat)?;
    let mut text = String::with_capacity(PAGE);
    let mut faults = major_faults()?;
    for step in trace.steps() {
        match step {
            Step::Use { access, file, first, count } => {
                for page in first..first + count {
                    let (of, seen) = (&files[file], &mut sums[phase][file]);
                    if of.has(page)? {
                        seen.hits += 1;
                    } else {
                        seen.misses += 1;
                        major[phase].1 += u64::from(access == Access::Touch);
                    }
                    let at = u64::from(page) * PAGE as u64;
                    match access {
                        Access::Touch => of.touch(page),
                        Access::Read => drop(rustix::io::pread(of.file, &mut buffer, at)?),
                        Access::Write => drop(rustix::io::pwrite(of.file, &buffer, at)?),
                    }
                    done += 1;
                    if every > 0 && done.is_multiple_of(every) {
                        text.clear();
                        stat.read_to_string(&mut text)?;
                        stat.rewind()?;
                    }
                }
            }
            Step::Wait { us } => std::thread::sleep(std::time::Duration::from_micros(us)),
            Step::Levels => (),
            Step::Phase(next) => {
                let now = major_faults()?;
                major[phase].0 += now - faults;
                (phase, faults) = (next, now);
            }
        }
    }
    major[phase].0 += major_faults()? - faults;
    // Nothing was printed before, since that would have wanted memory of the group.
    for ((name, by_file), (faults, missed)) in trace.phases().iter().zip(&sums).zip(major) {
        for (file, seen) in trace.files().iter().zip(by_file) {
            println!("{name} {} {} {}", file.name, seen.hits, seen.misses);
        }
        println!("{name} major {faults} {missed}");
    }
    // The cgroup's other charges are counted while they are still there.
    text.clear();
    stat.rewind()?;
    stat.read_to_string(&mut text)?;
    let v1 = Path::new(procs).with_file_name("memory.usage_in_bytes");
    let usage =
        std::fs::read_to_string(&v1).or_else(|_| std::fs::read_to_string(v1.with_file_name("memory.current")))?;
    println!("group usage {} 0", usage.trim());
    for line in text.lines() {
        if let Some((key @ ("cache" | "file"), bytes)) = line.split_once(' ') {
            println!("group {key} {bytes} 0");
        }
    }
    Ok(())
}
