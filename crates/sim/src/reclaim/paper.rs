//! Page lists of the paper: one active and one inactive list for all memory (figure 2), or two active lists (section
//! 5). Pure.
//!
//! As of Linux 2.6: a page of the page cache is inserted into the inactive list; a mapped page into the active one, or
//! into its own active list with split lists (section 4: "page は確保時や inactive-list から戻される際に、使用目的を検査され、属する active-list
//! に入れられる"). Used pages on the inactive list go back to an active list at the scan. The scan of an active list covers
//! as many pages as that of the inactive list if the latter is half as long, fewer if it is longer, and up to twice as
//! many if it is shorter.
//!
//! With one list, mapped pages at its tail are put back unseen while they are few or memory is easy to reclaim (section
//! 4: "一定の割合で無条件に active-list に戻す"): `mapped % / 2 + distress + swappiness` below 100. Distress is 0 to 100 and grows
//! with the effort of the last reclaim. This test scans each page; a long row of adjacent mapped pages therefore delays
//! the reclaim.
//!
//! With two lists, the mapped one is aged at (100 − `mapped_page_cost`) % of the rate of the other. We differ: the
//! patch under the paper's work (Piggin 2004) weighs the two lists by another formula, which the paper does not give;
//! at 100 they agree.

use super::Lists;
use super::kernel::{BATCH, PRIORITY};
use super::memory::Memory;
use super::pages::{List, flag};
use super::trace::Access;

const UNMAPPED: usize = 0;
const MAPPED: usize = 1;
/// Active lists by number: unmapped pages or all pages, and mapped pages.
const ACTIVE: [List; 2] = [List::ActiveFile, List::ActiveAnon];
const INACTIVE: List = List::InactiveFile;
/// Unit of due pages: hundredths.
const WHOLE: u64 = 100;

impl Memory {
    pub(super) fn active_of_paper(&self, page: u32) -> List {
        let has_own = matches!(self.aging.lists, Lists::Split { .. }) && self.pages.has(page, flag::MAPPED);
        ACTIVE[usize::from(has_own)]
    }

    /// Inserts a page that was not in memory.
    pub(super) fn add_of_paper(&mut self, access: Access, page: u32) {
        if access == Access::Touch {
            self.mapped += 1;
            self.pages.set(page, flag::MAPPED);
        }
        let list = if access == Access::Touch { self.active_of_paper(page) } else { INACTIVE };
        self.pages.put(page, list);
    }

    /// Frees some pages, if possible.
    pub(super) fn reclaim_of_paper(&mut self) -> bool {
        let mut freed = 0;
        for priority in (0..=PRIORITY).rev() {
            let inactive = self.pages.len(INACTIVE);
            let count = (inactive >> priority).max(2 * BATCH);
            // At the last priority, pages are spared only by the lists themselves.
            let spares = self.spares_mapped(priority);
            for which in [UNMAPPED, MAPPED] {
                let rate = match self.aging.lists {
                    Lists::Split { mapped_page_cost } if which == MAPPED => WHOLE - u64::from(mapped_page_cost.get()),
                    _ => WHOLE,
                };
                let active = self.pages.len(ACTIVE[which]);
                let share = count * active / (2 * (inactive | 1));
                self.due[which] += (share.min(2 * count) + 1) * rate;
                let due = self.due[which] / WHOLE;
                if due >= BATCH || priority < PRIORITY {
                    self.due[which] = 0;
                    self.age_of_paper(which, due, spares);
                }
            }
            freed += self.look_at_inactive_of_paper(count);
            self.last_priority = priority;
            if freed >= BATCH {
                break;
            }
        }
        freed > 0
    }

    /// True if mapped pages on the one list are put back.
    fn spares_mapped(&self, priority: u32) -> bool {
        let distress = 100_u64 >> self.last_priority.min(priority).min(63);
        let mapped_percent = self.mapped * 100 / self.machine.memory.0.max(1);
        self.aging.lists == Lists::One && mapped_percent / 2 + distress + u64::from(self.machine.swappiness) < 100
    }

    fn age_of_paper(&mut self, which: usize, count: u64, spares_mapped: bool) {
        for _ in 0..count.min(self.pages.len(ACTIVE[which])) {
            let Some(page) = self.pages.oldest(ACTIVE[which]) else { break };
            self.work.active_scans += 1;
            let is_mapped = self.pages.has(page, flag::MAPPED);
            let can_go = self.is_of_file(page) || self.has_swap_left();
            let stays = !can_go || is_mapped && (spares_mapped || self.pages.take(page, flag::YOUNG));
            let list = if stays { self.active_of_paper(page) } else { INACTIVE };
            self.pages.put(page, list);
        }
    }

    fn look_at_inactive_of_paper(&mut self, count: u64) -> u64 {
        let mut freed = 0;
        for _ in 0..count.min(self.pages.len(INACTIVE)) {
            if freed >= BATCH {
                break;
            }
            let Some(page) = self.pages.oldest(INACTIVE) else { break };
            self.work.inactive_scans += 1;
            let was_young = self.pages.take(page, flag::YOUNG);
            let was_referenced = self.pages.take(page, flag::REFERENCED);
            let is_used = (was_young || was_referenced) && self.pages.has(page, flag::MAPPED);
            if is_used || !(self.is_of_file(page) || self.has_swap_left()) {
                self.activate(page);
            } else {
                self.let_go(page);
                self.counts(page).evictions += 1;
                freed += 1;
            }
        }
        freed
    }
}
