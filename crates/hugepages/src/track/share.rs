//! Distribution of huge pages where fewer exist than are deserved: limits on a program, on a user, and on all
//! together, shared by benefit. Pure.
//!
//! The paper asks for fairness between processes (3.2) and names the danger: the first process takes all. Here a
//! window is promoted while its program, its user and the host are below their limits. At a limit it takes the place
//! of the window under the same limit that saves least, if it saves at least twice as much ([`TAKES_OVER`]): a huge
//! page that changes hands costs two copies, and a window's saving is known roughly. Idle windows save nothing.
//!
//! The saving of a huge window cannot be measured (it has one accessed bit); it keeps the value of its promotion.
//! Windows of arenas are under the program's control: they count, and are not taken away.
//!
//! No I/O, no clock, no randomness.

use std::collections::BTreeMap;

use units::{Rate, Window};

use super::admission::Account;

/// Limits on huge windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Per program.
    pub of_program: u64,
    /// Per user, all programs together.
    pub of_user: u64,
    /// All programs together.
    pub of_all: u64,
}

/// No limit.
pub const UNLIMITED: Limits = Limits { of_program: u64::MAX, of_user: u64::MAX, of_all: u64::MAX };

/// Factor by which a window must save more than another to take its place.
pub const TAKES_OVER: f64 = 2.0;

/// A program, by its index in the caller's list, and its account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    /// Index of the program.
    pub program: usize,
    /// Account that it counts against.
    pub user: Account,
}

/// A huge window.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OwnedWindow {
    /// Owner.
    pub owner: Owner,
    /// The window; `None` for one that cannot be taken away.
    pub window: Option<Window>,
    /// Saving: page walks per second.
    pub walks: Rate,
}

/// A window that deserves to be huge.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    /// Owner.
    pub owner: Owner,
    /// The window.
    pub window: Window,
    /// Expected saving.
    pub walks: Rate,
}

/// Decisions on the candidates, in their order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Shares {
    /// To be promoted; at a limit with another program's window that must be split first.
    pub granted: Vec<(Candidate, Option<(Owner, Window)>)>,
    /// Not to be promoted.
    pub refused: Vec<Candidate>,
}

/// Whether a program's next huge window fits under every limit, with `own`, its user's `of_user` and all `of_all`
/// present.
pub fn has_room(own: u64, of_user: u64, of_all: u64, limits: Limits) -> bool {
    arena(1, own, of_user, of_all, limits) == 1
}

/// Decides on `candidates`, the first one first, beside the windows in `owned`.
pub fn share(candidates: &[Candidate], owned: &[OwnedWindow], limits: Limits) -> Shares {
    if limits == UNLIMITED {
        return Shares { granted: candidates.iter().map(|one| (*one, None)).collect(), refused: Vec::new() };
    }
    let mut owned = owned.to_vec();
    let mut shares = Shares::default();
    // A refusal for a program extends to its windows that save no more: grants only become fewer.
    let mut refused_up_to: BTreeMap<usize, Rate> = BTreeMap::new();
    for candidate in candidates {
        if refused_up_to.get(&candidate.owner.program).is_some_and(|walks| candidate.walks <= *walks) {
            shares.refused.push(*candidate);
            continue;
        }
        match grant_for(candidate, &owned, limits) {
            Some(Grant::Free) => shares.granted.push((*candidate, None)),
            Some(Grant::InsteadOf(index)) => {
                let taken = owned.swap_remove(index);
                shares.granted.push((*candidate, taken.window.map(|window| (taken.owner, window))));
            }
            None => {
                refused_up_to.insert(candidate.owner.program, candidate.walks);
                shares.refused.push(*candidate);
                continue;
            }
        }
        // It yields to no other candidate: that would promote and split it at once.
        owned.push(OwnedWindow { owner: candidate.owner, window: None, walks: candidate.walks });
    }
    shares
}

enum Grant {
    Free,
    InsteadOf(usize),
}

