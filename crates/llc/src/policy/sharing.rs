//! masu's own policy: fair ways for private data, and a shared partition for shared data.
//!
//! No paper was found that does this. Taken from others: partitions for shared pages from 藤 and 山田 (see the head of
//! this crate), clusters from KPart and LFOC, unfairness from Selfa et al., the sharing model from HOTL (`contend`).
//! Its rules:
//!
//! - A line that k programs share is charged 1/k to each (`charge`): a shared partition belongs to no program, and
//!   without one each class with sharers is assumed to hold its part of the sharing group (`predict`).
//! - Private and shared data of a program have separate curves. A sharing group competes for ways like a program, and
//!   its gain is the sum over all sharers. A shared partition is made only when that pays.
//! - The objective is the least [`score`]: unfairness (greatest over least slowdown), and of equally fair plans the
//!   one with the greater throughput.
//! - The plans of all other policies are candidates, and so is no partition at all. The best of them and some of its
//!   own are improved step by step (`search`). So by its own model it is no worse than any of them, with and without
//!   shared data.
//! - The model knows a partition of one program exactly and a shared one roughly. So a program without isolation
//!   counts as a little slower or faster than predicted ([`Settings::doubt`]).
//! - The current plan stays unless the new one is better by [`Settings::clearly`].
//! - A caller that can measure slowdowns continues with them ([`Refiner`]): they correct the model, and the corrected
//!   model plans again.
//!
//! With more than 64 programs only the candidates are compared.

use super::predict::predict;
use super::{Class, Plan, Policy, Situation, dunn};

mod refine;
mod search;

pub use refine::Refiner;
use search::{Division, Search};

/// Weights and limits of the policy.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// Weight of throughput beside fairness: a loss of all of it is as bad as e to this power in unfairness.
    pub throughput_weight: f64,
    /// Error of a prediction for programs that share ways, as a fraction of their slowdown beyond 1.
    pub doubt: f64,
    /// Fraction of unfairness by which another plan must be better than the current one.
    pub clearly: f64,
    /// Greatest number of evaluated plans.
    pub plans_max: usize,
}

/// Values for planning from curves alone. With less doubt the policy puts programs into one partition that want the
/// same ways, and errs: of the mixes in `bench/scenarios` `mix-4b` then has an unfairness of 2.7 in place of 1.3.
pub const USUAL: Settings = Settings { throughput_weight: 0.05, doubt: 0.15, clearly: 0.005, plans_max: 8_000 };
/// Values for planning with measurements ([`Refiner`]), which reveal errors.
pub const MEASURED: Settings = Settings { doubt: 0.05, ..USUAL };

/// Policies whose plans are candidates.
const OTHERS: [Policy; 6] = [Policy::None, Policy::Equal, Policy::Lfoc, Policy::Kpart, Policy::Ucp, Policy::Dunn];

/// Cost of these slowdowns: the logarithm of unfairness, and a little for lost throughput. 0 is best.
pub fn score(slowdowns: &[f64], settings: &Settings) -> f64 {
    let (mut least, mut most, mut progress) = (f64::INFINITY, 0.0f64, 0.0);
    for slowdown in slowdowns {
        (least, most) = (least.min(*slowdown), most.max(*slowdown));
        progress += 1.0 / slowdown;
    }
    if slowdowns.is_empty() {
        return 0.0;
    }
    #[expect(clippy::cast_precision_loss, reason = "a number of programs")]
    let lost = 1.0 - (progress / slowdowns.len() as f64).min(1.0);
    (most / least).ln() + settings.throughput_weight * lost
}

/// The plan; `before` is the current one.
pub fn plan(situation: &Situation, before: Option<&Plan>, settings: Settings) -> Plan {
    let model = Expected { situation, settings, learned: &Learned::default() };
    let found = model.best(None, &[]);
    match before.filter(|before| before.check(situation).is_ok()) {
        Some(before) if found.as_ref().is_none_or(|(score, _)| model.score(before) <= score + settings.clearly) => {
            before.clone()
        }
        _ => found.map_or_else(|| super::equal::unpartitioned(situation), |(_, plan)| plan),
    }
}

/// Error of the model by program, as a factor of the slowdown: alone in its ways, and sharing them. 1 if unknown.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Learned {
    alone: Vec<f64>,
    together: Vec<f64>,
}

