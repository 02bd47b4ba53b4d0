//! All pages of a trace, and the lists on which those in memory stand. Pure.
//!
//! A page is on one list or on none, and being on none means that it is not in memory. The lists go through the pages
//! themselves: to move one costs the same, however many there are.

use aging::class::Class;

/// No page.
const NONE: u32 = u32::MAX;

/// A list of pages in memory. The newest is at its head; the kernel takes from its tail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum List {
    /// Of anonymous and shared memory. With the paper's lists it is not used.
    InactiveAnon,
    /// The same, used more than once; with the paper's split lists, whatever is mapped (active-mapped).
    ActiveAnon,
    /// Of files; with the paper's lists, the one inactive list.
    InactiveFile,
    /// The same, used more than once; with the paper's lists, the active one, or active-unmapped.
    ActiveFile,
    /// Kept from aging, by class: locked, as the kernel sees it.
    Kept(Class),
}

/// How many lists there are.
pub(super) const LISTS: usize = 9;

impl List {
    pub(super) fn index(self) -> usize {
        match self {
            List::InactiveAnon => 0,
            List::ActiveAnon => 1,
            List::InactiveFile => 2,
            List::ActiveFile => 3,
            List::Kept(class) => 4 + class as usize,
        }
    }

    fn of(number: u8) -> Option<List> {
        match number {
            0 => Some(List::InactiveAnon),
            1 => Some(List::ActiveAnon),
            2 => Some(List::InactiveFile),
            3 => Some(List::ActiveFile),
            _ => Class::ALL.get(usize::from(number).checked_sub(4)?).map(|class| List::Kept(*class)),
        }
    }
}

/// What is known of a page beside its list.
pub(super) mod flag {
    /// A mapping has used it since the kernel last looked (the accessed bit of a page table entry).
    pub(crate) const YOUNG: u8 = 1;
    /// The kernel has heard of a use (`PG_referenced`).
    pub(crate) const REFERENCED: u8 = 2;
    /// It was active at some time (`PG_workingset`); when it has gone, its shadow says so.
    pub(crate) const WORKINGSET: u8 = 4;
    /// A mapping has it.
    pub(crate) const MAPPED: u8 = 8;
    /// It has gone, and left a shadow that says when.
    pub(crate) const SHADOW: u8 = 16;
    /// It was in memory at some time.
    pub(crate) const SEEN: u8 = 32;
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Page {
    newer: u32,
    older: u32,
    /// Which of the trace's files.
    pub(super) file: u32,
    list: u8,
    pub(super) flags: u8,
    pub(super) class: Class,
    /// In memory and kept: the clock of pressure at its last use. Gone: what its shadow says.
    pub(super) stamp: u64,
}

#[derive(Clone, Copy, Debug)]
struct Ends {
    head: u32,
    tail: u32,
    pages: u64,
}

#[derive(Clone, Debug)]
pub(super) struct Pages {
    pages: Vec<Page>,
    lists: [Ends; LISTS],
    resident: u64,
}

impl Pages {
    /// Files that follow each other, of so many pages, all of them on no list.
    pub(super) fn of(files: impl Iterator<Item = (Class, u64)>) -> Pages {
        let mut pages = Vec::new();
        for ((class, count), file) in files.zip(0_u32..) {
            let page = Page { newer: NONE, older: NONE, file, list: u8::MAX, flags: 0, class, stamp: 0 };
            pages.extend((0..count).map(|_| page));
        }
        Pages { pages, lists: [Ends { head: NONE, tail: NONE, pages: 0 }; LISTS], resident: 0 }
    }

    pub(super) fn get(&self, page: u32) -> &Page {
        &self.pages[page as usize]
    }

    pub(super) fn get_mut(&mut self, page: u32) -> &mut Page {
        &mut self.pages[page as usize]
    }

    pub(super) fn has(&self, page: u32, flags: u8) -> bool {
        self.get(page).flags & flags != 0
    }

    pub(super) fn set(&mut self, page: u32, flags: u8) {
        self.get_mut(page).flags |= flags;
    }

    pub(super) fn clear(&mut self, page: u32, flags: u8) {
        self.get_mut(page).flags &= !flags;
    }

    /// Clears the flag, and says whether it was set.
    pub(super) fn take(&mut self, page: u32, flags: u8) -> bool {
        let was = self.has(page, flags);
        self.clear(page, flags);
        was
    }

