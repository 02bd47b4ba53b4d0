//! Background work of masu for a paged program: readahead, and write-back of evicted pages (I/O batches of
//! `farmem_engine::pager`).
//!
//! A few threads of masu run it for each program, so that one thread's wait does not stop the others. They sleep while
//! there is no work. The pages lie in the shared segment.

use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicU64, fence};
use std::time::{Duration, Instant};

use farmem_engine::pager::{BATCH_PAGES, BatchWorker, Batches, Checksum};
use farmem_engine::segment::Doorbell;
use farmem_engine::space::Page;
use linux::shared_memory;
use xxhash_rust::xxh3::xxh3_128;

use crate::store::{Error, GetRun, Location, PAGE_BYTES, PutRun, Store};

/// Busy-waiting time for the next batch: a program that faults does so again soon.
const SHORTLY: Duration = Duration::from_micros(50);

/// Longest sleep.
const LOOK: Duration = Duration::from_millis(100);

/// Threads for each program.
pub const WORKERS: u64 = 2;

/// Worker of one program's I/O batches.
pub struct Worker<'a> {
    store: &'a dyn Store,
    layer: u32,
    /// Memory of the batches.
    batch_data: &'a [AtomicU64],
    pages: Vec<u8>,
    /// Reports the reason of a failed batch, before the program can know of it: the program ends then, and masu with
    /// it.
    says: &'a dyn Fn(&BatchError),
}

impl<'a> Worker<'a> {
    /// Worker for the program with this layer of the store. `says` is told the reason of a failed batch, before the
    /// program knows.
    pub fn new(
        store: &'a dyn Store,
        layer: u32,
        batch_data: &'a [AtomicU64],
        says: &'a dyn Fn(&BatchError),
    ) -> Worker<'a> {
        Worker { store, layer, batch_data, pages: vec![0; BATCH_PAGES as usize * PAGE_BYTES], says }
    }

    /// Runs submitted batches until `is_over`, or until the store has failed for good: of [`WORKERS`] workers the batches
    /// of this one.
    pub fn work(&mut self, which: u64, batches: &Batches<'_>, doorbell: &Doorbell<'_>, is_over: impl Fn() -> bool) {
        let mut number = which;
        let mut last_batch = Instant::now();
        while !is_over() {
            let seen = doorbell.submissions().load(SeqCst);
            match batches.run_batch(self, number) {
                Ok(true) => {
                    number += WORKERS;
                    announce(doorbell);
                    last_batch = Instant::now();
                }
                Ok(false) if last_batch.elapsed() < SHORTLY => std::hint::spin_loop(),
                Ok(false) => {
                    doorbell.masu_sleeps().fetch_add(1, SeqCst);
                    // Either the program sees that this thread sleeps, or this thread sees the batch.
                    fence(SeqCst);
                    if !batches.is_submitted(number) {
                        shared_memory::wait(doorbell.submissions(), seen, LOOK);
                        last_batch = Instant::now();
                    }
                    doorbell.masu_sleeps().fetch_sub(1, SeqCst);
                }
                // The reason has been reported.
                Err(_) => return announce(doorbell),
            }
        }
    }

    fn location(&self, page: Page) -> Location {
        Location { layer: self.layer, page: page.0.into() }
    }
}

/// Wakes the thread that waits for a completed batch.
fn announce(doorbell: &Doorbell<'_>) {
    doorbell.completions().fetch_add(1, SeqCst);
    if doorbell.program_sleeps().swap(0, SeqCst) != 0 {
        shared_memory::wake(doorbell.completions());
    }
}

/// Bytes of this number of pages.
const fn bytes(pages: u32) -> usize {
    pages as usize * PAGE_BYTES
}

impl Worker<'_> {
    fn buffer(&self, buffer: u32, bytes: usize) -> &[AtomicU64] {
        &self.batch_data[buffer as usize * PAGE_BYTES / size_of::<u64>()..][..bytes / size_of::<u64>()]
    }
}

