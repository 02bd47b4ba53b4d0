//! Plans of the policies for the last-level cache: a cache, programs with any curves, sharing groups. Every plan is
//! feasible and is the same again, and its prediction is finite. The closed loop makes such plans only, for any
//! measurements, and settles when the measurements stay the same.

use crate::input::Input;
use llc::policy::predict::predict;
use llc::policy::sharing::{Refiner, USUAL};
use llc::policy::{Cache, Curve, Plan, Policy, Program, Sharer, SharingGroup, Situation};
use units::cast::index;
use units::{Bytes, WayMask, Ways};

/// Most programs: more than a word has bits, too.
const PROGRAMS_MAX: u8 = 70;
/// Plans that masu's own policy tries: fewer than usual, for many inputs a second.
const PLANS_MAX: usize = 200;

/// Runs one input; true when it was understood.
pub fn run(bytes: &[u8]) -> bool {
    let mut input = Input(bytes);
    let situation = situation(&mut input);
    for policy in Policy::ALL {
        let plan = policy.plan(&situation, None);
        assert_eq!(plan.check(&situation), Ok(()), "{policy}: {plan:?} for {situation:?}");
        assert_eq!(policy.plan(&situation, None), plan, "{policy} decides otherwise the second time");
        // With a plan in force, of the same programs or of others.
        let before = Policy::ALL[usize::from(input.byte()) % Policy::ALL.len()].plan(&situation, None);
        assert_eq!(policy.plan(&situation, Some(&before)).check(&situation), Ok(()), "{policy} after {before:?}");
        sane(&situation, &plan);
    }
    closed_loop(&situation, &mut input);
    !situation.programs.is_empty()
}

fn sane(situation: &Situation, plan: &Plan) {
    let expected = predict(situation, plan);
    assert_eq!(expected.len(), situation.programs.len());
    assert!(expected.iter().all(|slowdown| slowdown.is_finite() && *slowdown > 0.0), "{expected:?} of {plan:?}");
    // Where nothing is shared and curves only fall, no program is faster than with the whole cache to itself.
    let falls = |curve: &Curve| curve.values().windows(2).all(|two| two[0] >= two[1]);
    let all = index(u64::from(situation.cache.usable.ways().0));
    let whole = |curve: &Curve| curve.values().len() <= all + 1;
    let plain = |of: &Program| falls(&of.misses) && whole(&of.misses) && of.misses == of.private_misses;
    if situation.shared.is_empty() && situation.programs.iter().all(plain) {
        assert!(expected.iter().all(|slowdown| *slowdown >= 1.0 - 1e-9), "{expected:?} of {plan:?}");
    }
}

fn closed_loop(situation: &Situation, input: &mut Input<'_>) {
    let mut refiner = Refiner::new(llc::policy::sharing::Settings { plans_max: PLANS_MAX, ..USUAL });
    let mut plan = Policy::None.plan(situation, None);
    let mut measure = || -> Vec<f64> {
        let odd = |byte: u8| if byte == 255 { f64::NAN } else { f64::from(byte) / 50.0 };
        situation.programs.iter().map(|_| odd(input.byte())).collect()
    };
    plan = refiner.first(situation, &plan, &measure());
    for _ in 0..6 {
        assert_eq!(plan.check(situation), Ok(()), "{plan:?}");
        plan = refiner.next(situation, &plan, &measure());
    }
    let always = vec![1.5; situation.programs.len()];
    for _ in 0..64 {
        plan = refiner.next(situation, &plan, &always);
    }
    assert_eq!(refiner.next(situation, &plan, &always), plan, "still moving");
}

fn situation(input: &mut Input<'_>) -> Situation {
    let (first, ways) = (u32::from(input.byte() % 16), u32::from(input.byte() % 32));
    let ways_min = u32::from(input.byte() % 5);
    let usable = WayMask::run(first, Ways(ways.max(1)));
    let cache = Cache {
        usable,
        ways_min: Ways(ways_min),
        classes_max: usize::from(input.byte() % 20),
        way_bytes: Bytes(u64::from(input.int())),
    };
    let count = input.byte();
    // Large numbers of programs are slow, and therefore rare.
    let count = if count < 240 { count % 13 } else { count % PROGRAMS_MAX };
    let programs: Vec<Program> = (0..count).map(|_| program(input)).collect();
    let shared = (0..input.byte() % 4).filter_map(|_| set(input, programs.len())).collect();
    Situation { cache, programs, shared }
}

fn program(input: &mut Input<'_>) -> Program {
    let misses = curve(input);
    let private_misses = match input.byte() % 4 {
        0 => curve(input),
        1 => Curve::new(misses.values().iter().map(|value| value / 2.0).collect()),
        _ => misses.clone(),
    };
    Program {
        misses,
        private_misses,
        base_cycles: number(input),
        miss_cycles: number(input),
        stalled_fraction: number(input),
    }
}

/// Falling, flat, or anything, with any number of values.
fn curve(input: &mut Input<'_>) -> Curve {
    let (kind, count) = (input.byte(), 1 + input.byte() % 34);
    let mut value = f64::from(input.byte());
    let mut next = || {
        match kind % 4 {
            0 => value = number(input),
            1 => {}
            _ => value *= f64::from(input.byte()) / 255.0,
        }
        value
    };
    Curve::new((0..count).map(|_| next()).collect())
}

/// Small numbers, and results of failed measurements.
fn number(input: &mut Input<'_>) -> f64 {
    match input.byte() {
        255 => f64::NAN,
        254 => f64::INFINITY,
        253 => -1.0,
        252 => 1e300,
        251 => 1e-300,
        small => f64::from(small) * f64::from(input.byte()) / 16.0,
    }
}

/// Members from the input, each once; at least two.
fn set(input: &mut Input<'_>, programs: usize) -> Option<SharingGroup> {
    let mut who: Vec<usize> = (0..input.byte() % 6).map(|_| usize::from(input.byte())).collect();
    who.retain(|program| *program < programs);
    who.sort_unstable();
    who.dedup();
    let sharers: Vec<Sharer> = who.into_iter().map(|program| Sharer { program, misses: curve(input) }).collect();
    (sharers.len() >= 2).then(|| SharingGroup { sharers, bytes: Bytes(u64::from(input.int())) })
}