    /// Where it is; nothing if it is not in memory.
    pub(super) fn list(&self, page: u32) -> Option<List> {
        List::of(self.get(page).list)
    }

    pub(super) fn len(&self, list: List) -> u64 {
        self.lists[list.index()].pages
    }

    /// The one that has been on the list longest.
    pub(super) fn oldest(&self, list: List) -> Option<u32> {
        Some(self.lists[list.index()].tail).filter(|page| *page != NONE)
    }

    /// Pages on any list.
    pub(super) fn resident(&self) -> u64 {
        self.resident
    }

    /// Where each page in memory is, and of which class it is.
    pub(super) fn residents(&self) -> impl Iterator<Item = (List, Class)> {
        self.pages.iter().filter_map(|page| List::of(page.list).map(|list| (list, page.class)))
    }

    /// Takes it from the list on which it is, if it is on any.
    pub(super) fn remove(&mut self, page: u32) {
        let Page { newer, older, list, .. } = *self.get(page);
        let Some(list) = List::of(list) else { return };
        if newer == NONE {
            self.lists[list.index()].head = older;
        } else {
            self.get_mut(newer).older = older;
        }
        if older == NONE {
            self.lists[list.index()].tail = newer;
        } else {
            self.get_mut(older).newer = newer;
        }
        self.lists[list.index()].pages -= 1;
        self.resident -= 1;
        let page = self.get_mut(page);
        (page.newer, page.older, page.list) = (NONE, NONE, u8::MAX);
    }

    /// Puts it at the head of the list, wherever it was.
    pub(super) fn put(&mut self, page: u32, list: List) {
        self.remove(page);
        let head = self.lists[list.index()].head;
        let own = self.get_mut(page);
        (own.newer, own.older) = (NONE, head);
        own.list = u8::try_from(list.index()).unwrap_or(u8::MAX);
        if head == NONE {
            self.lists[list.index()].tail = page;
        } else {
            self.get_mut(head).newer = page;
        }
        self.lists[list.index()].head = page;
        self.lists[list.index()].pages += 1;
        self.resident += 1;
    }

    /// Goes through everything and says what does not agree; for tests, since it takes long.
    #[cfg(test)]
    pub(super) fn check(&self) -> Result<(), String> {
        let mut seen = vec![false; self.pages.len()];
        for (index, ends) in self.lists.iter().enumerate() {
            let (mut newer, mut page, mut count) = (NONE, ends.head, 0);
            while page != NONE {
                let own = self.get(page);
                if std::mem::replace(&mut seen[page as usize], true) {
                    return Err(format!("page {page} is on two lists, or twice on one"));
                }
                if own.newer != newer || usize::from(own.list) != index {
                    return Err(format!("page {page} does not know where it is"));
                }
                (newer, page, count) = (page, own.older, count + 1);
            }
            if ends.tail != newer || ends.pages != count {
                return Err(format!("list {index} has {count} pages and says {}", ends.pages));
            }
        }
        let resident = seen.iter().filter(|seen| **seen).count() as u64;
        let on_lists = self.pages.iter().filter(|page| page.list != u8::MAX).count() as u64;
        if (resident, on_lists) != (self.resident, self.resident) {
            return Err(format!("{resident} pages are in memory, {on_lists} say so, {} are counted", self.resident));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_page_is_on_one_list_or_on_none_whatever_is_done(
            moves in prop::collection::vec((0..20_u32, 0..12_usize), 0..200),
        ) {
            let mut pages = Pages::of([(Class::Code, 7), (Class::Cache, 13)].into_iter());
            let mut model: Vec<Vec<u32>> = vec![Vec::new(); LISTS];
            for (page, list) in moves {
                model.iter_mut().for_each(|list| list.retain(|other| *other != page));
                match List::of(u8::try_from(list).unwrap()) {
                    Some(to) => {
                        pages.put(page, to);
                        model[list].push(page);
                    }
                    None => pages.remove(page),
                }
                pages.check().map_err(TestCaseError::fail)?;
            }
            for (list, of_model) in (0..).zip(&model) {
                let list = List::of(list).unwrap();
                prop_assert_eq!(pages.len(list), of_model.len() as u64);
                prop_assert_eq!(pages.oldest(list), of_model.first().copied());
            }
        }
    }
}
