//! Simulated machine for the pager: a page holds one number.

use std::collections::{BTreeMap, BTreeSet};

use farmem_engine::PAGE_BYTES;
use farmem_engine::pager::{BatchWorker, Checksum, Machine, Pager};
use farmem_engine::space::Page;

/// Pages of the program.
pub const PAGES: u64 = 1024;

/// Across the border of two chunks.
const START: u64 = 0x7000_0000_0000 + (32 << 20) - PAGES / 2 * PAGE_BYTES;

/// Address of a page.
pub const fn address(page: u64) -> u64 {
    START + page * PAGE_BYTES
}

fn index(address: u64) -> usize {
    assert!(address.is_multiple_of(PAGE_BYTES) && address >= START, "{address:#x}");
    ((address - START) / PAGE_BYTES) as usize
}

/// Reason why the program has to end.
#[derive(Debug, PartialEq, Eq)]
pub enum Failure {
    /// The store is gone.
    Store,
    /// The store holds other content than was written.
    Corrupt(Page),
}

pub struct Numbers {
    pub program: Vec<Option<u64>>,
    pub mapped: Vec<bool>,
    /// Pages that the kernel holds in memory.
    pub held: BTreeSet<u64>,
    /// Number of further pages to and from the store before it fails.
    pub fails_after: Option<u64>,
    /// Pages with wrong content in the store.
    pub lies: BTreeSet<Page>,
    /// The most frames since the last reset to 0.
    pub most: u64,
    slots: Vec<Option<u64>>,
    /// In the program and in slots.
    frames: u64,
    store: BTreeMap<Page, u64>,
    /// Memory of the I/O batches, and the number of completed ones.
    done: BTreeMap<u32, u64>,
    batches: u64,
}

impl Numbers {
    pub fn new(slots: usize) -> Numbers {
        let pages = PAGES as usize;
        Numbers {
            program: vec![None; pages],
            mapped: vec![true; pages],
            held: BTreeSet::new(),
            fails_after: None,
            lies: BTreeSet::new(),
            most: 0,
            slots: vec![None; slots],
            frames: 0,
            store: BTreeMap::new(),
            done: BTreeMap::new(),
            batches: 0,
        }
    }

    pub fn resident(&self) -> u64 {
        self.program.iter().flatten().count() as u64
    }

    pub fn frames(&self) -> u64 {
        self.frames
    }

    /// Sets the program's content of a page, or removes it.
    pub fn hold(&mut self, page: usize, content: Option<u64>) {
        let before = std::mem::replace(&mut self.program[page], content);
        self.frames = self.frames + u64::from(content.is_some()) - u64::from(before.is_some());
        self.most = self.most.max(self.frames);
    }

    /// Corrupts the page in the store, if the store holds it at all.
    pub fn lie(&mut self, page: u64) {
        let number = Page(page as u32);
        // Numbers are given chunk by chunk; any page of the store will do.
        let found = self.store.range_mut(number..).next();
        if let Some((page, content)) = found {
            *content = content.wrapping_add(1);
            self.lies.insert(*page);
        }
    }

    pub fn copy_stored(&mut self, from: Page, to: Page) {
        let Some(content) = self.store.get(&from).copied() else {
            panic!("{from:?} is marked stored and not in the store")
        };
        self.put(to, content);
        if self.lies.contains(&from) {
            self.lies.insert(to);
        }
    }

    fn put(&mut self, page: Page, content: u64) {
        self.store.insert(page, content);
        self.lies.remove(&page);
    }

    fn carried(&mut self, pages: u32) -> Result<(), Failure> {
        match &mut self.fails_after {
            Some(left) if *left < u64::from(pages) => {
                *left = 0;
                Err(Failure::Store)
            }
            Some(left) => {
                *left -= u64::from(pages);
                Ok(())
            }
            None => Ok(()),
        }
    }

    fn fill(&mut self, slot: u32, content: u64) {
        self.frames += u64::from(self.slots[slot as usize].replace(content).is_none());
        self.most = self.most.max(self.frames);
    }

    fn vacant(&self, at: usize) -> bool {
        self.mapped.get(at) == Some(&true) && self.program[at].is_none()
    }
}

impl Machine for Numbers {
    type Fatal = Failure;

    fn move_in(&mut self, slot: u32, address: u64, pages: u32) -> u32 {
        let first = index(address);
        for more in 0..pages {
            let at = first + more as usize;
            if !self.vacant(at) {
                return more;
            }
            let content = self.slots[(slot + more) as usize].take();
            assert!(content.is_some(), "slot {} has no frame", slot + more);
            self.program[at] = content;
        }
        pages
    }

