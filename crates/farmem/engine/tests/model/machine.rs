//! Machine of numbers for the pager, and the worker of its batches.

use std::collections::{BTreeMap, BTreeSet};

use farmem_engine::pager::{BatchWorker, Checksum, Machine, Pager};
use farmem_engine::space::Page;
use farmem_engine::{MAX_UNIT_PAGES, PAGE_BYTES};

/// Machine of numbers: a page holds one.
#[derive(Default)]
pub struct Model {
    /// Pages in the program.
    pub program: BTreeMap<u64, u64>,
    /// Addresses at which the program has memory.
    pub mapped: BTreeSet<u64>,
    pub slots: BTreeMap<u32, u64>,
    pub store: BTreeMap<u32, u64>,
    /// Whether another thread of the program writes to each page as soon as it is there: its writes since the last
    /// query.
    pub restless: bool,
    pub written: BTreeMap<u64, u64>,
    /// Memory of the batches, and number of batches run.
    pub batch_data: BTreeMap<u32, u64>,
    pub batches: u64,
    /// Pages that the kernel holds.
    pub held: BTreeSet<u64>,
    pub most_frames: usize,
}

/// A run fits in the memory of one transfer.
fn fits(pages: u32) {
    assert!((1..=MAX_UNIT_PAGES).contains(&pages), "a run of {pages} pages");
}

impl Model {
    fn count(&mut self) {
        self.most_frames = self.most_frames.max(self.program.len() + self.slots.len());
    }
}

impl Machine for Model {
    type Fatal = String;

    fn move_in(&mut self, slot: u32, address: u64, pages: u32) -> u32 {
        fits(pages);
        for more in 0..pages {
            let at = address + u64::from(more) * PAGE_BYTES;
            if !self.mapped.contains(&at) || self.program.contains_key(&at) {
                return more;
            }
            let mut content = self.slots.remove(&(slot + more)).expect("there is a frame");
            if self.restless {
                content = content.wrapping_mul(5).wrapping_add(1);
                self.written.insert(at, content);
            }
            self.program.insert(at, content);
        }
        pages
    }

    fn move_out(&mut self, address: u64, slot: u32, pages: u32) -> u32 {
        fits(pages);
        for more in 0..pages {
            let at = address + u64::from(more) * PAGE_BYTES;
            if self.held.contains(&at) {
                return more;
            }
            let content = self.program.remove(&at).expect("only what is in the program is moved out");
            assert_eq!(self.slots.insert(slot + more, content), None, "a slot in use was taken");
        }
        pages
    }

    fn map_zeros(&mut self, address: u64, pages: u32) -> u32 {
        for more in 0..pages {
            let at = address + u64::from(more) * PAGE_BYTES;
            if !self.mapped.contains(&at) || self.program.contains_key(&at) {
                return more;
            }
            self.program.insert(at, 0);
            self.count();
        }
        pages
    }

    fn clear(&mut self, slot: u32, pages: u32) {
        self.slots.extend((slot..slot + pages).map(|slot| (slot, 0)));
        self.count();
    }

    fn checksum(&mut self, slot: u32) -> Checksum {
        Checksum([self.slots[&slot], !self.slots[&slot]])
    }

    fn is_zeros(&mut self, slot: u32) -> bool {
        self.slots[&slot] == 0
    }

    fn seem_zeros(&mut self, addresses: &[u64]) -> u32 {
        // As if only a part were compared.
        let seems = |address: &u64| self.program[address] & 0xff == 0;
        addresses.iter().enumerate().map(|(number, address)| u32::from(seems(address)) << number).sum()
    }

    fn drop_frame(&mut self, slot: u32) {
        self.slots.remove(&slot).expect("there is a frame");
    }

    fn read_store(&mut self, page: Page, slot: u32, pages: u32) -> Result<(), String> {
        fits(pages);
        for more in 0..pages {
            let content = self.store.get(&(page.0 + more)).ok_or("a page that was never stored was fetched")?;
            self.slots.insert(slot + more, *content);
        }
        self.count();
        Ok(())
    }

    fn write_store(&mut self, page: Page, slot: u32, pages: u32) -> Result<(), String> {
        fits(pages);
        for more in 0..pages {
            self.store.insert(page.0 + more, self.slots[&(slot + more)]);
        }
        Ok(())
    }

    fn unload(&mut self, buffer: u32, slot: u32, pages: u32) {
        fits(pages);
        self.slots.extend((0..pages).map(|more| (slot + more, self.batch_data[&(buffer + more)])));
        self.count();
    }

    fn load(&mut self, slot: u32, buffer: u32, pages: u32) {
        fits(pages);
        self.batch_data.extend((0..pages).map(|more| (buffer + more, self.slots[&(slot + more)])));
    }

    fn wait_for_completion(&mut self, pager: &Pager<'_>) {
        assert!(self.run_batch(pager), "a touch waits for a page that is not in flight");
    }

    fn batch_failed(&mut self) -> String {
        "a batch failed".to_owned()
    }

    fn corrupt(&mut self, page: Page) -> String {
        format!("corrupt: {page:?}")
    }
}

/// The model is its own worker.
impl BatchWorker for Model {
    type Trouble = String;

    fn fetch(&mut self, page: Page, buffer: u32, checksums: &mut [Checksum]) -> Result<(), String> {
        for (more, sum) in (0..).zip(checksums) {
            let content = self.store.get(&(page.0 + more)).ok_or("a page that was never stored was fetched")?;
            self.batch_data.insert(buffer + more, *content);
            *sum = Checksum([*content, !content]);
        }
        Ok(())
    }

    fn write(&mut self, page: Page, buffer: u32, pages: u32) -> Result<(), String> {
        self.store.extend((0..pages).map(|more| (page.0 + more, self.batch_data[&(buffer + more)])));
        Ok(())
    }

    fn invalid(&mut self) -> String {
        "an invalid batch".to_owned()
    }
}

impl Model {
    /// Runs masu's part.
    pub fn run_batch(&mut self, pager: &Pager<'_>) -> bool {
        let some = pager.batches.run_batch(self, self.batches).expect("a batch arrives");
        self.batches += u64::from(some);
        some
    }
}
