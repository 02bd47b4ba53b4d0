//! Classic lists of a control group, with the aging of Linux 6.18 without generations. Pure.
//!
//! - A page is inserted into the inactive list. A second `read(2)` activates it at once. A use through a mapping is
//!   seen only when the page is scanned at the tail of the inactive list: the first use spares it for another round,
//!   the second activates it. For code, the first use activates it.
//! - The active list is aged while the inactive list is low (less than active / √(10 · GiB of both), or than active
//!   below 1 GiB), or refaults come too soon. Aged pages go to the inactive list, used or not; only used code stays.
//! - An evicted page leaves a shadow with the time, counted in evicted or activated pages. A page that returns before
//!   as much time has passed as there are active pages is activated at once, unless it is overwritten.
//! - Both decisions use the list lengths, and the number of refaults, as sums over the group that are up to two seconds
//!   old ([`super::Machine::sums_us`]).
//! - Files and other memory are scanned according to swappiness and the recent cost of each; without swap only files
//!   are.
//!
//! Truth: mm/vmscan.c, mm/workingset.c and mm/swap.c; Documentation/mm/multigen_lru.rst describes the generations,
//! which are not simulated. Calibrated against the running kernel by `live-tests/src/cases/aging_simulate.rs`.

use super::memory::Memory;
use super::pages::{List, flag};
use super::trace::Access;
use aging::class::Class;

/// Number of pages wanted by a reclaim, and scanned in a row (`SWAP_CLUSTER_MAX`).
pub(super) const BATCH: u64 = 32;
/// Initial priority: a reclaim scans one in 2¹² pages of each list, then one in 2¹¹, and so on (`DEF_PRIORITY`).
pub(super) const PRIORITY: u32 = 12;
/// Largest swappiness.
const SWAPPINESS_MAX: u64 = 200;
/// Indices of the sums over the lists: anonymous and shared memory, and files.
const ANON: usize = 0;
const FILE: usize = 1;

const INACTIVE: [List; 2] = [List::InactiveAnon, List::InactiveFile];
const ACTIVE: [List; 2] = [List::ActiveAnon, List::ActiveFile];

/// Sums of the kernel over a group.
#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    inactive: [u64; 2],
    active: [u64; 2],
    /// Pages activated because their refault came soon enough.
    back_soon: [u64; 2],
}

/// State of the classic lists only.
#[derive(Clone, Debug, Default)]
pub(super) struct Classic {
    /// Clock of the shadows: number of evicted or activated pages.
    pub(super) age: u64,
    back_soon: [u64; 2],
    /// The same, at the end of the last reclaim.
    back_soon_before: [u64; 2],
    /// Recent cost of scanning each kind: I/O, and pages scanned without success.
    cost: [u64; 2],
    sums: Sums,
    /// Period of the last update of the sums.
    sums_at: u64,
}

/// Decisions for a round of a reclaim.
#[derive(Clone, Copy, Debug)]
struct Round {
    priority: u32,
    may_age: [bool; 2],
    /// Many file pages without refaults: only files are scanned.
    files_alone: bool,
}

/// Decision for a page at the tail of the inactive list.
enum Verdict {
    Activate,
    Spare,
    Reclaim,
}

impl Memory {
    /// Inserts a page that was not in memory.
    pub(super) fn add_classic(&mut self, access: Access, page: u32) {
        let is_of_file = self.is_of_file(page);
        let kind = usize::from(is_of_file);
        let had_shadow = self.pages.take(page, flag::SHADOW);
        let was_active = self.pages.take(page, flag::WORKINGSET);
        self.pages.put(page, INACTIVE[kind]);
        // Overwritten pages have no refault value.
        let is_overwritten = access == Access::Write && is_of_file;
        if !had_shadow || is_overwritten || !self.is_back_soon(page, kind) {
            return;
        }
        self.activate(page);
        self.classic.back_soon[kind] += 1;
        if was_active {
            self.pages.set(page, flag::WORKINGSET);
            self.note_cost(kind, BATCH);
        }
    }

    /// True if less time has passed since its eviction than there is space for: as an active page it would still be
    /// cached.
    fn is_back_soon(&mut self, page: u32, kind: usize) -> bool {
        let distance = self.classic.age.saturating_sub(self.pages.get(page).stamp);
        let sums = self.sums();
        let mut room = sums.active[FILE];
        if kind == ANON {
            room += sums.inactive[FILE];
        }
        if self.has_swap_left() {
            room += sums.active[ANON];
            if kind == FILE {
                room += sums.inactive[ANON];
            }
        }
        distance <= room
    }

