//! A preallocated huge page of our own, freed just before a collapse.
//!
//! `MADV_COLLAPSE` of another process finds a huge page, by compaction if need be, and then fills it under that
//! process's mmap lock. If the host of a virtual machine backs memory only on first touch, filling takes many times as
//! long as the copy, and every thread that touches the window waits. A processor first allocates the page that it freed
//! last (`free_unref_page` in mm/page_alloc.c keeps freed huge pages on a list per processor). So the call gets the
//! page that we allocated and touched earlier and free just before it: found and backed. The process that makes the
//! call keeps it (`proxy.rs`).
//!
//! Cost: 2 MiB while it is kept, and the time to find and back it, here and under no lock of others (measured on a
//! virtual machine whose host had taken the memory back: 4.4 ms here, and 0.6 instead of 5.0 ms there). Here too
//! collapse first drains the per-CPU page lists (`lru_add_drain_all`), if the first touch gave no huge page. Side
//! effect: none when the freed page goes elsewhere, to another processor or a process of another memory node; the call
//! then finds one by itself.
//!
//! Since: Linux 6.1, as collapse.

use std::cell::RefCell;
use std::os::fd::AsFd;

use rustix::io::Errno;

use crate::Pid;
use crate::advice::{Advice, advise_directly, vector};
use crate::proxy::{self, Call};
use crate::scratch::Scratch;

thread_local! {
    /// Preallocated page of a proxy, which has one thread.
    static PAGE: RefCell<Option<PreallocatedPage>> = const { RefCell::new(None) };
}

/// Has the proxy that will collapse windows of `pid` take a huge page, if it has none. It is freed by the next
/// collapse, or by [`release`]; when another proxy serves that call, the call finds a page by itself.
///
/// # Errors
/// The kernel's answer: `NOMEM` when no huge page is available, `INVAL` without collapse.
pub fn prepare(pid: Pid) -> Result<(), Errno> {
    fn step(_: &mut Call<'_>) -> Result<u64, Errno> {
        PAGE.with_borrow_mut(|page| {
            if page.is_none() {
                *page = Some(PreallocatedPage::take()?);
            }
            Ok(0)
        })
    }
    proxy::about(pid, |proxy| proxy.call(step, [0; 4], None)).map(drop)
}

/// Frees the page of [`prepare`].
pub fn release(pid: Pid) {
    fn step(_: &mut Call<'_>) -> Result<u64, Errno> {
        free();
        Ok(0)
    }
    // A proxy that was abandoned frees it with all its memory.
    let _ = proxy::about(pid, |proxy| proxy.call(step, [0; 4], None));
}

/// Frees the page of this thread.
pub(crate) fn free() {
    PAGE.take();
}

/// A huge page that is in memory. Dropping it frees it.
#[derive(Debug)]
struct PreallocatedPage {
    _memory: Scratch,
}

impl PreallocatedPage {
    /// Takes a huge page from the kernel, which may have to compact for it. It is taken at the first touch, if the
    /// host's THP mode allows that, since the kernel yields to others there after each 4 KiB; else by collapse.
    fn take() -> Result<PreallocatedPage, Errno> {
        let memory = Scratch::window_wanted_huge()?;
        let own = Pid::own().open().map_err(|_| Errno::SRCH)?;
        let range = memory.range();
        let vectors = [vector(range.start().0, range.bytes().0)];
        advise_directly(own.as_fd(), &vectors, Advice::Collapse as usize)?;
        Ok(PreallocatedPage { _memory: memory })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pagemap::Pagemap;

    #[test]
    fn it_is_a_huge_page_until_it_is_dropped() {
        // A kernel without collapse cannot use one.
        let page = match PreallocatedPage::take() {
            Err(Errno::INVAL | Errno::PERM) => return println!("SKIP: no collapse here"),
            other => other.unwrap(),
        };
        let range = page._memory.range();
        let huge = |runs: Vec<crate::pagemap::Run>| runs.iter().any(|run| run.huge && run.range == range);
        let pagemap = Pagemap::open(Pid::own()).unwrap();
        assert!(huge(pagemap.scan(range).unwrap()));
        drop(page);
        assert!(!huge(pagemap.scan(range).unwrap()));
    }
}