/// Failure of an I/O batch.
#[derive(Debug, thiserror::Error)]
pub enum BatchError {
    /// The store failed for good.
    #[error(transparent)]
    Store(#[from] Error),
    /// The program wrote words that are no batch.
    #[error("the program submitted an invalid I/O batch")]
    Invalid,
}

impl BatchError {
    /// Remedy: the second line of a message.
    pub fn remedy(&self) -> &str {
        match self {
            BatchError::Store(error) => error.remedy(),
            BatchError::Invalid => "It has overwritten masu's tables: look for writes beyond its own memory.",
        }
    }
}

impl BatchWorker for Worker<'_> {
    type Trouble = BatchError;

    fn fetch(&mut self, page: Page, buffer: u32, checksums: &mut [Checksum]) -> Result<(), BatchError> {
        let (location, length) = (self.location(page), checksums.len() * PAGE_BYTES);
        let read = self.store.get(&mut [GetRun { location, bytes: &mut self.pages[..length] }]);
        read.map_err(BatchError::from).inspect_err(self.says)?;
        for (page, sum) in self.pages.chunks_exact(PAGE_BYTES).zip(checksums) {
            *sum = Checksum::from(xxh3_128(page));
        }
        for (word, bytes) in self.buffer(buffer, length).iter().zip(self.pages.as_chunks::<8>().0) {
            word.store(u64::from_ne_bytes(*bytes), Relaxed);
        }
        Ok(())
    }

    fn write(&mut self, page: Page, buffer: u32, pages: u32) -> Result<(), BatchError> {
        let mut content = std::mem::take(&mut self.pages);
        for (word, bytes) in self.buffer(buffer, bytes(pages)).iter().zip(content.as_chunks_mut::<8>().0) {
            *bytes = word.load(Relaxed).to_ne_bytes();
        }
        let done = self.store.put(&[PutRun { location: self.location(page), bytes: &content[..bytes(pages)] }]);
        self.pages = content;
        done.map_err(BatchError::from).inspect_err(self.says)
    }

    fn invalid(&mut self) -> BatchError {
        (self.says)(&BatchError::Invalid);
        BatchError::Invalid
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::store::{Span, Trouble};

    /// Store that has lost all pages.
    struct Lost;

    impl Store for Lost {
        fn name(&self) -> &str {
            "lost"
        }

        fn put(&self, _: &[PutRun<'_>]) -> Result<(), Error> {
            Err(Error::Unreachable(Trouble {
                operation: "put pages into".to_owned(),
                store: "lost".to_owned(),
                cause: "it is lost".to_owned(),
                remedy: String::new(),
            }))
        }

        fn get(&self, _: &mut [GetRun<'_>]) -> Result<(), Error> {
            self.put(&[])
        }

        fn forget(&self, _: &[Span]) -> Result<(), Error> {
            Ok(())
        }

        fn forget_layer(&self, _: u32) -> Result<(), Error> {
            Ok(())
        }

        fn close(&self) -> Result<(), Error> {
            Ok(())
        }
    }

    /// The batch tells the program of the failure after the worker is done: it ends at once, and nobody would hear the
    /// reason.
    #[test]
    fn why_a_flight_fails_is_said_before_the_program_knows() {
        let batch_data: Vec<AtomicU64> = (0..PAGE_BYTES / size_of::<u64>()).map(|_| AtomicU64::new(0)).collect();
        let said = Cell::new(0);
        let says = |error: &BatchError| {
            assert!(error.to_string().contains("it is lost"), "{error}");
            said.set(said.get() + 1);
        };
        let mut hands = Worker::new(&Lost, 0, &batch_data, &says);
        assert!(hands.fetch(Page(0), 0, &mut [Checksum::default()]).is_err());
        assert_eq!(said.get(), 1);
        assert!(hands.write(Page(0), 0, 1).is_err());
        assert_eq!(said.get(), 2);
    }
}