    /// Sums, as old as the machine allows.
    fn sums(&mut self) -> Sums {
        if self.machine.sums_us == 0 {
            self.add_up();
        }
        self.classic.sums
    }

    /// Updates the sums after their period, even without a reader.
    pub(super) fn add_up_in_time(&mut self) {
        if let Some(period) = self.now_us.checked_div(self.machine.sums_us)
            && period != self.classic.sums_at
        {
            self.classic.sums_at = period;
            self.add_up();
        }
    }

    fn add_up(&mut self) {
        self.classic.sums = Sums {
            inactive: INACTIVE.map(|list| self.pages.len(list)),
            active: ACTIVE.map(|list| self.pages.len(list)),
            back_soon: self.classic.back_soon,
        };
    }

    fn note_cost(&mut self, kind: usize, cost: u64) {
        let listed: u64 = INACTIVE.iter().chain(&ACTIVE).map(|list| self.pages.len(*list)).sum();
        self.classic.cost[kind] += cost;
        if self.classic.cost[ANON] + self.classic.cost[FILE] > listed / 4 {
            self.classic.cost = self.classic.cost.map(|cost| cost / 2);
        }
    }

    /// Frees some pages, if possible.
    pub(super) fn reclaim_classic(&mut self) -> bool {
        let mut forced = false;
        loop {
            let (mut freed, mut left_out) = (0, false);
            for priority in (0..=PRIORITY).rev() {
                let round = self.decide(priority, forced);
                left_out |= !round.may_age[ANON] || !round.may_age[FILE];
                freed += self.go_round(round);
                if freed >= BATCH {
                    break;
                }
            }
            self.classic.back_soon_before = self.sums().back_soon;
            if freed > 0 || forced || !left_out {
                return freed > 0;
            }
            forced = true;
        }
    }

    fn decide(&mut self, priority: u32, forced: bool) -> Round {
        let sums = self.sums();
        let is_thrashing = |kind: usize| sums.back_soon[kind] != self.classic.back_soon_before[kind];
        let may_age = [ANON, FILE].map(|kind| forced || is_thrashing(kind) || is_low(sums, kind));
        let files_alone = sums.inactive[FILE] >> priority > 0 && !may_age[FILE];
        Round { priority, may_age, files_alone }
    }

    /// Number of pages of each list to scan: inactive and active, anonymous and file.
    fn targets(&self, round: Round) -> [[u64; 2]; 2] {
        let swappiness = u64::from(self.machine.swappiness).min(SWAPPINESS_MAX);
        let (share, of) = if !self.has_swap_left() || swappiness == 0 {
            ([0, 1], 1)
        } else if round.priority == 0 {
            ([1, 1], 1)
        } else if round.files_alone {
            ([0, 1], 1)
        } else {
            let all = self.classic.cost[ANON] + self.classic.cost[FILE];
            let costs = self.classic.cost.map(|cost| all + cost);
            let both = costs[ANON] + costs[FILE] + 1;
            let anon = swappiness * both / (costs[ANON] + 1);
            let file = (SWAPPINESS_MAX - swappiness) * both / (costs[FILE] + 1);
            ([anon, file], (anon + file).max(1))
        };
        [INACTIVE, ACTIVE]
            .map(|lists| [ANON, FILE].map(|kind| (self.pages.len(lists[kind]) >> round.priority) * share[kind] / of))
    }

    /// Scans the share of each list for this priority, or until enough is free.
    fn go_round(&mut self, round: Round) -> u64 {
        let targets = self.targets(round);
        let mut left = targets;
        let (mut freed, mut is_even) = (0, false);
        let is_due = |left: &[[u64; 2]; 2]| left[0][ANON] + left[0][FILE] + left[1][FILE] > 0;
        while is_due(&left) {
            for kind in [ANON, FILE] {
                let now = left[0][kind].min(BATCH);
                left[0][kind] -= now;
                freed += self.look_at_inactive(kind, now);
                let now = left[1][kind].min(BATCH);
                left[1][kind] -= now;
                if round.may_age[kind] {
                    self.age_active(kind, now);
                }
            }
            if freed < BATCH || is_even {
                continue;
            }
            // Enough is free: the kind with less left is not scanned further, the other one up to the same proportion.
            let sum_of = |of: &[[u64; 2]; 2], kind: usize| of[0][kind] + of[1][kind];
            let rest = [ANON, FILE].map(|kind| sum_of(&left, kind));
            if rest[ANON] == 0 || rest[FILE] == 0 {
                break;
            }
            let less = if rest[FILE] > rest[ANON] { ANON } else { FILE };
            let not_done = rest[less] * 100 / (sum_of(&targets, less) + 1);
            for (left, target) in left.iter_mut().zip(&targets) {
                left[less] = 0;
                let more = 1 - less;
                let done = target[more] - left[more];
                left[more] = (target[more] * (100 - not_done) / 100).saturating_sub(done);
            }
            is_even = true;
        }
        // Anonymous memory is aged even if it is not to be evicted, if it can be evicted at all.
        let sums = self.sums();
        if self.machine.swap.0 > 0 && is_low(sums, ANON) {
            self.age_active(ANON, BATCH);
        }
        freed
    }

