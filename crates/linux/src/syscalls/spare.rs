//! A huge page of our own, kept only to be freed at the right moment.
//!
//! `MADV_COLLAPSE` of another process finds a huge page, by compaction if need be, and then fills it under that process's mmap
//! lock. Where the host of a virtual machine backs memory only when it is touched, that filling takes many times as long as
//! the copying, and whoever touches the window waits. What a processor freed last it allocates first (`free_unref_page` in
//! mm/page_alloc.c keeps freed huge pages on a list per processor): so a page that we allocated and touched before, and
//! free just before the call, is the one that the call gets: found and backed. The process that makes the call keeps it (`proxy.rs`).
//!
//! Cost: 2 MiB for as long as it is kept, and what the finding and backing take, here and under no lock of others
//! (measured on a virtual machine whose host had taken the memory back: 4.4 ms here, and 0.6 instead of 5.0 ms there).
//! Here too collapse first drains the per-CPU page lists (`lru_add_drain_all`), where the first touch did not do. Side
//! effect: none when the freed page goes elsewhere, to another processor or a process of another memory node; the
//! call then finds one by itself.
//!
//! Since: Linux 6.1, as collapse.

use std::cell::RefCell;
use std::os::fd::AsFd;

use rustix::io::Errno;

use crate::Pid;
use crate::process_madvise::{Advice, advise_directly, vector};
use crate::proxy::{self, Call};
use crate::scratch::Scratch;

thread_local! {
    /// Of a proxy, which has one thread.
    static SPARE: RefCell<Option<SparePage>> = const { RefCell::new(None) };
}

/// Has the proxy that will collapse windows of `pid` take a huge page, if it has none. It is freed by the next collapse, or by [`release`]; when
/// another proxy serves that call, the call finds a page by itself.
///
/// # Errors
/// The kernel's answer: `NOMEM` when there is none to be had, `INVAL` without collapse.
pub fn prepare(pid: Pid) -> Result<(), Errno> {
    fn step(_: &mut Call<'_>) -> Result<u64, Errno> {
        SPARE.with_borrow_mut(|spare| {
            if spare.is_none() {
                *spare = Some(SparePage::take()?);
            }
            Ok(0)
        })
    }
    proxy::about(pid, |proxy| proxy.call(step, [0; 4], None)).map(drop)
}

/// Frees what [`prepare`] took.
pub fn release(pid: Pid) {
    fn step(_: &mut Call<'_>) -> Result<u64, Errno> {
        free();
        Ok(0)
    }
    // A proxy that was left frees it with all it has.
    let _ = proxy::about(pid, |proxy| proxy.call(step, [0; 4], None));
}

/// Frees the page of this thread.
pub(crate) fn free() {
    SPARE.take();
}

/// A huge page that is in memory. Dropped, it is free.
#[derive(Debug)]
struct SparePage {
    _memory: Scratch,
}

impl SparePage {
    /// Takes a huge page from the kernel; it may have to be compacted for. At the first touch, if the host's THP mode
    /// allows that, for there the kernel makes way for others after each 4 KiB; else by collapse.
    fn take() -> Result<SparePage, Errno> {
        let memory = Scratch::window_wanted_huge()?;
        let own = Pid::own().open().map_err(|_| Errno::SRCH)?;
        let range = memory.range();
        let vectors = [vector(range.start().0, range.bytes().0)];
        advise_directly(own.as_fd(), &vectors, Advice::Collapse as usize)?;
        Ok(SparePage { _memory: memory })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pagemap::Pagemap;

    #[test]
    fn it_is_a_huge_page_until_it_is_dropped() {
        // A kernel without collapse has no use for one.
        let spare = match SparePage::take() {
            Err(Errno::INVAL | Errno::PERM) => return println!("SKIP: no collapse here"),
            other => other.unwrap(),
        };
        let range = spare._memory.range();
        let huge = |runs: Vec<crate::pagemap::Run>| runs.iter().any(|run| run.huge && run.range == range);
        let pagemap = Pagemap::open(Pid::own()).unwrap();
        assert!(huge(pagemap.scan(range).unwrap()));
        drop(spare);
        assert!(!huge(pagemap.scan(range).unwrap()));
    }
}