/// Grant for it under every limit, if there is one. At most one window yields, so it must be under all limits that
/// are reached.
fn grant_for(candidate: &Candidate, owned: &[OwnedWindow], limits: Limits) -> Option<Grant> {
    let owner = candidate.owner;
    let count = |of: &dyn Fn(&Owner) -> bool| owned.iter().filter(|one| of(&one.owner)).count() as u64;
    let reached = [
        count(&|other| other.program == owner.program) >= limits.of_program,
        count(&|other| other.user == owner.user) >= limits.of_user,
        owned.len() as u64 >= limits.of_all,
    ];
    if reached == [false; 3] {
        return Some(Grant::Free);
    }
    let is_under_them = |one: &OwnedWindow| {
        let under = [one.owner.program == owner.program, one.owner.user == owner.user, true];
        under.iter().zip(reached).all(|(under, reached)| *under || !reached)
    };
    let movable = owned.iter().enumerate().filter(|(_, one)| one.window.is_some() && is_under_them(one));
    let least = movable.min_by(|a, b| a.1.walks.get().total_cmp(&b.1.walks.get()))?;
    let is_worth_it = candidate.walks.get() >= least.1.walks.get() * TAKES_OVER && candidate.walks > Rate::ZERO;
    (is_worth_it && !is_over(reached, owned, owner, limits)).then_some(Grant::InsteadOf(least.0))
}

/// Above a limit (it was lowered, or an arena grew): then one yielding window is not enough.
fn is_over(reached: [bool; 3], owned: &[OwnedWindow], owner: Owner, limits: Limits) -> bool {
    let of_program = owned.iter().filter(|one| one.owner.program == owner.program).count() as u64;
    let of_user = owned.iter().filter(|one| one.owner.user == owner.user).count() as u64;
    let beyond = [of_program > limits.of_program, of_user > limits.of_user, owned.len() as u64 > limits.of_all];
    reached.iter().zip(beyond).any(|(reached, beyond)| *reached && beyond)
}

