//! The classic lists of a control group, as Linux 6.18 ages them where generations are off. Pure.
//!
//! - A page comes to the inactive list. A second `read(2)` makes it active at once. A use by a mapping shows only when the page is
//!   looked at, at the tail of the inactive list: the first such use spares it for another round, the second makes it active; of code,
//!   the first does.
//! - The active list is aged while the inactive one is low (less than active / √(10 · GiB of both), or than active below 1 GiB), or
//!   pages come back too soon. What is aged goes to the inactive list, whether it was used or not; only code that was used stays.
//! - A page that goes leaves a shadow with the time, counted in pages that went or became active. If it comes back before as much
//!   time has gone by as there are active pages, it becomes active at once, unless it is overwritten.
//! - The lengths of lists by which it decides both, and the number of pages that came back, are sums over the group, which are up to two
//!   seconds old ([`super::Machine::sums_us`]).
//! - Files and the rest are looked at as swappiness and what each cost lately say; without swap only files are.
//!
//! Truth: mm/vmscan.c, mm/workingset.c and mm/swap.c; Documentation/mm/multigen_lru.rst for what is not meant here. Calibrated against
//! the running kernel by `live-tests/src/cases/aging_simulate.rs`.

use super::memory::Memory;
use super::pages::{List, flag};
use super::trace::Access;
use aging::class::Class;

/// So many pages are wanted by a reclaim, and looked at in a row (`SWAP_CLUSTER_MAX`).
pub(super) const BATCH: u64 = 32;
/// A reclaim looks at one page of each list in 2¹², then of 2¹¹, and so on (`DEF_PRIORITY`).
pub(super) const PRIORITY: u32 = 12;
/// The greatest swappiness.
const SWAPPINESS_MAX: u64 = 200;
/// Of the sums over the lists: anonymous and shared, and files.
const ANON: usize = 0;
const FILE: usize = 1;

const INACTIVE: [List; 2] = [List::InactiveAnon, List::InactiveFile];
const ACTIVE: [List; 2] = [List::ActiveAnon, List::ActiveFile];

/// What the kernel adds up over a group.
#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    inactive: [u64; 2],
    active: [u64; 2],
    /// Pages that became active since they came back soon enough.
    back_soon: [u64; 2],
}

/// What only the classic lists have.
#[derive(Clone, Debug, Default)]
pub(super) struct Classic {
    /// The clock by which shadows are dated: pages that went or became active.
    pub(super) age: u64,
    back_soon: [u64; 2],
    /// The same, as it was at the end of the last reclaim.
    back_soon_before: [u64; 2],
    /// What looking at pages of each kind was worth lately: I/O, and pages that were looked at in vain.
    cost: [u64; 2],
    sums: Sums,
    /// The period in which they were added up.
    sums_at: u64,
}

/// What was decided for a round of a reclaim.
#[derive(Clone, Copy, Debug)]
struct Round {
    priority: u32,
    may_age: [bool; 2],
    /// There are plenty of files that nobody comes back for: nothing else is looked at.
    files_alone: bool,
}

/// What becomes of a page at the tail of the inactive list.
enum Verdict {
    Activate,
    Spare,
    Reclaim,
}

impl Memory {
    /// Adds a page that was not in memory.
    pub(super) fn add_classic(&mut self, access: Access, page: u32) {
        let is_of_file = self.is_of_file(page);
        let kind = usize::from(is_of_file);
        let had_shadow = self.pages.take(page, flag::SHADOW);
        let was_active = self.pages.take(page, flag::WORKINGSET);
        self.pages.put(page, INACTIVE[kind]);
        // What is overwritten is worth nothing.
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

    /// Less time has gone by since it went than there is room for: it would be here still if it had been active.
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

    /// The sums, as old as the machine lets them get.
    fn sums(&mut self) -> Sums {
        if self.machine.sums_us == 0 {
            self.add_up();
        }
        self.classic.sums
    }

    /// Time has gone by: the kernel adds up its sums when their time has come, whether anybody wants them or not.
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

    /// Frees some pages, if any can be.
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

    /// Pages of each list that are to be looked at: inactive and active, anonymous and of files.
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

    /// Looks at as many pages of each list as this priority asks for, or until enough is free.
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
            // Enough: of the kind of which less is left no more, and of the other as great a part as was done of that.
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
        // Anonymous memory is aged also where none of it is to go, if it can go at all.
        let sums = self.sums();
        if self.machine.swap.0 > 0 && is_low(sums, ANON) {
            self.age_active(ANON, BATCH);
        }
        freed
    }

    /// Looks at pages from the tail of the inactive list on, and says how many went.
    fn look_at_inactive(&mut self, kind: usize, count: u64) -> u64 {
        let (mut freed, mut written) = (0, 0);
        // What goes back to the head comes to no second look.
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
            // Every mapped page comes with a first use: it has to be seen twice.
            self.pages.set(page, flag::REFERENCED);
            return if was_referenced || self.is_code(page) { Verdict::Activate } else { Verdict::Spare };
        }
        // Without room in swap it cannot go.
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

    /// Takes pages from the tail of the active list.
    fn age_active(&mut self, kind: usize, count: u64) {
        let mut stayed = 0;
        for _ in 0..count.min(self.pages.len(ACTIVE[kind])) {
            let Some(page) = self.pages.oldest(ACTIVE[kind]) else { break };
            self.work.active_scans += 1;
            let was_young = self.pages.take(page, flag::YOUNG);
            if was_young && self.is_code(page) {
                stayed += 1;
                // It counts as made active once more.
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

/// The inactive list is shorter than it should be, to the active one's length.
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
        // Below 1 GiB as long as the active one; of 1 GiB √10 = 3 times shorter, of 10 GiB 10 times, of 1 TiB 101 times.
        assert!(is_low(sums(99, 100), FILE) && !is_low(sums(100, 100), FILE));
        assert!(!is_low(sums(gib / 4, 3 * gib / 4), FILE) && is_low(sums(gib / 4 - 1, 3 * gib / 4 + 1), FILE));
        assert!(!is_low(sums(gib, 10 * gib), FILE) && is_low(sums(gib, 10 * gib + 1), FILE));
        assert!(!is_low(sums(11 * gib, 1011 * gib), FILE) && is_low(sums(10 * gib, 1014 * gib), FILE));
    }
}
