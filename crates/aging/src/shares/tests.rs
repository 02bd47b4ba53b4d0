use proptest::prelude::*;

use super::*;

fn all(_: usize, wanted: u64) -> u64 {
    wanted
}

/// Claims of one owner, each of size 1.
fn ones(owner: Owner, count: usize) -> Vec<Claim> {
    vec![Claim { owners: vec![owner], size: 1 }; count]
}

fn of(owner: Owner, claims: &[Claim], granted: &[u64]) -> u64 {
    claims.iter().zip(granted).filter(|(claim, _)| claim.owners.contains(&owner)).map(|(_, granted)| granted).sum()
}

#[test]
fn a_user_with_many_claims_takes_nothing_from_one_with_few() {
    let mut owners = Owners::default();
    let (attacker, victim) = (owners.of("/", 4001), owners.of("/", 4002));
    let claims = [ones(attacker, 40_000), ones(victim, 10)].concat();
    let granted = divide(&owners, &claims, 1000, Pieces::Whole, all);
    assert_eq!((of(attacker, &claims, &granted), of(victim, &claims, &granted)), (990, 10));
}

#[test]
fn users_of_one_group_share_the_part_of_the_group() {
    let mut owners = Owners::default();
    let many: Vec<Owner> = (0..50).map(|user| owners.of("/user.slice/mallory", 100_000 + user)).collect();
    let victim = owners.of("/system.slice/web", 33);
    let mut claims: Vec<Claim> = many.iter().flat_map(|owner| ones(*owner, 100)).collect();
    claims.extend(ones(victim, 60));
    let granted = divide(&owners, &claims, 100, Pieces::Whole, all);
    assert_eq!(of(victim, &claims, &granted), 50, "half, and not one part of 51");
    assert!(many.iter().all(|owner| of(*owner, &claims, &granted) == 1));
}

#[test]
fn child_groups_of_a_user_share_its_share() {
    let mut owners = Owners::default();
    let many: Vec<Owner> = (0..50).map(|nth| owners.of(&format!("/user.slice/mallory/{nth}"), 1000)).collect();
    let victim = owners.of("/user.slice/alice", 1001);
    let mut claims: Vec<Claim> = many.iter().flat_map(|owner| ones(*owner, 100)).collect();
    claims.extend(ones(victim, 60));
    assert_eq!(of(victim, &claims, &divide(&owners, &claims, 100, Pieces::Whole, all)), 50);
}

#[test]
fn a_large_claim_does_not_overtake_small_ones_and_a_claim_that_does_not_fit_is_left_out() {
    let mut owners = Owners::default();
    let (a, b) = (owners.of("/a", 1), owners.of("/b", 1));
    let claims = [vec![Claim { owners: vec![a], size: 90 }], ones(a, 5), ones(b, 50)].concat();
    let granted = divide(&owners, &claims, 100, Pieces::Whole, all);
    assert_eq!((granted[0], of(a, &claims, &granted), of(b, &claims, &granted)), (0, 5, 50));
    let granted = divide(&owners, &claims, 200, Pieces::Whole, all);
    assert_eq!((granted[0], of(b, &claims, &granted)), (90, 50));
}

#[test]
fn a_claim_of_several_owners_is_granted_once() {
    let mut owners = Owners::default();
    let (a, b) = (owners.of("/", 1), owners.of("/", 2));
    let shared = Claim { owners: vec![a, b], size: 4 };
    let claims = [vec![shared], ones(a, 10), ones(b, 10)].concat();
    let granted = divide(&owners, &claims, 10, Pieces::Of(1), all);
    assert_eq!((of(a, &claims, &granted), of(b, &claims, &granted)), (7, 7));
    assert_eq!(granted.iter().sum::<u64>(), 10);
}

#[test]
fn an_owner_is_named_by_its_group_and_user() {
    let mut owners = Owners::default();
    let web = owners.of("/system.slice/web.service", 33);
    assert_eq!(owners.name(web).to_string(), "user 33 in control group /system.slice/web.service");
    let top = owners.of("/", 0);
    assert_eq!(owners.name(top).to_string(), "user 0 in control group /");
    let deep = owners.of(&"/x".repeat(2000), 5);
    assert_eq!(owners.name(deep).group, "/x".repeat(DEPTH_MAX), "deeper ones are that one");
    assert_eq!(owners.of("/system.slice/web.service", 33), web);
}

/// Groups `/G/S` of users, each with claims.
#[derive(Clone, Debug)]
struct Case {
    owners: Owners,
    claims: Vec<Claim>,
    total: u64,
    pieces: Pieces,
}