    fn move_out(&mut self, address: u64, slot: u32, pages: u32) -> u32 {
        let first = index(address);
        for more in 0..pages {
            let at = first + more as usize;
            if self.held.contains(&(at as u64)) {
                return more;
            }
            let content = self.program[at].take();
            assert!(content.is_some(), "page {at} is not in the program");
            let before = std::mem::replace(&mut self.slots[(slot + more) as usize], content);
            assert_eq!(before, None, "slot {} is in use", slot + more);
        }
        pages
    }

    fn map_zeros(&mut self, address: u64, pages: u32) -> u32 {
        let first = index(address);
        let given = (0..pages).take_while(|more| {
            let at = first + *more as usize;
            let vacant = self.vacant(at);
            if vacant {
                self.hold(at, Some(0));
            }
            vacant
        });
        given.count() as u32
    }

    fn clear(&mut self, slot: u32, pages: u32) {
        (slot..slot + pages).for_each(|slot| self.fill(slot, 0));
    }

    fn checksum(&mut self, slot: u32) -> Checksum {
        let Some(content) = self.slots[slot as usize] else { panic!("the sum of slot {slot}, which has no frame") };
        Checksum([content, !content])
    }

    fn is_zeros(&mut self, slot: u32) -> bool {
        self.slots[slot as usize] == Some(0)
    }

    fn seem_zeros(&mut self, addresses: &[u64]) -> u32 {
        // As if only a part of each page were read.
        let seems = |address: &u64| self.program[index(*address)].expect("it is in the program") & 1 == 0;
        addresses.iter().enumerate().map(|(number, address)| u32::from(seems(address)) << number).sum()
    }

    fn drop_frame(&mut self, slot: u32) {
        assert!(self.slots[slot as usize].take().is_some(), "slot {slot} has no frame");
        self.frames -= 1;
    }

    fn read_store(&mut self, page: Page, slot: u32, pages: u32) -> Result<(), Failure> {
        self.carried(pages)?;
        for more in 0..pages {
            let page = page.plus(more);
            let Some(content) = self.store.get(&page).copied() else { panic!("{page:?} was never stored") };
            self.fill(slot + more, content);
        }
        Ok(())
    }

    fn write_store(&mut self, page: Page, slot: u32, pages: u32) -> Result<(), Failure> {
        self.carried(pages)?;
        for more in 0..pages {
            let Some(content) = self.slots[(slot + more) as usize] else {
                panic!("slot {} was written back without a frame", slot + more)
            };
            self.put(page.plus(more), content);
        }
        Ok(())
    }

    fn unload(&mut self, first: u32, slot: u32, pages: u32) {
        for more in 0..pages {
            let content = self.done[&(first + more)];
            self.fill(slot + more, content);
        }
    }

    fn load(&mut self, slot: u32, first: u32, pages: u32) {
        for more in 0..pages {
            let Some(content) = self.slots[(slot + more) as usize] else { panic!("slot {} leaves empty", slot + more) };
            self.done.insert(first + more, content);
        }
    }

    fn wait_for_completion(&mut self, pager: &Pager<'_>) {
        while pager.batches.is_oldest_running() {
            assert!(self.run_batch(pager), "a touch waits for a page that is not in flight");
        }
    }

    fn batch_failed(&mut self) -> Failure {
        assert_eq!(self.fails_after, Some(0), "a batch failed, and the store did not");
        Failure::Store
    }

    fn corrupt(&mut self, page: Page) -> Failure {
        Failure::Corrupt(page)
    }
}

impl Numbers {
    /// masu's background work.
    pub fn run_batch(&mut self, pager: &Pager<'_>) -> bool {
        let number = self.batches;
        let did = pager.batches.run_batch(self, number).unwrap_or(true);
        self.batches += u64::from(did);
        did
    }
}

impl BatchWorker for Numbers {
    type Trouble = Failure;

    fn fetch(&mut self, page: Page, first: u32, checksums: &mut [Checksum]) -> Result<(), Failure> {
        self.carried(checksums.len() as u32)?;
        for (more, sum) in (0..).zip(checksums) {
            let page = page.plus(more);
            let Some(content) = self.store.get(&page).copied() else { panic!("{page:?} was never stored") };
            self.done.insert(first + more, content);
            *sum = Checksum([content, !content]);
        }
        Ok(())
    }

    fn write(&mut self, page: Page, first: u32, pages: u32) -> Result<(), Failure> {
        self.carried(pages)?;
        for more in 0..pages {
            let content = self.done[&(first + more)];
            self.put(page.plus(more), content);
        }
        Ok(())
    }

    fn invalid(&mut self) -> Failure {
        panic!("the pager submitted an invalid batch")
    }
}
