//! Limits on huge pages of programs that register and leave: grants, and evictions between programs.

use std::collections::BTreeMap;

use linux::Error;
use units::cast::index;
use units::{Rate, Window};

use super::Tracker;
use crate::policy::Promotion;
use crate::track::share::{self, OwnedWindow, Owner, UNLIMITED};
use crate::track::watched::{Act, Watched, candidate};

/// Upper bound on any machine: 256 TiB.
const MOST_ARENA_WINDOWS: u64 = 1 << 27;

impl Tracker {
    /// Number of windows granted to the arenas of a program.
    pub(super) fn grant(&mut self, key: usize, windows: u64) -> u64 {
        let limits = self.s.limits;
        let Some([own, of_user, of_all]) = self.counts(key, |one| one.target.promoted_now().saturating_add(one.arena))
        else {
            return 0;
        };
        let Some(watching) = self.watching(key) else { return 0 };
        let there = watching.program.arena;
        let [own, of_user, of_all] = [own, of_user, of_all].map(|count| count.saturating_sub(there));
        let granted = share::arena(windows.min(MOST_ARENA_WINDOWS), own, of_user, of_all, limits);
        // Existing windows stay: a refused request does not change the count.
        watching.program.arena = if granted >= windows { granted } else { there.min(windows) };
        granted
    }

    /// Carries out an action on a window. Where that takes another's place, the limits are checked again afterwards.
    pub(super) fn carry_out(&mut self, key: usize, act: Act) -> Result<(), Error> {
        if let Act::Promote(promotion, instead) = act
            && self.s.limits != UNLIMITED
        {
            if let Some((loser, window)) = instead
                && let Some(other) = self.watching(loser.program)
            {
                match other.program.carry_out(Act::Demote(window)) {
                    Err(error) if loser.program == key => return Err(error),
                    // Its own next step reports the error; there is no space then.
                    Ok(()) | Err(_) => {}
                }
            }
            if !self.has_room(key) {
                if let Some(watching) = self.watching(key) {
                    watching.program.target.refuse_over_limit(promotion.window);
                }
                return Ok(());
            }
        }
        self.watching(key).map_or(Ok(()), |watching| watching.program.carry_out(act))
    }

    fn has_room(&self, key: usize) -> bool {
        let Some([own, of_user, of_all]) = self.counts(key, |one| one.target.promoted_now().saturating_add(one.arena))
        else {
            return false;
        };
        share::has_room(own, of_user, of_all, self.s.limits)
    }

    /// A count for a program, for its user's programs, and for all.
    fn counts(&self, key: usize, count: impl Fn(&Watched) -> u64) -> Option<[u64; 3]> {
        let own = &self.clients.get(&key)?.watched.as_ref()?.program;
        let mut counts = [count(own), 0, 0];
        for other in self.clients.values().filter_map(|client| Some(&client.watched.as_ref()?.program)) {
            let of_other = count(other);
            counts[2] = counts[2].saturating_add(of_other);
            if other.account == own.account {
                counts[1] = counts[1].saturating_add(of_other);
            }
        }
        Some(counts)
    }

    /// Shares out the huge pages within the limits.
    pub(super) fn share(&mut self, key: usize, plan: &[Promotion]) {
        let limits = self.s.limits;
        let owned = if limits == UNLIMITED { Vec::new() } else { self.owned_windows() };
        let Some(watching) = self.watching(key) else { return };
        let owner = Owner { program: key, user: watching.program.account };
        let candidates: Vec<_> = plan.iter().map(|promotion| candidate(promotion, owner)).collect();
        let shares = share::share(&candidates, &owned, limits);
        for refused in &shares.refused {
            watching.program.target.refuse_over_limit(refused.window);
        }
        let granted: BTreeMap<Window, Option<(Owner, Window)>> =
            shares.granted.iter().map(|(one, instead)| (one.window, *instead)).collect();
        let to_do = plan.iter().filter_map(|one| Some((*one, *granted.get(&one.window)?)));
        watching.program.act_on(to_do);
    }

    /// All huge windows that count against limits.
    fn owned_windows(&self) -> Vec<OwnedWindow> {
        let mut owned = Vec::new();
        // More windows than every limit allows make no difference.
        let limits = self.s.limits;
        let finite = [limits.of_program, limits.of_user, limits.of_all].into_iter().filter(|limit| *limit < u64::MAX);
        let most = finite.max().unwrap_or(0).saturating_add(1).min(MOST_ARENA_WINDOWS);
        for (key, program) in self.clients.iter().filter_map(|(key, one)| Some((*key, &one.watched.as_ref()?.program)))
        {
            let owner = Owner { program: key, user: program.account };
            owned.extend(program.target.savings().map(|(window, walks, is_idle)| {
                let walks = if is_idle { Rate::ZERO } else { walks };
                OwnedWindow { owner, window: Some(window), walks }
            }));
            let arena = index(program.arena.min(most));
            owned.extend(std::iter::repeat_n(OwnedWindow { owner, window: None, walks: Rate::ZERO }, arena));
        }
        owned
    }
}