impl Learned {
    /// Learns from slowdowns measured against predicted ones; `alone`: programs with ways to themselves.
    fn learn(&mut self, predicted: &[f64], measured: &[f64], alone: &[bool]) {
        self.alone.resize(measured.len(), 1.0);
        self.together.resize(measured.len(), 1.0);
        for (nth, (measured, predicted)) in measured.iter().zip(predicted).enumerate() {
            let of = if alone[nth] { &mut self.alone } else { &mut self.together };
            of[nth] = (measured / predicted).clamp(0.1, 10.0);
        }
    }

    /// Corrects predicted slowdowns, but to no less than 1.
    fn correct(&self, slowdowns: &mut [f64], alone: &[bool]) {
        for (nth, slowdown) in slowdowns.iter_mut().enumerate() {
            let of = if alone[nth] { &self.alone } else { &self.together };
            let factor = of.get(nth).copied().unwrap_or(1.0);
            *slowdown = (*slowdown * factor).max(slowdown.min(1.0));
        }
    }
}

/// Predicted slowdowns of plans: the model, corrected by measurements, with some doubt.
#[derive(Clone, Copy)]
struct Expected<'a> {
    situation: &'a Situation,
    settings: Settings,
    learned: &'a Learned,
}

impl Expected<'_> {
    /// Slowdowns from predicted ones: corrected, and those of programs that share ways at the worse end of their
    /// range.
    fn slowdowns_from(&self, mut predicted: Vec<f64>, alone: &[bool]) -> Vec<f64> {
        self.learned.correct(&mut predicted, alone);
        worsened(&mut predicted, alone, self.settings.doubt);
        predicted
    }

    fn slowdowns(&self, plan: &Plan) -> Vec<f64> {
        self.slowdowns_from(predict(self.situation, plan), &alone(self.situation, plan))
    }

    fn score(&self, plan: &Plan) -> f64 {
        score(&self.slowdowns(plan), &self.settings)
    }

    /// Best plan except those `tried`, with its score. Candidates are the plans of other policies, and the plans
    /// reached step by step from them and from the current plan.
    fn best(&self, before: Option<&Plan>, tried: &[Plan]) -> Option<(f64, Plan)> {
        let situation = self.situation;
        let mut candidates: Vec<Plan> = OTHERS.into_iter().map(|policy| policy.plan(situation, None)).collect();
        candidates.push(dunn::plan(situation, dunn::Settings { layout: dunn::Layout::Spread, ..dunn::PAPER }));
        let divisions: Vec<Division> = tried.iter().filter_map(Division::of).collect();
        if situation.programs.len() <= search::PROGRAMS_MAX {
            let starts: Vec<Division> = before.into_iter().chain(&candidates).filter_map(Division::of).collect();
            candidates.extend(Search::new(*self, &divisions).best(starts));
        }
        let new = |plan: &Plan| {
            !tried.contains(plan) && Division::of(plan).is_none_or(|division| !divisions.contains(&division))
        };
        let sound = candidates.into_iter().filter(|plan| plan.check(situation).is_ok() && new(plan));
        sound.map(|plan| (self.score(&plan), plan)).reduce(|best, next| if next.0 < best.0 { next } else { best })
    }
}

/// Programs with ways to themselves under this plan.
fn alone(situation: &Situation, plan: &Plan) -> Vec<bool> {
    let is_alone = |class: &&Class| {
        let mut others = plan.classes.iter().filter(|other| !std::ptr::eq(*other, *class));
        class.programs.len() == 1 && others.all(|other| !other.mask.overlaps(class.mask))
    };
    let mut alone = vec![false; situation.programs.len()];
    plan.classes.iter().filter(is_alone).for_each(|class| alone[class.programs[0]] = true);
    alone
}

/// Moves the slowdowns that are not `sure` away from the middle of all.
fn worsened(slowdowns: &mut [f64], sure: &[bool], doubt: f64) {
    #[expect(clippy::cast_precision_loss, reason = "a number of programs")]
    let middle = (slowdowns.iter().map(|slowdown| slowdown.ln()).sum::<f64>() / slowdowns.len().max(1) as f64).exp();
    for (slowdown, sure) in slowdowns.iter_mut().zip(sure) {
        if !sure {
            let wrong = doubt * (*slowdown - 1.0).abs();
            *slowdown = if *slowdown >= middle { *slowdown + wrong } else { (*slowdown - wrong).max(*slowdown * 0.5) };
        }
    }
}
