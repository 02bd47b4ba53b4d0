//! All pages of a trace, and the lists of those in memory. Pure.
//!
//! A page on a list is in memory, and a page on no list is not. The lists are linked through the pages: moving a page
//! has constant cost.

use units::cast::fits;

use aging::class::Class;

/// No page.
const NONE: u32 = u32::MAX;

/// List of pages in memory. The newest page is at the head; the kernel reclaims from the tail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum List {
    /// Anonymous and shared memory. Not used with the paper's lists.
    InactiveAnon,
    /// The same, used more than once; with the paper's split lists, all mapped pages (active-mapped).
    ActiveAnon,
    /// File pages; with the paper's lists, the one inactive list.
    InactiveFile,
    /// The same, used more than once; with the paper's lists, the active list, or active-unmapped.
    ActiveFile,
    /// Kept from aging, by class: mlocked, from the kernel's view.
    Kept(Class),
}

/// Number of lists.
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

/// Flags of a page.
pub(super) mod flag {
    /// A mapping has used it since the last scan (accessed bit of a page table entry).
    pub(crate) const YOUNG: u8 = 1;
    /// The kernel knows of a use (`PG_referenced`).
    pub(crate) const REFERENCED: u8 = 2;
    /// It was active at some time (`PG_workingset`); its shadow keeps this.
    pub(crate) const WORKINGSET: u8 = 4;
    /// A mapping contains it.
    pub(crate) const MAPPED: u8 = 8;
    /// It was evicted, and left a shadow with the time.
    pub(crate) const SHADOW: u8 = 16;
    /// It was in memory at some time.
    pub(crate) const SEEN: u8 = 32;
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Page {
    newer: u32,
    older: u32,
    /// Index in the trace's files.
    pub(super) file: u32,
    list: u8,
    pub(super) flags: u8,
    pub(super) class: Class,
    /// In memory and kept: clock of pressure at the last use. Evicted: time of the shadow.
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
    /// Consecutive files of these lengths, all pages on no list.
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

    /// Clears the flag, and returns whether it was set.
    pub(super) fn take(&mut self, page: u32, flags: u8) -> bool {
        let was = self.has(page, flags);
        self.clear(page, flags);
        was
    }

    /// List of a page; `None` if it is not in memory.
    pub(super) fn list(&self, page: u32) -> Option<List> {
        List::of(self.get(page).list)
    }

    pub(super) fn len(&self, list: List) -> u64 {
        self.lists[list.index()].pages
    }

    /// Page that has been on the list longest.
    pub(super) fn oldest(&self, list: List) -> Option<u32> {
        Some(self.lists[list.index()].tail).filter(|page| *page != NONE)
    }

    /// Number of pages on any list.
    pub(super) fn resident(&self) -> u64 {
        self.resident
    }

    /// List and class of each page in memory.
    pub(super) fn residents(&self) -> impl Iterator<Item = (List, Class)> {
        self.pages.iter().filter_map(|page| List::of(page.list).map(|list| (list, page.class)))
    }

    /// Removes a page from its list, if it is on one.
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

    /// Moves a page to the head of the list, from any list or none.
    pub(super) fn put(&mut self, page: u32, list: List) {
        self.remove(page);
        let head = self.lists[list.index()].head;
        let own = self.get_mut(page);
        (own.newer, own.older) = (NONE, head);
        own.list = fits(list.index());
        if head == NONE {
            self.lists[list.index()].tail = page;
        } else {
            self.get_mut(head).newer = page;
        }
        self.lists[list.index()].head = page;
        self.lists[list.index()].pages += 1;
        self.resident += 1;
    }

    /// Checks all lists and describes the first inconsistency; slow, so for tests only.
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