    /// Scans pages from the tail of the inactive list, and returns the number of evicted pages.
    fn look_at_inactive(&mut self, kind: usize, count: u64) -> u64 {
        let (mut freed, mut written) = (0, 0);
        // Pages moved back to the head are not scanned again.
        let count = count.min(self.pages.len(INACTIVE[kind]));
        for _ in 0..count {
            let Some(page) = self.pages.oldest(INACTIVE[kind]) else { break };
            self.work.inactive_scans += 1;
            match self.judge(page) {
                Verdict::Activate => self.activate(page),
                Verdict::Spare => self.pages.put(page, INACTIVE[kind]),
                Verdict::Reclaim => {
                    written += u64::from(kind == ANON);
                    freed += 1;
                    self.evict_classic(page);
                }
            }
        }
        if count > 0 {
            self.note_cost(kind, written * BATCH + count - freed);
        }
        freed
    }

    fn judge(&mut self, page: u32) -> Verdict {
        let was_young = self.pages.take(page, flag::YOUNG);
        let was_referenced = self.pages.take(page, flag::REFERENCED);
        if was_young {
            // A mapped page is inserted with a first use, so two uses must be seen.
            self.pages.set(page, flag::REFERENCED);
            return if was_referenced || self.is_code(page) { Verdict::Activate } else { Verdict::Spare };
        }
        // Without free swap space it cannot be evicted.
        if self.is_of_file(page) || self.has_swap_left() { Verdict::Reclaim } else { Verdict::Activate }
    }

    /// In an executable mapping of a file.
    fn is_code(&self, page: u32) -> bool {
        self.pages.get(page).class == Class::Code
    }

    fn evict_classic(&mut self, page: u32) {
        self.let_go(page);
        self.pages.set(page, flag::SHADOW);
        self.pages.get_mut(page).stamp = self.classic.age;
        self.classic.age += 1;
        self.counts(page).evictions += 1;
    }

    /// Scans pages from the tail of the active list.
    fn age_active(&mut self, kind: usize, count: u64) {
        let mut stayed = 0;
        for _ in 0..count.min(self.pages.len(ACTIVE[kind])) {
            let Some(page) = self.pages.oldest(ACTIVE[kind]) else { break };
            self.work.active_scans += 1;
            let was_young = self.pages.take(page, flag::YOUNG);
            if was_young && self.is_code(page) {
                stayed += 1;
                // It counts as activated once more.
                self.classic.age += 1;
                self.pages.put(page, ACTIVE[kind]);
            } else {
                self.pages.set(page, flag::WORKINGSET);
                self.pages.put(page, INACTIVE[kind]);
            }
        }
        if stayed > 0 {
            self.note_cost(kind, stayed);
        }
    }
}

/// True if the inactive list is too short in proportion to the active one.
fn is_low(sums: Sums, kind: usize) -> bool {
    let gib = (sums.inactive[kind] + sums.active[kind]) >> 18;
    let ratio = if gib > 0 { (10 * gib).isqrt() } else { 1 };
    sums.inactive[kind] * ratio < sums.active[kind]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_inactive_list_may_be_a_smaller_part_of_more_memory() {
        let gib = 1 << 18;
        let sums =
            |inactive: u64, active: u64| Sums { inactive: [0, inactive], active: [0, active], back_soon: [0; 2] };
        // Below 1 GiB equal to the active list; at 1 GiB √10 = 3 times shorter, at 10 GiB 10 times, at 1 TiB 101 times.
        assert!(is_low(sums(99, 100), FILE) && !is_low(sums(100, 100), FILE));
        assert!(!is_low(sums(gib / 4, 3 * gib / 4), FILE) && is_low(sums(gib / 4 - 1, 3 * gib / 4 + 1), FILE));
        assert!(!is_low(sums(gib, 10 * gib), FILE) && is_low(sums(gib, 10 * gib + 1), FILE));
        assert!(!is_low(sums(11 * gib, 1011 * gib), FILE) && is_low(sums(10 * gib, 1014 * gib), FILE));
    }
}