fn case() -> impl Strategy<Value = Case> {
    let owner = (0u8..4, 0u8..3, 0u32..4);
    let claim = (prop::collection::vec(owner, 1..3), 1u64..40);
    let pieces = prop_oneof![Just(Pieces::Whole), (1u64..9).prop_map(Pieces::Of)];
    (prop::collection::vec(claim, 0..60), 0u64..600, pieces).prop_map(|(all, total, pieces)| {
        let mut owners = Owners::default();
        let claims = all.into_iter().map(|(of, size)| {
            let path = |(group, below, _): (u8, u8, u32)| {
                if below == 0 { format!("/{group}") } else { format!("/{group}/{below}") }
            };
            let of: BTreeSet<Owner> = of.into_iter().map(|who| owners.of(&path(who), who.2)).collect();
            Claim { owners: of.into_iter().collect(), size }
        });
        let claims = claims.collect();
        Case { owners, claims, total, pieces }
    })
}

impl Case {
    fn divide(&self) -> Vec<u64> {
        divide(&self.owners, &self.claims, self.total, self.pieces, all)
    }

    /// Guaranteed amount of an owner: an even part at each level down.
    fn fair(&self, owner: Owner) -> u64 {
        let wanting: BTreeSet<usize> =
            self.claims.iter().flat_map(|claim| &claim.owners).flat_map(|owner| self.owners.chain(owner.0)).collect();
        let down: Vec<usize> = self.owners.chain(owner.0).collect();
        down.iter().rev().skip(1).fold(self.total, |share, node| {
            let parent = self.owners.nodes[*node].parent;
            let is_sibling = |other: &&usize| **other != TOP && self.owners.nodes[**other].parent == parent;
            share / wanting.iter().filter(is_sibling).count() as u64
        })
    }
}

proptest! {
    #[test]
    fn who_asks_for_no_more_than_its_share_has_all_of_it(case in case()) {
        let granted = case.divide();
        let everybody: BTreeSet<Owner> = case.claims.iter().flat_map(|claim| claim.owners.iter().copied()).collect();
        for owner in everybody {
            let sizes: Vec<u64> = case.claims.iter().map(|claim| claim.size).collect();
            let demand = of(owner, &case.claims, &sizes);
            if demand <= case.fair(owner) {
                prop_assert_eq!(of(owner, &case.claims, &granted), demand);
            }
        }
    }

    #[test]
    fn no_more_is_granted_than_there_is_and_nothing_is_left_that_would_fit(case in case()) {
        let granted = case.divide();
        let sum: u64 = granted.iter().sum();
        prop_assert!(sum <= case.total);
        for (claim, granted) in case.claims.iter().zip(&granted) {
            prop_assert!(*granted <= claim.size);
            if case.pieces == Pieces::Whole {
                prop_assert!(*granted == 0 || *granted == claim.size);
                prop_assert!(*granted == claim.size || claim.size > case.total - sum);
            } else {
                prop_assert!(*granted == claim.size || sum == case.total);
            }
        }
    }

    /// Earlier grants come first among their owner's next claims; then the result is the same.
    #[test]
    fn the_answer_stays_when_what_was_granted_is_wanted_first(case in case()) {
        let mut case = case;
        case.claims.iter_mut().for_each(|claim| claim.size = 1);
        case.total %= case.claims.len() as u64 + 1;
        let granted = case.divide();
        let mut order: Vec<usize> = (0..case.claims.len()).collect();
        order.sort_by_key(|nth| (granted[*nth] == 0, *nth));
        let again = Case { claims: order.iter().map(|nth| case.claims[*nth].clone()).collect(), ..case.clone() };
        let before: Vec<u64> = order.iter().map(|nth| granted[*nth]).collect();
        prop_assert_eq!(again.divide(), before);
    }

    #[test]
    fn with_more_to_divide_no_owner_has_less(case in case(), more in 0u64..200) {
        let case = Case { pieces: Pieces::Of(1), ..case };
        let (before, after) = (case.divide(), Case { total: case.total + more, ..case.clone() }.divide());
        prop_assert!(before.iter().zip(&after).all(|(before, after)| before <= after));
    }

    #[test]
    fn a_claim_that_may_not_be_granted_takes_nothing_from_others(case in case()) {
        let case = Case { pieces: Pieces::Of(3), ..case };
        let refused = divide(&case.owners, &case.claims, case.total, case.pieces, |nth, wanted| if nth % 2 == 0 { 0 } else { wanted });
        let others = Case { claims: case.claims.iter().skip(1).step_by(2).cloned().collect(), ..case.clone() };
        let odd: Vec<u64> = refused.iter().skip(1).step_by(2).copied().collect();
        prop_assert_eq!(odd.iter().sum::<u64>(), others.divide().iter().sum::<u64>());
    }
}