/// Number of windows granted to an arena that asks for `wanted`. `own` is the number of the program's other huge
/// windows, `of_user` of its user's and `of_all` of all programs', each without this arena.
pub fn arena(wanted: u64, own: u64, of_user: u64, of_all: u64, limits: Limits) -> u64 {
    let left = [(limits.of_program, own), (limits.of_user, of_user), (limits.of_all, of_all)];
    left.into_iter().fold(wanted, |granted, (limit, used)| granted.min(limit.saturating_sub(used)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const A: Owner = Owner { program: 0, user: Account::User(1000) };
    const B: Owner = Owner { program: 1, user: Account::User(1001) };

    fn owned(owner: Owner, window: u64, walks: f64) -> OwnedWindow {
        OwnedWindow { owner, window: Some(Window(window)), walks: Rate::per_second(walks) }
    }

    fn candidate(owner: Owner, window: u64, walks: f64) -> Candidate {
        Candidate { owner, window: Window(window), walks: Rate::per_second(walks) }
    }

    #[test]
    fn below_the_limits_all_are_granted() {
        let wanted = [candidate(A, 1, 5.0), candidate(A, 2, 1.0)];
        let shares = share(&wanted, &[], Limits { of_program: 2, ..UNLIMITED });
        assert_eq!(shares.granted, wanted.map(|one| (one, None)));
        assert_eq!(shares.refused, []);
    }

    #[test]
    fn the_first_program_loses_a_window_only_to_one_that_saves_twice_as_much() {
        let limits = Limits { of_all: 2, ..UNLIMITED };
        let first = [owned(A, 1, 10.0), owned(A, 2, 50.0)];
        let shares = share(&[candidate(B, 7, 20.0)], &first, limits);
        assert_eq!(shares.granted, [(candidate(B, 7, 20.0), Some((A, Window(1))))]);
        assert_eq!(share(&[candidate(B, 7, 19.0)], &first, limits).granted, []);
    }

    #[test]
    fn at_its_own_limit_a_program_gives_way_to_itself_alone() {
        let limits = Limits { of_program: 1, ..UNLIMITED };
        let all = [owned(A, 1, 30.0), owned(B, 2, 1.0)];
        assert_eq!(share(&[candidate(A, 3, 40.0)], &all, limits).granted, []);
        let shares = share(&[candidate(A, 3, 60.0)], &all, limits);
        assert_eq!(shares.granted, [(candidate(A, 3, 60.0), Some((A, Window(1))))]);
    }

    #[test]
    fn an_idle_window_makes_way_for_any_that_is_used_and_an_arena_never_does() {
        let limits = Limits { of_user: 1, ..UNLIMITED };
        let shares = share(&[candidate(A, 3, 0.1)], &[owned(A, 1, 0.0)], limits);
        assert_eq!(shares.granted.len(), 1);
        let arena = OwnedWindow { window: None, ..owned(A, 1, 0.0) };
        assert_eq!(share(&[candidate(A, 3, 100.0)], &[arena], limits).refused.len(), 1);
    }

    #[test]
    fn an_arena_gets_what_every_limit_leaves() {
        let limits = Limits { of_program: 10, of_user: 12, of_all: 100 };
        assert_eq!(arena(20, 4, 7, 50, limits), 5);
        assert_eq!(arena(2, 4, 7, 50, limits), 2);
        assert_eq!(arena(2, 40, 7, 50, limits), 0);
        assert_eq!(arena(1 << 40, 0, 0, 0, UNLIMITED), 1 << 40);
    }

    fn some_windows() -> impl Strategy<Value = Vec<(u8, u8, f64)>> {
        prop::collection::vec((0u8..4, 0u8..2, 0.0f64..100.0), 0..40)
    }

    proptest! {
        #[test]
        fn no_limit_is_passed_and_nobody_loses_a_window_to_one_that_saves_less(
            there in some_windows(), wanted in some_windows(),
            of_program in 0u64..12, of_user in 0u64..20, of_all in 0u64..30,
        ) {
            let limits = Limits { of_program, of_user, of_all };
            let owner = |program: u8| Owner { program: usize::from(program), user: Account::User(u32::from(program / 2)) };
            // The existing windows are within the limits, as after earlier rounds.
            let wanted_by = |from: &[(u8, u8, f64)], base: u64| -> Vec<Candidate> {
                let windows = base..;
                windows.zip(from).map(|(window, (program, _, walks))| candidate(owner(*program), window, *walks)).collect()
            };
            let granted = share(&wanted_by(&there, 0), &[], limits).granted;
            let mut now: BTreeMap<u64, (Owner, Rate)> = BTreeMap::new();
            let mut carry_out = |granted: &[(Candidate, Option<(Owner, Window)>)]| -> Result<(), TestCaseError> {
                for (one, instead) in granted {
                    if let Some((owner, window)) = instead {
                        let lost = now.remove(&window.0);
                        prop_assert!(lost.is_some_and(|lost| lost.0 == *owner && lost.1 <= one.walks));
                    }
                    now.insert(one.window.0, (one.owner, one.walks));
                    let program = now.values().filter(|other| other.0.program == one.owner.program).count() as u64;
                    let user = now.values().filter(|other| other.0.user == one.owner.user).count() as u64;
                    prop_assert!(program <= of_program && user <= of_user && now.len() as u64 <= of_all);
                }
                Ok(())
            };
            carry_out(&granted)?;
            let owned: Vec<OwnedWindow> = now_of(&granted);
            let shares = share(&wanted_by(&wanted, 1000), &owned, limits);
            carry_out(&shares.granted)?;
            prop_assert_eq!(shares.granted.len() + shares.refused.len(), wanted.len());
        }
    }

    /// Windows owned after all grants of a first round.
    fn now_of(granted: &[(Candidate, Option<(Owner, Window)>)]) -> Vec<OwnedWindow> {
        let mut owned: Vec<OwnedWindow> = Vec::new();
        for (one, instead) in granted {
            owned.retain(|other| instead.is_none_or(|(_, window)| other.window != Some(window)));
            owned.push(OwnedWindow { owner: one.owner, window: Some(one.window), walks: one.walks });
        }
        owned
    }
}
